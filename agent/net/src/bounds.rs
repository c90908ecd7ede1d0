//! Bounds shared by several parts.

/// Requests under way to one peer; others wait in order. With a round trip of 50 ms: 640 messages a second; a few of
/// the answers may wait some milliseconds more (`answers`).
pub(super) const IN_FLIGHT_MAX: usize = 32;
