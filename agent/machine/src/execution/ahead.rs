//! Small tasks ahead of the peer: workers are given the next tasks of its queue before it starts them.
//!
//! The peer starts one task at a time, at the place where one has just ended. Between two small tasks a worker would wait for longer
//! than they take. So behind the claimed jobs of a run come the tasks of the same bag that the peer holds and will start next, in its
//! order. When it starts one, it is found in a run, or its result is there already, and the peer hears of it then.
//!
//! The peer does not know of tasks that are ahead: to it they wait. Whatever it does with them instead (another bag comes first, the
//! owner keeps the machine and they go elsewhere, they are dropped), they are taken back exactly where they have not begun, and
//! stopped, or their results forgotten, where they have. So each counts once.
//!
//! A run is as long as a worker needs for [`AHEAD`](super::kit::AHEAD) by what the bag's tasks took so far, and no longer: a task
//! that takes longer than that gives back those behind it.
//!
//! Left out: bags whose tasks have files of their own, which have to be fetched, and tasks that go on from a checkpoint.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Change, Record, RecordKey, TaskId, TaskOutcome};

use super::Execution;
use super::kit::{Early, Kit};
use super::run::{Job, Recall, Run};
use super::started::Stage;
use crate::effect::Effect;
use crate::work::{JobId, WorkOrder};

/// A run without an end of a task for so long gives back what has not begun.
const OVERDUE: Duration = Duration::from_millis(100);

impl Run {
    /// When the jobs behind a task that runs for long are to be taken back.
    fn overdue_at(&self) -> Option<Time> {
        let holds_up = self.jobs.len() > 1 && self.frozen.is_none() && self.recall.is_none();
        holds_up.then(|| self.moved.max(self.relieved) + OVERDUE)
    }
}

impl Execution {
    // ---- what the peer holds ----

    /// The peer changes its records: learns from them which tasks it holds.
    pub(crate) fn note_changes(&mut self, changes: &[Change], effects: &mut Vec<Effect>) {
        for change in changes {
            match change {
                // Tasks with a checkpoint are never given ahead: the checkpoint must be fetched first.
                Change::Put(Record::Held { bag, ranges, checkpoints, .. }) if !checkpoints.is_empty() => {
                    let waits: IntervalSet = checkpoints.keys().map(|&index| index..index + 1).collect();
                    self.note_held(bag.id, Some(&ranges.difference(&waits)), effects);
                }
                Change::Put(Record::Held { bag, ranges, .. }) => self.note_held(bag.id, Some(ranges), effects),
                Change::Delete(RecordKey::Held(bag)) => self.note_held(*bag, None, effects),
                Change::Put(_) | Change::Delete(_) => {}
            }
        }
    }

    /// The tasks of a bag that the peer holds change: those it no longer holds are not run, and their results are forgotten.
    pub(super) fn note_held(&mut self, bag: BagId, held: Option<&IntervalSet>, effects: &mut Vec<Effect>) {
        let Some(kit) = self.kits.get_mut(&bag) else {
            match held {
                Some(held) => self.held.insert(bag, held.clone()),
                None => self.held.remove(&bag),
            };
            return;
        };
        let none = IntervalSet::new();
        let after = held.unwrap_or(&none);
        let gone = kit.held.difference(after);
        if after.len() > kit.held.len() {
            // Tasks have come; some perhaps a second time.
            kit.next = 0;
        }
        kit.held.clone_from(after);
        if held.is_none() {
            self.kits.remove(&bag);
            effects.push(WorkOrder::ForgetExample { bag }.into());
        }
        if !gone.is_empty() {
            self.forget_early(bag, &gone, effects);
            let is_gone = |job: &Job| job.place.is_none() && gone.contains(job.task.index) && job.task.bag == bag;
            let of_gone = self.runs.iter_mut().filter(|run| run.jobs.iter().any(is_gone));
            of_gone.for_each(|run| run.recall(Recall::UNCLAIMED));
        }
    }

    /// These tasks of a bag are not held any more.
    fn forget_early(&mut self, bag: BagId, gone: &IntervalSet, effects: &mut Vec<Effect>) {
        if let Some(index) = gone.first().filter(|_| gone.len() == 1) {
            // Most often a single task is over: look it up without a scan.
            if let Some(early) = self.early.remove(&TaskId { bag, index }) {
                early.forget(effects);
            }
            return;
        }
        let is_gone = |task: &TaskId| task.bag == bag && gone.contains(task.index);
        for (_, early) in self.early.extract_if(.., |task, _| is_gone(task)) {
            early.forget(effects);
        }
    }

    // ---- what is known of a bag's tasks ----

    /// An example of a bag's tasks is prepared. Whether it is to be kept.
    pub(super) fn learn(&mut self, task: TaskId, attempt: u32, memory_bytes: u64) -> bool {
        let Some(held) = self.held.remove(&task.bag) else { return false };
        self.kits.insert(task.bag, Kit { memory_bytes, attempt, span: None, held, next: task.index + 1 });
        true
    }

    /// The peer starts a task that is not ahead: the next ones are behind it.
    pub(super) fn note_start(&mut self, task: TaskId, attempt: u32) {
        if let Some(kit) = self.kits.get_mut(&task.bag) {
            kit.attempt = attempt;
            kit.next = kit.next.max(task.index + 1);
        }
    }

    /// A task of a bag has ended here after so long.
    pub(super) fn note_span(&mut self, bag: BagId, wall: Duration) {
        if let Some(kit) = self.kits.get_mut(&bag) {
            kit.span = Some(kit.span.map_or(wall, |span| (span * 7 + wall) / 8));
        }
    }

    /// How many jobs a run of this bag has.
    fn length(&self, bag: BagId) -> usize {
        self.kits.get(&bag).map_or(1, Kit::run_length)
    }

    // ---- giving ahead ----

    /// Gives a worker what it does next, when it has little left.
    pub(super) fn refill(&mut self, slot: usize, now: Time, effects: &mut Vec<Effect>) {
        let run = &mut self.runs[slot];
        let Some(ended) = run.refill.take() else { return };
        let is_settled = run.recall.is_none() && run.frozen.is_none() && run.waiting.is_empty();
        // Before an agent finishes, what the peer has started is completed, and nothing else begins.
        if !is_settled || !self.takes_work {
            return;
        }
        let bag = self.runs[slot].jobs.back().map_or(ended, |last| last.task.bag);
        let length = self.length(bag);
        if !self.runs[slot].is_running() && (length == 1 || !self.may_run_on(bag)) {
            return;
        }
        if self.runs[slot].jobs.len() > length / 2 {
            return;
        }
        while self.runs[slot].jobs.len() < length && self.give_ahead(slot, bag, now, effects) {}
    }

    /// Whether a worker that has nothing left may go on with tasks of this bag: the peer works on it at other places, and what it has
    /// started there is in other runs.
    fn may_run_on(&self, bag: BagId) -> bool {
        let is_given = |stage| matches!(stage, Stage::Given | Stage::Keeping);
        let works_on = self.places.iter().flatten().any(|started| started.task.bag == bag && is_given(started.stage));
        works_on && !self.exceeds_slots(1)
    }

    /// Gives a worker the next task of a bag that nobody has. Whether there was one, and memory for it.
    fn give_ahead(&mut self, slot: usize, bag: BagId, now: Time, effects: &mut Vec<Effect>) -> bool {
        let Some(bytes) = self.kits.get(&bag).map(|kit| kit.memory_bytes) else { return false };
        if !self.fits(slot, bytes) {
            return false;
        }
        let Some(task) = self.next_ahead(bag) else { return false };
        let Some(kit) = self.kits.get(&bag) else { return false };
        let (attempt, memory_bytes) = (kit.attempt, kit.memory_bytes);
        let job = Job { id: self.next_job(), task, attempt, memory_bytes, place: None, condemned: false };
        self.give(slot, job, now, effects);
        // `give` asks for a refill, which is under way here.
        self.runs[slot].refill = None;
        true
    }

    /// The next task of a bag that nobody has.
    fn next_ahead(&mut self, bag: BagId) -> Option<TaskId> {
        loop {
            let kit = self.kits.get_mut(&bag)?;
            let range = kit.held.ranges().find(|range| range.end > kit.next)?;
            let index = range.start.max(kit.next);
            kit.next = index + 1;
            let task = TaskId { bag, index };
            let is_known = self.places.iter().flatten().any(|started| started.task == task)
                || self.early.contains_key(&task)
                || self.runs.iter().any(|run| run.jobs.iter().any(|job| job.task == task));
            if !is_known {
                return Some(task);
            }
        }
    }

    /// A task is not ahead any more, and may be again.
    pub(super) fn not_ahead(&mut self, task: TaskId) {
        if let Some(kit) = self.kits.get_mut(&task.bag) {
            kit.next = kit.next.min(task.index);
        }
    }

    // ---- tasks that end before the peer starts them ----

    /// A job has ended that was not claimed.
    pub(super) fn ended_early(&mut self, job: &Job, outcome: Option<TaskOutcome>, effects: &mut Vec<Effect>) {
        if let Some(outcome) = outcome {
            return self.keep_early(job.id, job.task, job.attempt, outcome, effects);
        }
        // A place that holds this task runs another attempt: this result is not remembered.
        if !self.places.iter().flatten().any(|started| started.task == job.task) {
            self.insert_early(job.task, Early { job: job.id, attempt: job.attempt, outcome: None }, effects);
        }
    }

    /// The output of a job that was not claimed is kept.
    pub(super) fn kept_early(&mut self, job: JobId, task: TaskId, outcome: TaskOutcome, effects: &mut Vec<Effect>) {
        match self.early.get(&task) {
            Some(early) if early.job == job => {
                let attempt = early.attempt;
                self.early.remove(&task);
                self.keep_early(job, task, attempt, outcome, effects);
            }
            _ => effects.push(WorkOrder::Forget { job }.into()),
        }
    }

    /// Remembers what came of a task until the peer starts it.
    fn keep_early(&mut self, job: JobId, task: TaskId, attempt: u32, outcome: TaskOutcome, effects: &mut Vec<Effect>) {
        let is_held = self.kits.get(&task.bag).is_some_and(|kit| kit.held.contains(task.index));
        let is_ahead = is_held && !self.places.iter().flatten().any(|started| started.task == task);
        if is_ahead && matches!(outcome, TaskOutcome::Finished(_)) {
            self.insert_early(task, Early { job, attempt, outcome: Some(outcome) }, effects);
        } else {
            effects.push(WorkOrder::Forget { job }.into());
        }
    }

    fn insert_early(&mut self, task: TaskId, early: Early, effects: &mut Vec<Effect>) {
        if let Some(before) = self.early.insert(task, early) {
            before.forget(effects);
        }
    }

    // ---- a task that runs for long ----

    /// When [`Execution::relieve`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.stands_still() {
            return None;
        }
        self.runs.iter().filter_map(Run::overdue_at).min()
    }

    /// Takes back the jobs that have not begun behind a task that runs for long; idle workers get them.
    pub(crate) fn relieve(&mut self, now: Time) {
        if self.stands_still() {
            return;
        }
        for run in self.runs.iter_mut().filter(|run| run.overdue_at().is_some_and(|at| at <= now)) {
            run.relieved = now;
            run.recall(Recall::default());
            let bag = run.jobs.front().map(|first| first.task.bag);
            if let Some(kit) = bag.and_then(|bag| self.kits.get_mut(&bag)) {
                kit.span = kit.span.max(Some(OVERDUE));
            }
        }
    }
}
