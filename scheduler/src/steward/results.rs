//! What a steward has of the results of a bag, and what the keeper that acts knows of that (`giving`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use crate::bag::TaskResult;
use crate::ranges::IntervalSet;

/// Most results of one message between keepers: each has a receipt, of up to 1 KiB, beside its output.
pub(super) const RESULTS_MAX: usize = 96;
/// Results that were given and are not acknowledged are given again after so long: their outputs may take a while to fetch.
const UNTAKEN: Duration = Duration::from_secs(60);
/// A steward without room is given nothing for so long.
const FULL_FOR: Duration = Duration::from_secs(60);
/// What a record of a result takes beside its output: most of it is the receipt.
const OVERHEAD_BYTES: u64 = 1024;

/// What a result takes in memory and records, and on the disk altogether.
pub(super) fn sizes(result: &TaskResult) -> (u64, u64) {
    let record = OVERHEAD_BYTES + result.content_bytes() as u64;
    (record, if result.content.is_some() { record } else { record.saturating_add(result.output_bytes) })
}

/// The results of one bag on a steward, with who ran each.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(super) all: BTreeMap<u64, (PeerId, TaskResult)>,
    /// Those that the submitter has, too.
    pub(super) theirs: IntervalSet,
    pub(super) record_bytes: u64,
    pub(super) disk_bytes: u64,
}

impl Results {
    /// By task.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u64, &(PeerId, TaskResult))> {
        self.all.iter()
    }

    /// The tasks whose results the submitter has, too.
    pub(crate) fn theirs(&self) -> &IntervalSet {
        &self.theirs
    }

    /// How many the submitter does not have.
    pub(crate) fn untaken(&self) -> u64 {
        self.all.len() as u64 - self.theirs.len()
    }

    /// The tasks whose results the submitter does not have.
    pub(crate) fn untaken_tasks(&self) -> IntervalSet {
        self.untaken_from(0).map(|(_, result)| result.index..result.index + 1).collect()
    }

    /// Those that the submitter does not have, from this task on.
    pub(crate) fn untaken_from(&self, from: u64) -> impl Iterator<Item = &(PeerId, TaskResult)> {
        self.all.range(from..).filter(|(index, _)| !self.theirs.contains(**index)).map(|(_, result)| result)
    }

    /// Those of them whose outputs are part of their results.
    pub(super) fn small_untaken(&self) -> IntervalSet {
        let small = self.untaken_from(0).filter(|(_, result)| result.content.is_some());
        small.map(|(_, result)| result.index..result.index + 1).collect()
    }

    /// The tasks that have succeeded, or failed, by their results.
    pub(crate) fn that_end(&self, success: bool) -> IntervalSet {
        let results = self.all.values().filter(|(_, result)| result.success == success);
        results.map(|(_, result)| result.index..result.index + 1).collect()
    }

    pub(super) fn tasks(&self) -> IntervalSet {
        self.all.keys().map(|&index| index..index + 1).collect()
    }

    pub(super) fn insert(&mut self, executor: PeerId, result: TaskResult) {
        let index = result.index;
        let (record, disk) = sizes(&result);
        self.remove(index);
        self.all.insert(index, (executor, result));
        self.record_bytes += record;
        self.disk_bytes += disk;
    }

    pub(super) fn remove(&mut self, index: u64) -> Option<TaskResult> {
        let (_, result) = self.all.remove(&index)?;
        self.theirs.remove_index(index);
        let (record, disk) = sizes(&result);
        self.record_bytes -= record;
        self.disk_bytes -= disk;
        Some(result)
    }

    /// After a restart: which of the results the submitter has, then each result.
    pub(crate) fn restore_theirs(&mut self, theirs: IntervalSet) {
        self.theirs = theirs;
    }

    /// See [`Self::restore_theirs`].
    pub(crate) fn restore(&mut self, executor: PeerId, result: TaskResult) {
        let (index, is_theirs) = (result.index, self.theirs.contains(result.index));
        self.insert(executor, result);
        if is_theirs {
            self.theirs.insert_index(index);
        }
    }

    /// After a restart, once all results are restored.
    pub(crate) fn restored(&mut self) {
        self.theirs = self.theirs.intersection(&self.tasks());
    }

    /// Results that this machine took while it acts.
    pub(crate) fn take(&mut self, results: &mut BTreeMap<u64, (PeerId, TaskResult)>) {
        for (executor, result) in std::mem::take(results).into_values() {
            self.insert(executor, result);
        }
    }

    /// The submitter has these. Returns each task, whether it succeeded, and whether its result goes, since it is not `kept`.
    pub(crate) fn taken(&mut self, indices: &IntervalSet, kept: bool) -> Vec<(u64, bool, bool)> {
        let here = indices.ranges().flat_map(|range| self.all.range(range));
        let taken = here.filter(|(index, _)| !self.theirs.contains(**index));
        let taken: Vec<_> = taken.map(|(&index, (_, result))| (index, result.success, !kept)).collect();
        for &(index, ..) in &taken {
            if kept {
                self.theirs.insert_index(index);
            } else {
                self.remove(index);
            }
        }
        taken
    }
}

/// A result that a steward is to keep and whose output is on its way.
#[derive(Debug)]
pub(crate) struct Coming {
    pub(super) from: Contact,
    pub(super) executor: PeerId,
    pub(super) result: TaskResult,
    /// Whether tasks were run again since: the output does not count.
    pub(super) is_void: bool,
}

/// What another keeper has of the results of a bag, as the one that acts knows it.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(super) has: IntervalSet,
    /// Whether it has said which it has.
    is_known: bool,
    /// Those that it was given last and has not acknowledged, or a question for what it has, and when.
    pub(super) sent: Option<(Time, IntervalSet)>,
    /// When it said that it has no room for more.
    pub(super) full: Option<Time>,
}

impl Given {
    /// Those of the results here that it is to be given now; none: it is asked which it has. `is_settled`: it knows what it was told of the bag.
    pub(super) fn next(&mut self, here: &IntervalSet, is_settled: bool, now: Time) -> Option<IntervalSet> {
        let waits = |since: Option<Time>, pause| since.is_some_and(|since| now.since(since) < pause);
        if waits(self.sent.as_ref().map(|(at, _)| *at), UNTAKEN) || waits(self.full, FULL_FOR) {
            return None;
        }
        let part = match self.is_known {
            false if !is_settled => return None,
            false => IntervalSet::new(),
            true => here.difference(&self.has).take_first(RESULTS_MAX as u64),
        };
        if self.is_known && part.is_empty() {
            return None;
        }
        self.sent = Some((now, part.clone()));
        Some(part)
    }

    /// Whether it is to be asked which it has.
    pub(super) fn is_to_be_asked(&self) -> bool {
        !self.is_known && self.sent.is_none()
    }

    /// It has these, durably.
    pub(super) fn taken(&mut self, indices: &IntervalSet, full: bool, now: Time) {
        // An answer from before tasks were run again says nothing.
        let Some((_, sent)) = &mut self.sent else { return };
        sent.subtract(indices);
        let is_answered = sent.is_empty();
        self.is_known = true;
        self.has.extend_with(indices);
        self.full = full.then_some(now);
        if is_answered {
            self.sent = None;
        }
    }
}
