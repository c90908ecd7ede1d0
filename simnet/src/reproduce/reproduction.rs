//! What to run: grids, experiments, cases and seeds.

use std::path::PathBuf;

use serde_json::json;

use super::job::Job;
use crate::overlay::experiment::{Experiment, Replay};

/// Partitions of an hour take most of the time: with larger grids they are run only on request.
const PARTITION_HOUR_NODES_MAX: u32 = 1_000;

/// What to run.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// Machines of each grid, 1 to 1,000,000.
    pub nodes: u32,
    /// First seed.
    pub seed: u64,
    /// Number of seeds, 1 to 1,000,000.
    pub seeds: u64,
    /// Only these experiments; empty: all that suit the size.
    pub only: Vec<Experiment>,
    /// Only cases of these names; empty: all.
    pub cases: Vec<String>,
    /// The trace of [`Experiment::Trace`].
    pub trace: Option<Replay>,
    /// Directory of the output files; created if missing.
    pub out: PathBuf,
    /// Jobs at a time; none: one per core.
    pub threads: Option<usize>,
}

impl Reproduction {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=1_000_000).contains(&self.nodes) {
            return Err("nodes must be between 1 and 1000000".to_owned());
        }
        if !(1..=1_000_000).contains(&self.seeds) || self.seed.checked_add(self.seeds - 1).is_none() {
            return Err(
                "seeds must be between 1 and 1000000, and the last one, seed + seeds - 1, below 2^64".to_owned()
            );
        }
        if self.only.contains(&Experiment::Trace) && self.trace.is_none() {
            return Err("trace needs a file: write --trace FILE".to_owned());
        }
        if self.trace.as_ref().is_some_and(|replay| replay.speedup == 0) {
            return Err("trace-speedup must be at least 1".to_owned());
        }
        let known =
            |name: &String| Experiment::ALL.iter().any(|experiment| experiment.cases().contains(&name.as_str()));
        if let Some(name) = self.cases.iter().find(|name| name.is_empty() || !known(name)) {
            return Err(format!(
                "there is no case {name:?}: write one of 10, 50, 80, halves, strangers, crashes, announced"
            ));
        }
        let cases = self.experiment_cases();
        if cases.is_empty() {
            return Err("none of these experiments has such a case".to_owned());
        }
        if cases.iter().any(|(experiment, _)| *experiment == Experiment::Trace) {
            self.trace.iter().try_for_each(|trace| trace.validate(self.nodes))?;
        }
        if self.threads == Some(0) {
            return Err("threads must be at least 1".to_owned());
        }
        Ok(())
    }

    /// The command line of this, without directory and threads, which change no result.
    pub fn command(&self) -> String {
        let Self { nodes, seed, seeds, .. } = self;
        let mut command = format!("simnet reproduce overlay --nodes {nodes} --seed {seed} --seeds {seeds}");
        if !self.only.is_empty() {
            let names: Vec<&str> = self.only.iter().map(|experiment| experiment.name()).collect();
            command += &format!(" --only {}", names.join(","));
        }
        if !self.cases.is_empty() {
            command += &format!(" --cases {}", self.cases.join(","));
        }
        if let Some(Replay { path, speedup, .. }) = &self.trace {
            command += &format!(" --trace {} --trace-speedup {speedup}", path.display());
        }
        command
    }

    /// Labels of a job.
    pub(super) fn labels(&self, job: &Job) -> Vec<(&'static str, serde_json::Value)> {
        vec![("nodes", json!(self.nodes)), ("experiment", json!(job.experiment.name())), ("case", json!(job.case))]
    }

    /// The cases to run with each seed.
    pub(super) fn experiment_cases(&self) -> Vec<(Experiment, &'static str)> {
        let suits = |experiment: &Experiment| match experiment {
            _ if !self.only.is_empty() => self.only.contains(experiment),
            Experiment::Trace => self.trace.is_some(),
            Experiment::PartitionHour => self.nodes <= PARTITION_HOUR_NODES_MAX,
            _ => true,
        };
        let experiments = Experiment::ALL.into_iter().filter(suits);
        let cases = experiments.flat_map(|experiment| experiment.cases().iter().map(move |case| (experiment, *case)));
        cases.filter(|(_, case)| self.cases.is_empty() || self.cases.iter().any(|name| name == case)).collect()
    }

    /// Each case with each seed; `build` identifies the program.
    pub(super) fn jobs(&self, build: &str) -> Vec<Job> {
        let replayed = self.trace.as_ref().map_or(String::new(), |Replay { availability, speedup, .. }| {
            blake3::hash(format!("{availability:?} {speedup}").as_bytes()).to_hex().to_string()
        });
        let job = |experiment: Experiment, case: &'static str, seed: u64| {
            let trace = if experiment == Experiment::Trace { &replayed } else { "" };
            let key = format!("{build} overlay {} {experiment:?} {case} {seed} {trace}", self.nodes);
            let key = hex::encode(&blake3::hash(key.as_bytes()).as_bytes()[..8]);
            Job { experiment, case, seed, key }
        };
        let cases = self.experiment_cases();
        let seeds = self.seed..=self.seed + (self.seeds - 1);
        // By seed, so that few grids are kept at a time.
        seeds.flat_map(|seed| cases.iter().map(move |(experiment, case)| job(*experiment, case, seed))).collect()
    }
}
