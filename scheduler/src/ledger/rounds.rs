//! What a ledger does of a bag that is an application in rounds (`crate::rounds`): it keeps tasks back until what they begin with is
//! there, and orders that to be made.
//!
//! What a task begins with is made of the outputs of others, once their results are durable, by the driver of this machine, and is named in
//! requests in the place of a checkpoint, which it becomes part of where the task comes back before its end. It is recorded as one, too.
//! So a restart goes on with all rounds as they were, and makes only what was not recorded.
//!
//! The bag is over when all its tasks have ended, or when nothing of it can go on: a task has failed for good for which the others
//! wait, or a merge says that the application has converged. A failed task that is run again goes on from there.
//!
//! Stewards keep such a bag, and do not act for it: no machine takes their signature on what tasks begin with for the submitter's (`past`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use super::Ledger;
use super::preferring::Preferring;
use crate::bag::{Checkpoint, HELD_CHECKPOINTS_MAX, TaskId};
use crate::io::{Io, Then};
use crate::peer::{Effect, StartMade};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record};
use crate::rounds::{Plan, Progress, Sources};

/// Time between a try to make what tasks begin with and the next one. Our choice: as long as outputs wait for room.
const UNMADE_PAUSE: Duration = Duration::from_secs(5);

/// The rounds of one bag.
#[derive(Debug)]
pub(super) struct Rounds {
    /// By durable results.
    pub(super) progress: Progress,
    /// Tasks of which what they begin with is being made.
    making: BTreeSet<u64>,
    /// Tasks of which it could not be made, and when that is tried again.
    unmade: BTreeSet<u64>,
    again_at: Option<Time>,
    /// Tasks whose checkpoint is what they begin with, and nothing else.
    starts: BTreeSet<u64>,
    /// Whether tasks may be issued again of which another machine has made what they begin with.
    pub(super) lacks_starts: bool,
    /// Successes that are being written.
    unwritten: u64,
    /// Tasks of a round that is to begin at once for which machines have said that they keep a slot (`at_once`).
    pub(super) booked: BTreeMap<PeerId, (IntervalSet, Time)>,
    /// When those that came back before go out again.
    pub(super) together_again: Option<Time>,
    /// How often that was since the last round began.
    pub(super) together_tries: u32,
    pub(super) preferring: Preferring,
}

impl Rounds {
    fn new(plan: Plan) -> Self {
        let (making, unmade, starts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let preferring = Preferring::default();
        Self {
            progress: Progress::new(plan),
            making,
            unmade,
            again_at: None,
            starts,
            lacks_starts: false,
            unwritten: 0,
            booked: BTreeMap::new(),
            together_again: None,
            together_tries: 0,
            preferring,
        }
    }
}

impl Ledger {
    /// If the bag is an application in rounds, its later ones wait.
    pub(super) fn begin_rounds(&mut self) {
        let Some(plan) = self.conditions.rounds.filter(|plan| plan.tasks() == self.bag.tasks) else { return };
        self.waiting.put_off(&IntervalSet::from(plan.first().end..self.bag.tasks));
        self.rounds = Some(Rounds::new(plan));
        self.restore_ended(&self.gone(), &IntervalSet::new());
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> Option<&Progress> {
        self.rounds.as_ref().map(|rounds| &rounds.progress)
    }

    /// What a task of a later round begins with, its checkpoint included.
    pub(crate) fn start_of(&self, index: u64) -> Option<Checkpoint> {
        let rounds = self.rounds.as_ref()?;
        self.checkpoints.get(index).filter(|_| !rounds.progress.plan().first().contains(&index))
    }

    /// After a restart, or since ended tasks run again: what is due begins, and what has nothing to begin with waits.
    pub(crate) fn go_on_with_rounds(&mut self, io: &mut Io) {
        let Some(rounds) = &mut self.rounds else { return };
        let plan = rounds.progress.plan();
        let (mut done, _) = self.ended.sets();
        let bag = self.bag.id;
        let unwritten = done.indices().filter(|&index| io.is_recording_task(TaskId { bag, index }));
        let unwritten: IntervalSet = unwritten.map(|index| index..index + 1).collect();
        done.subtract(&unwritten);
        rounds.progress = Progress::restore(plan, &done);
        let mut without_start = IntervalSet::from(plan.first().end..self.bag.tasks);
        for index in self.checkpoints.tasks() {
            without_start.remove_index(index);
        }
        self.waiting.put_off(&without_start);
        self.order_due(io);
    }

    /// Has what all tasks that are due begin with made.
    pub(super) fn order_due(&mut self, io: &mut Io) {
        for index in self.due() {
            self.order_start(index, io);
        }
    }

    /// Tasks of later rounds that wait for no other any more.
    fn due(&self) -> Vec<u64> {
        let Some(rounds) = &self.rounds else { return Vec::new() };
        self.waiting.later().indices().filter(|&index| rounds.progress.is_due(index)).collect()
    }

    /// Has what a task begins with made, unless that is under way, or no further task begins.
    fn order_start(&mut self, index: u64, io: &mut Io) {
        let is_over = self.is_closed() || self.conditions.converged;
        let Some(rounds) = self.rounds.as_mut().filter(|_| !is_over && self.waiting.later().contains(index)) else {
            return;
        };
        if rounds.making.insert(index) {
            rounds.unmade.remove(&index);
            let iterations = rounds.preferring.iterations_of(index, rounds.progress.plan());
            let from = Sources { iterations, ..rounds.progress.sources(index) };
            io.effects.push(Effect::MakeStart { task: TaskId { bag: self.bag.id, index }, from });
        }
    }

    /// How many of its tasks may be with machines at once: as many as one machine can hold with what they begin with, since one may get
    /// all of them.
    pub(super) fn handed_out_max(&self) -> Option<u64> {
        self.rounds.as_ref().map(|_| HELD_CHECKPOINTS_MAX as u64)
    }

    /// When it is tried again to make what tasks begin with.
    pub(super) fn starts_again_at(&self) -> Option<Time> {
        self.rounds.as_ref()?.again_at
    }

    /// Tries again to make what could not be made, if it is time.
    pub(super) fn order_unmade(&mut self, io: &mut Io) {
        self.put_off_without_start(io);
        let Some(rounds) = self.rounds.as_mut().filter(|rounds| rounds.again_at.is_some_and(|at| at <= io.now)) else {
            return;
        };
        rounds.again_at = None;
        for index in std::mem::take(&mut rounds.unmade) {
            self.order_start(index, io);
        }
    }

    /// What a task begins with was made, or not: if so it may be issued.
    pub(crate) fn start_made(&mut self, index: u64, made: StartMade, io: &mut Io) {
        let Some(rounds) = self.rounds.as_mut().filter(|rounds| rounds.making.contains(&index)) else { return };
        rounds.making.remove(&index);
        match made {
            _ if self.closed.is_some() => {}
            StartMade::NotNow => {
                rounds.unmade.insert(index);
                let again_at = *rounds.again_at.get_or_insert(io.now + UNMADE_PAUSE);
                self.ends_at(again_at);
            }
            StartMade::Here { has_converged, .. } if has_converged && self.may_end_early(index) => {
                if !std::mem::replace(&mut self.conditions.converged, true) {
                    io.persist(vec![Change::Put(self.record(io))], Vec::new());
                }
            }
            StartMade::Here { .. } if self.conditions.converged => {}
            StartMade::Here { start, .. } => self.begin_with(index, start, io),
        }
        self.close_if_over(io);
    }

    /// Whether the application may end before this task, which would begin another round.
    fn may_end_early(&self, index: u64) -> bool {
        let plan = self.rounds.as_ref().map(|rounds| rounds.progress.plan());
        plan.is_some_and(|plan| plan.part(index).round() >= plan.rounds_min)
    }

    fn begin_with(&mut self, index: u64, start: Checkpoint, io: &mut Io) {
        if !self.waiting.begin(index) {
            return;
        }
        if let Some(rounds) = &mut self.rounds {
            rounds.starts.insert(index);
        }
        self.checkpoints.insert(index, start);
        let record = Record::Checkpoint { bag: self.bag.id, index, checkpoint: start };
        io.persist(vec![Change::Put(record)], Vec::new());
    }

    /// A task that failed begins anew, without the checkpoint that may be the cause. Returns the change of the store. In rounds it
    /// begins with what it began with at first, which is made once more where a checkpoint has taken its place.
    pub(super) fn begin_anew(&mut self, index: u64, io: &mut Io) -> Option<Change> {
        if let Some(rounds) = &mut self.rounds
            && !rounds.progress.plan().first().contains(&index)
        {
            let task = IntervalSet::from(index..index + 1);
            // Another run of it may need what it came with.
            if rounds.starts.contains(&index) || !self.without_copy(task.clone()).is_empty() || self.is_running(&task) {
                return None;
            }
            let gone = self.checkpoints.forget(index, self.bag.id);
            self.waiting.put_off(&task);
            self.order_start(index, io);
            return gone;
        }
        self.checkpoints.forget(index, self.bag.id)
    }

    /// Whether machines or requests have this task.
    fn is_running(&self, task: &IntervalSet) -> bool {
        !self.placed.held_by_more_than(0, task).is_empty()
            || self.issues.iter().any(|issue| !issue.ranges.intersection(task).is_empty())
    }

    /// A task came back with a checkpoint, which is in the place of what it began with.
    pub(super) fn note_checkpoint(&mut self, index: u64) {
        if let Some(rounds) = &mut self.rounds {
            rounds.starts.remove(&index);
        }
    }

    /// A task has ended: what follows once that is durable.
    pub(super) fn goes_on(&mut self, index: u64, success: bool) -> Option<Then> {
        let rounds = self.rounds.as_mut()?;
        rounds.starts.remove(&index);
        rounds.unwritten += u64::from(success);
        success.then_some(Then::Succeeded(TaskId { bag: self.bag.id, index }))
    }

    /// The success of a task is durable: those that waited for it are due.
    pub(crate) fn succeeded_durably(&mut self, index: u64, io: &mut Io) {
        // Not where it runs again meanwhile.
        let is_done = self.ended.contains(index);
        let Some(rounds) = &mut self.rounds else { return };
        rounds.unwritten = rounds.unwritten.saturating_sub(1);
        if is_done {
            let next = rounds.progress.succeeded(index);
            self.prefer(&next, io);
            for next in next {
                self.order_start(next, io);
            }
            self.go_on_from_complete(io);
        }
        self.close_if_over(io);
    }

    /// Whether tasks are left that will never begin: some have failed for good for which they wait, or the application has converged.
    pub(super) fn can_go_no_further(&self) -> bool {
        let Some(rounds) = &self.rounds else { return false };
        let waits = self.waiting.later().len();
        let is_under_way = !rounds.making.is_empty() || !rounds.unmade.is_empty() || rounds.unwritten > 0;
        !is_under_way
            && self.ended.len() + waits == self.bag.tasks
            && (self.conditions.converged || self.ended.failed() > 0)
    }

    /// After a restart, before anything is ordered: whether a closed bag in rounds is over.
    pub(super) fn has_nothing_due(&self) -> bool {
        let Some(plan) = self.conditions.rounds else { return true };
        let progress = Progress::restore(plan, &self.ended.sets().0);
        self.conditions.converged || !self.waiting.later().indices().any(|index| progress.is_due(index))
    }

    /// The bag is closed: nothing is made for it any more.
    pub(super) fn close_rounds(&mut self) {
        if let Some(rounds) = &mut self.rounds {
            rounds.making.clear();
            rounds.unmade.clear();
            rounds.again_at = None;
            rounds.starts.clear();
            rounds.booked.clear();
            rounds.preferring = Preferring::default();
        }
    }
}
