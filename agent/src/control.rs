//! The server of the control API: owner's commands and submissions as JSON over HTTP/1.1 on loopback. Their types are
//! in `idlewood-api`.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status`, `/v1/peers`, `/v1/names`, `/v1/bags`, `/v1/bags/{id}`, `/v1/bags/{id}/results`, `/v1/bags/{id}/receipts`,
//! `/v1/bags/{id}/ticket` | the present state |
//! | `GET /v1/machines?after={place}&state={state},...&name={pattern}` | the machines of the grid on a part of the line, and where the next begins |
//! | `GET /v1/bags?state={state},...&since_s={seconds}&before={id}&limit={count}` | the latest bags of those |
//! | `GET /v1/bags/{id}/results?from={index}&most={count}` | up to so many results, from that task on |
//! | `GET /v1/bags/{id}/tasks?from={index}&most={count}&state={state},...` | up to so many tasks, from that one on, in these states |
//! | `POST /v1/bags/{id}/live` | what running tasks have written behind what the client has |
//! | `GET /v1/bags/{id}/results/{index}/output` | the output of a task, if it is small enough to be in its record; else
//! the hash of its blob |
//! | `POST /v1/bags` | the bag, once it is durable |
//! | `POST /v1/bags/{id}/lines`, `close`, `drain` | an endless bag: more tasks, no more, or results that are saved elsewhere |
//! | `POST /v1/bags/{id}/cancel`, `hold`, `release`, `rename`, `priority`, `rerun`, `remove`, `/v1/pause`, `/v1/resume`, `/v1/finish`,
//! `/v1/restart` | the state afterwards |
//! | `POST /v1/grid/invite`, `/v1/grid/revoke` | the invitation, the revoked machine |
//! | `POST /v1/grid/leave` | the state before the agent starts anew without a grid |
//! | `POST /v1/reach` | what other machines say that were asked to connect to this one |
//! | `POST /v1/clean` | how many blobs that nothing needs were removed |
//! | `HEAD`, `GET /v1/blobs/{hash}` | the content, streamed |
//! | `POST /v1/blobs?blob={hash}` | stores the content, streamed; not durable before a bag that names it is |
//!
//! A user who can read `control.json` (0600) may command the agent: it contains a token that changes with every start.
//! Web pages are kept out twice, by the token and by `guard`. Failures are `{"error": "a sentence"}`.
//!
//! Left out: TLS (loopback), pages of other lists, and events pushed to the client (clients poll).

mod answers;
mod blob;
mod clean;
mod grid;
mod guard;
pub(crate) mod openapi;
mod reach;
mod server;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use idlewood_api::client::ENDPOINT_FILE;
use idlewood_api::{
    BagsWanted, DrainRequest, Endpoint, PauseRequest, PriorityRequest, RenameRequest, RerunRequest, TaskState,
};
use idlewood_blobs::Blobs;
use idlewood_net::NetHandle;
use idlewood_scheduler::Wish;
use idlewood_trust::Gate;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use answers::{Answer, Failure, REQUEST_BYTES_MAX, parse};
use guard::Guard;

use crate::handle::{MachinesQuery, NodeHandle, Page, TaskQuery};

/// How long requests under way may continue after the agent was told to end.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
/// Longest pause that resumes by itself: beyond that, pause without an end.
const PAUSE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Why there is no control API.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The port is taken, or loopback is missing.
    #[error("cannot listen on {address} for commands: {source}; choose another --control-port, or leave it out")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// `control.json` cannot be written.
    #[error("cannot write {}: {source}; check the permissions and the space of the state directory", path.display())]
    Endpoint {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A running control API. Dropping it cuts off the requests under way.
#[derive(Debug)]
pub struct Control {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

/// Listens on 127.0.0.1 (port 0 lets the system choose), writes `control.json` into `state_dir`, and answers requests.
///
/// # Errors
/// When the port is taken or the file cannot be written; nothing runs then.
pub async fn start(
    state_dir: &Path,
    port: u16,
    node: NodeHandle,
    blobs: Arc<Blobs>,
    gate: Arc<Gate>,
    net: NetHandle,
) -> Result<Control, ControlError> {
    let of_files = clean::routes(blobs.clone()).merge(blob::routes(blobs));
    let of_grid = grid::routes(gate).merge(reach::routes(net));
    serve(state_dir, port, bag_routes(node).merge(of_files).merge(of_grid)).await
}

async fn serve(state_dir: &Path, port: u16, routes: Router) -> Result<Control, ControlError> {
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let failed = |source| ControlError::Listen { address: wanted, source };
    let listener = TcpListener::bind(wanted).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let token = token();
    let router = protect(routes, Guard::new(&token, address.port()));
    let file = EndpointFile::write(state_dir, address, token)?;
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(async move {
        server::answer(listener, router, stopped).await;
        drop(file);
    });
    Ok(Control { address, stop, server })
}

impl Control {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more requests, answers those under way (for two seconds at most) and removes `control.json`.
    pub async fn shutdown(self) {
        let Self { stop, mut server, .. } = self;
        if stop.send(()).is_err() {
            debug!("the control API ended before");
        }
        if tokio::time::timeout(DRAIN_WAIT, &mut server).await.is_err() {
            debug!("requests under way are cut off");
            server.abort();
            // Waits until the file is removed; the cancellation itself is expected.
            if let Err(error) = server.await {
                debug!(%error, "the control API was cut off");
            }
        }
    }
}

/// 32 random bytes in hex.
fn token() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

/// `control.json`; removed on drop.
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
        // A newer agent's file stays.
        if fs::read(&self.path).is_ok_and(|content| content == self.content)
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "could not be removed; commands will find nobody there");
        }
    }
}

fn bag_routes(node: NodeHandle) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/peers", get(peers))
        .route("/v1/machines", get(machines))
        .route("/v1/names", get(names))
        .route("/v1/bags", get(bags).post(submit))
        .route("/v1/bags/{id}", get(bag))
        .route("/v1/bags/{id}/tasks", get(tasks))
        .route("/v1/bags/{id}/live", post(live))
        .route("/v1/bags/{id}/results", get(results))
        .route("/v1/bags/{id}/results/{index}/output", get(task_output))
        .route("/v1/bags/{id}/receipts", get(receipts))
        .route("/v1/bags/{id}/ticket", get(ticket))
        .route("/v1/bags/{id}/cancel", post(cancel))
        .route("/v1/bags/{id}/hold", post(hold))
        .route("/v1/bags/{id}/release", post(release))
        .route("/v1/bags/{id}/rename", post(rename))
        .route("/v1/bags/{id}/priority", post(priority))
        .route("/v1/bags/{id}/lines", post(lines))
        .route("/v1/bags/{id}/close", post(close))
        .route("/v1/bags/{id}/drain", post(drain))
        .route("/v1/bags/{id}/rerun", post(rerun))
        .route("/v1/bags/{id}/remove", post(remove))
        .route("/v1/pause", post(pause))
        .route("/v1/resume", post(resume))
        .route("/v1/finish", post(finish))
        .route("/v1/restart", post(restart))
        .route("/v1/grid/leave", post(leave_grid))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(node)
}

/// Puts the guard before every route, even before those that do not exist.
fn protect(router: Router, guard: Guard) -> Router {
    router
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "no such thing here; is the agent of another version?"))
        .method_not_allowed_fallback(async || {
            Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "that cannot be done with it; is the agent of another version?",
            )
        })
        .layer(middleware::from_fn_with_state(guard, guard::check))
}

async fn status(State(node): State<NodeHandle>) -> Answer<idlewood_api::Status> {
    Ok(Json(node.status().await?))
}

async fn peers(State(node): State<NodeHandle>) -> Answer<idlewood_api::Peers> {
    Ok(Json(node.peers().await?))
}

async fn names(State(node): State<NodeHandle>) -> Answer<BTreeMap<String, String>> {
    Ok(Json(node.names().await?))
}

/// Which machines to list.
#[derive(serde::Deserialize)]
struct MachinesWanted {
    #[serde(default)]
    after: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    name: String,
}

async fn machines(
    State(node): State<NodeHandle>,
    Query(MachinesWanted { after, state, name }): Query<MachinesWanted>,
) -> Answer<idlewood_api::Machines> {
    let wrong = |sentence: String| Failure::new(StatusCode::BAD_REQUEST, sentence);
    let first = match after.as_str() {
        "" => 0,
        place => u64::from_str_radix(place, 16)
            .map_err(|_| wrong(format!("{place:?} is no place to go on from: take `next` of the page before")))?,
    };
    let pattern = |name: &str| {
        glob::Pattern::new(name)
            .map_err(|error| wrong(format!("{name:?} is no pattern ({error}): write for example lab-*")))
    };
    let name = (!name.is_empty()).then(|| pattern(&name)).transpose()?;
    Ok(Json(node.machines(MachinesQuery { first, states: states(&state)?, name }).await?))
}

/// Which bags to list.
#[derive(serde::Deserialize)]
struct BagsQuery {
    #[serde(default)]
    state: String,
    since_s: Option<f64>,
    before: Option<String>,
    limit: Option<u64>,
}

async fn bags(
    State(node): State<NodeHandle>,
    Query(BagsQuery { state, since_s, before, limit }): Query<BagsQuery>,
) -> Answer<Vec<idlewood_api::Bag>> {
    Ok(Json(node.bags(BagsWanted { state: states(&state)?, since_s, before, limit }).await?))
}

/// States with commas between.
fn states<T: std::str::FromStr<Err = String>>(text: &str) -> Result<Vec<T>, Failure> {
    let words = text.split(',').filter(|word| !word.is_empty());
    words.map(str::parse).collect::<Result<_, String>>().map_err(|why| Failure::new(StatusCode::BAD_REQUEST, why))
}

async fn bag(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<idlewood_api::BagDetail> {
    Ok(Json(node.bag(&id).await?))
}

async fn results(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    Query(page): Query<Page>,
) -> Answer<Vec<idlewood_api::TaskResult>> {
    Ok(Json(node.results(&id, page).await?))
}

/// Which tasks to list.
#[derive(serde::Deserialize)]
struct TasksWanted {
    #[serde(default)]
    from: u64,
    #[serde(default = "tasks_together")]
    most: u64,
    #[serde(default)]
    state: String,
}

fn tasks_together() -> u64 {
    1000
}

async fn tasks(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    Query(TasksWanted { from, most, state }): Query<TasksWanted>,
) -> Answer<idlewood_api::Tasks> {
    let mut states: Vec<TaskState> = states(&state)?;
    if states.is_empty() {
        states = TaskState::ALL.to_vec();
    }
    Ok(Json(node.tasks(&id, TaskQuery { from, most, states }).await?))
}

async fn live(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<idlewood_api::Live> {
    Ok(Json(node.live(&id, parse(body)?).await?))
}

/// The output of a task: bytes if they are in the record of its result, else the hash of its blob.
async fn task_output(
    State(node): State<NodeHandle>,
    UrlPath((id, index)): UrlPath<(String, u64)>,
) -> Result<Response, Failure> {
    Ok(match node.output(&id, index).await? {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(blob) => {
            let elsewhere = format!("the output of task {index} is a blob: /v1/blobs/{blob}");
            return Err(Failure::new(StatusCode::CONFLICT, elsewhere));
        }
    })
}

async fn receipts(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<Vec<idlewood_api::Receipt>> {
    Ok(Json(node.receipts(&id).await?))
}

async fn submit(State(node): State<NodeHandle>, body: Result<Bytes, BytesRejection>) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.submit(parse(body)?).await?))
}

async fn cancel(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.cancel(&id).await?))
}

async fn hold(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.wish(&id, Wish::Hold).await?))
}

async fn release(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.wish(&id, Wish::Release).await?))
}

async fn rename(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<idlewood_api::Bag> {
    let RenameRequest { name } = parse(body)?;
    Ok(Json(node.wish(&id, Wish::Rename(name)).await?))
}

async fn priority(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<idlewood_api::Bag> {
    let PriorityRequest { priority } = parse(body)?;
    Ok(Json(node.wish(&id, Wish::Prioritise(priority)).await?))
}

async fn lines(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.add_lines(&id, parse(body)?).await?))
}

async fn close(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.close(&id).await?))
}

async fn drain(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<idlewood_api::Bag> {
    let DrainRequest { tasks } = parse(body)?;
    Ok(Json(node.drain(&id, tasks).await?))
}

async fn rerun(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<idlewood_api::Bag> {
    let RerunRequest { tasks } = parse(body)?;
    Ok(Json(node.rerun(&id, tasks).await?))
}

async fn remove(State(node): State<NodeHandle>, UrlPath(id): UrlPath<String>) -> Answer<idlewood_api::Bag> {
    Ok(Json(node.remove(&id).await?))
}

/// Whether a ticket should include the results so far.
#[derive(serde::Deserialize)]
struct TicketQuery {
    results: bool,
}

async fn ticket(
    State(node): State<NodeHandle>,
    UrlPath(id): UrlPath<String>,
    Query(query): Query<TicketQuery>,
) -> Answer<idlewood_api::Ticket> {
    Ok(Json(node.ticket(&id, query.results).await?))
}

async fn pause(State(node): State<NodeHandle>, body: Result<Bytes, BytesRejection>) -> Answer<idlewood_api::Status> {
    let request: PauseRequest = parse(body)?;
    Ok(Json(node.pause(pause_span(&request)?).await?))
}

async fn resume(State(node): State<NodeHandle>) -> Answer<idlewood_api::Status> {
    Ok(Json(node.resume().await?))
}

async fn finish(State(node): State<NodeHandle>) -> Answer<idlewood_api::Status> {
    Ok(Json(node.finish().await?))
}

async fn restart(State(node): State<NodeHandle>) -> Answer<idlewood_api::Status> {
    Ok(Json(node.restart().await?))
}

async fn leave_grid(State(node): State<NodeHandle>) -> Answer<idlewood_api::Status> {
    Ok(Json(node.leave_grid().await?))
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
