//! Rest: a machine on which tasks fail that succeed elsewhere, or cannot start, offers nothing for a while.

use std::time::Duration;

use idlewood_overlay::Time;

use crate::ledger::{AVOID_MAX, FAILED_IN_ROW};

/// Whether, and until when, this machine rests.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Tasks that failed here since the last one that did not.
    failed_in_row: u32,
    /// The machine offers nothing before then.
    until: Option<Time>,
}

impl Rest {
    pub(super) fn until(&self) -> Option<Time> {
        self.until
    }

    /// A task has ended here.
    pub(super) fn note_end(&mut self, success: bool) {
        self.failed_in_row = if success { 0 } else { self.failed_in_row.saturating_add(1) };
    }

    /// A submitter's `Lease` asks for a rest, since all of its tasks fail here: believed after [`FAILED_IN_ROW`] failures
    /// in a row, for at most [`AVOID_MAX`]. Returns whether it is.
    pub(super) fn is_told_to(&mut self, rest: Duration, now: Time) -> bool {
        let is_believed = !rest.is_zero() && self.failed_in_row >= FAILED_IN_ROW;
        if is_believed {
            self.until = Some(now + rest.min(AVOID_MAX));
        }
        is_believed
    }

    /// Tasks cannot be started: the rest lasts until then at least.
    pub(super) fn at_least_until(&mut self, until: Time) {
        self.until = self.until.max(Some(until));
    }

    /// Whether the rest has ended; true once.
    pub(super) fn ends(&mut self, now: Time) -> bool {
        let ends = self.until.is_some_and(|until| until <= now);
        if ends {
            self.until = None;
        }
        ends
    }
}
