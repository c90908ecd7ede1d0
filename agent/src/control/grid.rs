//! Invitations and revocations by an administrator. The gate carries them out; it may write to disk, and derive a key
//! from a passphrase.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use idlewood_api::{InvitationView, InviteRequest, RevokeRequest, RevokedView};
use idlewood_overlay::PeerId;
use idlewood_trust::{Gate, GateError, Offer, identity};
use idlewood_units::clock::iso_s;

use super::answers::{Answer, Failure, parse};

/// Shortest end of an id that names a connected machine.
const SUFFIX_MIN: usize = 6;

pub(super) fn routes(gate: Arc<Gate>) -> Router {
    Router::new().route("/v1/grid/invite", post(invite)).route("/v1/grid/revoke", post(revoke)).with_state(gate)
}

impl From<GateError> for Failure {
    fn from(error: GateError) -> Self {
        let status = match &error {
            GateError::Terms(_) | GateError::Oneself => StatusCode::BAD_REQUEST,
            GateError::NoGrid
            | GateError::NotAdmin(_)
            | GateError::Invalid(_)
            | GateError::NoGridKey
            | GateError::Key(_)
            | GateError::RevokedAlready => StatusCode::CONFLICT,
            GateError::Membership(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

async fn invite(State(gate): State<Arc<Gate>>, body: Result<Bytes, BytesRejection>) -> Answer<InvitationView> {
    let request: InviteRequest = parse(body)?;
    let offer = Offer {
        role: request.role,
        valid: span(request.valid_s)?,
        uses: request.uses,
        lifetime: span(request.lifetime_s)?,
    };
    let invited = beside(move || gate.invite(offer, request.passphrase.as_deref().map(str::as_bytes))).await?;
    let (role, expires, uses) = (invited.role, iso_s(invited.expires_s), invited.uses);
    Ok(Json(InvitationView { token: invited.to_string(), role, expires, uses }))
}

async fn revoke(State(gate): State<Arc<Gate>>, body: Result<Bytes, BytesRejection>) -> Answer<RevokedView> {
    let request: RevokeRequest = parse(body)?;
    let peer = named(&gate, &request.peer)?;
    beside(move || gate.revoke(peer, request.passphrase.as_deref().map(str::as_bytes))).await?;
    Ok(Json(RevokedView { peer: identity::to_libp2p(peer).to_string() }))
}

/// The machine with this id, or the connected one whose id ends with it.
fn named(gate: &Gate, text: &str) -> Result<PeerId, Failure> {
    if let Some(peer) = text.parse().ok().as_ref().and_then(identity::from_libp2p) {
        return Ok(peer);
    }
    let ends_so = |peer: &PeerId| identity::to_libp2p(*peer).to_string().ends_with(text);
    let found: Vec<PeerId> = gate.connected().into_iter().filter(ends_so).collect();
    match found[..] {
        [peer] if text.len() >= SUFFIX_MIN => Ok(peer),
        _ => Err(Failure::new(
            StatusCode::NOT_FOUND,
            format!("{text:?} names no single machine that is connected here: write its whole id (12D3KooW...)"),
        )),
    }
}

fn span(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::new(StatusCode::BAD_REQUEST, format!("{seconds} s is no stretch of time")))
}

/// Runs blocking work on a thread of its own.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T, GateError> + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::internal(&error))?.map_err(Failure::from)
}
