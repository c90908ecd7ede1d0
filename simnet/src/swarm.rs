//! The swarm: thousands of small random worlds, each with its own machines, settings, faults and schedule.
//!
//! A case is its seed and nothing else. Phase one: machines start, and the faults that the case has drawn from the
//! catalogue hit links and machines at random moments, while every safety invariant is checked after every event. Phase
//! two: all faults stop, every machine is started again, and the tree must become the true one within
//! [`i6_tree::bound`], and stay so for a while. A violation is printed with the invariant, the moment, and the seed,
//! which reproduces it.
//!
//! There are two kinds of worlds: of overlays alone (here), and of whole machines with bags ([`bags`]).
//!
//! Every machine knows a contact that is never replaced by another machine, as an agent's list of contacts has it: no
//! protocol finds machines that no machine knows. Large worlds and long times are for the experiments.

pub mod bags;
mod catalogue;
mod summary;

use std::fmt;
use std::time::Duration;

use idlewood_overlay::{Config, Time};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt};

use crate::condition::Pause;
use crate::event_queue::HostIndex;
use crate::invariant::{Invariant, Safety, Violation, i6_tree};
use crate::network::Quality;
use crate::overlay::{Memory, Settings, World};
use crate::random::{exponential, happens, log_uniform, pick, stream};

pub use self::catalogue::{CATALOGUE, Fault};
pub use self::summary::{Failure, Kind, Summary, run};

/// Fewest and most machines of a case.
pub const HOSTS: (u32, u32) = (3, 64);
/// Machines that are never replaced by others, and that all machines have among their contacts.
const CONTACTS: HostIndex = 2;
/// Once faults have stopped, the whole tree is compared with the oracle so often.
const LOOK: Duration = Duration::from_millis(500);

/// One world and its faults.
#[derive(Clone, Debug)]
pub struct Case {
    /// Seed of everything.
    pub seed: u64,
    /// Machines.
    pub hosts: u32,
    /// Settings of all peers.
    pub config: Config,
    /// Faults that can occur.
    pub faults: Vec<Fault>,
    /// Links while no fault affects them.
    pub quality: Quality,
    /// The machines start at random moments in it.
    pub start_window: Duration,
    /// How long faults go on.
    pub faulty: Duration,
    /// Mean time between two faults.
    pub pause: Duration,
}

/// How a case ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was broken first.
    pub violation: Option<Violation>,
    /// When the tree was the true one again after the last fault, for good.
    pub settled: Option<Duration>,
    /// Events that were checked.
    pub events: u64,
    /// Faults that occurred.
    pub faults: u32,
}

/// Settings at the edges of what is allowed, half of the time; else the default.
fn draw_config(rng: &mut impl Rng) -> Config {
    if happens(rng, 50.0) {
        return Config::default();
    }
    let heartbeat_ms = pick(rng, &[250, 1_000, 1_000, 5_000, 5_000, 12_000]);
    let probe_timeout_ms_max = pick(rng, &[200, 1_000, 4_000, 4_000, 10_000]);
    let nack_retry_ms = pick(rng, &[10, 50, 300, heartbeat_ms]).min(heartbeat_ms);
    let at_least_heartbeat = |ms: u64| ms.max(heartbeat_ms);
    let mut config = Config {
        heartbeat_ms,
        jitter_percent: pick(rng, &[0, 5, 50]),
        probe_timeout_ms_min: pick(rng, &[10, 250, probe_timeout_ms_max]).min(probe_timeout_ms_max),
        probe_timeout_ms_max,
        probe_tries: pick(rng, &[2, 3, 3, 6]),
        leaf_set_side_len: pick(rng, &[2, 2, 3, 8, 32]),
        child_lease_ms: pick(rng, &[2 * heartbeat_ms, 3 * heartbeat_ms, 60_000.max(2 * heartbeat_ms)]),
        nack_retry_ms,
        report_spacing_ms: pick(rng, &[0, 50, nack_retry_ms]).min(nack_retry_ms),
        exchange_ms: at_least_heartbeat(pick(rng, &[1_000, 30_000, 60_000])),
        lookup_ms: pick(rng, &[1_000, 10_000, 60_000]),
        tombstone_ms: at_least_heartbeat(pick(rng, &[1_000, 10_000, 60_000])),
        graveyard_len: pick(rng, &[2, 8, 64]),
        graveyard_probe_ms: at_least_heartbeat(pick(rng, &[1_000, 10_000, 30_000])),
        fingers_per_bucket: pick(rng, &[1, 4, 16]),
        leave_linger_ms: pick(rng, &[0, 1_000]),
        root_push_ms: pick(rng, &[10, 1_000, 10_000]),
        ..Config::default()
    };
    config.child_lease_ms = config.child_lease_ms.max(config.child_lease_ms_min());
    config
}

/// Longest latency with which such settings can work at all: no try waits longer than `probe_timeout_ms_max`, which is
/// five round trips; and a child's report, which follows a heartbeat after the last answer, arrives within its lease.
fn latency_us_max(config: &Config) -> u64 {
    let heartbeat_us = config.heartbeat_ms * 10 * (100 + config.jitter_percent);
    let lease_us = config.child_lease_ms * 1_000 - heartbeat_us;
    (config.probe_timeout_ms_max * 100).min(lease_us / 4).min(300_000)
}

impl Case {
    /// The case of this seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = stream(seed, "swarm case", 0);
        let share = pick(&mut rng, &[15.0, 40.0, 80.0]);
        let faults = CATALOGUE.into_iter().filter(|_| happens(&mut rng, share)).collect();
        Self::with(seed, faults, &mut rng)
    }

    /// The case of this seed, with every fault of the catalogue.
    pub fn with_all_faults(seed: u64) -> Self {
        Self::with(seed, CATALOGUE.to_vec(), &mut stream(seed, "swarm case", 1))
    }

    fn with(seed: u64, faults: Vec<Fault>, rng: &mut ChaCha8Rng) -> Self {
        let (fewest, most) = (f64::from(HOSTS.0), f64::from(HOSTS.1));
        let hosts = log_uniform(rng, fewest, most + 1.0).min(most) as u32;
        let config = draw_config(rng);
        let latency_us = rng.random_range(1_000..=latency_us_max(&config));
        let quality = Quality { latency_us, jitter_us: latency_us / 10, ..Quality::default() };
        let start_window = Duration::from_millis(pick(rng, &[1, 2_000, 20_000]));
        let faulty = Duration::from_secs(rng.random_range(20..=180));
        let pause = Duration::from_millis(pick(rng, &[300, 2_000, 10_000]));
        Self { seed, hosts, config, faults, quality, start_window, faulty, pause }
    }

    /// Runs the case, and checks these invariants; none: all.
    pub fn run(&self, watched: &[Invariant]) -> Outcome {
        let settings = Settings {
            config: self.config.clone(),
            quality: self.quality.clone(),
            ..Settings::new(self.hosts, self.seed)
        };
        let world = World::new(settings);
        let mut run = Run {
            case: self,
            rng: stream(self.seed, "swarm run", 0),
            safety: Safety::new(&self.config, world.grid(), self.hosts).watching(watched),
            world,
            paused: Vec::new(),
            faults: 0,
        };
        let outcome = run.faults_befall().and_then(|()| run.settle(watched));
        let (violation, settled) = match outcome {
            Ok(settled) => (None, settled),
            Err(violation) => (Some(violation), None),
        };
        Outcome { violation, settled, events: run.world.events(), faults: run.faults }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, hosts, faults, quality, start_window, faulty, pause, config } = self;
        writeln!(formatter, "case {seed}: {hosts} machines start in {start_window:?}, {faults:?}")?;
        writeln!(formatter, "for {faulty:?}, one every {pause:?}; latency {} µs", quality.latency_us)?;
        if *config != Config::default() {
            writeln!(formatter, "{config:?}")?;
        }
        Ok(())
    }
}

/// A case under way.
struct Run<'a> {
    case: &'a Case,
    rng: ChaCha8Rng,
    safety: Safety,
    world: World,
    paused: Vec<HostIndex>,
    faults: u32,
}

impl Run<'_> {
    /// Runs until a moment, and checks each step.
    fn run_until(&mut self, until: Time) -> Result<(), Violation> {
        while let Some(step) = self.world.step(until) {
            self.safety.stepped(&self.world, step)?;
        }
        Ok(())
    }

    fn disturbed(&mut self, host: HostIndex) -> Result<(), Violation> {
        self.safety.disturbed(&self.world, host)
    }

    // ---- phase one ----

    fn faults_befall(&mut self) -> Result<(), Violation> {
        let window = self.case.start_window.as_micros() as u64;
        let mut starts: Vec<_> = (0..self.case.hosts).map(|host| (self.rng.random_range(0..window), host)).collect();
        starts.sort_unstable();
        for (at, host) in starts {
            self.run_until(Time::from_micros(at as i64))?;
            self.start(host, Memory::Kept)?;
        }
        let end = self.world.now() + self.case.faulty;
        loop {
            let pause = exponential(&mut self.rng, self.case.pause.as_micros() as u64);
            let at = self.world.now() + Duration::from_micros(pause);
            self.run_until(at.min(end))?;
            if at >= end {
                return Ok(());
            }
            if !self.case.faults.is_empty() {
                let fault = pick(&mut self.rng, &self.case.faults);
                self.faults += 1;
                self.befall(fault)?;
            }
            self.recover()?;
        }
    }

    /// Starts a machine and gives it the contacts that all machines have.
    fn start(&mut self, host: HostIndex, memory: Memory) -> Result<(), Violation> {
        self.world.start(host, memory);
        for contact in (0..CONTACTS).filter(|contact| *contact != host) {
            self.world.introduce(host, contact);
        }
        self.disturbed(host)
    }

    fn befall(&mut self, fault: Fault) -> Result<(), Violation> {
        let mut quality = self.world.network().quality().clone();
        match fault {
            Fault::Delay | Fault::Jitter | Fault::Loss | Fault::Duplication | Fault::Reordering => {
                fault.befall_links(&mut self.rng, &mut quality, &self.case.quality);
            }
            Fault::Partition => catalogue::partition(&mut self.rng, self.world.network_mut(), self.case.hosts),
            Fault::Crash | Fault::Amnesia | Fault::Stale | Fault::Stranger => self.crash_some(),
            Fault::Leave => {
                if let Some(host) = self.somebody_up() {
                    self.world.leave(host);
                    self.disturbed(host)?;
                }
            }
            Fault::Pause => {
                if let Some(host) = self.somebody_up() {
                    let pause = pick(&mut self.rng, &[Pause::Lose, Pause::Queue]);
                    self.world.pause(host, pause);
                    self.paused.push(host);
                }
            }
            Fault::Slow => {
                let host = self.rng.random_range(0..self.case.hosts);
                let by = if happens(&mut self.rng, 50.0) { 0 } else { self.rng.random_range(0..=3_000_000) };
                self.world.slow_down(host, Duration::from_micros(by));
            }
            Fault::ClockJump => {
                let host = self.rng.random_range(0..self.case.hosts);
                let by_us = log_uniform(&mut self.rng, 1e5, 7.2e9) as i64;
                self.world.jump_clock(host, if happens(&mut self.rng, 50.0) { by_us } else { -by_us });
            }
        }
        self.world.network_mut().set_quality(quality);
        Ok(())
    }

    fn crash_some(&mut self) {
        let share = pick(&mut self.rng, &[0.0, 0.0, 0.0, 0.2, 0.5, 0.9]);
        let count = ((self.world.up().len() as f64 * share) as usize).max(1);
        for _ in 0..count {
            if let Some(host) = self.somebody_up() {
                self.world.crash(host);
            }
        }
    }

    fn somebody_up(&mut self) -> Option<HostIndex> {
        let up = self.world.up();
        (!up.is_empty()).then(|| up[self.rng.random_range(0..up.len())])
    }

    /// Now and then a machine comes back, or a lid is opened.
    fn recover(&mut self) -> Result<(), Violation> {
        if !self.paused.is_empty() && happens(&mut self.rng, 40.0) {
            let host = self.paused.swap_remove(self.rng.random_range(0..self.paused.len()));
            self.resume(host);
        }
        let down: Vec<_> = (0..self.case.hosts).filter(|host| self.world.overlay(*host).is_none()).collect();
        if down.is_empty() || happens(&mut self.rng, 40.0) {
            return Ok(());
        }
        let host = pick(&mut self.rng, &down);
        let memory = self.memory(host);
        self.start(host, memory)
    }

    fn resume(&mut self, host: HostIndex) {
        self.world.resume(host);
        self.safety.resumed(&self.world, host);
    }

    /// What a machine that comes back remembers.
    fn memory(&mut self, host: HostIndex) -> Memory {
        let has = |fault| self.case.faults.contains(&fault);
        let mut options = vec![Memory::Kept];
        options.extend(has(Fault::Amnesia).then_some(Memory::Lost));
        options.extend(has(Fault::Stale).then_some(Memory::Stale));
        options.extend((has(Fault::Stranger) && host >= CONTACTS).then_some(Memory::Stranger));
        pick(&mut self.rng, &options)
    }

    // ---- phase two ----

    /// Ends all faults, brings all machines back, and waits for the true tree.
    fn settle(&mut self, watched: &[Invariant]) -> Result<Option<Duration>, Violation> {
        self.world.network_mut().heal();
        self.world.network_mut().set_quality(self.case.quality.clone());
        for host in 0..self.case.hosts {
            self.world.slow_down(host, Duration::ZERO);
            self.resume(host);
        }
        // Machines that are leaving are given the time for it.
        let linger = Duration::from_millis(self.case.config.leave_linger_ms) + LOOK;
        self.run_until(self.world.now() + linger)?;
        for host in 0..self.case.hosts {
            if self.world.overlay(host).is_none() {
                let memory = self.memory(host);
                self.start(host, memory)?;
            }
        }
        let healed = self.world.now();
        let bound = i6_tree::bound(&self.case.config, self.case.faulty);
        let calm = Duration::from_millis(self.case.config.child_lease_ms + 2 * self.case.config.heartbeat_ms);
        let mut right_since = None;
        loop {
            self.run_until(self.world.now() + LOOK)?;
            let now = self.world.now();
            match self.compare() {
                Ok(()) => {
                    let since = *right_since.get_or_insert(now);
                    if now.since(since) >= calm {
                        return Ok(Some(since.since(healed)));
                    }
                }
                Err((host, what)) => {
                    right_since = None;
                    if now.since(healed) > bound {
                        if !watched.is_empty() && !watched.contains(&i6_tree::RULE) {
                            return Ok(None);
                        }
                        let what = format!("{what}, {bound:?} after the last fault");
                        return Err(Violation { invariant: i6_tree::RULE, at: now, host, what });
                    }
                }
            }
        }
    }

    fn compare(&self) -> Result<(), (Option<HostIndex>, String)> {
        let world = &self.world;
        let member = |host: &HostIndex| Some((*host, world.position(*host), world.overlay(*host)?));
        let members: Vec<_> = world.up().iter().filter_map(member).collect();
        i6_tree::check(&members, world.hosts())
    }
}
