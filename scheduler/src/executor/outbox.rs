//! The outbox: the results of one bag that its submitter has not acknowledged. Each is *unwritten* (its record is being
//! written), *unsent*, *sent*, or *unstored* (given to this machine's own ledger).
//!
//! A result is sent only when it is durable, each on its own: where small tasks end all the time, some other result is always
//! being written.
//!
//! At most [`UNACKNOWLEDGED_MAX`] results are sent and not acknowledged; the others wait, so that a slow submitter gets no more
//! than it can take. A result is sent again after a wait where one sent later is acknowledged, so that it was lost, or where
//! no acknowledgement has come for that long: lost results do not wait behind those on their way, and a slow submitter does not
//! get everything twice.

use std::collections::btree_map::Values;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::Time;

use crate::bag::{SMALL_OUTPUTS_BYTES_MAX, TaskResult};
use crate::message::{RESULTS_MAX, results_within};
use crate::ranges::IntervalSet;

/// Most results that are sent and not acknowledged. Our choice: while a submitter journals one message, three more are on their
/// way.
pub(super) const UNACKNOWLEDGED_MAX: usize = 4 * RESULTS_MAX;

/// The unacknowledged results of one bag.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// By task.
    results: BTreeMap<u64, TaskResult>,
    /// Results that are not durable yet.
    unwritten: IntervalSet,
    /// Durable results that were not sent yet.
    unsent: IntervalSet,
    /// Results without a record: this machine submitted the bag itself, and its ledger has taken them or is about to. They are
    /// sent to nobody.
    unstored: IntervalSet,
    /// The other results, by when they were sent last. An entry is stale where its result is gone or was replaced since; the
    /// first entry never is.
    sent: VecDeque<(Time, u64)>,
    /// The last acknowledgement.
    last_ack: Option<LastAck>,
}

/// An acknowledgement of results.
#[derive(Clone, Copy, Debug)]
struct LastAck {
    /// When it came.
    at: Time,
    /// When the latest of the results that are acknowledged so far was sent.
    sent: Time,
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

    /// Whether there are results to send, durable or not.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || !self.unwritten.is_empty()
    }

    /// Whether there are durable results to send.
    pub(super) fn has_written(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// How many results may be sent before some are acknowledged.
    fn room(&self) -> usize {
        let sent = self.results.len() - (self.unwritten.len() + self.unsent.len() + self.unstored.len()) as usize;
        UNACKNOWLEDGED_MAX.saturating_sub(sent)
    }

    /// Whether unsent results may be sent now.
    pub(super) fn may_send(&self) -> bool {
        self.has_written() && self.room() > 0
    }

    /// When results are sent again, if their submitter has `wait` to acknowledge them.
    pub(super) fn resend_at(&self, wait: Duration) -> Option<Time> {
        let (first, _) = *self.sent.front()?;
        let lost = self.last_ack.is_some_and(|last_ack| first < last_ack.sent);
        let since = if lost { first } else { self.last_ack.map_or(first, |last_ack| first.max(last_ack.at)) };
        Some(since + wait)
    }

    /// Adds a result, to be sent once it is durable.
    pub(super) fn insert(&mut self, result: TaskResult) {
        self.unwritten.insert_index(result.index);
        self.unsent.remove_index(result.index);
        self.unstored.remove_index(result.index);
        self.results.insert(result.index, result);
        self.drop_stale();
    }

    /// Adds a result of this machine's own bag that is given to its ledger at once, and not stored here.
    pub(super) fn insert_unstored(&mut self, result: TaskResult) {
        self.unwritten.remove_index(result.index);
        self.unsent.remove_index(result.index);
        self.unstored.insert_index(result.index);
        self.results.insert(result.index, result);
        self.drop_stale();
    }

    /// Whether a result is here without a record.
    pub(super) fn is_unstored(&self, index: u64) -> bool {
        self.unstored.contains(index)
    }

    /// The ledger has not taken this result: returns it to be stored, and sent once that is durable.
    pub(super) fn store(&mut self, index: u64) -> Option<TaskResult> {
        if !self.unstored.remove_index(index) {
            return None;
        }
        self.unwritten.insert_index(index);
        self.results.get(&index).cloned()
    }

    /// The result of this attempt is durable.
    pub(super) fn written(&mut self, index: u64, attempt: u32) {
        let is_this = self.results.get(&index).is_some_and(|result| result.attempt == attempt);
        if is_this && self.unwritten.remove_index(index) {
            self.unsent.insert_index(index);
        }
    }

    /// The unsent results to send now in one message, at most `most`.
    pub(super) fn send(&mut self, most: usize, now: Time) -> Vec<TaskResult> {
        let mut results = Vec::new();
        self.send_with(&mut results, most, now);
        results
    }

    /// Appends unsent results to those of a message, at most `most`, and as many as fit.
    pub(super) fn send_with(&mut self, results: &mut Vec<TaskResult>, most: usize, now: Time) {
        let unsent = self.unsent.indices().take(most.min(self.room())).filter_map(|index| self.results.get(&index));
        let count = results_within(results.iter().chain(unsent)).saturating_sub(results.len());
        let indices = self.unsent.take_first(count as u64);
        self.sent.extend(indices.indices().map(|index| (now, index)));
        results.extend(indices.indices().filter_map(|index| self.results.get(&index).cloned()));
        self.drop_stale();
    }

    /// Returns an unwritten result, if more may be sent, for a message that leaves once the result is durable.
    pub(super) fn send_one(&mut self, index: u64, now: Time) -> Vec<TaskResult> {
        if self.room() == 0 || !self.unwritten.remove_index(index) {
            return Vec::new();
        }
        self.sent.push_back((now, index));
        self.results.get(&index).cloned().into_iter().collect()
    }

    /// The results to send again now in one message: those last sent at `sent_by` or before, the oldest first. Where an
    /// acknowledgement came since `sent_by`, only those sent before the results that it was for.
    pub(super) fn resend(&mut self, sent_by: Time, now: Time) -> Vec<TaskResult> {
        let before_last_ack = self
            .last_ack
            .filter(|last_ack| last_ack.at > sent_by)
            .map(|last_ack| last_ack.sent - Duration::from_micros(1));
        let sent_by = before_last_ack.map_or(sent_by, |before| before.min(sent_by));
        let (mut again, mut bytes) = (IntervalSet::new(), 0);
        while again.len() < RESULTS_MAX as u64
            && let Some(&(sent, index)) = self.sent.front()
            && sent <= sent_by
        {
            bytes += self.results.get(&index).map_or(0, TaskResult::content_bytes);
            if bytes > SMALL_OUTPUTS_BYTES_MAX {
                break;
            }
            self.sent.pop_front();
            again.insert_index(index);
            self.drop_stale();
        }
        self.sent.extend(again.indices().map(|index| (now, index)));
        again.indices().filter_map(|index| self.results.get(&index).cloned()).collect()
    }

    /// These results were not sent after all: they are unsent again.
    pub(super) fn not_sent(&mut self, results: &[TaskResult]) {
        for result in results {
            let is_this = |known: &TaskResult| known.attempt == result.attempt;
            let is_stored = !self.unwritten.contains(result.index) && !self.unstored.contains(result.index);
            if is_stored && self.results.get(&result.index).is_some_and(is_this) {
                self.unsent.insert_index(result.index);
            }
        }
        self.sent.retain(|(_, index)| !self.unsent.contains(*index));
        self.drop_stale();
    }

    /// All results that were sent are unsent again: another keeper is to have them.
    pub(super) fn unsend(&mut self) {
        for (_, index) in std::mem::take(&mut self.sent) {
            let is_stored = !self.unwritten.contains(index) && !self.unstored.contains(index);
            if is_stored && self.results.contains_key(&index) {
                self.unsent.insert_index(index);
            }
        }
        self.last_ack = None;
    }

    /// Whether one of these results of this attempt is a failure or a checkpoint.
    pub(super) fn has_unsuccessful(&self, attempt: u32, indices: &IntervalSet) -> bool {
        let mut here = indices.ranges().flat_map(|range| self.results.range(range));
        here.any(|(_, result)| result.attempt == attempt && !result.success)
    }

    /// The submitter acknowledges these results of this attempt: they are forgotten. Returns those that have a record.
    pub(super) fn acknowledged(&mut self, attempt: u32, indices: &IntervalSet, now: Time) -> Vec<u64> {
        let last = self.sent.iter().rev().find(|(_, index)| indices.contains(*index)).map(|&(sent, _)| sent);
        if let Some(sent) = last {
            let sent = self.last_ack.map_or(sent, |last_ack| last_ack.sent.max(sent));
            self.last_ack = Some(LastAck { at: now, sent });
        }
        let here = indices.ranges().flat_map(|range| self.results.range(range));
        let acknowledged: Vec<u64> =
            here.filter(|(_, result)| result.attempt == attempt).map(|(&index, _)| index).collect();
        self.remove(acknowledged)
    }

    /// Forgets results; returns those that have a record.
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
        self.unsent.subtract(&gone);
        indices.retain(|&index| !self.unstored.remove_index(index));
        self.drop_stale();
        indices
    }

    /// Panics where a result is in two of the states unwritten, unsent, unstored and sent, or in none.
    #[cfg(debug_assertions)]
    pub(super) fn assert_consistent(&self) {
        let mut all = IntervalSet::new();
        for (state, results) in [("unwritten", &self.unwritten), ("unsent", &self.unsent), ("unstored", &self.unstored)]
        {
            let twice = all.intersection(results);
            debug_assert!(twice.is_empty(), "{twice:?} {state}, and something else, too");
            all.extend_with(results);
        }
        let here = all.indices().all(|index| self.results.contains_key(&index));
        debug_assert!(here, "{all:?} without results");
        let sent: IntervalSet = self.sent.iter().map(|(_, index)| *index..*index + 1).collect();
        let missing = self.results.keys().find(|&&index| self.is_sent(index) && !sent.contains(index));
        debug_assert!(missing.is_none(), "{missing:?} was sent, and will not be sent again");
    }

    fn is_sent(&self, index: u64) -> bool {
        let is_to_be_sent = self.unsent.contains(index) || self.unwritten.contains(index);
        self.results.contains_key(&index) && !is_to_be_sent && !self.unstored.contains(index)
    }

    /// Removes stale entries from the front of `sent`, and all of them where there are many.
    fn drop_stale(&mut self) {
        while self.sent.front().is_some_and(|&(_, index)| !self.is_sent(index)) {
            self.sent.pop_front();
        }
        if self.sent.len() > 2 * UNACKNOWLEDGED_MAX {
            let sent = std::mem::take(&mut self.sent);
            self.sent = sent.into_iter().filter(|&(_, index)| self.is_sent(index)).collect();
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
            fingerprint: None,
            times: 1.0,
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
    fn unwritten_results_are_not_sent() {
        let mut outbox = Outbox::default();
        (0..10).for_each(|index| outbox.insert(result(index)));
        assert!(!outbox.may_send() && outbox.has_unsent());
        outbox.written(3, 7);
        outbox.written(77, 0);
        assert_eq!(outbox.send(RESULTS_MAX, at(0)), [], "another attempt, and none of its tasks");
        [3, 5].into_iter().for_each(|index| outbox.written(index, 0));
        assert_eq!(indices(&outbox.send(RESULTS_MAX, at(0))), [3..4, 5..6].into_iter().collect());
        // A result that is sent with its write is not sent before.
        assert_eq!(outbox.send_one(7, at(1)).len(), 1);
        outbox.written(7, 0);
        outbox.written(8, 0);
        assert_eq!(indices(&outbox.send(RESULTS_MAX, at(1))), IntervalSet::from(8..9));
    }

    #[test]
    fn a_bounded_number_of_results_is_sent_and_unacknowledged() {
        let mut outbox = with(10_000);
        let sent = (0..100).map(|_| outbox.send(RESULTS_MAX, at(0)).len()).sum::<usize>();
        assert_eq!(sent, UNACKNOWLEDGED_MAX);
        assert!(!outbox.may_send() && outbox.has_unsent());
        let acknowledged = outbox.acknowledged(0, &IntervalSet::from(0..300), at(6));
        assert_eq!(acknowledged.len(), 300);
        assert_eq!(indices(&outbox.send(RESULTS_MAX, at(0))), IntervalSet::from(2048..2348));
        // The others follow as they are acknowledged, each once.
        let mut all = IntervalSet::new();
        let mut messages = 0;
        while !outbox.is_empty() {
            let next = IntervalSet::from(outbox.indices().next().unwrap()..10_000).take_first(512);
            all.extend_with(&next);
            outbox.acknowledged(0, &next, at(6));
            messages += usize::from(!outbox.send(RESULTS_MAX, at(0)).is_empty());
        }
        assert_eq!((all, messages), (IntervalSet::from(300..10_000), 15), "7,652 in messages of 512");
    }

    #[test]
    fn lost_results_are_sent_again_and_those_on_their_way_are_not() {
        let (mut outbox, wait) = (with(2000), Duration::from_secs(10));
        for second in 0..4 {
            assert!(!outbox.send(RESULTS_MAX, at(second)).is_empty());
        }
        assert_eq!(outbox.resend_at(wait), Some(at(10)));
        // All of the second message and most of the first are acknowledged.
        for range in [0..7, 8..300, 301..1024] {
            outbox.acknowledged(0, &IntervalSet::from(range), at(6));
        }
        assert_eq!(outbox.resend_at(wait), Some(at(10)));
        assert_eq!(indices(&outbox.resend(at(5), at(10))), [7..8, 300..301].into_iter().collect());
        // The submitter may be journalling the others.
        assert_eq!((outbox.resend_at(wait), outbox.resend(at(5), at(10))), (Some(at(16)), vec![]));
        outbox.acknowledged(0, &IntervalSet::from(1024..1100), at(12));
        assert_eq!(outbox.resend_at(wait), Some(at(22)));
        assert_eq!(indices(&outbox.resend(at(12), at(22))), IntervalSet::from(1100..1612));
    }

    #[test]
    fn returned_results_count_as_unsent() {
        let mut outbox = with(1024);
        let first = outbox.send(RESULTS_MAX, at(0));
        assert_eq!(outbox.send(RESULTS_MAX, at(1)).len(), 512);
        outbox.acknowledged(0, &IntervalSet::from(0..10), at(6));
        outbox.not_sent(&first);
        assert_eq!((outbox.sent.front(), outbox.may_send()), (Some(&(at(1), 512)), true));
        assert_eq!(indices(&outbox.send(RESULTS_MAX, at(2))), IntervalSet::from(10..512));
        let other = TaskResult { attempt: 7, ..result(600) };
        outbox.not_sent(&[other]);
        assert!(!outbox.has_unsent(), "of another attempt");
    }

    #[test]
    fn unstored_results_are_not_sent_and_leave_no_record() {
        let mut outbox = Outbox::default();
        (0..4).for_each(|index| outbox.insert_unstored(result(index)));
        assert!(!outbox.may_send() && !outbox.has_unsent() && outbox.resend_at(Duration::ZERO).is_none());
        assert_eq!((outbox.store(2).map(|result| result.index), outbox.store(2)), (Some(2), None));
        outbox.written(2, 0);
        assert_eq!(indices(&outbox.send(RESULTS_MAX, at(0))), IntervalSet::from(2..3));
        assert_eq!(outbox.acknowledged(0, &IntervalSet::from(0..3), at(1)), [2], "the others have no record");
        assert_eq!((outbox.len(), outbox.is_unstored(3), outbox.is_unstored(0)), (1, true, false));
    }

    /// A task has a second result, and many results are acknowledged behind one that is not.
    #[test]
    fn entries_of_forgotten_results_are_removed() {
        let mut outbox = with(1);
        outbox.send(RESULTS_MAX, at(0));
        assert_eq!(outbox.forget(|_| true), [0]);
        insert(&mut outbox, 0);
        assert_eq!(outbox.sent.front(), None);
        outbox.send(RESULTS_MAX, at(5));
        assert_eq!(outbox.sent.front(), Some(&(at(5), 0)));
        for index in 1..100_000 {
            insert(&mut outbox, index);
            outbox.send(RESULTS_MAX, at(6));
            outbox.acknowledged(0, &IntervalSet::from(index..index + 1), at(6));
        }
        assert!(outbox.sent.len() <= 2 * UNACKNOWLEDGED_MAX + 1, "{}", outbox.sent.len());
        assert_eq!(outbox.resend(at(9), at(9)).len(), 1);
    }
}
