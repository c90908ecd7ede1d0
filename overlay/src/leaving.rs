//! Leaving in good order, and coming back.
//!
//! A leaving peer tells its neighbours, children and parents, hands over its router's children and its end of the line,
//! and stays for a moment to repeat the farewell to peers that missed it. Repair then takes a message instead of some
//! seconds.

use std::time::Duration;

use rand::RngExt;

use crate::identity::{Contact, Member};
use crate::joining::JOIN_RETRY_MIN;
use crate::message::{Body, Leave};
use crate::overlay::Overlay;
use crate::state::State;

impl Overlay {
    pub(crate) fn on_leave(&mut self, sender: &Member, Leave { near, ends }: Leave) {
        // The peer has come back since: its late farewell does not count.
        if self.known_contact(sender.peer).is_some_and(|known| known.incarnation > sender.incarnation) {
            self.counters.stale_life += 1;
            return;
        }
        let sides = [self.pred(), self.succ()].map(|next| next.is_some_and(|next| next.peer == sender.peer));
        self.forget(sender.peer);
        self.end_probe(sender.peer);
        self.inherit_ends(sides, ends);
        self.line.graveyard.forget(sender.peer);
        let until = self.now + Duration::from_millis(self.config.tombstone_ms);
        self.line.tombstones.set(sender, until, true);
        near.iter().for_each(|contact| self.consider(contact));
    }

    /// The peer next to us on the sides `was_next` leaves: where the line ended with it, the line ends with us now.
    fn inherit_ends(&mut self, was_next: [bool; 2], its: [bool; 2]) {
        for (side, neighbours) in self.line.leaf_set.sides().iter().enumerate() {
            self.line.ends[side] |= was_next[side] && its[side] && neighbours.is_empty();
        }
    }

    pub(crate) fn leave(&mut self) {
        if self.state == State::Leaving {
            return;
        }
        let mut informed: Vec<Member> = self.near().cloned().collect();
        let slots = self.tree.slots.iter().flatten().map(|slot| &slot.contact);
        let parents = self.tree.uplinks.iter().filter_map(|uplink| uplink.target.as_ref());
        for contact in slots.chain(parents) {
            if contact.peer != self.me.peer && informed.iter().all(|other| other.peer != contact.peer) {
                informed.push(contact.clone());
            }
        }
        if let Some(pred) = self.pred().cloned() {
            self.hand_over(pred);
        }
        self.state = State::Leaving;
        self.leave_until = self.now + Duration::from_millis(self.config.leave_linger_ms);
        if informed.is_empty() {
            self.leave_until = self.now;
        }
        informed.into_iter().for_each(|contact| self.say_goodbye(contact));
    }

    /// Begins a newer incarnation after a leave. Peers that heard of the leave count the old one as over, so we keep
    /// nothing of our place but peers to join through.
    pub(crate) fn come_back(&mut self) {
        if !matches!(self.state, State::Leaving | State::Left) {
            return;
        }
        let known: Vec<Member> = self.near().cloned().collect();
        let incarnation = self.me.incarnation.saturating_add(1);
        let me = Contact { incarnation, ..(*self.me).clone() };
        let life = Self::new(self.config.clone(), self.grid, me, self.rng.random(), self.now, self.codec);
        let last = std::mem::replace(self, life);
        (self.outbox, self.counters, self.born) = (last.outbox, last.counters, last.born);
        // The configured contacts come first: the graveyard is bounded.
        self.line.graveyard = last.line.graveyard;
        (self.notices.place, self.notices.children, self.notices.root) = (true, true, true);
        known.into_iter().for_each(|contact| self.bootstrap(contact));
        self.line.graveyard.ask_bootstraps_at(self.now, JOIN_RETRY_MIN);
    }

    pub(crate) fn say_goodbye(&mut self, to: Member) {
        let near = [self.pred(), self.succ()].into_iter().flatten().cloned().collect();
        let ends = self.line.ends;
        self.send(to, Body::Leave(Leave { near, ends }));
    }

    pub(crate) fn linger(&mut self) {
        if self.now >= self.leave_until {
            self.state = State::Left;
            self.notices.left = true;
        }
    }
}
