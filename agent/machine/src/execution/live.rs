//! What workers run now, for whoever follows what a bag's tasks write.

use idlewood_scheduler::BagId;

use super::Execution;
use crate::work::JobId;

/// A task that a worker has begun, or begins next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// The worker's slot.
    pub slot: usize,
    /// The job.
    pub job: JobId,
    /// The task's index in its bag.
    pub index: u64,
    /// Which attempt at it.
    pub attempt: u32,
    /// It keeps its worker and does not run: the owner is at the machine, or another bag comes first.
    pub stands_still: bool,
}

impl Execution {
    /// What workers run of a bag, by slot. Of each worker's run only the first job can have begun.
    pub(crate) fn running_of(&self, bag: BagId) -> Vec<RunningJob> {
        let running = self.runs.iter().enumerate().filter_map(|(slot, run)| {
            let job = run.jobs.front().filter(|job| job.task.bag == bag && !job.condemned)?;
            let stands_still = self.stands_still() || run.frozen == Some(job.id);
            Some(RunningJob { slot, job: job.id, index: job.task.index, attempt: job.attempt, stands_still })
        });
        running.collect()
    }
}
