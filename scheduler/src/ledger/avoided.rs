//! Machines on which all tasks of the bag fail, while elsewhere most of them succeed: they are left alone for a while.
//!
//! Left out: the memory of such machines ends with a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::failures::doubled;

/// Failures in a row for which a machine is avoided.
pub(crate) const FAILED_IN_ROW: u32 = 5;
/// Tasks that must have succeeded elsewhere for each that failed there. With such odds five failures in a row are a
/// coincidence once in a thousand.
const ELSEWHERE_DONE: u64 = 3;
/// How long a machine is avoided for the first time, and at most; it doubles in between.
pub(super) const AVOID_FIRST: Duration = Duration::from_secs(60);
pub(crate) const AVOID_MAX: Duration = Duration::from_secs(3600);

/// Who failed of late.
#[derive(Debug, Default)]
pub(super) struct Avoided {
    machines: BTreeMap<PeerId, Failing>,
    /// Failed tries of all tasks, of this life only.
    tries_failed: u64,
}

/// A machine on which the last task failed.
#[derive(Clone, Copy, Debug, Default)]
struct Failing {
    in_row: u32,
    failed: u64,
    /// How often it was avoided.
    avoided: u32,
    until: Time,
}

impl Avoided {
    /// Keeps account of who fails. A result that is counted here is one of its own attempt.
    pub(super) fn note_end(&mut self, executor: PeerId, success: bool) {
        if success {
            self.machines.remove(&executor);
            return;
        }
        self.tries_failed += 1;
        let failing = self.machines.entry(executor).or_default();
        failing.in_row += 1;
        failing.failed += 1;
    }

    /// For how long nothing is to be placed there.
    pub(super) fn avoided_for(&self, executor: PeerId, now: Time) -> Duration {
        self.machines.get(&executor).map_or(Duration::ZERO, |failing| failing.until.since(now))
    }

    /// Avoids a machine from now on if all fails there and, of `done` tasks in all, enough succeeded elsewhere: for how long.
    pub(super) fn avoid_if_due(&mut self, executor: PeerId, done: u64, now: Time) -> Option<Duration> {
        let failing = self.machines.get_mut(&executor)?;
        let failed_elsewhere = self.tries_failed - failing.failed;
        let succeed_elsewhere = done >= ELSEWHERE_DONE * failed_elsewhere && done >= u64::from(FAILED_IN_ROW);
        if failing.in_row < FAILED_IN_ROW || failing.until > now || !succeed_elsewhere {
            return None;
        }
        let rest = doubled(AVOID_FIRST, failing.avoided, AVOID_MAX);
        failing.avoided += 1;
        failing.until = now + rest;
        Some(rest)
    }

    /// No machine is avoided any more.
    pub(super) fn forget_all(&mut self) {
        self.machines.clear();
    }

    /// What the machines that fail have failed of is among what failed in all.
    #[cfg(debug_assertions)]
    pub(super) fn assert_consistent(&self) {
        let failed: u64 = self.machines.values().map(|failing| failing.failed).sum();
        debug_assert!(failed <= self.tries_failed, "{failed} of {} failed tries", self.tries_failed);
    }

    /// How many tries in a row have failed on a machine.
    #[cfg(test)]
    pub(super) fn failed_in_row(&self, executor: PeerId) -> u32 {
        self.machines.get(&executor).map_or(0, |failing| failing.in_row)
    }

    #[cfg(test)]
    pub(super) fn tries_failed(&self) -> u64 {
        self.tries_failed
    }
}
