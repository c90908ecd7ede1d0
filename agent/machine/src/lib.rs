//! One whole machine, without IO: its [`Peer`](idlewood_scheduler::Peer), and what carrying out the peer's orders decides.
//!
//! A driver turns the outside world into [`Event`]s and [`Effect`]s into the outside world, and decides nothing: the agent with
//! sockets, disks and processes, the simulator with a queue of events. So the decisions of an agent are the ones that are
//! simulated. A [`Machine`] has the contract of a peer: it is given the time, draws nothing by chance of its own, and never waits.
//!
//! Parts own their fields: `outputs` decides which outputs of its bags a machine fetches, and when; `measuring` whose first task
//! runs to show how long a task takes; `execution` what workers run, and what they are given ahead; `policy` whether the owner lets
//! tasks run, and `owner` what follows for those that do; `finishing` when a machine that was told to finish may end; `writes` in which
//! order records go to the disk, and what becomes of those that do not get there; `results` which results share a message. `explain` says
//! why tasks of a bag do not run, and decides nothing.
//!
//! Three parts are not the machine's own, since they follow each piece of a blob, or each connection, and not the peer: `downloads` decides whom the driver
//! asks for pieces, `serving` whom it gives some, and `connections` says how many connections it has.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod connections;
pub mod downloads;
mod effect;
mod event;
mod execution;
pub mod explain;
mod finishing;
mod machine;
mod measuring;
mod outputs;
mod owner;
pub mod policy;
mod results;
pub mod serving;
mod speed;
mod work;
mod writes;

pub use effect::{Effect, FetchId, Wanted, WriteId};
pub use event::{Event, FetchEnd, FirstTask, WriteEnd};
pub use execution::{JOBS_MAX, RETRY_AFTER, RunningJob};
pub use machine::Machine;
pub use outputs::FETCHES_MAX;
pub use owner::Owner;
pub use work::{JobId, WorkEvent, WorkOrder};
pub use writes::RECORD_BYTES_MAX;
