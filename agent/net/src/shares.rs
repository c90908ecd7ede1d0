//! Fair shares of the room that all peers use, so that none of them uses it up.

use std::collections::BTreeMap;

use idlewood_overlay::PeerId;

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
