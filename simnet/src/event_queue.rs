//! What is to happen, in one global order that does not depend on who computed it.
//!
//! Two events are ordered by time, then by the machine that they happen to, then by the machine that caused them,
//! then by how many that machine had caused before. No two events have the same [`Key`], so the order is total, and
//! it is the same whether one thread or many fill the queue.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use idlewood_overlay::Time;

/// Number of a machine, from 0.
pub type HostIndex = u32;

/// Place of an event in the order of all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// When it happens, since the start of the simulation.
    pub at: Time,
    /// To whom.
    pub target: HostIndex,
    /// Who caused it.
    pub source: HostIndex,
    /// How many events the source had caused before.
    pub sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    key: Key,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The earliest is the greatest: a heap yields its greatest entry.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

/// Events to come, the earliest first.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new() }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event.
    pub fn push(&mut self, key: Key, event: E) {
        self.heap.push(Entry { key, event });
    }

    /// Takes the earliest event out.
    pub fn pop(&mut self) -> Option<(Key, E)> {
        self.heap.pop().map(|entry| (entry.key, entry.event))
    }

    /// Number of events to come.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is to happen any more.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_does_not_depend_on_the_order_of_insertion(
            keys in prop::collection::btree_set((0i64..5, 0u32..3, 0u32..3, 0u64..50), 0..60),
            swaps in prop::collection::vec((0usize..60, 0usize..60), 0..60),
        ) {
            let sorted: Vec<_> = keys.into_iter().collect();
            let mut shuffled = sorted.clone();
            for (one, other) in swaps {
                if one < shuffled.len() && other < shuffled.len() {
                    shuffled.swap(one, other);
                }
            }
            let mut queue = EventQueue::default();
            for (at, target, source, sequence) in shuffled {
                queue.push(Key { at: Time::from_micros(at), target, source, sequence }, (at, target, source, sequence));
            }
            let popped: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
            prop_assert_eq!(popped, sorted);
        }
    }
}
