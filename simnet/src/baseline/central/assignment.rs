//! Which task begins, is frozen or goes on at which slot.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use idlewood_overlay::Time;

use super::{Begun, Centre, Lost, Occurrence, Slot};

impl Centre<'_> {
    /// The first bag in the order that waits.
    fn head(&mut self) -> Option<usize> {
        while let Some(&bag) = self.order.get(self.head) {
            if self.queue[bag].waiting > 0 {
                return Some(bag);
            }
            self.head += 1;
        }
        None
    }

    /// Gives each slot that has just become free its first task: one frozen there, or one that waits.
    pub(super) fn occupy(&mut self) {
        let mut freed = std::mem::take(&mut self.freed);
        freed.sort_by_key(|&index| (Reverse(self.slots[index].speed_mops.to_bits()), index));
        let waits = self.policy.waits_for_faster;
        for &index in &freed {
            let head = self.head();
            match (self.first_frozen(index), head) {
                (Some((_, rank)), Some(head)) if self.queue[head].rank < rank && !waits => self.begin(index, head),
                (Some((_, rank)), Some(head)) if self.queue[head].rank < rank => self.set_idle(index),
                (Some((number, _)), _) => self.thaw(index, number),
                (None, Some(head)) if !waits => self.begin(index, head),
                (None, _) => self.set_idle(index),
            }
        }
        if waits {
            self.fill();
            // No waiting task wants the slot now.
            for &index in &freed {
                if let Some((number, _)) = self.first_frozen(index).filter(|_| self.is_idle(index)) {
                    self.idle.remove(&self.idle_key(index));
                    self.thaw(index, number);
                }
            }
        }
        freed.clear();
        self.freed = freed;
    }

    /// The first in the order of the tasks frozen at a slot, and its rank.
    fn first_frozen(&self, index: usize) -> Option<(usize, usize)> {
        let frozen = self.slots[index].frozen.iter().enumerate();
        frozen.map(|(number, run)| (number, self.queue[run.bag].rank)).min_by_key(|&(_, rank)| rank)
    }

    /// Assigns waiting tasks to idle slots.
    pub(super) fn fill(&mut self) {
        while let Some(bag) = self.head() {
            if self.idle.is_empty() {
                return;
            }
            if self.policy.waits_for_faster && self.queue[bag].waiting < self.done_while_one_runs {
                return self.begin_where_soonest(false);
            }
            let Some((_, slot)) = self.idle.pop_first() else { return };
            self.begin(slot, bag);
        }
    }

    /// Plans all waiting tasks in the order, each where it ends first, and begins those whose turn is now: on idle slots, and, with
    /// `freezing`, where a task runs that comes later in the order and may be frozen.
    fn begin_where_soonest(&mut self, freezing: bool) {
        // When each slot has done what was planned for it here, in µs.
        let mut planned: Vec<Option<i64>> = vec![None; self.slots.len()];
        for place in self.head..self.order.len() {
            let bag = self.order[place];
            let mut waiting = self.queue[bag].waiting;
            if waiting == 0 {
                continue;
            }
            let is_open: Vec<bool> = (0..self.slots.len()).map(|slot| self.is_open(slot, bag, freezing)).collect();
            let mut open = is_open.iter().filter(|is_open| **is_open).count();
            if open == 0 && !freezing {
                return;
            }
            let task_mops = self.instance.bags[bag].declared_mops;
            let end = |from_us: i64, slot: usize| from_us + takes_us(task_mops, self.slots[slot].speed_mops);
            let free_us = |slot: usize| {
                let now_us = self.now.as_micros();
                if is_open[slot] { Some(now_us) } else { planned[slot].or_else(|| self.free_us(slot, bag)) }
            };
            let speed = |slot: usize| Reverse(self.slots[slot].speed_mops.to_bits());
            let ends =
                (0..self.slots.len()).filter_map(|slot| Some(Reverse((end(free_us(slot)?, slot), speed(slot), slot))));
            let mut ends: BinaryHeap<_> = ends.collect();
            let mut beginning = Vec::new();
            while waiting > 0 && open > 0 {
                let Some(Reverse((at_us, speed, slot))) = ends.pop() else { break };
                if is_open[slot] && planned[slot].is_none() {
                    beginning.push(slot);
                    open -= 1;
                }
                planned[slot] = Some(at_us);
                ends.push(Reverse((end(at_us, slot), speed, slot)));
                waiting -= 1;
            }
            for slot in beginning {
                self.idle.remove(&self.idle_key(slot));
                self.freeze(slot);
                self.begin(slot, bag);
            }
        }
    }

    /// Whether a task of this bag could begin at a slot now.
    fn is_open(&self, slot: usize, bag: usize, freezing: bool) -> bool {
        let Slot { running, frozen, .. } = &self.slots[slot];
        let is_behind = |run: &Begun| self.queue[run.bag].rank > self.queue[bag].rank;
        let may_freeze = || freezing && frozen.len() < self.policy.frozen_max;
        running.as_ref().map_or_else(|| self.is_idle(slot), |run| may_freeze() && is_behind(run))
    }

    /// When a busy slot has done what runs there, and what is frozen there and comes before this bag, in µs; `None` while it is down.
    fn free_us(&self, slot: usize, bag: usize) -> Option<i64> {
        let Slot { running, frozen, .. } = &self.slots[slot];
        let before = frozen.iter().filter(|run| self.queue[run.bag].rank <= self.queue[bag].rank);
        let frozen_us: i64 = before.map(|run| run.declared_us).sum();
        Some(self.now.as_micros() + running.as_ref()?.declared_rest_us(self.now) + frozen_us)
    }

    pub(super) fn idle_key(&self, slot: usize) -> (Reverse<u64>, usize) {
        (Reverse(self.slots[slot].speed_mops.to_bits()), slot)
    }

    fn is_idle(&self, slot: usize) -> bool {
        self.idle.contains(&self.idle_key(slot))
    }

    pub(super) fn set_idle(&mut self, slot: usize) {
        self.idle.insert(self.idle_key(slot));
    }

    fn begin(&mut self, index: usize, bag: usize) {
        let Slot { machine, speed_mops, .. } = self.slots[index];
        self.queue[bag].waiting -= 1;
        self.queue[bag].begun += 1;
        let Lost { index: task, kept } = self.next_task(bag, machine);
        let kept_us = kept.filter(|kept| kept.0 == machine).map_or(0, |kept| kept.1);
        let declared_us = (takes_us(self.instance.bags[bag].declared_mops, speed_mops) - kept_us).max(1);
        let takes_us = takes_us(self.instance.task_mops(bag, task), speed_mops);
        let remaining_us = (takes_us - kept_us).max(1);
        self.go_on(index, Begun { bag, index: task, remaining_us, declared_us, takes_us, since: self.now });
    }

    /// The task of a bag that begins on a machine: one with a checkpoint there, else one that was lost without a
    /// checkpoint, else the next that never began, else one with a checkpoint elsewhere.
    fn next_task(&mut self, bag: usize, machine: usize) -> Lost {
        let lost = &mut self.lost[bag];
        let has_kept = |meant: fn(&Lost, usize) -> bool| lost.iter().rposition(|lost| meant(lost, machine));
        let here = has_kept(|lost, machine| lost.kept.is_some_and(|kept| kept.0 == machine));
        if let Some(place) = here.or_else(|| has_kept(|lost, _| lost.kept.is_none())) {
            return lost.remove(place);
        }
        let next = self.queue[bag].next;
        if next == self.instance.bags[bag].tasks {
            return lost.pop().expect("a task that waits never began or was lost");
        }
        self.queue[bag].next += 1;
        Lost { index: next, kept: None }
    }

    fn thaw(&mut self, index: usize, number: usize) {
        let run = self.slots[index].frozen.swap_remove(number);
        self.go_on(index, Begun { since: self.now, ..run });
    }

    pub(super) fn go_on(&mut self, index: usize, run: Begun) {
        let slot = &mut self.slots[index];
        slot.serial += 1;
        slot.running = Some(run);
        let (at, serial) = (Time::from_micros(self.now.as_micros() + run.remaining_us), slot.serial);
        self.plan(at, Occurrence::TaskEnds { slot: index, serial });
    }

    fn freeze(&mut self, index: usize) {
        let now = self.now;
        let slot = &mut self.slots[index];
        slot.serial += 1;
        slot.frozen.extend(slot.running.take().map(|run| run.pause(now)));
    }

    /// Freezes tasks that come later in the order than a waiting task, or than one frozen at the same slot.
    pub(super) fn preempt(&mut self) {
        let mut running = Vec::new();
        for index in 0..self.slots.len() {
            let Some(run) = &self.slots[index].running else { continue };
            let rank = self.queue[run.bag].rank;
            let rank = match self.first_frozen(index) {
                Some((number, frozen)) if frozen < rank => {
                    self.freeze(index);
                    self.thaw(index, number);
                    frozen
                }
                _ => rank,
            };
            running.push((Reverse(rank), Reverse(self.slots[index].speed_mops.to_bits()), index));
        }
        running.sort_unstable();
        if self.policy.waits_for_faster {
            self.begin_where_soonest(true);
        } else {
            for &(Reverse(rank), _, index) in &running {
                let Some(head) = self.head().filter(|&head| self.queue[head].rank < rank) else { break };
                if self.slots[index].frozen.len() < self.policy.frozen_max {
                    self.freeze(index);
                    self.begin(index, head);
                }
            }
        }
        if self.policy.makes_room {
            self.make_room(running.into_iter().map(|(_, _, index)| index));
        }
    }

    /// Where a waiting task comes ahead of what runs at one of these slots, and no more tasks may be frozen there: lets a frozen one
    /// go on that has less than half the work left of the running one, as ours do (`scheduler/src/executor/schedule.rs`).
    fn make_room(&mut self, slots: impl Iterator<Item = usize>) {
        let Some(head) = self.head() else { return };
        let mut wanted = self.queue[head].waiting;
        for index in slots {
            let Slot { running: Some(run), frozen, .. } = &self.slots[index] else { continue };
            let is_full = frozen.len() >= self.policy.frozen_max;
            let is_behind = self.queue[run.bag].rank > self.queue[head].rank;
            let soonest = frozen.iter().enumerate().min_by_key(|(_, run)| run.declared_us);
            let Some((number, first)) = soonest.filter(|_| is_full && is_behind && wanted > 0) else { continue };
            if 2 * first.declared_us < run.declared_rest_us(self.now) {
                wanted -= 1;
                // The running one comes last among the frozen ones, so that `number` stays.
                self.freeze(index);
                self.thaw(index, number);
            }
        }
    }
}

/// How long so much work takes: the same rounding as on a simulated machine.
fn takes_us(work_mops: f64, speed_mops: f64) -> i64 {
    ((work_mops / speed_mops * 1e6).round() as i64).max(1)
}
