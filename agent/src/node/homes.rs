//! The directories of bags that have tasks here: workers that run a bag's tasks reach these, and no other bag's.
//!
//! | directory | is | workers may |
//! |---|---|---|
//! | `scratch/<life>/<bag>-<number>/in` | inputs, hard links to blobs | read |
//! | `scratch/<life>/<bag>-<number>/out` | a directory for each attempt | write |
//! | `checkpoints/<bag>` | a directory for each task (see `checkpoints`) | write |
//!
//! A bag's first two come anew when none of its tasks has been here for a while, under another number. `scratch` says what a
//! life is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, TaskId};
use idlewood_worker::{Reach, removal};

use super::checkpoints;

/// Homes that stay when no task has anything in them: whoever comes next finds a worker for it. Our choice.
const IDLE_MAX: usize = 16;

/// The directories of one bag. Dropping it removes what is in scratch, which blocks for a moment.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    checkpoints: PathBuf,
    pub(super) reach: Arc<Reach>,
    count: AtomicU64,
}

impl Home {
    fn make(scratch: &Path, checkpoints: &Path, bag: BagId) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}", hex::encode(bag.0), COUNT.fetch_add(1, Ordering::Relaxed));
        let (path, checkpoints) = (scratch.join(name), checkpoints::of_bag(checkpoints, bag));
        let (readable, writable) = (vec![path.join("in")], vec![path.join("out"), checkpoints.clone()]);
        readable.iter().chain(&writable).try_for_each(fs::create_dir_all)?;
        let reach = Arc::new(Reach { readable, writable });
        Ok(Self { path, checkpoints, reach, count: AtomicU64::new(0) })
    }

    /// A directory for an attempt at a task, which its worker makes. Unlike any that an attempt that was given up may still
    /// be removing.
    pub(super) fn attempt(&self, task: TaskId) -> PathBuf {
        self.path.join("out").join(format!("{}-{}", task.index, self.next()))
    }

    /// A directory for inputs.
    pub(super) fn inputs(&self) -> PathBuf {
        self.path.join("in").join(self.next().to_string())
    }

    /// The checkpoint directory of a task.
    pub(super) fn checkpoint(&self, task: TaskId) -> PathBuf {
        self.checkpoints.join(task.index.to_string())
    }

    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = removal::remove(&self.path) {
            tracing::warn!(%error, directory = %self.path.display(), "cannot remove a bag's directory");
        }
    }
}

/// The homes of all bags that have tasks here, and of a few that had.
#[derive(Debug)]
pub(super) struct Homes {
    scratch: PathBuf,
    checkpoints: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    homes: BTreeMap<BagId, Weak<Home>>,
    /// Those used last, the latest last.
    recent: VecDeque<Arc<Home>>,
}

impl Homes {
    pub(super) fn new(scratch: PathBuf, checkpoints: PathBuf) -> Self {
        Self { scratch, checkpoints, known: Mutex::default() }
    }

    /// The home of a bag, made if need be. Blocks.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn of(&self, bag: BagId) -> io::Result<Arc<Home>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let home = match known.homes.get(&bag).and_then(Weak::upgrade) {
            Some(home) => home,
            None => Arc::new(Home::make(&self.scratch, &self.checkpoints, bag)?),
        };
        known.homes.retain(|_, home| home.strong_count() > 0);
        known.homes.insert(bag, Arc::downgrade(&home));
        known.recent.retain(|other| !Arc::ptr_eq(other, &home));
        known.recent.push_back(home.clone());
        let gone = if known.recent.len() > IDLE_MAX { known.recent.pop_front() } else { None };
        drop(known);
        drop(gone);
        Ok(home)
    }

    /// Where all homes are: out of workers' reach.
    pub(super) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Where all bags' checkpoints are.
    pub(super) fn checkpoints(&self) -> &Path {
        &self.checkpoints
    }

    /// Removes the checkpoints of tasks that are not `held` here. Blocks.
    ///
    /// # Errors
    /// As [`checkpoints::sweep`].
    pub(super) fn sweep_checkpoints(&self, held: &BTreeMap<BagId, IntervalSet>) -> io::Result<()> {
        checkpoints::sweep(&self.checkpoints, held, &self.bags())
    }

    /// The bags that have one.
    fn bags(&self) -> BTreeSet<BagId> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.homes.iter().filter(|(_, home)| home.strong_count() > 0).map(|(&bag, _)| bag).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).expect("our directory").count()
    }

    #[test]
    fn bags_share_no_directory_and_homes_go_when_nobody_is_there() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (scratch, checkpoints) = (root.path().join("scratch"), root.path().join("checkpoints"));
        let homes = Homes::new(scratch.clone(), checkpoints.clone());
        let bag = |number: usize| BagId([number as u8; 32]);
        let (first, again) = (homes.of(bag(1)).expect("made"), homes.of(bag(1)).expect("there"));
        assert!(Arc::ptr_eq(&first, &again));
        let other = homes.of(bag(2)).expect("made");
        let all = |home: &Home| [home.reach.readable.clone(), home.reach.writable.clone()].concat();
        for path in all(&other) {
            assert!(path.is_dir());
            assert!(all(&first).iter().all(|own| !own.starts_with(&path) && !path.starts_with(own)), "{path:?}");
        }
        let task = TaskId { bag: bag(1), index: 7 };
        let (one, two) = (first.attempt(task), first.attempt(task));
        assert_ne!(one, two);
        assert!(first.reach.writable.contains(&one.parent().expect("it has one").to_owned()));
        assert!(first.reach.readable.contains(&first.inputs().parent().expect("it has one").to_owned()));
        assert!(first.reach.writable.contains(&first.checkpoint(task).parent().expect("it has one").to_owned()));
        fs::create_dir_all(one.join("work")).expect("our directory");
        let path = first.path.clone();
        drop((again, other));
        for number in 3..3 + IDLE_MAX {
            homes.of(bag(number)).expect("made");
        }
        assert_eq!((names(&scratch), homes.bags().len()), (IDLE_MAX + 1, IDLE_MAX + 1), "the second is gone");
        assert!(homes.bags().contains(&bag(1)) && path.exists(), "somebody has it");
        drop(first);
        assert!(!path.exists());
        let later = homes.of(bag(1)).expect("made");
        assert_ne!(later.path, path, "who has the old one open does not see the new one");
    }
}
