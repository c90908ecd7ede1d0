//! How far an agent reaches: this machine, or the network.
//!
//! Without a grid, agents listen on and dial loopback only. With one they may listen on the network, and may then dial
//! it, too: every connection begins with certificates (`admission`). The guard wraps the transport itself, so that no
//! behaviour, no address announced by a peer and no forgotten path can go further.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use idlewood_trust::address::{Unusable, parse};
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, Transport};

/// How far an agent reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Loopback addresses.
    Machine,
    /// All addresses.
    Network,
}

/// Why an address is not used. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It would reach beyond this machine.
    #[error(
        "{0} is not a loopback address: without a grid an agent stays within its machine; make a grid with \
         `idlewood grid create`, join one with `idlewood grid join`, or write /ip4/127.0.0.1/tcp/<port>"
    )]
    NotLoopback(Multiaddr),
    /// It is beyond this machine, and the agent listens on loopback only.
    #[error(
        "{0} is beyond this machine, and this agent listens on loopback only: others could not reach it; start it with \
         --listen /ip4/0.0.0.0/tcp/4001"
    )]
    NotReachable(Multiaddr),
    /// It is not an IP address with a TCP port.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

impl Reach {
    /// The reach of an agent that listens on these addresses: an agent that the network cannot reach does not dial it.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub fn of(listen: &[Multiaddr]) -> Result<Self, AddressError> {
        let mut reach = Self::Machine;
        for address in listen {
            if !parse(address)?.0.ip().is_loopback() {
                reach = Self::Network;
            }
        }
        Ok(reach)
    }

    /// As [`parse`], for an address that is to be dialled or listened on.
    ///
    /// # Errors
    /// Also when it is beyond this reach.
    pub fn check(self, address: &Multiaddr) -> Result<(SocketAddr, Option<libp2p::PeerId>), AddressError> {
        let (socket, peer) = parse(address)?;
        if self == Self::Machine && !socket.ip().is_loopback() {
            return Err(AddressError::NotReachable(address.clone()));
        }
        Ok((socket, peer))
    }
}

/// A free port of this machine alone.
pub fn loopback_address() -> Multiaddr {
    multiaddr((Ipv4Addr::LOCALHOST, 0).into())
}

/// The address without its `/p2p/` part.
pub(super) fn multiaddr(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Tcp(address.port()))
}

/// A transport restricted to a reach.
pub(super) struct Within<T>(pub(super) Reach, pub(super) T);

impl<T: Transport + Unpin> Transport for Within<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        match self.0.check(&address) {
            Ok(_) => self.1.listen_on(id, address),
            Err(_) => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.1.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<T::Dial, TransportError<T::Error>> {
        match self.0.check(&address) {
            Ok(_) => self.1.dial(address, options),
            Err(_) => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.get_mut().1).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_on_loopback_stays_there() {
        let peer = libp2p::PeerId::random();
        for good in ["/ip4/127.0.0.1/tcp/1", "/ip4/127.255.0.9/tcp/0", "/ip6/::1/tcp/65535"] {
            let address: Multiaddr = good.parse().unwrap();
            assert_eq!(Reach::of(std::slice::from_ref(&address)), Ok(Reach::Machine));
            assert_eq!(Reach::Machine.check(&address).unwrap().1, None, "{good}");
            let with_peer = address.clone().with(Protocol::P2p(peer));
            let (socket, found) = Reach::Machine.check(&with_peer).unwrap();
            assert_eq!(found, Some(peer));
            assert_eq!(multiaddr(socket), address);
        }
        for far in ["/ip4/0.0.0.0/tcp/1", "/ip4/192.168.1.1/tcp/1", "/ip6/::/tcp/1", "/ip6/::ffff:127.0.0.1/tcp/1"] {
            let address: Multiaddr = far.parse().unwrap();
            let error = Reach::Machine.check(&address).unwrap_err();
            assert!(matches!(error, AddressError::NotReachable(_)), "{far}");
            assert!(error.to_string().contains(far), "{error}");
            assert!(Reach::Network.check(&address).is_ok());
            assert_eq!(Reach::of(&["/ip4/127.0.0.1/tcp/1".parse().unwrap(), address]), Ok(Reach::Network));
        }
        for odd in [
            "/dns4/localhost/tcp/1",
            "/ip4/127.0.0.1/udp/1",
            "/ip4/127.0.0.1",
            "/ip4/127.0.0.1/tcp/1/ws",
            "/ip4/127.0.0.1/tcp/1/ip4/8.8.8.8/tcp/1",
            "/memory/1",
        ] {
            assert!(matches!(Reach::Network.check(&odd.parse().unwrap()), Err(AddressError::Unusable(_))), "{odd}");
        }
    }
}
