//! What this agent keeps of one peer, of a request under way and of a dial to an unknown peer.

use std::collections::HashMap;
use std::time::Duration;

use idlewood_machine::connections::QUIET;
use idlewood_overlay::PeerId;
use libp2p::Multiaddr;
use libp2p::swarm::ConnectionId;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::chunk::{ChunkError, ChunkReply};
use crate::dial_error::DialError;
use crate::rate::Allowance;
use crate::room::Share;
use crate::waiting::{Queue, Waiting};

/// A peer that turned out to be of another grid, or does not let this machine in, is not dialled again for this long.
pub(super) const QUIET_OTHER_GRID: Duration = Duration::from_secs(30);

/// The state of one peer, kept while there is any.
#[derive(Default)]
pub(super) struct Link {
    pub(super) waiting: Waiting,
    /// The last address a contact gave.
    pub(super) address: Box<str>,
    pub(super) dialling: Option<(ConnectionId, Route)>,
    /// Open connections, with the address for those that we dialled.
    pub(super) connections: HashMap<ConnectionId, Option<Multiaddr>>,
    /// Whether [`NetEvent::Connected`](crate::NetEvent::Connected) went out.
    pub(super) announced: bool,
    /// Until when this address is not dialled again.
    pub(super) quiet: Option<(Instant, Box<str>)>,
    /// When it was last reported lost.
    pub(super) reported: Option<Instant>,
    /// When something went over its connections last, or will have gone.
    pub(super) used: Option<Instant>,
    /// Its connections are being closed from here, since it is of another grid or others need their room: do not report that loss.
    pub(super) closing: bool,
    /// Requests that it may still send.
    pub(super) allowance: Option<Allowance>,
    /// Gossip that it did not accept, and how often that was sent again since it accepted some.
    pub(super) undelivered: Vec<Vec<u8>>,
    pub(super) resends: u32,
    /// It was found on the local network; the agent has not been told yet.
    pub(super) found: bool,
}

impl Link {
    /// Something goes over its connections, or will have gone by then.
    pub(super) fn is_used(&mut self, until: Instant) {
        self.used = self.used.max(Some(until));
    }

    pub(super) fn is_forgettable(&self, now: Instant) -> bool {
        self.waiting.is_empty()
            && self.waiting.is_quiet()
            && self.dialling.is_none()
            && self.connections.is_empty()
            && self.quiet.as_ref().is_none_or(|(until, _)| *until <= now)
            && self.reported.is_none_or(|when| when + QUIET <= now)
    }
}

/// The address by which a peer is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The last contact's.
    Contact,
    /// One that the peer announced, after the contact's did not answer.
    Identified,
}

/// A request under way.
pub(super) enum InFlight {
    /// Releases its room with the answer. Keeps the bytes of a message about a bag, since the peer may have no room.
    Message {
        share: Share,
        bytes: Vec<u8>,
    },
    Chunk {
        offset: u64,
        reply: oneshot::Sender<Result<ChunkReply, ChunkError>>,
    },
    Grid(Vec<u8>),
}

impl InFlight {
    /// The queue in which it waited.
    pub(super) fn queue(&self) -> Queue {
        match self {
            Self::Message { share, .. } => Queue::of_message(share.kind),
            Self::Chunk { .. } => Queue::Pieces,
            Self::Grid(_) => Queue::Grid,
        }
    }
}

/// Whoever waits for a dial to an address.
pub(super) struct Bootstrap {
    pub(super) address: Multiaddr,
    pub(super) reply: oneshot::Sender<Result<PeerId, DialError>>,
}
