//! Honesty about sizes: a bag whose tasks turn out far larger than its submitter declared gets deadlines on this machine by
//! the measured size, so that understating it brings the bag no earlier turn (ours; the paper takes sizes as given).
//!
//! Measured is the mean over the tasks that finished here and those that have already run for longer than declared. Below
//! [`FAR_BEYOND`] times the declared work the declaration stands, and below twice that where it is one task alone: honest bags have
//! tasks of different sizes. The submitter
//! sees the measured work in its own results ([`crate::BagView::measured_mops`]). The driver enforces the time limit of
//! single tasks. A machine that has learned from the tasks of several users that it is slow (`learning`) divides what it measures by
//! that.
//!
//! Left out: bags that overstate their size (they only wait longer than they need to); bags split into many (`submitters`).

use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
use crate::bag::BagId;

/// A task at this multiple of its declared work is far beyond it. Our choice: in a production grid (coefficient of
/// variation 0.45, lognormal) three of a thousand tasks of a bag are that far from their mean: in nearly every second bag of 200 tasks there is
/// one. The mean of two tasks is that far in one of 7,000 cases.
const FAR_BEYOND: f64 = 3.0;
/// The same for one task alone, which is one in 170,000 there. Our choice: at this multiple it is looked at anyway.
const ALONE_FAR_BEYOND: f64 = 2.0 * FAR_BEYOND;
/// Added to the moment at which a task is looked at, so that rounding does not wake the executor too early.
const ROUNDING: Duration = Duration::from_millis(1);

/// The step that a running task has reached, as a multiple of its declared work, `beyond` its work as such: each is twice the one before,
/// so that summaries do not change with each look at the same task.
fn step(beyond: f64) -> f64 {
    FAR_BEYOND * (beyond / FAR_BEYOND).log2().floor().exp2()
}

impl HeldBag {
    /// Rates the bag by the tasks that finished here and these that still run; returns whether the rating changed.
    fn rate(&mut self, running_mops: impl Iterator<Item = f64>) -> bool {
        let declared = self.bag.task_mops;
        let beyond = running_mops.filter(|&mops| mops > declared);
        let beyond = beyond.map(|mops| step(mops / declared).max(1.0) * declared);
        let (count, sum) =
            beyond.fold((self.finished_tasks, self.finished_mops), |(count, sum), mops| (count + 1, sum + mops));
        // What was measured here was measured by the speed that the driver says.
        let times = if count > 0 { sum / (count as f64 * declared * self.slowness) } else { 1.0 };
        let far = if count > 1 { FAR_BEYOND } else { ALONE_FAR_BEYOND };
        let before = std::mem::replace(&mut self.times_declared, if times >= far { times } else { 1.0 });
        before != self.times_declared
    }
}

impl Executor {
    /// Rates a bag whose task has ended, or runs far beyond its declared work.
    pub(super) fn rate(&mut self, bag: BagId, now: Time) {
        let told_mops = self.told_mops;
        let Some(held) = self.bags.get_mut(&bag).filter(|held| held.bag.declared) else { return };
        if held.rate(self.places.of(bag).map(|running| running.done_mops(told_mops, now))) {
            self.order_stale = true;
            self.changed = true;
        }
    }

    /// Rates the bags of tasks that run far beyond their declared work.
    pub(super) fn rate_what_runs(&mut self, now: Time) {
        let far = self.places.begun().filter(|running| self.beyond(running, now) >= FAR_BEYOND);
        let bags: Vec<BagId> = far.map(|running| running.task.bag).collect();
        bags.into_iter().for_each(|bag| self.rate(bag, now));
    }

    /// When a running task next gets far beyond its declared work, or twice as far as it was.
    pub(super) fn rating_due(&self, now: Time) -> Option<Time> {
        let running = self.places.begun().filter(|running| running.runs() && !running.is_frozen());
        let due = running.filter_map(|running| {
            let held = self.bags.get(&running.task.bag).filter(|held| held.bag.declared)?;
            let beyond = self.beyond(running, now);
            let steps = (beyond / FAR_BEYOND).max(0.5).log2().floor() + 1.0;
            let next_mops = held.bag.task_mops * FAR_BEYOND * steps.exp2();
            let left_s = (next_mops - running.done_mops(self.told_mops, now)) / self.told_mops;
            Some(now + Duration::try_from_secs_f64(left_s.max(0.0)).ok()? + ROUNDING)
        });
        due.min()
    }

    /// The work a task has done as a multiple of its declared work, by the speed that the driver says.
    fn beyond(&self, running: &Running, now: Time) -> f64 {
        let declared = self.bags.get(&running.task.bag).filter(|held| held.bag.declared);
        declared.map_or(0.0, |held| running.done_mops(self.told_mops, now) / held.bag.task_mops)
    }
}
