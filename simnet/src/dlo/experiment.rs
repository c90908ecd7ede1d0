//! Which platforms are drawn, and which algorithms run on them.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::fold::Fold;
use super::lagrangian::{Kind, Lagrangian, WAVES_MAX};
use super::mix::Mix;
use super::optimum::best_utility;
use super::platform::Platform;
use super::published::{REMOVAL_SIZE, steps};
use super::removal;
use super::rows::{Case, Outcome, Series, row};
use super::size::Size;
use crate::experiment::{Plan, lock, replace, unwritable};
use crate::seeds;

/// The file with all rows.
const SUMMARY: &str = "dlo.json";

/// What to run.
#[derive(Clone, Debug)]
pub struct Dlo {
    /// Sizes of drawn platforms.
    pub sizes: Vec<Size>,
    /// The first seed; each seed is a platform.
    pub seed: u64,
    /// Platforms of each size.
    pub seeds: u64,
    /// Weights of the three applications on drawn platforms.
    pub weights: Vec<f64>,
    /// This platform instead of drawn ones, and where it was read.
    pub platform: Option<(PathBuf, Platform)>,
    /// Directory of the summary; created if missing.
    pub out: PathBuf,
    /// Platforms at a time; none: one per core.
    pub threads: Option<usize>,
}

/// One platform.
#[derive(Clone, Copy)]
struct Job {
    size: Size,
    seed: u64,
}

type Outcomes = Vec<(Series, Outcome)>;

impl Dlo {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        if self.sizes.is_empty() || !(1..=10_000).contains(&self.seeds) {
            return Err("write at least one size, and 1 to 10000 seeds".to_owned());
        }
        if self.seed.checked_add(self.seeds - 1).is_none() {
            return Err("the last seed, seed + seeds - 1, must be below 2^64".to_owned());
        }
        if self.weights.len() != 3 || !self.weights.iter().all(|weight| weight.is_finite() && *weight > 0.0) {
            return Err("weights are three numbers above 0, such as 1,2,4".to_owned());
        }
        if self.threads == Some(0) {
            return Err("threads must be at least 1".to_owned());
        }
        Ok(())
    }

    /// The command line of this, without directory and threads, which change no result.
    pub fn command(&self) -> String {
        if let Some((path, _)) = &self.platform {
            return format!("simnet reproduce dlo --seed {} --platform {}", self.seed, path.display());
        }
        let sizes: Vec<String> = self.sizes.iter().map(Size::to_string).collect();
        let weights: Vec<String> = self.weights.iter().map(f64::to_string).collect();
        let (sizes, weights) = (sizes.join(","), weights.join(","));
        format!("simnet reproduce dlo --sizes {sizes} --seed {} --seeds {} --weights {weights}", self.seed, self.seeds)
    }

    /// Runs everything; calls `progress` with platforms done and all of them about five times a second. Returns the
    /// summary, which is also in the directory.
    ///
    /// # Errors
    /// A sentence that names the file that could not be written, or the platform for which the convex solver finds no optimum.
    pub fn run(&self, progress: impl FnMut(usize, usize)) -> Result<Value, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let jobs = self.jobs();
        let work = |number: usize| {
            let Job { size, seed } = jobs[number];
            self.work(jobs[number]).map_err(|sentence| format!("{size}, seed {seed}: {sentence}"))
        };
        let outcomes: Vec<Outcomes> = seeds::outcomes(jobs.len(), self.threads, work, progress)?;
        let summary = json!({
            "experiment": "dlo",
            "command": self.command(),
            "commit": Plan::commit(),
            "seed": self.seed,
            "seeds": if self.platform.is_some() { 1 } else { self.seeds },
            "weights": self.weights(),
            "rows": rows(&jobs, &outcomes),
        });
        replace(&self.out.join(SUMMARY), &format!("{summary:#}\n"))?;
        Ok(summary)
    }

    /// Weights of the applications, in their order.
    fn weights(&self) -> Vec<f64> {
        match &self.platform {
            Some((_, platform)) => platform.applications.iter().map(|application| application.weight).collect(),
            None => self.weights.clone(),
        }
    }

    fn jobs(&self) -> Vec<Job> {
        if let Some((_, platform)) = &self.platform {
            let degree = platform.neighbours().iter().map(Vec::len).max().unwrap_or(0);
            return vec![Job { size: Size { nodes: platform.machines.len(), degree }, seed: self.seed }];
        }
        let seeds = self.seed..=self.seed + (self.seeds - 1);
        let of_size = |size: &Size| seeds.clone().map(|seed| Job { size: *size, seed }).collect::<Vec<_>>();
        self.sizes.iter().flat_map(of_size).collect()
    }

    fn work(&self, job: Job) -> Result<Outcomes, String> {
        if let Some((_, platform)) = &self.platform {
            return start(platform, Mix::Given, job);
        }
        let mut outcomes = Vec::new();
        for mix in Mix::DRAWN {
            let weighted = mix.kinds().into_iter().zip(&self.weights);
            let kinds: Vec<(f64, f64, f64)> = weighted.map(|((gflop, mb), weight)| (gflop, mb, *weight)).collect();
            let platform = Platform::draw(job.size, &kinds, job.seed);
            outcomes.extend(start(&platform, mix, job)?);
            if mix == Mix::Mixed && job.size == REMOVAL_SIZE {
                outcomes.extend(removal::run(&platform, mix, job.seed)?);
            }
        }
        Ok(outcomes)
    }
}

/// All algorithms from their start.
fn start(platform: &Platform, mix: Mix, job: Job) -> Result<Outcomes, String> {
    let ways = platform.ways();
    let best = best_utility(platform, &ways)?;
    let mut outcomes = Vec::new();
    for kind in [Kind::Naive, Kind::Adaptive] {
        for steps in steps(kind, job.size) {
            let lagrangian = Lagrangian::new(platform, &ways, kind, steps, job.seed);
            let outcome = Outcome::of_lagrangian(platform, &ways, lagrangian, WAVES_MAX, best);
            let series = Series { case: Case::Start, mix, algorithm: kind.name(), steps: Some(steps) };
            outcomes.push((series, outcome));
        }
    }
    let outcome = Outcome::of_wave(platform, &ways, &Fold::new(platform, &ways), best);
    outcomes.push((Series { case: Case::Start, mix, algorithm: "fold", steps: None }, outcome));
    Ok(outcomes)
}

/// A row for each size, case, mix and algorithm, in the order in which they were run.
fn rows(jobs: &[Job], outcomes: &[Outcomes]) -> Vec<Value> {
    let mut sizes: Vec<Size> = Vec::new();
    jobs.iter().for_each(|job| {
        if !sizes.contains(&job.size) {
            sizes.push(job.size)
        }
    });
    let mut rows = Vec::new();
    for size in sizes {
        let of_size = || jobs.iter().zip(outcomes).filter(|(job, _)| job.size == size).flat_map(|(_, of)| of);
        let mut all: Vec<Series> = Vec::new();
        of_size().for_each(|(series, _)| {
            if !all.contains(series) {
                all.push(*series)
            }
        });
        while let Some(first) = all.first().copied() {
            let is_same = |of: &Series| (of.case, of.mix, of.algorithm) == (first.case, first.mix, first.algorithm);
            let same: Vec<Series> = all.extract_if(.., |series| is_same(series)).collect();
            let of = |series: &Series| of_size().filter(|(of, _)| of == series).map(|(_, outcome)| outcome).collect();
            let outcomes: Vec<Vec<&Outcome>> = same.iter().map(of).collect();
            rows.push(row(size, &same, &outcomes));
        }
    }
    rows
}
