//! Issues: the requests of a bag that are on their way, until machines account for their tasks or time out.

use idlewood_overlay::{PeerId, Time};

use crate::io::Io;
use crate::ranges::IntervalSet;

/// The tasks of a request that left this machine by one first hop.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) router: PeerId,
    pub(crate) ranges: IntervalSet,
    /// Whether this router alone has to pass the request on: it does not climb any further.
    pub(crate) is_duty: bool,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Issue {
    /// The request's number.
    pub(super) number: u64,
    /// Tasks for which no machine accounts yet.
    pub(super) ranges: IntervalSet,
    /// The only machine that may have them; `None` for a request through the tree.
    pub(super) to: Option<PeerId>,
    /// When the request was sent.
    pub(super) at: Time,
    /// Tasks for which no machine accounts by then are issued again.
    pub(super) until: Time,
    /// As long as no machine has accounted for any of the tasks, this earlier moment counts: the machine that gets the
    /// first of them answers at once, so that by then the whole request is lost.
    pub(super) unheard_until: Option<Time>,
    /// The first hops of the request, without those that are known to have passed it on.
    pub(super) hops: Vec<Hop>,
}

impl Issue {
    /// When it times out.
    fn end(&self) -> Time {
        self.unheard_until.map_or(self.until, |unheard| unheard.min(self.until))
    }

    /// Whether the request may reach this machine.
    fn may_reach(&self, executor: PeerId) -> bool {
        self.to.is_none_or(|to| to == executor)
    }

    /// A machine accounts for these tasks: the first hops to which they were sent have passed them on.
    fn credit(&mut self, arrived: &IntervalSet, executor: PeerId, io: &mut Io) {
        self.hops.retain(|hop| {
            // What the router says of itself would prove nothing.
            let has_passed = hop.router != executor && !hop.ranges.intersection(arrived).is_empty();
            if has_passed && hop.is_duty {
                io.watch.passed(hop.router);
            } else if has_passed {
                io.watch.passed_climbing();
            }
            !has_passed
        });
    }
}

/// The requests of a bag that are on their way.
#[derive(Debug)]
pub(super) struct Issues {
    issued: Vec<Issue>,
    /// The last request's number.
    number: u64,
    /// Whether there ever was a request, also before a restart: without one no machine can hold tasks of the bag.
    has_begun: bool,
}

impl Issues {
    /// `number` is above that of each request before a restart.
    pub(super) fn new(number: u64) -> Self {
        Self { issued: Vec::new(), number, has_begun: false }
    }

    /// There may have been requests before a restart.
    pub(super) fn restore(&mut self) {
        self.has_begun = true;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Adds a request for these tasks. Returns its number, and when it times out.
    pub(super) fn send(
        &mut self,
        ranges: IntervalSet,
        to: Option<PeerId>,
        at: Time,
        unheard_until: Time,
        until: Time,
    ) -> (u64, Time) {
        self.number += 1;
        self.has_begun = true;
        let (number, unheard_until) = (self.number, Some(unheard_until));
        let issue = Issue { number, ranges, to, at, until, unheard_until, hops: Vec::new() };
        let end = issue.end();
        self.issued.push(issue);
        (number, end)
    }

    /// Notes first hops of a request that has just been sent.
    pub(super) fn note_hops(&mut self, number: u64, hops: Vec<Hop>) {
        if let Some(issue) = self.issued.iter_mut().find(|issue| issue.number == number) {
            issue.hops.extend(hops);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Issue> {
        self.issued.iter()
    }

    /// Those of these tasks that are in a request that may reach this machine.
    pub(super) fn reaching(&self, executor: PeerId, ranges: &IntervalSet) -> IntervalSet {
        let mut reaching = IntervalSet::new();
        for issue in self.issued.iter().filter(|issue| issue.may_reach(executor)) {
            reaching.extend_with(&ranges.intersection(&issue.ranges));
        }
        reaching
    }

    /// When the first request for any of these tasks was sent.
    pub(super) fn sent_since(&self, ranges: &IntervalSet) -> Option<Time> {
        let is_among = |issue: &&Issue| !issue.ranges.intersection(ranges).is_empty();
        self.issued.iter().filter(is_among).map(|issue| issue.at).min()
    }

    /// An executor accounts for these tasks.
    pub(super) fn arrived(&mut self, ranges: &IntervalSet, executor: PeerId, io: &mut Io) {
        for issue in &mut self.issued {
            let before = issue.ranges.len();
            issue.credit(ranges, executor, io);
            issue.ranges.subtract(ranges);
            if issue.ranges.len() < before {
                issue.unheard_until = None;
            }
        }
        self.forget_empty();
    }

    /// Takes these tasks out of requests that may reach this machine. Returns those that were in one.
    pub(super) fn take_off(&mut self, executor: PeerId, ranges: &IntervalSet) -> IntervalSet {
        let mut back = IntervalSet::new();
        if ranges.is_empty() {
            return back;
        }
        for issue in self.issued.iter_mut().filter(|issue| issue.may_reach(executor)) {
            let part = issue.ranges.intersection(ranges);
            if !part.is_empty() {
                issue.unheard_until = None;
            }
            issue.ranges.subtract(&part);
            back.extend_with(&part);
        }
        self.forget_empty();
        back
    }

    /// A task has ended.
    pub(super) fn remove(&mut self, index: u64) {
        for issue in &mut self.issued {
            issue.ranges.remove_index(index);
        }
        self.forget_empty();
    }

    /// These tasks are in no request any more.
    pub(super) fn forget(&mut self, ranges: &IntervalSet) {
        for issue in &mut self.issued {
            issue.ranges.subtract(ranges);
        }
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        self.issued.retain(|issue| !issue.ranges.is_empty());
    }

    /// All requests time out then, answered or not.
    pub(super) fn renew(&mut self, until: Time) {
        for issue in &mut self.issued {
            issue.until = until;
            issue.unheard_until = None;
        }
    }

    /// Removes and returns the requests that have timed out.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<Issue> {
        let (late, issued) = std::mem::take(&mut self.issued).into_iter().partition(|issue| issue.end() <= now);
        self.issued = issued;
        late
    }

    /// The bag is closed.
    pub(super) fn clear(&mut self) {
        self.issued.clear();
    }

    /// Makes all requests go through the tree.
    #[cfg(test)]
    pub(super) fn send_to_anybody(&mut self) {
        self.issued.iter_mut().for_each(|issue| issue.to = None);
    }

    /// When the first request times out.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.issued.iter().map(Issue::end).min()
    }

    /// Takes the tasks of requests out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        for issue in &self.issued {
            ranges.subtract(&issue.ranges.intersection(ranges));
        }
    }
}
