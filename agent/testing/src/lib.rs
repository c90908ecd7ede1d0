//! Helpers for tests of several crates: hostile bytes for decoders (`fuzz`), full disks (`small_disk`), an allocator that
//! counts (`allocator`), and tests that lack a requirement (`missing`). Only ever a dev-dependency.

mod allocator;
mod fuzz;
mod missing;
mod small_disk;

pub use allocator::Counting;
pub use fuzz::mutations;
pub use missing::missing;
pub use small_disk::SmallDisk;
