//! Connections to the control API: so many at the same time, each of which has to say what it wants within a while. Who has no
//! token can connect too, and must not keep the owner's commands out for long.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

/// Connections at the same time; others wait for one of them to end.
const CONNECTIONS_MAX: usize = 64;
/// How long the head of a request may take, also that of the next one on the same connection.
const HEAD_WAIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
/// After a connection could not be accepted: the process may have too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers until it is `stopped`, and then what is under way.
pub(super) async fn answer(listener: TcpListener, router: Router, mut stopped: oneshot::Receiver<()>) {
    let (stop, told) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Dropped or sent, it is time to go.
            _ = &mut stopped => break,
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    warn!(%error, "a command failed");
                }
            }
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, router.clone(), told.clone()))),
                Err(error) => {
                    warn!(%error, "a command cannot be taken now");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop((listener, stop));
    while let Some(ended) = connections.join_next().await {
        if let Err(error) = ended {
            debug!(%error, "a command was cut off");
        }
    }
}

async fn converse(stream: TcpStream, router: Router, mut told: watch::Receiver<()>) {
    // The end of an answer would wait until its beginning is acknowledged: 40 ms for each task whose output is asked for.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "answers of the control API may be late");
    }
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        // Nothing is ever sent: the other end is gone.
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
    use std::net::TcpStream;

    use axum::routing::get;

    use super::*;

    /// Whoever connects and says nothing, or half of it, is sent away, and commands get through meanwhile.
    #[test]
    fn connections_that_say_nothing_keep_no_command_out() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("it listens");
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(answer(listener, Router::new().route("/", get(async || "said")), stopped));
        let patience = Some(Duration::from_secs(60));
        let connect = || {
            let stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(patience).expect("a socket");
            stream
        };
        let mut silent: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX).map(|_| connect()).collect();
        for stream in silent.iter_mut().step_by(2) {
            stream.write_all(b"GET / HT").expect("there is room");
        }
        let mut command = connect();
        command.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("there is room");
        let mut said = String::new();
        command.read_to_string(&mut said).expect("they had to go");
        assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("said"), "{said}");
        for mut stream in silent {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("closed, and not for want of patience");
        }
        stop.send(()).expect("it runs");
        runtime.block_on(served).expect("it ends when it is told");
    }
}
