//! A machine on which everything fails that succeeds elsewhere offers nothing for a while.

use std::time::Duration;

use idlewood_overlay::Time;

use crate::ledger::{AVOID_MAX, FAILED_IN_ROW};

/// Whether this machine offers what it has.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Tasks that failed here since the last one that did not.
    failed_in_row: u32,
    /// It offers nothing until then.
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

    /// A submitter says that all of its tasks fail here: believed where all others do. Whether that is so.
    pub(super) fn is_told_to(&mut self, rest: Duration, now: Time) -> bool {
        let is_believed = !rest.is_zero() && self.failed_in_row >= FAILED_IN_ROW;
        if is_believed {
            self.until = Some(now + rest.min(AVOID_MAX));
        }
        is_believed
    }

    /// Tasks cannot be started: nothing is offered until then at least.
    pub(super) fn at_least_until(&mut self, until: Time) {
        self.until = self.until.max(Some(until));
    }

    /// Whether it has ended; that is told once.
    pub(super) fn ends(&mut self, now: Time) -> bool {
        let ends = self.until.is_some_and(|until| until <= now);
        if ends {
            self.until = None;
        }
        ends
    }
}
