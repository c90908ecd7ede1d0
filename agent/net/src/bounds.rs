//! Bounds shared by several parts.

use std::time::Duration;

/// Longest time from a dial to an admitted connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests under way to one peer; others wait in order. With a round trip of 50 ms: 640 messages a second; a few of
/// the answers may wait some milliseconds more (`answers`).
pub(super) const IN_FLIGHT_MAX: usize = 32;
