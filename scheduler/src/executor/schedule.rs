//! Which task runs where: the order of the queue (paper §4), freezing for others, and what is left to newcomers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held::Held;
use super::places::Running;
use crate::bag::{BagId, TaskId};
use crate::io::Io;
use crate::peer::Effect;
use crate::queue::{Entry, Load, WORK_MOPS_MIN};
use crate::stretch::max_stretch_exact;
use crate::summary::{self, Summary};

/// A task that ran longer than its declared work counts as this much still to do, as a share of its work: nobody
/// knows how long it will go on, and zero would promise its slot to others.
const OVERRUN_REST: f64 = 0.1;

/// What the order asks for next.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    /// The place whose task is frozen first.
    freeze: Option<usize>,
    go: Go,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Go {
    /// The frozen task at this place goes on.
    Thaw(usize),
    /// A task begins at this place.
    Start(usize, TaskId),
}

impl Executor {
    /// Fills free slots by earliest deadline, and freezes what runs for what comes ahead of it. While the owner is there nothing
    /// begins.
    pub(crate) fn dispatch(&mut self, io: &mut Io) {
        if self.is_suspended() {
            return self.vacate_in_time(io.now);
        }
        if std::mem::take(&mut self.order_stale) {
            self.reorder(io.now);
        }
        while let Some(step) = self.next_step(io.now) {
            self.take_step(step, io);
        }
    }

    /// The first in the order that neither runs nor has to wait, and whose slot it gets.
    fn next_step(&self, now: Time) -> Option<Step> {
        let (has_slot, free_place) = (self.places.has_slot(), self.places.free());
        // Tasks that run and belong to bags not yet looked at.
        let mut behind = self.places.running();
        for (rank, &bag) in self.order.iter().enumerate() {
            behind -= self.places.of(bag).filter(|running| running.runs()).count();
            if !has_slot && (behind == 0 || self.places.frozen_max() == 0) {
                return None;
            }
            if !has_slot && free_place.is_none() && self.wants_place(bag, now) {
                return self.free_a_place(&self.order[rank + 1..], now);
            }
            let Some(go) = self.next_of(bag, free_place, now) else { continue };
            let freeze = if has_slot { None } else { Some(self.last_that_runs(&self.order[rank + 1..])?) };
            return Some(Step { freeze, go });
        }
        None
    }

    /// What of a bag goes on next: what was begun comes first.
    fn next_of(&self, bag: BagId, free_place: Option<usize>, now: Time) -> Option<Go> {
        if let Some((place, _)) = self.places.frozen().find(|(_, running)| running.task.bag == bag) {
            return Some(Go::Thaw(place));
        }
        let held = self.held.get(&bag).filter(|held| held.may_begin(now))?;
        let task = TaskId { bag, index: held.waiting.first()? };
        // A worker that was told to stop may still have the very task that came back: its end would be taken for
        // that of the new one.
        let is_stopping = self.places.begun().any(|running| running.stopping && running.task == task);
        free_place.filter(|_| !is_stopping).map(|place| Go::Start(place, task))
    }

    /// Whether a task of this bag is to begin, rather than one that has begun to go on.
    fn wants_place(&self, bag: BagId, now: Time) -> bool {
        let has_frozen = self.places.of(bag).any(|running| running.frozen);
        let waits = |held: &Held| held.may_begin(now) && !held.waiting.is_empty();
        !has_frozen && self.held.get(&bag).is_some_and(waits)
    }

    /// As many tasks are frozen as may be, and one that comes ahead of these bags is to begin: a frozen task that needs
    /// less than half of what the last of those that run still needs goes on in its stead, so that there is room soon.
    fn free_a_place(&self, behind: &[BagId], now: Time) -> Option<Step> {
        let last = self.last_that_runs(behind)?;
        let rest = |place: usize| self.places.get(place).map_or(f64::INFINITY, |it| self.rest_mops(it, now));
        let frozen = self.places.frozen().map(|(place, _)| place);
        let first = frozen.min_by(|&one, &other| rest(one).total_cmp(&rest(other)))?;
        (2.0 * rest(first) < rest(last)).then_some(Step { freeze: Some(last), go: Go::Thaw(first) })
    }

    /// The place of a running task of the last of these bags that has one.
    fn last_that_runs(&self, bags: &[BagId]) -> Option<usize> {
        bags.iter().rev().find_map(|&bag| self.places.last_that_runs(bag))
    }

    fn take_step(&mut self, step: Step, io: &mut Io) {
        if let Some((place, task)) = step.freeze.and_then(|place| Some((place, self.places.freeze(place, io.now)?))) {
            io.effects.push(Effect::FreezeTask { place: place as u32, task });
        }
        match step.go {
            Go::Thaw(place) => {
                let Some(task) = self.places.thaw(place, io.now) else { return };
                io.effects.push(Effect::ThawTask { place: place as u32, task });
            }
            Go::Start(place, task) => {
                let Some(held) = self.held.get_mut(&task.bag) else { return };
                held.waiting.remove_index(task.index);
                held.running.insert_index(task.index);
                let attempt = held.attempt_of(task.index);
                self.places.begin(place, task, attempt, io.now);
                let (bag, checkpoint) = (held.bag.clone(), held.checkpoints.get(&task.index).copied());
                io.effects.push(Effect::StartTask { place: place as u32, task, attempt, bag, checkpoint });
            }
        }
    }

    /// Sorts the bags by the deadlines that the smallest feasible maximum stretch gives them (paper §4).
    pub(super) fn reorder(&mut self, now: Time) {
        let (load, bags) = self.load(now, |_| true);
        let order = load.order(max_stretch_exact(&load));
        let mut seen = BTreeSet::new();
        self.order = order.into_iter().map(|position| bags[position]).filter(|&bag| seen.insert(bag)).collect();
    }

    /// The queue in plain numbers, in the order of bag ids, and whose each entry is; bags with nothing left to do
    /// included on demand. On several slots the tasks that are partly done stand behind, each as an entry of its own.
    ///
    /// Once a newcomer could no longer freeze everything that runs, what runs comes first here, as without preemption:
    /// nothing is promised that the limit on frozen tasks would break.
    pub(super) fn load(&self, now: Time, include: impl Fn(&Held) -> bool) -> (Load, Vec<BagId>) {
        let begun = || self.places.begun().filter(|running| !running.stopping);
        let frozen_max = self.places.frozen_max();
        let preemptive = frozen_max > 0 && begun().count() <= frozen_max;
        let mut begun_mops: BTreeMap<BagId, f64> = BTreeMap::new();
        let mut parts = Vec::new();
        for running in begun().filter(|running| preemptive || running.frozen) {
            let rest_mops = self.rest_mops(running, now).max(WORK_MOPS_MIN);
            match self.held.get(&running.task.bag) {
                // Several tasks that are partly done: not one task and a fraction.
                Some(held) if self.places.slots() > 1 => parts.push((held.entry(rest_mops, 1.0), held.bag.id)),
                Some(_) => *begun_mops.entry(running.task.bag).or_default() += rest_mops,
                None => {}
            }
        }
        let bags = self.held.values().filter(|held| include(held)).map(|held| {
            let begun_mops = begun_mops.get(&held.bag.id).copied().unwrap_or(0.0);
            let left = held.waiting.len() as f64 + begun_mops / held.task_mops();
            (held.entry(held.task_mops(), left), held.bag.id)
        });
        let (entries, bags) = bags.chain(parts).unzip();
        let first = begun().filter(|running| !preemptive && !running.frozen);
        let load = Load {
            now_s: now.as_secs_f64(),
            speed_mops: self.speed_mops,
            slots: self.places.slots() as u32,
            preemptive,
            running_mops: first.map(|running| self.rest_mops(running, now)).collect(),
            entries,
        };
        (load, bags)
    }

    /// Work left in a task that has begun.
    fn rest_mops(&self, running: &Running, now: Time) -> f64 {
        let whole = self.held.get(&running.task.bag).map_or(0.0, |held| held.task_mops());
        (whole - running.active(now).as_secs_f64() * self.speed_mops).max(whole * OVERRUN_REST)
    }

    /// Whether a task that ends now took about as long as the summary has it: then time alone changes what this leaf offers, but
    /// for the number of its idle slots.
    pub(super) fn ends_as_expected(&self, running: &Running, now: Time) -> bool {
        let Some(held) = self.held.get(&running.task.bag) else { return false };
        let deviation = held.task_mops() - running.active(now).as_secs_f64() * self.speed_mops;
        held.bag.declared && deviation.abs() <= held.task_mops() * OVERRUN_REST
    }

    /// How long it takes to do everything that is held.
    pub(crate) fn busy_for(&self, now: Time) -> Duration {
        let (load, _) = self.load(now, |_| true);
        let queued_mops: f64 = load.entries.iter().map(Entry::left_mops).chain(load.running_mops).sum();
        Duration::try_from_secs_f64(queued_mops / (load.speed_mops * f64::from(load.slots))).unwrap_or(Duration::MAX)
    }

    /// What this leaf offers now.
    pub(crate) fn summary(&mut self, now: Time) -> Summary {
        let mut summary = if self.is_suspended() || self.rest.until().is_some() {
            Summary::unavailable()
        } else {
            Summary::of_leaf(&self.load(now, |held| !held.unfinished_is_empty()).0)
        };
        summary.longest_wait_s = summary::wait_s(self.wait_s());
        self.stretch = summary.maximum_stretch;
        summary
    }
}
