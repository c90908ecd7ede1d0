//! What machines send each other over connections: messages, and requests for pieces of files.

use idlewood_overlay::PeerId;
use idlewood_scheduler::Message;

use crate::event_queue::HostIndex;
use crate::fetching::Ask;

/// Content of a message on its way.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "all of a run are of one variant")]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Value(Message),
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) from: PeerId,
    /// Tag of the identity that it is meant for.
    pub(crate) to: u64,
    pub(crate) content: Content,
    pub(crate) digest: u64,
    pub(crate) bytes: u64,
    /// Whether it belongs to the tree.
    pub(crate) is_tree: bool,
    /// An answer carries it, and it is not answered.
    pub(crate) is_carried: bool,
    /// A bad router has delayed it already.
    pub(crate) is_held_back: bool,
}

/// Something that goes over a connection.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are letters")]
pub(crate) enum Passenger {
    Letter(Letter),
    Ask(Ask),
}

/// A dial, from which a connection may come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    pub(crate) from: HostIndex,
    /// Life of the machine that dials, and number of the dial among its own.
    pub(crate) life: u32,
    pub(crate) number: u64,
}
