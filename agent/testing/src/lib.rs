//! What the tests of several crates of the agent share: hostile bytes for their decoders (`fuzz`), and disks that are full
//! (`small_disk`). Only ever a dev-dependency.

mod fuzz;
mod small_disk;

pub use fuzz::mutations;
pub use small_disk::SmallDisk;
