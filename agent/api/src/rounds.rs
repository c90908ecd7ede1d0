//! Applications in rounds, as they are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far an application in rounds is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoundsView {
    /// Its processes.
    pub processes: u64,
    /// Rounds of each, at most.
    pub rounds: u64,
    /// Whether a program merges what processes find.
    pub merges: bool,
    /// `sync` or `async`.
    pub mode: String,
    /// Rounds that all processes have done, merged where there is one merge of all.
    pub complete: u64,
    /// Rounds that each process has done, by its number.
    pub done: Vec<u64>,
    /// Processes for which the others wait; none in mode `async`.
    pub waited_for: Vec<u64>,
    /// Rounds, from the first on, whose results were lost with the machine of which this one adopted the bag.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gone: u64,
    /// Of an application whose rounds begin at once: slots that machines keep for processes of the next round, which begins when each has one;
    /// absent while no round waits so, and otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots_booked: Option<u64>,
    /// Whether a merge said that the application has converged, so that it ends early.
    pub converged: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
