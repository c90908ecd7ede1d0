//! The owner comes back: everything is frozen at once, and after the vacate time goes where it can go on. A machine that cannot
//! take new tasks, since it has no room for results or is to finish, hands back likewise, but what has begun runs on to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held::Held;
use crate::bag::{BagId, Checkpoint, TaskId, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::peer::Effect;
use crate::ranges::IntervalSet;

impl Executor {
    /// The owner wants another vacate time, which also counts for the present stay.
    pub(crate) fn vacates_after(&mut self, after: Duration) {
        self.suspension.vacates_after(after);
    }

    /// The owner is back, or there is another reason to offer nothing: freeze where everything stands still.
    pub(crate) fn suspend(&mut self, stands_still: bool, io: &mut Io) {
        if !self.suspension.begin(stands_still, io.now) {
            return;
        }
        self.changed = true;
        // This machine may be about to go.
        self.tell_all(io.now);
        if !stands_still {
            return self.go_on(io);
        }
        self.suspension.stand_still();
        self.places.stand_still(io.now);
        io.effects.push(Effect::SuspendTasks);
    }

    /// The owner is away: go on.
    pub(crate) fn resume(&mut self, io: &mut Io) {
        if !self.suspension.end() {
            return;
        }
        self.changed = true;
        self.go_on(io);
    }

    /// Whether no task went on since what is kept was asked for with this number.
    pub(crate) fn is_stopped_since(&self, stop: u64) -> bool {
        self.suspension.is_stopped_since(stop)
    }

    /// What stands still goes on, but for what is frozen for others.
    fn go_on(&mut self, io: &mut Io) {
        if !self.suspension.go_on() {
            return;
        }
        self.places.go_on(io.now);
        io.effects.push(Effect::ResumeTasks);
    }

    /// These tasks, which wait here, began in an earlier life of this machine, and left checkpoints.
    pub(crate) fn found_checkpoints(&mut self, bag: BagId, tasks: &IntervalSet) {
        if let Some(held) = self.held.get_mut(&bag) {
            held.kept.extend_with(&tasks.intersection(&held.waiting));
        }
    }

    /// The vacate time ends now, if this machine is suspended, also for tasks that are frozen for others: nobody lets them go on.
    /// Tasks that come to wait later in the same stay, since they could not start or their output could not be kept, go back soon.
    pub(crate) fn vacate(&mut self, io: &mut Io) {
        if !self.is_suspended() {
            return;
        }
        self.suspension.vacate(io.now);
        for (place, task) in self.places.stop(|running| running.frozen) {
            if let Some(held) = self.held.get_mut(&task.bag) {
                held.running.remove_index(task.index);
                held.waiting.insert_index(task.index);
                held.kept.insert_index(task.index);
                io.effects.push(Effect::StopTask { place, task });
            }
        }
    }

    /// What came of [`Effect::KeepCheckpoints`]: who has one that travels goes back with it, and who has one that does not
    /// stays with it. Nothing if tasks went on meanwhile, also where they stand still again: what was packed is older than what
    /// they have now, or half of each.
    pub(crate) fn kept_checkpoints(
        &mut self,
        stop: u64,
        bag: BagId,
        checkpoints: &BTreeMap<u64, Option<Checkpoint>>,
        io: &mut Io,
        config: &Config,
    ) {
        if !self.is_stopped_since(stop) {
            return;
        }
        let Some(held) = self.held.get_mut(&bag) else { return };
        for (&index, checkpoint) in checkpoints {
            let Some(checkpoint) = checkpoint else { continue };
            let task = TaskId { bag, index };
            let begun_as = self.places.of(bag).find(|running| running.task == task).map(|running| running.attempt);
            let attempt = match begun_as {
                Some(attempt) => attempt,
                None if held.waiting.remove_index(index) => held.attempt_of(index),
                None => continue,
            };
            for (place, task) in self.places.stop(|running| running.task == task) {
                held.running.remove_index(index);
                io.effects.push(Effect::StopTask { place, task });
            }
            let result = TaskResult::unfinished(index, attempt, *checkpoint);
            // As of a failure, only of what is placed here is it believed.
            self.version += u64::from(!held.updates.is_answered());
            let version = (!held.updates.is_answered()).then_some(self.version);
            held.finished(result, io.now, version, true, io, config);
        }
        let bound = held.bound();
        let stays = |(index, kept): &(&u64, &Option<_>)| kept.is_none() && bound.contains(**index);
        let stay: IntervalSet = checkpoints.iter().filter(stays).map(|(&index, _)| index..index + 1).collect();
        if held.waiting != stay || !held.offered.is_empty() {
            self.version += 1;
            held.hand_back(stay, self.version, io, config);
        }
        self.forget_if_empty(bag);
        self.order_stale = true;
        self.changed = true;
    }

    /// Whatever is to begin while the owner is there has a vacate time that ends, also what comes when one has ended: new tasks,
    /// those that could not be started, those that were stopped, those that were offered in vain.
    pub(super) fn vacate_in_time(&mut self, now: Time) {
        if self.is_suspended() && self.suspension.vacate_at().is_none() && self.held.values().any(Held::has_unbound) {
            self.suspension.vacate_in_time(now);
        }
    }

    /// After the vacate time unstarted tasks go back, and what has begun if it has a checkpoint that can go with it.
    pub(super) fn vacate_if_due(&mut self, io: &mut Io, config: &Config) {
        if !self.suspension.has_to_vacate(io.now) {
            return;
        }
        for held in self.held.values_mut() {
            let (bound, bag) = (held.bound(), held.bag.id);
            let begun = self.places.of(bag).filter(|running| running.stands_still()).map(|running| running.task.index);
            let tasks = bound.union(&begun.map(|index| index..index + 1).collect());
            if held.has_unbound() {
                self.version += 1;
                held.hand_back(bound, self.version, io, config);
            }
            if !tasks.is_empty() {
                io.effects.push(Effect::KeepCheckpoints { stop: self.suspension.stop(), bag, tasks });
            }
        }
        self.order_stale = true;
    }
}
