//! Redistribution, on the executor's side: when it asks for work, and what it gives to one that does.
//!
//! A machine that has nothing to do gets its share of everything that has not begun. One that has work but a smaller
//! stretch gets of the bags up to the bottleneck only, those that decide the stretch here, and as many whole tasks as bring both
//! stretches together: a bag is done when the slowest of those that hold it is.
//!
//! What is given is offered to the bag's submitter, which alone decides where tasks are: it takes them from this
//! machine's part, issues them to the other machine, and has them dropped here. Until it answers they are neither
//! started nor forgotten; if it does not, they wait here as before. So nothing is lost, and what is done twice is what
//! a lost answer costs. What has begun here in an earlier life and has a checkpoint here is not given away.

use std::collections::BTreeSet;

use idlewood_overlay::{Contact, Time};

use super::Executor;
use super::held::Held;
use crate::bag::{BagId, REQUEST_INTERVALS_MAX};
use crate::config::Config;
use crate::io::Io;
use crate::message::{Asker, Message};
use crate::ranges::IntervalSet;
use crate::stretch::bottleneck;

/// Most bags of which tasks are given at once: each costs its submitter some messages.
const BAGS_GIVEN_MAX: usize = 32;
/// Being done so much earlier is worth the messages, in seconds.
const LEAD_S_MIN: f64 = 5.0;

impl Executor {
    /// Whether a slot stands empty since nothing waits here.
    pub(crate) fn is_dry(&self) -> bool {
        self.idle_slots() > 0
    }

    /// Slots for which nothing is here to do.
    pub(crate) fn idle_slots(&self) -> u64 {
        let idle = self.places.idle_slots();
        let may_begin = !self.is_suspended() && idle > 0 && self.held.values().all(|held| held.waiting.is_empty());
        if may_begin { idle as u64 } else { 0 }
    }

    /// How long what has not begun here would take, in seconds: on all slots, as if nothing else were to do.
    pub(crate) fn wait_s(&self) -> f64 {
        let waiting = self.held.values().map(|held| held.waiting.len() as f64 * held.task_mops());
        waiting.sum::<f64>() / self.speed_mops()
    }

    /// Speed of all slots, Mop/s.
    pub(crate) fn speed_mops(&self) -> f64 {
        self.speed_mops * self.places.slots() as f64
    }

    /// The smallest maximum stretch of what is held, as last published, in s/Mop.
    pub(crate) fn stretch(&self) -> f64 {
        self.stretch
    }

    /// A machine asks for work. One that has nothing to do gets its share of what has not begun, of each bag in their
    /// order, so that both are done at about the same time; all of it where the owner of this machine is back. One that
    /// has work, but a smaller stretch, gets so much of what decides the stretch here that both have the same.
    pub(crate) fn answer_ask(&mut self, asker: &Asker, io: &mut Io, config: &Config) {
        let is_offering = self.held.values().any(|held| !held.offered.is_empty());
        if asker.contact.peer == io.me.peer || is_offering {
            return;
        }
        if std::mem::take(&mut self.order_stale) {
            self.reorder(io.now);
        }
        let given = if self.is_suspended() {
            Some((self.order.clone(), 1.0))
        } else if asker.stretch > 0.0 {
            self.surplus(asker, io.now)
        } else {
            Some((self.order.clone(), asker.speed_mops / (asker.speed_mops + self.speed_mops())))
        };
        if let Some((order, share)) = given {
            self.offer(order, share, &asker.contact, io, config);
        }
    }

    /// The bags that decide the stretch here, and the share of what waits of them that would level it with that of a
    /// machine where it is smaller; nothing where that is not worth the messages.
    fn surplus(&self, asker: &Asker, now: Time) -> Option<(Vec<BagId>, f64)> {
        let (load, bags) = self.load(now, |_| true);
        let (stretch, first) = bottleneck(&load);
        let last = &load.entries[*first.last()?];
        // How long the bottleneck takes here, and at most all there that is due by the time that it is due at that stretch.
        let [here_s, there_s] = [stretch, asker.stretch].map(|stretch| load.due_in(last, stretch).max(0.0));
        if here_s - there_s < LEAD_S_MIN {
            return None;
        }
        let surplus_mops = (here_s - there_s) / (1.0 / asker.speed_mops + 1.0 / self.speed_mops());
        // On several slots a bag may have several entries.
        let mut seen = BTreeSet::new();
        let bags: Vec<BagId> = first.into_iter().map(|index| bags[index]).filter(|&bag| seen.insert(bag)).collect();
        let free = |held: &Held| if held.confirmed { held.waiting.len() - held.bound().len() } else { 0 };
        let waiting = bags.iter().filter_map(|bag| self.held.get(bag)).filter(|held| free(held) > 0);
        // Tasks are whole: one more of the last bag is given where it is done there well before what is left here would be.
        let task_mops = waiting.clone().next_back()?.task_mops();
        let tasks = (surplus_mops / task_mops).floor();
        let left_s = here_s - tasks * task_mops / self.speed_mops();
        let one_more_s = there_s + (tasks + f64::from(asker.slots)) * task_mops / asker.speed_mops;
        let given_mops = if one_more_s + LEAD_S_MIN <= left_s { (tasks + 1.0) * task_mops } else { surplus_mops };
        let waiting_mops: f64 = waiting.map(|held| free(held) as f64 * held.task_mops()).sum();
        Some((bags, (given_mops / waiting_mops).min(1.0)))
    }

    /// Offers this share of what waits of these bags.
    fn offer(&mut self, order: Vec<BagId>, share: f64, to: &Contact, io: &mut Io, config: &Config) {
        // What is owed of the shares of the bags so far, in Mop: tasks are whole.
        let mut owed_mops = 0.0;
        let mut bags = 0;
        for bag in order {
            let Some(held) = self.held.get_mut(&bag).filter(|held| held.confirmed && !io.is_writing(bag)) else {
                continue;
            };
            let bound = held.bound();
            let free = held.waiting.difference(&bound);
            let (waiting, task_mops) = (free.len(), held.task_mops());
            owed_mops += waiting as f64 * task_mops * share;
            let tasks = ((owed_mops / task_mops + 1e-9).floor() as u64).min(waiting);
            if tasks == 0 {
                continue;
            }
            // The last ones: the first go on here.
            let mut rest = free;
            let kept = rest.take_first(waiting - tasks);
            let given: IntervalSet = rest.ranges().take(REQUEST_INTERVALS_MAX).collect();
            rest.subtract(&given);
            held.waiting = kept.union(&rest).union(&bound);
            owed_mops -= given.len() as f64 * task_mops;
            held.offered = given.clone();
            held.offered_until = io.now + config.placement_timeout;
            let offer = Message::Offer { bag, executor: (&io.me).into(), ranges: given, to: to.clone() };
            io.send(held.bag.submitter.clone(), offer);
            self.changed = true;
            bags += 1;
            if bags == BAGS_GIVEN_MAX {
                break;
            }
        }
    }

    /// What was offered of these bags in vain waits here again.
    pub(super) fn take_back_offers(&mut self, due: &[BagId], io: &Io) {
        for &bag in due {
            let over = |held: &&mut Held| !held.offered.is_empty() && held.offered_until <= io.now;
            let Some(held) = self.held.get_mut(&bag).filter(over) else { continue };
            let offered = std::mem::take(&mut held.offered);
            held.waiting.extend_with(&offered);
            self.changed = true;
        }
    }
}
