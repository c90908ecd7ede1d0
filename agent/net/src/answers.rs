//! Answers to messages, which take along what is to be said to whoever waits for them.
//!
//! A message is a request, and what the tree says to it would be one more, the other way, with a stream of its own. That is a fifth of
//! what an agent with nothing to do costs, so an answer waits a moment for something to take along.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::PeerId;
use libp2p::request_response::{InboundRequestId, ResponseChannel};
use tokio::time::Instant;
use tracing::debug;

use super::room::Share;
use super::task::Task;
use super::wire::Reply;
use super::{Counters, Outbound};

/// How long an answer waits. Our choice: an agent says what it has to say to a message within a millisecond or two, and who sends
/// many messages in a row must not wait for long.
const PATIENCE: Duration = Duration::from_millis(10);

/// A message that left with an answer is written, and not known to be there. Nobody leaves sooner than so long after the last.
const UNDERWAY: Duration = Duration::from_millis(100);

/// Answers that wait, altogether and to one peer; the oldest leaves alone where there are more. Our choice: who gets many messages in
/// a row has nothing to say to most of them.
const WAITING_MAX: usize = 64;
const WAITING_PER_PEER_MAX: usize = 4;

/// An answer that somebody waits for.
pub(super) struct Owed {
    to: PeerId,
    due: Instant,
    id: InboundRequestId,
    channel: ResponseChannel<Reply>,
}

/// What is owed to others for their messages.
#[derive(Default)]
pub(super) struct Answers {
    /// The oldest first.
    owed: VecDeque<Owed>,
    /// Messages that leave with an answer: their shares of the room.
    leaving: HashMap<InboundRequestId, Share>,
    /// When the last of them was written.
    left: Option<Instant>,
    /// This agent leaves: answers wait no more.
    is_draining: bool,
}

impl Answers {
    /// When the next one leaves alone.
    pub(super) fn due(&self) -> Option<Instant> {
        self.owed.front().map(|owed| owed.due)
    }

    /// Until when messages may be on their way that nobody acknowledges.
    pub(super) fn underway_until(&self, now: Instant) -> Instant {
        let is_leaving = !self.leaving.is_empty();
        let left = if is_leaving { Some(now) } else { self.left };
        left.map_or(now, |left| left + UNDERWAY)
    }

    /// The oldest to this peer.
    fn take(&mut self, to: PeerId) -> Option<Owed> {
        let place = self.owed.iter().position(|owed| owed.to == to)?;
        self.owed.remove(place)
    }

    /// One more waits; the one that has to leave for it.
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

impl Task {
    /// A message of this peer was taken: it is answered with the next message to it, or in a moment.
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

    /// Answers what has waited long enough.
    pub(super) fn answer_due(&mut self, now: Instant) {
        while self.answers.due().is_some_and(|due| due <= now)
            && let Some(owed) = self.answers.owed.pop_front()
        {
            self.respond(owed.channel, Reply::Ack);
        }
    }

    /// Answers everything that waits, and from now on at once.
    pub(super) fn answer_all(&mut self) {
        self.answers.is_draining = true;
        for owed in std::mem::take(&mut self.answers.owed) {
            self.respond(owed.channel, Reply::Ack);
        }
    }

    /// Sends messages of the tree that wait for `to` with the answers that it waits for.
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
                // Whoever asked has gone away since.
                Err(Reply::Message(bytes)) => link.waiting.put_back(Outbound { bytes, share }),
                Err(_) => {
                    debug!("an answer comes back as another");
                    Counters::add(&self.counters.dropped);
                }
            }
        }
    }

    /// An answer has left.
    pub(super) fn answered(&mut self, id: InboundRequestId) {
        if self.answers.leaving.remove(&id).is_some() {
            self.answers.left = Some(Instant::now());
            Counters::add(&self.counters.sent);
        }
    }

    /// An answer did not get through, and with it what it took along.
    pub(super) fn not_answered(&mut self, to: PeerId, id: InboundRequestId) {
        if self.answers.leaving.remove(&id).is_some() {
            Counters::add(&self.counters.dropped);
            self.lost(to);
        }
    }
}
