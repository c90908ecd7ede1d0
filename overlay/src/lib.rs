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
mod chance;
mod config;
mod finger;
mod graveyard;
mod handover;
mod identity;
mod inspect;
#[cfg(debug_assertions)]
mod invariants;
mod joining;
mod leaf_set;
mod leaving;
mod link;
mod lookup;
mod membership;
mod message;
mod overlay;
mod probe;
mod time;
mod timers;
mod tree;
mod wire;

pub use config::Config;
pub use identity::{ADDRESS_BYTES_MAX, Contact, GridId, Member, Nonce, PeerId, PositionKey};
pub use inspect::Sizes;
pub use link::Span;
pub use message::{
    Body, Handover, HandoverChild, Leave, Message, PAYLOAD_BYTES_MAX, Payload, PayloadCodec, Report, ReportAck,
    RootInfo, Subtree, Translate, Verdict,
};
pub use overlay::Overlay;
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
    /// A contact to join through (incarnation 0: not known). Several may be given, once each: we retry those that do
    /// not answer, and they never expire from the graveyard.
    Bootstrap(Contact),
    /// `from` is authenticated by the transport.
    Received {
        /// The sender. Only its identity counts; if the message repeats this contact, the handle is shared instead of
        /// copied.
        from: Member,
        /// The message.
        message: Message,
    },
    /// The transport could not deliver to this peer or lost its connection: probe it.
    ConnectionLost(PeerId),
    /// Leave the grid in good order: tells the neighbourhood; `Notice::Left` follows when the driver may stop.
    Leave,
    /// Return after [`Event::Leave`], complete or not: a newer incarnation that has published nothing and joins through
    /// its former neighbours. Ignored unless the peer left.
    Return,
    /// `deadline()` has come.
    DeadlineReached,
}

/// An order to the driver, or a notice for the layer above.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send one message; loss, delay and duplication are tolerated.
    Send {
        /// The receiver, with its address.
        to: Member,
        /// The message.
        message: Message,
    },
    /// Something changed that the layer above may care about.
    Notify(Notice),
}

/// A change that the layer above may want to react to; the details are read from the getters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This peer is now a member (it was joining).
    Joined,
    /// A child was gained, lost or reported a new payload.
    ChildrenChanged,
    /// The parent of the leaf or of the router changed, or the router role came or went.
    PlaceChanged,
    /// What the root announces to everybody changed.
    RootChanged,
    /// The leave is complete.
    Left,
}

/// Where a peer stands between alone and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A grid of one, as far as this peer knows.
    Alone,
    /// A first contact was given or met; the place on the line is being verified.
    Joining,
    /// On the line, with verified neighbours.
    Member,
    /// The neighbourhood knows; the peer lingers for peers that missed the farewell.
    Leaving,
    /// Gone: every event but [`Event::Return`] is ignored.
    Left,
}

/// A child of this machine's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Its machine.
    pub contact: &'a Contact,
    /// Which node of that machine.
    pub node: Node,
    /// Leaves below it (1 for a leaf).
    pub count: u64,
    /// Links on the longest way down (0 for a leaf).
    pub height: u32,
    /// The payload that it published last, as far as it arrived; empty before.
    pub payload: &'a [u8],
    /// Changes whenever the payload is replaced or the child is another one.
    pub generation: u64,
}

/// Messages refused and faults noticed since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages of another grid.
    pub foreign_grid: u64,
    /// Messages whose sender, by the transport, is this peer.
    pub forged_sender: u64,
    /// Messages with a payload, list or address that is too long.
    pub oversized: u64,
    /// Messages with values that no correct peer sends.
    pub malformed: u64,
    /// Messages of an incarnation that is over.
    pub stale_life: u64,
    /// Differences of payloads that could not be applied, though we hold their base.
    pub differences_refused: u64,
    /// Own payloads that were too long to publish.
    pub oversized_own: u64,
    /// Reports that we refused: the sender took us for its parent and we are not.
    pub links_refused: u64,
    /// Neighbours that answered no probe.
    pub crashes_found: u64,
    /// Times we began a newer incarnation because a peer took us for dead or knew a later one.
    pub risen: u64,
    /// Probes not begun because too many were under way.
    pub probes_dropped: u64,
    /// Messages without an address, from peers that we do not know.
    pub unknown_sender: u64,
    /// Incarnations claimed to be ours that no clock could give.
    pub incarnations_refused: u64,
    /// Times we woke so late that we must have been asleep.
    pub pauses: u64,
    /// Children known at once, since the former holder of the role handed them over.
    pub children_handed: u64,
}
