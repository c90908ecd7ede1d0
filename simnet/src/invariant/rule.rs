//! What an invariant is, and how a broken one is told.

use std::fmt;

use idlewood_overlay::Time;

use crate::event_queue::HostIndex;

/// One invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Its number in the design.
    pub name: &'static str,
    /// What must hold.
    pub rule: &'static str,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// When it was noticed.
    pub at: Time,
    /// The machine; none if it concerns the whole grid.
    pub host: Option<HostIndex>,
    /// The observation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant: Invariant { name, rule }, at, host, what } = self;
        let place = host.map_or(String::new(), |host| format!(" on machine {host}"));
        write!(formatter, "{name} ({rule}) is broken at {at:?}{place}: {what}")
    }
}
