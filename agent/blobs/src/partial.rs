//! Beginnings of interrupted downloads: kept for the next attempt until room is needed or their bag is gone.
//!
//! Each is an open file and lives in memory, so a restart forgets it. Their bytes count as used but not as needed: they
//! are evicted before all else.

use std::collections::HashMap;
use std::time::Duration;

use blake3::Hash;
use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use tempfile::NamedTempFile;
use tokio::time::Instant;

/// Most partial blobs kept, each with an open file. Our choice: several times the parallel downloads.
const PARTIALS_MAX: usize = 64;

/// A partial blob that is not resumed for so long is dropped.
const PARTIAL_LIFE: Duration = Duration::from_secs(600);

/// The beginning of a blob.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) file: NamedTempFile,
    pub(super) hasher: blake3::Hasher,
    pub(super) written: u64,
    pub(super) from: Vec<PeerId>,
    pub(super) of: BagId,
    pub(super) since: Instant,
}

/// The beginnings that are kept.
#[derive(Debug, Default)]
pub(super) struct Partials {
    kept: HashMap<Hash, Partial>,
    /// Bytes of all of them.
    bytes: u64,
}

impl Partials {
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps one more, for which the oldest goes where there are too many.
    pub(super) fn insert(&mut self, hash: Hash, partial: Partial) {
        self.take(hash);
        while self.kept.len() >= PARTIALS_MAX && self.evict() {}
        self.bytes += partial.written;
        self.kept.insert(hash, partial);
    }

    /// Drops the oldest one. False if there is none.
    pub(super) fn evict(&mut self) -> bool {
        let oldest = self.kept.iter().min_by_key(|(hash, partial)| (partial.since, *hash.as_bytes()));
        let Some(hash) = oldest.map(|(hash, _)| *hash) else { return false };
        self.take(hash);
        true
    }

    /// Takes the beginning of a blob out.
    pub(super) fn take(&mut self, hash: Hash) -> Option<Partial> {
        let partial = self.kept.remove(&hash)?;
        self.bytes -= partial.written;
        Some(partial)
    }

    /// Drops those that were not resumed for a while, or whose bags are not wanted any more.
    pub(super) fn tidy(&mut self, now: Instant, is_wanted: impl Fn(BagId) -> bool) {
        let is_gone =
            |partial: &Partial| now.saturating_duration_since(partial.since) >= PARTIAL_LIFE || !is_wanted(partial.of);
        let gone: Vec<Hash> = self.kept.iter().filter(|(_, partial)| is_gone(partial)).map(|(hash, _)| *hash).collect();
        for hash in gone {
            self.take(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blobs;

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
