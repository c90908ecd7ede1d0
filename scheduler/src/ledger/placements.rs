//! Handling of `Holding`, `Renewal` and `Offer`: which tasks an executor may keep and for how long, and which are issued
//! again when a copy is lost.
//!
//! A task's result is taken only from a machine that holds the task, held it, or may have got it with a request. A placed
//! task stays with its executor as long as that renews its lease, whatever other machines claim.
//!
//! Left out: proof that a machine which claims tasks was sent them. Any member that knows the bag may claim tasks of a
//! request on its way, and the machine that the request reaches is then told to drop them. A secret in the request,
//! narrowed at each split so that a leaf could prove its part, would exclude leaves, but not routers, which are members too
//! and see all that passes them. A machine that does not know the bag's id, a hash of its signed envelope, can claim
//! nothing. Whether a result is true is a question for replicas.

use std::time::Duration;

use idlewood_overlay::{Contact, Node, PeerId, Time};

use super::Ledger;
use super::placed::Placement;
use crate::bag::{BagId, BagKey, REQUEST_INTERVALS_MAX};
use crate::config::Config;
use crate::enclosed::Enclosed;
use crate::io::{Io, Then};
use crate::link::renewals_take;
use crate::message::{Capacity, Lease, Message};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

/// A lease lasts this share of its bag's age: noticing a crash delays the bag by no more than that.
const LEASE_AGE_SHARE: u32 = 8;
/// The longest lease by age. Our choice.
const LEASE_MAX: Duration = Duration::from_secs(600);
/// How often an executor is asked within a lease what it holds, after this machine was away. Our choice: as many messages may be lost.
const ASKED: u32 = 3;

/// The fields of [`crate::Message::Holding`].
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) executor: Contact,
    pub(crate) version: u64,
    pub(crate) attempt: u32,
    pub(crate) ranges: IntervalSet,
    /// Those of them that have succeeded, and whose results follow.
    pub(crate) finished: IntervalSet,
    pub(crate) capacity: Option<Capacity>,
}

impl Ledger {
    /// Restores a placement from its record: a submitter that was away must not issue all tasks again. Its executor is asked what it holds
    /// ([`Self::greet`]), again where it does not answer, and has the shortest term for that, whatever the bag's age: it may have gone long ago.
    pub(crate) fn restore_placed(&mut self, executor: Contact, ranges: &IntervalSet, io: &mut Io, config: &Config) {
        let mut known = ranges.intersection(self.waiting.unissued());
        let mut copies = self.placed.held_by_more_than(0, ranges);
        copies.subtract(&self.placed.held_by_more_than(self.votes.replicas() - 1, ranges));
        known.extend_with(&copies);
        let ranges = known;
        if ranges.is_empty() {
            // All of them have ended, by their own records.
            io.persist(vec![Change::Delete(RecordKey::Placed(self.bag.id, executor.peer))], Vec::new());
            return;
        }
        self.waiting.take(&ranges);
        let until = io.now + self.shortest_term(io, config) / ASKED;
        self.ends_at(until);
        let (since, gained) = (self.released, ranges.clone());
        let asks_left = ASKED - 1;
        let placement = Placement { executor, ranges, since, until, version: 0, withdrawn: false, asks_left };
        self.placed.replace(placement, &IntervalSet::new(), gained);
    }

    /// The key with which the bag's executors read its blobs.
    pub(crate) fn key(&self, io: &Io) -> BagKey {
        self.keeping.key.unwrap_or_else(|| BagKey::of(&io.bag_secret, self.bag.id))
    }

    /// After a restart: sends each executor a `Lease` with this machine's address.
    pub(crate) fn greet(&self, io: &mut Io, config: &Config) {
        if self.is_closed() {
            return;
        }
        self.placed.iter().for_each(|placement| self.ask(&placement.executor, io, config));
    }

    /// Asks an executor what it holds, and says where this machine is.
    fn ask(&self, executor: &Contact, io: &mut Io, config: &Config) {
        let (term, submitter) = (self.term(io, config), Some((&io.me).into()));
        let (key, sizes) = (Some(self.key(io)), Some(self.sizes()));
        io.send(executor.clone(), Message::Lease(Lease { submitter, term, key, sizes, ..Lease::of(self.bag.id) }));
    }

    /// Asks executors once more that have not answered since this machine was away, and waits for them.
    pub(crate) fn ask_again(&mut self, io: &mut Io, config: &Config) {
        if self.is_closed() || self.next_end.is_none_or(|next| next > io.now) {
            return;
        }
        let until = io.now + self.shortest_term(io, config) / ASKED;
        for executor in self.placed.wait_on(io.now, until, !self.keeping.is_held) {
            self.ask(&executor, io, config);
        }
    }

    /// After a sleep or a jump of the clock: gives all leases and requests their full time, since no executor could renew
    /// meanwhile.
    pub(crate) fn renew_all(&mut self, io: &Io, config: &Config) {
        self.placed.renew_all(io.now + self.term(io, config));
        self.issues.renew(io.now + config.placement_timeout);
        self.votes.forget_stuck();
        self.next_end = self.first_end();
    }

    pub(crate) fn placements(&self) -> impl Iterator<Item = (&Contact, &IntervalSet)> {
        self.placed.iter().map(|placement| (&placement.executor, &placement.ranges))
    }

    /// Number of machines that hold tasks of the bag.
    pub(crate) fn executors(&self) -> u64 {
        self.placed.executors()
    }

    /// How long a lease lasts: longer for an older bag, and so long that the renewals of all bags submitted here, each
    /// after half of it, stay within a tenth of the submitter's link.
    pub(super) fn term(&self, io: &Io, config: &Config) -> Duration {
        let by_age = (io.now.since(self.released) / LEASE_AGE_SHARE).min(LEASE_MAX);
        self.shortest_term(io, config).max(by_age)
    }

    /// The same of a young bag.
    pub(super) fn shortest_term(&self, io: &Io, config: &Config) -> Duration {
        let executors = io.placements.max(self.executors());
        config.lease.max(2 * renewals_take(executors, io.link_kb_s))
    }

    /// A `Renewal` of the `Holding` with this version: returns the term by which the lease is extended. `None` where that
    /// is not the last `Holding` that came: the executor is then asked for another one, or told to drop all tasks.
    pub(crate) fn renew(&mut self, executor: &Contact, version: u64, io: &mut Io, config: &Config) -> Option<Duration> {
        let term = self.term(io, config);
        if self.placed.renew(executor, version, io.now + term) {
            return Some(term);
        }
        let drop = if self.is_closed() { IntervalSet::from(0..self.bag.tasks) } else { IntervalSet::new() };
        let drop = io.recorded(executor.peer, self.bag.id, drop);
        io.send(executor.clone(), Message::lease(self.bag.id, Some((&io.me).into()), term, drop));
        None
    }

    /// A task has ended: takes it from all machines and requests. `executor` probably holds it, so that others need no search.
    pub(super) fn withdraw(&mut self, index: u64, executor: Option<PeerId>) {
        self.waiting.remove(index);
        self.issues.remove(index);
        self.placed.withdraw(index, executor, self.votes.voters(index));
    }

    /// An executor accounts for issued tasks.
    fn arrived(&mut self, ranges: &IntervalSet, executor: PeerId, io: &mut Io) {
        if ranges.is_empty() {
            return;
        }
        if executor != io.me.peer {
            io.watch.accounted(io.now);
        }
        self.astray.found(ranges, executor);
        self.issues.arrived(ranges, executor, io);
    }

    /// After a restart: unissued tasks get a new attempt, since requests for them may have been sent before.
    pub(crate) fn issue_anew(&mut self, io: &mut Io) {
        if !self.is_closed() && !self.waiting.unissued().is_empty() {
            self.next_attempt(&IntervalSet::new(), io);
        }
    }

    /// These tasks are unissued, with the next attempt; it is journalled before they leave, so that attempts rise across restarts.
    pub(super) fn next_attempt(&mut self, ranges: &IntervalSet, io: &mut Io) {
        self.attempt += 1;
        self.waiting.add(ranges);
        self.put_off_without_start(io);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
    }

    /// Those of these tasks that are neither waiting, nor in a request, nor placed.
    pub(super) fn without_copy(&self, mut ranges: IntervalSet) -> IntervalSet {
        self.waiting.subtract_from(&mut ranges);
        self.placed.subtract_from(&mut ranges);
        self.issues.subtract_from(&mut ranges);
        ranges
    }

    /// A lease, request or pause ends then.
    pub(super) fn ends_at(&mut self, until: Time) {
        self.next_end = Some(self.next_end.map_or(until, |known| known.min(until)));
    }

    /// When the first lease, request or pause ends; looks at all of them.
    pub(super) fn first_end(&self) -> Option<Time> {
        let parts = [
            self.issues.first_end(),
            self.placed.first_end(),
            self.waiting.first_end(),
            self.votes.look_again_at(),
            self.copies.again_at(),
            self.starts_again_at(),
        ];
        parts.into_iter().flatten().min()
    }

    /// A copy of these tasks is lost: those without another one are issued again.
    pub(super) fn reissue(&mut self, ranges: IntervalSet, io: &mut Io) {
        let ranges = self.without_copy(ranges);
        if ranges.is_empty() {
            return;
        }
        self.counts.reissued += ranges.len();
        match self.together_again(&ranges, io) {
            Some(until) => self.pause(&ranges, until, io),
            None => self.next_attempt(&ranges, io),
        }
    }

    /// Takes a task from its executor, and has it issued again if that was the last copy, not before `until`.
    pub(super) fn take_back(&mut self, index: u64, executor: &Contact, until: Option<Time>, io: &mut Io) {
        let again = IntervalSet::from(index..index + 1);
        if let Some((taken, change)) = self.placed.take(executor.peer, &again, self.bag.id) {
            io.persist(vec![change], Vec::new());
            if !taken.is_empty() {
                self.votes.look_for_copies();
            }
        }
        let again = self.without_copy(again);
        match until {
            // The machine may get another copy, as another attempt, so that results of both are told apart.
            _ if again.is_empty() && self.votes.is_quorum() => self.next_attempt(&again, io),
            _ if again.is_empty() => {}
            Some(until) => self.pause(&again, until, io),
            None => self.next_attempt(&again, io),
        }
    }

    /// Whether a result of this task is taken from this machine: it holds the task, held it, or may have got it with a request.
    pub(super) fn may_end(&self, index: u64, executor: PeerId, io: &Io) -> bool {
        self.placed.holds(executor, index)
            || self.former.of(executor).is_some_and(|ranges| ranges.contains(index))
            || !self
                .gained(executor, &IntervalSet::from(index..index + 1), &IntervalSet::new(), u32::MAX, io)
                .is_empty()
    }

    pub(crate) fn restore_former(&mut self, executor: PeerId, ranges: IntervalSet) {
        if !self.is_closed() {
            self.former.restore(executor, ranges);
        }
    }

    /// The records of former placements.
    pub(crate) fn former(&self) -> impl Iterator<Item = Record> + '_ {
        self.former.records(self.bag.id)
    }

    /// Those of these finished tasks whose results are taken from this machine because it held them once. None in a bag with
    /// replicas: a result there is one of several votes, which the machine may have given already.
    fn awaited(&self, executor: PeerId, finished: &IntervalSet) -> IntervalSet {
        if self.votes.is_quorum() {
            return IntervalSet::new();
        }
        let former = self.former.of(executor).map(|former| former.intersection(finished));
        let mut awaited = former.unwrap_or_default();
        self.ended.subtract_from(&mut awaited);
        awaited
    }

    /// An executor does not account for these tasks any more, and may still have results of them.
    pub(super) fn note_former(&mut self, executor: PeerId, ranges: &IntervalSet) -> Change {
        self.former.add(executor, ranges, &self.ended, self.bag.id)
    }

    /// Those of `ranges`, for which this executor accounts, that are newly placed with it: they are unissued or in a
    /// request that may have reached it, and not among `mine`, which it holds already.
    pub(super) fn gained(
        &self,
        executor: PeerId,
        ranges: &IntervalSet,
        mine: &IntervalSet,
        attempt: u32,
        io: &Io,
    ) -> IntervalSet {
        let is_shunned = self.is_shunned(executor, io);
        // No task of a bag is issued before it is measured, also before a restart.
        let is_issued = self.issues.has_begun() && self.is_measured();
        if !is_issued || is_shunned || !self.avoided.avoided_for(executor, io.now).is_zero() {
            return IntervalSet::new();
        }
        let mut gained = ranges.intersection(self.waiting.unissued());
        gained.extend_with(&self.issues.reaching(executor, ranges));
        gained.subtract(mine);
        gained.subtract(&self.votes.of(executor, &gained));
        let stale = self.tries.among(&gained).filter(|&(index, failures)| {
            failures.is_stale(executor, attempt, self.votes.is_quorum())
                || attempt < self.votes.counts_from(executor, index)
        });
        let stale: Vec<u64> = stale.map(|(index, _)| index).collect();
        stale.into_iter().for_each(|index| {
            gained.remove_index(index);
        });
        gained
    }

    /// When the first of the tasks of this executor, those `gained` included, was sent to it.
    fn sent_since(&self, executor: PeerId, gained: &IntervalSet) -> Time {
        let known = self.placed.of(executor).map(|placement| placement.since);
        known.into_iter().chain(self.issues.sent_since(gained)).min().unwrap_or(self.released)
    }

    /// A `Holding` arrived: places its tasks, and answers with a `Lease` that says which to drop, and how long the others
    /// are its.
    pub(crate) fn holding(&mut self, holding: Holding, io: &mut Io, config: &Config) {
        let Holding { executor, version, attempt, ranges, finished, capacity } = holding;
        let (term, submitter) = (self.term(io, config), Some((&io.me).into()));
        let (bag, rest) = (self.bag.id, self.avoided.avoided_for(executor.peer, io.now));
        let withheld = self.conditions.withhold() && !self.is_closed();
        let lease = Lease { version, submitter, term, rest, withheld, ..Lease::of(bag) };
        if self.is_closed() {
            let drop = io.recorded(executor.peer, bag, ranges);
            io.send(executor, Message::Lease(Lease { drop, ..lease }));
            return;
        }
        let mine = match self.placed.of(executor.peer) {
            Some(known) if (known.executor.incarnation, known.version) >= (executor.incarnation, version) => return,
            Some(known) => known.ranges.clone(),
            None => IntervalSet::new(),
        };
        let gained = self.gained(executor.peer, &ranges, &mine, attempt, io);
        let since = self.sent_since(executor.peer, &gained);
        let lost = mine.difference(&ranges);
        let keep = mine.difference(&lost).union(&gained);
        let back = ranges.difference(&keep);
        let awaited = self.awaited(executor.peer, &finished);
        let dropped = back.difference(&awaited);
        // An executor with results needs the key, too: it signs them with what the manifest says.
        let reads = !keep.is_empty() || !awaited.is_empty();
        let changed = !lost.is_empty() || !gained.is_empty();
        let (key, sizes) = (reads.then(|| self.key(io)), reads.then(|| self.sizes()));
        let (is_first, drop) =
            (self.placed.of(executor.peer).is_none(), io.recorded(executor.peer, bag, dropped.clone()));
        let manifest = if reads && is_first { self.manifest.clone() } else { Enclosed::default() };
        let message = Message::Lease(Lease { drop, key, manifest, sizes, ..lease });
        // A task that it is to try again may be listed from before it was told to forget its result.
        let withdrawn = self.votes.is_retried(executor.peer, &keep);
        self.waiting.take(&gained);
        self.arrived(&gained, executor.peer, io);
        self.declined.taken(executor.peer, &gained);
        self.can_do(&executor, capacity, &gained);
        self.turned_away(executor.peer, &dropped, io);
        self.exempt(executor.peer, &gained, io);
        if changed {
            self.votes.look_for_copies();
        }
        let until = io.now + term;
        let is_known = self.placed.of(executor.peer).is_some();
        let placement = Placement {
            executor: executor.clone(),
            ranges: keep.clone(),
            since,
            until,
            version,
            withdrawn,
            asks_left: 0,
        };
        self.placed.replace(placement, &lost, gained);
        if keep.is_empty() {
            self.placed.remove(executor.peer);
        }
        self.reissue(lost, io);
        if keep.is_empty() {
            if is_known {
                let key = RecordKey::Placed(self.bag.id, executor.peer);
                io.persist(vec![Change::Delete(key)], Vec::new());
            }
            io.send(executor, message);
            return;
        }
        self.ends_at(until);
        if changed {
            let placed = Record::Placed { bag: self.bag.id, executor: executor.clone(), ranges: keep };
            io.persist(vec![Change::Put(placed)], vec![Then::Send(executor, message)]);
        } else {
            io.send(executor, message);
        }
    }

    /// An `Offer` arrived: issues the offered tasks to the asking machine, durably, and has the executor drop them. Tasks
    /// that are not placed with the executor are not issued, but dropped all the same.
    pub(crate) fn offer(&mut self, executor: Contact, ranges: &IntervalSet, to: Contact, io: &mut Io, config: &Config) {
        let term = self.term(io, config);
        let mut kept = IntervalSet::new();
        let (is_open, bag) = (!self.is_closed() && self.issues.has_begun(), self.bag.id);
        let may_issue = is_open && !self.keeping.is_held;
        let taken = may_issue.then(|| self.placed.take(executor.peer, ranges, bag)).flatten();
        if let Some((given, placed)) = taken {
            self.votes.look_for_copies();
            let former = self.note_former(executor.peer, &given);
            // Tasks with another copy need no request. Intervals beyond those of one request are issued through the tree.
            let mut given = self.without_copy(given);
            let withheld = self.conditions.withhold();
            let most = if withheld { 0 } else { REQUEST_INTERVALS_MAX };
            let rest: IntervalSet = given.ranges().skip(most).collect();
            given.subtract(&rest);
            self.waiting.add(&rest);
            if given.is_empty() {
                let mut changes = vec![placed, former];
                if !rest.is_empty() {
                    self.attempt += 1;
                    changes.push(Change::Put(self.record(io)));
                }
                io.persist(changes, Vec::new());
            } else {
                // The asking machine may have had these tasks before, and dropped them for the executor.
                self.attempt += 1;
                let request = self.request(given, Some(to.peer), io, config);
                let request = Message::Request { request, node: Node::Leaf, climbing: false };
                let changes = vec![placed, former, Change::Put(self.record(io))];
                io.persist(changes, vec![Then::Send(to, request)]);
            }
        } else if is_open {
            // Nothing is placed with it: it has to send a `Holding` first. Or nothing can be issued now.
            kept = ranges.clone();
        }
        io.send(executor, Message::lease(bag, Some((&io.me).into()), term, ranges.difference(&kept)));
    }

    /// Has tasks issued again whose request timed out or whose lease ended.
    pub(crate) fn expire(&mut self, io: &mut Io) {
        if self.is_closed() || self.next_end.is_none_or(|next| next > io.now) {
            return;
        }
        self.votes.look_for_copies();
        self.votes.end_wait(io.now);
        self.copies.end_wait(io.now);
        self.waiting.end_pauses(io.now);
        self.order_unmade(io);
        for issue in self.issues.take_late(io.now) {
            if self.are_copies(&issue.ranges) {
                self.copies.not_taken(io.now);
            } else {
                self.answers_not(issue.to);
                self.astray.lost(&issue, io);
            }
            self.reissue(issue.ranges, io);
        }
        for peer in self.placed.ended(io.now) {
            if let Some(placement) = self.placed.remove(peer) {
                // A machine whose tasks have all ended has nothing to renew.
                self.answers_not((!placement.ranges.is_empty()).then_some(peer));
                let former = self.note_former(peer, &placement.ranges);
                self.reissue(placement.ranges, io);
                io.persist(vec![Change::Delete(RecordKey::Placed(self.bag.id, peer)), former], Vec::new());
            }
        }
        self.next_end = self.first_end();
    }
}

/// Answers an executor about a bag that is unknown here: it is to drop these tasks.
pub(crate) fn refuse(bag: BagId, executor: Contact, version: u64, ranges: IntervalSet, io: &mut Io) {
    io.send(executor, Message::Lease(Lease { version, drop: ranges, ..Lease::of(bag) }));
}
