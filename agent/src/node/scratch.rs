//! Where tasks' directories are, and what becomes of those that an earlier life of this agent left.
//!
//! Each life has a directory of its own in `scratch`, so that nothing has to be removed before the agent can start. What else
//! lies there an agent left that was killed: it is removed beside the work, at a low priority, for as long as that takes.
//! Should the agent end before that is done, the next one goes on with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use idlewood_worker::removal;

/// Added to the priority of the thread that removes: a tenth of what others get. The lowest would never get to it on a busy
/// machine, whose disk may be full.
const NICE: i32 = 10;

/// Makes this life's directory, and has the others removed.
///
/// # Errors
/// It cannot be made.
pub(super) fn begin(state_dir: &Path) -> io::Result<PathBuf> {
    let all = state_dir.join("scratch");
    fs::create_dir_all(&all)?;
    let mut number = 0_u64;
    let mine = loop {
        let mine = all.join(number.to_string());
        match fs::create_dir(&mine) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => break made.map(|()| mine)?,
        }
    };
    let started = others(&all, &mine).and_then(|others| {
        let remove = move || {
            if let Err(error) = rustix::process::nice(NICE) {
                tracing::debug!(%error, "removing has the priority of everything else");
            }
            remove_all(&others);
        };
        // It ends with the agent, whatever it is at.
        thread::Builder::new().name("scratch".to_owned()).spawn(remove)
    });
    if let Err(error) = started {
        tracing::warn!(%error, "what an earlier agent left in scratch stays until the next start");
    }
    Ok(mine)
}

/// Entries beside this life's directory: those of agents that were killed.
fn others(all: &Path, mine: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(all)?.map(|entry| entry.map(|entry| entry.path()));
    paths.filter(|path| path.as_ref().map_or(true, |path| path != mine)).collect()
}

/// A directory that cannot be removed is reported, and stays until the next start.
fn remove_all(others: &[PathBuf]) {
    if others.is_empty() {
        return;
    }
    let begin = Instant::now();
    tracing::info!(
        directories = others.len(),
        "removing what tasks of an earlier agent left: until then it takes room"
    );
    let mut failed = 0_usize;
    for path in others {
        if let Err(error) = removal::remove(path) {
            failed += 1;
            tracing::warn!(%error, ?path, "what tasks of an earlier agent left stays until the next start");
        }
    }
    let seconds = begin.elapsed().as_secs();
    tracing::info!(failed, seconds, "removed what tasks of an earlier agent left");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn wait_for_all_others(all: &Path, mine: &Path) {
        let begin = Instant::now();
        while !others(all, mine).expect("ours").is_empty() {
            assert!(begin.elapsed() < PATIENCE, "it is still there");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(mine.is_dir());
    }

    #[test]
    fn leftovers_of_an_earlier_life_never_prevent_a_start_and_are_removed() {
        let state = tempfile::tempdir().expect("a directory");
        let all = state.path().join("scratch");
        let first = begin(state.path()).expect("it is new");
        assert!(first.starts_with(&all) && first.is_dir());
        // 3,000 levels: the path has two hundred of them at a time.
        let chain = |name: &str| format!("{name}{}", "/d".repeat(199));
        fs::create_dir_all(first.join(chain("0"))).expect("ours");
        for number in 1..15 {
            fs::create_dir_all(first.join(chain(&number.to_string()))).expect("ours");
            let below = first.join(chain(&number.to_string())).join("below");
            fs::rename(first.join((number - 1).to_string()), below).expect("ours");
        }
        fs::write(all.join("a file"), "").expect("ours");
        let second = begin(state.path()).expect("whatever is there");
        assert_ne!(second, first);
        fs::write(second.join("mine"), "").expect("ours");
        wait_for_all_others(&all, &second);
        assert!(second.join("mine").exists());
        let third = begin(state.path()).expect("it is new");
        wait_for_all_others(&all, &third);
    }
}
