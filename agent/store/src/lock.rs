//! The lock of a state directory: one agent at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::disk::failed;
use super::error::StoreError;

/// Name of the lock file in the state directory.
const LOCK_FILE: &str = "lock";

/// How long another process may keep a lock before it counts as running.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The lock of a state directory, held while this value lives. The system releases it when the process ends, however it
/// ends.
#[derive(Debug)]
pub struct StateLock {
    dir: PathBuf,
    // Closing the file releases the lock.
    _file: File,
}

impl StateLock {
    /// Locks `dir` (created if missing, 0700) for this process.
    ///
    /// # Errors
    /// When another agent holds it, or the directory cannot be written.
    pub fn acquire(dir: &Path) -> Result<Self, StoreError> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("create", dir))?;
        let path = dir.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        match lock_within(&file, LOCK_TIMEOUT) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let holder = match (&file).take(64).read_to_string(&mut text) {
                    Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
                    Ok(_) | Err(_) => "it did not say which".to_owned(),
                };
                return Err(StoreError::Locked { dir: dir.to_owned(), holder });
            }
            Err(errno) => return Err(failed("lock", &path)(errno.into())),
        }
        let holder = format!("process {}\n", std::process::id());
        file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(failed("write", &path))?;
        Ok(Self { dir: dir.to_owned(), _file: file })
    }

    /// The holder of the lock on `dir`, as it names itself: `process 123`; `None` if it is free or cannot be tested.
    pub fn holder(dir: &Path) -> Option<String> {
        let file = File::open(dir.join(LOCK_FILE)).ok()?;
        // Closing the file releases this shared lock at once; an agent that tries meanwhile waits longer than that.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Ok(()) | Err(_) => return None,
        }
        let mut text = String::new();
        file.take(64).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    /// The directory that is locked.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Locks a file, and waits for it for a while: until a forked child process executes its own program, it holds its
/// parent's locks.
pub(super) fn lock_within(file: &File, timeout: Duration) -> Result<(), rustix::io::Errno> {
    let deadline = Instant::now() + timeout;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}
