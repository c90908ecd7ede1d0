//! What an iteration costs, from short runs of one process: the paper's multi-sweep (Netto and others 2011, §4.1, Fig. 3).
//!
//! The paper runs 3 iterations, then each time 2.15 times as many, until iterations per second change by less than
//! 5 %. Start-up counts as part of the throughput there, so that a program that starts slowly needs long runs and is
//! still predicted too long. Here time = start + c·iterations is fitted to all runs, and the sweep is over when c is
//! known within 5 %. docs/adr/0050 has the reasons.
//!
//! The single sweep is [`Curve::of_marks`]: one run that tells how far it is.

use std::time::Duration;

use super::mapping::Curve;

/// Iterations of the first run (the paper, Fig. 3).
const ITERATIONS_FIRST: u64 = 3;
/// So many times as many iterations has each run as the one before (the paper, Fig. 3: `iteration * 1.15 + iteration`).
const GROWTH: f64 = 2.15;
/// No run has more iterations (the paper, Fig. 3).
pub const ITERATIONS_MAX: u64 = 1500;
/// The cost of an iteration is known if its interval of 95 % confidence reaches no further to either side.
const KNOWN_SHARE: f64 = 0.05;
/// Student's quantiles for 95 % confidence, by degrees of freedom from 1 on; the last for all beyond.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
/// Shorter runs weigh as much as one of this length: no clock tells more.
const RESOLUTION_S: f64 = 1e-6;

/// A run that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialRun {
    /// Its iterations, at least 1.
    pub iterations: u64,
    /// From its start until its end.
    pub took: Duration,
}

/// What is known of a class of processes on one machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// How long a run takes by its iterations.
    pub curve: Curve,
    /// How far the cost of an iteration may be off to either side, as a share of it, with 95 % confidence; infinite if
    /// there are too few runs to tell.
    pub within_share: f64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Run a process for so many iterations.
    Run(u64),
    /// The sweep is over.
    Known(Estimate),
}

/// Runs of one process, each longer than the one before.
#[derive(Clone, Debug)]
pub struct Sweep {
    runs: Vec<PartialRun>,
    iterations_max: u64,
}

impl Sweep {
    /// A sweep without runs. None of them will have more than `iterations_max` iterations, which are at least 1 and
    /// [`ITERATIONS_MAX`] by default: it is what the process has to do at all, or how much time may be spent.
    pub fn new(iterations_max: u64) -> Self {
        Self { runs: Vec::new(), iterations_max: iterations_max.max(1) }
    }

    /// Takes note of a run that has ended.
    pub fn ended(&mut self, run: PartialRun) {
        self.runs.push(run);
    }

    /// What the runs so far show; `None` before the first.
    pub fn estimate(&self) -> Option<Estimate> {
        (!self.runs.is_empty()).then(|| fit(&self.runs))
    }

    /// The next run, or what is known if that is enough or no longer run is allowed.
    pub fn step(&self) -> Step {
        let Some(last) = self.runs.last() else { return Step::Run(ITERATIONS_FIRST.min(self.iterations_max)) };
        let estimate = fit(&self.runs);
        if estimate.within_share <= KNOWN_SHARE || last.iterations >= self.iterations_max {
            return Step::Known(estimate);
        }
        let next = (last.iterations as f64 * GROWTH) as u64;
        Step::Run(next.max(last.iterations + 1).min(self.iterations_max))
    }
}

impl Curve {
    /// What one run shows that told how many iterations it had done at these moments, since it began (the paper's single sweep). The first and
    /// the last mark decide: for iterations whose times vary independently nothing else tells more of their mean. `None`: no iteration lies
    /// between any two marks.
    pub fn of_marks(marks: &[PartialRun]) -> Option<Self> {
        let (first, last) = (marks.iter().find(|mark| mark.iterations > 0)?, marks.last()?);
        let iterations = last.iterations.checked_sub(first.iterations).filter(|&iterations| iterations > 0)?;
        let iteration_s = last.took.saturating_sub(first.took).as_secs_f64() / iterations as f64;
        let start_s = (first.took.as_secs_f64() - iteration_s * first.iterations as f64).max(0.0);
        Some(Self { start_s, iteration_s })
    }
}

/// Sums over runs, each with weight 1/time²: errors of run times grow with the times.
#[derive(Default)]
struct Sums {
    weight: f64,
    i: f64,
    t: f64,
    ii: f64,
    it: f64,
}

/// The weighted least squares of time = start + c·iterations. A start below zero, which noise can give, is none at all,
/// and so is one that leaves nothing for iterations.
fn fit(runs: &[PartialRun]) -> Estimate {
    let points = || {
        runs.iter().map(|run| {
            let (i, t) = (run.iterations as f64, run.took.as_secs_f64());
            (i, t, t.max(RESOLUTION_S).powi(-2))
        })
    };
    let mut sums = Sums::default();
    for (i, t, weight) in points() {
        sums.weight += weight;
        sums.i += weight * i;
        sums.t += weight * t;
        sums.ii += weight * i * i;
        sums.it += weight * i * t;
    }
    let spread = sums.weight * sums.ii - sums.i * sums.i;
    let slope = (sums.weight * sums.it - sums.i * sums.t) / spread;
    let start_s = (sums.t - slope * sums.i) / sums.weight;
    let has_start = runs.len() > 1 && slope > 0.0 && start_s > 0.0;
    // The inverse of the weight that the runs give to c together.
    let (curve, inverse, parameters) = if has_start {
        (Curve { start_s, iteration_s: slope }, sums.weight / spread, 2)
    } else {
        (Curve { start_s: 0.0, iteration_s: sums.it / sums.ii }, 1.0 / sums.ii, 1)
    };
    let residuals: f64 =
        points().map(|(i, t, weight)| weight * (t - curve.start_s - curve.iteration_s * i).powi(2)).sum();
    let freedom = runs.len().saturating_sub(parameters);
    let within_share = match freedom {
        0 => f64::INFINITY,
        _ if curve.iteration_s <= 0.0 => f64::INFINITY,
        _ => {
            let error = (residuals / freedom as f64 * inverse).sqrt();
            STUDENT[(freedom - 1).min(STUDENT.len() - 1)] * error / curve.iteration_s
        }
    };
    Estimate { curve, within_share }
}
