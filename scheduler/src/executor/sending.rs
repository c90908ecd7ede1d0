//! Sending to submitters: `Holding`, `Renewal` and `Results` when they are due, again while they are not answered, and
//! after there was no room for them.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::{BagId, TaskId, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::message::{Message, RENEWALS_MAX};
use crate::ranges::IntervalSet;

impl Executor {
    /// The result of this attempt at a task is durable, and may be sent.
    pub(crate) fn written(&mut self, task: TaskId, attempt: u32) {
        if let Some(held) = self.bags.get_mut(&task.bag) {
            held.outbox.written(task.index, attempt);
        }
    }

    /// These results were not sent: the driver has no room for messages to their submitter.
    pub(crate) fn results_unsent(&mut self, bag: BagId, results: &[TaskResult], io: &Io, config: &Config) {
        if let Some(held) = self.bags.get_mut(&bag) {
            held.not_sent(results, io.now + config.lease);
        }
    }

    /// There is room again on the way to this submitter.
    pub(crate) fn has_room(&mut self, submitter: PeerId, now: Time) {
        for held in self.bags.values_mut().filter(|held| held.keepers.contact().peer == submitter) {
            held.updates.room(now);
        }
    }

    /// This machine may be about to leave: unanswered `Holding`s and unsent results are sent now, whatever the pace.
    pub(crate) fn send_all_now(&mut self, now: Time) {
        for held in self.bags.values_mut() {
            held.updates.hurry(now);
        }
    }

    /// Does what is due: hands back tasks, takes back offers, and sends `Holding`, `Renewal` and `Results`.
    pub(crate) fn tick(&mut self, io: &mut Io, config: &Config) {
        self.forget_obeyed(io);
        self.rate_what_runs(io.now);
        self.judge_speed(io, config);
        self.vacate_if_due(io, config);
        let due = self.due(io.now, Duration::ZERO);
        self.leave_silent(&due, io.now, config);
        self.take_back_offers(&due, io);
        self.return_unspoken(&due, io, config);
        self.return_overdue(&due, io, config);
        self.look_after_bookings(&due, io, config);
        self.share(io, config);
        self.changed |= self.rest.ends(io.now);
        let mut renewals: BTreeMap<PeerId, (Contact, Vec<(BagId, u64)>)> = BTreeMap::new();
        for bag in due {
            let Some(held) = self.bags.get_mut(&bag) else { continue };
            // A result is sent once it is durable itself, a `Holding` once all writes of the bag are.
            let is_holding_due = held.updates.holding_due() <= io.now && !io.is_writing(bag);
            if is_holding_due && held.updates.is_answered() {
                held.keepers.ask(io.now);
                let submitter = held.keepers.contact();
                let (_, bags) = renewals.entry(submitter.peer).or_insert_with(|| (submitter.clone(), Vec::new()));
                if bags.len() < RENEWALS_MAX {
                    bags.push((held.bag.id, held.updates.version()));
                    held.updates.await_answer(io.now, config);
                }
            } else if is_holding_due {
                self.version += 1;
                let message = held.new_holding(self.version, io, config);
                io.send(held.keepers.contact().clone(), message);
            }
            loop {
                let results = held.due_results(io, config);
                if results.is_empty() {
                    break;
                }
                let (bag, executor) = (held.bag.id, (&io.me).into());
                let message = Message::Results { bag, executor, results, signature: None };
                io.send(held.keepers.contact().clone(), message);
            }
        }
        self.renew(renewals, io, config);
    }

    /// Hands back the unstarted tasks of bags that are not fresh and whose submitter has not spoken for them in time: such
    /// tasks must not delay others for ever.
    fn return_unspoken(&mut self, due: &[BagId], io: &mut Io, config: &Config) {
        for &bag in due {
            let is_due = |held: &&mut HeldBag| held.unspoken_until().is_some_and(|until| until <= io.now);
            let Some(held) = self.bags.get_mut(&bag).filter(is_due).filter(|_| !io.is_writing(bag)) else { continue };
            self.unspoken += held.waiting.len();
            self.version += 1;
            held.hand_back(IntervalSet::new(), self.version, io, config);
            self.forget_if_empty(bag);
            self.order_stale = true;
            self.changed = true;
        }
    }

    /// Sends one `Renewal` to each submitter, for bags that are due and those that will be soon.
    fn renew(&mut self, renewals: BTreeMap<PeerId, (Contact, Vec<(BagId, u64)>)>, io: &mut Io, config: &Config) {
        for (peer, (submitter, mut bags)) in renewals {
            for bag in self.due(io.now, config.lease / 4) {
                let is_soon = |held: &HeldBag| {
                    let due = held.updates.holding_due();
                    let is_due = due > io.now && due <= io.now + config.lease / 4;
                    held.updates.is_answered() && is_due && held.keepers.contact().peer == peer
                };
                let is_listed = bags.iter().any(|(listed, _)| *listed == bag);
                if is_listed || bags.len() >= RENEWALS_MAX || io.is_writing(bag) {
                    continue;
                }
                // Mutable access is for those that change: it has the bag's due time read anew.
                if !self.bags.get(&bag).is_some_and(is_soon) {
                    continue;
                }
                if let Some(held) = self.bags.get_mut(&bag) {
                    bags.push((bag, held.updates.version()));
                    held.updates.await_answer(io.now, config);
                }
            }
            io.send(submitter, Message::Renewal { executor: (&io.me).into(), bags });
        }
    }

    /// Bags that need attention now or within `ahead`, by id.
    fn due(&mut self, now: Time, ahead: Duration) -> Vec<BagId> {
        self.bags.look(now);
        let due = self.bags.due().take_while(|(due, _)| *due <= now + ahead);
        let mut due: Vec<BagId> = due.map(|(_, bag)| bag).collect();
        due.sort_unstable();
        due
    }

    /// When `tick` or `dispatch` next has timed work.
    pub(crate) fn deadline(&mut self, io: &Io) -> Option<Time> {
        self.bags.look(io.now);
        debug_assert!(self.bags.is_up_to_date(io.now), "the index of due bags is out of date");
        let mut held: Option<Time> = None;
        for (due, bag) in self.bags.due() {
            if held.is_some_and(|first| first <= due) {
                break;
            }
            let is_writing = io.is_writing(bag);
            let due = if is_writing { self.bags.get(&bag).and_then(HeldBag::next_results) } else { Some(due) };
            held = held.into_iter().chain(due).min();
        }
        let parts = [
            held,
            self.suspension.vacate_at(),
            self.suspension.return_at(),
            self.rest.until(),
            self.rating_due(io.now),
            self.slowness_due(io.now),
            self.sharing.due(),
            self.endless_due(),
        ];
        parts.into_iter().flatten().min()
    }
}
