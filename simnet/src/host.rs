//! One simulated machine: the `Machine` that ships, its disk, its link, its workers and their tasks, and a hash of the
//! events that it was given and of its orders.
//!
//! The clock of a machine starts when the machine does, as in the agent: the protocol may not rely on clocks that
//! agree. A host holds no state of other machines, and draws random numbers from streams of its own only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_machine::connections::{NEIGHBOURS_INTERVAL, NEIGHBOURS_MAX};
use idlewood_machine::policy::OwnerSettings;
use idlewood_machine::{Effect, Event, FetchId, JobId, Machine};
use idlewood_overlay::{Contact, GridId, Nonce, PeerId, Time, WallTime};
use idlewood_scheduler::{BagId, DeclineReason, Peer, Record, TaskId};
use rand::RngExt;

use crate::answers::Answers;
use crate::churn::{Churn, Owner};
use crate::condition::{Condition, Pause};
use crate::connections::Connections;
use crate::event_queue::{HostIndex, Key};
use crate::fetching::Fetching;
use crate::flawed::Flawed;
use crate::letter::Passenger;
use crate::link::Link;
use crate::random::{SmallStream, digest, happens};
use crate::scenario::{BadRouting, Scenario};
use crate::store::Store;
use crate::workers::{Going, Job, Starts, Workers};
use crate::workload::{bandwidths_bytes_s, slots, speed_mops, true_speed_mops};

/// What stands for a machine's signature under these bytes.
pub(crate) fn signature(peer: PeerId, bytes: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_keyed(&peer.0);
    hasher.update(bytes);
    let mut signature = vec![0; 64];
    hasher.finalize_xof().fill(&mut signature);
    signature
}

/// Wall-clock time at the start of the simulation: 2026-01-01 UTC. No result depends on it.
pub(crate) const EPOCH: WallTime = WallTime(1_767_225_600_000_000);
/// Most events of one machine at one instant; more are a live-lock. The writes of a flush become durable at one
/// instant, and may be several for each of very many machines.
const EVENTS_AT_ONE_INSTANT_MAX: u32 = 1_000_000;

/// How a try of a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Failure,
    /// The worker dies.
    Crash,
}

/// One machine.
pub(crate) struct Host {
    pub(crate) index: HostIndex,
    pub(crate) id: PeerId,
    /// The speed at which tasks run on it.
    pub(crate) speed_mops: f64,
    /// How many times as fast it believes to be.
    pub(crate) overrates: f64,
    pub(crate) churn: Churn,
    pub(crate) owner: Owner,
    /// Whether the machine makes results up.
    pub(crate) lies: bool,
    /// What its router does wrong with the requests that pass it, if anything.
    pub(crate) bad_routing: Option<BadRouting>,
    /// The promise that it breaks on purpose, if any.
    pub(crate) flawed: Flawed,
    /// Share of all bags that its owner declines, in percent.
    declines_percent: f64,
    seed: u64,
    /// Draws what becomes of the messages and outputs that it sends.
    pub(crate) network_rng: SmallStream,
    /// Draws the machine through which it joins.
    pub(crate) contact_rng: SmallStream,
    /// Draws how tries of tasks end on it.
    ending_rng: SmallStream,
    /// Draws which fetches of outputs fail.
    fetch_rng: SmallStream,
    pub(crate) link: Link,
    /// When its processor has handled all messages that have come.
    busy_until: Time,
    pub(crate) connections: Connections<Passenger>,
    /// Answers to messages that have not left.
    pub(crate) answers: Answers,
    pub(crate) store: Store,
    pub(crate) fetching: Fetching,
    /// Fetches of outputs that are under way to this machine.
    pub(crate) fetches: BTreeSet<FetchId>,
    /// Those of them that are of checkpoints.
    pub(crate) checkpoint_fetches: BTreeSet<FetchId>,
    pub(crate) condition: Condition,
    /// The ticket of each bag of its user that others keep, in a place that survives the machine, as of the last appointment.
    pub(crate) tickets: BTreeMap<BagId, Vec<Record>>,
    /// Whom the machine's user has named at its first start.
    pub(crate) named: Vec<Contact>,
    /// The neighbours of the last run, and when they were kept.
    neighbours: (Vec<Contact>, Time),
    /// None while the machine is down.
    machine: Option<Machine>,
    /// Number of its starts. An occurrence that was planned in an earlier life is void.
    pub(crate) life: u32,
    /// Number of its crashes. Messages that waited in the uplink at a crash are lost.
    pub(crate) crashes: u32,
    /// Incarnation of the last life. Like the identity it survives every failure.
    incarnation: u64,
    /// When this life began.
    started: Time,
    slots: u32,
    pub(crate) workers: Workers,
    starts: Starts,
    /// Jobs that are being prepared.
    pub(crate) preparing: BTreeSet<JobId>,
    sequence: u64,
    /// When the pending wake is due.
    wake: Option<Time>,
    /// The last instant with an event, and the number of events at that instant.
    instant: (Time, u32),
    /// Digest of the events that the machine was given, and of its orders, in all its lives.
    pub(crate) trace: u64,
}

impl Host {
    pub(crate) fn new(scenario: &Scenario, index: HostIndex) -> Self {
        let (number, slots) = (u64::from(index), slots(scenario, index));
        let places = idlewood_scheduler::Config { slots, ..scenario.peer.clone() }.places();
        Self {
            index,
            id: peer_id(scenario.seed, index),
            speed_mops: true_speed_mops(scenario, index),
            overrates: speed_mops(scenario, index) / true_speed_mops(scenario, index),
            churn: Churn::new(scenario, index),
            owner: Owner::new(scenario, index),
            lies: happens(&mut SmallStream::new(scenario.seed, "liar", number), scenario.liars_percent),
            bad_routing: happens(
                &mut SmallStream::new(scenario.seed, "bad router", number),
                scenario.bad_routers_percent,
            )
            .then_some(scenario.bad_routing),
            flawed: Flawed::new(scenario, index),
            declines_percent: declines_percent(scenario, number),
            seed: scenario.seed,
            network_rng: SmallStream::new(scenario.seed, "network", number),
            contact_rng: SmallStream::new(scenario.seed, "contact", number),
            ending_rng: SmallStream::new(scenario.seed, "ending", number),
            fetch_rng: SmallStream::new(scenario.seed, "fetch", number),
            link: Link::new(bandwidths_bytes_s(scenario, index), scenario.first_arrival())
                .with_queues(scenario.data_queue),
            busy_until: Time::ZERO,
            connections: Connections::default(),
            answers: Answers::default(),
            store: Store::default(),
            fetching: Fetching::default(),
            fetches: BTreeSet::new(),
            checkpoint_fetches: BTreeSet::new(),
            condition: Condition::default(),
            tickets: BTreeMap::new(),
            named: Vec::new(),
            neighbours: (Vec::new(), Time::ZERO),
            machine: None,
            life: 0,
            crashes: 0,
            incarnation: 0,
            started: Time::ZERO,
            slots,
            workers: Workers::new(slots, places, scenario.checkpoint_interval),
            starts: Starts::new(scenario, index),
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

    /// Whether the machine is up, and in this life.
    pub(crate) fn lives(&self, life: u32) -> bool {
        self.is_up() && self.life == life
    }

    /// The machine's contact, as far as a stranger knows it. Nothing dials its address, but messages have one in them, of the length
    /// of an agent's.
    pub(crate) fn contact(&self) -> Contact {
        Contact { peer: self.id, incarnation: 0, address: address(self.index).into(), nonce: None }
    }

    /// The nonce in the machine's certificate, which whoever is connected to it knows.
    pub(crate) fn nonce(&self) -> Nonce {
        nonce(self.seed, self.index)
    }

    /// Whom the machine joins through when it starts: those that its user has named, and its neighbours of the last run.
    pub(crate) fn known(&self) -> Vec<Contact> {
        self.named.iter().chain(&self.neighbours.0).cloned().collect()
    }

    /// Keeps the neighbours on the disk, now and then; none are no reason to forget those of before.
    fn keep_neighbours(&mut self, now: Time) {
        if now.since(self.neighbours.1) < NEIGHBOURS_INTERVAL {
            return;
        }
        let Some(machine) = &self.machine else { return };
        let neighbours = machine.peer().overlay_view().neighbours().take(NEIGHBOURS_MAX);
        // What a file says of them: who they are and where.
        let kept: Vec<Contact> =
            neighbours.map(|contact| Contact { incarnation: 0, nonce: None, ..contact.clone() }).collect();
        self.neighbours.1 = now;
        if !kept.is_empty() {
            self.neighbours.0 = kept;
        }
    }

    /// What the machine's wall clock shows.
    pub(crate) fn wall(&self, now: Time) -> WallTime {
        self.condition.wall(EPOCH + now.since(Time::ZERO))
    }

    /// Switches the machine on, and restores its peer from the disk. `expects_grid`: the peer will be given a contact.
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
        let me = Contact { incarnation, nonce: Some(Box::new(self.nonce())), ..self.contact() };
        let seed = digest(scenario.seed, "peer", u64::from(self.index) << 32 | u64::from(self.life));
        let mut seed_bytes = [0; 8];
        seed_bytes.copy_from_slice(&seed[..8]);
        let limit_kb_s = scenario.given_machine(self.index).and_then(|given| given.limit_kb_s).unwrap_or(0);
        let config = idlewood_scheduler::Config {
            slots: self.slots,
            speed_mops: speed_mops(scenario, self.index),
            expects_grid,
            uplink_kb_s: limit_kb_s,
            downlink_kb_s: limit_kb_s,
            ..scenario.peer.clone()
        };
        let grid = GridId(digest(scenario.seed, "grid", 0));
        let seed = u64::from_le_bytes(seed_bytes);
        let peer = Peer::restore(config.clone(), grid, me, seed, Time::ZERO, wall_now, self.store.records());
        let peer = peer.expect("settings that were validated");
        let settings =
            OwnerSettings { idle: scenario.owner_idle, vacate: scenario.peer.vacate_after, ..OwnerSettings::default() };
        self.machine = Some(Machine::new(peer, &config, config.speed_mops, settings, Time::ZERO));
    }

    /// Cuts the machine's power. `queue_lost`: the tasks that it held for others, and their outputs, are lost too.
    pub(crate) fn crash(&mut self, queue_lost: bool, now: Time) {
        self.crashes += 1;
        self.link.crash(now);
        self.go_down(queue_lost, now);
    }

    /// Takes the machine's disk with all that is on it, and its power. Its user adopts the tickets of their bags on another one, which goes on
    /// as this one.
    pub(crate) fn lose_disk(&mut self, now: Time) {
        self.crash(true, now);
        self.fetching.lose_disk();
        self.starts.lose_disk();
        let tickets = self.tickets.values().flatten().cloned().map(|record| match record {
            Record::Stewards { appointment, .. } => Record::Stewards { appointment, adopts: true },
            record => record,
        });
        self.store.replace(tickets.chain([Record::Incarnation(self.incarnation)]));
    }

    /// Switches the machine off after its peer has left in good order: messages in the uplink are still sent.
    pub(crate) fn leave(&mut self, now: Time) {
        self.link.leave(now);
        self.go_down(false, now);
    }

    fn go_down(&mut self, queue_lost: bool, now: Time) {
        self.machine = None;
        self.condition.pause = None;
        self.answers.clear();
        self.store.lose_pending();
        self.workers.go_down(queue_lost, now);
        self.starts.go_down(now);
        if queue_lost {
            self.store.lose_queue();
        }
        self.fetching.go_down();
        self.fetches.clear();
        self.checkpoint_fetches.clear();
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
        self.keep_neighbours(now);
    }

    /// Plans a wake if the machine has to be woken, and no pending wake is early enough; returns the time of the new
    /// one.
    pub(crate) fn arm(&mut self, now: Time) -> Option<Time> {
        let deadline = self.deadline()?.max(now);
        if self.wake.is_some_and(|wake| wake <= deadline) {
            return None;
        }
        self.wake = Some(deadline);
        self.wake
    }

    /// A wake fires. True if it is the pending one, and the machine has something to do now.
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

    /// The key of the next event that this machine causes: the event's place in the order of all events.
    pub(crate) fn key(&mut self, at: Time, target: HostIndex) -> Key {
        self.sequence += 1;
        Key { at, target, source: self.index, sequence: self.sequence }
    }

    /// A message has arrived, which takes the processor so many microseconds: when it reaches the peer. Messages go one after another.
    pub(crate) fn take_in(&mut self, arrived: Time, message_us: u64) -> Time {
        self.busy_until = self.busy_until.max(arrived) + Duration::from_micros(message_us);
        self.busy_until
    }

    // ---- the owner ----

    /// Whether its owner takes a bag of another machine; if not, the reason.
    pub(crate) fn verdict(&self, bag: BagId) -> Result<(), DeclineReason> {
        let drawn = digest(self.seed, "verdict", u64::from(self.index));
        let mut first = [0; 8];
        drawn.iter().zip(&bag.0).zip(&mut first).for_each(|((drawn, bag), byte)| *byte = drawn ^ bag);
        let mut rng = SmallStream::new(u64::from_le_bytes(first), "verdict", u64::from(self.index));
        if happens(&mut rng, self.declines_percent) { Err(DeclineReason::Program) } else { Ok(()) }
    }

    // ---- tasks ----

    /// Gives a worker a job.
    ///
    /// # Panics
    /// When the owner declines the job's bag, and where [`Workers::give`] panics: the machine broke its promise.
    pub(crate) fn run(
        &mut self,
        (slot, job): (usize, JobId),
        task: TaskId,
        program: u8,
        work_mops: f64,
        now: Time,
    ) -> Option<Going> {
        let is_own = || self.peer().is_some_and(|peer| peer.bag(task.bag).is_some());
        assert!(
            self.verdict(task.bag).is_ok() || is_own(),
            "machine {} starts {task:?}, which is declined",
            self.index
        );
        let job = Job::new(job, task, work_mops, self.speed_mops).after(self.starts.of(program, now));
        self.workers.give(slot, job, now)
    }

    /// What of a task's work is done at its last checkpoint here, in Mop; `None` where it has none.
    pub(crate) fn checkpoint_mops(&self, task: TaskId, work_mops: f64) -> Option<f64> {
        let left = self.workers.left_from_checkpoint(task)?;
        Some((work_mops - left.as_secs_f64() * self.speed_mops).max(0.0))
    }

    /// A task came with a checkpoint at which so much of its work is done.
    pub(crate) fn goes_on_from(&mut self, task: TaskId, work_mops: f64, done_mops: f64) {
        let left_s = (work_mops - done_mops).max(0.0) / self.speed_mops;
        self.workers.came_with(task, Duration::from_secs_f64(left_s));
    }

    /// Draws how a try of a task ends that has run for its full time. A machine that makes results up runs nothing that
    /// could fail.
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

    /// Draws whether this fetch of another machine's output fails.
    pub(crate) fn misses(&mut self, scenario: &Scenario) -> bool {
        happens(&mut self.fetch_rng, scenario.unfetched_percent)
    }

    /// The lid is shut: the machine handles nothing, and its tasks stand still.
    pub(crate) fn shut(&mut self, pause: Pause, now: Time) {
        self.condition.pause = Some(pause);
        self.workers.shut(true, now);
    }

    /// The lid is opened; returns the tasks that go on.
    pub(crate) fn open(&mut self, now: Time) -> Vec<Going> {
        self.condition.pause = None;
        // A wake that came while the lid was shut waits in the shard, and comes at a moment for which nobody armed it.
        self.wake = None;
        self.workers.shut(false, now)
    }
}

/// Draws the share of all bags that the owner of a machine declines, in percent.
fn declines_percent(scenario: &Scenario, number: u64) -> f64 {
    let mut rng = SmallStream::new(scenario.seed, "choosy", number);
    if happens(&mut rng, scenario.choosy_percent) { rng.random::<f64>() * 100.0 } else { 0.0 }
}

/// The identity of a machine: its number, and 28 bytes that differ from seed to seed.
pub(crate) fn peer_id(seed: u64, index: HostIndex) -> PeerId {
    let mut id = digest(seed, "identity", u64::from(index));
    id[..4].copy_from_slice(&index.to_be_bytes());
    PeerId(id)
}

/// The address of a machine: one of those that no host of the Internet has (RFC 6598), with the port that an agent is given.
fn address(index: HostIndex) -> String {
    let [_, high, middle, low] = index.to_be_bytes();
    format!("/ip4/100.{}.{middle}.{low}/tcp/4001", 64 + high)
}

/// The nonce in the certificate of a machine.
pub(crate) fn nonce(seed: u64, index: HostIndex) -> Nonce {
    let mut nonce = Nonce::default();
    let length = nonce.len();
    nonce.copy_from_slice(&digest(seed, "nonce", u64::from(index))[..length]);
    nonce
}

/// The number of the machine that has this identity, if the simulation has that machine.
pub(crate) fn host_index(id: PeerId) -> HostIndex {
    u32::from_be_bytes([id.0[0], id.0[1], id.0[2], id.0[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest and the shortest of a million machines; an agent's is `/ip4/203.0.113.7/tcp/4001`.
    #[test]
    fn addresses_and_nonces_are_as_long_as_an_agent_s() {
        assert_eq!(address(0), "/ip4/100.64.0.0/tcp/4001");
        assert_eq!(address(999_999), "/ip4/100.79.66.63/tcp/4001");
        assert_ne!(nonce(5, 1), nonce(5, 2));
        let host = Host::new(&Scenario::default(), 7);
        let sent = |contact: Contact| crate::size::size_of(&idlewood_overlay::Body::Hint(vec![contact.into()])).bytes;
        let bare = Contact { address: "7".into(), ..host.contact() };
        let whole = Contact { nonce: Some(Box::new(host.nonce())), ..host.contact() };
        // The text is 25 bytes, whose length takes one more; the nonce is 16, whose length takes one, too.
        assert_eq!(sent(whole) - sent(bare), 24 - 1 + 1 + 17);
    }

    #[test]
    fn identities_tell_their_number() {
        for index in [0, 1, 77, 999_999] {
            assert_eq!(host_index(peer_id(5, index)), index);
        }
    }
}
