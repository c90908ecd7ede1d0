//! The best rates, by a general convex solver (Clarabel, an interior-point method for conic problems) that shares no code with what
//! it judges. The paper used DSDP.
//!
//! Logarithms are exponential cones, on which the solver sometimes stops a hundredth off. So its answer is only where Newton's method begins, whose
//! quadratic problems it solves to eight digits; the end is reached when a step would change nothing.

use clarabel::solver::{SolverStatus, SupportedConeT};

use super::platform::{Edge, Platform, Way};
use crate::conic::Rows;

/// Newton's steps at most; two to four suffice.
const STEPS_MAX: usize = 30;
/// Newton's decrement at the end: the utility is below the best by half of its square.
const DECREMENT: f64 = 1e-4;

/// Feasible rates: what each application gets on each machine, in units of the most that the machine or its edge allows, and the throughputs.
struct Problem<'a> {
    platform: &'a Platform,
    /// (application, machine, unit in MB/s) of each variable; the throughputs follow, and then their logarithms.
    variables: Vec<(usize, usize, f64)>,
    /// Limits of processors and edges.
    limits: Rows,
}

impl<'a> Problem<'a> {
    fn new(platform: &'a Platform, ways: &[Way]) -> Self {
        let mut variables = Vec::new();
        let mut of_machine: Vec<Vec<(usize, f64)>> = vec![Vec::new(); platform.machines.len()];
        let mut of_edge: Vec<Vec<(usize, f64)>> = vec![Vec::new(); 2 * platform.machines.len()];
        for (application, way) in ways.iter().enumerate() {
            let of = &platform.applications[application];
            // The edges from the master to each machine.
            let mut passed: Vec<Vec<Edge>> = vec![Vec::new(); platform.machines.len()];
            for &(machine, before, edge) in &way.outward {
                passed[machine] = passed[before].iter().copied().chain([edge]).collect();
            }
            for (machine, passed) in passed.into_iter().enumerate() {
                let speed_mb_s = platform.machines[machine].gflop_s / of.gflop * of.mb;
                let capacities = passed.iter().map(|edge| platform.capacity_mb_s(*edge));
                let unit = capacities.fold(speed_mb_s, f64::min);
                // A processor that was removed has no variable.
                if unit > 0.0 {
                    of_machine[machine].push((variables.len(), unit / speed_mb_s));
                    let shares = passed.iter().map(|edge| (edge, unit / platform.capacity_mb_s(*edge)));
                    shares.for_each(|(edge, share)| of_edge[edge.number()].push((variables.len(), share)));
                    variables.push((application, machine, unit));
                }
            }
        }
        let mut limits = Rows::default();
        let all = of_machine.into_iter().chain(of_edge);
        all.filter(|uses| !uses.is_empty()).for_each(|uses| limits.push(uses, 1.0));
        (0..variables.len()).for_each(|variable| limits.push([(variable, -1.0)], 0.0));
        Self { platform, variables, limits }
    }

    fn applications(&self) -> usize {
        self.platform.applications.len()
    }

    /// Throughputs as variables, each in its unit of tasks/s: equalities, which stand after the limits.
    fn rows(&self, units: &[f64]) -> (Rows, Vec<SupportedConeT<f64>>) {
        let mut rows = self.limits.clone();
        let cones = vec![SupportedConeT::NonnegativeConeT(rows.len()), SupportedConeT::ZeroConeT(self.applications())];
        for (application, throughput_unit) in units.iter().enumerate() {
            let of = self.variables.iter().enumerate().filter(|(_, (of, ..))| *of == application);
            let mb = self.platform.applications[application].mb;
            let parts = of.map(|(variable, (.., unit))| (variable, -unit / mb / throughput_unit));
            rows.push(parts.chain([(self.variables.len() + application, 1.0)]), 0.0);
        }
        (rows, cones)
    }

    /// The most that each application could have if nothing but single machines limited it, in tasks/s.
    fn bounds(&self) -> Vec<f64> {
        let mut bounds = vec![0.0; self.applications()];
        for (application, _, unit) in &self.variables {
            bounds[*application] += unit / self.platform.applications[*application].mb;
        }
        bounds
    }

    /// Throughputs in tasks/s that are about the best.
    fn first(&self) -> Result<Vec<f64>, String> {
        let units = self.bounds();
        let (mut rows, mut cones) = self.rows(&units);
        let (throughputs, count) = (self.variables.len(), self.applications());
        let mut costs = vec![0.0; throughputs + 2 * count];
        for (application, of) in self.platform.applications.iter().enumerate() {
            let logarithm = throughputs + count + application;
            costs[logarithm] = -of.weight;
            // (t, 1, ρ) in the exponential cone: t is at most log ρ.
            rows.push([(logarithm, -1.0)], 0.0);
            rows.push([], 1.0);
            rows.push([(throughputs + application, -1.0)], 0.0);
            cones.push(SupportedConeT::ExponentialConeT());
        }
        let found = rows.solve(&cones, &costs, &vec![0.0; costs.len()])?.x;
        let found = found[throughputs..throughputs + count].iter().zip(&units);
        // A poor answer is a poor beginning, no more.
        Ok(found.map(|(share, unit)| if *share > 1e-9 { share * unit } else { 1e-9 * unit }).collect())
    }

    /// The throughputs with the best utility by its second-order expansion about these.
    fn newton(&self, about: &[f64]) -> Result<Vec<f64>, String> {
        let (rows, cones) = self.rows(about);
        let throughputs = self.variables.len();
        let (mut costs, mut curvatures) = (vec![0.0; throughputs], vec![0.0; throughputs]);
        // With ρ in units of where it is: −ω·log ρ is about −ω·(ρ − 1) + ω·(ρ − 1)²/2.
        costs.extend(self.platform.applications.iter().map(|of| -2.0 * of.weight));
        curvatures.extend(self.platform.applications.iter().map(|of| of.weight));
        let solution = rows.solve(&cones, &costs, &curvatures)?;
        let (status, found) = (solution.status, solution.x);
        if !matches!(status, SolverStatus::Solved | SolverStatus::AlmostSolved) {
            return Err(format!("the convex solver finds no optimum of the platform: {status:?}"));
        }
        Ok(found[throughputs..].iter().zip(about).map(|(share, unit)| share * unit).collect())
    }
}

/// The largest Σ ω·log ρ, with ρ in tasks/s, to 1e-7 of the sum of weights.
///
/// # Errors
/// A sentence where the solver finds none.
pub(super) fn best_utility(platform: &Platform, ways: &[Way]) -> Result<f64, String> {
    let problem = Problem::new(platform, ways);
    let mut throughputs = problem.first()?;
    let weights: Vec<f64> = platform.applications.iter().map(|of| of.weight).collect();
    let smallest = weights.iter().copied().fold(f64::INFINITY, f64::min);
    for _ in 0..STEPS_MAX {
        let next = problem.newton(&throughputs)?;
        let changes = next.iter().zip(&throughputs).map(|(next, now)| next / now - 1.0);
        let square: f64 = weights.iter().zip(changes).map(|(weight, change)| weight * change * change).sum();
        // Damped as for self-concordant functions while the step is long.
        let decrement = (square / smallest).sqrt();
        let step = if decrement < 0.25 { 1.0 } else { 1.0 / (1.0 + decrement) };
        throughputs.iter_mut().zip(&next).for_each(|(now, next)| *now += step * (next - *now));
        if decrement <= DECREMENT {
            return Ok(platform.utility(&throughputs));
        }
    }
    Err("the convex solver finds no best rates for this platform".to_owned())
}
