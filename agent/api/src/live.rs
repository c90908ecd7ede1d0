//! What running tasks have written so far.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::TaskState;

/// `POST /v1/bags/{id}/live`: what running tasks of a bag have written behind what the client has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveRequest {
    /// Only these tasks, by ranges, their last included; none: all.
    #[serde(default)]
    pub tasks: Vec<(u64, u64)>,
    /// What the client has, by runs of tasks.
    #[serde(default)]
    pub seen: Vec<LiveSeen>,
}

/// How much of a task's output a client has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveSeen {
    /// Peer id of the machine that runs it.
    pub machine: String,
    /// Its index.
    pub index: u64,
    /// The run, as [`LiveTask::run`] names it.
    pub run: u64,
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Live {
    /// Tasks that run.
    pub tasks: Vec<LiveTask>,
    /// Where the first of the tasks asked for are that do not run; none where all tasks are asked for.
    pub waiting: Vec<LiveWaiting>,
    /// Machines with tasks of the bag that did not answer.
    pub silent: Vec<LiveSilent>,
    /// Machines with tasks of the bag that were not asked, since they are too many.
    pub unasked: u64,
}

/// What a running task has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveTask {
    /// Peer id of the machine that runs it.
    pub machine: String,
    /// Its index.
    pub index: u64,
    /// Names the run: when another begins, its output begins anew.
    pub run: u64,
    /// The attempt.
    pub attempt: u32,
    /// It does not run at present: the machine's owner is there, or another bag comes first.
    pub stands_still: bool,
    /// Where `stdout` begins.
    pub stdout_from: u64,
    /// What follows on standard output, as far as the answer has room, lower-case hex.
    pub stdout: String,
    /// Where `stderr` begins.
    pub stderr_from: u64,
    /// What follows on standard error, lower-case hex.
    pub stderr: String,
}

/// A task that does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveWaiting {
    /// Its index.
    pub index: u64,
    /// Where it is; `placed`: it waits for a slot there.
    pub state: TaskState,
    /// Peer id of the machine that has it.
    pub machine: Option<String>,
}

/// A machine that did not say what its tasks write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LiveSilent {
    /// Its peer id.
    pub machine: String,
    /// Why.
    pub why: String,
    /// How many of the tasks asked for it has.
    pub tasks: u64,
}
