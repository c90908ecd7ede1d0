//! Admission: whether a bag may queue here, asked before any of its tasks queues, and how much one submitter may have here.
//!
//! The driver alone can read a manifest and its signature, and knows the owner's wishes. Until it has answered
//! ([`Effect::Authorise`]), requests for the bag wait in memory, a bounded number; those dropped for lack of room or lost
//! in a restart are issued again by the submitter. Tasks that may not queue go back in a `Decline` with the reason. For
//! bags submitted here the driver is not asked.
//!
//! A request is not signed, and anybody can send one again when its bag is over. So the driver also gives the age of the
//! manifest: it bounds the age that requests claim, and before the submitter has sent a `Lease`, tasks begin only while the
//! bag is *fresh*, and only where all blobs that they need are here already: the bag's key comes with the `Lease`, and no
//! router on a request's way learns it. All other tasks wait for the submitter, which is asked at once, and go back if it
//! does not answer.
//!
//! Left out: shares of a machine for several submitters; the quota is there for floods and mistakes, not for fairness.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Contact;

use super::Executor;
use crate::bag::{BagId, CLOCKS_APART_MAX, DeclineReason, REQUEST_INTERVALS_MAX, Request};
use crate::config::Config;
use crate::io::Io;
use crate::link::ANSWER_WITHIN_MAX;
use crate::message::Message;
use crate::peer::{Approval, Effect};
use crate::ranges::IntervalSet;

/// Most bags about which the driver is asked at the same time. Our choice: it bounds how many manifests of invented bags
/// are looked for at once.
const BAGS_ASKED_MAX: usize = 64;
/// Most requests that wait for one of them. Our choice.
const REQUESTS_MAX: usize = 64;
/// Most of these bags that name the same submitter: anybody can invent bags in another's name. Our choice.
const BAGS_OF_ONE_MAX: usize = 16;

/// A bag is fresh while its manifest is younger than this: its submitter has just signed it, and may not have received this
/// machine's `Holding` yet. It is the longest time that machines take to answer a submitter.
const FRESH: Duration = ANSWER_WITHIN_MAX;

/// Whether two requests with one bag id agree in what the bag's manifest fixes.
fn agree(one: &Request, other: &Request) -> bool {
    (one.bag.submitter.peer, one.bag.tasks) == (other.bag.submitter.peer, other.bag.tasks)
}

/// Requests for bags that the driver has not authorised yet.
#[derive(Debug, Default)]
pub(super) struct Unauthorised {
    by_bag: BTreeMap<BagId, Vec<Request>>,
    /// Requests, or parts of them, that were declined; a counter.
    declined: u64,
}

impl Unauthorised {
    pub(super) fn declined(&self) -> u64 {
        self.declined
    }

    /// Keeps a request, if there is room and it is new. Returns whether the driver is now to be asked about its bag.
    fn add(&mut self, request: Request) -> bool {
        let (id, submitter) = (request.bag.id, request.bag.submitter.peer);
        let of_one = self.by_bag.values().flat_map(|waiting| waiting.first());
        let of_one = of_one.filter(|request| request.bag.submitter.peer == submitter).count();
        let has_room = self.by_bag.len() < BAGS_ASKED_MAX && of_one < BAGS_OF_ONE_MAX;
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

    /// Who issued the first request for this bag that waits.
    pub(super) fn keeper(&self, bag: BagId) -> Option<&Contact> {
        self.by_bag.get(&bag)?.first().map(Request::keeper)
    }

    /// The driver has answered about this bag: removes and returns its requests.
    fn take(&mut self, bag: BagId) -> Option<Vec<Request>> {
        self.by_bag.remove(&bag)
    }
}

impl Executor {
    /// A request reached this leaf: it queues at once if tasks of its bag are here already, else when the driver has authorised
    /// the bag.
    pub(crate) fn accept(&mut self, mut request: Request, io: &mut Io, config: &Config) {
        let (id, submitter) = (request.bag.id, request.bag.submitter.peer);
        if submitter == io.me.peer {
            return self.queue(request, None, io, config);
        }
        if let Some(held) = self.bags.get(&id) {
            if held.agrees_with(&request.bag) {
                let fresh_until = held.fresh_until;
                return self.queue(request, fresh_until, io, config);
            }
            if held.spoken_for {
                // The submitter has spoken for the bag that is here: this one is invented.
                return;
            }
        }
        let (bag, envelope) = (request.bag.clone(), std::mem::take(&mut request.envelope));
        if self.unauthorised.add(request) {
            io.effects.push(Effect::Authorise { bag, envelope });
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
        let Some(waiting) = self.unauthorised.take(bag) else {
            if verdict.is_err() {
                self.withdraw(bag, io, config);
            }
            return;
        };
        let Some(first) = waiting.first().cloned() else { return };
        let (meant, others): (Vec<Request>, Vec<Request>) =
            waiting.into_iter().partition(|request| agree(request, &first));
        match verdict {
            Ok(Approval { signed_ago, at_hand, program }) => {
                let fresh = if at_hand { FRESH.saturating_sub(signed_ago) } else { Duration::ZERO };
                let fresh_until = Some(io.now + fresh);
                for mut request in meant {
                    // A bag is no older than what its submitter signed, whatever requests say.
                    request.age = request.age.min(signed_ago.saturating_add(CLOCKS_APART_MAX));
                    self.queue(request, fresh_until, io, config);
                }
                self.runs(bag, program);
            }
            Err(reason) => {
                self.note_declined(bag, io.now);
                meant.into_iter().for_each(|request| self.decline(&request, request.ranges.clone(), reason, io));
                // The first request may have been invented: ask about the next one.
                others.into_iter().for_each(|request| self.accept(request, io, config));
            }
        }
    }

    /// The driver has withdrawn its authorisation: the bag's unfinished tasks are stopped and go back; unacknowledged results
    /// stay.
    fn withdraw(&mut self, bag: BagId, io: &mut Io, config: &Config) {
        let Some(held) = self.bags.get_mut(&bag) else { return };
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

    /// Sends the submitter a `Decline` for these tasks of a request.
    pub(super) fn decline(&mut self, request: &Request, mut ranges: IntervalSet, reason: DeclineReason, io: &mut Io) {
        self.unauthorised.declined += 1;
        while !ranges.is_empty() {
            // The declined part can have more intervals than the request had, and than one message may have.
            let part: IntervalSet = ranges.ranges().take(REQUEST_INTERVALS_MAX).collect();
            ranges.subtract(&part);
            let message = Message::Decline { bag: request.bag.id, ranges: part, reason };
            io.send(request.keeper().clone(), message);
        }
    }

    /// The part of a request for which the submitter's quota has room; the rest is declined.
    pub(super) fn within_quota(&mut self, mut request: Request, io: &mut Io, config: &Config) -> Option<Request> {
        let (id, submitter) = (request.bag.id, request.bag.submitter.peer);
        if submitter == io.me.peer {
            return Some(request);
        }
        let mut bags = 0;
        let mut work_mops = 0.0;
        for held in self.bags.values().filter(|held| held.bag.submitter.peer == submitter) {
            bags += u32::from(held.bag.id != id);
            work_mops += held.unfinished().len() as f64 * held.task_mops();
        }
        let room_mops = config.submitter_work_max.as_secs_f64() * self.speed_mops() - work_mops;
        let known = self.bags.get(&id).map(|held| held.ranges()).unwrap_or_default();
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
