//! What the system tells of processes in `/proc`: the tree of those that one has started, and numbers of each.

use std::fs;
use std::path::Path;

/// Most processes and threads of a task at the same time. Our choice: a build or a pipeline has tens.
pub(super) const TASKS_MAX: u64 = 256;
/// The system's own limit: higher, so that too many are noticed rather than refused.
pub(super) const TASKS_SYSTEM_MAX: u64 = TASKS_MAX + 64;

/// A number of KiB in the text of a `/proc/PID/status`.
pub(super) fn kib_of(status: &str, name: &str) -> Option<u64> {
    number_of(status, name)
}

/// A number in that text.
pub(super) fn number_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The descendants of a process, itself first, as far as they are seen, since they run meanwhile. Not more than a few
/// hundred.
pub(super) fn tree_of(root: u32) -> Vec<u32> {
    if !Path::new("/proc/thread-self/children").exists() {
        return tree_by_parents(root);
    }
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next).filter(|_| tree.len() as u64 <= TASKS_MAX) {
        next += 1;
        // It has just ended.
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten().take(TASKS_MAX as usize) {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            tree.extend(children.split(' ').filter_map(|child| child.trim().parse::<u32>().ok()));
        }
    }
    tree
}

/// The same from the parent of every process of the machine, for kernels that do not list children
/// (`CONFIG_PROC_CHILDREN`).
pub(super) fn tree_by_parents(root: u32) -> Vec<u32> {
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain anything, and the state.
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
