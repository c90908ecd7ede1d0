//! What the processes of a native task take, and what the system lets each of them take.
//!
//! The sums are read from `/proc`. Kernels say there what a process has of memory of its own, resident or swapped, and of
//! page tables. They do not say who holds memory that is mapped nowhere (shared anonymous memory, pages in pipes), so that
//! the programs get none of that ([`crate::confine`]). A process that shows less than others counts as over its limit.
//!
//! Left out: small kernel objects of which only the number is bounded (locks of files, signals that wait), and the content of
//! pipes, of which the open files allow 2,048 and a user's share of memory for pipes (64 MiB) bounds the most. A control
//! group, where there is one, counts them too ([`crate::group`]).

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit};

use crate::Job;
use crate::protocol::End;

/// Most processes and threads of a task at the same time. Our choice: a build or a pipeline has tens.
const TASKS_MAX: u64 = 256;
/// Where the system itself refuses more: later, so that too many are seen rather than refused.
pub(crate) const TASKS_SYSTEM_MAX: u64 = TASKS_MAX + 64;
/// Most files that one process may have open, and all of a task together. Our choice: a build has hundreds.
const OPEN_FILES_MAX: u64 = 256;
const OPEN_FILES_SUM_MAX: u64 = 4096;
/// What the kernel keeps of a mapping besides its pages.
const MAPPING_BYTES: u64 = 256;
/// Between two looks at a task's processes, longest and shortest.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Between two looks at the mappings of each process, too.
pub(super) const CLOSE_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How many times longer than a look took: they may cost a fiftieth of a processor.
const LOOK_INTERVAL_SHARE: u32 = 50;
/// How quickly a task can take memory. Our choice: what one core can fill with zeros.
const BYTES_PER_MICROSECOND: u64 = 4 << 10;

/// What a task takes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Processes and threads.
    tasks: u64,
    open_files: u64,
    /// Memory of their own, their page tables, and what the kernel keeps of their mappings where these were counted. What
    /// two processes share since one was forked counts for both.
    memory_bytes: u64,
    /// One of them does not show what it takes.
    hides: bool,
}

impl Taken {
    /// Looks at a process and its descendants; `closely` also at their mappings, which takes longer.
    pub(super) fn by(first: u32, closely: bool) -> Self {
        let mut taken = Self::default();
        tree_of(first).into_iter().for_each(|pid| taken.add(pid, closely));
        taken
    }

    fn add(&mut self, pid: u32, closely: bool) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let Ok(status) = fs::read_to_string(process.join("status")) else {
            // It has ended; or a system that hides processes (hidepid) hides it, since it may not be looked at.
            self.tasks += 1;
            self.hides |= is_alive(pid) && fs::metadata(&process).is_err();
            return;
        };
        self.tasks += number_of(&status, "Threads:").unwrap_or(1);
        // A first thread that has ended has no memory any more. The others have.
        let found = if holds_memory(&status) { Some((process, status)) } else { thread_with_memory(&process) };
        // None: the process is about to end, and has given it back.
        let Some((place, status)) = found else { return };
        let kib = MEMORY_FIELDS.iter().filter_map(|name| kib_of(&status, name)).fold(0, u64::saturating_add);
        self.memory_bytes = self.memory_bytes.saturating_add(kib.saturating_mul(1 << 10));
        self.open_files += self.seen(&place, |place| Ok(fs::read_dir(place.join("fd"))?.count() as u64));
        if closely {
            let mappings = self.seen(&place, |place| count_lines(File::open(place.join("maps"))?));
            self.memory_bytes = self.memory_bytes.saturating_add(mappings.saturating_mul(MAPPING_BYTES));
        }
    }

    /// A number that the system tells of a process. Where it may not, the process hides it, if it has memory after that, too: of
    /// one that is about to end the system tells nobody but root. Any other error: it has ended.
    fn seen(&mut self, process: &Path, look: impl Fn(&Path) -> io::Result<u64>) -> u64 {
        let told = look(process);
        if told.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            self.hides |= fs::read_to_string(process.join("status")).is_ok_and(|status| holds_memory(&status));
        }
        told.unwrap_or(0)
    }

    /// How the task ends for that, if it does.
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

    /// How long it may be left alone after a look that took so long: the sooner it could be over its limit the shorter.
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

/// What counts of `/proc/PID/status`. Of what a process maps from files nothing does: the system can drop it.
const MEMORY_FIELDS: [&str; 5] = ["RssAnon:", "RssShmem:", "HugetlbPages:", "VmSwap:", "VmPTE:"];

/// A number of KiB in the text of a `/proc/PID/status`.
pub(crate) fn kib_of(status: &str, name: &str) -> Option<u64> {
    number_of(status, name)
}

fn number_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

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

/// The descendants of a process, itself first; as far as they are seen, since they go on meanwhile. Not more than a few
/// hundred.
pub(crate) fn tree_of(root: u32) -> Vec<u32> {
    if !Path::new("/proc/thread-self/children").exists() {
        return tree_by_parents(root);
    }
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next).filter(|_| tree.len() as u64 <= TASKS_MAX) {
        next += 1;
        // One that has just ended has none.
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten().take(TASKS_MAX as usize) {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            tree.extend(children.split(' ').filter_map(|child| child.trim().parse::<u32>().ok()));
        }
    }
    tree
}

/// The same, of what all processes of the machine say of their parents: for kernels that do not list children
/// (`CONFIG_PROC_CHILDREN`).
fn tree_by_parents(root: u32) -> Vec<u32> {
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may have anything in it, and the state.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        Some((pid, parent))
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(parent_of);
    let all: Vec<(u32, u32)> = all.collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next).filter(|_| tree.len() as u64 <= TASKS_MAX) {
        next += 1;
        tree.extend(all.iter().filter(|(child, parent)| *parent == pid && *child != root).map(|(child, _)| child));
    }
    tree
}

/// The limits of each process, and in namespaces that of their number.
pub(super) fn limit(job: &Job, namespaces: bool) -> Result<(), Errno> {
    let set =
        |resource, most| rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    set(Resource::Data, job.memory_bytes)?;
    set(Resource::Nofile, OPEN_FILES_MAX)?;
    // What is locked the system cannot drop, and files that are mapped do not count.
    set(Resource::Memlock, 0)?;
    // One byte more than all files may take: what is refused a byte is over the limit.
    set(Resource::Fsize, job.disk_bytes.saturating_add(1))?;
    if namespaces {
        // Elsewhere it would count all that the user runs.
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

    /// Of a process whose program its user may not read the system tells nobody but root what it takes.
    #[test]
    fn who_may_not_be_looked_at_hides() {
        use std::os::unix::fs::PermissionsExt as _;

        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("program");
        fs::copy("/bin/sleep", &program).expect("there is one");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).expect("ours");
        let mut hidden = Command::new(&program).arg("1000").spawn().expect("it is executed");
        let mut shown = Command::new("sleep").arg("1000").spawn().expect("there is one");
        let (taken, other) = (Taken::by(hidden.id(), true), Taken::by(shown.id(), true));
        for child in [&mut hidden, &mut shown] {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
        assert_eq!(taken.hides, !rustix::process::geteuid().is_root(), "{taken:?}");
        assert!(!other.hides && other.open_files > 0 && other.memory_bytes > 0, "{other:?}");
        // Of one that has ended nothing is told, and nothing hidden.
        assert!(!Taken::by(shown.id(), true).hides);
    }
}
