//! Real agents in real processes, used through the command line alone.

use std::any::Any;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_agent");
/// Time limit of a wait. Generous: the machines are shared.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit of one command, also of `bag wait` for a whole bag.
const COMMAND_PATIENCE: Duration = Duration::from_secs(420);
/// Time limit for an agent to end, for which it promises five seconds.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Locked by every grid: exclusively by one of many machines, so that other tests do not slow it down.
static TURN: RwLock<()> = RwLock::new(());

/// A program whose first argument says what it does.
pub(crate) fn probe_program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tasks/probe/probe.wasm")
}

/// Until this is dropped no other test has agents.
pub(crate) fn alone() -> impl Any {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// One agent.
pub(crate) struct Agent {
    pub(crate) dir: PathBuf,
    process: Option<Child>,
}

/// Agents with state directories below one temporary directory.
pub(crate) struct Grid {
    pub(crate) agents: Vec<Agent>,
    pub(crate) root: TempDir,
    /// The system bus of agents started from now on. None by default, since the bus of the machine is not for tests.
    pub(crate) bus: Option<String>,
    /// Where agents started from now on look for the owner's input. None by default: a file says whether the owner is
    /// there.
    pub(crate) senses: Option<Senses>,
    /// Bags of agents started from now on are kept by others once they have lasted for two seconds, and these act after 15 s for each
    /// rank. False by default: as shipped.
    pub(crate) keeps_soon: bool,
    /// Agents started from now on measure and learn their speeds. False by default: they are told one.
    pub(crate) learns_speed: bool,
    /// Whether agents become machines of one grid before their first start.
    enrols: bool,
    /// The invitation with which all but the first join.
    invitation: Option<String>,
    /// Dropped after the agents.
    _turn: Box<dyn Any>,
}

/// Where agents look for the owner's input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Senses {
    /// `DISPLAY`.
    pub(crate) display: Option<String>,
    /// The session bus.
    pub(crate) session_bus: Option<String>,
}

/// What a command printed, as JSON, and its exit code.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) json: Value,
    pub(crate) stderr: String,
}

/// Runs the command line once; it is killed, and the test fails, if it does not end in time.
pub(crate) fn command(args: &[&str]) -> Output {
    let mut command = Command::new(AGENT);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = command.spawn().expect("the binary starts");
    let pid = process.id().to_string();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        // Nothing is sent: the other end is dropped when the command has ended.
        let is_late = end.recv_timeout(COMMAND_PATIENCE) == Err(RecvTimeoutError::Timeout);
        is_late && Command::new("kill").arg("-KILL").arg(pid).status().is_ok()
    });
    let output = process.wait_with_output().expect("it is a child");
    drop(ended);
    let was_killed = watch.join().expect("it only waits");
    assert!(!was_killed, "{args:?} did not end within {COMMAND_PATIENCE:?}");
    output
}

impl Agent {
    /// Runs a command against this agent, with JSON output.
    pub(crate) fn cli(&self, args: &[&str]) -> Answer {
        let dir = self.dir.to_str().expect("a path of ours");
        let output = command(&[&["--state-dir", dir, "--output", "json"], args].concat());
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        Answer {
            code: output.status.code().unwrap_or(-1),
            json: stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a command that must succeed.
    pub(crate) fn ask(&self, args: &[&str]) -> Value {
        let answer = self.cli(args);
        assert_eq!(answer.code, 0, "{args:?}: {}", answer.stderr);
        answer.json
    }

    /// Submits tasks that each sleep; returns the bag's id.
    pub(crate) fn submit_sleeps(&self, tasks: usize, millis: u32) -> String {
        let program = probe_program();
        let range = format!("0-{}", tasks - 1);
        let bag = self.ask(&[
            "submit",
            "--program",
            program.to_str().expect("a path of ours"),
            "--array",
            &range,
            "--work",
            "50",
            "--",
            "sleep",
            &millis.to_string(),
        ]);
        bag["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// Address for other agents.
    pub(crate) fn address(&self) -> String {
        self.ask(&["status"])["listen"][0].as_str().expect("an address").to_owned()
    }

    pub(crate) fn wait_until_it_answers(&self) {
        let begin = Instant::now();
        while self.cli(&["status"]).code != 0 {
            assert!(begin.elapsed() < PATIENCE, "waited in vain for the agent to answer, which says: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal by its name, as `kill` takes it.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(status.expect("kill exists").success());
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().expect("it runs");
        process.wait().expect("it was a child");
    }

    /// SIGTERM; returns how long the agent took to end.
    pub(crate) fn terminate(&mut self) -> Duration {
        let begin = Instant::now();
        self.signal("TERM");
        self.wait_until_it_ends_within(END_PATIENCE);
        begin.elapsed()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }

    /// The worker processes of this agent.
    pub(crate) fn workers(&self) -> Vec<u32> {
        children(self.pid())
    }

    /// Marks the owner as present, or away.
    pub(crate) fn set_owner(&self, present: bool) {
        let file = self.dir.join("owner");
        if present {
            File::create(file).expect("our directory");
        } else {
            std::fs::remove_file(file).expect("the file is there");
        }
    }

    /// Writes the owner's settings.
    pub(crate) fn configure(&self, settings: &str) {
        std::fs::write(self.dir.join("config.toml"), settings).expect("our directory");
    }

    /// Waits until the agent has ended by itself.
    pub(crate) fn wait_until_it_ends(&mut self) {
        self.wait_until_it_ends_within(PATIENCE);
    }

    fn wait_until_it_ends_within(&mut self, patience: Duration) {
        let mut process = self.process.take().expect("it runs");
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = process.try_wait().expect("it was a child") {
                break status;
            }
            if begin.elapsed() > patience {
                self.process = Some(process);
                panic!("it does not end within {patience:?}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{}", self.log());
    }

    pub(crate) fn holds(&self) -> u64 {
        let status = self.ask(&["status"]);
        let held = status["held"].as_array().expect("a list").iter();
        held.map(|held| held["waiting"].as_u64().unwrap_or(0) + held["running"].as_u64().unwrap_or(0)).sum()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

impl Grid {
    /// Starts `count` agents and waits until they are one grid.
    pub(crate) fn start(count: usize) -> Self {
        let mut grid = Self::prepare_unstarted(count);
        for number in 0..count {
            grid.run(number);
        }
        grid.wait_until_formed(count);
        grid
    }

    /// Agents that are not started yet, the first one first.
    pub(crate) fn prepare_unstarted(count: usize) -> Self {
        Self::prepare(count, Box::new(TURN.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// One agent that is not started yet, with these settings, while no other test has agents.
    pub(crate) fn prepare_one(settings: &str) -> Self {
        let grid = Self::prepare(1, Box::new(TURN.write().unwrap_or_else(PoisonError::into_inner)));
        grid.agents[0].configure(settings);
        grid
    }

    /// Starts `count` agents that all join through the first one at the same time, while no other test has agents.
    pub(crate) fn start_at_once(count: usize) -> Self {
        let mut grid = Self::prepare(count, Box::new(TURN.write().unwrap_or_else(PoisonError::into_inner)));
        grid.run(0);
        let first = grid.agents[0].address();
        for number in 1..count {
            grid.spawn(number, std::slice::from_ref(&first));
        }
        grid.agents.iter().for_each(Agent::wait_until_it_answers);
        grid
    }

    /// Agents without a grid that are not started yet.
    pub(crate) fn prepare_alone(count: usize) -> Self {
        let grid = Self::prepare(count, Box::new(TURN.read().unwrap_or_else(PoisonError::into_inner)));
        Self { enrols: false, ..grid }
    }

    fn prepare(count: usize, turn: Box<dyn Any>) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let agent = |number| {
            let dir = root.path().join(format!("agent-{number}"));
            std::fs::create_dir(&dir).expect("our directory");
            Agent { dir, process: None }
        };
        Self {
            agents: (0..count).map(agent).collect(),
            root,
            bus: None,
            senses: None,
            keeps_soon: false,
            learns_speed: false,
            enrols: count > 1,
            invitation: None,
            _turn: turn,
        }
    }

    /// One more agent, with a state directory that others make; returns its number.
    pub(crate) fn add(&mut self, name: &str) -> usize {
        self.agents.push(Agent { dir: self.root.path().join(name), process: None });
        self.agents.len() - 1
    }

    /// Starts an agent, again or for the first time, joining through the others.
    pub(crate) fn run(&mut self, number: usize) {
        let others =
            self.agents.iter().enumerate().filter(|(other, agent)| *other != number && agent.process.is_some());
        let bootstrap: Vec<String> = others.take(2).map(|(_, other)| other.address()).collect();
        self.spawn(number, &bootstrap);
        self.agents[number].wait_until_it_answers();
    }

    /// Starts an agent, again or for the first time, with the addresses of these others.
    pub(crate) fn spawn(&mut self, number: usize, bootstrap: &[String]) {
        self.enrol(number);
        let dir = self.agents[number].dir.clone();
        let log = File::options().create(true).append(true).open(dir.join("agent.log")).expect("our directory");
        let mut command = Command::new(AGENT);
        command.args(["run", "--listen", "/ip4/127.0.0.1/tcp/0", "--lease", "5"]);
        if !self.learns_speed {
            command.args(["--speed-mops", "1000"]);
        }
        // Tests that are killed leave nothing running.
        command.arg("--die-with-parent");
        command.arg("--state-dir").arg(&dir).arg("--config").arg(dir.join("config.toml"));
        // Agents must not use the desktop of the machine that the tests run on.
        command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").env("XDG_RUNTIME_DIR", &dir);
        command.env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere");
        match &self.senses {
            None => {
                command.arg("--owner-probe").arg(dir.join("owner"));
            }
            Some(Senses { display, session_bus }) => {
                command.envs(display.iter().map(|display| ("DISPLAY", display)));
                command.envs(session_bus.iter().map(|bus| ("DBUS_SESSION_BUS_ADDRESS", bus)));
            }
        }
        if self.keeps_soon {
            command.args(["--appoint-after", "2", "--steward-silence", "15"]);
        }
        for address in bootstrap {
            command.arg("--bootstrap").arg(address);
        }
        let process = command
            .env("DBUS_SYSTEM_BUS_ADDRESS", self.bus.as_deref().unwrap_or("unix:path=/nowhere"))
            .env("IDLEWOOD_LOG", "info,idlewood=debug")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        self.agents[number].process = Some(process);
    }

    /// Enrols an agent's machine in the grid: the first creates it, and has to run when the others start for the first
    /// time.
    fn enrol(&mut self, number: usize) {
        if !self.enrols || self.agents[number].dir.join("grid/membership").exists() {
            return;
        }
        if number == 0 {
            self.agents[0].ask(&["grid", "create", "--name", "test"]);
            return;
        }
        let invitation = self.invitation.get_or_insert_with(|| {
            let invitation = self.agents[0].ask(&["grid", "invite", "--role", "submitter", "--uses", "1000"]);
            invitation["token"].as_str().expect("a token").to_owned()
        });
        let file = self.root.path().join("invitation");
        std::fs::write(&file, invitation.as_bytes()).expect("our directory");
        self.agents[number].ask(&["grid", "join", file.to_str().expect("a path of ours")]);
    }

    /// SIGKILL to all of these before any of them is waited for.
    pub(crate) fn kill_at_once(&mut self, numbers: &[usize]) {
        let taken = numbers.iter().map(|&number| self.agents[number].process.take().expect("it runs"));
        let mut processes: Vec<Child> = taken.collect();
        processes.iter_mut().for_each(|process| process.kill().expect("it runs"));
        for mut process in processes {
            process.wait().expect("it was a child");
        }
    }

    /// The running agents.
    pub(crate) fn running(&self) -> Vec<&Agent> {
        self.agents.iter().filter(|agent| agent.process.is_some()).collect()
    }

    /// Waits until all running agents agree on the size of the grid.
    pub(crate) fn wait_until_formed(&self, count: usize) {
        for agent in self.running() {
            wait_for("the grid to form", || agent.ask(&["status"])["grid_machines"].as_u64() == Some(count as u64));
        }
    }

    /// The agent whose router is the root.
    pub(crate) fn root_agent(&self) -> usize {
        let is_root = |agent: &Agent| agent.ask(&["peers"])["is_root"].as_bool() == Some(true);
        self.agents.iter().position(is_root).expect("some agent is the root")
    }
}

/// Waits until a condition holds.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asserts that a bag ended with each of its tasks done once.
pub(crate) fn assert_complete(agent: &Agent, bag: &str, tasks: usize) {
    let answer = agent.cli(&["bag", "wait", bag]);
    assert_eq!(answer.code, 0, "{} {}", answer.stderr, agent.log());
    let shown = agent.ask(&["bag", "show", bag]);
    assert_eq!(shown["state"], "succeeded", "{shown}");
    assert_eq!(shown["done"].as_u64(), Some(tasks as u64), "{shown}");
    assert_eq!(shown["failed"].as_u64(), Some(0), "{shown}");
}

/// Child processes of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Processor time of a process, all its threads together, in nanoseconds.
pub(crate) fn processor_time(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let times = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum()
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().is_empty() && !rest.trim_start().starts_with('Z'))
}

/// The state letter of a process in `/proc`.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}
