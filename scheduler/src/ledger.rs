//! The submitter's ledger: where every task of a bag is, so that none is lost and each counts once.
//!
//! At any moment the indices of a bag are the disjoint union of unissued, done, failed, and those of which there are
//! copies: issued (on their way) or placed (on an executor, under a lease). One copy is the rule; a ledger may allow
//! several, up to its number of replicas, on as many executors. When the last copy is gone, since a lease ends, nobody
//! accounts for a request in time or an executor no longer lists the task, it returns to unissued and is issued again
//! at once; this does not count as a failure of the task. The first valid result of a task wins.
//!
//! Everything is in intervals, never in tasks, and what comes with each result or renewal costs no scan of the
//! executors: the ledger counts the copies of each index, looks first at the executor that speaks, and keeps a moment
//! before which no lease ends.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use crate::bag::{BagHeader, BagId, REQUEST_INTERVALS_MAX, Request, TaskId, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::Message;
use crate::peer::{Effect, Notice};
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::{IntervalSet, IntervalTree};
use crate::record::{Change, Closing, Record, RecordKey};

/// Bytes of a renewal with its answer, for the bound on the submitter's link. Measured on encoded messages.
const RENEWAL_BYTES: u64 = 500;
/// Link of the submitter in bytes/s (the paper's 1 Mb/s) and the share of it that renewals may take (`design.md`).
const RENEWAL_BYTES_S: u64 = 125_000 / 10;

/// Times that the output of a task may fail to arrive before the task is run again elsewhere. Our choice.
const UNFETCHED_MAX: u32 = 5;

/// What an executor says.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) executor: Contact,
    pub(crate) version: u64,
    pub(crate) attempt: u32,
    pub(crate) ranges: IntervalSet,
}

/// Tasks on their way.
#[derive(Debug)]
struct Issue {
    ranges: IntervalSet,
    /// Issued again when nobody accounts for them by then.
    until: Time,
}

/// Tasks on an executor.
#[derive(Debug)]
struct Placement {
    executor: Contact,
    ranges: IntervalSet,
    /// End of the lease.
    until: Time,
    /// Of the last `Holding` heard.
    version: u64,
}

/// Failed tries of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Failures {
    count: u32,
    /// A failure of an earlier attempt was counted already.
    next_attempt: u32,
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
    unissued: IntervalSet,
    issued: Vec<Issue>,
    placed: BTreeMap<PeerId, Placement>,
    /// Most copies of one task.
    replicas: usize,
    /// At j: the indices that more than j executors hold.
    copies: Vec<IntervalTree>,
    /// Before this moment no lease ends and no request is given up; set to the first such moment whenever it is
    /// reached. A renewal does not move it: that would need the leases in order.
    next_end: Option<Time>,
    done: IntervalTree,
    failed: IntervalTree,
    /// Failed tries of tasks that are not over.
    failures: BTreeMap<u64, Failures>,
    /// Outputs that could not be fetched, of tasks that are not over.
    unfetched: BTreeMap<u64, u32>,
    /// Results whose output is on its way here.
    fetching: BTreeMap<u64, (TaskResult, Contact)>,
    /// Number and summed work of finished tasks.
    measured: (u64, f64),
    /// Of the last request issued.
    number: u64,
    attempt: u32,
    reissued: u64,
    duplicates: u64,
}

/// A bag as its submitter sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct BagView {
    /// Its numbers; `task_mops` is 0 until measured.
    pub bag: BagHeader,
    /// r.
    pub released: Time,
    /// Tasks that succeeded.
    pub done: u64,
    /// Tasks that failed for good.
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
    /// How and when it ended.
    pub closed: Option<(Closing, Time)>,
}

impl BagView {
    /// (C − r)/w in s/Mop, of a bag that is closed; `None` while it is not.
    pub fn stretch(&self) -> Option<f64> {
        let (_, closed) = self.closed?;
        (self.bag.application_size_mops > 0.0)
            .then(|| closed.since(self.released).as_secs_f64() / self.bag.application_size_mops)
    }
}

impl Ledger {
    /// A bag just submitted; nothing is issued before [`Ledger::open`].
    pub(crate) fn new(bag: BagHeader, released: Time, retries_max: u32, io: &Io) -> Self {
        let mut unissued = IntervalSet::new();
        unissued.insert(0..bag.tasks);
        Self {
            bag,
            released,
            retries_max,
            closed: None,
            open: false,
            unissued,
            issued: Vec::new(),
            placed: BTreeMap::new(),
            replicas: 1,
            copies: Vec::new(),
            next_end: None,
            done: IntervalTree::default(),
            failed: IntervalTree::default(),
            failures: BTreeMap::new(),
            unfetched: BTreeMap::new(),
            fetching: BTreeMap::new(),
            measured: (0, 0.0),
            // Above every number of an earlier life of this machine.
            number: u64::try_from(io.wall(io.now).0).unwrap_or(0),
            attempt: 0,
            reissued: 0,
            duplicates: 0,
        }
    }

    pub(crate) fn restore_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    pub(crate) fn restore_closed(&mut self, closing: Closing, at: Time) {
        self.closed = Some((closing, at));
    }

    pub(crate) fn restore_done(&mut self, result: &TaskResult) {
        self.settle(result, None);
    }

    /// What was placed gets a full new term: a submitter that was away must not issue everything again.
    pub(crate) fn restore_placed(&mut self, executor: Contact, ranges: &IntervalSet, io: &Io, config: &Config) {
        let mut known = ranges.intersection(&self.unissued);
        if let Some(placed) = self.copies.first() {
            let mut copies = placed.intersection(ranges);
            if let Some(most) = self.copies.get(self.replicas - 1) {
                copies.subtract(&most.intersection(ranges));
            }
            known.extend_with(&copies);
        }
        let ranges = known;
        if ranges.is_empty() {
            return;
        }
        self.unissued.subtract(&ranges);
        self.gain(ranges.clone());
        let until = io.now + self.term(config);
        self.ends_at(until);
        self.placed.insert(executor.peer, Placement { executor, ranges, until, version: 0 });
    }

    /// Tells those that hold tasks where this machine is now, and that they may keep them.
    pub(crate) fn greet(&self, io: &mut Io, config: &Config) {
        if self.is_closed() {
            return;
        }
        let term = self.term(config);
        for placement in self.placed.values() {
            let submitter = Some(io.me.clone());
            let lease = Message::Lease { bag: self.bag.id, version: 0, submitter, term, drop: IntervalSet::new() };
            io.send(placement.executor.clone(), lease);
        }
    }

    /// After a sleep or a jump of the clock: nobody could have renewed anything meanwhile.
    pub(crate) fn renew_all(&mut self, io: &Io, config: &Config) {
        let until = io.now + self.term(config);
        for placement in self.placed.values_mut() {
            placement.until = until;
        }
        for issue in &mut self.issued {
            issue.until = io.now + config.placement_timeout;
        }
        self.next_end = self.first_end();
    }

    /// May be issued from now on.
    pub(crate) fn open(&mut self) {
        self.open = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
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
            unplaced: self.unissued.len() + issued,
            reissued: self.reissued,
            duplicates: self.duplicates,
            closed: self.closed,
        }
    }

    pub(crate) fn placements(&self) -> impl Iterator<Item = (&Contact, &IntervalSet)> {
        self.placed.values().map(|placement| (&placement.executor, &placement.ranges))
    }

    /// Sets a and w once the first task has shown them.
    pub(crate) fn set_work(&mut self, task_mops: f64, application_size_mops: f64) {
        self.bag.task_mops = task_mops;
        self.bag.application_size_mops = application_size_mops;
    }

    /// How long a lease lasts: long enough that all renewals stay within a tenth of the submitter's link.
    fn term(&self, config: &Config) -> Duration {
        let executors = self.placed.len() as u64;
        config.lease.max(Duration::from_secs(3 * executors * RENEWAL_BYTES / RENEWAL_BYTES_S))
    }

    /// A task is no longer to be run anywhere. `executor` is who probably holds it, so that nobody else is asked.
    fn withdraw(&mut self, index: u64, executor: Option<PeerId>) {
        self.unissued.remove_index(index);
        for issue in &mut self.issued {
            issue.ranges.remove_index(index);
        }
        self.issued.retain(|issue| !issue.ranges.is_empty());
        let mut copies = self.copies.iter().take_while(|level| level.contains(index)).count();
        for level in &mut self.copies[..copies] {
            level.remove(index..index + 1);
        }
        if let Some(placement) = executor.and_then(|peer| self.placed.get_mut(&peer)) {
            copies -= usize::from(placement.ranges.remove_index(index));
        }
        let mut others = self.placed.values_mut();
        while copies > 0
            && let Some(placement) = others.next()
        {
            copies -= usize::from(placement.ranges.remove_index(index));
        }
    }

    /// Issued tasks have found an executor.
    fn arrived(&mut self, ranges: &IntervalSet) {
        if ranges.is_empty() {
            return;
        }
        for issue in &mut self.issued {
            issue.ranges.subtract(ranges);
        }
        self.issued.retain(|issue| !issue.ranges.is_empty());
    }

    /// An executor holds these now, and did not before.
    fn gain(&mut self, ranges: IntervalSet) {
        let mut rest = ranges;
        for level in 0.. {
            if rest.is_empty() {
                break;
            }
            if level == self.copies.len() {
                self.copies.push(IntervalTree::default());
            }
            let again = self.copies[level].intersection(&rest);
            self.copies[level].extend_with(&rest);
            rest = again;
        }
    }

    /// An executor held these, and does not any more.
    fn lose(&mut self, ranges: &IntervalSet) {
        let mut rest = ranges.clone();
        for level in self.copies.iter_mut().rev() {
            let last = level.intersection(&rest);
            level.subtract(&last);
            rest.subtract(&last);
        }
        while self.copies.pop_if(|level| level.is_empty()).is_some() {}
    }

    /// Those of these indices of which there is no copy anywhere.
    fn without_copy(&self, mut ranges: IntervalSet) -> IntervalSet {
        ranges.subtract(&self.unissued.intersection(&ranges));
        if let Some(placed) = self.copies.first() {
            ranges.subtract(&placed.intersection(&ranges));
        }
        for issue in &self.issued {
            ranges.subtract(&issue.ranges.intersection(&ranges));
        }
        ranges
    }

    /// A lease or a wait ends then.
    fn ends_at(&mut self, until: Time) {
        self.next_end = Some(self.next_end.map_or(until, |known| known.min(until)));
    }

    /// The first moment at which a lease or a wait ends; asks all.
    fn first_end(&self) -> Option<Time> {
        let issued = self.issued.iter().map(|issue| issue.until);
        issued.chain(self.placed.values().map(|placement| placement.until)).min()
    }

    /// A task is over.
    fn settle(&mut self, result: &TaskResult, executor: Option<PeerId>) {
        self.withdraw(result.index, executor);
        self.failures.remove(&result.index);
        self.unfetched.remove(&result.index);
        let index = result.index..result.index + 1;
        if result.success {
            self.done.insert(index);
            self.measured.0 += 1;
            self.measured.1 += result.work_mops;
        } else {
            self.failed.insert(index);
        }
    }

    /// Of these indices a copy is gone: those without any other return to be issued again.
    fn reissue(&mut self, ranges: IntervalSet, io: &mut Io) {
        let ranges = self.without_copy(ranges);
        if ranges.is_empty() {
            return;
        }
        self.reissued += ranges.len();
        self.next_attempt(&ranges, io);
    }

    /// The attempt is journalled, so that it goes on rising after a restart.
    fn next_attempt(&mut self, ranges: &IntervalSet, io: &mut Io) {
        self.attempt += 1;
        self.unissued.extend_with(ranges);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Takes a task from the executor that had it, to be issued again if that was the last copy; what is journalled of
    /// its placement follows.
    fn take_back(&mut self, index: u64, executor: &Contact, io: &mut Io) {
        let again = IntervalSet::from(index..index + 1);
        if let Some(placement) = self.placed.get_mut(&executor.peer) {
            let held = placement.ranges.remove_index(index);
            let (bag, ranges) = (self.bag.id, placement.ranges.clone());
            let placed = Record::Placed { bag, executor: placement.executor.clone(), ranges };
            io.persist(vec![Change::Put(placed)], Vec::new());
            if held {
                self.lose(&again);
            }
        }
        let again = self.without_copy(again);
        if !again.is_empty() {
            self.next_attempt(&again, io);
        }
    }

    /// An executor says what it accounts for. Answers with what it may keep, and for how long.
    pub(crate) fn holding(&mut self, holding: Holding, io: &mut Io, config: &Config) {
        let Holding { executor, version, attempt, ranges } = holding;
        let term = self.term(config);
        let lease = |drop| Message::Lease { bag: self.bag.id, version, submitter: None, term, drop };
        if self.is_closed() {
            io.send(executor, lease(ranges));
            return;
        }
        let mine = match self.placed.get(&executor.peer) {
            Some(known) if (known.executor.incarnation, known.version) >= (executor.incarnation, version) => return,
            Some(known) => known.ranges.clone(),
            None => IntervalSet::new(),
        };
        let mut gained = ranges.intersection(&self.unissued);
        for issue in &self.issued {
            gained.extend_with(&ranges.intersection(&issue.ranges));
        }
        gained.subtract(&mine);
        // What it still lists because it failed, and what was meanwhile to be tried again, is not a new placement.
        for range in ranges.ranges() {
            for (&index, failures) in self.failures.range(range) {
                if attempt < failures.next_attempt {
                    gained.remove_index(index);
                }
            }
        }
        let lost = mine.difference(&ranges);
        let keep = mine.difference(&lost).union(&gained);
        let message = lease(ranges.difference(&keep));
        let changed = !lost.is_empty() || !gained.is_empty();
        self.unissued.subtract(&gained);
        self.arrived(&gained);
        self.lose(&lost);
        self.gain(gained);
        self.reissue(lost, io);
        if keep.is_empty() {
            if self.placed.remove(&executor.peer).is_some() {
                let key = RecordKey::Placed(self.bag.id, executor.peer);
                io.persist(vec![Change::Delete(key)], Vec::new());
            }
            io.send(executor, message);
            return;
        }
        let until = io.now + term;
        self.ends_at(until);
        let placement = Placement { executor: executor.clone(), ranges: keep.clone(), until, version };
        self.placed.insert(executor.peer, placement);
        if changed {
            let placed = Record::Placed { bag: self.bag.id, executor: executor.clone(), ranges: keep };
            io.persist(vec![Change::Put(placed)], vec![Then::Send(executor, message)]);
        } else {
            io.send(executor, message);
        }
    }

    /// Finished tasks arrive: their output is fetched, and only then do they count.
    pub(crate) fn results(&mut self, executor: &Contact, results: Vec<TaskResult>, io: &mut Io) {
        let mut unwanted = IntervalSet::new();
        let tasks = self.bag.tasks;
        for result in results.into_iter().filter(|result| result.is_valid(tasks)) {
            let index = result.index;
            if self.is_closed() || self.done.contains(index) || self.failed.contains(index) {
                self.duplicates += u64::from(!self.is_closed());
                unwanted.insert_index(index);
            } else if self.fetching.contains_key(&index) {
                // Acknowledged when the output is here.
            } else if !result.success && !self.is_news(executor, &result) {
                unwanted.insert_index(index);
            } else if !result.success && self.may_retry(index) {
                self.take_back(index, executor, io);
                unwanted.insert_index(index);
            } else {
                io.effects.push(Effect::FetchOutput {
                    task: TaskId { bag: self.bag.id, index },
                    output: result.output,
                    output_bytes: result.output_bytes,
                    from: executor.clone(),
                });
                self.fetching.insert(index, (result, executor.clone()));
            }
        }
        if !unwanted.is_empty() {
            io.send(executor.clone(), Message::ResultsAck { bag: self.bag.id, indices: unwanted });
        }
    }

    /// Whether a failure was not counted yet: only the executor that has the task can fail it, and each attempt once.
    fn is_news(&self, executor: &Contact, result: &TaskResult) -> bool {
        let counted = self.failures.get(&result.index).copied().unwrap_or_default();
        let placement = self.placed.get(&executor.peer);
        placement.is_some_and(|placement| placement.ranges.contains(result.index))
            && result.attempt >= counted.next_attempt
    }

    /// Counts one failed try; whether the task gets another.
    fn may_retry(&mut self, index: u64) -> bool {
        let failures = self.failures.entry(index).or_default();
        failures.count += 1;
        failures.next_attempt = self.attempt + 1;
        failures.count <= self.retries_max
    }

    /// The output of a result is here (or could not be had: its executor will offer it again).
    pub(crate) fn fetched(&mut self, index: u64, here: bool, io: &mut Io) {
        let Some((result, executor)) = self.fetching.remove(&index) else { return };
        if here {
            self.record_result(result, executor, io);
            return;
        }
        let unfetched = self.unfetched.entry(index).or_insert(0);
        *unfetched += 1;
        if *unfetched < UNFETCHED_MAX {
            // Its executor offers it again.
            return;
        }
        self.unfetched.remove(&index);
        let lost = IntervalSet::from(index..index + 1);
        let term = Duration::ZERO;
        let lease = Message::Lease { bag: self.bag.id, version: 0, submitter: None, term, drop: lost };
        io.send(executor.clone(), lease);
        self.reissued += 1;
        self.take_back(index, &executor, io);
    }

    /// Journals a result; only when that is durable does its executor hear of it.
    pub(crate) fn record_result(&mut self, result: TaskResult, executor: Contact, io: &mut Io) {
        if self.is_closed() || self.done.contains(result.index) || self.failed.contains(result.index) {
            return;
        }
        self.settle(&result, Some(executor.peer));
        let bag = self.bag.id;
        let ack = Message::ResultsAck { bag, indices: IntervalSet::from(result.index..result.index + 1) };
        let done = Record::Done { bag, executor: executor.peer, finished: io.wall(io.now), result };
        io.persist(vec![Change::Put(done)], vec![Then::Send(executor, ack)]);
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
        let bag = self.bag.id;
        let mut changes = vec![Change::Put(self.record(io))];
        let mut then = vec![Then::Notify(Notice::BagClosed(bag))];
        for (peer, placement) in std::mem::take(&mut self.placed) {
            changes.push(Change::Delete(RecordKey::Placed(bag, peer)));
            if !placement.ranges.is_empty() {
                let (term, drop) = (Duration::ZERO, placement.ranges);
                let lease = Message::Lease { bag, version: 0, submitter: None, term, drop };
                then.push(Then::Send(placement.executor, lease));
            }
        }
        io.persist(changes, then);
    }

    /// Takes back what nobody accounted for in time, and what is under no lease any more.
    pub(crate) fn expire(&mut self, io: &mut Io) {
        if self.is_closed() || self.next_end.is_none_or(|next| next > io.now) {
            return;
        }
        let (late, issued) = std::mem::take(&mut self.issued).into_iter().partition(|issue| issue.until <= io.now);
        self.issued = issued;
        for Issue { ranges, .. } in Vec::from_iter::<Vec<Issue>>(late) {
            self.reissue(ranges, io);
        }
        let ended: Vec<PeerId> =
            self.placed.iter().filter(|(_, placement)| placement.until <= io.now).map(|(peer, _)| *peer).collect();
        for peer in ended {
            if let Some(placement) = self.placed.remove(&peer) {
                self.lose(&placement.ranges);
                self.reissue(placement.ranges, io);
                io.persist(vec![Change::Delete(RecordKey::Placed(self.bag.id, peer))], Vec::new());
            }
        }
        self.next_end = self.first_end();
    }

    /// The requests for everything that is to be issued now.
    pub(crate) fn issue(&mut self, io: &Io, config: &Config) -> Vec<Request> {
        let mut requests = Vec::new();
        if self.unissued.is_empty() || !self.open || self.is_closed() || !self.is_measured() {
            return requests;
        }
        if let (count, sum) = self.measured
            && !self.bag.declared
            && count > 0
        {
            self.bag.task_mops = (sum / count as f64).max(WORK_MOPS_MIN);
        }
        while !self.unissued.is_empty() {
            let mut ranges = IntervalSet::new();
            for range in self.unissued.ranges().take(REQUEST_INTERVALS_MAX) {
                ranges.insert(range);
            }
            self.unissued.subtract(&ranges);
            requests.push(self.request(ranges, io, config));
        }
        requests
    }

    /// A request for these tasks, which are on their way from now on.
    fn request(&mut self, ranges: IntervalSet, io: &Io, config: &Config) -> Request {
        self.number += 1;
        let until = io.now + config.placement_timeout;
        self.ends_at(until);
        self.issued.push(Issue { ranges: ranges.clone(), until });
        Request {
            bag: self.bag.clone(),
            number: self.number,
            attempt: self.attempt,
            ranges,
            age: io.now.since(self.released),
            path: crate::bag::Path::default(),
            climbed: 0,
        }
    }

    /// Requests for one more copy of each of these tasks that is placed, has fewer copies than replicas are allowed,
    /// and of which none is on its way.
    #[cfg_attr(not(test), expect(dead_code, reason = "nothing asks for replicas yet; the ledger can hold them"))]
    fn replicate(&mut self, ranges: &IntervalSet, io: &Io, config: &Config) -> Vec<Request> {
        let mut more = self.copies.first().map_or_else(IntervalSet::new, |placed| placed.intersection(ranges));
        if let Some(most) = self.copies.get(self.replicas - 1) {
            more.subtract(&most.intersection(&more));
        }
        for issue in &self.issued {
            more.subtract(&issue.ranges.intersection(&more));
        }
        let mut requests = Vec::new();
        while !more.is_empty() {
            let part: IntervalSet = more.ranges().take(REQUEST_INTERVALS_MAX).collect();
            more.subtract(&part);
            requests.push(self.request(part, io, config));
        }
        requests
    }

    /// When [`Ledger::expire`] is to be called next; there may be nothing to do then, but never before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next_end
    }
}

/// Answers an executor about a bag that this machine does not know: it may forget it.
pub(crate) fn refuse(bag: BagId, executor: Contact, version: u64, ranges: IntervalSet, io: &mut Io) {
    io.send(executor, Message::Lease { bag, version, submitter: None, term: Duration::ZERO, drop: ranges });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use idlewood_overlay::WallTime;
    use proptest::prelude::*;

    use super::*;
    use crate::bag::BlobId;

    const TASKS: u64 = 40;

    fn contact(number: u8) -> Contact {
        Contact { peer: PeerId([number; 32]), incarnation: 1, address: "".into() }
    }

    fn io() -> Io {
        Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(0))
    }

    fn ledger(io: &Io, retries_max: u32) -> Ledger {
        let bag = BagHeader {
            id: BagId([7; 32]),
            submitter: contact(0),
            tasks: TASKS,
            task_mops: 10.0,
            application_size_mops: 400.0,
            declared: true,
        };
        let mut ledger = Ledger::new(bag, Time::ZERO, retries_max, io);
        ledger.open();
        ledger
    }

    fn said(executor: u8, version: u64, ranges: IntervalSet) -> Holding {
        Holding { executor: contact(executor), version, attempt: 0, ranges }
    }

    fn result(index: u64, success: bool) -> TaskResult {
        TaskResult { index, attempt: 0, success, output: BlobId([1; 32]), output_bytes: 1, work_mops: 10.0 }
    }

    /// Where every index is, gathered without the ledger's own arithmetic.
    fn places(ledger: &Ledger) -> Vec<u64> {
        let mut all: Vec<u64> = ledger.unissued.indices().collect();
        all.extend(ledger.issued.iter().flat_map(|issue| issue.ranges.indices()));
        all.extend(ledger.placed.values().flat_map(|placement| placement.ranges.indices()));
        all.extend(over(ledger));
        all
    }

    fn over(ledger: &Ledger) -> impl Iterator<Item = u64> + '_ {
        ledger.done.ranges().chain(ledger.failed.ranges()).flatten()
    }

    /// Checks that every index is in one place, or has up to `replicas` copies, gathered from the executors one by one,
    /// and that the ledger's own count of the copies is right.
    fn assert_accounted(ledger: &Ledger) {
        let unissued: BTreeSet<u64> = ledger.unissued.indices().collect();
        let over: Vec<u64> = over(ledger).collect();
        let issued: Vec<u64> = ledger.issued.iter().flat_map(|issue| issue.ranges.indices()).collect();
        let placed: Vec<u64> = ledger.placed.values().flat_map(|placement| placement.ranges.indices()).collect();
        let count = |all: &[u64], index| all.iter().filter(|&&one| one == index).count();
        for index in 0..TASKS {
            let held = count(&placed, index);
            let copies = held + count(&issued, index);
            let waits = usize::from(unissued.contains(&index));
            assert_eq!(count(&over, index) + waits + usize::from(copies > 0), 1, "index {index}");
            assert!(copies <= ledger.replicas, "{copies} copies of index {index}");
            for level in 0..5 {
                let counted = ledger.copies.get(level).is_some_and(|tree| tree.contains(index));
                assert_eq!(counted, held > level, "index {index} at level {level}");
            }
        }
        let view = ledger.view();
        assert_eq!(view.placed, ledger.copies.first().map_or(0, |tree| tree.ranges().flatten().count() as u64));
        assert_eq!(view.placed + view.unplaced + view.done + view.failed, TASKS);
        // No lease ends unnoticed.
        let first = ledger.first_end();
        assert!(first.is_none_or(|first| ledger.deadline().is_some_and(|deadline| deadline <= first)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Replicate { start: u64, length: u64 },
        Renew,
        Restore { executor: u8, start: u64, length: u64 },
        Issue,
        Wait(u64),
        Holding { executor: u8, start: u64, length: u64 },
        Result { executor: u8, index: u64, success: bool },
        Fetched { index: u64, here: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0..TASKS, 0..20_u64).prop_map(|(start, length)| Step::Replicate { start, length }),
            1 => Just(Step::Renew),
            1 => (1..5_u8, 0..TASKS, 0..20_u64)
                .prop_map(|(executor, start, length)| Step::Restore { executor, start, length }),
            2 => Just(Step::Issue),
            1 => (1..90_u64).prop_map(Step::Wait),
            4 => (1..5_u8, 0..TASKS + 5, 0..20_u64)
                .prop_map(|(executor, start, length)| Step::Holding { executor, start, length }),
            4 => (1..5_u8, 0..TASKS + 5, any::<bool>())
                .prop_map(|(executor, index, success)| Step::Result { executor, index, success }),
            4 => (0..TASKS, any::<bool>()).prop_map(|(index, here)| Step::Fetched { index, here }),
        ]
    }

    proptest! {
        #[test]
        fn every_task_is_accounted_for(replicas in 1..4_usize, steps in prop::collection::vec(step(), 1..120)) {
            let config = Config::default();
            let mut io = io();
            let mut ledger = ledger(&io, 1);
            ledger.replicas = replicas;
            for (version, step) in (1..).zip(steps) {
                let before: BTreeSet<u64> = over(&ledger).collect();
                match step {
                    Step::Replicate { start, length } => {
                        let asked = start..start + length;
                        for request in ledger.replicate(&IntervalSet::from(asked.clone()), &io, &config) {
                            prop_assert!(request.ranges.indices().all(|index| asked.contains(&index)));
                        }
                    }
                    Step::Renew => ledger.renew_all(&io, &config),
                    // At a restart nothing is on its way, and each executor is known once.
                    Step::Restore { executor, .. }
                        if !ledger.issued.is_empty() || ledger.placed.contains_key(&contact(executor).peer) => {}
                    Step::Restore { executor, start, length } => {
                        let ranges = IntervalSet::from(start..start + length);
                        ledger.restore_placed(contact(executor), &ranges, &io, &config);
                    }
                    Step::Issue => drop(ledger.issue(&io, &config)),
                    Step::Wait(seconds) => {
                        io.now += Duration::from_secs(seconds);
                        ledger.expire(&mut io);
                        prop_assert!(ledger.first_end().is_none_or(|first| first > io.now));
                        prop_assert!(ledger.deadline().is_none_or(|next| next > io.now));
                    }
                    Step::Holding { executor, start, length } => {
                        let mut ranges = IntervalSet::new();
                        ranges.insert(start..start + length);
                        ledger.holding(said(executor, version, ranges), &mut io, &config);
                    }
                    Step::Result { executor, index, success } => {
                        ledger.results(&contact(executor), vec![result(index, success)], &mut io);
                    }
                    Step::Fetched { index, here } => ledger.fetched(index, here, &mut io),
                }
                if ledger.is_closed() {
                    break;
                }
                assert_accounted(&ledger);
                if replicas == 1 {
                    let mut places = places(&ledger);
                    places.sort_unstable();
                    prop_assert_eq!(places, (0..TASKS).collect::<Vec<_>>());
                }
                // What is over stays over.
                let after: BTreeSet<u64> = over(&ledger).collect();
                prop_assert!(before.is_subset(&after));
            }
        }
    }

    #[test]
    fn the_last_copy_that_is_lost_is_issued_again_and_the_first_result_ends_all() {
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 0);
        ledger.replicas = 2;
        ledger.issue(&io, &config);
        ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
        let more = ledger.replicate(&IntervalSet::from(30..50), &io, &config);
        assert_eq!(more.len(), 1);
        assert_eq!(more[0].ranges, IntervalSet::from(30..TASKS));
        // Nobody gets a second copy of what it has, and no third one is made.
        ledger.holding(said(1, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
        assert!(ledger.replicate(&IntervalSet::from(30..TASKS), &io, &config).is_empty());
        ledger.holding(said(2, 1, IntervalSet::from(20..TASKS)), &mut io, &config);
        assert_eq!(ledger.placed[&contact(2).peer].ranges, IntervalSet::from(30..TASKS));
        assert!(ledger.replicate(&IntervalSet::from(30..TASKS), &io, &config).is_empty());
        assert_eq!((ledger.view().placed, ledger.view().unplaced), (TASKS, 0));
        // The first executor drops all: only what nobody else has is issued again.
        ledger.holding(said(1, 3, IntervalSet::new()), &mut io, &config);
        assert_eq!((ledger.view().placed, ledger.view().reissued), (10, 30));
        ledger.results(&contact(2), vec![result(30, true)], &mut io);
        ledger.fetched(30, true, &mut io);
        assert_eq!((ledger.view().placed, ledger.view().done), (9, 1));
    }

    /// Bytes that a ledger takes, reckoned from what its parts hold. Nodes of trees are at least half full.
    fn bytes(ledger: &Ledger) -> usize {
        let trees = [&ledger.done, &ledger.failed].into_iter().chain(&ledger.copies);
        let in_trees: usize = trees.map(|tree| tree.ranges().count() * 2 * 2 * size_of::<u64>()).sum();
        let per_executor = 2 * size_of::<(PeerId, Placement)>();
        let executors = ledger.placed.values();
        let in_executors: usize = executors
            .map(|placement| {
                let address = placement.executor.address.len();
                per_executor + address + placement.ranges.heap_bytes()
            })
            .sum();
        let issued: usize = ledger.issued.iter().map(|issue| size_of::<Issue>() + issue.ranges.heap_bytes()).sum();
        size_of::<Ledger>() + in_trees + in_executors + issued + ledger.unissued.heap_bytes()
    }

    #[test]
    fn ten_million_tasks_on_ten_thousand_executors_take_a_few_megabytes() {
        const EXECUTORS: u64 = 10_000;
        const SHARE: u64 = 1000;
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 0);
        ledger.bag.tasks = EXECUTORS * SHARE;
        ledger.unissued = IntervalSet::from(0..EXECUTORS * SHARE);
        let executor = |number: u64| {
            let mut peer = [0; 32];
            peer[..8].copy_from_slice(&number.to_le_bytes());
            Contact { peer: PeerId(peer), incarnation: 1, address: "/ip4/192.168.100.100/udp/40000/quic-v1".into() }
        };
        assert_eq!(ledger.issue(&io, &config).len(), 1);
        // In an order that leaves holes.
        for number in (0..EXECUTORS).map(|step| step * 7919 % EXECUTORS) {
            let ranges = IntervalSet::from(number * SHARE..(number + 1) * SHARE);
            ledger.holding(Holding { executor: executor(number), version: 1, attempt: 0, ranges }, &mut io, &config);
            io.effects.clear();
        }
        assert_eq!((ledger.view().placed, ledger.view().executors), (EXECUTORS * SHARE, EXECUTORS));
        let placed_bytes = bytes(&ledger);
        // Everybody has begun at the start of its share, and now and then on a second slot further on.
        let mut most_bytes = 0;
        for round in 0..100_u64 {
            for number in 0..EXECUTORS {
                let offset = if number % 2 == 0 { round } else { round / 2 + round % 2 * (SHARE / 2) };
                let result = result(number * SHARE + offset, true);
                ledger.record_result(result, executor(number), &mut io);
                assert!(ledger.deadline().is_some());
            }
            io.effects.clear();
            most_bytes = most_bytes.max(bytes(&ledger));
        }
        let view = ledger.view();
        assert_eq!((view.done, view.placed), (100 * EXECUTORS, (SHARE - 100) * EXECUTORS));
        println!("{placed_bytes} bytes when all are placed, at most {most_bytes} while results come");
        assert!(placed_bytes < 6 << 20, "{placed_bytes}");
        assert!(most_bytes < 8 << 20, "{most_bytes}");
    }

    #[test]
    fn a_bag_closes_when_every_result_is_journalled() {
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 0);
        assert_eq!(ledger.issue(&io, &config).len(), 1);
        ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
        for index in 0..TASKS {
            assert!(!ledger.is_closed());
            ledger.results(&contact(1), vec![result(index, index != 3)], &mut io);
            ledger.fetched(index, true, &mut io);
        }
        let view = ledger.view();
        assert_eq!((view.done, view.failed, view.reissued, view.duplicates), (TASKS - 1, 1, 0, 0));
        assert_eq!(view.closed.map(|(closing, _)| closing), Some(Closing::Completed));
    }

    #[test]
    fn a_failure_told_twice_counts_once() {
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 1);
        ledger.issue(&io, &config);
        ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
        ledger.results(&contact(1), vec![result(5, false)], &mut io);
        ledger.results(&contact(1), vec![result(5, false)], &mut io);
        assert_eq!((ledger.failures[&5].count, ledger.view().unplaced), (1, 1));
        // It still lists the task, since the acknowledgement is on its way: that places nothing.
        ledger.holding(said(1, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
        assert_eq!((ledger.view().placed, ledger.view().unplaced), (TASKS - 1, 1));
        // The second attempt may be the last.
        ledger.issue(&io, &config);
        let again = Holding { attempt: 1, ..said(2, 1, IntervalSet::from(5..6)) };
        ledger.holding(again, &mut io, &config);
        ledger.results(&contact(2), vec![TaskResult { attempt: 1, ..result(5, false) }], &mut io);
        ledger.fetched(5, true, &mut io);
        assert_eq!(ledger.view().failed, 1);
    }

    #[test]
    fn what_an_executor_no_longer_lists_is_issued_again() {
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 0);
        ledger.issue(&io, &config);
        ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
        ledger.holding(said(1, 2, IntervalSet::from(0..10)), &mut io, &config);
        assert_eq!(ledger.view().reissued, TASKS - 10);
        // An older word changes nothing.
        ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
        assert_eq!(ledger.view().placed, 10);
        let again = ledger.issue(&io, &config);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].ranges, IntervalSet::from(10..TASKS));
        assert_eq!(again[0].attempt, 1);
    }

    #[test]
    fn a_restart_gives_every_lease_a_full_new_term() {
        let config = Config::default();
        let mut io = io();
        io.now = Time::ZERO + Duration::from_secs(1000);
        let mut ledger = ledger(&io, 0);
        ledger.restore_done(&result(0, true));
        ledger.restore_placed(contact(1), &IntervalSet::from(0..20), &io, &config);
        assert_eq!((ledger.view().done, ledger.view().placed), (1, 19));
        io.now += config.lease - Duration::from_secs(1);
        ledger.expire(&mut io);
        assert_eq!(ledger.view().reissued, 0);
        io.now += Duration::from_secs(1);
        ledger.expire(&mut io);
        assert_eq!(ledger.view().reissued, 19);
    }

    #[test]
    fn results_that_nobody_wants_are_acknowledged_and_those_on_their_way_are_not() {
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 0);
        ledger.issue(&io, &config);
        ledger.results(&contact(1), vec![result(5, true)], &mut io);
        ledger.results(&contact(2), vec![result(5, true)], &mut io);
        let acks = |io: &Io| {
            let acks = io
                .effects
                .iter()
                .filter(|effect| matches!(effect, Effect::Send { message: Message::ResultsAck { .. }, .. }));
            acks.count()
        };
        assert_eq!(acks(&io), 0);
        ledger.fetched(5, true, &mut io);
        assert_eq!(acks(&io), 0, "not before the journal is durable");
        ledger.results(&contact(2), vec![result(5, true)], &mut io);
        assert_eq!((acks(&io), ledger.view().duplicates), (1, 1));
    }
}
