//! Tasks that have ended: done, or failed for good.

use crate::ranges::{IntervalSet, IntervalTree};

/// The ended tasks of a bag.
#[derive(Debug, Default)]
pub(super) struct Ended {
    done: IntervalTree,
    failed: IntervalTree,
    /// Of an endless bag: ended tasks whose results are not kept any more, and how many of these failed.
    drained: IntervalTree,
    drained_failed: u64,
}

impl Ended {
    pub(super) fn contains(&self, index: u64) -> bool {
        self.done.contains(index) || self.failed.contains(index) || self.drained.contains(index)
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
        self.done.len() + self.drained.len() - self.drained_failed
    }

    /// Number of tasks that failed for good.
    pub(super) fn failed(&self) -> u64 {
        self.failed.len() + self.drained_failed
    }

    pub(super) fn len(&self) -> u64 {
        self.done.len() + self.failed.len() + self.drained.len()
    }

    /// The results of these ended tasks are not kept any more.
    pub(super) fn drain(&mut self, tasks: &IntervalSet) {
        let (done, failed) = (self.done.intersection(tasks), self.failed.intersection(tasks));
        self.drained_failed += failed.len();
        self.done.subtract(&done);
        self.failed.subtract(&failed);
        self.drained.extend_with(&done);
        self.drained.extend_with(&failed);
    }

    /// Restores which tasks are drained, and how many of these failed.
    pub(super) fn restore_drained(&mut self, drained: &IntervalSet, failed: u64) {
        self.drained.extend_with(drained);
        self.drained_failed = failed.min(self.drained.len());
    }

    /// All ended tasks.
    pub(super) fn all(&self) -> IntervalSet {
        let (done, failed) = self.sets();
        done.union(&failed).union(&self.drained().0)
    }

    /// The drained tasks, and how many of these failed.
    pub(super) fn drained(&self) -> (IntervalSet, u64) {
        (self.drained.ranges().collect(), self.drained_failed)
    }

    /// All tasks below this one are drained.
    pub(super) fn drained_below(&self) -> u64 {
        self.drained.ranges().next().filter(|range| range.start == 0).map_or(0, |range| range.end)
    }

    pub(super) fn drained_len(&self) -> u64 {
        self.drained.len()
    }

    /// The tasks that succeeded, and those that failed, whose results are kept.
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
        ranges.subtract(&self.drained.intersection(ranges));
    }
}
