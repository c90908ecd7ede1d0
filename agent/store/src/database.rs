//! sled on a thread of its own, which is abandoned when sled fails or hangs.
//!
//! It is written at checkpoints only, each of which takes it from one count of commits to a later one in one batch.
//! Beside that count it keeps the number of its records and the sum of their checksums: so missing, outdated or wrong
//! records are noticed when it is read as a whole.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tracing::warn;

use super::disk::sync_all;
use super::frame::{decode, encode, live_bytes};
use super::journal::{Changes, SnapshotWriter, Totals};
use super::layout::SLED_FILE;
use super::lock::{LOCK_TIMEOUT, lock_within};
use super::order::Order;
use super::reading::Reader;

/// The record with sled's count of commits. No other key may begin with this byte.
pub(super) const COUNT_KEY: &[u8] = &[0xff];

/// sled's cache; all state is in the scheduler's memory anyway.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// A store that does not open within this time is taken for damaged. 100,000 records open in well under a second.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A write that takes longer counts as failed. A spinning disk under full load takes seconds.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time for copying all records.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest time for closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

const HUNG: &str = "the database did not answer in time";

/// Records that are copied at once.
const COPY_RECORDS: usize = 1000;

/// The content of a database.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// All sound records, by key.
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys of records that are not sound.
    pub(super) damaged: Vec<Vec<u8>>,
    /// Commits up to the last checkpoint; 0 if that record is not sound.
    pub(super) count: u64,
    /// Whether the records are exactly those of the last checkpoint.
    pub(super) is_whole: bool,
    /// Bytes of sled's files.
    pub(super) size_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// A fault of the system, not of the data: setting the data aside would not help.
    #[error("{0}")]
    System(io::Error),
    #[error("{0}")]
    Damaged(String),
}

/// sled, on a thread of its own: on damaged files or failed writes it returns errors, panics, or does not return.
///
/// Dropping the sender of orders makes the thread close it.
#[derive(Debug)]
pub(super) struct Database {
    orders: SyncSender<Order>,
    /// The reader that reads from it.
    reader: Option<Reader>,
    /// One answer for each order, and one more when it is closed.
    done: Receiver<Result<u64, String>>,
    /// When the order under way must be done.
    due: Option<Instant>,
}

impl Database {
    /// Opens the database (an empty one if there is none) and reads it.
    pub(super) fn open(path: &Path) -> Result<(Self, Contents), Trouble> {
        let path = path.to_owned();
        let (orders, order_receiver) = sync_channel(1);
        let (done_sender, done) = sync_channel(2);
        let (opened_sender, opened) = sync_channel(1);
        std::thread::Builder::new()
            .name("store-sled".to_owned())
            .spawn(move || {
                let (db, result) = match guard(|| read(&path)) {
                    Ok(Ok((db, totals, contents))) => (Some((db, totals, live_bytes(&contents.records))), Ok(contents)),
                    Ok(Err(trouble)) => (None, Err(trouble)),
                    Err(panic) => (None, Err(Trouble::Damaged(panic))),
                };
                let waited_for = opened_sender.send(result).is_ok();
                if let (Some((db, totals, live_bytes)), true) = (db, waited_for) {
                    let synced_blobs = HashSet::new();
                    Index { db, totals, live_bytes, path, synced_blobs }.obey(&order_receiver, &done_sender);
                }
            })
            .map_err(Trouble::System)?;
        match opened.recv_timeout(OPEN_TIMEOUT) {
            Ok(contents) => Ok((Self { orders, reader: None, done, due: None }, contents?)),
            Err(_) => Err(Trouble::Damaged(format!("it did not open within {} s", OPEN_TIMEOUT.as_secs()))),
        }
    }

    /// Makes `reader` read from this database until it is closed.
    pub(super) fn read_by(&mut self, reader: &Reader) {
        reader.follow(Some(self.orders.clone()));
        self.reader = Some(reader.clone());
    }

    /// Applies the changes and records that it now holds `count` commits, durably and atomically.
    pub(super) fn checkpoint(&mut self, changes: Changes, count: u64) -> Result<(), String> {
        self.begin_checkpoint(changes, count)?;
        self.wait().map(drop)
    }

    /// Starts [`Database::checkpoint`] in the background; [`Database::poll`] returns its result.
    pub(super) fn begin_checkpoint(&mut self, changes: Changes, count: u64) -> Result<(), String> {
        self.begin(Order::Checkpoint(changes, count), WRITE_TIMEOUT)
    }

    /// Starts writing all records as the snapshot of a new generation; [`Database::poll`] returns its result.
    pub(super) fn begin_snapshot(&mut self, path: &Path) -> Result<(), String> {
        self.begin(Order::Snapshot(path.to_owned()), COPY_TIMEOUT)
    }

    /// Copies all sound records to a new database at `path`, which must not exist, and reads them back. Returns the
    /// bytes of its records.
    pub(super) fn copy(&mut self, path: &Path) -> Result<u64, String> {
        self.begin(Order::Copy(path.to_owned()), COPY_TIMEOUT)?;
        self.wait()
    }

    /// Bytes of sled's files.
    pub(super) fn size_bytes(&mut self) -> Result<u64, String> {
        self.begin(Order::Measure, WRITE_TIMEOUT)?;
        self.wait()
    }

    fn begin(&mut self, order: Order, timeout: Duration) -> Result<(), String> {
        self.due = Some(Instant::now() + timeout);
        self.orders.send(order).map_err(|_| "the database has ended".to_owned())
    }

    /// The result of the order under way, if it is done.
    pub(super) fn poll(&mut self) -> Option<Result<u64, String>> {
        match self.done.try_recv() {
            Err(TryRecvError::Empty) if self.due.is_none_or(|due| Instant::now() < due) => None,
            Err(TryRecvError::Empty) => Some(Err(HUNG.to_owned())),
            Err(TryRecvError::Disconnected) => Some(Err("the database has ended".to_owned())),
            Ok(result) => Some(result),
        }
    }

    /// Waits for the result of the order under way.
    pub(super) fn wait(&mut self) -> Result<u64, String> {
        let left = self.due.map_or(WRITE_TIMEOUT, |due| due.saturating_duration_since(Instant::now()));
        self.done.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => HUNG.to_owned(),
            RecvTimeoutError::Disconnected => "the database has ended".to_owned(),
        })?
    }

    pub(super) fn close(self) {
        if let Some(reader) = self.reader {
            reader.follow(None);
        }
        drop(self.orders);
        match self.done.recv_timeout(CLOSE_TIMEOUT) {
            Ok(Ok(_)) => {}
            Ok(Err(reason)) => warn!(%reason, "the database did not close well; nothing that was acknowledged is lost"),
            Err(_) => warn!("the database does not close; nothing that was acknowledged is lost"),
        }
    }
}

/// The open database, on its thread.
struct Index {
    db: sled::Db,
    totals: Totals,
    /// Bytes of all keys and records.
    live_bytes: u64,
    path: PathBuf,
    /// Files of large values that are synced already.
    synced_blobs: HashSet<PathBuf>,
}

impl Index {
    /// Carries out orders until the sender is dropped, or a write fails.
    fn obey(mut self, orders: &Receiver<Order>, done: &SyncSender<Result<u64, String>>) {
        // After a timeout nobody waits for the answer: stop.
        let answer = |result| done.send(result).is_ok();
        while let Ok(order) = orders.recv() {
            let writes = matches!(order, Order::Checkpoint(..));
            if let Order::Read(wanted) = order {
                // A panic drops the reply channel, which tells the caller.
                drop(guard(|| wanted.read(&self.db)));
                continue;
            }
            let result = guard(|| match order {
                Order::Checkpoint(changes, count) => self.checkpoint(changes, count),
                Order::Snapshot(path) => snapshot(&self.db, self.totals, &path).map_err(|trouble| trouble.to_string()),
                Order::Copy(path) => copy(&self.db, &path).map_err(|trouble| trouble.to_string()),
                Order::Measure => self.db.size_on_disk().map_err(|error| error.to_string()),
                Order::Read(_) => Ok(0),
            });
            let result = result.and_then(|result| result);
            if writes && result.is_err() {
                // Closing it would wait for ever for the failed write, and block every other database of this process.
                std::mem::forget(self.db);
                answer(result);
                return;
            }
            if !answer(result) {
                return;
            }
        }
        answer(guard(|| drop(self.db)).map(|()| 0));
    }

    /// Returns the bytes of its records.
    fn checkpoint(&mut self, changes: Changes, count: u64) -> Result<u64, String> {
        let (mut totals, mut live_bytes) = (self.totals, self.live_bytes);
        let mut batch = sled::Batch::default();
        for (key, record) in changes {
            if let Some(old) = self.db.get(&key).map_err(|error| error.to_string())? {
                totals.remove(&old);
                live_bytes = live_bytes.saturating_sub((key.len() + old.len()) as u64);
            }
            match record {
                Some(record) => {
                    totals.add(&record);
                    live_bytes += (key.len() + record.len()) as u64;
                    batch.insert(key, record);
                }
                None => batch.remove(key),
            }
        }
        batch.insert(COUNT_KEY, encode(COUNT_KEY, &[&count.to_be_bytes()[..], &totals.to_bytes()].concat()));
        self.db.apply_batch(batch).and_then(|()| self.db.flush()).map_err(|error| error.to_string())?;
        // sled's own flush does not sync the files.
        sync_all(&self.path, &mut self.synced_blobs).map_err(|error| format!("its files cannot be synced: {error}"))?;
        (self.totals, self.live_bytes) = (totals, live_bytes);
        Ok(live_bytes)
    }
}

/// Runs code that may panic inside sled, and returns the panic's text as the error.
fn guard<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        format!("the database panicked: {text}")
    })
}

/// Waits until the lock on sled's file is free: sled itself would not wait, and its refusal looks like damage.
pub(super) fn wait_for_lock(path: &Path) -> io::Result<()> {
    let file = match File::open(path.join(SLED_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    match lock_within(&file, LOCK_TIMEOUT) {
        // Closing the file would not unlock it if a child process inherited it meanwhile.
        Ok(()) => Ok(rustix::fs::flock(&file, FlockOperation::Unlock)?),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process has the database open"))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes snapshots that sled had not completed when the process was killed: it takes the one whose name sorts last
/// for the latest, even if it is incomplete. The log has everything that is in them.
fn remove_unfinished_snapshots(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("snap.") && name.ends_with(".generating")) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<sled::Db, Trouble> {
    wait_for_lock(path).map_err(Trouble::System)?;
    remove_unfinished_snapshots(path).map_err(Trouble::System)?;
    sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .mode(sled::Mode::LowSpace)
        .flush_every_ms(None)
        .open()
        .map_err(trouble)
}

fn read(path: &Path) -> Result<(sled::Db, Totals, Contents), Trouble> {
    let db = open(path)?;
    let mut contents = Contents { size_bytes: db.size_on_disk().map_err(trouble)?, ..Contents::default() };
    let mut totals = Totals::default();
    // The totals that it recorded; an empty one has none, and one from before the journal tells nothing.
    let mut recorded = Some(Totals::default());
    for record in db.iter() {
        let (key, record) = record.map_err(trouble)?;
        match decode(&key, &record) {
            Some(value) if key == COUNT_KEY => match value.split_first_chunk::<8>() {
                Some((count, rest)) => {
                    contents.count = u64::from_be_bytes(*count);
                    recorded = Totals::from_bytes(rest);
                }
                None => contents.damaged.push(key.to_vec()),
            },
            Some(value) => {
                totals.add(&record);
                contents.records.push((key.to_vec(), value.to_vec()));
            }
            None => contents.damaged.push(key.to_vec()),
        }
    }
    contents.is_whole = contents.damaged.is_empty() && recorded.is_none_or(|recorded| recorded == totals);
    Ok((db, totals, contents))
}

/// Writes the snapshot of a new generation, if all records are as they were written.
fn snapshot(db: &sled::Db, totals: Totals, path: &Path) -> Result<u64, Trouble> {
    let io = |error: io::Error| trouble(sled::Error::Io(error));
    let count = db.get(COUNT_KEY).map_err(trouble)?;
    let count = count.as_deref().and_then(|record| decode(COUNT_KEY, record)?.first_chunk().copied());
    let count = count.ok_or_else(|| Trouble::Damaged("its count of commits is gone".to_owned()))?;
    let mut writer = SnapshotWriter::create(path, u64::from_be_bytes(count)).map_err(io)?;
    for record in db.iter() {
        let (key, record) = record.map_err(trouble)?;
        if key != COUNT_KEY && decode(&key, &record).is_some() {
            writer.push(&key, &record).map_err(io)?;
        }
    }
    if writer.finish(path).map_err(io)? != totals {
        return Err(Trouble::Damaged("it does not give back what was written to it".to_owned()));
    }
    Ok(0)
}

/// Exports the sound records and imports them at `path`, then reads them back.
fn copy(db: &sled::Db, path: &Path) -> Result<u64, Trouble> {
    let new = open(path)?;
    let (mut batch, mut waiting, mut copied) = (sled::Batch::default(), 0, 0);
    for record in db.iter() {
        let (key, record) = record.map_err(trouble)?;
        if decode(&key, &record).is_none() {
            continue;
        }
        copied += usize::from(key != COUNT_KEY);
        batch.insert(key, record);
        waiting += 1;
        if waiting == COPY_RECORDS {
            new.apply_batch(std::mem::take(&mut batch)).map_err(trouble)?;
            waiting = 0;
        }
    }
    new.apply_batch(batch).map_err(trouble)?;
    new.flush().map_err(trouble)?;
    drop(new);
    let (again, _, contents) = read(path)?;
    drop(again);
    if !contents.is_whole || contents.records.len() != copied {
        let there = contents.records.len();
        return Err(Trouble::Damaged(format!("of {copied} records that were copied {there} are sound")));
    }
    Ok(live_bytes(&contents.records))
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
