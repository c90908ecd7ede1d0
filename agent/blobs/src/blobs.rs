//! The blobs of one machine: what the rest of the agent stores, reads and pins.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use blake3::Hash;
use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use tokio::time::Instant;
use tracing::warn;

use super::durable::Syncs;
use super::error::{BlobError, DISK_FREE_MIN, failed};
use super::incoming::Incoming;
use super::index::{Entry, Index};
use super::readers::{Claim, Loan, Readers, To};
use super::space::{Space, TMP_DIR};
use super::writer::BlobWriter;

/// A piece of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Length of the whole blob, in bytes.
    pub total: u64,
    /// The bytes at the offset that was asked for; shorter than asked at the end of the blob.
    pub bytes: Vec<u8>,
}

/// Blobs that nothing needs, and beginnings of downloads that broke off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unneeded {
    /// Whole ones.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Beginnings.
    pub partial_files: u64,
    /// Their bytes.
    pub partial_bytes: u64,
}

/// The blobs of one machine. Clones share them; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct Blobs {
    pub(super) space: Arc<Space>,
    syncs: Arc<Syncs>,
    pub(super) readers: Arc<Readers>,
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
        let space = Space::new(dir.to_owned(), quota_bytes, index);
        // Nothing is pinned yet, so there is always something to evict.
        space.make_room(&mut space.index(), 0)?;
        Ok(Self { space: Arc::new(space), syncs: Arc::default(), readers: Arc::default() })
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
        let mut writer = BlobWriter::begin(&self.space, None, u64::MAX)?;
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
        self.syncs.sync(&self.space.dir, path)?;
        if let Some(entry) = self.space.index().blobs.get_mut(&hash) {
            entry.durable = true;
        }
        Ok(())
    }

    /// Whether the blob is known to survive a power cut, without asking the disk.
    pub fn is_durable(&self, hash: Hash) -> bool {
        self.space.index().blobs.get(&hash).is_some_and(|entry| entry.durable)
    }

    /// The path of a blob, if it is here. A pinned one stays there; an unpinned one may be evicted at any time.
    ///
    /// The first use after a restart hashes the file.
    ///
    /// # Errors
    /// When the file exists and cannot be read: the blob stays, since the failure may pass.
    pub fn path(&self, hash: Hash) -> Result<Option<PathBuf>, BlobError> {
        let path = self.space.file_of(hash);
        let Some(Entry { verified, .. }) = self.space.index().blobs.get(&hash).copied() else { return Ok(None) };
        if !verified {
            match hash_file(&path) {
                Ok(got) if got == hash => {
                    if let Some(entry) = self.space.index().blobs.get_mut(&hash) {
                        entry.verified = true;
                    }
                }
                Ok(_) => {
                    warn!(%hash, "a blob on disk was damaged, and is removed: inputs are fetched again, the output of a task is lost");
                    self.space.forget(hash);
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    warn!(%hash, "a blob is gone from the disk: inputs are fetched again, the output of a task is lost");
                    self.space.forget(hash);
                    return Ok(None);
                }
                Err(error) => return Err(failed("read", &path)(error)),
            }
        }
        self.space.index().touch(hash);
        Ok(Some(path))
    }

    /// The file may have changed: its next use hashes it again.
    pub fn doubt(&self, hash: Hash) {
        if let Some(entry) = self.space.index().blobs.get_mut(&hash) {
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
                self.space.forget_if_gone(hash);
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
        let mut index = self.space.index();
        self.space.make_room(&mut index, bytes).inspect_err(|error| {
            if let BlobError::Full { kept_bytes, quota_bytes, .. } = error {
                index.refused = Some((*kept_bytes, *quota_bytes));
            }
        })
    }

    /// Replaces `before` bytes of outputs in records of the store by `now` bytes.
    pub fn count_in_records(&self, before: u64, now: u64) {
        let mut index = self.space.index();
        index.total_bytes = (index.total_bytes + now).saturating_sub(before);
        index.record_bytes = (index.record_bytes + now).saturating_sub(before);
    }

    /// Bytes of outputs in records of the store.
    pub fn record_bytes(&self) -> u64 {
        self.space.index().record_bytes
    }

    /// Changes the quota. Blobs beyond a smaller one are evicted when room is needed next.
    pub fn set_quota(&self, quota_bytes: u64) {
        self.space.quota_bytes.store(quota_bytes, Relaxed);
    }

    /// Length of the blob in bytes, if it is here.
    pub fn len(&self, hash: Hash) -> Option<u64> {
        self.space.index().blobs.get(&hash).map(|entry| entry.len)
    }

    /// Protects the blob from eviction until [`Blobs::unpin`] has been called as often. A blob can be pinned before it
    /// is stored.
    pub fn pin(&self, hash: Hash) {
        let mut index = self.space.index();
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
        let mut index = self.space.index();
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
        let index = self.space.index();
        (index.total_bytes - index.idle_bytes + index.reserved_bytes, self.space.quota_bytes.load(Relaxed))
    }

    /// The quota, or the space that blobs can have on the disk if that is less.
    pub fn limit_bytes(&self) -> u64 {
        let (kept_bytes, quota_bytes) = self.kept_bytes();
        let evictable_bytes = self.space.index().evictable_bytes();
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
        let mut index = self.space.index();
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
        self.space.disk_free_bytes()
    }

    /// Bytes in use: finished blobs and those being written.
    pub fn used_bytes(&self) -> u64 {
        let index = self.space.index();
        index.total_bytes + index.reserved_bytes + index.partials.bytes()
    }

    /// Begins to store a blob that arrives in pieces, of at most `size_max` bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn receive(&self, hash: Hash, size_max: u64) -> Result<BlobWriter, BlobError> {
        BlobWriter::begin(&self.space, Some(hash), size_max)
    }

    // ---- downloads ----

    /// Continues an interrupted download of a blob for a bag, or begins one; of at most `size_max` bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn resume(&self, hash: Hash, size_max: u64, of: BagId) -> Result<Incoming, BlobError> {
        Incoming::resume(&self.space, hash, size_max, of)
    }

    /// Drops partial blobs that were not resumed for a while, or whose bags are not wanted any more.
    pub fn tidy_partials(&self, now: Instant, is_wanted: impl Fn(BagId) -> bool) {
        self.space.index().partials.tidy(now, is_wanted);
    }

    /// How many partial blobs are kept, and their bytes.
    pub fn partials(&self) -> (usize, u64) {
        let index = self.space.index();
        (index.partials.len(), index.partials.bytes())
    }

    // ---- what nothing needs ----

    /// What could be evicted.
    pub fn unneeded(&self) -> Unneeded {
        let index = self.space.index();
        Unneeded {
            files: index.idle.len() as u64,
            bytes: index.idle_bytes,
            partial_files: index.partials.len() as u64,
            partial_bytes: index.partials.bytes(),
        }
    }

    /// Evicts all that can be; what it was. Blocks.
    pub fn remove_unneeded(&self) -> Unneeded {
        let unneeded = self.unneeded();
        // One at a time, since others want the index.
        for _ in 0..unneeded.files + unneeded.partial_files {
            let mut index = self.space.index();
            if !self.space.evict(&mut index) {
                break;
            }
        }
        unneeded
    }

    // ---- who may read ----

    /// Lets other machines read a blob for a bag, now or once it is stored, until
    /// [`Blobs::take_back`].
    pub fn lend(&self, bag: BagId, hash: Hash, to: To) -> Loan {
        self.readers.lend(bag, hash, to)
    }

    /// Ends one loan of the blob.
    pub fn take_back(&self, hash: Hash, loan: &Loan) {
        self.readers.take_back(hash, loan);
    }

    /// Says who acts for a bag's submitter, and may read what is lent to that ([`To::Submitter`]); `None`: nobody.
    pub fn set_keeper(&self, bag: BagId, keeper: Option<PeerId>) {
        self.readers.set_keeper(bag, keeper);
    }

    /// Says which machines keep a bag, this one among them: they may read what is lent to its submitter ([`To::Submitter`]); none: this
    /// machine does not keep it.
    pub fn set_keepers(&self, bag: BagId, keepers: Vec<PeerId>) {
        self.readers.set_keepers(bag, keepers);
    }

    /// Whether `reader` may read this blob of this machine, `me`.
    pub fn may_read(&self, me: PeerId, reader: PeerId, hash: Hash, claim: Claim) -> bool {
        self.readers.may_read(me, reader, hash, claim)
    }

    fn is_verified(&self, hash: Hash) -> bool {
        let mut index = self.space.index();
        let verified = index.blobs.get(&hash).is_some_and(|entry| entry.verified);
        index.touch(hash);
        verified
    }
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
