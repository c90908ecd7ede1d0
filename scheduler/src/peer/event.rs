//! Events, with which a driver tells a peer what happened, and effects, with which a peer orders its driver what to do.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, Member, Nonce, PeerId};
use serde::{Deserialize, Serialize};

use crate::bag::{
    BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, BagHeader, BagId, BagKey, BlobId, Checkpoint, DeclineReason, Finished, TaskId,
    TaskResult,
};
use crate::conditions::{AFTER_MAX, Conditions, NAME_BYTES_MAX, Wish};
use crate::enclosed::Enclosed;
use crate::endless::{Endless, WEIGHT_MAX, WEIGHT_MIN};
use crate::io::Ticket;
use crate::ledger::{REPLICAS_MAX, Replication};
use crate::listing::{About, MachinesPage};
use crate::message::Message;
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::record::Change;
use crate::rounds::Sources;
use crate::steward::{Appointment, STEWARDS_MAX};

/// A bag to be submitted from this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Hash of what its submitter signed of it.
    pub id: BagId,
    /// What the submitter signed of it, where that is short: it travels with the bag's requests.
    #[serde(default)]
    pub envelope: Enclosed,
    /// The manifest, where it is short: it travels with the lease of each machine that gets tasks.
    #[serde(default)]
    pub manifest: Enclosed,
    /// Number of tasks, at least 1.
    pub tasks: u64,
    /// Work of one task in Mop; `None`: the driver measures it ([`Effect::MeasureTask`]).
    pub task_mops: Option<f64>,
    /// Failed tries a task may have before it counts as failed.
    pub retries_max: u32,
    /// How many machines run each task.
    #[serde(default)]
    pub replication: Replication,
    /// How many stewards it is to have, 0 to [`crate::STEWARDS_MAX`]; `None`: as [`crate::Config::stewards`] says.
    #[serde(default)]
    pub stewards: Option<u32>,
    /// Whether its stewards keep the results of its tasks, too, so that they outlive the disk of this machine.
    #[serde(default)]
    pub keep_results: bool,
    /// What its user says of when its tasks may be issued.
    #[serde(default)]
    pub conditions: Conditions,
    /// Of an endless bag, which has [`BAG_TASKS_MAX`] tasks.
    #[serde(default)]
    pub endless: Option<Endless>,
}

impl Submission {
    /// Whether other machines can go on with the bag: not where they vote on its tasks, nor where these come one by one to the submitter's machine.
    pub fn can_have_stewards(&self) -> bool {
        self.replication.is_none() && self.endless.is_none_or(|endless| endless.tasks == BAG_TASKS_MAX)
    }
}

/// The driver's permission that tasks of a bag queue on its machine, and what the driver knows of the bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The age of the bag's manifest by this machine's clock ([`crate::manifest_age`]); [`Duration::MAX`] where it is unknown.
    pub signed_ago: Duration,
    /// Whether this machine has all blobs that the bag's tasks need. Where it has not, tasks begin when the submitter has
    /// answered, which alone gives the key to read the blobs with.
    pub at_hand: bool,
    /// What the bag runs, by which this machine learns how long its tasks take here; `None`: nothing is learned.
    pub program: Option<BlobId>,
}

/// How a started task ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskOutcome {
    /// It ran to its end, successfully or not.
    Finished(Finished),
    /// Its program or input could not be fetched.
    NotStarted {
        /// No task of the bag is started for so long.
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
    /// The transport has seen a peer's certificate: sent before the peer's first message, and again whenever the nonce may have
    /// been forgotten. Without this event the nonce counts as empty.
    Certified {
        /// The certified peer.
        peer: PeerId,
        /// The nonce from which the peer's position key is made.
        nonce: Nonce,
    },
    /// A message arrived; `from` is authenticated by the transport.
    Received {
        /// The sender.
        from: PeerId,
        /// The message.
        message: Message,
    },
    /// The transport could not deliver to this peer, or lost its connection.
    ConnectionLost(PeerId),
    /// A write is durable.
    Persisted(Ticket),
    /// The user submits a bag.
    Submitted(Submission),
    /// The answer to [`Effect::MeasureTask`].
    Measured {
        /// The bag.
        bag: BagId,
        /// Work of one task, in Mop.
        task_mops: f64,
        /// The result of the measured task, if it ran to its end.
        result: Option<TaskResult>,
    },
    /// The user gives up a bag.
    Cancelled(BagId),
    /// The user wants ended tasks of a bag to be run again.
    Rerun {
        /// The bag.
        bag: BagId,
        /// The tasks; those that have not ended are ignored.
        tasks: IntervalSet,
    },
    /// The user wants something of a bag; [`Notice::BagChanged`] follows. Ignored of a bag that is over, but for a name.
    Wished {
        /// The bag.
        bag: BagId,
        /// What.
        wish: Wish,
    },
    /// There are so many tasks of an endless bag now. Ignored if these are no more than before, or no more should come.
    TasksAdded {
        /// The bag.
        bag: BagId,
        /// How many, those before included.
        tasks: u64,
    },
    /// No more tasks of an endless bag will come: it is over when those that there are have ended. [`Notice::BagChanged`] follows.
    SupplyEnded(BagId),
    /// The user has saved the results of these tasks of an endless bag, which need not be kept. [`Notice::BagDrained`] follows.
    Drained {
        /// The bag.
        bag: BagId,
        /// The tasks.
        tasks: IntervalSet,
    },
    /// The user removes a bag; ignored unless it is closed, or its submission is not durable yet.
    Removed(BagId),
    /// The answer to [`Effect::Authorise`]. A refusal without that effect, of a bag that is here, withdraws the permission:
    /// its running tasks are stopped, and its unfinished tasks go back.
    Authorised {
        /// The bag.
        bag: BagId,
        /// Whether its tasks may queue here, or why not.
        verdict: Result<Approval, DeclineReason>,
    },
    /// A task has ended, and its worker is free again.
    TaskEnded {
        /// The task.
        task: TaskId,
        /// How it ended.
        outcome: TaskOutcome,
    },
    /// After a restart: these tasks began on this machine before, and left checkpoints on its disk.
    CheckpointsFound {
        /// Their bag.
        bag: BagId,
        /// The tasks.
        tasks: IntervalSet,
    },
    /// The answer to [`Effect::KeepCheckpoints`]. Ignored if tasks went on meanwhile.
    CheckpointsKept {
        /// The effect's `stop`.
        stop: u64,
        /// The effect's `bag`.
        bag: BagId,
        /// The durable checkpoint of each task that has one; `None` where it cannot travel.
        checkpoints: BTreeMap<u64, Option<Checkpoint>>,
    },
    /// The answer to [`Effect::FetchOutput`].
    Fetched {
        /// The task.
        task: TaskId,
        /// Whether its output is durable on this machine; if not, the machine that ended the task does not have it, or gives
        /// something else.
        here: bool,
        /// For a task that came back before its end: the checkpoint to name in requests, where it is not the output itself.
        checkpoint: Option<Checkpoint>,
    },
    /// The answer to [`Effect::MakeStart`].
    StartMade {
        /// The task.
        task: TaskId,
        /// What it begins with.
        made: StartMade,
    },
    /// The other answer to [`Effect::FetchOutput`]: the output is not to be had now, since the machine that has it, or this one, has too
    /// much to do, or cannot be reached. That says nothing of whether it is there.
    FetchPutOff {
        /// The task.
        task: TaskId,
    },
    /// No task begins from now on: the machine's owner is back, its disk is full, or it finishes. Repeated where
    /// `stands_still` changes.
    OwnerReturned {
        /// Whether begun tasks are frozen, too, instead of running to their end.
        stands_still: bool,
    },
    /// The owner of the machine is away: tasks begin, and go on.
    OwnerLeft,
    /// A piece of a download came at this rate, in kB/s: so much this machine's link takes at least.
    Downloaded {
        /// The rate.
        kb_s: u32,
    },
    /// A slot does so many Mop in a second by the clock from now on ([`crate::Config::speed_mops`]). Ignored where it is no number, else brought
    /// between the least and the most that a machine may have.
    SpeedChanged(f64),
    /// Whether the disk has no room to journal results of other machines.
    DiskFull(bool),
    /// Ends the vacate time now: unstarted and preempted tasks go back, if no task begins here.
    Vacate,
    /// Changes the vacate time, also the one that is running.
    VacatesAfter(Duration),
    /// Changes how many bags this machine keeps for others ([`crate::Config::kept_bags_max`]); those that are too many go to others.
    KeepsAtMost(u32),
    /// Leave the grid in good order. Bags and tasks stay.
    Leave,
    /// Join again after [`Event::Leave`], as a new incarnation with the same bags and tasks. Ignored unless this peer left.
    Return,
    /// The driver has no room for this message; [`Event::Room`] follows once it has. The driver drops messages of the overlay
    /// without this event.
    Unsent {
        /// The receiver.
        to: Member,
        /// The message.
        message: Message,
    },
    /// There is room again for messages to this peer.
    Room(PeerId),
    /// The answer to [`Effect::SignAppointment`]: it, with its signature.
    AppointmentSigned(Appointment),
    /// The answer to [`Effect::ReadResults`].
    ResultsRead {
        /// Of which bag.
        bag: BagId,
        /// For which steward.
        to: PeerId,
        /// Those that are durable, and who ran each.
        results: Vec<(PeerId, TaskResult)>,
    },
    /// The answer to [`Effect::KeepFiles`]; a refusal is also given later, where the owner's room is needed otherwise.
    FilesKept {
        /// The bag.
        bag: BagId,
        /// Whether all files that its executors need are durable here, and can be read by whoever has the bag's key.
        kept: bool,
    },
    /// What this machine says of itself from now on, within bounds.
    Describes(About),
    /// The user wants to know which machines are on the line from a place on; [`Effect::List`] follows within seconds.
    ListMachines {
        /// Names the question.
        ticket: u64,
        /// The first place, 0 being the beginning of the line.
        first: u64,
    },
    /// [`crate::Peer::deadline`] has come.
    DeadlineReached,
}

/// What became of an order to make what a task begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMade {
    /// It is here, durable.
    Here {
        /// What requests name.
        start: Checkpoint,
        /// Whether the merge whose output is in it says that the application has converged.
        has_converged: bool,
    },
    /// It cannot be made now: there is no room, or the disk could not be read. It is to be tried again.
    NotNow,
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message. It may be lost, or come back with [`Event::Unsent`].
    Send {
        /// The receiver.
        to: Member,
        /// The message.
        message: Message,
    },
    /// Write all changes or none, durably; [`Event::Persisted`] follows.
    Persist {
        /// Names the write.
        ticket: Ticket,
        /// The changes.
        changes: Vec<Change>,
    },
    /// Check whether a bag may queue here: its manifest is signed by a submitter of the grid, agrees with this header, and
    /// is one that the owner lets run. [`Event::Authorised`] follows; no task of the bag queues before.
    Authorise {
        /// The bag as a request describes it; anybody may have written that.
        bag: BagHeader,
        /// What its submitter signed of it, as the request has it, which anybody may have written, too.
        envelope: Enclosed,
    },
    /// Run a task; [`Event::TaskEnded`] follows.
    StartTask {
        /// The number of an idle worker, below [`crate::Config::places`].
        place: u32,
        /// The task.
        task: TaskId,
        /// 0 for the first try.
        attempt: u32,
        /// Its bag, whose submitter has the manifest.
        bag: BagHeader,
        /// The checkpoint to go on from, unless this machine has a newer one of the task; the submitter has the blob.
        checkpoint: Option<Checkpoint>,
    },
    /// Stop a task, frozen or not; [`Event::TaskEnded`] follows.
    StopTask {
        /// The number of its worker.
        place: u32,
        /// The task.
        task: TaskId,
    },
    /// Freeze a task in its worker: it is preempted. [`Event::TaskEnded`] may follow all the same, if the task has just ended.
    FreezeTask {
        /// The number of its worker.
        place: u32,
        /// The task.
        task: TaskId,
    },
    /// Let a task that [`Effect::FreezeTask`] froze go on where it stopped.
    ThawTask {
        /// The number of its worker.
        place: u32,
        /// The task.
        task: TaskId,
    },
    /// Pack the checkpoints of these tasks, none of which runs, and keep them durably; [`Event::CheckpointsKept`] follows,
    /// unless the driver has nothing to say.
    KeepCheckpoints {
        /// The number of the present stop: a checkpoint written after tasks went on is not the one asked for.
        stop: u64,
        /// The bag.
        bag: BagId,
        /// The tasks: they have begun here, and are on no other machine.
        tasks: IntervalSet,
    },
    /// Freeze all tasks at once: the owner is back. No task is started or thawed until [`Effect::ResumeTasks`].
    SuspendTasks,
    /// Thaw all tasks but those that [`Effect::FreezeTask`] froze. New tasks may still be held back.
    ResumeTasks,
    /// Run the first task of a bag for a while to measure its work; [`Event::Measured`] follows.
    MeasureTask {
        /// The bag.
        bag: BagId,
    },
    /// Fetch the output of a task and keep it durably; [`Event::Fetched`] follows.
    FetchOutput {
        /// The task.
        task: TaskId,
        /// The output's content address.
        output: BlobId,
        /// The output's size.
        output_bytes: u64,
        /// Whether it is the checkpoint of a task that came back before its end.
        unfinished: bool,
        /// The machine that has the output.
        from: Contact,
    },
    /// Make what a task of an application in rounds begins with of the outputs of others, all of which are durable here: one blob, signed
    /// for the task, which requests name like a checkpoint. [`Event::StartMade`] follows.
    MakeStart {
        /// The task.
        task: TaskId,
        /// Whose outputs.
        from: Sources,
    },
    /// Sign who keeps a bag that was submitted here ([`Appointment::statement`]); [`Event::AppointmentSigned`] follows.
    SignAppointment {
        /// The appointment, without its signature.
        appointment: Appointment,
    },
    /// Get what executors of a bag need from its submitter, envelope, manifest, program and shared inputs, keep it durably
    /// and give it to those who have the key; [`Event::FilesKept`] follows.
    KeepFiles {
        /// The bag.
        bag: BagHeader,
        /// Its key.
        key: BagKey,
        /// Who has the files.
        from: Contact,
    },
    /// Read the durable results of these tasks of a bag that was submitted here, for one of its stewards; [`Event::ResultsRead`] follows.
    ReadResults {
        /// Of which bag.
        bag: BagId,
        /// Which tasks.
        tasks: IntervalSet,
        /// For which steward.
        to: PeerId,
    },
    /// The files of a bag that was kept for another, and the outputs that were fetched for it, are not needed any more.
    ForgetFiles {
        /// The bag.
        bag: BagId,
    },
    /// The answer to [`Event::ListMachines`].
    List {
        /// The question.
        ticket: u64,
        /// The machines; the next ones are behind its `last`.
        page: Box<MachinesPage>,
    },
    /// Tell the driver's user.
    Notify(Notice),
}

/// A notice for the driver's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A submission is durable.
    BagAccepted(BagId),
    /// Every task of a bag is done or failed, or the bag was cancelled; this is durable.
    BagClosed(BagId),
    /// What the user wanted of a bag is durable.
    BagChanged(BagId),
    /// The records of drained results are gone, durably.
    BagDrained(BagId),
    /// The removal of a bag is durable.
    BagRemoved(BagId),
    /// Another machine goes on as this one with a bag that was submitted here, since it was adopted from a ticket: this one does
    /// nothing for it any more.
    BagElsewhere(BagId),
    /// This machine cannot keep a bag of another any longer, and has said so: the bag's submitter is to appoint others.
    BagGivenUp {
        /// The bag.
        bag: BagId,
        /// Whether that is since the disk is full; else since the owner wants fewer to be kept.
        disk_is_full: bool,
    },
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
    /// Too many stewards.
    #[error("a bag has at most {STEWARDS_MAX} stewards")]
    Stewards,
    /// Results to be kept by nobody.
    #[error(
        "results are kept by stewards, and this bag is to have none: leave out --keep-results, or --stewards 0, --replicas, and lines or files that come one by one"
    )]
    KeepResults,
    /// No such conditions.
    #[error(
        "a bag waits for at most {AFTER_MAX} others, at least one of its tasks may run, and its name has at most {NAME_BYTES_MAX} bytes"
    )]
    Conditions,
    /// Machines vote on how tasks end, and as many as vote run each.
    #[error(
        "a bag with replicas has no limit of running tasks, and no exit codes to try again on: leave out one of the two"
    )]
    ConditionsOfVotes,
    /// Not the numbers of an endless bag.
    #[error(
        "an endless bag has a weight between {WEIGHT_MIN} and {WEIGHT_MAX}, no replicas, stewards only where its tasks are an open range, and as many tasks as no other bag"
    )]
    Endless,
    /// No such application in rounds.
    #[error("{0}")]
    Rounds(String),
    /// A bag to wait for is not here.
    #[error("no bag {0} was submitted from this machine: a bag can only wait for bags that are there")]
    After(BagId),
    /// The same manifest again.
    #[error("this very bag was submitted before")]
    Known,
}
