//! What moves with a router's role.
//!
//! A machine that joins splits a gap, and may take over the upper half's router; a machine that leaves hands its gap to
//! its predecessor. The holder of the role before then sends what it knew of the children (spans, counts, versions,
//! payloads whole), so that the tree below and its availability are whole at once instead of being rebuilt from
//! reports. After a crash there is nobody to do so.
//!
//! What is handed over is a guess of what the child will report next: it is fitted to the gap here ([`refit`]), has to
//! pass the fence like a report, only ever fills a slot that is empty, is replaced by the child's first report, and ends
//! with the child's lease. So it does no harm twice, late, or forged by a neighbour; at most one is kept.

use std::time::Duration;

use crate::link::{Prefixes, Slot, refit};
use crate::message::{Handover, HandoverChild, Load, PayloadCodec};
use crate::overlay::Overlay;
use crate::{Body, Member, PeerId, Time};

/// What was handed over waits so long for the role.
const PATIENCE: Duration = Duration::from_secs(3);

/// Children of a role that was handed to us.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    from: PeerId,
    until: Time,
    children: Vec<HandoverChild>,
}

impl Overlay {
    /// Sends what we know of our children to whom the role, or part of it, moves.
    pub(crate) fn hand_over(&mut self, to: Member) {
        let linked = self.tree.slots.iter().flatten().filter(|slot| slot.contact.peer != self.me.peer);
        let children: Vec<_> = linked.map(|slot| handed_child(slot, &self.codec)).collect();
        if !children.is_empty() {
            self.send(to, Body::Handover(Handover { children }));
        }
    }

    pub(crate) fn on_handover(&mut self, sender: &Member, handover: Handover) {
        // Only a neighbour had the role; one that joins, or lost a neighbour just now, does not know its own yet.
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

    /// Fills the empty slots of our router with what fits: of `old` children of this machine, and of what was handed
    /// over.
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

    /// Drops what waited too long.
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
        self.news.children = true;
        self.counters.children_handed += 1;
        self.tree.slots[side as usize] = Some(Box::new(Slot {
            contact: child.contact.clone(),
            node: child.node,
            version: child.version,
            tree,
            prefixes,
            // The child tells a new parent its payload whole; until then no difference may lead on from this one.
            load: Load { version: 0, bytes },
            generation: self.tree.generation,
            heard: self.now,
            told: (0, None),
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
