//! Pins of blobs that are taken back when they are dropped, also by a job that is stopped half-way.

use std::sync::Arc;

use blake3::Hash;
use idlewood_scheduler::BagId;

use idlewood_blobs::{Blobs, Loan, To};

/// Keeps a blob, here already or yet to come, from eviction.
#[derive(Debug)]
pub(super) struct Pin {
    blobs: Arc<Blobs>,
    hash: Hash,
    loan: Option<Loan>,
}

impl Pin {
    pub(super) fn new(blobs: &Arc<Blobs>, hash: Hash) -> Self {
        blobs.pin(hash);
        Self { blobs: blobs.clone(), hash, loan: None }
    }

    /// The same of a blob that others may read meanwhile.
    pub(super) fn lent(blobs: &Arc<Blobs>, hash: Hash, bag: BagId, to: To) -> Self {
        blobs.pin(hash);
        Self { blobs: blobs.clone(), hash, loan: Some(blobs.lend(bag, hash, to)) }
    }

    /// Of which blob.
    pub(super) fn hash(&self) -> Hash {
        self.hash
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(loan) = &self.loan {
            self.blobs.take_back(self.hash, loan);
        }
        self.blobs.unpin(self.hash);
    }
}
