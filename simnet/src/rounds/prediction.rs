//! How long each resource set is predicted to take, and what a move from the first set would need without predictions
//! (Netto and others 2011, Figs. 7 and 8).

use idlewood_scheduler::rounds::{Mapping, Mode, map};
use serde_json::{Value, json};

use super::paper;

/// Processes that would wait iterate on, as the paper's do.
const SYNCHRONOUS: Mode = Mode::Synchronous { fill: true };

/// A row for each set and mode, in the synchronous mode for each of these costs of merging in seconds.
pub(super) fn rows(iterations: u64, merges_s: &[f64]) -> Vec<Value> {
    let synchronous = merges_s.iter().map(|&merge_s| (SYNCHRONOUS, Some(merge_s)));
    let modes = synchronous.chain([(Mode::Asynchronous, None)]);
    modes.flat_map(|(mode, merge_s)| of_mode(mode, merge_s, iterations)).collect()
}

/// The rows of all sets. Nobody waits for merging in the asynchronous mode, so that it has no cost there.
fn of_mode(mode: Mode, merge_s: Option<f64>, iterations: u64) -> Vec<Value> {
    let processes = paper::processes(iterations);
    let mapping = |set| {
        let costs = paper::costs(set, merge_s.unwrap_or(0.0));
        map(mode, &processes, &paper::slots(set), &costs).expect("each set has slots")
    };
    let mappings: Vec<(usize, Mapping)> = paper::SETS.map(|set| (set, mapping(set))).collect();
    let first_s = mappings[0].1.ends_s;
    let row = |(set, mapping): &(usize, Mapping)| {
        let all = mapping.stages.iter().flat_map(|stage| &stage.placements);
        let iterations = all.map(|placement| placement.iterations).sum::<u64>() as f64 / processes.len() as f64;
        json!({
            "part": "paper",
            "set": set,
            "mode": if mode == Mode::Asynchronous { "async" } else { "sync" },
            "merge_s": merge_s,
            "predicted_s": mapping.ends_s,
            "overestimation_percent": (mapping.ends_s / first_s - 1.0) * 100.0,
            "stages": mapping.stages.len(),
            "iterations_per_process": iterations,
        })
    };
    mappings.iter().map(row).collect()
}
