//! What became of a task: how its run ended, and what is kept of what it left.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_machine::RETRY_AFTER;
use idlewood_scheduler::{BlobId, Finished, SmallOutput, TaskOutcome};
use idlewood_trust::manifest::{Manifest, OUTPUT_BYTES_MAX, TaskOutput};
use idlewood_units::{ByteSize, Span};
use idlewood_worker::untrusted::{Contents, Room, UntrustedDir};
use idlewood_worker::{Job, NO_MEMORY, Outcome, STDERR, STDOUT, Streams, WORK, WorkerEvent};
use serde_bytes::ByteBuf;

use super::checkpoints;
use super::pin::Pin;
use super::progress::{self, PROGRESS};
use super::supplies::PrepareError;
use crate::chosen::{self, Chosen};
use crate::output::shortened;

/// Most that is kept of each of stdout and stderr. Our choice: what exceeds it belongs in an output file.
pub(super) const STREAM_BYTES_MAX: u64 = 16 << 20;
/// Files that are named where none matches a pattern, and the length of that.
const LEFT_TOLD: usize = 5;
const LEFT_CHARACTERS: usize = 500;
/// Where a merge leaves what processes are given.
const MERGED: &str = "merged/";
/// Most paths that are told of what a task left and is not kept.
const LEFT_OUT_MAX: usize = 16;

/// What of a task counts as success, and what as its output.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    success_codes: Vec<i32>,
    /// Patterns of its files; none: all files.
    outputs: Vec<String>,
    /// Largest output.
    output_bytes: u64,
    /// It is the owner's limit, which is less than the bag's: another machine may take what this one does not.
    is_owners: bool,
    /// It is told where to say how far it is ([`PROGRESS`]): that file is no output.
    says_progress: bool,
}

impl Rules {
    /// Those of a task, on a machine whose owner takes outputs of so many bytes.
    pub(super) fn of(manifest: &Manifest, index: u64, owner_bytes: u64) -> Self {
        let (success_codes, outputs) = (manifest.success_codes.clone(), chosen::patterns(manifest, index));
        let of_bag = manifest.output_bytes_max();
        let (output_bytes, is_owners) = (of_bag.min(owner_bytes), owner_bytes < of_bag);
        Self { success_codes, outputs, output_bytes, is_owners, says_progress: progress::is_told(manifest, index) }
    }

    /// Of a task that never begins: nothing is success.
    fn never() -> Self {
        let (success_codes, outputs, output_bytes) = (Vec::new(), Vec::new(), OUTPUT_BYTES_MAX);
        Self { success_codes, outputs, output_bytes, is_owners: false, says_progress: false }
    }
}

/// How a worker's run ended, with its times.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) output_truncated: bool,
    /// The task had no directory, and left no file.
    pub(super) untouched: bool,
    /// What it wrote to its standard output and error, where that is in no file.
    pub(super) streams: Streams,
    /// The limit that it met, of time or of disk, is smaller here than its bag's.
    pub(super) cut: bool,
    /// The task merges results of others: without anything in `merged/` it has failed.
    pub(super) is_merge: bool,
    /// [`Finished::times`].
    pub(super) times: f64,
}

impl Ended {
    /// What a worker's event says, and of which slot.
    pub(super) fn of(event: WorkerEvent) -> (usize, Self) {
        let WorkerEvent::Ended { slot, outcome, wall, cpu, output_truncated, untouched, streams, .. } = event;
        let (cut, is_merge, times) = (false, false, 1.0);
        (slot, Self { outcome, wall, cpu, output_truncated, untouched, streams, cut, is_merge, times })
    }

    /// The end of a task that could not begin on any machine.
    pub(super) fn never(reason: String) -> Self {
        Self {
            outcome: Outcome::Invalid { message: reason },
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            output_truncated: false,
            untouched: false,
            streams: Streams::default(),
            cut: false,
            is_merge: false,
            times: 1.0,
        }
    }

    /// Whether it says more about this machine than about the task: another may do better, so that it is tried there, and is
    /// no vote. A limit of time is such where machines are compared, since they differ in speed.
    fn is_of_this_machine(&self, job: Option<&Job>) -> bool {
        match &self.outcome {
            Outcome::WorkerDied { .. } => true,
            Outcome::TimedOut { .. } => self.cut || job.is_some_and(|job| job.fixed.is_some()),
            Outcome::OverDisk { .. } => self.cut,
            Outcome::Trapped { message } => message.contains(NO_MEMORY),
            Outcome::Exited { .. } | Outcome::Invalid { .. } | Outcome::CouldNotStart { .. } | Outcome::Stopped => {
                false
            }
        }
    }

    /// An output with what it wrote that is in no file, and its times: whole milliseconds, so that small tasks which end the same way have the
    /// same output, which is one blob.
    ///
    /// Without them where two machines are to have the same output.
    fn times(&self, job: Option<&Job>) -> TaskOutput {
        let Streams { stdout, stderr } = self.streams.clone();
        let output = TaskOutput { stdout, stderr, ..TaskOutput::default() };
        if job.is_some_and(|job| job.fixed.is_some()) {
            return output;
        }
        let rounded = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
        TaskOutput { cpu_s: rounded(self.cpu), wall_s: rounded(self.wall), ..output }
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

/// What a task produced that left no file: it goes into the record of its result where it is little. Neither blocks nor writes. `None`:
/// [`collect`] has to keep it.
pub(super) fn collect_untouched(
    blobs: &Blobs,
    job: &Job,
    rules: &Rules,
    ended: &Ended,
    speed_mops: f64,
) -> Option<TaskOutcome> {
    let Outcome::Exited { code } = ended.outcome else { return None };
    if !ended.untouched || !rules.outputs.is_empty() || ended.is_merge {
        return None;
    }
    let (exit_code, code) = (Some(code), i32::from(code));
    let output = TaskOutput { exit_code: Some(code), ..ended.times(Some(job)) };
    let bytes = output.encode();
    if bytes.len() as u64 > rules.output_bytes {
        return None;
    }
    let success = rules.success_codes.contains(&code);
    let content = SmallOutput::new(&bytes).filter(|_| blobs.make_room_in_records(bytes.len() as u64).is_ok())?;
    Some(TaskOutcome::Finished(Finished {
        success,
        crashed: false,
        output: BlobId(*blake3::hash(&bytes).as_bytes()),
        output_bytes: bytes.len() as u64,
        content: Some(content),
        work_mops: ended.work_mops(speed_mops),
        exit_code,
        fingerprint: (!success).then(|| output.fingerprint()),
        times: ended.times,
    }))
}

/// Keeps the bytes of an output: small ones, where they may be, go with their result, whose record keeps them. Their hash.
fn keep(
    blobs: &Arc<Blobs>,
    bytes: &[u8],
    takes_small: bool,
) -> Result<(Hash, Option<SmallOutput>, Option<Pin>), BlobError> {
    if let Some(content) = SmallOutput::new(bytes).filter(|_| takes_small) {
        blobs.make_room_in_records(bytes.len() as u64)?;
        return Ok((blake3::hash(bytes), Some(content), None));
    }
    let pin = Pin::new(blobs, blake3::hash(bytes));
    Ok((blobs.put_durable(bytes)?, None, Some(pin)))
}

/// Keeps what a task produced: durably, or, where that is little and may be, with its result. Blocks.
pub(super) fn collect(
    blobs: &Arc<Blobs>,
    takes_small: bool,
    job: Option<&Job>,
    rules: &Rules,
    ended: &Ended,
    speed_mops: f64,
) -> Collected {
    let mut output = ended.times(job);
    let (mut are_lost, mut are_over) = (false, false);
    match &ended.outcome {
        Outcome::Exited { code } => output.exit_code = Some(i32::from(*code)),
        Outcome::Trapped { message } | Outcome::Invalid { message } => output.error = Some(message.clone()),
        Outcome::TimedOut { limit } if ended.cut => {
            output.error = Some(format!(
                "ran longer than the {} that the machine's owner gives a task (limits.task_time): let it run on machines that \
                 give it more, or split it",
                Span(*limit)
            ));
        }
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
    let is_success = output.exit_code.is_some_and(|code| rules.success_codes.contains(&code));
    match job.filter(|_| !ended.untouched || !rules.outputs.is_empty()).map(|job| read_outputs(job, rules, &mut output))
    {
        Some(Ok(Some(missing))) if is_success && output.error.is_none() => output.error = Some(missing),
        Some(Ok(_)) | None => {}
        Some(Err(error)) => {
            output.error.get_or_insert(format!("its output could not be kept: {error}"));
            output.files.clear();
            output.folders.clear();
            are_lost = true;
            are_over |= error.kind() == io::ErrorKind::FileTooLarge;
        }
    }
    let has_merged = output.files.keys().any(|path| path.starts_with(MERGED));
    if ended.is_merge && is_success && output.error.is_none() && !has_merged {
        output.error = Some(format!(
            "the merge left nothing in {MERGED} of its directory, so that the next round would begin with nothing: let it write \
             there what the processes are to have"
        ));
    }
    if ended.output_truncated {
        output.error.get_or_insert(format!(
            "wrote more than the limit of {} MiB to stdout or stderr: what follows is lost; let it write to a file",
            STREAM_BYTES_MAX >> 20
        ));
    }
    let (bytes, is_over) = encode_within(&mut output, rules);
    are_over |= is_over;
    let is_cut = are_over && rules.is_owners;
    let success = output.error.is_none() && is_success;
    let kept = keep(blobs, &bytes, takes_small);
    // Where the worker died the next try goes on from there; else what is wrong may be in it.
    let is_ended = kept.is_ok() && !matches!(ended.outcome, Outcome::WorkerDied { .. });
    if let Some(checkpoint) = job.and_then(|job| job.checkpoint.as_ref()).filter(|_| is_ended && !ended.untouched)
        && let Err(error) = checkpoints::remove(checkpoint)
    {
        tracing::warn!(%error, checkpoint = %checkpoint.display(), "a checkpoint could not be removed");
    }
    match kept {
        Ok((hash, content, pin)) => Collected {
            outcome: TaskOutcome::Finished(Finished {
                success,
                crashed: ended.is_of_this_machine(job) || is_cut,
                output: BlobId(*hash.as_bytes()),
                output_bytes: bytes.len() as u64,
                content,
                work_mops: ended.work_mops(speed_mops),
                // A task whose output was lost here did not fail by itself: it may succeed elsewhere.
                exit_code: if let Outcome::Exited { code } = ended.outcome
                    && !are_lost
                {
                    Some(code)
                } else {
                    None
                },
                fingerprint: (!success && !are_lost).then(|| output.fingerprint()),
                times: ended.times,
            }),
            pin,
        },
        Err(error) => {
            tracing::error!(%error, "a result could not be kept; its task runs again later");
            Collected::not_started()
        }
    }
}

/// The blob of an output, without the files if it would be larger than submitters take.
/// Also whether it was.
fn encode_within(output: &mut TaskOutput, rules: &Rules) -> (Vec<u8>, bool) {
    let bytes = output.encode();
    if bytes.len() as u64 <= rules.output_bytes {
        return (bytes, false);
    }
    output.error = Some(format!("its output takes {} bytes, {}", bytes.len(), over_limit(rules)));
    output.files.clear();
    output.folders.clear();
    (output.encode(), true)
}

/// What there is to do about an output over its limit.
fn over_limit(rules: &Rules) -> String {
    let bytes_max = rules.output_bytes;
    if rules.is_owners {
        return format!(
            "over the limit of {bytes_max} ({}) that the machine's owner sets (limits.output): let it run on machines that take more, \
             choose files with --output-files, or let it write less",
            ByteSize(bytes_max)
        );
    }
    let remedy = if bytes_max < OUTPUT_BYTES_MAX {
        format!("raise --output-limit of the bag (up to {})", ByteSize(OUTPUT_BYTES_MAX))
    } else {
        "split the task".to_owned()
    };
    format!(
        "over the limit of {bytes_max} ({}): choose files with --output-files, let it write less, or {remedy}",
        ByteSize(bytes_max)
    )
}

/// What failing to prepare a task means for it.
pub(super) fn not_prepared(blobs: &Arc<Blobs>, takes_small: bool, error: PrepareError, speed_mops: f64) -> Collected {
    match error {
        PrepareError::Later(error) => {
            tracing::info!(error = format!("{error:#}"), "a task cannot start yet");
            Collected::not_started()
        }
        PrepareError::Never(reason) => {
            collect(blobs, takes_small, None, &Rules::never(), &Ended::never(reason), speed_mops)
        }
    }
}

/// Reads what a task has left. Where it left no file that matches a pattern: a sentence about that.
fn read_outputs(job: &Job, rules: &Rules, output: &mut TaskOutput) -> io::Result<Option<String>> {
    let mut chosen = Chosen::new(&rules.outputs).map_err(io::Error::other)?;
    let mut room = Room::new(rules.output_bytes, format!("it is {}", over_limit(rules)));
    let (mut others, mut others_count) = (Vec::new(), 0);
    if let Some(left) = UntrustedDir::open(&job.directory)? {
        for (name, stream) in [(STDOUT, &mut output.stdout), (STDERR, &mut output.stderr)] {
            // What is in a file is all of it.
            if let Some(bytes) = left.read(name, &mut room)? {
                *stream = bytes;
            }
        }
        // A program that uses no files has none, even if it wrote to stdout.
        if let Some(work) = left.directory(WORK)? {
            let contents =
                work.read_all(&mut room, |path| !(rules.says_progress && path == PROGRESS) && chosen.takes(path))?;
            let Contents { files, folders, left_out, unwanted_first, unwanted } = contents;
            if rules.outputs.is_empty() {
                output.folders = folders;
            }
            output.files.extend(files.into_iter().map(|(name, bytes)| (name, ByteBuf::from(bytes))));
            let more = left_out.len().saturating_sub(LEFT_OUT_MAX);
            output.left_out.extend(left_out.into_iter().take(LEFT_OUT_MAX));
            output.left_out.extend((more > 0).then(|| format!("{more} more")));
            (others, others_count) = (unwanted_first, unwanted);
        }
    }
    let Some(pattern) = chosen.unmatched() else { return Ok(None) };
    let mut left: Vec<String> =
        output.files.keys().chain(&others).take(LEFT_TOLD).map(|path| format!("{path:?}")).collect();
    let more = (output.files.len() + others_count).saturating_sub(left.len());
    left.extend((more > 0).then(|| format!("{more} more")));
    let left = if left.is_empty() { "no file at all".to_owned() } else { shortened(&left.join(", "), LEFT_CHARACTERS) };
    Ok(Some(format!("it left no file that matches {pattern:?} (--output-files of the bag): it left {left}")))
}

#[cfg(test)]
mod tests;
