//! The checkpoints of tasks here: packed where the machine orders it, found after a start, removed where no task needs them.

use std::fs;
use std::time::Duration;

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Event, TaskId};
use idlewood_worker::removal;

use super::checkpoints::{self, Kept};
use super::done::Done;
use super::driver::Driver;

/// How often checkpoints that no task needs are removed.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

impl Driver {
    /// Packs the checkpoints of these tasks, which stand still: what a task does after that would be lost.
    pub(super) fn keep_checkpoints(&mut self, stop: u64, bag: BagId, tasks: IntervalSet) {
        let (homes, blobs) = (self.shared.supplies.homes.clone(), self.shared.supplies.blobs.clone());
        let bytes_max = self.shared.settings.get().limits.checkpoint.0;
        let pack = move || {
            let kept = checkpoints::keep(homes.checkpoints(), bag, &tasks, &blobs, bytes_max).unwrap_or_else(|error| {
                tracing::warn!(%bag, %error, "tasks go back without their checkpoints");
                Kept::new()
            });
            Done::CheckpointsKept { stop, bag, kept }
        };
        self.packing += 1;
        self.shared.jobs.spawn_blocking(pack, Done::CheckpointsKept { stop, bag, kept: Kept::new() });
    }

    /// Tells the peer, which hands the tasks back unless some went on meanwhile.
    pub(super) fn checkpoints_kept(&mut self, stop: u64, bag: BagId, kept: Kept) {
        self.packing -= 1;
        if self.peer().is_stopped_since(stop) {
            // Should the task come back, it goes on from what it comes with, and not from what is here.
            kept.iter()
                .filter(|(_, kept)| kept.is_some())
                .for_each(|(&index, _)| self.set_aside(TaskId { bag, index }));
        }
        let checkpoints = kept.iter().map(|(&index, kept)| (index, kept.as_ref().map(|(checkpoint, _)| *checkpoint)));
        self.feed(Event::CheckpointsKept { stop, bag, checkpoints: checkpoints.collect() });
        // By now the peer's records pin them, or nobody wants them.
        drop(kept);
    }

    /// Removes a checkpoint that a worker may still have open.
    fn set_aside(&mut self, task: TaskId) {
        let path = checkpoints::path(self.shared.supplies.homes.checkpoints(), task);
        let moved = tempfile::tempdir_in(self.shared.supplies.homes.scratch()).and_then(|aside| {
            fs::rename(&path, aside.path().join("checkpoint"))?;
            // What it has of the task is not for its own way of removing.
            Ok(aside.keep())
        });
        match moved {
            Ok(aside) => {
                let remove = move || {
                    if let Err(error) = removal::remove(&aside) {
                        tracing::warn!(%error, path = %aside.display(), "a checkpoint cannot be removed");
                    }
                    Done::Discarded
                };
                self.shared.jobs.spawn_blocking(remove, Done::Discarded);
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a checkpoint that went elsewhere stays here, too")
            }
        }
    }

    /// Tells the peer of the checkpoints of tasks that began in an earlier life.
    pub(super) fn find_checkpoints(&mut self) {
        match checkpoints::found(self.shared.supplies.homes.checkpoints()) {
            Ok(found) => {
                for (bag, tasks) in found {
                    self.feed(Event::CheckpointsFound { bag, tasks });
                }
            }
            Err(error) => tracing::warn!(%error, "it is not known which tasks have checkpoints"),
        }
    }

    /// Removes what tasks left that are not to run here any more.
    pub(super) fn sweep_checkpoints(&mut self) {
        let (homes, held) = (self.shared.supplies.homes.clone(), self.peer().unfinished());
        let sweep = move || {
            if let Err(error) = homes.sweep_checkpoints(&held) {
                tracing::warn!(%error, "not all old checkpoints could be removed");
            }
            Done::Discarded
        };
        self.shared.jobs.spawn_blocking(sweep, Done::Discarded);
    }
}
