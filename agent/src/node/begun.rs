//! What a task of an application in rounds begins with, on the machine where it runs: fetched, checked and laid out.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use idlewood_net::fetch::Origin;
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BlobId, Checkpoint, TaskId};
use idlewood_trust::manifest::{Given, Manifest, OUTPUT_BYTES_MAX, START_BYTES_MAX, Start, TaskOutput};
use idlewood_trust::{CHECKPOINT_ADDED_BYTES, open_checkpoint};
use serde_bytes::ByteBuf;

use super::checkpoints;
use super::supplies::{PrepareError, Supplies};

/// Most bytes of all outputs that one task begins with, which are in memory for a moment. Our choice.
const GIVEN_BYTES_MAX: u64 = 4 * OUTPUT_BYTES_MAX;

/// What a task begins with, on the machine where it runs: read, and all outputs that it names fetched.
#[derive(Debug)]
pub(super) struct Begun {
    files: Vec<(String, ByteBuf)>,
    /// How many iterations it does, where it fills its time.
    pub(super) iterations: Option<NonZeroU64>,
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
    let all = start.given.iter().fold(0_u64, |all, given| all.saturating_add(given.bytes));
    if all > GIVEN_BYTES_MAX {
        return Err(PrepareError::Never(format!(
            "the outputs that it begins with take {all} bytes, over {} MiB: have processes leave less",
            GIVEN_BYTES_MAX >> 20
        )));
    }
    let process = manifest.rounds.as_ref().and_then(|rounds| rounds.value(task.index, "process"));
    let mut files = Vec::new();
    for Given { place, output, bytes, content } in start.given {
        let packed = match content {
            Some(content) => content.into_vec(),
            None => fetched(supplies, output, bytes, origin).await?,
        };
        files.extend(place.files(TaskOutput::decode(&packed).map_err(anyhow::Error::from)?, process));
    }
    Ok(Begun { files, iterations: start.iterations, checkpoint: start.checkpoint })
}

async fn read(path: PathBuf, task: TaskId, submitter: PeerId) -> anyhow::Result<Start> {
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
