//! The grid: machines, who is let in, and who reaches whom.

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
