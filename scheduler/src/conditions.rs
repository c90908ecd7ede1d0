//! Conditions: what a bag's user says of when its tasks may be issued, beside what its manifest says.
//!
//! They are part of the bag's record, so that they outlive a restart and reach the bag's stewards: a steward that acts issues nothing of
//! a bag that its user withholds, or that waits for others. Whether a bag that others wait for has succeeded only the machine knows
//! from which all of them were submitted: a steward waits for it.
//!
//! The time of a bag counts from when its tasks may be issued: one that was held for a day before any began is not ahead of those that
//! were submitted since. Left out: the same for a bag that is held once tasks of it have begun.
//!
//! A bag waits only for bags that were there when it was submitted. So no bags wait for each other in a circle.

use std::collections::BTreeSet;

use idlewood_overlay::WallTime;
use serde::{Deserialize, Serialize};

use crate::bag::{BagId, is_ordinary, is_zero};
use crate::rounds::Plan;

/// Most bags that one waits for. Our choice.
pub const AFTER_MAX: usize = 64;
/// Most bytes of a name that a user gives to a bag.
pub const NAME_BYTES_MAX: usize = 200;

/// Bags have priorities from minus this to this.
pub const PRIORITY_MAX: i32 = 1000;

/// Whether a bag can have this priority.
pub(crate) fn is_priority(priority: i32) -> bool {
    (-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority)
}

/// What a bag's user says of when its tasks may be issued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Nothing is issued: the user holds the bag.
    #[serde(rename = "w", default, skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
    /// Nothing is issued before these have succeeded; those that have are no longer here.
    #[serde(rename = "a", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub after: BTreeSet<BagId>,
    /// So many of its tasks are with machines, or on the way there, at most; `None`: as many as there are.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub running_max: Option<u64>,
    /// Only tasks that end with one of these exit codes are tried again; `None`: all that fail.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<BTreeSet<u8>>,
    /// What the user calls the bag instead of the name in its manifest.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When the bag was submitted, where its time counts from later: from when its first tasks could be issued.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub submitted: Option<WallTime>,
    /// Bags of a higher priority come first among those of one submitter; others' bags are none the later for it (docs/adr/0048).
    #[serde(rename = "p", default, skip_serializing_if = "is_ordinary")]
    pub priority: i32,
    /// The bag is an application in rounds: a task may be issued once those have succeeded whose outputs it begins with.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Plan>,
    /// A merge of that application has said that it has converged: no further task of it begins.
    #[serde(rename = "c", default, skip_serializing_if = "std::ops::Not::not")]
    pub converged: bool,
    /// Tasks of so many rounds of it, from the first on, count as done, though their results are nowhere any more: whoever adopted the bag went
    /// on from a later one.
    #[serde(rename = "g", default, skip_serializing_if = "is_zero")]
    pub rounds_gone: u64,
    /// So many rounds of it have begun, where those of a round begin at once.
    #[serde(rename = "b", default, skip_serializing_if = "is_zero")]
    pub rounds_begun: u64,
}

/// What the user of a bag wants of it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing more of it is to be issued, and what has not begun is to come back from machines. What has begun runs to its end.
    Hold,
    /// It goes on, without waiting for other bags.
    Release,
    /// It has another name.
    Rename(String),
    /// It has another priority among its user's bags.
    Prioritise(i32),
}

/// Why a bag that another waits for has not succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaited {
    /// It is not over.
    Open,
    /// Some of its tasks failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It is not here: it was removed, or belongs to the machine whose bags this one took over.
    Unknown,
}

impl Conditions {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether they make sense.
    pub fn is_valid(&self) -> bool {
        self.after.len() <= AFTER_MAX
            && self.running_max != Some(0)
            && is_priority(self.priority)
            && self.rounds.is_none_or(|plan| plan.flaw().is_none())
            && self.rounds_gone.max(self.rounds_begun) <= self.rounds.map_or(0, |plan| plan.rounds)
            && self.name.as_ref().is_none_or(|name| name.len() <= NAME_BYTES_MAX)
    }

    /// A task of this round, from 0, has ended: whatever is on the disk, the round has begun.
    pub(crate) fn round_has_begun(&mut self, round: u64) {
        if self.rounds.is_some_and(|plan| plan.at_once) {
            self.rounds_begun = self.rounds_begun.max(round + 1);
        }
    }

    /// Whether nothing may be issued.
    pub(crate) fn withhold(&self) -> bool {
        self.withheld || !self.after.is_empty()
    }

    /// Whether the user says of tasks that end with this exit code that they are tried again, or that they are not; `None`: nothing.
    pub(crate) fn retries_on(&self, exit_code: u8) -> Option<bool> {
        self.retry_on.as_ref().map(|codes| codes.contains(&exit_code))
    }
}
