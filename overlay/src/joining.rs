//! From a first contact to a place on the line, and back to being alone.
//!
//! A joining peer asks its contacts, looks its own key up, and probes the peers that would stand next to it; it is a
//! member once each of them has answered or failed. It completes its leaf set a second later, so that the links of its
//! nodes need not wait for that.

use std::time::Duration;

use crate::identity::{Member, PositionKey};
use crate::overlay::Overlay;
use crate::state::State;

/// Neighbours on either side that a joining peer verifies; the others follow once it is a member.
const JOIN_SIDE_LEN: usize = 3;
/// A new member completes its leaf set after so long: the links of its nodes come first. Our choice.
const SETTLE_IN: Duration = Duration::from_secs(1);
/// A joining peer becomes a member after so long even if candidates go on turning up.
const JOIN_MAX: Duration = Duration::from_secs(5);
/// First wait of a lonely peer before it tries its contacts again; doubles from there.
pub(crate) const JOIN_RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest such wait.
pub(crate) const JOIN_RETRY_MAX: Duration = Duration::from_secs(15);

impl Overlay {
    pub(crate) fn bootstrap(&mut self, contact: Member) {
        if contact.peer == self.me.peer || !contact.is_valid() || self.state == State::Leaving {
            return;
        }
        self.line.graveyard.add_bootstrap(contact.clone(), self.now + JOIN_RETRY_MIN, JOIN_RETRY_MIN);
        if self.state == State::Alone {
            self.begin_joining();
        }
        self.probe(&contact, self.config.probe_tries);
    }

    fn begin_joining(&mut self) {
        self.state = State::Joining;
        self.line.looked_up = false;
        self.line.ends = [false; 2];
        self.join_until = self.now + JOIN_MAX;
    }

    /// Ends joining when the own key was looked up and no nearer peer is still being probed.
    pub(crate) fn advance_state(&mut self) {
        let is_alone = self.line.leaf_set.len() == 0;
        match self.state {
            State::Alone if !is_alone => {
                self.begin_joining();
                self.look_up_own_key(Vec::new());
            }
            State::Member if is_alone => self.be_alone(),
            State::Joining if is_alone => {
                if self.line.lookup.is_none() && self.line.probes.is_empty() {
                    self.be_alone();
                }
            }
            State::Joining => {
                let settled = self.line.looked_up && self.line.lookup.is_none() && !self.awaits_neighbour();
                if settled || self.now >= self.join_until {
                    self.state = State::Member;
                    self.tree.changed = true;
                    self.notices.joined = true;
                    // Now ask for the neighbours' whole leaf sets: the neighbours next to us and the links came first.
                    self.forget_seen();
                    self.settle_until = self.now + self.pace(SETTLE_IN);
                    self.timers.exchange = Some(self.settle_until);
                }
            }
            State::Alone | State::Member | State::Leaving | State::Left => {}
        }
    }

    /// The last neighbour is gone: ask the bootstrap contacts, and lost peers, again soon.
    fn be_alone(&mut self) {
        self.state = State::Alone;
        self.tree.changed = true;
        self.line.ends = [true; 2];
        let soon = self.now + JOIN_RETRY_MIN;
        self.line.graveyard.ask_bootstraps_at(soon, JOIN_RETRY_MIN);
        self.timers.graves = self.timers.graves.min(soon);
        self.look_up_in_doubt();
    }

    /// Whether a peer that would stand next to us is being verified.
    fn awaits_neighbour(&self) -> bool {
        let nearer = |key: PositionKey| {
            let (pred, succ) = (self.line.leaf_set.predecessor(), self.line.leaf_set.successor());
            if key < self.key { pred.is_none_or(|pred| pred.key < key) } else { succ.is_none_or(|succ| key < succ.key) }
        };
        self.line.probes.iter().any(|probe| nearer(probe.contact.key(self.grid)))
    }

    /// Whether a peer at `key` that is not in the leaf set should be verified to get into it.
    pub(crate) fn needs(&self, key: &PositionKey) -> bool {
        let arrives = self.state == State::Joining || self.now < self.settle_until;
        self.line.leaf_set.wants(key) && (!arrives || self.is_near(key))
    }

    /// Whether a joining peer needs this one at once: few peers, known or being probed, stand between.
    fn is_near(&self, key: &PositionKey) -> bool {
        let me = self.key;
        let between = |other: &PositionKey| (*key < *other && *other < me) || (me < *other && *other < *key);
        let known = self.line.leaf_set.iter().filter(|neighbour| between(&neighbour.key)).count();
        known < JOIN_SIDE_LEN && {
            let probed = self.line.probes.iter().filter(|probe| {
                self.line.leaf_set.get(probe.contact.peer).is_none() && between(&probe.contact.key(self.grid))
            });
            known + probed.count() < JOIN_SIDE_LEN
        }
    }
}
