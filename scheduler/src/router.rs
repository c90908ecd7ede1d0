//! The router: decides where a request goes (paper §6).
//!
//! The overlay keeps the children's latest summaries. The router takes off them the tasks that it sends down (paper §5.3),
//! finds the smallest stretch at which both children together can take the whole request, and splits the request or lets it
//! climb.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::OnceCell;

use idlewood_overlay::{Child, Contact, Node, Overlay, PeerId, Side, Time};
use serde::{Deserialize, Serialize};

use crate::bag::Request;
use crate::config::Config;
use crate::message::{Asker, Message};
use crate::recent::Recent;
use crate::rounds::BOOKED;
use crate::split::{self, choose, split_among_idle, split_at_once, split_ranges, split_tasks};
use crate::summary::{self, STRETCHES, Summary, SummaryForm};

/// Routers that a request may climb through; the next one keeps it. Twice the height of a tree of a million machines.
pub(crate) const CLIMBED_MAX: u16 = 64;

/// When a router keeps a request instead of letting it climb. In both, S is the smallest stretch at which the router's
/// own subtree can take the request, and B is [`Config::stretch_bound`]; the root keeps everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClimbingRule {
    /// The paper's (§6): S ≤ B · S_min, with S_min the smallest maximum stretch of any leaf of the grid. While any leaf
    /// is idle S_min is 0, and everything climbs. The default: in simulation it is ahead of the other (docs/adr/0005).
    #[default]
    Minimum,
    /// Ours (`docs/design/scheduler.md`): S ≤ B · S_grid, with S_grid the stretch that the whole grid would give this very
    /// request, by the summary that the root spreads. So a request climbs only where that helps.
    WholeGrid,
}

/// What the root spreads to all machines, beside the overlay's own count and height. Travels as a list of values without
/// names, since all machines get it at each change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Platform {
    /// S_min of the paper: the smallest maximum stretch of a leaf, in s/Mop.
    pub minimum_stretch: f64,
    /// The largest maximum stretch of a leaf, in s/Mop.
    pub maximum_stretch: f64,
    /// Speed of all slots that take work, in Mop/s.
    pub speed_mops: f64,
    /// The longest wait of a leaf: the time that it alone would take for its unstarted tasks, in seconds.
    pub longest_wait_s: u64,
    /// The root's availability summary, encoded: of the whole grid for [`ClimbingRule::WholeGrid`], otherwise empty. A router
    /// decodes it for each request.
    availability: Vec<u8>,
}

impl Platform {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Self { minimum_stretch, maximum_stretch, speed_mops, longest_wait_s, ref availability } = *self;
        let availability = serde_bytes::Bytes::new(availability);
        let values = (minimum_stretch, maximum_stretch, speed_mops, longest_wait_s, availability);
        ciborium::into_writer(&values, &mut bytes).expect("a Vec takes every write");
        bytes
    }

    /// Decodes what the root spread; the default if that is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        type Values = (f64, f64, f64, u64, serde_bytes::ByteBuf);
        let Ok::<Values, _>(values) = ciborium::from_reader(bytes) else { return Self::default() };
        let (minimum_stretch, maximum_stretch, speed_mops, longest_wait_s, availability) = values;
        let availability = availability.into_vec();
        let platform = Self { minimum_stretch, maximum_stretch, speed_mops, longest_wait_s, availability };
        let sane = |value: f64| value.is_finite() && value >= 0.0;
        let valid = sane(platform.minimum_stretch) && sane(platform.maximum_stretch) && sane(platform.speed_mops);
        if valid { platform } else { Self::default() }
    }

    /// The stretch that a router's own is compared with; 0 if it is unknown, so that the request climbs.
    fn reference(&self, rule: ClimbingRule, request: &split::Demand) -> f64 {
        match rule {
            ClimbingRule::Minimum => self.minimum_stretch,
            ClimbingRule::WholeGrid => {
                let Ok(grid) = Summary::decode(&self.availability) else { return 0.0 };
                let s_index = Summary::smallest_stretch(
                    &[&grid],
                    request.tasks,
                    request.age_s,
                    request.application_size_mops,
                    request.task_mops,
                );
                s_index.map_or(0.0, |s_index| STRETCHES[s_index])
            }
        }
    }
}

impl Platform {
    /// What the root spreads, by its own report; with availability only if the climbing rule needs that.
    pub(crate) fn of(report: &[u8], rule: ClimbingRule) -> Self {
        let summary = Summary::of_flat(report).unwrap_or_else(Summary::unavailable);
        Self {
            minimum_stretch: summary.minimum_stretch,
            maximum_stretch: summary.maximum_stretch,
            speed_mops: summary.speed_mops,
            longest_wait_s: summary.longest_wait_s,
            availability: match rule {
                ClimbingRule::Minimum => Vec::new(),
                ClimbingRule::WholeGrid => summary.encode(),
            },
        }
    }
}

/// Where a request at a router comes from.
pub(crate) enum Origin {
    /// From the parent, or from the submitter to be placed here.
    Above,
    /// From below: it may climb further.
    Below {
        /// The router that it climbs to, if any.
        up: Option<Contact>,
    },
}

/// One child, and what it was sent since its last report. The report itself stays in the overlay.
#[derive(Debug)]
struct Slot {
    child: (PeerId, Node),
    generation: u64,
    booked: Option<Booked>,
    /// Whether an `Ask` was sent there.
    asked: bool,
}

impl Slot {
    /// Whether the child's availability only grew: the same child reports that, or tasks that it was sent are given up.
    fn availability_grew(&self, child: &Child<'_>) -> bool {
        let has_reported = child.generation != self.generation;
        self.child == (child.contact.peer, child.node) && (!has_reported || summary::can_wait(child.payload))
    }
}

/// Tasks that a child was sent, to be taken off its report.
#[derive(Debug)]
struct Booked {
    /// When the first were sent. A child that does not report within `placement_timeout` got none of them.
    since: Time,
    /// One for each request, all taken off together: the flat form is rounded once, not once for each request.
    parts: Vec<Part>,
    /// The report less earlier parts, once there were more than [`PARTS_MAX`]: further parts are taken off this.
    folded: Option<Vec<u8>>,
    /// The report less all parts, in the flat form: a few kilobytes instead of up to a hundred. Made when it is needed.
    flat: OnceCell<Vec<u8>>,
}

/// Tasks of one request that a child was sent, of one size and at one sample of the stretch.
#[derive(Clone, Copy, Debug)]
struct Part {
    s_index: usize,
    tasks: u64,
    task_mops: f64,
}

/// Most parts of one child. Our choice: only a flood of requests has more.
const PARTS_MAX: usize = 64;

impl Booked {
    fn new(since: Time) -> Self {
        Self { since, parts: Vec::new(), folded: None, flat: OnceCell::new() }
    }

    fn add(&mut self, part: Part, form: SummaryForm, report: &[u8]) {
        if self.parts.len() == PARTS_MAX {
            self.folded = Some(self.flat(form, report).to_vec());
            self.parts.clear();
        }
        self.parts.push(part);
        self.flat = OnceCell::new();
    }

    fn summary(&self, form: SummaryForm, report: &[u8]) -> Summary {
        let mut summary = summary::read(form, self.folded.as_deref().unwrap_or(report));
        self.parts.iter().for_each(|part| summary.reserve(part.s_index, part.tasks, part.task_mops));
        summary
    }

    fn flat(&self, form: SummaryForm, report: &[u8]) -> &[u8] {
        self.flat.get_or_init(|| self.summary(form, report).flatten())
    }
}

/// The routing node of one peer.
#[derive(Debug, Default)]
pub(crate) struct Router {
    slots: [Option<Slot>; 2],
    /// Whether the children's availability changed since the last report.
    changed: bool,
    /// Whether more changed than that availability grew: the report may not be delayed.
    urgent: bool,
    /// The latest requests that were split here.
    split: Recent,
    /// Routers that this machine leaves out.
    left_out: Vec<PeerId>,
}

impl Router {
    /// Takes note of reports since the last call. Gives up what was taken off a child that has not reported within
    /// `placement_timeout`.
    pub(crate) fn refresh(&mut self, overlay: &Overlay, now: Time, config: &Config) {
        for (slot, child) in self.slots.iter_mut().zip(overlay.children()) {
            let is_current = |slot: &Slot| {
                let stale = slot.booked.as_ref().is_some_and(|booked| booked.since + config.placement_timeout <= now);
                child.as_ref().is_some_and(|child| child.generation == slot.generation) && !stale
            };
            if !slot.as_ref().is_some_and(is_current) {
                // Without a child before and now nothing has changed.
                let has_changed = slot.is_some() || child.is_some();
                let can_wait =
                    slot.as_ref().zip(child.as_ref()).is_some_and(|(slot, child)| slot.availability_grew(child));
                self.changed |= has_changed;
                self.urgent |= has_changed && !can_wait;
                *slot = child.map(|child| {
                    let Child { contact, node, generation, .. } = child;
                    Slot { child: (contact.peer, node), generation, booked: None, asked: false }
                });
            }
        }
    }

    /// Replaces the routers that are left out: requests are not split to them, and the report offers no availability below
    /// them, but still has the waits there.
    pub(crate) fn leave_out(&mut self, left_out: Vec<PeerId>) {
        if self.left_out != left_out {
            self.left_out = left_out;
            (self.changed, self.urgent) = (true, true);
        }
    }

    /// The routers that are left out.
    pub(crate) fn left_out(&self) -> &[PeerId] {
        &self.left_out
    }

    fn leaves_out(&self, peer: PeerId, node: Node) -> bool {
        node == Node::Router && self.left_out.contains(&peer)
    }

    /// When what was taken off a child's report is given up.
    pub(crate) fn deadline(&self, config: &Config) -> Option<Time> {
        let booked = self.slots.iter().flatten().filter_map(|slot| slot.booked.as_ref());
        booked.map(|booked| booked.since + config.placement_timeout).min()
    }

    /// Whether [`Self::report`] changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        self.urgent = false;
        std::mem::take(&mut self.changed)
    }

    /// Whether [`Self::report`] changed in a way that may not be delayed.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// The summary of the whole subtree, in the flat form; `None` without a child. All machines have summaries of this `form`.
    pub(crate) fn report<'a>(&'a self, form: SummaryForm, overlay: &'a Overlay) -> Option<Vec<u8>> {
        let flat = |(booked, report): (Option<&'a Booked>, Cow<'a, [u8]>)| match booked {
            Some(booked) => Cow::Borrowed(booked.flat(form, &report)),
            None => report,
        };
        let children: Vec<Cow<'a, [u8]>> = self.children(form, overlay).map(flat).collect();
        let children: Vec<&[u8]> = children.iter().map(|report| &**report).collect();
        (!children.is_empty()).then(|| summary::report(form, &children))
    }

    /// The children's reports, and what is to be taken off each. One of a router that is left out has only the waits below it,
    /// for which machines may ask, and offers nothing.
    fn children<'a>(
        &'a self,
        form: SummaryForm,
        overlay: &'a Overlay,
    ) -> impl Iterator<Item = (Option<&'a Booked>, Cow<'a, [u8]>)> {
        let both = self.slots.iter().zip(overlay.children());
        both.filter_map(move |(slot, child)| {
            let child = child?;
            if self.leaves_out(child.contact.peer, child.node) {
                let waits = summary::read(form, child.payload).without_offers().flatten();
                return Some((None, Cow::Owned(waits)));
            }
            Some((slot.as_ref().and_then(|slot| slot.booked.as_ref()), Cow::Borrowed(child.payload)))
        })
    }

    /// Whether this router has split this (request, path) already: it arrived twice, or on two ways while the tree healed.
    pub(crate) fn has_split(&self, request: &Request) -> bool {
        self.split.contains(request)
    }

    /// Which child an `Ask` is sent to: the one with the longest wait in seconds, or, if the asker has work, the largest stretch.
    /// Only a child that has at least `least` of it and was not asked since its last report. `None`: no such child.
    pub(crate) fn ask(
        &mut self,
        asker: &Asker,
        least: f64,
        overlay: &Overlay,
        now: Time,
        config: &Config,
    ) -> Option<(Contact, Node)> {
        self.refresh(overlay, now, config);
        let both = self.slots.iter_mut().zip(overlay.children());
        let asked = both.filter_map(|(slot, child)| Some((slot.as_mut()?, child?)));
        let left_out = &self.left_out;
        let waiting = asked
            .filter(|(_, child)| child.node == Node::Leaf || !left_out.contains(&child.contact.peer))
            .filter(|(slot, child)| {
                !slot.asked && (child.node == Node::Router || child.contact.peer != asker.contact.peer)
            })
            .map(|(slot, child)| (asker.most(child.payload), slot, child))
            .filter(|(most, ..)| *most >= least);
        let (_, slot, child) = waiting.max_by(|(one, ..), (other, ..)| one.total_cmp(other))?;
        slot.asked = true;
        Some((child.contact.clone(), child.node))
    }

    /// Where this request goes next: up, or in parts to the children. Empty if it stays and there is no child.
    pub(crate) fn route(
        &mut self,
        mut request: Request,
        origin: Origin,
        overlay: &Overlay,
        platform: &Platform,
        now: Time,
        config: &Config,
    ) -> Vec<(Contact, Message)> {
        self.refresh(overlay, now, config);
        let (climbing, up) = match origin {
            Origin::Above => (false, None),
            Origin::Below { up } => (true, up),
        };
        let parent = up.filter(|_| request.climbed < CLIMBED_MAX);
        let form = config.summaries;
        let read = |(booked, report): (Option<&Booked>, Cow<'_, [u8]>)| match booked {
            Some(booked) => booked.summary(form, &report),
            None => summary::read(form, &report),
        };
        let summaries: Vec<Summary> = self.children(form, overlay).map(read).collect();
        let children: Vec<&Summary> = summaries.iter().collect();
        let numbers = split::Demand {
            tasks: request.ranges.len(),
            task_mops: request.bag.task_mops,
            application_size_mops: request.bag.application_size_mops,
            age_s: request.age.as_secs_f64(),
        };
        let reference = match parent {
            Some(_) => platform.reference(config.climbing, &numbers),
            // The request stays whatever the reference.
            None => 0.0,
        };
        let decision = choose(&children, &numbers, config.stretch_bound, reference, parent.is_none());
        let is_at_once = request.begins_within == Some(BOOKED);
        let at_once = is_at_once.then(|| split_at_once(&children, &numbers, decision.s_index));
        if let Some(parent) = parent
            && !(decision.good_enough && at_once.as_ref().is_none_or(|(_, all_have_slots)| *all_have_slots))
        {
            request.climbed += 1;
            return vec![(parent, Message::Request { request, node: Node::Router, climbing: true })];
        }
        let among_idle =
            || config.idle_slots.then(|| split_among_idle(&children, &numbers, decision.s_index)).flatten();
        let parts = at_once
            .map(|(parts, _)| parts)
            .or_else(among_idle)
            .unwrap_or_else(|| split_tasks(&children, &numbers, decision.s_index));
        // Only a request from below is news above: the router above has taken off its own.
        self.changed |= climbing;
        self.urgent |= climbing;
        self.place(request, &parts, decision.s_index, form, overlay, now)
    }

    /// Sends each child its part, and takes that off the child's report.
    fn place(
        &mut self,
        request: Request,
        parts: &[u64],
        s_index: Option<usize>,
        form: SummaryForm,
        overlay: &Overlay,
        now: Time,
    ) -> Vec<(Contact, Message)> {
        self.split.insert(&request);
        let mut parts = split_ranges(request.ranges.clone(), parts).into_iter();
        let mut sent = Vec::new();
        let sides = [Side::Left, Side::Right].into_iter().zip(overlay.children()).zip(&mut self.slots);
        for ((side, child), slot) in sides {
            let (Some(child), Some(slot)) = (child, slot) else { continue };
            let Some(ranges) = parts.next() else { continue };
            if ranges.is_empty() {
                continue;
            }
            if let Some(s_index) = s_index {
                let part = Part { s_index, tasks: ranges.len(), task_mops: request.bag.task_mops };
                slot.booked.get_or_insert_with(|| Booked::new(now)).add(part, form, child.payload);
            }
            let request = request.part(ranges, side);
            sent.push((child.contact.clone(), Message::Request { request, node: child.node, climbing: false }));
        }
        sent
    }
}
