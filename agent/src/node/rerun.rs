//! Rerunning tasks of a bag, finished or not, on the user's request.

use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Closing, Event};
use idlewood_trust::manifest::Manifest;

use super::driver::{Done, Driver};
use super::pin::Pin;
use super::pins;
use crate::handle::{Refusal, Reply, answer};

/// Pins of everything that the tasks of a bag need.
#[derive(Debug)]
pub(super) struct Needs {
    manifest: Arc<Manifest>,
    _pins: Vec<Pin>,
}

impl Driver {
    /// Checks, in a blocking thread, that everything is still here that the tasks need: of the given tasks the finished
    /// ones, or the failed tasks.
    pub(super) fn rerun(&mut self, id: &str, tasks: Option<Vec<u64>>, reply: Reply<idlewood_api::Bag>) {
        let view = match self.find(id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        let tasks: Option<IntervalSet> = tasks.map(|mut tasks| {
            tasks.sort_unstable();
            tasks.into_iter().filter(|&index| index < view.bag.tasks).map(|index| index..index + 1).collect()
        });
        let rerun_tasks = self.rerun_tasks(bag, tasks.as_ref());
        let refusal = match (view.closed, &tasks) {
            (Some((Closing::Cancelled, _)), _) => format!("bag {bag} was cancelled: submit it again"),
            (_, None) if rerun_tasks.is_empty() => format!("no task of bag {bag} has failed"),
            (_, Some(_)) if rerun_tasks.is_empty() => format!("none of these tasks of bag {bag} is over"),
            _ => {
                let blobs = self.supplies.blobs.clone();
                // A damaged former output may be why they run again.
                self.pins.output_blobs(bag, &rerun_tasks).into_iter().for_each(|hash| blobs.doubt(hash));
                let look = move || Done::RerunReady { bag, tasks, needs: needs(&blobs, bag).map(Box::new), reply };
                self.answers.spawn_blocking(look, Done::Discarded);
                return;
            }
        };
        answer(reply, Err(Refusal::Conflict(refusal)));
    }

    /// Of the given tasks the finished ones, or the failed tasks.
    fn rerun_tasks(&self, bag: BagId, tasks: Option<&IntervalSet>) -> IntervalSet {
        let (succeeded, failed) = self.peer().over(bag);
        tasks.map_or(failed.clone(), |tasks| failed.union(&succeeded).intersection(tasks))
    }

    pub(super) fn rerun_ready(
        &mut self,
        bag: BagId,
        tasks: Option<&IntervalSet>,
        needs: Result<Box<Needs>, Refusal>,
        reply: Reply<idlewood_api::Bag>,
    ) {
        let needs = match needs {
            Ok(needs) => needs,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let tasks = self.rerun_tasks(bag, tasks);
        let refusal = match self.peer().bag(bag).map(|view| view.closed) {
            None => Refusal::NotFound("the bag was removed meanwhile".to_owned()),
            Some(Some((Closing::Cancelled, _))) => Refusal::Conflict(format!("bag {bag} was cancelled meanwhile")),
            Some(_) if tasks.is_empty() => Refusal::Conflict(format!("these tasks of bag {bag} run again already")),
            Some(_) if !self.machine.has_room() => {
                Refusal::Unavailable("much waits for the disk: see the agent's log, and try again".to_owned())
            }
            Some(_) => {
                self.pins.learn(bag, Some(&needs.manifest));
                self.feed(Event::Rerun { bag, tasks });
                return answer(reply, self.find(&hex::encode(bag.0)).map(|view| self.bag_view(&view)));
            }
        };
        answer(reply, Err(refusal));
    }
}

/// Pins everything that the bag's tasks need. Blocks.
fn needs(blobs: &Arc<Blobs>, bag: BagId) -> Result<Needs, Refusal> {
    let gone =
        |what: &str| Refusal::Conflict(format!("{what} of bag {bag} is not on this disk any more: submit it again"));
    let unavailable = |error: BlobError| Refusal::Unavailable(error.to_string());
    let manifest = pins::read_manifest(blobs, bag).map_err(unavailable)?.ok_or_else(|| gone("the manifest"))?;
    let mut pins = Vec::new();
    for input in manifest.blobs() {
        let hash = Hash::from_bytes(input.blob.0);
        pins.push(Pin::new(blobs, hash));
        // It may have been fetched since for another machine's bag, without being durable.
        blobs.make_durable(hash).map_err(|error| match error {
            BlobError::Missing { .. } => gone(&input.name),
            error => unavailable(error),
        })?;
    }
    Ok(Needs { manifest: Arc::new(manifest), _pins: pins })
}
