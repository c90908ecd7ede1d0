//! What the driver tells the machine.

use std::num::NonZeroU64;
use std::time::Duration;

use idlewood_scheduler::rounds::PartialRun;
use idlewood_scheduler::{BagId, Checkpoint, TaskResult};

use crate::downloads::Piece;
use crate::effect::{FetchId, WriteId};
use crate::policy::{Facts, Orders, OwnerSettings};
use crate::work::WorkEvent;

/// How a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchEnd {
    /// The output is here, durable.
    Here {
        /// Of a task that came back before its end: what requests name for the next machine to go on from.
        checkpoint: Option<Checkpoint>,
    },
    /// Its executor does not have it, or gives something else.
    NotHad,
    /// It is not to be had now: its executor, or this machine, has too much to do, or cannot be reached. The executor offers it
    /// again.
    PutOff,
    /// This machine has no room for it.
    NoRoom,
}

/// How a write to the disk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// All of it is durable.
    Durable,
    /// The disk has no room for it; it is as it was.
    NoRoom,
    /// A record of it never fits the store.
    Unfit,
    /// The disk failed.
    Failed,
}

/// What the first task of a bag showed.
#[derive(Clone, Debug, PartialEq)]
pub enum FirstTask {
    /// It ran, to its end or to its limit.
    Ran {
        /// Processor time that it took.
        cpu: Duration,
        /// What came of it.
        result: TaskResult,
    },
    /// A process of an application in rounds ran to its limit.
    TooLong {
        /// Processor time that it took.
        cpu: Duration,
        /// Iterations that it is to do.
        iterations: NonZeroU64,
        /// How many it had done after how much processor time, where it says that.
        marks: Vec<PartialRun>,
    },
    /// A run of fewer iterations, for which [`Effect::RunFirstTask`](crate::Effect::RunFirstTask) asked, ended well.
    Partial {
        /// Processor time that it took.
        cpu: Duration,
        /// How long it ran by the clock, without what it stood still.
        wall: Duration,
    },
    /// It could not start yet.
    NotStarted,
    /// It will not run here: it was stopped, or cannot run on any machine.
    Nothing,
}

/// A fact that reached this machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// What its peer alone has to do with, but for what the events below say in its place: never
    /// [`idlewood_scheduler::Event::Fetched`], `FetchPutOff`, `Measured`, `TaskEnded`, `Persisted`, `Downloaded`, `DiskFull`, `OwnerReturned`, `OwnerLeft`,
    /// `Vacate`, `VacatesAfter` or `Describes`.
    Peer(idlewood_scheduler::Event),
    /// The owner's input and all else that the policy judges by was looked at: to be said at input, and every second where the owner
    /// has set hours or limits of others' processor use.
    Sensed(Facts),
    /// What this machine is called, and the version of its agent: other machines of the grid may know both.
    Called {
        /// Its name.
        name: Box<str>,
        /// The version.
        version: Box<str>,
    },
    /// The owner ordered this; what was ordered before does not count any more.
    Ordered(Orders),
    /// The owner has changed the settings.
    OwnerSet(OwnerSettings),
    /// How long slots have computed since the driver last said so, and how long they were ready to and waited for a processor: to be said every few
    /// seconds, also while no task runs, since what was said before counts less and less. A driver that cannot tell leaves it out.
    Computed {
        /// Time on a processor, of all slots together.
        ran: Duration,
        /// Time in which they waited for one.
        waited: Duration,
    },
    /// Whether the driver does anything that must end before a machine that finishes may: a worker that is not free, a submission on
    /// its way in, checkpoints that are being packed.
    Busy(bool),
    /// The answer to [`Effect::Write`](crate::Effect::Write).
    Written {
        /// Which write.
        write: WriteId,
        /// How it ended.
        end: WriteEnd,
    },
    /// The driver is about to close the disk, which writes what it has been given until then.
    Closing,
    /// The answer to [`Effect::Fetch`](crate::Effect::Fetch).
    FetchEnded {
        /// Which fetch.
        fetch: FetchId,
        /// How it ended.
        end: FetchEnd,
    },
    /// A piece of a blob has come from another machine. The driver may leave some out.
    PieceCame(Piece),
    /// The answer to [`Effect::RunFirstTask`](crate::Effect::RunFirstTask).
    FirstTaskEnded {
        /// Of which bag.
        bag: BagId,
        /// What it showed.
        first: FirstTask,
    },
    /// What happens to workers and what they run.
    Work(WorkEvent),
}

impl From<WorkEvent> for Event {
    fn from(event: WorkEvent) -> Self {
        Self::Work(event)
    }
}

impl From<idlewood_scheduler::Event> for Event {
    fn from(event: idlewood_scheduler::Event) -> Self {
        Self::Peer(event)
    }
}
