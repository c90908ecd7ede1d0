//! Floods of connections and streams.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Few enough that a flood is cheap.
const FEW: Limits = Limits { established: 12, incoming: 8, per_peer: 4, pending: 4, kept: 12 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_silent_connections_leaves_room_for_own_dials() {
    const FLOOD: usize = 200;
    let mut node = Node::start_within(FEW, Keypair::generate_ed25519(), GRID, "/ip4/127.0.0.1/tcp/0").await;
    let mut friend = Node::start().await;
    let (socket, _) = idlewood_trust::address::parse(&node.contact.address.parse().unwrap()).unwrap();
    let closed = Arc::new(AtomicUsize::new(0));
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..FLOOD {
        let closed = closed.clone();
        flood.spawn(async move {
            // Sends nothing, and waits for the other side to close.
            let mut stream = tokio::net::TcpStream::connect(socket).await.unwrap();
            let end = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            closed.fetch_add(1, Ordering::Relaxed);
            end
        });
    }
    let most = FLOOD - FEW.pending as usize;
    until("what is over the limit to be closed", || closed.load(Ordering::Relaxed) >= most).await;
    node.net.send(&friend.contact, b"still able to dial".to_vec());
    assert_eq!(friend.message().await.0, node.contact.peer);
    flood.shutdown().await;
    // It can be reached again after the flood.
    let late = Node::start().await;
    let contact = node.contact.clone();
    let knock = async {
        while late.net.counters().messages_sent == 0 {
            late.net.send(&contact, b"after the flood".to_vec());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(2 * WAIT, knock).await.expect("the agent must take connections again");
    assert_eq!(node.message().await.0, late.contact.peer);
}

/// Dials `node` under a new identity; counts how the connection ended.
fn stranger(node: &Contact, opened: &Arc<AtomicUsize>, closed: &Arc<AtomicUsize>) -> tokio::task::JoinHandle<()> {
    let (opened, closed) = (opened.clone(), closed.clone());
    let address: Multiaddr = node.address.parse().unwrap();
    tokio::spawn(async move {
        let (mut swarm, _) = raw_swarm();
        swarm.dial(address).unwrap();
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { .. } => drop(opened.fetch_add(1, Ordering::Relaxed)),
                SwarmEvent::ConnectionClosed { .. } => drop(closed.fetch_add(1, Ordering::Relaxed)),
                SwarmEvent::OutgoingConnectionError { .. } => {
                    opened.fetch_add(1, Ordering::Relaxed);
                    closed.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_strangers_leaves_room_for_own_dials() {
    const STRANGERS: usize = 24;
    let node = Node::start_within(FEW, Keypair::generate_ed25519(), GRID, "/ip4/127.0.0.1/tcp/0").await;
    let mut friends = [Node::start().await, Node::start().await, Node::start().await, Node::start().await];
    let (opened, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut flood = Vec::new();
    for number in 1..=STRANGERS {
        flood.push(stranger(&node.contact, &opened, &closed));
        // One by one, so that this does not test the limit of handshakes.
        until("the stranger to be let in or turned away", || opened.load(Ordering::Relaxed) >= number).await;
    }
    let most = STRANGERS - FEW.incoming as usize;
    until("those over the limit to be closed", || closed.load(Ordering::Relaxed) >= most).await;
    assert_eq!(closed.load(Ordering::Relaxed), most, "the others are within the limit");
    // The remaining room is for own dials, and not more than that.
    for friend in &mut friends {
        node.net.send(&friend.contact, b"you I know".to_vec());
        assert_eq!(friend.message().await.0, node.contact.peer);
    }
    let mut one_more = Node::start().await;
    node.net.send(&one_more.contact, b"no room".to_vec());
    until("the message to be dropped", || node.net.counters().messages_dropped == 1).await;
    assert!(!one_more.during(Duration::from_millis(100)).await.iter().any(|e| matches!(e, NetEvent::Received { .. })));
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_gets_few_connections() {
    const DIALS: usize = 10;
    let node = Node::start().await;
    let address: Multiaddr = node.contact.address.parse().unwrap();
    let (mut greedy, _) = raw_swarm();
    let (mut opened, mut open) = (0, 0);
    let run = async {
        greedy.dial(address.clone()).unwrap();
        // One after the other; then until excess connections are closed.
        while opened < DIALS || open > Limits::default().per_peer {
            match greedy.select_next_some().await {
                SwarmEvent::ConnectionEstablished { num_established, .. } => {
                    (opened, open) = (opened + 1, num_established.get());
                    if opened < DIALS {
                        greedy.dial(address.clone()).unwrap();
                    }
                }
                SwarmEvent::ConnectionClosed { num_established, .. } => open = num_established,
                SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    };
    timeout(WAIT, run).await.expect("the rest must be closed");
    assert_eq!(open, Limits::default().per_peer);
}

/// Streams that begin and do not continue, as many as a member can open: they neither exhaust the agent's memory nor
/// delay others, and end by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_streams_by_a_member_leaves_others_alone() {
    const STREAMS: usize = 2000;
    let (mut node, friend) = (Node::start().await, Node::start().await);
    let (mut evil, _) = raw_swarm();
    let victim = identity::to_libp2p(node.contact.peer);
    evil.add_peer_address(victim, node.contact.address.parse().unwrap());
    for _ in 0..STREAMS {
        evil.behaviour_mut().send_request(&victim, NEVER_ENDING.to_vec());
    }
    let refused = Arc::new(AtomicUsize::new(0));
    let counter = refused.clone();
    let flood = tokio::spawn(async move {
        loop {
            if let SwarmEvent::Behaviour(request_response::Event::OutboundFailure { .. }) =
                evil.select_next_some().await
            {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    until("streams over the limit to be refused", || refused.load(Ordering::Relaxed) > 0).await;
    for number in 0..20_u8 {
        friend.net.send(&node.contact, vec![number]);
        assert_eq!(node.message().await, (friend.contact.peer, vec![number]));
    }
    flood.abort();
}

/// As of a submitter whose tasks run on more machines than it may have connections with: each is heard at once, and each can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_not_heard_for_longest_makes_room_for_others() {
    let limits = Limits { kept: 4, ..FEW };
    let mut node = Node::start_within(limits, Keypair::generate_ed25519(), GRID, "/ip4/127.0.0.1/tcp/0").await;
    let mut others = Vec::new();
    for _ in 0..FEW.established {
        let other = Node::start().await;
        other.net.send(&node.contact, b"a result".to_vec());
        let heard = node.next(|event| match event {
            NetEvent::Received { from, .. } => Some(from),
            NetEvent::Unreachable(lost) => panic!("a connection that is closed from here is no loss: {lost:?}"),
            _ => None,
        });
        assert_eq!(heard.await, other.contact.peer);
        others.push(other);
        tokio::time::sleep(idlewood_machine::connections::UNUSED_MIN / 3).await;
    }
    node.net.send(&others[0].contact, b"a lease".to_vec());
    assert_eq!(others[0].message().await.0, node.contact.peer);
}
