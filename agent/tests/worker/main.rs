//! Worker processes as the agent uses them: real processes, real programs (`tasks/probe`, `tasks/tile`).

mod limits;
mod memory;
mod native;
mod programs;
mod runs;
mod walls;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use idlewood::tiles::{Canvas, Picture};
use idlewood_worker::{
    Input, Job, JobError, Outcome, Pool, PoolConfig, Reach, StartError, Stdin, Streams, WorkerEvent, lay_out, removal,
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
    /// The directories of all its jobs.
    reach: Arc<Reach>,
}

/// A worker reads in `in`, and writes in `out`.
fn reach(dir: &Path) -> Arc<Reach> {
    fs::create_dir_all(dir.join("in")).unwrap();
    Arc::new(Reach { readable: vec![dir.join("in")], writable: vec![dir.join("out")] })
}

/// How a task ended.
#[derive(Debug)]
struct Ended {
    outcome: Outcome,
    wall: Duration,
    cpu: Duration,
    compile: Duration,
    output_truncated: bool,
    streams: Streams,
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
            native: false,
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
                Ok(WorkerEvent::Ended { slot, outcome, wall, cpu, compile, output_truncated, streams, .. }) => {
                    return (slot, Ended { outcome, wall, cpu, compile, output_truncated, streams });
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

    /// Ends the compiling worker: from now on there are running ones only.
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

impl Setup {
    /// A job of the probe whose exit code tells which one it was.
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

/// Whether a task of a program with directories began: making them comes first.
fn has_begun(job: &Job) -> bool {
    job.work_dir().exists()
}

fn tasks_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tasks")
}

fn exited(job: &Job, ended: &Ended) -> (u8, String, String) {
    let Outcome::Exited { code } = ended.outcome else { panic!("{:?}", ended.outcome) };
    let (stdout, stderr) = written(job, ended);
    (code, stdout, stderr)
}

/// A task's standard output and error; short output is in no file.
fn written(job: &Job, ended: &Ended) -> (String, String) {
    let read = |path: PathBuf, stream: &[u8]| {
        let bytes = if path.exists() { fs::read(path).unwrap() } else { stream.to_vec() };
        String::from_utf8(bytes).unwrap()
    };
    (read(job.stdout_path(), &ended.streams.stdout), read(job.stderr_path(), &ended.streams.stderr))
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
fn a_task_sees_only_what_it_is_given() {
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
fn a_fixed_clock_is_the_same_in_every_run_and_advances() {
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
        let inputs = ["data.txt", "deep/er/data.txt"].map(|name| Input {
            name: name.to_owned(),
            path: blob.clone(),
            executable: false,
        });
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
    // Two attempts at a task do not write to the same files.
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
fn a_job_that_cannot_start_is_refused() {
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

    // With the event of its end unread, there is no room for another.
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
    let frozen = std::env::var("FROZEN").unwrap_or_default();
    if frozen == "at birth" {
        let job = setup.job("noop", &[]);
        setup.pool.start(0, &job).unwrap();
        let begin = Instant::now();
        while setup.pool.worker_pids().is_empty() {
            assert!(begin.elapsed() < PATIENCE, "no worker is started");
            std::hint::spin_loop();
        }
        setup.pool.freeze();
        return print_and_wait(&setup);
    }
    if frozen.starts_with("native") {
        let spin = "while :; do :; done";
        let job = setup.script(&format!("(sleep 1000 &); {spin} & (trap '' HUP; {spin}) & : >ready; wait"), &[]);
        setup.pool.start(0, &job).unwrap();
        wait_until(|| job.work_dir().join("ready").exists());
        if frozen.ends_with("frozen") {
            setup.pool.freeze();
        }
        return print_and_wait(&setup);
    }
    setup.warm();
    let spinning = setup.job("probe", &["spin", "1000000"]);
    setup.pool.start(0, &spinning).unwrap();
    let idle = setup.job("noop", &[]);
    setup.pool.start(1, &idle).unwrap();
    assert_eq!(setup.next().0, 1);
    wait_until(|| setup.pool.worker_pids().len() == 2);
    if !frozen.is_empty() {
        setup.pool.freeze();
    }
    print_and_wait(&setup);
}

/// Prints which workers there are, and waits to be killed.
fn print_and_wait(setup: &Setup) {
    for pid in setup.pool.worker_pids() {
        println!("\nworker {pid}");
    }
    println!("\ndirectory {}", setup.dir.path().display());
    println!("\nready");
    std::thread::sleep(PATIENCE);
}

#[test]
fn no_worker_outlives_its_agent() {
    for (frozen, workers) in [("", 2), ("at work", 2), ("at birth", 1), ("native", 6), ("native, frozen", 6)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "agent_to_be_killed", "--ignored", "--nocapture"]).stdout(Stdio::piped());
        command.env("FROZEN", frozen);
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
        assert_eq!(pids.len(), workers);
        assert!(pids.iter().all(|pid| !is_dead(*pid)));
        agent.kill().unwrap();
        agent.wait().unwrap();
        wait_until(|| pids.iter().all(|pid| is_dead(*pid)));
        fs::remove_dir_all(directory.unwrap()).unwrap();
    }
}
