//! A machine: what it does, what it keeps, and what its owner asks of it.

use std::collections::BTreeMap;

use idlewood_trust::Admissions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grid::GridView;

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

/// An endless bag and this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EndlessHere {
    /// Bag id.
    pub bag: String,
    /// Its rate here in Mop/s.
    pub work_mops: f64,
    /// The same in percent of this machine.
    pub percent: f64,
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
    /// Endless bags that share the grid, and what each has of this machine.
    #[serde(default)]
    pub endless: Vec<EndlessHere>,
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

/// `POST /v1/pause`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Resume by itself after this many seconds.
    #[serde(default)]
    pub for_s: Option<f64>,
}
