//! Co-allocation: tasks that are to begin at once with others on other machines ([`BOOKED`], docs/adr/0064).
//!
//! Such a task waits here for its submitter's word ([`Message::Begin`]). When its turn in the queue comes, a slot is kept free for it, and the
//! submitter is told so, again and again ([`Message::Booked`]). Once all tasks of the round have a slot somewhere, the submitter says that they
//! begin, and those here begin within that very call. What has not begun [`KEPT_FOR`] after the first of them came goes back, whether it had a slot
//! or not: slots that wait for slots elsewhere serve nobody. Of two such bags the one that is ahead in the queue gets the slot, also where the other
//! one has booked it: no two hold each other's slots for longer than that.
//!
//! A slot that is kept free is empty: a task that was preempted for it stands still. Left out: levelling of such tasks between machines.

use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::Executor;
use super::held_bag::HeldBag;
use super::schedule::{Go, Step};
use crate::bag::{BagId, TaskId};
use crate::config::Config;
use crate::io::Io;
use crate::message::Message;
use crate::ranges::IntervalSet;

/// Tasks wait here for others elsewhere for so long (docs/adr/0064).
const KEPT_FOR: Duration = Duration::from_secs(30);
/// The submitter is told again after so long which slots are kept: one message that is lost must not have a task begin 10 s after the others.
const SAID_AGAIN: Duration = Duration::from_secs(4);

/// The tasks of one bag that wait for their submitter's word.
#[derive(Debug)]
pub(super) struct Booking {
    /// Tasks that were requested as [`BOOKED`] and have not begun. Those that no longer wait here are forgotten when others come.
    tasks: IntervalSet,
    /// Those of them that have a slot.
    booked: IntervalSet,
    /// When they go back, slot or not.
    until: Time,
    /// When the submitter is told next which of them have a slot.
    say_at: Time,
}

impl Booking {
    pub(super) fn new() -> Self {
        Self { tasks: IntervalSet::new(), booked: IntervalSet::new(), until: Time::ZERO, say_at: Time::ZERO }
    }

    /// These tasks came, to begin at once with others or by themselves; those are all that wait now.
    pub(super) fn came(&mut self, tasks: &IntervalSet, waiting: &IntervalSet, at_once: bool, now: Time) {
        if !self.tasks.is_empty() {
            self.tasks = self.tasks.intersection(waiting).difference(tasks);
            self.booked = self.booked.intersection(&self.tasks);
        }
        if at_once {
            if self.tasks.is_empty() {
                self.until = now + KEPT_FOR;
            }
            self.tasks.extend_with(tasks);
        }
    }

    fn book(&mut self, index: u64, now: Time) {
        self.booked.insert_index(index);
        self.say_at = now;
    }
}

impl HeldBag {
    /// Waiting tasks that may not begin before their submitter says so.
    pub(super) fn told_to_wait(&self) -> IntervalSet {
        let Booking { tasks, .. } = &self.booking;
        if tasks.is_empty() { IntervalSet::new() } else { tasks.intersection(&self.waiting) }
    }

    /// Those of them that have a slot.
    fn booked(&self) -> IntervalSet {
        let Booking { booked, .. } = &self.booking;
        if booked.is_empty() { IntervalSet::new() } else { booked.intersection(&self.waiting) }
    }

    /// The waiting task that is next to begin, or to be given a slot, and whether it begins.
    pub(super) fn next_waiting(&self) -> Option<(u64, bool)> {
        if self.booking.tasks.is_empty() {
            return Some((self.waiting.first()?, true));
        }
        let begins = self.waiting.difference(&self.booking.tasks).first().map(|index| (index, true));
        begins.or_else(|| Some((self.told_to_wait().difference(&self.booking.booked).first()?, false)))
    }

    /// When it is to be said again which slots are kept, or they are no longer.
    pub(super) fn booking_due(&self) -> Option<Time> {
        if self.told_to_wait().is_empty() {
            return None;
        }
        let Booking { until, say_at, .. } = self.booking;
        Some(if self.booked().is_empty() { until } else { until.min(say_at) })
    }
}

impl Executor {
    /// Slots that are kept free.
    pub(super) fn booked_slots(&self) -> usize {
        self.bags.values().map(|held| held.booked().len()).sum::<u64>() as usize
    }

    /// How many of so many slots endless bags may have, where slots are kept free.
    pub(super) fn unbooked(&self, endless: usize) -> usize {
        let booked = self.booked_slots();
        let finite = || self.places.begun().filter(|it| !it.preempted && !self.is_endless(it)).count();
        if booked == 0 { endless } else { endless.min(self.places.slots().saturating_sub(booked + finite())) }
    }

    /// A slot is kept free for a task.
    pub(super) fn book(&mut self, task: TaskId, now: Time) {
        if let Some(held) = self.bags.get_mut(&task.bag) {
            held.booking.book(task.index, now);
        }
    }

    /// After a restart: these tasks of a bag wait for its submitter's word.
    pub(crate) fn restore_booking(&mut self, bag: BagId, tasks: &IntervalSet, now: Time) {
        if let Some(held) = self.bags.get_mut(&bag) {
            held.booking.came(tasks, &held.waiting, true, now);
        }
    }

    /// A `Begin` arrived: those of these tasks that have a slot begin now, the others when their turn comes.
    pub(crate) fn begin(&mut self, from: PeerId, bag: BagId, tasks: &IntervalSet, io: &mut Io) {
        let Some(held) = self.bags.get_mut(&bag).filter(|held| held.keepers.is_obeyed(from)) else { return };
        if held.told_to_wait().intersection(tasks).is_empty() {
            return;
        }
        let begin = held.booked().intersection(tasks);
        held.booking.tasks.subtract(tasks);
        held.booking.booked.subtract(tasks);
        let change = held.record_change(io);
        io.persist_held(bag, vec![change], Vec::new());
        for index in begin.indices().filter(|_| !self.is_suspended()).collect::<Vec<_>>() {
            let Some(place) = self.places.free(0) else { break };
            self.take_step(Step { freeze: None, go: Go::Start(place, TaskId { bag, index }) }, io);
        }
        self.changed = true;
    }

    /// Says which slots are kept, and gives back what has waited for too long, or waits on a machine that begins nothing.
    pub(super) fn look_after_bookings(&mut self, due: &[BagId], io: &mut Io, config: &Config) {
        let begins_nothing = self.is_suspended();
        for &bag in due {
            let is_due = |held: &HeldBag| held.booking_due().is_some_and(|at| begins_nothing || at <= io.now);
            let Some(held) = self.bags.get_mut(&bag).filter(|held| is_due(held)) else { continue };
            if io.is_writing(bag) {
                continue;
            }
            if begins_nothing || held.booking.until <= io.now {
                self.give_booked_back(bag, io, config);
                continue;
            }
            held.booking.say_at = io.now + SAID_AGAIN;
            let booked = Message::Booked { bag, tasks: held.booked() };
            io.send(held.keepers.contact().clone(), booked);
        }
    }

    /// Tasks of a bag came that are to begin at once: where too few slots are left for them, bags behind it give back what they have booked.
    pub(super) fn make_way(&mut self, bag: BagId, io: &mut Io, config: &Config) {
        let Some(held) = self.bags.get(&bag) else { return };
        let wanted = (held.told_to_wait().len() - held.booked().len()) as usize;
        let taken = self.places.running() + self.booked_slots();
        let mut lacking = wanted.saturating_sub(self.places.slots().saturating_sub(taken));
        if lacking == 0 {
            return;
        }
        if std::mem::take(&mut self.order_stale) {
            self.reorder(io.now);
        }
        let ahead = self.order.iter().position(|other| *other == bag).map_or(self.order.len(), |rank| rank + 1);
        let behind: Vec<BagId> = self.order[ahead..].iter().rev().copied().collect();
        for other in behind {
            let has = self.bags.get(&other).map_or(0, |held| held.booked().len() as usize);
            if has > 0 && lacking > 0 {
                lacking = lacking.saturating_sub(has);
                self.give_booked_back(other, io, config);
            }
        }
    }

    /// All tasks of a bag that wait for their submitter's word go back.
    fn give_booked_back(&mut self, bag: BagId, io: &mut Io, config: &Config) {
        let Some(held) = self.bags.get_mut(&bag) else { return };
        let stay = held.waiting.difference(&held.booking.tasks);
        held.booking = Booking::new();
        self.version += 1;
        held.hand_back(stay, self.version, io, config);
        self.forget_if_empty(bag);
        self.order_stale = true;
        self.changed = true;
    }
}
