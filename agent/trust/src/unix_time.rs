//! The time by which certificates expire.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of Unix time.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
