//! What to measure, and on what.

use std::path::PathBuf;

/// What to measure, and on what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's program.
    pub program: PathBuf,
    /// Agents of one slot each.
    pub agents: usize,
    /// Bags of each kind.
    pub runs: u64,
    /// Tiles of the picture.
    pub tiles: u32,
    /// Iterations of a process of the optimiser in a round.
    pub iterations: u64,
    /// The directory of the solver and its problems.
    pub solver: Option<PathBuf>,
    /// Percent of a processor that each agent gets; empty: as much as there is. Needs root, and a processor for each 100 %.
    pub quotas: Vec<u64>,
    /// Agents do not see their quotas, as in a container whose control groups are hidden.
    pub is_hidden: bool,
    /// Once two rounds are complete, the last but one agent is killed and runs again after the bag, and the second one's owner comes for half a minute.
    pub is_disturbed: bool,
}
