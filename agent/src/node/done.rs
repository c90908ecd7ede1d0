//! What work beside the loop ends in, for the part that began it.

use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::{FetchEnd, FetchId, JobId};
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, BlobId, Checkpoint, DeclineReason, TaskId, TaskResult};
use idlewood_trust::label::Label;
use idlewood_trust::manifest::Manifest;

use super::checkpoints::Kept;
use super::ended::Collected;
use super::kept_files::Files;
use super::pin::Pin;
use super::rerun::Needs;
use super::start::Made;
use super::submission::Accepted;
use super::task::Preparation;
use crate::handle::{Refusal, Reply};

/// Result of a fetch: a pin of the blobs that must stay, and for a checkpoint its signed name.
pub(super) type Fetched = (Pin, Option<Checkpoint>);

/// Lines of an endless bag that are tasks now.
#[derive(Debug)]
pub(super) struct NewLines {
    /// The first task.
    pub(super) from: u64,
    /// How many tasks the bag has with them.
    pub(super) tasks: u64,
    /// Their files, if they are files.
    pub(super) files: Vec<Pin>,
}

/// What work beside the loop ends in.
pub(super) enum Done {
    Prepared {
        job: JobId,
        task: TaskId,
        preparation: Preparation,
    },
    Collected {
        job: JobId,
        task: TaskId,
        collected: Collected,
    },
    MeasurePrepared {
        bag: BagId,
        preparation: Preparation,
    },
    /// A bag was looked at.
    Authorised {
        bag: BagId,
        label: Result<Label, DeclineReason>,
    },
    Measured {
        bag: BagId,
        cpu: Duration,
        collected: Collected,
    },
    /// The output is here, durable and pinned, or how else its fetch ended.
    OutputKept {
        fetch: FetchId,
        kept: Result<Fetched, FetchEnd>,
    },
    Accepted {
        result: Result<Box<Accepted>, Refusal>,
        reply: Reply<idlewood_api::Bag>,
    },
    AcceptLost,
    /// New lines of an endless bag are durable, or not.
    LinesKept {
        bag: BagId,
        result: Result<NewLines, Refusal>,
        reply: Option<Reply<idlewood_api::Bag>>,
    },
    RerunReady {
        bag: BagId,
        tasks: Option<IntervalSet>,
        needs: Result<Box<Needs>, Refusal>,
        reply: Reply<idlewood_api::Bag>,
    },
    ManifestRead {
        bag: BagId,
        manifest: Option<Arc<Manifest>>,
    },
    /// A manifest of a bag of this machine that could not be read.
    ManifestRetried {
        bag: BagId,
        manifest: Result<Option<Arc<Manifest>>, Refusal>,
        /// Files that came with tasks of it, by the first task of each page.
        files: Vec<(u64, Vec<BlobId>)>,
    },
    /// The files of a bag that is kept for another, or was adopted; `None`: they cannot be had, or not be kept.
    FilesHere {
        bag: BagId,
        files: Option<Box<Files>>,
    },
    /// Results of a bag of this machine for another that keeps it.
    ResultsRead {
        bag: BagId,
        to: PeerId,
        results: Vec<(PeerId, TaskResult)>,
    },
    Bootstrapped(Option<Contact>),
    /// The owner is back, and no task has run since.
    Reclaimed {
        stop: u64,
        took: Duration,
    },
    /// What tasks that do not run can go on from elsewhere.
    CheckpointsKept {
        stop: u64,
        bag: BagId,
        kept: Kept,
    },
    /// What a task of a later round begins with; `None`: it could not be made.
    StartMade {
        task: TaskId,
        made: Option<Made>,
    },
    /// What nobody needs any more is gone.
    Discarded,
}
