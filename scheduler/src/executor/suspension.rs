//! Whether tasks may begin and go on here, and when what cannot is handed back.

use std::time::Duration;

use idlewood_overlay::Time;

/// How soon tasks go back that come to wait where unstarted tasks go back at once. Our choice: not at once, since tasks come here again
/// and again where no machine takes any.
const VACATE_AGAIN: Duration = Duration::from_secs(10);

/// What the owner's return, or another reason to take no tasks, means for them.
#[derive(Debug)]
pub(super) struct Suspension {
    /// No task begins: the owner is there, or this machine can take none.
    is_suspended: bool,
    /// What has begun stands still, too.
    stands_still: bool,
    /// Counts how often tasks went on, to tell the present stop from those before.
    stop: u64,
    /// When unstarted tasks are handed back, while suspended.
    vacate_at: Option<Time>,
    /// How long after that begins that is.
    vacate_after: Duration,
    /// Until tasks begin again, or the reason changes, tasks that come to wait go back soon, and not after the vacate time.
    vacates_soon: bool,
}

impl Suspension {
    pub(super) fn new(vacate_after: Duration) -> Self {
        let (is_suspended, stands_still, vacates_soon) = (false, false, false);
        Self { is_suspended, stands_still, stop: 0, vacate_at: None, vacate_after, vacates_soon }
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Number of the present stop.
    pub(super) fn stop(&self) -> u64 {
        self.stop
    }

    /// Whether no task went on since the stop of this number.
    pub(super) fn is_stopped_since(&self, stop: u64) -> bool {
        self.is_suspended && self.stop == stop
    }

    /// The owner wants another vacate time, which also counts for the present stay.
    pub(super) fn vacates_after(&mut self, after: Duration) {
        let before = std::mem::replace(&mut self.vacate_after, after);
        self.vacate_at = self.vacate_at.map(|at| at - before + after);
    }

    /// No task begins from now on. False where that was so already, and what has begun went on, or did not, as now.
    pub(super) fn begin(&mut self, stands_still: bool, now: Time) -> bool {
        let was_suspended = std::mem::replace(&mut self.is_suspended, true);
        if was_suspended && self.stands_still == stands_still {
            return false;
        }
        self.vacates_soon = false;
        // What has begun has a vacate time from when it stands still. Where it goes on instead, what still waits with a checkpoint has
        // had its own, and what was packed of it is not taken any more.
        let after = if was_suspended && !stands_still { Duration::ZERO } else { self.vacate_after };
        self.vacate_at.get_or_insert(now + after);
        true
    }

    /// What has begun stands still.
    pub(super) fn stand_still(&mut self) {
        self.stands_still = true;
    }

    /// Tasks begin again. False where they did already.
    pub(super) fn end(&mut self) -> bool {
        let was_suspended = std::mem::replace(&mut self.is_suspended, false);
        if was_suspended {
            (self.vacate_at, self.vacates_soon) = (None, false);
        }
        was_suspended
    }

    /// What has begun goes on. False where it did already.
    pub(super) fn go_on(&mut self) -> bool {
        self.stop += 1;
        std::mem::replace(&mut self.stands_still, false)
    }

    /// The vacate time ends now; tasks that come to wait later in the same stay go back soon.
    pub(super) fn vacate(&mut self, now: Time) {
        (self.vacate_at, self.vacates_soon) = (Some(now), true);
    }

    /// Something waits that nothing else would bring away.
    pub(super) fn vacate_in_time(&mut self, now: Time) {
        let after = if self.vacates_soon { self.vacate_after.min(VACATE_AGAIN) } else { self.vacate_after };
        self.vacate_at.get_or_insert(now + after);
    }

    /// When the vacate time ends.
    pub(super) fn vacate_at(&self) -> Option<Time> {
        self.vacate_at
    }

    /// Whether it has ended; that is told once.
    pub(super) fn has_to_vacate(&mut self, now: Time) -> bool {
        let is_due = self.vacate_at.is_some_and(|at| at <= now);
        if is_due {
            self.vacate_at = None;
        }
        is_due
    }
}
