//! One whole machine, without IO: its [`Peer`](idlewood_scheduler::Peer), and what carrying out the peer's orders decides.
//!
//! A driver turns the outside world into [`Event`]s and [`Effect`]s into the outside world, and decides nothing: the agent with
//! sockets, disks and processes, the simulator with a queue of events. So the decisions of an agent are the ones that are
//! simulated. A [`Machine`] has the contract of a peer: it is given the time, draws nothing by chance of its own, and never waits.
//!
//! Parts own their fields: `outputs` decides which outputs of its bags a machine fetches, and when; `measuring` whose first task
//! runs to show how long a task takes; `execution` what workers run, and what they are given ahead.
//!
//! Left out so far, and decided in the agent: how results are batched, the order of writes, whether the owner lets tasks run, and
//! that a machine with a full disk, or one that finishes, hands its tasks back at once.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod execution;
mod machine;
mod measuring;
mod outputs;

pub use execution::{JOBS_MAX, JobId, WorkEvent, WorkOrder};
pub use machine::{Effect, Event, Machine};
pub use measuring::FirstTask;
pub use outputs::{FETCHES_MAX, FetchEnd, FetchId, Wanted};
