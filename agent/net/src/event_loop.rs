//! The loop that owns the swarm: turns commands into requests and the swarm's events into the agent's.
//!
//! It waits for nothing but the swarm, commands and room for events. Outgoing requests are in `outbound`, requests of
//! others in `serving`.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use idlewood_blobs::Blobs;
use idlewood_overlay::{Contact, PeerId};
use idlewood_trust::{Gate, Outcome, RenewFrom, message};
use libp2p::futures::StreamExt as _;
use libp2p::request_response::{self, OutboundRequestId};
use libp2p::swarm::{ConnectionError, ConnectionId, SwarmEvent};
use libp2p::{Swarm, identify, mdns, ping};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, warn};

use super::addresses::Addresses;
use super::answers::Answers;
use super::found::Found;
use super::outbound::{Bootstrap, InFlight, Link, QUIET, QUIET_OTHER_GRID, dial_error};
use super::reach::Reach;
use super::serving::Serving;
use super::shares::Occupancy;
use super::swarm::{Behaviour, BehaviourEvent, Limits};
use super::wire::{self, Reply, Request};
use super::{Command, Counters, DialError, NetConfig, NetError, NetEvent, identity, reach, swarm};

/// Messages that wait for the agent, beside those in the channel.
const RECEIVED_MAX: usize = 4096;

/// Bytes of messages that wait for the agent, beside those in the channel.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Events other than messages that may wait; more means that the agent is stuck.
const PENDING_EVENTS_MAX: usize = 2 * RECEIVED_MAX;

/// How long a shutdown goes on delivering, and how long it waits for connections to close.
const DRAIN: Duration = Duration::from_secs(1);
const CLOSE: Duration = Duration::from_millis(300);

/// How often forgotten peers are cleared.
const SWEEP: Duration = Duration::from_secs(10);

/// How often certificates are checked for expiry, and this machine's for renewal.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct EventLoop {
    pub(super) swarm: Swarm<Behaviour>,
    protocol: libp2p::StreamProtocol,
    pub(super) reach: Reach,
    pub(super) gate: Arc<Gate>,
    pub(super) blobs: Arc<Blobs>,
    pub(super) counters: Arc<Counters>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<NetEvent>,
    pending_events: VecDeque<NetEvent>,
    /// Number of messages in `pending_events`, by peer.
    occupancy: Occupancy,
    pub(super) links: HashMap<PeerId, Link>,
    pub(super) addresses: Addresses,
    /// Machines announced on the local network.
    pub(super) found: Found,
    pub(super) in_flight: HashMap<OutboundRequestId, InFlight>,
    /// Peers that had no room, and when to try them again.
    pub(super) resting: BTreeSet<(Instant, PeerId)>,
    pub(super) bootstraps: HashMap<ConnectionId, Bootstrap>,
    pub(super) serving: Serving,
    pub(super) answers: Answers,
    /// Peers whose malformed or foreign answers were logged.
    complained: HashSet<PeerId>,
}

impl EventLoop {
    pub(super) fn new(
        config: &NetConfig,
        limits: Limits,
        blobs: Arc<Blobs>,
        counters: Arc<Counters>,
        serving: Serving,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<NetEvent>,
    ) -> Result<Self, NetError> {
        let reach = Reach::of(&config.listen)?;
        let protocol = wire::protocol(config.gate.grid());
        let traffic = counters.traffic.clone();
        let swarm = swarm::build(config, reach, protocol.clone(), traffic, limits)?;
        Ok(Self {
            swarm,
            protocol,
            reach,
            gate: config.gate.clone(),
            blobs,
            counters,
            commands,
            events,
            pending_events: VecDeque::new(),
            occupancy: Occupancy::new(RECEIVED_MAX, RECEIVED_BYTES_MAX),
            links: HashMap::new(),
            addresses: Addresses::new(reach),
            found: Found::default(),
            in_flight: HashMap::new(),
            resting: BTreeSet::new(),
            bootstraps: HashMap::new(),
            serving,
            answers: Answers::default(),
            complained: HashSet::new(),
        })
    }

    pub(super) async fn run(mut self) {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (events, gate) = (self.events.clone(), self.gate.clone());
        loop {
            let answer_due = self.answers.due();
            let rested_at = self.resting.first().map(|(until, _)| *until);
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown) | None => break,
                    Some(command) => self.on_command(command),
                },
                permit = events.reserve(), if !self.pending_events.is_empty() => {
                    let Ok(permit) = permit else {
                        debug!("nobody receives network events any more");
                        return;
                    };
                    if let Some(event) = self.pending_events.pop_front() {
                        if let NetEvent::Received { from, bytes } = &event {
                            self.occupancy.remove(*from, bytes.len());
                        }
                        permit.send(event);
                    }
                }
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(served) = self.serving.reading.join_next() => self.on_served(served),
                () = tokio::time::sleep_until(answer_due.unwrap_or_else(Instant::now)), if answer_due.is_some() => {
                    self.answer_due(Instant::now());
                }
                () = tokio::time::sleep_until(rested_at.unwrap_or_else(Instant::now)), if rested_at.is_some() => {
                    self.pump_rested(Instant::now());
                }
                () = gate.changed() => self.on_grid_changed(),
                _ = look.tick() => self.look(),
                _ = sweep.tick() => self.sweep(),
            }
        }
        self.drain().await;
    }

    /// Delivers queued items, then closes all connections.
    async fn drain(&mut self) {
        // From now on every message is acknowledged, so that its delivery is certain.
        self.answer_all();
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.on_command(command);
        }
        let deadline = Instant::now() + DRAIN;
        loop {
            let now = Instant::now();
            let is_busy = !self.in_flight.is_empty() || self.links.values().any(|link| !link.waiting.is_empty());
            let until = if is_busy { deadline } else { self.answers.underway_until(now).min(deadline) };
            if until <= now {
                break;
            }
            let until = self.resting.first().map_or(until, |(rested, _)| until.min(*rested));
            tokio::select! {
                () = tokio::time::sleep_until(until) => self.pump_rested(Instant::now()),
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(served) = self.serving.reading.join_next() => self.on_served(served),
            }
        }
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in connected {
            // Fails only if the peer has just gone.
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

    // ---- to the agent ----

    /// Whether another message of this length from this peer may wait for the agent.
    pub(super) fn has_room_for(&self, from: PeerId, bytes: usize) -> bool {
        self.occupancy.has_room_for(from, bytes)
    }

    pub(super) fn emit(&mut self, event: NetEvent) {
        if self.pending_events.len() >= PENDING_EVENTS_MAX {
            warn!(?event, "the agent does not take its network events; one is lost");
            return;
        }
        if let NetEvent::Received { from, bytes } = &event {
            self.occupancy.add(*from, bytes.len());
        }
        self.pending_events.push_back(event);
    }

    /// Reports a peer as lost, once for simultaneous failures.
    pub(super) fn lost(&mut self, peer: PeerId) {
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
        // Bounded: new identities must not cost us memory.
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
        let links = &self.links;
        self.gate.keep(|peer| links.get(&peer).is_some_and(|link| !link.connections.is_empty()));
        self.bootstraps.retain(|_, bootstrap| !bootstrap.reply.is_closed());
        self.resend_gossip();
        if self.connected().is_empty() {
            self.dial_found();
        }
    }

    // ---- the grid ----

    /// Disconnects machines that are no longer valid, and passes gossip on.
    fn on_grid_changed(&mut self) {
        self.look();
        let gossip = self.gate.pending_gossip();
        for peer in self.connected() {
            for gossip in &gossip {
                self.send_gossip(peer, "", gossip.clone());
            }
        }
    }

    /// Disconnects machines whose certificate is not valid any more, and asks for a renewal of this one's.
    fn look(&mut self) {
        for peer in self.connected() {
            let Some(refused) = self.gate.objection(peer) else { continue };
            debug!(?peer, %refused, "closed");
            self.gate.count(Outcome::Refused(refused));
            if self.swarm.disconnect_peer_id(identity::to_libp2p(peer)).is_err() {
                debug!(?peer, "was gone already");
            }
        }
        if let Some(RenewFrom { peer, address }) = self.gate.wants_renewal() {
            self.send_gossip(peer, &address, message::ask_for_renewal());
        }
    }

    pub(super) fn connected(&self) -> Vec<PeerId> {
        self.links.iter().filter(|(_, link)| !link.connections.is_empty()).map(|(peer, _)| *peer).collect()
    }

    // ---- from the swarm ----

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } => {
                self.gate.listens_on(&address);
                self.emit(NetEvent::Listening(address));
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => self.gate.listens_no_more_on(&address),
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
                if link.connections.len() == 1 {
                    // Everything that it lacks is sent anew.
                    link.undelivered.clear();
                    for gossip in self.gate.lacks(peer) {
                        self.send_gossip(peer, "", gossip);
                    }
                }
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
                    && self
                        .links
                        .get(&peer)
                        .is_some_and(|link| link.dialling.is_some_and(|(id, _)| id == connection_id))
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
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Discovered(found))) => self.on_found(found),
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Expired(expired))) => self.on_expired(expired),
            SwarmEvent::Behaviour(BehaviourEvent::Requests(event)) => self.on_request_event(event),
            // Addresses observed by others are not used; the other events need no reaction.
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
        // Requests under way fail, and are reported, by themselves.
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
                        // The dialler closes. Closing from here could outrun the frame that tells it why; the next
                        // sweep closes if the dialler does not.
                        Some(link) if link.connections.get(&connection_id) == Some(&None) => link.turned_away = true,
                        _ => self.turn_away(peer, peer_id),
                    }
                    return;
                }
                if let Some(Bootstrap { reply, .. }) = bootstrap {
                    answer(reply, Ok(peer));
                }
                // Even for a further connection: the peer may listen elsewhere by now.
                self.addresses.learn(peer, &info.listen_addrs);
                let Some(link) = self.links.get_mut(&peer) else { return };
                if link.announced {
                    return;
                }
                let Some(dialled) = link.connections.get(&connection_id).cloned() else { return };
                link.announced = true;
                let is_found = std::mem::take(&mut link.found);
                let dialled = dialled.and_then(|address| self.reach.check(&address).ok());
                let dialled = dialled.map(|(socket, _)| reach::multiaddr(socket));
                let address = dialled.or_else(|| self.addresses.of(peer).first().cloned());
                if let Some(address) = address.as_ref().filter(|_| is_found) {
                    self.emit(NetEvent::Found(Contact {
                        peer,
                        incarnation: 0,
                        address: address.to_string().into(),
                        nonce: None,
                    }));
                }
                self.emit(NetEvent::Connected { peer, address });
            }
            identify::Event::Error { peer_id, error, .. } => debug!(%peer_id, %error, "did not identify itself"),
            identify::Event::Sent { .. } | identify::Event::Pushed { .. } => {}
        }
    }

    /// Closes the connections of a peer of another grid, and leaves it alone for a while.
    pub(super) fn turn_away(&mut self, peer: PeerId, peer_id: libp2p::PeerId) {
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
            Event::Message { peer, message: Message::Request { request_id, request, channel }, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.on_request(from, request_id, request, channel);
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
            Event::InboundFailure { peer, request_id, error, .. } => {
                debug!(%peer, %error, "an answer did not get through");
                if let Some(to) = identity::from_libp2p(&peer) {
                    self.not_answered(to, request_id);
                }
            }
            Event::ResponseSent { request_id, .. } => self.answered(request_id),
        }
    }
}

/// Answers a caller, which may have stopped waiting.
pub(super) fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    if reply.send(value).is_err() {
        debug!("nobody waits for this answer any more");
    }
}
