//! Requests that went astray: no machine accounted for any of their tasks in time. The tasks go around the tree.
//!
//! A router that drops requests leaves no trace but silence. So the ledger notes the first hops of each of its requests. A task
//! that one request lost goes to this machine's leaf if that has an idle slot. A task that two requests lost goes around the tree:
//! straight to leaves that this machine knows (its own, its neighbours on the line, its long links, and the holders of tasks
//! of the bag), in equal parts, which redistribution then evens out. One lost request proves nothing: every crash loses some. A
//! leaf that does not answer gets no tasks for a while. Each doubted router gets a few tasks as a trial, to be placed below it:
//! a machine that accounts for one clears the router; a lost trial counts against it (`watch`).
//!
//! Left out: requests of other machines. Their submitters judge those, and so do the machines that handed them over (`handed`).

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

/// How long a leaf that did not answer gets no tasks: at first, and at most; it doubles in between. Our choice.
const SILENT_FIRST: Duration = Duration::from_secs(60);
const SILENT_MAX: Duration = Duration::from_secs(3600);
/// Share of the tasks that a doubted router gets as a trial, and the most.
const TRIAL_SHARE: u64 = 8;
const TRIAL_MAX: u64 = 2;
/// Most leaves that are sent tasks at once: each costs a message and an answer. Our choice.
const LEAVES_MAX: usize = 64;

/// Most silent leaves, and most routers that lost tasks, of one bag. The leaf that may get tasks soonest, or the router that lost
/// the fewest, is forgotten first. Our choice.
const REMEMBERED_MAX: usize = 256;

/// The lost tasks of one bag, the routers that lost them, and silent leaves.
#[derive(Debug, Default)]
pub(super) struct Astray {
    /// Tasks that at least one request lost.
    lost_once: IntervalSet,
    /// Tasks that are to go around the tree.
    around_tree: IntervalSet,
    /// Tasks sent straight to leaves, each as often as it was sent.
    tasks: u64,
    /// Tasks lost by routers that alone had to pass them on.
    swallowed: BTreeMap<PeerId, u64>,
    /// Leaves that did not answer, how often in a row, and until when they get nothing.
    silent: BTreeMap<PeerId, (u32, Time)>,
}

/// Tasks of a bag that one router did not pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swallowed {
    /// Lost tasks, each as often as the router lost it.
    pub tasks: u64,
    /// Whether this machine leaves the router out now.
    pub is_left_out: bool,
}

/// Removes the least entry of a map with more than [`REMEMBERED_MAX`].
fn forget_least<V, O: Ord>(map: &mut BTreeMap<PeerId, V>, order: impl Fn(&V) -> O) {
    if map.len() > REMEMBERED_MAX
        && let Some(least) = map.iter().min_by_key(|(_, value)| order(value)).map(|(&peer, _)| peer)
    {
        map.remove(&least);
    }
}

impl Astray {
    /// This request timed out; tasks that it still has are lost, and are issued again.
    pub(super) fn lost(&mut self, issue: &Issue, io: &mut Io) {
        for hop in &issue.hops {
            let tasks = hop.ranges.intersection(&issue.ranges).len();
            if tasks < hop.ranges.len() {
                // A machine accounted for some, or declined them, or they ended: the request was passed on.
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
        // Every crash loses requests, so that one loss proves nothing.
        self.around_tree.extend_with(&issue.ranges.intersection(&self.lost_once));
        self.lost_once.extend_with(&issue.ranges);
    }

    /// An executor accounts for these tasks: earlier losses of them do not count any more.
    pub(super) fn found(&mut self, ranges: &IntervalSet, executor: PeerId) {
        self.lost_once.subtract(ranges);
        self.around_tree.subtract(ranges);
        self.silent.remove(&executor);
    }

    /// Tasks sent straight to leaves so far, each as often as it was sent.
    pub(super) fn tasks(&self) -> u64 {
        self.tasks
    }

    pub(super) fn swallowed(&self) -> BTreeMap<PeerId, Swallowed> {
        let of = |(&router, &tasks): (&PeerId, &u64)| (router, Swallowed { tasks, is_left_out: false });
        self.swallowed.iter().map(of).collect()
    }

    /// Whether this leaf gets no tasks now, since it did not answer.
    fn is_silent(&self, leaf: PeerId, now: Time) -> bool {
        self.silent.get(&leaf).is_some_and(|&(_, until)| until > now)
    }
}

impl Ledger {
    /// Notes first hops of a request of this bag that has just been sent.
    pub(crate) fn note_hops(&mut self, number: u64, hops: Vec<Hop>) {
        self.issues.note_hops(number, hops);
    }

    /// The tree loses requests that climb: all unissued tasks go around it.
    pub(crate) fn avoid_tree(&mut self) {
        self.astray.around_tree.extend_with(self.waiting.unissued());
    }

    /// Whether tasks of this bag may be issued at all.
    pub(super) fn may_issue(&self) -> bool {
        self.sized && !self.is_closed() && !self.keeping.is_held && !self.conditions.withhold()
    }

    /// A request for these tasks, straight to this leaf.
    fn send_straight(&mut self, tasks: IntervalSet, leaf: PeerId, io: &Io, config: &Config) -> Request {
        self.waiting.take(&tasks);
        self.astray.tasks += tasks.len();
        self.votes.send_to(leaf, tasks.len());
        self.request(tasks, Some(leaf), io, config)
    }

    /// A request to this machine's leaf for tasks that were lost once, at most one for each idle slot: they need not wait for a
    /// second loss.
    pub(crate) fn issue_here(&mut self, idle_slots: u64, io: &Io, config: &Config) -> Option<Request> {
        let me = io.me.peer;
        if idle_slots == 0 || self.astray.lost_once.is_empty() || !self.may_issue() {
            return None;
        }
        let lost = self.waiting.unissued().intersection(&self.astray.lost_once);
        let most = idle_slots.min(CHECKPOINTS_MAX as u64);
        let part = self.within_room(lost.difference(&self.votes.of(me, &lost)).take_first(most));
        if part.is_empty() || !self.is_asked(me, io) {
            return None;
        }
        Some(self.send_straight(part, me, io, config))
    }

    /// Requests for tasks that go around the tree, each with the machine and the node that it goes to. `doubted` routers get
    /// trials; this machine's leaf gets tasks if it `has_room`.
    pub(crate) fn issue_around_tree(
        &mut self,
        known: impl FnOnce() -> Vec<Known>,
        doubted: &[Contact],
        has_room: bool,
        io: &Io,
        config: &Config,
    ) -> Vec<(Contact, Node, Request)> {
        let mut rest = self.within_room(self.waiting.unissued().intersection(&self.astray.around_tree));
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
        let mut leaves_to_come = leaves.len() as u64;
        for leaf in leaves {
            let mut part =
                rest.difference(&self.votes.of(leaf.peer, &rest)).take_first(rest.len().div_ceil(leaves_to_come));
            leaves_to_come -= 1;
            part = part.ranges().take(REQUEST_INTERVALS_MAX).collect();
            part = self.checkpoints.within_request(part);
            if part.is_empty() {
                continue;
            }
            rest.subtract(&part);
            let request = self.send_straight(part, leaf.peer, io, config);
            requests.push((leaf, Node::Leaf, request));
        }
        // No known leaf may have the rest: they go through the tree after all.
        self.astray.around_tree.subtract(&rest);
        requests
    }

    /// Leaves that may get tasks now: this machine's if it has room, then known ones without tasks of the bag, then holders,
    /// those with the fewest tasks first.
    fn leaves(&self, known: impl FnOnce() -> Vec<Known>, has_room: bool, io: &Io) -> Vec<Contact> {
        let me = has_room.then(|| Contact::clone(&io.me));
        let mut holders: Vec<_> =
            self.placed.iter().filter(|placement| placement.executor.peer != io.me.peer).collect();
        holders.sort_by_key(|placement| placement.ranges.len());
        let holders = holders.into_iter().map(|placement| placement.executor.clone());
        let mut neighbours: Vec<Contact> = known().into_iter().map(|known| known.contact).collect();
        neighbours.retain(|contact| contact.peer != io.me.peer && self.placed.of(contact.peer).is_none());
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
    fn a_map_of_machines_forgets_the_least_beyond_its_maximum() {
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
