//! The store: opaque records that survive a restart. Only this crate names sled.
//!
//! One OS thread writes. It takes all waiting batches, applies them as one, syncs, and only then acknowledges: a group
//! commit. Several threads that flush at once have dead-locked sled 0.34.
//!
//! A commit is durable once it is in the `journal`: one write and one sync for a group. sled, the index of all records,
//! gets the net changes of many groups at once, at checkpoints.
//!
//! Nothing on disk is trusted. The directory is locked against a second agent. All records exist twice: in sled with
//! the end of the journal, and in the journal alone, which begins with a snapshot, and of which each block can be
//! healed if one stretch of it is damaged. So a flipped byte anywhere loses nothing (`recovery`); the damaged file is
//! kept under another name, and written anew. If both are damaged, the agent continues with the sound records of both,
//! and a small file with the number of acknowledged commits tells how many are lost. (The identity key is kept
//! elsewhere, and much can be rebuilt from the grid.)
//!
//! On a nearly full disk a commit fails before anything is written; a write that meets a full disk leaves nothing
//! behind. sled does not recover from a failed write, and blocks for ever when it is closed after one. So it runs on a
//! thread of its own that is abandoned when it fails or hangs; commits then go to the journal alone until the agent is
//! restarted.
//!
//! sled does not give space back, so a store that is mostly garbage is copied to a new one (`rebuild`), at opening or
//! while it is written.
//!
//! The parts: `lock`, `database` (sled's thread; its orders: `order`), `writer`, `frame` (version and checksum),
//! `block` and `journal`, `recovery`, `rebuild`, `disk` (syncing, the count of commits), `inspect` (for `idlewood
//! store`), `reading` (results of bags, which are not kept in memory).
//!
//! Left out: blobs. All other state lives in the scheduler, whose records are read once, at the start.

mod block;
mod database;
mod disk;
mod frame;
mod inspect;
mod journal;
mod lock;
mod order;
mod reading;
mod rebuild;
mod recovery;
mod reserve;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

pub use inspect::{Inspection, inspect};
pub use lock::StateLock;
pub use order::Records;
pub use reading::{ReadError, Reader};

use disk::failed;
use frame::HEADER_BYTES;
use recovery::Findings;
use reserve::Reserve;
use writer::{Job, Writer};

/// Name of sled's directory in the state directory.
const STORE_DIR: &str = "store";

/// sled's log in it, the file that sled locks.
const SLED_FILE: &str = "db";

/// The record with sled's count of commits. No other key may begin with this byte.
const COUNT_KEY: &[u8] = &[0xff];

/// Space for the small files that an agent writes at its start.
const STARTS_WITH_BYTES: u64 = 2 << 20;

/// Longest value, in bytes. Our choice: larger values are blobs.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// Commits that wait for the writer; as many acknowledgements may wait for the agent.
const COMMITS_MAX: usize = 1024;

/// Sizes at which the store acts.
#[derive(Clone, Copy, Debug)]
struct Thresholds {
    /// Free space, beside four times the size of the group, below which commits fail. 0 in the test of sled on a full
    /// disk.
    free_bytes_min: u64,
    /// A smaller store is never rebuilt.
    rebuild_bytes_min: u64,
    /// Space reserved for commits that must be written on a full disk.
    reserve_bytes: u64,
    /// sled gets a checkpoint when it lacks more bytes than this.
    checkpoint_bytes: u64,
    /// The journal begins its next generation when this many bytes, and as many as its snapshot, follow the snapshot.
    generation_bytes_min: u64,
}

/// Our choice: sled grows in segments of half a MiB and rewrites some of them at each opening. Changes for the next
/// checkpoint take some times their bytes of memory; the more there are, the more of them are replaced or removed
/// before sled gets them.
const THRESHOLDS: Thresholds = Thresholds {
    free_bytes_min: 8 << 20,
    reserve_bytes: 16 << 20,
    rebuild_bytes_min: 32 << 20,
    checkpoint_bytes: 2 << 20,
    generation_bytes_min: 16 << 20,
};

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another agent is running on it.
    #[error("{} is in use by another agent ({holder}); stop that one, or give this one a state directory of its own", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The holder named in the lock file.
        holder: String,
    },
    /// The file system refuses.
    #[error("cannot {action} {}: {source}; check the disk and the permissions of the state directory", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The damaged store cannot be replaced.
    #[error("no store can be opened in {} ({reason}); start the agent again, and if that does not help move the directory away", dir.display())]
    Unusable {
        /// The state directory.
        dir: PathBuf,
        /// sled's error.
        reason: String,
    },
}

/// Why a commit failed. Its changes do not count, though they may have reached the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk is nearly full; nothing was written.
    #[error(
        "the disk of the state directory is full ({free_bytes} bytes free, {needed_bytes} needed); make room, later commits will work again"
    )]
    DiskFull {
        /// Free space.
        free_bytes: u64,
        /// Space needed.
        needed_bytes: u64,
    },
    /// The database or the disk failed. All later commits fail too: the agent has to end.
    #[error("the store has stopped working ({0}); start the agent again")]
    Broken(String),
    /// A key or value is too long, or the key is reserved; nothing of the commit was written.
    #[error(
        "a record does not fit the store: keys have 1 to {KEY_BYTES_MAX} bytes and do not begin with 0xff, values at most {VALUE_BYTES_MAX}"
    )]
    Unfit,
}

/// Why a commit was not even queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Too many commits wait; receive results first.
    #[error("{COMMITS_MAX} commits wait for the disk already")]
    Full,
    /// The writer has ended.
    #[error("the store is closed")]
    Closed,
}

/// One change: sets the record of `key`, or removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// 1 to [`KEY_BYTES_MAX`] bytes, the first not 0xff.
    pub key: Vec<u8>,
    /// At most [`VALUE_BYTES_MAX`] bytes; `None` removes the record.
    pub value: Option<Vec<u8>>,
}

/// How a commit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitResult {
    /// The ticket that the committer gave it.
    pub ticket: u64,
    /// `Ok`: durable.
    pub result: Result<(), CommitError>,
}

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

/// Damaged files of the store in a state directory, kept under another name.
///
/// # Errors
/// When the directory cannot be listed.
pub fn damaged_files(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    Ok(rebuild::list_aside(dir)?.into_iter().map(|(_, path)| path).collect())
}

/// Logs what was wrong with the store, and the outcome.
fn log_findings(findings: &Findings) {
    let Findings { flaws, damaged, commits_lost, set_aside } = findings;
    let why = flaws.join("; ");
    let moved_to = set_aside.as_ref().map(|aside| aside.display().to_string()).unwrap_or_default();
    if !damaged.is_empty() || *commits_lost > 0 {
        error!(
            moved_to,
            why,
            commits_lost,
            records_damaged = damaged.len(),
            "the store has lost what was on disk; what is damaged was set aside, and the agent goes on with the rest: check \
             the disk"
        );
    } else if set_aside.is_some() {
        error!(
            moved_to,
            why,
            "a part of the store is damaged and was set aside; nothing is lost, since all was there twice: check the disk"
        );
    } else if !flaws.is_empty() {
        warn!(why, "a part of the store was missing; nothing is lost, since all was there twice");
    }
}

/// Bytes of the records alone.
fn live_bytes(records: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    records.iter().map(|(key, value)| (key.len() + value.len() + HEADER_BYTES) as u64).sum()
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

    fn open_with(lock: &StateLock, thresholds: Thresholds) -> Result<Opened, StoreError> {
        let dir = lock.dir();
        let mut reserve = Reserve::of(dir, thresholds.reserve_bytes);
        if disk::free_bytes(dir).is_some_and(|free_bytes| free_bytes < STARTS_WITH_BYTES) {
            reserve.give(STARTS_WITH_BYTES);
        }
        let mut recovered = recovery::recover(dir).or_else(|error| {
            // The missing space may be in the reserve.
            if reserve.give(u64::MAX) { recovery::recover(dir) } else { Err(error) }
        })?;
        log_findings(&recovered.findings);
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
