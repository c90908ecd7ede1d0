//! What the machine orders of its driver.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{Contact, Member, PeerId};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::rounds::Sources;
use idlewood_scheduler::{
    Appointment, BagHeader, BagId, BagKey, BlobId, Change, Enclosed, MachinesPage, Message, Notice, Speaker, TaskId,
    TaskResult,
};

use crate::policy::{Judgement, Pause};
use crate::work::WorkOrder;

/// One fetch of an output; the number is never used again in one life of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// An output that is to be fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Whose output.
    pub task: TaskId,
    /// Its content address.
    pub output: BlobId,
    /// Its size.
    pub output_bytes: u64,
    /// Whether it is the checkpoint of a task that came back before its end.
    pub unfinished: bool,
    /// Who has it.
    pub from: Contact,
}

/// Names a write to the disk; never used again in one life of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// An order to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message, but for results, of which [`Effect::SendResults`] speaks. One for which there is no room comes back
    /// ([`idlewood_scheduler::Event::Unsent`]).
    Send {
        /// Whom.
        to: Member,
        /// What.
        message: Message,
    },
    /// The answer to [`idlewood_scheduler::Event::ListMachines`].
    List {
        /// The question.
        ticket: u64,
        /// The machines.
        page: Box<MachinesPage>,
    },
    /// Judge whether a bag may queue here; [`idlewood_scheduler::Event::Authorised`] follows.
    Authorise {
        /// The bag.
        bag: BagHeader,
        /// What its submitter signed of it, as a request has it, which anybody may have written.
        envelope: Enclosed,
    },
    /// Keep what these tasks, which stand still, can go on from elsewhere; [`idlewood_scheduler::Event::CheckpointsKept`] follows.
    KeepCheckpoints {
        /// Names the stop, which the answer names, too.
        stop: u64,
        /// Of which bag.
        bag: BagId,
        /// Its tasks.
        tasks: IntervalSet,
    },
    /// Make what a task of an application in rounds begins with; [`idlewood_scheduler::Event::StartMade`] follows.
    MakeStart {
        /// Which task.
        task: TaskId,
        /// The tasks whose outputs are in it.
        from: Sources,
    },
    /// Sign who keeps a bag of this machine; [`idlewood_scheduler::Event::AppointmentSigned`] follows.
    SignAppointment(Appointment),
    /// Get the files of a bag that this machine is to keep for another, and keep them durably;
    /// [`idlewood_scheduler::Event::FilesKept`] follows.
    KeepFiles {
        /// The bag.
        bag: BagHeader,
        /// Its key.
        key: BagKey,
        /// Who has the files.
        from: Contact,
    },
    /// Read the durable results of these tasks of a bag that was submitted here; [`idlewood_scheduler::Event::ResultsRead`] follows.
    ReadResults {
        /// Of which bag.
        bag: BagId,
        /// Which tasks.
        tasks: IntervalSet,
        /// For which machine.
        to: PeerId,
    },
    /// The files of that bag, and the outputs that were fetched for it, are not needed any more.
    ForgetFiles {
        /// The bag.
        bag: BagId,
    },
    /// Tell whoever waits for it.
    Notify(Notice),
    /// The machine's records become these. They are not on the disk yet, but what the driver keeps beside them follows now.
    Changed(Vec<Arc<Change>>),
    /// Make these changes durable, all or none of them, after those of earlier writes; [`Event::Written`](crate::Event::Written) follows. At most 1,024 are
    /// with the driver.
    Write {
        /// Names the write.
        write: WriteId,
        /// At most one of each record.
        changes: Vec<Arc<Change>>,
        /// It may wait some milliseconds for others to go to the disk with.
        is_patient: bool,
        /// It takes on nothing new, and may use what is set aside for a full disk.
        from_reserve: bool,
    },
    /// Sign these results, of tasks that ran here, and send them.
    SendResults {
        /// Whom.
        to: Member,
        /// Of which bag.
        bag: BagId,
        /// This machine, as it speaks of itself.
        executor: Speaker,
        /// As many as one message takes, at most.
        results: Vec<TaskResult>,
    },
    /// The records of these bags could not be written: whoever waits for that hears so. Submissions among them are given up; ends of
    /// bags are tried again.
    Unwritten(Vec<BagId>),
    /// Freeze a first task that is measured, and those that come.
    FreezeMeasurer,
    /// Undo that.
    ThawMeasurer,
    /// Whether tasks may run, and how, or whether the owner is there, has changed: this holds now. Limits of memory and of the line
    /// follow it.
    Judged(Judgement),
    /// Keep the owner's pause, or that there is none, so that it outlives the driver.
    KeepPause(Option<Pause>),
    /// The machine has finished as it was told: end in good order.
    End,
    /// Get the output of a task and keep it durably; [`Event::FetchEnded`](crate::Event::FetchEnded) follows.
    Fetch {
        /// Names the fetch.
        fetch: FetchId,
        /// What is to be fetched.
        wanted: Wanted,
    },
    /// Nobody waits for this fetch any more: end it. No event follows.
    AbandonFetch {
        /// Which fetch.
        fetch: FetchId,
    },
    /// Run the first task of a bag of this machine, beside all others, to see how long it takes; [`Event::FirstTaskEnded`](crate::Event::FirstTaskEnded) follows.
    RunFirstTask {
        /// Which bag.
        bag: BagId,
        /// It is ended after that.
        time_limit: Duration,
        /// It does only so many iterations, and what comes of it counts for nothing.
        iterations: Option<NonZeroU64>,
    },
    /// End the first task of a bag; [`Event::FirstTaskEnded`](crate::Event::FirstTaskEnded) follows as of one that was not stopped.
    StopFirstTask {
        /// Which bag.
        bag: BagId,
    },
    /// About workers and what they run.
    Work(WorkOrder),
}

impl From<WorkOrder> for Effect {
    fn from(order: WorkOrder) -> Self {
        Self::Work(order)
    }
}
