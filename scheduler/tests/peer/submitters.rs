//! Submitters that restart, sleep, leave and return, and which of their addresses executors believe.

use super::*;

#[test]
fn only_the_submitters_lease_changes_its_address() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.receive(1, lease(host.holdings()[0].0, IntervalSet::new()));
    let astray = Contact { incarnation: u64::MAX, address: "/nowhere".into(), ..contact(1) };
    host.receive(5, forged(2, |request| request.bag.submitter = astray.clone()));
    host.pass(seconds(30.0));
    assert_eq!(host.last_receiver(), &contact(1));
    // The first request had a wrong address: the next one is answered at its own address, and so are later ones.
    let mut host = Host::new(2);
    host.receive(5, forged(1, |request| request.bag.submitter = astray));
    host.receive(1, request(2, 0, 0..5));
    assert_eq!(host.last_receiver(), &contact(1));
    let version = host.holdings().last().unwrap().0;
    let (submitter, term) = (Some(speaker(1)), Duration::from_secs(60));
    host.receive(1, Message::Lease(Lease { version, submitter, term, ..Lease::of(BAG) }));
    let before = host.holding_receivers().len();
    host.pass(seconds(31.0));
    assert_eq!((host.last_receiver(), host.holding_receivers().len() > before), (&contact(1), true));
}

#[test]
fn every_lease_has_the_submitters_address() {
    let mut host = Host::new(1);
    host.receive(
        2,
        Message::Holding {
            bag: BAG,
            executor: speaker(2),
            version: 1,
            attempt: 0,
            ranges: IntervalSet::from(0..1),
            finished: IntervalSet::new(),
            capacity: None,
        },
    );
    host.give(Event::Submitted(submission(3, 1000.0)));
    host.receive(
        2,
        Message::Holding {
            bag: BAG,
            executor: speaker(2),
            version: 2,
            attempt: 0,
            ranges: IntervalSet::from(0..1),
            finished: IntervalSet::new(),
            capacity: None,
        },
    );
    let leases = host.sent.iter().map(|(_, message)| match message {
        Message::Lease(Lease { submitter, drop, .. }) => (submitter.clone(), drop.len()),
        other => panic!("{other:?}"),
    });
    let leases: Vec<_> = leases.collect();
    // It sends nothing about a bag that it does not know yet, and then holds all of it itself.
    assert_eq!(leases, [(None, 1), (Some(speaker(1)), 1)]);
}

#[test]
fn versions_rise_when_a_bag_comes_again() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..1));
    host.pass(seconds(20.0));
    let last = host.holdings().last().unwrap().0;
    host.finish(host.started[0], true);
    host.receive(1, Message::ResultsAck { bag: BAG, attempt: 0, indices: IntervalSet::from(0..1) });
    assert!(host.peer.held().is_empty());
    host.receive(1, request(2, 1, 5..6));
    assert!(host.holdings().last().unwrap().0 > last, "else it is taken for an old word");
}

#[test]
fn a_restarted_submitter_waits_for_its_grid() {
    let submitted = submitted(bag(2), 1, 0);
    let config = Config { expects_grid: true, ..Config::default() };
    let mut host = Host::restore(2, config.clone(), vec![submitted]);
    host.pass(config.placement_timeout - seconds(1.0));
    assert!(host.peer.held().is_empty(), "it must not take everything on itself");
    host.pass(seconds(1.5));
    assert_eq!(host.started.len(), 1, "but not wait for ever either");
}

#[test]
fn tasks_issued_after_a_restart_have_another_attempt() {
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
fn leases_begin_anew_after_a_sleep() {
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
    // It has not answered since the restart either, and is asked twice more.
    host.pass(seconds(40.0));
    assert_eq!(reissued(&host), 0);
    host.pass(seconds(10.0));
    assert_eq!(reissued(&host), 100, "now somebody did");
}

#[test]
fn a_restarted_submitter_sends_executors_its_address() {
    let placed = Record::Placed { bag: BAG, executor: contact(5), ranges: IntervalSet::from(0..100) };
    let submitted = submitted(bag(1), 1, 0);
    let host = Host::restore(1, Config::default(), vec![submitted, placed]);
    let told = host.sent.iter().any(|(to, message)| {
        to.peer == PeerId([5; 32]) && matches!(message, Message::Lease(Lease { submitter: Some(_), .. }))
    });
    assert!(told);

    let mut executor = Host::new(5);
    executor.receive(1, request(1, 0, 0..5));
    let moved = Contact { incarnation: 2, address: "/b".into(), ..contact(1) };
    executor.sent.clear();
    let unasked =
        Message::Lease(Lease { submitter: Some((&moved).into()), term: Duration::from_secs(60), ..Lease::of(BAG) });
    executor.receive(1, unasked);
    executor.pass(seconds(0.1));
    let answered = executor.sent.iter().any(|(to, message)| *to == moved && matches!(message, Message::Holding { .. }));
    assert!(answered, "it answers there, at once");
}

#[test]
fn a_returning_submitter_waits_for_its_grid() {
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
