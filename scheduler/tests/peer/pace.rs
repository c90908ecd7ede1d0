//! When machines send `Holding`, `Renewal` and `Results`, and when they send them again.

use super::*;

#[test]
fn results_are_repeated_later_where_many_machines_share_a_link() {
    // Nine tenths of the paper's link take results of 402 machines a second.
    let paper = idlewood_scheduler::LINK_KB_S;
    let cases = [(0, paper, 2.0), (10_000, paper, 24.9), (100_000, paper, 248.9), (1_000_000, paper, 600.0)];
    for (machines, link_kb_s, first_s) in cases.into_iter().chain([(100_000, 10 * paper, 24.9)]) {
        let mut host = Host::new(2);
        host.receive(
            1,
            forged(1, |request| {
                request.bag.tasks = 1_000_000;
                (request.ranges, request.machines) = (IntervalSet::from(0..1), machines);
                request.link_kb_s = link_kb_s;
            }),
        );
        host.pass(seconds(10.0));
        host.finish(host.started[0], true);
        let sent_results =
            |host: &Host| host.sent.iter().filter(|(_, message)| matches!(message, Message::Results { .. })).count();
        while sent_results(&host) == 0 {
            host.pass(seconds(0.1));
        }
        host.pass(seconds(first_s - 0.5));
        assert_eq!(sent_results(&host), 1, "nothing is repeated yet");
        host.pass(seconds(1.0));
        assert_eq!(sent_results(&host), 2, "now it is, {first_s} s");
    }
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
fn machines_answer_a_request_at_their_own_moments() {
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

/// The submitter answers a word that its machine has replaced: what it would have forgotten then may have been placed there anew.
#[test]
fn a_lease_for_an_older_holding_takes_away_nothing_that_a_newer_one_holds() {
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..5, 0));
    let (version, _) = host.holdings()[0];
    host.finish(host.started[0], true);
    host.receive(1, unhurried(2, 5..8, 0));
    host.pass(seconds(30.0));
    let (newer, held) = *host.holdings().last().expect("it has told what it holds");
    assert!(newer > version && held == 8, "{:?}", host.holdings());
    let begun = host.peer.running().len();
    host.receive(1, lease(version, IntervalSet::from(0..8)));
    assert_eq!(host.peer.running().len(), begun, "no task is stopped");
    let sent = host.sent.len();
    host.pass(seconds(700.0));
    let has_first = |message: &Message| matches!(message, Message::Results { results, .. } if results.iter().any(|of| of.index == 0));
    assert!(host.sent[sent..].iter().any(|(_, message)| has_first(message)), "the result is told again");
}

#[test]
fn a_lease_for_an_older_holding_does_not_hide_new_tasks() {
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..5, 0));
    let (version, _) = host.holdings()[0];
    host.receive(1, unhurried(2, 5..8, 500));
    host.receive(1, lease(version, IntervalSet::new()));
    host.pass(seconds(20.1));
    assert!(host.holdings().iter().any(|(_, held)| *held == 8), "{:?}", host.holdings());
}

#[test]
fn results_are_sent_together_the_last_soon_and_failures_at_once() {
    let sent_results = |host: &Host| -> Vec<usize> {
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
    assert_eq!(sent_results(&host), [0; 0], "more follow");
    host.pass(seconds(20.1));
    assert_eq!(sent_results(&host)[0], 10);
    host.receive(1, Message::ResultsAck { bag: BAG, attempt: 0, indices: IntervalSet::from(0..10) });
    host.sent.clear();
    host.finish(host.started[10], true);
    assert_eq!(sent_results(&host), [0; 0]);
    host.pass(seconds(1.0));
    host.finish(host.started[11], true);
    assert_eq!(sent_results(&host), [0; 0], "the last of all machines would come at once");
    host.pass(seconds(0.21));
    assert_eq!(sent_results(&host), [2], "that was the last: half a percent of the bag's age is the most");

    // A machine that completes its running tasks and then ends.
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..2, 500));
    host.finish(host.started[0], true);
    assert_eq!(sent_results(&host), [0; 0]);
    host.give(Event::OwnerReturned { stands_still: true });
    assert_eq!(sent_results(&host), [1], "what waits does not wait for its owner to leave");
    host.finish(host.started[1], true);
    assert_eq!(sent_results(&host), [1, 1], "nor does the last");

    let [mut host, _other] = pair();
    host.receive(1, unhurried(1, 0..12, 500));
    host.finish(host.started[0], true);
    host.give(Event::Leave);
    assert_eq!(sent_results(&host), [1], "it may be away for long");
    assert_eq!(host.holdings().len(), 1);

    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..12, 500));
    host.finish(host.started[0], true);
    host.finish(host.started[1], false);
    assert_eq!(sent_results(&host), [1]);
    let kinds: Vec<_> = host.sent.iter().map(|(_, message)| message.kind()).filter(|kind| *kind != "overlay").collect();
    assert_eq!(kinds, ["holding", "results"], "a failure is believed of who holds the task");
}

#[test]
fn results_are_the_last_once_the_other_tasks_leave() {
    let sent_results = |host: &Host| host.sent.iter().any(|(_, message)| matches!(message, Message::Results { .. }));
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..4, 10_000));
    host.receive(1, lease(0, IntervalSet::new()));
    host.pass(seconds(30.0));
    host.finish(host.started[0], true);
    host.pass(seconds(2.0));
    host.receive(1, lease(0, IntervalSet::from(2..4)));
    host.pass(seconds(1.0));
    assert!(!sent_results(&host), "one more is to come");
    host.receive(1, lease(0, IntervalSet::from(1..2)));
    host.pass(seconds(0.5));
    assert!(sent_results(&host), "{:?}", host.sent);

    // The task goes back, since it cannot start here.
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..2, 10_000));
    host.pass(seconds(30.0));
    host.finish(host.started[0], true);
    for _ in 0..3 {
        assert!(!sent_results(&host));
        let outcome = TaskOutcome::NotStarted { retry_after: seconds(1.0) };
        host.give(Event::TaskEnded { task: *host.started.last().expect("it is tried"), outcome });
        host.pass(seconds(1.1));
    }
    assert!(sent_results(&host), "{:?}", host.sent);
}

#[test]
fn all_results_are_sent_with_the_last_in_several_messages() {
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..600, 10_000));
    for task in 0..600 {
        assert!(!host.sent.iter().any(|(_, message)| matches!(message, Message::Results { .. })), "{task}");
        host.finish(host.started[task], task < 599);
    }
    host.pass(seconds(0.1));
    let sent_results = host.sent.iter().map(|(_, message)| match message {
        Message::Results { results, .. } => results.len(),
        _ => 0,
    });
    assert_eq!(sent_results.sum::<usize>(), 600, "a failure waits for nothing");
}

#[test]
fn a_lost_renewal_is_repeated_before_the_lease_ends() {
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..5, 100_000));
    while host.holdings().is_empty() {
        host.pass(seconds(1.0));
    }
    host.receive(1, lease(host.holdings()[0].0, IntervalSet::new()));
    host.sent.clear();
    host.pass(seconds(59.0));
    let renewals = host.sent.iter().filter(|(_, message)| matches!(message, Message::Renewal { .. })).count();
    assert!(renewals > 1, "{:?}", host.sent);
}

#[test]
fn last_results_of_very_many_machines_are_spread_over_the_link() {
    // When 100 of the 100,000 machines of a bag send their results, after tasks of so many seconds.
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
    assert!(after_short[99] <= 251.0, "{after_short:?}");
    for (wait, share) in [(62.5, 25.0), (125.0, 50.0), (187.5, 75.0)] {
        let before = after_short.iter().filter(|&&moment| moment < wait).count() as f64;
        assert!((before - share).abs() < 15.0, "{before} machines within {wait} s: {after_short:?}");
    }
    // A task that began longer ago has had its turn: its result waits for half a percent of the bag's age.
    let after_long = moments(300.0);
    assert!(after_long[99] <= 302.5, "{after_long:?}");
}

#[test]
fn a_long_frozen_task_does_not_wait_for_its_turn() {
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..1, 100_000));
    host.give(Event::OwnerReturned { stands_still: true });
    host.pass(seconds(400.0));
    host.give(Event::OwnerLeft);
    host.finish(host.started[0], true);
    host.pass(seconds(2.5));
    assert!(host.sent.iter().any(|(_, message)| matches!(message, Message::Results { .. })));
}

#[test]
fn a_submitter_waits_longer_for_more_machines() {
    let [mut host, router] = pair();
    assert!(router.peer.overlay_view().hosts_router());
    host.give(Event::Submitted(submission(40, 1000.0)));
    let (executor, ranges) = (speaker(3), IntervalSet::from(0..1));
    host.receive(
        3,
        Message::Holding {
            bag: BAG,
            executor,
            version: 1,
            attempt: 0,
            ranges,
            finished: IntervalSet::new(),
            capacity: None,
        },
    );
    // All other messages are lost; two machines have 80 ms more than the 15 s.
    host.pass(seconds(15.04));
    assert_eq!(host.peer.bag(BAG).unwrap().reissued, 0);
    host.pass(seconds(0.1));
    assert_eq!(host.peer.bag(BAG).unwrap().reissued, 39);
}

#[test]
fn the_machine_with_the_first_tasks_answers_at_once() {
    for leads in [false, true] {
        let mut host = Host::new(2);
        let Message::Request { request, .. } = unhurried(1, 0..5, 500) else { unreachable!() };
        let request = Request { leads, ..request };
        host.receive(1, Message::Request { request, node: Node::Leaf, climbing: false });
        assert_eq!(host.holdings().len(), usize::from(leads));
    }
}
