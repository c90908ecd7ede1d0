//! Redistribution, on the executor's side: when it asks for work, and what it gives to one that does.
//!
//! What is given is offered to the bag's submitter, which alone decides where tasks are: it takes them from this
//! machine's part, issues them to the other machine, and has them dropped here. Until it answers they are neither
//! started nor forgotten; if it does not, they wait here as before. So nothing is lost, and what is done twice is what
//! a lost answer costs.

use idlewood_overlay::Contact;

use super::Executor;
use crate::bag::REQUEST_INTERVALS_MAX;
use crate::config::Config;
use crate::io::Io;
use crate::message::Message;
use crate::ranges::IntervalSet;

/// Most bags of which tasks are given at once: each costs its submitter some messages.
const BAGS_GIVEN_MAX: usize = 32;

impl Executor {
    /// Whether a slot stands empty since nothing waits here.
    pub(crate) fn is_dry(&self) -> bool {
        let running = self.places.iter().flatten().count();
        !self.suspended && running < self.slots && self.held.values().all(|held| held.waiting.is_empty())
    }

    /// How long what has not begun here would take, in seconds: on all slots, as if nothing else were to do.
    pub(crate) fn wait_s(&self) -> f64 {
        let waiting = self.held.values().map(|held| held.waiting.len() as f64 * held.task_mops());
        waiting.sum::<f64>() / (self.speed_mops * self.slots as f64)
    }

    /// Speed of all slots, Mop/s.
    pub(crate) fn speed_mops(&self) -> f64 {
        self.speed_mops * self.slots as f64
    }

    /// A machine of this speed has nothing to do: of each bag, in their order, it gets its share of what has not begun,
    /// so that both are done at about the same time. All of it where the owner of this machine is back.
    pub(crate) fn give(&mut self, to: &Contact, speed_mops: f64, io: &mut Io, config: &Config) {
        let is_offering = self.held.values().any(|held| !held.offered.is_empty());
        if to.peer == io.me.peer || is_offering || !(speed_mops > 0.0 && speed_mops.is_finite()) {
            return;
        }
        let share = if self.suspended { 1.0 } else { speed_mops / (speed_mops + self.speed_mops()) };
        if self.order_stale {
            self.order_stale = false;
            self.reorder(io.now);
        }
        // What is owed of the shares of the bags so far, in Mop: tasks are whole.
        let mut owed_mops = 0.0;
        let mut bags = 0;
        for bag in self.order.clone() {
            let Some(held) = self.held.get_mut(&bag).filter(|held| held.confirmed && !io.is_writing(bag)) else {
                continue;
            };
            let (waiting, task_mops) = (held.waiting.len(), held.task_mops());
            owed_mops += waiting as f64 * task_mops * share;
            let tasks = ((owed_mops / task_mops + 1e-9).floor() as u64).min(waiting);
            if tasks == 0 {
                continue;
            }
            // The last ones: the first go on here.
            let mut rest = held.waiting.clone();
            let kept = rest.take_first(waiting - tasks);
            let given: IntervalSet = rest.ranges().take(REQUEST_INTERVALS_MAX).collect();
            rest.subtract(&given);
            held.waiting = kept.union(&rest);
            owed_mops -= given.len() as f64 * task_mops;
            held.offered = given.clone();
            held.offered_until = io.now + config.placement_timeout;
            let offer = Message::Offer { bag, executor: io.me.clone(), ranges: given, to: to.clone() };
            io.send(held.bag.submitter.clone(), offer);
            self.changed = true;
            bags += 1;
            if bags == BAGS_GIVEN_MAX {
                break;
            }
        }
    }

    /// What was offered in vain waits here again.
    pub(super) fn take_back_offers(&mut self, io: &Io) {
        for held in self.held.values_mut().filter(|held| !held.offered.is_empty() && held.offered_until <= io.now) {
            let offered = std::mem::take(&mut held.offered);
            held.waiting.extend_with(&offered);
            self.changed = true;
        }
    }
}
