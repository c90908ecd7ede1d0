//! The loop that owns the swarm: turns commands into requests and the swarm's events into the agent's.
//!
//! It waits for nothing but the swarm, commands and room for events. Outgoing requests are in `outbound`, requests of
//! others in `serving`.

use std::sync::Arc;
use std::time::Duration;

use idlewood_machine::downloads::REQUEST_TIMEOUT;
use idlewood_overlay::Contact;
use idlewood_trust::{Outcome, RenewFrom, identity, message};
use libp2p::futures::StreamExt as _;
use libp2p::request_response;
use libp2p::swarm::{ConnectionError, ConnectionId, SwarmEvent};
use libp2p::{identify, mdns, ping};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, warn};

use crate::command::{Command, answer};
use crate::config::{NetConfig, NetError};
use crate::counters::Counters;
use crate::dial_back::DialBacks;
use crate::dial_error::{DialError, dial_error};
use crate::event::NetEvent;
use crate::link::Bootstrap;
use crate::live::{Live, LiveQuestion};
use crate::outbound::Outgoing;
use crate::reach::{self, Reach};
use crate::serving::Serving;
use crate::swarm::{self, BehaviourEvent, Limits};
use crate::wire::{self, Reply, Request};

/// How long a shutdown goes on delivering, and how long it waits for connections to close.
const DRAIN: Duration = Duration::from_secs(1);
const CLOSE: Duration = Duration::from_millis(300);

/// How often forgotten peers are cleared.
const SWEEP: Duration = Duration::from_secs(10);

/// How often certificates are checked for expiry, and this machine's for renewal, and requests for pieces for those that wait for too long.
const LOOK: Duration = Duration::from_secs(1);

/// The loop's state: what it does with peers is in `outgoing`, what it does for them in `serving`.
pub(super) struct EventLoop {
    protocol: libp2p::StreamProtocol,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<NetEvent>,
    outgoing: Outgoing,
    serving: Serving,
    dial_backs: DialBacks,
    live: Live,
    /// The port at which this agent listens.
    port: u16,
}

impl EventLoop {
    pub(super) fn new(
        config: &NetConfig,
        limits: Limits,
        counters: Arc<Counters>,
        serving: Serving,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<NetEvent>,
        questions: mpsc::Sender<LiveQuestion>,
    ) -> Result<Self, NetError> {
        let reach = Reach::of(&config.listen)?;
        let protocol = wire::protocol(config.gate.grid());
        let traffic = counters.traffic.clone();
        let swarm = swarm::build(config, reach, protocol.clone(), traffic, limits)?;
        let outgoing = Outgoing::new(swarm, limits.kept, reach, config.gate.clone(), counters);
        let (dial_backs, live) = (DialBacks::default(), Live::new(questions));
        Ok(Self { protocol, commands, events, outgoing, serving, dial_backs, live, port: 0 })
    }

    pub(super) async fn run(mut self) {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (events, gate) = (self.events.clone(), self.outgoing.gate.clone());
        loop {
            let answer_due = self.outgoing.answers.due();
            let rested_at = self.outgoing.resting.first().map(|(until, _)| *until);
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown) | None => break,
                    Some(command) => self.on_command(command),
                },
                permit = events.reserve(), if !self.outgoing.pending.is_empty() => {
                    let Ok(permit) = permit else {
                        debug!("nobody receives network events any more");
                        return;
                    };
                    if let Some(event) = self.outgoing.pending.pop() {
                        permit.send(event);
                    }
                }
                event = self.outgoing.swarm.select_next_some() => self.on_swarm_event(event),
                Some(served) = self.serving.reading.join_next() => self.serving.on_served(&mut self.outgoing, served),
                Some(departed) = self.serving.departing.join_next() => {
                    self.serving.on_departed(&mut self.outgoing, departed);
                }
                Some(answered) = self.live.answering.join_next() => self.live.on_answered(answered, &mut self.outgoing),
                () = tokio::time::sleep_until(answer_due.unwrap_or_else(Instant::now)), if answer_due.is_some() => {
                    self.outgoing.answer_due(Instant::now());
                }
                () = tokio::time::sleep_until(rested_at.unwrap_or_else(Instant::now)), if rested_at.is_some() => {
                    self.outgoing.pump_rested(Instant::now());
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
        self.outgoing.answer_all();
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.on_command(command);
        }
        let deadline = Instant::now() + DRAIN;
        loop {
            let now = Instant::now();
            let is_busy = !self.outgoing.in_flight.is_empty()
                || self.outgoing.links.values().any(|link| !link.waiting.is_empty());
            let until = if is_busy { deadline } else { self.outgoing.answers.underway_until(now).min(deadline) };
            if until <= now {
                break;
            }
            let until = self.outgoing.resting.first().map_or(until, |(rested, _)| until.min(*rested));
            tokio::select! {
                () = tokio::time::sleep_until(until) => self.outgoing.pump_rested(Instant::now()),
                event = self.outgoing.swarm.select_next_some() => self.on_swarm_event(event),
                Some(served) = self.serving.reading.join_next() => self.serving.on_served(&mut self.outgoing, served),
            }
        }
        let connected: Vec<_> = self.outgoing.swarm.connected_peers().copied().collect();
        for peer in connected {
            // Fails only if the peer has just gone.
            if self.outgoing.swarm.disconnect_peer_id(peer).is_err() {
                debug!(%peer, "was gone already");
            }
        }
        let deadline = Instant::now() + CLOSE;
        while self.outgoing.swarm.network_info().num_peers() > 0 {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                _ = self.outgoing.swarm.select_next_some() => {}
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Send { to, address, item } => self.outgoing.enqueue(to, address, item),
            Command::Dial { address, reply } => self.outgoing.bootstrap(address, reply),
            Command::DialBack { reply } => {
                let connected = self.outgoing.connected();
                connected.iter().for_each(|peer| self.outgoing.is_used_for(*peer, REQUEST_TIMEOUT));
                let asked = self.dial_backs.ask(self.port, connected.into_iter(), &mut self.outgoing.swarm);
                answer(reply, asked);
            }
            Command::Live { from, ask, reply } => self.live.ask(&from, ask, reply, &mut self.outgoing),
            // A second one, while the first is carried out.
            Command::Shutdown => {}
        }
    }

    fn sweep(&mut self) {
        let now = Instant::now();
        for (peer, link) in &self.outgoing.links {
            if link.closing
                && !link.connections.is_empty()
                && self.outgoing.swarm.disconnect_peer_id(identity::to_libp2p(*peer)).is_err()
            {
                debug!(?peer, "was gone already");
            }
        }
        self.outgoing.links.retain(|_, link| !link.is_forgettable(now));
        let links = &self.outgoing.links;
        self.outgoing.gate.keep(|peer| links.get(&peer).is_some_and(|link| !link.connections.is_empty()));
        self.outgoing.bootstraps.retain(|_, bootstrap| !bootstrap.reply.is_closed());
        self.outgoing.resend_gossip();
        self.outgoing.make_room();
        if self.outgoing.connected().is_empty() {
            self.outgoing.dial_found();
        }
    }

    // ---- the grid ----

    /// Disconnects machines that are no longer valid, and passes gossip on.
    fn on_grid_changed(&mut self) {
        self.look();
        let gossip = self.outgoing.gate.pending_gossip();
        for peer in self.outgoing.connected() {
            for gossip in &gossip {
                self.outgoing.send_gossip(peer, "", gossip.clone());
            }
        }
    }

    /// Disconnects machines whose certificate is not valid any more, and asks for a renewal of this one's.
    fn look(&mut self) {
        self.serving.serve(&mut self.outgoing);
        for peer in self.outgoing.connected() {
            let Some(refused) = self.outgoing.gate.objection(peer) else { continue };
            debug!(?peer, %refused, "closed");
            self.outgoing.gate.count(Outcome::Refused(refused));
            if self.outgoing.swarm.disconnect_peer_id(identity::to_libp2p(peer)).is_err() {
                debug!(?peer, "was gone already");
            }
        }
        if let Some(RenewFrom { peer, address }) = self.outgoing.gate.wants_renewal() {
            self.outgoing.send_gossip(peer, &address, message::ask_for_renewal());
        }
    }

    // ---- from the swarm ----

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } => {
                self.outgoing.gate.listens_on(&address);
                if let Ok((socket, _)) = idlewood_trust::address::parse(&address) {
                    self.port = socket.port();
                }
                self.outgoing.pending.push(NetEvent::Listening(address));
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => self.outgoing.gate.listens_no_more_on(&address),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                let Some(peer) = identity::from_libp2p(&peer_id) else {
                    debug!(%peer_id, "is not named by an Ed25519 key; closed");
                    self.outgoing.swarm.close_connection(connection_id);
                    return;
                };
                self.dial_backs.opened(connection_id, endpoint.get_remote_address(), &mut self.outgoing.swarm);
                let address = endpoint.is_dialer().then(|| endpoint.get_remote_address().clone());
                let link = self.outgoing.links.entry(peer).or_default();
                link.connections.insert(connection_id, address);
                if link.dialling.is_some_and(|(id, _)| id == connection_id) {
                    link.dialling = None;
                }
                link.is_used(Instant::now());
                link.quiet = None;
                link.reported = None;
                link.closing = false;
                if link.connections.len() == 1 {
                    // Everything that it lacks is sent anew.
                    link.undelivered.clear();
                    for gossip in self.outgoing.gate.lacks(peer) {
                        self.outgoing.send_gossip(peer, "", gossip);
                    }
                }
                self.outgoing.pump(peer);
                self.outgoing.make_room();
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                self.dial_backs.closed(connection_id);
                self.on_closed(peer_id, connection_id, num_established, cause.as_ref());
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                let why = || dial_error(libp2p::Multiaddr::empty(), &error);
                self.dial_backs.failed(connection_id, why, &mut self.outgoing.swarm);
                if let Some(Bootstrap { address, reply }) = self.outgoing.bootstraps.remove(&connection_id) {
                    answer(reply, Err(dial_error(address, &error)));
                }
                if let Some(peer) = peer_id.as_ref().and_then(identity::from_libp2p)
                    && self
                        .outgoing
                        .links
                        .get(&peer)
                        .is_some_and(|link| link.dialling.is_some_and(|(id, _)| id == connection_id))
                {
                    self.outgoing.dial_failed(peer, &error);
                }
            }
            SwarmEvent::IncomingConnectionError { error, .. } => {
                debug!(%error, "an incoming connection failed");
                // There may have been no room for it.
                self.outgoing.make_room();
            }
            SwarmEvent::ListenerError { error, .. } => warn!(%error, "a listener has trouble"),
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                warn!(?addresses, ?reason, "a listener closed; restart the agent to be reachable again");
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(event)) => self.on_identify(event),
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, connection, result })) => match result {
                Ok(_) | Err(ping::Failure::Unsupported) => {}
                Err(error) => {
                    debug!(%peer, %error, "does not answer; closed");
                    self.outgoing.swarm.close_connection(connection);
                }
            },
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Discovered(found))) => {
                self.outgoing.on_found(found)
            }
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Expired(expired))) => {
                self.outgoing.on_expired(expired)
            }
            SwarmEvent::Behaviour(BehaviourEvent::Requests(event)) => self.on_request_event(event),
            SwarmEvent::Behaviour(BehaviourEvent::DialBack(event)) => {
                self.dial_backs.on_event(event, &mut self.outgoing.swarm);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Live(event)) => self.live.on_event(event, &mut self.outgoing),
            // Addresses observed by others are not used; the other events need no reaction.
            other => debug!(event = ?other, "not used"),
        }
    }

    fn on_closed(&mut self, peer_id: libp2p::PeerId, id: ConnectionId, left: u32, cause: Option<&ConnectionError>) {
        if let Some(Bootstrap { address, reply }) = self.outgoing.bootstraps.remove(&id) {
            let reason = "the connection closed before the agent said who it is".to_owned();
            answer(reply, Err(DialError::Failed { address, reason }));
        }
        let Some(peer) = identity::from_libp2p(&peer_id) else { return };
        let Some(link) = self.outgoing.links.get_mut(&peer) else { return };
        link.connections.remove(&id);
        if left > 0 {
            return;
        }
        link.announced = false;
        // Requests under way fail, and are reported, by themselves.
        if !std::mem::take(&mut link.closing) && !matches!(cause, Some(ConnectionError::KeepAliveTimeout)) {
            self.outgoing.lost(peer);
        }
        self.outgoing.pump(peer);
    }

    fn on_identify(&mut self, event: identify::Event) {
        match event {
            identify::Event::Received { connection_id, peer_id, info } => {
                let Some(peer) = identity::from_libp2p(&peer_id) else { return };
                let bootstrap = self.outgoing.bootstraps.remove(&connection_id);
                if !info.protocols.contains(&self.protocol) {
                    if let Some(Bootstrap { address, reply }) = bootstrap {
                        answer(reply, Err(DialError::OtherGrid(address)));
                    }
                    match self.outgoing.links.get_mut(&peer) {
                        // The dialler closes. Closing from here could outrun the frame that tells it why; the next
                        // sweep closes if the dialler does not.
                        Some(link) if link.connections.get(&connection_id) == Some(&None) => link.closing = true,
                        _ => self.outgoing.turn_away(peer, peer_id),
                    }
                    return;
                }
                if let Some(Bootstrap { reply, .. }) = bootstrap {
                    answer(reply, Ok(peer));
                }
                // Even for a further connection: the peer may listen elsewhere by now.
                self.outgoing.addresses.learn(peer, &info.listen_addrs);
                let Some(link) = self.outgoing.links.get_mut(&peer) else { return };
                if link.announced {
                    return;
                }
                let Some(dialled) = link.connections.get(&connection_id).cloned() else { return };
                link.announced = true;
                let is_found = std::mem::take(&mut link.found);
                let dialled = dialled.and_then(|address| self.outgoing.reach.check(&address).ok());
                let dialled = dialled.map(|(socket, _)| reach::multiaddr(socket));
                let address = dialled.or_else(|| self.outgoing.addresses.of(peer).first().cloned());
                if let Some(address) = address.as_ref().filter(|_| is_found) {
                    self.outgoing.pending.push(NetEvent::Found(Contact {
                        peer,
                        incarnation: 0,
                        address: address.to_string().into(),
                        nonce: None,
                    }));
                }
                self.outgoing.pending.push(NetEvent::Connected { peer, address });
            }
            identify::Event::Error { peer_id, error, .. } => debug!(%peer_id, %error, "did not identify itself"),
            identify::Event::Sent { .. } | identify::Event::Pushed { .. } => {}
        }
    }

    fn on_request_event(&mut self, event: request_response::Event<Request, Reply>) {
        use request_response::{Event, Message};
        match event {
            Event::Message { peer, message: Message::Request { request_id, request, channel }, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    // A piece may be under way for as long as whoever asks waits.
                    let lasts = if matches!(request, Request::Chunk { .. }) { REQUEST_TIMEOUT } else { Duration::ZERO };
                    self.outgoing.is_used_for(from, lasts);
                    self.serving.on_request(&mut self.outgoing, from, request_id, request, channel);
                }
            }
            Event::Message { peer, message: Message::Response { request_id, response }, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.outgoing.on_reply(from, request_id, response);
                }
            }
            Event::OutboundFailure { peer, request_id, error, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.outgoing.on_request_failed(from, peer, request_id, &error);
                }
            }
            Event::InboundFailure { peer, request_id, error, .. } => {
                debug!(%peer, %error, "an answer did not get through");
                self.serving.on_ended(&mut self.outgoing, request_id, false);
                if let Some(to) = identity::from_libp2p(&peer) {
                    self.outgoing.not_answered(to, request_id);
                }
            }
            Event::ResponseSent { request_id, .. } => {
                self.outgoing.answered(request_id);
            }
        }
    }
}
