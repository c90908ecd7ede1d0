//! Results that stewards keep beside the submitter, where the bag's user wishes so (`submit --keep-results`): whoever adopts the bag after
//! the submitter's disk is lost has them from there, and no task that had ended runs again.
//!
//! The keeper that acts gives each steward that has a whole copy the results of tasks that have ended, some at a time, in the message
//! with which stewards hand results over. Once in each term, and once after tasks were run again, it asks first which the steward has. A steward keeps as much as its owner
//! gives room for (`Config::kept_result_bytes_max`), fetches outputs that do not come with their results from whoever gave these, and acknowledges
//! what is durable here with its output. One that has no room says so, and is asked again a minute later.
//!
//! Of an application in rounds stewards keep results in any case: those of the last complete round and of what has ended since, from which
//! whoever adopts it goes on; and of all rounds where the user wishes so.
//!
//! Where the user does not wish so, a steward that acts gives the other stewards what it takes while the submitter is away, as far as it comes with its
//! output: it may be away itself when the submitter is back, who would have those tasks run again (docs/adr/0065).
//!
//! Results are kept until the bag is over, the submitter appoints others, or its user has tasks run again, which makes them void. A machine that asks
//! for an older term than that in force has lost what it had: it is handed all of them.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, Time};

use super::copy::Copy;
use super::feed::Feed;
use super::keeping::{Ledgers, Stewards};
use super::results::{Coming, sizes};
use super::submitting::Own;
use super::{Acting, HEARD_WITHIN, ResultsKept};
use crate::bag::{BagId, HELD_INTERVALS_MAX, TaskId, TaskResult};
use crate::io::{Io, Then};
use crate::message::{Message, results_within};
use crate::peer::Effect;
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

/// Most bytes of results that are kept in memory and records, without outputs that are blobs. Our choice: as much as a small machine can spare.
const RECORD_BYTES_MAX: u64 = 64 << 20;

impl Stewards {
    /// Gives stewards the results that they are to keep.
    pub(super) fn give_results(&mut self, ledgers: &Ledgers, io: &mut Io) {
        for (&bag, ledger) in ledgers.iter().filter(|(_, ledger)| !ledger.is_closed()) {
            let keeps_all = ledger.keeps_results();
            let mine = self.own.get_mut(&bag).filter(|own| keeps_all && !own.is_elsewhere && own.returning.is_none());
            if let Some(own) = mine {
                let (done, failed) = ledger.ended();
                let needed = done.union(&failed).difference(&ledger.past());
                for (to, tasks) in next_of(&mut own.feeds, &needed, io.now) {
                    if tasks.is_empty() {
                        own.give(to.peer, Vec::new(), io);
                    } else {
                        io.effects.push(Effect::ReadResults { bag, tasks, to: to.peer });
                    }
                }
            } else if let Some(copy) = self.copies.get_mut(&bag) {
                let submitter = copy.submitter().map(|submitter| submitter.peer);
                let here = if keeps_all { copy.results.tasks() } else { copy.results.small_untaken() };
                if !keeps_all && here.is_empty() {
                    continue;
                }
                let next = next_of(&mut copy.feeds, &here, io.now);
                for (to, tasks) in next.into_iter().filter(|(to, _)| Some(to.peer) != submitter) {
                    let results = tasks.indices().filter_map(|index| copy.results.all.get(&index).cloned()).collect();
                    give(&copy.acting, copy.feeds.get_mut(&to.peer), results, io);
                }
            }
        }
    }

    /// Whether a keeper of this bag that is up to date is to be asked now which results it has.
    pub(super) fn is_to_ask(&self, bag: BagId, keeper: PeerId, ledgers: &Ledgers) -> bool {
        let feeds = self.own.get(&bag).map(|own| &own.feeds).or_else(|| self.copies.get(&bag).map(|copy| &copy.feeds));
        let feed = feeds.and_then(|feeds| feeds.get(&keeper));
        let is_due = feed.is_some_and(|feed| feed.results.is_to_be_asked() && feed.is_settled());
        is_due && ledgers.get(&bag).is_some_and(|ledger| ledger.keeps_results())
    }

    /// The driver has read results for a steward.
    pub(crate) fn read(&mut self, bag: BagId, to: PeerId, results: Vec<(PeerId, TaskResult)>, io: &mut Io) {
        let Some(own) = self.own.get_mut(&bag).filter(|own| own.returning.is_none()) else { return };
        // Where tasks were run again meanwhile, what was read is void, and no longer awaited.
        let is_awaited = |feed: &&mut Feed| feed.results.sent.as_ref().is_some_and(|(_, tasks)| !tasks.is_empty());
        let Some(feed) = own.feeds.get_mut(&to).filter(is_awaited) else { return };
        if results.is_empty() {
            // They are not durable yet.
            feed.results.sent = None;
        } else {
            own.give(to, results, io);
        }
    }

    /// The keeper that acts gives this steward results to keep, or asks which it has.
    pub(crate) fn given(
        &mut self,
        from: PeerId,
        acting: &Acting,
        results: Vec<(PeerId, TaskResult)>,
        ledgers: &Ledgers,
        io: &mut Io,
    ) {
        let bag = acting.appointment.bag;
        let (mut record_room, mut room) = (RECORD_BYTES_MAX, self.result_bytes_max);
        for copy in self.copies.values() {
            let coming = copy.coming.values().map(|coming| sizes(&coming.result));
            for (record, disk) in coming.chain([(copy.results.record_bytes, copy.results.disk_bytes)]) {
                (record_room, room) = (record_room.saturating_sub(record), room.saturating_sub(disk));
            }
        }
        let Some(copy) = self.copies.get_mut(&bag) else { return };
        let Some(keeper) = acting.keeper().filter(|keeper| keeper.peer == from).cloned() else { return };
        let tasks = copy.told.bag(bag).map_or(0, |bag| bag.tasks);
        let is_wished = copy.told.keeps_results(bag).is_some();
        if ledgers.contains_key(&bag) || copy.acting.standing() != acting.standing() {
            return;
        }
        let is_question = results.is_empty();
        let (mut have, mut changes) = (IntervalSet::new(), Vec::new());
        let mut full = copy.given_up.is_some();
        for (executor, result) in results {
            let index = result.index;
            let is_kept = is_wished || result.content.is_some();
            if !result.is_valid(tasks) || result.unfinished || !is_kept || copy.coming.contains_key(&index) {
                continue;
            }
            if copy.results.all.contains_key(&index) {
                have.insert_index(index);
                continue;
            }
            let (record, disk) = sizes(&result);
            if full || record > record_room || disk > room {
                full = true;
                continue;
            }
            (record_room, room) = (record_room - record, room - disk);
            if result.content.is_some() {
                have.insert_index(index);
                changes.push(copy.keep_result(executor, result, from, io));
            } else {
                io.effects.push(Effect::FetchOutput {
                    task: TaskId { bag, index },
                    output: result.output,
                    output_bytes: result.output_bytes,
                    unfinished: false,
                    from: keeper.clone(),
                });
                copy.coming.insert(index, Coming { from: keeper.clone(), executor, result, is_void: false });
            }
        }
        if is_question {
            have = copy.results.tasks().ranges().take(HELD_INTERVALS_MAX).collect();
        }
        if is_question || full || !have.is_empty() {
            copy.say_what_is_kept(&keeper, have, full, changes, io);
        }
    }

    /// The output of a task has come that this machine is to keep, or is not to be had now.
    pub(crate) fn fetched(&mut self, task: TaskId, is_here: bool, io: &mut Io) {
        let Some(copy) = self.copies.get_mut(&task.bag) else { return };
        let Some(coming) = copy.coming.remove(&task.index).filter(|coming| !coming.is_void) else { return };
        let Coming { from, executor, result, .. } = coming;
        let mut have = IntervalSet::new();
        let mut changes = Vec::new();
        if is_here && !copy.told.drained.contains(task.index) {
            have.insert_index(task.index);
            changes.push(copy.keep_result(executor, result, from.peer, io));
        }
        copy.say_what_is_kept(&from, have, !is_here, changes, io);
    }

    /// Where the results of a bag are that was submitted here; `None`: stewards do not keep them.
    pub(crate) fn results_kept(&self, bag: BagId, ledgers: &Ledgers, now: Time) -> Option<ResultsKept> {
        let ledger = ledgers.get(&bag).filter(|ledger| ledger.keeps_results())?;
        let (done, failed) = ledger.ended();
        let ended = done.union(&failed);
        let feeds = self.own.get(&bag).into_iter().flat_map(|own| own.feeds.values());
        let feeds: Vec<&Feed> = feeds.filter(|feed| now.since(feed.heard) < HEARD_WITHIN).collect();
        let elsewhere = feeds.iter().fold(IntervalSet::new(), |all, feed| all.union(&feed.results.has));
        // Those that nobody needs any more count as safe, where those are that took their place.
        let elsewhere = elsewhere.union(&ledger.past_by(&elsewhere));
        Some(ResultsKept {
            ended: ended.len(),
            elsewhere: elsewhere.intersection(&ended).len(),
            lacks_room: feeds.iter().any(|feed| feed.results.full.is_some()),
        })
    }
}

/// Who is to be given which results now; none: who is asked which it has.
fn next_of(feeds: &mut BTreeMap<PeerId, Feed>, here: &IntervalSet, now: Time) -> Vec<(Contact, IntervalSet)> {
    let next = |feed: &mut Feed| {
        let is_settled = feed.is_settled();
        let tasks = feed.results.next(here, is_settled, now)?;
        Some((feed.to.clone(), tasks))
    };
    feeds.values_mut().filter(|feed| feed.is_open).filter_map(next).collect()
}

impl Own {
    fn give(&mut self, to: PeerId, results: Vec<(PeerId, TaskResult)>, io: &mut Io) {
        let Some(appointment) = self.appointment.clone() else { return };
        give(&Acting { appointment, acting: 0, rank: 0 }, self.feeds.get_mut(&to), results, io);
    }
}

/// Gives a steward as many of these results as one message takes; none: asks it which it has.
fn give(acting: &Acting, to: Option<&mut Feed>, mut results: Vec<(PeerId, TaskResult)>, io: &mut Io) {
    let Some(feed) = to else { return };
    let count = results_within(results.iter().map(|(_, result)| result)).max(1);
    results.truncate(count);
    let tasks: IntervalSet = results.iter().map(|(_, result)| result.index..result.index + 1).collect();
    feed.results.sent = Some((io.now, tasks));
    let tasks = IntervalSet::new();
    io.send(feed.to.clone(), Message::Kept { acting: Box::new(acting.clone()), tasks, results });
}

impl Copy {
    /// Keeps a result that `from`, which acts, has given. Returns the change of the store.
    fn keep_result(&mut self, executor: PeerId, result: TaskResult, from: PeerId, io: &Io) -> Change {
        let (bag, finished) = (self.bag(), io.wall(io.now));
        let record = Record::Done { bag, executor, finished, result: result.clone() };
        let index = result.index;
        self.results.insert(executor, result);
        if self.is_submitter(from) {
            self.results.theirs.insert_index(index);
        }
        Change::Put(record)
    }

    /// Says to the keeper that acts which results are kept here, once these changes are durable.
    fn say_what_is_kept(&mut self, to: &Contact, indices: IntervalSet, full: bool, changes: Vec<Change>, io: &mut Io) {
        let ack = Message::KeptAck { bag: self.bag(), indices, full };
        // One change for each key: what goes at once is not written.
        let changes = changes.into_iter().chain(self.drop_past_rounds()).map(|change| (change.key(), change));
        let mut changes: Vec<Change> = changes.collect::<BTreeMap<_, _>>().into_values().collect();
        if changes.is_empty() {
            return io.send(to.clone(), ack);
        }
        changes.push(Change::Put(self.record()));
        io.persist_kept(changes, vec![Then::Send(to.clone(), ack)]);
    }

    /// Tasks were run again, or results are not kept any more: those that the submitter has go.
    pub(super) fn drop_kept_results(&mut self, changes: &mut Vec<Change>) {
        let bag = self.bag();
        // Their fetches go on, and one of a new result would be taken for the end of its own.
        self.coming.values_mut().for_each(|coming| coming.is_void = true);
        for index in self.results.theirs.clone().indices() {
            self.results.remove(index);
            changes.push(Change::Delete(RecordKey::Done(bag, index)));
        }
    }

    /// The submitter asks for an older term than that in force: it has lost its disk, and is handed all results.
    pub(super) fn submitter_lost_results(&mut self, io: &mut Io) {
        if std::mem::replace(&mut self.hands_all, true) || self.results.theirs.is_empty() {
            return;
        }
        self.results.theirs = IntervalSet::new();
        io.persist_kept(vec![Change::Put(self.record())], Vec::new());
    }
}
