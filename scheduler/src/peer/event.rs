//! What a driver tells a peer, and what a peer orders its driver to do.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, Member, Nonce, PeerId};
use serde::{Deserialize, Serialize};

use crate::bag::{
    BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, BagHeader, BagId, BlobId, Checkpoint, DeclineReason, Finished, TaskId, TaskResult,
};
use crate::io::Ticket;
use crate::ledger::{REPLICAS_MAX, Replication};
use crate::message::Message;
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::record::Change;

/// A bag to be submitted from this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Hash of its manifest.
    pub id: BagId,
    /// Number of tasks, at least 1.
    pub tasks: u64,
    /// Work of one task in Mop; `None`: the driver measures it ([`Effect::MeasureTask`]).
    pub task_mops: Option<f64>,
    /// Failed tries a task may have before it counts as failed.
    pub retries_max: u32,
    /// How many machines run each task.
    #[serde(default)]
    pub replication: Replication,
}

/// That tasks of a bag may queue on a machine, and what their driver knows of the bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// How long ago its submitter signed it by the clock of this machine ([`crate::manifest_age`]); the longest duration where
    /// nobody knows.
    pub signed_ago: Duration,
    /// Whether this machine has what the bag's tasks need. Where it has not, they begin when their submitter has answered, which
    /// alone gives the key to read it with.
    pub at_hand: bool,
}

/// How a started task ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskOutcome {
    /// It ran, well or not.
    Finished(Finished),
    /// Its program or input could not be had; the bag is left alone for a while.
    NotStarted {
        /// How long.
        retry_after: Duration,
    },
    /// The driver stopped it, as told or not.
    Stopped,
}

/// A fact that reached this peer.
#[derive(Clone, Debug)]
pub enum Event {
    /// A first contact answered: join through it.
    Bootstrap(Contact),
    /// What the transport has seen in a peer's certificate, before the peer's first message and again whenever it may have
    /// been forgotten: the nonce of its place on the line. Without it that is taken as empty.
    Certified {
        /// Whose.
        peer: PeerId,
        /// The nonce.
        nonce: Nonce,
    },
    /// A message arrived; `from` is authenticated by the transport.
    Received {
        /// Who sent it.
        from: PeerId,
        /// What was sent.
        message: Message,
    },
    /// The transport could not deliver to this peer, or lost its connection.
    ConnectionLost(PeerId),
    /// A write is durable.
    Persisted(Ticket),
    /// The user submits a bag.
    Submitted(Submission),
    /// The first task of a bag was run to see how long it takes.
    Measured {
        /// Which bag.
        bag: BagId,
        /// Work of one task, in Mop.
        task_mops: f64,
        /// Its result where it ran to the end.
        result: Option<TaskResult>,
    },
    /// The user gives up a bag.
    Cancelled(BagId),
    /// The user wants tasks of a bag that are over to be run again.
    Rerun {
        /// Which bag.
        bag: BagId,
        /// Which tasks; those that are not over do not matter.
        tasks: IntervalSet,
    },
    /// The user needs nothing of a bag any more; ignored unless it is over, or was not written yet.
    Removed(BagId),
    /// The answer to [`Effect::Authorise`]: tasks of the bag may queue here, or why not. Unasked, of a bag that is here: it may
    /// not be any more; what runs of it stops, and all that is not over goes back.
    Authorised {
        /// Which bag.
        bag: BagId,
        /// Whether they may.
        verdict: Result<Approval, DeclineReason>,
    },
    /// A worker is free again.
    TaskEnded {
        /// Which task it had.
        task: TaskId,
        /// How that ended.
        outcome: TaskOutcome,
    },
    /// These tasks, which began here in an earlier life, left checkpoints.
    CheckpointsFound {
        /// Of which bag.
        bag: BagId,
        /// Which tasks.
        tasks: IntervalSet,
    },
    /// The answer to [`Effect::KeepCheckpoints`]; those that have none are not named. Ignored if tasks went on meanwhile.
    CheckpointsKept {
        /// As the effect says it.
        stop: u64,
        /// Of which bag.
        bag: BagId,
        /// What is durable on this machine for each task; `None`: it has a checkpoint that cannot travel.
        checkpoints: BTreeMap<u64, Option<Checkpoint>>,
    },
    /// The output of a result is here, durable, or could not be had.
    Fetched {
        /// Whose output.
        task: TaskId,
        /// Whether it is here.
        here: bool,
        /// Of a task that came back before its end: what requests name for the next machine to go on from, where that is
        /// not the output itself.
        checkpoint: Option<Checkpoint>,
    },
    /// No task begins from now on: the owner of the machine is back, there is no room for results, or it is to finish. Said
    /// again where only the other changes.
    OwnerReturned {
        /// Whether what has begun stands still, too, and does not go on to its end.
        stands_still: bool,
    },
    /// The owner of the machine is away: tasks begin, and go on.
    OwnerLeft,
    /// The disk has no room for what would have to be written down of others' work, or has room again.
    DiskFull(bool),
    /// What has not begun, or is frozen for others, goes back at once, if no task begins here, and not after the vacate time.
    Vacate,
    /// From now on that is so long after the owner's return.
    VacatesAfter(Duration),
    /// Leave the grid in good order. Bags and tasks stay.
    Leave,
    /// Back after a leave, in a newer life with the same bags and tasks. Ignored unless it left.
    Return,
    /// There is no room for this message, and [`Event::Room`] follows once there is. Of the tree's own traffic nobody is told:
    /// it is lost.
    Unsent {
        /// To whom.
        to: Member,
        /// What.
        message: Message,
    },
    /// There is room again for messages to this peer.
    Room(PeerId),
    /// [`crate::Peer::deadline`] has come.
    DeadlineReached,
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message. It may be lost, or come back with [`Event::Unsent`].
    Send {
        /// To whom.
        to: Member,
        /// What.
        message: Message,
    },
    /// Write all of this or nothing, durably, then say so with [`Event::Persisted`].
    Persist {
        /// Names the write.
        ticket: Ticket,
        /// What changes.
        changes: Vec<Change>,
    },
    /// Look whether a bag may queue here: whether its manifest is signed by a submitter of the grid, says what this header
    /// says, and is what the owner lets run. [`Event::Authorised`] follows; nothing of it queues before.
    Authorise {
        /// The bag as a request describes it, which anybody may have written.
        bag: BagHeader,
    },
    /// Run a task; [`Event::TaskEnded`] follows.
    StartTask {
        /// On which worker, below [`crate::Config::places`]; it has no task.
        place: u32,
        /// Which task.
        task: TaskId,
        /// 0 for the first try.
        attempt: u32,
        /// Its bag, whose submitter has the manifest.
        bag: BagHeader,
        /// What it goes on from, unless it has been at work here since; the submitter has it.
        checkpoint: Option<Checkpoint>,
    },
    /// Stop a task, frozen or not; [`Event::TaskEnded`] follows.
    StopTask {
        /// On which worker.
        place: u32,
        /// Which task.
        task: TaskId,
    },
    /// Freeze a task: its worker keeps it, and others run meanwhile. It may end all the same, if it just did.
    FreezeTask {
        /// On which worker.
        place: u32,
        /// Which task.
        task: TaskId,
    },
    /// Let a task that [`Effect::FreezeTask`] froze go on where it stopped.
    ThawTask {
        /// On which worker.
        place: u32,
        /// Which task.
        task: TaskId,
    },
    /// Keep, durably, what these tasks go on from, none of which runs; [`Event::CheckpointsKept`] follows unless there is
    /// nothing to tell.
    KeepCheckpoints {
        /// Which stop of this machine it is: what tasks keep after they went on is not what was asked for.
        stop: u64,
        /// Of which bag.
        bag: BagId,
        /// Which tasks: they have begun, and are on no machine but this.
        tasks: IntervalSet,
    },
    /// Freeze all tasks at once: the owner is back. Nothing is started or thawed until [`Effect::ResumeTasks`].
    SuspendTasks,
    /// Let them go on, whether others begin or not, but for those that [`Effect::FreezeTask`] froze.
    ResumeTasks,
    /// Run the first task of a bag for a while to see how long it takes; [`Event::Measured`] follows.
    MeasureTask {
        /// Which bag.
        bag: BagId,
    },
    /// Get the output of a task and keep it durably; [`Event::Fetched`] follows.
    FetchOutput {
        /// Whose output.
        task: TaskId,
        /// Its content address.
        output: BlobId,
        /// Its size.
        output_bytes: u64,
        /// Whether it is the checkpoint of a task that came back before its end.
        unfinished: bool,
        /// Who has it.
        from: Contact,
    },
    /// News.
    Notify(Notice),
}

/// What a driver's user may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A submission is durable.
    BagAccepted(BagId),
    /// Every task of a bag is over, or it was cancelled; durable.
    BagClosed(BagId),
    /// That a bag is to go is durable.
    BagRemoved(BagId),
    /// This peer is a member of the grid.
    Joined,
    /// This peer has left the grid.
    Left,
}

/// Why a submission is refused. Nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError {
    /// No tasks, or too many.
    #[error("a bag has between 1 and {BAG_TASKS_MAX} tasks, not {0}")]
    Tasks(u64),
    /// Not a number to compute with.
    #[error(
        "the work of a task must be at least {WORK_MOPS_MIN} Mop, and that of all at most {BAG_WORK_MOPS_MAX:e} Mop"
    )]
    Work,
    /// No such numbers of replicas.
    #[error(
        "a task has up to {REPLICAS_MAX} replicas and a quorum from 2 to as many, or one replica with a quorum of one"
    )]
    Replication,
    /// The same manifest again.
    #[error("this very bag was submitted before")]
    Known,
}
