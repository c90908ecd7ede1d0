use std::fs::File;
use std::io::Read as _;

use idlewood_api::ErrorBody;
use idlewood_api::client::{Client, ClientError};
use serde::de::DeserializeOwned;

use super::*;
use crate::handle::Refusal;

/// A control API with blobs but no node behind it, and its client.
struct Desk {
    directory: tempfile::TempDir,
    endpoint: Endpoint,
    // The clients block, so the server has threads of its own.
    runtime: tokio::runtime::Runtime,
    control: Control,
}

impl Desk {
    fn new(quota_bytes: u64) -> Self {
        Self::on(tempfile::tempdir().unwrap(), quota_bytes)
    }

    fn on(directory: tempfile::TempDir, quota_bytes: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let blobs = Arc::new(Blobs::open(&directory.path().join("blobs"), quota_bytes).unwrap());
        let control = runtime.block_on(serve(directory.path(), 0, blob::routes(blobs))).unwrap();
        let endpoint = serde_json::from_slice(&fs::read(directory.path().join(ENDPOINT_FILE)).unwrap()).unwrap();
        Self { directory, endpoint, runtime, control }
    }

    fn client(&self) -> Client {
        Client::open(self.directory.path()).unwrap()
    }

    /// The answer to a request with exactly these headers, headers included.
    fn whole_answer(&self, head: &str, headers: &[(&str, &str)]) -> String {
        let mut text = format!("{head} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        let mut stream = std::net::TcpStream::connect(&self.endpoint.address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Its status and body.
    fn request(&self, head: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let answer = self.whole_answer(head, headers);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn stop(self) -> tempfile::TempDir {
        self.runtime.block_on(self.control.shutdown());
        self.directory
    }
}

#[test]
fn only_requests_with_the_token_are_served() {
    let desk = Desk::new(1 << 20);
    let host = desk.endpoint.address.clone();
    let port = host.rsplit(':').next().unwrap();
    let bearer = format!("Bearer {}", desk.endpoint.token);
    let wrong = format!("Bearer {}", "0".repeat(64));
    let get = "GET /v1/blobs/x";
    let localhost = format!("LocalHost:{port}");
    let rebound = format!("evil.example:{port}");
    for (headers, status) in [
        // 400: past the guard, "x" is no blob.
        (vec![("Host", &*host), ("Authorization", &*bearer)], 400),
        (vec![("Host", &*localhost), ("Authorization", &*bearer)], 400),
        (vec![("Host", &*host)], 401),
        (vec![("Host", &*host), ("Authorization", &*wrong)], 401),
        (vec![("Host", &*host), ("Authorization", &*desk.endpoint.token)], 401),
        (vec![("Host", &*host), ("Authorization", &*bearer), ("Authorization", &*bearer)], 401),
        (vec![("Host", &*rebound), ("Authorization", &*bearer)], 403),
        (vec![("Host", "127.0.0.1"), ("Authorization", &*bearer)], 403),
        (vec![("Authorization", &*bearer)], 403),
        (vec![("Host", &*host), ("Origin", "null"), ("Authorization", &*bearer)], 403),
        (vec![("Host", &*host), ("Origin", "http://localhost"), ("Authorization", &*bearer)], 403),
    ] {
        let (got, body) = desk.request(get, &headers);
        assert_eq!(got, status, "{headers:?}: {body}");
        // Without a Host header hyper may refuse by itself; all of our answers are JSON.
        assert!(serde_json::from_str::<ErrorBody>(&body).is_ok(), "{headers:?}: {body}");
    }
    let (status, body) = desk.request("GET /none", &[("Host", &*host)]);
    assert_eq!(status, 401, "what exists is nobody's business: {body}");
    for (head, expected) in [("GET /none", 404), ("DELETE /v1/blobs", 405), ("POST /v1/blobs", 400)] {
        let (status, body) = desk.request(head, &[("Host", &*host), ("Authorization", &*bearer)]);
        assert_eq!(status, expected, "{body}");
        assert!(serde_json::from_str::<ErrorBody>(&body).is_ok(), "{body}");
    }
    desk.stop();
}

#[test]
fn a_page_in_the_browser_gets_nothing() {
    let desk = Desk::new(1 << 20);
    let host = desk.endpoint.address.clone();
    let address: SocketAddr = host.parse().unwrap();
    assert!(address.ip().is_loopback(), "{address}");
    let bearer = format!("Bearer {}", desk.endpoint.token);
    // A browser asks before a request that is not simple; simple ones it sends at once.
    let preflight = [
        ("Host", &*host),
        ("Origin", "https://evil.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    let simple = [("Host", &*host), ("Origin", "https://evil.example"), ("Content-Type", "text/plain")];
    let leaked = [("Host", &*host), ("Origin", "https://evil.example"), ("Authorization", &*bearer)];
    for (head, headers) in [
        ("OPTIONS /v1/pause", &preflight[..]),
        ("POST /v1/grid/invite", &simple),
        ("POST /v1/pause", &simple),
        ("GET /v1/status", &leaked),
        // A navigation has no origin, and no token either.
        ("GET /v1/status", &[("Host", &*host), ("Sec-Fetch-Site", "cross-site")]),
    ] {
        let answer = desk.whole_answer(head, headers).to_ascii_lowercase();
        let status: u16 = answer.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(matches!(status, 401 | 403), "{head}: {answer}");
        assert!(!answer.contains("access-control"), "{head}: {answer}");
    }
    let served = desk.whole_answer("GET /v1/blobs/x", &[("Host", &*host), ("Authorization", &*bearer)]);
    assert!(!served.to_ascii_lowercase().contains("access-control"), "{served}");
    desk.stop();
}

#[test]
fn blobs_come_and_go() {
    let desk = Desk::new(64 << 20);
    let client = desk.client();
    let content: Vec<u8> = (0..3_000_001_u32).map(|number| (number % 251) as u8).collect();
    let hash = blake3::hash(&content);
    let path = desk.directory.path().join("content");
    fs::write(&path, &content).unwrap();
    assert!(!client.has_blob(hash).unwrap());
    client.upload(hash, &File::open(&path).unwrap()).unwrap();
    assert!(client.has_blob(hash).unwrap());
    assert_eq!(client.download(&hash.to_string()).unwrap(), content);

    fs::write(&path, b"").unwrap();
    client.upload(blake3::hash(b""), &File::open(&path).unwrap()).unwrap();
    assert_eq!(client.download(&blake3::hash(b"").to_string()).unwrap(), b"");
    desk.stop();
}

#[test]
fn an_unreadable_blob_is_reported_and_uploaded_anew() {
    let desk = Desk::new(1 << 20);
    let path = desk.directory.path().join("content");
    fs::write(&path, b"content").unwrap();
    let hash = blake3::hash(b"content");
    desk.client().upload(hash, &File::open(&path).unwrap()).unwrap();
    let directory = desk.stop();
    let blob = directory.path().join("blobs").join(&hash.to_hex()[..2]).join(&hash.to_hex()[2..]);
    fs::remove_file(&blob).unwrap();
    // Root can read any file.
    std::os::unix::fs::symlink(&blob, &blob).unwrap();

    let desk = Desk::on(directory, 1 << 20);
    let client = desk.client();
    let error = client.download(&hash.to_string()).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 503, .. }), "{error}");
    assert!(error.to_string().contains("check the disk"), "{error}");
    assert!(!client.has_blob(hash).unwrap());
    client.upload(hash, &File::open(&path).unwrap()).unwrap();
    assert_eq!(client.download(&hash.to_string()).unwrap(), b"content");
    desk.stop();
}

#[test]
fn an_upload_with_another_hash_is_refused() {
    let desk = Desk::new(1 << 20);
    let client = desk.client();
    let path = desk.directory.path().join("content");
    fs::write(&path, b"changed").unwrap();
    let before = blake3::hash(b"before");
    let error = client.upload(before, &File::open(&path).unwrap()).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 400, .. }), "{error}");
    assert!(!client.has_blob(before).unwrap());

    // More than the quota: the answer arrives although the client has more to send.
    let large = vec![7; 8 << 20];
    fs::write(&path, &large).unwrap();
    let error = client.upload(blake3::hash(&large), &File::open(&path).unwrap()).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 503, .. }), "{error}");
    let error = client.download(&before.to_string()).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error}");
    desk.stop();
}

#[test]
fn the_endpoint_is_private_and_goes_with_the_agent() {
    let desk = Desk::new(1 << 20);
    let path = desk.directory.path().join(ENDPOINT_FILE);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!((desk.endpoint.token.len(), desk.endpoint.pid), (64, std::process::id()));
    assert_eq!(desk.endpoint.address, desk.control.address().to_string());
    let client = desk.client();
    let directory = desk.stop();
    assert!(!path.exists());
    assert!(client.has_blob(blake3::hash(b"")).unwrap_err().is_absence());
    drop(directory);
}

#[test]
fn an_idle_connection_does_not_hold_the_agent() {
    let desk = Desk::new(1 << 20);
    let mut stream = std::net::TcpStream::connect(&desk.endpoint.address).unwrap();
    stream.write_all(b"POST /v1/blobs HTTP/1.1\r\n").unwrap();
    // It ends although the other side neither sends nor hangs up.
    desk.stop();
    drop(stream);
}

#[test]
fn another_agents_endpoint_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(ENDPOINT_FILE);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let first = EndpointFile::write(directory.path(), address, "one".to_owned()).unwrap();
    let second = EndpointFile::write(directory.path(), address, "two".to_owned()).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn tokens_differ() {
    assert_ne!(token(), token());
    assert_eq!(token().len(), 64);
}

#[test]
fn pauses_are_bounded() {
    let span = |for_s| pause_span(&PauseRequest { for_s });
    assert_eq!(span(None).unwrap(), None);
    assert_eq!(span(Some(1.5)).unwrap(), Some(Duration::from_millis(1_500)));
    for seconds in [0.0, -1.0, 1e9, f64::INFINITY, f64::NAN] {
        assert_eq!(span(Some(seconds)).unwrap_err().status, StatusCode::BAD_REQUEST, "{seconds}");
    }
}

#[test]
fn refusals_become_statuses() {
    let sentence = || "no bag begins with 12".to_owned();
    for (refusal, status) in [
        (Refusal::NotFound(sentence()), 404),
        (Refusal::Ambiguous(sentence()), 400),
        (Refusal::Invalid(sentence()), 400),
        (Refusal::Conflict(sentence()), 409),
        (Refusal::Unavailable(sentence()), 503),
    ] {
        let failure = Failure::from(refusal);
        assert_eq!((failure.status.as_u16(), failure.sentence), (status, sentence()));
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    parse(Ok(Bytes::copy_from_slice(bytes))).ok()
}

/// A client with the token may send anything.
#[test]
fn mutations_of_requests() {
    use idlewood_api::{InviteRequest, RevokeRequest, SubmitRequest};
    use idlewood_scheduler::BlobId;
    use idlewood_testing::mutations;
    use idlewood_trust::manifest::{Entry, Input};

    let input = |name: &str| Input { name: name.to_owned(), blob: BlobId([1; 32]), bytes: 1 };
    let mut request = SubmitRequest::plain("bag", 2, input("p.wasm"), vec!["{}".to_owned()]);
    request.entries = vec![Entry { text: "a".to_owned(), input: Some(input("own")) }, Entry::default()];
    request.env.insert("KEY".to_owned(), "{index}".to_owned());
    mutations("control submit", vec![serde_json::to_vec(&request).unwrap()], |bytes| {
        let Some(request) = read::<SubmitRequest>(bytes) else { return false };
        // The request as written by a client decodes to the same.
        let written = serde_json::to_vec(&request).unwrap();
        let again = read::<SubmitRequest>(&written).expect("it was read before");
        assert_eq!(serde_json::to_vec(&again).unwrap(), written);
        true
    });
    mutations("control pause", vec![br#"{"for_s":90.5}"#.to_vec()], |bytes| {
        let Some(request) = read::<PauseRequest>(bytes) else { return false };
        assert!(pause_span(&request).is_err() || request.for_s.is_none_or(|seconds| seconds > 0.0));
        true
    });
    mutations("control rerun", vec![br#"{"tasks":[1,2]}"#.to_vec()], |bytes| read::<RerunRequest>(bytes).is_some());
    let invite = br#"{"role":"member","valid_s":60.0,"uses":1,"lifetime_s":86400.0,"passphrase":"x"}"#.to_vec();
    mutations("control invite", vec![invite], |bytes| read::<InviteRequest>(bytes).is_some());
    mutations("control revoke", vec![br#"{"peer":"12D3KooW"}"#.to_vec()], |bytes| {
        read::<RevokeRequest>(bytes).is_some()
    });
}
