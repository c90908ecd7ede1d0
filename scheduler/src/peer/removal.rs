//! Removal of bags, on the user's order.
//!
//! First the bag's record is written with [`Closing::Removed`], and the user is told once that is durable. Then the records
//! of its results are deleted piece by piece, and the bag's own with the last piece. So a bag of a million tasks takes the
//! memory of one piece, and a restarted peer goes on with the removal.

use std::collections::BTreeMap;

use super::{Notice, Peer};
use crate::bag::BagId;
use crate::io::Then;
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record, RecordKey};

/// Records that are deleted in one write. Our choice: some hundred kB of a journal.
pub(super) const PIECE: u64 = 4096;

/// Bags under removal, and those of their tasks that still have records.
pub(super) type Removals = BTreeMap<BagId, IntervalSet>;

impl Peer {
    /// Removes a closed bag, or one whose submission is not durable. Executors that still hold its tasks are told to drop
    /// them when they next send a message, as for any bag that is unknown here.
    pub(super) fn remove(&mut self, bag: BagId) {
        let Some(ledger) = self.ledgers.remove(&bag) else { return };
        if !ledger.is_open() {
            // Its submission is not durable, and its tasks have no records.
            self.io.give_up(bag);
            self.io.persist(vec![Change::Delete(RecordKey::Bag(bag))], Vec::new());
        } else if ledger.is_closed() {
            let mut record = ledger.record(&self.io);
            if let Record::Bag { closed, .. } = &mut record {
                *closed = Some((Closing::Removed, self.io.wall(self.io.now)));
            }
            let (done, failed) = ledger.ended();
            self.removals.insert(bag, done.union(&failed));
            let then = vec![Then::Notify(Notice::BagRemoved(bag)), Then::Remove(bag)];
            self.io.persist(vec![Change::Put(record)], then);
        } else {
            self.ledgers.insert(bag, ledger);
        }
    }

    /// Goes on with the removals that were under way before a restart.
    pub(super) fn restore_removals(&mut self, records: &[Record]) {
        for record in records {
            if let Record::Bag { bag, closed: Some((Closing::Removed, _)), .. } = record {
                self.removals.insert(bag.id, IntervalSet::default());
            }
        }
        for record in records {
            if let Record::Done { bag, result, .. } = record
                && let Some(left) = self.removals.get_mut(bag)
            {
                left.insert_index(result.index);
            }
        }
        let bags: Vec<BagId> = self.removals.keys().copied().collect();
        bags.into_iter().for_each(|bag| self.remove_piece(bag));
    }

    /// Deletes the next piece of a bag's records; called again when that is durable.
    pub(super) fn remove_piece(&mut self, bag: BagId) {
        let Some(left) = self.removals.get_mut(&bag) else { return };
        let piece = left.take_first(PIECE);
        let mut changes: Vec<Change> =
            piece.indices().map(|index| Change::Delete(RecordKey::Done(bag, index))).collect();
        if left.is_empty() {
            self.removals.remove(&bag);
            changes.push(Change::Delete(RecordKey::Bag(bag)));
            self.io.persist(changes, Vec::new());
        } else {
            self.io.persist(changes, vec![Then::Remove(bag)]);
        }
    }
}
