//! Which machines get a connection, over real sockets on loopback.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use idlewood_trust::{Admissions, Gate, Offer, Refused, Role, Terms, identity, now_s};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::upgrade::Version;
use libp2p::futures::StreamExt as _;
use libp2p::identity::Keypair;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, Transport as _, noise, ping, tcp, yamux};

use super::swarm::Limits;
use super::tests::{GRID, Node, WAIT, gate, grid_key, terms, until};
use super::*;

const LOOPBACK: &str = "/ip4/127.0.0.1/tcp/0";

/// A node with a certificate of these terms.
async fn certified(terms: impl FnOnce(Terms) -> Terms) -> Node {
    let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
    let terms = terms(super::tests::terms(GRID, &key));
    let gate = Gate::certified(&key, terms, &grid_key(GRID), None, dir.path());
    Node::start_behind(Limits::default(), key, Arc::new(gate), dir, LOOPBACK).await
}

fn address(node: &Node) -> Multiaddr {
    node.contact.address.parse().unwrap()
}

/// Waits until the counters of `node` satisfy a condition.
async fn counted(node: &Node, is_so: impl Fn(&Admissions) -> bool) {
    let gate = node.gate.clone();
    until("the counter", || is_so(&gate.admissions())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_admitted_and_counted_on_both_sides() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    a.net.send(&b.contact, b"hello".to_vec());
    assert_eq!(b.message().await, (a.contact.peer, b"hello".to_vec()));
    for node in [&a, &b] {
        counted(node, |admissions| *admissions == Admissions { admitted: 1, ..Admissions::default() }).await;
    }
    assert_eq!(b.gate.role_of(a.contact.peer), Some(Role::Admin));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_without_a_valid_certificate_learns_why_and_cannot_send() {
    let node = Node::start().await;
    let mut others = Vec::new();
    let expired = certified(|terms| Terms { issued_s: 1, expires_s: now_s() - 1, ..terms }).await;
    others.push((expired, Refused::Expired));
    let stolen = certified(|terms| Terms { peer: node.contact.peer, ..terms }).await;
    others.push((stolen, Refused::NotTheirs));
    let revoked = certified(|terms| Terms { role: Role::Submitter, ..terms }).await;
    node.gate.revoke(revoked.contact.peer, None).unwrap();
    others.push((revoked, Refused::Revoked));
    let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
    // Claims this grid with a certificate that it signed itself.
    let own = key.clone().try_into_ed25519().unwrap();
    let forged = Arc::new(Gate::certified(&key, terms(GRID, &key), &own, None, dir.path()));
    others.push((Node::start_behind(Limits::default(), key, forged, dir, LOOPBACK).await, Refused::Forged));

    for (mut other, refused) in others {
        assert_eq!(
            other.net.dial(address(&node)).await,
            Err(DialError::Refused(address(&node), refused)),
            "as the one who dials"
        );
        other.net.send(&node.contact, b"let me in".to_vec());
        assert_eq!(other.unreachable().await, node.contact.peer);
        // As the listener it shows its certificate second.
        let error = node.net.dial(address(&other)).await.unwrap_err();
        assert!(error.to_string().contains(&refused.to_string()), "{error}");
        counted(&other, |admissions| admissions.refused_by_others >= 2).await;
        assert_eq!(other.gate.admissions().admitted, 0);
        let connected = NetEvent::Connected { peer: node.contact.peer, address: None };
        assert!(!other.during(Duration::from_millis(50)).await.contains(&connected));
    }
    let seen = node.gate.admissions();
    assert!(seen.expired >= 2 && seen.revoked >= 2 && seen.strangers >= 4, "{seen:?}");
    assert_eq!((seen.admitted, node.net.counters().messages_received), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_grid_is_told_apart_before_any_key_is_shown() {
    let node = Node::start().await;
    let other = Node::start_with(Keypair::generate_ed25519(), 8, LOOPBACK).await;
    assert_eq!(node.net.dial(address(&other)).await, Err(DialError::OtherGrid(address(&other))));
    counted(&other, |admissions| *admissions == Admissions { wrong_grid: 1, ..Admissions::default() }).await;
    let alone = Gate::open(&Keypair::generate_ed25519(), None).unwrap();
    assert_ne!(alone.grid(), node.gate.grid());
}

/// Plain libp2p: Noise alone, no certificates.
fn stranger() -> Swarm<ping::Behaviour> {
    let key = Keypair::generate_ed25519();
    let transport = tcp::tokio::Transport::default()
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(&key).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .boxed();
    let config = libp2p::swarm::Config::with_tokio_executor();
    Swarm::new(transport, ping::Behaviour::default(), key.public().to_peer_id(), config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_libp2p_and_plain_nonsense_get_nowhere() {
    let mut node = Node::start().await;
    let mut swarm = stranger();
    swarm.dial(address(&node)).unwrap();
    let failed = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::OutgoingConnectionError { .. } => break,
                SwarmEvent::ConnectionEstablished { .. } => panic!("a stranger was let in"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(WAIT, failed).await.expect("it is turned away");
    counted(&node, |admissions| admissions.wrong_grid == 1).await;

    let (socket, _) = idlewood_trust::address::parse(&address(&node)).unwrap();
    let closed = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(socket).unwrap();
        stream.write_all(&b"GET / HTTP/1.1\r\n\r\n".repeat(10)).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut answer = Vec::new();
        // Reset or closed.
        stream.read_to_end(&mut answer).map_or_else(|error| error.kind() == io::ErrorKind::ConnectionReset, |_| true)
    });
    assert!(closed.await.unwrap(), "it is not waited for");
    counted(&node, |admissions| admissions.wrong_grid == 2).await;
    assert_eq!(node.during(Duration::from_millis(50)).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_only_fails_is_held_off() {
    let node = Node::start().await;
    let mut held_off = false;
    for _ in 0..200 {
        let mut swarm = stranger();
        swarm.dial(address(&node)).unwrap();
        let failed =
            async { while !matches!(swarm.select_next_some().await, SwarmEvent::OutgoingConnectionError { .. }) {} };
        tokio::time::timeout(WAIT, failed).await.expect("it is turned away");
        held_off |= node.gate.admissions().held_off > 0;
        if held_off {
            break;
        }
    }
    assert!(held_off, "{:?}", node.gate.admissions());
    // Dials from here to that address still work.
    let mut friend = Node::start().await;
    node.net.send(&friend.contact, b"still able to dial".to_vec());
    assert_eq!(friend.message().await.0, node.contact.peer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_joins_by_an_invitation_and_is_a_member_then() {
    let mut issuer = Node::start().await;
    let span = Duration::from_secs(60);
    let offer = Offer { role: Role::Submitter, valid: span, uses: 1, lifetime: span };
    let invitation = issuer.gate.invite(offer, None).unwrap();
    let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
    let membership = super::join(dir.path(), &key, &invitation).await.unwrap();
    assert_eq!(membership.chain().own.terms.role, Role::Submitter);
    counted(&issuer, |admissions| (admissions.joined, admissions.admitted) == (1, 0)).await;
    let gate = Arc::new(Gate::open(&key, Some(membership)).unwrap());
    let guest = Node::start_behind(Limits::default(), key, gate, dir, LOOPBACK).await;
    guest.net.send(&issuer.contact, b"here I am".to_vec());
    assert_eq!(issuer.message().await, (guest.contact.peer, b"here I am".to_vec()));

    let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
    let error = super::join(dir.path(), &key, &invitation).await.unwrap_err();
    assert!(error.to_string().contains("used up"), "{error}");
    counted(&issuer, |admissions| admissions.uninvited == 1).await;
    // Nor does it admit a machine of another grid.
    let other_grid = Node::start_with(Keypair::generate_ed25519(), GRID + 1, LOOPBACK).await;
    let offer = Offer { role: Role::Submitter, valid: span, uses: 1, lifetime: span };
    let elsewhere = other_grid.gate.invite(offer, None).unwrap();
    let foreign = idlewood_trust::Invitation { grid: elsewhere.grid, secret: elsewhere.secret, ..invitation.clone() };
    super::join(dir.path(), &key, &foreign).await.unwrap_err();
    counted(&issuer, |admissions| (admissions.wrong_grid, admissions.joined) == (1, 1)).await;
    assert!(!dir.path().join("grid").exists(), "nothing is kept of it");
    // The secret is not shown to another machine at that address.
    let mut wrong = invitation.clone();
    wrong.issuer = guest.contact.peer;
    let error = super::join(dir.path(), &key, &wrong).await.unwrap_err();
    assert!(error.to_string().contains("another machine lives there"), "{error}");
    counted(&issuer, |admissions| admissions.uninvited == 1).await;
    assert!(!dir.path().join("grid").exists(), "nothing is kept of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_machine_is_cut_off_everywhere() {
    let (mut a, b, c) = (Node::start().await, Node::start().await, Node::start().await);
    let mut bad = certified(|terms| Terms { role: Role::Submitter, ..terms }).await;
    // A chain: the revoking machine is not connected with the last.
    a.net.send(&b.contact, vec![1]);
    b.net.send(&c.contact, vec![1]);
    for node in [&b, &c] {
        bad.net.send(&node.contact, vec![2]);
    }
    for (node, count) in [(&a, 1), (&b, 3), (&c, 2), (&bad, 2)] {
        counted(node, |admissions| admissions.admitted == count).await;
    }
    a.gate.revoke(bad.contact.peer, None).unwrap();
    for node in [&b, &c] {
        counted(node, |admissions| admissions.revoked >= 1).await;
    }
    let mut lost = [bad.unreachable().await, bad.unreachable().await];
    lost.sort_unstable();
    let mut expected = [b.contact.peer, c.contact.peer];
    expected.sort_unstable();
    assert_eq!(lost, expected);
    assert_eq!(bad.net.dial(address(&c)).await, Err(DialError::Refused(address(&c), Refused::Revoked)));
    b.net.send(&a.contact, b"the others go on".to_vec());
    assert_eq!(a.message().await, (b.contact.peer, b"the others go on".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_renewed_while_connections_stay() {
    let issuer = Node::start().await;
    let span = Duration::from_secs(60);
    let lifetime = Duration::from_secs(6);
    let invitation = issuer.gate.invite(Offer { role: Role::Member, valid: span, uses: 1, lifetime }, None).unwrap();
    let (key, dir) = (Keypair::generate_ed25519(), tempfile::tempdir().unwrap());
    let membership = super::join(dir.path(), &key, &invitation).await.unwrap();
    let gate = Arc::new(Gate::open(&key, Some(membership)).unwrap());
    let first_s = gate.expires_s();
    let mut guest = Node::start_behind(Limits::default(), key, gate, dir, LOOPBACK).await;
    // It dials the issuer by itself when its certificate nears its end; twice, so that the first certificate has
    // expired.
    until("two renewals", || guest.gate.expires_s() > first_s + 6).await;
    assert_eq!(issuer.gate.admissions(), Admissions { admitted: 1, joined: 1, ..Admissions::default() });
    assert_eq!(
        guest
            .during(Duration::from_millis(50))
            .await
            .iter()
            .filter(|it| matches!(it, NetEvent::Unreachable(_)))
            .count(),
        0
    );
}

/// A machine that has used up its allowance of gossip hears of a revocation some seconds later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_revocation_is_sent_again() {
    let (admin, mut member) = (Node::start().await, certified(|terms| Terms { role: Role::Member, ..terms }).await);
    admin.net.send(&member.contact, vec![1]);
    member.message().await;
    while !matches!(member.gate.hear(admin.contact.peer, b"nonsense"), Err(Refused::CannotIssue)) {}
    admin.gate.revoke(identity::peer_id(&Keypair::generate_ed25519()).unwrap(), None).unwrap();
    let knows = || admin.gate.hello().digest == member.gate.hello().digest;
    assert!(!knows());
    let begin = std::time::Instant::now();
    while !knows() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it was never said again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_not_renewed_is_cut_off_at_expiry() {
    // No administrator is reachable.
    let mut node = certified(|terms| Terms { role: Role::Member, ..terms }).await;
    let short = certified(|terms| Terms { role: Role::Member, expires_s: now_s() + 3, ..terms }).await;
    short.net.send(&node.contact, vec![1]);
    node.message().await;
    counted(&node, |admissions| admissions.expired == 1).await;
    assert_eq!(node.unreachable().await, short.contact.peer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_the_handshake_have_a_size_and_an_order() {
    use super::admission::{AdmissionError, listen};
    let key = Keypair::generate_ed25519();
    let gate = gate(GRID, &key, tempfile::tempdir().unwrap().path());
    let peer = key.public().to_peer_id();
    let hello = idlewood_trust::message::First::Hello(gate.hello()).encode();
    let framed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let welcome = framed(&idlewood_trust::message::encode_answer(&Ok(())));
    let speak = async |frame: Vec<u8>| {
        let mut io = libp2p::futures::io::Cursor::new(frame);
        // Answers go to the same buffer; enough of the input comes first.
        listen(&gate, peer, &mut Duplex { bytes: &mut io }).await
    };
    assert!(speak([framed(&hello), welcome.clone()].concat()).await.is_ok());
    let long = speak(vec![0xff, 0xff, 0]).await;
    assert!(matches!(long, Err(AdmissionError::Refused(Refused::Malformed))), "nothing more of it is read: {long:?}");
    let disordered = speak([welcome, framed(&hello)].concat()).await;
    assert!(matches!(disordered, Err(AdmissionError::Refused(Refused::Malformed))), "{disordered:?}");
    for length in 0..hello.len() {
        let cut = speak(framed(&hello)[..length].to_vec()).await;
        assert!(matches!(cut, Err(AdmissionError::Io(_))), "{length}: {cut:?}");
        let short = speak(framed(&hello[..length])).await;
        assert!(matches!(short, Err(AdmissionError::Refused(Refused::Malformed))), "{length}: {short:?}");
    }
}

/// Reads given bytes, and discards what is written.
struct Duplex<'a> {
    bytes: &'a mut libp2p::futures::io::Cursor<Vec<u8>>,
}

impl libp2p::futures::AsyncRead for Duplex<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut [u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut *self.bytes).poll_read(context, buffer)
    }
}

impl libp2p::futures::AsyncWrite for Duplex<'_> {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::task::Poll::Ready(Ok(buffer.len()))
    }

    fn poll_flush(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_close(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}
