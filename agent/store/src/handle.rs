//! The handle to the store: opens it, and queues commits for the writer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

use super::commit::{COMMITS_MAX, Change, CommitResult, QueueError};
use super::disk::{self, failed};
use super::error::StoreError;
use super::findings::Findings;
use super::frame::live_bytes;
use super::lock::StateLock;
use super::reading::Reader;
use super::rebuild;
use super::recovery;
use super::reserve::Reserve;
use super::thresholds::{THRESHOLDS, Thresholds};
use super::writer::{Job, Writer};

/// Space for the small files that an agent writes at its start.
const STARTS_WITH_BYTES: u64 = 2 << 20;

/// The result of [`Store::open`].
#[derive(Debug)]
pub struct Opened {
    /// The handle to the writer.
    pub store: Store,
    /// All sound records, by key.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// One result for each commit, in the order of the commits. To be received; see [`Store::try_commit`].
    pub results: mpsc::Receiver<CommitResult>,
    /// Keys of records whose copies are both damaged or of an unknown version.
    pub damaged: Vec<Vec<u8>>,
    /// Acknowledged commits missing from both copies: 0 unless the disk lost data in several places.
    pub commits_lost: u64,
    /// The present path of the damaged files.
    pub set_aside: Option<PathBuf>,
}

/// The handle to the writer thread.
#[derive(Debug)]
pub struct Store {
    jobs: Option<mpsc::Sender<Job>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    reader: Reader,
}

impl Store {
    /// Opens the store in the locked directory, reads all records and starts the writer. Blocks; at most about a
    /// minute, and then only for a damaged store.
    ///
    /// # Errors
    /// When not even an empty store can be opened, or the file system refuses.
    pub fn open(lock: &StateLock) -> Result<Opened, StoreError> {
        Self::open_with(lock, THRESHOLDS)
    }

    /// [`Store::open`] with other thresholds than the agent's.
    pub(super) fn open_with(lock: &StateLock, thresholds: Thresholds) -> Result<Opened, StoreError> {
        let dir = lock.dir();
        let mut reserve = Reserve::of(dir, thresholds.reserve_bytes);
        if disk::free_bytes(dir).is_some_and(|free_bytes| free_bytes < STARTS_WITH_BYTES) {
            reserve.give(STARTS_WITH_BYTES);
        }
        let mut recovered = recovery::recover(dir).or_else(|error| {
            // The missing space may be in the reserve.
            if reserve.give(u64::MAX) { recovery::recover(dir) } else { Err(error) }
        })?;
        recovered.findings.log();
        let (size_bytes, live_bytes) = (recovered.size_bytes, live_bytes(&recovered.records));
        // Changes that sled lacks are written to it first; that must not fail for lack of space, or sled could not be
        // used.
        let pending_bytes: u64 = recovered
            .pending
            .iter()
            .map(|(key, record)| (key.len() + record.as_ref().map_or(0, Vec::len)) as u64)
            .sum();
        let room_bytes = thresholds.free_bytes_min + 4 * (pending_bytes + live_bytes);
        let has_room = disk::free_bytes(dir).is_none_or(|free_bytes| free_bytes >= room_bytes);
        if has_room && rebuild::is_due(size_bytes, live_bytes, thresholds.rebuild_bytes_min) {
            // sled may lack changes that only the journal has, removals above all.
            let pending = std::mem::take(&mut recovered.pending);
            let rebuilt = recovered.database.checkpoint(pending.clone(), recovered.count);
            match rebuilt.and_then(|()| rebuild::prepare(dir, &mut recovered.database)) {
                Ok(_) => {
                    recovered.database.close();
                    recovered.database = rebuild::exchange(dir)?.0;
                    info!(size_bytes, live_bytes, "the store was rebuilt to give disk space back");
                }
                Err(reason) => {
                    warn!(%reason, "the store could not be rebuilt; it stays as large as it is");
                    recovered.pending = pending;
                }
            }
        }
        let records = std::mem::take(&mut recovered.records);
        let Findings { damaged, commits_lost, set_aside, .. } = std::mem::take(&mut recovered.findings);
        let (jobs, job_receiver) = mpsc::channel(COMMITS_MAX);
        let (results, result_receiver) = mpsc::channel(COMMITS_MAX);
        let reader = Reader::default();
        let writer =
            Writer::new(dir.to_owned(), thresholds, recovered, live_bytes, reader.clone(), job_receiver, results);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run())
            .map_err(failed("start the writer of", dir))?;
        let store = Self { jobs: Some(jobs), writer: Mutex::new(Some(thread)), reader };
        Ok(Opened { store, records, results: result_receiver, damaged, commits_lost, set_aside })
    }

    /// Queues a commit: all of its changes become durable together, or none counts. A [`CommitResult`] reports its end.
    /// Commits reach the disk in the order in which they were queued. Never waits: 1,024 commits may be queued, and as
    /// many results wait to be received.
    ///
    /// # Errors
    /// When the queue is full or the writer has ended.
    pub fn try_commit(&self, changes: impl Into<Arc<[Change]>>, ticket: u64) -> Result<(), QueueError> {
        self.queue(Job { ticket, changes: changes.into(), is_patient: false, takes_on: true })
    }

    /// [`Store::try_commit`] of changes that may wait some milliseconds to share a group.
    ///
    /// # Errors
    /// When the queue is full or the writer has ended.
    pub fn try_commit_patiently(&self, changes: impl Into<Arc<[Change]>>, ticket: u64) -> Result<(), QueueError> {
        self.queue(Job { ticket, changes: changes.into(), is_patient: true, takes_on: true })
    }

    /// [`Store::try_commit`] of changes that take on no new work: on a full disk they are written from the reserve.
    ///
    /// # Errors
    /// When the queue is full or the writer has ended.
    pub fn try_commit_from_reserve(
        &self,
        changes: impl Into<Arc<[Change]>>,
        ticket: u64,
        is_patient: bool,
    ) -> Result<(), QueueError> {
        self.queue(Job { ticket, changes: changes.into(), is_patient, takes_on: false })
    }

    /// A handle that reads durable records, also while commits are written.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    fn queue(&self, job: Job) -> Result<(), QueueError> {
        let jobs = self.jobs.as_ref().ok_or(QueueError::Closed)?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => QueueError::Full,
            TrySendError::Closed(_) => QueueError::Closed,
        })
    }

    /// Writes what is queued, syncs and ends the writer. Blocks: async callers go through `spawn_blocking`, and receive
    /// results meanwhile or drop the receiver. Dropping the store does the same.
    pub fn close(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.jobs = None;
        let thread = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            error!("the store's writer ended in a panic");
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}
