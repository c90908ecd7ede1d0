//! The command line's side of the control API: blocking HTTP over loopback.
//!
//! The agent of a state directory leaves its address and a token there (`control.json`); who can read that file may
//! command the agent. Every failure is a sentence that says what to do.
//!
//! Left out: retries (a request that may have been carried out is not repeated) and proxies (loopback only).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blake3::Hash;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::api::{self, Endpoint, ErrorBody, PauseRequest};
use crate::manifest::OUTPUT_BYTES_MAX;

/// Name of the file in the state directory that says where the agent is.
pub const ENDPOINT_FILE: &str = "control.json";

const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// An agent answers at once; one that is stopped (SIGSTOP) or swapped out gets this long.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// A submission is answered when it is durable.
const SUBMIT_WAIT: Duration = Duration::from_secs(600);
/// Largest JSON answer: the results of a bag of a million tasks.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Largest blob that holds a task's output; its frame takes some bytes too.
const OUTPUT_BLOB_BYTES_MAX: u64 = OUTPUT_BYTES_MAX + (16 << 20);

/// Why the agent did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens for this state directory.
    #[error("no agent is running on {}: start one with `idlewood run --state-dir {}`", state_dir.display(), state_dir.display())]
    NoAgent {
        /// Which state directory.
        state_dir: PathBuf,
    },
    /// The state directory or the file in it cannot be read.
    #[error("cannot read {}: {source}; run this as the user that runs the agent, or name another --state-dir", path.display())]
    StateDir {
        /// What was read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The agent said no.
    #[error("{sentence}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its reason.
        sentence: String,
    },
    /// What listens there is something else, or another version.
    #[error("what answers on {address} is not an idlewood agent of this version ({reason}); restart the agent")]
    Foreign {
        /// Where.
        address: String,
        /// What is odd.
        reason: String,
    },
    /// The connection broke; whether the request was carried out is not known.
    #[error("the agent on {address} stopped answering ({reason}); see whether it still runs")]
    Broken {
        /// Where.
        address: String,
        /// What happened.
        reason: String,
    },
}

impl ClientError {
    /// Whether the agent may be back in a moment.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoAgent { .. } | Self::Broken { .. })
    }
}

/// A way to command the agent of one state directory.
#[derive(Debug)]
pub struct Client {
    http: Agent,
    endpoint: Endpoint,
    state_dir: PathBuf,
}

impl Client {
    /// Finds the agent of `state_dir`. Does not speak to it yet.
    ///
    /// # Errors
    /// When there is none, or the directory cannot be read.
    pub fn open(state_dir: &Path) -> Result<Self, ClientError> {
        let path = state_dir.join(ENDPOINT_FILE);
        let text = fs::read_to_string(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ClientError::NoAgent { state_dir: state_dir.to_owned() },
            _ => ClientError::StateDir { path: path.clone(), source },
        })?;
        // Written atomically: a file that is no endpoint is none of ours.
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
    pub fn status(&self) -> Result<api::Status, ClientError> {
        self.get("/v1/status")
    }

    /// `GET /v1/peers`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn peers(&self) -> Result<api::Peers, ClientError> {
        self.get("/v1/peers")
    }

    /// `GET /v1/bags`: those submitted here.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn bags(&self) -> Result<Vec<api::Bag>, ClientError> {
        self.get("/v1/bags")
    }

    /// `GET /v1/bags/{id}`. `id` is a unique prefix or `last`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn bag(&self, id: &str) -> Result<api::BagDetail, ClientError> {
        self.get(&format!("/v1/bags/{id}"))
    }

    /// `GET /v1/bags/{id}/results`: the tasks that are over.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn results(&self, id: &str) -> Result<Vec<api::TaskResult>, ClientError> {
        self.get(&format!("/v1/bags/{id}/results"))
    }

    /// `GET /v1/bags/{id}/receipts`: what machines signed of the tasks that are over.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn receipts(&self, id: &str) -> Result<Vec<api::Receipt>, ClientError> {
        self.get(&format!("/v1/bags/{id}/receipts"))
    }

    /// `POST /v1/bags`: returns when the bag is durable.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn submit(&self, request: &api::SubmitRequest) -> Result<api::Bag, ClientError> {
        self.post("/v1/bags", request, SUBMIT_WAIT)
    }

    /// `POST /v1/bags/{id}/cancel`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cancel(&self, id: &str) -> Result<api::Bag, ClientError> {
        self.post(&format!("/v1/bags/{id}/cancel"), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/rerun`: these tasks are run again, or those that failed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn rerun(&self, id: &str, request: &api::RerunRequest) -> Result<api::Bag, ClientError> {
        self.post(&format!("/v1/bags/{id}/rerun"), request, ANSWER_WAIT)
    }

    /// `POST /v1/bags/{id}/remove`: the bag, which is over, as it was.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove(&self, id: &str) -> Result<api::Bag, ClientError> {
        self.post(&format!("/v1/bags/{id}/remove"), &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `GET /v1/bags/{id}/ticket`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ticket(&self, id: &str, results: bool) -> Result<api::Ticket, ClientError> {
        self.get(&format!("/v1/bags/{id}/ticket?results={results}"))
    }

    /// `POST /v1/pause`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn pause(&self, span: Option<Duration>) -> Result<api::Status, ClientError> {
        let request = PauseRequest { for_s: span.map(|span| span.as_secs_f64()) };
        self.post("/v1/pause", &request, ANSWER_WAIT)
    }

    /// `POST /v1/resume`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn resume(&self) -> Result<api::Status, ClientError> {
        self.post("/v1/resume", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/finish`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn finish(&self) -> Result<api::Status, ClientError> {
        self.post("/v1/finish", &serde_json::json!({}), ANSWER_WAIT)
    }

    /// `POST /v1/grid/invite`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn invite(&self, request: &api::InviteRequest) -> Result<api::InvitationView, ClientError> {
        self.post("/v1/grid/invite", request, ANSWER_WAIT)
    }

    /// `POST /v1/grid/revoke`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn revoke(&self, request: &api::RevokeRequest) -> Result<api::RevokedView, ClientError> {
        self.post("/v1/grid/revoke", request, ANSWER_WAIT)
    }

    /// `HEAD /v1/blobs/{hash}`: whether the agent has it already.
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
        let body: api::BlobBody = self.read(request.send(file))?;
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
        let url = self.url(&format!("/v1/blobs/{hash}"));
        let answer = self.http.get(url).header("Authorization", self.bearer()).call();
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
        // Its token is not ours: it started after the agent that wrote the file had ended.
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
            ureq::Error::ConnectionFailed | ureq::Error::Timeout(ureq::Timeout::Connect) => self.no_agent(),
            ureq::Error::Protocol(error) => self.foreign(&error.to_string()),
            ureq::Error::Timeout(_) => self.broken("no answer in time"),
            error => self.broken(&error.to_string()),
        }
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
    fn an_absent_agent_is_said_to_be_absent() {
        let directory = tempfile::tempdir().unwrap();
        let expected = format!(
            "no agent is running on {0}: start one with `idlewood run --state-dir {0}`",
            directory.path().display()
        );
        assert_eq!(Client::open(directory.path()).unwrap_err().to_string(), expected);
        assert!(Client::open(&directory.path().join("missing")).unwrap_err().is_absence());

        // A port that nobody listens on any more.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        endpoint(directory.path(), &address.to_string());
        let client = Client::open(directory.path()).unwrap();
        assert_eq!(client.status().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(ENDPOINT_FILE);
        fs::write(&path, "{}").unwrap();
        let error = Client::open(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains(ENDPOINT_FILE), "{error}");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        // Root reads everything.
        if fs::read(&path).is_err() {
            let error = Client::open(directory.path()).unwrap_err().to_string();
            assert!(error.contains("as the user that runs the agent"), "{error}");
        }
    }

    #[test]
    fn what_is_not_an_agent_is_told_apart() {
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
