//! What one look at a source of input tells.

use std::time::Duration;

/// Why a source gives no reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unavailable {
    /// The reason.
    pub why: String,
    /// What the owner can do about it; empty if nothing is wrong.
    pub remedy: String,
}

impl Unavailable {
    /// Not a fault: this machine has no such source.
    pub fn absent(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: String::new() }
    }

    /// A fault, or something missing.
    pub fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: remedy.into() }
    }
}

/// Time since the last input, or why it is unknown.
pub type Sensed = Result<Duration, Unavailable>;
