//! Ctrl-C: a run ends in good order, so that what it made goes with it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Begins to note signals that ask this process to end.
///
/// # Errors
/// A sentence, where the system refuses.
pub(crate) fn watch() -> Result<(), String> {
    let stop = STOP.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
            .map_err(|error| format!("signals cannot be caught: {error}"))?;
    }
    Ok(())
}

/// # Errors
/// Once the process was asked to end.
pub(crate) fn check() -> Result<(), String> {
    match STOP.get() {
        Some(stop) if stop.load(Ordering::Relaxed) => Err("stopped by a signal".to_owned()),
        _ => Ok(()),
    }
}

/// Sleeps until a moment.
///
/// # Errors
/// As [`check`].
pub(crate) fn sleep_until(until: Instant) -> Result<(), String> {
    loop {
        check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
