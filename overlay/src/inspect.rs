//! Views of an overlay for observers: simulators and tests of the invariants.
//!
//! Nothing here changes anything, and nothing of the protocol depends on it.

use crate::identity::Contact;
use crate::node::{Node, Side};
use crate::overlay::Overlay;
use crate::sizes::Sizes;
use crate::subtree::Span;

impl Overlay {
    /// Whether a look-up is under way, of the own key or of a finger; it excuses a missing side of the leaf set (I3).
    pub fn is_looking_up(&self) -> bool {
        self.line.lookup.is_some()
    }

    /// The far end of our router's gap: the successor, unless the tree has not followed the line yet; none without a
    /// router.
    pub fn gap(&self) -> Option<&Contact> {
        self.tree.gap.as_ref().map(|(succ, _)| &**succ)
    }

    /// The part of the line that a node of ours covers and reports; none while a child is missing.
    pub fn span(&self, node: Node) -> Option<&Span> {
        self.tree.uplinks[node as usize].tree.as_ref().map(|tree| &tree.span)
    }

    /// The part of the line that a linked child covers.
    pub fn child_span(&self, side: Side) -> Option<&Span> {
        self.tree.slots[side as usize].as_ref().map(|slot| &slot.tree.span)
    }

    /// Version of the last payload of a node of ours; 0 before the first.
    pub fn published_version(&self, node: Node) -> u64 {
        self.tree.uplinks[node as usize].load.version
    }

    /// The last payload of a node of ours; empty before the first.
    pub fn published(&self, node: Node) -> &[u8] {
        &self.tree.uplinks[node as usize].load.bytes
    }

    /// How much this peer holds.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            leaf_set: self.line.leaf_set.len(),
            fingers: self.line.fingers.len(),
            heard_of: self.line.fingers.heard_of().len(),
            probes: self.line.probes.iter().count(),
            graves: self.line.graveyard.graves().len(),
        }
    }
}
