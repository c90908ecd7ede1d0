//! What tasks are given: files, and the entry of each.

use idlewood_scheduler::BlobId;
use serde::{Deserialize, Serialize};

/// A file that tasks can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// File name below `inputs/`; no separators.
    pub name: String,
    /// Its content.
    pub blob: BlobId,
    /// Its size.
    pub bytes: u64,
}

/// The part of a task's input that differs between tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its text (a line of text, number or file), as `IDLEWOOD_ENTRY` and `{}` show it.
    pub text: String,
    /// Its own file, if it has one.
    pub input: Option<Input>,
}
