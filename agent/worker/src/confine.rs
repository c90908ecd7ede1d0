//! The second wall around a worker process: its own directories, no network, no other processes.
//!
//! The first wall is WebAssembly: a task gets nothing but what the worker hands it. This wall is for a defect in the
//! runtime: the process that a task has taken over can read some paths and write some others (Landlock), all of its own
//! bag, and system calls that reach the network, other processes or the machine's set-up fail (seccomp). Its open
//! files, three pipes to the agent, stay open.
//!
//! It applies for good to the calling thread and all that it starts. The agent reads a worker's files as a stranger's
//! (`untrusted`). Left out: another user for the worker, which needs a service that runs as root; namespaces, which
//! differ from desktop to desktop: native programs use them where possible (`native`).

mod calls;

use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};

/// The newest rules that we know: signals and abstract sockets stay inside.
const ABI_MOST: ABI = ABI::V6;
/// The oldest under which files elsewhere cannot be changed at all; those before allow truncating them.
const ABI_LEAST: ABI = ABI::V3;

/// Parts of the system that native programs may read and execute: programs, libraries, and how libraries are found.
/// Nothing else of `/etc`, which tells who works here and how.
pub(super) const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/run/current-system",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
];
pub(super) const DEVICES: [&str; 5] = ["/dev/null", ZERO, "/dev/full", "/dev/random", "/dev/urandom"];
/// No memory limit counts its shared mappings. A root of its own has another device in its place.
pub(super) const ZERO: &str = "/dev/zero";

/// A part of the wall that this system lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What remains open, and why.
    pub what: String,
    /// What the owner can do about it.
    pub remedy: &'static str,
}

/// Confines this thread, and all that it starts, to reading `readable` and to full access to `writable`, whose
/// directories are created if missing. Returns the parts of the wall that are missing; none if it is complete.
pub(super) fn confine(readable: &[PathBuf], writable: &[PathBuf]) -> Vec<Gap> {
    // Landlock and seccomp both need it.
    let no_new_privileges = rustix::thread::set_no_new_privs(true).err().map(|error| Gap {
        what: format!("programs that the worker starts may gain rights: {error}"),
        remedy: "run the agent on Linux 3.5 or later",
    });
    no_new_privileges.into_iter().chain(confine_files(readable, writable)).chain(confine_calls(None)).collect()
}

/// Confines a native program, and all that it starts: it can also execute programs of the system, its inputs, and files that it may
/// write. With `namespaces` it can also signal its own processes and change the rights of its files, since it sees no
/// other processes there and the rest is read-only.
pub(super) fn confine_native(program: &Path, readable: &[PathBuf], writable: &[PathBuf], namespaces: bool) -> Vec<Gap> {
    let no_new_privileges = rustix::thread::set_no_new_privs(true).err().map(|error| Gap {
        what: format!("a native program may gain rights: {error}"),
        remedy: "run the agent on Linux 3.5 or later",
    });
    let inputs = readable.iter().cloned();
    let system = SYSTEM.iter().map(PathBuf::from).chain([program.to_owned()]).chain(inputs).collect::<Vec<_>>();
    let devices = DEVICES.iter().filter(|device| namespaces || **device != ZERO).map(PathBuf::from).collect::<Vec<_>>();
    let files = close_files(&Open { readable, writable, executable: &system, devices: &devices });
    no_new_privileges.into_iter().chain(files).chain(confine_calls(Some(namespaces))).collect()
}

/// The missing parts of the wall around writers of these directories, found by trying on a thread that ends.
///
/// # Panics
/// When no thread can be started.
pub fn gaps(directories: &[PathBuf]) -> Vec<Gap> {
    let directories = directories.to_vec();
    std::thread::spawn(move || confine(&[], &directories)).join().expect("confining a thread does not panic")
}

fn confine_files(readable: &[PathBuf], writable: &[PathBuf]) -> Vec<Gap> {
    // One missing directory is no reason to leave all others open.
    let create = |path: &PathBuf| {
        let error = if path.exists() { None } else { fs::create_dir_all(path).err() }?;
        let what = format!("the worker has not all its directories: {} cannot be created: {error}", path.display());
        Some(Gap { what, remedy: "check the permissions of the state directory" })
    };
    let mut gaps: Vec<Gap> = writable.iter().filter_map(create).collect();
    gaps.extend(close_files(&Open { readable, writable, executable: &[], devices: &[] }));
    gaps
}

/// Paths that stay open.
struct Open<'a> {
    readable: &'a [PathBuf],
    writable: &'a [PathBuf],
    /// Read and executed; if there are any, `writable` is executable, too.
    executable: &'a [PathBuf],
    /// Read and written.
    devices: &'a [PathBuf],
}

fn close_files(open: &Open) -> Option<Gap> {
    let remedy = "use a kernel from 6.2 on with Landlock enabled (lsm=landlock,... on its command line)";
    let gap = |why: String| Some(Gap { what: format!("the user's files are not closed to the worker: {why}"), remedy });
    // Neither programs nor devices, pipes and sockets.
    let read: BitFlags<AccessFs> = AccessFs::from_read(ABI_MOST) & !BitFlags::from(AccessFs::Execute);
    let execute = read | AccessFs::Execute;
    let own = if open.executable.is_empty() { read } else { execute }
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::Refer;
    // A path that cannot be opened gets no rule, and so stays closed.
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI_MOST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI_MOST)))
        .and_then(|rules| rules.scope(Scope::from_all(ABI_MOST)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules(open.readable, read)))
        .and_then(|rules| rules.add_rules(path_beneath_rules(open.writable, own)))
        .and_then(|rules| rules.add_rules(path_beneath_rules(open.executable, execute)))
        .and_then(|rules| rules.add_rules(path_beneath_rules(open.devices, read | AccessFs::WriteFile)))
        .and_then(|rules| rules.restrict_self());
    match restricted.map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, .. }) if effective_abi >= ABI_LEAST => None,
        Ok(LandlockStatus::Available { .. }) => gap("this kernel's Landlock lets them be truncated".to_owned()),
        Ok(LandlockStatus::NotEnabled) => gap("Landlock is not enabled".to_owned()),
        Ok(LandlockStatus::NotImplemented) => gap("this kernel has no Landlock".to_owned()),
        Err(error) => gap(format!("Landlock refused: {error}")),
    }
}

/// `native` tells whether a native program has namespaces; none for WebAssembly.
fn confine_calls(native: Option<bool>) -> Option<Gap> {
    let filters = calls::filters(native)
        .and_then(|filters| filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter)));
    filters.err().map(|error| Gap {
        what: format!("the network and other processes are not closed to the worker: seccomp refused: {error}"),
        remedy: "use a kernel with CONFIG_SECCOMP_FILTER on x86-64, ARM64 or RISC-V",
    })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::PermissionDenied;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use rustix::io::Errno;

    use super::*;

    /// Runs `look` on a thread behind the wall, with a directory inside and one outside.
    fn behind<T: Send + 'static>(look: impl FnOnce(PathBuf, PathBuf) -> T + Send + 'static) -> T {
        let root = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir_all(&outside).expect("ours");
        fs::write(outside.join("secret"), "key").expect("ours");
        let run = move || {
            fs::create_dir_all(inside.join("shown")).expect("ours");
            fs::write(inside.join("shown/file"), "input").expect("ours");
            let gaps = confine(&[inside.join("shown")], &[inside.join("a"), inside.join("b")]);
            assert_eq!(gaps, [], "this machine can close everything");
            look(inside, outside)
        };
        std::thread::spawn(run).join().expect("no panic")
    }

    #[test]
    fn its_own_directories_are_open() {
        behind(|inside, _| {
            fs::write(inside.join("a/file"), "text").expect("a file");
            fs::hard_link(inside.join("a/file"), inside.join("b/link")).expect("a link");
            fs::create_dir_all(inside.join("b/deep/er")).expect("directories");
            fs::rename(inside.join("b/link"), inside.join("b/deep/er/moved")).expect("a new name");
            assert_eq!(fs::read_to_string(inside.join("b/deep/er/moved")).expect("its content"), "text");
            fs::remove_dir_all(inside.join("b/deep")).expect("gone");
            assert_eq!(fs::read_dir(inside.join("b")).expect("a listing").count(), 0);
        });
    }

    #[test]
    fn readable_directories_cannot_be_written() {
        behind(|inside, _| {
            let shown = inside.join("shown/file");
            assert_eq!(fs::read_to_string(&shown).expect("shown"), "input");
            let attempts = [
                fs::write(&shown, "mine"),
                fs::remove_file(&shown),
                fs::write(inside.join("shown/new"), "mine"),
                // Another name would allow writing it.
                fs::hard_link(&shown, inside.join("a/link")),
                fs::rename(&shown, inside.join("a/moved")),
            ];
            for (number, result) in attempts.into_iter().enumerate() {
                let kind = result.expect_err("closed").kind();
                assert!(matches!(kind, PermissionDenied | std::io::ErrorKind::CrossesDevices), "{number}: {kind:?}");
            }
        });
    }

    /// A directory that cannot be created must not open all others.
    #[test]
    fn a_directory_that_cannot_be_made_opens_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let (file, own) = (root.path().join("file"), root.path().join("own"));
        fs::write(&file, "text").expect("ours");
        let run = move || {
            let gaps = confine(&[], &[file.join("under"), own.clone()]);
            assert!(gaps.len() == 1 && gaps[0].what.contains("cannot be created"), "{gaps:?}");
            fs::write(own.join("file"), "text").expect("its own");
            assert_eq!(fs::read(&file).expect_err("closed").kind(), PermissionDenied);
        };
        std::thread::spawn(run).join().expect("no panic");
    }

    #[test]
    fn all_other_files_are_closed() {
        behind(|inside, outside| {
            let kinds = [
                fs::read(outside.join("secret")).map(drop),
                fs::write(outside.join("secret"), "mine"),
                fs::write(outside.join("new"), "mine"),
                fs::remove_file(outside.join("secret")),
                fs::create_dir(outside.join("dir")),
                fs::rename(outside.join("secret"), inside.join("a/secret")),
                fs::hard_link(outside.join("secret"), inside.join("a/secret")),
                fs::read_dir(&outside).map(drop),
                fs::read("/proc/self/environ").map(drop),
                fs::read("/etc/passwd").map(drop),
            ];
            for (number, result) in kinds.into_iter().enumerate() {
                let kind = result.expect_err("closed").kind();
                assert!(matches!(kind, PermissionDenied | std::io::ErrorKind::CrossesDevices), "{number}: {kind:?}");
            }
            let (private, secret) = (fs::Permissions::from_mode(0o600), outside.join("secret"));
            assert_eq!(fs::set_permissions(&secret, private.clone()).expect_err("closed").kind(), PermissionDenied);
            // Nor those of an open file: it may be a name of another user's file.
            let shown = fs::File::open(inside.join("shown/file")).expect("shown");
            assert_eq!(shown.set_permissions(private).expect_err("closed").kind(), PermissionDenied);
            // A link that leads out leads nowhere.
            std::os::unix::fs::symlink("/etc/passwd", inside.join("a/link")).expect("a link");
            assert_eq!(fs::read(inside.join("a/link")).expect_err("closed").kind(), PermissionDenied);
        });
    }

    /// Landlock leaves names open. Questions that no task needs are refused for all files.
    #[test]
    #[allow(unsafe_code)]
    fn names_of_files_elsewhere_tell_little() {
        behind(|inside, outside| {
            fs::write(inside.join("a/file"), "text").expect("a file");
            let own = fs::File::options().write(true).open(inside.join("a/file")).expect("its own");
            own.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("those of an open file can be set");
            for path in [outside.join("secret"), inside.join("a/file")] {
                let mut text = [0; 64];
                assert_eq!(rustix::fs::getxattr(&path, "user.note", &mut text[..]), Err(Errno::NOSYS));
                assert_eq!(rustix::fs::lgetxattr(&path, "user.note", &mut text[..]), Err(Errno::NOSYS));
                assert_eq!(rustix::fs::listxattr(&path, &mut text[..]), Err(Errno::NOSYS));
                assert_eq!(rustix::fs::llistxattr(&path, &mut text[..]), Err(Errno::NOSYS));
                assert_eq!(rustix::fs::statfs(&path).err(), Some(Errno::NOSYS));
                let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
                let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
                let set = rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty());
                assert_eq!(set, Err(Errno::PERM), "{}", path.display());
            }
            // Of kernels younger than the library: `getxattrat`, `listxattrat`, `file_getattr`, `statmount`, `listmount` and
            // `open_tree_attr`.
            for call in [464, 465, 468, 457, 458, 467] {
                // SAFETY: without arguments none of them does anything.
                let answer = unsafe { libc::syscall(call, 0, 0, 0, 0, 0, 0) };
                let error = std::io::Error::last_os_error().raw_os_error();
                assert_eq!((answer, error), (-1, Some(libc::ENOSYS)), "{call}");
            }
        });
    }

    #[test]
    fn there_is_no_network() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        behind(move |_, _| {
            let kinds = [
                TcpStream::connect(address).map(drop),
                TcpListener::bind("127.0.0.1:0").map(drop),
                UdpSocket::bind("127.0.0.1:0").map(drop),
                UnixStream::pair().map(drop),
                UnixStream::connect("/run/nobody").map(drop),
            ];
            kinds.into_iter().for_each(|result| assert_eq!(result.expect_err("closed").kind(), PermissionDenied));
        });
    }

    #[test]
    fn there_are_threads_but_no_processes() {
        behind(|inside, _| {
            assert_eq!(std::thread::spawn(|| 7).join().expect("a thread"), 7);
            assert_eq!(Command::new("/bin/true").spawn().expect_err("closed").kind(), PermissionDenied);
            fs::copy("/bin/true", inside.join("a/program")).expect_err("closed");
            let parent = rustix::process::getppid().expect("somebody started the test");
            let error = rustix::process::kill_process(parent, rustix::process::Signal::CONT).expect_err("closed");
            assert_eq!(error, rustix::io::Errno::PERM);
            let limit = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
            let error =
                rustix::process::prlimit(Some(parent), rustix::process::Resource::Cpu, limit).expect_err("closed");
            assert_eq!(error, rustix::io::Errno::PERM);
            rustix::process::getrlimit(rustix::process::Resource::Cpu);
            let error = rustix::process::set_parent_process_death_signal(None).expect_err("closed");
            assert_eq!(error, rustix::io::Errno::PERM);
        });
    }
}
