//! A blob that many want at once from a source on a slow line.

use socket2::{Domain, Protocol as Of, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use super::*;

/// What the line takes, in bytes a second.
const RATE: u64 = 256 << 10;
/// What it takes at a time: a router keeps no more than that.
const STEP: usize = 4 << 10;

/// When the line is free again.
type Line = Arc<Mutex<tokio::time::Instant>>;

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, line: Option<Line>) {
    let mut bytes = [0; STEP];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if let Some(line) = &line {
            let free = {
                let mut free = line.lock().await;
                *free = (*free).max(tokio::time::Instant::now()) + Duration::from_secs(1) * length as u32 / RATE as u32;
                *free
            };
            tokio::time::sleep_until(free).await;
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

/// The contact of a node whose uplink is slow: all connections to this address share it.
async fn behind_a_slow_line(contact: &Contact) -> Contact {
    let (target, _) = idlewood_trust::address::parse(&contact.address.parse().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port());
    let line = Line::new(Mutex::new(tokio::time::Instant::now()));
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            // What waits, waits at the source, as in front of a modem, and not here.
            let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Of::TCP)).unwrap();
            socket.set_tcp_mss(1_400).unwrap();
            socket.set_recv_buffer_size(4 * STEP).unwrap();
            socket.connect(&target.into()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let far = TcpStream::from_std(socket.into()).unwrap();
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let ((near_out, near_in), (far_out, far_in)) = (near.into_split(), far.into_split());
            tokio::spawn(pass_on(near_out, far_in, None));
            tokio::spawn(pass_on(far_out, near_in, Some(line.clone())));
        }
    });
    Contact { address: address.into(), ..contact.clone() }
}

/// Whoever asks waits for ten seconds. If pieces for all left at once, all would come too late, and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_many_want_at_once_leaves_a_slow_line_once_for_each() {
    const MACHINES: usize = 24;
    const BYTES: usize = 150 << 10;
    let source = Node::start().await;
    let content: Vec<u8> = (0..BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let hash = source.lend(&content);
    let contact = behind_a_slow_line(&source.contact).await;
    let mut fetching = tokio::task::JoinSet::new();
    for _ in 0..MACHINES {
        let (node, contact) = (Node::start().await, contact.clone());
        fetching.spawn(async move {
            // All of it, its directory, too, is here for as long as it fetches.
            let node = &node;
            let fetcher = Fetcher::new(node.blobs.clone(), node.net.clone(), mpsc::channel(1).0);
            fetcher.fetch(hash, 1 << 20, &origin(vec![contact])).await.map(|path| std::fs::read(path).unwrap())
        });
    }
    while let Some(fetched) = fetching.join_next().await {
        assert!(fetched.unwrap().expect("it comes") == content);
    }
    let left = source.net.counters().blob_bytes_sent as f64 / (MACHINES * BYTES) as f64;
    println!("{left:.2} times what was wanted has left");
    assert!(left < 1.05, "{left:.2} times what was wanted has left");
}
