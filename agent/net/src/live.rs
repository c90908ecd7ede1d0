//! What running tasks have written so far: the machine that submitted their bag asks the machines that run them, again and again while
//! somebody follows.
//!
//! Questions of others go to the agent, which alone knows what runs here and who may know it. Few are under way at a time; the rest, and
//! those that the agent does not answer, are refused by closing the stream, and are asked again.

use std::collections::HashMap;

use idlewood_overlay::{Contact, PeerId};
use idlewood_trust::identity;
use libp2p::request_response::{self, OutboundFailure, OutboundRequestId, ResponseChannel};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tracing::debug;

use crate::causes::lacks_protocol;
use crate::command::answer;
use crate::counters::Counters;
use crate::live_codec::{LiveAsk, LiveError, LiveTold, TIMEOUT};
use crate::outbound::Outgoing;

/// Questions of others that wait for their answers, from all machines.
const ANSWERING_MAX: usize = 32;

/// A question of another machine.
#[derive(Debug)]
pub struct LiveQuestion {
    /// Who asks; the transport vouches for it.
    pub from: PeerId,
    /// What is asked.
    pub ask: LiveAsk,
    /// For the answer. Dropped without one, the asker asks again later.
    pub reply: oneshot::Sender<LiveTold>,
}

/// An answer on its way; none: the question is refused.
pub(super) type Answered = (ResponseChannel<LiveTold>, Option<LiveTold>);

/// Questions under way.
pub(super) struct Live {
    asked: HashMap<OutboundRequestId, oneshot::Sender<Result<LiveTold, LiveError>>>,
    /// Each ends with an answer and its channel.
    pub(super) answering: JoinSet<Answered>,
    questions: mpsc::Sender<LiveQuestion>,
}

impl Live {
    /// Gives questions of others to the agent.
    pub(super) fn new(questions: mpsc::Sender<LiveQuestion>) -> Self {
        Self { asked: HashMap::new(), answering: JoinSet::new(), questions }
    }

    /// Asks a machine.
    pub(super) fn ask(
        &mut self,
        to: &Contact,
        ask: LiveAsk,
        reply: oneshot::Sender<Result<LiveTold, LiveError>>,
        outgoing: &mut Outgoing,
    ) {
        let addresses = outgoing.address_of(to).into_iter().collect();
        outgoing.is_used_for(to.peer, TIMEOUT);
        let live = &mut outgoing.swarm.behaviour_mut().live;
        let id = live.send_request_with_addresses(&identity::to_libp2p(to.peer), ask, addresses);
        self.asked.insert(id, reply);
    }

    pub(super) fn on_event(&mut self, event: request_response::Event<LiveAsk, LiveTold>, outgoing: &mut Outgoing) {
        use request_response::{Event, Message};
        match event {
            Event::Message { peer, message: Message::Request { request, channel, .. }, .. } => {
                if let Some(from) = identity::from_libp2p(&peer) {
                    self.take(from, request, channel, outgoing);
                }
            }
            Event::Message { message: Message::Response { request_id, response }, .. } => {
                self.told(request_id, Ok(response));
            }
            Event::OutboundFailure { request_id, error, .. } => {
                let error = match error {
                    error if lacks_protocol(&error) => LiveError::Older,
                    OutboundFailure::DialFailure | OutboundFailure::Timeout => LiveError::Unreachable,
                    _ => LiveError::Busy,
                };
                self.told(request_id, Err(error));
            }
            Event::InboundFailure { peer, error, .. } => debug!(%peer, %error, "does not hear what its tasks write"),
            Event::ResponseSent { .. } => {}
        }
    }

    fn told(&mut self, id: OutboundRequestId, told: Result<LiveTold, LiveError>) {
        if let Some(reply) = self.asked.remove(&id) {
            answer(reply, told);
        }
    }

    /// Another machine asks. Without an answer the channel is dropped, which closes the stream.
    fn take(&mut self, from: PeerId, ask: LiveAsk, channel: ResponseChannel<LiveTold>, outgoing: &mut Outgoing) {
        if !outgoing.allows(from) || !ask.is_bounded() || self.answering.len() >= ANSWERING_MAX {
            Counters::add(&outgoing.counters.refused);
            return;
        }
        outgoing.is_used_for(from, TIMEOUT);
        let (reply, told) = oneshot::channel();
        if self.questions.try_send(LiveQuestion { from, ask, reply }).is_err() {
            Counters::add(&outgoing.counters.refused);
            return;
        }
        self.answering.spawn(async move { (channel, told.await.ok()) });
    }

    /// The agent has answered a question of another machine.
    pub(super) fn on_answered(&mut self, answered: Result<Answered, JoinError>, outgoing: &mut Outgoing) {
        match answered {
            Ok((channel, Some(told))) => {
                if outgoing.swarm.behaviour_mut().live.send_response(channel, told).is_err() {
                    debug!("whoever asked what tasks write is gone");
                }
            }
            Ok((_, None)) => Counters::add(&outgoing.counters.refused),
            // Only while the process ends.
            Err(error) => debug!(%error, "a question about running tasks is not answered"),
        }
    }
}
