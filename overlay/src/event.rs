//! What a driver tells an overlay, and what an overlay orders: the surface that `scheduler` builds on.

use crate::identity::{Contact, Member, PeerId};
use crate::message::Message;

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
