//! Processor time, as the system tells it of this process and of those that it has started.

use std::time::Duration;

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
