//! How long a task takes: the first task of a bag is run on its submitter's machine, where the user did not say.
//!
//! One at a time, on a worker of its own.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_net::fetch::Origin;
use idlewood_scheduler::{BagId, Event, TaskId, TaskOutcome, TaskResult};
use idlewood_worker::WorkerEvent;
use tokio::task::{AbortHandle, Id};

use super::driver::{Done, Driver};
use super::task::{self, Collected, Ended, Preparation, PrepareError, Prepared};

/// How long the first task of a bag may run to show how long a task takes.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
/// Least work of a task, as processor time: below it the clock says nothing.
const MEASURE_LEAST: Duration = Duration::from_millis(1);
/// How often a first task that cannot start is tried, and the pause between two tries.
const MEASURE_TRIES: u32 = 4;
const MEASURE_PAUSE: Duration = Duration::from_secs(2);

/// What the first bag of the queue is at.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    Preparing(AbortHandle),
    Running(Box<Prepared>),
    Collecting,
    /// It could not start, and is tried again.
    Pausing(AbortHandle),
}

/// The bags to be measured.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    queue: VecDeque<BagId>,
    stage: Stage,
    /// Of the first one.
    tries: u32,
}

impl Driver {
    pub(super) fn measure(&mut self, bag: BagId) {
        self.measuring.queue.push_back(bag);
        self.next_measurement();
    }

    /// Begins with the first bag that waits, unless one is being measured.
    fn next_measurement(&mut self) {
        if !matches!(self.measuring.stage, Stage::Idle) {
            return;
        }
        while let Some(&bag) = self.measuring.queue.front() {
            if let Some(view) = self.peer.bag(bag).filter(|view| view.closed.is_none()) {
                self.measuring.tries += 1;
                let (known, supplies, header) = (self.manifests.get(bag), self.supplies.clone(), view.bag);
                let here = Origin { bag, key: None, sources: Vec::new() };
                let prepare = async move {
                    let preparation = supplies.prepare(TaskId { bag, index: 0 }, 0, &header, known, None, &here).await;
                    Done::MeasurePrepared { bag, preparation }
                };
                let lost = Done::MeasurePrepared { bag, preparation: Preparation::lost() };
                self.measuring.stage = Stage::Preparing(self.jobs.spawn(prepare, lost));
                return;
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.measuring.queue.pop_front();
        self.measuring.tries = 0;
    }

    pub(super) fn measure_prepared(&mut self, id: Id, bag: BagId, preparation: Preparation) {
        if let Some(manifest) = preparation.manifest {
            self.manifests.remember(bag, manifest);
        }
        if !matches!(&self.measuring.stage, Stage::Preparing(job) if job.id() == id) {
            return self.discard(preparation.result.ok());
        }
        let error = match preparation.result {
            Ok(mut prepared) => {
                let limit = prepared.job.time_limit.unwrap_or(MEASURE_LIMIT);
                prepared.job.time_limit = Some(limit.min(MEASURE_LIMIT));
                match self.measurer.start(0, &prepared.job) {
                    Ok(()) => {
                        self.measuring.stage = Stage::Running(prepared);
                        return;
                    }
                    Err(error) => {
                        self.discard(Some(prepared));
                        PrepareError::from(error)
                    }
                }
            }
            Err(error) => error,
        };
        tracing::warn!(%bag, %error, "the first task could not be started");
        match error {
            PrepareError::Later(_) => self.could_not_measure(bag),
            PrepareError::Never(_) => self.finish_measurement(bag, None),
        }
    }

    pub(super) fn measure_ended(&mut self, event: WorkerEvent) {
        let (_, ended) = Ended::of(event);
        let prepared = match std::mem::replace(&mut self.measuring.stage, Stage::Collecting) {
            Stage::Running(prepared) => prepared,
            other => {
                tracing::error!("a worker ended that nobody had started");
                self.measuring.stage = other;
                return;
            }
        };
        let Some(&bag) = self.measuring.queue.front() else { return };
        self.note_start(bag, ended.wall);
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        let collect = move || {
            let codes = &prepared.manifest.success_codes;
            let collected = task::collect(&blobs, true, Some(&prepared.job), codes, &ended, speed_mops);
            Done::Measured { bag, cpu: ended.cpu, collected }
        };
        let lost = Done::Measured { bag, cpu: Duration::ZERO, collected: Collected::not_started() };
        self.jobs.spawn_blocking(collect, lost);
    }

    /// `collected` pins the output until the peer's record does.
    pub(super) fn measured(&mut self, bag: BagId, cpu: Duration, collected: &Collected) {
        match &collected.outcome {
            TaskOutcome::NotStarted { .. } => self.could_not_measure(bag),
            // The bag is closed, or the agent ends.
            TaskOutcome::Stopped => self.finish_measurement(bag, None),
            TaskOutcome::Finished(finished) => {
                let result = TaskResult::of(0, 0, finished.clone());
                self.finish_measurement(bag, Some((cpu, result)));
            }
        }
    }

    fn could_not_measure(&mut self, bag: BagId) {
        if self.measuring.tries >= MEASURE_TRIES {
            return self.finish_measurement(bag, None);
        }
        let pause = async {
            tokio::time::sleep(MEASURE_PAUSE).await;
            Done::MeasureAgain
        };
        self.measuring.stage = Stage::Pausing(self.jobs.spawn(pause, Done::MeasureAgain));
    }

    pub(super) fn measure_again(&mut self, id: Id) {
        if matches!(&self.measuring.stage, Stage::Pausing(job) if job.id() == id) {
            self.measuring.stage = Stage::Idle;
            self.next_measurement();
        }
    }

    /// Tells the peer what the first task showed, and goes on with the next bag.
    fn finish_measurement(&mut self, bag: BagId, shown: Option<(Duration, TaskResult)>) {
        let (cpu, result) = shown.unzip();
        if cpu.is_none() && self.peer.bag(bag).is_some_and(|view| view.closed.is_none()) {
            tracing::warn!(%bag, "the first task could not be measured; taken as short");
        }
        let task_mops = cpu.map_or(MEASURE_LEAST, |cpu| cpu.max(MEASURE_LEAST)).as_secs_f64() * self.config.speed_mops;
        self.measuring.stage = Stage::Idle;
        self.drop_first();
        self.feed(Event::Measured { bag, task_mops, result: result.filter(|result| result.success) });
        self.next_measurement();
    }

    /// A bag is closed: how long its tasks take does not matter any more.
    pub(super) fn stop_measuring(&mut self, bag: BagId) {
        if self.measuring.queue.front() != Some(&bag) {
            self.measuring.queue.retain(|other| *other != bag);
            return;
        }
        match &self.measuring.stage {
            Stage::Preparing(job) | Stage::Pausing(job) => {
                job.abort();
                self.measuring.stage = Stage::Idle;
                self.drop_first();
                self.next_measurement();
            }
            // Its end comes as an event.
            Stage::Running(_) => {
                self.measurer.stop(0);
            }
            Stage::Idle | Stage::Collecting => {}
        }
    }
}
