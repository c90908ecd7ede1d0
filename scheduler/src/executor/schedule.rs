//! Which task runs at which place: the order of the queue (paper §4), preemption, and the load from which the leaf's summary
//! follows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
use crate::bag::{BagId, TaskId};
use crate::io::Io;
use crate::peer::Effect;
use crate::queue::{Entry, Load, WORK_MOPS_MIN};
use crate::stretch::max_stretch_exact;
use crate::summary::{self, Summary, SummaryForm};

/// The work left in a task that has run for its declared work or longer, as a share of that work: nobody knows how long it
/// will go on, and zero would promise its slot to others.
const OVERRUN_REST: f64 = 0.1;

/// One step of dispatching.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// The place whose task is preempted first.
    pub(super) freeze: Option<usize>,
    pub(super) go: Go,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Go {
    /// The preempted task at this place goes on.
    Thaw(usize),
    /// A task begins at this place.
    Start(usize, TaskId),
    /// A slot is kept free for a task that begins at once with others elsewhere.
    Book(TaskId),
}

impl Executor {
    /// Fills free slots by earliest deadline, and preempts running tasks for bags that come ahead of theirs. On a suspended
    /// machine no task begins.
    pub(crate) fn dispatch(&mut self, io: &mut Io) {
        if self.is_suspended() {
            return self.vacate_in_time(io.now);
        }
        if std::mem::take(&mut self.order_stale) {
            self.reorder(io.now);
        }
        if !self.has_endless() {
            while let Some(step) = self.next_step(self.places.slots() - self.booked_slots(), io.now) {
                self.take_step(step, io);
            }
            return;
        }
        let endless = self.divide_slots(io.now);
        let (finite, now) = (self.places.slots() - endless, io.now);
        let next = |executor: &Self| {
            let step = executor.next_step(finite.saturating_sub(executor.booked_slots()), now);
            step.or_else(|| executor.next_endless_step(executor.unbooked(endless), now))
        };
        while let Some(step) = next(self) {
            self.note_step(step);
            self.take_step(step, io);
        }
        self.note_sides(io.now);
    }

    /// The next task of a finite bag in the order to begin or thaw on one of so many slots, and the task that is preempted for it.
    fn next_step(&self, slots: usize, now: Time) -> Option<Step> {
        let free_place = self.places.free(self.booked_slots());
        let of_finite = || self.places.begun().filter(|running| !self.is_endless(running));
        let has_slot = of_finite().filter(|running| !running.preempted).count() < slots;
        // Tasks that run and belong to bags not yet looked at.
        let mut behind = of_finite().filter(|running| running.runs()).count();
        for (rank, &bag) in self.order.iter().enumerate() {
            behind -= self.places.of(bag).filter(|running| running.runs()).count();
            if !has_slot && (behind == 0 || self.places.frozen_max() == 0) {
                return None;
            }
            if !has_slot && free_place.is_none() && self.wants_place(bag, now) {
                return self.free_a_place(&self.order[rank + 1..], now);
            }
            let Some(go) = self.next_of(bag, free_place, now) else { continue };
            let freeze = match has_slot {
                true if self.places.has_slot() => None,
                // The slot is one that endless bags had.
                true => Some(self.last_endless()?),
                false => Some(self.last_that_runs(&self.order[rank + 1..])?),
            };
            return Some(Step { freeze, go });
        }
        None
    }

    /// The next task of a bag: preempted ones come first.
    fn next_of(&self, bag: BagId, free_place: Option<usize>, now: Time) -> Option<Go> {
        if let Some((place, _)) = self.places.preempted().find(|(_, running)| running.task.bag == bag) {
            return Some(Go::Thaw(place));
        }
        let held = self.bags.get(&bag).filter(|held| held.may_begin(now))?;
        let (index, begins) = held.next_waiting()?;
        let task = TaskId { bag, index };
        // A worker that was told to stop may still have this very task, which came back meanwhile: its end would be taken for
        // that of the new start.
        let is_stopping = self.places.begun().any(|running| running.stopping && running.task == task);
        free_place.filter(|_| !is_stopping).map(|place| if begins { Go::Start(place, task) } else { Go::Book(task) })
    }

    /// Whether the next task of this bag is one that has not begun.
    fn wants_place(&self, bag: BagId, now: Time) -> bool {
        let has_frozen = self.places.of(bag).any(|running| running.preempted);
        let waits = |held: &HeldBag| held.may_begin(now) && held.next_waiting().is_some();
        !has_frozen && self.bags.get(&bag).is_some_and(waits)
    }

    /// A task that comes ahead of these bags is to begin, but no more tasks may be preempted. If some preempted task is over
    /// sooner than the last running one, they change places, so that a place is free as soon as can be. Their turns end: the
    /// task that runs has ever less left.
    fn free_a_place(&self, behind: &[BagId], now: Time) -> Option<Step> {
        let last = self.last_that_runs(behind)?;
        let rest = |place: usize| self.places.get(place).map_or(f64::INFINITY, |it| self.rest_mops(it, now));
        // A task of an endless bag would be frozen again at once for what was frozen for it.
        let frozen = self.places.preempted().filter(|(_, running)| !self.is_endless(running)).map(|(place, _)| place);
        let first = frozen.min_by(|&one, &other| rest(one).total_cmp(&rest(other)))?;
        (rest(first) < rest(last)).then_some(Step { freeze: Some(last), go: Go::Thaw(first) })
    }

    /// The place of a running task of the last of these bags that has any.
    fn last_that_runs(&self, bags: &[BagId]) -> Option<usize> {
        bags.iter().rev().find_map(|&bag| self.places.last_that_runs(bag))
    }

    pub(super) fn take_step(&mut self, step: Step, io: &mut Io) {
        if let Some((place, task)) = step.freeze.and_then(|place| Some((place, self.places.freeze(place, io.now)?))) {
            io.effects.push(Effect::FreezeTask { place: place as u32, task });
        }
        match step.go {
            Go::Thaw(place) => {
                let Some(task) = self.places.thaw(place, io.now) else { return };
                io.effects.push(Effect::ThawTask { place: place as u32, task });
            }
            Go::Book(task) => self.book(task, io.now),
            Go::Start(place, task) => {
                let Some(held) = self.bags.get_mut(&task.bag) else { return };
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

    /// The queue in plain numbers, an entry for each included bag by id, and the bag of each entry. On several slots, begun
    /// tasks follow as entries of their own.
    ///
    /// Once so many tasks have begun that a newcomer could no longer preempt all that run, running tasks come first, as without
    /// preemption: the leaf promises nothing that the limit on preempted tasks would break.
    pub(super) fn load(&self, now: Time, include: impl Fn(&HeldBag) -> bool) -> (Load, Vec<BagId>) {
        let begun = || self.places.begun().filter(|running| !running.stopping && !self.is_endless(running));
        let frozen_max = self.places.frozen_max();
        let preemptive = frozen_max > 0 && begun().count() <= frozen_max;
        let mut begun_mops: BTreeMap<BagId, f64> = BTreeMap::new();
        let mut parts = Vec::new();
        for running in begun().filter(|running| preemptive || running.preempted) {
            let rest_mops = self.rest_mops(running, now).max(WORK_MOPS_MIN);
            match self.bags.get(&running.task.bag) {
                // Several begun tasks run in parallel: they are not one task and a fraction.
                Some(held) if self.places.slots() > 1 => parts.push((held.entry(rest_mops, 1.0), held.bag.id)),
                Some(_) => *begun_mops.entry(running.task.bag).or_default() += rest_mops,
                None => {}
            }
        }
        let bags = self.finite().filter(|held| include(held)).map(|held| {
            let begun_mops = begun_mops.get(&held.bag.id).copied().unwrap_or(0.0);
            let left = held.waiting.len() as f64 + begun_mops / held.task_mops();
            (held.entry(held.task_mops(), left), held.bag.id)
        });
        let (mut entries, bags): (Vec<Entry>, Vec<BagId>) = bags.chain(parts).unzip();
        let turns = self.turns();
        for (entry, bag) in entries.iter_mut().zip(&bags).filter(|_| !turns.is_empty()) {
            if let Some(&(release_s, weight_mops)) = turns.get(bag) {
                (entry.release_s, entry.application_size_mops) = (release_s, weight_mops);
            }
        }
        let first = begun().filter(|running| !preemptive && !running.preempted);
        let load = Load {
            now_s: now.as_secs_f64(),
            speed_mops: self.speed_mops * self.finite_part(),
            slots: self.places.slots() as u32,
            preemptive,
            running_mops: first.map(|running| self.rest_mops(running, now)).collect(),
            entries,
        };
        (load, bags)
    }

    /// Work left in a begun task, in Mop.
    pub(super) fn rest_mops(&self, running: &Running, now: Time) -> f64 {
        let whole = self.bags.get(&running.task.bag).map_or(0.0, |held| held.task_mops());
        (whole - self.done_mops(running, now)).max(whole * OVERRUN_REST)
    }

    /// Whether a task that ends now took about as long as the last summary assumed: then its end changes nothing of what
    /// this leaf offers but the number of idle slots.
    pub(super) fn ends_as_expected(&self, running: &Running, now: Time) -> bool {
        let Some(held) = self.bags.get(&running.task.bag) else { return false };
        let deviation = held.task_mops() - self.done_mops(running, now);
        held.bag.declared && deviation.abs() <= held.task_mops() * OVERRUN_REST
    }

    /// How long this machine takes for all tasks in its queue that belong to these finite bags.
    pub(crate) fn busy_for(&self, now: Time, counts: impl Fn(BagId) -> bool) -> Duration {
        let waiting = self.finite().filter(|held| counts(held.bag.id));
        let waiting = waiting.map(|held| held.waiting.len() as f64 * held.task_mops());
        let begun = self.places.begun().filter(|running| !running.stopping && !self.is_endless(running));
        let begun = begun.filter(|running| counts(running.task.bag)).map(|running| self.rest_mops(running, now));
        let queued_mops: f64 = waiting.chain(begun).sum();
        Duration::try_from_secs_f64(queued_mops / (self.speed_mops() * self.finite_part())).unwrap_or(Duration::MAX)
    }

    /// The leaf's availability summary now.
    pub(crate) fn summary(&mut self, io: &Io) -> Summary {
        let mut summary = if self.is_suspended() || self.rest.until().is_some() {
            Summary::unavailable()
        } else {
            let load = self.load(io.now, |held| !held.unfinished_is_empty()).0;
            match self.summaries {
                SummaryForm::Horizons => Summary::of_leaf(&load),
                SummaryForm::Paper => {
                    let release = io.now + summary::release_in(io.wall(io.now));
                    Summary::of_leaf_at(&load, release.as_secs_f64())
                }
            }
        };
        summary.form = self.summaries;
        summary.longest_wait_s = summary::wait_s(self.wait_s());
        self.stretch = summary.maximum_stretch;
        summary
    }
}
