//! Random orders of a model peer, which starts, stops, freezes and thaws by its contract, and late answers of model workers. Each task
//! that the peer starts ends once, and in the end all tasks are done.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::workers::{BAGS, Workers};
use super::*;

const SLOTS: u32 = 2;
const TASKS: u64 = 12;
/// What the model peer has at a place.
#[derive(Clone, Copy, Debug)]
struct Placed {
    task: TaskId,
    attempt: u32,
    frozen: bool,
    /// It was told to stop; it waits again as this attempt then.
    stopping: Option<u32>,
}

#[derive(Debug)]
struct World {
    execution: Execution,
    now: Time,
    // The peer.
    places: Vec<Option<Placed>>,
    waiting: BTreeMap<TaskId, u32>,
    done: BTreeSet<TaskId>,
    workers: Workers,
    /// Workers answer at once what they have not begun, as those of the agent do.
    answers_at_once: bool,
}

impl World {
    fn new(answers_at_once: bool) -> Self {
        let execution = Execution::new(&config(SLOTS));
        let places = execution.places.len();
        let tasks = |(bag, _)| (0..TASKS).map(move |index| TaskId { bag, index });
        let mut world = Self {
            execution,
            now: Time::ZERO,
            places: vec![None; places],
            waiting: BAGS.into_iter().flat_map(tasks).map(|task| (task, 0)).collect(),
            done: BTreeSet::new(),
            workers: Workers::new(SLOTS, places),
            answers_at_once,
        };
        BAGS.iter().for_each(|(bag, _)| world.write_held(*bag));
        world
    }

    /// The peer writes down what it holds of a bag.
    fn write_held(&mut self, bag: BagId) {
        let running = self
            .places
            .iter()
            .flatten()
            .filter(|placed| placed.stopping.is_none_or(|next| next == placed.attempt))
            .map(|placed| placed.task);
        let held = self.waiting.keys().copied().chain(running).filter(|task| task.bag == bag);
        let held: BTreeSet<u64> = held.map(|task| task.index).collect();
        let held: IntervalSet = held.into_iter().map(|index| index..index + 1).collect();
        let mut effects = Vec::new();
        self.execution.note_held(bag, Some(&held).filter(|held| !held.is_empty()), &mut effects);
        self.carry_out(effects);
    }

    fn tell(&mut self, event: impl Into<Option<WorkEvent>>) {
        let Some(event) = event.into() else { return };
        let mut effects = Vec::new();
        self.execution.handle(self.now, event, &mut effects);
        self.carry_out(effects);
    }

    fn tell_of(&mut self, event: impl FnOnce(&mut Workers) -> Option<WorkEvent>) {
        let event = event(&mut self.workers);
        self.tell(event);
    }

    /// As the machine does after each event, and the driver where it answers at once.
    fn settle(&mut self) {
        self.settle_once();
        for answers in 0.. {
            let asked = (0..self.workers.len()).find(|&slot| self.answers_at_once && self.workers.is_asked(slot));
            let Some(slot) = asked else { return };
            assert!(answers < 1000, "workers are asked for ever: {self:#?}");
            self.tell_of(|workers| workers.answer(slot));
            self.settle_once();
        }
    }

    fn settle_once(&mut self) {
        loop {
            while let Some(Ended { job, task, outcome }) = self.execution.next_ended() {
                self.task_ended(task, outcome);
                self.carry_out(work([WorkOrder::Forget { job }]));
            }
            let mut effects = Vec::new();
            let goes_on = self.execution.settle(self.now, &mut effects);
            self.carry_out(effects);
            if !goes_on {
                break;
            }
        }
        self.execution.assert_consistent();
    }

    fn task_ended(&mut self, task: TaskId, outcome: TaskOutcome) {
        let place = self.places.iter().position(|placed| placed.is_some_and(|placed| placed.task == task));
        let placed = place.and_then(|place| self.places[place].take()).expect("it runs, and ends once");
        match (outcome, placed.stopping) {
            (TaskOutcome::Finished(finished), None) => {
                assert_eq!(finished.work_mops, f64::from(placed.attempt), "another attempt");
                assert!(self.done.insert(task), "it was done before");
            }
            (_, next) => assert_eq!(self.waiting.insert(task, next.unwrap_or(placed.attempt)), None),
        }
        self.write_held(task.bag);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let Effect::Work(order) = effect else { panic!("{effect:?}") };
            self.workers.carry_out(order);
        }
    }

    fn running(&self) -> usize {
        self.places.iter().flatten().filter(|placed| !placed.frozen).count()
    }

    fn start(&mut self, of_last: bool) {
        let bag = BAGS[usize::from(of_last)].0;
        let next = self.waiting.iter().find(|(task, _)| task.bag == bag).or_else(|| self.waiting.iter().next());
        let next = next.map(|(task, attempt)| (*task, *attempt));
        let free = self.places.iter().position(Option::is_none);
        if let (Some((task, attempt)), Some(place)) = (next, free)
            && self.running() < SLOTS as usize
            && !self.workers.stand_still
        {
            self.waiting.remove(&task);
            self.places[place] = Some(Placed { task, attempt, frozen: false, stopping: None });
            let mut effects = Vec::new();
            self.execution.start(place, task, attempt, header(task.bag), None, &mut effects);
            self.carry_out(effects);
        }
    }

    /// Stops a task, which the peer goes on to hold, or does not want any more and gets again as another attempt.
    fn stop(&mut self, place: usize, is_held: bool) {
        if let Some(placed) = self.places[place].as_mut().filter(|placed| placed.stopping.is_none()) {
            placed.stopping = Some(placed.attempt + u32::from(!is_held));
            let task = placed.task;
            self.execution.stop(place, task);
            self.write_held(task.bag);
        }
    }

    fn freeze(&mut self, place: usize) {
        let frozen = self.places.iter().flatten().filter(|placed| placed.frozen).count();
        if frozen >= self.places.len() - SLOTS as usize {
            return;
        }
        if let Some(placed) = self.places[place].as_mut().filter(|placed| placed.stopping.is_none() && !placed.frozen) {
            placed.frozen = true;
            self.execution.freeze(place, placed.task);
        }
    }

    fn thaw(&mut self, place: usize) {
        let has_slot = self.running() < SLOTS as usize && !self.workers.stand_still;
        if let Some(placed) =
            self.places[place].as_mut().filter(|placed| has_slot && placed.stopping.is_none() && placed.frozen)
        {
            placed.frozen = false;
            self.execution.thaw(place, placed.task);
        }
    }

    /// The peer does not hold a task that waits any more, and gets it back as another attempt.
    fn lose(&mut self, number: usize) {
        let lost = self.waiting.iter().nth(number).map(|(task, attempt)| (*task, *attempt));
        if let Some((task, attempt)) = lost {
            self.waiting.remove(&task);
            self.write_held(task.bag);
            self.settle();
            self.waiting.insert(task, attempt + 1);
            self.write_held(task.bag);
        }
    }

    fn allow(&mut self, stands_still: bool, takes_work: bool) {
        let mut effects = Vec::new();
        self.execution.allow(self.now, stands_still, takes_work, &mut effects);
        self.carry_out(effects);
    }

    fn limit_memory(&mut self, max: u64) {
        self.workers.memory_max = max;
        self.tell(WorkEvent::MemoryMax(max));
    }

    fn time_passes(&mut self) {
        self.now += Duration::from_millis(30);
        if self.execution.deadline().is_some_and(|at| at <= self.now) {
            self.execution.relieve(self.now);
            assert!(self.execution.deadline().is_none_or(|at| at > self.now), "it would be woken for ever");
        }
    }

    fn step(&mut self, what: u8, which: u8) {
        let (slot, odd) = (usize::from(which) % self.workers.len(), which >= 128);
        match what % 16 {
            0..=2 => self.start(odd),
            3 => self.stop(slot, odd),
            4 => self.freeze(slot),
            5 => self.thaw(slot),
            6 | 7 => self.tell_of(|workers| workers.answer(slot)),
            8 => self.tell_of(Workers::prepare_one),
            9 if odd => self.tell_of(Workers::cannot_run),
            9 => self.tell_of(|workers| workers.refuse(slot)),
            10 => self.workers.runs_to_its_end(slot, odd),
            11 | 12 => self.tell_of(|workers| workers.hear_of_an_end(slot)),
            13 => self.tell_of(Workers::keep_one),
            14 => self.time_passes(),
            _ => match which % 8 {
                0 => self.lose(usize::from(which) / 8),
                1 => self.allow(true, false),
                2 => self.allow(false, false),
                3..=5 => self.allow(false, true),
                6 => self.limit_memory(if odd { 30 } else { 45 }),
                _ => self.limit_memory(u64::MAX),
            },
        }
        self.settle();
    }

    /// Everybody does what they can until nothing is left to do.
    fn finish(&mut self) {
        self.allow(false, true);
        self.limit_memory(u64::MAX);
        let mut rounds = 2000;
        while rounds > 0 && ((self.done.len() as u64) < 2 * TASKS || !self.workers.known.is_empty()) {
            rounds -= 1;
            for slot in 0..self.workers.len() {
                self.thaw(slot);
                self.start(false);
                self.settle();
                self.tell_of(|workers| workers.answer(slot));
                self.tell_of(Workers::prepare_one);
                self.workers.runs_to_its_end(slot, true);
                self.tell_of(|workers| workers.hear_of_an_end(slot));
                self.tell_of(Workers::keep_one);
                self.settle();
            }
        }
        assert_eq!(self.done.len() as u64, 2 * TASKS, "{self:#?}");
        assert!(self.workers.known.is_empty() && self.workers.examples.is_empty(), "{self:#?}");
        assert!(!self.execution.is_busy() && self.execution.held.is_empty(), "{self:#?}");
    }
}

proptest! {
    #[test]
    fn each_task_that_is_started_ends_once(
        steps in prop::collection::vec(any::<(u8, u8)>(), 1..400),
        answers_at_once in any::<bool>(),
    ) {
        let mut world = World::new(answers_at_once);
        world.settle();
        steps.into_iter().for_each(|(what, which)| world.step(what, which));
        world.finish();
    }
}
