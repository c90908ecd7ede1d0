//! Machines whose owner returns, that finish, leave the grid and return.

use super::checkpoints::{KEPT, handed_back};
use super::*;

#[test]
fn a_finishing_machine_hands_back_preempted_tasks() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 2, 0..1));
    let Message::Request { request, node, climbing } = request(2, 0, 0..1) else { unreachable!() };
    let urgent = BagHeader { id: BagId([8; 32]), tasks: 1, application_size_mops: 10.0, task_mops: 10.0, ..bag(1) };
    host.receive(1, Message::Request { request: Request { bag: urgent, ..request }, node, climbing });
    let frozen = host.peer.running().into_iter().filter(|running| running.preempted).map(|running| running.task);
    let frozen: Vec<TaskId> = frozen.collect();
    assert_eq!(frozen, [TaskId { bag: BAG, index: 0 }]);
    host.give(Event::OwnerReturned { stands_still: false });
    // The same after the vacate time.
    host.pass(Config::default().vacate_after + seconds(1.0));
    host.asked.clear();
    host.give(Event::Vacate);
    assert_eq!(host.stopped, frozen);
    assert!(host.asked.contains(&(BAG, IntervalSet::from(0..1))), "{:?}", host.asked);
    host.give(Event::TaskEnded { task: frozen[0], outcome: TaskOutcome::Stopped });
    host.keep(0, Some(KEPT));
    assert_eq!(handed_back(&host), [(0, 2)]);
    assert_eq!(host.peer.running().len(), 1, "what runs goes on to its end");
}

#[test]
fn a_finishing_machine_hands_back_unstarted_tasks_at_once() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..3));
    host.give(Event::Vacate);
    assert_eq!(host.peer.held()[0].waiting, 2, "the owner is away");
    host.give(Event::OwnerReturned { stands_still: true });
    host.give(Event::Vacate);
    assert_eq!((host.peer.held()[0].waiting, host.peer.held()[0].running), (0, 1));
}

/// The disk is full: a task that began before ends, and its output cannot be stored.
#[test]
fn a_task_that_comes_to_wait_after_the_vacate_time_goes_back_soon() {
    for outcome in [TaskOutcome::NotStarted { retry_after: seconds(1.0) }, TaskOutcome::Stopped] {
        let mut host = Host::new(2);
        host.receive(1, request(1, 0, 0..3));
        host.give(Event::OwnerReturned { stands_still: false });
        host.give(Event::Vacate);
        let task = host.peer.running()[0].task;
        host.give(Event::TaskEnded { task, outcome });
        host.pass(seconds(1.0));
        assert_eq!(
            host.peer.held()[0].waiting,
            1,
            "not at once, or it would come and go without end where it is alone"
        );
        host.pass(seconds(10.0));
        assert_eq!((host.holdings().last().unwrap().1, host.peer.held()[0].waiting), (0, 0), "handed back");
        // The next stay of the owner has a vacate time of its own.
        host.give(Event::OwnerLeft);
        host.receive(1, request(2, 0, 3..6));
        host.give(Event::OwnerReturned { stands_still: true });
        host.pass(seconds(1.0));
        assert_eq!(host.peer.held()[0].waiting, 2);
    }
}

#[test]
fn a_new_vacate_time_counts_for_the_present_stay() {
    let waiting = |host: &Host| host.peer.held()[0].waiting;
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.give(Event::OwnerReturned { stands_still: true });
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
    host.give(Event::OwnerReturned { stands_still: true });
    host.pass(seconds(6.0));
    assert_eq!(waiting(&host), 0);
}

#[test]
fn a_suspended_machine_hands_back_repeatedly() {
    let mut host = Host::new(2);
    host.give(Event::OwnerReturned { stands_still: true });
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

/// A frozen machine renews its lease for ever, so that no other machine would get the task.
#[test]
fn tasks_that_wait_after_the_vacate_time_go_back() {
    let stay = Config::default().vacate_after + seconds(1.0);
    for outcome in [TaskOutcome::NotStarted { retry_after: seconds(1.0) }, TaskOutcome::Stopped] {
        let mut host = Host::new(2);
        host.receive(1, request(1, 0, 0..2));
        host.receive(1, lease(0, IntervalSet::new()));
        host.give(Event::OwnerReturned { stands_still: true });
        host.pass(stay);
        assert_eq!((host.peer.held()[0].waiting, host.peer.held()[0].running), (0, 1));
        host.give(Event::TaskEnded { task: host.started[0], outcome });
        assert_eq!(host.peer.held()[0].waiting, 1);
        host.pass(stay);
        assert_eq!(host.holdings().last().unwrap().1, 0, "handed back");
    }
}

#[test]
fn running_tasks_go_on_while_none_begins() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..3));
    host.receive(1, lease(0, IntervalSet::new()));
    let look = |host: &Host| host.peer.running().iter().map(|it| (it.frozen, it.active)).collect::<Vec<_>>();
    let mut ran = Duration::ZERO;
    let no_room = Event::OwnerReturned { stands_still: false };
    let owner = Event::OwnerReturned { stands_still: true };
    for (event, frozen) in
        [(&no_room, false), (&owner, true), (&no_room, false), (&Event::OwnerLeft, false), (&owner, true)]
    {
        host.give(event.clone());
        host.give(event.clone());
        host.pass(seconds(10.0));
        host.give(Event::DeadlineReached);
        ran += if frozen { Duration::ZERO } else { seconds(10.0) };
        assert_eq!(look(&host), [(frozen, ran)], "{event:?}");
    }
    assert_eq!(host.started.len(), 1);
}

/// A task that runs on is not handed back; once frozen it has a full vacate time.
#[test]
fn tasks_frozen_later_have_a_vacate_time_of_their_own() {
    let stay = Config::default().vacate_after + seconds(1.0);
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..3));
    host.receive(1, lease(0, IntervalSet::new()));
    host.give(Event::OwnerReturned { stands_still: false });
    host.pass(stay);
    assert_eq!((host.peer.held()[0].waiting, host.peer.held()[0].running), (0, 1));
    assert!(host.asked.is_empty(), "{:?}", host.asked);
    host.give(Event::OwnerReturned { stands_still: true });
    host.pass(Config::default().vacate_after - seconds(1.0));
    assert!(host.asked.is_empty(), "{:?}", host.asked);
    host.pass(seconds(2.0));
    assert_eq!(host.asked, [(BAG, IntervalSet::from(0..1))]);
}

#[test]
fn offered_tasks_go_back_at_the_end_of_the_vacate_time() {
    // All waiting tasks are offered, long or shortly before the vacate time ends.
    for before in [seconds(1.0), Config::default().vacate_after - seconds(1.0)] {
        let mut host = Host::new(2);
        host.receive(1, request(1, 0, 0..3));
        host.receive(1, lease(0, IntervalSet::new()));
        host.give(Event::OwnerReturned { stands_still: true });
        host.pass(before);
        let asker = Asker { contact: contact(3), speed_mops: 1000.0, slots: 1, stretch: 0.0 };
        host.receive(3, Message::Ask { asker, node: Node::Leaf, climbing: false, climbed: 0, ticket: 0 });
        assert_eq!(host.peer.held()[0].waiting, 0, "offered");
        host.pass(Config::default().vacate_after - before + seconds(1.0));
        assert_eq!(host.holdings().last().unwrap().1, 1, "but for the one that has begun");
    }
}

#[test]
fn a_frozen_machine_renews_its_leases() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.give(Event::OwnerReturned { stands_still: true });
    let before = host.holding_receivers().len();
    host.receive(1, lease(host.holdings()[before - 1].0, IntervalSet::new()));
    host.pass(seconds(50.0));
    assert!(host.holding_receivers().len() >= before + 2);
    assert!(host.sent.iter().all(|(to, _)| to.peer == SUBMITTER));
}

/// A machine keeps its queue and ledgers when it leaves the grid, and goes on with them when it returns.
#[test]
fn queue_and_ledgers_survive_a_leave_and_a_return() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    let own = BagId([8; 32]);
    host.give(Event::Submitted(Submission { id: own, ..submission(3, 1000.0) }));
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

/// The root sums up what the leaves published.
#[test]
fn a_returning_machine_publishes_anew() {
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

/// A machine that has become slower offers less, and says so to whoever gives it tasks.
#[test]
fn a_machine_whose_speed_changes_publishes_that() {
    let [mut host, mut other] = pair();
    let both = host.peer.platform().speed_mops;
    let own = Config::default().speed_mops;
    other.give(Event::SpeedChanged(own / 10.0));
    talk(&mut host, &mut other, 20);
    let slower = host.peer.platform().speed_mops;
    assert!((slower / both - 0.55).abs() < 0.01, "{slower} of {both}");
    other.give(Event::SpeedChanged(f64::NAN));
    talk(&mut host, &mut other, 20);
    assert_eq!(host.peer.platform().speed_mops, slower, "that is no speed");
    for below_all in [0.0, -1.0, f64::NEG_INFINITY] {
        other.give(Event::SpeedChanged(below_all));
        talk(&mut host, &mut other, 20);
        let alone = host.peer.platform().speed_mops;
        assert!((alone / both - 0.5).abs() < 0.01, "{alone} of {both}");
    }
    other.give(Event::SpeedChanged(own));
    talk(&mut host, &mut other, 20);
    assert_eq!(host.peer.platform().speed_mops, both);
}

/// A machine's position follows from its certificate, of which the driver has told the peer before the first message.
#[test]
fn the_certificates_nonce_decides_the_position() {
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
    // The peer remembers those of whom it was told last.
    for number in 0..5000_u32 {
        let mut peer = [9; 32];
        peer[..4].copy_from_slice(&number.to_le_bytes());
        host.give(Event::Certified { peer: PeerId(peer), nonce });
        assert!(host.peer.is_certified(PeerId(peer)));
    }
}
