//! A bag's part on an executor: which of its tasks wait and run, which results are not acknowledged yet, and when its
//! submitter hears of them next.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;

use super::outbox::Outbox;
use super::updates::Updates;
use crate::bag::{BagHeader, BagKey, Checkpoint, HELD_INTERVALS_MAX, Request, TaskId, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::{Message, RESULTS_MAX};
use crate::queue::{Entry, WORK_MOPS_MAX, WORK_MOPS_MIN};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

/// Most checkpoints that tasks of a bag wait with here. Our choice: with as many intervals they are half of what a record may have.
const HELD_CHECKPOINTS_MAX: usize = 4096;

/// A bag is spared while its stretch is below this share of the grid's largest, which is known as of a second ago. Our choice.
const SPARED: f64 = 0.9;

/// A bag's part on this machine.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bag: BagHeader,
    pub(super) released: Time,
    /// The highest of those that came.
    pub(super) attempt: u32,
    /// Of tasks that came with another attempt than the first.
    attempts: BTreeMap<u32, IntervalSet>,
    /// Whether its submitter has spoken of it itself; else all there is may be somebody's invention.
    pub(super) confirmed: bool,
    /// What it has told this machine to read the bag's blobs with.
    pub(super) key: Option<BagKey>,
    /// As long as that is not so its tasks begin until then only, while its manifest is fresh; `None`: whenever it is, since
    /// it is this machine's own.
    pub(super) fresh_until: Option<Time>,
    /// As in the settings.
    placement_timeout: Duration,
    pub(super) waiting: IntervalSet,
    /// Not started here while the submitter is asked whether another machine may have them, at most until then.
    pub(super) offered: IntervalSet,
    pub(super) offered_until: Time,
    pub(super) running: IntervalSet,
    /// What tasks that wait or run came with, to go on from.
    pub(super) checkpoints: BTreeMap<u64, Checkpoint>,
    /// Tasks that began here in an earlier life and have a checkpoint here: they are not given away without it.
    pub(super) kept: IntervalSet,
    pub(super) outbox: Outbox,
    /// Number and summed work of the tasks finished here.
    pub(super) finished: (u64, f64),
    /// How many times its declared work a task takes, where that is far more (`rating`); else 1.
    pub(super) times_declared: f64,
    /// What other bags of its submitter add to its size here (`submitters`), in Mop.
    pub(super) with_mops: f64,
    /// Not startable before then: its program could not be had.
    pub(super) blocked_until: Time,
    /// Tasks in a row that could not be started.
    pub(super) not_started: u32,
    pub(super) updates: Updates,
    /// What [`Self::next_due`] was when the shelf looked last.
    pub(super) due: Option<Time>,
}

impl Held {
    pub(super) fn new(bag: BagHeader, released: Time, config: &Config) -> Self {
        Self {
            bag,
            released,
            attempt: 0,
            attempts: BTreeMap::new(),
            confirmed: false,
            key: None,
            fresh_until: None,
            placement_timeout: config.placement_timeout,
            waiting: IntervalSet::new(),
            offered: IntervalSet::new(),
            offered_until: Time::ZERO,
            running: IntervalSet::new(),
            checkpoints: BTreeMap::new(),
            kept: IntervalSet::new(),
            outbox: Outbox::default(),
            finished: (0, 0.0),
            times_declared: 1.0,
            with_mops: 0.0,
            blocked_until: Time::ZERO,
            not_started: 0,
            updates: Updates::new(config),
            due: None,
        }
    }

    /// When there is something to do: to speak of it, to take back what was offered, to give back what nobody speaks for, or to
    /// try again to start of it.
    pub(super) fn next_due(&self, now: Time) -> Time {
        let results = self.next_results();
        let offered = (!self.offered.is_empty()).then_some(self.offered_until);
        let blocked = (!self.waiting.is_empty() && self.blocked_until > now).then_some(self.blocked_until);
        [results, offered, blocked, self.unspoken_until()]
            .into_iter()
            .flatten()
            .fold(self.updates.holding_due(), Time::min)
    }

    /// Whether this can be the same bag: nothing of it ever changes but where its submitter is, and a while it
    /// is not declared.
    pub(super) fn agrees_with(&self, bag: &BagHeader) -> bool {
        let BagHeader { id, submitter, tasks, task_mops, application_size_mops, declared } = &self.bag;
        (*id, submitter.peer, *tasks, *declared) == (bag.id, bag.submitter.peer, bag.tasks, bag.declared)
            && *application_size_mops == bag.application_size_mops
            && (!declared || *task_mops == bag.task_mops)
    }

    /// Whether one message and one record can say what this machine accounts for with this request, too.
    pub(super) fn has_room_for(&self, request: &Request) -> bool {
        let unfinished = self.unfinished();
        let of_attempts: usize = self.attempts_among(&unfinished).values().map(IntervalSet::intervals).sum();
        let intervals = self.ranges().intervals().max(of_attempts) + request.ranges.intervals();
        let checkpoints = self.checkpoints_among(&unfinished).len() + request.checkpoints.len();
        intervals <= HELD_INTERVALS_MAX && checkpoints <= HELD_CHECKPOINTS_MAX
    }

    /// Forgets what waits beyond that, where some of it was dropped here and there, and says so: what its submitter is not told of
    /// it issues again.
    pub(super) fn keep_what_can_be_told(&mut self, now: Time) {
        while let Some(excess @ 1..) = self.ranges().intervals().checked_sub(HELD_INTERVALS_MAX)
            && !self.waiting.is_empty()
        {
            let left = self.waiting.intervals().saturating_sub(excess);
            self.waiting = self.waiting.ranges().take(left).collect();
            self.updates.send_holding_now(now);
        }
    }

    /// Everything this machine accounts for.
    pub(super) fn ranges(&self) -> IntervalSet {
        let mut ranges = self.unfinished();
        for index in self.outbox.indices() {
            ranges.insert_index(index);
        }
        ranges
    }

    pub(super) fn unfinished(&self) -> IntervalSet {
        let begun = self.waiting.union(&self.running);
        if self.offered.is_empty() { begun } else { begun.union(&self.offered) }
    }

    pub(super) fn unfinished_is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.offered.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unfinished_is_empty() && self.outbox.is_empty()
    }

    /// A task waits, runs, is offered or has a result, and not two of these.
    #[cfg(debug_assertions)]
    pub(super) fn assert_one_state(&self) {
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

    /// a as known here: declared, or corrected by what finished tasks showed.
    pub(super) fn task_mops(&self) -> f64 {
        match self.finished {
            (count, sum) if !self.bag.declared && count > 0 => (sum / count as f64).max(WORK_MOPS_MIN),
            _ => self.bag.task_mops * self.times_declared,
        }
    }

    /// So many tasks of it, in plain numbers.
    pub(super) fn entry(&self, task_mops: f64, left: f64) -> Entry {
        let (release_s, application_size_mops) = (self.released.as_secs_f64(), self.size_mops());
        Entry { release_s, application_size_mops, task_mops, left }
    }

    /// w as it counts here.
    fn size_mops(&self) -> f64 {
        // A header may say less of the whole than of the tasks.
        let all_tasks_mops = self.bag.tasks as f64 * self.bag.task_mops;
        let size_mops = (all_tasks_mops + self.with_mops).max(self.bag.application_size_mops) * self.times_declared;
        size_mops.min(WORK_MOPS_MAX)
    }

    /// These tasks are wanted with this attempt: those that have not begun here, or not with a later one, get it.
    pub(super) fn attempt(&mut self, attempt: u32, ranges: &IntervalSet) {
        self.attempt = self.attempt.max(attempt);
        let held = self.unfinished();
        let mut ranges = ranges.difference(&self.running);
        for (known, tasks) in &mut self.attempts {
            *tasks = tasks.intersection(&held);
            if *known > attempt {
                ranges.subtract(tasks);
            }
        }
        self.attempts.values_mut().for_each(|tasks| tasks.subtract(&ranges));
        if attempt > 0 {
            self.attempts.entry(attempt).or_default().extend_with(&ranges);
        }
        self.attempts.retain(|_, tasks| !tasks.is_empty());
    }

    /// Whether tasks of it may begin as far as anybody knows that it is not over: its submitter has spoken of it here, or had
    /// no time for that yet.
    pub(super) fn is_current(&self, now: Time) -> bool {
        self.confirmed || self.fresh_until.is_none_or(|until| now < until)
    }

    /// Whether tasks of it may begin.
    pub(super) fn may_begin(&self, now: Time) -> bool {
        self.blocked_until <= now && self.is_current(now)
    }

    /// When what has not begun goes back since its submitter does not speak of it: by then that one has issued it again, or
    /// never did.
    pub(super) fn unspoken_until(&self) -> Option<Time> {
        let until = self.fresh_until.filter(|_| !self.confirmed && !self.waiting.is_empty())?;
        Some(until + self.placement_timeout + self.updates.period())
    }

    /// The attempt with which a task came.
    pub(super) fn attempt_of(&self, index: u64) -> u32 {
        self.attempts.iter().find(|(_, tasks)| tasks.contains(index)).map_or(0, |(attempt, _)| *attempt)
    }

    /// Forgets failures of earlier attempts at these tasks: their submitter wants another.
    pub(super) fn supersede(&mut self, attempt: u32, ranges: &IntervalSet) -> Vec<Change> {
        let old = |result: &TaskResult| !result.success && result.attempt < attempt && ranges.contains(result.index);
        let bag = self.bag.id;
        self.outbox.forget(old).into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect()
    }

    /// What must be in the store for the tasks that are not finished.
    pub(super) fn change(&self, io: &Io) -> Change {
        let ranges = self.unfinished();
        if ranges.is_empty() {
            return Change::Delete(RecordKey::Held(self.bag.id));
        }
        Change::Put(Record::Held {
            bag: self.bag.clone(),
            released: io.wall(self.released),
            attempt: self.attempt,
            attempts: (self.attempt > 0).then(|| self.attempts_among(&ranges)),
            checkpoints: self.checkpoints_among(&ranges),
            ranges,
        })
    }

    /// Attempts after the first of some tasks.
    fn attempts_among(&self, ranges: &IntervalSet) -> BTreeMap<u32, IntervalSet> {
        let among = self.attempts.iter().map(|(attempt, tasks)| (*attempt, tasks.intersection(ranges)));
        among.filter(|(_, tasks)| !tasks.is_empty()).collect()
    }

    fn checkpoints_among(&self, ranges: &IntervalSet) -> BTreeMap<u64, Checkpoint> {
        let among = self.checkpoints.iter().filter(|(index, _)| ranges.contains(**index));
        among.map(|(index, checkpoint)| (*index, *checkpoint)).collect()
    }

    /// These tasks are new here, and go on from these checkpoints, or begin.
    pub(super) fn go_on_from(&mut self, tasks: &IntervalSet, checkpoints: &[(u64, Checkpoint)]) {
        let held = self.unfinished();
        self.checkpoints.retain(|index, _| held.contains(*index) && !tasks.contains(*index));
        self.kept.subtract(tasks);
        self.checkpoints.extend(checkpoints.iter().filter(|(index, _)| tasks.contains(*index)).copied());
    }

    /// Tasks that have not begun, and are not given away without the checkpoint that they have here.
    pub(super) fn bound(&self) -> IntervalSet {
        self.waiting.intersection(&self.kept)
    }

    /// Whether something has not begun and is nowhere bound.
    pub(super) fn has_unbound(&self) -> bool {
        !self.offered.is_empty() || !self.waiting.is_empty() && self.waiting != self.bound()
    }

    /// The submitter extends the lease by `term`.
    pub(super) fn lease_extended(&mut self, term: Duration, io: &Io, config: &Config) {
        self.updates.lease_extended(self.bag.id, term, &io.me, io.now, config);
    }

    /// The next `Holding`, whose answer is expected within a growing time.
    pub(super) fn holding(&mut self, version: u64, io: &Io, config: &Config) -> Message {
        self.updates.holding_sent(version, io.now, config);
        // What is acknowledged out of order may leave more intervals than came. What is not listed is issued again.
        let ranges = self.ranges().ranges().take(HELD_INTERVALS_MAX).collect();
        let succeeded = self.outbox.values().filter(|result| result.success);
        let finished: IntervalSet = succeeded.map(|result| result.index..result.index + 1).collect();
        let finished = finished.ranges().take(HELD_INTERVALS_MAX).collect();
        let (bag, executor) = (self.bag.id, (&io.me).into());
        Message::Holding { bag, executor, version, attempt: self.attempt, ranges, finished }
    }

    /// Unstarted tasks go back to the submitter, but for these: the next `Holding` no longer lists them.
    pub(super) fn hand_back(&mut self, stay: IntervalSet, version: u64, io: &mut Io, config: &Config) {
        self.waiting = stay;
        self.offered = IntervalSet::new();
        self.tell_if_last(io);
        self.updates.hand_back(config);
        let change = self.change(io);
        let (to, message) = (self.bag.submitter.clone(), self.holding(version, io, config));
        io.persist_held(self.bag.id, vec![change], vec![Then::Send(to, message)]);
    }

    /// A task that began then ran to its end, or goes back with a checkpoint: its submitter hears of it once that is durable;
    /// before, with a number for that, of what is held. It hears of it at once where this machine may be about to go.
    pub(super) fn finished(
        &mut self,
        result: TaskResult,
        began: Time,
        version: Option<u64>,
        at_once: bool,
        io: &mut Io,
        config: &Config,
    ) {
        if !result.unfinished {
            self.not_started = 0;
            self.finished.0 += 1;
            self.finished.1 += result.work_mops;
        }
        self.checkpoints.remove(&result.index);
        self.kept.remove_index(result.index);
        // While more is to come here, this was not the last of the bag: it can wait, and be told together with others. The
        // last may be the last of all, and waits for less.
        let is_last = self.unfinished_is_empty();
        self.updates.spread_last_results(began);
        let takes_a_link = self.bag.submitter.peer != io.me.peer;
        let can_wait = result.success && !at_once && !self.updates.is_unpaced() && (takes_a_link || !is_last);
        let waits_until = self.outbox.has_untold().then_some(self.updates.results_due());
        let (bag, index, attempt) = (self.bag.id, result.index, result.attempt);
        if !takes_a_link && version.is_none() && result.success && result.content.is_some() {
            // Its ledger journals it in the same breath: one record of it is enough.
            self.outbox.insert_unstored(result.clone());
            io.persist_held(bag, vec![self.change(io)], Vec::new());
            let (executor, results) = ((&io.me).into(), vec![result]);
            io.send(self.bag.submitter.clone(), Message::Results { bag, executor, results, signature: None });
            return;
        }
        self.outbox.insert(result.clone());
        let outbox = self.outbox_record(result, io);
        let results = match (can_wait || self.updates.has_no_room(io.now), is_last) {
            (true, _) => Vec::new(),
            (false, false) => self.outbox.tell_one(index, io.now),
            // With the last all are told that wait; what is not durable yet, or more than one message takes, follows at once.
            (false, true) => {
                let mut results = self.outbox.tell_one(index, io.now);
                self.outbox.tell_with(&mut results, RESULTS_MAX, io.now);
                results
            }
        };
        let due = match (can_wait, is_last) {
            (false, false) if !results.is_empty() => Time::MAX,
            (false, _) => io.now,
            (true, false) => self.updates.paced(io.now),
            (true, true) => self.last_due(io),
        };
        // What waits already is told in its time at the latest.
        self.updates.send_results_at(waits_until.map_or(due, |until| until.min(due)));
        let results = (!results.is_empty()).then(|| Message::Results {
            bag,
            executor: (&io.me).into(),
            results,
            signature: None,
        });
        let holding = version.map(|version| self.holding(version, io, config));
        let then = holding.into_iter().chain(results).map(|message| Then::Send(self.bag.submitter.clone(), message));
        let written = Then::Written(TaskId { bag, index }, attempt);
        let changes = vec![outbox, self.change(io)];
        io.persist_held(bag, changes, then.chain([written]).collect());
    }

    /// Keeps a result of this machine's own bag that its ledger has not taken.
    pub(super) fn store_untaken(&mut self, task: TaskId, io: &mut Io) {
        if let Some(result) = self.outbox.store(task.index) {
            let written = Then::Written(task, result.attempt);
            // It is due as what waits already is, or at once.
            self.updates.send_results_by(io.now);
            let change = self.outbox_record(result, io);
            io.persist_held(task.bag, vec![change], vec![written]);
        }
    }

    /// What the store keeps of a result until it is acknowledged.
    fn outbox_record(&self, result: TaskResult, io: &Io) -> Change {
        Change::Put(Record::Outbox { bag: self.bag.clone(), released: io.wall(self.released), result })
    }

    /// Tasks went elsewhere that would have followed: what waited for their results is the last, and is told as such.
    pub(super) fn tell_if_last(&mut self, io: &Io) {
        if self.unfinished_is_empty() && self.outbox.has_untold() {
            self.updates.send_results_by(self.last_due(io));
        }
    }

    /// When the last results on this machine are sent.
    fn last_due(&self, io: &Io) -> Time {
        if self.bag.submitter.peer == io.me.peer {
            return io.now;
        }
        let age = io.now.since(self.released);
        let spared_s = io.maximum_stretch * SPARED * self.size_mops() - age.as_secs_f64();
        let spared = Duration::try_from_secs_f64(spared_s.max(0.0)).unwrap_or(Duration::MAX);
        self.updates.last_results_due(io.now, age, spared)
    }

    /// When results are sent next, for the first time or again.
    pub(super) fn next_results(&self) -> Option<Time> {
        self.updates.next_results(&self.outbox)
    }

    /// What is to be said of results now: once more what was not acknowledged in time, else what was not told yet.
    pub(super) fn results(&mut self, io: &Io, config: &Config) -> Vec<TaskResult> {
        if self.updates.has_no_room(io.now) {
            return Vec::new();
        }
        if self.updates.resend_due(&self.outbox).is_some_and(|due| due <= io.now) {
            // With it all that nobody has acknowledged for long enough to be said again for the first time.
            let told_by = io.now - self.updates.first_wait(config);
            self.updates.results_resent(config);
            return self.outbox.tell_again(told_by, io.now);
        }
        if !self.outbox.may_tell() || self.updates.results_due() > io.now {
            return Vec::new();
        }
        let results = self.outbox.tell(RESULTS_MAX, io.now);
        if !self.outbox.has_written() {
            // What is being written waits for the next such moment.
            let next = self.updates.paced(io.now + Duration::from_micros(1));
            self.updates.send_results_at(if self.unfinished_is_empty() { self.last_due(io) } else { next });
        }
        results
    }

    /// These results did not leave, since there is no room on the way to its submitter: nothing is said of results until it
    /// is known that there is room, or until then.
    pub(super) fn not_told(&mut self, results: &[TaskResult], until: Time) {
        self.outbox.not_told(results);
        self.updates.wait_for_room(until);
    }
}
