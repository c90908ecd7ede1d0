//! The checkpoints of tasks here: packed where the machine orders it, found after a start, removed where no task needs them.

use std::fs;
use std::time::Duration;

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Event, Peer, TaskId};
use idlewood_worker::removal;

use super::checkpoints::{self, Kept};
use super::done::Done;
use super::shared::Shared;

/// How often checkpoints that no task needs are removed.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The packing that is under way.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// Bags whose checkpoints are being packed.
    bags: usize,
}

impl Packing {
    /// Whether checkpoints are being packed.
    pub(super) fn is_under_way(&self) -> bool {
        self.bags > 0
    }

    /// Packs the checkpoints of these tasks, which stand still: what a task does after that would be lost.
    pub(super) fn pack(&mut self, stop: u64, bag: BagId, tasks: IntervalSet, shared: &mut Shared) {
        let (homes, blobs) = (shared.supplies.homes.clone(), shared.supplies.blobs.clone());
        let bytes_max = shared.settings.get().limits.checkpoint.0;
        let pack = move || {
            let kept = checkpoints::keep(homes.checkpoints(), bag, &tasks, &blobs, bytes_max);
            let kept = kept.unwrap_or_else(|error| {
                tracing::warn!(%bag, %error, "tasks go back without their checkpoints");
                Kept::new()
            });
            Done::CheckpointsKept { stop, bag, kept }
        };
        self.bags += 1;
        shared.jobs.spawn_blocking(pack, Done::CheckpointsKept { stop, bag, kept: Kept::new() });
    }

    /// Tells the peer, which hands the tasks back unless some went on meanwhile.
    pub(super) fn packed(&mut self, stop: u64, bag: BagId, kept: Kept, peer: &Peer, shared: &mut Shared) {
        self.bags -= 1;
        let is_stopped = peer.is_stopped_since(stop);
        let mut checkpoints = Vec::new();
        for (index, kept) in kept {
            checkpoints.push((index, kept.as_ref().map(|(checkpoint, _)| *checkpoint)));
            let Some((_, pin)) = kept else { continue };
            shared.events.pin(pin);
            if is_stopped {
                // Should the task come back, it goes on from what it comes with, and not from what is here.
                set_aside(TaskId { bag, index }, shared);
            }
        }
        shared.events.tell(Event::CheckpointsKept { stop, bag, checkpoints: checkpoints.into_iter().collect() });
    }

    /// Removes what tasks left that are not to run here any more.
    pub(super) fn sweep(&self, peer: &Peer, shared: &mut Shared) {
        let (homes, held) = (shared.supplies.homes.clone(), peer.unfinished());
        let sweep = move || {
            if let Err(error) = homes.sweep_checkpoints(&held) {
                tracing::warn!(%error, "not all old checkpoints could be removed");
            }
            Done::Discarded
        };
        shared.jobs.spawn_blocking(sweep, Done::Discarded);
    }

    /// Tells the peer of the checkpoints of tasks that began in an earlier life.
    pub(super) fn find(&self, shared: &mut Shared) {
        match checkpoints::found(shared.supplies.homes.checkpoints()) {
            Ok(found) => {
                for (bag, tasks) in found {
                    shared.events.tell(Event::CheckpointsFound { bag, tasks });
                }
            }
            Err(error) => tracing::warn!(%error, "it is not known which tasks have checkpoints"),
        }
    }
}

/// Removes a checkpoint that a worker may still have open.
fn set_aside(task: TaskId, shared: &mut Shared) {
    let homes = &shared.supplies.homes;
    let path = checkpoints::path(homes.checkpoints(), task);
    let moved = tempfile::tempdir_in(homes.scratch()).and_then(|aside| {
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
            shared.jobs.spawn_blocking(remove, Done::Discarded);
        }
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a checkpoint that went elsewhere stays here, too")
        }
    }
}
