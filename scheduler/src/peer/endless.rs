//! Endless bags on this peer: announcements on their way to the root, the wave of shares, and what leaves ask for
//! (`crate::endless`).

use idlewood_overlay::{Contact, Node, PeerId, Time};

use super::event::{Submission, SubmitError};
use super::{Peer, contact_of};
use crate::bag::{BAG_TASKS_MAX, BagId};
use crate::endless::fold::Place;
use crate::endless::{EndlessBag, Grant, ROOT_FOR};
use crate::message::Message;
use crate::router::CLIMBED_MAX;

impl Peer {
    /// Whether a submission's numbers are those of an endless bag, if it is one.
    pub(super) fn check_endless(&self, submission: &Submission) -> Result<(), SubmitError> {
        let is_endless = submission.tasks == BAG_TASKS_MAX;
        let is_sane = submission.endless.as_ref().is_none_or(|endless| {
            endless.is_valid()
                && submission.replication.is_none()
                && (submission.can_have_stewards() || submission.stewards.is_none_or(|stewards| stewards == 0))
        });
        if is_sane && is_endless == submission.endless.is_some() { Ok(()) } else { Err(SubmitError::Endless) }
    }

    /// Where this machine stands in the tree.
    fn place_in_tree(&self) -> Place {
        let parents = [Node::Leaf, Node::Router].map(|node| self.overlay.parent(node).cloned());
        let children = self.overlay.children().map(|child| child.map(|child| (child.contact.clone(), child.node)));
        let hosts_router = self.overlay.hosts_router();
        let children = if hosts_router { children } else { [None, None] };
        Place { is_root: self.overlay.is_root(), hosts_router, parents, children }
    }

    /// A message about endless bags arrived.
    pub(super) fn of_endless(&mut self, from: PeerId, message: Message) {
        self.fold.take_place(self.place_in_tree(), self.io.now);
        match message {
            Message::Announce { bag, climbed } if climbed > 0 || bag.submitter.peer == from => {
                self.announced(*bag, climbed, from);
            }
            Message::Granted { bag, grant, asks } => {
                self.granted(bag, grant);
                if let Some(root) = asks {
                    let root = root.contact(from);
                    self.root_heard = Some((root.clone(), self.io.now));
                    self.answer_root(bag, root);
                } else if let Some((_, heard)) = self.root_heard.as_mut().filter(|(root, _)| root.peer == from) {
                    *heard = self.io.now;
                }
            }
            Message::Absorbs { node, stamp, work_mops } => self.fold.absorbs(from, node, stamp, work_mops),
            Message::Shares { node, stamp, table, work_mops } => {
                self.fold.shared(from, node, (stamp, table), work_mops, self.io.now);
            }
            Message::Want { bag, executor, tasks } => {
                let executor = executor.contact(from);
                let executor = Contact { nonce: contact_of(&self.certified, from).nonce, ..executor };
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.wanted(executor, tasks, &self.io);
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, bag: BagId, grant: Grant) {
        if let Some(ledger) = self.ledgers.get_mut(&bag) {
            ledger.granted(grant);
        }
    }

    /// The root has heard of a bag by way of others, and asks its submitter, which is this machine.
    fn answer_root(&mut self, bag: BagId, root: Contact) {
        let announced = self.ledgers.get(&bag).and_then(|ledger| ledger.announced_as(&self.io, &self.config));
        let announced = announced.unwrap_or_else(|| EndlessBag::over(bag, Contact::clone(&self.io.me)));
        self.io.send(root, Message::Announce { bag: Box::new(announced), climbed: 0 });
    }

    /// An announcement reached this machine: the root answers it, others pass it up.
    fn announced(&mut self, bag: EndlessBag, climbed: u16, from: PeerId) {
        if self.overlay.is_root() {
            let (id, own) = (bag.bag, self.io.me.peer);
            let Some((submitter, by_submitter, grant)) = self.fold.announced(bag, from, self.io.now) else { return };
            if submitter.peer == own {
                self.granted(id, grant);
            } else if !by_submitter || climbed > 0 {
                // One that did not climb is the answer to a question, and not answered.
                let asks = (!by_submitter).then(|| (&self.io.me).into());
                self.io.send(submitter, Message::Granted { bag: id, grant, asks });
            }
            return;
        }
        let is_above = |parent: &&Contact| parent.peer != self.io.me.peer;
        let parent = match self.overlay.depth(Node::Router) {
            Some(_) => self.way_up(Node::Router),
            None => self.way_up(Node::Leaf).filter(is_above),
        };
        // Where the tree is being repaired it is lost, and the submitter repeats it.
        if let Some(parent) = parent.filter(|_| climbed < CLIMBED_MAX).cloned() {
            let bag = Box::new(bag);
            self.io.send(parent, Message::Announce { bag, climbed: climbed + 1 });
        }
    }

    /// Announces the endless bags submitted here, lets the wave go on, and asks for tasks.
    pub(super) fn share_endless(&mut self) {
        if self.is_attached() {
            let due: Vec<(EndlessBag, bool)> = self
                .ledgers
                .values_mut()
                .filter(|ledger| ledger.is_endless())
                .filter_map(|ledger| ledger.announcement(&self.io, &self.config))
                .collect();
            if !due.is_empty() {
                self.fold.take_place(self.place_in_tree(), self.io.now);
            }
            let own = self.io.me.peer;
            let is_heard = |(_, heard): &&(Contact, Time)| self.io.now.since(*heard) < ROOT_FOR;
            let root = self.root_heard.as_ref().filter(is_heard).map(|(root, _)| root.clone());
            let root = root.filter(|_| !self.overlay.is_root());
            for (bag, climbs) in due {
                match root.clone().filter(|_| !climbs) {
                    // 1, so that the root answers with what the bag has.
                    Some(root) => self.io.send(root, Message::Announce { bag: Box::new(bag), climbed: 1 }),
                    None => self.announced(bag, 0, own),
                }
            }
        }
        if !self.fold.is_active() {
            return;
        }
        let capacity = self.executor.endless_capacity(self.config.downlink_kb_s);
        let place = self.place_in_tree();
        if self.fold.settle(place, capacity, &mut self.io) {
            self.executor.set_shares(self.fold.shares(), self.io.me.peer);
            self.executor_touched = true;
        }
        if self.executor_must_act() {
            self.executor.want(&mut self.io);
        }
    }

    /// When [`Self::share_endless`] has timed work.
    pub(super) fn endless_due(&self) -> Option<Time> {
        let is_attached = self.is_attached();
        let bags = self.ledgers.values().filter(|ledger| is_attached && ledger.is_endless());
        let announced = bags.filter_map(|ledger| ledger.announces_at()).min();
        let wave = if self.fold.is_active() { self.fold.deadline() } else { None };
        announced.into_iter().chain(wave).min()
    }
}
