//! Applications that go in rounds: how long their processes take, where they run, and when all is done.
//!
//! After Netto, Vecchiola, Kirley, Varela and Buyya, *Use of Run Time Predictions for Automatic Co-Allocation of
//! Multi-Cluster Resources for Iterative Parallel Applications* (2011). A *process* computes some iterations; what
//! processes have found is merged in between. Processes of one *class* cost about the same for each iteration.
//!
//! - [`Sweep`] finds out from short runs what an iteration costs (§4.1, with start-up apart).
//! - [`map`] gives processes to slots: Algorithm 1 where all wait for each other at the end of a *stage*, Algorithm 2
//!   where nobody waits (§4.2). Both predict when all is done.
//! - [`Progress`] says which task of a bag in rounds may begin, and with the outputs of which others.
//! - [`remap`] decides at the end of a round, or when slots come and go, whether another mapping is worth it (§4.3).
//!
//! - [`Schedule`] says when that is, and which process begins where, for whoever has slots of its own: the simulator's model.
//! - [`homes`] says the same of the processes that are due now on machines that have queues of their own: a submitter's ledger.
//! - [`homes_by_level`] is the same where processes wait for none of each other.
//!
//! The rest is arithmetic on seconds since a moment that the caller chooses. Left out: who runs what is mapped, how
//! slots are booked, and the factors by which other machines are predicted from one. docs/adr/0050 says where this
//! differs from the paper.

mod asynchronous;
mod course;
mod fit;
mod homes;
mod levels;
mod mapping;
mod plan;
mod remap;
mod schedule;
mod synchronous;

pub use course::Progress;
pub use fit::{Estimate, ITERATIONS_MAX, PartialRun, Step, Sweep};
pub use homes::{Due, Home, Machine, homes};
pub use levels::homes_by_level;
pub use mapping::{Costs, Curve, Mapping, Mode, Placement, Process, Slot, Stage};
pub use plan::{FILL_MAX, Part, Plan, Sources, UNMERGED_PROCESSES_MAX};
pub use remap::{WORTH_MOVING_SHARE, map, remap};
pub use schedule::{Begin, Happening, Schedule};

/// In place of the seconds within which tasks have to begin ([`crate::Request::begins_within`]): whenever they do.
pub(crate) const WHENEVER: u32 = u32::MAX;
/// The same of tasks that are to begin at once with the others of their round: when their submitter says so, once all have a slot.
pub(crate) const BOOKED: u32 = WHENEVER - 1;
