//! Checkpoints of tasks that came back before their end.

use std::collections::BTreeMap;

use crate::bag::{BagId, CHECKPOINTS_MAX, Checkpoint};
use crate::ranges::IntervalSet;
use crate::record::{Change, RecordKey};

/// Checkpoints of tasks that have not ended.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    by_task: BTreeMap<u64, Checkpoint>,
}

impl Checkpoints {
    pub(super) fn insert(&mut self, index: u64, checkpoint: Checkpoint) {
        self.by_task.insert(index, checkpoint);
    }

    /// A task begins anew, or has ended. Returns the change of the store.
    pub(super) fn forget(&mut self, index: u64, bag: BagId) -> Option<Change> {
        self.by_task.remove(&index).map(|_| Change::Delete(RecordKey::Checkpoint(bag, index)))
    }

    pub(super) fn forget_all(&mut self, bag: BagId) -> Vec<Change> {
        let gone = std::mem::take(&mut self.by_task);
        gone.into_keys().map(|index| Change::Delete(RecordKey::Checkpoint(bag, index))).collect()
    }

    /// The first of these tasks, so many that their checkpoints fit in one request.
    pub(super) fn within_request(&self, ranges: IntervalSet) -> IntervalSet {
        let mut checkpoints = self.by_task.keys().filter(|index| ranges.contains(**index));
        match checkpoints.nth(CHECKPOINTS_MAX) {
            Some(&end) => ranges.intersection(&IntervalSet::from(0..end)),
            None => ranges,
        }
    }

    /// The checkpoints of these tasks, at most as many as fit in one request.
    pub(super) fn of(&self, ranges: &IntervalSet) -> Box<[(u64, Checkpoint)]> {
        let checkpoints = self.by_task.iter().filter(|(index, _)| ranges.contains(**index)).take(CHECKPOINTS_MAX);
        checkpoints.map(|(index, checkpoint)| (*index, *checkpoint)).collect()
    }

    /// That of a task.
    pub(super) fn get(&self, index: u64) -> Option<Checkpoint> {
        self.by_task.get(&index).copied()
    }

    /// The tasks that have one.
    pub(super) fn tasks(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_task.keys().copied()
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Checkpoint)> + '_ {
        self.by_task.iter().map(|(&index, &checkpoint)| (index, checkpoint))
    }
}
