//! The best rates: linear program (3) of the paper, by a general solver that shares no code with what it judges.

use clarabel::solver::{SolverStatus, SupportedConeT};

use super::platform::{Platform, Rates};
use crate::conic::Rows;

/// How far the solver's two bounds on the optimum may be apart.
const GAP_MAX: f64 = 1e-5;
/// An interior point has no zeros: a smaller share of what a machine could do alone is none.
const NOTHING: f64 = 1e-7;

/// The best rates, within all limits, and the largest smallest ρ_k/ω_k that any rates can have; the former are within 1e-5 of the latter.
///
/// # Errors
/// A sentence where the solver finds no optimum.
pub(super) fn best(platform: &Platform) -> Result<(Rates, f64), String> {
    let (machines, count) = (platform.machines.len(), platform.applications.len());
    // What a machine could have of an application if that were alone, and used the links towards it alone.
    let mut units = vec![0.0; machines * count];
    let mut links = vec![f64::INFINITY; machines];
    for (number, machine) in platform.machines.iter().enumerate() {
        if let Some(parent) = machine.parent {
            links[number] = machine.mb_s.min(links[parent]);
        }
        for (application, of) in platform.applications.iter().enumerate() {
            units[number * count + application] = (machine.mflop_s / of.mflop).min(links[number] / of.mb);
        }
    }
    let all = |application: usize| (0..machines).map(|number| units[number * count + application]).sum::<f64>();
    let bounds = platform.applications.iter().enumerate().map(|(application, of)| all(application) / of.weight);
    let unit = bounds.fold(f64::INFINITY, f64::min);
    let mut rows = Rows::default();
    (0..machines * count).for_each(|variable| rows.push([(variable, -1.0)], 0.0));
    let mut ports: Vec<Vec<(usize, f64)>> = vec![Vec::new(); machines];
    for (number, machine) in platform.machines.iter().enumerate() {
        let variables = || platform.applications.iter().enumerate().map(|(at, of)| (number * count + at, of));
        rows.push(variables().map(|(variable, of)| (variable, units[variable] * of.mflop / machine.mflop_s)), 1.0);
        let mut below = number;
        while let Some(parent) = platform.machines[below].parent {
            let mb_s = platform.machines[below].mb_s;
            ports[parent].extend(variables().map(|(variable, of)| (variable, units[variable] * of.mb / mb_s)));
            below = parent;
        }
    }
    ports.into_iter().filter(|uses| !uses.is_empty()).for_each(|uses| rows.push(uses, 1.0));
    let fair = machines * count;
    for (application, of) in platform.applications.iter().enumerate() {
        let variables = (0..machines).map(|number| number * count + application);
        let uses = variables.map(|variable| (variable, -units[variable] / (of.weight * unit)));
        rows.push(uses.chain([(fair, 1.0)]), 0.0);
    }
    let cones = [SupportedConeT::NonnegativeConeT(rows.len())];
    let mut costs = vec![0.0; fair + 1];
    costs[fair] = -1.0;
    let solution = rows.solve(&cones, &costs, &vec![0.0; costs.len()])?;
    let of_machine = |number: usize| {
        let variables = number * count..(number + 1) * count;
        let share = |variable: usize| if solution.x[variable] > NOTHING { solution.x[variable] } else { 0.0 };
        variables.map(|variable| share(variable) * units[variable]).collect()
    };
    let mut rates: Rates = (0..machines).map(of_machine).collect();
    // The solver keeps limits to some eight digits.
    let excess = platform.load(&rates).max(1.0);
    rates.iter_mut().flatten().for_each(|rate| *rate /= excess);
    let bound = -solution.obj_val_dual * unit;
    let is_solved = matches!(solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved);
    if is_solved && platform.fair_of(&rates) >= bound * (1.0 - GAP_MAX) {
        Ok((rates, bound))
    } else {
        Err(format!("the solver finds no best rates: {:?}", solution.status))
    }
}
