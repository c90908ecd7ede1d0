//! How often results are written while jobs run.

use std::time::{Duration, Instant};

/// Limits how often all jobs are summarised: every second, and at most a tenth of the time.
pub(crate) struct Refresh {
    ended: Instant,
    took: Duration,
    /// Something has changed since the last time.
    pub(crate) is_due: bool,
}

impl Refresh {
    /// As if the last time was now.
    pub(crate) fn new() -> Self {
        Self { ended: Instant::now(), took: Duration::ZERO, is_due: false }
    }

    /// Calls `write`, or leaves it for a later call.
    pub(crate) fn now_and_then(&mut self, write: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        if !self.is_due || self.ended.elapsed() < Duration::from_secs(1).max(self.took * 10) {
            return Ok(());
        }
        let begun = Instant::now();
        write()?;
        *self = Self { ended: Instant::now(), took: begun.elapsed(), is_due: false };
        Ok(())
    }
}
