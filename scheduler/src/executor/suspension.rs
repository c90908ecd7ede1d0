//! Whether tasks may begin and run on this machine, and when the vacate time ends after which they are handed back.

use std::time::Duration;

use idlewood_overlay::Time;

/// How soon tasks go back that come to wait after [`Suspension::vacate`]. Our choice: not at once, since tasks come here
/// again and again where no other machine takes any.
const VACATE_AGAIN: Duration = Duration::from_secs(10);

/// The stop of tasks on the owner's return, or for another reason.
#[derive(Debug)]
pub(super) struct Suspension {
    /// No task begins: the owner is back, or this machine can take none.
    is_suspended: bool,
    /// Begun tasks are frozen, too.
    is_frozen: bool,
    /// Number of the present stop: how often tasks went on.
    stop: u64,
    /// When the vacate time ends; `None` where nothing is to be handed back.
    vacate_at: Option<Time>,
    /// The vacate time.
    vacate_after: Duration,
    /// Tasks that come to wait go back after [`VACATE_AGAIN`] instead of the vacate time, until tasks begin again or the reason
    /// changes.
    vacates_soon: bool,
}

impl Suspension {
    pub(super) fn new(vacate_after: Duration) -> Self {
        let (is_suspended, is_frozen, vacates_soon) = (false, false, false);
        Self { is_suspended, is_frozen, stop: 0, vacate_at: None, vacate_after, vacates_soon }
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// The number of the present stop.
    pub(super) fn stop(&self) -> u64 {
        self.stop
    }

    /// Whether the stop of this number is the present one.
    pub(super) fn is_stopped_since(&self, stop: u64) -> bool {
        self.is_suspended && self.stop == stop
    }

    /// Changes the vacate time, also the one that is running.
    pub(super) fn vacates_after(&mut self, after: Duration) {
        let before = std::mem::replace(&mut self.vacate_after, after);
        self.vacate_at = self.vacate_at.map(|at| at - before + after);
    }

    /// No task begins from now on; `is_frozen` says whether begun tasks will be frozen. False where nothing changes.
    pub(super) fn suspend(&mut self, is_frozen: bool, now: Time) -> bool {
        let was_suspended = std::mem::replace(&mut self.is_suspended, true);
        if was_suspended && self.is_frozen == is_frozen {
            return false;
        }
        self.vacates_soon = false;
        // Frozen tasks have a vacate time of their own from now on. Where they thaw instead, tasks that wait with a
        // checkpoint have had theirs, and checkpoints that are being packed will be refused: vacate at once.
        let after = if was_suspended && !is_frozen { Duration::ZERO } else { self.vacate_after };
        self.vacate_at.get_or_insert(now + after);
        true
    }

    /// Begun tasks are frozen.
    pub(super) fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Tasks may begin again. False where they might already.
    pub(super) fn resume(&mut self) -> bool {
        let was_suspended = std::mem::replace(&mut self.is_suspended, false);
        if was_suspended {
            (self.vacate_at, self.vacates_soon) = (None, false);
        }
        was_suspended
    }

    /// Begun tasks go on; a new stop begins. False where they were not frozen.
    pub(super) fn thaw(&mut self) -> bool {
        self.stop += 1;
        std::mem::replace(&mut self.is_frozen, false)
    }

    /// The vacate time ends now, and tasks that come to wait later in this suspension go back soon.
    pub(super) fn vacate(&mut self, now: Time) {
        (self.vacate_at, self.vacates_soon) = (Some(now), true);
    }

    /// Starts a vacate time for tasks that wait, if none is running.
    pub(super) fn vacate_in_time(&mut self, now: Time) {
        let after = if self.vacates_soon { self.vacate_after.min(VACATE_AGAIN) } else { self.vacate_after };
        self.vacate_at.get_or_insert(now + after);
    }

    /// When the vacate time ends.
    pub(super) fn vacate_at(&self) -> Option<Time> {
        self.vacate_at
    }

    /// Whether the vacate time has ended; true once.
    pub(super) fn has_to_vacate(&mut self, now: Time) -> bool {
        let is_due = self.vacate_at.is_some_and(|at| at <= now);
        if is_due {
            self.vacate_at = None;
        }
        is_due
    }
}
