//! Failed tries: which task is tried again, when, and which machine is avoided.
//!
//! A failed task is tried again, up to `retries_max` times, each time after twice the pause. If its worker died the machine
//! may be to blame: that counts as a failure only where it happens again on the same machine; after [`CRASHED_ON_MAX`]
//! machines the task is to blame. The count is durable before the executor may forget the result, so that a restart gives
//! no task more tries.
//!
//! A machine on which tasks of the bag fail in a row, while most succeed elsewhere, is avoided for a while (`avoided`): it
//! keeps none, and is told to rest, which it does only where tasks of all submitters have failed on it lately. In a bag
//! with a quorum a failed vote counts against its machine once others have shown that the task succeeds; it counts as one
//! of the task's tries where its machine tries the task again (`quorum/stuck`).
//!
//! A task that has ended alike on two machines, with the same exit code and the same output, would do so on a third: it is not tried
//! again. Nor is one whose exit code its user does not want to be tried again (`conditions`).
//!
//! An ended task that is run again on demand has all its tries again, and no result of an earlier attempt counts.
//!
//! Left out: sending a try to another machine than the last (a request goes where there is room); pauses that outlast a
//! restart.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::Ledger;
use crate::bag::{BagId, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::message::{Lease, Message};
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Ending, Record, RecordKey};

/// A task on whose account workers of so many machines died has failed. Three: the third time is no coincidence (HTCondor
/// and BOINC users report single tasks that take the whole grid down).
pub(super) const CRASHED_ON_MAX: usize = 3;
/// Pause before the first further try, and the longest; it doubles in between. Our choice.
/// Most endings of one task that are known: what keepers take of each other (`feed`). Two that are alike suffice.
const ENDINGS_MAX: usize = 64;
pub(super) const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Pauses end at multiples of this, so that many tasks end theirs together.
const PAUSE_STEP_MICROS: i64 = 250_000;

/// The failed tries of a task that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// How many count against its retries.
    pub(crate) count: u32,
    /// Machines on which its worker died.
    pub(crate) crashed_on: Vec<PeerId>,
    /// Failures of attempts below this one are counted already.
    pub(crate) next_attempt: u32,
    /// Results and failures of attempts below this one do not count, since the task was run again on demand.
    pub(crate) void_before: u32,
    /// How the task ended where its failures count, and that can be compared.
    pub(crate) endings: Vec<Ending>,
}

impl Failures {
    /// Whether the task may be tried once more.
    fn leave_a_try(&self, retries_max: u32) -> bool {
        self.count <= retries_max && self.crashed_on.len() < CRASHED_ON_MAX
    }

    /// Whether a machine that lists the task with this attempt in a `Holding` may do so only because the task failed there
    /// and is to be tried again: that is no new placement. In a replicated bag only machines on which it crashed may, or
    /// those whose attempt is from before the task was run again on demand.
    pub(super) fn is_stale(&self, executor: PeerId, attempt: u32, is_replicated: bool) -> bool {
        let may_have_ended_there = !is_replicated || self.crashed_on.contains(&executor);
        attempt < self.void_before || attempt < self.next_attempt && may_have_ended_there
    }

    fn record(&self, bag: BagId, index: u64) -> Record {
        let Self { count, crashed_on, next_attempt, void_before, endings } = self.clone();
        Record::Failures { bag, index, count, crashed_on, next_attempt, void_before, endings }
    }
}

/// The failed tries of a bag's tasks that have not ended.
#[derive(Debug)]
pub(super) struct Tries {
    /// Failed tries after which a task is still tried again.
    retries_max: u32,
    by_task: BTreeMap<u64, Failures>,
}

impl Tries {
    pub(super) fn new(retries_max: u32) -> Self {
        Self { retries_max, by_task: BTreeMap::new() }
    }

    pub(super) fn retries_max(&self) -> u32 {
        self.retries_max
    }

    #[cfg(test)]
    pub(super) fn set_retries_max(&mut self, retries_max: u32) {
        self.retries_max = retries_max;
    }

    pub(super) fn restore(&mut self, index: u64, failures: Failures) {
        self.by_task.insert(index, failures);
    }

    /// Another keeper has counted these failures, which begin with the same ones: each counts once.
    pub(super) fn unite(&mut self, index: u64, theirs: Failures) {
        let ours = self.by_task.entry(index).or_default();
        if theirs.void_before > ours.void_before {
            *ours = theirs;
        } else if theirs.void_before == ours.void_before {
            ours.count = ours.count.max(theirs.count);
            ours.next_attempt = ours.next_attempt.max(theirs.next_attempt);
            let new: Vec<PeerId> =
                theirs.crashed_on.into_iter().filter(|peer| !ours.crashed_on.contains(peer)).collect();
            ours.crashed_on.extend(new);
            let new: Vec<Ending> = theirs.endings.into_iter().filter(|ending| !ours.endings.contains(ending)).collect();
            ours.endings.extend(new);
            ours.endings.truncate(ENDINGS_MAX);
        }
    }

    /// Whether this task has failed tries, or was run again on demand.
    pub(super) fn is_known(&self, index: u64) -> bool {
        self.by_task.contains_key(&index)
    }

    /// The failed tries of these tasks.
    pub(super) fn among<'a>(&'a self, tasks: &'a IntervalSet) -> impl Iterator<Item = (u64, &'a Failures)> {
        tasks.ranges().flat_map(|range| self.by_task.range(range)).map(|(&index, failures)| (index, failures))
    }

    /// The first attempt whose failure was not counted yet.
    pub(super) fn next_attempt(&self, index: u64) -> u32 {
        self.by_task.get(&index).map_or(0, |failures| failures.next_attempt)
    }

    /// Whether this result is from before the task was run again on demand.
    pub(super) fn is_void(&self, result: &TaskResult) -> bool {
        self.by_task.get(&result.index).is_some_and(|failures| result.attempt < failures.void_before)
    }

    /// Failures of attempts before this one do not count.
    pub(super) fn not_before(&mut self, index: u64, attempt: u32) {
        self.by_task.entry(index).or_default().next_attempt = attempt;
    }

    /// Whether the task may be tried again after one more failure.
    pub(super) fn leaves_a_try(&self, index: u64) -> bool {
        let mut failures = self.by_task.get(&index).cloned().unwrap_or_default();
        failures.count += 1;
        failures.leave_a_try(self.retries_max)
    }

    /// Counts one failed try of a task that gets another, with attempt `next_attempt` or a later one.
    pub(super) fn count_retried(&mut self, index: u64, next_attempt: u32) {
        let failures = self.by_task.entry(index).or_default();
        failures.count += 1;
        failures.next_attempt = next_attempt;
    }

    /// Counts one failed try; returns whether the task gets another, with attempt `next_attempt` or a later one. `None`
    /// where its last try is counted already: its executor repeats that result until it is journalled.
    pub(super) fn count(&mut self, result: &TaskResult, executor: PeerId, next_attempt: u32) -> Option<bool> {
        let failures = self.by_task.entry(result.index).or_default();
        if !failures.leave_a_try(self.retries_max) {
            return None;
        }
        if result.crashed && !failures.crashed_on.contains(&executor) {
            failures.crashed_on.push(executor);
        } else {
            failures.count += 1;
            let ending = result.exit_code.zip(result.fingerprint).filter(|_| failures.endings.len() < ENDINGS_MAX);
            if let Some((exit_code, fingerprint)) = ending {
                failures.endings.push(Ending { machine: executor, exit_code, fingerprint });
            }
        }
        let retries = failures.leave_a_try(self.retries_max);
        if retries {
            failures.next_attempt = next_attempt;
        }
        Some(retries)
    }

    /// Whether this task has failed on another machine with the same exit code, and printed and left the same.
    pub(super) fn has_failed_alike_elsewhere(&self, result: &TaskResult, executor: PeerId) -> bool {
        let Some(failures) = self.by_task.get(&result.index) else { return false };
        failures.endings.iter().any(|ending| {
            ending.machine != executor
                && (Some(ending.exit_code), Some(ending.fingerprint)) == (result.exit_code, result.fingerprint)
        })
    }

    /// A task is run again on demand: attempts below this one do not count.
    pub(super) fn begin_anew(&mut self, index: u64, void_before: u32) {
        self.by_task.insert(index, Failures { void_before, ..Failures::default() });
    }

    /// A task has ended.
    pub(super) fn forget(&mut self, index: u64) {
        self.by_task.remove(&index);
    }

    /// The bag is closed. Returns the changes of the store.
    pub(super) fn forget_all(&mut self, bag: BagId) -> Vec<Change> {
        let gone = std::mem::take(&mut self.by_task);
        gone.into_keys().map(|index| Change::Delete(RecordKey::Failures(bag, index))).collect()
    }

    /// The change that journals a task's failures; to be durable before the executor forgets the last one.
    pub(super) fn change(&self, index: u64, bag: BagId) -> Change {
        match self.by_task.get(&index) {
            None => Change::Delete(RecordKey::Failures(bag, index)),
            Some(failures) => Change::Put(failures.record(bag, index)),
        }
    }

    pub(super) fn records(&self, bag: BagId) -> impl Iterator<Item = Record> + '_ {
        self.by_task.iter().map(move |(&index, failures)| failures.record(bag, index))
    }

    /// How long a failed task pauses now.
    fn pause(&self, index: u64) -> Duration {
        let tries = self.by_task.get(&index).map_or(0, |failures| failures.count + failures.crashed_on.len() as u32);
        doubled(PAUSE_FIRST, tries.saturating_sub(1), PAUSE_MAX)
    }

    /// The failed tries by task.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Failures)> {
        self.by_task.iter().map(|(&index, failures)| (index, failures))
    }
}

pub(super) fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(most)
}

impl Ledger {
    pub(crate) fn restore_failures(&mut self, index: u64, failures: Failures) {
        if index < self.tasks() && !self.ended.contains(index) {
            self.tries.restore(index, failures);
        }
    }

    /// Whether the executor holds the task and ends this attempt for the first time: no other failure or checkpoint counts.
    pub(super) fn is_of_current_attempt(&self, executor: &Contact, result: &TaskResult) -> bool {
        // With copies, attempts are counted for each machine: a failure on one says nothing of the others.
        let counts_from = if self.votes.is_quorum() {
            self.votes.counts_from(executor.peer, result.index)
        } else {
            self.tries.next_attempt(result.index)
        };
        self.placed.holds(executor.peer, result.index) && result.attempt >= counts_from
    }

    /// Counts one failed try for the task and its machine. Returns whether the task is tried again.
    pub(super) fn count_failed_try(&mut self, result: &TaskResult, executor: PeerId) -> bool {
        let Some(retries) = self.tries.count(result, executor, self.attempt + 1) else { return false };
        self.avoided.note_end(executor, false);
        retries
    }

    /// The records of failed tries and reruns of tasks that have not ended.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Record> + '_ {
        self.tries.records(self.bag.id)
    }

    /// When a failed task is issued again.
    pub(super) fn next_try(&self, index: u64, io: &Io) -> Time {
        pause_end(io.now + self.tries.pause(index))
    }

    /// Has these tasks, which have no copy, issued again at `until`, with the next attempt.
    pub(super) fn pause(&mut self, ranges: &IntervalSet, until: Time, io: &mut Io) {
        self.attempt += 1;
        self.waiting.pause(ranges, until);
        self.ends_at(until);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Takes all tasks from a machine if it is to be avoided.
    pub(super) fn avoid_if_due(&mut self, executor: &Contact, io: &mut Io, config: &Config) {
        let Some(rest) = self.avoided.avoid_if_due(executor.peer, self.ended.done(), io.now) else { return };
        let (bag, term) = (self.bag.id, self.term(io, config));
        let Some(placement) = self.placed.remove(executor.peer) else { return };
        let former = self.note_former(executor.peer, &placement.ranges);
        io.persist(vec![Change::Delete(RecordKey::Placed(bag, executor.peer)), former], Vec::new());
        let drop = placement.ranges.clone();
        let submitter = Some((&io.me).into());
        let lease = Message::Lease(Lease { submitter, term, drop, rest, ..Lease::of(bag) });
        io.send(executor.clone(), lease);
        let again = self.without_copy(placement.ranges);
        if !again.is_empty() {
            self.counts.reissued += again.len();
            // By then routers know that it offers nothing.
            self.pause(&again, pause_end(io.now + PAUSE_FIRST), io);
        }
    }

    /// Has the ended ones of these tasks run again as if for the first time: earlier results of them do not count. Returns
    /// how many. Reopens a completed bag; a cancelled one stays closed.
    pub(crate) fn rerun(&mut self, tasks: &IntervalSet, io: &mut Io) -> u64 {
        if matches!(self.closed, Some((Closing::Cancelled, _))) {
            return 0;
        }
        let again = self.ended.reopen(&tasks.difference(&self.gone()));
        if again.is_empty() {
            return 0;
        }
        self.closed = None;
        self.predicting.begin_again(again.len());
        self.avoided.forget_all();
        self.attempt += 1;
        self.note_rerun();
        self.waiting.add(&again);
        self.forget_undrained(&again);
        self.go_on_with_rounds(io);
        let bag: BagId = self.bag.id;
        // Recorded placements may still list these tasks, whose results are about to be deleted.
        self.placed.iter().for_each(|placement| io.persist(vec![placement.change(bag)], Vec::new()));
        let mut changes = vec![Change::Put(self.record(io))];
        for index in again.indices() {
            // Durable, since late messages may arrive after a restart, too.
            self.tries.begin_anew(index, self.attempt);
            changes.extend([Change::Delete(RecordKey::Done(bag, index)), self.tries.change(index, bag)]);
        }
        io.persist(changes, Vec::new());
        again.len()
    }
}

pub(super) fn pause_end(time: Time) -> Time {
    let steps = time.as_micros().saturating_add(PAUSE_STEP_MICROS - 1).div_euclid(PAUSE_STEP_MICROS);
    Time::from_micros(steps * PAUSE_STEP_MICROS)
}
