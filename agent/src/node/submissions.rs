//! What users order of bags of this machine: to take one, cancel it, run tasks of it again, remove it. Whoever orders is answered when
//! that is durable, so that no restart takes it back.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_machine::Machine;
use idlewood_overlay::Time;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, Closing, Conditions, Event, NAME_BYTES_MAX, PRIORITY_MAX, Peer, Wish};

use super::bag_views::{self, find};
use super::done::Done;
use super::notify::NotifyFiles;
use super::pins::Pins;
use super::rerun::{self, Needs};
use super::shared::{Due, Shared};
use super::submission::{self, Accepted};
use crate::handle::{BagOrder, Refusal, Reply, answer};

/// Submissions that are checked and kept at the same time.
const ACCEPTING_MAX: usize = 64;

/// Somebody who waits for the end of a bag to be durable.
#[derive(Debug)]
struct Ending {
    /// The bag as it was before its removal.
    was: Option<Box<idlewood_api::Bag>>,
    reply: Reply<idlewood_api::Bag>,
}

/// Who waits for what of bags of this machine.
#[derive(Debug, Default)]
pub(super) struct Submissions {
    /// Submissions that are being checked and kept.
    accepting: usize,
    /// Submissions that wait to be durable.
    submitting: BTreeMap<BagId, Reply<idlewood_api::Bag>>,
    /// Who cancels or removes a bag and waits until that is durable.
    ending: BTreeMap<BagId, Vec<Ending>>,
    /// When the first task of a bag of this machine began to run here.
    first_starts: BTreeMap<BagId, Time>,
    /// Who wants something of a bag and waits until that is durable.
    changing: BTreeMap<BagId, Vec<Reply<idlewood_api::Bag>>>,
}

impl Submissions {
    /// Whether a bag is on its way in.
    pub(super) fn are_under_way(&self) -> bool {
        !self.submitting.is_empty() || self.accepting > 0
    }

    /// When the first task of a bag of this machine began to run here.
    pub(super) fn first_start(&self, bag: BagId) -> Option<Time> {
        self.first_starts.get(&bag).copied()
    }

    /// Carries out what a user orders of a bag, or refuses it.
    pub(super) fn order(
        &mut self,
        order: BagOrder,
        pins: &Pins,
        notify: &NotifyFiles,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        match order {
            BagOrder::Submit(request, reply) => self.submit(*request, reply, pins, notify, peer, shared),
            BagOrder::Cancel(id, reply) => self.cancel(&id, reply, pins, peer, shared),
            BagOrder::Wish(id, wish, reply) => self.wish(&id, wish, reply, pins, peer, shared),
            BagOrder::Rerun(id, tasks, reply) => rerun(&id, tasks, reply, pins, peer, shared),
            BagOrder::Remove(id, reply) => self.remove(&id, reply, pins, peer, shared),
        }
    }

    /// Makes the manifest and keeps everything durably, beside the loop.
    fn submit(
        &mut self,
        request: idlewood_api::SubmitRequest,
        reply: Reply<idlewood_api::Bag>,
        pins: &Pins,
        notify: &NotifyFiles,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        if self.accepting >= ACCEPTING_MAX {
            let why = format!("{ACCEPTING_MAX} submissions are being taken already: submit it again in a moment");
            return answer(reply, Err(Refusal::Unavailable(why)));
        }
        if request.native && request.work_mops.is_none() && !shared.supplies.confines_natives {
            let why = "no native program can be confined on this machine (idlewood doctor says why), so that the first task \
                       cannot show how long one takes: say it with --work";
            return answer(reply, Err(Refusal::Conflict(why.to_owned())));
        }
        let conditions = match conditions(&request, pins, peer) {
            Ok(conditions) => conditions,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        self.accepting += 1;
        let (blobs, gate, me) = (shared.supplies.blobs.clone(), shared.supplies.gate.clone(), peer.me().peer);
        let (notify, speed_mops) = (notify.clone(), peer.speed_mops());
        let take = async move {
            let accept = move || submission::accept(&blobs, &gate, me, speed_mops, request, conditions, &notify);
            let result = tokio::task::spawn_blocking(accept).await;
            let result =
                result.unwrap_or_else(|error| Err(Refusal::Unavailable(format!("the bag could not be kept: {error}"))));
            Done::Accepted { result: result.map(Box::new), reply }
        };
        shared.jobs.spawn(take, Done::AcceptLost);
    }

    /// A submission broke off.
    pub(super) fn accept_lost(&mut self) {
        self.accepting -= 1;
    }

    /// Hands the bag to the peer; whoever submitted it hears of it when that is durable too.
    pub(super) fn accepted(
        &mut self,
        result: Result<Box<Accepted>, Refusal>,
        reply: Reply<idlewood_api::Bag>,
        pins: &mut Pins,
        notify: &NotifyFiles,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        self.accepting -= 1;
        let Accepted { mut submission, manifest, pins: kept } = match result {
            Ok(accepted) => *accepted,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        if submission.can_have_stewards() {
            submission.stewards.get_or_insert(shared.settings.get().submit.stewards.get());
        }
        if let Err(error) = peer.check(&submission) {
            notify.forget(submission.id);
            return answer(reply, Err(Refusal::Invalid(error.to_string())));
        }
        pins.learn(submission.id, Some(&manifest));
        drop(kept);
        shared.manifests.remember(submission.id, manifest);
        self.submitting.insert(submission.id, reply);
        shared.events.tell(Event::Submitted(submission));
    }

    /// The submission of a bag is durable: whoever submitted it may know.
    pub(super) fn taken(&mut self, bag: BagId, shared: &mut Shared) {
        if let Some(reply) = self.submitting.remove(&bag) {
            let gone = Refusal::Unavailable("the bag was given up meanwhile".to_owned());
            shared.due.push(Due::Bag { bag, was: None, gone, reply });
        }
    }

    /// Holds, releases, renames or reorders a bag.
    fn wish(
        &mut self,
        id: &str,
        wish: Wish,
        reply: Reply<idlewood_api::Bag>,
        pins: &Pins,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        let view = match find(peer, pins, id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
        let refusal = match &wish {
            Wish::Rename(name) if !is_name(name) => {
                Refusal::Invalid(format!("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters"))
            }
            Wish::Prioritise(priority) if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(priority) => Refusal::Invalid(
                format!("a priority is a number from -{PRIORITY_MAX} to {PRIORITY_MAX}, not {priority}"),
            ),
            Wish::Hold | Wish::Release | Wish::Prioritise(_) if view.closed.is_some() => {
                Refusal::Conflict(format!("bag {bag} is over already"))
            }
            _ => {
                self.changing.entry(bag).or_default().push(reply);
                return shared.events.tell(Event::Wished { bag, wish });
            }
        };
        answer(reply, Err(refusal));
    }

    /// No more tasks of an endless bag come.
    pub(super) fn close_supply(
        &mut self,
        id: &str,
        reply: Reply<idlewood_api::Bag>,
        pins: &Pins,
        peer: &Peer,
        shared: &mut Shared,
    ) {
        let view = match find(peer, pins, id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        let refusal = match &view.endless {
            None => format!("bag {bag} has an end already: `idlewood bag cancel` gives a bag up"),
            Some(_) if view.closed.is_some() => format!("bag {bag} is over already"),
            Some(endless) if endless.is_ended => format!("bag {bag} is closed already, and over when its tasks are"),
            Some(_) => {
                self.changing.entry(bag).or_default().push(reply);
                return shared.events.tell(Event::SupplyEnded(bag));
            }
        };
        answer(reply, Err(Refusal::Conflict(refusal)));
    }

    /// What the user wanted of a bag is durable.
    pub(super) fn changed(&mut self, bag: BagId, shared: &mut Shared) {
        for reply in self.changing.remove(&bag).unwrap_or_default() {
            let gone = Refusal::NotFound("the bag was removed meanwhile".to_owned());
            shared.due.push(Due::Bag { bag, was: None, gone, reply });
        }
    }

    fn cancel(&mut self, id: &str, reply: Reply<idlewood_api::Bag>, pins: &Pins, peer: &Peer, shared: &mut Shared) {
        let bag = match find(peer, pins, id) {
            Ok(view) if view.closed.is_some() => {
                return answer(reply, Err(Refusal::Conflict(format!("bag {} is over already", view.bag.id))));
            }
            Ok(view) => view.bag.id,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        self.ending.entry(bag).or_default().push(Ending { was: None, reply });
        shared.events.tell(Event::Cancelled(bag));
    }

    /// Forgets a bag that is over. Its results go when their room is needed.
    fn remove(&mut self, id: &str, reply: Reply<idlewood_api::Bag>, pins: &Pins, peer: &Peer, shared: &mut Shared) {
        let view = match find(peer, pins, id) {
            Ok(view) => view,
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let bag = view.bag.id;
        if view.closed.is_none() {
            let why = format!("bag {bag} is not over: wait for it, or cancel it first");
            return answer(reply, Err(Refusal::Conflict(why)));
        }
        let first_start = self.first_starts.remove(&bag);
        let was = Some(Box::new(bag_views::bag(&view, first_start, pins, peer, shared)));
        self.ending.entry(bag).or_default().push(Ending { was, reply });
        shared.events.tell(Event::Removed(bag));
    }

    /// The end of a bag is durable.
    pub(super) fn ended(&mut self, bag: BagId, shared: &mut Shared) {
        // It ended before what else was wanted of it could count.
        self.changed(bag, shared);
        for Ending { was, reply } in self.ending.remove(&bag).unwrap_or_default() {
            let gone = Refusal::NotFound("the bag was removed meanwhile".to_owned());
            shared.due.push(Due::Bag { bag, was, gone, reply });
        }
    }

    /// These bags could not be written: who submitted one is told that it is given up, who ends one that this goes on.
    pub(super) fn tell_unwritten(&mut self, bags: &[BagId]) {
        for bag in bags {
            if let Some(reply) = self.submitting.remove(bag) {
                let why = "the bag could not be written to disk: free some space and submit it again";
                answer(reply, Err(Refusal::Unavailable(why.to_owned())));
            }
            self.tell_unended(*bag);
            for reply in self.changing.remove(bag).unwrap_or_default() {
                let why = "what you want of the bag could not be written to disk: free some space and try again";
                answer(reply, Err(Refusal::Unavailable(why.to_owned())));
            }
        }
    }

    /// The end of a bag could not be written: it is tried again until it can, and whoever waits for it hears so.
    fn tell_unended(&mut self, bag: BagId) {
        for Ending { reply, .. } in self.ending.remove(&bag).unwrap_or_default() {
            let why = format!(
                "the end of bag {bag} could not be written to disk: free some space; until it is written a restart of the agent takes \
                 it back"
            );
            answer(reply, Err(Refusal::Unavailable(why)));
        }
    }

    /// A task has ended that ran for so long: perhaps it was the first of a bag submitted here.
    pub(super) fn note_start(&mut self, bag: BagId, wall: Duration, peer: &Peer, now: Time) {
        if !self.first_starts.contains_key(&bag) && peer.bag(bag).is_some() {
            self.first_starts.insert(bag, now - wall);
        }
    }

    /// The agent ends: whoever waits for a submission to be durable loses the way for the answer.
    pub(super) fn end(&mut self) {
        self.submitting.clear();
    }
}

/// When tasks of a submission may be issued: the bags for which it waits are found by their names.
///
/// # Errors
/// Where one of them is not here.
fn conditions(request: &idlewood_api::SubmitRequest, pins: &Pins, peer: &Peer) -> Result<Conditions, Refusal> {
    let after = request.after.iter().map(|id| find(peer, pins, id).map(|view| view.bag.id));
    Ok(Conditions {
        withheld: request.hold,
        after: after.collect::<Result<_, _>>()?,
        running_max: request.max_running,
        retry_on: request.retry_on.clone(),
        priority: request.priority,
        rounds: request.rounds.as_ref().map(|rounds| rounds.plan),
        ..Conditions::default()
    })
}

/// Checks, in a blocking thread, that everything is still here that the tasks need: of the given tasks the finished ones, or the failed
/// tasks.
fn rerun(
    id: &str,
    tasks: Option<Vec<u64>>,
    reply: Reply<idlewood_api::Bag>,
    pins: &Pins,
    peer: &Peer,
    shared: &mut Shared,
) {
    let view = match find(peer, pins, id) {
        Ok(view) => view,
        Err(refusal) => return answer(reply, Err(refusal)),
    };
    let bag = view.bag.id;
    let tasks: Option<IntervalSet> = tasks.map(|mut tasks| {
        tasks.sort_unstable();
        tasks.into_iter().filter(|&index| index < view.bag.tasks).map(|index| index..index + 1).collect()
    });
    let rerun_tasks = rerun_tasks(peer, bag, tasks.as_ref());
    let refusal = match (view.closed, &tasks) {
        (Some((Closing::Cancelled, _)), _) => format!("bag {bag} was cancelled: submit it again"),
        (_, None) if rerun_tasks.is_empty() => format!("no task of bag {bag} has failed"),
        (_, Some(_)) if rerun_tasks.is_empty() => format!("none of these tasks of bag {bag} is over"),
        _ => {
            let blobs = shared.supplies.blobs.clone();
            // A damaged former output may be why they run again.
            pins.output_blobs(bag, &rerun_tasks).into_iter().for_each(|hash| blobs.doubt(hash));
            let look = move || Done::RerunReady { bag, tasks, needs: rerun::needs(&blobs, bag).map(Box::new), reply };
            shared.answers.spawn_blocking(look, Done::Discarded);
            return;
        }
    };
    answer(reply, Err(Refusal::Conflict(refusal)));
}

/// Of the given tasks the finished ones, or the failed tasks.
fn rerun_tasks(peer: &Peer, bag: BagId, tasks: Option<&IntervalSet>) -> IntervalSet {
    let (succeeded, failed) = peer.over(bag);
    tasks.map_or(failed.clone(), |tasks| failed.union(&succeeded).intersection(tasks))
}

/// It was checked whether all is here that these tasks need: they run again.
pub(super) fn rerun_ready(
    bag: BagId,
    tasks: Option<&IntervalSet>,
    needs: Result<Box<Needs>, Refusal>,
    reply: Reply<idlewood_api::Bag>,
    pins: &mut Pins,
    machine: &Machine,
    shared: &mut Shared,
) {
    let needs = match needs {
        Ok(needs) => needs,
        Err(refusal) => return answer(reply, Err(refusal)),
    };
    let peer = machine.peer();
    let tasks = rerun_tasks(peer, bag, tasks);
    let gone = Refusal::NotFound("the bag was removed meanwhile".to_owned());
    let refusal = match peer.bag(bag).map(|view| view.closed) {
        None => gone,
        Some(Some((Closing::Cancelled, _))) => Refusal::Conflict(format!("bag {bag} was cancelled meanwhile")),
        Some(_) if tasks.is_empty() => Refusal::Conflict(format!("these tasks of bag {bag} run again already")),
        Some(_) if !machine.has_room() => {
            Refusal::Unavailable("much waits for the disk: see the agent's log, and try again".to_owned())
        }
        Some(_) => {
            pins.learn(bag, Some(&needs.manifest));
            shared.events.tell(Event::Rerun { bag, tasks });
            return shared.due.push(Due::Bag { bag, was: None, gone, reply });
        }
    };
    answer(reply, Err(refusal));
}
