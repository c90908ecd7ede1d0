//! What leaves with the answer to a message.

use super::*;

/// An answer that says only that the message is queued.
fn alone() -> Vec<u8> {
    hex::decode("6341636b").unwrap()
}

/// One that takes a message of a byte along.
fn with_message(byte: u8) -> Vec<u8> {
    [hex::decode("a1674d65737361676541").unwrap(), vec![byte]].concat()
}

/// A message of a byte.
fn message(byte: u8) -> Vec<u8> {
    with_message(byte)
}

/// A member that is connected with a node, and what it says of itself.
async fn connected(node: &mut Node) -> (Swarm<request_response::Behaviour<Raw>>, Contact) {
    let (mut swarm, peer) = raw_swarm();
    let to = identity::to_libp2p(node.contact.peer);
    swarm.add_peer_address(to, node.contact.address.parse().unwrap());
    // The node knows of the connection when it has answered.
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
async fn what_is_said_to_a_message_leaves_with_its_answer() {
    let mut node = Node::start().await;
    let (mut swarm, contact) = connected(&mut node).await;
    let to = identity::to_libp2p(node.contact.peer);
    // Whoever is kept from running for longer than an answer waits sends a request of its own.
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
    // What came too late for an answer is one that it has to answer.
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
async fn a_message_to_which_nothing_is_said_is_answered_all_the_same() {
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
    // It is no answer to a request for a blob.
    let reply = timeout(WAIT, node.net.chunk(&contact, piece(blake3::hash(b"x"), 0))).await.unwrap();
    assert_eq!(reply, Err(ChunkError::Protocol(peer)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_words_of_an_agent_arrive_though_they_leave_with_an_answer() {
    for _ in 0..10 {
        let (mut a, mut b) = (Node::start().await, Node::start().await);
        b.net.send_of_tree(&a.contact, b"hello".to_vec());
        a.message().await;
        // Until all is said that machines say of the grid, for whose answers a shutdown would wait.
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
        // Whoever is gone first may miss the other's; but nobody waits in vain.
        assert_eq!(counters.messages_sent + counters.messages_dropped, said, "{counters:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_accounted_for_where_whoever_asked_goes_away() {
    let mut node = Node::start().await;
    for round in 1..=10_u8 {
        let (mut swarm, mut contact) = connected(&mut node).await;
        // Nobody listens there.
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
