//! The places for tasks on this machine, as the peer knows them: where it starts, stops, freezes. What a task needs is
//! fetched, a worker runs it (`runs` says which, and what is ahead), what it produced is kept.

use std::time::Duration;

use idlewood_net::fetch::Origin;
use idlewood_overlay::Contact;
use idlewood_scheduler::{BagHeader, BagId, Checkpoint, Event, TaskId, TaskOutcome};
use idlewood_worker::{Outcome, WorkerEvent};
use tokio::task::{AbortHandle, Id};

use super::driver::{Done, Driver};
use super::runs::Given;
use super::task::{self, Collected, Ended, Preparation, PrepareError, Prepared};

/// What a place is doing.
#[derive(Debug)]
pub(super) enum Place {
    Free,
    /// Its needs are being fetched.
    Preparing {
        task: TaskId,
        job: AbortHandle,
    },
    /// A worker has it, or had it: its output is being kept.
    Running {
        task: TaskId,
        attempt: u32,
    },
    /// Frozen for another bag before it had begun.
    Waiting {
        given: Given,
    },
}

impl Place {
    /// The task that the peer has started here.
    pub(super) fn task(&self) -> Option<TaskId> {
        match self {
            Self::Free => None,
            Self::Preparing { task, .. } | Self::Running { task, .. } => Some(*task),
            Self::Waiting { given } => Some(given.task),
        }
    }

    /// Whether workers run this attempt of a task for it: what is still there of another says nothing of this one.
    pub(super) fn runs(&self, task: TaskId, attempt: u32) -> bool {
        matches!(self, Self::Running { task: there, attempt: of } if (*there, *of) == (task, attempt))
    }
}

impl Driver {
    /// Where a bag's blobs come from: its submitter, then whoever is near.
    pub(super) fn origin(&self, bag: BagId, submitter: &Contact) -> Origin {
        let others = self.peer().overlay_view().neighbours();
        let sources = std::iter::once(submitter).chain(others);
        let sources = sources.filter(|contact| contact.peer != self.peer().me().peer).cloned().collect();
        Origin { bag, key: self.peer().bag_key(bag), sources }
    }

    pub(super) fn start_task(
        &mut self,
        place: usize,
        task: TaskId,
        attempt: u32,
        bag: BagHeader,
        checkpoint: Option<Checkpoint>,
    ) {
        if self.claim(place, task, attempt) {
            return self.note_busy();
        }
        // Nothing more of it begins when its submitter is thrown out or the owner objects.
        let given = if checkpoint.is_none() { self.runs.at_hand(task, attempt) } else { None };
        if let Some(given) = given.filter(|given| self.supplies.objection(&given.prepared.manifest.label()).is_none()) {
            self.give(place, given);
            return self.note_busy();
        }
        let origin = self.origin(task.bag, &bag.submitter);
        let known = self.manifests.get(task.bag);
        let supplies = self.supplies.clone();
        let checkpoint = checkpoint.map(|checkpoint| (checkpoint, self.owner.settings.get().limits.checkpoint.0));
        let prepare = async move {
            let preparation = supplies.prepare(task, attempt, &bag, known, checkpoint, &origin).await;
            Done::Prepared { place, task, attempt, preparation }
        };
        let lost = Done::Prepared { place, task, attempt, preparation: Preparation::lost() };
        let job = self.jobs.spawn(prepare, lost);
        self.places[place] = Place::Preparing { task, job };
        self.note_busy();
    }

    pub(super) fn prepared(&mut self, id: Id, place: usize, task: TaskId, attempt: u32, preparation: Preparation) {
        self.checkpoints_unsigned += u64::from(preparation.planted);
        if let Some(manifest) = preparation.manifest {
            self.manifests.remember(task.bag, manifest);
        }
        if !matches!(&self.places[place], Place::Preparing { job, .. } if job.id() == id) {
            // Stopped the moment it was ready.
            return self.discard(preparation.result.ok());
        }
        match preparation.result {
            Ok(prepared) => self.give(place, Given { task, attempt, prepared, number: 0 }),
            Err(error) => self.cannot_run(place, task, attempt, error, None),
        }
    }

    /// No worker gets a task that the peer has started.
    pub(super) fn not_given(&mut self, place: usize, given: Given, error: PrepareError) {
        self.cannot_run(place, given.task, given.attempt, error, Some(given.prepared));
    }

    fn cannot_run(
        &mut self,
        place: usize,
        task: TaskId,
        attempt: u32,
        error: PrepareError,
        prepared: Option<Box<Prepared>>,
    ) {
        self.places[place] = Place::Running { task, attempt };
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        let takes_small = self.pins.takes_small_outputs();
        let collect = move || {
            drop(prepared);
            Done::Collected { task, attempt, collected: task::not_prepared(&blobs, takes_small, error, speed_mops) }
        };
        self.jobs.spawn_blocking(collect, Done::Collected { task, attempt, collected: Collected::not_started() });
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
        let task = match &self.places[place] {
            Place::Preparing { task, job } => {
                job.abort();
                *task
            }
            &Place::Running { task, attempt } => match self.stop_in_run(task, attempt) {
                Some(given) => {
                    self.discard(Some(given.prepared));
                    task
                }
                // Its end comes as an event.
                None => return,
            },
            Place::Waiting { given } => given.task,
            Place::Free => return,
        };
        self.follow_ups.push_back(Event::TaskEnded { task, outcome: TaskOutcome::Stopped }.into());
        if let Place::Waiting { given } = std::mem::replace(&mut self.places[place], Place::Free) {
            self.discard(Some(given.prepared));
        }
        self.note_busy();
    }

    /// A bag came ahead of this task's: it stops where it is and keeps its worker. One that has not begun will not begin.
    pub(super) fn freeze_task(&mut self, place: usize, task: TaskId) {
        if let Place::Running { task: there, attempt } = self.places[place]
            && there == task
            && let Some(given) = self.freeze_in_run(task, attempt)
        {
            self.places[place] = Place::Waiting { given };
        }
    }

    pub(super) fn thaw_task(&mut self, place: usize, task: TaskId) {
        match std::mem::replace(&mut self.places[place], Place::Free) {
            Place::Waiting { given } if given.task == task => self.give(place, given),
            other => {
                if let Place::Running { task, attempt } = other {
                    self.thaw_in_run(task, attempt);
                }
                self.places[place] = other;
            }
        }
    }

    pub(super) fn worker_ended(&mut self, event: WorkerEvent) {
        let (slot, mut ended) = Ended::of(event);
        let Some(Given { task, attempt, prepared, .. }) = self.next_in_run(slot) else {
            tracing::error!(slot, "a worker ended that nobody had started");
            return;
        };
        let of_bag = Duration::from_secs(prepared.manifest.time_limit_s);
        ended.cut = match ended.outcome {
            Outcome::TimedOut { limit } => limit < of_bag,
            Outcome::OverDisk { limit_bytes } => limit_bytes < prepared.manifest.disk_bytes,
            _ => false,
        };
        self.note_start(task.bag, ended.wall);
        self.note_span(task.bag, ended.wall);
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        let takes_small = self.pins.takes_small_outputs();
        let codes = &prepared.manifest.success_codes;
        let untouched = takes_small.then(|| task::collect_untouched(&blobs, &prepared.job, codes, &ended, speed_mops));
        if let Some(collected) = untouched.flatten() {
            prepared.leave_nothing();
            self.over(task, attempt, collected);
        } else {
            self.note_collecting(task, attempt);
            let collect = move || {
                let codes = &prepared.manifest.success_codes;
                let collected = task::collect(&blobs, takes_small, Some(&prepared.job), codes, &ended, speed_mops);
                Done::Collected { task, attempt, collected }
            };
            self.jobs.spawn_blocking(collect, Done::Collected { task, attempt, collected: Collected::not_started() });
        }
        self.go_on(slot, task.bag);
    }
}
