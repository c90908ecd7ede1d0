//! What this peer does as one of several keepers of a bag (`steward`): messages between keepers, and what is due.

use idlewood_overlay::{Contact, PeerId, Time};

use super::{Peer, contact_of};
use crate::bag::BagId;
use crate::message::{Lease, Message};
use crate::ranges::IntervalSet;
use crate::steward::{KeeperView, ResultsKept};

impl Peer {
    /// What one keeper says to another.
    pub(super) fn of_keepers(&mut self, from: PeerId, message: Message) {
        let (contact, now) = (contact_of(&self.certified, from), self.io.now);
        match message {
            Message::DeltasAck { .. } | Message::KeptAck { .. } => {}
            _ if self.stewards.has_left() => return,
            _ => {}
        }
        match message {
            Message::KeepOffer { bag } => {
                let from = if bag.submitter.peer == from { bag.submitter.clone() } else { contact };
                self.stewards.offered(from, &bag, &mut self.io);
            }
            Message::KeepAnswer { bag, accepts } => self.stewards.answered(from, bag, accepts, now),
            Message::Deltas { deltas } => {
                self.stewards.deltas(contact, deltas, &mut self.ledgers, &mut self.io);
            }
            Message::DeltasAck { bags } => {
                self.stewards.acknowledged(contact, bags, &mut self.ledgers, &mut self.io);
            }
            Message::WhatIsKept { bags } => self.stewards.asked(contact, bags, &self.ledgers, &mut self.io),
            Message::Kept { .. } if self.disk_is_full => {}
            Message::Kept { ref acting, .. } if self.stewards.is_elsewhere(acting.appointment.bag) => {}
            Message::Kept { acting, results, .. } if self.stewards.keeps(acting.appointment.bag) => {
                self.stewards.given(from, &acting, results, &self.ledgers, &mut self.io);
            }
            Message::Kept { acting, tasks, results } => {
                let (ledgers, io) = (&mut self.ledgers, &mut self.io);
                self.stewards.handed(contact, &acting, (&tasks, results), ledgers, io, &self.config);
            }
            Message::KeptAck { bag, indices, full } => self.stewards.taken(from, bag, &indices, full, &mut self.io),
            _ => debug_assert!(false, "{message:?} is no message between keepers"),
        }
    }

    /// Whether a keeper of a bag asks what this machine holds of it, and that is nothing, not even results that it keeps.
    pub(super) fn is_asked_for_nothing(&self, lease: &Lease) -> bool {
        let is_here = self.executor.knows(lease.bag) || self.stewards.keeps(lease.bag);
        lease.version == 0 && lease.key.is_some() && !is_here
    }

    /// Does what is due as one of several keepers.
    pub(super) fn keep(&mut self) {
        if self.stewards.deadline(&self.ledgers, &self.config).is_none_or(|due| due > self.io.now) {
            return;
        }
        let overlay = &self.overlay;
        let executors: Vec<Contact> = self
            .ledgers
            .values()
            .flat_map(|ledger| ledger.placements())
            .map(|(executor, _)| executor.clone())
            .take(EXECUTORS_MAX)
            .collect();
        let known = || overlay.neighbours().chain(overlay.long_links()).chain(&executors).cloned().collect();
        let is_connected = overlay.neighbours().next().is_some();
        self.stewards.step(&mut self.ledgers, &known, is_connected, &mut self.io, &self.config);
    }

    /// The keepers of a bag that was submitted here, or that this machine keeps, by rank; none before its submitter has appointed any.
    pub fn keepers(&self, bag: BagId) -> Vec<KeeperView> {
        self.stewards.view(bag, self.io.me.peer, self.io.now).0
    }

    /// Since when the keeper acts that [`Self::keepers`] says acts; `None` where this machine does not know.
    pub fn acting_since(&self, bag: BagId) -> Option<Time> {
        self.stewards.view(bag, self.io.me.peer, self.io.now).1
    }

    /// Whether a bag that was submitted here goes on without this machine: it is over, or a steward that was heard of lately has
    /// all that there is to know of it, and may act for it.
    pub fn goes_on_without_me(&self, bag: BagId) -> bool {
        let Some(ledger) = self.ledgers.get(&bag).filter(|ledger| !ledger.is_kept()) else { return false };
        let is_ready = |keeper: &KeeperView| keeper.rank > 0 && keeper.is_up_to_date && keeper.is_heard;
        ledger.is_closed() || ledger.progress().is_none() && self.keepers(bag).iter().any(is_ready)
    }

    /// Whether another machine goes on as this one with a bag that was submitted here, since it was adopted from a ticket: it has a
    /// higher term under this machine's key, and this machine does nothing for the bag any more.
    pub fn is_elsewhere(&self, bag: BagId) -> bool {
        self.stewards.is_elsewhere(bag)
    }

    /// The stewards of a bag that was submitted here, as it last appointed them.
    pub fn stewards(&self, bag: BagId) -> impl Iterator<Item = &Contact> {
        self.stewards.of_own(bag)
    }

    /// How many stewards a bag that was submitted here is to have; one with a quorum has none.
    pub fn stewards_wanted(&self, bag: BagId) -> u32 {
        let ledger = self.ledgers.get(&bag).filter(|ledger| ledger.can_have_stewards());
        ledger.map_or(0, |ledger| ledger.stewards(&self.config))
    }

    /// Whether this machine keeps this bag for another.
    pub fn keeps(&self, bag: BagId) -> bool {
        self.stewards.keeps(bag)
    }

    /// The submitter of a bag that this machine keeps for it.
    pub fn kept_for(&self, bag: BagId) -> Option<&Contact> {
        self.stewards.kept().find(|copy| copy.bag() == bag)?.submitter()
    }

    /// Whether `peer` may know what tasks of a bag do on this machine: it is the bag's submitter, or the keeper that acts for it. False
    /// where this machine holds nothing of the bag.
    pub fn answers_to(&self, bag: BagId, peer: PeerId) -> bool {
        self.executor.answers_to(bag, peer)
    }

    /// Whoever may have the files of a bag that is here or has been asked for: its keepers, the one that acts first.
    pub fn sources(&self, bag: BagId) -> Vec<Contact> {
        self.executor.keepers(bag)
    }

    /// The bags that this machine keeps for others, and whether it acts for each.
    pub fn kept(&self) -> impl Iterator<Item = (BagId, bool)> {
        self.stewards.kept().map(|copy| (copy.bag(), self.ledgers.contains_key(&copy.bag())))
    }

    /// The tasks of a bag kept here whose results wait for its submitter.
    pub fn kept_results(&self, bag: BagId) -> IntervalSet {
        let copy = self.stewards.kept().find(|copy| copy.bag() == bag);
        copy.map(|copy| copy.results.untaken_tasks()).unwrap_or_default()
    }

    /// Where the results of a bag are that was submitted here; `None` where its stewards are not to keep them.
    pub fn results_kept(&self, bag: BagId) -> Option<ResultsKept> {
        self.stewards.results_kept(bag, &self.ledgers, self.io.now)
    }

    /// The tasks of a bag that was adopted here that had ended and are computed again, since no machine has shown their results yet.
    pub fn results_lost(&self, bag: BagId) -> IntervalSet {
        self.ledgers.get(&bag).map(|ledger| ledger.lacks_results().clone()).unwrap_or_default()
    }
}

/// Most executors that are looked at as stewards. Our choice.
const EXECUTORS_MAX: usize = 256;
