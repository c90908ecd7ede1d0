//! How far a process says that it is, while it runs: a line for each iteration that it has done, in the file that `IDLEWOOD_PROGRESS` names.
//!
//! The file may contain anything, and links are not followed. Left out: progress of tasks other than those that are measured.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use idlewood_scheduler::rounds::PartialRun;
use idlewood_trust::manifest::Manifest;
use idlewood_worker::WORK;
use idlewood_worker::untrusted::UntrustedDir;
use tokio::task::JoinHandle;

/// The file, in the task's working directory. It is not part of the output.
pub(super) const PROGRESS: &str = ".idlewood-progress";

/// Whether a task is told of that file: a process of an application in rounds is.
pub(super) fn is_told(manifest: &Manifest, index: u64) -> bool {
    manifest.rounds.is_some() && !manifest.is_merge(index)
}

/// Pause between two looks. Our choice: a measured task runs for a minute.
const PAUSE: Duration = Duration::from_millis(250);
/// Most that is read at a time, and how often in one look.
const READ_BYTES_MAX: u64 = 256 << 10;
const READS_MAX: usize = 64;

#[derive(Debug, Default)]
struct Seen {
    bytes: u64,
    marks: Vec<PartialRun>,
    /// Without what it stood still.
    ran: Duration,
}

/// Looks at the file of a running task until it is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    seen: Arc<Mutex<Seen>>,
    stands_still: Arc<AtomicBool>,
    looking: JoinHandle<()>,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// Of the task that has begun in this attempt's directory.
    pub(super) fn of(directory: PathBuf) -> Self {
        let (seen, stands_still) = (Arc::<Mutex<Seen>>::default(), Arc::new(AtomicBool::new(false)));
        let (note, is_still) = (seen.clone(), stands_still.clone());
        let looking = tokio::spawn(async move {
            let mut before = Instant::now();
            loop {
                tokio::time::sleep(PAUSE).await;
                let now = Instant::now();
                if !is_still.load(Ordering::Relaxed) {
                    lock(&note).ran += now - before;
                }
                before = now;
                let (note, directory) = (note.clone(), directory.clone());
                let looked = tokio::task::spawn_blocking(move || look(&directory, &note)).await;
                if let Ok(Err(error)) = looked {
                    tracing::debug!(%error, "what a task says of its progress cannot be read");
                }
            }
        });
        Self { seen, stands_still, looking }
    }

    /// The task stands still from now on, or goes on.
    pub(super) fn set_still(&self, stands_still: bool) {
        self.stands_still.store(stands_still, Ordering::Relaxed);
    }

    /// The iterations that it had done, after how much of the processor time that it has taken in all.
    pub(super) fn marks(&self, cpu: Duration) -> Vec<PartialRun> {
        let seen = lock(&self.seen);
        let share = cpu.as_secs_f64() / seen.ran.as_secs_f64().max(PAUSE.as_secs_f64());
        let scaled = |mark: &PartialRun| PartialRun { took: mark.took.mul_f64(share), ..*mark };
        seen.marks.iter().map(scaled).collect()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// Takes note of the lines that have come. Blocks.
fn look(directory: &Path, seen: &Mutex<Seen>) -> io::Result<()> {
    let Some(work) = UntrustedDir::open(directory)?.and_then(|it| it.directory(WORK).transpose()).transpose()? else {
        return Ok(());
    };
    let (mut from, mut lines) = (lock(seen).bytes, 0);
    // Not more than that of what it writes meanwhile.
    for _ in 0..READS_MAX {
        let new = work.read_part(PROGRESS, from, READ_BYTES_MAX)?.unwrap_or_default();
        (from, lines) = (from + new.len() as u64, lines + new.iter().filter(|&&byte| byte == b'\n').count() as u64);
        if (new.len() as u64) < READ_BYTES_MAX {
            break;
        }
    }
    let mut seen = lock(seen);
    seen.bytes = from;
    if lines > 0 {
        let before = seen.marks.last().map_or(0, |mark| mark.iterations);
        let mark = PartialRun { iterations: before + lines, took: seen.ran };
        seen.marks.push(mark);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use super::*;

    #[test]
    fn each_line_is_an_iteration_and_is_counted_once() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let seen = Mutex::default();
        let after = |seconds: u64| {
            lock(&seen).ran = Duration::from_secs(seconds);
            look(root.path(), &seen).expect("our directory");
            lock(&seen).marks.last().map(|mark| (mark.iterations, mark.took.as_secs()))
        };
        assert_eq!(after(1), None, "it has not begun");
        let work = root.path().join(WORK);
        fs::create_dir(&work).expect("our directory");
        assert_eq!(after(2), None, "it has said nothing");
        let mut file = OpenOptions::new().create(true).append(true).open(work.join(PROGRESS)).expect("our file");
        file.write_all(b"one\ntwo\nthr").expect("our file");
        assert_eq!(after(3), Some((2, 3)));
        assert_eq!(after(4), Some((2, 3)));
        file.write_all(b"ee\n").expect("our file");
        assert_eq!(after(5), Some((3, 5)));
        assert_eq!(lock(&seen).marks.len(), 2);
        fs::remove_file(work.join(PROGRESS)).expect("our file");
        std::os::unix::fs::symlink("/etc/passwd", work.join(PROGRESS)).expect("a link");
        assert!(look(root.path(), &seen).map_or(true, |()| lock(&seen).marks.len() == 2), "a link is not followed");
    }
}
