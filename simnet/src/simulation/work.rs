//! What simulated machines do besides sending messages: they write to disks, run tasks, and fetch outputs.

use std::time::Duration;

use idlewood_machine::{FETCHES_MAX, FetchEnd, FetchId, FirstTask, JobId, Wanted, WorkEvent, WorkOrder, WriteEnd};
use idlewood_scheduler::{
    BagId, BlobId, Change, Finished, Record as StoreRecord, SmallOutput, TaskId, TaskOutcome, TaskResult,
};

use super::deed::Deed;
use super::observed::Observed;
use super::shard::{Fetch, LOCAL_DELAY, Occurrence, Shard};
use super::surroundings::Surroundings;
use crate::event_queue::HostIndex;
use crate::host::{Ending, host_index};
use crate::workers::Going;

/// How long a fetch may take beyond the time that its own bytes, and those of other outputs, need on the link. Our
/// choice: an agent's patience.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest output that is sent with its result; larger ones are fetched. The limit of agents is higher; in a simulation
/// the disks of all machines are in memory.
const OUTPUT_IN_RESULT_BYTES_MAX: usize = 256;

impl Shard {
    // ---- the disk ----

    pub(super) fn commit(&mut self, host: HostIndex, around: &Surroundings) {
        let Some((write, changes)) = self.host_mut(host).store.commit() else { return };
        for change in changes {
            if let Change::Put(StoreRecord::Done { bag, result, .. }) = &*change {
                let task = TaskId { bag: *bag, index: result.index };
                self.counts.false_results += u64::from(result.success && result.output != output_of(task, None));
                let has_output = result.content.is_some() || self.host(host).store.has_fetched(task);
                self.tell(host, Observed::Journalled { task, success: result.success, has_output });
            }
        }
        let end = WriteEnd::Durable;
        self.give(host, idlewood_machine::Event::Written { write, end }, around);
    }

    // ---- tasks ----

    /// Carries out an order about workers and their jobs.
    pub(super) fn work(&mut self, host: HostIndex, order: WorkOrder, around: &Surroundings) {
        let now = self.now;
        let machine = self.host_mut(host);
        match order {
            WorkOrder::Prepare { job, task, attempt, .. } => self.prepare(host, job, task, attempt),
            WorkOrder::Give { slot, job, task, .. } => {
                let going = machine.run(slot, job, task, around.work_mops(task), now);
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
            WorkOrder::Forget { job } => {
                machine.preparing.remove(&job);
            }
            // Simulated tasks need no files, and take no memory.
            WorkOrder::KeepExample { .. } | WorkOrder::ForgetExample { .. } | WorkOrder::TellNoMemory { .. } => {}
        }
    }

    /// Prepares a job: a simulated machine has the manifest at once.
    fn prepare(&mut self, host: HostIndex, job: JobId, task: TaskId, attempt: u32) {
        if self.is_watched {
            self.deeds.push((host, Deed::Started { task, attempt }));
        }
        self.host_mut(host).preparing.insert(job);
        self.answer(host, WorkEvent::Prepared { job, memory_bytes: 0, is_example: true });
    }

    /// Plans the answer to an order about work: the machine gets it at this instant, as an event of its own.
    fn answer(&mut self, host: HostIndex, event: WorkEvent) {
        let (now, life) = (self.now, self.host(host).life);
        self.cause(host, now, host, Occurrence::Work { life, event });
    }

    /// Gives a machine such an answer, unless it is that a job is prepared which the machine has forgotten.
    pub(super) fn answered(&mut self, host: HostIndex, event: WorkEvent, around: &Surroundings) {
        if let WorkEvent::Prepared { job, .. } = event
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
        Finished {
            success: ending == Ending::Success,
            crashed: ending == Ending::Crash,
            output: output_of(task, liar),
            output_bytes: around.output_bytes(task),
            content: small_output(around.output_bytes(task)),
            work_mops,
            exit_code: None,
        }
    }

    // ---- outputs ----

    /// A submitter fetches an output.
    pub(super) fn fetch(&mut self, host: HostIndex, id: FetchId, wanted: &Wanted, around: &Surroundings) {
        let now = self.now;
        let (task, bytes, from) = (wanted.task, wanted.output_bytes, wanted.from.peer);
        let machine = self.host_mut(host);
        let life = machine.life;
        machine.fetches.insert(id);
        if from == machine.id {
            let here = machine.store.has_produced(task);
            self.cause(host, now + LOCAL_DELAY, host, Occurrence::FetchEnds { life, id, task, here });
            return;
        }
        let ahead = machine.link.down.takes(bytes) * (2 * FETCHES_MAX);
        let target = host_index(from);
        let travel = around.network.latency(&mut machine.network_rng, host, target);
        let late = Occurrence::FetchEnds { life, id, task, here: false };
        if machine.misses(&around.scenario) {
            // The fetch ends without the output.
            self.cause(host, now + 2 * travel, host, late);
            return;
        }
        self.cause(host, now + FETCH_TIMEOUT + ahead, host, late);
        if target < around.scenario.nodes {
            let fetch = Fetch { to: host, life, id, task, bytes };
            self.cause(host, now + travel, target, Occurrence::FetchAsked { fetch });
        }
    }

    /// A machine is asked for an output, and begins to send it if it has it.
    pub(super) fn serve(&mut self, host: HostIndex, fetch: Fetch) {
        let now = self.now;
        let machine = self.host_mut(host);
        if machine.is_up() && machine.store.has_produced(fetch.task) {
            let life = machine.life;
            let (at, taken_us) = machine.link.send_data(now, fetch.bytes);
            self.counts.outputs.count += 1;
            self.counts.outputs.bytes += fetch.bytes;
            self.cause(host, at, host, Occurrence::FetchSent { life, fetch, taken_us });
        }
    }

    /// The last byte of an output leaves a machine, unless messages that were sent meanwhile delay it.
    pub(super) fn hand_over(&mut self, host: HostIndex, fetch: Fetch, taken_us: u64, around: &Surroundings) {
        let now = self.now;
        let machine = self.host_mut(host);
        if let Some((at, taken_us)) = machine.link.late(now, taken_us) {
            let life = machine.life;
            self.cause(host, at, host, Occurrence::FetchSent { life, fetch, taken_us });
            return;
        }
        let travel = around.network.latency(&mut machine.network_rng, host, fetch.to);
        self.cause(host, now + travel, fetch.to, Occurrence::FetchArrived { fetch, passed: false });
    }

    /// The last byte of an output reaches a machine; `passed`: it has also passed the machine's downlink.
    pub(super) fn take_in(&mut self, host: HostIndex, fetch: Fetch, passed: bool, around: &Surroundings) {
        let now = self.now;
        if !passed {
            let at = self.host_mut(host).link.receive_data(now, fetch.bytes);
            if at > now {
                self.cause(host, at, host, Occurrence::FetchArrived { fetch, passed: true });
                return;
            }
        }
        self.end_fetch(host, fetch.id, fetch.task, true, around);
    }

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
        if here {
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
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= OUTPUT_IN_RESULT_BYTES_MAX)?;
    SmallOutput::new(&[0; OUTPUT_IN_RESULT_BYTES_MAX][..bytes])
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
