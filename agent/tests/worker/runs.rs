//! Runs of several jobs, and stopping or taking them back.

use super::*;

#[test]
fn a_worker_killed_from_outside_takes_only_its_task() {
    let mut setup = Setup::new(1);
    setup.warm();
    let job = setup.job("probe", &["spin", "1000000"]);
    setup.pool.start(0, &job).unwrap();
    let pid = setup.only_pid();
    kill(pid);
    let outcome = setup.next().1.outcome;
    assert!(matches!(&outcome, Outcome::WorkerDied { reason } if reason.contains("signal 9")), "{outcome:?}");
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    assert_ne!(setup.only_pid(), pid);
}

#[test]
fn stop_ends_running_and_frozen_tasks_at_once() {
    let mut setup = Setup::new(1);
    setup.warm();
    for frozen in [false, true] {
        let job = setup.job("probe", &["spin", "1000000"]);
        setup.pool.start(0, &job).unwrap();
        let pid = setup.only_pid();
        wait_until(|| ticks_of(pid) > 20);
        if frozen {
            setup.pool.freeze();
        }
        assert!(setup.pool.stop(0));
        let ended = setup.next().1;
        assert_eq!(ended.outcome, Outcome::Stopped);
        assert!(ended.cpu > Duration::from_millis(100) && ended.cpu < PATIENCE, "{ended:?}");
        assert!(state_of(pid).is_none(), "reaped");
        setup.pool.thaw();
    }
    assert!(!setup.pool.stop(0), "nothing runs");
    assert!(!setup.pool.stop(1), "no such slot");
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
}

#[test]
fn a_run_is_in_order_and_jobs_not_begun_are_taken_back() {
    let mut setup = Setup::new(1);
    for code in ["1", "2", "3"] {
        setup.append(&["exit", code]);
    }
    setup.expect(&[exit(1), exit(2), exit(3)]);
    let long = setup.append(&["spin", "1000000"]);
    let behind: Vec<Job> = (0..100).map(|_| setup.append(&["exit", "4"])).collect();
    wait_until(|| has_begun(&long));
    assert_eq!(setup.pool.take_back(0).len(), 100);
    assert!(setup.pool.take_back(0).is_empty());
    setup.append(&["exit", "5"]);
    assert!(setup.pool.stop(0));
    setup.expect(&[Outcome::Stopped, exit(5)]);
    assert!(!behind.iter().any(has_begun), "what was taken back never begins");
}

#[test]
fn a_run_is_taken_back_from_a_frozen_worker_too() {
    let mut setup = Setup::new(1);
    let first = setup.append(&["spin", "1000000"]);
    let behind: Vec<Job> = (0..10).map(|_| setup.append(&["exit", "4"])).collect();
    wait_until(|| has_begun(&first));
    setup.pool.freeze();
    assert_eq!(setup.pool.take_back(0).len(), 10);
    // Given while frozen: it begins after the thaw, after the one that had begun.
    let late = setup.append(&["exit", "7"]);
    assert!(setup.pool.stop(0));
    assert_eq!(setup.next().1.outcome, Outcome::Stopped);
    assert!(!has_begun(&late));
    setup.pool.thaw();
    setup.expect(&[exit(7)]);
    assert!(!behind.iter().any(has_begun));
}

#[test]
fn a_worker_that_dies_in_a_run_takes_one_task_with_it() {
    let mut setup = Setup::new(1);
    setup.append(&["exit", "1"]);
    let long = setup.append(&["spin", "1000000"]);
    setup.append(&["exit", "2"]);
    setup.append(&["exit", "3"]);
    wait_until(|| has_begun(&long));
    kill(setup.only_pid());
    assert_eq!(setup.next().1.outcome, exit(1));
    let outcome = setup.next().1.outcome;
    assert!(matches!(&outcome, Outcome::WorkerDied { reason } if reason.contains("signal 9")), "{outcome:?}");
    setup.expect(&[exit(2), exit(3)]);
    // So does a task over its time limit.
    let mut slow = setup.job("probe", &["spin", "1000000"]);
    slow.time_limit = Some(Duration::from_millis(100));
    setup.pool.append(0, &slow).unwrap();
    setup.append(&["exit", "4"]);
    setup.expect(&[Outcome::TimedOut { limit: Duration::from_millis(100) }, exit(4)]);
}

#[test]
fn a_new_worker_is_greeted_even_if_its_run_is_taken_back() {
    let mut setup = Setup::new(1);
    // At every moment of the worker's start.
    for pause_us in (0..20).map(|step| step * 1000) {
        let job = setup.append(&["exit", "4"]);
        std::thread::sleep(Duration::from_micros(pause_us));
        let taken_back = setup.pool.take_back(0).len();
        setup.append(&["exit", "5"]);
        if taken_back == 0 {
            assert_eq!(setup.next().1.outcome, exit(4));
        }
        setup.expect(&[exit(5)]);
        assert_eq!(has_begun(&job), taken_back == 0);
        kill(setup.only_pid());
        wait_until(|| setup.pool.worker_pids().first().is_none_or(|pid| is_dead(*pid)));
    }
}

/// Each job ends once, or is taken back and never begins, whatever happens to the worker.
#[test]
fn every_job_of_a_run_is_accounted_for_once() {
    let mut setup = Setup::new(1);
    let (mut given, mut ended): (Vec<(u64, Job)>, usize) = (Vec::new(), 0);
    let mut back_and_gone = Vec::new();
    // A fixed random walk over possible events (a linear congruential generator).
    let mut state = 3_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..150 {
        match draw(8) {
            0..4 => {
                for _ in 0..draw(6) {
                    let job = setup.append(&["exit", "0"]);
                    given.push((setup.last, job));
                }
            }
            4 => {
                let numbers = setup.pool.take_back(0);
                let (back, kept): (Vec<_>, Vec<_>) =
                    given.into_iter().partition(|(number, _)| numbers.contains(number));
                assert_eq!(back.len(), numbers.len());
                back_and_gone.extend(back.into_iter().map(|(_, job)| job));
                given = kept;
            }
            5 => setup.pool.freeze(),
            6 => setup.pool.thaw(),
            _ => {
                setup.pool.stop(0);
            }
        }
        while setup.events.try_recv().is_ok() {
            ended += 1;
        }
        assert!(ended <= given.len());
    }
    setup.pool.thaw();
    while ended < given.len() {
        setup.next();
        ended += 1;
    }
    assert!(setup.pool.take_back(0).is_empty());
    assert!(setup.events.try_recv().is_err());
    assert!(!back_and_gone.iter().any(has_begun), "taken back and begun");
    assert!(!back_and_gone.is_empty());
    assert!(given.len() > 20, "{}", given.len());
}
