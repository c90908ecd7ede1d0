//! Redistribution, on the executor's side: whether a machine asks for work, and which tasks it offers to one that asks.
//!
//! An idle machine is offered so many of each bag's unstarted tasks, in the order of the queue, that both machines are done
//! with the bag at about the same time, whole tasks of which each ends there sooner than here. A machine that has work but a
//! smaller stretch is offered tasks of the bags up to the bottleneck only, those that decide the stretch here: as many whole
//! tasks as bring both stretches together.
//!
//! The `Offer` goes to the bag's submitter, which alone decides where tasks are: it takes them from this machine, issues
//! them to the other, and has them dropped here. Until it answers, offered tasks do not begin; if it does not answer, they
//! wait here as before. So no task is lost, and at worst a lost answer has some done twice. Tasks with a checkpoint on this
//! machine are not offered.

use std::collections::BTreeSet;

use idlewood_overlay::{Contact, Time};

use super::Executor;
use super::held_bag::HeldBag;
use super::places::Running;
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

/// How many waiting tasks of a bag may be offered now.
fn movable(held: &HeldBag, io: &Io) -> u64 {
    if !held.spoken_for || io.is_writing(held.bag.id) || !held.told_to_wait().is_empty() {
        return 0;
    }
    held.waiting.len() - held.unmovable().len()
}

impl Executor {
    /// Whether a slot is idle because no task waits here.
    pub(crate) fn is_dry(&self) -> bool {
        self.idle_slots() > 0
    }

    /// Idle slots, if no task waits here and the machine is not suspended.
    pub(crate) fn idle_slots(&self) -> u64 {
        // Those with tasks of endless bags are idle for others.
        let idle = self.places.slots_without(|running| !self.is_endless(running));
        let may_begin = !self.is_suspended() && idle > 0 && self.finite().all(|held| held.waiting.is_empty());
        if may_begin { idle as u64 } else { 0 }
    }

    /// How long the unstarted tasks would take on all slots if nothing else ran, in seconds.
    pub(crate) fn wait_s(&self) -> f64 {
        let waiting = self.finite().map(|held| held.waiting.len() as f64 * held.task_mops());
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

    /// A machine asks for work. An idle one is offered tasks that end there sooner than here; all of them where this machine
    /// is suspended. One that has work but a smaller stretch is offered so many tasks of the bags up to the bottleneck that both
    /// stretches become the same.
    pub(crate) fn answer_ask(&mut self, asker: &Asker, io: &mut Io, config: &Config) {
        let is_offering = self.bags.values().any(|held| !held.offered.is_empty());
        if asker.contact.peer == io.me.peer || is_offering {
            return;
        }
        if std::mem::take(&mut self.order_stale) {
            self.reorder(io.now);
        }
        let given = if self.is_suspended() {
            self.share_of_waiting(&self.order, 1.0, io)
        } else if asker.stretch > 0.0 {
            self.surplus(asker, io.now)
                .map(|(order, share)| self.share_of_waiting(&order, share, io))
                .unwrap_or_default()
        } else {
            self.sooner_there(asker, io)
        };
        self.offer(given, &asker.contact, io, config);
    }

    /// How many tasks of each bag end sooner on an idle machine: the bags one after the other in the order of the queue, each
    /// divided so that both machines are done with it at about the same time.
    fn sooner_there(&self, asker: &Asker, io: &Io) -> Vec<(BagId, u64)> {
        let rest_s = |running: &Running| self.rest_mops(running, io.now) / self.speed_mops();
        let is_preemptive = self.places.frozen_max() > 0;
        // When each machine is done with the bags so far. Without preemption, what runs here comes before all of them.
        let mut here_s: f64 = if is_preemptive { 0.0 } else { self.places.begun().map(rest_s).sum() };
        let mut there_s = 0.0;
        let mut given = Vec::new();
        for &bag in &self.order {
            let Some(held) = self.bags.get(&bag) else { continue };
            if is_preemptive {
                here_s += self.places.of(bag).map(rest_s).sum::<f64>();
            }
            let [here_task_s, there_task_s] =
                [self.speed_mops(), asker.speed_mops].map(|speed_mops| held.task_mops() / speed_mops);
            let waiting = held.waiting.len() as f64;
            // With so many, the last ends there when one fewer would leave the last to end here. All slots of the asker may be
            // busy when it begins.
            let last_here_s = here_s + (waiting + 1.0) * here_task_s;
            let first_there_s = there_s + (f64::from(asker.slots) - 1.0) * there_task_s;
            let most = (last_here_s - first_there_s - LEAD_S_MIN) / (here_task_s + there_task_s);
            // The cast saturates.
            let tasks = (most.max(0.0) as u64).min(movable(held, io));
            here_s += (waiting - tasks as f64) * here_task_s;
            there_s += tasks as f64 * there_task_s;
            given.push((bag, tasks));
        }
        given
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

    /// This share of these bags' waiting tasks, in whole tasks.
    fn share_of_waiting(&self, order: &[BagId], share: f64, io: &Io) -> Vec<(BagId, u64)> {
        // The share of the bags so far that was not given yet, in Mop.
        let mut owed_mops = 0.0;
        let of_bag = |bag: &BagId| {
            let held = self.bags.get(bag)?;
            let (waiting, task_mops) = (movable(held, io), held.task_mops());
            owed_mops += waiting as f64 * task_mops * share;
            let tasks = ((owed_mops / task_mops + 1e-9).floor() as u64).min(waiting);
            owed_mops -= tasks as f64 * task_mops;
            Some((*bag, tasks))
        };
        order.iter().filter_map(of_bag).collect()
    }

    /// Offers so many waiting tasks of each of these bags.
    fn offer(&mut self, given: Vec<(BagId, u64)>, to: &Contact, io: &mut Io, config: &Config) {
        for (bag, tasks) in given.into_iter().filter(|(_, tasks)| *tasks > 0).take(BAGS_GIVEN_MAX) {
            let Some(held) = self.bags.get_mut(&bag) else { continue };
            let unmovable = held.unmovable();
            // The last tasks are offered; the first will begin here.
            let mut rest = held.waiting.difference(&unmovable);
            let kept = rest.take_first(rest.len().saturating_sub(tasks));
            let given: IntervalSet = rest.ranges().take(REQUEST_INTERVALS_MAX).collect();
            rest.subtract(&given);
            held.waiting = kept.union(&rest).union(&unmovable);
            held.offered = given.clone();
            held.offered_until = io.now + config.placement_timeout;
            let offer = Message::Offer { bag, executor: (&io.me).into(), ranges: given, to: to.clone() };
            io.send(held.keepers.contact().clone(), offer);
            self.changed = true;
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
