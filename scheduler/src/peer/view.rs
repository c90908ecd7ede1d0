//! What of a peer can be looked at.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, Overlay, PeerId, Time};

use super::Peer;
use crate::bag::{BagId, BagKey};
use crate::executor::{HeldView, RunningTask};
use crate::ledger::BagView;
use crate::ranges::IntervalSet;
use crate::record::Record;
use crate::reputation::Reputation;
use crate::router::Platform;

impl Peer {
    /// What the root last said of the whole grid.
    pub fn platform(&self) -> Platform {
        self.overlay.root().map_or_else(Platform::default, |root| Platform::decode(&root.payload))
    }

    /// This peer's place in the tree.
    pub fn overlay_view(&self) -> &Overlay {
        &self.overlay
    }

    /// This peer, as others reach it.
    pub fn me(&self) -> &Contact {
        self.overlay.me()
    }

    /// The own address became known.
    pub fn set_address(&mut self, address: Box<str>) {
        self.overlay.set_address(address);
        self.io.me.clone_from(self.overlay.me_shared());
    }

    /// The bags submitted from this machine, by id; of each as [`Self::bag`].
    pub fn bags(&self) -> impl Iterator<Item = BagView> {
        self.ledgers.keys().filter_map(|&id| self.bag(id))
    }

    /// One bag submitted from this machine. What is told of its results and its end survives a power cut.
    pub fn bag(&self, id: BagId) -> Option<BagView> {
        let mut view = self.ledgers.get(&id)?.view().durable(self.io.journalling(id));
        for (&router, swallowed) in &mut view.swallowed {
            swallowed.is_left_out = self.io.leaves_out(router);
        }
        Some(view)
    }

    /// Which tasks of a bag submitted from this machine have succeeded, and which have failed.
    pub fn over(&self, id: BagId) -> (IntervalSet, IntervalSet) {
        self.ledgers.get(&id).map(|ledger| ledger.over()).unwrap_or_default()
    }

    /// Who holds which tasks of a bag submitted from this machine.
    pub fn placements(&self, id: BagId) -> Vec<(Contact, IntervalSet)> {
        let ledger = self.ledgers.get(&id);
        let placements = ledger.into_iter().flat_map(|ledger| ledger.placements());
        placements.map(|(executor, ranges)| (executor.clone(), ranges.clone())).collect()
    }

    /// With what the blobs of a bag are read: of one submitted here, or of one held here whose submitter has told it.
    pub fn bag_key(&self, id: BagId) -> Option<BagKey> {
        let own = self.ledgers.get(&id).map(|ledger| ledger.key(&self.io));
        own.or_else(|| self.executor.bag_key(id))
    }

    /// What runs here now.
    pub fn running(&self) -> Vec<RunningTask> {
        self.executor.running(self.io.now)
    }

    /// What is held here, by bag.
    pub fn held(&self) -> Vec<HeldView> {
        self.executor.held()
    }

    /// What this machine has stored of a bag that it submitted and of itself, without what is over: enough for another life
    /// of it, elsewhere.
    pub fn records_of(&self, bag: BagId) -> Vec<Record> {
        let Some(ledger) = self.ledgers.get(&bag) else { return Vec::new() };
        let placed = ledger.placements().filter(|(_, ranges)| !ranges.is_empty()).map(|(executor, ranges)| {
            let (executor, ranges) = (executor.clone(), ranges.clone());
            Record::Placed { bag, executor, ranges }
        });
        let own = [Record::Incarnation(self.me().incarnation), ledger.record(&self.io)];
        own.into_iter().chain(placed).chain(ledger.former()).chain(ledger.failures()).collect()
    }

    /// The tasks that are held here and not over, by bag.
    pub fn unfinished(&self) -> BTreeMap<BagId, IntervalSet> {
        self.executor.unfinished()
    }

    /// Tasks that went back since the start, since nobody spoke for their bag: it was not fresh, and may be over.
    pub fn unspoken_tasks(&self) -> u64 {
        self.executor.unspoken_tasks()
    }

    /// Requests, or parts of them, that did not queue here since the start: not authorised, or over a quota.
    pub fn declined_requests(&self) -> u64 {
        self.executor.declined_requests()
    }

    /// What bags with a quorum have shown of other machines.
    pub fn reputations(&self) -> impl Iterator<Item = (PeerId, Reputation)> + '_ {
        self.io.reputations.all(self.io.wall(self.io.now))
    }

    /// Routers through which this machine sends nothing, since they did not pass on what they were handed, in their order.
    pub fn left_out(&self) -> Vec<PeerId> {
        self.io.left_out()
    }

    /// Until when this machine offers nothing, since all fails here that succeeds elsewhere.
    pub fn resting_until(&self) -> Option<Time> {
        self.executor.resting_until().filter(|&until| until > self.io.now)
    }

    /// Whether no task went on since [`crate::Effect::KeepCheckpoints`] was ordered with this number.
    pub fn is_stopped_since(&self, stop: u64) -> bool {
        self.executor.is_stopped_since(stop)
    }
}
