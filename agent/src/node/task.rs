//! One task on this machine, around its run: what it needs is fetched before, what it produced is kept after.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blake3::Hash;
use idlewood_overlay::Contact;
use idlewood_scheduler::{BagHeader, BlobId, TaskId, TaskOutcome};
use serde_bytes::ByteBuf;

use crate::blobs::Blobs;
use crate::fetch::Fetcher;
use crate::manifest::{INPUT_BYTES_MAX, MANIFEST_BYTES_MAX, Manifest, OUTPUT_BYTES_MAX, TaskOutput};
use crate::worker::{Input, Job, Outcome, Stdin};

/// Most that is kept of each of stdout and stderr. Our choice: what exceeds it belongs in an output file.
const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Most files that are kept of one task, and how deep they may lie.
const FILES_MAX: usize = 4096;
const DEPTH_MAX: usize = 16;
/// A bag whose program cannot be had is left alone for this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Where this machine gets what tasks need.
#[derive(Clone, Debug)]
pub(super) struct Supplies {
    pub(super) blobs: Arc<Blobs>,
    pub(super) fetcher: Fetcher,
    pub(super) scratch: PathBuf,
}

/// A task with everything it needs.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) job: Job,
    pub(super) manifest: Arc<Manifest>,
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

impl Supplies {
    async fn get(&self, blob: BlobId, bytes_max: u64, sources: &[Contact]) -> Result<PathBuf, PrepareError> {
        let fetched = self.fetcher.fetch(Hash::from_bytes(blob.0), bytes_max, sources.to_vec()).await;
        Ok(fetched.context("a blob is not to be had")?)
    }

    /// The manifest of a bag, from here or from `sources`.
    pub(super) async fn manifest(&self, bag: &BagHeader, sources: &[Contact]) -> Result<Manifest, PrepareError> {
        let path = self.get(BlobId(bag.id.0), MANIFEST_BYTES_MAX, sources).await?;
        let bytes = tokio::fs::read(path).await.context("cannot read the manifest")?;
        let manifest = Manifest::decode(&bytes).map_err(|error| PrepareError::Never(error.to_string()))?;
        if manifest.tasks != bag.tasks || manifest.submitter != bag.submitter.peer {
            return Err(PrepareError::Never("the bag's manifest does not fit its request".to_owned()));
        }
        Ok(manifest)
    }

    /// Fetches what a task needs and lays out its directory.
    pub(super) async fn prepare(
        &self,
        task: TaskId,
        attempt: u32,
        manifest: Arc<Manifest>,
        sources: &[Contact],
    ) -> Result<Prepared, PrepareError> {
        let program = self.get(manifest.program.blob, INPUT_BYTES_MAX, sources).await?;
        let mut inputs = Vec::new();
        for input in manifest.task_inputs(task.index) {
            let path = self.get(input.blob, INPUT_BYTES_MAX, sources).await?;
            inputs.push(Input { name: input.name, path });
        }
        let stdin = match manifest.task_stdin(task.index) {
            None => Stdin::Empty,
            Some(name) => {
                let input = inputs.iter().find(|input| input.name == name);
                let missing = || PrepareError::Never(format!("standard input {name:?} is not among the inputs"));
                Stdin::File(input.ok_or_else(missing)?.path.clone())
            }
        };
        let directory = self.scratch.join(format!("{}-{}", task.bag, task.index));
        make_empty(&directory).await.context("cannot make a directory for the task")?;
        let args = manifest.args.iter().map(|argument| manifest.fill(argument, task.index));
        let job = Job {
            program,
            program_hash: manifest.program.blob.0,
            args: std::iter::once(manifest.program.name.clone()).chain(args).collect(),
            env: environment(&manifest, task, attempt),
            stdin,
            inputs,
            directory,
            checkpoint: None,
            memory_bytes: manifest.memory_bytes,
            output_bytes: STREAM_BYTES_MAX,
            time_limit: Some(Duration::from_secs(manifest.time_limit_s)),
        };
        Ok(Prepared { job, manifest })
    }
}

async fn make_empty(directory: &Path) -> io::Result<()> {
    match tokio::fs::remove_dir_all(directory).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    tokio::fs::create_dir_all(directory).await
}

fn environment(manifest: &Manifest, task: TaskId, attempt: u32) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> =
        manifest.env.iter().map(|(name, value)| (name.clone(), manifest.fill(value, task.index))).collect();
    env.insert("IDLEWOOD_BAG_ID".to_owned(), hex::encode(task.bag.0));
    env.insert("IDLEWOOD_TASK_INDEX".to_owned(), task.index.to_string());
    env.insert("IDLEWOOD_TASK_COUNT".to_owned(), manifest.tasks.to_string());
    env.insert("IDLEWOOD_ATTEMPT".to_owned(), attempt.to_string());
    env.insert("IDLEWOOD_ENTRY".to_owned(), manifest.entry(task.index).text);
    env.into_iter().collect()
}

impl Supplies {
    /// Brings the output of a task here, durably.
    pub(super) async fn keep_output(&self, output: BlobId, bytes: u64, from: Contact) -> Result<(), PrepareError> {
        // The encoding adds a little to what the limit counts.
        let limit = OUTPUT_BYTES_MAX + (1 << 20);
        if bytes > limit {
            return Err(PrepareError::Never(format!("an output of {bytes} bytes is over the limit of {limit}")));
        }
        self.get(output, limit, &[from]).await?;
        let blobs = self.blobs.clone();
        let durable = tokio::task::spawn_blocking(move || blobs.make_durable(Hash::from_bytes(output.0)));
        Ok(durable.await.context("the write failed")?.context("cannot keep a result")?)
    }
}

/// How a worker's run ended, with its times.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) output_truncated: bool,
}

impl Ended {
    /// The end of a task that could not begin on any machine.
    pub(super) fn never(reason: String) -> Self {
        Self {
            outcome: Outcome::Invalid { message: reason },
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            output_truncated: false,
        }
    }

    /// Its work, in Mop: processor time at the slot's speed.
    pub(super) fn work_mops(&self, speed_mops: f64) -> f64 {
        self.cpu.as_secs_f64() * speed_mops
    }
}

/// Keeps what a task produced, durably, and removes its directory. Blocks.
pub(super) fn collect(
    blobs: &Blobs,
    directory: Option<&Job>,
    success_codes: &[i32],
    ended: &Ended,
    speed_mops: f64,
) -> TaskOutcome {
    let mut output = TaskOutput { cpu_s: ended.cpu.as_secs_f64(), wall_s: ended.wall.as_secs_f64(), ..Default::default() };
    match &ended.outcome {
        Outcome::Exited { code } => output.exit_code = Some(i32::from(*code)),
        Outcome::Trapped { message } | Outcome::Invalid { message } => output.error = Some(message.clone()),
        Outcome::TimedOut { limit } => {
            output.error = Some(format!("ran longer than its time limit of {} s", limit.as_secs()));
        }
        Outcome::WorkerDied { reason } => output.error = Some(reason.clone()),
        Outcome::CouldNotStart { message } => {
            tracing::warn!(%message, "a task could not start; trying again");
            return TaskOutcome::NotStarted { retry_after: RETRY_AFTER };
        }
        Outcome::Stopped => return TaskOutcome::Stopped,
    }
    if let Some(job) = directory
        && let Err(error) = read_outputs(job, &mut output)
    {
        output.error.get_or_insert(format!("its output could not be kept: {error}"));
        output.files.clear();
    }
    if ended.output_truncated {
        output.stderr.extend_from_slice(
            format!("\nidlewood: stdout or stderr was cut at {} MiB\n", STREAM_BYTES_MAX >> 20).as_bytes(),
        );
    }
    let success = output.error.is_none() && output.exit_code.is_some_and(|code| success_codes.contains(&code));
    let bytes = output.encode();
    match blobs.put_durable(&bytes) {
        Ok(hash) => TaskOutcome::Finished {
            success,
            output: BlobId(*hash.as_bytes()),
            output_bytes: bytes.len() as u64,
            work_mops: ended.work_mops(speed_mops),
        },
        Err(error) => {
            tracing::error!(%error, "a result could not be kept; its task runs again later");
            TaskOutcome::NotStarted { retry_after: RETRY_AFTER }
        }
    }
}

/// What failing to prepare a task means for it.
pub(super) fn not_prepared(blobs: &Blobs, error: PrepareError, speed_mops: f64) -> TaskOutcome {
    match error {
        PrepareError::Later(error) => {
            tracing::info!(error = format!("{error:#}"), "a task cannot start yet");
            TaskOutcome::NotStarted { retry_after: RETRY_AFTER }
        }
        PrepareError::Never(reason) => collect(blobs, None, &[], &Ended::never(reason), speed_mops),
    }
}

fn read_outputs(job: &Job, output: &mut TaskOutput) -> io::Result<()> {
    let mut room = OUTPUT_BYTES_MAX;
    output.stdout = read_capped(&job.stdout_path(), &mut room)?;
    output.stderr = read_capped(&job.stderr_path(), &mut room)?;
    let work = job.work_dir();
    let mut left = vec![(work.clone(), 0)];
    while let Some((directory, depth)) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // Of the entry itself: links are not followed, and what is no plain file is not taken.
            let kind = entry.file_type()?;
            if kind.is_dir() && depth < DEPTH_MAX {
                left.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                if output.files.len() == FILES_MAX {
                    return Err(io::Error::other(format!("more than {FILES_MAX} files")));
                }
                let path = entry.path();
                let name = path.strip_prefix(&work).map_err(io::Error::other)?;
                let name = name.to_str().ok_or_else(|| io::Error::other("a file name is not UTF-8"))?.to_owned();
                output.files.insert(name, ByteBuf::from(read_capped(&path, &mut room)?));
            }
        }
    }
    Ok(())
}

fn read_capped(path: &Path, room: &mut u64) -> io::Result<Vec<u8>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(*room + 1).read_to_end(&mut bytes)?;
    *room = room
        .checked_sub(bytes.len() as u64)
        .ok_or_else(|| io::Error::other(format!("it is over {} MiB", OUTPUT_BYTES_MAX >> 20)))?;
    Ok(bytes)
}

/// Removes the directory of a task that is over. Blocks.
pub(super) fn clean(job: &Job) {
    if let Err(error) = fs::remove_dir_all(&job.directory)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, directory = %job.directory.display(), "cannot remove a task's directory");
    }
}
