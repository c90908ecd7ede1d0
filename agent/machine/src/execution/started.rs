//! A task that the peer has started, and how far it is.

use idlewood_scheduler::TaskId;

use crate::work::JobId;

/// What becomes of a task that the peer has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The driver fetches its program and data.
    Preparing,
    /// It is prepared, but frozen before it began.
    Ready,
    /// It is in a worker's run.
    Given,
    /// It has ended, and the driver keeps its output.
    Keeping,
}

/// A task that the peer has started.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub(super) job: JobId,
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) memory_bytes: u64,
    pub(super) stage: Stage,
    /// The peer has frozen it for others.
    pub(super) frozen: bool,
    /// The peer has told it to stop.
    pub(super) stopping: bool,
}

impl Started {
    pub(super) fn new(job: JobId, task: TaskId, attempt: u32, stage: Stage) -> Self {
        Self { job, task, attempt, memory_bytes: 0, stage, frozen: false, stopping: false }
    }
}
