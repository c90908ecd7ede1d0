//! When the submitter of one bag hears from this machine next: what it holds of the bag (`Holding`, `Renewal`), and results.
//!
//! `Holding` and `Results` are sent again until they are answered, each time after twice the wait. What can wait is sent at
//! this machine's own moment of the bag's pace, so that the machines of a large bag do not fill their submitter's link at once.

use std::time::Duration;

use idlewood_overlay::{Contact, Time};

use super::outbox::Outbox;
use crate::bag::BagId;
use crate::config::Config;
use crate::link::{LINK_KB_S, Writers};
use crate::pace::Pace;

/// The last results of a bag on a machine are sent at this multiple of the bag's pace, so that they take a tenth of the
/// submitter's link: on machines whose speeds are multiples of each other all last tasks end at the same instant.
const LAST_RATE: u32 = 2;
/// They wait for at most one such part of the bag's age: half a percent, which no stretch can show.
const LAST_SHARE: u32 = 200;

/// When a bag's submitter hears from this machine next.
#[derive(Debug)]
pub(super) struct Updates {
    /// How often messages that can wait are sent.
    pace: Pace,
    /// The machines that may hold tasks of the bag, as requests say.
    writers: Writers,
    /// That of the last `Holding`; 0 before the first.
    version: u64,
    /// Whether the submitter has answered that `Holding`: then a `Renewal` is enough.
    is_answered: bool,
    /// When the next `Holding` or `Renewal` is sent.
    holding_due: Time,
    /// How long it waits for an answer before it is sent again.
    holding_wait: Duration,
    /// When results are sent that were not sent yet.
    results_due: Time,
    /// How long results wait for their acknowledgement before they are sent again.
    results_wait: Duration,
    /// No results are sent until then: there is no room on the way to the submitter.
    no_room_until: Time,
    /// The last results on this machine, where they can wait, are not sent before then.
    last_results_from: Time,
    /// Whether the submitter wants to know what this machine can do.
    pub(super) says_capacity: bool,
}

impl Updates {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            pace: Pace::NONE,
            writers: Writers { machines: 0, link_kb_s: LINK_KB_S },
            version: 0,
            is_answered: false,
            holding_due: Time::ZERO,
            holding_wait: config.repeat_after,
            results_due: Time::ZERO,
            results_wait: config.repeat_after,
            no_room_until: Time::ZERO,
            last_results_from: Time::ZERO,
            says_capacity: false,
        }
    }

    /// Takes the pace of a request for the bag, if that is slower than those before.
    pub(super) fn take_pace(&mut self, writers: Writers, pace: Pace) {
        if pace.period > self.pace.period {
            (self.writers, self.pace) = (writers, pace);
        }
    }

    /// Whether every message is sent at once.
    pub(super) fn is_unpaced(&self) -> bool {
        self.pace.is_none()
    }

    /// The period of the bag's pace.
    pub(super) fn period(&self) -> Duration {
        self.pace.period
    }

    /// The version of the last `Holding`.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether the submitter has answered the last `Holding`.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// When the next `Holding` or `Renewal` is sent.
    pub(super) fn holding_due(&self) -> Time {
        self.holding_due
    }

    /// How long a message waits for its answer before it is first sent again: the way there and back, or, where many machines
    /// write to one submitter, what its link may take for one message of each; else repetitions would fill a link that is
    /// behind.
    pub(super) fn first_wait(&self, config: &Config) -> Duration {
        config.repeat_after.max(self.writers.results_take())
    }

    /// How long to wait after that.
    fn next_wait(&self, wait: Duration, config: &Config) -> Duration {
        (wait * 2).min(config.lease / 3).max(self.first_wait(config))
    }

    /// A request for the bag has come: repetitions of `Holding` begin with the first wait.
    pub(super) fn requested(&mut self, says_capacity: bool, config: &Config) {
        self.says_capacity |= says_capacity;
        self.holding_wait = self.first_wait(config);
        self.results_wait = self.results_wait.max(self.first_wait(config));
    }

    /// The tasks held have changed: a `Holding` of this version is sent by `moment` at the latest, and answers to earlier
    /// ones do not count.
    pub(super) fn send_holding_by(&mut self, version: u64, moment: Time) {
        self.holding_due = if self.version > 0 { self.holding_due.min(moment) } else { moment };
        self.version = version;
        self.is_answered = false;
    }

    /// A `Holding` is due now, whatever the submitter has answered.
    pub(super) fn send_holding_now(&mut self, now: Time) {
        self.holding_due = now;
        self.is_answered = false;
    }

    /// A `Holding` of this version is sent now.
    pub(super) fn holding_sent(&mut self, version: u64, now: Time, config: &Config) {
        self.version = version;
        self.is_answered = false;
        self.await_answer(now, config);
    }

    /// Tasks go back to the submitter: the `Holding` that says so is repeated after the first wait.
    pub(super) fn hand_back(&mut self, config: &Config) {
        self.holding_wait = self.first_wait(config);
    }

    /// A `Holding` or `Renewal` is sent now, and again unless it is answered within a growing time.
    pub(super) fn await_answer(&mut self, now: Time, config: &Config) {
        self.holding_due = now + self.holding_wait;
        self.holding_wait = self.next_wait(self.holding_wait, config);
    }

    /// The submitter extends the lease by `term`: half of it is left for repetitions of the next renewal.
    pub(super) fn lease_extended(&mut self, bag: BagId, term: Duration, me: &Contact, now: Time, config: &Config) {
        let half = term.max(Duration::from_secs(1)) / 2;
        let is_first = !std::mem::replace(&mut self.is_answered, true);
        // Few renewals are lost, and one that is must not cost the lease.
        self.holding_wait = self.first_wait(config).min(half / 2);
        // Machines that were answered together do not go on in step.
        let share = || Pace::new(half, me, &bag.0).share;
        self.holding_due = now + if is_first { half.mul_f64(0.5 + 0.5 * share()) } else { half };
    }

    /// This machine may be about to leave: an unanswered `Holding` and unsent results are sent now.
    pub(super) fn hurry(&mut self, now: Time) {
        self.results_due = self.results_due.min(now);
        if !self.is_answered {
            self.holding_due = self.holding_due.min(now);
        }
    }

    /// A task has ended that began then. Where tasks are shorter than the submitter's link takes for one message of each
    /// machine, last results are spread over that time, so that other messages to the submitter do not wait behind them.
    pub(super) fn spread_last_results(&mut self, began: Time) {
        self.last_results_from = began + self.writers.results_take().mul_f64(self.pace.share);
    }

    /// When unsent results are next sent at this pace.
    pub(super) fn paced(&self, now: Time) -> Time {
        self.pace.next(now)
    }

    /// When the last results on this machine, which may be the bag's last of all, are sent, where the bag has this age.
    pub(super) fn last_results_due(&self, now: Time, age: Duration) -> Time {
        let pace = self.pace.within((self.pace.period / LAST_RATE).min(age / LAST_SHARE));
        pace.next(now).max(self.last_results_from)
    }

    /// Unsent results are sent then.
    pub(super) fn send_results_at(&mut self, due: Time) {
        self.results_due = due;
    }

    /// Unsent results are sent then at the latest.
    pub(super) fn send_results_by(&mut self, due: Time) {
        self.results_due = self.results_due.min(due);
    }

    /// When unsent results are sent.
    pub(super) fn results_due(&self) -> Time {
        self.results_due
    }

    /// When results are sent next, for the first time or again.
    pub(super) fn next_results(&self, outbox: &Outbox) -> Option<Time> {
        let first = outbox.may_send().then_some(self.results_due);
        let due = first.into_iter().chain(self.resend_due(outbox)).min();
        due.map(|due| due.max(self.no_room_until))
    }

    /// When results are sent again, unless they are acknowledged before.
    pub(super) fn resend_due(&self, outbox: &Outbox) -> Option<Time> {
        outbox.resend_at(self.results_wait)
    }

    /// Results are sent again now: the next time after twice the wait.
    pub(super) fn results_resent(&mut self, config: &Config) {
        self.results_wait = self.next_wait(self.results_wait, config);
    }

    /// The submitter has acknowledged results.
    pub(super) fn results_acknowledged(&mut self, config: &Config) {
        self.results_wait = self.first_wait(config);
    }

    /// Whether no results are sent now, for lack of room on the way to the submitter.
    pub(super) fn has_no_room(&self, now: Time) -> bool {
        self.no_room_until > now
    }

    /// Results came back for lack of room: none are sent until there is room, or until then; then at once.
    pub(super) fn wait_for_room(&mut self, until: Time) {
        self.results_due = Time::ZERO;
        self.no_room_until = until;
    }

    /// There is room on the way to the submitter.
    pub(super) fn room(&mut self, now: Time) {
        self.no_room_until = self.no_room_until.min(now);
    }
}

#[cfg(test)]
impl Updates {
    /// Takes this pace, for tests.
    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// The next `Holding` or `Renewal` is sent so much later, for tests.
    pub(super) fn delay_holding(&mut self, by: Duration) {
        self.holding_due += by;
    }
}
