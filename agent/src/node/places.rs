//! The places for tasks on this machine, from the driver's side: one worker each, some of them frozen for others. What a task needs is fetched, it runs, what it produced is kept.

use idlewood_overlay::Contact;
use idlewood_scheduler::{BagHeader, Event, TaskId, TaskOutcome};
use tokio::task::{AbortHandle, Id};

use super::driver::{Done, Driver};
use super::task::{self, Collected, Ended, Preparation, PrepareError, Prepared};
use crate::worker::WorkerEvent;

/// What a place is doing.
#[derive(Debug)]
pub(super) enum Place {
    Free,
    /// Its needs are being fetched.
    Preparing {
        task: TaskId,
        job: AbortHandle,
    },
    Running {
        task: TaskId,
        prepared: Box<Prepared>,
    },
    /// Its output is being kept.
    Collecting,
}

impl Driver {
    /// Who may have a bag's blobs: its submitter, then whoever is near.
    fn sources(&self, submitter: &Contact) -> Vec<Contact> {
        let others = self.peer.overlay_view().neighbours();
        std::iter::once(submitter)
            .chain(others)
            .filter(|contact| contact.peer != self.peer.me().peer)
            .cloned()
            .collect()
    }

    pub(super) fn start_task(&mut self, place: usize, task: TaskId, attempt: u32, bag: BagHeader) {
        // The task that was frozen here, if any, is over.
        self.workers.thaw_slot(place);
        let sources = self.sources(&bag.submitter);
        let known = self.manifests.get(task.bag);
        let supplies = self.supplies.clone();
        let prepare = async move {
            let preparation = supplies.prepare(task, attempt, &bag, known, &sources).await;
            Done::Prepared { place, task, preparation }
        };
        let job = self.jobs.spawn(prepare, Done::Prepared { place, task, preparation: Preparation::lost() });
        self.places[place] = Place::Preparing { task, job };
        self.note_busy();
    }

    pub(super) fn prepared(&mut self, id: Id, place: usize, task: TaskId, preparation: Preparation) {
        if let Some(manifest) = preparation.manifest {
            self.manifests.remember(task.bag, manifest);
        }
        if !matches!(&self.places[place], Place::Preparing { job, .. } if job.id() == id) {
            // Stopped the moment it was ready.
            return self.discard(preparation.result.ok());
        }
        let (error, prepared) = match preparation.result {
            Ok(prepared) => match self.workers.start(place, &prepared.job) {
                Ok(()) => {
                    self.places[place] = Place::Running { task, prepared };
                    return;
                }
                Err(error) => (PrepareError::from(error), Some(prepared)),
            },
            Err(error) => (error, None),
        };
        self.places[place] = Place::Collecting;
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        let collect = move || {
            drop(prepared);
            Done::Collected { place, task, collected: task::not_prepared(&blobs, error, speed_mops) }
        };
        self.jobs.spawn_blocking(collect, Done::Collected { place, task, collected: Collected::not_started() });
    }

    /// Removes the directory of what is not going to run.
    pub(super) fn discard(&mut self, prepared: Option<Box<Prepared>>) {
        if let Some(prepared) = prepared {
            let remove = move || {
                drop(prepared);
                Done::Discarded
            };
            self.jobs.spawn_blocking(remove, Done::Discarded);
        }
    }

    pub(super) fn stop_task(&mut self, place: usize) {
        match &self.places[place] {
            Place::Preparing { task, job } => {
                job.abort();
                self.follow_ups.push_back(Event::TaskEnded { task: *task, outcome: TaskOutcome::Stopped });
                self.places[place] = Place::Free;
                self.note_busy();
            }
            // Its end comes as an event.
            Place::Running { .. } => {
                self.workers.stop(place);
            }
            Place::Free | Place::Collecting => {}
        }
    }

    /// A bag came ahead of this task's: it stops where it is and keeps its worker. One that is not ready yet will not begin.
    pub(super) fn freeze_task(&mut self, place: usize, task: TaskId) {
        if self.has(place, task) {
            self.workers.freeze_slot(place);
        }
    }

    pub(super) fn thaw_task(&mut self, place: usize, task: TaskId) {
        if self.has(place, task) {
            self.workers.thaw_slot(place);
        }
    }

    /// Whether the task is still there: it may have ended the moment before.
    fn has(&self, place: usize, wanted: TaskId) -> bool {
        match &self.places[place] {
            Place::Preparing { task, .. } | Place::Running { task, .. } => *task == wanted,
            Place::Free | Place::Collecting => false,
        }
    }

    pub(super) fn worker_ended(&mut self, event: WorkerEvent) {
        let (place, ended) = Ended::of(event);
        let (task, prepared) = match std::mem::replace(&mut self.places[place], Place::Collecting) {
            Place::Running { task, prepared } => (task, prepared),
            other => {
                tracing::error!(place, "a worker ended that nobody had started");
                self.places[place] = other;
                return;
            }
        };
        self.note_start(task.bag, ended.wall);
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        let collect = move || {
            let codes = &prepared.manifest.success_codes;
            let collected = task::collect(&blobs, Some(&prepared.job), codes, &ended, speed_mops);
            Done::Collected { place, task, collected }
        };
        self.jobs.spawn_blocking(collect, Done::Collected { place, task, collected: Collected::not_started() });
    }

    pub(super) fn collected(&mut self, place: usize, task: TaskId, collected: Collected) {
        self.places[place] = Place::Free;
        let Collected { outcome, pin } = collected;
        self.feed(Event::TaskEnded { task, outcome });
        // By now the peer's record pins the output, or nobody wants it.
        drop(pin);
        self.note_busy();
    }
}
