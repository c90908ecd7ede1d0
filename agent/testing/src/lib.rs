//! What the tests of several crates of the agent share: hostile bytes for their decoders (`fuzz`), disks that are full
//! (`small_disk`), and tests that something is missing for (`missing`). Only ever a dev-dependency.

mod fuzz;
mod missing;
mod small_disk;

pub use fuzz::mutations;
pub use missing::missing;
pub use small_disk::SmallDisk;
