//! How a task ends, as far as its worker knows.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The part of an [`Outcome`](crate::Outcome) that a worker can report.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum End {
    Exited { code: u8 },
    Trapped { message: String },
    Invalid { message: String },
    OverDisk { limit_bytes: u64 },
    CouldNotStart { message: String },
}

/// The end of a task for which this machine cannot do something with a file or directory.
pub(super) fn unable(path: &Path, what: &str, error: &io::Error) -> End {
    End::CouldNotStart { message: format!("cannot {what} ({}): {error}", path.display()) }
}
