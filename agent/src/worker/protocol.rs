//! The frames between the agent and a worker: four bytes of length (little-endian), then CBOR.
//!
//! The worker ran foreign code, so the agent treats what it says like a remote peer's words: capped, decoded, checked.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::Job;

/// Largest frame to a worker. Holds a job with its stdin bytes.
pub(super) const TO_WORKER_BYTES_MAX: usize = 1 << 20;
/// Largest frame from a worker. Holds a report with its message.
pub(super) const FROM_WORKER_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of a frame; ours have five levels.
const RECURSION_MAX: usize = 16;

/// The first frame to a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The process the worker belongs to.
    pub(super) agent_pid: u32,
    /// Where compiled programs are kept.
    pub(super) cache_dir: PathBuf,
}

/// What a worker says.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The program has to be loaded or compiled first.
    Preparing,
    /// It is ready now, and the run begins. Only after `Preparing`.
    Begun,
    /// The job is over; the worker waits for the next.
    Done(Report),
}

/// How a job went, as far as the worker knows.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) end: End,
    /// Processor time of this job, preparation left out.
    pub(super) cpu: Duration,
    /// Processor time of loading or compiling the program.
    pub(super) compile: Duration,
    /// Processor time of the worker since its start.
    pub(super) worker_cpu: Duration,
    /// The task wrote more to stdout or stderr than is kept.
    pub(super) output_truncated: bool,
}

/// The part of an [`super::Outcome`] that a worker can report.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum End {
    Exited { code: u8 },
    Trapped { message: String },
    Invalid { message: String },
    CouldNotStart { message: String },
}

/// A frame of at most `bytes_max`, header included in the result; `None` when the message is larger.
pub(super) fn encode<T: Serialize>(message: &T, bytes_max: usize) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    ciborium::into_writer(message, &mut frame).ok()?;
    let length = frame.len() - 4;
    frame[..4].copy_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
    (length <= bytes_max).then_some(frame)
}

/// The frame of a job.
pub(super) fn encode_job(job: &Job) -> Option<Vec<u8>> {
    encode(job, TO_WORKER_BYTES_MAX)
}

/// Writes a frame made by [`encode`] at once.
pub(super) fn write(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    to.write_all(frame)?;
    to.flush()
}

/// Reads one message; `None` at the end of the stream between two frames.
///
/// # Errors
/// Reading failed, or what came is too large, cut off, or not a `T`.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    let first = loop {
        match from.read(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut header[first..])?;
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(io::Error::other(format!("a frame of {length} bytes, more than {bytes_max}")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let mut rest = body.as_slice();
    let message = ciborium::de::from_reader_with_recursion_limit(&mut rest, RECURSION_MAX)
        .map_err(|error| io::Error::other(format!("a frame that does not decode: {error}")))?;
    if !rest.is_empty() {
        return Err(io::Error::other(format!("a frame with {} bytes too many", rest.len())));
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Input, Stdin};

    fn report() -> FromWorker {
        FromWorker::Done(Report {
            end: End::Trapped { message: "x".to_owned() },
            cpu: Duration::from_micros(7),
            compile: Duration::ZERO,
            worker_cpu: Duration::from_secs(3),
            output_truncated: true,
        })
    }

    #[test]
    fn messages_survive_the_way() {
        let job = Job {
            program: PathBuf::from("/p"),
            program_hash: [3; 32],
            args: vec!["a".to_owned()],
            env: vec![("K".to_owned(), "V".to_owned())],
            stdin: Stdin::Bytes(vec![0, 255]),
            inputs: vec![Input { name: "n".to_owned(), path: PathBuf::from("/i") }],
            directory: PathBuf::from("/d"),
            checkpoint: Some(PathBuf::from("/c")),
            memory_bytes: 1,
            output_bytes: 2,
            time_limit: Some(Duration::from_millis(1500)),
        };
        let mut pipe = encode_job(&job).unwrap();
        pipe.extend(encode_job(&job).unwrap());
        let mut pipe = pipe.as_slice();
        for _ in 0..2 {
            assert_eq!(read::<Job>(&mut pipe, TO_WORKER_BYTES_MAX).unwrap().as_ref(), Some(&job));
        }
        assert_eq!(read::<Job>(&mut pipe, TO_WORKER_BYTES_MAX).unwrap(), None);
        let frame = encode(&report(), FROM_WORKER_BYTES_MAX).unwrap();
        assert_eq!(read(&mut frame.as_slice(), FROM_WORKER_BYTES_MAX).unwrap(), Some(report()));
    }

    #[test]
    fn what_is_not_a_frame_is_refused() {
        let frame = encode(&report(), FROM_WORKER_BYTES_MAX).unwrap();
        for cut in 1..frame.len() {
            assert!(read::<FromWorker>(&mut &frame[..cut], FROM_WORKER_BYTES_MAX).is_err(), "cut at {cut}");
        }
        let mut padded = frame.clone();
        padded[0] += 1;
        padded.push(0);
        assert!(read::<FromWorker>(&mut padded.as_slice(), FROM_WORKER_BYTES_MAX).is_err());
        assert!(read::<FromWorker>(&mut &[255, 255, 255, 255, 0][..], FROM_WORKER_BYTES_MAX).is_err());
        assert!(read::<FromWorker>(&mut &b"hello, world"[..], FROM_WORKER_BYTES_MAX).is_err());
        assert!(encode(&report(), 10).is_none());
    }
}
