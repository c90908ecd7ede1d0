//! Tasks that are on no machine, nor on their way to one: to be issued now, or after a pause.

use std::collections::BTreeMap;

use idlewood_overlay::Time;

use crate::ranges::IntervalSet;

/// Tasks to be issued.
#[derive(Debug)]
pub(super) struct Waiting {
    unissued: IntervalSet,
    /// To be issued then.
    pausing: BTreeMap<Time, IntervalSet>,
}

impl Waiting {
    /// All tasks of a bag of so many.
    pub(super) fn new(tasks: u64) -> Self {
        Self { unissued: IntervalSet::from(0..tasks), pausing: BTreeMap::new() }
    }

    /// Those to be issued now.
    pub(super) fn unissued(&self) -> &IntervalSet {
        &self.unissued
    }

    /// Those whose pause has not ended, by its end.
    pub(super) fn pausing(&self) -> impl Iterator<Item = &IntervalSet> {
        self.pausing.values()
    }

    pub(super) fn len(&self) -> u64 {
        self.unissued.len() + self.pausing.values().map(IntervalSet::len).sum::<u64>()
    }

    /// These are to be issued now.
    pub(super) fn add(&mut self, ranges: &IntervalSet) {
        self.unissued.extend_with(ranges);
    }

    /// Those of these that were to be issued are, or are on a machine without that.
    pub(super) fn take(&mut self, ranges: &IntervalSet) {
        self.unissued.subtract(ranges);
    }

    /// These are to be issued then.
    pub(super) fn pause(&mut self, ranges: &IntervalSet, until: Time) {
        self.pausing.entry(until).or_default().extend_with(ranges);
    }

    /// Those whose pause is over are to be issued.
    pub(super) fn end_pauses(&mut self, now: Time) {
        while let Some(first) = self.pausing.first_entry()
            && *first.key() <= now
        {
            self.unissued.extend_with(&first.remove());
        }
    }

    /// A task is over: it waits for nothing.
    pub(super) fn remove(&mut self, index: u64) {
        self.unissued.remove_index(index);
        self.pausing.retain(|_, ranges| {
            ranges.remove_index(index);
            !ranges.is_empty()
        });
    }

    /// Nothing is tried again.
    pub(super) fn end_all_pauses(&mut self) {
        self.pausing.clear();
    }

    /// When the first pause ends.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.pausing.first_key_value().map(|(&until, _)| until)
    }

    /// Takes those that wait out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        ranges.subtract(&self.unissued.intersection(ranges));
        self.subtract_pausing_from(ranges);
    }

    /// Takes those that pause out of `ranges`.
    pub(super) fn subtract_pausing_from(&self, ranges: &mut IntervalSet) {
        for pausing in self.pausing.values() {
            ranges.subtract(&pausing.intersection(ranges));
        }
    }
}
