//! I1: a leaf set holds only peers that answered this machine, in its present life and in theirs.
//!
//! Source: `docs/design/overlay.md`, "verify before adopt"; Zave on Chord's correctness (arXiv 1610.01140), whose
//! repairs begin with the same rule. Why: a peer known by hearsay may be dead, and two peers that name it to each other
//! keep it alive for ever; the tree then has a router without a machine. And an answer of an earlier life proves
//! nothing about the present one.
//!
//! The world records every answer to a ping that it delivers. The leaf set may hold no other peer.

use std::collections::BTreeSet;

use idlewood_overlay::{Overlay, PeerId};

use super::rule::Invariant;
use crate::event_queue::HostIndex;
use crate::overlay::{Delivery, World};

/// I1.
pub const RULE: Invariant =
    Invariant { name: "I1", rule: "leaf sets hold only peers that answered at that incarnation" };

/// Peers whose answers reached a machine in its present life.
#[derive(Clone, Debug, Default)]
struct Heard {
    life: u32,
    answers: BTreeSet<(PeerId, u64)>,
}

/// The world's own record of answers.
#[derive(Debug)]
pub struct Answered {
    by_host: Vec<Heard>,
}

impl Answered {
    /// An empty record.
    pub fn new(hosts: u32) -> Self {
        Self { by_host: vec![Heard::default(); hosts as usize] }
    }

    /// Records the last step's delivery.
    pub fn note(&mut self, world: &World) {
        let Some(Delivery { to, from, incarnation, is_answer: true }) = world.delivery().copied() else { return };
        let heard = &mut self.by_host[to as usize];
        if heard.life != world.life(to) {
            *heard = Heard { life: world.life(to), ..Heard::default() };
        }
        heard.answers.insert((from, incarnation));
    }

    /// Compares a leaf set with the record.
    ///
    /// # Errors
    /// The peer in it that has not answered.
    pub fn check(&self, world: &World, host: HostIndex, overlay: &Overlay) -> Result<(), String> {
        let heard = &self.by_host[host as usize];
        let is_current = heard.life == world.life(host);
        for neighbour in overlay.neighbours() {
            let (peer, incarnation) = (neighbour.peer, neighbour.incarnation);
            if !is_current || !heard.answers.contains(&(peer, incarnation)) {
                return Err(format!("its leaf set holds {}, which never answered it", life(peer, incarnation)));
            }
        }
        Ok(())
    }
}

/// A peer and its incarnation, for messages about a violation.
fn life(peer: PeerId, incarnation: u64) -> String {
    format!("{peer:?} in life {incarnation}")
}
