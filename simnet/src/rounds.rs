//! `simnet reproduce rounds`: the experiment of Netto, Vecchiola, Kirley, Varela and Buyya (2011) on applications that
//! go in rounds, by the very code that maps such applications ([`idlewood_scheduler::rounds`]).
//!
//! - `paper`: what the paper predicts, we calculate: 480 processes on seven sets of 40 slots, synchronous and asynchronous,
//!   and how much longer each set takes than the first. Nothing is drawn: the same settings give the same figures.
//! - `model`: the same application on machines that come and go and with processes that differ from what is predicted,
//!   beside a clairvoyant and mappings that nobody changes. A simple model of slots, and not of whole peers.
//!
//! - `peers`: forty processes in twelve rounds on whole peers, with owners and with sessions of desktops.
//!
//! Left out: the paper's measurements. Its figures 7 and 8 are not in the text that we have, only what it says of them.

mod model;
mod ours;
mod paper;
mod peers;
mod plan;
mod prediction;
mod rivals;
mod samples;
mod whole;
mod world;

pub use plan::{Part, Plan};
