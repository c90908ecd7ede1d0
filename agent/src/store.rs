//! What must survive a restart: opaque records in sled. Only this module names it.
//!
//! One OS thread writes. It takes all batches that wait, applies them as one, flushes, syncs sled's files (sled's own
//! flush stops short of the disk on Linux) and only then acknowledges: a group commit. Several flushing tasks at once
//! have dead-locked sled 0.34.
//!
//! Nothing on disk is trusted. The directory is locked against a second agent; a store that does not open is set aside
//! under another name and an empty one started (the identity key lives elsewhere, and the rest can be rebuilt from the
//! grid); each record carries a version and a checksum, and one that does not fit is skipped and counted. As sled cuts
//! a damaged log short without a word, a small file beside it remembers how many commits were acknowledged, so that
//! the loss is at least reported. A disk that is nearly full fails the commit before sled sees it: sled does not come
//! back from a failed write, and waits for ever when it is closed after one. So it runs on a thread of its own that is
//! given up when it fails or hangs; the agent must then be started again, which is as safe as after kill -9.
//!
//! sled does not give space back, so a store of which most is garbage is copied to a new one (`rebuild`), when it is
//! opened and while it is written.
//!
//! The parts: `lock`, `database` (sled's thread), `writer`, `frame` (version and checksum), `rebuild`, `disk` (what is
//! synced, the count of commits), `inspect` (for `idlewood store`).
//!
//! Left out: reads while running (the state lives in the scheduler; records are read once, at the start) and blobs.

mod database;
mod disk;
mod frame;
mod inspect;
mod lock;
mod rebuild;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

pub use inspect::{Inspection, inspect};
pub use lock::StateLock;

use database::{Database, Trouble};
use disk::{Mark, failed, sync_all, sync_dir};
use writer::{Job, Writer};

/// Name of sled's directory in the state directory.
const STORE_DIR: &str = "store";

/// The file in it that sled locks, its log.
const SLED_FILE: &str = "db";

/// The record under which the store counts its own commits. No other key may begin with this byte.
const COUNT_KEY: &[u8] = &[0xff];

/// Longest value, in bytes. Our choice: larger things are blobs.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// Commits that wait for the writer; as many acknowledgements may wait for the agent.
const COMMITS_MAX: usize = 1024;

/// Sizes at which the store acts.
#[derive(Clone, Copy, Debug)]
struct Thresholds {
    /// Free space below which commits fail, beside four times the size of the group. 0 in the test of what happens when
    /// sled meets a full disk.
    free_bytes_min: u64,
    /// A smaller store is never rebuilt.
    rebuild_bytes_min: u64,
}

/// Our choice: sled grows in segments of half a MiB and rewrites some of them at each opening.
const THRESHOLDS: Thresholds = Thresholds { free_bytes_min: 8 << 20, rebuild_bytes_min: 32 << 20 };

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another agent is running on it.
    #[error("{} is in use by another agent ({holder}); stop that one, or give this one a state directory of its own", dir.display())]
    Locked {
        /// Which directory.
        dir: PathBuf,
        /// What the lock file says of its holder.
        holder: String,
    },
    /// The file system refuses.
    #[error("cannot {action} {}: {source}; check the disk and the permissions of the state directory", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The damaged store was moved away and an empty one cannot be opened either.
    #[error("no store can be opened in {} ({reason}); start the agent again, and if that does not help move the directory away", dir.display())]
    Unusable {
        /// The state directory.
        dir: PathBuf,
        /// What sled said.
        reason: String,
    },
}

/// Why a commit failed. None of its changes is relied upon; they may have reached the disk all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk is nearly full; nothing was written.
    #[error(
        "the disk of the state directory is full ({free_bytes} bytes free, {needed_bytes} needed); make room, later commits will work again"
    )]
    DiskFull {
        /// What is free.
        free_bytes: u64,
        /// What is needed.
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
    /// Too many wait already; take acknowledgements first.
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
    /// What the committer called it.
    pub ticket: u64,
    /// `Ok`: on disk.
    pub result: Result<(), CommitError>,
}

/// What [`Store::open`] found.
#[derive(Debug)]
pub struct Opened {
    /// The way to the writer.
    pub store: Store,
    /// All sound records, by key.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// One result for each commit, in the order of the commits. To be received; see [`Store::try_commit`].
    pub results: mpsc::Receiver<CommitResult>,
    /// Records that were skipped because they are damaged or of an unknown version.
    pub records_damaged: usize,
    /// Acknowledged commits that the store no longer knows: 0 unless the disk lost data.
    pub commits_lost: u64,
    /// Where a store that did not open was moved.
    pub set_aside: Option<PathBuf>,
}

/// The way to the writer thread.
#[derive(Debug)]
pub struct Store {
    jobs: Option<mpsc::Sender<Job>>,
    writer: Mutex<Option<JoinHandle<()>>>,
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
        rebuild::finish(dir)?;
        let path = dir.join(STORE_DIR);
        let ((mut database, mut contents), set_aside) = match Database::open(&path) {
            Ok(opened) => (opened, None),
            Err(Trouble::System(source)) => return Err(failed("open", &path)(source)),
            Err(Trouble::Damaged(reason)) => {
                let aside = rebuild::set_aside(dir)?;
                error!(
                    moved_to = %aside.display(), %reason,
                    "the store is damaged and was set aside; the agent starts without its records and keeps its identity"
                );
                let unusable =
                    |trouble: Trouble| StoreError::Unusable { dir: dir.to_owned(), reason: trouble.to_string() };
                (Database::open(&path).map_err(unusable)?, Some(aside))
            }
        };
        let records_damaged = contents.damaged.len();
        if records_damaged > 0 {
            warn!(records_damaged, "damaged records were skipped");
        }
        let mark = Mark::open(dir)?;
        if set_aside.is_some() {
            // The new store counts from the start.
            mark.write(0);
        }
        let acknowledged = mark.read();
        let commits_lost = acknowledged.saturating_sub(contents.count);
        if commits_lost > 0 {
            error!(commits_lost, "the store has lost commits that were on disk; the disk or its cache is not reliable");
        }
        let count = contents.count.max(acknowledged);
        let (size_bytes, live_bytes) = (contents.size_bytes, contents.live_bytes());
        if rebuild::is_due(size_bytes, live_bytes, thresholds.rebuild_bytes_min) {
            match rebuild::prepare(dir, &database) {
                Ok(_) => {
                    database.close();
                    (database, contents) = rebuild::exchange(dir)?;
                    info!(size_bytes, live_bytes, "the store was rebuilt to give disk space back");
                }
                Err(reason) => warn!(%reason, "the store could not be rebuilt; it stays as large as it is"),
            }
        }
        sync_all(&path, &mut HashSet::new()).and_then(|()| sync_dir(dir)).map_err(failed("sync", &path))?;

        let (jobs, job_receiver) = mpsc::channel(COMMITS_MAX);
        let (results, result_receiver) = mpsc::channel(COMMITS_MAX);
        let writer = Writer {
            dir: dir.to_owned(),
            thresholds,
            database: Ok(database),
            count,
            mark,
            live_bytes,
            unlooked_bytes: 0,
            synced_blobs: HashSet::new(),
            jobs: job_receiver,
            results,
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run())
            .map_err(failed("start the writer of", dir))?;
        Ok(Opened {
            store: Store { jobs: Some(jobs), writer: Mutex::new(Some(thread)) },
            records: contents.records,
            results: result_receiver,
            records_damaged,
            commits_lost,
            set_aside,
        })
    }

    /// Queues a commit: all of its changes become durable together, or none is relied upon. Its [`CommitResult`] says
    /// when. Of two commits the first queued is the first on disk. Never waits: 1,024 commits may be queued, and as many
    /// results wait to be received.
    ///
    /// # Errors
    /// When the queue is full or the writer has ended.
    pub fn try_commit(&self, changes: impl Into<Arc<[Change]>>, ticket: u64) -> Result<(), QueueError> {
        self.queue(Job { ticket, changes: changes.into(), is_patient: false })
    }

    /// [`Store::try_commit`] of what may wait some milliseconds for others to go to disk with.
    ///
    /// # Errors
    /// When the queue is full or the writer has ended.
    pub fn try_commit_patiently(&self, changes: impl Into<Arc<[Change]>>, ticket: u64) -> Result<(), QueueError> {
        self.queue(Job { ticket, changes: changes.into(), is_patient: true })
    }

    fn queue(&self, job: Job) -> Result<(), QueueError> {
        let jobs = self.jobs.as_ref().ok_or(QueueError::Closed)?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => QueueError::Full,
            TrySendError::Closed(_) => QueueError::Closed,
        })
    }

    /// Writes what is queued, flushes and ends the writer. Blocks: async callers go through `spawn_blocking`, and the
    /// results are received meanwhile or dropped with their receiver. Dropping the store does the same.
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
