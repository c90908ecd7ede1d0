//! Lowest priority on the machine: processor, disk, memory.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};

/// `IOPRIO_CLASS_IDLE` in the place of the class, from the kernel's `ioprio.h`.
const IO_CLASS_IDLE: libc::c_int = 3 << 13;
/// `IOPRIO_WHO_PROCESS`.
const IO_WHO_PROCESS: libc::c_int = 1;

/// Lowers this process, its session and all that it starts from now on. Ignores refusals of the system: correctness
/// does not depend on it.
pub(super) fn keep_low() {
    lower_thread();
    lower_process();
}

/// The part that spares the thread, for a process that watches others, which lower themselves ([`lower_thread`]): it
/// must get its turn however many they are, and however busy the machine is.
pub(super) fn lower_process() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    report([
        ("core dump size", no_core_dumps()),
        ("oom_score_adj", fs::write("/proc/self/oom_score_adj", "1000")),
        ("autogroup", lower_session()),
    ]);
}

/// The part for this thread, inherited by its children.
pub(super) fn lower_thread() {
    report([
        ("nice", rustix::process::setpriority_process(None, 19).map_err(io::Error::from)),
        ("SCHED_IDLE", use_idle_processor_time()),
        ("idle I/O class", use_idle_disk_time()),
    ]);
}

fn report<const N: usize>(attempts: [(&str, io::Result<()>); N]) {
    for (what, result) in attempts {
        if let Err(error) = result {
            tracing::debug!(what, %error, "the worker could not lower itself");
        }
    }
}

/// Runs only when nothing else wants to. Nice alone leaves a task one percent of a busy processor, and wakes it at
/// once.
#[allow(unsafe_code)]
fn use_idle_processor_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this thread, and the parameters outlive the call, which only reads them.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads and writes only when no other disk traffic waits, if the disk's scheduler supports such classes.
#[allow(unsafe_code)]
fn use_idle_disk_time() -> io::Result<()> {
    // SAFETY: three integers, of which 0 is this thread; no memory is touched. The C library has no function for it.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IO_WHO_PROCESS, 0, IO_CLASS_IDLE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn no_core_dumps() -> io::Result<()> {
    Ok(rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

/// With the kernel's autogroups (on most desktops), nice counts only within a session: a worker in a session of its
/// own competes with the owner's whole desktop as an equal unless the session is lowered too.
fn lower_session() -> io::Result<()> {
    let mut tries_left = 5;
    loop {
        match fs::write("/proc/self/autogroup", "19") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // The kernel allows one change in 100 ms, machine-wide.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries_left > 0 => {
                tries_left -= 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_lowered_thread_is_behind_everything_else() {
        // Lowering cannot be undone without privileges, so it happens on a thread that ends.
        let lowered = std::thread::spawn(|| {
            // Not the process and its session, in which the tests run.
            lower_thread();
            let stat = fs::read_to_string("/proc/thread-self/stat").expect("this system has it");
            let (_, fields) = stat.rsplit_once(") ").expect("a name");
            let fields: Vec<&str> = fields.split(' ').collect();
            // SAFETY: two integers, of which 0 is this thread; no memory is touched.
            let io_class = unsafe { libc::syscall(libc::SYS_ioprio_get, IO_WHO_PROCESS, 0) } >> 13;
            // Fields 19 and 41 of the whole line: nice, and the policy, of which 5 is SCHED_IDLE.
            (fields[16].to_owned(), fields[38].to_owned(), io_class)
        });
        assert_eq!(lowered.join().expect("no panic"), ("19".to_owned(), "5".to_owned(), 3));
    }
}
