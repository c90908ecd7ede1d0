//! What to simulate, and where to leave it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::case::{ANNOUNCED, CHEAT, Case, Failures};
use super::rows::{self, Seeds};
use super::run;
use crate::experiment::{Line, Plan, Refresh, Table, build, lock, replace, unwritable};
use crate::seeds::{self, JobEvent};

/// Files of the directory: a row for each simulation, and rows over all seeds.
const RUNS: &str = "shares-runs.csv";
const TABLE: &str = "shares.csv";
const SUMMARY: &str = "shares.json";
/// Bags without an end beside the cheat, itself included.
const CHEAT_BAGS: usize = 4;

/// What to run.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Sizes of grids, 10 to 100,000 machines each.
    pub nodes: Vec<u32>,
    /// How many bags without an end there are, 2 to 8.
    pub bags: Vec<usize>,
    /// When machines fail.
    pub failures: Vec<Failures>,
    /// First seed.
    pub seed: u64,
    /// Number of seeds, 1 to 1,000.
    pub seeds: u64,
    /// For how long throughput is measured, 1 to 1,440. Tasks are long in proportion to it: 30 s to 5 min of a machine of 2,000 Mop/s where
    /// it is an hour.
    pub minutes: u64,
    /// Directory of the files; created if missing.
    pub out: PathBuf,
    /// Simulations at a time; none: one per core.
    pub threads: Option<usize>,
}

/// A case with a seed.
struct Job {
    case: Case,
    seed: u64,
    key: String,
}

impl Shares {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        let check = |valid: bool, sentence: &str| if valid { Ok(()) } else { Err(sentence.to_owned()) };
        let are_sizes = !self.nodes.is_empty() && self.nodes.iter().all(|nodes| (10..=100_000).contains(nodes));
        check(are_sizes, "nodes must be between 10 and 100000 each, such as --nodes 100,1000")?;
        let are_counts = !self.bags.is_empty() && self.bags.iter().all(|bags| (2..=8).contains(bags));
        check(are_counts, "bags must be between 2 and 8 each, such as --bags 2,8")?;
        check(!self.failures.is_empty(), "failures must name at least one of none, durable and desktop")?;
        check((1..=1_000).contains(&self.seeds), "seeds must be between 1 and 1000")?;
        check(
            self.seed.checked_add(self.seeds - 1).is_some(),
            "the last seed, seed + seeds - 1, must be below 2^64; give a smaller --seed",
        )?;
        check((1..=1_440).contains(&self.minutes), "minutes must be between 1 and 1440")?;
        check(self.threads != Some(0), "threads must be at least 1")?;
        self.cases().iter().try_for_each(|case| case.scenario(self.seed).validate())
    }

    /// The command line of this, without directory and threads, which change no result.
    pub fn command(&self) -> String {
        fn join<T: ToString>(all: &[T]) -> String {
            all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        format!(
            "simnet reproduce shares --nodes {} --bags {} --failures {} --seed {} --seeds {} --minutes {}",
            join(&self.nodes),
            join(&self.bags),
            join(&self.failures),
            self.seed,
            self.seeds,
            self.minutes
        )
    }

    fn case(&self, nodes: u32, failures: Failures, bags: usize, finite: bool) -> Case {
        Case::new(nodes, failures, bags, finite, Duration::from_secs(60 * self.minutes))
    }

    /// The simulations of a row: with bags without an end alone, with finite ones beside them, with these alone, and without any.
    fn of_row(&self, nodes: u32, failures: Failures, bags: usize) -> [Case; 4] {
        [(bags, false), (bags, true), (0, true), (0, false)]
            .map(|(bags, finite)| self.case(nodes, failures, bags, finite))
    }

    /// The same grid, honest at first, and then with each of the cheats.
    fn of_cheats(&self) -> Vec<Case> {
        let nodes = self.nodes.iter().copied().min().unwrap_or(0);
        let honest = self.case(nodes, Failures::None, CHEAT_BAGS, false);
        ANNOUNCED.into_iter().map(|announced| Case { announced, ..honest }).collect()
    }

    fn groups(&self) -> impl Iterator<Item = (u32, Failures, usize)> {
        let of_nodes = move |nodes: &u32| {
            let nodes = *nodes;
            let of_failures = move |failures: &Failures| {
                let failures = *failures;
                self.bags.iter().map(move |bags| (nodes, failures, *bags))
            };
            self.failures.iter().flat_map(of_failures)
        };
        self.nodes.iter().flat_map(of_nodes)
    }

    /// All simulations, each once.
    fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        let of_rows = self.groups().flat_map(|(nodes, failures, bags)| self.of_row(nodes, failures, bags));
        for case in of_rows.chain(self.of_cheats()) {
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    fn jobs(&self, build: &str) -> Vec<Job> {
        let seeds = self.seed..=self.seed + (self.seeds - 1);
        let of_case = |case: Case| {
            seeds.clone().map(move |seed| {
                let text = format!("{build} shares {case:?} {seed}");
                Job { case, seed, key: hex::encode(&blake3::hash(text.as_bytes()).as_bytes()[..8]) }
            })
        };
        self.cases().into_iter().flat_map(of_case).collect()
    }

    /// Runs what is missing; calls `progress` at the beginning, and then about five times a second, with simulations done, all of them, and
    /// what runs. Returns the summary, which is also in the directory.
    ///
    /// # Errors
    /// A sentence that names the file that could not be read or written, or that another process works in the directory.
    pub fn run(&self, mut progress: impl FnMut(usize, usize, &str)) -> Result<Value, String> {
        std::fs::create_dir_all(&self.out).map_err(|error| unwritable(&self.out, &error))?;
        let _locked = lock(&self.out)?;
        let jobs = self.jobs(&build()?);
        let identities = jobs.iter().map(|job| (job.key.clone(), job.case.labels(), job.seed)).collect();
        let mut table = Table::open(self.out.join(RUNS), identities)?;
        self.write(&jobs, &table)?;
        let missing: Vec<usize> = (0..jobs.len()).filter(|&job| table.lines[job].is_none()).collect();
        let mut done = jobs.len() - missing.len();
        let mut refresh = Refresh::new();
        let mut running = String::new();
        progress(done, jobs.len(), &running);
        let work = |number: usize, tell: &mut dyn FnMut(f64)| {
            let job = &jobs[missing[number]];
            let (trace_hash, values) = run::run(&job.case, job.seed, tell);
            Line { key: job.key.clone(), labels: job.case.labels(), seed: job.seed, trace_hash, values }
        };
        let threads = self.threads.unwrap_or_else(seeds::cores);
        seeds::run(missing.len(), threads, work, |event| {
            match event {
                JobEvent::Progress(number, share, _) => {
                    let job = &jobs[missing[number]];
                    running = format!("{} seed {}: {:.0} %", job.case.name(), job.seed, 100.0 * share);
                }
                JobEvent::Done(number, line, _) => {
                    table.insert(missing[number], line)?;
                    refresh.is_due = true;
                    done += 1;
                }
                JobEvent::Silence => {}
            }
            refresh.now_and_then(|| self.write(&jobs, &table).map(drop))?;
            progress(done, jobs.len(), &running);
            Ok::<(), String>(())
        })?;
        table.write()?;
        self.write(&jobs, &table)
    }

    /// Writes the summary and the table over all seeds.
    fn write(&self, jobs: &[Job], table: &Table) -> Result<Value, String> {
        let rows = self.rows(jobs, table);
        replace(&self.out.join(TABLE), &rows::csv(&rows))?;
        let summary = json!({
            "experiment": "shares",
            "command": self.command(),
            "commit": Plan::commit(),
            "seed": self.seed,
            "seeds": self.seeds,
            "minutes": self.minutes,
            "complete": table.lines.iter().all(Option::is_some),
            "rows": rows,
        });
        replace(&self.out.join(SUMMARY), &format!("{summary:#}\n"))?;
        Ok(summary)
    }

    /// The rows whose simulations are done with all seeds.
    fn rows(&self, jobs: &[Job], table: &Table) -> Vec<Value> {
        let seeds_of = |case: &Case| -> Option<Seeds<'_>> {
            let lines = jobs.iter().zip(&table.lines).filter(|(job, _)| job.case == *case);
            lines.map(|(_, line)| line.as_ref().map(|line| &line.values)).collect()
        };
        let labels = |case: &Case| {
            json!({
                "nodes": case.nodes,
                "failures": case.failures.name(),
                "bags": case.bags,
                "cheat": case.announced.name,
            })
        };
        let mut rows = Vec::new();
        for (nodes, failures, bags) in self.groups() {
            let cases = self.of_row(nodes, failures, bags);
            let [alone, beside, finite, idle] = cases.each_ref().map(seeds_of);
            if let (Some(alone), Some(beside), Some(finite), Some(idle)) = (alone, beside, finite, idle) {
                rows.push(rows::honest(labels(&cases[0]), bags, [&alone, &beside, &finite, &idle]));
            }
        }
        let cheats = self.of_cheats();
        let honest = cheats.first().and_then(seeds_of);
        for case in &cheats[1..] {
            if let (Some(of), Some(honest)) = (seeds_of(case), &honest) {
                rows.push(rows::cheat(labels(case), CHEAT_BAGS, CHEAT, &of, honest));
            }
        }
        rows
    }
}
