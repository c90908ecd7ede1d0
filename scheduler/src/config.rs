//! What can be set about a peer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::queue::{SPEED_MOPS_MAX, SPEED_MOPS_MIN};

/// Settings of one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The tree.
    pub overlay: idlewood_overlay::Config,
    /// Tasks that run at the same time, 1 to 1024. Default 1: the owner decides on more.
    pub slots: u32,
    /// Speed of one slot in Mop/s of the reference kernel, above 0. Default 1000; the agent measures it.
    pub speed_mops: f64,
    /// B of the paper (§6): a router keeps a request whose stretch is at most B times the platform's minimum.
    /// At least 1. Default 1: every request is decided with the most information, the prototype's best figure.
    pub stretch_bound: f64,
    /// Deadlines by the effective size a·max(n, N) instead of the paper's w = a·n. Default true: `design.md`.
    pub effective_size: bool,
    /// Whether there is a grid to join, so that a machine that is still alone must not take all its tasks on itself: it
    /// waits for the others, at most as long as for a placement. Default false.
    pub expects_grid: bool,
    /// How long a submitter trusts an executor that it does not hear from, 1 s to 1 h. Default 60 s; a third of it
    /// is the time between renewals. It grows with the number of executors.
    pub lease: Duration,
    /// How long issued tasks may stay unaccounted for before they are issued again, 1 s to 10 min. Default 15 s:
    /// several times the way up and down a tree of a million.
    pub placement_timeout: Duration,
    /// How long the owner must be back before unstarted tasks are handed back. Default 10 min: what HTCondor and
    /// BOINC users know.
    pub vacate_after: Duration,
    /// Least time between two summaries of the leaf. Default 250 ms: our choice, one round trip between homes.
    pub summary_interval: Duration,
    /// Most time between two summaries of a leaf that has work. Default 30 s: our choice; cells stay lower bounds as time
    /// passes, so that this only lets a leaf offer what became free meanwhile.
    pub summary_refresh: Duration,
    /// First time to wait before an unanswered message is repeated; doubles up to a third of the lease. Default 2 s.
    pub repeat_after: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            overlay: idlewood_overlay::Config::default(),
            slots: 1,
            speed_mops: 1000.0,
            stretch_bound: 1.0,
            effective_size: true,
            expects_grid: false,
            lease: Duration::from_secs(60),
            placement_timeout: Duration::from_secs(15),
            vacate_after: Duration::from_secs(600),
            summary_interval: Duration::from_millis(250),
            summary_refresh: Duration::from_secs(30),
            repeat_after: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// Refuses nonsense.
    ///
    /// # Errors
    /// A sentence that names the field and what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        self.overlay.validate()?;
        let check = |valid: bool, sentence: &str| if valid { Ok(()) } else { Err(sentence.to_owned()) };
        let within = |value: Duration, least: u64, most: u64| {
            value >= Duration::from_secs(least) && value <= Duration::from_secs(most)
        };
        check((1..=1024).contains(&self.slots), "slots must be between 1 and 1024")?;
        check(
            (SPEED_MOPS_MIN..=SPEED_MOPS_MAX).contains(&self.speed_mops),
            &format!("speed_mops must be between {SPEED_MOPS_MIN} and {SPEED_MOPS_MAX} Mop/s"),
        )?;
        check(self.stretch_bound.is_finite() && self.stretch_bound >= 1.0, "stretch_bound must be at least 1")?;
        check(within(self.lease, 1, 3600), "lease must be between 1 s and 1 h")?;
        check(within(self.placement_timeout, 1, 600), "placement_timeout must be between 1 s and 10 min")?;
        check(!self.summary_interval.is_zero(), "summary_interval must be above 0")?;
        check(!self.summary_refresh.is_zero(), "summary_refresh must be above 0")?;
        check(!self.repeat_after.is_zero(), "repeat_after must be above 0")
    }
}
