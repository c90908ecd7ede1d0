//! Tickets: how the machines above and below a router notice that it drops what they hand over (docs/adr/0026).
//!
//! Now and then this machine puts a ticket on a request or an `Ask` for another machine's router. That router sends the
//! ticket back as soon as it has the message, whatever it does with the message. A ticket is lost if it is not back in
//! [`BACK_WITHIN`] and another machine is heard after that. Three lost tickets in a row, each within five minutes of the
//! one before, are a verdict: the router is left out for ten minutes; after that one more lost ticket is enough.
//!
//! A router has at most one ticket at a time, and messages meanwhile have none: so a crash loses one ticket, not several. An
//! honest router sends back every ticket, whichever machine the request is from, so that no other can have it left out.
//!
//! Left out: a router that sends tickets back and drops the messages. Only submitters see that (`watch`).

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{PeerId, Time};

use crate::watch::Lost;

/// A ticket that is not back in this time may be lost. Our choice: many round trips, and less than `placement_timeout`, after
/// which submitters issue tasks again.
const BACK_WITHIN: Duration = Duration::from_secs(10);
/// Least time between two tickets for one router. Our choice: bounds the cost of tickets.
const TICKET_EVERY: Duration = Duration::from_secs(5);
/// So many lost tickets in a row are a verdict. Three, since one goes with a crash, and another may go with a lost message: of
/// twenty machines that crashed every 20 minutes where 2 % of messages were lost, two in a row left three out.
const LOST_IN_ROW: u32 = 3;
/// Most routers with tickets; the one whose last ticket is the oldest is forgotten first. Our choice: beside trials and its `Ask`s
/// through long links, a machine hands messages to about four routers.
const ROUTERS_MAX: usize = 64;

/// The tickets of one router.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The last ticket.
    ticket: u32,
    /// When that was sent.
    sent: Time,
    /// Whether that ticket may still be back in time.
    is_awaited: bool,
    /// Tickets lost since one was back in time.
    lost: Option<Lost>,
}

/// All routers that were handed tickets lately.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    routers: BTreeMap<PeerId, Known>,
    last_ticket: u32,
    /// No awaited ticket is late before this moment; it may be back by then.
    due: Option<Time>,
}

impl Handed {
    /// The ticket of a message to this router that is sent now; 0: none.
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

    /// A router sends a ticket back. A late one changes nothing: it is lost already.
    pub(crate) fn came_back(&mut self, router: PeerId, ticket: u32) {
        if let Some(known) = self.routers.get_mut(&router).filter(|known| known.is_awaited && known.ticket == ticket) {
            (known.is_awaited, known.lost) = (false, None);
        }
    }

    /// A message from another machine arrived: late tickets are lost. Returns whether there were any.
    pub(crate) fn heard(&mut self, now: Time) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        let mut is_any_lost = false;
        for known in self.routers.values_mut().filter(|known| known.is_awaited && known.sent + BACK_WITHIN <= now) {
            known.is_awaited = false;
            known.lost = Some(Lost::counted(known.lost, LOST_IN_ROW, known.sent, now));
            is_any_lost = true;
        }
        let awaited = self.routers.values().filter(|known| known.is_awaited);
        self.due = awaited.map(|known| known.sent + BACK_WITHIN).min();
        is_any_lost
    }

    /// This machine was asleep and heard no tickets: it awaits none any more.
    pub(crate) fn was_asleep(&mut self) {
        self.routers.values_mut().for_each(|known| known.is_awaited = false);
        self.due = None;
    }

    /// Whether the router lost a ticket since it last sent one back in time.
    pub(crate) fn is_doubted(&self, router: PeerId) -> bool {
        self.routers.get(&router).is_some_and(|known| known.lost.is_some())
    }

    /// Whether the router is left out now.
    pub(crate) fn swallows(&self, router: PeerId, now: Time) -> bool {
        self.routers.get(&router).and_then(|known| known.lost).is_some_and(|lost| lost.is_verdict(LOST_IN_ROW, now))
    }

    /// All routers that are left out now, by id.
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
    fn a_router_that_loses_three_tickets_in_a_row_is_left_out() {
        let mut handed = Handed::default();
        assert_ne!(handed.ticket(ROUTER, at(0)), 0);
        assert_eq!(handed.ticket(ROUTER, at(6)), 0, "one at a time");
        assert!(!handed.heard(at(9)) && !handed.is_doubted(ROUTER));
        assert!(handed.heard(at(10)) && handed.is_doubted(ROUTER) && !handed.swallows(ROUTER, at(10)));
        handed.ticket(ROUTER, at(12));
        assert!(handed.heard(at(22)) && !handed.swallows(ROUTER, at(22)));
        handed.ticket(ROUTER, at(24));
        assert!(handed.heard(at(34)) && handed.swallows(ROUTER, at(34)));
        assert_eq!(handed.left_out(at(34)).collect::<Vec<_>>(), [ROUTER]);
        assert!(!handed.swallows(ROUTER, at(634)), "it is tried again");
        handed.ticket(ROUTER, at(700));
        assert!(handed.heard(at(710)) && handed.swallows(ROUTER, at(710)), "and has to lose only once more");
    }

    #[test]
    fn two_crashes_are_no_verdict() {
        let mut handed = Handed::default();
        for crash in 1..10 {
            handed.ticket(ROUTER, at(crash * 1000));
            assert!(
                handed.heard(at(crash * 1000 + 10)) && !handed.swallows(ROUTER, at(crash * 1000 + 10)),
                "crash {crash}"
            );
        }
    }

    #[test]
    fn a_ticket_clears_its_router_unless_it_is_late() {
        let mut handed = Handed::default();
        let late = handed.ticket(ROUTER, at(0));
        handed.heard(at(10));
        let second = handed.ticket(ROUTER, at(12));
        handed.came_back(ROUTER, late);
        assert!(handed.is_doubted(ROUTER));
        handed.came_back(PeerId([8; 32]), second);
        assert!(handed.is_doubted(ROUTER), "another machine cannot send it back");
        handed.came_back(ROUTER, second);
        assert!(!handed.is_doubted(ROUTER) && !handed.heard(at(30)));
        assert_eq!(handed.ticket(ROUTER, at(16)), 0, "not so soon");
        assert_ne!(handed.ticket(ROUTER, at(17)), 0);
    }

    #[test]
    fn a_machine_that_was_asleep_blames_no_router() {
        let mut handed = Handed::default();
        handed.ticket(ROUTER, at(0));
        handed.was_asleep();
        assert!(!handed.heard(at(100)) && !handed.is_doubted(ROUTER));
    }

    #[test]
    fn the_router_with_the_oldest_ticket_is_forgotten_first() {
        let mut handed = Handed::default();
        (0..=255).for_each(|byte| assert_ne!(handed.ticket(PeerId([byte; 32]), at(i64::from(byte))), 0));
        assert_eq!(handed.routers.len(), ROUTERS_MAX);
        handed.heard(at(500));
        assert!(handed.is_doubted(PeerId([255; 32])) && !handed.is_doubted(PeerId([0; 32])));
    }
}
