//! `simnet reproduce dlo`: fair shares of applications without an end on platforms that are trees, by the distributed Lagrangian
//! optimisation of Bertin, Hunold, Legrand and Touati (2013; "DLO", `lagrangian`) and by idlewood's FOLD (`fold`),
//! beside the optimum that a general convex solver finds (`optimum`).
//!
//! The rates are what is compared, as in the paper: no task runs here.

mod experiment;
mod fold;
mod lagrangian;
mod mix;
mod optimum;
mod platform;
mod published;
mod removal;
mod rows;
mod size;

pub use experiment::Dlo;
pub use platform::{Application, Machine, Platform};
pub use size::Size;
