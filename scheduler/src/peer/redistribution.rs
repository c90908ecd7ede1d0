//! Redistribution: machines that could do more for the grid's largest stretch get work that waits elsewhere (ours; the
//! paper places a task once).
//!
//! A machine that runs *dry* asks while the root says that tasks wait somewhere. So does one that has work, while the
//! root says that somebody's stretch is clearly larger than its own: after a crash that cost its queue, a machine goes
//! on with late deadlines while others still hold many early ones, though nobody is dry (*levelling*). It asks its leaf's
//! parent, and again after a growing time, then elsewhere, too, since routers may drop questions (docs/adr/0026); a grid that is
//! idle, or level, is quiet. A router hands the question down to the child whose leaves have the longest wait, or the largest
//! stretch, and up where that is far below the most there is, at most one in a second. A child that was asked is not asked again
//! before it reports anew. The leaf at the end offers a share of what has not begun to the submitters ([`crate::executor`]), which
//! issue it to the asker.

use std::time::Duration;

use idlewood_overlay::{Contact, Node, State, Time};

use super::Peer;
use crate::message::{Asker, Message};
use crate::pace::Pace;
use crate::router::CLIMBED_MAX;

/// A shorter wait is not worth the messages, in seconds. Our choice: several times what a task takes to change hands.
const WAIT_S_MIN: u64 = 5;
/// First and longest time between two questions of a machine that stays dry. Our choice.
const ASK_AFTER_MIN: Duration = Duration::from_secs(2);
const ASK_AFTER_MAX: Duration = Duration::from_secs(60);
/// The first questions of machines that have work come spread out over so much time for each machine of the grid, and at most over
/// so much. Our choice: each costs a submitter some 600 bytes.
const ASK_SPREAD: Duration = Duration::from_millis(40);
const ASK_SPREAD_MAX: Duration = Duration::from_secs(30);
/// Least time between two questions that a router lets climb.
const CLIMB_AFTER: Duration = Duration::from_secs(1);

/// One question in so many goes up from the own leaf. Our choice.
const ASK_WAYS: usize = 3;

/// A machine asks where somebody's stretch is so many times its own. Our choice: without failures all are within that of
/// each other.
const UNEQUAL: f64 = 1.1;
/// Such a question climbs on unless the subtree has a leaf whose stretch is this share of the largest. Our choice.
const NEARLY: f64 = 0.95;

/// When questions for work may be asked.
#[derive(Debug)]
pub(super) struct Asking {
    /// The longest wait of any leaf of the grid, by the root.
    longest_wait_s: u64,
    /// Whether there is nothing to do, found anew when something may have changed for the executor.
    pub(super) is_dry: bool,
    /// None while there is no reason to.
    next: Option<Question>,
    /// When the own router may let one climb again.
    climbs_after: Time,
}

/// The next question.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// Whether the reason is that there is nothing to do.
    is_dry: bool,
    at: Time,
    /// From then to the one after it.
    pause: Duration,
    /// Questions before it that brought no work.
    in_vain: usize,
}

impl Asking {
    pub(super) fn new(now: Time) -> Self {
        Self { longest_wait_s: 0, is_dry: true, next: None, climbs_after: now }
    }
}

impl Peer {
    /// The root has news.
    pub(super) fn note_root(&mut self) {
        self.io.leaves = self.overlay.likely_count();
        let platform = self.platform();
        self.asking.longest_wait_s = platform.longest_wait_s;
        self.io.maximum_stretch = platform.maximum_stretch;
    }

    /// The stretch with which to ask for work; nothing where there is no reason to.
    fn wants_work(&self) -> Option<f64> {
        if !self.config.redistribution || self.overlay.state() != State::Member || self.executor.is_suspended() {
            return None;
        }
        if self.asking.is_dry {
            return (self.asking.longest_wait_s >= WAIT_S_MIN).then_some(0.0);
        }
        let stretch = self.executor.stretch();
        // What is 0 was published before there was work.
        let is_behind = stretch > 0.0 && self.io.maximum_stretch > stretch * UNEQUAL;
        (self.config.levelling && is_behind).then_some(stretch)
    }

    /// At what moment a machine that has work asks first: what follows is a matter of the submitters' links.
    fn asks_evenly(&self) -> Pace {
        Pace::new(ASK_SPREAD.mul_f64(self.io.leaves as f64).min(ASK_SPREAD_MAX), &self.io.me, b"ask")
    }

    /// When the next question is due.
    pub(super) fn ask_deadline(&self) -> Option<Time> {
        self.wants_work().map(|_| self.asking.next.map_or(self.io.now, |next| next.at))
    }

    /// Asks for work where there is none here, or clearly more urgent work elsewhere.
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
            // One that has nothing to do asks at once. All others find out at the same moment that they should.
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

    /// Where a question goes after so many in vain: up from the own leaf, then through the router of a machine far away, then to
    /// the leaf of another one, and so on. A router that drops questions leaves no other trace, and nobody but such a one may
    /// lead to a leaf on which tasks wait.
    fn asks_whom(&self, in_vain: usize) -> Option<(Contact, Node)> {
        let links = self.overlay.long_links().count();
        let node = if in_vain % ASK_WAYS == 1 { Node::Router } else { Node::Leaf };
        if in_vain.is_multiple_of(ASK_WAYS) || links == 0 {
            return self.way_up(Node::Leaf).map(|parent| (parent.clone(), Node::Router));
        }
        self.overlay.long_links().nth(in_vain / ASK_WAYS % links).map(|link| (link.clone(), node))
    }

    /// A machine asks this machine's router for work, or its leaf.
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
            // Perhaps nobody passes a question on to this leaf: the router above it may be a bad one.
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
