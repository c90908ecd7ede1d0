//! Requests that went astray: what nobody has accounted for in time goes another way.
//!
//! A router that drops what passes it leaves no trace but silence. So the ledger notes by which first hops each own request went.
//! A task that one request has lost goes to the own leaf, where that is idle. One that two have lost goes another way: straight to leaves that this machine knows (its own, its neighbours on the
//! line and its long links, those that hold tasks of the bag), in equal parts, which redistribution then evens out. One lost request says
//! nothing of the way: every machine that crashes loses some. A leaf that does not answer gets no tasks for a while. A few tasks go to each router
//! that is in doubt, to be placed below it: who passes them on is cleared, who loses them is judged (`watch`).
//!
//! Left out: what a router does to requests of others. Their submitters see it, and who handed them to it (`handed`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, Node, PeerId, Time};

use super::failures::doubled;
use super::issues::Issue;
use super::quorum::Known;
use super::{Hop, Ledger};
use crate::bag::{CHECKPOINTS_MAX, REQUEST_INTERVALS_MAX, Request};
use crate::config::Config;
use crate::io::Io;
use crate::ranges::IntervalSet;

/// A leaf that did not answer gets nothing for so long, and at most; it doubles in between. Our choice.
const SILENT_FIRST: Duration = Duration::from_secs(60);
const SILENT_MAX: Duration = Duration::from_secs(3600);
/// Tasks that a router in doubt gets: one in so many, and at most.
const TRIAL_SHARE: u64 = 8;
const TRIAL_MAX: u64 = 2;
/// Machines that get tasks at once: each costs a message and its answer. Our choice.
const LEAVES_MAX: usize = 64;

/// Leaves and routers that a bag remembers; of more those go whose time is over soonest, or that lost the fewest tasks. Our choice.
const REMEMBERED_MAX: usize = 256;

/// The ledger's part of it.
#[derive(Debug, Default)]
pub(super) struct Astray {
    /// Tasks that one request has lost so far, or more.
    once: IntervalSet,
    /// Tasks that are to go another way than through the tree.
    other_way: IntervalSet,
    /// How many went another way so far, each as often as it did.
    tasks: u64,
    /// Tasks lost by routers that alone had to pass them on.
    swallowed: BTreeMap<PeerId, u64>,
    /// Leaves that did not answer, how often in a row, and until when they get nothing.
    silent: BTreeMap<PeerId, (u32, Time)>,
}

/// Tasks of a bag that one router did not pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swallowed {
    /// How many, each as often as it was lost there.
    pub tasks: u64,
    /// Whether requests of this machine go around that router now.
    pub is_left_out: bool,
}

/// Keeps a map within [`REMEMBERED_MAX`].
fn forget_least<V, O: Ord>(map: &mut BTreeMap<PeerId, V>, order: impl Fn(&V) -> O) {
    if map.len() > REMEMBERED_MAX
        && let Some(least) = map.iter().min_by_key(|(_, value)| order(value)).map(|(&peer, _)| peer)
    {
        map.remove(&least);
    }
}

impl Astray {
    /// Nobody has accounted for this request in time. Its tasks go to be issued again.
    pub(super) fn lost(&mut self, issue: &Issue, io: &mut Io) {
        for hop in &issue.hops {
            let tasks = hop.ranges.intersection(&issue.ranges).len();
            if tasks < hop.ranges.len() {
                // Some were withdrawn or declined meanwhile: they arrived.
                continue;
            }
            if hop.is_duty || io.handed.is_doubted(hop.router) {
                io.watch.lost(hop.router, issue.at, io.now);
                *self.swallowed.entry(hop.router).or_insert(0) += tasks;
                forget_least(&mut self.swallowed, |tasks| *tasks);
            } else {
                io.watch.lost_climbing(issue.at, io.now);
            }
        }
        if let Some(leaf) = issue.to {
            let (in_row, until) = self.silent.entry(leaf).or_insert((0, io.now));
            *until = io.now + doubled(SILENT_FIRST, *in_row, SILENT_MAX);
            *in_row = in_row.saturating_add(1);
            forget_least(&mut self.silent, |(_, until)| *until);
        }
        // With every machine that crashes requests are lost: once means nothing.
        self.other_way.extend_with(&issue.ranges.intersection(&self.once));
        self.once.extend_with(&issue.ranges);
    }

    /// A machine has these: wherever they are lost later is another matter.
    pub(super) fn found(&mut self, ranges: &IntervalSet, executor: PeerId) {
        self.once.subtract(ranges);
        self.other_way.subtract(ranges);
        self.silent.remove(&executor);
    }

    /// How many tasks went another way so far.
    pub(super) fn tasks(&self) -> u64 {
        self.tasks
    }

    pub(super) fn swallowed(&self) -> BTreeMap<PeerId, Swallowed> {
        let of = |(&router, &tasks): (&PeerId, &u64)| (router, Swallowed { tasks, is_left_out: false });
        self.swallowed.iter().map(of).collect()
    }

    /// Whether this leaf did not answer of late.
    fn is_silent(&self, leaf: PeerId, now: Time) -> bool {
        self.silent.get(&leaf).is_some_and(|&(_, until)| until > now)
    }
}

impl Ledger {
    /// By which first hops a request of this bag has just left.
    pub(crate) fn note_hops(&mut self, number: u64, hops: Vec<Hop>) {
        self.issues.note_hops(number, hops);
    }

    /// The tree loses what climbs: all that is to be issued goes another way.
    pub(crate) fn avoid_the_tree(&mut self) {
        self.astray.other_way.extend_with(self.waiting.unissued());
    }

    /// Whether tasks of this bag may be issued at all.
    pub(super) fn may_issue(&self) -> bool {
        self.open && !self.is_closed() && self.is_measured()
    }

    /// These tasks go straight to this leaf.
    fn send_straight(&mut self, tasks: IntervalSet, leaf: PeerId, io: &Io, config: &Config) -> Request {
        self.waiting.take(&tasks);
        self.astray.tasks += tasks.len();
        self.votes.send_to(leaf, tasks.len());
        self.request(tasks, Some(leaf), io, config)
    }

    /// A request to the own leaf for tasks that were lost once, as many as it has idle slots: it need not wait for another loss.
    pub(crate) fn issue_here(&mut self, idle_slots: u64, io: &Io, config: &Config) -> Option<Request> {
        let me = io.me.peer;
        if idle_slots == 0 || self.astray.once.is_empty() || !self.may_issue() {
            return None;
        }
        let lost = self.waiting.unissued().intersection(&self.astray.once);
        let part = lost.difference(&self.votes.of(me, &lost)).take_first(idle_slots.min(CHECKPOINTS_MAX as u64));
        if part.is_empty() || !self.is_asked(me, io) {
            return None;
        }
        Some(self.send_straight(part, me, io, config))
    }

    /// Requests for what goes another way, with whom they go to and whether its leaf or its router. `doubted` are routers in doubt;
    /// `has_room` says whether the own leaf has.
    pub(crate) fn issue_another_way(
        &mut self,
        known: impl FnOnce() -> Vec<Known>,
        doubted: &[Contact],
        has_room: bool,
        io: &Io,
        config: &Config,
    ) -> Vec<(Contact, Node, Request)> {
        let mut rest = self.waiting.unissued().intersection(&self.astray.other_way);
        if rest.is_empty() || !self.may_issue() {
            return Vec::new();
        }
        let mut requests = Vec::new();
        for router in doubted {
            let trial = rest.take_first((rest.len() / TRIAL_SHARE).min(TRIAL_MAX));
            if trial.is_empty() {
                break;
            }
            let request = self.request(trial.clone(), None, io, config);
            self.waiting.take(&trial);
            self.issues.note_hops(request.number, vec![Hop { router: router.peer, ranges: trial, is_duty: true }]);
            requests.push((router.clone(), Node::Router, request));
        }
        let leaves = self.leaves(known, has_room, io);
        let mut left = leaves.len() as u64;
        for leaf in leaves {
            let mut part = rest.difference(&self.votes.of(leaf.peer, &rest)).take_first(rest.len().div_ceil(left));
            left -= 1;
            part = part.ranges().take(REQUEST_INTERVALS_MAX).collect();
            part = self.checkpoints.within_request(part);
            if part.is_empty() {
                continue;
            }
            rest.subtract(&part);
            let request = self.send_straight(part, leaf.peer, io, config);
            requests.push((leaf, Node::Leaf, request));
        }
        // Where nobody may have them, the tree is as good as anything.
        self.astray.other_way.subtract(&rest);
        requests
    }

    /// Leaves that may get tasks now: the own one where it has room, those that hold the fewest tasks of the bag, then others that
    /// are known.
    fn leaves(&self, known: impl FnOnce() -> Vec<Known>, has_room: bool, io: &Io) -> Vec<Contact> {
        let me = has_room.then(|| Contact::clone(&io.me));
        let mut holders: Vec<_> =
            self.placed.iter().filter(|placement| placement.executor.peer != io.me.peer).collect();
        holders.sort_by_key(|placement| placement.ranges.len());
        let holders = holders.into_iter().map(|placement| placement.executor.clone());
        let mut neighbours: Vec<Contact> = known().into_iter().map(|known| known.contact).collect();
        neighbours.retain(|contact| contact.peer != io.me.peer && self.placed.of(contact.peer).is_none());
        // Those with nothing before those with something.
        let all = me.into_iter().chain(neighbours).chain(holders);
        all.filter(|leaf| !self.astray.is_silent(leaf.peer, io.now) && self.is_asked(leaf.peer, io))
            .take(LEAVES_MAX)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_machines_are_remembered_than_it_says() {
        let mut map = BTreeMap::new();
        for number in 0..1000_u64 {
            let mut peer = [0; 32];
            peer[..8].copy_from_slice(&number.to_be_bytes());
            map.insert(PeerId(peer), number);
            forget_least(&mut map, |value| *value);
        }
        assert_eq!(map.into_values().collect::<Vec<_>>(), (744..1000).collect::<Vec<_>>());
    }
}
