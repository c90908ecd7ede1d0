//! `simnet reproduce shares`: what bags without an end have of a grid of whole peers, beside the best possible rates for the machines that
//! are up (docs/lab/shares.md).
//!
//! The peers are those that ship: announcements, the wave of shares, what leaves ask for, and every task are simulated. Measured is work
//! whose results are durable at the submitter; how long shares take to follow a bag that comes or goes, or half of the machines that vanish;
//! what all that adds to the traffic; and how much longer finite bags beside them take.
//!
//! The best rates are those of one central place that knows all machines (`optimum`): [`idlewood_scheduler::shares::Core`] on the sum of all
//! machines. A test compares it with a general convex solver on each machine by itself.
//!
//! Left out: links that are measured (limits are those that owners set), and owners who come back.

mod case;
mod finite;
mod optimum;
mod plan;
mod rows;
mod run;
mod settle;

pub use case::Failures;
pub use plan::Shares;
