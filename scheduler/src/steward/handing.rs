//! Results that a steward took while it acted, on their way to the submitter. They stay here until it has them durably, outputs
//! included.

use std::time::Duration;

use idlewood_overlay::{Contact, PeerId};

use super::copy::Copy;
use super::keeping::{Ledgers, Stewards};
use super::results::RESULTS_MAX;
use super::{Acting, DELTA_EVERY, HEARD_WITHIN};
use crate::bag::{BagId, HELD_INTERVALS_MAX, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::message::{Message, results_within};
use crate::ranges::IntervalSet;
use crate::record::{Change, RecordKey};

/// A submitter that was not heard of lately is offered results this often.
const OFFER_EVERY: Duration = Duration::from_secs(60);

impl Stewards {
    /// A steward hands over results.
    pub(crate) fn handed(
        &mut self,
        from: Contact,
        acting: &Acting,
        (tasks, results): (&IntervalSet, Vec<(PeerId, TaskResult)>),
        ledgers: &mut Ledgers,
        io: &mut Io,
        config: &Config,
    ) {
        let appointment = &acting.appointment;
        let is_mine = appointment.submitter().is_some_and(|submitter| submitter.peer == io.me.peer);
        let Some(rank) = appointment.rank_of(from.peer).filter(|&rank| is_mine && rank > 0) else { return };
        let bag = appointment.bag;
        let Some(ledger) = ledgers.get_mut(&bag).filter(|ledger| !ledger.is_kept()) else {
            // It was removed: nothing of it is wanted.
            let indices = results.iter().map(|(_, result)| result.index..result.index + 1).collect();
            io.send(from, Message::KeptAck { bag, indices, full: false });
            return;
        };
        // Where its outputs can be fetched.
        let known = appointment.keepers.get(usize::from(rank)).cloned();
        let steward = if from.address.is_empty() { known.unwrap_or(from) } else { from };
        if let Some(returning) = self.own.get_mut(&bag).and_then(|own| own.returning.as_mut()) {
            returning.kept(&steward, tasks);
        }
        ledger.kept(&steward, tasks, results, io, config);
    }

    /// The submitter has results that were kept here, or does not want them; or another steward has results that it is to keep, too.
    pub(crate) fn taken(&mut self, from: PeerId, bag: BagId, indices: &IntervalSet, full: bool, io: &mut Io) {
        if let Some(own) = self.own.get_mut(&bag) {
            // A steward has them, too.
            own.feeds.get_mut(&from).into_iter().for_each(|feed| feed.results.taken(indices, full, io.now));
        } else if let Some(copy) = self.copies.get_mut(&bag) {
            if copy.is_submitter(from) {
                copy.submitter_heard = Some(io.now);
                copy.results_taken(indices, io);
            } else if let Some(feed) = copy.feeds.get_mut(&from) {
                feed.results.taken(indices, full, io.now);
            }
        }
        self.due = io.now;
    }
}

impl Copy {
    /// Hands results over, if that is due. `is_acting`: the submitter is not tried where it was not heard of.
    pub(super) fn hand_results(&mut self, is_acting: bool, io: &mut Io) {
        let is_there = self.submitter_heard.is_some_and(|heard| io.now.since(heard) < HEARD_WITHIN);
        if self.results.untaken() == 0 || io.now < self.handing_due || is_acting && !is_there {
            return;
        }
        let Some(submitter) = self.submitter().cloned() else { return };
        self.handing_due = io.now + if is_there { DELTA_EVERY } else { OFFER_EVERY };
        if self.results.untaken_from(self.handing_from).next().is_none() {
            self.handing_from = 0;
        }
        let next = self.results.untaken_from(self.handing_from).take(RESULTS_MAX);
        let count = results_within(next.map(|(_, result)| result)).max(1);
        let next = self.results.untaken_from(self.handing_from).take(count);
        let results: Vec<(PeerId, TaskResult)> = next.cloned().collect();
        self.handing_from = results.last().map_or(0, |(_, result)| result.index + 1);
        let tasks = self.results.untaken_tasks().ranges().take(HELD_INTERVALS_MAX).collect();
        io.send(submitter, Message::Kept { acting: Box::new(self.acting.clone()), tasks, results });
    }

    /// The submitter has these results, or does not want them. They go, unless they are kept in case that it loses its disk.
    pub(super) fn results_taken(&mut self, indices: &IntervalSet, io: &mut Io) {
        let bag = self.bag();
        if let Some(results) = io.taps.get_mut(&bag).and_then(|tap| tap.results.as_mut()) {
            self.results.take(results);
        }
        let taken = self.results.taken(indices, self.told.keeps_results(bag).is_some());
        if taken.is_empty() {
            return;
        }
        let mut changes = Vec::new();
        for (index, success, is_gone) in taken {
            let of = if success { &mut self.told.done } else { &mut self.told.failed };
            of.insert_index(index);
            changes.extend(is_gone.then_some(Change::Delete(RecordKey::Done(bag, index))));
        }
        changes.push(Change::Put(self.record()));
        io.persist_kept(changes, Vec::new());
        self.handing_due = self.handing_due.min(io.now);
    }
}
