//! The end of a machine that was told to finish: when no task runs and submitters have taken the results.

use std::time::Duration;

use idlewood_overlay::Time;

/// How long a machine that finishes waits for submitters to take its last results. Our choice.
pub(crate) const FINISH_WAIT: Duration = Duration::from_secs(30);

/// How far a machine is that was told to finish.
#[derive(Debug, Default)]
pub(crate) struct Finishing {
    /// The driver has work that must end first.
    driver_is_busy: bool,
    /// Since when nothing runs here, while the machine finishes.
    since: Option<Time>,
    /// The driver was told, once, that the machine may end.
    is_said: bool,
}

impl Finishing {
    pub(crate) fn note_busy(&mut self, is_busy: bool) {
        self.driver_is_busy = is_busy;
    }

    /// Whether the machine may end, from now on. `is_ordered`: it was told to finish; `runs`: tasks run here; `all_taken`: submitters have every
    /// result, and the disk knows it. Results that are not known to be taken would be sent again after the next start.
    pub(crate) fn is_over(&mut self, is_ordered: bool, runs: bool, all_taken: bool, now: Time) -> bool {
        if !is_ordered || runs || self.driver_is_busy {
            (self.since, self.is_said) = (None, false);
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_over = all_taken || now.since(since) >= FINISH_WAIT;
        is_over && !std::mem::replace(&mut self.is_said, true)
    }

    /// When the machine ends even if submitters have not taken its results.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.since.filter(|_| !self.is_said).map(|since| since + FINISH_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_machine_ends_when_nothing_runs_and_results_are_taken_or_waited_for_long_enough() {
        let mut finishing = Finishing::default();
        assert!(!finishing.is_over(false, false, true, at(0)), "nobody told it to");
        assert!(!finishing.is_over(true, true, true, at(1)), "a task runs");
        finishing.note_busy(true);
        assert!(!finishing.is_over(true, false, true, at(2)), "the driver is busy");
        assert_eq!(finishing.deadline(), None);
        finishing.note_busy(false);
        assert!(!finishing.is_over(true, false, false, at(3)), "a result is not taken");
        assert_eq!(finishing.deadline(), Some(at(33)));
        assert!(!finishing.is_over(true, false, false, at(32)));
        assert!(finishing.is_over(true, false, false, at(33)));
        assert!(!finishing.is_over(true, false, false, at(34)), "that is said once");
        assert_eq!(finishing.deadline(), None);
        // Work that comes meanwhile has the whole wait again.
        finishing.note_busy(true);
        assert!(!finishing.is_over(true, false, false, at(40)));
        finishing.note_busy(false);
        assert!(!finishing.is_over(true, false, false, at(41)));
        assert_eq!(finishing.deadline(), Some(at(71)));
        assert!(finishing.is_over(true, false, true, at(42)), "all are taken");
    }
}
