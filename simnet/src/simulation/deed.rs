//! What peers do, for the judges of a simulation.

use idlewood_overlay::{Node, PeerId};
use idlewood_scheduler::{BagId, Path, TaskId};

/// What a peer did about requests and reports, recorded for checks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// A leaf started a task that was not ahead.
    Started {
        /// The task.
        task: TaskId,
        /// Attempt of its issue: rises when the submitter issues the task again.
        attempt: u32,
    },
    /// A router sent a part of a request down.
    SentDown {
        /// The bag.
        bag: BagId,
        /// Number of the request.
        number: u64,
        /// Path of the part.
        path: Path,
    },
    /// A leaf made durable what it holds of a bag.
    Held {
        /// The bag.
        bag: BagId,
    },
    /// A leaf published something new.
    Published {
        /// Version that the router beside it had published before.
        router: u64,
    },
    /// A node reported to its parent, on another machine, what it last published.
    Reported {
        /// The node of the machine.
        node: Node,
        /// Version of what it published.
        version: u64,
    },
    /// A router received a child's report.
    Heard {
        /// The child's machine.
        from: PeerId,
        /// The node of that machine.
        node: Node,
        /// Version of what it published.
        version: u64,
        /// Version that the router itself had published before.
        router: u64,
    },
}
