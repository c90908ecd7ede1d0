//! Fingers: peers far away on the line, for look-ups in O(log N) steps.
//!
//! Peers are sorted into buckets by the length of the prefix that their key shares with ours; a few per bucket are
//! kept. They are filled by whoever speaks to us and by look-ups of random places in sparse buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Member, PeerId, PositionKey, Time};

/// A finger that was silent for so long gives way to a newly heard peer.
const STALE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
struct Finger {
    member: Member,
    heard: Time,
}

#[derive(Debug)]
pub(crate) struct Fingers {
    me: PositionKey,
    per_bucket: usize,
    buckets: BTreeMap<u16, Vec<Finger>>,
}

impl Fingers {
    pub(crate) fn new(me: PositionKey, per_bucket: usize) -> Self {
        Self { me, per_bucket, buckets: BTreeMap::new() }
    }

    /// `member` spoke to us.
    pub(crate) fn note(&mut self, member: Member, now: Time) {
        let bucket = self.buckets.entry(self.me.common_prefix(&member.key)).or_default();
        let finger = Finger { member, heard: now };
        if let Some(known) = bucket.iter_mut().find(|known| known.member.key == finger.member.key) {
            *known = finger;
        } else if bucket.len() < self.per_bucket {
            bucket.push(finger);
        } else if let Some(oldest) = bucket.iter_mut().min_by_key(|known| known.heard)
            && now.since(oldest.heard) > STALE
        {
            *oldest = finger;
        }
    }

    pub(crate) fn remove(&mut self, peer: PeerId) {
        for bucket in self.buckets.values_mut() {
            bucket.retain(|finger| finger.member.contact.peer != peer);
        }
        self.buckets.retain(|_, bucket| !bucket.is_empty());
    }

    /// In the order of buckets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.buckets.values().flatten().map(|finger| &finger.member)
    }

    pub(crate) fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }

    /// A bucket up to `deepest` that has room; `pick` chooses among them.
    pub(crate) fn sparse_bucket(&self, deepest: u16, pick: usize) -> Option<u16> {
        let has_room = |bucket: &u16| self.buckets.get(bucket).map_or(0, Vec::len) < self.per_bucket;
        let sparse: Vec<u16> = (0..=deepest.min(255)).filter(has_room).collect();
        if sparse.is_empty() { None } else { Some(sparse[pick % sparse.len()]) }
    }

    /// A place in this bucket: our key up to there, the next bit flipped, then `rest`.
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
    use crate::{Contact, GridId};

    fn member(byte: u8) -> Member {
        let contact = Contact { peer: PeerId([byte; 32]), incarnation: 1, address: "".into() };
        Member::new(GridId([0; 32]), contact)
    }

    #[test]
    fn a_place_in_a_bucket_shares_exactly_that_prefix() {
        let me = member(1).key;
        let fingers = Fingers::new(me, 4);
        for bucket in 0..256 {
            for rest in [[0; 32], [0xff; 32], [0x5a; 32]] {
                assert_eq!(fingers.place_in(bucket, rest).common_prefix(&me), bucket);
            }
        }
    }

    #[test]
    fn a_full_bucket_keeps_those_it_has_until_they_are_stale() {
        let mut fingers = Fingers::new(member(0).key, 1);
        (1..=200).for_each(|byte| fingers.note(member(byte), Time::ZERO));
        let first: Vec<_> = fingers.iter().cloned().collect();
        (1..=200).rev().for_each(|byte| fingers.note(member(byte), Time::ZERO + Duration::from_secs(1)));
        assert_eq!(fingers.iter().cloned().collect::<Vec<_>>(), first);
        assert!(fingers.len() <= 9);
    }
}
