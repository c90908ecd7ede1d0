//! The tree: soft state, derived from the line and from what children report.
//!
//! Structure climbs: a router reports when both its children are linked and meet at its gap; at once when anything
//! changed, else with each heartbeat. What the root announces descends: with each acknowledgement, and at once when it
//! changed, though at most once a second per child. A refused child learns its parent's neighbours, tells the parent
//! its own boundary, and retries soon.

use std::sync::Arc;
use std::time::Duration;

use crate::identity::Member;
use crate::link::{Refused, Slot, Taken, Uplink};
use crate::message::{Body, Report, ReportAck, RootInfo, Verdict};
use crate::node::{NODES, Node, SIDES, Side};
use crate::overlay::Overlay;
use crate::payload::{Load, Payload};
use crate::state::State;
use crate::subtree::{COUNT_MAX, HEIGHT_MAX, Prefixes, Span, Subtree, fence};

/// Refused children that are called back when our gap changes.
const REFUSED_MAX: usize = 4;
/// Changes of the root that are pushed to a child without pause, after a quiet time.
const PUSH_BURST: u32 = 4;

impl Uplink {
    /// Whether the link has a subtree to report to another machine.
    pub(crate) fn reports(&self) -> bool {
        self.tree.is_some() && self.target.is_some() && !self.is_own
    }
}

impl Overlay {
    // ---- derived from the line ----

    pub(crate) fn derive_tree(&mut self) {
        (self.tree.changed, self.tree.stirred) = (false, true);
        let member = self.state == State::Member;
        if member && self.line.ends.iter().zip(self.line.leaf_set.sides()).any(|(end, side)| !end && side.is_empty()) {
            // We may have lost sight of the rest of the line; `believe_ends` calls this again.
            return;
        }
        let pred = self.pred().filter(|_| member).cloned();
        let succ = self.succ().filter(|_| member).cloned();
        let prefixes = self.leaf_prefixes();
        let old = self.derive_gap(succ.clone().zip(prefixes.after));
        let me = self.me.clone();
        let span = Span { lo: pred, l: me.clone(), r: me.clone(), ro: succ };
        let target = span.parent(&prefixes).cloned();
        let leaf = Box::new(Subtree { span, count: 1, height: 0 });
        if prefixes.side() == Some(Side::Left) {
            self.update_uplink(Node::Leaf, leaf.clone(), target);
            self.link_own_leaf(*leaf, prefixes);
        } else {
            self.update_uplink(Node::Leaf, leaf, target);
        }
        self.revalidate_slots();
        self.fill_slots(old);
        self.derive_router();
        self.derive_root();
    }

    fn leaf_prefixes(&self) -> Prefixes {
        let member = self.state == State::Member;
        let prefix = |neighbour: Option<&crate::leaf_set::Neighbour>| {
            neighbour.filter(|_| member).map(|neighbour| neighbour.key.common_prefix(&self.key))
        };
        let (pred, succ) = (self.line.leaf_set.predecessor(), self.line.leaf_set.successor());
        Prefixes { before: prefix(pred), own: 256, after: prefix(succ) }
    }

    /// Moves the router to another gap: its link to the parent is void unless the prefix, and so the node, is the same.
    /// Returns its former children, and hands them over to a successor that came between.
    fn derive_gap(&mut self, gap: Option<(Member, u16)>) -> Vec<Slot> {
        let succ = |gap: &Option<(Member, u16)>| gap.as_ref().map(|(succ, _)| succ.peer);
        let prefix = |gap: &Option<(Member, u16)>| gap.as_ref().map(|(_, prefix)| *prefix);
        let (old, new) = (&self.tree.gap, &gap);
        if succ(old) == succ(new) {
            self.tree.gap = gap;
            return Vec::new();
        }
        if prefix(old) != prefix(new) {
            self.tree.uplinks[Node::Router as usize].tree = None;
            self.tree.uplinks[Node::Router as usize].retarget(self.now, None);
        }
        self.notices.place = true;
        if let (Some((old, _)), Some((new, _))) = (&self.tree.gap, &gap)
            && self.line.leaf_set.get(old.peer).is_some()
        {
            let new = new.clone();
            self.hand_over(new);
        }
        self.tree.gap = gap;
        for Refused { contact, node, version } in std::mem::take(&mut self.tree.refused) {
            // It reports again at once, and may fit now.
            let ack = ReportAck { node, version, verdict: Verdict::Unknown, root: None, edition: self.tree.edition };
            self.send_short(contact, Body::ReportAck(ack));
        }
        let remote = |slot: &Slot| slot.contact.peer != self.me.peer;
        let old: Vec<Slot> =
            SIDES.into_iter().filter_map(|side| self.tree.slots[side as usize].take()).map(|slot| *slot).collect();
        self.notices.children |= !old.is_empty();
        old.into_iter().filter(remote).collect()
    }

    fn link_own_leaf(&mut self, tree: Subtree, prefixes: Prefixes) {
        let uplink = &mut self.tree.uplinks[Node::Leaf as usize];
        uplink.acked = Some(uplink.version);
        let (version, load) = (uplink.version, uplink.load.clone());
        let slot = &mut self.tree.slots[Side::Left as usize];
        let same = slot.as_ref().is_some_and(|slot| slot.contact.peer == self.me.peer);
        if same && slot.as_ref().is_some_and(|slot| slot.tree == tree && slot.load.version == load.version) {
            return;
        }
        self.tree.generation += 1;
        self.notices.children = true;
        *slot = Some(Box::new(Slot {
            contact: self.me.clone(),
            node: Node::Leaf,
            version,
            tree,
            prefixes,
            load,
            generation: self.tree.generation,
            heard: self.now,
            announced: (0, None),
            push_after: self.now,
            is_handed: false,
        }));
    }

    /// Unlinks the children that no longer meet at the gap.
    fn revalidate_slots(&mut self) {
        for side in SIDES {
            let Some(slot) = &self.tree.slots[side as usize] else { continue };
            let is_own = slot.is_own_leaf();
            debug_assert_eq!(is_own, slot.contact.peer == self.me.peer, "{slot:?}");
            let own_moved = is_own && self.leaf_prefixes().side() != Some(Side::Left);
            if own_moved || self.accepts(&slot.tree.span, &slot.prefixes) != Some(side) {
                self.tree.slots[side as usize] = None;
                self.notices.children = true;
            }
        }
    }

    pub(crate) fn accepts(&self, span: &Span, prefixes: &Prefixes) -> Option<Side> {
        let (succ, gap) = self.tree.gap.as_ref()?;
        fence(&self.me, succ, *gap, span, prefixes)
    }

    /// The router's own subtree and parent follow from its children.
    fn derive_router(&mut self) {
        let [Some(left), Some(right)] = &self.tree.slots else {
            let uplink = &mut self.tree.uplinks[Node::Router as usize];
            uplink.tree = None;
            return;
        };
        let (l, r) = (&left.tree, &right.tree);
        let span = Span { lo: l.span.lo.clone(), l: l.span.l.clone(), r: r.span.r.clone(), ro: r.span.ro.clone() };
        let own = self.tree.gap.as_ref().map_or(0, |(_, prefix)| *prefix);
        let prefixes = Prefixes { before: left.prefixes.before, own, after: right.prefixes.after };
        // Each child's count is within bounds, their sum may not be: our parent would refuse it.
        let count = l.count.saturating_add(r.count).min(COUNT_MAX);
        let height = l.height.max(r.height).saturating_add(1).min(HEIGHT_MAX);
        let target = span.parent(&prefixes).cloned();
        self.update_uplink(Node::Router, Box::new(Subtree { span, count, height }), target);
    }

    fn update_uplink(&mut self, node: Node, tree: Box<Subtree>, target: Option<Member>) {
        let spacing = Duration::from_millis(self.config.report_spacing_ms);
        let uplink = &mut self.tree.uplinks[node as usize];
        if uplink.target.as_ref().map(|target| target.peer) != target.as_ref().map(|target| target.peer) {
            uplink.retarget(self.now, target);
            uplink.next = self.now;
            self.notices.place = true;
        } else if uplink.target != target {
            uplink.target = target;
            uplink.next = self.now;
        }
        uplink.is_own = uplink.target.as_ref().is_some_and(|target| target.peer == self.me.peer);
        if uplink.tree.as_ref() != Some(&tree) {
            uplink.version += 1;
            uplink.tree = Some(tree);
            uplink.next = uplink.last_sent.map_or(self.now, |sent| self.now.max(sent + spacing));
        }
    }

    // ---- reporting ----

    pub(crate) fn replace_load(&mut self, node: Node, bytes: Vec<u8>) {
        self.tree.stirred = true;
        let uplink = &mut self.tree.uplinks[node as usize];
        uplink.load = Load { version: uplink.load.version + 1, bytes: bytes.into() };
        if uplink.acked.is_some() {
            uplink.next = uplink.next.min(uplink.load_after.max(self.now));
        }
        // If the own leaf is a child of the own router, the router has the payload at once.
        let load = uplink.load.clone();
        let own_leaf =
            self.tree.slots[Side::Left as usize].as_mut().filter(|slot| node == Node::Leaf && slot.is_own_leaf());
        if let Some(slot) = own_leaf {
            self.tree.generation += 1;
            (slot.load, slot.generation) = (load, self.tree.generation);
            self.notices.children = true;
        }
    }

    pub(crate) fn send_reports(&mut self) {
        for node in NODES {
            let uplink = &self.tree.uplinks[node as usize];
            let is_due = uplink.next <= self.now && uplink.reports();
            if is_due && self.state == State::Member {
                self.send_report(node);
            }
        }
    }

    fn send_report(&mut self, node: Node) {
        let heartbeat = self.after_ms(self.config.heartbeat_ms);
        let root = self.tree.root_digest;
        let uplink = &self.tree.uplinks[node as usize];
        let Some(target) = uplink.target.clone() else { return };
        let timeout = self.timeout(self.line.leaf_set.get(target.peer).map(|neighbour| neighbour.path));
        let uplink = &mut self.tree.uplinks[node as usize];
        let tree = if uplink.acked == Some(uplink.version) { None } else { uplink.tree.clone() };
        // A report that directly follows another does not show that the earlier one was lost; any other report is sent
        // after an answer or a timeout.
        let follows = uplink.has_unsent() && tree.is_none() && !uplink.is_overdue(self.now, timeout);
        let is_missed = uplink.unanswered > 0 && !follows;
        let passes = uplink.owes_load() && uplink.load_after <= self.now;
        let load = passes.then(|| uplink.send_load(&self.codec));
        if let Some(load) = &load {
            uplink.load_after = self.now + self.config.payload_spacing(load.bytes.len());
        }
        uplink.last_sent = Some(self.now);
        uplink.asked.get_or_insert(self.now);
        let unanswered = uplink.unanswered;
        uplink.unanswered = unanswered.saturating_add(1);
        uplink.next = if unanswered >= self.config.probe_tries { heartbeat } else { self.now + timeout };
        let is_known = tree.is_none() && !is_missed;
        let body = Body::Report(Report { node, version: uplink.version, tree, load, root });
        if is_known {
            self.send_short(target, body);
        } else {
            self.send(target.clone(), body);
            if is_missed {
                self.miss(&target);
            }
        }
    }

    pub(crate) fn on_report_ack(&mut self, sender: &Member, ack: ReportAck) {
        self.tree.stirred = true;
        let heartbeat = self.after_ms(self.config.heartbeat_ms);
        if self.tree.uplinks[ack.node as usize].target.as_ref().map(|target| target.peer) != Some(sender.peer) {
            return;
        }
        let edition = (sender.incarnation, ack.edition);
        // An answer to an earlier report may be the only one that carries this root.
        if let Some(root) = ack.root {
            self.take_root(ack.node, root, edition);
        }
        let uplink = &mut self.tree.uplinks[ack.node as usize];
        if uplink.version != ack.version {
            return;
        }
        // The report that this answers is known only if no other one is unanswered.
        let is_last = matches!(ack.verdict, Verdict::Linked { load, .. } if load == uplink.load_sent.version);
        let sent = uplink.last_sent.filter(|_| is_last && uplink.unanswered == 1);
        let round_trip = sent.map(|sent| self.now.since(sent));
        uplink.unanswered = 0;
        uplink.asked = None;
        if let Some(round_trip) = round_trip {
            self.line.leaf_set.update(sender.peer, |neighbour| neighbour.path.sample(round_trip));
        }
        let timeout = self.timeout(self.line.leaf_set.get(sender.peer).map(|neighbour| neighbour.path));
        let uplink = &mut self.tree.uplinks[ack.node as usize];
        match ack.verdict {
            Verdict::Linked { load, depth } => {
                self.notices.place |= uplink.acked.is_none();
                uplink.acked = Some(ack.version);
                uplink.refusals = 0;
                uplink.take_depth(depth, edition);
                uplink.load_is_held(load);
                uplink.next = heartbeat;
                if uplink.owes_load() {
                    let next = if uplink.has_unsent() { uplink.load_after.max(self.now) } else { self.now + timeout };
                    uplink.next = heartbeat.min(next);
                }
            }
            Verdict::Unknown => {
                uplink.acked = None;
                uplink.load_is_lost();
                // Send the whole report, but no faster than reports may follow each other.
                let spacing = Duration::from_millis(self.config.report_spacing_ms);
                uplink.next = uplink.last_sent.map_or(self.now, |sent| self.now.max(sent + spacing));
            }
            Verdict::Refused { pred, succ } => self.on_refused(sender, ack.node, pred, succ),
        }
    }

    fn on_refused(&mut self, sender: &Member, node: Node, pred: Option<Member>, succ: Option<Member>) {
        let heartbeat = Duration::from_millis(self.config.heartbeat_ms);
        let uplink = &mut self.tree.uplinks[node as usize];
        self.notices.place |= uplink.acked.is_some();
        uplink.acked = None;
        uplink.load_is_lost();
        let wait = Duration::from_millis(self.config.nack_retry_ms) * (1 << (uplink.refusals / 2).min(10));
        uplink.refusals = uplink.refusals.saturating_add(1);
        uplink.next = self.now + wait.min(heartbeat);
        let boundary = uplink.tree.as_ref().map(|tree| tree.span.l.clone());
        pred.iter().chain(&succ).for_each(|contact| self.consider(contact));
        if let Some(boundary) = boundary
            && boundary.peer != self.me.peer
            && boundary.peer != sender.peer
        {
            let hint = std::iter::once(sender.clone()).chain(succ).collect();
            self.send(boundary, Body::Hint(hint));
        }
    }

    // ---- children ----

    pub(crate) fn on_report(&mut self, sender: Member, report: Report) {
        self.tree.stirred = true;
        let Report { node, version, tree, load, root } = report;
        let verdict = match tree {
            Some(tree) => {
                let Some(prefixes) = Prefixes::of(self.grid, &tree.span)
                    .filter(|prefixes| tree.span.holds(&sender, node, self.grid, prefixes.own))
                else {
                    self.counters.malformed += 1;
                    return;
                };
                self.link_child(&sender, node, version, *tree, prefixes)
            }
            None => self.renew_child(&sender, node, version),
        };
        let verdict = match verdict {
            Ok(()) => self.load_child(&sender, node, load),
            Err(verdict) => verdict,
        };
        let linked = matches!(verdict, Verdict::Linked { .. });
        let root = if linked && self.tree.root_digest != root { self.tree.root.clone() } else { None };
        let edition = self.tree.edition;
        self.send_short(sender, Body::ReportAck(ReportAck { node, version, verdict, root, edition }));
    }

    /// Accepts the child, or returns the refusal. Updating the tree may end the link again.
    fn link_child(
        &mut self,
        sender: &Member,
        node: Node,
        version: u64,
        tree: Subtree,
        prefixes: Prefixes,
    ) -> Result<(), Verdict> {
        let Some(side) = self.accepts(&tree.span, &prefixes) else {
            let Span { lo, l, r, ro } = &tree.span;
            [l, r].into_iter().chain(lo).chain(ro).for_each(|contact| self.consider(contact));
            self.counters.links_refused += 1;
            self.tree.refused.retain(|refused| (refused.contact.peer, refused.node) != (sender.peer, node));
            self.tree.refused.truncate(REFUSED_MAX - 1);
            self.tree.refused.insert(0, Refused { contact: sender.clone(), node, version });
            return Err(Verdict::Refused { pred: self.pred().cloned(), succ: self.succ().cloned() });
        };
        let slot = &mut self.tree.slots[side as usize];
        match slot {
            Some(slot) if slot.contact.peer == sender.peer && slot.node == node => {
                let is_first = std::mem::take(&mut slot.is_handed);
                if !is_first && sender.incarnation < slot.contact.incarnation {
                    // Versions, of payloads too, mean nothing across incarnations.
                    return Err(Verdict::Unknown);
                }
                let order = |contact: &Member, version| (contact.incarnation, version);
                if !is_first && order(sender, version) < order(&slot.contact, slot.version) {
                    return Ok(());
                }
                if slot.contact.incarnation != sender.incarnation {
                    slot.load.version = 0;
                }
                self.notices.children |= slot.tree != tree || slot.contact != *sender;
                slot.contact = sender.clone();
                (slot.version, slot.tree, slot.prefixes, slot.heard) = (version, tree, prefixes, self.now);
            }
            _ => {
                self.tree.generation += 1;
                self.notices.children = true;
                *slot = Some(Box::new(Slot {
                    contact: sender.clone(),
                    node,
                    version,
                    tree,
                    prefixes,
                    load: Load::default(),
                    generation: self.tree.generation,
                    heard: self.now,
                    announced: (0, None),
                    push_after: self.now,
                    is_handed: false,
                }));
            }
        }
        // The depth in the acknowledgement must include this child.
        self.derive_tree();
        Ok(())
    }

    /// The child reports that nothing changed since `version`.
    fn renew_child(&mut self, sender: &Member, node: Node, version: u64) -> Result<(), Verdict> {
        let now = self.now;
        // A handed child has not reported, so there is nothing to renew.
        let is_same = |slot: &&mut Slot| slot.version == version && !slot.is_handed;
        let slot = self.slot_of(sender, node).filter(is_same).ok_or(Verdict::Unknown)?;
        slot.heard = now;
        Ok(())
    }

    /// The slot of this node of the sender's present incarnation.
    fn slot_of(&mut self, sender: &Member, node: Node) -> Option<&mut Slot> {
        let life = |contact: &Member| (contact.peer, contact.incarnation);
        let mut slots = self.tree.slots.iter_mut().flatten().map(Box::as_mut);
        slots.find(|slot| slot.node == node && life(&slot.contact) == life(sender))
    }

    /// Stores the payload of a linked child, and notes what the answer tells it.
    fn load_child(&mut self, sender: &Member, node: Node, load: Option<Payload>) -> Verdict {
        let (announcement, codec, generation) = (self.announcement(), self.codec, self.tree.generation + 1);
        let Some(slot) = self.slot_of(sender, node) else { return Verdict::Unknown };
        slot.announced = announcement;
        let taken = load.map_or(Taken::Known, |load| slot.take_load(load, &codec));
        if taken == Taken::New {
            slot.generation = generation;
        }
        // 0 asks for the whole payload; we keep the stored one until it comes.
        let held = if matches!(taken, Taken::New | Taken::Known) { slot.load.version } else { 0 };
        if taken == Taken::New {
            self.tree.generation = generation;
            self.notices.children = true;
        }
        self.counters.differences_refused += u64::from(taken == Taken::Nonsense);
        Verdict::Linked { load: held, depth: announcement.1 }
    }

    // ---- the root ----

    /// What a child is to be told now: digest of the root, depth of our router.
    fn announcement(&mut self) -> (u32, Option<u32>) {
        let announced = (self.tree.root_digest, self.depth(Node::Router));
        self.tree.edition = self.tree.edition.saturating_add(u32::from(announced != self.tree.announced));
        self.tree.announced = announced;
        announced
    }

    fn set_root(&mut self, root: Arc<RootInfo>) {
        self.tree.root_digest = root.digest();
        self.tree.root = Some(root);
        self.notices.root = true;
    }

    fn derive_root(&mut self) {
        if !self.is_root() {
            return;
        }
        let top = &self.tree.uplinks[Node::Router as usize].tree;
        let (count, height) = top.as_ref().map_or((1, 0), |tree| (tree.count, tree.height));
        let is_current = self.tree.root.as_ref().is_some_and(|root| {
            (&root.contact, root.count, root.height, root.stamp) == (&self.me, count, height, self.tree.root_stamp)
                && root.payload == self.tree.root_payload
        });
        if is_current {
            return;
        }
        self.tree.root_stamp += 1;
        self.set_root(Arc::new(RootInfo {
            contact: self.me.clone(),
            stamp: self.tree.root_stamp,
            count,
            height,
            payload: self.tree.root_payload.clone(),
        }));
    }

    /// Tells the children what changed above, at once but within the limit.
    pub(crate) fn push_root(&mut self) {
        let announced = self.announcement();
        let pause = Duration::from_millis(self.config.root_push_ms);
        for side in SIDES {
            let Some(slot) = &mut self.tree.slots[side as usize] else { continue };
            if slot.is_own_leaf() || !slot.lags(announced) || slot.push_after > self.now {
                continue;
            }
            let is_new_root = slot.announced.0 != announced.0;
            (slot.announced, slot.push_after) = (announced, slot.push_after.max(self.now - pause * PUSH_BURST) + pause);
            let (to, node) = (slot.contact.clone(), slot.node);
            let root = self.tree.root.clone().filter(|_| is_new_root);
            let edition = self.tree.edition;
            self.send_short(to, Body::RootChanged { node, root, depth: announced.1, edition });
        }
    }

    pub(crate) fn on_root_changed(
        &mut self,
        sender: &Member,
        node: Node,
        root: Option<Arc<RootInfo>>,
        depth: Option<u32>,
        edition: u32,
    ) {
        self.tree.stirred = true;
        let edition = (sender.incarnation, edition);
        let uplink = &mut self.tree.uplinks[node as usize];
        // Even before the first acknowledgement: this message may be faster.
        if uplink.target.as_ref().is_none_or(|target| target.peer != sender.peer) {
            return;
        }
        uplink.take_depth(depth, edition);
        if let Some(root) = root {
            self.take_root(node, root, edition);
        }
    }

    /// The router's parent is believed first; the leaf's only while the router has none.
    fn take_root(&mut self, node: Node, root: Arc<RootInfo>, edition: (u64, u32)) {
        if !self.tree.uplinks[node as usize].is_current_edition(edition) {
            return;
        }
        let attached = self.tree.uplinks[Node::Router as usize].parent().is_some();
        if self.is_root() || (node == Node::Leaf && attached) {
            return;
        }
        // Editions order the messages of one parent. The root's own stamps do not: a parent that lied once would be
        // believed for as long as the root lives.
        if self.tree.root.as_ref() != Some(&root) {
            self.set_root(root);
        }
    }
}
