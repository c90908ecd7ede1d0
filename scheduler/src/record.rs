//! Records: what a peer keeps across restarts in a key-value store, one record per fact.
//!
//! Times in records are wall-clock times; [`crate::Peer::restore`] turns them into ages.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, WallTime};
use serde::{Deserialize, Serialize};

use crate::bag::{BagHeader, BagId, BagKey, Checkpoint, TaskResult, is_ordinary, is_zero};
use crate::conditions::Conditions;
use crate::ledger::{Replication, Supply};
use crate::ranges::IntervalSet;
use crate::reputation::Reputation;
use crate::steward::{Acting, Appointment};

/// Version of the encoding below; stands in front of every record.
///
/// Records of older versions are read, and written in this one when they change next. Version 1 had neither
/// [`Record::Failures`] nor [`TaskResult::crashed`], version 2 no checkpoints, version 3 neither [`Record::Former`] nor
/// exit codes, receipts and replicas. Version 4 wrote attempt 0 and success of a result in full. Version 5 had no outputs
/// within results, version 6 no keepers.
pub const RECORD_VERSION: u8 = 7;
/// The oldest version that can be read.
const RECORD_VERSION_OLDEST: u8 = 1;

/// How a bag ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closing {
    /// Every task is done or has failed for good.
    Completed,
    /// The user cancelled it.
    Cancelled,
    /// The user removed it after it had ended: its records are being deleted.
    Removed,
}

/// How a task failed on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The machine.
    #[serde(rename = "m")]
    pub machine: PeerId,
    /// Its exit code.
    #[serde(rename = "e")]
    pub exit_code: u8,
    /// [`TaskResult::fingerprint`].
    #[serde(rename = "f")]
    pub fingerprint: u64,
}

/// One durable fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// This machine's incarnation: the next one is higher.
    Incarnation(u64),
    /// Executor: unfinished tasks of a bag.
    Held {
        /// The bag.
        bag: BagHeader,
        /// r.
        released: WallTime,
        /// Highest attempt among them.
        attempt: u32,
        /// Tasks by attempt, without those of attempt 0; `None` in older records: all tasks have the highest attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempts: Option<BTreeMap<u32, IntervalSet>>,
        /// The tasks.
        ranges: IntervalSet,
        /// The checkpoints from which some of them go on.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        checkpoints: BTreeMap<u64, Checkpoint>,
        /// The bag's priority among those of its submitter.
        #[serde(default, skip_serializing_if = "is_ordinary")]
        priority: i32,
        /// Those of the tasks that wait until their submitter says that they begin.
        #[serde(default, skip_serializing_if = "IntervalSet::is_empty")]
        at_once: IntervalSet,
    },
    /// Executor: the result of a task that has finished, or goes back with a checkpoint, until the submitter acknowledges it.
    Outbox {
        /// Its bag.
        bag: BagHeader,
        /// r.
        released: WallTime,
        /// The result.
        result: TaskResult,
    },
    /// Submitter: a bag.
    Bag {
        /// The bag; `task_mops` is 0 until measured.
        bag: BagHeader,
        /// r.
        released: WallTime,
        /// Failed tries a task may have before it counts as failed.
        retries_max: u32,
        /// The attempt with which tasks were last issued.
        attempt: u32,
        /// How and when it ended.
        closed: Option<(Closing, WallTime)>,
        /// How many machines run each task; one in older records.
        #[serde(default, skip_serializing_if = "Replication::is_none")]
        replication: Replication,
        /// How many stewards it is to have; `None`: as many as its machine's settings say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stewards: Option<u32>,
        /// Whether its stewards keep the results of its tasks, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keep_results: bool,
        /// How often its user had tasks of it run again: results that stewards have from before count no more.
        #[serde(default, skip_serializing_if = "is_zero")]
        reruns: u32,
        /// What its user says of when its tasks may be issued.
        #[serde(default, skip_serializing_if = "Conditions::is_none")]
        conditions: Box<Conditions>,
        /// Of an endless bag: its tasks so far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        supply: Option<Box<Supply>>,
    },
    /// Submitter: the reputation of a machine, from bags with a quorum.
    Reputation {
        /// The machine.
        executor: PeerId,
        /// Its reputation.
        reputation: Reputation,
    },
    /// Submitter: the tasks for which an executor accounts.
    Placed {
        /// The bag.
        bag: BagId,
        /// The executor.
        executor: Contact,
        /// The tasks.
        ranges: IntervalSet,
    },
    /// Submitter: tasks for which an executor accounted once, and may yet have results.
    Former {
        /// The bag.
        bag: BagId,
        /// The executor.
        executor: PeerId,
        /// The tasks.
        ranges: IntervalSet,
    },
    /// Submitter: failed tries of a task that has not ended, and whether it was run again on demand.
    Failures {
        /// The bag.
        bag: BagId,
        /// The task.
        index: u64,
        /// How many count against its retries.
        count: u32,
        /// Machines on which its worker died.
        crashed_on: Vec<PeerId>,
        /// Failures of attempts below this one are counted already.
        next_attempt: u32,
        /// Results and failures of attempts below this one do not count, since the task was run again on demand; 0 where it was
        /// not.
        #[serde(default, skip_serializing_if = "is_zero")]
        void_before: u32,
        /// How it ended on machines whose failures count, where that can be compared.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        endings: Vec<Ending>,
    },
    /// Submitter: the checkpoint from which a task that has not ended goes on.
    Checkpoint {
        /// The bag.
        bag: BagId,
        /// The task.
        index: u64,
        /// The checkpoint, whose blob is on this machine.
        checkpoint: Checkpoint,
    },
    /// Submitter: who keeps a bag, as it last appointed.
    Stewards {
        /// The appointment.
        appointment: Appointment,
        /// Whether this machine was made from a ticket, and goes on as the one that made it: it rises above all terms that
        /// stewards know. Any other yields to whoever has its key and a higher term.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        adopts: bool,
    },
    /// Steward: a bag that is kept here for its submitter. The records of the bag, its placements, failed tries, and
    /// results that the submitter does not have or that are kept for it, are the copy.
    Kept {
        /// The highest term heard of, with the appointment and the rank of who acted in it.
        acting: Acting,
        /// The bag's key.
        key: BagKey,
        /// Tasks that have succeeded.
        done: IntervalSet,
        /// Tasks that have failed for good.
        failed: IntervalSet,
        /// Of an endless bag: ended tasks whose results its user has saved.
        #[serde(default, skip_serializing_if = "IntervalSet::is_empty")]
        drained: IntervalSet,
        /// Whether the driver has the files that executors need.
        has_files: bool,
        /// The tasks whose results are here and with the submitter, too: they are kept in case that its disk is lost.
        #[serde(default, skip_serializing_if = "IntervalSet::is_empty")]
        theirs: IntervalSet,
    },
    /// Executor: the keeper that it obeys about a bag.
    Obeyed {
        /// By what right that keeper acts.
        acting: Acting,
    },
    /// Submitter: the result of a task that has succeeded or failed for good.
    Done {
        /// The bag.
        bag: BagId,
        /// The machine that ran it.
        executor: PeerId,
        /// When the result was journalled.
        finished: WallTime,
        /// The result.
        result: TaskResult,
    },
}

/// The key of a record in the store. Its bytes sort by kind, bag, and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RecordKey {
    /// [`Record::Incarnation`].
    Incarnation,
    /// [`Record::Held`].
    Held(BagId),
    /// [`Record::Outbox`].
    Outbox(BagId, u64),
    /// [`Record::Bag`].
    Bag(BagId),
    /// [`Record::Placed`].
    Placed(BagId, PeerId),
    /// [`Record::Reputation`].
    Reputation(PeerId),
    /// [`Record::Former`].
    Former(BagId, PeerId),
    /// [`Record::Done`].
    Done(BagId, u64),
    /// [`Record::Failures`].
    Failures(BagId, u64),
    /// [`Record::Checkpoint`].
    Checkpoint(BagId, u64),
    /// [`Record::Stewards`].
    Stewards(BagId),
    /// [`Record::Kept`].
    Kept(BagId),
    /// [`Record::Obeyed`].
    Obeyed(BagId),
}

impl RecordKey {
    /// The bag that the record is about; `None` of those that are about none.
    pub(crate) fn bag(self) -> Option<BagId> {
        match self {
            Self::Incarnation | Self::Reputation(_) => None,
            Self::Held(bag)
            | Self::Outbox(bag, _)
            | Self::Bag(bag)
            | Self::Placed(bag, _)
            | Self::Former(bag, _)
            | Self::Done(bag, _)
            | Self::Failures(bag, _)
            | Self::Checkpoint(bag, _)
            | Self::Stewards(bag)
            | Self::Kept(bag)
            | Self::Obeyed(bag) => Some(bag),
        }
    }

    /// The bytes under which the record is stored.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(65);
        let kind = match self {
            Self::Incarnation => b'i',
            Self::Held(_) => b'h',
            Self::Outbox(..) => b'o',
            Self::Bag(_) => b'b',
            Self::Placed(..) => b'p',
            Self::Former(..) => b'e',
            Self::Reputation(_) => b'r',
            Self::Done(..) => b'd',
            Self::Failures(..) => b'f',
            Self::Checkpoint(..) => b'c',
            Self::Stewards(_) => b's',
            Self::Kept(_) => b'k',
            Self::Obeyed(_) => b'y',
        };
        bytes.push(kind);
        match self {
            Self::Incarnation => {}
            Self::Reputation(peer) => bytes.extend(peer.0),
            Self::Held(bag) | Self::Bag(bag) | Self::Stewards(bag) | Self::Kept(bag) | Self::Obeyed(bag) => {
                bytes.extend(bag.0);
            }
            Self::Outbox(bag, index)
            | Self::Done(bag, index)
            | Self::Failures(bag, index)
            | Self::Checkpoint(bag, index) => {
                bytes.extend(bag.0);
                bytes.extend(index.to_be_bytes());
            }
            Self::Placed(bag, peer) | Self::Former(bag, peer) => {
                bytes.extend(bag.0);
                bytes.extend(peer.0);
            }
        }
        bytes
    }
}

/// Why stored bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Written by a newer idlewood.
    #[error("record of version {0}; this idlewood reads versions up to {RECORD_VERSION}: update it")]
    Version(u8),
    /// Damaged.
    #[error("malformed record: {0}")]
    Malformed(String),
}

impl Record {
    /// The key under which it is stored.
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Incarnation(_) => RecordKey::Incarnation,
            Self::Held { bag, .. } => RecordKey::Held(bag.id),
            Self::Outbox { bag, result, .. } => RecordKey::Outbox(bag.id, result.index),
            Self::Bag { bag, .. } => RecordKey::Bag(bag.id),
            Self::Placed { bag, executor, .. } => RecordKey::Placed(*bag, executor.peer),
            Self::Done { bag, result, .. } => RecordKey::Done(*bag, result.index),
            Self::Reputation { executor, .. } => RecordKey::Reputation(*executor),
            Self::Former { bag, executor, .. } => RecordKey::Former(*bag, *executor),
            Self::Failures { bag, index, .. } => RecordKey::Failures(*bag, *index),
            Self::Checkpoint { bag, index, .. } => RecordKey::Checkpoint(*bag, *index),
            Self::Stewards { appointment, .. } => RecordKey::Stewards(appointment.bag),
            Self::Kept { acting, .. } => RecordKey::Kept(acting.appointment.bag),
            Self::Obeyed { acting } => RecordKey::Obeyed(acting.appointment.bag),
        }
    }

    /// The bytes that are stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![RECORD_VERSION];
        ciborium::into_writer(self, &mut bytes)
            .expect("a Vec takes every write, and records hold no unserialisable value");
        bytes
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// [`RecordError`]; the record cannot be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        match bytes.split_first() {
            Some((RECORD_VERSION_OLDEST..=RECORD_VERSION, body)) => {
                ciborium::from_reader(body).map_err(|error| RecordError::Malformed(error.to_string()))
            }
            Some((&version, _)) => Err(RecordError::Version(version)),
            None => Err(RecordError::Malformed("empty".to_owned())),
        }
    }
}

/// One change to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Write or replace.
    Put(Record),
    /// Remove, if it is there.
    Delete(RecordKey),
}

impl Change {
    /// The key of the record that changes.
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Put(record) => record.key(),
            Self::Delete(key) => *key,
        }
    }
}
