//! Real agents under everything that can happen to processes: SIGKILL of agents and workers, SIGSTOP for longer than a
//! lease, SIGTERM, restarts, pauses by the owner, a full disk. Meanwhile bags are submitted. In the end all faults
//! stop, and every bag that was ever acknowledged must end with each of its tasks done once, or failed with a reason.
//!
//! The seed decides what is done, to which agent, and when. It does not decide what agents are doing at that moment:
//! they are processes. So a seed reproduces the same kind of trouble, not the same interleaving.
//!
//! Left out: cuts between agents (simnet has them) and power cuts (see the tests of the agent's store).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Lease of executors, in seconds; a SIGSTOP lasts for longer.
const LEASE_S: u64 = 2;
/// Longest pause between two faults.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Longest time without any change once faults have stopped.
const PATIENCE: Duration = Duration::from_secs(180);
/// Most unfinished bags of one agent: with more the end would take too long.
const BAGS_OPEN_MAX: usize = 3;
/// Free space on a disk that is filled, at most: less than the store asks for; if all disks are small a random amount
/// up to this, and now and then none.
const ROOM_BYTES: u64 = 2 << 20;
const ROOM_BYTES_MAX: u64 = 24 << 20;
/// The size of the first agent's disk by default.
const DISK_BYTES: u64 = 96 << 20;

/// What to do, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's program.
    pub program: PathBuf,
    /// The module that tasks run: `probe`.
    pub tasks: PathBuf,
    /// What the seed decides: see the module.
    pub seed: u64,
    /// How many agents.
    pub agents: usize,
    /// How long to torment them.
    pub span: Duration,
    /// Every agent has a disk of so many bytes, which is filled now and then; none: the first has one of 96 MiB.
    pub disk_bytes: Option<u64>,
    /// Directory of the agents; kept when something is wrong.
    pub dir: PathBuf,
}

/// What was done, and the outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How often each fault was caused.
    pub deeds: BTreeMap<&'static str, u64>,
    /// Bags that were acknowledged, and submissions whose outcome is unknown.
    pub bags: (u64, u64),
    /// Tasks that succeeded, and failed.
    pub tasks: (u64, u64),
    /// Tasks that were issued again, and results that came twice.
    pub again: (u64, u64),
    /// Whether there were disks that could be filled.
    pub small_disk: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = json!({
            "deeds": self.deeds,
            "bags_acknowledged": self.bags.0, "bags_found": self.bags.1,
            "tasks_done": self.tasks.0, "tasks_failed": self.tasks.1,
            "reissued": self.again.0, "duplicates": self.again.1,
            "small_disk": self.small_disk,
        });
        write!(formatter, "{report}")
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn span(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.below(most.as_micros() as u64))
    }
}

struct Agent {
    dir: PathBuf,
    process: Option<Child>,
    /// When it is started again or continued, or its disk emptied.
    restart_at: Option<Instant>,
    continue_at: Option<Instant>,
    empty_at: Option<Instant>,
}

struct Torture<'a> {
    options: &'a Options,
    dice: Dice,
    agents: Vec<Agent>,
    /// Acknowledged bags, each with the agent that it was submitted to.
    bags: Vec<(usize, String)>,
    /// Workers of killed agents, and when each was started.
    orphans: Vec<(u32, Option<String>)>,
    report: Report,
}

/// A file system for one agent, if this user may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(dir: &Path, bytes: u64) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(dir)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(dir.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.0.display());
        }
    }
}

/// Torments agents, lets them recover, and checks every bag.
///
/// # Errors
/// A sentence: what is wrong.
pub fn run(options: &Options) -> Result<Report, String> {
    let agent = |number: usize| Agent {
        dir: options.dir.join(format!("agent-{number}")),
        process: None,
        restart_at: None,
        continue_at: None,
        empty_at: None,
    };
    let agents: Vec<Agent> = (0..options.agents).map(agent).collect();
    for agent in &agents {
        fs::create_dir_all(&agent.dir).map_err(|error| error.to_string())?;
    }
    let (count, bytes) = options.disk_bytes.map_or((1, DISK_BYTES), |bytes| (agents.len(), bytes));
    let disks: Vec<SmallDisk> =
        agents[..count].iter().filter_map(|agent| SmallDisk::mount(&agent.dir, bytes)).collect();
    if options.disk_bytes.is_some() && disks.len() < count {
        return Err("this user may not mount small disks: run it as root, or without --disk".to_owned());
    }
    let report = Report { small_disk: !disks.is_empty(), ..Report::default() };
    let mut torture =
        Torture { options, dice: Dice(options.seed), agents, bags: Vec::new(), orphans: Vec::new(), report };
    let result = torture
        .form_grid()
        .and_then(|()| torture.torment())
        .and_then(|()| torture.recover())
        .and_then(|()| torture.judge());
    torture.end();
    drop(disks);
    result.map(|()| torture.report)
}

impl Torture<'_> {
    /// The first agent makes a grid, and the others join it.
    fn form_grid(&mut self) -> Result<(), String> {
        self.cli(0, &["grid", "create", "--name", "torture"])?;
        self.start(0)?;
        self.wait_until_ready(0..1)?;
        let uses = self.options.agents.to_string();
        let invitation = self.cli(0, &["grid", "invite", "--role", "submitter", "--uses", &uses])?;
        let token = invitation["token"].as_str().ok_or("an invitation without a token")?;
        for number in 1..self.options.agents {
            self.cli(number, &["grid", "join", token])?;
            self.start(number)?;
        }
        self.wait_until_ready(0..self.options.agents)
    }

    fn torment(&mut self) -> Result<(), String> {
        let end = Instant::now() + self.options.span;
        while Instant::now() < end {
            self.do_what_is_due()?;
            let victim = self.dice.below(self.agents.len() as u64) as usize;
            let (deed, aside) = (self.dice.below(100), self.dice.next());
            match deed {
                // Mostly restarted at once; now and then away for longer than a lease.
                0..45 => self.kill(victim, Duration::from_millis(aside % if aside % 8 == 0 { 5000 } else { 500 })),
                45..53 => self.kill_worker(victim, aside),
                53..58 => self.stop(victim, Duration::from_millis(aside % (3000 * LEASE_S))),
                58..60 => self.terminate(victim),
                60..65 => self.order(victim, if aside % 3 == 0 { "pause" } else { "resume" }),
                65..70 if self.options.disk_bytes.is_some() => {
                    let room_bytes = if aside % 4 == 0 { 0 } else { (aside >> 16) % ROOM_BYTES_MAX };
                    self.fill_disk(victim, room_bytes, Duration::from_millis(1000 + aside % 20_000))?;
                }
                65..70 => self.fill_disk(0, ROOM_BYTES, Duration::from_millis(1000 + aside % 3000))?,
                _ => self.submit(victim, aside),
            }
            std::thread::sleep(self.dice.span(PAUSE_MAX));
        }
        Ok(())
    }

    fn count(&mut self, deed: &'static str) {
        *self.report.deeds.entry(deed).or_default() += 1;
    }

    // ---- processes ----

    fn start(&mut self, number: usize) -> Result<(), String> {
        let others = self.agents.iter().enumerate().filter(|(other, _)| *other != number);
        let addresses: Vec<String> =
            others.filter_map(|(_, agent)| fs::read_to_string(agent.dir.join("address")).ok()).collect();
        let agent = &mut self.agents[number];
        agent.restart_at = None;
        let log = File::options().create(true).append(true).open(agent.dir.with_extension("log"));
        let log = log.map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.options.program);
        // Always the same port, so that agents that come back find each other whichever of them went away meanwhile.
        let port = 20_000 + (self.options.seed % 300) as usize * 100 + number;
        command.arg("run").arg("--listen").arg(format!("/ip4/127.0.0.1/tcp/{port}"));
        // An owner who is back counts as staying after a second: tasks then move to other machines in the middle of
        // everything.
        match fs::write(agent.dir.join("config.toml"), "[owner]\nvacate = \"1s\"\n") {
            // On a full disk the file of an earlier start is used.
            Err(error) if error.kind() != std::io::ErrorKind::StorageFull => return Err(error.to_string()),
            Ok(()) | Err(_) => {}
        }
        command.args(["--speed-mops", "1000", "--die-with-parent", "--lease", &LEASE_S.to_string(), "--slots", "2"]);
        command.arg("--state-dir").arg(&agent.dir).arg("--config").arg(agent.dir.join("config.toml"));
        command.arg("--owner-probe").arg(agent.dir.join("owner"));
        for address in &addresses {
            command.arg("--bootstrap").arg(address);
        }
        command.env_remove("DISPLAY").env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere");
        command.env("IDLEWOOD_LOG", "info,idlewood=debug").stdin(Stdio::null());
        let output = log.try_clone().map_err(|error| error.to_string())?;
        let process = command.stdout(output).stderr(log).spawn().map_err(|error| error.to_string())?;
        agent.process = Some(process);
        let address = format!("/ip4/127.0.0.1/tcp/{port}");
        match fs::write(agent.dir.join("address"), address) {
            // On a full disk the old program, which is the same, is used.
            Err(error) if error.kind() != std::io::ErrorKind::StorageFull => Err(error.to_string()),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn signal(&self, number: usize, name: &str) {
        if let Some(process) = &self.agents[number].process {
            signal(process.id(), name);
        }
    }

    fn kill(&mut self, number: usize, pause: Duration) {
        let agent = &mut self.agents[number];
        let Some(mut process) = agent.process.take() else { return };
        agent.continue_at = None;
        agent.restart_at = Some(Instant::now() + pause);
        self.orphans.extend(children(process.id()).into_iter().map(|worker| (worker, started(worker))));
        // Fails if it has ended by itself, which is detected elsewhere.
        if process.kill().is_ok() && process.wait().is_ok() {
            self.count("agents killed");
        }
    }

    fn kill_worker(&mut self, number: usize, aside: u64) {
        let Some(process) = &self.agents[number].process else { return };
        let workers = children(process.id());
        if let Some(&worker) = workers.get(aside as usize % workers.len().max(1)) {
            signal(worker, "KILL");
            self.count("workers killed");
        }
    }

    fn stop(&mut self, number: usize, pause: Duration) {
        let agent = &mut self.agents[number];
        if agent.process.is_some() && agent.continue_at.is_none() {
            agent.continue_at = Some(Instant::now() + pause);
            self.signal(number, "STOP");
            self.count(if pause > Duration::from_secs(LEASE_S) { "stops longer than a lease" } else { "stops" });
        }
    }

    fn terminate(&mut self, number: usize) {
        let agent = &mut self.agents[number];
        if agent.continue_at.is_none() && agent.process.is_some() {
            agent.restart_at = Some(Instant::now() + Duration::from_secs(8));
            self.signal(number, "TERM");
            self.count("agents told to end");
        }
    }

    fn fill_disk(&mut self, number: usize, room_bytes: u64, pause: Duration) -> Result<(), String> {
        let agent = &mut self.agents[number];
        if !self.report.small_disk || agent.empty_at.is_some() {
            return Ok(());
        }
        let free = free_bytes(&agent.dir)?;
        let filler = match File::create(agent.dir.join("filler")) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            filler => filler.map_err(|error| error.to_string())?,
        };
        let zeros = vec![0; 1 << 20];
        for _ in 0..free.saturating_sub(room_bytes) >> 20 {
            if std::io::Write::write_all(&mut &filler, &zeros).is_err() {
                // The agent has written meanwhile: the disk is full nevertheless.
                break;
            }
        }
        agent.empty_at = Some(Instant::now() + pause);
        self.count("disks filled");
        Ok(())
    }

    /// Ends faults that have lasted for long enough, and restarts agents that ended by themselves.
    fn do_what_is_due(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for number in 0..self.agents.len() {
            let agent = &mut self.agents[number];
            if is_due(agent.continue_at) {
                agent.continue_at = None;
                self.signal(number, "CONT");
            }
            let agent = &mut self.agents[number];
            if is_due(agent.empty_at) {
                agent.empty_at = None;
                fs::remove_file(agent.dir.join("filler")).map_err(|error| error.to_string())?;
            }
            // As a supervisor would, but without hurry.
            if let Some(process) = &mut agent.process
                && let Ok(Some(_)) = process.try_wait()
            {
                agent.process = None;
                agent.restart_at.get_or_insert(now + Duration::from_millis(200));
            }
            if is_due(agent.restart_at) && agent.process.is_none() {
                self.start(number)?;
                self.count("starts");
            }
        }
        Ok(())
    }

    // ---- the command line ----

    /// The output of a command, if it succeeded; killed after a while, since its agent may be stopped.
    fn cli(&self, number: usize, arguments: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(&self.options.program);
        command.arg("--state-dir").arg(&self.agents[number].dir).args(["--output", "json"]).args(arguments);
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut process = process.map_err(|error| error.to_string())?;
        // The output fits a pipe, except that of the queries at the end.
        let patience = if self.agents[number].continue_at.is_some() { 1 } else { 60 };
        let deadline = Instant::now() + Duration::from_secs(patience);
        let is_long = arguments.contains(&"export");
        while !is_long && matches!(process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                process.kill().map_err(|error| error.to_string())?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = process.wait_with_output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{arguments:?} printed no JSON: {error}"))
    }

    fn order(&mut self, number: usize, order: &'static str) {
        if self.cli(number, &[order]).is_ok() {
            self.count(order);
        }
    }

    fn submit(&mut self, number: usize, aside: u64) {
        // An agent that is down or stopped takes no bags.
        if self.agents[number].process.is_none() || self.agents[number].continue_at.is_some() {
            return;
        }
        let Ok(Value::Array(bags)) = self.cli(number, &["bag", "list"]) else { return };
        if bags.iter().filter(|bag| bag["finished"].is_null()).count() >= BAGS_OPEN_MAX {
            return;
        }
        let program = self.options.tasks.to_string_lossy().into_owned();
        let last = 4 + aside % 40;
        let range = format!("0-{last}");
        let (millis, work) = ((aside >> 8) % 300, format!("{}", 20 + (aside >> 16) % 300));
        let (millis, checkpointed) = (millis.to_string(), (millis / 10).to_string());
        let run: &[&str] = match (aside >> 24) % 5 {
            // Every third task fails, for good after two tries.
            0 => &["--max-retries", "1", "--", "exit", "{index}"],
            1 => &["--", "steps", "10", &checkpointed],
            2 => &["--", "write", "result-{index}", "text"],
            _ => &["--", "sleep", &millis],
        };
        let mut arguments = vec!["submit", "--program", &program, "--array", &range];
        // Otherwise the first task is measured.
        if !(aside >> 32).is_multiple_of(4) {
            arguments.extend(["--work", &work]);
        }
        arguments.extend(run);
        match self.cli(number, &arguments) {
            Ok(bag) => {
                if let Some(id) = bag["id"].as_str() {
                    self.bags.push((number, id.to_owned()));
                    self.count("bags submitted");
                }
            }
            Err(_) => self.count("submissions refused or cut off"),
        }
    }

    // ---- the end ----

    fn wait_until_ready(&mut self, numbers: Range<usize>) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while let Some(silent) = numbers.clone().find(|&number| self.cli(number, &["status"]).is_err()) {
            if Instant::now() > deadline {
                let log = fs::read_to_string(self.agents[silent].dir.with_extension("log")).unwrap_or_default();
                let last = log.lines().next_back().unwrap_or_default();
                return Err(format!("agent {silent} does not answer; the last line of its log: {last}"));
            }
            self.do_what_is_due()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Ends all faults, and waits until all bags have ended and no agent holds any task.
    fn recover(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for agent in &mut self.agents {
            for at in [&mut agent.continue_at, &mut agent.empty_at, &mut agent.restart_at] {
                *at = at.map(|_| now);
            }
            if agent.process.is_none() {
                agent.restart_at = Some(now);
            }
        }
        self.wait_until_ready(0..self.agents.len())?;
        for number in 0..self.agents.len() {
            self.cli(number, &["resume"])?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.do_what_is_due()?;
            let unfinished: Vec<String> = (0..self.agents.len()).filter_map(|number| self.unfinished(number)).collect();
            if unfinished.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let most = PATIENCE.as_secs();
                return Err(format!(
                    "not everything is over {most} s after the last misdeed: {}",
                    unfinished.join("; ")
                ));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// What an agent has yet to do.
    fn unfinished(&self, number: usize) -> Option<String> {
        let ask = |arguments: &[&str]| self.cli(number, arguments).unwrap_or_else(|error| json!([error]));
        let (bags, status) = (ask(&["bag", "list"]), ask(&["status"]));
        let is_open = |bag: &&Value| bag["finished"].is_null();
        let shown = |bag: &Value| format!("{} of {} of {}", bag["done"], bag["tasks"], bag["id"]);
        let open: Vec<String> = bags.as_array()?.iter().filter(is_open).map(shown).collect();
        let held = &status["held"];
        let is_idle = open.is_empty() && held.as_array().is_some_and(Vec::is_empty);
        (!is_idle).then(|| format!("agent {number}: bags {open:?}, held {held}"))
    }

    /// Whether every task of every bag is done once, or failed with a reason.
    fn judge(&mut self) -> Result<(), String> {
        for number in 0..self.agents.len() {
            let bags = self.cli(number, &["bag", "list"])?;
            let bags: Vec<Value> = bags.as_array().cloned().unwrap_or_default();
            let known: BTreeSet<String> = bags.iter().filter_map(|bag| bag["id"].as_str().map(str::to_owned)).collect();
            let acknowledged = self.bags.iter().filter(|(agent, _)| *agent == number).map(|(_, id)| id.clone());
            let acknowledged: BTreeSet<String> = acknowledged.collect();
            if let Some(lost) = acknowledged.difference(&known).next() {
                return Err(format!("bag {lost} was acknowledged by agent {number}, which does not know it any more"));
            }
            self.report.bags.0 += acknowledged.len() as u64;
            self.report.bags.1 += (known.len() - acknowledged.len()) as u64;
            for bag in &bags {
                // A submission that was refused for lack of space is given up, and was never acknowledged.
                let is_given_up =
                    bag["state"] == "cancelled" && !bag["id"].as_str().is_some_and(|id| acknowledged.contains(id));
                if !is_given_up {
                    self.judge_bag(number, bag)?;
                }
            }
        }
        self.judge_stores()
    }

    fn judge_bag(&mut self, number: usize, bag: &Value) -> Result<(), String> {
        let count = |name: &str| bag[name].as_u64().unwrap_or(u64::MAX);
        let id = bag["id"].as_str().unwrap_or_default();
        let (tasks, done, failed) = (count("tasks"), count("done"), count("failed"));
        if done + failed != tasks {
            return Err(format!("bag {id}: {done} done and {failed} failed of {tasks} tasks"));
        }
        let out = self.options.dir.join("results").join(id);
        self.cli(number, &["bag", "get", id, "--out", &out.to_string_lossy()])?;
        let results = fs::read(out.join("results.json")).map_err(|error| error.to_string())?;
        let results: Vec<Value> = serde_json::from_slice(&results).map_err(|error| error.to_string())?;
        let indices: BTreeSet<u64> = results.iter().filter_map(|result| result["index"].as_u64()).collect();
        if indices.len() as u64 != tasks || results.len() as u64 != tasks {
            return Err(format!("bag {id}: {} results of {} tasks for {tasks}", results.len(), indices.len()));
        }
        for result in results.iter().filter(|result| result["success"] == false) {
            if result["error"].is_null() && result["exit_code"].is_null() {
                return Err(format!("bag {id}: a task failed without a reason: {result}"));
            }
        }
        self.report.tasks.0 += done;
        self.report.tasks.1 += failed;
        self.report.again.0 += count("reissued");
        self.report.again.1 += count("duplicates");
        Ok(())
    }

    /// The stores agree: one record for each task, and no remains of ended bags.
    fn judge_stores(&mut self) -> Result<(), String> {
        for number in 0..self.agents.len() {
            let bags = self.cli(number, &["bag", "list"])?;
            let over = |bag: &Value| Some(bag["done"].as_u64()? + bag["failed"].as_u64()?);
            let tasks: u64 = bags.as_array().map_or(0, |bags| bags.iter().filter_map(over).sum());
            self.kill(number, Duration::from_secs(3600));
            self.cli(number, &["store", "check"])?;
            let exported = self.cli(number, &["store", "export"])?;
            let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
            let records = || exported["records"].as_array().into_iter().flatten();
            // A steward has the records of others' bags, as they were when its submitter last spoke.
            let kept: Vec<&Value> = records().map(|record| &record["record"]["Kept"]["acting"]["p"]["b"]).collect();
            for record in records() {
                let Some((kind, content)) = record["record"].as_object().and_then(|record| record.iter().next()) else {
                    continue;
                };
                if content["bag"].is_null() || !kept.contains(&&content["bag"]) {
                    *kinds.entry(kind.clone()).or_default() += 1;
                }
            }
            let of = |kind: &str| kinds.get(kind).copied().unwrap_or(0);
            let wrong = of("Done") != tasks || ["Held", "Outbox", "Placed", "Failures"].iter().any(|kind| of(kind) > 0);
            if wrong {
                return Err(format!("agent {number} has {kinds:?} on disk, of bags with {tasks} tasks, all over"));
            }
        }
        self.judge_orphans()
    }

    /// No worker outlives its agent.
    fn judge_orphans(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        // Its pid may belong to another process by now.
        let is_there = |(worker, began): &&(u32, Option<String>)| began.is_some() && started(*worker) == *began;
        while let Some((worker, _)) = self.orphans.iter().find(is_there) {
            if Instant::now() > deadline {
                return Err(format!("worker {worker} has outlived its agent, which was killed"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn end(&mut self) {
        for agent in &mut self.agents {
            if let Some(mut process) = agent.process.take()
                && process.kill().and_then(|()| process.wait()).is_err()
            {
                eprintln!("an agent was gone before it was ended");
            }
        }
    }
}

fn signal(pid: u32, name: &str) {
    // A process that is gone already is no error.
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status();
    if let Err(error) = status {
        eprintln!("no signals can be sent: {error}");
    }
}

/// When a process was started, in ticks since the boot of the machine; `None` if there is none, or it is dead.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_dead = matches!(fields.next()?, "Z" | "X");
    (!is_dead).then(|| fields.nth(18).map(str::to_owned))?
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Free space according to `df`.
fn free_bytes(dir: &Path) -> Result<u64, String> {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(dir).output();
    let text =
        String::from_utf8(output.map_err(|error| error.to_string())?.stdout).map_err(|error| error.to_string())?;
    let free = text.lines().nth(1).and_then(|line| line.trim().parse().ok());
    free.ok_or_else(|| format!("df does not say what is free in {}", dir.display()))
}
