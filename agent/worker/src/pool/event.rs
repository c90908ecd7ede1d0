//! What a pool tells the agent.

use std::time::Duration;

use crate::outcome::Outcome;
use crate::shared_output::Streams;

/// An event of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A task ended: exactly one event per job that was successfully started and not taken back, in the order of the
    /// slot's run. With the event of the last job the slot is free again.
    Ended {
        /// The slot.
        slot: usize,
        /// How it ended.
        outcome: Outcome,
        /// How long it ran, not counting frozen time and the preparation of its program.
        wall: Duration,
        /// Processor time it took. Of a task that was killed, in steps of 10 ms, and including preparation.
        cpu: Duration,
        /// Processor time of loading or compiling the program; zero when the worker still had it.
        compile: Duration,
        /// It wrote more to stdout or stderr than [`Job::output_bytes`](crate::Job::output_bytes): the rest is lost.
        output_truncated: bool,
        /// [`Job::directory`](crate::Job::directory) is unchanged: the task did not use it.
        untouched: bool,
        /// Standard output and error, if they are in no file.
        streams: Streams,
    },
}

/// The end of a job that no worker has begun.
pub(super) fn never_ran(slot: usize, outcome: Outcome) -> WorkerEvent {
    let (wall, cpu, compile) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    WorkerEvent::Ended {
        slot,
        outcome,
        wall,
        cpu,
        compile,
        output_truncated: false,
        untouched: false,
        streams: Streams::default(),
    }
}
