//! Handing the children of a router over with its role.
//!
//! A machine that joins splits a gap and may take over the router of the upper half; a machine that leaves hands its
//! gap to its predecessor. The former holder of the role then sends its children's spans, counts, versions and whole
//! payloads, so that the new holder knows the subtree and its availability at once instead of rebuilding them from
//! reports. After a crash, reports rebuild them.
//!
//! A handed child is a guess of what that child will report next: [`refit`] fits it to the gap here, it has to pass the
//! fence like a report, fills a slot only if that is empty, is replaced by the child's first report, and ends with the
//! child's lease. So a handover that comes twice, late, or forged by a neighbour does no harm. At most one is kept.

use std::time::Duration;

use crate::identity::{Member, PeerId};
use crate::link::Slot;
use crate::message::{Body, Handover, HandoverChild};
use crate::overlay::Overlay;
use crate::payload::{Load, PayloadCodec};
use crate::subtree::{Prefixes, refit};
use crate::time::Time;

/// How long a handover waits for the role to arrive.
const PATIENCE: Duration = Duration::from_secs(3);

/// The children in a handover that we received.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    from: PeerId,
    until: Time,
    children: Vec<HandoverChild>,
}

impl Overlay {
    /// Sends what we know of our children to the peer that takes over the role, or part of it.
    pub(crate) fn hand_over(&mut self, to: Member) {
        let linked = self.tree.slots.iter().flatten().filter(|slot| slot.contact.peer != self.me.peer);
        let children: Vec<_> = linked.map(|slot| handed_child(slot, &self.codec)).collect();
        if !children.is_empty() {
            self.send(to, Body::Handover(Handover { children }));
        }
    }

    pub(crate) fn on_handover(&mut self, sender: &Member, handover: Handover) {
        // Only a neighbour can have had the role; a peer that joins, or has just lost a neighbour, does not know its
        // neighbours yet.
        let is_near = self.line.leaf_set.get(sender.peer).map(|neighbour| neighbour.contact().incarnation);
        let has_left = self.line.tombstones.covering(sender, self.now).is_some_and(|stone| stone.left);
        if is_near.is_some_and(|known| known > sender.incarnation) {
            self.counters.stale_life += 1;
            return;
        }
        if is_near.is_none() && !has_left && !self.line.leaf_set.wants(&sender.key(self.grid)) {
            return;
        }
        let until = self.now + PATIENCE;
        self.tree.handed = Some(Box::new(Handed { from: sender.peer, until, children: handover.children }));
        self.tree.changed = true;
    }

    /// Fills the empty slots of our router with children that fit its gap: of `old`, those it had before, and of the
    /// handover.
    pub(crate) fn fill_slots(&mut self, old: Vec<Slot>) {
        let Some((succ, gap)) = self.tree.gap.clone() else { return };
        for slot in old {
            let Some((side, tree, prefixes)) = refit(self.grid, &self.me, &succ, gap, &slot.tree) else {
                continue;
            };
            if self.tree.slots[side as usize].is_none() {
                self.tree.slots[side as usize] = Some(Box::new(Slot { tree, prefixes, ..slot }));
            }
        }
        if self.tree.slots.iter().all(Option::is_some) {
            return;
        }
        self.forget_handed();
        let Some(handed) = self.tree.handed.take() else { return };
        for child in &handed.children {
            if child.contact.peer != self.me.peer && child.contact.peer != handed.from {
                self.take_handed(child, &succ, gap);
            }
        }
        self.tree.handed = Some(handed);
    }

    /// Drops a handover that waited too long.
    pub(crate) fn forget_handed(&mut self) {
        if self.tree.handed.as_ref().is_some_and(|handed| handed.until <= self.now) {
            self.tree.handed = None;
        }
    }

    fn take_handed(&mut self, child: &HandoverChild, succ: &Member, gap: u16) {
        let span = &child.tree.span;
        let is_in_it = |prefixes: &Prefixes| span.holds(&child.contact, child.node, self.grid, prefixes.own);
        if !Prefixes::of(self.grid, span).as_ref().is_some_and(is_in_it) {
            return;
        }
        let Some((side, tree, prefixes)) = refit(self.grid, &self.me, succ, gap, &child.tree) else { return };
        if self.tree.slots[side as usize].is_some() {
            return;
        }
        let bytes = child.load.clone().unpack(None, &self.codec).unwrap_or_default();
        self.tree.generation += 1;
        self.notices.children = true;
        self.counters.children_handed += 1;
        self.tree.slots[side as usize] = Some(Box::new(Slot {
            contact: child.contact.clone(),
            node: child.node,
            version: child.version,
            tree,
            prefixes,
            // The child sends a new parent a whole payload; version 0 makes us refuse differences until then.
            load: Load { version: 0, bytes },
            generation: self.tree.generation,
            heard: self.now,
            announced: (0, None),
            push_after: self.now,
            is_handed: true,
        }));
    }
}

fn handed_child(slot: &Slot, codec: &PayloadCodec) -> HandoverChild {
    HandoverChild {
        contact: slot.contact.clone(),
        node: slot.node,
        version: slot.version,
        tree: slot.tree.clone(),
        load: slot.load.packed(codec),
    }
}
