//! What this machine has seen of the routers that its own requests went through.
//!
//! Evidence is this machine's own only: requests of its own bags that a router alone had to pass on, of which no machine
//! accounted for a single task in time. Nobody is told of it, and nobody's word counts, so that a liar cannot have an honest
//! router left out by others. Two such losses in a row, while tasks that went another way were accounted for, are a verdict: the
//! router *swallows*. It is left out for [`LEFT_OUT`], and then has to lose only once more.
//!
//! What climbs is lost by anybody above the first hop. It counts against the hop only where that is the root, or has not sent back its
//! last ticket (`handed`); else the submitter sends single tasks to the routers it doubts, to be placed below them (`ledger/astray`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

/// Requests in a row that a router has to lose. Our choice: one is lost with every router that crashes.
const LOST_IN_ROW: u32 = 2;
/// For how long a router that swallows is left out. Our choice.
const LEFT_OUT: Duration = Duration::from_secs(600);
/// Routers that are remembered; the one that lost a request the longest ago is forgotten first. Our choice.
const ROUTERS_MAX: usize = 64;

/// One router that has lost requests since it last passed one on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    in_row: u32,
    /// When the first and the last of these were given up.
    first: Time,
    last: Time,
}

/// What was seen of all routers.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    routers: BTreeMap<PeerId, Lost>,
    /// Requests in a row that were lost on their way up.
    climbs_lost: Option<Lost>,
    /// When another machine last accounted for tasks of this one.
    accounted: Option<Time>,
}

impl Lost {
    /// Requests that were under way together are lost together, as with a router that crashes: they count as one.
    pub(crate) fn again(known: Option<Self>, sent: Time, now: Time) -> Self {
        match known {
            None => Self { in_row: 1, first: now, last: now },
            Some(known) if sent < known.last => known,
            Some(Self { in_row, first, .. }) => Self { in_row: in_row.saturating_add(1), first, last: now },
        }
    }

    /// Whether that is enough to leave the router out.
    pub(crate) fn is_verdict(&self, now: Time) -> bool {
        self.in_row >= LOST_IN_ROW && now.since(self.last) < LEFT_OUT
    }
}

impl Watch {
    /// A router was sent a request then that it alone had to pass on, and nobody has accounted for any of it.
    pub(crate) fn lost(&mut self, router: PeerId, sent: Time, now: Time) {
        if self.routers.len() >= ROUTERS_MAX && !self.routers.contains_key(&router) {
            let oldest = self.routers.iter().min_by_key(|(_, lost)| lost.last).map(|(&peer, _)| peer);
            oldest.map(|peer| self.routers.remove(&peer));
        }
        let lost = Lost::again(self.routers.get(&router).copied(), sent, now);
        self.routers.insert(router, lost);
    }

    /// A machine accounts for tasks that went through this router.
    pub(crate) fn passed(&mut self, router: PeerId) {
        self.routers.remove(&router);
    }

    /// A request that climbed was lost, likewise.
    pub(crate) fn lost_climbing(&mut self, sent: Time, now: Time) {
        self.climbs_lost = Some(Lost::again(self.climbs_lost, sent, now));
    }

    /// A machine accounts for tasks of a request that climbed.
    pub(crate) fn passed_climbing(&mut self) {
        self.climbs_lost = None;
    }

    /// Another machine accounts for tasks of this one, whatever way they went.
    pub(crate) fn accounted(&mut self, now: Time) {
        self.accounted = Some(now);
    }

    /// Whether the router has lost the last request that it had to pass on.
    pub(crate) fn is_doubted(&self, router: PeerId) -> bool {
        self.routers.contains_key(&router)
    }

    /// Whether the router is left out.
    pub(crate) fn swallows(&self, router: PeerId, now: Time) -> bool {
        self.routers.get(&router).is_some_and(|lost| lost.is_verdict(now) && self.was_heard_since(lost))
    }

    /// Whether what climbs is lost, so that requests go another way at once.
    pub(crate) fn is_way_up_lost(&self, now: Time) -> bool {
        self.climbs_lost.is_some_and(|lost| lost.is_verdict(now) && self.was_heard_since(&lost))
    }

    /// Whether the last request that climbed was lost.
    pub(crate) fn is_way_up_doubted(&self) -> bool {
        self.climbs_lost.is_some()
    }

    /// All that are left out, in their order.
    pub(crate) fn left_out(&self, now: Time) -> Vec<PeerId> {
        self.routers.keys().copied().filter(|&router| self.swallows(router, now)).collect()
    }

    /// Whether others could be reached since: else it is this machine that is cut off.
    fn was_heard_since(&self, lost: &Lost) -> bool {
        self.accounted.is_some_and(|accounted| accounted > lost.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: PeerId = PeerId([7; 32]);

    fn at(seconds: i64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_router_swallows_that_loses_two_in_a_row_while_others_are_heard() {
        let mut watch = Watch::default();
        watch.lost(ROUTER, at(0), at(15));
        watch.lost(ROUTER, at(5), at(16));
        watch.accounted(at(17));
        assert!(watch.is_doubted(ROUTER) && !watch.swallows(ROUTER, at(17)), "what was under way together is one");
        watch.lost(ROUTER, at(16), at(30));
        assert!(watch.swallows(ROUTER, at(30)));
        assert_eq!(watch.left_out(at(30)), [ROUTER]);
        assert!(!watch.swallows(ROUTER, at(630)), "it is tried again");
        watch.passed(ROUTER);
        assert!(!watch.swallows(ROUTER, at(31)) && !watch.is_doubted(ROUTER));
    }

    #[test]
    fn a_machine_that_hears_nobody_blames_nobody() {
        let mut watch = Watch::default();
        watch.accounted(at(14));
        (0..9).for_each(|round| watch.lost(ROUTER, at(15 + round), at(16 + round)));
        (0..9).for_each(|round| watch.lost_climbing(at(15 + round), at(16 + round)));
        assert!(!watch.swallows(ROUTER, at(30)) && !watch.is_way_up_lost(at(30)));
        watch.accounted(at(29));
        assert!(watch.swallows(ROUTER, at(30)) && watch.is_way_up_lost(at(30)));
    }

    #[test]
    fn no_more_routers_are_remembered_than_it_says() {
        let mut watch = Watch::default();
        (0..=255).for_each(|byte| watch.lost(PeerId([byte; 32]), at(0), at(i64::from(byte))));
        assert_eq!(watch.routers.len(), ROUTERS_MAX);
        assert!(watch.is_doubted(PeerId([255; 32])) && !watch.is_doubted(PeerId([0; 32])));
    }
}
