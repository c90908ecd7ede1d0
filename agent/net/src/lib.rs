//! The network: one async task with a loop that owns the libp2p swarm (`event_loop`), and the handle (`handle`) for
//! the rest of the agent.
//!
//! TCP with Noise, certificates (`admission`) and yamux; on loopback only for an agent without a grid, and for one that
//! does not listen on the network (`reach`). The protocols' names carry the grid. Strangers get little of an agent's
//! time (`throttle`). Delivery is best effort: a message may be lost, and an unreachable peer is reported once per
//! attempt; two messages to one peer usually arrive in order, without guarantee. Every queue is bounded, and counts
//! what it drops; so are connections, with room reserved for those that this agent dials. A peer is dialled at its
//! contact's address, and if that does not answer, at the addresses that it announced last (identify).
//!
//! Agents that listen on the network find each other by mDNS. [`fetch`] downloads blobs.
//!
//! Left out: discovery beyond the local network (the overlay keeps its own neighbours; Kademlia cost 2.2 MB and much
//! CPU per swarm), QUIC and NAT traversal, and the meaning of messages.

mod addresses;
mod admission;
mod answers;
mod bounds;
mod causes;
mod chunk;
mod command;
mod config;
mod counters;
mod dial_back;
mod dial_codec;
mod dial_error;
mod dialled_back;
mod event;
mod event_loop;
pub mod fetch;
mod found;
mod handle;
mod joining;
mod link;
mod live;
mod live_codec;
mod metered;
mod meters;
mod outbound;
mod pending;
mod rate;
mod reach;
mod room;
mod serving;
mod shares;
mod small_codec;
mod swarm;
mod throttle;
mod waiting;
mod wire;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod tests;

pub use admission::JoinError;
pub use chunk::{ChunkError, ChunkReply, Wanted};
pub use config::{NetConfig, NetError};
pub use counters::NetCounters;
pub use dial_error::DialError;
pub use dialled_back::DialledBack;
pub use event::NetEvent;
pub use handle::{NetHandle, named_contact, start};
pub use joining::{JoiningError, join};
pub use live::LiveQuestion;
pub use live_codec::{LIVE_BYTES_MAX, LIVE_TASKS_MAX, LiveAsk, LiveError, LivePlace, LiveTask, LiveTold};
pub use rate::{Rate, Rates};
pub use reach::{AddressError, Reach, loopback_address};
pub use wire::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};
