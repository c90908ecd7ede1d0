//! Why a blob could not be stored or read.

use std::io;
use std::path::{Path, PathBuf};

use blake3::Hash;

/// Disk space that blobs leave free: records are more important. Our choice: twice what the store leaves.
pub(super) const DISK_FREE_MIN: u64 = 16 << 20;

/// Why a blob could not be stored or read. A failed insert leaves nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}; check the disk and the permissions of the state directory", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The quota is used up by blobs that are needed.
    #[error(
        "no room for {needed_bytes} more bytes of blobs: {kept_bytes} of the quota of {quota_bytes} bytes are in use by \
         running work; raise the disk quota or wait until tasks finish"
    )]
    Full {
        /// The size requested.
        needed_bytes: u64,
        /// Bytes that cannot be evicted: pinned and unfinished blobs.
        kept_bytes: u64,
        /// The quota.
        quota_bytes: u64,
    },
    /// The disk has less free space than the blob and the space reserved for records need.
    #[error(
        "no room for {needed_bytes} more bytes of blobs: the disk has {free_bytes} bytes free, of which {DISK_FREE_MIN} stay free; \
         free some space"
    )]
    DiskFull {
        /// The size requested.
        needed_bytes: u64,
        /// Free space; evicting everything possible would not suffice.
        free_bytes: u64,
    },
    /// A download exceeded its size limit.
    #[error("blob {hash} is larger than the {size_max} bytes that were allowed for it")]
    TooLarge {
        /// The blob.
        hash: Hash,
        /// The limit.
        size_max: u64,
    },
    /// The content received has another hash.
    #[error("blob {expected} was sent with other content (its hash is {got}); try another source")]
    Mismatch {
        /// The hash requested.
        expected: Hash,
        /// The hash of the content.
        got: Hash,
    },
    /// The blob is not stored here.
    #[error("blob {hash} is not here; fetch it first")]
    Missing {
        /// The blob.
        hash: Hash,
    },
}

impl BlobError {
    /// Whether the operation failed for lack of space.
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Full { .. } | Self::DiskFull { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::TooLarge { .. } | Self::Mismatch { .. } | Self::Missing { .. } => false,
        }
    }
}

/// The error of an operation on a file or directory that the system refused.
pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BlobError {
    let path = path.to_owned();
    move |source| BlobError::Io { action, path, source }
}
