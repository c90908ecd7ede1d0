//! Tests of bags whose tasks take longer than declared.

use super::*;

/// Two bags of one task each, of a machine at 1000 Mop/s: the first is declared to take a second, the other 100 s.
fn understated(declared: bool) -> (Executor, Io) {
    let config = Config::default();
    let (mut executor, mut io) = (Executor::new(&config), Io::new(Time::ZERO, WallTime(0), contact(2)));
    for (number, task_mops) in [(1, 1e3), (2, 1e5)] {
        let (id, submitter) = (BagId([number; 32]), contact(number + 2));
        let (tasks, application_size_mops) = (2, 2.0 * task_mops);
        let bag = BagHeader { id, submitter, tasks, task_mops, application_size_mops, declared };
        let (ranges, age, path) = (IntervalSet::from(0..tasks), Duration::ZERO, Path::default());
        let (number, attempt, climbed, machines, leads) = (1, 0, 0, 0, true);
        let checkpoints = Box::default();
        let request = Request {
            copy: None,
            begins_within: None,
            lines: Box::default(),
            envelope: Enclosed::default(),
            acting: None,
            bag,
            number,
            attempt,
            ranges,
            age,
            path,
            climbed,
            machines,
            link_kb_s: crate::link::LINK_KB_S,
            leads,
            ticket: 0,
            checkpoints,
        };
        executor.queue(request, None, &mut io, &config);
    }
    all_durable(&mut io);
    executor.dispatch(&mut io);
    (executor, io)
}

fn runs(executor: &Executor) -> Vec<u8> {
    executor.places.begun().filter(|running| running.runs()).map(|running| running.task.bag.0[0]).collect()
}

#[test]
fn a_bag_that_understates_its_work_loses_its_early_turn() {
    let config = Config::default();
    let (mut executor, mut io) = understated(true);
    assert_eq!(runs(&executor), [1], "it is said to be short");
    let wakes = |executor: &mut Executor, io: &mut Io, until_s: u64| {
        let until = Time::ZERO + Duration::from_secs(until_s);
        let mut wakes = 0;
        while let Some(due) = executor.deadline(io).filter(|&due| due <= until) {
            io.now = due.max(io.now);
            executor.tick(io, &config);
            executor.dispatch(io);
            wakes += 1;
        }
        io.now = until;
        wakes
    };
    wakes(&mut executor, &mut io, 2);
    assert_eq!((runs(&executor), executor.held()[0].times_declared), (vec![1], 1.0));
    // Until its deadline is behind the other's: from now on it is looked at at twice its known work.
    let woken = wakes(&mut executor, &mut io, 400);
    assert!(woken < 100, "it is seldom looked at: {woken} times");
    assert_eq!(runs(&executor), [2]);
    let rated = executor.held()[0].times_declared;
    assert!((3.0..400.0).contains(&rated), "{rated}");
    // Finished tasks count, so that a rating can be revised.
    for _ in 0..500 {
        executor.bags.get_mut(&BagId([1; 32])).expect("held").finished_tasks += 1;
    }
    executor.rate(BagId([1; 32]), io.now);
    assert_eq!(executor.held()[0].times_declared, 1.0);
    // A bag without a declaration is not rated.
    let (mut executor, mut io) = understated(false);
    wakes(&mut executor, &mut io, 400);
    assert_eq!((runs(&executor), executor.held()[0].times_declared), (vec![1], 1.0));
}

/// Else this machine would tell its parent of the same task at each of its events, for as long as that runs.
#[test]
fn a_task_that_runs_ever_longer_is_news_only_when_it_has_run_for_twice_as_long() {
    let config = Config::default();
    let (mut executor, mut io) = understated(true);
    let mut news = 0;
    // From 10 to 100 times its declared work of a second, which has the steps 12, 24, 48 and 96.
    for step in 0..900_u64 {
        io.now = Time::ZERO + Duration::from_millis(10_000 + step * 100);
        executor.tick(&mut io, &config);
        news += u32::from(std::mem::take(&mut executor.changed));
    }
    assert!((1..=6).contains(&news), "{news}");
    assert!(executor.held()[0].times_declared >= 6.0, "it is rated all the same");
}

#[test]
fn tasks_of_different_sizes_are_honest() {
    let (mut executor, mut io) = understated(true);
    let config = Config::default();
    // One task alone may be long; two of them are rarely so by chance.
    for (tasks, took_mops, rated) in
        [(1, 3100.0, 1.0), (1, 5900.0, 1.0), (1, 6100.0, 6.1), (2, 5900.0, 1.0), (2, 6200.0, 3.1)]
    {
        let held = executor.bags.get_mut(&BagId([1; 32])).expect("held");
        (held.finished_tasks, held.finished_mops) = (tasks, took_mops);
        executor.rate(BagId([1; 32]), io.now);
        let times = executor.held()[0].times_declared;
        assert!((times - rated).abs() < 1e-9, "{tasks} {took_mops}: {times}");
    }
    executor.tick(&mut io, &config);
}
