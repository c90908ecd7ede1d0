//! What an agent's state directory holds that nothing needs: compiled programs that can be compiled again, what tasks of agents left
//! that were killed, and damaged files of the store that were set aside.
//!
//! Files of bags (blobs) are not looked at here: only the running agent knows which of them are needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use idlewood_worker::removal;
use serde::Serialize;

/// A compiled program that was used so recently is left to a running agent, which may be about to give it to a worker.
const IN_USE: Duration = Duration::from_secs(60);

/// Number and size of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// Compiled programs; removed unless `dry_run`. Those that a running agent has just used stay.
///
/// # Errors
/// When the directory cannot be read, or a file cannot be removed.
pub(crate) fn compiled(state_dir: &Path, agent_runs: bool, dry_run: bool) -> io::Result<Tally> {
    let mut tally = Tally::default();
    for path in entries(&state_dir.join("modules"))? {
        let metadata = fs::symlink_metadata(&path)?;
        let age = metadata.modified().ok().and_then(|used| SystemTime::now().duration_since(used).ok());
        if metadata.is_file() && (!agent_runs || age.is_some_and(|age| age >= IN_USE)) {
            tally.add(metadata.len());
            if !dry_run {
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(tally)
}

/// Directories of tasks whose agents have ended; removed unless `dry_run`. Only while no agent runs: it removes them by itself.
///
/// # Errors
/// As [`compiled`].
pub(crate) fn scratch(state_dir: &Path, dry_run: bool) -> io::Result<Tally> {
    remove_all(&entries(&state_dir.join("scratch"))?, dry_run)
}

/// Damaged files of the store that were set aside; removed unless `dry_run`.
///
/// # Errors
/// As [`compiled`].
pub(crate) fn damaged(kept: &[PathBuf], dry_run: bool) -> io::Result<Tally> {
    remove_all(kept, dry_run)
}

fn remove_all(paths: &[PathBuf], dry_run: bool) -> io::Result<Tally> {
    let mut tally = Tally::default();
    for path in paths {
        measure(path, &mut tally)?;
        if !dry_run {
            removal::remove(path)?;
        }
    }
    Ok(tally)
}

/// Adds the files of a tree, following no link.
fn measure(path: &Path, tally: &mut Tally) -> io::Result<()> {
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        // A task made it: it may be anything, and need not be readable.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            open.extend(entries(&path).unwrap_or_default());
        } else {
            tally.add(metadata.len());
        }
    }
    Ok(())
}

/// What is in a directory; nothing if there is none.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_needs_is_counted_and_then_removed() {
        let state = tempfile::tempdir().expect("a directory");
        let write = |path: &str, bytes: usize| {
            let path = state.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("ours");
            fs::write(&path, vec![0; bytes]).expect("ours");
            path
        };
        let (used, unused) = (write("modules/used", 10), write("modules/unused", 20));
        let long_ago = SystemTime::now() - 2 * IN_USE;
        fs::File::options().write(true).open(&unused).and_then(|file| file.set_modified(long_ago)).expect("ours");
        write("scratch/0/task/file", 30);
        write("scratch/1/file", 40);
        let aside = write("store.damaged-1/db", 50).parent().expect("it has one").to_owned();
        for dry_run in [true, false] {
            assert_eq!(compiled(state.path(), true, dry_run).expect("ours"), Tally { files: 1, bytes: 20 });
            assert_eq!(scratch(state.path(), dry_run).expect("ours"), Tally { files: 2, bytes: 70 });
            assert_eq!(damaged(std::slice::from_ref(&aside), dry_run).expect("ours"), Tally { files: 1, bytes: 50 });
            assert_eq!(unused.exists() && aside.exists(), dry_run);
        }
        assert!(used.exists(), "an agent may be about to use it");
        assert_eq!(compiled(state.path(), false, false).expect("ours"), Tally { files: 1, bytes: 10 });
        assert!(entries(&state.path().join("scratch")).expect("ours").is_empty() && !used.exists());
        assert_eq!(scratch(&state.path().join("none"), false).expect("it is empty"), Tally::default());
    }
}
