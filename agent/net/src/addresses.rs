//! Listen addresses that peers announce by identify: dialled when a contact's address does not answer.
//!
//! A contact may be older than its peer's last restart, and the port another since. What a peer announces over an
//! encrypted connection is newer. A false announcement does no harm: a dial that reaches another peer fails, as with a
//! contact's address.

use std::collections::HashMap;

use idlewood_overlay::PeerId;
use libp2p::Multiaddr;

use super::reach::{self, Reach};

/// Peers that are remembered. Our choice: more than a machine's neighbours and a large bag's executors.
const PEERS_MAX: usize = 4096;

/// Addresses remembered of one peer.
const ADDRESSES_PER_PEER_MAX: usize = 4;

/// The latest announcement of each peer.
#[derive(Debug)]
pub(super) struct Addresses {
    reach: Reach,
    peers: HashMap<PeerId, Listens>,
    /// Grows with every announcement.
    age: u64,
}

#[derive(Debug)]
struct Listens {
    addresses: Vec<Multiaddr>,
    learnt: u64,
}

impl Addresses {
    pub(super) fn new(reach: Reach) -> Self {
        Self { reach, peers: HashMap::new(), age: 0 }
    }

    /// Replaces the addresses of `peer`, without those that cannot be dialled, and without loopback ones if the peer
    /// has others: those are of its own machine. Beyond the limit forgets the peer whose announcement is oldest.
    pub(super) fn learn(&mut self, peer: PeerId, listens: &[Multiaddr]) {
        let usable = listens.iter().filter_map(|address| self.reach.check(address).ok());
        let usable = usable.map(|(socket, _)| socket).filter(|socket| socket.port() != 0);
        let mut sockets: Vec<_> = usable.filter(|socket| !socket.ip().is_unspecified()).collect();
        if sockets.iter().any(|socket| !socket.ip().is_loopback()) {
            sockets.retain(|socket| !socket.ip().is_loopback());
        }
        let addresses: Vec<_> = sockets.into_iter().take(ADDRESSES_PER_PEER_MAX).map(reach::multiaddr).collect();
        if addresses.is_empty() {
            self.forget(peer);
            return;
        }
        self.age += 1;
        self.peers.insert(peer, Listens { addresses, learnt: self.age });
        if self.peers.len() > PEERS_MAX
            && let Some(oldest) = self.peers.iter().min_by_key(|(_, listens)| listens.learnt).map(|(peer, _)| *peer)
        {
            self.forget(oldest);
        }
    }

    /// The addresses that the peer announced.
    pub(super) fn of(&self, peer: PeerId) -> &[Multiaddr] {
        self.peers.get(&peer).map_or(&[], |listens| &listens.addresses)
    }

    /// Forgets addresses that did not answer.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn the_latest_announcement_of_a_peer_counts() {
        let mut addresses = Addresses::new(Reach::Machine);
        let (peer, other) = (PeerId([1; 32]), PeerId([2; 32]));
        assert!(addresses.of(peer).is_empty());
        addresses.learn(peer, &[address(1), address(2)]);
        addresses.learn(other, &[address(9)]);
        addresses.learn(peer, &[address(3)]);
        assert_eq!(addresses.of(peer), [address(3)]);
        assert_eq!(addresses.of(other), [address(9)]);
        addresses.forget(peer);
        assert!(addresses.of(peer).is_empty());
    }

    #[test]
    fn undialable_addresses_are_ignored_and_the_rest_is_bounded() {
        let mut addresses = Addresses::new(Reach::Machine);
        let peer = PeerId([1; 32]);
        addresses.learn(peer, &["/ip4/192.0.2.1/tcp/1".parse().unwrap(), address(0), address(5)]);
        assert_eq!(addresses.of(peer), [address(5)]);
        addresses.learn(peer, &(1..=100).map(address).collect::<Vec<_>>());
        assert_eq!(addresses.of(peer).len(), ADDRESSES_PER_PEER_MAX);
        addresses.learn(peer, &[]);
        assert!(addresses.of(peer).is_empty(), "it listens nowhere now");
        let mut far = Addresses::new(Reach::Network);
        let lan: Multiaddr = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
        far.learn(peer, &[address(1), lan.clone(), "/ip4/0.0.0.0/tcp/1".parse().unwrap()]);
        assert_eq!(far.of(peer), [lan], "its loopback is not ours");
        far.learn(peer, &[address(1)]);
        assert_eq!(far.of(peer), [address(1)], "an agent of this machine");
        let name = |number: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            PeerId(bytes)
        };
        for number in 0..=PEERS_MAX {
            addresses.learn(name(number), &[address(7)]);
        }
        assert_eq!(addresses.peers.len(), PEERS_MAX);
        assert!(addresses.of(name(0)).is_empty(), "silent longest");
        assert_eq!(addresses.of(name(PEERS_MAX)), [address(7)]);
    }
}
