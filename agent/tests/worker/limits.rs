//! Limits of memory, output, disk and time, and tasks that stand still.

use super::*;

#[test]
fn the_memory_limit_holds_and_is_named() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.probe(&["allocate", "50"]).1, "got 50 MiB\n");
    let outcome = setup.outcome_of(&["allocate", "80"]);
    assert!(matches!(&outcome, Outcome::Trapped { message } if message.contains("limit of 64 MiB")), "{outcome:?}");
    // A limit below the program's initial memory.
    let mut job = setup.job("probe", &["exit", "0"]);
    job.memory_bytes = mib(1);
    let outcome = setup.run(&job).outcome;
    assert!(matches!(&outcome, Outcome::Trapped { message } if message.contains("limit of 1 MiB")), "{outcome:?}");
}

#[test]
fn the_output_limit_holds_and_is_reported() {
    let mut setup = Setup::new(1);
    let mut job = setup.job("probe", &["flood", "100000"]);
    job.output_bytes = 50_500;
    let ended = setup.run(&job);
    let (code, stdout, stderr) = exited(&job, &ended);
    assert_eq!((code, stdout.len(), stderr.as_str()), (4, 50_500, "50000 bytes, then File too large\n"));
    assert!(ended.output_truncated);
}

#[test]
fn the_limit_of_disk_holds_for_one_file_for_many_and_while_a_task_runs() {
    let mut setup = Setup::new(1);
    let mut fill = |path: &str, files: &str, bytes: &str, pause_ms: &str| {
        let mut job = setup.job("probe", &["fill", path, files, bytes, pause_ms]);
        job.checkpoint = Some(setup.dir.path().join(format!("out/kept-{}", setup.tasks)));
        (setup.run(&job), job)
    };
    let over = Outcome::OverDisk { limit_bytes: mib(1) };
    assert_eq!(fill("file", "100", "6000", "0").0.outcome, exit(0), "all of it is within the limit");
    let (ended, job) = fill("file", "1", "2000000", "0");
    assert_eq!(ended.outcome, over);
    let (said, _) = written(&job, &ended);
    assert!(said.starts_with("0 files and 1048577 bytes, then File too large"), "the system refused: {said}");
    assert_eq!(fill("file", "300", "0", "0").0.outcome, over, "empty ones count");
    assert_eq!(fill("checkpoint/file", "1", "2000000", "0").0.outcome, over);
    // A checkpoint and a file that are each within it.
    let mut job = setup.job("probe", &["fill", "file", "1", "600000", "0"]);
    job.checkpoint = Some(setup.dir.path().join("out/kept"));
    fs::create_dir(setup.dir.path().join("out/kept")).unwrap();
    fs::write(setup.dir.path().join("out/kept/before"), vec![1; 600_000]).unwrap();
    assert_eq!(setup.run(&job).outcome, over);
    // Many files, each small, in a task that would go on.
    let pause_ms = (2 * PATIENCE).as_millis().to_string();
    let job = setup.job("probe", &["fill", "file", "20", "100000", &pause_ms]);
    assert_eq!(setup.run(&job).outcome, over);
    assert_eq!(setup.outcome_of(&["fill", "file", "1", "900000", "0"]), exit(0), "the slot has a new worker");
}

/// Longer than a test waits: a task that gets that far was not ended.
fn without_end() -> String {
    (2 * PATIENCE).as_millis().to_string()
}

fn trapped(outcome: &Outcome, text: &str) {
    assert!(matches!(outcome, Outcome::Trapped { message } if message.contains(text)), "{text}: {outcome:?}");
}

#[test]
fn removed_files_held_open_count_while_a_task_runs() {
    let mut setup = Setup::new(1);
    let job = setup.job("hoard", &["hold", "10", "500000", &without_end()]);
    assert_eq!(setup.run(&job).outcome, Outcome::OverDisk { limit_bytes: mib(1) });
    // Within the limit, and removed with the task.
    let job = setup.job("hoard", &["hold", "1", "900000", "2500"]);
    assert_eq!(setup.run(&job).outcome, exit(0));
}

/// The limit of number is tested where files are made more quickly (`worker/disk`).
#[test]
fn depth_has_a_limit_while_a_task_runs_and_at_its_end() {
    let mut setup = Setup::new(1);
    for pause in [without_end(), "0".to_owned()] {
        let job = Job { disk_bytes: mib(4096), ..setup.job("hoard", &["nest", "1500", &pause]) };
        trapped(&setup.run(&job).outcome, "too deep");
        removal::remove(&job.directory).unwrap();
        assert!(!job.directory.exists());
    }
    let job = setup.job("hoard", &["nest", "60", "0"]);
    assert_eq!(setup.run(&job).outcome, exit(0));
}

/// More than a worker may have open, which the agent checks every second.
#[test]
fn the_number_of_open_files_is_limited() {
    let mut setup = Setup::new(1);
    let job = Job { disk_bytes: mib(4096), ..setup.job("hoard", &["hold", "1100", "0", "0"]) };
    let ended = setup.run(&job);
    let (code, _, stderr) = exited(&job, &ended);
    assert_eq!((code, stderr.as_str()), (4, "holding\nheld: I/O error\n"));
    assert_eq!(setup.outcome_of(&["exit", "3"]), exit(3), "the slot goes on");
}

#[test]
fn a_frozen_tasks_disk_use_counts_after_the_thaw() {
    let mut setup = Setup::new(1);
    setup.pool.freeze();
    let pause_ms = (2 * PATIENCE).as_millis().to_string();
    let job = setup.job("probe", &["fill", "file", "20", "100000", &pause_ms]);
    setup.pool.start(0, &job).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    setup.pool.thaw();
    assert_eq!(setup.next().1.outcome, Outcome::OverDisk { limit_bytes: mib(1) });
}

#[test]
fn the_time_limit_holds_for_work_and_for_sleep() {
    let mut setup = Setup::new(1);
    for args in [["spin", "1000000"], ["sleep", "1000000"]] {
        let mut job = setup.job("probe", &args);
        let limit = Duration::from_millis(300);
        job.time_limit = Some(limit);
        let ended = setup.run(&job);
        assert_eq!(ended.outcome, Outcome::TimedOut { limit });
        assert!(ended.wall >= limit && ended.wall < PATIENCE, "{ended:?}");
    }
    assert_eq!(setup.outcome_of(&["sleep", "1"]), exit(0), "the slot has a new worker");
}

#[test]
fn frozen_tasks_stand_still_and_their_time_does_not_count() {
    let mut setup = Setup::new(2);
    // Long compared with the start on a loaded machine, where workers come last.
    let limit = Duration::from_secs(15);
    for slot in 0..2 {
        let mut job = setup.job("probe", &["sleep", "1000"]);
        job.time_limit = Some(limit);
        setup.pool.start(slot, &job).unwrap();
        // Before that the program is being loaded, which is not part of the run.
        wait_until(|| has_begun(&job));
    }
    let pids = setup.pool.worker_pids();
    setup.pool.freeze();
    setup.pool.freeze();
    wait_until(|| pids.iter().all(|pid| state_of(*pid) == Some('T')));
    let ticks: Vec<u64> = pids.iter().map(|pid| ticks_of(*pid)).collect();
    std::thread::sleep(limit + Duration::from_millis(300));
    assert_eq!(ticks, pids.iter().map(|pid| ticks_of(*pid)).collect::<Vec<_>>());
    assert!(setup.events.try_recv().is_err());
    setup.pool.thaw();
    setup.pool.thaw();
    for _ in 0..2 {
        let (_, ended) = setup.next();
        assert_eq!(ended.outcome, exit(0));
        assert!(ended.wall < limit, "{ended:?}");
    }
    assert_eq!(setup.pool.worker_pids(), pids);
}

#[test]
fn the_time_limit_holds_after_a_thaw() {
    let mut setup = Setup::new(1);
    let mut job = setup.job("probe", &["spin", "1000000"]);
    let limit = Duration::from_millis(400);
    job.time_limit = Some(limit);
    setup.pool.start(0, &job).unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(50));
        setup.pool.freeze();
        std::thread::sleep(Duration::from_millis(300));
        setup.pool.thaw();
    }
    let ended = setup.next().1;
    assert_eq!(ended.outcome, Outcome::TimedOut { limit });
    assert!(ended.wall >= limit && ended.wall < PATIENCE, "{ended:?}");
}

#[test]
fn a_task_started_frozen_begins_after_the_thaw() {
    let mut setup = Setup::new(2);
    setup.pool.freeze();
    let job = setup.job("probe", &["exit", "5"]);
    setup.pool.start(0, &job).unwrap();
    let other = setup.job("probe", &["exit", "6"]);
    setup.pool.start(1, &other).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(setup.pool.worker_pids(), [0_u32; 0]);
    assert!(setup.pool.stop(1), "what has not begun can be stopped too");
    assert_eq!(setup.next().1.outcome, Outcome::Stopped);
    setup.pool.thaw();
    assert_eq!(setup.next().1.outcome, exit(5));
    // With a worker that exists already.
    setup.pool.freeze();
    let job = setup.job("probe", &["exit", "7"]);
    setup.pool.start(0, &job).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(setup.events.try_recv().is_err());
    setup.pool.thaw();
    assert_eq!(setup.next().1.outcome, exit(7));
}

#[test]
fn slots_freeze_singly() {
    let mut setup = Setup::new(2);
    let long = setup.job("probe", &["sleep", "100"]);
    setup.pool.start(0, &long).unwrap();
    let held = setup.only_pid();
    assert!(setup.pool.freeze_slot(0));
    assert!(!setup.pool.freeze_slot(2));
    let short = setup.job("probe", &["sleep", "200"]);
    setup.pool.start(1, &short).unwrap();
    let (slot, ended) = setup.next();
    assert_eq!((slot, ended.outcome), (1, exit(0)));
    // Thawing all leaves slots frozen that were frozen singly, and the other way round.
    setup.pool.freeze();
    setup.pool.thaw();
    assert_eq!(state_of(held), Some('T'));
    setup.pool.freeze();
    assert!(setup.pool.thaw_slot(0));
    assert_eq!(state_of(held), Some('T'));
    setup.pool.thaw();
    assert_eq!(setup.next().1.outcome, exit(0));
}

#[test]
fn output_survives_a_worker_killed_a_moment_later() {
    let mut setup = Setup::new(1);
    setup.warm();
    // An earlier task of the same worker wrote something, too.
    assert_eq!(setup.probe(&["hello"]).2, "and to stderr\n");
    let mut job = setup.job("probe", &["steps", "1000", "20"]);
    job.checkpoint = Some(setup.dir.path().join("out/steps"));
    job.time_limit = Some(Duration::from_millis(300));
    let ended = setup.run(&job);
    assert!(matches!(ended.outcome, Outcome::TimedOut { .. }), "{ended:?}");
    assert_eq!(written(&job, &ended).1, "from 0 on\n");
    assert!(!job.stderr_path().exists(), "it is little");
    let mut silent = setup.job("probe", &["sleep", "60000"]);
    silent.time_limit = Some(Duration::from_millis(300));
    let ended = setup.run(&silent);
    assert_eq!(written(&silent, &ended), (String::new(), String::new()), "nothing of another task");
}
