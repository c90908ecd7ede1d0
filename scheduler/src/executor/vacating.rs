//! The owner comes back: everything is frozen at once, and after the vacate time goes where it can go on. A machine that cannot
//! take new tasks, since it has no room for results or is to finish, hands back likewise, but what has begun runs on to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;

use super::held::Held;
use super::{Executor, Running};
use crate::bag::{BagId, Checkpoint, TaskId, TaskResult};
use crate::config::Config;
use crate::io::Io;
use crate::peer::Effect;
use crate::ranges::IntervalSet;

impl Executor {
    /// The owner wants another vacate time, which also counts for the present stay.
    pub(crate) fn vacates_after(&mut self, after: Duration) {
        let before = std::mem::replace(&mut self.vacate_after, after);
        self.vacate_at = self.vacate_at.map(|at| at - before + after);
    }

    /// The owner is back, or there is another reason to offer nothing: freeze where everything stands still.
    pub(crate) fn suspend(&mut self, stands_still: bool, io: &mut Io) {
        let was_suspended = std::mem::replace(&mut self.suspended, true);
        self.vacates_at_once = false;
        if was_suspended && self.stands_still == stands_still {
            return;
        }
        // What has begun has a vacate time from when it stands still. Where it goes on instead, what still waits with a checkpoint has
        // had its own, and what was packed of it is not taken any more.
        let after = if was_suspended && !stands_still { Duration::ZERO } else { self.vacate_after };
        self.vacate_at.get_or_insert(io.now + after);
        self.changed = true;
        // This machine may be about to go.
        self.tell_all(io.now);
        if !stands_still {
            return self.go_on(io);
        }
        self.stands_still = true;
        for running in self.places.iter_mut().flatten() {
            running.pause(io.now);
        }
        io.effects.push(Effect::SuspendTasks);
    }

    /// The owner is away: go on.
    pub(crate) fn resume(&mut self, io: &mut Io) {
        if !std::mem::replace(&mut self.suspended, false) {
            return;
        }
        self.vacate_at = None;
        self.vacates_at_once = false;
        self.changed = true;
        self.go_on(io);
    }

    /// Whether no task went on since what is kept was asked for with this number.
    pub(crate) fn is_stopped_since(&self, stop: u64) -> bool {
        self.suspended && self.stop == stop
    }

    /// What stands still goes on, but for what is frozen for others.
    fn go_on(&mut self, io: &mut Io) {
        self.stop += 1;
        if !std::mem::replace(&mut self.stands_still, false) {
            return;
        }
        for running in self.places.iter_mut().flatten().filter(|running| !running.frozen) {
            running.since = Some(io.now);
        }
        io.effects.push(Effect::ResumeTasks);
    }

    /// These tasks, which wait here, began in an earlier life of this machine, and left checkpoints.
    pub(crate) fn found_checkpoints(&mut self, bag: BagId, tasks: &IntervalSet) {
        if let Some(held) = self.held.get_mut(&bag) {
            held.kept.extend_with(&tasks.intersection(&held.waiting));
        }
    }

    /// The vacate time ends now, if this machine is suspended, also for tasks that are frozen for others: nobody lets them go on.
    /// Tasks that come to wait later in the same stay, since they could not start or their output could not be kept, go back at
    /// once, too.
    pub(crate) fn vacate(&mut self, io: &mut Io) {
        if !self.suspended {
            return;
        }
        self.vacate_at = Some(io.now);
        self.vacates_at_once = true;
        for (place, running) in self.places.iter_mut().enumerate() {
            let Some(running) = running.as_mut().filter(|running| running.frozen && !running.stopping) else {
                continue;
            };
            let task = running.task;
            if let Some(held) = self.held.get_mut(&task.bag) {
                running.stopping = true;
                held.running.remove_index(task.index);
                held.waiting.insert_index(task.index);
                held.kept.insert_index(task.index);
                io.effects.push(Effect::StopTask { place: place as u32, task });
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
            let of_task = |running: &&mut Running| running.task == TaskId { bag, index } && !running.stopping;
            let place = self.places.iter_mut().position(|place| place.as_mut().filter(of_task).is_some());
            let attempt = match place.and_then(|place| self.places[place].as_mut()) {
                Some(running) => {
                    running.stopping = true;
                    held.running.remove_index(index);
                    running.attempt
                }
                None if held.waiting.remove_index(index) => held.attempt_of(index),
                None => continue,
            };
            if let Some(place) = place {
                io.effects.push(Effect::StopTask { place: place as u32, task: TaskId { bag, index } });
            }
            let result = TaskResult::unfinished(index, attempt, *checkpoint);
            // As of a failure, only of what is placed here is it believed.
            self.version += u64::from(!held.agreed);
            let version = (!held.agreed).then_some(self.version);
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
        if self.suspended && self.vacate_at.is_none() && self.held.values().any(Held::has_unbound) {
            let after = if self.vacates_at_once { Duration::ZERO } else { self.vacate_after };
            self.vacate_at = Some(now + after);
        }
    }

    /// After the vacate time unstarted tasks go back, and what has begun if it has a checkpoint that can go with it.
    pub(super) fn vacate_if_due(&mut self, io: &mut Io, config: &Config) {
        if self.vacate_at.is_none_or(|at| at > io.now) {
            return;
        }
        self.vacate_at = None;
        for held in self.held.values_mut() {
            let (bound, bag) = (held.bound(), held.bag.id);
            let stands_still =
                |running: &&Running| running.task.bag == bag && running.since.is_none() && !running.stopping;
            let begun = self.places.iter().flatten().filter(stands_still).map(|running| running.task.index);
            let tasks = bound.union(&begun.map(|index| index..index + 1).collect());
            if held.has_unbound() {
                self.version += 1;
                held.hand_back(bound, self.version, io, config);
            }
            if !tasks.is_empty() {
                io.effects.push(Effect::KeepCheckpoints { stop: self.stop, bag, tasks });
            }
        }
        self.order_stale = true;
    }
}
