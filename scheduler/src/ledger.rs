//! The submitter's ledger: where every task of a bag is, so that none is lost and each counts once.
//!
//! At any moment the indices of a bag are the disjoint union of unissued, of later rounds (`rounds`), pausing (failed, to be tried
//! again later), done, failed, and those with copies: issued (in a request) or placed (on an executor, under a lease). A task has one copy, or,
//! in a bag with replicas, up to so many on as many executors;
//! one that stands still, or seems to end last of all, may have a second one (`copies`). A copy is gone when its lease ends, no machine accounts for
//! its request in time, or its executor no longer lists the task. A task without a copy is unissued and is issued again at
//! once; that counts as no failure. The first valid result of a task wins, or, in a bag with a quorum, the one that
//! a quorum of machines votes for (`quorum`).
//!
//! The ledger keeps intervals, never single tasks, and scans no executors for a result or a renewal: it counts the copies of
//! each index, looks first at the executor that sent the message, and keeps a moment before which no lease ends. It does
//! look at each request on its way. These are few, unless many scattered tasks are issued again: a request has at most
//! [`REQUEST_INTERVALS_MAX`] intervals, and each named machine gets requests of its own.

mod astray;
mod at_once;
mod avoided;
mod checkpoints;
mod conditions;
mod copies;
mod declined;
mod ended;
mod endless;
mod failures;
mod former;
#[cfg(debug_assertions)]
mod invariants;
mod issues;
mod keeping;
mod outputs;
mod past;
mod placed;
mod placements;
mod predicting;
mod preferring;
mod quorum;
mod results;
mod rounds;
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
use self::copies::Copies;
use self::declined::Declined;
pub use self::declined::Declines;
use self::ended::Ended;
use self::endless::EndlessPart;
pub use self::endless::Supply;
pub(crate) use self::failures::Failures;
use self::failures::Tries;
use self::former::Former;
pub(crate) use self::issues::Hop;
use self::issues::{Issue, Issues};
pub(crate) use self::keeping::ATTEMPTS_BELIEVED_MAX;
use self::keeping::Keeping;
use self::outputs::Outputs;
use self::placed::Placed;
pub(crate) use self::placements::{Holding, refuse};
pub use self::predicting::{KeptPrediction, Prediction};
use self::predicting::{Known as OfBag, Predicting};
pub(crate) use self::quorum::Known;
use self::quorum::Votes;
pub use self::quorum::{REPLICAS_MAX, Replication};
use self::rounds::Rounds;
use self::waiting::Waiting;
use self::work::Work;
use crate::bag::{
    BAG_WORK_MOPS_MAX, BagHeader, BagId, Checkpoint, DeclineReason, REQUEST_INTERVALS_MAX, Request, TaskResult,
};
use crate::conditions::{Awaited, Conditions};
use crate::config::Config;
use crate::enclosed::Enclosed;
use crate::endless::EndlessView;
use crate::io::{Io, Journalling, Then};
use crate::link::Writers;
use crate::message::Message;
use crate::peer::Notice;
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record, RecordKey};

/// One bag, on the machine that submitted it. Each field accounts for one thing.
#[derive(Debug)]
pub(crate) struct Ledger {
    bag: BagHeader,
    released: Time,
    /// When it was submitted: r, unless its user held it at first.
    submitted: Time,
    closed: Option<(Closing, Time)>,
    /// The bag's record is durable.
    open: bool,
    /// a and w are durable, so that requests may name them.
    sized: bool,
    /// The first task was given out to be measured.
    is_measuring: bool,
    /// The newest attempt number of requests.
    attempt: u32,
    waiting: Waiting,
    issues: Issues,
    /// Travels with its requests through the tree.
    envelope: Enclosed,
    /// Travels with the first lease of each executor.
    manifest: Enclosed,
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
    copies: Copies,
    /// The work of a task, as executors report it.
    work: Work,
    predicting: Predicting,
    keeping: Keeping,
    conditions: Conditions,
    /// Of an endless bag.
    endless: Option<Box<EndlessPart>>,
    rounds: Option<Rounds>,
    counts: Counts,
    /// No lease, pause or request ends before this moment, at which the ledger looks for the first that does. A renewal does
    /// not move it: that would need the leases in order.
    next_end: Option<Time>,
}

/// Counters that the user is shown.
#[derive(Debug, Default)]
struct Counts {
    /// Tasks that had to be issued again.
    reissued: u64,
    /// Results of tasks that had ended already.
    duplicates: u64,
    /// Results from machines that never had the task.
    unasked: u64,
}

/// A bag as its submitter sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct BagView {
    /// The bag's numbers; `task_mops` is 0 until measured.
    pub bag: BagHeader,
    /// r.
    pub released: Time,
    /// When it was submitted: r, unless its user held it at first, or it waited for others.
    pub submitted: Time,
    /// Tasks that succeeded, by journalled results.
    pub done: u64,
    /// Tasks that failed for good, likewise.
    pub failed: u64,
    /// Tasks for which a machine accounts.
    pub placed: u64,
    /// Machines that account for tasks.
    pub executors: u64,
    /// Tasks in requests for which no machine accounts yet, unissued ones, and pausing ones.
    pub unplaced: u64,
    /// Those of them that pause, since they failed or were declined.
    pub pausing: u64,
    /// When the first of these pauses ends.
    pub pausing_until: Option<Time>,
    /// Tasks in requests for which no machine accounts yet.
    pub unheard: u64,
    /// When the oldest of these requests was sent.
    pub unheard_since: Option<Time>,
    /// Tasks that had to be issued again.
    pub reissued: u64,
    /// Results of tasks that had ended already.
    pub duplicates: u64,
    /// Machines on which tasks ended, with success or not, up to 256.
    pub machines_used: u64,
    /// Work of all tasks that ended, on those machines and any others, in Mop.
    pub work_done_mops: f64,
    /// Work of one task by the median of the machines on which tasks succeeded, in Mop; 0 before the first.
    pub measured_mops: f64,
    /// The least and the most work of a task that succeeded, in Mop; `None` before the first.
    pub spread_mops: Option<(f64, f64)>,
    /// Results with more work than their machine can have done since it was sent the task: their work does not count.
    pub overstated: u64,
    /// How many machines run each task.
    pub replication: Replication,
    /// Tasks that were decided by unlike votes.
    pub disputed: u64,
    /// Tasks that lacked a vote, and a known machine to ask for it, when the ledger last looked for one.
    pub undecided: u64,
    /// Tasks that machines did not queue, by reason.
    pub declined: BTreeMap<DeclineReason, Declines>,
    /// Results that were refused: their sender never had the task.
    pub unasked: u64,
    /// Tasks sent around the tree after requests for them were lost, each as often as it was sent.
    pub astray: u64,
    /// Routers that alone had to pass on tasks for which no machine then accounted.
    pub swallowed: BTreeMap<PeerId, Swallowed>,
    /// What its user says of when its tasks may be issued.
    pub conditions: Conditions,
    /// The bags for which it waits, and why they have not succeeded.
    pub awaited: BTreeMap<BagId, Awaited>,
    /// Of an endless bag: what it has of the grid.
    pub endless: Option<EndlessView>,
    /// How and when the bag ended.
    pub closed: Option<(Closing, Time)>,
}

impl BagView {
    /// The view that the user is shown: without results and an end that are not on disk yet.
    pub(crate) fn durable(mut self, unwritten: Journalling) -> Self {
        self.done = self.done.saturating_sub(unwritten.done);
        self.failed = self.failed.saturating_sub(unwritten.failed);
        self.closed = self.closed.filter(|_| unwritten.closings == 0);
        self
    }

    /// (C − r)/w in s/Mop; `None` while the bag is not closed.
    pub fn stretch(&self) -> Option<f64> {
        let (_, closed) = self.closed?;
        (self.bag.application_size_mops > 0.0)
            .then(|| closed.since(self.released).as_secs_f64() / self.bag.application_size_mops)
    }
}

impl Ledger {
    /// A bag just submitted; nothing is issued before [`Ledger::open`].
    pub(crate) fn new(bag: BagHeader, released: Time, retries_max: u32, replication: Replication, io: &Io) -> Self {
        // Above every number of an earlier life of this machine.
        let number = u64::try_from(io.wall(io.now).0).unwrap_or(0);
        Self {
            released,
            submitted: released,
            closed: None,
            open: false,
            sized: false,
            is_measuring: false,
            attempt: 0,
            waiting: Waiting::new(bag.tasks),
            issues: Issues::new(number),
            envelope: Enclosed::default(),
            manifest: Enclosed::default(),
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
            copies: Copies::default(),
            work: Work::new(bag.task_mops),
            predicting: Predicting::default(),
            keeping: Keeping::default(),
            conditions: Conditions::default(),
            endless: None,
            rounds: None,
            counts: Counts::default(),
            next_end: None,
            bag,
        }
    }

    /// Takes the short files that travel with the bag's tasks. They are not journalled: once this machine has been started again its executors fetch them.
    pub(crate) fn enclose(&mut self, envelope: Enclosed, manifest: Enclosed) {
        (self.envelope, self.manifest) = (envelope, manifest);
    }

    pub(crate) fn restore_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.issues.restore();
    }

    pub(crate) fn restore_closed(&mut self, closing: Closing, at: Time) {
        self.closed = Some((closing, at));
    }

    pub(crate) fn restore_done(&mut self, executor: PeerId, result: &TaskResult, finished: Time, io: &Io) {
        self.work.note(executor, result, finished.since(self.released), io.start_mops);
        self.predicting.restore(finished);
        if self.ended.contains(result.index) {
            return;
        }
        self.settle(result, None);
        self.learn_of_round(result, Some(executor));
        self.note_undrained(result, None);
    }

    pub(crate) fn restore_checkpoint(&mut self, index: u64, checkpoint: Checkpoint) {
        if index < self.tasks() && !self.ended.contains(index) {
            self.checkpoints.insert(index, checkpoint);
            self.waiting.begin(index);
        }
    }

    /// The bag's record is durable: its tasks may be issued, once they are measured and that is durable, too.
    pub(crate) fn open(&mut self) {
        self.open = true;
        self.sized = self.is_measured();
    }

    /// Whether the bag's record is durable, so that its user knows that the bag was accepted.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// How it was closed; the write of that may be under way.
    pub(crate) fn closing(&self) -> Option<Closing> {
        self.closed.map(|(closing, _)| closing)
    }

    /// Whether any of its tasks has failed for good.
    pub(crate) fn has_failed_tasks(&self) -> bool {
        self.ended.failed() > 0
    }

    /// After all stored results were restored: a closed bag with a task that has not ended is open again.
    pub(crate) fn reopen_unless_over(&mut self) {
        // A bag in rounds that can go no further is over with tasks that have not begun.
        let is_over = self.ended.len() >= self.tasks() || self.can_go_no_further() && self.has_nothing_due();
        if !is_over || !self.is_supply_ended() {
            self.closed = None;
        }
    }

    /// After all stored results were restored: the pace of the bag, and what was predicted from it, follow from them.
    pub(crate) fn restore_predictions(&mut self, io: &Io) {
        let of_bag = self.of_bag(io);
        self.predicting.all_restored(of_bag);
    }

    /// What predictions need to know of the bag.
    fn of_bag(&self, io: &Io) -> OfBag {
        let task_mops = self.work.of_task().unwrap_or(self.bag.task_mops);
        let task = Duration::try_from_secs_f64(task_mops / io.speed_mops).unwrap_or_default();
        OfBag { tasks: self.bag.tasks, released: self.released, task }
    }

    /// When the bag ends, by the pace of its tasks so far; `None` before the first has ended, and once the bag is closed.
    pub(crate) fn predicted_end(&self, io: &Io) -> Option<Prediction> {
        if self.is_closed() || self.is_endless() { None } else { self.predicting.predict(io.now, self.of_bag(io)) }
    }

    /// The ends that were predicted after each tenth of the bag's tasks.
    pub(crate) fn predictions(&self) -> &[KeptPrediction] {
        self.predicting.kept()
    }

    /// By how much predictions of the end were wrong in the mean, as a share of the time that the bag took; `None` before it has ended.
    pub(crate) fn prediction_error(&self) -> Option<f64> {
        let (_, at) = self.closed.filter(|(closing, _)| *closing == Closing::Completed)?;
        self.predicting.error(self.released, at)
    }

    /// Whether this task has ended; the write of its result may be under way.
    pub(crate) fn is_over(&self, index: u64) -> bool {
        self.ended.contains(index)
    }

    /// The tasks that have succeeded, and those that have failed; writes of their results may be under way.
    pub(crate) fn ended(&self) -> (IntervalSet, IntervalSet) {
        self.ended.sets()
    }

    /// The tasks that wait until they are tried again.
    pub(crate) fn pausing(&self) -> IntervalSet {
        self.waiting.pausing().fold(IntervalSet::new(), |all, ranges| all.union(ranges))
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
            stewards: self.keeping.stewards,
            keep_results: self.keeping.keep_results,
            reruns: self.keeping.reruns,
            conditions: Box::new(self.recorded_conditions(io)),
            supply: self.supply(),
        }
    }

    pub(crate) fn view(&self) -> BagView {
        let held = |ranges: &IntervalSet| self.placed.held_by_more_than(0, ranges).len();
        let unheard = |issue: &&Issue| issue.ranges.len() > held(&issue.ranges);
        let issued: u64 = self.issues.iter().map(|issue| issue.ranges.len() - held(&issue.ranges)).sum();
        let (machines_used, work_done_mops) = self.work.done();
        BagView {
            bag: self.bag.clone(),
            released: self.released,
            submitted: self.submitted,
            done: self.ended.done(),
            failed: self.ended.failed(),
            placed: self.placed.tasks(),
            executors: self.placed.executors(),
            // Those of an open range that were never given are no backlog.
            unplaced: self.waiting.len_below(self.given()) + issued,
            pausing: self.waiting.pauses(),
            pausing_until: self.waiting.first_end(),
            unheard: issued,
            unheard_since: self.issues.iter().filter(unheard).map(|issue| issue.at).min(),
            machines_used,
            work_done_mops,
            reissued: self.counts.reissued,
            duplicates: self.counts.duplicates,
            unasked: self.counts.unasked,
            astray: self.astray.tasks(),
            swallowed: self.astray.swallowed(),
            measured_mops: self.work.of_task().unwrap_or(0.0),
            spread_mops: self.work.spread_mops(),
            overstated: self.work.overstated(),
            replication: self.votes.replication(),
            disputed: self.votes.disputed(),
            undecided: self.votes.undecided(),
            declined: self.declined.reasons(),
            conditions: self.conditions.clone(),
            awaited: BTreeMap::new(),
            endless: None,
            closed: self.closed,
        }
    }

    /// Sets a and w as the first task showed them; nothing is issued before [`Ledger::open`].
    pub(crate) fn set_work(&mut self, task_mops: f64, application_size_mops: f64) {
        self.work.measured(task_mops);
        self.bag.task_mops = task_mops;
        self.bag.application_size_mops = application_size_mops;
    }

    /// A task has ended.
    fn settle(&mut self, result: &TaskResult, executor: Option<PeerId>) {
        self.withdraw(result.index, executor);
        self.forget(result.index);
        self.learn_of_round(result, executor);
        self.ended.insert(result.index, result.success);
    }

    /// What is known of a task's tries is of no use any more, since it has ended.
    fn forget(&mut self, index: u64) {
        self.tries.forget(index);
        self.declined.forget(index);
        self.outputs.forget(index);
        self.copies.forget(index);
        self.keeping.lost.remove_index(index);
    }

    /// Closes the bag if all its tasks have ended, or its rounds can go no further; also after a crash between the last result and the closing.
    ///
    /// A steward closes nothing.
    pub(crate) fn close_if_over(&mut self, io: &mut Io) {
        let is_over = self.ended.len() == self.tasks() && self.is_supply_ended() || self.can_go_no_further();
        if is_over && !self.is_closed() && !self.is_kept() {
            self.close(Closing::Completed, io);
        }
    }

    /// Closes the bag; executors that hold tasks of it are sent a `Lease` that drops them.
    pub(crate) fn close(&mut self, closing: Closing, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        self.closed = Some((closing, io.now));
        self.issues.clear();
        self.waiting.end_all_pauses();
        self.next_end = None;
        self.outputs.stop();
        self.copies.close();
        self.close_rounds();
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
                let lease = Message::lease(bag, None, Duration::ZERO, placement.ranges);
                then.push(Then::Send(placement.executor, lease));
            }
        }
        io.persist(changes, then);
    }

    /// Requests for all unissued tasks. One for tasks that machines declined may name the machine that it goes to.
    pub(crate) fn issue(
        &mut self,
        known: impl Fn() -> Vec<Known>,
        io: &Io,
        config: &Config,
    ) -> Vec<(Option<Contact>, Request)> {
        if self.waiting.unissued().is_empty() || !self.may_issue() {
            return Vec::new();
        }
        if let Some(task_mops) = self.work.of_task()
            && !self.bag.declared
        {
            self.bag.task_mops = task_mops.clamp(WORK_MOPS_MIN, BAG_WORK_MOPS_MAX);
        }
        let mut requests = self.issue_to_preferred(io, config);
        let mut is_anybody_willing = true;
        while !self.waiting.unissued().is_empty() {
            let direct = is_anybody_willing.then(|| self.declined.direct(self.waiting.unissued()));
            let willing = direct.and_then(|direct| self.willing(&direct, &known, io));
            is_anybody_willing = willing.is_some();
            let from = willing.as_ref().map_or(self.waiting.unissued(), |(_, may_have)| may_have);
            let ranges = self.within_room(self.apart(from.ranges().take(REQUEST_INTERVALS_MAX).collect()));
            let ranges = self.checkpoints.within_request(ranges);
            if ranges.is_empty() {
                break;
            }
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

    /// A request for these tasks, which are issued from now on.
    fn request(&mut self, ranges: IntervalSet, to: Option<PeerId>, io: &Io, config: &Config) -> Request {
        let machines = if to.is_some() { 0 } else { ranges.len().min(io.leaves) };
        let machines = u32::try_from(machines).unwrap_or(u32::MAX);
        let unheard_until = io.now + config.placement_timeout;
        let link_kb_s = io.link_kb_s;
        let until = unheard_until + Writers { machines, link_kb_s }.answer_within();
        let (number, end) = self.issues.send(ranges.clone(), to, io.now, unheard_until, until);
        self.note_sent(&ranges, io.now);
        self.ends_at(end);
        let (checkpoints, begins_within) = (self.checkpoints.of(&ranges), self.begins_within(&ranges));
        Request {
            bag: self.bag.clone(),
            number,
            attempt: self.attempt,
            ranges,
            age: io.now.since(self.released),
            path: crate::bag::Path::default(),
            climbed: 0,
            machines,
            link_kb_s,
            leads: true,
            copy: None,
            begins_within,
            ticket: 0,
            checkpoints,
            lines: Box::default(),
            envelope: if to.is_none() { self.envelope.clone() } else { Enclosed::default() },
            acting: io.acts_for_another(self.bag.id),
        }
    }

    /// Whether the request with this number has tasks for which no machine accounts, and is waited for.
    pub(crate) fn is_under_way(&self, number: u64) -> bool {
        self.issues.iter().any(|issue| issue.number == number)
    }

    /// When [`Ledger::expire`] is to be called next: nothing ends before, and nothing may end then.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next_end
    }
}
