//! Writes on their way to the store, in order, and those that failed.
//!
//! The driver both queues writes and hears of their end, so it never waits for room: what does not fit waits here,
//! and meanwhile nothing new is taken in but what the user says. Writes that wait go to the store as one: of a record that
//! each of them changes only the last is written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_scheduler::{Closing, Record, Ticket};
use tokio::time::Instant;

use idlewood_store::{Change, CommitError, CommitResult, QueueError, Store, VALUE_BYTES_MAX};

/// How long to wait before a failed write is tried again.
const COMMIT_RETRY: Duration = Duration::from_secs(1);
/// Writes that may be on their way before nothing new is taken in. Our choice: enough for a group commit that costs its
/// writes little.
const ON_THE_WAY_MAX: usize = 2048;
/// Likewise before workers wait with the ends of their tasks: the rest is for whoever else wants something written.
const OF_TASKS_MAX: usize = 1536;
/// Commits at the store: one that is written, and one that follows at once. What comes meanwhile goes together.
const AT_THE_STORE_MAX: usize = 2;
/// Writes that go together. Our choice: with small outputs they take a few MiB.
const TOGETHER_MAX: usize = 1024;
/// A record with fewer intervals or checkpoints than this fits the store.
const SMALL_PARTS: usize = 1000;

/// Writes that become durable together. Where several write a record, the last counts.
#[derive(Debug)]
struct Commit {
    tickets: Vec<u64>,
    /// What each key is to be, encoded when it goes to the store: some records change with every task.
    changes: BTreeMap<Vec<u8>, Option<Record>>,
    is_patient: bool,
    /// It may not fit the store, and must not spoil others.
    is_alone: bool,
    /// It needs more room than the store's reserve is for.
    takes_on: bool,
}

impl Commit {
    fn new(ticket: Ticket, changes: Vec<idlewood_scheduler::Change>, is_patient: bool) -> Self {
        let is_alone = changes.iter().any(may_not_fit);
        let takes_on = changes.iter().any(takes_on);
        let changes = changes.into_iter().map(|change| match change {
            idlewood_scheduler::Change::Put(record) => (record.key().to_bytes(), Some(record)),
            idlewood_scheduler::Change::Delete(key) => (key.to_bytes(), None),
        });
        Self { tickets: vec![ticket.0], changes: changes.collect(), is_patient, is_alone, takes_on }
    }

    /// Whether this one follows so closely that both can go together. On a full disk what takes on more must not hold up what does
    /// not.
    fn takes(&self, next: &Self, is_full: bool) -> bool {
        !self.is_alone
            && !next.is_alone
            && (self.takes_on == next.takes_on || !is_full)
            && self.tickets.len() + next.tickets.len() <= TOGETHER_MAX
    }

    fn join(&mut self, mut next: Self) {
        self.tickets.append(&mut next.tickets);
        self.changes.append(&mut next.changes);
        self.is_patient &= next.is_patient;
        self.takes_on |= next.takes_on;
    }

    fn encoded(&self) -> Arc<[Change]> {
        let encode = |(key, record): (&Vec<u8>, &Option<Record>)| Change {
            key: key.clone(),
            value: record.as_ref().map(Record::encode),
        };
        self.changes.iter().map(encode).collect()
    }
}

/// Whether this is new work: bags that are submitted here and what comes of their tasks, to the last, with which a bag is complete.
/// What is removed or cancelled, what machines have agreed on, and results that are to leave are not: they free room here or
/// elsewhere, or end something.
fn takes_on(change: &idlewood_scheduler::Change) -> bool {
    let idlewood_scheduler::Change::Put(record) = change else { return false };
    match record {
        // That it is complete must not be written without the results that say so.
        Record::Bag { closed, .. } => !matches!(closed, Some((Closing::Cancelled | Closing::Removed, _))),
        Record::Done { .. } | Record::Failures { .. } | Record::Checkpoint { .. } => true,
        Record::Incarnation(_)
        | Record::Held { .. }
        | Record::Outbox { .. }
        | Record::Reputation { .. }
        | Record::Placed { .. }
        | Record::Former { .. } => false,
    }
}

/// Whether a record could be larger than the store takes; all that could are bounded so that they should not be.
fn may_not_fit(change: &idlewood_scheduler::Change) -> bool {
    let idlewood_scheduler::Change::Put(record) = change else { return false };
    let parts = match record {
        Record::Held { attempts, ranges, checkpoints, .. } => {
            let of_attempts = attempts.iter().flat_map(|attempts| attempts.values());
            of_attempts.map(|ranges| ranges.intervals()).sum::<usize>() + ranges.intervals() + checkpoints.len()
        }
        Record::Placed { ranges, .. } | Record::Former { ranges, .. } => ranges.intervals(),
        _ => 0,
    };
    parts >= SMALL_PARTS && record.encode().len() > VALUE_BYTES_MAX
}

/// How a commit ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Writes that are durable.
    pub(super) durable: Vec<Ticket>,
    /// Keys of what could not be written. It will be tried again if it can ever succeed, less what a later write has written
    /// since.
    pub(super) unwritten: Vec<Vec<u8>>,
}

/// The writes of one agent.
#[derive(Debug, Default)]
pub(super) struct Commits {
    waiting: VecDeque<Commit>,
    /// At the store, in order, under numbers of ours.
    under_way: VecDeque<(u64, Commit)>,
    number: u64,
    /// Failed; tried again when everything under way has ended.
    failed: VecDeque<Commit>,
    /// When the failed ones are tried again.
    retry_at: Option<Instant>,
    /// The last write to end has failed: that is told when it begins, and not again each second for each that waits.
    is_failing: bool,
    /// Of the last writes that needed room, one found none.
    is_full: bool,
    /// The store takes nothing any more.
    closed: bool,
    /// Writes that have not ended.
    on_the_way: usize,
}

impl Commits {
    /// Queues a write; one that is patient may wait some milliseconds for others.
    pub(super) fn push(&mut self, ticket: Ticket, changes: Vec<idlewood_scheduler::Change>, is_patient: bool) {
        let commit = Commit::new(ticket, changes, is_patient);
        self.on_the_way += 1;
        match self.waiting.back_mut() {
            Some(last) if last.takes(&commit, self.is_full) => last.join(commit),
            _ => self.waiting.push_back(commit),
        }
    }

    /// Whether more may be taken in.
    pub(super) fn has_room(&self) -> bool {
        self.on_the_way < ON_THE_WAY_MAX
    }

    /// Whether more ends of tasks may be taken in.
    pub(super) fn has_room_for_tasks(&self) -> bool {
        self.on_the_way < OF_TASKS_MAX
    }

    /// Whether the disk has no room for new work, so that nothing of others is taken in that would have to be written down.
    pub(super) fn is_full(&self) -> bool {
        // One of them is tried every second, and tells when there is room.
        let under_way = self.under_way.iter().map(|(_, commit)| commit);
        self.is_full && self.failed.iter().chain(&self.waiting).chain(under_way).any(|commit| commit.takes_on)
    }

    /// Whether the store's writer has ended: nothing can be kept until the agent is restarted.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// When to call [`Commits::retry`]; `None` while nothing failed, or what was queued after it is under way.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.filter(|_| self.under_way.is_empty())
    }

    /// Hands on to the store what it takes. Nothing overtakes a write that failed.
    pub(super) fn flow(&mut self, store: &Store) {
        self.hand_on(store, AT_THE_STORE_MAX);
    }

    fn hand_on(&mut self, store: &Store, at_the_store_max: usize) {
        while self.failed.is_empty() && self.under_way.len() < at_the_store_max {
            let Some(commit) = self.waiting.pop_front() else { return };
            let changes = commit.encoded();
            let queued = match (commit.takes_on, commit.is_patient) {
                (false, is_patient) => store.try_commit_from_reserve(changes, self.number, is_patient),
                (true, true) => store.try_commit_patiently(changes, self.number),
                (true, false) => store.try_commit(changes, self.number),
            };
            match queued {
                Ok(()) => {
                    self.under_way.push_back((self.number, commit));
                    self.number += 1;
                }
                Err(error) => {
                    self.closed = error == QueueError::Closed;
                    self.waiting.push_front(commit);
                    return;
                }
            }
        }
    }

    /// Hands on everything, since the store is about to be closed, which writes it.
    pub(super) fn hand_over(&mut self, store: &Store) {
        while let Some(commit) = self.waiting.pop_front().filter(|_| self.failed.is_empty()) {
            let queued = if commit.takes_on {
                store.try_commit(commit.encoded(), self.number)
            } else {
                store.try_commit_from_reserve(commit.encoded(), self.number, false)
            };
            if queued.is_err() {
                return;
            }
            self.number += 1;
        }
    }

    /// Tries the failed ones again, and with them all that waits behind them: whoever waits for a write hears that it fails,
    /// and does not wait for as long as those before it do.
    pub(super) fn retry(&mut self, store: &Store) {
        self.retry_at = None;
        while let Some(commit) = self.failed.pop_back() {
            self.waiting.push_front(commit);
        }
        self.hand_on(store, usize::MAX);
    }

    /// What failed writes were to make of this key is not tried again.
    pub(super) fn give_up(&mut self, key: &[u8]) {
        for commit in &mut self.failed {
            commit.changes.remove(key);
        }
        let is_left = |commit: &Commit| !commit.changes.is_empty();
        self.on_the_way -=
            self.failed.iter().filter(|commit| !is_left(commit)).map(|commit| commit.tickets.len()).sum::<usize>();
        self.failed.retain(is_left);
    }

    /// A commit has ended, well or not.
    pub(super) fn ended(&mut self, result: &CommitResult) -> Ended {
        let position = self.under_way.iter().position(|(number, _)| *number == result.ticket);
        let commit = position.and_then(|position| self.under_way.remove(position));
        let Some((_, mut commit)) = commit else { return Ended::default() };
        let Err(error) = &result.result else {
            self.is_failing = false;
            self.is_full &= !commit.takes_on;
            self.on_the_way -= commit.tickets.len();
            return Ended { durable: commit.tickets.into_iter().map(Ticket).collect(), unwritten: Vec::new() };
        };
        if *error == CommitError::Unfit || !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(%error, "the store could not write");
        }
        self.is_full |= matches!(error, CommitError::DiskFull { .. });
        let unwritten = commit.changes.keys().cloned().collect();
        if *error == CommitError::Unfit {
            // It never will fit: what depends on it never happens.
            self.on_the_way -= commit.tickets.len();
            return Ended { durable: Vec::new(), unwritten };
        }
        let under_way = &self.under_way;
        commit.changes.retain(|key, _| !under_way.iter().any(|(_, later)| later.changes.contains_key(key)));
        self.failed.push_back(commit);
        self.retry_at = Some(Instant::now() + COMMIT_RETRY);
        Ended { durable: Vec::new(), unwritten }
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::{Contact, PeerId};
    use idlewood_scheduler::ranges::IntervalSet;
    use idlewood_scheduler::{BagId, Change, RecordKey};
    use tokio::sync::mpsc;

    use super::*;
    use idlewood_store::{Opened, StateLock};

    /// A record that takes so many intervals, under a key of its own for each machine.
    fn placed(machine: u8, intervals: u64) -> Change {
        let executor = Contact { peer: PeerId([machine; 32]), incarnation: 1, address: "".into(), nonce: None };
        let ranges: IntervalSet = (0..intervals).map(|number| 1000 * number..1000 * number + 1).collect();
        Change::Put(Record::Placed { bag: BagId([1; 32]), executor, ranges })
    }

    fn key(machine: u8) -> Vec<u8> {
        RecordKey::Placed(BagId([1; 32]), PeerId([machine; 32])).to_bytes()
    }

    fn durable(tickets: impl IntoIterator<Item = u64>) -> Ended {
        Ended { durable: tickets.into_iter().map(Ticket).collect(), unwritten: Vec::new() }
    }

    /// The next result. Where none comes that is told, instead of waited for.
    async fn next(results: &mut mpsc::Receiver<CommitResult>) -> CommitResult {
        let result = tokio::time::timeout(Duration::from_secs(60), results.recv()).await;
        result.expect("a commit has no result after a minute").expect("the writer lives")
    }

    async fn close(opened: Opened) {
        drop(opened.results);
        tokio::task::spawn_blocking(move || opened.store.close()).await.expect("it closes");
    }

    #[test]
    fn what_is_given_up_is_not_tried_again() {
        let mut commits = Commits::default();
        for (ticket, changes) in
            [(1, vec![placed(1, 1)]), (2, vec![placed(1, 1), placed(2, 1)]), (3, vec![placed(2, 1)])]
        {
            commits.failed.push_back(Commit::new(Ticket(ticket), changes, false));
            commits.on_the_way += 1;
        }
        commits.give_up(&key(1));
        let left =
            commits.failed.iter().map(|commit| (commit.tickets.clone(), commit.changes.keys().cloned().collect()));
        let expected: [(Vec<u64>, Vec<Vec<u8>>); 2] = [(vec![2], vec![key(2)]), (vec![3], vec![key(2)])];
        assert_eq!(left.collect::<Vec<_>>(), expected);
        assert_eq!(commits.on_the_way, 2);
    }

    #[tokio::test]
    async fn what_comes_while_the_disk_is_busy_goes_together_and_the_last_word_counts() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = StateLock::acquire(dir.path()).expect("nobody else has it");
        let mut opened = Store::open(&lock).expect("an empty store opens");
        let mut commits = Commits::default();
        for ticket in 0..500 {
            commits.push(Ticket(ticket), vec![placed(1, 1 + ticket), placed(2, 1)], true);
            commits.flow(&opened.store);
        }
        assert_eq!((commits.under_way.len(), commits.waiting.len()), (2, 1));
        commits.push(Ticket(500), vec![Change::Delete(RecordKey::Placed(BagId([1; 32]), PeerId([2; 32])))], true);
        for tickets in [0..1, 1..2, 2..501] {
            let told = next(&mut opened.results).await;
            assert_eq!(commits.ended(&told), durable(tickets));
            commits.flow(&opened.store);
        }
        assert_eq!(commits.on_the_way, 0);
        let reader = opened.store.reader();
        let read = tokio::task::spawn_blocking(move || reader.range(vec![0], vec![0xf0], 9));
        let Change::Put(last) = placed(1, 500) else { unreachable!("it is a record") };
        assert_eq!(read.await.expect("it reads"), Ok(vec![(key(1), last.encode())]));
        close(opened).await;
    }

    /// Nothing is taken in on a full disk, until there is room or nothing is left that tells.
    #[test]
    fn a_disk_is_full_as_long_as_something_waits_for_room() {
        let mut commits = Commits::default();
        let fails = |ticket| {
            let full = CommitError::DiskFull { free_bytes: 0, needed_bytes: 1 };
            CommitResult { ticket, result: Err(full) }
        };
        let failures = |index| {
            let (crashed_on, next_attempt, void_before) = (Vec::new(), 1, 0);
            Change::Put(Record::Failures {
                bag: BagId([1; 32]),
                index,
                count: 1,
                crashed_on,
                next_attempt,
                void_before,
            })
        };
        let begin = |commits: &mut Commits, number, change| {
            commits.on_the_way += 1;
            commits.under_way.push_back((number, Commit::new(Ticket(number), vec![change], false)));
        };
        begin(&mut commits, 0, failures(0));
        begin(&mut commits, 1, placed(1, 1));
        commits.ended(&fails(0));
        assert!(commits.is_full());
        commits.ended(&CommitResult { ticket: 1, result: Ok(()) });
        assert!(commits.is_full(), "that one was written from the reserve");
        commits.give_up(&RecordKey::Failures(BagId([1; 32]), 0).to_bytes());
        assert!(!commits.is_full(), "nobody would tell");
        begin(&mut commits, 2, failures(1));
        commits.ended(&fails(2));
        begin(&mut commits, 3, failures(2));
        assert!(commits.is_full());
        commits.ended(&CommitResult { ticket: 3, result: Ok(()) });
        assert!(!commits.is_full());
    }

    #[tokio::test]
    async fn a_write_that_never_fits_is_reported_and_holds_up_no_other() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = StateLock::acquire(dir.path()).expect("nobody else has it");
        let mut opened = Store::open(&lock).expect("an empty store opens");
        let mut commits = Commits::default();
        commits.push(Ticket(0), vec![placed(1, 1), placed(2, 1_000_000)], false);
        commits.push(Ticket(1), vec![placed(3, 2000)], false);
        commits.flow(&opened.store);
        let told = next(&mut opened.results).await;
        assert_eq!(commits.ended(&told), Ended { durable: Vec::new(), unwritten: vec![key(1), key(2)] });
        assert_eq!(commits.retry_at(), None, "it is not tried again");
        let told = next(&mut opened.results).await;
        assert_eq!(commits.ended(&told), durable([1]));
        assert_eq!(commits.on_the_way, 0);
        close(opened).await;
    }

    #[tokio::test]
    async fn a_failed_write_is_tried_again_before_what_came_after_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = StateLock::acquire(dir.path()).expect("nobody else has it");
        let mut opened = Store::open(&lock).expect("an empty store opens");
        let mut commits = Commits::default();
        for machine in [1, 2] {
            commits.push(Ticket(machine.into()), vec![placed(machine, 1)], false);
            commits.flow(&opened.store);
        }
        let full = CommitError::DiskFull { free_bytes: 0, needed_bytes: 1 };
        for result in [Err(full), Ok(())] {
            let told = next(&mut opened.results).await;
            let failed = result.is_err();
            let ended = commits.ended(&CommitResult { ticket: told.ticket, result });
            assert_eq!(ended.durable.is_empty(), failed);
            assert_eq!(commits.retry_at().is_some(), !failed, "not before everything under way has ended");
        }
        commits.push(Ticket(3), vec![placed(1, 2)], true);
        commits.flow(&opened.store);
        assert!(opened.results.try_recv().is_err(), "nothing overtakes the failed one");

        // Asking again and again does not put it off.
        let retry_at = commits.retry_at().expect("one has failed");
        assert!(retry_at <= Instant::now() + COMMIT_RETRY);
        assert_eq!(commits.retry_at(), Some(retry_at));
        commits.retry(&opened.store);
        assert_eq!(commits.retry_at(), None);
        for ticket in [1, 3] {
            let told = next(&mut opened.results).await;
            assert_eq!(commits.ended(&told), durable([ticket]));
        }
        assert!(commits.has_room() && !commits.is_closed());
        close(opened).await;
    }
}
