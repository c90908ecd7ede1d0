//! What the network tells the agent.

use idlewood_overlay::{Contact, PeerId};
use libp2p::Multiaddr;

/// An event of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// This agent can be reached here (with the real port).
    Listening(Multiaddr),
    /// A peer of the same grid is connected; reported once until it is lost again, and not necessarily before its first
    /// message.
    Connected {
        /// The peer.
        peer: PeerId,
        /// An address at which it can be dialled: the one dialled, or one that it announces.
        address: Option<Multiaddr>,
    },
    /// A machine of the grid was found on the local network, and is connected.
    Found(Contact),
    /// A message came in.
    Received {
        /// The authenticated sender.
        from: PeerId,
        /// At most [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
        bytes: Vec<u8>,
    },
    /// A message could not be delivered, a dial failed or the last connection closed. Reported once for simultaneous
    /// failures; not for a connection that this agent closed because it was idle.
    Unreachable(PeerId),
}
