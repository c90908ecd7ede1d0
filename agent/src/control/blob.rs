//! Blobs over the control API: upload of programs and inputs, download of outputs.
//!
//! Both are streamed in bounded pieces, so a file of gigabytes costs no memory. Only blocking threads use the file
//! system.

use std::fs::File;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use blake3::Hash;
use idlewood_api::BlobBody;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_trust::manifest::INPUT_BYTES_MAX;
use libp2p::futures::stream;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::answers::{Answer, Failure};

/// Bytes read at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// Pieces that wait for the disk.
const PIECES_WAITING: usize = 8;

pub(super) fn routes(blobs: Arc<Blobs>) -> Router {
    Router::new().route("/v1/blobs", post(upload)).route("/v1/blobs/{hash}", get(download)).with_state(blobs)
}

#[derive(Deserialize)]
struct Upload {
    blob: String,
}

fn hash(text: &str) -> Result<Hash, Failure> {
    let wrong = |_| Failure::new(StatusCode::BAD_REQUEST, format!("{text:?} is no blob: use 64 hexadecimal digits"));
    Hash::from_hex(text).map_err(wrong)
}

fn too_large() -> Failure {
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a file is over {} GiB: split it", INPUT_BYTES_MAX >> 30))
}

/// Stores the content of the blob that the query names.
async fn upload(
    State(blobs): State<Arc<Blobs>>,
    query: Result<Query<Upload>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    mut body: Body,
) -> Answer<BlobBody> {
    let Query(query) = query.map_err(|_| {
        Failure::new(StatusCode::BAD_REQUEST, "say what is uploaded: /v1/blobs?blob=BLAKE3 of the content, in hex")
    })?;
    let hash = hash(&query.blob)?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > INPUT_BYTES_MAX) {
        return Err(too_large());
    }
    let (pieces, received) = mpsc::channel(PIECES_WAITING);
    let writer = spawn_blocking(move || store(&blobs, hash, received));
    let mut bytes = 0;
    let broken = loop {
        match next(&mut body).await {
            None => break None,
            Some(Ok(piece)) => {
                bytes += piece.len() as u64;
                if bytes > INPUT_BYTES_MAX {
                    break Some(too_large());
                }
                // After the writer has given up, the rest is read and dropped: a client that is still sending would not
                // see the answer.
                if !pieces.is_closed() && pieces.send(piece).await.is_err() {
                    continue;
                }
            }
            Some(Err(error)) => {
                break Some(Failure::new(StatusCode::BAD_REQUEST, format!("the upload broke off: {error}")));
            }
        }
    };
    drop(pieces);
    // A truncated upload has another hash, so it is not stored.
    let stored = writer.await.map_err(|error| Failure::internal(&error))?;
    if let Some(failure) = broken {
        return Err(failure);
    }
    Ok(Json(BlobBody { blob: stored?.to_hex().to_string(), bytes }))
}

fn store(blobs: &Blobs, hash: Hash, mut pieces: mpsc::Receiver<Bytes>) -> Result<Hash, BlobError> {
    let mut writer = blobs.receive(hash, INPUT_BYTES_MAX)?;
    while let Some(piece) = pieces.blocking_recv() {
        writer.write(&piece)?;
    }
    writer.finish()
}

/// The next piece of a body; `None` at its end.
async fn next(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    loop {
        match std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await? {
            Ok(frame) => {
                // Other frames are trailers, which mean nothing here.
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Sends the content of a blob. Its open file survives an eviction meanwhile.
async fn download(
    State(blobs): State<Arc<Blobs>>,
    Path(text): Path<String>,
    method: Method,
) -> Result<Response, Failure> {
    let hash = hash(&text)?;
    let opened = spawn_blocking(move || open(&blobs, hash)).await.map_err(|error| Failure::internal(&error))?;
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("blob {hash} is not here"));
    let opened = match opened {
        // The client then uploads it anew, which repairs it.
        Err(_) if method == Method::HEAD => None,
        opened => opened?,
    };
    let (file, bytes) = opened.ok_or_else(missing)?;
    let headers =
        [(header::CONTENT_LENGTH, bytes.to_string()), (header::CONTENT_TYPE, "application/octet-stream".to_owned())];
    let body = if method == Method::HEAD { Body::empty() } else { stream_of(file) };
    Ok((headers, body).into_response())
}

fn open(blobs: &Blobs, hash: Hash) -> Result<Option<(File, u64)>, BlobError> {
    let Some(path) = blobs.path(hash)? else { return Ok(None) };
    match File::open(&path).and_then(|file| file.metadata().map(|metadata| (file, metadata.len()))) {
        Ok(opened) => Ok(Some(opened)),
        // Evicted meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(BlobError::Io { action: "read", path, source }),
    }
}

fn stream_of(file: File) -> Body {
    Body::from_stream(stream::try_unfold(file, |mut file| async move {
        let read = spawn_blocking(move || {
            let mut buffer = vec![0; CHUNK_BYTES];
            let count = file.read(&mut buffer)?;
            buffer.truncate(count);
            Ok::<_, io::Error>((buffer, file))
        });
        let (buffer, file) = read.await.map_err(io::Error::other)??;
        Ok::<_, io::Error>(if buffer.is_empty() { None } else { Some((Bytes::from(buffer), file)) })
    }))
}
