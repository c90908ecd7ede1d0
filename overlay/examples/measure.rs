//! Measures the overlay by itself: many peers, one event loop, typed messages, 50 ± 10 ms links.
//!
//! `cargo run --release -p idlewood-overlay --example measure -- WHAT NODES SEED` with WHAT one of `quiet` (cost of an
//! idle grid: bytes and messages per peer and second, time per event, memory per peer, cost of a join), `crash` and
//! `leave` (time until the links of the tree are exact again), `half` and `most` (50 and 80 % crash at once), `split`
//! (partition and heal), `churn SESSION_S ANNOUNCED_PERCENT` (share of time that leaves are linked to the true root).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use idlewood_overlay::{
    Body, Config, Contact, Effect, Event, GridId, Message, Node, Notice, Overlay, PayloadCodec, PeerId, PositionKey,
    State, Time,
};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

const GRID: GridId = GridId([7; 32]);
const SECOND: Duration = Duration::from_secs(1);

enum Item {
    Deliver { to: u32, from: u32, message: Message },
    Wake { peer: u32 },
}

#[derive(Default)]
struct Machine {
    overlay: Option<Box<Overlay>>,
    incarnation: u64,
    wake: Option<Time>,
    side: bool,
    joined_at: Option<Time>,
    started_at: Time,
    /// Messages since the start.
    heard: u32,
    sent: u32,
}

struct World {
    now: Time,
    machines: Vec<Machine>,
    /// Machines in the order of the line.
    line: Vec<u32>,
    rng: ChaCha8Rng,
    queue: BinaryHeap<Reverse<(Time, u64, u32)>>,
    slab: Vec<Option<Item>>,
    free: Vec<u32>,
    serial: u64,
    events: u64,
    counts_bytes: bool,
    kinds: BTreeMap<&'static str, (u64, u64)>,
    effects: Vec<Effect>,
    joins: Vec<(f64, u32)>,
}

fn id(index: u32) -> PeerId {
    let mut bytes = *blake3::hash(&index.to_le_bytes()).as_bytes();
    bytes[28..].copy_from_slice(&index.to_le_bytes());
    PeerId(bytes)
}

fn index(peer: &PeerId) -> u32 {
    u32::from_le_bytes([peer.0[28], peer.0[29], peer.0[30], peer.0[31]])
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Ping { .. } => "ping",
        Body::Ack { set: None, .. } => "ack",
        Body::Ack { .. } => "ack with set",
        Body::Find { .. } => "find",
        Body::Found { .. } => "found",
        Body::Report(report) if report.tree.is_some() => "report with tree",
        Body::Report(_) => "report",
        Body::ReportAck(ack) if ack.root.is_some() => "report ack with root",
        Body::ReportAck(_) => "report ack",
        Body::RootChanged { .. } => "root changed",
        Body::Dead(_) => "dead",
        Body::Suspect(_) => "suspect",
        Body::Hint(_) => "hint",
        Body::Leave(_) => "leave",
        Body::Handover(_) => "handover",
    }
}

impl World {
    fn new(seed: u64, nodes: u32) -> Self {
        let mut line: Vec<u32> = (0..nodes).collect();
        line.sort_by_cached_key(|index| PositionKey::new(GRID, id(*index)));
        Self {
            now: Time::ZERO,
            machines: (0..nodes).map(|_| Machine::default()).collect(),
            line,
            rng: ChaCha8Rng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            serial: 0,
            events: 0,
            counts_bytes: false,
            kinds: BTreeMap::new(),
            effects: Vec::new(),
            joins: Vec::new(),
        }
    }

    fn push(&mut self, at: Time, item: Item) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() as u32 - 1
        });
        self.slab[slot as usize] = Some(item);
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial, slot)));
    }

    fn up(&self, index: u32) -> bool {
        let overlay = self.machines[index as usize].overlay.as_ref();
        overlay.is_some_and(|overlay| !matches!(overlay.state(), State::Leaving | State::Left))
    }

    fn somebody(&mut self) -> Option<u32> {
        for _ in 0..10_000 {
            let pick = self.rng.random_range(0..self.machines.len() as u32);
            if self.machines[pick as usize].overlay.as_ref().is_some_and(|overlay| overlay.state() == State::Member) {
                return Some(pick);
            }
        }
        (0..self.machines.len() as u32).find(|index| self.up(*index))
    }

    fn start(&mut self, index: u32) {
        let contacts: Vec<_> = (0..2).filter_map(|_| self.somebody()).filter(|contact| *contact != index).collect();
        let seed = self.rng.random();
        let machine = &mut self.machines[index as usize];
        machine.incarnation += 1;
        (machine.started_at, machine.joined_at, machine.wake) = (self.now, None, None);
        (machine.sent, machine.heard) = (0, 0);
        let me = Contact { peer: id(index), incarnation: machine.incarnation, address: "".into() };
        machine.overlay =
            Some(Box::new(Overlay::new(Config::default(), GRID, me, seed, self.now, PayloadCodec::WHOLE)));
        for contact in contacts {
            let contact = Contact { peer: id(contact), incarnation: 0, address: "".into() };
            self.feed(index, Event::Bootstrap(contact));
        }
    }

    fn crash(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        if let Some(overlay) = machine.overlay.take() {
            machine.incarnation = machine.incarnation.max(overlay.me().incarnation);
        }
    }

    fn feed(&mut self, index: u32, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        let Some(overlay) = &mut self.machines[index as usize].overlay else { return };
        overlay.handle(self.now, event, &mut effects);
        self.events += 1;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => self.transmit(index, &to, message),
                Effect::Notify(Notice::Left) => self.crash(index),
                Effect::Notify(Notice::Joined) => {
                    let machine = &mut self.machines[index as usize];
                    machine.joined_at = Some(self.now);
                    self.joins.push((self.now.since(machine.started_at).as_secs_f64(), machine.sent + machine.heard));
                }
                Effect::Notify(_) => {}
            }
        }
        self.effects = effects;
        self.arm(index);
    }

    fn arm(&mut self, index: u32) {
        let machine = &mut self.machines[index as usize];
        let Some(deadline) = machine.overlay.as_ref().and_then(|overlay| overlay.deadline()) else { return };
        let deadline = deadline.max(self.now);
        if machine.wake.is_none_or(|wake| deadline < wake) {
            machine.wake = Some(deadline);
            self.push(deadline, Item::Wake { peer: index });
        }
    }

    fn transmit(&mut self, from: u32, to: &Contact, message: Message) {
        let to = index(&to.peer);
        self.machines[from as usize].sent += 1;
        if self.counts_bytes {
            let mut bytes = Vec::new();
            ciborium::into_writer(&message, &mut bytes).expect("messages can be encoded");
            let sum = self.kinds.entry(kind(&message.body)).or_default();
            *sum = (sum.0 + 1, sum.1 + bytes.len() as u64);
        }
        let latency = Duration::from_micros(self.rng.random_range(40_000..60_000));
        self.push(self.now + latency, Item::Deliver { to, from, message });
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(Reverse((at, _, slot))) = self.queue.peek().copied() {
            if at > end {
                break;
            }
            self.queue.pop();
            self.now = at;
            let Some(item) = self.slab[slot as usize].take() else { continue };
            self.free.push(slot);
            match item {
                Item::Deliver { to, from, message } => {
                    if self.machines[to as usize].side == self.machines[from as usize].side {
                        self.machines[to as usize].heard += 1;
                        self.feed(to, Event::Received { from: id(from), message });
                    }
                }
                Item::Wake { peer } => {
                    let machine = &mut self.machines[peer as usize];
                    if machine.wake != Some(at) {
                        continue;
                    }
                    machine.wake = None;
                    if machine.overlay.as_ref().and_then(|overlay| overlay.deadline()).is_some_and(|due| due <= at) {
                        self.feed(peer, Event::DeadlineReached);
                    } else {
                        self.arm(peer);
                    }
                }
            }
        }
        self.now = end;
    }

    /// Peers whose neighbours or links differ from the tree of those that are up, by a sort and a stack; on each side
    /// of a partition.
    fn wrong(&self) -> usize {
        [false, true].into_iter().map(|side| self.wrong_on(side, true).0).sum()
    }

    /// Also the share of leaves with a path to the root. Without `strict` only links to parents are looked at.
    fn wrong_on(&self, side: bool, strict: bool) -> (usize, f64) {
        let up = |index: &u32| self.machines[*index as usize].side == side && self.up(*index);
        let line: Vec<u32> = self.line.iter().copied().filter(up).collect();
        if line.len() < 2 {
            return (0, 1.0);
        }
        let keys: Vec<_> = line.iter().map(|index| PositionKey::new(GRID, id(*index))).collect();
        let mut parents: Vec<[Option<usize>; 2]> = vec![[None; 2]; line.len()];
        let mut stack: Vec<(u16, usize)> = Vec::new();
        let prefixes: Vec<u16> = keys.windows(2).map(|pair| pair[0].common_prefix(&pair[1])).collect();
        for (gap, prefix) in prefixes.iter().enumerate() {
            let mut below = None;
            while stack.last().is_some_and(|(top, _)| top > prefix) {
                let (_, node) = stack.pop().expect("looked at");
                match stack.last().filter(|(top, _)| top > prefix) {
                    Some((_, above)) => parents[node][1] = Some(*above),
                    None => below = Some(node),
                }
            }
            if let Some(node) = below {
                parents[node][1] = Some(gap);
            }
            stack.push((*prefix, gap));
        }
        while let Some((_, node)) = stack.pop() {
            parents[node][1] = stack.last().map(|(_, above)| *above);
        }
        for (leaf, parents) in parents.iter_mut().enumerate() {
            let before = leaf.checked_sub(1).map(|gap| prefixes[gap]);
            let after = prefixes.get(leaf).copied();
            parents[0] = if before > after { leaf.checked_sub(1) } else { Some(leaf) };
        }
        let mut linked = vec![true; line.len()];
        let mut wrong = 0;
        for (place, index) in line.iter().enumerate() {
            let overlay = self.machines[*index as usize].overlay.as_ref().expect("is up");
            let peer = |place: Option<usize>| place.map(|place| id(line[place]));
            let parent = |node| overlay.parent(node).map(|contact| contact.peer);
            let links_right = parent(Node::Leaf) == peer(parents[place][0])
                && (place + 1 == line.len() || parent(Node::Router) == peer(parents[place][1]));
            let line_right = overlay.predecessor().map(|c| c.peer) == peer(place.checked_sub(1))
                && overlay.successor().map(|c| c.peer) == line.get(place + 1).map(|index| id(*index));
            let children = overlay.children();
            let full = place + 1 == line.len() || children.iter().all(Option::is_some);
            wrong += usize::from(!(links_right && line_right && (full || !strict)));
            linked[place] = place + 1 == line.len() || parent(Node::Router) == peer(parents[place][1]);
        }
        let holds = |place: usize, node: Node, child: usize| {
            let overlay = self.machines[line[place] as usize].overlay.as_ref().expect("is up");
            overlay.children().iter().flatten().any(|c| c.contact.peer == id(line[child]) && c.node == node)
        };
        // Does each leaf's path of live, acknowledged links lead to the true root?
        let mut known: Vec<Option<bool>> = vec![None; line.len()];
        let mut connected = 0;
        for leaf in 0..line.len() {
            let overlay = self.machines[line[leaf] as usize].overlay.as_ref().expect("is up");
            let Some(mut at) = parents[leaf][0] else { continue };
            if overlay.parent(Node::Leaf).map(|c| c.peer) != Some(id(line[at])) || !holds(at, Node::Leaf, leaf) {
                continue;
            }
            let mut path = Vec::new();
            let result = loop {
                if let Some(result) = known[at] {
                    break result;
                }
                path.push(at);
                match parents[at][1] {
                    None => break true,
                    Some(above) => {
                        if !linked[at] || !holds(above, Node::Router, at) {
                            break false;
                        }
                        at = above;
                    }
                }
            };
            path.into_iter().for_each(|place| known[place] = Some(result));
            connected += usize::from(result);
        }
        (wrong, connected as f64 / line.len() as f64)
    }

    fn settle(&mut self, bound: Duration) -> f64 {
        let start = self.now;
        while self.wrong() > 0 && self.now.since(start) < bound {
            self.run_for(Duration::from_millis(20).max(Duration::from_micros(self.machines.len() as u64 * 5)));
        }
        self.now.since(start).as_secs_f64()
    }

    fn grow(&mut self) {
        let nodes = self.machines.len() as u32;
        for index in 0..nodes {
            self.start(index);
            let pause = if index < 64 { 50_000 } else { 20_000_000 / u64::from(index.max(1_000)) / 4 };
            self.run_for(Duration::from_micros(pause.min(5_000)));
        }
        self.run_for(SECOND * 5);
        let grown = self.now;
        println!("grown after {grown:?}, exact after another {:.1} s", self.settle(SECOND * 120));
    }
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() * percent / 100).min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Resident memory in bytes, where the system tells.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Processor time spent so far, in seconds, where the system tells.
fn processor_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split(' ');
    fields.skip(12).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |place: usize, default: u64| arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(default);
    let what = arguments.first().map_or("quiet", String::as_str);
    let (nodes, seed) = (number(1, 1_000) as u32, number(2, 1));
    let before = resident();
    let mut world = World::new(seed, nodes);
    world.grow();
    world.run_for(SECOND * 90);
    joins(&mut world);
    println!("Overlay is {} bytes", size_of::<Overlay>());
    match what {
        "quiet" => quiet(&mut world, before),
        "crash" | "leave" => one_by_one(&mut world, what == "leave"),
        "half" | "most" => mass(&mut world, if what == "half" { 50 } else { 80 }),
        "split" => split(&mut world, number(3, 300)),
        "churn" => churn(&mut world, number(3, 14_400), number(4, 80)),
        other => panic!("{other} is not known; see the beginning of this file"),
    }
}

/// Machines that left and come back into a calm grid: how long, and how many messages to and from them until then.
fn joins(world: &mut World) {
    let leavers: Vec<u32> = (0..100).filter_map(|_| world.somebody()).collect();
    for leaver in &leavers {
        world.feed(*leaver, Event::Leave);
        world.run_for(Duration::from_millis(20));
    }
    world.run_for(SECOND * 20);
    world.joins.clear();
    for leaver in leavers {
        if world.machines[leaver as usize].overlay.is_none() {
            world.start(leaver);
            world.run_for(Duration::from_millis(100));
        }
    }
    world.run_for(SECOND * 20);
    let joins = world.joins.iter().map(|(time, messages)| (*time, f64::from(*messages)));
    let (mut times, mut messages): (Vec<f64>, Vec<f64>) = joins.unzip();
    println!("join p50 {:.2} s p99 {:.2} s", percentile(&mut times, 50), percentile(&mut times, 99));
    println!("join messages p50 {} p99 {}", percentile(&mut messages, 50), percentile(&mut messages, 99));
}

fn quiet(world: &mut World, before: u64) {
    let nodes = world.machines.len() as f64;
    world.run_for(SECOND * 300);
    println!("memory per peer {:.0} B, with the queue", resident().saturating_sub(before) as f64 / nodes);
    let (start, events) = (processor_s(), world.events);
    world.run_for(SECOND * 120);
    let (spent_s, events) = (processor_s() - start, world.events - events);
    println!(
        "{events} events, {:.0} ns each with the event queue, {:.2} M/s of processor time",
        spent_s * 1e9 / events as f64,
        events as f64 / spent_s / 1e6
    );
    world.counts_bytes = true;
    world.run_for(SECOND * 60);
    let mut sum = 0.0;
    for (kind, (count, bytes)) in &world.kinds {
        let (rate, bytes) = (*count as f64 / 60.0 / nodes, *bytes as f64 / 60.0 / nodes);
        println!("{kind:22} {rate:7.3} per peer and second {bytes:7.2} B/s");
        sum += bytes;
    }
    println!("{sum:.1} B/s per peer");
}

fn one_by_one(world: &mut World, announced: bool) {
    let mut times = Vec::new();
    for round in 0..100 {
        world.run_for(Duration::from_millis(8_000 + 137 * round));
        let Some(victim) = world.somebody() else { continue };
        if announced {
            world.feed(victim, Event::Leave);
        } else {
            world.crash(victim);
        }
        times.push(world.settle(SECOND * 60));
        world.start(victim);
        world.run_for(SECOND * 3);
        world.settle(SECOND * 60);
    }
    let mut quarter = |percent| percentile(&mut times, percent);
    println!("repair p50 {:.2} p90 {:.2} p99 {:.2} max {:.2} s", quarter(50), quarter(90), quarter(99), quarter(100));
}

fn mass(world: &mut World, percent: u32) {
    for index in 0..world.machines.len() as u32 {
        if world.rng.random_range(0..100) < percent {
            world.crash(index);
        }
    }
    println!("{percent} % at once: exact after {:.2} s", world.settle(SECOND * 300));
}

fn split(world: &mut World, apart_s: u64) {
    for machine in &mut world.machines {
        machine.side = world.rng.random();
    }
    println!("apart: exact after {:.2} s", world.settle(SECOND * 300));
    world.run_for(SECOND * apart_s as u32);
    world.machines.iter_mut().for_each(|machine| machine.side = false);
    println!("healed after {:.2} s", world.settle(SECOND * 300));
}

/// Machines come back after a tenth of a session. The last minutes are measured.
fn churn(world: &mut World, session_s: u64, announced_percent: u64) {
    let nodes = world.machines.len() as u32;
    let rate = f64::from(nodes) / session_s as f64;
    let mut starts: BinaryHeap<Reverse<(Time, u32)>> = BinaryHeap::new();
    let (warm_s, end_s) = (60.0, 240.0);
    let begin = world.now;
    let (mut next, mut sample, mut shares) = (0.0, 0.0, Vec::new());
    loop {
        let passed = world.now.since(begin).as_secs_f64();
        if passed > end_s {
            break;
        }
        next += -world.rng.random_range(1e-9..1.0_f64).ln() / rate;
        while sample < next {
            world.run_for(Duration::from_secs_f64((sample - world.now.since(begin).as_secs_f64()).max(0.0)));
            while starts.peek().is_some_and(|Reverse((at, _))| *at <= world.now) {
                let Some(Reverse((_, index))) = starts.pop() else { break };
                if world.machines[index as usize].overlay.is_none() {
                    world.start(index);
                }
            }
            if sample > warm_s {
                world.counts_bytes = true;
                shares.push(world.wrong_on(false, false).1);
            }
            sample += 1.3;
        }
        world.run_for(Duration::from_secs_f64((next - world.now.since(begin).as_secs_f64()).max(0.0)));
        let Some(victim) = world.somebody() else { continue };
        if world.rng.random_range(0..100) < announced_percent {
            world.feed(victim, Event::Leave);
        } else {
            world.crash(victim);
        }
        let away = -world.rng.random_range(1e-9..1.0_f64).ln() * session_s as f64 / 10.0;
        starts.push(Reverse((world.now + Duration::from_secs_f64(away.max(2.0)), victim)));
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    println!("path available {:.3} % of the time ({} samples)", mean * 100.0, shares.len());
    let bytes: u64 = world.kinds.values().map(|(_, bytes)| bytes).sum();
    for (kind, (_, bytes)) in &world.kinds {
        println!("{kind:22} {:7.2} B/s", *bytes as f64 / (end_s - warm_s) / f64::from(nodes));
    }
    println!("{:.1} B/s per peer", bytes as f64 / (end_s - warm_s) / f64::from(nodes));
    println!("exact {:.1} s after it ended", world.settle(SECOND * 120));
}
