//! What a message costs beside its own bytes: simulations count it, so that it is measured here.

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
