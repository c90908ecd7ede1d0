//! The submitter's ledger: where every task of a bag is, so that none is lost and each counts once.
//!
//! At any moment the indices of a bag are the disjoint union of unissued, pausing (they failed, and are tried again
//! later), done, failed, and those of which there are copies: issued (on their way) or placed (on an executor, under a lease). One copy is the rule; a ledger may allow
//! several, up to its number of replicas, on as many executors. When the last copy is gone, since a lease ends, nobody
//! accounts for a request in time or an executor no longer lists the task, it returns to unissued and is issued again
//! at once; this does not count as a failure of the task. The first valid result of a task wins, or, where the bag has a
//! quorum, what as many machines say alike (`quorum`).
//!
//! Everything is in intervals, never in tasks, and what comes with each result or renewal costs no scan of the
//! executors: the ledger counts the copies of each index, looks first at the executor that speaks, and keeps a moment
//! before which no lease ends. What it does cost is a look at each request that is still on its way: few, unless much
//! was scattered and is issued again, in requests of at most [`REQUEST_INTERVALS_MAX`] intervals, of their own for each
//! machine that is named.

mod astray;
mod avoided;
mod checkpoints;
mod declined;
mod ended;
mod failures;
mod former;
#[cfg(debug_assertions)]
mod invariants;
mod issues;
mod outputs;
mod placed;
mod placements;
mod quorum;
#[cfg(test)]
mod tests;
mod waiting;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use self::astray::Astray;
pub use self::astray::Swallowed;
use self::avoided::Avoided;
pub(crate) use self::avoided::{AVOID_MAX, FAILED_IN_ROW};
use self::checkpoints::Checkpoints;
use self::declined::Declined;
pub use self::declined::Declines;
use self::ended::Ended;
pub(crate) use self::failures::Failures;
use self::failures::Tries;
use self::former::Former;
pub(crate) use self::issues::Hop;
use self::issues::Issues;
use self::outputs::Outputs;
use self::placed::Placed;
pub(crate) use self::placements::{Holding, refuse};
pub(crate) use self::quorum::Known;
use self::quorum::Votes;
pub use self::quorum::{REPLICAS_MAX, Replication};
use self::waiting::Waiting;
use self::work::Work;
use crate::bag::{
    BAG_WORK_MOPS_MAX, BagHeader, Checkpoint, DeclineReason, REQUEST_INTERVALS_MAX, Request, TaskId, TaskResult,
    answer_within,
};
use crate::config::Config;
use crate::io::{Io, Journalling, Then};
use crate::message::Message;
use crate::peer::{Effect, Notice};
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record, RecordKey};

/// One bag, on the machine that submitted it: each part knows one thing of its tasks.
#[derive(Debug)]
pub(crate) struct Ledger {
    bag: BagHeader,
    released: Time,
    closed: Option<(Closing, Time)>,
    /// Durable, so that it may be issued once it is measured.
    open: bool,
    /// Of the newest request.
    attempt: u32,
    waiting: Waiting,
    issues: Issues,
    placed: Placed,
    ended: Ended,
    former: Former,
    votes: Votes,
    tries: Tries,
    avoided: Avoided,
    declined: Declined,
    astray: Astray,
    outputs: Outputs,
    checkpoints: Checkpoints,
    /// What machines say of the work of tasks.
    work: Work,
    counts: Counts,
    /// Before this moment no lease ends and no request is given up; set to the first such moment whenever it is
    /// reached. A renewal does not move it: that would need the leases in order.
    next_end: Option<Time>,
}

/// What is told to the user of what happened.
#[derive(Debug, Default)]
struct Counts {
    /// Tasks that had to be issued again.
    reissued: u64,
    /// Results that came for a task that was over already.
    duplicates: u64,
    /// Results of machines that never had the task.
    unasked: u64,
}

/// A bag as its submitter sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct BagView {
    /// Its numbers; `task_mops` is 0 until measured.
    pub bag: BagHeader,
    /// r.
    pub released: Time,
    /// Tasks that succeeded, as the journal has it.
    pub done: u64,
    /// Tasks that failed for good, likewise.
    pub failed: u64,
    /// Tasks that a machine accounts for.
    pub placed: u64,
    /// How many machines that is.
    pub executors: u64,
    /// Tasks on their way to a machine, or waiting for that.
    pub unplaced: u64,
    /// Tasks that had to be issued again.
    pub reissued: u64,
    /// Results that came for a task that was over already.
    pub duplicates: u64,
    /// Work of one task by the median of the machines on which tasks succeeded, in Mop; 0 before the first.
    pub measured_mops: f64,
    /// Results that claimed more work than their machine can have done since it got the task: that is not believed.
    pub overstated: u64,
    /// How many machines run each task.
    pub replication: Replication,
    /// Tasks that were decided though not all machines said the same.
    pub disputed: u64,
    /// Tasks that lack a vote for their quorum which no machine that can be asked could give when that was looked at last.
    pub undecided: u64,
    /// Tasks that machines did not queue, by reason.
    pub declined: BTreeMap<DeclineReason, Declines>,
    /// Results that were not taken, since the machine that sent them never had the task.
    pub unasked: u64,
    /// Tasks that went another way than through the tree, since nobody had accounted for them.
    pub astray: u64,
    /// Routers that alone had to pass tasks on which nobody then accounted for.
    pub swallowed: BTreeMap<PeerId, Swallowed>,
    /// How and when it ended.
    pub closed: Option<(Closing, Time)>,
}

impl BagView {
    /// As its user is told of it: of results, and of its end, what is on disk.
    pub(crate) fn durable(mut self, unwritten: Journalling) -> Self {
        self.done = self.done.saturating_sub(unwritten.done);
        self.failed = self.failed.saturating_sub(unwritten.failed);
        self.closed = self.closed.filter(|_| unwritten.closings == 0);
        self
    }

    /// (C − r)/w in s/Mop, of a bag that is closed; `None` while it is not.
    pub fn stretch(&self) -> Option<f64> {
        let (_, closed) = self.closed?;
        (self.bag.application_size_mops > 0.0)
            .then(|| closed.since(self.released).as_secs_f64() / self.bag.application_size_mops)
    }
}

/// What a result is to the ledger of its bag.
enum Standing {
    /// It is being written, or an output of its task is on its way: acknowledged, or said again, after that.
    Pending,
    /// Its task is over.
    Over,
    /// Of an attempt before the task was run again on demand.
    Void,
    /// A failure that was counted already, or of a task that its machine does not have.
    Old,
    /// Of a machine that never had the task.
    Unasked,
    /// It hands a copy back before its end, with a checkpoint that it could have made up.
    MadeUp,
    /// A failure which may have been the machine's, or chance.
    Fails,
    /// How the task ended, or a vote on that.
    Ends,
}

impl Ledger {
    /// A bag just submitted; nothing is issued before [`Ledger::open`].
    pub(crate) fn new(bag: BagHeader, released: Time, retries_max: u32, replication: Replication, io: &Io) -> Self {
        // Above every number of an earlier life of this machine.
        let number = u64::try_from(io.wall(io.now).0).unwrap_or(0);
        Self {
            released,
            closed: None,
            open: false,
            attempt: 0,
            waiting: Waiting::new(bag.tasks),
            issues: Issues::new(number),
            placed: Placed::default(),
            ended: Ended::default(),
            former: Former::default(),
            votes: Votes::new(replication),
            tries: Tries::new(retries_max),
            avoided: Avoided::default(),
            declined: Declined::default(),
            astray: Astray::default(),
            outputs: Outputs::default(),
            checkpoints: Checkpoints::default(),
            work: Work::new(bag.task_mops),
            counts: Counts::default(),
            next_end: None,
            bag,
        }
    }

    pub(crate) fn restore_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.issues.restore();
    }

    pub(crate) fn restore_closed(&mut self, closing: Closing, at: Time) {
        self.closed = Some((closing, at));
    }

    pub(crate) fn restore_done(&mut self, executor: PeerId, result: &TaskResult, finished: Time, io: &Io) {
        self.work.note(executor, result, finished.since(self.released), io.speed_mops);
        self.settle(result, None);
    }

    pub(crate) fn restore_checkpoint(&mut self, index: u64, checkpoint: Checkpoint) {
        if index < self.bag.tasks && !self.ended.contains(index) {
            self.checkpoints.insert(index, checkpoint);
        }
    }

    /// May be issued from now on.
    pub(crate) fn open(&mut self) {
        self.open = true;
    }

    /// Whether its record was written, so that its user was told that it is taken.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Opens a bag again of which some task is not over, after all results that are stored were restored.
    pub(crate) fn reopen_unless_over(&mut self) {
        if self.ended.len() < self.bag.tasks {
            self.closed = None;
        }
    }

    /// Whether this task is over, in the journal or on its way there.
    pub(crate) fn is_over(&self, index: u64) -> bool {
        self.ended.contains(index)
    }

    /// The tasks that have succeeded, and those that have failed, likewise.
    pub(crate) fn over(&self) -> (IntervalSet, IntervalSet) {
        self.ended.sets()
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.bag.task_mops > 0.0
    }

    pub(crate) fn header(&self) -> &BagHeader {
        &self.bag
    }

    pub(crate) fn record(&self, io: &Io) -> Record {
        Record::Bag {
            bag: self.bag.clone(),
            released: io.wall(self.released),
            retries_max: self.tries.retries_max(),
            attempt: self.attempt,
            closed: self.closed.map(|(closing, at)| (closing, io.wall(at))),
            replication: self.votes.replication(),
        }
    }

    pub(crate) fn view(&self) -> BagView {
        let held = |ranges: &IntervalSet| self.placed.held_by_more_than(0, ranges).len();
        let issued: u64 = self.issues.iter().map(|issue| issue.ranges.len() - held(&issue.ranges)).sum();
        BagView {
            bag: self.bag.clone(),
            released: self.released,
            done: self.ended.done(),
            failed: self.ended.failed(),
            placed: self.placed.tasks(),
            executors: self.placed.executors(),
            unplaced: self.waiting.len() + issued,
            reissued: self.counts.reissued,
            duplicates: self.counts.duplicates,
            unasked: self.counts.unasked,
            astray: self.astray.tasks(),
            swallowed: self.astray.swallowed(),
            measured_mops: self.work.of_task().unwrap_or(0.0),
            overstated: self.work.overstated(),
            replication: self.votes.replication(),
            disputed: self.votes.disputed(),
            undecided: self.votes.undecided(),
            declined: self.declined.reasons().clone(),
            closed: self.closed,
        }
    }

    /// Sets a and w once the first task has shown them.
    pub(crate) fn set_work(&mut self, task_mops: f64, application_size_mops: f64) {
        self.work.measured(task_mops);
        self.bag.task_mops = task_mops;
        self.bag.application_size_mops = application_size_mops;
    }

    /// A task is over.
    fn settle(&mut self, result: &TaskResult, executor: Option<PeerId>) {
        self.withdraw(result.index, executor);
        self.tries.forget(result.index);
        self.declined.forget(result.index);
        self.outputs.forget(result.index);
        self.ended.insert(result.index, result.success);
    }

    /// What is placed nowhere after a restart may have been issued before: somebody may have it, or have dropped it.
    pub(crate) fn issue_anew(&mut self, io: &mut Io) {
        if !self.is_closed() && !self.waiting.unissued().is_empty() {
            self.next_attempt(&IntervalSet::new(), io);
        }
    }

    /// The attempt is journalled, so that it goes on rising after a restart.
    fn next_attempt(&mut self, ranges: &IntervalSet, io: &mut Io) {
        self.attempt += 1;
        self.waiting.add(ranges);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Finished tasks arrive: their output is fetched, and only then do they count. Those of a machine that never had the
    /// task are not taken; it has to say what it holds, since that word may have been lost.
    pub(crate) fn results(&mut self, executor: &Contact, results: Vec<TaskResult>, io: &mut Io, config: &Config) {
        let (mut unwanted, mut retried) = (Vec::new(), Vec::new());
        let (mut begins_anew, unasked_before) = (Vec::new(), self.counts.unasked);
        let tasks = self.bag.tasks;
        for result in results.into_iter().filter(|result| result.is_valid(tasks)) {
            let index = result.index;
            match self.standing(executor, &result, io) {
                Standing::Pending => {}
                Standing::Over => {
                    self.counts.duplicates += u64::from(!self.is_closed());
                    unwanted.push(result);
                }
                Standing::Void if self.begins_anew_there(index, executor, io) => retried.push(result),
                // Where its word that it has the task is still on its way, that is believed until the lease ends.
                Standing::Void | Standing::Old => unwanted.push(result),
                Standing::Unasked => self.counts.unasked += 1,
                Standing::MadeUp => {
                    self.take_back(index, executor, None, io);
                    // What it has said on the way here may still list the task.
                    self.placed.require_holding(executor.peer);
                    unwanted.push(result);
                }
                Standing::Fails if self.count_failed_try(&result, executor.peer) => {
                    let until = Some(self.next_try(index, io));
                    self.take_back(index, executor, until, io);
                    if !result.crashed {
                        // What is wrong may be in it.
                        begins_anew.extend(self.checkpoints.forget(index, self.bag.id));
                    }
                    retried.push(result);
                }
                Standing::Fails | Standing::Ends => self.fetch_decided(executor, result, io),
            }
        }
        let bag = self.bag.id;
        if self.counts.unasked > unasked_before {
            let (term, submitter) = (self.term(io, config), Some((&io.me).into()));
            let (drop, rest) = (IntervalSet::new(), Duration::ZERO);
            io.send(executor.clone(), Message::Lease { bag, version: 0, submitter, term, drop, rest, key: None });
        }
        Message::acks(bag, &unwanted).for_each(|ack| io.send(executor.clone(), ack));
        if !retried.is_empty() {
            let mut changes: Vec<Change> = retried.iter().map(|result| self.tries.change(result.index, bag)).collect();
            changes.extend(begins_anew);
            let acks = Message::acks(bag, &retried).map(|ack| Then::Send(executor.clone(), ack));
            io.persist(changes, acks.collect());
        }
        self.avoid_if_due(executor, io, config);
    }

    /// What a result is to this ledger; the first that holds.
    fn standing(&self, executor: &Contact, result: &TaskResult, io: &Io) -> Standing {
        let index = result.index;
        if io.is_recording(executor.peer, TaskId { bag: self.bag.id, index }) {
            // Said once more because the store is slow; whoever was acknowledged now would forget it too early.
            Standing::Pending
        } else if self.is_closed() || self.ended.contains(index) {
            Standing::Over
        } else if self.outputs.is_fetching(index) {
            Standing::Pending
        } else if self.tries.is_void(result) {
            Standing::Void
        } else if !result.success && !self.is_of_current_attempt(executor, result) {
            Standing::Old
        } else if !self.may_end(index, executor.peer, io) {
            Standing::Unasked
        } else if self.votes.is_quorum() && result.unfinished {
            Standing::MadeUp
        } else if !result.success && !result.unfinished && (result.crashed || !self.votes.is_quorum()) {
            Standing::Fails
        } else {
            Standing::Ends
        }
    }

    /// A machine says how a task ended before it was run again. Where it has the task, it was asked again, took what it had for
    /// an answer, and may say so once more before it hears of this; or this came twice, and it runs the task anew: what
    /// comes of that counts. True then.
    fn begins_anew_there(&mut self, index: u64, executor: &Contact, io: &mut Io) -> bool {
        let task = IntervalSet::from(index..index + 1);
        if !self.placed.holds(executor.peer, index) || !self.votes.of(executor.peer, &task).is_empty() {
            return false;
        }
        self.tries.not_before(index, self.attempt + 1);
        self.take_back(index, executor, None, io);
        self.placed.require_holding(executor.peer);
        let former = self.note_former(executor.peer, &task);
        io.persist(vec![former], Vec::new());
        true
    }

    /// This is how a task ended, or one vote on it; what is decided is fetched.
    fn fetch_decided(&mut self, executor: &Contact, result: TaskResult, io: &mut Io) {
        let index = result.index;
        let decided =
            if self.votes.is_quorum() { self.vote(executor, result, io) } else { Some((result, executor.clone())) };
        let Some((result, from)) = decided else { return };
        if result.content.is_some() {
            // It came with its output.
            return self.record_result(result, from, io);
        }
        io.effects.push(Effect::FetchOutput {
            task: TaskId { bag: self.bag.id, index },
            output: result.output,
            output_bytes: result.output_bytes,
            unfinished: result.unfinished,
            from: from.clone(),
        });
        self.outputs.fetch(result, from);
    }

    /// The output of a result is here (or could not be had: its executor will offer it again). Of a task that came back before
    /// its end the driver may have made another `checkpoint` of it, which is what requests name.
    pub(crate) fn fetched(&mut self, index: u64, here: bool, checkpoint: Option<Checkpoint>, io: &mut Io) {
        let Some((result, executor)) = self.outputs.fetched(index) else { return };
        if here {
            if result.unfinished {
                let came = Checkpoint { blob: result.output, bytes: result.output_bytes };
                self.record_checkpoint(&result, checkpoint.unwrap_or(came), executor, io);
            } else {
                self.record_result(result, executor, io);
            }
            return;
        }
        if !self.outputs.gives_up(index) {
            return;
        }
        self.votes.withdraw(executor.peer, index);
        let lost = IntervalSet::from(index..index + 1);
        let term = Duration::ZERO;
        let rest = Duration::ZERO;
        let lease = Message::Lease { bag: self.bag.id, version: 0, submitter: None, term, drop: lost, rest, key: None };
        io.send(executor.clone(), lease);
        self.counts.reissued += 1;
        self.take_back(index, &executor, None, io);
    }

    /// A task comes back before its end: it is issued again, to go on from its checkpoint.
    fn record_checkpoint(&mut self, result: &TaskResult, checkpoint: Checkpoint, executor: Contact, io: &mut Io) {
        let (bag, index) = (self.bag.id, result.index);
        let ack = Message::ack(bag, result);
        if self.is_closed() || !self.is_of_current_attempt(&executor, result) {
            io.send(executor, ack);
            return;
        }
        self.checkpoints.insert(index, checkpoint);
        // Its executor lists it until it hears of this: that is no new placement.
        self.tries.not_before(index, self.attempt + 1);
        let changes = vec![Change::Put(Record::Checkpoint { bag, index, checkpoint }), self.tries.change(index, bag)];
        io.persist(changes, vec![Then::Send(executor.clone(), ack)]);
        self.take_back(index, &executor, None, io);
    }

    /// Journals a result; only when that is durable does its executor hear of it.
    pub(crate) fn record_result(&mut self, result: TaskResult, executor: Contact, io: &mut Io) {
        if self.is_closed() || self.ended.contains(result.index) {
            return;
        }
        if result.success {
            self.avoided.note_end(executor.peer, true);
        }
        let since = self.placed.of(executor.peer).map_or(self.released, |placement| placement.since);
        self.work.note(executor.peer, &result, io.now.since(since), io.speed_mops);
        let bag = self.bag.id;
        let has_failed = self.tries.is_known(result.index);
        let checkpoint = self.checkpoints.forget(result.index, bag);
        self.settle(&result, Some(executor.peer));
        let mut changes: Vec<Change> = has_failed.then(|| self.tries.change(result.index, bag)).into_iter().collect();
        let ack = Message::ack(bag, &result);
        let (judged, mut then) = self.judge(&result, executor.peer, io);
        changes.extend(judged);
        let done = Record::Done { bag, executor: executor.peer, finished: io.wall(io.now), result };
        changes.push(Change::Put(done));
        changes.extend(checkpoint);
        then.push(Then::Send(executor, ack));
        io.persist(changes, then);
        self.close_if_over(io);
    }

    /// Ends the bag when every task is over; also after a crash between the last result and the end.
    pub(crate) fn close_if_over(&mut self, io: &mut Io) {
        if self.ended.len() == self.bag.tasks {
            self.close(Closing::Completed, io);
        }
    }

    /// Ends the bag; whoever still holds a part of it is told.
    pub(crate) fn close(&mut self, closing: Closing, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        self.closed = Some((closing, io.now));
        self.issues.clear();
        self.waiting.end_all_pauses();
        self.next_end = None;
        self.outputs.stop();
        self.votes.close();
        self.avoided.forget_all();
        let bag = self.bag.id;
        let mut changes = vec![Change::Put(self.record(io))];
        changes.extend(self.former.forget_all(bag));
        changes.extend(self.tries.forget_all(bag));
        changes.extend(self.checkpoints.forget_all(bag));
        let mut then = vec![Then::Notify(Notice::BagClosed(bag))];
        for (peer, placement) in self.placed.remove_all() {
            changes.push(Change::Delete(RecordKey::Placed(bag, peer)));
            if !placement.ranges.is_empty() {
                let (term, drop, rest) = (Duration::ZERO, placement.ranges, Duration::ZERO);
                let lease = Message::Lease { bag, version: 0, submitter: None, term, drop, rest, key: None };
                then.push(Then::Send(placement.executor, lease));
            }
        }
        io.persist(changes, then);
    }

    /// The requests for everything that is to be issued now, and the machine that one is for which others declined.
    pub(crate) fn issue(
        &mut self,
        known: impl Fn() -> Vec<Known>,
        io: &Io,
        config: &Config,
    ) -> Vec<(Option<Contact>, Request)> {
        let mut requests = Vec::new();
        if self.waiting.unissued().is_empty() || !self.may_issue() {
            return requests;
        }
        if let Some(task_mops) = self.work.of_task()
            && !self.bag.declared
        {
            self.bag.task_mops = task_mops.clamp(WORK_MOPS_MIN, BAG_WORK_MOPS_MAX);
        }
        let mut is_anybody_willing = true;
        while !self.waiting.unissued().is_empty() {
            let direct = is_anybody_willing.then(|| self.declined.direct(self.waiting.unissued()));
            let willing = direct.and_then(|direct| self.willing(&direct, &known, io));
            is_anybody_willing = willing.is_some();
            let from = willing.as_ref().map_or(self.waiting.unissued(), |(_, may_have)| may_have);
            let ranges = self.checkpoints.within_request(from.ranges().take(REQUEST_INTERVALS_MAX).collect());
            self.waiting.take(&ranges);
            let to = willing.map(|(to, _)| to);
            let only = to.as_ref().map(|to| to.peer);
            if let Some(to) = only {
                self.votes.send_to(to, ranges.len());
            }
            requests.push((to, self.request(ranges, only, io, config)));
        }
        requests
    }

    /// A request for these tasks, which are on their way from now on.
    fn request(&mut self, ranges: IntervalSet, to: Option<PeerId>, io: &Io, config: &Config) -> Request {
        let machines = if to.is_some() { 0 } else { ranges.len().min(io.leaves) };
        let machines = u32::try_from(machines).unwrap_or(u32::MAX);
        let unheard_until = io.now + config.placement_timeout;
        let until = unheard_until + answer_within(machines);
        let (number, end) = self.issues.send(ranges.clone(), to, io.now, unheard_until, until);
        self.ends_at(end);
        let checkpoints = self.checkpoints.of(&ranges);
        Request {
            bag: self.bag.clone(),
            number,
            attempt: self.attempt,
            ranges,
            age: io.now.since(self.released),
            path: crate::bag::Path::default(),
            climbed: 0,
            machines,
            leads: true,
            ticket: 0,
            checkpoints,
        }
    }

    /// When [`Ledger::expire`] is to be called next; there may be nothing to do then, but never before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next_end
    }
}
