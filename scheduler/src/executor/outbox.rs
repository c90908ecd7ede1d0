//! The finished tasks of one bag whose results its submitter has not acknowledged: which are being written, which are to be told,
//! which were told and when, and which are told again.
//!
//! Nobody is told of a result before it is durable, each on its own: on a machine on which small tasks end all the time some
//! other result is always being written.
//!
//! At most [`TOLD_MAX`] results are told and not acknowledged. The others wait for acknowledgements, so that a submitter
//! that is slow gets no more than it can take, however many tasks end here. A result is told again a while after it was told last
//! where what was told later is acknowledged, so that it was lost, or where nothing is acknowledged any more: what is missing never waits
//! behind what is on its way, and a submitter that is slow does not hear everything twice.

use std::collections::btree_map::Values;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::Time;

use crate::bag::{SMALL_OUTPUTS_BYTES_MAX, TaskResult};
use crate::message::{RESULTS_MAX, results_within};
use crate::ranges::IntervalSet;

/// Most results that are told and not acknowledged. Our choice: while a submitter writes one message down, three more are on
/// their way.
pub(super) const TOLD_MAX: usize = 4 * RESULTS_MAX;

/// Results by task.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    results: BTreeMap<u64, TaskResult>,
    /// Of these, those that are not durable yet.
    unwritten: IntervalSet,
    /// Those that are, and whose submitter was not told yet.
    untold: IntervalSet,
    /// Those that are not in the store: this machine submitted the bag itself, and its ledger has taken them, or is asked at
    /// once. Nobody else is told of them.
    unstored: IntervalSet,
    /// The others, as they were told last. An entry is stale where its result is gone or was replaced since; the first is
    /// not.
    told: VecDeque<(Time, u64)>,
    /// When results were acknowledged last, and when the last of them was told.
    heard: Option<Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Time,
    told: Time,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.results.len()
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = u64> + '_ {
        self.results.keys().copied()
    }

    pub(super) fn values(&self) -> Values<'_, u64, TaskResult> {
        self.results.values()
    }

    /// Whether there are results that nobody was told of.
    pub(super) fn has_untold(&self) -> bool {
        !self.untold.is_empty() || !self.unwritten.is_empty()
    }

    /// Whether some of them are durable.
    pub(super) fn has_written(&self) -> bool {
        !self.untold.is_empty()
    }

    /// How many more may be told before some are acknowledged.
    fn room(&self) -> usize {
        let told = self.results.len() - (self.unwritten.len() + self.untold.len() + self.unstored.len()) as usize;
        TOLD_MAX.saturating_sub(told)
    }

    /// Whether some that nobody was told of may be told.
    pub(super) fn may_tell(&self) -> bool {
        self.has_written() && self.room() > 0
    }

    /// When results are told again, unless they are acknowledged before, where a submitter has so long for that.
    pub(super) fn again_at(&self, wait: Duration) -> Option<Time> {
        let (first, _) = *self.told.front()?;
        let lost = self.heard.is_some_and(|heard| first < heard.told);
        let since = if lost { first } else { self.heard.map_or(first, |heard| first.max(heard.at)) };
        Some(since + wait)
    }

    /// A task has ended, and its submitter is to be told once that is durable.
    pub(super) fn insert(&mut self, result: TaskResult) {
        self.unwritten.insert_index(result.index);
        self.untold.remove_index(result.index);
        self.unstored.remove_index(result.index);
        self.results.insert(result.index, result);
        self.drop_stale();
    }

    /// A task of this machine's own bag has ended, and its ledger hears of it at once: nothing is stored here.
    pub(super) fn insert_unstored(&mut self, result: TaskResult) {
        self.unwritten.remove_index(result.index);
        self.untold.remove_index(result.index);
        self.unstored.insert_index(result.index);
        self.results.insert(result.index, result);
        self.drop_stale();
    }

    /// Whether a result is here and not in the store.
    pub(super) fn is_unstored(&self, index: u64) -> bool {
        self.unstored.contains(index)
    }

    /// The ledger has not taken it: it is to be stored after all, and told once that is durable.
    pub(super) fn store(&mut self, index: u64) -> Option<TaskResult> {
        if !self.unstored.remove_index(index) {
            return None;
        }
        self.unwritten.insert_index(index);
        self.results.get(&index).cloned()
    }

    /// That it ended with this attempt is durable.
    pub(super) fn written(&mut self, index: u64, attempt: u32) {
        let is_this = self.results.get(&index).is_some_and(|result| result.attempt == attempt);
        if is_this && self.unwritten.remove_index(index) {
            self.untold.insert_index(index);
        }
    }

    /// What is told now of what was not: at most so many, and as many as may be told.
    pub(super) fn tell(&mut self, most: usize, now: Time) -> Vec<TaskResult> {
        let mut results = Vec::new();
        self.tell_with(&mut results, most, now);
        results
    }

    /// The same in one message with these results: as many as it takes then.
    pub(super) fn tell_with(&mut self, results: &mut Vec<TaskResult>, most: usize, now: Time) {
        let untold = self.untold.indices().take(most.min(self.room())).filter_map(|index| self.results.get(&index));
        let count = results_within(results.iter().chain(untold)).saturating_sub(results.len());
        let indices = self.untold.take_first(count as u64);
        self.told.extend(indices.indices().map(|index| (now, index)));
        results.extend(indices.indices().filter_map(|index| self.results.get(&index).cloned()));
        self.drop_stale();
    }

    /// Tells this one, if more may be told, in a message that leaves once it is durable.
    pub(super) fn tell_one(&mut self, index: u64, now: Time) -> Vec<TaskResult> {
        if self.room() == 0 || !self.unwritten.remove_index(index) {
            return Vec::new();
        }
        self.told.push_back((now, index));
        self.results.get(&index).cloned().into_iter().collect()
    }

    /// What is told again now of what was told last at that time or before, the oldest first, as much as one message takes. While
    /// others are acknowledged only what was told before them.
    pub(super) fn tell_again(&mut self, told_by: Time, now: Time) -> Vec<TaskResult> {
        let before_heard =
            self.heard.filter(|heard| heard.at > told_by).map(|heard| heard.told - Duration::from_micros(1));
        let told_by = before_heard.map_or(told_by, |before| before.min(told_by));
        let (mut again, mut bytes) = (IntervalSet::new(), 0);
        while again.len() < RESULTS_MAX as u64
            && let Some(&(told, index)) = self.told.front()
            && told <= told_by
        {
            bytes += self.results.get(&index).map_or(0, TaskResult::content_bytes);
            if bytes > SMALL_OUTPUTS_BYTES_MAX {
                break;
            }
            self.told.pop_front();
            again.insert_index(index);
            self.drop_stale();
        }
        self.told.extend(again.indices().map(|index| (now, index)));
        again.indices().filter_map(|index| self.results.get(&index).cloned()).collect()
    }

    /// These did not leave: they are told again as if they had not been.
    pub(super) fn not_told(&mut self, results: &[TaskResult]) {
        for result in results {
            let is_this = |known: &TaskResult| known.attempt == result.attempt;
            let is_stored = !self.unwritten.contains(result.index) && !self.unstored.contains(result.index);
            if is_stored && self.results.get(&result.index).is_some_and(is_this) {
                self.untold.insert_index(result.index);
            }
        }
        self.told.retain(|(_, index)| !self.untold.contains(*index));
        self.drop_stale();
    }

    /// The submitter has these, of this attempt: which of them were here and in the store.
    pub(super) fn acknowledged(&mut self, attempt: u32, indices: &IntervalSet, now: Time) -> Vec<u64> {
        let last = self.told.iter().rev().find(|(_, index)| indices.contains(*index)).map(|&(told, _)| told);
        if let Some(told) = last {
            let told = self.heard.map_or(told, |heard| heard.told.max(told));
            self.heard = Some(Heard { at: now, told });
        }
        let here = indices.ranges().flat_map(|range| self.results.range(range));
        let acknowledged: Vec<u64> =
            here.filter(|(_, result)| result.attempt == attempt).map(|(&index, _)| index).collect();
        self.remove(acknowledged)
    }

    /// Forgets results; which of them were in the store.
    pub(super) fn forget(&mut self, is_unwanted: impl Fn(&TaskResult) -> bool) -> Vec<u64> {
        let gone: Vec<u64> =
            self.results.values().filter(|result| is_unwanted(result)).map(|result| result.index).collect();
        self.remove(gone)
    }

    fn remove(&mut self, mut indices: Vec<u64>) -> Vec<u64> {
        let mut gone = IntervalSet::new();
        for &index in &indices {
            self.results.remove(&index);
            gone.insert_index(index);
        }
        self.unwritten.subtract(&gone);
        self.untold.subtract(&gone);
        indices.retain(|&index| !self.unstored.remove_index(index));
        self.drop_stale();
        indices
    }

    /// A result is being written, is to be told, is not in the store, or was told, and not two of these.
    #[cfg(debug_assertions)]
    pub(super) fn assert_consistent(&self) {
        let mut all = IntervalSet::new();
        for (state, results) in [("unwritten", &self.unwritten), ("untold", &self.untold), ("unstored", &self.unstored)]
        {
            let twice = all.intersection(results);
            debug_assert!(twice.is_empty(), "{twice:?} {state}, and something else, too");
            all.extend_with(results);
        }
        let here = all.indices().all(|index| self.results.contains_key(&index));
        debug_assert!(here, "{all:?} without results");
        let told: IntervalSet = self.told.iter().map(|(_, index)| *index..*index + 1).collect();
        let missing = self.results.keys().find(|&&index| self.is_told(index) && !told.contains(index));
        debug_assert!(missing.is_none(), "{missing:?} was told, and is not told again");
    }

    fn is_told(&self, index: u64) -> bool {
        let is_to_be_told = self.untold.contains(index) || self.unwritten.contains(index);
        self.results.contains_key(&index) && !is_to_be_told && !self.unstored.contains(index)
    }

    /// The first entry of `told` is of a result that waits; and there are not many more entries than such results.
    fn drop_stale(&mut self) {
        while self.told.front().is_some_and(|&(_, index)| !self.is_told(index)) {
            self.told.pop_front();
        }
        if self.told.len() > 2 * TOLD_MAX {
            let told = std::mem::take(&mut self.told);
            self.told = told.into_iter().filter(|&(_, index)| self.is_told(index)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bag::BlobId;

    fn result(index: u64) -> TaskResult {
        let output = BlobId([1; 32]);
        let finished = crate::bag::Finished {
            success: true,
            crashed: false,
            output,
            output_bytes: 1,
            content: None,
            work_mops: 1.0,
            exit_code: Some(0),
        };
        TaskResult::of(index, 0, finished)
    }

    fn at(second: i64) -> Time {
        Time::from_micros(second * 1_000_000)
    }

    fn indices(results: &[TaskResult]) -> IntervalSet {
        results.iter().map(|result| result.index..result.index + 1).collect()
    }

    fn with(tasks: u64) -> Outbox {
        let mut outbox = Outbox::default();
        (0..tasks).for_each(|index| insert(&mut outbox, index));
        outbox
    }

    fn insert(outbox: &mut Outbox, index: u64) {
        outbox.insert(result(index));
        outbox.written(index, 0);
    }

    #[test]
    fn nobody_is_told_of_what_is_not_durable() {
        let mut outbox = Outbox::default();
        (0..10).for_each(|index| outbox.insert(result(index)));
        assert!(!outbox.may_tell() && outbox.has_untold());
        outbox.written(3, 7);
        outbox.written(77, 0);
        assert_eq!(outbox.tell(RESULTS_MAX, at(0)), [], "another attempt, and none of its tasks");
        [3, 5].into_iter().for_each(|index| outbox.written(index, 0));
        assert_eq!(indices(&outbox.tell(RESULTS_MAX, at(0))), [3..4, 5..6].into_iter().collect());
        // What is told with its write is not told before.
        assert_eq!(outbox.tell_one(7, at(1)).len(), 1);
        outbox.written(7, 0);
        outbox.written(8, 0);
        assert_eq!(indices(&outbox.tell(RESULTS_MAX, at(1))), IntervalSet::from(8..9));
    }

    #[test]
    fn no_more_is_told_than_is_acknowledged() {
        let mut outbox = with(10_000);
        let told = (0..100).map(|_| outbox.tell(RESULTS_MAX, at(0)).len()).sum::<usize>();
        assert_eq!(told, TOLD_MAX);
        assert!(!outbox.may_tell() && outbox.has_untold());
        let acknowledged = outbox.acknowledged(0, &IntervalSet::from(0..300), at(6));
        assert_eq!(acknowledged.len(), 300);
        assert_eq!(indices(&outbox.tell(RESULTS_MAX, at(0))), IntervalSet::from(2048..2348));
        // The others follow as they are acknowledged, each once.
        let mut all = IntervalSet::new();
        let mut messages = 0;
        while !outbox.is_empty() {
            let next = IntervalSet::from(outbox.indices().next().unwrap()..10_000).take_first(512);
            all.extend_with(&next);
            outbox.acknowledged(0, &next, at(6));
            messages += usize::from(!outbox.tell(RESULTS_MAX, at(0)).is_empty());
        }
        assert_eq!((all, messages), (IntervalSet::from(300..10_000), 15), "7,652 in messages of 512");
    }

    #[test]
    fn what_is_missing_is_told_again_and_not_what_is_on_its_way() {
        let (mut outbox, wait) = (with(2000), Duration::from_secs(10));
        for second in 0..4 {
            assert!(!outbox.tell(RESULTS_MAX, at(second)).is_empty());
        }
        assert_eq!(outbox.again_at(wait), Some(at(10)));
        // All of the second message and most of the first are acknowledged.
        for range in [0..7, 8..300, 301..1024] {
            outbox.acknowledged(0, &IntervalSet::from(range), at(6));
        }
        assert_eq!(outbox.again_at(wait), Some(at(10)));
        assert_eq!(indices(&outbox.tell_again(at(5), at(10))), [7..8, 300..301].into_iter().collect());
        // The others may be on its desk.
        assert_eq!((outbox.again_at(wait), outbox.tell_again(at(5), at(10))), (Some(at(16)), vec![]));
        outbox.acknowledged(0, &IntervalSet::from(1024..1100), at(12));
        assert_eq!(outbox.again_at(wait), Some(at(22)));
        assert_eq!(indices(&outbox.tell_again(at(12), at(22))), IntervalSet::from(1100..1612));
    }

    #[test]
    fn what_did_not_leave_is_told_as_if_it_had_not_been() {
        let mut outbox = with(1024);
        let first = outbox.tell(RESULTS_MAX, at(0));
        assert_eq!(outbox.tell(RESULTS_MAX, at(1)).len(), 512);
        outbox.acknowledged(0, &IntervalSet::from(0..10), at(6));
        outbox.not_told(&first);
        assert_eq!((outbox.told.front(), outbox.may_tell()), (Some(&(at(1), 512)), true));
        assert_eq!(indices(&outbox.tell(RESULTS_MAX, at(2))), IntervalSet::from(10..512));
        let other = TaskResult { attempt: 7, ..result(600) };
        outbox.not_told(&[other]);
        assert!(!outbox.has_untold(), "of another attempt");
    }

    #[test]
    fn what_is_not_in_the_store_is_told_to_nobody_and_needs_no_removal() {
        let mut outbox = Outbox::default();
        (0..4).for_each(|index| outbox.insert_unstored(result(index)));
        assert!(!outbox.may_tell() && !outbox.has_untold() && outbox.again_at(Duration::ZERO).is_none());
        assert_eq!((outbox.store(2).map(|result| result.index), outbox.store(2)), (Some(2), None));
        outbox.written(2, 0);
        assert_eq!(indices(&outbox.tell(RESULTS_MAX, at(0))), IntervalSet::from(2..3));
        assert_eq!(outbox.acknowledged(0, &IntervalSet::from(0..3), at(1)), [2], "the others have no record");
        assert_eq!((outbox.len(), outbox.is_unstored(3), outbox.is_unstored(0)), (1, true, false));
    }

    /// A result that comes to a task once more, and many that are acknowledged behind one that is not.
    #[test]
    fn entries_of_results_that_are_gone_do_not_stay() {
        let mut outbox = with(1);
        outbox.tell(RESULTS_MAX, at(0));
        assert_eq!(outbox.forget(|_| true), [0]);
        insert(&mut outbox, 0);
        assert_eq!(outbox.told.front(), None);
        outbox.tell(RESULTS_MAX, at(5));
        assert_eq!(outbox.told.front(), Some(&(at(5), 0)));
        for index in 1..100_000 {
            insert(&mut outbox, index);
            outbox.tell(RESULTS_MAX, at(6));
            outbox.acknowledged(0, &IntervalSet::from(index..index + 1), at(6));
        }
        assert!(outbox.told.len() <= 2 * TOLD_MAX + 1, "{}", outbox.told.len());
        assert_eq!(outbox.tell_again(at(9), at(9)).len(), 1);
    }
}
