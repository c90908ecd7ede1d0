//! Two swarms in one process, over memory.

use libp2p::core::Transport as _;
use libp2p::core::transport::MemoryTransport;
use libp2p::core::upgrade::Version;
use libp2p::futures::StreamExt as _;
use libp2p::identity::Keypair;
use libp2p::swarm::{Config, ConnectionError, SwarmEvent};
use libp2p::{Swarm, noise, request_response, yamux};
use tokio::time::{Instant, timeout};

use super::*;
use crate::net::swarm::{IN_FLIGHT_MAX, REQUEST_TIMEOUT};

const PROTOCOL: StreamProtocol = StreamProtocol::new("/test");
const IDLE: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_secs(20);

fn swarm(protocol: StreamProtocol) -> Swarm<Behaviour> {
    swarm_with(Behaviour::new(protocol, Arc::default(), IDLE))
}

fn swarm_with<B: NetworkBehaviour>(behaviour: B) -> Swarm<B> {
    let key = Keypair::generate_ed25519();
    let transport = MemoryTransport::default()
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(&key).expect("a key"))
        .multiplex(yamux::Config::default())
        .boxed();
    let config = Config::with_tokio_executor().with_idle_connection_timeout(Duration::ZERO);
    Swarm::new(transport, behaviour, key.public().to_peer_id(), config)
}

/// Connects the first to the second.
async fn connect<A: NetworkBehaviour, B: NetworkBehaviour>(a: &mut Swarm<A>, b: &mut Swarm<B>) {
    b.listen_on("/memory/0".parse().expect("an address")).expect("it listens");
    let address = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = b.select_next_some().await {
            break address;
        }
    };
    a.dial(address).expect("it dials");
    let (mut here, mut there) = (false, false);
    while !(here && there) {
        tokio::select! {
            event = a.select_next_some() => here |= matches!(event, SwarmEvent::ConnectionEstablished { .. }),
            event = b.select_next_some() => there |= matches!(event, SwarmEvent::ConnectionEstablished { .. }),
        }
    }
}

async fn pair() -> (Swarm<Behaviour>, Swarm<Behaviour>) {
    let (mut a, mut b) = (swarm(PROTOCOL), swarm(PROTOCOL));
    connect(&mut a, &mut b).await;
    (a, b)
}

/// The next event of either; the first one's are `Ok`.
async fn next(a: &mut Swarm<Behaviour>, b: &mut Swarm<Behaviour>) -> Result<Event, Event> {
    let search = async {
        loop {
            tokio::select! {
                event = a.select_next_some() => if let SwarmEvent::Behaviour(event) = event { return Ok(event) },
                event = b.select_next_some() => if let SwarmEvent::Behaviour(event) = event { return Err(event) },
            }
        }
    };
    timeout(WAIT, search).await.expect("the event did not come")
}

/// What `a` asks as `b` hears it, all of it.
async fn heard(a: &mut Swarm<Behaviour>, b: &mut Swarm<Behaviour>, count: usize) -> Vec<(Vec<u8>, Channel)> {
    let mut all = Vec::new();
    while all.len() < count {
        if let Err(Event::Asked { bytes, channel, .. }) = next(a, b).await {
            all.push((bytes, channel));
        }
    }
    all
}

#[tokio::test]
async fn answers_find_their_requests_in_whatever_order_they_come() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    let mut asked = HashMap::new();
    for number in 0..20_u8 {
        let lane = Lane::ALL[usize::from(number % 2)];
        asked.insert(a.behaviour_mut().ask(&to, lane, vec![number]), number);
    }
    let mut all = heard(&mut a, &mut b, 20).await;
    let order: Vec<u8> = all.iter().map(|(bytes, _)| bytes[0]).filter(|number| number % 2 == 0).collect();
    assert!(order.is_sorted(), "those of one lane stay in order: {order:?}");
    while let Some((bytes, channel)) = all.pop() {
        assert!(channel.is_open());
        channel.send(vec![bytes[0], 100]).expect("it is open");
    }
    let mut written = 0;
    while !asked.is_empty() || written < 20 {
        match next(&mut a, &mut b).await {
            Ok(Event::Answer { id, bytes, .. }) => assert_eq!(bytes, [asked.remove(&id).expect("asked once"), 100]),
            Err(Event::Answered { is_written, .. }) => written += usize::from(is_written),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn who_gets_no_answer_hears_so() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    let ids = [0, 1].map(|number| a.behaviour_mut().ask(&to, Lane::Messages, vec![number]));
    let mut all = heard(&mut a, &mut b, 2).await;
    let (_, second) = all.pop().expect("two were asked");
    drop(all);
    second.send(vec![9]).expect("it is open");
    let (mut failed, mut answered) = (false, false);
    while !(failed && answered) {
        match next(&mut a, &mut b).await {
            Ok(Event::Failed { id, failure: Failure::Unanswered, .. }) => failed = id == ids[0],
            Ok(Event::Answer { id, .. }) => answered = id == ids[1],
            Err(Event::Answered { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_request_is_given_up_and_its_late_answer_is_for_nobody() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    let begun = Instant::now();
    let first = a.behaviour_mut().ask(&to, Lane::Messages, vec![1]);
    let mut late = heard(&mut a, &mut b, 1).await;
    match next(&mut a, &mut b).await {
        Ok(Event::Failed { id, failure: Failure::Timeout, .. }) => assert_eq!(id, first),
        other => panic!("{other:?}"),
    }
    assert!((REQUEST_TIMEOUT..2 * REQUEST_TIMEOUT).contains(&begun.elapsed()));
    let second = a.behaviour_mut().ask(&to, Lane::Messages, vec![2]);
    let (_, channel) = late.pop().expect("it was heard");
    channel.send(vec![1]).expect("its stream is open");
    let (_, channel) = heard(&mut a, &mut b, 1).await.pop().expect("it was heard");
    channel.send(vec![2]).expect("its stream is open");
    loop {
        match next(&mut a, &mut b).await {
            Ok(Event::Answer { id, bytes, .. }) => break assert_eq!((id, bytes), (second, vec![2])),
            Err(Event::Answered { is_written: true, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn who_asks_and_does_not_wait_is_not_read_any_more() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    for _ in 0..4 * IN_FLIGHT_MAX {
        a.behaviour_mut().ask(&to, Lane::Messages, vec![0]);
    }
    let mut unanswered = heard(&mut a, &mut b, 2 * IN_FLIGHT_MAX).await;
    let more = timeout(IDLE, heard(&mut a, &mut b, 1)).await;
    assert!(more.is_err(), "nothing more is read");
    let (_, channel) = unanswered.pop().expect("there are many");
    channel.send(vec![]).expect("it is open");
    assert_eq!(heard(&mut a, &mut b, 1).await.len(), 1, "there is one place");
}

#[tokio::test]
async fn a_message_does_not_wait_behind_pieces() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    let piece = a.behaviour_mut().ask(&to, Lane::Pieces, vec![0]);
    let (_, piece_channel) = heard(&mut a, &mut b, 1).await.pop().expect("it was heard");
    let message = a.behaviour_mut().ask(&to, Lane::Messages, vec![1]);
    let (_, message_channel) = heard(&mut a, &mut b, 1).await.pop().expect("it was heard");
    piece_channel.send(vec![7; FRAME_BYTES_MAX]).expect("it is open");
    message_channel.send(vec![8]).expect("it is open");
    let mut order = Vec::new();
    while order.len() < 2 {
        if let Ok(Event::Answer { id, .. }) = next(&mut a, &mut b).await {
            order.push(id);
        }
    }
    assert_eq!(order, [message, piece]);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_with_an_open_request_is_not() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    a.behaviour_mut().ask(&to, Lane::Messages, vec![1]);
    let (_, channel) = heard(&mut a, &mut b, 1).await.pop().expect("it was heard");
    let quiet = timeout(4 * IDLE, async { tokio::join!(a.select_next_some(), b.select_next_some()) }).await;
    assert!(quiet.is_err(), "{quiet:?}");
    channel.send(vec![2]).expect("the connection is open");
    let answered = Instant::now();
    let cause = loop {
        tokio::select! {
            event = a.select_next_some() => if let SwarmEvent::ConnectionClosed { cause, .. } = event { break cause },
            _ = b.select_next_some() => {}
        }
    };
    assert!(matches!(cause, None | Some(ConnectionError::KeepAliveTimeout | ConnectionError::IO(_))), "{cause:?}");
    assert!((IDLE..WAIT).contains(&answered.elapsed()), "{:?}", answered.elapsed());
}

#[tokio::test]
async fn what_is_open_fails_when_the_connection_closes() {
    let (mut a, mut b) = pair().await;
    let to = *b.local_peer_id();
    let asked = a.behaviour_mut().ask(&to, Lane::Messages, vec![1]);
    let (_, channel) = heard(&mut a, &mut b, 1).await.pop().expect("it was heard");
    a.disconnect_peer_id(to).expect("it is connected");
    let (mut failed, mut not_written) = (false, false);
    while !(failed && not_written) {
        match next(&mut a, &mut b).await {
            Ok(Event::Failed { id, failure: Failure::Closed, .. }) => failed = id == asked,
            Err(Event::Answered { is_written: false, .. }) => not_written = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(!channel.is_open());
    assert_eq!(channel.send(vec![1]), Err(Gone));
    let later = a.behaviour_mut().ask(&to, Lane::Messages, vec![2]);
    match next(&mut a, &mut b).await {
        Ok(Event::Failed { id, failure: Failure::Closed, .. }) => assert_eq!(id, later),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn another_protocol_is_told_from_a_broken_stream() {
    let (mut a, mut b) = (swarm(PROTOCOL), swarm(StreamProtocol::new("/other")));
    connect(&mut a, &mut b).await;
    let to = *b.local_peer_id();
    a.behaviour_mut().ask(&to, Lane::Messages, vec![1]);
    match next(&mut a, &mut b).await {
        Ok(Event::Failed { failure: Failure::Unsupported, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Writes bytes to a stream, and leaves it open.
#[derive(Clone, Default)]
struct Raw;

impl request_response::Codec for Raw {
    type Protocol = StreamProtocol;
    type Request = Vec<u8>;
    type Response = ();

    async fn read_request<T: Send>(&mut self, _: &StreamProtocol, _: &mut T) -> std::io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn read_response<T: Send>(&mut self, _: &StreamProtocol, _: &mut T) -> std::io::Result<()> {
        std::future::pending().await
    }

    async fn write_request<T: libp2p::futures::AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> std::io::Result<()> {
        use libp2p::futures::AsyncWriteExt as _;
        io.write_all(&bytes).await?;
        io.flush().await?;
        std::future::pending().await
    }

    async fn write_response<T: Send>(&mut self, _: &StreamProtocol, _: &mut T, (): ()) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn few_streams_are_taken_from_one_connection() {
    let protocols = [(PROTOCOL, request_response::ProtocolSupport::Outbound)];
    let raw = request_response::Behaviour::<Raw>::new(protocols, request_response::Config::default());
    let traffic = Arc::<Traffic>::default();
    let (mut a, mut b) = (swarm_with(raw), swarm_with(Behaviour::new(PROTOCOL, traffic.clone(), IDLE)));
    connect(&mut a, &mut b).await;
    let to = *b.local_peer_id();
    for _ in 0..10 {
        a.behaviour_mut().send_request(&to, vec![1, 0, 0, 0, 0, 0, 0, 0, 42]);
    }
    let mut asked = Vec::new();
    let run = async {
        while asked.len() < 4 || traffic.damaged.load(Ordering::Relaxed) < 6 {
            tokio::select! {
                _ = a.select_next_some() => {}
                event = b.select_next_some() => if let SwarmEvent::Behaviour(Event::Asked { bytes, channel, .. }) = event {
                    assert_eq!(bytes, [42]);
                    asked.push(channel);
                },
            }
        }
    };
    timeout(WAIT, run).await.expect("four are heard and the others refused");
    assert_eq!(asked.len(), 4);
}
