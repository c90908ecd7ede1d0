//! The limit on a task's disk space.
//!
//! The system limits the size of each file that a process writes (RLIMIT_FSIZE), but not the total in a directory:
//! quotas need an administrator. So there are two walls: the system refuses to let one file grow beyond the task's
//! limit; and all of the task's files are summed at its end and, by the agent, every second while it runs. Files that
//! it has removed and holds open count, too (`open_files`).
//!
//! Limits of number and depth bound the cost of a look, so that no task can make looks rare. If a task prevents its
//! files from being measured, it counts as over its limit; if the machine does, the next look measures them.
//!
//! Left out: space used only between two looks.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::end::End;
use crate::job::Job;
use crate::open_files::{self, Holder};
use crate::stop::Stop;

/// What a file or directory counts besides its content: so that many empty ones count, too.
const ENTRY_BYTES: u64 = 4096;

/// Most files and directories of a task at the same time. Our choice: several times what builds make, and a tenth of a
/// second to look at.
const ENTRIES_MAX: u64 = 1 << 16;
/// Deepest nesting of directories. Our choice: more than people and their tools use, with few descriptors.
const DEPTH_MAX: usize = 64;
/// Most files that a worker may have open for its task: a system's default.
const OPEN_FILES_MAX: u64 = 1024;

/// Neither follows a link nor blocks.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// What one task may use.
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

    /// How the task ends for its disk use, if it exceeds a limit; `holder` has its files open. Looks at each file,
    /// which blocks.
    ///
    /// # Errors
    /// When this machine prevents measuring.
    pub(super) fn exceeded(&self, holder: Option<Holder>) -> io::Result<Option<End>> {
        let mut tally = Tally { limit_bytes: self.limit_bytes, room: self.limit_bytes, entries_left: ENTRIES_MAX };
        let mut directories = [Some(&self.work), self.checkpoint.as_ref()].into_iter().flatten();
        let counted = directories.try_for_each(|directory| tally.add_all(directory));
        let counted = counted.and_then(|()| match holder {
            Some(holder) => open_files::each(holder, |stat| tally.add(stat)),
            None => Ok(()),
        });
        match counted {
            Ok(()) => Ok(None),
            Err(Stop::Verdict(end)) => Ok(Some(end)),
            Err(Stop::Hindered(error)) => Err(error),
        }
    }
}

/// The remainder of an allowance during a look.
struct Tally {
    limit_bytes: u64,
    room: u64,
    entries_left: u64,
}

impl Tally {
    /// Counts one file or directory.
    fn add(&mut self, stat: &Stat) -> Result<(), Stop> {
        let has_content = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let content = if has_content { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
        // A directory that had many entries stays large. For a file the system may allocate more than its size for a
        // while; tasks cannot ask for that (`confine`).
        let blocks = if has_content { 0 } else { u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) };
        let bytes = content.saturating_add(ENTRY_BYTES).max(blocks);
        let over = Stop::Verdict(End::OverDisk { limit_bytes: self.limit_bytes });
        self.room = self.room.checked_sub(bytes).ok_or(over)?;
        let too_many = || {
            Stop::broke(format!(
                "has too many files: more than the limit of {ENTRIES_MAX} files and directories; pack them into fewer"
            ))
        };
        self.entries_left = self.entries_left.checked_sub(1).ok_or_else(too_many)?;
        Ok(())
    }

    /// Counts everything in a directory, with one open directory per level.
    fn add_all(&mut self, directory: &Path) -> Result<(), Stop> {
        let first = match rustix::fs::open(directory, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            first => first.map_err(Stop::by)?,
        };
        let mut open = vec![read(first)?];
        while let Some(innermost) = open.last_mut() {
            let Some(entry) = innermost.read() else {
                open.pop();
                continue;
            };
            let entry = entry.map_err(Stop::by)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let parent = innermost.fd().map_err(Stop::by)?;
            // Counts links, not their targets.
            let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                // The task removed it meanwhile.
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(Stop::by)?,
            };
            self.add(&stat)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            let inner = match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                inner => inner.map_err(Stop::by)?,
            };
            if open.len() == DEPTH_MAX {
                return Err(Stop::broke(format!(
                    "nests directories too deep: more than the limit of {DEPTH_MAX} below each other"
                )));
            }
            open.push(read(inner)?);
        }
        Ok(())
    }
}

fn read(directory: OwnedFd) -> Result<Dir, Stop> {
    Dir::new(directory).map_err(Stop::by)
}

/// Limits the size of every file that this process writes: writing more fails with EFBIG. `None`: no limit.
///
/// # Errors
/// The system refuses.
pub(super) fn limit_files(bytes_max: Option<u64>) -> io::Result<()> {
    Ok(rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes_max, maximum: None })?)
}

/// Limits the number of files that this process has open, at which the agent looks every second.
///
/// # Errors
/// The system refuses.
pub(super) fn limit_open_files() -> io::Result<()> {
    let most = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(OPEN_FILES_MAX).min(OPEN_FILES_MAX);
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Makes a write beyond that limit fail instead of ending this process by a signal.
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
    use std::fs::{self, File};
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

    use super::*;

    /// The verdict on the files in this directory, with a limit.
    fn look(work: &Path, limit_bytes: u64, holder: Option<Holder>) -> Option<End> {
        let allowance = Allowance { work: work.to_owned(), checkpoint: None, limit_bytes };
        allowance.exceeded(holder).expect("nothing hinders it")
    }

    fn over(limit_bytes: u64) -> Option<End> {
        Some(End::OverDisk { limit_bytes })
    }

    fn is_trapped(end: Option<End>, words: &str) -> bool {
        matches!(end, Some(End::Trapped { message }) if message.contains(words))
    }

    #[test]
    fn contents_and_entries_count_and_links_lead_nowhere() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (work, checkpoint) = (root.path().join("work"), root.path().join("checkpoint"));
        let exceeded = |limit_bytes| {
            let allowance = Allowance { work: work.clone(), checkpoint: Some(checkpoint.clone()), limit_bytes };
            allowance.exceeded(None).expect("our directory")
        };
        assert_eq!(exceeded(0), None, "there is nothing");
        fs::create_dir_all(work.join("deep")).expect("our directory");
        fs::write(work.join("deep/file"), vec![1; 1000]).expect("our directory");
        let bytes = 1000 + 2 * ENTRY_BYTES;
        assert_eq!((exceeded(bytes), exceeded(bytes - 1)), (None, over(bytes - 1)));
        fs::create_dir(&checkpoint).expect("our directory");
        fs::write(checkpoint.join("file"), vec![1; 500]).expect("our directory");
        let bytes = bytes + 500 + ENTRY_BYTES;
        assert_eq!((exceeded(bytes), exceeded(bytes - 1)), (None, over(bytes - 1)));
        std::os::unix::fs::symlink("/", work.join("out")).expect("our directory");
        std::os::unix::fs::symlink(&checkpoint, work.join("again")).expect("our directory");
        let bytes = bytes + 2 * ENTRY_BYTES;
        assert_eq!((exceeded(bytes), exceeded(bytes - 1)), (None, over(bytes - 1)));
    }

    #[test]
    fn number_and_depth_have_limits_whatever_the_bytes() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let nested = |depth: usize| root.path().join("d/".repeat(depth));
        fs::create_dir_all(nested(DEPTH_MAX - 1)).expect("our directory");
        assert_eq!(look(root.path(), u64::MAX, None), None);
        fs::create_dir(nested(DEPTH_MAX)).expect("our directory");
        assert!(is_trapped(look(root.path(), u64::MAX, None), "too deep"));

        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = rustix::fs::open(root.path(), DIRECTORY, Mode::empty()).expect("ours");
        let make = |number: u64| {
            rustix::fs::mknodat(&directory, number.to_string(), FileType::RegularFile, Mode::RUSR, 0)
                .expect("it is new");
        };
        (0..ENTRIES_MAX).for_each(make);
        assert_eq!(look(root.path(), u64::MAX, None), None);
        make(ENTRIES_MAX);
        assert!(is_trapped(look(root.path(), u64::MAX, None), "too many files"));
    }

    /// Deeper than a path can express.
    #[test]
    fn depth_beyond_all_paths_is_too_deep() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let mut at = rustix::fs::open(root.path(), DIRECTORY, Mode::empty()).expect("ours");
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("it is new");
            at = rustix::fs::openat(&at, "d", DIRECTORY, Mode::empty()).expect("it is there");
        }
        assert!(is_trapped(look(root.path(), u64::MAX, None), "too deep"));
        super::super::removal::remove(root.path()).expect("ours");
    }

    #[test]
    fn a_directory_that_cannot_be_read_counts_as_over() {
        let root = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        let begin = || {
            if rustix::process::geteuid().is_root() {
                // For this thread alone.
                let nobody = rustix::fs::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            }
            let closed = root.path().join("closed");
            for mode in [0o000, 0o200, 0o300, 0o400] {
                fs::create_dir_all(closed.join("deep")).expect("ours");
                fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).expect("ours");
                assert!(is_trapped(look(root.path(), u64::MAX, None), "cannot be read"), "{mode:o}");
                assert!(is_trapped(look(&closed, u64::MAX, None), "cannot be read"), "{mode:o}");
                fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("ours");
            }
            assert_eq!(look(root.path(), u64::MAX, None), None);
        };
        std::thread::scope(|scope| scope.spawn(begin).join().expect("as it is to be"));
    }

    /// In this process, which stands for a worker.
    #[test]
    fn removed_files_held_open_count() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let me = Some(Holder { pid: std::process::id(), native: false });
        let options = || {
            let mut options = File::options();
            options.write(true).create_new(true).mode(0o600);
            options
        };
        let held = options().open(root.path().join("held")).expect("ours");
        held.set_len(10 << 30).expect("ours");
        assert_eq!(look(root.path(), 1 << 30, None), over(1 << 30));
        fs::remove_file(root.path().join("held")).expect("ours");
        // Other tests of this process hold little.
        assert_eq!((look(root.path(), 1 << 30, None), look(root.path(), 1 << 30, me)), (None, over(1 << 30)));
        drop(held);
        assert_eq!(look(root.path(), 1 << 30, me), None);
    }
}
