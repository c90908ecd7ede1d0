//! The bags of one machine, and when each has something to do next, so that nobody looks through all of them for that: a
//! machine may hold a hundred, and most events concern one.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_overlay::Time;

use super::held::Held;
use crate::bag::BagId;

/// Bags by id. Whoever may change a bag has it looked at anew.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// In boxes: a node of the map has room for eleven, and most machines hold few.
    bags: BTreeMap<BagId, Box<Held>>,
    /// When each has something to do, as of the last [`Self::look`].
    due: BTreeSet<(Time, BagId)>,
    /// May have changed since.
    touched: Vec<BagId>,
}

impl Shelf {
    pub(super) fn len(&self) -> usize {
        self.bags.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bags.is_empty()
    }

    pub(super) fn contains_key(&self, bag: &BagId) -> bool {
        self.bags.contains_key(bag)
    }

    pub(super) fn get(&self, bag: &BagId) -> Option<&Held> {
        self.bags.get(bag).map(|held| &**held)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&BagId, &Held)> {
        self.bags.iter().map(|(bag, held)| (bag, &**held))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Held> {
        self.bags.values().map(|held| &**held)
    }

    pub(super) fn get_mut(&mut self, bag: &BagId) -> Option<&mut Held> {
        let held = self.bags.get_mut(bag)?;
        self.touched.push(*bag);
        Some(held)
    }

    pub(super) fn get_or_insert_with(&mut self, bag: BagId, new: impl FnOnce() -> Held) -> &mut Held {
        self.touched.push(bag);
        self.bags.entry(bag).or_insert_with(|| Box::new(new()))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.touched.clear();
        self.touched.extend(self.bags.keys());
        self.bags.values_mut().map(|held| &mut **held)
    }

    pub(super) fn remove(&mut self, bag: &BagId) {
        if let Some(due) = self.bags.remove(bag).and_then(|held| held.due) {
            self.due.remove(&(due, *bag));
        }
    }

    /// Looks at what may have changed: from now on [`Self::due`] knows of it.
    pub(super) fn look(&mut self, now: Time) {
        for bag in self.touched.drain(..) {
            let Some(held) = self.bags.get_mut(&bag) else { continue };
            let due = Some(held.next_due(now));
            let before = std::mem::replace(&mut held.due, due);
            if before == due {
                continue;
            }
            before.map(|before| self.due.remove(&(before, bag)));
            self.due.extend(due.map(|due| (due, bag)));
        }
    }

    /// Whether every bag is due when it says itself, as it is after [`Self::look`].
    pub(super) fn is_up_to_date(&self, now: Time) -> bool {
        let says = |held: &Held| held.due == Some(held.next_due(now)) || held.due.is_some_and(|due| due <= now);
        self.due.len() == self.bags.len() && self.bags.values().all(|held| says(held))
    }

    /// Bags that have something to do, and when, the first first.
    pub(super) fn due(&self) -> impl Iterator<Item = (Time, BagId)> {
        self.due.iter().copied()
    }
}
