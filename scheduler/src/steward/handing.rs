//! Results that a steward took while it acted, on their way to the submitter. They stay here until it has them durably, outputs
//! included.

use std::time::Duration;

use idlewood_overlay::PeerId;

use super::copy::Copy;
use super::{DELTA_EVERY, HEARD_WITHIN};
use crate::bag::{HELD_INTERVALS_MAX, TaskResult};
use crate::io::Io;
use crate::message::{Message, results_within};
use crate::ranges::IntervalSet;
use crate::record::{Change, RecordKey};

/// A submitter that was not heard of lately is offered results this often.
const OFFER_EVERY: Duration = Duration::from_secs(60);
/// Most results of one message: each has a receipt, of up to 1 KiB, beside its output.
const RESULTS_MAX: usize = 96;

impl Copy {
    /// Hands results over, if that is due. `is_acting`: the submitter is not tried where it was not heard of.
    pub(super) fn hand_results(&mut self, is_acting: bool, io: &mut Io) {
        let is_there = self.submitter_heard.is_some_and(|heard| io.now.since(heard) < HEARD_WITHIN);
        if self.results.is_empty() || io.now < self.handing_due || is_acting && !is_there {
            return;
        }
        let Some(submitter) = self.submitter().cloned() else { return };
        self.handing_due = io.now + if is_there { DELTA_EVERY } else { OFFER_EVERY };
        if self.results.range(self.handing_from..).next().is_none() {
            self.handing_from = 0;
        }
        let next: Vec<&TaskResult> =
            self.results.range(self.handing_from..).take(RESULTS_MAX).map(|(_, (_, result))| result).collect();
        let count = results_within(next).max(1);
        let results: Vec<(PeerId, TaskResult)> =
            self.results.range(self.handing_from..).take(count).map(|(_, result)| result.clone()).collect();
        self.handing_from = results.last().map_or(0, |(_, result)| result.index + 1);
        let tasks: IntervalSet = self.results.keys().map(|&index| index..index + 1).collect();
        let tasks = tasks.ranges().take(HELD_INTERVALS_MAX).collect();
        io.send(submitter, Message::Kept { acting: Box::new(self.acting.clone()), tasks, results });
    }

    /// The submitter has these results, or does not want them.
    pub(super) fn results_taken(&mut self, indices: &IntervalSet, io: &mut Io) {
        let bag = self.bag();
        self.take_tap_results(io);
        let taken: Vec<u64> =
            indices.ranges().flat_map(|range| self.results.range(range)).map(|(&index, _)| index).collect();
        if taken.is_empty() {
            return;
        }
        let mut changes = Vec::new();
        for index in taken {
            if let Some((_, result)) = self.results.remove(&index) {
                let of = if result.success { &mut self.told.done } else { &mut self.told.failed };
                of.insert_index(index);
                changes.push(Change::Delete(RecordKey::Done(bag, index)));
            }
        }
        changes.push(Change::Put(self.record()));
        io.persist_kept(changes, Vec::new());
        self.handing_due = self.handing_due.min(io.now);
    }

    fn take_tap_results(&mut self, io: &mut Io) {
        if let Some(results) = io.taps.get_mut(&self.bag()).and_then(|tap| tap.results.as_mut()) {
            self.results.append(results);
        }
    }
}
