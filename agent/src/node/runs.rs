//! Small tasks ahead of the peer: what its queue will ask for next is given to the workers before it asks.
//!
//! The peer starts one task at a time, at the place where one has just ended. Between two small tasks a worker would
//! wait for longer than they take. So each worker has a *run* of jobs. Its first ones are tasks that the peer has started
//! (*claimed*); those behind them are the tasks of the same bag that the peer holds and will start next, in its order.
//! When it starts one, it is found in a run, or its result is there already, and the peer hears of it then.
//!
//! Nobody else knows of tasks that are ahead: to the peer they wait. Whatever the peer does with them instead (another
//! bag comes first, the owner keeps the machine and they go elsewhere, they are dropped), they are taken back exactly
//! where they have not begun, and stopped, or their results forgotten, where they have. So each counts once.
//!
//! A run is as long as a worker needs for [`AHEAD`] by what the bag's tasks took so far, and no longer: a task that takes
//! longer than that gives back those behind it.
//!
//! Left out: bags whose tasks have files of their own, which have to be fetched.

mod memory;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Event, TaskId, TaskOutcome};
use tokio::time::Instant;

use super::driver::Driver;
use super::places::Place;
use super::task::{Collected, Prepared};
use crate::manifest::Manifest;

/// Work that a worker is given ahead. Our choice: many times what the agent needs to come back to it.
const AHEAD: Duration = Duration::from_millis(20);
/// Most jobs of a run; what a worker's socket holds is less than twice that.
pub(super) const JOBS_MAX: usize = 128;
/// A run without an end of a task for so long gives back what has not begun.
const OVERDUE: Duration = Duration::from_millis(100);

/// A task that a worker was given.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) prepared: Box<Prepared>,
    /// The pool's name for it, while a worker has it.
    pub(super) number: u64,
}

/// The run of one worker.
#[derive(Debug)]
struct Run {
    jobs: VecDeque<Given>,
    /// When its last task ended, or its first was given, moved on by what all workers stood still.
    moved: Instant,
    /// The task that is frozen there for another bag.
    frozen: Option<TaskId>,
}

/// What tasks of a bag have in common, and what is known of them.
#[derive(Debug)]
struct Kit {
    /// One of them.
    example: Arc<Prepared>,
    attempt: u32,
    /// How long they take, by the last ones; `None`: none has ended yet.
    span: Option<Duration>,
    /// Tasks that are not over here, as the peer's record says.
    held: IntervalSet,
    /// Where to look for the next one.
    next: u64,
}

/// All runs of this machine.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
    kits: BTreeMap<BagId, Kit>,
    /// What the peer's records say of bags without a kit.
    held: BTreeMap<BagId, IntervalSet>,
    /// Tasks whose output is being kept before the peer has started them, and of which attempt.
    collecting: BTreeMap<TaskId, u32>,
    /// Results of tasks that the peer has not started yet, and of which attempt.
    finished: BTreeMap<TaskId, (u32, Collected)>,
    /// Since when all workers stand still.
    frozen_since: Option<Instant>,
}

impl Runs {
    pub(super) fn new(slots: usize) -> Self {
        let run = || Run { jobs: VecDeque::new(), moved: Instant::now(), frozen: None };
        Self {
            runs: (0..slots).map(|_| run()).collect(),
            kits: BTreeMap::new(),
            held: BTreeMap::new(),
            collecting: BTreeMap::new(),
            finished: BTreeMap::new(),
            frozen_since: None,
        }
    }

    /// Whether no worker has a task.
    pub(super) fn are_idle(&self) -> bool {
        self.runs.iter().all(|run| run.jobs.is_empty())
    }

    /// The manifests of the bags that workers have tasks of.
    pub(super) fn manifests(&self) -> BTreeMap<BagId, Arc<Manifest>> {
        let given = self.runs.iter().flat_map(|run| &run.jobs);
        given.map(|given| (given.task.bag, given.prepared.manifest.clone())).collect()
    }

    /// Whether something waits behind a task.
    pub(super) fn are_long(&self) -> bool {
        self.runs.iter().any(|run| run.jobs.len() > 1)
    }

    /// All workers stand still from now on.
    pub(super) fn note_freeze(&mut self) {
        self.frozen_since.get_or_insert_with(Instant::now);
    }

    /// They go on: meanwhile no task has been slow.
    pub(super) fn note_thaw(&mut self) {
        if let Some(since) = self.frozen_since.take() {
            for run in &mut self.runs {
                run.moved += since.max(run.moved).elapsed();
            }
        }
    }

    /// Which worker has the task, and whether as the first of its run.
    fn find(&self, task: TaskId) -> Option<(usize, bool)> {
        self.runs.iter().enumerate().find_map(|(slot, run)| {
            let position = run.jobs.iter().position(|given| given.task == task)?;
            Some((slot, position == 0))
        })
    }

    /// What the bag's tasks have in common, from one that was prepared.
    pub(super) fn learn(&mut self, given: &Given) {
        let bag = given.task.bag;
        if self.kits.contains_key(&bag) || !given.prepared.is_example(given.task) {
            return;
        }
        let Some(held) = self.held.remove(&bag) else { return };
        let (example, next) = (Arc::new(given.prepared.example()), given.task.index + 1);
        self.kits.insert(bag, Kit { example, attempt: given.attempt, span: None, held, next });
    }

    /// The task, ready to run, where that needs nothing to be fetched.
    pub(super) fn at_hand(&mut self, task: TaskId, attempt: u32) -> Option<Given> {
        let kit = self.kits.get_mut(&task.bag)?;
        kit.attempt = attempt;
        kit.next = kit.next.max(task.index + 1);
        Some(Given { task, attempt, number: 0, prepared: Box::new(kit.example.another(task, attempt)?) })
    }

    /// How many jobs a run of this bag has.
    fn length(&self, bag: BagId) -> usize {
        let span = self.kits.get(&bag).and_then(|kit| kit.span);
        let fits = |span: Duration| (AHEAD.as_nanos() / span.as_nanos().max(1)).clamp(1, JOBS_MAX as u128) as usize;
        span.map_or(1, fits)
    }

    /// A task is not ahead any more, and may be again.
    fn not_ahead(&mut self, task: TaskId) {
        if let Some(kit) = self.kits.get_mut(&task.bag) {
            kit.next = kit.next.min(task.index);
        }
    }

    /// The next task of a bag that nobody has.
    fn next_ahead(&mut self, bag: BagId, places: &[Place]) -> Option<Given> {
        loop {
            let kit = self.kits.get_mut(&bag)?;
            let range = kit.held.ranges().find(|range| range.end > kit.next)?;
            let index = range.start.max(kit.next);
            let task = TaskId { bag, index };
            let is_known = places.iter().any(|place| place.task() == Some(task))
                || self.finished.contains_key(&task)
                || self.collecting.contains_key(&task)
                || self.runs.iter().any(|run| run.jobs.iter().any(|given| given.task == task));
            if is_known {
                kit.next = index + 1;
                continue;
            }
            let prepared = Box::new(kit.example.another(task, kit.attempt)?);
            kit.next = index + 1;
            return Some(Given { task, attempt: kit.attempt, prepared, number: 0 });
        }
    }
}

impl Driver {
    fn is_claimed(&self, task: TaskId) -> bool {
        self.places.iter().any(|place| place.task() == Some(task))
    }

    /// The peer starts a task that is ahead already. Whether it was.
    pub(super) fn claim(&mut self, place: usize, task: TaskId, attempt: u32) -> bool {
        if let Some((of, collected)) = self.runs.finished.remove(&task)
            && of == attempt
        {
            self.places[place] = Place::Free;
            let Collected { outcome, pin } = collected;
            self.follow_ups.push_back(Event::TaskEnded { task, outcome });
            self.pins.extend(pin);
            return true;
        }
        let found = self.runs.find(task).map(|(slot, _)| slot);
        let same =
            |slot: usize| self.runs.runs[slot].jobs.iter().any(|given| given.task == task && given.attempt == attempt);
        let is_collecting = self.runs.collecting.get(&task) == Some(&attempt);
        if found.is_some_and(same) || is_collecting {
            self.runs.collecting.remove(&task);
            self.places[place] = Place::Running { task };
            return true;
        }
        if let Some(slot) = found {
            // Of an earlier attempt: it must not be taken for this one.
            self.give_back(slot);
        }
        false
    }

    /// Gives a task that the peer has started to a worker, ahead of all that it has not.
    pub(super) fn give(&mut self, place: usize, given: Given) {
        let task = given.task;
        self.runs.learn(&given);
        self.places[place] = Place::Running { task };
        let runs = &self.runs.runs;
        let free = (0..runs.len()).filter(|&slot| runs[slot].frozen.is_none());
        // Its own, unless that is taken.
        let slot = free.min_by_key(|&slot| (self.claimed_in(slot), slot != place)).unwrap_or(place);
        self.give_back(slot);
        if let Err(error) = self.make_room(slot, &given) {
            return self.not_given(place, given, error);
        }
        self.append(slot, given);
        self.top_up(slot);
    }

    /// Takes everything from the workers that the peer has not started.
    pub(super) fn keep_to_claimed(&mut self) {
        for slot in 0..self.runs.runs.len() {
            self.give_back(slot);
        }
    }

    /// How many of a run the peer has started.
    fn claimed_in(&self, slot: usize) -> usize {
        self.runs.runs[slot].jobs.iter().filter(|given| self.is_claimed(given.task)).count()
    }

    fn append(&mut self, slot: usize, mut given: Given) {
        let most = self.owner.settings.get().limits.task_time.0;
        let limit = &mut given.prepared.job.time_limit;
        *limit = Some(limit.map_or(most, |of_bag| of_bag.min(most)));
        match self.workers.append(slot, &given.prepared.job) {
            Ok(number) => {
                given.number = number;
                let run = &mut self.runs.runs[slot];
                if run.jobs.is_empty() {
                    run.moved = Instant::now();
                }
                run.jobs.push_back(given);
            }
            Err(error) => match self.places.iter().position(|place| place.task() == Some(given.task)) {
                Some(place) => self.not_given(place, given, error.into()),
                None => self.discard(Some(given.prepared)),
            },
        }
    }

    /// Takes from a run what the worker has not begun; of that what the peer has started.
    fn take_back(&mut self, slot: usize) -> Vec<Given> {
        let numbers = self.workers.take_back(slot);
        let jobs = &mut self.runs.runs[slot].jobs;
        let (back, begun): (Vec<Given>, Vec<Given>) =
            jobs.drain(..).partition(|given| numbers.binary_search(&given.number).is_ok());
        jobs.extend(begun);
        for given in &back {
            self.runs.not_ahead(given.task);
        }
        back.into_iter().filter(|given| self.is_claimed(given.task)).collect()
    }

    /// Takes from a run everything that the peer has not started: what has begun, too.
    fn give_back(&mut self, slot: usize) {
        let claimed = self.take_back(slot);
        let begun = self.runs.runs[slot].jobs.front().map(|given| given.task);
        if begun.is_some_and(|task| !self.is_claimed(task)) {
            self.workers.stop(slot);
        }
        for given in claimed {
            self.append(slot, given);
        }
    }

    /// Ends whatever a worker was given. What the peer has started it may start again.
    fn end_run(&mut self, slot: usize) {
        let waiting = self.take_back(slot);
        if !self.runs.runs[slot].jobs.is_empty() {
            // The end of what has begun comes as an event.
            self.workers.stop(slot);
        }
        for Given { task, prepared, .. } in waiting {
            if let Some(place) = self.places.iter().position(|place| place.task() == Some(task)) {
                self.places[place] = Place::Free;
            }
            self.discard(Some(prepared));
            self.feed(Event::TaskEnded { task, outcome: TaskOutcome::Stopped });
        }
        self.note_busy();
    }

    /// Gives a worker what it does next, when it has little left.
    fn top_up(&mut self, slot: usize) {
        let run = &self.runs.runs[slot];
        let Some(bag) = run.jobs.back().map(|given| given.task.bag) else { return };
        let length = self.runs.length(bag);
        // Before an agent finishes, what the peer has started is completed, and nothing else begins.
        if run.frozen.is_some() || run.jobs.len() > length / 2 || !self.owner.takes_work {
            return;
        }
        while self.runs.runs[slot].jobs.len() < length {
            let Some(given) = self.runs.next_ahead(bag, &self.places) else { return };
            if !self.append_ahead(slot, given) {
                return;
            }
        }
    }

    /// The first task of a run is over.
    pub(super) fn next_in_run(&mut self, slot: usize) -> Option<Given> {
        let run = &mut self.runs.runs[slot];
        run.moved = Instant::now();
        let given = run.jobs.pop_front();
        if run.frozen.is_some() && run.frozen == given.as_ref().map(|given| given.task) {
            run.frozen = None;
            self.workers.thaw_slot(slot);
        }
        given
    }

    /// A task of a bag has ended here after so long.
    pub(super) fn note_span(&mut self, bag: BagId, wall: Duration) {
        if let Some(kit) = self.runs.kits.get_mut(&bag) {
            kit.span = Some(kit.span.map_or(wall, |span| (span * 7 + wall) / 8));
        }
    }

    /// A worker has ended a task of this bag, and the peer has heard of it: it goes on with what is ahead.
    pub(super) fn go_on(&mut self, slot: usize, bag: BagId) {
        let run = &self.runs.runs[slot];
        // Where the peer works on the bag at other places, but what it has started there is in other runs.
        if run.jobs.is_empty()
            && run.frozen.is_none()
            && self.owner.takes_work
            && self.runs.length(bag) > 1
            && self.places.iter().any(|place| matches!(place, Place::Running { task } if task.bag == bag))
            && let Some(given) = self.runs.next_ahead(bag, &self.places)
        {
            self.append_ahead(slot, given);
        }
        self.top_up(slot);
    }

    /// The output of a task is being kept. Whether the peer has started it decides who hears of that.
    pub(super) fn note_collecting(&mut self, task: TaskId, attempt: u32) {
        if !self.is_claimed(task) {
            self.runs.collecting.insert(task, attempt);
        }
    }

    /// What came of a task: the peer hears of it if it has started it, and else when it does.
    pub(super) fn over(&mut self, task: TaskId, attempt: u32, collected: Collected) {
        if let Some(place) = self.places.iter().position(|place| place.task() == Some(task)) {
            self.places[place] = Place::Free;
            let Collected { outcome, pin } = collected;
            self.feed(Event::TaskEnded { task, outcome });
            // By now the peer's record pins the output, or nobody wants it.
            drop(pin);
            self.note_busy();
            return;
        }
        self.runs.collecting.remove(&task);
        let is_held = self.runs.kits.get(&task.bag).is_some_and(|kit| kit.held.contains(task.index));
        if is_held && matches!(collected.outcome, TaskOutcome::Finished(_)) {
            self.runs.finished.insert(task, (attempt, collected));
        }
    }

    /// Ends a task that has begun; of one that has not, what it is.
    pub(super) fn stop_in_run(&mut self, task: TaskId) -> Option<Given> {
        let (slot, _) = self.runs.find(task)?;
        let (wanted, others) = self.take_out(slot, task);
        if wanted.is_none() {
            self.workers.stop(slot);
        }
        self.give_anew(others);
        wanted
    }

    /// Freezes a task that has begun; of one that has not, what it is.
    pub(super) fn freeze_in_run(&mut self, task: TaskId) -> Option<Given> {
        let (slot, _) = self.runs.find(task)?;
        let (wanted, others) = self.take_out(slot, task);
        if wanted.is_none() {
            self.workers.freeze_slot(slot);
            self.runs.runs[slot].frozen = Some(task);
        }
        self.give_anew(others);
        wanted
    }

    pub(super) fn thaw_in_run(&mut self, task: TaskId) {
        if let Some((slot, _)) = self.runs.find(task) {
            self.workers.thaw_slot(slot);
            let run = &mut self.runs.runs[slot];
            (run.frozen, run.moved) = (None, Instant::now());
        }
    }

    /// Takes back what a run has not begun: the task, if it is among that, and the others that the peer has started.
    fn take_out(&mut self, slot: usize, task: TaskId) -> (Option<Given>, Vec<Given>) {
        let (mut wanted, others): (Vec<_>, Vec<_>) =
            self.take_back(slot).into_iter().partition(|given| given.task == task);
        // The first may be a task that the peer has not started yet, in front of one that it has: it ends by itself.
        (wanted.pop(), others)
    }

    fn give_anew(&mut self, claimed: Vec<Given>) {
        for given in claimed {
            if let Some(place) = self.places.iter().position(|place| place.task() == Some(given.task)) {
                self.give(place, given);
            }
        }
    }

    /// What has not begun behind a task that takes its time goes to whoever has time.
    pub(super) fn relieve_runs(&mut self) {
        if self.runs.frozen_since.is_some() {
            return;
        }
        for slot in 0..self.runs.runs.len() {
            let run = &self.runs.runs[slot];
            let (late, is_long) = (run.moved.elapsed(), run.jobs.len() > 1);
            if run.frozen.is_some() || !is_long || late < OVERDUE {
                continue;
            }
            if let Some(kit) = run.jobs.front().and_then(|given| self.runs.kits.get_mut(&given.task.bag)) {
                kit.span = kit.span.max(Some(late));
            }
            let claimed = self.take_back(slot);
            self.give_anew(claimed);
        }
    }

    /// The peer's record of what it holds of a bag changes: what it no longer holds is not run, and its results are
    /// forgotten.
    pub(super) fn note_held(&mut self, bag: BagId, held: Option<&IntervalSet>) {
        let Some(kit) = self.runs.kits.get_mut(&bag) else {
            match held {
                Some(held) => self.runs.held.insert(bag, held.clone()),
                None => self.runs.held.remove(&bag),
            };
            return;
        };
        let (before, after) = (kit.held.len(), held.map_or(0, IntervalSet::len));
        match held {
            Some(held) => {
                kit.held.clone_from(held);
                if after > before {
                    // Tasks have come; some perhaps again.
                    kit.next = 0;
                }
            }
            None => {
                self.runs.kits.remove(&bag);
            }
        }
        // One fewer, or none any more, is a task that is over, and it is not ahead.
        if after + 1 >= before && held.is_some() {
            return;
        }
        let is_held = |task: &TaskId| task.bag != bag || held.is_some_and(|held| held.contains(task.index));
        self.runs.finished.retain(|task, _| is_held(task));
        self.runs.collecting.retain(|task, _| is_held(task));
        for slot in 0..self.runs.runs.len() {
            let jobs = &self.runs.runs[slot].jobs;
            if jobs.iter().any(|given| !is_held(&given.task) && !self.is_claimed(given.task)) {
                self.give_back(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_all_stand_still_makes_no_task_slow() {
        let mut runs = Runs::new(2);
        let begin = Instant::now();
        let before = |seconds| begin.checked_sub(Duration::from_secs(seconds)).expect("the machine runs for longer");
        (runs.runs[0].moved, runs.runs[1].moved) = (before(30), before(5));
        runs.frozen_since = Some(before(20));
        runs.note_freeze();
        runs.note_thaw();
        assert!(runs.runs[0].moved >= before(10), "it stood still for twenty seconds");
        assert!(runs.runs[0].moved.elapsed() >= Duration::from_secs(10), "not for longer");
        let moved = runs.runs[1].moved;
        assert!(moved >= begin && moved <= Instant::now(), "its first task came meanwhile");
        let moved = runs.runs[0].moved;
        runs.note_thaw();
        assert_eq!(runs.runs[0].moved, moved);
    }
}
