//! The control API: JSON types of requests and answers over loopback HTTP, and a [`client`].
//!
//! Times are ISO-8601 UTC, durations seconds as numbers, ids lower-case hex.

mod bag;
pub mod client;
mod grid;
mod live;
mod machine;
mod rounds;
mod submit;
mod task;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::bag::{
    AwaitedBag, Bag, BagDetail, BagState, BagsWanted, Bound, Declined, Declining, Endless, Keeper, Placement,
    PriorityRequest, RenameRequest, RerunRequest, ResultsKept, Swallowed, TaskSource, Ticket,
};
pub use self::grid::{
    ChildView, GridView, InvitationView, InviteRequest, MachineState, MachineView, Machines, MachinesWanted, PeerView,
    Peers, ReachView, RevokeRequest, RevokedView,
};
pub use self::live::{Live, LiveRequest, LiveSeen, LiveSilent, LiveTask, LiveWaiting};
pub use self::machine::{
    Bucket, CleanRequest, CleanedView, Disbelieved, Disk, Downloads, EndlessHere, Held, LeftAlone, MessageCount,
    PauseRequest, Reclaims, RunningTask, Status,
};
pub use self::rounds::RoundsView;
pub use self::submit::{BlobBody, DrainRequest, EndlessRequest, LinesRequest, Notify, SubmitRequest};
pub use self::task::{Receipt, Task, TaskResult, TaskState, Tasks};

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
