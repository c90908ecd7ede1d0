//! The overlay alone, for scale: a million peers' trees without what the scheduler does on them.
//!
//! The same engine, links and faults as the full simulation, driving [`idlewood_overlay::Overlay`] itself. Messages
//! travel as values, and each one's exact encoded size is counted; in small grids they are encoded and decoded all the
//! same ([`Wire`]). What is true is computed from the membership by [`Tree::of`], which shares no code with the protocol.

pub mod experiment;
pub mod measure;
mod survey;
mod truth;
mod world;

pub use survey::{Paths, Watch, paths};
pub use truth::{Child, Router, Tree, Truth};
pub use world::{Delivery, Memory, Settings, Step, Traffic, Wire, World};
