//! Messages carried by answers.

use super::*;

/// An answer without a message.
fn alone() -> Vec<u8> {
    hex::decode("6341636b").unwrap()
}

/// An answer with a message of one byte.
fn with_message(byte: u8) -> Vec<u8> {
    [hex::decode("a1674d65737361676541").unwrap(), vec![byte]].concat()
}

/// A message of one byte.
fn message(byte: u8) -> Vec<u8> {
    with_message(byte)
}

/// A member connected with a node, and its contact.
async fn connected(node: &mut Node) -> (Swarm<request_response::Behaviour<Raw>>, Contact) {
    let (mut swarm, peer) = raw_swarm();
    let to = identity::to_libp2p(node.contact.peer);
    swarm.add_peer_address(to, node.contact.address.parse().unwrap());
    // The node knows of the connection once it has answered.
    swarm.behaviour_mut().send_request(&to, message(0));
    assert_eq!(timeout(WAIT, answer(&mut swarm)).await.unwrap(), alone());
    assert_eq!(node.message().await, (peer, vec![0]));
    (swarm, Contact { peer, incarnation: 0, address: "".into(), nonce: None })
}

/// The next answer to this member.
async fn answer(swarm: &mut Swarm<request_response::Behaviour<Raw>>) -> Vec<u8> {
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::Behaviour(request_response::Event::Message { message, .. }) => match message {
                request_response::Message::Response { response, .. } => return response,
                request_response::Message::Request { channel, .. } => {
                    swarm.behaviour_mut().send_response(channel, alone()).unwrap();
                }
            },
            SwarmEvent::Behaviour(request_response::Event::OutboundFailure { error, .. }) => panic!("{error}"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reaction_to_a_message_travels_with_its_answer() {
    let mut node = Node::start().await;
    let (mut swarm, contact) = connected(&mut node).await;
    let to = identity::to_libp2p(node.contact.peer);
    // If the test is delayed for longer than an answer waits, the message comes as a request: try again.
    let mut tries = 1..=50_u8;
    let took_along = loop {
        let number = tries.next().expect("no answer took a message along");
        swarm.behaviour_mut().send_request(&to, message(number));
        let net = node.net.clone();
        let said = async {
            assert_eq!(node.message().await, (contact.peer, vec![number]));
            net.send_of_tree(&contact, vec![100 + number]);
        };
        let (answer, ()) = timeout(WAIT, async { tokio::join!(answer(&mut swarm), said) }).await.unwrap();
        if answer != alone() {
            break answer == with_message(100 + number);
        }
    };
    assert!(took_along);
    let net = node.net.clone();
    let said = u64::from(tries.start() - 1);
    // A message too late for an answer comes as a request.
    let rest = tokio::spawn(async move {
        loop {
            answer(&mut swarm).await;
        }
    });
    until("all messages to count as sent", || net.counters().messages_sent == said).await;
    rest.abort();
    assert_eq!(net.counters().messages_dropped, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_a_reaction_is_answered() {
    let mut node = Node::start().await;
    let (mut swarm, _) = connected(&mut node).await;
    let to = identity::to_libp2p(node.contact.peer);
    // More than may wait.
    for number in 0..20 {
        swarm.behaviour_mut().send_request(&to, message(number));
    }
    for _ in 0..20 {
        assert_eq!(timeout(WAIT, answer(&mut swarm)).await.unwrap(), alone());
    }
    assert_eq!(node.net.counters().messages_received, 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_in_an_answer_is_received() {
    let mut node = Node::start().await;
    let (mut swarm, contact) = connected(&mut node).await;
    let peer = contact.peer;
    tokio::spawn(async move {
        loop {
            if let SwarmEvent::Behaviour(request_response::Event::Message {
                message: request_response::Message::Request { channel, .. },
                ..
            }) = swarm.select_next_some().await
            {
                swarm.behaviour_mut().send_response(channel, with_message(9)).unwrap();
            }
        }
    });
    node.net.send_of_tree(&contact, vec![1]);
    assert_eq!(node.message().await, (peer, vec![9]));
    assert_eq!(node.net.counters().messages_sent, 1);
    // A message is no answer to a request for a blob.
    let reply = timeout(WAIT, node.net.chunk(&contact, piece(blake3::hash(b"x"), 0))).await.unwrap();
    assert_eq!(reply, Err(ChunkError::Protocol(peer)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_messages_of_an_agent_arrive_with_its_answers() {
    for _ in 0..10 {
        let (mut a, mut b) = (Node::start().await, Node::start().await);
        b.net.send_of_tree(&a.contact, b"hello".to_vec());
        a.message().await;
        // Until machines have exchanged all gossip, for whose answers a shutdown would wait.
        tokio::time::sleep(Duration::from_millis(100)).await;
        b.net.send_of_tree(&a.contact, b"how are you?".to_vec());
        assert_eq!(a.message().await.1, b"how are you?");
        a.net.send_of_tree(&b.contact, b"going".to_vec());
        a.net.shutdown().await;
        assert_eq!(b.message().await.1, b"going");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_leave_together_answer_each_other() {
    let (a, mut b) = (Node::start().await, Node::start().await);
    a.net.send_of_tree(&b.contact, b"hello".to_vec());
    b.message().await;
    let (of_a, of_b) = (a.net.clone(), b.net.clone());
    a.net.send_of_tree(&b.contact, b"bye".to_vec());
    b.net.send_of_tree(&a.contact, b"bye".to_vec());
    tokio::join!(a.net.shutdown(), b.net.shutdown());
    for (net, said) in [(of_a, 2), (of_b, 1)] {
        let counters = net.counters();
        // The first to go may miss the other's message; but neither waits in vain.
        assert_eq!(counters.messages_sent + counters.messages_dropped, said, "{counters:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_counted_when_the_asker_goes_away() {
    let mut node = Node::start().await;
    for round in 1..=10_u8 {
        let (mut swarm, mut contact) = connected(&mut node).await;
        // No agent listens there.
        contact.address = "/ip4/127.0.0.1/tcp/1".into();
        swarm.behaviour_mut().send_request(&identity::to_libp2p(node.contact.peer), message(round));
        let received = node.message();
        tokio::select! {
            received = received => assert_eq!(received, (contact.peer, vec![round])),
            _ = async { loop { swarm.select_next_some().await; } } => {}
        }
        drop(swarm);
        node.net.send_of_tree(&contact, vec![0]);
        let net = node.net.clone();
        until("the message to be accounted for", || {
            let counters = net.counters();
            counters.messages_sent + counters.messages_dropped == u64::from(round)
        })
        .await;
        assert_eq!(node.unreachable().await, contact.peer);
    }
}
