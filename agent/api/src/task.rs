//! Tasks of a bag, their results and receipts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One finished task: `GET /v1/bags/{id}/results`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskResult {
    /// Index in the bag.
    pub index: u64,
    /// Its entry's text.
    pub entry: String,
    /// 0 for the first attempt.
    pub attempt: u32,
    /// Whether it succeeded.
    pub success: bool,
    /// Peer id of the machine that ran it.
    pub machine: String,
    /// When its result was journalled.
    pub finished: String,
    /// Measured work, in Mop.
    pub work_mops: f64,
    /// The blob with its [`idlewood_trust::manifest::TaskOutput`].
    pub output: String,
    /// Size of that blob.
    pub output_bytes: u64,
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// No machine has it.
    Waiting,
    /// It has failed, or was declined, and is tried again after a pause.
    Retrying,
    /// A machine has it: it runs there, or waits for a slot.
    Placed,
    /// It succeeded.
    Succeeded,
    /// It failed for good.
    Failed,
    /// It had not ended when its bag was cancelled.
    Cancelled,
}

impl TaskState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Retrying, Self::Placed, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Retrying => "retrying",
            Self::Placed => "placed",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for TaskState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let is_it = |state: &Self| state.name() == text;
        Self::ALL.into_iter().find(is_it).ok_or_else(|| format!("no task is {text:?}; a task is {names}"))
    }
}

/// One task of a bag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Index in the bag.
    pub index: u64,
    /// Its entry's text.
    pub entry: String,
    /// Where it is.
    pub state: TaskState,
    /// Peer id of the machine that has it, or that ended it; null if none has.
    pub machine: Option<String>,
    /// How often tasks of the bag had been issued again when this one was issued last; null before it has ended.
    pub attempt: Option<u32>,
    /// Its exit code; null before it has ended, and where it did not end by itself.
    pub exit_code: Option<u8>,
    /// How long it ran, in seconds, without the time that it was frozen; null before it has ended, and where its output is lost.
    pub took_s: Option<f64>,
    /// When its result came.
    pub finished: Option<String>,
}

/// `GET /v1/bags/{id}/tasks?from={index}&most={count}&state={state},...`: tasks of a bag by index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tasks {
    /// Full id of the bag.
    pub bag: String,
    /// These tasks.
    pub tasks: Vec<Task>,
    /// How many tasks of the bag are in one of the states asked for.
    pub matching: u64,
    /// The index from which to ask for those that follow; null if none do.
    pub next: Option<u64>,
}

/// A signed statement about a task: `GET /v1/bags/{id}/receipts`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// Index in the bag.
    pub index: u64,
    /// Its bytes ([`idlewood_trust::Receipt`]), lower-case hex.
    pub receipt: String,
}
