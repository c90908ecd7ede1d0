//! Bounds of connections that several parts keep.

use std::time::Duration;

/// Longest time from a dial to a connection that is admitted.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests under way to one peer; the rest waits in order. With 50 ms to the peer and back: 640 messages a second; a
/// few of the answers may wait some milliseconds more (`answers`).
pub(super) const IN_FLIGHT_MAX: usize = 32;
