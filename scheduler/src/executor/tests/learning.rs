//! What ended tasks show of a program corrects its other bags here, in time and not in turn.

use super::super::places::Running;
use super::*;

const PROGRAM: BlobId = BlobId([5; 32]);

/// Bags of one task of 100 s: the first two run one program, the third another one.
fn with_bags(slots: u32) -> (Executor, Io) {
    let (mut executor, mut io) = empty(&Config { slots, ..Config::default() });
    for number in 1..=3 {
        give(&mut executor, &mut io, number, 1e5, 1e6, 0);
        executor.runs(BagId([number; 32]), Some(if number < 3 { PROGRAM } else { BlobId([6; 32]) }));
    }
    executor.dispatch(&mut io);
    (executor, io)
}

fn task_mops(executor: &Executor, io: &Io) -> Vec<f64> {
    executor.load(io.now, |_| true).0.entries.iter().map(|entry| entry.task_mops).collect()
}

/// A task of the first bag that has just ended after so many seconds.
fn ran(seconds: i64) -> Running {
    let task = TaskId { bag: BagId([1; 32]), index: 0 };
    let mut places = Places::new(&Config::default());
    places.begin(0, task, 0, Time::from_micros(-seconds * 1_000_000));
    places.end(task, Some(PROGRAM)).expect("it runs").0
}

#[test]
fn what_a_program_takes_corrects_its_bags_here_and_no_others() {
    let (mut executor, io) = with_bags(1);
    let sizes = |executor: &Executor| -> Vec<f64> {
        executor.load(io.now, |_| true).0.entries.iter().map(|entry| entry.application_size_mops).collect()
    };
    let (before, busy) = (sizes(&executor), executor.busy_for(io.now, |_| true));
    executor.changed = false;
    (0..20).for_each(|_| executor.learn(&ran(200), (1.0, 200.0 * 1e3), true, io.now));
    let found = task_mops(&executor, &io);
    assert!((found[0] - 2e5).abs() < 5e3 && found[0] == found[1] && found[2] == 1e5, "{found:?}");
    assert!(
        executor.busy_for(io.now, |_| true) > busy.mul_f64(1.6) && executor.changed,
        "the queue and the summary follow"
    );
    assert_eq!(sizes(&executor), before, "deadlines follow from what submitters say");
    executor.changed = false;
    executor.learn(&ran(200), (1.0, 200.0 * 1e3), true, io.now);
    assert!(!executor.changed, "that is no news");
    // A bag that comes later begins with what is known.
    let mut io = io;
    give(&mut executor, &mut io, 4, 1e5, 1e6, 0);
    executor.runs(BagId([4; 32]), Some(PROGRAM));
    assert!(task_mops(&executor, &io)[3] > 1.9e5);
}

#[test]
fn one_task_is_little_evidence_and_a_rated_bag_is_not_corrected_twice() {
    let (mut executor, io) = with_bags(1);
    executor.learn(&ran(200), (1.0, 200.0 * 1e3), true, io.now);
    let found = task_mops(&executor, &io);
    assert!((1.2e5..1.3e5).contains(&found[1]), "{found:?}");
    executor.bags.get_mut(&BagId([2; 32])).expect("held").times_declared = 6.0;
    assert_eq!(task_mops(&executor, &io)[1], 6e5);
}

/// Its processor time is next to nothing; a machine that took that for its time would think itself sixty times faster than it is, and all its
/// tasks late: `conformance --only pair` found 8 of 40 tasks that sleep run twice.
#[test]
fn a_task_that_waits_takes_the_time_that_it_waits() {
    for slots in [1, 3] {
        waits(slots);
    }
}

fn waits(slots: u32) {
    let (mut executor, mut io) = with_bags(slots);
    let config = Config { slots, ..Config::default() };
    let task = executor.places.begun().find(|running| running.runs()).expect("one runs").task;
    assert_ne!(task.bag, BagId([3; 32]), "it runs the program that two bags have");
    io.now += Duration::from_secs(100);
    let outcome = TaskOutcome::Finished(Finished { work_mops: 1.0, ..FINISHED });
    executor.ended(task, outcome, &mut io, &config);
    let factors: Vec<f64> = executor.bags.values().map(|held| held.factor).collect();
    assert!(factors.iter().all(|factor| (factor - 1.0).abs() < 0.01), "{factors:?}");
}

/// The last process on a fast machine does more iterations than others (`--fill`), and takes longer for them.
#[test]
fn a_task_that_fills_its_time_teaches_the_same_as_one_that_does_not() {
    let taught = |times: f64| {
        let (mut executor, mut io) = with_bags(1);
        let task = executor.places.begun().find(|running| running.runs()).expect("one runs").task;
        io.now += Duration::from_secs(200).mul_f64(times);
        let outcome = TaskOutcome::Finished(Finished { work_mops: 3e5 * times, times, ..FINISHED });
        executor.ended(task, outcome, &mut io, &Config::default());
        let of = |held: &super::super::held_bag::HeldBag| (held.factor, held.finished_mops);
        executor.bags.values().map(of).collect::<Vec<_>>()
    };
    let (once, filled) = (taught(1.0), taught(1.8));
    assert!(once.iter().any(|(factor, _)| (factor - 1.0).abs() > 0.1), "it teaches something: {once:?}");
    let differ = |(one, other): (&(f64, f64), &(f64, f64))| (one.0 - other.0).abs() + (one.1 - other.1).abs() > 1e-6;
    assert!(!once.iter().zip(&filled).any(differ), "{once:?} {filled:?}");
}

/// Else short tasks would seem longer for a while on each machine, the end of each would be news, and the tree would carry three times as many
/// reports: `conformance --only slots` found so.
#[test]
fn the_time_in_which_a_program_is_fetched_and_compiled_is_not_that_of_its_tasks() {
    let (mut executor, io) = with_bags(1);
    let factor = |executor: &Executor| executor.bags.get(&BagId([1; 32])).expect("held").factor;
    executor.learn(&ran(59), (1.0, 59.0 * 1e3), true, io.now);
    assert_eq!(factor(&executor), 1.0, "it started the program");
    executor.learn(&ran(59), (1.0, 59.0 * 1e3), false, io.now);
    assert!(factor(&executor) < 0.9, "the next did not: {}", factor(&executor));
    let mut places = Places::new(&Config::default());
    let mut again = |program, index| {
        let task = TaskId { bag: BagId([1; 32]), index };
        places.begin(0, task, 0, io.now);
        places.end(task, program).expect("it runs").1
    };
    let other = Some(BlobId([6; 32]));
    let programs = [Some(PROGRAM), Some(PROGRAM), None, Some(PROGRAM), other, Some(PROGRAM)];
    let is_first = (0..).zip(programs).map(|(index, program)| again(program, index)).collect::<Vec<_>>();
    assert_eq!(is_first, [true, false, true, false, true, true], "one that did not start changes nothing");
}

/// Tasks of two programs run ten times as long as was said: one is frozen for the other.
#[test]
fn a_machine_on_which_all_takes_longer_offers_less_and_gives_back_what_waits() {
    for leaves in [1, 2] {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        io.leaves = leaves;
        let told_mops = executor.speed_mops();
        // Of ten tasks of 100 s, then of ten of 20 s, which come ahead.
        for (number, task_mops) in [(1, 1e5), (2, 2e4)] {
            give(&mut executor, &mut io, number, task_mops, 10.0 * task_mops, 0);
            let held = executor.bags.get_mut(&BagId([number; 32])).expect("held");
            held.bag.tasks = 10;
            held.waiting.extend_with(&IntervalSet::from(1..10));
            executor.runs(BagId([number; 32]), Some(BlobId([number; 32])));
            executor.dispatch(&mut io);
            io.now += Duration::from_secs_f64(task_mops / 1e3 * 9.1);
            executor.tick(&mut io, &config);
            assert_eq!(executor.speed_mops() < told_mops, number == 2, "one program says nothing of the machine");
        }
        let slow = executor.speed_mops() / told_mops;
        assert!((0.1..0.25).contains(&slow), "{slow}");
        let waiting: u64 = executor.held().iter().map(|held| held.waiting).sum();
        assert_eq!(waiting == 0, leaves > 1, "{waiting} wait");
        let load = executor.load(io.now, |_| true).0;
        assert_eq!((load.speed_mops, executor.changed), (executor.speed_mops(), true));
        let sizes: Vec<f64> = load.entries.iter().map(|entry| entry.application_size_mops).collect();
        // The first counts with that of the same user that is smaller.
        assert_eq!(sizes, [1.2e6, 2e5], "deadlines follow from what submitters say");
        // Both are shared out, the frozen one where much comes ahead of it.
        let begun: Vec<TaskId> = executor.places.begun().map(|running| running.task).collect();
        assert_eq!(begun.len(), 2);
        let shared = |executor: &mut Executor, io: &mut Io| -> BTreeMap<BagId, BTreeMap<u64, u32>> {
            io.effects.clear();
            executor.share(io, &config);
            let of = |effect: &Effect| match effect {
                Effect::Send { message: Message::Share { bag, tasks }, .. } => Some((*bag, tasks.clone())),
                _ => None,
            };
            io.effects.iter().filter_map(of).collect()
        };
        io.now += 2 * config.lease;
        let bags = shared(&mut executor, &mut io);
        let is_shared = |task: &TaskId| bags.get(&task.bag).is_some_and(|tasks| tasks.contains_key(&task.index));
        let shared: Vec<u8> = begun.iter().filter(|task| is_shared(task)).map(|task| task.bag.0[0]).collect();
        assert_eq!(shared, if leaves == 1 { vec![1, 2] } else { vec![2] }, "{bags:?}");
    }
}

/// What copies have overtaken teaches that the machine is slow, too.
#[test]
fn a_task_that_is_stopped_far_beyond_its_work_counts() {
    let (mut executor, mut io) = with_bags(2);
    let config = Config { slots: 2, ..Config::default() };
    let begun: Vec<TaskId> = executor.places.begun().map(|running| running.task).collect();
    io.now += Duration::from_secs(850);
    for task in begun {
        executor.give_up(task.bag, &IntervalSet::from(task.index..task.index + 1), &mut io);
        executor.ended(task, TaskOutcome::Stopped, &mut io, &config);
    }
    let known = executor.factors.of(PROGRAM, 1.0);
    assert!((2.0..8.0).contains(&known), "two tasks ran for eight times as long: {known}");
}

#[test]
fn a_submitter_that_prefers_machines_is_told_of_a_new_speed_at_once() {
    let (mut executor, io) = with_bags(1);
    for held in executor.bags.values_mut() {
        held.updates.requested(held.bag.id == BagId([1; 32]), &Config::default());
        held.updates.delay_holding(Duration::from_secs(60));
    }
    let speed = executor.speed_mops();
    executor.change_speed(speed / 2.0, io.now);
    let due: Vec<bool> = executor.bags.values().map(|held| held.updates.holding_due() <= io.now).collect();
    assert_eq!((due, executor.speed_mops()), (vec![true, false, false], speed / 2.0));
}
