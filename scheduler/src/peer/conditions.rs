//! Bags that wait for others, or are withheld by their user (`conditions`), and rounds that begin at once.

use idlewood_overlay::PeerId;

use super::{Effect, Peer};
use crate::bag::BagId;
use crate::conditions::Awaited;
use crate::ranges::IntervalSet;
use crate::record::Closing;

impl Peer {
    /// A machine keeps slots for tasks of a bag submitted here.
    pub(super) fn booked(&mut self, executor: PeerId, bag: BagId, tasks: &IntervalSet) {
        if let Some(ledger) = self.ledgers.get_mut(&bag) {
            ledger.booked(executor, tasks, &mut self.io);
        }
    }

    /// Bags that have waited for others go on once these have succeeded, durably.
    pub(super) fn end_waits(&mut self) {
        let waits = |ledger: &crate::ledger::Ledger| {
            !ledger.conditions().after.is_empty() && !ledger.is_kept() && !ledger.is_closed() && ledger.is_open()
        };
        let waiting: Vec<BagId> =
            self.ledgers.iter().filter(|(_, ledger)| waits(ledger)).map(|(&bag, _)| bag).collect();
        for bag in waiting {
            let after = self.ledgers[&bag].conditions().after.iter().copied();
            let succeeded: Vec<BagId> = after.filter(|&bag| self.awaited(bag).is_none()).collect();
            if succeeded.is_empty() {
                continue;
            }
            if let Some(ledger) = self.ledgers.get_mut(&bag)
                && ledger.awaited_succeeded(&succeeded, &mut self.io)
            {
                self.measure(bag);
            }
        }
    }

    /// Why a bag for which another waits has not succeeded; `None` if it has.
    pub(super) fn awaited(&self, bag: BagId) -> Option<Awaited> {
        let Some(ledger) = self.ledgers.get(&bag).filter(|ledger| !ledger.is_kept()) else {
            return Some(Awaited::Unknown);
        };
        let closing = ledger.closing().filter(|_| self.io.journalling(bag).closings == 0);
        match closing {
            None => Some(Awaited::Open),
            Some(Closing::Completed) if ledger.has_failed_tasks() => Some(Awaited::Failed),
            Some(Closing::Completed) => None,
            Some(Closing::Cancelled | Closing::Removed) => Some(Awaited::Cancelled),
        }
    }

    /// Has the first task of a bag measured, if that is due.
    pub(super) fn measure(&mut self, bag: BagId) {
        if self.ledgers.get_mut(&bag).is_some_and(|ledger| ledger.begin_to_measure()) {
            self.io.effects.push(Effect::MeasureTask { bag });
        }
    }
}
