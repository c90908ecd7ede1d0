//! Real agents, each in a namespace of its own.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use idlewood_api::client::Client;
use idlewood_api::{Bag, BagDetail, Status};
use idlewood_tests::shares::Shares;
use idlewood_units::Array;
use serde_json::Value;

use crate::lab::{self, Lab};
use crate::scenario::{self, Scenario};
use crate::stop;

/// How long the grid may take to form, and an agent to begin or end.
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 4001;
/// Tasks of a bag that are asked for at once.
const TASKS_MAX: u64 = 1_000;

/// One machine's agent.
struct Agent {
    dir: PathBuf,
    process: Option<Child>,
    /// The file that takes the ids of processes with this machine's share of the processor.
    share: Option<PathBuf>,
}

/// All agents of a run; they end when this is dropped.
pub(crate) struct Agents<'a> {
    scenario: &'a Scenario,
    lab: &'a Lab,
    agents: Vec<Agent>,
    root: PathBuf,
    /// For tasks that compute: how many millions of steps take a second of a whole processor here.
    spins_per_s: f64,
}

impl<'a> Agents<'a> {
    /// Makes a grid of all machines: each is enrolled, and its agent runs.
    ///
    /// # Errors
    /// A sentence: what did not work.
    pub(crate) fn start(
        scenario: &'a Scenario,
        lab: &'a Lab,
        shares: Option<&Shares>,
        root: &Path,
    ) -> Result<Self, String> {
        let mut agents = Self { scenario, lab, agents: Vec::new(), root: root.to_owned(), spins_per_s: 0.0 };
        for number in 0..scenario.machines {
            let dir = root.join(format!("agent-{number}"));
            fs::create_dir_all(&dir).map_err(|error| format!("{} cannot be made: {error}", dir.display()))?;
            let settings = "[owner]\nidle = \"1s\"\n";
            fs::write(dir.join("config.toml"), settings).map_err(|error| error.to_string())?;
            let percent = scenario.one(number).and_then(|machine| machine.processor_percent);
            let share = match (percent, shares) {
                (Some(percent), Some(shares)) => Some(shares.quota(number, percent)?),
                (None, _) => None,
                (Some(_), None) => {
                    return Err(format!("{}: shares of the processor need control groups", scenario.name));
                }
            };
            agents.agents.push(Agent { dir, process: None, share });
        }
        agents.cli(0, &["grid", "create", "--name", "conformance"])?;
        agents.switch_on(0)?;
        agents.wait(0..1, 1)?;
        if scenario.bag.iter().any(|bag| bag.computes) {
            agents.spins_per_s = agents.measure()?;
        }
        let invitation = agents.cli(0, &["grid", "invite", "--role", "submitter", "--uses", "1000"])?;
        let invitation = invitation["token"].as_str().ok_or("an invitation without a token")?.to_owned();
        let file = root.join("invitation");
        fs::write(&file, invitation).map_err(|error| error.to_string())?;
        let file = file.to_str().ok_or("the directory for temporary files has a name that is no text")?.to_owned();
        for number in 1..scenario.machines {
            agents.cli(number, &["grid", "join", &file])?;
            agents.switch_on(number)?;
        }
        agents.wait(0..scenario.machines, u64::from(scenario.machines))?;
        Ok(agents)
    }

    /// Starts the agent of a machine, for the first time or again.
    ///
    /// # Errors
    /// A sentence: what the system refuses.
    pub(crate) fn switch_on(&mut self, number: u32) -> Result<(), String> {
        let agent = &mut self.agents[number as usize];
        let dir = agent.dir.clone();
        let log =
            File::options().create(true).append(true).open(dir.join("agent.log")).map_err(|error| error.to_string())?;
        let mut arguments: Vec<String> = ["run", "--die-with-parent", "--listen"].map(str::to_owned).to_vec();
        arguments.push(format!("/ip4/{}/tcp/{PORT}", lab::address(number)));
        let pairs = [
            ("--state-dir", dir.display().to_string()),
            ("--config", dir.join("config.toml").display().to_string()),
            ("--owner-probe", dir.join("owner").display().to_string()),
            ("--speed-mops", self.scenario.speed_mops(number).to_string()),
            ("--slots", self.scenario.slots.to_string()),
            ("--lease", self.scenario.lease_s.to_string()),
        ];
        arguments.extend(pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        if number > 0 {
            arguments.extend(["--bootstrap".to_owned(), format!("/ip4/{}/tcp/{PORT}", lab::address(0))]);
        }
        let program = program()?;
        let mut command = match &agent.share {
            // The shell enters the group, and becomes the agent.
            Some(share) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(share).arg(program);
                shell
            }
            None => Command::new(program),
        };
        command.args(arguments);
        // Nothing of the desktop that the run is started from is looked at.
        command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").env("XDG_RUNTIME_DIR", &dir);
        command
            .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
            .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere");
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(|error| error.to_string())?).stderr(log);
        let started = self.lab.machines[number as usize].run(move || command.spawn());
        agent.process = Some(started.map_err(|error| format!("agent {number} cannot be started: {error}"))?);
        Ok(())
    }

    /// Kills the agent of a machine, whose workers end with it.
    ///
    /// # Errors
    /// A sentence: it was not there.
    pub(crate) fn kill(&mut self, number: u32) -> Result<(), String> {
        let process = self.agents[number as usize].process.take();
        let mut process = process.ok_or(format!("agent {number} is down already"))?;
        process.kill().and_then(|()| process.wait()).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Machines whose agents run.
    pub(crate) fn running(&self) -> Vec<u32> {
        (0..).zip(&self.agents).filter(|(_, agent)| agent.process.is_some()).map(|(number, _)| number).collect()
    }

    /// The owner of a machine comes or goes.
    ///
    /// # Errors
    /// A sentence: what the system refuses.
    pub(crate) fn owner(&self, number: u32, here: bool) -> Result<(), String> {
        let file = self.agents[number as usize].dir.join("owner");
        let done = if here { File::create(file).map(drop) } else { fs::remove_file(file) };
        done.map_err(|error| format!("the owner of machine {number} cannot be told of: {error}"))
    }

    /// Asks an agent something.
    fn ask<T: Send + 'static>(
        &self,
        number: u32,
        what: impl FnOnce(&Client) -> Result<T, idlewood_api::client::ClientError> + Send + 'static,
    ) -> Result<T, String> {
        let dir = self.agents[number as usize].dir.clone();
        let answer =
            self.lab.machines[number as usize].run(move || Client::open(&dir).and_then(|client| what(&client)));
        answer.map_err(|error| format!("agent {number}: {error}"))
    }

    /// What an agent says of itself.
    ///
    /// # Errors
    /// A sentence: it does not answer.
    pub(crate) fn status(&self, number: u32) -> Result<Status, String> {
        self.ask(number, Client::status)
    }

    /// What an agent says of a bag.
    ///
    /// # Errors
    /// A sentence: it does not answer.
    pub(crate) fn bag(&self, number: u32, id: &str) -> Result<BagDetail, String> {
        let id = id.to_owned();
        self.ask(number, move |client| client.bag(&id))
    }

    /// On which machine each task of a bag ended, and how long it took there, in seconds.
    ///
    /// # Errors
    /// A sentence: its submitter does not answer.
    pub(crate) fn took_s(&self, number: u32, id: &str) -> Result<Vec<(String, f64)>, String> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let id = id.to_owned();
            let tasks = self.ask(number, move |client| client.tasks(&id, from, TASKS_MAX, &[]))?;
            all.extend(tasks.tasks.into_iter().filter_map(|task| task.machine.zip(task.took_s)));
            next = tasks.next;
        }
        Ok(all)
    }

    /// Submits a bag.
    ///
    /// # Errors
    /// A sentence: what the agent refuses.
    pub(crate) fn submit(&self, bag: &scenario::Bag, number: usize) -> Result<Bag, String> {
        let probe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tasks/probe/probe.wasm");
        let millis = (bag.task_s * 1e3).round().to_string();
        let args = if bag.computes {
            vec!["spin".to_owned(), (bag.task_s * self.spins_per_s).round().max(1.0).to_string()]
        } else if bag.output_bytes > 0 {
            // The name differs, and so the output: machines fetch the same one once.
            vec!["fill".to_owned(), "out-{}-".to_owned(), "1".to_owned(), bag.output_bytes.to_string(), millis]
        } else {
            vec!["sleep".to_owned(), millis]
        };
        let input = match bag.input_bytes {
            0 => None,
            bytes => Some(self.input(number, bytes)?),
        };
        let options = idlewood::submit::options::Options {
            program: Some(probe),
            array: Some(format!("0-{}", bag.tasks - 1).parse::<Array>().map_err(|error| error.to_string())?),
            input: input.into_iter().collect(),
            work: Some(Scenario::task_mops(bag)),
            name: Some(format!("bag-{number}")),
            args,
            ..Default::default()
        };
        let plan = idlewood::submit::Plan::new(options, std::io::empty()).map_err(|error| error.to_string())?;
        self.ask(bag.submitter, move |client| {
            for (hash, local) in &plan.files {
                let hash = blake3::Hash::from_bytes(*hash);
                if !client.has_blob(hash)? {
                    let file = File::open(&local.path).expect("it was read a moment ago");
                    client.upload(hash, &file)?;
                }
            }
            client.submit(&plan.request)
        })
    }

    /// Measures how much a task computes in a second, on the first machine, which is alone and has a whole processor.
    fn measure(&mut self) -> Result<f64, String> {
        if self.scenario.one(0).is_some_and(|machine| machine.processor_percent.is_some()) {
            return Err(format!(
                "{}: machine 0 must have a whole processor, where speeds are measured",
                self.scenario.name
            ));
        }
        self.spins_per_s = 100.0;
        let bag = scenario::Bag {
            at_s: 0.0,
            submitter: 0,
            tasks: 4,
            task_s: 1.0,
            output_bytes: 0,
            input_bytes: 0,
            computes: true,
        };
        let id = self.submit(&bag, usize::MAX)?.id;
        let until = Instant::now() + PATIENCE;
        loop {
            let shown = self.bag(0, &id)?.bag;
            if let Some(mops) = shown.measured_mops.filter(|_| shown.done == shown.tasks) {
                return Ok(self.spins_per_s / (mops / scenario::SPEED_MOPS));
            }
            if Instant::now() > until {
                return Err("the tasks that measure this computer do not end".to_owned());
            }
            stop::sleep_until(Instant::now() + Duration::from_millis(50))?;
        }
    }

    /// A file that no program makes smaller.
    fn input(&self, number: usize, bytes: u64) -> Result<PathBuf, String> {
        let path = self.root.join(format!("input-{number}"));
        let mut hasher = blake3::Hasher::new();
        hasher.update(&number.to_le_bytes());
        let mut content = hasher.finalize_xof();
        let mut left = bytes;
        let mut block = [0; 1 << 16];
        let written = File::create(&path).and_then(|mut file| {
            while left > 0 {
                let part = left.min(block.len() as u64) as usize;
                content.fill(&mut block[..part]);
                file.write_all(&block[..part])?;
                left -= part as u64;
            }
            Ok(())
        });
        written.map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        Ok(path)
    }

    /// Runs the command line of a machine; returns what it prints.
    fn cli(&self, number: u32, arguments: &[&str]) -> Result<Value, String> {
        let dir = self.agents[number as usize].dir.clone();
        let mut command = Command::new(program()?);
        command.arg("--state-dir").arg(&dir).arg("--config").arg(dir.join("config.toml")).args(["--output", "json"]);
        command.args(arguments).stdin(Stdio::null());
        let output = self.lab.machines[number as usize].run(move || command.output());
        let output = output.map_err(|error| format!("the command line cannot be run: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(format!("{arguments:?} on machine {number}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(said.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null))
    }

    /// Waits until these machines see a grid of so many.
    fn wait(&self, numbers: std::ops::Range<u32>, machines: u64) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        for number in numbers {
            while !self.status(number).is_ok_and(|status| status.grid_machines == machines) {
                if Instant::now() > until {
                    let log =
                        fs::read_to_string(self.agents[number as usize].dir.join("agent.log")).unwrap_or_default();
                    return Err(format!("machine {number} does not see {machines} machines: {log}"));
                }
                stop::sleep_until(Instant::now() + Duration::from_millis(50))?;
            }
        }
        Ok(())
    }
}

impl Drop for Agents<'_> {
    fn drop(&mut self) {
        for process in self.agents.iter_mut().filter_map(|agent| agent.process.as_mut()) {
            if let Err(error) = process.kill() {
                eprintln!("an agent could not be ended: {error}");
            }
        }
        for mut process in self.agents.iter_mut().filter_map(|agent| agent.process.take()) {
            if let Err(error) = process.wait() {
                eprintln!("an agent did not end: {error}");
            }
        }
    }
}

/// This program, which serves as the agent, too.
fn program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))
}
