//! The centralised schedulers: one queue of bags; a task leaves it only when a slot is free.
//!
//! Waiting tasks are counted, not listed: a decision takes time in proportion to the number of bags, a task that of a
//! heap of the slots. Of several free slots the fastest is used first.
//!
//! If tasks have checkpoints, a task lost with its machine continues from the last one if it begins on that machine
//! again, as in the simulation; so it begins there if it can, and anew elsewhere only when no other task of its bag
//! waits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use idlewood_overlay::Time;

use super::instance::Instance;
use super::plan::{self, Job};

/// How a centralised scheduler decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The smallest maximum stretch by the paper's size, without preemption.
    MinCent,
    /// First come, first served, without preemption.
    Fcfs,
    /// The smallest maximum stretch by the effective size; a bag that comes ahead in the order freezes running tasks,
    /// at most so many per slot, which continue later where they stopped.
    MinCentPlus {
        /// Most frozen tasks of a slot.
        frozen_max: usize,
    },
}

/// Schedules the bags; returns when each was complete, none if it was not by the horizon.
pub fn schedule(instance: &Instance, policy: Policy) -> Vec<Option<Time>> {
    Centre::new(instance, policy).run()
}

/// An event; at one instant they are handled in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Occurrence {
    TaskEnds { slot: usize, serial: u64 },
    Down { machine: usize },
    Up { machine: usize },
    Arrival { bag: usize },
}

/// A task that has begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    bag: usize,
    index: u64,
    /// Remaining time, in µs, from `since` on.
    remaining_us: i64,
    /// The same by its bag's declaration, which is all that the centre knows.
    declared_us: i64,
    /// The remaining time at its beginning.
    takes_us: i64,
    since: Time,
}

impl Begun {
    /// Stops it.
    fn pause(self, now: Time) -> Self {
        let ran_us = now.as_micros() - self.since.as_micros();
        Self {
            remaining_us: (self.remaining_us - ran_us).max(1),
            declared_us: (self.declared_us - ran_us).max(1),
            ..self
        }
    }
}

/// A task that was lost with its machine.
#[derive(Clone, Copy, Debug)]
struct Lost {
    index: u64,
    /// The machine with its checkpoint, and the time covered by that, in µs.
    kept: Option<(usize, i64)>,
}

#[derive(Debug)]
struct Slot {
    machine: usize,
    speed_mops: f64,
    running: Option<Begun>,
    frozen: Vec<Begun>,
    /// Identifies the planned end of the running task.
    serial: u64,
}

/// A bag that has arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    /// That of the bag alone, in Mop.
    size: f64,
    /// n·a, in Mop.
    own_mops: f64,
    /// The bags of the same submitter that come before it in that submitter's line, in Mop.
    before_mops: f64,
    /// Index of the first task that has never begun.
    next: u64,
    waiting: u64,
    /// Running or frozen.
    begun: u64,
    /// Place in the order; the first is 0.
    rank: usize,
}

struct Centre<'a> {
    instance: &'a Instance,
    policy: Policy,
    now: Time,
    occurrences: BinaryHeap<Reverse<(Time, Occurrence)>>,
    /// First slot of each machine, and one past the last of all.
    first_slots: Vec<usize>,
    slots: Vec<Slot>,
    /// Free slots of machines that are up, the fastest first.
    idle: BTreeSet<(Reverse<u64>, usize)>,
    /// Slots whose task ended at this instant.
    freed: Vec<usize>,
    /// Machines that are up, their speed, and how many sessions each has begun.
    up: u64,
    up_mops: f64,
    begun_sessions: Vec<usize>,
    queue: Vec<Queued>,
    /// Tasks of each bag that were lost.
    lost: Vec<Vec<Lost>>,
    /// Bags in their last order; none before `head` waits.
    order: Vec<usize>,
    head: usize,
    completed: Vec<Option<Time>>,
    open: usize,
}

impl<'a> Centre<'a> {
    fn new(instance: &'a Instance, policy: Policy) -> Self {
        let mut centre = Self {
            instance,
            policy,
            now: Time::ZERO,
            occurrences: BinaryHeap::new(),
            first_slots: vec![0],
            slots: Vec::new(),
            idle: BTreeSet::new(),
            freed: Vec::new(),
            up: 0,
            up_mops: 0.0,
            begun_sessions: vec![0; instance.machines.len()],
            queue: vec![Queued::default(); instance.bags.len()],
            lost: vec![Vec::new(); instance.bags.len()],
            order: Vec::new(),
            head: 0,
            completed: vec![None; instance.bags.len()],
            open: instance.bags.len(),
        };
        for (machine, description) in instance.machines.iter().enumerate() {
            for _ in 0..description.slots {
                let speed_mops = description.speed_mops;
                centre.slots.push(Slot { machine, speed_mops, running: None, frozen: Vec::new(), serial: 0 });
            }
            centre.first_slots.push(centre.slots.len());
            if let Some(session) = description.sessions.first() {
                centre.plan(session.from, Occurrence::Up { machine });
            }
        }
        for (bag, description) in instance.bags.iter().enumerate() {
            centre.plan(description.arrival, Occurrence::Arrival { bag });
        }
        centre
    }

    fn plan(&mut self, at: Time, occurrence: Occurrence) {
        self.occurrences.push(Reverse((at, occurrence)));
    }

    fn run(mut self) -> Vec<Option<Time>> {
        while self.open > 0 {
            let Some(Reverse((at, occurrence))) = self.occurrences.pop() else { break };
            if at >= self.instance.horizon {
                break;
            }
            self.now = at;
            match occurrence {
                Occurrence::TaskEnds { slot, serial } => self.end_task(slot, serial),
                Occurrence::Down { machine } => self.go_down(machine),
                Occurrence::Up { machine } => self.go_up(machine),
                Occurrence::Arrival { bag } => self.arrive(bag),
            }
            let next = self.occurrences.peek().map(|Reverse(next)| next);
            if !next.is_some_and(|next| next.0 == at && matches!(next.1, Occurrence::TaskEnds { .. })) {
                self.occupy();
            }
        }
        self.completed
    }

    // ---- events ----

    fn arrive(&mut self, bag: usize) {
        let description = &self.instance.bags[bag];
        let width = match self.policy {
            Policy::MinCentPlus { .. } => {
                self.instance.widths.get(bag).copied().unwrap_or(description.tasks.max(self.up))
            }
            Policy::MinCent | Policy::Fcfs => description.tasks,
        };
        let own_mops = description.tasks as f64 * description.declared_mops;
        let size = width as f64 * description.declared_mops;
        self.queue[bag] = Queued { size, own_mops, waiting: description.tasks, ..Queued::default() };
        self.insert_in_line(bag);
        self.replan();
    }

    /// Where a user's bags are one application: a new bag weighs as much as itself and what is left of the smaller ones, and the
    /// larger ones weigh so much more (docs/adr/0017).
    fn insert_in_line(&mut self, new: usize) {
        let Some(&submitter) = self.instance.submitters.get(new) else { return };
        let key = |centre: &Self, bag: usize| (centre.queue[bag].own_mops, centre.instance.bags[bag].arrival, bag);
        let new_key = key(self, new);
        for bag in 0..self.queue.len() {
            let Queued { waiting, begun, own_mops, .. } = self.queue[bag];
            if bag == new || self.instance.submitters[bag] != submitter || waiting + begun == 0 {
                continue;
            }
            if key(self, bag) < new_key {
                let open = (waiting + begun) as f64 / self.instance.bags[bag].tasks as f64;
                self.queue[new].before_mops += own_mops * open;
            } else {
                self.queue[bag].before_mops += new_key.0;
            }
        }
    }

    fn go_up(&mut self, machine: usize) {
        let description = &self.instance.machines[machine];
        let session = description.sessions[self.begun_sessions[machine]];
        self.begun_sessions[machine] += 1;
        self.plan(session.to, Occurrence::Down { machine });
        self.up += 1;
        self.up_mops += description.speed_mops * f64::from(description.slots);
        for slot in self.slots_of(machine) {
            self.set_idle(slot);
        }
        self.fill();
    }

    fn go_down(&mut self, machine: usize) {
        let description = &self.instance.machines[machine];
        if let Some(session) = description.sessions.get(self.begun_sessions[machine]) {
            self.plan(session.from, Occurrence::Up { machine });
        }
        self.up -= 1;
        self.up_mops -= description.speed_mops * f64::from(description.slots);
        let mut is_lost = false;
        for index in self.slots_of(machine) {
            let slot = &mut self.slots[index];
            slot.serial += 1;
            let key = (Reverse(slot.speed_mops.to_bits()), index);
            let running = slot.running.take().map(|run| run.pause(self.now));
            for run in running.into_iter().chain(slot.frozen.drain(..)) {
                let done_us = run.takes_us - run.remaining_us;
                let kept_us = self.instance.checkpoint_us.map_or(0, |interval_us| done_us - done_us % interval_us);
                let kept = (kept_us > 0).then_some((machine, kept_us));
                self.queue[run.bag].begun -= 1;
                self.queue[run.bag].waiting += 1;
                self.lost[run.bag].push(Lost { index: run.index, kept });
                is_lost = true;
            }
            self.idle.remove(&key);
        }
        if is_lost {
            self.replan();
        }
    }

    fn end_task(&mut self, index: usize, serial: u64) {
        let slot = &mut self.slots[index];
        if slot.serial != serial {
            return;
        }
        let Some(run) = slot.running.take() else { return };
        let bag = &mut self.queue[run.bag];
        bag.begun -= 1;
        if bag.begun == 0 && bag.waiting == 0 {
            self.completed[run.bag] = Some(self.now);
            self.open -= 1;
        }
        self.freed.push(index);
    }

    fn slots_of(&self, machine: usize) -> std::ops::Range<usize> {
        self.first_slots[machine]..self.first_slots[machine + 1]
    }

    // ---- assignment ----

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
    fn occupy(&mut self) {
        let mut freed = std::mem::take(&mut self.freed);
        freed.sort_by_key(|&index| (Reverse(self.slots[index].speed_mops.to_bits()), index));
        for &index in &freed {
            let head = self.head();
            match (self.first_frozen(index), head) {
                (Some((_, rank)), Some(head)) if self.queue[head].rank < rank => self.begin(index, head),
                (Some((number, _)), _) => self.thaw(index, number),
                (None, Some(head)) => self.begin(index, head),
                (None, None) => self.set_idle(index),
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
    fn fill(&mut self) {
        while let Some(bag) = self.head() {
            let Some((_, slot)) = self.idle.pop_first() else { return };
            self.begin(slot, bag);
        }
    }

    fn set_idle(&mut self, slot: usize) {
        self.idle.insert((Reverse(self.slots[slot].speed_mops.to_bits()), slot));
    }

    fn begin(&mut self, index: usize, bag: usize) {
        let Slot { machine, speed_mops, .. } = self.slots[index];
        self.queue[bag].waiting -= 1;
        self.queue[bag].begun += 1;
        let Lost { index: task, kept } = self.next_task(bag, machine);
        let kept_us = kept.filter(|kept| kept.0 == machine).map_or(0, |kept| kept.1);
        // The same rounding as on a simulated machine.
        let takes_us = |work_mops: f64| ((work_mops / speed_mops * 1e6).round() as i64).max(1);
        let declared_us = (takes_us(self.instance.bags[bag].declared_mops) - kept_us).max(1);
        let takes_us = takes_us(self.instance.task_mops(bag, task));
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

    fn go_on(&mut self, index: usize, run: Begun) {
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

    // ---- the order ----

    /// Orders the bags anew, and applies the new order.
    fn replan(&mut self) {
        let is_preemptive = matches!(self.policy, Policy::MinCentPlus { .. });
        // Without preemption a begun bag has no place in the order.
        let is_open = |bag: &Queued| bag.waiting > 0 || is_preemptive && bag.begun > 0;
        let mut order: Vec<usize> = (0..self.queue.len()).filter(|&bag| is_open(&self.queue[bag])).collect();
        match self.policy {
            Policy::Fcfs => order.sort_unstable(),
            Policy::MinCent | Policy::MinCentPlus { .. } => self.order_by_deadline(&mut order),
        }
        for (rank, bag) in order.iter().enumerate() {
            self.queue[*bag].rank = rank;
        }
        self.order = order;
        self.head = 0;
        self.fill();
        if let Policy::MinCentPlus { frozen_max } = self.policy {
            self.preempt(frozen_max);
        }
    }

    fn order_by_deadline(&self, order: &mut [usize]) {
        let is_preemptive = matches!(self.policy, Policy::MinCentPlus { .. });
        let mut begun_mops = vec![0.0; self.queue.len()];
        for slot in &self.slots {
            let mut add =
                |bag: usize, remaining_us: i64| begun_mops[bag] += remaining_us as f64 / 1e6 * slot.speed_mops;
            if let Some(run) = &slot.running {
                // A task that takes longer than declared seems about to end.
                add(run.bag, (run.declared_us - (self.now.as_micros() - run.since.as_micros())).max(0));
            }
            slot.frozen.iter().for_each(|run| add(run.bag, run.declared_us));
        }
        let ahead_mops = if is_preemptive { 0.0 } else { begun_mops.iter().sum() };
        let job = |&bag: &usize| {
            let Queued { size, own_mops, before_mops, waiting, .. } = self.queue[bag];
            let size = size.max(own_mops + before_mops);
            let waiting_mops = waiting as f64 * self.instance.bags[bag].declared_mops;
            let remaining_mops = waiting_mops + if is_preemptive { begun_mops[bag] } else { 0.0 };
            Job { bag, release_s: self.instance.bags[bag].arrival.as_secs_f64(), size, remaining_mops }
        };
        let mut jobs: Vec<Job> = order.iter().map(job).collect();
        // With no machine up any order will do.
        plan::order(&mut jobs, self.now.as_secs_f64(), self.up_mops.max(1.0), ahead_mops);
        for (place, job) in order.iter_mut().zip(jobs) {
            *place = job.bag;
        }
    }

    /// Freezes tasks that come later in the order than a waiting task, or than one frozen at the same slot.
    fn preempt(&mut self, frozen_max: usize) {
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
        for (Reverse(rank), _, index) in running {
            let Some(head) = self.head().filter(|&head| self.queue[head].rank < rank) else { return };
            if self.slots[index].frozen.len() < frozen_max {
                self.freeze(index);
                self.begin(index, head);
            }
        }
    }
}

#[cfg(test)]
mod tests;
