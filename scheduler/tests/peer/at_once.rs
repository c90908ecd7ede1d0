//! Rounds whose processes begin at once, on two machines of two slots each.

use idlewood_scheduler::rounds::Plan;

use super::*;

const OTHER: BagId = BagId([8; 32]);
/// What another bag fills slots with.
const FILLER: BagId = BagId([9; 32]);

fn plan(processes: u64, rounds: u64) -> Plan {
    Plan { processes, rounds, rounds_min: 0, merges: true, is_asynchronous: false, fill: None, at_once: true }
}

fn application(id: BagId, plan: Plan) -> Submission {
    let conditions = Conditions { rounds: Some(plan), ..Conditions::default() };
    Submission { id, conditions, retries_max: 9, ..submission(plan.tasks(), 1e6) }
}

fn config() -> Config {
    Config { slots: 2, ..Config::default() }
}

/// Tasks of a bag that have begun on each of the two; some may have been preempted since.
fn running(of: BagId, hosts: [&Host; 2]) -> [Vec<u64>; 2] {
    hosts.map(|host| {
        let running = host.peer.running().into_iter().filter(|it| it.task.bag == of);
        running.map(|it| it.task.index).collect()
    })
}

fn begun(of: BagId, hosts: [&Host; 2]) -> usize {
    running(of, hosts).iter().map(Vec::len).sum()
}

/// Passes time until tasks of the bag run, and then a second more; how many ran first, and then. None may have run alone.
fn first_begun(of: BagId, host: &mut Host, other: &mut Host, most_s: u32) -> (usize, usize) {
    for _ in 0..most_s {
        talk(host, other, 1);
        let first = begun(of, [host, other]);
        if first > 0 {
            talk(host, other, 1);
            let all = begun(of, [host, other]);
            assert_eq!(first, all, "some began alone");
            return (first, all);
        }
    }
    (0, 0)
}

fn end_all(of: BagId, host: &mut Host, other: &mut Host) {
    for one in [host, other] {
        for running in one.peer.running().into_iter().filter(|it| it.task.bag == of) {
            one.finish(running.task, true);
        }
    }
}

fn booked(host: &Host) -> Option<u64> {
    host.peer.booked_slots(BAG)
}

#[test]
fn a_round_begins_at_once_on_all_slots() {
    let [mut host, mut other] = pair_with(config());
    host.give(Event::Submitted(application(BAG, plan(4, 3))));
    for round in 0..3 {
        let (_, all) = first_begun(BAG, &mut host, &mut other, 60);
        assert_eq!(all, 4, "of round {round}: {:?}", running(BAG, [&host, &other]));
        assert_eq!(running(BAG, [&host, &other]).map(|tasks| tasks.len()), [2, 2]);
        end_all(BAG, &mut host, &mut other);
        // The merge needs nobody.
        let (first, _) = first_begun(BAG, &mut host, &mut other, 60);
        assert_eq!(first, 1, "the merge of round {round}");
        end_all(BAG, &mut host, &mut other);
    }
    talk(&mut host, &mut other, 10);
    let view = host.peer.bag(BAG).expect("submitted");
    assert_eq!((view.done, view.closed.is_some()), (15, true));
}

/// Another bag has a slot, and is ahead: three slots are booked and given back, until the fourth is free.
#[test]
fn no_process_begins_before_all_have_a_slot_and_slots_are_kept_for_half_a_minute() {
    let config = Config { frozen_max: 0, ..config() };
    let [mut host, mut other] = pair_with(config);
    other.give(Event::Submitted(Submission { id: FILLER, ..submission(1, 1e9) }));
    talk(&mut host, &mut other, 3);
    assert_eq!(begun(FILLER, [&host, &other]), 1);
    host.give(Event::Submitted(application(BAG, plan(4, 1))));
    talk(&mut host, &mut other, 8);
    assert_eq!((begun(BAG, [&host, &other]), booked(&host)), (0, Some(3)));
    // Slots that are kept are nobody else's, but no longer than half a minute.
    other.give(Event::Submitted(Submission { id: OTHER, ..submission(4, 1000.0) }));
    let mut others = Vec::new();
    for second in 0..60 {
        talk(&mut host, &mut other, 1);
        assert_eq!(begun(BAG, [&host, &other]), 0, "not before all can");
        let has_begun = begun(OTHER, [&host, &other]) > 0;
        if has_begun {
            others.push(second);
            end_all(OTHER, &mut host, &mut other);
        }
    }
    assert!(others.first().is_some_and(|first| (15..=30).contains(first)), "{others:?}");
    assert!(host.peer.bag(BAG).is_some_and(|view| view.done == 0 && view.failed == 0));
    end_all(FILLER, &mut host, &mut other);
    let (_, all) = first_begun(BAG, &mut host, &mut other, 120);
    assert_eq!(all, 4);
}

#[test]
fn two_applications_that_need_each_others_slots_both_end() {
    for first in [BAG, OTHER] {
        let [mut host, mut other] = pair_with(config());
        let second = if first == BAG { OTHER } else { BAG };
        // From both machines at the same moment, each of which begins to book where it is.
        host.give(Event::Submitted(application(first, plan(4, 2))));
        other.give(Event::Submitted(application(second, plan(3, 2))));
        for _ in 0..400 {
            talk(&mut host, &mut other, 1);
            for bag in [BAG, OTHER] {
                let [here, there] = running(bag, [&host, &other]);
                if here.len() + there.len() > 0 {
                    talk(&mut host, &mut other, 1);
                    let all = begun(bag, [&host, &other]);
                    let (whole, is_merge) = (if bag == first { 4 } else { 3 }, all == 1);
                    assert!(all == whole || is_merge, "{bag:?}: {all}");
                    end_all(bag, &mut host, &mut other);
                }
            }
        }
        let over = |host: &Host, bag| host.peer.bag(bag).is_some_and(|view| view.closed.is_some());
        assert!(over(&host, first) && over(&other, second), "{:?}", host.peer.bag(first));
    }
}

/// One that needs five slots of four books all of them in vain; another one that is due first does not wait for that.
#[test]
fn who_is_due_first_takes_slots_that_another_has_booked() {
    let [mut host, mut other] = pair_with(config());
    host.give(Event::Submitted(application(BAG, plan(5, 2))));
    talk(&mut host, &mut other, 5);
    assert_eq!(booked(&host), Some(4));
    let submission = Submission { task_mops: Some(1e4), ..application(OTHER, plan(4, 1)) };
    other.give(Event::Submitted(submission));
    // What is booked would come back by itself after 25 s from now.
    let (_, all) = first_begun(OTHER, &mut host, &mut other, 22);
    assert_eq!((all, begun(BAG, [&host, &other])), (4, 0));
}

#[test]
fn a_begin_that_is_lost_is_said_again_within_seconds() {
    let [mut host, mut other] = pair_with(config());
    host.give(Event::Submitted(application(BAG, plan(4, 1))));
    let mut lost = 0;
    for _ in 0..200 {
        for one in [&mut host, &mut other] {
            one.pass(Duration::from_millis(100));
        }
        let is_lost = |message: &Message| lost == 0 && matches!(message, Message::Begin { .. });
        if host.sent.iter().any(|(_, message)| is_lost(message)) {
            host.sent.retain(|(_, message)| !is_lost(message));
            lost += 1;
        }
        deliver(&mut host, &mut other, &mut |_| ());
        if lost == 1 && begun(BAG, [&host, &other]) == 2 {
            break;
        }
    }
    assert_eq!((lost, running(BAG, [&host, &other]).map(|tasks| tasks.len())), (1, [2, 0]));
    talk(&mut host, &mut other, 9);
    assert_eq!(begun(BAG, [&host, &other]), 4);
}

#[test]
fn a_machine_that_is_killed_while_it_keeps_slots_begins_nothing_alone() {
    let [mut host, mut other] = pair_with(config());
    other.give(Event::Submitted(Submission { id: FILLER, ..submission(1, 1e9) }));
    talk(&mut host, &mut other, 3);
    host.give(Event::Submitted(application(BAG, plan(5, 1))));
    talk(&mut host, &mut other, 8);
    assert!(booked(&host).is_some_and(|booked| booked >= 3), "of four slots: {:?}", booked(&host));
    let now = other.now;
    let mut other = Host::restore_at(3, config(), other.store.into_values().collect(), now);
    other.give(Event::Bootstrap(contact(2)));
    for _ in 0..60 {
        talk(&mut host, &mut other, 1);
        assert_eq!(begun(BAG, [&host, &other]), 0);
    }
}

#[test]
fn a_process_whose_machine_is_lost_begins_again_without_the_others() {
    let [mut host, mut other] = pair_with(config());
    host.give(Event::Submitted(application(BAG, plan(2, 2))));
    let (_, all) = first_begun(BAG, &mut host, &mut other, 60);
    assert_eq!(all, 2);
    // The submitter is killed: the round has begun.
    let now = host.now;
    let mut host = Host::restore_at(2, config(), host.store.into_values().collect(), now);
    host.give(Event::Bootstrap(contact(3)));
    talk(&mut host, &mut other, 60);
    assert_eq!(begun(BAG, [&host, &other]), 2, "{:?}", host.peer.bag(BAG));
    assert_eq!(booked(&host), Some(0), "the next round has not begun");
}

#[test]
fn an_owner_who_returns_gives_booked_slots_back() {
    let config = Config { frozen_max: 0, ..config() };
    let [mut host, mut other] = pair_with(config);
    host.give(Event::Submitted(application(BAG, plan(5, 1))));
    talk(&mut host, &mut other, 8);
    assert_eq!(booked(&host), Some(4));
    other.give(Event::OwnerReturned { stands_still: true });
    talk(&mut host, &mut other, 5);
    let held: u64 = other.peer.held().iter().map(|held| held.waiting).sum();
    assert_eq!((held, begun(BAG, [&host, &other])), (0, 0));
}

/// Slots that were kept in a try that failed count for nothing in the next one.
#[test]
fn slots_of_an_earlier_try_are_not_counted() {
    let config = Config { frozen_max: 0, ..config() };
    let [mut host, mut other] = pair_with(config);
    other.give(Event::Submitted(Submission { id: FILLER, ..submission(1, 1e9) }));
    talk(&mut host, &mut other, 3);
    host.give(Event::Submitted(application(BAG, plan(4, 1))));
    talk(&mut host, &mut other, 8);
    assert_eq!(booked(&host), Some(3));
    let holds = |one: &Host| one.peer.unfinished().contains_key(&BAG);
    let (mut has_gone, mut is_back) = (false, false);
    for _ in 0..900 {
        for one in [&mut host, &mut other] {
            one.pass(Duration::from_millis(100));
        }
        has_gone |= !holds(&other);
        is_back |= has_gone && holds(&other);
        if has_gone {
            other.sent.retain(|(_, message)| !matches!(message, Message::Booked { .. }));
        }
        if is_back {
            assert!(booked(&host) <= Some(2), "{:?}: the other machine has not said so again", booked(&host));
        }
        deliver(&mut host, &mut other, &mut |_| ());
    }
    assert!(is_back, "there was no second try");
}

#[test]
fn an_application_that_could_never_begin_at_once_is_refused() {
    let host = Host::new(2);
    let good = application(BAG, plan(4, 1));
    let wrong = [
        Submission { task_mops: None, ..good.clone() },
        Submission { conditions: Conditions { running_max: Some(3), ..good.conditions.clone() }, ..good.clone() },
    ];
    assert_eq!(host.peer.check(&good), Ok(()));
    for submission in wrong {
        assert!(matches!(host.peer.check(&submission), Err(SubmitError::Rounds(_))), "{submission:?}");
    }
}
