//! Keeping the line: verify before adopt, crash, leave, incarnations.
//!
//! What we hear *of* a peer only makes us probe it; what we hear *from* it counts as life; only its answer to our
//! probe lets it into the leaf set (I1). Without that rule dead peers are re-adopted for ever.

use std::time::Duration;

use rand::RngExt;

use crate::leaf_set::Neighbour;
use crate::overlay::{NODES, Overlay};
use crate::probe::{Expired, Probe};
use crate::{Body, Contact, Member, PeerId, PositionKey, State};

/// A candidate that did not answer is not probed again by hearsay for so long.
const CANDIDATE_TOMBSTONE: Duration = Duration::from_secs(10);
/// Who spoke so recently is not probed because somebody else crashed.
const FRESH: Duration = Duration::from_secs(1);
/// A joining peer becomes a member after so long even if candidates go on turning up.
const JOIN_MAX: Duration = Duration::from_secs(5);

impl Overlay {
    // ---- joining and state ----

    pub(crate) fn bootstrap(&mut self, contact: Contact) {
        if contact.peer == self.me.contact.peer || !contact.is_valid() || self.state == State::Leaving {
            return;
        }
        let period = Duration::from_millis(self.config.heartbeat_ms);
        let next = self.now + period;
        self.line.graveyard.add_bootstrap(contact.clone(), next, period);
        if self.state == State::Alone {
            self.begin_joining();
        }
        self.probe(&contact, self.config.probe_tries);
    }

    fn begin_joining(&mut self) {
        self.state = State::Joining;
        self.line.looked_up = false;
        self.join_until = self.now + JOIN_MAX;
    }

    /// Joining ends when the own key was looked up and nobody nearer is still to answer.
    pub(crate) fn advance_state(&mut self) {
        let is_alone = self.line.leaf_set.len() == 0;
        match self.state {
            State::Alone if !is_alone => {
                self.begin_joining();
                self.look_up_own_key(Vec::new());
            }
            State::Member if is_alone => self.state = State::Alone,
            State::Joining if is_alone => {
                if self.line.lookup.is_none() && self.line.probes.is_empty() {
                    self.state = State::Alone;
                }
            }
            State::Joining => {
                let settled = self.line.looked_up && self.line.lookup.is_none() && !self.awaits_neighbour();
                if settled || self.now >= self.join_until {
                    self.state = State::Member;
                    self.news.joined = true;
                }
            }
            State::Alone | State::Member | State::Leaving | State::Left => {}
        }
    }

    /// Whether a peer that would stand next to us is being verified.
    fn awaits_neighbour(&self) -> bool {
        let nearer = |key: PositionKey| {
            let (pred, succ) = (self.line.leaf_set.predecessor(), self.line.leaf_set.successor());
            if key < self.me.key {
                pred.is_none_or(|pred| pred.member.key < key)
            } else {
                succ.is_none_or(|succ| key < succ.member.key)
            }
        };
        self.line.probes.iter().any(|probe| nearer(PositionKey::new(self.grid, probe.contact.peer)))
    }

    // ---- hearing ----

    /// Takes a message of `sender` as a sign of life. False when it comes from a life that is over.
    ///
    /// An answer to a probe is left to [`Self::on_ack`], which still needs that probe.
    pub(crate) fn hear(&mut self, sender: &Contact, is_ack: bool) -> bool {
        let member = Member::new(self.grid, sender.clone());
        let known = self.line.leaf_set.get(sender.peer).map(|neighbour| neighbour.contact().clone());
        if let Some(known) = &known {
            if known.incarnation > sender.incarnation {
                self.counters.stale_life += 1;
                self.send(sender.clone(), Body::Hint(vec![known.clone()]));
                return false;
            }
            if known.incarnation == sender.incarnation {
                self.refresh(sender, is_ack);
            } else if !is_ack {
                self.probe(sender, self.config.probe_tries);
            }
        } else if let Some(stone) = self.line.tombstones.covering(sender)
            && (stone.left || stone.incarnation > sender.incarnation)
        {
            let latest = Contact { incarnation: stone.incarnation, ..sender.clone() };
            self.counters.stale_life += 1;
            self.send(sender.clone(), Body::Hint(vec![latest]));
            return false;
        }
        if known.is_none() && !is_ack && (self.line.leaf_set.wants(&member.key) || self.line.graveyard.holds(sender)) {
            self.probe(sender, self.config.probe_tries);
        }
        self.line.fingers.note(member, self.now);
        true
    }

    fn refresh(&mut self, sender: &Contact, is_ack: bool) {
        self.line.leaf_set.readdress(sender);
        if let Some(neighbour) = self.line.leaf_set.get_mut(sender.peer) {
            neighbour.heard = self.now;
        }
        let answers = |probe: &Probe| !is_ack && probe.contact.incarnation <= sender.incarnation;
        if self.line.probes.get(sender.peer).is_some_and(answers) {
            self.line.probes.end(sender.peer);
        }
    }

    /// Takes note of a peer by hearsay: verifies it if it belongs next to us.
    pub(crate) fn consider(&mut self, contact: &Contact) {
        if contact.peer == self.me.contact.peer {
            if contact.incarnation > self.me.contact.incarnation {
                self.rise_above(contact.incarnation);
            }
            return;
        }
        if self.line.tombstones.covering(contact).is_some() {
            return;
        }
        let is_news = match self.line.leaf_set.get(contact.peer) {
            Some(known) => known.contact().incarnation < contact.incarnation,
            None => self.line.leaf_set.wants(&PositionKey::new(self.grid, contact.peer)),
        };
        if is_news {
            self.probe(contact, self.config.probe_tries);
        }
    }

    /// Somebody knows this life, or a later one, as over: begin a newer one and say so.
    fn rise_above(&mut self, incarnation: u64) {
        self.me.contact.incarnation = incarnation.saturating_add(1);
        self.counters.risen += 1;
        self.probe_leaf_set();
    }

    // ---- probing ----

    /// Asks a peer for an answer unless that is under way.
    pub(crate) fn probe(&mut self, contact: &Contact, tries_max: u32) {
        if contact.peer == self.me.contact.peer
            || self.line.probes.get(contact.peer).is_some_and(|probe| probe.contact.incarnation >= contact.incarnation)
        {
            return;
        }
        let round_trip = self.line.leaf_set.get(contact.peer).and_then(|neighbour| neighbour.round_trip);
        let timeout = self.config.probe_timeout(round_trip);
        let nonce = self.rng.random();
        let expires = self.now + timeout;
        let probe = Probe { contact: contact.clone(), nonce, tries: 1, tries_max, sent: self.now, expires, timeout };
        if self.line.probes.begin(probe) {
            self.ping(contact.clone(), nonce);
        } else {
            self.counters.probes_dropped += 1;
        }
    }

    fn ping(&mut self, to: Contact, nonce: u32) {
        let seen = self.line.leaf_set.get(to.peer).map_or(0, |neighbour| neighbour.seen);
        let mine = self.line.leaf_set.digest();
        self.send(to, Body::Ping { nonce, mine, seen });
    }

    /// Probes the whole leaf set but those that spoke just now.
    fn probe_leaf_set(&mut self) {
        let silent = |neighbour: &&Neighbour| self.now.since(neighbour.heard) > FRESH;
        let contacts: Vec<_> = self.line.leaf_set.iter().filter(silent).map(|n| n.contact().clone()).collect();
        contacts.iter().for_each(|contact| self.probe(contact, self.config.probe_tries));
    }

    pub(crate) fn expire_probes(&mut self) {
        while let Some(expired) = self.line.probes.expire(self.now) {
            match expired {
                Expired::Again { to, nonce } => self.ping(to, nonce),
                Expired::Failed(contact) => self.probe_failed(&contact),
            }
        }
    }

    /// Probes a peer that may be gone, whatever it is to us.
    pub(crate) fn doubt(&mut self, peer: PeerId) {
        let contact = self.known_contact(peer);
        if let Some(contact) = contact {
            self.probe(&contact, self.config.probe_tries);
        }
    }

    fn known_contact(&self, peer: PeerId) -> Option<Contact> {
        let neighbour = self.line.leaf_set.get(peer).map(|neighbour| neighbour.contact());
        let slots = self.tree.slots.iter().flatten().map(|slot| &slot.contact);
        let parents = self.tree.uplinks.iter().filter_map(|uplink| uplink.target.as_ref());
        neighbour.into_iter().chain(slots).chain(parents).find(|contact| contact.peer == peer).cloned()
    }

    pub(crate) fn on_ping(&mut self, sender: &Contact, nonce: u32, mine: u64, seen: u64) {
        let digest = self.line.leaf_set.digest();
        let set = (seen != digest).then(|| self.neighbours().cloned().collect());
        self.send(sender.clone(), Body::Ack { nonce, mine: digest, set });
        let Some(neighbour) = self.line.leaf_set.get_mut(sender.peer) else { return };
        if neighbour.seen == mine {
            neighbour.exchanged = self.now;
        } else {
            self.probe(sender, self.config.probe_tries);
        }
    }

    pub(crate) fn on_ack(&mut self, sender: &Contact, nonce: u32, mine: u64, set: Option<Vec<Contact>>) {
        let is_answer = self.line.probes.get(sender.peer).is_some_and(|probe| probe.nonce == nonce);
        if is_answer && let Some(probe) = self.line.probes.end(sender.peer) {
            self.adopt(sender, &probe);
        }
        if let Some(neighbour) = self.line.leaf_set.get_mut(sender.peer) {
            neighbour.exchanged = self.now;
            if set.is_some() {
                neighbour.seen = mine;
            }
        } else if !is_answer {
            return;
        }
        set.iter().flatten().for_each(|contact| self.consider(contact));
    }

    /// `sender` answered our probe: it lives, at this incarnation.
    fn adopt(&mut self, sender: &Contact, probe: &Probe) {
        let sample = (probe.tries == 1).then(|| self.now.since(probe.sent));
        self.line.tombstones.clear(sender.peer);
        let was_lost = self.line.graveyard.forget(sender.peer);
        let is_bootstrap = self.line.graveyard.bootstrap_answered(sender, self.now);
        let wanted = self.line.leaf_set.wants(&PositionKey::new(self.grid, sender.peer));
        match self.line.leaf_set.get_mut(sender.peer) {
            Some(known) if known.contact().incarnation == sender.incarnation => {
                let smooth = |old: Duration, new: Duration| (old * 7 + new) / 8;
                known.round_trip = match (known.round_trip, sample) {
                    (Some(old), Some(new)) => Some(smooth(old, new)),
                    (old, new) => new.or(old),
                };
            }
            Some(_) => self.insert(sender, sample),
            None if wanted => self.insert(sender, sample),
            None => {}
        }
        if was_lost {
            for grave in self.line.graveyard.graves() {
                self.probe(&grave, 1);
            }
        }
        if was_lost || is_bootstrap {
            self.look_up_own_key(vec![sender.clone()]);
        }
    }

    fn insert(&mut self, contact: &Contact, round_trip: Option<Duration>) {
        let member = Member::new(self.grid, contact.clone());
        let pace_percent = self.pace_percent();
        let (heard, exchanged) = (self.now, self.now);
        self.line.leaf_set.insert(Neighbour { member, heard, exchanged, round_trip, seen: 0, pace_percent });
        self.spread_soon();
        if self.line.leaf_set.is_adjacent(contact.peer) {
            self.look_up_soon();
        }
    }

    /// The leaf set grew: tell some of it before long, so that two lines that met merge.
    fn spread_soon(&mut self) {
        if self.timers.exchange.is_none() {
            self.timers.exchange = Some(self.now + Duration::from_millis(self.rng.random_range(200..=400)));
        }
    }

    // ---- losing ----

    fn probe_failed(&mut self, contact: &Contact) {
        let retry = Duration::from_millis(self.bootstrap_retry_ms());
        self.line.graveyard.bootstrap_failed(contact.peer, self.now, retry);
        self.line.fingers.remove(contact.peer);
        let known = self.line.leaf_set.get(contact.peer).map(|neighbour| neighbour.contact().clone());
        match known {
            Some(known) if known.incarnation <= contact.incarnation => {
                self.counters.crashes_found += 1;
                self.bury(&known);
                self.send(known.clone(), Body::Dead(known.clone()));
                let others: Vec<_> = self.neighbours().cloned().collect();
                others.into_iter().for_each(|to| self.send(to, Body::Dead(known.clone())));
                self.probe_leaf_set();
            }
            Some(_) => {}
            None => {
                self.line.tombstones.set(contact, self.now + CANDIDATE_TOMBSTONE, false);
                self.suspect_parent(contact);
            }
        }
    }

    /// A lonely peer asks its bootstrap contacts often.
    fn bootstrap_retry_ms(&self) -> u64 {
        if self.line.leaf_set.len() == 0 { self.config.heartbeat_ms } else { self.config.graveyard_probe_ms }
    }

    /// A parent out of our sight fell silent: whoever stands next to it should look.
    fn suspect_parent(&mut self, lost: &Contact) {
        for node in NODES {
            let uplink = &self.tree.uplinks[node as usize];
            let Some(tree) = uplink.tree.as_ref().filter(|_| uplink.target.as_ref() == Some(lost)) else { continue };
            let boundary = tree.span.l.clone();
            if boundary.peer != self.me.contact.peer {
                self.send(boundary, Body::Suspect(lost.clone()));
            }
        }
    }

    fn bury(&mut self, contact: &Contact) {
        self.forget(contact.peer);
        let until = self.now + Duration::from_millis(self.config.tombstone_ms);
        self.line.tombstones.set(contact, until, false);
        self.line.graveyard.bury(contact.clone(), self.now);
    }

    fn forget(&mut self, peer: PeerId) {
        if self.line.leaf_set.is_adjacent(peer) {
            self.look_up_soon();
        }
        self.line.leaf_set.remove(peer);
        self.line.fingers.remove(peer);
        self.line.probes.end(peer);
    }

    pub(crate) fn on_dead(&mut self, contact: &Contact) {
        if contact.peer == self.me.contact.peer {
            if contact.incarnation >= self.me.contact.incarnation {
                self.rise_above(contact.incarnation);
            }
            return;
        }
        let Some(known) = self.line.leaf_set.get(contact.peer) else { return };
        if known.contact().incarnation > contact.incarnation {
            return;
        }
        if self.line.leaf_set.is_adjacent(contact.peer) {
            self.doubt(contact.peer);
        } else {
            let known = known.contact().clone();
            self.bury(&known);
        }
    }

    pub(crate) fn on_leave(&mut self, sender: &Contact, near: Vec<Contact>) {
        if self.line.leaf_set.get(sender.peer).is_some_and(|known| known.contact().incarnation > sender.incarnation) {
            self.counters.stale_life += 1;
            return;
        }
        self.forget(sender.peer);
        self.line.graveyard.forget(sender.peer);
        let until = self.now + Duration::from_millis(self.config.tombstone_ms);
        self.line.tombstones.set(sender, until, true);
        near.iter().for_each(|contact| self.consider(contact));
    }

    // ---- leaving ----

    pub(crate) fn leave(&mut self) {
        if self.state == State::Leaving {
            return;
        }
        let mut told: Vec<Contact> = self.neighbours().cloned().collect();
        let slots = self.tree.slots.iter().flatten().map(|slot| &slot.contact);
        let parents = self.tree.uplinks.iter().filter_map(|uplink| uplink.target.as_ref());
        for contact in slots.chain(parents) {
            if contact.peer != self.me.contact.peer && told.iter().all(|other| other.peer != contact.peer) {
                told.push(contact.clone());
            }
        }
        self.state = State::Leaving;
        self.leave_until = self.now + Duration::from_millis(self.config.leave_linger_ms);
        if told.is_empty() {
            self.leave_until = self.now;
        }
        told.into_iter().for_each(|contact| self.say_goodbye(contact));
    }

    pub(crate) fn say_goodbye(&mut self, to: Contact) {
        let near = [self.predecessor(), self.successor()].into_iter().flatten().cloned().collect();
        self.send(to, Body::Leave(near));
    }

    pub(crate) fn linger(&mut self) {
        if self.now >= self.leave_until {
            self.state = State::Left;
            self.news.left = true;
        }
    }
}
