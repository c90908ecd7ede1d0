//! A tiny deterministic world: many overlays, one event loop, messages that travel as bytes.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{
    Body, Config, Contact, Effect, Event, GridId, Message, Node, Notice, Overlay, PayloadCodec, PeerId, PositionKey,
    State, Time,
};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

pub(crate) mod oracle;

/// Omits the common beginning of both payloads; unpacks to garbage with another base. Bytes are inverted on the way, so
/// that packed bytes cannot be mistaken for the payload.
pub(crate) const CODEC: PayloadCodec = PayloadCodec {
    pack: |base, new| {
        let same = |base: &[u8]| base.iter().zip(new).take_while(|(one, other)| one == other).count().min(255);
        let same = base.map_or(0, same);
        let packed = [&[same as u8], &new[same..]].concat().iter().map(|byte| !byte).collect::<Vec<_>>();
        (base.is_none() || packed.len() <= new.len()).then_some(packed)
    },
    unpack: |base, bytes| {
        let bytes: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let (same, tail) = bytes.split_first()?;
        Some([base.unwrap_or_default().get(..usize::from(*same))?, tail].concat())
    },
};

pub(crate) const GRID: GridId = GridId([7; 32]);

/// One machine. `overlay` is none while it is down.
pub(crate) struct Machine {
    pub(crate) id: PeerId,
    pub(crate) incarnation: u64,
    pub(crate) overlay: Option<Overlay>,
    /// Its overlay at the completion of its leave.
    left: Option<Overlay>,
    pub(crate) notices: Vec<Notice>,
    /// Machines of different sides do not hear each other.
    pub(crate) side: u8,
    /// A closed lid: the machine does nothing, and loses the messages sent to it.
    pub(crate) asleep: bool,
    wake: Option<Time>,
}

enum Item {
    Deliver { to: usize, from: PeerId, bytes: Vec<u8> },
    Wake { machine: usize },
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) machines: Vec<Machine>,
    /// Share of messages that vanish, in per mille.
    pub(crate) loss_permille: u32,
    /// Share of messages that arrive twice, in per mille.
    pub(crate) duplicated_permille: u32,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_by_kind: BTreeMap<String, (u64, u64)>,
    pub(crate) config: Config,
    /// Messages with receiver and sender, while a test records them.
    pub(crate) recorded: Option<Vec<(usize, PeerId, Message)>>,
    rng: ChaCha8Rng,
    queue: BTreeMap<(Time, u64), Item>,
    serial: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Time::ZERO,
            machines: Vec::new(),
            loss_permille: 0,
            duplicated_permille: 0,
            bytes_sent: 0,
            bytes_by_kind: BTreeMap::new(),
            config: Config::default(),
            recorded: None,
            rng: ChaCha8Rng::seed_from_u64(seed),
            queue: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(crate) fn pick(&mut self, below: usize) -> usize {
        self.rng.random_range(0..below.max(1))
    }

    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.machines.len()).filter(|index| self.machines[*index].is_up()).collect()
    }

    /// Starts a machine that joins through `contact`, or alone.
    pub(crate) fn start(&mut self, contact: Option<usize>) -> usize {
        let id = PeerId(self.rng.random());
        self.start_as(id, contact)
    }

    pub(crate) fn start_as(&mut self, id: PeerId, contact: Option<usize>) -> usize {
        self.machines.push(Machine {
            id,
            incarnation: 0,
            overlay: None,
            left: None,
            notices: Vec::new(),
            side: 0,
            asleep: false,
            wake: None,
        });
        let index = self.machines.len() - 1;
        self.restart(index, contact);
        index
    }

    /// Starts a machine that is down in a new life.
    pub(crate) fn restart(&mut self, index: usize, contact: Option<usize>) {
        let seed = self.rng.random();
        let machine = &mut self.machines[index];
        machine.incarnation += 1;
        let me = Contact { peer: machine.id, incarnation: machine.incarnation, address: "".into(), nonce: None };
        let mut overlay = Overlay::new(self.config.clone(), GRID, me, seed, self.now, CODEC);
        let mut effects = Vec::new();
        publish(self.now, &mut overlay, &mut effects);
        machine.overlay = Some(overlay);
        self.carry_out(index, effects);
        if let Some(contact) = contact {
            let first = Contact { peer: self.machines[contact].id, incarnation: 0, address: "".into(), nonce: None };
            self.feed(index, Event::Bootstrap(first));
        }
    }

    /// Brings a machine back that is leaving or left.
    pub(crate) fn come_back(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        machine.notices.clear();
        let mut overlay = machine.overlay.take().or_else(|| machine.left.take()).expect("it left");
        let mut effects = Vec::new();
        overlay.handle(self.now, Event::Return, &mut effects);
        publish(self.now, &mut overlay, &mut effects);
        machine.overlay = Some(overlay);
        self.carry_out(index, effects);
    }

    /// Wakes a machine that was asleep.
    pub(crate) fn rouse(&mut self, index: usize) {
        self.machines[index].asleep = false;
        self.machines[index].wake = None;
        self.feed(index, Event::DeadlineReached);
    }

    pub(crate) fn crash(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        if let Some(overlay) = &machine.overlay {
            machine.incarnation = machine.incarnation.max(overlay.me().incarnation);
        }
        machine.overlay = None;
    }

    pub(crate) fn feed(&mut self, index: usize, event: Event) {
        let Some(overlay) = &mut self.machines[index].overlay else { return };
        let mut effects = Vec::new();
        overlay.handle(self.now, event, &mut effects);
        self.carry_out(index, effects);
        self.check_safety(index);
    }

    pub(crate) fn carry_out(&mut self, index: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.transmit(index, to.peer, &message),
                Effect::Notify(notice) => self.machines[index].notices.push(notice),
            }
        }
        let machine = &mut self.machines[index];
        if machine.notices.last() == Some(&Notice::Left) {
            assert_eq!(machine.overlay.as_ref().map(Overlay::state), Some(State::Left));
            machine.incarnation =
                machine.incarnation.max(machine.overlay.as_ref().map_or(0, |left| left.me().incarnation));
            machine.left = machine.overlay.take();
            return;
        }
        if let Some(deadline) = machine.overlay.as_ref().and_then(Overlay::deadline)
            && machine.wake.is_none_or(|wake| deadline < wake)
        {
            machine.wake = Some(deadline.max(self.now));
            let at = deadline.max(self.now);
            self.push(at, Item::Wake { machine: index });
        }
    }

    fn transmit(&mut self, from: usize, to: PeerId, message: &Message) {
        if let Some(recorded) = &mut self.recorded {
            recorded.push((from, to, message.clone()));
        }
        let mut bytes = Vec::new();
        ciborium::into_writer(message, &mut bytes).expect("messages can be encoded");
        self.bytes_sent += bytes.len() as u64;
        let kind = format!("{:?}", message.body);
        let kind = kind.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
        let sum = self.bytes_by_kind.entry(kind).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes.len() as u64);
        if self.rng.random_range(0..1000) < self.loss_permille {
            return;
        }
        let Some(target) = self.machines.iter().position(|machine| machine.id == to) else { return };
        let latency = Duration::from_micros(self.rng.random_range(10_000..100_000));
        let from = self.machines[from].id;
        if self.duplicated_permille > 0 && self.rng.random_range(0..1000) < self.duplicated_permille {
            self.push(self.now + latency * 3, Item::Deliver { to: target, from, bytes: bytes.clone() });
        }
        self.push(self.now + latency, Item::Deliver { to: target, from, bytes });
    }

    fn push(&mut self, at: Time, item: Item) {
        self.serial += 1;
        self.queue.insert((at, self.serial), item);
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((at, _), item) = entry.remove_entry();
            self.now = at;
            match item {
                Item::Deliver { to, from, bytes } => self.deliver(to, from, &bytes),
                Item::Wake { machine } => self.wake(machine),
            }
        }
        self.now = end;
    }

    fn deliver(&mut self, to: usize, from: PeerId, bytes: &[u8]) {
        let sender_side = self.machines.iter().find(|machine| machine.id == from).map(|machine| machine.side);
        if sender_side == Some(self.machines[to].side) && !self.machines[to].asleep {
            let message: Message = ciborium::from_reader(bytes).expect("own messages can be decoded");
            self.feed(to, Event::Received { from: from.into(), message });
        }
    }

    fn wake(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        if machine.asleep {
            return;
        }
        if machine.wake.is_some_and(|wake| wake <= self.now) {
            machine.wake = None;
        }
        let Some(deadline) = machine.overlay.as_ref().and_then(Overlay::deadline) else { return };
        if deadline <= self.now {
            self.feed(index, Event::DeadlineReached);
            let next = self.machines[index].overlay.as_ref().and_then(Overlay::deadline);
            assert!(next.is_none_or(|next| next > self.now), "a deadline that was served is not due again");
        } else {
            self.carry_out(index, Vec::new());
        }
    }

    /// Runs until the distributed tree is the oracle's; how long that took, or what is wrong after `bound`.
    pub(crate) fn settle(&mut self, bound: Duration) -> Result<Duration, String> {
        let start = self.now;
        loop {
            let difference = oracle::difference(self);
            match difference {
                None => return Ok(self.now.since(start)),
                Some(difference) if self.now.since(start) >= bound => {
                    return Err(format!("after {bound:?} at {:?}: {difference}\n{}", self.now, self.describe()));
                }
                Some(_) => self.run_for(Duration::from_millis(100)),
            }
        }
    }

    /// All that matters about every peer, in the order of the line, for failing tests.
    fn describe(&self) -> String {
        let mut up: Vec<_> = self.machines.iter().filter_map(|machine| machine.overlay.as_ref()).collect();
        up.sort_by_key(|overlay| PositionKey::new(GRID, overlay.me().peer));
        let lines = up.iter().map(|overlay| {
            let children = overlay.children().map(|child| child.map(|child| (child.contact, child.node, child.count)));
            let root = overlay.root().map(|root| (&root.contact, root.stamp, root.count, root.height));
            let parents = [Node::Leaf, Node::Router].map(|node| (overlay.parent(node), overlay.depth(node)));
            let near = (overlay.predecessor(), overlay.successor());
            format!(
                "{:?} {:?} near {near:?} up {parents:?} down {children:?} root {root:?}\n",
                overlay.me(),
                overlay.state()
            )
        });
        lines.collect()
    }

    /// Invariants that hold after every step (I2, I4, I5, and the bounds that `overlay` states).
    fn check_safety(&self, index: usize) {
        let Some(overlay) = &self.machines[index].overlay else { return };
        let key = |contact: &Contact| PositionKey::new(GRID, contact.peer);
        let me = key(overlay.me());
        let keys: Vec<_> = overlay.neighbours().map(key).collect();
        let below: Vec<_> = keys.iter().take_while(|key| **key < me).collect();
        let above: Vec<_> = keys.iter().skip(below.len()).collect();
        assert!(below.windows(2).all(|pair| pair[0] > pair[1]), "predecessors go down");
        assert!(above.iter().all(|key| **key > me), "successors are above, and we are not our own neighbour");
        assert!(above.windows(2).all(|pair| pair[0] < pair[1]), "successors go up");
        assert!(below.len() <= self.config.leaf_set_side_len && above.len() <= self.config.leaf_set_side_len);
        if let [Some(left), Some(right)] = overlay.children() {
            assert_ne!((left.contact.peer, left.node), (right.contact.peer, right.node));
        }
        let (sizes, config) = (overlay.sizes(), &self.config);
        assert!(sizes.fingers <= (config.fingers_per_bucket * 65).max(32), "{sizes:?}");
        assert!(sizes.heard_of <= 64 && sizes.probes <= 256 && sizes.graves <= config.graveyard_len, "{sizes:?}");
        self.check_no_cycle(index);
    }

    /// Follows the links that both ends agree on; they end.
    fn check_no_cycle(&self, index: usize) {
        let (mut at, mut node, mut steps) = (index, Node::Leaf, 0);
        loop {
            let Some(overlay) = &self.machines[at].overlay else { return };
            let Some(parent) = overlay.parent(node) else { return };
            let Some(next) = self.machines.iter().position(|machine| machine.id == parent.peer) else { return };
            let Some(above) = &self.machines[next].overlay else { return };
            let me = self.machines[at].id;
            if !above.children().iter().flatten().any(|child| child.contact.peer == me && child.node == node) {
                return;
            }
            (at, node, steps) = (next, Node::Router, steps + 1);
            assert!(steps <= 256, "links lead upwards");
        }
    }
}

/// The machines that are up, in the order of the line.
pub(crate) fn in_order(world: &World) -> Vec<usize> {
    let mut line = world.alive();
    line.sort_by_key(|index| PositionKey::new(GRID, world.machines[*index].id));
    line
}

/// A message of `sender`, with its address.
pub(crate) fn message(sender: &Contact, body: Body) -> Message {
    Message { grid: GRID.tag(), incarnation: sender.incarnation, address: Some(sender.address.clone()), body }
}

impl Machine {
    pub(crate) fn is_up(&self) -> bool {
        self.overlay.as_ref().is_some_and(|overlay| !matches!(overlay.state(), State::Leaving | State::Left))
    }
}

/// Publishes as the scheduler would; payloads name their origin, so that tests can trace them.
pub(crate) fn publish(now: Time, overlay: &mut Overlay, effects: &mut Vec<Effect>) {
    let id = overlay.me().peer;
    overlay.publish(now, Node::Leaf, payload(id, Node::Leaf), effects);
    overlay.publish(now, Node::Router, payload(id, Node::Router), effects);
    overlay.publish_root(now, id.0.to_vec(), effects);
}

pub(crate) fn payload(peer: PeerId, node: Node) -> Vec<u8> {
    [&peer.0[..], format!("{node:?}").as_bytes()].concat()
}
