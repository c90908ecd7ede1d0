//! What a task of an application in rounds begins with, as its submitter signs it: like a checkpoint.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::Blobs;
use idlewood_scheduler::{Checkpoint, TaskId};
use idlewood_trust::manifest::{START_BYTES_MAX, Start, TaskOutput};
use idlewood_trust::{CHECKPOINT_ADDED_BYTES, Gate};

use super::checkpoints;
use super::pin::Pin;

/// Signs it, and keeps it durably. Blocks.
///
/// # Errors
/// It is too large, or there is no room.
pub(super) fn sign(start: &Start, task: TaskId, gate: &Gate, blobs: &Arc<Blobs>) -> anyhow::Result<(Checkpoint, Pin)> {
    let packed = start.encode();
    let bytes = packed.len() as u64;
    anyhow::ensure!(bytes <= START_BYTES_MAX, "it takes {bytes} bytes, over {} MiB", START_BYTES_MAX >> 20);
    let signature = gate.sign_checkpoint(&task.bag.0, task.index, &packed);
    checkpoints::store(blobs, &[signature.as_slice(), &packed].concat())
}

/// A task came back with its checkpoint: puts that into what it began with, in the place of an earlier one, and signs it anew. Blocks.
///
/// # Errors
/// Either cannot be read, or there is no room.
pub(super) fn with_checkpoint(
    before: Checkpoint,
    packed: &Path,
    task: TaskId,
    gate: &Gate,
    blobs: &Arc<Blobs>,
) -> anyhow::Result<(Checkpoint, Pin)> {
    let read = blobs.read_chunk(Hash::from_bytes(before.blob.0), 0, usize::MAX)?;
    let signed = read.context("what it began with is missing")?.bytes;
    let start = signed.get(CHECKPOINT_ADDED_BYTES..).context("what it began with is damaged")?;
    let mut start = Start::decode(start)?;
    start.checkpoint = TaskOutput::decode(&fs::read(packed)?)?.files;
    sign(&start, task, gate, blobs)
}
