//! The executor: the leaf's queue, its slots, and what it owes to submitters.
//!
//! Entries are kept per bag. The queue runs by earliest deadline first with the deadlines of the smallest feasible
//! maximum stretch (paper §4), and is reordered when bags arrive or leave. A running task comes first and is never
//! preempted (preemption by freezing is for later; the freeze itself is the owner's). Whatever is accepted is
//! durable before the submitter hears of it, and whatever is finished is kept until the submitter acknowledges it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use crate::bag::{AGE_MAX, BagHeader, BagId, Path, Request, TaskId, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::{Message, RESULTS_MAX};
use crate::peer::{Effect, TaskOutcome};
use crate::queue::{Entry, Load, WORK_MOPS_MIN};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};
use crate::stretch::max_stretch_exact;
use crate::summary::Summary;

/// How many requests are remembered so that none is executed twice (invariant I7).
const SEEN_MAX: usize = 4096;
/// Starts of a bag that may fail in a row before its tasks go to another machine. Our choice.
const NOT_STARTED_MAX: u32 = 3;
/// A task that ran longer than its declared work counts as this much still to do, as a share of its work: nobody
/// knows how long it will go on, and zero would promise its slot to others.
const OVERRUN_REST: f64 = 0.1;

/// A task in a slot.
#[derive(Debug)]
struct Running {
    task: TaskId,
    attempt: u32,
    /// Time it has run, without what is counted from `since`.
    active: Duration,
    /// When it last began to run; `None` while frozen.
    since: Option<Time>,
    /// Its worker has been told to stop.
    stopping: bool,
}

/// A bag's part on this machine.
#[derive(Debug)]
struct Held {
    bag: BagHeader,
    released: Time,
    attempt: u32,
    waiting: IntervalSet,
    running: IntervalSet,
    outbox: BTreeMap<u64, TaskResult>,
    /// Number and summed work of the tasks finished here.
    finished: (u64, f64),
    /// Not startable before then: its program could not be had.
    blocked_until: Time,
    /// Tasks in a row that could not be started.
    not_started: u32,
    /// Of the last `Holding` sent.
    version: u64,
    holding_due: Time,
    holding_wait: Duration,
    results_due: Time,
    results_wait: Duration,
    /// Where the next repetition of results begins, so that each has its turn.
    results_from: u64,
}

impl Held {
    fn new(bag: BagHeader, released: Time, config: &Config) -> Self {
        Self {
            bag,
            released,
            attempt: 0,
            waiting: IntervalSet::new(),
            running: IntervalSet::new(),
            outbox: BTreeMap::new(),
            finished: (0, 0.0),
            blocked_until: Time::ZERO,
            not_started: 0,
            version: 0,
            holding_due: Time::ZERO,
            holding_wait: config.repeat_after,
            results_due: Time::ZERO,
            results_wait: config.repeat_after,
            results_from: 0,
        }
    }

    /// Everything this machine accounts for.
    fn ranges(&self) -> IntervalSet {
        let mut ranges = self.waiting.union(&self.running);
        for &index in self.outbox.keys() {
            ranges.insert_index(index);
        }
        ranges
    }

    fn unfinished(&self) -> IntervalSet {
        self.waiting.union(&self.running)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.outbox.is_empty()
    }

    /// a as known here: declared, or corrected by what finished tasks showed.
    fn task_mops(&self) -> f64 {
        match self.finished {
            (count, sum) if !self.bag.declared && count > 0 => (sum / count as f64).max(WORK_MOPS_MIN),
            _ => self.bag.task_mops,
        }
    }

    /// Forgets failures of earlier attempts at these tasks: their submitter wants another.
    fn supersede(&mut self, attempt: u32, ranges: &IntervalSet) -> Vec<Change> {
        let old = |result: &TaskResult| !result.success && result.attempt < attempt && ranges.contains(result.index);
        let bag = self.bag.id;
        let gone: Vec<u64> = self.outbox.values().filter(|result| old(result)).map(|result| result.index).collect();
        self.outbox.retain(|_, result| !old(result));
        gone.into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect()
    }

    /// What must be in the store for the tasks that are not finished.
    fn change(&self, io: &Io) -> Change {
        let ranges = self.unfinished();
        if ranges.is_empty() {
            return Change::Delete(RecordKey::Held(self.bag.id));
        }
        Change::Put(Record::Held {
            bag: self.bag.clone(),
            released: io.wall(self.released),
            attempt: self.attempt,
            ranges,
        })
    }

    /// The next `Holding`, whose answer is expected within a growing time.
    fn holding(&mut self, version: u64, io: &Io, config: &Config) -> Message {
        self.version = version;
        self.holding_due = io.now + self.holding_wait;
        self.holding_wait = (self.holding_wait * 2).min(config.lease / 3);
        Message::Holding {
            bag: self.bag.id,
            executor: io.me.clone(),
            version,
            attempt: self.attempt,
            ranges: self.ranges(),
        }
    }

    /// Unstarted tasks go back to the submitter: the next `Holding` no longer lists them.
    fn hand_back(&mut self, version: u64, io: &mut Io, config: &Config) {
        self.waiting = IntervalSet::new();
        self.holding_wait = config.repeat_after;
        let change = self.change(io);
        let (to, message) = (self.bag.submitter.clone(), self.holding(version, io, config));
        io.persist_held(self.bag.id, vec![change], vec![Then::Send(to, message)]);
    }

    /// Some of the unacknowledged results; the next call begins behind them.
    fn repeat_results(&mut self) -> Vec<TaskResult> {
        let behind = self.outbox.range(self.results_from..);
        let results: Vec<TaskResult> = behind
            .chain(self.outbox.range(..self.results_from))
            .take(RESULTS_MAX)
            .map(|(_, result)| result.clone())
            .collect();
        self.results_from = results.last().map_or(0, |result| result.index.saturating_add(1));
        results
    }
}

/// The answer to a `Holding`, or an unasked word of a submitter.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) bag: BagId,
    pub(crate) version: u64,
    pub(crate) submitter: Option<Contact>,
    pub(crate) term: Duration,
    pub(crate) drop: IntervalSet,
}

/// The executor of one peer.
#[derive(Debug)]
pub(crate) struct Executor {
    slots: Vec<Option<Running>>,
    held: BTreeMap<BagId, Held>,
    /// Bags by deadline; stale when `order_stale`.
    order: Vec<BagId>,
    order_stale: bool,
    suspended: bool,
    /// When unstarted tasks are handed back, while suspended.
    vacate_at: Option<Time>,
    /// Of the last `Holding`, of whatever bag: a bag that comes again must not be taken for an old word.
    version: u64,
    seen: VecDeque<(BagId, u64, Path)>,
    speed_mops: f64,
    /// Availability changed since this was last reset.
    pub(crate) changed: bool,
}

/// A task in a slot, for those who ask.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningTask {
    /// Which slot, from 0.
    pub slot: u32,
    /// Which task.
    pub task: TaskId,
    /// 0 for the first try.
    pub attempt: u32,
    /// Time it has run, frozen time left out.
    pub active: Duration,
    /// Whether it is frozen now.
    pub frozen: bool,
}

/// A bag's part on this machine, for those who ask.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldView {
    /// Which bag.
    pub bag: BagId,
    /// Tasks not started.
    pub waiting: u64,
    /// Tasks started.
    pub running: u64,
    /// Tasks finished whose result the submitter has not acknowledged.
    pub unacknowledged: u64,
}

impl Executor {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            slots: (0..config.slots).map(|_| None).collect(),
            held: BTreeMap::new(),
            order: Vec::new(),
            order_stale: false,
            suspended: false,
            vacate_at: None,
            version: 0,
            seen: VecDeque::new(),
            speed_mops: config.speed_mops,
            changed: true,
        }
    }

    /// Takes back what was accepted before a restart; the submitter hears of it at the first deadline.
    pub(crate) fn restore_held(
        &mut self,
        bag: BagHeader,
        released: Time,
        attempt: u32,
        ranges: &IntervalSet,
        config: &Config,
    ) {
        let held = self.held.entry(bag.id).or_insert_with(|| Held::new(bag, released, config));
        held.attempt = held.attempt.max(attempt);
        held.waiting.extend_with(ranges);
        self.order_stale = true;
    }

    /// Takes back what was finished before a restart.
    pub(crate) fn restore_result(&mut self, bag: BagHeader, released: Time, result: TaskResult, config: &Config) {
        let held = self.held.entry(bag.id).or_insert_with(|| Held::new(bag, released, config));
        held.waiting.remove_index(result.index);
        held.outbox.insert(result.index, result);
    }

    /// A request reached this leaf: everything new in it joins the queue. Never refused (paper §6).
    pub(crate) fn accept(&mut self, request: Request, io: &mut Io, config: &Config) {
        let id = request.bag.id;
        let released = io.now - request.age.min(AGE_MAX);
        let submitter = request.bag.submitter.clone();
        let held = self.held.entry(id).or_insert_with(|| Held::new(request.bag, released, config));
        if submitter.peer == held.bag.submitter.peer && submitter.incarnation > held.bag.submitter.incarnation {
            held.bag.submitter = submitter;
        }
        let key = (id, request.number, request.path);
        let mut changes = Vec::new();
        if !self.seen.contains(&key) {
            if self.seen.len() == SEEN_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back(key);
            held.attempt = held.attempt.max(request.attempt);
            changes = held.supersede(request.attempt, &request.ranges);
            held.waiting.extend_with(&request.ranges.difference(&held.ranges()));
        }
        held.holding_wait = config.repeat_after;
        changes.push(held.change(io));
        self.version += 1;
        let (to, message) = (held.bag.submitter.clone(), held.holding(self.version, io, config));
        io.persist_held(id, changes, vec![Then::Send(to, message)]);
        if self.suspended && self.vacate_at.is_none() {
            self.vacate_at = Some(io.now + config.vacate_after);
        }
        self.order_stale = true;
        self.changed = true;
    }

    /// The submitter of a bag answers, or speaks unasked.
    pub(crate) fn lease(&mut self, from: PeerId, lease: Lease, io: &mut Io, config: &Config) {
        let Lease { bag, version, submitter, term, drop } = lease;
        let Some(held) = self.held.get_mut(&bag).filter(|held| held.bag.submitter.peer == from) else { return };
        if let Some(submitter) = submitter.filter(|submitter| submitter.peer == from) {
            held.bag.submitter = submitter;
        }
        // An answer to an older word is no reason to speak again, since the newer word is on its way: two of them would
        // keep each other alive for ever.
        if version == 0 {
            // Unasked: what the submitter knows may be older than what is here.
            held.holding_due = io.now;
        } else if version == held.version {
            held.holding_wait = config.repeat_after;
            held.holding_due = io.now + term.max(Duration::from_secs(1)) / 3;
        }
        if drop.is_empty() {
            if version == held.version {
                self.forget_if_empty(bag);
            }
            return;
        }
        held.waiting.subtract(&drop);
        let mut changes: Vec<Change> = Vec::new();
        held.outbox.retain(|&index, _| {
            let keep = !drop.contains(index);
            if !keep {
                changes.push(Change::Delete(RecordKey::Outbox(bag, index)));
            }
            keep
        });
        for (slot, running) in self.slots.iter_mut().enumerate() {
            if let Some(running) = running
                && running.task.bag == bag
                && drop.contains(running.task.index)
            {
                running.stopping = true;
                held.running.remove_index(running.task.index);
                io.effects.push(Effect::StopTask { slot: slot as u32, task: running.task });
            }
        }
        changes.push(held.change(io));
        io.persist_held(bag, changes, Vec::new());
        self.forget_if_empty(bag);
        self.changed = true;
    }

    /// The submitter has journalled these results.
    pub(crate) fn acknowledged(
        &mut self,
        from: PeerId,
        bag: BagId,
        indices: &IntervalSet,
        io: &mut Io,
        config: &Config,
    ) {
        let Some(held) = self.held.get_mut(&bag).filter(|held| held.bag.submitter.peer == from) else { return };
        let acknowledged: Vec<u64> = held.outbox.keys().copied().filter(|&index| indices.contains(index)).collect();
        for index in &acknowledged {
            held.outbox.remove(index);
        }
        held.results_wait = config.repeat_after;
        let changes: Vec<_> =
            acknowledged.into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect();
        if !changes.is_empty() {
            io.persist(changes, Vec::new());
        }
        self.forget_if_empty(bag);
    }

    fn forget_if_empty(&mut self, bag: BagId) {
        if self.held.get(&bag).is_some_and(Held::is_empty) {
            self.held.remove(&bag);
            self.order_stale = true;
        }
    }

    /// A worker is free again.
    pub(crate) fn ended(&mut self, task: TaskId, outcome: TaskOutcome, io: &mut Io, config: &Config) {
        let slot = self.slots.iter_mut().find(|slot| slot.as_ref().is_some_and(|running| running.task == task));
        let Some(running) = slot.and_then(Option::take) else { return };
        self.changed = true;
        if running.stopping {
            return;
        }
        let Some(held) = self.held.get_mut(&task.bag) else { return };
        held.running.remove_index(task.index);
        match outcome {
            TaskOutcome::Finished { success, output, output_bytes, work_mops } => {
                let result = TaskResult {
                    index: task.index,
                    attempt: running.attempt,
                    success,
                    output,
                    output_bytes,
                    work_mops,
                };
                held.not_started = 0;
                held.finished.0 += 1;
                held.finished.1 += work_mops;
                if held.outbox.is_empty() {
                    held.results_due = io.now + held.results_wait;
                }
                held.outbox.insert(task.index, result.clone());
                let outbox =
                    Record::Outbox { bag: held.bag.clone(), released: io.wall(held.released), result: result.clone() };
                let results = Message::Results { bag: task.bag, executor: io.me.clone(), results: vec![result] };
                let changes = vec![Change::Put(outbox), held.change(io)];
                io.persist_held(task.bag, changes, vec![Then::Send(held.bag.submitter.clone(), results)]);
            }
            TaskOutcome::NotStarted { retry_after } => {
                held.waiting.insert_index(task.index);
                held.blocked_until = io.now + retry_after;
                held.not_started += 1;
                if held.not_started.is_multiple_of(NOT_STARTED_MAX) {
                    self.version += 1;
                    held.hand_back(self.version, io, config);
                    self.order_stale = true;
                }
            }
            TaskOutcome::Stopped => {
                held.waiting.insert_index(task.index);
            }
        }
    }

    /// The owner is back: freeze, offer nothing.
    pub(crate) fn suspend(&mut self, io: &mut Io, config: &Config) {
        if std::mem::replace(&mut self.suspended, true) {
            return;
        }
        self.vacate_at = Some(io.now + config.vacate_after);
        for running in self.slots.iter_mut().flatten() {
            if let Some(since) = running.since.take() {
                running.active += io.now.since(since);
            }
        }
        self.changed = true;
        io.effects.push(Effect::SuspendTasks);
    }

    /// The owner is away: go on.
    pub(crate) fn resume(&mut self, io: &mut Io) {
        if !std::mem::replace(&mut self.suspended, false) {
            return;
        }
        self.vacate_at = None;
        for running in self.slots.iter_mut().flatten() {
            running.since = Some(io.now);
        }
        self.changed = true;
        io.effects.push(Effect::ResumeTasks);
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Fills free slots by earliest deadline.
    pub(crate) fn dispatch(&mut self, io: &mut Io) {
        if self.is_suspended() {
            return;
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let Some((bag, index)) = self.next_task(io.now) else { return };
            let Some(held) = self.held.get_mut(&bag) else { return };
            held.waiting.remove_index(index);
            held.running.insert_index(index);
            let task = TaskId { bag, index };
            self.slots[slot] = Some(Running {
                task,
                attempt: held.attempt,
                active: Duration::ZERO,
                since: Some(io.now),
                stopping: false,
            });
            io.effects.push(Effect::StartTask {
                slot: slot as u32,
                task,
                attempt: held.attempt,
                bag: held.bag.clone(),
            });
            self.changed = true;
        }
    }

    fn next_task(&mut self, now: Time) -> Option<(BagId, u64)> {
        if std::mem::take(&mut self.order_stale) {
            self.reorder(now);
        }
        // A worker that was told to stop may still have the very task that came back: its end would be taken for
        // that of the new one.
        let is_stopping = |task| self.slots.iter().flatten().any(|running| running.stopping && running.task == task);
        self.order.iter().find_map(|&bag| {
            let held = self.held.get(&bag).filter(|held| held.blocked_until <= now)?;
            let index = held.waiting.first()?;
            (!is_stopping(TaskId { bag, index })).then_some((bag, index))
        })
    }

    /// Sorts the bags by the deadlines that the smallest feasible maximum stretch gives them (paper §4).
    fn reorder(&mut self, now: Time) {
        let bags: Vec<BagId> = self.held.keys().copied().collect();
        let load = self.load(now, |_| true);
        self.order = load.order(max_stretch_exact(&load)).into_iter().map(|position| bags[position]).collect();
    }

    /// The queue in plain numbers, in the order of bag ids; bags with nothing left to start included on demand.
    fn load(&self, now: Time, include: impl Fn(&Held) -> bool) -> Load {
        Load {
            now_s: now.as_secs_f64(),
            speed_mops: self.speed_mops,
            slots: self.slots.len() as u32,
            running_mops: self.slots.iter().flatten().map(|running| self.rest_mops(running, now)).collect(),
            entries: self
                .held
                .values()
                .filter(|held| include(held))
                .map(|held| Entry {
                    release_s: held.released.as_secs_f64(),
                    application_size_mops: held.bag.application_size_mops,
                    task_mops: held.task_mops(),
                    left: held.waiting.len() as f64,
                })
                .collect(),
        }
    }

    /// Work left in a running task.
    fn rest_mops(&self, running: &Running, now: Time) -> f64 {
        let whole = self.held.get(&running.task.bag).map_or(0.0, Held::task_mops);
        let active = running.active + running.since.map_or(Duration::ZERO, |since| now.since(since));
        (whole - active.as_secs_f64() * self.speed_mops).max(whole * OVERRUN_REST)
    }

    /// What this leaf offers now.
    pub(crate) fn summary(&self, now: Time) -> Summary {
        if self.is_suspended() {
            return Summary::unavailable();
        }
        Summary::of_leaf(&self.load(now, |held| !held.waiting.is_empty()))
    }

    /// Whether time alone changes what this leaf offers.
    pub(crate) fn has_work(&self) -> bool {
        !self.held.is_empty()
    }

    /// Does what is due: renewals, repetitions, handing back.
    pub(crate) fn tick(&mut self, io: &mut Io, config: &Config) {
        self.vacate_if_due(io, config);
        for held in self.held.values_mut() {
            if io.is_writing(held.bag.id) {
                continue;
            }
            if held.holding_due <= io.now {
                self.version += 1;
                let message = held.holding(self.version, io, config);
                io.send(held.bag.submitter.clone(), message);
            }
            if !held.outbox.is_empty() && held.results_due <= io.now {
                held.results_wait = (held.results_wait * 2).min(config.lease / 3);
                held.results_due = io.now + held.results_wait;
                let results = held.repeat_results();
                let message = Message::Results { bag: held.bag.id, executor: io.me.clone(), results };
                io.send(held.bag.submitter.clone(), message);
            }
        }
    }

    /// After the vacate time unstarted tasks go back.
    fn vacate_if_due(&mut self, io: &mut Io, config: &Config) {
        if self.vacate_at.is_none_or(|at| at > io.now) {
            return;
        }
        self.vacate_at = None;
        for held in self.held.values_mut().filter(|held| !held.waiting.is_empty()) {
            self.version += 1;
            held.hand_back(self.version, io, config);
        }
        self.order_stale = true;
    }

    /// When `tick` or `dispatch` next has something to do.
    pub(crate) fn deadline(&self, io: &Io) -> Option<Time> {
        let idle_slot = !self.is_suspended() && self.slots.iter().any(Option::is_none);
        let held = self.held.values().flat_map(|held| {
            let may_speak = !io.is_writing(held.bag.id);
            let holding = may_speak.then_some(held.holding_due);
            let results = (may_speak && !held.outbox.is_empty()).then_some(held.results_due);
            let is_blocked = held.blocked_until > io.now;
            let unblocked = (idle_slot && !held.waiting.is_empty() && is_blocked).then_some(held.blocked_until);
            [holding, results, unblocked]
        });
        held.chain([self.vacate_at]).flatten().min()
    }

    /// What runs now, by slot.
    pub(crate) fn running(&self, now: Time) -> Vec<RunningTask> {
        let tasks = self.slots.iter().enumerate().filter_map(|(slot, running)| {
            let running = running.as_ref()?;
            Some(RunningTask {
                slot: slot as u32,
                task: running.task,
                attempt: running.attempt,
                active: running.active + running.since.map_or(Duration::ZERO, |since| now.since(since)),
                frozen: running.since.is_none(),
            })
        });
        tasks.collect()
    }

    /// What is held, by bag.
    pub(crate) fn held(&self) -> Vec<HeldView> {
        let views = self.held.values().map(|held| HeldView {
            bag: held.bag.id,
            waiting: held.waiting.len(),
            running: held.running.len(),
            unacknowledged: held.outbox.len() as u64,
        });
        views.collect()
    }
}
