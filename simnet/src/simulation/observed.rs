//! What shards observe on machines, for the record and the history.

use idlewood_overlay::Time;
use idlewood_scheduler::{BagId, TaskId};

use crate::event_queue::HostIndex;
use crate::host::Ending;
use crate::record::Predicted;

/// Something that a shard observed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Observed {
    /// The machine went down; it is to be started at `until`.
    Down {
        until: Time,
    },
    Accepted(BagId),
    Closed(BagId),
    /// How well its submitter predicted the end of a bag that it closes.
    Predicted(BagId, Predicted),
    Started(TaskId),
    /// A task stands still to let others run.
    Frozen(TaskId),
    /// A frozen task goes on.
    Thawed(TaskId),
    /// A task was stopped before its end.
    Stopped(TaskId),
    /// The owner of the machine has come back or gone away.
    Owner {
        here: bool,
    },
    /// A task has run for as long as it takes.
    Ended {
        task: TaskId,
        ending: Ending,
    },
    /// A result is durable in the journal of the machine.
    Journalled {
        task: TaskId,
        success: bool,
        has_output: bool,
    },
}

/// An observation on a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    pub(super) at: Time,
    pub(super) host: HostIndex,
    pub(super) observed: Observed,
}
