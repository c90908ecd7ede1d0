//! What the tests of several crates share: hostile bytes for their decoders (`fuzz`), disks that are full
//! (`small_disk`), an allocator that counts (`allocator`), and tests that something is missing for (`missing`). Only ever a dev-dependency.

mod allocator;
mod fuzz;
mod missing;
mod small_disk;

pub use allocator::Counting;
pub use fuzz::mutations;
pub use missing::missing;
pub use small_disk::SmallDisk;
