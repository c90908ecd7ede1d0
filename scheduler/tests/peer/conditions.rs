//! Bags that their users hold and release, that wait for others, and of which few tasks are handed out at once.

use std::collections::BTreeSet;

use idlewood_scheduler::{Awaited, Conditions, Wish};

use super::*;

const NEXT: BagId = BagId([8; 32]);

fn with(conditions: Conditions) -> Submission {
    Submission { conditions, ..submission(4, 1000.0) }
}

fn after(bags: &[BagId]) -> Submission {
    let conditions = Conditions { after: bags.iter().copied().collect(), ..Conditions::default() };
    Submission { id: NEXT, conditions, ..submission(2, 1000.0) }
}

fn wish(bag: BagId, wish: Wish) -> Event {
    Event::Wished { bag, wish }
}

fn held() -> Conditions {
    Conditions { withheld: true, ..Conditions::default() }
}

impl Host {
    /// Tasks of this bag that have begun so far, one a second succeeding.
    fn run(&mut self, seconds: u32) -> usize {
        for _ in 0..seconds {
            self.pass(Duration::from_secs(1));
            self.finish_running();
        }
        self.started.len()
    }

    fn closed(&self, bag: BagId) -> bool {
        self.peer.bag(bag).expect("submitted").closed.is_some()
    }

    fn awaited(&self) -> Vec<(BagId, Awaited)> {
        self.peer.bag(NEXT).expect("submitted").awaited.into_iter().collect()
    }
}

#[test]
fn a_bag_that_is_held_waits_for_its_release_also_across_a_restart() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(with(held())));
    assert_eq!((host.run(30), host.notices.as_slice()), (0, &[Notice::BagAccepted(BAG)][..]));
    let mut host = Host::restore(1, Config::default(), host.store.into_values().collect());
    assert_eq!((host.run(30), host.peer.bag(BAG).expect("kept").conditions.withheld), (0, true));
    host.give(wish(BAG, Wish::Release));
    assert_eq!(host.notices, [Notice::BagChanged(BAG)]);
    let view = host.peer.bag(BAG).expect("kept");
    assert_eq!((view.released, view.submitted < view.released), (host.now, true), "its time begins now");
    assert_eq!((host.run(10), host.closed(BAG)), (4, true));
    // Nothing can be held that is over; a name can be given.
    host.give(wish(BAG, Wish::Hold));
    assert!(!host.peer.bag(BAG).expect("kept").conditions.withheld);
    host.give(wish(BAG, Wish::Rename("mine".to_owned())));
    let host = Host::restore(1, Config::default(), host.store.into_values().collect());
    assert_eq!(host.peer.bag(BAG).expect("kept").conditions.name.as_deref(), Some("mine"));
}

#[test]
fn a_bag_of_unknown_work_is_not_measured_while_it_is_held() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission { task_mops: None, ..with(held()) }));
    assert!(host.measured.is_empty());
    let mut host = Host::restore(1, Config::default(), host.store.into_values().collect());
    assert!(host.measured.is_empty());
    host.give(wish(BAG, Wish::Release));
    host.give(wish(BAG, Wish::Release));
    assert_eq!(host.measured, [BAG], "once");
}

#[test]
fn what_has_not_begun_comes_back_from_machines_when_a_bag_is_held() {
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(submission(40, 100_000.0)));
    talk(&mut host, &mut other, 20);
    let begun = [&host, &other].map(|host| host.peer.running().len() as u64);
    assert_eq!(begun, [1, 1], "one slot each");
    assert!(host.peer.bag(BAG).expect("submitted").placed > 20, "the others wait");
    host.give(wish(BAG, Wish::Hold));
    // The first word to the other machine is lost.
    host.sent.clear();
    talk(&mut host, &mut other, 120);
    let view = host.peer.bag(BAG).expect("submitted");
    assert_eq!((view.placed, view.unplaced), (2, 38), "what has begun stays");
    [&mut host, &mut other].into_iter().for_each(Host::finish_running);
    talk(&mut host, &mut other, 60);
    let view = host.peer.bag(BAG).expect("submitted");
    assert_eq!((view.done, view.placed, view.unplaced), (2, 0, 38), "its results count, and nothing follows");
    assert_eq!([&host, &other].map(|host| host.peer.running().len()), [0, 0]);
    host.give(wish(BAG, Wish::Release));
    talk(&mut host, &mut other, 20);
    assert_eq!([&host, &other].map(|host| host.peer.running().len()), [1, 1]);
    assert_eq!(host.peer.bag(BAG).expect("submitted").failed, 0);
}

#[test]
fn a_bag_begins_when_those_have_succeeded_for_which_it_waits() {
    let mut host = Host::new(1);
    assert_eq!(host.peer.check(&after(&[BAG])), Err(SubmitError::After(BAG)), "it is not there");
    assert_eq!(host.peer.check(&after(&[NEXT])), Err(SubmitError::After(NEXT)), "not for itself");
    host.give(Event::Submitted(submission(3, 1000.0)));
    host.give(Event::Submitted(after(&[BAG])));
    assert_eq!((host.started.len(), host.awaited()), (1, vec![(BAG, Awaited::Open)]));
    host.run(2);
    let mut host = Host::restore(1, Config::default(), host.store.into_values().collect());
    host.pass(seconds(1.0));
    assert_eq!(host.awaited(), [(BAG, Awaited::Open)]);
    assert!(host.started.iter().all(|task| task.bag == BAG));
    host.run(10);
    assert!(host.closed(BAG) && host.closed(NEXT) && host.awaited().is_empty());
    let last_of_first = host.started.iter().rposition(|task| task.bag == BAG);
    assert!(last_of_first < host.started.iter().position(|task| task.bag == NEXT));
}

#[test]
fn a_bag_is_held_back_by_one_that_failed_or_is_gone_until_it_is_released() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    host.give(Event::Submitted(after(&[BAG])));
    host.finish(host.started[0], false);
    host.run(60);
    assert_eq!((host.started.len(), host.awaited()), (1, vec![(BAG, Awaited::Failed)]));
    host.give(Event::Removed(BAG));
    let mut host = Host::restore(1, Config::default(), host.store.into_values().collect());
    assert_eq!((host.run(10), host.awaited()), (0, vec![(BAG, Awaited::Unknown)]));
    host.give(wish(NEXT, Wish::Release));
    assert_eq!((host.run(10), host.closed(NEXT)), (2, true));

    // It goes on by itself where the failed tasks succeed after all.
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    host.give(Event::Submitted(after(&[BAG])));
    host.finish(host.started[0], false);
    host.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(0..1) });
    host.run(10);
    assert!(host.closed(NEXT));

    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    host.give(Event::Submitted(after(&[BAG])));
    host.give(Event::Cancelled(BAG));
    assert_eq!(host.awaited(), [(BAG, Awaited::Cancelled)]);
}

#[test]
fn no_more_tasks_are_handed_out_at_once_than_their_user_wants() {
    let [mut host, mut other] = pair();
    let conditions = Conditions { running_max: Some(3), ..Conditions::default() };
    host.give(Event::Submitted(Submission { conditions, ..submission(12, 100_000.0) }));
    let mut most = 0;
    for _ in 0..60 {
        talk(&mut host, &mut other, 1);
        let held = [&host, &other].map(|host| host.peer.unfinished().get(&BAG).map_or(0, IntervalSet::len));
        most = most.max(held[0] + held[1]);
        [&mut host, &mut other].into_iter().for_each(Host::finish_running);
    }
    assert_eq!(most, 3);
    assert!(host.closed(BAG), "{:?}", host.peer.bag(BAG));

    // Also where all requests are lost.
    let [mut host, mut other] = pair();
    let conditions = Conditions { running_max: Some(1), ..Conditions::default() };
    host.give(Event::Submitted(Submission { conditions, ..submission(12, 100_000.0) }));
    for _ in 0..600 {
        host.pass(Duration::from_millis(500));
        let asked = host.sent.iter().filter(|(_, message)| matches!(message, Message::Request { .. }));
        assert!(asked.count() <= 1);
        host.sent.clear();
        other.pass(Duration::from_millis(500));
    }
}

#[test]
fn conditions_that_make_no_sense_are_refused() {
    let host = Host::new(1);
    let check = |conditions| host.peer.check(&with(conditions));
    assert_eq!(check(Conditions { running_max: Some(0), ..Conditions::default() }), Err(SubmitError::Conditions));
    let name = Some("n".repeat(201));
    assert_eq!(check(Conditions { name, ..Conditions::default() }), Err(SubmitError::Conditions));
    let replication = Replication { replicas: 3, quorum: 2, recheck: 0 };
    for conditions in [
        Conditions { running_max: Some(3), ..Conditions::default() },
        Conditions { retry_on: Some(BTreeSet::from([3])), ..Conditions::default() },
    ] {
        let voted = Submission { replication, ..with(conditions.clone()) };
        assert_eq!(host.peer.check(&voted), Err(SubmitError::ConditionsOfVotes));
        assert_eq!(check(conditions), Ok(()));
    }
    assert_eq!(host.peer.check(&Submission { replication, ..with(held()) }), Ok(()));
}

#[test]
fn a_bag_with_replicas_can_be_held() {
    let [mut host, mut other] = pair();
    let replication = Replication { replicas: 2, quorum: 2, recheck: 0 };
    host.give(Event::Submitted(Submission { replication, ..submission(6, 100_000.0) }));
    talk(&mut host, &mut other, 20);
    host.give(wish(BAG, Wish::Hold));
    talk(&mut host, &mut other, 60);
    for _ in 0..9 {
        [&mut host, &mut other].into_iter().for_each(Host::finish_running);
        talk(&mut host, &mut other, 10);
    }
    assert_eq!([&host, &other].map(|host| host.peer.running().len()), [0, 0]);
    let before = host.peer.bag(BAG).expect("submitted");
    assert!(before.done < 6 && before.closed.is_none(), "{before:?}");
    host.give(wish(BAG, Wish::Release));
    for _ in 0..30 {
        [&mut host, &mut other].into_iter().for_each(Host::finish_running);
        talk(&mut host, &mut other, 10);
    }
    assert!(host.closed(BAG), "{:?}", host.peer.bag(BAG));
}
