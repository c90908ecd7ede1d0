//! The beginning of a task's standard output and error, in memory that its worker shares with the agent.
//!
//! Most small tasks print little, and a file for each costs more than they do. Output that fits here needs none, and
//! survives a worker that is killed a moment later. Longer output goes to files (`output`), together with these bytes.
//!
//! The memory begins with the number of the job and the lengths of both streams, so that output of the worker's earlier
//! job is never taken for this one's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

/// Most bytes of each stream. Our choice: the size of an output that travels with its result.
pub(super) const SHARED_BYTES_MAX: usize = 4096;
/// Number of the job, and two lengths.
const HEADER_BYTES: usize = 16;

/// A task's standard output and error, if they are in no file.
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
    /// Bounds a worker's report, which may contain anything.
    pub(super) fn within_bounds(mut self) -> Self {
        self.stdout.truncate(SHARED_BYTES_MAX);
        self.stderr.truncate(SHARED_BYTES_MAX);
        self
    }
}

/// A standard stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// The memory, on the agent's side.
#[derive(Debug)]
pub(super) struct SharedOutputReader(File);

impl SharedOutputReader {
    /// New memory for a worker.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(rustix::fs::memfd_create("output", MemfdFlags::CLOEXEC)?.into()))
    }

    /// Another handle to it, for the worker.
    pub(super) fn handle(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// The output of the job of this number; empty if another job was the last to write.
    pub(super) fn of(&self, number: u64) -> Streams {
        let mut header = [0; HEADER_BYTES];
        if self.0.read_exact_at(&mut header, 0).is_err() || header[..8] != number.to_le_bytes() {
            return Streams::default();
        }
        let read = |stream: Stream| {
            let at = 8 + 4 * stream as usize;
            let length = u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let mut bytes = vec![0; (length as usize).min(SHARED_BYTES_MAX)];
            self.0.read_exact_at(&mut bytes, place(stream)).map_or_else(|_| Vec::new(), |()| bytes)
        };
        Streams { stdout: read(Stream::Stdout), stderr: read(Stream::Stderr) }
    }
}

/// Offset of a stream's bytes.
fn place(stream: Stream) -> u64 {
    (HEADER_BYTES + stream as usize * SHARED_BYTES_MAX) as u64
}

/// The memory, on the worker's side.
#[derive(Debug)]
pub(super) struct SharedOutput {
    file: File,
    now: Mutex<(u64, Streams)>,
}

impl SharedOutput {
    pub(super) fn new(handle: OwnedFd) -> Self {
        Self { file: handle.into(), now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, (u64, Streams)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job of this number begins, without output.
    pub(super) fn begin(&self, number: u64) {
        *self.now() = (number, Streams::default());
    }

    /// The output of the job, which is over.
    pub(super) fn end(&self) -> Streams {
        std::mem::take(&mut self.now().1)
    }

    /// Adds bytes to a stream; false if there is no room.
    pub(super) fn add(&self, stream: Stream, bytes: &[u8]) -> io::Result<bool> {
        let (number, streams) = &mut *self.now();
        let buffer = bytes_of(streams, stream);
        let before = buffer.len();
        if before + bytes.len() > SHARED_BYTES_MAX {
            return Ok(false);
        }
        buffer.extend_from_slice(bytes);
        self.file.write_all_at(bytes, place(stream) + before as u64)?;
        self.write_header(*number, streams)?;
        Ok(true)
    }

    /// The stream's bytes, to be moved to a file.
    pub(super) fn take(&self, stream: Stream) -> Vec<u8> {
        std::mem::take(bytes_of(&mut self.now().1, stream))
    }

    /// Clears the bytes that were moved to a file.
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
    fn the_agent_reads_output_of_the_running_job_alone() {
        let reader = SharedOutputReader::new().expect("memory");
        let writer = SharedOutput::new(reader.handle().expect("a handle"));
        assert_eq!(reader.of(0), Streams::default(), "nobody has written yet");
        writer.begin(7);
        assert!(writer.add(Stream::Stdout, b"one ").expect("memory"));
        assert!(writer.add(Stream::Stderr, b"two").expect("memory"));
        assert!(writer.add(Stream::Stdout, b"three").expect("memory"));
        let streams = Streams { stdout: b"one three".to_vec(), stderr: b"two".to_vec() };
        assert_eq!(reader.of(7), streams);
        assert_eq!(reader.of(8), Streams::default());
        assert_eq!(writer.end(), streams);
        // The next job is killed before it writes.
        writer.begin(8);
        assert_eq!((reader.of(8), reader.of(7)), (Streams::default(), streams));
        assert!(writer.add(Stream::Stdout, &[1; SHARED_BYTES_MAX]).expect("memory"));
        assert!(!writer.add(Stream::Stdout, &[1]).expect("memory"), "there is no room for one more");
        assert_eq!(reader.of(8).stdout.len(), SHARED_BYTES_MAX);
        assert_eq!(writer.take(Stream::Stdout).len(), SHARED_BYTES_MAX);
        writer.forget_taken().expect("memory");
        assert_eq!(reader.of(8), Streams::default());
    }

    #[test]
    fn nonsense_in_the_shared_memory_is_read_within_bounds() {
        let reader = SharedOutputReader::new().expect("memory");
        let file = File::from(reader.handle().expect("a handle"));
        file.write_all_at(&[0xff; 3 * SHARED_BYTES_MAX], 0).expect("memory");
        let streams = reader.of(u64::MAX);
        assert_eq!((streams.stdout.len(), streams.stderr.len()), (SHARED_BYTES_MAX, SHARED_BYTES_MAX));
        file.set_len(20).expect("memory");
        assert_eq!(reader.of(u64::MAX), Streams::default());
    }
}
