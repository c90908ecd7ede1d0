//! What users order of bags of this machine: to take one, cancel it, run tasks of it again, remove it. Whoever orders is answered when
//! that is durable, so that no restart takes it back.

use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Closing, Event};

use super::done::Done;
use super::driver::Driver;
use super::rerun::{self, Needs};
use super::submission::{self, Accepted};
use crate::handle::{Refusal, Reply, answer};

/// Submissions that are checked and kept at the same time.
const ACCEPTING_MAX: usize = 64;

/// Somebody who waits for the end of a bag to be durable.
#[derive(Debug)]
pub(super) struct Ending {
    /// The bag as it was before its removal.
    was: Option<idlewood_api::Bag>,
    reply: Reply<idlewood_api::Bag>,
}

impl Driver {
    /// Makes the manifest and keeps everything durably, beside the loop.
    pub(super) fn submit(&mut self, request: idlewood_api::SubmitRequest, reply: Reply<idlewood_api::Bag>) {
        if self.accepting >= ACCEPTING_MAX {
            let why = format!("{ACCEPTING_MAX} submissions are being taken already: submit it again in a moment");
            return answer(reply, Err(Refusal::Unavailable(why)));
        }
        if request.native && request.work_mops.is_none() && !self.shared.supplies.confines_natives {
            let why = "no native program can be confined on this machine (idlewood doctor says why), so that the first task \
                       cannot show how long one takes: say it with --work";
            return answer(reply, Err(Refusal::Conflict(why.to_owned())));
        }
        self.accepting += 1;
        let (blobs, gate, me) =
            (self.shared.supplies.blobs.clone(), self.shared.supplies.gate.clone(), self.peer().me().peer);
        let take = async move {
            let result = tokio::task::spawn_blocking(move || submission::accept(&blobs, &gate, me, request)).await;
            let result =
                result.unwrap_or_else(|error| Err(Refusal::Unavailable(format!("the bag could not be kept: {error}"))));
            Done::Accepted { result: result.map(Box::new), reply }
        };
        self.shared.jobs.spawn(take, Done::AcceptLost);
    }

    /// Hands the bag to the peer; whoever submitted it hears of it when that is durable too.
    pub(super) fn accepted(&mut self, result: Result<Box<Accepted>, Refusal>, reply: Reply<idlewood_api::Bag>) {
        self.accepting -= 1;
        let Accepted { submission, manifest, pins } = match result {
            Ok(accepted) => *accepted,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        if let Err(error) = self.peer().check(&submission) {
            return answer(reply, Err(Refusal::Invalid(error.to_string())));
        }
        self.pins.learn(submission.id, Some(&manifest));
        drop(pins);
        self.shared.manifests.remember(submission.id, manifest);
        self.submitting.insert(submission.id, reply);
        self.feed(Event::Submitted(submission));
    }

    /// The submission of a bag is durable: whoever submitted it may know.
    pub(super) fn answer_submission(&mut self, bag: BagId) {
        let Some(reply) = self.submitting.remove(&bag) else { return };
        let gone = || Refusal::Unavailable("the bag was given up meanwhile".to_owned());
        answer(reply, self.peer().bag(bag).map(|view| self.bag_view(&view)).ok_or_else(gone));
    }

    pub(super) fn cancel(&mut self, id: &str, reply: Reply<idlewood_api::Bag>) {
        let bag = match self.find(id) {
            Ok(view) if view.closed.is_some() => {
                return answer(reply, Err(Refusal::Conflict(format!("bag {} is over already", view.bag.id))));
            }
            Ok(view) => view.bag.id,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        self.ending.entry(bag).or_default().push(Ending { was: None, reply });
        self.feed(Event::Cancelled(bag));
    }

    /// Forgets a bag that is over. Its results go when their room is needed.
    pub(super) fn remove(&mut self, id: &str, reply: Reply<idlewood_api::Bag>) {
        let view = match self.find(id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        if view.closed.is_none() {
            let why = format!("bag {bag} is not over: wait for it, or cancel it first");
            return answer(reply, Err(Refusal::Conflict(why)));
        }
        let was = Some(self.bag_view(&view));
        self.ending.entry(bag).or_default().push(Ending { was, reply });
        self.first_starts.remove(&bag);
        self.feed(Event::Removed(bag));
    }

    /// The end of a bag is durable.
    pub(super) fn answer_ending(&mut self, bag: BagId) {
        for Ending { was, reply } in self.ending.remove(&bag).unwrap_or_default() {
            let gone = || Refusal::NotFound("the bag was removed meanwhile".to_owned());
            let shown = was.or_else(|| self.peer().bag(bag).map(|view| self.bag_view(&view)));
            answer(reply, shown.ok_or_else(gone));
        }
    }

    /// The end of a bag could not be written: it is tried again until it can, and whoever waits for it hears so.
    pub(super) fn tell_unended(&mut self, bag: BagId) {
        for Ending { reply, .. } in self.ending.remove(&bag).unwrap_or_default() {
            let why = format!(
                "the end of bag {bag} could not be written to disk: free some space; until it is written a restart of the agent takes \
                 it back"
            );
            answer(reply, Err(Refusal::Unavailable(why)));
        }
    }

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
                let blobs = self.shared.supplies.blobs.clone();
                // A damaged former output may be why they run again.
                self.pins.output_blobs(bag, &rerun_tasks).into_iter().for_each(|hash| blobs.doubt(hash));
                let look =
                    move || Done::RerunReady { bag, tasks, needs: rerun::needs(&blobs, bag).map(Box::new), reply };
                self.shared.answers.spawn_blocking(look, Done::Discarded);
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
