//! What simulated machines do besides sending messages: they write to disks, run tasks, and fetch outputs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::{FetchEnd, FetchId, FirstTask, WorkEvent, WorkOrder, WriteEnd, WriteId};
use idlewood_overlay::PeerId;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{
    BagId, BlobId, Change, Checkpoint, Event, Finished, Record as StoreRecord, SMALL_OUTPUT_BYTES_MAX, SmallOutput,
    StartMade, TaskId, TaskOutcome, TaskResult,
};

use super::observed::Observed;
use super::shard::{LOCAL_DELAY, Occurrence, Shard};
use super::surroundings::Surroundings;
use crate::event_queue::HostIndex;
use crate::fetching::{Needy, Purpose};
use crate::host::{Ending, Host};
use crate::scenario::Flaw;
use crate::workers::Going;

impl Shard {
    // ---- the disk ----

    pub(super) fn commit(&mut self, host: HostIndex, around: &Surroundings) {
        let Some((write, _)) = self.becomes_durable(host) else { return };
        let end = WriteEnd::Durable;
        self.give(host, idlewood_machine::Event::Written { write, end }, around);
    }

    /// The oldest write under way becomes durable: its number, and what changed.
    fn becomes_durable(&mut self, host: HostIndex) -> Option<(WriteId, Vec<Arc<Change>>)> {
        let Host { store, flawed, .. } = self.host_mut(host);
        let (write, changes) = store.commit(|key| flawed.breaks(Flaw::DropsRecords, key))?;
        for change in &changes {
            if let Change::Put(StoreRecord::Done { bag, result, .. }) = &**change {
                let task = TaskId { bag: *bag, index: result.index };
                self.counts.false_results += u64::from(result.success && result.output != output_of(task, None));
                let has_output = result.content.is_some() || self.host(host).store.has_fetched(task);
                self.tell(host, Observed::Journalled { task, success: result.success, has_output });
            }
        }
        Some((write, changes))
    }

    /// All writes under way become durable, and the machine does not hear of it: it goes down in that moment. So nobody
    /// is told of the bags that it accepted or closed with them.
    pub(super) fn end_writes(&mut self, host: HostIndex) {
        while let Some((_, changes)) = self.becomes_durable(host) {
            for change in changes {
                if let Change::Put(StoreRecord::Bag { bag, closed, .. }) = &*change {
                    self.tell(host, Observed::Accepted(bag.id));
                    closed.iter().for_each(|_| self.tell(host, Observed::Closed(bag.id)));
                }
            }
        }
    }

    // ---- tasks ----

    /// Carries out an order about workers and their jobs.
    pub(super) fn work(&mut self, host: HostIndex, order: WorkOrder, around: &Surroundings) {
        let now = self.now;
        let machine = self.host_mut(host);
        match order {
            WorkOrder::Prepare { job, task, attempt, bag, checkpoint } => {
                machine.preparing.insert(job);
                if let Some(checkpoint) = checkpoint {
                    machine.goes_on_from(task, around.work_mops(task), done_mops(checkpoint.blob));
                }
                self.get_needs(host, Needy { job, task, attempt, submitter: bag.submitter }, around);
            }
            WorkOrder::Give { task, .. } if machine.flawed.breaks(Flaw::ForgetsTasks, &task.index.to_le_bytes()) => {}
            WorkOrder::Give { slot, job, task, .. } => {
                let going = machine.run((slot, job), task, around.program(task.bag), around.work_mops(task), now);
                self.go_on(host, going);
            }
            WorkOrder::TakeBack { slot } => {
                let jobs = machine.workers.take_back(slot);
                self.answer(host, WorkEvent::TakenBack { slot, jobs });
            }
            WorkOrder::Stop { slot } => {
                if let Some(task) = machine.workers.kill(slot, now) {
                    let life = machine.life;
                    self.tell(host, Observed::Stopped(task));
                    self.cause(host, now + LOCAL_DELAY, host, Occurrence::Stopped { life, slot });
                }
            }
            WorkOrder::Freeze { slot } => {
                let (task, _) = machine.workers.freeze(slot, true, now);
                self.counts.preemptions += u64::from(task.is_some());
                task.into_iter().for_each(|task| self.tell(host, Observed::Frozen(task)));
            }
            WorkOrder::Thaw { slot } => {
                let (task, going) = machine.workers.freeze(slot, false, now);
                // If another job begins, the frozen one has ended.
                let is_there = going.is_none_or(|going| going.began.is_none());
                task.filter(|_| is_there).into_iter().for_each(|task| self.tell(host, Observed::Thawed(task)));
                self.go_on(host, going);
            }
            WorkOrder::FreezeAll => drop(machine.workers.freeze_all(true, now)),
            WorkOrder::ThawAll => {
                let going = machine.workers.freeze_all(false, now);
                self.go_on(host, going);
            }
            WorkOrder::Forget { job: forgotten } => {
                if machine.preparing.remove(&forgotten) {
                    machine.fetching.forget(|purpose| matches!(purpose, Purpose::Job(needy) if needy.job == forgotten));
                    self.proceed(host, None, around);
                }
            }
            // Simulated tasks take no memory.
            WorkOrder::KeepExample { .. } | WorkOrder::ForgetExample { .. } | WorkOrder::TellNoMemory { .. } => {}
        }
    }

    /// Packs the last checkpoints of these tasks, which stand still, and tells the machine when they are on its disk.
    pub(super) fn keep_checkpoints(
        &mut self,
        host: HostIndex,
        stop: u64,
        bag: BagId,
        tasks: &IntervalSet,
        around: &Surroundings,
    ) {
        let (now, machine) = (self.now, self.host_mut(host));
        let mut checkpoints = BTreeMap::new();
        for index in tasks.indices() {
            let task = TaskId { bag, index };
            let Some(done_mops) = machine.checkpoint_mops(task, around.work_mops(task)) else { continue };
            // It is fetched like an output, and as large.
            machine.store.produce(task);
            let checkpoint = Checkpoint { blob: checkpoint_of(done_mops), bytes: around.output_bytes(task) };
            checkpoints.insert(index, Some(checkpoint));
        }
        let life = machine.life;
        let event = Box::new(Event::CheckpointsKept { stop, bag, checkpoints });
        self.cause(host, now + around.scenario.persist, host, Occurrence::Kept { life, event });
    }

    /// Reads results off the disk for another keeper of their bag.
    pub(super) fn read_results(&mut self, host: HostIndex, bag: BagId, tasks: &IntervalSet, to: PeerId) {
        let (now, machine) = (self.now, self.host(host));
        let results = tasks.indices().filter_map(|index| machine.store.result(TaskId { bag, index })).collect();
        let (life, event) = (machine.life, Box::new(Event::ResultsRead { bag, to, results }));
        self.cause(host, now, host, Occurrence::Kept { life, event });
    }

    /// Makes what a task of an application in rounds begins with, and tells the machine when it is on its disk.
    pub(super) fn make_start(&mut self, host: HostIndex, task: TaskId, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        // It is fetched like an output, and as large.
        machine.store.produce(task);
        let start = Checkpoint { blob: checkpoint_of(0.0), bytes: around.output_bytes(task) };
        let (life, made) = (machine.life, StartMade::Here { start, has_converged: false });
        let event = Box::new(Event::StartMade { task, made });
        self.cause(host, now + around.scenario.persist, host, Occurrence::Kept { life, event });
    }

    /// Plans the answer to an order about work: the machine gets it at this instant, as an event of its own.
    pub(super) fn answer(&mut self, host: HostIndex, event: WorkEvent) {
        let (now, life) = (self.now, self.host(host).life);
        self.cause(host, now, host, Occurrence::Work { life, event });
    }

    /// Gives a machine such an answer, unless it is about the preparation of a job which the machine has forgotten.
    pub(super) fn answered(&mut self, host: HostIndex, event: WorkEvent, around: &Surroundings) {
        if let WorkEvent::Prepared { job, .. } | WorkEvent::Over { job, .. } = event
            && !self.host_mut(host).preparing.remove(&job)
        {
            return;
        }
        self.give(host, event, around);
    }

    /// Plans the ends of tasks that go on.
    pub(super) fn go_on(&mut self, host: HostIndex, going: impl IntoIterator<Item = Going>) {
        let life = self.host(host).life;
        for Going { slot, end, serial, began } in going {
            began.into_iter().for_each(|task| self.tell(host, Observed::Started(task)));
            self.cause(host, end, host, Occurrence::RunEnds { life, slot, serial });
        }
    }

    pub(super) fn end_run(&mut self, host: HostIndex, slot: usize, serial: u64, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let Some((job, next)) = machine.workers.finish(slot, serial, now) else { return };
        machine.store.produce(job.task);
        let outcome = TaskOutcome::Finished(self.finished(host, job.task, job.work_mops, around));
        self.go_on(host, next);
        let (job, wall) = (job.id, Some(job.ran));
        self.give(host, WorkEvent::Ended { slot, job, wall, outcome: Some(outcome) }, around);
    }

    /// A worker has ended the job that it was told to stop.
    pub(super) fn end_killed(&mut self, host: HostIndex, slot: usize, around: &Surroundings) {
        let now = self.now;
        let Some((job, next)) = self.host_mut(host).workers.killed(slot, now) else { return };
        self.go_on(host, next);
        let (job, wall) = (job.id, Some(job.ran));
        self.give(host, WorkEvent::Ended { slot, job, wall, outcome: Some(TaskOutcome::Stopped) }, around);
    }

    /// Result of a task that has run for its full time.
    fn finished(&mut self, host: HostIndex, task: TaskId, work_mops: f64, around: &Surroundings) -> Finished {
        let ending = self.host_mut(host).ending(&around.scenario);
        self.tell(host, Observed::Ended { task, ending });
        self.outcome_of(host, task, work_mops, ending, around)
    }

    fn outcome_of(
        &self,
        host: HostIndex,
        task: TaskId,
        work_mops: f64,
        ending: Ending,
        around: &Surroundings,
    ) -> Finished {
        let liar = self.host(host).lies.then_some(host);
        // As in the agent: processor time, times the speed that the machine believes to have.
        let work_mops = work_mops * self.host(host).overrates;
        Finished {
            success: ending == Ending::Success,
            crashed: ending == Ending::Crash,
            output: output_of(task, liar),
            output_bytes: around.output_bytes(task),
            content: small_output(around.output_bytes(task)),
            work_mops,
            exit_code: None,
            fingerprint: None,
            times: 1.0,
        }
    }

    // ---- outputs ----

    pub(super) fn end_fetch(
        &mut self,
        host: HostIndex,
        fetch: FetchId,
        task: TaskId,
        here: bool,
        around: &Surroundings,
    ) {
        let machine = self.host_mut(host);
        if !machine.fetches.remove(&fetch) {
            return;
        }
        let is_checkpoint = machine.checkpoint_fetches.remove(&fetch);
        if here && !is_checkpoint {
            machine.store.fetch(task);
        }
        let end = if here { FetchEnd::Here { checkpoint: None } } else { FetchEnd::NotHad };
        self.give(host, idlewood_machine::Event::FetchEnded { fetch, end }, around);
    }

    // ---- how long a task takes ----

    /// Runs the first task of a bag on its submitter's machine, beside all other tasks.
    pub(super) fn run_first_task(&mut self, host: HostIndex, bag: BagId, limit: Duration, around: &Surroundings) {
        let task = TaskId { bag, index: 0 };
        let (now, machine) = (self.now, self.host_mut(host));
        let takes = Duration::from_secs_f64(around.work_mops(task) / machine.speed_mops).max(LOCAL_DELAY);
        let life = machine.life;
        let (cpu, is_whole) = (takes.min(limit), takes <= limit);
        self.tell(host, Observed::Started(task));
        self.cause(host, now + cpu, host, Occurrence::FirstTaskEnds { life, bag, cpu, is_whole });
    }

    /// The first task ends, by itself or at its limit.
    pub(super) fn end_first_task(
        &mut self,
        host: HostIndex,
        bag: BagId,
        cpu: Duration,
        is_whole: bool,
        around: &Surroundings,
    ) {
        let task = TaskId { bag, index: 0 };
        let work_mops = cpu.as_secs_f64() * self.host(host).speed_mops;
        let finished = if is_whole {
            // The submitter, who wants the output, has it on its own disk.
            let store = &mut self.host_mut(host).store;
            store.produce(task);
            store.fetch(task);
            self.finished(host, task, work_mops, around)
        } else {
            self.tell(host, Observed::Stopped(task));
            self.outcome_of(host, task, work_mops, Ending::Failure, around)
        };
        let first = FirstTask::Ran { cpu, result: TaskResult::of(task.index, 0, finished) };
        self.give(host, idlewood_machine::Event::FirstTaskEnded { bag, first }, around);
    }
}

/// A small output, which is sent with its result, as agents do. It is zeros, which do not have the output's hash: no
/// simulated machine checks that.
fn small_output(bytes: u64) -> Option<SmallOutput> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= SMALL_OUTPUT_BYTES_MAX)?;
    SmallOutput::new(&[0; SMALL_OUTPUT_BYTES_MAX][..bytes])
}

/// The content address of a simulated checkpoint at which so much work is done, in Mop: the number itself.
fn checkpoint_of(done_mops: f64) -> BlobId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&done_mops.to_le_bytes());
    BlobId(bytes)
}

/// What [`checkpoint_of`] was made from.
fn done_mops(checkpoint: BlobId) -> f64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&checkpoint.0[..8]);
    f64::from_le_bytes(bytes)
}

/// The content address of a simulated output, or of what a liar gives instead.
fn output_of(task: TaskId, liar: Option<HostIndex>) -> BlobId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&task.bag.0);
    hasher.update(&task.index.to_le_bytes());
    liar.iter().for_each(|liar| {
        hasher.update(&liar.to_le_bytes());
    });
    BlobId(*hasher.finalize().as_bytes())
}
