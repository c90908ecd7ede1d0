//! The run of one worker: the jobs that it was given, and those that wait until it may be given them.

use std::collections::VecDeque;

use idlewood_overlay::Time;
use idlewood_scheduler::{BagId, TaskId};

use super::started::Started;
use crate::work::JobId;

/// A task that a worker was given, or is to be given.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    /// Most memory that it may take.
    pub(super) memory_bytes: u64,
    /// Where the peer has started it; `None`: it is ahead.
    pub(super) place: Option<usize>,
    /// It was not claimed, and is being killed or has ended.
    pub(super) condemned: bool,
}

impl Job {
    /// The job of what the peer has started at this place.
    pub(super) fn of(started: &Started, place: usize) -> Self {
        let &Started { job: id, task, attempt, memory_bytes, .. } = started;
        Self { id, task, attempt, memory_bytes, place: Some(place), condemned: false }
    }
}

/// Why a worker is to give back the jobs it has not begun, and what becomes of the others. Claimed jobs that come back are given anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recall {
    /// The worker has been asked, and has not answered.
    pub(super) asked: bool,
    /// A job that has begun and is not claimed is killed.
    pub(super) stops_unclaimed: bool,
    /// All jobs end, claimed or not: there is no memory for them.
    pub(super) ends_all: bool,
}

impl Recall {
    /// The worker gives up everything that is not claimed.
    pub(super) const UNCLAIMED: Self = Self { asked: false, stops_unclaimed: true, ends_all: false };
    /// The worker gives up everything.
    pub(super) const ALL: Self = Self { asked: false, stops_unclaimed: true, ends_all: true };
}

/// What a worker has and is to have.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// With the worker, the first one runs.
    pub(super) jobs: VecDeque<Job>,
    /// Claimed, and to be given next.
    pub(super) waiting: VecDeque<Job>,
    /// The worker is to give back what it has not begun, or has been asked to. Meanwhile it is given nothing.
    pub(super) recall: Option<Recall>,
    /// The job that is frozen there for another bag.
    pub(super) frozen: Option<JobId>,
    /// When its last task ended, or its first was given; time during which all workers stood still is added.
    pub(super) moved: Time,
    /// When its jobs were last taken back because a task ran for long.
    pub(super) relieved: Time,
    /// It has ended a task of this bag, or was given one: perhaps it has too little ahead.
    pub(super) refill: Option<BagId>,
}

impl Run {
    /// Has the worker asked for what it has not begun, for one reason more.
    pub(super) fn recall(&mut self, reason: Recall) {
        let recall = self.recall.get_or_insert_default();
        recall.stops_unclaimed |= reason.stops_unclaimed;
        recall.ends_all |= reason.ends_all;
    }

    /// How many of its jobs the peer has started.
    pub(super) fn claimed(&self) -> usize {
        self.jobs.iter().filter(|job| job.place.is_some()).count() + self.waiting.len()
    }

    /// Whether something is ahead, and is not being killed.
    pub(super) fn has_unclaimed(&self) -> bool {
        self.jobs.iter().any(|job| job.place.is_none() && !job.condemned)
    }

    /// Whether its worker runs something that is not being killed.
    pub(super) fn is_running(&self) -> bool {
        self.frozen.is_none() && self.jobs.iter().any(|job| !job.condemned)
    }

    /// The worker has this job no longer.
    pub(super) fn take(&mut self, job: JobId, now: Time) -> Option<Job> {
        let at = self.jobs.iter().position(|other| other.id == job)?;
        self.moved = now;
        self.jobs.remove(at)
    }
}
