//! The papers' experiments as commands: `simnet reproduce fairness`, `updates`, `table1`, `bound`, `scale`, `desktops`,
//! `submitters`.
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
mod published;
mod statistic;
mod summary;
mod table;
mod updates;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use idlewood_overlay::Time;
use serde_json::Value;

pub(crate) use published::figures;
pub(crate) use table::{Line, Samples, Table, lock, replace, unwritable};

pub use job::compare;

use crate::scenario::HORIZON_MAX;
use crate::seeds::{self, JobEvent};
use case::Case;

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Experiment {
    /// Maximum stretch relative to the centralised schedulers (Celaya and Marchal 2010, Fig. 4a).
    Fairness,
    /// Time for a leaf's change to reach the root (Fig. 4b).
    Updates,
    /// Update time and use of the links by update limit (Table 1).
    Table1,
    /// When a router keeps a request: where requests are decided, and at what cost (§6).
    Bound,
    /// The largest grids.
    Scale,
    /// Bags as in production grids, and the benefit of each of our additions there.
    Desktops,
    /// What a user gains by cheating, and what rules against that cost an honest user with many bags (ADR 17).
    Submitters,
}

impl Experiment {
    /// All experiments.
    pub const ALL: [Self; 7] =
        [Self::Fairness, Self::Updates, Self::Table1, Self::Bound, Self::Scale, Self::Desktops, Self::Submitters];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fairness => "fairness",
            Self::Updates => "updates",
            Self::Table1 => "table1",
            Self::Bound => "bound",
            Self::Scale => "scale",
            Self::Desktops => "desktops",
            Self::Submitters => "submitters",
        }
    }

    /// Sizes of grids by default.
    pub fn default_nodes(self) -> &'static [u32] {
        match self {
            Self::Fairness | Self::Updates => &[50, 100, 200, 500, 1000],
            Self::Table1 => &[1000],
            Self::Bound => &[200],
            Self::Scale => &[1_000, 10_000, 100_000],
            Self::Desktops => &[100, 300],
            Self::Submitters => &[50, 100],
        }
    }

    /// Seeds by default.
    pub fn default_seeds(self) -> u64 {
        match self {
            Self::Fairness | Self::Submitters => 10,
            Self::Updates => 3,
            Self::Table1 | Self::Scale => 1,
            Self::Bound => 5,
            Self::Desktops => 20,
        }
    }
}

/// Labels that tell cases apart; each experiment uses some of them. Rows begin with these, followed by `seeds`.
pub const LABELS: [&str; 12] = [
    "nodes",
    "failures",
    "bag_interval_s",
    "update_limit_bytes_s",
    "rule",
    "bound",
    "machines",
    "sizes",
    "load",
    "user_percent",
    "user",
    "variant",
];

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which experiment.
    pub experiment: Experiment,
    /// Sizes of grids, 2 to 1,000,000 machines each.
    pub nodes: Vec<u32>,
    /// First seed.
    pub seed: u64,
    /// Number of seeds, 1 to 1,000,000.
    pub seeds: u64,
    /// Bags of each run, at least 1; none: as many as the experiment has.
    pub bags: Option<u32>,
    /// Labels that a case must have, those of one kind being alternatives; empty: all cases.
    pub only: Vec<String>,
    /// Directory of the output files; created if missing.
    pub out: PathBuf,
    /// Jobs at a time; none: one per core.
    pub threads: Option<usize>,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobProgress {
    /// Simulated time.
    pub now: Time,
    /// Events so far.
    pub events: u64,
    /// Share of the job that is done.
    pub share: f64,
    /// Time taken so far.
    pub took: Duration,
}

/// Progress of the whole plan.
#[derive(Clone, Debug)]
pub struct PlanProgress {
    /// Running jobs: case and seed, and their progress.
    pub running: BTreeMap<String, JobProgress>,
    /// A job that has just been done, and how long it took.
    pub done: Option<(String, Duration)>,
    /// Jobs done, those of an earlier run included.
    pub jobs_done: usize,
    /// All jobs.
    pub jobs: usize,
    /// Jobs done by an earlier run.
    pub found: usize,
    /// Remaining time, estimated from the work done.
    pub left: Option<Duration>,
}

/// A case with a seed.
#[derive(Clone, Debug)]
struct Job {
    case: usize,
    seed: u64,
    /// Identifies build, settings and seed.
    key: String,
    name: String,
}

impl Plan {
    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        let check = |valid: bool, sentence: &str| if valid { Ok(()) } else { Err(sentence.to_owned()) };
        check(!self.nodes.is_empty(), "nodes must name at least one size")?;
        check(
            self.nodes.iter().all(|nodes| (2..=1_000_000).contains(nodes)),
            "nodes must be between 2 and 1000000 each, such as --nodes 50,100,200",
        )?;
        check((1..=1_000_000).contains(&self.seeds), "seeds must be between 1 and 1000000")?;
        check(
            self.seed.checked_add(self.seeds - 1).is_some(),
            "the last seed, seed + seeds - 1, must be below 2^64; give a smaller --seed",
        )?;
        check(self.bags != Some(0), "bags must be at least 1")?;
        check(self.threads != Some(0), "threads must be at least 1")?;
        let cases = self.all_cases();
        let words: BTreeSet<String> = cases.iter().flat_map(Case::words).map(|(_, word)| word).collect();
        let listed = || words.iter().cloned().collect::<Vec<_>>().join(", ");
        if let Some(unknown) = self.only.iter().find(|only| !words.iter().any(|word| is_meant(only, word))) {
            return Err(format!("no case has {unknown}; --only takes {}", listed()));
        }
        if self.cases().is_empty() {
            return Err(format!("no case has all of {} together", self.only.join(", ")));
        }
        self.cases().iter().try_for_each(|case| {
            check_horizon(case, case.scenario.horizon)?;
            // Only a valid scenario has bags.
            case.scenario.validate()?;
            check_horizon(case, job::horizon(case, self.seed))
        })
    }

    /// The commit that the program was built from.
    pub fn commit() -> &'static str {
        env!("IDLEWOOD_COMMIT")
    }

    /// The command line of this plan, without directory and threads, which change no result.
    pub fn command(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(u32::to_string).collect();
        let name = self.experiment.name();
        let mut command =
            format!("simnet reproduce {name} --nodes {} --seed {} --seeds {}", nodes.join(","), self.seed, self.seeds);
        if let Some(bags) = self.bags {
            command += &format!(" --bags {bags}");
        }
        if !self.only.is_empty() {
            command += &format!(" --only {}", self.only.join(","));
        }
        command
    }

    fn is_only(&self, word: &str) -> bool {
        self.only.iter().any(|only| is_meant(only, word))
    }

    fn all_cases(&self) -> Vec<Case> {
        let nodes: BTreeSet<u32> = self.nodes.iter().copied().collect();
        nodes.into_iter().flat_map(|nodes| case::of(self.experiment, nodes, self.bags)).collect()
    }

    /// The cases selected by the words of `only`: those of one kind are alternatives.
    fn cases(&self) -> Vec<Case> {
        let mut cases = self.all_cases();
        let words: BTreeSet<_> = cases.iter().flat_map(Case::words).filter(|(_, word)| self.is_only(word)).collect();
        let labels: BTreeSet<&str> = words.iter().map(|(label, _)| *label).collect();
        cases.retain(|case| !case.on_demand || labels.contains("variant"));
        cases.retain(|case| {
            labels.iter().all(|label| case.words().any(|word| word.0 == *label && words.contains(&word)))
        });
        cases
    }

    fn jobs(&self, cases: &[Case], build: &str) -> Vec<Job> {
        let numbered = cases.iter().enumerate();
        let seeds = self.seed..=self.seed + (self.seeds - 1);
        let of_case = |(case, of): (usize, &Case)| {
            let (settings, words) = (format!("{build} {:?} {of:?}", self.experiment), of.name());
            seeds.clone().map(move |seed| {
                let key = hex::encode(&blake3::hash(format!("{settings} {seed}").as_bytes()).as_bytes()[..8]);
                let name = format!("{words} seed {seed} ({} of {})", seed - self.seed + 1, self.seeds);
                Job { case, seed, key, name }
            })
        };
        numbered.flat_map(of_case).collect()
    }

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
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
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

/// Limits how often all jobs are summarised: every second, and at most a tenth of the time.
pub(crate) struct Refresh {
    ended: Instant,
    took: Duration,
    /// Something has changed since the last time.
    pub(crate) is_due: bool,
}

impl Refresh {
    /// As if the last time was now.
    pub(crate) fn new() -> Self {
        Self { ended: Instant::now(), took: Duration::ZERO, is_due: false }
    }

    /// Calls `write`, or leaves it for a later call.
    pub(crate) fn now_and_then(&mut self, write: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        if !self.is_due || self.ended.elapsed() < Duration::from_secs(1).max(self.took * 10) {
            return Ok(());
        }
        let begun = Instant::now();
        write()?;
        *self = Self { ended: Instant::now(), took: begun.elapsed(), is_due: false };
        Ok(())
    }
}

/// Whether a word of `only` selects this word of a case, regardless of blanks and of how a number is written.
fn is_meant(only: &str, word: &str) -> bool {
    let only = only.trim();
    let is_same_number = || {
        let ((name, number), (known_name, known)) = (only.split_once('=')?, word.split_once('=')?);
        Some(name == known_name && number.parse::<f64>().ok()? == known.parse::<f64>().ok()?)
    };
    only == word || is_same_number().unwrap_or(false)
}

/// Refuses a case that takes longer than a scenario may.
fn check_horizon(case: &Case, horizon: Duration) -> Result<(), String> {
    if horizon <= HORIZON_MAX {
        return Ok(());
    }
    let days = |time: Duration| time.as_secs().div_ceil(24 * 3600);
    let (name, bags, most) = (case.name(), case.scenario.bags, days(HORIZON_MAX));
    Err(format!("{name} would take {} days with {bags} bags, more than {most}; give fewer with --bags", days(horizon)))
}

/// Identifies this build: the hash of the program itself.
pub(crate) fn build() -> Result<String, String> {
    let program = std::env::current_exe().and_then(std::fs::read);
    let program = program.map_err(|error| format!("the program itself cannot be read: {error}"))?;
    Ok(blake3::hash(&program).to_hex().to_string())
}
