//! A copy of a bag on one of its stewards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use idlewood_overlay::{Contact, PeerId, Time};

use super::feed::{Changes, Delta, Feed, is_copied};
use super::results::{Coming, Results};
use super::{Acting, Standing, Term};
use crate::bag::{BagHeader, BagId, BagKey};
use crate::config::Config;
use crate::ledger::{ATTEMPTS_BELIEVED_MAX, Supply};
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};
use crate::rounds::{Plan, Progress};

/// Most records of one copy: placements, former ones, and tasks with failed tries. Our choice: more than the largest grid has.
const RECORDS_MAX: usize = 200_000;

/// The highest attempt that a copy keeps although it is told of a lower one. Our choice: what this machine and stewards after it number above that, 32 times at
/// least, submitters still believe.
const ATTEMPTS_KEPT_MAX: u32 = ATTEMPTS_BELIEVED_MAX - (1 << 24);

/// What one keeper has been told of a bag by another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) records: BTreeMap<RecordKey, Record>,
    pub(crate) done: IntervalSet,
    pub(crate) failed: IntervalSet,
    /// Of an endless bag: ended tasks whose results its user has saved.
    pub(crate) drained: IntervalSet,
    /// The number of the last delta taken in.
    pub(crate) number: u64,
    /// Whether the sender named a lower attempt than this machine knows of, which is kept: the sender has missed what others numbered.
    pub(crate) sender_is_behind: bool,
    /// Whether all was told, at some time.
    pub(crate) is_whole: bool,
}

impl Told {
    /// Takes in a delta, if it is the next of its sender, or the first. Returns the changes of the store.
    pub(crate) fn take(&mut self, delta: &Delta) -> Vec<Change> {
        if delta.number == 0 || delta.number <= self.number && delta.number != 1 {
            return Vec::new();
        }
        let mut changes = Vec::new();
        let known = self.attempt(delta.bag).filter(|attempt| *attempt <= ATTEMPTS_KEPT_MAX).unwrap_or(0);
        if delta.number == 1 {
            let old = std::mem::take(self);
            changes.extend(old.records.into_keys().map(Change::Delete));
        }
        self.number = delta.number;
        self.is_whole |= delta.is_whole;
        for key in &delta.gone {
            match key {
                RecordKey::Done(_, index) => {
                    self.done.remove_index(*index);
                    self.failed.remove_index(*index);
                }
                _ => {
                    self.records.remove(key);
                    changes.push(Change::Delete(*key));
                }
            }
        }
        for record in &delta.records {
            let (key, mut record) = (record.key(), record.clone());
            if let Record::Bag { attempt, .. } = &mut record {
                self.sender_is_behind = *attempt < known;
                *attempt = known.max(*attempt);
            }
            if self.records.len() < RECORDS_MAX || self.records.contains_key(&key) {
                changes.retain(|change| change.key() != key);
                self.records.insert(key, record.clone());
                changes.push(Change::Put(record));
            }
        }
        self.failed.subtract(&delta.done);
        self.done.subtract(&delta.failed);
        self.done.extend_with(&delta.done);
        self.failed.extend_with(&delta.failed);
        if self.supply(delta.bag).is_some() {
            self.drained.extend_with(&delta.drained);
            self.done.subtract(&delta.drained);
            self.failed.subtract(&delta.drained);
        }
        changes
    }

    /// The bag, once it was told of.
    pub(crate) fn bag(&self, bag: BagId) -> Option<&BagHeader> {
        match self.records.get(&RecordKey::Bag(bag)) {
            Some(Record::Bag { bag, .. }) => Some(bag),
            _ => None,
        }
    }

    /// The attempt with which the bag's tasks were last issued.
    pub(crate) fn attempt(&self, bag: BagId) -> Option<u32> {
        match self.records.get(&RecordKey::Bag(bag)) {
            Some(Record::Bag { attempt, .. }) => Some(*attempt),
            _ => None,
        }
    }

    /// Whether stewards keep the results, too, and how often tasks were run again.
    pub(crate) fn keeps_results(&self, bag: BagId) -> Option<u32> {
        match self.records.get(&RecordKey::Bag(bag)) {
            Some(Record::Bag { keep_results, reruns, conditions, .. })
                if *keep_results || conditions.rounds.is_some() =>
            {
                Some(*reruns)
            }
            _ => None,
        }
    }

    /// If the bag is an application in rounds, its shape, and whether the results of all rounds are kept.
    fn rounds(&self, bag: BagId) -> Option<(Plan, bool)> {
        match self.records.get(&RecordKey::Bag(bag)) {
            Some(Record::Bag { keep_results, conditions, .. }) => Some((conditions.rounds?, *keep_results)),
            _ => None,
        }
    }

    /// All of it, as another keeper is told it.
    pub(crate) fn base(&self) -> Changes {
        let ended = (self.done.clone(), self.failed.clone());
        Changes::base(self.records.values().cloned().collect(), ended).with_drained(self.drained.clone())
    }

    /// Of an endless bag: its tasks so far.
    pub(crate) fn supply(&self, bag: BagId) -> Option<&Supply> {
        match self.records.get(&RecordKey::Bag(bag)) {
            Some(Record::Bag { supply, .. }) => supply.as_deref(),
            _ => None,
        }
    }

    /// Whether all tasks have ended.
    fn is_over(&self, bag: BagId) -> bool {
        let tasks = self.supply(bag).map(|supply| supply.endless.tasks).or(self.bag(bag).map(|bag| bag.tasks));
        tasks.is_some_and(|tasks| self.done.len() + self.failed.len() + self.drained.len() >= tasks)
    }
}

/// A bag that this machine keeps for another.
#[derive(Debug)]
pub(crate) struct Copy {
    /// The highest term heard of, and who acted in it.
    pub(crate) acting: Acting,
    pub(crate) key: BagKey,
    pub(crate) told: Told,
    /// Results that this machine took and the submitter has not acknowledged, and those that it keeps beside the submitter.
    pub(crate) results: Results,
    /// Results that it is to keep and whose outputs are on their way here.
    pub(crate) coming: BTreeMap<u64, Coming>,
    /// Whether the submitter, which has lost what it had, is handed all results anew.
    pub(crate) hands_all: bool,
    /// Whether the driver has the files that executors need, and whether it was asked to get them.
    pub(crate) has_files: bool,
    pub(crate) files_asked: bool,
    /// Since when that keeper acts, as far as this machine knows.
    pub(crate) acting_since: Time,
    /// When a keeper before this one was last heard of.
    pub(crate) heard: Time,
    /// When the keepers before this one were last asked whether they are there.
    pub(crate) probed: Option<Time>,
    /// Keepers that have left in good order, and were not heard of since: they are not waited for.
    pub(crate) gone: BTreeSet<PeerId>,
    /// Who is to act next, by the word of one that has left, where that is not this machine.
    pub(crate) awaited: Option<PeerId>,
    /// When this machine last said that it cannot keep the bag any longer, and when first.
    pub(crate) given_up: Option<(Time, Time)>,
    /// Whether this machine lacks, as far as it knows, what the others have been told since it said so: it does not act before it is told anew, or
    /// nobody else acts for long.
    pub(crate) is_behind: bool,
    /// When the others are next asked to tell it anew, if they are.
    pub(crate) asks_anew: Option<Time>,
    /// When the submitter was last heard of.
    pub(crate) submitter_heard: Option<Time>,
    /// The submitter has appointed others: this machine does not act, and forgets the bag when its results are taken.
    pub(crate) is_dismissed: bool,
    /// Another steward has said that the bag is over, or kept by others: this machine does not act before it hears of the submitter.
    pub(crate) is_past: bool,
    /// To whom this machine tells what it knows.
    pub(crate) feeds: BTreeMap<PeerId, Feed>,
    /// When results are handed to the submitter next, and from which task on.
    pub(crate) handing_due: Time,
    pub(crate) handing_from: u64,
}

impl Copy {
    pub(crate) fn new(acting: Acting, key: BagKey, now: Time) -> Self {
        Self {
            acting,
            key,
            told: Told::default(),
            results: Results::default(),
            coming: BTreeMap::new(),
            hands_all: false,
            has_files: false,
            files_asked: false,
            acting_since: now,
            heard: now,
            probed: None,
            gone: BTreeSet::new(),
            awaited: None,
            given_up: None,
            is_behind: false,
            asks_anew: None,
            submitter_heard: None,
            is_dismissed: false,
            is_past: false,
            feeds: BTreeMap::new(),
            handing_due: now,
            handing_from: 0,
        }
    }

    pub(crate) fn bag(&self) -> BagId {
        self.acting.appointment.bag
    }

    pub(crate) fn term(&self) -> Term {
        self.acting.term()
    }

    pub(crate) fn submitter(&self) -> Option<&Contact> {
        self.acting.appointment.submitter()
    }

    pub(crate) fn is_submitter(&self, peer: PeerId) -> bool {
        self.submitter().is_some_and(|submitter| submitter.peer == peer)
    }

    /// The standing of a keeper that acts in this term, if it is one by the present appointment.
    pub(crate) fn standing_of(&self, peer: PeerId, term: Term) -> Option<Standing> {
        let rank = self.acting.appointment.rank_of(peer)?;
        Some(Standing { term, rank: Reverse(rank) })
    }

    /// The record of the copy itself.
    pub(crate) fn record(&self) -> Record {
        Record::Kept {
            acting: self.acting.clone(),
            key: self.key,
            done: self.told.done.clone(),
            failed: self.told.failed.clone(),
            drained: self.told.drained.clone(),
            has_files: self.has_files,
            theirs: self.results.theirs().clone(),
        }
    }

    /// The changes that remove it from the store.
    pub(crate) fn removal(&self) -> Vec<Change> {
        let bag = self.bag();
        let records = self.told.records.keys().filter(|key| is_copied(**key, bag)).copied();
        let results = self.results.iter().map(|(&index, _)| RecordKey::Done(bag, index));
        records.chain(results).chain([RecordKey::Kept(bag)]).map(Change::Delete).collect()
    }

    /// How many keepers before this one, of this rank, may be there; one after it that is to act next counts, too, and, where this machine is behind,
    /// all, so that each of them acts before it does.
    pub(crate) fn waits_for(&self, rank: u8) -> u32 {
        let all =
            if self.is_behind && self.given_up.is_none() { self.acting.appointment.keepers.len() as u32 } else { 0 };
        let awaited = self.awaited.and_then(|keeper| self.acting.appointment.rank_of(keeper));
        let before = self.acting.appointment.keepers.iter().take(usize::from(rank));
        let after = u32::from(awaited.is_some_and(|awaited| awaited > rank));
        before.fold(all + after, |count, keeper| count + u32::from(!self.gone.contains(&keeper.peer)))
    }

    /// When this machine, of this rank, is to act, unless it hears of a keeper before it.
    pub(crate) fn acts_from(&self, rank: u8, config: &Config) -> Time {
        self.heard + config.steward_silence * self.waits_for(rank)
    }

    /// Whether a ledger can be made of it, and has something to do: the bag is not over. What tasks of an application in rounds begin with its
    /// submitter alone signs.
    pub(crate) fn can_act(&self) -> bool {
        let bag = self.bag();
        let is_known = self.told.bag(bag).is_some() && self.told.rounds(bag).is_none();
        self.has_files && !self.is_dismissed && is_known && !self.told.is_over(bag)
    }

    /// Results that the submitter has, too, and that its user has saved go: no keeper's word makes others go. Returns the changes of the store.
    pub(super) fn drop_drained(&mut self) -> Vec<Change> {
        let bag = self.bag();
        let gone = self.results.theirs().intersection(&self.told.drained);
        for index in gone.indices() {
            self.results.remove(index);
        }
        gone.indices().map(|index| Change::Delete(RecordKey::Done(bag, index))).collect()
    }

    /// Results of rounds that are not needed to go on, since those of a later, complete one are here, go. Returns the changes of the store.
    pub(super) fn drop_past_rounds(&mut self) -> Vec<Change> {
        let bag = self.bag();
        let Some((plan, false)) = self.told.rounds(bag) else { return Vec::new() };
        let past = IntervalSet::from(Progress::restore(plan, &self.results.that_end(true)).past());
        let gone = self.results.theirs().intersection(&past);
        for index in gone.indices() {
            self.results.remove(index);
        }
        gone.indices().map(|index| Change::Delete(RecordKey::Done(bag, index))).collect()
    }
}
