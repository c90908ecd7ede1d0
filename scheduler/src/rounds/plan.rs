//! The shape of an application in rounds: which task of its bag is what ([`super::course`] says which follows from which).

use std::num::NonZeroU64;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::bag::{BAG_TASKS_MAX, HELD_CHECKPOINTS_MAX, is_zero};
use crate::ledger::Replication;

/// Most processes of an application without merges, where each gets the results of all. Our choice: with more, what all are given
/// together grows beyond what a submitter can hand out.
pub const UNMERGED_PROCESSES_MAX: u64 = 256;

/// Most processes that begin at once: so many tasks of a bag are with machines at a time.
const AT_ONCE_MAX: u64 = HELD_CHECKPOINTS_MAX as u64;

/// How many times its iterations a process does at most that fills its time. Our choice: a machine takes a task that has run for twice
/// its work for one that stands still, and a machine that is slower than predicted holds its round up by one more at most.
pub const FILL_MAX: u64 = 2;

/// The shape of an application in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// P: processes, each with parameters of its own.
    #[serde(rename = "p")]
    pub processes: u64,
    /// Rounds of each process, at most.
    #[serde(rename = "r")]
    pub rounds: u64,
    /// Rounds after which the application may end early, since a merge says that it has converged.
    #[serde(rename = "l", default, skip_serializing_if = "is_zero")]
    pub rounds_min: u64,
    /// Whether a task merges the results; if not, each process gets those of all.
    #[serde(rename = "m", default, skip_serializing_if = "std::ops::Not::not")]
    pub merges: bool,
    /// Whether no process waits for another.
    #[serde(rename = "a", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_asynchronous: bool,
    /// Iterations of a process in a round, of which those on fast machines do more instead of waiting (Netto and others 2011,
    /// Algorithm 1, lines 14 and 15), up to [`FILL_MAX`] times as many; `None`: all do as many.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<NonZeroU64>,
    /// Whether the processes of a round begin at once: only when each has a slot somewhere.
    #[serde(rename = "t", default, skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
}

/// What a task of the bag is in the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One round of one process.
    Process {
        /// From 0.
        round: u64,
        /// From 0.
        process: u64,
    },
    /// A merge.
    Merge {
        /// The round whose results it merges.
        round: u64,
        /// The process that alone waits for it; `None`: it is of all.
        of: Option<u64>,
    },
}

impl Part {
    /// Its round, from 0.
    pub fn round(self) -> u64 {
        match self {
            Self::Process { round, .. } | Self::Merge { round, .. } => round,
        }
    }
}

/// The tasks whose output another one begins with, as indices in the bag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The same process, one round before.
    pub state: Option<u64>,
    /// The merge before it.
    pub merged: Option<u64>,
    /// Processes, and the task that has the result of each.
    pub results: Vec<(u64, u64)>,
    /// How many iterations it does; `None`: as many as all.
    pub iterations: Option<NonZeroU64>,
}

impl Plan {
    /// Why there is no such application; `None` where there is.
    pub fn flaw(&self) -> Option<String> {
        if self.processes == 0 || self.rounds == 0 {
            return Some("an application in rounds has at least one process and one round".to_owned());
        }
        if !self.merges && self.processes > UNMERGED_PROCESSES_MAX {
            return Some(format!(
                "{} processes without a merge would each get the results of all: give a program that merges them (--merge), or use \
                 {UNMERGED_PROCESSES_MAX} processes at most",
                self.processes
            ));
        }
        if self.rounds_min > self.rounds {
            return Some(format!(
                "it cannot have at least {} rounds and {} at most: lower the first, or raise the second",
                self.rounds_min, self.rounds
            ));
        }
        if self.is_asynchronous && self.fill.is_some() {
            return Some(
                "in mode async no process waits, so that there is no time to fill: leave out --fill".to_owned(),
            );
        }
        if self.at_once && self.is_asynchronous {
            return Some(
                "in mode async no process waits for another, also not to begin at once: leave out --at-once".to_owned(),
            );
        }
        if self.at_once && self.processes > AT_ONCE_MAX {
            return Some(format!(
                "{} processes cannot begin at once: leave out --at-once, or use {AT_ONCE_MAX} processes at most",
                self.processes
            ));
        }
        let is_small = |processes: u64| processes.checked_mul(2)?.checked_mul(self.rounds)?.checked_add(1);
        if is_small(self.processes).is_none_or(|tasks| tasks > BAG_TASKS_MAX) {
            let Self { processes, rounds, .. } = self;
            return Some(format!(
                "{processes} processes in {rounds} rounds are too many tasks: {BAG_TASKS_MAX} at most"
            ));
        }
        None
    }

    /// Whether a bag of so many tasks, each run by so many machines, can be this application.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    pub(crate) fn check(&self, tasks: u64, replication: Replication) -> Result<(), String> {
        if let Some(flaw) = self.flaw() {
            return Err(flaw);
        }
        if self.tasks() != tasks {
            return Err(format!("an application in rounds of {} tasks was submitted with {tasks}", self.tasks()));
        }
        if !replication.is_none() {
            return Err("machines do not vote on tasks of an application in rounds: leave out --replicas".to_owned());
        }
        Ok(())
    }

    /// Whether all processes can begin at once where a task has this work, in Mop, and so many tasks may be with machines at a time.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    pub fn check_at_once(&self, task_mops: Option<f64>, running_max: Option<u64>) -> Result<(), String> {
        if self.at_once && task_mops.is_none() {
            return Err("--at-once begins nothing alone, also not to measure it: say how much work a process is in a round (--work)".to_owned());
        }
        if self.at_once && running_max.is_some_and(|most| most < self.processes) {
            return Err(format!(
                "--at-once runs all {} processes: raise --max-running, or leave it out",
                self.processes
            ));
        }
        Ok(())
    }

    /// Tasks of the bag.
    pub fn tasks(&self) -> u64 {
        let last = self.rounds.saturating_sub(1);
        last * self.stride() + self.processes + self.merges_in(last)
    }

    fn merges_in(&self, round: u64) -> u64 {
        match (self.merges, self.is_asynchronous && round + 1 < self.rounds) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.processes,
        }
    }

    /// Tasks of each round but the last.
    fn stride(&self) -> u64 {
        self.processes + self.merges_in(0)
    }

    /// What the task at this index is.
    pub fn part(&self, index: u64) -> Part {
        let round = (index / self.stride()).min(self.rounds - 1);
        let place = index - round * self.stride();
        match place.checked_sub(self.processes) {
            None => Part::Process { round, process: place },
            Some(_) if self.merges_in(round) == 1 && !self.is_own_merge(round) => Part::Merge { round, of: None },
            Some(of) => Part::Merge { round, of: Some(of) },
        }
    }

    /// Whether processes of a round have a merge each.
    fn is_own_merge(&self, round: u64) -> bool {
        self.is_asynchronous && round + 1 < self.rounds
    }

    /// The index of a task.
    pub fn index(&self, part: Part) -> u64 {
        match part {
            Part::Process { round, process } => round * self.stride() + process,
            Part::Merge { round, of } => round * self.stride() + self.processes + of.unwrap_or(0),
        }
    }

    /// All tasks of the rounds before this one.
    pub fn before(&self, round: u64) -> Range<u64> {
        0..round.min(self.rounds.saturating_sub(1)) * self.stride()
    }

    /// The tasks that begin with nothing of others: those of the first round.
    pub fn first(&self) -> Range<u64> {
        0..self.processes
    }

    /// The merge of all that are in a round, if there is one.
    pub fn merge_of_all(&self, round: u64) -> Option<u64> {
        let has_one = self.merges && !self.is_own_merge(round);
        has_one.then(|| self.index(Part::Merge { round, of: None }))
    }

    /// The merge that a process waits for after a round.
    pub(super) fn merge_after(&self, round: u64, process: u64) -> u64 {
        self.index(Part::Merge { round, of: self.is_own_merge(round).then_some(process) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(processes: u64, rounds: u64, merges: bool, is_asynchronous: bool) -> Plan {
        Plan { processes, rounds, rounds_min: 0, merges, is_asynchronous, fill: None, at_once: false }
    }

    #[test]
    fn indices_and_parts_are_each_others_inverse() {
        for (processes, rounds) in [(1, 1), (1, 4), (3, 1), (4, 5)] {
            for (merges, is_asynchronous) in [(false, false), (false, true), (true, false), (true, true)] {
                let plan = plan(processes, rounds, merges, is_asynchronous);
                let parts: Vec<Part> = (0..plan.tasks()).map(|index| plan.part(index)).collect();
                for (index, part) in parts.iter().enumerate() {
                    assert_eq!(plan.index(*part), index as u64, "{plan:?}");
                }
                let of_processes = parts.iter().filter(|part| matches!(part, Part::Process { .. })).count() as u64;
                assert_eq!(of_processes, processes * rounds, "{plan:?}");
                let merges_wanted = match (merges, is_asynchronous) {
                    (false, _) => 0,
                    (true, false) => rounds,
                    (true, true) => processes * (rounds - 1) + 1,
                };
                assert_eq!(plan.tasks() - of_processes, merges_wanted, "{plan:?}");
            }
        }
    }

    #[test]
    fn impossible_plans_are_refused_with_a_remedy() {
        assert!(plan(0, 1, true, false).flaw().is_some());
        assert!(plan(1, 0, true, false).flaw().is_some());
        assert!(plan(257, 2, false, false).flaw().is_some_and(|flaw| flaw.contains("--merge")));
        assert!(plan(10_000, 2, true, false).flaw().is_none());
        assert!(plan(1, u64::MAX, true, false).flaw().is_some());
        let at_once = |of: Plan| Plan { at_once: true, ..of }.flaw();
        assert_eq!(at_once(plan(4096, 2, true, false)), None);
        for flawed in [plan(4097, 2, true, false), plan(2, 2, true, true)] {
            assert!(at_once(flawed).is_some_and(|flaw| flaw.contains("leave out --at-once")));
        }
        assert!(Plan { rounds_min: 3, ..plan(1, 2, true, false) }.flaw().is_some());
        let fill = NonZeroU64::new(50);
        assert!(Plan { fill, ..plan(2, 2, true, false) }.flaw().is_none());
        assert!(Plan { fill, ..plan(2, 2, true, true) }.flaw().is_some_and(|flaw| flaw.contains("leave out --fill")));
    }
}
