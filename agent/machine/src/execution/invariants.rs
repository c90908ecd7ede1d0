//! Invariants of places, runs and early results after each event, checked in debug builds only: in tests and simulations.

use std::collections::BTreeSet;

use super::Execution;
use super::run::Job;
use super::started::{Stage, Started};

/// A check is followed by so many events without one as it goes through this many jobs.
const JOBS_PER_EVENT: usize = 8;

impl Execution {
    /// Panics where one of the rules is broken.
    pub(crate) fn check_invariants(&mut self) {
        if let Some(unchecked) = self.unchecked.checked_sub(1) {
            self.unchecked = unchecked;
            return;
        }
        self.assert_consistent();
        self.unchecked = self.all_jobs().count() / JOBS_PER_EVENT;
    }

    fn all_jobs(&self) -> impl Iterator<Item = &Job> {
        self.runs.iter().flat_map(|run| run.jobs.iter().chain(&run.waiting))
    }

    /// Panics where one of the rules is broken.
    pub(super) fn assert_consistent(&self) {
        for job in self.all_jobs() {
            let Some(place) = job.place else { continue };
            let is_its_own = |own: &Started| (own.job, own.task, own.attempt) == (job.id, job.task, job.attempt);
            debug_assert!(self.places[place].as_ref().is_some_and(is_its_own), "{job:?} is claimed by another");
        }
        for (place, started) in self.places.iter().enumerate() {
            let Some(started) = started else { continue };
            let count = self.all_jobs().filter(|job| job.place == Some(place)).count();
            let expected = usize::from(started.stage == Stage::Given);
            debug_assert_eq!(count, expected, "jobs of {started:?} at place {place}");
            let early = self.early.get(&started.task);
            debug_assert!(early.is_none(), "{started:?} has ended before: {early:?}");
        }
        let mut attempts = BTreeSet::new();
        let twice = self.all_jobs().find(|job| !attempts.insert((job.task, job.attempt)));
        debug_assert!(twice.is_none(), "{twice:?} is given twice");
        for run in &self.runs {
            debug_assert!(run.waiting.iter().all(|job| job.place.is_some()), "what is ahead never waits: {run:?}");
            let is_there = |frozen| run.jobs.iter().any(|job| job.id == frozen);
            debug_assert!(run.frozen.is_none_or(is_there), "a job is frozen that the worker does not have: {run:?}");
        }
        let in_both = self.kits.keys().find(|bag| self.held.contains_key(bag));
        debug_assert!(in_both.is_none(), "{in_both:?} has a kit and has none");
        debug_assert!(self.ended.is_empty(), "the peer has not heard of {:?}", self.ended);
    }
}
