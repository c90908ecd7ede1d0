//! Failed tries: who gets another, when, and which machine is left alone.
//!
//! A task that fails is tried again, up to `retries_max` times, each time after twice the pause. One whose
//! worker died under it may have been unlucky in its machine: that counts as a failure only where it happens again on the
//! same machine, and after [`CRASHED_ON_MAX`] machines the task is to blame. What has been counted is durable before the
//! executor may forget the result, so that a restart gives nobody more tries.
//!
//! A machine on which tasks of the bag fail in a row, while elsewhere most of them succeed, is avoided for a while (`avoided`): it
//! keeps none, and is told to offer nothing. It believes that only where all that it ran lately failed, whoever's it was.
//! Where there is a quorum a failed vote counts here once others have shown that the task succeeds; it is one of the task's tries where
//! its machine tries the task again (`quorum/stuck`).
//!
//! A task that was over and is run again on demand has all its tries again, and no word of an earlier attempt counts.
//!
//! Left out: tries are not sent to another machine than the last on purpose (a request goes where there is room), the
//! pauses end with a restart.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
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

    /// Whether a machine that speaks of this attempt may still list the task because it failed there, and was to be tried
    /// again meanwhile: that is no new placement. Where there are copies only the machine that it crashed on does, but
    /// for what was run again since, which nobody has from before.
    pub(super) fn is_stale(&self, executor: PeerId, attempt: u32, is_replicated: bool) -> bool {
        let may_have_ended_there = !is_replicated || self.crashed_on.contains(&executor);
        attempt < self.void_before || attempt < self.next_attempt && may_have_ended_there
    }

    fn record(&self, bag: BagId, index: u64) -> Record {
        let Self { count, crashed_on, next_attempt, void_before } = self.clone();
        Record::Failures { bag, index, count, crashed_on, next_attempt, void_before }
    }
}

/// Failed tries of the tasks of a bag that are not over.
#[derive(Debug)]
pub(super) struct Tries {
    /// Further tries that a task gets.
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

    /// Whether anything failed of this task.
    pub(super) fn is_known(&self, index: u64) -> bool {
        self.by_task.contains_key(&index)
    }

    /// What failed of these tasks.
    pub(super) fn among<'a>(&'a self, tasks: &'a IntervalSet) -> impl Iterator<Item = (u64, &'a Failures)> {
        tasks.ranges().flat_map(|range| self.by_task.range(range)).map(|(&index, failures)| (index, failures))
    }

    /// From which attempt on a failure of this task was not counted yet.
    pub(super) fn next_attempt(&self, index: u64) -> u32 {
        self.by_task.get(&index).map_or(0, |failures| failures.next_attempt)
    }

    /// Whether this is how the task ended before it was run again on demand.
    pub(super) fn is_void(&self, result: &TaskResult) -> bool {
        self.by_task.get(&result.index).is_some_and(|failures| result.attempt < failures.void_before)
    }

    /// What an executor says of an attempt before this one is of no account any more.
    pub(super) fn not_before(&mut self, index: u64, attempt: u32) {
        self.by_task.entry(index).or_default().next_attempt = attempt;
    }

    /// Whether the task may be tried again after one more failure.
    pub(super) fn leaves_a_try(&self, index: u64) -> bool {
        let mut failures = self.by_task.get(&index).cloned().unwrap_or_default();
        failures.count += 1;
        failures.leave_a_try(self.retries_max)
    }

    /// Counts one failed try of a task that gets another, as that attempt or a later one.
    pub(super) fn count_retried(&mut self, index: u64, next_attempt: u32) {
        let failures = self.by_task.entry(index).or_default();
        failures.count += 1;
        failures.next_attempt = next_attempt;
    }

    /// Counts one failed try: whether the task gets another, as that attempt or a later one. Nothing where it had its last: that
    /// is said again until it is journalled, and counts once.
    pub(super) fn count(&mut self, result: &TaskResult, executor: PeerId, next_attempt: u32) -> Option<bool> {
        let failures = self.by_task.entry(result.index).or_default();
        if !failures.leave_a_try(self.retries_max) {
            return None;
        }
        if result.crashed && !failures.crashed_on.contains(&executor) {
            failures.crashed_on.push(executor);
        } else {
            failures.count += 1;
        }
        let retries = failures.leave_a_try(self.retries_max);
        if retries {
            failures.next_attempt = next_attempt;
        }
        Some(retries)
    }

    /// A task is run again on demand: no attempt before this one counts.
    pub(super) fn begin_anew(&mut self, index: u64, void_before: u32) {
        self.by_task.insert(index, Failures { void_before, ..Failures::default() });
    }

    /// A task is over.
    pub(super) fn forget(&mut self, index: u64) {
        self.by_task.remove(&index);
    }

    /// The bag is over. Returns what is to be stored of that.
    pub(super) fn forget_all(&mut self, bag: BagId) -> Vec<Change> {
        let gone = std::mem::take(&mut self.by_task);
        gone.into_keys().map(|index| Change::Delete(RecordKey::Failures(bag, index))).collect()
    }

    /// What is to be durable of a task's failures before its executor forgets the last one.
    pub(super) fn change(&self, index: u64, bag: BagId) -> Change {
        match self.by_task.get(&index) {
            None => Change::Delete(RecordKey::Failures(bag, index)),
            Some(failures) => Change::Put(failures.record(bag, index)),
        }
    }

    pub(super) fn records(&self, bag: BagId) -> impl Iterator<Item = Record> + '_ {
        self.by_task.iter().map(move |(&index, failures)| failures.record(bag, index))
    }

    /// How long a task that has failed pauses now.
    fn pause(&self, index: u64) -> Duration {
        let tries = self.by_task.get(&index).map_or(0, |failures| failures.count + failures.crashed_on.len() as u32);
        doubled(PAUSE_FIRST, tries.saturating_sub(1), PAUSE_MAX)
    }

    /// Tasks of which something failed.
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
        if index < self.bag.tasks && !self.ended.contains(index) {
            self.tries.restore(index, failures);
        }
    }

    /// Whether a failure was not counted yet: only the executor that has the task can fail it, and each attempt once.
    pub(super) fn is_news(&self, executor: &Contact, result: &TaskResult) -> bool {
        // What failed elsewhere says nothing of a copy; what failed here before it was tried again does.
        let counts_from = if self.votes.is_quorum() {
            self.votes.counts_from(executor.peer, result.index)
        } else {
            self.tries.next_attempt(result.index)
        };
        self.placed.holds(executor.peer, result.index) && result.attempt >= counts_from
    }

    /// Counts one failed try, and where it was; whether the task gets another.
    pub(super) fn counts_and_retries(&mut self, result: &TaskResult, executor: PeerId) -> bool {
        let Some(retries) = self.tries.count(result, executor, self.attempt + 1) else { return false };
        self.avoided.note_end(executor, false);
        retries
    }

    /// Failed tries, and what was run again, of tasks that are not over.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Record> + '_ {
        self.tries.records(self.bag.id)
    }

    /// When a task that has failed is issued again.
    pub(super) fn next_try(&self, index: u64, io: &Io) -> Time {
        pause_end(io.now + self.tries.pause(index))
    }

    /// These tasks, of which there is no copy, are issued again then.
    pub(super) fn pause(&mut self, ranges: &IntervalSet, until: Time, io: &mut Io) {
        self.attempt += 1;
        self.waiting.pause(ranges, until);
        self.ends_at(until);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Takes everything from a machine on which all fails that succeeds elsewhere.
    pub(super) fn avoid_if_due(&mut self, executor: &Contact, io: &mut Io, config: &Config) {
        let Some(rest) = self.avoided.avoid_if_due(executor.peer, self.ended.done(), io.now) else { return };
        let (bag, term) = (self.bag.id, self.term(io, config));
        let Some(placement) = self.placed.remove(executor.peer) else { return };
        let former = self.note_former(executor.peer, &placement.ranges);
        io.persist(vec![Change::Delete(RecordKey::Placed(bag, executor.peer)), former], Vec::new());
        let drop = placement.ranges.clone();
        let submitter = Some((&io.me).into());
        io.send(executor.clone(), Message::Lease { bag, version: 0, submitter, term, drop, rest, key: None });
        let again = self.without_copy(placement.ranges);
        if !again.is_empty() {
            self.counts.reissued += again.len();
            // By then the others know that it offers nothing.
            self.pause(&again, pause_end(io.now + PAUSE_FIRST), io);
        }
    }

    /// Runs those of these tasks again that are over, as if for the first time: nothing that any machine has said of them so
    /// far counts any more. How many. Opens a bag that was over; one that was cancelled stays so.
    pub(crate) fn rerun(&mut self, tasks: &IntervalSet, io: &mut Io) -> u64 {
        if matches!(self.closed, Some((Closing::Cancelled, _))) {
            return 0;
        }
        let again = self.ended.reopen(tasks);
        if again.is_empty() {
            return 0;
        }
        self.closed = None;
        self.avoided.forget_all();
        self.attempt += 1;
        self.waiting.add(&again);
        let bag: BagId = self.bag.id;
        // What the journal says of placements may be older than the results that it is about to lack.
        self.placed.iter().for_each(|placement| io.persist(vec![placement.change(bag)], Vec::new()));
        let mut changes = vec![Change::Put(self.record(io))];
        for index in again.indices() {
            // Messages are late and come twice, also while this machine restarts.
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
