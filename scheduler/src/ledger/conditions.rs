//! What a ledger does since its user has said when tasks may be issued (`conditions`): it withholds them, or hands out few at once, and
//! tells machines the bag's priority.
//!
//! A bag that is withheld issues nothing, and tells the machines that hold tasks of it to give back what has not begun (a `Lease` that
//! says so, again at each `Holding`). What has begun runs to its end, and its result counts.

use idlewood_overlay::{Contact, PeerId};

use super::Ledger;
use crate::bag::{BagId, Sizes};
use crate::conditions::{Conditions, Wish, is_priority};
use crate::config::Config;
use crate::io::{Io, Then};
use crate::message::{Lease, Message};
use crate::peer::Notice;
use crate::ranges::IntervalSet;
use crate::record::Change;

/// A shell whose command a signal ended exits with this code or a larger one (POSIX).
const KILLED_FROM: u8 = 128;

impl Ledger {
    /// What the user has said of when tasks may be issued.
    pub(crate) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    pub(crate) fn set_conditions(&mut self, conditions: Conditions, io: &Io) {
        self.submitted = conditions.submitted.map_or(self.released, |submitted| io.moment(submitted));
        self.conditions = conditions;
        self.begin_rounds();
    }

    /// What of them the bag's record says.
    pub(super) fn recorded_conditions(&self, io: &Io) -> Conditions {
        let submitted = (self.submitted != self.released).then(|| io.wall(self.submitted));
        Conditions { submitted, ..self.conditions.clone() }
    }

    /// Nothing keeps the bag from being issued any more: if no machine ever had a task of it, its time begins now.
    fn begin(&mut self, io: &Io) {
        let is_untouched = self.ended.len() == 0 && self.placed.executors() == 0 && self.former().next().is_none();
        if is_untouched && !self.conditions.withhold() {
            self.released = io.now;
        }
        self.votes.look_for_copies();
    }

    /// Whether the first task is to be measured now; then it is from now on. Of a bag that is withheld it is not.
    pub(crate) fn begin_to_measure(&mut self) -> bool {
        let has_task = self.tasks() > 0;
        let is_due = self.open && has_task && !self.is_measured() && !self.is_closed() && !self.conditions.withhold();
        is_due && !std::mem::replace(&mut self.is_measuring, true)
    }

    /// The user wants something of the bag, and is told once that is durable. Nothing but a name can be wished of a bag that is over.
    pub(crate) fn wish(&mut self, wish: Wish, io: &mut Io, config: &Config) {
        let priority = self.conditions.priority;
        match wish {
            Wish::Rename(name) => self.conditions.name = Some(name),
            Wish::Hold | Wish::Release | Wish::Prioritise(_) if self.is_closed() => return,
            Wish::Prioritise(priority) if !is_priority(priority) => return,
            Wish::Prioritise(priority) => self.conditions.priority = priority,
            Wish::Hold => self.conditions.withheld = true,
            Wish::Release => {
                let was_withheld = self.conditions.withhold();
                self.conditions.withheld = false;
                self.conditions.after.clear();
                if was_withheld {
                    self.begin(io);
                }
            }
        }
        let then = vec![Then::Notify(Notice::BagChanged(self.bag.id))];
        io.persist(vec![Change::Put(self.record(io))], then);
        if (self.conditions.withhold() || self.conditions.priority != priority) && !self.is_closed() {
            let executors: Vec<Contact> = self.placements().map(|(executor, _)| executor.clone()).collect();
            for executor in executors {
                // It answers with a `Holding`; where this message is lost, its next renewal is refused, and it is told again.
                self.placed.require_holding(executor.peer);
                self.tell_conditions(executor, io, config);
            }
        }
    }

    /// Tells a machine the bag's priority, and, where the bag is withheld, to give back what has not begun.
    fn tell_conditions(&self, executor: Contact, io: &mut Io, config: &Config) {
        let (term, submitter) = (self.term(io, config), Some((&io.me).into()));
        let (sizes, withheld) = (self.is_measured().then(|| self.sizes()), self.conditions.withhold());
        io.send(executor, Message::Lease(Lease { submitter, term, sizes, withheld, ..Lease::of(self.bag.id) }));
    }

    /// Failed tries of its tasks by machine, since the start of this peer.
    pub(crate) fn failed_on(&self) -> &std::collections::BTreeMap<PeerId, u64> {
        self.avoided.failed_on()
    }

    /// What executors believe of the bag's place in the line of this machine's bags.
    pub(super) fn sizes(&self) -> Sizes {
        self.bag.sizes(self.conditions.priority)
    }

    /// These bags, for which this one has waited, have succeeded. Returns whether it waits for none any more.
    pub(crate) fn awaited_succeeded(&mut self, succeeded: &[BagId], io: &mut Io) -> bool {
        self.conditions.after.retain(|bag| !succeeded.contains(bag));
        self.begin(io);
        io.persist(vec![Change::Put(self.record(io))], Vec::new());
        self.conditions.after.is_empty()
    }

    /// How many more tasks may be issued now.
    pub(super) fn room(&self) -> u64 {
        let Some(most) = self.conditions.running_max.into_iter().chain(self.handed_out_max()).min() else {
            return u64::MAX;
        };
        let placed: u64 = self.placed.iter().map(|placement| placement.ranges.len()).sum();
        let issued: u64 = self.issues.iter().map(|issue| issue.ranges.len()).sum();
        most.saturating_sub(placed + issued)
    }

    /// As many of these tasks as may be issued now.
    pub(super) fn within_room(&self, mut tasks: IntervalSet) -> IntervalSet {
        let room = self.room();
        if room < tasks.len() { tasks.take_first(room) } else { tasks }
    }

    /// Whether a further try of a task that failed so would only fail once more: the user says so of its exit code, or says nothing and
    /// another machine has ended it alike. A task that did not end by itself, or was killed in a shell of its own, may be
    /// the machine's fault: it is tried again.
    pub(super) fn fails_for_good(&self, result: &crate::bag::TaskResult, executor: PeerId) -> bool {
        let Some(code) = result.exit_code.filter(|_| !result.crashed) else { return false };
        let is_alike = || code < KILLED_FROM && self.tries.has_failed_alike_elsewhere(result, executor);
        self.conditions.retries_on(code).map_or_else(is_alike, |retries| !retries)
    }
}
