//! Fair shares of resources that all peers use, so that none of them uses one up.

use std::collections::{BTreeMap, VecDeque};

use idlewood_overlay::PeerId;

/// A queue in which peers take turns: a peer with more items waiting is served no sooner.
#[derive(Debug)]
pub(super) struct Turns<T> {
    /// Peers with waiting items, the next one first.
    waiting: VecDeque<(PeerId, VecDeque<T>)>,
    per_peer_max: usize,
    peers_max: usize,
}

impl<T> Turns<T> {
    pub(super) fn new(per_peer_max: usize, peers_max: usize) -> Self {
        Self { waiting: VecDeque::new(), per_peer_max, peers_max }
    }

    /// Queues an item of a peer.
    ///
    /// # Errors
    /// The item, if too many of that peer, or of too many peers, wait.
    pub(super) fn push(&mut self, peer: PeerId, item: T) -> Result<(), T> {
        match self.waiting.iter().position(|(other, _)| *other == peer) {
            Some(place) if self.waiting[place].1.len() < self.per_peer_max => self.waiting[place].1.push_back(item),
            None if self.waiting.len() < self.peers_max => self.waiting.push_back((peer, [item].into())),
            Some(_) | None => return Err(item),
        }
        Ok(())
    }

    /// The first item of the peer whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (peer, mut items) = self.waiting.pop_front()?;
        let item = items.pop_front();
        if !items.is_empty() {
            self.waiting.push_back((peer, items));
        }
        item
    }
}

/// Queued messages by peer. A peer may use as much as is still free beside it: one alone has half, two have two thirds,
/// and the seventh still has room for a large message.
#[derive(Debug)]
pub(super) struct Occupancy {
    of: BTreeMap<PeerId, (usize, usize)>,
    messages: usize,
    bytes: usize,
    messages_max: usize,
    bytes_max: usize,
}

impl Occupancy {
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self { of: BTreeMap::new(), messages: 0, bytes: 0, messages_max, bytes_max }
    }

    /// Whether a message of this length from this peer may be queued.
    pub(super) fn has_room_for(&self, peer: PeerId, bytes: usize) -> bool {
        let (messages, of_peer) = self.of.get(&peer).copied().unwrap_or_default();
        messages + self.messages < self.messages_max && of_peer + self.bytes + bytes <= self.bytes_max
    }

    /// Whether messages of this peer are queued.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.of.contains_key(&peer)
    }

    /// Counts a queued message.
    pub(super) fn add(&mut self, peer: PeerId, bytes: usize) {
        let of_peer = self.of.entry(peer).or_default();
        *of_peer = (of_peer.0 + 1, of_peer.1 + bytes);
        self.messages += 1;
        self.bytes += bytes;
    }

    /// Counts a message that is no longer queued.
    pub(super) fn remove(&mut self, peer: PeerId, bytes: usize) {
        if let Some(of_peer) = self.of.get_mut(&peer) {
            *of_peer = (of_peer.0 - 1, of_peer.1 - bytes);
            if of_peer.0 == 0 {
                self.of.remove(&peer);
            }
            self.messages -= 1;
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId([number; 32])
    }

    #[test]
    fn a_peer_with_many_requests_delays_no_other() {
        let mut turns = Turns::new(16, 3);
        let taken = (0..1000).take_while(|&number| turns.push(peer(1), (1, number)).is_ok()).count();
        assert_eq!(taken, 16);
        assert_eq!(
            [turns.push(peer(2), (2, 0)), turns.push(peer(3), (3, 0)), turns.push(peer(2), (2, 1))],
            [Ok(()); 3]
        );
        assert_eq!(turns.push(peer(4), (4, 0)), Err((4, 0)), "of too many peers");
        let order: Vec<_> = std::iter::from_fn(|| turns.pop()).take(6).collect();
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)]);
        assert_eq!(turns.push(peer(4), (4, 0)), Ok(()), "who has nothing waiting takes no place");
    }

    #[test]
    fn a_peer_that_sends_much_leaves_room_for_all_others() {
        let mut occupancy = Occupancy::new(100, 10_000);
        let mut fill = |number: u8, bytes: usize| {
            (0..)
                .take_while(|_| {
                    let has_room = occupancy.has_room_for(peer(number), bytes);
                    if has_room {
                        occupancy.add(peer(number), bytes);
                    }
                    has_room
                })
                .count()
        };
        assert_eq!(fill(1, 1), 50);
        assert_eq!(fill(1, 1), 0);
        assert_eq!(fill(2, 1), 25);
        assert_eq!(fill(3, 4000), 1, "bytes count, too");
        assert_eq!(fill(4, 1), 12);
        for _ in 0..50 {
            occupancy.remove(peer(1), 1);
        }
        assert!(occupancy.has_room_for(peer(1), 1) && !occupancy.has_room_for(peer(3), 4000));
    }
}
