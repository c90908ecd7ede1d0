//! The same application on machines that come and go, and with processes that nobody can predict exactly: a simple model
//! of slots and processes that uses the code that maps and remaps ([`idlewood_scheduler::rounds`]).
//!
//! These are not whole peers: there is no tree, no message takes time, no other bag is in the way, and slots are seen at
//! once when they come or go. Left out, too: copies of the slowest process of a stage, and filling iterations.

use std::time::Duration;

use idlewood_scheduler::rounds::{Costs, Curve, ITERATIONS_MAX, Mode, PartialRun, Step, Sweep, map};
use serde_json::{Value, json};

use super::ours;
use super::rivals;
use super::samples::{self, Ratios};
use super::world::{Machines, World, varied};
use crate::random::stream;

/// Coefficients of variation of processes.
const TASK_CVS: [f64; 4] = [0.0, 0.1, 0.2, 0.3];
/// Coefficient of variation of the short runs that predictions come from (our choice).
const SWEEP_CV: f64 = 0.02;
const MODES: [Mode; 2] = [Mode::Synchronous { fill: false }, Mode::Asynchronous];

/// What is run with every seed.
#[derive(Clone, Copy, Debug)]
struct Case {
    machines: Machines,
    mode: Mode,
    task_cv: f64,
}

/// What came of one seed.
#[derive(Clone, Copy, Debug)]
struct Sample {
    ratios: Ratios,
    lost_tasks: usize,
    restarts: usize,
}

/// A row for each kind of machines, mode and variation, over these seeds; `progress` is told how many runs are done, and
/// how many there are.
pub(super) fn rows(seed: u64, seeds: u64, progress: impl FnMut(usize, usize)) -> Vec<Value> {
    let cases: Vec<Case> = Machines::ALL
        .into_iter()
        .flat_map(|machines| MODES.map(|mode| TASK_CVS.map(|task_cv| Case { machines, mode, task_cv })))
        .flatten()
        .collect();
    let samples = samples::run(&cases, seed, seeds, sample, progress);
    cases.iter().zip(samples.chunks(seeds as usize)).map(|(case, samples)| row(case, samples)).collect()
}

fn row(case: &Case, samples: &[Sample]) -> Value {
    let mut row = json!({
        "part": "model",
        "machines": case.machines.name(),
        "mode": if case.mode == Mode::Asynchronous { "async" } else { "sync" },
        "task_cv": case.task_cv,
        "seeds": samples.len(),
        "lost_tasks": samples.iter().map(|sample| sample.lost_tasks).sum::<usize>(),
        "restarts": samples.iter().map(|sample| sample.restarts).sum::<usize>() as f64 / samples.len() as f64,
    });
    let ratios: Vec<Ratios> = samples.iter().map(|sample| sample.ratios).collect();
    samples::add_ratios(&mut row, &ratios);
    row
}

fn sample(case: Case, seed: u64) -> Sample {
    let world = World::draw(case.machines, case.task_cv, seed);
    let costs = predicted(&world, seed);
    let outcome = ours::run(&world, &costs, case.mode);
    let slots = rivals::there(&world, 0.0);
    let predicted_s = map(case.mode, &world.processes, &slots, &costs).map(|mapping| mapping.ends_s);
    let clairvoyant_s = rivals::clairvoyant_s(&world, &costs, case.mode);
    let best_static_s = rivals::best_static_s(&world, &costs, case.mode);
    Sample {
        ratios: Ratios::new(outcome.ended_s, predicted_s, clairvoyant_s, best_static_s),
        lost_tasks: outcome.open,
        restarts: outcome.restarts,
    }
}

/// What a sweep on each slot says of each class.
fn predicted(world: &World, seed: u64) -> Costs {
    let mut rng = stream(seed, "rounds sweep", 0);
    let mut measured = |truth: &Curve| measure(|iterations| truth.time_s(iterations) * varied(&mut rng, SWEEP_CV));
    let curves = world.costs.curves.iter().map(|row| row.iter().map(&mut measured).collect()).collect();
    Costs { curves, ..world.costs.clone() }
}

fn measure(mut run_s: impl FnMut(u64) -> f64) -> Curve {
    let mut sweep = Sweep::new(ITERATIONS_MAX);
    loop {
        match sweep.step() {
            Step::Known(estimate) => return estimate.curve,
            Step::Run(iterations) => {
                sweep.ended(PartialRun { iterations, took: Duration::from_secs_f64(run_s(iterations)) });
            }
        }
    }
}
