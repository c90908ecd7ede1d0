//! The owner's limit of memory holds for all that workers are given: what the tasks in all workers may take, frozen ones and
//! those ahead included. A worker runs one task after the other and gives up the memory of one before the next begins, so that of
//! a run only the largest task counts. Jobs that are ahead give way to tasks that the peer has started. When the limit becomes
//! smaller, since the owner is back or has set another, tasks end until the others are within it; they begin again later, here or
//! elsewhere, from their checkpoints.
//!
//! Left out: what a worker takes beside its task, and the one that measures first tasks.

use std::time::Duration;

use idlewood_scheduler::TaskOutcome;

use super::Execution;
use super::run::{Job, Recall, Run};
use crate::effect::Effect;
use crate::work::WorkOrder;

/// A task for which there is no memory, or whose program or input cannot be had, is left alone for this long. Our choice.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

impl Run {
    /// Most memory that its worker may take at once: that of the largest of these jobs.
    fn memory_bytes(&self, counts: impl Fn(&Job) -> bool) -> u64 {
        self.jobs.iter().filter(|job| counts(job)).map(|job| job.memory_bytes).max().unwrap_or(0)
    }

    /// Most memory that its claimed jobs may take at once, those that wait included.
    fn claimed_bytes(&self) -> u64 {
        let waiting = self.waiting.iter().map(|job| job.memory_bytes).max().unwrap_or(0);
        self.memory_bytes(|job| job.place.is_some()).max(waiting)
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

impl Execution {
    /// Most memory that all workers may take at once with a job of so many bytes more in `slot`; jobs that are being killed do not count.
    pub(super) fn memory_bytes_with(&self, slot: usize, bytes: u64) -> u64 {
        sum(self.runs.iter().enumerate().map(|(other, run)| {
            let of_run = run.memory_bytes(|job| !job.condemned);
            if other == slot { of_run.max(bytes) } else { of_run }
        }))
    }

    /// Whether a worker may be given a job of so many bytes now.
    pub(super) fn fits(&mut self, slot: usize, bytes: u64) -> bool {
        // Most often the worker has a job of that size, and the sum of all need not be looked at.
        let has_such = |run: &Run| run.jobs.iter().any(|job| !job.condemned && job.memory_bytes >= bytes);
        if !self.memory_exceeded && has_such(&self.runs[slot]) {
            return true;
        }
        let fits = self.memory_bytes_with(slot, bytes) <= self.memory_max_bytes;
        self.memory_exceeded &= !fits;
        fits
    }

    /// Whether the job would fit if no job were ahead, and none waited in other runs.
    pub(super) fn fits_without_ahead(&self, slot: usize, bytes: u64) -> bool {
        sum(self.runs.iter().enumerate().map(|(other, run)| {
            let of_run = run.memory_bytes(|job| job.place.is_some());
            if other == slot { of_run.max(bytes) } else { of_run }
        })) <= self.memory_max_bytes
    }

    /// A claimed job finds no memory in a worker: it is tried again, and goes to another machine after some tries.
    pub(super) fn no_memory(&mut self, slot: usize, place: usize, effects: &mut Vec<Effect>) {
        let Some(started) = &self.places[place] else { return };
        let (task, wanted_bytes) = (started.task, started.memory_bytes);
        let taken_bytes = self.memory_bytes_with(slot, 0);
        effects.push(WorkOrder::TellNoMemory { task, wanted_bytes, taken_bytes }.into());
        self.end(place, TaskOutcome::NotStarted { retry_after: RETRY_AFTER });
    }

    /// What the owner gives to all tasks now.
    pub(crate) fn memory_max_bytes(&self) -> u64 {
        self.memory_max_bytes
    }

    /// The owner sets another limit: tasks end until the others are within it, those at the last workers first.
    pub(super) fn set_memory_max(&mut self, max_bytes: u64) {
        self.memory_max_bytes = max_bytes;
        self.memory_exceeded = self.memory_bytes_with(0, 0) > max_bytes;
        if sum(self.runs.iter().map(Run::claimed_bytes)) <= max_bytes {
            return;
        }
        self.keep_to_claimed();
        let mut kept_bytes = 0_u64;
        for run in &mut self.runs {
            match kept_bytes.checked_add(run.claimed_bytes()).filter(|sum| *sum <= max_bytes) {
                Some(sum) => kept_bytes = sum,
                None => run.recall(Recall::ALL),
            }
        }
    }
}
