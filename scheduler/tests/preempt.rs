//! Preemption by freezing, at one executor driven by hand and by random orders of events.
//!
//! The driver here checks what every driver relies on: a place has one task at a time, at most as many tasks run as
//! there are slots, no more are frozen than allowed, and a task goes on where it stopped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, Node, PeerId, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{
    Approval, BagHeader, BagId, BlobId, Change, Config, Effect, Enclosed, Event, Finished, Lease, Message, Path, Peer,
    PerSubmitter, Record, RecordKey, Request, TaskId, TaskOutcome,
};
use proptest::prelude::*;

const START: WallTime = WallTime(1_700_000_000_000_000);
const SPEED_MOPS: f64 = 1000.0;

fn contact(number: u8) -> Contact {
    Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None }
}

fn bag_id(number: u8) -> BagId {
    BagId([number; 32])
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6) as u64)
}

/// A task at a place, and the time it still needs.
#[derive(Debug)]
struct Work {
    task: TaskId,
    left: Duration,
    frozen: bool,
}

/// A machine whose tasks take as long as declared, with a disk on which writes are durable at once.
struct Machine {
    peer: Peer,
    config: Config,
    now: Time,
    places: BTreeMap<u32, Work>,
    suspended: bool,
    stopped: VecDeque<TaskId>,
    store: BTreeMap<Vec<u8>, Record>,
    /// Starts, freezes, thaws and ends in order.
    log: Vec<String>,
    finished: BTreeSet<TaskId>,
    begun: BTreeSet<TaskId>,
    frozen: usize,
    bags: BTreeMap<BagId, Duration>,
    holding: BTreeMap<BagId, (u64, u64)>,
    /// The tasks in the last `Holding` of each bag.
    said: BTreeMap<BagId, IntervalSet>,
}

impl Machine {
    fn new(config: Config) -> Self {
        Self::restore(config, BTreeMap::new())
    }

    fn restore(config: Config, store: BTreeMap<Vec<u8>, Record>) -> Self {
        // Each bag is taken for another user's, though one machine submits them.
        let config = Config { speed_mops: SPEED_MOPS, per_submitter: PerSubmitter::Off, ..config };
        let records = store.values().cloned();
        let peer = Peer::restore(config.clone(), GridId([9; 32]), contact(2), 1, Time::ZERO, START, records).unwrap();
        let mut machine = Self {
            peer,
            config,
            now: Time::ZERO,
            places: BTreeMap::new(),
            suspended: false,
            stopped: VecDeque::new(),
            store,
            log: Vec::new(),
            finished: BTreeSet::new(),
            begun: BTreeSet::new(),
            frozen: 0,
            bags: BTreeMap::new(),
            holding: BTreeMap::new(),
            said: BTreeMap::new(),
        };
        machine.give(Event::DeadlineReached);
        machine
    }

    fn give(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.peer.handle(self.now, event, &mut effects);
            for effect in effects {
                self.carry_out(effect, &mut events);
            }
            self.check();
        }
    }

    fn carry_out(&mut self, effect: Effect, events: &mut VecDeque<Event>) {
        let number = |task: TaskId| format!("{}.{}", task.bag.0[0], task.index);
        if self.suspended {
            let touches =
                matches!(effect, Effect::StartTask { .. } | Effect::FreezeTask { .. } | Effect::ThawTask { .. });
            assert!(!touches, "{effect:?} while the owner has the machine");
        }
        match effect {
            Effect::Persist { ticket, changes } => {
                for change in changes {
                    match change {
                        Change::Put(record) => self.store.insert(record.key().to_bytes(), record),
                        Change::Delete(key) => self.store.remove(&key.to_bytes()),
                    };
                }
                events.push_back(Event::Persisted(ticket));
            }
            Effect::StartTask { place, task, .. } => {
                assert!(place < self.config.places(), "place {place}");
                let left = self.bags[&task.bag];
                let before = self.places.insert(place, Work { task, left, frozen: false });
                assert!(before.is_none(), "{task:?} starts where there is {before:?}");
                self.begun.insert(task);
                self.log.push(format!("start {}@{place}", number(task)));
            }
            Effect::StopTask { place, task } => {
                let work = self.places.remove(&place).expect("something to stop");
                assert_eq!(work.task, task);
                self.stopped.push_back(task);
            }
            Effect::FreezeTask { place, task } => {
                let work = self.places.get_mut(&place).expect("something to freeze");
                assert!(work.task == task && !std::mem::replace(&mut work.frozen, true), "{work:?}");
                self.frozen += 1;
                self.log.push(format!("freeze {}@{place}", number(task)));
            }
            Effect::ThawTask { place, task } => {
                let work = self.places.get_mut(&place).expect("something to thaw");
                assert!(work.task == task && std::mem::replace(&mut work.frozen, false), "{work:?}");
                self.log.push(format!("thaw {}@{place}", number(task)));
            }
            Effect::SuspendTasks => self.suspended = true,
            Effect::ResumeTasks => self.suspended = false,
            Effect::Send { message, .. } => {
                if let Message::Holding { bag, version, ranges, .. } = message {
                    self.holding.insert(bag, (version, ranges.len()));
                    self.said.insert(bag, ranges.clone());
                    // The submitter answers every `Holding`.
                    let (term, drop, rest) = (Duration::from_secs(60), IntervalSet::new(), Duration::ZERO);
                    let message = Message::Lease(Lease { version, term, drop, rest, ..Lease::of(bag) });
                    events.push_back(Event::Received { from: PeerId([1; 32]), message });
                }
            }
            Effect::Authorise { bag, .. } => {
                let approval = Approval { signed_ago: Duration::ZERO, at_hand: true, program: None };
                events.push_back(Event::Authorised { bag: bag.id, verdict: Ok(approval) });
            }
            Effect::MeasureTask { .. }
            | Effect::FetchOutput { .. }
            | Effect::KeepCheckpoints { .. }
            | Effect::MakeStart { .. }
            | Effect::SignAppointment { .. }
            | Effect::KeepFiles { .. }
            | Effect::ReadResults { .. }
            | Effect::ForgetFiles { .. }
            | Effect::List { .. }
            | Effect::Notify(_) => {}
        }
    }

    fn running(&self) -> usize {
        self.places.values().filter(|work| !work.frozen).count()
    }

    fn check(&self) {
        let slots = self.config.slots as usize;
        let most = if self.config.preemptive { slots * self.config.frozen_max as usize } else { 0 };
        assert!(self.running() <= slots, "{:?}", self.places);
        assert!(self.places.len() - self.running() <= most, "{:?}", self.places);
        let seen: Vec<_> = self.peer.running().iter().map(|task| (task.place, task.task, task.preempted)).collect();
        let stopping = |task: &TaskId| self.stopped.contains(task);
        let seen: Vec<_> = seen.into_iter().filter(|(_, task, _)| !stopping(task)).collect();
        let here: Vec<_> = self.places.iter().map(|(&place, work)| (place, work.task, work.frozen)).collect();
        assert_eq!(seen, here, "the peer and its driver disagree");
    }

    /// Tasks of `bag` reach this machine; `application_size_mops` is of the whole bag.
    fn receive(&mut self, number: u8, tasks: u64, task_s: f64, application_size_mops: f64) {
        let task_mops = task_s * SPEED_MOPS;
        let bag = BagHeader {
            id: bag_id(number),
            submitter: contact(1),
            tasks,
            task_mops,
            application_size_mops,
            declared: true,
        };
        self.bags.insert(bag.id, seconds(task_s));
        let request = Request {
            bag,
            number: 1,
            attempt: 0,
            ranges: IntervalSet::from(0..tasks),
            age: Duration::ZERO,
            path: Path::default(),
            climbed: 0,
            machines: 0,
            link_kb_s: idlewood_scheduler::LINK_KB_S,
            leads: false,
            copy: None,
            begins_within: None,
            ticket: 0,
            checkpoints: Box::default(),
            lines: Box::default(),
            envelope: Enclosed::default(),
            acting: None,
        };
        let message = Message::Request { request, node: Node::Leaf, climbing: false };
        self.give(Event::Received { from: PeerId([1; 32]), message });
    }

    /// Lets time pass, wakes the peer at its deadlines, and ends tasks that have run for long enough.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut rounds = 0;
        while self.now < end {
            rounds += 1;
            assert!(
                rounds < 10_000,
                "it wants to be woken again and again at {:?}: {:?}",
                self.now,
                self.peer.deadline()
            );
            while let Some(task) = self.stopped.pop_front() {
                self.give(Event::TaskEnded { task, outcome: TaskOutcome::Stopped });
            }
            let ends =
                self.places.values().filter(|work| !work.frozen && !self.suspended).map(|work| self.now + work.left);
            let next = ends.chain(self.peer.deadline()).min().unwrap_or(end).clamp(self.now, end);
            let passed = next.since(self.now);
            let runs = !self.suspended;
            for work in self.places.values_mut().filter(|work| runs && !work.frozen) {
                work.left = work.left.saturating_sub(passed);
            }
            self.now = next;
            let over: Vec<u32> = self
                .places
                .iter()
                .filter(|(_, work)| runs && !work.frozen && work.left.is_zero())
                .map(|(&place, _)| place)
                .collect();
            for place in over {
                let task = self.places.remove(&place).expect("it is over").task;
                self.finish(task);
            }
            if self.peer.deadline().is_some_and(|deadline| deadline <= self.now) {
                self.give(Event::DeadlineReached);
            }
        }
    }

    fn finish(&mut self, task: TaskId) {
        assert!(self.finished.insert(task), "{task:?} ran twice");
        self.log.push(format!("end {}.{}", task.bag.0[0], task.index));
        let outcome = TaskOutcome::Finished(Finished {
            success: true,
            crashed: false,
            output: BlobId([1; 32]),
            output_bytes: 1,
            content: None,
            work_mops: 1.0,
            exit_code: Some(0),
            fingerprint: None,
            times: 1.0,
        });
        self.give(Event::TaskEnded { task, outcome });
        let acknowledged =
            Message::ResultsAck { bag: task.bag, attempt: 0, indices: IntervalSet::from(task.index..task.index + 1) };
        self.give(Event::Received { from: PeerId([1; 32]), message: acknowledged });
    }

    /// Whether a task is here and has not ended: it waits, runs, or is frozen.
    fn has(&self, task: TaskId) -> bool {
        self.peer.unfinished().get(&task.bag).is_some_and(|tasks| tasks.contains(task.index))
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

fn one_slot() -> Machine {
    Machine::new(Config { slots: 1, ..Config::default() })
}

#[test]
fn an_earlier_bag_preempts_a_task_that_later_goes_on() {
    let mut machine = one_slot();
    machine.receive(1, 2, 100.0, 1e6);
    machine.pass(seconds(40.0));
    machine.receive(2, 2, 10.0, 2e4);
    machine.pass(seconds(200.0));
    let log = machine.log();
    assert_eq!(
        log,
        [
            "start 1.0@0",
            "freeze 1.0@0",
            "start 2.0@1",
            "end 2.0",
            "start 2.1@1",
            "end 2.1",
            "thaw 1.0@0",
            "end 1.0",
            "start 1.1@0",
            "end 1.1"
        ]
    );
    // 40 s, 20 s for the other bag, the 60 s that were left, and 100 s.
    assert_eq!(machine.finished.len(), 4);
    assert!(machine.now == Time::ZERO + seconds(240.0) && machine.places.is_empty());
}

#[test]
fn without_preemption_the_newcomer_waits() {
    for config in [Config { preemptive: false, ..Config::default() }, Config { frozen_max: 0, ..Config::default() }] {
        let mut machine = Machine::new(config);
        machine.receive(1, 2, 100.0, 1e6);
        machine.pass(seconds(40.0));
        machine.receive(2, 1, 10.0, 1e4);
        machine.pass(seconds(200.0));
        let log = machine.log();
        assert_eq!(log, ["start 1.0@0", "end 1.0", "start 2.0@0", "end 2.0", "start 1.1@0", "end 1.1"]);
        assert_eq!(machine.frozen, 0);
    }
}

#[test]
fn newcomers_wait_beyond_the_limit_of_preemption() {
    let mut machine = Machine::new(Config { frozen_max: 2, ..Config::default() });
    // Each next bag is a tenth of the one before and comes ahead of it.
    for (number, size) in [(1, 1e9), (2, 1e8), (3, 1e7), (4, 1e6)] {
        machine.receive(number, 1, 100.0, size);
        machine.pass(seconds(1.0));
    }
    assert_eq!(machine.log(), ["start 1.0@0", "freeze 1.0@0", "start 2.0@1", "freeze 2.0@1", "start 3.0@2"]);
    let held = machine.peer.held();
    assert_eq!(
        held.iter().map(|held| (held.running, held.frozen, held.waiting)).collect::<Vec<_>>(),
        [(1, 1, 0), (1, 1, 0), (1, 0, 0), (0, 0, 1),]
    );
    machine.pass(seconds(500.0));
    assert_eq!(machine.log(), ["end 3.0", "start 4.0@2", "end 4.0", "thaw 2.0@1", "end 2.0", "thaw 1.0@0", "end 1.0"]);
}

#[test]
fn no_task_is_preempted_at_the_limit() {
    let mut machine = Machine::new(Config { frozen_max: 1, ..Config::default() });
    machine.receive(1, 1, 100.0, 1e8);
    machine.pass(seconds(1.0));
    machine.receive(2, 3, 100.0, 2e6);
    machine.pass(seconds(1.0));
    assert_eq!(machine.log(), ["start 1.0@0", "freeze 1.0@0", "start 2.0@1"]);
    machine.receive(3, 1, 1.0, 1e3);
    machine.pass(seconds(1.0));
    assert_eq!(machine.log(), Vec::<String>::new(), "one is frozen already");
    machine.pass(seconds(500.0));
    assert_eq!(machine.finished.len(), 5);
}

#[test]
fn a_short_preempted_task_makes_room_at_the_limit() {
    let mut machine = Machine::new(Config { frozen_max: 1, ..Config::default() });
    machine.receive(1, 1, 100.0, 1e8);
    machine.pass(seconds(90.0));
    machine.receive(2, 3, 100.0, 2e6);
    machine.pass(seconds(1.0));
    assert_eq!(machine.log(), ["start 1.0@0", "freeze 1.0@0", "start 2.0@1"]);
    machine.receive(3, 1, 1.0, 1e3);
    machine.pass(seconds(12.0));
    assert_eq!(
        machine.log(),
        ["freeze 2.0@1", "thaw 1.0@0", "end 1.0", "start 3.0@0", "end 3.0", "thaw 2.0@1"],
        "ten seconds instead of a hundred"
    );
}

#[test]
fn a_preempted_task_takes_the_slot_back_at_the_limit() {
    let mut machine = Machine::new(Config { frozen_max: 1, ..Config::default() });
    machine.receive(1, 1, 300.0, 2e6);
    machine.pass(seconds(250.0));
    // The small bag makes the stretch large, so that sizes decide the order; once it has ended, ages do.
    machine.receive(3, 2, 5.0, 1e3);
    machine.receive(2, 1, 100.0, 1e6);
    machine.pass(seconds(9.0));
    assert_eq!(machine.log(), ["start 1.0@0", "freeze 1.0@0", "start 3.0@1", "end 3.0", "start 3.1@1"]);
    machine.pass(seconds(200.0));
    assert_eq!(
        machine.log(),
        ["end 3.1", "start 2.0@1", "freeze 2.0@1", "thaw 1.0@0", "end 1.0", "thaw 2.0@1", "end 2.0"]
    );
}

#[test]
fn only_the_last_in_order_is_preempted_on_several_slots() {
    let mut machine = Machine::new(Config { slots: 2, ..Config::default() });
    machine.receive(1, 1, 100.0, 1e9);
    machine.receive(2, 1, 100.0, 1e7);
    machine.pass(seconds(1.0));
    machine.receive(3, 1, 10.0, 1e5);
    machine.pass(seconds(1.0));
    assert_eq!(machine.log(), ["start 1.0@0", "start 2.0@1", "freeze 1.0@0", "start 3.0@2"]);
}

#[test]
fn the_owners_departure_thaws_only_tasks_that_ran() {
    let mut machine = one_slot();
    machine.receive(1, 1, 100.0, 1e9);
    machine.pass(seconds(10.0));
    machine.receive(2, 1, 10.0, 1e5);
    machine.pass(seconds(5.0));
    machine.give(Event::OwnerReturned { stands_still: true });
    machine.receive(3, 1, 1.0, 1e3);
    machine.pass(seconds(50.0));
    assert!(machine.peer.running().iter().all(|task| task.frozen));
    assert_eq!(machine.peer.running().iter().filter(|task| task.preempted).count(), 1);
    machine.log();
    machine.give(Event::OwnerLeft);
    machine.pass(seconds(200.0));
    assert_eq!(
        machine.log(),
        ["freeze 2.0@1", "start 3.0@2", "end 3.0", "thaw 2.0@1", "end 2.0", "thaw 1.0@0", "end 1.0"]
    );
    assert_eq!(machine.peer.held().len(), 0);
}

#[test]
fn a_preempted_task_survives_a_restart_as_waiting() {
    let mut machine = one_slot();
    machine.receive(1, 2, 100.0, 1e9);
    machine.pass(seconds(10.0));
    machine.receive(2, 1, 10.0, 1e5);
    machine.pass(seconds(25.0));
    assert_eq!(machine.holding[&bag_id(1)].1, 2, "the frozen one is accounted for");
    machine.receive(3, 1, 50.0, 1e4);
    assert!(machine.store.contains_key(&RecordKey::Held(bag_id(1)).to_bytes()));
    let bags = machine.bags.clone();
    let mut restored = Machine { bags, ..Machine::restore_with(machine.config.clone(), machine.store, &machine.bags) };
    let held: u64 = restored.peer.held().iter().map(|held| held.waiting + held.running).sum();
    assert_eq!(held, 3);
    restored.pass(seconds(1000.0));
    assert_eq!(restored.finished.len(), 3);
}

#[test]
fn a_preempted_task_can_be_dropped() {
    let mut machine = one_slot();
    machine.receive(1, 1, 100.0, 1e9);
    machine.pass(seconds(10.0));
    machine.receive(2, 1, 50.0, 1e5);
    machine.pass(seconds(5.0));
    let lease =
        Message::Lease(Lease { term: Duration::from_secs(60), drop: IntervalSet::from(0..1), ..Lease::of(bag_id(1)) });
    machine.give(Event::Received { from: PeerId([1; 32]), message: lease.clone() });
    machine.give(Event::Received { from: PeerId([1; 32]), message: lease });
    assert_eq!(machine.stopped.len(), 1);
    machine.pass(seconds(100.0));
    assert_eq!(machine.log(), ["start 1.0@0", "freeze 1.0@0", "start 2.0@1", "end 2.0"]);
}

#[test]
fn the_end_of_a_task_does_not_change_the_order() {
    let mut machine = one_slot();
    machine.receive(1, 50, 1.0, 5e6);
    machine.receive(2, 50, 1.0, 5e6);
    machine.pass(seconds(101.0));
    let changes =
        machine.log().windows(2).filter(|pair| pair[0].starts_with("end 1") && pair[1].starts_with("start 2")).count();
    assert_eq!((machine.frozen, changes, machine.finished.len()), (0, 1, 100));
}

impl Machine {
    fn restore_with(config: Config, store: BTreeMap<Vec<u8>, Record>, bags: &BTreeMap<BagId, Duration>) -> Self {
        // Each bag is taken for another user's, though one machine submits them.
        let config = Config { speed_mops: SPEED_MOPS, per_submitter: PerSubmitter::Off, ..config };
        let peer =
            Peer::restore(config.clone(), GridId([9; 32]), contact(2), 1, Time::ZERO, START, store.values().cloned())
                .unwrap();
        let mut machine = Self::new(config);
        machine.peer = peer;
        machine.store = store;
        machine.bags = bags.clone();
        machine.give(Event::DeadlineReached);
        machine
    }
}

/// Something that happens to a machine.
#[derive(Clone, Debug)]
enum Happening {
    Bag { tasks: u64, task_s: f64, spread: f64 },
    Pass(f64),
    Owner,
    Drop { bag: u8, index: u64 },
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let happening = prop_oneof![
        4 => (1_u64..6, 0.1..100.0_f64, 0.0..12.0_f64)
            .prop_map(|(tasks, task_s, log)| Happening::Bag { tasks, task_s, spread: log.exp2() }),
        4 => (0.0..50.0_f64).prop_map(Happening::Pass),
        1 => Just(Happening::Owner),
        1 => (0_u8..20, 0_u64..6).prop_map(|(bag, index)| Happening::Drop { bag, index }),
    ];
    prop::collection::vec(happening, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_task_ends_once_whatever_events_come(
        happenings in happenings(), slots in 1_u32..4, frozen_max in 0_u32..4, preemptive in any::<bool>(),
    ) {
        // The vacate time is so long that no begun task is handed back. Unstarted ones are where the owner is known to stay, or after
        // far longer than was predicted.
        let vacate_after = Duration::from_secs(86_400);
        let config = Config { slots, frozen_max, preemptive, vacate_after, ..Config::default() };
        let mut machine = Machine::new(config);
        let (mut bags, mut work_s, mut dropped, mut owner) = (0, 0.0, BTreeSet::new(), false);
        let mut came = BTreeSet::new();
        for happening in happenings {
            match happening {
                Happening::Bag { tasks: more, task_s, spread } => {
                    bags += 1;
                    came.extend((0..more).map(|index| TaskId { bag: bag_id(bags), index }));
                    work_s += more as f64 * task_s;
                    machine.receive(bags, more, task_s, more as f64 * task_s * SPEED_MOPS * spread);
                }
                Happening::Pass(time_s) => machine.pass(seconds(time_s)),
                Happening::Owner => {
                    owner = !owner;
                    machine.give(if owner { Event::OwnerReturned { stands_still: true } } else { Event::OwnerLeft });
                }
                Happening::Drop { bag, index } => {
                    let task = TaskId { bag: bag_id(bag), index };
                    // What has ended or is not here cannot be dropped.
                    if machine.has(task) {
                        dropped.insert(task);
                    }
                    let lease = Message::Lease(Lease { term: Duration::from_secs(60), drop: IntervalSet::from(index..index + 1), ..Lease::of(task.bag) });
                    machine.give(Event::Received { from: PeerId([1; 32]), message: lease });
                }
            }
        }
        if owner {
            machine.give(Event::OwnerLeft);
        }
        machine.pass(seconds(work_s + 1.0));
        prop_assert!(machine.places.is_empty(), "frozen for good: {:?}", machine.places);
        prop_assert!(!machine.suspended && machine.peer.held().is_empty(), "{:?}", machine.peer.held());
        // Each task has ended once, or was dropped before: none is both.
        let both: Vec<&TaskId> = machine.finished.intersection(&dropped).collect();
        prop_assert!(both.is_empty(), "dropped, and finished all the same: {both:?}");
        came.retain(|task| !machine.finished.contains(task) && !dropped.contains(task));
        let lost: Vec<&TaskId> = came.intersection(&machine.begun).collect();
        prop_assert!(lost.is_empty(), "begun, and not ended: {lost:?}");
        let is_said = |task: &&TaskId| machine.said.get(&task.bag).is_some_and(|held| !held.contains(task.index));
        let unsaid: Vec<&TaskId> = came.iter().filter(|task| !is_said(task)).collect();
        prop_assert!(unsaid.is_empty(), "neither here nor handed back: {unsaid:?}");
    }
}
