//! Carries out the machine's orders about workers ([`WorkOrder`]): fetches a task's needs, gives it to a worker, keeps its output.
//!
//! The machine names each attempt at a task with a number ([`JobId`]) and decides; here is what belongs to a job and is large.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::{JobId, Machine, WorkEvent, WorkOrder};
use idlewood_scheduler::{BagHeader, BagId, Checkpoint, TaskId};
use idlewood_trust::manifest::Manifest;
use idlewood_units::ByteSize;
use idlewood_worker::{Outcome, Pool, WorkerEvent};
use tokio::task::AbortHandle;

use super::done::Done;
use super::ended::{self, Collected, Ended, Rules};
use super::live_output::Written;
use super::pin::Pin;
use super::pins::Pins;
use super::shared::Shared;
use super::supplies::{self, PrepareError};
use super::task::{self, CameWith, Preparation, Prepared};

/// A job: which try at which task.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    job: JobId,
    task: TaskId,
    attempt: u32,
}

/// A job that a worker has.
#[derive(Debug)]
struct Given {
    job: JobId,
    task: TaskId,
    prepared: Box<Prepared>,
    /// How long its bag lets it run on this machine, by the clock.
    limit: Duration,
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

/// The workers, and what belongs to jobs.
pub(super) struct Execution {
    workers: Pool,
    /// What each worker has, the first one runs.
    runs: Vec<VecDeque<Given>>,
    /// Jobs that no worker has.
    jobs: BTreeMap<JobId, Stage>,
    /// One job of each bag whose tasks can be given like it.
    examples: BTreeMap<BagId, Arc<Prepared>>,
    /// Checkpoints that tasks came with and that their submitters had not signed for them.
    checkpoints_unsigned: u64,
    /// Tasks that ran to their end.
    tasks_run: u64,
    /// The agent ends: nothing goes on any more.
    ends: bool,
}

impl Execution {
    pub(super) fn new(workers: Pool) -> Self {
        let runs = (0..workers.slots()).map(|_| VecDeque::new()).collect();
        let (jobs, examples) = (BTreeMap::new(), BTreeMap::new());
        Self { workers, runs, jobs, examples, checkpoints_unsigned: 0, tasks_run: 0, ends: false }
    }

    /// Whether no worker has a job.
    pub(super) fn is_idle(&self) -> bool {
        self.runs.iter().all(VecDeque::is_empty)
    }

    /// What a job has written that a worker runs.
    pub(super) fn written(&self, slot: usize, job: JobId) -> Option<Written> {
        let given = self.runs.get(slot)?.iter().find(|given| given.job == job)?;
        let directory = given.prepared.job.directory.clone();
        Some(Written { in_memory: self.workers.streams(slot, given.number), directory })
    }

    /// The manifests of the bags that workers have jobs of.
    pub(super) fn manifests(&self) -> BTreeMap<BagId, Arc<Manifest>> {
        let given = self.runs.iter().flatten();
        given.map(|given| (given.task.bag, given.prepared.manifest.clone())).collect()
    }

    pub(super) fn worker_pids(&self) -> Vec<u32> {
        self.workers.worker_pids()
    }

    /// Checkpoints that tasks came with and that their submitters had not signed for them.
    pub(super) fn checkpoints_unsigned(&self) -> u64 {
        self.checkpoints_unsigned
    }

    /// Tasks that ran to their end here, whatever their exit code.
    pub(super) fn tasks_run(&self) -> u64 {
        self.tasks_run
    }

    pub(super) fn carry_out(&mut self, order: WorkOrder, pins: &Pins, machine: &Machine, shared: &mut Shared) {
        match order {
            WorkOrder::Prepare { job, task, attempt, bag, checkpoint } => {
                self.prepare(Attempt { job, task, attempt }, bag, checkpoint, machine, shared);
            }
            WorkOrder::KeepExample { bag, job } => self.keep_example(bag, job),
            WorkOrder::ForgetExample { bag } => drop(self.examples.remove(&bag)),
            WorkOrder::Give { slot, job, task, attempt } => {
                self.give(slot, Attempt { job, task, attempt }, pins, machine, shared);
            }
            WorkOrder::TakeBack { slot } => self.take_back(slot, shared),
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
                if !self.ends {
                    self.workers.thaw();
                }
            }
            WorkOrder::Forget { job } => self.forget(job, shared),
            WorkOrder::TellNoMemory { task, wanted_bytes, taken_bytes } => {
                tell_no_memory(task, ByteSize(wanted_bytes), ByteSize(taken_bytes), machine, shared);
            }
        }
    }

    /// Another job like the example of its bag, where it needs nothing of its own.
    fn like_example(&self, task: TaskId, attempt: u32) -> Option<Box<Prepared>> {
        self.examples.get(&task.bag)?.another(task, attempt).map(Box::new)
    }

    fn prepare(
        &mut self,
        Attempt { job, task, attempt }: Attempt,
        bag: BagHeader,
        checkpoint: Option<Checkpoint>,
        machine: &Machine,
        shared: &mut Shared,
    ) {
        let at_hand = if checkpoint.is_none() { self.like_example(task, attempt) } else { None };
        // Nothing more of it begins when its submitter is thrown out or the owner objects.
        if let Some(prepared) = at_hand.filter(|it| shared.supplies.objection(&it.manifest.label()).is_none()) {
            return shared.events.follow_up(self.ready(job, task, prepared));
        }
        let origin = supplies::origin(machine.peer(), task.bag, &bag.submitter);
        let known = shared.manifests.get(task.bag);
        let supplies = shared.supplies.clone();
        let checkpoint = checkpoint.map(|checkpoint| (checkpoint, shared.settings.get().limits.checkpoint.0));
        let came = CameWith { line: shared.lines.get(task), checkpoint };
        let prepare = async move {
            let preparation = task::prepare(&supplies, task, attempt, &bag, known, came, &origin).await;
            Done::Prepared { job, task, preparation }
        };
        let under_way = shared.jobs.spawn(prepare, Done::Prepared { job, task, preparation: Preparation::lost() });
        self.jobs.insert(job, Stage::Preparing(under_way));
    }

    /// The needs of a job were fetched, or not.
    pub(super) fn prepared(
        &mut self,
        job: JobId,
        task: TaskId,
        preparation: Preparation,
        pins: &Pins,
        shared: &mut Shared,
    ) {
        self.checkpoints_unsigned += u64::from(preparation.planted);
        if let Some(manifest) = preparation.manifest {
            shared.manifests.remember(task.bag, manifest);
        }
        match preparation.result {
            // Forgotten the moment it was ready.
            Ok(prepared) if !self.jobs.contains_key(&job) => shared.discard(prepared),
            Err(_) if !self.jobs.contains_key(&job) => {}
            Ok(prepared) => shared.events.tell(self.ready(job, task, prepared)),
            Err(error) => self.cannot_run(job, task, error, None, pins, shared),
        }
    }

    /// What a job needs is here: what the machine hears of it.
    fn ready(&mut self, job: JobId, task: TaskId, prepared: Box<Prepared>) -> WorkEvent {
        let (memory_bytes, is_example) = (prepared.job.memory_bytes, prepared.is_example(task));
        self.jobs.insert(job, Stage::Ready(prepared));
        WorkEvent::Prepared { job, memory_bytes, is_example }
    }

    fn keep_example(&mut self, bag: BagId, job: JobId) {
        if let Some(Stage::Ready(prepared)) = self.jobs.get(&job) {
            self.examples.insert(bag, Arc::new(prepared.example()));
        }
    }

    fn give(&mut self, slot: usize, given: Attempt, pins: &Pins, machine: &Machine, shared: &mut Shared) {
        let Attempt { job, task, attempt } = given;
        let ready = match self.jobs.remove(&job) {
            Some(Stage::Ready(prepared)) => Some(prepared),
            _ => self.like_example(task, attempt),
        };
        let not_taken = WorkEvent::Ended { slot, job, wall: None, outcome: None };
        let Some(mut prepared) = ready else {
            shared.events.follow_up(not_taken);
            return self.cannot_run(job, task, anyhow::anyhow!("it has to be prepared").into(), None, pins, shared);
        };
        let most = shared.settings.get().limits.task_time.0;
        let limit = prepared.manifest.time_limit_on(machine.speed_mops());
        prepared.job.time_limit = Some(limit.min(most));
        match self.workers.append(slot, &prepared.job) {
            Ok(number) => self.runs[slot].push_back(Given { job, task, prepared, limit, number }),
            Err(error) => {
                shared.events.follow_up(not_taken);
                self.cannot_run(job, task, error.into(), Some(prepared), pins, shared);
            }
        }
    }

    fn cannot_run(
        &mut self,
        job: JobId,
        task: TaskId,
        error: PrepareError,
        prepared: Option<Box<Prepared>>,
        pins: &Pins,
        shared: &mut Shared,
    ) {
        let (blobs, speed_mops) = (shared.supplies.blobs.clone(), shared.kernel_mops);
        let takes_small = pins.takes_small_outputs();
        let collect = move || {
            drop(prepared);
            ended::not_prepared(&blobs, takes_small, error, speed_mops)
        };
        self.collect(job, task, collect, shared);
    }

    /// Keeps what came of a job, beside the loop.
    fn collect(
        &mut self,
        job: JobId,
        task: TaskId,
        collect: impl FnOnce() -> Collected + Send + 'static,
        shared: &mut Shared,
    ) {
        self.jobs.insert(job, Stage::Keeping);
        let collected = move || Done::Collected { job, task, collected: collect() };
        let lost = Done::Collected { job, task, collected: Collected::not_started() };
        shared.jobs.spawn_blocking(collected, lost);
    }

    /// What came of a job is kept.
    pub(super) fn collected(&mut self, job: JobId, task: TaskId, collected: Collected, shared: &mut Shared) {
        // Where it is not there, nobody waits for it any more.
        if self.jobs.remove(&job).is_none() {
            return;
        }
        let Collected { outcome, pin } = collected;
        if let Some(pin) = pin {
            self.jobs.insert(job, Stage::Kept(pin));
        }
        shared.events.tell(WorkEvent::Over { job, task, outcome });
    }

    fn take_back(&mut self, slot: usize, shared: &mut Shared) {
        let numbers = self.workers.take_back(slot);
        let run = &mut self.runs[slot];
        let (back, begun): (Vec<Given>, Vec<Given>) =
            run.drain(..).partition(|given| numbers.binary_search(&given.number).is_ok());
        run.extend(begun);
        let jobs = back.iter().map(|given| given.job).collect();
        for Given { job, prepared, .. } in back {
            self.jobs.insert(job, Stage::Ready(prepared));
        }
        shared.events.follow_up(WorkEvent::TakenBack { slot, jobs });
    }

    /// A worker's run of a task has ended: of which bag, and how long it took.
    pub(super) fn ended(&mut self, event: WorkerEvent, pins: &Pins, shared: &mut Shared) -> Option<(BagId, Duration)> {
        let (slot, mut ended) = Ended::of(event);
        let Some(Given { job, task, prepared, limit: of_bag, .. }) = self.runs[slot].pop_front() else {
            tracing::error!(slot, "a worker ended that nobody had started");
            return None;
        };
        self.tasks_run += u64::from(matches!(ended.outcome, Outcome::Exited { .. }));
        ended.cut = match ended.outcome {
            Outcome::TimedOut { limit } => limit < of_bag,
            Outcome::OverDisk { limit_bytes } => limit_bytes < prepared.manifest.disk_bytes,
            _ => false,
        };
        ended.is_merge = prepared.manifest.is_merge(task.index);
        ended.times = prepared.manifest.times_filled();
        let wall = ended.wall;
        let (blobs, speed_mops) = (shared.supplies.blobs.clone(), shared.kernel_mops);
        let takes_small = pins.takes_small_outputs();
        let rules = Rules::of(&prepared.manifest, task.index, shared.settings.get().limits.output.0);
        let untouched =
            takes_small.then(|| ended::collect_untouched(&blobs, &prepared.job, &rules, &ended, speed_mops));
        let outcome = untouched.flatten();
        if outcome.is_some() {
            prepared.leave_nothing();
        } else {
            let collect = move || ended::collect(&blobs, takes_small, Some(&prepared.job), &rules, &ended, speed_mops);
            self.collect(job, task, collect, shared);
        }
        shared.events.tell(WorkEvent::Ended { slot, job, wall: Some(wall), outcome });
        Some((task.bag, wall))
    }

    fn forget(&mut self, job: JobId, shared: &mut Shared) {
        match self.jobs.remove(&job) {
            Some(Stage::Preparing(under_way)) => under_way.abort(),
            Some(Stage::Ready(prepared)) => shared.discard(prepared),
            // Released when all that was ordered with this is carried out.
            Some(Stage::Kept(pin)) => shared.events.pin(pin),
            Some(Stage::Keeping) | None => {}
        }
    }

    /// The agent ends: nothing starts any more, and what runs is gone at once; it runs again after the restart, or elsewhere.
    pub(super) fn end(&mut self) {
        self.ends = true;
        task::stop_all(&self.workers);
    }

    /// Ends the workers. Blocks. What they ran in can be removed then: dropping the result does.
    pub(super) fn shut_down(self) -> impl Sized {
        self.workers.shutdown();
        (self.runs, self.jobs, self.examples)
    }
}

fn tell_no_memory(task: TaskId, wanted: ByteSize, taken: ByteSize, machine: &Machine, shared: &Shared) {
    let in_use = machine.owner().is_in_use();
    let name = if in_use { "limits.in_use.memory" } else { "limits.memory" };
    let cap = shared.memory_cap(in_use);
    let (bag, index) = (task.bag, task.index);
    tracing::info!(%bag, index, "a task cannot start yet: it may take {wanted} of memory, {name} is {cap}, {taken} are taken");
}
