//! What is said between a machine that wants to know whether it is reached and the one that dials it ([`dial_back`](crate::dial_back)).

use std::io;
use std::time::Duration;

use libp2p::StreamProtocol;
use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::request_response::{self, ProtocolSupport};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Dials at a time, for all machines.
pub(super) const DIALS_MAX: usize = 4;
/// Longest question or answer, in bytes. Reasons have up to 200 characters, of four bytes each at most.
const BYTES_MAX: usize = 1024;
/// How long an answer may take: a dial, and the way there and back.
const TIMEOUT: Duration = Duration::from_secs(15);

/// "Dial me back at this port."
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    #[serde(rename = "p")]
    pub(super) port: u16,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// The asker's address, as it was seen.
    #[serde(rename = "a")]
    pub(super) address: String,
    /// Null: the asker was reached.
    #[serde(rename = "f")]
    pub(super) failure: Option<String>,
    /// The clock of who dialled, in milliseconds of Unix time.
    #[serde(rename = "t")]
    pub(super) wall_ms: u64,
}

/// The behaviour for the protocol of a grid.
pub(super) fn behaviour(grid: idlewood_overlay::GridId) -> request_response::Behaviour<Codec> {
    let name = format!("/idlewood/{}/dial-back/1", hex::encode(&grid.0[..8]));
    let protocol = StreamProtocol::try_from_owned(name).expect("the name begins with a slash");
    let config =
        request_response::Config::default().with_request_timeout(TIMEOUT).with_max_concurrent_streams(DIALS_MAX);
    request_response::Behaviour::with_codec(Codec, [(protocol, ProtocolSupport::Full)], config)
}

/// One CBOR value each way.
#[derive(Clone, Debug, Default)]
pub(super) struct Codec;

async fn read<T: AsyncRead + Unpin + Send, V: DeserializeOwned>(io: &mut T) -> io::Result<V> {
    let mut bytes = Vec::new();
    io.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).await?;
    if bytes.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than the protocol allows"));
    }
    ciborium::de::from_reader_with_recursion_limit(&bytes[..], 4)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

async fn write<T: AsyncWrite + Unpin + Send, V: Serialize>(io: &mut T, value: &V) -> io::Result<()> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).map_err(io::Error::other)?;
    io.write_all(&bytes).await
}

impl request_response::Codec for Codec {
    type Protocol = StreamProtocol;
    type Request = Ask;
    type Response = Told;

    async fn read_request<T: AsyncRead + Unpin + Send>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Ask> {
        read(io).await
    }

    async fn read_response<T: AsyncRead + Unpin + Send>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Told> {
        read(io).await
    }

    async fn write_request<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        request: Ask,
    ) -> io::Result<()> {
        write(io, &request).await
    }

    async fn write_response<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        response: Told,
    ) -> io::Result<()> {
        write(io, &response).await
    }
}

#[cfg(test)]
mod tests {
    use libp2p::futures::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn questions_and_answers_keep_their_bytes_and_have_a_bound() {
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &Ask { port: 4001 }).await.unwrap();
        assert_eq!(bytes.get_ref(), b"\xa1\x61p\x19\x0f\xa1");
        let answer = Told { address: "192.0.2.7".to_owned(), failure: None, wall_ms: 1 };
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &answer).await.unwrap();
        assert_eq!(bytes.get_ref(), b"\xa3\x61a\x69192.0.2.7\x61f\xf6\x61t\x01");
        let read_back: Told = read(&mut &bytes.get_ref()[..]).await.unwrap();
        assert_eq!(read_back, answer);
        let long = Told { failure: Some("x".repeat(BYTES_MAX)), ..answer };
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, &long).await.unwrap();
        assert!(read::<_, Told>(&mut &bytes.get_ref()[..]).await.is_err());
        assert!(read::<_, Ask>(&mut &b"\xff"[..]).await.is_err());
    }
}
