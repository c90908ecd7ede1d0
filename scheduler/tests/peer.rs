//! One peer, driven by hand: what it does at its edges, where a simulation seldom comes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use idlewood_overlay::{Body, Contact, GridId, Node, PeerId, Side, State, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{
    AGE_MAX, Asker, BagHeader, BagId, BlobId, Change, Checkpoint, Config, DeclineReason, Effect, Event, Finished,
    MESSAGE_BYTES_MAX, Message, Notice, Path, Peer, Record, Replication, Request, Speaker, Submission, TaskId,
    TaskOutcome, TaskResult,
};

const BAG: BagId = BagId([7; 32]);
const START: WallTime = WallTime(1_700_000_000_000_000);
const SUBMITTER: PeerId = PeerId([1; 32]);

fn contact(number: u8) -> Contact {
    Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None }
}

fn speaker(number: u8) -> Speaker {
    (&contact(number)).into()
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A peer with a disk that is always durable at once, and what it wanted.
struct Host {
    peer: Peer,
    now: Time,
    sent: Vec<(Contact, Message)>,
    started: Vec<TaskId>,
    stopped: Vec<TaskId>,
    measured: Vec<BagId>,
    /// What was to be authorised, and what is answered; none: nothing.
    looked_at: Vec<BagHeader>,
    verdict: Option<Result<Duration, DeclineReason>>,
    notices: Vec<Notice>,
    persisted: Vec<Record>,
    /// Whose checkpoints were asked for, and what tasks that were started go on from.
    asked: Vec<(BagId, IntervalSet)>,
    going_on: BTreeMap<u64, Checkpoint>,
}

/// A bag as its submitter keeps it while it is open.
fn submitted(bag: BagHeader, retries_max: u32, attempt: u32) -> Record {
    Record::Bag { bag, released: START, retries_max, attempt, closed: None, replication: Replication::default() }
}

impl Host {
    fn new(number: u8) -> Self {
        Self::restore(number, Config::default(), Vec::new())
    }

    fn restore(number: u8, config: Config, records: Vec<Record>) -> Self {
        let grid = GridId([9; 32]);
        let peer = Peer::restore(config, grid, contact(number), 1, Time::ZERO, START, records).unwrap();
        let mut host = Self {
            peer,
            now: Time::ZERO,
            sent: Vec::new(),
            started: Vec::new(),
            stopped: Vec::new(),
            measured: Vec::new(),
            looked_at: Vec::new(),
            verdict: Some(Ok(Duration::ZERO)),
            notices: Vec::new(),
            persisted: Vec::new(),
            asked: Vec::new(),
            going_on: BTreeMap::new(),
        };
        host.give(Event::DeadlineReached);
        host
    }

    fn give(&mut self, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.peer.handle(self.now, event, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Persist { ticket, changes } => {
                        self.persisted.extend(changes.into_iter().filter_map(|change| match change {
                            Change::Put(record) => Some(record),
                            Change::Delete(_) => None,
                        }));
                        events.push_back(Event::Persisted(ticket));
                    }
                    Effect::Send { to, message } => self.sent.push((Contact::clone(&to), message)),
                    Effect::StartTask { task, checkpoint, .. } => {
                        self.started.push(task);
                        self.going_on.extend(checkpoint.map(|checkpoint| (task.index, checkpoint)));
                    }
                    Effect::KeepCheckpoints { bag, tasks } => self.asked.push((bag, tasks)),
                    Effect::StopTask { task, .. } => self.stopped.push(task),
                    Effect::MeasureTask { bag } => self.measured.push(bag),
                    Effect::Authorise { bag } => {
                        self.looked_at.push(bag.clone());
                        if let Some(verdict) = self.verdict {
                            events.push_back(Event::Authorised { bag: bag.id, verdict });
                        }
                    }
                    Effect::FetchOutput { task, .. } => {
                        events.push_back(Event::Fetched { task, here: true, checkpoint: None })
                    }
                    Effect::Notify(notice) => self.notices.push(notice),
                    Effect::FreezeTask { .. }
                    | Effect::ThawTask { .. }
                    | Effect::SuspendTasks
                    | Effect::ResumeTasks => {}
                }
            }
        }
    }

    fn receive(&mut self, from: u8, message: Message) {
        self.give(Event::Received { from: PeerId([from; 32]), message });
    }

    /// Lets time pass, waking the peer when it wants.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..100_000 {
            match self.peer.deadline().filter(|&deadline| deadline <= end) {
                Some(deadline) => self.now = deadline.max(self.now),
                None => {
                    self.now = end;
                    return;
                }
            }
            self.give(Event::DeadlineReached);
        }
        panic!("it wants to be woken again and again at {:?}", self.now);
    }

    fn finish(&mut self, task: TaskId, success: bool) {
        let outcome = TaskOutcome::Finished(Finished {
            success,
            crashed: false,
            output: BlobId([1; 32]),
            output_bytes: 1,
            work_mops: 1000.0,
            exit_code: Some(0),
        });
        self.give(Event::TaskEnded { task, outcome });
    }

    /// What runs succeeds.
    fn finish_running(&mut self) {
        let running = self.peer.running();
        running.into_iter().for_each(|running| self.finish(running.task, true));
    }

    /// Versions and sizes of the `Holding`s sent.
    fn holdings(&self) -> Vec<(u64, u64)> {
        let holdings = self.sent.iter().filter_map(|(_, message)| match message {
            Message::Holding { version, ranges, .. } => Some((*version, ranges.len())),
            _ => None,
        });
        holdings.collect()
    }
}

/// Lets two hosts, 2 and 3, talk to each other.
fn talk(host: &mut Host, other: &mut Host, seconds: u32) {
    talk_and(host, other, seconds, |_| ());
}

/// The same, with a look at each message.
fn talk_and(host: &mut Host, other: &mut Host, seconds: u32, mut look: impl FnMut(&Message)) {
    for _ in 0..seconds * 10 {
        for one in [&mut *host, &mut *other] {
            one.pass(Duration::from_millis(100));
        }
        deliver(host, other, &mut look);
    }
}

/// Each gets what the other has sent.
fn deliver(host: &mut Host, other: &mut Host, look: &mut impl FnMut(&Message)) {
    let [to_other, to_host] = [&mut *host, &mut *other].map(|one| std::mem::take(&mut one.sent));
    to_other.iter().chain(&to_host).for_each(|(_, message)| look(message));
    to_other.into_iter().for_each(|(_, message)| other.receive(2, message));
    to_host.into_iter().for_each(|(_, message)| host.receive(3, message));
}

/// Two hosts that are a grid.
fn pair() -> [Host; 2] {
    pair_with(Config::default())
}

fn pair_with(config: Config) -> [Host; 2] {
    let [mut host, mut other] = [2, 3].map(|number| Host::restore(number, config.clone(), Vec::new()));
    host.give(Event::Bootstrap(contact(3)));
    talk(&mut host, &mut other, 20);
    assert_eq!([&host, &other].map(|one| one.peer.overlay_view().state()), [State::Member; 2]);
    [host, other]
}

/// A bag of so many tasks, each of which is tried once.
fn submission(tasks: u64, task_mops: f64) -> Submission {
    Submission { id: BAG, tasks, task_mops: Some(task_mops), retries_max: 0, replication: Replication::default() }
}

fn bag(submitter: u8) -> BagHeader {
    BagHeader {
        id: BAG,
        submitter: contact(submitter),
        tasks: 100,
        task_mops: 1000.0,
        application_size_mops: 1e5,
        declared: true,
    }
}

fn request(number: u64, attempt: u32, ranges: Range<u64>) -> Message {
    let request = Request {
        bag: bag(1),
        number,
        attempt,
        ranges: IntervalSet::from(ranges),
        age: Duration::ZERO,
        path: Path::default(),
        climbed: 0,
        machines: 0,
        leads: false,
        checkpoints: Box::default(),
    };
    Message::Request { request, node: Node::Leaf, climbing: false }
}

fn lease(version: u64, drop: IntervalSet) -> Message {
    Message::Lease { bag: BAG, version, submitter: None, term: Duration::from_secs(60), drop, rest: Duration::ZERO }
}

#[test]
fn a_machine_alone_runs_its_own_bag() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(3, 1000.0)));
    assert_eq!(host.notices, [Notice::BagAccepted(BAG)]);
    for index in 0..3 {
        assert_eq!(host.started.len(), index + 1, "one slot, one task at a time");
        host.pass(seconds(1.0));
        host.finish(host.started[index], true);
    }
    assert_eq!(host.notices, [Notice::BagAccepted(BAG), Notice::BagClosed(BAG)]);
    assert!(host.peer.held().is_empty(), "acknowledged and forgotten");
    assert!(host.sent.is_empty(), "a machine alone talks to nobody");
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.done, view.reissued, view.duplicates), (3, 0, 0));
    assert!((view.stretch().unwrap() - 3.0 / 3000.0).abs() < 1e-9);
}

#[test]
fn a_bag_of_unknown_work_is_measured_first() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission {
        id: BAG,
        tasks: 3,
        task_mops: None,
        retries_max: 0,
        replication: Replication::default(),
    }));
    assert_eq!((host.measured.as_slice(), host.started.len()), (&[BAG][..], 0));
    host.give(Event::Measured { bag: BAG, task_mops: f64::NAN, result: None });
    assert_eq!(host.started.len(), 1, "whatever was measured, it goes on");
}

#[test]
fn what_was_measured_makes_a_bag_that_others_take() {
    // Dividing the most by the number of tasks, and multiplying again, may round up.
    for tasks in [27, 229_581_046_562] {
        let mut host = Host::new(1);
        host.give(Event::Submitted(Submission {
            id: BAG,
            tasks,
            task_mops: None,
            retries_max: 0,
            replication: Replication::default(),
        }));
        host.give(Event::Measured { bag: BAG, task_mops: f64::INFINITY, result: None });
        let bag = host.peer.bag(BAG).unwrap().bag;
        assert!(bag.is_valid() && bag.application_size_mops > 0.99e18, "{bag:?}");
    }
}

/// A request as `request`, but for what is changed in it.
fn forged(number: u64, change: impl FnOnce(&mut Request)) -> Message {
    let Message::Request { mut request, node, climbing } = request(number, 0, 10..20) else { unreachable!() };
    change(&mut request);
    Message::Request { request, node, climbing }
}

impl Host {
    /// Who was told what is held, or that it still is.
    fn words(&self) -> Vec<&Contact> {
        let is_word = |message: &Message| matches!(message, Message::Holding { .. } | Message::Renewal { .. });
        self.sent.iter().filter(|(_, message)| is_word(message)).map(|(to, _)| to).collect()
    }

    /// Who was told last.
    fn told(&self) -> &Contact {
        self.words().last().expect("somebody was told")
    }
}

#[test]
fn what_contradicts_the_bag_is_refused() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, lease(host.holdings()[0].0, IntervalSet::new()));
    let before = (host.peer.held(), host.holdings());
    let changes: [fn(&mut Request); 5] = [
        |request| request.bag.tasks = 1 << 40,
        |request| request.bag.task_mops = 1.0,
        |request| request.bag.application_size_mops = 1.0,
        |request| request.bag.declared = false,
        |request| request.bag.submitter.peer = PeerId([5; 32]),
    ];
    for (number, change) in (2..).zip(changes) {
        host.receive(5, forged(number, change));
        assert_eq!((host.peer.held(), host.holdings()), before, "request {number}");
    }
    host.receive(1, forged(9, |_| {}));
    assert_eq!(host.peer.held()[0].waiting + host.peer.held()[0].running, 15);
}

#[test]
fn what_was_invented_gives_way_to_the_bag_itself() {
    let mut host = Host::new(2);
    // The same number and path: else the true one would be taken for the same.
    host.receive(5, forged(1, |request| request.bag.submitter = contact(5)));
    assert_eq!((host.started.len(), host.told().peer), (1, PeerId([5; 32])));
    host.receive(1, request(1, 0, 0..5));
    assert_eq!((host.stopped.as_slice(), host.told()), (host.started.as_slice(), &contact(1)));
    host.give(Event::TaskEnded { task: host.started[0], outcome: TaskOutcome::Stopped });
    assert_eq!(host.peer.held().iter().map(|held| held.waiting + held.running).collect::<Vec<_>>(), [5]);
}

#[test]
fn what_was_held_before_a_restart_does_not_give_way() {
    let ranges = IntervalSet::from(0..5);
    let held =
        Record::Held { bag: bag(1), released: START, attempt: 0, attempts: None, ranges, checkpoints: BTreeMap::new() };
    let mut host = Host::restore(2, Config::default(), vec![held]);
    host.receive(5, forged(1, |request| request.bag.submitter = contact(5)));
    assert_eq!((host.stopped.len(), host.peer.held()[0].waiting + host.peer.held()[0].running), (0, 5));
    assert!(host.sent.iter().all(|(to, _)| to == &contact(1)));
}

#[test]
fn a_task_keeps_its_attempt_over_a_restart_whatever_others_of_its_bag_came_with() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..2));
    host.receive(1, request(2, 3, 1..2));
    let held = host.persisted.last().expect("what it holds is kept").clone();
    let mut host = Host::restore(2, Config::default(), vec![held]);
    host.receive(1, lease(host.holdings()[0].0, IntervalSet::new()));
    for run in 0..2 {
        host.finish(host.started[run], true);
    }
    let attempts = host.persisted.iter().filter_map(|record| match record {
        Record::Outbox { result, .. } => Some((result.index, result.attempt)),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [(0, 0), (1, 3)]);
}

#[test]
fn where_many_machines_speak_to_a_submitter_results_are_repeated_later() {
    // A link takes words of 500 machines a second.
    for (machines, first_s) in [(0, 2.0), (10_000, 20.0), (100_000, 200.0), (u32::MAX, 600.0)] {
        let mut host = Host::new(2);
        host.receive(1, forged(1, |request| request.machines = machines));
        while host.peer.held()[0].running > 0 {
            host.finish(*host.started.last().expect("one runs"), true);
        }
        let told =
            |host: &Host| host.sent.iter().filter(|(_, message)| matches!(message, Message::Results { .. })).count();
        host.pass(seconds(0.1));
        let before = told(&host);
        host.pass(seconds(first_s - 0.5));
        assert_eq!(told(&host), before, "nothing is repeated yet");
        host.pass(seconds(1.0));
        assert_eq!(told(&host), before + 1, "now it is, {first_s} s");
    }
}

#[test]
fn only_the_submitter_itself_says_where_it_is() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, lease(host.holdings()[0].0, IntervalSet::new()));
    let astray = Contact { incarnation: u64::MAX, address: "/nowhere".into(), ..contact(1) };
    host.receive(5, forged(2, |request| request.bag.submitter = astray.clone()));
    host.pass(seconds(30.0));
    assert_eq!(host.told(), &contact(1));
    // Somebody was first with a wrong address: the next request is answered where it comes from, and so is the rest.
    let mut host = Host::new(2);
    host.receive(5, forged(1, |request| request.bag.submitter = astray));
    host.receive(1, request(2, 0, 0..5));
    assert_eq!(host.told(), &contact(1));
    let version = host.holdings().last().unwrap().0;
    let (submitter, term) = (Some(speaker(1)), Duration::from_secs(60));
    host.receive(
        1,
        Message::Lease { bag: BAG, version, submitter, term, drop: IntervalSet::new(), rest: Duration::ZERO },
    );
    let before = host.words().len();
    host.pass(seconds(31.0));
    assert_eq!((host.told(), host.words().len() > before), (&contact(1), true));
}

#[test]
fn a_submitter_says_where_it_is_with_every_answer() {
    let mut host = Host::new(1);
    host.receive(
        2,
        Message::Holding { bag: BAG, executor: speaker(2), version: 1, attempt: 0, ranges: IntervalSet::from(0..1) },
    );
    host.give(Event::Submitted(submission(3, 1000.0)));
    host.receive(
        2,
        Message::Holding { bag: BAG, executor: speaker(2), version: 2, attempt: 0, ranges: IntervalSet::from(0..1) },
    );
    let leases = host.sent.iter().map(|(_, message)| match message {
        Message::Lease { submitter, drop, .. } => (submitter.clone(), drop.len()),
        other => panic!("{other:?}"),
    });
    let leases: Vec<_> = leases.collect();
    // Of the bag that it does not know yet, nothing; and then it holds all of it itself.
    assert_eq!(leases, [(None, 1), (Some(speaker(1)), 1)]);
}

#[test]
fn what_is_held_can_always_be_said() {
    let said = |host: &Host| {
        for (_, message) in &host.sent {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(message));
        }
        host.holdings().len()
    };
    let mut host = Host::new(2);
    for number in 0..100 {
        host.receive(
            1,
            forged(number, |request| {
                request.bag.tasks = 1 << 40;
                let first = (1 << 39) + number * 512;
                request.ranges = (0..256).map(|at| first + 2 * at..first + 2 * at + 1).collect();
            }),
        );
    }
    // Those beyond are refused, and issued again elsewhere.
    assert_eq!((said(&host), host.peer.held()[0].waiting + 1), (16, 4096));
    // Or what is left between results that were acknowledged.
    let result = |index| TaskResult {
        index,
        attempt: 0,
        success: true,
        crashed: false,
        unfinished: false,
        output: BlobId([1; 32]),
        output_bytes: 1,
        work_mops: 1000.0,
        exit_code: None,
        receipt: None,
    };
    let bag = BagHeader { tasks: 1 << 40, ..bag(1) };
    let records =
        (0..20_000).map(|at| Record::Outbox { bag: bag.clone(), released: START, result: result((1 << 39) + 2 * at) });
    let host = Host::restore(2, Config::default(), records.collect());
    assert!(said(&host) > 0 && host.holdings().iter().all(|&(_, tasks)| tasks == 4096));
}

#[test]
fn versions_rise_across_the_visits_of_a_bag() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..1));
    host.pass(seconds(20.0));
    let last = host.holdings().last().unwrap().0;
    host.finish(host.started[0], true);
    host.receive(1, Message::ResultsAck { bag: BAG, indices: IntervalSet::from(0..1) });
    assert!(host.peer.held().is_empty());
    host.receive(1, request(2, 1, 5..6));
    assert!(host.holdings().last().unwrap().0 > last, "else it is taken for an old word");
}

#[test]
fn a_request_is_executed_once() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..1));
    host.finish(host.started[0], true);
    host.receive(1, Message::ResultsAck { bag: BAG, indices: IntervalSet::from(0..1) });
    host.receive(1, request(1, 0, 0..1));
    assert_eq!(host.started.len(), 1);
}

/// The path that these letters spell.
fn path(steps: &str) -> Path {
    let side = |step| if step == 'l' { Side::Left } else { Side::Right };
    steps.chars().fold(Path::default(), |path, step| path.down(side(step)))
}

/// Tasks that a machine holds after it was sent one request number in parts with these paths, 10 tasks each.
fn held_of(paths: &[&str]) -> u64 {
    let mut host = Host::new(2);
    for (first, steps) in (0..).step_by(10).zip(paths) {
        let Message::Request { mut request, .. } = request(1, 0, first..first + 10) else { unreachable!() };
        request.path = path(steps);
        host.receive(1, Message::Request { request, node: Node::Leaf, climbing: false });
    }
    host.peer.held()[0].waiting + host.peer.held()[0].running
}

#[test]
fn what_a_request_is_a_part_of_or_has_as_a_part_is_not_executed_beside_it() {
    assert_eq!(held_of(&["ll", "l"]), 10, "the whole of which the part is here");
    assert_eq!(held_of(&["l", "ll", "lrl"]), 10, "parts of what is here");
    assert_eq!(held_of(&["", "rlr"]), 10);
    assert_eq!(held_of(&["ll", "lr", "r"]), 30, "parts of one request that have nothing in common");
}

#[test]
fn what_a_router_has_split_is_not_taken_by_its_leaf_once_the_router_has_moved() {
    let [mut host, mut router] = pair();
    assert!(router.peer.overlay_view().hosts_router());
    // All of it goes to the other machine.
    router.give(Event::OwnerReturned);
    talk(&mut host, &mut router, 20);
    let Message::Request { request, .. } = request(1, 0, 0..10) else { unreachable!() };
    let message = Message::Request { request, node: Node::Router, climbing: false };
    router.receive(1, message.clone());
    talk(&mut host, &mut router, 1);
    assert_eq!((host.peer.held().len(), router.peer.held().len()), (1, 0));
    host.give(Event::Leave);
    talk(&mut host, &mut router, 20);
    assert!(!router.peer.overlay_view().hosts_router());
    router.receive(1, message);
    assert!(router.peer.held().is_empty());
}

const KEPT: Checkpoint = Checkpoint { blob: BlobId([8; 32]), bytes: 80 };

/// Tasks that were told of as handed back, with their attempt.
fn handed_back(host: &Host) -> Vec<(u64, u32)> {
    let results = host.sent.iter().filter_map(|(_, message)| match message {
        Message::Results { results, .. } => Some(results),
        _ => None,
    });
    let back = results.flatten().filter(|result| {
        result.unfinished && !result.success && (result.output, result.output_bytes) == (KEPT.blob, KEPT.bytes)
    });
    back.map(|result| (result.index, result.attempt)).collect()
}

#[test]
fn who_has_begun_goes_back_after_the_vacate_time_with_its_checkpoint_or_stays() {
    let kept = |kept| Event::CheckpointsKept { bag: BAG, checkpoints: BTreeMap::from([(0, kept)]) };
    let suspended = || {
        let mut host = Host::new(2);
        host.receive(1, request(1, 3, 0..3));
        host.give(Event::OwnerReturned);
        host.pass(Config::default().vacate_after + seconds(1.0));
        assert_eq!(host.asked, [(BAG, IntervalSet::from(0..1))], "what has not begun is back already");
        assert_eq!(host.holdings().last().unwrap().1, 1);
        host.sent.clear();
        host
    };
    let mut host = suspended();
    host.give(kept(None));
    assert_eq!(
        (host.stopped.len(), host.peer.held()[0].running),
        (0, 1),
        "it stays with a checkpoint that is too large"
    );
    host.give(kept(Some(KEPT)));
    assert_eq!(host.stopped, [TaskId { bag: BAG, index: 0 }]);
    assert_eq!(handed_back(&host), [(0, 3)]);
    let first =
        host.sent.iter().find(|(_, message)| matches!(message, Message::Holding { .. } | Message::Results { .. }));
    assert!(matches!(first, Some((_, Message::Holding { .. }))), "only of what is placed here it is believed");
    host.give(Event::TaskEnded { task: host.started[0], outcome: TaskOutcome::Stopped });
    assert_eq!(host.peer.held()[0].unacknowledged, 1, "it is said again until it is taken");
    // The next life says it, too.
    let outbox = host.persisted.iter().filter(|record| matches!(record, Record::Outbox { .. })).cloned();
    let mut again = Host::restore(2, Config::default(), outbox.collect());
    again.pass(seconds(20.0));
    assert_eq!(handed_back(&again).first(), Some(&(0, 3)));
    host.receive(1, Message::ResultsAck { bag: BAG, indices: IntervalSet::from(0..1) });
    assert!(host.peer.held().is_empty());

    let mut host = suspended();
    host.give(Event::OwnerLeft);
    host.give(kept(Some(KEPT)));
    assert_eq!((host.stopped.len(), handed_back(&host).len()), (0, 0), "it goes on where it is");
}

#[test]
fn what_began_in_an_earlier_life_is_not_given_away_without_its_checkpoint() {
    let held = || {
        let (released, checkpoints) = (START, BTreeMap::new());
        let ranges = IntervalSet::from(0..4);
        let held = Record::Held { bag: bag(1), released, attempt: 0, attempts: None, ranges, checkpoints };
        let mut host = Host::restore(2, Config::default(), vec![held]);
        host.receive(1, lease(0, IntervalSet::new()));
        host.give(Event::OwnerReturned);
        host.give(Event::CheckpointsFound { bag: BAG, tasks: IntervalSet::from(2..4) });
        host
    };
    // Whoever asks gets the rest, all of it since the owner is there.
    let mut host = held();
    let asker = Asker { contact: contact(3), speed_mops: 1000.0, slots: 1, stretch: 0.0 };
    host.receive(3, Message::Ask { asker, node: Node::Leaf, climbing: false, climbed: 0 });
    let offered = host.sent.iter().find_map(|(_, message)| match message {
        Message::Offer { ranges, .. } => Some(ranges.clone()),
        _ => None,
    });
    assert_eq!(offered, Some(IntervalSet::from(1..2)));

    let mut host = held();
    host.pass(Config::default().vacate_after + seconds(1.0));
    assert_eq!(host.asked, [(BAG, IntervalSet::from(0..1).union(&IntervalSet::from(2..4)))]);
    assert_eq!(host.holdings().last().unwrap().1, 3);
    // Of one there is none after all, and it has nothing to lose.
    host.give(Event::CheckpointsKept { bag: BAG, checkpoints: BTreeMap::from([(3, Some(KEPT))]) });
    assert_eq!(handed_back(&host), [(3, 0)]);
    assert_eq!(host.holdings().last().unwrap().1, 2, "the one that had begun, and the one to be taken");
}

#[test]
fn a_task_begins_with_the_checkpoint_that_it_came_with_also_after_a_restart() {
    let mut host = Host::new(2);
    let Message::Request { request, node, climbing } = request(1, 0, 0..3) else { unreachable!() };
    let request = Request { checkpoints: Box::new([(0, KEPT), (2, KEPT)]), ..request };
    host.receive(1, Message::Request { request, node, climbing });
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT)]));
    let held = host.persisted.iter().rfind(|record| matches!(record, Record::Held { .. })).cloned();
    host.finish(host.started[0], true);
    host.finish(host.started[1], true);
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT), (2, KEPT)]));
    let host = Host::restore(2, Config::default(), held.into_iter().collect());
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT)]));
}

#[test]
fn a_submitter_knows_after_a_restart_what_its_tasks_go_on_from() {
    let bag = BagHeader { tasks: 3, ..bag(2) };
    let record = submitted(bag, 0, 1);
    let checkpoint = Record::Checkpoint { bag: BAG, index: 0, checkpoint: KEPT };
    let mut host = Host::restore(2, Config::default(), vec![checkpoint, record]);
    host.pass(seconds(20.0));
    assert_eq!(host.going_on, BTreeMap::from([(0, KEPT)]));
}

#[test]
fn a_part_of_a_request_names_the_checkpoints_of_its_tasks() {
    let [mut host, mut router] = pair();
    assert!(router.peer.overlay_view().hosts_router());
    let Message::Request { request, .. } = request(1, 0, 0..20) else { unreachable!() };
    let request = Request { checkpoints: (0..20).map(|index| (index, KEPT)).collect(), ..request };
    router.receive(1, Message::Request { request, node: Node::Router, climbing: false });
    let mut parts = Vec::new();
    talk_and(&mut host, &mut router, 2, |message| {
        if let Message::Request { request, .. } = message {
            parts.push(request.clone());
        }
    });
    assert!(!parts.is_empty());
    for part in parts {
        assert!(part.is_valid() && part.ranges.len() < 20, "{part:?}");
        assert_eq!(part.checkpoints.len() as u64, part.ranges.len());
    }
}

#[test]
fn who_finishes_hands_back_what_is_frozen_for_others_or_it_would_stay_for_ever() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 2, 0..1));
    let Message::Request { request, node, climbing } = request(2, 0, 0..1) else { unreachable!() };
    let urgent = BagHeader { id: BagId([8; 32]), tasks: 1, application_size_mops: 10.0, task_mops: 10.0, ..bag(1) };
    host.receive(1, Message::Request { request: Request { bag: urgent, ..request }, node, climbing });
    let frozen = host.peer.running().into_iter().filter(|running| running.preempted).map(|running| running.task);
    let frozen: Vec<TaskId> = frozen.collect();
    assert_eq!(frozen, [TaskId { bag: BAG, index: 0 }]);
    host.give(Event::OwnerReturned);
    // Also when the vacate time has passed.
    host.pass(Config::default().vacate_after + seconds(1.0));
    host.asked.clear();
    host.give(Event::Vacate);
    assert_eq!(host.stopped, frozen);
    assert!(host.asked.contains(&(BAG, IntervalSet::from(0..1))), "{:?}", host.asked);
    host.give(Event::TaskEnded { task: frozen[0], outcome: TaskOutcome::Stopped });
    host.give(Event::CheckpointsKept { bag: BAG, checkpoints: BTreeMap::from([(0, Some(KEPT))]) });
    assert_eq!(handed_back(&host), [(0, 2)]);
    assert_eq!(host.peer.running().len(), 1, "what runs goes on to its end");
}

#[test]
fn who_finishes_hands_back_at_once_what_does_not_run() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..3));
    host.give(Event::Vacate);
    assert_eq!(host.peer.held()[0].waiting, 2, "the owner is away");
    host.give(Event::OwnerReturned);
    host.give(Event::Vacate);
    assert_eq!((host.peer.held()[0].waiting, host.peer.held()[0].running), (0, 1));
}

#[test]
fn another_vacate_time_counts_also_for_the_present_stay() {
    let waiting = |host: &Host| host.peer.held()[0].waiting;
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.give(Event::OwnerReturned);
    host.pass(seconds(20.0));
    host.give(Event::VacatesAfter(seconds(30.0)));
    host.pass(seconds(9.0));
    assert_eq!(waiting(&host), 4, "one has begun");
    host.pass(seconds(2.0));
    assert_eq!(waiting(&host), 0, "30 s after the return");

    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.give(Event::VacatesAfter(seconds(5.0)));
    host.pass(seconds(60.0));
    assert_eq!(waiting(&host), 4, "nobody is there");
    host.give(Event::OwnerReturned);
    host.pass(seconds(6.0));
    assert_eq!(waiting(&host), 0);
}

#[test]
fn a_suspended_machine_hands_back_and_forgets_again_and_again() {
    let mut host = Host::new(2);
    host.give(Event::OwnerReturned);
    for number in 1..3 {
        host.receive(1, request(number, 0, 0..5));
        assert_eq!(host.peer.held()[0].waiting, 5);
        host.pass(Config::default().vacate_after + seconds(1.0));
        let (version, held) = *host.holdings().last().unwrap();
        assert_eq!(held, 0, "handed back");
        host.receive(1, lease(version, IntervalSet::new()));
        assert!(host.peer.held().is_empty(), "and forgotten");
    }
    assert!(host.started.is_empty());
}

#[test]
fn a_submitter_that_comes_back_waits_for_its_grid() {
    let submitted = submitted(bag(2), 1, 0);
    let config = Config { expects_grid: true, ..Config::default() };
    let mut host = Host::restore(2, config.clone(), vec![submitted]);
    host.pass(config.placement_timeout - seconds(1.0));
    assert!(host.peer.held().is_empty(), "it must not take everything on itself");
    host.pass(seconds(1.5));
    assert_eq!(host.started.len(), 1, "but not wait for ever either");
}

#[test]
fn what_is_issued_after_a_restart_is_another_attempt() {
    let submitted = submitted(bag(2), 1, 4);
    let mut host = Host::restore(2, Config::default(), vec![submitted]);
    host.pass(seconds(1.0));
    host.finish(host.started[0], true);
    let attempts = host.persisted.iter().filter_map(|record| match record {
        Record::Bag { attempt, .. } => Some(*attempt),
        Record::Outbox { result, .. } => Some(result.attempt),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [5, 5]);
}

#[test]
fn after_a_sleep_leases_begin_anew() {
    let placed = Record::Placed { bag: BAG, executor: contact(5), ranges: IntervalSet::from(0..100) };
    let submitted = submitted(bag(1), 1, 0);
    let mut host = Host::restore(1, Config::default(), vec![submitted, placed]);
    host.now += Duration::from_secs(3600);
    host.give(Event::DeadlineReached);
    let reissued = |host: &Host| host.peer.bag(BAG).unwrap().reissued;
    assert_eq!(reissued(&host), 0, "nobody broke a lease");
    // For a bag of an hour a lease is an eighth of that.
    host.pass(seconds(445.0));
    assert_eq!(reissued(&host), 0);
    host.pass(seconds(10.0));
    assert_eq!(reissued(&host), 100, "now somebody did");
}

#[test]
fn a_restarted_submitter_tells_executors_where_it_is() {
    let placed = Record::Placed { bag: BAG, executor: contact(5), ranges: IntervalSet::from(0..100) };
    let submitted = submitted(bag(1), 1, 0);
    let host = Host::restore(1, Config::default(), vec![submitted, placed]);
    let told = host.sent.iter().any(|(to, message)| {
        to.peer == PeerId([5; 32]) && matches!(message, Message::Lease { submitter: Some(_), .. })
    });
    assert!(told);

    let mut executor = Host::new(5);
    executor.receive(1, request(1, 0, 0..5));
    let moved = Contact { incarnation: 2, address: "/b".into(), ..contact(1) };
    executor.sent.clear();
    let unasked = Message::Lease {
        bag: BAG,
        version: 0,
        submitter: Some((&moved).into()),
        term: Duration::from_secs(60),
        drop: IntervalSet::new(),
        rest: Duration::ZERO,
    };
    executor.receive(1, unasked);
    executor.pass(seconds(0.1));
    let answered = executor.sent.iter().any(|(to, message)| *to == moved && matches!(message, Message::Holding { .. }));
    assert!(answered, "it answers there, at once");
}

#[test]
fn what_a_machine_says_counts_as_its_own_whatever_address_it_gives() {
    let all = IntervalSet::from(0..100);
    let placed = Record::Placed { bag: BAG, executor: contact(2), ranges: all.clone() };
    let mut host = Host::restore(1, Config::default(), vec![submitted(bag(1), 1, 0), placed]);
    let others = vec![(contact(2), all.clone())];
    assert_eq!(host.peer.placements(BAG), others);
    let executor = Speaker { incarnation: 9, ..speaker(2) };
    let finished = Finished {
        success: true,
        crashed: false,
        output: BlobId([1; 32]),
        output_bytes: 1,
        work_mops: 1000.0,
        exit_code: Some(0),
    };
    let results = vec![TaskResult::of(3, 0, finished)];
    let said = [
        Message::Holding { bag: BAG, executor: executor.clone(), version: 9, attempt: 9, ranges: all.clone() },
        // What it no longer lists would be issued again, were it the other's word.
        Message::Holding { bag: BAG, executor: executor.clone(), version: 10, attempt: 9, ranges: IntervalSet::new() },
        Message::Renewal { executor: executor.clone(), bags: vec![(BAG, 10)] },
        Message::Offer { bag: BAG, executor: executor.clone(), ranges: all.clone(), to: contact(3) },
        Message::Decline { bag: BAG, executor: executor.clone(), ranges: all, reason: DeclineReason::Role },
        Message::Results { bag: BAG, executor, results, signature: None },
    ];
    for message in said {
        host.sent.clear();
        let kind = message.kind();
        host.receive(3, message);
        assert_eq!(host.peer.placements(BAG), others, "{kind}");
        assert!(host.sent.iter().all(|(to, _)| to.peer == PeerId([3; 32])), "{kind}: {:?}", host.sent);
    }
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.done, view.reissued, view.unasked, view.placed), (0, 0, 1, 100));
}

#[test]
fn only_the_submitter_may_drop_work_or_acknowledge_it() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.receive(66, lease(0, IntervalSet::from(0..100)));
    assert_eq!((host.peer.held()[0].waiting, host.stopped.len()), (4, 0));
    host.finish(host.started[0], true);
    host.receive(66, Message::ResultsAck { bag: BAG, indices: IntervalSet::from(0..100) });
    assert_eq!(host.peer.held()[0].unacknowledged, 1);
    host.receive(1, lease(0, IntervalSet::from(0..100)));
    assert_eq!(host.stopped.len(), 1);
}

#[test]
fn results_are_repeated_while_others_finish() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..60));
    for task in 0..50 {
        host.pass(seconds(1.0));
        host.finish(host.started[task], true);
    }
    let repeated = host
        .sent
        .iter()
        .filter(|(_, message)| matches!(message, Message::Results { results, .. } if results.len() > 1));
    assert!(repeated.count() >= 3);
}

#[test]
fn what_cannot_be_started_goes_to_another_machine() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    for tries in 1..=3 {
        let task = *host.started.last().unwrap();
        assert_eq!(host.started.len(), tries);
        host.give(Event::TaskEnded { task, outcome: TaskOutcome::NotStarted { retry_after: seconds(5.0) } });
        assert_eq!(host.started.len(), tries, "not at once again");
        host.pass(seconds(5.5));
    }
    assert_eq!(host.holdings().last().unwrap().1, 0);
}

#[test]
fn a_frozen_machine_goes_on_renewing() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.give(Event::OwnerReturned);
    let before = host.words().len();
    host.receive(1, lease(host.holdings()[before - 1].0, IntervalSet::new()));
    host.pass(seconds(50.0));
    assert!(host.words().len() >= before + 2);
    assert!(host.sent.iter().all(|(to, _)| to.peer == SUBMITTER));
}

#[test]
fn a_retry_on_the_machine_that_failed_is_run_there() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission {
        id: BAG,
        tasks: 1,
        task_mops: Some(1000.0),
        retries_max: 1,
        replication: Replication::default(),
    }));
    host.finish(host.started[0], false);
    assert_eq!(host.started.len(), 1, "not at once");
    host.pass(seconds(1.5));
    assert_eq!(host.started.len(), 2);
    host.finish(host.started[1], false);
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.failed, host.notices.last()), (1, Some(&Notice::BagClosed(BAG))));
}

#[test]
fn what_failed_is_tried_again_on_demand_and_what_is_over_can_be_removed() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    host.give(Event::Removed(BAG));
    assert!(host.peer.bag(BAG).is_some(), "it is not over");
    host.finish(host.started[0], false);
    assert_eq!(host.peer.bag(BAG).map(|bag| (bag.failed, bag.closed.is_some())), Some((1, true)));
    host.give(Event::RerunFailed(BAG));
    assert_eq!(host.peer.bag(BAG).map(|bag| (bag.failed, bag.closed.is_some())), Some((0, false)));
    assert_eq!(host.started.len(), 2, "at once");
    host.finish(host.started[1], true);
    assert_eq!(host.peer.bag(BAG).map(|bag| (bag.done, bag.closed.is_some())), Some((1, true)));
    host.give(Event::Removed(BAG));
    assert_eq!(host.peer.bag(BAG), None);
}

/// A leave takes nothing from the machine, and a return goes on with it.
#[test]
fn queue_and_ledgers_survive_a_leave_and_a_return() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    let own = BagId([8; 32]);
    host.give(Event::Submitted(Submission {
        id: own,
        tasks: 3,
        task_mops: Some(1000.0),
        retries_max: 0,
        replication: Replication::default(),
    }));
    let held = |host: &Host| host.peer.held().iter().map(|held| (held.waiting, held.running)).collect::<Vec<_>>();
    let (before, running) = (held(&host), host.started.clone());
    host.sent.clear();

    host.give(Event::Leave);
    host.pass(seconds(5.0));
    assert_eq!(host.notices.last(), Some(&Notice::Left));
    assert_eq!((held(&host), &host.started, host.stopped.len()), (before.clone(), &running, 0));
    assert!(host.holdings().iter().all(|(_, held)| *held == 5), "nothing is handed back");

    host.persisted.clear();
    host.give(Event::Return);
    let me = host.peer.me().clone();
    assert_eq!(me, Contact { incarnation: contact(2).incarnation + 1, ..contact(2) });
    assert!(host.persisted.contains(&Record::Incarnation(me.incarnation)), "else the next life might be older");
    assert_eq!((held(&host), &host.started), (before, &running));
    host.sent.clear();
    host.finish(running[0], true);
    let results = host.sent.iter().any(|(to, message)| {
        to.peer == SUBMITTER
            && matches!(message, Message::Results { executor, results, .. } if *executor == Speaker::from(&me) && results.len() == 1)
    });
    assert!(results, "results flow on");
    assert_eq!(host.peer.bag(own).unwrap().bag.tasks, 3);
    for _ in 0..7 {
        host.pass(seconds(10.0));
        host.finish(*host.started.last().unwrap(), true);
    }
    assert_eq!(host.notices.last(), Some(&Notice::BagClosed(own)));
}

#[test]
fn a_submitter_that_returns_waits_for_its_grid() {
    let [mut host, _] = pair();
    host.give(Event::Leave);
    host.pass(seconds(5.0));
    host.give(Event::Return);
    host.give(Event::Submitted(submission(3, 1000.0)));
    let timeout = Config::default().placement_timeout;
    host.pass(timeout - seconds(1.0));
    assert!(host.started.is_empty(), "it must not take everything on itself");
    host.pass(seconds(1.5));
    assert_eq!(host.started.len(), 1, "but not wait for ever either");
}

/// The root sums up what the leaves published.
#[test]
fn who_returns_publishes_anew() {
    let [mut host, mut other] = pair();
    let speeds = |hosts: [&Host; 2]| hosts.map(|host| host.peer.platform().speed_mops);
    let both = speeds([&host, &other]);
    assert!(both[0] > 0.0 && both[0] == both[1]);
    for one in 0..2 {
        let returning = if one == 0 { &mut host } else { &mut other };
        returning.give(Event::Leave);
        talk(&mut host, &mut other, 5);
        let staying = if one == 0 { &other } else { &host };
        assert_eq!(staying.peer.platform().speed_mops, both[0] / 2.0);
        let returning = if one == 0 { &mut host } else { &mut other };
        returning.give(Event::Return);
        talk(&mut host, &mut other, 20);
        assert_eq!(speeds([&host, &other]), both);
    }
}

#[test]
fn who_runs_dry_gets_half_of_what_waits_on_the_other_and_an_idle_grid_is_quiet() {
    for redistribution in [true, false] {
        let [mut host, mut other] = pair_with(Config { redistribution, ..Config::default() });
        let mut asks = 0;
        talk_and(&mut host, &mut other, 120, |message| asks += u32::from(matches!(message, Message::Ask { .. })));
        assert_eq!(asks, 0, "nothing waits anywhere");
        let submission = submission(40, 100_000.0);
        host.give(Event::Submitted(submission));
        talk(&mut host, &mut other, 5);
        let waiting = |host: &Host| host.peer.held().iter().map(|held| held.waiting).sum::<u64>();
        let placed = [waiting(&host), waiting(&other)];
        assert!(placed.iter().all(|&waiting| waiting > 10), "{placed:?}");
        // The other is done with all it has long before that was to be expected.
        for _ in 0..40 {
            other.finish_running();
        }
        assert_eq!(waiting(&other), 0);
        let mut asks = 0;
        for _ in 0..60 {
            talk_and(&mut host, &mut other, 1, |message| asks += u32::from(matches!(message, Message::Ask { .. })));
        }
        let shared = [waiting(&host), waiting(&other)];
        if redistribution {
            assert!(shared[0].abs_diff(shared[1]) <= 2 && shared[1] > 3, "{shared:?}");
        } else {
            assert_eq!((shared[1], asks), (0, 0));
        }
        let view = host.peer.bag(BAG).unwrap();
        assert_eq!((view.reissued, view.duplicates, view.done + view.placed), (0, 0, 40));
    }
}

#[test]
fn who_is_clearly_better_off_gets_work_and_who_is_little_better_off_is_quiet() {
    for (levelling, done, moves) in [(true, 10, true), (true, 1, false), (false, 10, false)] {
        let [mut host, mut other] = pair_with(Config { levelling, ..Config::default() });
        let submission = submission(40, 100_000.0);
        host.give(Event::Submitted(submission));
        talk(&mut host, &mut other, 5);
        let waiting = |host: &Host| host.peer.held().iter().map(|held| held.waiting).sum::<u64>();
        // The other is faster than was to be expected.
        for _ in 0..done {
            other.finish_running();
        }
        let before = [waiting(&host), waiting(&other)];
        let mut asks = 0;
        talk_and(&mut host, &mut other, 30, |message| asks += u32::from(matches!(message, Message::Ask { .. })));
        let after = [waiting(&host), waiting(&other)];
        assert_eq!((asks > 0, after != before), (moves, moves), "{before:?} {after:?}");
        assert!(!moves || after[0].abs_diff(after[1]) <= 3, "{before:?} {after:?}");
        let view = host.peer.bag(BAG).unwrap();
        assert_eq!((view.reissued, view.duplicates, view.done + view.placed), (0, 0, 40));
    }
}

#[test]
fn who_runs_dry_between_two_questions_asks_at_once() {
    // The router is the holder's, so that every question is sent.
    let [mut asker, mut holder] = pair();
    let submission = submission(40, 100_000.0);
    holder.give(Event::Submitted(submission));
    talk(&mut asker, &mut holder, 5);
    (0..10).for_each(|_| asker.finish_running());
    // It has work, and the other's is more urgent. Nobody hears its question.
    let is_ask = |message: &Message| matches!(message, Message::Ask { .. });
    while !asker.sent.iter().any(|(_, message)| is_ask(message)) {
        assert!(asker.now < Time::from_micros(60_000_000), "it never asks");
        deliver(&mut asker, &mut holder, &mut |_| ());
        [&mut asker, &mut holder].into_iter().for_each(|one| one.pass(Duration::from_millis(100)));
    }
    asker.sent.clear();
    while !asker.peer.running().is_empty() {
        asker.finish_running();
    }
    assert!(asker.sent.iter().any(|(_, message)| is_ask(message)), "its next question was not due yet");
}

/// A request that so many machines may get a part of.
fn unhurried(number: u64, ranges: Range<u64>, machines: u32) -> Message {
    let Message::Request { request, .. } = request(number, 0, ranges) else { unreachable!() };
    Message::Request { request: Request { machines, ..request }, node: Node::Leaf, climbing: false }
}

#[test]
fn machines_answer_to_a_request_at_moments_of_their_own() {
    let mut moments: Vec<f64> = (2..102)
        .map(|number| {
            let mut host = Host::new(number);
            let start = host.now;
            host.receive(1, unhurried(1, 0..5, 500));
            while host.holdings().is_empty() {
                host.pass(Duration::from_millis(50));
            }
            assert_eq!(host.holdings()[0].1, 5);
            host.now.since(start).as_secs_f64()
        })
        .collect();
    moments.sort_by(f64::total_cmp);
    assert!(moments[0] < 2.0 && moments[99] > 18.0 && moments[99] <= 20.1, "{moments:?}");
    let most = (0..20).map(|second| moments.iter().filter(|moment| moment.floor() == f64::from(second)).count()).max();
    assert!(most <= Some(15), "{most:?} in one second: {moments:?}");
}

#[test]
fn an_answer_to_what_was_said_before_does_not_hide_what_came_since() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    let (version, _) = host.holdings()[0];
    host.receive(1, unhurried(2, 5..8, 500));
    host.receive(1, lease(version, IntervalSet::new()));
    host.pass(seconds(20.1));
    assert!(host.holdings().iter().any(|(_, held)| *held == 8), "{:?}", host.holdings());
}

#[test]
fn results_that_others_follow_are_told_together_the_last_soon_and_failures_at_once() {
    let told = |host: &Host| -> Vec<usize> {
        let results = host.sent.iter().filter_map(|(_, message)| match message {
            Message::Results { results, .. } => Some(results.len()),
            _ => None,
        });
        results.collect()
    };
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..12, 500));
    for task in 0..10 {
        host.finish(host.started[task], true);
    }
    assert_eq!(told(&host), [0; 0], "more follow");
    host.pass(seconds(20.1));
    assert_eq!(told(&host)[0], 10);
    host.receive(1, Message::ResultsAck { bag: BAG, indices: IntervalSet::from(0..10) });
    host.sent.clear();
    host.finish(host.started[10], true);
    assert_eq!(told(&host), [0; 0]);
    host.pass(seconds(1.0));
    host.finish(host.started[11], true);
    assert_eq!(told(&host), [0; 0], "the last of all machines would come at once");
    host.pass(seconds(0.21));
    assert_eq!(told(&host), [2], "that was the last: half a percent of the bag's age is the most");

    // A machine that completes what runs and then ends.
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..2, 500));
    host.finish(host.started[0], true);
    assert_eq!(told(&host), [0; 0]);
    host.give(Event::OwnerReturned);
    assert_eq!(told(&host), [1], "what waits does not wait for its owner to leave");
    host.finish(host.started[1], true);
    assert_eq!(told(&host), [1, 1], "nor does the last");

    let [mut host, _other] = pair();
    host.receive(1, unhurried(1, 0..12, 500));
    host.finish(host.started[0], true);
    host.give(Event::Leave);
    assert_eq!(told(&host), [1], "it may be away for long");
    assert_eq!(host.holdings().len(), 1);

    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..12, 500));
    host.finish(host.started[0], true);
    host.finish(host.started[1], false);
    assert_eq!(told(&host), [1]);
    let kinds: Vec<_> = host.sent.iter().map(|(_, message)| message.kind()).filter(|kind| *kind != "overlay").collect();
    assert_eq!(kinds, ["holding", "results"], "a failure is believed of who holds the task");
}

#[test]
fn the_last_results_of_very_many_machines_come_as_evenly_as_a_link_takes_them() {
    // When the results of 100 of the 100,000 machines of a bag leave, each after tasks of so many seconds.
    let moments = |task_s: f64| -> Vec<f64> {
        let mut moments: Vec<f64> = (2..102)
            .map(|number| {
                let mut host = Host::new(number);
                let start = host.now;
                host.receive(1, unhurried(1, 0..1, 100_000));
                host.pass(seconds(task_s));
                host.finish(host.started[0], true);
                while !host.sent.iter().any(|(_, message)| matches!(message, Message::Results { .. })) {
                    host.pass(seconds(0.5));
                }
                host.now.since(start).as_secs_f64()
            })
            .collect();
        moments.sort_by(f64::total_cmp);
        moments
    };
    let after_short = moments(1.0);
    assert!(after_short[99] <= 201.0, "{after_short:?}");
    for (wait, share) in [(50.0, 25.0), (100.0, 50.0), (150.0, 75.0)] {
        let before = after_short.iter().filter(|&&moment| moment < wait).count() as f64;
        assert!((before - share).abs() < 15.0, "{before} machines within {wait} s: {after_short:?}");
    }
    // Who ran for longer than that has had its turn, and waits for half a percent of the age of its bag.
    let after_long = moments(300.0);
    assert!(after_long[99] <= 302.5, "{after_long:?}");
}

#[test]
fn a_submitter_waits_longer_the_more_machines_may_answer() {
    let [mut host, router] = pair();
    assert!(router.peer.overlay_view().hosts_router());
    host.give(Event::Submitted(submission(40, 1000.0)));
    let (executor, ranges) = (speaker(3), IntervalSet::from(0..1));
    host.receive(3, Message::Holding { bag: BAG, executor, version: 1, attempt: 0, ranges });
    // Whatever else was sent is lost; two machines have 80 ms more than the 15 s.
    host.pass(seconds(15.04));
    assert_eq!(host.peer.bag(BAG).unwrap().reissued, 0);
    host.pass(seconds(0.1));
    assert_eq!(host.peer.bag(BAG).unwrap().reissued, 39);
}

#[test]
fn who_gets_the_first_of_what_was_issued_answers_at_once() {
    for leads in [false, true] {
        let mut host = Host::new(2);
        let Message::Request { request, .. } = unhurried(1, 0..5, 500) else { unreachable!() };
        let request = Request { leads, ..request };
        host.receive(1, Message::Request { request, node: Node::Leaf, climbing: false });
        assert_eq!(host.holdings().len(), usize::from(leads));
    }
}

/// Lets hosts 2, 3, … talk to each other; those at or above the end have vanished.
fn converse(hosts: &mut [Host], tenths: u32) {
    for _ in 0..tenths {
        let mut letters = Vec::new();
        for (number, host) in (2..).zip(hosts.iter_mut()) {
            host.pass(Duration::from_millis(100));
            letters.extend(std::mem::take(&mut host.sent).into_iter().map(|(to, message)| (number, to, message)));
        }
        for (from, to, message) in letters {
            if let Some(host) = usize::from(to.peer.0[0]).checked_sub(2).and_then(|at| hosts.get_mut(at)) {
                host.receive(from, message);
            }
        }
    }
}

#[test]
fn a_request_waits_at_a_router_that_is_cut_off_and_goes_on_when_the_tree_is_repaired() {
    // Which machine the others miss is the last one; with some keys a router is cut off by that.
    let mut cut_off = 0;
    for size in 4..12_u8 {
        let mut hosts: Vec<Host> = (2..2 + size).map(Host::new).collect();
        hosts[0].give(Event::Bootstrap(contact(3)));
        for host in &mut hosts[1..] {
            host.give(Event::Bootstrap(contact(2)));
        }
        converse(&mut hosts, 300);
        let lost = hosts.pop().unwrap().peer.me().peer;
        for host in &mut hosts {
            host.give(Event::ConnectionLost(lost));
        }
        for tenth in 0..100 {
            converse(&mut hosts, 1);
            let routers = hosts.iter_mut().find(|host| {
                let view = host.peer.overlay_view();
                view.hosts_router() && view.depth(Node::Router).is_none()
            });
            let Some(router) = routers else { continue };
            let Message::Request { request, .. } = request(1, 0, 0..50) else { unreachable!() };
            router.receive(1, Message::Request { request, node: Node::Router, climbing: true });
            assert!(router.holdings().is_empty() && router.peer.held().is_empty(), "{size} machines, {tenth}");
            converse(&mut hosts, 70);
            let held: u64 =
                hosts.iter().flat_map(|host| host.peer.held()).map(|held| held.waiting + held.running).sum();
            assert_eq!(held, 50, "{size} machines, cut off after {tenth} tenths of a second");
            cut_off += 1;
            break;
        }
    }
    assert!(cut_off >= 2, "{cut_off} routers were cut off");
}

/// What was declined, for what reason.
fn declines(host: &mut Host) -> Vec<(IntervalSet, DeclineReason)> {
    let sent = std::mem::take(&mut host.sent).into_iter().filter_map(|(to, message)| match message {
        Message::Decline { bag: BAG, executor, ranges, reason } => {
            assert_eq!((to.peer, executor), (SUBMITTER, speaker(2)));
            Some((ranges, reason))
        }
        _ => None,
    });
    sent.collect()
}

#[test]
fn nothing_of_a_bag_queues_before_it_is_authorised() {
    let mut host = Host::new(2);
    (host.verdict, host.persisted) = (None, Vec::new());
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, request(2, 0, 5..9));
    host.pass(seconds(30.0));
    assert_eq!(host.looked_at, [bag(1)], "asked once");
    assert!(host.started.is_empty() && host.persisted.is_empty() && host.holdings().is_empty());
    assert!(host.peer.held().is_empty());
    host.give(Event::Authorised { bag: BAG, verdict: Ok(Duration::ZERO) });
    assert_eq!((host.started.len(), host.peer.unfinished()[&BAG].len()), (1, 9));
    assert_eq!(host.holdings().last().map(|(_, tasks)| *tasks), Some(9));
    // What is here needs no second look; who contradicts it does, and is not heard once its submitter has spoken.
    host.receive(1, request(3, 0, 9..10));
    host.receive(1, forged(4, |request| request.bag.tasks = 1_000_000));
    host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
    host.receive(1, forged(5, |request| request.bag.tasks = 1_000_000));
    assert_eq!((host.looked_at.len(), host.peer.unfinished()[&BAG].len()), (2, 10));
}

#[test]
fn what_is_not_authorised_goes_back_with_the_reason_and_leaves_nothing() {
    for reason in [DeclineReason::Role, DeclineReason::Submitter, DeclineReason::Unavailable] {
        let mut host = Host::new(2);
        (host.verdict, host.persisted) = (Some(Err(reason)), Vec::new());
        host.receive(1, request(1, 0, 0..5));
        assert_eq!(declines(&mut host), [(IntervalSet::from(0..5), reason)]);
        assert!(host.started.is_empty() && host.persisted.is_empty() && host.peer.held().is_empty());
        assert_eq!(host.peer.declined_requests(), 1);
        assert!(host.peer.resting_until().is_none(), "others' bags are welcome");
        // Nothing is remembered either: it may be another time.
        host.verdict = Some(Ok(Duration::ZERO));
        host.receive(1, request(1, 0, 0..5));
        assert_eq!(host.started.len(), 1);
    }
}

#[test]
fn what_may_not_be_here_any_more_stops_and_goes_back() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.finish(host.started[0], true);
    let running = host.started[1];
    let against = Event::Authorised { bag: BAG, verdict: Err(DeclineReason::Submitter) };
    host.give(against.clone());
    assert_eq!(
        (host.stopped.as_slice(), host.peer.unfinished().get(&BAG).map(|left| left.len())),
        (&[running][..], Some(0))
    );
    assert_eq!(
        host.holdings().last().map(|&(_, tasks)| tasks),
        Some(1),
        "only the result is left, and its submitter hears of it"
    );
    host.give(Event::TaskEnded { task: running, outcome: TaskOutcome::Stopped });
    assert_eq!(host.started.len(), 2, "nothing more of it begins");
    assert_eq!(host.peer.held()[0].unacknowledged, 1, "a result is kept until it is taken");
    // One's own bags are one's own business.
    let mut host = Host::new(1);
    host.receive(1, request(1, 0, 0..5));
    host.give(against);
    assert!(host.stopped.is_empty());
}

#[test]
fn an_invention_does_not_keep_the_bag_itself_out() {
    let mut host = Host::new(2);
    host.verdict = None;
    host.receive(9, forged(1, |request| request.bag.tasks = 1_000_000));
    host.receive(1, request(2, 0, 0..5));
    host.give(Event::Authorised { bag: BAG, verdict: Err(DeclineReason::Forged) });
    assert_eq!(host.looked_at.len(), 2);
    host.give(Event::Authorised { bag: BAG, verdict: Ok(Duration::ZERO) });
    assert_eq!((host.peer.unfinished()[&BAG].len(), host.started.len()), (5, 1));
    // An answer that nobody waits for says nothing.
    host.give(Event::Authorised { bag: BagId([99; 32]), verdict: Ok(Duration::ZERO) });
}

/// Ten tasks of a bag that was signed so long ago, as somebody sends them; their machines have ten minutes to tell of them.
fn sent_again(signed_ago: Duration) -> Host {
    let mut host = Host::new(2);
    host.verdict = Some(Ok(signed_ago));
    host.receive(5, forged(1, |request| request.machines = 15_000));
    host
}

#[test]
fn what_is_not_fresh_begins_when_its_submitter_has_answered() {
    for signed_ago in [seconds(601.0), seconds(1e6), Duration::MAX] {
        let mut host = sent_again(signed_ago);
        assert_eq!(host.holdings().len(), 1, "it is asked at once");
        host.pass(seconds(30.0));
        assert!(host.holdings().len() > 1, "and again");
        assert!(host.started.is_empty());
        host.receive(5, lease(0, IntervalSet::new()));
        assert!(host.started.is_empty(), "that is not its submitter");
        host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
        assert_eq!(host.started.len(), 1);
        // Of what it has spoken of it is not asked, whatever comes.
        host.sent.clear();
        host.receive(
            1,
            forged(2, |request| {
                (request.ranges, request.machines) = (IntervalSet::from(20..30), 15_000);
            }),
        );
        assert!(host.holdings().is_empty() && host.looked_at.len() == 1, "{:?}", host.sent);
        host.pass(seconds(900.0));
        (0..19).for_each(|index| host.finish(host.started[index], true));
        assert_eq!(host.started.len(), 20);
        assert_eq!(host.peer.unspoken_tasks(), 0);
    }
}

#[test]
fn nothing_runs_of_what_is_over_while_its_submitter_is_away() {
    let mut host = sent_again(seconds(3600.0));
    host.pass(Config::default().placement_timeout + seconds(599.0));
    assert_eq!(host.peer.held()[0].waiting, 10, "its submitter may yet answer");
    host.pass(seconds(2.0));
    assert!(host.peer.held().is_empty() && host.started.is_empty());
    assert_eq!(
        host.holdings().last().map(|said| said.1),
        Some(0),
        "should it come back, it hears that nothing is here"
    );
    assert_eq!(host.peer.unspoken_tasks(), 10);
    // Nor does it stay for being asked for again and again.
    for number in 10..200 {
        host.receive(1, request(number, 1, 10..20));
        host.pass(seconds(14.0));
    }
    assert!(host.peer.unspoken_tasks() > 20, "{}", host.peer.unspoken_tasks());
    host.pass(seconds(1000.0));
    assert!(host.peer.held().is_empty() && host.started.is_empty());
    // It comes back, and the bag is not over: all is as ever.
    host.receive(1, request(200, 1, 10..20));
    host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
    assert_eq!((host.started.len(), host.peer.held()[0].waiting), (1, 9));
}

#[test]
fn what_is_fresh_begins_without_a_word_of_its_submitter_and_goes_on_while_it_is() {
    let mut host = sent_again(seconds(10.0));
    assert_eq!((host.started.len(), host.holdings().len()), (1, 0), "it is told at a moment of this machine's own");
    host.pass(seconds(580.0));
    host.finish(host.started[0], true);
    assert_eq!(host.started.len(), 2);
    host.pass(seconds(11.0));
    host.finish(host.started[1], true);
    assert_eq!(host.started.len(), 2, "nothing more begins");
    host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
    assert_eq!(host.started.len(), 3);
    // It is asked when that ends, at the latest.
    let mut host = sent_again(seconds(595.0));
    assert_eq!((host.started.len(), host.holdings().len()), (1, 0));
    host.pass(seconds(6.0));
    assert_eq!(host.holdings().len(), 1);
}

#[test]
fn no_request_makes_a_bag_older_than_its_manifest() {
    let day = seconds(86_400.0);
    let clocks = seconds(600.0);
    let most = AGE_MAX;
    for (signed_ago, said, believed) in [
        (Duration::ZERO, most, clocks),
        (day, most, day + clocks),
        (day, day / 2, day / 2),
        (Duration::MAX, day, day),
        (Duration::MAX, most * 2, most),
    ] {
        let mut host = Host::new(2);
        host.verdict = Some(Ok(signed_ago));
        // Who makes another bag of it is asked about again, and no better off.
        for number in 1..3 {
            host.receive(
                5,
                forged(number, |request| {
                    (request.age, request.bag.task_mops) = (said, 1000.0 * number as f64);
                }),
            );
            let released = host.persisted.iter().rev().find_map(|record| match record {
                Record::Held { released, .. } => Some(*released),
                _ => None,
            });
            assert_eq!(released, Some(START - believed), "signed {signed_ago:?} ago, {said:?} old");
        }
        assert_eq!(host.looked_at.len(), 2);
    }
}

#[test]
fn one_submitter_has_so_much_work_here_and_the_rest_goes_back() {
    // An hour at 1000 Mop/s is 3600 tasks of 1000 Mop; 36 of 100,000.
    let config = Config { submitter_work_max: seconds(3600.0), ..Config::default() };
    let mut host = Host::restore(2, config, Vec::new());
    let heavy = |number, bag: BagHeader, ranges: Range<u64>| {
        forged(number, |request| (request.bag, request.ranges) = (bag, IntervalSet::from(ranges)))
    };
    let big = BagHeader { task_mops: 1e5, application_size_mops: 1e7, ..bag(1) };
    host.receive(1, heavy(1, big.clone(), 0..30));
    assert_eq!(declines(&mut host), []);
    host.receive(1, heavy(2, big.clone(), 30..60));
    assert_eq!(declines(&mut host), [(IntervalSet::from(36..60), DeclineReason::Quota)]);
    assert_eq!(host.peer.unfinished()[&BAG], IntervalSet::from(0..36));
    host.receive(1, heavy(3, big.clone(), 60..61));
    assert_eq!(declines(&mut host), [(IntervalSet::from(60..61), DeclineReason::Quota)]);
    // Another submitter has its own.
    let other = BagHeader { id: BagId([8; 32]), submitter: contact(3), ..big };
    host.receive(3, heavy(1, other, 0..5));
    assert_eq!(host.peer.unfinished()[&BagId([8; 32])].len(), 5);
    assert_eq!(host.peer.declined_requests(), 2);
}

#[test]
fn what_others_do_not_let_in_ends_on_machines_that_do_and_the_reason_is_told() {
    let [mut host, mut other] = pair();
    other.verdict = Some(Err(DeclineReason::Submitter));
    let submission = submission(20, 1000.0);
    host.give(Event::Submitted(submission));
    let mut asked = 0;
    for _ in 0..200 {
        talk_and(&mut host, &mut other, 1, |message| asked += usize::from(matches!(message, Message::Decline { .. })));
        let running: Vec<TaskId> = host.peer.running().iter().map(|running| running.task).collect();
        running.into_iter().for_each(|task| host.finish(task, true));
    }
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.done, view.reissued), (20, 0));
    let declines = view.declined[&DeclineReason::Submitter];
    assert_eq!(declines.last, PeerId([3; 32]));
    assert!(declines.tasks >= 5, "its share was offered to it: {declines:?}");
    // It asks for work itself, and is offered what it does not want; seldom.
    assert!(asked <= 10, "it was asked {asked} times");
    assert!(other.started.is_empty());
}

#[test]
fn a_request_that_invents_a_bag_of_the_receiver_is_nothing() {
    let mut host = Host::new(2);
    let Message::Request { request, .. } = request(1, 0, 0..5) else { unreachable!() };
    let request = Request { bag: BagHeader { submitter: contact(2), ..request.bag.clone() }, ..request };
    host.receive(1, Message::Request { request, node: Node::Leaf, climbing: false });
    assert!(
        host.peer.held().is_empty() && host.started.is_empty() && host.persisted.len() == 1,
        "{:?}",
        host.persisted
    );
}

/// A machine stands where its certificate says, as the driver has told before it spoke.
#[test]
fn what_a_certificate_says_decides_where_its_machine_stands() {
    let mut host = Host::new(1);
    let (other, nonce) = (contact(2), [7; 16]);
    host.give(Event::Bootstrap(other.clone()));
    let ping = host.sent.iter().find_map(|(_, message)| match message {
        Message::Overlay(idlewood_overlay::Message { body: Body::Ping { nonce, .. }, .. }) => Some(*nonce),
        _ => None,
    });
    assert!(!host.peer.is_certified(other.peer));
    host.give(Event::Certified { peer: other.peer, nonce });
    assert!(host.peer.is_certified(other.peer));
    host.receive(
        2,
        Message::Overlay(idlewood_overlay::Message {
            grid: GridId([9; 32]).tag(),
            incarnation: other.incarnation,
            address: Some(other.address.clone()),
            body: Body::Ack { nonce: ping.expect("it is asked"), mine: 0, set: None, ask: 0 },
        }),
    );
    let certified = Contact { nonce: Some(Box::new(nonce)), ..other };
    assert_eq!(host.peer.overlay_view().neighbours().collect::<Vec<_>>(), [&certified]);
    // Of whom it is told most lately it knows.
    for number in 0..5000_u32 {
        let mut peer = [9; 32];
        peer[..4].copy_from_slice(&number.to_le_bytes());
        host.give(Event::Certified { peer: PeerId(peer), nonce });
        assert!(host.peer.is_certified(PeerId(peer)));
    }
}
