//! The bags of one machine, and an index of when each needs attention next: a machine may hold a hundred bags, and most events
//! concern one.

use std::collections::{BTreeMap, BTreeSet};

use idlewood_overlay::Time;

use super::held_bag::HeldBag;
use crate::bag::BagId;

/// Bags by id. Every mutable access marks a bag, and [`Self::look`] reads the due time of marked bags anew.
#[derive(Debug, Default)]
pub(super) struct HeldBags {
    /// In boxes: a node of the map has room for eleven, and most machines hold few.
    bags: BTreeMap<BagId, Box<HeldBag>>,
    /// [`HeldBag::next_due`] of each, as of the last [`Self::look`].
    due: BTreeSet<(Time, BagId)>,
    /// Bags that may have changed since.
    touched: Vec<BagId>,
}

impl HeldBags {
    pub(super) fn len(&self) -> usize {
        self.bags.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bags.is_empty()
    }

    pub(super) fn contains_key(&self, bag: &BagId) -> bool {
        self.bags.contains_key(bag)
    }

    pub(super) fn get(&self, bag: &BagId) -> Option<&HeldBag> {
        self.bags.get(bag).map(|held| &**held)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&BagId, &HeldBag)> {
        self.bags.iter().map(|(bag, held)| (bag, &**held))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &HeldBag> {
        self.bags.values().map(|held| &**held)
    }

    pub(super) fn get_mut(&mut self, bag: &BagId) -> Option<&mut HeldBag> {
        let held = self.bags.get_mut(bag)?;
        self.touched.push(*bag);
        Some(held)
    }

    pub(super) fn get_or_insert_with(&mut self, bag: BagId, new: impl FnOnce() -> HeldBag) -> &mut HeldBag {
        self.touched.push(bag);
        self.bags.entry(bag).or_insert_with(|| Box::new(new()))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut HeldBag> {
        self.touched.clear();
        self.touched.extend(self.bags.keys());
        self.bags.values_mut().map(|held| &mut **held)
    }

    pub(super) fn remove(&mut self, bag: &BagId) {
        if let Some(due) = self.bags.remove(bag).and_then(|held| held.due) {
            self.due.remove(&(due, *bag));
        }
    }

    /// Brings the index up to date for all bags that may have changed.
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

    /// Whether the index is right for every bag that has not changed since the last [`Self::look`].
    pub(super) fn is_up_to_date(&self, now: Time) -> bool {
        let is_right = |held: &HeldBag| held.due == Some(held.next_due(now)) || held.due.is_some_and(|due| due <= now);
        let is_touched = |bag: &BagId| self.touched.contains(bag);
        let mut unchanged = self.bags.iter().filter(|(bag, _)| !is_touched(bag));
        let is_known = self.bags.iter().all(|(bag, held)| held.due.is_some() || is_touched(bag));
        is_known && unchanged.all(|(_, held)| is_right(held))
    }

    /// Bags by when they need attention, the earliest first.
    pub(super) fn due(&self) -> impl Iterator<Item = (Time, BagId)> {
        self.due.iter().copied()
    }
}
