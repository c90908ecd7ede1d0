//! Protocols beside the main one ([`wire`](crate::wire)), which machines with an earlier release do not speak: one CBOR value each way, each
//! with a bound before it is decoded.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use libp2p::StreamProtocol;
use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::request_response::{self, ProtocolSupport};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Deepest nesting of CBOR.
const RECURSION_MAX: usize = 8;

/// Reads and writes questions of type `A`, of at most `A_MAX` bytes, and answers of type `T`, of at most `T_MAX` bytes.
pub(super) struct SmallCodec<A, T, const A_MAX: usize, const T_MAX: usize>(PhantomData<fn() -> (A, T)>);

impl<A, T, const A_MAX: usize, const T_MAX: usize> Clone for SmallCodec<A, T, A_MAX, T_MAX> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

/// The behaviour for such a protocol of a grid: `name` is the end of the protocol's name. An answer may take `timeout`, and a connection
/// has at most `streams_max` questions at a time.
pub(super) fn behaviour<A, T, const A_MAX: usize, const T_MAX: usize>(
    grid: idlewood_overlay::GridId,
    name: &str,
    timeout: Duration,
    streams_max: usize,
) -> request_response::Behaviour<SmallCodec<A, T, A_MAX, T_MAX>>
where
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let name = format!("/idlewood/{}/{name}", hex::encode(&grid.0[..8]));
    let protocol = StreamProtocol::try_from_owned(name).expect("the name begins with a slash");
    let config =
        request_response::Config::default().with_request_timeout(timeout).with_max_concurrent_streams(streams_max);
    request_response::Behaviour::with_codec(SmallCodec(PhantomData), [(protocol, ProtocolSupport::Full)], config)
}

/// Reads a value of at most `MAX` bytes.
pub(super) async fn read<I: AsyncRead + Unpin + Send, V: DeserializeOwned, const MAX: usize>(
    io: &mut I,
) -> io::Result<V> {
    let mut bytes = Vec::new();
    io.take(MAX as u64 + 1).read_to_end(&mut bytes).await?;
    if bytes.len() > MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than the protocol allows"));
    }
    ciborium::de::from_reader_with_recursion_limit(&bytes[..], RECURSION_MAX)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// Writes a value.
pub(super) async fn write<I: AsyncWrite + Unpin + Send, V: Serialize>(io: &mut I, value: &V) -> io::Result<()> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).map_err(io::Error::other)?;
    io.write_all(&bytes).await
}

impl<A, T, const A_MAX: usize, const T_MAX: usize> request_response::Codec for SmallCodec<A, T, A_MAX, T_MAX>
where
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    type Protocol = StreamProtocol;
    type Request = A;
    type Response = T;

    async fn read_request<I: AsyncRead + Unpin + Send>(&mut self, _: &StreamProtocol, io: &mut I) -> io::Result<A> {
        read::<_, _, A_MAX>(io).await
    }

    async fn read_response<I: AsyncRead + Unpin + Send>(&mut self, _: &StreamProtocol, io: &mut I) -> io::Result<T> {
        read::<_, _, T_MAX>(io).await
    }

    async fn write_request<I: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut I,
        request: A,
    ) -> io::Result<()> {
        write(io, &request).await
    }

    async fn write_response<I: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut I,
        response: T,
    ) -> io::Result<()> {
        write(io, &response).await
    }
}
