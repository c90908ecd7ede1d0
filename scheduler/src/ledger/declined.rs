//! Tasks that machines do not queue: their owners do not want them, or cannot tell whose they are.
//!
//! They are issued again after a pause, which doubles while nobody takes any. A machine that declines stands idle, so that
//! it looks like the best there is and would be given the same again: what has been declined twice goes straight to a
//! machine that holds tasks of the bag and has fewest, or to this one, which takes its own always.
//!
//! Anybody who knows the bag can say that it declines what is on its way. That costs a pause, and is shown with the name of
//! who said it.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId};

use super::Ledger;
use super::failures::{PAUSE_FIRST, doubled, pause_end};
use crate::bag::DeclineReason;
use crate::io::Io;
use crate::ranges::IntervalSet;

/// Longest pause. Our choice: an owner's wishes change, and quotas get room, within minutes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Who declined for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declines {
    /// How many tasks, each as often as it was declined.
    pub tasks: u64,
    /// The last machine.
    pub last: PeerId,
}

/// What was declined of one bag.
#[derive(Debug, Default)]
pub(super) struct Declined {
    pub(super) reasons: BTreeMap<DeclineReason, Declines>,
    once: IntervalSet,
    twice: IntervalSet,
    /// Since tasks were placed last.
    in_row: u32,
}

impl Declined {
    /// Somebody takes these.
    pub(super) fn taken(&mut self, ranges: &IntervalSet) {
        if !ranges.is_empty() {
            self.in_row = 0;
            self.once.subtract(ranges);
            self.twice.subtract(ranges);
        }
    }

    /// This task is over.
    pub(super) fn over(&mut self, index: u64) {
        self.once.remove_index(index);
        self.twice.remove_index(index);
    }

    /// Of these, those that the tree does not place.
    pub(super) fn direct(&self, ranges: &IntervalSet) -> IntervalSet {
        self.twice.intersection(ranges)
    }
}

impl Ledger {
    /// A machine says that it does not queue these tasks, which are on their way.
    pub(crate) fn declined(&mut self, executor: PeerId, ranges: &IntervalSet, reason: DeclineReason, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        let mut back = IntervalSet::new();
        for issue in self.issued.iter_mut().filter(|issue| issue.to.is_none_or(|to| to == executor)) {
            let part = issue.ranges.intersection(ranges);
            if !part.is_empty() {
                issue.unheard_until = None;
            }
            issue.ranges.subtract(&part);
            back.extend_with(&part);
        }
        self.issued.retain(|issue| !issue.ranges.is_empty());
        if !back.is_empty() {
            let declines = self.declined.reasons.entry(reason).or_insert(Declines { tasks: 0, last: executor });
            *declines = Declines { tasks: declines.tasks + back.len(), last: executor };
        }
        // Of what has another copy one more goes out when its time comes.
        let back = self.without_copy(back);
        if back.is_empty() {
            return;
        }
        let again = back.intersection(&self.declined.once);
        self.declined.twice.extend_with(&again);
        self.declined.once.extend_with(&back);
        let until = pause_end(io.now + doubled(PAUSE_FIRST, self.declined.in_row, PAUSE_MAX));
        self.declined.in_row = self.declined.in_row.saturating_add(1);
        self.pause(&back, until, io);
    }

    /// Who takes tasks that others declined.
    pub(super) fn willing(&self, io: &Io) -> Contact {
        let holds = self.placed.values().filter(|placement| !placement.ranges.is_empty());
        let willing = holds.min_by_key(|placement| placement.ranges.len());
        willing.map_or_else(|| io.me.clone(), |placement| placement.executor.clone())
    }
}
