//! What a shard counts, for the report.

use std::collections::BTreeMap;

use idlewood_scheduler::MESSAGE_KINDS;

use crate::event_queue::HostIndex;
use crate::report::MessageCount;

/// A count for each kind of messages.
#[derive(Clone, Debug)]
pub(super) struct ByKind(pub(super) [MessageCount; MESSAGE_KINDS.len()]);

impl ByKind {
    /// Those of which there were some, by their names.
    pub(super) fn told(&self) -> BTreeMap<&'static str, MessageCount> {
        MESSAGE_KINDS.into_iter().zip(self.0).filter(|(_, of)| of.count > 0).collect()
    }
}

impl Default for ByKind {
    fn default() -> Self {
        Self([MessageCount::default(); MESSAGE_KINDS.len()])
    }
}

/// Counts, added up over all shards.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) crashes: u64,
    pub(super) leaves: u64,
    pub(super) preemptions: u64,
    /// Journalled results that a liar made up.
    pub(super) false_results: u64,
    pub(super) reclaims: u64,
    pub(super) messages_lost: u64,
    pub(super) messages_in_vain: u64,
    /// Messages by kind.
    pub(super) messages: ByKind,
    /// Those of them that answers carried, which have nothing beside their own bytes.
    pub(super) carried: ByKind,
    /// Answers to messages, without the messages that they carry.
    pub(super) answers: MessageCount,
    pub(super) outputs: MessageCount,
    /// Files of bags.
    pub(super) files: MessageCount,
    /// Requests for pieces that were answered as busy.
    pub(super) refusals: u64,
    /// Connections that were opened, and the bytes of their handshakes, of both sides.
    pub(super) connections: MessageCount,
    /// Those that were not, since one side had no room.
    pub(super) connections_refused: u64,
    /// Requests by the depth of the router that split them first.
    pub(super) decided: BTreeMap<u32, u64>,
    /// Messages about which machines there are, by who sent them.
    pub(super) listings: BTreeMap<HostIndex, MessageCount>,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.crashes += other.crashes;
        self.leaves += other.leaves;
        self.preemptions += other.preemptions;
        self.false_results += other.false_results;
        self.reclaims += other.reclaims;
        self.messages_lost += other.messages_lost;
        self.messages_in_vain += other.messages_in_vain;
        self.messages.0.iter_mut().zip(other.messages.0).for_each(|(one, other)| *one = *one + other);
        self.carried.0.iter_mut().zip(other.carried.0).for_each(|(one, other)| *one = *one + other);
        self.answers = self.answers + other.answers;
        self.outputs = self.outputs + other.outputs;
        self.files = self.files + other.files;
        self.refusals += other.refusals;
        self.connections = self.connections + other.connections;
        self.connections_refused += other.connections_refused;
        for (depth, count) in &other.decided {
            *self.decided.entry(*depth).or_default() += count;
        }
        for (host, count) in &other.listings {
            let sum = self.listings.entry(*host).or_default();
            *sum = *sum + *count;
        }
    }
}
