//! What a message costs beside its own bytes, and what a connection costs: simulations count it, so that it is measured here.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;

/// Bytes of TCP's and IP's headers of a packet: 20 of IP, 20 of TCP, 12 of its timestamps.
const PACKET_BYTES: f64 = 52.0;

/// The default of a setting of simulations.
fn simulated(name: &str) -> f64 {
    let defaults = include_str!("../../../../simnet/scenarios/default.toml");
    let line = defaults.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    line.expect("it is among the defaults").parse().expect("it is a number")
}

/// Bytes that pass the link of a node, with the headers of its packets.
fn passed(node: &Node, before: NetCounters) -> f64 {
    let now = node.net.counters();
    let (bytes, packets) = (now.wire_bytes_sent - before.wire_bytes_sent, now.wire_writes - before.wire_writes);
    bytes as f64 + packets as f64 * PACKET_BYTES
}

/// What each of many messages of so many bytes, one after the other, costs its sender's uplink beside these, and its receiver's.
async fn cost(from: &Node, to: &mut Node, bytes: usize) -> (f64, f64) {
    const COUNT: u64 = 200;
    let before = [from.net.counters(), to.net.counters()];
    for _ in 0..COUNT {
        from.net.send(&to.contact, vec![0; bytes]);
        to.message().await;
    }
    until("the answers", || from.net.counters().messages_sent == before[0].messages_sent + COUNT).await;
    let each = |all: f64| all / COUNT as f64;
    (each(passed(from, before[0])) - bytes as f64, each(passed(to, before[1])))
}

/// Within a tenth: how often yamux writes for itself, and how frames fall into writes, differs from run to run.
fn is_near(name: &str, measured: f64) {
    let simulated = simulated(name);
    println!("{name}: {measured:.0} measured, {simulated} simulated");
    assert!((measured / simulated - 1.0).abs() < 0.1, "{name}: measured {measured:.1}, simulated {simulated}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulations_count_what_messages_cost_beside_their_bytes() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    // The first message waits for the connection.
    cost(&a, &mut b, 1).await;
    let (sender, receiver) = cost(&a, &mut b, 150).await;
    is_near("overhead_bytes", sender);
    is_near("answer_bytes", receiver);
}

/// How long each byte is under way between two nodes that are joined by [`at_a_distance`].
const ONE_WAY: Duration = Duration::from_millis(100);

/// Passes on each byte [`ONE_WAY`] after it has come.
async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut bytes = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            if sender.send((tokio::time::Instant::now() + ONE_WAY, bytes[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    while let Some((due, bytes)) = receiver.recv().await {
        tokio::time::sleep_until(due).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// The contact of a node that is far away: the first connection to this address leads to it.
async fn at_a_distance(contact: &Contact) -> Contact {
    let (target, _) = idlewood_trust::address::parse(&contact.address.parse().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(target).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let ((near_out, near_in), (far_out, far_in)) = (near.into_split(), far.into_split());
        tokio::join!(pass_on(near_out, far_in), pass_on(far_out, near_in));
    });
    Contact { address: address.into(), ..contact.clone() }
}

/// Round trips before the first message on a new connection can leave, TCP's own among them: how much later it arrives than one on the
/// open connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulations_count_the_round_trips_of_a_new_connection() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    let contact = at_a_distance(&b.contact).await;
    let mut took = [Duration::ZERO; 2];
    for took in &mut took {
        let start = Instant::now();
        a.net.send(&contact, vec![0; 150]);
        b.message().await;
        *took = start.elapsed();
        // What nodes tell each other on a new connection has passed.
        tokio::time::sleep(10 * ONE_WAY).await;
    }
    // Half a round trip, and not one more in which a protocol is agreed upon.
    assert!(took[1] < 2 * ONE_WAY, "on an open connection: {took:?}");
    // The proxy accepts at once: TCP's round trip is not seen.
    let measured = took[0].saturating_sub(took[1]).as_secs_f64() / (2 * ONE_WAY).as_secs_f64() + 1.0;
    let simulated = simulated("connect_round_trips");
    println!("connect_round_trips: {measured:.2} measured, {simulated} simulated");
    assert!((measured - simulated).abs() < 0.5, "{took:?}: {measured:.2} measured, {simulated} simulated");
}

/// Bytes that a new connection takes on either side's uplink: handshakes, certificates, and what nodes tell of themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulations_count_the_bytes_of_a_new_connection() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    let before = [a.net.counters(), b.net.counters()];
    a.net.send(&b.contact, vec![0; 150]);
    b.message().await;
    // What nodes tell each other on a new connection has passed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = [passed(&a, before[0]), passed(&b, before[1])];
    let of_message = [simulated("overhead_bytes") + 150.0, simulated("answer_bytes")];
    // TCP's own: a packet to open, one to say that the other's has come, two to close.
    let of_each: Vec<f64> =
        all.iter().zip(of_message).map(|(all, message)| all - message + 4.0 * PACKET_BYTES).collect();
    println!("each side: {of_each:?}");
    is_near("connect_bytes", (of_each[0] + of_each[1]) / 2.0);
}
