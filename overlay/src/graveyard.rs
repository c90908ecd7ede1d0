//! Those that are gone: tombstones against hearsay, and the graveyard that heals partitions.
//!
//! A *tombstone* (peer, incarnation) keeps a peer that crashed or left from coming back by hearsay for a minute; only
//! its own answer, or a newer life, counts. The *graveyard* remembers lost peers much longer and probes them now and
//! then: the first that answers shows that a partition is over. Bootstrap contacts stay in it for good, and are asked
//! less and less often while they answer.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Contact, PeerId, Time};

const TOMBSTONES_MAX: usize = 512;
const BOOTSTRAPS_MAX: usize = 32;
/// Longest wait before a bootstrap contact that answers is asked again.
const BOOTSTRAP_PERIOD_MAX: Duration = Duration::from_secs(3_600);

#[derive(Clone, Debug)]
pub(crate) struct Tombstone {
    pub(crate) incarnation: u64,
    pub(crate) until: Time,
    /// It said good-bye: not even its own late messages bring this life back.
    pub(crate) left: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    by_peer: BTreeMap<PeerId, Tombstone>,
}

impl Tombstones {
    /// The tombstone of this or a later life of the peer.
    pub(crate) fn covering(&self, contact: &Contact) -> Option<&Tombstone> {
        self.by_peer.get(&contact.peer).filter(|stone| stone.incarnation >= contact.incarnation)
    }

    pub(crate) fn set(&mut self, contact: &Contact, until: Time, left: bool) {
        let stone = self.by_peer.entry(contact.peer).or_insert(Tombstone { incarnation: 0, until, left });
        if contact.incarnation > stone.incarnation {
            *stone = Tombstone { incarnation: contact.incarnation, until, left };
        } else if contact.incarnation == stone.incarnation {
            stone.until = stone.until.max(until);
            stone.left |= left;
        }
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
    contact: Contact,
    buried: Time,
}

#[derive(Clone, Debug)]
struct Bootstrap {
    contact: Contact,
    next: Time,
    period: Duration,
}

#[derive(Debug)]
pub(crate) struct Graveyard {
    len_max: usize,
    graves: BTreeMap<PeerId, Grave>,
    bootstraps: BTreeMap<PeerId, Bootstrap>,
}

impl Graveyard {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, graves: BTreeMap::new(), bootstraps: BTreeMap::new() }
    }

    pub(crate) fn bury(&mut self, contact: Contact, now: Time) {
        self.graves.insert(contact.peer, Grave { contact, buried: now });
        if self.graves.len() > self.len_max
            && let Some(peer) = self.graves.iter().min_by_key(|(_, grave)| grave.buried).map(|(peer, _)| *peer)
        {
            self.graves.remove(&peer);
        }
    }

    /// Whether this life, or an earlier one, of the peer is remembered as lost.
    pub(crate) fn holds(&self, contact: &Contact) -> bool {
        self.graves.get(&contact.peer).is_some_and(|grave| grave.contact.incarnation <= contact.incarnation)
    }

    /// The peer lives, or left: forget it. True when it was here.
    pub(crate) fn forget(&mut self, peer: PeerId) -> bool {
        self.graves.remove(&peer).is_some()
    }

    pub(crate) fn graves(&self) -> Vec<Contact> {
        self.graves.values().map(|grave| grave.contact.clone()).collect()
    }

    pub(crate) fn add_bootstrap(&mut self, contact: Contact, next: Time, period: Duration) {
        if self.bootstraps.len() < BOOTSTRAPS_MAX || self.bootstraps.contains_key(&contact.peer) {
            self.bootstraps.insert(contact.peer, Bootstrap { contact, next, period });
        }
    }

    /// A bootstrap contact answered.
    pub(crate) fn bootstrap_answered(&mut self, contact: &Contact, now: Time) -> bool {
        let Some(bootstrap) = self.bootstraps.get_mut(&contact.peer) else { return false };
        bootstrap.period = (bootstrap.period * 2).min(BOOTSTRAP_PERIOD_MAX);
        bootstrap.next = now + bootstrap.period;
        bootstrap.contact.incarnation = contact.incarnation;
        true
    }

    /// A bootstrap contact did not answer: true when the peer is one.
    pub(crate) fn bootstrap_failed(&mut self, peer: PeerId, now: Time, period: Duration) -> bool {
        let Some(bootstrap) = self.bootstraps.get_mut(&peer) else { return false };
        bootstrap.period = period;
        bootstrap.next = now + period;
        true
    }

    /// A bootstrap contact to ask now; it is put off by its period.
    pub(crate) fn due_bootstrap(&mut self, now: Time) -> Option<Contact> {
        let bootstrap = self.bootstraps.values_mut().find(|bootstrap| bootstrap.next <= now)?;
        bootstrap.next = now + bootstrap.period;
        Some(bootstrap.contact.clone())
    }

    /// When the next bootstrap contact is to be asked.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.bootstraps.values().map(|bootstrap| bootstrap.next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(byte: u8, incarnation: u64) -> Contact {
        Contact { peer: PeerId([byte; 32]), incarnation, address: "".into() }
    }

    #[test]
    fn a_tombstone_covers_this_and_earlier_lives_until_it_expires() {
        let mut stones = Tombstones::default();
        stones.set(&contact(1, 5), Time::from_micros(60), false);
        assert!(stones.covering(&contact(1, 4)).is_some());
        assert!(stones.covering(&contact(1, 5)).is_some_and(|stone| !stone.left));
        assert!(stones.covering(&contact(1, 6)).is_none());
        stones.purge(Time::from_micros(60));
        assert!(stones.covering(&contact(1, 5)).is_none());
    }

    #[test]
    fn the_graveyard_forgets_the_longest_buried() {
        let mut graveyard = Graveyard::new(2);
        for byte in 1..=3 {
            graveyard.bury(contact(byte, 1), Time::from_micros(i64::from(byte)));
        }
        assert_eq!(graveyard.graves(), [contact(2, 1), contact(3, 1)]);
        assert!(graveyard.forget(PeerId([2; 32])));
        assert!(!graveyard.forget(PeerId([2; 32])));
    }

    #[test]
    fn a_bootstrap_is_asked_less_often_while_it_answers() {
        let second = Duration::from_secs(1);
        let mut graveyard = Graveyard::new(2);
        graveyard.add_bootstrap(contact(1, 0), Time::ZERO, second);
        assert!(graveyard.due_bootstrap(Time::ZERO).is_some());
        graveyard.bootstrap_answered(&contact(1, 3), Time::ZERO);
        assert_eq!(graveyard.deadline(), Some(Time::ZERO + second * 2));
        graveyard.bootstrap_failed(PeerId([1; 32]), Time::ZERO, second);
        assert_eq!(graveyard.deadline(), Some(Time::ZERO + second));
    }
}
