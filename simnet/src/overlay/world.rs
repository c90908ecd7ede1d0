//! Machines with nothing but an overlay, links between them, and the loop that lets things happen (`steps`).
//!
//! A driver (an experiment, a test) starts, stops and disturbs machines and lets the world step; what it wants to do at
//! some moment it can plan, and the step says when that moment has come. A machine is as small as it can be: the state
//! of its peer, and a hundred bytes.

mod machine;
mod presence;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{Config, Effect, GridId, Member, Message, Overlay, PeerId, PositionKey, Time};

use super::measure::Measure;
use crate::event_queue::{EventQueue, HostIndex};
use crate::host::host_index;
use crate::network::{Network, Quality};
use crate::random::digest;
use crate::report::MessageCount;
use crate::slab::Slab;
use machine::{Host, NOWHERE, identity, tag};

/// Kinds of messages that can be told apart.
const KINDS_MAX: usize = 64;

/// Most machines of a grid whose messages are all encoded and decoded if nobody says otherwise.
const ENCODED_HOSTS_MAX: u32 = 100;

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Every message is encoded and decoded, as between agents, and the measured size held against the true one.
    Bytes,
    /// Messages as values, and their exact encoded size in the books. The trace is the same, in a third to a half of the time.
    Sizes,
}

impl Wire {
    /// Bytes in grids of up to a hundred machines.
    pub fn usual(hosts: u32) -> Self {
        if hosts > ENCODED_HOSTS_MAX { Self::Sizes } else { Self::Bytes }
    }
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
        let wire = Wire::usual(hosts);
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
        Self {
            grid: GridId(digest(settings.seed, "grid", 0)),
            config: Arc::new(settings.config.clone()),
            now: Time::ZERO,
            queue: EventQueue::default(),
            letters: Slab::default(),
            hosts: (0..settings.hosts).map(|index| Host::new(settings.seed, index)).collect(),
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
}
