//! Bags as their submitter sees them.

use idlewood_scheduler::Replication;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rounds::RoundsView;

use crate::submit::ReplicationSchema;

/// `POST /v1/bags/{id}/rename`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// The new name.
    pub name: String,
}

/// `POST /v1/bags/{id}/priority`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityRequest {
    /// From -1000 to 1000; the higher comes first.
    pub priority: i32,
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

/// `GET /v1/bags?state={state},...&since_s={seconds}&before={id}&limit={count}`: which bags, the latest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BagsWanted {
    /// In one of these states; in any, if none is named.
    pub state: Vec<BagState>,
    /// Submitted at most so many seconds ago.
    pub since_s: Option<f64>,
    /// Those that come behind this one: the list goes on where an earlier one ended.
    pub before: Option<String>,
    /// So many at most.
    pub limit: Option<u64>,
}

impl BagsWanted {
    /// What stands behind the `?`; `escaped` makes any text a part of that.
    pub(crate) fn query(&self, escaped: impl Fn(&str) -> String) -> String {
        let states = self.state.iter().map(|state| state.name()).collect::<Vec<_>>().join(",");
        let since = self.since_s.map(|seconds| format!("&since_s={seconds}")).unwrap_or_default();
        let before = self.before.as_ref().map(|id| format!("&before={}", escaped(id))).unwrap_or_default();
        let limit = self.limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
        format!("state={states}{since}{before}{limit}")
    }
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
    /// The shortest task that succeeded, in seconds of this machine; null before the first.
    #[serde(default)]
    pub task_s_least: Option<f64>,
    /// The longest, likewise.
    #[serde(default)]
    pub task_s_most: Option<f64>,
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
    /// It ends so many seconds earlier or later than that in most cases.
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
    /// Work of the tasks that ended, as time of a slot of this machine, in seconds.
    #[serde(default)]
    pub computed_s: f64,
    /// Machines on which tasks ended, up to 256.
    #[serde(default)]
    pub machines_used: u64,
    /// How many other machines are to keep the bag, so that it goes on while this one is away.
    #[serde(default)]
    pub stewards: u32,
    /// The machines that keep it, this one first; empty before others do.
    #[serde(default)]
    pub keepers: Vec<Keeper>,
    /// Where its results are besides on this machine; null where stewards are not to keep them (`submit --keep-results`), and once the bag is over.
    #[serde(default)]
    pub results_kept: Option<ResultsKept>,
    /// After adopting it: the tasks that had ended and are computed again, since no machine has shown their results yet; null: none.
    #[serde(default)]
    pub results_lost: Option<String>,
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
    /// How far it is, where it is an application in rounds.
    #[serde(default)]
    pub rounds: Option<RoundsView>,
    /// Bags of this machine with a higher priority come first; 0 unless its user says otherwise.
    #[serde(default)]
    pub priority: i32,
    /// Of a bag without an end: its share of the grid. `tasks` is then the number of tasks so far.
    #[serde(default)]
    pub endless: Option<Endless>,
}

/// What the tasks of an endless bag are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskSource {
    /// Numbers.
    Range,
    /// Lines of a pipe.
    Lines,
    /// Files of a directory.
    Files,
}

/// Where the results of a bag are that stewards keep, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResultsKept {
    /// Tasks that have ended.
    pub ended: u64,
    /// Those of them whose results another machine that was heard of lately has, too, with their outputs.
    pub elsewhere: u64,
    /// Whether these are all: the disk of this machine can be lost.
    pub safe: bool,
    /// Whether a machine that keeps the bag has no room for more results at the moment.
    pub lacks_room: bool,
}

/// An endless bag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Endless {
    /// What its tasks are; null while the agent cannot read what the bag is made of.
    pub source: Option<TaskSource>,
    /// Its weight.
    pub share: f64,
    /// Whether no more tasks will come: it was closed, or its pipe has ended.
    pub closed: bool,
    /// Tasks/s in the last minute.
    pub rate: f64,
    /// Tasks/s since it was submitted.
    pub mean_rate: f64,
    /// Tasks/s that the grid gives it now; null before the grid has answered.
    pub granted_rate: Option<f64>,
    /// Tasks/s that it would have if it were the only endless bag; null likewise.
    pub alone_rate: Option<f64>,
    /// Its part of what all machines do for endless bags, in percent; null likewise.
    pub share_percent: Option<f64>,
    /// What keeps it from having more: `processors`, `uplink`, `downlinks`, `machines`, `waits`, `tasks`, or `undrained`; null likewise.
    pub limit: Option<String>,
    /// How many endless bags have their turn before it.
    pub ahead: u64,
    /// Tasks that have come and that no machine has.
    pub waiting: u64,
    /// Results that are not drained.
    pub undrained: u64,
    /// Bytes of their outputs.
    pub undrained_bytes: u64,
    /// Results that were drained.
    pub drained: u64,
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
    /// The machines that decline its tasks, as far as they were asked.
    #[serde(default)]
    pub declining: Vec<Declining>,
}

/// A machine that has declined tasks of a bag, and has taken none since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Declining {
    /// Peer id.
    pub peer: String,
    /// Why, for programs: as a bound's code.
    pub code: String,
    /// The same for people.
    pub reason: String,
}

/// `POST /v1/bags/{id}/rerun`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RerunRequest {
    /// Finished tasks to run again; null: the failed ones.
    #[serde(default)]
    pub tasks: Option<Vec<u64>>,
}
