//! The agent processes of the demo. Dropping the grid ends them all.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use idlewood_trust::{Gate, Membership, Offer, Role, identity, keep, now_s};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use idlewood_api::client::Client;

/// How long an agent may take to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an agent may take to leave in good order.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the user wants to stop.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT and SIGTERM only set a flag.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = flag.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let (Ok(mut interrupt), Ok(mut terminate)) =
                    (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
                else {
                    return;
                };
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    seen.store(true, Ordering::Relaxed);
                }
            });
        })?;
        Ok(Self(flag))
    }

    /// Whether the user wants to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// When the user wants to stop.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_set() {
            bail!("interrupted; all agents are stopped");
        }
        Ok(())
    }
}

/// One agent process.
#[derive(Debug)]
pub(crate) struct Agent {
    directory: PathBuf,
    process: Option<Child>,
}

impl Agent {
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::open(&self.directory)?)
    }

    pub(crate) fn status(&self) -> anyhow::Result<idlewood_api::Status> {
        Ok(self.client()?.status()?)
    }

    fn owner_file(&self) -> PathBuf {
        self.directory.join("owner-is-here")
    }

    /// Simulates the owner's coming or going: the agent's probe looks for a file.
    pub(crate) fn set_owner(&self, present: bool) -> anyhow::Result<()> {
        let path = self.owner_file();
        if present {
            File::create(&path)?;
        } else {
            std::fs::remove_file(&path)?;
        }
        Ok(())
    }

    /// Its process id, until it is reaped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Asks it to end in good order. Its id is its own until it is reaped.
    fn terminate(&self) {
        let pid = self.process.as_ref().and_then(|process| Pid::from_raw(process.id() as i32));
        if let Some(pid) = pid
            && let Err(error) = kill_process(pid, Signal::TERM)
        {
            tracing::debug!(%error, "an agent is gone already");
        }
    }

    /// Sends SIGKILL and reaps it. Does nothing if it was reaped before.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take()
            && let Err(error) = process.kill().and_then(|()| process.wait())
        {
            tracing::debug!(%error, "an agent cannot be waited for");
        }
    }
}

/// All agents of the demo.
#[derive(Debug)]
pub(crate) struct Grid {
    pub(crate) agents: Vec<Agent>,
    speed_mops: f64,
    /// Gate of the first agent's machine, which made the grid.
    gate: Gate,
    /// Holds the state directories.
    root: TempDir,
}

impl Grid {
    /// Starts `count` agents of a grid of their own, in a temporary directory with this prefix; all but the first join through the first.
    pub(crate) fn start(prefix: &str, count: usize, speed_mops: f64, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let root = tempfile::Builder::new().prefix(prefix).tempdir().context("cannot create a directory")?;
        let first = root.path().join("agent-0");
        let machine = identity::load_or_create(&first)?;
        let membership = Membership::create(&first, &machine, "demo", None, now_s())?;
        let gate = Gate::open(&machine, Some(membership))?;
        let mut grid = Self { agents: Vec::new(), speed_mops, gate, root };
        for number in 0..count {
            interrupt.check()?;
            let directory = grid.root.path().join(format!("agent-{number}"));
            if number > 0 {
                join_beside(&grid.gate, &directory, &identity::load_or_create(&directory)?)?;
            }
            // A private grid, for a minute: only the probe file counts as its owner, not even a battery.
            std::fs::write(directory.join("config.toml"), "[owner]\non_battery = true\n")?;
            let bootstrap = match grid.agents.first() {
                Some(first) => Some(wait_for_agent(first, interrupt)?),
                None => None,
            };
            let process = grid.spawn(&directory, bootstrap.as_deref())?;
            grid.agents.push(Agent { directory, process: Some(process) });
        }
        Ok(grid)
    }

    fn spawn(&self, directory: &Path, bootstrap: Option<&str>) -> anyhow::Result<Child> {
        let log = File::options().create(true).append(true).open(directory.join("agent.log"))?;
        let program = std::env::current_exe().context("cannot find the program's own file")?;
        let mut command = Command::new(program);
        command.arg("run").arg("--state-dir").arg(directory).args(["--listen", "/ip4/127.0.0.1/tcp/0"]);
        command.arg("--speed-mops").arg(self.speed_mops.to_string());
        command.arg("--owner-probe").arg(directory.join("owner-is-here"));
        // The owner's own settings are not for the demo.
        command.arg("--config").arg(directory.join("config.toml"));
        // The demo may be killed, too: its agents end with it.
        command.arg("--die-with-parent");
        if let Some(bootstrap) = bootstrap {
            command.args(["--bootstrap", bootstrap]);
        }
        // Ctrl-C is for the demo, which then stops its agents.
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().context("cannot start an agent")
    }

    /// Starts a killed agent again, on its old state directory.
    pub(crate) fn restart(&mut self, number: usize, interrupt: &Interrupt) -> anyhow::Result<()> {
        let other = self.agents.iter().find(|agent| agent.process.is_some());
        let bootstrap = other.map(|other| wait_for_agent(other, interrupt)).transpose()?;
        let process = self.spawn(&self.agents[number].directory, bootstrap.as_deref())?;
        self.agents[number].process = Some(process);
        Ok(())
    }

    /// Waits until every agent is a member and the root counts them all.
    pub(crate) fn wait_until_formed(&self, timeout: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
        let begin = Instant::now();
        let count = self.agents.len() as u64;
        let formed = |agent: &Agent| agent.status().is_ok_and(|status| status.grid_machines == count);
        while !self.agents.iter().all(formed) {
            interrupt.check()?;
            if begin.elapsed() > timeout {
                bail!("the agents did not become one grid within {} s; {}", timeout.as_secs(), self.logs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The agents' latest log lines, for an error message.
    fn logs(&self) -> String {
        let last = |agent: &Agent| -> Option<String> {
            let log = std::fs::read_to_string(agent.directory.join("agent.log")).ok()?;
            log.lines().last().map(str::to_owned)
        };
        let lines: Vec<String> = self.agents.iter().filter_map(last).collect();
        format!("their last words: {}", lines.join(" | "))
    }

    /// Stops all agents in good order, and kills those that do not end.
    pub(crate) fn stop(&mut self) {
        for agent in &self.agents {
            agent.terminate();
        }
        let begin = Instant::now();
        for agent in &mut self.agents {
            let ended = |process: &mut Child| !matches!(process.try_wait(), Ok(None));
            while agent.process.as_mut().is_some_and(|process| !ended(process)) && begin.elapsed() < STOP_TIMEOUT {
                std::thread::sleep(Duration::from_millis(20));
            }
            agent.kill();
        }
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes the machine of `state_dir` a submitter of the issuer's grid: both are directories of one user.
fn join_beside(issuer: &Gate, state_dir: &Path, machine: &Keypair) -> anyhow::Result<()> {
    let hour = Duration::from_secs(3_600);
    let invitation = issuer.invite(Offer { role: Role::Submitter, valid: hour, uses: 1, lifetime: 24 * hour }, None)?;
    let me = identity::peer_id(machine).context("the machine's key is not an Ed25519 key")?;
    let welcome = issuer.welcome(me, &invitation.secret)?;
    keep(state_dir, machine, &invitation, &welcome, &Multiaddr::empty())?;
    Ok(())
}

/// Waits until an agent answers; returns its address.
fn wait_for_agent(agent: &Agent, interrupt: &Interrupt) -> anyhow::Result<String> {
    let begin = Instant::now();
    loop {
        interrupt.check()?;
        let error = match agent.status() {
            Ok(status) => match status.listen.into_iter().next() {
                Some(address) => return Ok(address),
                None => anyhow!("it listens nowhere"),
            },
            Err(error) => error,
        };
        if begin.elapsed() > START_TIMEOUT {
            let log = std::fs::read_to_string(agent.directory.join("agent.log"));
            let log = log.unwrap_or_else(|error| format!("(its log cannot be read: {error})"));
            return Err(error.context(format!("an agent does not answer; it said: {}", log.trim())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
