//! Tasks that have ended: done, or failed for good.

use crate::ranges::{IntervalSet, IntervalTree};

/// The ended tasks of a bag.
#[derive(Debug, Default)]
pub(super) struct Ended {
    done: IntervalTree,
    failed: IntervalTree,
}

impl Ended {
    pub(super) fn contains(&self, index: u64) -> bool {
        self.done.contains(index) || self.failed.contains(index)
    }

    pub(super) fn insert(&mut self, index: u64, success: bool) {
        let ended = if success { &mut self.done } else { &mut self.failed };
        ended.insert(index..index + 1);
    }

    /// Restores which tasks have ended; no task is in both sets, or has ended already.
    pub(super) fn restore(&mut self, done: &IntervalSet, failed: &IntervalSet) {
        self.done.extend_with(done);
        self.failed.extend_with(failed);
    }

    /// Number of tasks that succeeded.
    pub(super) fn done(&self) -> u64 {
        self.done.len()
    }

    /// Number of tasks that failed for good.
    pub(super) fn failed(&self) -> u64 {
        self.failed.len()
    }

    pub(super) fn len(&self) -> u64 {
        self.done.len() + self.failed.len()
    }

    /// The tasks that succeeded, and those that failed.
    pub(super) fn sets(&self) -> (IntervalSet, IntervalSet) {
        (self.done.ranges().collect(), self.failed.ranges().collect())
    }

    /// Makes these tasks not ended; returns those that were.
    pub(super) fn reopen(&mut self, tasks: &IntervalSet) -> IntervalSet {
        let again = self.failed.intersection(tasks).union(&self.done.intersection(tasks));
        self.failed.subtract(&again);
        self.done.subtract(&again);
        again
    }

    /// Takes ended tasks out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        ranges.subtract(&self.done.intersection(ranges));
        ranges.subtract(&self.failed.intersection(ranges));
    }
}
