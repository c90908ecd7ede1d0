//! The votes on tasks of a bag with replicas, and when they decide.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, Time};
use serde::{Deserialize, Serialize};

use crate::bag::TaskResult;
use crate::ranges::IntervalSet;

/// Most replicas of a task.
pub const REPLICAS_MAX: u32 = 8;
/// Most votes on one task: without a quorum among them it has failed. Our choice.
pub(super) const VOTES_MAX: usize = 16;

/// How many machines run each task of a bag, and how many results have to be alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replication {
    /// k: copies of each task, 1 to [`REPLICAS_MAX`].
    pub replicas: u32,
    /// q: so many results alike decide, 2 to k, and 1 where k is 1.
    pub quorum: u32,
    /// Of a machine with a clean reputation one task in so many is checked with copies; 0: every one.
    pub recheck: u32,
}

impl Default for Replication {
    fn default() -> Self {
        Self { replicas: 1, quorum: 1, recheck: 0 }
    }
}

impl Replication {
    /// Whether these numbers make sense: a quorum of one needs no copies, so it goes with one replica only.
    pub fn is_valid(self) -> bool {
        let is_alone = (self.replicas, self.quorum) == (1, 1);
        is_alone || self.replicas <= REPLICAS_MAX && (2..=self.replicas).contains(&self.quorum)
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A machine's result of a task.
#[derive(Clone, Debug)]
pub(crate) struct Vote {
    pub(super) executor: Contact,
    pub(super) result: TaskResult,
}

impl Vote {
    /// Whether a result agrees with this vote. The outputs of crashed tasks may differ, since they depend on the machine's
    /// speed.
    pub(super) fn agrees_with(&self, result: &TaskResult) -> bool {
        self.result.success == result.success
            && (self.result.output == result.output || self.result.crashed && result.crashed)
    }
}

/// The votes on tasks that are not decided.
#[derive(Debug)]
pub(crate) struct Votes {
    replication: Replication,
    /// Most copies of one task, unless votes disagree.
    replicas: usize,
    pub(super) by_task: BTreeMap<u64, Vec<Vote>>,
    /// Tasks that need no copies: they are on machines that are believed alone, and not picked for a check.
    pub(super) exempt: IntervalSet,
    /// How many tasks were sent straight to each machine.
    sent: BTreeMap<PeerId, u64>,
    /// Whether copies are to be looked for: some task may have too few.
    pub(super) lacking: bool,
    /// When to look for copies again, after no machine could have one.
    pub(super) again_at: Option<Time>,
    /// Tasks without a quorum on which no known machine could vote when copies were last looked for.
    pub(super) stuck: BTreeMap<u64, Stuck>,
    /// The first attempt whose result counts, by task, for machines that try a task again.
    pub(super) counts_from: BTreeMap<u64, BTreeMap<PeerId, u32>>,
    /// Decided tasks whose votes were not all alike.
    disputed: u64,
}

/// The votes on a decided task.
pub(super) struct Decided {
    pub(super) votes: Vec<Vote>,
    /// Whether the winner has a quorum, or no vote contradicts it; else no vote is right, and the last one merely ended it.
    pub(super) has_quorum: bool,
}

/// A stuck task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    /// So long another machine is waited for.
    pub(super) until: Time,
    /// The machine that tries the task again then, if any.
    pub(super) retry: Option<PeerId>,
}

impl Votes {
    pub(crate) fn new(replication: Replication) -> Self {
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

    /// The bag is closed.
    pub(crate) fn close(&mut self) {
        *self = Self { disputed: self.disputed, replicas: self.replicas, ..Self::new(self.replication) };
    }

    pub(crate) fn replication(&self) -> Replication {
        self.replication
    }

    /// Most copies of one task, unless votes disagree.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas
    }

    /// Whether several results have to be alike.
    pub(crate) fn is_quorum(&self) -> bool {
        self.replication.quorum > 1
    }

    /// Decided tasks whose votes were not all alike.
    pub(crate) fn disputed(&self) -> u64 {
        self.disputed
    }

    /// Tasks without a quorum on which no known machine could vote when copies were last looked for.
    pub(crate) fn undecided(&self) -> u64 {
        self.stuck.len() as u64
    }

    /// Some task may have too few copies now.
    pub(crate) fn look_for_copies(&mut self) {
        self.lacking = true;
    }

    /// When to look for copies again, after no machine could have one.
    pub(crate) fn look_again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// Ends that wait, if it is over.
    pub(crate) fn end_wait(&mut self, now: Time) {
        self.again_at = self.again_at.filter(|&at| at > now);
    }

    /// Counts a machine's first result of a task as its vote. Returns the winning result and the machine to fetch its
    /// output from, once enough votes are alike; a vote of a machine that `is_believed` is enough alone.
    pub(super) fn vote(
        &mut self,
        executor: &Contact,
        result: TaskResult,
        is_believed: bool,
    ) -> Option<(TaskResult, Contact)> {
        let (index, mut result) = (result.index, result);
        // Votes may be many and wait for long, so they are kept without outputs: the deciding one brings the output again.
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
        let alike = |vote: &Vote| votes.iter().filter(|other| other.agrees_with(&vote.result)).count();
        // A failure is not believed alone: the task may succeed elsewhere, and nothing would show that. Nor is a success where
        // another machine has failed the task and tries it again.
        let is_uncontested = alike(&votes[own]) == votes.len() && !self.counts_from.contains_key(&index);
        let is_alone = is_believed && votes[own].result.success && is_uncontested;
        let enough = if is_alone { 1 } else { self.replication.quorum as usize };
        // Prefer the machine whose vote came just now: its output can be fetched.
        let winner = std::iter::once(&votes[own]).chain(votes.iter()).find(|vote| alike(vote) >= enough);
        if let Some(Vote { executor, result }) = winner {
            return Some((with_content(result.clone()), executor.clone()));
        }
        self.exempt.remove_index(index);
        if votes.len() < VOTES_MAX {
            return None;
        }
        // Too many votes without a quorum: the task has failed.
        let Vote { executor, result } = votes[own].clone();
        // Without the receipt, since this is not the result that the machine signed.
        Some((with_content(TaskResult { success: false, exit_code: None, receipt: None, ..result }), executor))
    }

    /// Whether this machine has voted on a task.
    pub(crate) fn has_voted(&self, executor: PeerId, index: u64) -> bool {
        self.by_task.get(&index).is_some_and(|votes| votes.iter().any(|vote| vote.executor.peer == executor))
    }

    /// A task is decided: removes and returns its votes.
    pub(super) fn decide(&mut self, winner: &TaskResult) -> Decided {
        let votes = self.by_task.remove(&winner.index).unwrap_or_default();
        self.exempt.remove_index(winner.index);
        self.stuck.remove(&winner.index);
        self.counts_from.remove(&winner.index);
        let alike = votes.iter().filter(|vote| vote.agrees_with(winner)).count();
        self.disputed += u64::from(alike < votes.len());
        let has_quorum = alike == votes.len() || alike >= self.replication.quorum as usize;
        Decided { votes, has_quorum }
    }

    /// Tasks on which there are votes.
    #[cfg(debug_assertions)]
    pub(crate) fn tasks(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_task.keys().copied()
    }

    #[cfg(test)]
    pub(crate) fn set_replicas(&mut self, replicas: usize) {
        self.replicas = replicas;
    }

    #[cfg(test)]
    pub(crate) fn count(&self, index: u64) -> usize {
        self.by_task.get(&index).map_or(0, Vec::len)
    }

    /// The machines that have voted on a task.
    pub(crate) fn voters(&self, index: u64) -> Vec<PeerId> {
        self.by_task.get(&index).into_iter().flatten().map(|vote| vote.executor.peer).collect()
    }

    /// How many tasks were sent straight to this machine.
    pub(crate) fn sent_to(&self, peer: PeerId) -> u64 {
        self.sent.get(&peer).copied().unwrap_or(0)
    }

    /// Counts tasks that are sent straight to this machine.
    pub(crate) fn send_to(&mut self, peer: PeerId, tasks: u64) {
        *self.sent.entry(peer).or_insert(0) += tasks;
    }

    /// Removes a machine's vote on a task, since it may try the task again.
    pub(crate) fn withdraw(&mut self, executor: PeerId, index: u64) -> Option<Vote> {
        let votes = self.by_task.get_mut(&index)?;
        let place = votes.iter().position(|vote| vote.executor.peer == executor)?;
        let vote = votes.remove(place);
        if votes.is_empty() {
            self.by_task.remove(&index);
        }
        Some(vote)
    }

    /// Forgets which tasks are stuck, so that machines are looked for anew.
    pub(crate) fn forget_stuck(&mut self) {
        self.stuck.clear();
    }

    /// The first attempt of this machine at a task whose result counts.
    pub(crate) fn counts_from(&self, executor: PeerId, index: u64) -> u32 {
        self.counts_from.get(&index).and_then(|from| from.get(&executor)).copied().unwrap_or(0)
    }

    /// Whether this machine tries one of these tasks again, or is to.
    pub(crate) fn is_retried(&self, executor: PeerId, ranges: &IntervalSet) -> bool {
        ranges.ranges().flat_map(|range| self.counts_from.range(range)).any(|(_, from)| from.contains_key(&executor))
    }

    /// Those of these tasks on which this machine has voted.
    pub(crate) fn of(&self, executor: PeerId, ranges: &IntervalSet) -> IntervalSet {
        let voted = ranges
            .ranges()
            .flat_map(|range| self.by_task.range(range))
            .filter(|(_, votes)| votes.iter().any(|vote| vote.executor.peer == executor));
        voted.map(|(&index, _)| index..index + 1).collect()
    }
}
