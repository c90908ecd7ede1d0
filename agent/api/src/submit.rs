//! What is submitted.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_scheduler::Replication;
use idlewood_trust::manifest::{DISK_BYTES_DEFAULT, Entry, Fields, Input, OwnFolder, OwnInput, Rounds, Source};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /v1/bags`: a bag whose blobs are uploaded.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// The user's name for the bag.
    pub name: String,
    /// Number of tasks.
    pub tasks: u64,
    /// The program's file.
    #[schemars(with = "serde_json::Value")]
    pub program: Input,
    /// Arguments with `{}` and `{index}`.
    #[serde(default)]
    pub args: Vec<String>,
    /// One per task, or none at all.
    #[serde(default)]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub entries: Vec<Entry>,
    /// How the entries are cut into fields; null: each is one.
    #[serde(default)]
    #[schemars(with = "Option<serde_json::Value>")]
    pub fields: Option<Fields>,
    /// Files shared by all tasks.
    #[serde(default)]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub inputs: Vec<Input>,
    /// The input that becomes standard input.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Memory that a task may use.
    pub memory_bytes: u64,
    /// Disk space that a task's files may take.
    #[serde(default = "disk_bytes_default")]
    pub disk_bytes: u64,
    /// Time that a task may run.
    pub time_limit_s: u64,
    /// Exit codes that mean success.
    pub success_codes: Vec<i32>,
    /// Work of one task in Mop; measured if absent.
    #[serde(default)]
    pub work_mops: Option<f64>,
    /// Failed attempts before a task counts as failed.
    pub retries_max: u32,
    /// The same clock and random numbers wherever a task runs; implied by replicas.
    #[serde(default)]
    pub deterministic: bool,
    /// The program is native: it runs on machines whose owners allow such programs.
    #[serde(default)]
    pub native: bool,
    /// How many machines run each task, and how many of them must agree.
    #[serde(default)]
    #[schemars(with = "ReplicationSchema")]
    pub replication: Replication,
    /// How many other machines keep the bag; absent: as the settings say, none where the tasks of an endless bag are lines or files.
    #[serde(default)]
    pub stewards: Option<u32>,
    /// Whether they keep the results of its tasks, too, so that these outlive the disk of this machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_results: bool,
    /// Whether no task of it runs before `POST /v1/bags/{id}/release`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Bags of this machine that have to succeed before: ids, prefixes of ids, or names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// So many of its tasks are with machines at once, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
    /// The exit codes of failures that are tried again; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<BTreeSet<u8>>,
    /// Names of inputs that native programs can execute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executable: Vec<String>,
    /// Files of single tasks, by ascending task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub own: Vec<OwnInput>,
    /// Patterns of the files that are a task's output, with places as arguments have; none: all files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Largest output of a task; absent: as large as agents take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Empty folders that all tasks find among their inputs, as paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<String>,
    /// Empty folders of single tasks, by ascending task: `{"task": 0, "folder": "part/results"}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub own_folders: Vec<OwnFolder>,
    /// From -1000 to 1000: bags of this machine with a higher priority come first.
    #[serde(default, skip_serializing_if = "is_ordinary")]
    pub priority: i32,
    /// Of an endless bag, which has [`BAG_TASKS_MAX`](idlewood_scheduler::BAG_TASKS_MAX) tasks: its share, and what its tasks are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endless: Option<EndlessRequest>,
    /// The bag is an application in rounds: its tasks are rounds of processes, of which there are as many as entries, and merges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub rounds: Option<Rounds>,
    /// What to run on the agent's machine when the bag is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
}

/// What an endless bag is made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndlessRequest {
    /// Its weight: the grid is shared in proportion to the weights of endless bags.
    pub share: f64,
    /// `{"range": {"first": 0, "step": 1}}`, `"lines"`, or `"files"`: those of `POST /v1/bags/{id}/lines`.
    #[schemars(with = "serde_json::Value")]
    pub source: Source,
}

/// `POST /v1/bags/{id}/lines`: more tasks of an endless bag, durable with the answer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinesRequest {
    /// The task that the first of them is. Those that the bag has already are not added again: a request may be repeated.
    pub from: u64,
    /// The lines. Of a bag of files: each is an entry like those of a submission, as JSON, whose `input` was uploaded.
    /// None: the answer comes once those are tasks that were sent before, and says how many there are.
    pub lines: Vec<String>,
}

/// `POST /v1/bags/{id}/drain`: results of an endless bag that are saved elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Ranges of tasks: the first, and how many.
    pub tasks: Vec<(u64, u64)>,
}

/// A command that the agent runs once when a bag is over, by `/bin/sh -c`, with `IDLEWOOD_BAG_ID`, `_NAME`, `_STATE`, `_TASKS`, `_DONE`
/// and `_FAILED` in its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Notify {
    /// The command.
    pub command: String,
    /// Where it is run; in the state directory if that is gone.
    pub directory: String,
}

fn is_ordinary(priority: &i32) -> bool {
    *priority == 0
}

fn disk_bytes_default() -> u64 {
    DISK_BYTES_DEFAULT
}

impl SubmitRequest {
    /// A bag of tasks without files of their own, with equal arguments, whose size is to be measured.
    pub fn plain(name: &str, tasks: u64, program: Input, args: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            tasks,
            program,
            args,
            entries: Vec::new(),
            fields: None,
            inputs: Vec::new(),
            stdin: None,
            env: BTreeMap::new(),
            memory_bytes: 64 << 20,
            disk_bytes: DISK_BYTES_DEFAULT,
            time_limit_s: 600,
            success_codes: vec![0],
            work_mops: None,
            retries_max: 2,
            deterministic: false,
            native: false,
            replication: Replication::default(),
            stewards: None,
            keep_results: false,
            hold: false,
            after: Vec::new(),
            max_running: None,
            retry_on: None,
            executable: Vec::new(),
            own: Vec::new(),
            outputs: Vec::new(),
            output_bytes: None,
            folders: Vec::new(),
            own_folders: Vec::new(),
            priority: 0,
            endless: None,
            rounds: None,
            notify: None,
        }
    }
}

/// What [`Replication`] looks like: the scheduler does not know of JSON.
#[derive(JsonSchema)]
#[schemars(rename = "Replication")]
#[expect(dead_code, reason = "it describes another type")]
pub(crate) struct ReplicationSchema {
    /// How many machines run each task.
    replicas: u32,
    /// How many results have to be alike.
    quorum: u32,
    /// Of a machine that always agreed with others one task in so many is checked; 0: every one.
    recheck: u32,
}

/// `POST /v1/blobs`: the uploaded blob.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BlobBody {
    /// BLAKE3, lower-case hex.
    pub blob: String,
    /// Size.
    pub bytes: u64,
}
