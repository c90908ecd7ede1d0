//! Who holds which tasks of a bag now, under which lease, and how many copies of each task that makes.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, Time};

use crate::bag::BagId;
use crate::ranges::{IntervalSet, IntervalTree};
use crate::record::{Change, Record};

/// Tasks on an executor.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) executor: Contact,
    pub(super) ranges: IntervalSet,
    /// When the first of them were sent to it.
    pub(super) since: Time,
    /// End of the lease.
    pub(super) until: Time,
    /// Of the last `Holding` heard.
    pub(super) version: u64,
    /// Whether tasks were withdrawn of which the executor does not know: it has to say what it holds, to hear of them.
    pub(super) withdrawn: bool,
}

impl Placement {
    /// What is journalled of it.
    pub(super) fn change(&self, bag: BagId) -> Change {
        Change::Put(Record::Placed { bag, executor: self.executor.clone(), ranges: self.ranges.clone() })
    }
}

/// Placements by executor. What comes with each result or renewal costs no scan of them: the copies of each index are counted.
#[derive(Debug, Default)]
pub(super) struct Placed {
    by_executor: BTreeMap<PeerId, Placement>,
    /// At j: the indices that more than j executors hold.
    copies: Vec<IntervalTree>,
}

impl Placed {
    /// How many machines hold tasks, or held them when they spoke last.
    pub(super) fn executors(&self) -> u64 {
        self.by_executor.len() as u64
    }

    /// How many tasks there are of which a machine holds a copy.
    pub(super) fn tasks(&self) -> u64 {
        self.copies.first().map_or(0, IntervalTree::len)
    }

    pub(super) fn of(&self, executor: PeerId) -> Option<&Placement> {
        self.by_executor.get(&executor)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Placement> {
        self.by_executor.values()
    }

    /// Whether this machine holds this task.
    pub(super) fn holds(&self, executor: PeerId, index: u64) -> bool {
        self.of(executor).is_some_and(|placement| placement.ranges.contains(index))
    }

    /// Those of these tasks that more than `copies` machines hold.
    pub(super) fn held_by_more_than(&self, copies: usize, ranges: &IntervalSet) -> IntervalSet {
        self.copies.get(copies).map_or_else(IntervalSet::new, |level| level.intersection(ranges))
    }

    /// All tasks that more than `copies` machines hold.
    pub(super) fn all_held_by_more_than(&self, copies: usize) -> IntervalSet {
        self.copies.get(copies).map_or_else(IntervalSet::new, |level| level.ranges().collect())
    }

    /// How many machines hold this task.
    pub(super) fn copies_of(&self, index: u64) -> usize {
        self.copies.iter().take_while(|level| level.contains(index)).count()
    }

    /// Takes what is held out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        ranges.subtract(&self.held_by_more_than(0, ranges));
    }

    /// An executor holds what the placement says, instead of what it held before: `lost` of that not any more, `gained` besides.
    pub(super) fn replace(&mut self, placement: Placement, lost: &IntervalSet, gained: IntervalSet) {
        self.lose(lost);
        self.gain(gained);
        self.by_executor.insert(placement.executor.peer, placement);
    }

    /// An executor holds nothing any more. Returns what it held.
    pub(super) fn remove(&mut self, executor: PeerId) -> Option<Placement> {
        let placement = self.by_executor.remove(&executor)?;
        self.lose(&placement.ranges);
        Some(placement)
    }

    /// All of them; none is left.
    pub(super) fn remove_all(&mut self) -> BTreeMap<PeerId, Placement> {
        self.copies.clear();
        std::mem::take(&mut self.by_executor)
    }

    /// Takes those of these tasks from a machine that it holds. Returns which they were, and what is to be stored; nothing where
    /// nothing is placed there.
    pub(super) fn take(&mut self, executor: PeerId, ranges: &IntervalSet, bag: BagId) -> Option<(IntervalSet, Change)> {
        let placement = self.by_executor.get_mut(&executor)?;
        let taken = placement.ranges.intersection(ranges);
        placement.ranges.subtract(&taken);
        let change = placement.change(bag);
        self.lose(&taken);
        Some((taken, change))
    }

    /// A task is not to be run anywhere any more. `executor` and then `voters` are who probably have it, so that all others are
    /// asked only where it has more copies.
    pub(super) fn withdraw(&mut self, index: u64, executor: Option<PeerId>, voters: Vec<PeerId>) {
        let mut copies = self.copies_of(index);
        for level in &mut self.copies[..copies] {
            level.remove(index..index + 1);
        }
        if let Some(placement) = executor.and_then(|peer| self.by_executor.get_mut(&peer)) {
            copies -= usize::from(placement.ranges.remove_index(index));
        }
        if copies == 0 {
            return;
        }
        let mut take = |placement: &mut Placement| {
            let held = placement.ranges.remove_index(index);
            placement.withdrawn |= held;
            copies -= usize::from(held);
            copies > 0
        };
        for voter in voters {
            if let Some(placement) = self.by_executor.get_mut(&voter)
                && !take(placement)
            {
                return;
            }
        }
        self.by_executor.values_mut().all(take);
    }

    /// This machine has to say what it holds: a renewal of what it said before is not enough.
    pub(super) fn has_to_say(&mut self, executor: PeerId) {
        if let Some(placement) = self.by_executor.get_mut(&executor) {
            placement.withdrawn = true;
        }
    }

    /// A machine goes on with what it said last, in this life of its and with this version. False where that is not what is
    /// known here.
    pub(super) fn renew(&mut self, executor: &Contact, version: u64, until: Time) -> bool {
        let said = (executor.incarnation, version);
        let is_known = |placement: &&mut Placement| {
            !placement.withdrawn && (placement.executor.incarnation, placement.version) == said
        };
        let known = self.by_executor.get_mut(&executor.peer).filter(is_known);
        // The submitter's patience may have become shorter since; what it has promised holds.
        known.map(|placement| placement.until = placement.until.max(until)).is_some()
    }

    /// All leases last until then.
    pub(super) fn renew_all(&mut self, until: Time) {
        self.by_executor.values_mut().for_each(|placement| placement.until = until);
    }

    /// Whose lease is over.
    pub(super) fn ended(&self, now: Time) -> Vec<PeerId> {
        let ended = self.by_executor.iter().filter(|(_, placement)| placement.until <= now);
        ended.map(|(&peer, _)| peer).collect()
    }

    /// When the first lease ends; asks all.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.by_executor.values().map(|placement| placement.until).min()
    }

    /// An executor holds these now, and did not before.
    fn gain(&mut self, ranges: IntervalSet) {
        let mut rest = ranges;
        for level in 0.. {
            if rest.is_empty() {
                break;
            }
            if level == self.copies.len() {
                self.copies.push(IntervalTree::default());
            }
            let again = self.copies[level].intersection(&rest);
            self.copies[level].extend_with(&rest);
            rest = again;
        }
    }

    /// An executor held these, and does not any more.
    fn lose(&mut self, ranges: &IntervalSet) {
        let mut rest = ranges.clone();
        for level in self.copies.iter_mut().rev() {
            let last = level.intersection(&rest);
            level.subtract(&last);
            rest.subtract(&last);
        }
        while self.copies.pop_if(|level| level.is_empty()).is_some() {}
    }

    /// The copies are those of the placements.
    #[cfg(debug_assertions)]
    pub(super) fn assert_consistent(&self) {
        let mut counted = Self::default();
        self.by_executor.values().for_each(|placement| counted.gain(placement.ranges.clone()));
        // Levels that are empty since their tasks are over stay until something is lost.
        let levels = |copies: &[IntervalTree]| -> Vec<IntervalTree> {
            copies.iter().filter(|level| !level.is_empty()).cloned().collect()
        };
        debug_assert_eq!(levels(&self.copies), levels(&counted.copies), "copies are not those of the placements");
    }

    /// For tests that make placements by hand, whose copies nobody counts.
    #[cfg(test)]
    pub(super) fn insert_uncounted(&mut self, placement: Placement) {
        self.by_executor.insert(placement.executor.peer, placement);
    }
}
