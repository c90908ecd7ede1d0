//! What is compared: the same figures of both worlds, by the same names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use idlewood_simnet::Scenario as Simulated;
use serde::Serialize;

use crate::scenario::Scenario;

/// Differences up to this are as they should be, in percent.
const GOAL_PERCENT: f64 = 10.0;

/// Before the names of figures of one kind of messages: in short runs they are small numbers, and shown on demand.
const KIND: &str = "kind ";

/// What agents ask each other for people who look at them, which nobody does in a simulation. It is left out, with what it takes on links: an
/// estimate, as if each of these messages had an answer of its own.
const FOR_PEOPLE: [&str; 2] = ["which_machines", "machines"];

/// Figures of one run, by their names.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Kinds of messages that are told together.
fn group(kind: &str) -> &'static str {
    match kind {
        "results" | "results_ack" => "results",
        "renewal" | "renewed" => "renewals",
        _ if kind.starts_with("overlay") => "tree",
        _ => "placing",
    }
}

/// What all machines of a run counted, from the first moment that a bag could arrive on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    /// Messages and their bytes, by kind.
    pub(crate) messages: BTreeMap<String, (u64, u64)>,
    /// Bytes of programs, inputs and outputs.
    pub(crate) blob_bytes: u64,
    /// Bytes that crossed the links of all machines, with all that carries messages and blobs, but for Ethernet's headers and mere
    /// acknowledgements of TCP, which simulations do not count.
    pub(crate) wire_bytes: u64,
    /// Tasks that ran to their end.
    pub(crate) tasks_run: u64,
}

impl Counted {
    /// Adds what others counted.
    pub(crate) fn add(&mut self, other: &Self) {
        for (kind, (count, bytes)) in &other.messages {
            let of = self.messages.entry(kind.clone()).or_default();
            *of = (of.0 + count, of.1 + bytes);
        }
        self.blob_bytes += other.blob_bytes;
        self.wire_bytes += other.wire_bytes;
        self.tasks_run += other.tasks_run;
    }

    /// What was counted since.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (kind, (count, bytes)) in &mut self.messages {
            let (count_before, bytes_before) = before.messages.get(kind).copied().unwrap_or_default();
            (*count, *bytes) = (*count - count_before, *bytes - bytes_before);
        }
        self.blob_bytes -= before.blob_bytes;
        self.wire_bytes -= before.wire_bytes;
        self.tasks_run -= before.tasks_run;
        self
    }

    fn figures(&self, of_all_tasks: u64, into: &mut Figures) {
        let (mut count_all, mut bytes_all) = (0, 0);
        for group in ["tree", "placing", "results", "renewals"] {
            into.insert(format!("messages of {group}"), 0.0);
            into.insert(format!("bytes of {group}"), 0.0);
        }
        let simulated = Simulated::default();
        let beside = simulated.overhead_bytes + simulated.answer_bytes;
        let mut wire_bytes = self.wire_bytes;
        for (kind, (count, bytes)) in &self.messages {
            if FOR_PEOPLE.contains(&kind.as_str()) {
                wire_bytes = wire_bytes.saturating_sub(bytes + count * beside);
                continue;
            }
            (count_all, bytes_all) = (count_all + count, bytes_all + bytes);
            into.insert(format!("{KIND}{kind}, messages"), *count as f64);
            into.insert(format!("{KIND}{kind}, bytes"), *bytes as f64);
            *into.entry(format!("messages of {}", group(kind))).or_default() += *count as f64;
            *into.entry(format!("bytes of {}", group(kind))).or_default() += *bytes as f64;
        }
        into.insert("messages".to_owned(), count_all as f64);
        into.insert("bytes of messages".to_owned(), bytes_all as f64);
        into.insert("bytes on links".to_owned(), wire_bytes as f64);
        into.insert("bytes of blobs".to_owned(), self.blob_bytes as f64);
        into.insert("tasks run twice".to_owned(), self.tasks_run.saturating_sub(of_all_tasks) as f64);
    }
}

/// The fate of a bag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fate {
    /// When it was submitted, and when its last result was there.
    pub(crate) submitted_s: f64,
    pub(crate) ended_s: f64,
    /// Tasks that its submitter issued again.
    pub(crate) reissued: u64,
    /// Results that came twice.
    pub(crate) twice: u64,
}

/// How long real tasks took, which a simulation has to be told: it draws the times of its tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Took {
    /// In the mean, so many times as long as they should have taken.
    pub(crate) times: f64,
    /// Coefficient of variation.
    pub(crate) cv: f64,
}

impl Took {
    /// Exactly what was said.
    pub(crate) const AS_SAID: Self = Self { times: 1.0, cv: 0.0 };

    /// From what each took, by what it should have taken.
    pub(crate) fn of(times: &[f64]) -> Self {
        if times.is_empty() {
            return Self::AS_SAID;
        }
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / times.len() as f64;
        Self { times: mean, cv: variance.sqrt() / mean }
    }
}

/// The figures of a run.
pub(crate) fn figures(scenario: &Scenario, fates: &[Fate], counted: &Counted) -> Figures {
    let mut figures = Figures::new();
    let first = fates.iter().map(|fate| fate.submitted_s).fold(f64::INFINITY, f64::min);
    let last = fates.iter().map(|fate| fate.ended_s).fold(0.0, f64::max);
    figures.insert("makespan, s".to_owned(), last - first);
    for (number, (fate, bag)) in fates.iter().zip(&scenario.bag).enumerate() {
        let stretch = (fate.ended_s - fate.submitted_s) / (bag.tasks as f64 * Scenario::task_mops(bag));
        figures.insert(format!("stretch of bag {number}, s/Mop"), stretch);
    }
    figures.insert("repairs: tasks issued again".to_owned(), fates.iter().map(|fate| fate.reissued as f64).sum());
    figures.insert("results that came twice".to_owned(), fates.iter().map(|fate| fate.twice as f64).sum());
    counted.figures(scenario.bag.iter().map(|bag| bag.tasks).sum(), &mut figures);
    figures
}

/// A figure of a scenario in both worlds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    scenario: String,
    figure: String,
    /// None: it was only simulated.
    real: Option<f64>,
    /// Mean of all seeds.
    simulated: f64,
    simulated_least: f64,
    simulated_most: f64,
    /// How far simulated is from real, in percent of real; 100 where that is 0 and simulated is not.
    difference_percent: Option<f64>,
    is_within_goal: Option<bool>,
    /// Whether real is not outside of what the seeds of the simulation come to.
    is_within_seeds: Option<bool>,
    /// Why it is not, where that is known.
    because: Option<String>,
}

impl Comparison {
    /// All figures of a scenario.
    pub(crate) fn of(scenario: &Scenario, real: Option<&Figures>, simulated: &[Figures], by_kind: bool) -> Vec<Self> {
        let is_shown = |figure: &&String| by_kind || !figure.starts_with(KIND);
        let names: BTreeSet<&String> = simulated.iter().chain(real).flat_map(Figures::keys).filter(is_shown).collect();
        let row = |figure: &String| {
            let values: Vec<f64> = simulated.iter().map(|of| of.get(figure).copied().unwrap_or_default()).collect();
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let real = real.map(|real| real.get(figure).copied().unwrap_or_default());
            let difference_percent = real.map(|real| difference_percent(real, mean));
            let is_within_goal = difference_percent.map(|difference| difference.abs() <= GOAL_PERCENT);
            let is_named = |name: &String| figure.starts_with(name.as_str());
            let reason = scenario.differs.iter().find(|differs| differs.figures.iter().any(is_named));
            let simulated_least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let simulated_most = values.iter().copied().fold(0.0, f64::max);
            Self {
                scenario: scenario.name.clone(),
                figure: figure.clone(),
                real,
                simulated: mean,
                simulated_least,
                simulated_most,
                difference_percent,
                is_within_goal,
                is_within_seeds: real.map(|real| (simulated_least..=simulated_most).contains(&real)),
                because: reason.filter(|_| is_within_goal == Some(false)).map(|differs| differs.because.clone()),
            }
        };
        names.into_iter().map(row).collect()
    }

    /// Whether it is further from real than it should be, and nobody knows why: not by what seeds differ by, either.
    pub(crate) fn is_unexplained(&self) -> bool {
        self.is_by_chance() == Some(false) && self.because.is_none()
    }

    /// Of what is further from real than it should be: whether simulations that differ by their seeds alone are as far apart.
    pub(crate) fn is_by_chance(&self) -> Option<bool> {
        self.is_within_seeds.filter(|_| self.is_within_goal == Some(false))
    }

    /// Whether real and simulated are as near as they should be.
    pub(crate) fn is_near(&self) -> bool {
        self.is_within_goal == Some(true)
    }
}

fn difference_percent(real: f64, simulated: f64) -> f64 {
    match (real == simulated, real == 0.0) {
        (true, _) => 0.0,
        (false, true) => 100.0,
        (false, false) => 100.0 * (simulated - real) / real,
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: f64| match value.abs() {
            0.0 => "0".to_owned(),
            small if small < 0.01 => format!("{value:.3e}"),
            small if small < 1_000.0 => format!("{value:.2}"),
            _ => format!("{value:.0}"),
        };
        let real = self.real.map_or("-".to_owned(), number);
        let difference = self.difference_percent.map_or("-".to_owned(), |percent| format!("{percent:+.1} %"));
        let range = format!("{} to {}", number(self.simulated_least), number(self.simulated_most));
        write!(
            formatter,
            "{:<11} {:<28} {real:>11} {:>11} {difference:>9}  ({range}){}",
            self.scenario,
            self.figure,
            number(self.simulated),
            self.because.as_ref().map(|because| format!("\n{:<11} {because}", "")).unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_those_of_the_simulation_from_what_is_real() {
        assert_eq!(difference_percent(20.0, 22.0), 10.0);
        assert_eq!(difference_percent(20.0, 15.0), -25.0);
        assert_eq!(difference_percent(0.0, 0.0), 0.0);
        assert_eq!(difference_percent(0.0, 3.0), 100.0);
    }

    #[test]
    fn what_is_counted_is_what_came_since_and_in_groups() {
        let counted = |reports: u64, leases: u64| Counted {
            messages: [("overlay report", reports), ("overlay ping", 1), ("lease", leases)]
                .map(|(kind, count)| (kind.to_owned(), (count, count * 100)))
                .into(),
            blob_bytes: 0,
            wire_bytes: 0,
            tasks_run: reports,
        };
        let mut all = counted(5, 3);
        all.add(&counted(1, 0));
        let mut figures = Figures::new();
        all.since(&counted(2, 1)).figures(3, &mut figures);
        let of = |name: &str| figures[name];
        assert_eq!((of("messages of tree"), of("messages of placing"), of("messages")), (5.0, 2.0, 7.0));
        assert_eq!((of("bytes of messages"), of("tasks run twice"), of("messages of renewals")), (700.0, 1.0, 0.0));
    }
}
