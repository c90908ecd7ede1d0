//! Syncing sled's files, the count of acknowledged commits, and free space.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tracing::warn;

use super::error::StoreError;
use super::frame::{CHECKSUM_BYTES, checksum};
use super::layout::SLED_FILE;

/// File with the number of acknowledged commits.
pub(super) const MARK_FILE: &str = "store.mark";

/// Syncs sled's log, its files of large values, and the directories. sled itself syncs snapshots, but not their names.
pub(super) fn sync_all(path: &Path, synced_blobs: &mut HashSet<PathBuf>) -> io::Result<()> {
    let blobs = path.join("blobs");
    let mut present = HashSet::new();
    for entry in fs::read_dir(&blobs)? {
        let blob = entry?.path();
        if !synced_blobs.contains(&blob) {
            match File::open(&blob) {
                Ok(file) => file.sync_all()?,
                // sled removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        present.insert(blob);
    }
    if present != *synced_blobs {
        sync_dir(&blobs)?;
        *synced_blobs = present;
    }
    File::open(path.join(SLED_FILE))?.sync_data()?;
    sync_dir(path)
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The number of acknowledged commits. Written after each without syncing: never more than the truth, but less after a
/// power cut.
#[derive(Debug)]
pub(super) struct Mark(File);

impl Mark {
    pub(super) fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(MARK_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        Ok(Self(file.map_err(failed("open", &path))?))
    }

    /// The count; 0 if it cannot be read.
    pub(super) fn read(&self) -> u64 {
        let mut bytes = [0; 8 + CHECKSUM_BYTES];
        if self.0.read_exact_at(&mut bytes, 0).is_err() {
            return 0;
        }
        let (count, sum) = bytes.split_at(8);
        if *sum != checksum(MARK_FILE.as_bytes(), count) {
            return 0;
        }
        count.try_into().map(u64::from_be_bytes).unwrap_or(0)
    }

    pub(super) fn write(&self, count: u64) {
        let count = count.to_be_bytes();
        let mut bytes = count.to_vec();
        bytes.extend(checksum(MARK_FILE.as_bytes(), &count));
        if let Err(error) = self.0.write_all_at(&bytes, 0) {
            warn!(%error, "the count of commits could not be noted; a loss of data may go unreported");
        }
    }
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// Free bytes on the disk of a directory, if the system tells.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    match rustix::fs::statvfs(dir) {
        Ok(disk) => Some(disk.f_bavail * disk.f_frsize),
        Err(errno) => {
            tracing::warn!(%errno, "the free space of the disk is not known");
            None
        }
    }
}
