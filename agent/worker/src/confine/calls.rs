//! The system calls that a worker, or a native program, may not make (seccomp).
//!
//! A filter sees numbers: neither the text of a path nor the content of a structure. So calls that reach files by name
//! are allowed or refused for all files.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

/// System calls that fail with EPERM. Our choice: those that reach other machines, other processes or the system's
/// set-up, and those with the most kernel defects. What remains is files, memory, time and threads.
const FORBIDDEN: &[i64] = &[
    // The network, beyond open sockets.
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
    // A timer could wake a stopped worker.
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
    // What Landlock leaves open of read-only files and files elsewhere: rights, owners, attributes, and who uses them.
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
    libc::SYS_quotactl_fd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
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

/// System calls that fail with ENOSYS, as on systems that lack them: programs do without. Our choice: those that reach
/// files by name, which Landlock leaves open, or the mounts of the system, and that no task needs; and those that hold
/// kernel memory that no limit counts.
const UNKNOWN: &[i64] = &[
    // Its flags are in memory, where no filter sees them: a program that gets ENOSYS uses the older call.
    libc::SYS_clone3,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    SYS_GETXATTRAT,
    SYS_LISTXATTRAT,
    SYS_FILE_GETATTR,
    SYS_STATMOUNT,
    SYS_LISTMOUNT,
    SYS_OPEN_TREE_ATTR,
    // Pages in a pipe belong to no process.
    libc::SYS_vmsplice,
    // The rings of all users share a limit.
    libc::SYS_io_setup,
];

/// Further ones for programs that see the root of the system.
const UNKNOWN_AT_THE_HOST_S_ROOT: &[i64] = &[libc::SYS_statfs];

/// Further calls that fail with EPERM there: setting times of files by name. `utimensat` sets those of open files.
const FORBIDDEN_AT_THE_HOST_S_ROOT: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// Calls of a native program at the root of the system that fail with EINVAL, as for a file that is no link: programs
/// that follow links then continue.
const NO_LINKS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_readlinkat,
];

/// Calls of kernels younger than the library: the numbers are the same everywhere.
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;
const SYS_SETXATTRAT: i64 = 463;
const SYS_GETXATTRAT: i64 = 464;
const SYS_LISTXATTRAT: i64 = 465;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_GETATTR: i64 = 468;
const SYS_FILE_SETATTR: i64 = 469;

/// Calls allowed to programs that may start processes.
const PROCESSES: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Calls allowed to programs that see no other processes, and no other files that can be changed.
const WITH_NAMESPACES: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
];

/// Further ones forbidden to native programs: leaving the process group that is frozen and ended together, and files in
/// memory that no limit counts.
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

/// From the kernel's `falloc.h`: `FS_IOC_RESVSP`, `FS_IOC_RESVSP64`, `FS_IOC_ZERO_RANGE`.
const FS_IOC_KEEP_SIZE: [libc::c_int; 3] = [0x4030_5828, 0x4030_582a, 0x4030_5839];

/// From the kernel's `fcntl.h`.
const F_SETPIPE_SZ: libc::c_int = 1031;
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;

/// Start of a filter: on x86-64 the same system calls have second numbers, of the x32 interface, which no program of
/// ours uses. ENOSYS for all of them.
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

/// Refused system calls, with their conditions; without a condition a call is always refused.
#[derive(Default)]
struct Refused(BTreeMap<i64, Vec<SeccompRule>>);

impl Refused {
    fn always(&mut self, calls: &[i64]) {
        self.0.extend(calls.iter().map(|call| (*call, Vec::new())));
    }

    fn never(&mut self, calls: &[i64]) {
        calls.iter().for_each(|call| drop(self.0.remove(call)));
    }

    /// Refuses a call if an argument compares so with a number.
    fn number(&mut self, call: i64, argument: u8, is: SeccompCmpOp, value: libc::c_int) -> Result<(), Unfiltered> {
        self.condition(call, argument, SeccompCmpArgLen::Dword, is, u64::from(value.unsigned_abs()))
    }

    /// Refuses a call if, of the flags `among`, exactly `are` are set.
    fn flags(&mut self, call: i64, argument: u8, among: libc::c_int, are: libc::c_int) -> Result<(), Unfiltered> {
        let among = SeccompCmpOp::MaskedEq(u64::from(among.unsigned_abs()));
        self.condition(call, argument, SeccompCmpArgLen::Qword, among, u64::from(are.unsigned_abs()))
    }

    /// The same for a 32-bit argument.
    fn number_flags(
        &mut self,
        call: i64,
        argument: u8,
        among: libc::c_int,
        are: libc::c_int,
    ) -> Result<(), Unfiltered> {
        let among = SeccompCmpOp::MaskedEq(u64::from(among.unsigned_abs()));
        self.number(call, argument, among, are)
    }

    fn condition(
        &mut self,
        call: i64,
        argument: u8,
        length: SeccompCmpArgLen,
        is: SeccompCmpOp,
        value: u64,
    ) -> Result<(), Unfiltered> {
        let rule = SeccompRule::new(vec![SeccompCondition::new(argument, length, is, value)?])?;
        self.0.entry(call).or_default().push(rule);
        Ok(())
    }

    fn with(self, errno: i32) -> Result<BpfProgram, Unfiltered> {
        let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::from)?;
        let action = SeccompAction::Errno(errno.unsigned_abs());
        Ok(SeccompFilter::new(self.0, SeccompAction::Allow, action, architecture)?.try_into()?)
    }
}

type Unfiltered = seccompiler::Error;

/// `native` tells whether a native program has namespaces; none for WebAssembly.
pub(super) fn filters(native: Option<bool>) -> Result<Vec<BpfProgram>, Unfiltered> {
    let (mut forbidden, mut unknown) = (Refused::default(), Refused::default());
    forbidden.always(FORBIDDEN);
    unknown.always(UNKNOWN);
    let sees_the_host_s_root = native != Some(true);
    if sees_the_host_s_root {
        unknown.always(UNKNOWN_AT_THE_HOST_S_ROOT);
        forbidden.always(FORBIDDEN_AT_THE_HOST_S_ROOT);
        // Setting times by name, instead of by open file.
        forbidden.condition(libc::SYS_utimensat, 1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    }
    // Space beyond the end of a file, which its size does not show.
    let keeps_size = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    forbidden.number_flags(libc::SYS_fallocate, 1, keeps_size, libc::FALLOC_FL_KEEP_SIZE)?;
    for request in FS_IOC_KEEP_SIZE {
        forbidden.number(libc::SYS_ioctl, 1, SeccompCmpOp::Eq, request)?;
    }
    match native {
        None => forbid_processes(&mut forbidden)?,
        Some(namespaces) => forbid_to_native(&mut forbidden, namespaces)?,
    }
    // Limits apply to this process alone, and events of files signal no other. Pipes stay as small as they are.
    forbidden.number(libc::SYS_prlimit64, 0, SeccompCmpOp::Ne, 0)?;
    for command in [libc::F_SETOWN, F_SETOWN_EX, F_SETSIG, F_SETPIPE_SZ] {
        forbidden.number(libc::SYS_fcntl, 1, SeccompCmpOp::Eq, command)?;
    }
    // The process ends with its agent.
    forbidden.number(libc::SYS_prctl, 0, SeccompCmpOp::Eq, libc::PR_SET_PDEATHSIG)?;
    let mut forbidden = forbidden.with(libc::EPERM)?;
    forbidden.splice(0..0, REFUSE_X32);
    let mut filters = vec![forbidden, unknown.with(libc::ENOSYS)?];
    if native == Some(false) {
        let mut links = Refused::default();
        links.always(NO_LINKS);
        filters.push(links.with(libc::EINVAL)?);
    }
    Ok(filters)
}

/// Allows threads, forbids processes; signals reach this process alone.
fn forbid_processes(forbidden: &mut Refused) -> Result<(), Unfiltered> {
    forbidden.flags(libc::SYS_clone, 0, libc::CLONE_THREAD, 0)?;
    let me = SeccompCmpOp::Ne;
    forbidden.condition(libc::SYS_tgkill, 0, SeccompCmpArgLen::Dword, me, u64::from(std::process::id()))
}

fn forbid_to_native(forbidden: &mut Refused, namespaces: bool) -> Result<(), Unfiltered> {
    forbidden.always(FORBIDDEN_TO_NATIVE);
    forbidden.never(PROCESSES);
    if namespaces {
        forbidden.never(WITH_NAMESPACES);
        // A frozen process must stay frozen.
        for (call, argument) in [(libc::SYS_kill, 1), (libc::SYS_tkill, 1), (libc::SYS_tgkill, 2)] {
            forbidden.number(call, argument, SeccompCmpOp::Eq, libc::SIGCONT)?;
        }
    } else {
        // It could signal all of the user's processes.
        forbidden.always(&[libc::SYS_tgkill]);
    }
    for namespace in NAMESPACES {
        forbidden.flags(libc::SYS_clone, 0, namespace, namespace)?;
    }
    // Nor may the end of a child wake its parent.
    forbidden.flags(libc::SYS_clone, 0, 0xff, libc::SIGCONT)?;
    // A thread shares its process's open files, where they are counted.
    forbidden.flags(libc::SYS_clone, 0, libc::CLONE_THREAD | libc::CLONE_FILES, libc::CLONE_THREAD)?;
    // Memory that belongs to no process, or is not counted: shared anonymous memory, and huge pages.
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    forbidden.flags(libc::SYS_mmap, 3, shared, shared)?;
    forbidden.flags(libc::SYS_mmap, 3, libc::MAP_HUGETLB, libc::MAP_HUGETLB)?;
    // Else its memory use could not be read.
    forbidden.number(libc::SYS_prctl, 0, SeccompCmpOp::Eq, libc::PR_SET_DUMPABLE)
}
