//! What holds of an executor after each event. Checked in debug builds only, so in tests and simulations.

use std::collections::BTreeSet;

use idlewood_overlay::Time;

use super::Executor;
use crate::bag::{BagId, TaskId};
use crate::ranges::IntervalSet;

impl Executor {
    /// Panics where one of the rules is broken.
    pub(crate) fn assert_consistent(&self, now: Time) {
        for (bag, held) in self.held.iter() {
            held.assert_one_state();
            let running: IntervalSet =
                self.places.of(*bag).map(|running| running.task.index..running.task.index + 1).collect();
            debug_assert_eq!(held.running, running, "{bag:?}: what runs is what has a place");
        }
        self.assert_places();
        self.assert_order();
        debug_assert!(self.told_here.is_empty(), "{:?} may be stored nowhere", self.told_here);
        debug_assert!(self.held.is_up_to_date(now), "a bag is due at another time than it says");
    }

    /// How many intervals the rules are about.
    pub(crate) fn intervals(&self) -> usize {
        let held = self.held.values().map(|held| held.unfinished().intervals() + held.outbox.len() + 1);
        held.sum::<usize>() + self.places.begun().count()
    }

    /// A task has one place, no more tasks run than there are slots, and no more are frozen than may be.
    fn assert_places(&self) {
        let mut tasks: BTreeSet<TaskId> = BTreeSet::new();
        for running in self.places.begun() {
            debug_assert!(tasks.insert(running.task), "{:?} has two places", running.task);
            let is_known = running.stopping || self.held.contains_key(&running.task.bag);
            debug_assert!(is_known, "{:?} runs, and nobody wants it", running.task);
        }
        let frozen = self.places.begun().filter(|running| running.frozen).count();
        debug_assert!(frozen <= self.places.frozen_max(), "{frozen} tasks are frozen");
        debug_assert!(tasks.len() - frozen <= self.places.slots(), "{} tasks run", tasks.len() - frozen);
    }

    /// The order, where it is not stale, has each bag of which there is something to do, once.
    fn assert_order(&self) {
        if self.order_stale {
            return;
        }
        let ordered: BTreeSet<BagId> = self.order.iter().copied().collect();
        debug_assert_eq!(ordered.len(), self.order.len(), "a bag is in the order twice");
        debug_assert!(ordered.iter().all(|bag| self.held.contains_key(bag)), "the order is of more than is held");
        let left_out = self.held.iter().find(|(bag, held)| !held.unfinished_is_empty() && !ordered.contains(bag));
        debug_assert!(left_out.is_none(), "not in the order: {left_out:?}");
    }
}
