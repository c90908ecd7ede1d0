//! What goes out: requests with their queues by peer, dials, requests under way and their outcomes; answers to others.
//!
//! The agent dials itself instead of leaving that to the request-response behaviour, for three reasons: items waiting
//! for a dial are bounded here and unbounded there; the address to dial is known: the contact's, and if that does not
//! answer, those that the peer announced last (`addresses`); and each dial uses a fresh local port, as re-using the
//! listening one makes quick redials on one machine collide.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use idlewood_machine::connections::{QUIET, to_close};
use idlewood_machine::serving::PIECE_BYTES_MIN;
use idlewood_overlay::{Contact, PeerId};
use idlewood_trust::{Gate, identity};
use libp2p::request_response::{InboundRequestId, OutboundFailure, OutboundRequestId, ResponseChannel};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError as SwarmDialError};
use libp2p::{Multiaddr, Swarm, TransportError};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::addresses::Addresses;
use crate::answers::Answers;
use crate::causes::lacks_protocol;
use crate::chunk::{ChunkError, ChunkReply, Wanted};
use crate::command::{Item, Outbound, answer};
use crate::counters::Counters;
use crate::dial_error::{DialError, dial_error, turns_us_away};
use crate::event::NetEvent;
use crate::found::Found;
use crate::link::{Bootstrap, InFlight, Link, QUIET_OTHER_GRID, Route};
use crate::pending::Pending;
use crate::rate::Allowance;
use crate::reach::{self, Reach};
use crate::room::Kind;
use crate::swarm::Behaviour;
use crate::waiting::Queue;
use crate::wire::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, Reply, Request};

/// Gossip that one peer did not accept and that is sent again, and how many times in a row: for five minutes. After
/// that, at its next connection.
const UNDELIVERED_MAX: usize = 64;
const RESENDS_MAX: u32 = 30;

/// Machines found on the local network that an unconnected agent dials at once.
const FOUND_DIALS_MAX: usize = 8;

/// Who is connected, what waits for whom, and the swarm that it goes out through.
pub(super) struct Outgoing {
    pub(super) swarm: Swarm<Behaviour>,
    pub(super) reach: Reach,
    pub(super) gate: Arc<Gate>,
    pub(super) counters: Arc<Counters>,
    /// Events for the agent.
    pub(super) pending: Pending,
    pub(super) links: HashMap<PeerId, Link>,
    pub(super) addresses: Addresses,
    /// Machines announced on the local network.
    found: Found,
    pub(super) in_flight: HashMap<OutboundRequestId, InFlight>,
    /// Peers that had no room, and when to try them again.
    pub(super) resting: BTreeSet<(Instant, PeerId)>,
    pub(super) bootstraps: HashMap<ConnectionId, Bootstrap>,
    pub(super) answers: Answers,
    /// With more connections than this, some are closed.
    kept_max: usize,
    /// Peers whose malformed or foreign answers were logged.
    complained: HashSet<PeerId>,
}

impl Outgoing {
    pub(super) fn new(
        swarm: Swarm<Behaviour>,
        kept_max: usize,
        reach: Reach,
        gate: Arc<Gate>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            swarm,
            reach,
            gate,
            counters,
            pending: Pending::default(),
            links: HashMap::new(),
            addresses: Addresses::new(reach),
            found: Found::default(),
            in_flight: HashMap::new(),
            resting: BTreeSet::new(),
            bootstraps: HashMap::new(),
            answers: Answers::default(),
            kept_max,
            complained: HashSet::new(),
        }
    }

    /// Peers with an open connection.
    pub(super) fn connected(&self) -> Vec<PeerId> {
        self.links.iter().filter(|(_, link)| !link.connections.is_empty()).map(|(peer, _)| *peer).collect()
    }

    /// Where a contact can be dialled; `None` where that is out of reach, or not known.
    pub(super) fn address_of(&self, contact: &Contact) -> Option<Multiaddr> {
        dialable(self.reach, &contact.address).ok()
    }

    /// Uses up one request of this peer's allowance; false if none remained.
    pub(super) fn allows(&mut self, from: PeerId) -> bool {
        let now = Instant::now();
        self.links.entry(from).or_default().allowance.get_or_insert_with(|| Allowance::new(now)).take(now)
    }

    /// Reports a peer as lost, once for simultaneous failures.
    pub(super) fn lost(&mut self, peer: PeerId) {
        let now = Instant::now();
        let link = self.links.entry(peer).or_default();
        if link.reported.is_some_and(|when| now < when + QUIET) {
            return;
        }
        link.reported = Some(now);
        self.pending.push(NetEvent::Unreachable(peer));
    }

    pub(super) fn complain(&mut self, peer: PeerId, what: &str) {
        Counters::add(&self.counters.errors);
        // Bounded: new identities must not cost us memory.
        if self.complained.len() < 1024 && self.complained.insert(peer) {
            warn!(?peer, "{what} (logged once per peer)");
        }
    }

    /// Closes the connections of a peer of another grid, and leaves it alone for a while.
    pub(super) fn turn_away(&mut self, peer: PeerId, peer_id: libp2p::PeerId) {
        debug!(?peer, "is of another grid; closed");
        if let Some(link) = self.links.get_mut(&peer) {
            link.quiet = Some((Instant::now() + QUIET_OTHER_GRID, link.address.clone()));
            link.closing = true;
            if !link.waiting.is_empty() {
                self.lost(peer);
            }
        }
        self.give_up(peer);
        if self.swarm.disconnect_peer_id(peer_id).is_err() {
            debug!(?peer, "was gone already");
        }
    }

    /// Something goes over the connections with a peer, for so long.
    pub(super) fn is_used_for(&mut self, peer: PeerId, lasts: Duration) {
        self.links.entry(peer).or_default().is_used(Instant::now() + lasts);
    }

    /// Closes connections that were not used for longest where there are many, since further ones need room.
    pub(super) fn make_room(&mut self) {
        let open = self.links.iter().filter(|(_, link)| !link.connections.is_empty());
        let unused = open.clone().filter(|(_, link)| link.waiting.is_empty() && link.waiting.is_quiet());
        let unused = unused.filter_map(|(peer, link)| Some((link.used?, *peer)));
        for peer in to_close(Instant::now(), self.kept_max, open.count(), unused) {
            debug!(?peer, "closed to make room");
            if let Some(link) = self.links.get_mut(&peer) {
                link.closing = true;
            }
            if self.swarm.disconnect_peer_id(identity::to_libp2p(peer)).is_err() {
                debug!(?peer, "was gone already");
            }
        }
    }

    pub(super) fn enqueue(&mut self, to: PeerId, address: Box<str>, item: Item) {
        if identity::to_libp2p(to) == *self.swarm.local_peer_id() {
            debug!("a message to oneself is not for the network; dropped");
            self.fail(to, item);
            return;
        }
        let link = self.links.entry(to).or_default();
        if !address.is_empty() {
            link.address = address;
        }
        match link.waiting.push(item) {
            Ok(()) => self.pump(to),
            // The caller asks again.
            Err(Item::Chunk { reply, .. }) => answer(reply, Ok(ChunkReply::Busy)),
            Err(item) => {
                debug!(peer = ?to, "too much waits for one peer; dropped");
                self.fail(to, item);
            }
        }
    }

    /// Processes the items that wait for `to`: sends them, dials first, or gives them up.
    pub(super) fn pump(&mut self, to: PeerId) {
        let now = Instant::now();
        let Some(link) = self.links.get_mut(&to) else { return };
        if link.closing && !link.connections.is_empty() {
            // They go once these are closed, over a new one.
            return;
        }
        self.answers.carry(to, &mut link.waiting, &mut self.swarm.behaviour_mut().requests, &self.counters);
        let peer = identity::to_libp2p(to);
        if self.swarm.behaviour().requests.is_connected(&peer) {
            while let Some(item) = link.waiting.next(now) {
                let (request, in_flight) = match item {
                    Item::Message(Outbound { bytes, share }) => {
                        let kept = if share.kind == Kind::Bag { bytes.clone() } else { Vec::new() };
                        (Request::Message(bytes), InFlight::Message { share, bytes: kept })
                    }
                    Item::Chunk { reply, .. } if reply.is_closed() => {
                        // The caller is gone.
                        link.waiting.landed(Queue::Pieces);
                        continue;
                    }
                    Item::Chunk { wanted: Wanted { hash, offset, bag, key }, reply } => {
                        let proof = key.map(|key| key.proof(self.gate.me(), to));
                        let request = Request::Chunk { hash: *hash.as_bytes(), offset, bag: bag.0, proof, short: true };
                        (request, InFlight::Chunk { offset, reply })
                    }
                    Item::Grid(bytes) => (Request::Grid(bytes.clone()), InFlight::Grid(bytes)),
                };
                link.is_used(now);
                let id = self.swarm.behaviour_mut().requests.send_request(&peer, request);
                self.in_flight.insert(id, in_flight);
            }
            return;
        }
        if link.waiting.is_empty() || link.dialling.is_some() {
            return;
        }
        if let Some((until, address)) = &link.quiet
            && *until > now
            && *address == link.address
        {
            // Already reported when the dial failed.
            self.give_up(to);
            return;
        }
        match dialable(self.reach, &link.address) {
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

    /// Dials the addresses that the peer announced. False if there are none besides the contact's.
    fn dial_identified(&mut self, to: PeerId) -> bool {
        let contact = self.links.get(&to).and_then(|link| dialable(self.reach, &link.address).ok());
        let mut addresses = self.addresses.of(to).to_vec();
        addresses.retain(|address| Some(address) != contact.as_ref());
        let is_there = !addresses.is_empty();
        if is_there {
            self.dial(to, Route::Identified, addresses);
        }
        is_there
    }

    pub(super) fn bootstrap(&mut self, address: Multiaddr, reply: oneshot::Sender<Result<PeerId, DialError>>) {
        let (socket, peer) = match self.reach.check(&address) {
            Ok(checked) => checked,
            Err(error) => return answer(reply, Err(error.into())),
        };
        let target = reach::multiaddr(socket);
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

    /// Machines were announced on the local network.
    pub(super) fn on_found(&mut self, found: Vec<(libp2p::PeerId, Multiaddr)>) {
        for (peer, address) in found {
            if let Some(peer) = identity::from_libp2p(&peer)
                && let Ok((socket, _)) = self.reach.check(&address)
            {
                self.found.add(peer, reach::multiaddr(socket));
            }
        }
        self.dial_found();
    }

    /// Announcements have expired.
    pub(super) fn on_expired(&mut self, expired: Vec<(libp2p::PeerId, Multiaddr)>) {
        for (peer, address) in expired {
            if let Some(peer) = identity::from_libp2p(&peer)
                && let Ok((socket, _)) = self.reach.check(&address)
            {
                self.found.remove(peer, &reach::multiaddr(socket));
            }
        }
    }

    /// Dials some found machines; the handshake tells whether they are of this grid. A connected agent still dials one
    /// now and then, so that two halves of a grid merge.
    pub(super) fn dial_found(&mut self) {
        let now = Instant::now();
        let most = if self.connected().is_empty() { FOUND_DIALS_MAX } else { 1 };
        let links = &self.links;
        let can_be_dialled = |peer: &PeerId| {
            links.get(peer).is_none_or(|link| {
                let is_quiet = link.quiet.as_ref().is_some_and(|(until, _)| *until > now);
                !is_quiet && link.dialling.is_none() && link.connections.is_empty()
            })
        };
        for (peer, addresses) in self.found.next(most, can_be_dialled) {
            let link = self.links.entry(peer).or_default();
            link.found = true;
            link.address = addresses.first().map(ToString::to_string).unwrap_or_default().into();
            self.dial(peer, Route::Contact, addresses);
        }
    }

    pub(super) fn dial_failed(&mut self, to: PeerId, error: &SwarmDialError) {
        debug!(peer = ?to, %error, "dial failed");
        let link = self.links.entry(to).or_default();
        let route = link.dialling.take().map(|(_, route)| route);
        if !link.connections.is_empty() {
            // The peer has dialled us meanwhile.
            self.pump(to);
            return;
        }
        if route == Some(Route::Contact) && self.dial_identified(to) {
            return;
        }
        self.addresses.forget(to);
        let link = self.links.entry(to).or_default();
        let is_foreign = matches!(error, SwarmDialError::Transport(errors) if errors.iter().any(|(_, error)| {
            matches!(error, TransportError::Other(error) if turns_us_away(error))
        }));
        let quiet = if is_foreign { QUIET_OTHER_GRID } else { QUIET };
        link.quiet = Some((Instant::now() + quiet, link.address.clone()));
        self.lost(to);
        self.give_up(to);
    }

    /// Drops the items that wait for `to`.
    pub(super) fn give_up(&mut self, to: PeerId) {
        let waiting = self.links.get_mut(&to).map(|link| link.waiting.take()).unwrap_or_default();
        for item in waiting {
            self.fail(to, item);
        }
    }

    fn fail(&self, to: PeerId, item: Item) {
        match item {
            Item::Message(_) => Counters::add(&self.counters.dropped),
            // It is sent again at the next connection, or another administrator is asked.
            Item::Grid(_) => debug!(peer = ?to, "gossip did not get through"),
            Item::Chunk { reply, .. } => answer(reply, Err(ChunkError::Unreachable(to))),
        }
    }

    pub(super) fn on_reply(&mut self, from: PeerId, id: OutboundRequestId, reply: Reply) {
        let Some(in_flight) = self.landed(from, id) else { return };
        self.is_used_for(from, Duration::ZERO);
        match (in_flight, reply) {
            (InFlight::Message { share, .. }, Reply::Ack) => self.is_taken(from, share.kind),
            (InFlight::Message { share, .. }, Reply::Message(bytes)) if bytes.len() <= MESSAGE_BYTES_MAX => {
                self.is_taken(from, share.kind);
                // Without room it is lost like any other message: no answer was due.
                self.take_message(from, bytes);
            }
            (InFlight::Message { share, bytes }, Reply::Busy) if share.kind == Kind::Bag => {
                self.put_off(from, Outbound { bytes, share });
            }
            (InFlight::Message { .. }, Reply::Busy) => Counters::add(&self.counters.dropped),
            (InFlight::Message { .. }, Reply::Message(_) | Reply::Chunk { .. } | Reply::Missing | Reply::Grid(_)) => {
                Counters::add(&self.counters.dropped);
                self.complain(from, "answered a message with something else");
            }
            (InFlight::Grid(_), Reply::Grid(answer)) => {
                if let Some(link) = self.links.get_mut(&from) {
                    link.resends = 0;
                }
                if !answer.is_empty() {
                    self.on_renewal(answer);
                }
            }
            (InFlight::Grid(gossip), Reply::Busy) => {
                debug!(peer = ?from, "does not take word about the grid now");
                self.undelivered(from, gossip);
            }
            (InFlight::Grid(_), Reply::Ack | Reply::Message(_) | Reply::Chunk { .. } | Reply::Missing) => {
                self.complain(from, "answered word about the grid with something else");
            }
            (InFlight::Chunk { reply, .. }, Reply::Missing) => answer(reply, Ok(ChunkReply::Missing)),
            (InFlight::Chunk { reply, .. }, Reply::Busy) => answer(reply, Ok(ChunkReply::Busy)),
            (InFlight::Chunk { offset, reply }, Reply::Chunk { total, bytes }) if fits(offset, total, bytes.len()) => {
                answer(reply, Ok(ChunkReply::Chunk { total, bytes }));
            }
            (InFlight::Chunk { reply, .. }, Reply::Chunk { .. } | Reply::Ack | Reply::Message(_) | Reply::Grid(_)) => {
                answer(reply, Err(ChunkError::Protocol(from)));
                self.complain(from, "answered a request for a blob with something else");
            }
        }
        self.pump(from);
    }

    fn is_taken(&mut self, peer: PeerId, kind: Kind) {
        Counters::add(&self.counters.sent);
        if let Some(link) = self.links.get_mut(&peer).filter(|_| kind == Kind::Bag) {
            link.waiting.taken();
        }
    }

    /// A peer had no room for a message about a bag: queue it again for later.
    fn put_off(&mut self, peer: PeerId, message: Outbound) {
        let link = self.links.get_mut(&peer);
        match link.and_then(|link| link.waiting.put_off(message, Instant::now())) {
            Some(until) => drop(self.resting.insert((until, peer))),
            None => Counters::add(&self.counters.dropped),
        }
    }

    /// Sends the messages whose pause is over.
    pub(super) fn pump_rested(&mut self, now: Instant) {
        while let Some(&(until, peer)) = self.resting.first().filter(|(until, _)| *until <= now) {
            self.resting.remove(&(until, peer));
            self.pump(peer);
        }
    }

    /// Sends gossip, dialling first if needed and an address is known.
    pub(super) fn send_gossip(&mut self, to: PeerId, address: &str, gossip: Vec<u8>) {
        self.enqueue(to, address.into(), Item::Grid(gossip));
    }

    /// Keeps gossip that a peer did not accept: it may be a revocation.
    fn undelivered(&mut self, peer: PeerId, gossip: Vec<u8>) {
        if let Some(link) = self.links.get_mut(&peer)
            && link.undelivered.len() < UNDELIVERED_MAX
        {
            link.undelivered.push(gossip);
        }
    }

    /// Repeats gossip that was not accepted to peers that are still connected.
    pub(super) fn resend_gossip(&mut self) {
        let mut again = Vec::new();
        for (peer, link) in self.links.iter_mut().filter(|(_, link)| !link.undelivered.is_empty()) {
            let gossip = std::mem::take(&mut link.undelivered);
            if !link.connections.is_empty() && link.resends < RESENDS_MAX {
                link.resends += 1;
                again.extend(gossip.into_iter().map(|gossip| (*peer, gossip)));
            }
        }
        for (peer, gossip) in again {
            self.send_gossip(peer, "", gossip);
        }
    }

    /// Handles an administrator's answer to a request for renewal; writes a new certificate down.
    fn on_renewal(&self, answer: Vec<u8>) {
        let gate = self.gate.clone();
        tokio::task::spawn_blocking(move || gate.renewed(&answer));
    }

    pub(super) fn on_request_failed(
        &mut self,
        to: PeerId,
        peer: libp2p::PeerId,
        id: OutboundRequestId,
        error: &OutboundFailure,
    ) {
        debug!(peer = ?to, %error, "a request failed");
        match self.landed(to, id) {
            Some(InFlight::Message { .. }) => Counters::add(&self.counters.dropped),
            Some(InFlight::Chunk { reply, .. }) => answer(reply, Err(ChunkError::Unreachable(to))),
            Some(InFlight::Grid(gossip)) => self.undelivered(to, gossip),
            None => {}
        }
        self.lost(to);
        if lacks_protocol(error) {
            self.turn_away(to, peer);
        }
        self.pump(to);
    }

    /// Accepts a message if there is room for it.
    pub(super) fn take_message(&mut self, from: PeerId, bytes: Vec<u8>) -> bool {
        let has_room = self.pending.has_room_for(from, bytes.len());
        if has_room {
            Counters::add(&self.counters.received);
            self.pending.push(NetEvent::Received { from, bytes });
        } else {
            Counters::add(&self.counters.refused);
        }
        has_room
    }

    // ---- answers to others ----

    /// Answers a request of another agent.
    pub(super) fn respond(&mut self, channel: ResponseChannel<Reply>, reply: Reply) {
        if let Reply::Chunk { bytes, .. } = &reply {
            self.counters.blob_bytes_sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        if self.swarm.behaviour_mut().requests.send_response(channel, reply).is_err() {
            debug!("whoever asked is gone");
        }
    }

    /// Owes this peer an answer, which is sent with the next message to it, or in a moment.
    pub(super) fn owe(&mut self, to: PeerId, id: InboundRequestId, channel: ResponseChannel<Reply>) {
        if self.answers.is_draining() {
            return self.respond(channel, Reply::Ack);
        }
        if let Some(oldest) = self.answers.owe(to, id, channel) {
            self.respond(oldest, Reply::Ack);
        }
        self.pump(to);
    }

    /// Sends the answers that have waited long enough.
    pub(super) fn answer_due(&mut self, now: Instant) {
        while let Some(channel) = self.answers.take_due(now) {
            self.respond(channel, Reply::Ack);
        }
    }

    /// Sends all answers, and from now on each at once.
    pub(super) fn answer_all(&mut self) {
        for channel in self.answers.drain() {
            self.respond(channel, Reply::Ack);
        }
    }

    /// An answer was written.
    pub(super) fn answered(&mut self, id: InboundRequestId) {
        if self.answers.written(id) {
            Counters::add(&self.counters.sent);
        }
    }

    /// An answer was lost, perhaps with the message that it carried.
    pub(super) fn not_answered(&mut self, to: PeerId, id: InboundRequestId) {
        if self.answers.lost(id) {
            Counters::add(&self.counters.dropped);
            self.lost(to);
        }
    }

    fn landed(&mut self, peer: PeerId, id: OutboundRequestId) -> Option<InFlight> {
        let in_flight = self.in_flight.remove(&id)?;
        if let Some(link) = self.links.get_mut(&peer) {
            link.waiting.landed(in_flight.queue());
        }
        Some(in_flight)
    }
}

/// Whether a piece of a blob has a length that pieces may have, or ends the blob. A peer that sent single bytes would
/// occupy a place for each.
fn fits(offset: u64, total: u64, len: usize) -> bool {
    let rest = total.saturating_sub(offset);
    len <= CHUNK_BYTES_MAX && (len as u64 == rest || len >= PIECE_BYTES_MIN && (len as u64) < rest)
}

fn dialable(reach: Reach, address: &str) -> Result<Multiaddr, String> {
    let address: Multiaddr = address.parse().map_err(|_| format!("{address:?} is not a multiaddress"))?;
    let (socket, _) = reach.check(&address).map_err(|error| error.to_string())?;
    Ok(reach::multiaddr(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_must_fit_the_request() {
        let piece = CHUNK_BYTES_MAX as u64;
        assert!(fits(0, 0, 0) && fits(0, 5, 5) && fits(2, 5, 3) && fits(9, 5, 0) && fits(5, 5, 0));
        assert!(fits(0, u64::MAX, CHUNK_BYTES_MAX) && fits(piece, 2 * piece + 1, CHUNK_BYTES_MAX));
        assert!(!fits(0, 5, 0), "would never end");
        assert!(fits(0, piece, PIECE_BYTES_MIN) && !fits(0, piece, PIECE_BYTES_MIN - 1), "a slow line");
        assert!(!fits(2, 5, 1) && !fits(0, u64::MAX, 1), "byte by byte");
        assert!(!fits(2, 5, 4) && !fits(9, 5, 1) && !fits(0, u64::MAX, CHUNK_BYTES_MAX + 1));
    }
}
