//! Whether tasks may begin and run on this machine, and when the vacate time ends after which they are handed back.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::Time;

/// How soon tasks go back that come to wait after [`Suspension::vacate`]. Our choice: not at once, since tasks come here
/// again and again where no other machine takes any.
const VACATE_AGAIN: Duration = Duration::from_secs(10);

/// How long an owner's first visit is expected to take: an agent waits for so long without input before it takes the owner to be
/// away (`owner_idle` of the agent's settings), so that few visits are shorter.
const FIRST_VISIT: Duration = Duration::from_secs(300);
/// So many past visits of the owner are remembered. Our choice.
const VISITS_MAX: usize = 16;

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
    /// Since when the owner is here and tasks are frozen.
    visited_since: Option<Time>,
    /// When unstarted tasks go back that came after others did.
    return_at: Option<Time>,
    /// How long the owner's last visits took, the newest last.
    visits: VecDeque<Duration>,
}

impl Suspension {
    pub(super) fn new(vacate_after: Duration) -> Self {
        let (is_suspended, is_frozen, vacates_soon) = (false, false, false);
        let (visited_since, visits) = (None, VecDeque::new());
        let (stop, vacate_at, return_at) = (0, None, None);
        Self { is_suspended, is_frozen, stop, vacate_at, vacate_after, vacates_soon, visited_since, return_at, visits }
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
        (self.vacates_soon, self.return_at) = (false, None);
        if is_frozen {
            self.visited_since = Some(now);
        } else {
            self.visit_ended(now);
        }
        // Frozen tasks have a vacate time of their own from now on. Where they thaw instead, tasks that wait with a
        // checkpoint have had theirs, and checkpoints that are being packed will be refused: vacate at once.
        let after = if was_suspended && !is_frozen { Duration::ZERO } else { self.vacate_after };
        self.vacate_at.get_or_insert(now + after);
        true
    }

    /// The owner is gone, or lets begun tasks run.
    fn visit_ended(&mut self, now: Time) {
        let Some(since) = self.visited_since.take() else { return };
        if self.visits.len() == VISITS_MAX {
            self.visits.pop_front();
        }
        self.visits.push_back(now.since(since));
    }

    /// How long the owner stays, in the mean of their visits and of the one that is expected first.
    fn expected_visit(&self) -> Duration {
        let all: Duration = self.visits.iter().sum();
        (FIRST_VISIT + all) / (self.visits.len() as u32 + 1)
    }

    /// When a frozen task that takes so long from its beginning is shared out; `None` while no owner is here. At once where they are
    /// expected to stay for longer than that. Otherwise when they have stayed for as long, so that waiting costs no more than
    /// beginning anew would have, and at the latest at the end of the vacate time.
    pub(super) fn shares_at(&self, anew: Duration) -> Option<Time> {
        let waits = if anew <= self.expected_visit() { Duration::ZERO } else { anew.min(self.vacate_after) };
        self.visited_since.map(|since| since + waits)
    }

    /// Unstarted tasks have gone back: those that come later in this suspension do so soon.
    pub(super) fn returned(&mut self) {
        self.vacates_soon = true;
        self.return_at = None;
    }

    /// Unstarted tasks wait again after others have gone back: they do so soon.
    pub(super) fn return_in_time(&mut self, now: Time) {
        if self.is_suspended && self.vacates_soon {
            self.return_at.get_or_insert(now + VACATE_AGAIN);
        }
    }

    /// When unstarted tasks go back that came after others did.
    pub(super) fn return_at(&self) -> Option<Time> {
        self.return_at
    }

    /// Begun tasks are frozen.
    pub(super) fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Tasks may begin again. False where they might already.
    pub(super) fn resume(&mut self, now: Time) -> bool {
        self.visit_ended(now);
        let was_suspended = std::mem::replace(&mut self.is_suspended, false);
        if was_suspended {
            (self.vacate_at, self.return_at, self.vacates_soon) = (None, None, false);
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
