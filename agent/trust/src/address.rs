//! Parsing of agents' addresses: an IP address and a TCP port, as libp2p writes them.

use std::net::{IpAddr, SocketAddr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Not an IP address with a TCP port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not an address this agent can use; write /ip4/192.0.2.7/tcp/4001 or /ip6/::1/tcp/4001")]
pub struct Unusable(pub String);

/// The socket address and the peer that `address` names, if it is `/ip4|ip6/<address>/tcp/<port>[/p2p/<peer>]`.
///
/// # Errors
/// [`Unusable`] for everything else; names are not resolved.
pub fn parse(address: &Multiaddr) -> Result<(SocketAddr, Option<libp2p::PeerId>), Unusable> {
    let unusable = || Unusable(address.to_string());
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
    Ok((SocketAddr::new(ip, port), peer))
}
