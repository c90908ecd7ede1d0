//! Bags that their user orders among each other.

use idlewood_scheduler::{PRIORITY_MAX, Wish};

use super::*;

const NEXT: BagId = BagId([8; 32]);

fn next(priority: i32) -> Event {
    let conditions = Conditions { priority, ..Conditions::default() };
    Event::Submitted(Submission { id: NEXT, conditions, ..submission(20, 10_000.0) })
}

/// The bags of the tasks that begin, one after the other on each of these machines.
fn order(hosts: &mut [Host; 2], rounds: u32) -> Vec<BagId> {
    let [host, other] = hosts;
    let begun = [host.started.len(), other.started.len()];
    for _ in 0..rounds {
        [&mut *host, &mut *other].into_iter().for_each(Host::finish_running);
        talk(host, other, 2);
    }
    let new = [&host.started[begun[0]..], &other.started[begun[1]..]].concat();
    new.iter().map(|task| task.bag).collect()
}

/// Whether nearly all of these tasks are of the bag that came last; a machine that has offered all of these begins with another.
fn is_of_next(begun: &[BagId]) -> bool {
    let of_next = begun.iter().filter(|bag| **bag == NEXT).count();
    !begun.is_empty() && of_next * 4 >= begun.len() * 3
}

#[test]
fn a_later_bag_of_a_higher_priority_goes_first_on_all_machines() {
    for (priority, is_first) in [(0, false), (5, true), (-5, false)] {
        let mut hosts = pair();
        hosts[0].give(Event::Submitted(submission(20, 10_000.0)));
        let [host, other] = &mut hosts;
        talk(host, other, 20);
        hosts[0].give(next(priority));
        let [host, other] = &mut hosts;
        talk(host, other, 20);
        let begun = order(&mut hosts, 6);
        assert_eq!(is_of_next(&begun), is_first, "priority {priority}: {begun:?}");
    }
}

#[test]
fn a_priority_that_is_given_later_reaches_machines_that_hold_tasks_and_outlives_a_restart() {
    let mut hosts = pair();
    hosts[0].give(Event::Submitted(submission(20, 10_000.0)));
    let [host, other] = &mut hosts;
    talk(host, other, 20);
    hosts[0].give(next(0));
    let [host, other] = &mut hosts;
    talk(host, other, 20);
    host.give(Event::Wished { bag: NEXT, wish: Wish::Prioritise(9) });
    assert_eq!(host.notices.last(), Some(&Notice::BagChanged(NEXT)));
    // The first word to the other machine is lost.
    host.sent.clear();
    talk(host, other, 120);
    let held = |host: &Host| {
        let of = |record: &Record| matches!(record, Record::Held { bag, priority: 9, .. } if bag.id == NEXT);
        host.store.values().any(of)
    };
    assert!(held(&hosts[0]) && held(&hosts[1]), "both machines wrote it down");
    assert!(is_of_next(&order(&mut hosts, 4)));

    let [host, other] = hosts;
    let records = |host: Host| host.store.into_values().collect();
    let mut host = Host::restore_at(2, Config::default(), records(host), Time::ZERO);
    let mut other = Host::restore_at(3, Config::default(), records(other), Time::ZERO);
    host.give(Event::Bootstrap(contact(3)));
    talk(&mut host, &mut other, 30);
    assert_eq!(host.peer.bag(NEXT).expect("submitted").conditions.priority, 9);
    let mut hosts = [host, other];
    assert!(is_of_next(&order(&mut hosts, 3)));
}

#[test]
fn a_priority_that_is_none_is_refused() {
    let mut host = Host::new(1);
    let conditions = Conditions { priority: PRIORITY_MAX + 1, ..Conditions::default() };
    let too_high = Submission { conditions, ..submission(1, 1000.0) };
    assert_eq!(host.peer.check(&too_high), Err(SubmitError::Conditions));
    host.give(Event::Submitted(submission(2, 1000.0)));
    host.give(Event::Wished { bag: BAG, wish: Wish::Prioritise(-PRIORITY_MAX - 1) });
    assert_eq!(host.peer.bag(BAG).expect("submitted").conditions.priority, 0);
    assert_eq!(host.notices, [Notice::BagAccepted(BAG)]);
}
