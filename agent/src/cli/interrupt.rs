//! Ctrl-C: ending at once, or after what was begun is in order.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code after Ctrl-C, as shells have it.
pub(super) const INTERRUPTED: u8 = 130;

/// The user wants no more of it.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(super) struct Interrupted;

/// Whether Ctrl-C was pressed. Pressed again it ends the program.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C is heard here.
    ///
    /// # Errors
    /// When signals cannot be waited for.
    pub(super) fn hear() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let pressed = interrupt.0.clone();
        on_interrupt(move || {
            if pressed.swap(true, Relaxed) {
                process::exit(INTERRUPTED.into());
            }
        })?;
        Ok(interrupt)
    }

    /// For each step of what can end early.
    ///
    /// # Errors
    /// When it was pressed.
    pub(super) fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}

/// From now on Ctrl-C does this instead of ending the program.
///
/// # Errors
/// When signals cannot be waited for.
pub(super) fn on_interrupt(mut act: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot wait")?;
    let mut signals = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?
    };
    let wait = move || {
        while runtime.block_on(signals.recv()).is_some() {
            act();
        }
    };
    thread::Builder::new().name("interrupt".to_owned()).spawn(wait).context("cannot wait")?;
    Ok(())
}
