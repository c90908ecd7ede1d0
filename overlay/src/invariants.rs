//! Invariants of one overlay, asserted after each event in debug builds, so in tests and simulations: some fifty
//! comparisons, since all that a peer keeps is bounded.
//!
//! I1, I3 and I6 to I8 concern several machines, or time: `simnet` checks these.

use crate::link::Slot;
use crate::node::{NODES, SIDES, Side};
use crate::overlay::Overlay;
use crate::state::State;
use crate::subtree::Prefixes;

impl Overlay {
    /// Panics where one of the rules is broken.
    pub(crate) fn assert_consistent(&self) {
        self.line.leaf_set.assert_ordered();
        self.line.probes.assert_consistent();
        self.line.lookup.iter().for_each(|lookup| lookup.assert_ordered());
        self.assert_probed();
        self.assert_children();
        self.assert_uplinks();
        if !matches!(self.state, State::Leaving | State::Left) {
            debug_assert_eq!(self.wake(), self.next_timer(), "timed work is forgotten");
            debug_assert!(self.tree.next <= self.tree_deadline(), "a link is forgotten");
        }
    }

    /// A neighbour is marked as probed while a probe of it is under way.
    fn assert_probed(&self) {
        for neighbour in self.line.leaf_set.iter() {
            let peer = neighbour.contact().peer;
            let is_probed = self.line.probes.get(peer).is_some();
            debug_assert_eq!(neighbour.probed, is_probed, "whether {peer:?} is being probed");
        }
    }

    /// I4 and I5: at most one child on each side, which meets at the gap, and whose prefix is longer than ours.
    fn assert_children(&self) {
        let linked = || self.tree.slots.iter().flatten();
        let Some((_, gap)) = &self.tree.gap else {
            debug_assert_eq!(linked().count(), 0, "children without a router");
            return;
        };
        for side in SIDES {
            let Some(slot) = &self.tree.slots[side as usize] else { continue };
            debug_assert_eq!(Prefixes::of(self.grid, &slot.tree.span), Some(slot.prefixes), "prefixes of {slot:?}");
            debug_assert!(slot.prefixes.own > *gap, "the prefix of {slot:?} is no longer than {gap}");
            debug_assert_eq!(self.accepts(&slot.tree.span, &slot.prefixes), Some(side), "the side of {slot:?}");
            debug_assert!(slot.generation <= self.tree.generation, "the generation of {slot:?}");
            debug_assert!(side == Side::Left || !slot.is_own_leaf(), "the own leaf is the right child");
        }
        let [left, right] = &self.tree.slots;
        let is_same = |one: &Slot, other: &Slot| (one.contact.peer, one.node) == (other.contact.peer, other.node);
        let twice = left.as_deref().zip(right.as_deref()).filter(|(left, right)| is_same(left, right));
        debug_assert!(twice.is_none(), "one child on both sides: {twice:?}");
    }

    /// A link has not acknowledged or sent a version that does not exist yet.
    fn assert_uplinks(&self) {
        for uplink in NODES.map(|node| &self.tree.uplinks[node as usize]) {
            let is_own = uplink.target.as_ref().is_some_and(|target| target.peer == self.me.peer);
            debug_assert_eq!(uplink.is_own, is_own, "whether the parent is this machine");
            debug_assert!(uplink.acked.is_none_or(|acked| acked <= uplink.version), "acknowledged before it was said");
            debug_assert!(uplink.load_sent.version <= uplink.load.version, "sent before it was published");
        }
    }
}
