//! Where blobs lie, and the room that they may take: the quota, free space on the disk, and eviction.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blake3::Hash;
use tracing::warn;

use super::error::{BlobError, DISK_FREE_MIN};
use super::index::Index;

/// Where unfinished blobs live, beside the two-letter directories.
pub(super) const TMP_DIR: &str = "tmp";

/// The directory of blobs, and what is known of it.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) dir: PathBuf,
    pub(super) quota_bytes: AtomicU64,
    // Held for look-ups, renames and unlinks, never while content is read, written or hashed.
    index: Mutex<Index>,
}

impl Space {
    pub(super) fn new(dir: PathBuf, quota_bytes: u64, index: Index) -> Self {
        Self { dir, quota_bytes: AtomicU64::new(quota_bytes), index: Mutex::new(index) }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        // The index is consistent wherever a panic can occur.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Free bytes of the disk.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub(super) fn disk_free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.dir)?;
        Ok(disk.f_bavail * disk.f_frsize)
    }

    /// Evicts until `needed_bytes` more fit the quota and the disk; evicts nothing for one of these if that would not
    /// suffice.
    pub(super) fn make_room(&self, index: &mut Index, needed_bytes: u64) -> Result<(), BlobError> {
        let kept_bytes = index.total_bytes - index.idle_bytes + index.reserved_bytes;
        let quota_bytes = self.quota_bytes.load(Relaxed);
        if kept_bytes.saturating_add(needed_bytes) > quota_bytes && needed_bytes > 0 {
            return Err(BlobError::Full { needed_bytes, kept_bytes, quota_bytes });
        }
        while index.total_bytes + index.reserved_bytes + index.partials.bytes() + needed_bytes > quota_bytes {
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
        let in_use = |index: &Index| index.total_bytes + index.partials.bytes();
        let before = in_use(index);
        // Counts evicted bytes, since some systems free the space a little later.
        while before - in_use(index) < lacking_bytes && self.evict(index) {}
        Ok(())
    }

    /// Evicts a partial blob, else the least recently used one. False if there is none.
    pub(super) fn evict(&self, index: &mut Index) -> bool {
        if index.partials.evict() {
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

    /// Removes a blob that was found damaged.
    pub(super) fn forget(&self, hash: Hash) {
        let mut index = self.index();
        // It may have been stored anew since it was found damaged.
        if index.blobs.get(&hash).is_some_and(|entry| !entry.verified) {
            self.unlink(&mut index, hash);
        }
    }

    /// Drops a blob from the index whose file is gone.
    pub(super) fn forget_if_gone(&self, hash: Hash) {
        let mut index = self.index();
        if matches!(self.file_of(hash).try_exists(), Ok(false)) {
            index.remove(hash);
        }
    }

    /// Where the blob lies, or would.
    pub(super) fn file_of(&self, hash: Hash) -> PathBuf {
        let hex = hash.to_hex();
        self.dir.join(&hex[..2]).join(&hex[2..])
    }
}
