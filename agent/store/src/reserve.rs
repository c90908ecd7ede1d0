//! Reserved disk space for commits that must be written on a full disk: removals, agreements between machines, results
//! on their way.
//!
//! Other programs may fill the disk to the last byte. A file without content occupies the space, shrinks piece by piece
//! when it is needed, and grows again when there is room.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use tracing::warn;

/// Name of the file in the state directory.
const RESERVE_FILE: &str = "reserve";

/// Least space given back at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The reserve of one state directory.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    full_bytes: u64,
}

impl Reserve {
    /// The reserve in a state directory, as large as it is now. `full_bytes` is its intended size.
    pub(super) fn of(dir: &Path, full_bytes: u64) -> Self {
        let path = dir.join(RESERVE_FILE);
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        Self { path, bytes, full_bytes }
    }

    /// Its present size.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives at least so many bytes back to the disk, or all. False if it had none.
    pub(super) fn give(&mut self, bytes: u64) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let remaining = self.bytes.saturating_sub(bytes.clamp(1, self.bytes).next_multiple_of(PIECE_BYTES));
        match OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(remaining)) {
            Ok(()) => {
                if self.bytes == self.full_bytes {
                    warn!("the disk is full: the agent lives on what it has kept for that; free some space");
                }
                self.bytes = remaining;
                true
            }
            Err(error) => {
                warn!(path = %self.path.display(), %error, "the reserve cannot be used");
                self.bytes = 0;
                false
            }
        }
    }

    /// Grows to its full size, or as far as leaves the disk `beside_bytes` free.
    pub(super) fn fill(&mut self, free_bytes: u64, beside_bytes: u64) {
        let lacking = self.full_bytes.saturating_sub(self.bytes);
        let more = free_bytes.saturating_sub(beside_bytes).min(lacking) / PIECE_BYTES * PIECE_BYTES;
        if more == 0 {
            return;
        }
        match allocate(&self.path, self.bytes + more) {
            Ok(()) => self.bytes += more,
            Err(error) => {
                warn!(path = %self.path.display(), %error, "no room can be kept for a full disk");
                // Do not try again with each write until the agent restarts.
                self.full_bytes = self.bytes;
            }
        }
    }
}

/// Makes a file that occupies so many bytes.
fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => write_zeros(file, bytes),
        Err(errno) => Err(errno.into()),
    }
}

/// For file systems that allocate only what is written.
fn write_zeros(mut file: File, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut file).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_reserve_shrinks_and_grows_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let taken = || dir.path().join(RESERVE_FILE).metadata().map_or(0, |metadata| metadata.blocks() * 512);
        let full = 4 << 20;
        let mut reserve = Reserve::of(dir.path(), full);
        assert!(!reserve.give(1), "there is none");
        reserve.fill(PIECE_BYTES + 99, 100);
        assert_eq!((reserve.bytes(), taken()), (0, 0), "it would leave too little");
        reserve.fill(PIECE_BYTES + 100, 100);
        assert_eq!((reserve.bytes(), taken()), (PIECE_BYTES, PIECE_BYTES), "what it can");
        reserve.fill(full, 100);
        assert!(reserve.bytes() == full && taken() >= full, "{}", taken());
        assert!(reserve.give(1) && reserve.give(PIECE_BYTES + 1));
        assert_eq!((reserve.bytes(), taken()), (PIECE_BYTES, PIECE_BYTES));
        let mut reserve = Reserve::of(dir.path(), full);
        assert_eq!(reserve.bytes(), PIECE_BYTES, "a restart finds it");
        assert!(reserve.give(u64::MAX >> 1) && !reserve.give(1));
        assert_eq!(taken(), 0);
        reserve.fill(u64::MAX, 100);
        assert!(taken() >= full);
    }
}
