//! Tests of the tasks that are offered to a machine that asks for work.

use super::*;

pub(super) fn asker(speed_mops: f64, stretch: f64) -> Asker {
    Asker { contact: contact(7), speed_mops, slots: 1, stretch }
}

/// The offers sent since: bag and ranges.
fn offers(io: &mut Io) -> Vec<(u8, IntervalSet)> {
    let sent = io.effects.drain(..).filter_map(|effect| match effect {
        Effect::Send { to, message: Message::Offer { bag, ranges, to: idle, .. } } => {
            assert_eq!((to, idle), (contact(1).into(), contact(7)));
            Some((bag.0[0], ranges))
        }
        _ => None,
    });
    sent.collect()
}

#[test]
fn an_idle_machine_is_offered_what_ends_there_sooner() {
    let config = Config::default();
    // A task runs here, 9 and 5 wait, each for 100 s of this machine.
    for (speed_mops, expected) in [
        (1000.0, vec![(1, 5..10), (2, 3..5)]),
        (3000.0, vec![(1, 2..10), (2, 2..5)]),
        (100.0, vec![(2, 4..5)]),
        (50.0, vec![]),
    ] {
        let (mut executor, mut io) = laden(&config);
        executor.answer_ask(&asker(speed_mops, 0.0), &mut io, &config);
        let expected: Vec<_> = expected.into_iter().map(|(bag, range)| (bag, IntervalSet::from(range))).collect();
        assert_eq!(offers(&mut io), expected);
        // While one offer is open there is no other.
        executor.answer_ask(&asker(speed_mops, 0.0), &mut io, &config);
        assert!(offers(&mut io).is_empty());
    }
}

#[test]
fn the_last_waiting_task_goes_where_it_ends_sooner() {
    let config = Config::default();
    // One task runs here for 100 s, the other would be done after 200 s.
    for (speed_mops, slots, is_given) in [(1000.0, 1, true), (600.0, 1, true), (510.0, 1, false), (2000.0, 4, false)] {
        let (mut executor, mut io) = laden(&config);
        executor.give_up(BagId([1; 32]), &IntervalSet::from(2..10), &mut io);
        executor.give_up(BagId([2; 32]), &IntervalSet::from(0..5), &mut io);
        all_durable(&mut io);
        executor.answer_ask(&Asker { slots, ..asker(speed_mops, 0.0) }, &mut io, &config);
        let expected = is_given.then(|| (1, IntervalSet::from(1..2)));
        assert_eq!(offers(&mut io), expected.into_iter().collect::<Vec<_>>(), "{speed_mops} Mop/s, {slots} slots");
    }
}

#[test]
fn a_machine_with_a_smaller_stretch_is_offered_tasks_up_to_the_bottleneck() {
    let config = Config::default();
    // The first bag takes 1000 s and has a stretch of 1e-4; the second, done after 1500 s, one of 7.5e-5.
    let nothing = IntervalSet::new();
    let last = |tasks: u64| IntervalSet::from(10 - tasks..10);
    for (speed_mops, stretch, expected) in [
        // 500 s earlier there: a quarter of that in work here, which is two tasks and a half, makes both 750 s.
        (1000.0, 5e-5, last(2)),
        (4000.0, 5e-5, last(4)),
        (1000.0, 7e-5, last(1)),
        // A task is more than that, but the asker ends it before the rest ends here; and one that it would not.
        (1000.0, 8.5e-5, last(1)),
        (1000.0, 9.2e-5, nothing.clone()),
        (4000.0, 9.2e-5, last(1)),
        (1e9, 9.96e-5, nothing.clone()),
        (1e9, 2e-4, nothing),
        // The task that has begun here is not offered.
        (1e9, 1e-9, last(9)),
    ] {
        let (mut executor, mut io) = laden(&config);
        executor.answer_ask(&asker(speed_mops, stretch), &mut io, &config);
        let expected: Vec<_> =
            Some(expected).filter(|given| !given.is_empty()).map(|given| (1, given)).into_iter().collect();
        assert_eq!(offers(&mut io), expected, "{speed_mops} {stretch}");
    }
    // On a machine as fast with sixteen slots, a task takes as long as on one of them.
    for (slots, given) in [(1, 1), (16, 0)] {
        let (mut executor, mut io) = laden(&config);
        executor.answer_ask(&Asker { slots, ..asker(4000.0, 9.2e-5) }, &mut io, &config);
        assert_eq!(offers(&mut io).len(), given, "{slots} slots");
    }
    // Tasks with a checkpoint here do not count among those that could be offered.
    let (mut executor, mut io) = laden(&config);
    executor.found_checkpoints(BagId([1; 32]), &IntervalSet::from(1..6));
    executor.answer_ask(&asker(1000.0, 8.5e-5), &mut io, &config);
    assert_eq!(offers(&mut io), [(1, last(1))]);
}

#[test]
fn offered_tasks_wait_for_the_submitters_answer() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    executor.answer_ask(&asker(1000.0, 0.0), &mut io, &config);
    let given = offers(&mut io);
    let offered = |executor: &Executor| executor.bags.values().map(|held| held.offered.len()).sum::<u64>();
    assert_eq!(offered(&executor), 7);
    let all = |executor: &Executor| executor.bags.values().map(|held| held.ranges().len()).sum::<u64>();
    assert_eq!(all(&executor), 15, "all of it is still accounted for");
    let waiting: Vec<u64> = executor.held().iter().map(|held| held.waiting).collect();
    assert_eq!(waiting.iter().sum::<u64>(), 7, "{waiting:?}");
    // The submitter takes them.
    let (bag, ranges) = &given[0];
    let (term, drop) = (Duration::from_secs(60), ranges.clone());
    let lease = Lease { term, drop, ..Lease::of(BagId([*bag; 32])) };
    executor.lease(contact(1).peer, lease, &mut io, &config);
    assert_eq!(all(&executor), 15 - ranges.len());
    // The submitter does not answer.
    assert!(executor.deadline(&io).is_some_and(|deadline| deadline <= io.now + config.placement_timeout));
    io.now += config.placement_timeout;
    executor.tick(&mut io, &config);
    assert_eq!((offered(&executor), all(&executor)), (0, 15 - ranges.len()));
    // On a machine whose owner is back all waiting tasks are offered.
    executor.suspend(true, &mut io, &Config::default());
    let waiting: u64 = executor.held().iter().map(|held| held.waiting).sum();
    assert!(executor.summary(&io).longest_wait_s > 0);
    all_durable(&mut io);
    executor.answer_ask(&asker(1.0, 0.0), &mut io, &config);
    assert_eq!(offers(&mut io).iter().map(|(_, ranges)| ranges.len()).sum::<u64>(), waiting);
    assert!(!executor.is_dry(), "a machine whose owner is back asks nobody");
}
