//! Answers to messages, which carry messages for the waiting sender.
//!
//! A message is a request, and the tree's reaction would be another request in the other direction, with a stream of
//! its own. That is a fifth of the cost of an idle agent, so an answer waits a moment for a message to carry.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::PeerId;
use libp2p::request_response::{InboundRequestId, ResponseChannel};
use tokio::time::Instant;
use tracing::debug;

use super::event_loop::EventLoop;
use super::room::Share;
use super::wire::Reply;
use super::{Counters, Outbound};

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
}

impl EventLoop {
    /// Owes this peer an answer, which is sent with the next message to it, or in a moment.
    pub(super) fn owe(&mut self, to: PeerId, id: InboundRequestId, channel: ResponseChannel<Reply>) {
        if self.answers.is_draining {
            return self.respond(channel, Reply::Ack);
        }
        let due = Instant::now() + PATIENCE;
        if let Some(oldest) = self.answers.push(Owed { to, due, id, channel }) {
            self.respond(oldest.channel, Reply::Ack);
        }
        self.pump(to);
    }

    /// Sends the answers that have waited long enough.
    pub(super) fn answer_due(&mut self, now: Instant) {
        while self.answers.due().is_some_and(|due| due <= now)
            && let Some(owed) = self.answers.owed.pop_front()
        {
            self.respond(owed.channel, Reply::Ack);
        }
    }

    /// Sends all answers, and from now on each at once.
    pub(super) fn answer_all(&mut self) {
        self.answers.is_draining = true;
        for owed in std::mem::take(&mut self.answers.owed) {
            self.respond(owed.channel, Reply::Ack);
        }
    }

    /// Sends the tree's messages that wait for `to` with the answers owed to it.
    pub(super) fn answer_with_messages(&mut self, to: PeerId) {
        let Some(link) = self.links.get_mut(&to) else { return };
        while link.waiting.has_of_tree()
            && let Some(owed) = self.answers.take(to)
            && let Some(Outbound { bytes, share }) = link.waiting.next_of_tree()
        {
            match self.swarm.behaviour_mut().requests.send_response(owed.channel, Reply::Message(bytes)) {
                Ok(()) => {
                    self.answers.leaving.insert(owed.id, share);
                }
                // The peer no longer waits for the answer.
                Err(Reply::Message(bytes)) => link.waiting.put_back(Outbound { bytes, share }),
                Err(_) => {
                    debug!("an answer comes back as another");
                    Counters::add(&self.counters.dropped);
                }
            }
        }
    }

    /// An answer was written.
    pub(super) fn answered(&mut self, id: InboundRequestId) {
        if self.answers.leaving.remove(&id).is_some() {
            self.answers.left = Some(Instant::now());
            Counters::add(&self.counters.sent);
        }
    }

    /// An answer was lost, with the message that it carried.
    pub(super) fn not_answered(&mut self, to: PeerId, id: InboundRequestId) {
        if self.answers.leaving.remove(&id).is_some() {
            Counters::add(&self.counters.dropped);
            self.lost(to);
        }
    }
}
