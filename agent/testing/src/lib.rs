//! Helpers for tests of the agent's crates: hostile bytes for decoders (`fuzz`), full disks (`small_disk`), and tests
//! that lack a requirement (`missing`). Only ever a dev-dependency.

mod fuzz;
mod missing;
mod small_disk;

pub use fuzz::mutations;
pub use missing::missing;
pub use small_disk::SmallDisk;
