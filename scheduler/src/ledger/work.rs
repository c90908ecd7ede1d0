//! How much work a task of the bag is, by what machines say of the tasks that they ran.
//!
//! Where the user declared no a, what machines say becomes the a of what is issued again, and other machines count that
//! against the submitter's quota. So one machine must not be able to set it: each has one voice, the mean of what it said, and
//! the median of the voices counts. Between two middle voices the submitter's own measurement decides. A machine that says
//! more than it can have done since it was sent the task says nothing.
//!
//! Left out: what a bag takes of each kind of task (they are one kind), and machines beyond the first [`VOICES_MAX`].

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::PeerId;

use crate::bag::TaskResult;

/// Machines that are asked; a median of more says the same. Our choice.
const VOICES_MAX: usize = 256;
/// How many times as fast as this machine's slot another machine can run one task. Our choice: desktops that one meets are
/// within ten times of each other.
const TIMES_AS_FAST_MAX: f64 = 64.0;
/// What clocks and rounding may add to the time that a task took.
const SLACK: Duration = Duration::from_secs(1);

/// What machines said.
#[derive(Debug)]
pub(super) struct Work {
    /// Of one task, as it was measured or declared here before; 0 while it is not.
    here_mops: f64,
    /// Of each machine: how many tasks, and their summed work in Mop.
    voices: BTreeMap<PeerId, (u64, f64)>,
    /// Results that said more than their machine can have done.
    overstated: u64,
}

impl Work {
    pub(super) fn new(here_mops: f64) -> Self {
        Self { here_mops, voices: BTreeMap::new(), overstated: 0 }
    }

    /// The first task has shown its work.
    pub(super) fn measured(&mut self, here_mops: f64) {
        self.here_mops = here_mops;
    }

    /// Results that said more than their machine can have done.
    pub(super) fn overstated(&self) -> u64 {
        self.overstated
    }

    /// A machine that got this task at most `within` ago says how much work it was; `speed_mops` is that of a slot here.
    pub(super) fn note(&mut self, executor: PeerId, result: &TaskResult, within: Duration, speed_mops: f64) {
        if !result.success {
            return;
        }
        if result.work_mops > (within + SLACK).as_secs_f64() * speed_mops * TIMES_AS_FAST_MAX {
            self.overstated += 1;
        } else if self.voices.len() < VOICES_MAX || self.voices.contains_key(&executor) {
            let (tasks, sum) = self.voices.entry(executor).or_default();
            *tasks += 1;
            *sum += result.work_mops;
        }
    }

    /// Work of one task in Mop; nothing before a machine has said anything.
    pub(super) fn of_task(&self) -> Option<f64> {
        let mut voices: Vec<f64> = self.voices.values().map(|&(tasks, sum)| sum / tasks as f64).collect();
        voices.sort_by(f64::total_cmp);
        let upper = *voices.get(voices.len() / 2)?;
        let lower = voices[(voices.len() - 1) / 2];
        Some(self.here_mops.clamp(lower, upper))
    }
}
