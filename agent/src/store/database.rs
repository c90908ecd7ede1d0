//! sled on a thread of its own, given up when it fails or hangs.

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tracing::warn;

use super::frame::{HEADER_BYTES, decode};
use super::lock::{LOCK_TIMEOUT, lock_within};
use super::{COUNT_KEY, SLED_FILE};

/// sled's cache; everything is in the scheduler's memory anyway.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// A store that does not open within this time is taken for damaged. 100,000 records open in well under a second.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A group that is not on disk after this time never will be. A spinning disk under full load takes seconds.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time for copying all records.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest time for closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Records that are copied at once.
const COPY_RECORDS: usize = 1000;

/// What was in a store.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// All sound records, by key.
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys of the others.
    pub(super) damaged: Vec<Vec<u8>>,
    /// Commits so far; 0 if that record is not sound.
    pub(super) count: u64,
    /// What sled takes on disk.
    pub(super) size_bytes: u64,
}

impl Contents {
    /// What the records take without anything around them.
    pub(super) fn live_bytes(&self) -> u64 {
        self.records.iter().map(|(key, value)| (key.len() + value.len() + HEADER_BYTES) as u64).sum()
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// Not the data's fault: setting it aside would not help.
    #[error("{0}")]
    System(io::Error),
    #[error("{0}")]
    Damaged(String),
}

/// What sled is told to do.
#[derive(Debug)]
enum Order {
    Apply(sled::Batch),
    /// Copies all sound records to a new database there.
    Copy(PathBuf),
    /// How large it is.
    Measure,
}

/// sled, on a thread of its own: damaged files and failed writes make it return errors, panic, or not return.
///
/// Without orders any more the thread closes it.
#[derive(Debug)]
pub(super) struct Database {
    orders: SyncSender<Order>,
    /// One answer for each order, and one more when it is closed.
    done: Receiver<Result<u64, String>>,
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

    /// Applies the batch as one and flushes; what reaches the disk's cache that way needs `sync_all` yet.
    pub(super) fn apply(&self, batch: sled::Batch) -> Result<(), String> {
        self.order(Order::Apply(batch), WRITE_TIMEOUT).map(drop)
    }

    /// Copies all sound records to a new database at `path`, where there must be none, and reads them again there. How
    /// many bytes live in it.
    pub(super) fn copy(&self, path: &Path) -> Result<u64, String> {
        self.order(Order::Copy(path.to_owned()), COPY_TIMEOUT)
    }

    /// What it takes on disk.
    pub(super) fn size_bytes(&self) -> Result<u64, String> {
        self.order(Order::Measure, WRITE_TIMEOUT)
    }

    fn order(&self, order: Order, timeout: Duration) -> Result<u64, String> {
        self.orders.send(order).map_err(|_| "the database has ended".to_owned())?;
        let hung = |_| format!("the database did not answer within {} s", timeout.as_secs());
        self.done.recv_timeout(timeout).map_err(hung)?
    }

    pub(super) fn close(self) {
        drop(self.orders);
        match self.done.recv_timeout(CLOSE_TIMEOUT) {
            Ok(Ok(_)) => {}
            Ok(Err(reason)) => warn!(%reason, "the database did not close well; nothing that was acknowledged is lost"),
            Err(_) => warn!("the database does not close; nothing that was acknowledged is lost"),
        }
    }
}

/// Carries out orders until there are none, or a write fails.
fn obey(db: sled::Db, orders: &Receiver<Order>, done: &SyncSender<Result<u64, String>>) {
    // Nobody may be waiting for an answer any more after a timeout; then nothing is left to be told.
    let answer = |result| done.send(result).is_ok();
    while let Ok(order) = orders.recv() {
        let writes = matches!(order, Order::Apply(_));
        let result = guard(|| match order {
            Order::Apply(batch) => {
                db.apply_batch(batch).and_then(|()| db.flush()).map(|_| 0).map_err(|error| error.to_string())
            }
            Order::Copy(path) => copy(&db, &path).map_err(|trouble| trouble.to_string()),
            Order::Measure => db.size_on_disk().map_err(|error| error.to_string()),
        });
        let result = result.and_then(|result| result);
        if writes && result.is_err() {
            // Closing it would wait for ever for what could not be written, and hold up every other database of this
            // process meanwhile.
            std::mem::forget(db);
            answer(result);
            return;
        }
        if !answer(result) {
            return;
        }
    }
    answer(guard(|| drop(db)).map(|()| 0));
}

/// Runs what may panic inside sled; the panic's text is the error.
fn guard<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        format!("the database panicked: {text}")
    })
}

/// Waits until nobody holds the lock on sled's file: sled itself would not wait, and its refusal looks like damage.
pub(super) fn wait_for_lock(path: &Path) -> io::Result<()> {
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

/// Removes what sled had not written to the end when the process was killed: it takes the name that sorts last for its
/// latest snapshot, and an unfinished one sorts behind the good one and is no snapshot. The log has all that is in it.
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

fn read(path: &Path) -> Result<(sled::Db, Contents), Trouble> {
    let db = open(path)?;
    let mut contents = Contents { size_bytes: db.size_on_disk().map_err(trouble)?, ..Contents::default() };
    for record in db.iter() {
        let (key, record) = record.map_err(trouble)?;
        match decode(&key, &record) {
            Some(value) if key == COUNT_KEY => match value.try_into() {
                Ok(count) => contents.count = u64::from_be_bytes(count),
                Err(_) => contents.damaged.push(key.to_vec()),
            },
            Some(value) => contents.records.push((key.to_vec(), value.to_vec())),
            None => contents.damaged.push(key.to_vec()),
        }
    }
    Ok((db, contents))
}

/// Exports what is sound and imports it there; what was written is read again before anybody relies on it.
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
    let (again, contents) = read(path)?;
    drop(again);
    if !contents.damaged.is_empty() || contents.records.len() != copied {
        let there = contents.records.len();
        return Err(Trouble::Damaged(format!("of {copied} records that were copied {there} are sound")));
    }
    Ok(contents.live_bytes())
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
