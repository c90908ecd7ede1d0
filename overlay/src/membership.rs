//! Who is believed to be there: what messages, answers and silence show of other peers.
//!
//! A peer that others name is only probed; a message *from* a peer shows that it lives; only its answer to our probe
//! lets it into the leaf set (I1). A peer that answers no probe is buried: its neighbours hear so, and it does, too, in
//! case that we are wrong.

use std::time::Duration;

use rand::RngExt;

use crate::finger::Fingers;
use crate::graveyard::{LONELY_WAIT_MAX, Lost};
use crate::identity::{Contact, Member, PeerId, PositionKey};
use crate::line::Line;
use crate::links::Links;
use crate::local::Local;
use crate::lookups::Lookups;
use crate::message::Body;
use crate::nearest::named_near;
use crate::path::Path;
use crate::probe::{Expired, Probe};
use crate::time::Time;

/// A candidate that did not answer is not probed for hearsay again before this.
const CANDIDATE_TOMBSTONE: Duration = Duration::from_secs(10);

/// The peers that stand on the line, may stand there, or did.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) line: Line,
    pub(crate) fingers: Fingers,
    pub(crate) lost: Lost,
    pub(crate) lookups: Lookups,
}

impl Membership {
    /// Of a peer that knows no other.
    pub(crate) fn new(local: &mut Local) -> Self {
        // Two of the parts draw random numbers: another order would give another simulation.
        Self {
            line: Line::new(local),
            fingers: Fingers::new(local.key, local.config.fingers_per_bucket),
            lookups: Lookups::new(local),
            lost: Lost::new(local),
        }
    }

    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        self.line.assert_consistent();
        self.fingers.assert_consistent();
        self.lost.assert_consistent();
        self.lookups.assert_consistent();
    }

    // ---- timed work ----

    /// When there is timed work. Reads a few words only: it runs after every event.
    pub(crate) fn deadline(&self, local: &Local) -> Time {
        let mut next = self.line.deadline().min(self.lost.deadline()).min(self.lookups.deadline());
        if !self.line.is_lonely() || self.fingers.knows_any() {
            next = next.min(self.lookups.next());
        }
        if !self.line.is_lonely() && local.life.is_joining() {
            next = next.min(local.life.join_until);
        }
        next
    }

    /// Does the timed work that is due.
    ///
    /// Each peer pings each of its two neighbours once in a heartbeat, and they it, in turns: a link is silent for half
    /// a heartbeat, the first to speak spares the other the ping, and a crash is noticed by the first of all peers that
    /// the dead one would have pinged.
    pub(crate) fn run_timers(&mut self, local: &mut Local, links: &Links) {
        self.lost.tombstones.purge(local.now);
        self.expire_probes(local, links);
        self.line.beat(local);
        self.line.spread(local);
        let nearest = self.lookups.expire(local, &mut self.line, &mut self.fingers);
        self.consider_all(local, &nearest);
        // A peer that lost all neighbours at once may still know peers far away.
        if !self.line.is_lonely() || self.fingers.knows_any() {
            let nearest = self.lookups.begin_own(local, &mut self.line, &self.fingers);
            self.consider_all(local, &nearest);
            let nearest = self.lookups.begin_finger(local, &mut self.line, &self.fingers);
            self.consider_all(local, &nearest);
        }
        self.lost.visit(local, &mut self.line);
    }

    fn expire_probes(&mut self, local: &mut Local, links: &Links) {
        while let Some(expired) = self.line.probes.expire(local.now, local.timeout_max()) {
            match expired {
                Expired::Retry { to, nonce, tries } => {
                    if tries == 2 && self.line.leaf_set.is_adjacent(to.peer) {
                        self.line.suspect(local, links, &to);
                    }
                    self.line.ping(local, to, nonce, true);
                }
                Expired::Failed { contact, waited } => {
                    self.line.leaf_set.update(contact.peer, |neighbour| {
                        neighbour.probed = false;
                        // If it lives, its answer takes longer than that: it is not to be lost again for the same.
                        neighbour.path.sample(waited);
                    });
                    self.probe_failed(local, links, &contact);
                }
            }
        }
    }

    // ---- hearing ----

    /// The sender of a message. If the message has no address, the one at which we reached or heard of the peer last.
    /// None if we do not know the peer.
    pub(crate) fn sender(
        &self,
        links: &Links,
        from: Member,
        incarnation: u64,
        address: Option<Box<str>>,
    ) -> Option<Member> {
        let says = |contact: &Member, address: &str| contact.incarnation == incarnation && *contact.address == *address;
        if let Some(address) = address {
            return Some(if says(&from, &address) {
                from
            } else {
                Contact { incarnation, address, ..(*from).clone() }.into()
            });
        }
        let known = self.line.known_contact(links, from.peer).or_else(|| self.fingers.get(from.peer))?;
        // The contact that we know may be hearsay, with a false nonce.
        Some(if says(known, &known.address) && known.nonce == from.nonce {
            known.clone()
        } else {
            Contact { incarnation, address: known.address.clone(), ..(*from).clone() }.into()
        })
    }

    /// Takes a message of `sender` as a sign of life. False when it comes from an incarnation that is over.
    ///
    /// An answer to a probe is handled by [`Self::on_ack`], which still needs that probe, and a stranger's ping by
    /// [`Self::on_ping`].
    pub(crate) fn hear(
        &mut self,
        local: &mut Local,
        links: &Links,
        sender: &Member,
        is_new_address: bool,
        body: &Body,
    ) -> bool {
        let is_ack = matches!(body, Body::Ack { .. });
        let Some(known) = self.line.leaf_set.get(sender.peer) else {
            return self.hear_other(local, links, sender, is_ack || matches!(body, Body::Ping { .. }));
        };
        let (incarnation, is_probed) = (known.contact().incarnation, known.probed);
        if incarnation > sender.incarnation {
            let known = known.contact().clone();
            local.counters.stale_life += 1;
            local.send(sender.clone(), Body::Hint(vec![known]));
            return false;
        }
        if incarnation < sender.incarnation {
            if !is_ack {
                self.line.probe(local, sender, local.config.probe_tries);
            }
            return true;
        }
        if is_new_address && self.line.leaf_set.readdress(sender.peer, &sender.address) {
            // Reports go to the address in the tree.
            self.line.changed |= self.line.leaf_set.is_adjacent(sender.peer);
        }
        if is_probed && !is_ack {
            let answers = |probe: &Probe| probe.contact.incarnation <= sender.incarnation;
            if self.line.probes.get(sender.peer).is_some_and(answers) {
                self.line.end_probe(sender.peer);
            }
        }
        self.line.leaf_set.update(sender.peer, |neighbour| neighbour.heard = local.now);
        true
    }

    /// `hear` for a peer that is not a neighbour.
    fn hear_other(&mut self, local: &mut Local, links: &Links, sender: &Member, is_talk: bool) -> bool {
        if let Some(stone) = self.lost.tombstones.covering(sender, local.now)
            && (stone.left || stone.incarnation > sender.incarnation)
            && !stone.is_candidate
        {
            let latest = Contact { incarnation: stone.incarnation, ..(**sender).clone() }.into();
            local.counters.stale_life += 1;
            local.send(sender.clone(), Body::Hint(vec![latest]));
            return false;
        }
        if self.is_linked(local, links, sender) {
            return true;
        }
        if let Some(head) = self.fingers.heard(sender, local.now)
            && !self.lost.graveyard.holds(sender)
            && !self.line.leaf_set.may_want(head)
        {
            return true;
        }
        let key = sender.key(local.grid);
        // A joining peer hears of the neighbours that it needs in answers.
        let is_needed = !local.life.is_joining() && self.line.needs(local, &key);
        if !is_talk && (is_needed || self.lost.graveyard.holds(sender)) {
            self.line.probe(local, sender, local.config.probe_tries);
        }
        self.fingers.note(sender, key.head(), local.now);
        true
    }

    /// Whether a peer that is not a neighbour is a parent or child of ours, far enough away to be no candidate.
    fn is_linked(&self, local: &Local, links: &Links, sender: &Member) -> bool {
        let is_full = self.line.leaf_set.sides().iter().all(|side| side.len() == local.config.leaf_set_side_len);
        is_full
            && links.children().chain(links.parents()).any(|contact| contact == sender)
            && !self.lost.graveyard.holds(sender)
    }

    /// Takes note of a peer that others name: probes it if it belongs next to us.
    pub(crate) fn consider(&mut self, local: &mut Local, contact: &Member) {
        if contact.peer == local.me.peer {
            if contact.incarnation > local.me.incarnation {
                self.rise_above(local, contact.incarnation);
            }
            return;
        }
        if self.lost.tombstones.covering(contact, local.now).is_some() {
            return;
        }
        if self.line.leaf_set.get(contact.peer).is_none() {
            self.hear_of(local, contact);
        }
        let is_unverified = match self.line.leaf_set.get(contact.peer) {
            Some(known) => known.contact().incarnation < contact.incarnation,
            // It is being probed already: skip computing its place.
            None if self.line.is_probed(contact) => false,
            None => self.line.needs(local, &contact.key(local.grid)),
        };
        if is_unverified {
            self.line.probe(local, contact, local.config.probe_tries);
        }
    }

    /// As [`Self::consider`], of several.
    pub(crate) fn consider_all(&mut self, local: &mut Local, contacts: &[Member]) {
        contacts.iter().for_each(|contact| self.consider(local, contact));
    }

    /// Remembers a peer that others named.
    fn hear_of(&mut self, local: &mut Local, contact: &Member) {
        let pick = local.rng.random::<u32>();
        self.fingers.hear_of(contact, pick as usize);
    }

    /// A peer counts this incarnation of ours, or a later one, as over: begins a newer one and announces it.
    fn rise_above(&mut self, local: &mut Local, incarnation: u64) {
        if local.rise_above(incarnation) {
            self.line.changed = true;
            self.line.probe_leaf_set(local);
        }
    }

    // ---- pings and answers ----

    pub(crate) fn on_ping(&mut self, local: &mut Local, sender: Member, nonce: u32, mine: u32, seen: u32) {
        let line = &mut self.line;
        let (digest, tries) = (line.leaf_set.digest(), local.config.probe_tries);
        // A peer too far away to be a neighbour has no use for our leaf set.
        let (mut is_near, mut ask) = (true, None);
        match line.leaf_set.get(sender.peer).map(|neighbour| (neighbour.seen == mine, neighbour.seen == 0)) {
            Some((true, _)) => {
                line.leaf_set.update(sender.peer, |neighbour| neighbour.exchanged = local.now);
            }
            Some((false, is_new)) => {
                // The leaf sets of the two next to us suffice; those of the others are fetched once.
                is_near = seen == 0 || line.leaf_set.is_adjacent(sender.peer);
                if is_new || is_near {
                    ask = line.begin_probe(local, &sender, tries);
                } else {
                    line.leaf_set.update(sender.peer, |neighbour| neighbour.exchanged = local.now);
                }
            }
            None => {
                is_near = line.leaf_set.wants(&sender.key(local.grid));
                if is_near || self.lost.graveyard.holds(&sender) {
                    ask = line.begin_probe(local, &sender, tries);
                }
            }
        }
        line.answer(local, sender, nonce, seen != digest && is_near, ask);
    }

    pub(crate) fn on_ack(
        &mut self,
        local: &mut Local,
        sender: &Member,
        nonce: u32,
        mine: u32,
        set: Option<Vec<Member>>,
        ask: u32,
    ) {
        if ask > 0 {
            self.line.answer(local, sender.clone(), ask, true, None);
        }
        let is_answer = self.line.probes.get(sender.peer).is_some_and(|probe| probe.is_answered_by(nonce));
        if is_answer && let Some(probe) = self.line.end_probe(sender.peer) {
            // An answer to the first ping shows that we are not slow; after a retry we or the path may be.
            if probe.tries == 1 {
                local.feel_faster();
            }
            self.adopt(local, sender, probe.round_trip(nonce, local.now));
        } else if self.lost.tombstones.has_given_up(sender.peer, local.now) {
            // It answered too late: the path is longer than our wait for a stranger, or we are slow. With a longer wait
            // the next probe succeeds.
            local.feel_slower();
        }
        let is_neighbour = self.line.leaf_set.update(sender.peer, |neighbour| {
            neighbour.exchanged = local.now;
            neighbour.seen = if set.is_some() { mine } else { neighbour.seen };
        });
        if is_neighbour || is_answer {
            self.consider_all(local, set.as_deref().unwrap_or_default());
        }
    }

    /// `sender` answered our probe, after so long if that is known: it lives, at this incarnation.
    fn adopt(&mut self, local: &mut Local, sender: &Member, sample: Option<Duration>) {
        if let (Some(sample), None) = (sample, self.line.leaf_set.get(sender.peer)) {
            local.strangers.sample(sample);
        }
        self.lost.tombstones.clear(sender.peer);
        let grave = self.lost.graveyard.forget(sender.peer);
        let was_lost = grave.is_some();
        let path = self.line.path(sender.peer).or(grave).unwrap_or_default();
        let is_bootstrap = self.lost.graveyard.bootstrap_answered(sender, local.now);
        match self.line.leaf_set.get(sender.peer).map(|known| known.contact().incarnation == sender.incarnation) {
            Some(true) => {
                if let Some(sample) = sample {
                    self.line.leaf_set.update(sender.peer, |known| known.path.sample(sample));
                }
            }
            Some(false) => self.insert(local, sender, path, sample),
            None if self.line.leaf_set.wants(&sender.key(local.grid)) => self.insert(local, sender, path, sample),
            None => {}
        }
        if was_lost {
            // A peer that we had buried lives: it was unreachable, or we were slow.
            local.feel_slower();
            for grave in self.lost.graveyard.graves() {
                self.line.ask_once(local, &grave);
            }
        }
        if was_lost || is_bootstrap {
            self.look_up_own_key(local, vec![sender.clone()]);
        }
    }

    fn insert(&mut self, local: &mut Local, contact: &Member, mut path: Path, sample: Option<Duration>) {
        sample.into_iter().for_each(|sample| path.sample(sample));
        let is_adjacent = self.line.insert(local, contact, path);
        self.fingers.remove(contact.peer);
        if is_adjacent {
            self.lookups.look_up_soon(local.now);
        }
    }

    // ---- look-ups ----

    /// Looks the own key up, asking these peers first (or random ones if there are none).
    pub(crate) fn look_up_own_key(&mut self, local: &mut Local, seeds: Vec<Member>) {
        let nearest = self.lookups.look_up_own_key(local, &mut self.line, &self.fingers, seeds);
        self.consider_all(local, &nearest);
    }

    /// Looks the own key up at once, since we may have lost sight of part of the line.
    pub(crate) fn look_up_in_doubt(&mut self, local: &mut Local) {
        let nearest = self.lookups.look_up_in_doubt(local, &mut self.line, &self.fingers);
        self.consider_all(local, &nearest);
    }

    pub(crate) fn on_find(&self, local: &mut Local, sender: Member, nonce: u32, key: &PositionKey) {
        let near = named_near(local, &self.line, &self.fingers, key, sender.peer);
        local.send(sender, Body::Found { nonce, near });
    }

    pub(crate) fn on_found(&mut self, local: &mut Local, sender: &Member, nonce: u32, near: Vec<Member>) {
        if !self.lookups.answered(local, sender, nonce) {
            return;
        }
        for contact in near {
            if contact.peer == local.me.peer || self.lost.tombstones.covering(&contact, local.now).is_some() {
                self.consider(local, &contact);
                continue;
            }
            let known = self.line.leaf_set.get(contact.peer).map(|neighbour| neighbour.key);
            if known.is_none() {
                self.hear_of(local, &contact);
            }
            self.lookups.add(known.unwrap_or_else(|| contact.key(local.grid)), contact, known.is_some());
        }
        let nearest = self.lookups.step(local, &mut self.line);
        self.consider_all(local, &nearest);
    }

    // ---- losing ----

    fn probe_failed(&mut self, local: &mut Local, links: &Links, contact: &Member) {
        let is_lonely = self.line.is_lonely();
        let longest = if is_lonely { LONELY_WAIT_MAX } else { Duration::from_millis(local.config.graveyard_probe_ms) };
        self.lost.graveyard.bootstrap_failed(contact.peer, local.now, is_lonely, longest);
        if !is_lonely {
            self.fingers.remove(contact.peer);
        }
        let known = self.line.leaf_set.get(contact.peer).map(|neighbour| neighbour.contact().clone());
        match known {
            Some(known) if known.incarnation <= contact.incarnation => {
                local.counters.crashes_found += 1;
                local.feel_slower();
                self.mourn(local, &known);
            }
            Some(_) => {}
            None => {
                self.lost.tombstones.set_candidate(contact, local.now + CANDIDATE_TOMBSTONE);
                links.suspect_parent(local, contact);
            }
        }
    }

    /// A neighbour crashed: unlinks it, and tells all peers concerned, and itself in case that we are wrong.
    fn mourn(&mut self, local: &mut Local, lost: &Member) {
        self.bury(local, lost);
        local.send(lost.clone(), Body::Dead(lost.clone()));
        self.line.near().for_each(|to| local.send_short(to.clone(), Body::Dead(lost.clone())));
        self.line.probe_leaf_set(local);
    }

    fn bury(&mut self, local: &mut Local, contact: &Member) {
        let path = self.line.path(contact.peer).unwrap_or_default();
        self.forget(local, contact.peer);
        self.lost.bury(local, contact, path);
    }

    /// Removes a peer from the line and the fingers.
    pub(crate) fn forget(&mut self, local: &mut Local, peer: PeerId) {
        let (was_neighbour, was_adjacent) = self.line.remove(peer);
        self.fingers.remove(peer);
        if was_adjacent {
            self.lookups.look_up_soon(local.now);
        }
        if was_neighbour && self.line.leaf_set.is_doubtful() {
            // Half of the line may be gone, or only out of our sight.
            self.look_up_in_doubt(local);
        }
    }

    pub(crate) fn on_dead(&mut self, local: &mut Local, sender: &Member, contact: &Member) {
        if contact.peer == local.me.peer {
            if contact.incarnation >= local.me.incarnation {
                local.feel_slower();
                self.rise_above(local, contact.incarnation);
            }
            return;
        }
        let Some(known) = self.line.leaf_set.get(contact.peer) else { return };
        if known.contact().incarnation > contact.incarnation || sender.peer == contact.peer {
            return;
        }
        let known = known.contact().clone();
        let missed = self.line.probes.get(contact.peer).is_some_and(|probe| probe.tries > 1);
        let is_adjacent = self.line.leaf_set.is_adjacent(contact.peer);
        if missed || (!is_adjacent && self.line.leaf_set.get(sender.peer).is_some()) {
            // A neighbour next to us, or one reported dead from far away, is buried only after it missed an answer of
            // ours.
            self.bury(local, &known);
        } else {
            self.line.probe(local, &known, 2);
            if is_adjacent {
                self.line.probes.is_last_try(contact.peer);
            }
        }
    }
}
