//! What machines do beside talking: durable writes, tasks, and the outputs of tasks on their way to submitters.

use std::time::Duration;

use idlewood_overlay::PeerId;
use idlewood_scheduler::{BlobId, Change, Event, Finished, Record as StoreRecord, SmallOutput, TaskId, TaskOutcome};

use super::Surroundings;
use super::shard::{Fetch, LOCAL_DELAY, Occurrence, Shard};
use super::world::News;
use crate::event_queue::HostIndex;
use crate::host::{Ending, host_index};
use crate::outputs::Wanted;

/// How long a fetch may take beyond the time that it and what goes before it need: our choice, an agent's patience.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Larger ones are fetched. Agents send more with a result; here the disks of all machines are in memory.
const OUTPUT_IN_RESULT_BYTES_MAX: usize = 256;

impl Shard {
    // ---- the disk ----

    pub(super) fn commit(&mut self, host: HostIndex, around: &Surroundings) {
        let Some((ticket, changes)) = self.host_mut(host).store.commit() else { return };
        for change in changes {
            if let Change::Put(StoreRecord::Done { bag, result, .. }) = change {
                let task = TaskId { bag, index: result.index };
                self.counts.false_results += u64::from(result.success && result.output != output_of(task, None));
                let has_output = result.content.is_some() || self.host(host).store.has_fetched(task);
                self.tell(host, News::Journalled { task, success: result.success, has_output });
            }
        }
        self.give(host, Event::Persisted(ticket), around);
    }

    // ---- tasks ----

    pub(super) fn end_run(&mut self, host: HostIndex, place: u32, serial: u64, around: &Surroundings) {
        let machine = self.host_mut(host);
        let Some(run) = machine.finish(place, serial) else { return };
        let liar = machine.lies.then_some(host);
        let ending = machine.ending(&around.scenario);
        machine.store.produce(run.task);
        self.tell(host, News::Ended { task: run.task, ending });
        let outcome = TaskOutcome::Finished(Finished {
            success: ending == Ending::Success,
            crashed: ending == Ending::Crash,
            output: output_of(run.task, liar),
            output_bytes: around.output_bytes(run.task),
            content: small_output(around.output_bytes(run.task)),
            work_mops: run.work_mops,
            exit_code: None,
        });
        self.give(host, Event::TaskEnded { task: run.task, outcome }, around);
    }

    // ---- outputs ----

    /// A submitter wants an output.
    pub(super) fn want(&mut self, host: HostIndex, task: TaskId, bytes: u64, from: PeerId, around: &Surroundings) {
        self.host_mut(host).outputs.push(Wanted { task, bytes, from });
        self.fetch(host, around);
    }

    /// Asks for as many outputs as may be under way.
    fn fetch(&mut self, host: HostIndex, around: &Surroundings) {
        let now = self.now;
        loop {
            let machine = self.host_mut(host);
            let life = machine.life;
            let Some((serial, Wanted { task, bytes, from })) = machine.outputs.next(around.scenario.fetches_max) else {
                return;
            };
            if from == machine.id {
                let here = machine.store.has_produced(task);
                self.cause(host, now + LOCAL_DELAY, host, Occurrence::FetchEnds { life, serial, task, here });
                continue;
            }
            let ahead = machine.link.down.takes(bytes) * (2 * around.scenario.fetches_max);
            let target = host_index(from);
            let travel = around.network.latency(&mut machine.network_rng, host, target);
            let late = Occurrence::FetchEnds { life, serial, task, here: false };
            if machine.misses(&around.scenario) {
                // It hears that there is nothing.
                self.cause(host, now + 2 * travel, host, late);
                continue;
            }
            self.cause(host, now + FETCH_TIMEOUT + ahead, host, late);
            if target < around.scenario.nodes {
                let fetch = Fetch { to: host, life, serial, task, bytes };
                self.cause(host, now + travel, target, Occurrence::FetchAsked { fetch });
            }
        }
    }

    /// This machine is asked for an output.
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

    /// The last byte of an output leaves this machine.
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

    /// The last byte of an output comes in.
    pub(super) fn take_in(&mut self, host: HostIndex, fetch: Fetch, passed: bool, around: &Surroundings) {
        let now = self.now;
        if !passed {
            let at = self.host_mut(host).link.receive_data(now, fetch.bytes);
            if at > now {
                self.cause(host, at, host, Occurrence::FetchArrived { fetch, passed: true });
                return;
            }
        }
        self.end_fetch(host, fetch.serial, fetch.task, true, around);
    }

    pub(super) fn end_fetch(&mut self, host: HostIndex, serial: u64, task: TaskId, here: bool, around: &Surroundings) {
        let machine = self.host_mut(host);
        if !machine.outputs.end(serial) {
            return;
        }
        if here {
            machine.store.fetch(task);
        }
        self.give(host, Event::Fetched { task, here, checkpoint: None }, around);
        self.fetch(host, around);
    }
}

/// The content address of a simulated output, or of what this machine says instead.
/// An output that goes with its result, as agents send them: zeros, whatever the hash is of, since nobody looks at them here.
fn small_output(bytes: u64) -> Option<SmallOutput> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= OUTPUT_IN_RESULT_BYTES_MAX)?;
    SmallOutput::new(&[0; OUTPUT_IN_RESULT_BYTES_MAX][..bytes])
}

fn output_of(task: TaskId, liar: Option<HostIndex>) -> BlobId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&task.bag.0);
    hasher.update(&task.index.to_le_bytes());
    liar.iter().for_each(|liar| {
        hasher.update(&liar.to_le_bytes());
    });
    BlobId(*hasher.finalize().as_bytes())
}
