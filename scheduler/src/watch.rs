//! Routers that lose requests of this machine's own bags (docs/adr/0026).
//!
//! A router loses a request when it alone had to pass the request on and no machine accounts for any of its tasks in time. Two
//! such losses in a row, while another machine accounts for tasks of this one, are a verdict: the router *swallows*. It is
//! left out for [`LEFT_OUT`]; after that one more loss is enough. This machine tells no other of its verdicts and asks none,
//! so that no liar can have an honest router left out.
//!
//! Any router above the first hop may lose a request that climbs. The loss counts against the first hop only if that is the
//! root, or has not sent back its last ticket (`handed`). Otherwise the submitter sends a trial of one or two tasks to each
//! doubted router, to be placed below it (`ledger/astray`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

/// Losses in a row that are a verdict. Our choice: each router that crashes loses one.
const LOST_IN_ROW: u32 = 2;
/// How long a router that swallows is left out. Our choice.
const LEFT_OUT: Duration = Duration::from_secs(600);
/// Two losses are in a row if they are no further apart. Our choice: many times what lies between two tickets or two requests of a
/// bag, and less than most machines are away after a crash.
const IN_ROW_WITHIN: Duration = Duration::from_secs(300);
/// Most routers with losses; the one whose last loss is the oldest is forgotten first. Our choice.
const ROUTERS_MAX: usize = 64;

/// What a router lost since it last passed something on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    in_row: u32,
    /// When the first and the last of these losses were noticed.
    first: Time,
    last: Time,
}

/// All routers that lost requests of this machine.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    routers: BTreeMap<PeerId, Lost>,
    /// Requests in a row that were lost as they climbed.
    climbs_lost: Option<Lost>,
    /// When another machine last accounted for tasks of this one.
    accounted: Option<Time>,
}

impl Lost {
    /// One loss more, where `needed` in a row are a verdict. What was sent before the last loss is no further one: a router that crashes loses all that is on its way. A
    /// loss long after the last one is a first one again, unless the router was left out before: machines may crash every day.
    pub(crate) fn counted(known: Option<Self>, needed: u32, sent: Time, now: Time) -> Self {
        match known {
            None => Self { in_row: 1, first: now, last: now },
            Some(known) if sent < known.last => known,
            Some(known) if known.in_row < needed && now.since(known.last) > IN_ROW_WITHIN => {
                Self { in_row: 1, first: now, last: now }
            }
            Some(Self { in_row, first, .. }) => Self { in_row: in_row.saturating_add(1), first, last: now },
        }
    }

    /// Whether these losses, where so many in a row are needed, leave the router out now.
    pub(crate) fn is_verdict(&self, needed: u32, now: Time) -> bool {
        self.in_row >= needed && now.since(self.last) < LEFT_OUT
    }
}

impl Watch {
    /// No machine accounted in time for a request sent at `sent`, which this router alone had to pass on.
    pub(crate) fn lost(&mut self, router: PeerId, sent: Time, now: Time) {
        if self.routers.len() >= ROUTERS_MAX && !self.routers.contains_key(&router) {
            let oldest = self.routers.iter().min_by_key(|(_, lost)| lost.last).map(|(&peer, _)| peer);
            oldest.map(|peer| self.routers.remove(&peer));
        }
        let lost = Lost::counted(self.routers.get(&router).copied(), LOST_IN_ROW, sent, now);
        self.routers.insert(router, lost);
    }

    /// A machine accounts for tasks that went through this router.
    pub(crate) fn passed(&mut self, router: PeerId) {
        self.routers.remove(&router);
    }

    /// No machine accounted in time for a request sent at `sent`, which climbed past its first hop.
    pub(crate) fn lost_climbing(&mut self, sent: Time, now: Time) {
        self.climbs_lost = Some(Lost::counted(self.climbs_lost, LOST_IN_ROW, sent, now));
    }

    /// A machine accounts for tasks of a request that climbed.
    pub(crate) fn passed_climbing(&mut self) {
        self.climbs_lost = None;
    }

    /// Another machine accounts for tasks of this one, whichever way their request went.
    pub(crate) fn accounted(&mut self, now: Time) {
        self.accounted = Some(now);
    }

    /// Whether the router lost the last request that it alone had to pass on.
    pub(crate) fn is_doubted(&self, router: PeerId) -> bool {
        self.routers.contains_key(&router)
    }

    /// Whether the router is left out now.
    pub(crate) fn swallows(&self, router: PeerId, now: Time) -> bool {
        self.routers
            .get(&router)
            .is_some_and(|lost| lost.is_verdict(LOST_IN_ROW, now) && self.was_accounted_since(lost))
    }

    /// Whether requests that climb are lost, so that new ones go around the tree at once.
    pub(crate) fn is_way_up_lost(&self, now: Time) -> bool {
        self.climbs_lost.is_some_and(|lost| lost.is_verdict(LOST_IN_ROW, now) && self.was_accounted_since(&lost))
    }

    /// Whether the last request that climbed was lost.
    pub(crate) fn is_way_up_doubted(&self) -> bool {
        self.climbs_lost.is_some()
    }

    /// All routers that are left out now, by id.
    pub(crate) fn left_out(&self, now: Time) -> Vec<PeerId> {
        self.routers.keys().copied().filter(|&router| self.swallows(router, now)).collect()
    }

    /// Whether another machine accounted for tasks since the first loss: otherwise this machine itself may be cut off.
    fn was_accounted_since(&self, lost: &Lost) -> bool {
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
    fn a_router_that_loses_two_requests_in_a_row_swallows() {
        let mut watch = Watch::default();
        watch.lost(ROUTER, at(0), at(15));
        watch.lost(ROUTER, at(5), at(16));
        watch.accounted(at(17));
        assert!(
            watch.is_doubted(ROUTER) && !watch.swallows(ROUTER, at(17)),
            "requests on their way together are one loss"
        );
        watch.lost(ROUTER, at(16), at(30));
        assert!(watch.swallows(ROUTER, at(30)));
        assert_eq!(watch.left_out(at(30)), [ROUTER]);
        assert!(!watch.swallows(ROUTER, at(630)), "it is tried again");
        watch.passed(ROUTER);
        assert!(!watch.swallows(ROUTER, at(31)) && !watch.is_doubted(ROUTER));
    }

    #[test]
    fn a_machine_that_hears_of_no_other_blames_no_router() {
        let mut watch = Watch::default();
        watch.accounted(at(14));
        (0..9).for_each(|round| watch.lost(ROUTER, at(15 + round), at(16 + round)));
        (0..9).for_each(|round| watch.lost_climbing(at(15 + round), at(16 + round)));
        assert!(!watch.swallows(ROUTER, at(30)) && !watch.is_way_up_lost(at(30)));
        watch.accounted(at(29));
        assert!(watch.swallows(ROUTER, at(30)) && watch.is_way_up_lost(at(30)));
    }

    #[test]
    fn the_router_with_the_oldest_loss_is_forgotten_first() {
        let mut watch = Watch::default();
        (0..=255).for_each(|byte| watch.lost(PeerId([byte; 32]), at(0), at(i64::from(byte))));
        assert_eq!(watch.routers.len(), ROUTERS_MAX);
        assert!(watch.is_doubted(PeerId([255; 32])) && !watch.is_doubted(PeerId([0; 32])));
    }
}
