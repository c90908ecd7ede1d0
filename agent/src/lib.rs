//! The idlewood agent: the driver that puts a `Peer` on a real machine, and the command line around it.
//!
//! `node` owns the peer; its means are crates of their own (`idlewood-net`, `-store`, `-blobs`, `-worker`, `-sensing`,
//! `-trust`). `control` is the agent's end of the control API (`idlewood-api` has the other); `cli` and `submit` are what the
//! user types; `demo` shows it all, `bench` says what small tasks cost.

mod adopting;
pub mod bench;
pub mod cli;
pub mod control;
pub mod demo;
pub mod node;
pub mod output;
mod reasons;
pub mod settings;
pub mod submit;
pub mod tiles;
