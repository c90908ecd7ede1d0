//! Requests and answers between agents: one CBOR value each way per stream, with a size limit before decoding.
//!
//! The scheduler's and the overlay's messages are opaque bytes here. A request is answered when it has been *queued*,
//! not when it has been processed: the layers above tolerate loss and repeat what matters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use idlewood_machine::serving::PIECE_BYTES_MAX;
use libp2p::StreamProtocol;
use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::request_response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::meters::Meters;

/// Longest message, in bytes. Our choice: a root's summary is about 1 kB, the longest list of ranges some 10 kB.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// Longest piece of a blob, in bytes.
pub const CHUNK_BYTES_MAX: usize = PIECE_BYTES_MAX;

/// Longest frame: the longest payload and what CBOR adds.
pub(super) const FRAME_BYTES_MAX: usize = 256 * 1024 + 256;

/// Deepest nesting of CBOR; our values need three levels.
const RECURSION_MAX: usize = 16;

/// Bytes of frames that may be half read at one time, over all connections.
const READING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A request to another agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Bytes for the layer above.
    Message(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A piece of a blob, of at most [`CHUNK_BYTES_MAX`] bytes.
    Chunk {
        #[serde(with = "serde_bytes")]
        hash: [u8; 32],
        offset: u64,
        /// The bag; requests of earlier agents lack it.
        #[serde(default, with = "serde_bytes")]
        bag: [u8; 32],
        /// Proof that the sender has the bag's key.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_bytes")]
        proof: Option<[u8; 32]>,
        /// Whether a piece may be shorter than [`CHUNK_BYTES_MAX`] although the blob goes on; earlier agents take none.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        short: bool,
    },
    /// Gossip: revocations, administrators, certificates.
    Grid(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The message is queued.
    Ack,
    /// The message is queued, and here is one for its sender.
    Message(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Too many requests: the message is lost, the chunk may be requested again.
    Busy,
    /// The piece, and the length of the whole blob.
    Chunk {
        total: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The sender may not read such a blob here, or there is none.
    Missing,
    /// The answer to gossip.
    Grid(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// The protocol's name: grids cannot talk to each other by accident. The last number is the major version.
pub(super) fn protocol(grid: idlewood_overlay::GridId) -> StreamProtocol {
    StreamProtocol::try_from_owned(format!("/idlewood/{}/peer/2", hex::encode(&grid.0[..8])))
        .expect("the name begins with a slash")
}

/// Counts of the codec.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) bytes_sent: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    /// Frames that were too long, malformed or incomplete.
    pub(super) damaged: AtomicU64,
    /// What passes the sockets ([`Metered`](crate::metered::Metered)).
    pub(super) wire_bytes_sent: AtomicU64,
    pub(super) wire_bytes_received: AtomicU64,
    pub(super) wire_writes: AtomicU64,
    pub(super) meters: Meters,
    reading: AtomicUsize,
}

/// Reads and writes frames.
#[derive(Clone, Debug)]
pub(super) struct Codec {
    pub(super) traffic: Arc<Traffic>,
}

/// Bytes of one half-read frame, given back on drop.
struct Charge<'a> {
    traffic: &'a Traffic,
    bytes: usize,
    /// The frame has begun, and is incomplete.
    is_open: bool,
}

impl Charge<'_> {
    fn grow(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes;
        if self.traffic.reading.fetch_add(bytes, Ordering::Relaxed) + bytes > READING_BYTES_MAX {
            self.is_open = true;
            return Err(io::Error::other("too many frames are being received at once"));
        }
        Ok(())
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.traffic.reading.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.is_open {
            // It timed out, there was no room for it, or the connection broke.
            self.traffic.damaged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Codec {
    async fn read<T: AsyncRead + Unpin + Send, V: DeserializeOwned>(&self, io: &mut T) -> io::Result<V> {
        let mut charge = Charge { traffic: &self.traffic, bytes: 0, is_open: false };
        let mut io = io.take(FRAME_BYTES_MAX as u64 + 1);
        let mut frame = Vec::new();
        loop {
            // Memory grows with received bytes, not with a claimed length.
            let used = frame.len();
            let step = used.clamp(1024, 64 * 1024);
            charge.grow(step)?;
            frame.resize(used + step, 0);
            let count = io.read(&mut frame[used..]).await?;
            frame.truncate(used + count);
            charge.is_open = count > 0;
            if count == 0 {
                break;
            }
            charge.bytes -= step - count;
            self.traffic.reading.fetch_sub(step - count, Ordering::Relaxed);
        }
        self.traffic.bytes_received.fetch_add(frame.len() as u64, Ordering::Relaxed);
        // The behaviour does not report a request that could not be read.
        decode(&frame).inspect_err(|error| {
            self.traffic.damaged.fetch_add(1, Ordering::Relaxed);
            debug!(%error, "a frame was refused");
        })
    }

    async fn write<T: AsyncWrite + Unpin + Send, V: Serialize>(&self, io: &mut T, value: &V) -> io::Result<()> {
        let frame = encode(value)?;
        io.write_all(&frame).await?;
        self.traffic.bytes_sent.fetch_add(frame.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn encode<V: Serialize>(value: &V) -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    ciborium::into_writer(value, &mut frame).map_err(io::Error::other)?;
    if frame.len() > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the frame is larger than the protocol allows"));
    }
    Ok(frame)
}

fn decode<V: DeserializeOwned>(frame: &[u8]) -> io::Result<V> {
    let refuse = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    if frame.len() > FRAME_BYTES_MAX {
        return Err(refuse("the frame is larger than the protocol allows".to_owned()));
    }
    let mut rest = frame;
    let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, RECURSION_MAX)
        .map_err(|error| refuse(error.to_string()))?;
    if !rest.is_empty() {
        return Err(refuse("bytes follow the value".to_owned()));
    }
    Ok(value)
}

impl request_response::Codec for Codec {
    type Protocol = StreamProtocol;
    type Request = Request;
    type Response = Reply;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Request>
    where
        T: AsyncRead + Unpin + Send,
    {
        self.read(io).await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Reply>
    where
        T: AsyncRead + Unpin + Send,
    {
        self.read(io).await
    }

    async fn write_request<T>(&mut self, _: &StreamProtocol, io: &mut T, request: Request) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        self.write(io, &request).await
    }

    async fn write_response<T>(&mut self, _: &StreamProtocol, io: &mut T, reply: Reply) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        self.write(io, &reply).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_bytes_on_the_wire_are_pinned() {
        let hash = [0x11; 32];
        let request = |value: &Request| hex::encode(encode(value).unwrap());
        let reply = |value: &Reply| hex::encode(encode(value).unwrap());
        assert_eq!(request(&Request::Message(vec![1, 2, 3])), "a1674d65737361676543010203");
        assert_eq!(
            request(&Request::Chunk { hash, offset: 65536, bag: [0x22; 32], proof: Some([0x33; 32]), short: false }),
            format!(
                "a1654368756e6ba464686173685820{}666f66667365741a00010000636261675820{}6570726f6f665820{}",
                "11".repeat(32),
                "22".repeat(32),
                "33".repeat(32)
            )
        );
        assert_eq!(reply(&Reply::Ack), "6341636b");
        assert_eq!(reply(&Reply::Message(vec![1, 2, 3])), "a1674d65737361676543010203");
        assert_eq!(reply(&Reply::Busy), "6442757379");
        assert_eq!(
            reply(&Reply::Chunk { total: 2, bytes: vec![9, 8] }),
            "a1654368756e6ba265746f74616c02656279746573420908"
        );
        assert_eq!(reply(&Reply::Missing), "674d697373696e67");
        assert_eq!(request(&Request::Grid(vec![7])), "a164477269644107");
        assert_eq!(reply(&Reply::Grid(vec![])), "a1644772696440");
    }

    #[test]
    fn the_longest_payloads_fit_and_longer_ones_do_not() {
        let largest = Request::Message(vec![0xff; MESSAGE_BYTES_MAX]);
        assert_eq!(decode::<Request>(&encode(&largest).unwrap()).unwrap(), largest);
        let largest = Reply::Chunk { total: u64::MAX, bytes: vec![0xff; CHUNK_BYTES_MAX] };
        assert_eq!(decode::<Reply>(&encode(&largest).unwrap()).unwrap(), largest);
        assert!(encode(&Request::Message(vec![0; FRAME_BYTES_MAX])).is_err());
    }

    #[test]
    fn garbage_is_refused_without_a_panic() {
        let good =
            encode(&Request::Chunk { hash: [1; 32], offset: 9, bag: [2; 32], proof: None, short: true }).unwrap();
        for length in 0..good.len() {
            assert!(decode::<Request>(&good[..length]).is_err());
        }
        assert!(decode::<Request>(&[&good[..], &[0]].concat()).is_err(), "trailing bytes");
        assert!(decode::<Request>(&[0x81; 100_000]).is_err(), "deep nesting");
        // A byte string that claims to be 2^63 long.
        assert!(decode::<Request>(&hex::decode("a1674d6573736167655b7fffffffffffffff00").unwrap()).is_err());
        for position in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[position] ^= 1 << bit;
                if let Ok(Request::Message(bytes)) = decode::<Request>(&bad) {
                    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
                }
            }
        }
    }

    /// Gives so many bytes, and then neither more nor an end.
    struct Slow(usize);

    impl AsyncRead for Slow {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
            let given = self.0.min(buffer.len());
            self.0 -= given;
            buffer[..given].fill(0);
            if given == 0 { Poll::Pending } else { Poll::Ready(Ok(given)) }
        }
    }

    #[test]
    fn the_memory_of_incomplete_frames_is_bounded() {
        let codec = Codec { traffic: Arc::default() };
        let half = FRAME_BYTES_MAX / 2;
        let mut context = Context::from_waker(Waker::noop());
        let mut begin = |readings: &mut Vec<_>| {
            // Each on a connection of its own; they share the count.
            let codec = codec.clone();
            let mut reading = Box::pin(async move { codec.read::<_, Request>(&mut Slow(half)).await });
            let polled = reading.as_mut().poll(&mut context);
            let is_refused = match polled {
                Poll::Pending => false,
                Poll::Ready(result) => {
                    assert!(result.unwrap_err().to_string().contains("at once"));
                    true
                }
            };
            readings.push(reading);
            is_refused
        };
        let mut readings = Vec::new();
        let refused = (0..READING_BYTES_MAX / half + 2).position(|_| begin(&mut readings)).expect("there is a limit");
        assert!(refused >= READING_BYTES_MAX / half / 2, "{refused} are no flood");
        assert!(codec.traffic.reading.load(Ordering::Relaxed) <= READING_BYTES_MAX + FRAME_BYTES_MAX);
        assert_eq!(codec.traffic.damaged.load(Ordering::Relaxed), 1, "the one that was refused");
        readings.truncate(refused / 2);
        assert!(!begin(&mut readings), "a dropped frame makes room");
        readings.clear();
        assert_eq!(codec.traffic.reading.load(Ordering::Relaxed), 0);
        assert_eq!(codec.traffic.damaged.load(Ordering::Relaxed), refused as u64 + 2, "none of them ended");
    }

    #[test]
    fn mutations_of_frames() {
        use idlewood_testing::mutations;

        let requests = [
            Request::Message(vec![1, 2, 3]),
            Request::Chunk { hash: [1; 32], offset: 9, bag: [2; 32], proof: None, short: true },
            Request::Grid(vec![7]),
        ];
        mutations("requests", requests.map(|request| encode(&request).unwrap()).to_vec(), |bytes| {
            let Ok(read) = decode::<Request>(bytes) else { return false };
            assert_eq!(decode::<Request>(&encode(&read).unwrap()).unwrap(), read);
            true
        });
        let replies = [Reply::Ack, Reply::Busy, Reply::Missing, Reply::Chunk { total: 2, bytes: vec![9, 8] }];
        mutations("replies", replies.map(|reply| encode(&reply).unwrap()).to_vec(), |bytes| {
            let Ok(read) = decode::<Reply>(bytes) else { return false };
            assert_eq!(decode::<Reply>(&encode(&read).unwrap()).unwrap(), read);
            true
        });
    }
}
