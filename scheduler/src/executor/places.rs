//! Where tasks have begun: a place for each worker. Those that are not frozen for others are at most as many as there are slots.

use std::time::Duration;

use idlewood_overlay::Time;

use super::RunningTask;
use crate::bag::{BagId, TaskId};
use crate::config::Config;

/// A task that has begun.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) began: Time,
    /// Time it has run, without what is counted from `since`.
    active: Duration,
    /// When it last began to run; `None` while frozen, for others or by the owner.
    since: Option<Time>,
    /// Frozen for a bag that comes ahead.
    pub(super) frozen: bool,
    /// Its worker has been told to stop.
    pub(super) stopping: bool,
}

impl Running {
    /// Time it has run.
    pub(super) fn active(&self, now: Time) -> Duration {
        self.active + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Stops the clock.
    fn pause(&mut self, now: Time) {
        self.active = self.active(now);
        self.since = None;
    }

    /// Whether it takes a slot and goes on to the end.
    pub(super) fn runs(&self) -> bool {
        !self.frozen && !self.stopping
    }

    /// Whether it is frozen, for others or by the owner.
    pub(super) fn stands_still(&self) -> bool {
        self.since.is_none()
    }
}

/// Tasks that have begun, by worker.
#[derive(Debug)]
pub(super) struct Places {
    places: Vec<Option<Running>>,
    slots: usize,
    /// Most tasks frozen for others; 0 without preemption.
    frozen_max: usize,
}

impl Places {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            places: (0..config.places()).map(|_| None).collect(),
            slots: config.slots as usize,
            frozen_max: config.frozen_places() as usize,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Most tasks frozen for others; 0 without preemption.
    pub(super) fn frozen_max(&self) -> usize {
        self.frozen_max
    }

    /// All tasks that have begun, those whose workers are to stop, too.
    pub(super) fn begun(&self) -> impl Iterator<Item = &Running> {
        self.places.iter().flatten()
    }

    /// Those of a bag that go on.
    pub(super) fn of(&self, bag: BagId) -> impl Iterator<Item = &Running> {
        self.begun().filter(move |running| running.task.bag == bag && !running.stopping)
    }

    pub(super) fn get(&self, place: usize) -> Option<&Running> {
        self.places.get(place)?.as_ref()
    }

    /// Slots at which nothing has begun.
    pub(super) fn idle_slots(&self) -> usize {
        self.slots.saturating_sub(self.begun().count())
    }

    /// Whether one more task may run.
    pub(super) fn has_slot(&self) -> bool {
        self.begun().filter(|running| !running.frozen).count() < self.slots
    }

    /// A place for a task that begins; none where that would freeze more tasks than may be.
    pub(super) fn free(&self) -> Option<usize> {
        let may_freeze = || self.begun().filter(|running| running.frozen).count() < self.frozen_max;
        self.places.iter().position(Option::is_none).filter(|_| self.has_slot() || may_freeze())
    }

    /// How many tasks run to their end.
    pub(super) fn running(&self) -> usize {
        self.begun().filter(|running| running.runs()).count()
    }

    /// Those that are frozen for others and go on some time, by place.
    pub(super) fn frozen(&self) -> impl Iterator<Item = (usize, &Running)> {
        let places = self.places.iter().enumerate().filter_map(|(place, running)| Some((place, running.as_ref()?)));
        places.filter(|(_, running)| running.frozen && !running.stopping)
    }

    /// The last place of a running task of this bag.
    pub(super) fn last_that_runs(&self, bag: BagId) -> Option<usize> {
        let runs = |running: &Running| running.runs() && running.task.bag == bag;
        self.places.iter().rposition(|place| place.as_ref().is_some_and(runs))
    }

    /// A task begins at a free place.
    pub(super) fn begin(&mut self, place: usize, task: TaskId, attempt: u32, now: Time) {
        let (active, since) = (Duration::ZERO, Some(now));
        self.places[place] = Some(Running { task, attempt, began: now, active, since, frozen: false, stopping: false });
    }

    /// The task at this place gives way to one that comes ahead.
    pub(super) fn freeze(&mut self, place: usize, now: Time) -> Option<TaskId> {
        let running = self.places[place].as_mut()?;
        running.pause(now);
        running.frozen = true;
        Some(running.task)
    }

    /// The task at this place goes on.
    pub(super) fn thaw(&mut self, place: usize, now: Time) -> Option<TaskId> {
        let running = self.places[place].as_mut()?;
        running.frozen = false;
        running.since = Some(now);
        Some(running.task)
    }

    /// Has those stop that go on and are unwanted: where they are, and which.
    pub(super) fn stop(&mut self, is_unwanted: impl Fn(&Running) -> bool) -> Vec<(u32, TaskId)> {
        let mut stopped = Vec::new();
        for (place, running) in self.places.iter_mut().enumerate() {
            if let Some(running) = running.as_mut().filter(|running| !running.stopping && is_unwanted(running)) {
                running.stopping = true;
                stopped.push((place as u32, running.task));
            }
        }
        stopped
    }

    /// The worker of a task is free again.
    pub(super) fn end(&mut self, task: TaskId) -> Option<Running> {
        let is_it = |place: &&mut Option<Running>| place.as_ref().is_some_and(|running| running.task == task);
        self.places.iter_mut().find(is_it).and_then(Option::take)
    }

    /// The owner is back: everything stands still.
    pub(super) fn stand_still(&mut self, now: Time) {
        self.places.iter_mut().flatten().for_each(|running| running.pause(now));
    }

    /// What stands still goes on, but for what is frozen for others.
    pub(super) fn go_on(&mut self, now: Time) {
        for running in self.places.iter_mut().flatten().filter(|running| !running.frozen) {
            running.since = Some(now);
        }
    }

    /// For those who ask.
    pub(super) fn views(&self, now: Time) -> Vec<RunningTask> {
        let tasks = self.places.iter().enumerate().filter_map(|(place, running)| {
            let running = running.as_ref()?;
            Some(RunningTask {
                place: place as u32,
                task: running.task,
                attempt: running.attempt,
                active: running.active(now),
                frozen: running.stands_still(),
                preempted: running.frozen,
            })
        });
        tasks.collect()
    }
}
