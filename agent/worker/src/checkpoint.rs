//! A task's checkpoint directory while the task runs.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::end::{End, unable};
use crate::job::Job;
use crate::removal;

/// A task's checkpoint directory, locked against other workers until this is dropped, or this process dies.
pub(super) struct Checkpoint<'a> {
    path: &'a Path,
    // Closing it releases the lock.
    _directory: File,
}

impl<'a> Checkpoint<'a> {
    /// Makes and locks the checkpoint directory, if the program can use one.
    pub(super) fn of(job: &'a Job, uses_files: bool) -> Result<Option<Self>, End> {
        let Some(path) = job.checkpoint.as_deref().filter(|_| uses_files) else { return Ok(None) };
        let failed = |error: io::Error| unable(path, "keep the checkpoint", &error);
        fs::create_dir_all(path).map_err(failed)?;
        let directory = match File::open(path) {
            // An earlier attempt at a native program has removed the rights to it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                removal::open_up(path).and_then(|()| File::open(path))
            }
            opened => opened,
        };
        let directory = directory.map_err(failed)?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| failed(errno.into()))?;
        Ok(Some(Self { path, _directory: directory }))
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // Most tasks leave it empty.
        match fs::remove_dir(self.path) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                eprintln!("the checkpoint {} stays: {error}", self.path.display());
            }
            Ok(()) | Err(_) => {}
        }
    }
}
