//! The control API: JSON types of requests and answers over loopback HTTP, and a [`client`].
//!
//! Times are ISO-8601 UTC, durations seconds as numbers, ids lower-case hex.

pub mod client;

use std::collections::{BTreeMap, BTreeSet};

use idlewood_scheduler::Replication;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use idlewood_trust::manifest::{DISK_BYTES_DEFAULT, Entry, Fields, Input};
use idlewood_trust::{Admissions, Role};

/// Content of `control.json` in the state directory, mode 0600: the agent's address and the token that commands need.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// `127.0.0.1:port`.
    pub address: String,
    /// Bearer token.
    pub token: String,
    /// Process id of the agent.
    pub pid: u32,
}

/// The body of every failure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// One sentence.
    pub error: String,
}

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
    /// How many other machines keep the bag; absent: as the settings say.
    #[serde(default)]
    pub stewards: Option<u32>,
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
    /// What to run on the agent's machine when the bag is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<Notify>,
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

/// `POST /v1/bags/{id}/rename`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// The new name.
    pub name: String,
}

/// A bag that has to succeed before another begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AwaitedBag {
    /// Full id.
    pub id: String,
    /// The user's name for it; empty where it is not here.
    pub name: String,
    /// `open`, `failed`, `cancelled`, or `unknown`: it was removed.
    pub state: String,
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
            hold: false,
            after: Vec::new(),
            max_running: None,
            retry_on: None,
            notify: None,
        }
    }
}

/// What [`Replication`] looks like: the scheduler does not know of JSON.
#[derive(JsonSchema)]
#[schemars(rename = "Replication")]
#[expect(dead_code, reason = "it describes another type")]
struct ReplicationSchema {
    /// How many machines run each task.
    replicas: u32,
    /// How many results have to be alike.
    quorum: u32,
    /// Of a machine that always agreed with others one task in so many is checked; 0: every one.
    recheck: u32,
}

/// State of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BagState {
    /// Its user holds it, or a bag has failed for which it waits.
    Held,
    /// It waits for other bags to succeed.
    Waiting,
    /// Its first task runs here to measure its work.
    Measuring,
    /// Some tasks are unfinished.
    Running,
    /// Every task succeeded.
    Succeeded,
    /// Every task is finished, some failed.
    Failed,
    /// Cancelled by the user.
    Cancelled,
}

impl BagState {
    /// All of them, in the order in which a bag can have them.
    pub const ALL: [Self; 7] =
        [Self::Held, Self::Waiting, Self::Measuring, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Measuring => "measuring",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the bag is finished or cancelled.
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

impl std::str::FromStr for BagState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let is_it = |state: &Self| state.name() == text;
        Self::ALL.into_iter().find(is_it).ok_or_else(|| format!("no bag is {text:?}; a bag is {names}"))
    }
}

/// `GET /v1/bags?state={state},...&since_s={seconds}&limit={count}`: which bags, the latest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BagsWanted {
    /// In one of these states; in any, if none is named.
    pub state: Vec<BagState>,
    /// Submitted at most so many seconds ago.
    pub since_s: Option<f64>,
    /// So many at most.
    pub limit: Option<u64>,
}

/// A bag as its submitter sees it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bag {
    /// Full id; a unique prefix will do in commands.
    pub id: String,
    /// The user's name for it.
    pub name: String,
    /// Its state.
    pub state: BagState,
    /// Number of tasks.
    pub tasks: u64,
    /// Tasks that succeeded.
    pub done: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks held by machines.
    pub placed: u64,
    /// Machines that hold tasks now.
    pub machines: u64,
    /// Tasks on their way to a machine.
    pub unplaced: u64,
    /// Tasks that were issued again.
    pub reissued: u64,
    /// Results received twice.
    pub duplicates: u64,
    /// How many machines run each task.
    #[serde(default)]
    #[schemars(with = "ReplicationSchema")]
    pub replication: Replication,
    /// Tasks decided although not all machines agreed.
    #[serde(default)]
    pub disputed: u64,
    /// Why some or all of its tasks cannot be decided in the present grid; null if they can.
    #[serde(default)]
    pub undecidable: Option<String>,
    /// Tasks that machines declined to queue, by reason.
    #[serde(default)]
    pub declined: Vec<Declined>,
    /// Results ignored because their sender never had the task.
    #[serde(default)]
    pub unasked: u64,
    /// Tasks sent around the tree, since two requests in a row had lost them.
    #[serde(default)]
    pub astray: u64,
    /// Routers that received tasks which no machine then reported as held.
    #[serde(default)]
    pub swallowed: Vec<Swallowed>,
    /// Work of one task, in Mop; null until measured.
    pub work_mops: Option<f64>,
    /// Median work of one task on the machines where tasks succeeded, in Mop; null before the first.
    #[serde(default)]
    pub measured_mops: Option<f64>,
    /// Results that claimed more work than their machine can have done since it got the task; their work is ignored.
    #[serde(default)]
    pub overstated: u64,
    /// The identity under which it was submitted, if this machine no longer has it: the bag was given up with it.
    #[serde(default)]
    pub given_up_with: Option<String>,
    /// When it was submitted.
    pub submitted: String,
    /// When it ended.
    pub finished: Option<String>,
    /// Seconds since submission, or until the end.
    pub elapsed_s: f64,
    /// Seconds from submission until its first task started on this machine; null until that task ended, and after a
    /// restart of the agent.
    #[serde(default)]
    pub first_start_s: Option<f64>,
    /// (now or end − r)/w in s/Mop: how long the bag takes, by the work in it.
    pub stretch: Option<f64>,
    /// How many times as long it takes as it would alone on the grid, as the grid is now; null before that can be told.
    #[serde(default)]
    pub times_alone: Option<f64>,
    /// When it ends, by the pace of its tasks so far; null before the first has ended, while none of them runs, and once it is over.
    #[serde(default)]
    pub predicted_end: Option<String>,
    /// It ends so many seconds earlier or later than that in about eight to nine of ten cases.
    #[serde(default)]
    pub predicted_end_within_s: Option<f64>,
    /// By how much the ends that were predicted after each tenth of its tasks were wrong in the mean, in percent of the time it took; null
    /// before it is over.
    #[serde(default)]
    pub prediction_error_percent: Option<f64>,
    /// Whether any of its tasks may be running now: if not, nobody can tell when it ends.
    #[serde(default)]
    pub runs: bool,
    /// What decides now how many of its tasks run, the most important first; empty once the bag is over.
    #[serde(default)]
    pub bounds: Vec<Bound>,
    /// Work of the tasks that succeeded, as time of a slot of this machine, in seconds.
    #[serde(default)]
    pub computed_s: f64,
    /// Machines on which tasks succeeded, up to 256.
    #[serde(default)]
    pub machines_used: u64,
    /// How many other machines are to keep the bag, so that it goes on while this one is away.
    #[serde(default)]
    pub stewards: u32,
    /// The machines that keep it, this one first; empty before others do.
    #[serde(default)]
    pub keepers: Vec<Keeper>,
    /// Since when the keeper that acts does; null where that is not known, as after the agent's start until the others have answered.
    #[serde(default)]
    pub acting_since: Option<String>,
    /// Whether the bag goes on without this machine: it is over, or another machine that was heard of lately has all that is to be known
    /// of it.
    #[serde(default)]
    pub safe_to_switch_off: bool,
    /// Whether another machine goes on as this one, since it adopted a ticket of the bag: this one does nothing for it.
    #[serde(default)]
    pub adopted_elsewhere: bool,
    /// Whether this machine lacks the bag's program and inputs, as after adopting it from a ticket, and gets them from a machine that keeps it.
    #[serde(default)]
    pub files_missing: bool,
    /// Whether its user holds it.
    #[serde(default)]
    pub held: bool,
    /// The bags for which it waits; those that have succeeded are not listed.
    #[serde(default)]
    pub after: Vec<AwaitedBag>,
    /// So many of its tasks are with machines at once, at most; null: as many as there are.
    #[serde(default)]
    pub max_running: Option<u64>,
    /// The exit codes of failures that are tried again; null: all.
    #[serde(default)]
    pub retry_on: Option<Vec<u8>>,
}

/// Something that keeps tasks of a bag, or of this machine, from running, or `runs`: that some run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bound {
    /// Its name for programs: `idlewood help bag explain` lists them.
    pub code: String,
    /// The same for people.
    pub sentence: String,
    /// Machines that it concerns; null where that is not known.
    pub machines: Option<u64>,
    /// Tasks that it concerns.
    pub tasks: Option<u64>,
    /// What would end it; null if nothing has to.
    pub ends: Option<String>,
    /// When it ends by itself; null where that is not known.
    pub ends_at: Option<String>,
}

/// A machine that keeps a bag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Keeper {
    /// Peer id.
    pub machine: String,
    /// Its rank; 0 is the bag's own machine. Those of lower rank act first.
    pub rank: u8,
    /// Whether it acts: issues tasks and takes results.
    pub acting: bool,
    /// Whether it has, durably, all that there is to know of the bag, as far as this machine has heard.
    pub up_to_date: bool,
    /// Whether it was heard of in the last half a minute.
    pub heard: bool,
}

/// Tasks that machines declined to queue for one reason; they are issued again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Declined {
    /// The reason, in words.
    pub reason: String,
    /// Number of tasks, each as often as it was declined.
    pub tasks: u64,
    /// Peer id of the machine that declined last.
    pub machine: String,
}

/// A router that lost tasks of a bag, as far as the submitter can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Swallowed {
    /// Peer id of its machine.
    pub machine: String,
    /// Number of tasks, each as often as it was lost there.
    pub tasks: u64,
    /// Whether this machine's requests bypass that router now.
    pub is_left_out: bool,
}

/// `GET /v1/bags/{id}/ticket`, `?results=true`: the state of an unfinished bag.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Ticket {
    /// Full id: the hash of the bag's signed blob.
    pub bag: String,
    /// Its records, lower-case hex.
    pub records: Vec<String>,
    /// Number of records that are results.
    pub done: u64,
    /// Blobs with outputs that are not part of their records.
    pub results: Vec<String>,
    /// Bytes of all outputs.
    pub results_bytes: u64,
}

/// A machine that holds tasks of a bag.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Peer id.
    pub peer: String,
    /// Number of tasks that it holds.
    pub tasks: u64,
    /// For how many more seconds nothing is fetched from it, since it is too slow; null if it is not.
    #[serde(default)]
    pub left_alone_s: Option<u64>,
}

/// `GET /v1/bags/{id}`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BagDetail {
    /// The numbers.
    #[serde(flatten)]
    pub bag: Bag,
    /// Program's file name.
    pub program: String,
    /// Arguments as submitted.
    pub args: Vec<String>,
    /// The machines that hold its tasks.
    pub placements: Vec<Placement>,
}

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

/// `POST /v1/clean`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CleanRequest {
    /// Whether nothing is to be removed.
    #[serde(default)]
    pub dry_run: bool,
}

/// Programs, inputs and outputs that nothing needs any more, which were removed, or could be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CleanedView {
    /// Whole ones.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Beginnings of interrupted downloads.
    pub partial_files: u64,
    /// Their bytes.
    pub partial_bytes: u64,
}

/// What another machine of the grid says of this one: `POST /v1/reach` asks some to connect to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReachView {
    /// Peer id of the machine that was asked.
    pub by: String,
    /// The address and port of this machine, as that one sees it; null where it did not say.
    pub at: Option<String>,
    /// Why that machine could not connect; null if it could.
    pub failure: Option<String>,
    /// How far its clock is ahead of this machine's, in seconds; null where it did not say.
    pub clock_ahead_s: Option<f64>,
    /// How far that may be off.
    pub clock_margin_s: Option<f64>,
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

/// A running task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunningTask {
    /// Its worker's number, from 0.
    pub place: u32,
    /// Bag id.
    pub bag: String,
    /// Index in the bag.
    pub index: u64,
    /// Seconds that it has run, without the time that it was frozen.
    pub active_s: f64,
    /// Whether it is frozen.
    pub frozen: bool,
}

/// A bag's tasks held by this machine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Held {
    /// Bag id.
    pub bag: String,
    /// Peer id of the machine that submitted it.
    #[serde(default)]
    pub submitter: String,
    /// Tasks not started.
    pub waiting: u64,
    /// Tasks started.
    pub running: u64,
    /// Tasks finished but not acknowledged by the submitter.
    pub unacknowledged: u64,
    /// By what factor its tasks take more work here than declared, if that is large; else 1.
    #[serde(default)]
    pub times_declared: f64,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// This machine.
    pub peer: String,
    /// Version of idlewood.
    pub version: String,
    /// `alone`, `joining`, `member`, `leaving`.
    pub membership: String,
    /// Why other machines refuse this one; null if they do not.
    #[serde(default)]
    pub refused: Option<String>,
    /// Its listen addresses.
    pub listen: Vec<String>,
    /// `working`, `idle`, or `suspended`.
    pub activity: String,
    /// Why it does not work at full capacity, in words.
    pub reason: Option<String>,
    /// The same as a code, from the list that `idlewood help status` shows.
    pub reason_code: Option<String>,
    /// When the activity last changed.
    pub since: String,
    /// What would change it.
    pub until: Option<String>,
    /// Whether it takes no new tasks and ends when the running ones have ended.
    pub finishing: bool,
    /// Share of a processor that each task may use now; 0 while suspended.
    pub cpu_percent: u32,
    /// Why the present settings file is not used.
    pub settings_error: Option<String>,
    /// How fast the owner got the machine back.
    pub reclaims: Reclaims,
    /// Disk space of programs, inputs and results.
    pub disk: Disk,
    /// Until when it offers nothing to others, since tasks fail here that succeed elsewhere; null if it offers.
    #[serde(default)]
    pub resting_until: Option<String>,
    /// Tasks that can run at the same time.
    pub slots: u32,
    /// Speed of one slot in Mop/s.
    pub speed_mops: f64,
    /// Machines of the grid, by the root's count.
    pub grid_machines: u64,
    /// Height of the tree.
    pub grid_height: u32,
    /// Speed of all slots of the grid that take work, in Mop/s.
    pub grid_speed_mops: f64,
    /// The largest stretch promised on any machine of the grid, in s/Mop.
    pub grid_maximum_stretch: f64,
    /// Tasks running here.
    pub running: Vec<RunningTask>,
    /// Bags whose tasks this machine holds.
    pub held: Vec<Held>,
    /// Bags of other machines that this one keeps.
    #[serde(default)]
    pub kept: u64,
    /// Those among them for which it acts, since their own machines do not answer.
    #[serde(default)]
    pub acts_for: u64,
    /// The machine's grid; null if it has none.
    pub grid: Option<GridView>,
    /// Handshakes since the agent's start.
    pub admissions: Admissions,
    /// Bytes sent to other agents.
    pub bytes_sent: u64,
    /// Bytes received from other agents.
    pub bytes_received: u64,
    /// Bytes of programs, inputs and outputs among those sent.
    #[serde(default)]
    pub blob_bytes_sent: u64,
    /// Messages of the scheduler and the tree that this machine sent since the agent's start, by kind, without what carries them.
    #[serde(default)]
    pub messages_sent: BTreeMap<String, MessageCount>,
    /// Tasks that ran to their end here since the agent's start, whatever their result: also those whose bag did not need it any more.
    #[serde(default)]
    pub tasks_run: u64,
    /// Requests of other agents refused: too many at once, or this one did not keep up.
    pub requests_refused: u64,
    /// Requests, or parts of them, declined here: not authorised, or over a quota.
    #[serde(default)]
    pub requests_declined: u64,
    /// Results for this machine's bags refused for want of a valid signature of the machine that ran them.
    #[serde(default)]
    pub results_unsigned: u64,
    /// Whether another machine seems to run under this one's identity, as after a ticket was adopted while this one is not lost.
    #[serde(default)]
    pub lives_twice: bool,
    /// Messages with an appointment of keepers that the bag's submitter did not sign.
    #[serde(default)]
    pub appointments_forged: u64,
    /// Tasks that began anew because their submitter had not signed their checkpoint for them.
    #[serde(default)]
    pub checkpoints_unsigned: u64,
    /// Tasks handed back unstarted, since their bag was not fresh and its submitter did not answer: the bag may be
    /// finished.
    #[serde(default)]
    pub tasks_unspoken: u64,
    /// Machines that get no tasks from this one, since they dissented too often.
    #[serde(default)]
    pub distrusted: Vec<String>,
    /// Machines through whose routers this one sends nothing at present, since they did not take or pass on what they were sent.
    #[serde(default)]
    pub routers_left_out: Vec<String>,
    /// Downloads of blobs, and machines left alone for slowness.
    #[serde(default)]
    pub downloads: Downloads,
    /// Malformed data from other agents.
    pub protocol_errors: u64,
    /// Well-formed messages of other agents that were ignored.
    #[serde(default)]
    pub disbelieved: Disbelieved,
    /// Seconds since the agent started.
    pub uptime_s: f64,
}

/// Messages of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageCount {
    /// How many.
    pub count: u64,
    /// Their encoded size.
    pub bytes: u64,
}

/// Downloads of programs, inputs and results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Downloads {
    /// Downloads under way.
    pub under_way: u64,
    /// Downloads waiting for a place.
    pub waiting: u64,
    /// Blobs whose download broke off, with their beginning kept.
    pub partial: u64,
    /// Machines from which nothing is fetched for a while, since they are too slow.
    pub left_alone: Vec<LeftAlone>,
    /// How many times a machine was found too slow since the agent's start.
    pub found_slow: u64,
}

/// A machine left alone for slowness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftAlone {
    /// Its peer id.
    pub machine: String,
    /// For how many more seconds.
    pub seconds: u64,
}

/// Ignored messages, since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disbelieved {
    /// Messages whose sender claimed to be this machine.
    pub forged_sender: u64,
    /// Messages of the tree that are malformed or too long.
    pub malformed: u64,
    /// Messages of an earlier incarnation of a machine.
    pub stale_life: u64,
    /// Reports of machines that do not belong below this one.
    pub links_refused: u64,
    /// Differences of summaries that do not fit the summary before.
    pub differences_refused: u64,
    /// Claims that this machine, or a later incarnation of it, is dead: it begins a newer incarnation each time.
    #[serde(default)]
    pub said_dead: u64,
}

/// A machine's grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GridView {
    /// The grid's name.
    pub name: String,
    /// Its id, in hex.
    pub id: String,
    /// This machine's role.
    pub role: Role,
    /// When its certificate expires; it is renewed before.
    pub certificate_expires: String,
}

/// `POST /v1/grid/invite`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// Role of the machines that join.
    pub role: Role,
    /// For how many seconds the invitation is valid.
    pub valid_s: f64,
    /// How many machines may join with it.
    pub uses: u32,
    /// For how many seconds their certificates are valid; renewals extend that.
    pub lifetime_s: f64,
    /// Passphrase of a sealed grid key, needed to invite administrators.
    pub passphrase: Option<String>,
}

/// An invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InvitationView {
    /// The text to pass on.
    pub token: String,
    /// Role of the machines that join.
    pub role: Role,
    /// When it expires.
    pub expires: String,
    /// How many machines may join with it.
    pub uses: u32,
}

/// `POST /v1/grid/revoke`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// The machine: its id, or the end of it if it is connected.
    pub peer: String,
    /// Passphrase of a sealed grid key, needed to revoke administrators.
    pub passphrase: Option<String>,
}

/// A machine that was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RevokedView {
    /// Its id.
    pub peer: String,
}

/// Disk space of programs, inputs and results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disk {
    /// All bytes in use.
    pub used_bytes: u64,
    /// Bytes that cannot be evicted: needed by bags and by tasks here, and results not yet delivered.
    pub kept_bytes: u64,
    /// `limits.disk`.
    pub limit_bytes: u64,
    /// Free bytes of the disk; null if the system does not tell.
    pub free_bytes: Option<u64>,
}

/// Time from the owner's return until no task used a processor any more, since the agent's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reclaims {
    /// How often the owner returned while tasks ran.
    pub count: u64,
    /// Median of the latest thousand, in seconds; null without any.
    pub p50_s: Option<f64>,
    /// 99th percentile.
    pub p99_s: Option<f64>,
    /// Longest.
    pub max_s: Option<f64>,
    /// All, as a cumulative histogram.
    pub buckets: Vec<Bucket>,
}

/// A part of a cumulative histogram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// Upper bound, in seconds.
    pub at_most_s: f64,
    /// Number of reclaims that took at most that.
    pub count: u64,
}

/// A machine near this one on the line or in the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerView {
    /// Peer id.
    pub peer: String,
    /// Where it is reached.
    pub address: String,
}

/// A child of this machine's router.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChildView {
    /// The machine.
    #[serde(flatten)]
    pub peer: PeerView,
    /// `leaf` or `router`.
    pub node: String,
    /// Machines below it.
    pub machines: u64,
    /// Height of its subtree.
    pub height: u32,
}

/// `GET /v1/peers`: this machine's place in the tree.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Peers {
    /// This machine.
    pub me: PeerView,
    /// Its position key, lower-case hex: its place on the line. The keys of all machines determine the tree.
    pub position: String,
    /// Whether its router is the root.
    pub is_root: bool,
    /// The root's machine, as last heard.
    pub root: Option<PeerView>,
    /// Levels of its router below the root; of its leaf if it is the last on the line and so has no router. Null until
    /// known.
    pub depth: Option<u32>,
    /// Parent of its router; null for the root, without a router, or while the router is not attached.
    pub router_parent: Option<PeerView>,
    /// Parent of its leaf: this machine itself if the leaf hangs below the own router. Null when alone, or while the
    /// leaf is not attached.
    pub leaf_parent: Option<PeerView>,
    /// Children of its router, left and right.
    pub children: Vec<ChildView>,
    /// Next below on the line.
    pub predecessor: Option<PeerView>,
    /// Next above on the line.
    pub successor: Option<PeerView>,
    /// All neighbours that it knows, in the order of the line.
    pub neighbours: Vec<PeerView>,
}

/// `POST /v1/pause`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Resume by itself after this many seconds.
    #[serde(default)]
    pub for_s: Option<f64>,
}

/// `POST /v1/bags/{id}/rerun`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RerunRequest {
    /// Finished tasks to run again; null: the failed ones.
    #[serde(default)]
    pub tasks: Option<Vec<u64>>,
}

/// `POST /v1/blobs`: the uploaded blob.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BlobBody {
    /// BLAKE3, lower-case hex.
    pub blob: String,
    /// Size.
    pub bytes: u64,
}
