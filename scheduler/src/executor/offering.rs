//! Redistribution, on the executor's side: whether a machine asks for work, and which tasks it offers to one that asks.
//!
//! An idle machine is offered its share of all unstarted tasks. A machine that has work but a smaller stretch is offered
//! tasks of the bags up to the bottleneck only, those that decide the stretch here: as many whole tasks as bring both
//! stretches together.
//!
//! The `Offer` goes to the bag's submitter, which alone decides where tasks are: it takes them from this machine, issues
//! them to the other, and has them dropped here. Until it answers, offered tasks do not begin; if it does not answer, they
//! wait here as before. So no task is lost, and at worst a lost answer has some done twice. Tasks with a checkpoint on this
//! machine are not offered.

use std::collections::BTreeSet;

use idlewood_overlay::{Contact, Time};

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::{BagId, REQUEST_INTERVALS_MAX};
use crate::config::Config;
use crate::io::Io;
use crate::message::{Asker, Message};
use crate::ranges::IntervalSet;
use crate::stretch::bottleneck;

/// Most bags of which tasks are offered to one asker: each costs its submitter some messages.
const BAGS_GIVEN_MAX: usize = 32;
/// Tasks are worth moving where they are done so much earlier, in seconds.
const LEAD_S_MIN: f64 = 5.0;

impl Executor {
    /// Whether a slot is idle because no task waits here.
    pub(crate) fn is_dry(&self) -> bool {
        self.idle_slots() > 0
    }

    /// Idle slots, if no task waits here and the machine is not suspended.
    pub(crate) fn idle_slots(&self) -> u64 {
        let idle = self.places.idle_slots();
        let may_begin = !self.is_suspended() && idle > 0 && self.bags.values().all(|held| held.waiting.is_empty());
        if may_begin { idle as u64 } else { 0 }
    }

    /// How long the unstarted tasks would take on all slots if nothing else ran, in seconds.
    pub(crate) fn wait_s(&self) -> f64 {
        let waiting = self.bags.values().map(|held| held.waiting.len() as f64 * held.task_mops());
        waiting.sum::<f64>() / self.speed_mops()
    }

    /// Speed of all slots, Mop/s.
    pub(crate) fn speed_mops(&self) -> f64 {
        self.speed_mops * self.places.slots() as f64
    }

    /// The smallest feasible maximum stretch of the queue, as last published, in s/Mop.
    pub(crate) fn stretch(&self) -> f64 {
        self.stretch
    }

    /// A machine asks for work. An idle one is offered a share of each bag's unstarted tasks, by the speeds of both, so
    /// that both are done at about the same time; all of them where this machine is suspended. One that has work but a
    /// smaller stretch is offered so many tasks of the bags up to the bottleneck that both stretches become the same.
    pub(crate) fn answer_ask(&mut self, asker: &Asker, io: &mut Io, config: &Config) {
        let is_offering = self.bags.values().any(|held| !held.offered.is_empty());
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

    /// The bags up to the bottleneck, and the share of their waiting tasks that would level the stretch here with the asker's,
    /// which is smaller; nothing where that is not worth the messages.
    fn surplus(&self, asker: &Asker, now: Time) -> Option<(Vec<BagId>, f64)> {
        let (load, bags) = self.load(now, |_| true);
        let (stretch, first) = bottleneck(&load);
        let last = &load.entries[*first.last()?];
        // How long until the bottleneck is done here, and at most until the asker has done all that is due before such a bag.
        let [here_s, there_s] = [stretch, asker.stretch].map(|stretch| load.due_in(last, stretch).max(0.0));
        if here_s - there_s < LEAD_S_MIN {
            return None;
        }
        let surplus_mops = (here_s - there_s) / (1.0 / asker.speed_mops + 1.0 / self.speed_mops());
        // On several slots a bag may have several entries.
        let mut seen = BTreeSet::new();
        let bags: Vec<BagId> = first.into_iter().map(|index| bags[index]).filter(|&bag| seen.insert(bag)).collect();
        let free = |held: &HeldBag| if held.spoken_for { held.waiting.len() - held.unmovable().len() } else { 0 };
        let waiting = bags.iter().filter_map(|bag| self.bags.get(bag)).filter(|held| free(held) > 0);
        // Tasks are whole. With so many the last are done here, with one more there: one more is offered where that is sooner, by
        // so much that a task is worth moving. All slots of the asker may be busy when it begins.
        let task_mops = waiting.clone().next_back()?.task_mops();
        let tasks = (surplus_mops / task_mops).floor();
        let left_s = here_s - tasks * task_mops / self.speed_mops();
        let one_more_s = there_s + (tasks + f64::from(asker.slots)) * task_mops / asker.speed_mops;
        let given_mops = if one_more_s + LEAD_S_MIN <= left_s { (tasks + 1.0) * task_mops } else { surplus_mops };
        let waiting_mops: f64 = waiting.map(|held| free(held) as f64 * held.task_mops()).sum();
        Some((bags, (given_mops / waiting_mops).min(1.0)))
    }

    /// Offers this share of these bags' waiting tasks.
    fn offer(&mut self, order: Vec<BagId>, share: f64, to: &Contact, io: &mut Io, config: &Config) {
        // The share of the bags so far that was not offered yet, in Mop: tasks are whole.
        let mut owed_mops = 0.0;
        let mut bags = 0;
        for bag in order {
            let Some(held) = self.bags.get_mut(&bag).filter(|held| held.spoken_for && !io.is_writing(bag)) else {
                continue;
            };
            let unmovable = held.unmovable();
            let free = held.waiting.difference(&unmovable);
            let (waiting, task_mops) = (free.len(), held.task_mops());
            owed_mops += waiting as f64 * task_mops * share;
            let tasks = ((owed_mops / task_mops + 1e-9).floor() as u64).min(waiting);
            if tasks == 0 {
                continue;
            }
            // The last tasks are offered; the first will begin here.
            let mut rest = free;
            let kept = rest.take_first(waiting - tasks);
            let given: IntervalSet = rest.ranges().take(REQUEST_INTERVALS_MAX).collect();
            rest.subtract(&given);
            held.waiting = kept.union(&rest).union(&unmovable);
            owed_mops -= given.len() as f64 * task_mops;
            held.offered = given.clone();
            held.offered_until = io.now + config.placement_timeout;
            let offer = Message::Offer { bag, executor: (&io.me).into(), ranges: given, to: to.clone() };
            io.send(held.keepers.contact().clone(), offer);
            self.changed = true;
            bags += 1;
            if bags == BAGS_GIVEN_MAX {
                break;
            }
        }
    }

    /// Offered tasks of these bags wait here again where the submitter has not answered in time.
    pub(super) fn take_back_offers(&mut self, due: &[BagId], io: &Io) {
        for &bag in due {
            let over = |held: &&mut HeldBag| !held.offered.is_empty() && held.offered_until <= io.now;
            let Some(held) = self.bags.get_mut(&bag).filter(over) else { continue };
            let offered = std::mem::take(&mut held.offered);
            held.waiting.extend_with(&offered);
            self.changed = true;
        }
    }
}
