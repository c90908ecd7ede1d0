//! Replicas: the same task on several machines, whose results are votes (docs/adr/0015).
//!
//! A result of a bag with a quorum waits with its executor, which goes on accounting for it, until as many machines have said
//! the same; then the output is fetched from one of them. Copies beyond the first go straight to machines that are known,
//! none of which has the task or has voted on it, those in the other half of the line first. Where there is none, `stuck` says what happens.
//!
//! Looking for copies takes n log n of all intervals that are placed, and happens when some machine takes or loses tasks, not with
//! each vote, which asks about its own task only. A decided task is taken from those who have voted on it; only where more copies
//! are out than votes came are the others asked, one after the other.
//!
//! Left out: votes on disk (they come again), checkpoints of bags with a quorum (who hands one back could have made it
//! up), and copies by who has room.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use idlewood_overlay::{Contact, PeerId, Time};
use serde::{Deserialize, Serialize};

use self::stuck::Stuck;
use super::Ledger;
use crate::bag::{REQUEST_INTERVALS_MAX, Request, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::Message;
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

mod stuck;
#[cfg(test)]
mod tests;

/// Most replicas of a task.
pub const REPLICAS_MAX: u32 = 8;
/// Votes on one task after which nobody is asked any more. Our choice.
const VOTES_MAX: usize = 16;

/// How many machines run each task of a bag, and how many have to say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replication {
    /// k: copies of each task, 1 to [`REPLICAS_MAX`].
    pub replicas: u32,
    /// q: results alike that decide, 2 to k, and 1 where k is 1.
    pub quorum: u32,
    /// Of a machine that always agreed, one task in so many is checked all the same; 0: every one.
    pub recheck: u32,
}

impl Default for Replication {
    fn default() -> Self {
        Self { replicas: 1, quorum: 1, recheck: 0 }
    }
}

impl Replication {
    /// Whether these numbers make sense. A quorum of one asks for no copies, so that it is no quorum of several.
    pub fn is_valid(self) -> bool {
        let is_alone = (self.replicas, self.quorum) == (1, 1);
        is_alone || self.replicas <= REPLICAS_MAX && (2..=self.replicas).contains(&self.quorum)
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A machine to which copies can go.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) contact: Contact,
    /// In which half of the line.
    pub(crate) right: bool,
}

/// What a machine says came of a task.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    executor: Contact,
    result: TaskResult,
}

impl Vote {
    /// Whether this is the same. What a task had written when it was stopped differs by how fast its machine is.
    fn says(&self, result: &TaskResult) -> bool {
        self.result.success == result.success
            && (self.result.output == result.output || self.result.crashed && result.crashed)
    }
}

/// The votes on tasks that are not decided.
#[derive(Debug)]
pub(super) struct Votes {
    replication: Replication,
    /// Most copies of one task, but where votes disagree.
    replicas: usize,
    by_task: BTreeMap<u64, Vec<Vote>>,
    /// Of machines that are believed alone, and not picked for a check: no copies of these.
    exempt: IntervalSet,
    /// Tasks that each machine was sent, not through the tree.
    sent: BTreeMap<PeerId, u64>,
    /// Some task may have fewer copies than it should.
    lacking: bool,
    /// When to look at that again, where nobody could have one.
    again_at: Option<Time>,
    /// Tasks that lack a vote which nobody could give when copies were looked for last.
    stuck: BTreeMap<u64, Stuck>,
    /// From which attempt on the words of machines count that try a task again, by task.
    counts_from: BTreeMap<u64, BTreeMap<PeerId, u32>>,
    /// Decided tasks on which not all said the same.
    disputed: u64,
}

/// The votes on a task that is decided.
struct Decided {
    votes: Vec<Vote>,
    /// Whether the winner has a quorum, or nobody contradicts it: else nobody is right, not even who spoke last.
    has_quorum: bool,
}

impl Votes {
    pub(super) fn new(replication: Replication) -> Self {
        Self {
            replication,
            replicas: replication.replicas as usize,
            by_task: BTreeMap::new(),
            exempt: IntervalSet::new(),
            sent: BTreeMap::new(),
            lacking: false,
            again_at: None,
            stuck: BTreeMap::new(),
            counts_from: BTreeMap::new(),
            disputed: 0,
        }
    }

    /// The bag is over.
    pub(super) fn close(&mut self) {
        *self = Self { disputed: self.disputed, replicas: self.replicas, ..Self::new(self.replication) };
    }

    pub(super) fn replication(&self) -> Replication {
        self.replication
    }

    /// Most copies of one task, but where votes disagree.
    pub(super) fn replicas(&self) -> usize {
        self.replicas
    }

    /// Whether several machines have to say the same.
    pub(super) fn is_quorum(&self) -> bool {
        self.replication.quorum > 1
    }

    /// Decided tasks on which not all said the same.
    pub(super) fn disputed(&self) -> u64 {
        self.disputed
    }

    /// Tasks that lack a vote which nobody could give when copies were looked for last.
    pub(super) fn undecided(&self) -> u64 {
        self.stuck.len() as u64
    }

    /// Some task may have fewer copies now than it should.
    pub(super) fn look_for_copies(&mut self) {
        self.lacking = true;
    }

    /// When to look for copies again, where nobody could have one.
    pub(super) fn look_again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// It is that late.
    pub(super) fn end_wait(&mut self, now: Time) {
        self.again_at = self.again_at.filter(|&at| at > now);
    }

    /// A machine says what came of a task: its first word counts. Returns what to fetch and from whom, once enough have said the
    /// same; one word is enough of a machine that `is_believed`.
    fn vote(&mut self, executor: &Contact, result: TaskResult, is_believed: bool) -> Option<(TaskResult, Contact)> {
        let (index, mut result) = (result.index, result);
        // Votes may wait for long, and there may be many: the word that decides brings the output once more.
        let content = result.content.take();
        let (output, output_bytes) = (result.output, result.output_bytes);
        let with_content = |mut result: TaskResult| {
            if (result.output, result.output_bytes) == (output, output_bytes) {
                result.content.clone_from(&content);
            }
            result
        };
        let votes = self.by_task.entry(index).or_default();
        if let Some(vote) = votes.iter_mut().find(|vote| vote.executor.peer == executor.peer) {
            vote.executor = executor.clone();
        } else if votes.len() < VOTES_MAX {
            votes.push(Vote { executor: executor.clone(), result });
        }
        let votes = &*votes;
        let own = votes.iter().position(|vote| vote.executor.peer == executor.peer)?;
        let alike = |vote: &Vote| votes.iter().filter(|other| other.says(&vote.result)).count();
        // Who says that a task failed is not believed alone: elsewhere it may succeed, and nothing would show that. Nor is
        // anybody where it has failed, though that is tried again.
        let is_uncontested = alike(&votes[own]) == votes.len() && !self.counts_from.contains_key(&index);
        let is_alone = is_believed && votes[own].result.success && is_uncontested;
        let enough = if is_alone { 1 } else { self.replication.quorum as usize };
        // The machine that speaks is there to be asked for the output.
        let winner = std::iter::once(&votes[own]).chain(votes.iter()).find(|vote| alike(vote) >= enough);
        if let Some(Vote { executor, result }) = winner {
            return Some((with_content(result.clone()), executor.clone()));
        }
        self.exempt.remove_index(index);
        if votes.len() < VOTES_MAX {
            return None;
        }
        // Nobody can tell what is right.
        let Vote { executor, result } = votes[own].clone();
        // It says something else than its machine has signed.
        Some((with_content(TaskResult { success: false, exit_code: None, receipt: None, ..result }), executor))
    }

    /// Whether what this machine says of a task is among the votes.
    fn has_voted(&self, executor: PeerId, index: u64) -> bool {
        self.by_task.get(&index).is_some_and(|votes| votes.iter().any(|vote| vote.executor.peer == executor))
    }

    /// A task is decided: its votes are counted no more.
    fn decide(&mut self, winner: &TaskResult) -> Decided {
        let votes = self.by_task.remove(&winner.index).unwrap_or_default();
        self.exempt.remove_index(winner.index);
        self.stuck.remove(&winner.index);
        self.counts_from.remove(&winner.index);
        let alike = votes.iter().filter(|vote| vote.says(winner)).count();
        self.disputed += u64::from(alike < votes.len());
        let has_quorum = alike == votes.len() || alike >= self.replication.quorum as usize;
        Decided { votes, has_quorum }
    }

    /// Tasks on which there are votes.
    #[cfg(debug_assertions)]
    pub(super) fn tasks(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_task.keys().copied()
    }

    #[cfg(test)]
    pub(super) fn set_replicas(&mut self, replicas: usize) {
        self.replicas = replicas;
    }

    #[cfg(test)]
    pub(super) fn count(&self, index: u64) -> usize {
        self.by_task.get(&index).map_or(0, Vec::len)
    }

    /// Who has voted on a task.
    pub(super) fn voters(&self, index: u64) -> Vec<PeerId> {
        self.by_task.get(&index).into_iter().flatten().map(|vote| vote.executor.peer).collect()
    }

    /// Tasks that went straight to this machine.
    pub(super) fn sent_to(&self, peer: PeerId) -> u64 {
        self.sent.get(&peer).copied().unwrap_or(0)
    }

    /// More tasks go straight to this machine.
    pub(super) fn send_to(&mut self, peer: PeerId, tasks: u64) {
        *self.sent.entry(peer).or_insert(0) += tasks;
    }

    /// What a machine said of a task is no vote any more: it may have another try.
    pub(super) fn withdraw(&mut self, executor: PeerId, index: u64) -> Option<Vote> {
        let votes = self.by_task.get_mut(&index)?;
        let place = votes.iter().position(|vote| vote.executor.peer == executor)?;
        let vote = votes.remove(place);
        if votes.is_empty() {
            self.by_task.remove(&index);
        }
        Some(vote)
    }

    /// Who can be asked is to be seen anew.
    pub(super) fn forget_stuck(&mut self) {
        self.stuck.clear();
    }

    /// From which attempt on the words of this machine on a task count.
    pub(super) fn counts_from(&self, executor: PeerId, index: u64) -> u32 {
        self.counts_from.get(&index).and_then(|from| from.get(&executor)).copied().unwrap_or(0)
    }

    /// Whether this machine tries one of these tasks again, or is to.
    pub(super) fn is_retried(&self, executor: PeerId, ranges: &IntervalSet) -> bool {
        ranges.ranges().flat_map(|range| self.counts_from.range(range)).any(|(_, from)| from.contains_key(&executor))
    }

    /// Those of these tasks on which this machine has voted.
    pub(super) fn of(&self, executor: PeerId, ranges: &IntervalSet) -> IntervalSet {
        let voted = ranges
            .ranges()
            .flat_map(|range| self.by_task.range(range))
            .filter(|(_, votes)| votes.iter().any(|vote| vote.executor.peer == executor));
        voted.map(|(&index, _)| index..index + 1).collect()
    }
}

impl Ledger {
    /// Whether a machine that is believed alone is checked on this task all the same.
    fn is_picked(&self, index: u64, io: &Io) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&io.secret.to_le_bytes()).update(&self.bag.id.0).update(&index.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first).is_multiple_of(self.votes.replication.recheck.max(1).into())
    }

    /// Whether one word of this machine on this task is enough.
    fn is_believed(&self, executor: PeerId, index: u64, io: &Io) -> bool {
        self.votes.replication.recheck > 0 && io.reputation(executor).is_clean() && !self.is_picked(index, io)
    }

    /// These tasks are newly on a machine.
    pub(super) fn exempt(&mut self, executor: PeerId, gained: &IntervalSet, io: &Io) {
        if self.votes.replication.recheck == 0 || !io.reputation(executor).is_clean() {
            return;
        }
        let unpicked = gained.indices().filter(|&index| !self.is_picked(index, io));
        let exempt: IntervalSet = unpicked.map(|index| index..index + 1).collect();
        self.votes.exempt.extend_with(&exempt);
    }

    /// A machine says what came of a task: what to fetch, and from whom, once enough have said the same.
    pub(super) fn vote(&mut self, executor: &Contact, result: TaskResult, io: &Io) -> Option<(TaskResult, Contact)> {
        let index = result.index;
        let is_believed = self.is_believed(executor.peer, index, io);
        let decided = self.votes.vote(executor, result, is_believed);
        if decided.is_none() && self.votes.has_voted(executor.peer, index) && self.lacks_copy(index) {
            self.votes.look_for_copies();
        }
        decided
    }

    /// A task is decided: who agreed and who dissented; what is to be written, and whom to tell that it is over.
    pub(super) fn judge(&mut self, winner: &TaskResult, decider: PeerId, io: &mut Io) -> (Vec<Change>, Vec<Then>) {
        let Decided { votes, has_quorum } = self.votes.decide(winner);
        let (mut changes, mut then) = (Vec::new(), Vec::new());
        for vote in &votes {
            let (voter, succeeds) = (vote.executor.peer, vote.result.success);
            // Of two outputs one is false; a failure that others do not have may be chance, and so may be a success.
            let is_telling = has_quorum && votes.len() > 1 && winner.success;
            if is_telling && succeeds {
                let (reputation, gone) = io.reputations.note(voter, vote.says(winner), io.wall(io.now));
                changes.push(Change::Put(Record::Reputation { executor: voter, reputation }));
                changes.extend(gone.map(|peer| Change::Delete(RecordKey::Reputation(peer))));
            }
            // A crash counts when it comes, and a false output says nothing of whether tasks run there.
            if is_telling && !vote.result.crashed && (!succeeds || vote.says(winner)) {
                self.avoided.note_end(voter, succeeds);
            }
            if voter != decider {
                then.push(Then::Send(vote.executor.clone(), Message::ack(self.bag.id, &vote.result)));
            }
        }
        (changes, then)
    }

    /// Tasks of which one more copy is to go out.
    fn lacking(&self) -> IntervalSet {
        if self.placed.tasks() == 0 {
            return IntervalSet::new();
        }
        let mut lacking = self.placed.all_held_by_more_than(0);
        lacking.subtract(&self.placed.all_held_by_more_than(self.votes.replicas - 1));
        lacking.subtract(&self.votes.exempt);
        let voted = self.votes.by_task.keys();
        lacking.subtract(&voted.map(|&index| index..index + 1).collect());
        let undecided = self.votes.by_task.keys().filter(|&&index| self.lacks_copy(index));
        lacking.extend_with(&undecided.map(|&index| index..index + 1).collect());
        self.issues.subtract_from(&mut lacking);
        self.waiting.subtract_pausing_from(&mut lacking);
        lacking
    }

    /// Whether the votes on a task and those who have yet to vote cannot come to a quorum.
    fn lacks_copy(&self, index: u64) -> bool {
        let is_over = self.ended.contains(index);
        let Some(votes) = self.votes.by_task.get(&index).filter(|_| !is_over) else { return false };
        if self.outputs.is_fetching(index) || self.waiting.unissued().contains(index) {
            return false;
        }
        let most = votes.iter().map(|vote| votes.iter().filter(|other| other.says(&vote.result)).count()).max();
        most.unwrap_or(0) + self.silent(index, votes) < self.votes.replication.quorum as usize
    }

    /// How many machines hold a task on which these are the votes, and have yet to vote.
    fn silent(&self, index: u64, votes: &[Vote]) -> usize {
        let holds = |vote: &&Vote| self.placed.holds(vote.executor.peer, index);
        self.placed.copies_of(index).saturating_sub(votes.iter().filter(holds).count())
    }

    /// Whether this machine gets nothing of the bag, since it is distrusted.
    pub(super) fn is_shunned(&self, executor: PeerId, io: &Io) -> bool {
        self.votes.is_quorum() && io.reputation(executor).is_distrusted()
    }

    /// The copies that are to go out now, and to whom: to machines that do not have the task.
    pub(crate) fn copies_due(
        &mut self,
        known: impl FnOnce() -> Vec<Known>,
        right: impl Fn(PeerId) -> bool,
        io: &mut Io,
        config: &Config,
    ) -> Vec<(Contact, Request)> {
        if !self.votes.is_quorum() || !self.votes.lacking || self.is_closed() || !self.open {
            return Vec::new();
        }
        self.votes.lacking = false;
        let stuck_before = std::mem::take(&mut self.votes.stuck);
        let lacking = self.lacking();
        if lacking.is_empty() {
            return Vec::new();
        }
        let mut machines: BTreeMap<PeerId, Known> = BTreeMap::new();
        let executors = self.placed.iter().map(|placement| {
            let contact = placement.executor.clone();
            Known { right: right(contact.peer), contact }
        });
        for machine in known().into_iter().chain(executors) {
            let peer = machine.contact.peer;
            if self.is_asked(peer, io) {
                machines.insert(peer, machine);
            }
        }
        // In both halves, by what they were sent.
        let mut halves = [BTreeSet::new(), BTreeSet::new()];
        for (&peer, machine) in &machines {
            halves[usize::from(machine.right)].insert((self.votes.sent_to(peer), peer));
        }
        let part_len = lacking.len().div_ceil(machines.len().max(1) as u64);
        let mut shares: BTreeMap<PeerId, IntervalSet> = BTreeMap::new();
        for (range, holders) in self.holders(&lacking) {
            let has_part: BTreeSet<bool> = holders.iter().map(|&peer| right(peer)).collect();
            let mut start = range.start;
            while start < range.end {
                let part = start..(start + part_len).min(range.end);
                start = part.end;
                let first_of = |half: bool| {
                    let can = halves[usize::from(half)].iter().find(|(_, peer)| !holders.contains(peer));
                    can.map(|&(sent, peer)| (has_part.contains(&half), sent, peer, half))
                };
                let Some((_, sent, peer, half)) = [false, true].into_iter().filter_map(first_of).min() else {
                    // Other machines may be known later.
                    self.ask_again(io.now, config);
                    self.note_stuck(part, &stuck_before, &machines, io, config);
                    continue;
                };
                let len = part.end - part.start;
                halves[usize::from(half)].remove(&(sent, peer));
                halves[usize::from(half)].insert((sent + len, peer));
                self.votes.send_to(peer, len);
                shares.entry(peer).or_default().insert(part);
            }
        }
        let mut requests = Vec::new();
        for (peer, mut share) in shares {
            while !share.is_empty() {
                let part: IntervalSet = share.ranges().take(REQUEST_INTERVALS_MAX).collect();
                share.subtract(&part);
                requests.push((machines[&peer].contact.clone(), self.request(part, Some(peer), io, config)));
            }
        }
        self.retry_stuck(io);
        requests
    }

    /// Copies are looked at again after a while.
    fn ask_again(&mut self, now: Time, config: &Config) {
        let at = now + config.placement_timeout;
        self.votes.again_at = Some(self.votes.again_at.map_or(at, |known| known.min(at)));
        self.ends_at(at);
    }

    /// These tasks in runs, each with those who have it or have voted on it. Takes n log n of all intervals that are placed, and
    /// of all votes.
    fn holders(&self, ranges: &IntervalSet) -> Vec<(Range<u64>, Vec<PeerId>)> {
        // Who comes, and who goes, at which index; the wanted tasks as those of nobody.
        let mut marks: Vec<(u64, bool, Option<PeerId>)> = Vec::new();
        let mut mark = |range: Range<u64>, who| marks.extend([(range.start, true, who), (range.end, false, who)]);
        for placement in self.placed.iter() {
            placement.ranges.ranges().for_each(|range| mark(range, Some(placement.executor.peer)));
        }
        for (&index, votes) in &self.votes.by_task {
            votes.iter().for_each(|vote| mark(index..index + 1, Some(vote.executor.peer)));
        }
        ranges.ranges().for_each(|range| mark(range, None));
        marks.sort_unstable();
        let mut here: BTreeMap<Option<PeerId>, u32> = BTreeMap::new();
        let mut runs = Vec::new();
        let mut start = 0;
        for (index, comes, who) in marks {
            if index > start && here.contains_key(&None) {
                runs.push((start..index, here.keys().copied().flatten().collect()));
            }
            start = index;
            let times = here.entry(who).or_default();
            *times = if comes { *times + 1 } else { times.saturating_sub(1) };
            if *times == 0 {
                here.remove(&who);
            }
        }
        runs
    }
}
