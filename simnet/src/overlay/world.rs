//! Machines with nothing but an overlay, links between them, and the loop that lets things happen.
//!
//! A driver (an experiment, a test) starts, stops and disturbs machines and lets the world step; what it wants to do at
//! some moment it can plan, and the step says when that moment has come. A machine is as small as it can be: the state
//! of its peer, and a hundred bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{
    Body, Config, Contact, Effect, Event, GridId, Member, Message, Notice, Overlay, PayloadCodec, PeerId, PositionKey,
    State, Time,
};
use rand::{Rng, RngExt};

use super::measure::{Measure, measure};
use crate::condition::{Condition, Pause};
use crate::event_queue::{EventQueue, HostIndex, Key};
use crate::host::{EPOCH, host_index};
use crate::network::{Network, Quality};
use crate::random::{SmallStream, digest};
use crate::report::MessageCount;
use crate::size::mix;
use crate::slab::Slab;

/// Source of what no machine causes.
const WORLD: HostIndex = HostIndex::MAX;
/// Machines that one which starts knows of, as an agent knows some from its user and its last run.
const CONTACTS: usize = 3;
/// Wakes in a row that one machine may have at one instant before we call it a live-lock.
const WAKES_AT_ONE_INSTANT_MAX: u16 = 1_000;
/// Machines that are looked at for one that is a member and can be reached.
const CONTACT_TRIES: usize = 8;
/// Kinds of messages that can be told apart.
const KINDS_MAX: usize = 64;

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Every message is encoded and decoded, as between agents. For up to 10⁴ machines.
    Bytes,
    /// Messages as values, and their exact encoded size in the books. The trace is the same.
    Sizes,
}

/// What defines a world, but for what is done to it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of all randomness.
    pub seed: u64,
    /// Machines there can be; all are down at first.
    pub hosts: u32,
    /// Of all peers.
    pub config: Config,
    /// Of all links at first.
    pub quality: Quality,
    /// What travels.
    pub wire: Wire,
}

impl Settings {
    /// The usual settings for so many machines.
    pub fn new(hosts: u32, seed: u64) -> Self {
        let wire = if hosts > 10_000 { Wire::Sizes } else { Wire::Bytes };
        Self { seed, hosts, config: Config::default(), quality: Quality::default(), wire }
    }
}

/// What a machine that starts remembers of its last life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Its identity and its last incarnation, which rises.
    Kept,
    /// Only its identity: the incarnation follows from the wall clock alone.
    Lost,
    /// Its identity and an incarnation before the last, and the wall clock is no help: an old copy of its disk.
    Stale,
    /// Nothing: it is another machine, with an identity of its own, in the same place of the simulation.
    Stranger,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A peer was given an event; what it answered is under way.
    Handled(HostIndex),
    /// What [`World::plan`] planned is due.
    Planned {
        /// For whom.
        host: HostIndex,
        /// What, in the driver's own code.
        code: u32,
    },
    /// Nothing that a peer noticed.
    Nothing,
}

/// A message that a peer was given, as the world saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The machine that was given it.
    pub to: HostIndex,
    /// Who really sent it.
    pub from: PeerId,
    /// In which life, by what its sender wrote.
    pub incarnation: u64,
    /// It answers a ping.
    pub is_answer: bool,
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// By kind, in the order of the protocol.
    kinds: [(&'static str, MessageCount); KINDS_MAX],
    /// Lost by the links.
    pub lost: u64,
    /// Came to a machine that was down, had its lid shut, or was another.
    pub in_vain: u64,
}

impl Traffic {
    fn note(&mut self, measure: &Measure) {
        let (kind, count) = &mut self.kinds[measure.variant as usize % KINDS_MAX];
        *kind = measure.kind;
        count.count += 1;
        count.bytes += measure.bytes;
    }

    /// Kinds that were sent.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, MessageCount)> {
        self.kinds.iter().filter(|(_, count)| count.count > 0).copied()
    }

    /// All kinds together.
    pub fn total(&self) -> MessageCount {
        self.kinds().fold(MessageCount::default(), |sum, (_, count)| MessageCount {
            count: sum.count + count.count,
            bytes: sum.bytes + count.bytes,
        })
    }
}

/// What waits in the queue.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// The deadline of a life of a peer.
    Wake(u32),
    /// A message, by its number.
    Deliver(u32),
    /// A message that a slow machine has put off.
    Late(u32),
    /// What the driver planned.
    Plan(u32),
}

/// A message under way.
#[derive(Clone, Debug)]
struct Letter {
    from: Member,
    message: Message,
    digest: u64,
    /// Of whom it is for.
    tag: u64,
}

/// One machine.
#[derive(Clone, Debug)]
struct Host {
    overlay: Option<Box<Overlay>>,
    /// For what it sends.
    network_rng: SmallStream,
    /// For whom it joins through.
    contact_rng: SmallStream,
    /// Usually there is nothing to say.
    condition: Option<Box<Condition>>,
    trace: u64,
    sequence: u64,
    /// When the pending wake is due.
    wake: Time,
    /// What its peer gave for its deadline when it last handled something, by its clock.
    deadline: Time,
    /// When this life began.
    started: Time,
    /// The last incarnation, as on its disk.
    incarnation: u64,
    /// Counts its starts: what was meant for an earlier life is void.
    life: u32,
    /// Counts the machines that stood in this place.
    identity: u32,
    /// Of the present one.
    tag: u64,
    /// Where it is among those that are up.
    place: u32,
    wakes_at_once: u16,
    /// Messages sent or received in this life.
    messages: u32,
}

/// The identity of the machine that is number `identity` in its place. Its first bytes tell the place.
fn identity(seed: u64, host: HostIndex, identity: u32) -> PeerId {
    let mut id = digest(seed, "identity", u64::from(identity) << 32 | u64::from(host));
    id[..4].copy_from_slice(&host.to_be_bytes());
    PeerId(id)
}

/// Where it is reached, as agents write it: nothing is dialled here, but messages have the length that they have there.
fn address(host: HostIndex) -> Box<str> {
    let [_, a, b, c] = host.to_be_bytes();
    format!("/ip4/10.{a}.{b}.{c}/tcp/40113").into()
}

/// What tells apart the machines of one place.
fn tag(PeerId([_, _, _, _, a, b, c, d, e, f, g, h, ..]): PeerId) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// No place among those that are up.
const NOWHERE: u32 = u32::MAX;

impl Host {
    fn condition_mut(&mut self) -> &mut Condition {
        self.condition.get_or_insert_default()
    }

    fn pause(&self) -> Option<Pause> {
        self.condition.as_ref()?.pause
    }

    /// The peer's deadline in simulated time.
    fn deadline(&self) -> Time {
        match &self.condition {
            Some(condition) => condition.moment(self.started, self.deadline),
            None => Time::from_micros(self.deadline.as_micros().saturating_add(self.started.as_micros())),
        }
    }

    fn key(&mut self, at: Time, source: HostIndex, target: HostIndex) -> Key {
        self.sequence += 1;
        Key { at, target, source, sequence: self.sequence }
    }
}

/// Machines, links and the time.
#[derive(Clone, Debug)]
pub struct World {
    settings: Settings,
    grid: GridId,
    /// Of the settings, for all peers.
    config: Arc<Config>,
    now: Time,
    queue: EventQueue<Due>,
    letters: Slab<Letter>,
    hosts: Vec<Host>,
    /// Machines that are up and do not leave, in no particular order.
    up: Vec<HostIndex>,
    /// What waits for machines whose lid is shut.
    held: BTreeMap<HostIndex, Vec<Due>>,
    network: Network,
    effects: Vec<Effect>,
    delivery: Option<Delivery>,
    traffic: Traffic,
    sequence: u64,
    events: u64,
    /// Time that machines were up, in microseconds, until the last one came or went.
    up_us: u64,
    up_since: Time,
}

impl World {
    /// A world in which every machine is down.
    pub fn new(settings: Settings) -> Self {
        let host = |index: HostIndex| Host {
            overlay: None,
            network_rng: SmallStream::new(settings.seed, "network", index.into()),
            contact_rng: SmallStream::new(settings.seed, "contact", index.into()),
            condition: None,
            trace: 0,
            sequence: 0,
            wake: Time::MAX,
            deadline: Time::MAX,
            started: Time::ZERO,
            incarnation: 0,
            life: 0,
            identity: 0,
            tag: tag(identity(settings.seed, index, 0)),
            place: NOWHERE,
            wakes_at_once: 0,
            messages: 0,
        };
        Self {
            grid: GridId(digest(settings.seed, "grid", 0)),
            config: Arc::new(settings.config.clone()),
            now: Time::ZERO,
            queue: EventQueue::default(),
            letters: Slab::default(),
            hosts: (0..settings.hosts).map(host).collect(),
            up: Vec::new(),
            held: BTreeMap::new(),
            network: Network::new(settings.quality.clone()),
            effects: Vec::new(),
            delivery: None,
            traffic: Traffic { kinds: [("", MessageCount::default()); KINDS_MAX], lost: 0, in_vain: 0 },
            sequence: 0,
            events: 0,
            up_us: 0,
            up_since: Time::ZERO,
            settings,
        }
    }

    // ---- what is ----

    /// Simulated time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Which grid this is.
    pub fn grid(&self) -> GridId {
        self.grid
    }

    /// Number of machines, up or down.
    pub fn hosts(&self) -> u32 {
        self.settings.hosts
    }

    /// Machines that are up and do not leave, in no particular order.
    pub fn up(&self) -> &[HostIndex] {
        &self.up
    }

    /// Whether a machine is up and does not leave.
    pub fn is_up(&self, host: HostIndex) -> bool {
        self.hosts[host as usize].place != NOWHERE
    }

    /// The peer of a machine that is up, also one that leaves.
    pub fn overlay(&self, host: HostIndex) -> Option<&Overlay> {
        self.hosts[host as usize].overlay.as_deref()
    }

    /// The identity of the machine that stands here now, or did last.
    pub fn peer_id(&self, host: HostIndex) -> PeerId {
        identity(self.settings.seed, host, self.hosts[host as usize].identity)
    }

    /// Its place on the line.
    pub fn position(&self, host: HostIndex) -> PositionKey {
        PositionKey::new(self.grid, self.peer_id(host))
    }

    /// The machine with this identity, up or down; none when another one stands in its place by now.
    pub fn host_of(&self, peer: PeerId) -> Option<HostIndex> {
        let host = host_index(peer);
        (self.hosts.get(host as usize)?.tag == tag(peer)).then_some(host)
    }

    /// When the present life of a machine began.
    pub fn started(&self, host: HostIndex) -> Time {
        self.hosts[host as usize].started
    }

    /// Counts the starts of a machine: names its present life.
    pub fn life(&self, host: HostIndex) -> u32 {
        self.hosts[host as usize].life
    }

    /// The message that the last step delivered, if it was one.
    pub fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_ref()
    }

    /// Messages that a machine sent or received in its present life.
    pub fn messages(&self, host: HostIndex) -> u32 {
        self.hosts[host as usize].messages
    }

    /// What was sent so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Events given to peers so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Simulated time of all machines that were up, together.
    pub fn time_up(&self) -> Duration {
        let since = self.now.since(self.up_since) * self.up.len() as u32;
        Duration::from_micros(self.up_us) + since
    }

    /// The number of machines that are up is about to change.
    fn count_time_up(&mut self) {
        let us = self.now.as_micros() - self.up_since.as_micros();
        self.up_us += us.unsigned_abs() * self.up.len() as u64;
        self.up_since = self.now;
    }

    /// Events to come.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// The hashes of all machines, in their order, as one.
    pub fn trace_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for host in &self.hosts {
            hasher.update(&host.trace.to_le_bytes());
        }
        hasher.finalize()
    }

    // ---- machines come and go ----

    /// Starts a machine that is down; it joins through random ones that are up, if there are any.
    pub fn start(&mut self, host: HostIndex, memory: Memory) {
        let contacts: Vec<_> = (0..CONTACTS).filter_map(|_| self.somebody_else(host)).collect();
        self.start_through(host, memory, contacts.first().copied());
        for contact in contacts.into_iter().skip(1) {
            self.introduce(host, contact);
        }
    }

    /// Starts all machines, in waves that each double the grid: the machines of a wave start at random moments in it,
    /// and join through members. It is the end of the last wave then; they may still be joining.
    ///
    /// Only the first `hosts` machines: others are left for later. `look` sees the world after each start.
    pub fn grow(&mut self, hosts: u32, wave: Duration, mut look: impl FnMut(&Self)) {
        let micros = u64::try_from(wave.as_micros()).unwrap_or(u64::MAX).max(1);
        let mut rng = SmallStream::new(self.settings.seed, "growth", 0);
        let mut next = 0;
        while next < hosts {
            let end = next.saturating_mul(2).clamp(1, hosts);
            let mut starts: Vec<_> = (next..end).map(|host| (rng.random_range(0..micros), host)).collect();
            starts.sort_unstable();
            let begin = self.now;
            for (after, host) in starts {
                self.run_until(begin + Duration::from_micros(after));
                self.start(host, Memory::Kept);
                look(self);
            }
            self.run_until(begin + wave);
            next = end;
        }
    }

    /// Starts a machine that is down; it joins through `contact`, or is alone.
    ///
    /// # Panics
    /// When it is not down.
    pub fn start_through(&mut self, host: HostIndex, memory: Memory, contact: Option<HostIndex>) {
        self.count_time_up();
        let place = self.up.len() as u32;
        let now = self.now;
        let machine = &mut self.hosts[host as usize];
        assert!(machine.overlay.is_none(), "machine {host} is up");
        machine.life += 1;
        machine.started = now;
        machine.wake = Time::MAX;
        machine.messages = 0;
        machine.place = place;
        let mut wall = EPOCH + now.since(Time::ZERO);
        if let Some(condition) = &mut machine.condition {
            condition.restart();
            wall = condition.wall(wall);
        }
        let wall_ms = u64::try_from(wall.0 / 1000).unwrap_or(0);
        machine.incarnation = match memory {
            Memory::Kept => wall_ms.max(machine.incarnation + 1),
            Memory::Lost => wall_ms,
            Memory::Stale => machine.incarnation.saturating_sub(1),
            Memory::Stranger => {
                machine.identity += 1;
                wall_ms
            }
        };
        machine.tag = tag(identity(self.settings.seed, host, machine.identity));
        let (incarnation, life) = (machine.incarnation, machine.life);
        let number = u64::from(host) << 32 | u64::from(life);
        let seed = SmallStream::new(self.settings.seed, "peer", number).next_u64();
        let me = Contact { peer: self.peer_id(host), incarnation, address: address(host), nonce: None };
        let config = self.config.clone();
        let overlay = Overlay::new(config, self.grid, me, seed, Time::ZERO, PayloadCodec::WHOLE);
        let machine = &mut self.hosts[host as usize];
        machine.deadline = overlay.deadline().unwrap_or(Time::MAX);
        machine.overlay = Some(Box::new(overlay));
        self.up.push(host);
        match contact {
            Some(contact) => self.introduce(host, contact),
            None => self.arm(host),
        }
    }

    /// Gives a machine that is up another first contact.
    pub fn introduce(&mut self, host: HostIndex, contact: HostIndex) {
        let contact = Contact { peer: self.peer_id(contact), incarnation: 0, address: address(contact), nonce: None };
        self.give(host, Event::Bootstrap(contact), 1);
    }

    /// A random machine that is up, that this one can reach, and that is not this one, from this one's stream: a
    /// member, unless there is none. Where chance finds none, the first of the list.
    fn somebody_else(&mut self, host: HostIndex) -> Option<HostIndex> {
        let (rng, somebody) = self.choose_somebody(host, self.hosts[host as usize].contact_rng.clone());
        self.hosts[host as usize].contact_rng = rng;
        somebody
    }

    fn choose_somebody(&self, host: HostIndex, mut contact_rng: SmallStream) -> (SmallStream, Option<HostIndex>) {
        let place = self.hosts[host as usize].place;
        let others = self.up.len() - usize::from(place != NOWHERE);
        let is_member = |host| self.overlay(host).is_some_and(|overlay| overlay.state() == State::Member);
        for _ in 0..CONTACT_TRIES.min(others) {
            let choice = contact_rng.random_range(0..others);
            let choice = self.up[if choice >= place as usize { choice + 1 } else { choice }];
            if self.network.reaches(host, choice) && is_member(choice) {
                return (contact_rng, Some(choice));
            }
        }
        let reachable = || self.up.iter().copied().filter(|other| *other != host && self.network.reaches(host, *other));
        let member = reachable().find(|other| is_member(*other));
        (contact_rng, member.or_else(|| reachable().next()))
    }

    /// Cuts the power of a machine.
    pub fn crash(&mut self, host: HostIndex) {
        self.take_down(host);
        let machine = &mut self.hosts[host as usize];
        if let Some(overlay) = machine.overlay.take() {
            // What a driver keeps on disk: an incarnation is durable before it is used.
            machine.incarnation = machine.incarnation.max(overlay.me().incarnation);
        }
        (machine.wake, machine.deadline) = (Time::MAX, Time::MAX);
        if let Some(condition) = &mut machine.condition {
            condition.pause = None;
        }
        for due in self.held.remove(&host).unwrap_or_default() {
            if let Due::Deliver(letter) | Due::Late(letter) = due {
                self.letters.take(letter);
                self.traffic.in_vain += 1;
            }
        }
    }

    /// Asks a machine to leave in good order; it goes down when its peer says so.
    pub fn leave(&mut self, host: HostIndex) {
        if self.is_up(host) {
            self.take_down(host);
            self.give(host, Event::Leave, 2);
        }
    }

    /// No longer among those that are up.
    fn take_down(&mut self, host: HostIndex) {
        let place = std::mem::replace(&mut self.hosts[host as usize].place, NOWHERE);
        if place == NOWHERE {
            return;
        }
        self.count_time_up();
        self.up.swap_remove(place as usize);
        if let Some(moved) = self.up.get(place as usize) {
            self.hosts[*moved as usize].place = place;
        }
    }

    // ---- faults ----

    /// The links.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The links; what is changed holds for what is sent from now on.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Shuts the lid of a machine that is up: it handles nothing, its clocks go on.
    pub fn pause(&mut self, host: HostIndex, pause: Pause) {
        if self.hosts[host as usize].overlay.is_some() {
            self.hosts[host as usize].condition_mut().pause = Some(pause);
        }
    }

    /// Opens the lid of a machine again.
    pub fn resume(&mut self, host: HostIndex) {
        if self.hosts[host as usize].pause().is_none() {
            return;
        }
        self.hosts[host as usize].condition_mut().pause = None;
        let now = self.now;
        for due in self.held.remove(&host).unwrap_or_default() {
            self.cause(host, now, host, due);
        }
        self.arm(host);
    }

    /// From now on a machine handles everything so much later than it could; zero: at once again.
    pub fn slow_down(&mut self, host: HostIndex, by: Duration) {
        self.hosts[host as usize].condition_mut().slow = by;
    }

    /// The wall clock of a machine jumps, either way; forward, its monotonic clock leaps too.
    pub fn jump_clock(&mut self, host: HostIndex, by_us: i64) {
        self.hosts[host as usize].condition_mut().jump(by_us);
        self.arm(host);
    }

    // ---- time goes on ----

    /// Has [`Step::Planned`] come at a time that is not over.
    pub fn plan(&mut self, at: Time, host: HostIndex, code: u32) {
        self.sequence += 1;
        let key = Key { at: at.max(self.now), target: host, source: WORLD, sequence: self.sequence };
        self.queue.push(key, Due::Plan(code));
    }

    /// Lets everything up to a moment happen. What was planned meanwhile is passed over.
    pub fn run_until(&mut self, until: Time) {
        while self.step(until).is_some() {}
    }

    /// Lets the next thing up to `until` happen; none: it is `until` now.
    pub fn step(&mut self, until: Time) -> Option<Step> {
        let Some((Key { at, target, .. }, due)) = self.queue.pop_until(until) else {
            self.now = self.now.max(until);
            return None;
        };
        self.now = at;
        Some(self.meet(target, due))
    }

    fn meet(&mut self, host: HostIndex, due: Due) -> Step {
        self.delivery = None;
        if let Due::Plan(code) = due {
            return Step::Planned { host, code };
        }
        let machine = &self.hosts[host as usize];
        if let Some(pause) = machine.pause() {
            match (pause, due) {
                (Pause::Lose, Due::Deliver(letter) | Due::Late(letter)) => self.lose(letter),
                _ => self.held.entry(host).or_default().push(due),
            }
            return Step::Nothing;
        }
        match due {
            Due::Wake(life) => return self.wake(host, life),
            Due::Deliver(letter) => {
                let slow = machine.condition.as_ref().map_or(Duration::ZERO, |condition| condition.slow);
                if slow == Duration::ZERO {
                    return self.deliver(host, letter);
                }
                self.cause(host, self.now + slow, host, Due::Late(letter));
            }
            Due::Late(letter) => return self.deliver(host, letter),
            Due::Plan(_) => {}
        }
        Step::Nothing
    }

    fn wake(&mut self, host: HostIndex, life: u32) -> Step {
        let machine = &mut self.hosts[host as usize];
        // A wake that an earlier one replaced, or of a life that is over.
        if machine.wake != self.now || machine.life != life {
            if machine.life == life && machine.wake < self.now {
                // It waited for a lid to be opened.
                machine.wake = Time::MAX;
                self.arm(host);
            }
            return Step::Nothing;
        }
        machine.wake = Time::MAX;
        if machine.deadline() > self.now {
            self.arm(host);
            return Step::Nothing;
        }
        machine.wakes_at_once += 1;
        assert!(
            machine.wakes_at_once <= WAKES_AT_ONE_INSTANT_MAX,
            "live-lock: the deadline of machine {host} is due again and again at {:?}",
            self.now,
        );
        self.give(host, Event::DeadlineReached, 3);
        let machine = &mut self.hosts[host as usize];
        if machine.wake != self.now {
            machine.wakes_at_once = 0;
        }
        Step::Handled(host)
    }

    fn deliver(&mut self, host: HostIndex, letter: u32) -> Step {
        let Letter { from, message, digest, tag } = self.letters.take(letter);
        let machine = &mut self.hosts[host as usize];
        // Another machine may stand there by now.
        if machine.overlay.is_none() || machine.tag != tag {
            self.traffic.in_vain += 1;
            return Step::Nothing;
        }
        machine.messages += 1;
        self.delivery = Some(Delivery {
            to: host,
            from: from.peer,
            incarnation: message.incarnation,
            is_answer: matches!(message.body, Body::Ack { .. }),
        });
        self.give(host, Event::Received { from, message }, digest);
        Step::Handled(host)
    }

    fn lose(&mut self, letter: u32) {
        self.letters.take(letter);
        self.traffic.in_vain += 1;
    }

    /// Puts something that a machine causes on the queue.
    fn cause(&mut self, source: HostIndex, at: Time, target: HostIndex, due: Due) {
        let key = self.hosts[source as usize].key(at, source, target);
        self.queue.push(key, due);
    }

    /// Replaces the pending wake by an earlier one.
    fn arm(&mut self, host: HostIndex) {
        let machine = &mut self.hosts[host as usize];
        if machine.deadline == Time::MAX {
            return;
        }
        let at = machine.deadline().max(self.now);
        if machine.wake <= at {
            return;
        }
        machine.wake = at;
        let life = machine.life;
        self.cause(host, at, host, Due::Wake(life));
    }

    /// Gives an event to the peer of a machine, and carries out what it answers. `digest` stands for it in the trace.
    fn give(&mut self, host: HostIndex, event: Event, digest: u64) {
        let machine = &mut self.hosts[host as usize];
        let Some(overlay) = &mut machine.overlay else { return };
        self.events += 1;
        let clock = match &machine.condition {
            Some(condition) => condition.clock(machine.started, self.now),
            None => Time::from_micros(self.now.as_micros() - machine.started.as_micros()),
        };
        let mut effects = std::mem::take(&mut self.effects);
        overlay.handle(clock, event, &mut effects);
        machine.deadline = overlay.deadline().unwrap_or(Time::MAX);
        machine.trace = mix(mix(machine.trace, self.now.as_micros() as u64), digest);
        let mut left = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => self.send(host, to.peer, message),
                Effect::Notify(notice) => {
                    left |= notice == Notice::Left;
                    let machine = &mut self.hosts[host as usize];
                    machine.trace = mix(machine.trace, notice as u64);
                }
            }
        }
        self.effects = effects;
        if left {
            self.crash(host);
        } else {
            self.arm(host);
        }
    }

    fn send(&mut self, host: HostIndex, to: PeerId, message: Message) {
        let (message, measure) = self.encode(message);
        self.traffic.note(&measure);
        let target = host_index(to);
        let machine = &mut self.hosts[host as usize];
        let Some(from) = machine.overlay.as_ref().map(|overlay| overlay.me_shared().clone()) else { return };
        machine.messages += 1;
        machine.trace = mix(mix(machine.trace, u64::from(target)), measure.digest);
        let arrivals = self.network.carry(&mut machine.network_rng, host, target);
        let Some(first) = arrivals.first else {
            self.traffic.lost += 1;
            return;
        };
        if target >= self.settings.hosts {
            self.traffic.in_vain += 1;
            return;
        }
        let (digest, tag) = (measure.digest, tag(to));
        if let Some(second) = arrivals.second {
            let letter = self.letters.insert(Letter { from: from.clone(), message: message.clone(), digest, tag });
            self.cause(host, self.now + second, target, Due::Deliver(letter));
        }
        let letter = self.letters.insert(Letter { from, message, digest, tag });
        self.cause(host, self.now + first, target, Due::Deliver(letter));
    }

    /// What arrives of a message, and how long it is under way.
    ///
    /// # Panics
    /// When encoding and decoding changes it, or its measured length is not that of its encoding.
    fn encode(&self, message: Message) -> (Message, Measure) {
        if self.settings.wire == Wire::Sizes {
            let measure = measure(&message);
            return (message, measure);
        }
        let bytes = idlewood_scheduler::Message::Overlay(message).encode();
        match idlewood_scheduler::Message::decode(&bytes) {
            Ok(idlewood_scheduler::Message::Overlay(message)) => {
                let measure = measure(&message);
                assert_eq!(measure.bytes, bytes.len() as u64, "the measured length of {message:?}");
                (message, measure)
            }
            other => panic!("a peer sends what is decoded to {other:?}"),
        }
    }
}
