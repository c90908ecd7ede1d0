//! Sharing out: which begun tasks the submitter may run elsewhere, too (`ledger/copies.rs`).
//!
//! Four kinds: tasks frozen behind an owner who stays; tasks that have run for twice the work that they should have here, since this
//! machine is slower than it believes, or the task larger; tasks that are still to run for twice as long as they would have without the slowness that this machine has
//! learned of itself (`learning`); and in the tail, when no other task of the bag waits here and nothing waits on
//! the grid, tasks that a usual machine would end sooner from the beginning than this one will.
//!
//! An owner is taken to stay, for a task, from the beginning where they are expected to stay for longer than the task takes anew on a machine
//! like this one, else from when they have stayed for as long, at the latest from the end of the vacate time. Unstarted tasks go
//! back to their submitters at once where there is another machine. Tasks that wait here for five times as long as all in the
//! queue should have taken when they came go back, too.
//!
//! `Share` is repeated while there is anything to share, since it may be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
use crate::bag::{BagId, DeclineReason, Request};
use crate::config::Config;
use crate::io::Io;
use crate::message::{Message, SHARED_LATE, SHARED_MAX};
use crate::rounds::{BOOKED, WHENEVER};

/// A task that has run for this multiple of its work here is shared out. Our choice: on a production grid (coefficient of variation
/// 0.45) three in a hundred tasks are so long, and each costs half a task if it is copied.
pub(super) const OVERRUN: f64 = 2.0;
/// A task that is predicted to end here within so many seconds is not worth a message.
const REST_S_MIN: f64 = 60.0;
/// A copy may reach a machine so many times as fast as the mean of the grid, and has to end within this share of the original's rest.
const FAST: f64 = 1.5;
const SOONER: f64 = 0.8;
/// How often a machine looks whether begun tasks are among the last of the grid.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A running task is not looked at more often than this.
const LOOK_AFTER_MIN: Duration = Duration::from_secs(1);
/// Added to the moment at which a task is looked at, so that rounding does not wake the executor too early.
const ROUNDING: Duration = Duration::from_millis(1);
/// Tasks that wait for this multiple of their prediction go back, at the least after as many times [`OVERDUE_MIN`].
pub(super) const OVERDUE: u32 = 5;
pub(super) const OVERDUE_MIN: Duration = Duration::from_secs(60);

/// What was said last about a bag.
#[derive(Debug)]
struct Said {
    tasks: BTreeMap<u64, u32>,
    /// When it is said again.
    again_at: Time,
}

/// What this machine shares out.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    said: BTreeMap<BagId, Said>,
    /// When begun tasks are looked at again.
    due: Option<Time>,
}

impl Sharing {
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }
}

impl Executor {
    /// Tells submitters which begun tasks may be copied, where that has changed, and again after a while.
    pub(super) fn share(&mut self, io: &mut Io, config: &Config) {
        let mut due: Option<Time> = None;
        let mut shared: BTreeMap<BagId, BTreeMap<u64, u32>> = BTreeMap::new();
        for running in self.places.begun().filter(|running| !running.stopping && !self.is_endless(running)) {
            let Some(held) = self.bags.get(&running.task.bag) else { continue };
            let said = self.sharing.said.get(&running.task.bag);
            let was_slow = said
                .and_then(|said| said.tasks.get(&running.task.index))
                .is_some_and(|&rest_s| rest_s > 0 && rest_s & SHARED_LATE == 0);
            let (rest_s, look_at) = self.is_shared(running, held, was_slow, io);
            if let Some(rest_s) = rest_s {
                shared.entry(running.task.bag).or_default().insert(running.task.index, rest_s);
            }
            due = due.into_iter().chain(look_at).min();
        }
        let bags: BTreeSet<BagId> = shared.keys().chain(self.sharing.said.keys()).copied().collect();
        for bag in bags {
            let tasks = shared.remove(&bag).unwrap_or_default();
            let tasks: BTreeMap<u64, u32> = tasks.into_iter().take(SHARED_MAX).collect();
            let Some(held) = self.bags.get(&bag) else {
                self.sharing.said.remove(&bag);
                continue;
            };
            let kinds = |tasks: &BTreeMap<u64, u32>| -> Vec<(u64, bool, bool)> {
                tasks.iter().map(|(&index, &rest_s)| (index, rest_s == 0, rest_s & SHARED_LATE > 0)).collect()
            };
            let said = self.sharing.said.get(&bag);
            let is_same = said.map_or(tasks.is_empty(), |said| kinds(&said.tasks) == kinds(&tasks));
            let is_again = said.is_some_and(|said| said.again_at <= io.now);
            if tasks.is_empty() {
                // Of ended tasks the submitter hears by their results.
                let goes_on = |said: &Said| said.tasks.keys().any(|&index| held.running.contains(index));
                if said.is_some_and(goes_on) {
                    io.send(held.bag.submitter.clone(), Message::Share { bag, tasks });
                }
                self.sharing.said.remove(&bag);
                continue;
            }
            if !is_same || is_again {
                io.send(held.bag.submitter.clone(), Message::Share { bag, tasks: tasks.clone() });
                self.sharing.said.insert(bag, Said { tasks, again_at: io.now + config.lease / 2 });
            }
        }
        let again = self.sharing.said.values().map(|said| said.again_at);
        self.sharing.due = due.into_iter().chain(again).min();
    }

    /// Whether a begun task may be copied: in how many seconds it is predicted to end here, 0 being unknown; and when to look again.
    fn is_shared(&self, running: &Running, held: &HeldBag, was_slow: bool, io: &Io) -> (Option<u32>, Option<Time>) {
        let now = io.now;
        let whole_s = held.task_mops() / self.speed_mops;
        if running.is_frozen() && self.is_suspended() {
            let anew = Duration::try_from_secs_f64(whole_s).unwrap_or(Duration::MAX);
            let shares_at = self.suspension.shares_at(anew);
            return if shares_at.is_some_and(|at| at <= now) { (Some(0), None) } else { (None, shares_at) };
        }
        let is_slow = self.slowness.times() >= OVERRUN;
        if running.is_frozen() && !is_slow {
            return (None, None);
        }
        // How long it would have taken for what it has done at the speed of now.
        let done_s = self.done_mops(running, now) / self.speed_mops;
        let left_s = whole_s * OVERRUN - done_s;
        if left_s <= 0.0 {
            return (Some(0), None);
        }
        // Where sizes are measured, the moment moves away while the task runs.
        let left = Duration::try_from_secs_f64(left_s).unwrap_or(Duration::MAX).max(LOOK_AFTER_MIN);
        let overruns_at = if left == Duration::MAX { Time::MAX } else { now + left + ROUNDING };
        let rest_s = whole_s - done_s;
        if is_slow {
            // A frozen one goes on once what comes ahead of it is done.
            let ahead_s = if running.is_frozen() { self.ahead_s(running.task.bag, now) } else { 0.0 };
            let ends_s = rest_s.max(0.0) + ahead_s;
            let is_late = ends_s >= OVERRUN * held.task_mops() / self.told_mops;
            if is_late || running.is_frozen() {
                return (
                    is_late.then_some(SHARED_LATE | (ends_s as u32).clamp(1, SHARED_LATE - 1)),
                    Some(now + LOOK_AGAIN),
                );
            }
        }
        if was_slow {
            return (Some((rest_s as u32).max(1)), Some(overruns_at));
        }
        if rest_s < REST_S_MIN || !held.waiting.is_empty() {
            return (None, Some(overruns_at));
        }
        let usual_mops = io.mean_speed_mops / self.places.slots() as f64 * FAST;
        if SOONER * rest_s < held.task_mops() / usual_mops {
            return (None, Some(overruns_at));
        }
        if io.longest_wait_s > 0 {
            return (None, Some(overruns_at.min(now + LOOK_AGAIN)));
        }
        (Some(rest_s as u32), Some(overruns_at))
    }

    /// How long the bags that come ahead of one take here, in seconds.
    fn ahead_s(&self, bag: BagId, now: Time) -> f64 {
        let ahead: BTreeSet<BagId> = self.order.iter().copied().take_while(|&other| other != bag).collect();
        self.busy_for(now, |other| ahead.contains(&other)).as_secs_f64()
    }

    /// The part of a request for copies that is of use here; the rest is declined.
    pub(super) fn worth_copying(&mut self, mut request: Request, io: &mut Io) -> Option<Request> {
        let within_s = request.copy?;
        let known = self.bags.get(&request.bag.id).map(HeldBag::ranges).unwrap_or_default();
        let takes_s = request.bag.task_mops / self.speed_mops;
        let is_of_use = within_s == 0 || self.idle_slots() > 0 && takes_s <= f64::from(within_s);
        let is_able = !self.is_suspended() && self.rest.until().is_none();
        let declined = if is_of_use && is_able { request.ranges.intersection(&known) } else { request.ranges.clone() };
        if !declined.is_empty() {
            self.decline(&request, declined.clone(), DeclineReason::Copy, io);
            request = request.without(&declined)?;
        }
        Some(request)
    }

    /// The part of a request that begins here in time, or for which there are slots where it is to begin at once with others; the rest is declined.
    /// Other tasks of its bag that are here do not count: its submitter has counted them, and knows how long each takes.
    pub(super) fn beginning_in_time(&mut self, mut request: Request, io: &mut Io) -> Option<Request> {
        let within_s = request.begins_within.filter(|&within_s| within_s != WHENEVER);
        let is_booked = within_s == Some(BOOKED);
        let Some(within_s) = within_s.map(f64::from) else { return Some(request) };
        let held = self.bags.get(&request.bag.id);
        let takes_s = held.map_or(request.bag.task_mops, HeldBag::task_mops) / self.speed_mops;
        // So many begin one after the other on a slot that is free in so many seconds.
        let on_slot = |wait_s: f64| {
            if wait_s > within_s { 0 } else { (((within_s - wait_s) / takes_s) as u64).saturating_add(1) }
        };
        let busy_s = self.busy_for(io.now, |bag| bag != request.bag.id).as_secs_f64();
        let slots = self.places.slots() as u64;
        let fit = match self.idle_slots() {
            _ if self.is_suspended() || self.rest.until().is_some() => 0,
            // One for each slot, which waits for its turn.
            _ if is_booked => slots.saturating_sub(held.map_or(0, |held| held.waiting.len())),
            0 => slots.saturating_mul(on_slot(busy_s)),
            idle => idle.saturating_mul(on_slot(0.0)),
        };
        let known = held.map(HeldBag::ranges).unwrap_or_default();
        let mut new = request.ranges.difference(&known);
        drop(new.take_first(fit));
        if !new.is_empty() {
            self.decline(&request, new.clone(), DeclineReason::Later, io);
            request = request.without(&new)?;
        }
        Some(request)
    }

    /// All unstarted tasks that can go to another machine go back now, and those that come later soon.
    pub(super) fn hand_back_unstarted(&mut self, io: &mut Io, config: &Config) {
        for held in self.bags.values_mut() {
            let unmovable = held.unmovable();
            if held.has_movable() {
                self.version += 1;
                held.hand_back(unmovable, self.version, io, config);
            }
        }
        self.suspension.returned();
        self.order_stale = true;
        self.changed = true;
    }

    /// The machine was asleep for so long until now: no task ran or waited meanwhile.
    pub(crate) fn slept(&mut self, slept: Duration, now: Time) {
        self.places.slept(slept, now);
        for held in self.bags.values_mut() {
            held.overdue_at = held.overdue_at.map(|at| at + slept);
        }
    }

    /// Hands back tasks that have waited here for far longer than was predicted when they came.
    pub(super) fn return_overdue(&mut self, due: &[BagId], io: &mut Io, config: &Config) {
        for &bag in due {
            let is_due = |held: &&mut HeldBag| held.overdue().is_some_and(|at| at <= io.now);
            let Some(held) = self.bags.get_mut(&bag).filter(is_due).filter(|_| !io.is_writing(bag)) else { continue };
            let unmovable = held.unmovable();
            held.overdue_at = None;
            self.version += 1;
            held.hand_back(unmovable, self.version, io, config);
            self.forget_if_empty(bag);
            self.order_stale = true;
            self.changed = true;
        }
    }
}
