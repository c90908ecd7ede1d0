//! Worker processes as the agent uses them: real processes, real programs (`tasks/probe`, `tasks/tile`).

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use idlewood::tiles::{Canvas, Picture};
use idlewood::worker::{
    Input, Job, JobError, Outcome, Pool, PoolConfig, Reach, StartError, Stdin, WorkerEvent, lay_out,
};
use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;

/// Longer than anything here takes, also on a loaded machine with an unoptimised build.
const PATIENCE: Duration = Duration::from_secs(60);

/// Room for the ends of jobs that a slot is given ahead.
const EVENTS_AHEAD: usize = 256;

const fn mib(n: u64) -> u64 {
    n << 20
}

/// A pool in a directory of its own.
struct Setup {
    dir: tempfile::TempDir,
    pool: Pool,
    events: mpsc::Receiver<WorkerEvent>,
    tasks: usize,
    /// Number of the last job appended.
    last: u64,
    /// Of all its jobs.
    reach: Arc<Reach>,
}

/// A worker reads in `in`, and writes in `out`.
fn reach(dir: &Path) -> Arc<Reach> {
    fs::create_dir_all(dir.join("in")).unwrap();
    Arc::new(Reach { readable: vec![dir.join("in")], writable: vec![dir.join("out")] })
}

/// What became of a task.
#[derive(Debug)]
struct Ended {
    outcome: Outcome,
    wall: Duration,
    cpu: Duration,
    compile: Duration,
    output_truncated: bool,
}

fn config(dir: &Path, command: Vec<OsString>, slots: usize, events: mpsc::Sender<WorkerEvent>) -> PoolConfig {
    PoolConfig { command, slots, cache_dir: dir.join("cache"), strict: true, events }
}

impl Setup {
    fn new(slots: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Setup::in_dir(slots, dir)
    }

    fn in_dir(slots: usize, dir: tempfile::TempDir) -> Self {
        let (sender, events) = mpsc::channel(slots + EVENTS_AHEAD);
        let command = vec![OsString::from(env!("CARGO_BIN_EXE_idlewood")), OsString::from("worker")];
        let pool = Pool::new(config(dir.path(), command, slots, sender)).unwrap();
        let reach = reach(dir.path());
        Setup { dir, pool, events, tasks: 0, last: 0, reach }
    }

    /// A job for the program of that name in `tasks`, with an empty directory.
    fn job(&mut self, program: &str, args: &[&str]) -> Job {
        let path = tasks_dir().join(program).join(format!("{program}.wasm"));
        self.job_for_file(&path, args)
    }

    fn job_for_file(&mut self, program: &Path, args: &[&str]) -> Job {
        self.tasks += 1;
        let directory = self.dir.path().join(format!("out/task-{}", self.tasks));
        fs::create_dir_all(&directory).unwrap();
        Job {
            program: program.to_owned(),
            program_hash: *blake3::hash(&fs::read(program).unwrap()).as_bytes(),
            args: std::iter::once(&"program").chain(args).map(|arg| (*arg).to_owned()).collect(),
            env: Vec::new(),
            stdin: Stdin::Empty,
            inputs: None,
            reach: self.reach.clone(),
            directory,
            checkpoint: None,
            memory_bytes: mib(64),
            fixed: None,
            output_bytes: mib(1),
            disk_bytes: mib(1),
            time_limit: Some(PATIENCE),
        }
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join("in").join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn next(&mut self) -> (usize, Ended) {
        let begin = Instant::now();
        loop {
            match self.events.try_recv() {
                Ok(WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated, .. }) => {
                    return (slot, Ended { outcome, wall, cpu, compile, output_truncated });
                }
                Err(mpsc::error::TryRecvError::Empty) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("no event: {error}"),
            }
        }
    }

    fn run(&mut self, job: &Job) -> Ended {
        self.pool.start(0, job).unwrap();
        let (slot, ended) = self.next();
        assert_eq!(slot, 0);
        ended
    }

    /// Runs `probe` and expects it to end by itself: exit code, stdout, stderr.
    fn probe(&mut self, args: &[&str]) -> (u8, String, String) {
        let job = self.job("probe", args);
        exited(&job, &self.run(&job))
    }

    /// The worker that compiles is over: from now on there are such that run only.
    fn warm(&mut self) {
        for program in ["noop", "probe"] {
            let job = self.job(program, &["exit", "0"]);
            self.run(&job);
        }
    }

    fn outcome_of(&mut self, args: &[&str]) -> Outcome {
        let job = self.job("probe", args);
        self.run(&job).outcome
    }

    fn only_pid(&self) -> u32 {
        let mut pid = None;
        wait_until(|| {
            pid = self.pool.worker_pids().first().copied();
            pid.is_some()
        });
        pid.unwrap()
    }
}

fn tasks_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tasks")
}

fn exited(job: &Job, ended: &Ended) -> (u8, String, String) {
    let Outcome::Exited { code } = ended.outcome else { panic!("{:?}", ended.outcome) };
    // There is none when nothing was written.
    let read = |path: PathBuf| if path.exists() { fs::read_to_string(path).unwrap() } else { String::new() };
    (code, read(job.stdout_path()), read(job.stderr_path()))
}

fn exit(code: u8) -> Outcome {
    Outcome::Exited { code }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The state letter of a process; `None` when there is none.
fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Gone, or dead and waiting for its parent to notice.
fn is_dead(pid: u32) -> bool {
    matches!(state_of(pid), None | Some('Z' | 'X'))
}

fn ticks_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn kill(pid: u32) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_task_sees_what_it_is_given_and_nothing_else() {
    let mut setup = Setup::new(1);
    let mut job = setup.job("probe", &["hello", "two words", "ä"]);
    job.args[0] = "greeter".to_owned();
    job.env = vec![("IDLEWOOD_TASK_INDEX".to_owned(), "7".to_owned()), ("EMPTY".to_owned(), String::new())];
    let ended = setup.run(&job);
    let (code, stdout, stderr) = exited(&job, &ended);
    let expected = "hello from greeter\nargument hello\nargument two words\nargument ä\n\
                    environment IDLEWOOD_TASK_INDEX=7\nenvironment EMPTY=\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, expected, "and to stderr\n"));
    assert!(!ended.output_truncated);
    assert!(ended.compile > Duration::ZERO && ended.cpu > Duration::ZERO && ended.wall > Duration::ZERO, "{ended:?}");
}

#[test]
fn what_is_fixed_is_the_same_in_every_run_and_goes_on() {
    let says = |fixed| {
        // A worker of its own, as on another machine.
        let mut setup = Setup::new(1);
        let job = Job { fixed, ..setup.job("chance", &[]) };
        let ended = setup.run(&job);
        let (code, stdout, _) = exited(&job, &ended);
        assert_eq!(code, 0, "{stdout}");
        stdout
    };
    assert_ne!(says(None), says(None), "the host's differ");
    let fixed = says(Some(7));
    assert_eq!(fixed, says(Some(7)));
    let words: Vec<&str> = fixed.split_whitespace().collect();
    assert!(words[0].starts_with("946684800"), "the beginning of 2000: {fixed}");
    assert_ne!(words[3], says(Some(8)).split_whitespace().last().unwrap(), "{fixed}");
}

#[test]
fn exit_codes_come_back() {
    let mut setup = Setup::new(1);
    for (given, code) in [("0", 0), ("1", 1), ("125", 125), ("126", 126), ("255", 255), ("-1", 255), ("256", 0)] {
        assert_eq!(setup.outcome_of(&["exit", given]), exit(code), "{given}");
    }
}

#[test]
fn standard_input_comes_from_bytes_or_a_file() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.probe(&["cat"]).1, "");
    let large = "0123456789".repeat(30_000);
    let from_file = Stdin::File(setup.file("stdin", large.as_bytes()));
    for stdin in [Stdin::Bytes(large.clone().into_bytes()), from_file] {
        let mut job = setup.job("probe", &["cat"]);
        job.stdin = stdin;
        let ended = setup.run(&job);
        assert!(exited(&job, &ended).1 == large);
    }
}

#[test]
fn inputs_can_be_read_and_nothing_more() {
    let mut setup = Setup::new(1);
    let blob = setup.file("blob", b"precious");
    let with_inputs = |setup: &mut Setup, args: &[&str]| {
        let mut job = setup.job("probe", args);
        let inputs = ["data.txt", "deep/er/data.txt"].map(|name| Input { name: name.to_owned(), path: blob.clone() });
        let directory = setup.dir.path().join(format!("in/{}", setup.tasks));
        lay_out(&directory, &inputs).unwrap();
        job.inputs = Some(directory);
        let ended = setup.run(&job);
        exited(&job, &ended)
    };
    for path in ["inputs/data.txt", "inputs/./deep/../data.txt", "inputs/deep/er/data.txt", "/inputs/data.txt"] {
        assert_eq!(with_inputs(&mut setup, &["cat", path]).1, "precious", "{path}");
    }
    assert_eq!(with_inputs(&mut setup, &["list", "inputs/deep/er"]).1, "inputs/deep/er/data.txt\n");
    assert_eq!(with_inputs(&mut setup, &["list", "."]).1, "", "the inputs are not in the working directory");

    let (_, attempts, _) = with_inputs(&mut setup, &["meddle", "data.txt"]);
    assert_eq!(attempts.lines().count(), 10, "{attempts}");
    assert!(!attempts.contains("done"), "{attempts}");
    assert_eq!(fs::read(&blob).unwrap(), b"precious");
}

#[test]
fn a_missing_input_or_program_is_this_machine_s_fault() {
    let mut setup = Setup::new(1);
    let mut job = setup.job("probe", &["exit", "0"]);
    job.inputs = Some(setup.dir.path().join("in/missing"));
    let outcome = setup.run(&job).outcome;
    assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("missing")), "{outcome:?}");

    let mut job = setup.job("noop", &[]);
    job.program = setup.dir.path().join("absent.wasm");
    let outcome = setup.run(&job).outcome;
    assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("absent.wasm")), "{outcome:?}");

    let mut job = setup.job("noop", &[]);
    job.program_hash[0] ^= 1;
    let outcome = setup.run(&job).outcome;
    assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("damaged")), "{outcome:?}");
    assert_eq!(setup.outcome_of(&["exit", "3"]), exit(3), "the worker goes on");
}

#[test]
fn outputs_and_checkpoints_stay_where_they_belong() {
    let mut setup = Setup::new(1);
    let job = setup.job("probe", &["write", "result.txt", "42"]);
    assert_eq!(setup.run(&job).outcome, exit(0));
    assert_eq!(fs::read(job.work_dir().join("result.txt")).unwrap(), b"42");
    assert_eq!(setup.probe(&["cat", "result.txt"]).0, 1, "the next task has a directory of its own");

    let checkpoint = setup.dir.path().join("out/deep/kept");
    for expected in ["x", "xx", "xxx"] {
        let mut job = setup.job("probe", &["append", "checkpoint/progress", "x"]);
        job.checkpoint = Some(checkpoint.clone());
        let ended = setup.run(&job);
        assert_eq!(exited(&job, &ended).1, expected);
        assert!(!job.work_dir().join("checkpoint").exists());
    }
    assert_eq!(setup.probe(&["append", "checkpoint/progress", "x"]).0, 1, "no checkpoint directory unless given");
    // Two attempts at a task do not write to the same.
    let mut job = setup.job("probe", &["append", "checkpoint/progress", "x"]);
    job.checkpoint = Some(checkpoint.clone());
    let other = fs::File::open(&checkpoint).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(matches!(setup.run(&job).outcome, Outcome::CouldNotStart { .. }));
    drop(other);
    fs::remove_file(checkpoint.join("progress")).unwrap();
    let mut job = setup.job("probe", &["list", "checkpoint"]);
    job.checkpoint = Some(checkpoint.clone());
    assert_eq!(setup.run(&job).outcome, exit(0));
    assert!(!checkpoint.exists(), "an empty one is of no use");
    let mut job = setup.job("noop", &[]);
    job.checkpoint = Some(checkpoint.clone());
    assert_eq!(setup.run(&job).outcome, exit(0));
    assert!(!checkpoint.exists(), "a program without files costs none");
}

#[test]
fn one_worker_runs_many_tasks_and_compiles_once() {
    let mut setup = Setup::new(1);
    let first = setup.job("probe", &["exit", "0"]);
    let first = setup.run(&first);
    let pid = setup.only_pid();
    for round in 0..200_u8 {
        let job = setup.job("probe", &["exit", "9"]);
        let ended = setup.run(&job);
        assert_eq!((ended.outcome, ended.compile), (exit(9), Duration::ZERO), "round {round}");
    }
    assert_eq!(setup.pool.worker_pids(), [pid]);

    // A new worker finds the compiled program on disk.
    kill(pid);
    wait_until(|| is_dead(pid));
    let again = setup.job("probe", &["exit", "0"]);
    let again = setup.run(&again);
    assert_eq!(again.outcome, exit(0), "a worker that died idle takes no task with it");
    assert_ne!(setup.only_pid(), pid);
    assert!(again.compile < first.compile / 2, "loaded in {:?}, compiled in {:?}", again.compile, first.compile);
}

#[test]
fn faults_are_named() {
    let mut setup = Setup::new(1);
    for (args, words) in [
        (&["abort"][..], "aborted itself"),
        (&["divide", "0"], "divided an integer by zero"),
        (&["wild"], "outside of what it has"),
        (&["recurse"], "call"),
    ] {
        let outcome = setup.outcome_of(args);
        assert!(matches!(&outcome, Outcome::Trapped { message } if message.contains(words)), "{args:?}: {outcome:?}");
    }
    assert_eq!(setup.outcome_of(&["exit", "3"]), exit(3), "the worker survived");
}

#[test]
fn the_memory_limit_holds_and_is_named() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.probe(&["allocate", "50"]).1, "got 50 MiB\n");
    let outcome = setup.outcome_of(&["allocate", "80"]);
    assert!(matches!(&outcome, Outcome::Trapped { message } if message.contains("limit of 64 MiB")), "{outcome:?}");
    // A limit below what the program begins with.
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
    let said = fs::read_to_string(job.stdout_path()).unwrap();
    assert!(said.starts_with("0 files and 1048577 bytes, then File too large"), "the system refused: {said}");
    assert_eq!(fill("file", "300", "0", "0").0.outcome, over, "empty ones count");
    assert_eq!(fill("checkpoint/file", "1", "2000000", "0").0.outcome, over);
    // A checkpoint and a file that are within it alone.
    let mut job = setup.job("probe", &["fill", "file", "1", "600000", "0"]);
    job.checkpoint = Some(setup.dir.path().join("out/kept"));
    fs::create_dir(setup.dir.path().join("out/kept")).unwrap();
    fs::write(setup.dir.path().join("out/kept/before"), vec![1; 600_000]).unwrap();
    assert_eq!(setup.run(&job).outcome, over);
    // Many files of which none is too large, in a task that would go on.
    let pause_ms = (2 * PATIENCE).as_millis().to_string();
    let job = setup.job("probe", &["fill", "file", "20", "100000", &pause_ms]);
    assert_eq!(setup.run(&job).outcome, over);
    assert_eq!(setup.outcome_of(&["fill", "file", "1", "900000", "0"]), exit(0), "the slot has a new worker");
}

#[test]
fn a_frozen_task_is_not_looked_at_and_its_disk_counts_when_it_goes_on() {
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
    // Long against what starting takes on a loaded machine, where workers come last.
    let limit = Duration::from_secs(15);
    for slot in 0..2 {
        let mut job = setup.job("probe", &["sleep", "1000"]);
        job.time_limit = Some(limit);
        setup.pool.start(slot, &job).unwrap();
        // Before that the program is being loaded, which is no part of the run.
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
fn what_is_started_frozen_begins_after_the_thaw() {
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
    // With a worker that is there already.
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
    // Thawing all leaves alone what is frozen singly, and the other way round.
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

/// Whatever a task could make of a defect of the runtime, its process is behind the second wall by then.
#[test]
fn a_worker_that_runs_a_task_is_confined() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    let status = fs::read_to_string(format!("/proc/{}/status", setup.only_pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!([field("NoNewPrivs:"), field("Seccomp:"), field("Seccomp_filters:")], [Some("1"), Some("2"), Some("2")]);
}

/// What is not of its bag is no more readable to a worker than the owner's letters, though a job speaks of it.
#[test]
fn files_elsewhere_are_closed_to_a_worker() {
    let mut setup = Setup::new(1);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("letter"), "dear").unwrap();
    for change in [
        (|job, path| job.checkpoint = Some(path)) as fn(&mut Job, PathBuf),
        |job, path| job.directory = path,
        |job, path| job.stdin = Stdin::File(path.join("letter")),
    ] {
        let mut job = setup.job("probe", &["exit", "0"]);
        change(&mut job, elsewhere.path().to_owned());
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("denied")), "{outcome:?}");
    }
    let mut job = setup.job("probe", &["cat", "inputs/letter"]);
    job.inputs = Some(elsewhere.path().to_owned());
    let ended = setup.run(&job);
    assert_eq!(exited(&job, &ended).1, "");
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0), "the slot goes on");
}

/// Neither the host's files nor what the system says of processes: a program has the directories that it was given.
#[test]
fn a_program_reads_nothing_of_the_host() {
    let mut setup = Setup::new(1);
    for path in ["/proc/self/environ", "/proc/1/status", "/etc/passwd", "../stdout", "../../in", "./../../cache"] {
        for verb in ["cat", "list"] {
            let (code, stdout, stderr) = setup.probe(&[verb, path]);
            assert_eq!(code, 1, "{verb} {path}: {stdout}");
            assert!(stdout.lines().chain(stderr.lines()).count() == 1, "{verb} {path}: {stdout}{stderr}");
        }
    }
    // A link may be made and leads nowhere: `meddle` tries, in `inputs_can_be_read_and_nothing_more`.
}

/// There is no function that opens a socket, and a program that wants one is refused.
#[test]
fn a_program_that_wants_the_network_is_refused() {
    let mut setup = Setup::new(1);
    for wanted in ["sock_open", "sock_connect", "sock_bind"] {
        let name = [&[u8::try_from(wanted.len()).unwrap()][..], wanted.as_bytes()].concat();
        let import = [&b"\x01\x16wasi_snapshot_preview1"[..], &name, b"\x00\x00"].concat();
        let mut module = b"\0asm\x01\0\0\0\x01\x04\x01\x60\x00\x00\x02".to_vec();
        module.push(u8::try_from(import.len()).unwrap());
        module.extend(import);
        module.extend(
            b"\x03\x02\x01\x00\x05\x03\x01\x00\x01\x07\x13\x02\x06_start\x00\x01\x06memory\x02\x00\x0a\x04\x01\x02\x00\x0b",
        );
        let program = setup.file("network.wasm", &module);
        let job = setup.job_for_file(&program, &[]);
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::Invalid { message } if message.contains(wanted)), "{wanted}: {outcome:?}");
    }
}

/// What a worker wrote into a bag's directories, or made of itself, no task of another bag meets.
#[test]
fn a_worker_is_for_one_bag_and_one_program() {
    let mut setup = Setup::new(1);
    let mine = setup.job("probe", &["write", "result.txt", "42"]);
    assert_eq!(setup.run(&mine).outcome, exit(0));
    let pid = setup.only_pid();
    let others = Reach { readable: Vec::new(), writable: vec![setup.dir.path().join("other")] };
    let mut other = setup.job("probe", &["exit", "3"]);
    (other.directory, other.reach) = (setup.dir.path().join("other/task"), Arc::new(others));
    assert_eq!(setup.run(&other).outcome, exit(3));
    let second = setup.only_pid();
    assert_ne!(second, pid);
    assert!(state_of(pid).is_none(), "reaped");
    // It reaches nothing of the first.
    let mut curious = setup.job("probe", &["exit", "0"]);
    curious.reach = other.reach.clone();
    let outcome = setup.run(&curious).outcome;
    assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("denied")), "{outcome:?}");
    let mut noop = setup.job("noop", &[]);
    (noop.directory, noop.reach) = (setup.dir.path().join("other/noop"), other.reach.clone());
    assert_eq!(setup.run(&noop).outcome, exit(0));
    assert_ne!(setup.only_pid(), second);
    // In one run, too: each in its turn, and all of them end.
    let mut number = 0;
    for reach in [&other.reach, &setup.reach.clone(), &other.reach] {
        for _ in 0..3 {
            let mut job = setup.job("probe", &["exit", &number.to_string()]);
            (job.directory, job.reach) = (reach.writable[0].join(format!("run-{number}")), Arc::clone(reach));
            setup.pool.append(0, &job).unwrap();
            number += 1;
        }
    }
    setup.expect(&(0..9).map(exit).collect::<Vec<_>>());
}

/// Machine code that a worker could write is machine code that others would run.
#[test]
fn a_worker_cannot_reach_compiled_programs_but_its_own() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    let cache = setup.dir.path().join("cache");
    let files = |cache: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        fs::read_dir(cache)
            .unwrap()
            .map(|file| file.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    };
    let before = files(&cache);
    assert_eq!(before.len(), 1);
    for change in [(|job, cache| job.directory = cache) as fn(&mut Job, PathBuf), |job, cache| {
        job.checkpoint = Some(cache.join("checkpoint"))
    }] {
        let mut job = setup.job("probe", &["exit", "0"]);
        change(&mut job, cache.clone());
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::CouldNotStart { message } if message.contains("denied")), "{outcome:?}");
    }
    let mut job = setup.job("probe", &["list", "inputs"]);
    job.inputs = Some(cache.clone());
    let ended = setup.run(&job);
    assert_eq!(exited(&job, &ended).1, "inputs: Permission denied\n");
    assert_eq!(files(&cache), before);
}

/// A worker that was taken over, played by a shell script that can answer what it likes.
fn pool_of_liars(dir: &Path, script: &str) -> (Pool, mpsc::Receiver<WorkerEvent>) {
    let (sender, events) = mpsc::channel(8);
    let command = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
    (Pool::new(config(dir, command, 1, sender)).unwrap(), events)
}

/// A shell command that says something in a frame.
fn say(content: &[u8]) -> String {
    let mut frame = u32::try_from(content.len()).unwrap().to_le_bytes().to_vec();
    frame.extend(content);
    let octal: String = frame.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{octal}'; ")
}

/// The protocol knows one order of things, and whoever does not keep to it is no worker any more: it can neither begin anew,
/// and with it its time, nor end what it was not given, nor block the slot for others.
#[test]
fn a_worker_that_speaks_out_of_turn_is_ended_and_its_task_fails() {
    // `Ready { cpu: 0 s }`, and `Done(number, Report { end: Exited { code: 0 }, .. })`.
    let ready = say(b"\xa1\x65Ready\xa1\x63cpu\xa2\x64secs\x00\x65nanos\x00");
    let done = |number: u8| {
        let zero = b"\xa2\x64secs\x00\x65nanos\x00";
        let parts: [&[u8]; 13] = [
            b"\xa1\x64Done\x82",
            &[number],
            b"\xa6\x63end\xa1\x66Exited\xa1\x64code\x00\x64wall",
            zero,
            b"\x63cpu",
            zero,
            b"\x6aworker_cpu",
            zero,
            b"\x70output_truncated",
            b"\xf4",
            b"\x69untouched",
            b"\xf5",
            b"",
        ];
        say(&parts.concat())
    };
    let wait = "exec sleep 1000";
    let dir = tempfile::tempdir().unwrap();
    // The artefact is there, so that the liars are to run it.
    let mut setup = Setup::in_dir(1, dir);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    for (script, words) in [
        (format!("{ready}{ready}{wait}"), "out of turn"),
        (format!("{ready}{}{wait}", done(7)), "out of turn"),
        (format!("{}{wait}", done(0)), "out of turn"),
        (format!("{ready}{}{}{wait}", done(0), done(0)), "out of turn"),
        (format!("{ready}{}{wait}", say(b"\x65Begun")), "does not decode"),
        (format!("{ready}printf 'aaaaaaaa'; {wait}"), "frame"),
        (ready.clone(), "exit code 0"),
    ] {
        let (pool, mut events) = pool_of_liars(setup.dir.path(), &script);
        let (first, second) = (setup.job("probe", &["exit", "0"]), setup.job("probe", &["exit", "0"]));
        pool.append(0, &first).unwrap();
        pool.append(0, &second).unwrap();
        let mut outcomes = Vec::new();
        wait_until(|| {
            while let Ok(WorkerEvent::Ended { outcome, .. }) = events.try_recv() {
                outcomes.push(outcome);
            }
            outcomes.iter().any(|outcome| matches!(outcome, Outcome::WorkerDied { reason } if reason.contains(words)))
        });
        // And the slot goes on with what is next.
        wait_until(|| {
            while let Ok(WorkerEvent::Ended { outcome, .. }) = events.try_recv() {
                outcomes.push(outcome);
            }
            outcomes.len() == 2
        });
        pool.shutdown();
    }
}

/// A worker's stderr is nobody's terminal: it can neither write to it, nor fill the agent's memory, nor wait for it.
#[test]
fn what_a_worker_writes_to_stderr_is_bounded_and_waits_for_nobody() {
    let mut setup = Setup::new(1);
    let job = setup.job("probe", &["exit", "0"]);
    let (pool, mut events) =
        pool_of_liars(setup.dir.path(), "exec 1>&-; while :; do echo \"$0\x1b[2J0123456789\" >&2; done");
    pool.start(0, &job).unwrap();
    // Nobody waits for what it does not say.
    let mut outcome = None;
    wait_until(|| {
        outcome = events.try_recv().ok();
        outcome.is_some()
    });
    pool.shutdown();
    let (pool, mut events) = pool_of_liars(setup.dir.path(), "printf 'why\\033[2J' >&2; exit 3");
    pool.start(0, &job).unwrap();
    wait_until(|| {
        outcome = events.try_recv().ok();
        outcome.is_some()
    });
    let Some(WorkerEvent::Ended { outcome: Outcome::WorkerDied { reason }, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.ends_with("(exit code 3): why\\u{1b}[2J"), "{reason}");
    pool.shutdown();
}

#[test]
fn a_command_that_is_no_worker_is_reported() {
    for (command, words) in [("/bin/true", "exit code 0"), ("/bin/cat", "frame"), ("/nonexistent", "cannot start")] {
        let dir = tempfile::tempdir().unwrap();
        let (sender, events) = mpsc::channel(1);
        let command = vec![OsString::from(command)];
        let pool = Pool::new(config(dir.path(), command, 1, sender)).unwrap();
        let reach = reach(dir.path());
        let mut setup = Setup { dir, pool, events, tasks: 0, last: 0, reach };
        let outcome = setup.outcome_of(&["exit", "0"]);
        let (Outcome::WorkerDied { reason: said } | Outcome::CouldNotStart { message: said }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert!(said.contains(words), "{said}");
        wait_until(|| setup.pool.worker_pids().is_empty());
    }
}

#[test]
fn stop_ends_running_and_frozen_tasks_at_once() {
    let mut setup = Setup::new(1);
    setup.warm();
    for frozen in [false, true] {
        let job = setup.job("probe", &["spin", "1000000"]);
        setup.pool.start(0, &job).unwrap();
        let pid = setup.only_pid();
        wait_until(|| ticks_of(pid) > 10);
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

impl Setup {
    /// A job of the probe whose end tells which one it was.
    fn append(&mut self, args: &[&str]) -> Job {
        let job = self.job("probe", args);
        self.last = self.pool.append(0, &job).unwrap();
        job
    }

    fn expect(&mut self, outcomes: &[Outcome]) {
        for (position, outcome) in outcomes.iter().enumerate() {
            assert_eq!(self.next().1.outcome, *outcome, "event {position}");
        }
        assert!(self.events.try_recv().is_err(), "nothing else ended");
    }
}

/// Whether a task of a program that has directories began: the first thing that is done for it is to make them.
fn has_begun(job: &Job) -> bool {
    job.work_dir().exists()
}

#[test]
fn a_run_goes_in_order_and_what_has_not_begun_is_taken_back() {
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
    // Given while frozen: it begins after the thaw, behind what had begun.
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
    // Likewise one that is over its limit.
    let mut slow = setup.job("probe", &["spin", "1000000"]);
    slow.time_limit = Some(Duration::from_millis(100));
    setup.pool.append(0, &slow).unwrap();
    setup.append(&["exit", "4"]);
    setup.expect(&[Outcome::TimedOut { limit: Duration::from_millis(100) }, exit(4)]);
}

#[test]
fn a_new_worker_is_greeted_even_if_its_run_is_taken_back() {
    let mut setup = Setup::new(1);
    // At every moment of the worker's beginning.
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
    // A fixed walk over what can happen (a linear congruential generator).
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

#[test]
fn shutdown_leaves_nothing_behind() {
    for frozen in [false, true] {
        let mut setup = Setup::new(3);
        setup.warm();
        for slot in 0..2 {
            let job = setup.job("probe", &["spin", "1000000"]);
            setup.pool.start(slot, &job).unwrap();
        }
        let idle = setup.job("noop", &[]);
        setup.pool.start(2, &idle).unwrap();
        assert_eq!(setup.next().0, 2);
        wait_until(|| setup.pool.worker_pids().len() == 3);
        let pids = setup.pool.worker_pids();
        if frozen {
            setup.pool.freeze();
        }
        let Setup { dir: _dir, pool, mut events, .. } = setup;
        pool.shutdown();
        assert!(pids.iter().all(|pid| state_of(*pid).is_none()));
        for _ in 0..2 {
            let WorkerEvent::Ended { outcome, .. } = events.try_recv().unwrap();
            assert_eq!(outcome, Outcome::Stopped);
        }
        assert!(events.try_recv().is_err());
    }
}

#[test]
fn what_cannot_be_started_is_refused() {
    let mut setup = Setup::new(2);
    let good = setup.job("probe", &["sleep", "100"]);
    assert!(matches!(setup.pool.start(2, &good), Err(StartError::NoSlot { slot: 2, slots: 2 })));
    let mut bad = good.clone();
    bad.args.push("a\0b".to_owned());
    assert!(matches!(setup.pool.start(0, &bad), Err(StartError::Job(JobError::Text { .. }))));
    let mut large = good.clone();
    large.stdin = Stdin::Bytes(vec![0; 1 << 20]);
    assert!(matches!(setup.pool.start(0, &large), Err(StartError::TooLarge)));
    setup.pool.start(0, &good).unwrap();
    assert!(matches!(setup.pool.start(0, &good), Err(StartError::Busy { slot: 0 })));
    assert_eq!(setup.next().1.outcome, exit(0));

    // With the event of its end unread, there is no place for another.
    let (sender, _unread) = mpsc::channel(1);
    let command = vec![OsString::from(env!("CARGO_BIN_EXE_idlewood")), OsString::from("worker")];
    let pool = Pool::new(config(setup.dir.path(), command, 2, sender)).unwrap();
    let job = setup.job("probe", &["exit", "0"]);
    pool.start(0, &job).unwrap();
    assert!(matches!(pool.start(1, &job), Err(StartError::EventsNotRead)));
}

#[test]
fn invalid_programs_are_named() {
    let mut setup = Setup::new(1);
    // A module that imports `env::foo`, a function without arguments and results.
    let foreign = b"\0asm\x01\0\0\0\x01\x04\x01\x60\x00\x00\x02\x0b\x01\x03env\x03foo\x00\x00";
    // A `fd_write` of the wrong type: no check but linking finds that.
    let mistyped = b"\0asm\x01\0\0\0\x01\x04\x01\x60\x00\x00\
        \x02\x23\x01\x16wasi_snapshot_preview1\x08fd_write\x00\x00\
        \x03\x02\x01\x00\x05\x03\x01\x00\x01\x07\x13\x02\x06_start\x00\x01\x06memory\x02\x00\x0a\x04\x01\x02\x00\x0b";
    for (bytes, words) in [
        (&b"#!/bin/sh\n"[..], "not a WebAssembly module"),
        (&foreign[..], "imports `env::foo`"),
        (b"\0asm\x01\0\0\0", "`_start`"),
        (&mistyped[..], "fd_write"),
    ] {
        let program = setup.file("invalid.wasm", bytes);
        let job = setup.job_for_file(&program, &[]);
        let outcome = setup.run(&job).outcome;
        assert!(matches!(&outcome, Outcome::Invalid { message } if message.contains(words)), "{words}: {outcome:?}");
    }
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
}

#[test]
fn workers_run_behind_everything_else() {
    let mut setup = Setup::new(1);
    assert_eq!(setup.outcome_of(&["exit", "0"]), exit(0));
    let pid = setup.only_pid();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!((fields[2], fields[3]), (pid.to_string().as_str(), pid.to_string().as_str()), "own group and session");
    assert_eq!(fields[16], "19", "nice");
    assert_eq!(fields[17], "1", "threads");
    assert_eq!(fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "1000");
    if let Ok(autogroup) = fs::read_to_string(format!("/proc/{pid}/autogroup")) {
        assert!(autogroup.trim().ends_with("nice 19"), "{autogroup}");
    }
}

/// Not a test by itself: the agent that [`no_worker_outlives_its_agent`] kills.
#[test]
#[ignore = "run by another test"]
fn agent_to_be_killed() {
    let mut setup = Setup::new(2);
    setup.warm();
    let spinning = setup.job("probe", &["spin", "1000000"]);
    setup.pool.start(0, &spinning).unwrap();
    let idle = setup.job("noop", &[]);
    setup.pool.start(1, &idle).unwrap();
    assert_eq!(setup.next().0, 1);
    wait_until(|| setup.pool.worker_pids().len() == 2);
    if std::env::var_os("FROZEN").is_some() {
        setup.pool.freeze();
    }
    for pid in setup.pool.worker_pids() {
        println!("\nworker {pid}");
    }
    println!("\ndirectory {}", setup.dir.path().display());
    println!("\nready");
    std::thread::sleep(PATIENCE);
}

#[test]
fn no_worker_outlives_its_agent() {
    for frozen in [false, true] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "agent_to_be_killed", "--ignored", "--nocapture"]).stdout(Stdio::piped());
        if frozen {
            command.env("FROZEN", "1");
        }
        let mut agent = command.spawn().unwrap();
        let (mut pids, mut directory) = (Vec::new(), None);
        for line in BufReader::new(agent.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(pid) = line.strip_prefix("worker ") {
                pids.push(pid.parse::<u32>().unwrap());
            } else if let Some(path) = line.strip_prefix("directory ") {
                directory = Some(PathBuf::from(path));
            } else if line == "ready" {
                break;
            }
        }
        assert_eq!(pids.len(), 2);
        assert!(pids.iter().all(|pid| !is_dead(*pid)));
        agent.kill().unwrap();
        agent.wait().unwrap();
        wait_until(|| pids.iter().all(|pid| is_dead(*pid)));
        fs::remove_dir_all(directory.unwrap()).unwrap();
    }
}

#[test]
fn tiles_from_workers_equal_the_native_render() {
    let mut setup = Setup::new(1);
    for seed in 0..5 {
        // Small enough for an unoptimised native render; edge tiles are cut.
        let picture = Picture { width: 150, height: 100, tile: 64, samples: 2, ..Picture::demo(seed) };
        let mut canvas = Canvas::new(picture.clone()).unwrap();
        for index in 0..picture.tiles() {
            let mut job = setup.job("tile", &[]);
            job.args.extend(picture.args());
            job.env = vec![("IDLEWOOD_TASK_INDEX".to_owned(), index.to_string())];
            let ended = setup.run(&job);
            let (code, stdout, stderr) = exited(&job, &ended);
            assert_eq!((code, stderr.as_str()), (0, ""));
            assert!(stdout.starts_with(&format!("tile {index} of 6: ")) && stdout.lines().count() == 1, "{stdout}");
            let tile = fs::read(job.work_dir().join("tile.rgb")).unwrap();
            assert!(tile == picture.render(index).unwrap(), "seed {seed}, tile {index}");
            canvas.place(index, &tile).unwrap();
        }
        assert_eq!(canvas.missing().next(), None);
    }
}

#[test]
fn the_tile_program_refuses_nonsense() {
    let mut setup = Setup::new(1);
    for args in [
        &["--width", "0"][..],
        &["--index", "256"],
        &["--index"],
        &["--nonsense", "1"],
        &["--index", "0", "--x", "1e5"],
        &["--index", "0", "--x", "-"],
        &["--index", "0", "--x", "0.1234567890123456"],
        &[],
    ] {
        let job = setup.job("tile", args);
        let ended = setup.run(&job);
        let (code, stdout, stderr) = exited(&job, &ended);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}");
        assert!(stderr.starts_with("tile: "), "{args:?}: {stderr}");
    }
}

/// The committed modules are what their sources give.
#[test]
fn the_committed_modules_can_be_rebuilt() {
    let version = Command::new("clang").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if !version.contains("clang version 14.") || !Path::new("/usr/lib/wasm32-wasi/libc.a").exists() {
        println!("skipped: needs clang 14 and wasi-libc (see agent/tasks/build.sh), found {version:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new(tasks_dir().join("build.sh")).arg(dir.path()).status().unwrap();
    assert!(status.success());
    for name in ["chance", "noop", "probe", "spin", "tile"] {
        let file = format!("{name}/{name}.wasm");
        let (built, committed) =
            (fs::read(dir.path().join(&file)).unwrap(), fs::read(tasks_dir().join(&file)).unwrap());
        assert!(built == committed, "{name}: run agent/tasks/build.sh and commit the result");
    }
}

/// Figures for the documentation: `cargo test --release --test worker -- --ignored --nocapture overhead`.
#[test]
#[ignore = "a measurement"]
fn overhead() {
    let mut setup = Setup::new(1);
    let job = setup.job("tile", &["--index", "0"]);
    println!("tile.wasm, compiled: {:?}", setup.run(&job).compile);
    let dir = std::mem::replace(&mut setup.dir, tempfile::tempdir().unwrap());
    drop(setup);
    let mut setup = Setup::in_dir(1, dir);
    setup.tasks = 1_000_000;
    let job = setup.job("tile", &["--index", "0"]);
    let begin = Instant::now();
    let ended = setup.run(&job);
    println!("tile.wasm, from disk in a new worker: {:?}, all in all {:?}", ended.compile, begin.elapsed());
    for program in ["noop", "probe"] {
        let mut jobs: Vec<Job> = (0..2001).map(|_| setup.job(program, &["exit", "0"])).collect();
        setup.run(&jobs.pop().unwrap());
        let worker = setup.only_pid();
        let (begin, ours, theirs) = (Instant::now(), thread_ticks(), ticks_of(worker));
        let mut cpu = Duration::ZERO;
        for job in &jobs {
            setup.pool.start(0, job).unwrap();
            let WorkerEvent::Ended { cpu: one, .. } = setup.events.blocking_recv().unwrap();
            cpu += one;
        }
        let per_task = |ticks: u64| Duration::from_millis(ticks * 10) / 2000;
        println!(
            "{program}: {:?} wall per task; CPU: {:?} reported, {:?} worker, {:?} agent",
            begin.elapsed() / 2000,
            cpu / 2000,
            per_task(ticks_of(worker) - theirs),
            per_task(thread_ticks() - ours),
        );
    }
    for seed in 0..5 {
        let mut cpu = Vec::new();
        let mut iterations = 0;
        let picture = Picture::demo(seed);
        let mut canvas = Canvas::new(picture.clone()).unwrap();
        for index in 0..256 {
            let mut job = setup.job("tile", &["--index", &index.to_string()]);
            job.args.extend(picture.args());
            let ended = setup.run(&job);
            let stdout = exited(&job, &ended).1;
            iterations += stdout.split(' ').rev().nth(1).unwrap().parse::<u64>().unwrap();
            cpu.push(ended.cpu);
            canvas.place(index, &fs::read(job.work_dir().join("tile.rgb")).unwrap()).unwrap();
        }
        cpu.sort();
        let total: Duration = cpu.iter().sum();
        println!(
            "region {seed}: {total:?} in all, {iterations} iterations; tiles {:?} to {:?}, median {:?}",
            cpu[0], cpu[255], cpu[128]
        );
        let path = std::env::temp_dir().join(format!("idlewood-region-{seed}.png"));
        canvas.write_png(fs::File::create(path).unwrap()).unwrap();
    }
}

/// Processor time of this process.
fn thread_ticks() -> u64 {
    ticks_of(std::process::id())
}
