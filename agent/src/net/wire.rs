//! What two agents say to each other: one CBOR value each way, in a frame that is capped in size before it is decoded
//! ([`super::conversation`]).
//!
//! The scheduler's and the overlay's messages are opaque bytes here. A request is answered when it has been *queued*,
//! not when it has been acted on: the layers above tolerate loss and repeat what matters.

use std::io;

use libp2p::StreamProtocol;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::conversation::FRAME_BYTES_MAX;

/// Longest message, in bytes. Our choice: a root's summary is about 1 kB, the longest list of ranges some 10 kB.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// Longest piece of a blob, in bytes. Our choice: small enough not to hold up messages on a link of 10 Mbit/s by more
/// than a fifth of a second.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// Deepest nesting of CBOR; our values need three levels.
const RECURSION_MAX: usize = 16;

/// What one agent asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Bytes for the layer above.
    Message(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A piece of a blob, of at most [`CHUNK_BYTES_MAX`] bytes.
    Chunk {
        #[serde(with = "serde_bytes")]
        hash: [u8; 32],
        offset: u64,
    },
    /// About the grid: revocations, administrators, certificates.
    Grid(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The message is queued.
    Ack,
    /// The message is queued, and here is one for whoever sent it.
    Message(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Too much at once: the message is lost, the chunk may be asked for again.
    Busy,
    /// The piece, and the length of the whole blob.
    Chunk {
        total: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// There is no such blob here.
    Missing,
    /// About the grid.
    Grid(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// The protocol's name: grids cannot talk to each other by accident. The last number is the major version.
pub(super) fn protocol(grid: idlewood_overlay::GridId) -> StreamProtocol {
    StreamProtocol::try_from_owned(format!("/idlewood/{}/peer/3", hex::encode(&grid.0[..8])))
        .expect("the name begins with a slash")
}

/// The bytes of a value.
///
/// # Errors
/// There are more than a frame may have.
pub(super) fn encode<V: Serialize>(value: &V) -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    ciborium::into_writer(value, &mut frame).map_err(io::Error::other)?;
    if frame.len() > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the frame is larger than the protocol allows"));
    }
    Ok(frame)
}

/// The value of a frame.
///
/// # Errors
/// It is not one, or too deep, or bytes follow it.
pub(super) fn decode<V: DeserializeOwned>(frame: &[u8]) -> io::Result<V> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_on_the_wire_are_pinned() {
        let hash = [0x11; 32];
        let request = |value: &Request| hex::encode(encode(value).unwrap());
        let reply = |value: &Reply| hex::encode(encode(value).unwrap());
        assert_eq!(request(&Request::Message(vec![1, 2, 3])), "a1674d65737361676543010203");
        assert_eq!(
            request(&Request::Chunk { hash, offset: 65536 }),
            format!("a1654368756e6ba264686173685820{}666f66667365741a00010000", "11".repeat(32))
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
        let good = encode(&Request::Chunk { hash: [1; 32], offset: 9 }).unwrap();
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

    #[test]
    fn mutations_of_frames() {
        use crate::fuzz::mutations;

        let requests =
            [Request::Message(vec![1, 2, 3]), Request::Chunk { hash: [1; 32], offset: 9 }, Request::Grid(vec![7])];
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
