//! One bag on an executor: which of its tasks wait, run and are offered to other machines, its unacknowledged results
//! (`outbox`), and when its submitter is written to next (`updates`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;

use super::bags_before::BagsBefore;
use super::booking::Booking;
use super::keepers::Keepers;
use super::outbox::Outbox;
use super::updates::Updates;
use crate::bag::{
    BagHeader, BagKey, BlobId, Checkpoint, HELD_CHECKPOINTS_MAX, HELD_INTERVALS_MAX, Request, Sizes, TaskId, TaskResult,
};
use crate::config::Config;
use crate::enclosed::Enclosed;
use crate::io::{Io, Then};
use crate::message::{Capacity, Message, RESULTS_MAX};
use crate::queue::{Entry, WORK_MOPS_MAX, WORK_MOPS_MIN};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

/// One bag on this machine.
#[derive(Debug)]
pub(super) struct HeldBag {
    pub(super) bag: BagHeader,
    /// To whom this machine answers about the bag.
    pub(super) keepers: Keepers,
    pub(super) released: Time,
    /// The highest attempt of any task that came.
    pub(super) attempt: u32,
    /// Tasks by attempt; those that are not listed have attempt 0.
    pub(super) attempts: BTreeMap<u32, IntervalSet>,
    /// Whether its submitter has sent a `Lease` for it; until then the bag may be somebody's invention.
    pub(super) spoken_for: bool,
    /// With what this machine reads the bag's blobs, once the submitter has sent it.
    pub(super) key: Option<BagKey>,
    /// Its manifest, if the submitter has enclosed it.
    pub(super) manifest: Enclosed,
    /// Until the submitter has spoken for the bag, its tasks begin only before this moment, while its manifest is fresh;
    /// `None`: at any time.
    pub(super) fresh_until: Option<Time>,
    /// [`Config::placement_timeout`].
    placement_timeout: Duration,
    /// Tasks that have not begun.
    pub(super) waiting: IntervalSet,
    /// Tasks offered to another machine: they do not begin here until the submitter answers, or until `offered_until`.
    pub(super) offered: IntervalSet,
    pub(super) offered_until: Time,
    /// Tasks that have begun, frozen ones included.
    pub(super) running: IntervalSet,
    /// The checkpoints with which unfinished tasks came, to go on from.
    pub(super) checkpoints: BTreeMap<u64, Checkpoint>,
    /// Tasks that began here before and left a checkpoint on this machine: they are not given away without it.
    pub(super) local_checkpoints: IntervalSet,
    pub(super) outbox: Outbox,
    /// Whether the last `Holding` lists tasks whose results here are failures or checkpoints.
    pub(super) lists_unsuccessful: bool,
    /// Number of tasks finished here.
    pub(super) finished_tasks: u64,
    /// Their summed work, in Mop.
    pub(super) finished_mops: f64,
    /// The measured work of its tasks as a multiple of the declared one, where that is far more (`rating`); else 1.
    pub(super) times_declared: f64,
    /// What it runs, where the driver has said so.
    pub(super) program: Option<BlobId>,
    /// By what factor the program takes longer here than was said, beyond what the slowness of this machine explains (`learning`).
    pub(super) factor: f64,
    /// How many times as long all tasks take on this machine.
    pub(super) slowness: f64,
    /// The bags before it in its submitter's line on this machine (`submitters`).
    pub(super) before: BagsBefore,
    /// The submitter's priority for it, and the bags before it in the submitter's line by priority (`priority`).
    pub(super) priority: i32,
    pub(super) before_by_priority: BagsBefore,
    /// Waiting tasks that begin at once with others elsewhere.
    pub(super) booking: Booking,
    /// No task begins before then: the last start failed.
    pub(super) blocked_until: Time,
    /// Unstarted tasks go back then: they have waited for far longer than predicted (`sharing`).
    pub(super) overdue_at: Option<Time>,
    /// Starts that failed in a row.
    pub(super) failed_starts: u32,
    pub(super) updates: Updates,
    /// [`Self::next_due`] as [`super::held_bags::HeldBags::look`] last found it.
    pub(super) due: Option<Time>,
}

impl HeldBag {
    pub(super) fn new(bag: BagHeader, released: Time, config: &Config) -> Self {
        Self {
            keepers: Keepers::new(&bag.submitter, config),
            bag,
            released,
            attempt: 0,
            attempts: BTreeMap::new(),
            spoken_for: false,
            key: None,
            manifest: Enclosed::default(),
            fresh_until: None,
            placement_timeout: config.placement_timeout,
            waiting: IntervalSet::new(),
            offered: IntervalSet::new(),
            offered_until: Time::ZERO,
            running: IntervalSet::new(),
            checkpoints: BTreeMap::new(),
            local_checkpoints: IntervalSet::new(),
            outbox: Outbox::default(),
            lists_unsuccessful: false,
            finished_tasks: 0,
            finished_mops: 0.0,
            times_declared: 1.0,
            program: None,
            factor: 1.0,
            slowness: 1.0,
            before: BagsBefore::default(),
            priority: 0,
            before_by_priority: BagsBefore::default(),
            booking: Booking::new(),
            blocked_until: Time::ZERO,
            overdue_at: None,
            failed_starts: 0,
            updates: Updates::new(config),
            due: None,
        }
    }

    /// When the bag next needs attention: a message is due, an offer or a block ends, or tasks go back that the submitter
    /// has not spoken for.
    pub(super) fn next_due(&self, now: Time) -> Time {
        let results = self.next_results();
        let offered = (!self.offered.is_empty()).then_some(self.offered_until);
        let blocked = (!self.waiting.is_empty() && self.blocked_until > now).then_some(self.blocked_until);
        [results, offered, blocked, self.unspoken_until(), self.overdue(), self.keepers.silent_at(), self.booking_due()]
            .into_iter()
            .flatten()
            .fold(self.updates.holding_due(), Time::min)
    }

    /// Takes the submitter's own sizes; returns whether they differ from those held. Of a bag whose work is not declared the task size
    /// changes all the time: it counts as different from twice or half of that on.
    pub(super) fn correct_sizes(&mut self, sizes: Sizes) -> bool {
        let known = self.bag.sizes(self.priority);
        let times = sizes.task_mops / known.task_mops;
        let is_other = (known.application_size_mops, known.declared) != (sizes.application_size_mops, sizes.declared)
            || if sizes.declared { times != 1.0 } else { !(0.5..=2.0).contains(&times) };
        let Sizes { task_mops, application_size_mops, declared, priority: _ } = sizes;
        self.bag = BagHeader { task_mops, application_size_mops, declared, ..self.bag.clone() };
        is_other
    }

    /// Whether both headers can be of one bag: all fields are constant but the submitter's address. Sizes are not compared: any router
    /// may have changed them, and the submitter says them again in its `Lease`.
    pub(super) fn agrees_with(&self, bag: &BagHeader) -> bool {
        let BagHeader { id, submitter, tasks, .. } = &self.bag;
        (*id, submitter.peer, *tasks) == (bag.id, bag.submitter.peer, bag.tasks)
    }

    /// Whether the bag's tasks here, with those of this request, fit in one `Holding` and one record.
    pub(super) fn has_room_for(&self, request: &Request) -> bool {
        let unfinished = self.unfinished();
        let of_attempts: usize = self.attempts_among(&unfinished).values().map(IntervalSet::intervals).sum();
        let intervals = self.ranges().intervals().max(of_attempts) + request.ranges.intervals();
        let checkpoints = self.checkpoints_among(&unfinished).len() + request.checkpoints.len();
        intervals <= HELD_INTERVALS_MAX && checkpoints <= HELD_CHECKPOINTS_MAX
    }

    /// Forgets waiting tasks that no longer fit in one `Holding`, after others were dropped between them, and has a `Holding`
    /// sent: the submitter issues the tasks again that it does not list.
    pub(super) fn forget_excess(&mut self, now: Time) {
        while let Some(excess @ 1..) = self.ranges().intervals().checked_sub(HELD_INTERVALS_MAX)
            && !self.waiting.is_empty()
        {
            let left = self.waiting.intervals().saturating_sub(excess);
            self.waiting = self.waiting.ranges().take(left).collect();
            self.updates.send_holding_now(now);
        }
    }

    /// All tasks for which this machine accounts: unfinished, or with an unacknowledged result.
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

    /// a as known here, in Mop: the mean of the tasks finished here, or what was said, times what is known of the bag or of its program here.
    pub(super) fn task_mops(&self) -> f64 {
        match (self.finished_tasks, self.finished_mops) {
            (count, sum) if !self.bag.declared && count > 0 => (sum / count as f64 / self.slowness).max(WORK_MOPS_MIN),
            _ if self.times_declared > 1.0 => self.bag.task_mops * self.times_declared,
            _ => self.bag.task_mops * self.factor,
        }
    }

    /// `left` tasks of this bag as an entry of the queue's [`crate::queue::Load`].
    pub(super) fn entry(&self, task_mops: f64, left: f64) -> Entry {
        let (release_s, application_size_mops) = (self.released.as_secs_f64(), self.size_mops());
        Entry { release_s, application_size_mops, task_mops, left }
    }

    /// w from which the deadline is computed here, in Mop, where priorities make no difference.
    pub(super) fn size_mops(&self) -> f64 {
        self.size_behind(&self.before)
    }

    /// Its own size with that of these bags before it, in Mop.
    pub(super) fn size_behind(&self, before: &BagsBefore) -> f64 {
        // A header may give a size below the sum of its tasks.
        let all_tasks_mops = self.bag.tasks as f64 * self.bag.task_mops;
        let size_mops = (all_tasks_mops + before.sum_mops()).max(self.bag.application_size_mops) * self.times_declared;
        size_mops.min(WORK_MOPS_MAX)
    }

    /// The submitter wants these tasks with this attempt: those that neither run nor have a later attempt take it.
    pub(super) fn set_attempt(&mut self, attempt: u32, ranges: &IntervalSet) {
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

    /// Whether the submitter has spoken for the bag, or may not have had the time yet.
    pub(super) fn is_current(&self, now: Time) -> bool {
        self.spoken_for || self.fresh_until.is_none_or(|until| now < until)
    }

    /// Whether its tasks may begin.
    pub(super) fn may_begin(&self, now: Time) -> bool {
        self.blocked_until <= now && self.is_current(now)
    }

    /// When unstarted tasks go back because the submitter has not spoken for the bag: had it issued them, it has issued them
    /// again by then.
    pub(super) fn unspoken_until(&self) -> Option<Time> {
        let until = self.fresh_until.filter(|_| !self.spoken_for && !self.waiting.is_empty())?;
        Some(until + self.placement_timeout + self.updates.period())
    }

    /// When unstarted tasks go back since they have waited for far longer than predicted.
    pub(super) fn overdue(&self) -> Option<Time> {
        self.overdue_at.filter(|_| !self.waiting.is_empty())
    }

    /// The attempt with which a task came.
    pub(super) fn attempt_of(&self, index: u64) -> u32 {
        self.attempts.iter().find(|(_, tasks)| tasks.contains(index)).map_or(0, |(attempt, _)| *attempt)
    }

    /// Forgets failures of earlier attempts at these tasks: the submitter wants another attempt.
    pub(super) fn supersede(&mut self, attempt: u32, ranges: &IntervalSet) -> Vec<Change> {
        let old = |result: &TaskResult| !result.success && result.attempt < attempt && ranges.contains(result.index);
        let bag = self.bag.id;
        self.outbox.forget(old).into_iter().map(|index| Change::Delete(RecordKey::Outbox(bag, index))).collect()
    }

    /// The change that brings the record of unfinished tasks up to date.
    pub(super) fn record_change(&self, io: &Io) -> Change {
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
            priority: self.priority,
            at_once: self.told_to_wait(),
            ranges,
        })
    }

    /// The attempts above 0 of these tasks.
    fn attempts_among(&self, ranges: &IntervalSet) -> BTreeMap<u32, IntervalSet> {
        let among = self.attempts.iter().map(|(attempt, tasks)| (*attempt, tasks.intersection(ranges)));
        among.filter(|(_, tasks)| !tasks.is_empty()).collect()
    }

    fn checkpoints_among(&self, ranges: &IntervalSet) -> BTreeMap<u64, Checkpoint> {
        let among = self.checkpoints.iter().filter(|(index, _)| ranges.contains(**index));
        among.map(|(index, checkpoint)| (*index, *checkpoint)).collect()
    }

    /// These tasks are new here: they go on from these checkpoints, those without one begin anew. Checkpoints are read with the bag's key, which
    /// comes when the submitter has answered.
    pub(super) fn take_checkpoints(&mut self, tasks: &IntervalSet, checkpoints: &[(u64, Checkpoint)], now: Time) {
        self.fresh_until = self.fresh_until.map(|until| if checkpoints.is_empty() { until } else { until.min(now) });
        let held = self.unfinished();
        self.checkpoints.retain(|index, _| held.contains(*index) && !tasks.contains(*index));
        self.local_checkpoints.subtract(tasks);
        self.checkpoints.extend(checkpoints.iter().filter(|(index, _)| tasks.contains(*index)).copied());
    }

    /// Waiting tasks that have a checkpoint on this machine, and so are not given away without it.
    pub(super) fn unmovable(&self) -> IntervalSet {
        self.waiting.intersection(&self.local_checkpoints)
    }

    /// Whether any unstarted task can be given away.
    pub(super) fn has_movable(&self) -> bool {
        !self.offered.is_empty() || !self.waiting.is_empty() && self.waiting != self.unmovable()
    }

    /// The submitter extends the lease by `term`.
    pub(super) fn lease_extended(&mut self, term: Duration, io: &Io, config: &Config) {
        self.updates.lease_extended(self.bag.id, term, &io.me, io.now, config);
    }

    /// Whether its submitter is told what this machine can do: an application in rounds prefers machines by that. After a restart a bag is taken for
    /// one whose tasks came with something.
    pub(super) fn says_capacity(&self) -> bool {
        self.updates.says_capacity || !self.checkpoints.is_empty()
    }

    /// The `Holding` of this version, to be sent now.
    pub(super) fn new_holding(&mut self, version: u64, io: &Io, config: &Config) -> Message {
        self.updates.holding_sent(version, io.now, config);
        self.keepers.ask(io.now);
        // Acknowledgements out of order may leave more intervals than came. The submitter issues unlisted tasks again.
        let ranges = self.ranges().ranges().take(HELD_INTERVALS_MAX).collect();
        let succeeded = self.outbox.values().filter(|result| result.success);
        let finished: IntervalSet = succeeded.map(|result| result.index..result.index + 1).collect();
        self.lists_unsuccessful = finished.len() < self.outbox.len() as u64;
        let finished = finished.ranges().take(HELD_INTERVALS_MAX).collect();
        let (bag, executor) = (self.bag.id, (&io.me).into());
        let capacity = || Capacity { slots: config.slots, speed_mops: config.speed_mops as f32 };
        let capacity = self.says_capacity().then(capacity);
        Message::Holding { bag, executor, version, attempt: self.attempt, ranges, finished, capacity }
    }

    /// Unstarted tasks but for `stay` go back to the submitter: a `Holding` that no longer lists them is sent once that is
    /// durable.
    pub(super) fn hand_back(&mut self, stay: IntervalSet, version: u64, io: &mut Io, config: &Config) {
        self.waiting = stay;
        self.offered = IntervalSet::new();
        self.hurry_if_last(io);
        self.updates.hand_back(config);
        let change = self.record_change(io);
        let (to, message) = (self.keepers.contact().clone(), self.new_holding(version, io, config));
        io.persist_held(self.bag.id, vec![change], vec![Then::Send(to, message)]);
    }

    /// A task has run to its end here, whose iterations of a usual task had so much work, in Mop.
    pub(super) fn count_finished(&mut self, work_mops: f64) {
        self.failed_starts = 0;
        self.finished_tasks += 1;
        self.finished_mops += work_mops;
    }

    /// A task ran to its end, or goes back with a checkpoint: the result is sent once it is durable, together with others where
    /// it can wait, immediately where `hurries` says that this machine may be about to leave. With a `version`, a `Holding` of that
    /// version goes before it.
    pub(super) fn task_ended(
        &mut self,
        result: TaskResult,
        began: Time,
        version: Option<u64>,
        hurries: bool,
        io: &mut Io,
        config: &Config,
    ) {
        self.checkpoints.remove(&result.index);
        self.local_checkpoints.remove_index(result.index);
        // While other tasks of the bag are unfinished here the result can wait for theirs. The last one here may be the bag's
        // last of all, and waits for less.
        let is_last = self.unfinished_is_empty();
        self.updates.spread_last_results(began);
        let takes_a_link = self.keepers.contact().peer != io.me.peer;
        let can_wait = result.success && !hurries && !self.updates.is_unpaced() && (takes_a_link || !is_last);
        let waits_until = self.outbox.has_unsent().then_some(self.updates.results_due());
        let (bag, index, attempt) = (self.bag.id, result.index, result.attempt);
        if !takes_a_link && version.is_none() && result.success && result.content.is_some() {
            // This machine's ledger journals it at once: one record is enough.
            self.outbox.insert_unstored(result.clone());
            io.persist_held(bag, vec![self.record_change(io)], Vec::new());
            let (executor, results) = ((&io.me).into(), vec![result]);
            io.send(self.keepers.contact().clone(), Message::Results { bag, executor, results, signature: None });
            return;
        }
        self.outbox.insert(result.clone());
        let outbox = self.outbox_record(result, io);
        let results = match (can_wait || self.updates.has_no_room(io.now), is_last) {
            (true, _) => Vec::new(),
            (false, false) => self.outbox.send_one(index, io.now),
            // The last result takes along all that wait; those that are not durable yet, or do not fit in this message,
            // follow at once.
            (false, true) => {
                let mut results = self.outbox.send_one(index, io.now);
                self.outbox.send_with(&mut results, RESULTS_MAX, io.now);
                results
            }
        };
        let due = match (can_wait, is_last) {
            (false, false) if !results.is_empty() => Time::MAX,
            (false, _) => io.now,
            (true, false) => self.updates.paced(io.now),
            (true, true) => self.last_due(io),
        };
        // Results that wait already are sent at their time at the latest.
        self.updates.send_results_at(waits_until.map_or(due, |until| until.min(due)));
        let results = (!results.is_empty()).then(|| Message::Results {
            bag,
            executor: (&io.me).into(),
            results,
            signature: None,
        });
        let holding = version.map(|version| self.new_holding(version, io, config));
        if results.is_some() {
            self.keepers.ask(io.now);
        }
        let to = self.keepers.contact();
        let then = holding.into_iter().chain(results).map(|message| Then::Send(to.clone(), message));
        let written = Then::Written(TaskId { bag, index }, attempt);
        let changes = vec![outbox, self.record_change(io)];
        io.persist_held(bag, changes, then.chain([written]).collect());
    }

    /// Stores the result of a task of this machine's own bag, since its ledger has not taken it.
    pub(super) fn store_untaken(&mut self, task: TaskId, io: &mut Io) {
        if let Some(result) = self.outbox.store(task.index) {
            let written = Then::Written(task, result.attempt);
            // Due with the results that wait already, or at once.
            self.updates.send_results_by(io.now);
            let change = self.outbox_record(result, io);
            io.persist_held(task.bag, vec![change], vec![written]);
        }
    }

    /// The record of a result, which is kept until the result is acknowledged.
    fn outbox_record(&self, result: TaskResult, io: &Io) -> Change {
        Change::Put(Record::Outbox { bag: self.bag.clone(), released: io.wall(self.released), result })
    }

    /// Tasks have left this machine: if none is unfinished, the unsent results are the last here, and are sent as such.
    pub(super) fn hurry_if_last(&mut self, io: &Io) {
        if self.unfinished_is_empty() && self.outbox.has_unsent() {
            self.updates.send_results_by(self.last_due(io));
        }
    }

    /// When the last results on this machine are sent.
    fn last_due(&self, io: &Io) -> Time {
        if self.keepers.contact().peer == io.me.peer {
            return io.now;
        }
        let age = io.now.since(self.released);
        self.updates.last_results_due(io.now, age)
    }

    /// When results are sent next, for the first time or again.
    pub(super) fn next_results(&self) -> Option<Time> {
        self.updates.next_results(&self.outbox)
    }

    /// The results to send now in one message: again those that were not acknowledged in time, else those not sent yet.
    pub(super) fn due_results(&mut self, io: &Io, config: &Config) -> Vec<TaskResult> {
        if self.updates.has_no_room(io.now) {
            return Vec::new();
        }
        if self.updates.resend_due(&self.outbox).is_some_and(|due| due <= io.now) {
            // All that were sent a first wait ago or earlier.
            let sent_by = io.now - self.updates.first_wait(config);
            self.updates.results_resent(config);
            self.keepers.ask(io.now);
            return self.outbox.resend(sent_by, io.now);
        }
        if !self.outbox.may_send() || self.updates.results_due() > io.now {
            return Vec::new();
        }
        let results = self.outbox.send(RESULTS_MAX, io.now);
        if !results.is_empty() {
            self.keepers.ask(io.now);
        }
        if !self.outbox.has_written() {
            // Results that are still being written wait for the next moment of the pace.
            let next = self.updates.paced(io.now + Duration::from_micros(1));
            self.updates.send_results_at(if self.unfinished_is_empty() { self.last_due(io) } else { next });
        }
        results
    }

    /// These results came back for lack of room on the way to the submitter: none are sent until there is room, or until
    /// `until`.
    pub(super) fn not_sent(&mut self, results: &[TaskResult], until: Time) {
        self.outbox.not_sent(results);
        self.updates.wait_for_room(until);
    }
}
