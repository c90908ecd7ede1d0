//! Connections to the control API. Any user of the machine can connect, but only the owner knows the token: a
//! connection that has not shown it is *silent*. The number of silent connections is bounded, and a new one replaces
//! the oldest, so that no number of them keeps the owner's commands out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Silent connections at the same time.
const SILENT_MAX: usize = 64;
/// Connections that have shown the token, at the same time; further ones wait for one to end.
const SHOWN_MAX: usize = 256;
/// A silent connection stays at least so long: time for an honest client, whose request is sent with the connection and
/// is in the socket when that is accepted.
const SILENT_LEAST: Duration = Duration::from_millis(100);
/// How long the head of a request may take, also of the next one on the same connection.
const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Pause after an accept failed: the process may have too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether a connection has shown the token; the guard sets it in the extensions of each request.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<AtomicBool>);

impl Shown {
    /// Notes that the token is right.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One connection.
struct Connection {
    accepted: Instant,
    shown: Shown,
    task: AbortHandle,
}

/// All connections, the oldest first.
#[derive(Default)]
struct Connections(VecDeque<Connection>);

impl Connections {
    fn add(&mut self, shown: Shown, task: AbortHandle) {
        self.0.push_back(Connection { accepted: Instant::now(), shown, task });
    }

    fn forget_ended(&mut self) {
        self.0.retain(|connection| !connection.task.is_finished());
    }

    fn is_full(&self) -> bool {
        self.0.len() >= SILENT_MAX + SHOWN_MAX
    }

    /// When the next connection may be accepted; `None`: once one ends that has shown the token.
    fn next_accept(&self) -> Option<Instant> {
        let silent = || self.0.iter().filter(|connection| !connection.shown.is_set());
        let oldest = silent().next().map(|connection| connection.accepted + SILENT_LEAST);
        if silent().count() >= SILENT_MAX || self.is_full() { oldest } else { Some(Instant::now()) }
    }

    /// Ends the oldest silent connection if there are too many.
    fn make_room(&mut self) {
        let silent = self.0.iter().filter(|connection| !connection.shown.is_set()).count();
        if silent < SILENT_MAX && !self.is_full() {
            return;
        }
        if let Some(oldest) = self.0.iter().position(|connection| !connection.shown.is_set())
            && let Some(connection) = self.0.remove(oldest)
        {
            debug!("a connection to the control API that has shown no token makes room for another");
            connection.task.abort();
        }
    }
}

/// Answers requests until `stopped`, then completes those under way.
pub(super) async fn answer(listener: TcpListener, router: Router, mut stopped: oneshot::Receiver<()>) {
    let (stop, told) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut connections = Connections::default();
    loop {
        let may_accept = connections.next_accept();
        let accept = async {
            match may_accept {
                Some(when) => tokio::time::sleep_until(when).await,
                None => std::future::pending().await,
            }
            listener.accept().await
        };
        tokio::select! {
            // Dropped or sent: stop.
            _ = &mut stopped => break,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && !error.is_cancelled() {
                    warn!(%error, "a command failed");
                }
                connections.forget_ended();
            }
            accepted = accept => match accepted {
                Ok((stream, _)) => {
                    connections.make_room();
                    let shown = Shown::default();
                    let task = tasks.spawn(converse(stream, router.clone(), shown.clone(), told.clone()));
                    connections.add(shown, task);
                }
                Err(error) => {
                    warn!(%error, "a command cannot be taken now");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop((listener, stop));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            debug!(%error, "a command was cut off");
        }
    }
}

async fn converse(stream: TcpStream, router: Router, shown: Shown, mut told: watch::Receiver<()>) {
    // The end of an answer would wait until its beginning is acknowledged: 40 ms for each output requested.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "answers of the control API may be late");
    }
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(shown.clone());
        routes.call(request.map(Body::new))
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        // Nothing is ever sent: the sender is dropped.
        _ = told.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        debug!(%error, "a connection to the control API broke off");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::AtomicUsize;

    use axum::extract::Extension;
    use axum::routing::get;
    use tokio::runtime::Runtime;

    use super::*;

    /// Serves `/`, which counts every request as one with the token, and `/wait`, which also never answers.
    struct Served {
        runtime: Runtime,
        address: SocketAddr,
        stop: oneshot::Sender<()>,
        served: tokio::task::JoinHandle<()>,
        waiting: Arc<AtomicUsize>,
    }

    impl Served {
        fn start() -> Self {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
            let address = listener.local_addr().expect("it listens");
            let (stop, stopped) = oneshot::channel();
            let waiting = Arc::new(AtomicUsize::new(0));
            let counted = waiting.clone();
            let answered = async |shown: Extension<Shown>| {
                shown.0.set();
                "said"
            };
            let wait = async move |shown: Extension<Shown>| -> &'static str {
                shown.0.set();
                counted.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            };
            let router = Router::new().route("/", get(answered)).route("/wait", get(wait));
            let served = runtime.spawn(answer(listener, router, stopped));
            Self { runtime, address, stop, served, waiting }
        }

        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
            stream
        }

        fn ask(&self, path: &str) -> TcpStream {
            let mut stream = self.connect();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("there is room");
            stream
        }

        fn assert_answers(&self) {
            let mut said = String::new();
            self.ask("/").read_to_string(&mut said).expect("it is answered");
            assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("said"), "{said}");
        }

        fn end(self) {
            self.stop.send(()).expect("it runs");
            self.runtime.block_on(async {
                self.served.abort();
                assert!(self.served.await.is_err_and(|error| error.is_cancelled()));
            });
        }
    }

    /// Silent connections, also those with half a request, make room for later ones at once: nobody waits for their
    /// time to be over, which is longer than this test reads.
    #[test]
    fn silent_connections_keep_no_command_out() {
        let served = Served::start();
        let mut silent: Vec<TcpStream> = (0..3 * SILENT_MAX + 1).map(|_| served.connect()).collect();
        for stream in silent.iter_mut().step_by(2) {
            // The first ones may be closed already.
            if let Err(error) = stream.write_all(b"GET / HT") {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock);
            }
        }
        served.assert_answers();
        // Of the last 64 at most one made room for it.
        let last = &mut silent[2 * SILENT_MAX + 2..];
        for stream in last {
            stream.set_nonblocking(true).expect("a socket");
            let error = stream.read(&mut [0; 1]).expect_err("it is open, and says nothing");
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
        served.end();
    }

    /// Silent connections are ended for commands, but not the other way round.
    #[test]
    fn new_connections_end_no_command_under_way() {
        let served = Served::start();
        let waiting: Vec<TcpStream> = (0..SILENT_MAX).map(|_| served.ask("/wait")).collect();
        while served.waiting.load(Ordering::SeqCst) < SILENT_MAX {
            std::thread::yield_now();
        }
        let silent: Vec<TcpStream> = (0..2 * SILENT_MAX).map(|_| served.connect()).collect();
        served.assert_answers();
        for mut stream in waiting {
            stream.set_nonblocking(true).expect("a socket");
            let error = stream.read(&mut [0; 1]).expect_err("it is not answered, and not cut off");
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
        drop(silent);
        served.end();
    }
}
