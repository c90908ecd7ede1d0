//! Removal of blobs that nothing needs, on the owner's demand; otherwise they go when room is needed.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::routing::post;
use axum::{Json, Router};
use idlewood_api::{CleanRequest, CleanedView};
use idlewood_blobs::Blobs;

use super::answers::{Answer, Failure, parse};

pub(super) fn routes(blobs: Arc<Blobs>) -> Router {
    Router::new().route("/v1/clean", post(clean)).with_state(blobs)
}

async fn clean(State(blobs): State<Arc<Blobs>>, body: Result<Bytes, BytesRejection>) -> Answer<CleanedView> {
    let CleanRequest { dry_run } = parse(body)?;
    let work = move || if dry_run { blobs.unneeded() } else { blobs.remove_unneeded() };
    let found = tokio::task::spawn_blocking(work).await.map_err(|error| Failure::internal(&error))?;
    Ok(Json(CleanedView {
        files: found.files,
        bytes: found.bytes,
        partial_files: found.partial_files,
        partial_bytes: found.partial_bytes,
    }))
}
