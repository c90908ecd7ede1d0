//! Tests of when a machine reports availability, renews leases, and sends last results.

use super::offering::asker;
use super::*;

#[test]
fn only_unexpected_changes_are_reported() {
    let config = Config::default();
    for (ran_s, is_reported) in [(100, false), (95, false), (50, true), (150, true)] {
        let (mut executor, mut io) = laden(&config);
        executor.changed = false;
        io.now += Duration::from_secs(ran_s);
        let task = TaskId { bag: BagId([1; 32]), index: 0 };
        executor.ended(task, TaskOutcome::Finished(FINISHED), &mut io, &config);
        executor.dispatch(&mut io);
        assert_eq!(executor.changed, is_reported, "after {ran_s} s of 100");
        assert!(!executor.availability_grew, "more of its bag is left");
    }
    // An idle slot is reported even where other slots are busy.
    for (slots, is_reported) in [(14, false), (15, true)] {
        let (mut executor, mut io) = laden(&Config { slots, ..Config::default() });
        executor.changed = false;
        io.now += Duration::from_secs(100);
        let task = TaskId { bag: BagId([1; 32]), index: 0 };
        executor.ended(task, TaskOutcome::Finished(FINISHED), &mut io, &config);
        assert_eq!(executor.changed, is_reported, "15 tasks on {slots} slots");
    }
    let (mut executor, mut io) = laden(&config);
    executor.changed = false;
    executor.answer_ask(&asker(1000.0, 0.0), &mut io, &config);
    assert!(executor.changed);
}

#[test]
fn one_renewal_covers_bags_due_now_and_soon() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    let bags: Vec<_> = executor.bags.values().map(|held| (held.bag.id, held.updates.version())).collect();
    assert_eq!(bags.len(), 2);
    let later = executor.bags.get_mut(&bags[1].0).expect("held");
    later.updates.delay_holding(Duration::from_secs(10));
    io.now += Duration::from_secs(30);
    executor.tick(&mut io, &config);
    let sent: Vec<_> = std::mem::take(&mut io.effects);
    let renewal = Message::Renewal { executor: (&contact(2)).into(), bags: bags.clone() };
    assert_eq!(sent, [Effect::Send { to: contact(1).into(), message: renewal }]);
    // Only the bag's submitter extends the lease, and only for the last `Holding`.
    let term = Duration::from_secs(100);
    executor.renewed(contact(3).peer, &bags, term, &mut io, &config);
    executor.renewed(contact(1).peer, &[(bags[0].0, 99)], term, &mut io, &config);
    assert!(executor.bags.values().all(|held| held.updates.holding_due() <= io.now + config.repeat_after));
    executor.renewed(contact(1).peer, &bags, term, &mut io, &config);
    assert!(executor.bags.values().all(|held| held.updates.holding_due() == io.now + term / 2));
    // An unasked `Lease` is answered with a `Holding`.
    let (bag, drop) = (bags[0].0, IntervalSet::new());
    executor.lease(contact(1).peer, Lease { term, drop, ..Lease::of(bag) }, &mut io, &config);
    executor.tick(&mut io, &config);
    let said = |effect: &Effect| matches!(effect, Effect::Send { message: Message::Holding { .. }, .. });
    assert_eq!(io.effects.iter().filter(|effect| said(effect)).count(), 1);
}

/// How long an executor of a bag that takes a pace of this period waits with its last result when the bag is so old.
fn last_result_waits(period: Duration, age: Duration) -> Duration {
    let config = Config::default();
    let (mut executor, mut io) = empty(&config);
    give(&mut executor, &mut io, 1, 1e4, 1e6, 0);
    executor.bags.get_mut(&BagId([1; 32])).unwrap().updates.set_pace(Pace { period, share: 0.999 });
    executor.dispatch(&mut io);
    // The machine's own moment has just passed.
    io.now = Time::ZERO + age;
    let finished = Finished {
        success: true,
        crashed: false,
        output: BlobId([7; 32]),
        output_bytes: 1,
        content: None,
        work_mops: 1e4,
        exit_code: Some(0),
        fingerprint: None,
        times: 1.0,
    };
    executor.ended(TaskId { bag: BagId([1; 32]), index: 0 }, TaskOutcome::Finished(finished), &mut io, &config);
    executor.bags.get(&BagId([1; 32])).unwrap().updates.results_due().since(io.now)
}

/// The last result waits for its share of the submitter's link, and for no more than half a percent of the bag's age.
#[test]
fn the_last_results_wait_for_little_of_the_bags_age() {
    let age = Duration::from_secs(100);
    let longest = |period_s| {
        let waits =
            (0..40).map(|second| last_result_waits(Duration::from_secs(period_s), age + Duration::from_secs(second)));
        waits.max().unwrap().as_secs_f64()
    };
    assert!((0.5..=0.7).contains(&longest(60)), "{} s of at most half a percent of 100 to 139 s", longest(60));
    assert!(longest(1) <= 0.5, "what the link needs");
}

/// Machines that were answered at the same moment do not renew at the same moment.
#[test]
fn machines_answered_together_renew_at_different_moments() {
    let term = Duration::from_secs(60);
    let renewals = [3, 4, 5].map(|number| {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        io.me = contact(number).into();
        give(&mut executor, &mut io, 1, 1e4, 1e6, 0);
        let held = executor.bags.get_mut(&BagId([1; 32])).unwrap();
        held.lease_extended(term, &io, &config);
        let first = held.updates.holding_due();
        io.now = first;
        held.lease_extended(term, &io, &config);
        assert_eq!(held.updates.holding_due().since(first), term / 2);
        first.since(Time::ZERO).as_secs_f64()
    });
    assert!(renewals.iter().all(|wait| (15.0..30.0).contains(wait)), "{renewals:?}");
    let [one, other, third] = renewals;
    assert!([one - other, other - third, third - one].iter().all(|apart| apart.abs() > 0.5), "{renewals:?}");
}
