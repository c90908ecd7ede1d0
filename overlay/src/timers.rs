//! Timed work. Deadlines live in the state; cancelling one is an assignment.
//!
//! Each peer pings each of its two neighbours once in a heartbeat, and they it, in turns: a link is silent for half a
//! heartbeat, the first to speak spares the other the ping, and a crash is noticed by the first of all peers that the
//! dead one would have pinged. `next_timer` reads a few words only: it runs after every event.

use std::time::Duration;

use rand::RngExt;

use crate::link::Slot;
use crate::node::{NODES, SIDES};
use crate::overlay::Overlay;
use crate::state::State;
use crate::time::Time;

/// Lost peers probed in one round.
const GRAVES_PER_ROUND: usize = 4;

/// How many times more often a peer that may have lost sight of part of the line looks itself up.
const DOUBT_HURRY: u32 = 6;

impl Overlay {
    pub(crate) fn run_timers(&mut self) {
        self.line.tombstones.purge(self.now);
        self.forget_handed();
        self.expire_probes();
        self.beat();
        self.spread();
        self.expire_lookup();
        self.begin_lookups();
        self.visit_graves();
        self.end_leases();
    }

    pub(crate) fn next_timer(&self) -> Time {
        let mut next = self.line.leaf_set.next_due().min(self.line.probes.deadline());
        if self.line.leaf_set.len() > 0 || self.line.fingers.knows_any() {
            next = next.min(self.timers.lookup).min(self.timers.fingers);
            if self.line.leaf_set.len() > 0 && self.state == State::Joining {
                next = next.min(self.join_until);
            }
        }
        if self.line.graveyard.has_graves() {
            next = next.min(self.timers.graves);
        }
        if let Some(lookup) = &self.line.lookup {
            next = next.min(lookup.deadline());
        }
        let options = [self.timers.exchange, self.line.graveyard.deadline()];
        next = options.into_iter().flatten().fold(next, Time::min);
        next.min(self.tree.next)
    }

    /// Pings the neighbours that are due.
    fn beat(&mut self) {
        while let Some(contact) = self.line.leaf_set.due(self.now).cloned() {
            if self.line.probes.get(contact.peer).is_none() {
                self.probe(&contact, self.config.probe_tries);
            }
            // The ping counts even if there was no room for another probe: the neighbour's turn comes after this one,
            // or next time.
            let (now, probed) = (self.now, self.line.probes.get(contact.peer).is_some());
            self.line.leaf_set.update(contact.peer, |neighbour| {
                neighbour.probed = probed;
                if !probed {
                    (neighbour.heard, neighbour.exchanged) = (now, now);
                }
            });
        }
    }

    /// Sends the leaf set to one neighbour on either side after it grew.
    fn spread(&mut self) {
        if self.timers.exchange.is_none_or(|at| at > self.now) {
            return;
        }
        self.timers.exchange = None;
        let mut chosen = Vec::new();
        for side in self.line.leaf_set.sides() {
            if !side.is_empty() {
                chosen.push(side[self.rng.random_range(0..side.len())].contact().clone());
            }
        }
        chosen.iter().for_each(|contact| self.probe(contact, self.config.probe_tries));
    }

    fn begin_lookups(&mut self) {
        // A peer that lost all neighbours at once may still know peers far away.
        let is_lonely = self.line.leaf_set.len() == 0;
        if is_lonely && !self.line.fingers.knows_any() {
            return;
        }
        if self.timers.lookup <= self.now {
            let is_doubtful = !is_lonely && self.line.leaf_set.is_doubtful();
            let longest = Duration::from_millis(self.config.lookup_ms) / if is_doubtful { DOUBT_HURRY } else { 1 };
            let period = self.timers.lookup_period;
            self.timers.lookup = self.now + period * self.pace_percent() / 100;
            self.timers.lookup_period = (period * 2).min(longest);
            if is_doubtful {
                self.look_up_in_doubt();
            } else {
                self.look_up_own_key(Vec::new());
            }
        }
        if self.timers.fingers <= self.now {
            self.look_up_finger();
            self.timers.fingers = self.now + self.timers.fingers_period * self.pace_percent() / 100;
        }
    }

    /// Asks some lost peers, and the bootstrap contacts that are due, whether they are back.
    fn visit_graves(&mut self) {
        while self.line.graveyard.deadline().is_some_and(|next| next <= self.now)
            && let Some(contact) = self.line.graveyard.due_bootstrap(self.now)
        {
            self.probe(&contact, self.config.probe_tries);
        }
        if self.timers.graves > self.now {
            return;
        }
        let is_lonely = self.line.leaf_set.len() == 0;
        let period_ms = if is_lonely { self.config.heartbeat_ms } else { self.config.graveyard_probe_ms };
        self.timers.graves = self.after_ms(period_ms);
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
            let ended = |slot: &&mut Box<Slot>| !slot.is_own_leaf() && slot.heard + lease <= self.now;
            if slot.as_mut().filter(ended).is_some() {
                *slot = None;
                self.tree.changed = true;
                self.notices.children = true;
            }
        }
    }

    /// When a link has timed work; messages meanwhile only postpone it.
    pub(crate) fn tree_deadline(&self) -> Time {
        let lease = Duration::from_millis(self.config.child_lease_ms);
        let announced = self.tree.announced;
        let mut next = Time::MAX;
        for slot in self.tree.slots.iter().flatten().filter(|slot| !slot.is_own_leaf()) {
            next = next.min(slot.heard + lease);
            if slot.lags(announced) {
                next = next.min(slot.push_after);
            }
        }
        if self.state == State::Member {
            for uplink in NODES.map(|node| &self.tree.uplinks[node as usize]) {
                if uplink.reports() {
                    next = next.min(uplink.next);
                }
            }
        }
        next
    }
}
