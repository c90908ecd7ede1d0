//! The owner's return: all tasks are frozen at once. After the vacate time, unstarted tasks and those with a checkpoint
//! that can travel go back to their submitters. A machine that can take no new tasks, since its disk is full or it
//! finishes, hands back likewise, but its begun tasks run on to their end.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;

use super::Executor;
use super::held_bag::HeldBag;
use crate::bag::{BagId, Checkpoint, TaskId, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::peer::Effect;
use crate::ranges::IntervalSet;

impl Executor {
    /// Changes the vacate time, also the one that is running.
    pub(crate) fn vacates_after(&mut self, after: Duration) {
        self.suspension.vacates_after(after);
    }

    /// The owner is back, or there is another reason to begin no task. With `freezes`, begun tasks are frozen, too.
    pub(crate) fn suspend(&mut self, freezes: bool, io: &mut Io, config: &Config) {
        if !self.suspension.suspend(freezes, io.now) {
            return;
        }
        if freezes && io.leaves > 1 {
            self.hand_back_unstarted(io, config);
        }
        self.changed = true;
        // This machine may be about to leave.
        self.send_all_now(io.now);
        if !freezes {
            return self.thaw(io);
        }
        self.suspension.freeze();
        self.places.freeze_all(io.now);
        io.effects.push(Effect::SuspendTasks);
    }

    /// The owner is away: tasks go on.
    pub(crate) fn resume(&mut self, io: &mut Io) {
        if !self.suspension.resume(io.now) {
            return;
        }
        self.changed = true;
        self.thaw(io);
    }

    /// Whether no task went on since [`Effect::KeepCheckpoints`] with this stop's number.
    pub(crate) fn is_stopped_since(&self, stop: u64) -> bool {
        self.suspension.is_stopped_since(stop)
    }

    /// Frozen tasks go on, but for the preempted ones.
    fn thaw(&mut self, io: &mut Io) {
        if !self.suspension.thaw() {
            return;
        }
        self.places.thaw_all(io.now);
        io.effects.push(Effect::ResumeTasks);
    }

    /// These tasks began before this machine's restart and left checkpoints on its disk; counts for those that wait.
    pub(crate) fn found_checkpoints(&mut self, bag: BagId, tasks: &IntervalSet) {
        if let Some(held) = self.bags.get_mut(&bag) {
            held.local_checkpoints.extend_with(&tasks.intersection(&held.waiting));
        }
    }

    /// Ends the vacate time now, if this machine is suspended. Preempted tasks are stopped and wait with their checkpoints,
    /// since nothing would thaw them. Tasks that come to wait later in this suspension go back soon.
    pub(crate) fn vacate(&mut self, io: &mut Io) {
        if !self.is_suspended() {
            return;
        }
        self.suspension.vacate(io.now);
        for (place, task) in self.places.stop(|running| running.preempted) {
            if let Some(held) = self.bags.get_mut(&task.bag) {
                held.running.remove_index(task.index);
                held.waiting.insert_index(task.index);
                held.local_checkpoints.insert_index(task.index);
                io.effects.push(Effect::StopTask { place, task });
            }
        }
    }

    /// The driver's answer to [`Effect::KeepCheckpoints`]: tasks with a packed checkpoint go back with it, waiting tasks
    /// whose checkpoint cannot travel stay, and all other unstarted tasks go back. Nothing happens if tasks went on since
    /// that effect, even if they are frozen again: what was packed is older than their state, or a mixture.
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
        let Some(held) = self.bags.get_mut(&bag) else { return };
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
            // The submitter believes it only of a task that it knows to be placed here: a `Holding` goes first.
            self.version += u64::from(!held.updates.is_answered());
            let version = (!held.updates.is_answered()).then_some(self.version);
            held.task_ended(result, io.now, version, true, io, config);
        }
        let unmovable = held.unmovable();
        let stays = |(index, packed): &(&u64, &Option<_>)| packed.is_none() && unmovable.contains(**index);
        let stay: IntervalSet = checkpoints.iter().filter(stays).map(|(&index, _)| index..index + 1).collect();
        if held.waiting != stay || !held.offered.is_empty() {
            self.version += 1;
            held.hand_back(stay, self.version, io, config);
        }
        self.forget_if_empty(bag);
        self.order_stale = true;
        self.changed = true;
    }

    /// The user of a bag withholds it: what has not begun goes back, but for tasks whose checkpoint is on this machine alone.
    pub(super) fn give_back_unstarted(&mut self, bag: BagId, io: &mut Io, config: &Config) {
        let Some(held) = self.bags.get_mut(&bag).filter(|held| held.has_movable()) else { return };
        self.version += 1;
        held.hand_back(held.unmovable(), self.version, io, config);
        self.forget_if_empty(bag);
        self.order_stale = true;
        self.changed = true;
    }

    /// Starts another vacate time where tasks wait on a suspended machine after one has ended: new tasks, and those whose start
    /// failed, that were stopped, or whose offer was not taken.
    pub(super) fn vacate_in_time(&mut self, now: Time) {
        if self.is_suspended() && self.bags.values().any(HeldBag::has_movable) {
            if self.suspension.vacate_at().is_none() {
                self.suspension.vacate_in_time(now);
            }
            self.suspension.return_in_time(now);
        }
    }

    /// At the end of the vacate time unstarted tasks go back, and the driver is asked to pack the checkpoints of the others.
    pub(super) fn vacate_if_due(&mut self, io: &mut Io, config: &Config) {
        if self.suspension.return_at().is_some_and(|at| at <= io.now) {
            self.hand_back_unstarted(io, config);
        }
        if !self.suspension.has_to_vacate(io.now) {
            return;
        }
        for held in self.bags.values_mut() {
            let (unmovable, bag) = (held.unmovable(), held.bag.id);
            let begun = self.places.of(bag).filter(|running| running.is_frozen()).map(|running| running.task.index);
            let tasks = unmovable.union(&begun.map(|index| index..index + 1).collect());
            if held.has_movable() {
                self.version += 1;
                held.hand_back(unmovable, self.version, io, config);
            }
            if !tasks.is_empty() {
                io.effects.push(Effect::KeepCheckpoints { stop: self.suspension.stop(), bag, tasks });
            }
        }
        self.order_stale = true;
    }
}
