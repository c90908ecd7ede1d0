//! The first bytes of a task's standard output and error, in memory that its worker shares with the agent.
//!
//! Most small tasks print little, and a file for each costs more than they do. What fits here needs none, and is there also when
//! the worker is killed the moment after. What is more goes to files (`output`), and these bytes with it.
//!
//! The memory begins with the number of the job that they are of and the lengths of both, so that what an earlier job of the worker wrote is
//! never taken for this one's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

/// Most bytes of each stream. Our choice: what an output that travels with its result can be.
pub(super) const SAID_BYTES_MAX: usize = 4096;
/// Number of the job, and two lengths.
const HEADER_BYTES: usize = 16;

/// What a task wrote to its standard output and error, where that is in no file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    /// Standard output.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// Standard error.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
}

impl Streams {
    /// What a worker says of it, which may say anything.
    pub(super) fn within_bounds(mut self) -> Self {
        self.stdout.truncate(SAID_BYTES_MAX);
        self.stderr.truncate(SAID_BYTES_MAX);
        self
    }
}

/// One of the two.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// The memory, as the agent has it.
#[derive(Debug)]
pub(super) struct Heard(File);

impl Heard {
    /// New memory for a worker.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(rustix::fs::memfd_create("said", MemfdFlags::CLOEXEC)?.into()))
    }

    /// Another handle to it, for the worker.
    pub(super) fn handle(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// What the job of this number has written; nothing where another was the last to write.
    pub(super) fn of(&self, number: u64) -> Streams {
        let mut header = [0; HEADER_BYTES];
        if self.0.read_exact_at(&mut header, 0).is_err() || header[..8] != number.to_le_bytes() {
            return Streams::default();
        }
        let read = |stream: Stream| {
            let at = 8 + 4 * stream as usize;
            let length = u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let mut bytes = vec![0; (length as usize).min(SAID_BYTES_MAX)];
            self.0.read_exact_at(&mut bytes, place(stream)).map_or_else(|_| Vec::new(), |()| bytes)
        };
        Streams { stdout: read(Stream::Stdout), stderr: read(Stream::Stderr) }
    }
}

/// Where the bytes of a stream begin.
fn place(stream: Stream) -> u64 {
    (HEADER_BYTES + stream as usize * SAID_BYTES_MAX) as u64
}

/// The memory, as the worker has it.
#[derive(Debug)]
pub(super) struct Said {
    file: File,
    now: Mutex<(u64, Streams)>,
}

impl Said {
    pub(super) fn new(handle: OwnedFd) -> Self {
        Self { file: handle.into(), now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, (u64, Streams)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job of this number begins, and has written nothing.
    pub(super) fn begin(&self, number: u64) {
        *self.now() = (number, Streams::default());
    }

    /// What the job has written here, which is over.
    pub(super) fn end(&self) -> Streams {
        std::mem::take(&mut self.now().1)
    }

    /// Adds bytes to a stream; whether they have room.
    pub(super) fn add(&self, stream: Stream, bytes: &[u8]) -> io::Result<bool> {
        let (number, streams) = &mut *self.now();
        let said = bytes_of(streams, stream);
        let before = said.len();
        if before + bytes.len() > SAID_BYTES_MAX {
            return Ok(false);
        }
        said.extend_from_slice(bytes);
        self.file.write_all_at(bytes, place(stream) + before as u64)?;
        self.write_header(*number, streams)?;
        Ok(true)
    }

    /// What a stream has had so far, which goes to a file now.
    pub(super) fn take(&self, stream: Stream) -> Vec<u8> {
        std::mem::take(bytes_of(&mut self.now().1, stream))
    }

    /// What was taken is in its file.
    pub(super) fn forget_taken(&self) -> io::Result<()> {
        let (number, streams) = &*self.now();
        self.write_header(*number, streams)
    }

    fn write_header(&self, number: u64, streams: &Streams) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&number.to_le_bytes());
        header[8..12].copy_from_slice(&(streams.stdout.len() as u32).to_le_bytes());
        header[12..].copy_from_slice(&(streams.stderr.len() as u32).to_le_bytes());
        self.file.write_all_at(&header, 0)
    }
}

fn bytes_of(streams: &mut Streams, stream: Stream) -> &mut Vec<u8> {
    match stream {
        Stream::Stdout => &mut streams.stdout,
        Stream::Stderr => &mut streams.stderr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_reads_what_the_running_job_wrote_and_nothing_of_another() {
        let heard = Heard::new().expect("memory");
        let said = Said::new(heard.handle().expect("a handle"));
        assert_eq!(heard.of(0), Streams::default(), "nobody has written yet");
        said.begin(7);
        assert!(said.add(Stream::Stdout, b"one ").expect("memory"));
        assert!(said.add(Stream::Stderr, b"two").expect("memory"));
        assert!(said.add(Stream::Stdout, b"three").expect("memory"));
        let streams = Streams { stdout: b"one three".to_vec(), stderr: b"two".to_vec() };
        assert_eq!(heard.of(7), streams);
        assert_eq!(heard.of(8), Streams::default());
        assert_eq!(said.end(), streams);
        // The next job is killed before it writes anything.
        said.begin(8);
        assert_eq!((heard.of(8), heard.of(7)), (Streams::default(), streams));
        assert!(said.add(Stream::Stdout, &[1; SAID_BYTES_MAX]).expect("memory"));
        assert!(!said.add(Stream::Stdout, &[1]).expect("memory"), "there is no room for one more");
        assert_eq!(heard.of(8).stdout.len(), SAID_BYTES_MAX);
        assert_eq!(said.take(Stream::Stdout).len(), SAID_BYTES_MAX);
        said.forget_taken().expect("memory");
        assert_eq!(heard.of(8), Streams::default());
    }

    #[test]
    fn a_worker_that_writes_nonsense_there_is_heard_within_bounds() {
        let heard = Heard::new().expect("memory");
        let file = File::from(heard.handle().expect("a handle"));
        file.write_all_at(&[0xff; 3 * SAID_BYTES_MAX], 0).expect("memory");
        let streams = heard.of(u64::MAX);
        assert_eq!((streams.stdout.len(), streams.stderr.len()), (SAID_BYTES_MAX, SAID_BYTES_MAX));
        file.set_len(20).expect("memory");
        assert_eq!(heard.of(u64::MAX), Streams::default());
    }
}
