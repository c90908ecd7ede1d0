//! Events that wait for the agent. Messages have a bound of their own, so that an agent that does not keep up refuses them.

use std::collections::VecDeque;

use idlewood_overlay::PeerId;
use tracing::warn;

use crate::event::NetEvent;
use crate::shares::Occupancy;

/// Messages that wait for the agent, beside those in the channel.
const RECEIVED_MAX: usize = 4096;

/// Bytes of messages that wait for the agent, beside those in the channel.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Events other than messages that may wait; more means that the agent is stuck.
const PENDING_EVENTS_MAX: usize = 2 * RECEIVED_MAX;

/// Events that wait for the agent.
pub(super) struct Pending {
    events: VecDeque<NetEvent>,
    /// Number of messages in `events`, by peer.
    occupancy: Occupancy,
}

impl Default for Pending {
    fn default() -> Self {
        Self { events: VecDeque::new(), occupancy: Occupancy::new(RECEIVED_MAX, RECEIVED_BYTES_MAX) }
    }
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether another message of this length from this peer may wait.
    pub(super) fn has_room_for(&self, from: PeerId, bytes: usize) -> bool {
        self.occupancy.has_room_for(from, bytes)
    }

    pub(super) fn push(&mut self, event: NetEvent) {
        if self.events.len() >= PENDING_EVENTS_MAX {
            warn!(?event, "the agent does not take its network events; one is lost");
            return;
        }
        if let NetEvent::Received { from, bytes } = &event {
            self.occupancy.add(*from, bytes.len());
        }
        self.events.push_back(event);
    }

    /// The oldest.
    pub(super) fn pop(&mut self) -> Option<NetEvent> {
        let event = self.events.pop_front()?;
        if let NetEvent::Received { from, bytes } = &event {
            self.occupancy.remove(*from, bytes.len());
        }
        Some(event)
    }
}
