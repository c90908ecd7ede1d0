//! What to calculate, and where to leave it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::prediction;
use crate::experiment::{Plan as Experiments, lock, replace, unwritable};

/// The longest merge that is taken, in seconds: a day.
const MERGE_MAX_S: f64 = 86_400.0;
/// The most iterations that are taken.
const ITERATIONS_MAX: u64 = 1_000_000_000;

/// What to calculate.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Iterations of each process, 1 to 10⁹.
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
        Ok(())
    }

    /// Calculates everything; writes `rounds.json` and returns what is in it.
    ///
    /// # Errors
    /// A sentence that names the file that could not be written, or says that another process works in the directory.
    pub fn run(&self) -> Result<Value, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let summary = json!({
            "experiment": "rounds",
            "command": self.command(),
            "commit": Experiments::commit(),
            "complete": true,
            "rows": prediction::rows(self.iterations, &self.merges_s),
        });
        let text = serde_json::to_string_pretty(&summary).expect("finite numbers are JSON");
        replace(&self.out.join("rounds.json"), &(text + "\n"))?;
        Ok(summary)
    }

    /// The command line, without the directory, which changes no result.
    fn command(&self) -> String {
        let merges: Vec<String> = self.merges_s.iter().map(f64::to_string).collect();
        format!("simnet reproduce rounds --iterations {} --merge-s {}", self.iterations, merges.join(","))
    }
}
