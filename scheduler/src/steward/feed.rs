//! What one keeper tells another of a bag: the changes of the bag's records since the last that are durable there.
//!
//! The ledger's writes pass through [`crate::io::Io::persist`], and are noted there for bags that have keepers ([`Tap`]). So a copy is what a
//! restart would find on the disk: whatever the ledger survives, a steward can take up. One delta at a time is on its way; one
//! that is not acknowledged in time is sent again with what has changed since. That tasks have ended is said as
//! intervals, without results.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};
use serde::{Deserialize, Serialize};

use super::results::Given;
use super::{ALIVE_EVERY, Acting, Appointment, DELTA_EVERY, HEARD_WITHIN, Term};
use crate::bag::{BagId, BagKey, HELD_INTERVALS_MAX, TaskResult};
use crate::io::Io;
use crate::message::{Message, RENEWALS_MAX};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

/// A delta that was not acknowledged for so long is sent again.
const UNACKNOWLEDGED: Duration = Duration::from_secs(12);
/// Most records in one message with the deltas of several bags: one bag's delta is at most that long.
const DELTAS_RECORDS_MAX: usize = 64;
/// How often a machine that leaves says so until it is gone.
pub(crate) const FAREWELL_EVERY: Duration = Duration::from_secs(1);
/// The highest attempt of a bag that a keeper may say: those of any number of adoptions and stewards are below it, and enough are left above it. Our choice.
pub(crate) const ATTEMPTS_MAX: u32 = u32::MAX - (1 << 28);
/// Most bytes of records in one delta. Our choice: with the intervals beside them it stays below the largest message.
const RECORDS_BYTES_MAX: usize = 96 * 1024;

/// What one delta says of one bag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Which bag.
    #[serde(rename = "b")]
    pub bag: BagId,
    /// The term in which its sender acts, or has acted last.
    #[serde(rename = "t")]
    pub term: Term,
    /// Counts the deltas of one sender in one term from 1; the first replaces all that is known of the bag. 0: nothing has changed.
    #[serde(rename = "v")]
    pub number: u64,
    /// By what right the sender speaks; left out where the receiver has said that it knows the term.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub acting: Option<Box<Acting>>,
    /// The bag's key.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<BagKey>,
    /// Records of the bag, its placements and its failed tries that are new or have changed.
    #[serde(rename = "r", default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Record>,
    /// Those that are gone; of a result: the task has not ended after all.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<RecordKey>,
    /// Tasks that have succeeded.
    #[serde(rename = "d", default, skip_serializing_if = "IntervalSet::is_empty")]
    pub done: IntervalSet,
    /// Tasks that have failed for good.
    #[serde(rename = "f", default, skip_serializing_if = "IntervalSet::is_empty")]
    pub failed: IntervalSet,
    /// Of an endless bag: tasks that have ended and whose results its user has saved.
    #[serde(rename = "y", default, skip_serializing_if = "IntervalSet::is_empty")]
    pub drained: IntervalSet,
    /// Whether the receiver, with this, knows all that the sender knows.
    #[serde(rename = "w", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
    /// The bag is closed: the receiver is to forget it.
    #[serde(rename = "o", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_over: bool,
    /// The sender leaves the grid in good order: the next keeper is to act at once. Machines that do not read this wait as after a crash.
    #[serde(rename = "g", default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves: bool,
    /// Who is to act next where the sender leaves, by its place among the keepers; the others wait for it.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u8>,
}

impl Delta {
    /// Says that its sender is there.
    pub fn alive(bag: BagId, term: Term) -> Self {
        Self {
            bag,
            term,
            number: 0,
            acting: None,
            key: None,
            records: Vec::new(),
            gone: Vec::new(),
            done: IntervalSet::new(),
            failed: IntervalSet::new(),
            drained: IntervalSet::new(),
            is_whole: false,
            is_over: false,
            leaves: false,
            next: None,
        }
    }

    /// Whether what a remote peer sent can be kept: records of this bag alone, and of kinds that a copy has.
    pub(crate) fn is_valid(&self) -> bool {
        let most = self.done.intervals().max(self.failed.intervals()).max(self.drained.intervals());
        most <= HELD_INTERVALS_MAX
            && self.acting.as_ref().is_none_or(|acting| acting.is_valid() && acting.appointment.bag == self.bag)
            && self.records.iter().all(|record| is_copied(record.key(), self.bag) && is_sane(record))
            && self.gone.iter().all(|key| is_copied(*key, self.bag) || is_result(*key, self.bag))
    }
}

/// Whether a record with this key is part of a copy of the bag.
pub(crate) fn is_copied(key: RecordKey, bag: BagId) -> bool {
    match key {
        RecordKey::Bag(of) | RecordKey::Placed(of, _) | RecordKey::Former(of, _) | RecordKey::Failures(of, _) => {
            of == bag
        }
        _ => false,
    }
}

fn is_result(key: RecordKey, bag: BagId) -> bool {
    matches!(key, RecordKey::Done(of, _) if of == bag)
}

/// Whether a ledger can be restored from this record, whoever wrote it.
fn is_sane(record: &Record) -> bool {
    match record {
        Record::Bag { bag, attempt, replication, closed, conditions, supply, .. } => {
            bag.is_valid()
                && *attempt <= ATTEMPTS_MAX
                && bag.sizes(0).is_valid()
                && replication.is_none()
                && closed.is_none()
                && conditions.is_valid()
                && supply.is_some() == bag.is_endless()
                && supply.as_ref().is_none_or(|supply| supply.is_sane())
        }
        Record::Placed { executor, ranges, .. } => executor.is_valid() && ranges.intervals() <= HELD_INTERVALS_MAX,
        Record::Former { ranges, .. } => ranges.intervals() <= HELD_INTERVALS_MAX,
        Record::Failures { crashed_on, endings, .. } => crashed_on.len() <= 64 && endings.len() <= 128,
        _ => false,
    }
}

/// Changes of a bag's records that another keeper has not been told of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    records: BTreeMap<RecordKey, Change>,
    done: IntervalSet,
    failed: IntervalSet,
    drained: IntervalSet,
}

impl Changes {
    /// All that a ledger knows.
    pub(crate) fn base(records: Vec<Record>, (done, failed): (IntervalSet, IntervalSet)) -> Self {
        let mut drained = IntervalSet::new();
        let apart = |mut record: Record| {
            drained.extend_with(&take_drained(&mut record));
            (record.key(), Change::Put(record))
        };
        let records = records.into_iter().map(apart).collect();
        Self { records, done, failed, drained }
    }

    /// With these tasks of an endless bag, whose results its user has saved.
    pub(super) fn with_drained(self, drained: IntervalSet) -> Self {
        Self { drained: self.drained.union(&drained), ..self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.done.is_empty() && self.failed.is_empty() && self.drained.is_empty()
    }

    /// Whether a task runs again that had ended.
    fn reopens(&self) -> bool {
        self.records.keys().any(|key| matches!(key, RecordKey::Done(..)))
    }

    /// Adds a change that came after all others.
    pub(crate) fn add(&mut self, change: &Change, bag: BagId) {
        let key = change.key();
        match change {
            Change::Put(Record::Done { result, .. }) => {
                self.records.remove(&key);
                let (of, other) = if result.success {
                    (&mut self.done, &mut self.failed)
                } else {
                    (&mut self.failed, &mut self.done)
                };
                of.insert_index(result.index);
                other.remove_index(result.index);
            }
            Change::Delete(RecordKey::Done(_, index)) => {
                self.done.remove_index(*index);
                self.failed.remove_index(*index);
                if !self.drained.contains(*index) {
                    self.records.insert(key, change.clone());
                }
            }
            _ if is_copied(key, bag) => drop(self.records.insert(key, change.clone())),
            _ => {}
        }
    }

    /// Adds changes that came after these.
    fn extend(&mut self, later: Self) {
        let reopened: IntervalSet = later
            .records
            .keys()
            .filter_map(|key| if let RecordKey::Done(_, index) = key { Some(*index..index + 1) } else { None })
            .collect();
        self.done.subtract(&reopened);
        self.failed.subtract(&reopened);
        self.failed.subtract(&later.done.union(&later.drained));
        self.done.subtract(&later.failed.union(&later.drained));
        self.done.extend_with(&later.done);
        self.failed.extend_with(&later.failed);
        self.drained.extend_with(&later.drained);
        self.records.extend(later.records);
        let ended = self.done.union(&self.failed).union(&self.drained);
        self.records.retain(|key, _| !matches!(key, RecordKey::Done(_, index) if ended.contains(*index)));
    }

    /// Removes and returns as much as one message takes.
    fn take_part(&mut self) -> Self {
        let [done, failed, drained] = [&mut self.done, &mut self.failed, &mut self.drained].map(take_intervals);
        let mut part = Self { done, failed, drained, ..Self::default() };
        let mut bytes = 0;
        while let Some((key, change)) = self.records.pop_first() {
            if let Change::Put(record) = &change {
                bytes += record.encode().len();
            }
            bytes += 64;
            part.records.insert(key, change);
            if bytes > RECORDS_BYTES_MAX {
                break;
            }
        }
        part
    }
}

/// Removes and returns as many intervals as one message takes.
fn take_intervals(set: &mut IntervalSet) -> IntervalSet {
    if set.intervals() <= HELD_INTERVALS_MAX {
        return std::mem::take(set);
    }
    let part: IntervalSet = set.ranges().take(HELD_INTERVALS_MAX).collect();
    set.subtract(&part);
    part
}

/// Takes the drained tasks out of the record of an endless bag: a message has them apart, since a record goes whole, and they may be many.
fn take_drained(record: &mut Record) -> IntervalSet {
    match record {
        Record::Bag { supply: Some(supply), .. } => std::mem::take(&mut supply.drained),
        _ => IntervalSet::new(),
    }
}

/// Where the writes of a ledger with keepers are noted until they are told.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    pub(crate) changes: Changes,
    /// The drained tasks, by the last record of the bag.
    pub(crate) drained: IntervalSet,
    /// The results, where this machine keeps the bag for another.
    pub(crate) results: Option<BTreeMap<u64, (PeerId, TaskResult)>>,
}

impl Tap {
    pub(crate) fn note(&mut self, change: &Change, bag: BagId) {
        match change {
            Change::Put(record @ Record::Bag { supply: Some(_), .. }) => {
                let mut record = record.clone();
                let drained = take_drained(&mut record);
                self.changes.add(&Change::Put(record), bag);
                self.changes.drained.extend_with(&drained.difference(&self.drained));
                self.drained = drained;
            }
            _ => self.changes.add(change, bag),
        }
        if let (Some(results), Change::Put(Record::Done { executor, result, .. })) = (&mut self.results, change) {
            results.insert(result.index, (*executor, result.clone()));
        }
    }
}

/// The deltas about one bag from this machine to another keeper.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) to: Contact,
    /// What that machine has not been told.
    pending: Changes,
    /// What it has been told and has not acknowledged, and when.
    sent: Option<(Time, Changes)>,
    /// That of the last delta.
    number: u64,
    /// Whether it has said that it knows the sender's term.
    knows_term: bool,
    /// Whether it had, durably, all that there was at some time.
    pub(crate) was_whole: bool,
    /// When it last answered, or was first told.
    pub(crate) heard: Time,
    /// When it was last told anything.
    told: Option<Time>,
    /// When it was last told that the bag is closed.
    told_over: Option<Time>,
    /// When it was last told that this machine leaves.
    told_leaving: Option<Time>,
    /// Whether it is told what has changed; else only that this machine is there.
    pub(crate) is_open: bool,
    /// What it has of the results, where it is to keep them, too.
    pub(crate) results: Given,
}

impl Feed {
    pub(crate) fn new(to: Contact, base: Changes, is_open: bool, now: Time) -> Self {
        Self {
            to,
            pending: base,
            sent: None,
            number: 0,
            knows_term: false,
            was_whole: false,
            heard: now,
            told: None,
            told_over: None,
            told_leaving: None,
            is_open,
            results: Given::default(),
        }
    }

    /// Begins anew: the receiver has lost what it knew, or this machine speaks in another term.
    pub(crate) fn restart(&mut self, base: Changes) {
        (self.pending, self.sent, self.number) = (base, None, 0);
        (self.knows_term, self.was_whole, self.told) = (false, false, None);
        self.told_leaving = None;
        self.results = Given::default();
    }

    /// The receiver asks: it is told at once, and by what right, since a twin of it may be the one that knows the sender's term.
    pub(crate) fn introduce(&mut self, to: &Contact) {
        self.to = to.clone();
        (self.knows_term, self.told) = (false, None);
    }

    /// These changes follow.
    pub(crate) fn add(&mut self, changes: &Changes) {
        if changes.reopens() {
            // It drops the results that it has once it hears of that.
            self.results = Given::default();
        }
        self.pending.extend(changes.clone());
    }

    /// Whether the receiver has acknowledged something in the sender's term.
    pub(crate) fn knows_term(&self) -> bool {
        self.knows_term
    }

    /// Whether the receiver has all that it was told so far.
    pub(crate) fn is_settled(&self) -> bool {
        self.was_whole && self.sent.is_none() && self.pending.is_empty()
    }

    /// Whether the receiver has all that it was to be told.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.was_whole
    }

    /// What to say now, if anything.
    pub(crate) fn next(&mut self, acting: &Acting, key: BagKey, now: Time) -> Option<Delta> {
        let bag = acting.appointment.bag;
        if let Some((_, unheard)) = self.sent.take_if(|(at, _)| now.since(*at) >= UNACKNOWLEDGED) {
            let later = std::mem::replace(&mut self.pending, unheard);
            self.pending.extend(later);
        }
        let has_news = self.is_open && self.sent.is_none() && (!self.pending.is_empty() || self.number == 0);
        if !has_news && self.told.is_some_and(|told| now.since(told) + DELTA_EVERY / 2 < ALIVE_EVERY) {
            return None;
        }
        self.told = Some(now);
        let mut delta = Delta::alive(bag, acting.term());
        delta.acting = (!self.knows_term).then(|| Box::new(acting.clone()));
        if has_news {
            self.number += 1;
            let part = self.pending.take_part();
            delta.number = self.number;
            delta.key = (self.number == 1).then_some(key);
            delta.is_whole = self.pending.is_empty();
            (delta.done, delta.failed, delta.drained) = (part.done.clone(), part.failed.clone(), part.drained.clone());
            for change in part.records.values() {
                match change {
                    Change::Put(record) => delta.records.push(record.clone()),
                    Change::Delete(key) => delta.gone.push(*key),
                }
            }
            self.sent = Some((now, part));
        }
        Some(delta)
    }

    /// This machine leaves: what to say now, if anything. That it leaves is said with the last of what the receiver was not told.
    pub(crate) fn farewell(&mut self, acting: &Acting, key: BagKey, successor: Option<u8>, now: Time) -> Option<Delta> {
        let is_waited_for = self.told_leaving.is_some_and(|told| now.since(told) < FAREWELL_EVERY);
        let knows_all = |feed: &Self| !feed.is_open || feed.pending.is_empty();
        if is_waited_for && (knows_all(self) || self.sent.is_some()) {
            return None;
        }
        if let Some((_, unheard)) = self.sent.take() {
            let later = std::mem::replace(&mut self.pending, unheard);
            self.pending.extend(later);
        }
        (self.told, self.told_leaving) = (None, Some(now));
        let delta = self.next(acting, key, now)?;
        let leaves = knows_all(self);
        Some(Delta { leaves, next: successor.filter(|_| leaves), ..delta })
    }

    /// The bag is closed: what to say now, if anything.
    pub(crate) fn over(&mut self, acting: &Acting, now: Time) -> Option<Delta> {
        if self.told_over.is_some_and(|told| now.since(told) < UNACKNOWLEDGED) {
            return None;
        }
        self.told_over = Some(now);
        let (bag, term) = (acting.appointment.bag, acting.term());
        let acting = Some(Box::new(acting.clone()));
        Some(Delta { acting, is_over: true, ..Delta::alive(bag, term) })
    }

    /// The receiver has all up to the delta of this number, and knows this term. Returns whether it lacks what it had before, so that it has to be told all anew.
    pub(crate) fn acknowledged(&mut self, number: u64, knows_term: bool, now: Time) -> bool {
        self.heard = now;
        self.knows_term = knows_term;
        if number == self.number {
            self.sent = None;
            self.was_whole |= self.pending.is_empty() && self.number > 0;
        }
        number == 0 && (self.was_whole || !knows_term && self.number > 1)
    }
}

/// The other stewards of a bag that are told what changes, by rank.
fn told<'a>(
    appointment: &'a Appointment,
    feeds: &'a BTreeMap<PeerId, Feed>,
    me: PeerId,
) -> impl Iterator<Item = (u8, &'a Feed)> {
    let stewards = appointment.keepers.iter().zip(0..).skip(1).filter(move |(keeper, _)| keeper.peer != me);
    stewards.filter_map(|(keeper, rank)| Some((rank, feeds.get(&keeper.peer)?)))
}

/// The first of the other stewards that was heard of lately and knows all, by its rank.
pub(super) fn ready(appointment: &Appointment, feeds: &BTreeMap<PeerId, Feed>, io: &Io) -> Option<u8> {
    let is_ready = |feed: &Feed| feed.is_up_to_date() && io.now.since(feed.heard) < HEARD_WITHIN;
    told(appointment, feeds, io.me.peer).find(|(_, feed)| is_ready(feed)).map(|(rank, _)| rank)
}

/// Who is to act next once this machine leaves: the first that is ready, or else the first that is told anything. One alone is named, so
/// that no two act at once.
pub(super) fn successor(appointment: &Appointment, feeds: &BTreeMap<PeerId, Feed>, io: &Io) -> Option<u8> {
    let first = || told(appointment, feeds, io.me.peer).next().map(|(rank, _)| rank);
    ready(appointment, feeds, io).or_else(first)
}

fn is_of_endless(delta: &Delta) -> bool {
    !delta.drained.is_empty()
        || delta.records.iter().any(|record| matches!(record, Record::Bag { supply: Some(_), .. }))
}

/// Sends each keeper what it is to be told, all bags together.
pub(super) fn send(deltas: Vec<(Contact, Delta)>, io: &mut Io) {
    let mut by_keeper: BTreeMap<PeerId, (Contact, Vec<Delta>)> = BTreeMap::new();
    for (to, delta) in deltas {
        by_keeper.entry(to.peer).or_insert_with(|| (to, Vec::new())).1.push(delta);
    }
    for (to, deltas) in by_keeper.into_values() {
        let mut message: Vec<Delta> = Vec::new();
        for delta in deltas {
            // A delta with many records fills a message nearly. A message with one of an endless bag is refused by agents of older releases.
            let is_long = |delta: &Delta| {
                let intervals = delta.done.intervals() + delta.drained.intervals();
                delta.records.len() > DELTAS_RECORDS_MAX || intervals > 64 || is_of_endless(delta)
            };
            let records: usize = message.iter().map(|delta| delta.records.len()).sum();
            if !message.is_empty()
                && (is_long(&delta)
                    || message.iter().any(is_long)
                    || records > DELTAS_RECORDS_MAX
                    || message.len() >= RENEWALS_MAX)
            {
                io.send(to.clone(), Message::Deltas { deltas: std::mem::take(&mut message) });
            }
            message.push(delta);
        }
        if !message.is_empty() {
            io.send(to, Message::Deltas { deltas: message });
        }
    }
}
