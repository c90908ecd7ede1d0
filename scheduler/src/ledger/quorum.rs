//! Replicas: copies of a task on several machines, whose results are votes (docs/adr/0015).
//!
//! In a bag with a quorum an executor keeps its result, and accounts for it, until as many machines as the quorum have sent
//! the same; then the output is fetched from one of them. The first copy of a task goes through the tree, further ones
//! straight to known machines that neither hold the task nor have voted on it, those in the other half of the line first.
//! Where there is no such machine, `stuck` decides. `votes` counts. A machine on which the task stands still (`copies`) is not waited
//! for: one more copy takes its place, up to [`RUNS_MAX`] beyond the replicas.
//!
//! Looking for missing copies takes n log n steps for n placed intervals, and happens when a machine takes or loses tasks;
//! a vote looks at its own task only. A decided task is taken from its voters; only where there are more copies than votes
//! are other placements searched.
//!
//! Left out: votes on disk (executors repeat them); checkpoints of bags with a quorum (a machine could have made one up);
//! choosing machines for copies by their room.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use idlewood_overlay::{Contact, PeerId, Time};

pub(crate) use self::known::Known;
use self::votes::Decided;
pub use self::votes::{REPLICAS_MAX, Replication};
pub(super) use self::votes::{Vote, Votes};
use super::Ledger;
use super::copies::RUNS_MAX;
use crate::bag::{REQUEST_INTERVALS_MAX, Request, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::Message;
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

mod known;
mod stuck;
#[cfg(test)]
mod tests;
mod votes;

impl Ledger {
    /// Whether this task is checked with copies even on a machine that is believed alone.
    fn is_picked(&self, index: u64, io: &Io) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&io.secret.to_le_bytes()).update(&self.bag.id.0).update(&index.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first).is_multiple_of(self.votes.replication().recheck.max(1).into())
    }

    /// Whether this machine's vote on this task is enough alone.
    fn is_believed(&self, executor: PeerId, index: u64, io: &Io) -> bool {
        self.votes.replication().recheck > 0 && io.reputation(executor).is_clean() && !self.is_picked(index, io)
    }

    /// These tasks are newly placed with a machine: exempts them from copies if it is believed alone.
    pub(super) fn exempt(&mut self, executor: PeerId, gained: &IntervalSet, io: &Io) {
        if self.votes.replication().recheck == 0 || !io.reputation(executor).is_clean() {
            return;
        }
        let unpicked = gained.indices().filter(|&index| !self.is_picked(index, io));
        let exempt: IntervalSet = unpicked.map(|index| index..index + 1).collect();
        self.votes.exempt.extend_with(&exempt);
    }

    /// A machine's result of a task: counts it as a vote, as [`Votes::vote`].
    pub(super) fn vote(&mut self, executor: &Contact, result: TaskResult, io: &Io) -> Option<(TaskResult, Contact)> {
        let index = result.index;
        let is_believed = self.is_believed(executor.peer, index, io);
        let decided = self.votes.vote(executor, result, is_believed);
        if decided.is_none() && self.votes.has_voted(executor.peer, index) && self.lacks_copy(index) {
            self.votes.look_for_copies();
        }
        decided
    }

    /// A task is decided: counts agreement and dissent for the voters' reputations. Returns the changes to write, and the
    /// acknowledgements to send to all voters but `decider` once they are durable.
    pub(super) fn judge(&mut self, winner: &TaskResult, decider: PeerId, io: &mut Io) -> (Vec<Change>, Vec<Then>) {
        let Decided { votes, has_quorum } = self.votes.decide(winner);
        let (mut changes, mut then) = (Vec::new(), Vec::new());
        for vote in &votes {
            let (voter, succeeds) = (vote.executor.peer, vote.result.success);
            // Of two different outputs one is false; a failure or success that others do not have may be chance.
            let votes_count = has_quorum && votes.len() > 1 && winner.success;
            if votes_count && succeeds {
                let (reputation, gone) = io.reputations.note(voter, vote.agrees_with(winner), io.wall(io.now));
                changes.push(Change::Put(Record::Reputation { executor: voter, reputation }));
                changes.extend(gone.map(|peer| Change::Delete(RecordKey::Reputation(peer))));
            }
            // Crashes were counted when they came, and a false output says nothing about whether tasks run on a machine.
            if votes_count && !vote.result.crashed && (!succeeds || vote.agrees_with(winner)) {
                self.avoided.note_end(voter, succeeds);
            }
            if voter != decider {
                then.push(Then::Send(vote.executor.clone(), Message::ack(self.bag.id, &vote.result)));
            }
        }
        (changes, then)
    }

    /// Tasks that need one more copy.
    fn lacking(&self) -> IntervalSet {
        if self.placed.tasks() == 0 {
            return IntervalSet::new();
        }
        let mut lacking = self.placed.all_held_by_more_than(0);
        lacking.subtract(&self.placed.all_held_by_more_than(self.votes.replicas() - 1));
        lacking.subtract(&self.votes.exempt);
        let voted = self.votes.by_task.keys();
        lacking.subtract(&voted.map(|&index| index..index + 1).collect());
        let still =
            self.copies.stuck(false).into_iter().map(|(index, _)| index).filter(|&index| self.waits_for_nobody(index));
        lacking.extend_with(&still.map(|index| index..index + 1).collect());
        let undecided = self.votes.by_task.keys().filter(|&&index| self.lacks_copy(index));
        lacking.extend_with(&undecided.map(|&index| index..index + 1).collect());
        self.issues.subtract_from(&mut lacking);
        self.waiting.subtract_pausing_from(&mut lacking);
        lacking
    }

    /// Whether a task without votes stands still on so many machines that too few others run it.
    fn waits_for_nobody(&self, index: u64) -> bool {
        let wanted = if self.votes.exempt.contains(index) { 1 } else { self.votes.replicas() };
        let (runs, still) = (self.placed.copies_of(index), self.standing_still(index));
        !self.votes.by_task.contains_key(&index) && still > 0 && runs - still < wanted && self.may_run_once_more(index)
    }

    /// Whether fewer than [`RUNS_MAX`] machines beyond the replicas hold a task.
    fn may_run_once_more(&self, index: u64) -> bool {
        self.placed.copies_of(index) < self.votes.replicas() + RUNS_MAX
    }

    /// Whether a task cannot reach a quorum with its votes and those of the machines that have yet to vote.
    fn lacks_copy(&self, index: u64) -> bool {
        let is_over = self.ended.contains(index);
        let Some(votes) = self.votes.by_task.get(&index).filter(|_| !is_over) else { return false };
        if self.outputs.is_fetching(index) || self.waiting.unissued().contains(index) {
            return false;
        }
        let most = votes.iter().map(|vote| votes.iter().filter(|other| other.agrees_with(&vote.result)).count()).max();
        let still = self.standing_still(index);
        let yet_to_vote = self.yet_to_vote(index, votes).saturating_sub(still);
        (still == 0 || self.may_run_once_more(index))
            && most.unwrap_or(0) + yet_to_vote < self.votes.replication().quorum as usize
    }

    /// How many machines hold a task, on which these are the votes, and have yet to vote.
    fn yet_to_vote(&self, index: u64, votes: &[Vote]) -> usize {
        let holds = |vote: &&Vote| self.placed.holds(vote.executor.peer, index);
        self.placed.copies_of(index).saturating_sub(votes.iter().filter(holds).count())
    }

    /// Whether this machine gets no tasks of the bag, since it is distrusted.
    pub(super) fn is_shunned(&self, executor: PeerId, io: &Io) -> bool {
        self.votes.is_quorum() && io.reputation(executor).is_distrusted()
    }

    /// The requests for missing copies, each with the machine it is for, none of which has the tasks.
    pub(crate) fn copies_due(
        &mut self,
        known: impl FnOnce() -> Vec<Known>,
        right: impl Fn(PeerId) -> bool,
        io: &mut Io,
        config: &Config,
    ) -> Vec<(Contact, Request)> {
        let may_not = self.is_closed() || !self.open || self.conditions.withhold();
        if !self.votes.is_quorum() || !self.votes.lacking || may_not {
            return Vec::new();
        }
        self.votes.lacking = false;
        let stuck_before = std::mem::take(&mut self.votes.stuck);
        let lacking = self.lacking();
        if lacking.is_empty() {
            return Vec::new();
        }
        self.give_still(&lacking);
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
        // The machines of each half of the line, by the number of tasks they were sent.
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
                    // Other machines may become known later.
                    self.look_again_later(io.now, config);
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
        // A machine may have had a copy of the task before, and have been told to stop it: this is another attempt.
        let had =
            |peer: &PeerId, share| self.former.of(*peer).is_some_and(|former| !former.intersection(share).is_empty());
        if shares.iter().any(|(peer, share)| had(peer, share)) {
            self.next_attempt(&IntervalSet::new(), io);
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

    /// Has copies looked for again after [`Config::placement_timeout`].
    fn look_again_later(&mut self, now: Time, config: &Config) {
        let at = now + config.placement_timeout;
        self.votes.again_at = Some(self.votes.again_at.map_or(at, |known| known.min(at)));
        self.ends_at(at);
    }

    /// These tasks in runs, each with the machines that hold it or have voted on it. Takes n log n steps for n placed
    /// intervals and votes.
    fn holders(&self, ranges: &IntervalSet) -> Vec<(Range<u64>, Vec<PeerId>)> {
        // At each index, which machine's interval begins or ends there; the wanted tasks as those of `None`.
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
