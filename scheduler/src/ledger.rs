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
mod declined;
mod failures;
mod placements;
mod quorum;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use self::astray::Astray;
pub(crate) use self::astray::Hop;
pub use self::astray::Swallowed;
use self::declined::Declined;
pub use self::declined::Declines;
use self::failures::Failing;
pub(crate) use self::failures::{AVOID_MAX, FAILED_IN_ROW, Failures};
use self::placements::Placement;
pub(crate) use self::placements::{Holding, refuse};
pub(crate) use self::quorum::Known;
use self::quorum::Votes;
pub use self::quorum::{REPLICAS_MAX, Replication};
use self::work::Work;
use crate::bag::{
    BAG_WORK_MOPS_MAX, BagHeader, CHECKPOINTS_MAX, Checkpoint, DeclineReason, REQUEST_INTERVALS_MAX, Request, TaskId,
    TaskResult, answer_within,
};
use crate::config::Config;
use crate::io::{Io, Journalling, Then};
use crate::message::Message;
use crate::peer::{Effect, Notice};
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::{IntervalSet, IntervalTree};
use crate::record::{Change, Closing, Record, RecordKey};

/// Times that the output of a task may fail to arrive before the task is run again elsewhere. Our choice.
const UNFETCHED_MAX: u32 = 5;

/// Tasks on their way.
#[derive(Debug)]
struct Issue {
    /// Of the request.
    number: u64,
    ranges: IntervalSet,
    /// The only machine that may have them; none: whoever they reach.
    to: Option<PeerId>,
    /// When they were sent.
    at: Time,
    /// Issued again when nobody accounts for them by then.
    until: Time,
    /// Issued again when nobody has accounted for any of them by then, while nobody has: who gets the first of them answers
    /// at once, so that they were lost on their way, all together.
    unheard_until: Option<Time>,
    /// By which first hops they went, but for those that have passed them on.
    hops: Vec<Hop>,
}

impl Issue {
    /// When it is given up.
    fn end(&self) -> Time {
        self.unheard_until.map_or(self.until, |unheard| unheard.min(self.until))
    }
}

/// One bag, on the machine that submitted it.
#[derive(Debug)]
pub(crate) struct Ledger {
    bag: BagHeader,
    released: Time,
    retries_max: u32,
    closed: Option<(Closing, Time)>,
    /// Durable, measured, and so to be issued.
    open: bool,
    /// Whether anybody can hold tasks of it: not before the first are issued, in this life or an earlier.
    may_be_held: bool,
    unissued: IntervalSet,
    /// To be issued then.
    pausing: BTreeMap<Time, IntervalSet>,
    issued: Vec<Issue>,
    placed: BTreeMap<PeerId, Placement>,
    /// What machines accounted for once: they may yet have results of it.
    former: BTreeMap<PeerId, IntervalSet>,
    /// Most copies of one task, but where votes disagree.
    replicas: usize,
    replication: Replication,
    votes: Votes,
    /// At j: the indices that more than j executors hold.
    copies: Vec<IntervalTree>,
    /// Before this moment no lease ends and no request is given up; set to the first such moment whenever it is
    /// reached. A renewal does not move it: that would need the leases in order.
    next_end: Option<Time>,
    done: IntervalTree,
    failed: IntervalTree,
    /// Failed tries of tasks that are not over.
    failures: BTreeMap<u64, Failures>,
    /// Failed tries of all tasks, and on which machines the last one failed; of this life only.
    tries_failed: u64,
    failing: BTreeMap<PeerId, Failing>,
    declined: Declined,
    astray: Astray,
    /// What tasks that are not over go on from.
    checkpoints: BTreeMap<u64, Checkpoint>,
    /// Outputs that could not be fetched, of tasks that are not over.
    unfetched: BTreeMap<u64, u32>,
    /// Results whose output is on its way here.
    fetching: BTreeMap<u64, (TaskResult, Contact)>,
    /// What machines say of the work of tasks, and what was measured or declared here before.
    work: Work,
    measured_mops: f64,
    /// Of the last request issued.
    number: u64,
    attempt: u32,
    reissued: u64,
    duplicates: u64,
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
        let mut unissued = IntervalSet::new();
        unissued.insert(0..bag.tasks);
        let measured_mops = bag.task_mops;
        Self {
            bag,
            released,
            retries_max,
            closed: None,
            open: false,
            may_be_held: false,
            unissued,
            pausing: BTreeMap::new(),
            issued: Vec::new(),
            placed: BTreeMap::new(),
            former: BTreeMap::new(),
            replicas: replication.replicas as usize,
            replication,
            votes: Votes::default(),
            copies: Vec::new(),
            next_end: None,
            done: IntervalTree::default(),
            failed: IntervalTree::default(),
            failures: BTreeMap::new(),
            tries_failed: 0,
            failing: BTreeMap::new(),
            declined: Declined::default(),
            astray: Astray::default(),
            checkpoints: BTreeMap::new(),
            unfetched: BTreeMap::new(),
            fetching: BTreeMap::new(),
            work: Work::default(),
            measured_mops,
            // Above every number of an earlier life of this machine.
            number: u64::try_from(io.wall(io.now).0).unwrap_or(0),
            attempt: 0,
            reissued: 0,
            duplicates: 0,
            unasked: 0,
        }
    }

    pub(crate) fn restore_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.may_be_held = true;
    }

    pub(crate) fn restore_closed(&mut self, closing: Closing, at: Time) {
        self.closed = Some((closing, at));
    }

    pub(crate) fn restore_done(&mut self, executor: PeerId, result: &TaskResult, finished: Time, io: &Io) {
        self.work.note(executor, result, finished.since(self.released), io.speed_mops);
        self.settle(result, None);
    }

    pub(crate) fn restore_checkpoint(&mut self, index: u64, checkpoint: Checkpoint) {
        if index < self.bag.tasks && !self.done.contains(index) && !self.failed.contains(index) {
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
        let (done, failed) = self.over();
        if done.len() + failed.len() < self.bag.tasks {
            self.closed = None;
        }
    }

    /// Whether this task is over, in the journal or on its way there.
    pub(crate) fn is_over(&self, index: u64) -> bool {
        self.done.contains(index) || self.failed.contains(index)
    }

    /// The tasks that have succeeded, and those that have failed, likewise.
    pub(crate) fn over(&self) -> (IntervalSet, IntervalSet) {
        (self.done.ranges().collect(), self.failed.ranges().collect())
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
            retries_max: self.retries_max,
            attempt: self.attempt,
            closed: self.closed.map(|(closing, at)| (closing, io.wall(at))),
            replication: self.replication,
        }
    }

    pub(crate) fn view(&self) -> BagView {
        let held = |ranges| self.copies.first().map_or(0, |placed| placed.intersection(ranges).len());
        let issued: u64 = self.issued.iter().map(|issue| issue.ranges.len() - held(&issue.ranges)).sum();
        BagView {
            bag: self.bag.clone(),
            released: self.released,
            done: self.done.len(),
            failed: self.failed.len(),
            placed: self.copies.first().map_or(0, IntervalTree::len),
            executors: self.placed.len() as u64,
            unplaced: self.unissued.len() + self.pausing.values().map(IntervalSet::len).sum::<u64>() + issued,
            reissued: self.reissued,
            duplicates: self.duplicates,
            unasked: self.unasked,
            astray: self.astray_tasks(),
            swallowed: self.swallowed(),
            measured_mops: self.work.of_task(self.measured_mops).unwrap_or(0.0),
            overstated: self.work.overstated,
            replication: self.replication,
            disputed: self.votes.disputed,
            undecided: self.undecided(),
            declined: self.declined.reasons.clone(),
            closed: self.closed,
        }
    }

    /// Sets a and w once the first task has shown them.
    pub(crate) fn set_work(&mut self, task_mops: f64, application_size_mops: f64) {
        self.measured_mops = task_mops;
        self.bag.task_mops = task_mops;
        self.bag.application_size_mops = application_size_mops;
    }

    /// A task is over.
    fn settle(&mut self, result: &TaskResult, executor: Option<PeerId>) {
        self.withdraw(result.index, executor);
        self.failures.remove(&result.index);
        self.declined.over(result.index);
        self.unfetched.remove(&result.index);
        let index = result.index..result.index + 1;
        if result.success {
            self.done.insert(index);
        } else {
            self.failed.insert(index);
        }
    }

    /// What is placed nowhere after a restart may have been issued before: somebody may have it, or have dropped it.
    pub(crate) fn issue_anew(&mut self, io: &mut Io) {
        if !self.is_closed() && !self.unissued.is_empty() {
            self.next_attempt(&IntervalSet::new(), io);
        }
    }

    /// The attempt is journalled, so that it goes on rising after a restart.
    fn next_attempt(&mut self, ranges: &IntervalSet, io: &mut Io) {
        self.attempt += 1;
        self.unissued.extend_with(ranges);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Finished tasks arrive: their output is fetched, and only then do they count. Those of a machine that never had the
    /// task are not taken; it has to say what it holds, since that word may have been lost.
    pub(crate) fn results(&mut self, executor: &Contact, results: Vec<TaskResult>, io: &mut Io, config: &Config) {
        let (mut unwanted, mut retried) = (Vec::new(), Vec::new());
        let (mut begins_anew, unasked_before) = (Vec::new(), self.unasked);
        let tasks = self.bag.tasks;
        for result in results.into_iter().filter(|result| result.is_valid(tasks)) {
            let index = result.index;
            match self.standing(executor, &result, io) {
                Standing::Pending => {}
                Standing::Over => {
                    self.duplicates += u64::from(!self.is_closed());
                    unwanted.push(result);
                }
                Standing::Void if self.begins_anew_there(index, executor, io) => retried.push(result),
                // Where its word that it has the task is still on its way, that is believed until the lease ends.
                Standing::Void | Standing::Old => unwanted.push(result),
                Standing::Unasked => self.unasked += 1,
                Standing::MadeUp => {
                    self.take_back(index, executor, None, io);
                    // What it has said on the way here may still list the task.
                    self.has_to_say(executor.peer);
                    unwanted.push(result);
                }
                Standing::Fails if self.counts_and_retries(&result, executor.peer) => {
                    let until = Some(self.next_try(index, io));
                    self.take_back(index, executor, until, io);
                    if !result.crashed {
                        // What is wrong may be in it.
                        begins_anew.extend(self.forget_checkpoint(index));
                    }
                    retried.push(result);
                }
                Standing::Fails | Standing::Ends => self.fetch_decided(executor, result, io),
            }
        }
        let bag = self.bag.id;
        if self.unasked > unasked_before {
            let (term, submitter) = (self.term(io, config), Some((&io.me).into()));
            let (drop, rest) = (IntervalSet::new(), Duration::ZERO);
            io.send(executor.clone(), Message::Lease { bag, version: 0, submitter, term, drop, rest, key: None });
        }
        Message::acks(bag, &unwanted).for_each(|ack| io.send(executor.clone(), ack));
        if !retried.is_empty() {
            let mut changes: Vec<Change> = retried.iter().map(|result| self.failures_change(result.index)).collect();
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
        } else if self.is_closed() || self.done.contains(index) || self.failed.contains(index) {
            Standing::Over
        } else if self.fetching.contains_key(&index) {
            Standing::Pending
        } else if self.is_void(result) {
            Standing::Void
        } else if !result.success && !self.is_news(executor, result) {
            Standing::Old
        } else if !self.may_end(index, executor.peer, io) {
            Standing::Unasked
        } else if self.is_replicated() && result.unfinished {
            Standing::MadeUp
        } else if !result.success && !result.unfinished && (result.crashed || !self.is_replicated()) {
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
        let is_there = self.placed.get(&executor.peer).is_some_and(|known| known.ranges.contains(index));
        if !is_there || !self.votes.of(executor.peer, &task).is_empty() {
            return false;
        }
        self.not_before_next_attempt(index);
        self.take_back(index, executor, None, io);
        self.has_to_say(executor.peer);
        let former = self.part(executor.peer, &task);
        io.persist(vec![former], Vec::new());
        true
    }

    /// This is how a task ended, or one vote on it; what is decided is fetched.
    fn fetch_decided(&mut self, executor: &Contact, result: TaskResult, io: &mut Io) {
        let index = result.index;
        let decided =
            if self.is_replicated() { self.vote(executor, result, io) } else { Some((result, executor.clone())) };
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
        self.fetching.insert(index, (result, from));
    }

    /// The output of a result is here (or could not be had: its executor will offer it again). Of a task that came back before
    /// its end the driver may have made another `checkpoint` of it, which is what requests name.
    pub(crate) fn fetched(&mut self, index: u64, here: bool, checkpoint: Option<Checkpoint>, io: &mut Io) {
        let Some((result, executor)) = self.fetching.remove(&index) else { return };
        if here {
            if result.unfinished {
                let came = Checkpoint { blob: result.output, bytes: result.output_bytes };
                self.record_checkpoint(&result, checkpoint.unwrap_or(came), executor, io);
            } else {
                self.record_result(result, executor, io);
            }
            return;
        }
        let unfetched = self.unfetched.entry(index).or_insert(0);
        *unfetched += 1;
        if *unfetched < UNFETCHED_MAX {
            // Its executor offers it again.
            return;
        }
        self.unfetched.remove(&index);
        self.votes.withdraw(executor.peer, index);
        let lost = IntervalSet::from(index..index + 1);
        let term = Duration::ZERO;
        let rest = Duration::ZERO;
        let lease = Message::Lease { bag: self.bag.id, version: 0, submitter: None, term, drop: lost, rest, key: None };
        io.send(executor.clone(), lease);
        self.reissued += 1;
        self.take_back(index, &executor, None, io);
    }

    /// A task comes back before its end: it is issued again, to go on from its checkpoint.
    fn record_checkpoint(&mut self, result: &TaskResult, checkpoint: Checkpoint, executor: Contact, io: &mut Io) {
        let (bag, index) = (self.bag.id, result.index);
        let ack = Message::ack(bag, result);
        if self.is_closed() || !self.is_news(&executor, result) {
            io.send(executor, ack);
            return;
        }
        self.checkpoints.insert(index, checkpoint);
        // Its executor lists it until it hears of this: that is no new placement.
        self.not_before_next_attempt(index);
        let changes = vec![Change::Put(Record::Checkpoint { bag, index, checkpoint }), self.failures_change(index)];
        io.persist(changes, vec![Then::Send(executor.clone(), ack)]);
        self.take_back(index, &executor, None, io);
    }

    /// The task begins anew, or needs no checkpoint any more.
    fn forget_checkpoint(&mut self, index: u64) -> Option<Change> {
        self.checkpoints.remove(&index).map(|_| Change::Delete(RecordKey::Checkpoint(self.bag.id, index)))
    }

    /// Journals a result; only when that is durable does its executor hear of it.
    pub(crate) fn record_result(&mut self, result: TaskResult, executor: Contact, io: &mut Io) {
        if self.is_closed() || self.done.contains(result.index) || self.failed.contains(result.index) {
            return;
        }
        if result.success {
            self.note_end(executor.peer, true);
        }
        let since = self.placed.get(&executor.peer).map_or(self.released, |placement| placement.since);
        self.work.note(executor.peer, &result, io.now.since(since), io.speed_mops);
        let has_failed = self.failures.contains_key(&result.index);
        let checkpoint = self.forget_checkpoint(result.index);
        self.settle(&result, Some(executor.peer));
        let bag = self.bag.id;
        let mut changes: Vec<Change> = has_failed.then(|| self.failures_change(result.index)).into_iter().collect();
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
        if self.done.len() + self.failed.len() == self.bag.tasks {
            self.close(Closing::Completed, io);
        }
    }

    /// Ends the bag; whoever still holds a part of it is told.
    pub(crate) fn close(&mut self, closing: Closing, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        self.closed = Some((closing, io.now));
        self.issued.clear();
        self.copies.clear();
        self.next_end = None;
        self.fetching.clear();
        self.votes.close();
        let bag = self.bag.id;
        let mut changes = vec![Change::Put(self.record(io))];
        changes.extend(self.forget_former());
        changes.extend(self.forget_failures());
        let gone = std::mem::take(&mut self.checkpoints);
        changes.extend(gone.into_keys().map(|index| Change::Delete(RecordKey::Checkpoint(bag, index))));
        let mut then = vec![Then::Notify(Notice::BagClosed(bag))];
        for (peer, placement) in std::mem::take(&mut self.placed) {
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
        if self.unissued.is_empty() || !self.open || self.is_closed() || !self.is_measured() {
            return requests;
        }
        if let Some(task_mops) = self.work.of_task(self.measured_mops)
            && !self.bag.declared
        {
            self.bag.task_mops = task_mops.clamp(WORK_MOPS_MIN, BAG_WORK_MOPS_MAX);
        }
        let mut is_anybody_willing = true;
        while !self.unissued.is_empty() {
            let direct = is_anybody_willing.then(|| self.declined.direct(&self.unissued));
            let willing = direct.and_then(|direct| self.willing(&direct, &known, io));
            is_anybody_willing = willing.is_some();
            let from = willing.as_ref().map_or(&self.unissued, |(_, may_have)| may_have);
            let mut ranges: IntervalSet = from.ranges().take(REQUEST_INTERVALS_MAX).collect();
            let mut checkpoints = self.checkpoints.keys().filter(|index| ranges.contains(**index));
            if let Some(&end) = checkpoints.nth(CHECKPOINTS_MAX) {
                ranges = ranges.intersection(&IntervalSet::from(0..end));
            }
            self.unissued.subtract(&ranges);
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
        self.number += 1;
        self.may_be_held = true;
        let machines = if to.is_some() { 0 } else { ranges.len().min(io.leaves) };
        let machines = u32::try_from(machines).unwrap_or(u32::MAX);
        let until = io.now + config.placement_timeout + answer_within(machines);
        let unheard_until = Some(io.now + config.placement_timeout);
        let (number, hops) = (self.number, Vec::new());
        let issue = Issue { number, ranges: ranges.clone(), to, at: io.now, until, unheard_until, hops };
        self.ends_at(issue.end());
        self.issued.push(issue);
        let checkpoints = self.checkpoints.iter().filter(|(index, _)| ranges.contains(**index)).take(CHECKPOINTS_MAX);
        let checkpoints = checkpoints.map(|(index, checkpoint)| (*index, *checkpoint)).collect();
        Request {
            bag: self.bag.clone(),
            number: self.number,
            attempt: self.attempt,
            ranges,
            age: io.now.since(self.released),
            path: crate::bag::Path::default(),
            climbed: 0,
            machines,
            leads: true,
            checkpoints,
        }
    }

    /// When [`Ledger::expire`] is to be called next; there may be nothing to do then, but never before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next_end
    }
}
