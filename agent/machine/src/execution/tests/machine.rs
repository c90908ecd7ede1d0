//! A whole machine with a real peer, alone, and model workers that answer late: whatever owner and user do, each task succeeds once.

use std::collections::BTreeSet;

use idlewood_overlay::{GridId, WallTime};
use idlewood_scheduler::{Approval, Enclosed, Event as PeerEvent, Notice, Peer, Replication, Submission};
use proptest::prelude::*;

use super::workers::{BAGS, Workers};
use super::*;
use crate::event::{Event, FetchEnd, WriteEnd};
use crate::machine::Machine;
use crate::policy::hours::LocalTime;
use crate::policy::{Facts, Input, OwnerSettings};

const SLOTS: u32 = 2;
const TASKS: u64 = 40;

struct World {
    machine: Machine,
    now: Time,
    workers: Workers,
    closed: BTreeSet<BagId>,
}

impl World {
    fn new() -> Self {
        let config = config(SLOTS);
        let me = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
        let peer = Peer::restore(config.clone(), GridId([1; 32]), me, 1, Time::ZERO, WallTime(0), Vec::new());
        let peer = peer.expect("the settings are valid");
        let machine = Machine::new(peer, &config, config.speed_mops, OwnerSettings::default(), Time::ZERO);
        let workers = Workers::new(SLOTS, config.places() as usize);
        Self { machine, now: Time::ZERO, workers, closed: BTreeSet::new() }
    }

    fn tell(&mut self, event: impl Into<Event>) {
        let mut events = VecDeque::from([event.into()]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.machine.handle(self.now, event, &mut effects);
            for effect in effects {
                events.extend(self.carry_out(effect));
            }
        }
    }

    /// What is answered at once.
    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Work(order) => {
                self.workers.carry_out(order);
                None
            }
            Effect::Fetch { fetch, .. } => Some(Event::FetchEnded { fetch, end: FetchEnd::Here { checkpoint: None } }),
            Effect::Write { write, .. } => Some(Event::Written { write, end: WriteEnd::Durable }),
            Effect::Changed(_) | Effect::Judged(_) => None,
            Effect::Authorise { bag, .. } => {
                let verdict = Ok(Approval { signed_ago: Duration::ZERO, at_hand: true, program: None });
                Some(PeerEvent::Authorised { bag: bag.id, verdict }.into())
            }
            Effect::Notify(Notice::BagClosed(bag)) => {
                assert!(self.closed.insert(bag), "{bag:?} is closed twice");
                None
            }
            // Nobody else is there, and tasks keep nothing.
            Effect::Send { .. } | Effect::KeepCheckpoints { .. } | Effect::MakeStart { .. } | Effect::Notify(_) => None,
            other => panic!("{other:?}"),
        }
    }

    fn tell_of(&mut self, event: impl FnOnce(&mut Workers) -> Option<WorkEvent>) {
        if let Some(event) = event(&mut self.workers) {
            self.tell(event);
        }
    }

    fn submit(&mut self, number: usize) {
        let (id, task_mops) = (BAGS[number].0, Some(if number == 0 { 5000.0 } else { 100.0 }));
        let replication = Replication::default();
        self.tell(PeerEvent::Submitted(Submission {
            id,
            envelope: Enclosed::default(),
            manifest: Enclosed::default(),
            tasks: TASKS,
            task_mops,
            retries_max: 3,
            replication,
            stewards: None,
            keep_results: false,
            conditions: idlewood_scheduler::Conditions::default(),
            endless: None,
        }));
    }

    fn time_passes(&mut self) {
        self.now += Duration::from_millis(500);
        if self.machine.deadline().is_some_and(|at| at <= self.now) {
            self.tell(PeerEvent::DeadlineReached);
        }
    }

    /// The owner is there or away, and the disk has room for outputs or has none.
    fn owner(&mut self, is_present: bool, disk_room: f64) {
        let input = if is_present { Input::Present } else { Input::Unknown };
        let local = LocalTime { weekday: 0, minute: 0 };
        let (on_battery, foreign_cpu, program) = (false, None, None);
        self.tell(Event::Sensed(Facts { input, on_battery, foreign_cpu, program, disk_room, local }));
    }

    fn limit_memory(&mut self, max: u64) {
        self.workers.memory_max = max;
        self.tell(WorkEvent::MemoryMax(max));
    }

    fn step(&mut self, what: u8, which: u8) {
        let (slot, odd) = (usize::from(which) % self.workers.len(), which >= 128);
        match what % 16 {
            0..=2 => self.tell_of(Workers::prepare_one),
            3..=5 => self.tell_of(|workers| workers.answer(slot)),
            6..=8 => self.workers.runs_to_its_end(slot, odd),
            9 | 10 => self.tell_of(|workers| workers.hear_of_an_end(slot)),
            11 => self.tell_of(Workers::keep_one),
            12 | 13 => self.time_passes(),
            14 => self.submit(usize::from(odd)),
            _ => match which % 8 {
                0 => self.owner(true, 1.0),
                1 => self.owner(false, 0.0),
                2..=4 => self.owner(false, 1.0),
                5 => self.tell_of(|workers| workers.refuse(slot)),
                6 => self.limit_memory(if odd { 30 } else { 45 }),
                _ => self.limit_memory(u64::MAX),
            },
        }
    }

    /// Everybody does what they can until both bags are closed.
    fn finish(&mut self) {
        self.owner(false, 1.0);
        self.limit_memory(u64::MAX);
        (0..2).for_each(|number| self.submit(number));
        let mut rounds = 5000;
        while rounds > 0 && (self.closed.len() < 2 || self.machine.is_busy() || !self.workers.known.is_empty()) {
            rounds -= 1;
            self.time_passes();
            for slot in 0..self.workers.len() {
                self.tell_of(Workers::prepare_one);
                self.tell_of(|workers| workers.answer(slot));
                self.workers.runs_to_its_end(slot, true);
                self.tell_of(|workers| workers.hear_of_an_end(slot));
                self.tell_of(Workers::keep_one);
            }
        }
        for (bag, _) in BAGS {
            let (succeeded, failed) = self.machine.peer().over(bag);
            assert_eq!((succeeded, failed), ((0..TASKS).into(), IntervalSet::new()), "{:#?}", self.workers);
        }
        assert_eq!(self.closed.len(), 2);
        assert!(!self.machine.is_busy() && self.workers.known.is_empty(), "{:#?}", self.workers);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_task_of_a_machine_succeeds_once(steps in prop::collection::vec(any::<(u8, u8)>(), 1..300)) {
        let mut world = World::new();
        world.tell(PeerEvent::DeadlineReached);
        world.submit(0);
        steps.into_iter().for_each(|(what, which)| world.step(what, which));
        world.finish();
    }
}
