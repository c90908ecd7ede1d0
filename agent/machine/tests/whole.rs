//! A whole machine, driven by hand: its owner comes, goes and has it finish, and its disk fills up.

use std::time::Duration;

use idlewood_machine::downloads::Piece;
use idlewood_machine::policy::hours::LocalTime;
use idlewood_machine::policy::{Facts, Input, Orders, OwnerSettings};
use idlewood_machine::{Effect, Event, FetchEnd, JobId, Machine, WorkEvent, WorkOrder, WriteEnd};
use idlewood_overlay::{Contact, GridId, PeerId, Time, WallTime};
use idlewood_scheduler::{
    Approval, BagId, BlobId, Config, Enclosed, Event as PeerEvent, Finished, Message, Peer, Replication, Speaker,
    Submission, TaskId, TaskOutcome, TaskResult,
};

const START: WallTime = WallTime(1_700_000_000_000_000);

/// One machine alone, with a disk and a worker that answer at once; other orders are noted.
struct World {
    machine: Machine,
    now: Time,
    /// How writes end that may not use the reserve.
    disk: WriteEnd,
    /// The task that the worker runs.
    runs: Option<(usize, JobId, TaskId)>,
    orders: Vec<Effect>,
}

impl World {
    fn new() -> Self {
        let me = Contact { peer: PeerId([2; 32]), incarnation: 1, address: "/a".into(), nonce: None };
        let config = Config { slots: 1, ..Config::default() };
        let peer = Peer::restore(config.clone(), GridId([9; 32]), me, 1, Time::ZERO, START, [])
            .expect("the defaults are good");
        let machine = Machine::new(peer, &config, config.speed_mops, OwnerSettings::default(), Time::ZERO);
        let mut world = Self { machine, now: Time::ZERO, disk: WriteEnd::Durable, runs: None, orders: Vec::new() };
        world.give(PeerEvent::DeadlineReached);
        world
    }

    fn give(&mut self, event: impl Into<Event>) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, event.into(), &mut effects);
        for effect in effects {
            match effect {
                Effect::Write { write, from_reserve, .. } => {
                    let end = if from_reserve { WriteEnd::Durable } else { self.disk };
                    self.give(Event::Written { write, end });
                }
                Effect::Fetch { fetch, .. } => {
                    self.give(Event::FetchEnded { fetch, end: FetchEnd::Here { checkpoint: None } });
                }
                Effect::Authorise { bag, .. } => {
                    let verdict = Ok(Approval { signed_ago: Duration::ZERO, at_hand: true, program: None });
                    self.give(PeerEvent::Authorised { bag: bag.id, verdict });
                }
                Effect::Work(WorkOrder::Prepare { job, .. }) => {
                    self.give(WorkEvent::Prepared { job, memory_bytes: 1, is_example: false });
                }
                Effect::Work(WorkOrder::Give { slot, job, task, .. }) => self.runs = Some((slot, job, task)),
                Effect::Work(WorkOrder::TakeBack { slot }) => {
                    self.give(WorkEvent::TakenBack { slot, jobs: Vec::new() })
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
            envelope: Enclosed::default(),
            manifest: Enclosed::default(),
            tasks,
            task_mops: Some(1e5),
            retries_max: 0,
            replication: Replication::default(),
            stewards: None,
            keep_results: false,
            conditions: idlewood_scheduler::Conditions::default(),
            endless: None,
        };
        self.give(PeerEvent::Submitted(submission));
    }

    fn sense(&mut self, input: Input) {
        let local = LocalTime { weekday: 0, minute: 0 };
        let facts = Facts { input, on_battery: false, foreign_cpu: None, program: None, disk_room: 1.0, local };
        self.give(Event::Sensed(facts));
    }

    /// The task that runs; forgets the orders until now.
    fn running(&mut self) -> Option<TaskId> {
        self.orders.clear();
        self.runs.map(|(_, _, task)| task)
    }

    /// Another machine says results of a bag that nobody knows here: whether they are acknowledged.
    fn acknowledges(&mut self) -> bool {
        let result = TaskResult::of(0, 0, finished());
        let executor = Speaker { incarnation: 1, address: "/b".into() };
        let message = Message::Results { bag: BagId([8; 32]), executor, results: vec![result], signature: None };
        self.orders.clear();
        self.give(PeerEvent::Received { from: PeerId([7; 32]), message });
        let is_ack = |order: &Effect| matches!(order, Effect::Send { message: Message::ResultsAck { .. }, .. });
        self.orders.iter().any(is_ack)
    }

    fn end(&mut self, task: TaskId) {
        let (slot, job, _) = self.runs.take().filter(|(.., runs)| *runs == task).expect("it runs");
        let (wall, outcome) = (Some(Duration::from_secs(1)), Some(TaskOutcome::Finished(finished())));
        self.give(WorkEvent::Ended { slot, job, wall, outcome });
    }
}

fn finished() -> Finished {
    Finished {
        success: true,
        crashed: false,
        output: BlobId([3; 32]),
        output_bytes: 0,
        content: None,
        work_mops: 1e5,
        exit_code: Some(0),
        fingerprint: None,
        times: 1.0,
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

#[test]
fn no_task_begins_before_the_owner_has_given_no_input_for_the_time_that_ships() {
    let mut world = World::new();
    world.pass(minutes(1));
    world.orders.clear();
    world.sense(Input::Present);
    assert!(
        matches!(world.orders[..], [Effect::Work(WorkOrder::FreezeAll), Effect::Judged(_), ..]),
        "{:?}",
        world.orders
    );
    world.submit(2);
    world.pass(minutes(3));
    world.sense(Input::Idle(Duration::ZERO));
    assert_eq!(world.running(), None);
    world.pass(minutes(5) - Duration::from_millis(1));
    assert_eq!(world.running(), None, "not yet");
    world.pass(Duration::from_millis(1));
    assert!(world.orders.contains(&Effect::Work(WorkOrder::ThawAll)), "{:?}", world.orders);
    assert!(world.running().is_some());
}

#[test]
fn a_machine_that_finishes_ends_when_its_last_task_has_and_the_driver_is_done() {
    let mut world = World::new();
    world.submit(1);
    let task = world.running().expect("nobody is there");
    world.give(Event::Busy(true));
    world.give(Event::Ordered(Orders { pause: None, finish: true }));
    assert!(!world.orders.contains(&Effect::End), "a task runs");
    world.end(task);
    assert!(!world.orders.contains(&Effect::End), "its worker is not free yet");
    world.give(Event::Busy(false));
    world.pass(Duration::from_secs(30));
    assert_eq!(world.orders.iter().filter(|order| **order == Effect::End).count(), 1, "{:?}", world.orders);
}

#[test]
fn a_submission_that_the_disk_does_not_take_is_given_up_and_that_is_told() {
    let mut world = World::new();
    world.disk = WriteEnd::NoRoom;
    world.submit(1);
    let told = world.orders.iter().filter(|order| **order == Effect::Unwritten(vec![BagId([1; 32])])).count();
    assert_eq!(told, 1, "{:?}", world.orders);
    world.disk = WriteEnd::Durable;
    world.pass(minutes(1));
    assert!(world.machine.peer().bag(BagId([1; 32])).is_none(), "it does not come back");
    assert_eq!(world.running(), None);
}

#[test]
fn a_machine_whose_disk_is_full_takes_no_results_of_others_until_there_is_room() {
    let mut world = World::new();
    world.submit(2);
    let task = world.running().expect("nobody is there");
    assert!(world.acknowledges());
    world.disk = WriteEnd::NoRoom;
    world.end(task);
    world.pass(Duration::from_secs(3));
    assert!(!world.acknowledges(), "the result of the own task did not fit");
    world.pass(Duration::from_millis(2500));
    assert!(!world.acknowledges());
    world.disk = WriteEnd::Durable;
    world.pass(Duration::from_secs(1));
    assert!(world.acknowledges());
}

#[test]
fn pieces_that_come_show_what_the_link_takes() {
    let mut world = World::new();
    let unmeasured = world.machine.peer().link_kb_s();
    let took = Duration::from_millis(100);
    world.give(Event::PieceCame(Piece { bytes: 50_000, took }));
    assert_eq!(world.machine.peer().link_kb_s(), unmeasured, "it is too short");
    world.give(Event::PieceCame(Piece { bytes: 250_000, took }));
    assert_eq!(world.machine.peer().link_kb_s(), 2500);
}

#[test]
fn tasks_that_wait_for_a_processor_show_that_the_machine_is_slower() {
    let mut world = World::new();
    let before = world.machine.peer().platform().speed_mops;
    for _ in 0..60 {
        world.now += Duration::from_secs(2);
        world.give(Event::Computed { ran: Duration::from_millis(500), waited: Duration::from_millis(1_500) });
        world.give(PeerEvent::DeadlineReached);
    }
    let of_before = [world.machine.speed_mops(), world.machine.peer().platform().speed_mops].map(|now| now / before);
    assert!(of_before.iter().all(|share| (0.24..0.28).contains(share)), "{of_before:?}");
}

#[test]
fn what_runs_here_is_told_to_its_submitter_and_to_nobody_else() {
    let mut world = World::new();
    let (bag, me, other) = (BagId([1; 32]), PeerId([2; 32]), PeerId([7; 32]));
    assert_eq!(world.machine.running_for(bag, me), None, "nothing of it is here");
    world.submit(2);
    let task = world.running().expect("nobody is there");
    let told = world.machine.running_for(bag, me).expect("it is the submitter");
    assert_eq!(told.iter().map(|job| (job.index, job.stands_still)).collect::<Vec<_>>(), [(task.index, false)]);
    assert_eq!(world.machine.running_for(bag, other), None);
    world.sense(Input::Present);
    assert!(world.machine.running_for(bag, me).is_some_and(|jobs| jobs[0].stands_still), "the owner is back");
}
