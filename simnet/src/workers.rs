//! The workers of a simulated machine: the jobs that each was given, one after the other, and how long the first still takes.
//!
//! A worker begins a job when the jobs before it have ended, unless the worker is frozen. It never gives back a job that has begun.

mod starts;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_machine::JobId;
use idlewood_overlay::Time;
use idlewood_scheduler::TaskId;

pub(crate) use starts::Starts;

/// A job that a worker was given.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) task: TaskId,
    pub(crate) work_mops: f64,
    /// How long it takes from its beginning, and from here.
    takes: Duration,
    left: Duration,
    /// How long it has run on this worker.
    pub(crate) ran: Duration,
    begun: bool,
    /// When it last began to run; `None`: it waits, or is frozen.
    since: Option<Time>,
    /// Which of the scheduled ends is its own.
    serial: u64,
}

impl Job {
    pub(crate) fn new(id: JobId, task: TaskId, work_mops: f64, speed_mops: f64) -> Self {
        let takes = Duration::from_micros(((work_mops / speed_mops * 1e6).round() as u64).max(1));
        let (left, ran, begun, since, serial) = (takes, Duration::ZERO, false, None, 0);
        Self { id, task, work_mops, takes, left, ran, begun, since, serial }
    }

    /// The same job, whose worker has to start its program first.
    pub(crate) fn after(mut self, start: Duration) -> Self {
        self.takes += start;
        self.left += start;
        self
    }

    /// Stops its clock; returns how long it ran since it last began to.
    fn pause(&mut self, now: Time) -> Duration {
        let ran = self.since.take().map_or(Duration::ZERO, |since| now.since(since));
        self.ran += ran;
        self.left = self.left.saturating_sub(ran);
        ran
    }
}

#[derive(Clone, Debug, Default)]
struct Worker {
    jobs: VecDeque<Job>,
    /// Alone, for a bag that comes ahead.
    frozen: bool,
    /// The job that is being killed: none begins before it has ended.
    killed: Option<Job>,
}

/// A job goes on: when and under which serial it ends, unless it is frozen or killed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Going {
    pub(crate) slot: usize,
    pub(crate) end: Time,
    pub(crate) serial: u64,
    /// The task, where it has just begun.
    pub(crate) began: Option<TaskId>,
}

/// All workers of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Most that run at the same time.
    slots: u32,
    /// All are frozen by the machine, and by the lid.
    stand_still: bool,
    are_shut: bool,
    serial: u64,
    /// The summed run time of all jobs, without the present run of those that run now.
    ran: Duration,
    /// How long tasks that were interrupted still take from their last checkpoint on.
    checkpoints: BTreeMap<TaskId, Duration>,
    checkpoint_interval: Option<Duration>,
}

impl Workers {
    pub(crate) fn new(slots: u32, places: u32, checkpoint_interval: Option<Duration>) -> Self {
        Self {
            workers: vec![Worker::default(); places as usize],
            slots,
            stand_still: false,
            are_shut: false,
            serial: 0,
            ran: Duration::ZERO,
            checkpoints: BTreeMap::new(),
            checkpoint_interval,
        }
    }

    /// Lets the first job of a worker go on or stand still, as it is to now.
    fn settle(&mut self, slot: usize, now: Time) -> Option<Going> {
        let worker = &mut self.workers[slot];
        let goes = !self.stand_still && !self.are_shut && !worker.frozen && worker.killed.is_none();
        let job = worker.jobs.front_mut()?;
        if !goes {
            self.ran += job.pause(now);
            job.serial = 0;
            return None;
        }
        if job.since.is_some() {
            return None;
        }
        let began = (!job.begun).then_some(job.task);
        if began.is_some() {
            job.begun = true;
            job.left = self.checkpoints.remove(&job.task).unwrap_or(job.left);
        }
        self.serial += 1;
        (job.since, job.serial) = (Some(now), self.serial);
        let going = Going { slot, end: now + job.left.max(Duration::from_micros(1)), serial: job.serial, began };
        let running = self.workers.iter().filter(|worker| worker.jobs.front().is_some_and(|job| job.since.is_some()));
        let running = running.count();
        assert!(running <= self.slots as usize, "{running} tasks run on {} slots", self.slots);
        Some(going)
    }

    fn settle_all(&mut self, now: Time) -> Vec<Going> {
        (0..self.workers.len()).filter_map(|slot| self.settle(slot, now)).collect()
    }

    /// How long jobs have run by now, the sum over all, also in earlier lives of the machine.
    pub(crate) fn ran(&self, now: Time) -> Duration {
        let running = self.workers.iter().filter_map(|worker| worker.jobs.front()?.since);
        self.ran + running.map(|since| now.since(since)).sum::<Duration>()
    }

    /// Gives a worker one job more.
    ///
    /// # Panics
    /// When another has the task already, or more would run than there are slots: the machine broke its promise.
    pub(crate) fn give(&mut self, slot: usize, job: Job, now: Time) -> Option<Going> {
        let other = self.workers.iter().flat_map(|worker| &worker.jobs).find(|other| other.task == job.task);
        assert!(other.is_none(), "a worker is given {:?}, and has {other:?}", job.task);
        self.workers[slot].jobs.push_back(job);
        self.settle(slot, now)
    }

    /// Takes back the jobs that a worker has not begun.
    pub(crate) fn take_back(&mut self, slot: usize) -> Vec<JobId> {
        let jobs = &mut self.workers[slot].jobs;
        let begun = jobs.iter().take_while(|job| job.begun).count();
        jobs.drain(begun..).map(|job| job.id).collect()
    }

    /// Ends a job, unless it was frozen or killed since. Returns the job, and the next one that runs.
    pub(crate) fn finish(&mut self, slot: usize, serial: u64, now: Time) -> Option<(Job, Option<Going>)> {
        let jobs = &mut self.workers[slot].jobs;
        jobs.front().filter(|job| job.serial == serial && job.since.is_some())?;
        let mut job = jobs.pop_front()?;
        self.ran += job.pause(now);
        Some((job, self.settle(slot, now)))
    }

    /// Kills the job that a worker has begun, and returns its task. The job ends with [`Workers::killed`].
    pub(crate) fn kill(&mut self, slot: usize, now: Time) -> Option<TaskId> {
        let worker = &mut self.workers[slot];
        worker.jobs.front().filter(|job| job.begun)?;
        let mut job = worker.jobs.pop_front()?;
        self.ran += job.pause(now);
        let task = job.task;
        worker.killed = Some(job);
        Some(task)
    }

    /// Ends the killed job of a worker. Returns the job, and the next one that runs.
    pub(crate) fn killed(&mut self, slot: usize, now: Time) -> Option<(Job, Option<Going>)> {
        let job = self.workers[slot].killed.take()?;
        Some((job, self.settle(slot, now)))
    }

    /// Freezes or thaws one worker. Returns the task that it has begun, and the job that runs on, if any.
    pub(crate) fn freeze(&mut self, slot: usize, frozen: bool, now: Time) -> (Option<TaskId>, Option<Going>) {
        self.workers[slot].frozen = frozen;
        let going = self.settle(slot, now);
        let first = self.workers[slot].jobs.front().filter(|job| job.begun);
        (first.map(|job| job.task), going)
    }

    /// Freezes all workers, or lets them go on but for those that are frozen alone.
    pub(crate) fn freeze_all(&mut self, frozen: bool, now: Time) -> Vec<Going> {
        self.stand_still = frozen;
        self.settle_all(now)
    }

    /// The lid is shut, and all stand still; or it is opened.
    pub(crate) fn shut(&mut self, shut: bool, now: Time) -> Vec<Going> {
        self.are_shut = shut;
        self.settle_all(now)
    }

    /// How long a task that stands still would still take here from its last checkpoint on; `None` where it has none.
    pub(crate) fn left_from_checkpoint(&self, task: TaskId) -> Option<Duration> {
        let interval = self.checkpoint_interval?;
        let begun =
            self.workers.iter().filter_map(|worker| worker.jobs.front()).find(|job| job.begun && job.task == task);
        let Some(job) = begun else { return self.checkpoints.get(&task).copied() };
        let done_us = (job.takes - job.left).as_micros();
        let kept_us = done_us - done_us % interval.as_micros();
        (kept_us > 0).then(|| job.takes - Duration::from_micros(kept_us as u64))
    }

    /// A task came with a checkpoint from which it takes so long; one of its own counts where that is newer.
    pub(crate) fn came_with(&mut self, task: TaskId, left: Duration) {
        let known = self.checkpoints.entry(task).or_insert(left);
        *known = left.min(*known);
    }

    /// The machine goes down. `queue_lost`: checkpoints are lost too.
    pub(crate) fn go_down(&mut self, queue_lost: bool, now: Time) {
        for worker in &mut self.workers {
            let Some(mut job) = std::mem::take(worker).jobs.pop_front().filter(|job| job.begun) else { continue };
            self.ran += job.pause(now);
            let Some(interval) = self.checkpoint_interval else { continue };
            let done_us = (job.takes - job.left).as_micros();
            let kept_us = done_us - done_us % interval.as_micros();
            if kept_us > 0 {
                self.checkpoints.insert(job.task, job.takes - Duration::from_micros(kept_us as u64));
            }
        }
        if queue_lost {
            self.checkpoints.clear();
        }
        (self.stand_still, self.are_shut) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::BagId;

    use super::*;

    const TASK: TaskId = TaskId { bag: BagId([3; 32]), index: 4 };
    const OTHER: TaskId = TaskId { index: 5, ..TASK };

    fn at(seconds: i64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    fn workers() -> Workers {
        Workers::new(1, 2, None)
    }

    /// A job that takes so many seconds.
    fn job(id: u64, task: TaskId, seconds: f64) -> Job {
        Job::new(JobId(id), task, seconds, 1.0)
    }

    #[test]
    fn a_frozen_task_goes_on_where_it_stopped() {
        let mut workers = workers();
        let first = workers.give(0, job(1, TASK, 100.0), at(0)).unwrap();
        assert_eq!((first.end, first.began), (at(100), Some(TASK)));
        assert_eq!(workers.freeze_all(true, at(30)), []);
        assert!(workers.finish(0, first.serial, at(100)).is_none(), "it ended while it was frozen");
        let [again] = workers.freeze_all(false, at(1000))[..] else { panic!("it goes on") };
        assert_eq!((again.end, again.began), (at(1070), None));
        let (ended, next) = workers.finish(0, again.serial, at(1070)).unwrap();
        assert_eq!((ended.task, ended.ran, next), (TASK, Duration::from_secs(100), None));
        assert_eq!(workers.ran(at(2000)), Duration::from_secs(100));
    }

    #[test]
    fn a_task_that_a_power_cut_ended_goes_on_from_its_last_checkpoint() {
        let mut workers = Workers::new(1, 1, Some(Duration::from_secs(20)));
        let begin = |workers: &mut Workers, now| workers.give(0, job(1, TASK, 100.0), at(now)).map(|it| it.end);
        begin(&mut workers, 0);
        workers.go_down(false, at(50));
        assert_eq!(begin(&mut workers, 1000), Some(at(1060)));
        // Work done before this life counts.
        workers.go_down(false, at(1025));
        assert_eq!(begin(&mut workers, 2000), Some(at(2040)));
        assert_eq!(workers.ran(at(2001)), Duration::from_secs(50 + 25 + 1));
        workers.go_down(true, at(2030));
        assert_eq!(begin(&mut workers, 3000), Some(at(3100)));
    }

    #[test]
    fn freezing_one_worker_and_all_do_not_disturb_each_other() {
        let mut workers = workers();
        let first = workers.give(0, job(1, TASK, 100.0), at(0)).unwrap();
        assert_eq!(workers.freeze(0, true, at(10)), (Some(TASK), None));
        assert_eq!(workers.give(1, job(2, OTHER, 20.0), at(10)).map(|it| it.end), Some(at(30)));
        workers.freeze_all(true, at(20));
        let [other] = workers.freeze_all(false, at(100))[..] else { panic!("one goes on") };
        assert_eq!((other.slot, other.end), (1, at(110)));
        assert!(workers.finish(0, first.serial, at(100)).is_none(), "it ended while it was frozen");
        assert_eq!(workers.finish(1, other.serial, at(110)).unwrap().0.task, OTHER);
        let (task, again) = workers.freeze(0, false, at(110));
        assert_eq!((task, again.map(|it| it.end)), (Some(TASK), Some(at(200))));
    }

    #[test]
    #[should_panic(expected = "2 tasks run on 1 slots")]
    fn no_more_tasks_run_than_there_are_slots() {
        let mut workers = workers();
        workers.give(0, job(1, TASK, 1.0), at(0));
        workers.give(1, job(2, OTHER, 1.0), at(0));
    }

    #[test]
    fn only_jobs_that_have_not_begun_are_taken_back() {
        let mut workers = workers();
        let first = workers.give(0, job(1, TASK, 10.0), at(0)).unwrap();
        assert_eq!(workers.give(0, job(2, OTHER, 10.0), at(0)), None);
        let (_, next) = workers.clone().finish(0, first.serial, at(10)).unwrap();
        assert_eq!(next.and_then(|it| it.began), Some(OTHER), "it goes on by itself");
        assert_eq!(workers.take_back(0), [JobId(2)]);
        assert_eq!(workers.finish(0, first.serial, at(10)).unwrap().1, None);
        workers.freeze_all(true, at(20));
        assert_eq!(workers.give(0, job(3, TASK, 10.0), at(20)), None);
        assert_eq!(workers.take_back(0), [JobId(3)], "all stood still");
    }

    #[test]
    fn a_killed_task_never_ends_by_itself_and_none_begins_before_it_has_ended() {
        let mut workers = workers();
        assert_eq!(workers.kill(0, at(0)), None);
        let first = workers.give(0, job(1, TASK, 10.0), at(0)).unwrap();
        assert_eq!(workers.kill(0, at(4)), Some(TASK));
        assert!(workers.finish(0, first.serial, at(10)).is_none());
        assert_eq!(workers.give(0, job(2, OTHER, 10.0), at(4)), None);
        let (ended, next) = workers.killed(0, at(5)).unwrap();
        assert_eq!((ended.id, ended.ran), (JobId(1), Duration::from_secs(4)));
        assert_eq!(next.map(|it| it.end), Some(at(15)));
    }
}
