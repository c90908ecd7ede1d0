//! The namespaces of a native task, and its root: a directory tree in which the owner's files do not exist.
//!
//! Landlock closes the owner's files to a program, but not their names: a program that guesses a path can ask for size,
//! times, links and extended attributes. So the first process of a task makes itself a root of its own, in memory, with
//! the installed system (read-only) and the task's own directories, and gives up the system's root. Without namespaces
//! the program sees the system's root, and seccomp refuses those of these calls that no program needs
//! ([`crate::confine`]).

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::confine::{DEVICES, Gap, SYSTEM, ZERO};
use crate::job::{Job, Stdin};

/// Directory of a task's files in its own root.
const TASK: &str = "/task";
/// Replaces [`ZERO`]: it reads the same, and cannot be mapped.
const ZERO_INSTEAD: &str = "/dev/full";

/// Gives this process, which must have one thread, namespaces: of users, in which it is the only user, and, for the
/// processes that it starts, of network, processes and shared memory.
///
/// # Errors
/// When the system gives none, or refuses their map of users: nothing has changed.
pub(crate) fn enter_namespaces() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    try_and_enter(format!("{user} {user} 1").as_bytes(), format!("{group} {group} 1").as_bytes())
}

/// Tries in a child first whether the map of users is granted: there is no way back out of a namespace in which this
/// process is nobody. Allocates nothing.
#[allow(unsafe_code)]
fn try_and_enter(users: &[u8], groups: &[u8]) -> io::Result<()> {
    // SAFETY: the child makes system calls, allocates nothing, and does not return.
    let child = match unsafe { libc::fork() } {
        0 => {
            let tried = unshare(libc::CLONE_NEWUSER).and_then(|()| map(users, groups));
            // Error numbers fit an exit code.
            let code = tried.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            // SAFETY: ends the process, and runs no code of ours in it.
            unsafe { libc::_exit(code) }
        }
        child if child > 0 => Pid::from_raw(child),
        _ => return Err(io::Error::last_os_error()),
    };
    let ended = rustix::io::retry_on_intr(|| rustix::process::waitpid(child, WaitOptions::empty()))?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => enter(users, groups),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Allocates nothing, so that it can be called between fork and exec.
fn enter(users: &[u8], groups: &[u8]) -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC)?;
    map(users, groups)
}

fn map(users: &[u8], groups: &[u8]) -> io::Result<()> {
    // Without the second a user may not write the third.
    let texts = [("/proc/self/uid_map", users), ("/proc/self/setgroups", b"deny"), ("/proc/self/gid_map", groups)];
    texts.into_iter().try_for_each(|(path, text)| File::options().write(true).open(path)?.write_all(text))
}

#[allow(unsafe_code)]
fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: an integer; file descriptors stay shared, and no memory is touched.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The feature, besides [`crate::gaps`], that this machine lacks for native programs, found by trying in a process that
/// ends.
#[allow(unsafe_code)]
pub fn gap() -> Option<Gap> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (users, groups) = (format!("{user} {user} 1"), format!("{group} {group} 1"));
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec it makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(move || enter(users.as_bytes(), groups.as_bytes()));
    }
    match command.status() {
        Ok(_) => None,
        Err(error) => Some(no_namespaces(&error)),
    }
}

/// The gap where there are no namespaces.
pub(crate) fn no_namespaces(error: &io::Error) -> Gap {
    let what = "native programs get no namespaces: what they start may outlive a killed agent, and seccomp alone keeps \
                them from the network and from other processes";
    Gap {
        what: format!("{what}: {error}"),
        remedy: "let users have namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)",
    }
}

/// The paths of a task's files, as its processes see them.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) program: PathBuf,
    pub(super) work: PathBuf,
    pub(super) inputs: Option<PathBuf>,
    pub(super) checkpoint: Option<PathBuf>,
    pub(super) stdin: PathBuf,
}

impl Paths {
    /// On the host.
    pub(super) fn real(job: &Job, program: &Path) -> Self {
        let stdin = match &job.stdin {
            Stdin::Empty | Stdin::Bytes(_) => PathBuf::from("/dev/null"),
            Stdin::File(path) => path.clone(),
        };
        let (inputs, checkpoint) = (job.inputs.clone(), job.checkpoint.clone());
        Self { program: program.to_owned(), work: job.work_dir(), inputs, checkpoint, stdin }
    }

    /// In a root of its own, where they tell nothing of the host.
    pub(super) fn own(job: &Job) -> Self {
        let at = |name: &str| Path::new(TASK).join(name);
        let stdin = match &job.stdin {
            Stdin::Empty | Stdin::Bytes(_) => PathBuf::from("/dev/null"),
            Stdin::File(_) => at("stdin"),
        };
        let inputs = job.inputs.as_ref().map(|_| at("inputs"));
        let checkpoint = job.checkpoint.as_ref().map(|_| at("checkpoint"));
        Self { program: at("program"), work: at("work"), inputs, checkpoint, stdin }
    }
}

/// A part of the host shown in a task's root.
struct Shown {
    mount: OwnedFd,
    at: PathBuf,
    is_directory: bool,
}

/// With namespaces: makes a root with the installed system, a few devices, and the task's files, and makes it the only
/// one. All is read-only but the directories that the task may write. The caller is then at that root.
pub(super) fn enter_own_root(job: &Job, real: &Paths) -> io::Result<()> {
    unshare(libc::CLONE_NEWNS)?;
    // Mounts made later elsewhere do not appear here, nor the other way round.
    set_attributes(libc::AT_FDCWD, c"/", libc::AT_RECURSIVE, 0, libc::MS_PRIVATE)?;
    let own = Paths::own(job);
    let mut shown = Vec::new();
    let mut links = Vec::new();
    for path in SYSTEM.iter().map(Path::new) {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => links.push((path, fs::read_link(path)?)),
            Ok(_) => shown.push(show(path, path, READ_ONLY | libc::MOUNT_ATTR_NODEV)?),
            Err(_) => {}
        }
    }
    for path in DEVICES {
        let from = Path::new(if path == ZERO { ZERO_INSTEAD } else { path });
        if from.exists() {
            shown.push(show(from, Path::new(path), READ_ONLY)?);
        }
    }
    let mut add = |from: &Path, to: &Path, attributes| {
        shown.push(show(from, to, attributes | libc::MOUNT_ATTR_NODEV)?);
        Ok::<(), io::Error>(())
    };
    add(&real.program, &own.program, READ_ONLY)?;
    add(&real.work, &own.work, libc::MOUNT_ATTR_NOSUID)?;
    for (from, to, attributes) in
        [(&real.inputs, &own.inputs, READ_ONLY), (&real.checkpoint, &own.checkpoint, libc::MOUNT_ATTR_NOSUID)]
    {
        if let (Some(from), Some(to)) = (from, to) {
            add(from, to, attributes)?;
        }
    }
    if let Stdin::File(from) = &job.stdin {
        add(from, &own.stdin, READ_ONLY)?;
    }
    // Over a directory of ours: the mounts below it are copied already.
    let base = c_path(&job.directory)?;
    mount_memory(&base)?;
    for shown in &shown {
        shown.place(&job.directory)?;
    }
    for (path, target) in links {
        let place = below(&job.directory, path);
        make_parents(&place)?;
        symlink(target, place)?;
    }
    std::env::set_current_dir(&job.directory)?;
    enter_root_here()?;
    set_attributes(libc::AT_FDCWD, c"/", 0, libc::MOUNT_ATTR_RDONLY, 0)
}

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;

/// A copy of the mounts at a path, not attached anywhere yet.
#[allow(unsafe_code)]
fn show(from: &Path, at: &Path, attributes: u64) -> io::Result<Shown> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", from.display()));
    let is_directory = fs::metadata(from).map_err(named)?.is_dir();
    let path = c_path(from)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE.unsigned_abs();
    // SAFETY: the path ends with a zero byte and outlives the call. The C library of older systems has no function for it.
    let descriptor = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0);
    let Some(descriptor) = descriptor else { return Err(named(io::Error::last_os_error())) };
    // SAFETY: the system has just given it, and nobody else has it.
    let mount = unsafe { OwnedFd::from_raw_fd(descriptor) };
    set_attributes(mount.as_raw_fd(), c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, attributes, 0).map_err(named)?;
    Ok(Shown { mount, at: at.to_owned(), is_directory })
}

impl Shown {
    /// Attaches it to a root that is being made.
    #[allow(unsafe_code)]
    fn place(&self, root: &Path) -> io::Result<()> {
        let place = below(root, &self.at);
        make_parents(&place)?;
        if self.is_directory {
            fs::DirBuilder::new().mode(0o755).create(&place)?;
        } else {
            File::create(&place)?;
        }
        let path = c_path(&place)?;
        // SAFETY: both paths end with a zero byte and outlive the call. The C library of older systems has no function for it.
        let moved = unsafe {
            let (from, empty) = (self.mount.as_raw_fd(), c"".as_ptr());
            let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
            libc::syscall(libc::SYS_move_mount, from, empty, libc::AT_FDCWD, path.as_ptr(), flags)
        };
        if moved == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// An absolute path, under another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn make_parents(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| fs::DirBuilder::new().recursive(true).mode(0o755).create(parent))
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Mounts an empty file system in memory that can hold next to nothing.
#[allow(unsafe_code)]
fn mount_memory(at: &CStr) -> io::Result<()> {
    let kind = c"tmpfs".as_ptr();
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: the strings end with a zero byte and outlive the call.
    match unsafe { libc::mount(kind, at.as_ptr(), kind, flags, c"size=1m,mode=0755".as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the working directory, a mount point, the root, and detaches the old root.
#[allow(unsafe_code)]
fn enter_root_here() -> io::Result<()> {
    let here = c".".as_ptr();
    // SAFETY: the strings end with a zero byte and outlive the calls.
    let entered = unsafe {
        // The old root is mounted over the new one, and then detached.
        libc::syscall(libc::SYS_pivot_root, here, here) == 0 && libc::umount2(here, libc::MNT_DETACH) == 0
    };
    if entered { std::env::set_current_dir("/") } else { Err(io::Error::last_os_error()) }
}

#[allow(unsafe_code)]
fn set_attributes(
    at: libc::c_int,
    path: &CStr,
    flags: libc::c_int,
    set: u64,
    propagation: libc::c_ulong,
) -> io::Result<()> {
    #[allow(clippy::useless_conversion)]
    let propagation = u64::from(propagation);
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation, userns_fd: 0 };
    let (pointer, bytes) = (&raw const attributes, size_of::<libc::mount_attr>());
    // SAFETY: the path ends with a zero byte, and both outlive the call, which only reads them. The C library of older
    // systems has no function for it.
    match unsafe { libc::syscall(libc::SYS_mount_setattr, at, path.as_ptr(), flags, pointer, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all capabilities in its user namespace, or as root; executing a program does not restore them.
pub(super) fn give_up_capabilities() -> Result<(), Errno> {
    let bits = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the system gives namespaces but refuses the map of users, a process stays where it was.
    #[test]
    #[allow(unsafe_code)]
    fn a_process_without_a_map_of_users_enters_no_namespace() {
        let namespace = || std::fs::read_link("/proc/self/ns/user").expect("the system says so");
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/user");
        // SAFETY: between fork and exec it makes system calls, and allocates nothing.
        unsafe {
            command.pre_exec(|| match try_and_enter(b"this is no map", b"nor this") {
                Err(error) if error.raw_os_error().is_some() => Ok(()),
                Err(error) => Err(error),
                Ok(()) => Err(io::ErrorKind::InvalidData.into()),
            });
        }
        let output = command.output().expect("it is refused, with the system's reason");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), namespace().to_string_lossy());
    }
}
