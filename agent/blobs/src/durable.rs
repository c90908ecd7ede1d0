//! Blobs on their way to the disk: many at a time with as few syncs as one.
//!
//! Whoever wants a blob durable while others are being synced waits, and goes with all others that wait. Of a small group
//! each file is synced, and then each directory that names some of them, once; of a large one the whole file system is.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use super::{BlobError, failed};

/// From so many files on the file system is synced as a whole. Our choice: what else is being written there costs time then.
const MANY: usize = 8;

#[derive(Debug, Default)]
struct State {
    /// The group that is gathered now, and its files.
    gathering: u64,
    files: Vec<PathBuf>,
    /// Whether a group is being synced.
    is_busy: bool,
    /// Groups that are over, by number: whether they are durable, and how many have yet to hear of it.
    over: Vec<(u64, bool, usize)>,
}

/// Who waits, and for what.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    changed: Condvar,
}

impl Syncs {
    /// Brings this file and its name below `dir` to the disk. Blocks.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn sync(&self, dir: &Path, file: PathBuf) -> Result<(), BlobError> {
        let own = file.clone();
        // Where a group fails, each of its files tells for itself.
        if self.join(dir, file) { Ok(()) } else { sync_each(dir, &[own]) }
    }

    /// Waits until a group with this file was synced: whether it is durable.
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
    fn many_at_once_are_synced_and_what_is_missing_is_told_to_its_own() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = |number: u32| dir.path().join("ab").join(number.to_string());
        std::fs::create_dir(dir.path().join("ab")).expect("our directory");
        (0..64).filter(|number| number % 7 > 0).for_each(|number| {
            std::fs::write(file(number), [1; 100]).expect("our directory");
        });
        let syncs = Syncs::default();
        // Two of a group at least, one of which is missing: it tells, and the other is durable.
        let told: Vec<bool> = std::thread::scope(|scope| {
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
        for (number, is_durable) in (0..).zip(told) {
            // Of a large group no single file is looked at.
            assert!(is_durable || number % 7 == 0, "{number}");
        }
        assert!(syncs.sync(dir.path(), file(0)).is_err(), "alone");
    }
}
