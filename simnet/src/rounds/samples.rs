//! What the parts `model` and `peers` have in common: runs of each case with each seed, and how their ends compare with the rivals'.

use serde_json::{Value, json};

use crate::experiment::{Combination, together};
use crate::seeds;

/// An end by that of each rival. An end that never came is infinite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratios {
    prediction: f64,
    clairvoyant: f64,
    best_static: f64,
}

/// One of them, and the name of its column.
type Ratio = (&'static str, fn(&Ratios) -> f64);

impl Ratios {
    pub(super) fn new(
        ended_s: Option<f64>,
        predicted_s: Option<f64>,
        clairvoyant_s: Option<f64>,
        best_static_s: Option<f64>,
    ) -> Self {
        let ended_s = ended_s.unwrap_or(f64::INFINITY);
        let ratio = |by_s: Option<f64>| ended_s / by_s.unwrap_or(f64::INFINITY);
        Self { prediction: ratio(predicted_s), clairvoyant: ratio(clairvoyant_s), best_static: ratio(best_static_s) }
    }
}

/// Runs each case with each of these seeds. Returns what came of that, all seeds of the first case first; `progress` is told how many
/// runs are done, and how many there are.
pub(super) fn run<Case: Copy + Sync, Sample: Send>(
    cases: &[Case],
    seed: u64,
    seeds: u64,
    sample: impl Fn(Case, u64) -> Sample + Sync,
    progress: impl FnMut(usize, usize),
) -> Vec<Sample> {
    let work = |job: usize| Ok(sample(cases[job / seeds as usize], seed + job as u64 % seeds));
    seeds::outcomes(cases.len() * seeds as usize, None, work, progress).expect("no run fails")
}

/// Adds the geometric means over all seeds to the row of a case, and their intervals.
pub(super) fn add_ratios(row: &mut Value, samples: &[Ratios]) {
    let ratios: [Ratio; 3] = [
        ("ratio_prediction", |ratios| ratios.prediction),
        ("ratio_clairvoyant", |ratios| ratios.clairvoyant),
        ("ratio_best_static", |ratios| ratios.best_static),
    ];
    for (name, ratio) in ratios {
        let (value, interval) = together(Combination::Geometric, &samples.iter().map(ratio).collect::<Vec<_>>());
        row[name] = json!(value);
        if let Some(interval) = interval {
            row[format!("{name}_ci95")] = json!(interval);
        }
    }
}
