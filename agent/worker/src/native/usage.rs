//! Resource use of a native task's processes, and the system's limits for each of them.
//!
//! The sums are read from `/proc`, where kernels tell a process's own memory, resident or swapped, and its page tables.
//! They do not tell who holds memory that is mapped nowhere (shared anonymous memory, pages in pipes), so programs get
//! none of that ([`crate::confine`]). A process that shows less than others counts as over its limit.
//!
//! Left out: small kernel objects of which only the number is bounded (file locks, pending signals), and the content of
//! pipes, bounded by the open files (2,048 pipes) and a user's share of memory for pipes (64 MiB). A control group, if
//! there is one, counts them, too ([`crate::group`]).

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit};

use crate::end::End;
use crate::job::Job;
use crate::processes::{TASKS_MAX, TASKS_SYSTEM_MAX, kib_of, number_of, tree_of};

/// Most files that one process may have open, and all of a task together. Our choice: a build has hundreds.
const OPEN_FILES_MAX: u64 = 256;
const OPEN_FILES_SUM_MAX: u64 = 4096;
/// Kernel memory of a mapping besides its pages.
const MAPPING_BYTES: u64 = 256;
/// Longest and shortest interval between looks at a task's processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Interval between looks at the mappings of each process, too.
pub(super) const CLOSE_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval is at least so many times a look's duration: looks may cost a fiftieth of a processor.
const LOOK_INTERVAL_SHARE: u32 = 50;
/// How quickly a task can allocate memory. Our choice: what one core can fill with zeros.
const BYTES_PER_MICROSECOND: u64 = 4 << 10;

/// The resource use of a task.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Processes and threads.
    tasks: u64,
    open_files: u64,
    /// Their own memory, page tables, and kernel memory of mappings if those were counted. Memory that a fork shares
    /// counts for both processes.
    memory_bytes: u64,
    /// A process hides its use.
    hides: bool,
}

impl Usage {
    /// Measures a process and its descendants; `closely` also their mappings, which takes longer.
    pub(super) fn by(first: u32, closely: bool) -> Self {
        let mut taken = Self::default();
        tree_of(first).into_iter().for_each(|pid| taken.add(pid, closely));
        taken
    }

    fn add(&mut self, pid: u32, closely: bool) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let Ok(status) = fs::read_to_string(process.join("status")) else {
            // It has ended; or, as it may not be looked at, a system with hidepid hides it.
            self.tasks += 1;
            self.hides |= is_alive(pid) && fs::metadata(&process).is_err();
            return;
        };
        self.tasks += number_of(&status, "Threads:").unwrap_or(1);
        // A first thread that has ended has no memory any more; the others have.
        let found = if holds_memory(&status) { Some((process, status)) } else { thread_with_memory(&process) };
        // None: the process is ending, and has released its memory.
        let Some((place, status)) = found else { return };
        let kib = MEMORY_FIELDS.iter().filter_map(|name| kib_of(&status, name)).fold(0, u64::saturating_add);
        self.memory_bytes = self.memory_bytes.saturating_add(kib.saturating_mul(1 << 10));
        self.open_files += self.seen(&place, |place| Ok(fs::read_dir(place.join("fd"))?.count() as u64));
        if closely {
            let mappings = self.seen(&place, |place| count_lines(File::open(place.join("maps"))?));
            self.memory_bytes = self.memory_bytes.saturating_add(mappings.saturating_mul(MAPPING_BYTES));
        }
    }

    /// A number that the system tells of a process. If the system refuses, and the process still has memory afterwards,
    /// the process hides it: of a process that is ending the system tells only root. Any other error: it has ended.
    fn seen(&mut self, process: &Path, look: impl Fn(&Path) -> io::Result<u64>) -> u64 {
        let told = look(process);
        if told.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            self.hides |= fs::read_to_string(process.join("status")).is_ok_and(|status| holds_memory(&status));
        }
        told.unwrap_or(0)
    }

    /// How the task ends for its use, if it exceeds a limit.
    pub(super) fn verdict(&self, job: &Job) -> Option<End> {
        let message = if self.tasks > TASKS_MAX {
            format!("had more than {TASKS_MAX} processes and threads at the same time")
        } else if self.memory_bytes > job.memory_bytes {
            too_little_memory(job)
        } else if self.open_files > OPEN_FILES_SUM_MAX {
            format!("had more than {OPEN_FILES_SUM_MAX} files open at the same time")
        } else if self.hides {
            "has a process that does not show what it takes: run no program that its user may not read".to_owned()
        } else {
            return None;
        };
        Some(End::Trapped { message })
    }

    /// The pause after a look that took so long: the sooner the task could exceed its limit, the shorter.
    pub(super) fn next_look(&self, job: &Job, took: Duration) -> Duration {
        let room = job.memory_bytes.saturating_sub(self.memory_bytes);
        let least = LOOK_INTERVAL_MIN.max(took * LOOK_INTERVAL_SHARE).min(LOOK_INTERVAL);
        Duration::from_micros(room / BYTES_PER_MICROSECOND).clamp(least, LOOK_INTERVAL)
    }
}

pub(super) fn too_little_memory(job: &Job) -> String {
    let limit = job.memory_bytes >> 20;
    format!("needs more memory than its limit of {limit} MiB: submit the bag with a larger --memory")
}

/// Fields of `/proc/PID/status` that count. Mapped files do not: the system can drop them.
const MEMORY_FIELDS: [&str; 5] = ["RssAnon:", "RssShmem:", "HugetlbPages:", "VmSwap:", "VmPTE:"];

fn holds_memory(status: &str) -> bool {
    kib_of(status, "RssAnon:").is_some()
}

fn thread_with_memory(process: &Path) -> Option<(PathBuf, String)> {
    let threads = fs::read_dir(process.join("task")).ok()?.flatten().take(TASKS_MAX as usize);
    let mut all =
        threads.filter_map(|thread| Some((thread.path(), fs::read_to_string(thread.path().join("status")).ok()?)));
    all.find(|(_, status)| holds_memory(status))
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(rustix::process::test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

fn count_lines(mut file: File) -> io::Result<u64> {
    let (mut piece, mut lines) = (vec![0; 64 << 10], 0);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(lines),
            bytes => lines += piece[..bytes].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

/// Sets the limits of each process, and in namespaces that of their number.
pub(super) fn limit(job: &Job, namespaces: bool) -> Result<(), Errno> {
    let set =
        |resource, most| rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    set(Resource::Data, job.memory_bytes)?;
    set(Resource::Nofile, OPEN_FILES_MAX)?;
    // The system cannot drop locked memory, and mapped files do not count.
    set(Resource::Memlock, 0)?;
    // One byte more than all files may take: a task that is refused a byte has exceeded the limit.
    set(Resource::Fsize, job.disk_bytes.saturating_add(1))?;
    if namespaces {
        // Elsewhere it would count all processes of the user.
        set(Resource::Nproc, TASKS_SYSTEM_MAX)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::time::Instant;

    use rustix::process::Signal;

    use super::*;
    use crate::processes::tree_by_parents;

    #[test]
    fn descendants_are_found_with_and_without_lists_of_children() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & (sleep 60; true) & wait"])
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        let begun = Instant::now();
        let sorted = |mut tree: Vec<u32>| {
            tree.sort_unstable();
            tree
        };
        // The shell, two of its children, and one of the second's.
        while tree_of(shell.id()).len() < 4 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (listed, by_parents) = (sorted(tree_of(shell.id())), sorted(tree_by_parents(shell.id())));
        rustix::process::kill_process_group(Pid::from_child(&shell), Signal::KILL).expect("it is ours");
        shell.wait().expect("it is ours");
        assert_eq!(listed.len(), 4);
        assert_eq!(by_parents, listed);
    }

    /// The system tells only root the memory use of a process whose program its user may not read.
    #[test]
    fn a_process_that_may_not_be_read_hides() {
        use std::os::unix::fs::PermissionsExt as _;

        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("program");
        fs::copy("/bin/sleep", &program).expect("there is one");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).expect("ours");
        let mut hidden = Command::new(&program).arg("1000").spawn().expect("it is executed");
        let mut shown = Command::new("sleep").arg("1000").spawn().expect("there is one");
        let (taken, other) = (Usage::by(hidden.id(), true), Usage::by(shown.id(), true));
        for child in [&mut hidden, &mut shown] {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
        assert_eq!(taken.hides, !rustix::process::geteuid().is_root(), "{taken:?}");
        assert!(!other.hides && other.open_files > 0 && other.memory_bytes > 0, "{other:?}");
        // An ended process does not count as hiding its use.
        assert!(!Usage::by(shown.id(), true).hides);
    }
}
