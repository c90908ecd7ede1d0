//! Redistribution: machines that could lower the grid's largest stretch ask for tasks that wait on others (ours; the paper
//! places a task once).
//!
//! A *dry* machine asks while the root reports that tasks wait somewhere. A machine that has work asks while the root
//! reports a stretch clearly larger than its own (*levelling*): after a crash that cost its queue, a machine goes on with
//! late deadlines while others still hold many early ones, though no machine is dry. The `Ask` goes to the leaf's parent,
//! and again after a growing time, then elsewhere, too, since routers may drop an `Ask` (docs/adr/0026); an idle or level grid
//! sends none. A router passes an `Ask` down to the child whose leaves have the longest wait, or the largest stretch. Where that is
//! far below the grid's most, the router passes it up, at most one a second. A child is not asked again before its next report. The
//! leaf at the end offers some of its unstarted tasks to their submitters (`executor`), which issue them to the asker.

use std::time::Duration;

use idlewood_overlay::{Contact, Node, State, Time};

use super::Peer;
use crate::message::{Asker, Message};
use crate::pace::Pace;
use crate::router::CLIMBED_MAX;

/// A shorter wait is not worth the messages, in seconds. Our choice: several times as long as it takes to move a task.
const WAIT_S_MIN: u64 = 5;
/// First and longest time between two `Ask`s of a machine that stays dry. Our choice.
const ASK_AFTER_MIN: Duration = Duration::from_secs(2);
const ASK_AFTER_MAX: Duration = Duration::from_secs(60);
/// The first `Ask`s of machines that have work are spread over this time for each machine of the grid, and at most over the
/// second. Our choice: each costs a submitter some 600 bytes.
const ASK_SPREAD: Duration = Duration::from_millis(40);
const ASK_SPREAD_MAX: Duration = Duration::from_secs(30);
/// Least time between two `Ask`s that a router passes up.
const CLIMB_AFTER: Duration = Duration::from_secs(1);

/// One `Ask` in so many goes up from this machine's leaf. Our choice.
const ASK_WAYS: usize = 3;

/// A machine asks where the largest stretch is this multiple of its own. Our choice: without failures all stretches are
/// within that of each other.
const UNEQUAL: f64 = 1.1;
/// Such an `Ask` climbs unless the subtree has a leaf whose stretch is this share of the largest. Our choice.
const NEARLY: f64 = 0.95;

/// When this peer may send an `Ask`, its own or another machine's.
#[derive(Debug)]
pub(super) struct Asking {
    /// The longest wait of any leaf of the grid, as the root reports it.
    longest_wait_s: u64,
    /// Whether a slot of this machine is idle, as of the executor's last dispatch.
    pub(super) is_dry: bool,
    /// The next `Ask` of this machine; `None` while it has no reason to ask.
    next: Option<Question>,
    /// When this machine's router may pass the next one up.
    climbs_after: Time,
}

/// The next `Ask` of this machine.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// Whether the machine is dry.
    is_dry: bool,
    at: Time,
    /// From then to the `Ask` after it.
    pause: Duration,
    /// Earlier `Ask`s that brought no work.
    in_vain: usize,
}

impl Asking {
    pub(super) fn new(now: Time) -> Self {
        Self { longest_wait_s: 0, is_dry: true, next: None, climbs_after: now }
    }
}

impl Peer {
    /// Takes over the root's latest report.
    pub(super) fn note_root(&mut self) {
        self.io.leaves = self.overlay.likely_count();
        let platform = self.platform();
        self.asking.longest_wait_s = platform.longest_wait_s;
        self.io.maximum_stretch = platform.maximum_stretch;
        self.io.longest_wait_s = platform.longest_wait_s;
        self.io.mean_speed_mops = platform.speed_mops / self.io.leaves.max(1) as f64;
    }

    /// The stretch to name in an `Ask`, 0 on a dry machine; `None` where there is no reason to ask.
    fn wants_work(&self) -> Option<f64> {
        if !self.config.redistribution || self.overlay.state() != State::Member || self.executor.is_suspended() {
            return None;
        }
        if self.asking.is_dry {
            return (self.asking.longest_wait_s >= WAIT_S_MIN).then_some(0.0);
        }
        let stretch = self.executor.stretch();
        // A stretch of 0 was published before there was work.
        let is_behind = stretch > 0.0 && self.io.maximum_stretch > stretch * UNEQUAL;
        (self.config.levelling && is_behind).then_some(stretch)
    }

    /// The pace by which machines that have work ask first: the `Offer`s that follow share the submitters' links.
    fn asks_evenly(&self) -> Pace {
        Pace::new(ASK_SPREAD.mul_f64(self.io.leaves as f64).min(ASK_SPREAD_MAX), &self.io.me, b"ask")
    }

    /// When the next `Ask` is due.
    pub(super) fn ask_deadline(&self) -> Option<Time> {
        self.wants_work().map(|_| self.asking.next.map_or(self.io.now, |next| next.at))
    }

    /// Sends an `Ask` if it is due: there is no work here, or clearly more urgent work elsewhere.
    pub(super) fn ask_for_work(&mut self) {
        let Some(stretch) = self.wants_work() else {
            if !self.asking.is_dry {
                self.asking.next = None;
            }
            return;
        };
        let (now, is_dry) = (self.io.now, stretch == 0.0);
        let next = match self.asking.next {
            Some(next) if next.is_dry || !is_dry => Question { is_dry, ..next },
            // A dry machine asks at once. Those that have work all learn at the same moment that they should ask.
            _ => Question {
                is_dry,
                at: if is_dry { now } else { self.asks_evenly().next(now) },
                pause: ASK_AFTER_MIN,
                in_vain: 0,
            },
        };
        self.asking.next = Some(next);
        if next.at > now {
            return;
        }
        let (at, pause, in_vain) = (now + next.pause, (next.pause * 2).min(ASK_AFTER_MAX), next.in_vain + 1);
        self.asking.next = Some(Question { is_dry, at, pause, in_vain });
        if let Some((to, node)) = self.asks_whom(next.in_vain) {
            let (contact, slots) = (Contact::clone(&self.io.me), self.config.slots);
            let asker = Asker { contact, speed_mops: self.executor.speed_mops(), slots, stretch };
            let (climbing, climbed, ticket) = (true, 0, 0);
            self.io.hand_over(to, Message::Ask { asker, node, climbing, climbed, ticket });
        }
    }

    /// Where an `Ask` goes after so many in vain: up from this machine's leaf, then to the router of a long link, then to the leaf
    /// of one, and so on. A router that drops an `Ask` leaves no other trace, and may be the only way to a leaf on which
    /// tasks wait.
    fn asks_whom(&self, in_vain: usize) -> Option<(Contact, Node)> {
        let links = self.overlay.long_links().count();
        let node = if in_vain % ASK_WAYS == 1 { Node::Router } else { Node::Leaf };
        if in_vain.is_multiple_of(ASK_WAYS) || links == 0 {
            return self.way_up(Node::Leaf).map(|parent| (parent.clone(), Node::Router));
        }
        self.overlay.long_links().nth(in_vain / ASK_WAYS % links).map(|link| (link.clone(), node))
    }

    /// An `Ask` for this machine's router or leaf arrived.
    pub(super) fn asked(&mut self, asker: Asker, node: Node, climbing: bool, climbed: u16) {
        if node == Node::Leaf {
            self.executor.answer_ask(&asker, &mut self.io, &self.config);
            return;
        }
        self.router.leave_out(self.io.left_out());
        let parent = self.way_up(Node::Router).filter(|_| climbing && climbed < CLIMBED_MAX).cloned();
        let (longest_wait_s, maximum_stretch) = (self.asking.longest_wait_s, self.io.maximum_stretch);
        let (worth_it, nearly_the_most) = if asker.stretch > 0.0 {
            (asker.stretch * UNEQUAL, maximum_stretch * NEARLY)
        } else {
            (WAIT_S_MIN as f64, (longest_wait_s / 2) as f64)
        };
        let least = if parent.is_some() { nearly_the_most.max(worth_it) } else { worth_it };
        let now = self.io.now;
        let child =
            self.overlay.hosts_router().then(|| self.router.ask(&asker, least, &self.overlay, now, &self.config));
        if let Some((child, node)) = child.flatten() {
            self.io.hand_over(child, Message::Ask { asker, node, climbing: false, climbed, ticket: 0 });
        } else if climbing && asker.most(self.overlay.published(Node::Leaf)) >= least {
            // The router above this leaf may drop each `Ask` for it.
            self.executor.answer_ask(&asker, &mut self.io, &self.config);
        } else if let Some(parent) = parent
            && self.asking.climbs_after <= now
        {
            self.asking.climbs_after = now + CLIMB_AFTER;
            let (node, climbed) = (Node::Router, climbed + 1);
            self.io.hand_over(parent, Message::Ask { asker, node, climbing: true, climbed, ticket: 0 });
        }
    }
}
