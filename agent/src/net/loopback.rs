//! The guard that keeps agents on their own machine until certificates are enforced.
//!
//! It wraps the transport itself, so that no behaviour, no address a remote peer announces and no forgotten path can
//! listen on or dial anything but loopback. There is deliberately no switch.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, Transport};

/// Why an address is not used. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It would reach beyond this machine.
    #[error(
        "{0} is not a loopback address: until certificates are enforced, agents talk only within one machine; \
         write /ip4/127.0.0.1/tcp/<port> or /ip6/::1/tcp/<port>"
    )]
    NotLoopback(Multiaddr),
    /// It is no address of the kind in use.
    #[error("{0} is not an address this agent can use; write /ip4/127.0.0.1/tcp/<port> or /ip6/::1/tcp/<port>")]
    Unusable(String),
}

/// The socket address and the peer that `address` names, if it is `/ip4|ip6/<loopback>/tcp/<port>[/p2p/<peer>]`.
///
/// # Errors
/// For everything else; names are not resolved.
pub fn check(address: &Multiaddr) -> Result<(SocketAddr, Option<libp2p::PeerId>), AddressError> {
    let unusable = || AddressError::Unusable(address.to_string());
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        Some(_) | None => return Err(unusable()),
    };
    let Some(Protocol::Tcp(port)) = parts.next() else { return Err(unusable()) };
    let peer = match parts.next() {
        Some(Protocol::P2p(peer)) => Some(peer),
        None => None,
        Some(_) => return Err(unusable()),
    };
    if parts.next().is_some() {
        return Err(unusable());
    }
    if !ip.is_loopback() {
        return Err(AddressError::NotLoopback(address.clone()));
    }
    Ok((SocketAddr::new(ip, port), peer))
}

/// The address without its `/p2p/` part.
pub(super) fn multiaddr(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Tcp(address.port()))
}

/// A transport that refuses everything but loopback.
pub(super) struct LoopbackOnly<T>(pub(super) T);

impl<T: Transport + Unpin> Transport for LoopbackOnly<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        match check(&address) {
            Ok(_) => self.0.listen_on(id, address),
            Err(_) => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<T::Dial, TransportError<T::Error>> {
        match check(&address) {
            Ok(_) => self.0.dial(address, options),
            Err(_) => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.get_mut().0).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_loopback_tcp_passes() {
        let peer = libp2p::PeerId::random();
        for good in ["/ip4/127.0.0.1/tcp/1", "/ip4/127.255.0.9/tcp/0", "/ip6/::1/tcp/65535"] {
            let address: Multiaddr = good.parse().unwrap();
            assert_eq!(check(&address).unwrap().1, None, "{good}");
            let with_peer = address.clone().with(Protocol::P2p(peer));
            let (socket, found) = check(&with_peer).unwrap();
            assert_eq!(found, Some(peer));
            assert_eq!(multiaddr(socket), address);
        }
        for far in ["/ip4/0.0.0.0/tcp/1", "/ip4/192.168.1.1/tcp/1", "/ip6/::/tcp/1", "/ip6/::ffff:127.0.0.1/tcp/1"] {
            let error = check(&far.parse().unwrap()).unwrap_err();
            assert!(matches!(error, AddressError::NotLoopback(_)), "{far}");
            assert!(error.to_string().contains(far), "{error}");
        }
        for odd in [
            "/dns4/localhost/tcp/1",
            "/ip4/127.0.0.1/udp/1",
            "/ip4/127.0.0.1",
            "/ip4/127.0.0.1/tcp/1/ws",
            "/ip4/127.0.0.1/tcp/1/ip4/8.8.8.8/tcp/1",
            "/memory/1",
        ] {
            assert!(matches!(check(&odd.parse().unwrap()), Err(AddressError::Unusable(_))), "{odd}");
        }
    }
}
