//! The best rates, as one central place would compute them.

use idlewood_scheduler::shares::{Absorption, Application as Weighed, Core, CoreNode, Ratios};

/// An application without an end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Application {
    /// ω.
    pub(super) weight: f64,
    /// a, in Mop.
    pub(super) task_mops: f64,
    /// b, in bytes.
    pub(super) task_bytes: f64,
    /// U; infinite where it is not limited.
    pub(super) uplink_bytes_s: f64,
}

/// What a machine can do for applications without an end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Capacity {
    pub(super) speed_mops: f64,
    /// Infinite where it is not limited.
    pub(super) link_bytes_s: f64,
}

/// The work of each application, in Mop/s, that maximises Σ ω·log(work) on these machines together.
///
/// # Panics
/// When an application has no finite ratio of bytes to work.
pub(super) fn best(applications: &[Application], machines: impl Iterator<Item = Capacity>) -> Vec<f64> {
    let ratios = applications.iter().map(|application| application.task_bytes / application.task_mops).collect();
    let ratios = Ratios::new(ratios).expect("sizes of tasks are numbers, and work is above 0");
    let mut all = Absorption::none(&ratios);
    machines.for_each(|of| all.add(&Absorption::of_machine(&ratios, of.speed_mops, of.link_bytes_s)));
    let weighed: Vec<Weighed> = applications
        .iter()
        .map(|&Application { weight, uplink_bytes_s, .. }| Weighed { weight, uplink_bytes_s, entry: 0 })
        .collect();
    let core = Core { nodes: vec![CoreNode { absorption: all, uplink: None }] };
    core.solve(&ratios, &weighed).swap_remove(0)
}

/// How far rates are below the best: Σ ω·log(best/rate) for each unit of weight. Infinite where one has nothing.
pub(super) fn gap(applications: &[Application], best: &[f64], rates: &[f64]) -> f64 {
    let weights: f64 = applications.iter().map(|application| application.weight).sum();
    let each = applications.iter().zip(best.iter().zip(rates));
    each.map(|(application, (best, rate))| application.weight * (best / rate).ln()).sum::<f64>() / weights
}

#[cfg(test)]
mod tests {
    use clarabel::solver::SupportedConeT;

    use super::*;
    use crate::conic::Rows;

    /// The same by a solver that is given each machine by itself, with speeds and links in units of the largest.
    fn independent(applications: &[Application], machines: &[Capacity]) -> Vec<f64> {
        let (count, rates) = (applications.len(), applications.len() * machines.len());
        let unit = machines.iter().map(|machine| machine.speed_mops).fold(0.0, f64::max);
        let ratio = |application: &Application| application.task_bytes / application.task_mops;
        let mut rows = Rows::default();
        for (number, machine) in machines.iter().enumerate() {
            let of = |application| number * count + application;
            rows.push((0..count).map(|application| (of(application), unit)), machine.speed_mops);
            if machine.link_bytes_s.is_finite() {
                let bytes = applications.iter().enumerate();
                let uses = bytes.map(|(place, application)| (of(place), unit * ratio(application)));
                rows.push(uses, machine.link_bytes_s);
            }
        }
        for (place, application) in applications.iter().enumerate() {
            if application.uplink_bytes_s.is_finite() {
                let uses = (0..machines.len()).map(|number| (number * count + place, unit * ratio(application)));
                rows.push(uses, application.uplink_bytes_s);
            }
        }
        (0..rates).for_each(|variable| rows.push([(variable, -1.0)], 0.0));
        let mut cones = vec![SupportedConeT::NonnegativeConeT(rows.len())];
        let mut costs = vec![0.0; rates + count];
        for (place, application) in applications.iter().enumerate() {
            costs[rates + place] = -application.weight;
            // (t, 1, ρ) in the exponential cone: t is at most log ρ.
            rows.push([(rates + place, -1.0)], 0.0);
            rows.push([], 1.0);
            rows.push((0..machines.len()).map(|number| (number * count + place, -1.0)), 0.0);
            cones.push(SupportedConeT::ExponentialConeT());
        }
        let found = rows.solve(&cones, &costs, &vec![0.0; costs.len()]).expect("a problem").x;
        let sum = |place: usize| (0..machines.len()).map(|number| found[number * count + place]).sum::<f64>() * unit;
        (0..count).map(sum).collect()
    }

    #[test]
    fn the_best_rates_are_those_of_a_solver_that_knows_each_machine() {
        let application = |weight, task_mops, task_bytes, uplink_bytes_s| Application {
            weight,
            task_mops,
            task_bytes,
            uplink_bytes_s,
        };
        let applications = [
            application(1.0, 2_000.0, 0.0, f64::INFINITY),
            application(2.0, 1_000.0, 8_000.0, f64::INFINITY),
            application(4.0, 500.0, 20_000.0, f64::INFINITY),
            application(1.0, 3_000.0, 6_000.0, 1_500.0),
        ];
        let machine = |number: u32| Capacity {
            speed_mops: f64::from(1_000 + 200 * (number % 11)),
            link_bytes_s: [6_000.0, 50_000.0, f64::INFINITY][number as usize % 3],
        };
        let machines: Vec<Capacity> = (0..12).map(machine).collect();
        let found = best(&applications, machines.iter().copied());
        let expected = independent(&applications, &machines);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} instead of {expected}");
        }
        // Links, and the last one's uplink, keep all of the grid from being used alike.
        assert!((found[3] - 750.0).abs() < 1e-3, "{found:?}");
        assert!(gap(&applications, &expected, &found).abs() < 1e-4);
    }

    #[test]
    fn a_gap_is_by_weight() {
        let of = |weight| Application { weight, task_mops: 1.0, task_bytes: 0.0, uplink_bytes_s: f64::INFINITY };
        let found = gap(&[of(1.0), of(3.0)], &[10.0, 10.0], &[10.0, 5.0]);
        assert!((found - 0.75 * 2.0_f64.ln()).abs() < 1e-12, "{found}");
    }
}
