//! The executor: the leaf's queue, its slots, and what it owes to submitters.
//!
//! Entries are kept per bag. The queue runs by earliest deadline first with the deadlines of the smallest feasible
//! maximum stretch (paper §4), and is reordered when bags arrive or leave, not when single tasks end. Whatever is
//! accepted is durable before the submitter hears of it, and whatever is finished is kept until the submitter
//! acknowledges it.
//!
//! Preemption by freezing (ours, `docs/design/scheduler.md`): a bag that comes ahead of a bag whose task runs freezes the running
//! task of the last bag in the order, which goes on later where it stopped: it is before the tasks of its bag that
//! have not begun, and the order brings it back. A frozen task keeps its worker, so tasks stand at *places*, more of
//! them than slots: at most as many tasks run as there are slots, and at most [`Config::frozen_max`] per slot are
//! frozen; where that is used up, newcomers wait. To everybody else a frozen task is one that has begun. Freezing for
//! others and the owner's freezing of everything have nothing to do with each other.
//!
//! Nothing queues that the driver has not authorised (`admission`).
//!
//! Left out: a limit by the tasks' memory instead of their number.

mod admission;
mod giving;
mod held;
#[cfg(debug_assertions)]
mod invariants;
mod outbox;
mod places;
mod rating;
mod rest;
mod schedule;
mod shelf;
mod submitters;
mod suspension;
mod telling;
#[cfg(test)]
mod tests;
mod updates;
mod vacating;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use self::admission::Asked;
use self::held::Held;
use self::places::Places;
use self::rest::Rest;
use self::shelf::Shelf;
use self::suspension::Suspension;
use crate::bag::{AGE_MAX, BagHeader, BagId, BagKey, Checkpoint, Request, TaskId, TaskResult, answer_within};
use crate::config::{Config, PerSubmitter};
use crate::io::{Io, Then};
use crate::pace::Pace;
use crate::peer::{Effect, TaskOutcome};
use crate::ranges::IntervalSet;
use crate::recent::Recent;
use crate::record::{Change, RecordKey};

/// Starts of a bag that may fail in a row before its tasks go to another machine. Our choice.
const NOT_STARTED_MAX: u32 = 3;
/// Most bags on one machine. Our choice: many times what grids have, and a queue that is put in order within milliseconds.
const BAGS_MAX: usize = 4096;

/// The answer to a `Holding`, or an unasked word of a submitter.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) bag: BagId,
    pub(crate) version: u64,
    pub(crate) submitter: Option<Contact>,
    pub(crate) term: Duration,
    pub(crate) drop: IntervalSet,
    pub(crate) rest: Duration,
    pub(crate) key: Option<BagKey>,
}

/// The executor of one peer.
#[derive(Debug)]
pub(crate) struct Executor {
    places: Places,
    suspension: Suspension,
    rest: Rest,
    per_submitter: PerSubmitter,
    held: Shelf,
    asked: Asked,
    /// Tasks that went back since their submitter did not speak of their bag, which was not fresh.
    unspoken: u64,
    /// Bags by deadline; stale when `order_stale`.
    order: Vec<BagId>,
    order_stale: bool,
    /// Of the last `Holding`, of whatever bag: a bag that comes again must not be taken for an old word.
    version: u64,
    /// Results that the ledger of this very machine hears of now.
    told_here: Vec<TaskId>,
    seen: Recent,
    speed_mops: f64,
    /// The smallest maximum stretch, as last published.
    stretch: f64,
    /// Availability changed since this was last reset.
    pub(crate) changed: bool,
    /// Availability only grew, and there is still something to do: whoever is told of it can wait.
    pub(crate) eased: bool,
}

/// A task that has begun, for those who ask.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningTask {
    /// On which worker, from 0.
    pub place: u32,
    /// Which task.
    pub task: TaskId,
    /// 0 for the first try.
    pub attempt: u32,
    /// Time it has run, frozen time left out.
    pub active: Duration,
    /// Whether it is frozen now, for others or by the owner.
    pub frozen: bool,
    /// Whether it is frozen for a bag that comes ahead; the owner has no part in that.
    pub preempted: bool,
}

/// A bag's part on this machine, for those who ask.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldView {
    /// Which bag.
    pub bag: BagId,
    /// Tasks not started.
    pub waiting: u64,
    /// Tasks started, frozen ones included.
    pub running: u64,
    /// Those of them that are frozen for bags that come ahead.
    pub frozen: u64,
    /// Tasks finished whose result the submitter has not acknowledged.
    pub unacknowledged: u64,
    /// How many times their declared work its tasks take here, where that is far more; else 1.
    pub times_declared: f64,
}

impl Executor {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            places: Places::new(config),
            suspension: Suspension::new(config.vacate_after),
            rest: Rest::default(),
            per_submitter: config.per_submitter,
            held: Shelf::default(),
            asked: Asked::default(),
            unspoken: 0,
            order: Vec::new(),
            order_stale: false,
            version: 0,
            told_here: Vec::new(),
            seen: Recent::default(),
            speed_mops: config.speed_mops,
            stretch: 0.0,
            changed: true,
            eased: false,
        }
    }

    /// Takes back what was accepted before a restart, with the attempts of those that were issued again; the submitter
    /// hears of it at the first deadline.
    pub(crate) fn restore_held(
        &mut self,
        bag: BagHeader,
        released: Time,
        (attempt, attempts): (u32, &BTreeMap<u32, IntervalSet>),
        ranges: &IntervalSet,
        checkpoints: BTreeMap<u64, Checkpoint>,
        config: &Config,
    ) {
        let id = bag.id;
        let held = self.held.get_or_insert_with(id, || Held::new(bag, released, config));
        held.confirmed = true;
        held.waiting.extend_with(ranges);
        held.attempt(attempt, &IntervalSet::new());
        for (attempt, tasks) in attempts {
            held.attempt(*attempt, &tasks.intersection(ranges));
        }
        held.checkpoints = checkpoints;
        self.weigh(id);
        self.order_stale = true;
    }

    /// Takes back what was finished before a restart.
    pub(crate) fn restore_result(&mut self, bag: BagHeader, released: Time, result: TaskResult, config: &Config) {
        let held = self.held.get_or_insert_with(bag.id, || Held::new(bag, released, config));
        held.confirmed = true;
        held.waiting.remove_index(result.index);
        let (index, attempt) = (result.index, result.attempt);
        held.outbox.insert(result);
        held.outbox.written(index, attempt);
    }

    /// A request for a bag that may queue here: everything new in it does. However much there is to do it is not refused
    /// (paper §6), but where it cannot be what it says, or would leave more to account for than a message or a record
    /// holds: then its submitter issues it again. Of very many bags those go first that no submitter has spoken for.
    ///
    /// Of a bag that is new here tasks begin until `fresh_until`, and after that when its submitter has spoken of it here, which
    /// is then asked at once.
    fn queue(&mut self, request: Request, fresh_until: Option<Time>, io: &mut Io, config: &Config) {
        let Some(request) = self.within_quota(request, io, config) else { return };
        let id = request.bag.id;
        if let Some(held) = self.held.get(&id).filter(|held| !held.agrees_with(&request.bag)) {
            if held.confirmed {
                return;
            }
            // One of the two is not the bag. The first has not been spoken for by its submitter; the next may be.
            let invented = held.ranges();
            self.seen.forget(id);
            self.give_up(id, &invented, io);
        }
        if !self.held.contains_key(&id) && self.held.len() >= BAGS_MAX {
            // Anybody can invent bags.
            let Some((&invented, held)) = self.held.iter().find(|(_, held)| !held.confirmed) else { return };
            let ranges = held.ranges();
            self.seen.forget(invented);
            self.give_up(invented, &ranges, io);
        }
        if self.held.get(&id).is_some_and(|held| !held.has_room_for(&request)) {
            return;
        }
        let released = io.now - request.age.min(AGE_MAX);
        let submitter = request.bag.submitter.clone();
        let pace = Pace::new(answer_within(request.machines), &io.me, &id.0);
        let (machines, leads) = (request.machines, request.leads);
        let is_new = self.seen.insert(&request);
        let is_first = !self.held.contains_key(&id);
        let held = self.held.get_or_insert_with(id, || Held::new(request.bag, released, config));
        if is_first {
            held.fresh_until = fresh_until;
        }
        let mut changes = Vec::new();
        if is_new {
            // What waits already goes back in its time, however often somebody asks again.
            if held.waiting.is_empty() {
                held.fresh_until = held.fresh_until.map(|until| until.max(io.now));
            }
            held.updates.slow_down(machines, pace);
            held.attempt(request.attempt, &request.ranges);
            changes = held.supersede(request.attempt, &request.ranges);
            let new = request.ranges.difference(&held.ranges());
            held.go_on_from(&new, &request.checkpoints);
            held.waiting.extend_with(&new);
        }
        held.updates.requested(config);
        changes.push(held.change(io));
        self.version += 1;
        // A request may know better where its submitter is, or lie: it is answered there once, and the answer tells.
        let known = &held.bag.submitter;
        let is_known = held.confirmed && submitter.incarnation <= known.incarnation;
        let to = if is_known { known.clone() } else { submitter };
        let mut then = Vec::new();
        let takes_a_link = to.peer != io.me.peer;
        if is_new && takes_a_link && to == held.bag.submitter && !pace.is_none() && !leads {
            // At once where nothing begins before its submitter has answered.
            let fresh_until = held.fresh_until.filter(|_| !held.confirmed);
            held.updates.send_holding_by(self.version, pace.next(io.now).min(fresh_until.unwrap_or(Time::MAX)));
        } else {
            then.push(Then::Send(to, held.holding(self.version, io, config)));
        }
        io.persist_held(id, changes, then);
        if is_first {
            self.weigh(id);
        }
        self.order_stale = true;
        self.changed = true;
    }

    /// The submitter of a bag answers, or speaks unasked.
    pub(crate) fn lease(&mut self, from: PeerId, lease: Lease, io: &mut Io, config: &Config) {
        let Lease { bag, version, submitter, term, drop, rest, key } = lease;
        let Some(held) = self.held.get_mut(&bag).filter(|held| held.bag.submitter.peer == from) else { return };
        if let Some(submitter) = submitter {
            held.bag.submitter = submitter;
        }
        held.confirmed = true;
        held.key = key.or(held.key);
        self.changed |= self.rest.is_told_to(rest, io.now);
        // An answer to an older word is no reason to speak again, since the newer word is on its way: two of them would
        // keep each other alive for ever.
        if version == 0 {
            // Unasked: what the submitter knows may be older than what is here.
            held.updates.send_holding_now(io.now);
        } else if version == held.updates.version() {
            held.lease_extended(term, io, config);
        }
        if drop.is_empty() {
            if version == held.updates.version() {
                self.forget_if_empty(bag);
            }
            return;
        }
        self.give_up(bag, &drop, io);
    }

    /// What a bag's submitter has told this machine to read its blobs with.
    pub(crate) fn bag_key(&self, bag: BagId) -> Option<BagKey> {
        self.held.get(&bag)?.key
    }

    /// The submitter of these bags answers to a renewal.
    pub(crate) fn renewed(
        &mut self,
        from: PeerId,
        bags: &[(BagId, u64)],
        term: Duration,
        io: &mut Io,
        config: &Config,
    ) {
        for (bag, version) in bags {
            let held = self.held.get_mut(bag).filter(|held| held.bag.submitter.peer == from);
            if let Some(held) = held.filter(|held| held.updates.is_answered() && held.updates.version() == *version) {
                held.lease_extended(term, io, config);
            }
        }
    }

    /// Forgets these tasks of a bag, whatever they have come to.
    fn give_up(&mut self, bag: BagId, drop: &IntervalSet, io: &mut Io) {
        let Some(held) = self.held.get_mut(&bag) else { return };
        held.waiting.subtract(drop);
        held.offered.subtract(drop);
        held.kept.subtract(drop);
        held.checkpoints.retain(|&index, _| !drop.contains(index));
        let gone = held.outbox.forget(|result| drop.contains(result.index));
        let mut changes: Vec<Change> =
            gone.into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect();
        held.keep_what_can_be_told(io.now);
        for (place, task) in self.places.stop(|running| running.task.bag == bag && drop.contains(running.task.index)) {
            held.running.remove_index(task.index);
            io.effects.push(Effect::StopTask { place, task });
        }
        held.tell_if_last(io);
        changes.push(held.change(io));
        io.persist_held(bag, changes, Vec::new());
        self.forget_if_empty(bag);
        self.changed = true;
    }

    /// The submitter has journalled the results of these tasks of this attempt.
    pub(crate) fn acknowledged(
        &mut self,
        from: PeerId,
        bag: BagId,
        attempt: u32,
        indices: &IntervalSet,
        io: &mut Io,
        config: &Config,
    ) {
        let Some(held) = self.held.get_mut(&bag).filter(|held| held.bag.submitter.peer == from) else { return };
        let acknowledged = held.outbox.acknowledged(attempt, indices, io.now);
        held.updates.results_acknowledged(config);
        let changes: Vec<_> =
            acknowledged.into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect();
        if !changes.is_empty() {
            io.persist(changes, Vec::new());
        }
        self.forget_if_empty(bag);
    }

    fn forget_if_empty(&mut self, bag: BagId) {
        if self.held.get(&bag).is_some_and(|held| held.is_empty()) {
            self.held.remove(&bag);
            self.order_stale = true;
        }
    }

    /// A worker is free again.
    pub(crate) fn ended(&mut self, task: TaskId, outcome: TaskOutcome, io: &mut Io, config: &Config) {
        let Some(running) = self.places.end(task) else { return };
        if running.stopping {
            self.changed = true;
            return;
        }
        let as_expected = self.ends_as_expected(&running, io.now);
        let empties_a_slot = self.is_dry();
        let Some(held) = self.held.get_mut(&task.bag) else { return };
        held.running.remove_index(task.index);
        let finished = matches!(outcome, TaskOutcome::Finished(_));
        self.changed |= !(finished && as_expected) || empties_a_slot;
        self.eased |= held.unfinished_is_empty();
        match outcome {
            TaskOutcome::Finished(finished) => {
                let success = finished.success;
                let result = TaskResult::of(task.index, running.attempt, finished);
                self.rest.note_end(success);
                // Only of what is placed here is a failure believed.
                let speaks = !success && !held.updates.is_answered();
                self.version += u64::from(speaks);
                let at_once = self.suspension.is_suspended();
                held.finished(result, running.began, speaks.then_some(self.version), at_once, io, config);
                if held.outbox.is_unstored(task.index) {
                    self.told_here.push(task);
                }
                self.rate(task.bag, io.now);
            }
            TaskOutcome::NotStarted { retry_after } => {
                held.waiting.insert_index(task.index);
                held.blocked_until = io.now + retry_after;
                held.not_started += 1;
                if held.not_started.is_multiple_of(NOT_STARTED_MAX) {
                    self.version += 1;
                    held.hand_back(IntervalSet::new(), self.version, io, config);
                    self.order_stale = true;
                    // Offering as before, the idlest machine of all would be given the same again.
                    self.rest.at_least_until(io.now + config.lease);
                    self.changed = true;
                }
            }
            TaskOutcome::Stopped => {
                held.waiting.insert_index(task.index);
            }
        }
    }

    /// Stores results that the ledger of this very machine was told of and has not taken.
    pub(crate) fn store_untaken(&mut self, is_taken: impl Fn(TaskId) -> bool, io: &mut Io) {
        for task in std::mem::take(&mut self.told_here) {
            if let Some(held) = self.held.get_mut(&task.bag)
                && !is_taken(task)
            {
                held.store_untaken(task, io);
            }
        }
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspension.is_suspended()
    }

    /// Requests, or parts of them, that did not queue here.
    pub(crate) fn declined_requests(&self) -> u64 {
        self.asked.declined()
    }

    /// Tasks that went back since their submitter did not speak of their bag.
    pub(crate) fn unspoken_tasks(&self) -> u64 {
        self.unspoken
    }

    pub(crate) fn resting_until(&self) -> Option<Time> {
        self.rest.until()
    }

    /// Whether availability changed since [`Self::changed`] and [`Self::eased`] were last reset.
    pub(crate) fn has_news(&self) -> bool {
        self.changed || self.eased
    }

    /// Whether time alone changes what this leaf offers.
    pub(crate) fn has_work(&self) -> bool {
        !self.held.is_empty()
    }

    /// What has begun, by worker.
    pub(crate) fn running(&self, now: Time) -> Vec<RunningTask> {
        self.places.views(now)
    }

    fn frozen_of(&self, bag: BagId) -> u64 {
        self.places.of(bag).filter(|running| running.frozen).count() as u64
    }

    /// Tasks that are not over here, by bag.
    pub(crate) fn unfinished(&self) -> BTreeMap<BagId, IntervalSet> {
        self.held.iter().map(|(&bag, held)| (bag, held.unfinished())).collect()
    }

    /// What is held, by bag.
    pub(crate) fn held(&self) -> Vec<HeldView> {
        let views = self.held.values().map(|held| HeldView {
            bag: held.bag.id,
            waiting: held.waiting.len(),
            running: held.running.len(),
            frozen: self.frozen_of(held.bag.id),
            unacknowledged: held.outbox.len() as u64,
            times_declared: held.times_declared,
        });
        views.collect()
    }
}
