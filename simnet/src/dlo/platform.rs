//! Platforms: machines in a tree with capacities, and the applications that enter at some of them.
//!
//! Drawn as the paper says (§6.1, §6.2, §8.1). Where it is silent: a machine taken from the queue draws 1 to d_max children; both directions
//! of an edge have capacities of their own; one master is anywhere, the others are within [`MASTER_HOPS_MAX`] hops of it.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::size::Size;
use crate::{random, tree};

/// Machines of a platform file at most.
const MACHINES_MAX: usize = 100_000;
/// Applications of a platform file at most, as a grid admits.
const APPLICATIONS_MAX: usize = 32;
/// What a platform file looks like.
const EXAMPLE: &str = "{\"machines\": [{\"parent\": null, \"gflop_s\": 8}, {\"parent\": 0, \"gflop_s\": 2, \"down_mb_s\": 50, \"up_mb_s\": \
                       50}], \"applications\": [{\"machine\": 0, \"gflop\": 10, \"mb\": 5, \"weight\": 1}]}";
/// How far the other masters may be from the first: they "are not too far away from each other", so that they interfere.
const MASTER_HOPS_MAX: usize = 4;
/// The paper's ranges.
const SPEEDS_GFLOP_S: std::ops::Range<f64> = 2.0..10.0;
const CAPACITIES_MB_S: std::ops::Range<f64> = 7.0..110.0;

/// A machine, and the edge to its parent.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Number of its parent, below its own; none for the first machine alone.
    pub parent: Option<usize>,
    /// Its speed in GFLOP/s.
    pub gflop_s: f64,
    /// Capacity of the edge from the parent, in MB/s.
    #[serde(default = "unlimited")]
    pub down_mb_s: f64,
    /// Capacity of the edge to the parent, in MB/s.
    #[serde(default = "unlimited")]
    pub up_mb_s: f64,
}

/// An application without an end.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    /// The machine where its tasks come from.
    pub machine: usize,
    /// Work of a task in GFLOP.
    pub gflop: f64,
    /// What is fetched for a task, in MB.
    pub mb: f64,
    /// Its weight.
    #[serde(default = "one")]
    pub weight: f64,
}

/// A tree of machines, with applications.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// A parent stands before its children.
    pub machines: Vec<Machine>,
    /// What shares them.
    pub applications: Vec<Application>,
}

/// A directed edge, by the machine below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Edge {
    pub(super) below: usize,
    pub(super) goes_down: bool,
}

/// The way of an application's tasks: machines from the master outward, each with where its tasks come from.
pub(super) struct Way {
    pub(super) master: usize,
    /// (machine, the one before it, the edge between them), without the master.
    pub(super) outward: Vec<(usize, usize, Edge)>,
}

fn unlimited() -> f64 {
    f64::MAX
}

fn one() -> f64 {
    1.0
}

impl Edge {
    /// A number for it, below twice the number of machines.
    pub(super) fn number(self) -> usize {
        2 * self.below + usize::from(!self.goes_down)
    }
}

impl Platform {
    /// Draws the platform of a seed; `kinds` are (GFLOP, MB, weight) of the applications.
    pub(super) fn draw(size: Size, kinds: &[(f64, f64, f64)], seed: u64) -> Self {
        let mut rng = random::stream(seed, &format!("dlo platform {size}"), 0);
        let machines = tree::draw(size, &mut rng, |rng, parent| Machine {
            parent,
            gflop_s: rng.random_range(SPEEDS_GFLOP_S),
            down_mb_s: rng.random_range(CAPACITIES_MB_S),
            up_mb_s: rng.random_range(CAPACITIES_MB_S),
        });
        let mut platform = Self { machines, applications: Vec::new() };
        let mut free = vec![rng.random_range(0..size.nodes)];
        for (number, &(gflop, mb, weight)) in kinds.iter().enumerate() {
            if number == 1 {
                free = platform.within(free[0], MASTER_HOPS_MAX);
            }
            // "no two applications are emitted from the same host"
            let taken: Vec<usize> = platform.applications.iter().map(|application| application.machine).collect();
            let candidates: Vec<usize> = free.iter().copied().filter(|machine| !taken.contains(machine)).collect();
            let machine = candidates[rng.random_range(0..candidates.len())];
            if number == 0 {
                free = vec![machine];
            }
            platform.applications.push(Application { machine, gflop, mb, weight });
        }
        platform
    }

    /// Reads a platform from a JSON file.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn read(path: &Path) -> Result<Self, String> {
        tree::read(path, EXAMPLE, Self::validate)
    }

    fn validate(&self) -> Result<(), String> {
        if !(1..=MACHINES_MAX).contains(&self.machines.len()) {
            return Err(format!("write 1 to {MACHINES_MAX} machines"));
        }
        if !(1..=APPLICATIONS_MAX).contains(&self.applications.len()) {
            return Err(format!("write 1 to {APPLICATIONS_MAX} applications"));
        }
        let is_amount = |value: f64| value.is_finite() && value > 0.0;
        for (number, machine) in self.machines.iter().enumerate() {
            tree::validate_parent(number, machine.parent)?;
            if ![machine.gflop_s, machine.down_mb_s, machine.up_mb_s].into_iter().all(is_amount) {
                return Err(format!("machine {number} needs a speed and capacities above 0"));
            }
        }
        for (number, of) in self.applications.iter().enumerate() {
            if of.machine >= self.machines.len() {
                return Err(format!("application {number} begins at machine {}, which is not there", of.machine));
            }
            if ![of.gflop, of.mb, of.weight].into_iter().all(is_amount) {
                return Err(format!("application {number} needs gflop, mb and weight above 0"));
            }
        }
        Ok(())
    }

    /// The capacity of a directed edge in MB/s.
    pub(super) fn capacity_mb_s(&self, edge: Edge) -> f64 {
        let machine = &self.machines[edge.below];
        if edge.goes_down { machine.down_mb_s } else { machine.up_mb_s }
    }

    /// Neighbours of each machine, and the edge towards them.
    pub(super) fn neighbours(&self) -> Vec<Vec<(usize, Edge)>> {
        let mut neighbours = vec![Vec::new(); self.machines.len()];
        for (below, machine) in self.machines.iter().enumerate() {
            if let Some(parent) = machine.parent {
                neighbours[parent].push((below, Edge { below, goes_down: true }));
                neighbours[below].push((parent, Edge { below, goes_down: false }));
            }
        }
        neighbours
    }

    /// The way of each application.
    pub(super) fn ways(&self) -> Vec<Way> {
        let neighbours = self.neighbours();
        let way = |application: &Application| {
            let mut outward = Vec::with_capacity(self.machines.len() - 1);
            let mut queue = VecDeque::from([(application.machine, application.machine)]);
            while let Some((machine, before)) = queue.pop_front() {
                for &(next, edge) in neighbours[machine].iter().filter(|(next, _)| *next != before) {
                    outward.push((next, machine, edge));
                    queue.push_back((next, machine));
                }
            }
            Way { master: application.machine, outward }
        };
        self.applications.iter().map(way).collect()
    }

    /// Machines at most so many hops away.
    fn within(&self, from: usize, hops: usize) -> Vec<usize> {
        let neighbours = self.neighbours();
        let mut found = BTreeSet::from([from]);
        for _ in 0..hops {
            let next: Vec<usize> =
                found.iter().flat_map(|machine| neighbours[*machine].iter().map(|(to, _)| *to)).collect();
            found.extend(next);
        }
        found.into_iter().collect()
    }

    /// How full the fullest processor or edge is, with rates in tasks/s by machine and application.
    pub(super) fn load(&self, ways: &[Way], rates: &[Vec<f64>]) -> f64 {
        let mut edges = vec![0.0; 2 * self.machines.len()];
        for (application, way) in ways.iter().enumerate() {
            let mut beyond: Vec<f64> = rates.iter().map(|of_machine| of_machine[application]).collect();
            for &(machine, before, edge) in way.outward.iter().rev() {
                edges[edge.number()] += beyond[machine] * self.applications[application].mb / self.capacity_mb_s(edge);
                beyond[before] += beyond[machine];
            }
        }
        let of_processor = |(machine, of_machine): (&Machine, &Vec<f64>)| {
            let used: f64 = self.applications.iter().zip(of_machine).map(|(of, rate)| of.gflop * rate).sum();
            if used > 0.0 { used / machine.gflop_s } else { 0.0 }
        };
        self.machines.iter().zip(rates).map(of_processor).chain(edges).fold(0.0, f64::max)
    }

    /// Σ ω·log ρ of throughputs in tasks/s.
    pub(super) fn utility(&self, throughputs: &[f64]) -> f64 {
        self.applications.iter().zip(throughputs).map(|(of, throughput)| of.weight * throughput.ln()).sum()
    }

    /// Throughputs of rates by machine and application.
    pub(super) fn throughputs(&self, rates: &[Vec<f64>]) -> Vec<f64> {
        (0..self.applications.len()).map(|application| rates.iter().map(|of| of[application]).sum()).collect()
    }
}
