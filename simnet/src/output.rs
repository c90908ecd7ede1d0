//! How commands print results and progress.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use idlewood_simnet::Progress;

/// How a result is printed.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

/// Progress of a long run: one line on a terminal, else a line every ten seconds.
pub(crate) struct ProgressLine {
    started: Instant,
    /// When it was last printed.
    shown: Option<Instant>,
    is_terminal: bool,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), shown: None, is_terminal: std::io::stderr().is_terminal() }
    }

    pub(crate) fn show(&mut self, progress: Progress) {
        let Progress { now, bags_closed, bags, events } = progress;
        self.say(format_args!("{bags_closed}/{bags} bags, {:.0} s simulated, {events} events ", now.as_secs_f64()));
    }

    pub(crate) fn say(&mut self, text: std::fmt::Arguments<'_>) {
        if self.started.elapsed() < Duration::from_secs(1) {
            return;
        }
        let pause = if self.is_terminal { Duration::from_millis(200) } else { Duration::from_secs(10) };
        if self.shown.is_some_and(|shown| shown.elapsed() < pause) {
            return;
        }
        self.shown = Some(Instant::now());
        if self.is_terminal {
            eprint!("\r{text}");
        } else {
            eprintln!("{text}");
        }
    }

    /// Clears the line; returns wall-clock seconds since the start.
    pub(crate) fn finish(&self) -> f64 {
        if self.is_terminal && self.shown.is_some() {
            eprint!("\r{:70}\r", "");
        }
        self.started.elapsed().as_secs_f64()
    }
}
