//! Answering requests of other agents: messages are queued, pieces of blobs are read on blocking threads and sent, a few at a
//! time ([`idlewood_machine::serving`] says whose, and how many).

use std::collections::HashMap;
use std::sync::Arc;

use idlewood_blobs::{Blobs, Claim, Hash};
use idlewood_machine::downloads::REQUEST_TIMEOUT;
use idlewood_machine::serving::{Serving as Turns, Turn};
use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::BagId;
use idlewood_trust::identity;
use libp2p::request_response::{InboundRequestId, ResponseChannel};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::counters::Counters;
use crate::outbound::Outgoing;
use crate::rate::Rates;
use crate::wire::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, Reply, Request, Traffic};

/// Gossip that is heard at one time: it may have to be written down.
const HEARING_MAX: usize = 8;

/// A request for a piece of a blob.
struct Wanted {
    from: PeerId,
    hash: Hash,
    offset: u64,
    claim: Claim,
    /// Whether the peer takes a shorter piece than the longest.
    short: bool,
    id: InboundRequestId,
    channel: ResponseChannel<Reply>,
}

/// An answer that is ready, and of which request of whom it is where that is one for a piece.
type Served = (ResponseChannel<Reply>, Reply, Option<(PeerId, InboundRequestId)>);

/// A piece that is leaving.
struct Leaving {
    to: PeerId,
    bytes: usize,
    since: Instant,
    /// Waits until the sockets have taken it.
    waits: AbortHandle,
}

/// Requests for pieces of blobs.
pub(super) struct Serving {
    /// Under way; each ends with an answer and its channel.
    pub(super) reading: JoinSet<Served>,
    /// Pieces that are leaving: each ends when it has left, or will not.
    pub(super) departing: JoinSet<(InboundRequestId, bool)>,
    waiting: Turns<Wanted>,
    leaving: HashMap<InboundRequestId, Leaving>,
    began: Instant,
    rates: Arc<Rates>,
    blobs: Arc<Blobs>,
    traffic: Arc<Traffic>,
}

impl Serving {
    pub(super) fn new(rates: Arc<Rates>, blobs: Arc<Blobs>, traffic: Arc<Traffic>) -> Self {
        let (reading, departing) = (JoinSet::new(), JoinSet::new());
        let (waiting, leaving) = (Turns::default(), HashMap::new());
        Self { reading, departing, waiting, leaving, began: Instant::now(), rates, blobs, traffic }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// Another agent asks for something, or says something.
    pub(super) fn on_request(
        &mut self,
        outgoing: &mut Outgoing,
        from: PeerId,
        id: InboundRequestId,
        request: Request,
        channel: ResponseChannel<Reply>,
    ) {
        if !outgoing.allows(from) {
            Counters::add(&outgoing.counters.refused);
            return outgoing.respond(channel, Reply::Busy);
        }
        match request {
            Request::Message(bytes) if bytes.len() <= MESSAGE_BYTES_MAX => {
                if outgoing.take_message(from, bytes) {
                    outgoing.owe(from, id, channel);
                } else {
                    outgoing.respond(channel, Reply::Busy);
                }
            }
            Request::Message(_) => {
                outgoing.complain(from, "sent a message that is too long");
                outgoing.respond(channel, Reply::Busy);
            }
            Request::Grid(bytes) => self.hear(outgoing, from, bytes, channel),
            Request::Chunk { hash, offset, bag, proof, short } => {
                let (hash, claim) = (hash.into(), Claim { bag: BagId(bag), proof });
                match self.waiting.ask(self.now(), from, Wanted { from, hash, offset, claim, short, id, channel }) {
                    Ok(()) => self.serve(outgoing),
                    Err(Wanted { channel, .. }) => {
                        Counters::add(&outgoing.counters.refused);
                        outgoing.respond(channel, Reply::Busy);
                    }
                }
            }
        }
    }

    /// Gossip may have to be written down before it is answered.
    fn hear(&mut self, outgoing: &mut Outgoing, from: PeerId, bytes: Vec<u8>, channel: ResponseChannel<Reply>) {
        if self.reading.len() >= HEARING_MAX {
            return outgoing.respond(channel, Reply::Busy);
        }
        let (gate, counters) = (outgoing.gate.clone(), outgoing.counters.clone());
        self.reading.spawn(async move {
            let heard = tokio::task::spawn_blocking(move || gate.hear(from, &bytes)).await;
            let reply = match heard {
                Ok(Ok(answer)) => Reply::Grid(answer),
                Ok(Err(error)) => {
                    debug!(?from, %error, "what a peer says about the grid is refused");
                    Counters::add(&counters.errors);
                    Reply::Busy
                }
                Err(error) => {
                    warn!(%error, "what a peer says about the grid could not be heard");
                    Reply::Busy
                }
            };
            (channel, reply, None)
        });
    }

    /// Answers those whose turn it is, and those that have waited for too long.
    pub(super) fn serve(&mut self, outgoing: &mut Outgoing) {
        while let Some(turn) = self.waiting.next(self.now()) {
            let Wanted { from, hash, offset, claim, short, id, channel } = match turn {
                Turn::Serve(wanted) => wanted,
                Turn::TooLate(Wanted { channel, .. }) => {
                    Counters::add(&outgoing.counters.refused);
                    outgoing.respond(channel, Reply::Busy);
                    continue;
                }
            };
            if !channel.is_open() {
                self.waiting.ended(self.now(), from, None);
                continue;
            }
            if !self.blobs.may_read(outgoing.gate.me(), from, hash, claim) {
                debug!(?from, %hash, bag = %claim.bag, "a blob that is not for whoever asks");
                outgoing.respond(channel, Reply::Missing);
                self.waiting.ended(self.now(), from, None);
                continue;
            }
            let bytes_max = if short { self.waiting.piece_bytes(from) } else { CHUNK_BYTES_MAX };
            let (blobs, rates) = (self.blobs.clone(), self.rates.clone());
            let read = move || match blobs.read_chunk(hash, offset, bytes_max) {
                Ok(Some(chunk)) => Reply::Chunk { total: chunk.total, bytes: chunk.bytes },
                Ok(None) => Reply::Missing,
                Err(error) => {
                    // The blob is here, and may be readable the next time.
                    warn!(%error, "a blob could not be served");
                    Reply::Busy
                }
            };
            self.reading.spawn(async move {
                let reply = tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
                    warn!(%error, "serving a blob failed");
                    Reply::Missing
                });
                (channel, within_cap(&rates, reply).await, Some((from, id)))
            });
        }
    }

    /// What was read, or heard, is answered, and more is read.
    pub(super) fn on_served(&mut self, outgoing: &mut Outgoing, served: Result<Served, JoinError>) {
        match served {
            Ok((channel, reply, piece)) => {
                let bytes = match &reply {
                    Reply::Chunk { bytes, .. } if channel.is_open() => Some(bytes.len()),
                    _ => None,
                };
                match (piece, bytes) {
                    (Some((from, id)), Some(bytes)) => self.begins_to_leave(from, id, bytes),
                    (Some((from, _)), None) => self.waiting.ended(self.now(), from, None),
                    (None, _) => {}
                }
                outgoing.respond(channel, reply);
            }
            Err(error) => {
                // Only while the process ends.
                warn!(%error, "serving a blob failed");
            }
        }
        self.serve(outgoing);
    }

    /// A piece of so many bytes is given to its connection, which it leaves when the sockets have taken it and the pieces before it.
    fn begins_to_leave(&mut self, to: PeerId, id: InboundRequestId, bytes: usize) {
        let peer = identity::to_libp2p(to);
        let Some(announced) = self.traffic.meters.announce(peer, bytes as u64) else {
            return self.waiting.ended(self.now(), to, None);
        };
        let traffic = self.traffic.clone();
        let waits = self.departing.spawn(async move {
            let left = tokio::time::timeout(REQUEST_TIMEOUT, traffic.meters.have_taken(peer, announced)).await;
            (id, left.unwrap_or(false))
        });
        self.leaving.insert(id, Leaving { to, bytes, since: Instant::now(), waits });
    }

    /// A piece has left.
    pub(super) fn on_departed(
        &mut self,
        outgoing: &mut Outgoing,
        departed: Result<(InboundRequestId, bool), JoinError>,
    ) {
        // Aborted ones have ended already.
        if let Ok((id, is_taken)) = departed {
            self.on_ended(outgoing, id, is_taken);
        }
    }

    /// A piece has left, or will not: another may. Ignored for answers that are not pieces.
    pub(super) fn on_ended(&mut self, outgoing: &mut Outgoing, id: InboundRequestId, is_taken: bool) {
        let Some(Leaving { to, bytes, since, waits }) = self.leaving.remove(&id) else { return };
        waits.abort();
        if !is_taken {
            self.traffic.meters.withdraw(identity::to_libp2p(to));
        }
        debug!(?to, bytes, is_taken, took = ?since.elapsed(), "a piece has left, or will not");
        self.waiting.ended(self.now(), to, Some((if is_taken { bytes } else { 0 }, since.elapsed())));
        self.serve(outgoing);
    }
}

/// Delays a piece until the owner's cap lets it pass; if that would take too long, the peer is told to ask again.
async fn within_cap(rates: &Rates, reply: Reply) -> Reply {
    let Reply::Chunk { bytes, .. } = &reply else { return reply };
    let Some(wait) = rates.upload.book(bytes.len()) else { return Reply::Busy };
    tokio::time::sleep(wait).await;
    reply
}
