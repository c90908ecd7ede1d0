//! Runs the first task of a bag as the machine orders ([`idlewood_machine::Effect::RunFirstTask`]), on a worker of its own.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::{Event, FirstTask};
use idlewood_net::fetch::Origin;
use idlewood_scheduler::{BagId, Peer, TaskId, TaskOutcome, TaskResult};
use idlewood_trust::manifest::Manifest;
use idlewood_worker::{Outcome, Pool, WorkerEvent};
use tokio::task::{AbortHandle, Id};

use super::done::Done;
use super::ended::{self, Collected, Ended, Rules};
use super::live_output::Written;
use super::progress::Progress;
use super::shared::Shared;
use super::supplies::PrepareError;
use super::task::{self, CameWith, Preparation, Prepared};

/// How far the first task is.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    Preparing(AbortHandle),
    /// With the pool's name for the job, and, of a process of an application in rounds, how far it says that it is.
    Running(Box<Prepared>, u64, Option<Progress>),
    Collecting,
}

/// The first task that runs, of which bag, and for how long at most.
#[derive(Debug, Default)]
struct First {
    bag: Option<BagId>,
    time_limit: Duration,
    /// It does only so many iterations, and what comes of it counts for nothing.
    iterations: Option<NonZeroU64>,
    stage: Stage,
}

/// The worker for first tasks, and what it has.
pub(super) struct Measuring {
    measurer: Pool,
    first: First,
}

impl Measuring {
    pub(super) fn new(measurer: Pool) -> Self {
        Self { measurer, first: First::default() }
    }

    pub(super) fn worker_pids(&self) -> Vec<u32> {
        self.measurer.worker_pids()
    }

    pub(super) fn freeze(&self) {
        self.measurer.freeze();
        self.set_still(true);
    }

    pub(super) fn thaw(&self) {
        self.measurer.thaw();
        self.set_still(false);
    }

    fn set_still(&self, stands_still: bool) {
        if let Stage::Running(_, _, Some(progress)) = &self.first.stage {
            progress.set_still(stands_still);
        }
    }

    /// What the first task of a bag has written, if it runs.
    pub(super) fn written(&self, bag: BagId) -> Option<Written> {
        match &self.first {
            First { bag: Some(of), stage: Stage::Running(prepared, number, _), .. } if *of == bag => {
                let directory = prepared.job.directory.clone();
                Some(Written { in_memory: self.measurer.streams(0, *number), directory })
            }
            _ => None,
        }
    }

    /// Prepares the first task of a bag, and runs it, or so many iterations of it.
    pub(super) fn run(
        &mut self,
        bag: BagId,
        time_limit: Duration,
        iterations: Option<NonZeroU64>,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        let Some(header) = peer.bag(bag).map(|view| view.bag) else {
            return shared.events.follow_up(Event::FirstTaskEnded { bag, first: FirstTask::Nothing });
        };
        let (known, supplies) = (shared.manifests.get(bag), shared.supplies.clone());
        let known = match (iterations, known) {
            (Some(iterations), Some(manifest)) => Some(Arc::new(manifest.with_iterations(iterations))),
            (Some(_), None) => {
                return shared.events.follow_up(Event::FirstTaskEnded { bag, first: FirstTask::Nothing });
            }
            (None, known) => known,
        };
        let here = Origin { bag, key: None, sources: Vec::new(), enclosed: Vec::new() };
        let came = CameWith { line: shared.lines.get(TaskId { bag, index: 0 }), checkpoint: None };
        let prepare = async move {
            let preparation = task::prepare(&supplies, TaskId { bag, index: 0 }, 0, &header, known, came, &here).await;
            Done::MeasurePrepared { bag, preparation }
        };
        let lost = Done::MeasurePrepared { bag, preparation: Preparation::lost() };
        let stage = Stage::Preparing(shared.jobs.spawn(prepare, lost));
        self.first = First { bag: Some(bag), time_limit, iterations, stage };
    }

    /// The needs of a first task were fetched, or not.
    pub(super) fn prepared(&mut self, id: Id, bag: BagId, preparation: Preparation, peer: &Peer, shared: &mut Shared) {
        if let Some(manifest) = preparation.manifest.filter(|_| self.first.iterations.is_none()) {
            shared.manifests.remember(bag, manifest);
        }
        if !matches!(&self.first.stage, Stage::Preparing(job) if job.id() == id) {
            return preparation.result.into_iter().for_each(|prepared| shared.discard(prepared));
        }
        let Err(error) = preparation.result.and_then(|prepared| self.start(prepared, shared)) else { return };
        tracing::warn!(%bag, %error, "the first task could not be started");
        let first = match error {
            PrepareError::Later(_) => FirstTask::NotStarted,
            PrepareError::Never(_) => FirstTask::Nothing,
        };
        self.over(bag, first, peer, shared);
    }

    /// Gives a first task to its worker.
    fn start(&mut self, mut prepared: Box<Prepared>, shared: &mut Shared) -> Result<(), PrepareError> {
        let limit = self.first.time_limit;
        prepared.job.time_limit = Some(prepared.job.time_limit.map_or(limit, |of_bag| of_bag.min(limit)));
        if self.first.iterations.is_some() {
            // The whole run may have left one: this one begins anew.
            prepared.job.checkpoint = None;
        }
        match self.measurer.start(0, &prepared.job) {
            Ok(number) => {
                let in_rounds = prepared.manifest.rounds.is_some();
                let progress = in_rounds.then(|| Progress::of(prepared.job.directory.clone()));
                self.first.stage = Stage::Running(prepared, number, progress);
            }
            Err(error) => {
                shared.discard(prepared);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The worker's run has ended: of which bag, and how long it took.
    pub(super) fn ended(&mut self, event: WorkerEvent, shared: &mut Shared) -> Option<(BagId, Duration)> {
        let (_, ended) = Ended::of(event);
        let (prepared, progress) = match std::mem::replace(&mut self.first.stage, Stage::Collecting) {
            Stage::Running(prepared, _, progress) => (prepared, progress),
            other => {
                tracing::error!("a worker ended that nobody had started");
                self.first.stage = other;
                return None;
            }
        };
        let (bag, wall) = (self.first.bag?, ended.wall);
        if let Some(first) = self.told_of_iterations(&prepared.manifest, &ended, progress) {
            shared.discard(prepared);
            self.over_with(bag, first, shared);
            return Some((bag, wall));
        }
        let (blobs, speed_mops) = (shared.supplies.blobs.clone(), shared.kernel_mops);
        let rules = Rules::of(&prepared.manifest, 0, shared.settings.get().limits.output.0);
        let collect = move || {
            let collected = ended::collect(&blobs, true, Some(&prepared.job), &rules, &ended, speed_mops);
            Done::Measured { bag, cpu: ended.cpu, collected }
        };
        let lost = Done::Measured { bag, cpu: Duration::ZERO, collected: Collected::not_started() };
        shared.jobs.spawn_blocking(collect, lost);
        Some((bag, wall))
    }

    /// What a process shows that ran to its limit, or did fewer iterations. `None`: it is like any other task.
    fn told_of_iterations(&self, manifest: &Manifest, ended: &Ended, progress: Option<Progress>) -> Option<FirstTask> {
        let rounds = manifest.rounds.as_ref()?;
        let (cpu, wall) = (ended.cpu, ended.wall);
        match ended.outcome {
            Outcome::TimedOut { limit } if limit < Duration::from_secs(manifest.time_limit_s) => {
                let marks = progress.map(|progress| progress.marks(cpu)).unwrap_or_default();
                Some(FirstTask::TooLong { cpu, iterations: NonZeroU64::new(rounds.iterations)?, marks })
            }
            Outcome::Exited { code } if self.first.iterations.is_some() => {
                let has_succeeded = manifest.success_codes.contains(&i32::from(code));
                Some(if has_succeeded { FirstTask::Partial { cpu, wall } } else { FirstTask::Nothing })
            }
            _ => self.first.iterations.map(|_| FirstTask::Nothing),
        }
    }

    /// What came of a first task is kept. `collected` pins the output until the peer's record does.
    pub(super) fn measured(
        &mut self,
        bag: BagId,
        cpu: Duration,
        collected: Collected,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        let Collected { outcome, pin } = collected;
        pin.into_iter().for_each(|pin| shared.events.pin(pin));
        let first = match outcome {
            TaskOutcome::NotStarted { .. } => FirstTask::NotStarted,
            // The bag is closed, or the agent ends.
            TaskOutcome::Stopped => FirstTask::Nothing,
            TaskOutcome::Finished(finished) => FirstTask::Ran { cpu, result: TaskResult::of(0, 0, finished) },
        };
        self.over(bag, first, peer, shared);
    }

    fn over(&mut self, bag: BagId, first: FirstTask, peer: &Peer, shared: &mut Shared) {
        let is_open = peer.bag(bag).is_some_and(|view| view.closed.is_none());
        if is_open && !matches!(first, FirstTask::Ran { .. }) {
            tracing::warn!(%bag, "the first task could not be measured; where that goes on, it is taken as short");
        }
        self.over_with(bag, first, shared);
    }

    fn over_with(&mut self, bag: BagId, first: FirstTask, shared: &mut Shared) {
        self.first = First::default();
        shared.events.tell(Event::FirstTaskEnded { bag, first });
    }

    /// Ends the first task of a bag.
    pub(super) fn stop(&mut self, bag: BagId, shared: &mut Shared) {
        if self.first.bag != Some(bag) {
            return;
        }
        match &self.first.stage {
            Stage::Preparing(job) => {
                job.abort();
                self.first = First::default();
                shared.events.follow_up(Event::FirstTaskEnded { bag, first: FirstTask::Nothing });
            }
            // Its end comes as an event.
            Stage::Running(..) => {
                self.measurer.stop(0);
            }
            Stage::Idle | Stage::Collecting => {}
        }
    }

    /// The agent ends: nothing starts any more, and what runs is gone at once.
    pub(super) fn end(&self) {
        task::stop_all(&self.measurer);
    }

    /// Ends the worker. Blocks. What it ran in can be removed then: dropping the result does.
    pub(super) fn shut_down(self) -> impl Sized {
        self.measurer.shutdown();
        self.first
    }
}
