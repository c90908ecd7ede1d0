//! Timed work. Deadlines live in the state; cancelling one is an assignment.
//!
//! A neighbour is spoken to a heartbeat after it was last *heard*, not a heartbeat after it was last asked: whichever
//! of two neighbours is first spares the other the ping, and a crash is still noticed a heartbeat after the last sign
//! of life.

use std::time::Duration;

use rand::RngExt;

use crate::leaf_set::Neighbour;
use crate::overlay::{NODES, Overlay, SIDES};
use crate::{Contact, Node, State, Time};

/// Lost peers probed in one round.
const GRAVES_PER_ROUND: usize = 4;

impl Overlay {
    pub(crate) fn run_timers(&mut self) {
        self.line.tombstones.purge(self.now);
        self.expire_probes();
        self.beat();
        self.spread();
        self.expire_lookup();
        self.begin_lookups();
        self.visit_graves();
        self.end_leases();
    }

    pub(crate) fn next_timer(&self) -> Option<Time> {
        let mut next = self.timers.lookup.min(self.timers.fingers).min(self.timers.graves);
        if self.line.leaf_set.len() == 0 {
            next = Time::MAX;
        }
        let beats = self.line.leaf_set.iter().filter(|n| !self.line.probes.contains(n.contact().peer));
        let beats = beats.map(|neighbour| self.due(neighbour)).min();
        let lookup = self.line.lookup.as_ref().and_then(|lookup| lookup.deadline());
        let joining = (self.state == State::Joining && self.line.leaf_set.len() > 0).then_some(self.join_until);
        let options = [self.line.probes.deadline(), beats, lookup, joining, self.timers.exchange];
        next = options.into_iter().flatten().chain(self.line.graveyard.deadline()).fold(next, Time::min);
        next = self.tree_deadline().map_or(next, |deadline| deadline.min(next));
        (next < Time::MAX).then_some(next)
    }

    fn due(&self, neighbour: &Neighbour) -> Time {
        let exchange = neighbour.exchanged + self.period(neighbour, self.config.exchange_ms);
        if self.line.leaf_set.is_adjacent(neighbour.contact().peer) {
            exchange.min(neighbour.heard + self.period(neighbour, self.config.heartbeat_ms))
        } else {
            exchange
        }
    }

    fn period(&self, neighbour: &Neighbour, period_ms: u64) -> Duration {
        Duration::from_millis(period_ms) * neighbour.pace_percent / 100
    }

    /// Speaks to the neighbours that are due.
    fn beat(&mut self) {
        let is_due = |neighbour: &&Neighbour| self.due(neighbour) <= self.now;
        let due: Vec<Contact> = self.line.leaf_set.iter().filter(is_due).map(|n| n.contact().clone()).collect();
        due.iter().for_each(|contact| self.probe(contact, self.config.probe_tries));
    }

    /// Speaks to one neighbour on either side after the leaf set grew.
    fn spread(&mut self) {
        if self.timers.exchange.is_none_or(|at| at > self.now) {
            return;
        }
        self.timers.exchange = None;
        let (below, above): (Vec<_>, Vec<_>) =
            self.line.leaf_set.iter().partition(|neighbour| neighbour.member.key < self.me.key);
        let mut chosen = Vec::new();
        for side in [below, above] {
            if !side.is_empty() {
                chosen.push(side[self.rng.random_range(0..side.len())].contact().clone());
            }
        }
        chosen.iter().for_each(|contact| self.probe(contact, self.config.probe_tries));
    }

    fn begin_lookups(&mut self) {
        if self.line.leaf_set.len() == 0 {
            return;
        }
        if self.timers.lookup <= self.now {
            let longest = Duration::from_millis(self.config.lookup_ms);
            let period = self.timers.lookup_period;
            self.timers.lookup = self.now + period * self.pace_percent() / 100;
            self.timers.lookup_period = (period * 2).min(longest);
            self.look_up_own_key(Vec::new());
        }
        if self.timers.fingers <= self.now {
            self.timers.fingers = self.after_ms(self.config.exchange_ms);
            self.look_up_finger();
        }
    }

    /// Asks some lost peers and the bootstrap contacts that are due whether they are back.
    fn visit_graves(&mut self) {
        while let Some(contact) = self.line.graveyard.due_bootstrap(self.now) {
            self.probe(&contact, self.config.probe_tries);
        }
        if self.timers.graves > self.now {
            return;
        }
        self.timers.graves = self.after_ms(self.config.graveyard_probe_ms);
        let mut graves = self.line.graveyard.graves();
        for _ in 0..GRAVES_PER_ROUND.min(graves.len()) {
            let grave = graves.swap_remove(self.rng.random_range(0..graves.len()));
            self.probe(&grave, 1);
        }
    }

    /// Unlinks the children that were silent for their lease.
    fn end_leases(&mut self) {
        let lease = Duration::from_millis(self.config.child_lease_ms);
        for side in SIDES {
            let slot = &mut self.tree.slots[side as usize];
            let ended = |slot: &&mut crate::link::Slot| {
                slot.contact.peer != self.me.contact.peer && slot.heard + lease <= self.now
            };
            if slot.as_mut().filter(ended).is_some() {
                *slot = None;
                self.news.children = true;
            }
        }
    }

    fn tree_deadline(&self) -> Option<Time> {
        let lease = Duration::from_millis(self.config.child_lease_ms);
        let remote = |contact: &Contact| contact.peer != self.me.contact.peer;
        let current = self.told();
        let slots = self.tree.slots.iter().flatten().filter(|slot| remote(&slot.contact));
        let slots = slots.map(|slot| {
            let lease_end = slot.heard + lease;
            if slot.lags(current) { lease_end.min(slot.push_after) } else { lease_end }
        });
        let uplinks = NODES.iter().map(|node: &Node| &self.tree.uplinks[*node as usize]);
        let uplinks = uplinks.filter(|uplink| self.state == State::Member && uplink.reports_to(self.me.contact.peer));
        slots.chain(uplinks.map(|uplink| uplink.next)).min()
    }
}
