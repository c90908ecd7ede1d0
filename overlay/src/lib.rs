//! The overlay of idlewood: a balanced tree that is a function of its membership.
//!
//! Every peer stands on a line ordered by position key. The tree is the path-compressed binary trie over the
//! keys; its routers correspond one-to-one to the gaps between neighbours, and the router of a gap lives on the
//! peer at the gap's left. The only hard distributed state is the sorted line; everything above is soft state
//! that heals. The paper (Celaya and Marchal 2010, §3.2) asks for such a tree and leaves it open.
//!
//! The crate is sans-IO: a driver feeds [`Event`]s with the time and carries out [`Effect`]s.
//! It knows nothing of tasks: what climbs and descends the tree for the scheduler are opaque payloads.

#![forbid(unsafe_code)]

pub mod bytes32;
mod identity;
mod time;

pub use identity::{ADDRESS_BYTES_MAX, Contact, GridId, Member, PeerId, PositionKey};
pub use time::{Time, WallTime};

/// Which of the two roles on a machine a message or link concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Node {
    /// The processing node: every peer has exactly one.
    Leaf,
    /// The routing node of the gap to the successor: every peer but the last on the line has exactly one.
    Router,
}

/// Which child slot of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Side {
    /// The subtree that ends at the router's own machine.
    Left,
    /// The subtree that begins at the successor.
    Right,
}

// ---- the surface that `scheduler` builds on ----

/// A fact that reached this peer.
#[derive(Clone, Debug)]
pub enum Event {
    /// A first contact answered (its incarnation may be 0: not known); join through it. Several may be given;
    /// they never expire from the graveyard.
    Bootstrap(Contact),
    /// `from` is authenticated by the transport.
    Received {
        /// Who sent it.
        from: PeerId,
        /// What was sent.
        message: Message,
    },
    /// The transport could not deliver to this peer or lost its connection: probe it.
    ConnectionLost(PeerId),
    /// Leave the grid in good order: tells the neighbourhood; `Notice::Left` follows when it may stop.
    Leave,
    /// `deadline()` has come.
    DeadlineReached,
}

/// An order to the driver (or news for the layer above).
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send one message; loss, delay and duplication are tolerated.
    Send {
        /// To whom, and where.
        to: Contact,
        /// What.
        message: Message,
    },
    /// News for the layer above.
    Notify(Notice),
}

/// What the layer above may want to react to; the details are read from the getters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This peer is now a member (it was joining).
    Joined,
    /// A child was gained, lost or reported a new payload.
    ChildrenChanged,
    /// The parent of the leaf or of the router changed, or the router role came or went.
    PlaceChanged,
    /// What the root tells everybody changed.
    RootChanged,
    /// The leave is complete.
    Left,
}

/// Placeholder until the messages are in.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Message;
