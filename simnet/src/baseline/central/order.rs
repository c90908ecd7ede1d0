//! The order of the bags, and what follows from a new one.

use super::super::plan::{self, Job};
use super::super::policy::Order;
use super::{Centre, Queued};

impl Centre<'_> {
    /// Orders the bags anew, and applies the new order.
    pub(super) fn replan(&mut self) {
        let is_preemptive = self.policy.is_preemptive();
        // Without preemption a begun bag has no place in the order.
        let is_open = |bag: &Queued| bag.waiting > 0 || is_preemptive && bag.begun > 0;
        let mut order: Vec<usize> = (0..self.queue.len()).filter(|&bag| is_open(&self.queue[bag])).collect();
        match self.policy.order {
            Order::Arrival => order.sort_unstable(),
            Order::Size => self.order_by(&mut order, |centre, bag| centre.queue[bag].own_mops),
            Order::Due(due_s) => self.order_by(&mut order, |_, bag| due_s[bag]),
            Order::Application | Order::Effective | Order::Judged(_) => self.order_by_deadline(&mut order),
        }
        for (rank, bag) in order.iter().enumerate() {
            self.queue[*bag].rank = rank;
        }
        self.order = order;
        self.head = 0;
        self.fill();
        if is_preemptive {
            self.preempt();
        }
    }

    /// Sorts by a number of each bag, ties by arrival.
    fn order_by(&self, order: &mut [usize], key: impl Fn(&Self, usize) -> f64) {
        order.sort_by(|&one, &other| key(self, one).total_cmp(&key(self, other)).then(one.cmp(&other)));
    }

    fn order_by_deadline(&self, order: &mut [usize]) {
        let is_preemptive = self.policy.is_preemptive();
        let mut begun_mops = vec![0.0; self.queue.len()];
        for slot in &self.slots {
            let mut add =
                |bag: usize, remaining_us: i64| begun_mops[bag] += remaining_us as f64 / 1e6 * slot.speed_mops;
            slot.running.iter().for_each(|run| add(run.bag, run.declared_rest_us(self.now)));
            slot.frozen.iter().for_each(|run| add(run.bag, run.declared_us));
        }
        let ahead_mops = if is_preemptive { 0.0 } else { begun_mops.iter().sum() };
        let job = |&bag: &usize| {
            let Queued { size, own_mops, before_mops, waiting, .. } = self.queue[bag];
            // What is judged has sizes of its own unit, and knows no users.
            let is_judged = matches!(self.policy.order, Order::Judged(_));
            let size = if is_judged { size } else { size.max(own_mops + before_mops) };
            let waiting_mops = waiting as f64 * self.instance.bags[bag].declared_mops;
            let remaining_mops = waiting_mops + if is_preemptive { begun_mops[bag] } else { 0.0 };
            Job { bag, release_s: self.instance.bags[bag].arrival.as_secs_f64(), size, remaining_mops }
        };
        let mut jobs: Vec<Job> = order.iter().map(job).collect();
        // With no machine up any order will do.
        let stretch = plan::order(&mut jobs, self.now.as_secs_f64(), self.up_mops.max(1.0), ahead_mops);
        if self.reached > stretch {
            plan::by_deadline(&mut jobs, self.reached);
        }
        for (place, job) in order.iter_mut().zip(jobs) {
            *place = job.bag;
        }
    }

    /// Where a user's bags are one application: a new bag weighs as much as itself and what is left of the smaller ones, and the
    /// larger ones weigh so much more (docs/adr/0017).
    pub(super) fn insert_in_line(&mut self, new: usize) {
        let Some(&submitter) = self.instance.submitters.get(new) else { return };
        let key = |centre: &Self, bag: usize| (centre.queue[bag].own_mops, centre.instance.bags[bag].arrival, bag);
        let new_key = key(self, new);
        for bag in 0..self.queue.len() {
            let Queued { waiting, begun, own_mops, .. } = self.queue[bag];
            if bag == new || self.instance.submitters[bag] != submitter || waiting + begun == 0 {
                continue;
            }
            if key(self, bag) < new_key {
                let open = (waiting + begun) as f64 / self.instance.bags[bag].tasks as f64;
                self.queue[new].before_mops += own_mops * open;
            } else {
                self.queue[bag].before_mops += new_key.0;
            }
        }
    }
}
