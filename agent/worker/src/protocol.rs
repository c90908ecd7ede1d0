//! The protocol between agent and worker, in CBOR. To the worker: packets, first the greeting, then one for each job.
//! From the worker: frames of four bytes of length (little-endian) and a message.
//!
//! | the agent | then the worker |
//! |---|---|
//! | greets | reports ready, once, or why its program cannot be used, and ends |
//! | gives jobs to a ready worker that runs programs | reports each as done, in order and by number |
//!
//! The worker ran foreign code, so the agent treats its messages like a remote peer's: capped, decoded, checked. A
//! worker that breaks the order is killed, and its task fails.

use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::end::End;
use crate::group::Member;
use crate::job::{Job, Stdin};
use crate::shared_output::Streams;
use crate::start_error::{JOB_BYTES_MAX, StartError};

/// Largest packet to a worker; a socket holds three of them. A larger job travels in memory beside its packet.
pub(super) const PACKET_BYTES_MAX: usize = 64 << 10;
/// Bytes before a job in its packet: its number, little-endian.
pub(super) const NUMBER_BYTES: usize = 8;
/// Largest frame from a worker, including a report's message.
pub(super) const FROM_WORKER_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of a frame; ours have five levels.
const RECURSION_MAX: usize = 16;

/// The first packet to a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The process the worker belongs to.
    pub(super) agent_pid: u32,
    /// The worker's role.
    pub(super) role: Role,
    /// Everything that it may read.
    pub(super) readable: Vec<PathBuf>,
    /// Everything that it may write.
    pub(super) writable: Vec<PathBuf>,
    /// The worker ends instead of working if a part of its confinement is missing.
    pub(super) strict: bool,
}

/// What a worker does.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Compiles one program, which it does not run, and ends.
    Compile {
        /// The WebAssembly.
        program: PathBuf,
        /// Its BLAKE3.
        hash: [u8; 32],
        /// File for the result, empty.
        artefact: PathBuf,
    },
    /// Runs jobs of one program.
    Run {
        /// The program's compiled form.
        artefact: PathBuf,
    },
    /// Runs one job of a native program, and is ended.
    Native {
        /// Control group for its processes to join, if any.
        group: Option<Member>,
    },
}

/// A job on its way to a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Packet {
    /// The job itself.
    Job(Box<Job>),
    /// The job is in the file passed with the packet.
    Beside,
}

/// A packet with a job.
#[derive(Debug)]
pub(super) struct JobPacket {
    bytes: Vec<u8>,
    /// In memory: the agent must not write to directories that workers write.
    beside: Option<OwnedFd>,
}

/// A message of a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The program is ready: compiled, or loaded. Once, and before everything else.
    Ready {
        /// Processor time since the worker's start.
        cpu: Duration,
    },
    /// Instead of `Ready`: how every job of this program ends, as far as this worker can tell.
    Unusable(End),
    /// The job of this number is done; the worker takes the next.
    Done(u64, Report),
}

/// The outcome of a job, as far as the worker knows.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) end: End,
    /// Duration of the run by the clock.
    pub(super) wall: Duration,
    /// Processor time of this job.
    pub(super) cpu: Duration,
    /// Processor time of the worker since its start.
    pub(super) worker_cpu: Duration,
    /// The task wrote more to stdout or stderr than is kept.
    pub(super) output_truncated: bool,
    /// Nothing was made in the attempt's directory.
    pub(super) untouched: bool,
    /// Standard output and error, if they are in no file.
    pub(super) streams: Streams,
}

/// A frame of at most `bytes_max`, header included in the result; `None` when the message is larger.
pub(super) fn encode<T: Serialize>(message: &T, bytes_max: usize) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    ciborium::into_writer(message, &mut frame).ok()?;
    let length = frame.len() - 4;
    frame[..4].copy_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
    (length <= bytes_max).then_some(frame)
}

/// The bytes of the greeting; `None` when it is too large, or a path is not UTF-8.
pub(super) fn encode_hello(hello: &Hello, beside: Option<OwnedFd>) -> Option<JobPacket> {
    Some(JobPacket { bytes: encode_packet(hello, 0)?, beside })
}

/// The bytes of a packet with room in front; `None` when it is too large.
fn encode_packet<T: Serialize>(message: &T, room_bytes: usize) -> Option<Vec<u8>> {
    let mut packet = Vec::with_capacity(1024);
    packet.resize(room_bytes, 0);
    ciborium::into_writer(message, &mut packet).ok()?;
    (packet.len() <= PACKET_BYTES_MAX).then_some(packet)
}

/// A packet for a job, without its number.
///
/// # Errors
/// It is too large, or the system gives no memory for one that goes beside its packet.
pub(super) fn encode_job(job: &Job) -> Result<JobPacket, StartError> {
    // Only jobs with long standard input do not fit; measuring others would cost a copy of it.
    let is_small = match &job.stdin {
        Stdin::Bytes(bytes) => bytes.len() < PACKET_BYTES_MAX,
        Stdin::Empty | Stdin::File(_) => true,
    };
    if is_small && let Some(bytes) = encode_packet(&Packet::Job(Box::new(job.clone())), NUMBER_BYTES) {
        return Ok(JobPacket { bytes, beside: None });
    }
    let mut content = Vec::new();
    let encoded = ciborium::into_writer(job, &mut content);
    if encoded.is_err() || content.len() > JOB_BYTES_MAX {
        return Err(StartError::TooLarge);
    }
    let file = rustix::fs::memfd_create("job", MemfdFlags::CLOEXEC).map_err(|errno| StartError::Write(errno.into()))?;
    let mut file = std::fs::File::from(file);
    file.write_all(&content).and_then(|()| file.rewind()).map_err(StartError::Write)?;
    let bytes = encode_packet(&Packet::Beside, NUMBER_BYTES).ok_or(StartError::TooLarge)?;
    Ok(JobPacket { bytes, beside: Some(file.into()) })
}

impl JobPacket {
    /// Gives the job its number.
    pub(super) fn number(&mut self, number: u64) {
        self.bytes[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    }

    /// Sends it, if there is room.
    ///
    /// # Errors
    /// The worker is gone ([`Errno::PIPE`]), or there is no room.
    pub(super) fn send(&self, to: impl AsFd) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let beside: Vec<_> = self.beside.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !beside.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&beside)) {
            return Err(Errno::NOBUFS);
        }
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(&to, &[IoSlice::new(&self.bytes)], &mut ancillary, flags))
            .map(drop)
    }
}

/// Receives, in the worker, a packet of at most [`PACKET_BYTES_MAX`], and the file passed with it. No bytes: the agent
/// has closed its end.
///
/// # Errors
/// When reading fails.
pub(super) fn receive(from: impl AsFd, buffer: &mut [u8]) -> io::Result<(&[u8], Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&from, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let beside = files.last();
    Ok((&buffer[..received.bytes], beside))
}

/// Reads a packet.
///
/// # Errors
/// When it is not a `T`.
pub(super) fn decode_packet<T: DeserializeOwned>(packet: &[u8]) -> io::Result<T> {
    ciborium::de::from_reader_with_recursion_limit(packet, RECURSION_MAX)
        .map_err(|error| io::Error::other(format!("a packet that does not decode: {error}")))
}

/// The job of a packet, and its number.
///
/// # Errors
/// When it cannot be read or is not a job.
pub(super) fn decode_job(packet: &[u8], beside: Option<OwnedFd>) -> io::Result<(u64, Job)> {
    let (number, message) = packet.split_first_chunk().ok_or_else(|| io::Error::other("a packet without a number"))?;
    let job = match (decode_packet(message)?, beside) {
        (Packet::Job(job), _) => *job,
        (Packet::Beside, Some(file)) => {
            let mut bytes = Vec::new();
            std::fs::File::from(file).take(JOB_BYTES_MAX as u64).read_to_end(&mut bytes)?;
            decode_packet(&bytes)?
        }
        (Packet::Beside, None) => return Err(io::Error::other("a packet without the file it speaks of")),
    };
    Ok((u64::from_le_bytes(*number), job))
}

/// Writes a frame made by [`encode`] at once.
pub(super) fn write(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    to.write_all(frame)?;
    to.flush()
}

/// Reads one message; `None` at the end of the stream between two frames.
///
/// # Errors
/// When reading fails, or the frame is too large, cut off, or not a `T`.
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

    fn report() -> FromWorker {
        let report = Report {
            end: End::Trapped { message: "x".to_owned() },
            wall: Duration::from_micros(9),
            cpu: Duration::from_micros(7),
            worker_cpu: Duration::from_secs(3),
            output_truncated: true,
            untouched: false,
            streams: Streams { stdout: vec![1, 2], stderr: Vec::new() },
        };
        FromWorker::Done(7, report)
    }

    /// Sends a packet and receives it.
    fn pass(packet: &JobPacket) -> (u64, Job) {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        packet.send(&ours).unwrap();
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let (bytes, beside) = receive(&theirs, &mut buffer).unwrap();
        decode_job(bytes, beside).unwrap()
    }

    #[test]
    fn messages_survive_the_way() {
        let job = Job {
            program: PathBuf::from("/p"),
            program_hash: [3; 32],
            args: vec!["a".to_owned()],
            env: vec![("K".to_owned(), "V".to_owned())],
            stdin: Stdin::Bytes(vec![0, 255]),
            inputs: Some(PathBuf::from("/i")),
            reach: std::sync::Arc::default(),
            directory: PathBuf::from("/d"),
            checkpoint: Some(PathBuf::from("/c")),
            memory_bytes: 1,
            fixed: Some(7),
            output_bytes: 2,
            disk_bytes: 3,
            time_limit: Some(Duration::from_millis(1500)),
            native: true,
        };
        assert_eq!(pass(&encode_job(&job).unwrap()), (0, job.clone()));
        let large = Job { stdin: Stdin::Bytes(vec![7; PACKET_BYTES_MAX]), ..job };
        let mut packet = encode_job(&large).unwrap();
        assert!(packet.bytes.len() < 1000);
        packet.number(9);
        assert_eq!(pass(&packet), (9, large.clone()));
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
    fn bytes_that_are_no_frame_are_refused() {
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

    #[test]
    fn mutations_of_the_protocol() {
        use idlewood_testing::mutations;

        let says = [FromWorker::Ready { cpu: Duration::from_millis(3) }, report()];
        mutations("reports", says.map(|says| encode(&says, FROM_WORKER_BYTES_MAX).unwrap()).to_vec(), |bytes| {
            matches!(read::<FromWorker>(&mut { bytes }, FROM_WORKER_BYTES_MAX), Ok(Some(_)))
        });
        let role = Role::Compile { program: "/p".into(), hash: [1; 32], artefact: "/a".into() };
        let hello =
            Hello { agent_pid: 7, role, readable: vec!["/r".into()], writable: vec!["/w".into()], strict: true };
        mutations("greetings", vec![encode_hello(&hello, None).unwrap().bytes], |bytes| {
            decode_packet::<Hello>(bytes).is_ok()
        });
        let job = crate::job::tests::plain_job();
        mutations("jobs", vec![encode_job(&job).unwrap().bytes], |bytes| decode_job(bytes, None).is_ok());
    }
}
