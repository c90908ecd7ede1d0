//! What must survive a restart: opaque records in sled. The only file that names it.
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
//! Left out: reads while running (the state lives in the scheduler; records are read once, at the start) and blobs.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

/// Name of the lock file in the state directory.
const LOCK_FILE: &str = "lock";

/// Name of sled's directory in the state directory.
const STORE_DIR: &str = "store";

/// The file in it that sled locks.
const SLED_FILE: &str = "db";

/// How long another process may keep a lock before it counts as running.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a store is rebuilt, and where the old one waits to be deleted.
const REBUILT_DIR: &str = "store.rebuilt";
const RETIRED_DIR: &str = "store.retired";

/// Remembers how many commits were acknowledged.
const MARK_FILE: &str = "store.mark";

/// The record under which the store counts its own commits. No other key may begin with this byte.
const COUNT_KEY: &[u8] = &[0xff];

/// Version byte of a record.
const RECORD_VERSION: u8 = 1;

/// Bytes of BLAKE3 kept with a record.
const CHECKSUM_BYTES: usize = 8;

/// What precedes the value in a record.
const HEADER_BYTES: usize = 1 + CHECKSUM_BYTES;

/// Longest value, in bytes. Our choice: larger things are blobs.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// Commits that wait for the writer; as many acknowledgements may wait for the agent.
const COMMITS_MAX: usize = 1024;

/// How long a group that comes right behind another waits for company: each costs a flush, and more processor time than
/// the writes in it. Our choice: less than a disk takes.
const GATHER: Duration = Duration::from_millis(2);

/// Commits and bytes that go to disk together.
const GROUP_MAX: usize = 1024;
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

/// sled's cache; everything is in the scheduler's memory anyway.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Free space below which commits fail, beside four times the size of the group. Our choice: sled grows in segments of
/// half a MiB and rewrites some of them at each opening.
const FREE_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// A store that does not open within this time is taken for damaged. 100,000 records open in well under a second.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A group that is not on disk after this time never will be. A spinning disk under full load takes seconds.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time for closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A store larger than this and than [`GARBAGE_RATIO`] times what lives in it is rebuilt when it is opened.
const REBUILD_BYTES_MIN: u64 = 32 * 1024 * 1024;
const GARBAGE_RATIO: u64 = 5;

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

/// The lock of a state directory, held as long as this lives. The system gives it back when the process ends, however
/// it ends.
#[derive(Debug)]
pub struct StateLock {
    dir: PathBuf,
    // Closing it gives the lock back.
    _file: File,
}

impl StateLock {
    /// Locks `dir` (created if missing, 0700) for this process.
    ///
    /// # Errors
    /// When another agent holds it, or the directory cannot be written.
    pub fn acquire(dir: &Path) -> Result<Self, StoreError> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("create", dir))?;
        let path = dir.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        match lock_within(&file, LOCK_TIMEOUT) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let holder = match (&file).take(64).read_to_string(&mut text) {
                    Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
                    Ok(_) | Err(_) => "it did not say which".to_owned(),
                };
                return Err(StoreError::Locked { dir: dir.to_owned(), holder });
            }
            Err(errno) => return Err(failed("lock", &path)(errno.into())),
        }
        let holder = format!("process {}\n", std::process::id());
        file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(failed("write", &path))?;
        Ok(Self { dir: dir.to_owned(), _file: file })
    }

    /// The directory that is locked.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
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
    /// One result for each commit, in the order of the commits. To be received; see [`Store::commit`].
    pub results: mpsc::Receiver<CommitResult>,
    /// Records that were skipped because they are damaged or of an unknown version.
    pub records_damaged: usize,
    /// Acknowledged commits that the store no longer knows: 0 unless the disk lost data.
    pub commits_lost: u64,
    /// Where a store that did not open was moved.
    pub set_aside: Option<PathBuf>,
}

#[derive(Debug)]
struct Job {
    ticket: u64,
    changes: Arc<[Change]>,
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
        Self::open_with(lock, FREE_BYTES_MIN)
    }

    fn open_with(lock: &StateLock, free_bytes_min: u64) -> Result<Opened, StoreError> {
        let dir = lock.dir();
        finish_rebuild(dir)?;
        let path = dir.join(STORE_DIR);
        let ((mut sled, mut contents), set_aside) = match Sled::open(&path) {
            Ok(opened) => (opened, None),
            Err(Trouble::System(source)) => return Err(failed("open", &path)(source)),
            Err(Trouble::Damaged(reason)) => {
                let aside = set_aside(dir, &path)?;
                error!(
                    moved_to = %aside.display(), %reason,
                    "the store is damaged and was set aside; the agent starts without its records and keeps its identity"
                );
                let unusable =
                    |trouble: Trouble| StoreError::Unusable { dir: dir.to_owned(), reason: trouble.to_string() };
                (Sled::open(&path).map_err(unusable)?, Some(aside))
            }
        };
        let records_damaged = contents.damaged;
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
        let size = |(key, value): &(Vec<u8>, Vec<u8>)| (key.len() + value.len() + HEADER_BYTES) as u64;
        let live_bytes: u64 = contents.records.iter().map(size).sum();
        let size_bytes = contents.size_bytes;
        if size_bytes > REBUILD_BYTES_MIN && size_bytes / GARBAGE_RATIO > live_bytes {
            match fill_anew(dir, &contents.records, count) {
                Ok(()) => {
                    sled.close();
                    (sled, contents) = replace(dir, &path)?;
                    info!(size_bytes, live_bytes, "the store was rebuilt to give disk space back");
                }
                Err(reason) => warn!(%reason, "the store could not be rebuilt; it stays as large as it is"),
            }
        }
        sync_all(&path, &mut HashSet::new()).and_then(|()| sync_dir(dir)).map_err(failed("sync", &path))?;

        let (jobs, job_receiver) = mpsc::channel(COMMITS_MAX);
        let (results, result_receiver) = mpsc::channel(COMMITS_MAX);
        let writer = Writer {
            path,
            free_bytes_min,
            sled: Ok(sled),
            count,
            mark,
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
    /// when. Of two commits the first queued is the first on disk.
    ///
    /// Waits while 1,024 commits wait. Whoever waits here must not be the only one to receive results, unless fewer
    /// than 2,048 commits are outstanding; [`Store::try_commit`] never waits.
    ///
    /// # Errors
    /// When the writer has ended.
    pub async fn commit(&self, changes: impl Into<Arc<[Change]>>, ticket: u64) -> Result<(), QueueError> {
        let jobs = self.jobs.as_ref().ok_or(QueueError::Closed)?;
        jobs.send(Job { ticket, changes: changes.into() }).await.map_err(|_| QueueError::Closed)
    }

    /// [`Store::commit`] without waiting.
    ///
    /// # Errors
    /// When the queue is full or the writer has ended.
    pub fn try_commit(&self, changes: impl Into<Arc<[Change]>>, ticket: u64) -> Result<(), QueueError> {
        let jobs = self.jobs.as_ref().ok_or(QueueError::Closed)?;
        jobs.try_send(Job { ticket, changes: changes.into() }).map_err(|error| match error {
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

// ---- the writer thread ----

struct Writer {
    path: PathBuf,
    /// See [`FREE_BYTES_MIN`]; 0 in the test of what happens when sled meets a full disk.
    free_bytes_min: u64,
    /// Or why there is none any more.
    sled: Result<Sled, String>,
    /// Commits since the store was made.
    count: u64,
    mark: Mark,
    /// Blob files of sled that were synced before.
    synced_blobs: HashSet<PathBuf>,
    jobs: mpsc::Receiver<Job>,
    results: mpsc::Sender<CommitResult>,
}

impl Writer {
    fn run(mut self) {
        let mut last: Option<Instant> = None;
        while let Some(first) = self.jobs.blocking_recv() {
            if last.is_some_and(|last| last.elapsed() < GATHER) {
                std::thread::sleep(GATHER);
            }
            let mut bytes = first.bytes();
            let mut group = vec![first];
            while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX {
                let Ok(job) = self.jobs.try_recv() else { break };
                bytes += job.bytes();
                group.push(job);
            }
            let fit: Vec<bool> = group.iter().map(Job::fits).collect();
            let result = if fit.contains(&true) { self.write(&group, &fit, bytes) } else { Ok(()) };
            if let Err(error) = &result {
                error!(%error, "a commit failed");
            }
            for (job, fit) in group.iter().zip(fit) {
                let result = if fit { result.clone() } else { Err(CommitError::Unfit) };
                if self.results.blocking_send(CommitResult { ticket: job.ticket, result }).is_err() {
                    // The agent is ending and does not wait for results; what is queued is written all the same.
                    continue;
                }
            }
            last = Some(Instant::now());
        }
        if let Ok(sled) = self.sled {
            sled.close();
        }
    }

    fn write(&mut self, group: &[Job], fit: &[bool], bytes: usize) -> Result<(), CommitError> {
        let sled = match &self.sled {
            Ok(sled) => sled,
            Err(reason) => return Err(CommitError::Broken(reason.clone())),
        };
        let needed_bytes = if self.free_bytes_min == 0 { 0 } else { self.free_bytes_min + 4 * bytes as u64 };
        match rustix::fs::statvfs(&self.path).map(|disk| disk.f_bavail * disk.f_frsize) {
            Ok(free_bytes) if free_bytes < needed_bytes => {
                return Err(CommitError::DiskFull { free_bytes, needed_bytes });
            }
            Ok(_) => {}
            // The write will tell.
            Err(errno) => warn!(%errno, "the free space of the disk is not known"),
        }
        let count = self.count + group.len() as u64;
        let mut batch = sled::Batch::default();
        for (job, _) in group.iter().zip(fit).filter(|(_, fit)| **fit) {
            for change in job.changes.iter() {
                match &change.value {
                    Some(value) => batch.insert(change.key.as_slice(), encode(&change.key, value)),
                    None => batch.remove(change.key.as_slice()),
                }
            }
        }
        batch.insert(COUNT_KEY, encode(COUNT_KEY, &count.to_be_bytes()));
        let written = sled.apply(batch);
        // A failed sync may have lost what it was to write, and the next one would not say so: it is final too.
        let synced = written.and_then(|()| {
            sync_all(&self.path, &mut self.synced_blobs).map_err(|error| format!("its files cannot be synced: {error}"))
        });
        match synced {
            Ok(()) => {
                self.count = count;
                self.mark.write(count);
                Ok(())
            }
            Err(reason) => {
                self.sled = Err(reason.clone());
                Err(CommitError::Broken(reason))
            }
        }
    }
}

impl Job {
    fn bytes(&self) -> usize {
        let size = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, Vec::len) + HEADER_BYTES;
        self.changes.iter().map(size).sum()
    }

    fn fits(&self) -> bool {
        self.changes.iter().all(|change| {
            (1..=KEY_BYTES_MAX).contains(&change.key.len())
                && change.key[0] != COUNT_KEY[0]
                && change.value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
        })
    }
}

// ---- records ----

fn checksum(key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    let mut checksum = [0; CHECKSUM_BYTES];
    checksum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM_BYTES]);
    checksum
}

fn encode(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + value.len());
    record.push(RECORD_VERSION);
    record.extend(checksum(key, value));
    record.extend(value);
    record
}

fn decode<'a>(key: &[u8], record: &'a [u8]) -> Option<&'a [u8]> {
    let (version, rest) = record.split_first()?;
    let (sum, value) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
    (*version == RECORD_VERSION && *sum == checksum(key, value)).then_some(value)
}

// ---- sled ----

/// What was in a store.
#[derive(Debug, Default)]
struct Contents {
    records: Vec<(Vec<u8>, Vec<u8>)>,
    damaged: usize,
    /// Commits so far; 0 if that record is not sound.
    count: u64,
    size_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// Not the data's fault: setting it aside would not help.
    #[error("{0}")]
    System(io::Error),
    #[error("{0}")]
    Damaged(String),
}

/// sled, on a thread of its own: damaged files and failed writes make it return errors, panic, or not return.
///
/// Without orders any more the thread closes it.
#[derive(Debug)]
struct Sled {
    orders: SyncSender<sled::Batch>,
    /// One answer for each order, and one more when it is closed.
    done: Receiver<Result<(), String>>,
}

impl Sled {
    /// Opens the database (an empty one if there is none) and reads it.
    fn open(path: &Path) -> Result<(Self, Contents), Trouble> {
        let path = path.to_owned();
        let (orders, order_receiver) = sync_channel(1);
        let (done_sender, done) = sync_channel(2);
        let (opened_sender, opened) = sync_channel(1);
        std::thread::Builder::new()
            .name("store-sled".to_owned())
            .spawn(move || {
                let (db, result) = match guard(|| read(&path)) {
                    Ok(Ok((db, contents))) => (Some(db), Ok(contents)),
                    Ok(Err(trouble)) => (None, Err(trouble)),
                    Err(panic) => (None, Err(Trouble::Damaged(panic))),
                };
                let waited_for = opened_sender.send(result).is_ok();
                if let (Some(db), true) = (db, waited_for) {
                    obey(db, &order_receiver, &done_sender);
                }
            })
            .map_err(Trouble::System)?;
        match opened.recv_timeout(OPEN_TIMEOUT) {
            Ok(contents) => Ok((Self { orders, done }, contents?)),
            Err(_) => Err(Trouble::Damaged(format!("it did not open within {} s", OPEN_TIMEOUT.as_secs()))),
        }
    }

    /// Applies the batch as one and flushes; what reaches the disk's cache that way needs [`sync_all`] yet.
    fn apply(&self, batch: sled::Batch) -> Result<(), String> {
        self.orders.send(batch).map_err(|_| "the database has ended".to_owned())?;
        let hung = |_| format!("the database did not answer within {} s", WRITE_TIMEOUT.as_secs());
        self.done.recv_timeout(WRITE_TIMEOUT).map_err(hung)?
    }

    fn close(self) {
        drop(self.orders);
        match self.done.recv_timeout(CLOSE_TIMEOUT) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => warn!(%reason, "the database did not close well; nothing that was acknowledged is lost"),
            Err(_) => warn!("the database does not close; nothing that was acknowledged is lost"),
        }
    }
}

/// Carries out orders until there are none, or one fails.
fn obey(db: sled::Db, orders: &Receiver<sled::Batch>, done: &SyncSender<Result<(), String>>) {
    // Nobody may be waiting for an answer any more after a timeout; then nothing is left to be told.
    let answer = |result| done.send(result).is_ok();
    while let Ok(batch) = orders.recv() {
        let written =
            guard(|| db.apply_batch(batch).and_then(|()| db.flush()).map(drop).map_err(|error| error.to_string()));
        let written = written.and_then(|result| result);
        if written.is_err() {
            // Closing it would wait for ever for what could not be written, and hold up every other database of this
            // process meanwhile.
            std::mem::forget(db);
            answer(written);
            return;
        }
        if !answer(written) {
            return;
        }
    }
    answer(guard(|| drop(db)));
}

/// Runs what may panic inside sled; the panic's text is the error.
fn guard<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        format!("the database panicked: {text}")
    })
}

/// Locks a file, and waits for it for a while: a process that was just forked holds what its parent had locked until
/// it runs its own program.
fn lock_within(file: &File, timeout: Duration) -> Result<(), rustix::io::Errno> {
    let deadline = Instant::now() + timeout;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// Waits until nobody holds the lock on sled's file: sled itself would not wait, and its refusal looks like damage.
fn wait_for_lock(path: &Path) -> io::Result<()> {
    let file = match File::open(path.join(SLED_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    match lock_within(&file, LOCK_TIMEOUT) {
        // Closing the file would not be enough if it was inherited meanwhile.
        Ok(()) => Ok(rustix::fs::flock(&file, FlockOperation::Unlock)?),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process has the database open"))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn read(path: &Path) -> Result<(sled::Db, Contents), Trouble> {
    wait_for_lock(path).map_err(Trouble::System)?;
    let db = sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .mode(sled::Mode::LowSpace)
        .flush_every_ms(None)
        .open()
        .map_err(trouble)?;
    let mut contents = Contents { size_bytes: db.size_on_disk().map_err(trouble)?, ..Contents::default() };
    for record in db.iter() {
        let (key, record) = record.map_err(trouble)?;
        match decode(&key, &record) {
            Some(value) if key == COUNT_KEY => contents.count = value.try_into().map(u64::from_be_bytes).unwrap_or(0),
            Some(value) => contents.records.push((key.to_vec(), value.to_vec())),
            None => contents.damaged += 1,
        }
    }
    Ok((db, contents))
}

fn trouble(error: sled::Error) -> Trouble {
    match error {
        sled::Error::Io(source)
            if matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::StorageFull
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::QuotaExceeded
            ) =>
        {
            Trouble::System(source)
        }
        error => Trouble::Damaged(error.to_string()),
    }
}

fn set_aside(dir: &Path, path: &Path) -> Result<PathBuf, StoreError> {
    let aside = (1..).map(|n| dir.join(format!("store.damaged-{n}"))).find(|aside| !aside.exists());
    let aside = aside.unwrap_or_else(|| dir.join("store.damaged"));
    fs::rename(path, &aside).and_then(|()| sync_dir(dir)).map_err(failed("set aside", path))?;
    Ok(aside)
}

/// Copies the records to a new store beside the old one.
fn fill_anew(dir: &Path, records: &[(Vec<u8>, Vec<u8>)], count: u64) -> Result<(), String> {
    let rebuilt = dir.join(REBUILT_DIR);
    let (sled, _) = Sled::open(&rebuilt).map_err(|trouble| trouble.to_string())?;
    let mut batch = sled::Batch::default();
    for (key, value) in records {
        batch.insert(key.as_slice(), encode(key, value));
    }
    batch.insert(COUNT_KEY, encode(COUNT_KEY, &count.to_be_bytes()));
    sled.apply(batch)?;
    sled.close();
    sync_all(&rebuilt, &mut HashSet::new()).map_err(|error| error.to_string())
}

/// Puts the new store in the place of the old one and opens it.
fn replace(dir: &Path, path: &Path) -> Result<(Sled, Contents), StoreError> {
    let (rebuilt, retired) = (dir.join(REBUILT_DIR), dir.join(RETIRED_DIR));
    fs::rename(path, &retired).map_err(failed("rename", path))?;
    fs::rename(&rebuilt, path).and_then(|()| sync_dir(dir)).map_err(failed("rename", &rebuilt))?;
    fs::remove_dir_all(&retired).map_err(failed("remove", &retired))?;
    Sled::open(path).map_err(|trouble| StoreError::Unusable { dir: dir.to_owned(), reason: trouble.to_string() })
}

/// Cleans up after a rebuild that was interrupted: the old store counts until the new one has its name.
fn finish_rebuild(dir: &Path) -> Result<(), StoreError> {
    let (path, rebuilt, retired) = (dir.join(STORE_DIR), dir.join(REBUILT_DIR), dir.join(RETIRED_DIR));
    if retired.exists() && !path.exists() {
        fs::rename(&retired, &path).and_then(|()| sync_dir(dir)).map_err(failed("restore", &path))?;
    }
    for leftover in [rebuilt, retired] {
        if leftover.exists() {
            fs::remove_dir_all(&leftover).map_err(failed("remove", &leftover))?;
        }
    }
    Ok(())
}

// ---- the disk ----

/// Brings sled's files to the disk: the log, large values that it keeps as files, and the directories. Snapshots are
/// synced by sled, their names are not.
fn sync_all(path: &Path, synced_blobs: &mut HashSet<PathBuf>) -> io::Result<()> {
    let blobs = path.join("blobs");
    let mut present = HashSet::new();
    for entry in fs::read_dir(&blobs)? {
        let blob = entry?.path();
        if !synced_blobs.contains(&blob) {
            match File::open(&blob) {
                Ok(file) => file.sync_all()?,
                // sled collected it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        present.insert(blob);
    }
    if present != *synced_blobs {
        sync_dir(&blobs)?;
        *synced_blobs = present;
    }
    File::open(path.join("db"))?.sync_data()?;
    sync_dir(path)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// How many commits were acknowledged. Written after each without syncing: what it says is always true, and after a
/// power cut it may say less than there was.
#[derive(Debug)]
struct Mark(File);

impl Mark {
    fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(MARK_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        Ok(Self(file.map_err(failed("open", &path))?))
    }

    /// The count; 0 where it is not readable.
    fn read(&self) -> u64 {
        let mut bytes = [0; 8 + CHECKSUM_BYTES];
        if self.0.read_exact_at(&mut bytes, 0).is_err() {
            return 0;
        }
        let (count, sum) = bytes.split_at(8);
        if *sum != checksum(MARK_FILE.as_bytes(), count) {
            return 0;
        }
        count.try_into().map(u64::from_be_bytes).unwrap_or(0)
    }

    fn write(&self, count: u64) {
        let count = count.to_be_bytes();
        let mut bytes = count.to_vec();
        bytes.extend(checksum(MARK_FILE.as_bytes(), &count));
        if let Err(error) = self.0.write_all_at(&bytes, 0) {
            warn!(%error, "the count of commits could not be noted; a loss of data may go unreported");
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}
