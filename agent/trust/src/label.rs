//! The public facts about a bag.

use std::time::Duration;

use idlewood_overlay::{PeerId, WallTime};
use idlewood_scheduler::{BlobId, manifest_age};
use serde::{Deserialize, Serialize};

/// The public facts about a bag, on its envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The submitter.
    pub submitter: PeerId,
    /// Number of tasks.
    pub tasks: u64,
    /// When its manifest was made, in seconds of Unix time by its submitter's clock; 0 if unknown.
    pub made_s: u64,
    /// BLAKE3 of its program, by which owners allow programs.
    pub program: BlobId,
    /// Memory a task may use, in bytes.
    pub memory_bytes: u64,
    /// Whether the program is native, not WebAssembly.
    pub native: bool,
}

impl Label {
    /// Age of the manifest by a clock that shows `now`; the longest duration if it has no date, or one so far ahead
    /// that it means nothing.
    pub fn age(&self, now: WallTime) -> Duration {
        let made_us = i64::try_from(self.made_s).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        if self.made_s == 0 { Duration::MAX } else { manifest_age(WallTime(made_us), now) }
    }
}
