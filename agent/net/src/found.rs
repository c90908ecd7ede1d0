//! Machines announced on the local network by mDNS. Anybody there can announce anything: invented or dead machines must
//! not keep the agent from real ones.

use std::collections::HashMap;

use idlewood_overlay::PeerId;
use libp2p::Multiaddr;

/// Machines remembered, and addresses of one machine.
const MACHINES_MAX: usize = 1024;
const ADDRESSES_MAX: usize = 4;

#[derive(Debug, Default)]
struct Machine {
    /// The newest last.
    addresses: Vec<Multiaddr>,
    /// Its place in the queue: when it was last dialled, or first announced.
    queued: u64,
    dialled: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Found {
    machines: HashMap<PeerId, Machine>,
    /// The latest place in the queue.
    last: u64,
}

impl Found {
    /// Adds an announced machine. If there are too many, a new one replaces the one dialled most recently.
    pub(super) fn add(&mut self, peer: PeerId, address: Multiaddr) {
        if self.machines.len() >= MACHINES_MAX && !self.machines.contains_key(&peer) {
            let last = self.machines.iter().filter(|(_, it)| it.dialled).max_by_key(|(_, it)| it.queued);
            let Some(last) = last.map(|(&last, _)| last) else { return };
            self.machines.remove(&last);
        }
        let last = &mut self.last;
        let machine = self.machines.entry(peer).or_insert_with(|| {
            *last += 1;
            Machine { queued: *last, ..Machine::default() }
        });
        if machine.addresses.contains(&address) {
            return;
        }
        // Keep the first addresses: they may be the true ones.
        machine.addresses.truncate(ADDRESSES_MAX - 1);
        machine.addresses.push(address);
    }

    /// The announcement of this address has expired.
    pub(super) fn remove(&mut self, peer: PeerId, address: &Multiaddr) {
        let Some(machine) = self.machines.get_mut(&peer) else { return };
        machine.addresses.retain(|known| known != address);
        if machine.addresses.is_empty() {
            self.machines.remove(&peer);
        }
    }

    /// The machines to dial now, least recently dialled first.
    pub(super) fn next(
        &mut self,
        most: usize,
        can_be_dialled: impl Fn(&PeerId) -> bool,
    ) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut next: Vec<_> = self.machines.iter_mut().filter(|(peer, _)| can_be_dialled(peer)).collect();
        next.sort_unstable_by_key(|(_, machine)| machine.queued);
        let next = next.into_iter().take(most).map(|(peer, machine)| {
            self.last += 1;
            (machine.queued, machine.dialled) = (self.last, true);
            (*peer, machine.addresses.clone())
        });
        next.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> PeerId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        PeerId(id)
    }

    fn address(port: u32) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{}", port % 60_000).parse().expect("an address")
    }

    #[test]
    fn the_dead_do_not_keep_the_living_from_being_dialled() {
        let mut found = Found::default();
        (0..100).for_each(|number| found.add(peer(number), address(number)));
        let dialled: std::collections::BTreeSet<PeerId> =
            (0..13).flat_map(|_| found.next(8, |_| true)).map(|(peer, _)| peer).collect();
        assert_eq!(dialled.len(), 100, "each once before any twice");
        let [(first, _)] = found.next(1, |peer| *peer != self::peer(4)).try_into().expect("one");
        assert_ne!(first, peer(4));
        found.add(peer(7), address(8));
        found.remove(peer(7), &address(9));
        found.remove(peer(7), &address(7));
        assert!(found.next(1000, |_| true).iter().any(|(it, _)| *it == peer(7)), "one of its addresses is left");
        found.remove(peer(7), &address(8));
        assert!(found.next(1000, |_| true).iter().all(|(it, _)| *it != peer(7)));
    }

    #[test]
    fn invented_machines_displace_no_real_one() {
        let mut found = Found::default();
        (0..2000).for_each(|number| found.add(peer(number), address(number)));
        assert_eq!(found.machines.len(), MACHINES_MAX);
        found.next(8, |_| true);
        found.add(peer(9_999), address(1));
        assert_eq!(found.machines.len(), MACHINES_MAX);
        assert_eq!(found.next(MACHINES_MAX, |_| true).iter().filter(|(it, _)| *it == peer(9_999)).count(), 1);
        // Nor do false addresses of one machine.
        (0..10).for_each(|port| found.add(peer(9_999), address(port)));
        found.add(peer(9_999), address(5));
        let known = &found.machines[&peer(9_999)].addresses;
        assert_eq!(known, &[1, 0, 2, 5].map(address));
    }

    #[test]
    fn a_machine_announced_later_waits_its_turn() {
        let mut found = Found::default();
        found.add(peer(u32::MAX), address(1));
        for number in 0..100 {
            (0..8).for_each(|more| found.add(peer(8 * number + more), address(2)));
            if found.next(8, |_| true).iter().any(|(it, _)| *it == peer(u32::MAX)) {
                return;
            }
        }
        panic!("it is never dialled");
    }
}
