//! Tasks of a bag that is over, or of one that goes on, which their user wants run again.

use std::sync::Arc;

use blake3::Hash;
use idlewood_blobs::{BlobError, Blobs};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Closing, Event};
use idlewood_trust::manifest::Manifest;

use super::Refusal;
use super::driver::{Done, Driver};
use super::handle::Reply;
use super::kept;
use super::pin::Pin;
use super::views::answer;

/// What the tasks of a bag need is here, and stays.
#[derive(Debug)]
pub(super) struct Needs {
    manifest: Arc<Manifest>,
    _pins: Vec<Pin>,
}

impl Driver {
    /// Looks beside the loop whether everything is still here that the tasks need: those of these that are over, or those
    /// that failed.
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
        let again = self.again(bag, tasks.as_ref());
        let refusal = match (view.closed, &tasks) {
            (Some((Closing::Cancelled, _)), _) => format!("bag {bag} was cancelled: submit it again"),
            (_, None) if again.is_empty() => format!("no task of bag {bag} has failed"),
            (_, Some(_)) if again.is_empty() => format!("none of these tasks of bag {bag} is over"),
            _ => {
                let blobs = self.supplies.blobs.clone();
                // What they wrote before may be why they run again.
                self.kept.output_blobs(bag, &again).into_iter().for_each(|hash| blobs.doubt(hash));
                let look = move || Done::RerunReady { bag, tasks, needs: needs(&blobs, bag).map(Box::new), reply };
                self.answers.spawn_blocking(look, Done::Discarded);
                return;
            }
        };
        answer(reply, Err(Refusal::Conflict(refusal)));
    }

    /// Those of these tasks that are over, or those that failed.
    fn again(&self, bag: BagId, tasks: Option<&IntervalSet>) -> IntervalSet {
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
        let tasks = self.again(bag, tasks);
        let refusal = match self.peer().bag(bag).map(|view| view.closed) {
            None => Refusal::NotFound("the bag was removed meanwhile".to_owned()),
            Some(Some((Closing::Cancelled, _))) => Refusal::Conflict(format!("bag {bag} was cancelled meanwhile")),
            Some(_) if tasks.is_empty() => Refusal::Conflict(format!("these tasks of bag {bag} run again already")),
            Some(_) if !self.machine.has_room() => {
                Refusal::Unavailable("much waits for the disk: see the agent's log, and try again".to_owned())
            }
            Some(_) => {
                self.kept.learn(bag, Some(&needs.manifest));
                self.feed(Event::Rerun { bag, tasks });
                return answer(reply, self.find(&hex::encode(bag.0)).map(|view| self.bag_view(&view)));
            }
        };
        answer(reply, Err(refusal));
    }
}

/// Blocks.
fn needs(blobs: &Arc<Blobs>, bag: BagId) -> Result<Needs, Refusal> {
    let gone =
        |what: &str| Refusal::Conflict(format!("{what} of bag {bag} is not on this disk any more: submit it again"));
    let unavailable = |error: BlobError| Refusal::Unavailable(error.to_string());
    let manifest = kept::read_manifest(blobs, bag).map_err(unavailable)?.ok_or_else(|| gone("the manifest"))?;
    let mut pins = Vec::new();
    for input in manifest.blobs() {
        let hash = Hash::from_bytes(input.blob.0);
        pins.push(Pin::new(blobs, hash));
        // It may have been fetched as another machine's since.
        blobs.make_durable(hash).map_err(|error| match error {
            BlobError::Missing { .. } => gone(&input.name),
            error => unavailable(error),
        })?;
    }
    Ok(Needs { manifest: Arc::new(manifest), _pins: pins })
}
