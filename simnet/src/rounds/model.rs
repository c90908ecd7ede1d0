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
use super::world::{Machines, World, varied};
use crate::experiment::{Combination, together};
use crate::random::stream;
use crate::seeds::{self, JobEvent};

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

/// What came of one seed. Ratios of an end that never came are infinite.
#[derive(Clone, Copy, Debug)]
struct Sample {
    ratio_prediction: f64,
    ratio_clairvoyant: f64,
    ratio_best_static: f64,
    lost_tasks: usize,
    restarts: usize,
}

/// One of the ratios of a sample, and its name.
type Ratio = (&'static str, fn(&Sample) -> f64);

/// A row for each kind of machines, mode and variation, over these seeds; `progress` is told how many runs are done, and
/// how many there are.
pub(super) fn rows(seed: u64, seeds: u64, mut progress: impl FnMut(usize, usize)) -> Vec<Value> {
    let cases: Vec<Case> = Machines::ALL
        .into_iter()
        .flat_map(|machines| MODES.map(|mode| TASK_CVS.map(|task_cv| Case { machines, mode, task_cv })))
        .flatten()
        .collect();
    let jobs = cases.len() * seeds as usize;
    let threads = seeds::cores();
    let mut samples: Vec<Option<Sample>> = vec![None; jobs];
    let work = |job: usize, _: &mut dyn FnMut(())| sample(cases[job / seeds as usize], seed + job as u64 % seeds);
    let mut done = 0;
    let listen = |event: JobEvent<(), Sample>| {
        if let JobEvent::Done(job, sample, _) = event {
            samples[job] = Some(sample);
            done += 1;
        }
        progress(done, jobs);
        Ok::<(), std::convert::Infallible>(())
    };
    let Ok(()) = seeds::run(jobs, threads, work, listen);
    let samples: Vec<Sample> = samples.into_iter().map(|sample| sample.expect("all jobs are done")).collect();
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
    let ratios: [Ratio; 3] = [
        ("ratio_prediction", |sample| sample.ratio_prediction),
        ("ratio_clairvoyant", |sample| sample.ratio_clairvoyant),
        ("ratio_best_static", |sample| sample.ratio_best_static),
    ];
    for (name, ratio) in ratios {
        let (value, interval) = together(Combination::Geometric, &samples.iter().map(ratio).collect::<Vec<_>>());
        row[name] = json!(value);
        if let Some(interval) = interval {
            row[format!("{name}_ci95")] = json!(interval);
        }
    }
    row
}

fn sample(case: Case, seed: u64) -> Sample {
    let world = World::draw(case.machines, case.task_cv, seed);
    let costs = predicted(&world, seed);
    let outcome = ours::run(&world, &costs, case.mode);
    let slots = rivals::there(&world, 0.0);
    let predicted_s = map(case.mode, &world.processes, &slots, &costs).map(|mapping| mapping.ends_s);
    let ended_s = outcome.ended_s.unwrap_or(f64::INFINITY);
    let ratio = |by_s: Option<f64>| ended_s / by_s.unwrap_or(f64::INFINITY);
    Sample {
        ratio_prediction: ratio(predicted_s),
        ratio_clairvoyant: ratio(rivals::clairvoyant_s(&world, &costs, case.mode)),
        ratio_best_static: ratio(rivals::best_static_s(&world, &costs, case.mode)),
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
