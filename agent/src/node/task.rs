//! One task on this machine, around its run: its needs are fetched before, its output is kept after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use idlewood_machine::RETRY_AFTER;
use idlewood_net::fetch::Origin;
use idlewood_overlay::PeerId;
use idlewood_scheduler::{BagHeader, Checkpoint, TaskId};
use idlewood_trust::manifest::{self, INPUT_BYTES_MAX, Manifest};
use idlewood_trust::{CHECKPOINT_ADDED_BYTES, open_checkpoint};
use idlewood_units::ByteSize;
use idlewood_worker::removal;
use idlewood_worker::{Input, Job, Pool, Stdin, lay_out, lay_out_folders};
use libp2p::futures::{StreamExt as _, TryStreamExt as _, stream};

use super::begun::{self, Begun, Unsigned};
use super::checkpoints;
use super::ended::STREAM_BYTES_MAX;
use super::homes::Home;
use super::pin::Pin;
use super::progress::{self, PROGRESS};
use super::signed;
use super::supplies::{PrepareError, Supplies};

/// How often a checkpoint is asked for, with such a pause in between, before its task begins without it.
const CHECKPOINT_TRIES: u32 = 3;
/// Inputs of a task that are fetched at the same time: a folder may have thousands of small ones, each of which takes a way there and back.
const INPUTS_TOGETHER: usize = 16;

/// A task with everything it needs. Dropping it removes its directory, which blocks.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) job: Job,
    pub(super) manifest: Arc<Manifest>,
    scratch: Option<Scratch>,
    /// Program and inputs.
    pins: Arc<Vec<Pin>>,
    /// The latter, laid out.
    inputs: Option<Arc<Scratch>>,
    /// Where all of its directories are. Goes after them.
    home: Arc<Home>,
}

impl Prepared {
    /// Whether other tasks of its bag need nothing that it does not.
    pub(super) fn is_example(&self, task: TaskId) -> bool {
        self.manifest.rounds.is_none() && !self.manifest.has_own_files(task.index) && !self.manifest.has_lines()
    }

    /// What it has in common with them, without a directory.
    pub(super) fn example(&self) -> Self {
        Self {
            job: self.job.clone(),
            manifest: self.manifest.clone(),
            scratch: None,
            pins: self.pins.clone(),
            inputs: self.inputs.clone(),
            home: self.home.clone(),
        }
    }

    /// Another task of its bag; `None` where that has a file of its own, or is one of a round.
    pub(super) fn another(&self, task: TaskId, attempt: u32) -> Option<Self> {
        let manifest = &self.manifest;
        if manifest.rounds.is_some() || manifest.has_own_files(task.index) || manifest.has_lines() {
            return None;
        }
        let scratch = Scratch(self.home.attempt(task));
        let job = Job {
            args: arguments(manifest, task),
            env: environment(manifest, task, attempt),
            directory: scratch.0.clone(),
            checkpoint: Some(self.home.checkpoint(task)),
            fixed: fixed(manifest, task),
            ..self.job.clone()
        };
        Some(Self { job, scratch: Some(scratch), ..self.example() })
    }

    /// Its directory was not made.
    pub(super) fn leave_nothing(mut self: Box<Self>) {
        if let Some(scratch) = &mut self.scratch {
            scratch.0.clear();
        }
    }
}

/// Result of fetching a task's needs.
#[derive(Debug)]
pub(super) struct Preparation {
    /// Also where the rest failed.
    pub(super) manifest: Option<Arc<Manifest>>,
    /// Whether it came with a checkpoint that its submitter has not signed for it, and begins anew.
    pub(super) planted: bool,
    pub(super) result: Result<Box<Prepared>, PrepareError>,
}

impl Preparation {
    fn failed(manifest: Option<Arc<Manifest>>, error: PrepareError) -> Self {
        Self { manifest, planted: false, result: Err(error) }
    }

    /// The one that stands for a preparation that broke off.
    pub(super) fn lost() -> Self {
        Self::failed(None, anyhow::anyhow!("its preparation broke off").into())
    }
}

/// A checkpoint is not what its task's submitter gave out for it: whoever passed the request on has changed it, or the
/// submitter's agent is one that signs none.
#[derive(Debug, thiserror::Error)]
#[error("its submitter has not signed what it came with to go on from")]
struct Planted;

/// A directory that is removed when this is dropped, if somebody has made it.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty()
            && let Err(error) = removal::remove(&self.0)
        {
            tracing::warn!(%error, directory = %self.0.display(), "cannot remove a task's directory");
        }
    }
}

/// What came with a task.
#[derive(Debug, Default)]
pub(super) struct CameWith {
    /// Its line, where the tasks of its bag are lines.
    pub(super) line: Option<String>,
    /// What it goes on from or begins with, and the most bytes that the owner lets it have.
    pub(super) checkpoint: Option<(Checkpoint, u64)>,
}

/// Gets everything that a task needs, its manifest too unless that is `known`.
pub(super) async fn prepare(
    supplies: &Supplies,
    task: TaskId,
    attempt: u32,
    bag: &BagHeader,
    known: Option<Arc<Manifest>>,
    came: CameWith,
    origin: &Origin,
) -> Preparation {
    let CameWith { line, checkpoint } = came;
    let manifest = match known {
        Some(manifest) => manifest,
        None => match signed::manifest(supplies, bag, origin).await {
            Ok(manifest) => Arc::new(manifest),
            Err(error) => return Preparation::failed(None, error.into()),
        },
    };
    if let Some(error) = supplies.objection(&manifest.label_of(task.index)) {
        return Preparation::failed(Some(manifest), error);
    }
    if manifest.needs_start(task.index) {
        return prepare_round(supplies, task, attempt, manifest, checkpoint, origin).await;
    }
    let of_task = match line {
        Some(line) if manifest.has_lines() => match manifest.with_line(task.index, line) {
            Ok(of_task) => Arc::new(of_task),
            Err(error) => return Preparation::failed(Some(manifest), PrepareError::Never(error.to_string())),
        },
        None if manifest.has_lines() => {
            let error = anyhow::anyhow!("the line that is this task did not come, or was lost in a restart");
            return Preparation::failed(Some(manifest), error.into());
        }
        _ => manifest.clone(),
    };
    let result = put_together(supplies, task, attempt, &of_task, None, origin).await.map(Box::new);
    // Whoever handed it back could have made its checkpoint up: what several machines are to say alike begins at the
    // beginning.
    let goes_on = result.is_ok() && !manifest.deterministic;
    let mut planted = false;
    if let Some((checkpoint, bytes_max)) = checkpoint.filter(|_| goes_on)
        && let Err(error) = go_on_from(supplies, task, manifest.submitter, checkpoint, bytes_max, origin).await
    {
        planted = error.is::<Planted>();
        tracing::warn!(bag = %task.bag, index = task.index, error = format!("{error:#}"), "a task begins anew");
    }
    Preparation { manifest: Some(manifest), planted, result }
}

/// The same for a task of a later round, which begins with outputs of others.
async fn prepare_round(
    supplies: &Supplies,
    task: TaskId,
    attempt: u32,
    manifest: Arc<Manifest>,
    start: Option<(Checkpoint, u64)>,
    origin: &Origin,
) -> Preparation {
    let bytes_max = start.map_or(0, |(_, bytes_max)| bytes_max);
    let begun = begun::begin(supplies, task, &manifest, start.map(|(start, _)| start), origin).await;
    let planted = matches!(&begun, Err(PrepareError::Later(error)) if error.is::<Unsigned>());
    let result = match begun {
        Ok(begun) => {
            let begun = Arc::new(begun);
            let more = begun.iterations.map(|iterations| Arc::new(manifest.with_iterations(iterations)));
            let of_task = more.as_ref().unwrap_or(&manifest);
            let together = put_together(supplies, task, attempt, of_task, Some(begun.clone()), origin).await;
            if together.is_ok()
                && !manifest.deterministic
                && let Err(error) = go_on_with(supplies, task, begun, bytes_max).await
            {
                tracing::warn!(bag = %task.bag, index = task.index, error = format!("{error:#}"), "a task begins its round anew");
            }
            together.map(Box::new)
        }
        Err(error) => Err(error),
    };
    Preparation { manifest: Some(manifest), planted, result }
}

/// Lays out the checkpoint of a task of a later round, if it came with one and has not been at work here since.
async fn go_on_with(supplies: &Supplies, task: TaskId, begun: Arc<Begun>, bytes_max: u64) -> anyhow::Result<()> {
    let path = checkpoints::path(supplies.homes.checkpoints(), task);
    if begun.checkpoint.is_empty() || path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let bytes: u64 = begun.checkpoint.values().map(|bytes| bytes.len() as u64).sum();
    anyhow::ensure!(
        bytes <= bytes_max,
        "its checkpoint of {} is over {} (limits.checkpoint)",
        ByteSize(bytes),
        ByteSize(bytes_max)
    );
    let homes = supplies.homes.clone();
    let lay_out = move || checkpoints::lay_out_files(&path, &begun.checkpoint, homes.scratch());
    tokio::task::spawn_blocking(lay_out).await.context("it could not be laid out")?
}

/// Lays out what a task goes on from, which its submitter has signed for it, unless it has been at work here since.
async fn go_on_from(
    supplies: &Supplies,
    task: TaskId,
    submitter: PeerId,
    checkpoint: Checkpoint,
    bytes_max: u64,
    origin: &Origin,
) -> anyhow::Result<()> {
    let path = checkpoints::path(supplies.homes.checkpoints(), task);
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    anyhow::ensure!(
        checkpoint.bytes <= bytes_max + CHECKPOINT_ADDED_BYTES as u64,
        "its checkpoint of {} is over {} (limits.checkpoint)",
        ByteSize(checkpoint.bytes),
        ByteSize(bytes_max)
    );
    let mut tries_left = CHECKPOINT_TRIES;
    let (packed, _pin) = loop {
        tries_left -= 1;
        match supplies.get(checkpoint.blob, checkpoint.bytes, origin).await {
            Err(_) if tries_left > 0 => tokio::time::sleep(RETRY_AFTER).await,
            got => break got?,
        }
    };
    let homes = supplies.homes.clone();
    let lay_out = move || {
        let blob = fs::read(packed)?;
        let packed = open_checkpoint(&blob, &task.bag.0, task.index, submitter).ok_or(Planted)?;
        checkpoints::lay_out(&path, packed, homes.scratch())
    };
    tokio::task::spawn_blocking(lay_out).await.context("it could not be laid out")?
}

/// Fetches the files of a task and makes its directory.
async fn put_together(
    supplies: &Supplies,
    task: TaskId,
    attempt: u32,
    manifest: &Arc<Manifest>,
    begun: Option<Arc<Begun>>,
    origin: &Origin,
) -> Result<Prepared, PrepareError> {
    let program_blob = manifest.program_of(task.index).blob;
    let (program, pin) = supplies.get(program_blob, INPUT_BYTES_MAX, origin).await?;
    let mut pins = vec![pin];
    let mut inputs = Vec::new();
    let executable: BTreeSet<&str> = manifest.executable.iter().map(String::as_str).collect();
    let get = async |input: manifest::Input| {
        let (path, pin) = supplies.get(input.blob, INPUT_BYTES_MAX, origin).await?;
        let executable = executable.contains(input.name.as_str());
        Ok::<_, PrepareError>((Input { name: input.name, path, executable }, pin))
    };
    let mut fetches = stream::iter(manifest.task_inputs(task.index)).map(get).buffered(INPUTS_TOGETHER);
    while let Some((input, pin)) = fetches.try_next().await? {
        pins.push(pin);
        inputs.push(input);
    }
    let (homes, bag) = (supplies.homes.clone(), task.bag);
    let (stdin, folders) = (manifest.task_stdin(task.index), manifest.task_folders(task.index));
    let made = tokio::task::spawn_blocking(move || {
        let home = homes.of(bag).context("cannot make a directory for a bag")?;
        if inputs.is_empty() && folders.is_empty() && begun.is_none() {
            return Ok((home, None, inputs));
        }
        let scratch = Scratch(home.inputs());
        lay_out(&scratch.0, &inputs)?;
        lay_out_folders(&scratch.0, &folders)?;
        if let Some(begun) = begun {
            begun.lay_out(&scratch.0).context("cannot lay out what a task begins with")?;
        }
        Ok::<_, PrepareError>((home, Some(Arc::new(scratch)), inputs))
    });
    let (home, laid_out, inputs) = made.await.context("cannot lay out a task's inputs")??;
    let stdin = match stdin {
        None => Stdin::Empty,
        Some(name) => {
            let missing = || PrepareError::Never(format!("standard input {name:?} is not among the inputs"));
            let input = inputs.iter().find(|input| input.name == name).ok_or_else(missing)?;
            Stdin::File(laid_out.as_ref().ok_or_else(missing)?.0.join(&input.name))
        }
    };
    let scratch = Scratch(home.attempt(task));
    let job = Job {
        program,
        program_hash: program_blob.0,
        args: arguments(manifest, task),
        env: environment(manifest, task, attempt),
        stdin,
        inputs: laid_out.as_ref().map(|inputs| inputs.0.clone()),
        directory: scratch.0.clone(),
        checkpoint: Some(home.checkpoint(task)),
        memory_bytes: manifest.memory_bytes,
        fixed: fixed(manifest, task),
        output_bytes: STREAM_BYTES_MAX,
        disk_bytes: manifest.disk_bytes.min(supplies.blobs.kept_bytes().1),
        time_limit: Some(Duration::from_secs(manifest.time_limit_s)),
        native: manifest.native,
        reach: home.reach.clone(),
    };
    let (manifest, pins) = (manifest.clone(), Arc::new(pins));
    Ok(Prepared { job, manifest, scratch: Some(scratch), pins, inputs: laid_out, home })
}

/// Ends what a pool runs, and starts nothing more on it.
pub(super) fn stop_all(pool: &Pool) {
    pool.freeze();
    for slot in 0..pool.slots() {
        pool.take_back(slot);
        pool.stop(slot);
    }
}

/// What clock and random numbers come from, where they are to be the same everywhere: what the task is given.
fn fixed(manifest: &Manifest, task: TaskId) -> Option<u64> {
    let hash = manifest.deterministic.then(|| manifest.input_hash(task.index))?;
    hash.first_chunk().map(|first| u64::from_le_bytes(*first))
}

fn arguments(manifest: &Manifest, task: TaskId) -> Vec<String> {
    let args = manifest.args.iter().map(|argument| manifest.fill(argument, task.index));
    // A merge has none: they are its processes'.
    let args = args.filter(|_| !manifest.is_merge(task.index));
    std::iter::once(manifest.program_of(task.index).name.clone()).chain(args).collect()
}

fn environment(manifest: &Manifest, task: TaskId, attempt: u32) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> =
        manifest.env.iter().map(|(name, value)| (name.clone(), manifest.fill(value, task.index))).collect();
    env.insert("IDLEWOOD_BAG_ID".to_owned(), hex::encode(task.bag.0));
    env.insert("IDLEWOOD_TASK_INDEX".to_owned(), task.index.to_string());
    if manifest.source.is_none() {
        env.insert("IDLEWOOD_TASK_COUNT".to_owned(), manifest.tasks.to_string());
    }
    if !manifest.deterministic {
        env.insert("IDLEWOOD_ATTEMPT".to_owned(), attempt.to_string());
    }
    env.insert("IDLEWOOD_ENTRY".to_owned(), manifest.entry(task.index).text);
    if progress::is_told(manifest, task.index) {
        env.insert("IDLEWOOD_PROGRESS".to_owned(), PROGRESS.to_owned());
    }
    env.extend(
        manifest.round_variables(task.index).into_iter().map(|(name, value)| (name.to_owned(), value.to_string())),
    );
    env.into_iter().collect()
}

#[cfg(test)]
pub(super) mod tests;
