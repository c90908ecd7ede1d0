//! What a ledger does since its bag has several keepers (`steward`): it is restored from a copy, and takes what stewards know.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId};

use super::Ledger;
use super::failures::Failures;
use super::placed::Placement;
use crate::bag::{BagKey, TaskId, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::Message;
use crate::peer::Effect;
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};
use crate::steward::STEWARDS_MAX;
use crate::steward::feed::ATTEMPTS_MAX;

/// How far the first attempt of a bag's next life is above that of the last. Keepers of a life issue far fewer; our choice.
const ATTEMPTS_OF_A_LIFE: u64 = 1 << 20;
/// From how many seconds of one task on a bag is worth stewards from its beginning. Our choice.
const LONG_TASK_S: f64 = 10.0;
/// When such a bag asks for stewards. Our choice: its first requests are on their way, so that executors are known.
const APPOINT_SOON: Duration = Duration::from_secs(2);

/// The part of keepers in a ledger.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// The bag's key, where this machine keeps the bag for another: then it closes nothing.
    pub(super) key: Option<BagKey>,
    /// How many stewards the bag is to have; `None`: as this machine's settings say.
    pub(super) stewards: Option<u32>,
    /// Whether stewards keep the results, too, and how often tasks were run again.
    pub(super) keep_results: bool,
    pub(super) reruns: u32,
    /// Of a bag that was adopted: tasks that had ended by what stewards know, and whose results nobody has shown yet.
    pub(super) lost: IntervalSet,
    /// Whether this machine has adopted the bag, now or before its last restart.
    pub(super) is_adopted: bool,
    /// Whether nothing is issued: the submitter is back, and asks what its stewards know.
    pub(super) is_held: bool,
    /// Who ran the tasks whose outputs are being fetched from a steward.
    pub(super) relayed: BTreeMap<u64, PeerId>,
}

/// The highest attempt that a steward is believed: those above are left to the submitter, whose own stewards take its word up to [`ATTEMPTS_MAX`].
pub(crate) const ATTEMPTS_BELIEVED_MAX: u32 = ATTEMPTS_MAX - (1 << 28);

impl Ledger {
    /// This machine keeps the bag for another.
    pub(crate) fn keep_with(&mut self, key: BagKey) {
        self.keeping.key = Some(key);
    }

    /// How many stewards the bag is to have, where that is said of this bag.
    pub(crate) fn set_stewards(&mut self, stewards: Option<u32>) {
        self.keeping.stewards = stewards;
    }

    /// Whether stewards keep the results, too, and how often its user had tasks of it run again.
    pub(crate) fn set_keep_results(&mut self, keep_results: bool, reruns: u32) {
        (self.keeping.keep_results, self.keeping.reruns) = (keep_results, reruns);
    }

    /// Whether stewards keep the results, too: those of an application in rounds that are needed to go on, or else where the user wishes so.
    pub(crate) fn keeps_results(&self) -> bool {
        self.keeping.keep_results || self.rounds.is_some()
    }

    /// Tasks run again: results that stewards have do not count any more.
    pub(super) fn note_rerun(&mut self) {
        self.keeping.reruns = self.keeping.reruns.saturating_add(1);
    }

    /// Of a bag that was adopted: these have ended, by what stewards know, and nobody has shown their results yet.
    pub(crate) fn lack_results(&mut self, mut tasks: IntervalSet) {
        self.ended.subtract_from(&mut tasks);
        self.keeping.lost = tasks;
        self.keeping.is_adopted = true;
    }

    /// After a restart: whether this machine has adopted the bag.
    pub(crate) fn set_adopted(&mut self, is_adopted: bool) {
        self.keeping.is_adopted = is_adopted;
        if let Some(rounds) = &mut self.rounds {
            rounds.lacks_starts |= is_adopted;
        }
    }

    /// Those of them that lack their results still: they are computed again.
    pub(crate) fn lacks_results(&self) -> &IntervalSet {
        &self.keeping.lost
    }

    /// How many stewards the bag is to have.
    pub(crate) fn stewards(&self, config: &Config) -> u32 {
        self.keeping.stewards.unwrap_or(config.stewards).min(STEWARDS_MAX)
    }

    /// Whether this machine keeps the bag for another.
    pub(crate) fn is_kept(&self) -> bool {
        self.keeping.key.is_some()
    }

    /// Whether nothing is issued.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.keeping.is_held = is_held;
    }

    /// Whether stewards can keep the bag: its records say all that a ledger knows of it, which they do not of votes, nor of lines and files that are tasks
    /// of an endless bag.
    pub(crate) fn can_have_stewards(&self) -> bool {
        self.votes.replication().is_none() && self.is_for_stewards()
    }

    /// Whether the bag may have stewards now.
    pub(crate) fn may_have_stewards(&self) -> bool {
        let has_begun = self.issues.has_begun() || self.conditions.withhold();
        self.open && self.sized && !self.is_closed() && self.can_have_stewards() && has_begun
    }

    /// Restores which tasks have ended, without their results.
    pub(crate) fn restore_ended(&mut self, done: &IntervalSet, failed: &IntervalSet) {
        let all = IntervalSet::from(0..self.tasks());
        let mut done = done.intersection(&all);
        self.ended.subtract_from(&mut done);
        let mut failed = failed.intersection(&all).difference(&done);
        self.ended.subtract_from(&mut failed);
        self.waiting.take(&done);
        self.waiting.take(&failed);
        self.ended.restore(&done, &failed);
        self.predicting.restore_count(self.ended.len());
    }

    /// The records of which a copy consists.
    pub(crate) fn records(&self, io: &Io) -> Vec<Record> {
        let bag = self.bag.id;
        let placed = self.placed.iter().filter(|placement| !placement.ranges.is_empty()).map(|placement| {
            let (executor, ranges) = (placement.executor.clone(), placement.ranges.clone());
            Record::Placed { bag, executor, ranges }
        });
        [self.record(io)].into_iter().chain(placed).chain(self.former()).chain(self.failures()).collect()
    }

    /// The records of the copy that are in the store, those without a task included.
    pub(crate) fn records_in_store(&self, io: &Io) -> Vec<Record> {
        let bag = self.bag.id;
        let placed = self.placed.iter().map(|placement| {
            let (executor, ranges) = (placement.executor.clone(), placement.ranges.clone());
            Record::Placed { bag, executor, ranges }
        });
        [self.record(io)].into_iter().chain(placed).chain(self.former()).chain(self.failures()).collect()
    }

    /// This machine acts for the bag no longer: what its copy does not hold goes.
    pub(crate) fn leave(&mut self, io: &mut Io) {
        let changes = self.checkpoints.forget_all(self.bag.id);
        if !changes.is_empty() {
            io.persist(changes, Vec::new());
        }
    }

    /// How long after its submission the bag is to have stewards: soon where one of its tasks takes this machine long.
    pub(crate) fn appoint_after(&self, config: &Config) -> Duration {
        let is_long = self.sized && self.bag.task_mops >= LONG_TASK_S * config.speed_mops;
        if is_long { config.appoint_after.min(APPOINT_SOON) } else { config.appoint_after }
    }

    /// When the bag was submitted.
    pub(crate) fn released(&self) -> idlewood_overlay::Time {
        self.released
    }

    /// A steward has acted while this machine was away: where tasks are is as the steward says. Failed tries that both have counted count
    /// once. What has ended here stays ended.
    pub(crate) fn unite(&mut self, records: &[Record], io: &mut Io, config: &Config) {
        let bag = self.bag.id;
        let mut changes = Vec::new();
        for (peer, placement) in self.placed.remove_all() {
            changes.push(Change::Delete(RecordKey::Placed(bag, peer)));
            changes.push(self.note_former(peer, &placement.ranges));
        }
        self.issues.clear();
        self.issues.restore();
        self.waiting.end_all_pauses();
        let mut open = IntervalSet::from(0..self.tasks());
        self.ended.subtract_from(&mut open);
        self.waiting.add(&open);
        if let Some(rounds) = &mut self.rounds {
            rounds.lacks_starts = true;
        }
        self.go_on_with_rounds(io);
        let theirs = records.iter().map(|record| if let Record::Bag { attempt, .. } = record { *attempt } else { 0 });
        // What is issued from now on is above all that an honest keeper can have counted.
        self.attempt = theirs.map(|it| it.min(ATTEMPTS_BELIEVED_MAX)).fold(self.attempt, u32::max).saturating_add(1);
        for record in records {
            match record {
                Record::Bag { reruns, .. } => self.keeping.reruns = self.keeping.reruns.max(*reruns),
                Record::Failures { index, count, crashed_on, next_attempt, void_before, endings, .. }
                    if open.contains(*index) =>
                {
                    let (next_attempt, void_before) =
                        ((*next_attempt).min(self.attempt), (*void_before).min(self.attempt));
                    let (count, crashed_on, endings) = (*count, crashed_on.clone(), endings.clone());
                    self.tries.unite(*index, Failures { count, crashed_on, next_attempt, void_before, endings });
                    changes.push(self.tries.change(*index, bag));
                }
                Record::Former { executor, ranges, .. } => changes.push(self.note_former(*executor, ranges)),
                _ => {}
            }
        }
        changes.push(Change::Put(self.record(io)));
        let mut by_key = BTreeMap::new();
        changes.into_iter().for_each(|change| drop(by_key.insert(change.key(), change)));
        io.persist(by_key.into_values().collect(), Vec::new());
        for record in records {
            if let Record::Placed { executor, ranges, .. } = record {
                self.restore_placed(executor.clone(), ranges, io, config);
                if let Some(placement) = self.placed.of(executor.peer) {
                    let change = placement.change(bag);
                    io.persist(vec![change], Vec::new());
                }
            }
        }
    }

    /// This machine has adopted the bag, which begins another life: its attempts are above those of keepers that it has not heard.
    pub(crate) fn begin_life(&mut self, life: u64, io: &mut Io) {
        self.number_above(life.saturating_mul(ATTEMPTS_OF_A_LIFE).try_into().unwrap_or(u32::MAX), io);
    }

    /// Attempts are numbered above this one from now on.
    pub(crate) fn number_above(&mut self, attempt: u32, io: &mut Io) {
        let attempt = attempt.min(ATTEMPTS_BELIEVED_MAX);
        if attempt > self.attempt {
            self.attempt = attempt;
            let record = self.record(io);
            io.persist(vec![Change::Put(record)], Vec::new());
        }
    }

    /// A steward has the results of these tasks: they are its, as those of an executor that has not sent its results, for one lease.
    pub(crate) fn place_kept(&mut self, steward: &Contact, tasks: &IntervalSet, io: &mut Io, config: &Config) {
        if self.is_closed() {
            return;
        }
        let mut tasks = tasks.intersection(&IntervalSet::from(0..self.tasks()));
        self.ended.subtract_from(&mut tasks);
        if tasks.is_empty() {
            return;
        }
        let mut changes = Vec::new();
        let mut mine = IntervalSet::new();
        let holders: Vec<PeerId> = self.placed.iter().map(|placement| placement.executor.peer).collect();
        for peer in holders {
            if peer == steward.peer {
                mine = self.placed.of(peer).map(|placement| placement.ranges.clone()).unwrap_or_default();
            } else if let Some((taken, change)) = self.placed.take(peer, &tasks, self.bag.id)
                && !taken.is_empty()
            {
                self.placed.require_holding(peer);
                changes.push(change);
                changes.push(self.note_former(peer, &taken));
            }
        }
        // In ranges: a steward may say any number of tasks of an endless bag.
        self.waiting.forget(&tasks);
        self.issues.forget(&tasks);
        let gained = tasks.difference(&mine);
        let until = io.now + self.shortest_term(io, config);
        let ranges = mine.union(&tasks);
        let known = self.placed.of(steward.peer);
        // What it runs itself keeps its lease.
        let until = known.map_or(until, |known| known.until.max(until));
        let (version, since) = known.map_or((0, self.released), |known| (known.version, known.since));
        let executor = Contact { incarnation: known.map_or(0, |known| known.executor.incarnation), ..steward.clone() };
        let placement = Placement { executor, ranges, since, until, version, withdrawn: false, asks_left: 0 };
        changes.push(placement.change(self.bag.id));
        self.placed.replace(placement, &IntervalSet::new(), gained);
        self.ends_at(until);
        io.persist(changes, Vec::new());
    }

    /// A steward hands over results that it took. Each counts once its output is here.
    pub(crate) fn kept(
        &mut self,
        steward: &Contact,
        tasks: &IntervalSet,
        results: Vec<(PeerId, TaskResult)>,
        io: &mut Io,
        config: &Config,
    ) {
        let bag = self.bag.id;
        self.keeping.lost.subtract(tasks);
        let (mut unwanted, mut is_any_new) = (IntervalSet::new(), false);
        for (ran_on, result) in results {
            let index = result.index;
            let is_valid = result.is_valid(self.bag.tasks);
            if !is_valid || result.unfinished || io.is_recording_task(TaskId { bag, index }) {
                continue;
            }
            let is_void = self.tries.is_void(&result);
            if self.is_closed() || self.ended.contains(index) || self.is_beyond_end(index) || is_void {
                unwanted.insert_index(index);
                continue;
            }
            is_any_new = true;
            if self.outputs.is_fetching(index) {
                continue;
            }
            self.keeping.relayed.insert(index, ran_on);
            if result.content.is_some() {
                self.record_result(result, steward.clone(), io);
                continue;
            }
            io.effects.push(Effect::FetchOutput {
                task: TaskId { bag, index },
                output: result.output,
                output_bytes: result.output_bytes,
                unfinished: false,
                from: steward.clone(),
            });
            self.outputs.fetch(result, steward.clone());
        }
        if is_any_new {
            // What it has not handed over yet is waited for as long as something comes.
            self.place_kept(steward, tasks, io, config);
        }
        // What it says to have and has not is known here to have ended, or is acknowledged when it has come.
        if !unwanted.is_empty() {
            io.send(steward.clone(), Message::KeptAck { bag, indices: unwanted, full: false });
        }
    }

    /// What acknowledges a result to whoever sent it, and the machine that ran its task.
    pub(super) fn acknowledgement(&mut self, result: &TaskResult, from: &Contact) -> (PeerId, Then) {
        let bag = self.bag.id;
        match self.keeping.relayed.remove(&result.index) {
            Some(ran_on) => {
                let indices = IntervalSet::from(result.index..result.index + 1);
                (ran_on, Then::Send(from.clone(), Message::KeptAck { bag, indices, full: false }))
            }
            None => (from.peer, Then::Send(from.clone(), Message::ack(bag, result))),
        }
    }
}
