//! Group sync of blobs: many blobs become durable with few syncs.
//!
//! A caller that wants a blob durable while a group is being synced joins the next group and waits. Of a small group
//! each file is synced, and then, once, each directory that names one of them; a large group syncs the whole file
//! system.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use super::error::{BlobError, failed};

/// Groups of so many files sync the whole file system. Our choice: syncing it also waits for unrelated writes.
const MANY: usize = 8;

#[derive(Debug, Default)]
struct State {
    /// Number of the group that is being gathered, and its files.
    gathering: u64,
    files: Vec<PathBuf>,
    /// Whether a group is being synced.
    is_busy: bool,
    /// Finished groups, by number: whether they are durable, and how many callers have yet to be told.
    over: Vec<(u64, bool, usize)>,
}

/// Files waiting for a sync, by group.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    changed: Condvar,
}

impl Syncs {
    /// Makes this file and its name below `dir` durable. Blocks.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) fn sync(&self, dir: &Path, file: PathBuf) -> Result<(), BlobError> {
        let own = file.clone();
        // If a group fails, each caller syncs its own file and returns its own error.
        if self.join(dir, file) { Ok(()) } else { sync_each(dir, &[own]) }
    }

    /// Waits until a group with this file was synced; returns whether it is durable.
    fn join(&self, dir: &Path, file: PathBuf) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let group = state.gathering;
        state.files.push(file);
        loop {
            if let Some(place) = state.over.iter().position(|(number, ..)| *number == group) {
                let (_, is_durable, left) = &mut state.over[place];
                let is_durable = *is_durable;
                *left -= 1;
                if *left == 0 {
                    state.over.swap_remove(place);
                }
                return is_durable;
            }
            if state.is_busy || state.gathering != group {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_busy = true;
            state.gathering += 1;
            let files = std::mem::take(&mut state.files);
            drop(state);
            let synced = if files.len() < MANY { sync_each(dir, &files) } else { sync_all(dir) };
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_busy = false;
            state.over.push((group, synced.is_ok(), files.len()));
            self.changed.notify_all();
        }
    }
}

fn sync_each(dir: &Path, files: &[PathBuf]) -> Result<(), BlobError> {
    let shards: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    let paths = files.iter().map(PathBuf::as_path).chain(shards).chain([dir]);
    for path in paths {
        File::open(path).and_then(|file| file.sync_all()).map_err(failed("sync", path))?;
    }
    Ok(())
}

fn sync_all(dir: &Path) -> Result<(), BlobError> {
    let synced = File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    synced.map_err(failed("sync the file system of", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_synced_and_a_missing_file_fails_only_its_own_caller() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = |number: u32| dir.path().join("ab").join(number.to_string());
        std::fs::create_dir(dir.path().join("ab")).expect("our directory");
        (0..64).filter(|number| number % 7 > 0).for_each(|number| {
            std::fs::write(file(number), [1; 100]).expect("our directory");
        });
        let syncs = Syncs::default();
        // Two of a group at least, one of which is missing: its caller gets an error, and the other file is durable.
        let results: Vec<bool> = std::thread::scope(|scope| {
            let sync = |number| {
                scope.spawn({
                    let (syncs, path, dir) = (&syncs, file(number), dir.path());
                    move || syncs.sync(dir, path).is_ok()
                })
            };
            let threads: Vec<_> = (0..64).map(sync).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        let state = syncs.state.lock().expect("nobody has panicked");
        assert!(state.over.is_empty() && state.files.is_empty() && !state.is_busy, "{state:?}");
        drop(state);
        for (number, is_durable) in (0..).zip(results) {
            // A large group is synced without looking at single files.
            assert!(is_durable || number % 7 == 0, "{number}");
        }
        assert!(syncs.sync(dir.path(), file(0)).is_err(), "alone");
    }
}
