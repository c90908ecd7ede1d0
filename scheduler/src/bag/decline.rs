//! Why machines do not queue tasks.

use serde::{Deserialize, Serialize};

/// Why a machine does not queue tasks of a bag, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
pub enum DeclineReason {
    /// Its manifest cannot be had, now.
    #[error("its manifest cannot be had")]
    #[serde(rename = "a")]
    Unavailable,
    /// The manifest is not one, is signed by somebody else, or says other things than the request.
    #[error("it is not what its submitter signed")]
    #[serde(rename = "f")]
    Forged,
    /// Its submitter is a member only.
    #[error("its submitter may not submit to this grid")]
    #[serde(rename = "r")]
    Role,
    /// Its submitter is no machine of the grid, or none any more.
    #[error("its submitter has no valid certificate of the grid")]
    #[serde(rename = "g")]
    Stranger,
    /// The owner's lists of submitters.
    #[error("the owner does not let bags of its submitter run here")]
    #[serde(rename = "s")]
    Submitter,
    /// The owner's lists of programs.
    #[error("the owner does not let its program run here")]
    #[serde(rename = "p")]
    Program,
    /// Native programs, which the owner has not let run, or the system cannot confine.
    #[error(
        "the machine runs no native programs: its owner has not set bags.native, or its system cannot confine them"
    )]
    #[serde(rename = "n")]
    Native,
    /// One task needs more than the owner gives to all.
    #[error("a task needs more memory than there is for tasks here")]
    #[serde(rename = "l")]
    Size,
    /// Its submitter has as much there as one may.
    #[error("its submitter has as much work here as one may have")]
    #[serde(rename = "q")]
    Quota,
    /// A copy of a task that this machine has already, or would end no sooner than the machine that has begun it.
    #[error("a copy of its task would end no sooner here")]
    #[serde(rename = "c")]
    Copy,
    /// Its submitter prefers this machine to others, and it would begin here later than predicted.
    #[error("its task would begin later here than its submitter predicted")]
    #[serde(rename = "b")]
    Later,
}
