//! Pins of blobs that are taken back when they are dropped, also by a job that is stopped half-way.

use std::sync::Arc;

use blake3::Hash;

use crate::blobs::Blobs;

/// Keeps a blob, here already or yet to come, from eviction.
#[derive(Debug)]
pub(super) struct Pin {
    blobs: Arc<Blobs>,
    hash: Hash,
}

impl Pin {
    pub(super) fn new(blobs: &Arc<Blobs>, hash: Hash) -> Self {
        blobs.pin(hash);
        Self { blobs: blobs.clone(), hash }
    }

    /// Of which blob.
    pub(super) fn hash(&self) -> Hash {
        self.hash
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.blobs.unpin(self.hash);
    }
}
