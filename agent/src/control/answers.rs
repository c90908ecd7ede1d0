//! What requests are read as and answered with, whatever they are about: JSON, or a failure with a sentence.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use idlewood_api::ErrorBody;
use idlewood_blobs::BlobError;
use idlewood_trust::manifest::MANIFEST_BYTES_MAX;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::handle::Refusal;

/// Largest request that is not a blob. JSON takes about twice the bytes of a manifest.
pub(super) const REQUEST_BYTES_MAX: usize = 2 * MANIFEST_BYTES_MAX as usize;

/// A failure on its way to the client.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) sentence: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into() }
    }

    /// A part of the agent failed.
    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        warn!(%error, "a command failed");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("the agent failed ({error}); see its log"))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.sentence })).into_response()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::NotFound(_) => StatusCode::NOT_FOUND,
            Refusal::Ambiguous(_) | Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Conflict(_) => StatusCode::CONFLICT,
            Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, refusal.to_string())
    }
}

impl From<BlobError> for Failure {
    fn from(error: BlobError) -> Self {
        let status = match &error {
            BlobError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BlobError::Mismatch { .. } => StatusCode::BAD_REQUEST,
            BlobError::Missing { .. } => StatusCode::NOT_FOUND,
            BlobError::Full { .. } | BlobError::DiskFull { .. } | BlobError::Io { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self::new(status, error.to_string())
    }
}

/// What a route answers with.
pub(super) type Answer<T> = Result<Json<T>, Failure>;

/// Reads a JSON body, whatever its content type.
pub(super) fn parse<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Failure> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let most = REQUEST_BYTES_MAX >> 20;
            Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the request is over {most} MiB: split the bag"))
        }
        status => Failure::new(status, rejection.body_text()),
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| Failure::new(StatusCode::BAD_REQUEST, format!("the request is malformed: {error}")))
}
