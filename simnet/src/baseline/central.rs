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

use super::instance::{Instance, Machine};
use super::policy::{Order, Policy};

mod assignment;
mod order;
mod owners;

/// Schedules the bags; returns when each was complete, none if it was not by the horizon.
pub fn schedule(instance: &Instance, policy: Policy<'_>) -> Vec<Option<Time>> {
    Centre::new(instance, policy).run()
}

/// An event; at one instant they are handled in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Occurrence {
    TaskEnds { slot: usize, serial: u64 },
    Down { machine: usize },
    Up { machine: usize },
    OwnerLeaves { machine: usize },
    OwnerComes { machine: usize },
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

    /// Whether this is a run of the same task.
    fn is_same(&self, other: &Self) -> bool {
        (self.bag, self.index) == (other.bag, other.index)
    }

    /// What is left of it while it runs, by its bag's declaration: one that takes longer seems about to end.
    fn declared_rest_us(&self, now: Time) -> i64 {
        (self.declared_us - (now.as_micros() - self.since.as_micros())).max(0)
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
    /// Tasks that stand still while the owner is there: the one that ran, and then frozen ones.
    held: Vec<Begun>,
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
    policy: Policy<'a>,
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
    /// Whether the owner of each is there.
    visited: Vec<bool>,
    /// Tasks that stand still behind an owner, and may have another run.
    copied: BTreeSet<(usize, u64)>,
    queue: Vec<Queued>,
    /// Tasks of each bag that were lost.
    lost: Vec<Vec<Lost>>,
    /// Bags in their last order; none before `head` waits.
    order: Vec<usize>,
    head: usize,
    completed: Vec<Option<Time>>,
    open: usize,
    /// The largest stretch of a complete bag, where that is judged.
    reached: f64,
    /// As many tasks as all slots together can have done when the slowest has done one: of so many, one begins at each idle slot.
    done_while_one_runs: u64,
}

impl<'a> Centre<'a> {
    fn new(instance: &'a Instance, policy: Policy<'a>) -> Self {
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
            visited: vec![false; instance.machines.len()],
            copied: BTreeSet::new(),
            queue: vec![Queued::default(); instance.bags.len()],
            lost: vec![Vec::new(); instance.bags.len()],
            order: Vec::new(),
            head: 0,
            completed: vec![None; instance.bags.len()],
            open: instance.bags.len(),
            reached: 0.0,
            done_while_one_runs: done_while_one_runs(instance),
        };
        for (machine, description) in instance.machines.iter().enumerate() {
            for _ in 0..description.slots {
                let speed_mops = description.speed_mops;
                centre.slots.push(Slot {
                    machine,
                    speed_mops,
                    running: None,
                    frozen: Vec::new(),
                    held: Vec::new(),
                    serial: 0,
                });
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
                Occurrence::OwnerLeaves { machine } => self.owner_leaves(machine),
                Occurrence::OwnerComes { machine } => self.owner_comes(machine),
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
        let own_mops = description.tasks as f64 * description.declared_mops;
        let width = || self.instance.widths.get(bag).copied().unwrap_or(description.tasks.max(self.up));
        let size = match self.policy.order {
            Order::Effective => width() as f64 * description.declared_mops,
            Order::Judged(sizes) => sizes[bag],
            Order::Arrival | Order::Size | Order::Application | Order::Due(_) => own_mops,
        };
        self.queue[bag] = Queued { size, own_mops, waiting: description.tasks, ..Queued::default() };
        self.insert_in_line(bag);
        self.replan();
    }

    fn go_up(&mut self, machine: usize) {
        let description = &self.instance.machines[machine];
        let session = description.sessions[self.begun_sessions[machine]];
        self.begun_sessions[machine] += 1;
        self.plan(session.to, Occurrence::Down { machine });
        self.plan_visit(machine);
        self.up += 1;
        self.up_mops += description.speed_mops * f64::from(description.slots);
        for slot in self.slots_of(machine) {
            self.set_idle(slot);
        }
        if self.policy.replans { self.replan() } else { self.fill() }
    }

    fn go_down(&mut self, machine: usize) {
        let description = &self.instance.machines[machine];
        if let Some(session) = description.sessions.get(self.begun_sessions[machine]) {
            self.plan(session.from, Occurrence::Up { machine });
        }
        self.up -= 1;
        if !std::mem::take(&mut self.visited[machine]) {
            self.up_mops -= description.speed_mops * f64::from(description.slots);
        }
        let mut is_lost = false;
        for index in self.slots_of(machine) {
            let slot = &mut self.slots[index];
            slot.serial += 1;
            let key = (Reverse(slot.speed_mops.to_bits()), index);
            // What stood still here waits already, or goes on elsewhere.
            slot.held.clear();
            let running = slot.running.take().map(|run| run.pause(self.now));
            let lost: Vec<Begun> = running.into_iter().chain(slot.frozen.drain(..)).collect();
            for run in lost {
                if self.goes_on_elsewhere(&run) {
                    continue;
                }
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
        self.stop_copies(&run);
        let bag = &mut self.queue[run.bag];
        bag.begun -= 1;
        let is_complete = bag.begun == 0 && bag.waiting == 0;
        if is_complete {
            self.completed[run.bag] = Some(self.now);
            self.open -= 1;
            if let Order::Judged(sizes) = self.policy.order {
                let took = self.now.since(self.instance.bags[run.bag].arrival);
                self.reached = self.reached.max(took.as_secs_f64() / sizes[run.bag]);
            }
        }
        self.freed.push(index);
    }

    fn slots_of(&self, machine: usize) -> std::ops::Range<usize> {
        self.first_slots[machine]..self.first_slots[machine + 1]
    }
}

/// As many tasks as all slots together can have done when the slowest has done one.
fn done_while_one_runs(instance: &Instance) -> u64 {
    let slowest = instance.machines.iter().map(|machine| machine.speed_mops).fold(f64::INFINITY, f64::min);
    let of = |machine: &Machine| (machine.speed_mops / slowest).ceil() as u64 * u64::from(machine.slots);
    instance.machines.iter().map(of).sum()
}

#[cfg(test)]
mod tests;
