//! Placements: the tasks of a bag that each executor holds under a lease, and the number of copies of each task.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, Time};

use crate::bag::BagId;
use crate::ranges::{IntervalSet, IntervalTree};
use crate::record::{Change, Record};

/// The tasks on one executor.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) executor: Contact,
    pub(super) ranges: IntervalSet,
    /// When the first of them were sent to it.
    pub(super) since: Time,
    /// End of the lease.
    pub(super) until: Time,
    /// Version of its last `Holding`.
    pub(super) version: u64,
    /// Whether tasks were withdrawn without the executor's knowledge: a `Renewal` is refused, and the answer to its next
    /// `Holding` has them dropped.
    pub(super) withdrawn: bool,
    /// Where this machine was away, or begins to act, and has not heard from the executor since: how often that is asked still what it holds.
    pub(super) asks_left: u32,
}

impl Placement {
    /// The change that journals it.
    pub(super) fn change(&self, bag: BagId) -> Change {
        Change::Put(Record::Placed { bag, executor: self.executor.clone(), ranges: self.ranges.clone() })
    }
}

/// Placements by executor. Results and renewals need no scan of them, since the copies of each task are counted.
#[derive(Debug, Default)]
pub(super) struct Placed {
    by_executor: BTreeMap<PeerId, Placement>,
    /// At position j the tasks that more than j executors hold.
    copies: Vec<IntervalTree>,
}

impl Placed {
    /// Number of machines that hold tasks.
    pub(super) fn executors(&self) -> u64 {
        self.by_executor.len() as u64
    }

    /// Number of tasks that at least one machine holds.
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

    /// Takes placed tasks out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        ranges.subtract(&self.held_by_more_than(0, ranges));
    }

    /// Replaces an executor's placement: without the tasks `lost`, and with the tasks `gained` besides.
    pub(super) fn replace(&mut self, placement: Placement, lost: &IntervalSet, gained: IntervalSet) {
        self.lose(lost);
        self.gain(gained);
        self.by_executor.insert(placement.executor.peer, placement);
    }

    /// Removes and returns an executor's placement.
    pub(super) fn remove(&mut self, executor: PeerId) -> Option<Placement> {
        let placement = self.by_executor.remove(&executor)?;
        self.lose(&placement.ranges);
        Some(placement)
    }

    /// Removes and returns all placements.
    pub(super) fn remove_all(&mut self) -> BTreeMap<PeerId, Placement> {
        self.copies.clear();
        std::mem::take(&mut self.by_executor)
    }

    /// Takes these tasks from a machine. Returns those that it held, and the change of the store; `None` for a machine
    /// without a placement.
    pub(super) fn take(&mut self, executor: PeerId, ranges: &IntervalSet, bag: BagId) -> Option<(IntervalSet, Change)> {
        let placement = self.by_executor.get_mut(&executor)?;
        let taken = placement.ranges.intersection(ranges);
        placement.ranges.subtract(&taken);
        let change = placement.change(bag);
        self.lose(&taken);
        Some((taken, change))
    }

    /// A task has ended: takes it from all machines. `executor` and then `voters` probably hold it; the other placements are
    /// searched only where it has more copies.
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

    /// Has this machine send a `Holding`: its next `Renewal` is refused.
    pub(super) fn require_holding(&mut self, executor: PeerId) {
        if let Some(placement) = self.by_executor.get_mut(&executor) {
            placement.withdrawn = true;
        }
    }

    /// A `Renewal` of the `Holding` with this incarnation and version extends the lease. False where that is not the last
    /// one that came, or tasks were withdrawn since.
    pub(super) fn renew(&mut self, executor: &Contact, version: u64, until: Time) -> bool {
        let renewed = (executor.incarnation, version);
        let is_known = |placement: &&mut Placement| {
            !placement.withdrawn && (placement.executor.incarnation, placement.version) == renewed
        };
        let known = self.by_executor.get_mut(&executor.peer).filter(is_known);
        // The term may have become shorter, but a promised lease holds.
        known.map(|placement| placement.until = placement.until.max(until)).is_some()
    }

    /// All leases last until then.
    pub(super) fn renew_all(&mut self, until: Time) {
        self.by_executor.values_mut().for_each(|placement| placement.until = until);
    }

    /// Where the lease of a machine has ended that is to be asked again what it holds, it lasts until then. Returns these; nobody is asked, and none
    /// of the asking counts, unless `may_ask`.
    pub(super) fn wait_on(&mut self, now: Time, until: Time, may_ask: bool) -> Vec<Contact> {
        let mut asked = Vec::new();
        for placement in self.by_executor.values_mut().filter(|one| one.until <= now && one.asks_left > 0) {
            placement.until = until;
            if may_ask {
                placement.asks_left -= 1;
                asked.push(placement.executor.clone());
            }
        }
        asked
    }

    /// Machines whose lease has ended.
    pub(super) fn ended(&self, now: Time) -> Vec<PeerId> {
        let ended = self.by_executor.iter().filter(|(_, placement)| placement.until <= now);
        ended.map(|(&peer, _)| peer).collect()
    }

    /// When the first lease ends; looks at all of them.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.by_executor.values().map(|placement| placement.until).min()
    }

    /// Counts one more copy of these tasks.
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

    /// Counts one copy less of these tasks.
    fn lose(&mut self, ranges: &IntervalSet) {
        let mut rest = ranges.clone();
        for level in self.copies.iter_mut().rev() {
            let last = level.intersection(&rest);
            level.subtract(&last);
            rest.subtract(&last);
        }
        while self.copies.pop_if(|level| level.is_empty()).is_some() {}
    }

    /// Panics where the counted copies are not those of the placements.
    #[cfg(debug_assertions)]
    pub(super) fn assert_consistent(&self) {
        let mut counted = Self::default();
        self.by_executor.values().for_each(|placement| counted.gain(placement.ranges.clone()));
        // `withdraw` leaves empty levels, which stay until `lose` removes them.
        let levels = |copies: &[IntervalTree]| -> Vec<IntervalTree> {
            copies.iter().filter(|level| !level.is_empty()).cloned().collect()
        };
        debug_assert_eq!(levels(&self.copies), levels(&counted.copies), "copies are not those of the placements");
    }

    /// Inserts a placement without counting copies, for tests.
    #[cfg(test)]
    pub(super) fn insert_uncounted(&mut self, placement: Placement) {
        self.by_executor.insert(placement.executor.peer, placement);
    }
}
