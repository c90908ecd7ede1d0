//! What tasks keep in `checkpoint/`: a directory for each task, not for each attempt, so that it outlives freezing, the
//! worker, and the agent.
//!
//! The worker makes it when a task can get at it, and holds a lock on it while the task runs (`worker/child`). It goes
//! when the task is over, and when this machine no longer holds the task.
//!
//! Left out: a checkpoint does not travel with a task that goes to another machine, and counts against no limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use idlewood_scheduler::BagId;
use idlewood_scheduler::ranges::IntervalSet;

use crate::worker::left::{self, Left};

/// How often what nobody goes on from is removed.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The directory with a bag's, which workers write to.
pub(super) fn of_bag(parent: &Path, bag: BagId) -> PathBuf {
    parent.join(hex::encode(bag.0))
}

/// Removes the checkpoints of tasks that are not `held` here. The directories of bags that are `in_use` stay. Blocks.
///
/// # Errors
/// When a directory cannot be read or removed; the others are.
pub(super) fn sweep(parent: &Path, held: &BTreeMap<BagId, IntervalSet>, in_use: &BTreeSet<BagId>) -> io::Result<()> {
    let bags = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bags => bags?,
    };
    let mut result = Ok(());
    for bag in bags {
        let bag = bag?.path();
        let id = id_of(&bag);
        let held = id.and_then(|id| held.get(&id));
        let Some(directory) = Left::open(&bag)? else { continue };
        for name in directory.names()? {
            let index = name.to_str().and_then(|name| name.parse().ok());
            if !index.is_some_and(|index| held.is_some_and(|held| held.contains(index))) {
                result = result.and(remove(&bag.join(name)));
            }
        }
        if held.is_none() && !id.is_some_and(|id| in_use.contains(&id)) {
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
    match Left::open(path)? {
        // A worker has it: for a task that has just come back, or it is about to die.
        Some(directory) if !directory.lock()? => Ok(()),
        Some(_) | None => left::remove(path),
    }
}

fn id_of(path: &Path) -> Option<BagId> {
    let mut id = [0; 32];
    hex::decode_to_slice(path.file_name()?.to_str()?, &mut id).ok()?;
    Some(BagId(id))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_is_held_is_kept_and_nothing_is_taken_from_a_worker() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let task = |bag: u8, index: u64| of_bag(parent.path(), BagId([bag; 32])).join(index.to_string());
        for (bag, index) in [(1, 3), (1, 4), (2, 0), (3, 0)] {
            fs::create_dir_all(task(bag, index)).expect("our directory");
            fs::write(task(bag, index).join("progress"), b"x").expect("our directory");
        }
        let held = BTreeMap::from([(BagId([1; 32]), IntervalSet::from(4..9))]);
        let worker = Left::open(&task(3, 0)).expect("readable").expect("it is there");
        assert!(worker.lock().expect("nobody has it"));
        sweep(parent.path(), &held, &BTreeSet::from([BagId([2; 32])])).expect("our directory");
        let there = [(1, 3), (1, 4), (2, 0), (3, 0)].map(|(bag, index)| task(bag, index).exists());
        assert_eq!(there, [false, true, false, true]);
        assert!(task(2, 0).parent().is_some_and(Path::exists), "a worker may have it open");
        drop(worker);
        sweep(parent.path(), &BTreeMap::new(), &BTreeSet::new()).expect("our directory");
        assert_eq!(fs::read_dir(parent.path()).expect("our directory").count(), 0);
        sweep(&parent.path().join("none"), &held, &BTreeSet::new()).expect("there is nothing");
        remove(&task(1, 4)).expect("it is gone already");
    }

    /// Whoever broke out of WebAssembly can put anything there.
    #[test]
    fn a_sweep_follows_nothing_and_waits_for_nobody() {
        let (parent, elsewhere) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        fs::write(elsewhere.path().join("letter"), "dear").expect("ours");
        let bag = of_bag(parent.path(), BagId([1; 32]));
        fs::create_dir(&bag).expect("ours");
        symlink(elsewhere.path(), bag.join("1")).expect("a link");
        symlink(elsewhere.path(), of_bag(parent.path(), BagId([2; 32]))).expect("a link");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = bag.join("2");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        fs::write(bag.join("no number"), "").expect("ours");
        sweep(parent.path(), &BTreeMap::new(), &BTreeSet::new()).expect("nothing hinders it");
        assert!(elsewhere.path().join("letter").exists());
        assert!(!bag.exists());
        fs::create_dir(&bag).expect("ours");
        symlink(elsewhere.path(), bag.join("1")).expect("a link");
        remove(&bag.join("1")).expect("the link goes");
        assert!(elsewhere.path().join("letter").exists() && !bag.join("1").is_symlink());
    }
}
