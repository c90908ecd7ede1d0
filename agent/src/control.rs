//! The control API: how the owner's commands and the user's submissions reach an agent, as JSON over HTTP/1.1 on
//! loopback. `api.rs` has the words.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status`, `/v1/peers`, `/v1/bags`, `/v1/bags/{id}`, `/v1/bags/{id}/results` | what is |
//! | `POST /v1/bags` | the bag, once it is durable |
//! | `POST /v1/bags/{id}/cancel`, `/v1/pause`, `/v1/resume` | what is then |
//! | `HEAD`, `GET /v1/blobs/{hash}` | the content, streamed |
//! | `POST /v1/blobs?blob={hash}` | takes the content, streamed; not durable before a bag that names it is |
//!
//! Who may command an agent is who can read its `control.json` (0600): it holds a token that changes with every
//! start. Web pages are kept out twice, by the token and by `guard`. Failures are `{"error": "a sentence"}`.
//!
//! Left out: TLS (loopback), pages of long lists, and events pushed to the client (clients poll).

mod blob;
mod guard;

use std::fs::{self, File, Permissions};
use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::api::{self, Endpoint, ErrorBody, PauseRequest};
use crate::blobs::{BlobError, Blobs};
use crate::client::ENDPOINT_FILE;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::node::{NodeHandle, Refusal};

use guard::Guard;

/// Largest request that is not a blob. JSON takes about twice what the manifest takes.
const REQUEST_BYTES_MAX: usize = 2 * MANIFEST_BYTES_MAX as usize;
/// How long requests that are under way may go on after the agent was told to end.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
/// Longest pause that resumes by itself: beyond that, pause without an end.
const PAUSE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Why there is no control API.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The port is taken, or loopback is missing.
    #[error("cannot listen on {address} for commands: {source}; choose another --control-port, or none")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The file that says where it is cannot be written.
    #[error("cannot write {}: {source}; check the permissions and the space of the state directory", path.display())]
    Endpoint {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No token could be made.
    #[error("the system gives no random numbers: {0}")]
    Randomness(io::Error),
    /// The server gave up.
    #[error("the control API ended: {0}")]
    Serve(io::Error),
}

/// A control API that listens, but does not answer yet.
#[derive(Debug)]
pub struct Control {
    listener: TcpListener,
    address: SocketAddr,
    token: String,
    state_dir: PathBuf,
}

impl Control {
    /// Listens on 127.0.0.1; port 0 lets the system choose.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn bind(state_dir: &Path, port: u16) -> Result<Self, ControlError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |source| ControlError::Listen { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = token().map_err(ControlError::Randomness)?;
        Ok(Self { listener, address, token, state_dir: state_dir.to_owned() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes `control.json` and answers until `shutdown` completes and the requests under way are answered (two
    /// seconds at most); then removes the file.
    ///
    /// # Errors
    /// When the file cannot be written or the listener fails.
    pub async fn serve(
        self,
        node: NodeHandle,
        blobs: Blobs,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ControlError> {
        let guard = Guard::new(&self.token, self.address.port());
        self.serve_router(protect(bag_routes(node).merge(blob::routes(blobs)), guard), shutdown).await
    }

    async fn serve_router(
        self,
        router: Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ControlError> {
        let file = EndpointFile::write(&self.state_dir, self.address, self.token)?;
        let (ended, mut end) = watch::channel(false);
        let server = axum::serve(self.listener, router).with_graceful_shutdown(async move {
            shutdown.await;
            ended.send_replace(true);
        });
        let drained = async {
            // Fails when the server has dropped the sender: then it has ended by itself.
            match end.wait_for(|&ended| ended).await {
                Ok(_) => tokio::time::sleep(DRAIN_WAIT).await,
                Err(_) => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            result = server => result.map_err(ControlError::Serve),
            () = drained => {
                debug!("requests under way were cut off");
                Ok(())
            }
        };
        drop(file);
        result
    }
}

/// 32 random bytes in hex.
fn token() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// `control.json`, while the agent lives.
struct EndpointFile {
    path: PathBuf,
    content: Vec<u8>,
}

impl EndpointFile {
    fn write(state_dir: &Path, address: SocketAddr, token: String) -> Result<Self, ControlError> {
        let path = state_dir.join(ENDPOINT_FILE);
        let endpoint = Endpoint { address: address.to_string(), token, pid: std::process::id() };
        let write = || {
            let mut content = serde_json::to_vec(&endpoint)?;
            content.push(b'\n');
            let mut file = NamedTempFile::new_in(state_dir)?;
            file.as_file().set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(&content)?;
            file.persist(&path)?;
            Ok(content)
        };
        let content = write().map_err(|source| ControlError::Endpoint { path: path.clone(), source })?;
        Ok(Self { path, content })
    }
}

impl Drop for EndpointFile {
    fn drop(&mut self) {
        // That of an agent that started since stays.
        if fs::read(&self.path).is_ok_and(|content| content == self.content)
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "could not be removed; commands will find nobody there");
        }
    }
}

/// A failure on its way to the client.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    sentence: String,
}

impl Failure {
    fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into() }
    }

    /// A piece of the agent itself broke.
    fn internal(error: &dyn std::error::Error) -> Self {
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
            BlobError::Full { .. } | BlobError::Io { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

type Answer<T> = Result<Json<T>, Failure>;

fn bag_routes(node: NodeHandle) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/peers", get(peers))
        .route("/v1/bags", get(bags).post(submit))
        .route("/v1/bags/{id}", get(bag))
        .route("/v1/bags/{id}/results", get(results))
        .route("/v1/bags/{id}/cancel", post(cancel))
        .route("/v1/pause", post(pause))
        .route("/v1/resume", post(resume))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(node)
}

/// Puts the guard before everything, also before what does not exist.
fn protect(router: Router, guard: Guard) -> Router {
    router
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "no such thing here; is the agent of another version?"))
        .method_not_allowed_fallback(async || {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "that cannot be done with it; is the agent of another version?")
        })
        .layer(middleware::from_fn_with_state(guard, guard::check))
}

async fn status(State(node): State<NodeHandle>) -> Answer<api::Status> {
    Ok(Json(node.status().await?))
}

async fn peers(State(node): State<NodeHandle>) -> Answer<api::Peers> {
    Ok(Json(node.peers().await?))
}

async fn bags(State(node): State<NodeHandle>) -> Answer<Vec<api::Bag>> {
    Ok(Json(node.bags().await?))
}

async fn bag(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<api::BagDetail> {
    Ok(Json(node.bag(&id).await?))
}

async fn results(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<Vec<api::TaskResult>> {
    Ok(Json(node.results(&id).await?))
}

async fn submit(State(node): State<NodeHandle>, body: Result<Bytes, BytesRejection>) -> Answer<api::Bag> {
    Ok(Json(node.submit(parse(body)?).await?))
}

async fn cancel(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<api::Bag> {
    Ok(Json(node.cancel(&id).await?))
}

async fn pause(State(node): State<NodeHandle>, body: Result<Bytes, BytesRejection>) -> Answer<api::Status> {
    let request: PauseRequest = parse(body)?;
    Ok(Json(node.pause(pause_span(&request)?).await?))
}

async fn resume(State(node): State<NodeHandle>) -> Answer<api::Status> {
    Ok(Json(node.resume().await?))
}

/// Reads a JSON body, whatever its content type says.
fn parse<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Failure> {
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

fn pause_span(request: &PauseRequest) -> Result<Option<Duration>, Failure> {
    let Some(seconds) = request.for_s else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(span) if !span.is_zero() && span <= PAUSE_MAX => Ok(Some(span)),
        Ok(_) | Err(_) => Err(Failure::new(
            StatusCode::BAD_REQUEST,
            format!("cannot pause for {seconds} s: give up to a year, or no end at all"),
        )),
    }
}

#[cfg(test)]
mod tests;
