//! The executor: the leaf's queue, its slots, and the results that submitters have not acknowledged.
//!
//! The queue has one entry per bag. It runs by earliest deadline first with the deadlines of the smallest feasible maximum
//! stretch (paper §4), and is reordered when bags arrive or leave, not when single tasks end. Accepted tasks are durable
//! before the submitter hears of them, and results are kept until the submitter acknowledges them.
//!
//! Preemption by freezing (ours, `docs/design/scheduler.md`): a bag that comes ahead of the bag of a running task freezes
//! the running task of the last bag in the order. That task goes on later where it stopped, before the tasks of its bag
//! that have not begun. A frozen task keeps its worker, so there are more *places* than slots: at most one task per slot
//! runs, and at most [`Config::frozen_max`] tasks per slot are preempted; at that limit, newcomers wait. Submitters and
//! routers see a preempted task as one that has begun. The owner's return freezes all tasks, preempted or not, and is
//! another matter (`suspension`).
//!
//! A bag queues only when the driver has authorised it (`admission`).
//!
//! Left out: a limit by the tasks' memory instead of their number.

mod admission;
mod bags_before;
mod booking;
mod endless;
mod held_bag;
mod held_bags;
#[cfg(debug_assertions)]
mod invariants;
mod keepers;
mod learning;
mod offering;
mod outbox;
mod places;
mod priority;
mod rating;
mod rest;
mod schedule;
mod sending;
mod sharing;
mod sides;
mod submitters;
mod suspension;
#[cfg(test)]
mod tests;
mod updates;
mod vacating;
mod views;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use self::admission::Unauthorised;
use self::endless::EndlessBags;
use self::held_bag::HeldBag;
use self::held_bags::HeldBags;
use self::learning::Slowness;
use self::places::Places;
use self::rest::Rest;
use self::sharing::{OVERDUE, OVERDUE_MIN, Sharing};
use self::suspension::Suspension;
pub use self::views::{HeldView, RunningTask};
use crate::bag::{AGE_MAX, BagHeader, BagId, BagKey, Checkpoint, Request, TaskId, TaskResult};
use crate::config::{Config, PerSubmitter};
use crate::enclosed::Enclosed;
use crate::factors::Factors;
use crate::io::{Io, Then};
use crate::message::{Lease, Message};
use crate::pace::Pace;
use crate::peer::{Effect, TaskOutcome};
use crate::ranges::IntervalSet;
use crate::recent::Recent;
use crate::record::{Change, RecordKey};
use crate::rounds::BOOKED;
use crate::summary::SummaryForm;

/// After so many failed starts of a bag in a row, its unstarted tasks go to another machine. Our choice.
const FAILED_STARTS_MAX: u32 = 3;
/// Most bags on one machine. Our choice: many times what grids have, and the queue is still sorted within milliseconds.
const BAGS_MAX: usize = 4096;

/// The executor of one peer.
#[derive(Debug)]
pub(crate) struct Executor {
    places: Places,
    suspension: Suspension,
    rest: Rest,
    sharing: Sharing,
    per_submitter: PerSubmitter,
    summaries: SummaryForm,
    bags: HeldBags,
    unauthorised: Unauthorised,
    /// Tasks that went back since their submitter did not answer for their bag in time; a counter.
    unspoken: u64,
    /// Bags by deadline; stale when `order_stale`.
    order: Vec<BagId>,
    order_stale: bool,
    /// Version of the last `Holding` of any bag: shared by all, so that the versions of a bag rise also when it leaves this
    /// machine and comes again.
    version: u64,
    /// Results of this machine's own bags that its ledger is being given, and that are not stored here.
    own_results: Vec<TaskId>,
    /// Bags that have left since the last tick, and have records of whom this machine obeyed.
    obeyed_before: Vec<BagId>,
    seen: Recent,
    endless: EndlessBags,
    /// By what factor each program takes longer here than was said.
    factors: Factors,
    slowness: Slowness,
    /// Speed of a slot as the driver says, in Mop/s.
    told_mops: f64,
    /// The same divided by the slowness: what predictions take.
    speed_mops: f64,
    /// The smallest feasible maximum stretch, as last published.
    stretch: f64,
    /// Availability changed since this was last reset.
    pub(crate) changed: bool,
    /// Availability only grew, and tasks are left to do: the report of it may be delayed.
    pub(crate) availability_grew: bool,
}

impl Executor {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            places: Places::new(config),
            suspension: Suspension::new(config.vacate_after),
            rest: Rest::default(),
            sharing: Sharing::default(),
            per_submitter: config.per_submitter,
            summaries: config.summaries,
            bags: HeldBags::default(),
            unauthorised: Unauthorised::default(),
            unspoken: 0,
            order: Vec::new(),
            order_stale: false,
            version: 0,
            own_results: Vec::new(),
            obeyed_before: Vec::new(),
            seen: Recent::default(),
            endless: EndlessBags::new(config.endless_share),
            factors: Factors::default(),
            slowness: Slowness::default(),
            told_mops: config.speed_mops,
            speed_mops: config.speed_mops,
            stretch: 0.0,
            changed: true,
            availability_grew: false,
        }
    }

    /// Restores a bag's unfinished tasks from their record, with the attempts of those that were issued again. The submitter
    /// gets a `Holding` of them at the first deadline.
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
        let held = self.bags.get_or_insert_with(id, || HeldBag::new(bag, released, config));
        held.spoken_for = true;
        held.waiting.extend_with(ranges);
        held.set_attempt(attempt, &IntervalSet::new());
        for (attempt, tasks) in attempts {
            held.set_attempt(*attempt, &tasks.intersection(ranges));
        }
        held.checkpoints = checkpoints;
        self.insert_in_line(id);
        self.order_stale = true;
    }

    /// Restores an unacknowledged result from its record.
    pub(crate) fn restore_result(&mut self, bag: BagHeader, released: Time, result: TaskResult, config: &Config) {
        let held = self.bags.get_or_insert_with(bag.id, || HeldBag::new(bag, released, config));
        held.spoken_for = true;
        held.waiting.remove_index(result.index);
        let (index, attempt) = (result.index, result.attempt);
        held.outbox.insert(result);
        held.outbox.written(index, attempt);
    }

    /// Queues the new tasks of a request for an authorised bag. A long queue is no reason to refuse it (paper §6). It is
    /// dropped where it contradicts the bag held here, or where the bag's tasks here would no longer fit in one message and
    /// one record; the submitter then issues the tasks again. At [`BAGS_MAX`] bags, one that its submitter has not spoken
    /// for gives way.
    ///
    /// Tasks of a bag that is new here begin before `fresh_until`. After that they begin only once the submitter has spoken for
    /// the bag, and it is asked at once.
    fn queue(&mut self, request: Request, fresh_until: Option<Time>, io: &mut Io, config: &Config) {
        let request = if request.copy.is_some() { self.worth_copying(request, io) } else { Some(request) };
        let request = request.and_then(|request| self.beginning_in_time(request, io));
        let Some(request) = request.and_then(|request| self.within_quota(request, io, config)) else { return };
        let id = request.bag.id;
        if let Some(held) = self.bags.get(&id).filter(|held| !held.agrees_with(&request.bag)) {
            if held.spoken_for {
                return;
            }
            // One of the two is invented. The submitter has not spoken for the one held here; it may speak for the new one.
            let invented = held.ranges();
            self.seen.forget(id);
            self.give_up(id, &invented, io);
        }
        if !self.bags.contains_key(&id) && self.bags.len() >= BAGS_MAX {
            // Anybody can invent bags: one that no submitter has spoken for gives way.
            let Some((&invented, held)) = self.bags.iter().find(|(_, held)| !held.spoken_for) else { return };
            let ranges = held.ranges();
            self.seen.forget(invented);
            self.give_up(invented, &ranges, io);
        }
        if self.bags.get(&id).is_some_and(|held| !held.has_room_for(&request)) {
            return;
        }
        let released = io.now - request.age.min(AGE_MAX);
        let (keeper, acting) = (request.keeper().clone(), request.acting.clone());
        let at_once = request.begins_within == Some(BOOKED);
        let (writers, leads) = (request.writers(), request.leads || at_once);
        let pace = Pace::new(writers.answer_within(), &io.me, &id.0);
        let is_new = self.seen.insert(&request);
        let is_first = !self.bags.contains_key(&id);
        let is_endless = request.bag.is_endless();
        let mut came = 0;
        let held = self.bags.get_or_insert_with(id, || HeldBag::new(request.bag, released, config));
        if is_first {
            held.fresh_until = fresh_until;
            held.slowness = self.slowness.times();
        }
        let mut changes: Vec<Change> = acting.and_then(|acting| held.hear(&acting, io, config)).into_iter().collect();
        if is_new {
            // Where tasks wait, another request does not extend their time.
            if held.waiting.is_empty() {
                held.fresh_until = held.fresh_until.map(|until| until.max(io.now));
            }
            held.updates.take_pace(writers, pace);
            held.set_attempt(request.attempt, &request.ranges);
            changes.extend(held.supersede(request.attempt, &request.ranges));
            let new = request.ranges.difference(&held.ranges());
            held.take_checkpoints(&new, &request.checkpoints, io.now);
            held.overdue_at = held.overdue();
            held.waiting.extend_with(&new);
            held.booking.came(&new, &held.waiting, at_once, io.now);
            came = new.len();
        }
        held.updates.requested(request.begins_within.is_some(), config);
        changes.push(held.record_change(io));
        self.version += 1;
        // A request may know a newer address of its submitter, or lie: one `Holding` goes there, and the `Lease` that
        // answers it decides.
        let known = held.keepers.contact();
        let is_known = held.spoken_for && (keeper.peer != known.peer || keeper.incarnation <= known.incarnation);
        let to = if is_known { known.clone() } else { keeper };
        let mut then = Vec::new();
        let takes_a_link = to.peer != io.me.peer;
        if is_new && takes_a_link && to == *held.keepers.contact() && !pace.is_none() && !leads {
            // Where no task may begin before the submitter has answered, `Holding` is sent at once.
            let fresh_until = held.fresh_until.filter(|_| !held.spoken_for);
            held.updates.send_holding_by(self.version, pace.next(io.now).min(fresh_until.unwrap_or(Time::MAX)));
        } else {
            then.push(Then::Send(to, held.new_holding(self.version, io, config)));
        }
        io.persist_held(id, changes, then);
        if is_endless {
            self.note_came(id, came, io.me.peer);
            self.changed |= is_first;
            return;
        }
        if is_first {
            self.insert_in_line(id);
        }
        if is_new {
            let overdue_at = io.now + OVERDUE * self.busy_for(io.now, |_| true).max(OVERDUE_MIN).min(AGE_MAX);
            self.bags.get_mut(&id).into_iter().for_each(|held| held.overdue_at = held.overdue_at.max(Some(overdue_at)));
        }
        self.order_stale = true;
        self.changed = true;
        self.make_way(id, io, config);
    }

    /// A `Lease` arrived, asked for or not: ignored unless `from` is the bag's submitter. Drops tasks if it was not asked for
    /// (version 0), or answers the last `Holding`.
    pub(crate) fn lease(&mut self, from: PeerId, lease: Lease, io: &mut Io, config: &Config) {
        let Lease { bag, version, submitter, term, drop, rest, key, manifest, sizes, withheld } = lease;
        let Some(held) = self.bags.get_mut(&bag).filter(|held| held.keepers.is_obeyed(from)) else { return };
        held.keepers.answered();
        if let Some(keeper) = submitter.map(|submitter| submitter.contact(from)) {
            held.keepers.moved(&keeper);
            if held.bag.submitter.peer == from {
                held.bag.submitter = keeper;
            }
        }
        held.spoken_for = true;
        held.key = key.or(held.key);
        if !manifest.is_empty() {
            held.manifest = manifest;
        }
        let are_corrected = sizes.is_some_and(|sizes| held.correct_sizes(sizes));
        let priority = sizes.map_or(held.priority, |sizes| sizes.priority);
        let is_reordered = std::mem::replace(&mut held.priority, priority) != priority;
        if are_corrected || is_reordered {
            let change = held.record_change(io);
            io.persist_held(bag, vec![change], Vec::new());
        }
        self.changed |= self.rest.is_told_to(rest, io.now);
        // An answer to an older `Holding` triggers no new one, since the newer is on its way: else the two machines would
        // answer each other for ever.
        if version == 0 {
            // Unasked: the submitter may not know all tasks held here.
            held.updates.send_holding_now(io.now);
        } else if version == held.updates.version() {
            held.lease_extended(term, io, config);
        } else {
            // A request may have placed these tasks here again since that `Holding`: the submitter's answer to the newer one decides.
            return self.moved(are_corrected, is_reordered, bag, io.now);
        }
        self.moved(are_corrected, is_reordered, bag, io.now);
        if !drop.is_empty() {
            self.give_up(bag, &drop, io);
        } else if version != 0 {
            self.forget_if_empty(bag);
        }
        if withheld {
            self.give_back_unstarted(bag, io, config);
        }
    }

    /// Whether tasks of a bag are here, their results, or requests that wait to be let in.
    pub(crate) fn knows(&self, bag: BagId) -> bool {
        self.bags.get(&bag).is_some() || self.unauthorised.keeper(bag).is_some()
    }

    /// A keeper of a bag asks what this machine holds of it, which is nothing: what was here was handed to another keeper, or is lost. Silence
    /// would cost it a whole lease.
    pub(crate) fn holds_nothing(&mut self, bag: BagId, keeper: Contact, io: &mut Io) {
        self.version += 1;
        let (executor, ranges, finished) = ((&io.me).into(), IntervalSet::new(), IntervalSet::new());
        let holding =
            Message::Holding { bag, executor, version: self.version, attempt: 0, ranges, finished, capacity: None };
        io.send(keeper, holding);
    }

    /// The submitter says other sizes of a bag than requests did, if `are_corrected`, or another priority than before: the bag's place in
    /// the line and its rating follow.
    fn moved(&mut self, are_corrected: bool, is_reordered: bool, bag: BagId, now: Time) {
        if are_corrected {
            self.move_in_line(bag);
            self.rate(bag, now);
        }
        if is_reordered {
            self.move_by_priority(bag);
        }
        if are_corrected || is_reordered {
            self.order_stale = true;
            self.changed = true;
        }
    }

    /// The key to a bag's blobs, if its submitter has sent it with a `Lease`.
    pub(crate) fn bag_key(&self, bag: BagId) -> Option<BagKey> {
        self.bags.get(&bag)?.key
    }

    /// The manifest of a bag, if its submitter has enclosed it in a `Lease`.
    pub(crate) fn bag_manifest(&self, bag: BagId) -> Option<&Enclosed> {
        self.bags.get(&bag).map(|held| &held.manifest).filter(|manifest| !manifest.is_empty())
    }

    /// A `Renewed` arrived: the leases of these bags are extended, if `from` is their submitter and it answers the last
    /// `Holding`.
    pub(crate) fn renewed(
        &mut self,
        from: PeerId,
        bags: &[(BagId, u64)],
        term: Duration,
        io: &mut Io,
        config: &Config,
    ) {
        for (bag, version) in bags {
            let held = self.bags.get_mut(bag).filter(|held| held.keepers.is_obeyed(from));
            if let Some(held) = held.filter(|held| held.updates.is_answered() && held.updates.version() == *version) {
                held.keepers.answered();
                held.lease_extended(term, io, config);
            }
        }
    }

    /// Forgets these tasks of a bag, whether they wait, run or have ended.
    fn give_up(&mut self, bag: BagId, drop: &IntervalSet, io: &mut Io) {
        self.learn_of_stopped(bag, drop, io.now);
        let Some(held) = self.bags.get_mut(&bag) else { return };
        held.waiting.subtract(drop);
        held.offered.subtract(drop);
        held.local_checkpoints.subtract(drop);
        held.checkpoints.retain(|&index, _| !drop.contains(index));
        let gone = held.outbox.forget(|result| drop.contains(result.index));
        let mut changes: Vec<Change> =
            gone.into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect();
        held.forget_excess(io.now);
        for (place, task) in self.places.stop(|running| running.task.bag == bag && drop.contains(running.task.index)) {
            held.running.remove_index(task.index);
            io.effects.push(Effect::StopTask { place, task });
        }
        held.hurry_if_last(io);
        changes.push(held.record_change(io));
        io.persist_held(bag, changes, Vec::new());
        self.forget_if_empty(bag);
        self.changed = true;
    }

    /// A `ResultsAck` arrived: the submitter has journalled, or does not want, the results of this attempt at these tasks.
    pub(crate) fn acknowledged(
        &mut self,
        from: PeerId,
        bag: BagId,
        attempt: u32,
        indices: &IntervalSet,
        io: &mut Io,
        config: &Config,
    ) {
        let Some(held) = self.bags.get_mut(&bag).filter(|held| held.keepers.is_obeyed(from)) else { return };
        held.keepers.answered();
        // A `Holding` that listed the task after its submitter had counted the failure has placed it here again.
        let is_listed = held.lists_unsuccessful && held.outbox.has_unsuccessful(attempt, indices);
        let acknowledged = held.outbox.acknowledged(attempt, indices, io.now);
        if is_listed {
            self.version += 1;
            if held.is_empty() {
                let message = held.new_holding(self.version, io, config);
                io.send(held.keepers.contact().clone(), message);
            } else {
                held.updates.send_holding_by(self.version, held.updates.paced(io.now));
            }
        }
        held.updates.results_acknowledged(config);
        let changes: Vec<_> =
            acknowledged.into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect();
        if !changes.is_empty() {
            io.persist(changes, Vec::new());
        }
        self.forget_if_empty(bag);
    }

    fn forget_if_empty(&mut self, bag: BagId) {
        if let Some(held) = self.bags.get(&bag).filter(|held| held.is_empty()) {
            if held.keepers.has_record() {
                self.obeyed_before.push(bag);
            }
            self.bags.remove(&bag);
            self.order_stale = true;
        }
    }

    /// A task ended, and its worker is free again.
    pub(crate) fn ended(&mut self, task: TaskId, outcome: TaskOutcome, io: &mut Io, config: &Config) {
        let ran = matches!(outcome, TaskOutcome::Finished(_));
        let program = self.bags.get(&task.bag).and_then(|held| held.program).filter(|_| ran);
        let Some((running, is_first)) = self.places.end(task, program) else { return };
        if running.stopping {
            self.judge_speed(io, config);
            self.changed = true;
            return;
        }
        self.settle_charge(&running, ran, io.now);
        let is_endless = self.is_endless(&running);
        let as_expected = self.ends_as_expected(&running, io.now);
        let empties_a_slot = self.is_dry();
        let Some(held) = self.bags.get_mut(&task.bag) else { return };
        held.running.remove_index(task.index);
        // Of the paper's summaries each end of a task makes a new one (§7.2).
        let is_news = !as_expected || self.summaries == SummaryForm::Paper;
        // Of endless bags finite ones see whether there is any.
        let is_seen = !is_endless || held.unfinished_is_empty();
        self.changed |= is_seen && (!ran || is_news || empties_a_slot);
        self.availability_grew |= held.unfinished_is_empty();
        match outcome {
            TaskOutcome::Finished(finished) => {
                let (success, times, work_mops) = (finished.success, finished.times.max(1.0), finished.work_mops);
                let result = TaskResult::of(task.index, running.attempt, finished);
                self.rest.note_end(success);
                // The submitter believes a failure only of a task that it knows to be placed here: a `Holding` goes first.
                let needs_holding = !success && !held.updates.is_answered();
                self.version += u64::from(needs_holding);
                let hurries = self.suspension.is_suspended();
                let version = needs_holding.then_some(self.version);
                held.count_finished(work_mops / times);
                held.task_ended(result, running.began, version, hurries, io, config);
                if held.outbox.is_unstored(task.index) {
                    self.own_results.push(task);
                }
                if success {
                    self.learn(&running, (times, work_mops), is_first, io.now);
                }
                self.rate(task.bag, io.now);
            }
            TaskOutcome::NotStarted { retry_after } => {
                held.waiting.insert_index(task.index);
                held.blocked_until = io.now + retry_after;
                held.failed_starts += 1;
                if held.failed_starts.is_multiple_of(FAILED_STARTS_MAX) {
                    self.version += 1;
                    held.hand_back(IntervalSet::new(), self.version, io, config);
                    self.order_stale = true;
                    // Without a rest this machine, the idlest of all, would be given the same tasks again.
                    self.rest.at_least_until(io.now + config.lease);
                    self.changed = true;
                }
            }
            TaskOutcome::Stopped => {
                held.waiting.insert_index(task.index);
            }
        }
        self.judge_speed(io, config);
    }

    /// Stores the results of own bags that this machine's ledger has not taken.
    pub(crate) fn store_untaken(&mut self, is_taken: impl Fn(TaskId) -> bool, io: &mut Io) {
        for task in std::mem::take(&mut self.own_results) {
            if let Some(held) = self.bags.get_mut(&task.bag)
                && !is_taken(task)
            {
                held.store_untaken(task, io);
            }
        }
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspension.is_suspended()
    }

    /// Requests, or parts of them, that were declined.
    pub(crate) fn declined_requests(&self) -> u64 {
        self.unauthorised.declined()
    }

    /// Tasks that went back since their submitter did not answer for their bag in time.
    pub(crate) fn unspoken_tasks(&self) -> u64 {
        self.unspoken
    }

    pub(crate) fn resting_until(&self) -> Option<Time> {
        self.rest.until()
    }

    /// Whether availability changed since [`Self::changed`] and [`Self::availability_grew`] were last reset.
    pub(crate) fn availability_changed(&self) -> bool {
        self.changed || self.availability_grew
    }

    /// Whether there are bags here, so that availability changes as time passes.
    pub(crate) fn has_work(&self) -> bool {
        !self.bags.is_empty()
    }

    /// Tasks that have begun, by worker.
    pub(crate) fn running(&self, now: Time) -> Vec<RunningTask> {
        self.places.views(now)
    }

    fn preempted_of(&self, bag: BagId) -> u64 {
        self.places.of(bag).filter(|running| running.preempted).count() as u64
    }

    /// Unfinished tasks by bag.
    pub(crate) fn unfinished(&self) -> BTreeMap<BagId, IntervalSet> {
        self.bags.iter().map(|(&bag, held)| (bag, held.unfinished())).collect()
    }

    /// The bags on this machine, for the peer's view.
    pub(crate) fn held(&self) -> Vec<HeldView> {
        let views = self.bags.values().map(|held| HeldView {
            bag: held.bag.id,
            submitter: held.bag.submitter.peer,
            waiting: held.waiting.len(),
            running: held.running.len(),
            frozen: self.preempted_of(held.bag.id),
            unacknowledged: held.outbox.len() as u64,
            times_declared: held.times_declared,
        });
        views.collect()
    }
}

#[cfg(test)]
impl Executor {
    /// All tasks of a bag that are here, ended ones included, for tests.
    pub(crate) fn held_ranges(&self, bag: BagId) -> IntervalSet {
        self.bags.get(&bag).map(HeldBag::ranges).unwrap_or_default()
    }
}
