//! I7: no (request, path) is executed twice in one life of a peer.
//!
//! Source: `docs/design/overlay.md`, "zombies and duplicates": two parents for some seconds *will* happen, and links
//! repeat messages; so requests must be idempotent on (request, path). Why: executed twice, a part of a bag is worked
//! on twice, or is split differently the second time, so that tasks end in both halves or in none.
//!
//! The simulator sees every effect of a peer. A leaf executes a request by starting its tasks: a task of one issue
//! (attempt) is started at most once in one life of a peer, whether its first start ended well or not. A router
//! executes one by sending its parts down: one (bag, number, path) leaves a peer at most once in one life. Tasks issued
//! again have another number and attempt.

use std::collections::BTreeSet;

use super::rule::{Invariant, Violation};
use crate::Simulation;
use crate::event_queue::HostIndex;
use crate::simulation::Deed;

/// I7.
pub const RULE: Invariant =
    Invariant { name: "I7", rule: "no (request, path) is executed twice in one life of a peer" };

/// The simulator's own record of executed requests.
#[derive(Debug, Default)]
pub struct Once {
    done: BTreeSet<(HostIndex, u32, Deed)>,
}

impl Once {
    /// Number of deeds recorded.
    pub fn deeds(&self) -> usize {
        self.done.len()
    }

    /// Records the tasks that leaves started in the simulation's last step.
    ///
    /// # Errors
    /// A task that was started for the second time.
    pub fn started(&mut self, simulation: &Simulation) -> Result<(), Violation> {
        self.note(simulation, |deed| matches!(deed, Deed::Started { .. }))
    }

    /// Records the parts that routers sent down in the simulation's last step.
    ///
    /// # Errors
    /// A part that was sent for the second time.
    pub fn sent_down(&mut self, simulation: &Simulation) -> Result<(), Violation> {
        self.note(simulation, |deed| matches!(deed, Deed::SentDown { .. }))
    }

    fn note(&mut self, simulation: &Simulation, looks: impl Fn(&Deed) -> bool) -> Result<(), Violation> {
        for (host, deed) in simulation.deeds().iter().filter(|(_, deed)| looks(deed)) {
            if !self.done.insert((*host, simulation.life(*host), deed.clone())) {
                let what = format!("{deed:?} for the second time");
                return Err(Violation { invariant: RULE, at: simulation.now(), host: Some(*host), what });
            }
        }
        Ok(())
    }
}
