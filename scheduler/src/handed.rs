//! Which routers take what this machine hands them: the doubt of the machines above and below a router (docs/adr/0026).
//!
//! A request, or a question for work, that this machine hands to the router of another one has a ticket now and then. The router
//! sends the ticket back when it has the message, whatever it then does with that. A ticket that is not back in
//! [`BACK_WITHIN`], while any other machine is heard of after that, is lost. Two in a row are a verdict: the router is left out for
//! ten minutes, and then has to lose only once more.
//!
//! A router has one ticket at a time, so that two in a row are lost one after the other: a crash costs it one. What is handed to
//! it meanwhile has none. Evidence is what this machine sees itself: whoever sent the request, an honest router sends the ticket
//! back, so that nobody else can have it left out.
//!
//! Left out: a router that sends tickets back and drops what came with them. Its own word says nothing of that; only
//! submitters see it (`watch`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use crate::watch::Lost;

/// A router that takes what it is handed says so in this time. Our choice: many times a round trip, and less than a submitter waits
/// before it issues again what nobody has accounted for.
const BACK_WITHIN: Duration = Duration::from_secs(10);
/// A router that has sent a ticket back gets the next no earlier than this. Our choice: bounds what tickets cost.
const TICKET_EVERY: Duration = Duration::from_secs(5);
/// Routers that are remembered; the one that was handed a ticket the longest ago is forgotten first. Our choice: a machine has
/// four that it hands anything to, but for those that submitters try.
const ROUTERS_MAX: usize = 64;

/// What is known of one router.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Of the last message with one.
    ticket: u32,
    sent: Time,
    /// Whether that ticket may still come back in time.
    is_awaited: bool,
    /// Tickets lost since one came back.
    lost: Option<Lost>,
}

/// All routers that were handed tickets lately.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    routers: BTreeMap<PeerId, Known>,
    last_ticket: u32,
    /// When the first that is awaited is late; there may be none then, but none before.
    due: Option<Time>,
}

impl Handed {
    /// The ticket for a message to this router that leaves now; 0: none.
    pub(crate) fn ticket(&mut self, router: PeerId, now: Time) -> u32 {
        let known = self.routers.get(&router).copied();
        if known.is_some_and(|known| now < known.sent + TICKET_EVERY || known.is_awaited) {
            return 0;
        }
        if known.is_none() && self.routers.len() >= ROUTERS_MAX {
            let oldest = self.routers.iter().min_by_key(|(_, known)| known.sent).map(|(&peer, _)| peer);
            oldest.map(|peer| self.routers.remove(&peer));
        }
        self.last_ticket = self.last_ticket.checked_add(1).unwrap_or(1);
        let lost = known.and_then(|known| known.lost);
        self.routers.insert(router, Known { ticket: self.last_ticket, sent: now, is_awaited: true, lost });
        let late = now + BACK_WITHIN;
        self.due = Some(self.due.map_or(late, |due| due.min(late)));
        self.last_ticket
    }

    /// A router sends a ticket back; one that is late was lost already.
    pub(crate) fn came_back(&mut self, router: PeerId, ticket: u32) {
        if let Some(known) = self.routers.get_mut(&router).filter(|known| known.is_awaited && known.ticket == ticket) {
            (known.is_awaited, known.lost) = (false, None);
        }
    }

    /// Another machine is heard of: tickets that are late are lost. Whether there were any.
    pub(crate) fn heard(&mut self, now: Time) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        let mut is_any_lost = false;
        for known in self.routers.values_mut().filter(|known| known.is_awaited && known.sent + BACK_WITHIN <= now) {
            known.is_awaited = false;
            known.lost = Some(Lost::again(known.lost, known.sent, now));
            is_any_lost = true;
        }
        let awaited = self.routers.values().filter(|known| known.is_awaited);
        self.due = awaited.map(|known| known.sent + BACK_WITHIN).min();
        is_any_lost
    }

    /// This machine was asleep: what came back meanwhile it could not hear.
    pub(crate) fn was_asleep(&mut self) {
        self.routers.values_mut().for_each(|known| known.is_awaited = false);
        self.due = None;
    }

    /// Whether the router has lost the last ticket.
    pub(crate) fn is_doubted(&self, router: PeerId) -> bool {
        self.routers.get(&router).is_some_and(|known| known.lost.is_some())
    }

    /// Whether the router is left out.
    pub(crate) fn swallows(&self, router: PeerId, now: Time) -> bool {
        self.routers.get(&router).and_then(|known| known.lost).is_some_and(|lost| lost.is_verdict(now))
    }

    /// All that are left out, in their order.
    pub(crate) fn left_out(&self, now: Time) -> impl Iterator<Item = PeerId> + '_ {
        self.routers.keys().copied().filter(move |&router| self.swallows(router, now))
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
    fn a_router_is_left_out_that_loses_two_tickets_in_a_row() {
        let mut handed = Handed::default();
        assert_ne!(handed.ticket(ROUTER, at(0)), 0);
        assert_eq!(handed.ticket(ROUTER, at(6)), 0, "one at a time");
        assert!(!handed.heard(at(9)) && !handed.is_doubted(ROUTER));
        assert!(handed.heard(at(10)) && handed.is_doubted(ROUTER) && !handed.swallows(ROUTER, at(10)));
        handed.ticket(ROUTER, at(12));
        assert!(handed.heard(at(22)) && handed.swallows(ROUTER, at(22)));
        assert_eq!(handed.left_out(at(22)).collect::<Vec<_>>(), [ROUTER]);
        assert!(!handed.swallows(ROUTER, at(622)), "it is tried again");
        handed.ticket(ROUTER, at(700));
        assert!(handed.heard(at(710)) && handed.swallows(ROUTER, at(710)), "and has to lose only once more");
    }

    #[test]
    fn a_ticket_that_is_back_in_time_clears_a_router_and_one_that_is_late_does_not() {
        let mut handed = Handed::default();
        let late = handed.ticket(ROUTER, at(0));
        handed.heard(at(10));
        let second = handed.ticket(ROUTER, at(12));
        handed.came_back(ROUTER, late);
        assert!(handed.is_doubted(ROUTER));
        handed.came_back(PeerId([8; 32]), second);
        assert!(handed.is_doubted(ROUTER), "nobody else can say so");
        handed.came_back(ROUTER, second);
        assert!(!handed.is_doubted(ROUTER) && !handed.heard(at(30)));
        assert_eq!(handed.ticket(ROUTER, at(16)), 0, "not so soon");
        assert_ne!(handed.ticket(ROUTER, at(17)), 0);
    }

    #[test]
    fn who_hears_nobody_or_was_asleep_blames_nobody() {
        let mut handed = Handed::default();
        handed.ticket(ROUTER, at(0));
        handed.was_asleep();
        assert!(!handed.heard(at(100)) && !handed.is_doubted(ROUTER));
    }

    #[test]
    fn no_more_routers_are_remembered_than_it_says() {
        let mut handed = Handed::default();
        (0..=255).for_each(|byte| assert_ne!(handed.ticket(PeerId([byte; 32]), at(i64::from(byte))), 0));
        assert_eq!(handed.routers.len(), ROUTERS_MAX);
        handed.heard(at(500));
        assert!(handed.is_doubted(PeerId([255; 32])) && !handed.is_doubted(PeerId([0; 32])));
    }
}
