//! What may queue and begin on a machine.

use super::*;

/// What was declined, for what reason.
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
    host.give(Event::Authorised { bag: BAG, verdict: Ok(approval(Duration::ZERO)) });
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
        host.verdict = Some(Ok(approval(Duration::ZERO)));
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
    host.give(Event::Authorised { bag: BAG, verdict: Ok(approval(Duration::ZERO)) });
    assert_eq!((host.peer.unfinished()[&BAG].len(), host.started.len()), (5, 1));
    // An answer that nobody waits for says nothing.
    host.give(Event::Authorised { bag: BagId([99; 32]), verdict: Ok(approval(Duration::ZERO)) });
}

/// Ten tasks of a bag that was signed so long ago, as somebody sends them; their machines have ten minutes to tell of them.
fn sent_again(signed_ago: Duration) -> Host {
    let mut host = Host::new(2);
    host.verdict = Some(Ok(approval(signed_ago)));
    host.receive(5, unhurried(1, 0..10, 15_000));
    host
}

#[test]
fn what_is_not_fresh_begins_when_its_submitter_has_answered() {
    for signed_ago in [seconds(601.0), seconds(1e6), Duration::MAX] {
        let mut host = sent_again(signed_ago);
        assert_eq!(host.holdings().len(), 1, "it is asked at once");
        host.pass(seconds(40.0));
        assert!(host.holdings().len() > 1, "and again");
        assert!(host.started.is_empty());
        host.receive(5, lease(0, IntervalSet::new()));
        assert!(host.started.is_empty(), "that is not its submitter");
        host.receive(1, lease(host.holdings().last().expect("it spoke").0, IntervalSet::new()));
        assert_eq!(host.started.len(), 1);
        // Of what it has spoken of it is not asked, whatever comes.
        host.sent.clear();
        host.receive(1, unhurried(2, 20..30, 15_000));
        assert!(host.holdings().is_empty() && host.looked_at.len() == 1, "{:?}", host.sent);
        host.pass(seconds(900.0));
        (0..19).for_each(|index| host.finish(host.started[index], true));
        assert_eq!(host.started.len(), 20);
        assert_eq!(host.peer.unspoken_tasks(), 0);
    }
}

/// The keys that the host has told in leases, and to whom.
fn keys(host: &Host) -> Vec<(PeerId, Option<BagKey>)> {
    let told = host.sent.iter().filter_map(|(to, message)| match message {
        Message::Lease { key, .. } => Some((to.peer, *key)),
        _ => None,
    });
    told.collect()
}

#[test]
fn what_is_fresh_and_not_at_hand_begins_when_its_submitter_has_told_the_key() {
    let mut host = Host::new(2);
    host.verdict = Some(Ok(Approval { signed_ago: Duration::ZERO, at_hand: false }));
    host.receive(5, unhurried(1, 0..10, 15_000));
    assert_eq!((host.holdings().len(), host.started.len()), (1, 0), "it is asked at once");
    assert_eq!(host.peer.bag_key(BAG), None);
    let told = |version, key| {
        let Message::Lease { bag, submitter, term, drop, rest, .. } = lease(version, IntervalSet::new()) else {
            unreachable!()
        };
        Message::Lease { bag, version, submitter, term, drop, rest, key }
    };
    let (version, _) = host.holdings()[0];
    host.receive(5, told(version, Some([5; 32].into())));
    assert_eq!((host.started.len(), host.peer.bag_key(BAG)), (0, None), "that is not its submitter");
    host.receive(1, told(version, Some([1; 32].into())));
    assert_eq!((host.started.len(), host.peer.bag_key(BAG)), (1, Some([1; 32].into())));
    host.receive(1, told(0, None));
    assert_eq!(host.peer.bag_key(BAG), Some([1; 32].into()), "who is not told anew does not forget");
}

#[test]
fn a_bags_key_is_told_to_those_who_hold_tasks_of_it() {
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(submission(100, 1e6)));
    let key = host.peer.bag_key(BAG);
    assert!(key.is_some());
    talk(&mut host, &mut other, 5);
    assert!(!other.started.is_empty(), "it has some");
    assert_eq!(other.peer.bag_key(BAG), key);
    // All tasks have found their machines, and this one claims some; it is not told more by being told to forget them.
    let holding = |version, ranges| Message::Holding {
        bag: BAG,
        executor: speaker(9),
        version,
        attempt: 0,
        ranges,
        finished: IntervalSet::new(),
    };
    host.sent.clear();
    host.receive(9, holding(1, IntervalSet::from(0..100)));
    host.receive(9, holding(2, IntervalSet::new()));
    assert_eq!(keys(&host), [(PeerId([9; 32]), None), (PeerId([9; 32]), None)]);
    // The key of a bag is another on another machine, and the same after a restart of its own.
    let seeds = [1, 2].map(|seed| Seed::from(seed).key(BAG));
    assert!(
        seeds[0] != seeds[1] && Seed::from(1).key(BAG) == seeds[0] && seeds[0] != Seed::from(1).key(BagId([8; 32]))
    );
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
        host.verdict = Some(Ok(approval(signed_ago)));
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
