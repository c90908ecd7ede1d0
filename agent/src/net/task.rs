//! The task that owns the swarm: turns commands into requests and what the swarm says into events.
//!
//! It dials itself instead of leaving that to the request-response behaviour, for three reasons: what waits for a dial
//! is bounded here and unbounded there; it is known which address is dialled: that of the contact, and where nobody
//! answers there, what the peer itself said last (`addresses`); and a fresh local port is used, as re-using the
//! listening one makes quick redials on one machine collide.
//!
//! Nothing here waits for anything but the swarm, the commands and room for events. What others ask is in `serving`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::PeerId;
use libp2p::futures::StreamExt as _;
use libp2p::request_response::{self, OutboundFailure, OutboundRequestId};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionError, ConnectionId, DialError as SwarmDialError, SwarmEvent};
use libp2p::{Multiaddr, Swarm, TransportError, identify, ping};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, warn};

use super::addresses::Addresses;
use super::serving::Serving;
use super::swarm::{Behaviour, BehaviourEvent, IN_FLIGHT_MAX, Limits};
use super::wire::{self, CHUNK_BYTES_MAX, Reply, Request};
use super::{
    ChunkError, ChunkReply, Command, Counters, DialError, Item, NetConfig, NetError, NetEvent, Outbound, identity,
    loopback, swarm,
};
use crate::blobs::Blobs;

/// Requests that wait for one peer.
const WAITING_MAX: usize = 1024;

/// After a failed dial the same address is not dialled again for this long, and a peer is not reported lost twice
/// within it.
const QUIET: Duration = Duration::from_millis(500);

/// The same for a peer that turned out to be of another grid.
const QUIET_OTHER_GRID: Duration = Duration::from_secs(30);

/// Messages that wait for the agent, beside those in the channel.
const RECEIVED_MAX: usize = 4096;

/// Bytes of messages that wait for the agent, beside those in the channel.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Events other than messages that may wait; more means that the agent is stuck.
const EVENTS_HELD_MAX: usize = 2 * RECEIVED_MAX;

/// How long a shutdown goes on delivering, and how long it waits for connections to close.
const DRAIN: Duration = Duration::from_secs(1);
const CLOSE: Duration = Duration::from_millis(300);

/// How often forgotten peers are cleared.
const SWEEP: Duration = Duration::from_secs(10);

/// What is known of one peer while there is something to know.
#[derive(Default)]
struct Link {
    waiting: VecDeque<Item>,
    in_flight: usize,
    /// The last address a contact gave.
    address: Box<str>,
    dialling: Option<(ConnectionId, Route)>,
    /// Open connections, with the address for those that we dialled.
    connections: HashMap<ConnectionId, Option<Multiaddr>>,
    /// Whether [`NetEvent::Connected`] went out.
    announced: bool,
    /// Until when this address is not dialled again.
    quiet: Option<(Instant, Box<str>)>,
    /// When it was last reported lost.
    reported: Option<Instant>,
    /// Its connection is being closed because it is of another grid: that loss is no news.
    turned_away: bool,
}

impl Link {
    fn is_forgettable(&self, now: Instant) -> bool {
        self.waiting.is_empty()
            && self.in_flight == 0
            && self.dialling.is_none()
            && self.connections.is_empty()
            && self.quiet.as_ref().is_none_or(|(until, _)| *until <= now)
            && self.reported.is_none_or(|when| when + QUIET <= now)
    }
}

/// Which address of a peer is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// That of the last contact.
    Contact,
    /// Where the peer said that it listens, since the contact's did not answer.
    Identified,
}

/// A request under way.
enum InFlight {
    /// The permit goes back when the answer is in.
    Message {
        _permit: OwnedSemaphorePermit,
    },
    Chunk {
        offset: u64,
        reply: oneshot::Sender<Result<ChunkReply, ChunkError>>,
    },
}

struct Bootstrap {
    address: Multiaddr,
    reply: oneshot::Sender<Result<PeerId, DialError>>,
}

pub(super) struct Task {
    pub(super) swarm: Swarm<Behaviour>,
    protocol: libp2p::StreamProtocol,
    pub(super) blobs: Arc<Blobs>,
    pub(super) counters: Arc<Counters>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<NetEvent>,
    held: VecDeque<NetEvent>,
    held_bytes: usize,
    links: HashMap<PeerId, Link>,
    addresses: Addresses,
    in_flight: HashMap<OutboundRequestId, InFlight>,
    bootstraps: HashMap<ConnectionId, Bootstrap>,
    pub(super) serving: Serving,
    /// Peers whose damaged or foreign answers were logged.
    complained: HashSet<PeerId>,
}

impl Task {
    pub(super) fn new(
        config: &NetConfig,
        limits: Limits,
        blobs: Arc<Blobs>,
        counters: Arc<Counters>,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<NetEvent>,
    ) -> Result<Self, NetError> {
        let protocol = wire::protocol(config.grid);
        let traffic = counters.traffic.clone();
        let swarm = swarm::build(&config.keypair, protocol.clone(), traffic, limits, &config.listen)?;
        Ok(Self {
            swarm,
            protocol,
            blobs,
            counters,
            commands,
            events,
            held: VecDeque::new(),
            held_bytes: 0,
            links: HashMap::new(),
            addresses: Addresses::default(),
            in_flight: HashMap::new(),
            bootstraps: HashMap::new(),
            serving: Serving::default(),
            complained: HashSet::new(),
        })
    }

    pub(super) async fn run(mut self) {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let events = self.events.clone();
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown) | None => break,
                    Some(command) => self.on_command(command),
                },
                permit = events.reserve(), if !self.held.is_empty() => {
                    let Ok(permit) = permit else {
                        debug!("nobody receives network events any more");
                        return;
                    };
                    if let Some(event) = self.held.pop_front() {
                        if let NetEvent::Received { bytes, .. } = &event {
                            self.held_bytes -= bytes.len();
                        }
                        permit.send(event);
                    }
                }
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(served) = self.serving.reading.join_next() => self.on_served(served),
                _ = sweep.tick() => self.sweep(),
            }
        }
        self.drain().await;
    }

    /// Delivers what is queued, then says goodbye.
    async fn drain(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.on_command(command);
        }
        let deadline = Instant::now() + DRAIN;
        while !self.in_flight.is_empty() || self.links.values().any(|link| !link.waiting.is_empty()) {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(served) = self.serving.reading.join_next() => self.on_served(served),
            }
        }
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in connected {
            // Fails only for one that has just gone.
            if self.swarm.disconnect_peer_id(peer).is_err() {
                debug!(%peer, "was gone already");
            }
        }
        let deadline = Instant::now() + CLOSE;
        while self.swarm.network_info().num_peers() > 0 {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                _ = self.swarm.select_next_some() => {}
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Send { to, address, item } => self.enqueue(to, address, item),
            Command::Dial { address, reply } => self.bootstrap(address, reply),
            // A second one, while the first is carried out.
            Command::Shutdown => {}
        }
    }

    // ---- outwards ----

    fn enqueue(&mut self, to: PeerId, address: Box<str>, item: Item) {
        if identity::to_libp2p(to) == *self.swarm.local_peer_id() {
            debug!("a message to oneself is not for the network; dropped");
            self.fail(to, item);
            return;
        }
        let link = self.links.entry(to).or_default();
        if !address.is_empty() {
            link.address = address;
        }
        if link.waiting.len() >= WAITING_MAX {
            debug!(peer = ?to, "too many messages wait for one peer; dropped");
            self.fail(to, item);
            return;
        }
        link.waiting.push_back(item);
        self.pump(to);
    }

    /// Moves what waits for `to` onwards: sends it, or dials first, or gives it up.
    fn pump(&mut self, to: PeerId) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let peer = identity::to_libp2p(to);
        if self.swarm.behaviour().requests.is_connected(&peer) {
            while link.in_flight < IN_FLIGHT_MAX
                && let Some(item) = link.waiting.pop_front()
            {
                let (request, in_flight) = match item {
                    Item::Message(Outbound { bytes, permit }) => {
                        (Request::Message(bytes), InFlight::Message { _permit: permit })
                    }
                    // The caller gave up.
                    Item::Chunk { reply, .. } if reply.is_closed() => continue,
                    Item::Chunk { hash, offset, reply } => {
                        (Request::Chunk { hash, offset }, InFlight::Chunk { offset, reply })
                    }
                };
                let id = self.swarm.behaviour_mut().requests.send_request(&peer, request);
                self.in_flight.insert(id, in_flight);
                link.in_flight += 1;
            }
            return;
        }
        if link.waiting.is_empty() || link.dialling.is_some() {
            return;
        }
        if let Some((until, address)) = &link.quiet
            && *until > Instant::now()
            && *address == link.address
        {
            // It was reported when the dial failed.
            self.give_up(to);
            return;
        }
        match dialable(&link.address) {
            Ok(address) => self.dial(to, Route::Contact, vec![address]),
            Err(error) => {
                debug!(peer = ?to, %error, "the contact cannot be dialled");
                if !self.dial_identified(to) {
                    self.lost(to);
                    self.give_up(to);
                }
            }
        }
    }

    fn dial(&mut self, to: PeerId, route: Route, addresses: Vec<Multiaddr>) {
        let options = DialOpts::peer_id(identity::to_libp2p(to))
            .condition(PeerCondition::Always)
            .addresses(addresses)
            .allocate_new_port()
            .build();
        self.links.entry(to).or_default().dialling = Some((options.connection_id(), route));
        if let Err(error) = self.swarm.dial(options) {
            self.dial_failed(to, &error);
        }
    }

    /// Dials where the peer said last that it listens. False when it said nothing that is still to be tried.
    fn dial_identified(&mut self, to: PeerId) -> bool {
        let contact = self.links.get(&to).and_then(|link| dialable(&link.address).ok());
        let mut addresses = self.addresses.of(to).to_vec();
        addresses.retain(|address| Some(address) != contact.as_ref());
        let is_there = !addresses.is_empty();
        if is_there {
            self.dial(to, Route::Identified, addresses);
        }
        is_there
    }

    fn bootstrap(&mut self, address: Multiaddr, reply: oneshot::Sender<Result<PeerId, DialError>>) {
        let (socket, peer) = match loopback::check(&address) {
            Ok(checked) => checked,
            Err(error) => return answer(reply, Err(error.into())),
        };
        let target = loopback::multiaddr(socket);
        if self.swarm.listeners().any(|own| *own == target) {
            return answer(reply, Err(DialError::Oneself(address)));
        }
        let options = match peer {
            Some(peer) => DialOpts::peer_id(peer)
                .condition(PeerCondition::Always)
                .addresses(vec![target])
                .allocate_new_port()
                .build(),
            None => DialOpts::unknown_peer_id().address(target).allocate_new_port().build(),
        };
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.bootstraps.insert(id, Bootstrap { address, reply });
            }
            Err(error) => answer(reply, Err(dial_error(address, &error))),
        }
    }

    fn dial_failed(&mut self, to: PeerId, error: &SwarmDialError) {
        debug!(peer = ?to, %error, "dial failed");
        let link = self.links.entry(to).or_default();
        let route = link.dialling.take().map(|(_, route)| route);
        if !link.connections.is_empty() {
            // It dialled us meanwhile.
            self.pump(to);
            return;
        }
        if route == Some(Route::Contact) && self.dial_identified(to) {
            return;
        }
        self.addresses.forget(to);
        let link = self.links.entry(to).or_default();
        link.quiet = Some((Instant::now() + QUIET, link.address.clone()));
        self.lost(to);
        self.give_up(to);
    }

    /// Drops what waits for `to`.
    fn give_up(&mut self, to: PeerId) {
        let waiting = self.links.get_mut(&to).map(|link| std::mem::take(&mut link.waiting)).unwrap_or_default();
        for item in waiting {
            self.fail(to, item);
        }
    }

    fn fail(&self, to: PeerId, item: Item) {
        match item {
            Item::Message(_) => Counters::add(&self.counters.dropped),
            Item::Chunk { reply, .. } => answer(reply, Err(ChunkError::Unreachable(to))),
        }
    }

    // ---- to the agent ----

    /// Whether another message of this length may wait for the agent.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.held.len() < RECEIVED_MAX && self.held_bytes + bytes <= RECEIVED_BYTES_MAX
    }

    pub(super) fn emit(&mut self, event: NetEvent) {
        if self.held.len() >= EVENTS_HELD_MAX {
            warn!(?event, "the agent does not take its network events; one is lost");
            return;
        }
        if let NetEvent::Received { bytes, .. } = &event {
            self.held_bytes += bytes.len();
        }
        self.held.push_back(event);
    }

    /// Reports a peer as lost, once for what failed together.
    fn lost(&mut self, peer: PeerId) {
        let now = Instant::now();
        let link = self.links.entry(peer).or_default();
        if link.reported.is_some_and(|when| now < when + QUIET) {
            return;
        }
        link.reported = Some(now);
        self.emit(NetEvent::Unreachable(peer));
    }

    pub(super) fn complain(&mut self, peer: PeerId, what: &str) {
        Counters::add(&self.counters.errors);
        // Bounded, so that names cost a hostile peer more than they cost us.
        if self.complained.len() < 1024 && self.complained.insert(peer) {
            warn!(?peer, "{what} (logged once per peer)");
        }
    }

    fn sweep(&mut self) {
        let now = Instant::now();
        for (peer, link) in &self.links {
            if link.turned_away && self.swarm.disconnect_peer_id(identity::to_libp2p(*peer)).is_err() {
                debug!(?peer, "was gone already");
            }
        }
        self.links.retain(|_, link| !link.is_forgettable(now));
        self.bootstraps.retain(|_, bootstrap| !bootstrap.reply.is_closed());
    }

    // ---- from the swarm ----

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } => self.emit(NetEvent::Listening(address)),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                let Some(peer) = identity::from_libp2p(&peer_id) else {
                    debug!(%peer_id, "is not named by an Ed25519 key; closed");
                    self.swarm.close_connection(connection_id);
                    return;
                };
                let address = endpoint.is_dialer().then(|| endpoint.get_remote_address().clone());
                let link = self.links.entry(peer).or_default();
                link.connections.insert(connection_id, address);
                if link.dialling.is_some_and(|(id, _)| id == connection_id) {
                    link.dialling = None;
                }
                link.quiet = None;
                link.reported = None;
                link.turned_away = false;
                self.pump(peer);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                self.on_closed(peer_id, connection_id, num_established, cause.as_ref());
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                if let Some(Bootstrap { address, reply }) = self.bootstraps.remove(&connection_id) {
                    answer(reply, Err(dial_error(address, &error)));
                }
                if let Some(peer) = peer_id.as_ref().and_then(identity::from_libp2p)
                    && self.links.get(&peer).is_some_and(|link| link.dialling.is_some_and(|(id, _)| id == connection_id))
                {
                    self.dial_failed(peer, &error);
                }
            }
            SwarmEvent::IncomingConnectionError { error, .. } => debug!(%error, "an incoming connection failed"),
            SwarmEvent::ListenerError { error, .. } => warn!(%error, "a listener has trouble"),
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                warn!(?addresses, ?reason, "a listener closed; restart the agent to be reachable again");
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(event)) => self.on_identify(event),
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, connection, result })) => match result {
                Ok(_) | Err(ping::Failure::Unsupported) => {}
                Err(error) => {
                    debug!(%peer, %error, "does not answer; closed");
                    self.swarm.close_connection(connection);
                }
            },
            SwarmEvent::Behaviour(BehaviourEvent::Requests(event)) => self.on_request_event(event),
            // Addresses that others observe are of no use on loopback; the rest tells nothing that acts here.
            other => debug!(event = ?other, "not used"),
        }
    }

    fn on_closed(&mut self, peer_id: libp2p::PeerId, id: ConnectionId, left: u32, cause: Option<&ConnectionError>) {
        if let Some(Bootstrap { address, reply }) = self.bootstraps.remove(&id) {
            let reason = "the connection closed before the agent said who it is".to_owned();
            answer(reply, Err(DialError::Failed { address, reason }));
        }
        let Some(peer) = identity::from_libp2p(&peer_id) else { return };
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.connections.remove(&id);
        if left > 0 {
            return;
        }
        link.announced = false;
        // What was under way fails, and is reported, by itself.
        if !link.turned_away && !matches!(cause, Some(ConnectionError::KeepAliveTimeout)) {
            self.lost(peer);
        }
        self.pump(peer);
    }

    fn on_identify(&mut self, event: identify::Event) {
        match event {
            identify::Event::Received { connection_id, peer_id, info } => {
                let Some(peer) = identity::from_libp2p(&peer_id) else { return };
                let bootstrap = self.bootstraps.remove(&connection_id);
                if !info.protocols.contains(&self.protocol) {
                    if let Some(Bootstrap { address, reply }) = bootstrap {
                        answer(reply, Err(DialError::OtherGrid(address)));
                    }
                    match self.links.get_mut(&peer) {
                        // Whoever dialled closes. Closing from here could outrun what tells the other side why; the
                        // next sweep does it if the other does not.
                        Some(link) if link.connections.get(&connection_id) == Some(&None) => link.turned_away = true,
                        _ => self.turn_away(peer, peer_id),
                    }
                    return;
                }
                if let Some(Bootstrap { reply, .. }) = bootstrap {
                    answer(reply, Ok(peer));
                }
                // Also of a connection that is not the first: the peer may listen elsewhere by now.
                self.addresses.learn(peer, &info.listen_addrs);
                let Some(link) = self.links.get_mut(&peer) else { return };
                if link.announced {
                    return;
                }
                let Some(dialled) = link.connections.get(&connection_id).cloned() else { return };
                link.announced = true;
                let dialled = dialled.and_then(|address| loopback::check(&address).ok());
                let dialled = dialled.map(|(socket, _)| loopback::multiaddr(socket));
                let address = dialled.or_else(|| self.addresses.of(peer).first().cloned());
                self.emit(NetEvent::Connected { peer, address });
            }
            identify::Event::Error { peer_id, error, .. } => debug!(%peer_id, %error, "did not identify itself"),
            identify::Event::Sent { .. } | identify::Event::Pushed { .. } => {}
        }
    }

    /// Closes the connections of a peer of another grid, and leaves it alone for a while.
    fn turn_away(&mut self, peer: PeerId, peer_id: libp2p::PeerId) {
        debug!(?peer, "is of another grid; closed");
        if let Some(link) = self.links.get_mut(&peer) {
            link.quiet = Some((Instant::now() + QUIET_OTHER_GRID, link.address.clone()));
            link.turned_away = true;
            if !link.waiting.is_empty() {
                self.lost(peer);
            }
        }
        self.give_up(peer);
        if self.swarm.disconnect_peer_id(peer_id).is_err() {
            debug!(?peer, "was gone already");
        }
    }

    fn on_request_event(&mut self, event: request_response::Event<Request, Reply>) {
        use request_response::{Event, Message};
        match event {
            Event::Message { peer, message: Message::Request { request, channel, .. }, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.on_request(from, request, channel);
                }
            }
            Event::Message { peer, message: Message::Response { request_id, response }, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.on_reply(from, request_id, response);
                }
            }
            Event::OutboundFailure { peer, request_id, error, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.on_request_failed(from, peer, request_id, &error);
                }
            }
            Event::InboundFailure { peer, error, .. } => debug!(%peer, %error, "an answer did not get through"),
            Event::ResponseSent { .. } => {}
        }
    }

    fn on_reply(&mut self, from: PeerId, id: OutboundRequestId, reply: Reply) {
        let Some(in_flight) = self.landed(from, id) else { return };
        match (in_flight, reply) {
            (InFlight::Message { .. }, Reply::Ack) => Counters::add(&self.counters.sent),
            (InFlight::Message { .. }, Reply::Busy) => Counters::add(&self.counters.dropped),
            (InFlight::Message { .. }, Reply::Chunk { .. } | Reply::Missing) => {
                Counters::add(&self.counters.dropped);
                self.complain(from, "answered a message with something else");
            }
            (InFlight::Chunk { reply, .. }, Reply::Missing) => answer(reply, Ok(ChunkReply::Missing)),
            (InFlight::Chunk { reply, .. }, Reply::Busy) => answer(reply, Ok(ChunkReply::Busy)),
            (InFlight::Chunk { offset, reply }, Reply::Chunk { total, bytes }) if fits(offset, total, bytes.len()) => {
                answer(reply, Ok(ChunkReply::Chunk { total, bytes }));
            }
            (InFlight::Chunk { reply, .. }, Reply::Chunk { .. } | Reply::Ack) => {
                answer(reply, Err(ChunkError::Protocol(from)));
                self.complain(from, "answered a request for a blob with something else");
            }
        }
        self.pump(from);
    }

    fn on_request_failed(&mut self, to: PeerId, peer: libp2p::PeerId, id: OutboundRequestId, error: &OutboundFailure) {
        debug!(peer = ?to, %error, "a request failed");
        match self.landed(to, id) {
            Some(InFlight::Message { .. }) => Counters::add(&self.counters.dropped),
            Some(InFlight::Chunk { reply, .. }) => answer(reply, Err(ChunkError::Unreachable(to))),
            None => {}
        }
        self.lost(to);
        if matches!(error, OutboundFailure::UnsupportedProtocols) {
            self.turn_away(to, peer);
        }
        self.pump(to);
    }

    fn landed(&mut self, peer: PeerId, id: OutboundRequestId) -> Option<InFlight> {
        let in_flight = self.in_flight.remove(&id)?;
        if let Some(link) = self.links.get_mut(&peer) {
            link.in_flight -= 1;
        }
        Some(in_flight)
    }
}

/// Whether a piece of a blob can be what was asked for.
fn fits(offset: u64, total: u64, len: usize) -> bool {
    let Some(rest) = total.checked_sub(offset) else { return len == 0 };
    len <= CHUNK_BYTES_MAX && len as u64 <= rest && (len > 0 || rest == 0)
}

fn dialable(address: &str) -> Result<Multiaddr, String> {
    let address: Multiaddr = address.parse().map_err(|_| format!("{address:?} is not a multiaddress"))?;
    let (socket, _) = loopback::check(&address).map_err(|error| error.to_string())?;
    Ok(loopback::multiaddr(socket))
}

/// Answers somebody who may have stopped waiting.
fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    if reply.send(value).is_err() {
        debug!("nobody waits for this answer any more");
    }
}

fn dial_error(address: Multiaddr, error: &SwarmDialError) -> DialError {
    let reason = match error {
        SwarmDialError::LocalPeerId { .. } => return DialError::Oneself(address),
        SwarmDialError::WrongPeerId { obtained, .. } => format!("another agent lives there ({obtained})"),
        SwarmDialError::Denied { .. } => "too many connections are open".to_owned(),
        SwarmDialError::Transport(errors) => match errors.first() {
            Some((_, TransportError::Other(error))) => innermost(error),
            Some((_, TransportError::MultiaddrNotSupported(_))) | None => "the address is not supported".to_owned(),
        },
        SwarmDialError::NoAddresses | SwarmDialError::DialPeerConditionFalse(_) | SwarmDialError::Aborted => {
            error.to_string()
        }
    };
    DialError::Failed { address, reason }
}

/// The end of the chain of causes says what happened; the rest says through which layers it went.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_must_fit_the_request() {
        assert!(fits(0, 0, 0) && fits(0, 5, 5) && fits(2, 5, 3) && fits(2, 5, 1) && fits(9, 5, 0) && fits(5, 5, 0));
        assert!(!fits(0, 5, 0), "would never end");
        assert!(!fits(2, 5, 4) && !fits(9, 5, 1) && !fits(0, u64::MAX, CHUNK_BYTES_MAX + 1));
    }
}
