//! One simulated machine: its peer, its disk, the tasks that run on it, and the hash of all that its peer was given
//! and answered.
//!
//! The clock of a peer starts with its machine, as a driver's does: nothing in the protocol may depend on clocks that
//! agree. A host holds no other machine's state and draws only from its own streams.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_machine::policy::OwnerSettings;
use idlewood_machine::{Effect, Event, FetchId, Machine};
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

/// A task that runs on a machine.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) task: TaskId,
    pub(crate) work_mops: f64,
    /// How long it takes from its beginning, and from here.
    takes: Duration,
    left: Duration,
    /// When it last began to run; `None` while frozen, for others or by the owner.
    since: Option<Time>,
    /// Frozen for others.
    frozen: bool,
    /// Which of the scheduled ends is its own.
    serial: u64,
}

impl Run {
    /// Stops its clock; the end that is scheduled is no longer its own.
    fn pause(&mut self, now: Time, serial: u64) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.since(since));
        }
        self.serial = serial;
    }

    /// Starts its clock: when and under which serial it ends.
    fn go_on(&mut self, now: Time) -> (Time, u64) {
        self.since = Some(now);
        (now + self.left.max(Duration::from_micros(1)), self.serial)
    }
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
    /// For what it sends.
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
    suspended: bool,
    slots: u32,
    places: u32,
    /// What has begun, by place.
    runs: BTreeMap<u32, Run>,
    /// How long tasks that were interrupted still take from their last checkpoint on.
    checkpoints: BTreeMap<TaskId, Duration>,
    checkpoint_interval: Option<Duration>,
    serial: u64,
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
            suspended: false,
            slots,
            places: idlewood_scheduler::Config { slots, ..scenario.peer.clone() }.places(),
            runs: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            checkpoint_interval: scenario.checkpoint_interval,
            serial: 0,
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
        self.suspended = false;
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
        let peer = Peer::restore(config, grid, me, seed, Time::ZERO, wall_now, self.store.records());
        let peer = peer.expect("settings that were validated");
        let settings =
            OwnerSettings { idle: scenario.owner_idle, vacate: scenario.peer.vacate_after, ..OwnerSettings::default() };
        self.machine = Some(Machine::new(peer, self.speed_mops, settings, Time::ZERO));
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
        self.keep_checkpoints(now);
        if queue_lost {
            self.store.lose_queue();
            self.checkpoints.clear();
        }
        self.fetches.clear();
        self.runs.clear();
        self.wake = None;
    }

    /// What runs now can go on from its last checkpoint.
    fn keep_checkpoints(&mut self, now: Time) {
        let Some(interval) = self.checkpoint_interval else { return };
        for run in self.runs.values_mut() {
            run.pause(now, run.serial);
            let done_us = (run.takes - run.left).as_micros();
            let kept_us = done_us - done_us % interval.as_micros();
            if kept_us > 0 {
                self.checkpoints.insert(run.task, run.takes - Duration::from_micros(kept_us as u64));
            }
        }
    }

    /// Gives the machine one event; appends what it answers.
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

    /// A task begins at a place: when and under which serial it ends, unless it is frozen meanwhile.
    ///
    /// # Panics
    /// When the place is not free, all slots are taken or the owner does not want the bag: the peer broke its promise.
    pub(crate) fn run(&mut self, place: u32, task: TaskId, work_mops: f64, now: Time) -> Option<(Time, u64)> {
        assert!(place < self.places, "machine {} starts {task:?} at place {place} of {}", self.index, self.places);
        let is_own = || self.peer().is_some_and(|peer| peer.bag(task.bag).is_some());
        assert!(
            self.verdict(task.bag).is_ok() || is_own(),
            "machine {} starts {task:?}, which is declined",
            self.index
        );
        let takes = Duration::from_micros(((work_mops / self.speed_mops * 1e6).round() as u64).max(1));
        let left = self.checkpoints.remove(&task).unwrap_or(takes);
        let since = (!self.suspended).then_some(now);
        self.serial += 1;
        let serial = self.serial;
        let before = self.runs.insert(place, Run { task, work_mops, takes, left, since, frozen: false, serial });
        assert!(before.is_none(), "machine {} starts {task:?} at place {place}, which has {before:?}", self.index);
        self.assert_slots();
        since.map(|since| (since + left, serial))
    }

    /// The end of a run comes: what ran, unless it was stopped or frozen since.
    pub(crate) fn finish(&mut self, place: u32, serial: u64) -> Option<Run> {
        self.runs.get(&place).filter(|run| run.serial == serial)?;
        self.runs.remove(&place)
    }

    /// How a try ends that has run for as long as it takes. Whoever makes results up does not run anything that could fail.
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

    /// Stops what is at a place; whether it was this task.
    pub(crate) fn stop(&mut self, place: u32, task: TaskId) -> bool {
        let runs = self.runs.get(&place).is_some_and(|run| run.task == task);
        if runs {
            self.runs.remove(&place);
        }
        runs
    }

    /// Freezes one task for others.
    ///
    /// # Panics
    /// When it is not there or frozen already: the peer broke its promise. Here a task's end is told at once.
    pub(crate) fn freeze(&mut self, place: u32, task: TaskId, now: Time) {
        self.serial += 1;
        let run = self.runs.get_mut(&place).filter(|run| run.task == task && !run.frozen);
        let run = run.unwrap_or_else(|| panic!("machine {} freezes {task:?}, which does not run", self.index));
        run.frozen = true;
        run.pause(now, self.serial);
    }

    /// Lets a task that was frozen for others go on: when and under which serial it ends.
    ///
    /// # Panics
    /// When it is not there or not frozen, or all slots are taken: the peer broke its promise.
    pub(crate) fn thaw(&mut self, place: u32, task: TaskId, now: Time) -> Option<(Time, u64)> {
        let run = self.runs.get_mut(&place).filter(|run| run.task == task && run.frozen);
        let run = run.unwrap_or_else(|| panic!("machine {} thaws {task:?}, which is not frozen", self.index));
        run.frozen = false;
        let end = if self.suspended { None } else { Some(run.go_on(now)) };
        self.assert_slots();
        end
    }

    fn assert_slots(&self) {
        let running = self.runs.values().filter(|run| !run.frozen).count();
        assert!(running <= self.slots as usize, "machine {} runs {running} tasks on {} slots", self.index, self.slots);
    }

    /// Freezes all tasks.
    pub(crate) fn suspend(&mut self, now: Time) {
        self.suspended = true;
        for run in self.runs.values_mut() {
            self.serial += 1;
            run.pause(now, self.serial);
        }
    }

    /// The lid is shut: nothing is handled, and tasks stand still.
    pub(crate) fn shut(&mut self, pause: Pause, now: Time) {
        self.condition.pause = Some(pause);
        let suspended = self.suspended;
        self.suspend(now);
        self.suspended = suspended;
    }

    /// The lid is opened: the tasks that go on, as from `resume`.
    pub(crate) fn open(&mut self, now: Time) -> Vec<(u32, Time, u64)> {
        self.condition.pause = None;
        if self.suspended { Vec::new() } else { self.resume(now) }
    }

    /// Lets all tasks go on but for those that are frozen for others: when and under which serial each ends.
    pub(crate) fn resume(&mut self, now: Time) -> Vec<(u32, Time, u64)> {
        self.suspended = false;
        let frozen = self.runs.iter_mut().filter(|(_, run)| run.since.is_none() && !run.frozen);
        frozen
            .map(|(&place, run)| {
                let (end, serial) = run.go_on(now);
                (place, end, serial)
            })
            .collect()
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
    use idlewood_scheduler::BagId;

    use super::*;

    const TASK: TaskId = TaskId { bag: BagId([3; 32]), index: 4 };

    fn at(seconds: i64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_frozen_task_goes_on_where_it_stopped() {
        let mut host = Host::new(&Scenario::default(), 0);
        let (end, serial) = host.run(0, TASK, 100.0 * host.speed_mops, at(0)).unwrap();
        assert_eq!(end, at(100));
        host.suspend(at(30));
        assert!(host.finish(0, serial).is_none(), "it ended while it was frozen");
        let resumed = host.resume(at(1000));
        let &[(0, end, serial)] = resumed.as_slice() else { panic!("{resumed:?}") };
        assert_eq!(end, at(1070));
        assert_eq!(host.finish(0, serial).map(|run| run.task), Some(TASK));
    }

    #[test]
    fn a_task_that_a_power_cut_ended_goes_on_from_its_last_checkpoint() {
        let checkpoint_interval = Some(Duration::from_secs(20));
        let mut host = Host::new(&Scenario { checkpoint_interval, ..Scenario::default() }, 0);
        let work_mops = 100.0 * host.speed_mops;
        host.run(0, TASK, work_mops, at(0));
        host.crash(false, at(50));
        assert_eq!(host.run(0, TASK, work_mops, at(1000)).map(|(end, _)| end), Some(at(1060)));
        // What was done before this life counts.
        host.crash(false, at(1025));
        assert_eq!(host.run(0, TASK, work_mops, at(2000)).map(|(end, _)| end), Some(at(2040)));
        host.crash(true, at(2030));
        assert_eq!(host.run(0, TASK, work_mops, at(3000)).map(|(end, _)| end), Some(at(3100)));
    }

    #[test]
    fn freezing_for_others_and_by_the_owner_do_not_disturb_each_other() {
        let mut host = Host::new(&Scenario::default(), 0);
        let other = TaskId { index: 5, ..TASK };
        let (_, first) = host.run(0, TASK, 100.0 * host.speed_mops, at(0)).unwrap();
        host.freeze(0, TASK, at(10));
        let (end, _) = host.run(1, other, 20.0 * host.speed_mops, at(10)).unwrap();
        assert_eq!(end, at(30));
        host.suspend(at(20));
        let resumed = host.resume(at(100));
        let &[(1, end, serial)] = resumed.as_slice() else { panic!("{resumed:?}") };
        assert_eq!(end, at(110));
        assert!(host.finish(0, first).is_none(), "it ended while it was frozen");
        assert_eq!(host.finish(1, serial).map(|run| run.task), Some(other));
        let (end, serial) = host.thaw(0, TASK, at(110)).unwrap();
        assert_eq!(end, at(200));
        assert_eq!(host.finish(0, serial).map(|run| run.task), Some(TASK));
    }

    #[test]
    #[should_panic(expected = "runs 2 tasks on 1 slots")]
    fn no_more_tasks_run_than_there_are_slots() {
        let mut host = Host::new(&Scenario::default(), 0);
        host.run(0, TASK, 1e6, at(0));
        host.run(1, TaskId { index: 5, ..TASK }, 1e6, at(0));
    }

    #[test]
    fn a_stopped_task_never_ends_by_itself() {
        let mut host = Host::new(&Scenario::default(), 0);
        let (_, serial) = host.run(2, TASK, 1e6, at(0)).unwrap();
        assert!(!host.stop(2, TaskId { index: 5, ..TASK }));
        assert!(host.stop(2, TASK));
        assert!(host.finish(2, serial).is_none());
    }

    #[test]
    fn identities_tell_their_number() {
        for index in [0, 1, 77, 999_999] {
            assert_eq!(host_index(peer_id(5, index)), index);
        }
    }
}
