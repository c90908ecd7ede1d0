//! Failed tries: who gets another, when, and which machine is left alone.
//!
//! A task that fails is tried again, up to [`Ledger::retries_max`] times, each time after twice the pause. One whose
//! worker died under it may have been unlucky in its machine: that counts as a failure only where it happens again on the
//! same machine, and after [`CRASHED_ON_MAX`] machines the task is to blame. What has been counted is durable before the
//! executor may forget the result, so that a restart gives nobody more tries.
//!
//! A machine on which tasks of the bag fail in a row, while elsewhere most of them succeed, is avoided for a while: it
//! keeps none, and is told to offer nothing. It believes that only where all that it ran lately failed, whoever's it was.
//! Where there is a quorum a failed vote counts here once others have shown that the task succeeds; it is one of the task's tries where
//! its machine tries the task again (`quorum/stuck`).
//!
//! A task that was over and is run again on demand has all its tries again, and no word of an earlier attempt counts.
//!
//! Left out: tries are not sent to another machine than the last on purpose (a request goes where there is room), the
//! pauses end with a restart, and so does the memory of machines that failed.

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::Ledger;
use crate::bag::{BagId, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::message::Message;
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record, RecordKey};

/// Machines whose worker a task may bring down. Three: the third time it is no coincidence (issue of HTCondor and BOINC
/// users: one task that takes the whole grid along).
pub(super) const CRASHED_ON_MAX: usize = 3;
/// Pause before the first further try, and the longest; it doubles in between. Our choice.
pub(super) const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Pauses end at multiples of this, so that many tasks end theirs together.
const PAUSE_STEP_MICROS: i64 = 250_000;
/// Failures in a row for which a machine is avoided.
pub(crate) const FAILED_IN_ROW: u32 = 5;
/// Tasks that must have succeeded elsewhere for each that failed there. With such odds five failures in a row are a
/// coincidence once in a thousand.
const ELSEWHERE_DONE: u64 = 3;
/// How long a machine is avoided for the first time, and at most; it doubles in between.
const AVOID_FIRST: Duration = Duration::from_secs(60);
pub(crate) const AVOID_MAX: Duration = Duration::from_secs(3600);

/// Failed tries of one task that is not over, and since which attempt they count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// Of those that count as its own.
    pub(crate) count: u32,
    /// Where its worker died.
    pub(crate) crashed_on: Vec<PeerId>,
    /// A failure of an earlier attempt was counted already.
    pub(crate) next_attempt: u32,
    /// It was run again on demand: what any machine says of earlier attempts than this is of no account.
    pub(crate) void_before: u32,
}

impl Failures {
    /// Whether the task may be tried once more.
    fn leave_a_try(&self, retries_max: u32) -> bool {
        self.count <= retries_max && self.crashed_on.len() < CRASHED_ON_MAX
    }

    fn record(&self, bag: BagId, index: u64) -> Record {
        let Self { count, crashed_on, next_attempt, void_before } = self.clone();
        Record::Failures { bag, index, count, crashed_on, next_attempt, void_before }
    }
}

/// A machine on which the last task failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Failing {
    in_row: u32,
    failed: u64,
    /// How often it was avoided.
    avoided: u32,
    until: Time,
}

pub(super) fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(most)
}

impl Ledger {
    pub(crate) fn restore_failures(&mut self, index: u64, failures: Failures) {
        if index < self.bag.tasks && !self.done.contains(index) && !self.failed.contains(index) {
            self.failures.insert(index, failures);
        }
    }

    /// Whether a failure was not counted yet: only the executor that has the task can fail it, and each attempt once.
    pub(super) fn is_news(&self, executor: &Contact, result: &TaskResult) -> bool {
        let counted = self.failures.get(&result.index).map_or(0, |failures| failures.next_attempt);
        let placement = self.placed.get(&executor.peer);
        // What failed elsewhere says nothing of a copy; what failed here before it was tried again does.
        let counts_from = self.votes.counts_from(executor.peer, result.index);
        let is_later = result.attempt >= if self.is_replicated() { counts_from } else { counted };
        placement.is_some_and(|placement| placement.ranges.contains(result.index)) && is_later
    }

    /// Whether a machine that speaks of this attempt may still list the task because it failed there, and was to be tried
    /// again meanwhile: that is no new placement. Where there are copies only the machine that it crashed on does, but
    /// for what was run again since, which nobody has from before.
    pub(super) fn is_stale(failures: &Failures, executor: PeerId, attempt: u32, is_replicated: bool) -> bool {
        let may_have_ended_there = !is_replicated || failures.crashed_on.contains(&executor);
        attempt < failures.void_before || attempt < failures.next_attempt && may_have_ended_there
    }

    /// Whether this is how the task ended before it was run again on demand.
    pub(super) fn is_void(&self, result: &TaskResult) -> bool {
        self.failures.get(&result.index).is_some_and(|failures| result.attempt < failures.void_before)
    }

    /// What an executor says of an attempt that was issued before now is of no account any more.
    pub(super) fn not_before_next_attempt(&mut self, index: u64) {
        self.failures.entry(index).or_default().next_attempt = self.attempt + 1;
    }

    /// Whether the task may be tried again after one more failure.
    pub(super) fn leaves_a_try(&self, index: u64) -> bool {
        let mut failures = self.failures.get(&index).cloned().unwrap_or_default();
        failures.count += 1;
        failures.leave_a_try(self.retries_max)
    }

    /// Counts one failed try of a task that gets another.
    pub(super) fn count_try(&mut self, index: u64) {
        let next_attempt = self.attempt + 1;
        let failures = self.failures.entry(index).or_default();
        failures.count += 1;
        failures.next_attempt = next_attempt;
    }

    /// Counts one failed try; whether the task gets another. The last one is said again until it is journalled, and counts
    /// once.
    pub(super) fn counts_and_retries(&mut self, result: &TaskResult, executor: PeerId) -> bool {
        let (next_attempt, retries_max) = (self.attempt + 1, self.retries_max);
        let failures = self.failures.entry(result.index).or_default();
        if !failures.leave_a_try(retries_max) {
            return false;
        }
        if result.crashed && !failures.crashed_on.contains(&executor) {
            failures.crashed_on.push(executor);
        } else {
            failures.count += 1;
        }
        let retries = failures.leave_a_try(retries_max);
        if retries {
            failures.next_attempt = next_attempt;
        }
        self.note_end(executor, false);
        retries
    }

    /// What is to be durable of a task's failures before its executor forgets the last one.
    pub(super) fn failures_change(&self, index: u64) -> Change {
        match self.failures.get(&index) {
            None => Change::Delete(RecordKey::Failures(self.bag.id, index)),
            Some(failures) => Change::Put(failures.record(self.bag.id, index)),
        }
    }

    /// Failed tries, and what was run again, of tasks that are not over.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Record> + '_ {
        self.failures.iter().map(|(&index, failures)| failures.record(self.bag.id, index))
    }

    /// All that is stored of failures goes with the bag.
    pub(super) fn forget_failures(&mut self) -> Vec<Change> {
        self.pausing.clear();
        self.failing.clear();
        let bag = self.bag.id;
        let gone = std::mem::take(&mut self.failures);
        gone.into_keys().map(|index| Change::Delete(RecordKey::Failures(bag, index))).collect()
    }

    /// When a task that has failed is issued again.
    pub(super) fn next_try(&self, index: u64, io: &Io) -> Time {
        let tries = self.failures.get(&index).map_or(0, |failures| failures.count + failures.crashed_on.len() as u32);
        pause_end(io.now + doubled(PAUSE_FIRST, tries.saturating_sub(1), PAUSE_MAX))
    }

    /// These tasks, of which there is no copy, are issued again then.
    pub(super) fn pause(&mut self, ranges: &IntervalSet, until: Time, io: &mut Io) {
        self.attempt += 1;
        self.pausing.entry(until).or_default().extend_with(ranges);
        self.ends_at(until);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Those whose pause is over are to be issued.
    pub(super) fn end_pauses(&mut self, now: Time) {
        while let Some(first) = self.pausing.first_entry()
            && *first.key() <= now
        {
            self.unissued.extend_with(&first.remove());
        }
    }

    /// A task is over, or on a machine after all: it waits for nothing.
    pub(super) fn end_pause_of(&mut self, index: u64) {
        self.pausing.retain(|_, ranges| {
            ranges.remove_index(index);
            !ranges.is_empty()
        });
    }

    /// Keeps account of who fails. A result that is counted here is one of its own attempt.
    pub(super) fn note_end(&mut self, executor: PeerId, success: bool) {
        if success {
            self.failing.remove(&executor);
            return;
        }
        self.tries_failed += 1;
        let failing = self.failing.entry(executor).or_default();
        failing.in_row += 1;
        failing.failed += 1;
    }

    /// For how long nothing is to be placed there.
    pub(super) fn avoided_for(&self, executor: PeerId, now: Time) -> Duration {
        self.failing.get(&executor).map_or(Duration::ZERO, |failing| failing.until.since(now))
    }

    /// Takes everything from a machine on which all fails that succeeds elsewhere.
    pub(super) fn avoid_if_due(&mut self, executor: &Contact, io: &mut Io, config: &Config) {
        let Entry::Occupied(mut entry) = self.failing.entry(executor.peer) else { return };
        let failing = entry.get_mut();
        let failed_elsewhere = self.tries_failed - failing.failed;
        let succeed_elsewhere =
            self.done.len() >= ELSEWHERE_DONE * failed_elsewhere && self.done.len() >= u64::from(FAILED_IN_ROW);
        if failing.in_row < FAILED_IN_ROW || failing.until > io.now || !succeed_elsewhere {
            return;
        }
        let rest = doubled(AVOID_FIRST, failing.avoided, AVOID_MAX);
        failing.avoided += 1;
        failing.until = io.now + rest;
        let (bag, term) = (self.bag.id, self.term(io, config));
        let Some(placement) = self.placed.remove(&executor.peer) else { return };
        let former = self.part(executor.peer, &placement.ranges);
        io.persist(vec![Change::Delete(RecordKey::Placed(bag, executor.peer)), former], Vec::new());
        let drop = placement.ranges.clone();
        let submitter = Some((&io.me).into());
        io.send(executor.clone(), Message::Lease { bag, version: 0, submitter, term, drop, rest, key: None });
        self.lose(&placement.ranges);
        let again = self.without_copy(placement.ranges);
        if !again.is_empty() {
            self.reissued += again.len();
            // By then the others know that it offers nothing.
            self.pause(&again, pause_end(io.now + PAUSE_FIRST), io);
        }
    }

    /// Runs those of these tasks again that are over, as if for the first time: nothing that any machine has said of them so
    /// far counts any more. How many. Opens a bag that was over; one that was cancelled stays so.
    pub(crate) fn rerun(&mut self, tasks: &IntervalSet, io: &mut Io) -> u64 {
        let again = self.failed.intersection(tasks).union(&self.done.intersection(tasks));
        if matches!(self.closed, Some((Closing::Cancelled, _))) || again.is_empty() {
            return 0;
        }
        self.failed.subtract(&again);
        self.done.subtract(&again);
        self.closed = None;
        self.failing.clear();
        self.attempt += 1;
        self.unissued.extend_with(&again);
        let bag: BagId = self.bag.id;
        // What the journal says of placements may be older than the results that it is about to lack.
        let placed: Vec<Change> = self.placed.values().map(|placement| placement.change(bag)).collect();
        placed.into_iter().for_each(|change| io.persist(vec![change], Vec::new()));
        let mut changes = vec![Change::Put(self.record(io))];
        for index in again.indices() {
            // Messages are late and come twice, also while this machine restarts.
            let void_before = self.attempt;
            self.failures.insert(index, Failures { void_before, ..Failures::default() });
            changes.extend([Change::Delete(RecordKey::Done(bag, index)), self.failures_change(index)]);
        }
        io.persist(changes, Vec::new());
        again.len()
    }
}

pub(super) fn pause_end(time: Time) -> Time {
    let steps = time.as_micros().saturating_add(PAUSE_STEP_MICROS - 1).div_euclid(PAUSE_STEP_MICROS);
    Time::from_micros(steps * PAUSE_STEP_MICROS)
}
