//! One peer's part of the overlay: state, events in, effects out.
//!
//! [`Overlay::handle`] does the same for every event: the event itself, then the timed work that is due, then, if the
//! line or a child changed, it derives the tree anew and reports the differences. Most events change neither, and cost
//! no allocation. `membership` keeps the line, `timers` holds the timed work, `tree` the links, `handover` moves
//! children with a router's role.
//!
//! What a peer keeps is bounded: 2·8 neighbours, 3 fingers for each length of prefix beyond them, 64 peers only heard
//! of, 256 probes under way, 512 tombstones, 64 graves, 32 bootstrap contacts, one look-up of 128 candidates and 64
//! questions, two children, two parents, four refused children, one handover of two children; a payload is at most
//! 64 KiB, and there are at most two for each child, four for each node of ours, and two of the root. Nothing is
//! queued: what waits is a deadline in the state.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::chance::Chance;
use crate::child::Child;
use crate::config::Config;
use crate::counters::Counters;
use crate::event::{Effect, Event, Notice};
use crate::finger::Fingers;
use crate::graveyard::{Graveyard, Tombstones};
use crate::handover::Handed;
use crate::identity::{Contact, GridId, Member, PositionKey};
use crate::leaf_set::{LeafSet, Neighbour, Silence};
use crate::link::{Refused, Slot, Uplink};
use crate::lookup::Lookup;
use crate::message::{Body, Message, Refusal, RootInfo};
use crate::node::{Node, SIDES};
use crate::payload::{PAYLOAD_BYTES_MAX, PayloadCodec};
use crate::probe::Probes;
use crate::state::State;
use crate::time::{Time, micros};

/// Wait before a look-up that follows a change; doubles from there.
pub(crate) const LOOKUP_PERIOD_MIN: Duration = Duration::from_secs(1);

/// Rounds of timed work per event: work may make more work due, and each chain ends.
const ROUNDS_MAX: usize = 4;
/// Timed work done so late means that this machine is slow.
const LATE: Duration = Duration::from_millis(250);
/// Timed work done so late means that this machine slept, by a closed lid, or swapped.
const PAUSE: Duration = Duration::from_secs(2);
/// Lifeguard's bound of local health.
const SLOWNESS_MAX: u32 = 8;
/// By what factor the root's count of machines may exceed the neighbours' estimate. Our choice: that few neighbours
/// stand so far apart by chance has odds of e to the minus of it for one alone.
const COUNT_DOUBT: f64 = 64.0;

/// The overlay of one peer. Deterministic: the same seed and events give the same effects, and so does a copy.
#[derive(Clone, Debug)]
pub struct Overlay {
    pub(crate) config: Arc<Config>,
    pub(crate) grid: GridId,
    pub(crate) codec: PayloadCodec,
    pub(crate) me: Member,
    /// Our place on the line.
    pub(crate) key: PositionKey,
    pub(crate) rng: Chance,
    pub(crate) now: Time,
    pub(crate) state: State,
    /// When a joining peer becomes a member even if candidates go on turning up.
    pub(crate) join_until: Time,
    /// When a new member completes its leaf set.
    pub(crate) settle_until: Time,
    /// When a leaving peer stops.
    pub(crate) leave_until: Time,
    pub(crate) line: Line,
    pub(crate) timers: Timers,
    pub(crate) tree: Tree,
    pub(crate) notices: Notices,
    /// The driver's list while an event is handled, else empty.
    pub(crate) outbox: Vec<Effect>,
    pub(crate) counters: Counters,
    /// When there is timed work.
    wake: Time,
    /// How slow we seem to be ourselves (Lifeguard's local health): 0 is healthy.
    pub(crate) slowness: u32,
    /// When this incarnation began, and its number: together our guess of the time of day.
    pub(crate) born: (Time, u64),
}

/// The peers that stand on the line, may stand there, or did.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) leaf_set: LeafSet,
    pub(crate) fingers: Fingers,
    pub(crate) probes: Probes,
    pub(crate) tombstones: Tombstones,
    pub(crate) graveyard: Graveyard,
    pub(crate) lookup: Option<Lookup>,
    /// The own key was looked up since joining began.
    pub(crate) looked_up: bool,
    /// By side, below and above: a look-up found no peer there.
    pub(crate) ends: [bool; 2],
}

/// Periodic work.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    pub(crate) lookup: Time,
    pub(crate) lookup_period: Duration,
    pub(crate) fingers: Time,
    pub(crate) fingers_period: Duration,
    /// Number of fingers at that time.
    pub(crate) fingers_len: usize,
    pub(crate) graves: Time,
    /// The leaf set grew: spread it.
    pub(crate) exchange: Option<Time>,
}

/// The links of the nodes on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// By node: leaf, router.
    pub(crate) uplinks: [Uplink; 2],
    /// By side: left, right.
    pub(crate) slots: [Option<Box<Slot>>; 2],
    pub(crate) generation: u64,
    pub(crate) root: Option<Arc<RootInfo>>,
    /// Digest of `root`; 0 is none.
    pub(crate) root_digest: u32,
    pub(crate) root_stamp: u64,
    pub(crate) root_payload: Vec<u8>,
    /// The far end of our router's gap, and the gap's prefix: they identify the router whose children and parent these
    /// are.
    pub(crate) gap: Option<(Member, u16)>,
    /// The line or a child changed since the tree was derived.
    pub(crate) changed: bool,
    /// A link may have something to send, or its deadline may differ from `next`.
    pub(crate) stirred: bool,
    /// The earliest deadline of a link.
    pub(crate) next: Time,
    /// What children are to be told: digest of the root, depth of our router.
    pub(crate) announced: (u32, Option<u32>),
    /// Rises with every change of `announced`.
    pub(crate) edition: u32,
    /// Children that were refused and may fit before long.
    pub(crate) refused: Vec<Refused>,
    /// A handover for a role that we have or are about to have.
    pub(crate) handed: Option<Box<Handed>>,
}

/// Notices for the layer above, collected during a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notices {
    pub(crate) joined: bool,
    pub(crate) children: bool,
    pub(crate) place: bool,
    pub(crate) root: bool,
    pub(crate) left: bool,
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
        let (config, me) = (config.into(), me.into());
        let key = me.key(grid);
        let silence = Silence {
            adjacent_us: micros(Duration::from_millis(config.heartbeat_ms) / 2),
            others_us: micros(Duration::from_millis(config.exchange_ms)),
        };
        let line = Line {
            leaf_set: LeafSet::new(key, config.leaf_set_side_len, silence),
            fingers: Fingers::new(key, config.fingers_per_bucket),
            probes: Probes::default(),
            tombstones: Tombstones::default(),
            graveyard: Graveyard::new(config.graveyard_len),
            lookup: None,
            looked_up: false,
            ends: [true; 2],
        };
        let timers = Timers {
            lookup: now,
            lookup_period: LOOKUP_PERIOD_MIN,
            fingers: now,
            fingers_period: Duration::from_millis(config.exchange_ms),
            fingers_len: 0,
            graves: now,
            exchange: None,
        };
        let tree = Tree {
            uplinks: [Uplink::new(now), Uplink::new(now)],
            slots: [None, None],
            generation: 0,
            root: None,
            root_digest: 0,
            root_stamp: 0,
            root_payload: Vec::new(),
            gap: None,
            changed: true,
            stirred: true,
            next: Time::MAX,
            announced: (0, None),
            edition: 0,
            refused: Vec::new(),
            handed: None,
        };
        let mut overlay = Self {
            config,
            grid,
            codec,
            born: (now, me.incarnation),
            me,
            key,
            rng: Chance::new(seed),
            now,
            state: State::Alone,
            join_until: now,
            settle_until: now,
            leave_until: now,
            line,
            timers,
            tree,
            notices: Notices::default(),
            outbox: Vec::new(),
            counters: Counters::default(),
            wake: Time::MAX,
            slowness: 0,
        };
        overlay.timers.fingers = overlay.after_ms(overlay.config.exchange_ms);
        overlay.timers.graves = overlay.after_ms(overlay.config.graveyard_probe_ms);
        overlay.derive_tree();
        overlay.tree.next = overlay.tree_deadline();
        overlay.notices = Notices::default();
        overlay.wake = overlay.next_timer();
        overlay
    }

    /// Feeds one event and appends its effects, in the order they must be carried out.
    ///
    /// `now` never decreases. Infallible: a remote peer's mistakes are counted and ignored.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.state == State::Left && !matches!(event, Event::Return) {
            return;
        }
        self.now = self.now.max(now);
        std::mem::swap(&mut self.outbox, effects);
        self.notice_lateness();
        match event {
            Event::Bootstrap(contact) => self.bootstrap(contact.into()),
            Event::Received { from, message } => self.receive(from, message),
            Event::ConnectionLost(peer) => self.doubt(peer),
            Event::Leave => self.leave(),
            Event::Return => self.come_back(),
            Event::DeadlineReached => {}
        }
        self.settle();
        std::mem::swap(&mut self.outbox, effects);
        #[cfg(debug_assertions)]
        self.assert_consistent();
    }

    /// Does timed work, updates the tree, and notifies the layer above.
    fn settle(&mut self) {
        if self.state == State::Leaving {
            self.linger();
            self.wake = self.leave_until;
        } else {
            for _ in 0..ROUNDS_MAX {
                if self.wake <= self.now {
                    self.run_timers();
                    self.tree.stirred = true;
                }
                self.advance_state();
                if self.tree.changed {
                    self.derive_tree();
                }
                if std::mem::take(&mut self.tree.stirred) {
                    self.send_reports();
                    self.push_root();
                    self.tree.next = self.tree_deadline();
                }
                self.wake = self.next_timer();
                if self.wake > self.now {
                    break;
                }
            }
        }
        let notices = std::mem::take(&mut self.notices);
        let notices = [
            (notices.joined, Notice::Joined),
            (notices.place, Notice::PlaceChanged),
            (notices.children, Notice::ChildrenChanged),
            (notices.root, Notice::RootChanged),
            (notices.left, Notice::Left),
        ];
        self.outbox.extend(notices.iter().filter(|(is_new, _)| *is_new).map(|(_, notice)| Effect::Notify(*notice)));
    }

    /// Late timed work shows that this machine is slow; after a pause the silence of others means nothing.
    fn notice_lateness(&mut self) {
        let late = self.now.since(self.wake);
        if late < LATE || matches!(self.state, State::Leaving | State::Left) {
            return;
        }
        self.feel_slower(1);
        if late >= PAUSE {
            self.counters.pauses += 1;
            self.tree.slots.iter_mut().flatten().for_each(|slot| slot.heard += late);
            let asked = self.line.probes.begin_anew(self.now);
            asked.into_iter().for_each(|contact| self.repeat_ping(contact));
        }
    }

    pub(crate) fn feel_slower(&mut self, by: u32) {
        self.slowness = (self.slowness + by).min(SLOWNESS_MAX);
    }

    /// How long a try waits for an answer: longer, the slower we seem to be.
    pub(crate) fn timeout(&self, path: Option<crate::leaf_set::Path>) -> Duration {
        self.config.probe_timeout(path.and_then(|path| path.answer_within())) * (2 + self.slowness) / 2
    }

    /// Checks a message and hands it to its part of the protocol.
    fn receive(&mut self, from: Member, message: Message) {
        if message.grid != self.grid.tag() {
            self.counters.foreign_grid += 1;
            return;
        }
        if from.peer == self.me.peer {
            self.counters.forged_sender += 1;
            return;
        }
        match message.check() {
            Ok(()) => {}
            Err(Refusal::Oversized) => {
                self.counters.oversized += 1;
                return;
            }
            Err(Refusal::Malformed) => {
                self.counters.malformed += 1;
                return;
            }
        }
        let Message { incarnation, address, body, .. } = message;
        let is_new_address = address.is_some();
        let Some(sender) = self.sender(from, incarnation, address) else {
            // It believes that we know it; when no answer comes it repeats the message with its address.
            self.counters.unknown_sender += 1;
            return;
        };
        if self.state == State::Leaving {
            if !matches!(body, Body::Leave(_) | Body::Handover(_) | Body::Ack { .. } | Body::ReportAck(_)) {
                self.say_goodbye(sender);
            }
            return;
        }
        // The sender of either may be gone by now.
        let is_farewell = matches!(body, Body::Leave(_) | Body::Handover(_));
        if !is_farewell && !self.hear(&sender, is_new_address, &body) {
            return;
        }
        match body {
            Body::Ping { nonce, mine, seen } => self.on_ping(sender, nonce, mine, seen),
            Body::Ack { nonce, mine, set, ask } => self.on_ack(&sender, nonce, mine, set, ask),
            Body::Find { nonce, key } => self.on_find(sender, nonce, &key),
            Body::Found { nonce, near } => self.on_found(&sender, nonce, near),
            Body::Report(report) => self.on_report(sender, report),
            Body::ReportAck(ack) => self.on_report_ack(&sender, ack),
            Body::RootChanged { node, root, depth, edition } => {
                self.on_root_changed(&sender, node, root, depth, edition)
            }
            Body::Dead(contact) => self.on_dead(&sender, &contact),
            Body::Suspect(contact) => self.on_suspect(contact.peer),
            Body::Hint(contacts) => contacts.iter().for_each(|contact| self.consider(contact)),
            Body::Leave(leave) => self.on_leave(&sender, leave),
            Body::Handover(handover) => self.on_handover(&sender, handover),
        }
    }

    /// The sender of a message. If the message has no address, the one at which we reached or heard of the peer last.
    /// None if we do not know the peer.
    fn sender(&self, from: Member, incarnation: u64, address: Option<Box<str>>) -> Option<Member> {
        let says = |contact: &Member, address: &str| contact.incarnation == incarnation && *contact.address == *address;
        if let Some(address) = address {
            return Some(if says(&from, &address) {
                from
            } else {
                Contact { incarnation, address, ..(*from).clone() }.into()
            });
        }
        let known = self.known_contact(from.peer).or_else(|| self.line.fingers.get(from.peer))?;
        // The contact that we know may be hearsay, with a false nonce.
        Some(if says(known, &known.address) && known.nonce == from.nonce {
            known.clone()
        } else {
            Contact { incarnation, address: known.address.clone(), ..(*from).clone() }.into()
        })
    }

    /// Sends a message with our address.
    pub(crate) fn send(&mut self, to: Member, body: Body) {
        let address = Some(self.me.address.clone());
        self.send_as(to, address, body);
    }

    /// Sends a message to a peer that knows our address.
    pub(crate) fn send_short(&mut self, to: Member, body: Body) {
        self.send_as(to, None, body);
    }

    fn send_as(&mut self, to: Member, address: Option<Box<str>>, body: Body) {
        let message = Message { grid: self.grid.tag(), incarnation: self.me.incarnation, address, body };
        self.outbox.push(Effect::Send { to, message });
    }

    /// The moment after a period with its spread.
    pub(crate) fn after_ms(&mut self, period_ms: u64) -> Time {
        self.now + Duration::from_millis(period_ms) * self.pace_percent() / 100
    }

    /// A duration with its spread.
    pub(crate) fn pace(&mut self, duration: Duration) -> Duration {
        duration * self.pace_percent() / 100
    }

    /// A random factor around 100 %.
    pub(crate) fn pace_percent(&mut self) -> u32 {
        let jitter = self.config.jitter_percent.min(50) as u32;
        self.rng.random_range(100 - jitter..=100 + jitter)
    }

    // ---- surface for the layer above ----

    #[cfg(debug_assertions)]
    pub(crate) fn wake(&self) -> Time {
        self.wake
    }

    /// When `handle` next has timed work to do; none when only an event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        (self.state != State::Left && self.wake < Time::MAX).then_some(self.wake)
    }

    /// This peer. Its incarnation rises when another peer knows a higher one, or believes this one dead.
    pub fn me(&self) -> &Contact {
        &self.me
    }

    /// This peer as a handle that drivers of many peers in one process can share.
    pub fn me_shared(&self) -> &Member {
        &self.me
    }

    /// The own dialable address became known or changed; the next messages spread it.
    pub fn set_address(&mut self, address: Box<str>) {
        self.me = Contact { address, ..(*self.me).clone() }.into();
        self.tree.changed = true;
        self.tree.uplinks.iter_mut().for_each(|uplink| uplink.acked = None);
        self.tree.stirred = true;
        self.forget_seen();
    }

    /// Where this peer stands between alone and left.
    pub fn state(&self) -> State {
        self.state
    }

    /// The peer next below on the line.
    pub fn predecessor(&self) -> Option<&Contact> {
        self.pred().map(|contact| &**contact)
    }

    /// The peer next above on the line.
    pub fn successor(&self) -> Option<&Contact> {
        self.succ().map(|contact| &**contact)
    }

    /// The leaf set: predecessors, then successors, nearest first.
    pub fn neighbours(&self) -> impl Iterator<Item = &Contact> {
        self.near().map(|contact| &**contact)
    }

    /// Machines far away on the line that are known to be there.
    pub fn long_links(&self) -> impl Iterator<Item = &Contact> {
        self.line.fingers.iter().map(|(_, contact)| &**contact)
    }

    /// How many machines there are, by the root's count as far as it is plausible: one child of one router can claim
    /// any number, but the distance between neighbours bounds how many there can be.
    pub fn likely_count(&self) -> u64 {
        let claimed = self.root().map_or(1, |root| root.count);
        let heads = || self.near().map(|contact| contact.key(self.grid).head());
        let (Some(first), Some(last)) = (heads().min(), heads().max()) else { return claimed };
        let me = self.me.key(self.grid).head();
        let span = last.max(me) - first.min(me);
        // The density of the neighbourhood, for the whole line.
        let estimate = heads().count() as f64 * (u64::MAX as f64 / span.max(1) as f64);
        // The cast saturates.
        claimed.min((estimate * COUNT_DOUBT) as u64)
    }

    pub(crate) fn pred(&self) -> Option<&Member> {
        self.line.leaf_set.predecessor().map(Neighbour::contact)
    }

    pub(crate) fn succ(&self) -> Option<&Member> {
        self.line.leaf_set.successor().map(Neighbour::contact)
    }

    pub(crate) fn near(&self) -> impl Iterator<Item = &Member> {
        self.line.leaf_set.iter().map(Neighbour::contact)
    }

    /// Whether this machine has a routing node: every member but the last on the line.
    pub fn hosts_router(&self) -> bool {
        match self.state {
            // In doubt about the line the tree stays as it was.
            State::Member => self.tree.gap.is_some(),
            State::Leaving => self.successor().is_some(),
            State::Alone | State::Joining | State::Left => false,
        }
    }

    /// Whether no peer stands above us: our router spans the whole line as far as we know, or we are alone.
    pub fn is_root(&self) -> bool {
        if self.line.leaf_set.len() == 0 {
            return true;
        }
        let span = self.tree.uplinks[Node::Router as usize].tree.as_ref().map(|tree| &tree.span);
        self.hosts_router() && span.is_some_and(|span| span.lo.is_none() && span.ro.is_none())
    }

    /// The machine of the acknowledged parent, ourselves where the leaf hangs below the own router; none for the
    /// root, alone, or while the node is not attached.
    pub fn parent(&self, node: Node) -> Option<&Contact> {
        self.tree.uplinks[node as usize].parent().map(|parent| &**parent)
    }

    /// The children of our router, left and right. The leaf of this machine appears here too where it is one.
    pub fn children(&self) -> [Option<Child<'_>>; 2] {
        SIDES.map(|side| {
            self.tree.slots[side as usize].as_ref().map(|slot| Child {
                contact: &slot.contact,
                node: slot.node,
                count: slot.tree.count,
                height: slot.tree.height,
                payload: &slot.load.bytes,
                generation: slot.generation,
            })
        })
    }

    /// Links between the node and the root; none while that is not known.
    pub fn depth(&self, node: Node) -> Option<u32> {
        if self.is_root() {
            let is_alone = self.line.leaf_set.len() == 0;
            match node {
                Node::Leaf if is_alone => return Some(0),
                Node::Router => return (!is_alone).then_some(0),
                Node::Leaf => {}
            }
        }
        let uplink = &self.tree.uplinks[node as usize];
        uplink.parent()?;
        if uplink.is_own {
            return self.depth(Node::Router).map(|depth| depth.saturating_add(1));
        }
        uplink.parent_depth.map(|depth| depth.saturating_add(1))
    }

    /// The root as last heard, or what this peer tells as the root.
    pub fn root(&self) -> Option<&RootInfo> {
        self.tree.root.as_deref()
    }

    /// A payload that this node publishes before then waits for the rate limit. If one waits already, the newer one
    /// replaces it at any time.
    pub fn publishes_from(&self, node: Node) -> Time {
        let uplink = &self.tree.uplinks[node as usize];
        if uplink.has_unsent() { Time::ZERO } else { uplink.load_after }
    }

    /// Whether a published payload of this node still waits to be sent to a parent on another machine.
    pub fn has_unsent(&self, node: Node) -> bool {
        let uplink = &self.tree.uplinks[node as usize];
        uplink.reports() && uplink.has_unsent()
    }

    /// Replaces the payload that `node` reports to its parent. The newest wins; the rate limit decides when it is sent.
    ///
    /// Payloads longer than [`PAYLOAD_BYTES_MAX`] are counted and ignored.
    pub fn publish(&mut self, now: Time, node: Node, payload: Vec<u8>, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        if payload.len() > PAYLOAD_BYTES_MAX {
            self.counters.oversized_own += 1;
            return;
        }
        self.replace_load(node, payload);
        self.settle_own(effects);
    }

    /// Replaces the payload that this peer announces to everybody as the root. Stored, but without effect, while it is
    /// not the root.
    ///
    /// Payloads longer than [`PAYLOAD_BYTES_MAX`] are counted and ignored.
    pub fn publish_root(&mut self, now: Time, payload: Vec<u8>, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        if payload.len() > PAYLOAD_BYTES_MAX {
            self.counters.oversized_own += 1;
            return;
        }
        self.tree.root_payload = payload;
        self.tree.changed = true;
        self.settle_own(effects);
    }

    fn settle_own(&mut self, effects: &mut Vec<Effect>) {
        // Publishing may be the first activity after a pause.
        self.notice_lateness();
        if !matches!(self.state, State::Leaving | State::Left) {
            std::mem::swap(&mut self.outbox, effects);
            self.settle();
            std::mem::swap(&mut self.outbox, effects);
        }
    }

    /// What was refused or lost so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
