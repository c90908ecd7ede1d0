//! One peer's part of the overlay: state, events in, effects out.
//!
//! [`Overlay`] composes the parts and says in which order they act: [`Overlay::handle`] does the same for every event:
//! the event itself, then the timed work that is due, then, if the line or a child changed, it derives the tree anew and
//! reports the differences. Most events change neither, and cost no allocation.
//!
//! `local` is this peer itself, which each part gets to act with. `membership` keeps the peers that we know: `line` our
//! neighbours and the probes under way, `finger` peers far away, `graveyard` those that are gone, `lookups` the look-ups.
//! `tree` keeps the nodes on this machine: their `links`, the `root`, and what `handover` moves with a router's role.
//! `joining` and `leaving` lead from one state to the next. No part calls another but those that it is given.
//!
//! What a peer keeps is bounded: 2·8 neighbours, 3 fingers for each length of prefix beyond them, 64 peers only heard
//! of, 256 probes under way, 512 tombstones, 64 graves, 32 bootstrap contacts, one look-up of 128 candidates and 64
//! questions, two children, two parents, four refused children, one handover of two children; a payload is at most
//! 64 KiB, and there are at most two for each child, four for each node of ours, and two of the root. Nothing is
//! queued: what waits is a deadline in the state.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::child::Child;
use crate::config::Config;
use crate::counters::Counters;
use crate::event::{Effect, Event};
use crate::graveyard::LONELY_WAIT_MIN;
use crate::identity::{Contact, GridId, Member};
use crate::joining;
use crate::leaving;
use crate::local::{Local, Notices};
use crate::membership::Membership;
use crate::message::{Body, Message, Refusal, RootInfo};
use crate::node::{Node, SIDES, Side};
use crate::payload::{PAYLOAD_BYTES_MAX, PayloadCodec};
use crate::sizes::Sizes;
use crate::state::State;
use crate::subtree::Span;
use crate::time::Time;
use crate::tree::Tree;

/// Rounds of timed work per event: work may make more work due, and each chain ends.
const ROUNDS_MAX: usize = 4;
/// Timed work done so late means that this machine is slow.
const LATE: Duration = Duration::from_millis(250);
/// Timed work done so late means that this machine slept, by a closed lid, or swapped.
const PAUSE: Duration = Duration::from_secs(2);

/// The overlay of one peer. Deterministic: the same seed and events give the same effects, and so does a copy.
#[derive(Clone, Debug)]
pub struct Overlay {
    local: Local,
    membership: Membership,
    tree: Tree,
    /// When there is timed work.
    wake: Time,
}

impl Overlay {
    /// A peer alone: member of a grid of one at once.
    ///
    /// `seed` is the only source of randomness: derive it from (run seed, peer, incarnation). `config` is not checked
    /// here: call [`Config::validate`] on one that comes from outside. All peers of a grid need the same `codec`.
    pub fn new(
        config: impl Into<Arc<Config>>,
        grid: GridId,
        me: impl Into<Member>,
        seed: u64,
        now: Time,
        codec: PayloadCodec,
    ) -> Self {
        let mut local = Local::new(config.into(), grid, me.into(), seed, now);
        let mut membership = Membership::new(&mut local);
        let tree = Tree::new(&mut local, &mut membership.line, codec);
        local.outbox.notices = Notices::default();
        let mut overlay = Self { local, membership, tree, wake: Time::MAX };
        overlay.wake = overlay.next_timer();
        overlay
    }

    // ---- an event ----

    /// Feeds one event and appends its effects, in the order they must be carried out.
    ///
    /// `now` never decreases. Infallible: a remote peer's mistakes are counted and ignored.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.local.life.state == State::Left && !matches!(event, Event::Return) {
            return;
        }
        self.local.now = self.local.now.max(now);
        std::mem::swap(&mut self.local.outbox.effects, effects);
        self.notice_lateness();
        let Self { local, membership, tree, .. } = self;
        match event {
            Event::Bootstrap(contact) => joining::bootstrap(local, membership, &contact.into()),
            Event::Received { from, message } => self.receive(from, message),
            Event::ConnectionLost(peer) => membership.line.doubt(local, &tree.links, peer),
            Event::Leave => leaving::leave(local, &membership.line, tree),
            Event::Return => self.come_back(),
            Event::DeadlineReached => {}
        }
        self.settle();
        std::mem::swap(&mut self.local.outbox.effects, effects);
        #[cfg(debug_assertions)]
        self.assert_consistent();
    }

    /// Does timed work, updates the tree, and notifies the layer above.
    fn settle(&mut self) {
        if self.local.life.state == State::Leaving {
            leaving::linger(&mut self.local);
            self.wake = self.local.life.leave_until;
        } else {
            for _ in 0..ROUNDS_MAX {
                let Self { local, membership, tree, wake } = self;
                if *wake <= local.now {
                    membership.run_timers(local, &tree.links);
                    tree.expire(local);
                }
                joining::advance(local, membership);
                tree.refresh(local, &mut membership.line);
                self.wake = self.next_timer();
                if self.wake > self.local.now {
                    break;
                }
            }
        }
        self.local.outbox.notify();
    }

    fn next_timer(&self) -> Time {
        self.membership.deadline(&self.local).min(self.tree.deadline())
    }

    /// Late timed work shows that this machine is slow; after a pause the silence of others means nothing.
    fn notice_lateness(&mut self) {
        let Self { local, membership, tree, wake } = self;
        let late = local.now.since(*wake);
        if late < LATE || local.life.is_over() {
            return;
        }
        local.feel_slower();
        if late >= PAUSE {
            local.counters.pauses += 1;
            tree.forgive_pause(late);
            membership.line.probe_anew(local);
        }
    }

    /// Checks a message and hands it to its part of the protocol.
    fn receive(&mut self, from: Member, message: Message) {
        let Self { local, membership, tree, .. } = self;
        if !is_acceptable(local, &from, &message) {
            return;
        }
        let Message { incarnation, address, body, .. } = message;
        let is_new_address = address.is_some();
        let Some(sender) = membership.sender(&tree.links, from, incarnation, address) else {
            // It believes that we know it; when no answer comes it repeats the message with its address.
            local.counters.unknown_sender += 1;
            return;
        };
        if local.life.state == State::Leaving {
            if !matches!(body, Body::Leave(_) | Body::Handover(_) | Body::Ack { .. } | Body::ReportAck(_)) {
                leaving::say_goodbye(local, &membership.line, sender);
            }
            return;
        }
        // The sender of either may be gone by now.
        let is_farewell = matches!(body, Body::Leave(_) | Body::Handover(_));
        if is_farewell || membership.hear(local, &tree.links, &sender, is_new_address, &body) {
            self.carry_out(sender, body);
        }
    }

    /// Hands the content of a message to its part of the protocol.
    fn carry_out(&mut self, sender: Member, body: Body) {
        let Self { local, membership, tree, .. } = self;
        match body {
            Body::Ping { nonce, mine, seen } => membership.on_ping(local, sender, nonce, mine, seen),
            Body::Ack { nonce, mine, set, ask } => membership.on_ack(local, &sender, nonce, mine, set, ask),
            Body::Find { nonce, key } => membership.on_find(local, sender, nonce, &key),
            Body::Found { nonce, near } => membership.on_found(local, &sender, nonce, near),
            Body::Report(report) => tree.on_report(local, membership, sender, report),
            Body::ReportAck(ack) => tree.on_report_ack(local, membership, &sender, ack),
            Body::RootChanged { node, root, depth, edition } => {
                tree.on_root_changed(local, &membership.line, &sender, node, root, (depth, edition));
            }
            Body::Dead(contact) => membership.on_dead(local, &sender, &contact),
            Body::Suspect(contact) => membership.line.on_suspect(local, &tree.links, contact.peer),
            Body::Hint(contacts) => membership.consider_all(local, &contacts),
            Body::Leave(leave) => leaving::on_leave(local, membership, &tree.links, &sender, leave),
            Body::Handover(handover) => tree.on_handover(local, membership, &sender, handover),
        }
    }

    /// Begins a newer incarnation after a leave. Peers that heard of the leave count the old one as over, so we keep
    /// nothing of our place but peers to join through.
    fn come_back(&mut self) {
        if !self.local.life.is_over() {
            return;
        }
        let known: Vec<Member> = self.membership.line.near().cloned().collect();
        let Local { config, grid, me, rng, now, .. } = &mut self.local;
        let next = Contact { incarnation: me.incarnation.saturating_add(1), ..(**me).clone() };
        let life = Self::new(config.clone(), *grid, next, rng.random(), *now, self.tree.codec());
        let last = std::mem::replace(self, life);
        let Self { local, membership, .. } = self;
        local.inherit(last.local);
        // The configured contacts come first: the graveyard is bounded.
        membership.lost.graveyard = last.membership.lost.graveyard;
        let notices = &mut local.outbox.notices;
        (notices.place, notices.children, notices.root) = (true, true, true);
        known.iter().for_each(|contact| joining::bootstrap(local, membership, contact));
        membership.lost.graveyard.ask_bootstraps_at(local.now, LONELY_WAIT_MIN);
    }

    /// Panics where an invariant of one peer is broken: some fifty comparisons, since all that a peer keeps is bounded.
    /// I1, I3 and I6 to I8 concern several machines, or time: `simnet` checks these.
    #[cfg(debug_assertions)]
    fn assert_consistent(&self) {
        let Self { local, membership, tree, wake } = self;
        membership.assert_consistent();
        tree.assert_consistent(local, &membership.line);
        // What is published when this peer has left concerns nobody.
        debug_assert!(local.life.is_over() || local.outbox.is_empty(), "an effect or a notice is kept back");
        match local.life.state {
            State::Alone => debug_assert!(membership.line.is_lonely(), "alone, but with neighbours"),
            State::Member => debug_assert!(!membership.line.is_lonely(), "a member without neighbours"),
            State::Joining | State::Leaving | State::Left => {}
        }
        if !local.life.is_over() {
            debug_assert_eq!(*wake, self.next_timer(), "timed work is forgotten");
        }
    }

    // ---- the layer above publishes ----

    /// Replaces the payload that `node` reports to its parent. The newest wins; the rate limit decides when it is sent.
    ///
    /// Payloads longer than [`PAYLOAD_BYTES_MAX`] are counted and ignored.
    pub fn publish(&mut self, now: Time, node: Node, payload: Vec<u8>, effects: &mut Vec<Effect>) {
        if self.may_publish(now, &payload) {
            std::mem::swap(&mut self.local.outbox.effects, effects);
            self.tree.publish(&mut self.local, node, payload);
            self.settle_own();
            std::mem::swap(&mut self.local.outbox.effects, effects);
            #[cfg(debug_assertions)]
            self.assert_consistent();
        }
    }

    /// Replaces the payload that this peer announces to everybody as the root. Stored, but without effect, while it is
    /// not the root.
    ///
    /// Payloads longer than [`PAYLOAD_BYTES_MAX`] are counted and ignored.
    pub fn publish_root(&mut self, now: Time, payload: Vec<u8>, effects: &mut Vec<Effect>) {
        if self.may_publish(now, &payload) {
            std::mem::swap(&mut self.local.outbox.effects, effects);
            self.tree.publish_root(payload);
            self.settle_own();
            std::mem::swap(&mut self.local.outbox.effects, effects);
            #[cfg(debug_assertions)]
            self.assert_consistent();
        }
    }

    fn may_publish(&mut self, now: Time, payload: &[u8]) -> bool {
        self.local.now = self.local.now.max(now);
        let is_oversized = payload.len() > PAYLOAD_BYTES_MAX;
        self.local.counters.oversized_own += u64::from(is_oversized);
        !is_oversized
    }

    fn settle_own(&mut self) {
        // Publishing may be the first activity after a pause.
        self.notice_lateness();
        if !self.local.life.is_over() {
            self.settle();
        }
    }

    /// The own dialable address became known or changed; the next messages spread it.
    pub fn set_address(&mut self, address: Box<str>) {
        self.local.me = Contact { address, ..(*self.local.me).clone() }.into();
        self.tree.readdress();
        self.membership.line.forget_seen();
    }

    // ---- the layer above, and observers, look ----

    /// When `handle` next has timed work to do; none when only an event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        (self.local.life.state != State::Left && self.wake < Time::MAX).then_some(self.wake)
    }

    /// This peer. Its incarnation rises when another peer knows a higher one, or believes this one dead.
    pub fn me(&self) -> &Contact {
        &self.local.me
    }

    /// This peer as a handle that drivers of many peers in one process can share.
    pub fn me_shared(&self) -> &Member {
        &self.local.me
    }

    /// Where this peer stands between alone and left.
    pub fn state(&self) -> State {
        self.local.life.state
    }

    /// The peer next below on the line.
    pub fn predecessor(&self) -> Option<&Contact> {
        self.membership.line.pred().map(|contact| &**contact)
    }

    /// The peer next above on the line.
    pub fn successor(&self) -> Option<&Contact> {
        self.membership.line.succ().map(|contact| &**contact)
    }

    /// The leaf set: predecessors, then successors, nearest first.
    pub fn neighbours(&self) -> impl Iterator<Item = &Contact> {
        self.membership.line.near().map(|contact| &**contact)
    }

    /// Machines far away on the line that are known to be there.
    pub fn long_links(&self) -> impl Iterator<Item = &Contact> {
        self.membership.fingers.iter().map(|(_, contact)| &**contact)
    }

    /// How many machines there are, by the root's count as far as it is plausible: one child of one router can claim
    /// any number, but the distance between neighbours bounds how many there can be.
    pub fn likely_count(&self) -> u64 {
        self.membership.line.plausible_count(&self.local, self.root().map_or(1, |root| root.count))
    }

    /// Whether this machine has a routing node: every member but the last on the line.
    pub fn hosts_router(&self) -> bool {
        self.tree.hosts_router(&self.local, &self.membership.line)
    }

    /// Whether no peer stands above us: our router spans the whole line as far as we know, or we are alone.
    pub fn is_root(&self) -> bool {
        self.tree.is_root(&self.local, &self.membership.line)
    }

    /// The machine of the acknowledged parent, ourselves where the leaf hangs below the own router; none for the
    /// root, alone, or while the node is not attached.
    pub fn parent(&self, node: Node) -> Option<&Contact> {
        self.tree.links.uplink(node).parent().map(|parent| &**parent)
    }

    /// The children of our router, left and right. The leaf of this machine appears here too where it is one.
    pub fn children(&self) -> [Option<Child<'_>>; 2] {
        SIDES.map(|side| {
            self.tree.links.slot(side).map(|slot| Child {
                contact: &slot.contact,
                node: slot.node,
                count: slot.tree.count,
                height: slot.tree.height,
                payload: &slot.load.bytes,
                generation: slot.generation,
                heard: slot.heard,
            })
        })
    }

    /// Links between the node and the root; none while that is not known.
    pub fn depth(&self, node: Node) -> Option<u32> {
        self.tree.depth(&self.local, &self.membership.line, node)
    }

    /// The root as last heard, or what this peer tells as the root.
    pub fn root(&self) -> Option<&RootInfo> {
        self.tree.root.info().map(|info| &**info)
    }

    /// A payload that this node publishes before then waits for the rate limit. If one waits already, the newer one
    /// replaces it at any time.
    pub fn publishes_from(&self, node: Node) -> Time {
        let uplink = self.tree.links.uplink(node);
        if uplink.has_unsent() { Time::ZERO } else { uplink.load_after }
    }

    /// Whether a published payload of this node still waits to be sent to a parent on another machine.
    pub fn has_unsent(&self, node: Node) -> bool {
        let uplink = self.tree.links.uplink(node);
        uplink.reports() && uplink.has_unsent()
    }

    /// What was refused or lost so far.
    pub fn counters(&self) -> &Counters {
        &self.local.counters
    }

    /// Whether a look-up is under way, of the own key or of a finger; it excuses a missing side of the leaf set (I3).
    pub fn is_looking_up(&self) -> bool {
        self.membership.lookups.is_looking_up()
    }

    /// The far end of our router's gap: the successor, unless the tree has not followed the line yet; none without a
    /// router.
    pub fn gap(&self) -> Option<&Contact> {
        self.tree.links.gap().map(|(succ, _)| &**succ)
    }

    /// The part of the line that a node of ours covers and reports; none while a child is missing.
    pub fn span(&self, node: Node) -> Option<&Span> {
        self.tree.links.span(node)
    }

    /// The part of the line that a linked child covers.
    pub fn child_span(&self, side: Side) -> Option<&Span> {
        self.tree.links.slot(side).map(|slot| &slot.tree.span)
    }

    /// Version of the last payload of a node of ours; 0 before the first.
    pub fn published_version(&self, node: Node) -> u64 {
        self.tree.links.uplink(node).load.version
    }

    /// The last payload of a node of ours; empty before the first.
    pub fn published(&self, node: Node) -> &[u8] {
        &self.tree.links.uplink(node).load.bytes
    }

    /// How much this peer holds.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            leaf_set: self.membership.line.leaf_set.len(),
            fingers: self.membership.fingers.len(),
            heard_of: self.membership.fingers.heard_of().len(),
            probes: self.membership.line.probes.iter().count(),
            graves: self.membership.lost.graveyard.graves().len(),
        }
    }
}

/// Checks all of a message that can be checked without knowing its sender; counts what is refused.
fn is_acceptable(local: &mut Local, from: &Member, message: &Message) -> bool {
    let counters = &mut local.counters;
    if message.grid != local.grid.tag() {
        counters.foreign_grid += 1;
        return false;
    }
    if from.peer == local.me.peer {
        counters.forged_sender += 1;
        return false;
    }
    match message.check() {
        Ok(()) => return true,
        Err(Refusal::Oversized) => counters.oversized += 1,
        Err(Refusal::Malformed) => counters.malformed += 1,
    }
    false
}
