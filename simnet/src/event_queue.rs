//! Pending events, in one global order that does not depend on the number of threads.
//!
//! Two events are ordered by time, then by the machine that they happen to, then by the machine that caused them, then
//! by how many that machine had caused before. No two events have the same [`Key`], so the order is total, and the same
//! whether one thread or many fill the queue.
//!
//! The queue is a hierarchical timing wheel (Varghese and Lauck 1987). Level 0 has slots of [`GRAIN_US`]
//! microseconds; a slot of each further level spans all the slots of the level below. An event waits in the level at
//! which its time first differs from the present one, and moves down when its slot is reached; the slot of level 0
//! that is reached is sorted. So an event costs a few moves and its share of a small sort, however many are pending,
//! where a heap sifts through all of memory. The room of a slot that was emptied goes to the next slot of its level that
//! is used: in the steady state nothing is allocated, and there is no more room than slots that were in use at a time.
//!
//! Events are never removed before their turn: a machine ignores those that no longer concern it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use idlewood_overlay::Time;

/// Number of a machine, from 0.
pub type HostIndex = u32;

/// Bits of a time in microseconds that a slot of level 0 does not tell apart.
const GRAIN_BITS: u32 = 10;
/// Microseconds that a slot of level 0 spans. Our choice: in `benches/event_queue` it makes little difference between
/// 2⁵ and 2¹², and this one was among the fastest at every length.
pub const GRAIN_US: i64 = 1 << GRAIN_BITS;
/// Slots of a level, as bits: one word has a bit for each slot in use.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Covers every time.
const LEVELS: usize = (64 - GRAIN_BITS).div_ceil(LEVEL_BITS) as usize;

/// Place of an event in the order of all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// When it happens, since the start of the simulation.
    pub at: Time,
    /// The machine that it happens to.
    pub target: HostIndex,
    /// The machine that caused it.
    pub source: HostIndex,
    /// How many events the source had caused before.
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug)]
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
    /// Reversed: a heap yields its greatest entry, and a sorted list is taken from its end.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

/// Slots of one span each, and a word that tells which of them are in use.
#[derive(Clone, Debug)]
struct Level<E> {
    used: u64,
    slots: [Vec<Entry<E>>; SLOTS],
    /// Memory of emptied slots, for reuse.
    spare: Vec<Vec<Entry<E>>>,
}

/// Pending events, the earliest first. Events should be small: they are moved a few times.
#[derive(Clone, Debug)]
pub struct EventQueue<E> {
    levels: [Level<E>; LEVELS],
    /// The slot of level 0 that was reached, as a count of grains; all events before it have been taken.
    reached: u64,
    /// Events of that slot, the earliest last.
    current: Vec<Entry<E>>,
    /// Events added to it, or before it, since.
    late: BinaryHeap<Entry<E>>,
    len: usize,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        let level = || Level { used: 0, slots: std::array::from_fn(|_| Vec::new()), spare: Vec::new() };
        Self {
            levels: std::array::from_fn(|_| level()),
            reached: 0,
            current: Vec::new(),
            late: BinaryHeap::new(),
            len: 0,
        }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event.
    pub fn push(&mut self, key: Key, event: E) {
        self.len += 1;
        let entry = Entry { key, event };
        if grain(key.at) <= self.reached {
            self.late.push(entry);
        } else {
            self.put(entry);
        }
    }

    /// Puts an event at the level where its time first differs from the one that was reached.
    fn put(&mut self, entry: Entry<E>) {
        let grain = grain(entry.key.at);
        let level = (grain ^ self.reached).ilog2() / LEVEL_BITS;
        let slot = (grain >> (level * LEVEL_BITS)) as usize % SLOTS;
        let level = &mut self.levels[level as usize];
        if level.used & 1 << slot == 0
            && let Some(room) = level.spare.pop()
        {
            level.slots[slot] = room;
        }
        level.used |= 1 << slot;
        level.slots[slot].push(entry);
    }

    /// Takes the earliest event.
    pub fn pop(&mut self) -> Option<(Key, E)> {
        self.pop_until(Time::MAX)
    }

    /// Takes the earliest event unless it is later than `until`.
    pub fn pop_until(&mut self, until: Time) -> Option<(Key, E)> {
        if self.current.is_empty() && self.late.is_empty() {
            self.advance(grain(until));
        }
        let is_late = match (self.current.last(), self.late.peek()) {
            (Some(current), Some(late)) => late > current,
            (None, late) => late.is_some(),
            (Some(_), None) => false,
        };
        let entry = if is_late {
            self.late.peek().filter(|entry| entry.key.at <= until)?;
            self.late.pop()
        } else {
            self.current.pop_if(|entry| entry.key.at <= until)
        }?;
        self.len -= 1;
        Some((entry.key, entry.event))
    }

    /// Moves on to the next slot of level 0 in use, but not beyond `until`, so that events added meanwhile find their
    /// slot.
    fn advance(&mut self, until: u64) {
        while let Some(level) = self.levels.iter().position(|level| level.used != 0) {
            let slot = self.levels[level].used.trailing_zeros();
            // The lower digits are zero: the slot's first grain.
            let shift = level as u32 * LEVEL_BITS;
            let above = self.reached.checked_shr(shift + LEVEL_BITS).unwrap_or(0);
            let first = above.checked_shl(shift + LEVEL_BITS).unwrap_or(0) | u64::from(slot) << shift;
            if first > until {
                return;
            }
            self.reached = first;
            self.levels[level].used &= !(1 << slot);
            if level == 0 {
                let entries = std::mem::take(&mut self.levels[0].slots[slot as usize]);
                self.levels[0].spare.push(std::mem::replace(&mut self.current, entries));
                self.current.sort_unstable();
                return;
            }
            let mut entries = std::mem::take(&mut self.levels[level].slots[slot as usize]);
            for entry in entries.drain(..) {
                if grain(entry.key.at) == self.reached {
                    self.current.push(entry);
                } else {
                    self.put(entry);
                }
            }
            self.levels[level].spare.push(entries);
            if !self.current.is_empty() {
                self.current.sort_unstable();
                return;
            }
        }
    }

    /// Number of pending events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no event is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The slot of level 0 of a time, ordered also for times before zero.
fn grain(at: Time) -> u64 {
    (at.as_micros() as u64 ^ 1 << 63) >> GRAIN_BITS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key((at, target, source, sequence): (i64, u32, u32, u64)) -> Key {
        Key { at: Time::from_micros(at), target, source, sequence }
    }

    /// Times close together, in neighbouring slots, and on all levels.
    fn time() -> impl Strategy<Value = i64> {
        prop_oneof![0..5i64, 0..3 * GRAIN_US, 0..100_000_000i64, (0..63u32).prop_map(|bit| 1 << bit), Just(i64::MAX)]
    }

    proptest! {
        #[test]
        fn the_order_does_not_depend_on_the_order_of_insertion(
            keys in prop::collection::btree_set((time(), 0u32..3, 0u32..3, 0u64..50), 0..60),
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
            for parts in shuffled {
                queue.push(key(parts), parts);
            }
            prop_assert_eq!(queue.len(), sorted.len());
            let popped: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
            prop_assert_eq!(popped, sorted);
        }

        /// Against a sorted list: events added while others are taken, also into the slot that was reached and before
        /// it, and limits that end in the middle of a slot.
        #[test]
        fn additions_between_takings_keep_the_order(
            rounds in prop::collection::vec(
                (prop::collection::vec((time(), 0u32..3, 0u32..3), 0..8), 0..6usize, time()),
                0..40,
            ),
        ) {
            let mut queue = EventQueue::default();
            let mut list = std::collections::BTreeSet::new();
            let mut sequence = 0;
            let mut now = 0i64;
            for (added, taken, limit) in rounds {
                for (after, target, source) in added {
                    sequence += 1;
                    let parts = (now.saturating_add(after), target, source, sequence);
                    queue.push(key(parts), parts);
                    list.insert(parts);
                }
                let until = now.saturating_add(limit);
                for _ in 0..taken {
                    let expected = list.first().filter(|parts| parts.0 <= until).copied();
                    prop_assert_eq!(queue.pop_until(Time::from_micros(until)).map(|(_, event)| event), expected);
                    let Some(parts) = expected else { break };
                    list.remove(&parts);
                    now = now.max(parts.0 - 3);
                }
                prop_assert_eq!(queue.len(), list.len());
            }
            let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
            prop_assert_eq!(rest, list.into_iter().collect::<Vec<_>>());
            prop_assert!(queue.is_empty());
        }
    }
}
