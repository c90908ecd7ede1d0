//! What is known of the tasks of one bag, so that they can be given ahead, and of one task that was.

use std::time::Duration;

use idlewood_scheduler::TaskOutcome;
use idlewood_scheduler::ranges::IntervalSet;

use crate::effect::Effect;
use crate::work::{JobId, WorkOrder};

/// Work that a worker is given ahead. Our choice: many times what the agent needs to come back to it.
pub(super) const AHEAD: Duration = Duration::from_millis(20);
/// Most jobs of a run that are given ahead.
pub const JOBS_MAX: usize = 128;

/// What is known of the tasks of a bag, of which the driver has an example.
#[derive(Debug)]
pub(super) struct Kit {
    pub(super) memory_bytes: u64,
    pub(super) attempt: u32,
    /// How long they take, by the last ones; `None`: none has ended yet.
    pub(super) span: Option<Duration>,
    /// Tasks that are not over here, as the peer's record says.
    pub(super) held: IntervalSet,
    /// Where to look for the next one.
    pub(super) next: u64,
}

impl Kit {
    /// How many jobs a run of this bag has.
    pub(super) fn run_length(&self) -> usize {
        let fits = |span: Duration| (AHEAD.as_nanos() / span.as_nanos().max(1)).clamp(1, JOBS_MAX as u128) as usize;
        self.span.map_or(1, fits)
    }
}

/// A task that has ended before the peer has started it.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) job: JobId,
    pub(super) attempt: u32,
    /// `None`: its output is being kept.
    pub(super) outcome: Option<TaskOutcome>,
}

impl Early {
    /// Forgets the job, since nobody wants its result. While its output is being kept, `kept_early` forgets it afterwards.
    pub(super) fn forget(&self, effects: &mut Vec<Effect>) {
        if self.outcome.is_some() {
            effects.push(WorkOrder::Forget { job: self.job }.into());
        }
    }
}
