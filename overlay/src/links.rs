//! The links of this machine's nodes: up to their parents, and down from its router to its children.
//!
//! Soft state: `tree` derives it from the line and from what children report, and keeps it fresh. Here is what hangs
//! where, with the rules that hold at any time (I4, I5).

use std::time::Duration;

use crate::identity::Member;
use crate::link::{Reported, Slot, Structure, Taken, Uplink};
use crate::local::Local;
use crate::message::Body;
use crate::node::{NODES, Node, SIDES, Side};
use crate::payload::{Load, Payload, PayloadCodec};
use crate::subtree::{COUNT_MAX, HEIGHT_MAX, Prefixes, Span, Subtree, fence, refit};
use crate::time::Time;

/// The links of the nodes on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    /// By node: leaf, router.
    uplinks: [Uplink; 2],
    /// By side: left, right.
    slots: [Option<Box<Slot>>; 2],
    /// The far end of our router's gap, and the gap's prefix: they identify the router whose children and parent these
    /// are.
    gap: Option<(Member, u16)>,
    /// Rises with each new child and each new payload of one.
    generation: u64,
}

impl Links {
    /// No links, and no router.
    pub(crate) fn new(now: Time) -> Self {
        Self { uplinks: [Uplink::new(now), Uplink::new(now)], slots: [None, None], gap: None, generation: 0 }
    }

    /// I4 and I5: at most one child on each side, which meets at the gap, and whose prefix is longer than ours; as ours is
    /// longer than a parent's. No link has acknowledged or sent a version that does not exist yet.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self, local: &Local) {
        self.assert_children(local);
        for uplink in &self.uplinks {
            let is_own = uplink.target.as_ref().is_some_and(|target| target.peer == local.me.peer);
            debug_assert_eq!(uplink.is_own, is_own, "whether the parent is this machine");
            if let Some(tree) = &uplink.tree {
                let prefixes = Prefixes::of(local.grid, &tree.span);
                let is_longer = |prefixes: Prefixes| Some(prefixes.own) > prefixes.before.max(prefixes.after);
                debug_assert!(
                    prefixes.is_some_and(is_longer),
                    "the parent of {tree:?} has a prefix as long: {prefixes:?}"
                );
            }
            debug_assert!(uplink.acked.is_none_or(|acked| acked <= uplink.version), "acknowledged before it was said");
            debug_assert!(uplink.load_sent.version <= uplink.load.version, "sent before it was published");
        }
    }

    #[cfg(debug_assertions)]
    fn assert_children(&self, local: &Local) {
        let Some((_, gap)) = &self.gap else {
            debug_assert_eq!(self.linked().count(), 0, "children without a router");
            return;
        };
        for side in SIDES {
            let Some(slot) = self.slot(side) else { continue };
            debug_assert_eq!(Prefixes::of(local.grid, &slot.tree.span), Some(slot.prefixes), "prefixes of {slot:?}");
            debug_assert!(slot.prefixes.own > *gap, "the prefix of {slot:?} is no longer than {gap}");
            debug_assert_eq!(self.accepts(&local.me, &slot.tree.span, &slot.prefixes), Some(side), "of {slot:?}");
            debug_assert!(slot.generation <= self.generation, "the generation of {slot:?}");
            debug_assert!(side == Side::Left || !slot.is_own_leaf(), "the own leaf is the right child");
        }
        let [left, right] = &self.slots;
        let is_same = |one: &Slot, other: &Slot| (one.contact.peer, one.node) == (other.contact.peer, other.node);
        let twice = left.as_deref().zip(right.as_deref()).filter(|(left, right)| is_same(left, right));
        debug_assert!(twice.is_none(), "one child on both sides: {twice:?}");
    }

    // ---- what hangs where ----

    pub(crate) fn uplink(&self, node: Node) -> &Uplink {
        &self.uplinks[node as usize]
    }

    pub(crate) fn uplink_mut(&mut self, node: Node) -> &mut Uplink {
        &mut self.uplinks[node as usize]
    }

    pub(crate) fn slot(&self, side: Side) -> Option<&Slot> {
        self.slots[side as usize].as_deref()
    }

    pub(crate) fn slot_mut(&mut self, side: Side) -> Option<&mut Slot> {
        self.slots[side as usize].as_deref_mut()
    }

    /// The linked children, left and right.
    pub(crate) fn linked(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten().map(Box::as_ref)
    }

    /// The machines of the children.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Member> {
        self.linked().map(|slot| &slot.contact)
    }

    /// The machines that the nodes take for their parents'.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Member> {
        self.uplinks.iter().filter_map(|uplink| uplink.target.as_ref())
    }

    /// The machines of the parents that accepted the link.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &Member> {
        self.uplinks.iter().filter_map(Uplink::parent)
    }

    /// The far end of our router's gap, and the gap's prefix.
    pub(crate) fn gap(&self) -> Option<&(Member, u16)> {
        self.gap.as_ref()
    }

    /// The part of the line that a node of ours covers and reports; none while a child is missing.
    pub(crate) fn span(&self, node: Node) -> Option<&Span> {
        self.uplink(node).tree.as_ref().map(|tree| &tree.span)
    }

    /// The side on which our router takes such a node as a child, if any.
    pub(crate) fn accepts(&self, me: &Member, span: &Span, prefixes: &Prefixes) -> Option<Side> {
        let (succ, gap) = self.gap.as_ref()?;
        fence(me, succ, *gap, span, prefixes)
    }

    // ---- derived from the line and from the children ----

    /// Whether the router of this gap is another one than ours.
    pub(crate) fn is_other_router(&self, gap: Option<&(Member, u16)>) -> bool {
        let succ = |gap: Option<&(Member, u16)>| gap.map(|(succ, _)| succ.peer);
        succ(self.gap.as_ref()) != succ(gap)
    }

    /// Moves the router to this gap. Where it is another router: its link to the parent is void unless the prefix, and
    /// so the node, is the same; its former children on other machines are returned.
    pub(crate) fn move_router(&mut self, local: &mut Local, gap: Option<(Member, u16)>) -> Vec<Slot> {
        let is_other = self.is_other_router(gap.as_ref());
        let prefix = |gap: &Option<(Member, u16)>| gap.as_ref().map(|(_, prefix)| *prefix);
        let old = std::mem::replace(&mut self.gap, gap);
        if !is_other {
            return Vec::new();
        }
        if prefix(&old) != prefix(&self.gap) {
            let uplink = self.uplink_mut(Node::Router);
            uplink.tree = None;
            uplink.retarget(local.now, None);
        }
        let former: Vec<Slot> = self.slots.iter_mut().filter_map(Option::take).map(|slot| *slot).collect();
        local.outbox.notices.place = true;
        local.outbox.notices.children |= !former.is_empty();
        former.into_iter().filter(|slot| slot.contact.peer != local.me.peer).collect()
    }

    /// Takes over what a node of ours reports, and to whom.
    pub(crate) fn update_uplink(&mut self, local: &mut Local, node: Node, tree: Box<Subtree>, target: Option<Member>) {
        let spacing = Duration::from_millis(local.config.report_spacing_ms);
        let uplink = &mut self.uplinks[node as usize];
        if uplink.target.as_ref().map(|target| target.peer) != target.as_ref().map(|target| target.peer) {
            uplink.retarget(local.now, target);
            uplink.next = local.now;
            local.outbox.notices.place = true;
        } else if uplink.target != target {
            uplink.target = target;
            uplink.next = local.now;
        }
        uplink.is_own = uplink.target.as_ref().is_some_and(|target| target.peer == local.me.peer);
        if uplink.tree.as_ref() != Some(&tree) {
            uplink.version += 1;
            uplink.tree = Some(tree);
            uplink.next = uplink.last_sent.map_or(local.now, |sent| local.now.max(sent + spacing));
        }
    }

    /// Links our leaf below our own router.
    pub(crate) fn link_own_leaf(&mut self, local: &mut Local, tree: Subtree, prefixes: Prefixes) {
        let uplink = self.uplink_mut(Node::Leaf);
        uplink.acked = Some(uplink.version);
        let (version, load) = (uplink.version, uplink.load.clone());
        let slot = self.slot(Side::Left).filter(|slot| slot.contact.peer == local.me.peer);
        if slot.is_some_and(|slot| slot.tree == tree && slot.load.version == load.version) {
            return;
        }
        let structure = Structure { node: Node::Leaf, version, tree, prefixes };
        self.link(local, Side::Left, Slot { load, ..Slot::new(local.now, local.me.clone(), structure) });
    }

    /// Puts a new child into its slot.
    pub(crate) fn link(&mut self, local: &mut Local, side: Side, slot: Slot) {
        self.generation += 1;
        local.outbox.notices.children = true;
        self.slots[side as usize] = Some(Box::new(Slot { generation: self.generation, ..slot }));
    }

    /// Unlinks the children that no longer meet at the gap; `prefixes` are those of our leaf.
    pub(crate) fn revalidate(&mut self, local: &mut Local, prefixes: &Prefixes) {
        for side in SIDES {
            let Some(slot) = self.slot(side) else { continue };
            let is_own = slot.is_own_leaf();
            debug_assert_eq!(is_own, slot.contact.peer == local.me.peer, "{slot:?}");
            let own_moved = is_own && prefixes.side() != Some(Side::Left);
            if own_moved || self.accepts(&local.me, &slot.tree.span, &slot.prefixes) != Some(side) {
                self.slots[side as usize] = None;
                local.outbox.notices.children = true;
            }
        }
    }

    /// Fills empty slots with former children that fit the gap.
    pub(crate) fn refill(&mut self, local: &Local, former: Vec<Slot>) {
        let Some((succ, gap)) = &self.gap else { return };
        for slot in former {
            let Some((side, tree, prefixes)) = refit(local.grid, &local.me, succ, *gap, &slot.tree) else { continue };
            self.slots[side as usize].get_or_insert_with(|| Box::new(Slot { tree, prefixes, ..slot }));
        }
    }

    /// The router's own subtree and parent follow from its children.
    pub(crate) fn derive_router(&mut self, local: &mut Local) {
        let [Some(left), Some(right)] = &self.slots else {
            self.uplink_mut(Node::Router).tree = None;
            return;
        };
        let (l, r) = (&left.tree, &right.tree);
        let span = Span { lo: l.span.lo.clone(), l: l.span.l.clone(), r: r.span.r.clone(), ro: r.span.ro.clone() };
        let own = self.gap.as_ref().map_or(0, |(_, prefix)| *prefix);
        let prefixes = Prefixes { before: left.prefixes.before, own, after: right.prefixes.after };
        // Each child's count is within bounds, their sum may not be: our parent would refuse it.
        let count = l.count.saturating_add(r.count).min(COUNT_MAX);
        let height = l.height.max(r.height).saturating_add(1).min(HEIGHT_MAX);
        let target = span.parent(&prefixes).cloned();
        self.update_uplink(local, Node::Router, Box::new(Subtree { span, count, height }), target);
    }

    /// Replaces the payload that a node of ours reports.
    pub(crate) fn replace_load(&mut self, local: &mut Local, node: Node, bytes: Vec<u8>) {
        let uplink = self.uplink_mut(node);
        uplink.load = Load { version: uplink.load.version + 1, bytes: bytes.into() };
        if uplink.acked.is_some() {
            uplink.next = uplink.next.min(uplink.load_after.max(local.now));
        }
        // If the own leaf is a child of the own router, the router has the payload at once.
        let load = uplink.load.clone();
        let left = self.slots[Side::Left as usize].as_mut();
        if let Some(slot) = left.filter(|slot| node == Node::Leaf && slot.is_own_leaf()) {
            self.generation += 1;
            (slot.load, slot.generation) = (load, self.generation);
            local.outbox.notices.children = true;
        }
    }

    // ---- reports of children ----

    /// Takes the structure that a child reports, which belongs on this side.
    pub(crate) fn take_report(
        &mut self,
        local: &mut Local,
        side: Side,
        sender: &Member,
        structure: Structure,
    ) -> Reported {
        match &mut self.slots[side as usize] {
            Some(slot) if slot.contact.peer == sender.peer && slot.node == structure.node => {
                let is_change = slot.tree != structure.tree || slot.contact != *sender;
                let reported = slot.take_report(local.now, sender, structure);
                local.outbox.notices.children |= is_change && reported == Reported::Taken;
                reported
            }
            _ => {
                self.link(local, side, Slot::new(local.now, sender.clone(), structure));
                Reported::Taken
            }
        }
    }

    /// A child reports that nothing changed since `version`. False if that is not what its slot holds.
    pub(crate) fn renew(&mut self, now: Time, sender: &Member, node: Node, version: u64) -> bool {
        // A handed child has not reported, so there is nothing to renew.
        let is_same = |slot: &&mut Slot| slot.version == version && !slot.is_handed;
        let slot = slot_of(&mut self.slots, sender, node).filter(is_same);
        slot.map(|slot| slot.heard = now).is_some()
    }

    /// Stores the payload of a linked child, if it sends one, and notes that the child is told `announced`. Returns the
    /// version that we hold, 0 to ask for the whole payload; none if it is no child.
    pub(crate) fn take_load(
        &mut self,
        local: &mut Local,
        sender: &Member,
        node: Node,
        load: Option<Payload>,
        codec: &PayloadCodec,
        announced: (u32, Option<u32>),
    ) -> Option<u64> {
        let slot = slot_of(&mut self.slots, sender, node)?;
        slot.announced = announced;
        let taken = load.map_or(Taken::Known, |load| slot.take_load(load, codec));
        if taken == Taken::New {
            self.generation += 1;
            slot.generation = self.generation;
            local.outbox.notices.children = true;
        }
        local.counters.differences_refused += u64::from(taken == Taken::Nonsense);
        // We keep the stored payload until the whole comes.
        Some(if matches!(taken, Taken::New | Taken::Known) { slot.load.version } else { 0 })
    }

    // ---- silence ----

    /// A parent outside our leaf set fell silent: asks its neighbours to probe it.
    pub(crate) fn suspect_parent(&self, local: &mut Local, silent: &Member) {
        for uplink in &self.uplinks {
            let Some(tree) = uplink.tree.as_ref().filter(|_| uplink.target.as_ref() == Some(silent)) else { continue };
            let span = &tree.span;
            let beside = if span.r.peer == silent.peer { span.ro.clone() } else { Some(span.l.clone()) };
            if let Some(beside) = beside.filter(|beside| beside.peer != local.me.peer) {
                local.send(beside, Body::Suspect(silent.clone()));
            }
        }
    }

    /// Unlinks the children that were silent for their lease. True if there were any.
    pub(crate) fn end_leases(&mut self, local: &mut Local) -> bool {
        let lease = Duration::from_millis(local.config.child_lease_ms);
        let has_ended = |slot: &Slot| !slot.is_own_leaf() && slot.heard + lease <= local.now;
        let mut have_ended = false;
        for slot in &mut self.slots {
            if slot.as_deref().is_some_and(has_ended) {
                *slot = None;
                have_ended = true;
            }
        }
        local.outbox.notices.children |= have_ended;
        have_ended
    }

    /// This machine slept for so long: the silence of its children means nothing.
    pub(crate) fn extend_leases(&mut self, by: Duration) {
        self.slots.iter_mut().flatten().for_each(|slot| slot.heard += by);
    }

    /// When a link has timed work, where children are to be told `announced`; messages meanwhile only postpone it.
    pub(crate) fn deadline(&self, local: &Local, announced: (u32, Option<u32>)) -> Time {
        let lease = Duration::from_millis(local.config.child_lease_ms);
        let mut next = Time::MAX;
        for slot in self.linked().filter(|slot| !slot.is_own_leaf()) {
            next = next.min(slot.heard + lease);
            if slot.lags(announced) {
                next = next.min(slot.push_after);
            }
        }
        if local.life.is_member() {
            let reporting = NODES.map(|node| self.uplink(node)).into_iter().filter(|uplink| uplink.reports());
            next = reporting.fold(next, |next, uplink| next.min(uplink.next));
        }
        next
    }
}

/// The slot of this node of the sender's present incarnation.
fn slot_of<'a>(slots: &'a mut [Option<Box<Slot>>; 2], sender: &Member, node: Node) -> Option<&'a mut Slot> {
    let life = |contact: &Member| (contact.peer, contact.incarnation);
    let mut slots = slots.iter_mut().flatten().map(Box::as_mut);
    slots.find(|slot| slot.node == node && life(&slot.contact) == life(sender))
}
