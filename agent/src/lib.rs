//! The idlewood agent: the driver that puts a `Peer` on a real machine, and the command line around it.
//!
//! `node` owns the machine, and `handle` is how others ask it; what it uses are crates of their own (`idlewood-net`, `-store`, `-blobs`, `-worker`,
//! `-sensing`, `-trust`). `control` is the server of the control API (`idlewood-api` has its client); `cli` and
//! `submit` are the commands; `demo` shows a grid at work, `bench` measures the cost of small tasks.

mod adopting;
pub mod bench;
mod bounds;
mod chosen;
pub mod cli;
pub mod control;
pub mod demo;
pub mod handle;
mod installed;
mod leftovers;
pub mod node;
pub mod output;
mod reasons;
pub mod settings;
pub mod submit;
pub mod tiles;
