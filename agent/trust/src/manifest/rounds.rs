//! Manifests of applications in rounds: which program a task runs, and what it is given of its place among the rounds.

use std::path::{Component, Path};

use idlewood_scheduler::rounds::{Part, Plan};
use serde::{Deserialize, Serialize};

use super::Input;

/// The directories below `inputs/` in which tasks of later rounds find what they begin with.
pub const GIVEN: [&str; 3] = ["state", "merged", "results"];
/// Longest path of the file by which a merge says that the application has converged.
const UNTIL_BYTES_MAX: usize = 1024;

/// The rounds of a bag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// Processes, rounds, and who waits for whom.
    pub plan: Plan,
    /// The program that merges results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<Input>,
    /// Iterations of a process in one round.
    pub iterations: u64,
    /// A file that the merge leaves once the application has converged, by its path in the merge's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl Rounds {
    /// What `{iterations}`, `{process}` and `{round}` stand for in a task; `None`: nothing of that name.
    pub fn value(&self, index: u64, name: &str) -> Option<u64> {
        match (name, self.plan.part(index)) {
            ("iterations", _) => Some(self.iterations),
            ("round", part) => Some(part.round()),
            ("process", Part::Process { process, .. } | Part::Merge { of: Some(process), .. }) => Some(process),
            _ => None,
        }
    }

    /// The place of a task's entry; `None` for a merge.
    pub(super) fn entry(&self, index: u64) -> Option<u64> {
        match self.plan.part(index) {
            Part::Process { process, .. } => Some(process),
            Part::Merge { .. } => None,
        }
    }

    /// Why a bag of so many tasks, with such inputs, cannot have these rounds.
    pub(super) fn flaw<'a>(&self, tasks: u64, inputs: impl Iterator<Item = &'a Input>) -> Option<String> {
        if let Some(flaw) = self.plan.flaw() {
            return Some(flaw);
        }
        if self.plan.tasks() != tasks {
            return Some(format!("{tasks} tasks, but rounds of {}", self.plan.tasks()));
        }
        if self.plan.merges != self.merge.is_some() {
            return Some("rounds with merges need a program that merges, and others have none".to_owned());
        }
        if self.iterations == 0 {
            return Some("a process does at least one iteration in a round: raise --iterations".to_owned());
        }
        if self.plan.fill.is_some_and(|fill| fill.get() != self.iterations) {
            return Some(
                "what fills its time does more than the iterations of a round, not than another number".to_owned(),
            );
        }
        let is_inside = |path: &String| {
            let parts = Path::new(path).components();
            !path.is_empty()
                && path.len() <= UNTIL_BYTES_MAX
                && parts.clone().all(|part| matches!(part, Component::Normal(_)))
        };
        if self.until.as_ref().is_some_and(|path| self.merge.is_none() || !is_inside(path)) {
            return Some(
                "--until names a file that the merge leaves (--merge), by its path in the merge's directory".to_owned(),
            );
        }
        let first = |input: &Input| input.name.split('/').next().map(str::to_owned);
        let taken = inputs.filter_map(first).find(|name| GIVEN.contains(&name.as_str()));
        taken.map(|name| format!("inputs/{name} is for what rounds give their tasks: name the input otherwise"))
    }
}
