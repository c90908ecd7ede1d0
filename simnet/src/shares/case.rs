//! One simulation: which bags and machines it has.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::finite;
use super::optimum::{Application, Capacity};
use crate::experiment::Labels;
use crate::scenario::{GivenBag, GivenEndless, GivenMachine, Scenario, Sessions, Workload};
use crate::workload;

/// For an hour's window: work of a task in Mop, bytes for a Mop, and weight of each bag.
const KINDS: [(f64, f64, f64); 8] = [
    (120_000.0, 0.0, 1.0),
    (240_000.0, 5.0, 2.0),
    (60_000.0, 20.0, 1.0),
    (480_000.0, 0.0, 4.0),
    (180_000.0, 2.0, 1.0),
    (360_000.0, 40.0, 0.5),
    (90_000.0, 0.0, 2.0),
    (600_000.0, 10.0, 1.0),
];
/// The bag whose submitter's uplink is narrow, in kB/s for each machine of the grid.
const NARROW: (usize, u32) = (2, 2);
/// The bag whose submitter says what is not true.
pub(super) const CHEAT: usize = 1;
/// Output of a task that has nothing to say of its link.
const OUTPUT_BYTES_MIN: f64 = 100.0;
/// Machines that submit bags without an end, at most: the bags, and the one that comes later.
const SUBMITTERS: u32 = KINDS.len() as u32 + 1;
/// What owners let go over the link, in kB/s: of two machines of five, and of the others.
const LIMITS_KB_S: (u32, u32) = (6, 50);
/// Links of machines and of submitters, in bytes a second: 8 Mb/s and 1 Gb/s.
const LINK_BYTES_S: u64 = 1_000_000;
const SUBMITTER_BYTES_S: u64 = 125_000_000;
/// The paper's mean time between two failures of a machine (§7.1).
const FAILURE_INTERVAL: Duration = Duration::from_secs(4 * 3600);

/// When machines fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Failures {
    /// Never.
    None,
    /// Every four hours, each for itself; they restart at once, with what was on their disks.
    Durable,
    /// They come and go as desktops do, but for the submitters.
    Desktop,
}

impl Failures {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Durable, Self::Desktop];

    /// Its name in rows and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Durable => "durable",
            Self::Desktop => "desktop",
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a submitter announces of its tasks, in percent of the truth: work, and bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Announced {
    pub(super) name: &'static str,
    mops_percent: f64,
    bytes_percent: f64,
}

/// The honest one is first.
pub(super) const ANNOUNCED: [Announced; 5] = [
    Announced { name: "none", mops_percent: 100.0, bytes_percent: 100.0 },
    Announced { name: "a_quarter", mops_percent: 25.0, bytes_percent: 100.0 },
    Announced { name: "a_fourfold", mops_percent: 400.0, bytes_percent: 100.0 },
    Announced { name: "b_quarter", mops_percent: 100.0, bytes_percent: 25.0 },
    Announced { name: "b_fourfold", mops_percent: 100.0, bytes_percent: 400.0 },
];

/// A simulation, but for its seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) nodes: u32,
    pub(super) failures: Failures,
    /// Bags without an end.
    pub(super) bags: usize,
    /// Whether finite bags come, too.
    pub(super) finite: bool,
    pub(super) announced: Announced,
    /// How long throughput is measured.
    pub(super) window: Duration,
}

impl Case {
    /// An honest one.
    pub(super) fn new(nodes: u32, failures: Failures, bags: usize, finite: bool, window: Duration) -> Self {
        Self { nodes, failures, bags, finite, announced: ANNOUNCED[0], window }
    }

    /// What tells it from others.
    pub(super) fn labels(&self) -> Labels {
        let texts = [("failures", self.failures.name()), ("cheat", self.announced.name)];
        let mut labels: Labels = vec![("nodes", json!(self.nodes)), ("bags", json!(self.bags))];
        labels.extend(texts.map(|(name, text)| (name, Value::from(text))));
        labels.push(("finite", json!(u8::from(self.finite))));
        labels
    }

    /// Its name for people.
    pub(super) fn name(&self) -> String {
        let finite = if self.finite { ", finite ones beside" } else { "" };
        let cheat = if self.announced == ANNOUNCED[0] { "" } else { self.announced.name };
        format!("{} machines, failures {}, {} bags{finite} {cheat}", self.nodes, self.failures, self.bags)
    }

    /// Whether it ends with bags that come and go, and machines that vanish.
    pub(super) fn has_changes(&self) -> bool {
        self.bags > 0 && !self.finite && self.announced == ANNOUNCED[0]
    }

    /// Before that throughput is not measured: twice what the longest task takes on the slowest machine.
    pub(super) fn warm_up(&self) -> Duration {
        self.window / 3
    }

    /// When the last bag comes, after all others.
    pub(super) fn changes_from(&self) -> Duration {
        self.warm_up() + self.window
    }

    /// Tasks are as long in proportion to the window.
    fn scale(&self) -> f64 {
        self.window.as_secs_f64() / 3600.0
    }

    fn endless(&self, number: usize, seats: u32) -> GivenBag {
        let (task_mops, bytes_per_mop, weight) = KINDS[number % KINDS.len()];
        let task_mops = task_mops * self.scale();
        let announced = if number == CHEAT { self.announced } else { ANNOUNCED[0] };
        GivenBag {
            at: Duration::ZERO,
            submitter: number as u32 % seats.min(SUBMITTERS),
            tasks: 0,
            task_mops,
            output_bytes: Some((task_mops * bytes_per_mop).max(OUTPUT_BYTES_MIN) as u64),
            rounds: None,
            endless: Some(GivenEndless {
                weight,
                announces_mops_percent: announced.mops_percent,
                announces_bytes_percent: announced.bytes_percent,
            }),
        }
    }

    /// The scenario with this seed. Bags without an end are the first ones; one more comes after the window.
    pub(super) fn scenario(&self, seed: u64) -> Scenario {
        let mut scenario = Scenario {
            nodes: self.nodes,
            seed,
            bandwidth_bytes_s: LINK_BYTES_S,
            workload: Workload::Given,
            bags: 0,
            ..Scenario::default()
        };
        match self.failures {
            Failures::None => {}
            Failures::Durable => (scenario.churn, scenario.downtime) = (Some(FAILURE_INTERVAL), Duration::ZERO),
            Failures::Desktop => {
                scenario.sessions = Sessions::Desktops;
                scenario.steady_percent = f64::from(SUBMITTERS.min(self.nodes)) * 100.0 / f64::from(self.nodes);
            }
        }
        let seats = scenario.seats();
        scenario.given_machines = (0..self.nodes).map(|number| self.machine(number)).collect();
        scenario.given_bags = (0..self.bags).map(|number| self.endless(number, seats)).collect();
        if self.finite {
            scenario.given_bags.extend(finite::bags(&scenario, self.changes_from(), self.scale()));
        }
        if self.has_changes() {
            scenario.given_bags.push(GivenBag { at: self.changes_from(), ..self.endless(self.bags, seats) });
        }
        if scenario.given_bags.is_empty() {
            (scenario.workload, scenario.bags) = (Workload::Paper, 0);
        }
        scenario
    }

    fn machine(&self, number: u32) -> GivenMachine {
        let submits = number < SUBMITTERS;
        let bytes_s = if submits { SUBMITTER_BYTES_S } else { LINK_BYTES_S };
        let limit_kb_s = match number {
            _ if submits && number as usize == NARROW.0 => Some(NARROW.1 * self.nodes),
            _ if submits => None,
            _ if matches!(number % 5, 1 | 3) => Some(LIMITS_KB_S.0),
            _ => Some(LIMITS_KB_S.1),
        };
        let given = GivenMachine::of(number);
        GivenMachine { up_bytes_s: Some(bytes_s), down_bytes_s: Some(bytes_s), limit_kb_s, ..given }
    }
}

fn limit_bytes_s(scenario: &Scenario, host: u32) -> f64 {
    let limit_kb_s = scenario.given_machine(host).and_then(|machine| machine.limit_kb_s);
    limit_kb_s.map_or(f64::INFINITY, |limit| f64::from(limit) * 1000.0)
}

/// The bags without an end of a scenario, in their order.
pub(super) fn applications(scenario: &Scenario) -> Vec<Application> {
    let endless = scenario.given_bags.iter().filter_map(|bag| Some((bag, bag.endless?)));
    endless
        .map(|(bag, endless)| Application {
            weight: endless.weight,
            task_mops: bag.task_mops,
            task_bytes: bag.output_bytes.unwrap_or(scenario.output_bytes) as f64,
            uplink_bytes_s: limit_bytes_s(scenario, bag.submitter),
        })
        .collect()
}

/// What each machine can do while it is up, in the order of machines.
pub(super) fn capacities(scenario: &Scenario) -> Vec<Capacity> {
    let machine = |host| Capacity {
        speed_mops: workload::speed_mops(scenario, host) * f64::from(workload::slots(scenario, host)),
        link_bytes_s: limit_bytes_s(scenario, host),
    };
    (0..scenario.nodes).map(machine).collect()
}
