//! Honesty about sizes: a bag whose tasks turn out far larger than its submitter declared is rated anew on this machine,
//! with deadlines by what its tasks are, so that understating them buys no place ahead of others (ours; the paper
//! takes sizes as given).
//!
//! What counts is the mean of what has finished here and of what has already run for longer than declared. Below
//! [`FAR_BEYOND`] times the declared work a bag keeps its word: honest bags have tasks of different sizes. The submitter sees
//! what its tasks took in its own results ([`crate::BagView::measured_mops`]); what a single task may take is bounded by
//! its time limit, which is the driver's.
//!
//! Left out: bags that overstate their size (they wait for longer than they need), and who splits one into many.

use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held::Held;
use super::places::Running;
use crate::bag::BagId;

/// How many times its declared work is far beyond. Our choice: tasks of one bag in a production grid (coefficient of
/// variation 0.45, lognormal) are that far from their mean three times in a thousand.
const FAR_BEYOND: f64 = 3.0;
/// Later than the moment at which a task is looked at, so that rounding does not bring it there too early.
const ROUNDING: Duration = Duration::from_millis(1);

impl Held {
    /// Rates the bag by what finished here and by these tasks that still run; whether that makes a difference.
    fn rate(&mut self, running_mops: impl Iterator<Item = f64>) -> bool {
        let declared = self.bag.task_mops;
        let beyond = running_mops.filter(|&mops| mops > declared);
        let (count, sum) = beyond.fold(self.finished, |(count, sum), mops| (count + 1, sum + mops));
        let times = if count > 0 { sum / (count as f64 * declared) } else { 1.0 };
        let before = std::mem::replace(&mut self.times_declared, if times >= FAR_BEYOND { times } else { 1.0 });
        before != self.times_declared
    }
}

impl Executor {
    /// Looks at a bag whose task has ended, or runs far beyond what was declared.
    pub(super) fn rate(&mut self, bag: BagId, now: Time) {
        let speed_mops = self.speed_mops;
        let Some(held) = self.held.get_mut(&bag).filter(|held| held.bag.declared) else { return };
        if held.rate(self.places.of(bag).map(|running| running.active(now).as_secs_f64() * speed_mops)) {
            self.order_stale = true;
            self.changed = true;
        }
    }

    /// Looks at what runs far beyond what was declared.
    pub(super) fn rate_what_runs(&mut self, now: Time) {
        let far = self.places.begun().filter(|running| self.beyond(running, now) >= FAR_BEYOND);
        let bags: Vec<BagId> = far.map(|running| running.task.bag).collect();
        bags.into_iter().for_each(|bag| self.rate(bag, now));
    }

    /// When a task that runs gets far beyond what was declared, or twice as far as the last time it was looked at.
    pub(super) fn rating_due(&self, now: Time) -> Option<Time> {
        let running = self.places.begun().filter(|running| running.runs() && !running.stands_still());
        let due = running.filter_map(|running| {
            let held = self.held.get(&running.task.bag).filter(|held| held.bag.declared)?;
            let beyond = self.beyond(running, now);
            let steps = (beyond / FAR_BEYOND).max(0.5).log2().floor() + 1.0;
            let next_mops = held.bag.task_mops * FAR_BEYOND * steps.exp2();
            let left_s = next_mops / self.speed_mops - running.active(now).as_secs_f64();
            Some(now + Duration::try_from_secs_f64(left_s.max(0.0)).ok()? + ROUNDING)
        });
        due.min()
    }

    /// How many times its declared work a task has run for.
    fn beyond(&self, running: &Running, now: Time) -> f64 {
        let declared = self.held.get(&running.task.bag).filter(|held| held.bag.declared);
        declared.map_or(0.0, |held| running.active(now).as_secs_f64() * self.speed_mops / held.bag.task_mops)
    }
}
