//! The neighbours on the line: the only hard state of the overlay.
//!
//! Up to eight predecessors and eight successors, ordered, without ourselves and without duplicates (invariant I2).
//! Only peers that answered us directly at their incarnation get in (I1); `membership` sees to that.

use std::time::Duration;

use crate::message::short;
use crate::{Contact, Member, PeerId, PositionKey, Time};

/// A verified neighbour.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub(crate) member: Member,
    /// When anything last came from it.
    pub(crate) heard: Time,
    /// When digests were last compared.
    pub(crate) exchanged: Time,
    /// Smoothed round trip.
    pub(crate) round_trip: Option<Duration>,
    /// Digest of its leaf set as we know it; 0 is none.
    pub(crate) seen: u64,
    /// Scales its periods, in per cent.
    pub(crate) pace_percent: u32,
}

impl Neighbour {
    pub(crate) fn contact(&self) -> &Contact {
        &self.member.contact
    }
}

/// Both sides, nearest first.
#[derive(Debug)]
pub(crate) struct LeafSet {
    me: PositionKey,
    side_len: usize,
    below: Vec<Neighbour>,
    above: Vec<Neighbour>,
    digest: u64,
}

impl LeafSet {
    pub(crate) fn new(me: PositionKey, side_len: usize) -> Self {
        let mut set = Self { me, side_len, below: Vec::new(), above: Vec::new(), digest: 0 };
        set.refresh_digest();
        set
    }

    pub(crate) fn predecessor(&self) -> Option<&Neighbour> {
        self.below.first()
    }

    pub(crate) fn successor(&self) -> Option<&Neighbour> {
        self.above.first()
    }

    /// Predecessors, then successors, nearest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Neighbour> {
        self.below.iter().chain(&self.above)
    }

    pub(crate) fn len(&self) -> usize {
        self.below.len() + self.above.len()
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Neighbour> {
        self.iter().find(|neighbour| neighbour.contact().peer == peer)
    }

    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Neighbour> {
        self.below.iter_mut().chain(&mut self.above).find(|neighbour| neighbour.member.contact.peer == peer)
    }

    /// Whether this peer stands next to us.
    pub(crate) fn is_adjacent(&self, peer: PeerId) -> bool {
        [self.predecessor(), self.successor()].into_iter().flatten().any(|neighbour| neighbour.contact().peer == peer)
    }

    /// Whether a peer at `key` that is not in the set belongs into it.
    pub(crate) fn wants(&self, key: &PositionKey) -> bool {
        let side = if *key < self.me { &self.below } else { &self.above };
        *key != self.me
            && (side.len() < self.side_len
                || side
                    .last()
                    .is_some_and(|last| (*key < self.me) == (last.member.key < *key) && last.member.key != *key))
    }

    /// The deepest bucket of fingers that reaches beyond the leaf set; none when the leaf set is the whole line.
    pub(crate) fn deepest_bucket_beyond(&self) -> Option<u16> {
        let full = [&self.below, &self.above].into_iter().filter(|side| side.len() == self.side_len);
        full.filter_map(|side| side.last()).map(|farthest| farthest.member.key.common_prefix(&self.me)).min()
    }

    /// Puts a peer in, in place of an older life of it. The farthest one of a full side drops out.
    pub(crate) fn insert(&mut self, neighbour: Neighbour) {
        let key = neighbour.member.key;
        if key == self.me {
            return;
        }
        let is_below = key < self.me;
        let side = if is_below { &mut self.below } else { &mut self.above };
        side.retain(|other| other.member.key != key);
        let place = side.partition_point(|other| (other.member.key > key) == is_below);
        side.insert(place, neighbour);
        side.truncate(self.side_len);
        self.refresh_digest();
    }

    pub(crate) fn remove(&mut self, peer: PeerId) -> Option<Neighbour> {
        let is_it = |neighbour: &Neighbour| neighbour.member.contact.peer == peer;
        let removed = if let Some(place) = self.below.iter().position(is_it) {
            self.below.remove(place)
        } else {
            self.above.remove(self.above.iter().position(is_it)?)
        };
        self.refresh_digest();
        Some(removed)
    }

    /// Takes over the address that a neighbour gives itself.
    pub(crate) fn readdress(&mut self, contact: &Contact) {
        if let Some(neighbour) = self.get_mut(contact.peer)
            && neighbour.member.contact.address != contact.address
        {
            neighbour.member.contact.address.clone_from(&contact.address);
            self.refresh_digest();
        }
    }

    /// Identifies the content; never 0.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    fn refresh_digest(&mut self) {
        let mut hasher = blake3::Hasher::new();
        for neighbour in self.iter() {
            hasher.update(&neighbour.contact().peer.0);
            hasher.update(&neighbour.contact().incarnation.to_le_bytes());
            hasher.update(neighbour.contact().address.as_bytes());
        }
        self.digest = short(&hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GridId;

    fn neighbour(byte: u8) -> Neighbour {
        let contact = Contact { peer: PeerId([byte; 32]), incarnation: 1, address: "".into() };
        let member = Member { key: PositionKey([byte; 32]), ..Member::new(GridId([0; 32]), contact) };
        Neighbour { member, heard: Time::ZERO, exchanged: Time::ZERO, round_trip: None, seen: 0, pace_percent: 100 }
    }

    fn bytes(set: &LeafSet) -> Vec<u8> {
        set.iter().map(|neighbour| neighbour.member.key.0[0]).collect()
    }

    #[test]
    fn keeps_the_nearest_of_either_side_in_order() {
        let mut set = LeafSet::new(PositionKey([100; 32]), 2);
        for byte in [1, 90, 200, 99, 101, 150, 90, 100] {
            set.insert(neighbour(byte));
        }
        assert_eq!(bytes(&set), [99, 90, 101, 150]);
        assert_eq!(set.predecessor().map(|n| n.member.key.0[0]), Some(99));
        assert_eq!(set.successor().map(|n| n.member.key.0[0]), Some(101));
    }

    #[test]
    fn wants_only_what_is_nearer_than_the_farthest_of_a_full_side() {
        let mut set = LeafSet::new(PositionKey([100; 32]), 2);
        assert!(set.wants(&PositionKey([1; 32])));
        for byte in [90, 99, 101] {
            set.insert(neighbour(byte));
        }
        let wants = |byte| set.wants(&PositionKey([byte; 32]));
        assert_eq!([89, 90, 91, 100, 200].map(wants), [false, false, true, false, true]);
    }

    #[test]
    fn the_digest_follows_the_content() {
        let mut set = LeafSet::new(PositionKey([100; 32]), 2);
        let empty = set.digest();
        set.insert(neighbour(7));
        assert_ne!(set.digest(), empty);
        set.remove(PeerId([7; 32]));
        assert_eq!(set.digest(), empty);
    }
}
