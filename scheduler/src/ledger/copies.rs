//! Copies: a task that has begun on one machine, and stands still there or seems to end late, is run on another one, too (ours).
//!
//! An executor says which of its begun tasks may be copied (`executor/sharing.rs`): those that stand still, behind an owner who stays or far beyond their work, of which nobody knows
//! when they end; those that end late since the machine has learned that it is slow; and in the tail of a bag those that a usual machine would end sooner. Once nothing of the bag waits to be
//! issued, a request through the tree asks for a copy of all that stand still, and of those that end late, unless the bag's results say that all its tasks take longer
//! than was said ([`AS_SAID`]). While nothing waits on the whole grid, it asks for one of the others: the one predicted to end last, where the copy would end by a fifth
//! sooner ([`SOONER`]). The machine that the request reaches says whether it would; if not it declines.
//!
//! The original stays where it is. The first result counts, and once that is durable, the other runs are stopped. A task has one copy,
//! and a further one only where all its runs stand still, up to [`RUNS_MAX`]. A lost run leaves the others: the task is issued
//! again only without any.
//!
//! In a bag with a quorum each run is a vote, and machines are chosen for it (`quorum`): none of its tasks is copied here. A run that
//! stands still is no vote to come there, so that another machine is chosen.
//!
//! Left out: shares on disk, which executors repeat.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::Ledger;
use super::failures::doubled;
use crate::bag::{REQUEST_INTERVALS_MAX, Request};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::{Message, SHARED_LATE};
use crate::ranges::IntervalSet;

/// A copy is worth it that takes at most this share of what the original is predicted to take still.
const SOONER: f64 = 0.8;
/// A machine that says that a task ends late is believed while a task's work, in the median of the machines that have ended tasks of the bag, is at
/// most so many times what the submitter said. Our choice: where the submitter said all its work wrongly, every machine may take itself for slow.
const AS_SAID: f64 = 1.5;
/// A task that is predicted to end within this time is not copied: its result may be on its way. Our choice.
const REST_MIN: Duration = Duration::from_secs(30);
/// How long no copy is asked for after a machine did not take one: at first, and at most; it doubles in between. Our choice.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// Most runs of a task at once. Our choice: of machines whose owners are there for a third of the time, all four stand still for one
/// hundredth of it.
pub(super) const RUNS_MAX: usize = 4;

/// How a begun task goes on, as its machine says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    /// Nobody knows when it ends.
    Unknown,
    /// It ends then, which is late, since the machine is slow.
    Late(Time),
    /// It ends then.
    Until(Time),
}

/// The copies of one bag's tasks.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Tasks that may be copied, by the machines on which they have begun: when each is predicted to end there.
    shared: BTreeMap<(u64, PeerId), Rest>,
    /// Tasks that have had a copy.
    given: IntervalSet,
    /// Copies in a row that no machine took.
    in_vain: u32,
    /// No copy is asked for before then.
    again_at: Option<Time>,
}

impl Copies {
    /// Tasks that have had a copy, and may have one still.
    #[cfg(debug_assertions)]
    pub(super) fn given(&self) -> &IntervalSet {
        &self.given
    }

    /// Tasks that may be copied, or have been.
    #[cfg(debug_assertions)]
    pub(super) fn tasks(&self) -> impl Iterator<Item = u64> + '_ {
        self.shared.keys().map(|(index, _)| *index).chain(self.given.indices())
    }

    /// A task has ended.
    pub(super) fn forget(&mut self, index: u64) {
        self.shared.retain(|(shared, _), _| *shared != index);
        if self.given.contains(index) {
            self.given.remove_index(index);
            self.in_vain = 0;
        }
    }

    /// Tasks of which nobody knows when they end on some machines, or, with `late`, that end late there, and on how many.
    pub(super) fn stuck(&self, late: bool) -> Vec<(u64, usize)> {
        let is_stuck = |rest: &Rest| *rest == Rest::Unknown || late && matches!(rest, Rest::Late(_));
        let stuck: Vec<u64> =
            self.shared.iter().filter(|(_, rest)| is_stuck(rest)).map(|((index, _), _)| *index).collect();
        stuck.chunk_by(|one, other| one == other).map(|runs| (runs[0], runs.len())).collect()
    }

    /// The bag is closed.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// When copies are asked for again.
    pub(super) fn again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// Ends that wait, if it is over.
    pub(super) fn end_wait(&mut self, now: Time) {
        self.again_at = self.again_at.filter(|&at| at > now);
    }

    /// A request for copies was declined or lost: the next one waits.
    pub(super) fn not_taken(&mut self, now: Time) {
        self.again_at = Some(now + doubled(PAUSE_FIRST, self.in_vain, PAUSE_MAX));
        self.in_vain = self.in_vain.saturating_add(1);
    }
}

impl Ledger {
    /// A `Share` arrived: these tasks of the executor's may be copied, each predicted to end in so many seconds, with [`SHARED_LATE`] or 0 being unknown, and no
    /// others of it.
    pub(crate) fn shared_out(&mut self, executor: PeerId, tasks: BTreeMap<u64, u32>, io: &mut Io) {
        if self.is_closed() {
            return;
        }
        self.votes.look_for_copies();
        self.copies.shared.retain(|(_, sharer), _| *sharer != executor);
        for (index, rest_s) in tasks {
            if self.placed.holds(executor, index) {
                let ends_at = io.now + Duration::from_secs((rest_s & !SHARED_LATE).into());
                let rest = match rest_s {
                    0 => Rest::Unknown,
                    SHARED_LATE.. => Rest::Late(ends_at),
                    _ => Rest::Until(ends_at),
                };
                self.copies.shared.insert((index, executor), rest);
            }
        }
    }

    /// Whether each of these tasks, which were in a request, has another run.
    pub(super) fn are_copies(&self, ranges: &IntervalSet) -> bool {
        !self.votes.is_quorum() && self.placed.held_by_more_than(0, ranges).len() == ranges.len()
    }

    /// On how many machines that hold a task, and have not voted on it, it stands still.
    pub(super) fn standing_still(&self, index: u64) -> usize {
        let runs = self.copies.shared.range((index, PeerId([0; 32]))..=(index, PeerId([255; 32])));
        let waits = |&((_, peer), rest): &(&(u64, PeerId), &Rest)| {
            *rest == Rest::Unknown && self.placed.holds(*peer, index) && !self.votes.has_voted(*peer, index)
        };
        runs.filter(waits).count()
    }

    /// Further copies of these tasks are about to go out in a bag with a quorum: notes those that stand still somewhere.
    pub(super) fn give_still(&mut self, lacking: &IntervalSet) {
        let still = self.copies.stuck(false).into_iter().map(|(index, _)| index..index + 1).collect();
        self.copies.given.extend_with(&lacking.intersection(&still));
    }

    /// The requests for copies that are due, through the tree.
    pub(crate) fn issue_copies(&mut self, io: &mut Io, config: &Config) -> Option<Request> {
        if self.votes.is_quorum() {
            return None;
        }
        if self.copies.shared.is_empty() || self.copies.again_at.is_some() || !self.may_issue() {
            return None;
        }
        if self.waiting.len() > 0 || self.issues.iter().any(|issue| !self.are_copies(&issue.ranges)) {
            return None;
        }
        self.copies.shared.retain(|&(index, executor), _| self.placed.holds(executor, index));
        let stand_still = |&(index, runs): &(u64, usize)| runs == self.placed.copies_of(index) && runs < RUNS_MAX;
        let is_as_said = self.work.of_task().is_some_and(|mops| mops <= AS_SAID * self.bag.task_mops);
        let mut stuck: IntervalSet =
            self.copies.stuck(is_as_said).into_iter().filter(stand_still).map(|(index, _)| index..index + 1).collect();
        self.issues.subtract_from(&mut stuck);
        let stuck = self.within_room(stuck.ranges().take(REQUEST_INTERVALS_MAX).collect());
        if !stuck.is_empty() {
            return Some(self.copy(stuck, 0, io, config));
        }
        if io.longest_wait_s > 0 || self.room() == 0 {
            return None;
        }
        let single = |index: u64| {
            self.placed.copies_of(index) == 1 && !self.issues.iter().any(|issue| issue.ranges.contains(index))
        };
        let predicted = self.copies.shared.iter().filter_map(|(&(index, _), rest)| match rest {
            Rest::Unknown => None,
            Rest::Late(ends_at) | Rest::Until(ends_at) => Some((*ends_at, index)),
        });
        let (ends_at, last) = predicted.filter(|&(_, index)| single(index)).max()?;
        let rest = ends_at.since(io.now);
        if rest < REST_MIN {
            return None;
        }
        let within_s = rest.mul_f64(SOONER).as_secs() as u32;
        Some(self.copy(IntervalSet::from(last..last + 1), within_s.max(1), io, config))
    }

    /// The request for a copy of each of these tasks that ends within so many seconds, 0 being whenever.
    fn copy(&mut self, tasks: IntervalSet, within_s: u32, io: &mut Io, config: &Config) -> Request {
        let tasks = self.checkpoints.within_request(tasks);
        // A machine may have had a copy of the task before, and given it up: this is another attempt.
        self.next_attempt(&IntervalSet::new(), io);
        self.copies.given.extend_with(&tasks);
        Request { copy: Some(within_s), ..self.request(tasks, None, io, config) }
    }

    /// A task is about to end by the result of this machine: what has the other machine with it stop its run.
    pub(super) fn stop_copies(&mut self, index: u64, ended_on: PeerId, io: &Io) -> Vec<Then> {
        if self.votes.is_quorum() || self.placed.copies_of(index) < 2 {
            return Vec::new();
        }
        let others = self
            .placed
            .iter()
            .filter(|placement| placement.executor.peer != ended_on && placement.ranges.contains(index));
        let stops = others.map(|placement| {
            let (bag, drop, term) = (self.bag.id, IntervalSet::from(index..index + 1), placement.until.since(io.now));
            Then::Send(placement.executor.clone(), Message::lease(bag, Some((&io.me).into()), term, drop))
        });
        stops.collect()
    }
}
