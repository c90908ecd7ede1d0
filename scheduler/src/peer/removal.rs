//! Bags of which their user needs nothing any more.
//!
//! That a bag is to go is written first, as the way in which it ended, and said when it is durable; then its records go piece by
//! piece, the bag's own with the last. A million tasks so take the memory of one piece, and a restart goes on where the last life
//! stopped.

use std::collections::BTreeMap;

use super::{Notice, Peer};
use crate::bag::BagId;
use crate::io::Then;
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record, RecordKey};

/// Records that go together. Our choice: some hundred kB of a journal.
pub(super) const PIECE: u64 = 4096;

/// Bags that go, and of which of their tasks there are records.
pub(super) type Removals = BTreeMap<BagId, IntervalSet>;

impl Peer {
    /// Whoever still has something of it is told to forget it, as of any bag that is not known here.
    pub(super) fn remove(&mut self, bag: BagId) {
        let Some(ledger) = self.ledgers.remove(&bag) else { return };
        if !ledger.is_open() {
            // It was never taken, and of its tasks nothing is written.
            self.io.give_up(bag);
            self.io.persist(vec![Change::Delete(RecordKey::Bag(bag))], Vec::new());
        } else if ledger.is_closed() {
            let mut record = ledger.record(&self.io);
            if let Record::Bag { closed, .. } = &mut record {
                *closed = Some((Closing::Removed, self.io.wall(self.io.now)));
            }
            let (done, failed) = ledger.over();
            self.removals.insert(bag, done.union(&failed));
            let then = vec![Then::Notify(Notice::BagRemoved(bag)), Then::Remove(bag)];
            self.io.persist(vec![Change::Put(record)], then);
        } else {
            self.ledgers.insert(bag, ledger);
        }
    }

    /// What is written of these bags is to go: an earlier life had begun to remove them.
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

    /// The next piece goes when the one before is gone.
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
