//! Invariants of a ledger, asserted after events in debug builds only, so in tests and simulations.

use super::Ledger;
use super::copies::RUNS_MAX;
use crate::ranges::IntervalSet;

impl Ledger {
    /// Panics where an invariant is broken. Takes about [`Self::intervals`] steps.
    pub(crate) fn assert_consistent(&self) {
        self.placed.assert_consistent();
        self.avoided.assert_consistent();
        self.assert_one_place();
        self.assert_copies();
        self.assert_ended_is_forgotten();
        self.assert_no_end_is_missed();
    }

    /// How many intervals [`Self::assert_consistent`] looks at.
    pub(crate) fn intervals(&self) -> usize {
        let (done, failed) = self.ended.sets();
        let waiting = self.waiting.pausing().chain([self.waiting.unissued(), self.waiting.later(), &done, &failed]);
        let issued = self.issues.iter().map(|issue| &issue.ranges);
        let placed = self.placed.iter().map(|placement| &placement.ranges);
        waiting.chain(issued).chain(placed).map(IntervalSet::intervals).sum()
    }

    /// Every task is in one place: unissued, of a later round, pausing, issued or placed, done, or failed.
    fn assert_one_place(&self) {
        let bag = self.bag.id;
        let mut all = IntervalSet::new();
        let mut add = |place: &str, ranges: &IntervalSet| {
            let twice = all.intersection(ranges);
            debug_assert!(twice.is_empty(), "{bag:?}: {twice:?} {place}, and elsewhere, too");
            all.extend_with(ranges);
        };
        let (done, failed) = self.ended.sets();
        add("done", &done);
        add("failed", &failed);
        add("drained", &self.ended.drained().0);
        if self.is_closed() {
            // The other tasks are not wanted any more.
            return;
        }
        add("unissued", self.waiting.unissued());
        add("of later rounds", self.waiting.later());
        self.waiting.pausing().for_each(|ranges| add("pausing", ranges));
        let mut copies = self.placed.all_held_by_more_than(0);
        self.issues.iter().for_each(|issue| copies.extend_with(&issue.ranges));
        add("issued or placed", &copies);
        debug_assert_eq!(all, IntervalSet::from(0..self.tasks()), "{bag:?}: all tasks");
    }

    /// No task has more copies than replicas, unless there are votes on it or it stood still somewhere; and no two requests are for the
    /// same task.
    fn assert_copies(&self) {
        let (bag, replicas) = (self.bag.id, self.votes.replicas());
        let mut issued = IntervalSet::new();
        for issue in self.issues.iter() {
            let twice = issued.intersection(&issue.ranges);
            debug_assert!(twice.is_empty(), "{bag:?}: {twice:?} on its way twice");
            debug_assert!(!issue.ranges.is_empty(), "{bag:?}: a request for nothing");
            issued.extend_with(&issue.ranges);
        }
        let mut too_many = self.placed.all_held_by_more_than(replicas);
        too_many.extend_with(&self.placed.held_by_more_than(replicas - 1, &issued));
        for index in self.votes.tasks() {
            too_many.remove_index(index);
        }
        let most = if self.votes.is_quorum() { replicas + RUNS_MAX } else { RUNS_MAX };
        let mut copied = self.placed.all_held_by_more_than(most);
        copied.extend_with(&self.placed.held_by_more_than(most - 1, &issued));
        let copied = copied.intersection(self.copies.given());
        debug_assert!(copied.is_empty(), "{bag:?}: {copied:?} has more than {most} runs");
        too_many.subtract(self.copies.given());
        debug_assert!(too_many.is_empty(), "{bag:?}: more than {replicas} copies of {too_many:?}");
    }

    /// The parts have forgotten ended tasks.
    fn assert_ended_is_forgotten(&self) {
        let (done, failed) = self.ended.sets();
        let ended = done.union(&failed);
        let declined = self.declined.tasks().intersection(&ended);
        debug_assert!(declined.is_empty(), "{:?}: {declined:?} declined and ended", self.bag.id);
        let tried = self.tries.iter().map(|(index, _)| index);
        let checkpoints = self.checkpoints.iter().map(|(index, _)| index);
        for index in tried
            .chain(checkpoints)
            .chain(self.outputs.unfetched())
            .chain(self.votes.tasks())
            .chain(self.copies.tasks())
        {
            debug_assert!(!ended.contains(index), "{:?}: a part remembers {index}, which has ended", self.bag.id);
        }
    }

    /// `next_end` is no later than the first end of a lease, a request or a pause.
    fn assert_no_end_is_missed(&self) {
        if let Some(first) = self.first_end().filter(|_| !self.is_closed()) {
            debug_assert!(self.next_end.is_some_and(|next| next <= first), "{:?}: {first:?} is missed", self.bag.id);
        }
    }
}
