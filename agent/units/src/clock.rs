//! The agent's clocks: the peer's, which counts suspended time, and the wall clock for records.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idlewood_overlay::{Time, WallTime};
use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Time since the agent's start by CLOCK_BOOTTIME, which includes a laptop's sleep.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Duration,
}

impl Clock {
    /// A clock that shows zero now.
    pub fn start() -> Self {
        Self { start: boot_time() }
    }

    /// Time since the start.
    pub fn now(&self) -> Time {
        Time::ZERO + boot_time().saturating_sub(self.start)
    }
}

fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_nanos(nanos)
}

/// The wall clock; 1970 when it stands before that.
pub fn wall_now() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    WallTime(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// [`iso`] for seconds of Unix time.
pub fn iso_s(seconds: u64) -> String {
    iso(WallTime(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)))
}

/// ISO-8601 UTC with milliseconds.
pub fn iso(wall: WallTime) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(wall.0 / 1000) * 1_000_000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them() {
        assert_eq!(iso(WallTime(0)), "1970-01-01T00:00:00Z");
        assert_eq!(iso(WallTime(1_700_000_000_123_456)), "2023-11-14T22:13:20.123Z");
    }

    #[test]
    fn the_clock_goes_forward() {
        let clock = Clock::start();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
