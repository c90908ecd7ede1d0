//! Many cases, and how they ended.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{Case, Outcome, bags};
use crate::seeds::{self, JobEvent};

/// What is in the worlds of a swarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Overlays alone.
    Overlays,
    /// Whole machines with bags.
    Bags,
    /// The same, whose bags other machines keep, and whose disks are taken.
    KeptBags,
}

/// A case that violated an invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What is in the world.
    pub kind: Kind,
    /// Seed of the case.
    pub seed: u64,
    /// The invariant, or `panic`.
    pub invariant: String,
    /// In seconds of the case; none for a panic.
    pub at_s: Option<f64>,
    /// What was seen.
    pub what: String,
}

impl Failure {
    /// The command that repeats it.
    pub fn command(&self) -> String {
        let of = match self.kind {
            Kind::Overlays => "",
            Kind::Bags => " --bags",
            Kind::KeptBags => " --bags --stewards",
        };
        format!("simnet swarm{of} --case {}", self.seed)
    }
}

/// Result of a swarm.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases run.
    pub cases: u64,
    /// Events that were checked.
    pub events: u64,
    /// Faults that occurred.
    pub faults: u64,
    /// Times until the tree was right again, ascending.
    pub settled: Vec<Duration>,
    /// Cases that violated an invariant, by seed.
    pub failures: Vec<Failure>,
}

impl Summary {
    /// The time within which this share of the cases had settled.
    pub fn settled_within(&self, share: f64) -> Option<Duration> {
        let last = self.settled.len().checked_sub(1)?;
        Some(self.settled[(last as f64 * share).round() as usize])
    }

    fn add(&mut self, kind: Kind, seed: u64, outcome: Result<Outcome, String>) {
        self.cases += 1;
        match outcome {
            Ok(outcome) => {
                self.events += outcome.events;
                self.faults += u64::from(outcome.faults);
                self.settled.extend(outcome.settled);
                self.failures.extend(outcome.violation.map(|violation| Failure {
                    kind,
                    seed,
                    invariant: violation.invariant.name.into(),
                    at_s: Some(violation.at.as_secs_f64()),
                    what: violation.to_string(),
                }));
            }
            Err(what) => self.failures.push(Failure { kind, seed, invariant: "panic".into(), at_s: None, what }),
        }
    }
}

/// Runs one case; `Err`: it panicked.
fn attempt(kind: Kind, seed: u64) -> Result<Outcome, String> {
    let run = || match kind {
        Kind::Overlays => Case::draw(seed).run(&[]),
        Kind::Bags => bags::Case::draw(seed).run(),
        Kind::KeptBags => bags::Case::draw_kept(seed).run(),
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Runs the cases of these seeds, on all cores. The order in which they end has no influence on the result.
pub fn run(kind: Kind, seeds: &[u64], mut progress: impl FnMut(&Summary)) -> Summary {
    let threads = seeds::cores();
    let mut summary = Summary::default();
    let listen = |event: JobEvent<(), _>| {
        if let JobEvent::Done(number, outcome, _) = event {
            summary.add(kind, seeds[number], outcome);
            progress(&summary);
        }
        Ok::<(), Infallible>(())
    };
    let Ok(()) = crate::seeds::run(seeds.len(), threads, |number, _| attempt(kind, seeds[number]), listen);
    summary.settled.sort_unstable();
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}
