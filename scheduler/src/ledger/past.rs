//! Rounds that are past: what a machine that adopts an application in rounds need not have.
//!
//! Stewards keep the results of the last complete round, and of what has ended since (`steward::giving`). So whoever adopts the bag has those of
//! a complete round from there, and earlier tasks, which had ended by what stewards know, count as done without results from then on. Tasks
//! of later rounds whose results nobody has are computed again, as in any bag, from the complete one.
//!
//! A task of a later round whose start this machine does not know, since another one made it, waits until it is made here.

use super::Ledger;
use crate::io::Io;
use crate::ranges::IntervalSet;
use crate::record::Change;
use crate::rounds::Progress;

impl Ledger {
    /// Ended tasks whose results nobody needs to go on, so that stewards do not keep them, unless the user wishes to have all kept.
    pub(crate) fn past(&self) -> IntervalSet {
        let rounds = self.rounds.as_ref().filter(|_| !self.keeping.keep_results);
        rounds.map(|rounds| IntervalSet::from(rounds.progress.past())).unwrap_or_default()
    }

    /// The same by the results that another machine has.
    pub(crate) fn past_by(&self, results: &IntervalSet) -> IntervalSet {
        let rounds = self.rounds.as_ref().filter(|_| !self.keeping.keep_results);
        rounds
            .map(|rounds| IntervalSet::from(Progress::restore(rounds.progress.plan(), results).past()))
            .unwrap_or_default()
    }

    /// Tasks that count as done, though their results are nowhere any more.
    pub(super) fn gone(&self) -> IntervalSet {
        let plan = self.rounds.as_ref().map(|rounds| rounds.progress.plan());
        plan.map(|plan| IntervalSet::from(plan.before(self.conditions.rounds_gone))).unwrap_or_default()
    }

    /// A further result is durable: where it completes a round, earlier tasks that had ended count as done without theirs.
    pub(super) fn go_on_from_complete(&mut self, io: &mut Io) {
        if self.is_closed() || self.keeping.lost.is_empty() && !self.keeping.is_adopted {
            return;
        }
        let Some(rounds) = &self.rounds else { return };
        let (plan, Some(last)) = (rounds.progress.plan(), rounds.progress.last_complete()) else { return };
        let mut open = IntervalSet::from(plan.before(last));
        self.ended.subtract_from(&mut open);
        // Earlier tasks are open beside a complete round where they had ended by what stewards know, or where the user has them run again.
        let had_ended = self.keeping.reruns == 0 || open.difference(&self.keeping.lost).is_empty();
        if open.is_empty() || !had_ended {
            return;
        }
        let mut changes = Vec::new();
        for index in open.indices() {
            self.withdraw(index, None);
            self.forget(index);
            changes.extend(self.checkpoints.forget(index, self.bag.id));
        }
        self.restore_ended(&open, &IntervalSet::new());
        self.conditions.rounds_gone = last;
        changes.push(Change::Put(self.record(io)));
        io.persist(changes, Vec::new());
        if let Some(rounds) = &mut self.rounds {
            rounds.lacks_starts = true;
        }
        self.go_on_with_rounds(io);
    }

    /// Tasks of later rounds that are to be issued, and of which nobody here knows what they begin with, wait until that is made.
    pub(super) fn put_off_without_start(&mut self, io: &mut Io) {
        let Some(rounds) = self.rounds.as_ref().filter(|rounds| rounds.lacks_starts) else { return };
        let later = IntervalSet::from(rounds.progress.plan().first().end..self.bag.tasks);
        let mut lacking = later.intersection(self.waiting.unissued());
        for index in self.checkpoints.tasks() {
            lacking.remove_index(index);
        }
        if !lacking.is_empty() {
            self.waiting.put_off(&lacking);
            self.order_due(io);
        }
    }
}
