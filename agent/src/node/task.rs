//! One task on this machine, around its run: its needs are fetched before, its output is kept after.

mod ended;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs, To};
use idlewood_net::fetch::{FetchError, Fetcher, Origin};
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagHeader, BagId, BlobId, Checkpoint, TaskId};
use idlewood_trust::label::Label;
use idlewood_trust::manifest::{INPUT_BYTES_MAX, MANIFEST_BYTES_MAX, Manifest, OUTPUT_BYTES_MAX};
use idlewood_trust::{CHECKPOINT_ADDED_BYTES, Gate, Refused, Unauthorised, open_checkpoint};
use idlewood_units::ByteSize;
use idlewood_worker::removal;
use idlewood_worker::{Input, Job, JobError, LayOutError, StartError, Stdin, lay_out};

pub(super) use self::ended::{Collected, Ended, collect, collect_untouched, not_prepared};
use super::checkpoints;
use super::homes::{Home, Homes};
use super::pin::Pin;
use crate::settings::{Bags, Objection};

/// Most that is kept of each of stdout and stderr. Our choice: what exceeds it belongs in an output file.
const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Largest signed manifest.
pub(super) const SIGNED_BYTES_MAX: u64 = MANIFEST_BYTES_MAX + (1 << 10);
/// A bag whose program cannot be had is left alone for this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How often a checkpoint is asked for, with such a pause in between, before its task begins without it.
const CHECKPOINT_TRIES: u32 = 3;

/// Where this machine gets what tasks need.
#[derive(Clone, Debug)]
pub(super) struct Supplies {
    pub(super) blobs: Arc<Blobs>,
    pub(super) fetcher: Fetcher,
    /// For bags of which nothing is here yet.
    pub(super) manifest_fetcher: Fetcher,
    /// Whose bags run here.
    pub(super) gate: Arc<Gate>,
    /// Held while a manifest is read, or a checkpoint signed.
    pub(super) reading: Arc<tokio::sync::Mutex<()>>,
    /// What the owner says to that; the driver keeps it as it is set.
    pub(super) bags: Arc<Mutex<Bags>>,
    pub(super) homes: Arc<Homes>,
    /// Whether this system can confine native programs as far as the owner asks for.
    pub(super) confines_natives: bool,
}

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
        self.manifest.entry(task.index).input.is_none()
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

    /// Another task of its bag; `None` where that has a file of its own.
    pub(super) fn another(&self, task: TaskId, attempt: u32) -> Option<Self> {
        let manifest = &self.manifest;
        if manifest.entry(task.index).input.is_some() {
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

/// Why a task cannot be prepared here and now.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// Another time, or another machine, may do better.
    #[error("{0:#}")]
    Later(#[from] anyhow::Error),
    /// No machine will.
    #[error("{0}")]
    Never(String),
}

impl PrepareError {
    /// Whether it is this machine's disk that has no room.
    pub(super) fn is_for_want_of_room(&self) -> bool {
        let Self::Later(error) = self else { return false };
        error.chain().any(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
            (Some(FetchError::Local(error)), _) => error.is_for_want_of_room(),
            (_, Some(error)) => BlobError::is_for_want_of_room(error),
            (_, None) => false,
        })
    }
}

impl From<LayOutError> for PrepareError {
    fn from(error: LayOutError) -> Self {
        match error {
            LayOutError::Io { .. } => Self::Later(error.into()),
            LayOutError::Name { .. } | LayOutError::Twice { .. } => Self::Never(error.to_string()),
        }
    }
}

impl From<StartError> for PrepareError {
    fn from(error: StartError) -> Self {
        match error {
            // Of this machine's directories.
            StartError::Job(JobError::Path { .. }) => Self::Later(error.into()),
            StartError::Job(_) | StartError::TooLarge => Self::Never(error.to_string()),
            StartError::NoSlot { .. }
            | StartError::Busy { .. }
            | StartError::Write(_)
            | StartError::EventsNotRead
            | StartError::ShutDown => Self::Later(error.into()),
        }
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

impl Supplies {
    /// Fetches what tasks of a bag need, pinned before it is here. Others that hold tasks of the bag may have it from here.
    async fn get(&self, blob: BlobId, bytes_max: u64, origin: &Origin) -> Result<(PathBuf, Pin), PrepareError> {
        self.get_by(&self.fetcher, blob, bytes_max, origin, To::Holders(origin.key)).await
    }

    /// The same by one of the fetchers, and for whom one likes.
    pub(super) async fn get_by(
        &self,
        fetcher: &Fetcher,
        blob: BlobId,
        bytes_max: u64,
        origin: &Origin,
        to: To,
    ) -> Result<(PathBuf, Pin), PrepareError> {
        let pin = Pin::lent(&self.blobs, Hash::from_bytes(blob.0), origin.bag, to);
        Ok((self.fetch(fetcher, blob, bytes_max, origin).await?, pin))
    }

    async fn fetch(
        &self,
        fetcher: &Fetcher,
        blob: BlobId,
        bytes_max: u64,
        origin: &Origin,
    ) -> Result<PathBuf, PrepareError> {
        let fetched = fetcher.fetch(Hash::from_bytes(blob.0), bytes_max, origin).await;
        Ok(fetched.context("a blob is not to be had")?)
    }

    /// Fetches what a machine made of a task of this one's bags, pinned before it is here.
    async fn get_made(
        &self,
        bag: BagId,
        blob: BlobId,
        bytes_max: u64,
        from: Contact,
    ) -> Result<(PathBuf, Pin), PrepareError> {
        let pin = Pin::new(&self.blobs, Hash::from_bytes(blob.0));
        let origin = Origin { bag, key: None, sources: vec![from] };
        Ok((self.fetch(&self.fetcher, blob, bytes_max, &origin).await?, pin))
    }

    /// Gets everything that a task needs, its manifest too unless that is `known`. A checkpoint comes with the most bytes
    /// that the owner lets it have.
    pub(super) async fn prepare(
        &self,
        task: TaskId,
        attempt: u32,
        bag: &BagHeader,
        known: Option<Arc<Manifest>>,
        checkpoint: Option<(Checkpoint, u64)>,
        origin: &Origin,
    ) -> Preparation {
        let manifest = match known {
            Some(manifest) => manifest,
            None => match self.manifest(bag, origin).await {
                Ok(manifest) => Arc::new(manifest),
                Err(error) => return Preparation::failed(None, error.into()),
            },
        };
        if let Some(error) = self.objection(&manifest.label()) {
            return Preparation::failed(Some(manifest), error);
        }
        let result = self.lay_out(task, attempt, &manifest, origin).await.map(Box::new);
        // Whoever handed it back could have made its checkpoint up: what several machines are to say alike begins at the
        // beginning.
        let goes_on = result.is_ok() && !manifest.deterministic;
        let mut planted = false;
        if let Some((checkpoint, bytes_max)) = checkpoint.filter(|_| goes_on)
            && let Err(error) = self.go_on_from(task, manifest.submitter, checkpoint, bytes_max, origin).await
        {
            planted = error.is::<Planted>();
            tracing::warn!(bag = %task.bag, index = task.index, error = format!("{error:#}"), "a task begins anew");
        }
        Preparation { manifest: Some(manifest), planted, result }
    }

    /// Why tasks of a bag that was authorised once do not begin any more, or not here.
    pub(super) fn objection(&self, label: &Label) -> Option<PrepareError> {
        match self.gate.standing(label.submitter) {
            Ok(()) => {}
            Err(error @ Unauthorised::Refused(Refused::Expired)) => return Some(anyhow::Error::from(error).into()),
            Err(error) => return Some(PrepareError::Never(error.to_string())),
        }
        let objection = self.owners_objection(label)?;
        // Other owners may let it run: after a few tries its tasks go back.
        Some(anyhow::Error::from(objection).into())
    }

    /// What the owner has against a bag; nothing against this machine's own, unless it is native and the system cannot
    /// confine that.
    pub(super) fn owners_objection(&self, label: &Label) -> Option<Objection> {
        if label.native && !self.confines_natives {
            return Some(Objection::Native);
        }
        let bags = self.bags.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Hash::from_bytes(label.program.0);
        bags.objection(label.submitter, program, label.native).filter(|_| label.submitter != self.gate.me())
    }

    /// Lays out what a task goes on from, which its submitter has signed for it, unless it has been at work here since.
    async fn go_on_from(
        &self,
        task: TaskId,
        submitter: PeerId,
        checkpoint: Checkpoint,
        bytes_max: u64,
        origin: &Origin,
    ) -> anyhow::Result<()> {
        let path = checkpoints::path(self.homes.checkpoints(), task);
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
            match self.get(checkpoint.blob, checkpoint.bytes, origin).await {
                Err(_) if tries_left > 0 => tokio::time::sleep(RETRY_AFTER).await,
                got => break got?,
            }
        };
        let homes = self.homes.clone();
        let lay_out = move || {
            let blob = fs::read(packed)?;
            let packed = open_checkpoint(&blob, &task.bag.0, task.index, submitter).ok_or(Planted)?;
            checkpoints::lay_out(&path, packed, homes.scratch())
        };
        tokio::task::spawn_blocking(lay_out).await.context("it could not be laid out")?
    }

    /// Fetches the files of a task and makes its directory.
    async fn lay_out(
        &self,
        task: TaskId,
        attempt: u32,
        manifest: &Arc<Manifest>,
        origin: &Origin,
    ) -> Result<Prepared, PrepareError> {
        let (program, pin) = self.get(manifest.program.blob, INPUT_BYTES_MAX, origin).await?;
        let mut pins = vec![pin];
        let mut inputs = Vec::new();
        for input in manifest.task_inputs(task.index) {
            let (path, pin) = self.get(input.blob, INPUT_BYTES_MAX, origin).await?;
            pins.push(pin);
            inputs.push(Input { name: input.name, path });
        }
        let (homes, bag) = (self.homes.clone(), task.bag);
        let stdin = manifest.task_stdin(task.index);
        let made = tokio::task::spawn_blocking(move || {
            let home = homes.of(bag).context("cannot make a directory for a bag")?;
            if inputs.is_empty() {
                return Ok((home, None, inputs));
            }
            let scratch = Scratch(home.inputs());
            lay_out(&scratch.0, &inputs)?;
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
            program_hash: manifest.program.blob.0,
            args: arguments(manifest, task),
            env: environment(manifest, task, attempt),
            stdin,
            inputs: laid_out.as_ref().map(|inputs| inputs.0.clone()),
            directory: scratch.0.clone(),
            checkpoint: Some(home.checkpoint(task)),
            memory_bytes: manifest.memory_bytes,
            fixed: fixed(manifest, task),
            output_bytes: STREAM_BYTES_MAX,
            disk_bytes: manifest.disk_bytes.min(self.blobs.kept_bytes().1),
            time_limit: Some(Duration::from_secs(manifest.time_limit_s)),
            native: manifest.native,
            reach: home.reach.clone(),
        };
        let (manifest, pins) = (manifest.clone(), Arc::new(pins));
        Ok(Prepared { job, manifest, scratch: Some(scratch), pins, inputs: laid_out, home })
    }
}

/// What clock and random numbers come from, where they are to be the same everywhere: what the task is given.
fn fixed(manifest: &Manifest, task: TaskId) -> Option<u64> {
    let hash = manifest.deterministic.then(|| manifest.input_hash(task.index))?;
    hash.first_chunk().map(|first| u64::from_le_bytes(*first))
}

fn arguments(manifest: &Manifest, task: TaskId) -> Vec<String> {
    let args = manifest.args.iter().map(|argument| manifest.fill(argument, task.index));
    std::iter::once(manifest.program.name.clone()).chain(args).collect()
}

fn environment(manifest: &Manifest, task: TaskId, attempt: u32) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> =
        manifest.env.iter().map(|(name, value)| (name.clone(), manifest.fill(value, task.index))).collect();
    env.insert("IDLEWOOD_BAG_ID".to_owned(), hex::encode(task.bag.0));
    env.insert("IDLEWOOD_TASK_INDEX".to_owned(), task.index.to_string());
    env.insert("IDLEWOOD_TASK_COUNT".to_owned(), manifest.tasks.to_string());
    if !manifest.deterministic {
        env.insert("IDLEWOOD_ATTEMPT".to_owned(), attempt.to_string());
    }
    env.insert("IDLEWOOD_ENTRY".to_owned(), manifest.entry(task.index).text);
    env.into_iter().collect()
}

impl Supplies {
    /// Brings the output of a task here, durably.
    pub(super) async fn keep_output(
        &self,
        bag: BagId,
        output: BlobId,
        bytes: u64,
        from: Contact,
    ) -> Result<Pin, PrepareError> {
        if bytes > OUTPUT_BYTES_MAX {
            let limit = OUTPUT_BYTES_MAX;
            return Err(PrepareError::Never(format!("an output of {bytes} bytes is over the limit of {limit}")));
        }
        let (_, pin) = self.get_made(bag, output, bytes, from).await?;
        let blobs = self.blobs.clone();
        let durable = tokio::task::spawn_blocking(move || blobs.make_durable(Hash::from_bytes(output.0)));
        durable.await.context("the write failed")?.context("cannot keep a result")?;
        Ok(pin)
    }

    /// Brings the checkpoint of a task of this machine's here, and keeps it durably with a signature: that is what
    /// requests name.
    pub(super) async fn keep_checkpoint(
        &self,
        task: TaskId,
        packed: Checkpoint,
        from: Contact,
    ) -> Result<(Checkpoint, Pin), PrepareError> {
        if packed.bytes > OUTPUT_BYTES_MAX {
            return Err(PrepareError::Never(format!("a checkpoint of {} bytes is over the limit", packed.bytes)));
        }
        let (path, _pin) = self.get_made(task.bag, packed.blob, packed.bytes, from).await?;
        let (gate, blobs) = (self.gate.clone(), self.blobs.clone());
        // One at a time on this machine: it may be large.
        let turn = self.reading.clone().lock_owned().await;
        let sign = move || {
            let _turn = turn;
            checkpoints::sign(&path, task, &gate, &blobs)
        };
        let kept = tokio::task::spawn_blocking(sign).await.context("the write failed")?;
        Ok(kept.context("cannot keep a checkpoint")?)
    }
}

#[cfg(test)]
pub(super) mod tests;
