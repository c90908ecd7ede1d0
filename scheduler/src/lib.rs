//! The decentralised scheduler of idlewood (Celaya and Marchal 2010, with the corrections and extensions that the
//! modules name), and [`Peer`], which composes it with the overlay into everything that one machine does.
//!
//! The crate is sans-IO: no sockets, no files, no clock, no ambient randomness. Both drivers, the agent and the
//! simulator, own a [`Peer`] and feed it [`Event`]s.

#![forbid(unsafe_code)]

pub mod availability;
mod bag;
mod conditions;
mod config;
mod crowd;
mod enclosed;
mod endless;
mod executor;
mod factors;
mod handed;
mod io;
mod ledger;
mod link;
mod listing;
mod message;
mod message_kind;
mod pace;
mod peer;
pub mod queue;
pub mod ranges;
mod recent;
mod record;
mod reputation;
pub mod rounds;
mod router;
pub mod shares;
mod slowness;
pub mod split;
mod steward;
pub mod stretch;
pub mod summary;
mod watch;

pub use bag::{
    AGE_MAX, BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, BagHeader, BagId, BagKey, BlobId, Checkpoint, DeclineReason, Finished,
    LINE_BYTES_MAX, Path, REQUEST_INTERVALS_MAX, Request, SMALL_OUTPUT_BYTES_MAX, SMALL_OUTPUTS_BYTES_MAX, Sizes,
    SmallOutput, TaskId, TaskResult, manifest_age,
};
pub use conditions::{AFTER_MAX, Awaited, Conditions, NAME_BYTES_MAX, PRIORITY_MAX, Wish};
pub use config::{Config, PerSubmitter};
pub use enclosed::{ENCLOSED_BYTES_MAX, Enclosed};
pub use endless::{
    ENDLESS_MAX, Endless, EndlessBag, EndlessView, Grant, Limit, Stamp, Standing, WEIGHT_MAX, WEIGHT_MIN,
};
pub use executor::{HeldView, RunningTask};
pub use io::Ticket;
pub use ledger::{BagView, Declines, KeptPrediction, Prediction, REPLICAS_MAX, Replication, Supply, Swallowed};
pub use link::LINK_KB_S;
pub use listing::{
    About, Activity, MACHINE_NAME_BYTES_MAX, MachineReport, MachinesPage, PAGE_MACHINES_MAX, PAGE_SILENT_MAX,
    SilentMachine, WhichMachines,
};
pub use message::{
    Asker, Capacity, DecodeError, Lease, MESSAGE_BYTES_MAX, Message, RESULTS_MAX, Speaker, results_within,
};
pub use message_kind::MESSAGE_KINDS;
pub use peer::{
    Approval, Effect, Event, Notice, Peer, RestoreError, Seed, StartMade, Submission, SubmitError, TaskOutcome,
};
pub use record::{Change, Closing, Ending, RECORD_VERSION, Record, RecordError, RecordKey};
pub use reputation::Reputation;
pub use router::{ClimbingRule, Platform};
pub use steward::feed::Delta;
pub use steward::{Acting, Appointment, KeeperView, ResultsKept, STEWARDS_DEFAULT, STEWARDS_MAX, Term};
