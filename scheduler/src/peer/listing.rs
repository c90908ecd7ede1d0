//! How questions of listings go through the tree (`listing`): to all neighbours in the tree, up and down, that may know of machines in
//! their part, but for the one from which they came.
//!
//! A router asks only where the part of the line below a child, or outside of its own subtree, meets that of the question. It answers
//! when all have, or in time for whoever asked. It hears questions of its children and its parent alone, and of each only so many.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, Node, PeerId, Side, Span, State};

use super::{Peer, contact_of};
use crate::listing::{
    About, Activity, Asked, AskedBy, HOP_WAIT, MACHINES_A_PAGE, MachineReport, MachinesPage, PAGE_WAIT, WhichMachines,
    expected, last_of_part, wait_for,
};
use crate::message::Message;

/// A router takes a part for too wide that holds so many pages, and speaks of its beginning only: machines do not agree on how many there
/// are.
const PARTS_MAX: u64 = 4;

impl Peer {
    /// The driver's user wants to know which machines are on the line from this place on.
    pub(super) fn list_machines(&mut self, ticket: u64, first: u64) {
        let (me, machines) = (self.io.me.peer, self.overlay.likely_count());
        let number = self.listings.number();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&me.0).update(&self.io.me.incarnation.to_le_bytes()).update(&number.to_le_bytes());
        let mut id = [0; 8];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        let question = WhichMachines {
            id: u64::from_le_bytes(id),
            number,
            first,
            last: last_of_part(first, MACHINES_A_PAGE, machines),
            wait_ms: PAGE_WAIT.as_millis() as u32,
        };
        self.ask_around(AskedBy::Driver(ticket), question, None);
    }

    /// A question reached this machine's leaf or router.
    pub(super) fn which_machines(&mut self, from: PeerId, question: WhichMachines, node: Node, climbing: bool) {
        let is_parent = |node| self.overlay.parent(node).is_some_and(|parent| parent.peer == from);
        let below = self.overlay.children().into_iter().flatten();
        let is_below = below.into_iter().any(|child| child.contact.peer == from);
        if node == Node::Leaf {
            if is_parent(Node::Leaf) {
                let page = MachinesPage {
                    last: question.last,
                    machines: self.own_report(&question),
                    ..MachinesPage::default()
                };
                self.answer(AskedBy::Machine(from, question.number), page);
            }
            return;
        }
        if climbing && !is_below || !climbing && !is_parent(Node::Router) {
            return;
        }
        self.ask_around(AskedBy::Machine(from, question.number), question, Some((from, climbing)));
    }

    /// A machine has answered.
    pub(super) fn machines(&mut self, from: PeerId, number: u32, page: MachinesPage) {
        self.listings.answered(from, number, page);
    }

    /// Passes on pages that are complete, or wanted now.
    pub(super) fn end_listings(&mut self) {
        for (asked_by, page) in self.listings.take_due(self.io.now) {
            self.answer(asked_by, page);
        }
    }

    fn answer(&mut self, asked_by: AskedBy, page: MachinesPage) {
        match asked_by {
            AskedBy::Driver(ticket) => self.io.list(ticket, page),
            AskedBy::Machine(peer, number) => {
                self.io.send(contact_of(&self.certified, peer), Message::Machines { number, page: Box::new(page) });
            }
        }
    }

    /// What this machine says of itself, if its place is in the part.
    fn own_report(&self, question: &WhichMachines) -> Vec<MachineReport> {
        let at = self.io.me.key(self.grid).head();
        let About { name, version, reason } = self.about.clone();
        let running = self.executor.running(self.io.now).iter().filter(|task| !task.frozen).count() as u32;
        let held = self.executor.held();
        let activity = match running {
            0 if self.executor.is_suspended() => Activity::Suspended,
            0 => Activity::Idle,
            _ => Activity::Working,
        };
        let report = MachineReport {
            peer: self.io.me.peer,
            at,
            name,
            version,
            activity,
            reason,
            slots: self.config.slots,
            speed_mops: self.config.speed_mops,
            running: running.min(self.config.slots),
            waiting: held.iter().map(|held| held.waiting).sum(),
        };
        if question.contains(at) { vec![report] } else { Vec::new() }
    }

    /// Asks all neighbours in the tree that may know of machines in the part, but for the one `from` which the question came.
    fn ask_around(&mut self, asked_by: AskedBy, mut question: WhichMachines, from: Option<(PeerId, bool)>) {
        let (now, me, grid, machines) = (self.io.now, self.io.me.peer, self.grid, self.overlay.likely_count());
        question.last = question.last.min(last_of_part(question.first, PARTS_MAX * MACHINES_A_PAGE, machines));
        let around = expected(question.first, question.last, machines);
        let (asker, is_below) = from.unwrap_or((me, true));
        if !self.listings.may_ask(asker, is_below, now) || self.listings.is_full() {
            return self.answer(asked_by, MachinesPage::busy(&question, around));
        }
        let mut page = MachinesPage { last: question.last, ..MachinesPage::default() };
        if from.is_none() {
            // This machine knows of itself, whoever else answers.
            page.machines.extend(self.own_report(&question));
        }
        if self.listings.has(question.id) {
            // It came on two ways while the tree heals.
            return self.answer(asked_by, page);
        }
        let wait = Duration::from_millis(u64::from(question.wait_ms)).min(PAGE_WAIT);
        question.wait_ms = wait.as_millis() as u32;
        let mut asked: Vec<(Contact, bool, Asked)> = Vec::new();
        let in_span = |span: &Span| (span.l.key(grid).head(), span.r.key(grid).head());
        if self.overlay.hosts_router() {
            let sides = [Side::Left, Side::Right].into_iter().zip(self.overlay.children());
            for (side, child) in sides {
                let (Some(child), Some(span)) = (child, self.overlay.child_span(side)) else {
                    page.unreached = page.unreached.saturating_add(1);
                    continue;
                };
                let (l, r) = in_span(span);
                let came_from_there = from == Some((child.contact.peer, true)) && child.node == Node::Router;
                if r < question.first || l > question.last || came_from_there {
                    continue;
                }
                if child.contact.peer == me {
                    page.machines.extend(self.own_report(&question));
                    continue;
                }
                let there = expected(l.max(question.first), r.min(question.last), machines).min(child.count);
                let (peer, node, heard) = (child.contact.peer, child.node, child.heard);
                let until = now + wait_for(child.height).min(wait);
                asked.push((
                    child.contact.clone(),
                    false,
                    Asked { peer, node, within: (l, r), heard, machines: there, until },
                ));
            }
            let is_outside = self.overlay.span(Node::Router).is_none_or(|span| {
                let (l, r) = in_span(span);
                span.lo.is_some() && question.first < l || span.ro.is_some() && question.last > r
            });
            if is_outside && is_below {
                self.ask_above(Node::Router, &question, &mut asked, &mut page);
            }
        } else if self.overlay.state() == State::Alone {
            page.machines.extend(self.own_report(&question));
        } else if from.is_none() {
            self.ask_above(Node::Leaf, &question, &mut asked, &mut page);
        } else {
            // The router that was meant has moved to another machine.
            page.unreached = page.unreached.saturating_add(around);
        }
        let rest = wait.saturating_sub(HOP_WAIT);
        let mut waiting = BTreeMap::new();
        for (to, climbing, node) in asked {
            if rest.is_zero() {
                page.unreached = page.unreached.saturating_add(node.machines);
                continue;
            }
            let number = self.listings.number();
            let question = WhichMachines { number, wait_ms: rest.as_millis() as u32, ..question };
            waiting.insert(number, node);
            self.io.send(to, Message::WhichMachines { question, node: node.node, climbing });
        }
        self.listings.open(asked_by, &question, page, waiting);
    }

    /// The parent of this node is to be asked about what is outside of its subtree.
    fn ask_above(
        &self,
        node: Node,
        question: &WhichMachines,
        asked: &mut Vec<(Contact, bool, Asked)>,
        page: &mut MachinesPage,
    ) {
        let machines = expected(question.first, question.last, self.overlay.likely_count());
        match self.overlay.parent(node).filter(|parent| parent.peer != self.io.me.peer) {
            Some(parent) => {
                let (peer, heard) = (parent.peer, self.io.now);
                let height = self.overlay.root().map_or(0, |root| root.height);
                let until = heard + wait_for(height.saturating_add(self.overlay.depth(node).unwrap_or(height)));
                asked.push((
                    parent.clone(),
                    true,
                    Asked { peer, node: Node::Router, within: (0, u64::MAX), heard, machines, until },
                ));
            }
            None => page.unreached = page.unreached.saturating_add(machines),
        }
    }
}
