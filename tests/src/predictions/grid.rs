//! The agents that bags are run on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::options::Options;
use crate::shares::Shares;

/// How long agents may take to become one grid.
const PATIENCE: Duration = Duration::from_secs(60);
/// Starts a program that sees no control groups, as in a container.
const HIDING: &str = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";

struct Agent {
    dir: PathBuf,
    process: Child,
}

impl Agent {
    /// The owner is there while this file is.
    fn owner(&self) -> PathBuf {
        self.dir.join("owner")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.kill().and_then(|()| self.process.wait()).is_err() {
            eprintln!("an agent had ended already");
        }
    }
}

/// All agents; they end when this is dropped.
pub(super) struct Grid<'a> {
    pub(super) options: &'a Options,
    agents: Vec<Agent>,
    pub(super) root: PathBuf,
    token: String,
    shares: Option<Shares>,
}

/// One bag that has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) id: String,
    pub(super) shown: Value,
    /// From its first start to its end, in seconds.
    pub(super) took_s: f64,
}

impl<'a> Grid<'a> {
    /// Starts the first agent, which submits all bags.
    ///
    /// # Errors
    /// A sentence: what went wrong, as for all functions here.
    pub(super) fn start(options: &'a Options, root: &Path) -> Result<Self, String> {
        let shares = if options.quotas.is_empty() { None } else { Some(Shares::new()?) };
        let mut grid = Self { options, agents: Vec::new(), root: root.to_owned(), token: String::new(), shares };
        let dir = grid.dir(0);
        fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        grid.command(&dir, &["grid", "create", "--name", "predictions"])?;
        grid.run(0)?;
        let made = grid.ask(&["grid", "invite", "--role", "submitter", "--uses", "1000"])?;
        made["token"].as_str().ok_or("an invitation without a token")?.clone_into(&mut grid.token);
        Ok(grid)
    }

    /// Starts all others, and waits until they are one grid.
    pub(super) fn join_others(&mut self) -> Result<(), String> {
        for number in 1..self.options.agents {
            let dir = self.dir(number);
            fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
            self.command(&dir, &["grid", "join", &self.token])?;
            self.run(number)?;
        }
        self.wait_until_formed()
    }

    fn wait_until_formed(&self) -> Result<(), String> {
        let begin = Instant::now();
        while self.ask(&["status"])?["grid_machines"] != json!(self.agents.len()) {
            if begin.elapsed() > PATIENCE {
                return Err("the agents did not become one grid".to_owned());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn dir(&self, number: usize) -> PathBuf {
        self.root.join(format!("agent-{number}"))
    }

    /// Starts an agent and waits until it answers.
    fn run(&mut self, number: usize) -> Result<(), String> {
        let dir = self.dir(number);
        let process = self.spawn(number, &dir)?;
        let agent = Agent { dir: dir.clone(), process };
        match self.agents.get_mut(number) {
            Some(before) => *before = agent,
            None => self.agents.push(agent),
        }
        let begin = Instant::now();
        while self.command(&dir, &["status"]).is_err() {
            if begin.elapsed() > PATIENCE {
                return Err(format!("agent {number} does not answer: see {}", dir.display()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn spawn(&self, number: usize, dir: &Path) -> Result<Child, String> {
        let log = fs::File::options().create(true).append(true).open(dir.join("agent.log"));
        let log = log.map_err(|error| error.to_string())?;
        fs::write(dir.join("config.toml"), "[owner]\non_battery = true\n").map_err(|error| error.to_string())?;
        let mut command = if self.options.is_hidden {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", HIDING, "sh"]).arg(&self.options.program);
            command
        } else {
            Command::new(&self.options.program)
        };
        command.args(["run", "--listen", "/ip4/127.0.0.1/tcp/0", "--slots", "1", "--die-with-parent"]);
        command.arg("--state-dir").arg(dir).arg("--config").arg(dir.join("config.toml"));
        // No file is there: nobody is.
        command.arg("--owner-probe").arg(dir.join("owner"));
        if number > 0 {
            let status = self.ask(&["status"])?;
            let address = status["listen"][0].as_str().ok_or("an agent that listens nowhere")?.to_owned();
            command.arg("--bootstrap").arg(address);
        }
        // Made anew at each start: the group of a process that ended may not be gone yet.
        let quota = match (&self.shares, self.options.quotas.get(number)) {
            (Some(shares), Some(percent)) => Some(shares.quota(u32::try_from(number).unwrap_or(0), *percent)?),
            _ => None,
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let started = command.spawn();
        let mut child = started.map_err(|error| format!("{:?} does not start: {error}", command.get_program()))?;
        if let Some(procs) = quota
            && let Err(error) = fs::write(procs, child.id().to_string())
        {
            let ended = child.kill().and_then(|()| child.wait());
            return Err(format!("agent {number} can be given no quota: {error} ({ended:?})"));
        }
        Ok(child)
    }

    fn command(&self, dir: &Path, words: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(&self.options.program);
        command.arg("--state-dir").arg(dir).args(["--output", "json"]).args(words);
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null))
    }

    /// What the submitting agent answers.
    pub(super) fn ask(&self, words: &[&str]) -> Result<Value, String> {
        self.command(&self.dir(0), words)
    }

    /// What each running agent says of itself.
    pub(super) fn statuses(&self) -> Vec<Value> {
        self.agents.iter().map(|agent| self.command(&agent.dir, &["status"]).unwrap_or(Value::Null)).collect()
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self, number: usize) -> Result<(), String> {
        let process = &mut self.agents[number].process;
        process.kill().and_then(|()| process.wait().map(|_| ())).map_err(|error| error.to_string())
    }

    /// Starts a killed agent again.
    pub(super) fn revive(&mut self, number: usize) -> Result<(), String> {
        self.run(number)?;
        self.wait_until_formed()
    }

    /// The owner of a machine comes, or goes.
    pub(super) fn set_owner(&self, number: usize, is_there: bool) -> Result<(), String> {
        let owner = self.agents[number].owner();
        let set = if is_there { fs::write(owner, "") } else { fs::remove_file(owner) };
        set.map_err(|error| error.to_string())
    }

    /// One of our programs.
    pub(super) fn task(&self, name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../agent/tasks/{name}/{name}.wasm"));
        path.display().to_string()
    }

    /// Submits a bag; its id.
    pub(super) fn submit(&self, words: &[String]) -> Result<String, String> {
        let words: Vec<&str> =
            ["submit", "--stewards", "0"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let bag = self.ask(&words)?;
        Ok(bag["id"].as_str().ok_or("a bag without an id")?.to_owned())
    }

    /// Waits for the end of a bag.
    pub(super) fn wait(&self, id: String) -> Result<Ended, String> {
        self.ask(&["bag", "wait", &id])?;
        let shown = self.ask(&["bag", "show", &id])?;
        let number = |name: &str| shown[name].as_f64().ok_or(format!("the bag has no {name}"));
        let took_s = number("elapsed_s")? - number("first_start_s")?;
        Ok(Ended { id, took_s, shown })
    }

    /// Submits a bag and waits for its end.
    pub(super) fn bag(&self, words: &[String]) -> Result<Ended, String> {
        self.wait(self.submit(words)?)
    }
}
