//! Tasks that machines do not queue: their owners do not want them, or cannot tell whose they are.
//!
//! They are issued again after a pause, which doubles while nobody takes any. A machine that declines stands idle, so that
//! it looks like the best there is and would be given the same again: what has been declined twice goes straight to a
//! machine that holds tasks of the bag and has fewest, or to this one, which takes its own always; where neither may have it,
//! to the neighbour that was sent fewest. Who declined is not asked for a while, which doubles too while it takes nothing;
//! a copy that it declined goes to another machine at once.
//!
//! What the tree brings to a machine that may not have it, since it is distrusted, is left alone or has said already what came
//! of it, goes the same way as if that machine had declined it.
//!
//! Anybody who knows the bag can say that it declines what is on its way. That costs a pause, and is shown with the name of
//! who said it.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::failures::{PAUSE_FIRST, doubled, pause_end};
use super::{Known, Ledger};
use crate::bag::DeclineReason;
use crate::io::Io;
use crate::ranges::IntervalSet;

/// Longest pause. Our choice: an owner's wishes change, and quotas get room, within minutes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Who declined for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declines {
    /// How many tasks, each as often as it was declined.
    pub tasks: u64,
    /// The last machine.
    pub last: PeerId,
}

/// What was declined of one bag.
#[derive(Debug, Default)]
pub(super) struct Declined {
    pub(super) reasons: BTreeMap<DeclineReason, Declines>,
    once: IntervalSet,
    twice: IntervalSet,
    /// Since tasks were placed last.
    in_row: u32,
    /// How often each machine declined since it took something, and until when it is not asked.
    pub(super) declining: BTreeMap<PeerId, (u32, Time)>,
}

impl Declined {
    /// Somebody takes these.
    pub(super) fn taken(&mut self, executor: PeerId, ranges: &IntervalSet) {
        if !ranges.is_empty() {
            self.in_row = 0;
            self.declining.remove(&executor);
            self.once.subtract(ranges);
            self.twice.subtract(ranges);
        }
    }

    /// Whether this machine declined so lately that it is not asked.
    pub(super) fn is_declining(&self, executor: PeerId, now: Time) -> bool {
        self.declining.get(&executor).is_some_and(|&(_, until)| until > now)
    }

    /// This task is over.
    pub(super) fn over(&mut self, index: u64) {
        self.once.remove_index(index);
        self.twice.remove_index(index);
    }

    /// Of these, those that the tree does not place.
    pub(super) fn direct(&self, ranges: &IntervalSet) -> IntervalSet {
        self.twice.intersection(ranges)
    }
}

impl Ledger {
    /// A machine says that it does not queue these tasks, which are on their way.
    pub(crate) fn declined(&mut self, executor: PeerId, ranges: &IntervalSet, reason: DeclineReason, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        let back = self.off_their_way(executor, ranges);
        if back.is_empty() {
            return;
        }
        let declines = self.declined.reasons.entry(reason).or_insert(Declines { tasks: 0, last: executor });
        *declines = Declines { tasks: declines.tasks + back.len(), last: executor };
        let (in_row, until) = self.declined.declining.entry(executor).or_insert((0, io.now));
        *until = io.now + doubled(PAUSE_FIRST, *in_row, PAUSE_MAX);
        *in_row = in_row.saturating_add(1);
        self.try_elsewhere(back, io);
    }

    /// A machine accounts for tasks that it may not have, and is told to drop them. Those that were on their way to it are not
    /// any more.
    pub(super) fn turned_away(&mut self, executor: PeerId, ranges: &IntervalSet, io: &mut Io) {
        let may_have_none = self.is_shunned(executor, io) || !self.avoided_for(executor, io.now).is_zero();
        let back = if may_have_none { ranges.clone() } else { self.votes.of(executor, ranges) };
        let back = self.off_their_way(executor, &back);
        self.try_elsewhere(back, io);
    }

    /// Takes those of these tasks that are on their way, perhaps to this machine, off it.
    fn off_their_way(&mut self, executor: PeerId, ranges: &IntervalSet) -> IntervalSet {
        let mut back = IntervalSet::new();
        if ranges.is_empty() {
            return back;
        }
        for issue in self.issued.iter_mut().filter(|issue| issue.to.is_none_or(|to| to == executor)) {
            let part = issue.ranges.intersection(ranges);
            if !part.is_empty() {
                issue.unheard_until = None;
            }
            issue.ranges.subtract(&part);
            back.extend_with(&part);
        }
        self.issued.retain(|issue| !issue.ranges.is_empty());
        back
    }

    /// These tasks are not on their way any more, and not where they were going.
    fn try_elsewhere(&mut self, back: IntervalSet, io: &mut Io) {
        if back.is_empty() {
            return;
        }
        // Of what has another copy one more goes out.
        self.votes.lacking = true;
        let back = self.without_copy(back);
        if back.is_empty() {
            return;
        }
        let again = back.intersection(&self.declined.once);
        self.declined.twice.extend_with(&again);
        self.declined.once.extend_with(&back);
        let until = pause_end(io.now + doubled(PAUSE_FIRST, self.declined.in_row, PAUSE_MAX));
        self.declined.in_row = self.declined.in_row.saturating_add(1);
        self.pause(&back, until, io);
    }

    /// Whether tasks that are not brought by the tree go to this machine now.
    pub(super) fn is_asked(&self, peer: PeerId, io: &Io) -> bool {
        !self.is_shunned(peer, io)
            && self.avoided_for(peer, io.now).is_zero()
            && !self.declined.is_declining(peer, io.now)
    }

    /// Who takes some of these tasks, which others declined, and which; nobody where no machine that is known may have any.
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
        let mut holders: Vec<_> = self.placed.values().filter(|placement| !placement.ranges.is_empty()).collect();
        holders.sort_by_key(|placement| placement.ranges.len());
        let holders = holders.into_iter().map(|placement| &placement.executor);
        holders.chain([&*io.me]).find_map(may_have).or_else(|| {
            let mut neighbours: Vec<Contact> = known().into_iter().map(|known| known.contact).collect();
            neighbours.sort_by_key(|contact| (self.votes.sent_to(contact.peer), contact.peer));
            neighbours.iter().find_map(may_have)
        })
    }
}
