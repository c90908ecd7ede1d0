//! The simulator of idlewood: the very [`Peer`](idlewood_scheduler::Peer)s that ship, on simulated machines.
//!
//! A deterministic discrete-event loop in integer microseconds gives every peer its events and carries out its effects:
//! messages travel over links with latency, bandwidth and loss; writes become durable a moment after they are asked
//! for; machines crash, lose everything not durable, and come back; owners return. A [`scenario`] file describes a
//! simulation. The simulator itself records the fate of every task ([`record`]), and never relies on a peer's claim.
//!
//! The same scenario gives the same [`Report`], trace hash included, in every process and with any number of threads. Events are ordered by (time,
//! target, source, the source's sequence number), randomness comes from named streams per machine ([`random`]), and
//! the trace hash combines one hash per machine in the order of machines.
//!
//! Two worlds share the engine ([`event_queue`], [`slab`]), the links and the faults ([`network`], [`condition`]): the
//! full one ([`Simulation`]), and one of overlays alone ([`overlay`]) for grids of up to a million machines, on which
//! [`reproduce`] runs its experiments.

#![forbid(unsafe_code)]

mod answers;
pub mod availability;
pub mod baseline;
pub mod churn;
pub mod condition;
mod conic;
mod connections;
mod cost;
pub mod distribution;
pub mod dlo;
pub mod eval;
pub mod event_queue;
pub mod experiment;
mod fetching;
pub mod figure;
mod flawed;
mod host;
pub mod input;
pub mod invariant;
pub mod latency;
mod letter;
mod link;
pub mod log;
pub mod network;
mod observed_bag;
pub mod overlay;
pub mod page;
pub mod processor_load;
mod quality;
pub mod random;
pub mod record;
mod report;
pub mod reproduce;
pub mod rounds;
pub mod scenario;
mod seeds;
pub mod shares;
mod simulation;
pub mod size;
pub mod slab;
pub mod steady;
mod store;
pub mod survey;
pub mod swarm;
mod tree;
mod workers;
pub mod workflow;
pub mod workload;

pub use cost::{Cost, Meter};
pub use report::{BagReport, LinkUse, MessageCount, Report, TrafficUse};
pub use scenario::{BadRouting, Flaw, Scenario};
pub use simulation::{Deed, Execution, Listed, Progress, Simulation};
