//! How far the jobs of an experiment are.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;

/// Progress of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobProgress {
    /// Simulated time.
    pub now: Time,
    /// Events so far.
    pub events: u64,
    /// Share of the job that is done.
    pub share: f64,
    /// Time taken so far.
    pub took: Duration,
}

/// Progress of the whole plan.
#[derive(Clone, Debug)]
pub struct PlanProgress {
    /// Running jobs: case and seed, and their progress.
    pub running: BTreeMap<String, JobProgress>,
    /// A job that has just been done, and how long it took.
    pub done: Option<(String, Duration)>,
    /// Jobs done, those of an earlier run included.
    pub jobs_done: usize,
    /// All jobs.
    pub jobs: usize,
    /// Jobs done by an earlier run.
    pub found: usize,
    /// Remaining time, estimated from the work done.
    pub left: Option<Duration>,
}
