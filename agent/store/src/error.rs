//! Why a store cannot be used.

use std::io;
use std::path::PathBuf;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another agent is running on it.
    #[error("{} is in use by another agent ({holder}); stop that one, or give this one a state directory of its own", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The holder named in the lock file.
        holder: String,
    },
    /// The file system refuses.
    #[error("cannot {action} {}: {source}; check the disk and the permissions of the state directory", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The damaged store cannot be replaced.
    #[error("no store can be opened in {} ({reason}); start the agent again, and if that does not help move the directory away", dir.display())]
    Unusable {
        /// The state directory.
        dir: PathBuf,
        /// sled's error.
        reason: String,
    },
}
