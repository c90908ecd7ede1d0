//! Why a job is not started.

use std::io;

use crate::job::JobError;

/// Largest job, including its stdin bytes.
pub(super) const JOB_BYTES_MAX: usize = 1 << 20;

/// Why a job was not started. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such slot.
    #[error("there is no slot {slot}: the pool has {slots}")]
    NoSlot {
        /// The slot asked for.
        slot: usize,
        /// How many there are.
        slots: usize,
    },
    /// The slot has a job.
    #[error("slot {slot} is busy: wait for the end of its task")]
    Busy {
        /// The slot.
        slot: usize,
    },
    /// The job is invalid.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The job does not fit a packet.
    #[error("the job's description is larger than {} KiB: pass its standard input as a file", JOB_BYTES_MAX >> 10)]
    TooLarge,
    /// There is no memory for a large description.
    #[error("the job's description cannot be passed on: {0}")]
    Write(#[source] io::Error),
    /// There is no room for the event of its end.
    #[error("the channel of worker events is full or closed: read the events before starting more")]
    EventsNotRead,
    /// The pool was shut down.
    #[error("the pool is shut down")]
    ShutDown,
}
