//! Frames: four bytes of length and four of the request's number, both little-endian, and so many bytes.
//!
//! An answer has the number of its request. One with [`NONE`] for its length has no bytes: none will come.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use libp2p::futures::io::BufReader;
use libp2p::futures::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

/// Longest payload: 256 KiB and what CBOR adds.
pub(in crate::net) const FRAME_BYTES_MAX: usize = 256 * 1024 + 256;

/// In place of a length: there is no answer.
const NONE: u32 = u32::MAX;

const HEADER_BYTES: usize = 8;

/// What is read at once where there is as much: most frames are short.
const BUFFER_BYTES: usize = 2048;

/// Longest time for a frame that has begun to end, and for what is written to be taken.
pub(super) const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of frames that may be half read at one time, over all connections.
const READING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What passed.
#[derive(Debug, Default)]
pub(in crate::net) struct Traffic {
    pub(in crate::net) bytes_sent: AtomicU64,
    pub(in crate::net) bytes_received: AtomicU64,
    /// Frames that were too long, or began and did not end.
    pub(in crate::net) damaged: AtomicU64,
    reading: AtomicUsize,
}

/// Bytes of one half-read frame, given back on drop.
struct Charge<'a> {
    traffic: &'a Traffic,
    bytes: usize,
    has_ended: bool,
}

impl Charge<'_> {
    fn grow(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes;
        if self.traffic.reading.fetch_add(bytes, Ordering::Relaxed) + bytes > READING_BYTES_MAX {
            return Err(io::Error::other("too many frames are being received at once"));
        }
        Ok(())
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.traffic.reading.fetch_sub(self.bytes, Ordering::Relaxed);
        if !self.has_ended {
            // Its time is over, there is no room for it, or the connection broke.
            self.traffic.damaged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A frame as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) number: u32,
    pub(super) bytes: Option<Vec<u8>>,
}

/// Reads frames one after the other.
pub(super) struct Reader<R> {
    io: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(io: R) -> Self {
        Self { io: BufReader::with_capacity(BUFFER_BYTES, io) }
    }

    /// The next frame, for which this waits as long as it takes; nothing at the end of the stream.
    ///
    /// # Errors
    /// The stream broke, the frame is too long, or it began and did not end in time.
    pub(super) async fn next(&mut self, traffic: &Traffic) -> io::Result<Option<Frame>> {
        if self.io.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let mut charge = Charge { traffic, bytes: 0, has_ended: false };
        let frame = timeout(FRAME_TIMEOUT, self.read(&mut charge))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "a frame began and did not end"))??;
        charge.has_ended = true;
        let bytes = frame.bytes.as_ref().map_or(0, Vec::len) + HEADER_BYTES;
        traffic.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Some(frame))
    }

    async fn read(&mut self, charge: &mut Charge<'_>) -> io::Result<Frame> {
        let mut header = [0; HEADER_BYTES];
        self.io.read_exact(&mut header).await?;
        let (length, number) = header.split_at(HEADER_BYTES / 2);
        let number_of = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let (length, number) = (number_of(length), number_of(number));
        if length == NONE {
            return Ok(Frame { number, bytes: None });
        }
        let length = length as usize;
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is longer than the protocol allows"));
        }
        let mut bytes = Vec::new();
        while bytes.len() < length {
            // What a peer claims costs nothing: memory grows with what has arrived.
            let used = bytes.len();
            let step = used.clamp(1024, 64 * 1024).min(length - used);
            charge.grow(step)?;
            bytes.resize(used + step, 0);
            self.io.read_exact(&mut bytes[used..]).await?;
        }
        Ok(Frame { number, bytes: Some(bytes) })
    }
}

/// Appends a frame.
pub(super) fn append(buffer: &mut Vec<u8>, number: u32, bytes: Option<&[u8]>) {
    let length = bytes.map_or(NONE, |bytes| u32::try_from(bytes.len()).unwrap_or(NONE));
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&number.to_le_bytes());
    buffer.extend_from_slice(bytes.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::Pin;
    use std::task::Waker;

    use libp2p::futures::FutureExt as _;

    use super::*;

    fn read_all(bytes: &[u8]) -> (Vec<Frame>, io::Result<()>, Traffic) {
        let (traffic, mut reader, mut frames) = (Traffic::default(), Reader::new(bytes), Vec::new());
        let end = loop {
            match reader.next(&traffic).now_or_never().expect("all is there") {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (frames, end, traffic)
    }

    #[test]
    fn the_bytes_on_the_wire_are_pinned() {
        let mut buffer = Vec::new();
        append(&mut buffer, 0x0102_0304, Some(&[9, 8]));
        append(&mut buffer, 5, None);
        assert_eq!(hex::encode(&buffer), "02000000040302010908ffffffff05000000");
    }

    #[tokio::test]
    async fn frames_are_read_one_after_the_other() {
        let payloads = [vec![], vec![1], vec![2; 1500], vec![3; FRAME_BYTES_MAX], vec![4; 5000]];
        let mut buffer = Vec::new();
        for (payload, number) in payloads.iter().zip(0..) {
            append(&mut buffer, number, Some(payload));
        }
        append(&mut buffer, 99, None);
        let (frames, end, traffic) = read_all(&buffer);
        end.expect("it ends between two frames");
        let expected = payloads.into_iter().zip(0..).map(|(payload, number)| Frame { number, bytes: Some(payload) });
        let expected: Vec<Frame> = expected.chain([Frame { number: 99, bytes: None }]).collect();
        assert_eq!(frames, expected);
        assert_eq!(traffic.bytes_received.load(Ordering::Relaxed), buffer.len() as u64);
        assert_eq!((traffic.damaged.into_inner(), traffic.reading.into_inner()), (0, 0));
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_cut_is_an_error() {
        let mut whole = Vec::new();
        append(&mut whole, 1, Some(&[7; 40]));
        for length in 1..whole.len() {
            let (frames, end, traffic) = read_all(&whole[..length]);
            assert!(frames.is_empty() && end.is_err() && traffic.damaged.into_inner() == 1, "{length}");
        }
        let mut long = Vec::new();
        append(&mut long, 1, Some(&vec![0; FRAME_BYTES_MAX + 1]));
        let (frames, end, traffic) = read_all(&long);
        assert!(frames.is_empty() && end.is_err() && traffic.damaged.into_inner() == 1);
    }

    /// Begins a long frame, gives so many bytes, and then neither more nor an end.
    struct Slow(Vec<u8>, usize);

    impl Slow {
        fn new(bytes: usize) -> Self {
            let length = u32::try_from(FRAME_BYTES_MAX).expect("it is short").to_le_bytes();
            Self([length, [0; 4]].concat(), bytes)
        }
    }

    impl AsyncRead for Slow {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            buffer: &mut [u8],
        ) -> std::task::Poll<io::Result<usize>> {
            let header = self.0.len().min(buffer.len());
            if header > 0 {
                buffer[..header].copy_from_slice(&self.0[..header]);
                self.0.drain(..header);
                return std::task::Poll::Ready(Ok(header));
            }
            let given = self.1.min(buffer.len());
            self.1 -= given;
            buffer[..given].fill(0);
            if given == 0 { std::task::Poll::Pending } else { std::task::Poll::Ready(Ok(given)) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_does_not_go_on_is_given_up() {
        let traffic = Traffic::default();
        let begun = tokio::time::Instant::now();
        let error = Reader::new(Slow::new(100)).next(&traffic).await.expect_err("it does not end");
        assert_eq!((error.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, FRAME_TIMEOUT));
        assert_eq!((traffic.damaged.into_inner(), traffic.reading.into_inner()), (1, 0));
    }

    #[tokio::test]
    async fn half_received_frames_take_so_much_memory_together_and_no_more() {
        let traffic = Traffic::default();
        let half = FRAME_BYTES_MAX / 2;
        let mut context = std::task::Context::from_waker(Waker::noop());
        // Each on a connection of its own: they share what is counted.
        let mut begin = |held: &mut Vec<_>| {
            let traffic = &traffic;
            let mut reading = Box::pin(async move { Reader::new(Slow::new(half)).next(traffic).await });
            let polled = reading.as_mut().poll(&mut context);
            let is_refused = match polled {
                std::task::Poll::Pending => false,
                std::task::Poll::Ready(result) => {
                    assert!(result.expect_err("it does not end").to_string().contains("at once"));
                    true
                }
            };
            held.push(reading);
            is_refused
        };
        let mut held = Vec::new();
        let refused = (0..READING_BYTES_MAX / half + 2).position(|_| begin(&mut held)).expect("there is a limit");
        assert!(refused >= READING_BYTES_MAX / half / 2, "{refused} are no flood");
        assert!(traffic.reading.load(Ordering::Relaxed) <= READING_BYTES_MAX + FRAME_BYTES_MAX);
        assert_eq!(traffic.damaged.load(Ordering::Relaxed), 1, "the one that was refused");
        held.truncate(refused / 2);
        assert!(!begin(&mut held), "who gives up makes room");
        held.clear();
        assert_eq!(traffic.reading.load(Ordering::Relaxed), 0);
        assert_eq!(traffic.damaged.load(Ordering::Relaxed), refused as u64 + 2, "none of them ended");
    }
}
