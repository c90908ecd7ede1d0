//! The line around this peer: its neighbours, each verified by a probe before it gets in, and where the line ends.
//!
//! A peer that others name is only probed; only its answer to our probe lets it into the leaf set (I1). Without that
//! rule dead peers are re-adopted for ever. One table of probes serves neighbours, candidates and lost peers; what an
//! answer or a failure means for the peers that we know, `membership` decides.

use std::time::Duration;

use rand::RngExt;

use crate::identity::{Member, PeerId, PositionKey};
use crate::leaf_set::{LeafSet, Neighbour, Silence};
use crate::links::Links;
use crate::local::Local;
use crate::message::Body;
use crate::path::Path;
use crate::probe::{Probe, Probes};
use crate::subtree::Prefixes;
use crate::time::{Time, micros};

/// Neighbours on either side that a joining peer verifies; the others follow once it is a member.
const JOIN_SIDE_LEN: usize = 3;
/// By what factor the root's count of machines may exceed the neighbours' estimate. Our choice: that few neighbours
/// stand so far apart by chance has odds of e to the minus of it for one alone.
const COUNT_DOUBT: f64 = 64.0;
/// A peer heard so recently is not probed because another peer crashed.
const FRESH: Duration = Duration::from_secs(1);
/// A peer heard so recently is not probed because another peer suspects it.
const FRESH_SUSPECT: Duration = Duration::from_millis(300);

/// Our neighbours on the line, and the probes under way.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) leaf_set: LeafSet,
    pub(crate) probes: Probes,
    /// By side, below and above: a look-up found no peer there.
    pub(crate) ends: [bool; 2],
    /// When to spread the leaf set, since it grew.
    exchange: Option<Time>,
    /// The line, or this peer's place on it, changed since the tree was derived.
    pub(crate) changed: bool,
}

impl Line {
    /// A line of this peer alone.
    pub(crate) fn new(local: &Local) -> Self {
        let silence = Silence {
            adjacent_us: micros(Duration::from_millis(local.config.heartbeat_ms) / 2),
            others_us: micros(Duration::from_millis(local.config.exchange_ms)),
        };
        Self {
            leaf_set: LeafSet::new(local.key, local.config.leaf_set_side_len, silence),
            probes: Probes::default(),
            ends: [true; 2],
            exchange: None,
            changed: true,
        }
    }

    /// I1 and I2; and a neighbour is marked as probed while a probe of it is under way.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        self.leaf_set.assert_ordered();
        self.probes.assert_consistent();
        for neighbour in self.leaf_set.iter() {
            let peer = neighbour.contact().peer;
            debug_assert_eq!(neighbour.probed, self.probes.get(peer).is_some(), "whether {peer:?} is being probed");
        }
    }

    /// When there is timed work.
    pub(crate) fn deadline(&self) -> Time {
        let next = self.leaf_set.next_due().min(self.probes.deadline());
        self.exchange.map_or(next, |exchange| next.min(exchange))
    }

    // ---- who stands where ----

    pub(crate) fn pred(&self) -> Option<&Member> {
        self.leaf_set.predecessor().map(Neighbour::contact)
    }

    pub(crate) fn succ(&self) -> Option<&Member> {
        self.leaf_set.successor().map(Neighbour::contact)
    }

    /// The neighbours: predecessors, then successors, nearest first.
    pub(crate) fn near(&self) -> impl Iterator<Item = &Member> {
        self.leaf_set.iter().map(Neighbour::contact)
    }

    /// Whether this peer has no neighbours.
    pub(crate) fn is_lonely(&self) -> bool {
        self.leaf_set.len() == 0
    }

    /// How many machines there are, where the root claims so many, as far as the density of the neighbourhood allows.
    pub(crate) fn plausible_count(&self, local: &Local, claimed: u64) -> u64 {
        let heads = || self.leaf_set.iter().map(|neighbour| neighbour.key.head());
        let (Some(first), Some(last)) = (heads().min(), heads().max()) else { return claimed };
        let me = local.key.head();
        let span = last.max(me) - first.min(me);
        // The density of the neighbourhood, for the whole line.
        let estimate = heads().count() as f64 * (u64::MAX as f64 / span.max(1) as f64);
        // The cast saturates.
        claimed.min((estimate * COUNT_DOUBT) as u64)
    }

    /// Whether a side has no neighbour though no look-up found that the line ends there: we may have lost sight of the
    /// rest of the line.
    pub(crate) fn lacks_a_side(&self) -> bool {
        self.ends.iter().zip(self.leaf_set.sides()).any(|(end, side)| !end && side.is_empty())
    }

    /// The prefixes of our leaf, which has no neighbours for the tree while this peer is no member.
    pub(crate) fn leaf_prefixes(&self, local: &Local) -> Prefixes {
        let prefix = |neighbour: Option<&Neighbour>| {
            let neighbour = neighbour.filter(|_| local.life.is_member());
            neighbour.map(|neighbour| neighbour.key.common_prefix(&local.key))
        };
        Prefixes { before: prefix(self.leaf_set.predecessor()), own: 256, after: prefix(self.leaf_set.successor()) }
    }

    /// The contact of a neighbour, parent, child, or peer that is being probed.
    pub(crate) fn known_contact<'a>(&'a self, links: &'a Links, peer: PeerId) -> Option<&'a Member> {
        if let Some(neighbour) = self.leaf_set.get(peer) {
            return Some(neighbour.contact());
        }
        let probed = self.probes.iter().map(|probe| &probe.contact);
        links.children().chain(links.targets()).chain(probed).find(|contact| contact.peer == peer)
    }

    /// Whether a peer at `key` that is not in the leaf set should be verified to get into it.
    pub(crate) fn needs(&self, local: &Local, key: &PositionKey) -> bool {
        self.leaf_set.wants(key) && (!local.life.is_arriving(local.now) || self.is_near(local, key))
    }

    /// Whether a joining peer needs this one at once: few peers, known or being probed, stand between.
    fn is_near(&self, local: &Local, key: &PositionKey) -> bool {
        let me = local.key;
        let between = |other: &PositionKey| (*key < *other && *other < me) || (me < *other && *other < *key);
        let known = self.leaf_set.iter().filter(|neighbour| between(&neighbour.key)).count();
        known < JOIN_SIDE_LEN && {
            let probed = self.probes.iter().filter(|probe| {
                self.leaf_set.get(probe.contact.peer).is_none() && between(&probe.contact.key(local.grid))
            });
            known + probed.count() < JOIN_SIDE_LEN
        }
    }

    /// Whether a peer that would stand next to us is being verified.
    pub(crate) fn awaits_neighbour(&self, local: &Local) -> bool {
        let nearer = |key: PositionKey| {
            let (pred, succ) = (self.leaf_set.predecessor(), self.leaf_set.successor());
            if key < local.key {
                pred.is_none_or(|pred| pred.key < key)
            } else {
                succ.is_none_or(|succ| key < succ.key)
            }
        };
        self.probes.iter().any(|probe| nearer(probe.contact.key(local.grid)))
    }

    // ---- changes ----

    /// Lets a peer in that answered our probe. True if it stands next to us.
    pub(crate) fn insert(&mut self, local: &mut Local, contact: &Member, path: Path) -> bool {
        let pace_percent = local.pace_percent() as u8;
        let (heard, exchanged) = (local.now, local.now);
        let (contact, key, peer) = (contact.clone(), contact.key(local.grid), contact.peer);
        self.leaf_set.insert(Neighbour { contact, key, heard, exchanged, path, seen: 0, pace_percent, probed: false });
        self.spread_soon(local);
        let is_adjacent = self.leaf_set.is_adjacent(peer);
        if is_adjacent {
            self.change();
        }
        is_adjacent
    }

    /// Removes a peer and ends its probe. Returns whether it was a neighbour, and whether it stood next to us.
    pub(crate) fn remove(&mut self, peer: PeerId) -> (bool, bool) {
        let was_adjacent = self.leaf_set.is_adjacent(peer);
        let was_neighbour = self.leaf_set.remove(peer).is_some();
        self.probes.end(peer);
        if was_adjacent {
            self.change();
        }
        (was_neighbour, was_adjacent)
    }

    /// A neighbour next to us came or went.
    fn change(&mut self) {
        self.changed = true;
        for (end, side) in self.ends.iter_mut().zip(self.leaf_set.sides()) {
            *end &= side.is_empty();
        }
    }

    /// Where a look-up of the own key found no peer on a side and we have none there, the line ends with us.
    pub(crate) fn believe_ends(&mut self, local: &Local, nearest: &[Member]) {
        let keys: Vec<_> = nearest.iter().map(|contact| contact.key(local.grid)).collect();
        let found = [keys.iter().any(|key| *key < local.key), keys.iter().any(|key| *key > local.key)];
        for ((end, side), found) in self.ends.iter_mut().zip(self.leaf_set.sides()).zip(found) {
            *end = side.is_empty() && !found;
        }
        self.changed = true;
    }

    /// The peer next to us on the sides `was_next` leaves: where the line ended with it, the line ends with us now.
    pub(crate) fn inherit_ends(&mut self, was_next: [bool; 2], its: [bool; 2]) {
        for (side, neighbours) in self.leaf_set.sides().iter().enumerate() {
            self.ends[side] |= was_next[side] && its[side] && neighbours.is_empty();
        }
    }

    // ---- probing ----

    /// Probes a peer unless a probe is under way.
    pub(crate) fn probe(&mut self, local: &mut Local, contact: &Member, tries_max: u32) {
        if let Some(nonce) = self.begin_probe(local, contact, tries_max) {
            self.ping(local, contact.clone(), nonce, false);
        }
    }

    /// Sends one ping to a lost peer unless a probe is under way. It waits for the answer as long as any ping does: nothing
    /// depends on when it fails.
    pub(crate) fn ask_once(&mut self, local: &mut Local, contact: &Member) {
        if let Some(nonce) = self.register(local, contact, 1, local.timeout_max()) {
            self.ping(local, contact.clone(), nonce, false);
        }
    }

    /// Registers a probe and returns its nonce; none if the peer is not to be pinged.
    pub(crate) fn begin_probe(&mut self, local: &mut Local, contact: &Member, tries_max: u32) -> Option<u32> {
        self.register(local, contact, tries_max, local.timeout(self.path(contact.peer)))
    }

    fn register(&mut self, local: &mut Local, contact: &Member, tries_max: u32, timeout: Duration) -> Option<u32> {
        if contact.peer == local.me.peer || self.is_probed(contact) {
            return None;
        }
        let nonce = local.rng.random_range(1..=u32::MAX);
        if self.probes.begin(Probe::new(local.now, contact.clone(), nonce, tries_max, timeout)) {
            self.leaf_set.update(contact.peer, |neighbour| neighbour.probed = true);
            Some(nonce)
        } else {
            local.counters.probes_dropped += 1;
            None
        }
    }

    /// Whether a probe of this or a later life of the peer is under way.
    pub(crate) fn is_probed(&self, contact: &Member) -> bool {
        self.probes.get(contact.peer).is_some_and(|probe| probe.contact.incarnation >= contact.incarnation)
    }

    /// What is known of the path to a neighbour.
    pub(crate) fn path(&self, peer: PeerId) -> Option<Path> {
        self.leaf_set.get(peer).map(|neighbour| neighbour.path)
    }

    /// Ends the probe of this peer, if any.
    pub(crate) fn end_probe(&mut self, peer: PeerId) -> Option<Probe> {
        self.leaf_set.update(peer, |neighbour| neighbour.probed = false);
        self.probes.end(peer)
    }

    /// Sends the ping of a probe, with our address if it is sent `again`.
    pub(crate) fn ping(&mut self, local: &mut Local, to: Member, nonce: u32, again: bool) {
        let seen = self.leaf_set.get(to.peer).map_or(0, |neighbour| neighbour.seen);
        let mine = self.leaf_set.digest();
        let body = Body::Ping { nonce, mine, seen };
        if seen == 0 || again { local.send(to, body) } else { local.send_short(to, body) }
    }

    /// Answers a ping; `ask` is the nonce of a ping inside the answer.
    pub(crate) fn answer(&mut self, local: &mut Local, to: Member, nonce: u32, with_set: bool, ask: Option<u32>) {
        let set = with_set.then(|| self.near().cloned().collect());
        let is_terse = !with_set && ask.is_none();
        let body = Body::Ack { nonce, mine: self.leaf_set.digest(), set, ask: ask.unwrap_or(0) };
        if is_terse { local.send_short(to, body) } else { local.send(to, body) }
    }

    /// A pause passed in which no peer could answer: repeats the pings of all probes.
    pub(crate) fn probe_anew(&mut self, local: &mut Local) {
        for contact in self.probes.begin_anew(local.now) {
            if let Some(nonce) = self.probes.get(contact.peer).map(|probe| probe.nonce) {
                self.ping(local, contact, nonce, true);
            }
        }
    }

    /// Probes the whole leaf set but neighbours heard just now.
    pub(crate) fn probe_leaf_set(&mut self, local: &mut Local) {
        let silent = |neighbour: &&Neighbour| local.now.since(neighbour.heard) > FRESH;
        let contacts: Vec<_> = self.leaf_set.iter().filter(silent).map(|n| n.contact().clone()).collect();
        let tries = local.config.probe_tries;
        contacts.iter().for_each(|contact| self.probe(local, contact, tries));
    }

    /// Probes a peer that may be gone, neighbour or not.
    pub(crate) fn doubt(&mut self, local: &mut Local, links: &Links, peer: PeerId) {
        if let Some(contact) = self.known_contact(links, peer).cloned() {
            self.probe(local, &contact, local.config.probe_tries);
        }
    }

    /// Another peer missed an answer of this one.
    pub(crate) fn on_suspect(&mut self, local: &mut Local, links: &Links, peer: PeerId) {
        let fresh = |neighbour: &Neighbour| local.now.since(neighbour.heard) < FRESH_SUSPECT;
        if !self.leaf_set.get(peer).is_some_and(fresh) {
            self.doubt(local, links, peer);
        }
    }

    /// A report to this parent went unanswered, which counts as a try: probes the parent.
    pub(crate) fn miss(&mut self, local: &mut Local, links: &Links, parent: &Member) {
        if self.probes.get(parent.peer).is_none() {
            self.probe(local, parent, local.config.probe_tries.saturating_sub(1).max(1));
            self.suspect(local, links, parent);
        }
    }

    /// Asks the neighbour on the far side of a silent peer to probe it too, so that both notice a crash at once.
    pub(crate) fn suspect(&self, local: &mut Local, links: &Links, silent: &Member) {
        if let Some(beyond) = self.leaf_set.beyond(silent.peer).cloned() {
            local.send_short(beyond, Body::Suspect(silent.clone()));
        } else if self.leaf_set.get(silent.peer).is_none() {
            links.suspect_parent(local, silent);
        }
    }

    // ---- timed work ----

    /// Pings the neighbours that are due.
    pub(crate) fn beat(&mut self, local: &mut Local) {
        while let Some(contact) = self.leaf_set.due(local.now).cloned() {
            if self.probes.get(contact.peer).is_none() {
                self.probe(local, &contact, local.config.probe_tries);
            }
            // The ping counts even if there was no room for another probe: the neighbour's turn comes after this one,
            // or next time.
            let (now, probed) = (local.now, self.probes.get(contact.peer).is_some());
            self.leaf_set.update(contact.peer, |neighbour| {
                neighbour.probed = probed;
                if !probed {
                    (neighbour.heard, neighbour.exchanged) = (now, now);
                }
            });
        }
    }

    /// Sends the leaf set to one neighbour on either side after it grew.
    pub(crate) fn spread(&mut self, local: &mut Local) {
        if self.exchange.is_none_or(|at| at > local.now) {
            return;
        }
        self.exchange = None;
        let mut chosen = Vec::new();
        for side in self.leaf_set.sides() {
            if !side.is_empty() {
                chosen.push(side[local.rng.random_range(0..side.len())].contact().clone());
            }
        }
        let tries = local.config.probe_tries;
        chosen.iter().for_each(|contact| self.probe(local, contact, tries));
    }

    /// The leaf set grew: tell some of it soon, so that two lines that met merge. A joining peer has nothing to tell.
    fn spread_soon(&mut self, local: &mut Local) {
        if self.exchange.is_none() && !local.life.is_joining() {
            self.exchange = Some(local.now + Duration::from_millis(local.rng.random_range(200..=400)));
        }
    }

    /// A new member asks for the neighbours' whole leaf sets at `at`: those next to it and its links come first.
    pub(crate) fn complete_at(&mut self, at: Time) {
        self.forget_seen();
        self.exchange = Some(at);
    }

    /// The next pings ask for leaf sets even if we know them.
    pub(crate) fn forget_seen(&mut self) {
        let neighbours: Vec<_> = self.near().map(|contact| contact.peer).collect();
        for peer in neighbours {
            self.leaf_set.update(peer, |neighbour| neighbour.seen = 0);
        }
    }
}
