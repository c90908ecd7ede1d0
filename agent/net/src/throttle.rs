//! Limits for strangers: unfinished handshakes are bounded by address, and connections from an address with too many
//! failures are refused for a while. Counts connections that end before they are admitted.
//!
//! Only incoming connections are refused. A machine that shares an address with an attacker (a NAT) is still dialled
//! from here.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use idlewood_trust::{Gate, Outcome, address};
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{NegotiationError, ProtocolError};
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::swarm::behaviour::{ConnectionEstablished, ListenFailure};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, ListenError, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use tracing::debug;

use super::admission::AdmissionError;
use super::causes::find;

/// Handshakes of one address under way, a part of all ([`PENDING_MAX`](idlewood_machine::connections::PENDING_MAX)). Our choice: more than a room behind one
/// NAT begins at once.
const PENDING_PER_ADDRESS_MAX: usize = 32;

/// Failures of one address in a row, and the time after which one of them is forgiven.
const FAILURES_MAX: u32 = 32;
const FORGIVEN_AFTER: Duration = Duration::from_millis(500);

/// Addresses remembered. A forgotten one starts over.
const ADDRESSES_MAX: usize = 4096;

/// See the module's documentation.
pub(super) struct Behaviour {
    gate: Arc<Gate>,
    pending: HashMap<ConnectionId, IpAddr>,
    failures: Failures,
}

/// A connection refused for its address.
#[derive(Debug)]
struct HeldOff;

impl fmt::Display for HeldOff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("too many connections from this address failed, or begin")
    }
}

impl std::error::Error for HeldOff {}

/// Failures by address.
#[derive(Debug, Default)]
struct Failures(HashMap<IpAddr, (u32, Instant)>);

impl Failures {
    /// How many failures count at `now`.
    fn of(&self, address: IpAddr, now: Instant) -> u32 {
        let Some((failures, last)) = self.0.get(&address) else { return 0 };
        let forgiven = now.saturating_duration_since(*last).as_millis() / FORGIVEN_AFTER.as_millis();
        failures.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX))
    }

    fn add(&mut self, address: IpAddr, now: Instant) {
        let failures = self.of(address, now) + 1;
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&address) {
            let forgiven: Vec<IpAddr> = self.0.keys().copied().filter(|known| self.of(*known, now) == 0).collect();
            for known in forgiven {
                self.0.remove(&known);
            }
            if self.0.len() >= ADDRESSES_MAX {
                return;
            }
        }
        self.0.insert(address, (failures.min(FAILURES_MAX), now));
    }
}

impl Behaviour {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        Self { gate, pending: HashMap::new(), failures: Failures::default() }
    }

    fn on_failure(&mut self, failure: &ListenFailure<'_>) {
        self.pending.remove(&failure.connection_id);
        // Our own errors, or limits: the peer has sent nothing.
        let ListenError::Transport(error) = failure.error else { return };
        let error: &(dyn std::error::Error + 'static) = error;
        match find::<AdmissionError>(error) {
            Some(AdmissionError::Joined) => return,
            // Counted where it was detected.
            Some(AdmissionError::Refused(_) | AdmissionError::RefusedByOther(_)) => {}
            Some(AdmissionError::WrongGrid) => self.gate.count(Outcome::WrongGrid),
            None if find(error).is_some_and(speaks_otherwise) => self.gate.count(Outcome::WrongGrid),
            Some(AdmissionError::Noise(_) | AdmissionError::Io(_)) | None => self.gate.count(Outcome::Unfinished),
        }
        debug!(from = %failure.send_back_addr, error, "a connection was not admitted");
        if let Some(address) = source(failure.send_back_addr) {
            self.failures.add(address, Instant::now());
        }
    }
}

/// Whether a handshake failed because the peer wants another protocol. A peer of another grid continues sending before
/// it learns that, so that its next bytes make no sense here.
fn speaks_otherwise(error: &NegotiationError) -> bool {
    match error {
        NegotiationError::Failed => true,
        NegotiationError::ProtocolError(ProtocolError::IoError(error)) => error.kind() == io::ErrorKind::InvalidData,
        NegotiationError::ProtocolError(_) => true,
    }
}

/// The source held responsible for a connection: an IPv4 address, or the /64 of an IPv6 one, which is one site's.
fn source(address: &Multiaddr) -> Option<IpAddr> {
    match address::parse(address).ok()?.0.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => Some(ip.into()),
            None => {
                let [a, b, c, d, ..] = ip.segments();
                Some(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        },
        ip => Some(ip),
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let Some(address) = source(remote) else { return Err(ConnectionDenied::new(HeldOff)) };
        let pending = self.pending.values().filter(|other| **other == address).count();
        if pending >= PENDING_PER_ADDRESS_MAX || self.failures.of(address, Instant::now()) >= FAILURES_MAX {
            self.gate.count(Outcome::HeldOff);
            return Err(ConnectionDenied::new(HeldOff));
        }
        self.pending.insert(id, address);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ListenFailure(failure) => self.on_failure(&failure),
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                connection_id,
                endpoint: ConnectedPoint::Listener { .. },
                ..
            }) => {
                self.pending.remove(&connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_held_against_an_address_and_forgiven() {
        let mut failures = Failures::default();
        let (bad, good): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let start = Instant::now();
        for _ in 0..2 * FAILURES_MAX {
            failures.add(bad, start);
        }
        assert_eq!((failures.of(bad, start), failures.of(good, start)), (FAILURES_MAX, 0));
        assert_eq!(failures.of(bad, start + FORGIVEN_AFTER), FAILURES_MAX - 1);
        assert_eq!(failures.of(bad, start + FORGIVEN_AFTER * FAILURES_MAX), 0);
        for number in 0..2 * ADDRESSES_MAX as u32 {
            failures.add(Ipv6Addr::from(u128::from(number) << 64).into(), start);
        }
        assert_eq!(failures.0.len(), ADDRESSES_MAX);
        failures.add(good, start + FORGIVEN_AFTER * FAILURES_MAX);
        assert_eq!(failures.0.len(), 1, "those that are forgiven make room");
    }

    #[test]
    fn neighbours_of_one_site_are_one_source() {
        let source = |address: &str| source(&address.parse().unwrap());
        assert_eq!(source("/ip6/2001:db8:1:2::3/tcp/1"), source("/ip6/2001:db8:1:2:ffff::9/tcp/2"));
        assert_ne!(source("/ip6/2001:db8:1:2::3/tcp/1"), source("/ip6/2001:db8:1:3::3/tcp/1"));
        assert_eq!(source("/ip6/::ffff:192.0.2.7/tcp/1"), source("/ip4/192.0.2.7/tcp/5"));
        assert_ne!(source("/ip4/192.0.2.8/tcp/5"), source("/ip4/192.0.2.7/tcp/5"));
    }
}
