//! Tasks on which no quorum can be reached, since all machines that can be asked have voted.
//!
//! They wait for another machine. Where votes are failures, and others instead of them could bring the quorum, a machine that has
//! failed tries the task again after a while, as often as tasks are tried again elsewhere; what it says of earlier attempts is no
//! vote any more. Which attempt that is is not durable: after a restart of the submitter an old word may cost one more try.

use std::collections::BTreeMap;
use std::ops::Range;

use idlewood_overlay::{Contact, PeerId, Time};

use super::{Known, Vote};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::ledger::Ledger;
use crate::message::{Message, RESULTS_MAX};
use crate::ranges::IntervalSet;

/// A task that lacks a vote which nobody can give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    /// It is given this long to find somebody.
    until: Time,
    /// Whose failure gives way to another try then.
    retry: Option<PeerId>,
}

impl Ledger {
    /// Nobody of `asked` can have a copy of these tasks; `before` is what was stuck until now.
    pub(super) fn note_stuck(
        &mut self,
        part: Range<u64>,
        before: &BTreeMap<u64, Stuck>,
        asked: &BTreeMap<PeerId, Known>,
        io: &Io,
        config: &Config,
    ) {
        let stuck =
            self.votes.by_task.range(part).filter(|&(&index, _)| self.lacks_copy(index)).map(|(&index, votes)| {
                let until = before.get(&index).map_or(io.now + config.placement_timeout, |stuck| stuck.until);
                (index, Stuck { until, retry: self.who_retries(index, votes, asked) })
            });
        let stuck: Vec<(u64, Stuck)> = stuck.collect();
        self.votes.stuck.extend(stuck);
    }

    /// Who of `asked` has failed at this task and may try it again, if there can be a quorum when all of these have.
    fn who_retries(&self, index: u64, votes: &[Vote], asked: &BTreeMap<PeerId, Known>) -> Option<PeerId> {
        let (retry, rest): (Vec<&Vote>, Vec<&Vote>) =
            votes.iter().partition(|vote| !vote.result.success && asked.contains_key(&vote.executor.peer));
        let alike = |vote: &&Vote| rest.iter().filter(|other| other.says(&vote.result)).count();
        let most = rest.iter().map(alike).max().unwrap_or(0);
        let is_of_use = most + retry.len() + self.silent(index, votes) >= self.votes.replication.quorum as usize;
        let first = retry.first().filter(|_| is_of_use && self.tries.leaves_a_try(index));
        first.map(|vote| vote.executor.peer)
    }

    /// Has tasks tried again where they have failed, of those that were just found to be stuck still.
    pub(super) fn retry_stuck(&mut self, io: &mut Io) {
        let due = self.votes.stuck.iter().filter(|(_, stuck)| stuck.until <= io.now);
        let due = due.filter_map(|(&index, stuck)| Some((index, stuck.retry?)));
        let mut by_machine: BTreeMap<PeerId, Vec<u64>> = BTreeMap::new();
        for (index, peer) in due.take(RESULTS_MAX) {
            by_machine.entry(peer).or_default().push(index);
        }
        let mut all = IntervalSet::new();
        for (peer, indices) in by_machine {
            all.extend_with(&self.withdraw_votes(peer, &indices, io));
        }
        if !all.is_empty() {
            // Their copies go out when that is written.
            self.votes.look_for_copies();
            let again = self.without_copy(all);
            self.next_attempt(&again, io);
        }
    }

    /// These votes of a machine, which are failures, count as failed tries, and it may have the tasks again from the next attempt on.
    fn withdraw_votes(&mut self, peer: PeerId, indices: &[u64], io: &mut Io) -> IntervalSet {
        let (mut tasks, mut results, mut changes) = (IntervalSet::new(), Vec::new(), Vec::new());
        let mut executor: Option<Contact> = None;
        for &index in indices {
            let Some(vote) = self.votes.withdraw(peer, index) else { continue };
            self.votes.stuck.remove(&index);
            self.votes.counts_from.entry(index).or_default().insert(peer, self.attempt + 1);
            self.tries.count_retried(index, self.attempt + 1);
            changes.push(self.tries.change(index, self.bag.id));
            tasks.insert(index..index + 1);
            results.push(vote.result);
            executor = Some(vote.executor);
        }
        let Some(executor) = executor else { return tasks };
        // What it has said on the way here may still list them.
        self.placed.has_to_say(peer);
        changes.extend(self.placed.take(peer, &tasks, self.bag.id).map(|(_, change)| change));
        let acks = Message::acks(self.bag.id, &results).map(|ack| Then::Send(executor.clone(), ack));
        io.persist(changes, acks.collect());
        tasks
    }
}
