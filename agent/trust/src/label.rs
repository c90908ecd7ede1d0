//! What all may know of a bag.

use std::time::Duration;

use idlewood_overlay::{PeerId, WallTime};
use idlewood_scheduler::{BlobId, manifest_age};
use serde::{Deserialize, Serialize};

/// What all may know of a bag: what stands on its envelope, as it were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Who submits it.
    pub submitter: PeerId,
    /// Number of tasks.
    pub tasks: u64,
    /// When its manifest was made, in seconds of Unix time by its submitter's clock; 0: that is not known.
    pub made_s: u64,
    /// BLAKE3 of its program, by which owners let programs run.
    pub program: BlobId,
    /// Memory a task may use, in bytes.
    pub memory_bytes: u64,
    /// Whether the program is not WebAssembly but what a system executes.
    pub native: bool,
}

impl Label {
    /// How long ago it was made by a clock that shows `now`; the longest duration where it has no date, or one so far ahead that
    /// it tells nothing.
    pub fn age(&self, now: WallTime) -> Duration {
        let made_us = i64::try_from(self.made_s).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        if self.made_s == 0 { Duration::MAX } else { manifest_age(WallTime(made_us), now) }
    }
}
