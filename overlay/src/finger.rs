//! Fingers: peers far away on the line, for look-ups in O(log N) steps.
//!
//! Peers are sorted into buckets by the length of the prefix that their key shares with ours. A bucket keeps a few of
//! them; while there are few fingers in all, it keeps more. Buckets are filled by peers that send us a message and by
//! look-ups of random places in sparse buckets.
//!
//! A second list holds peers that others named but that never sent us a message. We never name these to others, or dead
//! peers would be passed on for ever; a look-up asks them when so many peers are gone that the fingers may not lead
//! back.

use std::time::Duration;

use crate::identity::{Member, PeerId, PositionKey};
use crate::time::Time;

/// A finger that was silent for so long is replaced by a peer that we hear from.
const STALE: Duration = Duration::from_secs(120);

/// Fewest fingers kept in all, whatever their buckets: a peer that loses all neighbours at once finds back through one
/// that lives. Large grids have more than these anyway. Our choice: if four of five machines fail, of these and 16
/// neighbours all fail for one survivor in fifty thousand (0.8^48).
const LEN_MIN: usize = 32;

/// Most peers kept that others named: our choice. If four of five machines fail, of these and 16 neighbours all fail
/// for one survivor in fifty million (0.8^80).
const HEARD_OF_MAX: usize = 64;

/// Without the whole key: its beginning orders fingers, and fingers are the larger part of a quiet peer's memory.
#[derive(Clone, Debug)]
struct Finger {
    contact: Member,
    /// Beginning of the key.
    head: u64,
    /// Beginning of the peer id, compared before the contact is read.
    tag: u32,
    /// When the peer was heard last, in seconds.
    heard_s: u32,
}

impl Finger {
    fn is(&self, peer: PeerId) -> bool {
        self.tag == tag(peer) && self.contact.peer == peer
    }
}

/// Tells peers apart in most cases.
fn tag(PeerId([a, b, c, d, ..]): PeerId) -> u32 {
    u32::from_le_bytes([a, b, c, d])
}

#[derive(Clone, Debug)]
pub(crate) struct Fingers {
    me: PositionKey,
    per_bucket: u16,
    list: Vec<Finger>,
    heard_of: Vec<Member>,
    /// By index in `heard_of`, the tag of the peer: compared before the contacts are read.
    heard_of_tags: Vec<u32>,
}

fn seconds(now: Time) -> u32 {
    u32::try_from(now.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX)
}

impl Fingers {
    pub(crate) fn new(me: PositionKey, per_bucket: usize) -> Self {
        Self {
            me,
            per_bucket: per_bucket.min(usize::from(u16::MAX)) as u16,
            list: Vec::new(),
            heard_of: Vec::new(),
            heard_of_tags: Vec::new(),
        }
    }

    /// Both lists are within bounds.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        let len_max = LEN_MIN.max(65 * usize::from(self.per_bucket));
        debug_assert!(self.list.len() <= len_max, "{} fingers", self.list.len());
        debug_assert!(self.heard_of.len() <= HEARD_OF_MAX, "heard of {}", self.heard_of.len());
        let tags = self.heard_of.iter().map(|contact| tag(contact.peer));
        debug_assert!(tags.eq(self.heard_of_tags.iter().copied()), "the tags of those heard of");
    }

    /// Length of the prefix that a key with this beginning shares with ours; 64 stands for all that share more.
    fn bucket(&self, head: u64) -> u16 {
        (head ^ self.me.head()).leading_zeros() as u16
    }

    /// Notes that `contact`, whose key begins with `head`, sent us a message.
    pub(crate) fn note(&mut self, contact: &Member, head: u64, now: Time) {
        let heard_s = seconds(now);
        if let Some(known) = self.list.iter_mut().find(|known| known.is(contact.peer)) {
            known.heard_s = heard_s;
            if known.contact != *contact {
                (known.contact, known.head) = (contact.clone(), head);
            }
            return;
        }
        let bucket = self.bucket(head);
        let finger = || Finger { contact: contact.clone(), head, tag: tag(contact.peer), heard_s };
        let lacks = self.bucket_len(bucket) < self.per_bucket;
        if lacks
            && self.list.len() >= LEN_MIN
            && let Some(spare) = self.spare()
        {
            self.list[spare] = finger();
        } else if lacks || self.list.len() < LEN_MIN {
            self.list.reserve_exact(1);
            self.list.push(finger());
        } else if let Some(oldest) = (0..self.list.len())
            .filter(|place| self.bucket(self.list[*place].head) == bucket)
            .min_by_key(|place| self.list[*place].heard_s)
            && u64::from(heard_s.saturating_sub(self.list[oldest].heard_s)) > STALE.as_secs()
        {
            self.list[oldest] = finger();
        }
    }

    /// Notes that another peer named `contact`. A full list replaces the entry that `pick` chooses. The latest contact
    /// replaces an earlier one of the same peer, or one lie about an address would stay.
    pub(crate) fn hear_of(&mut self, contact: &Member, pick: usize) {
        let tag = tag(contact.peer);
        if let Some(place) = self.place_heard_of(contact.peer) {
            self.heard_of[place] = contact.clone();
        } else if self.heard_of.len() < HEARD_OF_MAX {
            self.heard_of.reserve_exact(1);
            self.heard_of.push(contact.clone());
            self.heard_of_tags.reserve_exact(1);
            self.heard_of_tags.push(tag);
        } else {
            let place = pick % HEARD_OF_MAX;
            (self.heard_of[place], self.heard_of_tags[place]) = (contact.clone(), tag);
        }
    }

    fn place_heard_of(&self, peer: PeerId) -> Option<usize> {
        let tag = tag(peer);
        let is_it = |(place, other): (usize, &u32)| *other == tag && self.heard_of[place].peer == peer;
        self.heard_of_tags.iter().enumerate().position(is_it)
    }

    /// Whether we know any peer beyond the leaf set.
    pub(crate) fn knows_any(&self) -> bool {
        !self.list.is_empty() || !self.heard_of.is_empty()
    }

    /// Peers that others named, dead or alive.
    pub(crate) fn heard_of(&self) -> &[Member] {
        &self.heard_of
    }

    /// A finger of a bucket that has more than its share.
    fn spare(&self) -> Option<usize> {
        self.list.iter().position(|finger| self.bucket_len(self.bucket(finger.head)) > self.per_bucket)
    }

    fn bucket_len(&self, bucket: u16) -> u16 {
        self.list.iter().filter(|finger| self.bucket(finger.head) == bucket).count() as u16
    }

    /// Forgets a peer, whether it spoke to us or was only heard of.
    pub(crate) fn remove(&mut self, peer: PeerId) {
        self.list.retain(|finger| !finger.is(peer));
        if let Some(place) = self.place_heard_of(peer) {
            self.heard_of.swap_remove(place);
            self.heard_of_tags.swap_remove(place);
        }
    }

    /// The fingers, each with the beginning of its key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Member)> {
        self.list.iter().map(|finger| (finger.head, &finger.contact))
    }

    /// Notes that this contact sent us a message, if it is a finger; returns the beginning of its key.
    pub(crate) fn heard(&mut self, contact: &Member, now: Time) -> Option<u64> {
        let known = self.list.iter_mut().find(|known| known.is(contact.peer) && known.contact == *contact)?;
        known.heard_s = seconds(now);
        Some(known.head)
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Member> {
        self.list.iter().find(|finger| finger.is(peer)).map(|finger| &finger.contact)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// A bucket up to `deepest` that has room; `pick` chooses among them.
    pub(crate) fn sparse_bucket(&self, deepest: u16, pick: usize) -> Option<u16> {
        let has_room = |bucket: &u16| self.bucket_len(*bucket) < self.per_bucket;
        let sparse: Vec<u16> = (0..=deepest.min(63)).filter(has_room).collect();
        if sparse.is_empty() { None } else { Some(sparse[pick % sparse.len()]) }
    }

    /// A key in this bucket: our key's first bits, the next bit flipped, then `rest`.
    pub(crate) fn place_in(&self, bucket: u16, rest: [u8; 32]) -> PositionKey {
        let mut key = rest;
        let (byte, bit) = (usize::from(bucket / 8), bucket % 8);
        key[..byte].copy_from_slice(&self.me.0[..byte]);
        let kept = !(0xff_u8.checked_shr(u32::from(bit)).unwrap_or(0));
        let flipped = 0x80_u8 >> bit;
        key[byte] = (self.me.0[byte] & kept) | (!self.me.0[byte] & flipped) | (rest[byte] & !kept & !flipped);
        PositionKey(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Contact, GridId};

    fn key(byte: u8) -> PositionKey {
        Member::from(PeerId([byte; 32])).key(GridId([0; 32]))
    }

    #[test]
    fn a_place_in_a_bucket_shares_exactly_that_prefix() {
        let me = key(1);
        let fingers = Fingers::new(me, 4);
        for bucket in 0..256 {
            for rest in [[0; 32], [0xff; 32], [0x5a; 32]] {
                assert_eq!(fingers.place_in(bucket, rest).common_prefix(&me), bucket);
            }
        }
    }

    #[test]
    fn a_full_bucket_keeps_its_fingers_until_they_are_stale() {
        let mut fingers = Fingers::new(key(0), 1);
        let note = |fingers: &mut Fingers, byte: u8, now| {
            fingers.note(&PeerId([byte; 32]).into(), key(byte).head(), now);
        };
        (1..=200).for_each(|byte| note(&mut fingers, byte, Time::ZERO));
        assert_eq!(fingers.len(), LEN_MIN);
        assert!((0..6).all(|bucket| fingers.bucket_len(bucket) > 0), "what a bucket lacks it gets");
        let contacts = |fingers: &Fingers| fingers.iter().map(|(_, contact)| contact.clone()).collect::<Vec<_>>();
        let first = contacts(&fingers);
        (1..=200).rev().for_each(|byte| note(&mut fingers, byte, Time::ZERO + Duration::from_secs(1)));
        assert_eq!(contacts(&fingers), first);
        assert_eq!(fingers.len(), LEN_MIN);
    }

    #[test]
    fn peers_named_by_others_are_bounded_and_keep_their_latest_contact() {
        let mut fingers = Fingers::new(key(0), 1);
        let contact = |byte: u8, incarnation| -> Member {
            Contact { peer: PeerId([byte; 32]), incarnation, address: "".into(), nonce: None }.into()
        };
        (0..200).for_each(|byte| fingers.hear_of(&contact(byte, 2), usize::from(byte)));
        assert_eq!(fingers.heard_of().len(), HEARD_OF_MAX);
        let kept = fingers.heard_of()[5].peer.0[0];
        [u64::MAX, 3].into_iter().for_each(|incarnation| fingers.hear_of(&contact(kept, incarnation), 9));
        let lives = |fingers: &Fingers| -> Vec<u64> {
            let lives = fingers.heard_of().iter().filter(|contact| contact.peer.0[0] == kept);
            lives.map(|contact| contact.incarnation).collect()
        };
        assert_eq!(lives(&fingers), [3]);
        assert_eq!(fingers.len(), 0, "a peer that never spoke to us is no finger");
        fingers.remove(PeerId([kept; 32]));
        assert_eq!(lives(&fingers), [0; 0]);
        assert_eq!(fingers.heard_of().len(), HEARD_OF_MAX - 1);
    }
}
