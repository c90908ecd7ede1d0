//! Files that a task has removed and still holds open: they occupy the disk as before, without a name.
//!
//! The system tells each process's open files, executable, working directory and mappings (`/proc/PID`). A mapping
//! alone does not tell the size of its file, except to root: otherwise it counts as over the limit, like all that
//! cannot be measured.
//!
//! Tasks have no other way to hold files: no sockets through which descriptors travel, and no shared memory of the
//! system (`confine`). Left out: mappings of a task that has broken out of WebAssembly.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::io::Errno;

use super::confine::SYSTEM;
use super::processes::tree_of;
use super::stop::Stop;

/// Most bytes read from lists of mappings at one look. Our choice: hundreds of thousands of mappings.
const MAPPINGS_BYTES_MAX: u64 = 64 << 20;

/// The processes that have a task's files open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    /// The worker's process.
    pub(super) pid: u32,
    /// The task runs in processes started by the worker, not in the worker itself.
    pub(super) native: bool,
}

/// Calls `found` once for each nameless file or directory that is held.
///
/// # Errors
/// The error of `found`, or that an unmeasurable file is held.
pub(super) fn each(holder: Holder, found: impl FnMut(&Stat) -> Result<(), Stop>) -> Result<(), Stop> {
    let processes = if holder.native { tree_of(holder.pid) } else { vec![holder.pid] };
    let mut look = Look { known: BTreeSet::new(), mappings_left: MAPPINGS_BYTES_MAX, found };
    // A newer version of the agent may have replaced it.
    look.known.extend(rustix::fs::stat("/proc/self/exe").map(|ours| ours.st_ino));
    for pid in processes {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let threads = match fs::read_dir(process.join("task")) {
            Ok(threads) => threads,
            Err(error) => {
                Look::<()>::is_gone(&process, &error)?;
                continue;
            }
        };
        let mut has_mappings = !holder.native;
        for thread in threads.flatten() {
            // Each thread may have a table of its own.
            look.at_open(&thread.path())?;
            // Threads share mappings, and one that has ended has none.
            if !has_mappings {
                has_mappings = look.at_mapped(&process, &thread.path())?;
            }
        }
    }
    Ok(())
}

struct Look<F> {
    /// Inodes counted already, or not the task's.
    known: BTreeSet<u64>,
    mappings_left: u64,
    found: F,
}

impl<F> Look<F> {
    /// Whether a process or thread cannot be read because it has ended, or is ending: it holds nothing for long. Any
    /// other one hides on purpose.
    fn is_gone(thread: &Path, error: &io::Error) -> Result<(), Stop> {
        if matches!(error.kind(), ErrorKind::NotFound) || error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) {
            return Ok(());
        }
        if error.kind() != ErrorKind::PermissionDenied {
            return Err(Stop::Hindered(io::Error::new(error.kind(), error.to_string())));
        }
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        // A process without memory executes nothing more.
        if status.lines().any(|line| line.starts_with("VmSize:")) {
            return Err(Stop::broke(
                "has a process that does not let itself be looked at, so that nobody knows what it takes of the disk",
            ));
        }
        Ok(())
    }
}

impl<F: FnMut(&Stat) -> Result<(), Stop>> Look<F> {
    /// Counts a thread's open files, executable and working directory.
    fn at_open(&mut self, thread: &Path) -> Result<(), Stop> {
        let open = match fs::read_dir(thread.join("fd")) {
            Ok(open) => open,
            Err(error) => return Look::<F>::is_gone(thread, &error),
        };
        let others = ["cwd", "exe"].map(|name| thread.join(name));
        for link in open.flatten().map(|entry| entry.path()).chain(others) {
            match rustix::fs::stat(&link) {
                Ok(stat) if stat.st_nlink == 0 && !self.known.contains(&stat.st_ino) => {
                    let leads_to = fs::read_link(&link).unwrap_or_default();
                    if !is_of_the_system(leads_to.as_os_str().as_bytes()) {
                        self.known.insert(stat.st_ino);
                        (self.found)(&stat)?;
                    }
                }
                Ok(_) => {}
                Err(errno) => Look::<F>::is_gone(thread, &errno.into())?,
            }
        }
        Ok(())
    }

    /// Counts a process's mappings, read from one of its threads. True if that thread could tell.
    fn at_mapped(&mut self, process: &Path, thread: &Path) -> Result<bool, Stop> {
        let list = match File::open(thread.join("maps")) {
            Ok(list) => list,
            Err(error) => {
                Look::<F>::is_gone(thread, &error)?;
                return Ok(false);
            }
        };
        let mut list = BufReader::new(list.take(self.mappings_left));
        let mut line = Vec::new();
        let mut could_tell = false;
        loop {
            line.clear();
            match list.read_until(b'\n', &mut line) {
                Ok(0) => return Ok(could_tell),
                Ok(bytes) => self.mappings_left = self.mappings_left.saturating_sub(bytes as u64),
                Err(error) => {
                    Look::<F>::is_gone(thread, &error)?;
                    return Ok(could_tell);
                }
            }
            could_tell = true;
            if self.mappings_left == 0 {
                return Err(Stop::broke("maps more files and memory than anybody can look at"));
            }
            if let Some((range, inode)) = nameless(&line).filter(|(_, inode)| !self.known.contains(inode)) {
                // For root alone.
                let Ok(stat) = rustix::fs::stat(process.join("map_files").join(range)) else {
                    return Err(Stop::broke(
                        "maps a file that it has removed and closed, so that nobody knows how much of the disk that takes: \
                         keep it open, or do not remove it",
                    ));
                };
                self.known.insert(inode);
                // A file may be named like that.
                if stat.st_nlink == 0 {
                    (self.found)(&stat)?;
                }
            }
        }
    }
}

/// From a line of `/proc/PID/maps` about a nameless file: the mapping's name in `map_files`, and the inode.
fn nameless(line: &[u8]) -> Option<(String, u64)> {
    let line = line.strip_suffix(b"\n").unwrap_or(line).strip_suffix(b" (deleted)")?;
    // The name comes last, and may contain blanks.
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let inode = std::str::from_utf8(fields.nth(3)?).ok()?.parse().ok()?;
    if is_of_the_system(fields.next()?.trim_ascii_start()) {
        return None;
    }
    let (begin, end) = range.split_once('-')?;
    let plain = |address: &str| u64::from_str_radix(address, 16).ok();
    Some((format!("{:x}-{:x}", plain(begin)?, plain(end)?), inode))
}

/// Whether it is memory, or a file that no task can have made: installed files may be replaced at any time.
fn is_of_the_system(path: &[u8]) -> bool {
    let is_below =
        |directory: &&str| path.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"));
    let is_memory = path.starts_with(b"/memfd:") || path.starts_with(b"/SYSV") || path == b"/dev/zero";
    is_memory || SYSTEM.iter().any(is_below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_removed_files_are_found() {
        let found = |line: &str| nameless(line.as_bytes());
        let line =
            "00400000-0041f000 r--p 00000000 fe:00 123456                            /state/work/a b (deleted)\n";
        assert_eq!(found(line), Some(("400000-41f000".to_owned(), 123_456)));
        let odd = "7f00-7f01 rw-s 00000000 fe:00 7 /state/work/a\\012b (deleted) (deleted)";
        assert_eq!(found(odd), Some(("7f00-7f01".to_owned(), 7)));
        for other in [
            "7f00-7f01 r--p 00000000 fe:00 123456 /state/work/file\n",
            "7f00-7f01 rw-s 00000000 00:01 1029 /dev/zero (deleted)\n",
            "7f00-7f01 rw-s 00000000 00:01 1029 /memfd:stdin (deleted)\n",
            "7f00-7f01 r-xp 00000000 fe:00 99 /usr/lib/libc.so.6 (deleted)\n",
            "7f00-7f01 rw-p 00000000 00:00 0 \n",
            "nonsense (deleted)\n",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
        assert!(found("7f00-7f01 r-xp 00000000 fe:00 99 /usrs/lib (deleted)").is_some());
    }
}
