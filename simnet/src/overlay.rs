//! The overlay alone, for scale: trees of a million peers without the scheduler.
//!
//! The same engine, links and faults as the full simulation drive [`idlewood_overlay::Overlay`] itself. Messages travel
//! as values, and their exact encoded size is counted; in small grids they are encoded and decoded as well ([`Wire`]).
//! [`Tree::of`] computes the true tree from the membership; it shares no code with the protocol.

pub mod experiment;
pub mod measure;
mod survey;
mod truth;
mod world;

pub use survey::{Paths, Watch, paths};
pub use truth::{Child, Router, Tree, Truth};
pub use world::{Delivery, Memory, Settings, Step, Traffic, Wire, World};
