//! What the records of this machine speak of, beside the peer's own state: results for whoever asks, and the blobs
//! that must not be evicted.

use std::collections::BTreeMap;
use std::sync::Arc;

use blake3::Hash;
use idlewood_overlay::{PeerId, WallTime};
use idlewood_scheduler::{BagId, Change, Record, RecordKey, TaskResult};

use crate::blobs::Blobs;
use crate::manifest::Manifest;

/// A task that is over.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) executor: PeerId,
    pub(super) at: WallTime,
    pub(super) result: TaskResult,
}

/// Follows the records.
#[derive(Debug)]
pub(super) struct Kept {
    blobs: Arc<Blobs>,
    outbox: BTreeMap<(BagId, u64), Hash>,
    done: BTreeMap<BagId, BTreeMap<u64, Finished>>,
}

impl Kept {
    /// What the records of the last run speak of.
    pub(super) fn restore(blobs: &Arc<Blobs>, records: &[Record]) -> Self {
        let mut kept = Self { blobs: blobs.clone(), outbox: BTreeMap::new(), done: BTreeMap::new() };
        for record in records {
            kept.put(record);
        }
        kept
    }

    /// Follows a change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(record) => self.put(record),
            Change::Delete(RecordKey::Outbox(bag, index)) => {
                if let Some(hash) = self.outbox.remove(&(*bag, *index)) {
                    self.blobs.unpin(hash);
                }
            }
            Change::Delete(_) => {}
        }
    }

    /// The tasks of a bag that are over, by index.
    pub(super) fn results(&self, bag: BagId) -> impl Iterator<Item = &Finished> {
        self.done.get(&bag).into_iter().flat_map(BTreeMap::values)
    }

    fn put(&mut self, record: &Record) {
        match record {
            Record::Outbox { bag, result, .. } => {
                let hash = Hash::from_bytes(result.output.0);
                if self.outbox.insert((bag.id, result.index), hash).is_none() {
                    self.blobs.pin(hash);
                }
            }
            Record::Done { bag, executor, finished, result } => {
                let finished = Finished { executor: *executor, at: *finished, result: result.clone() };
                let hash = Hash::from_bytes(result.output.0);
                if self.done.entry(*bag).or_default().insert(result.index, finished).is_none() {
                    self.blobs.pin(hash);
                }
            }
            Record::Bag { bag, closed: None, .. } => self.pin_submission(bag.id),
            Record::Bag { .. } | Record::Incarnation(_) | Record::Held { .. } | Record::Placed { .. } => {}
        }
    }

    /// The manifest, the program and the inputs of a bag of this machine stay.
    fn pin_submission(&self, bag: BagId) {
        let hash = Hash::from_bytes(bag.0);
        self.blobs.pin(hash);
        let manifest = self.blobs.path(hash).and_then(|path| std::fs::read(path).ok());
        let Some(manifest) = manifest.and_then(|bytes| Manifest::decode(&bytes).ok()) else {
            tracing::warn!(%bag, "the manifest of a bag submitted here is missing; its tasks run only where it is cached");
            return;
        };
        let own = manifest.entries.iter().filter_map(|entry| entry.input.as_ref());
        for input in manifest.inputs.iter().chain(own).chain([&manifest.program]) {
            self.blobs.pin(Hash::from_bytes(input.blob.0));
        }
    }
}
