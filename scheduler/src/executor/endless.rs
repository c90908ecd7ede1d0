//! Endless bags on one machine: how many of their tasks it asks for, and which is next (docs/adr/0049).
//!
//! A leaf asks the submitter of each endless bag for tasks by *credits*: it has at most 2 + ⌈1.2·x·τ⌉ of them in hand, where x is the
//! bag's rate here in tasks/s, raised by what bags without tasks here leave to it, and τ the longest task of an endless bag here, or the time in which
//! an answer surely comes. Tasks may wait more than they compute: x is never above what the slots did if all of them ran tasks of this bag, each of
//! which is taken to last for that time of an answer until the first has ended here. (One buffer for
//! all bags fills with those that come first; a fixed number of tasks starves bags of long ones.) So a bag that is slow to answer holds up no
//! other, and what is in hand is lost to others for little more than a task.
//!
//! The next task is of the bag with the smallest (served + 1)/x, as in weighted fair queueing: `served` is the time that its tasks ran
//! here, not their number, so that a submitter gains nothing by a false size. A bag that had no task here for a while does not catch up, but begins
//! somewhere in its turn, on each machine elsewhere: a bag of long tasks and little weight has a turn in an hour, and would have all machines at
//! once, and then none.
//!
//! Which of two tasks runs, one of a finite and one of an endless bag, is a question of time, too (`sides`). A task of an endless bag that was
//! frozen for a finite one goes on before others of endless bags begin.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
use super::schedule::{Go, Step};
use super::sides::Sides;
use crate::bag::{BagId, TaskId};
use crate::endless::fold::Capacity;
use crate::endless::{EndlessBag, IN_HAND_MAX};
use crate::io::Io;
use crate::message::Message;
use crate::shares::quota;

/// The shortest τ: an answer surely comes within it. Our choice.
const ANSWER: Duration = Duration::from_secs(1);
/// What one task changes in the mean of how long tasks of its bag take. Our choice.
const RUN_WEIGHT: f64 = 0.125;
/// What is wanted is said again after so long.
const REPEAT: Duration = Duration::from_secs(10);
/// A bag that may not run here is not asked for that long.
const DECLINES_FOR: Duration = Duration::from_secs(600);
/// The rate of a bag whose tasks are here though it has no share of this machine, as a part of the machine.
const RATE_MIN: f64 = 0.01;

/// An endless bag as this leaf sees it.
#[derive(Debug)]
struct Share {
    submitter: Contact,
    /// a, as announced.
    task_mops: f64,
    /// Its rate here.
    work_mops: f64,
    /// served/x: seconds of service at its rate.
    served_s: f64,
    /// How long its tasks took here lately, in seconds, a mean; 0 before the first has ended.
    run_s: f64,
    /// What was asked for last and has not come, and when that was.
    asked: Option<(u64, Time)>,
    /// It is not asked before then.
    declined_until: Time,
}

/// Endless bags here.
#[derive(Debug)]
pub(super) struct EndlessBags {
    shares: BTreeMap<BagId, Share>,
    /// served/x of the bag whose task began last.
    served_s: f64,
    pub(super) sides: Sides,
}

impl EndlessBags {
    pub(super) fn new(share: f64) -> Self {
        Self { shares: BTreeMap::new(), served_s: 0.0, sides: Sides::new(share) }
    }
}

/// Where in its turn a bag begins on this machine, from 0 to 1: the same each time, so that to be without tasks gains nothing.
fn place_in_turn(bag: BagId, here: PeerId) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bag.0).update(&here.0);
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / 2_f64.powi(32)
}

/// Whether tasks of a bag may begin here now, and there are some.
fn may_begin(held: &HeldBag, now: Time) -> bool {
    held.may_begin(now) && !held.waiting.is_empty()
}

impl Executor {
    /// The grid's endless bags, and the rate of each here in Mop/s.
    pub(crate) fn set_shares<'a>(&mut self, shares: impl Iterator<Item = (&'a EndlessBag, f64)>, here: PeerId) {
        let mut before = std::mem::take(&mut self.endless.shares);
        let (served_s, rate_min) = (self.endless.served_s, self.speed_mops() * RATE_MIN);
        for (bag, work_mops) in shares {
            let known = before.remove(&bag.bag).unwrap_or_else(|| Share {
                submitter: bag.submitter.clone(),
                task_mops: bag.task_mops,
                work_mops,
                served_s: served_s - place_in_turn(bag.bag, here) * bag.task_mops / work_mops.max(rate_min),
                run_s: 0.0,
                asked: None,
                declined_until: Time::ZERO,
            });
            // What a bag is ahead of the others, or behind them, is work: a task that began at a rate of next to nothing, while the wave was under
            // way, does not hold the bag up for as long as it would have taken at that rate.
            let changed = known.work_mops.max(rate_min) / work_mops.max(rate_min);
            let served_s = served_s + (known.served_s - served_s) * changed;
            let (submitter, task_mops) = (bag.submitter.clone(), bag.task_mops);
            let share = Share { submitter, task_mops, work_mops, served_s, ..known };
            self.endless.shares.insert(bag.bag, share);
        }
    }

    /// What this machine can do for endless bags: all that finite ones leave, and their part of the rest.
    pub(crate) fn endless_capacity(&self, downlink_kb_s: u32) -> Capacity {
        let link_bytes_s = if downlink_kb_s > 0 { f64::from(downlink_kb_s) * 1000.0 } else { f64::INFINITY };
        if self.is_suspended() || self.rest.until().is_some() {
            return Capacity { speed_mops: 0.0, link_bytes_s };
        }
        let finite: u64 = self.finite().map(|held| held.waiting.len() + held.running.len()).sum();
        let slots = self.places.slots() as f64;
        let left = (1.0 - finite as f64 / slots).max(self.endless.sides.share());
        Capacity { speed_mops: self.speed_mops() * left, link_bytes_s }
    }

    /// The bags here that have an end.
    pub(super) fn finite(&self) -> impl Iterator<Item = &HeldBag> {
        self.bags.values().filter(|held| !held.bag.is_endless())
    }

    /// The part of this machine's speed that finite bags have.
    pub(super) fn finite_part(&self) -> f64 {
        let has_endless = self.bags.values().any(|held| held.bag.is_endless() && !held.unfinished_is_empty());
        if has_endless { 1.0 - self.endless.sides.share() } else { 1.0 }
    }

    /// Whether a begun task is of an endless bag.
    pub(super) fn is_endless(&self, running: &Running) -> bool {
        self.bags.get(&running.task.bag).is_some_and(|held| held.bag.is_endless())
    }

    pub(super) fn has_endless(&self) -> bool {
        self.bags.values().any(|held| held.bag.is_endless())
    }

    /// This machine does not take tasks of this bag: it asks for none for a while.
    pub(super) fn note_declined(&mut self, bag: BagId, now: Time) {
        if let Some(share) = self.endless.shares.get_mut(&bag) {
            share.declined_until = now + DECLINES_FOR;
        }
    }

    /// So many tasks of an endless bag have come.
    pub(super) fn note_came(&mut self, bag: BagId, tasks: u64, here: PeerId) {
        let Some(task_mops) = self.bags.get(&bag).map(HeldBag::task_mops) else { return };
        let begins_s = self.endless.served_s - place_in_turn(bag, here) * task_mops / self.rate_of(bag);
        let was_empty = self.bags.get(&bag).is_none_or(|held| held.unfinished().len() <= tasks);
        if let Some(share) = self.endless.shares.get_mut(&bag) {
            share.asked = share.asked.map(|(left, at)| (left.saturating_sub(tasks), at)).filter(|(left, _)| *left > 0);
            if was_empty {
                share.served_s = share.served_s.max(begins_s);
            }
        }
    }

    /// The rate of a bag here in Mop/s.
    fn rate_of(&self, bag: BagId) -> f64 {
        let rate = self.endless.shares.get(&bag).map_or(0.0, |share| share.work_mops);
        rate.max(self.speed_mops() * RATE_MIN)
    }

    /// (served + 1)/x of a bag, in seconds.
    fn turn_of(&self, held: &HeldBag) -> f64 {
        let served_s = self.endless.shares.get(&held.bag.id).map_or(self.endless.served_s, |share| share.served_s);
        served_s + held.task_mops() / self.rate_of(held.bag.id)
    }

    /// A task of an endless bag begins: it counts with the work that it should have.
    fn charge(&mut self, bag: BagId) {
        let Some(held) = self.bags.get(&bag) else { return };
        let takes_s = held.task_mops() / self.rate_of(bag);
        if let Some(share) = self.endless.shares.get_mut(&bag) {
            self.endless.served_s = self.endless.served_s.max(share.served_s);
            share.served_s += takes_s;
        }
    }

    /// A task of an endless bag has stopped running: it counts with the time that it ran, which is how long tasks take where it has
    /// `finished`.
    pub(super) fn settle_charge(&mut self, running: &Running, finished: bool, now: Time) {
        let bag = running.task.bag;
        let Some(held) = self.bags.get(&bag).filter(|held| held.bag.is_endless()) else { return };
        let ran_s = running.active(now).as_secs_f64();
        let more_s = (self.done_mops(running, now) - held.task_mops()) / self.rate_of(bag);
        if let Some(share) = self.endless.shares.get_mut(&bag) {
            share.served_s += more_s;
            if finished {
                let weight = if share.run_s > 0.0 { RUN_WEIGHT } else { 1.0 };
                share.run_s += (ran_s - share.run_s) * weight;
            }
        }
    }

    /// Divides the slots between finite and endless bags; returns how many the endless ones have.
    pub(super) fn divide_slots(&mut self, now: Time) -> usize {
        let tasks = |endless: bool| -> u64 {
            let bags = self.bags.values().filter(|held| held.bag.is_endless() == endless && may_begin(held, now));
            let waiting: u64 = bags.map(|held| held.waiting.len()).sum();
            let begun = self.places.begun().filter(|it| !it.stopping && self.is_endless(it) == endless).count();
            waiting + begun as u64
        };
        let (finite, endless, slots) = (tasks(false), tasks(true), self.places.slots());
        self.endless.sides.endless_slots(slots, finite, endless, now)
    }

    /// The slots are divided, and tasks run: notes how time is shared from now on.
    pub(super) fn note_sides(&mut self, now: Time) {
        let is_running = |running: &&Running| running.runs() && self.is_endless(running);
        let running = self.places.begun().filter(is_running).count();
        let waits = |endless: bool| {
            let is_preempted = |running: &Running| running.preempted && self.is_endless(running) == endless;
            let has_waiting = |held: &HeldBag| held.bag.is_endless() == endless && may_begin(held, now);
            self.places.begun().any(is_preempted) || self.bags.values().any(has_waiting)
        };
        let runs = |endless: bool| self.places.begun().any(|it| it.runs() && self.is_endless(it) == endless);
        let full = self.places.running() >= self.places.slots();
        let compete = full && (waits(false) && (waits(true) || runs(true)) || waits(true) && runs(false));
        self.endless.sides.run(self.places.slots(), running, compete);
    }

    /// The next task of an endless bag to begin or thaw on one of so many slots, and the task that is frozen for it.
    pub(super) fn next_endless_step(&self, slots: usize, now: Time) -> Option<Step> {
        let active = self.places.begun().filter(|it| !it.preempted && self.is_endless(it)).count();
        if active >= slots {
            return None;
        }
        let freeze = if self.places.has_slot() { None } else { Some(self.last_finite()?) };
        if let Some((place, _)) = self.places.preempted().find(|(_, running)| self.is_endless(running)) {
            return Some(Step { freeze, go: Go::Thaw(place) });
        }
        let free_place = self.places.free(self.booked_slots())?;
        let candidates = self.bags.values().filter(|held| held.bag.is_endless() && may_begin(held, now));
        let next = candidates.min_by(|one, other| self.turn_of(one).total_cmp(&self.turn_of(other)))?;
        let task = TaskId { bag: next.bag.id, index: next.waiting.first()? };
        let is_stopping = self.places.begun().any(|running| running.stopping && running.task == task);
        (!is_stopping).then_some(Step { freeze, go: Go::Start(free_place, task) })
    }

    /// The place of the running task of a finite bag that is last in the order.
    fn last_finite(&self) -> Option<usize> {
        if self.places.frozen_max() == 0 {
            return None;
        }
        self.order.iter().rev().find_map(|&bag| self.places.last_that_runs(bag))
    }

    /// The place of a running task of the endless bag that is furthest ahead.
    pub(super) fn last_endless(&self) -> Option<usize> {
        if self.places.frozen_max() == 0 {
            return None;
        }
        let running = self.places.begun().filter(|running| running.runs() && self.is_endless(running));
        let bags = running.filter_map(|running| self.bags.get(&running.task.bag));
        let last = bags.max_by(|one, other| self.turn_of(one).total_cmp(&self.turn_of(other)))?;
        self.places.last_that_runs(last.bag.id)
    }

    /// A step was taken: a task of an endless bag that begins is charged.
    pub(super) fn note_step(&mut self, step: Step) {
        if let Go::Start(_, task) = step.go
            && self.bags.get(&task.bag).is_some_and(|held| held.bag.is_endless())
        {
            self.charge(task.bag);
        }
    }

    /// The factor by which bags with tasks here, and they alone, exceed their rates, since the submitters of the others have none to give.
    fn left_by_others(&self) -> f64 {
        let (mut all, mut here) = (0.0, 0.0);
        for (bag, share) in &self.endless.shares {
            all += share.work_mops;
            here += if self.bags.contains_key(bag) { share.work_mops } else { 0.0 };
        }
        if here > 0.0 { all / here } else { 1.0 }
    }

    /// How many tasks of this bag may be in hand.
    fn credits(&self, share: &Share, longest_s: f64, left_by_others: f64) -> u64 {
        if share.work_mops <= 0.0 {
            return 0;
        }
        // Tasks that wait, for input or a clock, take longer than they compute. How long is not known before the first of the bag has ended here.
        let takes_s = if share.run_s > 0.0 { share.run_s } else { ANSWER.as_secs_f64() };
        let rate = (share.work_mops * left_by_others / share.task_mops).min(self.places.slots() as f64 / takes_s);
        quota(rate, longest_s).min(IN_HAND_MAX)
    }

    /// Asks submitters of endless bags for tasks.
    pub(crate) fn want(&mut self, io: &mut Io) {
        if self.endless.shares.is_empty() || self.is_suspended() || self.rest.until().is_some() {
            return;
        }
        let now = io.now;
        let longest = self.endless.shares.values().filter(|share| share.work_mops > 0.0);
        let longest =
            longest.map(|share| if share.run_s > 0.0 { share.run_s } else { share.task_mops / self.speed_mops });
        let longest_s = longest.fold(ANSWER.as_secs_f64(), f64::max);
        let left_by_others = self.left_by_others();
        let (mut wants, mut content) = (Vec::new(), Vec::new());
        for (&bag, share) in &self.endless.shares {
            let in_hand = self.bags.get(&bag).map(|held| held.unfinished().len());
            let credits = self.credits(share, longest_s, if in_hand.is_some() { left_by_others } else { 1.0 });
            let in_hand = in_hand.unwrap_or(0);
            let asked = share.asked.map_or(0, |(left, _)| left);
            let is_old = share.asked.is_some_and(|(_, at)| at + REPEAT <= now);
            let missing = credits.saturating_sub(in_hand);
            let is_worth_it = missing.saturating_sub(asked) >= (credits / 4).max(1) || is_old;
            if missing == 0 || share.declined_until > now {
                content.push(bag);
            } else if is_worth_it {
                wants.push((bag, missing, share.submitter.clone()));
            }
        }
        for bag in content {
            self.endless.shares.get_mut(&bag).into_iter().for_each(|share| share.asked = None);
        }
        for (bag, missing, submitter) in wants {
            if let Some(share) = self.endless.shares.get_mut(&bag) {
                share.asked = Some((missing, now));
            }
            let (executor, tasks) = ((&io.me).into(), u32::try_from(missing).unwrap_or(u32::MAX));
            io.send(submitter, Message::Want { bag, executor, tasks });
        }
    }

    /// When [`Self::want`] repeats something, or the slots of endless bags change.
    pub(super) fn endless_due(&self) -> Option<Time> {
        if self.is_suspended() {
            return None;
        }
        // A machine that rests asks for nothing.
        let asked = self.endless.shares.values().filter(|_| self.rest.until().is_none());
        let repeats = asked.filter_map(|share| share.asked.map(|(_, at)| at + REPEAT));
        repeats.chain(self.endless.sides.changes_at()).min()
    }
}
