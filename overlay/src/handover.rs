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
use crate::link::{Slot, Structure};
use crate::links::Links;
use crate::local::Local;
use crate::membership::Membership;
use crate::message::{Body, Handover, HandoverChild};
use crate::payload::{Load, PayloadCodec};
use crate::subtree::{Prefixes, refit};
use crate::time::Time;

/// How long a handover waits for the role to arrive.
const PATIENCE: Duration = Duration::from_secs(3);

/// A handover for a role that we have or are about to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handed(Option<Box<Children>>);

/// The children in a handover that we received.
#[derive(Clone, Debug)]
struct Children {
    from: PeerId,
    until: Time,
    list: Vec<HandoverChild>,
}

impl Handed {
    /// Keeps the children that `sender` hands over, in place of those handed over before. False if it cannot have had
    /// the role.
    pub(crate) fn receive(
        &mut self,
        local: &mut Local,
        membership: &Membership,
        sender: &Member,
        handover: Handover,
    ) -> bool {
        // Only a neighbour can have had the role; a peer that joins, or has just lost a neighbour, does not know its
        // neighbours yet.
        let leaf_set = &membership.line.leaf_set;
        let is_near = leaf_set.get(sender.peer).map(|neighbour| neighbour.contact().incarnation);
        let has_left = membership.lost.tombstones.covering(sender, local.now).is_some_and(|stone| stone.left);
        if is_near.is_some_and(|known| known > sender.incarnation) {
            local.counters.stale_life += 1;
            return false;
        }
        if is_near.is_none() && !has_left && !leaf_set.wants(&sender.key(local.grid)) {
            return false;
        }
        let until = local.now + PATIENCE;
        self.0 = Some(Box::new(Children { from: sender.peer, until, list: handover.children }));
        true
    }

    /// Drops a handover that waited too long.
    pub(crate) fn expire(&mut self, now: Time) {
        if self.0.as_ref().is_some_and(|children| children.until <= now) {
            self.0 = None;
        }
    }

    /// Fills the empty slots of our router with handed children that fit its gap.
    pub(crate) fn fill(&mut self, local: &mut Local, links: &mut Links, codec: &PayloadCodec) {
        let Some((succ, gap)) = links.gap().cloned() else { return };
        if links.linked().count() == 2 {
            return;
        }
        self.expire(local.now);
        let Some(children) = &self.0 else { return };
        for child in &children.list {
            if child.contact.peer != local.me.peer && child.contact.peer != children.from {
                take_handed(local, links, codec, child, &succ, gap);
            }
        }
    }
}

/// Links a handed child at our gap, whose far end is `succ`, if it fits there and the slot is empty.
fn take_handed(
    local: &mut Local,
    links: &mut Links,
    codec: &PayloadCodec,
    child: &HandoverChild,
    succ: &Member,
    gap: u16,
) {
    let HandoverChild { contact, node, version, tree, load } = child;
    let is_in_it = |prefixes: &Prefixes| tree.span.holds(contact, *node, local.grid, prefixes.own);
    if !Prefixes::of(local.grid, &tree.span).as_ref().is_some_and(is_in_it) {
        return;
    }
    let Some((side, tree, prefixes)) = refit(local.grid, &local.me, succ, gap, tree) else { return };
    if links.slot(side).is_some() {
        return;
    }
    local.counters.children_handed += 1;
    // The child sends a new parent a whole payload; version 0 makes us refuse differences until then.
    let load = Load { version: 0, bytes: load.clone().unpack(None, codec).unwrap_or_default() };
    let slot = Slot::new(local.now, contact.clone(), Structure { node: *node, version: *version, tree, prefixes });
    links.link(local, side, Slot { load, is_handed: true, ..slot });
}

/// Sends what we know of our children to the peer that takes over the role, or part of it.
pub(crate) fn hand_over(local: &mut Local, links: &Links, codec: &PayloadCodec, to: Member) {
    let remote = links.linked().filter(|slot| slot.contact.peer != local.me.peer);
    let children: Vec<_> = remote.map(|slot| handed_child(slot, codec)).collect();
    if !children.is_empty() {
        local.send(to, Body::Handover(Handover { children }));
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
