//! Conversations: requests and their answers, over few streams that stay open as long as their connection.
//!
//! A stream for each request, as libp2p's own request-response behaviour has it, costs a negotiation each time: five
//! frames of yamux and as many packets for one message and its acknowledgement, which was most of what an agent without
//! work did (docs/adr/0031). Here each side opens a stream when it first asks something, writes all its requests to it
//! and reads the answers from it, in whatever order they come. Pieces of blobs have a stream of their own ([`Lane`]), so
//! that no message waits behind one.
//!
//! Everything is bounded: the length of a frame, how long one that has begun may take, the requests of a connection that
//! are not answered, and its streams. What is in a frame is not looked at here.

mod frames;
mod handler;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, THandler,
    THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

pub(super) use frames::{FRAME_BYTES_MAX, Traffic};
use handler::{Handler, Said};

/// Which stream a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Messages, and words about the grid: short.
    Messages,
    /// Pieces of blobs, which take a while on a slow line.
    Pieces,
}

impl Lane {
    const ALL: [Self; 2] = [Self::Messages, Self::Pieces];
}

/// Names a request of this agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AskedId(u64);

/// Names a request of somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HeardId(u64);

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no answer came in time")]
    Timeout,
    #[error("the other side does not speak this protocol")]
    Unsupported,
    #[error("the connection is closed")]
    Closed,
    #[error("the other side does not answer it")]
    Unanswered,
    #[error("the stream broke: {0}")]
    Broken(String),
}

/// Where the answer to a request of somebody else goes. Dropped without one, it tells the other side that none will come.
#[derive(Debug)]
pub(super) struct Channel {
    answers: Option<mpsc::UnboundedSender<Answer>>,
    id: HeardId,
    number: u32,
    /// Gives its place among the unanswered requests of the connection back when the answer is written.
    place: Option<OwnedSemaphorePermit>,
}

/// An answer on its way to its stream.
#[derive(Debug)]
struct Answer {
    id: HeardId,
    number: u32,
    /// Nothing: there will be none.
    bytes: Option<Vec<u8>>,
    place: Option<OwnedSemaphorePermit>,
}

impl Channel {
    /// Whether somebody still waits for the answer.
    pub(super) fn is_open(&self) -> bool {
        self.answers.as_ref().is_some_and(|answers| !answers.is_closed())
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// Whoever asked is gone.
    pub(super) fn send(mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        let Some(answers) = self.answers.take() else { return Err(Gone) };
        let answer = Answer { id: self.id, number: self.number, bytes: Some(bytes), place: self.place.take() };
        answers.send(answer).map_err(|_| Gone)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(answers) = self.answers.take() {
            let none = Answer { id: self.id, number: self.number, bytes: None, place: self.place.take() };
            // The connection may be gone, and then nobody waits.
            drop(answers.send(none));
        }
    }
}

/// Whoever asked is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("whoever asked is gone")]
pub(super) struct Gone;

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    /// Somebody asks.
    Asked { peer: PeerId, id: HeardId, bytes: Vec<u8>, channel: Channel },
    /// A request of this agent is answered.
    Answer { peer: PeerId, id: AskedId, bytes: Vec<u8> },
    /// It will not be.
    Failed { peer: PeerId, id: AskedId, failure: Failure },
    /// An answer to somebody is written, or (not) will never be.
    Answered { peer: PeerId, id: HeardId, is_written: bool },
}

/// A request on its way to a connection.
#[derive(Debug)]
pub(super) struct Request {
    id: AskedId,
    lane: Lane,
    bytes: Vec<u8>,
}

/// One connection, and what is open on it.
#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    asked: BTreeSet<AskedId>,
    heard: BTreeSet<HeardId>,
}

/// Requests and answers of all connections.
pub(super) struct Behaviour {
    protocol: StreamProtocol,
    traffic: Arc<Traffic>,
    connections: HashMap<PeerId, Vec<Connection>>,
    events: VecDeque<ToSwarm<Event, Request>>,
    idle: Duration,
    last_asked: u64,
    last_heard: Arc<AtomicU64>,
}

impl Behaviour {
    /// Connections are kept for as long as `idle` after something was last asked or answered on them.
    pub(super) fn new(protocol: StreamProtocol, traffic: Arc<Traffic>, idle: Duration) -> Self {
        Self {
            protocol,
            traffic,
            idle,
            connections: HashMap::new(),
            events: VecDeque::new(),
            last_asked: 0,
            last_heard: Arc::new(AtomicU64::new(0)),
        }
    }

    pub(super) fn is_connected(&self, peer: &PeerId) -> bool {
        self.connections.contains_key(peer)
    }

    /// Asks a peer; [`Event::Answer`] or [`Event::Failed`] follows. All take its oldest connection, so that they stay in
    /// order.
    pub(super) fn ask(&mut self, peer: &PeerId, lane: Lane, bytes: Vec<u8>) -> AskedId {
        self.last_asked += 1;
        let id = AskedId(self.last_asked);
        match self.connections.get_mut(peer).and_then(|connections| connections.first_mut()) {
            Some(connection) => {
                connection.asked.insert(id);
                self.events.push_back(ToSwarm::NotifyHandler {
                    peer_id: *peer,
                    handler: NotifyHandler::One(connection.id),
                    event: Request { id, lane, bytes },
                });
            }
            None => self.tell(Event::Failed { peer: *peer, id, failure: Failure::Closed }),
        }
        id
    }

    fn tell(&mut self, event: Event) {
        self.events.push_back(ToSwarm::GenerateEvent(event));
    }

    fn handler(&self) -> Handler {
        Handler::new(self.protocol.clone(), self.traffic.clone(), self.idle, self.last_heard.clone())
    }

    fn on_closed(&mut self, peer: PeerId, id: ConnectionId) {
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        let closed: Vec<Connection> = connections.extract_if(.., |connection| connection.id == id).collect();
        if connections.is_empty() {
            self.connections.remove(&peer);
        }
        for connection in closed {
            for id in connection.heard {
                self.tell(Event::Answered { peer, id, is_written: false });
            }
            for id in connection.asked {
                self.tell(Event::Failed { peer, id, failure: Failure::Closed });
            }
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler())
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(established) => {
                let connection =
                    Connection { id: established.connection_id, asked: BTreeSet::new(), heard: BTreeSet::new() };
                self.connections.entry(established.peer_id).or_default().push(connection);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                self.on_closed(peer_id, connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, event: THandlerOutEvent<Self>) {
        let connections = self.connections.get_mut(&peer);
        let connection = connections.and_then(|all| all.iter_mut().find(|one| one.id == connection));
        // What was open when it was closed has been told then.
        let Some(connection) = connection else { return };
        let event = match event {
            Said::Asked { id, bytes, channel } => {
                connection.heard.insert(id);
                Event::Asked { peer, id, bytes, channel }
            }
            Said::Answer { id, bytes } => {
                connection.asked.remove(&id);
                Event::Answer { peer, id, bytes }
            }
            Said::Failed { id, failure } => {
                connection.asked.remove(&id);
                Event::Failed { peer, id, failure }
            }
            Said::Answered { id, is_written } => {
                connection.heard.remove(&id);
                Event::Answered { peer, id, is_written }
            }
        };
        self.tell(event);
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.events.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

fn next_heard(last: &AtomicU64) -> HeardId {
    HeardId(last.fetch_add(1, Ordering::Relaxed))
}
