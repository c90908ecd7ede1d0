//! Whole swarms in one process, over real sockets on loopback.

mod answers;
mod fetching;
mod floods;
mod live;
mod measurements;
mod overhead;
mod slow_line;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idlewood_blobs::{Blobs, To};
use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagId, BagKey, Enclosed};
use idlewood_trust::{Gate, Role, Terms, grid_id, identity, now_s};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::upgrade::Version;
use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, StreamExt as _};
use libp2p::identity::{Keypair, ed25519};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, StreamProtocol, Swarm, Transport as _, request_response, tcp, yamux};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::*;
use crate::fetch::{FetchError, Fetcher, Origin};
use crate::handle::start_within;
use crate::swarm::Limits;

/// Number of the grid, which determines its key.
pub(super) const GRID: u8 = 7;
pub(super) const WAIT: Duration = Duration::from_secs(10);
/// The bag for which blobs are fetched.
pub(super) const BAG: BagId = BagId([6; 32]);

pub(super) struct Node {
    pub(super) net: NetHandle,
    pub(super) events: mpsc::Receiver<NetEvent>,
    pub(super) contact: Contact,
    pub(super) gate: Arc<Gate>,
    blobs: Arc<Blobs>,
    _dir: TempDir,
}

/// The origin of the bag's blobs.
pub(super) fn origin(sources: Vec<Contact>) -> Origin {
    Origin { bag: BAG, key: None, sources, enclosed: Vec::new() }
}

/// A piece of a blob of the bag.
pub(super) fn piece(hash: blake3::Hash, offset: u64) -> Wanted {
    Wanted { hash, offset, bag: BAG, key: None }
}

pub(super) fn grid_key(grid: u8) -> ed25519::Keypair {
    ed25519::SecretKey::try_from_bytes([grid; 32]).unwrap().into()
}

/// Terms that make `key` an administrator of a grid.
pub(super) fn terms(grid: u8, key: &Keypair) -> Terms {
    let grid = grid_id(&grid_key(grid).public().to_bytes());
    let peer = identity::peer_id(key).unwrap();
    Terms { grid, peer, role: Role::Admin, issued_s: now_s(), expires_s: now_s() + 3_600, nonce: [0; 16] }
}

pub(super) fn gate(grid: u8, key: &Keypair, dir: &Path) -> Arc<Gate> {
    Arc::new(Gate::certified(key, terms(grid, key), &grid_key(grid), None, dir))
}

impl Node {
    /// Stores a blob that everybody may read for the bag.
    pub(super) fn lend(&self, content: &[u8]) -> blake3::Hash {
        let hash = self.blobs.put_bytes(content).unwrap();
        self.blobs.lend(BAG, hash, To::Everybody);
        hash
    }

    pub(super) async fn start() -> Self {
        Self::start_with(Keypair::generate_ed25519(), GRID, "/ip4/127.0.0.1/tcp/0").await
    }

    pub(super) async fn start_with(keypair: Keypair, grid: u8, listen: &str) -> Self {
        Self::start_within(Limits::default(), keypair, grid, listen).await
    }

    async fn start_within(limits: Limits, keypair: Keypair, grid: u8, listen: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(grid, &keypair, dir.path());
        Self::start_behind(limits, keypair, gate, dir, listen).await
    }

    pub(super) async fn start_behind(
        limits: Limits,
        keypair: Keypair,
        gate: Arc<Gate>,
        dir: TempDir,
        listen: &str,
    ) -> Self {
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 64 << 20).unwrap());
        let peer = identity::peer_id(&keypair).unwrap();
        let config = NetConfig { keypair, gate: gate.clone(), listen: vec![listen.parse().unwrap()] };
        let (net, mut events) = start_within(limits, config, blobs.clone()).unwrap();
        let Some(NetEvent::Listening(address)) = events.recv().await else { panic!("not listening") };
        assert!(idlewood_trust::address::parse(&address).unwrap().0.port() != 0);
        let contact = Contact { peer, incarnation: 1, address: address.to_string().into(), nonce: None };
        Self { net, events, contact, gate, blobs, _dir: dir }
    }

    /// The next event that `wanted` picks; skips others.
    pub(super) async fn next<T>(&mut self, mut wanted: impl FnMut(NetEvent) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.events.recv().await.expect("the network task ended");
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
        };
        timeout(WAIT, search).await.expect("the event did not come")
    }

    pub(super) async fn message(&mut self) -> (PeerId, Vec<u8>) {
        self.next(|event| match event {
            NetEvent::Received { from, bytes } => Some((from, bytes)),
            _ => None,
        })
        .await
    }

    pub(super) async fn unreachable(&mut self) -> PeerId {
        self.next(|event| match event {
            NetEvent::Unreachable(peer) => Some(peer),
            _ => None,
        })
        .await
    }

    /// Events that come within `period`.
    pub(super) async fn during(&mut self, period: Duration) -> Vec<NetEvent> {
        let mut events = Vec::new();
        let deadline = tokio::time::Instant::now() + period;
        while let Ok(Some(event)) = tokio::time::timeout_at(deadline, self.events.recv()).await {
            events.push(event);
        }
        events
    }
}

pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_peers_exchange_messages() {
    let mut nodes = [Node::start().await, Node::start().await, Node::start().await];
    let contacts = nodes.each_ref().map(|node| node.contact.clone());
    for from in &nodes {
        for to in &contacts {
            // Several to a peer that is not connected share one dial.
            for number in 0..20_u8 {
                if *to != from.contact {
                    from.net.send(to, vec![number; 1 + usize::from(number)]);
                }
            }
        }
    }
    for node in &mut nodes {
        let mut received = Vec::new();
        let mut connected = Vec::new();
        while received.len() < 40 || connected.len() < 2 {
            match timeout(WAIT, node.events.recv()).await.unwrap().unwrap() {
                NetEvent::Received { from, bytes } => received.push((from, bytes)),
                NetEvent::Connected { peer, address } => connected.push((peer, address)),
                other => panic!("unexpected: {other:?}"),
            }
        }
        for other in contacts.iter().filter(|other| **other != node.contact) {
            let mut numbers: Vec<_> =
                received.iter().filter(|(from, _)| *from == other.peer).map(|(_, b)| b[0]).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
            let address: Multiaddr = other.address.parse().unwrap();
            assert!(connected.contains(&(other.peer, Some(address))), "{connected:?}");
        }
    }
    let largest = vec![9; MESSAGE_BYTES_MAX];
    nodes[0].net.send(&contacts[1], largest.clone());
    assert_eq!(nodes[1].message().await, (contacts[0].peer, largest));
    nodes[0].net.send(&contacts[1], vec![0; MESSAGE_BYTES_MAX + 1]);
    let net = nodes[0].net.clone();
    until("the acknowledgements", || net.counters().messages_sent == 41).await;
    let counters = net.counters();
    assert_eq!((counters.messages_received, counters.messages_dropped, counters.protocol_errors), (40, 1, 0));
    assert!(counters.bytes_sent > MESSAGE_BYTES_MAX as u64 && counters.bytes_received > 0);
    for node in nodes {
        node.net.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_travels_in_pieces_and_is_downloaded_once() {
    let (source, target) = (Node::start().await, Node::start().await);
    let content: Vec<u8> = (0..700_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let hash = source.lend(&content);
    let empty = source.lend(b"");
    let fetcher = Fetcher::new(target.blobs.clone(), target.net.clone(), tokio::sync::mpsc::channel(1).0);
    let sources = vec![source.contact.clone()];
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (fetcher, sources) = (fetcher.clone(), sources.clone());
        calls.spawn(async move { fetcher.fetch(hash, 1 << 20, &origin(sources)).await });
    }
    while let Some(path) = calls.join_next().await {
        assert_eq!(std::fs::read(path.unwrap().unwrap()).unwrap(), content);
    }
    let sent = source.net.counters().bytes_sent;
    assert!((700_001..702_000).contains(&sent), "one download, not eight: {sent}");
    let path = fetcher.fetch(empty, 0, &origin(sources.clone())).await.unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"");

    let other = source.lend(&content[1..]);
    let error = fetcher.fetch(other, 1000, &origin(sources.clone())).await.unwrap_err();
    assert!(error.to_string().contains("1000 are allowed"), "{error}");
    assert!(matches!(fetcher.fetch(hash, 1000, &origin(sources.clone())).await, Err(FetchError::TooLarge { .. })));
    let absent = blake3::hash(b"nobody has this");
    let error = fetcher.fetch(absent, 1000, &origin(sources)).await.unwrap_err();
    assert!(error.to_string().contains("does not have it"), "{error}");
    assert_eq!(
        target.net.chunk(&source.contact, piece(hash, 1 << 40)).await,
        Ok(ChunkReply::Chunk { total: 700_001, bytes: vec![] })
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_needs_its_bags_key_and_a_result_its_submitter() {
    let (source, other) = (Node::start().await, Node::start().await);
    let key = BagKey::from([3; 32]);
    let (input, result) = (source.blobs.put_bytes(b"an input").unwrap(), source.blobs.put_bytes(b"a result").unwrap());
    source.blobs.lend(BAG, input, To::Holders(Some(key)));
    let ask = async |wanted| other.net.chunk(&source.contact, wanted).await.unwrap();
    let whole = |bytes: &[u8]| ChunkReply::Chunk { total: bytes.len() as u64, bytes: bytes.to_vec() };
    assert_eq!(ask(piece(input, 0)).await, ChunkReply::Missing, "to know its name is not enough");
    let wrong = Wanted { key: Some(BagKey::from([4; 32])), ..piece(input, 0) };
    assert_eq!(ask(wrong).await, ChunkReply::Missing);
    let elsewhere = Wanted { bag: BagId([9; 32]), key: Some(key), ..piece(input, 0) };
    assert_eq!(ask(elsewhere).await, ChunkReply::Missing);
    assert_eq!(ask(Wanted { key: Some(key), ..piece(input, 0) }).await, whole(b"an input"));
    assert_eq!(ask(Wanted { key: Some(key), ..piece(result, 0) }).await, ChunkReply::Missing);
    source.blobs.lend(BAG, result, To::Submitter(other.contact.peer));
    assert_eq!(ask(piece(result, 0)).await, whole(b"a result"));
    let fetcher = Fetcher::new(other.blobs.clone(), other.net.clone(), tokio::sync::mpsc::channel(1).0);
    let with = |key| Origin { key, ..origin(vec![source.contact.clone()]) };
    assert!(fetcher.fetch(input, 100, &with(None)).await.unwrap_err().to_string().contains("not for this machine"));
    fetcher.fetch(input, 100, &with(Some(key))).await.expect("it has the key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_with_a_message_is_not_asked_for_and_nothing_else_is_taken_for_it() {
    let (source, target) = (Node::start().await, Node::start().await);
    let fetcher = Fetcher::new(target.blobs.clone(), target.net.clone(), tokio::sync::mpsc::channel(1).0);
    let wanted = blake3::hash(b"an envelope");
    let enclosed = |enclosed: &[u8], sources| Origin { enclosed: vec![Enclosed::of(enclosed)], ..origin(sources) };
    let error = fetcher.fetch(wanted, 100, &enclosed(b"a forgery", Vec::new())).await.unwrap_err();
    assert!(matches!(error, FetchError::NoSource { .. }), "{error}");
    assert!(matches!(
        fetcher.fetch(wanted, 5, &enclosed(b"an envelope", Vec::new())).await.unwrap_err(),
        FetchError::TooLarge { .. }
    ));
    let path = fetcher.fetch(wanted, 100, &enclosed(b"an envelope", Vec::new())).await.expect("it is here");
    assert_eq!(std::fs::read(path).unwrap(), b"an envelope");
    let other = source.lend(b"another");
    let from = vec![source.contact.clone()];
    fetcher.fetch(other, 100, &enclosed(b"a forgery", from)).await.expect("its source has the genuine one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_keep_to_the_owners_bandwidth_cap() {
    let (source, target) = (Node::start().await, Node::start().await);
    let fetcher = Fetcher::new(target.blobs.clone(), target.net.clone(), tokio::sync::mpsc::channel(1).0);
    let caps = [(&source.net.rates().upload, 1), (&target.net.rates().download, 2)];
    for (cap, byte) in caps {
        let content = vec![byte; 512 << 10];
        let hash = source.lend(&content);
        cap.set(Some(1 << 20));
        let begin = std::time::Instant::now();
        let path = fetcher.fetch(hash, 1 << 20, &origin(vec![source.contact.clone()])).await.unwrap();
        // Half a mebibyte at one a second.
        assert!(begin.elapsed() >= Duration::from_millis(500), "{:?}", begin.elapsed());
        assert_eq!(std::fs::read(path).unwrap(), content);
        cap.set(None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_lies_or_is_gone_is_passed_over() {
    let (liar, honest, target) = (Node::start().await, Node::start().await, Node::start().await);
    let content = vec![5; 400_000];
    let hash = honest.lend(&content);
    liar.lend(&content);
    let path = liar.blobs.path(hash).unwrap().unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, vec![6; 400_000]).unwrap();
    let gone = Contact { peer: PeerId([3; 32]), incarnation: 1, address: "/ip4/127.0.0.1/tcp/1".into(), nonce: None };
    let fetcher = Fetcher::new(target.blobs.clone(), target.net.clone(), tokio::sync::mpsc::channel(1).0);

    let error = fetcher.fetch(hash, 1 << 20, &origin(vec![gone.clone(), liar.contact.clone()])).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("cannot be reached") && text.contains("other content"), "{text}");
    assert_eq!(target.blobs.used_bytes(), 0, "nothing of it may stay");
    assert_eq!(target.net.counters().protocol_errors, 1, "it is counted");
    let path = fetcher.fetch(hash, 1 << 20, &origin(vec![gone, liar.contact, honest.contact])).await.unwrap();
    assert_eq!(std::fs::read(path).unwrap(), content);
}

/// A codec that writes and reads raw bytes.
#[derive(Clone, Default)]
struct Raw;

/// The beginning of a request that never continues.
const NEVER_ENDING: &[u8] = b"\xa1\x67Mess";

impl request_response::Codec for Raw {
    type Protocol = StreamProtocol;
    type Request = Vec<u8>;
    type Response = Vec<u8>;

    async fn read_request<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io.read_to_end(&mut bytes).await.map(|_| bytes)
    }

    async fn read_response<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io.read_to_end(&mut bytes).await.map(|_| bytes)
    }

    async fn write_request<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&bytes).await?;
        if bytes == NEVER_ENDING {
            io.flush().await?;
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn write_response<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&bytes).await
    }
}

/// A member that sends arbitrary bytes.
fn raw_swarm() -> (Swarm<request_response::Behaviour<Raw>>, PeerId) {
    let key = Keypair::generate_ed25519();
    let gate = gate(GRID, &key, tempfile::tempdir().unwrap().path());
    let transport = tcp::tokio::Transport::default()
        .upgrade(Version::V1)
        .authenticate(admission::Admission::new(&key, gate.clone()).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .boxed();
    let protocols = [(wire::protocol(gate.grid()), request_response::ProtocolSupport::Full)];
    let behaviour = request_response::Behaviour::new(protocols, request_response::Config::default());
    let config = libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(60 * WAIT);
    let peer = identity::peer_id(&key).unwrap();
    (Swarm::new(transport, behaviour, key.public().to_peer_id(), config), peer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_does_not_end_the_loop() {
    let (mut node, friend) = (Node::start().await, Node::start().await);
    let address: Multiaddr = node.contact.address.parse().unwrap();
    let (socket, _) = idlewood_trust::address::parse(&address).unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 70_000], b""] {
        let mut stream = tokio::net::TcpStream::connect(socket).await.unwrap();
        // The other side may close before it has read all.
        if let Err(error) = stream.write_all(bytes).await {
            assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
        }
    }

    let (mut evil, _) = raw_swarm();
    let victim = identity::to_libp2p(node.contact.peer);
    evil.add_peer_address(victim, address);
    let frames: [Vec<u8>; 6] = [
        vec![],
        vec![0xff; 1000],
        vec![0x81; 100_000],
        vec![0; 4 << 20],
        hex::decode("a1674d6573736167655b7fffffffffffffff00").unwrap(),
        hex::decode("6341636b").unwrap(), // an answer instead of a question
    ];
    let count = frames.len();
    for frame in frames {
        evil.behaviour_mut().send_request(&victim, frame);
    }
    let mut answered = 0;
    let run = async {
        while answered < count {
            match evil.select_next_some().await {
                SwarmEvent::Behaviour(request_response::Event::OutboundFailure { .. }) => answered += 1,
                SwarmEvent::Behaviour(request_response::Event::Message {
                    message: request_response::Message::Response { response, .. },
                    ..
                }) => {
                    assert!(response.is_empty(), "garbage must not be answered: {response:?}");
                    answered += 1;
                }
                _ => {}
            }
        }
    };
    timeout(WAIT, run).await.expect("every request must come to an end");
    assert!(node.net.counters().protocol_errors >= 5, "{:?}", node.net.counters());
    friend.net.send(&node.contact, b"still there?".to_vec());
    assert_eq!(node.message().await, (friend.contact.peer, b"still there?".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_answers_are_refused() {
    let mut node = Node::start().await;
    let (mut evil, peer) = raw_swarm();
    evil.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let (tell, told) = oneshot::channel();
    let server = tokio::spawn(async move {
        let mut tell = Some(tell);
        loop {
            match evil.select_next_some().await {
                SwarmEvent::NewListenAddr { address, .. } => {
                    tell.take().unwrap().send(address).unwrap();
                }
                SwarmEvent::Behaviour(request_response::Event::Message {
                    message: request_response::Message::Request { request, channel, .. },
                    ..
                }) => {
                    // An acknowledgement for a chunk, an endless chunk, and noise.
                    let reply = match request.len() % 3 {
                        0 => hex::decode("6341636b").unwrap(),
                        1 => hex::decode("a1654368756e6ba265746f74616c02656279746573420908").unwrap().repeat(20_000),
                        _ => vec![0xff; 100],
                    };
                    drop(evil.behaviour_mut().send_response(channel, reply));
                }
                _ => {}
            }
        }
    });
    let contact = Contact { peer, incarnation: 0, address: told.await.unwrap().to_string().into(), nonce: None };
    for offset in [0, 300, 70_000, u64::MAX] {
        let reply = timeout(WAIT, node.net.chunk(&contact, piece(blake3::hash(b"x"), offset))).await.unwrap();
        assert!(reply.is_err(), "{reply:?}");
    }
    for length in 0..3 {
        node.net.send(&contact, vec![0; length]);
    }
    assert_eq!(node.unreachable().await, peer);
    let net = node.net.clone();
    until("the errors", || net.counters().protocol_errors >= 4).await;
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_failures_are_reported_once() {
    let mut node = Node::start().await;
    let (mut mute, peer) = raw_swarm();
    mute.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let address = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = mute.select_next_some().await {
            break address;
        }
    };
    let contact = Contact { peer, incarnation: 0, address: address.to_string().into(), nonce: None };
    for _ in 0..20 {
        node.net.send(&contact, vec![1]);
    }
    // Accepts requests and leaves them unanswered, then is gone.
    let mut unanswered = Vec::new();
    while unanswered.len() < 20 {
        if let SwarmEvent::Behaviour(request_response::Event::Message {
            message: request_response::Message::Request { channel, .. },
            ..
        }) = mute.select_next_some().await
        {
            unanswered.push(channel);
        }
    }
    drop(mute);
    assert_eq!(node.unreachable().await, peer);
    assert_eq!(node.during(Duration::from_millis(400)).await, []);
    assert_eq!(node.net.counters().messages_dropped, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_port_is_named() {
    let node = Node::start().await;
    let dir = tempfile::tempdir().unwrap();
    let blobs = Arc::new(Blobs::open(dir.path(), 1 << 20).unwrap());
    let address: Multiaddr = node.contact.address.parse().unwrap();
    let keypair = Keypair::generate_ed25519();
    let gate = gate(GRID, &keypair, dir.path());
    let config = NetConfig { keypair, gate, listen: vec![address.clone()] };
    let error = start(config, blobs).unwrap_err();
    assert!(matches!(&error, NetError::Busy(busy) if *busy == address), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_a_grid_uses_loopback_only() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = Arc::new(Blobs::open(dir.path(), 1 << 20).unwrap());
    for far in ["/ip4/0.0.0.0/tcp/0", "/ip4/192.0.2.1/tcp/4001", "/ip6/::/tcp/0", "/dns4/localhost/tcp/0"] {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap(), far.parse().unwrap()];
        let keypair = Keypair::generate_ed25519();
        let gate = Arc::new(Gate::open(&keypair, None).unwrap());
        let config = NetConfig { keypair, gate, listen };
        let error = start(config, blobs.clone()).unwrap_err();
        assert!(matches!(error, NetError::Address(_)), "{far}: {error}");
        assert!(error.to_string().contains(far) && !error.to_string().is_empty(), "{error}");
    }
    let mut node = Node::start().await;
    for far in ["/ip4/192.0.2.1/tcp/4001", "/dns4/localhost/tcp/4001"] {
        assert!(matches!(node.net.dial(far.parse().unwrap()).await, Err(DialError::Address(_))));
    }
    for (index, address) in ["/ip4/192.0.2.1/tcp/4001", "", "nonsense", "/ip4/127.0.0.1/udp/1"].into_iter().enumerate()
    {
        let contact =
            Contact { peer: PeerId([index as u8 + 1; 32]), incarnation: 1, address: address.into(), nonce: None };
        node.net.send(&contact, vec![1]);
        assert_eq!(node.unreachable().await, contact.peer, "{address}");
    }
    assert_eq!(node.net.counters().messages_dropped, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_another_grid_cannot_talk() {
    let mut ours = Node::start().await;
    let mut theirs = Node::start_with(Keypair::generate_ed25519(), 8, "/ip4/127.0.0.1/tcp/0").await;
    let address: Multiaddr = theirs.contact.address.parse().unwrap();
    assert_eq!(ours.net.dial(address.clone()).await, Err(DialError::OtherGrid(address)));
    ours.net.send(&theirs.contact, b"hello".to_vec());
    assert_eq!(ours.unreachable().await, theirs.contact.peer);
    assert!(ours.net.chunk(&theirs.contact, piece(blake3::hash(b""), 0)).await.is_err());
    for node in [&mut ours, &mut theirs] {
        for event in node.during(Duration::from_millis(300)).await {
            assert!(matches!(event, NetEvent::Unreachable(_)), "{event:?}");
        }
    }
    assert_eq!(theirs.net.counters().messages_received, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dialling_with_and_without_the_name() {
    let (a, b) = (Node::start().await, Node::start().await);
    let address: Multiaddr = b.contact.address.parse().unwrap();
    assert_eq!(a.net.dial(address.clone()).await, Ok(b.contact.peer));
    let named = address.clone().with(Protocol::P2p(identity::to_libp2p(b.contact.peer)));
    assert_eq!(a.net.dial(named).await, Ok(b.contact.peer));
    let wrong = address.with(Protocol::P2p(libp2p::PeerId::random()));
    let error = a.net.dial(wrong).await.unwrap_err();
    assert!(error.to_string().contains("another agent lives there"), "{error}");
    let error = a.net.dial("/ip4/127.0.0.1/tcp/1".parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let own: Multiaddr = a.contact.address.parse().unwrap();
    assert_eq!(a.net.dial(own.clone()).await, Err(DialError::Oneself(own)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_peer_dials_back_once_in_a_while() {
    let (a, b) = (Node::start().await, Node::start().await);
    assert_eq!(a.net.dialled_back().await, [], "nobody is connected");
    let to_b: Multiaddr = b.contact.address.parse().unwrap();
    assert_eq!(a.net.dial(to_b.clone()).await, Ok(b.contact.peer));
    let own = idlewood_trust::address::parse(&a.contact.address.parse().unwrap()).unwrap().0;
    let told = a.net.dialled_back().await;
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].by, told[0].at, &told[0].failure), (b.contact.peer, Some(own), &None));
    let (ahead_s, margin_s) = told[0].clock_ahead_s.expect("it says what time it has");
    // One clock, read to the millisecond.
    assert!(ahead_s.abs() <= margin_s + 0.002, "{ahead_s} {margin_s}");
    // Whoever asks again at once is not obeyed.
    let again = a.net.dialled_back().await;
    assert!(again[0].failure.as_ref().is_some_and(|why| why.contains("ask again")), "{again:?}");
    // The extra connection is closed, and the first one stays.
    assert!(b.gate.connected().contains(&a.contact.peer) && a.gate.connected().contains(&b.contact.peer));
    a.net.send(&b.contact, b"still there".to_vec());
    let mut b = b;
    assert_eq!(b.message().await, (a.contact.peer, b"still there".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_gone_is_reported_once_and_found_again() {
    let key = Keypair::generate_ed25519();
    let mut a = Node::start().await;
    let b = Node::start_with(key.clone(), GRID, "/ip4/127.0.0.1/tcp/0").await;
    let contact = b.contact.clone();
    a.net.send(&contact, vec![1]);
    let net = a.net.clone();
    until("the first message", || net.counters().messages_sent == 1).await;
    b.net.shutdown().await;
    assert_eq!(a.unreachable().await, contact.peer);

    tokio::time::sleep(Duration::from_millis(600)).await;
    for _ in 0..500 {
        a.net.send(&contact, vec![2]);
    }
    assert_eq!(a.unreachable().await, contact.peer);
    assert_eq!(a.during(Duration::from_millis(400)).await, [], "once, not 500 times");
    assert_eq!(a.net.counters().messages_dropped, 500);

    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut b = Node::start_with(key, GRID, &contact.address).await;
    a.net.send(&contact, vec![3]);
    assert_eq!(b.message().await, (a.contact.peer, vec![3]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_moved_is_found_at_its_announced_address() {
    let key = Keypair::generate_ed25519();
    let mut a = Node::start().await;
    let b = Node::start_with(key.clone(), GRID, "/ip4/127.0.0.1/tcp/0").await;
    let stale = b.contact.clone();
    b.net.shutdown().await;
    // The port may belong to another agent of the grid by now: that is not the peer either.
    let squatter = Node::start_with(Keypair::generate_ed25519(), GRID, &stale.address).await;
    a.net.send(&stale, vec![1]);
    assert_eq!(a.unreachable().await, stale.peer, "nothing else is known of it");

    let b = Node::start_with(key.clone(), GRID, "/ip4/127.0.0.1/tcp/0").await;
    let there = b.contact.address.clone();
    assert_ne!(there, stale.address);
    b.net.send(&a.contact, b"here I am".to_vec());
    a.next(|event| matches!(event, NetEvent::Connected { peer, .. } if peer == stale.peer).then_some(())).await;
    // The connection closes; others remember an old address of the peer, or none.
    let mut last = b;
    for remembered in [stale.address.clone(), "".into()] {
        last.net.shutdown().await;
        assert_eq!(a.unreachable().await, stale.peer);
        last = Node::start_with(key.clone(), GRID, &there).await;
        let contact = Contact { address: remembered, ..stale.clone() };
        a.net.send(&contact, b"found".to_vec());
        assert_eq!(last.message().await, (a.contact.peer, b"found".to_vec()));
    }
    // No agent answers there any more either: it is forgotten, and one failure is reported.
    last.net.shutdown().await;
    assert_eq!(a.unreachable().await, stale.peer);
    tokio::time::sleep(2 * Duration::from_millis(500)).await;
    a.net.send(&stale, b"gone".to_vec());
    assert_eq!(a.unreachable().await, stale.peer);
    assert_eq!(a.during(Duration::from_millis(400)).await, []);
    drop(squatter);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_delivers_what_is_queued() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    for number in 0..300_u32 {
        a.net.send(&b.contact, number.to_be_bytes().to_vec());
    }
    let from = a.contact.peer;
    a.net.shutdown().await;
    let mut numbers = Vec::new();
    for _ in 0..300 {
        let (sender, bytes) = b.message().await;
        assert_eq!(sender, from);
        numbers.push(u32::from_be_bytes(bytes.try_into().unwrap()));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_does_not_keep_up_refuses_and_recovers() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    // `b` receives no event meanwhile. A message is refused if there is no room for it, and only then.
    let (from, to) = (a.net.clone(), b.net.clone());
    let (mut taken, mut came_back) = (0, 0);
    until("the receiver to be full", || {
        while a.net.send(&b.contact, vec![1; 200_000]) {
            taken += 1;
        }
        came_back += 1;
        to.counters().messages_refused > 0
    })
    .await;
    assert!(taken > 20 && came_back > 0, "{taken} messages");
    for number in 0..taken {
        assert_eq!(b.message().await.1.len(), 200_000, "{number} of {taken}");
    }
    let freed = timeout(WAIT, a.net.freed()).await.expect("there is room again");
    assert_eq!(freed.into_iter().collect::<Vec<_>>(), [b.contact.peer]);
    assert_eq!((from.counters().messages_sent, from.counters().messages_dropped), (taken, 0));
    a.net.send(&b.contact, b"last".to_vec());
    assert_eq!(b.message().await.1, b"last");
}
