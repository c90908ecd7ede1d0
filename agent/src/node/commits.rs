//! Writes on their way to the store, in order, and those that failed.
//!
//! The driver both queues writes and hears of their end, so it never waits for room: what does not fit waits here,
//! and meanwhile nothing new is taken in.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_scheduler::Ticket;

use crate::store::{Change, CommitError, CommitResult, QueueError, Store};

/// How long to wait before a failed write is tried again.
pub(super) const COMMIT_RETRY: Duration = Duration::from_secs(1);
/// Writes that may wait here before nothing new is taken in.
const WAITING_MAX: usize = 256;

#[derive(Debug)]
struct Commit {
    ticket: u64,
    changes: Vec<Change>,
}

/// The writes of one agent.
#[derive(Debug, Default)]
pub(super) struct Commits {
    waiting: VecDeque<Commit>,
    /// At the store, in order.
    under_way: VecDeque<Commit>,
    /// Failed; tried again when everything under way has ended.
    failed: VecDeque<Commit>,
}

impl Commits {
    pub(super) fn push(&mut self, ticket: Ticket, changes: Vec<Change>) {
        self.waiting.push_back(Commit { ticket: ticket.0, changes });
    }

    /// Whether more may be taken in.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Whether a failed write waits to be tried again.
    pub(super) fn is_stuck(&self) -> bool {
        !self.failed.is_empty() && self.under_way.is_empty()
    }

    /// Hands on to the store what it takes. Nothing overtakes a write that failed.
    pub(super) fn flow(&mut self, store: &Store) {
        while self.failed.is_empty() {
            let Some(commit) = self.waiting.pop_front() else { return };
            match store.try_commit(commit.changes.clone(), commit.ticket) {
                Ok(()) => self.under_way.push_back(commit),
                Err(error) => {
                    if error == QueueError::Closed {
                        tracing::error!("the store's writer has ended; nothing can be kept until the agent is restarted");
                    }
                    self.waiting.push_front(commit);
                    return;
                }
            }
        }
    }

    /// Tries the failed ones again.
    pub(super) fn retry(&mut self, store: &Store) {
        while let Some(commit) = self.failed.pop_back() {
            self.waiting.push_front(commit);
        }
        self.flow(store);
    }

    /// A write has ended.
    ///
    /// # Errors
    /// It failed: the keys it was to write. It will be tried again if it can ever succeed, less what a later write has written since.
    pub(super) fn ended(&mut self, result: &CommitResult) -> Result<(), Vec<Vec<u8>>> {
        let position = self.under_way.iter().position(|commit| commit.ticket == result.ticket);
        let commit = position.and_then(|position| self.under_way.remove(position));
        let Err(error) = &result.result else { return Ok(()) };
        tracing::error!(%error, "the store could not write");
        let Some(mut commit) = commit else { return Err(Vec::new()) };
        let keys: Vec<Vec<u8>> = commit.changes.iter().map(|change| change.key.clone()).collect();
        if *error == CommitError::Unfit {
            // It never will fit; the peer's own repetitions have to make up for it.
            return Err(keys);
        }
        commit.changes.retain(|change| !self.under_way.iter().any(|later| later.writes(&change.key)));
        self.failed.push_back(commit);
        Err(keys)
    }
}

impl Commit {
    fn writes(&self, key: &[u8]) -> bool {
        self.changes.iter().any(|change| change.key == key)
    }
}
