//! The index of blobs, in memory: what there is, what is pinned, and what may be evicted first.

use std::collections::{BTreeMap, HashMap};

use blake3::Hash;

use super::partial::{Partial, Partials};

/// Which blobs there are, and the bytes that they take.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) blobs: HashMap<Hash, Entry>,
    /// Unpinned blobs by last use, oldest first.
    pub(super) idle: BTreeMap<u64, Hash>,
    pub(super) pins: HashMap<Hash, u32>,
    pub(super) total_bytes: u64,
    /// Of `total_bytes`, those of small outputs in records of the store.
    pub(super) record_bytes: u64,
    /// Bytes of blobs that are being written.
    pub(super) reserved_bytes: u64,
    /// Beginnings of interrupted downloads.
    pub(super) partials: Partials,
    /// Bytes of the blobs in `idle`.
    pub(super) idle_bytes: u64,
    /// Bytes that could not be evicted, and the quota, when a blob made here last found no room.
    pub(super) refused: Option<(u64, u64)>,
    clock: u64,
}

/// One blob.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) len: u64,
    /// Key in `idle` while it is unpinned.
    pub(super) used: u64,
    /// Whether this process has hashed the content.
    pub(super) verified: bool,
    /// Whether this process has synced it.
    pub(super) durable: bool,
}

impl Index {
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(super) fn touch(&mut self, hash: Hash) {
        let now = self.tick();
        if let Some(entry) = self.blobs.get_mut(&hash) {
            if self.idle.remove(&entry.used).is_some() {
                self.idle.insert(now, hash);
            }
            entry.used = now;
        }
    }

    /// Bytes that eviction can free.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.idle_bytes + self.partials.bytes()
    }

    pub(super) fn insert(&mut self, hash: Hash, len: u64, verified: bool) {
        self.remove(hash);
        let used = self.tick();
        self.blobs.insert(hash, Entry { len, used, verified, durable: false });
        self.total_bytes += len;
        if !self.pins.contains_key(&hash) {
            self.idle.insert(used, hash);
            self.idle_bytes += len;
        }
    }

    pub(super) fn remove(&mut self, hash: Hash) {
        if let Some(entry) = self.blobs.remove(&hash) {
            self.total_bytes -= entry.len;
            if self.idle.remove(&entry.used).is_some() {
                self.idle_bytes -= entry.len;
            }
        }
    }

    /// Keeps the beginning of a blob, unless the blob is here meanwhile.
    pub(super) fn set_aside(&mut self, hash: Hash, partial: Partial) {
        if !self.blobs.contains_key(&hash) {
            self.partials.insert(hash, partial);
        }
    }
}
