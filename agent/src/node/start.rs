//! What a task of an application in rounds begins with: made on its submitter's machine of the outputs of others.
//!
//! A start names outputs by their hashes, and holds the little ones, which are no blobs. It is signed like a checkpoint, and named in
//! requests in the place of one, so that routers on the way cannot change it (docs/adr/0018). Executors fetch larger outputs from here as
//! they fetch inputs. `docs/adr/0052` says why.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::Blobs;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::rounds::Sources;
use idlewood_scheduler::{BagId, Checkpoint, TaskId};
use idlewood_store::Reader;
use idlewood_trust::Gate;
use idlewood_trust::manifest::{Given, Manifest, Place, Start, TaskOutput};
use serde_bytes::ByteBuf;

use super::pin::Pin;
use super::pins;
use super::results::{self, Finished};
use super::signed_start;
use crate::handle::Page;

/// A start that was made, durable and pinned.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) start: Checkpoint,
    pub(super) has_converged: bool,
    pub(super) pin: Pin,
}

/// Makes what a task begins with of the outputs of others, signs it, and keeps it durably. Blocks.
///
/// # Errors
/// The disk cannot be read, or there is no room.
pub(super) fn made(
    task: TaskId,
    from: &Sources,
    known: Option<Arc<Manifest>>,
    blobs: &Arc<Blobs>,
    gate: &Gate,
    reader: &Reader,
) -> anyhow::Result<Made> {
    let manifest = pins::manifest(known, blobs, task.bag)?.context("the manifest of the bag is missing")?;
    let of = |index: &Option<u64>, place| index.map(|index| (index, place));
    let wanted = of(&from.state, Place::State).into_iter().chain(of(&from.merged, Place::Merged));
    let results = from.results.iter().map(|&(process, index)| (index, Place::Result(process)));
    let wanted: Vec<(u64, Place)> = wanted.chain(results).collect();
    let outputs = outputs(task.bag, wanted.iter().map(|(index, _)| *index), reader)?;
    let given = wanted.iter().map(|(index, place)| Given { place: *place, ..outputs[index].clone() });
    let start = Start { given: given.collect(), iterations: from.iterations, checkpoint: BTreeMap::new() };
    let until = manifest.rounds.as_ref().and_then(|rounds| rounds.until.as_ref());
    let merged = start.given.iter().find(|given| given.place == Place::Merged);
    let has_converged = match (until, merged) {
        (Some(until), Some(merged)) => output(merged, blobs)?.files.contains_key(until),
        _ => false,
    };
    let (start, pin) = signed_start::sign(&start, task, gate, blobs)?;
    Ok(Made { start, has_converged, pin })
}

/// The outputs of these tasks, all of which have succeeded, by their indices.
fn outputs(bag: BagId, tasks: impl Iterator<Item = u64>, reader: &Reader) -> anyhow::Result<BTreeMap<u64, Given>> {
    let tasks: IntervalSet = tasks.map(|index| index..index + 1).collect();
    let mut outputs = BTreeMap::new();
    for range in tasks.ranges() {
        let page = Page { from: range.start, most: range.end - range.start };
        let note = |Finished { result, .. }: Finished| {
            let content = result.content.map(|content| ByteBuf::from(content.bytes().to_vec()));
            let (place, output, bytes) = (Place::State, result.output, result.output_bytes);
            drop(outputs.insert(result.index, Given { place, output, bytes, content }));
        };
        results::read(reader, bag, page, note)?;
    }
    match tasks.indices().find(|index| !outputs.contains_key(index)) {
        Some(index) => anyhow::bail!("the result of task {index} cannot be read"),
        None => Ok(outputs),
    }
}

/// An output that is here.
fn output(given: &Given, blobs: &Blobs) -> anyhow::Result<TaskOutput> {
    let read = match &given.content {
        Some(content) => return Ok(TaskOutput::decode(content)?),
        None => blobs.read_chunk(Hash::from_bytes(given.output.0), 0, usize::MAX)?,
    };
    Ok(TaskOutput::decode(&read.context("an output is missing")?.bytes)?)
}
