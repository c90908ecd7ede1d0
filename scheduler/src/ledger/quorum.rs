//! Replicas: the same task on several machines, whose results are votes (docs/adr/0015).
//!
//! A result of a bag with a quorum waits with its executor, which goes on accounting for it, until as many machines have said
//! the same; then the output is fetched from one of them. Copies beyond the first go straight to machines that are known,
//! none of which has the task or has voted on it, those in the other half of the line first.
//!
//! Left out: votes on disk (they come again), checkpoints of bags with a quorum (who hands one back could have made it
//! up), and copies by who has room.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_overlay::{Contact, PeerId, Time};
use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::bag::{REQUEST_INTERVALS_MAX, Request, TaskResult};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::Message;
use crate::ranges::IntervalSet;
use crate::record::{Change, Record, RecordKey};

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
    /// q: results alike that decide, 1 to k.
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
    /// Whether these numbers make sense.
    pub fn is_valid(self) -> bool {
        (1..=REPLICAS_MAX).contains(&self.replicas) && (1..=self.replicas).contains(&self.quorum)
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
struct Vote {
    executor: Contact,
    result: TaskResult,
}

impl Vote {
    fn says(&self, result: &TaskResult) -> bool {
        (self.result.success, self.result.output) == (result.success, result.output)
    }
}

/// The votes on tasks that are not decided.
#[derive(Debug, Default)]
pub(super) struct Votes {
    by_task: BTreeMap<u64, Vec<Vote>>,
    /// Of machines that are believed alone, and not picked for a check: no copies of these.
    exempt: IntervalSet,
    /// Copies that each machine was sent.
    sent: BTreeMap<PeerId, u64>,
    /// Some task may have fewer copies than it should.
    pub(super) lacking: bool,
    /// When to look at that again, where nobody could have one.
    pub(super) again_at: Option<Time>,
    /// Decided tasks on which not all said the same.
    pub(super) disputed: u64,
}

impl Votes {
    /// The bag is over.
    pub(super) fn close(&mut self) {
        *self = Self { disputed: self.disputed, ..Self::default() };
    }

    #[cfg(test)]
    pub(super) fn count(&self, index: u64) -> usize {
        self.by_task.get(&index).map_or(0, Vec::len)
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
    pub(super) fn is_replicated(&self) -> bool {
        self.replication.quorum > 1
    }

    /// Whether a machine that is believed alone is checked on this task all the same.
    fn is_picked(&self, index: u64, io: &Io) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&io.secret.to_le_bytes()).update(&self.bag.id.0).update(&index.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first).is_multiple_of(self.replication.recheck.max(1).into())
    }

    /// Whether one word of this machine on this task is enough.
    fn is_believed(&self, executor: PeerId, index: u64, io: &Io) -> bool {
        self.replication.recheck > 0 && io.reputations.of(executor).is_clean() && !self.is_picked(index, io)
    }

    /// These tasks are newly on a machine.
    pub(super) fn exempt(&mut self, executor: PeerId, gained: &IntervalSet, io: &Io) {
        if self.replication.recheck == 0 || !io.reputations.of(executor).is_clean() {
            return;
        }
        let unpicked = gained.indices().filter(|&index| !self.is_picked(index, io));
        let exempt: IntervalSet = unpicked.map(|index| index..index + 1).collect();
        self.votes.exempt.extend_with(&exempt);
    }

    /// A machine says what came of a task: what to fetch, once enough have said the same. Its first word counts.
    pub(super) fn vote(&mut self, executor: &Contact, result: TaskResult, io: &Io) -> Option<(TaskResult, Contact)> {
        let index = result.index;
        let is_believed = self.is_believed(executor.peer, index, io);
        let votes = self.votes.by_task.entry(index).or_default();
        if let Some(vote) = votes.iter_mut().find(|vote| vote.executor.peer == executor.peer) {
            vote.executor = executor.clone();
        } else if votes.len() < VOTES_MAX {
            votes.push(Vote { executor: executor.clone(), result });
        }
        let votes = &*votes;
        let own = votes.iter().position(|vote| vote.executor.peer == executor.peer)?;
        let alike = |vote: &Vote| votes.iter().filter(|other| other.says(&vote.result)).count();
        let enough =
            if is_believed && alike(&votes[own]) == votes.len() { 1 } else { self.replication.quorum as usize };
        // The machine that speaks is there to be asked for the output.
        let winner = std::iter::once(&votes[own]).chain(votes.iter()).find(|vote| alike(vote) >= enough);
        if let Some(Vote { executor, result }) = winner {
            return Some((result.clone(), executor.clone()));
        }
        self.votes.exempt.remove_index(index);
        self.votes.lacking = true;
        if votes.len() < VOTES_MAX {
            return None;
        }
        // Nobody can tell what is right.
        let Vote { executor, result } = votes[own].clone();
        // It says something else than its machine has signed.
        Some((TaskResult { success: false, exit_code: None, receipt: None, ..result }, executor))
    }

    /// A task is decided: who agreed and who dissented; what is to be written, and whom to tell that it is over.
    pub(super) fn judge(&mut self, winner: &TaskResult, decider: PeerId, io: &mut Io) -> (Vec<Change>, Vec<Then>) {
        let votes = self.votes.by_task.remove(&winner.index).unwrap_or_default();
        self.votes.exempt.remove_index(winner.index);
        let (bag, indices) = (self.bag.id, IntervalSet::from(winner.index..winner.index + 1));
        let is_disputed = votes.iter().any(|vote| !vote.says(winner));
        self.votes.disputed += u64::from(is_disputed);
        // Where nobody had a quorum nobody is right.
        let is_decided = votes.iter().any(|vote| vote.says(winner));
        let (mut changes, mut then) = (Vec::new(), Vec::new());
        for vote in &votes {
            if is_decided && votes.len() > 1 {
                let (reputation, gone) = io.reputations.note(vote.executor.peer, vote.says(winner));
                changes.push(Change::Put(Record::Reputation { executor: vote.executor.peer, reputation }));
                changes.extend(gone.map(|peer| Change::Delete(RecordKey::Reputation(peer))));
            }
            if vote.executor.peer != decider {
                let ack = Message::ResultsAck { bag, indices: indices.clone() };
                then.push(Then::Send(vote.executor.clone(), ack));
            }
        }
        (changes, then)
    }

    /// Tasks of which one more copy is to go out.
    fn lacking(&self) -> IntervalSet {
        let Some(placed) = self.copies.first() else { return IntervalSet::new() };
        let mut lacking: IntervalSet = placed.ranges().collect();
        if let Some(most) = self.copies.get(self.replicas - 1) {
            lacking.subtract(&most.ranges().collect());
        }
        lacking.subtract(&self.votes.exempt);
        for (&index, votes) in &self.votes.by_task {
            lacking.remove_index(index);
            let is_over = self.done.contains(index) || self.failed.contains(index);
            if is_over || self.fetching.contains_key(&index) || self.unissued.contains(index) {
                continue;
            }
            let most = votes.iter().map(|vote| votes.iter().filter(|other| other.says(&vote.result)).count()).max();
            let held = self.copies.iter().take_while(|level| level.contains(index)).count();
            let holds = |vote: &&Vote| {
                self.placed.get(&vote.executor.peer).is_some_and(|placement| placement.ranges.contains(index))
            };
            let silent = held.saturating_sub(votes.iter().filter(holds).count());
            if most.unwrap_or(0) + silent < self.replication.quorum as usize {
                lacking.insert_index(index);
            }
        }
        for issue in &self.issued {
            lacking.subtract(&issue.ranges);
        }
        for pausing in self.pausing.values() {
            lacking.subtract(pausing);
        }
        lacking
    }

    /// The copies that are to go out now, and to whom: to machines that do not have the task.
    pub(crate) fn copies_due(
        &mut self,
        known: impl FnOnce() -> Vec<Known>,
        right: impl Fn(PeerId) -> bool,
        io: &Io,
        config: &Config,
    ) -> Vec<(Contact, Request)> {
        if !self.is_replicated() || !self.votes.lacking || self.is_closed() || !self.open {
            return Vec::new();
        }
        self.votes.lacking = false;
        let lacking = self.lacking();
        if lacking.is_empty() {
            return Vec::new();
        }
        let mut machines: BTreeMap<PeerId, Known> = BTreeMap::new();
        let executors = self.placed.values().map(|placement| {
            let contact = placement.executor.clone();
            Known { right: right(contact.peer), contact }
        });
        for machine in known().into_iter().chain(executors) {
            let peer = machine.contact.peer;
            if !io.reputations.of(peer).is_distrusted() && self.avoided_for(peer, io.now).is_zero() {
                machines.insert(peer, machine);
            }
        }
        let part_len = lacking.len().div_ceil(machines.len().max(1) as u64);
        let mut shares: BTreeMap<PeerId, IntervalSet> = BTreeMap::new();
        let mut left = lacking;
        while let Some(start) = left.first() {
            let mut part = left.clone().take_first(part_len.max(1));
            let mut holders = self.holders(&part);
            if part.len() > 1 && self.holders(&IntervalSet::from(start..start + 1)) != holders {
                // Others have a part of it: as far as one can tell, one at a time.
                part = IntervalSet::from(start..start + 1);
                holders = self.holders(&part);
            }
            left.subtract(&part);
            let halves: BTreeSet<bool> = holders.iter().map(|&peer| right(peer)).collect();
            let can = machines.values().filter(|machine| !holders.contains(&machine.contact.peer));
            let to = can.min_by_key(|machine| {
                let peer = machine.contact.peer;
                (halves.contains(&machine.right), self.votes.sent.get(&peer).copied().unwrap_or(0), peer)
            });
            match to {
                Some(machine) => {
                    let peer = machine.contact.peer;
                    *self.votes.sent.entry(peer).or_default() += part.len();
                    shares.entry(peer).or_default().extend_with(&part);
                }
                // Other machines may be known later.
                None => self.ask_again(io.now, config),
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
        requests
    }

    /// Copies are looked at again after a while.
    fn ask_again(&mut self, now: Time, config: &Config) {
        let at = now + config.placement_timeout;
        self.votes.again_at = Some(self.votes.again_at.map_or(at, |known| known.min(at)));
        self.ends_at(at);
    }

    /// Who has any of these tasks, or has voted on one.
    fn holders(&self, ranges: &IntervalSet) -> BTreeSet<PeerId> {
        let holds = self.placed.iter().filter(|(_, placement)| !placement.ranges.intersection(ranges).is_empty());
        let votes = ranges.ranges().flat_map(|range| self.votes.by_task.range(range)).flat_map(|(_, votes)| votes);
        holds.map(|(&peer, _)| peer).chain(votes.map(|vote| vote.executor.peer)).collect()
    }
}
