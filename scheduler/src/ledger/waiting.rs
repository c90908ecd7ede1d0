//! Tasks that are neither on a machine nor in a request: unissued ones, those that pause, and those of later rounds.

use std::collections::BTreeMap;

use idlewood_overlay::Time;

use crate::ranges::IntervalSet;

/// Tasks to be issued.
#[derive(Debug)]
pub(super) struct Waiting {
    unissued: IntervalSet,
    /// By the end of the pause.
    pausing: BTreeMap<Time, IntervalSet>,
    /// What they begin with is not there yet.
    later: IntervalSet,
}

impl Waiting {
    /// All tasks of a bag are unissued.
    pub(super) fn new(tasks: u64) -> Self {
        Self { unissued: IntervalSet::from(0..tasks), pausing: BTreeMap::new(), later: IntervalSet::new() }
    }

    /// Tasks of later rounds: what they begin with is not there yet.
    pub(super) fn later(&self) -> &IntervalSet {
        &self.later
    }

    /// Those of these tasks that wait to be issued are of a later round from now on.
    pub(super) fn put_off(&mut self, ranges: &IntervalSet) {
        let mut waiting = self.unissued.intersection(ranges);
        for pausing in self.pausing.values_mut() {
            waiting.extend_with(&pausing.intersection(ranges));
            pausing.subtract(ranges);
        }
        self.pausing.retain(|_, pausing| !pausing.is_empty());
        self.unissued.subtract(ranges);
        self.later.extend_with(&waiting);
    }

    /// What a task of a later round begins with is there: it is unissued from now on. False: it was not of a later round.
    pub(super) fn begin(&mut self, index: u64) -> bool {
        let was_later = self.later.remove_index(index);
        if was_later {
            self.unissued.insert_index(index);
        }
        was_later
    }

    /// Tasks to be issued now.
    pub(super) fn unissued(&self) -> &IntervalSet {
        &self.unissued
    }

    /// Tasks whose pause has not ended, by its end.
    pub(super) fn pausing(&self) -> impl Iterator<Item = &IntervalSet> {
        self.pausing.values()
    }

    /// How many may be issued, now or after a pause.
    pub(super) fn len(&self) -> u64 {
        self.unissued.len() + self.pauses()
    }

    /// How many of the tasks below this one wait.
    pub(super) fn len_below(&self, index: u64) -> u64 {
        let below = |range: std::ops::Range<u64>| range.end.min(index).saturating_sub(range.start);
        self.unissued.ranges().map(below).sum::<u64>() + self.pauses()
    }

    /// How many tasks pause.
    pub(super) fn pauses(&self) -> u64 {
        self.pausing.values().map(IntervalSet::len).sum()
    }

    /// These tasks are unissued from now on.
    pub(super) fn add(&mut self, ranges: &IntervalSet) {
        self.unissued.extend_with(ranges);
    }

    /// These tasks are issued, or were found on a machine: they are not unissued any more.
    pub(super) fn take(&mut self, ranges: &IntervalSet) {
        self.unissued.subtract(ranges);
        self.later.subtract(ranges);
    }

    /// These tasks pause until then.
    pub(super) fn pause(&mut self, ranges: &IntervalSet, until: Time) {
        self.pausing.entry(until).or_default().extend_with(ranges);
    }

    /// Tasks whose pause has ended are unissued from now on.
    pub(super) fn end_pauses(&mut self, now: Time) {
        while let Some(first) = self.pausing.first_entry()
            && *first.key() <= now
        {
            self.unissued.extend_with(&first.remove());
        }
    }

    /// Forgets a task, since it has ended.
    pub(super) fn remove(&mut self, index: u64) {
        self.unissued.remove_index(index);
        self.later.remove_index(index);
        self.pausing.retain(|_, ranges| {
            ranges.remove_index(index);
            !ranges.is_empty()
        });
    }

    /// Forgets these tasks, since another machine has their results.
    pub(super) fn forget(&mut self, ranges: &IntervalSet) {
        self.take(ranges);
        self.pausing.retain(|_, pausing| {
            pausing.subtract(ranges);
            !pausing.is_empty()
        });
    }

    /// Forgets all pausing tasks, since the bag is closed.
    pub(super) fn end_all_pauses(&mut self) {
        self.pausing.clear();
    }

    /// When the first pause ends.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.pausing.first_key_value().map(|(&until, _)| until)
    }

    /// Takes all of them out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        ranges.subtract(&self.unissued.intersection(ranges));
        ranges.subtract(&self.later.intersection(ranges));
        self.subtract_pausing_from(ranges);
    }

    /// Takes pausing tasks out of `ranges`.
    pub(super) fn subtract_pausing_from(&self, ranges: &mut IntervalSet) {
        for pausing in self.pausing.values() {
            ranges.subtract(&pausing.intersection(ranges));
        }
    }
}
