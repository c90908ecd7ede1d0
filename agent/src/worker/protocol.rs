//! What the agent and a worker say to each other, in CBOR. To the worker: packets, first the greeting, then one for
//! each job. From the worker: frames of four bytes of length (little-endian) and a message.
//!
//! The worker ran foreign code, so the agent treats what it says like a remote peer's words: capped, decoded, checked.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Job, StartError};

/// Largest job. Holds its stdin bytes.
pub(super) const JOB_BYTES_MAX: usize = 1 << 20;
/// Largest packet to a worker; a socket takes three times as much. A larger job waits in a file of its directory.
pub(super) const PACKET_BYTES_MAX: usize = 64 << 10;
/// What precedes a job in its packet: its number, little-endian.
pub(super) const NUMBER_BYTES: usize = 8;
/// The name of that file.
const JOB_FILE: &str = "job";
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
    /// The other directories that stay open to the worker.
    pub(super) directories: Vec<PathBuf>,
    /// The worker ends rather than work where something else stays open too.
    pub(super) strict: bool,
}

/// A job on its way to a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Packet {
    /// Here it is.
    Job(Box<Job>),
    /// It is in this file.
    File(PathBuf),
}

/// What a worker says.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The greeting was read. Jobs come from here on.
    Ready,
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
    /// Time that the run took, by the clock.
    pub(super) wall: Duration,
    /// Processor time of this job, preparation left out.
    pub(super) cpu: Duration,
    /// Processor time of loading or compiling the program.
    pub(super) compile: Duration,
    /// Processor time of the worker since its start.
    pub(super) worker_cpu: Duration,
    /// The task wrote more to stdout or stderr than is kept.
    pub(super) output_truncated: bool,
    /// Nothing was made in the attempt's directory.
    pub(super) untouched: bool,
}

/// The part of an [`super::Outcome`] that a worker can report.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum End {
    Exited { code: u8 },
    Trapped { message: String },
    Invalid { message: String },
    OverDisk { limit_bytes: u64 },
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

/// The bytes of the greeting; `None` when it is too large.
pub(super) fn encode_hello(hello: &Hello) -> Option<Vec<u8>> {
    encode_packet(hello, 0)
}

/// The bytes of a packet with room in front; `None` when it is too large.
fn encode_packet<T: Serialize>(message: &T, room_bytes: usize) -> Option<Vec<u8>> {
    let mut packet = Vec::with_capacity(1024);
    packet.resize(room_bytes, 0);
    ciborium::into_writer(message, &mut packet).ok()?;
    (packet.len() <= PACKET_BYTES_MAX).then_some(packet)
}

/// The packet of a job, its number yet to be filled in. A large one is written to the job's directory, which blocks.
pub(super) fn encode_job(job: &Job) -> Result<Vec<u8>, StartError> {
    #[derive(Serialize)]
    enum Borrowed<'a> {
        Job(&'a Job),
    }
    if let Some(packet) = encode_packet(&Borrowed::Job(job), NUMBER_BYTES) {
        return Ok(packet);
    }
    let mut bytes = Vec::new();
    let encoded = ciborium::into_writer(job, &mut bytes);
    if encoded.is_err() || bytes.len() > JOB_BYTES_MAX {
        return Err(StartError::TooLarge);
    }
    let path = job.directory.join(JOB_FILE);
    std::fs::create_dir_all(&job.directory).and_then(|()| std::fs::write(&path, &bytes)).map_err(StartError::Write)?;
    encode_packet(&Packet::File(path), NUMBER_BYTES).ok_or(StartError::TooLarge)
}

/// Reads a packet.
///
/// # Errors
/// It is not a `T`.
pub(super) fn decode_packet<T: DeserializeOwned>(packet: &[u8]) -> io::Result<T> {
    ciborium::de::from_reader_with_recursion_limit(packet, RECURSION_MAX)
        .map_err(|error| io::Error::other(format!("a packet that does not decode: {error}")))
}

/// The job of a packet, and whether it was in a file.
///
/// # Errors
/// It cannot be read or is not a job.
pub(super) fn decode_job(packet: &[u8]) -> io::Result<(Job, bool)> {
    let message = packet.get(NUMBER_BYTES..).ok_or_else(|| io::Error::other("a packet without a number"))?;
    match decode_packet(message)? {
        Packet::Job(job) => Ok((*job, false)),
        Packet::File(path) => Ok((decode_packet(&std::fs::read(path)?)?, true)),
    }
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
            wall: Duration::from_micros(9),
            cpu: Duration::from_micros(7),
            compile: Duration::ZERO,
            worker_cpu: Duration::from_secs(3),
            output_truncated: true,
            untouched: false,
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
            disk_bytes: 3,
            time_limit: Some(Duration::from_millis(1500)),
        };
        assert_eq!(decode_job(&encode_job(&job).unwrap()).unwrap(), (job.clone(), false));
        let dir = tempfile::tempdir().unwrap();
        let large = Job { stdin: Stdin::Bytes(vec![7; PACKET_BYTES_MAX]), directory: dir.path().join("d"), ..job };
        let packet = encode_job(&large).unwrap();
        assert!(packet.len() < 1000);
        assert_eq!(decode_job(&packet).unwrap(), (large.clone(), true));
        let too_large = Job { stdin: Stdin::Bytes(vec![7; JOB_BYTES_MAX]), ..large };
        assert!(matches!(encode_job(&too_large), Err(StartError::TooLarge)));
        let frame = encode(&report(), FROM_WORKER_BYTES_MAX).unwrap();
        let mut twice = frame.repeat(2);
        assert_eq!(read::<FromWorker>(&mut twice.as_slice(), FROM_WORKER_BYTES_MAX).unwrap(), Some(report()));
        twice.truncate(0);
        assert_eq!(read::<FromWorker>(&mut twice.as_slice(), FROM_WORKER_BYTES_MAX).unwrap(), None);
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
