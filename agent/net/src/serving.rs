//! Answering requests of other agents: messages are queued, pieces of blobs are read on blocking threads, a few at a
//! time.

use std::sync::Arc;
use std::time::Duration;

use idlewood_blobs::{Blobs, Claim, Hash};
use idlewood_overlay::PeerId;
use idlewood_scheduler::BagId;
use libp2p::request_response::{InboundRequestId, ResponseChannel};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::bounds::IN_FLIGHT_MAX;
use crate::counters::Counters;
use crate::outbound::Outgoing;
use crate::rate::{Allowance, Rates};
use crate::shares::Turns;
use crate::wire::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, Reply, Request};

/// Chunks read from disk at one time.
const READING_MAX: usize = 4;

/// Requests for chunks that wait: of one peer, as many as it may have under way; and of how many peers.
const WAITING_PER_PEER_MAX: usize = IN_FLIGHT_MAX;
const WAITING_PEERS_MAX: usize = 64;

/// A request that has waited so long is answered as busy, and the peer asks again: the other side allows a request ten
/// seconds, and a later piece would waste the owner's cap.
const TURN_MAX: Duration = Duration::from_secs(4);

/// A request for a piece of a blob.
struct Wanted {
    from: PeerId,
    hash: Hash,
    offset: u64,
    claim: Claim,
    came: Instant,
    channel: ResponseChannel<Reply>,
}

/// Requests for pieces of blobs.
pub(super) struct Serving {
    /// Under way; each ends with an answer and its channel.
    pub(super) reading: JoinSet<(ResponseChannel<Reply>, Reply)>,
    waiting: Turns<Wanted>,
    rates: Arc<Rates>,
    blobs: Arc<Blobs>,
}

impl Serving {
    pub(super) fn new(rates: Arc<Rates>, blobs: Arc<Blobs>) -> Self {
        Self { reading: JoinSet::new(), waiting: Turns::new(WAITING_PER_PEER_MAX, WAITING_PEERS_MAX), rates, blobs }
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
        let now = Instant::now();
        let link = outgoing.links.entry(from).or_default();
        if !link.allowance.get_or_insert_with(|| Allowance::new(now)).take(now) {
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
            Request::Chunk { hash, offset, bag, proof } => {
                let (hash, claim) = (hash.into(), Claim { bag: BagId(bag), proof });
                match self.waiting.push(from, Wanted { from, hash, offset, claim, came: now, channel }) {
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
        if self.reading.len() >= 2 * READING_MAX {
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
            (channel, reply)
        });
    }

    fn serve(&mut self, outgoing: &mut Outgoing) {
        while self.reading.len() < READING_MAX
            && let Some(Wanted { from, hash, offset, claim, came, channel }) = self.waiting.pop()
        {
            if !channel.is_open() {
                continue;
            }
            if came.elapsed() >= TURN_MAX {
                Counters::add(&outgoing.counters.refused);
                outgoing.respond(channel, Reply::Busy);
                continue;
            }
            if !self.blobs.may_read(outgoing.gate.me(), from, hash, claim) {
                debug!(?from, %hash, bag = %claim.bag, "a blob that is not for whoever asks");
                outgoing.respond(channel, Reply::Missing);
                continue;
            }
            let (blobs, rates) = (self.blobs.clone(), self.rates.clone());
            let read = move || match blobs.read_chunk(hash, offset, CHUNK_BYTES_MAX) {
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
                (channel, within_cap(&rates, reply).await)
            });
        }
    }

    /// What was read, or heard, is answered, and more is read.
    pub(super) fn on_served(
        &mut self,
        outgoing: &mut Outgoing,
        served: Result<(ResponseChannel<Reply>, Reply), JoinError>,
    ) {
        match served {
            Ok((channel, reply)) => outgoing.respond(channel, reply),
            Err(error) => warn!(%error, "serving a blob failed"),
        }
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
