//! The invariants I1 to I8 of the overlay's design, which hold whatever machines and links do, each in a file of its
//! own with its rule, its source and why it matters.
//!
//! *Safety* must hold at every instant, faults or not: I1, I2, I4 and I5 are checked after every event, on the machine
//! that handled it, since nothing else has changed; I7 whenever a task starts or a request is split. *Convergence* must
//! come within a stated bound once faults have stopped: I3, I6 and I8. All are judged by the simulator's own
//! observations; it computes keys and prefixes by itself.

use std::collections::BTreeMap;
use std::fmt;

use idlewood_overlay::{Config, GridId, Overlay, PeerId, PositionKey, Time};

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

/// One invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Its number in the design.
    pub name: &'static str,
    /// What must hold.
    pub rule: &'static str,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// When it was noticed.
    pub at: Time,
    /// The machine; none if it concerns the whole grid.
    pub host: Option<HostIndex>,
    /// The observation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant: Invariant { name, rule }, at, host, what } = self;
        let place = host.map_or(String::new(), |host| format!(" on machine {host}"));
        write!(formatter, "{name} ({rule}) is broken at {at:?}{place}: {what}")
    }
}

/// Messages of a correct peer are never refused as malformed, oversized or forged: no invariant of the design, but
/// breaking it breaks the protocol.
pub const UNDERSTOOD: Invariant =
    Invariant { name: "messages", rule: "what a correct peer sends is never refused as malformed" };

/// Places on the line, each computed once from an identity.
#[derive(Debug)]
pub struct Keys {
    grid: GridId,
    known: BTreeMap<PeerId, PositionKey>,
}

impl Keys {
    /// Keys of a grid.
    pub fn new(grid: GridId) -> Self {
        Self { grid, known: BTreeMap::new() }
    }

    /// The place of a peer.
    pub fn of(&mut self, peer: PeerId) -> PositionKey {
        *self.known.entry(peer).or_insert_with(|| PositionKey::new(self.grid, peer))
    }

    /// Length in bits of the common prefix of two peers' keys.
    fn prefix_bits(&mut self, one: PeerId, other: PeerId) -> u32 {
        prefix_bits(&self.of(one), &self.of(other))
    }

    /// Length of the prefix at the gap of this machine's router.
    fn gap_bits(&mut self, overlay: &Overlay) -> Option<u32> {
        Some(self.prefix_bits(overlay.me().peer, overlay.gap()?.peer))
    }
}

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

/// Length in bits of the common prefix of two keys.
fn prefix_bits(one: &PositionKey, other: &PositionKey) -> u32 {
    let differing = one.0.iter().zip(&other.0).enumerate().find(|(_, (one, other))| one != other);
    differing.map_or(256, |(byte, (one, other))| byte as u32 * 8 + (one ^ other).leading_zeros())
}

/// A peer and its incarnation, for messages about a violation.
fn life(peer: PeerId, incarnation: u64) -> String {
    format!("{peer:?} in life {incarnation}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_at_the_first_bit_that_differs() {
        let key = PositionKey([0xa5; 32]);
        for bit in [0, 7, 8, 100, 255] {
            let mut other = key;
            other.0[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(prefix_bits(&key, &other), bit as u32);
        }
        assert_eq!(prefix_bits(&key, &key), 256);
    }
}
