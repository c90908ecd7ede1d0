//! What holds of a peer after each event. Checked in debug builds only, so in tests and simulations.

use super::Peer;

/// A check is followed by so many events without one as it goes through this many intervals: what tests take grows with the number
/// of events alone, however much a peer holds.
const INTERVALS_PER_EVENT: usize = 8;

impl Peer {
    /// Panics where one of the rules is broken.
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
        debug_assert!(self.io.local.is_empty(), "messages to this machine itself wait");
        let gone = self.removals.keys().find(|bag| self.ledgers.contains_key(bag));
        debug_assert!(gone.is_none(), "{gone:?} is to go, and is here");
    }
}
