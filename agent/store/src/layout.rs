//! Where the store lies in the state directory.

/// Name of sled's directory in the state directory.
pub(super) const STORE_DIR: &str = "store";

/// sled's log in it, the file that sled locks.
pub(super) const SLED_FILE: &str = "db";
