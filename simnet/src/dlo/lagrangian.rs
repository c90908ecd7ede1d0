//! The paper's distributed Lagrangian optimisation: each machine adapts its rate of each application to prices, and each processor and
//! edge its price to its load, in waves from the masters out and back.
//!
//! Where the paper is silent or contradicts itself, a reading is taken with which its own figures come out well, of those that were tried (docs/lab/dlo.md):
//! - In a wave machines adapt their rates to the prices before it, on the way out; resources adapt their prices to the rates after
//!   it, on the way back (§5.2; (23) may be read so that both see what was before).
//! - Prices begin at 0 ("initialized with null values as it was the case in all previous experiments", §9; "random non-negative values", §5.2).
//! - Rates begin at random between 0 and what the processor would do if all applications had equal parts of it.
//! - "ρ_{n,k} > 0" in (21), (22) is ρ_{n,k} > [`ACTIVE_SHARE`]·ρ_k: the projection of §7.4 never lets a rate become 0. It holds for edges as in (22),
//!   although (23) leaves it out there.
//! - A price that no active rate depends on stays.
//! - The smoothing term has γ_ρ̃ in both algorithms, as in (23); in (11) it has γ_ρ.
//! - The naive algorithm has (19) "already implemented". It counts work in [`NAIVE_WORK_UNIT_FLOP`]: with FLOP or MFLOP the step sizes of Table 1
//!   settle on hardly any platform.

use rand::RngExt;

use super::platform::{Application, Edge, Platform, Way};
use crate::random;

/// Waves in a run (v_max, §6.4).
pub(super) const WAVES_MAX: usize = 1500;
/// The part of an application's throughput from which on a rate is active.
const ACTIVE_SHARE: f64 = 1e-4;
/// The unit in which the naive algorithm counts work; bytes are counted as such.
const NAIVE_WORK_UNIT_FLOP: f64 = 1e3;
/// α of the projection (§7.4).
const PROJECTION: f64 = 0.5;

/// Step sizes γ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Steps {
    pub(super) rate: f64,
    pub(super) smoothing: f64,
    pub(super) processor: f64,
    pub(super) edge: f64,
}

/// Which equations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// (11) with (19).
    Naive,
    /// (23).
    Adaptive,
}

impl Kind {
    /// Its name in rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Adaptive => "adaptive",
        }
    }
}

/// The state of all machines.
pub(super) struct Lagrangian<'a> {
    platform: &'a Platform,
    ways: &'a [Way],
    kind: Kind,
    steps: Steps,
    /// Tasks/s by application and machine, and their smoothed values.
    rates: Vec<Vec<f64>>,
    smoothed: Vec<Vec<f64>>,
    throughputs: Vec<f64>,
    /// λ and μ: prices of processors, and of directed edges.
    processors: Vec<f64>,
    edges: Vec<f64>,
}

/// What a resource has to do, relative to nothing, and the sum below the line of (21) or (22).
#[derive(Clone, Copy, Default)]
struct Use {
    load: f64,
    curvature: f64,
}

impl<'a> Lagrangian<'a> {
    pub(super) fn new(platform: &'a Platform, ways: &'a [Way], kind: Kind, steps: Steps, seed: u64) -> Self {
        let mut rng = random::stream(seed, "dlo first rates", 0);
        let count = platform.machines.len();
        let mut draw = |application: &Application| -> Vec<f64> {
            let parts = application.gflop * platform.applications.len() as f64;
            platform.machines.iter().map(|machine| rng.random_range(0.0..1.0) * machine.gflop_s / parts).collect()
        };
        let rates: Vec<Vec<f64>> = platform.applications.iter().map(&mut draw).collect();
        Self {
            platform,
            ways,
            kind,
            steps,
            throughputs: rates.iter().map(|of| of.iter().sum()).collect(),
            smoothed: rates.clone(),
            rates,
            processors: vec![0.0; count],
            edges: vec![0.0; 2 * count],
        }
    }

    /// What a GFLOP counts as.
    fn work_unit(&self) -> f64 {
        match self.kind {
            Kind::Naive => 1e9 / NAIVE_WORK_UNIT_FLOP,
            Kind::Adaptive => 1e9,
        }
    }

    /// Work and data of a task, in bytes.
    fn task(&self, application: usize) -> (f64, f64) {
        let of = &self.platform.applications[application];
        (of.gflop * self.work_unit(), of.mb * 1e6)
    }

    /// One wave from all masters out and back.
    pub(super) fn wave(&mut self) {
        for application in 0..self.ways.len() {
            self.adapt(application);
        }
        self.throughputs = self.rates.iter().map(|of| of.iter().sum()).collect();
        let (processors, edges) = self.uses();
        let unit = self.work_unit();
        let limit_of = |machine: usize| self.platform.machines[machine].gflop_s * unit;
        for (machine, used) in processors.into_iter().enumerate() {
            self.processors[machine] =
                reprice(self.kind, self.processors[machine], self.steps.processor, used, limit_of(machine));
        }
        for (number, used) in edges.into_iter().enumerate() {
            let edge = Edge { below: number / 2, goes_down: number % 2 == 0 };
            let limit = self.platform.capacity_mb_s(edge) * 1e6;
            self.edges[number] = reprice(self.kind, self.edges[number], self.steps.edge, used, limit);
        }
    }

    /// The rates of an application after this wave.
    fn adapt(&mut self, application: usize) {
        let (work, data) = self.task(application);
        let weight = self.platform.applications[application].weight;
        let throughput = self.throughputs[application];
        let Steps { rate: step, smoothing, .. } = self.steps;
        // η: the price of a byte from the master to here.
        let mut of_byte = vec![0.0; self.processors.len()];
        let way = &self.ways[application];
        for &(machine, before, edge) in &way.outward {
            of_byte[machine] = of_byte[before] + self.edges[edge.number()];
        }
        for (machine, of_byte) in of_byte.into_iter().enumerate() {
            let price = data * of_byte + work * self.processors[machine];
            let (rate, smooth) = (self.rates[application][machine], self.smoothed[application][machine]);
            let mut push = step * (weight - throughput * price);
            if self.kind == Kind::Adaptive {
                push *= throughput;
            }
            let next = (1.0 - smoothing) * rate + smoothing * smooth + push;
            self.rates[application][machine] = self.projected(rate, next);
            self.smoothed[application][machine] = (1.0 - smoothing) * smooth + smoothing * rate;
        }
    }

    fn projected(&self, before: f64, next: f64) -> f64 {
        match self.kind {
            Kind::Naive => next.max(0.0),
            Kind::Adaptive => next.max(PROJECTION * before),
        }
    }

    /// What processors and directed edges have to do.
    fn uses(&self) -> (Vec<Use>, Vec<Use>) {
        let mut processors = vec![Use::default(); self.processors.len()];
        let mut edges = vec![Use::default(); self.edges.len()];
        for (application, way) in self.ways.iter().enumerate() {
            let (work, data) = self.task(application);
            let throughput = self.throughputs[application];
            let is_active = |rate: f64| f64::from(rate > ACTIVE_SHARE * throughput);
            // Of this machine and all beyond it.
            let mut beyond: Vec<(f64, f64)> =
                self.rates[application].iter().map(|rate| (*rate, is_active(*rate))).collect();
            for (used, (rate, active)) in processors.iter_mut().zip(&beyond) {
                used.load += work * rate;
                used.curvature += active * (work * throughput).powi(2);
            }
            for &(machine, before, edge) in way.outward.iter().rev() {
                let (rate, active) = beyond[machine];
                edges[edge.number()].load += data * rate;
                edges[edge.number()].curvature += active * (data * throughput).powi(2);
                beyond[before].0 += rate;
                beyond[before].1 += active;
            }
        }
        (processors, edges)
    }

    /// Tasks/s of each application.
    pub(super) fn throughputs(&self) -> &[f64] {
        &self.throughputs
    }

    /// Tasks/s by machine and application.
    pub(super) fn rates(&self) -> Vec<Vec<f64>> {
        (0..self.processors.len()).map(|machine| self.rates.iter().map(|of| of[machine]).collect()).collect()
    }

    /// Goes on with another platform of the same shape.
    pub(super) fn move_to(&mut self, platform: &'a Platform) {
        self.platform = platform;
    }
}

fn reprice(kind: Kind, price: f64, step: f64, used: Use, limit: f64) -> f64 {
    match kind {
        Kind::Naive => (price + step * (used.load - limit)).max(0.0),
        Kind::Adaptive if used.curvature == 0.0 => price,
        Kind::Adaptive => (price + step * (used.load - limit) / used.curvature).max(PROJECTION * price),
    }
}
