//! Programs, inputs and results: files named by the BLAKE3 hash of their content.
//!
//! A blob lives under `<dir>/ab/cdef…` and never changes once it is there. Writers fill a file under `<dir>/tmp`
//! while they hash and rename it at the end, so a name never stands for half a file. Blobs that an earlier run left
//! are hashed once, when they are first used: what a power cut tore or a disk flipped is dropped instead of served.
//! The quota counts finished blobs and those being written; what nobody pins goes, least recently used first.
//!
//! Pins are counts in memory; whoever needs a blob across restarts pins it again when it restores its own records.
//! Left out: the database (200 blobs of 1 MiB cost sled 594 MB of disk and 262 MB of memory), deduplication of parts
//! of blobs, and compression. All calls touch the disk: async callers go through `spawn_blocking`.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tempfile::NamedTempFile;
use tracing::warn;

/// Name of a blob: the BLAKE3 hash of its content.
pub use blake3::Hash;

/// Where unfinished blobs live, beside the two-letter directories.
const TMP_DIR: &str = "tmp";

/// Step of copying and hashing.
const COPY_BYTES: usize = 64 * 1024;

/// Why a blob could not be stored or read. An insert that failed left nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}; check the disk and the permissions of the state directory", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The quota is used up by blobs that are needed.
    #[error(
        "no room for {needed_bytes} more bytes of blobs: {kept_bytes} of the quota of {quota_bytes} bytes are in use by \
         running work; raise the disk quota or wait until tasks finish"
    )]
    Full {
        /// What was asked for.
        needed_bytes: u64,
        /// What cannot be evicted: pinned and unfinished blobs.
        kept_bytes: u64,
        /// The limit.
        quota_bytes: u64,
    },
    /// A download grew beyond what was agreed.
    #[error("blob {hash} is larger than the {size_max} bytes that were allowed for it")]
    TooLarge {
        /// Which blob.
        hash: Hash,
        /// The cap.
        size_max: u64,
    },
    /// What arrived is not what was asked for.
    #[error("blob {expected} was sent with other content (its hash is {got}); try another source")]
    Mismatch {
        /// What was asked for.
        expected: Hash,
        /// What arrived.
        got: Hash,
    },
    /// There is no such blob.
    #[error("blob {hash} is not here; fetch it first")]
    Missing {
        /// Which blob.
        hash: Hash,
    },
}

impl BlobError {
    /// Whether it would have gone well with more room.
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Full { .. } => true,
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

/// The blobs of one machine. Cloning gives another handle to the same ones; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct Blobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    quota_bytes: AtomicU64,
    // Held for look-ups, renames and unlinks, never while content is read, written or hashed.
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    blobs: HashMap<Hash, Entry>,
    /// Unpinned blobs by last use, oldest first.
    idle: BTreeMap<u64, Hash>,
    pins: HashMap<Hash, u32>,
    total_bytes: u64,
    /// Bytes of blobs that are being written.
    reserved_bytes: u64,
    /// Bytes of the blobs in `idle`.
    idle_bytes: u64,
    /// What was kept, and the quota, when there was no room last for what was made here.
    refused: Option<(u64, u64)>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u64,
    /// Key in `idle` while nobody pins it.
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
    /// Opens the blobs under `dir` (created if missing, 0700), of at most `quota_bytes` together. Removes what an
    /// interrupted run left unfinished, and evicts if the quota has become smaller.
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
        // Else a power cut could take the directory itself, with all that was synced inside it.
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
        }));
        // Nothing is pinned yet, so this cannot fail for want of room.
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

    /// Stores a copy of the file at `path` and returns its name. Not durable: see [`Blobs::make_durable`].
    ///
    /// # Errors
    /// When the file cannot be read, there is no room, or the disk refuses.
    pub fn put_file(&self, path: &Path) -> Result<Hash, BlobError> {
        let mut source = File::open(path).map_err(failed("read", path))?;
        let mut writer = self.draft(None, u64::MAX)?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let count = source.read(&mut buffer).map_err(failed("read", path))?;
            if count == 0 {
                return writer.finish();
            }
            writer.write(&buffer[..count])?;
        }
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

    /// Makes a stored blob survive a power cut: syncs the file and the directories that name it.
    ///
    /// # Errors
    /// When there is no such blob, or the disk refuses.
    pub fn make_durable(&self, hash: Hash) -> Result<(), BlobError> {
        if self.is_durable(hash) {
            return Ok(());
        }
        let path = self.path(hash).ok_or(BlobError::Missing { hash })?;
        let shard = path.parent().unwrap_or(&self.0.dir);
        for path in [path.as_path(), shard, &self.0.dir] {
            File::open(path).and_then(|file| file.sync_all()).map_err(failed("sync", path))?;
        }
        if let Some(entry) = self.index().blobs.get_mut(&hash) {
            entry.durable = true;
        }
        Ok(())
    }

    /// Whether the blob is here and known to survive a power cut, without asking the disk.
    pub fn is_durable(&self, hash: Hash) -> bool {
        self.index().blobs.get(&hash).is_some_and(|entry| entry.durable)
    }

    /// Where the blob is, if it is here. It stays there as long as it is pinned; an unpinned one may go at any time.
    ///
    /// The first use after a restart hashes the file.
    pub fn path(&self, hash: Hash) -> Option<PathBuf> {
        let path = self.file_of(hash);
        let verified = self.index().blobs.get(&hash)?.verified;
        if !verified {
            match hash_file(&path) {
                Ok(got) if got == hash => {
                    if let Some(entry) = self.index().blobs.get_mut(&hash) {
                        entry.verified = true;
                    }
                }
                Ok(_) => {
                    warn!(%hash, "a blob on disk was damaged; it is removed and will be fetched or computed again");
                    self.forget(hash);
                    return None;
                }
                Err(error) => {
                    warn!(%hash, %error, "a blob on disk cannot be read; it will be fetched or computed again");
                    self.forget(hash);
                    return None;
                }
            }
        }
        self.index().touch(hash);
        Some(path)
    }

    /// Reads at most `max` bytes at `offset`; `None` if there is no such blob. Empty at or past the end.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn read_chunk(&self, hash: Hash, offset: u64, max: usize) -> Result<Option<Chunk>, BlobError> {
        let Some(path) = self.path(hash) else { return Ok(None) };
        let file = match File::open(&path) {
            Ok(file) => file,
            // Evicted since, or removed by hand.
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

    /// Changes the quota. What is over a smaller one goes when room is needed next.
    pub fn set_quota(&self, quota_bytes: u64) {
        self.0.quota_bytes.store(quota_bytes, Relaxed);
    }

    /// Length of the blob in bytes, if it is here.
    pub fn len(&self, hash: Hash) -> Option<u64> {
        self.index().blobs.get(&hash).map(|entry| entry.len)
    }

    /// Keeps the blob from eviction until [`Blobs::unpin`] has been called as often. One that is yet to come can be
    /// pinned in advance.
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

    /// Takes one pin back.
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

    /// Bytes that are left of the quota; 0 after something that was made here found no room, until a twentieth of the
    /// quota more is free.
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

    /// Bytes that are free on the disk itself.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn disk_free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.0.dir)?;
        Ok(disk.f_bavail * disk.f_frsize)
    }

    /// Bytes in use: finished blobs and those being written.
    pub fn used_bytes(&self) -> u64 {
        let index = self.index();
        index.total_bytes + index.reserved_bytes
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
        // The index is consistent between any two statements that can panic.
        self.0.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_verified(&self, hash: Hash) -> bool {
        let mut index = self.index();
        let verified = index.blobs.get(&hash).is_some_and(|entry| entry.verified);
        index.touch(hash);
        verified
    }

    /// Evicts until `needed` more bytes fit; changes nothing if they cannot.
    fn make_room(&self, index: &mut Index, needed_bytes: u64) -> Result<(), BlobError> {
        let kept_bytes = index.total_bytes - index.idle_bytes + index.reserved_bytes;
        let quota_bytes = self.0.quota_bytes.load(Relaxed);
        if kept_bytes.saturating_add(needed_bytes) > quota_bytes && needed_bytes > 0 {
            return Err(BlobError::Full { needed_bytes, kept_bytes, quota_bytes });
        }
        while index.total_bytes + index.reserved_bytes + needed_bytes > quota_bytes {
            let Some((_, &hash)) = index.idle.first_key_value() else { break };
            self.unlink(index, hash);
        }
        Ok(())
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
        // Somebody may have stored it anew since it was found damaged.
        if index.blobs.get(&hash).is_some_and(|entry| !entry.verified) {
            self.unlink(&mut index, hash);
        }
    }

    fn forget_if_gone(&self, hash: Hash) {
        let mut index = self.index();
        if !self.file_of(hash).exists() {
            index.remove(hash);
        }
    }

    fn file_of(&self, hash: Hash) -> PathBuf {
        let hex = hash.to_hex();
        self.0.dir.join(&hex[..2]).join(&hex[2..])
    }
}

/// A blob on its way in. Dropping it unfinished leaves nothing behind.
#[derive(Debug)]
pub struct BlobWriter {
    blobs: Blobs,
    /// `None` once finished.
    file: Option<NamedTempFile>,
    hasher: blake3::Hasher,
    written: u64,
    expected: Option<Hash>,
    size_max: u64,
}

impl BlobWriter {
    /// Appends `bytes`, making room for them first.
    ///
    /// # Errors
    /// When the cap or the quota is passed, or the disk refuses; the writer is of no use afterwards.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let count = bytes.len() as u64;
        if let Some(hash) = self.expected
            && self.size_max - self.written < count
        {
            return Err(BlobError::TooLarge { hash, size_max: self.size_max });
        }
        {
            let mut index = self.blobs.index();
            if let Err(error) = self.blobs.make_room(&mut index, count) {
                // What others offer may be larger than anything that is made here.
                if let (BlobError::Full { kept_bytes, quota_bytes, .. }, None) = (&error, self.expected) {
                    index.refused = Some((kept_bytes - self.written, *quota_bytes));
                }
                return Err(error);
            }
            index.reserved_bytes += count;
        }
        self.written += count;
        self.hasher.update(bytes);
        if let Some(file) = &mut self.file {
            file.write_all(bytes).map_err(failed("write", file.path()))?;
        }
        Ok(())
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Checks the hash and gives the blob its name.
    ///
    /// # Errors
    /// When the content is not what was expected, or the disk refuses; nothing is kept then.
    pub fn finish(mut self) -> Result<Hash, BlobError> {
        let got = self.hasher.finalize();
        if let Some(expected) = self.expected
            && expected != got
        {
            return Err(BlobError::Mismatch { expected, got });
        }
        if let Some(file) = self.file.take() {
            let path = self.blobs.file_of(got);
            file.as_file().set_permissions(Permissions::from_mode(0o400)).map_err(failed("protect", file.path()))?;
            if let Some(shard) = path.parent()
                && !shard.is_dir()
            {
                DirBuilder::new().recursive(true).mode(0o700).create(shard).map_err(failed("create", shard))?;
            }
            let mut index = self.blobs.index();
            file.persist(&path).map_err(|error| failed("rename a file to", &path)(error.error))?;
            index.insert(got, self.written, true);
        }
        Ok(got)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        // The file removes itself.
        self.blobs.index().reserved_bytes -= self.written;
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
    // Only the one spelling that `file_of` produces.
    (shard.len() == 2 && hash.to_hex().as_str() == format!("{shard}{rest}")).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path, quota_bytes: u64) -> Blobs {
        Blobs::open(&dir.join("blobs"), quota_bytes).unwrap()
    }

    fn files(dir: &Path) -> usize {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
    }

    #[test]
    fn a_blob_is_found_under_its_hash_and_read_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path(), 1 << 20);
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let hash = blobs.put_bytes(&content).unwrap();
        assert_eq!(hash, blake3::hash(&content));
        let path = blobs.path(hash).unwrap();
        assert!(path.to_str().unwrap().ends_with(&format!("/{}/{}", &hash.to_hex()[..2], &hash.to_hex()[2..])));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
        let mut read = Vec::new();
        loop {
            let chunk = blobs.read_chunk(hash, read.len() as u64, 30_000).unwrap().unwrap();
            assert_eq!(chunk.total, 100_000);
            if chunk.bytes.is_empty() {
                break;
            }
            assert!(chunk.bytes.len() <= 30_000);
            read.extend(chunk.bytes);
        }
        assert_eq!(read, content);
        assert_eq!(blobs.read_chunk(hash, u64::MAX, 10).unwrap().unwrap().bytes, b"");
        assert_eq!(blobs.read_chunk(blake3::hash(b"?"), 0, 10).unwrap(), None);

        let copy = dir.path().join("input");
        fs::write(&copy, &content).unwrap();
        assert_eq!(blobs.put_file(&copy).unwrap(), hash);
        assert_eq!(blobs.put_durable(&content).unwrap(), hash);
        assert_eq!((blobs.used_bytes(), blobs.len(hash)), (100_000, Some(100_000)));
        assert_eq!(files(&dir.path().join("blobs")), 1);
    }

    #[test]
    fn what_found_no_room_shows_that_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path(), 1000);
        let first = blobs.put_bytes(&[1; 700]).unwrap();
        blobs.pin(first);
        assert_eq!((blobs.room_bytes(), blobs.kept_bytes()), (300, (700, 1000)));
        let mut offered = blobs.receive(blake3::hash(&[2; 400]), 400).unwrap();
        assert!(matches!(offered.write(&[2; 400]), Err(BlobError::Full { .. })));
        assert_eq!(blobs.room_bytes(), 300, "others may offer anything");
        blobs.put_bytes(&[3; 400]).unwrap_err();
        assert_eq!((blobs.room_bytes(), blobs.kept_bytes()), (0, (700, 1000)));
        blobs.set_quota(2000);
        assert_eq!(blobs.room_bytes(), 1300);
        blobs.set_quota(1000);
        blobs.put_bytes(&[3; 400]).unwrap_err();
        blobs.unpin(first);
        assert_eq!(blobs.room_bytes(), 1000);
    }

    #[test]
    fn a_restart_keeps_the_whole_and_drops_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path(), 1 << 20);
        let kept = blobs.put_durable(b"kept").unwrap();
        let torn = blobs.put_bytes(b"torn by a power cut").unwrap();
        let flipped = blobs.put_bytes(b"flipped").unwrap();
        let mut unfinished = blobs.receive(blake3::hash(b"unfinished"), 100).unwrap();
        unfinished.write(b"unfin").unwrap();
        std::mem::forget(unfinished); // as if killed
        for (hash, content) in [(torn, &b"torn by"[..]), (flipped, b"fl1pped")] {
            let path = blobs.path(hash).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, content).unwrap();
        }
        drop(blobs);
        assert_eq!(files(&dir.path().join("blobs")), 4);
        let blobs = open(dir.path(), 1 << 20);
        assert_eq!(files(&dir.path().join("blobs")), 3);
        assert!(blobs.path(kept).is_some());
        assert_eq!(blobs.path(torn), None);
        assert_eq!(blobs.read_chunk(flipped, 0, 10).unwrap(), None);
        assert_eq!(blobs.used_bytes(), 4);
        assert_eq!(blobs.put_bytes(b"flipped").unwrap(), flipped);
        assert!(blobs.path(flipped).is_some());
    }

    #[test]
    fn the_least_recently_used_goes_and_the_pinned_stays() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path(), 1000);
        let [a, b, c] = [1, 2, 3].map(|n| blobs.put_bytes(&[n; 300]).unwrap());
        assert!(blobs.path(a).is_some());
        let d = blobs.put_bytes(&[4; 300]).unwrap();
        assert_eq!([a, b, c, d].map(|hash| blobs.path(hash).is_some()), [true, false, true, true]);
        blobs.pin(a);
        blobs.pin(a);
        blobs.unpin(a);
        blobs.pin(c);
        let error = blobs.put_bytes(&[5; 401]).unwrap_err();
        assert!(matches!(error, BlobError::Full { needed_bytes: 401, kept_bytes: 600, quota_bytes: 1000 }), "{error}");
        assert!(error.to_string().contains("raise the disk quota"), "{error}");
        assert!(blobs.path(d).is_some(), "what cannot fit evicts nobody");
        assert_eq!(blobs.used_bytes(), 900);
        let e = blobs.put_bytes(&[5; 400]).unwrap();
        assert_eq!([a, c, d, e].map(|hash| blobs.path(hash).is_some()), [true, true, false, true]);
        blobs.unpin(a);
        blobs.put_bytes(&[6; 600]).unwrap();
        assert_eq!([a, c, e].map(|hash| blobs.path(hash).is_some()), [false, true, false]);
        // Pinned before it comes.
        let late = blake3::hash(&[7; 100]);
        blobs.pin(late);
        blobs.put_bytes(&[7; 100]).unwrap();
        blobs.put_bytes(&[8; 600]).unwrap();
        assert!(blobs.path(late).is_some());
        drop(blobs);
        let blobs = open(dir.path(), 650);
        assert!(blobs.used_bytes() <= 650, "a smaller quota holds from the start");
    }

    #[test]
    fn a_download_is_checked_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path(), 1000);
        let hash = blake3::hash(b"hello world");
        let mut writer = blobs.receive(hash, 11).unwrap();
        writer.write(b"hello ").unwrap();
        assert_eq!((writer.written(), blobs.used_bytes()), (6, 6));
        writer.write(b"world").unwrap();
        assert_eq!(blobs.path(hash), None, "not before it is finished");
        assert_eq!(writer.finish().unwrap(), hash);
        assert_eq!(fs::read(blobs.path(hash).unwrap()).unwrap(), b"hello world");

        let mut writer = blobs.receive(blake3::hash(b"x"), 11).unwrap();
        writer.write(b"y").unwrap();
        assert!(matches!(writer.finish(), Err(BlobError::Mismatch { .. })));
        let mut writer = blobs.receive(hash, 10).unwrap();
        assert!(matches!(writer.write(b"hello world"), Err(BlobError::TooLarge { size_max: 10, .. })));
        drop(writer);
        // Two that fit one by one and not together.
        let mut first = blobs.receive(hash, 2000).unwrap();
        let mut second = blobs.receive(hash, 2000).unwrap();
        first.write(&[0; 600]).unwrap();
        assert!(matches!(second.write(&[0; 600]), Err(BlobError::Full { .. })));
        drop((first, second));
        assert_eq!(blobs.used_bytes(), 11, "what did not finish leaves nothing");
        let mut writer = blobs.receive(hash, 2000).unwrap();
        writer.write(&[0; 995]).unwrap();
        drop(writer);
        assert_eq!(files(&dir.path().join("blobs")), 0, "a download may push an idle blob out");
    }

    #[test]
    fn many_threads_agree_on_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path(), 4000);
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let blobs = &blobs;
                scope.spawn(move || {
                    for round in 0..300_u32 {
                        let content = vec![((round * 7 + thread) % 20) as u8; 400];
                        let hash = blake3::hash(&content);
                        blobs.pin(hash);
                        match blobs.put_bytes(&content) {
                            Ok(_) => assert_eq!(fs::read(blobs.path(hash).unwrap()).unwrap(), content),
                            Err(error) => assert!(matches!(error, BlobError::Full { .. }), "{error}"),
                        }
                        blobs.unpin(hash);
                    }
                });
            }
        });
        assert!(blobs.used_bytes() <= 4000);
        assert_eq!(files(&dir.path().join("blobs")) as u64 * 400, blobs.used_bytes());
    }
}
