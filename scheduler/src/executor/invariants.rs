//! Invariants of an executor, asserted after events in debug builds only, so in tests and simulations.

use std::collections::BTreeSet;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::{BagId, TaskId};
use crate::ranges::IntervalSet;

impl Executor {
    /// Panics where an invariant is broken.
    pub(crate) fn assert_consistent(&self, now: Time) {
        for (bag, held) in self.bags.iter() {
            held.assert_one_state();
            let running: IntervalSet =
                self.places.of(*bag).map(|running| running.task.index..running.task.index + 1).collect();
            debug_assert_eq!(held.running, running, "{bag:?}: running tasks and places disagree");
        }
        self.assert_places();
        self.assert_order();
        debug_assert!(self.own_results.is_empty(), "{:?} are neither stored nor taken by the ledger", self.own_results);
        debug_assert!(self.bags.is_up_to_date(now), "the index of due bags is out of date");
    }

    /// How many intervals [`Self::assert_consistent`] looks at.
    pub(crate) fn intervals(&self) -> usize {
        let held = self.bags.values().map(|held| held.unfinished().intervals() + held.outbox.len() + 1);
        held.sum::<usize>() + self.places.begun().count()
    }

    /// Each task has one place, at most as many run as there are slots, and no more are preempted than allowed.
    fn assert_places(&self) {
        let mut tasks: BTreeSet<TaskId> = BTreeSet::new();
        for running in self.places.begun() {
            debug_assert!(tasks.insert(running.task), "{:?} has two places", running.task);
            let is_known = running.stopping || self.bags.contains_key(&running.task.bag);
            debug_assert!(is_known, "{:?} runs, and its bag is not here", running.task);
        }
        let preempted = self.places.begun().filter(|running| running.preempted).count();
        debug_assert!(preempted <= self.places.frozen_max(), "{preempted} tasks are preempted");
        debug_assert!(tasks.len() - preempted <= self.places.slots(), "{} tasks run", tasks.len() - preempted);
    }

    /// Unless it is stale, the order has each bag with unfinished tasks once.
    fn assert_order(&self) {
        if self.order_stale {
            return;
        }
        let ordered: BTreeSet<BagId> = self.order.iter().copied().collect();
        debug_assert_eq!(ordered.len(), self.order.len(), "a bag is in the order twice");
        debug_assert!(ordered.iter().all(|bag| self.bags.contains_key(bag)), "the order has a bag that is not here");
        let is_left_out = |(bag, held): &(&BagId, &HeldBag)| {
            !held.bag.is_endless() && !held.unfinished_is_empty() && !ordered.contains(bag)
        };
        let left_out = self.bags.iter().find(is_left_out);
        debug_assert!(left_out.is_none(), "not in the order: {left_out:?}");
    }
}

impl HeldBag {
    /// Panics where a task is in two of the states waiting, running, offered and ended, or has two attempts.
    fn assert_one_state(&self) {
        self.outbox.assert_consistent();
        let bag = self.bag.id;
        let ended: IntervalSet = self.outbox.indices().map(|index| index..index + 1).collect();
        let mut all = IntervalSet::new();
        for (state, tasks) in
            [("waits", &self.waiting), ("runs", &self.running), ("is offered", &self.offered), ("has ended", &ended)]
        {
            let twice = all.intersection(tasks);
            debug_assert!(twice.is_empty(), "{bag:?}: {twice:?} {state}, and is something else, too");
            all.extend_with(tasks);
        }
        let mut attempted = IntervalSet::new();
        for (attempt, tasks) in &self.attempts {
            let twice = attempted.intersection(tasks);
            debug_assert!(twice.is_empty() && *attempt <= self.attempt, "{bag:?}: {twice:?} of two attempts");
            attempted.extend_with(tasks);
        }
    }
}
