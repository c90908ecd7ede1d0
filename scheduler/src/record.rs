//! What a peer keeps across restarts: records for a key-value store, one per fact.
//!
//! Times in records are wall-clock times; [`crate::Peer::restore`] turns them into ages.

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId, WallTime};
use serde::{Deserialize, Serialize};

use crate::bag::{BagHeader, BagId, Checkpoint, TaskResult, is_zero};
use crate::ledger::Replication;
use crate::ranges::IntervalSet;
use crate::reputation::Reputation;

/// Version of the encoding below; stands in front of every record.
///
/// What was written by an older version is read, and written in this one when it changes next. Version 1 knew neither
/// [`Record::Failures`] nor [`TaskResult::crashed`], version 2 no checkpoints, version 3 neither [`Record::Former`]
/// nor exit codes, receipts and replicas. Version 4 wrote of each result its attempt and success, the usual ones too. Version 5
/// had no outputs within results.
const RECORD_VERSION: u8 = 6;
/// The oldest version that can be read.
const RECORD_VERSION_OLDEST: u8 = 1;

/// How a bag ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closing {
    /// Every task is done or has failed for good.
    Completed,
    /// The user cancelled it.
    Cancelled,
    /// It was over before, and the user needs nothing of it any more: its records go.
    Removed,
}

/// One durable fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// This machine's life count: the next one starts above it.
    Incarnation(u64),
    /// Executor: tasks accepted and not finished.
    Held {
        /// The whole bag's numbers.
        bag: BagHeader,
        /// r.
        released: WallTime,
        /// Highest attempt among them.
        attempt: u32,
        /// Those that came with a later attempt than 0, by attempt; unknown in records before this field, where all of
        /// them count as of the highest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempts: Option<BTreeMap<u32, IntervalSet>>,
        /// Which tasks.
        ranges: IntervalSet,
        /// What some of them go on from.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        checkpoints: BTreeMap<u64, Checkpoint>,
    },
    /// Executor: a task that is finished, or handed back with a checkpoint, and that the submitter has not acknowledged.
    Outbox {
        /// Its bag's numbers.
        bag: BagHeader,
        /// r.
        released: WallTime,
        /// What came out.
        result: TaskResult,
    },
    /// Submitter: a bag.
    Bag {
        /// Its numbers; `task_mops` is 0 until measured.
        bag: BagHeader,
        /// r.
        released: WallTime,
        /// Failed tries a task may have before it counts as failed.
        retries_max: u32,
        /// Of the last issue of tasks.
        attempt: u32,
        /// How and when it ended.
        closed: Option<(Closing, WallTime)>,
        /// How many machines run each task; one, in records before this field.
        #[serde(default, skip_serializing_if = "Replication::is_none")]
        replication: Replication,
    },
    /// Submitter: what is known of a machine from bags with a quorum.
    Reputation {
        /// Which machine.
        executor: PeerId,
        /// Its past.
        reputation: Reputation,
    },
    /// Submitter: what an executor accounts for.
    Placed {
        /// Which bag.
        bag: BagId,
        /// Who.
        executor: Contact,
        /// Which tasks.
        ranges: IntervalSet,
    },
    /// Submitter: what an executor accounted for once, and may yet have results of.
    Former {
        /// Which bag.
        bag: BagId,
        /// Who.
        executor: PeerId,
        /// Which tasks.
        ranges: IntervalSet,
    },
    /// Submitter: failed tries of a task that is not over, and whether it was run again on demand.
    Failures {
        /// Which bag.
        bag: BagId,
        /// Which task.
        index: u64,
        /// How many count against its retries.
        count: u32,
        /// Machines on which its worker died.
        crashed_on: Vec<PeerId>,
        /// Failures of earlier attempts were counted.
        next_attempt: u32,
        /// Nothing that is said of earlier attempts counts, since the task was run again on demand; 0 where it was not.
        #[serde(default, skip_serializing_if = "is_zero")]
        void_before: u32,
    },
    /// Submitter: what a task that is not over goes on from.
    Checkpoint {
        /// Which bag.
        bag: BagId,
        /// Which task.
        index: u64,
        /// It is on this machine.
        checkpoint: Checkpoint,
    },
    /// Submitter: a task that is over, well or not.
    Done {
        /// Which bag.
        bag: BagId,
        /// Who ran it.
        executor: PeerId,
        /// When the result was journalled.
        finished: WallTime,
        /// What came out.
        result: TaskResult,
    },
}

/// Where a record stands in the store. Its bytes sort by kind, bag, and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
}

impl RecordKey {
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
        };
        bytes.push(kind);
        match self {
            Self::Incarnation => {}
            Self::Reputation(peer) => bytes.extend(peer.0),
            Self::Held(bag) | Self::Bag(bag) => bytes.extend(bag.0),
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
    /// Where it is stored.
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
