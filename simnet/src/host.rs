//! One simulated machine: its peer, its disk, the tasks that run on it, and the hash of all that its peer was given
//! and answered.
//!
//! The clock of a peer starts with its machine, as a driver's does: nothing in the protocol may depend on clocks that
//! agree. A host holds no other machine's state and draws only from its own streams.

use std::collections::BTreeSet;

use idlewood_machine::policy::OwnerSettings;
use idlewood_machine::{Effect, Event, FetchId, JobId, Machine};
use idlewood_overlay::{Contact, GridId, PeerId, Time, WallTime};
use idlewood_scheduler::{BagId, DeclineReason, Peer, TaskId};
use rand::RngExt;

use crate::churn::{Churn, Owner};
use crate::condition::{Condition, Pause};
use crate::event_queue::{HostIndex, Key};
use crate::link::Link;
use crate::random::{SmallStream, digest, happens};
use crate::scenario::{BadRouting, Scenario};
use crate::store::Store;
use crate::workers::{Going, Job, Workers};
use crate::workload::{bandwidths_bytes_s, slots, speed_mops};

/// Wall-clock time at the start of the simulation: 2026-01-01 UTC. No result depends on it.
pub(crate) const EPOCH: WallTime = WallTime(1_767_225_600_000_000);
/// Events that one machine may have at one instant before we call it a live-lock: the writes of a flush, some for each of very many
/// machines, become durable at one.
const EVENTS_AT_ONE_INSTANT_MAX: u32 = 1_000_000;

/// How a try of a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Failure,
    /// Its worker dies.
    Crash,
}

/// One machine.
pub(crate) struct Host {
    pub(crate) index: HostIndex,
    pub(crate) id: PeerId,
    pub(crate) speed_mops: f64,
    pub(crate) churn: Churn,
    pub(crate) owner: Owner,
    /// Whether it makes results up.
    pub(crate) lies: bool,
    /// What its router does with what others send through it, where that is not what it should.
    pub(crate) bad_routing: Option<BadRouting>,
    /// Which bags its owner declines, in percent.
    declines_percent: f64,
    seed: u64,
    /// Draws for the messages that it sends.
    pub(crate) network_rng: SmallStream,
    /// For whom it joins through.
    pub(crate) contact_rng: SmallStream,
    /// For how tries of tasks end here.
    ending_rng: SmallStream,
    /// For outputs that do not come.
    fetch_rng: SmallStream,
    pub(crate) link: Link,
    pub(crate) store: Store,
    /// Outputs that are on their way here.
    pub(crate) fetches: BTreeSet<FetchId>,
    pub(crate) condition: Condition,
    /// None while the machine is down.
    machine: Option<Machine>,
    /// Counts its starts: what was meant for an earlier life is void.
    pub(crate) life: u32,
    /// Counts its crashes: what waited in the uplink then is lost.
    pub(crate) crashes: u32,
    /// Of the last life; it stands with the identity, in a place that no failure reaches.
    incarnation: u64,
    /// When this life began.
    started: Time,
    slots: u32,
    pub(crate) workers: Workers,
    /// Jobs that are being prepared.
    pub(crate) preparing: BTreeSet<JobId>,
    sequence: u64,
    /// When the pending wake is due.
    wake: Option<Time>,
    /// The last instant with an event, and how many there were.
    instant: (Time, u32),
    /// Digest of everything that the peers of this machine were given and answered.
    pub(crate) trace: u64,
}

impl Host {
    pub(crate) fn new(scenario: &Scenario, index: HostIndex) -> Self {
        let (number, slots) = (u64::from(index), slots(scenario, index));
        let places = idlewood_scheduler::Config { slots, ..scenario.peer.clone() }.places();
        Self {
            index,
            id: peer_id(scenario.seed, index),
            speed_mops: speed_mops(scenario, index),
            churn: Churn::new(scenario, index),
            owner: Owner::new(scenario, index),
            lies: happens(&mut SmallStream::new(scenario.seed, "liar", number), scenario.liars_percent),
            bad_routing: happens(
                &mut SmallStream::new(scenario.seed, "bad router", number),
                scenario.bad_routers_percent,
            )
            .then_some(scenario.bad_routing),
            declines_percent: declines_percent(scenario, number),
            seed: scenario.seed,
            network_rng: SmallStream::new(scenario.seed, "network", number),
            contact_rng: SmallStream::new(scenario.seed, "contact", number),
            ending_rng: SmallStream::new(scenario.seed, "ending", number),
            fetch_rng: SmallStream::new(scenario.seed, "fetch", number),
            link: Link::new(bandwidths_bytes_s(scenario, index), scenario.first_arrival()),
            store: Store::default(),
            fetches: BTreeSet::new(),
            condition: Condition::default(),
            machine: None,
            life: 0,
            crashes: 0,
            incarnation: 0,
            started: Time::ZERO,
            slots,
            workers: Workers::new(slots, places, scenario.checkpoint_interval),
            preparing: BTreeSet::new(),
            sequence: 0,
            wake: None,
            instant: (Time::ZERO, 0),
            trace: 0,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.machine.as_ref().map(Machine::peer)
    }

    /// Whether this life of the machine goes on.
    pub(crate) fn lives(&self, life: u32) -> bool {
        self.is_up() && self.life == life
    }

    /// How others reach it, as far as a stranger knows. Its address is its number: nothing dials it, but messages
    /// are as long as with addresses.
    pub(crate) fn contact(&self) -> Contact {
        Contact { peer: self.id, incarnation: 0, address: self.index.to_string().into(), nonce: None }
    }

    /// What its wall clock shows.
    pub(crate) fn wall(&self, now: Time) -> WallTime {
        self.condition.wall(EPOCH + now.since(Time::ZERO))
    }

    /// The machine is switched on; its peer knows what is on the disk. `expects_grid`: it will be given a contact.
    ///
    /// # Panics
    /// When the peer refuses the scenario's settings, which [`Scenario::validate`] excludes.
    pub(crate) fn start(&mut self, scenario: &Scenario, expects_grid: bool, now: Time) {
        self.life += 1;
        self.started = now;
        self.wake = None;
        self.condition.restart();
        let wall_now = self.wall(now);
        let incarnation = u64::try_from(wall_now.0 / 1000).unwrap_or(0).max(self.incarnation + 1);
        self.incarnation = incarnation;
        let me = Contact { incarnation, ..self.contact() };
        let seed = digest(scenario.seed, "peer", u64::from(self.index) << 32 | u64::from(self.life));
        let mut seed_bytes = [0; 8];
        seed_bytes.copy_from_slice(&seed[..8]);
        let config = idlewood_scheduler::Config {
            slots: self.slots,
            speed_mops: self.speed_mops,
            expects_grid,
            ..scenario.peer.clone()
        };
        let grid = GridId(digest(scenario.seed, "grid", 0));
        let seed = u64::from_le_bytes(seed_bytes);
        let peer = Peer::restore(config.clone(), grid, me, seed, Time::ZERO, wall_now, self.store.records());
        let peer = peer.expect("settings that were validated");
        let settings =
            OwnerSettings { idle: scenario.owner_idle, vacate: scenario.peer.vacate_after, ..OwnerSettings::default() };
        self.machine = Some(Machine::new(peer, &config, settings, Time::ZERO));
    }

    /// The power is cut. `queue_lost`: what it held for others is gone too.
    pub(crate) fn crash(&mut self, queue_lost: bool, now: Time) {
        self.crashes += 1;
        self.link.crash(now);
        self.go_down(queue_lost, now);
    }

    /// Its peer has left in good order: nothing of what it sent is lost.
    pub(crate) fn leave(&mut self, now: Time) {
        self.link.leave(now);
        self.go_down(false, now);
    }

    fn go_down(&mut self, queue_lost: bool, now: Time) {
        self.machine = None;
        self.condition.pause = None;
        self.store.lose_pending();
        self.workers.go_down(queue_lost, now);
        if queue_lost {
            self.store.lose_queue();
        }
        self.fetches.clear();
        self.preparing.clear();
        self.wake = None;
    }

    /// Gives the machine one event; appends its effects.
    ///
    /// # Panics
    /// On a live-lock: more events at one instant than any correct peer has.
    pub(crate) fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.instant = if self.instant.0 == now { (now, self.instant.1 + 1) } else { (now, 1) };
        assert!(
            self.instant.1 <= EVENTS_AT_ONE_INSTANT_MAX,
            "live-lock: machine {} has had {EVENTS_AT_ONE_INSTANT_MAX} events at {now:?}, the last is {event:?}",
            self.index,
        );
        let here = self.condition.clock(self.started, now);
        if let Some(machine) = &mut self.machine {
            machine.handle(here, event, effects);
            machine.end_turn(effects);
        }
    }

    /// When the pending wake has to be replaced by an earlier one: its time.
    pub(crate) fn arm(&mut self, now: Time) -> Option<Time> {
        let deadline = self.deadline()?.max(now);
        if self.wake.is_some_and(|wake| wake <= deadline) {
            return None;
        }
        self.wake = Some(deadline);
        self.wake
    }

    /// A wake fires: whether it is the pending one and the peer has something to do.
    pub(crate) fn wakes(&mut self, now: Time) -> bool {
        if self.wake != Some(now) {
            return false;
        }
        self.wake = None;
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// The machine's deadline in simulated time.
    fn deadline(&self) -> Option<Time> {
        let deadline = self.machine.as_ref()?.deadline()?;
        Some(self.condition.moment(self.started, deadline))
    }

    /// The place in the global order of an event that this machine causes.
    pub(crate) fn key(&mut self, at: Time, target: HostIndex) -> Key {
        self.sequence += 1;
        Key { at, target, source: self.index, sequence: self.sequence }
    }

    // ---- the owner ----

    /// What its owner says of a bag of somebody else.
    pub(crate) fn verdict(&self, bag: BagId) -> Result<(), DeclineReason> {
        let drawn = digest(self.seed, "verdict", u64::from(self.index));
        let mut first = [0; 8];
        drawn.iter().zip(&bag.0).zip(&mut first).for_each(|((drawn, bag), byte)| *byte = drawn ^ bag);
        let mut rng = SmallStream::new(u64::from_le_bytes(first), "verdict", u64::from(self.index));
        if happens(&mut rng, self.declines_percent) { Err(DeclineReason::Program) } else { Ok(()) }
    }

    // ---- tasks ----

    /// A worker is given a job.
    ///
    /// # Panics
    /// When the owner does not want the bag, or as [`Workers::give`]: the machine broke its promise.
    pub(crate) fn run(&mut self, slot: usize, job: JobId, task: TaskId, work_mops: f64, now: Time) -> Option<Going> {
        let is_own = || self.peer().is_some_and(|peer| peer.bag(task.bag).is_some());
        assert!(
            self.verdict(task.bag).is_ok() || is_own(),
            "machine {} starts {task:?}, which is declined",
            self.index
        );
        self.workers.give(slot, Job::new(job, task, work_mops, self.speed_mops), now)
    }

    /// How a try ends that has run for as long as it takes. A machine that makes results up runs nothing that could fail.
    pub(crate) fn ending(&mut self, scenario: &Scenario) -> Ending {
        if self.lies || !scenario.has_failing_tries() {
            return Ending::Success;
        }
        let drawn = self.ending_rng.random::<f64>() * 100.0;
        if drawn < scenario.crashes_percent {
            Ending::Crash
        } else if drawn < scenario.crashes_percent + scenario.fails_percent {
            Ending::Failure
        } else {
            Ending::Success
        }
    }

    /// Whether an output that another machine has does not come this time.
    pub(crate) fn misses(&mut self, scenario: &Scenario) -> bool {
        happens(&mut self.fetch_rng, scenario.unfetched_percent)
    }

    /// The lid is shut: nothing is handled, and tasks stand still.
    pub(crate) fn shut(&mut self, pause: Pause, now: Time) {
        self.condition.pause = Some(pause);
        self.workers.shut(true, now);
    }

    /// The lid is opened: the tasks that go on.
    pub(crate) fn open(&mut self, now: Time) -> Vec<Going> {
        self.condition.pause = None;
        self.workers.shut(false, now)
    }
}

/// Which share of all bags the owner of a machine declines, in percent.
fn declines_percent(scenario: &Scenario, number: u64) -> f64 {
    let mut rng = SmallStream::new(scenario.seed, "choosy", number);
    if happens(&mut rng, scenario.choosy_percent) { rng.random::<f64>() * 100.0 } else { 0.0 }
}

/// The identity of a machine: its number, and 28 bytes that differ from run to run.
fn peer_id(seed: u64, index: HostIndex) -> PeerId {
    let mut id = digest(seed, "identity", u64::from(index));
    id[..4].copy_from_slice(&index.to_be_bytes());
    PeerId(id)
}

/// The number of the machine that has this identity, if there is one in the run.
pub(crate) fn host_index(id: PeerId) -> HostIndex {
    u32::from_be_bytes([id.0[0], id.0[1], id.0[2], id.0[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_tell_their_number() {
        for index in [0, 1, 77, 999_999] {
            assert_eq!(host_index(peer_id(5, index)), index);
        }
    }
}
