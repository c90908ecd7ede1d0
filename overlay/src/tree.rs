//! The tree: soft state, derived from the line and from what children report.
//!
//! Structure climbs: a router reports when both its children are linked and meet at its gap; at once when anything
//! changed, else with each heartbeat. What the root announces descends: with each acknowledgement, and at once when it
//! changed, though at most once a second per child. A refused child learns its parent's neighbours, tells the parent
//! its own boundary, and retries soon.

use std::sync::Arc;
use std::time::Duration;

use crate::handover::{Handed, hand_over};
use crate::identity::Member;
use crate::line::Line;
use crate::link::{Refused, Reported, Slot, Structure};
use crate::links::Links;
use crate::local::Local;
use crate::membership::Membership;
use crate::message::{Body, Handover, Report, ReportAck, RootInfo, Verdict};
use crate::node::{NODES, Node, SIDES, Side};
use crate::payload::PayloadCodec;
use crate::root::Root;
use crate::state::State;
use crate::subtree::{Prefixes, Span, Subtree};
use crate::time::Time;

/// Refused children that are called back when our gap changes.
const REFUSED_MAX: usize = 4;
/// Changes of the root that are pushed to a child without pause, after a quiet time.
const PUSH_BURST: u32 = 4;

/// The nodes on this machine in the tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) links: Links,
    pub(crate) root: Root,
    /// Children that were refused and may fit before long.
    refused: Vec<Refused>,
    handed: Handed,
    codec: PayloadCodec,
    /// A child, our address, or the payload that we tell as the root changed since the tree was derived; the same of the
    /// line says `Line::changed`.
    changed: bool,
    /// A link may have something to send, or its deadline may differ from `next`.
    stirred: bool,
    /// The earliest deadline of a link.
    next: Time,
}

impl Tree {
    /// The tree of a peer alone.
    pub(crate) fn new(local: &mut Local, line: &mut Line, codec: PayloadCodec) -> Self {
        let mut tree = Self {
            links: Links::new(local.now),
            root: Root::default(),
            refused: Vec::new(),
            handed: Handed::default(),
            codec,
            changed: true,
            stirred: true,
            next: Time::MAX,
        };
        tree.derive(local, line);
        tree.next = tree.links.deadline(local, tree.root.announced());
        tree
    }

    /// How payloads travel.
    pub(crate) fn codec(&self) -> PayloadCodec {
        self.codec
    }

    /// When a link has timed work.
    pub(crate) fn deadline(&self) -> Time {
        self.next
    }

    /// The router is that of the gap to the successor; a peer that is alone or joining has none.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self, local: &Local, line: &Line) {
        self.links.assert_consistent(local);
        self.root.assert_consistent();
        debug_assert!(self.refused.len() <= REFUSED_MAX, "{} refused children", self.refused.len());
        if local.life.is_member() && !line.lacks_a_side() {
            let succ = self.links.gap().map(|(succ, _)| succ.peer);
            debug_assert_eq!(succ, line.succ().map(|succ| succ.peer), "whose gap the router has");
        }
        if matches!(local.life.state, State::Alone | State::Joining) {
            debug_assert_eq!(self.links.gap(), None, "a router without a place on the line");
        }
        if !local.life.is_over() {
            let deadline = self.links.deadline(local, self.root.announced());
            debug_assert!(self.next <= deadline, "a link is forgotten");
        }
    }

    // ---- kept fresh ----

    /// Drops what has expired: a handover, and the links to silent children.
    pub(crate) fn expire(&mut self, local: &mut Local) {
        self.handed.expire(local.now);
        self.changed |= self.links.end_leases(local);
        self.stirred = true;
    }

    /// After the event and the timed work: derives the tree anew if anything changed, and sends what is due.
    pub(crate) fn refresh(&mut self, local: &mut Local, line: &mut Line) {
        if self.changed || line.changed {
            self.derive(local, line);
        }
        if std::mem::take(&mut self.stirred) {
            self.send_reports(local, line);
            self.push_root(local, line);
            self.next = self.links.deadline(local, self.root.announced());
        }
    }

    fn derive(&mut self, local: &mut Local, line: &mut Line) {
        (self.changed, line.changed, self.stirred) = (false, false, true);
        let is_member = local.life.is_member();
        if is_member && line.lacks_a_side() {
            // `Line::believe_ends` has the tree derived again.
            return;
        }
        let pred = line.pred().filter(|_| is_member).cloned();
        let succ = line.succ().filter(|_| is_member).cloned();
        let prefixes = line.leaf_prefixes(local);
        let former = self.derive_gap(local, line, succ.clone().zip(prefixes.after));
        let span = Span { lo: pred, l: local.me.clone(), r: local.me.clone(), ro: succ };
        let target = span.parent(&prefixes).cloned();
        let leaf = Box::new(Subtree { span, count: 1, height: 0 });
        if prefixes.side() == Some(Side::Left) {
            self.links.update_uplink(local, Node::Leaf, leaf.clone(), target);
            self.links.link_own_leaf(local, *leaf, prefixes);
        } else {
            self.links.update_uplink(local, Node::Leaf, leaf, target);
        }
        self.links.revalidate(local, &prefixes);
        self.links.refill(local, former);
        self.handed.fill(local, &mut self.links, &self.codec);
        self.links.derive_router(local);
        if self.is_root(local, line) {
            let top = self.links.uplink(Node::Router).tree.as_ref();
            let (count, height) = top.map_or((1, 0), |tree| (tree.count, tree.height));
            self.root.derive(local, count, height);
        }
    }

    /// Moves the router to another gap; returns its former children, and hands them over to a successor that came
    /// between.
    fn derive_gap(&mut self, local: &mut Local, line: &Line, gap: Option<(Member, u16)>) -> Vec<Slot> {
        if self.links.is_other_router(gap.as_ref()) {
            if let (Some((old, _)), Some((new, _))) = (self.links.gap(), &gap)
                && line.leaf_set.get(old.peer).is_some()
            {
                hand_over(local, &self.links, &self.codec, new.clone());
            }
            for Refused { contact, node, version } in std::mem::take(&mut self.refused) {
                // It reports again at once, and may fit now.
                let (verdict, edition) = (Verdict::Unknown, self.root.edition());
                local.send_short(contact, Body::ReportAck(ReportAck { node, version, verdict, root: None, edition }));
            }
        }
        self.links.move_router(local, gap)
    }

    /// Hands the children over to the peer that takes over the role.
    pub(crate) fn hand_over(&self, local: &mut Local, to: Member) {
        hand_over(local, &self.links, &self.codec, to);
    }

    pub(crate) fn on_handover(
        &mut self,
        local: &mut Local,
        membership: &Membership,
        sender: &Member,
        handover: Handover,
    ) {
        self.changed |= self.handed.receive(local, membership, sender, handover);
    }

    /// This machine slept for so long: the silence of others means nothing.
    pub(crate) fn forgive_pause(&mut self, pause: Duration) {
        self.links.extend_leases(pause);
    }

    /// The own address changed: the next reports are whole and spread it.
    pub(crate) fn readdress(&mut self) {
        self.changed = true;
        NODES.into_iter().for_each(|node| self.links.uplink_mut(node).acked = None);
        self.stirred = true;
    }

    // ---- the place in the tree ----

    /// Whether this machine has a routing node: every member but the last on the line.
    pub(crate) fn hosts_router(&self, local: &Local, line: &Line) -> bool {
        match local.life.state {
            // In doubt about the line the tree stays as it was.
            State::Member => self.links.gap().is_some(),
            State::Leaving => line.succ().is_some(),
            State::Alone | State::Joining | State::Left => false,
        }
    }

    /// Whether no peer stands above us: our router spans the whole line as far as we know, or we are alone.
    pub(crate) fn is_root(&self, local: &Local, line: &Line) -> bool {
        if line.is_lonely() {
            return true;
        }
        let span = self.links.span(Node::Router);
        self.hosts_router(local, line) && span.is_some_and(|span| span.lo.is_none() && span.ro.is_none())
    }

    /// Links between the node and the root; none while that is not known.
    pub(crate) fn depth(&self, local: &Local, line: &Line, node: Node) -> Option<u32> {
        if self.is_root(local, line) {
            match node {
                Node::Leaf if line.is_lonely() => return Some(0),
                Node::Router => return (!line.is_lonely()).then_some(0),
                Node::Leaf => {}
            }
        }
        let uplink = self.links.uplink(node);
        uplink.parent()?;
        if uplink.is_own {
            return self.depth(local, line, Node::Router).map(|depth| depth.saturating_add(1));
        }
        uplink.parent_depth.map(|depth| depth.saturating_add(1))
    }

    // ---- payloads ----

    /// Replaces the payload that `node` reports.
    pub(crate) fn publish(&mut self, local: &mut Local, node: Node, payload: Vec<u8>) {
        self.stirred = true;
        self.links.replace_load(local, node, payload);
    }

    /// Replaces the payload that this peer tells as the root.
    pub(crate) fn publish_root(&mut self, payload: Vec<u8>) {
        self.root.set_payload(payload);
        self.changed = true;
    }

    // ---- reporting to parents ----

    fn send_reports(&mut self, local: &mut Local, line: &mut Line) {
        for node in NODES {
            let uplink = self.links.uplink(node);
            if uplink.next <= local.now && uplink.reports() && local.life.is_member() {
                self.send_report(local, line, node);
            }
        }
    }

    fn send_report(&mut self, local: &mut Local, line: &mut Line, node: Node) {
        let heartbeat = local.after_ms(local.config.heartbeat_ms);
        let (root, now) = (self.root.digest(), local.now);
        let uplink = self.links.uplink_mut(node);
        let Some(target) = uplink.target.clone() else { return };
        let timeout = local.timeout(line.path(target.peer).or(Some(uplink.path)));
        let tree = if uplink.acked == Some(uplink.version) { None } else { uplink.tree.clone() };
        // A report that directly follows another does not show that the earlier one was lost; any other report is sent
        // after an answer or a timeout.
        let follows = uplink.has_unsent() && tree.is_none() && !uplink.is_overdue(now, timeout);
        let is_missed = uplink.unanswered > 0 && !follows;
        let passes = uplink.owes_load() && uplink.load_after <= now;
        let load = passes.then(|| uplink.send_load(&self.codec));
        if let Some(load) = &load {
            uplink.load_after = now + local.config.payload_spacing(load.bytes.len());
        }
        uplink.last_sent = Some(now);
        uplink.asked.get_or_insert(now);
        let unanswered = uplink.unanswered;
        uplink.unanswered = unanswered.saturating_add(1);
        uplink.next = if unanswered >= local.config.probe_tries { heartbeat } else { now + timeout };
        if is_missed {
            uplink.path.back_off();
        }
        let is_known = tree.is_none() && !is_missed;
        let body = Body::Report(Report { node, version: uplink.version, tree, load, root });
        if is_known {
            local.send_short(target, body);
        } else {
            local.send(target.clone(), body);
            if is_missed {
                line.miss(local, &self.links, &target);
            }
        }
    }

    pub(crate) fn on_report_ack(
        &mut self,
        local: &mut Local,
        membership: &mut Membership,
        sender: &Member,
        ack: ReportAck,
    ) {
        self.stirred = true;
        let heartbeat = local.after_ms(local.config.heartbeat_ms);
        if self.links.uplink(ack.node).target.as_ref().map(|target| target.peer) != Some(sender.peer) {
            return;
        }
        let edition = (sender.incarnation, ack.edition);
        // An answer to an earlier report may be the only one that carries this root.
        if let Some(root) = ack.root {
            self.take_root(local, &membership.line, ack.node, root, edition);
        }
        let uplink = self.links.uplink_mut(ack.node);
        if uplink.version != ack.version {
            return;
        }
        if let Some(sent) = uplink.answered(&ack.verdict) {
            let round_trip = local.now.since(sent);
            uplink.path.sample(round_trip);
            membership.line.leaf_set.update(sender.peer, |neighbour| neighbour.path.sample(round_trip));
        }
        match ack.verdict {
            Verdict::Linked { load, depth } => {
                local.outbox.notices.place |= uplink.acked.is_none();
                uplink.take_depth(depth, edition);
                uplink.accepted(load);
                uplink.next = heartbeat;
                if uplink.owes_load() {
                    let timeout = local.timeout(membership.line.path(sender.peer).or(Some(uplink.path)));
                    let next = if uplink.has_unsent() { uplink.load_after.max(local.now) } else { local.now + timeout };
                    uplink.next = heartbeat.min(next);
                }
            }
            Verdict::Unknown => {
                uplink.voided();
                // Send the whole report, but no faster than reports may follow each other.
                let spacing = Duration::from_millis(local.config.report_spacing_ms);
                uplink.next = uplink.last_sent.map_or(local.now, |sent| local.now.max(sent + spacing));
            }
            Verdict::Refused { pred, succ } => self.on_refused(local, membership, sender, ack.node, [pred, succ]),
        }
    }

    /// The presumed parent refused the link, and names its neighbours.
    fn on_refused(
        &mut self,
        local: &mut Local,
        membership: &mut Membership,
        sender: &Member,
        node: Node,
        [pred, succ]: [Option<Member>; 2],
    ) {
        let heartbeat = Duration::from_millis(local.config.heartbeat_ms);
        let uplink = self.links.uplink_mut(node);
        local.outbox.notices.place |= uplink.acked.is_some();
        uplink.voided();
        let wait = Duration::from_millis(local.config.nack_retry_ms) * (1 << (uplink.refusals / 2).min(10));
        uplink.refusals = uplink.refusals.saturating_add(1);
        uplink.next = local.now + wait.min(heartbeat);
        let boundary = uplink.tree.as_ref().map(|tree| tree.span.l.clone());
        pred.iter().chain(&succ).for_each(|contact| membership.consider(local, contact));
        if let Some(boundary) = boundary
            && boundary.peer != local.me.peer
            && boundary.peer != sender.peer
        {
            let hint = std::iter::once(sender.clone()).chain(succ).collect();
            local.send(boundary, Body::Hint(hint));
        }
    }

    // ---- reports of children ----

    pub(crate) fn on_report(&mut self, local: &mut Local, membership: &mut Membership, sender: Member, report: Report) {
        self.stirred = true;
        let Report { node, version, tree, load, root } = report;
        let verdict = match tree {
            Some(tree) => {
                let Some(prefixes) = Prefixes::of(local.grid, &tree.span)
                    .filter(|prefixes| tree.span.holds(&sender, node, local.grid, prefixes.own))
                else {
                    local.counters.malformed += 1;
                    return;
                };
                self.link_child(local, membership, &sender, Structure { node, version, tree: *tree, prefixes })
            }
            None if self.links.renew(local.now, &sender, node, version) => Ok(()),
            None => Err(Verdict::Unknown),
        };
        let verdict = verdict.and_then(|()| {
            let announced = self.announce(local, &membership.line);
            let load = self.links.take_load(local, &sender, node, load, &self.codec, announced);
            load.map(|load| Verdict::Linked { load, depth: announced.1 }).ok_or(Verdict::Unknown)
        });
        let verdict = verdict.unwrap_or_else(|refusal| refusal);
        let linked = matches!(verdict, Verdict::Linked { .. });
        let root = self.root.info().filter(|_| linked && self.root.digest() != root).cloned();
        let edition = self.root.edition();
        local.send_short(sender, Body::ReportAck(ReportAck { node, version, verdict, root, edition }));
    }

    /// Accepts the child, or returns the refusal. Deriving the tree may end the link again.
    fn link_child(
        &mut self,
        local: &mut Local,
        membership: &mut Membership,
        sender: &Member,
        structure: Structure,
    ) -> Result<(), Verdict> {
        let Structure { node, version, tree, prefixes } = &structure;
        let Some(side) = self.links.accepts(&local.me, &tree.span, prefixes) else {
            let Span { lo, l, r, ro } = &tree.span;
            [l, r].into_iter().chain(lo).chain(ro).for_each(|contact| membership.consider(local, contact));
            local.counters.links_refused += 1;
            self.refused.retain(|refused| (refused.contact.peer, refused.node) != (sender.peer, *node));
            self.refused.truncate(REFUSED_MAX - 1);
            self.refused.insert(0, Refused { contact: sender.clone(), node: *node, version: *version });
            let line = &membership.line;
            return Err(Verdict::Refused { pred: line.pred().cloned(), succ: line.succ().cloned() });
        };
        match self.links.take_report(local, side, sender, structure) {
            // The depth in the acknowledgement must include this child.
            Reported::Taken => self.derive(local, &mut membership.line),
            Reported::Late => {}
            Reported::PastLife => return Err(Verdict::Unknown),
        }
        Ok(())
    }

    // ---- the root ----

    /// What a child is to be told now: digest of the root, depth of our router.
    fn announce(&mut self, local: &Local, line: &Line) -> (u32, Option<u32>) {
        let depth = self.depth(local, line, Node::Router);
        self.root.announce(depth)
    }

    /// Tells the children what changed above, at once but within the limit.
    fn push_root(&mut self, local: &mut Local, line: &Line) {
        let announced = self.announce(local, line);
        let pause = Duration::from_millis(local.config.root_push_ms);
        for side in SIDES {
            let Some(slot) = self.links.slot_mut(side) else { continue };
            if slot.is_own_leaf() || !slot.lags(announced) || slot.push_after > local.now {
                continue;
            }
            let is_new_root = slot.announced.0 != announced.0;
            slot.announced = announced;
            slot.push_after = slot.push_after.max(local.now - pause * PUSH_BURST) + pause;
            let (to, node) = (slot.contact.clone(), slot.node);
            let root = self.root.info().filter(|_| is_new_root).cloned();
            let edition = self.root.edition();
            local.send_short(to, Body::RootChanged { node, root, depth: announced.1, edition });
        }
    }

    /// The parent of a node tells its depth, and the root if it is another one.
    pub(crate) fn on_root_changed(
        &mut self,
        local: &mut Local,
        line: &Line,
        sender: &Member,
        node: Node,
        root: Option<Arc<RootInfo>>,
        (depth, edition): (Option<u32>, u32),
    ) {
        self.stirred = true;
        let edition = (sender.incarnation, edition);
        let uplink = self.links.uplink_mut(node);
        // Even before the first acknowledgement: this message may be faster.
        if uplink.target.as_ref().is_none_or(|target| target.peer != sender.peer) {
            return;
        }
        uplink.take_depth(depth, edition);
        if let Some(root) = root {
            self.take_root(local, line, node, root, edition);
        }
    }

    /// The router's parent is believed first; the leaf's only while the router has none.
    fn take_root(&mut self, local: &mut Local, line: &Line, node: Node, root: Arc<RootInfo>, edition: (u64, u32)) {
        if !self.links.uplink_mut(node).is_current_edition(edition) {
            return;
        }
        let attached = self.links.uplink(Node::Router).parent().is_some();
        if self.is_root(local, line) || (node == Node::Leaf && attached) {
            return;
        }
        // Editions order the messages of one parent. The root's own stamps do not: a parent that lied once would be
        // believed for as long as the root lives.
        self.root.take(local, root);
    }
}
