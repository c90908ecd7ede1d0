//! Room for outgoing messages. A message without room is refused, and its sender told when there is room again.
//!
//! Messages of the tree and messages about bags have separate room: a submitter that is slow to accept results must not
//! break the tree. A peer may use as much as is still free beside it, so that none uses all ([`Occupancy`]).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idlewood_overlay::PeerId;
use tokio::sync::Notify;

use super::shares::Occupancy;
use super::wire::MESSAGE_BYTES_MAX;

/// Outgoing messages of each kind, over all peers, and their bytes. Our choice: one peer alone may have 2,048 messages
/// about bags, or 12 MiB, some two hundred of the longest usual ones.
const MESSAGES_MAX: usize = 4096;
const BAG_BYTES_MAX: usize = 24 << 20;
const TREE_BYTES_MAX: usize = 8 << 20;
/// The least that a message counts.
const LEAST_BYTES: usize = 64;

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The tree: repeated by the overlay, and of no use when late.
    Tree,
    /// Bags and their tasks.
    Bag,
}

/// The room of one agent.
#[derive(Debug)]
pub(super) struct Room {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    tree: Occupancy,
    bags: Occupancy,
    /// Peers for which a message about a bag was refused.
    refused: BTreeSet<PeerId>,
    /// Peers of `refused` that have room again, not yet reported.
    freed: BTreeSet<PeerId>,
}

impl State {
    fn of(&mut self, kind: Kind) -> &mut Occupancy {
        match kind {
            Kind::Tree => &mut self.tree,
            Kind::Bag => &mut self.bags,
        }
    }
}

/// A message's share of the room, released when dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    peer: PeerId,
    pub(super) kind: Kind,
    bytes: usize,
}

impl Room {
    pub(super) fn new() -> Arc<Self> {
        let state = State {
            tree: Occupancy::new(MESSAGES_MAX, TREE_BYTES_MAX),
            bags: Occupancy::new(MESSAGES_MAX, BAG_BYTES_MAX),
            refused: BTreeSet::new(),
            freed: BTreeSet::new(),
        };
        Arc::new(Self { state: Mutex::new(state), freed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a message of this length. Without room for one about a bag, [`Room::freed`] reports when there is.
    pub(super) fn take(self: &Arc<Self>, peer: PeerId, kind: Kind, bytes: usize) -> Option<Share> {
        let bytes = bytes.max(LEAST_BYTES);
        let mut state = self.state();
        if state.of(kind).has_room_for(peer, bytes) {
            state.of(kind).add(peer, bytes);
            return Some(Share { room: self.clone(), peer, kind, bytes });
        }
        if kind == Kind::Bag {
            state.refused.insert(peer);
        }
        None
    }

    /// Waits for peers that have room again after a refusal: all of their messages have gone, and others leave room for
    /// the longest message.
    pub(super) async fn freed(&self) -> BTreeSet<PeerId> {
        loop {
            let freed = std::mem::take(&mut self.state().freed);
            if !freed.is_empty() {
                return freed;
            }
            self.freed.notified().await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.room.state();
        state.of(self.kind).remove(self.peer, self.bytes);
        let State { bags, refused, freed, .. } = &mut *state;
        let is_free = |peer: &PeerId| !bags.has(*peer) && bags.has_room_for(*peer, MESSAGE_BYTES_MAX);
        let before = freed.len();
        freed.extend(refused.extract_if(.., |peer| is_free(peer)));
        if freed.len() > before {
            self.room.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId([number; 32])
    }

    fn fill(room: &Arc<Room>, number: u8, kind: Kind, bytes: usize) -> Vec<Share> {
        std::iter::from_fn(|| room.take(peer(number), kind, bytes)).collect()
    }

    /// The peers reported as having room again.
    fn freed(room: &Room) -> Vec<PeerId> {
        let mut waiting = Box::pin(room.freed());
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(peers) => peers.into_iter().collect(),
            Poll::Pending => Vec::new(),
        }
    }

    #[test]
    fn a_refused_peer_is_reported_once_its_messages_have_gone() {
        let room = Room::new();
        let mut slow = fill(&room, 1, Kind::Bag, 1);
        assert_eq!(slow.len(), MESSAGES_MAX / 2);
        let other = fill(&room, 2, Kind::Bag, 40_000);
        assert!(other.len() > 100 && other.len() < MESSAGES_MAX / 4);
        let tree = room.take(peer(1), Kind::Tree, 100);
        assert!(tree.is_some(), "the tree has room of its own");
        assert_eq!(freed(&room), []);
        slow.truncate(1);
        assert_eq!(freed(&room), [], "some of it is still on its way");
        drop(slow);
        assert_eq!(freed(&room), [peer(1)]);
        assert_eq!(freed(&room), [], "it is told once");
        drop(other);
        assert_eq!(freed(&room), [peer(2)]);
    }

    /// A peer without messages is refused while others use all room, and reported when they do not.
    #[test]
    fn a_peer_refused_for_others_is_reported_once_they_leave_room() {
        let room = Room::new();
        let mut others: Vec<Vec<Share>> = (1..8).map(|number| fill(&room, number, Kind::Bag, 200_000)).collect();
        assert!(room.take(peer(9), Kind::Bag, 250_000).is_none());
        others.iter_mut().skip(1).for_each(|shares| shares.truncate(1));
        assert_eq!(freed(&room), [peer(9)]);
        drop(others);
        assert_eq!(freed(&room).len(), 7);
    }
}
