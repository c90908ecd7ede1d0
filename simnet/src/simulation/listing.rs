//! Machines that ask which machines there are, and what that costs.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::{Listed, Simulation};
use crate::event_queue::HostIndex;
use crate::report::MessageCount;

impl Simulation {
    /// The user of a machine that is up asks for the machines from this place of the line on.
    pub fn list_machines(&mut self, host: HostIndex, ticket: u64, first: u64) {
        if self.host(host).is_up() {
            let (now, around) = (self.now, Arc::clone(&self.around));
            self.shard_of(host).list_machines(host, (ticket, first), now, &around);
            self.exchange();
        }
    }

    /// The pages of machines that have come since the last call.
    pub fn take_listed(&mut self) -> Vec<Listed> {
        self.shards.iter_mut().flat_map(|shard| mem::take(&mut shard.listed)).collect()
    }

    /// Messages about which machines there are that each machine has sent so far, with their bytes; none of those that sent none.
    pub fn listing_messages(&self) -> BTreeMap<HostIndex, MessageCount> {
        self.shards.iter().flat_map(|shard| shard.counts.listings.iter().map(|(host, count)| (*host, *count))).collect()
    }
}
