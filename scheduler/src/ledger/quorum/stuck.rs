//! Stuck tasks: they have no quorum, and all known machines that could be asked have voted.
//!
//! A stuck task waits for another machine. Where votes are failures, and a quorum is possible without them, a machine that
//! has failed the task tries it again after a while, as often as other tasks are tried again; its results of earlier
//! attempts are no votes any more. The first attempt that counts is not durable: after a restart of the submitter a late
//! result may cost one more try.

use std::collections::BTreeMap;
use std::ops::Range;

use idlewood_overlay::{Contact, PeerId};

use super::known::Known;
use super::votes::{Stuck, Vote};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::ledger::Ledger;
use crate::message::{Message, RESULTS_MAX};
use crate::ranges::IntervalSet;

impl Ledger {
    /// No machine of `asked` can have a copy of these tasks; `before` are the tasks that were stuck until now.
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

    /// The first machine of `asked` that has failed this task and may try it again, if a quorum is possible once all such
    /// machines have.
    fn who_retries(&self, index: u64, votes: &[Vote], asked: &BTreeMap<PeerId, Known>) -> Option<PeerId> {
        let (retry, rest): (Vec<&Vote>, Vec<&Vote>) =
            votes.iter().partition(|vote| !vote.result.success && asked.contains_key(&vote.executor.peer));
        let alike = |vote: &&Vote| rest.iter().filter(|other| other.agrees_with(&vote.result)).count();
        let most = rest.iter().map(alike).max().unwrap_or(0);
        let is_of_use = most + retry.len() + self.yet_to_vote(index, votes) >= self.votes.replication().quorum as usize;
        let first = retry.first().filter(|_| is_of_use && self.tries.leaves_a_try(index));
        first.map(|vote| vote.executor.peer)
    }

    /// Has stuck tasks whose wait is over tried again by machines that have failed them.
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
            // Their copies go out once the change is durable.
            self.votes.look_for_copies();
            let again = self.without_copy(all);
            self.next_attempt(&again, io);
        }
    }

    /// Turns a machine's votes on these tasks, which are failures, into failed tries: the machine may have the tasks again
    /// with the next attempt.
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
        // A `Holding` that is on its way may still list these tasks.
        self.placed.require_holding(peer);
        changes.extend(self.placed.take(peer, &tasks, self.bag.id).map(|(_, change)| change));
        let acks = Message::acks(self.bag.id, &results).map(|ack| Then::Send(executor.clone(), ack));
        io.persist(changes, acks.collect());
        tasks
    }
}
