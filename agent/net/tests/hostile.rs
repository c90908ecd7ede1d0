//! Attacks by a machine of the grid with its own network stack: libp2p's encryption, and anything below and above it.
//! The handshake is written by hand, following `docs/formats.md`; after it come bytes that libp2p would not write.
//!
//! In each test the victim's network stays up and serves another machine without delay.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use idlewood_blobs::Blobs;
use idlewood_net::{ChunkError, NetConfig, NetEvent, NetHandle, Wanted, join};
use idlewood_overlay::Contact;
use idlewood_scheduler::BagId;
use idlewood_testing::Counting;
use idlewood_trust::{Gate, Membership, Offer, Role, identity, now_s};
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, PortUse, Transport as _};
use libp2p::core::upgrade::OutboundConnectionUpgrade as _;
use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, noise, tcp};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const WAIT: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

/// Bytes that a stream may send without permission: yamux's window.
const WINDOW: usize = 256 << 10;

/// Frame types and flags of yamux.
const DATA: u8 = 0;
const UPDATE: u8 = 1;
const PING: u8 = 2;
const GO_AWAY: u8 = 3;
const NOTHING: u16 = 0;
const SYN: u16 = 1;
const ACK: u16 = 2;
const FIN: u16 = 4;
const RST: u16 = 8;

const MULTISTREAM: &str = "/multistream/1.0.0";

/// One machine's network.
struct Node {
    net: NetHandle,
    events: mpsc::Receiver<NetEvent>,
    contact: Contact,
    gate: Arc<Gate>,
    _dir: TempDir,
}

impl Node {
    async fn start(dir: TempDir, keypair: Keypair, membership: Membership) -> Self {
        let peer = identity::peer_id(&keypair).unwrap();
        let gate = Arc::new(Gate::open(&keypair, Some(membership)).unwrap());
        let blobs = Arc::new(Blobs::open(&dir.path().join("blobs"), 64 << 20).unwrap());
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let (net, mut events) = idlewood_net::start(NetConfig { keypair, gate: gate.clone(), listen }, blobs).unwrap();
        let Some(NetEvent::Listening(address)) = events.recv().await else { panic!("it does not listen") };
        let contact = Contact { peer, incarnation: 1, address: address.to_string().into(), nonce: None };
        Self { net, events, contact, gate, _dir: dir }
    }
}

/// The victim, a machine that it serves, and the attacker's membership.
struct Stage {
    victim: Node,
    friend: Node,
    evil: Keypair,
    chain: Vec<u8>,
    sent: u32,
    // Last: memory is counted for all tests together.
    _turn: MutexGuard<'static, ()>,
}

impl Stage {
    async fn set() -> Self {
        static TURN: OnceLock<Mutex<()>> = OnceLock::new();
        let turn = TURN.get_or_init(Mutex::default).lock().await;
        let dir = tempfile::tempdir().unwrap();
        let key = Keypair::generate_ed25519();
        let membership = Membership::create(dir.path(), &key, "test", None, now_s()).unwrap();
        let victim = Node::start(dir, key, membership).await;
        let hour = Duration::from_secs(3_600);
        let offer = Offer { role: Role::Member, valid: hour, uses: 2, lifetime: hour };
        let invitation = victim.gate.invite(offer, None).unwrap();
        let (friends, friend) = (tempfile::tempdir().unwrap(), Keypair::generate_ed25519());
        let membership = join(friends.path(), &friend, &invitation).await.unwrap();
        let friend = Node::start(friends, friend, membership).await;
        let (evils, evil) = (tempfile::tempdir().unwrap(), Keypair::generate_ed25519());
        let chain = join(evils.path(), &evil, &invitation).await.unwrap().chain().encode();
        let mut stage = Self { victim, friend, evil, chain, sent: 0, _turn: turn };
        stage.serves_others().await;
        stage
    }

    /// The victim receives a message of another machine, and answers it.
    async fn serves_others(&mut self) {
        self.sent += 1;
        let frame = self.sent.to_be_bytes().to_vec();
        let begin = Instant::now();
        self.friend.net.send(&self.victim.contact, frame.clone());
        let from = self.friend.contact.peer;
        let heard = async {
            while self.victim.events.recv().await.expect("the network ended")
                != (NetEvent::Received { from, bytes: frame.clone() })
            {}
        };
        timeout(WAIT, heard).await.expect("it serves others");
        let sent = u64::from(self.sent);
        until("an answer", || self.friend.net.counters().messages_sent == sent).await;
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?} is no service", begin.elapsed());
    }

    fn name(&self, what: &str, bytes: usize) -> String {
        format!("/idlewood/{}/{what}", hex::encode(&self.victim.gate.grid().0[..bytes]))
    }

    /// An admitted connection.
    async fn connect(&self) -> Connection {
        let address: Multiaddr = self.victim.contact.address.parse().unwrap();
        let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let mut socket = tcp::tokio::Transport::default().dial(address, options).unwrap().await.unwrap();
        agree(&mut socket, &self.name("admission/1", 32)).await;
        let encryption = noise::Config::new(&self.evil).unwrap();
        let (peer, mut io) = encryption.upgrade_outbound(socket, "/noise").await.unwrap();
        assert_eq!(identity::from_libp2p(&peer), Some(self.victim.contact.peer));
        let bytes = |length: usize| [0x59, (length >> 8) as u8, length as u8];
        let hello = [&[0x83, 0x00], &bytes(self.chain.len())[..], &self.chain, &[0x50], &[7; 16]].concat();
        say(&mut io, &hello).await;
        let answer = hear(&mut io).await;
        assert_eq!(answer[..2], [0x83, 0x00], "it is let in: {}", hex::encode(&answer));
        say(&mut io, &[0x83, 0x00, 0x40, 0x40]).await;
        agree(&mut io, "/yamux/1.0.0").await;
        let (mut from, to) = io.split();
        let (tell, frames) = mpsc::unbounded_channel();
        let reader = tokio::spawn(async move {
            while let Ok(frame) = Frame::read(&mut from).await {
                if tell.send(frame).is_err() {
                    break;
                }
            }
        });
        Connection { to: Box::new(to), frames, reader, next: 1, heard: BTreeMap::new(), farewells: 0, pongs: 0 }
    }

    fn peer(&self) -> Contact {
        let peer = identity::peer_id(&self.evil).unwrap();
        Contact { peer, incarnation: 0, address: "".into(), nonce: None }
    }

    fn protocol_errors(&self) -> u64 {
        self.victim.net.counters().protocol_errors
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < WAIT, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// ---- by hand ----

async fn say<T: AsyncWrite + Unpin>(io: &mut T, frame: &[u8]) {
    io.write_all(&(frame.len() as u16).to_be_bytes()).await.unwrap();
    io.write_all(frame).await.unwrap();
    io.flush().await.unwrap();
}

async fn hear<T: AsyncRead + Unpin>(io: &mut T) -> Vec<u8> {
    let mut length = [0; 2];
    io.read_exact(&mut length).await.unwrap();
    let mut frame = vec![0; usize::from(u16::from_be_bytes(length))];
    io.read_exact(&mut frame).await.unwrap();
    frame
}

/// A message of multistream-select, of up to 127 bytes.
fn line(text: &str) -> Vec<u8> {
    [&[text.len() as u8 + 1], text.as_bytes(), b"\n"].concat()
}

/// Negotiates a protocol as the dialler.
async fn agree<T: AsyncRead + AsyncWrite + Unpin>(io: &mut T, name: &str) {
    let frame = [line(MULTISTREAM), line(name)].concat();
    io.write_all(&frame).await.unwrap();
    io.flush().await.unwrap();
    let mut answer = vec![0; frame.len()];
    io.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(&frame));
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u16,
    stream: u32,
    content: Vec<u8>,
}

impl Frame {
    async fn read<T: AsyncRead + Unpin>(io: &mut T) -> io::Result<Self> {
        let mut head = [0; 12];
        io.read_exact(&mut head).await?;
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (kind, flags, stream) = (head[1], u16::from_be_bytes([head[2], head[3]]), number(4));
        let mut content = vec![0; if kind == DATA { number(8) as usize } else { 0 }];
        io.read_exact(&mut content).await?;
        Ok(Self { kind, flags, stream, content })
    }
}

/// The bytes received on a stream.
#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    is_over: bool,
    /// Whether its protocol was accepted or refused.
    is_answered: bool,
}

/// Frames of yamux, in any order.
struct Connection {
    to: Box<dyn AsyncWrite + Send + Unpin>,
    frames: mpsc::UnboundedReceiver<Frame>,
    reader: JoinHandle<()>,
    next: u32,
    heard: BTreeMap<u32, Heard>,
    /// Number of frames by which the other side ended the connection.
    farewells: usize,
    pongs: usize,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Connection {
    /// Writes the head of a frame, whatever follows it.
    async fn head(&mut self, kind: u8, flags: u16, stream: u32, length: u32) -> io::Result<()> {
        let head = [&[0, kind], &flags.to_be_bytes()[..], &stream.to_be_bytes(), &length.to_be_bytes()].concat();
        self.to.write_all(&head).await
    }

    async fn data(&mut self, flags: u16, stream: u32, content: &[u8]) -> io::Result<()> {
        self.head(DATA, flags, stream, content.len() as u32).await?;
        self.to.write_all(content).await?;
        self.to.flush().await
    }

    /// Opens a stream with this content, with further flags.
    async fn open(&mut self, over: u16, content: &[u8]) -> io::Result<u32> {
        let stream = self.next;
        self.next += 2;
        self.data(SYN | over, stream, content).await?;
        Ok(stream)
    }

    /// Reads one frame; false when the connection has ended.
    async fn turn(&mut self) -> bool {
        let Some(frame) = timeout(WAIT, self.frames.recv()).await.expect("a frame") else { return false };
        match frame.kind {
            DATA | UPDATE => {
                let heard = self.heard.entry(frame.stream).or_default();
                heard.bytes.extend(frame.content);
                heard.is_over |= frame.flags & (FIN | RST) != 0;
            }
            GO_AWAY => self.farewells += 1,
            PING => self.pongs += usize::from(frame.flags & ACK != 0),
            other => panic!("{other} is no frame"),
        }
        true
    }

    /// All that is received on a stream, until the other side closes it.
    async fn rest_of(&mut self, stream: u32) -> Vec<u8> {
        while !self.heard.get(&stream).is_some_and(|heard| heard.is_over) && self.turn().await {}
        self.heard.remove(&stream).map(|heard| heard.bytes).unwrap_or_default()
    }

    /// The stream of the victim's next request of this protocol that begins with these bytes. Refuses all other
    /// requests.
    async fn request(&mut self, protocol: &str, begins: &[u8]) -> u32 {
        let (header, name) = (line(MULTISTREAM), line(protocol));
        loop {
            assert!(self.turn().await, "the connection has ended");
            let theirs: Vec<u32> = self.heard.keys().copied().filter(|stream| stream % 2 == 0).collect();
            for stream in theirs {
                let heard = &self.heard[&stream];
                let after = heard.bytes.get(header.len()..).unwrap_or_default();
                let is_wanted = after.starts_with(&name);
                let is_complete = after.first().is_some_and(|&length| after.len() > usize::from(length));
                if !heard.is_answered && is_complete {
                    let answer = if is_wanted { name.clone() } else { line("na") };
                    self.data(ACK, stream, &[header.clone(), answer].concat()).await.unwrap();
                    self.heard.entry(stream).or_default().is_answered = true;
                } else if heard.is_over && is_wanted && after[name.len()..].starts_with(begins) {
                    self.heard.remove(&stream);
                    return stream;
                }
            }
        }
    }
}

/// Occupies all negotiations that the victim allows, and fills the windows of as many further streams as it accepts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_opened_and_never_used_take_little() {
    let mut stage = Stage::set().await;
    let mut evil = stage.connect().await;
    stage.serves_others().await;
    let before = ALLOCATOR.live();
    for _ in 0..128 {
        evil.open(NOTHING, &line(MULTISTREAM)).await.unwrap();
    }
    let filler = vec![0xff; WINDOW];
    for _ in 0..600 {
        evil.open(NOTHING, &filler).await.unwrap();
    }
    stage.serves_others().await;
    let taken = ALLOCATOR.live().saturating_sub(before + filler.len());
    println!("{} KiB for 128 streams that wait and 600 that are full", taken >> 10);
    assert!(taken < 40 * MIB, "{} MiB", taken / MIB);
    while evil.farewells == 0 {
        assert!(evil.turn().await);
    }
}

/// More than the window, more than a frame, endless credit, streams that exist already or never did, endless pings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_yamux_does_not_have_end_their_connection_alone() {
    let mut stage = Stage::set().await;
    let before = ALLOCATOR.live();
    let begin = line(MULTISTREAM);

    // The victim never reads past the name of an endless protocol.
    let mut evil = stage.connect().await;
    let stream = evil.open(NOTHING, &begin).await.unwrap();
    for _ in 0..64 {
        evil.data(NOTHING, stream, &vec![0xff; WINDOW]).await.unwrap();
    }
    stage.serves_others().await;

    let mut evil = stage.connect().await;
    evil.head(DATA, SYN, 1, u32::MAX).await.unwrap();
    evil.to.write_all(&[0]).await.unwrap();
    evil.to.flush().await.unwrap();
    while evil.turn().await {}

    let mut evil = stage.connect().await;
    let stream = evil.open(NOTHING, &begin).await.unwrap();
    for _ in 0..3 {
        evil.head(UPDATE, NOTHING, stream, u32::MAX).await.unwrap();
    }
    // A stream of the victim's, one that exists already, one that never did.
    evil.data(SYN, 2, &begin).await.unwrap();
    evil.data(SYN, stream, &begin).await.unwrap();
    evil.data(NOTHING, 99, &begin).await.unwrap();
    while evil.farewells < 3 {
        assert!(evil.turn().await, "{}", evil.farewells);
    }

    let mut evil = stage.connect().await;
    for number in 0..20_000 {
        evil.head(PING, SYN, 0, number).await.unwrap();
    }
    evil.to.flush().await.unwrap();
    while evil.pongs < 100 {
        assert!(evil.turn().await);
    }
    evil.head(9, 0xffff, 0, 0).await.unwrap();
    evil.to.flush().await.unwrap();
    while evil.turn().await {}

    stage.serves_others().await;
    let taken = ALLOCATOR.live().saturating_sub(before);
    assert!(taken < 16 * MIB, "{} MiB", taken / MIB);
}

/// Names of protocols: none, foreign ones, more and more of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_other_protocols_are_refused() {
    let mut stage = Stage::set().await;
    let mut evil = stage.connect().await;
    for name in ["/kad/1.0.0", "/ipfs/bitswap/1.2.0", "/idlewood/0000000000000000/peer/2", "/idlewood/peer/2", "/"] {
        let stream = evil.open(FIN, &[line(MULTISTREAM), line(name)].concat()).await.unwrap();
        assert_eq!(evil.rest_of(stream).await, [line(MULTISTREAM), line("na")].concat(), "{name}");
    }
    let garbage: [&[u8]; 5] = [b"", b"GET / HTTP/1.1\r\n\r\n", &[0; 3000], &[0xff; 3000], b"\x05/yam\n\x00\x00"];
    for garbage in garbage {
        let stream = evil.open(FIN, garbage).await.unwrap();
        let answer = evil.rest_of(stream).await;
        assert!(answer.is_empty() || answer == line(MULTISTREAM), "{garbage:02x?}: {answer:02x?}");
    }
    // Each is refused; the attacker does not read that.
    let before = ALLOCATOR.live();
    let names = [line(MULTISTREAM), line("/none").repeat(500)].concat();
    for _ in 0..32 {
        evil.open(NOTHING, &names).await.unwrap();
        stage.serves_others().await;
    }
    let taken = ALLOCATOR.live().saturating_sub(before);
    assert!(taken < 8 * MIB, "{} KiB", taken >> 10);
    assert_eq!(stage.protocol_errors(), 0, "none of it was a frame of ours");
}

/// A head that announces four gibibytes, and one byte of them; on streams that end there, and on as many as may be
/// open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_length_allocates_nothing() {
    let mut stage = Stage::set().await;
    let mut evil = stage.connect().await;
    let begin = [line(MULTISTREAM), line(&stage.name("peer/2", 8))].concat();
    // CBOR: a map of one, "Message", and a byte string of 4 GiB less one, or of 8 EiB.
    let lengths: [&[u8]; 2] = [b"\x5a\xff\xff\xff\xff", b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff"];
    let before = ALLOCATOR.live();
    for (number, length) in (1..).zip(lengths) {
        let request = [&begin, &b"\xa1\x67Message"[..], length, &[0]].concat();
        let stream = evil.open(FIN, &request).await.unwrap();
        assert_eq!(evil.rest_of(stream).await, begin, "it is agreed on, and not answered");
        assert_eq!(stage.protocol_errors(), number);
        for _ in 0..48 {
            evil.open(NOTHING, &request).await.unwrap();
        }
    }
    stage.serves_others().await;
    let taken = ALLOCATOR.live().saturating_sub(before);
    assert!(taken < 8 * MIB, "{} KiB for 96 requests that do not go on", taken >> 10);
    assert_eq!(evil.farewells, 0);
}

/// The victim requests a piece of a blob, and gets twice the announced length, more than the maximum, no end of it, or
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_too_long_or_never_come_are_given_up() {
    let mut stage = Stage::set().await;
    let mut evil = stage.connect().await;
    let (peer, protocol) = (stage.peer(), stage.name("peer/2", 8));
    // A chunk: total length, and length of the piece.
    let chunk =
        |total: u8, length: &[u8]| [&b"\xa1\x65Chunk\xa2\x65total"[..], &[total], b"\x65bytes", length].concat();
    let answers = [
        Some([chunk(8, &[0x44]), vec![1; 8]].concat()),
        Some([chunk(4, &[0x48]), vec![1; 8]].concat()),
        Some([chunk(4, b"\x5a\xff\xff\xff\xff"), vec![1; 4 * WINDOW]].concat()),
        None,
    ];
    let before = ALLOCATOR.live();
    for (number, answer) in (1..).zip(answers) {
        let net = stage.victim.net.clone();
        let to = peer.clone();
        let wanted = Wanted { hash: blake3::hash(b"x"), offset: 0, bag: BagId([0; 32]), key: None };
        let asked = tokio::spawn(async move { net.chunk(&to, wanted).await });
        let stream = evil.request(&protocol, b"\xa1\x65Chunk").await;
        if let Some(answer) = &answer {
            // An honest sender keeps to the window.
            for piece in answer.chunks(WINDOW / 2) {
                evil.data(NOTHING, stream, piece).await.unwrap();
            }
            evil.data(FIN, stream, &[]).await.unwrap();
        }
        stage.serves_others().await;
        let reply = timeout(WAIT, asked).await.expect("it is given up").unwrap();
        match answer {
            Some(_) => {
                assert!(
                    matches!(reply, Err(ChunkError::Protocol(_) | ChunkError::Unreachable(_))),
                    "{number}: {reply:?}"
                );
                until("the error to be counted", || stage.protocol_errors() >= number).await;
            }
            None => assert_eq!(reply, Err(ChunkError::Unreachable(peer.peer))),
        }
    }
    stage.serves_others().await;
    let taken = ALLOCATOR.live().saturating_sub(before);
    assert!(taken < 8 * MIB, "{} KiB", taken >> 10);
}
