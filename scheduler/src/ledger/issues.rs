//! Requests of a bag that are on their way, until machines account for their tasks or the time for that is over.

use idlewood_overlay::{PeerId, Time};

use crate::io::Io;
use crate::ranges::IntervalSet;

/// What left this machine by one first hop.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) router: PeerId,
    pub(crate) ranges: IntervalSet,
    /// Whether this router alone has to pass it on: it does not climb any further.
    pub(crate) is_duty: bool,
}

/// Tasks on their way.
#[derive(Debug)]
pub(super) struct Issue {
    /// Of the request.
    pub(super) number: u64,
    pub(super) ranges: IntervalSet,
    /// The only machine that may have them; none: whoever they reach.
    pub(super) to: Option<PeerId>,
    /// When they were sent.
    pub(super) at: Time,
    /// Issued again when nobody accounts for them by then.
    pub(super) until: Time,
    /// Issued again when nobody has accounted for any of them by then, while nobody has: who gets the first of them answers
    /// at once, so that they were lost on their way, all together.
    pub(super) unheard_until: Option<Time>,
    /// By which first hops they went, but for those that have passed them on.
    pub(super) hops: Vec<Hop>,
}

impl Issue {
    /// When it is given up.
    fn end(&self) -> Time {
        self.unheard_until.map_or(self.until, |unheard| unheard.min(self.until))
    }

    /// Whether this machine may be the one that has them.
    fn may_reach(&self, executor: PeerId) -> bool {
        self.to.is_none_or(|to| to == executor)
    }

    /// A machine accounts for these: the routers that were sent them have passed them on.
    fn credit(&mut self, arrived: &IntervalSet, executor: PeerId, io: &mut Io) {
        self.hops.retain(|hop| {
            // Its own word would prove nothing.
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

/// Requests on their way.
#[derive(Debug)]
pub(super) struct Issues {
    issued: Vec<Issue>,
    /// Of the last request.
    number: u64,
    /// Whether there was any, in this life or an earlier: before that nobody can hold tasks of the bag.
    has_begun: bool,
}

impl Issues {
    /// `number` is above that of each request of an earlier life of this machine.
    pub(super) fn new(number: u64) -> Self {
        Self { issued: Vec::new(), number, has_begun: false }
    }

    /// There may have been requests in an earlier life.
    pub(super) fn restore(&mut self) {
        self.has_begun = true;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Sends a request for these tasks, which nobody has to have heard of before `unheard_until`. Returns its number, and when it
    /// is given up.
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

    /// By which first hops a request has just left.
    pub(super) fn note_hops(&mut self, number: u64, hops: Vec<Hop>) {
        if let Some(issue) = self.issued.iter_mut().find(|issue| issue.number == number) {
            issue.hops.extend(hops);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Issue> {
        self.issued.iter()
    }

    /// Those of these tasks that are on their way, perhaps to this machine.
    pub(super) fn reaching(&self, executor: PeerId, ranges: &IntervalSet) -> IntervalSet {
        let mut reaching = IntervalSet::new();
        for issue in self.issued.iter().filter(|issue| issue.may_reach(executor)) {
            reaching.extend_with(&ranges.intersection(&issue.ranges));
        }
        reaching
    }

    /// When the first of these tasks were sent.
    pub(super) fn sent_since(&self, ranges: &IntervalSet) -> Option<Time> {
        let is_among = |issue: &&Issue| !issue.ranges.intersection(ranges).is_empty();
        self.issued.iter().filter(is_among).map(|issue| issue.at).min()
    }

    /// These tasks have found an executor.
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

    /// Takes those of these tasks that are on their way, perhaps to this machine, off it. Returns which they were.
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

    /// A task is over.
    pub(super) fn remove(&mut self, index: u64) {
        for issue in &mut self.issued {
            issue.ranges.remove_index(index);
        }
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        self.issued.retain(|issue| !issue.ranges.is_empty());
    }

    /// All get until then, whether anybody was heard of or not.
    pub(super) fn renew(&mut self, until: Time) {
        for issue in &mut self.issued {
            issue.until = until;
            issue.unheard_until = None;
        }
    }

    /// Takes out those whose time is over.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<Issue> {
        let (late, issued) = std::mem::take(&mut self.issued).into_iter().partition(|issue| issue.end() <= now);
        self.issued = issued;
        late
    }

    /// Nothing is wanted any more.
    pub(super) fn clear(&mut self) {
        self.issued.clear();
    }

    /// As if they went through the tree, whomever they were for.
    #[cfg(test)]
    pub(super) fn send_to_anybody(&mut self) {
        self.issued.iter_mut().for_each(|issue| issue.to = None);
    }

    /// When the first is given up.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.issued.iter().map(Issue::end).min()
    }

    /// Takes what is on its way out of `ranges`.
    pub(super) fn subtract_from(&self, ranges: &mut IntervalSet) {
        for issue in &self.issued {
            ranges.subtract(&issue.ranges.intersection(ranges));
        }
    }
}
