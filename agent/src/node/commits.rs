//! Writes on their way to the store, in order, and those that failed.
//!
//! The driver both queues writes and hears of their end, so it never waits for room: what does not fit waits here,
//! and meanwhile nothing new is taken in but what the user says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use idlewood_scheduler::Ticket;
use tokio::time::Instant;

use crate::store::{Change, CommitError, CommitResult, QueueError, Store};

/// How long to wait before a failed write is tried again.
const COMMIT_RETRY: Duration = Duration::from_secs(1);
/// Writes that may be on their way before nothing new is taken in. Our choice: enough for a group commit that costs its
/// writes little, and few enough to look through.
const ON_THE_WAY_MAX: usize = 256;
/// Likewise before workers wait with the ends of their tasks: the rest is for whoever else wants something written.
const OF_TASKS_MAX: usize = 192;

#[derive(Debug)]
struct Commit {
    ticket: u64,
    changes: Arc<[Change]>,
    is_patient: bool,
}

/// The writes of one agent.
#[derive(Debug, Default)]
pub(super) struct Commits {
    waiting: VecDeque<Commit>,
    /// At the store, in order.
    under_way: VecDeque<Commit>,
    /// Failed; tried again when everything under way has ended.
    failed: VecDeque<Commit>,
    /// When the failed ones are tried again.
    retry_at: Option<Instant>,
    /// The last write to end has failed: that is told when it begins, and not again each second for each that waits.
    is_failing: bool,
    /// The store takes nothing any more.
    closed: bool,
}

impl Commits {
    /// Queues a write; one that is patient may wait some milliseconds for others.
    pub(super) fn push(&mut self, ticket: Ticket, changes: impl Into<Arc<[Change]>>, is_patient: bool) {
        self.waiting.push_back(Commit { ticket: ticket.0, changes: changes.into(), is_patient });
    }

    /// Whether more may be taken in.
    pub(super) fn has_room(&self) -> bool {
        self.on_the_way() < ON_THE_WAY_MAX
    }

    /// Whether more ends of tasks may be taken in.
    pub(super) fn has_room_for_tasks(&self) -> bool {
        self.on_the_way() < OF_TASKS_MAX
    }

    /// Whether everything is written.
    pub(super) fn is_empty(&self) -> bool {
        self.on_the_way() == 0
    }

    fn on_the_way(&self) -> usize {
        self.waiting.len() + self.under_way.len() + self.failed.len()
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
        while self.failed.is_empty() {
            let Some(commit) = self.waiting.pop_front() else { return };
            let changes = commit.changes.clone();
            let queued = if commit.is_patient {
                store.try_commit_patiently(changes, commit.ticket)
            } else {
                store.try_commit(changes, commit.ticket)
            };
            match queued {
                Ok(()) => self.under_way.push_back(commit),
                Err(error) => {
                    self.closed = error == QueueError::Closed;
                    self.waiting.push_front(commit);
                    return;
                }
            }
        }
    }

    /// Tries the failed ones again.
    pub(super) fn retry(&mut self, store: &Store) {
        self.retry_at = None;
        while let Some(commit) = self.failed.pop_back() {
            self.waiting.push_front(commit);
        }
        self.flow(store);
    }

    /// A failed write of nothing but this is not tried again.
    pub(super) fn give_up(&mut self, key: &[u8]) {
        self.failed.retain(|commit| commit.changes.iter().any(|change| change.key != key));
    }

    /// A write has ended.
    ///
    /// # Errors
    /// It failed: the keys it was to write. It will be tried again if it can ever succeed, less what a later write has written since.
    pub(super) fn ended(&mut self, result: &CommitResult) -> Result<(), Vec<Vec<u8>>> {
        let position = self.under_way.iter().position(|commit| commit.ticket == result.ticket);
        let commit = position.and_then(|position| self.under_way.remove(position));
        let Err(error) = &result.result else {
            self.is_failing = false;
            return Ok(());
        };
        if *error == CommitError::Unfit || !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(%error, "the store could not write");
        }
        let Some(mut commit) = commit else { return Err(Vec::new()) };
        let keys: Vec<Vec<u8>> = commit.changes.iter().map(|change| change.key.clone()).collect();
        if *error == CommitError::Unfit {
            // It never will fit: what depends on it never happens.
            return Err(keys);
        }
        let is_last = |change: &&Change| !self.under_way.iter().any(|later| later.writes(&change.key));
        commit.changes = commit.changes.iter().filter(is_last).cloned().collect();
        self.failed.push_back(commit);
        self.retry_at = Some(Instant::now() + COMMIT_RETRY);
        Err(keys)
    }
}

impl Commit {
    fn writes(&self, key: &[u8]) -> bool {
        self.changes.iter().any(|change| change.key == key)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::store::{StateLock, VALUE_BYTES_MAX};

    fn change(key: &str) -> Vec<Change> {
        vec![Change { key: key.as_bytes().to_vec(), value: Some(b"value".to_vec()) }]
    }

    /// The next result. Where none comes that is told, instead of waited for.
    async fn next(results: &mut mpsc::Receiver<CommitResult>) -> CommitResult {
        let result = tokio::time::timeout(Duration::from_secs(60), results.recv()).await;
        result.expect("a commit has no result after a minute").expect("the writer lives")
    }

    #[test]
    fn what_is_given_up_is_not_tried_again() {
        let mut commits = Commits::default();
        let both = [change("bag"), change("other")].concat();
        for (ticket, changes) in [(1, change("bag")), (2, both), (3, change("other"))] {
            commits.failed.push_back(Commit { ticket, changes: changes.into(), is_patient: false });
        }
        commits.give_up(b"bag");
        assert_eq!(commits.failed.iter().map(|commit| commit.ticket).collect::<Vec<_>>(), [2, 3]);
    }

    #[tokio::test]
    async fn a_write_that_never_fits_is_reported_and_holds_up_no_other() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = StateLock::acquire(dir.path()).expect("nobody else has it");
        let mut opened = Store::open(&lock).expect("an empty store opens");
        let mut commits = Commits::default();
        let large = Change { key: b"large".to_vec(), value: Some(vec![0; VALUE_BYTES_MAX + 1]) };
        commits.push(Ticket(0), [change("small"), vec![large]].concat(), false);
        commits.push(Ticket(1), change("other"), false);
        commits.flow(&opened.store);
        let told = next(&mut opened.results).await;
        let keys = vec![b"small".to_vec(), b"large".to_vec()];
        assert_eq!((told.ticket, commits.ended(&told)), (0, Err(keys)));
        assert_eq!(commits.retry_at(), None, "it is not tried again");
        let told = next(&mut opened.results).await;
        assert_eq!((told.ticket, commits.ended(&told)), (1, Ok(())));
        assert!(commits.is_empty());
        drop(opened.results);
        tokio::task::spawn_blocking(move || opened.store.close()).await.expect("it closes");
    }

    #[tokio::test]
    async fn a_failed_write_is_tried_again_before_what_came_after_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = StateLock::acquire(dir.path()).expect("nobody else has it");
        let mut opened = Store::open(&lock).expect("an empty store opens");
        let mut commits = Commits::default();
        for (ticket, key) in ["a", "b"].into_iter().enumerate() {
            commits.push(Ticket(ticket as u64), change(key), false);
        }
        commits.flow(&opened.store);
        let full = CommitError::DiskFull { free_bytes: 0, needed_bytes: 1 };
        for result in [Err(full), Ok(())] {
            let told = next(&mut opened.results).await;
            let failed = result.is_err();
            assert_eq!(commits.ended(&CommitResult { ticket: told.ticket, result }).is_err(), failed);
            assert_eq!(commits.retry_at().is_some(), !failed, "not before everything under way has ended");
        }
        commits.push(Ticket(2), change("a"), true);
        commits.flow(&opened.store);
        assert!(opened.results.try_recv().is_err(), "nothing overtakes the failed one");

        // Asking again and again does not put it off.
        let retry_at = commits.retry_at().expect("one has failed");
        assert!(retry_at <= Instant::now() + COMMIT_RETRY);
        assert_eq!(commits.retry_at(), Some(retry_at));
        commits.retry(&opened.store);
        assert_eq!(commits.retry_at(), None);
        for ticket in [0, 2] {
            let told = next(&mut opened.results).await;
            assert_eq!(told, CommitResult { ticket, result: Ok(()) });
            assert_eq!(commits.ended(&told), Ok(()));
        }
        assert!(commits.has_room() && !commits.is_closed());
        drop(opened.results);
        tokio::task::spawn_blocking(move || opened.store.close()).await.expect("it closes");
    }
}
