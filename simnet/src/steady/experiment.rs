//! Which platforms are drawn, and which algorithms run on them.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::algorithm::{Algorithm, Setting};
use super::optimum;
use super::platform::Platform;
use super::published::{LARGE_NODES_MIN, sizes};
use super::rows::{Judged, row};
use super::scale::Scale;
use crate::dlo::Size;
use crate::experiment::{Plan, lock, replace, unwritable};
use crate::seeds;

/// The file with all rows.
const SUMMARY: &str = "steady.json";

/// What to run.
#[derive(Clone, Debug)]
pub struct Steady {
    /// Sizes of drawn platforms; none: the paper's.
    pub sizes: Vec<Size>,
    /// What applications have in common.
    pub scales: Vec<Scale>,
    /// Algorithms beside the optimum.
    pub only: Vec<Algorithm>,
    /// The first seed; each seed is an instance of each size and scale.
    pub seed: u64,
    /// Instances.
    pub instances: u64,
    /// Weight of each application on drawn platforms.
    pub weights: Vec<f64>,
    /// Tasks of an application of the smallest weight.
    pub tasks: u64,
    /// Tasks of any kind that a machine of the paper's has room for.
    pub buffer: u64,
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
    /// None for a platform that was read.
    scale: Option<Scale>,
    seed: u64,
}

impl Steady {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=10_000).contains(&self.instances) {
            return Err("write 1 to 10000 instances".to_owned());
        }
        if self.seed.checked_add(self.instances - 1).is_none() {
            return Err("the last seed, seed + instances - 1, must be below 2^64".to_owned());
        }
        let is_weight = |weight: &f64| weight.is_finite() && *weight > 0.0;
        if !(1..=32).contains(&self.weights.len()) || !self.weights.iter().all(is_weight) {
            return Err("weights are 1 to 32 numbers above 0, one for each application, such as 1,1,2,4".to_owned());
        }
        if !(10..=1_000_000).contains(&self.tasks) || !(1..=1_000_000).contains(&self.buffer) {
            return Err("write 10 to 1000000 tasks, and a buffer of 1 to 1000000 tasks".to_owned());
        }
        if self.threads == Some(0) {
            return Err("threads must be at least 1".to_owned());
        }
        Ok(())
    }

    /// The command line of this, without directory and threads, which change no result.
    pub fn command(&self) -> String {
        let join = |words: Vec<String>| words.join(",");
        let platforms = match &self.platform {
            Some((path, _)) => format!("--platform {}", path.display()),
            None => format!(
                "--sizes {} --scales {} --seed {} --instances {} --weights {}",
                join(self.sizes().iter().map(Size::to_string).collect()),
                join(self.scales.iter().map(|scale| scale.name().to_owned()).collect()),
                self.seed,
                self.instances,
                join(self.weights.iter().map(f64::to_string).collect()),
            ),
        };
        let only = join(self.only.iter().map(|algorithm| algorithm.name().to_owned()).collect());
        format!("simnet reproduce steady {platforms} --only {only} --tasks {} --buffer {}", self.tasks, self.buffer)
    }

    fn sizes(&self) -> Vec<Size> {
        if self.sizes.is_empty() { sizes() } else { self.sizes.clone() }
    }

    /// Runs everything; calls `progress` with platforms done and all of them about five times a second. Returns the summary, which is
    /// also in the directory.
    ///
    /// # Errors
    /// A sentence that names the file that could not be written, or the platform for which the solver finds no optimum.
    pub fn run(&self, progress: impl FnMut(usize, usize)) -> Result<Value, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let jobs = self.jobs();
        let work = |number: usize| {
            let Job { size, scale, seed } = jobs[number];
            let scale_name = scale.map_or("given", Scale::name);
            self.work(jobs[number]).map_err(|sentence| format!("{size}, {scale_name}, seed {seed}: {sentence}"))
        };
        let judged: Vec<Vec<Judged>> = seeds::outcomes(jobs.len(), self.threads, work, progress)?;
        let summary = json!({
            "experiment": "steady",
            "command": self.command(),
            "commit": Plan::commit(),
            "seed": self.seed,
            "instances": if self.platform.is_some() { 1 } else { self.instances },
            "tasks": self.tasks,
            "buffer": self.buffer,
            "rows": self.rows(&jobs, &judged),
            "totals": self.totals(&jobs, &judged),
        });
        replace(&self.out.join(SUMMARY), &format!("{summary:#}\n"))?;
        Ok(summary)
    }

    fn jobs(&self) -> Vec<Job> {
        if let Some((_, platform)) = &self.platform {
            let degree = platform.children().iter().map(Vec::len).max().unwrap_or(0);
            return vec![Job { size: Size { nodes: platform.machines.len(), degree }, scale: None, seed: self.seed }];
        }
        let mut jobs = Vec::new();
        for size in self.sizes() {
            for &scale in &self.scales {
                let seeds = self.seed..=self.seed + (self.instances - 1);
                jobs.extend(seeds.map(|seed| Job { size, scale: Some(scale), seed }));
            }
        }
        jobs
    }

    fn work(&self, Job { size, scale, seed }: Job) -> Result<Vec<Judged>, String> {
        let platform = match (&self.platform, scale) {
            (Some((_, platform)), _) => platform.clone(),
            (None, scale) => Platform::draw(size, scale.unwrap_or(Scale::EqualFlops), &self.weights, seed),
        };
        let (rates, best) = optimum::best(&platform)?;
        let setting = Setting { tasks: self.tasks, buffer: self.buffer };
        let run = |algorithm: &Algorithm| (*algorithm, algorithm.run(&platform, &rates, setting));
        let outcomes: Vec<_> = self.only.iter().map(run).collect();
        let demand_driven = outcomes.iter().find(|(algorithm, _)| *algorithm == Algorithm::DemandDriven);
        let demand_driven = demand_driven.map(|(_, outcome)| outcome.fair_of_tasks);
        let judged = |(algorithm, outcome)| Judged { algorithm, best, demand_driven, outcome };
        Ok(outcomes.into_iter().map(judged).collect())
    }

    /// A row for each size, scale and algorithm, in the order in which they were run.
    fn rows(&self, jobs: &[Job], judged: &[Vec<Judged>]) -> Vec<Value> {
        let mut groups: Vec<(Size, Option<Scale>)> = Vec::new();
        jobs.iter().for_each(|job| {
            if !groups.contains(&(job.size, job.scale)) {
                groups.push((job.size, job.scale));
            }
        });
        let mut rows = Vec::new();
        for (size, scale) in groups {
            let labels = json!({
                "nodes": size.nodes,
                "degree": size.degree,
                "scale": scale.map_or("given", Scale::name),
            });
            rows.extend(self.rows_of(jobs, judged, &labels, |job| job.size == size && job.scale == scale));
        }
        rows
    }

    /// Rows over platforms of all sizes, of large ones, and of each scale.
    fn totals(&self, jobs: &[Job], judged: &[Vec<Judged>]) -> Vec<Value> {
        let mut totals = self.rows_of(jobs, judged, &json!({"of": "all"}), |_| true);
        let is_large = |job: &Job| job.size.nodes >= LARGE_NODES_MIN;
        totals.extend(self.rows_of(jobs, judged, &json!({"of": "large"}), is_large));
        for &scale in &self.scales {
            let label = json!({"of": scale.name()});
            totals.extend(self.rows_of(jobs, judged, &label, |job| job.scale == Some(scale)));
        }
        totals
    }

    /// A row for each algorithm over the platforms that are wanted; none where there is no such platform.
    fn rows_of(
        &self,
        jobs: &[Job],
        judged: &[Vec<Judged>],
        labels: &Value,
        is_wanted: impl Fn(&Job) -> bool,
    ) -> Vec<Value> {
        let wanted = jobs.iter().zip(judged).filter(|(job, _)| is_wanted(job));
        let wanted: Vec<&Judged> = wanted.flat_map(|(_, judged)| judged).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let labelled = |algorithm: &Algorithm| {
            let mut labelled: Map<String, Value> = labels.as_object().cloned().unwrap_or_default();
            labelled.extend(row(*algorithm, &wanted));
            Value::Object(labelled)
        };
        self.only.iter().map(labelled).collect()
    }
}
