//! How much of the disk a task takes.
//!
//! The system bounds the size of each file a process writes (RLIMIT_FSIZE), but not the sum of a user's files in a
//! directory: quotas need an administrator. So there are two walls: the worker has the system refuse to let one file
//! grow beyond the task's limit, and all of a task's files are added up at its end and, by the agent, now and then
//! while it runs.
//!
//! Left out: what a task takes between two looks, and what files that it removes again have taken.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit};

use super::Job;

/// What a file or directory takes besides its content: so that many empty ones count, too.
const ENTRY_BYTES: u64 = 4096;

/// What one task may take.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    work: PathBuf,
    checkpoint: Option<PathBuf>,
    limit_bytes: u64,
}

impl Allowance {
    pub(super) fn of(job: &Job) -> Self {
        Self { work: job.work_dir(), checkpoint: job.checkpoint.clone(), limit_bytes: job.disk_bytes }
    }

    /// The limit, if the task has gone over it. Looks at each of its files until then, which blocks.
    ///
    /// # Errors
    /// Some cannot be looked at.
    pub(super) fn exceeded(&self) -> io::Result<Option<u64>> {
        let mut room = self.limit_bytes;
        for directory in [Some(&self.work), self.checkpoint.as_ref()].into_iter().flatten() {
            match take(directory, room)? {
                Some(left) => room = left,
                None => return Ok(Some(self.limit_bytes)),
            }
        }
        Ok(None)
    }
}

/// What is left of `room` when everything in a directory is taken from it; `None` where it is not enough.
fn take(directory: &Path, mut room: u64) -> io::Result<Option<u64>> {
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            // The task is at work meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // Nested so deep that nobody can look at it by its name.
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return Ok(None),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // Of links, not of what they lead to.
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if error.kind() == io::ErrorKind::InvalidFilename => return Ok(None),
                metadata => metadata?,
            };
            let bytes = if metadata.is_file() { metadata.len() } else { 0 };
            let Some(left) = room.checked_sub(bytes.saturating_add(ENTRY_BYTES)) else { return Ok(None) };
            room = left;
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(Some(room))
}

/// Lets no file that this process writes grow beyond so many bytes: writing more fails with EFBIG. `None`: any size.
///
/// # Errors
/// The system refuses.
pub(super) fn limit_files(bytes_max: Option<u64>) -> io::Result<()> {
    Ok(rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes_max, maximum: None })?)
}

/// A write beyond that limit is to fail, not to end this process with a signal.
#[allow(unsafe_code)]
pub(super) fn outlive_large_files() -> io::Result<()> {
    // SAFETY: the signal is ignored; no code of ours runs when it comes.
    match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_and_entries_count_and_links_lead_nowhere() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (work, checkpoint) = (root.path().join("work"), root.path().join("checkpoint"));
        let exceeded = |limit_bytes| {
            let allowance = Allowance { work: work.clone(), checkpoint: Some(checkpoint.clone()), limit_bytes };
            allowance.exceeded().expect("our directory")
        };
        assert_eq!(exceeded(0), None, "there is nothing");
        fs::create_dir_all(work.join("deep")).expect("our directory");
        fs::write(work.join("deep/file"), vec![1; 1000]).expect("our directory");
        let bytes = 1000 + 2 * ENTRY_BYTES;
        assert_eq!((exceeded(bytes), exceeded(bytes - 1)), (None, Some(bytes - 1)));
        fs::create_dir(&checkpoint).expect("our directory");
        fs::write(checkpoint.join("file"), vec![1; 500]).expect("our directory");
        let bytes = bytes + 500 + ENTRY_BYTES;
        assert_eq!((exceeded(bytes), exceeded(bytes - 1)), (None, Some(bytes - 1)));
        std::os::unix::fs::symlink("/", work.join("out")).expect("our directory");
        std::os::unix::fs::symlink(&checkpoint, work.join("again")).expect("our directory");
        let bytes = bytes + 2 * ENTRY_BYTES;
        assert_eq!((exceeded(bytes), exceeded(bytes - 1)), (None, Some(bytes - 1)));
    }
}
