//! The control API's words: what the CLI and an agent say to each other, as JSON over loopback HTTP; and its [`client`].
//!
//! Times are ISO-8601 UTC, durations seconds as numbers, ids lower-case hex.

pub mod client;

use std::collections::BTreeMap;

use idlewood_scheduler::Replication;
use serde::{Deserialize, Serialize};

use idlewood_trust::manifest::{DISK_BYTES_DEFAULT, Entry, Input};
use idlewood_trust::{Admissions, Role};

/// Where the agent of a state directory listens, and what opens it: `control.json` in that directory, mode 0600.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// `127.0.0.1:port`.
    pub address: String,
    /// Bearer token.
    pub token: String,
    /// Process id of the agent.
    pub pid: u32,
}

/// Any failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One sentence.
    pub error: String,
}

/// `POST /v1/bags`: a bag whose blobs are uploaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// The user's name for it.
    pub name: String,
    /// Number of tasks.
    pub tasks: u64,
    /// The module.
    pub program: Input,
    /// Arguments with `{}` and `{index}`.
    #[serde(default)]
    pub args: Vec<String>,
    /// One per task, or none at all.
    #[serde(default)]
    pub entries: Vec<Entry>,
    /// Files shared by all tasks.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// The input that is standard input.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Memory a task may use.
    pub memory_bytes: u64,
    /// Disk space that a task's files may take.
    #[serde(default = "disk_bytes_default")]
    pub disk_bytes: u64,
    /// Time a task may run.
    pub time_limit_s: u64,
    /// Exit codes that mean success.
    pub success_codes: Vec<i32>,
    /// Work of one task in Mop; measured where absent.
    #[serde(default)]
    pub work_mops: Option<f64>,
    /// Failed tries before a task counts as failed.
    pub retries_max: u32,
    /// The same clock and random numbers wherever a task runs; implied by replicas.
    #[serde(default)]
    pub deterministic: bool,
    /// The program is native: it runs where owners let such programs run.
    #[serde(default)]
    pub native: bool,
    /// How many machines run each task, and how many of them have to say the same.
    #[serde(default)]
    pub replication: Replication,
}

fn disk_bytes_default() -> u64 {
    DISK_BYTES_DEFAULT
}

impl SubmitRequest {
    /// Tasks without files of their own, each with the same arguments, of a size that is to be measured.
    pub fn plain(name: &str, tasks: u64, program: Input, args: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            tasks,
            program,
            args,
            entries: Vec::new(),
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
        }
    }
}

/// State of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BagState {
    /// Its first task runs here to see how long one takes.
    Measuring,
    /// Not all tasks are over.
    Running,
    /// Every task succeeded.
    Succeeded,
    /// Every task is over, some failed.
    Failed,
    /// Given up by the user.
    Cancelled,
}

impl BagState {
    /// Whether nothing will happen any more.
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// A bag as its submitter sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bag {
    /// Full id; a unique prefix will do in commands.
    pub id: String,
    /// The user's name for it.
    pub name: String,
    /// Where it stands.
    pub state: BagState,
    /// Number of tasks.
    pub tasks: u64,
    /// Tasks that succeeded.
    pub done: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// Tasks on machines.
    pub placed: u64,
    /// Machines that hold tasks now.
    pub machines: u64,
    /// Tasks on their way to a machine.
    pub unplaced: u64,
    /// Tasks that were issued again.
    pub reissued: u64,
    /// Results that came twice.
    pub duplicates: u64,
    /// How many machines run each task.
    #[serde(default)]
    pub replication: Replication,
    /// Tasks that were decided though not all machines said the same.
    #[serde(default)]
    pub disputed: u64,
    /// Why no task of it, or not all, can be decided as the grid is now; null where they can.
    #[serde(default)]
    pub undecidable: Option<String>,
    /// Tasks that machines did not queue, and why.
    #[serde(default)]
    pub declined: Vec<Declined>,
    /// Results that were not taken, since the machine that sent them never had the task.
    #[serde(default)]
    pub unasked: u64,
    /// Tasks that went another way than through the tree, since two requests in a row had lost them.
    #[serde(default)]
    pub astray: u64,
    /// Routers that were to pass tasks on which nobody then accounted for.
    #[serde(default)]
    pub swallowed: Vec<Swallowed>,
    /// Work of one task, in Mop; null until measured.
    pub work_mops: Option<f64>,
    /// Work of one task by the median of the machines on which tasks succeeded, in Mop; null before the first.
    #[serde(default)]
    pub measured_mops: Option<f64>,
    /// Results that claimed more work than their machine can have done since it got the task; nobody counts on that work.
    #[serde(default)]
    pub overstated: u64,
    /// The identity under which it was submitted, where this machine does not have that any more: the bag was given up then.
    #[serde(default)]
    pub given_up_with: Option<String>,
    /// When it was submitted.
    pub submitted: String,
    /// When it ended.
    pub finished: Option<String>,
    /// Seconds since submission, or until the end.
    pub elapsed_s: f64,
    /// Seconds from submission until its first task ran on this machine; null before that one ended, and after a
    /// restart of the agent.
    #[serde(default)]
    pub first_start_s: Option<f64>,
    /// (now or end − r)/w in s/Mop.
    pub stretch: Option<f64>,
}

/// Tasks that machines did not queue for one reason; they are issued again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Declined {
    /// In words.
    pub reason: String,
    /// How many, each as often as it was declined.
    pub tasks: u64,
    /// Peer id of the machine that did last.
    pub machine: String,
}

/// A router that did not pass on tasks of a bag, as far as its submitter can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swallowed {
    /// Peer id of its machine.
    pub machine: String,
    /// How many, each as often as it was lost there.
    pub tasks: u64,
    /// Whether this machine's requests go around that router now.
    pub is_left_out: bool,
}

/// `GET /v1/bags/{id}/ticket`, `?results=true`: what the agent knows of a bag that is not over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ticket {
    /// Full id, which is the blob of its manifest.
    pub bag: String,
    /// Its records, lower-case hex.
    pub records: Vec<String>,
    /// How many of these are results.
    pub done: u64,
    /// Blobs with the outputs of those that do not hold them themselves.
    pub results: Vec<String>,
    /// What all outputs take.
    pub results_bytes: u64,
}

/// A machine that holds a part of a bag.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// Peer id.
    pub peer: String,
    /// How many tasks it accounts for.
    pub tasks: u64,
    /// For how many seconds still nothing is fetched from it, since it answers too slowly; null where that is not so.
    #[serde(default)]
    pub left_alone_s: Option<u64>,
}

/// `GET /v1/bags/{id}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BagDetail {
    /// The numbers.
    #[serde(flatten)]
    pub bag: Bag,
    /// Program's file name.
    pub program: String,
    /// Arguments as submitted.
    pub args: Vec<String>,
    /// Who holds its tasks.
    pub placements: Vec<Placement>,
}

/// One task that is over: `GET /v1/bags/{id}/results`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskResult {
    /// Index in the bag.
    pub index: u64,
    /// Its entry.
    pub entry: String,
    /// 0 for the first try.
    pub attempt: u32,
    /// Whether it succeeded.
    pub success: bool,
    /// Peer id of the machine that ran it.
    pub machine: String,
    /// When its result was journalled.
    pub finished: String,
    /// Work it turned out to be, in Mop.
    pub work_mops: f64,
    /// The blob with its [`idlewood_trust::manifest::TaskOutput`].
    pub output: String,
    /// Size of that blob.
    pub output_bytes: u64,
}

/// What a machine signed of a task: `GET /v1/bags/{id}/receipts`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// Index in the bag.
    pub index: u64,
    /// Its bytes ([`idlewood_trust::Receipt`]), lower-case hex.
    pub receipt: String,
}

/// A running task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningTask {
    /// Which worker, from 0.
    pub place: u32,
    /// Bag id.
    pub bag: String,
    /// Index in the bag.
    pub index: u64,
    /// Seconds it has run, frozen time left out.
    pub active_s: f64,
    /// Whether it is frozen.
    pub frozen: bool,
}

/// A bag's part on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Bag id.
    pub bag: String,
    /// Not started.
    pub waiting: u64,
    /// Started.
    pub running: u64,
    /// Finished, not acknowledged by the submitter.
    pub unacknowledged: u64,
    /// How many times their declared work its tasks take here, where that is far more; else 1.
    #[serde(default)]
    pub times_declared: f64,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// This machine.
    pub peer: String,
    /// Version of idlewood.
    pub version: String,
    /// `alone`, `joining`, `member`, `leaving`.
    pub membership: String,
    /// Why others do not let it in, where it is no member.
    #[serde(default)]
    pub refused: Option<String>,
    /// Where it listens.
    pub listen: Vec<String>,
    /// `working`, `idle`, or `suspended`.
    pub activity: String,
    /// Why it does not work as it could, in words.
    pub reason: Option<String>,
    /// The same for programs, from the list that `idlewood help status` shows.
    pub reason_code: Option<String>,
    /// Since when the activity is what it is.
    pub since: String,
    /// What would change it.
    pub until: Option<String>,
    /// Whether it takes no new tasks and ends when those that run have.
    pub finishing: bool,
    /// How much of a processor each task may use now; 0 while suspended.
    pub cpu_percent: u32,
    /// Why the settings as they are in the file do not count.
    pub settings_error: Option<String>,
    /// How fast the owner got the machine back.
    pub reclaims: Reclaims,
    /// What programs, inputs and results take.
    pub disk: Disk,
    /// Until when it offers nothing to others, since everything fails here that succeeds elsewhere; null otherwise.
    #[serde(default)]
    pub resting_until: Option<String>,
    /// Tasks that can run at the same time.
    pub slots: u32,
    /// Speed of one slot in Mop/s.
    pub speed_mops: f64,
    /// Machines of the grid, as the root counts.
    pub grid_machines: u64,
    /// Height of the tree.
    pub grid_height: u32,
    /// Speed of all slots of the grid that take work, in Mop/s.
    pub grid_speed_mops: f64,
    /// The largest stretch promised on any machine of the grid, in s/Mop.
    pub grid_maximum_stretch: f64,
    /// What runs here.
    pub running: Vec<RunningTask>,
    /// What is held here.
    pub held: Vec<Held>,
    /// The grid that this machine belongs to; null where it is alone.
    pub grid: Option<GridView>,
    /// Who was let in and who was not, since the agent's start.
    pub admissions: Admissions,
    /// Bytes sent to other agents.
    pub bytes_sent: u64,
    /// Bytes received from other agents.
    pub bytes_received: u64,
    /// Requests of other agents that were turned away: too many at once, or this one did not keep up.
    pub requests_refused: u64,
    /// Requests, or parts of them, that did not queue here: not authorised, or over a quota.
    #[serde(default)]
    pub requests_declined: u64,
    /// Results of this machine's bags that came without a valid signature of the machine that ran them, and were not taken.
    #[serde(default)]
    pub results_unsigned: u64,
    /// Checkpoints that tasks came with and that their submitters had not signed for them: these tasks began anew.
    #[serde(default)]
    pub checkpoints_unsigned: u64,
    /// Tasks that went back unbegun, since the submitter of their bag did not answer: it was not fresh, and may be over.
    #[serde(default)]
    pub tasks_unspoken: u64,
    /// Machines that get nothing from this one, since they said other things than others too often.
    #[serde(default)]
    pub distrusted: Vec<String>,
    /// Machines through whose routers this one sends nothing just now, since they did not take or pass on what they were sent.
    #[serde(default)]
    pub routers_left_out: Vec<String>,
    /// Blobs that are being fetched, and machines that are left alone since they answer too slowly.
    #[serde(default)]
    pub downloads: Downloads,
    /// What other agents sent and made no sense.
    pub protocol_errors: u64,
    /// What other agents said that made sense and was not believed.
    #[serde(default)]
    pub disbelieved: Disbelieved,
    /// Seconds since the agent started.
    pub uptime_s: f64,
}

/// Programs, inputs and results on their way here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downloads {
    /// How many are under way.
    pub under_way: u64,
    /// How many wait for a place among these.
    pub waiting: u64,
    /// Blobs of which a part is here, and that are not under way.
    pub partial: u64,
    /// Machines of which nothing is fetched just now, since they answer too slowly.
    pub left_alone: Vec<LeftAlone>,
    /// How often a machine was found too slow, since the agent's start.
    pub found_slow: u64,
}

/// A machine that answers too slowly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// Its peer id.
    pub machine: String,
    /// For how many seconds still.
    pub seconds: u64,
}

/// Messages that were passed over, since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disbelieved {
    /// In which a machine spoke in this one's name.
    pub forged_sender: u64,
    /// About the tree, with values or of a length that no agent sends.
    pub malformed: u64,
    /// Of a life of a machine that is over.
    pub stale_life: u64,
    /// Reports of machines that have no place below this one.
    pub links_refused: u64,
    /// Changes of a report that do not fit the report.
    pub differences_refused: u64,
    /// Word that this machine, or a later life of it, is dead: it begins a newer life each time.
    #[serde(default)]
    pub said_dead: u64,
}

/// A machine's grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridView {
    /// What people call it.
    pub name: String,
    /// Its id, in hex.
    pub id: String,
    /// What this machine may do in it.
    pub role: Role,
    /// Until when its certificate is valid; it is renewed before.
    pub certificate_expires: String,
}

/// `POST /v1/grid/invite`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// What whoever joins may do.
    pub role: Role,
    /// How many seconds the invitation is good for.
    pub valid_s: f64,
    /// How many machines may join with it.
    pub uses: u32,
    /// How many seconds their certificates are valid; they are renewed on the way.
    pub lifetime_s: f64,
    /// What opens the grid's key, where administrators are invited and it is sealed.
    pub passphrase: Option<String>,
}

/// An invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitationView {
    /// The line to pass on.
    pub token: String,
    /// What whoever joins may do.
    pub role: Role,
    /// Until when it is good.
    pub expires: String,
    /// How many machines may join with it.
    pub uses: u32,
}

/// `POST /v1/grid/revoke`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// The machine: its id, or the end of it if it is connected.
    pub peer: String,
    /// What opens the grid's key, where an administrator is revoked and it is sealed.
    pub passphrase: Option<String>,
}

/// A machine that was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedView {
    /// Its id.
    pub peer: String,
}

/// What programs, inputs and results take on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// All of them.
    pub used_bytes: u64,
    /// Those that are needed: by bags and by tasks here, and results that nobody has taken yet. The others make room.
    pub kept_bytes: u64,
    /// `limits.disk`.
    pub limit_bytes: u64,
    /// What is free on the disk itself; null where the system does not say.
    pub free_bytes: Option<u64>,
}

/// How long it took from the owner's return until no task used a processor any more, since the agent's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reclaims {
    /// How often the owner returned while tasks ran.
    pub count: u64,
    /// Median of the latest thousand, in seconds; null without any. Likewise below.
    pub p50_s: Option<f64>,
    /// 99th percentile.
    pub p99_s: Option<f64>,
    /// Longest.
    pub max_s: Option<f64>,
    /// All, as a cumulative histogram.
    pub buckets: Vec<Bucket>,
}

/// A part of a cumulative histogram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Upper bound, in seconds.
    pub at_most_s: f64,
    /// How many took at most that.
    pub count: u64,
}

/// A machine near this one on the line or in the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerView {
    /// Peer id.
    pub peer: String,
    /// Where it is reached.
    pub address: String,
}

/// A child of this machine's router.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildView {
    /// Which machine.
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peers {
    /// This machine.
    pub me: PeerView,
    /// Its position key, lower-case hex: the place on the line, and with those of all others the shape of the tree.
    pub position: String,
    /// Whether its router is the root.
    pub is_root: bool,
    /// The root's machine, as last heard.
    pub root: Option<PeerView>,
    /// Levels of its router below the root; of its leaf where it has no router, as the last on the line. Null until
    /// known.
    pub depth: Option<u32>,
    /// Parent of its router; null for the root, without a router, or while the router is not attached.
    pub router_parent: Option<PeerView>,
    /// Parent of its leaf: this machine itself where the leaf hangs below the own router. Null when alone, or while
    /// the leaf is not attached.
    pub leaf_parent: Option<PeerView>,
    /// Children of its router, left and right.
    pub children: Vec<ChildView>,
    /// Next below on the line.
    pub predecessor: Option<PeerView>,
    /// Next above on the line.
    pub successor: Option<PeerView>,
    /// All neighbours that it keeps, in the order of the line.
    pub neighbours: Vec<PeerView>,
}

/// `POST /v1/pause`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Resume by itself after this many seconds.
    #[serde(default)]
    pub for_s: Option<f64>,
}

/// `POST /v1/bags/{id}/rerun`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerunRequest {
    /// The tasks, those that are over; null: those that failed.
    #[serde(default)]
    pub tasks: Option<Vec<u64>>,
}

/// `POST /v1/blobs`: what was uploaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlobBody {
    /// BLAKE3, lower-case hex.
    pub blob: String,
    /// Size.
    pub bytes: u64,
}
