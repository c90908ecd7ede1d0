//! Users of bags without an end: they save results as these come, and some of them say what is not true.

use std::time::Duration;

use idlewood_scheduler::{BagId, Event, Message};

use super::shard::{Occurrence, Shard};
use super::surroundings::Surroundings;
use crate::event_queue::HostIndex;

/// How often results are saved: our choice, for the agent's user asks for more as soon as some have come.
const DRAIN_EVERY: Duration = Duration::from_secs(10);

impl Shard {
    /// Results of a bag that was submitted here are saved from now on.
    pub(super) fn drain_later(&mut self, host: HostIndex, bag: BagId) {
        let (now, life) = (self.now, self.host(host).life);
        self.cause(host, now + DRAIN_EVERY, host, Occurrence::Drains { life, bag });
    }

    /// The same of all bags of a machine that has started.
    pub(super) fn begin_to_drain(&mut self, host: HostIndex) {
        let bags = self.host(host).peer().into_iter().flat_map(|peer| peer.bags());
        let open: Vec<BagId> = bags.filter(|bag| bag.endless.is_some()).map(|bag| bag.bag.id).collect();
        open.into_iter().for_each(|bag| self.drain_later(host, bag));
    }

    /// A user saves the results that have come, and looks again later.
    pub(super) fn drain(&mut self, host: HostIndex, bag: BagId, around: &Surroundings) {
        let Some(peer) = self.host(host).peer().filter(|peer| peer.bag(bag).is_some()) else { return };
        let (done, failed) = peer.over(bag);
        let tasks = done.union(&failed);
        if !tasks.is_empty() {
            self.give(host, Event::Drained { bag, tasks }, around);
        }
        self.drain_later(host, bag);
    }

    /// Makes what a machine announces of its own bag what its user wants others to believe.
    pub(super) fn falsify(&self, host: HostIndex, message: &mut Message, around: &Surroundings) {
        let Message::Announce { bag, .. } = message else { return };
        let given = around.bags.get(&bag.bag).and_then(|(_, given)| given.endless);
        if let Some(false_one) = given.filter(|given| given.is_false() && bag.submitter.peer == self.host(host).id) {
            bag.task_mops *= false_one.announces_mops_percent / 100.0;
            bag.task_bytes *= false_one.announces_bytes_percent / 100.0;
        }
    }
}
