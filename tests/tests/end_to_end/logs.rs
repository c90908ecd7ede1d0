//! `bag logs --follow`: what tasks write while they run, wherever they run.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::harness::{AGENT, Agent, Grid, PATIENCE, command, probe_program};

/// A command whose lines are read while it runs.
struct Running {
    process: Child,
    /// Lines of both streams, those of standard error with `err: ` before them.
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    fn start(agent: &Agent, args: &[&str]) -> Self {
        let mut command = Command::new(AGENT);
        command.arg("--state-dir").arg(&agent.dir).args(args);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        let (sender, lines) = channel();
        let (stdout, stderr) = (process.stdout.take().expect("a pipe"), process.stderr.take().expect("a pipe"));
        let other = sender.clone();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.map(|line| format!("err: {line}")).try_for_each(|line| other.send(line))
        });
        Self { process, lines, seen: Vec::new() }
    }

    /// Reads until there is such a line.
    fn wait_for(&mut self, what: &str) {
        while !self.seen.iter().any(|line| line.contains(what)) {
            let line = self.lines.recv_timeout(PATIENCE);
            self.seen.push(line.unwrap_or_else(|error| panic!("no {what:?} ({error}): {:?}", self.seen)));
        }
    }

    /// Reads to the end; the exit code.
    fn end(&mut self) -> i32 {
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.seen.push(line);
        }
        self.process.wait().expect("it is a child").code().unwrap_or(-1)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        if self.process.kill().is_ok() && self.process.wait().is_err() {
            eprintln!("a command is left behind");
        }
    }
}

/// Two machines, both with native programs: the first submits.
fn grid() -> Grid {
    let mut grid = Grid::prepare_unstarted(2);
    for number in 0..2 {
        grid.agents[number].configure("[bags]\nnative = true\n[limits]\nslots = 2\n");
        grid.run(number);
    }
    grid.wait_until_formed(2);
    grid
}

/// A script whose end the test decides: it writes, waits for a file in its working directory, and writes again.
const WAITS: &str = "#!/bin/sh\necho \"first $1\"; echo \"trouble $1\" >&2\nwhile [ ! -e go ]; do sleep 0.1; done\n\
                     echo \"second $1\"; rm go; exit $(($1 == 1))\n";

/// Lets the scripts on this machine go on, those that have begun.
fn release(agent: &Agent) {
    let inside = |directory: &Path| -> Vec<PathBuf> {
        fs::read_dir(directory).map(|all| all.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
    };
    let bags = inside(&agent.dir.join("scratch")).into_iter().flat_map(|life| inside(&life));
    for attempt in bags.flat_map(|bag| inside(&bag.join("out"))) {
        fs::write(attempt.join("work/go"), "").expect("the task runs");
    }
}

fn submit(agent: &Agent, script: &Path, tasks: &str) -> String {
    fs::write(script, WAITS).expect("our directory");
    let script = script.to_str().expect("a path of ours");
    let options = ["--native", "--work", "50", "--max-retries", "0", "--array", tasks, "--program", script];
    let bag = agent.ask(&[&["submit"], &options[..], &["--", "{}"]].concat());
    bag["id"].as_str().expect("an id").to_owned()
}

#[test]
fn what_running_tasks_write_is_followed_wherever_they_run() {
    let grid = grid();
    let (submitter, other) = (&grid.agents[0], &grid.agents[1]);
    // Only the second machine runs tasks.
    submitter.ask(&["pause"]);
    let bag = submit(submitter, &grid.root.path().join("work.sh"), "0-1");
    let mut following = Running::start(submitter, &["bag", "logs", &bag, "--follow"]);
    for line in ["0 | first 0", "1 | first 1", "err: 0 | trouble 0", "err: 1 | trouble 1"] {
        following.wait_for(line);
    }
    // Whoever asks once is told what is there.
    let dir = submitter.dir.to_str().expect("a path of ours");
    let once = command(&["--state-dir", dir, "bag", "logs", &bag, "1"]);
    assert_eq!(String::from_utf8_lossy(&once.stdout), "first 1\n");
    let told = String::from_utf8_lossy(&once.stderr).into_owned();
    assert!(told.contains("what is written so far"), "{told}");
    let running = submitter.ask(&["bag", "logs", &bag, "--stderr", "--index", "0"]);
    assert_eq!((&running[0]["text"], &running[0]["state"]), (&"trouble 0\n".into(), &"placed".into()), "{running}");
    // The bag is nobody else's.
    assert_eq!(other.cli(&["bag", "logs", &bag]).code, 1);

    release(other);
    assert_eq!(following.end(), 3, "task 1 fails: {:?}", following.seen);
    for line in
        ["0 | first 0", "0 | second 0", "1 | first 1", "1 | second 1", "err: 0 | trouble 0", "err: 1 | trouble 1"]
    {
        let times = following.seen.iter().filter(|seen| *seen == line).count();
        assert_eq!(times, 1, "{line}: {:?}", following.seen);
    }
    following.wait_for("task 1 failed: exit code 1");
    // Of a task that is over the same is printed from its result.
    let mut afterwards = Running::start(submitter, &["bag", "logs", &bag, "0", "--follow"]);
    assert_eq!(afterwards.end(), 0);
    let mut seen = afterwards.seen.clone();
    seen.sort();
    assert_eq!(seen, ["err: trouble 0", "first 0", "second 0"]);
}

/// A task whose machine is lost runs again: what it writes there is told apart.
#[test]
fn a_task_that_begins_anew_elsewhere_is_followed_there() {
    let mut grid = grid();
    grid.agents[0].ask(&["pause"]);
    let bag = submit(&grid.agents[0], &grid.root.path().join("work.sh"), "0");
    let mut following = Running::start(&grid.agents[0], &["bag", "logs", &bag, "--follow"]);
    following.wait_for("first 0");
    grid.agents[1].kill();
    grid.agents[0].ask(&["resume"]);
    following.wait_for("task 0 begins anew");
    release(&grid.agents[0]);
    assert_eq!(following.end(), 0, "{:?}", following.seen);
    let times = |what: &str| following.seen.iter().filter(|line| *line == what).count();
    assert_eq!((times("first 0"), times("second 0")), (2, 1), "{:?}", following.seen);
}

/// WebAssembly keeps little output in memory that it shares with the agent; the first task is measured by another worker.
#[test]
fn webassembly_is_followed_and_an_interrupt_leaves_the_bag_alone() {
    let grid = Grid::start(2);
    let submitter = &grid.agents[0];
    let program = probe_program().display().to_string();
    let submit = |steps: &[&str]| {
        let options = ["submit", "--program", &program, "--array", "0-2", "--", "steps"];
        submitter.ask(&[&options[..], steps].concat())["id"].as_str().expect("an id").to_owned()
    };
    let bag = submit(&["3000", "100"]);
    let mut following = Running::start(submitter, &["bag", "logs", &bag, "-f"]);
    following.wait_for("err: 0 | from 0 on");
    let interrupted = Command::new("kill").arg("-INT").arg(following.process.id().to_string()).status();
    assert!(interrupted.expect("kill exists").success());
    assert_eq!(following.end(), 130);
    following.wait_for("goes on; follow it with: idlewood bag logs --follow");
    let mut following = Running::start(submitter, &["bag", "logs", &bag, "-f"]);
    following.wait_for("err: 0 | from 0 on");
    submitter.ask(&["bag", "cancel", &bag]);
    assert_eq!(following.end(), 4, "{:?}", following.seen);

    let bag = submit(&["1", "100"]);
    let mut following = Running::start(submitter, &["bag", "logs", &bag, "-f"]);
    assert_eq!(following.end(), 0, "{:?}", following.seen);
    for index in 0..3 {
        // Its standard output comes at its end, as of most programs that write to a pipe.
        for line in [format!("err: {index} | from 0 on"), format!("{index} | begun at 0")] {
            assert_eq!(following.seen.iter().filter(|seen| **seen == line).count(), 1, "{line}: {:?}", following.seen);
        }
    }
}
