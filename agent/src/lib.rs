//! The idlewood agent: the driver that puts a `Peer` on a real machine, and the command line around it.
//!
//! `node` owns the peer; `net`, `store`, `blobs`, `fetch` and `worker` are its means; `control` and `client` are the
//! two ends of the control API; `cli` and `submit` are what the user types; `demo` shows it all, `bench` says
//! what small tasks cost.

mod adopting;
pub mod api;
pub mod bench;
pub mod cli;
pub mod client;
pub mod control;
pub mod demo;
pub mod node;
pub mod output;
mod policy;
pub mod settings;
pub mod submit;
pub mod tiles;
