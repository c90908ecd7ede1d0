//! What drivers can read of a peer.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, Overlay, PeerId, Time};

use super::{Peer, contact_of};
use crate::bag::{BagId, BagKey, Checkpoint, DeclineReason, TaskId};
use crate::enclosed::Enclosed;
use crate::executor::{HeldView, RunningTask};
use crate::ledger::{BagView, KeptPrediction, Prediction};
use crate::ranges::IntervalSet;
use crate::record::Record;
use crate::reputation::Reputation;
use crate::rounds::Progress;
use crate::router::Platform;

impl Peer {
    /// The root's last report on the whole grid.
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

    /// Sets this peer's address, once the driver knows it.
    pub fn set_address(&mut self, address: Box<str>) {
        self.overlay.set_address(address);
        self.io.me.clone_from(self.overlay.me_shared());
    }

    /// The bags submitted from this machine, by id, each as by [`Self::bag`].
    pub fn bags(&self) -> impl Iterator<Item = BagView> {
        let own = self.ledgers.iter().filter(|(_, ledger)| !ledger.is_kept());
        own.filter_map(|(&id, _)| self.bag(id))
    }

    /// One bag submitted from this machine, or for which it acts as steward. Only durable results and ends are shown.
    pub fn bag(&self, id: BagId) -> Option<BagView> {
        let ledger = self.ledgers.get(&id)?;
        let mut view = ledger.view().durable(self.io.journalling(id));
        view.endless = ledger.endless_view(&self.io, &self.config);
        let after = view.conditions.after.iter();
        view.awaited = after.filter_map(|&bag| Some((bag, self.awaited(bag)?))).collect();
        for (&router, swallowed) in &mut view.swallowed {
            swallowed.is_left_out = self.io.leaves_out(router);
        }
        Some(view)
    }

    /// How far a bag of [`Self::bag`] is that is an application in rounds.
    pub fn rounds(&self, id: BagId) -> Option<&Progress> {
        self.ledgers.get(&id)?.progress()
    }

    /// How many processes of a round of a bag of [`Self::bag`] that is to begin at once have a slot; `None`: no round waits so.
    pub fn booked_slots(&self, id: BagId) -> Option<u64> {
        self.ledgers.get(&id)?.booked_slots(self.io.now)
    }

    /// What a task of a later round of a bag submitted here begins with, as requests name it.
    pub fn start_of(&self, task: TaskId) -> Option<Checkpoint> {
        self.ledgers.get(&task.bag)?.start_of(task.index)
    }

    /// When a bag of [`Self::bag`] ends, by the pace at which its tasks have ended so far; `None` before the first has, and once it is
    /// closed. It holds while the machines that work for the bag go on: a caller that knows that none does tells no end.
    pub fn predicted_end(&self, id: BagId) -> Option<Prediction> {
        self.ledgers.get(&id)?.predicted_end(&self.io)
    }

    /// The ends of a bag of [`Self::bag`] that were predicted after each tenth of its tasks.
    pub fn predictions(&self, id: BagId) -> &[KeptPrediction] {
        self.ledgers.get(&id).map(|ledger| ledger.predictions()).unwrap_or_default()
    }

    /// By how much the ends that were predicted after each tenth of a closed bag's tasks were wrong in the mean, as a share of the time that
    /// the bag took.
    pub fn prediction_error(&self, id: BagId) -> Option<f64> {
        self.ledgers.get(&id)?.prediction_error()
    }

    /// The tasks of a bag submitted from this machine that have succeeded, and those that have failed.
    pub fn over(&self, id: BagId) -> (IntervalSet, IntervalSet) {
        self.ledgers.get(&id).map(|ledger| ledger.ended()).unwrap_or_default()
    }

    /// The executors of a bag submitted from this machine, and the tasks that each holds.
    pub fn placements(&self, id: BagId) -> Vec<(Contact, IntervalSet)> {
        let ledger = self.ledgers.get(&id);
        let placements = ledger.into_iter().flat_map(|ledger| ledger.placements());
        placements.map(|(executor, ranges)| (executor.clone(), ranges.clone())).collect()
    }

    /// The machines that have declined tasks of a bag submitted from this machine and taken none since, and why they declined last.
    pub fn declining(&self, id: BagId) -> Vec<(PeerId, DeclineReason)> {
        self.ledgers.get(&id).into_iter().flat_map(|ledger| ledger.declining()).collect()
    }

    /// Of each machine how many tasks of this machine's bags are with it, and how many tries of them have failed on it since this peer
    /// started.
    pub fn own_tasks_by_machine(&self) -> BTreeMap<PeerId, (u64, u64)> {
        let mut tasks: BTreeMap<PeerId, (u64, u64)> = BTreeMap::new();
        for ledger in self.ledgers.values().filter(|ledger| !ledger.is_kept()) {
            for (executor, ranges) in ledger.placements() {
                tasks.entry(executor.peer).or_default().0 += ranges.len();
            }
            for (&executor, &failed) in ledger.failed_on() {
                tasks.entry(executor).or_default().1 += failed;
            }
        }
        tasks
    }

    /// Where a machine is on the line, by the nonce that the transport has told of it: the first 64 bits of its position key. One of which
    /// none was told is elsewhere.
    pub fn place(&self, peer: PeerId) -> u64 {
        contact_of(&self.certified, peer).key(self.grid).head()
    }

    /// Tasks of a bag submitted from this machine that wait until they are tried again, since they failed or were declined.
    pub fn pausing(&self, id: BagId) -> IntervalSet {
        self.ledgers.get(&id).map(|ledger| ledger.pausing()).unwrap_or_default()
    }

    /// What this machine takes its link for, in kB/s: the paper's until it has downloaded something.
    pub fn link_kb_s(&self) -> u32 {
        self.io.link_kb_s
    }

    /// The key to a bag's blobs: of a bag submitted here, or of one held here whose submitter has sent the key.
    pub fn bag_key(&self, id: BagId) -> Option<BagKey> {
        let own = self.ledgers.get(&id).map(|ledger| ledger.key(&self.io));
        own.or_else(|| self.stewards.key(id)).or_else(|| self.executor.bag_key(id))
    }

    /// The manifest of a bag that is held here, where its submitter has enclosed it.
    pub fn bag_manifest(&self, id: BagId) -> Option<&Enclosed> {
        self.executor.bag_manifest(id)
    }

    /// The tasks that have begun here.
    pub fn running(&self) -> Vec<RunningTask> {
        self.executor.running(self.io.now)
    }

    /// The bags held here.
    pub fn held(&self) -> Vec<HeldView> {
        self.executor.held()
    }

    /// The records with which a bag's submitter can go on on another machine: its own and those of the bag, without results.
    pub fn records_of(&self, bag: BagId) -> Vec<Record> {
        let Some(ledger) = self.ledgers.get(&bag) else { return Vec::new() };
        let placed = ledger.placements().filter(|(_, ranges)| !ranges.is_empty()).map(|(executor, ranges)| {
            let (executor, ranges) = (executor.clone(), ranges.clone());
            Record::Placed { bag, executor, ranges }
        });
        let own = [Record::Incarnation(self.me().incarnation), ledger.record(&self.io)];
        let stewards = self.stewards.appointment(bag).cloned();
        let stewards = stewards.map(|appointment| Record::Stewards { appointment, adopts: false });
        own.into_iter().chain(placed).chain(ledger.former()).chain(ledger.failures()).chain(stewards).collect()
    }

    /// The endless bags that share the grid, and the rate of each on this machine in Mop/s.
    pub fn endless_shares(&self) -> Vec<(BagId, f64)> {
        self.fold.shares().map(|(bag, work_mops)| (bag.bag, work_mops)).collect()
    }

    /// The unfinished tasks held here, by bag.
    pub fn unfinished(&self) -> BTreeMap<BagId, IntervalSet> {
        self.executor.unfinished()
    }

    /// Tasks that went back since the start because the submitter did not speak for their bag, which was not fresh.
    pub fn unspoken_tasks(&self) -> u64 {
        self.executor.unspoken_tasks()
    }

    /// Requests, or parts of them, that were declined since the start: not authorised, or over a quota.
    pub fn declined_requests(&self) -> u64 {
        self.executor.declined_requests()
    }

    /// The reputations of other machines, from bags with a quorum.
    pub fn reputations(&self) -> impl Iterator<Item = (PeerId, Reputation)> + '_ {
        self.io.reputations.all(self.io.wall(self.io.now))
    }

    /// Routers through which this machine sends nothing, since they did not pass on what they were handed; in the order of their ids.
    pub fn left_out(&self) -> Vec<PeerId> {
        self.io.left_out()
    }

    /// Until when this machine rests: it offers nothing, since tasks fail here that succeed elsewhere.
    pub fn resting_until(&self) -> Option<Time> {
        self.executor.resting_until().filter(|&until| until > self.io.now)
    }

    /// Whether no task went on since [`crate::Effect::KeepCheckpoints`] with this stop's number.
    pub fn is_stopped_since(&self, stop: u64) -> bool {
        self.executor.is_stopped_since(stop)
    }
}
