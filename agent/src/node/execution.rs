//! Carries out the machine's orders about workers ([`WorkOrder`]): fetches a task's needs, gives it to a worker, keeps its output.
//!
//! The machine names each attempt at a task with a number ([`JobId`]) and decides; here is what belongs to a job and is large.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::{JobId, WorkEvent, WorkOrder};
use idlewood_scheduler::{BagHeader, BagId, Checkpoint, TaskId};
use idlewood_trust::manifest::Manifest;
use idlewood_units::ByteSize;
use idlewood_worker::{Outcome, WorkerEvent};
use tokio::task::AbortHandle;

use super::done::Done;
use super::driver::Driver;
use super::ended::{self, Collected, Ended};
use super::pin::Pin;
use super::supplies::{self, PrepareError};
use super::task::{self, Preparation, Prepared};

/// A job that a worker has.
#[derive(Debug)]
struct Given {
    job: JobId,
    task: TaskId,
    prepared: Box<Prepared>,
    /// The pool's name for it.
    number: u64,
}

/// A job that no worker has.
#[derive(Debug)]
enum Stage {
    /// Its program and data are being fetched.
    Preparing(AbortHandle),
    Ready(Box<Prepared>),
    /// Its output is being kept.
    Keeping,
    /// Its output is here, and stays.
    Kept(Pin),
}

/// What belongs to jobs.
#[derive(Debug)]
pub(super) struct Work {
    /// What each worker has, the first one runs.
    runs: Vec<VecDeque<Given>>,
    /// Jobs that no worker has.
    jobs: BTreeMap<JobId, Stage>,
    /// One job of each bag whose tasks can be given like it.
    examples: BTreeMap<BagId, Arc<Prepared>>,
}

impl Work {
    pub(super) fn new(slots: usize) -> Self {
        Self { runs: (0..slots).map(|_| VecDeque::new()).collect(), jobs: BTreeMap::new(), examples: BTreeMap::new() }
    }

    /// Whether no worker has a job.
    pub(super) fn is_idle(&self) -> bool {
        self.runs.iter().all(VecDeque::is_empty)
    }

    /// The manifests of the bags that workers have jobs of.
    pub(super) fn manifests(&self) -> BTreeMap<BagId, Arc<Manifest>> {
        let given = self.runs.iter().flatten();
        given.map(|given| (given.task.bag, given.prepared.manifest.clone())).collect()
    }

    /// Another job like the example of its bag, where it needs nothing of its own.
    fn like_example(&self, task: TaskId, attempt: u32) -> Option<Box<Prepared>> {
        self.examples.get(&task.bag)?.another(task, attempt).map(Box::new)
    }
}

impl Driver {
    pub(super) fn carry_out_work(&mut self, order: WorkOrder) {
        match order {
            WorkOrder::Prepare { job, task, attempt, bag, checkpoint } => {
                self.prepare(job, task, attempt, bag, checkpoint);
            }
            WorkOrder::KeepExample { bag, job } => self.keep_example(bag, job),
            WorkOrder::ForgetExample { bag } => drop(self.work.examples.remove(&bag)),
            WorkOrder::Give { slot, job, task, attempt } => self.give(slot, job, task, attempt),
            WorkOrder::TakeBack { slot } => self.take_back(slot),
            WorkOrder::Stop { slot } => {
                self.workers.stop(slot);
            }
            WorkOrder::Freeze { slot } => {
                self.workers.freeze_slot(slot);
            }
            WorkOrder::Thaw { slot } => {
                self.workers.thaw_slot(slot);
            }
            WorkOrder::FreezeAll => self.workers.freeze(),
            WorkOrder::ThawAll => {
                // An agent that ends has closed its commands: nothing goes on any more.
                if !self.commands.is_closed() {
                    self.workers.thaw();
                }
            }
            WorkOrder::Forget { job } => self.forget_job(job),
            WorkOrder::TellNoMemory { task, wanted_bytes, taken_bytes } => {
                self.tell_no_memory(task, ByteSize(wanted_bytes), ByteSize(taken_bytes));
            }
        }
    }

    fn prepare(&mut self, job: JobId, task: TaskId, attempt: u32, bag: BagHeader, checkpoint: Option<Checkpoint>) {
        let at_hand = if checkpoint.is_none() { self.work.like_example(task, attempt) } else { None };
        // Nothing more of it begins when its submitter is thrown out or the owner objects.
        if let Some(prepared) = at_hand.filter(|it| self.shared.supplies.objection(&it.manifest.label()).is_none()) {
            let event = self.ready(job, task, prepared);
            return self.shared.events.follow_up(event);
        }
        let origin = supplies::origin(self.peer(), task.bag, &bag.submitter);
        let known = self.shared.manifests.get(task.bag);
        let supplies = self.shared.supplies.clone();
        let checkpoint = checkpoint.map(|checkpoint| (checkpoint, self.shared.settings.get().limits.checkpoint.0));
        let prepare = async move {
            let preparation = task::prepare(&supplies, task, attempt, &bag, known, checkpoint, &origin).await;
            Done::Prepared { job, task, preparation }
        };
        let under_way = self.shared.jobs.spawn(prepare, Done::Prepared { job, task, preparation: Preparation::lost() });
        self.work.jobs.insert(job, Stage::Preparing(under_way));
    }

    pub(super) fn prepared(&mut self, job: JobId, task: TaskId, preparation: Preparation) {
        self.checkpoints_unsigned += u64::from(preparation.planted);
        if let Some(manifest) = preparation.manifest {
            self.shared.manifests.remember(task.bag, manifest);
        }
        if !self.work.jobs.contains_key(&job) {
            // Forgotten the moment it was ready.
            return self.discard(preparation.result.ok());
        }
        match preparation.result {
            Ok(prepared) => {
                let event = self.ready(job, task, prepared);
                self.feed(event);
            }
            Err(error) => self.cannot_run(job, task, error, None),
        }
    }

    /// What a job needs is here: what the machine hears of it.
    fn ready(&mut self, job: JobId, task: TaskId, prepared: Box<Prepared>) -> WorkEvent {
        let (memory_bytes, is_example) = (prepared.job.memory_bytes, prepared.is_example(task));
        self.work.jobs.insert(job, Stage::Ready(prepared));
        WorkEvent::Prepared { job, memory_bytes, is_example }
    }

    fn keep_example(&mut self, bag: BagId, job: JobId) {
        if let Some(Stage::Ready(prepared)) = self.work.jobs.get(&job) {
            self.work.examples.insert(bag, Arc::new(prepared.example()));
        }
    }

    fn give(&mut self, slot: usize, job: JobId, task: TaskId, attempt: u32) {
        let ready = match self.work.jobs.remove(&job) {
            Some(Stage::Ready(prepared)) => Some(prepared),
            _ => self.work.like_example(task, attempt),
        };
        let Some(mut prepared) = ready else {
            return self.not_taken(slot, job, task, anyhow::anyhow!("it has to be prepared").into(), None);
        };
        let most = self.shared.settings.get().limits.task_time.0;
        let limit = &mut prepared.job.time_limit;
        *limit = Some(limit.map_or(most, |of_bag| of_bag.min(most)));
        match self.workers.append(slot, &prepared.job) {
            Ok(number) => self.work.runs[slot].push_back(Given { job, task, prepared, number }),
            Err(error) => self.not_taken(slot, job, task, error.into(), Some(prepared)),
        }
    }

    /// A worker does not take a job.
    fn not_taken(
        &mut self,
        slot: usize,
        job: JobId,
        task: TaskId,
        error: PrepareError,
        prepared: Option<Box<Prepared>>,
    ) {
        self.shared.events.follow_up(WorkEvent::Ended { slot, job, wall: None, outcome: None });
        self.cannot_run(job, task, error, prepared);
    }

    fn cannot_run(&mut self, job: JobId, task: TaskId, error: PrepareError, prepared: Option<Box<Prepared>>) {
        let (blobs, speed_mops) = (self.shared.supplies.blobs.clone(), self.shared.config.speed_mops);
        let takes_small = self.storage.pins().takes_small_outputs();
        self.collect(job, task, move || {
            drop(prepared);
            ended::not_prepared(&blobs, takes_small, error, speed_mops)
        });
    }

    /// Keeps what came of a job, beside the loop.
    fn collect(&mut self, job: JobId, task: TaskId, collect: impl FnOnce() -> Collected + Send + 'static) {
        self.work.jobs.insert(job, Stage::Keeping);
        let collected = move || Done::Collected { job, task, collected: collect() };
        self.shared.jobs.spawn_blocking(collected, Done::Collected { job, task, collected: Collected::not_started() });
    }

    pub(super) fn collected(&mut self, job: JobId, task: TaskId, collected: Collected) {
        // Where it is not there, nobody waits for it any more.
        if self.work.jobs.remove(&job).is_none() {
            return;
        }
        let Collected { outcome, pin } = collected;
        if let Some(pin) = pin {
            self.work.jobs.insert(job, Stage::Kept(pin));
        }
        self.feed(WorkEvent::Over { job, task, outcome });
    }

    fn take_back(&mut self, slot: usize) {
        let numbers = self.workers.take_back(slot);
        let run = &mut self.work.runs[slot];
        let (back, begun): (Vec<Given>, Vec<Given>) =
            run.drain(..).partition(|given| numbers.binary_search(&given.number).is_ok());
        run.extend(begun);
        let jobs = back.iter().map(|given| given.job).collect();
        for Given { job, prepared, .. } in back {
            self.work.jobs.insert(job, Stage::Ready(prepared));
        }
        self.shared.events.follow_up(WorkEvent::TakenBack { slot, jobs });
    }

    pub(super) fn worker_ended(&mut self, event: WorkerEvent) {
        let (slot, mut ended) = Ended::of(event);
        let Some(Given { job, task, prepared, .. }) = self.work.runs[slot].pop_front() else {
            tracing::error!(slot, "a worker ended that nobody had started");
            return;
        };
        let of_bag = Duration::from_secs(prepared.manifest.time_limit_s);
        ended.cut = match ended.outcome {
            Outcome::TimedOut { limit } => limit < of_bag,
            Outcome::OverDisk { limit_bytes } => limit_bytes < prepared.manifest.disk_bytes,
            _ => false,
        };
        let wall = Some(ended.wall);
        self.note_start(task.bag, ended.wall);
        let (blobs, speed_mops) = (self.shared.supplies.blobs.clone(), self.shared.config.speed_mops);
        let takes_small = self.storage.pins().takes_small_outputs();
        let codes = &prepared.manifest.success_codes;
        let untouched = takes_small.then(|| ended::collect_untouched(&blobs, &prepared.job, codes, &ended, speed_mops));
        if let Some(outcome) = untouched.flatten() {
            prepared.leave_nothing();
            return self.feed(WorkEvent::Ended { slot, job, wall, outcome: Some(outcome) });
        }
        self.collect(job, task, move || {
            let codes = &prepared.manifest.success_codes;
            ended::collect(&blobs, takes_small, Some(&prepared.job), codes, &ended, speed_mops)
        });
        self.feed(WorkEvent::Ended { slot, job, wall, outcome: None });
    }

    fn forget_job(&mut self, job: JobId) {
        match self.work.jobs.remove(&job) {
            Some(Stage::Preparing(under_way)) => under_way.abort(),
            Some(Stage::Ready(prepared)) => self.discard(Some(prepared)),
            // Released when all that was ordered with this is carried out.
            Some(Stage::Kept(pin)) => self.shared.events.pin(pin),
            Some(Stage::Keeping) | None => {}
        }
    }

    /// Removes the directory of a job that is not going to run.
    pub(super) fn discard(&mut self, prepared: Option<Box<Prepared>>) {
        if let Some(prepared) = prepared {
            let remove = move || {
                drop(prepared);
                Done::Discarded
            };
            self.shared.jobs.spawn_blocking(remove, Done::Discarded);
        }
    }

    fn tell_no_memory(&self, task: TaskId, wanted: ByteSize, taken: ByteSize) {
        let name = if self.machine.owner().is_in_use() { "limits.in_use.memory" } else { "limits.memory" };
        let cap = self.memory_cap();
        let (bag, index) = (task.bag, task.index);
        tracing::info!(%bag, index, "a task cannot start yet: it may take {wanted} of memory, {name} is {cap}, {taken} are taken");
    }
}
