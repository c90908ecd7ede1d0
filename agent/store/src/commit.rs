//! A commit: its changes, and how it ends.

/// Longest value, in bytes. Our choice: larger values are blobs.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// Commits that wait for the writer; as many acknowledgements may wait for the agent.
pub(super) const COMMITS_MAX: usize = 1024;

/// Why a commit failed. Its changes do not count, though they may have reached the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk is nearly full; nothing was written.
    #[error(
        "the disk of the state directory is full ({free_bytes} bytes free, {needed_bytes} needed); make room, later commits will work again"
    )]
    DiskFull {
        /// Free space.
        free_bytes: u64,
        /// Space needed.
        needed_bytes: u64,
    },
    /// The database or the disk failed. All later commits fail too: the agent has to end.
    #[error("the store has stopped working ({0}); start the agent again")]
    Broken(String),
    /// A key or value is too long, or the key is reserved; nothing of the commit was written.
    #[error(
        "a record does not fit the store: keys have 1 to {KEY_BYTES_MAX} bytes and do not begin with 0xff, values at most {VALUE_BYTES_MAX}"
    )]
    Unfit,
}

/// Why a commit was not even queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Too many commits wait; receive results first.
    #[error("{COMMITS_MAX} commits wait for the disk already")]
    Full,
    /// The writer has ended.
    #[error("the store is closed")]
    Closed,
}

/// One change: sets the record of `key`, or removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// 1 to [`KEY_BYTES_MAX`] bytes, the first not 0xff.
    pub key: Vec<u8>,
    /// At most [`VALUE_BYTES_MAX`] bytes; `None` removes the record.
    pub value: Option<Vec<u8>>,
}

/// How a commit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitResult {
    /// The ticket that the committer gave it.
    pub ticket: u64,
    /// `Ok`: durable.
    pub result: Result<(), CommitError>,
}
