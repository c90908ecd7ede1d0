//! What this agent answers to others: messages are queued, pieces of blobs are read on blocking threads, a few at a
//! time.

use std::collections::VecDeque;

use idlewood_overlay::PeerId;
use libp2p::request_response::ResponseChannel;
use tokio::task::{JoinError, JoinSet};
use tracing::{debug, warn};

use super::task::Task;
use super::wire::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, Reply, Request};
use super::{Counters, NetEvent};

/// Chunks read from disk at one time.
const READING_MAX: usize = 4;

/// Requests for chunks that wait for their turn.
const WAITING_MAX: usize = 64;

/// A request for a piece of a blob.
struct Wanted {
    hash: [u8; 32],
    offset: u64,
    channel: ResponseChannel<Reply>,
}

/// Pieces of blobs that others asked for.
#[derive(Default)]
pub(super) struct Serving {
    /// Under way; each ends in an answer and where it goes.
    pub(super) reading: JoinSet<(ResponseChannel<Reply>, Reply)>,
    waiting: VecDeque<Wanted>,
}

impl Task {
    pub(super) fn on_request(&mut self, from: PeerId, request: Request, channel: ResponseChannel<Reply>) {
        match request {
            Request::Message(bytes) if bytes.len() <= MESSAGE_BYTES_MAX => {
                if self.has_room_for(bytes.len()) {
                    Counters::add(&self.counters.received);
                    self.emit(NetEvent::Received { from, bytes });
                    self.respond(channel, Reply::Ack);
                } else {
                    Counters::add(&self.counters.refused);
                    self.respond(channel, Reply::Busy);
                }
            }
            Request::Message(_) => {
                self.complain(from, "sent a message that is too long");
                self.respond(channel, Reply::Busy);
            }
            Request::Chunk { hash, offset } => {
                if self.serving.waiting.len() >= WAITING_MAX {
                    self.respond(channel, Reply::Busy);
                } else {
                    self.serving.waiting.push_back(Wanted { hash, offset, channel });
                    self.serve();
                }
            }
        }
    }

    fn serve(&mut self) {
        while self.serving.reading.len() < READING_MAX
            && let Some(Wanted { hash, offset, channel }) = self.serving.waiting.pop_front()
        {
            let blobs = self.blobs.clone();
            self.serving.reading.spawn_blocking(move || {
                let reply = match blobs.read_chunk(hash.into(), offset, CHUNK_BYTES_MAX) {
                    Ok(Some(chunk)) => Reply::Chunk { total: chunk.total, bytes: chunk.bytes },
                    Ok(None) => Reply::Missing,
                    Err(error) => {
                        warn!(%error, "a blob could not be served");
                        Reply::Missing
                    }
                };
                (channel, reply)
            });
        }
    }

    pub(super) fn on_served(&mut self, served: Result<(ResponseChannel<Reply>, Reply), JoinError>) {
        match served {
            Ok((channel, reply)) => self.respond(channel, reply),
            Err(error) => warn!(%error, "serving a blob failed"),
        }
        self.serve();
    }

    fn respond(&mut self, channel: ResponseChannel<Reply>, reply: Reply) {
        if self.swarm.behaviour_mut().requests.send_response(channel, reply).is_err() {
            debug!("whoever asked is gone");
        }
    }
}
