//! The wall around a worker process: its own directories, no network, no other processes.
//!
//! A task is WebAssembly, which gives it nothing but what the worker hands it. This is for the day when the runtime has a
//! defect: the process that the task would then own can read some paths and write some others (Landlock), all of them of
//! its own bag, and the system calls that reach the network, other processes or the machine's set-up fail (seccomp). What
//! it has open already, three pipes to its agent, stays open.
//!
//! All of it holds for the calling thread and what it starts, for good. What a worker wrote the agent reads as it does a
//! stranger's (`left`). Left out: another user for the worker, which takes a service that is root; name spaces and cgroups,
//! which differ from desktop to desktop.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

/// The newest rules that we know: signals and abstract sockets stay inside.
const ABI_MOST: ABI = ABI::V6;
/// The oldest with which files elsewhere cannot be changed at all; those before leave them to be truncated.
const ABI_LEAST: ABI = ABI::V3;

/// System calls that fail with EPERM. Our choice: what reaches other machines, other processes, or the system's set-up,
/// and what kernels had most defects in. What remains is files, memory, time and threads.
const FORBIDDEN: &[i64] = &[
    // The network, other than what is open.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Other programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_ioprio_set,
    // A timer could wake a worker that was stopped.
    libc::SYS_timer_create,
    // Memory and queues of other processes.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semctl,
    libc::SYS_semtimedop,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // What Landlock leaves open of files elsewhere, and of those that can only be read: rights, owners, attributes, and who
    // uses them.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    SYS_SETXATTRAT,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_inotify_init,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    // Another view of the system.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_personality,
    // The system itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_fanotify_init,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Of kernels that are younger than the library: the numbers are the same everywhere.
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_FILE_SETATTR: i64 = 469;

/// Those of them that are for who may start programs.
const PROCESSES: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Those that are for who sees no other processes, and no other files that can be changed.
const WITH_NAMESPACES: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
];

/// More that a native program may not: what would take its processes out of the group that is frozen and ended together,
/// and files that are memory and count as neither.
const FORBIDDEN_TO_NATIVE: &[i64] =
    &[libc::SYS_setsid, libc::SYS_setpgid, libc::SYS_memfd_create, libc::SYS_memfd_secret];

/// Flags of a process with namespaces of its own.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// What of the system native programs read and execute: programs, libraries, and how libraries are found. Of `/etc` nothing
/// else, since it says who works here and how.
const SYSTEM: &[&str] = &[
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
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// From the kernel's `fcntl.h`.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;

/// The beginning of a filter: on x86-64 the same system calls have second numbers, those of the x32 interface, which no
/// program of ours uses. ENOSYS for all of them.
#[cfg(target_arch = "x86_64")]
const REFUSE_X32: [sock_filter; 3] = [
    // The number of the call; if it is one of those, go on with the next instruction, else with the one behind.
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 },
    sock_filter { code: (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, jt: 0, jf: 1, k: 0x4000_0000 },
    sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs(),
    },
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSE_X32: [sock_filter; 0] = [];

/// A part of the wall that this system does not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What stays open, and why.
    pub what: String,
    /// What the owner can do about it.
    pub remedy: &'static str,
}

/// Confines this thread, and all that it starts, to reading what is `readable` and to doing as it likes with what is
/// `writable`, directories of which are created where they are missing. What could not be closed is returned: none, all is.
pub(super) fn confine(readable: &[PathBuf], writable: &[PathBuf]) -> Vec<Gap> {
    // Without it neither of the two is allowed to a user.
    let no_new_privileges = rustix::thread::set_no_new_privs(true).err().map(|error| Gap {
        what: format!("programs that the worker starts may gain rights: {error}"),
        remedy: "run the agent on Linux 3.5 or later",
    });
    no_new_privileges.into_iter().chain(confine_files(readable, writable)).chain(confine_calls(None)).collect()
}

/// The same for a native program, and all that it starts: it can start programs, those of the system, and what it may
/// write. Where it has `namespaces` it can also signal its own processes, and change the rights of its files, since there it
/// sees no others and the rest is read-only.
pub(super) fn confine_native(program: &Path, readable: &[PathBuf], writable: &[PathBuf], namespaces: bool) -> Vec<Gap> {
    let no_new_privileges = rustix::thread::set_no_new_privs(true).err().map(|error| Gap {
        what: format!("a native program may gain rights: {error}"),
        remedy: "run the agent on Linux 3.5 or later",
    });
    let system = SYSTEM.iter().map(PathBuf::from).chain([program.to_owned()]).collect::<Vec<_>>();
    let devices = DEVICES.map(PathBuf::from);
    let files = close_files(&Open { readable, writable, executable: &system, devices: &devices });
    no_new_privileges.into_iter().chain(files).chain(confine_calls(Some(namespaces))).collect()
}

/// What can be closed on this machine to who may write in these directories, tried out on a thread that ends.
///
/// # Panics
/// When no thread can be started.
pub fn gaps(directories: &[PathBuf]) -> Vec<Gap> {
    let directories = directories.to_vec();
    std::thread::spawn(move || confine(&[], &directories)).join().expect("confining a thread does not panic")
}

fn confine_files(readable: &[PathBuf], writable: &[PathBuf]) -> Vec<Gap> {
    // A directory that is not there is no reason to leave all others open.
    let create = |path: &PathBuf| {
        let error = if path.exists() { None } else { fs::create_dir_all(path).err() }?;
        let what = format!("the worker has not all its directories: {} cannot be created: {error}", path.display());
        Some(Gap { what, remedy: "check the permissions of the state directory" })
    };
    let mut gaps: Vec<Gap> = writable.iter().filter_map(create).collect();
    gaps.extend(close_files(&Open { readable, writable, executable: &[], devices: &[] }));
    gaps
}

/// What stays open of the files.
struct Open<'a> {
    readable: &'a [PathBuf],
    writable: &'a [PathBuf],
    /// Read and executed; where there is any, what is writable is executable too.
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
    // What cannot be opened is left out of the rules, and so stays closed.
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

/// Of a native program it is said whether it has namespaces of its own.
fn confine_calls(native: Option<bool>) -> Option<Gap> {
    let filters =
        filters(native).and_then(|filters| filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter)));
    filters.err().map(|error| Gap {
        what: format!("the network and other processes are not closed to the worker: seccomp refused: {error}"),
        remedy: "use a kernel with CONFIG_SECCOMP_FILTER on x86-64, ARM64 or RISC-V",
    })
}

fn filters(native: Option<bool>) -> Result<[BpfProgram; 2], seccompiler::Error> {
    let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::from)?;
    let refuse = |errno: i32, rules: BTreeMap<i64, Vec<SeccompRule>>| {
        let action = SeccompAction::Errno(errno.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, architecture)?;
        Ok::<BpfProgram, seccompiler::Error>(filter.try_into()?)
    };
    let mut forbidden: BTreeMap<i64, Vec<SeccompRule>> = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    match native {
        None => {}
        Some(namespaces) => {
            forbidden.extend(FORBIDDEN_TO_NATIVE.iter().map(|call| (*call, Vec::new())));
            PROCESSES.iter().for_each(|call| drop(forbidden.remove(call)));
            if namespaces {
                WITH_NAMESPACES.iter().for_each(|call| drop(forbidden.remove(call)));
            } else {
                // It could signal all of the user's processes.
                forbidden.insert(libc::SYS_tgkill, Vec::new());
            }
        }
    }
    let number = SeccompCmpArgLen::Dword;
    let mut forbid = |call: i64, argument: u8, length, is: SeccompCmpOp, value: u64| {
        let rule = SeccompRule::new(vec![SeccompCondition::new(argument, length, is, value)?])?;
        forbidden.entry(call).or_default().push(rule);
        Ok::<(), seccompiler::Error>(())
    };
    if native.is_some() {
        for namespace in NAMESPACES {
            let flag = u64::from(namespace.unsigned_abs());
            forbid(libc::SYS_clone, 0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        }
    } else {
        // A thread is welcome, a process is not.
        let thread = SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64);
        forbid(libc::SYS_clone, 0, SeccompCmpArgLen::Qword, thread, 0)?;
        // Signals are for this process alone.
        forbid(libc::SYS_tgkill, 0, number.clone(), SeccompCmpOp::Ne, u64::from(std::process::id()))?;
    }
    if native == Some(true) {
        // Whoever is frozen stays so.
        for (call, argument) in [(libc::SYS_kill, 1), (libc::SYS_tkill, 1), (libc::SYS_tgkill, 2)] {
            forbid(call, argument, number.clone(), SeccompCmpOp::Eq, u64::from(libc::SIGCONT.unsigned_abs()))?;
        }
    }
    if native.is_some() {
        // Nor does the end of a child wake its parent.
        let signal = SeccompCmpOp::MaskedEq(0xff);
        forbid(libc::SYS_clone, 0, SeccompCmpArgLen::Qword, signal, u64::from(libc::SIGCONT.unsigned_abs()))?;
    }
    // Limits are for this process alone, and no other is told of by signals.
    forbid(libc::SYS_prlimit64, 0, number.clone(), SeccompCmpOp::Ne, 0)?;
    for command in [libc::F_SETOWN, F_SETOWN_EX, F_SETSIG] {
        forbid(libc::SYS_fcntl, 1, number.clone(), SeccompCmpOp::Eq, u64::from(command.unsigned_abs()))?;
    }
    // It ends with its agent.
    forbid(libc::SYS_prctl, 0, number, SeccompCmpOp::Eq, u64::from(libc::PR_SET_PDEATHSIG.unsigned_abs()))?;
    // Its flags are in memory, where no filter sees them: who is told that it does not exist uses the older one.
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let mut forbidden = refuse(libc::EPERM, forbidden)?;
    forbidden.splice(0..0, REFUSE_X32);
    Ok([forbidden, refuse(libc::ENOSYS, unknown)?])
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::PermissionDenied;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    /// Runs something on a thread behind the wall, with a directory inside and one outside.
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
    fn what_is_shown_can_only_be_read() {
        behind(|inside, _| {
            let shown = inside.join("shown/file");
            assert_eq!(fs::read_to_string(&shown).expect("shown"), "input");
            let attempts = [
                fs::write(&shown, "mine"),
                fs::remove_file(&shown),
                fs::write(inside.join("shown/new"), "mine"),
                // Through another name it could be written.
                fs::hard_link(&shown, inside.join("a/link")),
                fs::rename(&shown, inside.join("a/moved")),
            ];
            for (number, result) in attempts.into_iter().enumerate() {
                let kind = result.expect_err("closed").kind();
                assert!(matches!(kind, PermissionDenied | std::io::ErrorKind::CrossesDevices), "{number}: {kind:?}");
            }
        });
    }

    /// A directory that somebody made impossible must not open all others.
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
    fn everybody_elses_files_are_closed() {
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
            // Nor those of a file that it has open: it may be a name of somebody else's.
            let shown = fs::File::open(inside.join("shown/file")).expect("shown");
            assert_eq!(shown.set_permissions(private).expect_err("closed").kind(), PermissionDenied);
            // A link that leads out leads nowhere.
            std::os::unix::fs::symlink("/etc/passwd", inside.join("a/link")).expect("a link");
            assert_eq!(fs::read(inside.join("a/link")).expect_err("closed").kind(), PermissionDenied);
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
