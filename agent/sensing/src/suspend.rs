//! Notices of the machine's sleep and wake-up, from systemd-logind.
//!
//! logind waits for holders of a *delay lock*, five seconds at most by its own setting
//! (<https://systemd.io/INHIBITOR_LOCKS/>): the time in which an agent leaves its grid. Without a system bus or logind
//! there are no notices; the absence is then noticed afterwards.
//!
//! Left out: other systems, and shutdown, which reaches the agent as SIGTERM.

use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use zbus::proxy::SignalStream;
use zbus::{Connection, Proxy};

/// How long the agent delays the sleep at most.
const DELAY_MAX: Duration = Duration::from_secs(2);

/// A notice of logind.
#[derive(Debug)]
pub enum Suspend {
    /// The machine will sleep as soon as the lock is dropped; at once without one.
    Soon(Option<DelayLock>),
    /// It is awake again, or will not sleep after all.
    Over,
}

/// Keeps the machine from sleeping while it lives, up to logind's limit.
#[derive(Debug)]
pub struct DelayLock {
    _file: OwnedFd,
}

/// Whether the machine sleeps or is about to, as far as this agent knows.
#[derive(Debug, Default)]
pub enum Sleep {
    /// It is awake.
    #[default]
    Awake,
    /// It is about to sleep, and waits for the lock.
    Delayed {
        /// The lock is dropped by then.
        until: Instant,
        /// Keeps it awake.
        _lock: DelayLock,
    },
    /// It may sleep at any time.
    Asleep,
}

impl Sleep {
    /// Notes that the machine is about to sleep. True if that was not known.
    pub fn begin(&mut self, lock: Option<DelayLock>, now: Instant) -> bool {
        let was_awake = matches!(self, Self::Awake);
        if was_awake {
            *self = lock.map_or(Self::Asleep, |lock| Self::Delayed { until: now + DELAY_MAX, _lock: lock });
        }
        was_awake
    }

    /// When to release the delay lock, if it is held.
    pub fn release_at(&self) -> Option<Instant> {
        match self {
            Self::Delayed { until, .. } => Some(*until),
            Self::Awake | Self::Asleep => None,
        }
    }

    /// Releases the delay lock, if it is held.
    pub fn release(&mut self) {
        if matches!(self, Self::Delayed { .. }) {
            *self = Self::Asleep;
        }
    }

    /// Notes that the machine is awake. True if that was not known.
    pub fn end(&mut self) -> bool {
        !matches!(std::mem::take(self), Self::Awake)
    }
}

/// Forwards logind's notices for as long as logind runs.
pub async fn follow(events: mpsc::Sender<Suspend>) {
    let (logind, mut signals, lock) = match find_logind().await {
        Ok(found) => found,
        Err(error) => {
            tracing::info!(%error, "nobody says when this machine sleeps; that is noticed afterwards");
            return;
        }
    };
    let mut lock = Some(lock);
    while let Some(signal) = signals.next().await {
        let event = match signal.body().deserialize::<bool>() {
            Ok(true) => Suspend::Soon(lock.take()),
            Ok(false) => Suspend::Over,
            Err(error) => {
                tracing::warn!(%error, "logind said something that this agent does not understand");
                continue;
            }
        };
        let is_over = matches!(event, Suspend::Over);
        if events.send(event).await.is_err() {
            return;
        }
        if is_over && lock.is_none() {
            lock = match take_lock(&logind).await {
                Ok(lock) => Some(lock),
                Err(error) => {
                    tracing::warn!(%error, "logind will not wait for this agent when the machine sleeps next");
                    None
                }
            };
        }
    }
    tracing::warn!("the system bus has ended; from now on it is noticed afterwards when this machine sleeps");
    // After an announced sleep there will be no notice of its end. Without a receiver the agent is ending.
    if events.send(Suspend::Over).await.is_err() {
        tracing::debug!("the agent has ended");
    }
}

/// logind, its signals, and a first lock, which proves that it works.
///
/// # Errors
/// When there is no system bus, or no logind on it, or it refuses the lock.
async fn find_logind() -> zbus::Result<(Proxy<'static>, SignalStream<'static>, DelayLock)> {
    let bus = Connection::system().await?;
    let [service, path] = ["org.freedesktop.login1", "/org/freedesktop/login1"];
    let logind = Proxy::new(&bus, service, path, "org.freedesktop.login1.Manager").await?;
    let signals = logind.receive_signal("PrepareForSleep").await?;
    let lock = take_lock(&logind).await?;
    Ok((logind, signals, lock))
}

async fn take_lock(logind: &Proxy<'_>) -> zbus::Result<DelayLock> {
    let file: zbus::OwnedFd =
        logind.call("Inhibit", &("sleep", "idlewood", "leaves the grid in good order", "delay")).await?;
    Ok(DelayLock { _file: file.into() })
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read as _, pipe};

    use super::*;

    fn lock() -> (DelayLock, PipeReader) {
        let (reader, writer) = pipe().expect("a pipe");
        (DelayLock { _file: writer.into() }, reader)
    }

    /// Blocks while the lock is held.
    fn assert_released(mut reader: PipeReader) {
        assert_eq!(reader.read(&mut [0]).expect("our pipe"), 0);
    }

    #[test]
    fn sleep_is_delayed_until_the_leave_and_no_longer_than_allowed() {
        let now = Instant::now();
        let mut sleep = Sleep::default();
        assert_eq!(sleep.release_at(), None);
        let (held, reader) = lock();
        assert!(sleep.begin(Some(held), now));
        assert_eq!(sleep.release_at(), Some(now + DELAY_MAX));
        sleep.release();
        assert_released(reader);
        assert_eq!(sleep.release_at(), None);
        assert!(sleep.end(), "asleep until it is told otherwise");
    }

    #[test]
    fn a_repeated_notice_changes_nothing() {
        let now = Instant::now();
        let mut sleep = Sleep::default();
        sleep.release();
        assert!(!sleep.end(), "it never slept");
        assert!(sleep.begin(None, now), "without a lock, too");
        assert_eq!(sleep.release_at(), None);
        let (held, reader) = lock();
        assert!(!sleep.begin(Some(held), now));
        assert_released(reader);
        assert!(sleep.end());
        assert!(!sleep.end());
    }

    #[test]
    fn a_sleep_that_is_called_off_lets_the_lock_go() {
        let mut sleep = Sleep::default();
        let (held, reader) = lock();
        assert!(sleep.begin(Some(held), Instant::now()));
        assert!(sleep.end());
        assert_released(reader);
        assert_eq!(sleep.release_at(), None);
    }
}
