//! How the results of an application in rounds get mixed, as users say it.

use clap::ValueEnum;
use serde::Deserialize;

/// How the results of processes get mixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All processes wait for each other at the end of a round.
    #[default]
    Sync,
    /// No process waits for another: it is given the newest of the others.
    Async,
}
