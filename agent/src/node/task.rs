//! One task on this machine, around its run: what it needs is fetched before, what it produced is kept after.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_overlay::Contact;
use idlewood_scheduler::{BagHeader, BlobId, Checkpoint, TaskId, TaskOutcome};
use serde_bytes::ByteBuf;

use super::checkpoints;
use super::homes::{Home, Homes};
use super::pin::Pin;
use crate::blobs::{BlobError, Blobs};
use crate::fetch::{FetchError, Fetcher};
use crate::grid::{Gate, Refused, Unauthorised};
use crate::manifest::{INPUT_BYTES_MAX, MANIFEST_BYTES_MAX, Manifest, OUTPUT_BYTES_MAX, TaskOutput};
use crate::settings::{Bags, Objection};
use crate::submit::values::ByteSize;
use crate::worker::left::{self, Left, Room};
use crate::worker::{
    Input, Job, JobError, LayOutError, Outcome, STDERR, STDOUT, StartError, Stdin, WORK, WorkerEvent, lay_out,
};

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
    /// Whose bags run here.
    pub(super) gate: Arc<Gate>,
    /// What the owner says to that; the driver keeps it as it is set.
    pub(super) bags: Arc<Mutex<Bags>>,
    pub(super) homes: Arc<Homes>,
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

/// What came of fetching a task's needs.
#[derive(Debug)]
pub(super) struct Preparation {
    /// Also where the rest failed.
    pub(super) manifest: Option<Arc<Manifest>>,
    pub(super) result: Result<Box<Prepared>, PrepareError>,
}

impl Preparation {
    /// The one that stands for a preparation that broke off.
    pub(super) fn lost() -> Self {
        Self { manifest: None, result: Err(anyhow::anyhow!("its preparation broke off").into()) }
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

/// A directory that is removed when this is dropped, if somebody has made it.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty()
            && let Err(error) = left::remove(&self.0)
        {
            tracing::warn!(%error, directory = %self.0.display(), "cannot remove a task's directory");
        }
    }
}

impl Supplies {
    /// Fetches a blob, pinned before it is here.
    pub(super) async fn get(
        &self,
        blob: BlobId,
        bytes_max: u64,
        sources: &[Contact],
    ) -> Result<(PathBuf, Pin), PrepareError> {
        let hash = Hash::from_bytes(blob.0);
        let pin = Pin::new(&self.blobs, hash);
        let fetched = self.fetcher.fetch(hash, bytes_max, sources.to_vec()).await;
        Ok((fetched.context("a blob is not to be had")?, pin))
    }

    /// The manifest of a bag, from here or from `sources`, if its submitter may submit.
    async fn manifest(&self, bag: &BagHeader, sources: &[Contact]) -> Result<Manifest, PrepareError> {
        let (path, _pin) = self.get(BlobId(bag.id.0), SIGNED_BYTES_MAX, sources).await?;
        let (gate, submitter) = (self.gate.clone(), bag.submitter.peer);
        let read = tokio::task::spawn_blocking(move || {
            let bytes = fs::read(path).context("cannot read the manifest")?;
            let never = |error: String| PrepareError::Never(error);
            let (manifest, signed) = Manifest::decode_signed(&bytes).map_err(|error| never(error.to_string()))?;
            match gate.authorise(&signed, submitter) {
                Ok(()) => Ok(manifest),
                // It may have been renewed, and tell so when it is connected.
                Err(error @ Unauthorised::Refused(Refused::Expired)) => Err(anyhow::Error::from(error).into()),
                Err(error) => Err(never(error.to_string())),
            }
        });
        let manifest = read.await.context("cannot read the manifest")??;
        if manifest.tasks != bag.tasks || manifest.submitter != bag.submitter.peer {
            return Err(PrepareError::Never("the bag's manifest does not fit its request".to_owned()));
        }
        Ok(manifest)
    }

    /// Gets everything that a task needs, its manifest too unless that is `known`.
    pub(super) async fn prepare(
        &self,
        task: TaskId,
        attempt: u32,
        bag: &BagHeader,
        known: Option<Arc<Manifest>>,
        checkpoint: Option<Checkpoint>,
        sources: &[Contact],
    ) -> Preparation {
        let manifest = match known {
            Some(manifest) => manifest,
            None => match self.manifest(bag, sources).await {
                Ok(manifest) => Arc::new(manifest),
                Err(error) => return Preparation { manifest: None, result: Err(error) },
            },
        };
        if let Some(error) = self.objection(&manifest) {
            return Preparation { manifest: Some(manifest), result: Err(error) };
        }
        let result = self.lay_out(task, attempt, &manifest, sources).await.map(Box::new);
        if let Some(checkpoint) = checkpoint.filter(|_| result.is_ok())
            && let Err(error) = self.go_on_from(task, checkpoint, sources).await
        {
            tracing::warn!(bag = %task.bag, index = task.index, error = format!("{error:#}"), "a task begins anew");
        }
        Preparation { manifest: Some(manifest), result }
    }

    /// Why tasks of a bag that was authorised once do not begin any more, or not here. Nothing is said against this
    /// machine's own.
    pub(super) fn objection(&self, manifest: &Manifest) -> Option<PrepareError> {
        if manifest.submitter == self.gate.me() {
            return None;
        }
        if self.gate.is_revoked(manifest.submitter) {
            return Some(PrepareError::Never(Unauthorised::Refused(Refused::Revoked).to_string()));
        }
        let objection = self.owners_objection(manifest)?;
        // Other owners may let it run: after a few tries its tasks go back.
        Some(anyhow::Error::from(objection).into())
    }

    /// What the owner has against a bag; nothing against this machine's own.
    pub(super) fn owners_objection(&self, manifest: &Manifest) -> Option<Objection> {
        let bags = self.bags.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Hash::from_bytes(manifest.program.blob.0);
        bags.objection(manifest.submitter, program).filter(|_| manifest.submitter != self.gate.me())
    }

    /// Lays out what a task goes on from, unless it has been at work here since.
    async fn go_on_from(&self, task: TaskId, checkpoint: Checkpoint, sources: &[Contact]) -> anyhow::Result<()> {
        let path = checkpoints::path(self.homes.checkpoints(), task);
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        anyhow::ensure!(
            checkpoint.bytes <= OUTPUT_BYTES_MAX,
            "a checkpoint of {} bytes is too large",
            checkpoint.bytes
        );
        let mut tries_left = CHECKPOINT_TRIES;
        let (packed, _pin) = loop {
            tries_left -= 1;
            match self.get(checkpoint.blob, checkpoint.bytes, sources).await {
                Err(_) if tries_left > 0 => tokio::time::sleep(RETRY_AFTER).await,
                got => break got?,
            }
        };
        let homes = self.homes.clone();
        let lay_out = move || checkpoints::lay_out(&path, &fs::read(packed)?, homes.scratch());
        tokio::task::spawn_blocking(lay_out).await.context("it could not be laid out")?
    }

    /// Fetches the files of a task and makes its directory.
    async fn lay_out(
        &self,
        task: TaskId,
        attempt: u32,
        manifest: &Arc<Manifest>,
        sources: &[Contact],
    ) -> Result<Prepared, PrepareError> {
        let (program, pin) = self.get(manifest.program.blob, INPUT_BYTES_MAX, sources).await?;
        let mut pins = vec![pin];
        let mut inputs = Vec::new();
        for input in manifest.task_inputs(task.index) {
            let (path, pin) = self.get(input.blob, INPUT_BYTES_MAX, sources).await?;
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
    pub(super) async fn keep_output(&self, output: BlobId, bytes: u64, from: Contact) -> Result<Pin, PrepareError> {
        if bytes > OUTPUT_BYTES_MAX {
            let limit = OUTPUT_BYTES_MAX;
            return Err(PrepareError::Never(format!("an output of {bytes} bytes is over the limit of {limit}")));
        }
        let (_, pin) = self.get(output, bytes, &[from]).await?;
        let blobs = self.blobs.clone();
        let durable = tokio::task::spawn_blocking(move || blobs.make_durable(Hash::from_bytes(output.0)));
        durable.await.context("the write failed")?.context("cannot keep a result")?;
        Ok(pin)
    }
}

/// How a worker's run ended, with its times.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) output_truncated: bool,
    /// The task had no directory and wrote nothing.
    pub(super) untouched: bool,
}

impl Ended {
    /// What a worker's event says, and of which slot.
    pub(super) fn of(event: WorkerEvent) -> (usize, Self) {
        let WorkerEvent::Ended { slot, outcome, wall, cpu, output_truncated, untouched, .. } = event;
        (slot, Self { outcome, wall, cpu, output_truncated, untouched })
    }

    /// The end of a task that could not begin on any machine.
    pub(super) fn never(reason: String) -> Self {
        Self {
            outcome: Outcome::Invalid { message: reason },
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            output_truncated: false,
            untouched: false,
        }
    }

    /// An output with nothing but its times: whole milliseconds, so that small tasks which end the same way have the
    /// same output, which is one blob.
    ///
    /// Without them where two machines are to have the same output.
    fn times(&self, job: Option<&Job>) -> TaskOutput {
        if job.is_some_and(|job| job.fixed.is_some()) {
            return TaskOutput::default();
        }
        let rounded = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
        TaskOutput { cpu_s: rounded(self.cpu), wall_s: rounded(self.wall), ..TaskOutput::default() }
    }

    /// Its work, in Mop: processor time at the slot's speed.
    pub(super) fn work_mops(&self, speed_mops: f64) -> f64 {
        self.cpu.as_secs_f64() * speed_mops
    }
}

/// What became of a task here. The output is pinned until the peer's own record of it does that, or nobody wants it.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) outcome: TaskOutcome,
    pub(super) pin: Option<Pin>,
}

impl Collected {
    fn without_output(outcome: TaskOutcome) -> Self {
        Self { outcome, pin: None }
    }

    /// Nothing that could be kept: the task runs again later.
    pub(super) fn not_started() -> Self {
        Self::without_output(TaskOutcome::NotStarted { retry_after: RETRY_AFTER })
    }
}

/// What a task produced that wrote nothing, where that is on disk already: many small tasks end the same way. Neither
/// blocks nor writes. `None`: [`collect`] has to keep it.
pub(super) fn collect_known(
    blobs: &Arc<Blobs>,
    job: &Job,
    success_codes: &[i32],
    ended: &Ended,
    speed_mops: f64,
) -> Option<Collected> {
    let Outcome::Exited { code } = ended.outcome else { return None };
    if !ended.untouched {
        return None;
    }
    let (exit_code, code) = (Some(code), i32::from(code));
    let bytes = TaskOutput { exit_code: Some(code), ..ended.times(Some(job)) }.encode();
    let hash = blake3::hash(&bytes);
    let pin = Pin::new(blobs, hash);
    let outcome = TaskOutcome::Finished {
        success: success_codes.contains(&code),
        crashed: false,
        output: BlobId(*hash.as_bytes()),
        output_bytes: bytes.len() as u64,
        work_mops: ended.work_mops(speed_mops),
        exit_code,
    };
    blobs.is_durable(hash).then_some(Collected { outcome, pin: Some(pin) })
}

/// Keeps what a task produced, durably. Blocks.
pub(super) fn collect(
    blobs: &Arc<Blobs>,
    job: Option<&Job>,
    success_codes: &[i32],
    ended: &Ended,
    speed_mops: f64,
) -> Collected {
    let mut output = ended.times(job);
    match &ended.outcome {
        Outcome::Exited { code } => output.exit_code = Some(i32::from(*code)),
        Outcome::Trapped { message } | Outcome::Invalid { message } => output.error = Some(message.clone()),
        Outcome::TimedOut { limit } => {
            output.error = Some(format!(
                "ran longer than its time limit of {} s: submit the bag with a larger --time-limit",
                limit.as_secs()
            ));
        }
        Outcome::OverDisk { limit_bytes } => {
            output.error = Some(format!(
                "its files took more than the limit of {} of disk: let it write less, or raise the limit (--disk of the bag, \
                 limits.disk of the machine)",
                ByteSize(*limit_bytes)
            ));
        }
        Outcome::WorkerDied { reason } => output.error = Some(reason.clone()),
        Outcome::CouldNotStart { message } => {
            tracing::warn!(%message, "a task could not start; trying again");
            return Collected::not_started();
        }
        Outcome::Stopped => return Collected::without_output(TaskOutcome::Stopped),
    }
    if let Some(job) = job.filter(|_| !ended.untouched)
        && let Err(error) = read_outputs(job, &mut output)
    {
        output.error.get_or_insert(format!("its output could not be kept: {error}"));
        output.files.clear();
    }
    if ended.output_truncated {
        output.error.get_or_insert(format!(
            "wrote more than the limit of {} MiB to stdout or stderr: what follows is lost; let it write to a file",
            STREAM_BYTES_MAX >> 20
        ));
    }
    let bytes = encode_within(&mut output, OUTPUT_BYTES_MAX);
    let success = output.error.is_none() && output.exit_code.is_some_and(|code| success_codes.contains(&code));
    let pin = Pin::new(blobs, blake3::hash(&bytes));
    let kept = blobs.put_durable(&bytes);
    // Where the worker died the next try goes on from there; else what is wrong may be in it.
    let is_over = kept.is_ok() && !matches!(ended.outcome, Outcome::WorkerDied { .. });
    if let Some(checkpoint) = job.and_then(|job| job.checkpoint.as_ref()).filter(|_| is_over && !ended.untouched)
        && let Err(error) = checkpoints::remove(checkpoint)
    {
        tracing::warn!(%error, checkpoint = %checkpoint.display(), "a checkpoint could not be removed");
    }
    match kept {
        Ok(hash) => Collected {
            outcome: TaskOutcome::Finished {
                success,
                crashed: matches!(ended.outcome, Outcome::WorkerDied { .. }),
                output: BlobId(*hash.as_bytes()),
                output_bytes: bytes.len() as u64,
                work_mops: ended.work_mops(speed_mops),
                exit_code: if let Outcome::Exited { code } = ended.outcome { Some(code) } else { None },
            },
            pin: Some(pin),
        },
        Err(error) => {
            tracing::error!(%error, "a result could not be kept; its task runs again later");
            Collected::not_started()
        }
    }
}

/// The blob of an output, without the files if it would be larger than submitters take.
fn encode_within(output: &mut TaskOutput, bytes_max: u64) -> Vec<u8> {
    let bytes = output.encode();
    if bytes.len() as u64 <= bytes_max {
        return bytes;
    }
    output.error = Some(format!(
        "its output takes {} bytes, over the limit of {bytes_max} ({} MiB): split the task, or let it write less",
        bytes.len(),
        bytes_max >> 20
    ));
    output.files.clear();
    output.encode()
}

/// What failing to prepare a task means for it.
pub(super) fn not_prepared(blobs: &Arc<Blobs>, error: PrepareError, speed_mops: f64) -> Collected {
    match error {
        PrepareError::Later(error) => {
            tracing::info!(error = format!("{error:#}"), "a task cannot start yet");
            Collected::not_started()
        }
        PrepareError::Never(reason) => collect(blobs, None, &[], &Ended::never(reason), speed_mops),
    }
}

fn read_outputs(job: &Job, output: &mut TaskOutput) -> io::Result<()> {
    let over = format!("it is over the limit of {} MiB: split the task, or let it write less", OUTPUT_BYTES_MAX >> 20);
    let mut room = Room::new(OUTPUT_BYTES_MAX, over);
    let Some(left) = Left::open(&job.directory)? else { return Ok(()) };
    let mut stream = |name| Ok::<_, io::Error>(left.read(name, &mut room)?.unwrap_or_default());
    (output.stdout, output.stderr) = (stream(STDOUT)?, stream(STDERR)?);
    // A program that uses no files has none, even if it wrote to stdout.
    if let Some(work) = left.directory(WORK)? {
        output.files.extend(work.read_all(&mut room)?.into_iter().map(|(name, bytes)| (name, ByteBuf::from(bytes))));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use idlewood_overlay::PeerId;
    use idlewood_scheduler::BagId;

    use super::*;
    use crate::manifest::{Input as Named, MANIFEST_VERSION};

    /// A manifest of one task.
    pub(in super::super) fn manifest() -> Manifest {
        Manifest {
            version: MANIFEST_VERSION,
            name: "bag".to_owned(),
            submitter: PeerId([1; 32]),
            nonce: 2,
            tasks: 1,
            program: Named { name: "program.wasm".to_owned(), blob: BlobId([3; 32]), bytes: 1 },
            args: Vec::new(),
            entries: Vec::new(),
            inputs: Vec::new(),
            stdin: None,
            env: BTreeMap::new(),
            memory_bytes: 1 << 20,
            disk_bytes: 1 << 20,
            time_limit_s: 60,
            success_codes: vec![0],
            deterministic: false,
        }
    }

    /// A task that may take so much memory, without a directory.
    pub(in super::super) fn prepared(memory_bytes: u64) -> Prepared {
        let nowhere = tempfile::tempdir().expect("a temporary directory");
        let homes = Homes::new(nowhere.path().join("scratch"), nowhere.path().join("checkpoints"));
        let home = homes.of(BagId([1; 32])).expect("our directory");
        let manifest = Arc::new(manifest());
        let job = Job {
            program: PathBuf::new(),
            program_hash: manifest.program.blob.0,
            args: Vec::new(),
            env: Vec::new(),
            stdin: Stdin::Empty,
            inputs: None,
            directory: PathBuf::new(),
            checkpoint: None,
            memory_bytes,
            fixed: None,
            output_bytes: 0,
            disk_bytes: 0,
            time_limit: None,
            reach: home.reach.clone(),
        };
        Prepared { job, manifest, scratch: None, pins: Arc::default(), inputs: None, home }
    }

    fn blobs(dir: &Path, quota_bytes: u64) -> Arc<Blobs> {
        Arc::new(Blobs::open(&dir.join("blobs"), quota_bytes).expect("an empty directory"))
    }

    #[test]
    fn an_output_over_the_limit_says_so_and_is_within_it() {
        let files = BTreeMap::from([("file".to_owned(), ByteBuf::from(vec![0; 5000]))]);
        let mut output = TaskOutput { exit_code: Some(0), stdout: b"said".to_vec(), files, ..TaskOutput::default() };
        let whole = output.encode();
        let limit = whole.len() as u64;
        assert_eq!(encode_within(&mut output, limit), whole);
        assert_eq!(output.error, None);
        let bytes = encode_within(&mut output, limit - 1);
        assert!((bytes.len() as u64) < limit);
        let told = TaskOutput::decode(&bytes).expect("it is an output");
        let message = told.error.expect("it fails");
        assert!(message.contains(&whole.len().to_string()) && message.contains(&(limit - 1).to_string()), "{message}");
        assert_eq!((told.stdout, told.files.len()), (b"said".to_vec(), 0));
    }

    #[test]
    fn whoever_is_over_a_limit_fails_with_its_name_and_what_to_change() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = blobs(dir.path(), 1 << 20);
        let error_of = |outcome: Outcome, output_truncated: bool| {
            let (wall, cpu, untouched) = (Duration::ZERO, Duration::ZERO, false);
            let ended = Ended { outcome, wall, cpu, output_truncated, untouched };
            let TaskOutcome::Finished { success: false, output, .. } = collect(&blobs, None, &[0], &ended, 1.0).outcome
            else {
                panic!("it succeeds");
            };
            let bytes = fs::read(blobs.path(Hash::from_bytes(output.0)).expect("it was kept")).expect("it is there");
            TaskOutput::decode(&bytes).expect("it is an output").error.expect("it says why")
        };
        for (outcome, output_truncated, named, change) in [
            (Outcome::TimedOut { limit: Duration::from_secs(7) }, false, "7 s", "--time-limit"),
            (Outcome::OverDisk { limit_bytes: 3 << 20 }, false, "3M", "--disk"),
            (Outcome::Exited { code: 0 }, true, "16 MiB", "write to a file"),
        ] {
            let message = error_of(outcome, output_truncated);
            assert!(message.contains(named) && message.contains(change), "{message}");
        }
    }

    #[test]
    fn an_output_is_pinned_until_its_record_is() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = blobs(dir.path(), 1000);
        let outcome = Outcome::Exited { code: 3 };
        let ended = Ended {
            outcome,
            wall: Duration::ZERO,
            cpu: Duration::from_secs(2),
            output_truncated: false,
            untouched: false,
        };
        let collected = collect(&blobs, None, &[0, 3], &ended, 10.0);
        let TaskOutcome::Finished {
            success: true,
            crashed: false,
            output,
            output_bytes,
            work_mops: 20.0,
            exit_code: Some(3),
        } = collected.outcome
        else {
            panic!("{collected:?}")
        };
        let hash = Hash::from_bytes(output.0);
        assert_eq!(blobs.len(hash), Some(output_bytes));
        let rest = vec![1; 1001 - output_bytes as usize];
        blobs.put_bytes(&rest).expect_err("there is no room beside what is pinned");
        drop(collected.pin);
        blobs.put_bytes(&rest).expect("nobody wanted it");
        assert_eq!(blobs.len(hash), None);
    }

    #[test]
    fn what_no_machine_can_start_is_not_tried_again() {
        let never = |error: StartError| matches!(PrepareError::from(error), PrepareError::Never(_));
        assert!(never(StartError::TooLarge));
        assert!(never(StartError::Job(JobError::Text { what: "argument", value: "a\0".to_owned() })));
        assert!(matches!(LayOutError::Twice { name: "a".to_owned() }.into(), PrepareError::Never(_)));
        assert!(!never(StartError::Job(JobError::Path { path: PathBuf::from("/a") })));
        assert!(!never(StartError::Busy { slot: 0 }));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let blobs = blobs(dir.path(), 1000);
        let failed = not_prepared(&blobs, PrepareError::Never("no".to_owned()), 1.0);
        assert!(matches!(failed.outcome, TaskOutcome::Finished { success: false, .. }), "{failed:?}");
        let later = not_prepared(&blobs, anyhow::anyhow!("not now").into(), 1.0);
        assert!(matches!(later.outcome, TaskOutcome::NotStarted { .. }), "{later:?}");
    }

    #[test]
    fn a_directory_goes_with_its_attempt() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let (first, second) = (parent.path().join("first"), parent.path().join("second"));
        fs::create_dir_all(first.join("work/deep")).expect("our directory");
        fs::create_dir(&second).expect("our directory");
        drop(Scratch(first));
        drop(Scratch(parent.path().join("never made")));
        let left: Vec<_> =
            fs::read_dir(parent.path()).expect("our directory").flatten().map(|entry| entry.path()).collect();
        assert_eq!(left, std::slice::from_ref(&second));
    }

    /// Whoever broke out of WebAssembly would have the agent read what they cannot.
    #[test]
    fn outputs_are_what_the_task_wrote_and_lead_nowhere() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let secret = root.path().join("key");
        fs::write(&secret, "secret").expect("our directory");
        let job = Job { directory: root.path().join("attempt"), ..prepared(0).job };
        let read = || {
            let mut output = TaskOutput::default();
            read_outputs(&job, &mut output).expect("nothing is wrong with it");
            (String::from_utf8(output.stdout).expect("text"), output.files.len())
        };
        assert_eq!(read(), (String::new(), 0), "it wrote nothing");
        fs::create_dir_all(job.work_dir()).expect("our directory");
        fs::write(job.stdout_path(), "said").expect("our directory");
        fs::write(job.work_dir().join("file"), "kept").expect("our directory");
        std::os::unix::fs::symlink(&secret, job.work_dir().join("link")).expect("a link");
        assert_eq!(read(), ("said".to_owned(), 1));
        fs::remove_file(job.stdout_path()).expect("ours");
        std::os::unix::fs::symlink(&secret, job.stdout_path()).expect("a link");
        assert_eq!(read().0, "");
        fs::rename(&job.directory, root.path().join("moved")).expect("our directory");
        std::os::unix::fs::symlink(root.path().join("moved"), &job.directory).expect("a link");
        assert_eq!(read(), (String::new(), 0));
    }
}
