//! Invariants of a peer, asserted after events in debug builds only, so in tests and simulations.

use super::Peer;

/// A check of n intervals is followed by n / 8 events without one: the time that checks take grows with the number of
/// events only, however much a peer holds.
const INTERVALS_PER_EVENT: usize = 8;

impl Peer {
    /// Panics where an invariant is broken, if a check is due.
    pub(super) fn check_invariants(&mut self) {
        if let Some(unchecked) = self.unchecked.checked_sub(1) {
            self.unchecked = unchecked;
            return;
        }
        self.assert_consistent();
        let ledgers = self.ledgers.values().map(|ledger| ledger.intervals());
        let intervals = ledgers.sum::<usize>() + self.executor.intervals() + self.io.writes();
        self.unchecked = 1 + intervals / INTERVALS_PER_EVENT;
    }

    fn assert_consistent(&self) {
        self.ledgers.values().for_each(|ledger| ledger.assert_consistent());
        self.executor.assert_consistent(self.io.now);
        self.io.assert_consistent();
        let placements: u64 = self.ledgers.values().map(|ledger| ledger.executors()).sum();
        debug_assert_eq!(self.io.placements, placements, "executors of all bags");
        debug_assert!(self.io.local.is_empty(), "messages from this machine to itself wait");
        let gone = self.removals.keys().find(|bag| self.ledgers.contains_key(bag));
        debug_assert!(gone.is_none(), "{gone:?} is being removed, and is here");
    }
}
