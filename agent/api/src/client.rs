//! The client of the control API, for the command line: blocking HTTP over loopback.
//!
//! An agent writes its address and a token to `control.json` in its state directory; a user who can read that file may
//! command the agent. Every failure is a sentence that says what to do, and distinguishes an agent that does not run
//! from one that runs and cannot be reached. Commands wait for an agent that is starting ([`Client::wait_for`]).
//!
//! Left out: retries (a request that may have been carried out is not repeated) and proxies (loopback only).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use blake3::Hash;
use idlewood_scheduler::SMALL_OUTPUT_BYTES_MAX;
use idlewood_store::StateLock;
use idlewood_trust::manifest::OUTPUT_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::{
    Bag, BagDetail, BagsWanted, BlobBody, CleanRequest, CleanedView, DrainRequest, Endpoint, ErrorBody, InvitationView,
    InviteRequest, LinesRequest, Live, LiveRequest, Machines, MachinesWanted, PauseRequest, Peers, PriorityRequest,
    ReachView, Receipt, RenameRequest, RerunRequest, RevokeRequest, RevokedView, Status, SubmitRequest, TaskResult,
    TaskState, Tasks, Ticket,
};

/// Name of the file in the state directory with the agent's address.
pub const ENDPOINT_FILE: &str = "control.json";

/// Longest wait for a connection: if silent connections fill the agent's queue, the system tries again after 1, 3 and 7
/// s.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long a state directory may be unused before its agent counts as absent: `idlewood run &` takes a moment.
const ABSENT_WAIT: Duration = Duration::from_secs(2);
/// How long an agent may take to start: reading a large store and measuring the speed at the first start.
const START_WAIT: Duration = Duration::from_secs(30);
/// After so much of it whoever waits is told so.
const START_TOLD: Duration = Duration::from_secs(1);
/// How often to look whether it has started.
const START_LOOK: Duration = Duration::from_millis(20);
/// An agent answers at once; one that is stopped (SIGSTOP) or swapped out gets this long.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// A submission is answered when it is durable.
const SUBMIT_WAIT: Duration = Duration::from_secs(600);
/// Results requested at a time.
const RESULTS_TOGETHER: u64 = 10_000;
/// Largest JSON answer: the receipts of a bag of a million tasks.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Largest blob that holds a task's output; its frame takes some bytes too.
const OUTPUT_BLOB_BYTES_MAX: u64 = OUTPUT_BYTES_MAX + (16 << 20);

/// Why the agent did not carry out a command.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent runs on this state directory.
    #[error("no agent is running on {}: start one with `idlewood run --state-dir {}`", state_dir.display(), state_dir.display())]
    NoAgent {
        /// The state directory.
        state_dir: PathBuf,
    },
    /// An agent has locked the state directory, and does not take commands, not yet or not any more.
    #[error("the agent on {} ({holder}) has taken no commands for {} s: it is still starting, or ending; see its log, and try again", state_dir.display(), START_WAIT.as_secs())]
    NotReady {
        /// The state directory.
        state_dir: PathBuf,
        /// The holder of its lock.
        holder: String,
    },
    /// The agent's process runs, but accepts no connection.
    #[error("the agent on {} runs (process {pid}) and cannot be reached on {address}: it is stopped, or has too much to do; try again, or end it with `kill {pid}`", state_dir.display())]
    Unreachable {
        /// The state directory.
        state_dir: PathBuf,
        /// Its process.
        pid: u32,
        /// The address at which it should answer.
        address: String,
    },
    /// The state directory or the file in it cannot be read.
    #[error("cannot read {}: {source}; run this as the user that runs the agent, or name another --state-dir", path.display())]
    StateDir {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The agent refused the command.
    #[error("{sentence}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its reason.
        sentence: String,
    },
    /// Another program, or another version, answers there.
    #[error("what answers on {address} is not an idlewood agent of this version ({reason}); restart the agent")]
    Foreign {
        /// The address.
        address: String,
        /// The mismatch.
        reason: String,
    },
    /// The connection broke; the command may have been carried out.
    #[error("the agent on {address} stopped answering ({reason}); see whether it still runs")]
    Broken {
        /// The address.
        address: String,
        /// The failure.
        reason: String,
    },
}

impl ClientError {
    /// Whether the agent may be back in a moment.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoAgent { .. } | Self::NotReady { .. } | Self::Unreachable { .. } | Self::Broken { .. })
    }
}

/// The client of one state directory's agent.
#[derive(Debug)]
pub struct Client {
    http: Agent,
    endpoint: Endpoint,
    state_dir: PathBuf,
}

impl Client {
    /// As [`Client::open`], once the agent that has locked `state_dir`, or locks it within two seconds, answers
    /// commands. After a second of waiting for an agent that has locked it, `tell` is given a sentence that says so, once.
    ///
    /// # Errors
    /// When there is none, it does not get ready within half a minute, or the directory cannot be read.
    pub fn wait_for(state_dir: &Path, tell: impl FnOnce(&str)) -> Result<Self, ClientError> {
        let begin = Instant::now();
        let mut had = begin;
        let mut tell = Some(tell);
        loop {
            let holder = StateLock::holder(state_dir);
            let found = Self::open(state_dir);
            match (&found, &holder) {
                (Ok(client), Some(holder)) if client.is_of(holder) => return found,
                (Err(ClientError::StateDir { .. }), _) => return found,
                // The file was left by an agent that has ended.
                (_, None) if had.elapsed() >= ABSENT_WAIT => {
                    return Err(ClientError::NoAgent { state_dir: state_dir.to_owned() });
                }
                (_, None) => {}
                (_, Some(holder)) if begin.elapsed() >= START_WAIT => {
                    let holder = holder.clone();
                    return Err(ClientError::NotReady { state_dir: state_dir.to_owned(), holder });
                }
                (_, Some(holder)) => {
                    had = Instant::now();
                    if begin.elapsed() >= START_TOLD
                        && let Some(tell) = tell.take()
                    {
                        tell(&format!(
                            "waiting for the agent on {} ({holder}), which is starting; Ctrl-C ends the wait alone",
                            state_dir.display()
                        ));
                    }
                }
            }
            thread::sleep(START_LOOK);
        }
    }

    /// Whether both clients know the same start of an agent, which has a token of its own each time.
    pub fn is_same_start(&self, other: &Self) -> bool {
        self.endpoint.token == other.endpoint.token
    }

    /// Whether this client commands the process that holds the lock.
    fn is_of(&self, holder: &str) -> bool {
        holder == format!("process {}", self.endpoint.pid)
    }

    /// Finds the agent of `state_dir`, without connecting to it and without waiting.
    ///
    /// # Errors
    /// When there is none, or the directory cannot be read.
    pub fn open(state_dir: &Path) -> Result<Self, ClientError> {
        let path = state_dir.join(ENDPOINT_FILE);
        let text = fs::read_to_string(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ClientError::NoAgent { state_dir: state_dir.to_owned() },
            _ => ClientError::StateDir { path: path.clone(), source },
        })?;
        // The agent writes it atomically: a file that does not parse is not an agent's.
        let endpoint: Endpoint = serde_json::from_str(&text)
            .map_err(|error| ClientError::StateDir { path, source: io::Error::other(error) })?;
        let http = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_WAIT))
            .timeout_recv_response(Some(ANSWER_WAIT))
            .build()
            .new_agent();
        Ok(Self { http, endpoint, state_dir: state_dir.to_owned() })
    }

    /// `GET /v1/status`.
    ///
    /// # Errors
    /// As all methods here: [`ClientError`].
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// `GET /v1/peers`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn peers(&self) -> Result<Peers, ClientError> {
        self.get("/v1/peers")
    }

    /// `GET /v1/names`: what machines are called, by peer id.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn names(&self) -> Result<BTreeMap<String, String>, ClientError> {
        self.get("/v1/names")
    }

    /// `GET /v1/machines`: the machines on a part of the line.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn machines(&self, wanted: &MachinesWanted) -> Result<Machines, ClientError> {
        let states = wanted.state.iter().map(|state| state.name()).collect::<Vec<_>>().join(",");
        let after = wanted.after.as_deref().map(|after| format!("&after={}", segment(after))).unwrap_or_default();
        let name = wanted.name.as_deref().map(|name| format!("&name={}", segment(name))).unwrap_or_default();
        self.get(&format!("/v1/machines?state={states}{after}{name}"))
    }

    /// `GET /v1/bags`: the bags submitted here.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn bags(&self) -> Result<Vec<Bag>, ClientError> {
        self.get("/v1/bags")
    }

    /// `GET /v1/bags?...`: some of them, the latest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn bags_wanted(&self, wanted: &BagsWanted) -> Result<Vec<Bag>, ClientError> {
        self.get(&format!("/v1/bags?{}", wanted.query(segment)))
    }

    /// `GET /v1/bags/{id}`. `id` is a unique prefix, a name, or `last`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn bag(&self, id: &str) -> Result<BagDetail, ClientError> {
        self.get(&format!("/v1/bags/{}", segment(id)))
    }

    /// `GET /v1/bags/{id}/results`: the finished tasks.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn results(&self, id: &str) -> Result<Vec<TaskResult>, ClientError> {
        let mut all = Vec::new();
        self.each_result(id, 0..=u64::MAX, |result| all.push(result))?;
        Ok(all)
    }

    /// The results of these tasks, one after the other; requests them in batches.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn each_result(
        &self,
        id: &str,
        tasks: RangeInclusive<u64>,
        mut each: impl FnMut(TaskResult),
    ) -> Result<(), ClientError> {
        let (from, last) = tasks.into_inner();
        let mut next = Some(from).filter(|from| *from <= last);
        while let Some(from) = next {
            let most = (last - from).saturating_add(1).min(RESULTS_TOGETHER);
            let page: Vec<TaskResult> =
                self.get(&format!("/v1/bags/{}/results?from={from}&most={most}", segment(id)))?;
            let behind = page.last().and_then(|result| result.index.checked_add(1));
            next = behind.filter(|next| page.len() as u64 == most && *next > from && *next <= last);
            page.into_iter().filter(|result| result.index <= last).for_each(&mut each);
        }
        Ok(())
    }

    /// `GET /v1/bags/{id}/tasks`: up to so many tasks from `from` on that are in one of these states; of none given, in any.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tasks(&self, id: &str, from: u64, most: u64, states: &[TaskState]) -> Result<Tasks, ClientError> {
        let states = states.iter().map(|state| state.name()).collect::<Vec<_>>().join(",");
        self.get(&format!("/v1/bags/{}/tasks?from={from}&most={most}&state={states}", segment(id)))
    }

    /// `GET /v1/bags/{id}/results/{index}/output`: the encoded output of a finished task.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn output(&self, id: &str, result: &TaskResult) -> Result<Vec<u8>, ClientError> {
        if result.output_bytes > SMALL_OUTPUT_BYTES_MAX as u64 {
            return self.download(&result.output);
        }
        match self.bytes(&format!("/v1/bags/{}/results/{}/output", segment(id), result.index)) {
            // A small output is kept as a blob if too many results were waiting for acknowledgement.
            Err(ClientError::Refused { status: 409, .. }) => self.download(&result.output),
            output => output,
        }
    }

    /// `POST /v1/bags/{id}/live`: what running tasks have written.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn live(&self, id: &str, request: &LiveRequest) -> Result<Live, ClientError> {
        self.post(&format!("/v1/bags/{}/live", segment(id)), request, ANSWER_WAIT)
    }

    /// `GET /v1/bags/{id}/receipts`: the signed statements about finished tasks.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn receipts(&self, id: &str) -> Result<Vec<Receipt>, ClientError> {
        self.get(&format!("/v1/bags/{}/receipts", segment(id)))
    }

    /// `POST /v1/bags`: returns when the bag is durable.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn submit(&self, request: &SubmitRequest) -> Result<Bag, ClientError> {
        self.post("/v1/bags", request, SUBMIT_WAIT)
    }

    /// `POST /v1/bags/{id}/cancel`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cancel(&self, id: &str) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/cancel", segment(id)), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/hold`: no task of it begins any more.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn hold(&self, id: &str) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/hold", segment(id)), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/release`: it goes on, without waiting for other bags.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn release(&self, id: &str) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/release", segment(id)), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/rename`: it has another name from now on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn rename(&self, id: &str, name: &str) -> Result<Bag, ClientError> {
        let request = RenameRequest { name: name.to_owned() };
        self.post(&format!("/v1/bags/{}/rename", segment(id)), &request, ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/priority`: its place among the bags of this machine.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn prioritise(&self, id: &str, priority: i32) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/priority", segment(id)), &PriorityRequest { priority }, ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/lines`: adds tasks to an endless bag; returns when they are durable.
    ///
    /// # Errors
    /// [`ClientError`]; status 503 where the bag has so many tasks to give that more have to wait.
    pub fn add_lines(&self, id: &str, request: &LinesRequest) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/lines", segment(id)), request, ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/close`: no more tasks of an endless bag will come.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn close(&self, id: &str) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/close", segment(id)), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/drain`: these results of an endless bag are saved, and need not be kept.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn drain(&self, id: &str, request: &DrainRequest) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/drain", segment(id)), request, ANSWER_WAIT)
    }

    /// `GET /v1/bags/{id}/results?from={index}&most={count}`: the first results from a task on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn some_results(&self, id: &str, from: u64, most: u64) -> Result<Vec<TaskResult>, ClientError> {
        self.get(&format!("/v1/bags/{}/results?from={from}&most={most}", segment(id)))
    }

    /// `POST /v1/bags/{id}/rerun`: runs these tasks again, or the failed ones.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn rerun(&self, id: &str, request: &RerunRequest) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/rerun", segment(id)), request, ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/remove`: removes a finished bag; returns its last state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove(&self, id: &str) -> Result<Bag, ClientError> {
        self.post(&format!("/v1/bags/{}/remove", segment(id)), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `GET /v1/bags/{id}/ticket`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ticket(&self, id: &str, results: bool) -> Result<Ticket, ClientError> {
        self.get(&format!("/v1/bags/{}/ticket?results={results}", segment(id)))
    }

    /// `POST /v1/pause`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn pause(&self, span: Option<Duration>) -> Result<Status, ClientError> {
        let request = PauseRequest { for_s: span.map(|span| span.as_secs_f64()) };
        self.post("/v1/pause", &request, ANSWER_WAIT)
    }

    /// `POST /v1/resume`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn resume(&self) -> Result<Status, ClientError> {
        self.post("/v1/resume", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/finish`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn finish(&self) -> Result<Status, ClientError> {
        self.post("/v1/finish", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/clean`: removes blobs that nothing needs, or counts them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clean(&self, request: &CleanRequest) -> Result<CleanedView, ClientError> {
        self.post("/v1/clean", request, ANSWER_WAIT)
    }

    /// `POST /v1/reach`: what machines say that were asked to connect to this one; none where no machine is connected.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reach(&self) -> Result<Vec<ReachView>, ClientError> {
        self.post("/v1/reach", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/restart`: the agent ends and starts anew in the same process. What this client knows of it is void then.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn restart(&self) -> Result<Status, ClientError> {
        self.post("/v1/restart", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/grid/leave`: this machine leaves its grid, and the agent starts anew alone. What this client knows of it is void then.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn leave_grid(&self) -> Result<Status, ClientError> {
        self.post("/v1/grid/leave", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/grid/invite`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn invite(&self, request: &InviteRequest) -> Result<InvitationView, ClientError> {
        self.post("/v1/grid/invite", request, ANSWER_WAIT)
    }

    /// `POST /v1/grid/revoke`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn revoke(&self, request: &RevokeRequest) -> Result<RevokedView, ClientError> {
        self.post("/v1/grid/revoke", request, ANSWER_WAIT)
    }

    /// `HEAD /v1/blobs/{hash}`: whether the agent has this blob.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn has_blob(&self, hash: Hash) -> Result<bool, ClientError> {
        let url = self.url(&format!("/v1/blobs/{hash}"));
        let answer = self.http.head(url).header("Authorization", self.bearer()).call();
        let answer = answer.map_err(|error| self.failed(&error))?;
        match answer.status().as_u16() {
            200 => Ok(true),
            404 => Ok(false),
            _ => Err(self.refusal(answer)),
        }
    }

    /// `POST /v1/blobs`: uploads a file whose content has this hash.
    ///
    /// # Errors
    /// [`ClientError`], also when the file has changed since it was hashed.
    pub fn upload(&self, hash: Hash, file: &File) -> Result<(), ClientError> {
        let url = self.url(&format!("/v1/blobs?blob={hash}"));
        let request = self.http.post(url).header("Authorization", self.bearer());
        let request = request.config().timeout_recv_response(Some(SUBMIT_WAIT)).build();
        let body: BlobBody = self.read(request.send(file))?;
        if body.blob == hash.to_hex().as_str() {
            return Ok(());
        }
        Err(self.foreign(&format!("it took an upload for blob {}", body.blob)))
    }

    /// `GET /v1/blobs/{hash}`: the output of a task.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn download(&self, hash: &str) -> Result<Vec<u8>, ClientError> {
        self.bytes(&format!("/v1/blobs/{hash}"))
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let answer = self.http.get(self.url(path)).header("Authorization", self.bearer()).call();
        let mut answer = answer.map_err(|error| self.failed(&error))?;
        if !answer.status().is_success() {
            return Err(self.refusal(answer));
        }
        let body = answer.body_mut().with_config().limit(OUTPUT_BLOB_BYTES_MAX);
        body.read_to_vec().map_err(|error| self.failed(&error))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(self.http.get(self.url(path)).header("Authorization", self.bearer()).call())
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, wait: Duration) -> Result<T, ClientError> {
        let request = self.http.post(self.url(path)).header("Authorization", self.bearer());
        self.read(request.config().timeout_recv_response(Some(wait)).build().send_json(body))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.endpoint.address)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.endpoint.token)
    }

    fn read<T: DeserializeOwned>(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<T, ClientError> {
        let mut answer = answer.map_err(|error| self.failed(&error))?;
        if !answer.status().is_success() {
            return Err(self.refusal(answer));
        }
        answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_json().map_err(|error| match error {
            ureq::Error::Json(error) => self.foreign(&error.to_string()),
            error => self.failed(&error),
        })
    }

    fn refusal(&self, mut answer: Response<Body>) -> ClientError {
        let status = answer.status().as_u16();
        // Its token is another: it started after the agent that wrote the file had ended.
        if status == 401 {
            return self.no_agent();
        }
        match answer.body_mut().read_json::<ErrorBody>() {
            Ok(body) => ClientError::Refused { status, sentence: body.error },
            Err(_) => self.foreign(&format!("status {status}")),
        }
    }

    fn failed(&self, error: &ureq::Error) -> ClientError {
        match error {
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.no_agent(),
            ureq::Error::ConnectionFailed | ureq::Error::Timeout(ureq::Timeout::Connect) => self.unreachable(),
            ureq::Error::Protocol(error) => self.foreign(&error.to_string()),
            ureq::Error::Timeout(_) => self.broken("no answer in time"),
            error => self.broken(&error.to_string()),
        }
    }

    /// If its process cannot be found, the agent counts as absent.
    fn unreachable(&self) -> ClientError {
        if !Path::new("/proc").join(self.endpoint.pid.to_string()).exists() {
            return self.no_agent();
        }
        let address = self.endpoint.address.clone();
        ClientError::Unreachable { state_dir: self.state_dir.clone(), pid: self.endpoint.pid, address }
    }

    fn no_agent(&self) -> ClientError {
        ClientError::NoAgent { state_dir: self.state_dir.clone() }
    }

    fn foreign(&self, reason: &str) -> ClientError {
        ClientError::Foreign { address: self.endpoint.address.clone(), reason: reason.to_owned() }
    }

    fn broken(&self, reason: &str) -> ClientError {
        ClientError::Broken { address: self.endpoint.address.clone(), reason: reason.to_owned() }
    }
}

/// A part of a path as it stands in a URL: names of bags may have any characters.
fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn endpoint(directory: &Path, address: &str) {
        let endpoint = Endpoint { address: address.to_owned(), token: "00".repeat(32), pid: 1 };
        fs::write(directory.join(ENDPOINT_FILE), serde_json::to_vec(&endpoint).unwrap()).unwrap();
    }

    #[test]
    fn an_absent_agent_is_reported_as_absent() {
        let directory = tempfile::tempdir().unwrap();
        let expected = format!(
            "no agent is running on {0}: start one with `idlewood run --state-dir {0}`",
            directory.path().display()
        );
        assert_eq!(Client::open(directory.path()).unwrap_err().to_string(), expected);
        assert!(Client::open(&directory.path().join("missing")).unwrap_err().is_absence());

        // A port that is closed again.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        endpoint(directory.path(), &address.to_string());
        let client = Client::open(directory.path()).unwrap();
        assert_eq!(client.status().unwrap_err().to_string(), expected);
    }

    /// Even past the file that a killed agent left.
    #[test]
    fn commands_wait_for_an_agent_that_starts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let nobody = || Client::wait_for(path, |sentence| panic!("nobody starts: {sentence}")).unwrap_err();
        assert!(matches!(nobody(), ClientError::NoAgent { .. }));
        endpoint(path, "127.0.0.1:1");
        assert!(matches!(nobody(), ClientError::NoAgent { .. }), "nobody has the directory");

        let lock = StateLock::acquire(path).unwrap();
        let (waits, wait) = std::sync::mpsc::channel();
        let waiting = thread::spawn({
            let path = path.to_owned();
            move || {
                let begin = Instant::now();
                Client::wait_for(&path, |sentence| waits.send((begin.elapsed(), sentence.to_owned())).unwrap())
            }
        });
        let (after, sentence) = wait.recv().unwrap();
        assert!(after >= START_TOLD, "told after {after:?}");
        assert!(sentence.contains(&format!("process {}), which is starting", std::process::id())), "{sentence}");
        assert!(!waiting.is_finished(), "the agent is starting");
        let ready = Endpoint { address: "127.0.0.1:2".to_owned(), token: "00".repeat(32), pid: std::process::id() };
        fs::write(path.join(ENDPOINT_FILE), serde_json::to_vec(&ready).unwrap()).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().endpoint.address, ready.address);
        assert!(wait.recv().is_err(), "told once");
        drop(lock);
    }

    /// An agent whose queue of connections is full, and that accepts none.
    #[test]
    fn an_unreachable_agent_is_not_reported_as_absent() {
        let directory = tempfile::tempdir().unwrap();
        let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
        let socket = rustix::net::socket(family, kind, None).unwrap();
        rustix::net::bind(&socket, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let address = TcpListener::from(socket.try_clone().unwrap()).local_addr().unwrap();
        let wait = Duration::from_millis(200);
        let fill = || std::net::TcpStream::connect_timeout(&address, wait);
        let _filling: Vec<_> = std::iter::from_fn(|| fill().ok()).take(64).collect();
        let ready = Endpoint { address: address.to_string(), token: "00".repeat(32), pid: std::process::id() };
        fs::write(directory.path().join(ENDPOINT_FILE), serde_json::to_vec(&ready).unwrap()).unwrap();
        let error = Client::open(directory.path()).unwrap().status().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(ENDPOINT_FILE);
        fs::write(&path, "{}").unwrap();
        let error = Client::open(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains(ENDPOINT_FILE), "{error}");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        // Root can read every file.
        if fs::read(&path).is_err() {
            let error = Client::open(directory.path()).unwrap_err().to_string();
            assert!(error.contains("as the user that runs the agent"), "{error}");
        }
    }

    #[test]
    fn another_program_is_told_from_an_agent() {
        use std::io::{Read as _, Write as _};
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        endpoint(directory.path(), &listener.local_addr().unwrap().to_string());
        let client = Client::open(directory.path()).unwrap();
        let server = std::thread::spawn(move || {
            for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", "220 smtp\r\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = [0; 4_096];
                assert!(stream.read(&mut buffer).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert!(matches!(client.status().unwrap_err(), ClientError::Foreign { .. }));
        assert!(matches!(client.status().unwrap_err(), ClientError::Foreign { .. }));
        assert!(matches!(client.status().unwrap_err(), ClientError::Broken { .. }));
        server.join().unwrap();
    }
}
