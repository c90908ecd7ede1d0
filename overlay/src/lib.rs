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
mod child;
mod config;
mod counters;
mod digest;
mod event;
mod finger;
mod graveyard;
mod handover;
mod identity;
mod joining;
mod leaf_set;
mod leaving;
mod line;
mod link;
mod links;
mod local;
mod lookup;
mod lookups;
mod membership;
mod message;
mod nearest;
mod node;
mod overlay;
mod path;
mod payload;
mod probe;
mod root;
mod sizes;
mod state;
mod subtree;
mod time;
mod tree;
mod wire;

pub use child::Child;
pub use config::Config;
pub use counters::Counters;
pub use event::{Effect, Event, Notice};
pub use identity::{ADDRESS_BYTES_MAX, Contact, GridId, Member, Nonce, PeerId, PositionKey};
pub use message::{Body, Handover, HandoverChild, Leave, Message, Report, ReportAck, RootInfo, Verdict};
pub use node::{Node, Side};
pub use overlay::Overlay;
pub use payload::{PAYLOAD_BYTES_MAX, Payload, PayloadCodec, Translate};
pub use sizes::Sizes;
pub use state::State;
pub use subtree::{Span, Subtree};
pub use time::{Time, WallTime};
