//! Notices that this agent did not run for a while: the machine slept, or the process was stopped.
//!
//! The others have taken it for dead by then, and what it knows of them is old. What follows is the overlay's matter;
//! the agent says whom it knows, as after a start.
//!
//! Left out: telling the others before the machine sleeps, which `suspend` does where somebody says when that is.

use std::time::Duration;

use idlewood_overlay::Time;

/// Watches the time between two looks at the clock, which counts the time that the machine sleeps.
#[derive(Debug)]
pub(super) struct Absence {
    last: Time,
    /// What is longer is an absence.
    limit: Duration,
}

impl Absence {
    pub(super) fn new(now: Time, limit: Duration) -> Self {
        Self { last: now, limit }
    }

    /// To be called much more often than the limit. How long the agent was away, if it was.
    pub(super) fn look(&mut self, now: Time) -> Option<Duration> {
        let gap = now.since(std::mem::replace(&mut self.last, now));
        (gap > self.limit).then_some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_is_noticed_once_and_a_busy_machine_is_none() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut absence = Absence::new(at(0), Duration::from_secs(5));
        assert_eq!(absence.look(at(1)), None);
        assert_eq!(absence.look(at(6)), None, "late, but not longer than the limit");
        assert_eq!(absence.look(at(12)), Some(Duration::from_secs(6)));
        assert_eq!(absence.look(at(13)), None);
        assert_eq!(absence.look(at(3_613)), Some(Duration::from_secs(3_600)));
        assert_eq!(absence.look(at(3_613)), None);
    }
}
