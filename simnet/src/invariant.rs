//! The invariants I1 to I8 of the overlay's design, and I9 of bags with several keepers, which hold whatever machines and links do, each in
//! a file of its own with its rule, its source and why it matters.
//!
//! *Safety* must hold at every instant, faults or not: I1, I2, I4 and I5 are checked after every event, on the machine
//! that handled it, since nothing else has changed; I7 whenever a task starts or a request is split. *Convergence* must
//! come within a stated bound once faults have stopped: I3, I6 and I8. All are judged by the simulator's own
//! observations; it computes keys and prefixes by itself.

use idlewood_overlay::{Config, GridId, PeerId};

use crate::event_queue::HostIndex;
use crate::overlay::{Step, World};

pub mod i1_answered;
pub mod i2_ordered;
pub mod i3_neighboured;
pub mod i4_descending;
pub mod i5_degree;
pub mod i6_tree;
pub mod i7_once;
pub mod i8_summary;
pub mod i9_kept;
mod keys;
mod rule;

pub use keys::Keys;
pub use rule::{Invariant, Violation};

/// Messages of a correct peer are never refused as malformed, oversized or forged: no invariant of the design, but
/// breaking it breaks the protocol.
pub const UNDERSTOOD: Invariant =
    Invariant { name: "messages", rule: "what a correct peer sends is never refused as malformed" };

/// Checks a world of overlays: every safety invariant, and I3.
#[derive(Debug)]
pub struct Safety {
    answered: i1_answered::Answered,
    neighboured: i3_neighboured::Neighboured,
    side_len: usize,
    keys: Keys,
    /// By machine: its life and its leaf set at the last check of I1 and I2.
    leaf_sets: Vec<(u32, Vec<(PeerId, u64)>)>,
    /// The invariants to check; none: all.
    watched: Vec<Invariant>,
}

impl Safety {
    /// Checks a world from its beginning.
    pub fn new(config: &Config, grid: GridId, hosts: u32) -> Self {
        Self {
            keys: Keys::new(grid),
            leaf_sets: vec![(0, Vec::new()); hosts as usize],
            answered: i1_answered::Answered::new(hosts),
            neighboured: i3_neighboured::Neighboured::new(config, hosts),
            side_len: config.leaf_set_side_len,
            watched: Vec::new(),
        }
    }

    /// Checks only these; none: nothing.
    pub fn watching(self, watched: &[Invariant]) -> Self {
        Self { watched: watched.to_vec(), ..self }
    }

    /// A lid was opened: the machine's inactivity was no fault of its peer.
    pub fn resumed(&mut self, world: &World, host: HostIndex) {
        self.neighboured.excuse(world, host);
    }

    /// Checks the machine that has just handled an event.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn stepped(&mut self, world: &World, step: Step) -> Result<(), Violation> {
        let Step::Handled(host) = step else { return Ok(()) };
        self.answered.note(world);
        self.disturbed(world, host)
    }

    /// Checks a machine that the driver changed.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn disturbed(&mut self, world: &World, host: HostIndex) -> Result<(), Violation> {
        let Some(overlay) = world.overlay(host) else { return Ok(()) };
        let counters = overlay.counters();
        let refused = counters.malformed + counters.oversized + counters.foreign_grid + counters.forged_sender;
        let understood = if refused == 0 { Ok(()) } else { Err(format!("{counters:?}")) };
        let keys = &mut self.keys;
        let (mut answered, mut ordered) = (Ok(()), Ok(()));
        let leaf_set = || overlay.neighbours().map(|contact| (contact.peer, contact.incarnation));
        let (life, seen) = &mut self.leaf_sets[host as usize];
        // An unchanged leaf set needs no second check.
        if *life != world.life(host) || !seen.iter().copied().eq(leaf_set()) {
            (*life, *seen) = (world.life(host), leaf_set().collect());
            answered = self.answered.check(world, host, overlay);
            ordered = i2_ordered::check(keys, overlay, self.side_len);
        }
        let checks = [
            (i1_answered::RULE, answered),
            (i2_ordered::RULE, ordered),
            (i3_neighboured::RULE, self.neighboured.check(world, keys, host, overlay)),
            (i4_descending::RULE, i4_descending::check(world, keys, host, overlay)),
            (i5_degree::RULE, i5_degree::check(keys, overlay)),
            (UNDERSTOOD, understood),
        ];
        for (invariant, outcome) in checks {
            if !self.watched.is_empty() && !self.watched.contains(&invariant) {
                continue;
            }
            outcome.map_err(|what| Violation { invariant, at: world.now(), host: Some(host), what })?;
        }
        Ok(())
    }
}
