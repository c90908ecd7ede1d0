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
use idlewood_trust::manifest::Manifest;
use tokio::time::Instant;

use super::driver::Driver;
use super::places::Place;
use super::task::{Collected, Prepared};

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

/// What the peer finds that starts a task.
#[derive(Debug)]
enum Claim {
    /// It is over already.
    Over(Collected),
    /// A worker has it, or had it and its output is being kept.
    Given,
    /// Nobody has it, but perhaps a run has another attempt of it, which must not be taken for this one.
    No { stale: Option<usize> },
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

    /// Which worker has this attempt of a task.
    fn find(&self, task: TaskId, attempt: u32) -> Option<usize> {
        self.runs.iter().position(|run| run.jobs.iter().any(|given| (given.task, given.attempt) == (task, attempt)))
    }

    /// The peer starts a task.
    fn claim(&mut self, task: TaskId, attempt: u32) -> Claim {
        if let Some((of, collected)) = self.finished.remove(&task)
            && of == attempt
        {
            return Claim::Over(collected);
        }
        let is_collecting = self.collecting.remove(&task) == Some(attempt);
        if is_collecting || self.find(task, attempt).is_some() {
            return Claim::Given;
        }
        let of_another = |run: &Run| run.jobs.iter().any(|given| given.task == task);
        Claim::No { stale: self.runs.iter().position(of_another) }
    }

    /// What came of a task, and at which of these places the peer has started it; else that is kept until it does.
    fn over(
        &mut self,
        places: &[Place],
        task: TaskId,
        attempt: u32,
        collected: Collected,
    ) -> Option<(usize, Collected)> {
        if self.collecting.get(&task) == Some(&attempt) {
            self.collecting.remove(&task);
        }
        if let Some(place) = places.iter().position(|place| place.runs(task, attempt)) {
            return Some((place, collected));
        }
        let is_held = self.kits.get(&task.bag).is_some_and(|kit| kit.held.contains(task.index));
        // Where the peer has started it, it has started another attempt.
        let is_ahead = is_held && !places.iter().any(|place| place.task() == Some(task));
        if is_ahead && matches!(collected.outcome, TaskOutcome::Finished(_)) {
            self.finished.insert(task, (attempt, collected));
        }
        None
    }

    /// What is held of a bag changes: what came of tasks that are not is forgotten. Those tasks.
    fn note_held(&mut self, bag: BagId, held: Option<&IntervalSet>) -> IntervalSet {
        let Some(kit) = self.kits.get_mut(&bag) else {
            match held {
                Some(held) => self.held.insert(bag, held.clone()),
                None => self.held.remove(&bag),
            };
            return IntervalSet::new();
        };
        let none = IntervalSet::new();
        let after = held.unwrap_or(&none);
        let gone = kit.held.difference(after);
        if after.len() > kit.held.len() {
            // Tasks have come; some perhaps again.
            kit.next = 0;
        }
        kit.held.clone_from(after);
        if held.is_none() {
            self.kits.remove(&bag);
        }
        if let Some(index) = gone.first().filter(|_| gone.len() == 1) {
            // Most often one is over, and all others need not be looked at.
            let task = TaskId { bag, index };
            self.finished.remove(&task);
            self.collecting.remove(&task);
        } else if !gone.is_empty() {
            let is_held = |task: &TaskId| task.bag != bag || !gone.contains(task.index);
            self.finished.retain(|task, _| is_held(task));
            self.collecting.retain(|task, _| is_held(task));
        }
        gone
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
    /// Where the peer has started it.
    fn place_of(&self, given: &Given) -> Option<usize> {
        self.places.iter().position(|place| place.runs(given.task, given.attempt))
    }

    fn is_claimed(&self, given: &Given) -> bool {
        self.place_of(given).is_some()
    }

    /// The peer starts a task that is ahead already. Whether it was.
    pub(super) fn claim(&mut self, place: usize, task: TaskId, attempt: u32) -> bool {
        match self.runs.claim(task, attempt) {
            Claim::Over(Collected { outcome, pin }) => {
                self.places[place] = Place::Free;
                self.follow_ups.push_back(Event::TaskEnded { task, outcome }.into());
                self.pins.extend(pin);
                true
            }
            Claim::Given => {
                self.places[place] = Place::Running { task, attempt };
                true
            }
            Claim::No { stale } => {
                if let Some(slot) = stale {
                    self.give_back(slot);
                }
                false
            }
        }
    }

    /// Gives a task that the peer has started to a worker, ahead of all that it has not.
    pub(super) fn give(&mut self, place: usize, given: Given) {
        self.runs.learn(&given);
        self.places[place] = Place::Running { task: given.task, attempt: given.attempt };
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
        self.runs.runs[slot].jobs.iter().filter(|given| self.is_claimed(given)).count()
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
            Err(error) => match self.place_of(&given) {
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
        back.into_iter().filter(|given| self.is_claimed(given)).collect()
    }

    /// Takes from a run everything that the peer has not started: what has begun, too.
    fn give_back(&mut self, slot: usize) {
        let claimed = self.take_back(slot);
        if self.runs.runs[slot].jobs.front().is_some_and(|begun| !self.is_claimed(begun)) {
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
        for given in waiting {
            if let Some(place) = self.place_of(&given) {
                self.places[place] = Place::Free;
            }
            let Given { task, prepared, .. } = given;
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
        if run.frozen.is_some() || run.jobs.len() > length / 2 || !self.machine.owner().judgement().takes_work {
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
            && self.machine.owner().judgement().takes_work
            && self.runs.length(bag) > 1
            && self.places.iter().any(|place| matches!(place, Place::Running { task, .. } if task.bag == bag))
            && let Some(given) = self.runs.next_ahead(bag, &self.places)
        {
            self.append_ahead(slot, given);
        }
        self.top_up(slot);
    }

    /// The output of a task is being kept. Whether the peer has started it decides who hears of that.
    pub(super) fn note_collecting(&mut self, task: TaskId, attempt: u32) {
        if !self.places.iter().any(|place| place.task() == Some(task)) {
            self.runs.collecting.insert(task, attempt);
        }
    }

    /// What came of a task: the peer hears of it if it has started it, and else when it does.
    pub(super) fn over(&mut self, task: TaskId, attempt: u32, collected: Collected) {
        let Some((place, Collected { outcome, pin })) = self.runs.over(&self.places, task, attempt, collected) else {
            return;
        };
        self.places[place] = Place::Free;
        self.feed(Event::TaskEnded { task, outcome });
        // By now the peer's record pins the output, or nobody wants it.
        drop(pin);
        self.note_busy();
    }

    /// Ends a task that has begun; of one that has not, what it is.
    pub(super) fn stop_in_run(&mut self, task: TaskId, attempt: u32) -> Option<Given> {
        let slot = self.runs.find(task, attempt)?;
        let (wanted, others) = self.take_out(slot, task);
        if wanted.is_none() {
            self.workers.stop(slot);
        }
        self.give_anew(others);
        wanted
    }

    /// Freezes a task that has begun; of one that has not, what it is.
    pub(super) fn freeze_in_run(&mut self, task: TaskId, attempt: u32) -> Option<Given> {
        let slot = self.runs.find(task, attempt)?;
        let (wanted, others) = self.take_out(slot, task);
        if wanted.is_none() {
            self.workers.freeze_slot(slot);
            self.runs.runs[slot].frozen = Some(task);
        }
        self.give_anew(others);
        wanted
    }

    pub(super) fn thaw_in_run(&mut self, task: TaskId, attempt: u32) {
        if let Some(slot) = self.runs.find(task, attempt) {
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
            if let Some(place) = self.place_of(&given) {
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
        let gone = self.runs.note_held(bag, held);
        if gone.is_empty() {
            return;
        }
        for slot in 0..self.runs.runs.len() {
            let is_gone = |given: &Given| gone.contains(given.task.index) && given.task.bag == bag;
            let jobs = &self.runs.runs[slot].jobs;
            if jobs.iter().any(|given| is_gone(given) && !self.is_claimed(given)) {
                self.give_back(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::{BlobId, Finished};

    use super::*;
    use crate::node::task::tests::prepared;

    const BAG: BagId = BagId([1; 32]);

    fn task(index: u64) -> TaskId {
        TaskId { bag: BAG, index }
    }

    fn given(index: u64, attempt: u32) -> Given {
        Given { task: task(index), attempt, prepared: Box::new(prepared(1)), number: index }
    }

    /// What came of an attempt, which its work tells.
    fn collected(attempt: u32) -> Collected {
        let (success, crashed, output, output_bytes, exit_code) = (true, false, BlobId([2; 32]), 1, Some(0));
        let work_mops = f64::from(attempt);
        let finished = Finished { success, crashed, output, output_bytes, content: None, work_mops, exit_code };
        Collected { outcome: TaskOutcome::Finished(finished), pin: None }
    }

    /// Tasks 0 to 9 are held. Of attempt 1, 0 to 2 are with workers, of 3 the output is being kept, and 4 is over.
    fn ahead() -> Runs {
        let mut runs = Runs::new(2);
        let (example, held) = (Arc::new(prepared(1)), IntervalSet::from(0..10));
        runs.kits.insert(BAG, Kit { example, attempt: 1, span: None, held, next: 5 });
        runs.runs[0].jobs = [given(0, 1), given(1, 1)].into();
        runs.runs[1].jobs = [given(2, 1)].into();
        runs.collecting.insert(task(3), 1);
        runs.finished.insert(task(4), (1, collected(1)));
        runs
    }

    #[test]
    fn what_is_ahead_is_claimed_as_the_attempt_that_it_is() {
        for (index, attempt, expected) in [
            (0, 1, "given"),
            (1, 1, "given"),
            (2, 1, "given"),
            (3, 1, "given"),
            (4, 1, "over"),
            (5, 1, "no, stale: None"),
            (0, 2, "no, stale: Some(0)"),
            (1, 0, "no, stale: Some(0)"),
            (2, 2, "no, stale: Some(1)"),
            (3, 2, "no, stale: None"),
            (4, 2, "no, stale: None"),
        ] {
            let mut runs = ahead();
            let claim = match runs.claim(task(index), attempt) {
                Claim::Over(Collected { outcome, .. }) => {
                    assert_eq!(outcome, collected(attempt).outcome);
                    "over".to_owned()
                }
                Claim::Given => "given".to_owned(),
                Claim::No { stale } => format!("no, stale: {stale:?}"),
            };
            assert_eq!(claim, expected, "task {index}, attempt {attempt}");
            assert!(!runs.finished.contains_key(&task(index)) && !runs.collecting.contains_key(&task(index)));
        }
    }

    /// The peer would sign the one as the other, and the run of the other would be nobody's.
    #[test]
    fn what_came_of_an_attempt_is_told_where_that_attempt_runs() {
        let running = |index, attempt| Place::Running { task: task(index), attempt };
        let waiting = |index, attempt| Place::Waiting { given: given(index, attempt) };
        for (place, told, kept) in [
            (running(3, 1), true, false),
            (running(3, 2), false, false),
            (waiting(3, 2), false, false),
            (running(4, 1), false, true),
            (Place::Free, false, true),
        ] {
            let (mut runs, what) = (ahead(), format!("{place:?}"));
            let over = runs.over(&[Place::Free, place], task(3), 1, collected(1));
            assert_eq!(over.map(|(place, _)| place), told.then_some(1), "{what}");
            assert_eq!(runs.finished.get(&task(3)).map(|(attempt, _)| *attempt), kept.then_some(1), "{what}");
            assert!(!runs.collecting.contains_key(&task(3)), "{what}");
        }
        let mut runs = ahead();
        assert!(runs.over(&[], task(20), 1, collected(1)).is_none());
        assert!(runs.over(&[], task(5), 1, Collected::not_started()).is_none());
        assert_eq!(runs.finished.len(), 1, "neither what is not held nor what did not run");
        runs.collecting.insert(task(3), 2);
        assert!(runs.over(&[], task(3), 1, collected(1)).is_none());
        assert_eq!(runs.collecting[&task(3)], 2, "the other one is still to come");
    }

    #[test]
    fn what_is_not_held_any_more_is_not_ahead() {
        for (held, gone, rest) in [
            (Some(0..10), 0..0, 2),
            (Some(0..3), 3..10, 0),
            (Some(0..4), 4..10, 1),
            // As many come as go.
            (Some(4..14), 0..4, 1),
            (Some(0..9), 9..10, 2),
            (None, 0..10, 0),
        ] {
            let mut runs = ahead();
            let after = held.clone().map(IntervalSet::from);
            assert_eq!(runs.note_held(BAG, after.as_ref()), IntervalSet::from(gone), "{held:?}");
            assert_eq!(runs.collecting.len() + runs.finished.len(), rest, "{held:?}");
            assert_eq!(runs.kits.contains_key(&BAG), held.is_some());
        }
        // A single one of them.
        for index in [3, 4] {
            let mut runs = ahead();
            let held = IntervalSet::from(0..10).difference(&IntervalSet::from(index..index + 1));
            assert_eq!(runs.note_held(BAG, Some(&held)), IntervalSet::from(index..index + 1));
            assert_eq!(runs.collecting.len() + runs.finished.len(), 1, "{index}");
        }
    }

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
