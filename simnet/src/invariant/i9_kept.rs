//! I9: no bag is lost while one of its keepers has its disk, and one keeper acts.
//!
//! Source: docs/adr/0041. Why: submitters are desktops. A machine whose disk is gone is replaced from a ticket, which names the stewards
//! and has no results; what it knew beside has to come from them.
//!
//! When it must hold: that a ledger can be made of what some keeper's disk has, always ([`check`]); that no steward acts while the bag's
//! submitter does, [`within`] after the last fault ([`one_acts`]). That each task of the bag is in one place of a ledger is asserted by the
//! ledger itself after each event, and that all tasks end by whoever runs the bags.

use std::time::Duration;

use idlewood_scheduler::BagId;

use super::rule::{Invariant, Violation};
use crate::Simulation;
use crate::event_queue::HostIndex;

/// I9.
pub const RULE: Invariant = Invariant {
    name: "I9",
    rule: "each bag that is not over is on the disk of one of its keepers, and one keeper acts",
};

/// Bags that their submitters have accepted and not closed, with these.
pub fn open(simulation: &Simulation) -> impl Iterator<Item = (HostIndex, BagId)> {
    let bags = simulation.record().bags().iter().filter(|bag| bag.accepted.is_some() && bag.closed.is_none());
    bags.filter_map(|bag| Some((bag.submitted?.0, bag.bag.id)))
}

/// The machines whose disks have all that it takes to go on with a bag.
pub fn keepers(simulation: &Simulation, bag: BagId) -> Vec<HostIndex> {
    (0..simulation.scenario().nodes).filter(|&host| simulation.can_keep(host, bag)).collect()
}

/// Whether no bag would be lost if the disk of this machine were taken now: another keeper by the newest appointment has each of the bags
/// that it has, and its user a ticket of those that were submitted from it. That such a bag is kept no longer may already be on its way
/// to a keeper that was replaced.
pub fn can_lose_disk(simulation: &Simulation, host: HostIndex) -> bool {
    open(simulation).all(|(submitter, bag)| {
        let keepers = keepers(simulation, bag);
        let is_needed = keepers.contains(&host) || submitter == host;
        let has_ticket = submitter != host || simulation.has_ticket(host, bag);
        let appointment = simulation.appointment(bag);
        let is_appointed = |host: HostIndex| {
            let appointment = appointment.as_ref();
            let id = simulation.host_id(host);
            appointment.is_some_and(|appointment| appointment.keepers.iter().any(|keeper| keeper.peer == id))
        };
        !is_needed || has_ticket && keepers.iter().any(|keeper| *keeper != host && is_appointed(*keeper))
    })
}

/// Checks that each open bag can be gone on with.
///
/// # Errors
/// The first bag of which no disk has enough.
pub fn check(simulation: &Simulation) -> Result<(), Violation> {
    for (submitter, bag) in open(simulation) {
        if keepers(simulation, bag).is_empty() {
            let what = format!("no disk has what it takes to go on with bag {bag}, which was submitted there");
            return Err(Violation { invariant: RULE, at: simulation.now(), host: Some(submitter), what });
        }
    }
    Ok(())
}

/// How long after the last fault a steward may act beside the submitter: the submitter asks for 15 s, signs, and tells stewards every 10 s;
/// each message may have to be said again.
pub fn within(simulation: &Simulation) -> Duration {
    Duration::from_secs(60) + simulation.scenario().peer.lease
}

/// Checks that no steward acts for an open bag, once all machines are up and hear each other.
///
/// # Errors
/// A steward that does.
pub fn one_acts(simulation: &Simulation) -> Result<(), Violation> {
    for host in 0..simulation.scenario().nodes {
        let Some(peer) = simulation.peer(host) else { continue };
        let open = |bag| open(simulation).any(|(_, open)| open == bag);
        if let Some((bag, _)) = peer.kept().find(|(bag, acts)| *acts && open(*bag)) {
            let what = format!("it acts for bag {bag}, and so does the submitter");
            return Err(Violation { invariant: RULE, at: simulation.now(), host: Some(host), what });
        }
    }
    Ok(())
}
