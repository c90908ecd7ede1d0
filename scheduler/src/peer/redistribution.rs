//! Redistribution: a machine that runs dry gets work that waits elsewhere (ours; the paper places a task once).
//!
//! It asks its leaf's parent, once, and again after a growing time; only while the root says that tasks wait somewhere,
//! so that an idle grid is quiet. A router hands the question down to the child whose leaves have the longest wait, and
//! up where that is less than half of the longest there is, at most one in a second. A child that was asked is not
//! asked again before it reports anew. The leaf at the end offers a share of what has not begun to the submitters
//! ([`crate::executor`]), which issue it to the idle machine.

use std::time::Duration;

use idlewood_overlay::{Contact, Node, State, Time};

use super::Peer;
use crate::message::Message;
use crate::router::CLIMBED_MAX;

/// A shorter wait is not worth the messages, in seconds. Our choice: several times what a task takes to change hands.
const WAIT_S_MIN: u64 = 5;
/// First and longest time between two questions of a machine that stays dry. Our choice.
const ASK_AFTER_MIN: Duration = Duration::from_secs(2);
const ASK_AFTER_MAX: Duration = Duration::from_secs(60);
/// Least time between two questions that a router lets climb.
const CLIMB_AFTER: Duration = Duration::from_secs(1);

/// When questions for work may be asked.
#[derive(Debug)]
pub(super) struct Asking {
    /// The longest wait of any leaf of the grid, by the root.
    longest_wait_s: u64,
    after: Time,
    pause: Duration,
    /// When the own router may let one climb again.
    climbs_after: Time,
}

impl Asking {
    pub(super) fn new(now: Time) -> Self {
        Self { longest_wait_s: 0, after: now, pause: ASK_AFTER_MIN, climbs_after: now }
    }
}

impl Peer {
    /// The root has news.
    pub(super) fn note_backlog(&mut self) {
        self.asking.longest_wait_s = self.platform().longest_wait_s;
    }

    fn wants_work(&self) -> bool {
        self.config.redistribution
            && self.asking.longest_wait_s >= WAIT_S_MIN
            && self.overlay.state() == State::Member
            && self.executor.is_dry()
    }

    /// When the next question is due.
    pub(super) fn ask_deadline(&self) -> Option<Time> {
        self.wants_work().then_some(self.asking.after)
    }

    /// Asks for work where there is none here.
    pub(super) fn ask_for_work(&mut self) {
        if !self.wants_work() {
            if !self.executor.is_dry() {
                (self.asking.after, self.asking.pause) = (self.io.now, ASK_AFTER_MIN);
            }
            return;
        }
        if self.asking.after > self.io.now {
            return;
        }
        self.asking.after = self.io.now + self.asking.pause;
        self.asking.pause = (self.asking.pause * 2).min(ASK_AFTER_MAX);
        if let Some(parent) = self.overlay.parent(Node::Leaf).cloned() {
            let (idle, speed_mops) = (self.io.me.clone(), self.executor.speed_mops());
            let ask = Message::Ask { idle, speed_mops, node: Node::Router, climbing: true, climbed: 0 };
            self.io.send(parent, ask);
        }
    }

    /// A machine that has nothing to do asks this machine's router, or its leaf.
    pub(super) fn asked(&mut self, idle: Contact, speed_mops: f64, node: Node, climbing: bool, climbed: u16) {
        if node == Node::Leaf {
            self.executor.give(&idle, speed_mops, &mut self.io, &self.config);
            return;
        }
        if !self.overlay.hosts_router() {
            return;
        }
        let parent = self.overlay.parent(Node::Router).filter(|_| climbing && climbed < CLIMBED_MAX);
        let least_s = if parent.is_some() { WAIT_S_MIN.max(self.asking.longest_wait_s / 2) } else { WAIT_S_MIN };
        let now = self.io.now;
        if let Some((child, node)) = self.router.ask(least_s, idle.peer, &self.overlay, now, &self.config) {
            self.io.send(child, Message::Ask { idle, speed_mops, node, climbing: false, climbed });
        } else if let Some(parent) = parent
            && self.asking.climbs_after <= now
        {
            self.asking.climbs_after = now + CLIMB_AFTER;
            let (node, climbed) = (Node::Router, climbed + 1);
            self.io.send(parent.clone(), Message::Ask { idle, speed_mops, node, climbing: true, climbed });
        }
    }
}
