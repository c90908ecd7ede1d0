//! Whether a bag may queue here: asked once, before anything of it is queued, and how much one submitter may have here.
//!
//! The driver alone can read a manifest and its signature, and knows its owner's wishes. Until it has answered
//! ([`Effect::Authorise`]) requests for the bag wait, in memory and few of them: whoever finds no room, or is forgotten by a
//! restart, is issued again by its submitter. What is not to queue goes back with the reason. A submitter's own machine does
//! not ask.
//!
//! A request is not signed, and anybody can send one again when its bag is over. So the driver also tells how old the manifest
//! is: that bounds how old requests can make the bag, and tasks of a bag begin without a word of its submitter only while it
//! is fresh, and only where all that they need is here already: what they read is told to who holds them, and no router on a
//! request's way. All others begin when the submitter has answered, which is asked at once, and go back if it does not.
//!
//! Left out: shares of a machine for several submitters; the quota is there for floods and mistakes, not for fairness.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Executor;
use crate::bag::{ANSWER_WITHIN_MAX, BagId, CLOCKS_APART_MAX, DeclineReason, REQUEST_INTERVALS_MAX, Request};
use crate::config::Config;
use crate::io::Io;
use crate::message::Message;
use crate::peer::{Approval, Effect};
use crate::ranges::IntervalSet;

/// Bags that are asked about at the same time, and requests that wait for one of them. Our choice: the first bounds how many
/// manifests of invented bags are looked for at once.
const ASKED_MAX: usize = 64;
const REQUESTS_MAX: usize = 64;
/// Of these bags, those that name one and the same submitter: anybody can invent bags.
const ASKED_OF_ONE_MAX: usize = 16;

/// So young a manifest is fresh: its submitter has just signed it, and may not have heard yet what is here. As long as the
/// machines may take to tell it, at the most.
const FRESH: Duration = ANSWER_WITHIN_MAX;

/// Whether two requests speak of the same bag, as far as its manifest tells.
fn agree(one: &Request, other: &Request) -> bool {
    (one.bag.submitter.peer, one.bag.tasks) == (other.bag.submitter.peer, other.bag.tasks)
}

/// Requests for bags that the driver has not authorised yet.
#[derive(Debug, Default)]
pub(super) struct Asked {
    by_bag: BTreeMap<BagId, Vec<Request>>,
    /// Requests, or parts of them, that did not queue here.
    declined: u64,
}

impl Asked {
    pub(super) fn declined(&self) -> u64 {
        self.declined
    }

    /// Keeps a request, if there is room and it is new. Whether the driver has to be asked about its bag.
    fn add(&mut self, request: Request) -> bool {
        let (id, submitter) = (request.bag.id, request.bag.submitter.peer);
        let of_one = self.by_bag.values().flat_map(|waiting| waiting.first());
        let of_one = of_one.filter(|request| request.bag.submitter.peer == submitter).count();
        let has_room = self.by_bag.len() < ASKED_MAX && of_one < ASKED_OF_ONE_MAX;
        let waiting = match self.by_bag.get_mut(&id) {
            Some(waiting) => waiting,
            None if has_room => self.by_bag.entry(id).or_default(),
            None => return false,
        };
        let same = |known: &Request| (known.number, &known.path) == (request.number, &request.path);
        if waiting.len() >= REQUESTS_MAX || waiting.iter().any(same) {
            return false;
        }
        waiting.push(request);
        waiting.len() == 1
    }

    /// The driver has answered about this bag: what waits for that.
    fn take(&mut self, bag: BagId) -> Option<Vec<Request>> {
        self.by_bag.remove(&bag)
    }
}

impl Executor {
    /// A request reached this leaf: it joins the queue, at once if something of its bag is here already, else when the driver
    /// has authorised the bag.
    pub(crate) fn accept(&mut self, request: Request, io: &mut Io, config: &Config) {
        let (id, submitter) = (request.bag.id, request.bag.submitter.peer);
        if submitter == io.me.peer {
            return self.queue(request, None, io, config);
        }
        if let Some(held) = self.held.get(&id) {
            if held.agrees_with(&request.bag) {
                let fresh_until = held.fresh_until;
                return self.queue(request, fresh_until, io, config);
            }
            if held.confirmed {
                // Its submitter has said otherwise.
                return;
            }
        }
        let bag = request.bag.clone();
        if self.asked.add(request) {
            io.effects.push(Effect::Authorise { bag });
        }
    }

    /// The driver's answer about the bag as the first request for it described it.
    pub(crate) fn authorised(
        &mut self,
        bag: BagId,
        verdict: Result<Approval, DeclineReason>,
        io: &mut Io,
        config: &Config,
    ) {
        let Some(waiting) = self.asked.take(bag) else {
            if verdict.is_err() {
                self.withdraw(bag, io, config);
            }
            return;
        };
        let Some(first) = waiting.first().cloned() else { return };
        let (meant, others): (Vec<Request>, Vec<Request>) =
            waiting.into_iter().partition(|request| agree(request, &first));
        match verdict {
            Ok(Approval { signed_ago, at_hand }) => {
                let fresh = if at_hand { FRESH.saturating_sub(signed_ago) } else { Duration::ZERO };
                let fresh_until = Some(io.now + fresh);
                for mut request in meant {
                    // A bag is no older than what its submitter signed, whatever requests say.
                    request.age = request.age.min(signed_ago.saturating_add(CLOCKS_APART_MAX));
                    self.queue(request, fresh_until, io, config);
                }
            }
            Err(reason) => {
                meant.into_iter().for_each(|request| self.decline(&request, request.ranges.clone(), reason, io));
                // They may be the bag, and the first an invention.
                others.into_iter().for_each(|request| self.accept(request, io, config));
            }
        }
    }

    /// Nothing of a bag may be here any more, but for the results that its submitter has yet to take.
    fn withdraw(&mut self, bag: BagId, io: &mut Io, config: &Config) {
        let Some(held) = self.held.get_mut(&bag) else { return };
        if held.bag.submitter.peer == io.me.peer || held.unfinished_is_empty() {
            return;
        }
        for (place, task) in self.places.stop(|running| running.task.bag == bag) {
            held.running.remove_index(task.index);
            io.effects.push(Effect::StopTask { place, task });
        }
        self.version += 1;
        held.hand_back(IntervalSet::new(), self.version, io, config);
        self.forget_if_empty(bag);
        self.order_stale = true;
        self.changed = true;
    }

    /// These tasks of a request do not queue here; their submitter is told.
    fn decline(&mut self, request: &Request, mut ranges: IntervalSet, reason: DeclineReason, io: &mut Io) {
        self.asked.declined += 1;
        while !ranges.is_empty() {
            // What is left of a request can be more scattered than it was.
            let part: IntervalSet = ranges.ranges().take(REQUEST_INTERVALS_MAX).collect();
            ranges.subtract(&part);
            let message = Message::Decline { bag: request.bag.id, ranges: part, reason };
            io.send(request.bag.submitter.clone(), message);
        }
    }

    /// What of a request its submitter's quota leaves room for; the rest is declined.
    pub(super) fn within_quota(&mut self, mut request: Request, io: &mut Io, config: &Config) -> Option<Request> {
        let (id, submitter) = (request.bag.id, request.bag.submitter.peer);
        if submitter == io.me.peer {
            return Some(request);
        }
        let mut bags = 0;
        let mut work_mops = 0.0;
        for held in self.held.values().filter(|held| held.bag.submitter.peer == submitter) {
            bags += u32::from(held.bag.id != id);
            work_mops += held.unfinished().len() as f64 * held.task_mops();
        }
        let room_mops = config.submitter_work_max.as_secs_f64() * self.speed_mops() - work_mops;
        let known = self.held.get(&id).map(|held| held.ranges()).unwrap_or_default();
        let mut new = request.ranges.difference(&known);
        let fit =
            if bags < config.submitter_bags_max { (room_mops / request.bag.task_mops).max(0.0) as u64 } else { 0 };
        if new.len() <= fit {
            return Some(request);
        }
        let fitting = new.take_first(fit);
        self.decline(&request, new.clone(), DeclineReason::Quota, io);
        request.ranges.subtract(&new);
        (!fitting.is_empty() || !request.ranges.is_empty()).then_some(request)
    }
}
