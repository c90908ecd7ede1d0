//! The owner's caps on the bandwidth of blobs, up and down. Messages are small and do not wait; a peer's rate of
//! requests is bounded, too.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Longest wait for a turn; a longer one is refused: the other side allows a request ten seconds, and a piece of 256
/// KiB takes four at the smallest cap.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A rate limit in bytes per second.
#[derive(Debug, Default)]
pub struct Rate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: unlimited.
    bytes_per_s: Option<u64>,
    /// When all booked bytes have passed.
    free_at: Option<Instant>,
}

/// The limits in both directions.
#[derive(Debug, Default)]
pub struct Rates {
    /// Blobs sent to others.
    pub upload: Rate,
    /// Blobs fetched.
    pub download: Rate,
}

impl Rate {
    /// Changes the limit; bookings stay.
    pub fn set(&self, bytes_per_s: Option<u64>) {
        self.state().bytes_per_s = bytes_per_s;
    }

    /// Books so many bytes; returns when they will have passed, after earlier bookings. `None`, and no booking, if that
    /// is too long.
    pub fn book(&self, bytes: usize) -> Option<Duration> {
        self.state().book(bytes, Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn book(&mut self, bytes: usize, now: Instant) -> Option<Duration> {
        let Some(bytes_per_s) = self.bytes_per_s else { return Some(Duration::ZERO) };
        let start = self.free_at.map_or(now, |free_at| free_at.max(now));
        let wait = start - now;
        if wait > WAIT_MAX {
            return None;
        }
        let end = start + Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64);
        self.free_at = Some(end);
        Some(end - now)
    }
}

/// Requests that one peer may send at once, and per second in the long run. Our choice: several times a submitter's
/// load from an executor of the smallest tasks.
const REQUESTS_BURST: f64 = 16_000.0;
const REQUESTS_PER_S: f64 = 4_000.0;

/// Requests that one peer may still send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: REQUESTS_BURST, at: now }
    }

    /// Uses up one request; false if none remained.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed_s = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed_s * REQUESTS_PER_S).min(REQUESTS_BURST);
        self.at = now;
        if self.left < 1.0 {
            return false;
        }
        self.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookings_queue_and_long_waits_are_refused() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut state = State::default();
        assert_eq!(state.book(usize::MAX, start), Some(Duration::ZERO), "no cap");
        state.bytes_per_s = Some(1_000);
        assert_eq!(state.book(500, at(0)), Some(Duration::from_millis(500)));
        assert_eq!(state.book(500, at(100)), Some(Duration::from_millis(900)));
        assert_eq!(state.book(1_000, at(2_000)), Some(Duration::from_secs(1)), "time without traffic is not saved up");
        assert_eq!(state.book(5_000, at(2_000)), Some(Duration::from_secs(6)));
        assert_eq!(state.book(1, at(2_000)), None, "six seconds to wait");
        assert_eq!(state.book(1_000, at(3_000)), Some(Duration::from_secs(6)), "and nothing was booked");
        state.bytes_per_s = None;
        assert_eq!(state.book(1_000, at(3_000)), Some(Duration::ZERO));
    }

    #[test]
    fn the_requests_of_one_peer_are_limited() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let taken = |allowance: &mut Allowance, now| (0..100_000).take_while(|_| allowance.take(now)).count() as f64;
        assert_eq!(taken(&mut allowance, start), REQUESTS_BURST);
        assert_eq!(taken(&mut allowance, start + Duration::from_millis(500)), REQUESTS_PER_S / 2.0);
        assert_eq!(taken(&mut allowance, start + Duration::from_secs(3_600)), REQUESTS_BURST, "no more is saved up");
    }
}
