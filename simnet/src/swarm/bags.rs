//! The swarm of whole machines: small random grids that work bags off under faults.
//!
//! Phase one: users submit bags, tasks fail, crash and come with outputs that cannot be fetched, some machines make results
//! up, some decline bags or route badly, and faults hit links and machines at random moments. After every event no request
//! may have been executed twice (I7), no result may be journalled before its output is there, no lie may be believed where a
//! quorum decides, and no message of a correct peer may have been refused as malformed. Phase two: all faults stop, and every
//! machine comes back. Within [`i6_tree::bound`] the tree must be the true one (I6), and within [`BAGS_BOUND`] every bag must be
//! closed with all its tasks delivered or failed for good; then every router's summary must be that of its leaves (I8).
//!
//! All faults of the overlay's catalogue occur but those that take a machine's disk or identity: a submitter that has lost
//! its disk has lost its bags, but for those that others keep ([`Case::draw_kept`]): of these no bag may be lost (I9). In their place a power cut may leave the last writes durable without the machine's knowledge,
//! failures may lose what a machine held for others, and owners come and go.

use std::fmt;
use std::time::Duration;

use idlewood_overlay::Time;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt};

use super::{Outcome, catalogue, draw_config, latency_us_max};
use crate::condition::Pause;
use crate::event_queue::HostIndex;
use crate::invariant::i7_once::Once;
use crate::invariant::i8_summary::{self, Summaries};
use crate::invariant::{Invariant, UNDERSTOOD, Violation, i6_tree, i9_kept};
use crate::random::{exponential, happens, log_uniform, pick, stream};
use crate::{BadRouting, Scenario, Simulation};

/// Fewest and most machines of a case.
const HOSTS: (u32, u32) = (2, 14);
/// Within this time of the last fault every bag is closed: the work of all bags takes minutes, a lease that was renewed
/// before the faults stopped lasts for minutes, and a task has its pauses between tries; our choice, many times that.
pub const BAGS_BOUND: Duration = Duration::from_secs(24 * 3600);
/// How long machines stay away that crashed, at most, and those that left, in the mean.
const DOWNTIME_MS_MAX: u64 = 90_000;
const DOWNTIME: Duration = Duration::from_secs(20);

/// Nothing that a user was promised is lost.
pub const KEPT: Invariant = Invariant {
    name: "bags",
    rule: "every accepted bag ends, with each task delivered or failed, once, with its output, and no lie where a quorum decides",
};

/// What can hit machines with bags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One of the overlay's: of links, a crash, a farewell, a lid, a slow machine, a clock that jumps.
    Overlay(super::Fault),
    /// Power cuts in the moment in which all writes under way have become durable, and the machine does not know.
    CrashBehindWrites,
    /// Owners come to their machines, or go.
    Owner,
    /// Disks are taken, wherever another keeper has each bag that is lost with one: in cases with stewards alone.
    DiskTaken,
}

/// All of it.
pub const CATALOGUE: [Fault; 13] = [
    Fault::Overlay(super::Fault::Delay),
    Fault::Overlay(super::Fault::Jitter),
    Fault::Overlay(super::Fault::Loss),
    Fault::Overlay(super::Fault::Duplication),
    Fault::Overlay(super::Fault::Reordering),
    Fault::Overlay(super::Fault::Partition),
    Fault::Overlay(super::Fault::Crash),
    Fault::Overlay(super::Fault::Leave),
    Fault::Overlay(super::Fault::Pause),
    Fault::Overlay(super::Fault::Slow),
    Fault::Overlay(super::Fault::ClockJump),
    Fault::CrashBehindWrites,
    Fault::Owner,
];

/// One grid, its bags and its faults.
#[derive(Clone, Debug)]
pub struct Case {
    /// Machines, links and bags; what machines do wrong all the time is part of it.
    pub scenario: Scenario,
    /// Faults that can occur.
    pub faults: Vec<Fault>,
    /// How long faults go on.
    pub faulty: Duration,
    /// Mean time between two faults.
    pub pause: Duration,
}

impl Case {
    /// The case of this seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = stream(seed, "swarm of bags", 0);
        let share = pick(&mut rng, &[15.0, 40.0, 80.0]);
        let faults = CATALOGUE.into_iter().filter(|_| happens(&mut rng, share)).collect();
        let mut scenario = draw_scenario(seed, &mut rng);
        // Cases with stewards are drawn apart.
        (scenario.peer.stewards, scenario.peer.kept_bags_max) = (0, 0);
        let faulty = Duration::from_secs(rng.random_range(60..=600));
        let pause = Duration::from_millis(pick(&mut rng, &[1_000, 5_000, 20_000]));
        Self { scenario, faults, faulty, pause }
    }

    /// The case of this seed with bags that others keep, and with disks that are taken: the same machines, bags and other faults, tasks that
    /// take longer, and for longer.
    pub fn draw_kept(seed: u64) -> Self {
        let mut case = Self::draw(seed);
        let mut rng = stream(seed, "swarm of kept bags", 0);
        let scenario = &mut case.scenario;
        scenario.nodes = scenario.nodes.max(4);
        // Bags with a quorum have no stewards.
        (scenario.replicas, scenario.quorum, scenario.recheck, scenario.liars_percent) = (1, 1, 0, 0.0);
        scenario.tasks_per_node = rng.random_range(3..=12);
        scenario.peer.stewards = rng.random_range(1..=3);
        scenario.peer.kept_bags_max = pick(&mut rng, &[1, 8, 64]);
        scenario.peer.appoint_after = Duration::from_secs(pick(&mut rng, &[0, 10, 30]));
        scenario.keep_results = rng.random_range(0..2) == 0;
        case.faults.push(Fault::DiskTaken);
        case.faulty = case.faulty.max(Duration::from_secs(300));
        case
    }

    /// Runs the case, and checks all invariants.
    ///
    /// # Panics
    /// When the drawn scenario is not valid: a mistake of this module.
    pub fn run(&self) -> Outcome {
        let simulation = Simulation::new(self.scenario.clone()).expect("a valid scenario");
        let mut run = Run {
            case: self,
            rng: stream(self.scenario.seed, "swarm of bags", 1),
            simulation,
            once: Once::default(),
            summaries: Summaries::default(),
            paused: Vec::new(),
            owned: vec![false; self.scenario.nodes as usize],
            events: 0,
            faults: 0,
        };
        let outcome = run.faults_befall().and_then(|()| run.settle());
        let (violation, settled) = match outcome {
            Ok(settled) => (None, Some(settled)),
            Err(violation) => (Some(violation), None),
        };
        Outcome { violation, settled, events: run.events, faults: run.faults }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, faults, faulty, pause } = self;
        writeln!(formatter, "case {}: {} machines, {faults:?}", scenario.seed, scenario.nodes)?;
        writeln!(formatter, "for {faulty:?}, one every {pause:?}")?;
        writeln!(formatter, "{scenario:?}")
    }
}

/// Zero in half of all cases, else one of these.
fn sometimes(rng: &mut impl Rng, options: &[f64]) -> f64 {
    if happens(rng, 50.0) { 0.0 } else { pick(rng, options) }
}

fn draw_scenario(seed: u64, rng: &mut ChaCha8Rng) -> Scenario {
    let nodes = rng.random_range(HOSTS.0..=HOSTS.1);
    let overlay = draw_config(rng);
    let (replicas, quorum) = pick(rng, &[(1, 1), (1, 1), (2, 2), (3, 2)]);
    let replicas = if replicas <= nodes { replicas } else { 1 };
    let quorum = if replicas == 1 { 1 } else { quorum };
    let latency_ms = rng.random_range(1..=(latency_us_max(&overlay) / 1_000).max(1));
    let defaults = Scenario::default();
    Scenario {
        nodes,
        bags: rng.random_range(1..=4),
        tasks_per_node: rng.random_range(1..=5),
        heavy_tailed: happens(rng, 30.0),
        bag_interval: Duration::from_secs(pick(rng, &[1, 10, 60])),
        declared: happens(rng, 70.0),
        slots: pick(rng, &[1, 1, 2, 4]),
        queue_lost: happens(rng, 20.0),
        persist: Duration::from_millis(pick(rng, &[1, 5, 200])),
        checkpoint_interval: happens(rng, 30.0).then_some(Duration::from_secs(10)),
        downtime: DOWNTIME,
        owner_idle: Duration::from_secs(pick(rng, &[0, 5, 60])),
        replicas,
        quorum,
        recheck: pick(rng, &[0, 3]),
        // Each lies for itself: two that agree are honest. Where there is no quorum all are.
        liars_percent: if quorum > 1 { sometimes(rng, &[10.0, 25.0]) } else { 0.0 },
        choosy_percent: sometimes(rng, &[30.0]),
        bad_routers_percent: sometimes(rng, &[15.0]),
        bad_routing: pick(rng, &[BadRouting::Drop, BadRouting::Delay, BadRouting::OneChild]),
        fails_percent: sometimes(rng, &[5.0, 40.0]),
        crashes_percent: sometimes(rng, &[5.0, 20.0]),
        unfetched_percent: sometimes(rng, &[20.0, 60.0]),
        // Smaller outputs come with the word that a task has ended, and are never fetched.
        output_bytes: if seed.is_multiple_of(3) { 100_000 } else { defaults.output_bytes },
        latency_ms,
        peer: idlewood_scheduler::Config {
            overlay,
            lease: Duration::from_secs(pick(rng, &[10, 60, 60])),
            vacate_after: Duration::from_secs(pick(rng, &[5, 60, 600])),
            ..defaults.peer.clone()
        },
        horizon: Duration::from_secs(30 * 24 * 3600),
        seed,
        ..defaults
    }
}

/// A case under way.
struct Run<'a> {
    case: &'a Case,
    rng: ChaCha8Rng,
    simulation: Simulation,
    once: Once,
    summaries: Summaries,
    paused: Vec<HostIndex>,
    /// By machine: whether its owner is there.
    owned: Vec<bool>,
    events: u64,
    faults: u32,
}

impl Run<'_> {
    fn violates(&self, invariant: Invariant, host: Option<HostIndex>, what: String) -> Violation {
        Violation { invariant, at: self.simulation.now(), host, what }
    }

    /// Runs until a moment, and checks each step.
    fn run_until(&mut self, until: Time) -> Result<(), Violation> {
        while self.simulation.step(until) {
            self.events += 1;
            self.once.started(&self.simulation)?;
            self.once.sent_down(&self.simulation)?;
            self.summaries.stepped(&self.simulation);
            let without = self.simulation.record().without_output;
            if without > 0 {
                return Err(self.violates(KEPT, None, format!("{without} results journalled without their output")));
            }
        }
        self.look()
    }

    /// Checks what takes a look at all machines.
    fn look(&self) -> Result<(), Violation> {
        let scenario = &self.case.scenario;
        for host in 0..scenario.nodes {
            let Some(peer) = self.simulation.peer(host) else { continue };
            let counters = peer.overlay_view().counters();
            if counters.malformed + counters.oversized + counters.foreign_grid + counters.forged_sender > 0 {
                return Err(self.violates(UNDERSTOOD, Some(host), format!("{counters:?}")));
            }
        }
        if scenario.peer.stewards > 0 {
            i9_kept::check(&self.simulation)?;
        }
        let lies = self.simulation.report().false_tasks;
        if scenario.quorum > 1 && lies > 0 {
            return Err(self.violates(KEPT, None, format!("{lies} lies were believed")));
        }
        Ok(())
    }

    // ---- phase one ----

    fn faults_befall(&mut self) -> Result<(), Violation> {
        let start = Time::ZERO + self.case.scenario.start_window();
        self.run_until(start)?;
        let end = start + self.case.faulty;
        loop {
            let pause = exponential(&mut self.rng, self.case.pause.as_micros() as u64);
            let at = self.simulation.now() + Duration::from_micros(pause);
            self.run_until(at.min(end))?;
            if at >= end {
                return Ok(());
            }
            if !self.case.faults.is_empty() {
                let fault = pick(&mut self.rng, &self.case.faults);
                self.faults += 1;
                self.befall(fault);
            }
            if !self.paused.is_empty() && happens(&mut self.rng, 40.0) {
                let host = self.paused.swap_remove(self.rng.random_range(0..self.paused.len()));
                self.simulation.resume(host);
            }
        }
    }

    fn befall(&mut self, fault: Fault) {
        let hosts = self.case.scenario.nodes;
        match fault {
            Fault::Overlay(fault) => self.befall_overlay(fault),
            Fault::CrashBehindWrites => {
                if let Some(host) = self.somebody_up() {
                    let downtime = self.downtime();
                    self.simulation.crash_behind_writes(host, downtime);
                }
            }
            Fault::DiskTaken => {
                let able = self.awake().filter(|host| i9_kept::can_lose_disk(&self.simulation, *host));
                let able: Vec<HostIndex> = able.collect();
                if !able.is_empty() {
                    let (host, downtime) = (pick(&mut self.rng, &able), self.downtime());
                    self.simulation.take_disk(host, downtime);
                }
            }
            Fault::Owner => {
                let host = self.rng.random_range(0..hosts);
                self.owner(host, !self.owned[host as usize]);
            }
        }
    }

    fn befall_overlay(&mut self, fault: super::Fault) {
        let hosts = self.case.scenario.nodes;
        let mut quality = self.simulation.network_mut().quality().clone();
        fault.befall_links(&mut self.rng, &mut quality, &self.case.scenario.quality());
        self.simulation.network_mut().set_quality(quality);
        match fault {
            super::Fault::Partition => catalogue::partition(&mut self.rng, self.simulation.network_mut(), hosts),
            super::Fault::Crash => {
                let share = pick(&mut self.rng, &[0.0, 0.0, 0.0, 0.3, 0.9]);
                let count = ((self.simulation.up().len() as f64 * share) as usize).max(1);
                for _ in 0..count {
                    let Some(host) = self.somebody_up() else { break };
                    let downtime = self.downtime();
                    self.simulation.crash_for(host, Some(downtime));
                }
            }
            super::Fault::Leave => {
                if let Some(host) = self.somebody_up() {
                    self.simulation.leave(host);
                }
            }
            super::Fault::Pause => {
                if let Some(host) = self.somebody_up() {
                    let pause = pick(&mut self.rng, &[Pause::Lose, Pause::Queue]);
                    self.simulation.pause(host, pause);
                    self.paused.push(host);
                }
            }
            super::Fault::Slow => {
                let host = self.rng.random_range(0..hosts);
                let by = if happens(&mut self.rng, 50.0) { 0 } else { self.rng.random_range(0..=3_000_000) };
                self.simulation.slow_down(host, Duration::from_micros(by));
            }
            super::Fault::ClockJump => {
                let host = self.rng.random_range(0..hosts);
                let by_us = log_uniform(&mut self.rng, 1e5, 7.2e9) as i64;
                self.simulation.jump_clock(host, if happens(&mut self.rng, 50.0) { by_us } else { -by_us });
            }
            super::Fault::Delay
            | super::Fault::Jitter
            | super::Fault::Loss
            | super::Fault::Duplication
            | super::Fault::Reordering
            | super::Fault::Amnesia
            | super::Fault::Stale
            | super::Fault::Stranger => {}
        }
    }

    fn downtime(&mut self) -> Duration {
        Duration::from_millis(self.rng.random_range(0..=DOWNTIME_MS_MAX))
    }

    /// A machine that is up, and whose lid is open.
    fn somebody_up(&mut self) -> Option<HostIndex> {
        let up: Vec<_> = self.awake().collect();
        (!up.is_empty()).then(|| pick(&mut self.rng, &up))
    }

    fn awake(&self) -> impl Iterator<Item = HostIndex> {
        self.simulation.up().iter().copied().filter(|host| !self.paused.contains(host))
    }

    fn owner(&mut self, host: HostIndex, here: bool) {
        if self.simulation.peer(host).is_some() {
            self.simulation.owner(host, here);
            self.owned[host as usize] = here;
        }
    }

    // ---- phase two ----

    /// Ends all faults, and waits for the true tree and the ends of all bags. Returns how long the later of both took.
    fn settle(&mut self) -> Result<Duration, Violation> {
        self.simulation.network_mut().heal();
        self.simulation.network_mut().set_quality(self.case.scenario.quality());
        for host in 0..self.case.scenario.nodes {
            self.simulation.slow_down(host, Duration::ZERO);
            self.simulation.resume(host);
            self.owner(host, false);
        }
        let healed = self.simulation.now();
        self.come_back(healed)?;
        // The owners of machines that were down stayed.
        (0..self.case.scenario.nodes).for_each(|host| self.owner(host, false));
        self.tree_is_true(healed)?;
        if self.case.scenario.peer.stewards > 0 {
            self.run_until(self.simulation.now() + i9_kept::within(&self.simulation))?;
            i9_kept::one_acts(&self.simulation)?;
        }
        while self.simulation.record().open_bags() > 0 {
            if self.simulation.now().since(healed) > BAGS_BOUND {
                let (report, open) = (self.simulation.report(), self.open_bags());
                let what = format!("{BAGS_BOUND:?} after the last fault:\n{open}{report}");
                return Err(self.violates(KEPT, None, what));
            }
            self.run_until(self.simulation.now() + Duration::from_secs(5))?;
        }
        let settled = self.simulation.now().since(healed);
        let report = self.simulation.report();
        let ended = report.completed_tasks + report.failed_tasks;
        if (report.lost_tasks, report.open_tasks) != (0, 0) || ended != report.accepted_tasks {
            return Err(self.violates(KEPT, None, format!("bags are closed that have not ended:\n{report}")));
        }
        self.summaries_are_true()?;
        Ok(settled)
    }

    /// Where each open bag stands, by the machines that have a ledger of it, keep it or hold tasks of it.
    fn open_bags(&self) -> String {
        let mut text = String::new();
        for host in 0..self.case.scenario.nodes {
            let Some(peer) = self.simulation.peer(host) else { continue };
            for bag in peer.bags().filter(|bag| bag.closed.is_none()) {
                let (id, keepers) = (bag.bag.id, peer.keepers(bag.bag.id));
                text += &format!("machine {host} has {id:?}: {bag:?}, keepers {keepers:?}\n");
            }
            for (bag, acts) in peer.kept() {
                text += &format!("machine {host} keeps {bag:?}, acts: {acts}\n");
            }
            for (bag, tasks) in peer.unfinished() {
                text += &format!("machine {host} holds of {bag:?}: {tasks:?}\n");
            }
        }
        text
    }

    /// Waits for machines that are down.
    fn come_back(&mut self, healed: Time) -> Result<(), Violation> {
        let nodes = self.case.scenario.nodes as usize;
        while self.simulation.up().len() < nodes {
            // Those that have left are away for an exponential time.
            let waited = self.simulation.now().since(healed);
            assert!(waited < Duration::from_secs(3600), "a machine does not come back");
            self.run_until(self.simulation.now() + Duration::from_secs(1))?;
        }
        Ok(())
    }

    fn tree_is_true(&mut self, healed: Time) -> Result<(), Violation> {
        let waited = self.simulation.now().since(healed);
        let bound = i6_tree::bound(&self.case.scenario.peer.overlay, self.case.faulty) + waited;
        loop {
            self.run_until(self.simulation.now() + Duration::from_secs(1))?;
            let members: Vec<_> = i8_summary::members(&self.simulation);
            let Err((host, what)) = i6_tree::check(&members, self.case.scenario.nodes) else { return Ok(()) };
            if self.simulation.now().since(healed) > bound {
                return Err(self.violates(i6_tree::RULE, host, format!("{what}, {bound:?} after the last fault")));
            }
        }
    }

    /// With nothing to do for anybody, all summaries are right after three times the staleness.
    fn summaries_are_true(&mut self) -> Result<(), Violation> {
        let until = self.simulation.now() + 3 * i8_summary::staleness(&self.simulation, self.case.scenario.nodes);
        while self.simulation.now() < until {
            self.run_until(self.simulation.now() + Duration::from_secs(1))?;
            self.summaries.check(&self.simulation)?;
        }
        Ok(())
    }
}
