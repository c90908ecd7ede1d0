//! What tasks of applications in rounds begin with: made here, on their submitter's machine, of the outputs of others, and laid out
//! where they run.
//!
//! A start names outputs by their hashes, and holds the little ones, which are no blobs. It is signed like a checkpoint, and named in
//! requests in the place of one, so that routers on the way cannot change it (docs/adr/0018). Executors fetch larger outputs from here as
//! they fetch inputs. `docs/adr/0052` says why.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::Blobs;
use idlewood_net::fetch::Origin;
use idlewood_overlay::PeerId;
use idlewood_scheduler::rounds::Sources;
use idlewood_scheduler::{BagId, BlobId, Checkpoint, Event, StartMade, TaskId};
use idlewood_store::Reader;
use idlewood_trust::manifest::{Given, Manifest, OUTPUT_BYTES_MAX, Place, START_BYTES_MAX, Start, TaskOutput};
use idlewood_trust::{CHECKPOINT_ADDED_BYTES, Gate, open_checkpoint};
use serde_bytes::ByteBuf;

use super::checkpoints;
use super::done::Done;
use super::pin::Pin;
use super::pins;
use super::results::{self, Finished};
use super::shared::Shared;
use super::storage::Storage;
use super::supplies::{PrepareError, Supplies};
use crate::handle::Page;

/// Starts that are made at the same time. Our choice: each waits for the disk.
const UNDER_WAY_MAX: usize = 4;

/// A start that was made, durable and pinned.
#[derive(Debug)]
pub(super) struct Made {
    start: Checkpoint,
    has_converged: bool,
    pin: Pin,
}

/// Starts to be made.
#[derive(Debug, Default)]
pub(super) struct Starts {
    waiting: VecDeque<(TaskId, Sources)>,
    under_way: usize,
}

impl Starts {
    /// Makes what a task begins with, when it is its turn.
    pub(super) fn make(&mut self, task: TaskId, from: Sources, storage: &Storage, shared: &mut Shared) {
        self.waiting.push_back((task, from));
        self.next(storage, shared);
    }

    fn next(&mut self, storage: &Storage, shared: &mut Shared) {
        while self.under_way < UNDER_WAY_MAX
            && let Some((task, from)) = self.waiting.pop_front()
        {
            self.under_way += 1;
            let (blobs, gate, reader) = (shared.supplies.blobs.clone(), shared.supplies.gate.clone(), storage.reader());
            let known = shared.manifests.get(task.bag);
            let make = move || {
                let made = made(task, &from, known, &blobs, &gate, &reader);
                let made = made.inspect_err(|error| {
                    let TaskId { bag, index } = task;
                    let error = format!("{error:#}");
                    tracing::warn!(%bag, index, error, "what a task begins with could not be made; trying again");
                });
                Done::StartMade { task, made: made.ok() }
            };
            shared.jobs.spawn_blocking(make, Done::StartMade { task, made: None });
        }
    }

    /// What a task begins with was made, or not.
    pub(super) fn made(&mut self, task: TaskId, made: Option<Made>, storage: &Storage, shared: &mut Shared) {
        self.under_way -= 1;
        let made = match made {
            Some(Made { start, has_converged, pin }) => {
                shared.events.pin(pin);
                StartMade::Here { start, has_converged }
            }
            None => StartMade::NotNow,
        };
        shared.events.tell(Event::StartMade { task, made });
        self.next(storage, shared);
    }
}

/// Makes what a task begins with of the outputs of others, signs it, and keeps it durably. Blocks.
fn made(
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
    let start = Start { given: given.collect(), checkpoint: BTreeMap::new() };
    let until = manifest.rounds.as_ref().and_then(|rounds| rounds.until.as_ref());
    let merged = start.given.iter().find(|given| given.place == Place::Merged);
    let has_converged = match (until, merged) {
        (Some(until), Some(merged)) => output(merged, blobs)?.files.contains_key(until),
        _ => false,
    };
    let (start, pin) = sign(&start, task, gate, blobs)?;
    Ok(Made { start, has_converged, pin })
}

/// The outputs of these tasks, all of which have succeeded, by their indices.
fn outputs(bag: BagId, tasks: impl Iterator<Item = u64>, reader: &Reader) -> anyhow::Result<BTreeMap<u64, Given>> {
    let tasks: idlewood_scheduler::ranges::IntervalSet = tasks.map(|index| index..index + 1).collect();
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

fn sign(start: &Start, task: TaskId, gate: &Gate, blobs: &Arc<Blobs>) -> anyhow::Result<(Checkpoint, Pin)> {
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

/// What a task begins with, on the machine where it runs: read, and all outputs that it names fetched.
#[derive(Debug)]
pub(super) struct Begun {
    files: Vec<(String, ByteBuf)>,
    /// Files of its checkpoint.
    pub(super) checkpoint: BTreeMap<String, ByteBuf>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[error("its submitter has not signed what it is to begin with")]
pub(super) struct Unsigned;

/// Fetches what a task begins with.
///
/// # Errors
/// [`Unsigned`], or it cannot be had now.
pub(super) async fn begin(
    supplies: &Supplies,
    task: TaskId,
    manifest: &Manifest,
    start: Option<Checkpoint>,
    origin: &Origin,
) -> Result<Begun, PrepareError> {
    let start = start.context("nobody says what it is to begin with")?;
    let most = START_BYTES_MAX + CHECKPOINT_ADDED_BYTES as u64;
    let (path, _pin) = supplies.get(start.blob, start.bytes.min(most), origin).await?;
    let start = read(path, task, manifest.submitter).await?;
    let process = manifest.rounds.as_ref().and_then(|rounds| rounds.value(task.index, "process"));
    let mut files = Vec::new();
    for Given { place, output, bytes, content } in start.given {
        let packed = match content {
            Some(content) => content.into_vec(),
            None => fetched(supplies, output, bytes, origin).await?,
        };
        files.extend(place.files(TaskOutput::decode(&packed).map_err(anyhow::Error::from)?, process));
    }
    Ok(Begun { files, checkpoint: start.checkpoint })
}

async fn read(path: std::path::PathBuf, task: TaskId, submitter: PeerId) -> anyhow::Result<Start> {
    let read = move || {
        let blob = fs::read(path)?;
        let packed = open_checkpoint(&blob, &task.bag.0, task.index, submitter).ok_or(Unsigned)?;
        Ok(Start::decode(packed)?)
    };
    tokio::task::spawn_blocking(read).await.context("it could not be read")?
}

async fn fetched(supplies: &Supplies, output: BlobId, bytes: u64, origin: &Origin) -> Result<Vec<u8>, PrepareError> {
    let (path, _pin) = supplies.get(output, bytes.min(OUTPUT_BYTES_MAX), origin).await?;
    let read = tokio::task::spawn_blocking(move || fs::read(path)).await.context("it could not be read")?;
    Ok(read.context("an output is missing")?)
}

impl Begun {
    /// Writes the outputs into a task's directory of inputs. Blocks.
    ///
    /// # Errors
    /// They cannot be written, or are named as no file can be.
    pub(super) fn lay_out(&self, inputs: &Path) -> anyhow::Result<()> {
        let files = self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        anyhow::ensure!(
            files.clone().all(|(name, _)| checkpoints::is_inside(name)),
            "an output has a file outside of it"
        );
        fs::create_dir_all(inputs)?;
        checkpoints::write_all(inputs, files)
    }
}
