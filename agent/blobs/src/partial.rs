//! Beginnings of interrupted downloads: kept for the next attempt until room is needed or their bag is gone.
//!
//! Each is an open file and lives in memory, so a restart forgets it. Their bytes count as used but not as needed: they
//! are evicted before all else.

use std::time::Duration;

use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use super::{BlobError, BlobWriter, Blobs, Hash, Index};

/// Most partial blobs kept, each with an open file. Our choice: several times the parallel downloads.
const PARTIALS_MAX: usize = 64;

/// A partial blob that is not resumed for so long is dropped.
const PARTIAL_LIFE: Duration = Duration::from_secs(600);

/// The beginning of a blob.
#[derive(Debug)]
pub(super) struct Partial {
    file: NamedTempFile,
    hasher: blake3::Hasher,
    written: u64,
    from: Vec<PeerId>,
    of: BagId,
    since: Instant,
}

/// A blob that is being downloaded. Dropping it unfinished keeps its beginning.
#[derive(Debug)]
pub struct Incoming {
    /// `None` once finished or dropped.
    writer: Option<BlobWriter>,
    hash: Hash,
    /// The machines that sent parts, in order.
    from: Vec<PeerId>,
    /// The bag that needs it.
    of: BagId,
}

impl Incoming {
    /// Bytes received so far.
    pub fn written(&self) -> u64 {
        self.writer.as_ref().map_or(0, BlobWriter::written)
    }

    /// Whether a machine other than `source` sent a part of it.
    pub fn is_mixed(&self, source: PeerId) -> bool {
        self.from.iter().any(|peer| *peer != source)
    }

    /// The machines that sent parts.
    pub fn from(&self) -> &[PeerId] {
        &self.from
    }

    /// Appends bytes received from `source`.
    ///
    /// # Errors
    /// As [`BlobWriter::write`]; the beginning is then dropped.
    pub fn write(&mut self, source: PeerId, bytes: &[u8]) -> Result<(), BlobError> {
        if !bytes.is_empty() && !self.from.contains(&source) {
            self.from.push(source);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = writer.write(bytes);
        if written.is_err() {
            self.writer = None;
        }
        written
    }

    /// As [`BlobWriter::finish`].
    ///
    /// # Errors
    /// As there; the beginning is then dropped.
    pub fn finish(mut self) -> Result<Hash, BlobError> {
        let hash = self.hash;
        self.writer.take().map_or(Err(BlobError::Missing { hash }), BlobWriter::finish)
    }

    /// Drops it without keeping the beginning.
    pub fn discard(mut self) {
        self.writer = None;
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let Some(mut writer) = self.writer.take().filter(|writer| writer.written > 0) else { return };
        let Some(file) = writer.file.take() else { return };
        let (hasher, written, blobs) = (writer.hasher.clone(), writer.written, writer.blobs.clone());
        // Ends the reservation of its bytes.
        drop(writer);
        let (from, of) = (std::mem::take(&mut self.from), self.of);
        let partial = Partial { file, hasher, written, from, of, since: Instant::now() };
        blobs.index().set_aside(self.hash, partial);
    }
}

impl Index {
    fn set_aside(&mut self, hash: Hash, partial: Partial) {
        if self.blobs.contains_key(&hash) {
            return;
        }
        self.forget_partial(hash);
        while self.partials.len() >= PARTIALS_MAX && self.evict_partial() {}
        self.partial_bytes += partial.written;
        self.partials.insert(hash, partial);
    }

    /// Drops the oldest one. False if there is none.
    pub(super) fn evict_partial(&mut self) -> bool {
        let oldest = self.partials.iter().min_by_key(|(hash, partial)| (partial.since, *hash.as_bytes()));
        let Some(hash) = oldest.map(|(hash, _)| *hash) else { return false };
        self.forget_partial(hash);
        true
    }

    fn forget_partial(&mut self, hash: Hash) -> Option<Partial> {
        let partial = self.partials.remove(&hash)?;
        self.partial_bytes -= partial.written;
        Some(partial)
    }
}

impl Blobs {
    /// Continues an interrupted download of a blob for a bag, or begins one; of at most `size_max` bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn resume(&self, hash: Hash, size_max: u64, of: BagId) -> Result<Incoming, BlobError> {
        {
            let mut index = self.index();
            if let Some(partial) = index.forget_partial(hash).filter(|partial| partial.written <= size_max) {
                let Partial { file, hasher, written, from, .. } = partial;
                index.reserved_bytes += written;
                let (file, expected, blobs) = (Some(file), Some(hash), self.clone());
                let writer = BlobWriter { blobs, file, hasher, written, expected, size_max };
                return Ok(Incoming { writer: Some(writer), hash, from, of });
            }
        }
        Ok(Incoming { writer: Some(self.receive(hash, size_max)?), hash, from: Vec::new(), of })
    }

    /// Drops partial blobs that were not resumed for a while, or whose bags are not wanted any more.
    pub fn tidy_partials(&self, now: Instant, is_wanted: impl Fn(BagId) -> bool) {
        let mut index = self.index();
        let gone =
            |partial: &Partial| now.saturating_duration_since(partial.since) >= PARTIAL_LIFE || !is_wanted(partial.of);
        let gone: Vec<Hash> =
            index.partials.iter().filter(|(_, partial)| gone(partial)).map(|(hash, _)| *hash).collect();
        for hash in gone {
            index.forget_partial(hash);
        }
    }

    /// How many partial blobs are kept, and their bytes.
    pub fn partials(&self) -> (usize, u64) {
        let index = self.index();
        (index.partials.len(), index.partial_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId([1; 32]);
    const BAG: BagId = BagId([2; 32]);

    fn blobs(quota_bytes: u64) -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = Blobs::open(&dir.path().join("blobs"), quota_bytes).expect("an empty directory");
        (dir, blobs)
    }

    fn begin(blobs: &Blobs, number: u32, bytes: usize) -> Hash {
        let hash = blake3::hash(&number.to_be_bytes());
        let mut incoming = blobs.resume(hash, 1 << 20, BAG).expect("our directory");
        incoming.write(PEER, &vec![0; bytes]).expect("there is room");
        hash
    }

    #[test]
    fn an_interrupted_download_continues_and_counts_once() {
        let (_dir, blobs) = blobs(1000);
        let content = [7; 600];
        let hash = blake3::hash(&content);
        let mut first = blobs.resume(hash, 600, BAG).expect("our directory");
        first.write(PEER, &content[..400]).expect("there is room");
        assert_eq!((blobs.used_bytes(), blobs.kept_bytes().0), (400, 400));
        drop(first);
        assert_eq!((blobs.used_bytes(), blobs.kept_bytes().0, blobs.partials()), (400, 0, (1, 400)));
        let mut second = blobs.resume(hash, 600, BAG).expect("our directory");
        assert_eq!((second.written(), second.from(), blobs.partials()), (400, &[PEER][..], (0, 0)));
        let other = PeerId([9; 32]);
        assert!(!second.is_mixed(PEER) && second.is_mixed(other));
        second.write(other, &content[400..]).expect("there is room");
        assert_eq!(second.finish().expect("it is whole"), hash);
        assert_eq!((blobs.used_bytes(), blobs.partials(), blobs.len(hash)), (600, (0, 0), Some(600)));
        // Nothing remains of a discarded download, nor of one that never received a byte.
        drop(blobs.resume(blake3::hash(b"none"), 10, BAG).expect("our directory"));
        let mut third = blobs.resume(blake3::hash(b"some"), 10, BAG).expect("our directory");
        third.write(PEER, b"12345").expect("there is room");
        third.write(PEER, b"123456").expect_err("over the limit");
        drop(third);
        assert_eq!((blobs.used_bytes(), blobs.partials()), (600, (0, 0)));
    }

    #[test]
    fn partial_blobs_are_few_and_go_first() {
        let (dir, blobs) = blobs(10_000);
        let kept = blobs.put_bytes(&[1; 4000]).expect("there is room");
        let hashes: Vec<Hash> = (0..PARTIALS_MAX as u32 + 6).map(|number| begin(&blobs, number, 50)).collect();
        assert_eq!(blobs.partials(), (PARTIALS_MAX, PARTIALS_MAX as u64 * 50));
        let files = std::fs::read_dir(dir.path().join("blobs/tmp")).expect("our directory").count();
        assert_eq!(files, PARTIALS_MAX);
        let large = blobs.put_bytes(&[2; 5000]).expect("they make room");
        assert!(blobs.len(kept).is_some() && blobs.len(large).is_some(), "what is whole stays");
        assert_eq!(blobs.used_bytes(), 9000 + blobs.partials().1);
        assert_eq!(blobs.partials().0, 20, "as many as fit");
        let now = Instant::now();
        blobs.tidy_partials(now, |_| true);
        assert_eq!(blobs.partials().0, 20);
        assert_eq!(blobs.resume(hashes[0], 100, BAG).expect("our directory").written(), 0, "the oldest went first");
        let last = hashes[hashes.len() - 1];
        assert_eq!(blobs.resume(last, 100, BAG).expect("our directory").written(), 50);
        blobs.tidy_partials(now + PARTIAL_LIFE, |_| true);
        assert_eq!(blobs.partials(), (1, 50), "the others were not asked for in a while");
        blobs.tidy_partials(now, |bag| bag != BAG);
        assert_eq!(blobs.partials(), (0, 0), "its bag is gone");
    }
}
