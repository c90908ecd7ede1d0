//! Declined tasks: machines that may not run them have sent them back with a `Decline`.
//!
//! The tasks are issued again after a pause, which doubles while no machine takes any. A machine that declines stays idle,
//! so that routers would send it the same tasks again: tasks declined twice go straight to the machine that holds fewest
//! tasks of the bag; where there is none that may have them, to this machine, which always takes its own, or to the neighbour
//! that was sent fewest. A machine that declined is not asked for a while, which doubles while it takes no task; a copy that it
//! declined goes to another machine at once.
//!
//! Tasks that the tree brings to a machine that may not have them, since it is distrusted, avoided or has voted on them,
//! are handled as if that machine had declined them.
//!
//! Any machine that knows the bag can send a `Decline` for tasks in a request. That costs a pause, and the user is shown the
//! machine's id.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::failures::{PAUSE_FIRST, doubled, pause_end};
use super::placed::Placement;
use super::{Known, Ledger};
use crate::bag::DeclineReason;
use crate::io::Io;
use crate::ranges::IntervalSet;

/// Longest pause. Our choice: an owner's wishes change, and quotas get room, within minutes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The `Decline`s with one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declines {
    /// How many tasks were declined, each as often as it was.
    pub tasks: u64,
    /// How many machines have declined for it last, and have taken no task since.
    pub machines: u64,
    /// The machine that declined last.
    pub last: PeerId,
}

/// The declined tasks of one bag.
#[derive(Debug, Default)]
pub(super) struct Declined {
    reasons: BTreeMap<DeclineReason, Declines>,
    /// Tasks that were declined at least once.
    once: IntervalSet,
    /// Tasks that were declined at least twice.
    twice: IntervalSet,
    /// How often tasks were declined since a machine took any.
    in_row: u32,
    /// How often each machine declined since it took a task, until when it is not asked, and why it declined last.
    declining: BTreeMap<PeerId, (u32, Time, DeclineReason)>,
}

impl Declined {
    /// The `Decline`s by reason.
    pub(super) fn reasons(&self) -> BTreeMap<DeclineReason, Declines> {
        let mut reasons = self.reasons.clone();
        for (_, _, reason) in self.declining.values() {
            if let Some(declines) = reasons.get_mut(reason) {
                declines.machines += 1;
            }
        }
        reasons
    }

    /// The machines that have declined and taken no task since, and why they declined last.
    fn machines(&self) -> impl Iterator<Item = (PeerId, DeclineReason)> {
        self.declining.iter().map(|(&machine, &(_, _, reason))| (machine, reason))
    }

    /// A machine has declined so many tasks: it is not asked for a while.
    fn note(&mut self, executor: PeerId, tasks: u64, reason: DeclineReason, now: Time) {
        // Machines are counted when somebody asks.
        let declines = self.reasons.entry(reason).or_insert(Declines { tasks: 0, machines: 0, last: executor });
        *declines = Declines { tasks: declines.tasks + tasks, machines: 0, last: executor };
        let (in_row, until, why) = self.declining.entry(executor).or_insert((0, now, reason));
        *why = reason;
        *until = now + doubled(PAUSE_FIRST, *in_row, PAUSE_MAX);
        *in_row = in_row.saturating_add(1);
    }

    /// Counts that these tasks were declined; returns until when they pause.
    fn pause_of(&mut self, tasks: &IntervalSet, now: Time) -> Time {
        let again = tasks.intersection(&self.once);
        self.twice.extend_with(&again);
        self.once.extend_with(tasks);
        let until = pause_end(now + doubled(PAUSE_FIRST, self.in_row, PAUSE_MAX));
        self.in_row = self.in_row.saturating_add(1);
        until
    }

    /// Whether this machine has declined since it took a task.
    #[cfg(test)]
    pub(super) fn has_declined(&self, executor: PeerId) -> bool {
        self.declining.contains_key(&executor)
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn tasks(&self) -> IntervalSet {
        self.once.union(&self.twice)
    }

    /// A machine takes these tasks.
    pub(super) fn taken(&mut self, executor: PeerId, ranges: &IntervalSet) {
        if !ranges.is_empty() {
            self.in_row = 0;
            self.declining.remove(&executor);
            self.once.subtract(ranges);
            self.twice.subtract(ranges);
        }
    }

    /// Whether this machine has declined so lately that it is not asked.
    pub(super) fn is_declining(&self, executor: PeerId, now: Time) -> bool {
        self.declining.get(&executor).is_some_and(|&(_, until, _)| until > now)
    }

    /// This task has ended.
    pub(super) fn forget(&mut self, index: u64) {
        self.once.remove_index(index);
        self.twice.remove_index(index);
    }

    /// Those of these tasks that go straight to a machine instead of through the tree.
    pub(super) fn direct(&self, ranges: &IntervalSet) -> IntervalSet {
        self.twice.intersection(ranges)
    }
}

impl Ledger {
    /// The machines that have declined tasks of the bag and taken none since, and why they declined last.
    pub(crate) fn declining(&self) -> impl Iterator<Item = (PeerId, DeclineReason)> {
        self.declined.machines()
    }

    /// A `Decline` arrived: counts for those of the tasks that are in a request that may have reached this machine.
    pub(crate) fn declined(&mut self, executor: PeerId, ranges: &IntervalSet, reason: DeclineReason, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        if reason == DeclineReason::Later {
            return self.preference_declined(executor, ranges, io);
        }
        let back = self.issues.take_off(executor, ranges);
        if back.is_empty() {
            return;
        }
        if self.are_copies(&back) {
            self.copies.not_taken(io.now);
            self.ends_at(self.copies.again_at().unwrap_or(io.now));
            return;
        }
        self.declined.note(executor, back.len(), reason, io.now);
        self.try_elsewhere(back, io);
    }

    /// A machine accounts for tasks that it may not have, and is told to drop them: those that may have reached it with a
    /// request go elsewhere.
    pub(super) fn turned_away(&mut self, executor: PeerId, ranges: &IntervalSet, io: &mut Io) {
        let may_have_none = self.is_shunned(executor, io) || !self.avoided.avoided_for(executor, io.now).is_zero();
        let back = if may_have_none { ranges.clone() } else { self.votes.of(executor, ranges) };
        let back = self.issues.take_off(executor, &back);
        self.try_elsewhere(back, io);
    }

    /// Sends these tasks, whose request reached a machine that does not take them, to other machines after a pause.
    fn try_elsewhere(&mut self, back: IntervalSet, io: &mut Io) {
        if back.is_empty() {
            return;
        }
        // For tasks that have another copy, one more goes out.
        self.votes.look_for_copies();
        let back = self.without_copy(back);
        if back.is_empty() {
            return;
        }
        let until = self.declined.pause_of(&back, io.now);
        self.pause(&back, until, io);
    }

    /// Whether this machine may be sent tasks directly now.
    pub(super) fn is_asked(&self, peer: PeerId, io: &Io) -> bool {
        !self.is_shunned(peer, io)
            && self.avoided.avoided_for(peer, io.now).is_zero()
            && !self.declined.is_declining(peer, io.now)
    }

    /// A machine that may have some of these tasks, which others declined, and those that it may have; `None` where no
    /// known machine may have any.
    pub(super) fn willing(
        &self,
        ranges: &IntervalSet,
        known: impl FnOnce() -> Vec<Known>,
        io: &Io,
    ) -> Option<(Contact, IntervalSet)> {
        if ranges.is_empty() {
            return None;
        }
        let may_have = |contact: &Contact| {
            let may_have =
                self.is_asked(contact.peer, io).then(|| ranges.difference(&self.votes.of(contact.peer, ranges)));
            may_have.filter(|may_have| !may_have.is_empty()).map(|may_have| (contact.clone(), may_have))
        };
        let me = io.me.peer;
        let holds = |placement: &&Placement| !placement.ranges.is_empty() && placement.executor.peer != me;
        let mut holders: Vec<_> = self.placed.iter().filter(holds).collect();
        holders.sort_by_key(|placement| placement.ranges.len());
        let holders = holders.into_iter().map(|placement| &placement.executor);
        holders.into_iter().find_map(may_have).or_else(|| {
            // This machine takes its own tasks and may be unable to run them: it is asked first once, then in turn.
            let mut others: Vec<Contact> = known().into_iter().map(|known| known.contact).collect();
            others.push(Contact::clone(&io.me));
            others.sort_by_key(|contact| (self.votes.sent_to(contact.peer), contact.peer != me, contact.peer));
            others.iter().find_map(may_have)
        })
    }
}
