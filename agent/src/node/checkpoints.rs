//! What tasks keep in `checkpoint/`: a directory for each task, not for each attempt, so that it outlives freezing, the
//! worker, and the agent.
//!
//! The worker makes it when a task can get at it, and holds a lock on it while the task runs (`worker/child`). It goes
//! when the task is over, and when this machine no longer holds the task.
//!
//! Left out: a checkpoint does not travel with a task that goes to another machine, and counts against no limit.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, TaskId};
use rustix::fs::FlockOperation;

/// How often what nobody goes on from is removed.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Where a task keeps what it may go on from.
pub(super) fn path(parent: &Path, task: TaskId) -> PathBuf {
    parent.join(hex::encode(task.bag.0)).join(task.index.to_string())
}

/// Removes the checkpoints of tasks that are not `held` here. Blocks.
///
/// # Errors
/// When a directory cannot be read or removed; the others are.
pub(super) fn sweep(parent: &Path, held: &BTreeMap<BagId, IntervalSet>) -> io::Result<()> {
    let bags = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bags => bags?,
    };
    let mut result = Ok(());
    for bag in bags {
        let bag = bag?.path();
        let held = id_of(&bag).and_then(|id| held.get(&id));
        for task in fs::read_dir(&bag)? {
            let task = task?.path();
            let index = task.file_name().and_then(|name| name.to_str()?.parse().ok());
            if !index.is_some_and(|index| held.is_some_and(|held| held.contains(index))) {
                result = result.and(remove(&task));
            }
        }
        if held.is_none() {
            // Not while something is left in it.
            match fs::remove_dir(&bag) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                removed => result = result.and(removed),
            }
        }
    }
    result
}

/// Removes the checkpoint of a task that is over, if it has one. Blocks.
///
/// # Errors
/// When it cannot be removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let directory = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        directory => directory?,
    };
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        // A worker has it: for a task that has just come back, or it is about to die.
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(()),
        Err(errno) => Err(errno.into()),
        Ok(()) => fs::remove_dir_all(path),
    }
}

fn id_of(path: &Path) -> Option<BagId> {
    let mut id = [0; 32];
    hex::decode_to_slice(path.file_name()?.to_str()?, &mut id).ok()?;
    Some(BagId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_held_is_kept_and_nothing_is_taken_from_a_worker() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let task = |bag: u8, index| path(parent.path(), TaskId { bag: BagId([bag; 32]), index });
        for (bag, index) in [(1, 3), (1, 4), (2, 0), (3, 0)] {
            fs::create_dir_all(task(bag, index)).expect("our directory");
            fs::write(task(bag, index).join("progress"), b"x").expect("our directory");
        }
        let held = BTreeMap::from([(BagId([1; 32]), IntervalSet::from(4..9))]);
        let worker = File::open(task(3, 0)).expect("it is there");
        rustix::fs::flock(&worker, FlockOperation::LockExclusive).expect("nobody has it");
        sweep(parent.path(), &held).expect("our directory");
        let there = [(1, 3), (1, 4), (2, 0), (3, 0)].map(|(bag, index)| task(bag, index).exists());
        assert_eq!(there, [false, true, false, true]);
        drop(worker);
        sweep(parent.path(), &BTreeMap::new()).expect("our directory");
        assert_eq!(fs::read_dir(parent.path()).expect("our directory").count(), 0);
        sweep(&parent.path().join("none"), &held).expect("there is nothing");
        remove(&task(1, 4)).expect("it is gone already");
    }
}
