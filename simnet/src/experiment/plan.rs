//! What to run of an experiment: its cases and seeds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::case::{self, Case};
use super::job;
use super::program;
use super::which::Experiment;
use crate::log::Log;
use crate::processor_load::ProcessorLoad;
use crate::scenario::HORIZON_MAX;

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
    /// A log whose bags are further cases of [`Experiment::Loads`].
    pub log: Option<Log>,
    /// Loads of processors, whose machines' owners are a further case of [`Experiment::Desktops`].
    pub owners: Option<(PathBuf, Arc<ProcessorLoad>)>,
    /// Labels that a case must have, those of one kind being alternatives; empty: all cases.
    pub only: Vec<String>,
    /// Directory of the output files; created if missing.
    pub out: PathBuf,
    /// Jobs at a time; none: one per core.
    pub threads: Option<usize>,
}

/// A case with a seed.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) case: usize,
    pub(super) seed: u64,
    /// Identifies build, settings and seed.
    pub(super) key: String,
    pub(super) name: String,
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
        program::commit()
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
        if let Some(log) = &self.log {
            command += &format!(" --log {}", log.path.file_name().unwrap_or_default().display());
        }
        if let Some((owners, _)) = &self.owners {
            command += &format!(" --owners {}", owners.file_name().unwrap_or_default().display());
        }
        if !self.only.is_empty() {
            command += &format!(" --only {}", self.only.join(","));
        }
        command
    }

    fn is_only(&self, word: &str) -> bool {
        self.only.iter().any(|only| is_meant(only, word))
    }

    /// All cases that the experiment has for these sizes.
    pub(super) fn all_cases(&self) -> Vec<Case> {
        let nodes: BTreeSet<u32> = self.nodes.iter().copied().collect();
        nodes
            .into_iter()
            .flat_map(|nodes| case::of(self.experiment, nodes, self.bags, self.log.as_ref(), self.owners.as_ref()))
            .collect()
    }

    /// The cases selected by the words of `only`: those of one kind are alternatives.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut cases = self.all_cases();
        let words: BTreeSet<_> = cases.iter().flat_map(Case::words).filter(|(_, word)| self.is_only(word)).collect();
        let labels: BTreeSet<&str> = words.iter().map(|(label, _)| *label).collect();
        cases.retain(|case| case.on_demand.is_none_or(|label| labels.contains(label)));
        cases.retain(|case| {
            labels.iter().all(|label| case.words().any(|word| word.0 == *label && words.contains(&word)))
        });
        cases
    }

    /// Each case with each seed; `build` identifies the program.
    pub(super) fn jobs(&self, cases: &[Case], build: &str) -> Vec<Job> {
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
