//! Bags that were run on real grids.

use std::time::Duration;

/// A bag as it was run on a real grid: of a log, or of a workflow's run.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedBag {
    /// When its first job was submitted, counted from the log's first bag; 0 for a workflow.
    pub arrival: Duration,
    /// Run time of each of its tasks, in seconds.
    pub tasks_s: Vec<f32>,
    /// Output size of each task; empty if unknown.
    pub outputs_bytes: Vec<u64>,
    /// Whose it was: users are counted from 0 in the order of their first bags; none if unknown.
    pub user: Option<u32>,
}

impl ObservedBag {
    /// Mean run time of its tasks, in seconds.
    pub fn mean_s(&self) -> f64 {
        self.tasks_s.iter().map(|run_s| f64::from(*run_s)).sum::<f64>() / self.tasks_s.len() as f64
    }
}
