//! Keeping the line: verify before adopt, crashes, incarnations.
//!
//! A peer that others name is only probed; a message *from* a peer shows that it lives; only its answer to our probe
//! lets it into the leaf set (I1). Without that rule dead peers are re-adopted for ever.

use std::time::Duration;

use rand::RngExt;

use crate::identity::{Contact, Member, PeerId};
use crate::joining::JOIN_RETRY_MAX;
use crate::leaf_set::{Neighbour, Path};
use crate::message::Body;
use crate::node::NODES;
use crate::overlay::Overlay;
use crate::probe::{Expired, Probe};
use crate::state::State;

/// A candidate that did not answer is not probed for hearsay again before this.
const CANDIDATE_TOMBSTONE: Duration = Duration::from_secs(10);
/// A peer heard so recently is not probed because another peer crashed.
const FRESH: Duration = Duration::from_secs(1);
/// A peer heard so recently is not probed because another peer suspects it.
const FRESH_SUSPECT: Duration = Duration::from_millis(300);
/// Incarnations of ours, claimed by others, that are so many milliseconds later than our clock are lies: 139 years, so
/// that a clock that fell back to 1970 does no harm.
const INCARNATION_LEAD_MAX: u64 = 1 << 42;

impl Overlay {
    // ---- hearing ----

    /// Takes a message of `sender` as a sign of life. False when it comes from an incarnation that is over.
    ///
    /// An answer to a probe is handled by [`Self::on_ack`], which still needs that probe, and a stranger's ping by
    /// [`Self::on_ping`].
    pub(crate) fn hear(&mut self, sender: &Member, is_new_address: bool, body: &Body) -> bool {
        let is_ack = matches!(body, Body::Ack { .. });
        let Some(known) = self.line.leaf_set.get(sender.peer) else {
            return self.hear_other(sender, is_ack || matches!(body, Body::Ping { .. }));
        };
        let (incarnation, is_probed) = (known.contact().incarnation, known.probed);
        if incarnation > sender.incarnation {
            let known = known.contact().clone();
            self.counters.stale_life += 1;
            self.send(sender.clone(), Body::Hint(vec![known]));
            return false;
        }
        if incarnation < sender.incarnation {
            if !is_ack {
                self.probe(sender, self.config.probe_tries);
            }
            return true;
        }
        if is_new_address && self.line.leaf_set.readdress(sender.peer, &sender.address) {
            // Reports go to the address in the tree.
            self.tree.changed |= self.line.leaf_set.is_adjacent(sender.peer);
        }
        if is_probed && !is_ack {
            let answers = |probe: &Probe| probe.contact.incarnation <= sender.incarnation;
            if self.line.probes.get(sender.peer).is_some_and(answers) {
                self.end_probe(sender.peer);
            }
        }
        let now = self.now;
        self.line.leaf_set.update(sender.peer, |neighbour| neighbour.heard = now);
        true
    }

    /// `hear` for a peer that is not a neighbour.
    fn hear_other(&mut self, sender: &Member, is_talk: bool) -> bool {
        if let Some(stone) = self.line.tombstones.covering(sender, self.now)
            && (stone.left || stone.incarnation > sender.incarnation)
            && !stone.is_candidate
        {
            let latest = Contact { incarnation: stone.incarnation, ..(**sender).clone() }.into();
            self.counters.stale_life += 1;
            self.send(sender.clone(), Body::Hint(vec![latest]));
            return false;
        }
        if self.is_linked(sender) {
            return true;
        }
        if let Some(head) = self.line.fingers.heard(sender, self.now)
            && !self.line.graveyard.holds(sender)
            && !self.line.leaf_set.may_want(head)
        {
            return true;
        }
        let key = sender.key(self.grid);
        // A joining peer hears of the neighbours that it needs in answers.
        let is_needed = self.state != State::Joining && self.needs(&key);
        if !is_talk && (is_needed || self.line.graveyard.holds(sender)) {
            self.probe(sender, self.config.probe_tries);
        }
        self.line.fingers.note(sender, key.head(), self.now);
        true
    }

    /// Whether a peer that is not a neighbour is a parent or child of ours, far enough away to be no candidate.
    fn is_linked(&self, sender: &Member) -> bool {
        let slots = self.tree.slots.iter().flatten().map(|slot| &slot.contact);
        let parents = self.tree.uplinks.iter().filter_map(|uplink| uplink.parent());
        let is_full = self.line.leaf_set.sides().iter().all(|side| side.len() == self.config.leaf_set_side_len);
        is_full && slots.chain(parents).any(|contact| contact == sender) && !self.line.graveyard.holds(sender)
    }

    /// Takes note of a peer that others name: probes it if it belongs next to us.
    pub(crate) fn consider(&mut self, contact: &Member) {
        if contact.peer == self.me.peer {
            if contact.incarnation > self.me.incarnation {
                self.rise_above(contact.incarnation);
            }
            return;
        }
        if self.line.tombstones.covering(contact, self.now).is_some() {
            return;
        }
        if self.line.leaf_set.get(contact.peer).is_none() {
            self.hear_of(contact);
        }
        let is_unverified = match self.line.leaf_set.get(contact.peer) {
            Some(known) => known.contact().incarnation < contact.incarnation,
            // It is being probed already: skip computing its place.
            None if self.is_probed(contact) => false,
            None => self.needs(&contact.key(self.grid)),
        };
        if is_unverified {
            self.probe(contact, self.config.probe_tries);
        }
    }

    /// Remembers a peer that others named.
    pub(crate) fn hear_of(&mut self, contact: &Member) {
        let pick = self.rng.random::<u32>();
        self.line.fingers.hear_of(contact, pick as usize);
    }

    /// A peer counts this incarnation of ours, or a later one, as over: begin a newer one and announce it.
    ///
    /// Only up to a bound that moves with our own clock, or a forged rumour would use up all incarnations. Others
    /// believe what we announce of ourselves, so the newer incarnation prevails.
    fn rise_above(&mut self, incarnation: u64) {
        let (began, first) = self.born;
        let clock = first.saturating_add(self.now.since(began).as_millis() as u64);
        if incarnation > clock.saturating_add(INCARNATION_LEAD_MAX) {
            self.counters.incarnations_refused += 1;
            return;
        }
        self.me = Contact { incarnation: incarnation.saturating_add(1), ..(*self.me).clone() }.into();
        self.counters.risen += 1;
        self.tree.changed = true;
        self.probe_leaf_set();
    }

    // ---- probing ----

    /// Probes a peer unless a probe is under way.
    pub(crate) fn probe(&mut self, contact: &Member, tries_max: u32) {
        if let Some(nonce) = self.begin_probe(contact, tries_max) {
            self.ping(contact.clone(), nonce, false);
        }
    }

    /// Registers a probe and returns its nonce; none if the peer is not to be pinged.
    fn begin_probe(&mut self, contact: &Member, tries_max: u32) -> Option<u32> {
        if contact.peer == self.me.peer || self.is_probed(contact) {
            return None;
        }
        let known = self.line.leaf_set.get(contact.peer);
        let timeout = self.timeout(known.map(|neighbour| neighbour.path));
        let nonce = self.rng.random_range(1..=u32::MAX);
        let expires = self.now + timeout;
        let probe = Probe { contact: contact.clone(), nonce, tries: 1, tries_max, sent: self.now, expires, timeout };
        if self.line.probes.begin(probe) {
            self.line.leaf_set.update(contact.peer, |neighbour| neighbour.probed = true);
            Some(nonce)
        } else {
            self.counters.probes_dropped += 1;
            None
        }
    }

    /// Whether a probe of this or a later life of the peer is under way.
    fn is_probed(&self, contact: &Member) -> bool {
        self.line.probes.get(contact.peer).is_some_and(|probe| probe.contact.incarnation >= contact.incarnation)
    }

    /// Ends the probe of this peer, if any.
    pub(crate) fn end_probe(&mut self, peer: PeerId) -> Option<Probe> {
        self.line.leaf_set.update(peer, |neighbour| neighbour.probed = false);
        self.line.probes.end(peer)
    }

    fn ping(&mut self, to: Member, nonce: u32, again: bool) {
        let seen = self.line.leaf_set.get(to.peer).map_or(0, |neighbour| neighbour.seen);
        let mine = self.line.leaf_set.digest();
        let body = Body::Ping { nonce, mine, seen };
        if seen == 0 || again { self.send(to, body) } else { self.send_short(to, body) }
    }

    /// Repeats the ping of a probe before it expires.
    pub(crate) fn repeat_ping(&mut self, to: Member) {
        if let Some(nonce) = self.line.probes.get(to.peer).map(|probe| probe.nonce) {
            self.ping(to, nonce, true);
        }
    }

    /// Probes the whole leaf set but neighbours heard just now.
    fn probe_leaf_set(&mut self) {
        let silent = |neighbour: &&Neighbour| self.now.since(neighbour.heard) > FRESH;
        let contacts: Vec<_> = self.line.leaf_set.iter().filter(silent).map(|n| n.contact().clone()).collect();
        contacts.iter().for_each(|contact| self.probe(contact, self.config.probe_tries));
    }

    pub(crate) fn expire_probes(&mut self) {
        while let Some(expired) = self.line.probes.expire(self.now) {
            match expired {
                Expired::Retry { to, nonce, tries } => {
                    if tries == 2 && self.line.leaf_set.is_adjacent(to.peer) {
                        self.suspect(&to);
                    }
                    self.ping(to, nonce, true);
                }
                Expired::Failed(contact) => {
                    self.line.leaf_set.update(contact.peer, |neighbour| neighbour.probed = false);
                    self.probe_failed(&contact);
                }
            }
        }
    }

    /// A report to this parent went unanswered, which counts as a try: probe the parent.
    pub(crate) fn miss(&mut self, parent: &Member) {
        if self.line.probes.get(parent.peer).is_none() {
            self.probe(parent, self.config.probe_tries.saturating_sub(1).max(1));
            self.suspect(parent);
        }
    }

    /// Asks the neighbour on the far side of a silent peer to probe it too, so that both notice a crash at once.
    fn suspect(&mut self, silent: &Member) {
        if let Some(beyond) = self.line.leaf_set.beyond(silent.peer).cloned() {
            self.send_short(beyond, Body::Suspect(silent.clone()));
        } else if self.line.leaf_set.get(silent.peer).is_none() {
            self.suspect_parent(silent);
        }
    }

    /// Another peer missed an answer of this one.
    pub(crate) fn on_suspect(&mut self, peer: PeerId) {
        let fresh = |neighbour: &Neighbour| self.now.since(neighbour.heard) < FRESH_SUSPECT;
        if !self.line.leaf_set.get(peer).is_some_and(fresh) {
            self.doubt(peer);
        }
    }

    /// Probes a peer that may be gone, neighbour or not.
    pub(crate) fn doubt(&mut self, peer: PeerId) {
        if let Some(contact) = self.known_contact(peer).cloned() {
            self.probe(&contact, self.config.probe_tries);
        }
    }

    pub(crate) fn known_contact(&self, peer: PeerId) -> Option<&Member> {
        if let Some(neighbour) = self.line.leaf_set.get(peer) {
            return Some(neighbour.contact());
        }
        let slots = self.tree.slots.iter().flatten().map(|slot| &slot.contact);
        let parents = self.tree.uplinks.iter().filter_map(|uplink| uplink.target.as_ref());
        let probed = self.line.probes.iter().map(|probe| &probe.contact);
        slots.chain(parents).chain(probed).find(|contact| contact.peer == peer)
    }

    pub(crate) fn on_ping(&mut self, sender: Member, nonce: u32, mine: u32, seen: u32) {
        let digest = self.line.leaf_set.digest();
        // A peer too far away to be a neighbour has no use for our leaf set.
        let (mut is_near, mut ask) = (true, None);
        match self.line.leaf_set.get(sender.peer).map(|neighbour| neighbour.seen == mine) {
            Some(true) => {
                let now = self.now;
                self.line.leaf_set.update(sender.peer, |neighbour| neighbour.exchanged = now);
            }
            Some(false) => {
                // The leaf sets of the two next to us suffice; those of the others are fetched once.
                let is_new = self.line.leaf_set.get(sender.peer).is_some_and(|neighbour| neighbour.seen == 0);
                is_near = seen == 0 || self.line.leaf_set.is_adjacent(sender.peer);
                if is_new || is_near {
                    ask = self.begin_probe(&sender, self.config.probe_tries);
                } else {
                    let now = self.now;
                    self.line.leaf_set.update(sender.peer, |neighbour| neighbour.exchanged = now);
                }
            }
            None => {
                is_near = self.line.leaf_set.wants(&sender.key(self.grid));
                if is_near || self.line.graveyard.holds(&sender) {
                    ask = self.begin_probe(&sender, self.config.probe_tries);
                }
            }
        }
        self.answer(sender, nonce, seen != digest && is_near, ask);
    }

    fn answer(&mut self, to: Member, nonce: u32, with_set: bool, ask: Option<u32>) {
        let set = with_set.then(|| self.near().cloned().collect());
        let is_terse = !with_set && ask.is_none();
        let body = Body::Ack { nonce, mine: self.line.leaf_set.digest(), set, ask: ask.unwrap_or(0) };
        if is_terse { self.send_short(to, body) } else { self.send(to, body) }
    }

    pub(crate) fn on_ack(&mut self, sender: &Member, nonce: u32, mine: u32, set: Option<Vec<Member>>, ask: u32) {
        if ask > 0 {
            self.answer(sender.clone(), ask, true, None);
        }
        let is_answer = self.line.probes.get(sender.peer).is_some_and(|probe| probe.nonce == nonce);
        if is_answer && let Some(probe) = self.end_probe(sender.peer) {
            // An answer to the first ping shows that we are not slow; after a retry we or the path may be.
            self.slowness = if probe.tries == 1 { self.slowness.saturating_sub(1) } else { self.slowness };
            self.adopt(sender, &probe);
        } else if self.line.tombstones.has_given_up(sender.peer, self.now) {
            // It answered too late: the path is longer than our wait for a stranger, or we are slow. With a longer wait
            // the next probe succeeds.
            self.feel_slower(1);
        }
        let (now, is_set) = (self.now, set.is_some());
        let is_neighbour = self.line.leaf_set.update(sender.peer, |neighbour| {
            neighbour.exchanged = now;
            neighbour.seen = if is_set { mine } else { neighbour.seen };
        });
        if !is_neighbour && !is_answer {
            return;
        }
        set.iter().flatten().for_each(|contact| self.consider(contact));
    }

    /// `sender` answered our probe: it lives, at this incarnation.
    fn adopt(&mut self, sender: &Member, probe: &Probe) {
        let sample = (probe.tries == 1).then(|| self.now.since(probe.sent));
        self.line.tombstones.clear(sender.peer);
        let was_lost = self.line.graveyard.forget(sender.peer);
        let is_bootstrap = self.line.graveyard.bootstrap_answered(sender, self.now);
        match self.line.leaf_set.get(sender.peer).map(|known| known.contact().incarnation == sender.incarnation) {
            Some(true) => {
                if let Some(sample) = sample {
                    self.line.leaf_set.update(sender.peer, |known| known.path.sample(sample));
                }
            }
            Some(false) => self.insert(sender, sample),
            None if self.line.leaf_set.wants(&sender.key(self.grid)) => self.insert(sender, sample),
            None => {}
        }
        if was_lost {
            // A peer that we had buried lives: it was unreachable, or we were slow.
            self.feel_slower(1);
            for grave in self.line.graveyard.graves() {
                self.probe(&grave, 1);
            }
        }
        if was_lost || is_bootstrap {
            self.look_up_own_key(vec![sender.clone()]);
        }
    }

    fn insert(&mut self, contact: &Member, round_trip: Option<Duration>) {
        let (contact, key) = (contact.clone(), contact.key(self.grid));
        let pace_percent = self.pace_percent() as u8;
        let (heard, exchanged) = (self.now, self.now);
        let mut path = Path::default();
        if let Some(round_trip) = round_trip {
            path.sample(round_trip);
        }
        let peer = contact.peer;
        let neighbour = Neighbour { contact, key, heard, exchanged, path, seen: 0, pace_percent, probed: false };
        self.line.leaf_set.insert(neighbour);
        self.line.fingers.remove(peer);
        self.spread_soon();
        if self.line.leaf_set.is_adjacent(peer) {
            self.line_changed();
            self.look_up_soon();
        }
    }

    /// A neighbour next to us came or went.
    fn line_changed(&mut self) {
        self.tree.changed = true;
        for (end, side) in self.line.ends.iter_mut().zip(self.line.leaf_set.sides()) {
            *end &= side.is_empty();
        }
    }

    /// The next pings ask for leaf sets even if we know them.
    pub(crate) fn forget_seen(&mut self) {
        let neighbours: Vec<_> = self.near().map(|contact| contact.peer).collect();
        for peer in neighbours {
            self.line.leaf_set.update(peer, |neighbour| neighbour.seen = 0);
        }
    }

    /// The leaf set grew: tell some of it soon, so that two lines that met merge. A joining peer has nothing to tell.
    fn spread_soon(&mut self) {
        if self.timers.exchange.is_none() && self.state != State::Joining {
            self.timers.exchange = Some(self.now + Duration::from_millis(self.rng.random_range(200..=400)));
        }
    }

    // ---- losing ----

    fn probe_failed(&mut self, contact: &Member) {
        let is_lonely = self.line.leaf_set.len() == 0;
        let longest = if is_lonely { JOIN_RETRY_MAX } else { Duration::from_millis(self.config.graveyard_probe_ms) };
        self.line.graveyard.bootstrap_failed(contact.peer, self.now, is_lonely, longest);
        if !is_lonely {
            self.line.fingers.remove(contact.peer);
        }
        let known = self.line.leaf_set.get(contact.peer).map(|neighbour| neighbour.contact().clone());
        match known {
            Some(known) if known.incarnation <= contact.incarnation => {
                self.counters.crashes_found += 1;
                self.feel_slower(1);
                self.mourn(&known);
            }
            Some(_) => {}
            None => {
                self.line.tombstones.set_candidate(contact, self.now + CANDIDATE_TOMBSTONE);
                self.suspect_parent(contact);
            }
        }
    }

    /// A neighbour crashed: unlink it, and tell all peers concerned, and itself in case that we are wrong.
    fn mourn(&mut self, lost: &Member) {
        self.bury(lost);
        self.send(lost.clone(), Body::Dead(lost.clone()));
        let others: Vec<_> = self.near().cloned().collect();
        others.into_iter().for_each(|to| self.send_short(to, Body::Dead(lost.clone())));
        self.probe_leaf_set();
    }

    /// A parent outside our leaf set fell silent: ask its neighbours to probe it.
    fn suspect_parent(&mut self, lost: &Member) {
        for node in NODES {
            let uplink = &self.tree.uplinks[node as usize];
            let Some(tree) = uplink.tree.as_ref().filter(|_| uplink.target.as_ref() == Some(lost)) else { continue };
            let span = &tree.span;
            let beside = if span.r.peer == lost.peer { span.ro.clone() } else { Some(span.l.clone()) };
            if let Some(beside) = beside.filter(|beside| beside.peer != self.me.peer) {
                self.send(beside, Body::Suspect(lost.clone()));
            }
        }
    }

    fn bury(&mut self, contact: &Member) {
        self.forget(contact.peer);
        let until = self.now + Duration::from_millis(self.config.tombstone_ms);
        self.line.tombstones.set(contact, until, false);
        self.line.graveyard.bury(contact.clone(), self.now);
    }

    pub(crate) fn forget(&mut self, peer: PeerId) {
        let was_adjacent = self.line.leaf_set.is_adjacent(peer);
        let removed = self.line.leaf_set.remove(peer).is_some();
        self.line.fingers.remove(peer);
        self.line.probes.end(peer);
        if was_adjacent {
            self.line_changed();
            self.look_up_soon();
        }
        if removed && self.line.leaf_set.is_doubtful() {
            // Half of the line may be gone, or only out of our sight.
            self.look_up_in_doubt();
        }
    }

    pub(crate) fn on_dead(&mut self, sender: &Member, contact: &Member) {
        if contact.peer == self.me.peer {
            if contact.incarnation >= self.me.incarnation {
                self.feel_slower(1);
                self.rise_above(contact.incarnation);
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
            self.bury(&known);
        } else {
            self.probe(&known, 2);
            if is_adjacent {
                self.line.probes.is_last_try(contact.peer);
            }
        }
    }
}
