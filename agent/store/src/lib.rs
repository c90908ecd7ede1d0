//! The store: opaque records that survive a restart. Only this crate names sled.
//!
//! One OS thread writes. It takes all waiting batches, applies them as one, syncs, and only then acknowledges: a group
//! commit. Several threads that flush at once have dead-locked sled 0.34.
//!
//! A commit is durable once it is in the `journal`: one write and one sync for a group. sled, the index of all records,
//! gets the net changes of many groups at once, at checkpoints.
//!
//! Nothing on disk is trusted. The directory is locked against a second agent. All records exist twice: in sled with
//! the end of the journal, and in the journal alone, which begins with a snapshot, and of which each block can be
//! healed if one stretch of it is damaged. So a flipped byte anywhere loses nothing (`recovery`); the damaged file is
//! kept under another name, and written anew. If both are damaged, the agent continues with the sound records of both,
//! and a small file with the number of acknowledged commits tells how many are lost. (The identity key is kept
//! elsewhere, and much can be rebuilt from the grid.)
//!
//! On a nearly full disk a commit fails before anything is written; a write that meets a full disk leaves nothing
//! behind. sled does not recover from a failed write, and blocks for ever when it is closed after one. So it runs on a
//! thread of its own that is abandoned when it fails or hangs; commits then go to the journal alone until the agent is
//! restarted.
//!
//! sled does not give space back, so a store that is mostly garbage is copied to a new one (`rebuild`), at opening or
//! while it is written.
//!
//! The parts: `handle` (opens the store, and queues commits), `lock`, `database` (sled's thread; its orders: `order`),
//! `writer`, `frame` (version and checksum),
//! `block` and `journal`, `recovery`, `rebuild`, `disk` (syncing, the count of commits), `inspect` (for `idlewood
//! store`), `reading` (results of bags, which are not kept in memory).
//!
//! Left out: blobs. All other state lives in the scheduler, whose records are read once, at the start.

mod block;
mod commit;
mod database;
mod disk;
mod error;
mod findings;
mod frame;
mod handle;
mod inspect;
mod journal;
mod layout;
mod lock;
mod order;
mod reading;
mod rebuild;
mod recovery;
mod reserve;
#[cfg(test)]
mod tests;
mod thresholds;
mod writer;

pub use commit::{Change, CommitError, CommitResult, KEY_BYTES_MAX, QueueError, VALUE_BYTES_MAX};
pub use error::StoreError;
pub use handle::{Opened, Store};
pub use inspect::{Inspection, inspect};
pub use lock::StateLock;
pub use order::Records;
pub use reading::{ReadError, Reader};
pub use rebuild::damaged_files;
