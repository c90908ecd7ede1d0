//! Former placements: tasks for which a machine accounted once. It may still have results of them, which the ledger takes.

use std::collections::BTreeMap;

use idlewood_overlay::PeerId;

use super::ended::Ended;
use crate::bag::{BagId, HELD_INTERVALS_MAX};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

/// Former placements of one bag.
#[derive(Debug, Default)]
pub(super) struct Former {
    by_executor: BTreeMap<PeerId, IntervalSet>,
}

impl Former {
    pub(super) fn restore(&mut self, executor: PeerId, ranges: IntervalSet) {
        self.by_executor.insert(executor, ranges);
    }

    pub(super) fn records(&self, bag: BagId) -> impl Iterator<Item = Record> + '_ {
        self.by_executor.iter().map(move |(&executor, ranges)| Record::Former { bag, executor, ranges: ranges.clone() })
    }

    pub(super) fn of(&self, executor: PeerId) -> Option<&IntervalSet> {
        self.by_executor.get(&executor)
    }

    /// An executor does not account for these tasks any more. Returns the change of the store.
    pub(super) fn add(&mut self, executor: PeerId, ranges: &IntervalSet, ended: &Ended, bag: BagId) -> Change {
        let mut all = self.by_executor.remove(&executor).unwrap_or_default();
        all.extend_with(ranges);
        ended.subtract_from(&mut all);
        if all.intervals() > HELD_INTERVALS_MAX {
            all = all.ranges().take(HELD_INTERVALS_MAX).collect();
        }
        self.by_executor.insert(executor, all.clone());
        Change::Put(Record::Former { bag, executor, ranges: all })
    }

    /// The bag is closed: no results are wanted. Returns the changes of the store.
    pub(super) fn forget_all(&mut self, bag: BagId) -> Vec<Change> {
        let gone = std::mem::take(&mut self.by_executor);
        gone.into_keys().map(|peer| Change::Delete(RecordKey::Former(bag, peer))).collect()
    }
}
