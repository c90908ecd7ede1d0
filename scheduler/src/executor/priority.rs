//! Priorities: a submitter orders its own bags, and no other's bag is the later for it (ours; docs/adr/0048).
//!
//! A submitter's line (`submitters`) gives its bags deadlines r + S·w, the smallest bag first. With priorities the bags stand in a second
//! line, in which those of a higher priority come first, and the deadlines of the first line are given out anew: each bag gets that
//! of the first bag of the first line up to which there is as much work as up to the bag in the second line. So at no
//! moment is more of the submitter's work due than without priorities.
//!
//! Where a bag takes the place of others, it takes the latest release among those. A bag that keeps its own place keeps its
//! own release, but comes behind all bags of a higher priority.
//!
//! The second line has a memory as the first: bags that have ended keep their weight, and a bag that falls behind keeps the weight of what
//! it has finished, so that nobody gains by changing priorities to and fro.
//!
//! Left out: priorities without the rule of the line (`per_submitter = "off"`), where each bag is another submitter's.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use idlewood_overlay::PeerId;

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::BagId;

/// So much later is a bag due than one that has the same deadline and a higher priority, in seconds.
const BEHIND_S: f64 = 1e-6;

/// A bag in both lines of its submitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) priority: i32,
    /// r, in seconds.
    pub(super) release_s: f64,
    /// Its weight in the first line, in Mop.
    pub(super) by_size_mops: f64,
    /// Its weight in the line by priority, in Mop.
    pub(super) by_priority_mops: f64,
}

/// The releases, in seconds, and weights, in Mop, from which the deadlines of one submitter's bags are computed.
pub(super) fn turns(places: &[Place]) -> Vec<(f64, f64)> {
    let mut slots: Vec<usize> = (0..places.len()).collect();
    slots.sort_by(|&one, &other| places[one].by_size_mops.total_cmp(&places[other].by_size_mops));
    let latest: Vec<f64> = slots
        .iter()
        .scan(f64::NEG_INFINITY, |latest, &slot| {
            *latest = latest.max(places[slot].release_s);
            Some(*latest)
        })
        .collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&one, &other| {
        let (one, other) = (&places[one], &places[other]);
        other.priority.cmp(&one.priority).then(one.by_priority_mops.total_cmp(&other.by_priority_mops))
    });
    let mut turns = vec![(0.0, 0.0); places.len()];
    // Of all bags of a higher priority than the present one, and of those of the same.
    let (mut ahead_s, mut level_s, mut level) = (f64::NEG_INFINITY, f64::NEG_INFINITY, None);
    for bag in order {
        let place = &places[bag];
        if level != Some(place.priority) {
            (ahead_s, level) = (level_s, Some(place.priority));
        }
        let slot = slots.partition_point(|&slot| places[slot].by_size_mops < place.by_priority_mops);
        let (release_s, weight_mops) = match slots.get(slot) {
            Some(&own) if places[own].by_size_mops == place.by_size_mops => (place.release_s, place.by_size_mops),
            Some(&other) => (latest[slot], places[other].by_size_mops),
            None => (latest.last().copied().unwrap_or(place.release_s), place.by_priority_mops),
        };
        let release_s = release_s.max(ahead_s + BEHIND_S);
        level_s = level_s.max(release_s);
        turns[bag] = (release_s, weight_mops);
    }
    turns
}

impl HeldBag {
    /// The sort key of the line by priority.
    pub(super) fn turn_key(&self) -> (Reverse<i32>, f64, i64, BagId) {
        let (size, release, id) = self.line_key();
        (Reverse(self.priority), size, release, id)
    }

    /// The share of its size that is finished here, in Mop.
    fn finished_share_mops(&self) -> f64 {
        (self.bag.application_size_mops - self.open_mops()).max(0.0)
    }
}

impl Executor {
    /// Restores the priority of a bag from the record of its tasks.
    pub(crate) fn restore_priority(&mut self, bag: BagId, priority: i32) {
        if let Some(held) = self.bags.get_mut(&bag).filter(|_| priority != 0) {
            held.priority = priority;
            self.move_by_priority(bag);
        }
    }

    /// A bag has another priority: it takes its place in its submitter's line by priority anew.
    pub(super) fn move_by_priority(&mut self, moved: BagId) {
        let Some(held) = self.bags.get_mut(&moved).filter(|held| !held.bag.is_endless()) else { return };
        let (submitter, turn, size_mops) = (held.bag.submitter.peer, held.turn_key(), held.bag.application_size_mops);
        let finished_mops = held.finished_share_mops();
        let mut before = std::mem::take(&mut held.before_by_priority);
        let is_of_line = |held: &&mut HeldBag| {
            held.bag.id != moved && held.bag.submitter.peer == submitter && !held.bag.is_endless()
        };
        for held in self.bags.values_mut().filter(is_of_line) {
            if held.turn_key() < turn {
                before.set(held.bag.id, held.bag.application_size_mops);
                held.before_by_priority.set(moved, finished_mops);
            } else {
                before.set(held.bag.id, held.finished_share_mops());
                held.before_by_priority.set(moved, size_mops);
            }
        }
        if let Some(held) = self.bags.get_mut(&moved) {
            held.before_by_priority = before;
        }
    }

    /// The releases, in seconds, and weights, in Mop, of bags whose deadlines differ from those of their first line.
    pub(super) fn turns(&self) -> BTreeMap<BagId, (f64, f64)> {
        let differs = |held: &HeldBag| held.before.sum_mops() != held.before_by_priority.sum_mops();
        let mut lines: BTreeMap<PeerId, Vec<&HeldBag>> = BTreeMap::new();
        for held in self.finite().filter(|held| differs(held)) {
            lines.entry(held.bag.submitter.peer).or_default();
        }
        if lines.is_empty() {
            return BTreeMap::new();
        }
        for held in self.finite() {
            lines.entry(held.bag.submitter.peer).and_modify(|line| line.push(held));
        }
        let of_line = |line: &Vec<&HeldBag>| {
            let places: Vec<Place> = line.iter().map(|held| held.place()).collect();
            let bags = line.iter().map(|held| held.bag.id);
            bags.zip(turns(&places)).collect::<Vec<_>>()
        };
        lines.values().flat_map(of_line).collect()
    }
}

impl HeldBag {
    fn place(&self) -> Place {
        Place {
            priority: self.priority,
            release_s: self.released.as_secs_f64(),
            by_size_mops: self.size_mops(),
            by_priority_mops: self.size_behind(&self.before_by_priority),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bags of these sizes, releases and priorities as both lines have them, and their sizes.
    fn line(bags: &[(f64, f64, i32)]) -> Vec<(Place, f64)> {
        let sum = |order: &[usize], upto: usize| -> f64 { order[..=upto].iter().map(|&bag| bags[bag].0).sum() };
        let all: Vec<usize> = (0..bags.len()).collect();
        let (mut by_size, mut by_priority) = (all.clone(), all.clone());
        by_size.sort_by(|&one, &other| (bags[one].0, one).partial_cmp(&(bags[other].0, other)).unwrap());
        let key = |bag: usize| (-bags[bag].2, bags[bag].0, bag);
        by_priority.sort_by(|&one, &other| key(one).partial_cmp(&key(other)).unwrap());
        let at = |order: &[usize], bag: usize| sum(order, order.iter().position(|&other| other == bag).unwrap());
        let place = |bag: usize| Place {
            priority: bags[bag].2,
            release_s: bags[bag].1,
            by_size_mops: at(&by_size, bag),
            by_priority_mops: at(&by_priority, bag),
        };
        all.into_iter().map(|bag| (place(bag), bags[bag].0)).collect()
    }

    /// The work that is due by a moment at a stretch, in Mop.
    fn due_mops(turns: &[(f64, f64)], sizes: &[f64], stretch: f64, by_s: f64) -> f64 {
        let is_due = |(release_s, weight): &(f64, f64)| release_s + stretch * weight <= by_s;
        turns.iter().zip(sizes).filter(|(turn, _)| is_due(turn)).map(|(_, size)| size).sum()
    }

    #[test]
    fn a_later_bag_of_a_higher_priority_takes_the_place_of_an_earlier_one() {
        let (places, _): (Vec<Place>, Vec<f64>) = line(&[(100.0, 0.0, 0), (100.0, 5.0, 3)]).into_iter().unzip();
        assert_eq!(turns(&places), [(5.0, 200.0), (0.0, 100.0)]);
        // A larger one keeps its own place, and the earlier one comes behind it.
        let (places, _): (Vec<Place>, Vec<f64>) = line(&[(100.0, 0.0, 0), (200.0, 5.0, 3)]).into_iter().unzip();
        assert_eq!(turns(&places), [(5.0 + BEHIND_S, 300.0), (5.0, 300.0)]);
    }

    proptest! {
        /// Work of others that is due at any moment has no more of the submitter's ahead of it, at any stretch.
        #[test]
        fn no_priority_makes_more_work_due_than_none(
            bags in proptest::collection::vec((1_u32..40, 0_u32..100, -2_i32..3), 1..9),
            stretch in 0.0..4.0_f64,
        ) {
            let bags: Vec<(f64, f64, i32)> =
                bags.into_iter().map(|(size, release, priority)| (f64::from(size), f64::from(release), priority)).collect();
            let (places, sizes): (Vec<Place>, Vec<f64>) = line(&bags).into_iter().unzip();
            let without: Vec<(f64, f64)> = places.iter().map(|place| (place.release_s, place.by_size_mops)).collect();
            let with = turns(&places);
            for (release_s, weight) in with.iter().chain(&without) {
                let by_s = release_s + stretch * weight;
                let (less, more) = (due_mops(&with, &sizes, stretch, by_s), due_mops(&without, &sizes, stretch, by_s + 1e-9));
                prop_assert!(less <= more + 1e-9, "{less} of {more} due by {by_s}: {bags:?}, {with:?}");
            }
        }

        /// Bags of a higher priority are due first, and nothing changes where all are alike.
        #[test]
        fn the_higher_priority_is_due_first(
            bags in proptest::collection::vec((1_u32..40, 0_u32..100, -2_i32..3), 1..9),
            stretch in 0.0..4.0_f64,
        ) {
            let bags: Vec<(f64, f64, i32)> =
                bags.into_iter().map(|(size, release, priority)| (f64::from(size), f64::from(release), priority)).collect();
            let (places, _): (Vec<Place>, Vec<f64>) = line(&bags).into_iter().unzip();
            let with = turns(&places);
            for (one, (release_s, weight)) in places.iter().zip(&with) {
                for (other, (other_release_s, other_weight)) in places.iter().zip(&with) {
                    if one.priority > other.priority {
                        prop_assert!(release_s + stretch * weight < other_release_s + stretch * other_weight, "{bags:?}, {with:?}");
                    }
                }
            }
            let alike: Vec<(f64, f64, i32)> = bags.iter().map(|(size, release, _)| (*size, *release, 7)).collect();
            let (places, _): (Vec<Place>, Vec<f64>) = line(&alike).into_iter().unzip();
            let own: Vec<(f64, f64)> = places.iter().map(|place| (place.release_s, place.by_size_mops)).collect();
            prop_assert_eq!(turns(&places), own);
        }
    }
}
