//! One job, and what comes of it.

use crate::overlay::experiment::{Experiment, Outcome};

/// One case of an experiment with one seed.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) experiment: Experiment,
    pub(super) case: &'static str,
    pub(super) seed: u64,
    /// Identifies build, settings and seed.
    pub(super) key: String,
}

impl Job {
    pub(super) fn name(&self) -> String {
        let dash = if self.case.is_empty() { "" } else { " " };
        format!("{}{dash}{} seed {}", self.experiment.name(), self.case, self.seed)
    }
}

/// The result of a job, and its CPU time.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) cpu_s: f64,
}
