//! A submitter's bags on one machine are one application (ours; the paper knows no submitters; docs/adr/0017).
//!
//! Were each bag's deadline computed from its own size, a bag split into k pieces would have k early deadlines. So the bags
//! of a submitter on this machine stand in a *line* ([`PerSubmitter::Line`]), the smallest first, and each bag's deadline
//! is computed from its own size and those of the bags before it in the line: the last is due when the whole would be, and
//! a small bag does not wait for a large one of the same user.
//!
//! This machine does not know the submitter's bags on other machines, but its own bags estimate them: a bag of n tasks is on
//! each of N machines with probability n/N where n < N, and on all of them else, so that the sum of the *effective* sizes
//! a·max(n, N) of the bags here is, in the mean over machines, the sum of n·a over all bags. The bag itself, which is here for
//! certain, counts with n·a, and never for less than its own effective size.
//!
//! When a bag of the line ends, the bags behind it keep its size: else they would be overdue. A bag that was here before
//! a new one counts for the new one with the share that is not finished here, so that a user who submits one bag after the
//! other loses nothing. A bag that leaves this machine and comes again counts once for those that stay (`bags_before`).
//!
//! Left out: asking the submitter, who could claim anything; bags that ended before a restart of this machine; users who submit
//! under several identities.

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::BagId;
use crate::config::PerSubmitter;

impl HeldBag {
    /// The sort key of the line: size, then release time.
    pub(super) fn line_key(&self) -> (f64, i64, BagId) {
        (self.bag.application_size_mops, self.released.as_micros(), self.bag.id)
    }

    /// The unfinished share of its size, judged by its tasks here, in Mop.
    pub(super) fn open_mops(&self) -> f64 {
        let open = self.unfinished().len() as f64;
        let all = open + self.finished_tasks as f64;
        if all > 0.0 { self.bag.application_size_mops * open / all } else { 0.0 }
    }
}

impl Executor {
    /// A bag that is here has another size than it seemed to have: it takes its place in its submitter's line anew. Bags that have
    /// ended still count for it.
    pub(super) fn move_in_line(&mut self, bag: BagId) {
        let here: Vec<BagId> = self.bags.iter().map(|(&bag, _)| bag).collect();
        for held in self.bags.values_mut() {
            if held.bag.id == bag {
                here.iter().for_each(|other| held.before.forget(*other));
                here.iter().for_each(|other| held.before_by_priority.forget(*other));
            } else {
                held.before.forget(bag);
                held.before_by_priority.forget(bag);
            }
        }
        self.insert_in_line(bag);
    }

    /// A bag is new here: it takes its place in its submitter's line.
    pub(super) fn insert_in_line(&mut self, new: BagId) {
        if self.per_submitter == PerSubmitter::Off || self.bags.get(&new).is_some_and(|held| held.bag.is_endless()) {
            return;
        }
        let Some(held) = self.bags.get_mut(&new) else { return };
        let (submitter, size_mops) = (held.bag.submitter.peer, held.bag.application_size_mops);
        let (key, turn) = (held.line_key(), held.turn_key());
        let (mut before, mut by_priority) =
            (std::mem::take(&mut held.before), std::mem::take(&mut held.before_by_priority));
        let is_of_line =
            |held: &&mut HeldBag| held.bag.id != new && held.bag.submitter.peer == submitter && !held.bag.is_endless();
        for held in self.bags.values_mut().filter(is_of_line) {
            if held.line_key() < key {
                before.count(held.bag.id, held.open_mops());
            } else {
                held.before.count(new, size_mops);
            }
            if held.turn_key() < turn {
                by_priority.count(held.bag.id, held.open_mops());
            } else {
                held.before_by_priority.count(new, size_mops);
            }
        }
        if let Some(held) = self.bags.get_mut(&new) {
            (held.before, held.before_by_priority) = (before, by_priority);
        }
    }
}
