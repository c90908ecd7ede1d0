//! Fingers: peers far away on the line, for look-ups in O(log N) steps.
//!
//! Peers are sorted into buckets by the length of the prefix that their key shares with ours; a few per bucket are
//! kept, and while there are few in all more than that. They are filled by whoever speaks to us and by look-ups of random places in sparse buckets.

use std::time::Duration;

use crate::{Contact, Member, PeerId, PositionKey, Time};

/// A finger that was silent for so long gives way to a newly heard peer.
const STALE: Duration = Duration::from_secs(120);

/// Fingers that are kept in all, whatever their buckets: who loses all neighbours at once finds back through one that
/// lives. In large grids there are more than these anyway. Our choice: with four of five machines gone, one survivor in
/// fifty thousand knows nobody alive then.
const LEN_MIN: usize = 32;

/// The key itself is left out: its beginning orders fingers, and they are the larger part of a quiet peer's memory.
#[derive(Clone, Debug)]
struct Finger {
    contact: Contact,
    /// Beginning of the key.
    head: u64,
    bucket: u16,
    /// In seconds.
    heard_s: u32,
}

#[derive(Debug)]
pub(crate) struct Fingers {
    me: PositionKey,
    per_bucket: usize,
    list: Vec<Finger>,
}

fn seconds(now: Time) -> u32 {
    u32::try_from(now.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX)
}

impl Fingers {
    pub(crate) fn new(me: PositionKey, per_bucket: usize) -> Self {
        Self { me, per_bucket, list: Vec::new() }
    }

    /// `member` spoke to us.
    pub(crate) fn note(&mut self, member: &Member, now: Time) {
        let heard_s = seconds(now);
        let known = self.list.iter_mut().find(|known| known.contact.peer == member.contact.peer);
        if let Some(known) = known {
            known.heard_s = heard_s;
            if known.contact != member.contact {
                known.contact = member.contact.clone();
            }
            return;
        }
        let bucket = self.me.common_prefix(&member.key);
        let finger = || Finger { contact: member.contact.clone(), head: member.key.head(), bucket, heard_s };
        let lacks = self.bucket_len(bucket) < self.per_bucket;
        if lacks
            && self.list.len() >= LEN_MIN
            && let Some(spare) = self.spare()
        {
            self.list[spare] = finger();
        } else if lacks || self.list.len() < LEN_MIN {
            self.list.reserve_exact(1);
            self.list.push(finger());
        } else if let Some(oldest) =
            self.list.iter_mut().filter(|known| known.bucket == bucket).min_by_key(|known| known.heard_s)
            && u64::from(heard_s - oldest.heard_s.min(heard_s)) > STALE.as_secs()
        {
            *oldest = finger();
        }
    }

    /// One of a bucket that has more than its share.
    fn spare(&self) -> Option<usize> {
        self.list.iter().position(|finger| self.bucket_len(finger.bucket) > self.per_bucket)
    }

    fn bucket_len(&self, bucket: u16) -> usize {
        self.list.iter().filter(|finger| finger.bucket == bucket).count()
    }

    pub(crate) fn remove(&mut self, peer: PeerId) {
        self.list.retain(|finger| finger.contact.peer != peer);
    }

    /// With the beginnings of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Contact)> {
        self.list.iter().map(|finger| (finger.head, &finger.contact))
    }

    /// Whether this very contact is a finger: it spoke just now.
    pub(crate) fn heard(&mut self, contact: &Contact, now: Time) -> bool {
        let known = self.list.iter_mut().find(|known| known.contact == *contact);
        known.map(|known| known.heard_s = seconds(now)).is_some()
    }

    pub(crate) fn get_head(&self, peer: PeerId) -> Option<u64> {
        self.list.iter().find(|finger| finger.contact.peer == peer).map(|finger| finger.head)
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Contact> {
        self.list.iter().find(|finger| finger.contact.peer == peer).map(|finger| &finger.contact)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// A bucket up to `deepest` that has room; `pick` chooses among them.
    pub(crate) fn sparse_bucket(&self, deepest: u16, pick: usize) -> Option<u16> {
        let has_room = |bucket: &u16| self.bucket_len(*bucket) < self.per_bucket;
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
    use crate::GridId;

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
        (1..=200).for_each(|byte| fingers.note(&member(byte), Time::ZERO));
        assert_eq!(fingers.len(), LEN_MIN);
        assert!((0..6).all(|bucket| fingers.bucket_len(bucket) > 0), "what a bucket lacks it gets");
        let contacts = |fingers: &Fingers| fingers.iter().map(|(_, contact)| contact.clone()).collect::<Vec<_>>();
        let first = contacts(&fingers);
        (1..=200).rev().for_each(|byte| fingers.note(&member(byte), Time::ZERO + Duration::from_secs(1)));
        assert_eq!(contacts(&fingers), first);
        assert_eq!(fingers.len(), LEN_MIN);
    }
}
