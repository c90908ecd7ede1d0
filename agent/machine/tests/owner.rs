//! A whole machine whose owner comes, goes and has it finish, driven by hand.

use std::time::Duration;

use idlewood_machine::policy::hours::LocalTime;
use idlewood_machine::policy::{Facts, Input, Orders, OwnerSettings};
use idlewood_machine::{Effect, Event, Machine};
use idlewood_overlay::{Contact, GridId, PeerId, Time, WallTime};
use idlewood_scheduler::{
    Approval, BagId, BlobId, Config, Effect as PeerEffect, Event as PeerEvent, Finished, Peer, Replication, Submission,
    TaskId, TaskOutcome,
};

const START: WallTime = WallTime(1_700_000_000_000_000);

/// One machine alone, with a disk that is durable at once; what else it orders is noted.
struct World {
    machine: Machine,
    now: Time,
    orders: Vec<Effect>,
}

impl World {
    fn new() -> Self {
        let me = Contact { peer: PeerId([2; 32]), incarnation: 1, address: "/a".into(), nonce: None };
        let config = Config { slots: 1, ..Config::default() };
        let peer = Peer::restore(config, GridId([9; 32]), me, 1, Time::ZERO, START, []).expect("the defaults are good");
        let machine = Machine::new(peer, 1000.0, OwnerSettings::default(), Time::ZERO);
        let mut world = Self { machine, now: Time::ZERO, orders: Vec::new() };
        world.give(PeerEvent::DeadlineReached);
        world
    }

    fn give(&mut self, event: impl Into<Event>) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, event.into(), &mut effects);
        for effect in effects {
            match effect {
                Effect::Peer(PeerEffect::Persist { ticket, .. }) => self.give(PeerEvent::Persisted(ticket)),
                Effect::Peer(PeerEffect::Authorise { bag }) => {
                    let verdict = Ok(Approval { signed_ago: Duration::ZERO, at_hand: true });
                    self.give(PeerEvent::Authorised { bag: bag.id, verdict });
                }
                effect => self.orders.push(effect),
            }
        }
    }

    /// Time passes, and nothing else happens.
    fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(deadline) = self.machine.deadline().filter(|deadline| *deadline <= until) {
            self.now = self.now.max(deadline);
            self.give(PeerEvent::DeadlineReached);
        }
        self.now = until;
    }

    fn submit(&mut self, tasks: u64) {
        let submission = Submission {
            id: BagId([1; 32]),
            tasks,
            task_mops: Some(1e5),
            retries_max: 0,
            replication: Replication::default(),
        };
        self.give(PeerEvent::Submitted(submission));
    }

    fn sense(&mut self, input: Input) {
        let local = LocalTime { weekday: 0, minute: 0 };
        let facts = Facts { input, on_battery: false, foreign_cpu: None, program: None, disk_room: 1.0, local };
        self.give(Event::Sensed(facts));
    }

    /// The place and task that began since this was asked last.
    fn started(&mut self) -> Option<TaskId> {
        let task = |effect| match effect {
            Effect::Peer(PeerEffect::StartTask { task, .. }) => Some(task),
            _ => None,
        };
        self.orders.drain(..).find_map(task)
    }

    fn end(&mut self, task: TaskId) {
        let finished = Finished {
            success: true,
            crashed: false,
            output: BlobId([3; 32]),
            output_bytes: 0,
            content: None,
            work_mops: 1e5,
            exit_code: Some(0),
        };
        self.give(PeerEvent::TaskEnded { task, outcome: TaskOutcome::Finished(finished) });
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

#[test]
fn no_task_begins_before_the_owner_has_given_no_input_for_the_time_that_ships() {
    let mut world = World::new();
    world.pass(minutes(1));
    world.sense(Input::Present);
    assert!(matches!(world.orders[..], [Effect::FreezeWorkers, Effect::Judged(_), ..]), "{:?}", world.orders);
    world.submit(2);
    world.pass(minutes(3));
    world.sense(Input::Idle(Duration::ZERO));
    assert_eq!(world.started(), None);
    world.pass(minutes(5) - Duration::from_millis(1));
    assert_eq!(world.started(), None, "not yet");
    world.pass(Duration::from_millis(1));
    assert!(world.orders.contains(&Effect::ThawWorkers), "{:?}", world.orders);
    assert!(world.started().is_some());
}

#[test]
fn a_machine_that_finishes_ends_when_its_last_task_has_and_the_driver_is_done() {
    let mut world = World::new();
    world.submit(1);
    let task = world.started().expect("nobody is there");
    world.give(Event::Busy(true));
    world.give(Event::Ordered(Orders { pause: None, finish: true }));
    assert!(!world.orders.contains(&Effect::End), "a task runs");
    world.end(task);
    assert!(!world.orders.contains(&Effect::End), "its worker is not free yet");
    world.give(Event::Busy(false));
    world.pass(Duration::from_secs(30));
    assert_eq!(world.orders.iter().filter(|order| **order == Effect::End).count(), 1, "{:?}", world.orders);
}
