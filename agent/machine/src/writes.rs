//! Writes on their way to the disk, in order, and those that failed.
//!
//! The driver both orders writes and tells of their end, so it never waits for the disk: what does not go there yet waits here, and
//! meanwhile nothing new is taken in but what the user says. Writes that wait go together: of a record that each of them changes only
//! the last is written. Nothing overtakes a write that failed; it is tried again, less what a later one has written since.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::{Change, Closing, Record, RecordKey, Ticket};

use crate::effect::{Effect, WriteId};
use crate::event::WriteEnd;

/// How long to wait before a failed write is tried again. Our choice.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Writes that may be on their way before nothing new is taken in. Our choice: enough for a group commit that costs its
/// writes little.
const ON_THE_WAY_MAX: usize = 2048;
/// Likewise before workers wait with the ends of their tasks: the rest is for whoever else wants something written.
const OF_TASKS_MAX: usize = 1536;
/// Commits at the disk: one that is written, and one that follows at once. What comes meanwhile goes together.
const AT_THE_DISK_MAX: usize = 2;
/// Commits that a driver takes at most.
const DRIVER_MAX: usize = 1024;
/// Writes that go together. Our choice: with small outputs they take a few MiB.
const TOGETHER_MAX: usize = 1024;
/// A record with fewer intervals or checkpoints than this fits the store.
const SMALL_PARTS: usize = 1000;
/// Most bytes of an encoded record that a driver's store takes.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// Changes that become durable together. Where several change a record, the last counts.
#[derive(Debug)]
struct Commit {
    tickets: Vec<Ticket>,
    changes: BTreeMap<RecordKey, Arc<Change>>,
    is_patient: bool,
    /// It may not fit the store, and must not spoil others.
    is_alone: bool,
    /// It needs more room than the store's reserve is for.
    takes_on: bool,
}

impl Commit {
    fn new(ticket: Ticket, changes: &[Arc<Change>]) -> Self {
        Self {
            tickets: vec![ticket],
            is_patient: changes.iter().any(|change| is_of_an_end(change)),
            is_alone: changes.iter().any(|change| may_not_fit(change)),
            takes_on: changes.iter().any(|change| takes_on(change)),
            changes: changes.iter().map(|change| (key(change), Arc::clone(change))).collect(),
        }
    }

    /// Whether this one follows so closely that both can go together. On a full disk what takes on more must not hold up what does
    /// not.
    fn takes(&self, next: &Self, is_full: bool) -> bool {
        !self.is_alone
            && !next.is_alone
            && (self.takes_on == next.takes_on || !is_full)
            && self.tickets.len() + next.tickets.len() <= TOGETHER_MAX
    }

    fn join(&mut self, next: Self) {
        self.tickets.extend(next.tickets);
        self.changes.extend(next.changes);
        self.is_patient &= next.is_patient;
        self.takes_on |= next.takes_on;
    }
}

fn key(change: &Change) -> RecordKey {
    match change {
        Change::Put(record) => record.key(),
        Change::Delete(key) => *key,
    }
}

/// Whether a task has ended, or what is held here has changed: that happens often, and nobody waits for one of them.
fn is_of_an_end(change: &Change) -> bool {
    matches!(
        change,
        Change::Put(Record::Outbox { .. } | Record::Done { .. } | Record::Held { .. })
            | Change::Delete(RecordKey::Outbox(..) | RecordKey::Held(_))
    )
}

/// Whether this is new work: bags that are submitted here and what comes of their tasks, to the last, with which a bag is complete.
/// What is removed or cancelled, what machines have agreed on, and results that are to leave are not: they free room here or
/// elsewhere, or end something.
fn takes_on(change: &Change) -> bool {
    let Change::Put(record) = change else { return false };
    match record {
        // That it is complete must not be written without the results that say so.
        Record::Bag { closed, .. } => !matches!(closed, Some((Closing::Cancelled | Closing::Removed, _))),
        Record::Done { .. } | Record::Failures { .. } | Record::Checkpoint { .. } | Record::Kept { .. } => true,
        Record::Incarnation(_)
        | Record::Held { .. }
        | Record::Outbox { .. }
        | Record::Reputation { .. }
        | Record::Placed { .. }
        | Record::Former { .. }
        | Record::Stewards { .. }
        | Record::Obeyed { .. } => false,
    }
}

/// Whether a record could be larger than the store takes; all that could are bounded so that they should not be.
fn may_not_fit(change: &Change) -> bool {
    let Change::Put(record) = change else { return false };
    let parts = match record {
        Record::Held { attempts, ranges, checkpoints, .. } => {
            let of_attempts = attempts.iter().flat_map(|attempts| attempts.values());
            of_attempts.map(|ranges| ranges.intervals()).sum::<usize>() + ranges.intervals() + checkpoints.len()
        }
        Record::Placed { ranges, .. } | Record::Former { ranges, .. } => ranges.intervals(),
        Record::Kept { done, failed, drained, .. } => done.intervals() + failed.intervals() + drained.intervals(),
        Record::Bag { supply: Some(supply), .. } => supply.drained.intervals(),
        _ => 0,
    };
    parts >= SMALL_PARTS && record.encode().len() > RECORD_BYTES_MAX
}

/// What follows from the end of a commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Writes that are durable.
    pub(crate) durable: Vec<Ticket>,
    /// What could not be written, less what a later write replaces: whoever waits for that one hears of its end. It will be tried
    /// again if it can ever succeed.
    pub(crate) unwritten: Vec<RecordKey>,
}

/// The writes of one machine.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    waiting: VecDeque<Commit>,
    /// At the disk, in order.
    under_way: VecDeque<(WriteId, Commit)>,
    next_id: u64,
    /// Failed; tried again when everything under way has ended.
    failed: VecDeque<Commit>,
    /// When the failed ones are tried again.
    retry_at: Option<Time>,
    /// Of the last writes that needed room, one found none.
    is_full: bool,
    /// Writes that have not ended.
    on_the_way: usize,
}

impl Writes {
    /// Queues a write, and hands on what the disk takes.
    pub(crate) fn push(&mut self, ticket: Ticket, changes: &[Arc<Change>], effects: &mut Vec<Effect>) {
        let commit = Commit::new(ticket, changes);
        self.on_the_way += 1;
        match self.waiting.back_mut() {
            Some(last) if last.takes(&commit, self.is_full) => last.join(commit),
            _ => self.waiting.push_back(commit),
        }
        self.flow(effects);
    }

    /// Whether more may be taken in.
    pub(crate) fn has_room(&self) -> bool {
        self.on_the_way < ON_THE_WAY_MAX
    }

    /// Whether more ends of tasks may be taken in.
    pub(crate) fn has_room_for_tasks(&self) -> bool {
        self.on_the_way < OF_TASKS_MAX
    }

    /// Whether the disk has no room for new work, so that nothing of others is taken in that would have to be written down.
    pub(crate) fn is_full(&self) -> bool {
        // A failed write is tried every second: its end tells when there is room.
        let under_way = self.under_way.iter().map(|(_, commit)| commit);
        self.is_full && self.failed.iter().chain(&self.waiting).chain(under_way).any(|commit| commit.takes_on)
    }

    /// Whether everything is written.
    pub(crate) fn is_empty(&self) -> bool {
        self.on_the_way == 0
    }

    /// When to call [`Writes::wake`]; `None` while nothing failed, or what went to the disk after it is under way.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.retry_at.filter(|_| self.under_way.is_empty())
    }

    /// Tries the failed ones again when it is time, and with them all that waits behind them: whoever waits for a write hears that it
    /// fails, and does not wait for as long as those before it do.
    pub(crate) fn wake(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.deadline().is_none_or(|retry_at| now < retry_at) {
            return;
        }
        self.retry_at = None;
        while let Some(commit) = self.failed.pop_back() {
            self.waiting.push_front(commit);
        }
        self.hand_on(DRIVER_MAX, effects);
    }

    /// Hands on everything: the disk is about to be closed, and writes what it has.
    pub(crate) fn close(&mut self, effects: &mut Vec<Effect>) {
        self.hand_on(DRIVER_MAX, effects);
    }

    /// Hands on as many commits as the disk takes. None overtakes a write that failed.
    pub(crate) fn flow(&mut self, effects: &mut Vec<Effect>) {
        self.hand_on(AT_THE_DISK_MAX, effects);
    }

    fn hand_on(&mut self, at_the_disk_max: usize, effects: &mut Vec<Effect>) {
        while self.failed.is_empty() && self.under_way.len() < at_the_disk_max {
            let Some(commit) = self.waiting.pop_front() else { return };
            let write = WriteId(self.next_id);
            self.next_id += 1;
            effects.push(Effect::Write {
                write,
                changes: commit.changes.values().map(Arc::clone).collect(),
                is_patient: commit.is_patient,
                from_reserve: !commit.takes_on,
            });
            self.under_way.push_back((write, commit));
        }
    }

    /// Drops the changes of this record from failed writes: they are not tried again.
    pub(crate) fn give_up(&mut self, key: RecordKey) {
        for commit in &mut self.failed {
            commit.changes.remove(&key);
        }
        let is_left = |commit: &Commit| !commit.changes.is_empty();
        self.on_the_way -=
            self.failed.iter().filter(|commit| !is_left(commit)).map(|commit| commit.tickets.len()).sum::<usize>();
        self.failed.retain(is_left);
    }

    /// A commit has ended, well or not.
    pub(crate) fn ended(&mut self, write: WriteId, end: WriteEnd, now: Time) -> Ended {
        let position = self.under_way.iter().position(|(other, _)| *other == write);
        let commit = position.and_then(|position| self.under_way.remove(position));
        let Some((_, mut commit)) = commit else { return Ended::default() };
        self.is_full = match end {
            WriteEnd::Durable => self.is_full && !commit.takes_on,
            WriteEnd::NoRoom => true,
            WriteEnd::Unfit | WriteEnd::Failed => self.is_full,
        };
        match end {
            WriteEnd::Durable => {
                self.on_the_way -= commit.tickets.len();
                Ended { durable: commit.tickets, unwritten: Vec::new() }
            }
            WriteEnd::Unfit => {
                // It never will fit: what depends on it never happens.
                self.on_the_way -= commit.tickets.len();
                Ended { durable: Vec::new(), unwritten: commit.changes.into_keys().collect() }
            }
            WriteEnd::NoRoom | WriteEnd::Failed => {
                let under_way = &self.under_way;
                commit.changes.retain(|key, _| !under_way.iter().any(|(_, later)| later.changes.contains_key(key)));
                let waits = |key: &&RecordKey| self.waiting.iter().any(|later| later.changes.contains_key(*key));
                let unwritten = commit.changes.keys().filter(|key| !waits(key)).copied().collect();
                self.failed.push_back(commit);
                self.retry_at = Some(now + RETRY_PAUSE);
                Ended { durable: Vec::new(), unwritten }
            }
        }
    }
}

#[cfg(test)]
mod tests;
