//! Which requests machines accept, and that they execute each once.

use super::*;

#[test]
fn requests_that_contradict_the_bag_are_refused() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, lease(host.holdings()[0].0, IntervalSet::new()));
    let before = (host.peer.held(), host.holdings());
    let changes: [fn(&mut Request); 2] =
        [|request| request.bag.tasks = 1 << 40, |request| request.bag.submitter.peer = PeerId([5; 32])];
    for (number, change) in (2..).zip(changes) {
        host.receive(5, forged(number, change));
        assert_eq!((host.peer.held(), host.holdings()), before, "request {number}");
    }
    host.receive(1, forged(9, |_| {}));
    assert_eq!(host.peer.held()[0].waiting + host.peer.held()[0].running, 15);
}

/// Whoever is on a request's way can write other sizes into it. They keep out no tasks, and the submitter corrects them.
#[test]
fn a_bags_sizes_are_those_that_its_submitter_says() {
    let mut host = Host::new(2);
    host.receive(5, forged(1, |request| (request.bag.task_mops, request.bag.application_size_mops) = (1.0, 1.0)));
    let sizes = |host: &Host| {
        let held = host.store.values().find_map(|record| match record {
            Record::Held { bag, .. } => Some((bag.task_mops, bag.application_size_mops, bag.clone())),
            _ => None,
        });
        held.map(|(task_mops, application_size_mops, _)| (task_mops, application_size_mops))
    };
    assert_eq!(sizes(&host), Some((1.0, 1.0)));
    let before = host.peer.held()[0].waiting + host.peer.held()[0].running;
    let other_ranges = |request: &mut Request| request.ranges = IntervalSet::from(50..60);
    host.receive(1, forged(2, other_ranges));
    assert_eq!(host.peer.held()[0].waiting + host.peer.held()[0].running, before + 10, "the true request is taken");
    let said = |from, version| {
        let sizes = Some(Sizes { task_mops: 1000.0, application_size_mops: 1e5, declared: true, priority: 0 });
        (from, Message::Lease(Lease { sizes, ..lease_of(version) }))
    };
    let version = host.holdings().last().expect("it asks").0;
    for (from, expected) in [(5, (1.0, 1.0)), (1, (1000.0, 1e5))] {
        let (from, message) = said(from, version);
        host.receive(from, message);
        assert_eq!(sizes(&host), Some(expected), "by machine {from}");
    }
}

#[test]
fn an_invented_bag_gives_way_to_the_true_one() {
    let mut host = Host::new(2);
    // With the same number and path as the true request, which must not be taken for a repetition.
    host.receive(5, forged(1, |request| request.bag.submitter = contact(5)));
    assert_eq!((host.started.len(), host.last_receiver().peer), (1, PeerId([5; 32])));
    host.receive(1, request(1, 0, 0..5));
    assert_eq!((host.stopped.as_slice(), host.last_receiver()), (host.started.as_slice(), &contact(1)));
    host.give(Event::TaskEnded { task: host.started[0], outcome: TaskOutcome::Stopped });
    assert_eq!(host.peer.held().iter().map(|held| held.waiting + held.running).collect::<Vec<_>>(), [5]);
}

#[test]
fn a_restored_bag_does_not_give_way() {
    let ranges = IntervalSet::from(0..5);
    let held = Record::Held {
        bag: bag(1),
        released: START,
        attempt: 0,
        attempts: None,
        ranges,
        checkpoints: BTreeMap::new(),
        priority: 0,
        at_once: IntervalSet::new(),
    };
    let mut host = Host::restore(2, Config::default(), vec![held]);
    host.receive(5, forged(1, |request| request.bag.submitter = contact(5)));
    assert_eq!((host.stopped.len(), host.peer.held()[0].waiting + host.peer.held()[0].running), (0, 5));
    assert!(host.sent.iter().all(|(to, _)| to == &contact(1)));
}

#[test]
fn tasks_keep_their_attempts_over_a_restart() {
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
fn a_holding_always_fits_in_a_message() {
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
    // Further requests are dropped, and their tasks issued again elsewhere.
    assert_eq!((said(&host), host.peer.held()[0].waiting + 1), (16, 4096));
    // The same where results between the tasks were acknowledged.
    let result = |index| TaskResult {
        index,
        attempt: 0,
        success: true,
        crashed: false,
        unfinished: false,
        output: BlobId([1; 32]),
        output_bytes: 1,
        content: None,
        work_mops: 1000.0,
        exit_code: None,
        receipt: None,
        fingerprint: None,
    };
    let bag = BagHeader { tasks: 1 << 40, ..bag(1) };
    let records =
        (0..20_000).map(|at| Record::Outbox { bag: bag.clone(), released: START, result: result((1 << 39) + 2 * at) });
    let host = Host::restore(2, Config::default(), records.collect());
    assert!(said(&host) > 0 && host.holdings().iter().all(|&(_, tasks)| tasks == 4096));
}

#[test]
fn a_request_is_executed_once() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..1));
    host.finish(host.started[0], true);
    host.receive(1, Message::ResultsAck { bag: BAG, attempt: 0, indices: IntervalSet::from(0..1) });
    host.receive(1, request(1, 0, 0..1));
    assert_eq!(host.started.len(), 1);
}

/// Else a submitter that starts again from the record before would give the same machine the same attempt of a task again, which that one may have begun and
/// dropped for another keeper (`simnet swarm --bags --stewards --case 413`).
#[test]
fn a_request_leaves_once_its_attempt_is_durable() {
    let (mut host, mut other) = (Host::new(2), Host::new(3));
    other.give(Event::Bootstrap(contact(2)));
    talk(&mut host, &mut other, 30);
    host.give(Event::Submitted(submission(40, 30_000.0)));
    talk(&mut host, &mut other, 10);
    assert!(other.peer.unfinished().contains_key(&BAG), "it has tasks");
    let attempts = |host: &Host| -> Vec<u32> {
        let requests = host.sent.iter().filter_map(|(_, message)| match message {
            Message::Request { request, .. } => Some(request.attempt),
            _ => None,
        });
        requests.collect()
    };
    host.sent.clear();
    host.disk_waits = true;
    // It has them no longer: they are issued again.
    let (version, ranges, finished) = (1_000, IntervalSet::new(), IntervalSet::new());
    let executor = speaker(3);
    host.receive(3, Message::Holding { bag: BAG, executor, version, attempt: 0, ranges, finished, capacity: None });
    host.pass(seconds(2.0));
    assert_eq!(attempts(&host), [], "the disk knows nothing of this attempt yet");
    host.write_all();
    host.pass(seconds(1.0));
    let Some(Record::Bag { attempt, .. }) = host.store.get(&RecordKey::Bag(BAG)) else { panic!("no bag") };
    let left = attempts(&host);
    assert!(!left.is_empty() && left.iter().all(|one| one <= attempt), "{left:?}, {attempt} on the disk");
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
fn a_request_is_not_executed_beside_its_whole_or_parts() {
    assert_eq!(held_of(&["ll", "l"]), 10, "the whole of which the part is here");
    assert_eq!(held_of(&["l", "ll", "lrl"]), 10, "parts of what is here");
    assert_eq!(held_of(&["", "rlr"]), 10);
    assert_eq!(held_of(&["ll", "lr", "r"]), 30, "parts of one request that have nothing in common");
}

#[test]
fn a_split_request_is_not_taken_by_the_leaf_after_the_router_moved() {
    let [mut host, mut router] = pair();
    assert!(router.peer.overlay_view().hosts_router());
    // The whole request goes to the other machine.
    router.give(Event::OwnerReturned { stands_still: true });
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
fn a_request_waits_at_a_cut_off_router_for_the_repair() {
    // The last machine vanishes; with some keys that cuts off a router.
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

#[test]
fn a_request_for_an_invented_bag_of_the_receiver_is_ignored() {
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

/// Bytes of the record of held tasks. Stores take at most 1 MiB, and tasks without a record are never in a `Holding`.
fn record_bytes(host: &Host) -> usize {
    let held = host.store.values().find(|record| matches!(record, Record::Held { .. }));
    held.expect("something is held").encode().len()
}

/// The request with this number, for these of two million tasks.
fn wide(number: u64, attempt: u32, ranges: IntervalSet, checkpoints: Box<[(u64, Checkpoint)]>) -> Message {
    forged(number, |request| {
        (request.bag.tasks, request.bag.application_size_mops) = (2_000_000, 2e9);
        (request.attempt, request.ranges, request.checkpoints) = (attempt, ranges, checkpoints);
    })
}

/// So many single tasks from there on, with gaps between them.
fn scattered(first: u64, tasks: u64) -> IntervalSet {
    (0..tasks).map(|at| first + 2 * at..first + 2 * at + 1).collect()
}

#[test]
fn held_records_stay_small_whatever_is_dropped() {
    let mut host = Host::new(2);
    host.receive(1, wide(1, 0, IntervalSet::from(0..2_000_000), Box::default()));
    for part in 0..10 {
        host.receive(1, lease(0, scattered(part * 100_000 + 1, 30_000)));
        assert!(record_bytes(&host) < 1 << 19, "{} bytes", record_bytes(&host));
    }
    assert!(host.peer.held()[0].waiting > 4000);
}

#[test]
fn forgotten_excess_is_told_with_a_new_holding() {
    let mut host = Host::new(2);
    host.receive(1, wide(1, 0, IntervalSet::from(0..2_000_000), Box::default()));
    let version = host.holdings().last().unwrap().0;
    host.receive(1, lease(version, IntervalSet::new()));
    host.sent.clear();
    host.receive(1, lease(version, scattered(1, 30_000)));
    host.pass(seconds(1.0));
    let (latest, tasks) = *host.holdings().last().expect("it says what it holds");
    assert!(latest > version);
    let held = &host.peer.held()[0];
    assert_eq!(tasks, held.waiting + held.running);
}

#[test]
fn room_for_a_bag_comes_back_as_its_tasks_end() {
    for attempt in [0, 1] {
        let mut host = Host::restore(2, Config { slots: 2, ..Config::default() }, Vec::new());
        host.receive(1, wide(1, attempt, IntervalSet::from(0..1), Box::default()));
        for number in 0..15 {
            host.receive(1, wide(2 + number, attempt, scattered(10 + 512 * number, 256), Box::default()));
        }
        host.receive(1, wide(50, attempt, scattered(1_000_000, 10), Box::default()));
        host.receive(1, lease(0, IntervalSet::new()));
        // All but the first end, and are acknowledged.
        while let Some(task) = host.peer.running().iter().map(|running| running.task).find(|task| task.index != 0) {
            host.finish(task, true);
            let indices = IntervalSet::from(task.index..task.index + 1);
            host.receive(1, Message::ResultsAck { bag: BAG, attempt, indices });
        }
        assert_eq!(host.peer.held()[0].waiting, 0);
        host.receive(1, wide(100, attempt, scattered(1_500_000, 256), Box::default()));
        let held = &host.peer.held()[0];
        assert_eq!(held.waiting + held.running, 257, "attempt {attempt}");
    }
}

#[test]
fn held_records_stay_small_whatever_attempts_are_wanted() {
    let mut host = Host::new(2);
    host.receive(1, wide(1, 0, IntervalSet::from(0..2_000_000), Box::default()));
    for number in 1..=600 {
        let ranges = scattered(600 * u64::from(number), 256);
        host.receive(1, wide(1 + u64::from(number), number, ranges, Box::default()));
    }
    assert!(record_bytes(&host) < 1 << 19, "{} bytes", record_bytes(&host));
}

#[test]
fn held_records_stay_small_whatever_checkpoints_come() {
    let mut host = Host::new(2);
    for number in 0..100 {
        let tasks = 256 * number..256 * (number + 1);
        let checkpoints = tasks.clone().map(|index| (index, checkpoints::KEPT)).collect();
        host.receive(1, wide(1 + number, 0, IntervalSet::from(tasks), checkpoints));
    }
    assert!(host.peer.held()[0].waiting > 4000, "thousands are taken");
    assert!(record_bytes(&host) < 1 << 19, "{} bytes", record_bytes(&host));
}
