//! Admission: which bags may queue and begin on a machine.

use super::*;

/// The tasks and reasons of the `Decline`s that the host sent.
fn declines(host: &mut Host) -> Vec<(IntervalSet, DeclineReason)> {
    let sent = std::mem::take(&mut host.sent).into_iter().filter_map(|(to, message)| match message {
        Message::Decline { bag: BAG, ranges, reason } => {
            assert_eq!(to.peer, SUBMITTER);
            Some((ranges, reason))
        }
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_bag_queues_only_when_authorised() {
    let mut host = Host::new(2);
    (host.verdict, host.persisted) = (None, Vec::new());
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, request(2, 0, 5..9));
    host.pass(seconds(30.0));
    assert_eq!(host.looked_at, [bag(1)], "asked once");
    assert!(host.started.is_empty() && host.persisted.is_empty() && host.holdings().is_empty());
    assert!(host.peer.held().is_empty());
    host.give(Event::Authorised { bag: BAG, verdict: Ok(approval(Duration::ZERO)) });
    assert_eq!((host.started.len(), host.peer.unfinished()[&BAG].len()), (1, 9));
    assert_eq!(host.holdings().last().map(|(_, tasks)| *tasks), Some(9));
    // A bag that is here is not authorised again. A contradicting request is, and is ignored once the submitter has spoken
    // for the bag.
    host.receive(1, request(3, 0, 9..10));
    host.receive(1, forged(4, |request| request.bag.tasks = 1_000_000));
    host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
    host.receive(1, forged(5, |request| request.bag.tasks = 1_000_000));
    assert_eq!((host.looked_at.len(), host.peer.unfinished()[&BAG].len()), (2, 10));
}

#[test]
fn an_unauthorised_bag_is_declined_and_leaves_nothing() {
    for reason in [DeclineReason::Role, DeclineReason::Submitter, DeclineReason::Unavailable] {
        let mut host = Host::new(2);
        (host.verdict, host.persisted) = (Some(Err(reason)), Vec::new());
        host.receive(1, request(1, 0, 0..5));
        assert_eq!(declines(&mut host), [(IntervalSet::from(0..5), reason)]);
        assert!(host.started.is_empty() && host.persisted.is_empty() && host.peer.held().is_empty());
        assert_eq!(host.peer.declined_requests(), 1);
        assert!(host.peer.resting_until().is_none(), "others' bags are welcome");
        // The refusal is not remembered: the bag may be allowed another time.
        host.verdict = Some(Ok(approval(Duration::ZERO)));
        host.receive(1, request(1, 0, 0..5));
        assert_eq!(host.started.len(), 1);
    }
}

#[test]
fn a_bag_whose_permission_is_withdrawn_stops_and_goes_back() {
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
    // Bags submitted here are never withdrawn.
    let mut host = Host::new(1);
    host.receive(1, request(1, 0, 0..5));
    host.give(against);
    assert!(host.stopped.is_empty());
}

#[test]
fn an_invented_bag_does_not_keep_out_the_true_one() {
    let mut host = Host::new(2);
    host.verdict = None;
    host.receive(9, forged(1, |request| request.bag.tasks = 1_000_000));
    host.receive(1, request(2, 0, 0..5));
    host.give(Event::Authorised { bag: BAG, verdict: Err(DeclineReason::Forged) });
    assert_eq!(host.looked_at.len(), 2);
    host.give(Event::Authorised { bag: BAG, verdict: Ok(approval(Duration::ZERO)) });
    assert_eq!((host.peer.unfinished()[&BAG].len(), host.started.len()), (5, 1));
    // An approval without a question does nothing.
    host.give(Event::Authorised { bag: BagId([99; 32]), verdict: Ok(approval(Duration::ZERO)) });
}

/// A host that got a request for ten tasks of a bag signed so long ago, whose machines have ten minutes to answer.
fn replayed(signed_ago: Duration) -> Host {
    let mut host = Host::new(2);
    host.verdict = Some(Ok(approval(signed_ago)));
    // So long that none is overdue in that time.
    let Message::Request { mut request, node, climbing } = unhurried(1, 0..10, 15_000) else { unreachable!() };
    (request.bag.task_mops, request.bag.application_size_mops) = (50_000.0, 5e6);
    host.receive(5, Message::Request { request, node, climbing });
    host
}

#[test]
fn a_stale_bag_begins_when_its_submitter_has_answered() {
    for signed_ago in [seconds(601.0), seconds(1e6), Duration::MAX] {
        let mut host = replayed(signed_ago);
        assert_eq!(host.holdings().len(), 1, "it is asked at once");
        host.pass(seconds(40.0));
        assert!(host.holdings().len() > 1, "and again");
        assert!(host.started.is_empty());
        host.receive(5, lease(0, IntervalSet::new()));
        assert!(host.started.is_empty(), "that is not its submitter");
        host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
        assert_eq!(host.started.len(), 1);
        // The submitter has spoken for the bag: it is not asked again.
        host.sent.clear();
        host.receive(1, unhurried(2, 20..30, 15_000));
        assert!(host.holdings().is_empty() && host.looked_at.len() == 1, "{:?}", host.sent);
        host.pass(seconds(900.0));
        (0..19).for_each(|index| host.finish(host.started[index], true));
        assert_eq!(host.started.len(), 20);
        assert_eq!(host.peer.unspoken_tasks(), 0);
    }
}

/// The keys in leases that the host sent, and their receivers.
fn keys(host: &Host) -> Vec<(PeerId, Option<BagKey>)> {
    let leases = host.sent.iter().filter_map(|(to, message)| match message {
        Message::Lease(Lease { key, .. }) => Some((to.peer, *key)),
        _ => None,
    });
    leases.collect()
}

#[test]
fn a_fresh_bag_without_blobs_begins_when_the_key_comes() {
    let mut host = Host::new(2);
    host.verdict = Some(Ok(Approval { signed_ago: Duration::ZERO, at_hand: false, program: None }));
    host.receive(5, unhurried(1, 0..10, 15_000));
    assert_eq!((host.holdings().len(), host.started.len()), (1, 0), "it is asked at once");
    assert_eq!(host.peer.bag_key(BAG), None);
    let lease_with = |version, key| Message::Lease(Lease { key, ..lease_of(version) });
    let (version, _) = host.holdings()[0];
    host.receive(5, lease_with(version, Some([5; 32].into())));
    assert_eq!((host.started.len(), host.peer.bag_key(BAG)), (0, None), "that is not its submitter");
    host.receive(1, lease_with(version, Some([1; 32].into())));
    assert_eq!((host.started.len(), host.peer.bag_key(BAG)), (1, Some([1; 32].into())));
    host.receive(1, lease_with(0, None));
    assert_eq!(host.peer.bag_key(BAG), Some([1; 32].into()), "who is not told anew does not forget");
}

/// A machine that has had tasks of the bag, and has forgotten its key with the last of them.
#[test]
fn tasks_with_a_checkpoint_begin_when_the_key_comes() {
    let mut host = Host::new(2);
    let checkpoint = Checkpoint { blob: BlobId([8; 32]), bytes: 80 };
    host.receive(
        5,
        forged(1, |request| (request.bag.tasks, request.checkpoints) = (1_000_000, Box::new([(10, checkpoint)]))),
    );
    assert_eq!((host.holdings().len(), host.started.len()), (1, 0), "its submitter is asked at once");
    let (version, _) = host.holdings()[0];
    host.receive(1, lease(version, IntervalSet::new()));
    assert_eq!(host.started.len(), 1);
}

#[test]
fn what_is_short_travels_with_tasks() {
    let [mut host, mut other] = pair();
    let (envelope, manifest) = (Enclosed::of(&[1; 700]), Enclosed::of(&[2; 300]));
    let submission = Submission { envelope: envelope.clone(), manifest: manifest.clone(), ..submission(100, 1e6) };
    host.give(Event::Submitted(submission));
    let mut manifests = Vec::new();
    talk_and(&mut host, &mut other, 5, |message| match message {
        Message::Lease(Lease { manifest, .. }) => manifests.push(manifest.clone()),
        Message::Request { request, .. } => assert_eq!(request.envelope, envelope),
        _ => {}
    });
    assert_eq!(other.envelopes, std::slice::from_ref(&envelope), "its driver judges the bag by it");
    assert_eq!(other.peer.bag_manifest(BAG), Some(&manifest));
    assert_eq!(manifests, [manifest], "the first lease has it");
    // What it holds is asked about once more.
    host.sent.clear();
    let (ranges, finished) = (other.peer.unfinished()[&BAG].clone(), IntervalSet::new());
    let (executor, version, attempt, capacity) = (speaker(3), u64::MAX, 0, None);
    host.receive(3, Message::Holding { bag: BAG, executor, version, attempt, ranges, finished, capacity });
    let again: Vec<&Message> = host.sent.iter().map(|(_, message)| message).collect();
    assert!(
        matches!(again[..], [Message::Lease(Lease { manifest, .. })] if manifest.is_empty()),
        "it has had it: {again:?}"
    );
}

#[test]
fn what_is_long_is_fetched() {
    assert!(Enclosed::of(&[0; ENCLOSED_BYTES_MAX + 1]).is_empty());
    let long = |length: usize| {
        let bytes = ciborium::Value::Bytes(vec![0; length]);
        bytes.deserialized::<Enclosed>().expect("bytes")
    };
    for (length, is_valid) in [(ENCLOSED_BYTES_MAX, true), (ENCLOSED_BYTES_MAX + 1, false)] {
        let sent = forged(1, |request| request.envelope = long(length));
        assert_eq!(Message::decode(&sent.encode()).is_ok(), is_valid);
        let sent = Message::Lease(Lease { manifest: long(length), ..lease_of(1) });
        assert_eq!(Message::decode(&sent.encode()).is_ok(), is_valid);
    }
}

#[test]
fn a_bags_key_goes_to_executors_only() {
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(submission(100, 1e6)));
    let key = host.peer.bag_key(BAG);
    assert!(key.is_some());
    talk(&mut host, &mut other, 5);
    assert!(!other.started.is_empty(), "it has some");
    assert_eq!(other.peer.bag_key(BAG), key);
    // All tasks are placed, and this machine claims some: the `Lease` that has it drop them carries no key.
    let holding = |version, ranges| Message::Holding {
        bag: BAG,
        executor: speaker(9),
        version,
        attempt: 0,
        ranges,
        finished: IntervalSet::new(),
        capacity: None,
    };
    host.sent.clear();
    host.receive(9, holding(1, IntervalSet::from(0..100)));
    host.receive(9, holding(2, IntervalSet::new()));
    assert_eq!(keys(&host), [(PeerId([9; 32]), None), (PeerId([9; 32]), None)]);
    // The key of a bag differs by submitter, and is the same after a restart.
    let seeds = [1, 2].map(|seed| Seed::from(seed).key(BAG));
    assert!(
        seeds[0] != seeds[1] && Seed::from(1).key(BAG) == seeds[0] && seeds[0] != Seed::from(1).key(BagId([8; 32]))
    );
}

#[test]
fn a_replayed_bag_does_not_run_while_its_submitter_is_away() {
    let mut host = replayed(seconds(3600.0));
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
    // Repeated requests do not keep the bag here.
    for number in 10..200 {
        host.receive(1, request(number, 1, 10..20));
        host.pass(seconds(14.0));
    }
    assert!(host.peer.unspoken_tasks() > 20, "{}", host.peer.unspoken_tasks());
    host.pass(seconds(1000.0));
    assert!(host.peer.held().is_empty() && host.started.is_empty());
    // The submitter is back and the bag is open: its tasks begin.
    host.receive(1, request(200, 1, 10..20));
    host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
    assert_eq!((host.started.len(), host.peer.held()[0].waiting), (1, 9));
}

#[test]
fn a_fresh_bag_begins_before_its_submitter_answers() {
    let mut host = replayed(seconds(10.0));
    assert_eq!((host.started.len(), host.holdings().len()), (1, 0), "it is told at a moment of this machine's own");
    host.pass(seconds(580.0));
    host.finish(host.started[0], true);
    assert_eq!(host.started.len(), 2);
    host.pass(seconds(11.0));
    host.finish(host.started[1], true);
    assert_eq!(host.started.len(), 2, "nothing more begins");
    host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
    assert_eq!(host.started.len(), 3);
    // The submitter is asked at the end of that time at the latest.
    let mut host = replayed(seconds(595.0));
    assert_eq!((host.started.len(), host.holdings().len()), (1, 0));
    host.pass(seconds(6.0));
    assert_eq!(host.holdings().len(), 1);
}

#[test]
fn a_bag_is_no_older_than_its_manifest() {
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
        host.verdict = Some(Ok(approval(signed_ago)));
        // A request with another header is authorised anew, and is no older either.
        for number in 1..3 {
            host.receive(
                5,
                forged(number, |request| {
                    (request.age, request.bag.tasks) = (said, 100 * number);
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
fn tasks_over_a_submitters_quota_are_declined() {
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
    // Another submitter has a quota of its own.
    let other = BagHeader { id: BagId([8; 32]), submitter: contact(3), ..big };
    host.receive(3, heavy(1, other, 0..5));
    assert_eq!(host.peer.unfinished()[&BagId([8; 32])].len(), 5);
    assert_eq!(host.peer.declined_requests(), 2);
}

#[test]
fn declined_tasks_end_on_willing_machines_and_the_reason_is_shown() {
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
    // The declining machine is idle and asks for work: the same tasks are offered to it, but seldom.
    assert!(asked <= 10, "it was asked {asked} times");
    assert!(other.started.is_empty());
}
