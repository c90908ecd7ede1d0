//! Processor time, as the system tells it of this process and of those that it has started.

use std::time::Duration;

use rustix::process::Pid;

use crate::processes::tree_of;

/// Processor time of this process since its start.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Processor time of reaped children and their descendants.
#[allow(unsafe_code)]
pub(super) fn cpu_time_of_ended() -> Duration {
    // SAFETY: a struct of integers, for which zero is a value; the call writes to it alone.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return Duration::ZERO;
    }
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// User and system time of a process that need not run any more, without its children's.
pub(super) fn cpu_of(pid: Pid) -> Option<Duration> {
    times_of(pid.as_raw_nonzero().get(), 2)
}

/// Processor time of a process and of all that it has started and that still runs or was waited for, as far as it is seen.
pub(super) fn cpu_of_tree(root: Pid) -> Duration {
    let root = u32::try_from(root.as_raw_nonzero().get()).unwrap_or(0);
    let times = tree_of(root).into_iter().filter_map(|pid| times_of(i32::try_from(pid).ok()?, 4));
    times.fold(Duration::ZERO, Duration::saturating_add)
}

/// The first of a process's user time, system time, and the same of children that it has waited for, added up, from `/proc/PID/stat`.
fn times_of(pid: i32, count: usize) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; of what follows, fields 12 to 15 (14 to 17 of all) are the times.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(11).take(count).map(|field| field.parse::<u64>().ok());
    let ticks = ticks.collect::<Option<Vec<u64>>>()?;
    // In USER_HZ, which is 100 on every Linux that Rust runs on.
    Some(Duration::from_millis(ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks)).saturating_mul(10)))
}
