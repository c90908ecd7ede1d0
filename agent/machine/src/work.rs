//! What the machine orders about workers and what they run, and what it is told of that.

use std::time::Duration;

use idlewood_scheduler::{BagHeader, BagId, Checkpoint, TaskId, TaskOutcome};

/// Names an attempt at a task on this machine; never used again in one life of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// An order about workers and what they run. A slot is a worker; there are as many as [`idlewood_scheduler::Config::places`].
#[derive(Clone, Debug, PartialEq)]
pub enum WorkOrder {
    /// Get what a task needs. [`WorkEvent::Prepared`] follows, or [`WorkEvent::Over`] where it cannot run here.
    Prepare {
        /// Names the attempt.
        job: JobId,
        /// Which task.
        task: TaskId,
        /// 0 for the first try.
        attempt: u32,
        /// Its bag, whose submitter has the manifest.
        bag: BagHeader,
        /// What it goes on from, unless it has been at work here since; the submitter has it.
        checkpoint: Option<Checkpoint>,
    },
    /// Keep what this job, which is prepared, has in common with others of its bag: those are given without being prepared.
    KeepExample {
        /// Of which bag.
        bag: BagId,
        /// Which job.
        job: JobId,
    },
    /// Nothing of this bag is given any more like the example.
    ForgetExample {
        /// Which bag.
        bag: BagId,
    },
    /// Give a worker one job more: it begins when those before it have ended. The job is prepared, or, where the driver has not heard
    /// of it, it is like the example of its bag. [`WorkEvent::Ended`] follows unless it is taken back.
    Give {
        /// Which worker.
        slot: usize,
        /// Which job.
        job: JobId,
        /// Which task.
        task: TaskId,
        /// 0 for the first try.
        attempt: u32,
    },
    /// Take back all jobs that this worker has not begun; they stay prepared. [`WorkEvent::TakenBack`] follows.
    TakeBack {
        /// Which worker.
        slot: usize,
    },
    /// Kill what this worker runs; [`WorkEvent::Ended`] follows.
    Stop {
        /// Which worker.
        slot: usize,
    },
    /// Freeze this worker alone.
    Freeze {
        /// Which worker.
        slot: usize,
    },
    /// Undo [`WorkOrder::Freeze`].
    Thaw {
        /// Which worker.
        slot: usize,
    },
    /// Freeze all workers at once.
    FreezeAll,
    /// Undo [`WorkOrder::FreezeAll`]: workers that are frozen alone stay so.
    ThawAll,
    /// Drop all that belongs to this job: its preparation, under way or done, and the hold on its output. No event of it follows.
    Forget {
        /// Which job.
        job: JobId,
    },
    /// Tell the owner that a task cannot begin, since others have the memory.
    TellNoMemory {
        /// Which task.
        task: TaskId,
        /// What it may take.
        wanted_bytes: u64,
        /// What others may take that have begun, or are to begin before it.
        taken_bytes: u64,
    },
}

/// A fact about workers and what they run.
#[derive(Clone, Debug)]
pub enum WorkEvent {
    /// What a task needs is here.
    Prepared {
        /// The job that [`WorkOrder::Prepare`] named.
        job: JobId,
        /// Most memory that it may take.
        memory_bytes: u64,
        /// Whether other tasks of its bag need nothing that it does not.
        is_example: bool,
    },
    /// A worker has a job no longer: it has ended, or the worker did not take it.
    Ended {
        /// Which worker.
        slot: usize,
        /// Which job.
        job: JobId,
        /// How long it ran; `None`: the worker did not take it.
        wall: Option<Duration>,
        /// What came of it; `None`: its output is being kept, and [`WorkEvent::Over`] follows.
        outcome: Option<TaskOutcome>,
    },
    /// The output of a job that has ended is kept, or the job cannot run here.
    Over {
        /// Which job.
        job: JobId,
        /// Its task.
        task: TaskId,
        /// What came of it.
        outcome: TaskOutcome,
    },
    /// The answer to [`WorkOrder::TakeBack`]: what the worker had not begun, and does not have any more.
    TakenBack {
        /// Which worker.
        slot: usize,
        /// Which jobs.
        jobs: Vec<JobId>,
    },
    /// All tasks together may take so many bytes of memory from now on.
    MemoryMax(u64),
}
