//! Peers that are gone: tombstones against hearsay, and the graveyard that heals partitions.
//!
//! A *tombstone* (peer, incarnation) keeps hearsay from reviving a peer that crashed or left, for a minute; only its
//! own answer, or a newer incarnation, does. The *graveyard* remembers lost peers much longer and probes them now and
//! then: the first answer shows that a partition is over. Bootstrap contacts stay in it for good, and are asked less
//! and less often while they answer. [`Lost`] has both, and says when the graveyard is visited.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt;

use crate::identity::{Member, PeerId};
use crate::line::Line;
use crate::local::Local;
use crate::path::Path;
use crate::time::Time;

const TOMBSTONES_MAX: usize = 512;
const BOOTSTRAPS_MAX: usize = 32;
/// Longest wait before a bootstrap contact that answers is asked again.
const BOOTSTRAP_PERIOD_MAX: Duration = Duration::from_secs(600);
/// First wait of a lonely peer before it tries its contacts again; doubles from there.
pub(crate) const LONELY_WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest such wait.
pub(crate) const LONELY_WAIT_MAX: Duration = Duration::from_secs(15);
/// Lost peers probed in one round.
const GRAVES_PER_ROUND: usize = 4;

#[derive(Clone, Debug)]
pub(crate) struct Tombstone {
    pub(crate) incarnation: u64,
    pub(crate) until: Time,
    /// The peer said good-bye: not even its own late messages revive this incarnation.
    pub(crate) left: bool,
    /// We never met the peer, so its incarnation is hearsay: the tombstone holds against hearsay, not against the peer.
    pub(crate) is_candidate: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tombstones {
    by_peer: BTreeMap<PeerId, Tombstone>,
}

impl Tombstones {
    /// The tombstone of this or a later life of the peer.
    pub(crate) fn covering(&self, contact: &Member, now: Time) -> Option<&Tombstone> {
        let covers = |stone: &&Tombstone| stone.incarnation >= contact.incarnation && stone.until > now;
        self.by_peer.get(&contact.peer).filter(covers)
    }

    /// Whether a peer that we never met, in whatever life, did not answer lately.
    pub(crate) fn has_given_up(&self, peer: PeerId, now: Time) -> bool {
        self.by_peer.get(&peer).is_some_and(|stone| stone.is_candidate && stone.until > now)
    }

    /// Notes that a peer that we never met did not answer. Does nothing where a tombstone of a peer that we did meet
    /// exists.
    pub(crate) fn set_candidate(&mut self, contact: &Member, until: Time) {
        let incarnation = contact.incarnation;
        let stone = Tombstone { incarnation, until, left: false, is_candidate: true };
        let known = self.by_peer.entry(contact.peer).or_insert(stone.clone());
        if known.is_candidate {
            *known = stone;
        }
        self.shrink();
    }

    pub(crate) fn set(&mut self, contact: &Member, until: Time, left: bool) {
        let incarnation = contact.incarnation;
        let stone = Tombstone { incarnation, until, left, is_candidate: false };
        let known = self.by_peer.entry(contact.peer).or_insert(stone.clone());
        if incarnation > known.incarnation || known.is_candidate {
            *known = stone;
        } else if incarnation == known.incarnation {
            known.until = known.until.max(until);
            known.left |= left;
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        if self.by_peer.len() > TOMBSTONES_MAX
            && let Some(peer) = self.by_peer.iter().min_by_key(|(_, stone)| stone.until).map(|(peer, _)| *peer)
        {
            self.by_peer.remove(&peer);
        }
    }

    pub(crate) fn clear(&mut self, peer: PeerId) {
        self.by_peer.remove(&peer);
    }

    pub(crate) fn purge(&mut self, now: Time) {
        self.by_peer.retain(|_, stone| stone.until > now);
    }
}

#[derive(Clone, Debug)]
struct Grave {
    contact: Member,
    buried: Time,
    /// What is known of the path to it, in case that it lives.
    path: Path,
}

#[derive(Clone, Debug)]
struct Bootstrap {
    contact: Member,
    next: Time,
    period: Duration,
    /// A question is under way.
    is_asked: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Graveyard {
    len_max: usize,
    graves: BTreeMap<PeerId, Grave>,
    bootstraps: Vec<Bootstrap>,
    /// When the next bootstrap contact is to be asked.
    next: Option<Time>,
}

impl Graveyard {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, graves: BTreeMap::new(), bootstraps: Vec::new(), next: None }
    }

    pub(crate) fn bury(&mut self, contact: Member, path: Path, now: Time) {
        self.graves.insert(contact.peer, Grave { contact, buried: now, path });
        if self.graves.len() > self.len_max
            && let Some(peer) = self.graves.iter().min_by_key(|(_, grave)| grave.buried).map(|(peer, _)| *peer)
        {
            self.graves.remove(&peer);
        }
    }

    /// Whether this life, or an earlier one, of the peer is remembered as lost.
    pub(crate) fn holds(&self, contact: &Member) -> bool {
        self.graves.get(&contact.peer).is_some_and(|grave| grave.contact.incarnation <= contact.incarnation)
    }

    /// Removes a peer that lives, or that left in good order. Returns its path if it was here.
    pub(crate) fn forget(&mut self, peer: PeerId) -> Option<Path> {
        self.graves.remove(&peer).map(|grave| grave.path)
    }

    pub(crate) fn has_graves(&self) -> bool {
        !self.graves.is_empty()
    }

    pub(crate) fn graves(&self) -> Vec<Member> {
        self.graves.values().map(|grave| grave.contact.clone()).collect()
    }

    pub(crate) fn add_bootstrap(&mut self, contact: Member, next: Time, period: Duration) {
        let bootstrap = Bootstrap { contact, next, period, is_asked: true };
        if let Some(known) = self.bootstrap(bootstrap.contact.peer) {
            *known = bootstrap;
        } else if self.bootstraps.len() < BOOTSTRAPS_MAX {
            self.bootstraps.reserve_exact(1);
            self.bootstraps.push(bootstrap);
        }
        self.refresh();
    }

    fn bootstrap(&mut self, peer: PeerId) -> Option<&mut Bootstrap> {
        self.bootstraps.iter_mut().find(|bootstrap| bootstrap.contact.peer == peer)
    }

    /// Notes an answer of a bootstrap contact that was asked. False for any other peer.
    pub(crate) fn bootstrap_answered(&mut self, contact: &Member, now: Time) -> bool {
        // `is_asked` first: this runs for each answer, and the peer id lies far away in memory.
        let is_it = |bootstrap: &&mut Bootstrap| bootstrap.is_asked && bootstrap.contact.peer == contact.peer;
        let Some(bootstrap) = self.bootstraps.iter_mut().find(is_it) else { return false };
        bootstrap.is_asked = false;
        bootstrap.period = (bootstrap.period * 2).min(BOOTSTRAP_PERIOD_MAX);
        bootstrap.next = now + bootstrap.period;
        // Its own message gives the address and incarnation that count.
        bootstrap.contact = contact.clone();
        self.refresh();
        true
    }

    /// Notes that a bootstrap contact did not answer: it is asked again after `longest`; while we are lonely sooner,
    /// each wait twice the one before, up to `longest`. Does nothing for any other peer.
    pub(crate) fn bootstrap_failed(&mut self, peer: PeerId, now: Time, is_lonely: bool, longest: Duration) {
        if let Some(bootstrap) = self.bootstrap(peer) {
            bootstrap.period = if is_lonely { (bootstrap.period * 2).min(longest) } else { longest };
            bootstrap.next = now + bootstrap.period;
            bootstrap.is_asked = false;
            self.refresh();
        }
    }

    /// All bootstrap contacts are asked by `at`, and every `period` after.
    pub(crate) fn ask_bootstraps_at(&mut self, at: Time, period: Duration) {
        for bootstrap in self.bootstraps.iter_mut() {
            (bootstrap.next, bootstrap.period) = (bootstrap.next.min(at), period);
        }
        self.refresh();
    }

    /// A bootstrap contact to ask now; its next turn comes after its period.
    pub(crate) fn due_bootstrap(&mut self, now: Time) -> Option<Member> {
        let bootstrap = self.bootstraps.iter_mut().find(|bootstrap| bootstrap.next <= now)?;
        (bootstrap.next, bootstrap.is_asked) = (now + bootstrap.period, true);
        let contact = bootstrap.contact.clone();
        self.refresh();
        Some(contact)
    }

    /// When the next bootstrap contact is to be asked.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next
    }

    fn refresh(&mut self) {
        self.next = self.bootstraps.iter().map(|bootstrap| bootstrap.next).min();
    }
}

/// The peers that are gone.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) tombstones: Tombstones,
    pub(crate) graveyard: Graveyard,
    /// When some of the graveyard are probed next.
    visit: Time,
}

impl Lost {
    pub(crate) fn new(local: &mut Local) -> Self {
        Self {
            tombstones: Tombstones::default(),
            graveyard: Graveyard::new(local.config.graveyard_len),
            visit: local.after_ms(local.config.graveyard_probe_ms),
        }
    }

    /// All lists are within bounds, and the next bootstrap contact is known.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        let Graveyard { len_max, graves, bootstraps, next } = &self.graveyard;
        debug_assert!(self.tombstones.by_peer.len() <= TOMBSTONES_MAX, "too many tombstones");
        debug_assert!(graves.len() <= *len_max && bootstraps.len() <= BOOTSTRAPS_MAX, "too many graves");
        debug_assert_eq!(*next, bootstraps.iter().map(|bootstrap| bootstrap.next).min(), "whom to ask first");
    }

    /// When there is timed work.
    pub(crate) fn deadline(&self) -> Time {
        let visit = if self.graveyard.has_graves() { self.visit } else { Time::MAX };
        self.graveyard.deadline().map_or(visit, |next| visit.min(next))
    }

    /// Asks some lost peers, and the bootstrap contacts that are due, whether they are back.
    pub(crate) fn visit(&mut self, local: &mut Local, line: &mut Line) {
        while self.graveyard.deadline().is_some_and(|next| next <= local.now)
            && let Some(contact) = self.graveyard.due_bootstrap(local.now)
        {
            line.probe(local, &contact, local.config.probe_tries);
        }
        if self.visit > local.now {
            return;
        }
        let period_ms = if line.is_lonely() { local.config.heartbeat_ms } else { local.config.graveyard_probe_ms };
        self.visit = local.after_ms(period_ms);
        let mut graves = self.graveyard.graves();
        for _ in 0..GRAVES_PER_ROUND.min(graves.len()) {
            let grave = graves.swap_remove(local.rng.random_range(0..graves.len()));
            line.ask_once(local, &grave);
        }
    }

    /// This peer is alone: asks all bootstrap contacts, and lost peers, again soon.
    pub(crate) fn visit_soon(&mut self, now: Time) {
        let soon = now + LONELY_WAIT_MIN;
        self.graveyard.ask_bootstraps_at(soon, LONELY_WAIT_MIN);
        self.visit = self.visit.min(soon);
    }

    /// A neighbour crashed.
    pub(crate) fn bury(&mut self, local: &Local, contact: &Member, path: Path) {
        self.set_tombstone(local, contact, false);
        self.graveyard.bury(contact.clone(), path, local.now);
    }

    /// A peer said good-bye.
    pub(crate) fn bid_farewell(&mut self, local: &Local, contact: &Member) {
        self.graveyard.forget(contact.peer);
        self.set_tombstone(local, contact, true);
    }

    fn set_tombstone(&mut self, local: &Local, contact: &Member, left: bool) {
        let until = local.now + Duration::from_millis(local.config.tombstone_ms);
        self.tombstones.set(contact, until, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Contact;

    fn contact(byte: u8, incarnation: u64) -> Member {
        Contact { peer: PeerId([byte; 32]), incarnation, address: "".into(), nonce: None }.into()
    }

    #[test]
    fn a_tombstone_covers_this_and_earlier_lives_until_it_expires() {
        let mut stones = Tombstones::default();
        stones.set(&contact(1, 5), Time::from_micros(60), false);
        assert!(stones.covering(&contact(1, 4), Time::ZERO).is_some());
        assert!(stones.covering(&contact(1, 5), Time::ZERO).is_some_and(|stone| !stone.left));
        assert!(stones.covering(&contact(1, 6), Time::ZERO).is_none());
        assert!(stones.covering(&contact(1, 5), Time::from_micros(60)).is_none());
        stones.purge(Time::from_micros(60));
        assert!(stones.covering(&contact(1, 5), Time::ZERO).is_none());
    }

    #[test]
    fn tombstones_graves_and_bootstraps_are_bounded() {
        let peers = |byte: u8| PeerId(*blake3::hash(&[byte]).as_bytes());
        let (mut stones, mut graveyard) = (Tombstones::default(), Graveyard::new(2));
        for number in 0..TOMBSTONES_MAX as u32 * 2 {
            let peer = PeerId(*blake3::hash(&number.to_le_bytes()).as_bytes());
            let contact: Member = Contact { peer, incarnation: 1, address: "".into(), nonce: None }.into();
            stones.set(&contact, Time::from_micros(i64::from(number)), false);
            stones.set_candidate(&contact, Time::from_micros(i64::from(number)));
        }
        assert_eq!(stones.by_peer.len(), TOMBSTONES_MAX);
        assert!(
            stones.by_peer.values().all(|stone| stone.until.as_micros() >= TOMBSTONES_MAX as i64),
            "the latest stay"
        );
        for byte in 0..=255 {
            graveyard.add_bootstrap(peers(byte).into(), Time::ZERO, Duration::ZERO);
        }
        assert_eq!(graveyard.bootstraps.len(), BOOTSTRAPS_MAX);
    }

    #[test]
    fn the_graveyard_forgets_the_longest_buried() {
        let mut graveyard = Graveyard::new(2);
        for byte in 1..=3 {
            graveyard.bury(contact(byte, 1), Path::default(), Time::from_micros(i64::from(byte)));
        }
        assert_eq!(graveyard.graves(), [contact(2, 1), contact(3, 1)]);
        assert!(graveyard.forget(PeerId([2; 32])).is_some());
        assert!(graveyard.forget(PeerId([2; 32])).is_none());
    }

    #[test]
    fn a_bootstrap_is_asked_less_often_while_it_answers() {
        let second = Duration::from_secs(1);
        let mut graveyard = Graveyard::new(2);
        graveyard.add_bootstrap(contact(1, 0), Time::ZERO, second);
        assert!(graveyard.due_bootstrap(Time::ZERO).is_some());
        graveyard.bootstrap_answered(&contact(1, 3), Time::ZERO);
        assert_eq!(graveyard.deadline(), Some(Time::ZERO + second * 2));
        graveyard.bootstrap_failed(PeerId([1; 32]), Time::ZERO, false, second);
        assert_eq!(graveyard.deadline(), Some(Time::ZERO + second));
        graveyard.bootstrap_failed(PeerId([1; 32]), Time::ZERO, true, second * 3);
        assert_eq!(graveyard.deadline(), Some(Time::ZERO + second * 2));
        graveyard.bootstrap_failed(PeerId([1; 32]), Time::ZERO, true, second * 3);
        assert_eq!(graveyard.deadline(), Some(Time::ZERO + second * 3));
    }
}
