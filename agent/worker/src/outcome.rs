//! How a task ended, as the agent is told.

use std::time::Duration;

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended by itself.
    Exited {
        /// Its exit code, 0 to 255 (of a larger one the low eight bits, as POSIX has it).
        code: u8,
    },
    /// The program was ended for a fault, or for exceeding its memory limit.
    Trapped {
        /// The reason, in a sentence.
        message: String,
    },
    /// The program cannot run on any machine.
    Invalid {
        /// Why, in a sentence.
        message: String,
    },
    /// The program ran longer than its limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The program's files took more of the disk than its limit.
    OverDisk {
        /// The limit, bytes.
        limit_bytes: u64,
    },
    /// This machine could not prepare the task (a blob missing, the disk full); another one may.
    CouldNotStart {
        /// Why, in a sentence.
        message: String,
    },
    /// The worker process died during the task: killed from outside, out of memory, or a defect. Another attempt may
    /// succeed.
    WorkerDied {
        /// How, in a sentence.
        reason: String,
    },
    /// [`Pool::stop`](crate::Pool::stop) or [`Pool::shutdown`](crate::Pool::shutdown) ended it.
    Stopped,
}
