//! What a running task has written so far, read from its worker's memory and files, which may contain anything.

use std::io;
use std::path::PathBuf;

use idlewood_net::{LIVE_BYTES_MAX, LivePlace, LiveTask};
use idlewood_worker::untrusted::UntrustedDir;
use idlewood_worker::{STDERR, STDOUT, Streams};

/// Least that one stream of one task gets of an answer, however many run.
const STREAM_BYTES_LEAST: usize = 1 << 10;

/// Where what a task has written is.
#[derive(Debug)]
pub(super) struct Written {
    /// Of each stream that is in no file yet.
    pub(super) in_memory: Streams,
    /// The attempt's directory.
    pub(super) directory: PathBuf,
}

/// A running task, and where its output is.
#[derive(Debug)]
pub(super) struct Running {
    /// Where the asker is to go on; at the beginning if it knows another run.
    pub(super) place: LivePlace,
    pub(super) attempt: u32,
    pub(super) stands_still: bool,
    pub(super) written: Written,
}

/// Reads what these tasks have written behind the places given, each its share of [`LIVE_BYTES_MAX`]. Blocks.
pub(super) fn read(tasks: Vec<Running>) -> Vec<LiveTask> {
    let share = (LIVE_BYTES_MAX / (2 * tasks.len().max(1))).max(STREAM_BYTES_LEAST);
    let mut left = LIVE_BYTES_MAX;
    let read_one = |Running { place, attempt, stands_still, written }: Running| {
        let mut stream = |name, in_memory: &[u8], from| {
            let most = share.min(left);
            let bytes = part(&written, name, in_memory, from, most).unwrap_or_else(|error| {
                tracing::debug!(%error, "what a task writes cannot be read");
                Vec::new()
            });
            left -= bytes.len();
            bytes
        };
        let stdout = stream(STDOUT, &written.in_memory.stdout, place.stdout);
        let stderr = stream(STDERR, &written.in_memory.stderr, place.stderr);
        LiveTask { place, attempt, stands_still, stdout, stderr }
    };
    tasks.into_iter().map(read_one).collect()
}

/// What is in the file; if nothing is, what is in memory: the file has all bytes once it has any.
fn part(written: &Written, name: &str, in_memory: &[u8], from: u64, most: usize) -> io::Result<Vec<u8>> {
    if let Some(directory) = UntrustedDir::open(&written.directory)?
        && let Some(bytes) = directory.read_part(name, from, most as u64)?
        && !bytes.is_empty()
    {
        return Ok(bytes);
    }
    let rest = usize::try_from(from).ok().and_then(|from| in_memory.get(from..)).unwrap_or_default();
    Ok(rest[..rest.len().min(most)].to_vec())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn running(directory: PathBuf, stdout: &[u8], from: u64) -> Running {
        let in_memory = Streams { stdout: stdout.to_vec(), stderr: Vec::new() };
        let place = LivePlace { index: 3, run: 9, stdout: from, stderr: 0 };
        Running { place, attempt: 1, stands_still: false, written: Written { in_memory, directory } }
    }

    #[test]
    fn output_is_read_where_it_is_and_each_byte_once() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let nowhere = root.path().join("not made");
        let stdout = |task: Running| read(vec![task]).remove(0).stdout;
        assert_eq!(stdout(running(nowhere.clone(), b"0123", 0)), b"0123");
        assert_eq!(stdout(running(nowhere.clone(), b"0123", 3)), b"3");
        assert_eq!(stdout(running(nowhere, b"0123", 7)), b"", "it was moved to a file a moment ago");
        let directory = root.path().join("attempt");
        fs::create_dir(&directory).expect("our directory");
        fs::write(directory.join(STDOUT), "").expect("our directory");
        assert_eq!(stdout(running(directory.clone(), b"01", 0)), b"01", "it is about to be moved");
        fs::write(directory.join(STDOUT), "0123456").expect("our directory");
        assert_eq!(stdout(running(directory.clone(), b"01", 1)), b"123456");
        assert_eq!(stdout(running(directory, b"", 7)), b"");
    }

    /// Whoever broke out of their sandbox would have the agent read what they cannot, for whoever asks.
    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        fs::write(root.path().join("secret"), "secret").expect("our directory");
        let directory = root.path().join("attempt");
        fs::create_dir(&directory).expect("our directory");
        symlink(root.path().join("secret"), directory.join(STDOUT)).expect("a link");
        fs::hard_link(root.path().join("secret"), directory.join(STDERR)).expect("a link");
        let task = read(vec![running(directory, b"", 0)]).remove(0);
        assert_eq!((task.stdout, task.stderr), (Vec::new(), Vec::new()));
        symlink(root.path(), root.path().join("linked")).expect("a link");
        fs::write(root.path().join(STDOUT), "secret").expect("our directory");
        assert_eq!(read(vec![running(root.path().join("linked"), b"", 0)])[0].stdout, b"");
    }

    #[test]
    fn an_answer_has_a_bound_and_each_task_its_share() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let tasks = |count: usize| {
            let task = |number: usize| {
                let directory = root.path().join(number.to_string());
                fs::create_dir_all(&directory).expect("our directory");
                fs::write(directory.join(STDOUT), vec![1; 2 * LIVE_BYTES_MAX]).expect("our directory");
                running(directory, b"", 0)
            };
            let read = read((0..count).map(task).collect());
            read.iter().map(|task| task.stdout.len()).collect::<Vec<_>>()
        };
        assert_eq!(tasks(1), [LIVE_BYTES_MAX / 2]);
        assert_eq!(tasks(4), [LIVE_BYTES_MAX / 8; 4]);
        assert_eq!(tasks(300).iter().sum::<usize>(), LIVE_BYTES_MAX);
    }
}
