//! The grid: machines, who is let in, and who reaches whom.

use std::str::FromStr;

use idlewood_trust::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// What a machine of the grid does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// It takes tasks, and has none.
    Idle,
    /// Tasks run on it.
    Working,
    /// It begins no tasks; `reason` says why, where an owner has a reason.
    Suspended,
    /// It did not answer in time.
    Silent,
}

impl MachineState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Working, Self::Suspended, Self::Silent];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Working => "working",
            Self::Suspended => "suspended",
            Self::Silent => "silent",
        }
    }
}

impl FromStr for MachineState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.name() == text);
        found.ok_or_else(|| format!("{text:?} is no state of a machine: write idle, working, suspended or silent"))
    }
}

/// A machine of the grid as it describes itself. What a machine that did not answer would say is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineView {
    /// Peer id.
    pub peer: String,
    /// What it is called; null where that is not known.
    pub name: Option<String>,
    /// What it does.
    pub state: MachineState,
    /// Why tasks do not run on it as they could; null where nothing keeps them.
    pub reason: Option<String>,
    /// The same for programs: `paused_by_user`, `outside_hours`, `on_battery`, `in_use`, `disk_full`, `finishing`.
    pub reason_code: Option<String>,
    /// Tasks that it runs at once.
    pub slots: Option<u32>,
    /// Tasks that run on it.
    pub running: Option<u32>,
    /// Tasks that wait on it.
    pub waiting: Option<u64>,
    /// Tasks that run and wait on it for each slot.
    pub load: Option<f64>,
    /// Speed of one slot, in Mop/s.
    pub speed_mops: Option<f64>,
    /// Version of its agent.
    pub version: Option<String>,
    /// When it was heard of last: now, if it answered.
    pub last_seen: String,
    /// Tasks of bags submitted here that are with it.
    pub tasks: u64,
    /// Failed tries of such tasks on it since this agent started.
    pub failed: u64,
    /// Whether it is this machine.
    pub this_machine: bool,
    /// Where it is on the line: a list can go on from there.
    pub place: String,
}

/// Which machines to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachinesWanted {
    /// From this place of the line on, as `next` of the page before says; none: from its beginning.
    pub after: Option<String>,
    /// In one of these states; none: in any.
    pub state: Vec<MachineState>,
    /// Whose name, or end of its id, matches this pattern: `lab-*`.
    pub name: Option<String>,
}

/// `GET /v1/machines`: the machines on a part of the line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machines {
    /// Those that match, in the order of the line.
    pub machines: Vec<MachineView>,
    /// About how many others may be there, since machines that know of them did not answer.
    pub unreached: u64,
    /// Whether machines were not asked, since the grid is asked too often: ask for the same page again in a second.
    pub busy: bool,
    /// Where the next page begins; null: that was the last.
    pub next: Option<String>,
    /// How many machines there are in all, as the root counts them.
    pub grid_machines: u64,
}
