//! Runs the first task of a bag as the machine orders ([`idlewood_machine::Effect::RunFirstTask`]), on a worker of its own.

use std::time::Duration;

use idlewood_machine::{Event, FirstTask};
use idlewood_net::fetch::Origin;
use idlewood_scheduler::{BagId, TaskId, TaskOutcome, TaskResult};
use idlewood_worker::WorkerEvent;
use tokio::task::{AbortHandle, Id};

use super::done::Done;
use super::driver::Driver;
use super::ended::{self, Collected, Ended};
use super::supplies::PrepareError;
use super::task::{self, Preparation, Prepared};

/// How far the first task is.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    Preparing(AbortHandle),
    Running(Box<Prepared>),
    Collecting,
}

/// The first task that runs, of which bag, and for how long at most.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    bag: Option<BagId>,
    time_limit: Duration,
    stage: Stage,
}

impl Driver {
    pub(super) fn run_first_task(&mut self, bag: BagId, time_limit: Duration) {
        let Some(header) = self.peer().bag(bag).map(|view| view.bag) else {
            return self.shared.events.follow_up(Event::FirstTaskEnded { bag, first: FirstTask::Nothing });
        };
        let (known, supplies) = (self.shared.manifests.get(bag), self.shared.supplies.clone());
        let here = Origin { bag, key: None, sources: Vec::new() };
        let prepare = async move {
            let preparation = task::prepare(&supplies, TaskId { bag, index: 0 }, 0, &header, known, None, &here).await;
            Done::MeasurePrepared { bag, preparation }
        };
        let lost = Done::MeasurePrepared { bag, preparation: Preparation::lost() };
        let stage = Stage::Preparing(self.shared.jobs.spawn(prepare, lost));
        self.measuring = Measuring { bag: Some(bag), time_limit, stage };
    }

    pub(super) fn measure_prepared(&mut self, id: Id, bag: BagId, preparation: Preparation) {
        if let Some(manifest) = preparation.manifest {
            self.shared.manifests.remember(bag, manifest);
        }
        if !matches!(&self.measuring.stage, Stage::Preparing(job) if job.id() == id) {
            return self.discard(preparation.result.ok());
        }
        let error = match preparation.result {
            Ok(mut prepared) => {
                let limit = self.measuring.time_limit;
                prepared.job.time_limit = Some(prepared.job.time_limit.map_or(limit, |of_bag| of_bag.min(limit)));
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
        let first = match error {
            PrepareError::Later(_) => FirstTask::NotStarted,
            PrepareError::Never(_) => FirstTask::Nothing,
        };
        self.first_task_ended(bag, first);
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
        let Some(bag) = self.measuring.bag else { return };
        self.note_start(bag, ended.wall);
        let (blobs, speed_mops) = (self.shared.supplies.blobs.clone(), self.shared.config.speed_mops);
        let collect = move || {
            let codes = &prepared.manifest.success_codes;
            let collected = ended::collect(&blobs, true, Some(&prepared.job), codes, &ended, speed_mops);
            Done::Measured { bag, cpu: ended.cpu, collected }
        };
        let lost = Done::Measured { bag, cpu: Duration::ZERO, collected: Collected::not_started() };
        self.shared.jobs.spawn_blocking(collect, lost);
    }

    /// `collected` pins the output until the peer's record does.
    pub(super) fn measured(&mut self, bag: BagId, cpu: Duration, collected: &Collected) {
        let first = match &collected.outcome {
            TaskOutcome::NotStarted { .. } => FirstTask::NotStarted,
            // The bag is closed, or the agent ends.
            TaskOutcome::Stopped => FirstTask::Nothing,
            TaskOutcome::Finished(finished) => FirstTask::Ran { cpu, result: TaskResult::of(0, 0, finished.clone()) },
        };
        self.first_task_ended(bag, first);
    }

    fn first_task_ended(&mut self, bag: BagId, first: FirstTask) {
        let is_open = self.peer().bag(bag).is_some_and(|view| view.closed.is_none());
        if is_open && !matches!(first, FirstTask::Ran { .. }) {
            tracing::warn!(%bag, "the first task could not be measured; where that goes on, it is taken as short");
        }
        self.measuring = Measuring::default();
        self.feed(Event::FirstTaskEnded { bag, first });
    }

    pub(super) fn stop_first_task(&mut self, bag: BagId) {
        if self.measuring.bag != Some(bag) {
            return;
        }
        match &self.measuring.stage {
            Stage::Preparing(job) => {
                job.abort();
                self.measuring = Measuring::default();
                self.shared.events.follow_up(Event::FirstTaskEnded { bag, first: FirstTask::Nothing });
            }
            // Its end comes as an event.
            Stage::Running(_) => {
                self.measurer.stop(0);
            }
            Stage::Idle | Stage::Collecting => {}
        }
    }
}
