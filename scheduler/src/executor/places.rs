//! Places: one for each worker, each with at most one task that has begun. At most as many tasks as there are slots are not
//! preempted.

use std::time::Duration;

use idlewood_overlay::Time;

use super::RunningTask;
use crate::bag::{BagId, BlobId, TaskId};
use crate::config::Config;

/// A task that has begun.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) began: Time,
    /// Time it had run at `since`.
    active: Duration,
    /// Work that it had done when the machine's speed last changed, in Mop, and the time that it had run then.
    counted: (f64, Duration),
    /// When it last began to run or thawed; `None` while frozen, by preemption or by the owner.
    since: Option<Time>,
    /// Frozen for a bag that comes ahead.
    pub(super) preempted: bool,
    /// Its worker has been told to stop.
    pub(super) stopping: bool,
}

impl Running {
    /// Time it has run until now.
    pub(super) fn active(&self, now: Time) -> Duration {
        self.active + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Work that it has done until now, in Mop, where slots have had this speed since it last changed, as the machine says.
    pub(super) fn done_mops(&self, speed_mops: f64, now: Time) -> f64 {
        let (mops, ran) = self.counted;
        mops + self.active(now).saturating_sub(ran).as_secs_f64() * speed_mops
    }

    /// Stops counting the time it runs.
    fn pause(&mut self, now: Time) {
        self.active = self.active(now);
        self.since = None;
    }

    /// The machine was asleep for so long until now: the task did not run.
    fn slept(&mut self, slept: Duration, now: Time) {
        self.since = self.since.map(|since| (since + slept).min(now));
    }

    /// Whether it takes a slot and will run to its end.
    pub(super) fn runs(&self) -> bool {
        !self.preempted && !self.stopping
    }

    /// Whether it is frozen, by preemption or by the owner.
    pub(super) fn is_frozen(&self) -> bool {
        self.since.is_none()
    }
}

/// Tasks that have begun, by worker.
#[derive(Debug)]
pub(super) struct Places {
    places: Vec<Option<Running>>,
    /// What each worker ran last.
    programs: Vec<Option<BlobId>>,
    slots: usize,
    /// Most preempted tasks; 0 without preemption.
    frozen_max: usize,
}

impl Places {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            places: (0..config.places()).map(|_| None).collect(),
            programs: vec![None; config.places() as usize],
            slots: config.slots as usize,
            frozen_max: config.frozen_places() as usize,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Most preempted tasks; 0 without preemption.
    pub(super) fn frozen_max(&self) -> usize {
        self.frozen_max
    }

    /// All tasks that have begun, also those whose workers were told to stop.
    pub(super) fn begun(&self) -> impl Iterator<Item = &Running> {
        self.places.iter().flatten()
    }

    /// The machine was asleep for so long until now.
    pub(super) fn slept(&mut self, slept: Duration, now: Time) {
        self.places.iter_mut().flatten().for_each(|running| running.slept(slept, now));
    }

    /// The begun tasks of a bag, without those whose workers were told to stop.
    pub(super) fn of(&self, bag: BagId) -> impl Iterator<Item = &Running> {
        self.begun().filter(move |running| running.task.bag == bag && !running.stopping)
    }

    pub(super) fn get(&self, place: usize) -> Option<&Running> {
        self.places.get(place)?.as_ref()
    }

    /// Slots without such a task.
    pub(super) fn slots_without(&self, is_such: impl Fn(&Running) -> bool) -> usize {
        self.slots.saturating_sub(self.begun().filter(|running| is_such(running)).count())
    }

    /// Whether one more task may run.
    pub(super) fn has_slot(&self) -> bool {
        self.begun().filter(|running| !running.preempted).count() < self.slots
    }

    /// A free place for a task to begin, beyond so many that are kept; none where that would preempt more tasks than allowed.
    pub(super) fn free(&self, kept: usize) -> Option<usize> {
        let may_freeze = || self.begun().filter(|running| running.preempted).count() < self.frozen_max;
        let empty = self.places.iter().filter(|place| place.is_none()).count();
        let is_allowed = empty > kept && (self.has_slot() || may_freeze());
        self.places.iter().position(Option::is_none).filter(|_| is_allowed)
    }

    /// Number of tasks that [run](Running::runs).
    pub(super) fn running(&self) -> usize {
        self.begun().filter(|running| running.runs()).count()
    }

    /// Preempted tasks with their places, without those whose workers were told to stop.
    pub(super) fn preempted(&self) -> impl Iterator<Item = (usize, &Running)> {
        let places = self.places.iter().enumerate().filter_map(|(place, running)| Some((place, running.as_ref()?)));
        places.filter(|(_, running)| running.preempted && !running.stopping)
    }

    /// The last place of a running task of this bag.
    pub(super) fn last_that_runs(&self, bag: BagId) -> Option<usize> {
        let runs = |running: &Running| running.runs() && running.task.bag == bag;
        self.places.iter().rposition(|place| place.as_ref().is_some_and(runs))
    }

    /// A task begins at a free place.
    pub(super) fn begin(&mut self, place: usize, task: TaskId, attempt: u32, now: Time) {
        let (active, since, counted) = (Duration::ZERO, Some(now), (0.0, Duration::ZERO));
        self.places[place] =
            Some(Running { task, attempt, began: now, active, counted, since, preempted: false, stopping: false });
    }

    /// Preempts the task at this place.
    pub(super) fn freeze(&mut self, place: usize, now: Time) -> Option<TaskId> {
        let running = self.places[place].as_mut()?;
        running.pause(now);
        running.preempted = true;
        Some(running.task)
    }

    /// The task at this place goes on.
    pub(super) fn thaw(&mut self, place: usize, now: Time) -> Option<TaskId> {
        let running = self.places[place].as_mut()?;
        running.preempted = false;
        running.since = Some(now);
        Some(running.task)
    }

    /// Marks unwanted tasks as stopping; returns their places and ids, for [`crate::Effect::StopTask`].
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

    /// A task has ended: its place is free again. `program`: what its worker ran; none where it did not start. Returns the task, and whether
    /// its worker had run another program before.
    pub(super) fn end(&mut self, task: TaskId, program: Option<BlobId>) -> Option<(Running, bool)> {
        let is_it = |place: &Option<Running>| place.as_ref().is_some_and(|running| running.task == task);
        let place = self.places.iter().position(is_it)?;
        let running = self.places[place].take()?;
        let before = self.programs[place];
        self.programs[place] = program.or(before);
        Some((running, program != before))
    }

    /// The owner is back: all tasks are frozen.
    pub(super) fn freeze_all(&mut self, now: Time) {
        self.places.iter_mut().flatten().for_each(|running| running.pause(now));
    }

    /// All tasks go on, but for the preempted ones.
    pub(super) fn thaw_all(&mut self, now: Time) {
        for running in self.places.iter_mut().flatten().filter(|running| !running.preempted) {
            running.since = Some(now);
        }
    }

    /// Slots had this speed until now.
    pub(super) fn count_work(&mut self, speed_mops: f64, now: Time) {
        for running in self.places.iter_mut().flatten() {
            running.counted = (running.done_mops(speed_mops, now), running.active(now));
        }
    }

    /// The begun tasks, for the peer's view.
    pub(super) fn views(&self, now: Time) -> Vec<RunningTask> {
        let tasks = self.places.iter().enumerate().filter_map(|(place, running)| {
            let running = running.as_ref()?;
            Some(RunningTask {
                place: place as u32,
                task: running.task,
                attempt: running.attempt,
                active: running.active(now),
                frozen: running.is_frozen(),
                preempted: running.preempted,
            })
        });
        tasks.collect()
    }
}
