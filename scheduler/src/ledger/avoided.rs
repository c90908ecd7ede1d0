//! Avoided machines: those on which tasks of the bag fail in a row while most succeed elsewhere get none for a while.
//!
//! Left out: the ledger forgets them in a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::failures::doubled;

/// Failures in a row for which a machine is avoided.
pub(crate) const FAILED_IN_ROW: u32 = 5;
/// So many tasks must have succeeded for each that failed elsewhere. With such odds five failures in a row are a
/// coincidence once in a thousand.
const ELSEWHERE_DONE: u64 = 3;
/// How long a machine is avoided for the first time, and at most; it doubles in between.
pub(super) const AVOID_FIRST: Duration = Duration::from_secs(60);
pub(crate) const AVOID_MAX: Duration = Duration::from_secs(3600);

/// Most machines whose failed tries are counted one by one.
const FAILED_ON_MAX: usize = 1024;

/// Machines on which the last task failed.
#[derive(Debug, Default)]
pub(super) struct Avoided {
    machines: BTreeMap<PeerId, Failing>,
    /// Failed tries of all tasks since the start of this peer.
    tries_failed: u64,
    /// The same of each of the first machines on which any failed.
    failed_on: BTreeMap<PeerId, u64>,
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
    /// Counts how a task ended on a machine. The caller passes each attempt once.
    pub(super) fn note_end(&mut self, executor: PeerId, success: bool) {
        if success {
            self.machines.remove(&executor);
            return;
        }
        self.tries_failed += 1;
        if self.failed_on.len() < FAILED_ON_MAX || self.failed_on.contains_key(&executor) {
            *self.failed_on.entry(executor).or_default() += 1;
        }
        let failing = self.machines.entry(executor).or_default();
        failing.in_row += 1;
        failing.failed += 1;
    }

    /// For how much longer this machine is avoided.
    pub(super) fn avoided_for(&self, executor: PeerId, now: Time) -> Duration {
        self.machines.get(&executor).map_or(Duration::ZERO, |failing| failing.until.since(now))
    }

    /// Avoids a machine from now on if tasks fail in a row there while enough succeed elsewhere, `done` in all; returns for how
    /// long.
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

    /// Failed tries by machine, since the start of this peer.
    pub(super) fn failed_on(&self) -> &BTreeMap<PeerId, u64> {
        &self.failed_on
    }

    /// No machine is avoided any more.
    pub(super) fn forget_all(&mut self) {
        self.machines.clear();
    }

    /// Panics where machines have more failures than there were in all.
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
