//! Programs, inputs and results: files named by the BLAKE3 hash of their content.
//!
//! A blob lives under `<dir>/ab/cdef…` and never changes. Writers fill a file under `<dir>/tmp`, hash it meanwhile and
//! rename it at the end, so a name never stands for half a file. Blobs of an earlier process are hashed again at their
//! first use: one that was torn by a power cut or changed by the disk is dropped instead of served; one that cannot be
//! read at the moment stays.
//! The quota counts finished blobs, unfinished ones, and small outputs in records of the store. Unpinned blobs are
//! evicted, least recently used first; before any of them, the beginnings of interrupted downloads (`partial`).
//!
//! Pins are counts in memory; an owner that needs a blob across restarts pins it again when it restores its records.
//! Left out: storing blobs in the database (200 blobs of 1 MiB cost sled 594 MB of disk and 262 MB of memory),
//! deduplication of parts of blobs, and compression. All calls touch the disk: async callers go through
//! `spawn_blocking`.

mod durable;
mod partial;
mod readers;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tempfile::NamedTempFile;
use tracing::warn;

use self::partial::Partial;

pub use self::partial::Incoming;
pub use self::readers::{Claim, Loan, To};
pub use self::writer::BlobWriter;
/// Name of a blob: the BLAKE3 hash of its content.
pub use blake3::Hash;

/// Where unfinished blobs live, beside the two-letter directories.
const TMP_DIR: &str = "tmp";

/// Disk space that blobs leave free: records are more important. Our choice: twice what the store leaves.
const DISK_FREE_MIN: u64 = 16 << 20;

/// Why a blob could not be stored or read. A failed insert leaves nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}; check the disk and the permissions of the state directory", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The quota is used up by blobs that are needed.
    #[error(
        "no room for {needed_bytes} more bytes of blobs: {kept_bytes} of the quota of {quota_bytes} bytes are in use by \
         running work; raise the disk quota or wait until tasks finish"
    )]
    Full {
        /// The size requested.
        needed_bytes: u64,
        /// Bytes that cannot be evicted: pinned and unfinished blobs.
        kept_bytes: u64,
        /// The quota.
        quota_bytes: u64,
    },
    /// The disk has less free space than the blob and the space reserved for records need.
    #[error(
        "no room for {needed_bytes} more bytes of blobs: the disk has {free_bytes} bytes free, of which {DISK_FREE_MIN} stay free; \
         free some space"
    )]
    DiskFull {
        /// The size requested.
        needed_bytes: u64,
        /// Free space; evicting everything possible would not suffice.
        free_bytes: u64,
    },
    /// A download exceeded its size limit.
    #[error("blob {hash} is larger than the {size_max} bytes that were allowed for it")]
    TooLarge {
        /// The blob.
        hash: Hash,
        /// The limit.
        size_max: u64,
    },
    /// The content received has another hash.
    #[error("blob {expected} was sent with other content (its hash is {got}); try another source")]
    Mismatch {
        /// The hash requested.
        expected: Hash,
        /// The hash of the content.
        got: Hash,
    },
    /// The blob is not stored here.
    #[error("blob {hash} is not here; fetch it first")]
    Missing {
        /// The blob.
        hash: Hash,
    },
}

impl BlobError {
    /// Whether the operation failed for lack of space.
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Full { .. } | Self::DiskFull { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::TooLarge { .. } | Self::Mismatch { .. } | Self::Missing { .. } => false,
        }
    }
}

/// A piece of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Length of the whole blob, in bytes.
    pub total: u64,
    /// The bytes at the offset that was asked for; shorter than asked at the end of the blob.
    pub bytes: Vec<u8>,
}

/// The blobs of one machine. Clones share them; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct Blobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    quota_bytes: AtomicU64,
    // Held for look-ups, renames and unlinks, never while content is read, written or hashed.
    index: Mutex<Index>,
    syncs: durable::Syncs,
    readers: readers::Readers,
}

#[derive(Debug, Default)]
struct Index {
    blobs: HashMap<Hash, Entry>,
    /// Unpinned blobs by last use, oldest first.
    idle: BTreeMap<u64, Hash>,
    pins: HashMap<Hash, u32>,
    total_bytes: u64,
    /// Of `total_bytes`, those of small outputs in records of the store.
    record_bytes: u64,
    /// Bytes of blobs that are being written.
    reserved_bytes: u64,
    /// Beginnings of interrupted downloads.
    partials: HashMap<Hash, Partial>,
    partial_bytes: u64,
    /// Bytes of the blobs in `idle`.
    idle_bytes: u64,
    /// Bytes that could not be evicted, and the quota, when a blob made here last found no room.
    refused: Option<(u64, u64)>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u64,
    /// Key in `idle` while it is unpinned.
    used: u64,
    /// Whether this process has hashed the content.
    verified: bool,
    /// Whether this process has synced it.
    durable: bool,
}

impl Index {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn touch(&mut self, hash: Hash) {
        let now = self.tick();
        if let Some(entry) = self.blobs.get_mut(&hash) {
            if self.idle.remove(&entry.used).is_some() {
                self.idle.insert(now, hash);
            }
            entry.used = now;
        }
    }

    /// Bytes that eviction can free.
    fn evictable_bytes(&self) -> u64 {
        self.idle_bytes + self.partial_bytes
    }

    fn insert(&mut self, hash: Hash, len: u64, verified: bool) {
        self.remove(hash);
        let used = self.tick();
        self.blobs.insert(hash, Entry { len, used, verified, durable: false });
        self.total_bytes += len;
        if !self.pins.contains_key(&hash) {
            self.idle.insert(used, hash);
            self.idle_bytes += len;
        }
    }

    fn remove(&mut self, hash: Hash) {
        if let Some(entry) = self.blobs.remove(&hash) {
            self.total_bytes -= entry.len;
            if self.idle.remove(&entry.used).is_some() {
                self.idle_bytes -= entry.len;
            }
        }
    }
}

impl Blobs {
    /// Opens the blobs under `dir` (created if missing, 0700), of at most `quota_bytes` together. Removes unfinished
    /// files of an interrupted process, and evicts if the quota has become smaller.
    ///
    /// The caller holds the lock of the state directory.
    ///
    /// # Errors
    /// When the directory cannot be read or written.
    pub fn open(dir: &Path, quota_bytes: u64) -> Result<Self, BlobError> {
        let tmp = dir.join(TMP_DIR);
        if tmp.exists() {
            fs::remove_dir_all(&tmp).map_err(failed("remove unfinished blobs in", &tmp))?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&tmp).map_err(failed("create", &tmp))?;
        // Else a power cut could remove the directory itself, with everything synced inside it.
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent).and_then(|file| file.sync_all()).map_err(failed("sync", parent))?;
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
            let shard = entry.map_err(failed("list", dir))?.path();
            if shard == tmp || !shard.is_dir() {
                continue;
            }
            for entry in fs::read_dir(&shard).map_err(failed("list", &shard))? {
                let entry = entry.map_err(failed("list", &shard))?;
                let path = entry.path();
                let Some(hash) = hash_of(&path) else {
                    warn!(path = %path.display(), "not a blob; left alone");
                    continue;
                };
                let metadata = entry.metadata().map_err(failed("read", &path))?;
                let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((modified, *hash.as_bytes(), metadata.len()));
            }
        }
        found.sort_unstable();
        let mut index = Index::default();
        for (_, hash, len) in found {
            index.insert(hash.into(), len, false);
        }
        let blobs = Self(Arc::new(Inner {
            dir: dir.to_owned(),
            quota_bytes: AtomicU64::new(quota_bytes),
            index: Mutex::new(index),
            syncs: durable::Syncs::default(),
            readers: readers::Readers::default(),
        }));
        // Nothing is pinned yet, so there is always something to evict.
        blobs.make_room(&mut blobs.index(), 0)?;
        Ok(blobs)
    }

    /// Stores `bytes` and returns their name. Not durable: see [`Blobs::put_durable`].
    ///
    /// # Errors
    /// When there is no room, or the disk refuses.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<Hash, BlobError> {
        let hash = blake3::hash(bytes);
        if self.is_verified(hash) {
            return Ok(hash);
        }
        let mut writer = self.draft(None, u64::MAX)?;
        writer.write(bytes)?;
        writer.finish()
    }

    /// Stores `bytes` so that they survive a power cut once this returns.
    ///
    /// # Errors
    /// As [`Blobs::put_bytes`].
    pub fn put_durable(&self, bytes: &[u8]) -> Result<Hash, BlobError> {
        let hash = self.put_bytes(bytes)?;
        self.make_durable(hash)?;
        Ok(hash)
    }

    /// Makes a stored blob survive a power cut: syncs the file and the directories that name it, in a group with other
    /// blobs that are being made durable.
    ///
    /// # Errors
    /// When there is no such blob, or the disk refuses.
    pub fn make_durable(&self, hash: Hash) -> Result<(), BlobError> {
        if self.is_durable(hash) {
            return Ok(());
        }
        let path = self.path(hash)?.ok_or(BlobError::Missing { hash })?;
        self.0.syncs.sync(&self.0.dir, path)?;
        if let Some(entry) = self.index().blobs.get_mut(&hash) {
            entry.durable = true;
        }
        Ok(())
    }

    /// Whether the blob is known to survive a power cut, without asking the disk.
    pub fn is_durable(&self, hash: Hash) -> bool {
        self.index().blobs.get(&hash).is_some_and(|entry| entry.durable)
    }

    /// The path of a blob, if it is here. A pinned one stays there; an unpinned one may be evicted at any time.
    ///
    /// The first use after a restart hashes the file.
    ///
    /// # Errors
    /// When the file exists and cannot be read: the blob stays, since the failure may pass.
    pub fn path(&self, hash: Hash) -> Result<Option<PathBuf>, BlobError> {
        let path = self.file_of(hash);
        let Some(Entry { verified, .. }) = self.index().blobs.get(&hash).copied() else { return Ok(None) };
        if !verified {
            match hash_file(&path) {
                Ok(got) if got == hash => {
                    if let Some(entry) = self.index().blobs.get_mut(&hash) {
                        entry.verified = true;
                    }
                }
                Ok(_) => {
                    warn!(%hash, "a blob on disk was damaged, and is removed: inputs are fetched again, the output of a task is lost");
                    self.forget(hash);
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    warn!(%hash, "a blob is gone from the disk: inputs are fetched again, the output of a task is lost");
                    self.forget(hash);
                    return Ok(None);
                }
                Err(error) => return Err(failed("read", &path)(error)),
            }
        }
        self.index().touch(hash);
        Ok(Some(path))
    }

    /// The file may have changed: its next use hashes it again.
    pub fn doubt(&self, hash: Hash) {
        if let Some(entry) = self.index().blobs.get_mut(&hash) {
            (entry.verified, entry.durable) = (false, false);
        }
    }

    /// Reads at most `max` bytes at `offset`; `None` if there is no such blob. Empty at or past the end.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn read_chunk(&self, hash: Hash, offset: u64, max: usize) -> Result<Option<Chunk>, BlobError> {
        let Some(path) = self.path(hash)? else { return Ok(None) };
        let file = match File::open(&path) {
            Ok(file) => file,
            // Evicted meanwhile, or removed by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.forget_if_gone(hash);
                return Ok(None);
            }
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let total = file.metadata().map_err(failed("read", &path))?.len();
        let len = total.saturating_sub(offset).min(max as u64);
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, offset).map_err(failed("read", &path))?;
        Ok(Some(Chunk { total, bytes }))
    }

    /// Makes room for a small output that a record of the store will hold.
    ///
    /// # Errors
    /// [`BlobError::Full`].
    pub fn make_room_in_records(&self, bytes: u64) -> Result<(), BlobError> {
        let mut index = self.index();
        self.make_room(&mut index, bytes).inspect_err(|error| {
            if let BlobError::Full { kept_bytes, quota_bytes, .. } = error {
                index.refused = Some((*kept_bytes, *quota_bytes));
            }
        })
    }

    /// Replaces `before` bytes of outputs in records of the store by `now` bytes.
    pub fn count_in_records(&self, before: u64, now: u64) {
        let mut index = self.index();
        index.total_bytes = (index.total_bytes + now).saturating_sub(before);
        index.record_bytes = (index.record_bytes + now).saturating_sub(before);
    }

    /// Bytes of outputs in records of the store.
    pub fn record_bytes(&self) -> u64 {
        self.index().record_bytes
    }

    /// Changes the quota. Blobs beyond a smaller one are evicted when room is needed next.
    pub fn set_quota(&self, quota_bytes: u64) {
        self.0.quota_bytes.store(quota_bytes, Relaxed);
    }

    /// Length of the blob in bytes, if it is here.
    pub fn len(&self, hash: Hash) -> Option<u64> {
        self.index().blobs.get(&hash).map(|entry| entry.len)
    }

    /// Protects the blob from eviction until [`Blobs::unpin`] has been called as often. A blob can be pinned before it
    /// is stored.
    pub fn pin(&self, hash: Hash) {
        let mut index = self.index();
        let index = &mut *index;
        *index.pins.entry(hash).or_default() += 1;
        if let Some(entry) = index.blobs.get(&hash)
            && index.idle.remove(&entry.used).is_some()
        {
            index.idle_bytes -= entry.len;
        }
    }

    /// Undoes one [`Blobs::pin`].
    pub fn unpin(&self, hash: Hash) {
        let mut index = self.index();
        let index = &mut *index;
        match index.pins.get_mut(&hash) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                index.pins.remove(&hash);
                let now = index.tick();
                if let Some(entry) = index.blobs.get_mut(&hash) {
                    entry.used = now;
                    index.idle.insert(now, hash);
                    index.idle_bytes += entry.len;
                }
            }
            None => warn!(%hash, "a blob was unpinned more often than pinned"),
        }
    }

    /// Bytes that cannot be evicted, and the quota.
    pub fn kept_bytes(&self) -> (u64, u64) {
        let index = self.index();
        (index.total_bytes - index.idle_bytes + index.reserved_bytes, self.0.quota_bytes.load(Relaxed))
    }

    /// The quota, or the space that blobs can have on the disk if that is less.
    pub fn limit_bytes(&self) -> u64 {
        let (kept_bytes, quota_bytes) = self.kept_bytes();
        let evictable_bytes = self.index().evictable_bytes();
        match self.disk_free_bytes() {
            Ok(free_bytes) => {
                quota_bytes.min(kept_bytes + (free_bytes + evictable_bytes).saturating_sub(DISK_FREE_MIN))
            }
            Err(error) => {
                warn!(%error, "the free space of the disk is not known");
                quota_bytes
            }
        }
    }

    /// Bytes free within the quota; 0 after a blob made here found no room, until a further twentieth of the quota is
    /// free.
    pub fn room_bytes(&self) -> u64 {
        let (kept_bytes, quota_bytes) = self.kept_bytes();
        let mut index = self.index();
        if let Some((refused_at, of_quota)) = index.refused {
            if quota_bytes <= of_quota && kept_bytes + quota_bytes / 20 > refused_at {
                return 0;
            }
            index.refused = None;
        }
        quota_bytes.saturating_sub(kept_bytes)
    }

    /// Free bytes of the disk.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn disk_free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.0.dir)?;
        Ok(disk.f_bavail * disk.f_frsize)
    }

    /// Bytes in use: finished blobs and those being written.
    pub fn used_bytes(&self) -> u64 {
        let index = self.index();
        index.total_bytes + index.reserved_bytes + index.partial_bytes
    }

    /// Begins to store a blob that arrives in pieces, of at most `size_max` bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn receive(&self, hash: Hash, size_max: u64) -> Result<BlobWriter, BlobError> {
        self.draft(Some(hash), size_max)
    }

    fn draft(&self, expected: Option<Hash>, size_max: u64) -> Result<BlobWriter, BlobError> {
        let tmp = self.0.dir.join(TMP_DIR);
        let file = NamedTempFile::new_in(&tmp).map_err(failed("create a file in", &tmp))?;
        Ok(BlobWriter {
            blobs: self.clone(),
            file: Some(file),
            hasher: blake3::Hasher::new(),
            written: 0,
            expected,
            size_max,
        })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // The index is consistent wherever a panic can occur.
        self.0.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_verified(&self, hash: Hash) -> bool {
        let mut index = self.index();
        let verified = index.blobs.get(&hash).is_some_and(|entry| entry.verified);
        index.touch(hash);
        verified
    }

    /// Evicts until `needed_bytes` more fit the quota and the disk; evicts nothing for one of these if that would not
    /// suffice.
    fn make_room(&self, index: &mut Index, needed_bytes: u64) -> Result<(), BlobError> {
        let kept_bytes = index.total_bytes - index.idle_bytes + index.reserved_bytes;
        let quota_bytes = self.0.quota_bytes.load(Relaxed);
        if kept_bytes.saturating_add(needed_bytes) > quota_bytes && needed_bytes > 0 {
            return Err(BlobError::Full { needed_bytes, kept_bytes, quota_bytes });
        }
        while index.total_bytes + index.reserved_bytes + index.partial_bytes + needed_bytes > quota_bytes {
            if !self.evict(index) {
                break;
            }
        }
        self.make_room_on_disk(index, needed_bytes)
    }

    /// Evicts until the disk has `needed_bytes` beside the space that stays free; changes nothing if that is
    /// impossible.
    fn make_room_on_disk(&self, index: &mut Index, needed_bytes: u64) -> Result<(), BlobError> {
        if needed_bytes == 0 {
            return Ok(());
        }
        // If the free space is unknown, the write will show.
        let free_bytes = || self.disk_free_bytes().unwrap_or(u64::MAX);
        let lacks = |free_bytes: u64| (needed_bytes + DISK_FREE_MIN).saturating_sub(free_bytes);
        let lacking_bytes = lacks(free_bytes());
        if lacking_bytes == 0 {
            return Ok(());
        }
        if index.evictable_bytes() < lacking_bytes {
            return Err(BlobError::DiskFull { needed_bytes, free_bytes: free_bytes() });
        }
        let in_use = |index: &Index| index.total_bytes + index.partial_bytes;
        let before = in_use(index);
        // Counts evicted bytes, since some systems free the space a little later.
        while before - in_use(index) < lacking_bytes && self.evict(index) {}
        Ok(())
    }

    /// Evicts a partial blob, else the least recently used one. False if there is none.
    fn evict(&self, index: &mut Index) -> bool {
        if index.evict_partial() {
            return true;
        }
        let oldest = index.idle.first_key_value().map(|(_, &hash)| hash);
        oldest.inspect(|&hash| self.unlink(index, hash)).is_some()
    }

    fn unlink(&self, index: &mut Index, hash: Hash) {
        index.remove(hash);
        let path = self.file_of(hash);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(path = %path.display(), %error, "a blob could not be removed; the next start finds it again");
        }
    }

    fn forget(&self, hash: Hash) {
        let mut index = self.index();
        // It may have been stored anew since it was found damaged.
        if index.blobs.get(&hash).is_some_and(|entry| !entry.verified) {
            self.unlink(&mut index, hash);
        }
    }

    fn forget_if_gone(&self, hash: Hash) {
        let mut index = self.index();
        if matches!(self.file_of(hash).try_exists(), Ok(false)) {
            index.remove(hash);
        }
    }

    fn file_of(&self, hash: Hash) -> PathBuf {
        let hex = hash.to_hex();
        self.0.dir.join(&hex[..2]).join(&hex[2..])
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BlobError {
    let path = path.to_owned();
    move |source| BlobError::Io { action, path, source }
}

fn hash_file(path: &Path) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

fn hash_of(path: &Path) -> Option<Hash> {
    let shard = path.parent()?.file_name()?.to_str()?;
    let rest = path.file_name()?.to_str()?;
    let hash = Hash::from_hex(format!("{shard}{rest}")).ok()?;
    // Accepts only the spelling that `file_of` produces.
    (shard.len() == 2 && hash.to_hex().as_str() == format!("{shard}{rest}")).then_some(hash)
}

#[cfg(test)]
mod tests;
