//! What the handle orders of the loop, and the way back to whoever waits for an answer.

use idlewood_overlay::{Contact, PeerId};
use libp2p::Multiaddr;
use tokio::sync::oneshot;
use tracing::debug;

use crate::chunk::{ChunkError, ChunkReply, Wanted};
use crate::dial_error::DialError;
use crate::dialled_back::DialledBack;
use crate::live_codec::{LiveAsk, LiveError, LiveTold};
use crate::room::Share;

/// An outgoing message, with its share of the room.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) bytes: Vec<u8>,
    pub(crate) share: Share,
}

/// What one peer is sent.
#[derive(Debug)]
pub(crate) enum Item {
    Message(Outbound),
    Chunk { wanted: Wanted, reply: oneshot::Sender<Result<ChunkReply, ChunkError>> },
    Grid(Vec<u8>),
}

/// What the loop is to do.
#[derive(Debug)]
pub(crate) enum Command {
    Send {
        to: PeerId,
        address: Box<str>,
        item: Item,
    },
    Dial {
        address: Multiaddr,
        reply: oneshot::Sender<Result<PeerId, DialError>>,
    },
    /// Asks machines to dial this one back; there is a channel for what each says.
    DialBack {
        reply: oneshot::Sender<Vec<oneshot::Receiver<DialledBack>>>,
    },
    /// Asks a machine what tasks write that run there.
    Live {
        from: Contact,
        ask: LiveAsk,
        reply: oneshot::Sender<Result<LiveTold, LiveError>>,
    },
    Shutdown,
}

/// Answers a caller, which may have stopped waiting.
pub(crate) fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    if reply.send(value).is_err() {
        debug!("nobody waits for this answer any more");
    }
}
