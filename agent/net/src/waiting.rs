//! Outgoing items for one peer: gossip, messages of the tree, messages about bags, and requests for pieces of blobs,
//! each in a queue of its own. None waits behind another kind: results that a submitter is slow to accept delay neither
//! the tree nor the outputs that it asks for.
//!
//! A message about a bag for which the peer has no room returns to its queue, ahead of others, and is sent again soon.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::bounds::IN_FLIGHT_MAX;
use crate::command::{Item, Outbound};
use crate::room::Kind;

/// Gossip, and requests for pieces, that wait for one peer. Messages have their bound in [`super::room`].
const GRID_MAX: usize = 256;
const PIECES_MAX: usize = 64;

/// Messages about bags, and pieces, that may be under way to one peer: the rest of [`IN_FLIGHT_MAX`] is for the tree
/// and gossip.
const BAGS_IN_FLIGHT_MAX: usize = 20;
const PIECES_IN_FLIGHT_MAX: usize = 8;

/// Pause after the peer had no room: as long as that has lasted, within these bounds.
const REST_MIN: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(1);
/// How long a peer may have no room before messages to it are lost. Our choice: longer than a slow disk takes, and half
/// a lease.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// The kinds of items, each with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Grid,
    Tree,
    Bags,
    Pieces,
}

impl Queue {
    /// In order of precedence.
    const ALL: [Self; 4] = [Self::Grid, Self::Tree, Self::Bags, Self::Pieces];

    pub(super) fn of(item: &Item) -> Self {
        match item {
            Item::Grid(_) => Self::Grid,
            Item::Message(Outbound { share, .. }) => Self::of_message(share.kind),
            Item::Chunk { .. } => Self::Pieces,
        }
    }

    pub(super) fn of_message(kind: Kind) -> Self {
        match kind {
            Kind::Tree => Self::Tree,
            Kind::Bag => Self::Bags,
        }
    }

    fn waiting_max(self) -> usize {
        match self {
            Self::Grid => GRID_MAX,
            Self::Tree | Self::Bags => usize::MAX,
            Self::Pieces => PIECES_MAX,
        }
    }

    fn in_flight_max(self) -> usize {
        match self {
            Self::Grid | Self::Tree => IN_FLIGHT_MAX,
            Self::Bags => BAGS_IN_FLIGHT_MAX,
            Self::Pieces => PIECES_IN_FLIGHT_MAX,
        }
    }
}

/// Items waiting for one peer, and numbers of those under way.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: [VecDeque<Item>; 4],
    in_flight: [usize; 4],
    /// Since when the peer has had no room, and until when it is not tried again.
    busy_since: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// Whether nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.iter().all(|&count| count == 0)
    }

    /// Queues an item.
    ///
    /// # Errors
    /// The item, if there is no room for it.
    pub(super) fn push(&mut self, item: Item) -> Result<(), Item> {
        let queue = Queue::of(&item);
        let waiting = &mut self.queues[queue as usize];
        if waiting.len() >= queue.waiting_max() {
            return Err(item);
        }
        waiting.push_back(item);
        Ok(())
    }

    /// The next item that may be sent now; it counts as under way until [`Waiting::landed`].
    pub(super) fn next(&mut self, now: Instant) -> Option<Item> {
        let rests = self.rests_until.is_some_and(|until| until > now);
        for queue in Queue::ALL.into_iter().filter(|queue| !(rests && *queue == Queue::Bags)) {
            let is_free = self.in_flight[queue as usize] < queue.in_flight_max()
                && self.in_flight.iter().sum::<usize>() < IN_FLIGHT_MAX;
            if is_free && let Some(item) = self.queues[queue as usize].pop_front() {
                self.in_flight[queue as usize] += 1;
                return Some(item);
            }
        }
        None
    }

    /// An item of this kind is no longer under way.
    pub(super) fn landed(&mut self, queue: Queue) {
        self.in_flight[queue as usize] -= 1;
    }

    /// The peer accepted a message about a bag.
    pub(super) fn taken(&mut self) {
        self.busy_since = None;
    }

    /// The peer had no room for this message about a bag. Returns when to try again; `None`: never, the message is
    /// lost.
    pub(super) fn put_off(&mut self, message: Outbound, now: Instant) -> Option<Instant> {
        let busy_for = now - *self.busy_since.get_or_insert(now);
        if busy_for > BUSY_MAX {
            return None;
        }
        self.queues[Queue::Bags as usize].push_front(Item::Message(message));
        // Several may be under way when it has no room.
        let until = self.rests_until.filter(|until| *until > now);
        let until = until.unwrap_or_else(|| now + busy_for.clamp(REST_MIN, REST_MAX));
        self.rests_until = Some(until);
        Some(until)
    }

    /// The next message of the tree, for an answer to carry. An answer never carries one about a bag: the peer could
    /// not refuse it for lack of room.
    pub(super) fn next_of_tree(&mut self) -> Option<Outbound> {
        match self.queues[Queue::Tree as usize].pop_front()? {
            Item::Message(message) => Some(message),
            Item::Grid(_) | Item::Chunk { .. } => None,
        }
    }

    /// Whether a message of the tree waits.
    pub(super) fn has_of_tree(&self) -> bool {
        !self.queues[Queue::Tree as usize].is_empty()
    }

    /// Returns a message that was not sent.
    pub(super) fn put_back(&mut self, message: Outbound) {
        self.queues[Queue::Tree as usize].push_front(Item::Message(message));
    }

    /// Removes all waiting items.
    pub(super) fn take(&mut self) -> Vec<Item> {
        self.queues.iter_mut().flat_map(std::mem::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::PeerId;
    use idlewood_scheduler::BagId;
    use tokio::sync::oneshot;

    use super::*;
    use crate::chunk::Wanted;
    use crate::room::Room;

    fn message(kind: Kind) -> Item {
        let share = Room::new().take(PeerId([1; 32]), kind, 1).expect("it is empty");
        Item::Message(Outbound { bytes: vec![0], share })
    }

    fn piece() -> Item {
        let wanted = Wanted { hash: [0; 32].into(), offset: 0, bag: BagId([0; 32]), key: None };
        Item::Chunk { wanted, reply: oneshot::channel().0 }
    }

    fn left(waiting: &mut Waiting, now: Instant) -> Vec<Queue> {
        std::iter::from_fn(|| waiting.next(now)).map(|item| Queue::of(&item)).collect()
    }

    #[test]
    fn no_kind_waits_behind_another() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        (0..5000).for_each(|_| waiting.push(message(Kind::Bag)).expect("its bound is elsewhere"));
        assert_eq!((0..100).filter(|_| waiting.push(piece()).is_ok()).count(), PIECES_MAX);
        let all = left(&mut waiting, now);
        assert_eq!(all, [vec![Queue::Bags; BAGS_IN_FLIGHT_MAX], vec![Queue::Pieces; PIECES_IN_FLIGHT_MAX]].concat());
        waiting.push(message(Kind::Tree)).expect("there is room");
        waiting.push(Item::Grid(vec![])).expect("there is room");
        assert_eq!(left(&mut waiting, now), [Queue::Grid, Queue::Tree], "there is always a place for them");
        waiting.landed(Queue::Pieces);
        waiting.landed(Queue::Bags);
        assert_eq!(left(&mut waiting, now), [Queue::Bags, Queue::Pieces]);
        assert!(!waiting.is_quiet() && !waiting.is_empty());
        waiting.push(message(Kind::Tree)).expect("there is room");
        let first = waiting.next_of_tree().expect("there is one");
        assert!(waiting.next_of_tree().is_none());
        waiting.put_back(first);
        assert_eq!(left(&mut waiting, now), [Queue::Tree]);
        assert_eq!(waiting.take().len(), 5000 - BAGS_IN_FLIGHT_MAX - 1 + PIECES_MAX - PIECES_IN_FLIGHT_MAX - 1);
    }

    #[test]
    fn a_message_refused_for_room_is_sent_again_soon_and_not_for_ever() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        (0..40).for_each(|_| waiting.push(message(Kind::Bag)).expect("its bound is elsewhere"));
        let under_way = |waiting: &mut Waiting, now| -> Vec<Outbound> {
            let next = std::iter::from_fn(|| waiting.next(now));
            next.filter_map(|item| if let Item::Message(message) = item { Some(message) } else { None }).collect()
        };
        let mut now = start;
        let mut lost = 0;
        let mut tries = 0;
        while !waiting.is_empty() || !waiting.is_quiet() {
            let mut next = None;
            for message in under_way(&mut waiting, now) {
                waiting.landed(Queue::Bags);
                match waiting.put_off(message, now) {
                    Some(until) => next = Some(until),
                    None => lost += 1,
                }
            }
            tries += 1;
            let Some(next) = next else { continue };
            waiting.push(message(Kind::Tree)).expect("there is room");
            assert_eq!(left(&mut waiting, now), [Queue::Tree], "nothing else rests");
            waiting.landed(Queue::Tree);
            assert!(under_way(&mut waiting, next - Duration::from_millis(1)).is_empty());
            now = next;
        }
        assert!(lost == 40 && now > start + BUSY_MAX && tries < 50, "{lost} in {tries} tries");
        waiting.taken();
        waiting.push(message(Kind::Bag)).expect("its bound is elsewhere");
        let again = under_way(&mut waiting, now).pop().expect("it rests no more");
        assert!(waiting.put_off(again, now).is_some(), "it took one since");
    }
}
