//! Ctrl-C and SIGTERM: ending a command at once, or after its files are in order.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{panic, process, thread};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// How soon a wait notices a signal.
const NOTICED_WITHIN: Duration = Duration::from_millis(50);

/// The signal that ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Interrupted {
    /// Ctrl-C.
    #[error("interrupted")]
    Keyboard,
    /// SIGTERM.
    #[error("terminated")]
    Terminated,
}

impl Interrupted {
    /// The exit code, as shells have it: 128 and the number of the signal.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Keyboard => 130,
            Self::Terminated => 143,
        }
    }
}

/// Whether a signal came. A second one ends the program.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<OnceLock<Interrupted>>);

impl Interrupt {
    /// Starts to catch signals.
    ///
    /// # Errors
    /// When signals cannot be waited for.
    pub(super) fn hear() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let came = interrupt.0.clone();
        on_interrupt(move |why| {
            if came.set(why).is_err() {
                process::exit(why.code().into());
            }
        })?;
        Ok(interrupt)
    }

    /// Called between the steps of a command that can end early.
    ///
    /// # Errors
    /// When a signal came.
    pub(super) fn check(&self) -> Result<(), Interrupted> {
        self.0.get().map_or(Ok(()), |why| Err(*why))
    }

    /// Runs `act` on a thread of its own, and waits until it ends or a signal comes: then it is abandoned, and ends
    /// with the program.
    ///
    /// # Errors
    /// When a signal came, or no thread can be started.
    pub(super) fn unless<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        let (done, is_done) = channel();
        let acting = thread::Builder::new().spawn(move || done.send(act())).context("cannot wait")?;
        loop {
            match is_done.recv_timeout(NOTICED_WITHIN) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => self.check()?,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match acting.join() {
            Err(panicked) => panic::resume_unwind(panicked),
            Ok(_) => unreachable!("it has sent what came of it"),
        }
    }
}

/// From now on Ctrl-C and SIGTERM call `act` instead of ending the program.
///
/// # Errors
/// When signals cannot be waited for.
pub(super) fn on_interrupt(mut act: impl FnMut(Interrupted) + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot wait")?;
    let (mut interrupts, mut terminations) = {
        let _inside = runtime.enter();
        let interrupts = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        (interrupts, signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?)
    };
    let next = async move || {
        tokio::select! {
            came = interrupts.recv() => came.map(|()| Interrupted::Keyboard),
            came = terminations.recv() => came.map(|()| Interrupted::Terminated),
        }
    };
    let wait = move || {
        let mut next = next;
        while let Some(why) = runtime.block_on(next()) {
            act(why);
        }
    };
    thread::Builder::new().name("interrupt".to_owned()).spawn(wait).context("cannot wait")?;
    Ok(())
}

#[cfg(test)]
impl Interrupt {
    /// An interrupt that came already.
    pub(super) fn pressed() -> Self {
        Self(Arc::new(OnceLock::from(Interrupted::Keyboard)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_wait_for_a_thread() {
        assert_eq!(Interrupt::default().unless(|| 7).unwrap(), 7);
        let (never, forever) = channel::<()>();
        let error = Interrupt::pressed().unless(move || forever.recv().is_err()).unwrap_err();
        assert_eq!(error.downcast::<Interrupted>().unwrap(), Interrupted::Keyboard);
        drop(never);
    }

    #[test]
    #[should_panic(expected = "in vain")]
    fn a_panic_of_the_thread_is_passed_on() {
        let ended = Interrupt::default().unless(|| panic!("in vain"));
        assert!(ended.is_ok(), "not reached");
    }
}
