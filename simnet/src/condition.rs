//! Conditions of a machine that is up: its lid is shut, it is slow, its clocks jumped.

use std::time::Duration;

use idlewood_overlay::{Time, WallTime};

/// The fate of messages to a machine whose lid is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// They are lost.
    Lose,
    /// They wait until it is resumed, and are then handled in order.
    Queue,
}

/// The condition of a machine; the default is a good one. All but the pause survives crashes: it belongs to the
/// machine, not to its peer.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// The machine handles nothing, though its clocks run; `None`: it runs.
    pub pause: Option<Pause>,
    /// Everything is handled with this delay.
    pub slow: Duration,
    /// Leaps of the monotonic clock since the machine's start, summed.
    leap_us: i64,
    /// How far the wall clock is ahead.
    wall_us: i64,
}

impl Condition {
    /// The wall clock jumps, either way. A jump forward is also a leap of the monotonic clock, as after an unnoticed
    /// suspend; a monotonic clock never goes back.
    pub(crate) fn jump(&mut self, by_us: i64) {
        self.wall_us = self.wall_us.saturating_add(by_us);
        self.leap_us = self.leap_us.saturating_add(by_us.max(0));
    }

    /// The machine restarts, and with it its monotonic clock.
    pub(crate) fn restart(&mut self) {
        self.leap_us = 0;
    }

    /// The monotonic clock of a machine that was started at `started`.
    pub(crate) fn clock(&self, started: Time, now: Time) -> Time {
        Time::from_micros(now.as_micros() - started.as_micros() + self.leap_us)
    }

    /// When that clock shows `deadline`, plus a slow machine's delay.
    pub(crate) fn moment(&self, started: Time, deadline: Time) -> Time {
        let offset = started.as_micros() - self.leap_us;
        Time::from_micros(deadline.as_micros().saturating_add(offset)) + self.slow
    }

    /// The wall clock when a right one shows `wall`.
    pub(crate) fn wall(&self, wall: WallTime) -> WallTime {
        WallTime(wall.0.saturating_add(self.wall_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_leap_forward_and_only_the_wall_clock_goes_back() {
        let mut condition = Condition::default();
        let (started, now) = (Time::from_micros(100), Time::from_micros(250));
        assert_eq!(condition.clock(started, now), Time::from_micros(150));
        condition.jump(1_000);
        condition.jump(-3_000);
        assert_eq!(condition.clock(started, now), Time::from_micros(1_150));
        assert_eq!(condition.moment(started, Time::from_micros(1_150)), now);
        assert_eq!(condition.wall(WallTime(10_000)), WallTime(8_000));
        condition.restart();
        assert_eq!(condition.clock(now, now), Time::ZERO);
        condition.slow = Duration::from_micros(7);
        assert_eq!(condition.moment(started, Time::from_micros(150)), now + condition.slow);
    }
}
