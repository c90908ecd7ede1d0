//! What to calculate, and where to leave it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{model, peers, prediction};
use crate::experiment::{Plan as Experiments, lock, replace, unwritable};

/// The longest merge that is taken, in seconds: a day.
const MERGE_MAX_S: f64 = 86_400.0;
/// The most iterations that are taken.
const ITERATIONS_MAX: u64 = 1_000_000_000;

/// Parts of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The paper's seven sets.
    Paper,
    /// The same application on machines that come and go.
    Model,
    /// One like it on whole peers.
    Peers,
}

/// What to calculate.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Parts to calculate; empty: all.
    pub only: Vec<Part>,
    /// First seed of the model.
    pub seed: u64,
    /// Number of its seeds, 1 to 1,000,000.
    pub seeds: u64,
    /// Iterations of each process on the paper's sets, 1 to 10⁹.
    pub iterations: u64,
    /// Costs of merging the results of a stage, in seconds, each 0 to 86,400.
    pub merges_s: Vec<f64>,
    /// Directory of the summary; created if missing.
    pub out: PathBuf,
}

impl Plan {
    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=ITERATIONS_MAX).contains(&self.iterations) {
            return Err("iterations must be between 1 and 1000000000, such as --iterations 200".to_owned());
        }
        if self.merges_s.is_empty() || !self.merges_s.iter().all(|merge_s| (0.0..=MERGE_MAX_S).contains(merge_s)) {
            return Err("merge-s must be seconds between 0 and 86400, such as --merge-s 0,5.6".to_owned());
        }
        if !(1..=1_000_000).contains(&self.seeds) {
            return Err("seeds must be between 1 and 1000000".to_owned());
        }
        if self.seed.checked_add(self.seeds - 1).is_none() {
            return Err("the last seed, seed + seeds - 1, must be below 2^64; give a smaller --seed".to_owned());
        }
        Ok(())
    }

    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Calculates everything; writes `rounds.json` and returns what is in it. `progress` is told how many runs of the model
    /// are done, and how many there are.
    ///
    /// # Errors
    /// A sentence that names the file that could not be written, or says that another process works in the directory.
    pub fn run(&self, mut progress: impl FnMut(usize, usize)) -> Result<Value, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let mut rows = Vec::new();
        if self.has(Part::Paper) {
            rows.extend(prediction::rows(self.iterations, &self.merges_s));
        }
        if self.has(Part::Model) {
            rows.extend(model::rows(self.seed, self.seeds, &mut progress));
        }
        if self.has(Part::Peers) {
            rows.extend(peers::rows(self.seed, self.seeds, &mut progress));
        }
        let summary = json!({
            "experiment": "rounds",
            "command": self.command(),
            "commit": Experiments::commit(),
            "seed": self.seed,
            "seeds": self.seeds,
            "rows": rows,
        });
        let text = serde_json::to_string_pretty(&summary).expect("finite numbers are JSON");
        replace(&self.out.join("rounds.json"), &(text + "\n"))?;
        Ok(summary)
    }

    /// The command line, without the directory, which changes no result.
    fn command(&self) -> String {
        let merges: Vec<String> = self.merges_s.iter().map(f64::to_string).collect();
        let names = [(Part::Paper, "paper"), (Part::Model, "model"), (Part::Peers, "peers")];
        let chosen: Vec<&str> = names.into_iter().filter(|(part, _)| self.has(*part)).map(|(_, name)| name).collect();
        let only = if chosen.len() < names.len() { format!(" --only {}", chosen.join(",")) } else { String::new() };
        let Self { iterations, seed, seeds, .. } = self;
        let merges = merges.join(",");
        format!(
            "simnet reproduce rounds --iterations {iterations} --merge-s {merges} --seed {seed} --seeds {seeds}{only}"
        )
    }
}
