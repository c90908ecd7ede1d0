//! How much of what a peer was sent has left this machine.
//!
//! A connection takes hundreds of kilobytes at once (its encryption alone keeps up to 192 KiB), and says that an answer was sent when it has taken it. On a slow line
//! that is long before the answer has left, so that what the sockets have taken is counted for each peer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::PeerId;
use libp2p::core::ConnectedPoint;
use tokio::sync::Notify;

/// What the socket of one connection has taken.
#[derive(Debug, Default)]
pub(super) struct Meter {
    written: AtomicU64,
    is_closed: AtomicBool,
}

/// The connections of one peer.
#[derive(Debug, Default)]
struct Gauge {
    open: Vec<Arc<Meter>>,
    /// Bytes that connections took which are closed by now.
    closed_bytes: u64,
    /// Bytes that all connections will have taken once the last announced piece has left.
    announced: u64,
}

impl Gauge {
    fn written(&mut self) -> u64 {
        let closed_bytes = &mut self.closed_bytes;
        self.open.retain(|meter| {
            let is_open = !meter.is_closed.load(Ordering::Relaxed);
            if !is_open {
                *closed_bytes += meter.written.load(Ordering::Relaxed);
            }
            is_open
        });
        self.closed_bytes + self.open.iter().map(|meter| meter.written.load(Ordering::Relaxed)).sum::<u64>()
    }
}

#[derive(Debug, Default)]
struct Connections {
    /// By their ends, those whose peer is not known yet.
    unadmitted: HashMap<ConnectedPoint, Vec<Arc<Meter>>>,
    by_peer: HashMap<PeerId, Gauge>,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Meters {
    connections: Mutex<Connections>,
    /// A socket has taken something, or was closed.
    wrote: Notify,
}

impl Meters {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection begins, whose peer is not known yet.
    pub(super) fn begin(&self, point: &ConnectedPoint) -> Arc<Meter> {
        let meter = Arc::<Meter>::default();
        let mut connections = self.connections();
        connections.unadmitted.retain(|_, meters| {
            meters.retain(|meter| !meter.is_closed.load(Ordering::Relaxed));
            !meters.is_empty()
        });
        connections.by_peer.retain(|_, gauge| {
            gauge.written();
            !gauge.open.is_empty()
        });
        connections.unadmitted.entry(point.clone()).or_default().push(meter.clone());
        meter
    }

    /// The peer of a connection has been admitted. Of two that were dialled at the same address at once either meter may be taken.
    pub(super) fn admitted(&self, point: &ConnectedPoint, peer: PeerId) {
        let mut connections = self.connections();
        let meter = connections.unadmitted.get_mut(point).and_then(Vec::pop);
        connections.by_peer.entry(peer).or_default().open.extend(meter);
    }

    pub(super) fn wrote(&self, meter: &Meter, bytes: u64) {
        meter.written.fetch_add(bytes, Ordering::Relaxed);
        self.wrote.notify_waiters();
    }

    pub(super) fn closed(&self, meter: &Meter) {
        meter.is_closed.store(true, Ordering::Relaxed);
        self.wrote.notify_waiters();
    }

    /// What a peer's connections have taken; `None`: it has none.
    fn written(&self, peer: PeerId) -> Option<u64> {
        let by_peer = &mut self.connections().by_peer;
        let gauge = by_peer.get_mut(&peer)?;
        let written = gauge.written();
        if gauge.open.is_empty() {
            by_peer.remove(&peer);
            return None;
        }
        Some(written)
    }

    /// A peer is sent so many bytes, after those that were announced before. Returns what its connections will have taken when these have left; `None`: it has none.
    pub(super) fn announce(&self, peer: PeerId, bytes: u64) -> Option<u64> {
        let written = self.written(peer)?;
        let mut connections = self.connections();
        let gauge = connections.by_peer.get_mut(&peer)?;
        gauge.announced = gauge.announced.max(written) + bytes;
        Some(gauge.announced)
    }

    /// A piece that was announced will not leave: those that come later do not wait for it.
    pub(super) fn withdraw(&self, peer: PeerId) {
        if let Some(gauge) = self.connections().by_peer.get_mut(&peer) {
            gauge.announced = gauge.written();
        }
    }

    /// Waits until a peer's connections have taken so much; returns false if they are closed before.
    pub(super) async fn have_taken(&self, peer: PeerId, announced: u64) -> bool {
        loop {
            let wrote = self.wrote.notified();
            tokio::pin!(wrote);
            wrote.as_mut().enable();
            match self.written(peer) {
                None => return false,
                Some(written) if written >= announced => return true,
                Some(_) => wrote.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn point(port: u16) -> ConnectedPoint {
        let address = |port| format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
        ConnectedPoint::Listener { local_addr: address(1), send_back_addr: address(port) }
    }

    #[tokio::test]
    async fn a_piece_has_left_when_the_sockets_have_taken_it_and_all_before_it() {
        let (meters, peer) = (Meters::default(), PeerId::random());
        assert_eq!(meters.announce(peer, 5), None);
        let [first, second] = [2, 3].map(|port| meters.begin(&point(port)));
        meters.wrote(&first, 100);
        meters.admitted(&point(2), peer);
        meters.admitted(&point(3), peer);
        let [one, other] = [10, 20].map(|bytes| meters.announce(peer, bytes).unwrap());
        let soon = Duration::from_millis(20);
        meters.wrote(&second, 9);
        assert!(timeout(soon, meters.have_taken(peer, one)).await.is_err());
        meters.wrote(&first, 1);
        assert!(timeout(soon, meters.have_taken(peer, one)).await.unwrap());
        assert!(timeout(soon, meters.have_taken(peer, other)).await.is_err());
        meters.closed(&first);
        let waits = meters.have_taken(peer, other);
        tokio::pin!(waits);
        assert!(timeout(soon, &mut waits).await.is_err(), "what a closed one took counts, and nothing more");
        meters.wrote(&second, 20);
        assert!(timeout(soon, waits).await.unwrap());
        meters.announce(peer, 1_000).unwrap();
        meters.withdraw(peer);
        let last = meters.announce(peer, 1).unwrap();
        assert_eq!(last, other + 1, "what will not leave is not waited for");
        meters.closed(&second);
        assert!(!timeout(soon, meters.have_taken(peer, last)).await.unwrap());
        assert!(meters.connections().by_peer.is_empty());
    }

    #[test]
    fn connections_that_are_never_admitted_are_forgotten() {
        let meters = Meters::default();
        for port in 1..100 {
            let meter = meters.begin(&point(port));
            meters.closed(&meter);
        }
        assert_eq!(meters.connections().unadmitted.len(), 1);
    }
}
