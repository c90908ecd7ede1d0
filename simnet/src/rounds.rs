//! `simnet reproduce rounds`: the experiment of Netto, Vecchiola, Kirley, Varela and Buyya (2011) on applications that
//! go in rounds, by the very code that maps such applications ([`idlewood_scheduler::rounds`]).
//!
//! What the paper predicts, we calculate: 480 processes on seven sets of 40 slots, synchronous and asynchronous, and how much
//! longer each set takes than the first. Nothing is drawn: the same settings give the same figures.
//!
//! Left out: the paper's measurements. Its figures 7 and 8 are not in the text that we have, only what it says of them.

mod paper;
mod plan;
mod prediction;

pub use plan::Plan;
