//! Machines and bags that a scenario gives one by one.

use std::time::Duration;

use idlewood_scheduler::rounds::{Part, Plan};
use serde::{Deserialize, Serialize};

use super::duration::{from_text, seconds};

/// A bag of `workload = "given"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenBag {
    /// When it is submitted, counted from the first moment that a bag can arrive.
    #[serde(rename(serialize = "at_s"), serialize_with = "seconds", deserialize_with = "from_text")]
    pub at: Duration,
    /// The machine where it is submitted.
    pub submitter: u32,
    /// How many tasks it has, at least 1; 0, and not said, of one without an end.
    #[serde(default)]
    pub tasks: u64,
    /// Work of each, in Mop, as declared and in truth.
    pub task_mops: f64,
    /// Size of the output of each; none: the scenario's.
    #[serde(default)]
    pub output_bytes: Option<u64>,
    /// Of an application in rounds, whose tasks are then as many as these make.
    #[serde(default)]
    pub rounds: Option<GivenRounds>,
    /// Of a bag without an end: its share, and what is announced of it. Its results are drained every ten seconds.
    #[serde(default)]
    pub endless: Option<GivenEndless>,
}

/// The rounds of an application, whose results a task merges after each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenRounds {
    /// Processes.
    pub processes: u64,
    /// Rounds of each.
    pub rounds: u64,
    /// Whether no process waits for another.
    pub asynchronous: bool,
    /// Whether a round begins only when each process has a slot. Default false.
    #[serde(default)]
    pub at_once: bool,
    /// Work of one round of a process by its class, in Mop: process p is of class p modulo the number of classes.
    pub class_mops: Vec<f64>,
    /// Work of a merge, in Mop.
    pub merge_mops: f64,
}

impl GivenRounds {
    /// The shape of the application.
    pub fn plan(&self) -> Plan {
        let Self { processes, rounds, asynchronous, at_once, .. } = *self;
        Plan { processes, rounds, rounds_min: 0, merges: true, is_asynchronous: asynchronous, fill: None, at_once }
    }

    /// Mean work of this task, in Mop; the first value says whether it may differ from that.
    pub(crate) fn work_mops(&self, index: u64) -> (bool, f64) {
        match self.plan().part(index) {
            Part::Process { process, .. } => (true, self.class_mops[process as usize % self.class_mops.len()]),
            Part::Merge { .. } => (false, self.merge_mops),
        }
    }

    pub(super) fn is_valid(&self, tasks: u64) -> bool {
        let is_work = |mops: &f64| (1e-3..=1e9).contains(mops);
        self.plan().flaw().is_none()
            && self.plan().tasks() == tasks
            && !self.class_mops.is_empty()
            && self.class_mops.iter().chain([&self.merge_mops]).all(is_work)
    }
}

/// How a bag without an end shares the grid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GivenEndless {
    /// ω. Default 1.
    pub weight: f64,
    /// How much of the work of a task, in percent, its submitter's messages say, whatever the submitter's peer knows. Default 100: an
    /// honest one.
    pub announces_mops_percent: f64,
    /// The same of the bytes of a task.
    pub announces_bytes_percent: f64,
}

impl Default for GivenEndless {
    fn default() -> Self {
        Self { weight: 1.0, announces_mops_percent: 100.0, announces_bytes_percent: 100.0 }
    }
}

impl GivenEndless {
    /// Whether what is announced is not what the submitter's peer knows.
    pub fn is_false(&self) -> bool {
        self.announces_mops_percent != 100.0 || self.announces_bytes_percent != 100.0
    }
}

/// What one machine is like, in place of what the scenario says of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenMachine {
    /// Which machine, from 0.
    pub number: u32,
    /// Its speed, in Mop/s per slot; none: as others.
    #[serde(default)]
    pub speed_mops: Option<f64>,
    /// Its uplink, in bytes a second; none: as others.
    #[serde(default)]
    pub up_bytes_s: Option<u64>,
    /// Its downlink.
    #[serde(default)]
    pub down_bytes_s: Option<u64>,
    /// What its owner lets go over the link in each direction, in kB/s, as its peer is told; none: no limit. The simulated link does not
    /// enforce it.
    #[serde(default)]
    pub limit_kb_s: Option<u32>,
}

impl GivenMachine {
    /// A machine that differs in nothing yet.
    pub fn of(number: u32) -> Self {
        Self { number, speed_mops: None, up_bytes_s: None, down_bytes_s: None, limit_kb_s: None }
    }
}
