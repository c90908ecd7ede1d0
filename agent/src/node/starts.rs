//! Makes what tasks of applications in rounds begin with, as the machine orders it, a few at a time.

use std::collections::VecDeque;

use idlewood_scheduler::rounds::Sources;
use idlewood_scheduler::{Event, StartMade, TaskId};

use super::done::Done;
use super::shared::Shared;
use super::start::{self, Made};
use super::storage::Storage;

/// Starts that are made at the same time. Our choice: each waits for the disk.
const UNDER_WAY_MAX: usize = 4;

/// Starts to be made.
#[derive(Debug, Default)]
pub(super) struct Starts {
    waiting: VecDeque<(TaskId, Sources)>,
    under_way: usize,
}

impl Starts {
    /// Makes what a task begins with, when it is its turn.
    pub(super) fn make(&mut self, task: TaskId, from: Sources, storage: &Storage, shared: &mut Shared) {
        self.waiting.push_back((task, from));
        self.next(storage, shared);
    }

    fn next(&mut self, storage: &Storage, shared: &mut Shared) {
        while self.under_way < UNDER_WAY_MAX
            && let Some((task, from)) = self.waiting.pop_front()
        {
            self.under_way += 1;
            let (blobs, gate, reader) = (shared.supplies.blobs.clone(), shared.supplies.gate.clone(), storage.reader());
            let known = shared.manifests.get(task.bag);
            let make = move || {
                let made = start::made(task, &from, known, &blobs, &gate, &reader);
                let made = made.inspect_err(|error| {
                    let TaskId { bag, index } = task;
                    let error = format!("{error:#}");
                    tracing::warn!(%bag, index, error, "what a task begins with could not be made; trying again");
                });
                Done::StartMade { task, made: made.ok() }
            };
            shared.jobs.spawn_blocking(make, Done::StartMade { task, made: None });
        }
    }

    /// What a task begins with was made, or not.
    pub(super) fn made(&mut self, task: TaskId, made: Option<Made>, storage: &Storage, shared: &mut Shared) {
        self.under_way -= 1;
        let made = match made {
            Some(Made { start, has_converged, pin }) => {
                shared.events.pin(pin);
                StartMade::Here { start, has_converged }
            }
            None => StartMade::NotNow,
        };
        shared.events.tell(Event::StartMade { task, made });
        self.next(storage, shared);
    }
}
