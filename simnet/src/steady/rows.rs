//! Rows of tables over all platforms of a shape and scale.

use serde_json::{Map, Value, json};

use super::algorithm::{Algorithm, Outcome};
use super::published::{self, LOGARITHM_MAX};

/// "within 2 %".
const TWO_PERCENT: f64 = 1.02;

/// One algorithm on one platform.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) algorithm: Algorithm,
    /// The largest smallest ρ_k/ω_k that any rates can have.
    pub(super) best: f64,
    /// That of whole tasks at the best rates in the demand-driven algorithm: what the paper compares with; none where it did not run.
    pub(super) demand_driven: Option<f64>,
    pub(super) outcome: Outcome,
}

impl Judged {
    /// What the algorithm has: rates where it computes its own, and otherwise whole tasks.
    fn fair(&self) -> f64 {
        let is_of_rates = matches!(self.algorithm, Algorithm::Cgbc | Algorithm::DataCentric | Algorithm::CgWave);
        self.outcome.fair_of_rates.filter(|_| is_of_rates).unwrap_or(self.outcome.fair_of_tasks)
    }
}

/// What a table says of one algorithm on some platforms.
pub(super) fn row(algorithm: Algorithm, all: &[&Judged]) -> Map<String, Value> {
    let of: Vec<&&Judged> = all.iter().filter(|judged| judged.algorithm == algorithm).collect();
    let outcomes = || of.iter().map(|judged| &judged.outcome);
    let headline: Vec<f64> = of.iter().map(|judged| judged.best / judged.fair()).collect();
    let tasks: Vec<f64> = of.iter().map(|judged| judged.best / judged.outcome.fair_of_tasks).collect();
    // Where the demand-driven one has nothing there is nothing to compare with.
    let against = |of: &&&Judged| Some(of.demand_driven.filter(|fair| *fair > 0.0)? / of.outcome.fair_of_tasks);
    let against: Vec<f64> = of.iter().filter_map(against).collect();
    let deviation = |outcome: &Outcome| Some(1.0 - outcome.fair_of_tasks / outcome.fair_of_rates?);
    let deviations: Vec<f64> = outcomes().filter_map(deviation).collect();
    let largest = |values: Vec<f64>| values.into_iter().reduce(f64::max);
    let mut row = Map::new();
    let mut put = |name: &str, value: Value| row.insert(name.to_owned(), value);
    put("algorithm", json!(algorithm.name()));
    put("instances", json!(of.len()));
    put("lp_ratio_geomean", geomean(&headline));
    put("lp_ratio_max", most(&headline));
    put("tasks_ratio_geomean", geomean(&tasks));
    put("tasks_ratio_max", most(&tasks));
    put("demand_driven_ratio_geomean", geomean(&against));
    put("demand_driven_ratio_max", most(&against));
    put("starved", json!(outcomes().filter(|outcome| outcome.fair_of_tasks <= 0.0).count()));
    let mean = deviations.iter().sum::<f64>() / deviations.len() as f64;
    put("tasks_below_rates_mean", if deviations.is_empty() { Value::Null } else { json!(mean) });
    put("tasks_below_rates_max", json!(largest(deviations)));
    put("load_max", json!(largest(outcomes().filter_map(|outcome| outcome.load).collect())));
    put("published", published::ratios(algorithm));
    let waves: Vec<(f64, &Vec<f64>, bool)> =
        of.iter().filter_map(|of| of.outcome.waves.as_ref().map(|(fair, is)| (of.best, fair, *is))).collect();
    if waves.is_empty() {
        put("waves_max", Value::Null);
    } else {
        let count = waves.iter().map(|(_, fair, _)| fair.len()).max().unwrap_or(0);
        // Who has stopped keeps what it had.
        let after = |wave: usize| waves.iter().map(|(best, fair, _)| best / fair[wave.min(fair.len() - 1)]).collect();
        let after: Vec<Vec<f64>> = (0..count).map(after).collect();
        let until = |(best, fair, _): &(f64, &Vec<f64>, bool)| fair.iter().position(|fair| best / fair <= TWO_PERCENT);
        let until: Option<Vec<usize>> = waves.iter().map(until).collect();
        put("waves_max", json!(count));
        put("certified", json!(waves.iter().filter(|(.., is_certified)| *is_certified).count()));
        put("waves_to_2_percent_max", json!(until.and_then(|of| of.into_iter().max()).map(|last| last + 1)));
        put("lp_ratio_max_by_wave", after.iter().map(|ratios| most(ratios)).collect());
    }
    let periods: Vec<(f64, u64)> = outcomes().filter_map(|outcome| outcome.period).collect();
    if !periods.is_empty() {
        put("period_s_max", json!(largest(periods.iter().map(|(period_s, _)| *period_s).collect())));
        put("buffer_tasks_max", json!(periods.iter().map(|(_, tasks)| *tasks).max()));
    }
    if let [only] = of.as_slice() {
        put("best_throughput", json!(only.best));
        put("throughput", json!(only.fair()));
        put("tasks_throughput", json!(only.outcome.fair_of_tasks));
    }
    row
}

/// The geometric mean of ratios, none of which counts as more than the paper lets it.
fn geomean(ratios: &[f64]) -> Value {
    if ratios.is_empty() {
        return Value::Null;
    }
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln().min(LOGARITHM_MAX)).sum();
    json!((sum / ratios.len() as f64).exp())
}

/// The largest ratio; null where one is infinite.
fn most(ratios: &[f64]) -> Value {
    let most = ratios.iter().copied().fold(0.0, f64::max);
    if ratios.is_empty() || !most.is_finite() { Value::Null } else { json!(most) }
}
