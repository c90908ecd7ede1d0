//! Whether all is still here that tasks of a bag need which are to run again (`submissions` orders that).

use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_scheduler::BagId;
use idlewood_trust::manifest::Manifest;

use super::pin::Pin;
use super::pins;
use crate::handle::Refusal;

/// Pins of everything that the tasks of a bag need.
#[derive(Debug)]
pub(super) struct Needs {
    pub(super) manifest: Arc<Manifest>,
    _pins: Vec<Pin>,
}

/// Pins everything that the bag's tasks need. Blocks.
///
/// # Errors
/// When some of it is gone, or cannot be read.
pub(super) fn needs(blobs: &Arc<Blobs>, bag: BagId) -> Result<Needs, Refusal> {
    let gone =
        |what: &str| Refusal::Conflict(format!("{what} of bag {bag} is not on this disk any more: submit it again"));
    let unavailable = |error: BlobError| Refusal::Unavailable(error.to_string());
    let manifest = pins::read_manifest(blobs, bag).map_err(unavailable)?.ok_or_else(|| gone("the manifest"))?;
    let mut pins = Vec::new();
    for input in manifest.blobs() {
        let hash = Hash::from_bytes(input.blob.0);
        pins.push(Pin::new(blobs, hash));
        // It may have been fetched since for another machine's bag, without being durable.
        blobs.make_durable(hash).map_err(|error| match error {
            BlobError::Missing { .. } => gone(&input.name),
            error => unavailable(error),
        })?;
    }
    Ok(Needs { manifest: Arc::new(manifest), _pins: pins })
}
