//! Sensing of the owner: input, processor use, battery, programs; and of the machine's sleep (`suspend`).
//!
//! Each source of input is polled on its own: ten times a second while tasks run, since the owner must get the machine
//! back within a second; every two seconds otherwise. The driver wakes only on input. The policy decides what follows.
//!
//! | source | how | where it does not work |
//! |---|---|---|
//! | `x11` | idle time of the screen saver extension, of every local display | displays of other users |
//! | `mutter` | GNOME's idle monitor on the session bus | without GNOME, or outside of its session |
//! | `wayland` | ext-idle-notify-v1 of the compositor (wlroots, KWin, cosmic and others) | outside of its session |
//! | `terminals` | access times of the terminals: consoles, ssh, terminal windows | input in steps of 8 s |
//! | `logind` | the idle hints of graphical sessions, where none of the first three works | until a desktop sets them |
//! | `file` | a file that a script of the owner creates; it replaces all others and the processor use | |
//!
//! All code here reads texts and directories that it is given, so that tests can supply others. Left out: evdev (needs
//! the right to read every key press), other systems than Linux (the agent runs there alone so far).

pub mod cpu;
mod logind;
pub mod memory;
mod mutter;
pub mod power;
pub mod programs;
mod sensed;
pub mod suspend;
mod terminals;
mod wayland;
mod x11;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

pub use sensed::{Sensed, Unavailable};

/// How often a source is polled while tasks run: leaves most of the second within which the machine must be the
/// owner's.
const PERIOD_FAST: Duration = Duration::from_millis(100);
/// How often it is polled otherwise.
const PERIOD_SLOW: Duration = Duration::from_secs(2);
/// How long a source that does not work is not polled.
const RETRY_AFTER: Duration = Duration::from_secs(15);
/// Readings that differ by less are of the same input.
const SAME_INPUT: Duration = Duration::from_millis(60);

/// A source of input. Polling it may block.
#[derive(Debug)]
pub enum Source {
    /// X11 displays.
    X11(x11::X11),
    /// GNOME.
    Mutter(mutter::Mutter),
    /// Other Wayland compositors.
    Wayland(wayland::Wayland),
    /// Consoles, remote logins, terminal windows.
    Terminals(terminals::Terminals),
    /// The session's idle hint.
    Logind(logind::Logind),
}

/// Names of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceName {
    /// [`Source::X11`].
    X11,
    /// [`Source::Mutter`].
    Mutter,
    /// [`Source::Wayland`].
    Wayland,
    /// [`Source::Terminals`].
    Terminals,
    /// [`Source::Logind`].
    Logind,
    /// [`Probe::File`].
    File,
}

impl SourceName {
    /// How often it is polled while tasks run.
    fn period_fast(self) -> Duration {
        // One reading takes several questions to logind, and is only a desktop's guess.
        if self == Self::Logind { PERIOD_FAST * 5 } else { PERIOD_FAST }
    }
}

impl Source {
    /// All sources on this system.
    pub fn all() -> Vec<Self> {
        vec![
            Self::X11(x11::X11::default()),
            Self::Mutter(mutter::Mutter::default()),
            Self::Wayland(wayland::Wayland::default()),
            Self::Terminals(terminals::Terminals::new("/dev".into())),
            Self::Logind(logind::Logind::default()),
        ]
    }

    /// Its name.
    pub fn name(&self) -> SourceName {
        match self {
            Self::X11(_) => SourceName::X11,
            Self::Mutter(_) => SourceName::Mutter,
            Self::Wayland(_) => SourceName::Wayland,
            Self::Terminals(_) => SourceName::Terminals,
            Self::Logind(_) => SourceName::Logind,
        }
    }

    /// Time since the last input that it saw. May block for a second or two.
    pub async fn idle(&mut self) -> Sensed {
        match self {
            Self::Mutter(mutter) => mutter.idle().await,
            Self::Logind(logind) => logind.idle().await,
            Self::X11(x11) => tokio::task::block_in_place(|| x11.idle()),
            Self::Wayland(wayland) => tokio::task::block_in_place(|| wayland.idle()),
            Self::Terminals(terminals) => terminals.idle(),
        }
    }
}

/// The last input that a source saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// When it was; now, while a file tells.
    pub at: Instant,
    /// It was later than this, the previous poll of the source.
    pub not_before: Instant,
    /// The owner is present until this is withdrawn, whatever the idle time: set only by a file.
    pub holds: bool,
}

/// The readings of all sources that have one, by name.
type Readings = BTreeMap<SourceName, Reading>;

/// The last input. Idle hints count only if no better source watches the displays.
fn last_input(readings: &Readings) -> Option<Reading> {
    let sees_displays = [SourceName::X11, SourceName::Mutter, SourceName::Wayland];
    let displays = sees_displays.iter().any(|name| readings.contains_key(name));
    let counted = readings.iter().filter(|(name, _)| !(displays && **name == SourceName::Logind));
    counted.map(|(_, reading)| *reading).max_by_key(|reading| (reading.holds, reading.at))
}

/// How the owner's presence is sensed.
#[derive(Clone, Debug)]
pub enum Probe {
    /// By all sources.
    Sources,
    /// The owner is present while this file exists.
    File(PathBuf),
}

/// Watches the owner's input until it is dropped.
#[derive(Debug)]
pub struct Watch {
    readings: watch::Receiver<Readings>,
    fast: watch::Sender<bool>,
    is_file: bool,
    _tasks: JoinSet<()>,
}

impl Watch {
    /// Begins to watch. Needs a runtime of several threads.
    pub fn start(probe: Probe) -> Self {
        let (sender, readings) = watch::channel(Readings::new());
        let (fast, pace) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let is_file = matches!(probe, Probe::File(_));
        match probe {
            Probe::Sources => {
                for source in Source::all() {
                    tasks.spawn(follow(source, sender.clone(), pace.clone()));
                }
            }
            Probe::File(path) => {
                tasks.spawn(follow_file(path, sender));
            }
        }
        Self { readings, fast, is_file, _tasks: tasks }
    }

    /// Sets whether tasks run, so that the owner's return must be noticed at once.
    pub fn set_fast(&self, fast: bool) {
        self.fast.send_if_modified(|before| std::mem::replace(before, fast) != fast);
    }

    /// Waits for input. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.readings.changed().await.is_err() {
            // All sources have ended, which happens only with the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// The last input known now.
    pub fn last_input(&self) -> Option<Reading> {
        last_input(&self.readings.borrow())
    }

    /// Whether a file tells the owner's presence, instead of sources.
    pub fn is_file(&self) -> bool {
        self.is_file
    }
}

async fn follow(mut source: Source, readings: watch::Sender<Readings>, mut pace: watch::Receiver<bool>) {
    let name = source.name();
    let mut asked_before = Instant::now();
    let mut said: Option<Unavailable> = None;
    loop {
        let asking = Instant::now();
        let sensed = source.idle().await;
        let now = Instant::now();
        let works = sensed.is_ok();
        match sensed {
            Ok(idle) => {
                let at = now.checked_sub(idle).unwrap_or(asked_before);
                let reading = Reading { at, not_before: asked_before.min(at), holds: false };
                readings.send_if_modified(|all| update(all, name, reading));
                said = None;
            }
            Err(unavailable) => {
                if said.as_ref() != Some(&unavailable) {
                    tracing::debug!(source = ?name, why = %unavailable, "this source of input says nothing");
                    said = Some(unavailable);
                }
                readings.send_if_modified(|all| all.remove(&name).is_some());
            }
        }
        asked_before = asking;
        let is_fast = *pace.borrow_and_update();
        let period = match (works, is_fast) {
            (false, _) => RETRY_AFTER,
            (true, true) => name.period_fast(),
            (true, false) => PERIOD_SLOW,
        };
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            changed = pace.changed(), if works => if changed.is_err() { return },
        }
    }
}

/// Stores a reading if it is the first, or shows later input than the stored one.
fn update(all: &mut Readings, name: SourceName, reading: Reading) -> bool {
    match all.get(&name) {
        // If the idle time grew as the clock did, it is the same input.
        Some(known) if reading.at <= known.at + SAME_INPUT => false,
        _ => {
            all.insert(name, reading);
            true
        }
    }
}

async fn follow_file(path: PathBuf, readings: watch::Sender<Readings>) {
    let mut asked_before = Instant::now();
    loop {
        let now = Instant::now();
        let exists = path.exists();
        readings.send_if_modified(|all| {
            let reading = Reading { at: now, not_before: asked_before, holds: true };
            match (exists, all.contains_key(&SourceName::File)) {
                (true, false) => all.insert(SourceName::File, reading).is_none(),
                (false, true) => all.remove(&SourceName::File).is_some(),
                _ => false,
            }
        });
        asked_before = now;
        tokio::time::sleep(PERIOD_FAST).await;
    }
}

#[cfg(test)]
mod tests;
