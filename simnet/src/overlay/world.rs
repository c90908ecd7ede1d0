//! A world of machines that have only an overlay, the links between them, and its event loop (`steps`).
//!
//! A driver (an experiment, a test) starts, stops and disturbs machines and steps the world; it can plan its own
//! actions, and a step reports when their moment has come. A machine is small: the state of its peer, and a hundred
//! bytes.

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

/// Most machines of a grid whose messages are all encoded and decoded by default.
const ENCODED_HOSTS_MAX: u32 = 100;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Every message is encoded and decoded, as between agents, and its measured size compared with the true one.
    Bytes,
    /// As values, counted with their exact encoded size. The trace is the same, in a third to a half of the time.
    Sizes,
}

impl Wire {
    /// Bytes in grids of up to a hundred machines.
    pub fn usual(hosts: u32) -> Self {
        if hosts > ENCODED_HOSTS_MAX { Self::Sizes } else { Self::Bytes }
    }
}

/// Parameters of a world.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seed of all randomness.
    pub seed: u64,
    /// Most machines; all are down at first.
    pub hosts: u32,
    /// Settings of all peers.
    pub config: Config,
    /// Quality of all links at first.
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

/// What a starting machine remembers of its last life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Its identity and its last incarnation, which rises.
    Kept,
    /// Only its identity: the incarnation follows from the wall clock alone.
    Lost,
    /// Its identity and an incarnation before the last, with a wrong wall clock: an old copy of its disk.
    Stale,
    /// Nothing: it is another machine, with an identity of its own, at the same index of the simulation.
    Stranger,
}

/// One event of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A peer handled an event; its messages are under way.
    Handled(HostIndex),
    /// An action planned by [`World::plan`] is due.
    Planned {
        /// The machine.
        host: HostIndex,
        /// The action, in the driver's own code.
        code: u32,
    },
    /// An event that no peer noticed.
    Nothing,
}

/// A message delivered to a peer, as the world saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The receiver.
    pub to: HostIndex,
    /// The true sender.
    pub from: PeerId,
    /// The sender's incarnation, by the message.
    pub incarnation: u64,
    /// Whether it answers a ping.
    pub is_answer: bool,
}

/// Messages sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// By kind, in the order of the protocol.
    kinds: [(&'static str, MessageCount); KINDS_MAX],
    /// Lost by the links.
    pub lost: u64,
    /// Arrived at a machine that was down, had its lid shut, or was another.
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

/// A pending event.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// The deadline of a life of a peer.
    Wake(u32),
    /// A message, by its number.
    Deliver(u32),
    /// A message delayed by a slow machine.
    Late(u32),
    /// An action planned by the driver.
    Plan(u32),
}

/// A message under way.
#[derive(Clone, Debug)]
struct Letter {
    from: Member,
    message: Message,
    digest: u64,
    /// Tag of its receiver.
    tag: u64,
}

/// Machines, links and the time.
#[derive(Clone, Debug)]
pub struct World {
    settings: Settings,
    grid: GridId,
    /// Shared by all peers.
    config: Arc<Config>,
    now: Time,
    queue: EventQueue<Due>,
    letters: Slab<Letter>,
    hosts: Vec<Host>,
    /// Machines that are up and not leaving, in no particular order.
    up: Vec<HostIndex>,
    /// Pending events of machines whose lid is shut.
    deferred: BTreeMap<HostIndex, Vec<Due>>,
    network: Network,
    effects: Vec<Effect>,
    delivery: Option<Delivery>,
    traffic: Traffic,
    sequence: u64,
    events: u64,
    /// Uptime of all machines, in microseconds, until the last change.
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
            deferred: BTreeMap::new(),
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

    // ---- getters ----

    /// Simulated time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The grid's id.
    pub fn grid(&self) -> GridId {
        self.grid
    }

    /// Number of machines, up or down.
    pub fn hosts(&self) -> u32 {
        self.settings.hosts
    }

    /// Machines that are up and not leaving, in no particular order.
    pub fn up(&self) -> &[HostIndex] {
        &self.up
    }

    /// Whether a machine is up and not leaving.
    pub fn is_up(&self, host: HostIndex) -> bool {
        self.hosts[host as usize].place != NOWHERE
    }

    /// The peer of a machine that is up, even if it is leaving.
    pub fn overlay(&self, host: HostIndex) -> Option<&Overlay> {
        self.hosts[host as usize].overlay.as_deref()
    }

    /// The identity of the machine at this index, now or last.
    pub fn peer_id(&self, host: HostIndex) -> PeerId {
        identity(self.settings.seed, host, self.hosts[host as usize].identity)
    }

    /// Its place on the line.
    pub fn position(&self, host: HostIndex) -> PositionKey {
        PositionKey::new(self.grid, self.peer_id(host))
    }

    /// The machine with this identity, up or down; none if another one has replaced it.
    pub fn host_of(&self, peer: PeerId) -> Option<HostIndex> {
        let host = host_index(peer);
        (self.hosts.get(host as usize)?.tag == tag(peer)).then_some(host)
    }

    /// When the present life of a machine began.
    pub fn started(&self, host: HostIndex) -> Time {
        self.hosts[host as usize].started
    }

    /// Number of starts of a machine: identifies its present life.
    pub fn life(&self, host: HostIndex) -> u32 {
        self.hosts[host as usize].life
    }

    /// The message that the last step delivered, if any.
    pub fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_ref()
    }

    /// Messages that a machine sent or received in its present life.
    pub fn messages(&self, host: HostIndex) -> u32 {
        self.hosts[host as usize].messages
    }

    /// Messages sent so far.
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

    /// To be called before the number of machines that are up changes.
    fn count_time_up(&mut self) {
        let us = self.now.as_micros() - self.up_since.as_micros();
        self.up_us += us.unsigned_abs() * self.up.len() as u64;
        self.up_since = self.now;
    }

    /// Number of pending events.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// One hash over those of all machines, in their order.
    pub fn trace_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for host in &self.hosts {
            hasher.update(&host.trace.to_le_bytes());
        }
        hasher.finalize()
    }
}
