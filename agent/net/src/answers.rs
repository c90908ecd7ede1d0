//! Answers to messages, which carry messages for the waiting sender.
//!
//! A message is a request, and the tree's reaction would be another request in the other direction, with a stream of
//! its own. That is a fifth of the cost of an idle agent, so an answer waits a moment for a message to carry.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::PeerId;
use libp2p::request_response::{self, InboundRequestId, ResponseChannel};
use tokio::time::Instant;
use tracing::debug;

use crate::command::Outbound;
use crate::counters::Counters;
use crate::room::Share;
use crate::waiting::Waiting;
use crate::wire::{Codec, Reply};

/// How long an answer waits. Our choice: an agent reacts to a message within a millisecond or two, and a sender of many
/// messages in a row must not wait for long.
const PATIENCE: Duration = Duration::from_millis(10);

/// A message carried by an answer is not acknowledged. A shutdown waits so long after the last one was written.
const UNDERWAY: Duration = Duration::from_millis(100);

/// Answers that wait, in all and for one peer; beyond that the oldest is sent without a message. Our choice: most of
/// many messages in a row cause no reaction.
const WAITING_MAX: usize = 64;
const WAITING_PER_PEER_MAX: usize = 4;

/// An answer for which a peer waits.
pub(super) struct Owed {
    to: PeerId,
    due: Instant,
    id: InboundRequestId,
    channel: ResponseChannel<Reply>,
}

/// The answers owed to other peers.
#[derive(Default)]
pub(super) struct Answers {
    /// The oldest first.
    owed: VecDeque<Owed>,
    /// Messages carried by answers under way: their shares of the room.
    leaving: HashMap<InboundRequestId, Share>,
    /// When the last of them was written.
    left: Option<Instant>,
    /// The agent is shutting down: answers are sent at once.
    is_draining: bool,
}

impl Answers {
    /// Whether each answer is to be sent at once.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// When the next answer is to be sent without a message.
    pub(super) fn due(&self) -> Option<Instant> {
        self.owed.front().map(|owed| owed.due)
    }

    /// Until when unacknowledged messages may be under way.
    pub(super) fn underway_until(&self, now: Instant) -> Instant {
        let is_leaving = !self.leaving.is_empty();
        let left = if is_leaving { Some(now) } else { self.left };
        left.map_or(now, |left| left + UNDERWAY)
    }

    /// The oldest answer owed to this peer.
    fn take(&mut self, to: PeerId) -> Option<Owed> {
        let place = self.owed.iter().position(|owed| owed.to == to)?;
        self.owed.remove(place)
    }

    /// Adds an answer; returns the one displaced by it.
    fn push(&mut self, owed: Owed) -> Option<Owed> {
        let to = owed.to;
        self.owed.push_back(owed);
        if self.owed.iter().filter(|owed| owed.to == to).count() > WAITING_PER_PEER_MAX {
            self.take(to)
        } else if self.owed.len() > WAITING_MAX {
            self.owed.pop_front()
        } else {
            None
        }
    }

    /// Owes this peer an answer. The answer that is to be sent at once, without a message, since too many wait.
    pub(super) fn owe(
        &mut self,
        to: PeerId,
        id: InboundRequestId,
        channel: ResponseChannel<Reply>,
    ) -> Option<ResponseChannel<Reply>> {
        let due = Instant::now() + PATIENCE;
        self.push(Owed { to, due, id, channel }).map(|oldest| oldest.channel)
    }

    /// The next answer that has waited long enough.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<ResponseChannel<Reply>> {
        let owed = self.owed.pop_front_if(|owed| owed.due <= now)?;
        Some(owed.channel)
    }

    /// All answers; from now on each is to be sent at once.
    pub(super) fn drain(&mut self) -> Vec<ResponseChannel<Reply>> {
        self.is_draining = true;
        self.owed.drain(..).map(|owed| owed.channel).collect()
    }

    /// Sends the tree's messages that wait for `to` with the answers owed to it.
    pub(super) fn carry(
        &mut self,
        to: PeerId,
        waiting: &mut Waiting,
        requests: &mut request_response::Behaviour<Codec>,
        counters: &Counters,
    ) {
        while waiting.has_of_tree()
            && let Some(owed) = self.take(to)
            && let Some(Outbound { bytes, share }) = waiting.next_of_tree()
        {
            match requests.send_response(owed.channel, Reply::Message(bytes)) {
                Ok(()) => {
                    self.leaving.insert(owed.id, share);
                }
                // The peer no longer waits for the answer.
                Err(Reply::Message(bytes)) => waiting.put_back(Outbound { bytes, share }),
                Err(_) => {
                    debug!("an answer comes back as another");
                    Counters::add(&counters.dropped);
                }
            }
        }
    }

    /// An answer was written. Whether it carried a message.
    pub(super) fn written(&mut self, id: InboundRequestId) -> bool {
        let carried = self.leaving.remove(&id).is_some();
        if carried {
            self.left = Some(Instant::now());
        }
        carried
    }

    /// An answer was lost. Whether a message was lost with it.
    pub(super) fn lost(&mut self, id: InboundRequestId) -> bool {
        self.leaving.remove(&id).is_some()
    }
}
