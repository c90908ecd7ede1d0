//! The work of a task of the bag, as the executors' results report it.
//!
//! Where the user declared no task size, tasks are issued again with the reported one, and executors count that against the
//! submitter's quota. So no single machine may set it: each has one voice, the mean over its results, and the median of the
//! voices counts. Between two middle voices the submitter's own measurement decides. A result with more work than its
//! machine can have done since it was sent the task does not count.
//!
//! What people read of a bag, on how many machines it ran and how long these computed, counts failed tasks, too.
//!
//! Left out: different kinds of tasks in one bag; voices of machines beyond the first [`VOICES_MAX`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::PeerId;

use crate::bag::TaskResult;

/// Most machines with a voice; the median of more is the same. Our choice.
const VOICES_MAX: usize = 256;
/// Most machines that are told apart for people: they are kept as long as the bag. Our choice.
const MACHINES_MAX: usize = 256;
/// Another machine runs a task at most so many times as fast as a slot of this one. Our choice: common desktops are within
/// ten times of each other.
const TIMES_AS_FAST_MAX: f64 = 64.0;
/// Added to the time that a task may have taken, for clocks and rounding.
const SLACK: Duration = Duration::from_secs(1);

/// The work of a task, by machine.
#[derive(Debug)]
pub(super) struct Work {
    /// As this machine measured it or the user declared it, in Mop; 0 before.
    here_mops: f64,
    /// For each machine the number of its tasks, and their summed work in Mop.
    voices: BTreeMap<PeerId, (u64, f64)>,
    /// Machines that have ended tasks, failed ones too, up to [`MACHINES_MAX`]: for people.
    machines: BTreeSet<PeerId>,
    /// The work of all tasks that have ended on any machine, failed ones too, in Mop.
    ended_mops: f64,
    /// Results with more work than their machine can have done.
    overstated: u64,
    /// The least and the most work of a result that counts, in Mop.
    spread_mops: Option<(f64, f64)>,
}

impl Work {
    pub(super) fn new(here_mops: f64) -> Self {
        Self {
            here_mops,
            voices: BTreeMap::new(),
            machines: BTreeSet::new(),
            ended_mops: 0.0,
            overstated: 0,
            spread_mops: None,
        }
    }

    /// This machine has measured a task.
    pub(super) fn measured(&mut self, here_mops: f64) {
        self.here_mops = here_mops;
    }

    /// Results with more work than their machine can have done.
    pub(super) fn overstated(&self) -> u64 {
        self.overstated
    }

    /// The least and the most work of one task, in Mop; `None` before the first result.
    pub(super) fn spread_mops(&self) -> Option<(f64, f64)> {
        self.spread_mops
    }

    /// Machines that have ended tasks, with success or not, up to [`MACHINES_MAX`], and the work of all tasks that have ended in Mop.
    pub(super) fn done(&self) -> (u64, f64) {
        (self.machines.len() as u64, self.ended_mops)
    }

    /// Counts the work in a result from a machine that was sent the task at most `within` ago; `speed_mops` is the speed of
    /// a slot of this machine.
    pub(super) fn note(&mut self, executor: PeerId, result: &TaskResult, within: Duration, speed_mops: f64) {
        let is_overstated = result.work_mops > (within + SLACK).as_secs_f64() * speed_mops * TIMES_AS_FAST_MAX;
        if self.machines.len() < MACHINES_MAX {
            self.machines.insert(executor);
        }
        if !is_overstated {
            self.ended_mops += result.work_mops;
        }
        if !result.success {
            return;
        }
        if is_overstated {
            self.overstated += 1;
        } else if self.voices.len() < VOICES_MAX || self.voices.contains_key(&executor) {
            let (tasks, sum) = self.voices.entry(executor).or_default();
            *tasks += 1;
            *sum += result.work_mops;
            let (least, most) = self.spread_mops.unwrap_or((result.work_mops, result.work_mops));
            self.spread_mops = Some((least.min(result.work_mops), most.max(result.work_mops)));
        }
    }

    /// Work of one task in Mop; `None` before the first result.
    pub(super) fn of_task(&self) -> Option<f64> {
        let mut voices: Vec<f64> = self.voices.values().map(|&(tasks, sum)| sum / tasks as f64).collect();
        voices.sort_by(f64::total_cmp);
        let upper = *voices.get(voices.len() / 2)?;
        let lower = voices[(voices.len() - 1) / 2];
        Some(self.here_mops.clamp(lower, upper))
    }
}
