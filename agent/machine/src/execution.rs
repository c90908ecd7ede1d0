//! What the workers of this machine run, and what they are given ahead.
//!
//! The peer starts, stops, freezes and thaws tasks at *places*. Each worker, or slot, has a *run* of jobs, one after the other. The
//! first jobs of a run are tasks that the peer has started (*claimed*); those behind them are *ahead* ([`ahead`]). A task that the
//! peer starts is claimed where it is ahead; else what it needs is prepared, and the worker with the fewest claimed jobs gets it.
//!
//! Only a worker knows whether a job has begun. So whoever wants a job back asks the worker for all that it has not begun
//! ([`WorkOrder::TakeBack`]), and what is to become of each job is decided when the answer comes ([`WorkEvent::TakenBack`]): the
//! place remembers that its task is to stop or to freeze, the run ([`run::Recall`]) that what is not claimed is unwanted. Until then
//! the worker is given nothing and is not asked again; jobs for it wait.
//!
//! The driver keeps what is large, by [`JobId`]: what was prepared, what a task wrote. Each job that it hears of is forgotten once
//! ([`WorkOrder::Forget`]).

mod ahead;
mod invariants;
mod kit;
mod live;
mod memory;
mod run;
mod started;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagHeader, BagId, Checkpoint, Config, TaskId, TaskOutcome};

use self::kit::{Early, Kit};
use self::run::{Job, Recall, Run};
use self::started::{Stage, Started};
use crate::effect::Effect;
use crate::work::{JobId, WorkEvent, WorkOrder};

pub use self::kit::JOBS_MAX;
pub use self::live::RunningJob;
pub use self::memory::RETRY_AFTER;

/// A task that the peer has started and that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) job: JobId,
    pub(crate) task: TaskId,
    pub(crate) outcome: TaskOutcome,
}

/// What the workers of this machine have.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Tasks that may run at the same time.
    slots: usize,
    /// What the peer has started, by place.
    places: Vec<Option<Started>>,
    /// By worker.
    runs: Vec<Run>,
    /// Bags of which tasks can be given ahead.
    kits: BTreeMap<BagId, Kit>,
    /// Tasks that are not over here, as the peer's records say, of bags without a kit.
    held: BTreeMap<BagId, IntervalSet>,
    /// Tasks that have ended before the peer has started them.
    early: BTreeMap<TaskId, Early>,
    /// Tasks of whose end the peer is to hear.
    ended: VecDeque<Ended>,
    /// Since when all workers stand still.
    frozen_since: Option<Time>,
    /// Whether tasks may begin that the peer has not started.
    takes_work: bool,
    memory_max_bytes: u64,
    /// The owner has lowered the limit below what the workers have, and jobs are ending for that: a worker that has a large one now may not
    /// have another.
    memory_exceeded: bool,
    /// Number of the last job.
    jobs: u64,
    /// Debug builds check the invariants after so many events more.
    unchecked: usize,
}

impl Execution {
    /// As many tasks at once, and as many workers, as the peer's settings say; without a limit of memory until one is told.
    pub(crate) fn new(config: &Config) -> Self {
        let places = config.places() as usize;
        Self {
            slots: config.slots as usize,
            places: (0..places).map(|_| None).collect(),
            runs: (0..places).map(|_| Run::default()).collect(),
            kits: BTreeMap::new(),
            held: BTreeMap::new(),
            early: BTreeMap::new(),
            ended: VecDeque::new(),
            frozen_since: None,
            takes_work: true,
            memory_max_bytes: u64::MAX,
            memory_exceeded: false,
            jobs: 0,
            unchecked: 0,
        }
    }

    /// Whether the peer has started a task that is not over.
    pub(crate) fn is_busy(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// Whether the owner has all tasks stand still.
    pub(crate) fn stands_still(&self) -> bool {
        self.frozen_since.is_some()
    }

    /// The next task that is over and of which the peer is to hear. Its job is to be forgotten when the peer has heard.
    pub(crate) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    // ---- what the peer orders ----

    /// The peer starts a task at a place.
    pub(crate) fn start(
        &mut self,
        place: usize,
        task: TaskId,
        attempt: u32,
        bag: BagHeader,
        checkpoint: Option<Checkpoint>,
        effects: &mut Vec<Effect>,
    ) {
        debug_assert!(self.places[place].is_none(), "{task:?} starts at place {place}, which is taken");
        if self.claim(place, task, attempt, effects) {
            return;
        }
        if checkpoint.is_none() {
            self.note_start(task, attempt);
        }
        let job = self.next_job();
        self.places[place] = Some(Started::new(job, task, attempt, Stage::Preparing));
        effects.push(WorkOrder::Prepare { job, task, attempt, bag, checkpoint }.into());
    }

    /// Claims the job or the early result of a task that the peer starts. False: there is none of this attempt.
    fn claim(&mut self, place: usize, task: TaskId, attempt: u32, effects: &mut Vec<Effect>) -> bool {
        if let Some(early) = self.early.remove(&task) {
            if early.attempt == attempt {
                self.places[place] = Some(Started::new(early.job, task, attempt, Stage::Keeping));
                if let Some(outcome) = early.outcome {
                    self.end(place, outcome);
                }
                return true;
            }
            early.forget(effects);
        }
        for run in &mut self.runs {
            let Some(job) = run.jobs.iter_mut().find(|job| job.task == task) else { continue };
            if job.attempt == attempt {
                debug_assert_eq!(job.place, None, "{task:?} is started twice");
                job.place = Some(place);
                let started = Started::new(job.id, task, attempt, Stage::Given);
                self.places[place] = Some(Started { memory_bytes: job.memory_bytes, ..started });
                return true;
            }
            // Another attempt must not be taken for this one.
            run.recall(Recall::UNCLAIMED);
        }
        false
    }

    /// The peer stops a task.
    pub(crate) fn stop(&mut self, place: usize, task: TaskId) {
        let Some(started) = self.places[place].as_mut().filter(|started| started.task == task) else { return };
        started.stopping = true;
        match started.stage {
            Stage::Preparing | Stage::Ready => self.end(place, TaskOutcome::Stopped),
            Stage::Given => {
                if self.take_or_recall(place) {
                    self.end(place, TaskOutcome::Stopped);
                }
            }
            // Its end comes as an event.
            Stage::Keeping => {}
        }
    }

    /// Freezes a task in favour of another bag: it keeps its worker if it has begun; else it does not begin.
    pub(crate) fn freeze(&mut self, place: usize, task: TaskId) {
        let Some(started) = self.places[place].as_mut().filter(|started| started.task == task) else { return };
        started.frozen = true;
        if started.stage == Stage::Given && self.take_or_recall(place) {
            self.set_stage(place, Stage::Ready);
        }
    }

    /// A task that was frozen goes on. Where a worker has it, [`Execution::settle`] thaws that.
    pub(crate) fn thaw(&mut self, place: usize, task: TaskId) {
        let Some(started) = self.places[place].as_mut().filter(|started| started.task == task) else { return };
        started.frozen = false;
        if started.stage == Stage::Ready {
            self.assign(place);
        }
    }

    /// Takes the job of this place out of those that wait; where a worker has it, asks the worker for what has not begun. Whether it
    /// waited.
    fn take_or_recall(&mut self, place: usize) -> bool {
        for run in &mut self.runs {
            if let Some(at) = run.waiting.iter().position(|job| job.place == Some(place)) {
                run.waiting.remove(at);
                return true;
            }
            if run.jobs.iter().any(|job| job.place == Some(place)) {
                run.recall(Recall::default());
            }
        }
        false
    }

    fn set_stage(&mut self, place: usize, stage: Stage) {
        if let Some(started) = &mut self.places[place] {
            started.stage = stage;
        }
    }

    /// The task at this place is over.
    fn end(&mut self, place: usize, outcome: TaskOutcome) {
        if let Some(Started { job, task, .. }) = self.places[place].take() {
            self.ended.push_back(Ended { job, task, outcome });
        }
    }

    fn next_job(&mut self) -> JobId {
        self.jobs += 1;
        JobId(self.jobs)
    }

    // ---- what happens to workers and what they run ----

    /// Takes an event. [`Execution::settle`] must follow when the peer has heard which tasks have ended.
    pub(crate) fn handle(&mut self, now: Time, event: WorkEvent, effects: &mut Vec<Effect>) {
        match event {
            WorkEvent::Prepared { job, memory_bytes, is_example } => {
                self.prepared(job, memory_bytes, is_example, effects);
            }
            WorkEvent::Ended { slot, job, wall, outcome } => self.job_ended(now, slot, job, wall, outcome, effects),
            WorkEvent::Over { job, task, outcome } => self.over(job, task, outcome, effects),
            WorkEvent::TakenBack { slot, jobs } => self.taken_back(slot, jobs, effects),
            WorkEvent::MemoryMax(bytes) => self.set_memory_max(bytes),
        }
    }

    fn prepared(&mut self, job: JobId, memory_bytes: u64, is_example: bool, effects: &mut Vec<Effect>) {
        // Stopped the moment it was ready, it is forgotten already.
        let Some(place) = self.place_of(job) else { return };
        let Some(started) = self.places[place].as_mut().filter(|started| started.stage == Stage::Preparing) else {
            return;
        };
        started.memory_bytes = memory_bytes;
        started.stage = Stage::Ready;
        let (task, attempt, frozen) = (started.task, started.attempt, started.frozen);
        if is_example && self.learn(task, attempt, memory_bytes) {
            effects.push(WorkOrder::KeepExample { bag: task.bag, job }.into());
        }
        if !frozen {
            self.assign(place);
        }
    }

    fn place_of(&self, job: JobId) -> Option<usize> {
        self.places.iter().position(|place| place.as_ref().is_some_and(|started| started.job == job))
    }

    /// Chooses a worker for a task that is ready: one with the fewest that the peer has started, its own before others.
    fn assign(&mut self, place: usize) {
        let Some(started) = &mut self.places[place] else { return };
        started.stage = Stage::Given;
        let job = Job::of(started, place);
        let free = (0..self.runs.len()).filter(|&slot| self.runs[slot].frozen.is_none());
        let slot = free.min_by_key(|&slot| (self.runs[slot].claimed(), slot != place)).unwrap_or(place);
        self.runs[slot].waiting.push_back(job);
    }

    fn job_ended(
        &mut self,
        now: Time,
        slot: usize,
        job: JobId,
        wall: Option<Duration>,
        outcome: Option<TaskOutcome>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(job) = self.runs.get_mut(slot).and_then(|run| run.take(job, now)) else { return };
        let run = &mut self.runs[slot];
        if run.frozen == Some(job.id) {
            run.frozen = None;
            effects.push(WorkOrder::Thaw { slot }.into());
        }
        if let Some(wall) = wall {
            run.refill = Some(job.task.bag);
            self.note_span(job.task.bag, wall);
        }
        match (job.place, outcome) {
            (Some(place), Some(outcome)) => self.end(place, outcome),
            (Some(place), None) => self.set_stage(place, Stage::Keeping),
            (None, outcome) => self.ended_early(&job, outcome, effects),
        }
    }

    /// What came of a job: the peer hears of it if it has started the task, and else when it does.
    fn over(&mut self, job: JobId, task: TaskId, outcome: TaskOutcome, effects: &mut Vec<Effect>) {
        match self.place_of(job) {
            Some(place) => self.end(place, outcome),
            None => self.kept_early(job, task, outcome, effects),
        }
    }

    /// A worker has given back the jobs it had not begun: claimed ones are given anew, unless their tasks are to stop or are frozen.
    /// The job that it has begun is stopped or frozen if that was asked.
    fn taken_back(&mut self, slot: usize, mut ids: Vec<JobId>, effects: &mut Vec<Effect>) {
        let Some(run) = self.runs.get_mut(slot) else { return };
        let Some(recall) = run.recall.take_if(|recall| recall.asked) else { return };
        ids.sort_unstable();
        let (back, begun): (VecDeque<Job>, VecDeque<Job>) =
            run.jobs.drain(..).partition(|job| ids.binary_search(&job.id).is_ok());
        run.jobs = begun;
        let waiting = std::mem::take(&mut run.waiting);
        self.settle_begun(slot, recall, effects);
        for job in back {
            match job.place {
                Some(place) if recall.ends_all => self.end(place, TaskOutcome::Stopped),
                Some(place) => self.give_anew(place),
                None => {
                    self.not_ahead(job.task);
                    effects.push(WorkOrder::Forget { job: job.id }.into());
                }
            }
        }
        waiting.into_iter().filter_map(|job| job.place).for_each(|place| self.give_anew(place));
    }

    /// A claimed job that no worker has begun goes where it is wanted.
    fn give_anew(&mut self, place: usize) {
        match &mut self.places[place] {
            Some(started) if started.stopping => self.end(place, TaskOutcome::Stopped),
            Some(started) if started.frozen => started.stage = Stage::Ready,
            Some(_) => self.assign(place),
            None => {}
        }
    }

    /// Stops or freezes the job that a worker runs, if that was asked: the last one it has begun. The ends of earlier jobs are on
    /// their way.
    fn settle_begun(&mut self, slot: usize, recall: Recall, effects: &mut Vec<Effect>) {
        let run = &mut self.runs[slot];
        for job in run.jobs.iter_mut().filter(|job| job.place.is_none()) {
            // An earlier one as well: it has ended, so that asking the worker again would change nothing.
            job.condemned |= recall.stops_unclaimed;
        }
        let Some(last) = run.jobs.back_mut() else { return };
        let started = last.place.and_then(|place| self.places[place].as_ref());
        let stops = last.condemned || recall.ends_all || started.is_some_and(|started| started.stopping);
        if stops {
            effects.push(WorkOrder::Stop { slot }.into());
        } else if started.is_some_and(|started| started.frozen) && run.frozen.is_none() {
            run.frozen = Some(last.id);
            effects.push(WorkOrder::Freeze { slot }.into());
        }
    }

    pub(crate) fn allow(&mut self, now: Time, stands_still: bool, takes_work: bool, effects: &mut Vec<Effect>) {
        if stands_still && self.frozen_since.is_none() {
            self.frozen_since = Some(now);
            effects.push(WorkOrder::FreezeAll.into());
        }
        if let Some(since) = self.frozen_since.take_if(|_| !stands_still) {
            // Meanwhile no task has been slow.
            self.runs.iter_mut().for_each(|run| run.moved += now.since(since.max(run.moved)));
            effects.push(WorkOrder::ThawAll.into());
        }
        self.takes_work = takes_work;
        if !takes_work && !stands_still {
            self.keep_to_claimed();
        }
    }

    /// Takes everything from the workers that the peer has not started.
    fn keep_to_claimed(&mut self) {
        self.runs.iter_mut().filter(|run| run.has_unclaimed()).for_each(|run| run.recall(Recall::UNCLAIMED));
    }

    // ---- what follows ----

    /// Orders what follows from all that has changed. Whether a task could not begin, so that the peer is to hear of its end.
    pub(crate) fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) -> bool {
        for slot in 0..self.runs.len() {
            self.thaw_run(slot, now, effects);
            self.give_waiting(slot, now, effects);
        }
        self.keep_to_slots();
        for (slot, run) in self.runs.iter_mut().enumerate() {
            if let Some(recall) = run.recall.as_mut().filter(|recall| !recall.asked) {
                recall.asked = true;
                effects.push(WorkOrder::TakeBack { slot }.into());
            }
        }
        for slot in 0..self.runs.len() {
            self.refill(slot, now, effects);
        }
        !self.ended.is_empty()
    }

    /// Whether the peer has thawed the job that is frozen in this run.
    fn is_thawing(&self, run: &Run) -> bool {
        let frozen = run.frozen.and_then(|frozen| run.jobs.iter().find(|job| job.id == frozen)?.place);
        frozen.and_then(|place| self.places[place].as_ref()).is_some_and(|started| !started.frozen)
    }

    /// Thaws a worker whose task the peer has thawed, once a slot is free: the task frozen in its favour may still run.
    fn thaw_run(&mut self, slot: usize, now: Time, effects: &mut Vec<Effect>) {
        if self.is_thawing(&self.runs[slot]) && self.running() < self.slots {
            let run = &mut self.runs[slot];
            run.frozen = None;
            run.moved = now;
            effects.push(WorkOrder::Thaw { slot }.into());
        }
    }

    /// Gives a worker the claimed jobs that wait for it, once it has nothing ahead, and there are a slot and memory for them.
    fn give_waiting(&mut self, slot: usize, now: Time, effects: &mut Vec<Effect>) {
        while self.runs[slot].recall.is_none()
            && let Some(first) = self.runs[slot].waiting.front()
        {
            let (place, bytes) = (first.place, first.memory_bytes);
            if !self.runs[slot].is_running() && self.running() >= self.slots {
                // Another is to stand still, or to give way.
                return;
            }
            if self.runs[slot].has_unclaimed() {
                self.runs[slot].recall(Recall::UNCLAIMED);
            } else if self.fits(slot, bytes) {
                if let Some(job) = self.runs[slot].waiting.pop_front() {
                    self.give(slot, job, now, effects);
                }
            } else if self.fits_without_ahead(slot, bytes) {
                // What is ahead gives way, and the job waits for that.
                self.keep_to_claimed();
                return;
            } else {
                self.runs[slot].waiting.pop_front();
                if let Some(place) = place {
                    self.no_memory(slot, place, effects);
                }
            }
        }
    }

    fn give(&mut self, slot: usize, job: Job, now: Time, effects: &mut Vec<Effect>) {
        let run = &mut self.runs[slot];
        if run.jobs.is_empty() {
            run.moved = now;
        }
        run.refill = Some(job.task.bag);
        let Job { id, task, attempt, .. } = job;
        run.jobs.push_back(job);
        effects.push(WorkOrder::Give { slot, job: id, task, attempt }.into());
    }

    /// Workers that run.
    fn running(&self) -> usize {
        self.runs.iter().filter(|run| run.is_running()).count()
    }

    /// Whether more workers run, or are to, than there are slots, with so many more.
    fn exceeds_slots(&self, more: usize) -> bool {
        let is_to = |run: &&Run| run.is_running() || !run.waiting.is_empty() || self.is_thawing(run);
        self.runs.iter().filter(is_to).count() + more > self.slots
    }

    /// The peer counts slots without jobs that are ahead. If more workers run than there are slots, those without a claimed job give
    /// theirs back.
    fn keep_to_slots(&mut self) {
        if self.exceeds_slots(0) {
            let has_none = |run: &&mut Run| run.is_running() && run.claimed() == 0;
            self.runs.iter_mut().filter(has_none).for_each(|run| run.recall(Recall::UNCLAIMED));
        }
    }
}
