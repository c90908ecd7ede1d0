//! The neighbours on the line: the only hard state of the overlay.
//!
//! Up to eight predecessors and eight successors, ordered, without ourselves and without duplicates (invariant I2).
//! Only peers that answered us directly at their incarnation get in (I1); `membership` sees to that.

use crate::digest::Digest;
use crate::identity::{Contact, Member, PeerId, PositionKey};
use crate::path::Path;
use crate::time::Time;

/// A verified neighbour.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub(crate) contact: Member,
    pub(crate) key: PositionKey,
    /// When we received anything from it last.
    pub(crate) heard: Time,
    /// When digests were last compared.
    pub(crate) exchanged: Time,
    pub(crate) path: Path,
    /// Digest of its leaf set as we know it; 0 is none.
    pub(crate) seen: u32,
    /// Scales its periods, in per cent.
    pub(crate) pace_percent: u8,
    /// A probe of it is under way.
    pub(crate) probed: bool,
}

impl Neighbour {
    pub(crate) fn contact(&self) -> &Member {
        &self.contact
    }
}

/// How long neighbours may be silent, in microseconds rather than `Duration`: read for every message, where that
/// conversion shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// For the two next to us.
    pub(crate) adjacent_us: i64,
    /// For the others, and for leaf sets whose digests were not compared.
    pub(crate) others_us: i64,
}

/// Both sides, nearest first.
#[derive(Clone, Debug)]
pub(crate) struct LeafSet {
    me: PositionKey,
    side_len: usize,
    silence: Silence,
    /// Predecessors, then successors, nearest first.
    entries: Vec<Neighbour>,
    /// Number of predecessors in `entries`.
    below_len: usize,
    /// By entry, the beginning of its peer id: compared first, in contiguous memory.
    tags: Vec<u64>,
    /// By entry, when it is to be pinged.
    due: Vec<Time>,
    /// The earliest of `due`.
    next: Time,
    /// None after a change: computed when first asked for, since several changes may come before that.
    digest: Option<u32>,
}

/// Tells peers apart in most cases.
fn tag(peer: &PeerId) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&peer.0[..8]);
    u64::from_le_bytes(first)
}

impl LeafSet {
    pub(crate) fn new(me: PositionKey, side_len: usize, silence: Silence) -> Self {
        Self {
            me,
            side_len,
            silence,
            entries: Vec::new(),
            below_len: 0,
            tags: Vec::new(),
            due: Vec::new(),
            next: Time::MAX,
            digest: None,
        }
    }

    /// I2: both sides in order, nearest first, within their length, without ourselves and without duplicates; and
    /// `tags`, `due` and `next` agree with `entries`.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_ordered(&self) {
        let [below, above] = self.sides();
        debug_assert!(below.len() <= self.side_len && above.len() <= self.side_len, "{} neighbours", self.len());
        debug_assert!(below.iter().all(|neighbour| neighbour.key < self.me), "a predecessor is not below us");
        debug_assert!(above.iter().all(|neighbour| neighbour.key > self.me), "a successor is not above us");
        debug_assert!(below.is_sorted_by(|one, other| one.key > other.key), "predecessors out of order");
        debug_assert!(above.is_sorted_by(|one, other| one.key < other.key), "successors out of order");
        for (place, neighbour) in self.entries.iter().enumerate() {
            let peer = neighbour.contact.peer;
            debug_assert_eq!(self.place(peer), Some(place), "{peer:?} is there twice");
            debug_assert_eq!(self.tags[place], tag(&peer), "the tag of {peer:?}");
            debug_assert_eq!(self.due[place], self.due_of(place), "when {peer:?} is due");
        }
        debug_assert_eq!((self.tags.len(), self.due.len()), (self.len(), self.len()), "tags and due of the entries");
        debug_assert_eq!(self.next, self.due.iter().copied().fold(Time::MAX, Time::min), "who is due first");
    }

    pub(crate) fn predecessor(&self) -> Option<&Neighbour> {
        self.entries[..self.below_len].first()
    }

    pub(crate) fn successor(&self) -> Option<&Neighbour> {
        self.entries.get(self.below_len)
    }

    /// Predecessors, then successors, nearest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Neighbour> {
        self.entries.iter()
    }

    /// Predecessors and successors, nearest first.
    pub(crate) fn sides(&self) -> [&[Neighbour]; 2] {
        let (below, above) = self.entries.split_at(self.below_len);
        [below, above]
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn place(&self, peer: PeerId) -> Option<usize> {
        let tag = tag(&peer);
        let is_it = |(place, other): (usize, &u64)| {
            (*other == tag && self.entries[place].contact.peer == peer).then_some(place)
        };
        self.tags.iter().enumerate().find_map(is_it)
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Neighbour> {
        self.place(peer).map(|place| &self.entries[place])
    }

    /// Changes what is known of a neighbour, not its identity. False if the peer is no neighbour.
    pub(crate) fn update(&mut self, peer: PeerId, change: impl FnOnce(&mut Neighbour)) -> bool {
        let Some(place) = self.place(peer) else { return false };
        change(&mut self.entries[place]);
        self.refresh_due(place);
        true
    }

    /// When the next neighbour is to be pinged.
    pub(crate) fn next_due(&self) -> Time {
        self.next
    }

    /// A neighbour that is to be pinged now.
    pub(crate) fn due(&self, now: Time) -> Option<&Member> {
        self.due.iter().position(|due| *due <= now).map(|place| self.entries[place].contact())
    }

    fn refresh_due(&mut self, place: usize) {
        let was = self.due[place];
        let due = self.due_of(place);
        self.due[place] = due;
        if due <= self.next {
            self.next = due;
        } else if was == self.next {
            self.next = self.due.iter().copied().fold(Time::MAX, Time::min);
        }
    }

    /// When the neighbour at this index is to be pinged.
    fn due_of(&self, place: usize) -> Time {
        let neighbour = &self.entries[place];
        if neighbour.probed {
            return Time::MAX;
        }
        let after = |last: Time, silence_us: i64| {
            let silence_us = silence_us.saturating_mul(neighbour.pace_percent.into()) / 100;
            Time::from_micros(last.as_micros().saturating_add(silence_us))
        };
        let exchange = after(neighbour.exchanged, self.silence.others_us);
        let is_adjacent = (place == 0 && self.below_len > 0) || place == self.below_len;
        if is_adjacent { exchange.min(after(neighbour.heard, self.silence.adjacent_us)) } else { exchange }
    }

    /// The peer on the other side of `peer`, where `peer` stands next to us.
    pub(crate) fn beyond(&self, peer: PeerId) -> Option<&Member> {
        let adjacent = |side: &&[Neighbour]| side.first().is_some_and(|first| first.contact().peer == peer);
        self.sides().iter().find(|side| adjacent(side)).and_then(|side| side.get(1)).map(Neighbour::contact)
    }

    /// Whether a side has so few neighbours, or the gap next to us is so wide, that we may have lost sight of part of
    /// the line.
    pub(crate) fn is_doubtful(&self) -> bool {
        const SIDE_LEN_MIN: usize = 3;
        const WIDE: u64 = 8;
        let few = self.sides().iter().any(|side| side.len() < SIDE_LEN_MIN);
        let wide = self.sides().iter().any(|side| {
            let [first, .., last] = side else { return false };
            let far = |neighbour: &Neighbour| neighbour.key.head().abs_diff(self.me.head());
            let mean = (far(last) - far(first)) / (side.len() as u64 - 1);
            far(first) / WIDE > mean
        });
        few || wide
    }

    /// Whether this peer stands next to us.
    pub(crate) fn is_adjacent(&self, peer: PeerId) -> bool {
        [self.predecessor(), self.successor()].into_iter().flatten().any(|neighbour| neighbour.contact().peer == peer)
    }

    /// Whether a peer at `key` that is not in the set belongs into it.
    pub(crate) fn wants(&self, key: &PositionKey) -> bool {
        let side = self.sides()[usize::from(*key > self.me)];
        *key != self.me
            && (side.len() < self.side_len
                || side.last().is_some_and(|last| (*key < self.me) == (last.key < *key) && last.key != *key))
    }

    /// Whether a peer whose key begins like this may belong into the set.
    pub(crate) fn may_want(&self, head: u64) -> bool {
        let [below, above] = self.sides().map(|side| side.last().filter(|_| side.len() == self.side_len));
        below.is_none_or(|last| head >= last.key.head()) && above.is_none_or(|last| head <= last.key.head())
    }

    /// The deepest bucket of fingers that reaches beyond the leaf set; none when the leaf set is the whole line.
    pub(crate) fn deepest_bucket_beyond(&self) -> Option<u16> {
        let full = self.sides().into_iter().filter(|side| side.len() == self.side_len);
        full.filter_map(<[Neighbour]>::last).map(|farthest| farthest.key.common_prefix(&self.me)).min()
    }

    /// Puts a peer in, in place of an older life of it. The farthest one of a full side drops out.
    pub(crate) fn insert(&mut self, neighbour: Neighbour) {
        let key = neighbour.key;
        if key == self.me {
            return;
        }
        if let Some(place) = self.place(neighbour.contact.peer) {
            self.take(place);
        }
        let is_below = key < self.me;
        let (start, len) =
            if is_below { (0, self.below_len) } else { (self.below_len, self.entries.len() - self.below_len) };
        let side = &self.entries[start..start + len];
        let place = start + side.partition_point(|other| (other.key > key) == is_below);
        if place == start + self.side_len {
            return;
        }
        if len == self.side_len {
            self.take(start + len - 1);
        }
        self.entries.reserve_exact(1);
        self.entries.insert(place, neighbour);
        self.below_len += usize::from(is_below);
        self.refresh();
    }

    pub(crate) fn remove(&mut self, peer: PeerId) -> Option<Neighbour> {
        let removed = self.take(self.place(peer)?);
        self.refresh();
        Some(removed)
    }

    fn take(&mut self, place: usize) -> Neighbour {
        self.below_len -= usize::from(place < self.below_len);
        self.entries.remove(place)
    }

    /// Takes over the address that a neighbour announces. True when it changed.
    pub(crate) fn readdress(&mut self, peer: PeerId, address: &str) -> bool {
        let Some(place) = self.place(peer) else { return false };
        let contact = &mut self.entries[place].contact;
        let is_other = *contact.address != *address;
        if is_other {
            *contact = Contact { address: address.into(), ..(**contact).clone() }.into();
            self.digest = None;
        }
        is_other
    }

    /// Identifies the content; never 0.
    pub(crate) fn digest(&mut self) -> u32 {
        let digest = self.digest.unwrap_or_else(|| self.compute_digest());
        self.digest = Some(digest);
        digest
    }

    /// After peers came or went.
    fn refresh(&mut self) {
        let tags = self.entries.iter().map(|neighbour| tag(&neighbour.contact().peer));
        self.tags = tags.collect();
        self.due = (0..self.entries.len()).map(|place| self.due_of(place)).collect();
        self.next = self.due.iter().copied().fold(Time::MAX, Time::min);
        self.digest = None;
    }

    fn compute_digest(&self) -> u32 {
        let mut digest = Digest::default();
        self.iter().for_each(|neighbour| digest.add_contact(neighbour.contact()));
        digest.short()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn neighbour(byte: u8) -> Neighbour {
        let (contact, key) = (PeerId([byte; 32]).into(), PositionKey([byte; 32]));
        let (heard, exchanged, path) = (Time::ZERO, Time::ZERO, Path::default());
        Neighbour { contact, key, heard, exchanged, path, seen: 0, pace_percent: 100, probed: false }
    }

    fn empty(side_len: usize) -> LeafSet {
        let silence = Silence { adjacent_us: 2_000_000, others_us: 30_000_000 };
        LeafSet::new(PositionKey([100; 32]), side_len, silence)
    }

    fn bytes(set: &LeafSet) -> Vec<u8> {
        set.iter().map(|neighbour| neighbour.key.0[0]).collect()
    }

    #[test]
    fn keeps_the_nearest_of_either_side_in_order() {
        let mut set = empty(2);
        for byte in [1, 90, 200, 99, 101, 150, 90, 100] {
            set.insert(neighbour(byte));
        }
        assert_eq!(bytes(&set), [99, 90, 101, 150]);
        assert_eq!(set.predecessor().map(|n| n.key.0[0]), Some(99));
        assert_eq!(set.successor().map(|n| n.key.0[0]), Some(101));
    }

    #[test]
    fn wants_only_peers_nearer_than_the_farthest_of_a_full_side() {
        let mut set = empty(2);
        assert!(set.wants(&PositionKey([1; 32])));
        for byte in [90, 99, 101] {
            set.insert(neighbour(byte));
        }
        let wants = |byte| set.wants(&PositionKey([byte; 32]));
        assert_eq!([89, 90, 91, 100, 200].map(wants), [false, false, true, false, true]);
    }

    #[test]
    fn the_digest_follows_the_content() {
        let mut set = empty(2);
        let empty = set.digest();
        set.insert(neighbour(7));
        assert_ne!(set.digest(), empty);
        set.remove(PeerId([7; 32]));
        assert_eq!(set.digest(), empty);
    }

    #[test]
    fn adjacent_neighbours_are_due_sooner_and_none_while_it_is_probed() {
        let mut set = empty(8);
        [90, 91, 110, 120].iter().for_each(|byte| set.insert(neighbour(*byte)));
        assert_eq!(set.next_due(), Time::ZERO + Duration::from_secs(2));
        let now = Time::ZERO + Duration::from_secs(3);
        let mut due = Vec::new();
        while let Some(peer) = set.due(now).map(|contact| contact.peer) {
            due.push(peer.0[0]);
            set.update(peer, |neighbour| neighbour.probed = true);
        }
        assert_eq!(due, [91, 110]);
        set.update(PeerId([91; 32]), |neighbour| (neighbour.probed, neighbour.heard) = (false, now));
        assert_eq!(set.next_due(), now + Duration::from_secs(2));
        set.remove(PeerId([91; 32]));
        assert_eq!(set.due(now).map(|contact| contact.peer.0[0]), Some(90));
    }

    #[test]
    fn a_short_side_or_a_wide_gap_is_doubtful() {
        let mut set = empty(8);
        [97, 98, 99, 101, 102].iter().for_each(|byte| set.insert(neighbour(*byte)));
        assert!(set.is_doubtful(), "two successors");
        set.insert(neighbour(103));
        assert!(!set.is_doubtful());
        [97, 98, 99].iter().for_each(|byte| _ = set.remove(PeerId([*byte; 32])));
        [10, 11, 12, 13].iter().for_each(|byte| set.insert(neighbour(*byte)));
        assert!(set.is_doubtful(), "87 to the first, one from each to the next");
        assert_eq!(set.beyond(PeerId([101; 32])).map(|contact| contact.peer.0[0]), Some(102));
    }
}
