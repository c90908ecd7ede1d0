//! The papers' experiments as commands: `simnet reproduce fairness`, `updates`, `table1`, `bound`, `scale`, `desktops`,
//! `submitters`, `loads`.
//!
//! An experiment is a list of cases, each run with every seed. A case with a seed is a job: the simulation, then the
//! centralised schedulers and the offline bound on the same machines, bags and failures. Jobs run on several threads
//! and share nothing, so that the number of threads changes only the duration.
//!
//! Each job's row is in the directory's table as soon as it is done; the summary and the figures follow within a
//! second, or, with many jobs, as often as takes a tenth of the time at most. An interrupted run continues where it
//! stopped when the same build is given the same command; rows of another build or of other settings are never mixed
//! in, but put aside until they are asked for again.

mod case;
mod job;
mod plan;
mod program;
mod progress;
mod published;
mod refresh;
mod rivals;
mod statistic;
mod stretches;
mod summary;
mod table;
mod updates;
mod which;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) use program::build;
pub(crate) use published::figures;
pub(crate) use refresh::Refresh;
pub(crate) use statistic::{Combination, together};
pub(crate) use table::{Labels, Line, Samples, Table, Values, lock, replace, unwritable};

pub use job::compare;
pub use plan::Plan;
pub use progress::{JobProgress, PlanProgress};
pub use table::LABELS;
pub use which::Experiment;

use crate::seeds::{self, JobEvent};
use case::Case;
use plan::Job;

impl Plan {
    /// Runs the missing jobs; calls `progress` about five times a second. Returns the summary, which is also in the
    /// directory.
    ///
    /// # Errors
    /// A sentence that names the file that could not be read or written, or that another process works in the
    /// directory.
    pub fn run(&self, mut progress: impl FnMut(&PlanProgress)) -> Result<Value, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let cases = self.cases();
        let jobs = self.jobs(&cases, &build()?);
        let identities = jobs.iter().map(|job| (job.key.clone(), cases[job.case].labels.clone(), job.seed)).collect();
        let path = self.out.join(format!("{}.csv", self.experiment.name()));
        // A directory that cannot be written is reported at once, not after the first hour; and the summary of another
        // command must not remain beside this table.
        let mut table = Table::open(path, identities)?;
        self.write(&cases, &jobs, &table)?;
        let found = table.lines.iter().flatten().count();
        let missing: Vec<usize> = (0..jobs.len()).filter(|&job| table.lines[job].is_none()).collect();
        let weight = |job: &Job| f64::from(cases[job.case].scenario.nodes);
        let all_weight: f64 = missing.iter().map(|&job| weight(&jobs[job])).sum();
        let cores = seeds::cores();
        let threads = self.threads.unwrap_or(cores);
        // The largest grids one after the other, each on all threads: for memory, and so that its peak is that of one
        // job.
        let (at_a_time, threads_each) = match self.experiment {
            Experiment::Scale => (1, threads),
            _ => (threads.min(missing.len()).max(1), 1),
        };
        let started = Instant::now();
        let mut told = PlanProgress {
            running: BTreeMap::new(),
            done: None,
            jobs_done: found,
            jobs: jobs.len(),
            found,
            left: None,
        };
        let mut done_weight = 0.0;
        let mut under_way: BTreeMap<usize, f64> = BTreeMap::new();
        let mut refresh = Refresh::new();
        let work = |number: usize, progress: &mut dyn FnMut(JobProgress)| {
            let job = &jobs[missing[number]];
            let (trace_hash, values) = job::run(&cases[job.case], job.seed, threads_each, &mut |of| progress(of));
            Line { key: job.key.clone(), labels: cases[job.case].labels.clone(), seed: job.seed, trace_hash, values }
        };
        seeds::run(missing.len(), at_a_time, work, |word| {
            told.done = None;
            match word {
                JobEvent::Progress(number, progress, took) => {
                    let job = &jobs[missing[number]];
                    under_way.insert(number, progress.share * weight(job));
                    told.running.insert(job.name.clone(), JobProgress { took, ..progress });
                }
                JobEvent::Done(number, line, took) => {
                    let job = missing[number];
                    told.running.remove(&jobs[job].name);
                    under_way.remove(&number);
                    table.insert(job, line)?;
                    refresh.is_due = true;
                    done_weight += weight(&jobs[job]);
                    told.jobs_done += 1;
                    told.done = Some((jobs[job].name.clone(), took));
                }
                JobEvent::Silence => {}
            }
            refresh.now_and_then(|| self.write(&cases, &jobs, &table))?;
            let share = (done_weight + under_way.values().sum::<f64>()) / all_weight.max(1e-9);
            let elapsed_s = started.elapsed().as_secs_f64();
            told.left = (share > 0.01).then(|| Duration::from_secs_f64(elapsed_s * (1.0 / share - 1.0).max(0.0)));
            progress(&told);
            Ok::<(), String>(())
        })?;
        table.write().and_then(|()| self.write(&cases, &jobs, &table))?;
        Ok(summary::of(self, &cases, &jobs, &table))
    }

    /// Writes the summary and the figures, and removes those of an earlier command.
    fn write(&self, cases: &[Case], jobs: &[Job], table: &Table) -> Result<(), String> {
        let summary = summary::of(self, cases, jobs, table);
        let text = serde_json::to_string_pretty(&summary).expect("finite numbers are JSON");
        replace(&self.out.join(format!("{}.json", self.experiment.name())), &(text + "\n"))?;
        let figures: BTreeMap<_, _> = published::figures(self.experiment, &summary).into_iter().collect();
        for (name, figure) in &figures {
            replace(&self.out.join(format!("{name}.svg")), &figure.to_svg())?;
        }
        // Only this experiment's files: the directory may have others.
        let all = serde_json::json!({ "rows": self.all_cases().iter().map(Case::row).collect::<Vec<_>>() });
        for (name, _) in published::figures(self.experiment, &all) {
            let path = self.out.join(format!("{name}.svg"));
            if !figures.contains_key(&name) && path.exists() {
                std::fs::remove_file(&path).map_err(|error| unwritable(&path, &error))?;
            }
        }
        Ok(())
    }
}
