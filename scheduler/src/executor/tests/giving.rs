//! Tests of what goes to a machine that asks for work.

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
fn a_machine_of_the_same_speed_gets_half_of_what_has_not_begun_of_each_bag() {
    let config = Config::default();
    // 9 and 5 wait; what a share is short of a whole task is carried over to the next bag.
    for (speed_mops, expected) in
        [(1000.0, vec![(1, 6..10), (2, 2..5)]), (3000.0, vec![(1, 4..10), (2, 1..5)]), (100.0, vec![(2, 4..5)])]
    {
        let (mut executor, mut io) = laden(&config);
        executor.answer_ask(&asker(speed_mops, 0.0), &mut io, &config);
        let expected: Vec<_> = expected.into_iter().map(|(bag, range)| (bag, IntervalSet::from(range))).collect();
        assert_eq!(offers(&mut io), expected);
        // One at a time.
        executor.answer_ask(&asker(speed_mops, 0.0), &mut io, &config);
        assert!(offers(&mut io).is_empty());
    }
}

#[test]
fn a_machine_with_a_smaller_stretch_gets_of_the_bottleneck_what_levels_both() {
    let config = Config::default();
    // The first bag takes 1000 s and has a stretch of 1e-4; the second, done after 1500 s, one of 7.5e-5.
    let nothing = IntervalSet::new();
    let last = |tasks: u64| IntervalSet::from(10 - tasks..10);
    for (speed_mops, stretch, expected) in [
        // 500 s earlier there: a quarter of that in work here, which is two tasks and a half, makes both 750 s.
        (1000.0, 5e-5, last(2)),
        (4000.0, 5e-5, last(4)),
        (1000.0, 7e-5, last(1)),
        // A task is more than that, but done there before those here; and one that is not.
        (1000.0, 8.5e-5, last(1)),
        (1000.0, 9.2e-5, nothing.clone()),
        (4000.0, 9.2e-5, last(1)),
        (1e9, 9.96e-5, nothing.clone()),
        (1e9, 2e-4, nothing),
        // What begins first here is not in it.
        (1e9, 1e-9, last(9)),
    ] {
        let (mut executor, mut io) = laden(&config);
        executor.answer_ask(&asker(speed_mops, stretch), &mut io, &config);
        let expected: Vec<_> =
            Some(expected).filter(|given| !given.is_empty()).map(|given| (1, given)).into_iter().collect();
        assert_eq!(offers(&mut io), expected, "{speed_mops} {stretch}");
    }
    // As fast with sixteen slots a task takes as long there as on one of them.
    for (slots, given) in [(1, 1), (16, 0)] {
        let (mut executor, mut io) = laden(&config);
        executor.answer_ask(&Asker { slots, ..asker(4000.0, 9.2e-5) }, &mut io, &config);
        assert_eq!(offers(&mut io).len(), given, "{slots} slots");
    }
    // What is bound to this machine is not counted among what could be given.
    let (mut executor, mut io) = laden(&config);
    executor.found_checkpoints(BagId([1; 32]), &IntervalSet::from(1..6));
    executor.answer_ask(&asker(1000.0, 8.5e-5), &mut io, &config);
    assert_eq!(offers(&mut io), [(1, last(1))]);
}

#[test]
fn what_is_offered_does_not_begin_until_it_is_refused_and_is_forgotten_when_it_is_taken() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    executor.answer_ask(&asker(1000.0, 0.0), &mut io, &config);
    let given = offers(&mut io);
    let offered = |executor: &Executor| executor.held.values().map(|held| held.offered.len()).sum::<u64>();
    assert_eq!(offered(&executor), 7);
    let all = |executor: &Executor| executor.held.values().map(|held| held.ranges().len()).sum::<u64>();
    assert_eq!(all(&executor), 15, "all of it is still accounted for");
    let waiting: Vec<u64> = executor.held().iter().map(|held| held.waiting).collect();
    assert_eq!(waiting.iter().sum::<u64>(), 7, "{waiting:?}");
    // Taken.
    let (bag, ranges) = &given[0];
    let (term, drop) = (Duration::from_secs(60), ranges.clone());
    let lease =
        Lease { bag: BagId([*bag; 32]), version: 0, submitter: None, term, drop, rest: Duration::ZERO, key: None };
    executor.lease(contact(1).peer, lease, &mut io, &config);
    assert_eq!(all(&executor), 15 - ranges.len());
    // No answer.
    assert!(executor.deadline(&io).is_some_and(|deadline| deadline <= io.now + config.placement_timeout));
    io.now += config.placement_timeout;
    executor.tick(&mut io, &config);
    assert_eq!((offered(&executor), all(&executor)), (0, 15 - ranges.len()));
    // Where the owner is back, all of it may go.
    executor.suspend(true, &mut io);
    let waiting: u64 = executor.held().iter().map(|held| held.waiting).sum();
    assert!(executor.summary(io.now).longest_wait_s > 0);
    all_durable(&mut io);
    executor.answer_ask(&asker(1.0, 0.0), &mut io, &config);
    assert_eq!(offers(&mut io).iter().map(|(_, ranges)| ranges.len()).sum::<u64>(), waiting);
    assert!(!executor.is_dry(), "a machine whose owner is back asks nobody");
}
