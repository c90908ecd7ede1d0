//! Platforms: trees of machines whose root has all tasks, and the applications.
//!
//! Full overlap, single port (§2.1): at one time a machine computes, receives from its parent and sends to one of its children. Links are used in one
//! direction only, as results have no size, so that half and full duplex are the same.

use std::path::Path;

use idlewood_scheduler::shares::Task;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::scale::Scale;
use crate::dlo::Size;
use crate::{random, tree};

/// Machines of a platform file at most.
const MACHINES_MAX: usize = 10_000;
/// Applications of a platform file at most, as a grid admits.
const APPLICATIONS_MAX: usize = 32;
/// The paper's ranges (§5.1.2), read as megabytes.
const SPEEDS_MFLOP_S: std::ops::Range<f64> = 22.151..171.667;
const CAPACITIES_MB_S: std::ops::Range<f64> = 0.11..7.0;
/// The smallest ratio of bytes to operations, and the range of the largest one (§5.1.3).
const RATIO_MIN: f64 = 0.001;
const RATIOS_MAX: std::ops::Range<f64> = 0.002..4.6;
/// What a platform file looks like.
const EXAMPLE: &str = "{\"machines\": [{\"parent\": null, \"mflop_s\": 100}, {\"parent\": 0, \"mflop_s\": 50, \"mb_s\": 2}], \
                       \"applications\": [{\"mflop\": 1000, \"mb\": 5, \"weight\": 1}]}";

/// Tasks/s by machine and application.
pub(super) type Rates = Vec<Vec<f64>>;

/// A machine, and the link from its parent.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Number of its parent, below its own; none for the root alone, which has number 0.
    pub parent: Option<usize>,
    /// Its speed in MFLOP/s.
    pub mflop_s: f64,
    /// What the link from the parent carries, in MB/s; that of the root does not count.
    #[serde(default = "one")]
    pub mb_s: f64,
}

/// An application without an end.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    /// Work of a task in MFLOP.
    pub mflop: f64,
    /// What is sent for a task, in MB.
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

fn one() -> f64 {
    1.0
}

impl Platform {
    /// Draws the platform of a seed: the same machines and ratios whatever the scale.
    pub(super) fn draw(size: Size, scale: Scale, weights: &[f64], seed: u64) -> Self {
        let mut rng = random::stream(seed, &format!("steady platform {size}"), 0);
        let machines = tree::draw(size, &mut rng, |rng, parent| Machine {
            parent,
            mflop_s: rng.random_range(SPEEDS_MFLOP_S),
            mb_s: rng.random_range(CAPACITIES_MB_S),
        });
        // The paper does not say how the largest ratio was chosen; log-uniform is our choice.
        let exponent: f64 = rng.random();
        let ratio_max = RATIOS_MAX.start * (RATIOS_MAX.end / RATIOS_MAX.start).powf(exponent);
        let step = (ratio_max - RATIO_MIN) / (weights.len().max(2) - 1) as f64;
        let application = |(number, weight): (usize, &f64)| {
            let (mflop, mb) = scale.task(RATIO_MIN, RATIO_MIN + number as f64 * step);
            Application { mflop, mb, weight: *weight }
        };
        Self { machines, applications: weights.iter().enumerate().map(application).collect() }
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
            if ![machine.mflop_s, machine.mb_s].into_iter().all(is_amount) {
                return Err(format!("machine {number} needs a speed and a capacity above 0"));
            }
        }
        for (number, of) in self.applications.iter().enumerate() {
            if ![of.mflop, of.mb, of.weight].into_iter().all(is_amount) {
                return Err(format!("application {number} needs mflop, mb and weight above 0"));
            }
        }
        Ok(())
    }

    /// Children of each machine.
    pub(super) fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.machines.len()];
        for (number, machine) in self.machines.iter().enumerate() {
            if let Some(parent) = machine.parent {
                children[parent].push(number);
            }
        }
        children
    }

    /// Links between the root and the machine that is furthest away.
    pub(super) fn height(&self) -> usize {
        let mut depths = vec![0; self.machines.len()];
        for (number, machine) in self.machines.iter().enumerate() {
            depths[number] = machine.parent.map_or(0, |parent| depths[parent] + 1);
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// The applications' tasks, in the scheduler's units.
    pub(super) fn tasks(&self) -> Vec<Task> {
        self.applications.iter().map(|of| Task { mop: of.mflop, bytes: of.mb * 1e6 }).collect()
    }

    pub(super) fn weights(&self) -> Vec<f64> {
        self.applications.iter().map(|of| of.weight).collect()
    }

    /// Tasks/s that each machine receives for itself and those below it; of the root what all of them do.
    pub(super) fn received(&self, rates: &Rates) -> Rates {
        let mut received = rates.clone();
        for number in (1..self.machines.len()).rev() {
            let of = received[number].clone();
            let parent = self.machines[number].parent.expect("only the root has no parent");
            received[parent].iter_mut().zip(of).for_each(|(sum, rate)| *sum += rate);
        }
        received
    }

    /// How full the fullest processor or port is.
    pub(super) fn load(&self, rates: &Rates) -> f64 {
        let mut ports = vec![0.0; self.machines.len()];
        for (machine, received) in self.machines.iter().zip(self.received(rates)) {
            if let Some(parent) = machine.parent {
                let mb: f64 = self.applications.iter().zip(&received).map(|(of, rate)| of.mb * rate).sum();
                ports[parent] += mb / machine.mb_s;
            }
        }
        let of_processor = |(machine, rates): (&Machine, &Vec<f64>)| {
            self.applications.iter().zip(rates).map(|(of, rate)| of.mflop * rate).sum::<f64>() / machine.mflop_s
        };
        self.machines.iter().zip(rates).map(of_processor).chain(ports).fold(0.0, f64::max)
    }

    /// The smallest ρ_k/ω_k: what the paper calls fair throughput.
    pub(super) fn fair(&self, throughputs: &[f64]) -> f64 {
        self.applications.iter().zip(throughputs).map(|(of, rate)| rate / of.weight).fold(f64::INFINITY, f64::min)
    }

    /// The same of rates by machine and application.
    pub(super) fn fair_of(&self, rates: &Rates) -> f64 {
        let sum = |application: usize| rates.iter().map(|of| of[application]).sum();
        self.fair(&(0..self.applications.len()).map(sum).collect::<Vec<f64>>())
    }
}
