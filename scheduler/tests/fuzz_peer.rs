//! Hostile peers, and hostile bytes for the decoders of messages and records.
//!
//! A case is a string of bytes that is read as a sequence of events: messages of all kinds from a few machines, the
//! peer's own acts, time, restarts. So a case is mutated as any input, and what fails is a file. A case that takes long
//! leads nowhere: it ends with its bytes.
//!
//! A run of some minutes:
//! `IDLEWOOD_FUZZ_SECONDS=600 cargo test --release -p idlewood-scheduler --test fuzz_peer -- --ignored --nocapture minutes`.
//! `IDLEWOOD_FUZZ_SEED` picks another one. What fails is written to `tests/corpus_peer/` (name `crash-…`), where the everyday
//! test finds it.
#![allow(clippy::disallowed_methods, reason = "a test that runs for a given time")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use idlewood_overlay::{
    Body, Contact, GridId, Handover, HandoverChild, Leave, Member, Node, Payload, PeerId, PositionKey, Report,
    ReportAck, RootInfo, Side, Span, Subtree, Time, Verdict, WallTime,
};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::summary::Summary;
use idlewood_scheduler::{
    Approval, Asker, BagHeader, BagId, BlobId, Change, Checkpoint, Config, DeclineReason, Effect, Event, Finished,
    Message, Path, Peer, Record, Replication, Request, Sizes, SmallOutput, Speaker, Submission, TaskId, TaskOutcome,
    TaskResult,
};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

const GRID: GridId = GridId([9; 32]);
const START: WallTime = WallTime(1_700_000_000_000_000);
const ME: u8 = 1;
/// Most that one event may lead to, together with what the disk answers. A message of 512 results leads to as many
/// fetches; our choice: several times that.
const EFFECTS_MAX: usize = 4096;
/// Most that a peer may want to be woken within a second of its time.
const WAKES_PER_S_MAX: usize = 500;
/// Longest case.
const CASE_BYTES_MAX: usize = 4096;

/// The bytes of a case, read as numbers; 0 behind the end.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn flag(&mut self) -> bool {
        self.byte().is_multiple_of(2)
    }

    /// Small numbers, and those at the edges.
    fn number(&mut self) -> u64 {
        match self.byte() {
            250 => u64::from(self.byte()) << 32,
            251 => 1 << 40,
            252 => u64::MAX - u64::from(self.byte()),
            253 => u64::from(u32::MAX),
            254 => i64::MAX as u64,
            255 => u64::MAX,
            small => u64::from(small % 16),
        }
    }

    fn real(&mut self) -> f64 {
        match self.byte() {
            245 => f64::NAN,
            246 => f64::INFINITY,
            247 => -1.0,
            248 => 0.0,
            249 => f64::MIN_POSITIVE,
            250 => 1e-9,
            251 => 1e18,
            252 => f64::MAX,
            253 => 1e300,
            other => f64::from(other) * 10.0 + 1.0,
        }
    }

    fn time(&mut self) -> Duration {
        match self.below(6) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(self.number() % 1000),
            2 => Duration::from_secs(self.number() % 100),
            3 => Duration::from_secs(90 * 86_400),
            4 => Duration::new(u64::MAX, 999_999_999),
            _ => Duration::from_micros(self.number()),
        }
    }

    /// A machine: this one, or one of seven others.
    fn peer(&mut self) -> PeerId {
        PeerId([self.below(8) + ME; 32])
    }

    fn contact(&mut self) -> Contact {
        let address = if self.flag() { "/a" } else { "/ip4/10.0.0.1/tcp/1" };
        Contact { peer: self.peer(), incarnation: self.number(), address: address.into(), nonce: None }
    }

    /// Reads as much as a contact, so that a case means the same where a speaker takes the place of one.
    fn speaker(&mut self) -> Speaker {
        (&self.contact()).into()
    }

    fn member(&mut self) -> Member {
        self.contact().into()
    }

    fn members(&mut self) -> Vec<Member> {
        (0..self.below(10)).map(|_| self.member()).collect()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flag() { Some(make(self)) } else { None }
    }

    fn bag(&mut self) -> BagId {
        BagId([self.below(4); 32])
    }

    fn header(&mut self) -> BagHeader {
        BagHeader {
            id: self.bag(),
            submitter: self.contact(),
            tasks: self.number(),
            task_mops: self.real(),
            application_size_mops: self.real(),
            declared: self.flag(),
        }
    }

    fn ranges(&mut self) -> IntervalSet {
        let mut set = IntervalSet::new();
        for _ in 0..self.below(5) {
            let start = self.number();
            set.insert(start..start.saturating_add(self.number()));
        }
        if self.below(32) == 0 {
            (0..u64::from(self.byte()) * 20).for_each(|index| _ = set.insert_index(index * 2));
        }
        set
    }

    fn result(&mut self) -> TaskResult {
        let output_bytes = self.number();
        let content = if self.below(4) == 0 { SmallOutput::new(&vec![1; output_bytes.min(99) as usize]) } else { None };
        TaskResult {
            index: self.number(),
            attempt: self.number() as u32,
            success: self.flag(),
            crashed: self.flag(),
            unfinished: self.below(4) == 0,
            output: BlobId([self.byte(); 32]),
            output_bytes,
            content,
            work_mops: self.real(),
            exit_code: None,
            receipt: None,
        }
    }

    fn node(&mut self) -> Node {
        if self.flag() { Node::Leaf } else { Node::Router }
    }

    fn path(&mut self) -> Path {
        (0..self.below(6))
            .fold(Path::default(), |path, _| path.down(if self.flag() { Side::Left } else { Side::Right }))
    }

    /// A summary, which may lie, or what is none.
    fn payload(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => Vec::new(),
            1 => Summary::unavailable().encode(),
            2 => {
                let mut bytes = Summary::empty().encode();
                let at = usize::from(self.byte()) % bytes.len();
                bytes[at] ^= self.byte();
                bytes
            }
            _ => (0..self.byte()).map(|_| self.byte()).collect(),
        }
    }

    fn load(&mut self) -> Payload {
        Payload::new(self.number(), self.maybe(Self::number), self.payload())
    }

    fn subtree(&mut self) -> Subtree {
        let span =
            Span { lo: self.maybe(Self::member), l: self.member(), r: self.member(), ro: self.maybe(Self::member) };
        Subtree { span, count: self.number(), height: self.number() as u32 }
    }

    fn root(&mut self) -> RootInfo {
        RootInfo {
            contact: self.member(),
            stamp: self.number(),
            count: self.number(),
            height: self.number() as u32,
            payload: self.payload(),
        }
    }

    fn body(&mut self) -> Body {
        let nonce = self.number() as u32;
        match self.below(13) {
            0 => Body::Ping { nonce, mine: self.number() as u32, seen: self.number() as u32 },
            1 => Body::Ack { nonce, mine: 1, set: self.maybe(Self::members), ask: self.number() as u32 },
            2 => Body::Find { nonce, key: PositionKey([self.byte(); 32]) },
            3 => Body::Found { nonce, near: self.members() },
            4 | 5 => Body::Report(Report {
                node: self.node(),
                version: self.number(),
                tree: self.maybe(|source| Box::new(source.subtree())),
                load: self.maybe(Self::load),
                root: nonce,
            }),
            6 => Body::ReportAck(ReportAck {
                node: self.node(),
                version: self.number(),
                verdict: match self.below(3) {
                    0 => Verdict::Linked { load: self.number(), depth: self.maybe(|source| source.number() as u32) },
                    1 => Verdict::Unknown,
                    _ => Verdict::Refused { pred: self.maybe(Self::member), succ: self.maybe(Self::member) },
                },
                root: self.maybe(|source| source.root().into()),
                edition: nonce,
            }),
            7 => Body::RootChanged {
                node: self.node(),
                root: self.maybe(|source| source.root().into()),
                depth: self.maybe(|source| source.number() as u32),
                edition: nonce,
            },
            8 => Body::Dead(self.member()),
            9 => Body::Suspect(self.member()),
            10 => Body::Hint(self.members()),
            11 => Body::Leave(Leave { near: self.members(), ends: [self.flag(), self.flag()] }),
            _ => {
                let child = |source: &mut Self| HandoverChild {
                    contact: source.member(),
                    node: source.node(),
                    version: source.number(),
                    tree: source.subtree(),
                    load: source.load(),
                };
                Body::Handover(Handover { children: (0..self.below(4)).map(|_| child(self)).collect() })
            }
        }
    }

    fn message(&mut self) -> Message {
        match self.below(16) {
            0..5 => Message::Overlay(idlewood_overlay::Message {
                grid: GRID.tag(),
                incarnation: self.number(),
                address: self.maybe(|_| "/a".into()),
                body: self.body(),
            }),
            5..8 => {
                let mut request = Request {
                    bag: self.header(),
                    number: self.number(),
                    attempt: self.number() as u32,
                    ranges: self.ranges(),
                    age: self.time(),
                    path: self.path(),
                    climbed: self.number() as u16,
                    machines: self.number() as u32,
                    link_kb_s: self.number() as u32,
                    leads: self.flag(),
                    ticket: 0,
                    acting: None,
                    checkpoints: self
                        .checkpoints()
                        .into_iter()
                        .filter_map(|(index, kept)| Some((index, kept?)))
                        .collect(),
                };
                request.ticket = request.number as u32 % 4;
                Message::Request { request, node: self.node(), climbing: self.flag() }
            }
            8 => Message::Holding {
                bag: self.bag(),
                executor: self.speaker(),
                version: self.number(),
                attempt: self.number() as u32,
                ranges: self.ranges(),
                finished: self.ranges(),
            },
            9 | 10 => Message::Lease {
                bag: self.bag(),
                version: self.number(),
                submitter: self.maybe(Self::speaker),
                term: self.time(),
                drop: self.ranges(),
                rest: self.time(),
                key: self.maybe(|source| [source.number() as u8; 32].into()),
                sizes: self.maybe(|source| {
                    let BagHeader { task_mops, application_size_mops, declared, .. } = source.header();
                    Sizes { task_mops, application_size_mops, declared }
                }),
            },
            11 => {
                let bags = (0..self.below(5)).map(|_| (self.bag(), self.number())).collect();
                if self.flag() {
                    Message::Renewal { executor: self.speaker(), bags }
                } else {
                    Message::Renewed { bags, term: self.time() }
                }
            }
            12 => {
                let (contact, speed_mops, stretch) = (self.contact(), self.real(), self.real());
                let slots = (speed_mops.to_bits() % 2048) as u32;
                let asker = Asker { contact, speed_mops, slots, stretch };
                let (node, climbing, climbed) = (self.node(), self.flag(), self.number() as u16);
                Message::Ask { asker, node, climbing, climbed, ticket: u32::from(climbed) % 4 }
            }
            13 => {
                Message::Offer { bag: self.bag(), executor: self.speaker(), ranges: self.ranges(), to: self.contact() }
            }
            14 => Message::Results {
                bag: self.bag(),
                executor: self.speaker(),
                results: (0..self.below(5)).map(|_| self.result()).collect(),
                signature: None,
            },
            _ => {
                let (bag, attempt, indices) = (self.bag(), self.number() as u32, self.ranges());
                if indices.is_empty() {
                    Message::Ticket { ticket: attempt }
                } else {
                    Message::ResultsAck { bag, attempt, indices }
                }
            }
        }
    }

    fn checkpoints(&mut self) -> BTreeMap<u64, Option<Checkpoint>> {
        let checkpoint = |source: &mut Self| Checkpoint { blob: BlobId([source.byte(); 32]), bytes: source.number() };
        (0..self.below(3)).map(|_| (self.number(), self.maybe(checkpoint))).collect()
    }

    fn outcome(&mut self) -> TaskOutcome {
        match self.below(4) {
            0 => TaskOutcome::Stopped,
            1 => TaskOutcome::NotStarted { retry_after: Duration::from_secs(u64::from(self.byte())) },
            _ => TaskOutcome::Finished(Finished {
                success: self.flag(),
                crashed: self.flag(),
                output: BlobId([1; 32]),
                output_bytes: 1,
                content: if self.flag() { SmallOutput::new(&[1]) } else { None },
                work_mops: f64::from(self.byte()),
                exit_code: self.flag().then_some(0),
            }),
        }
    }
}

/// One peer, its disk, and what it asked its driver for. The driver is honest, the others are not.
struct Host {
    peer: Peer,
    now: Time,
    disk: BTreeMap<Vec<u8>, Record>,
    /// Writes that the disk has not answered yet.
    writes: VecDeque<idlewood_scheduler::Ticket>,
    places: Vec<Option<TaskId>>,
    fetches: VecDeque<TaskId>,
    measures: VecDeque<BagId>,
    /// Bags to be authorised.
    authorising: VecDeque<BagId>,
    /// Bags whose checkpoints are to be packed.
    packing: VecDeque<(u64, BagId)>,
    /// Whether there is no room for messages, and the messages returned since.
    refuses: bool,
    unsent: VecDeque<(Member, Message)>,
    refused: BTreeSet<PeerId>,
}

fn config() -> Config {
    Config { slots: 2, ..Config::default() }
}

fn restored(now: Time, records: impl IntoIterator<Item = Record>) -> Peer {
    let me = Contact { peer: PeerId([ME; 32]), incarnation: 3, address: "/a".into(), nonce: None };
    Peer::restore(config(), GRID, me, 1, now, START, records).expect("what it wrote it can read")
}

impl Host {
    fn new() -> Self {
        Self {
            peer: restored(Time::ZERO, []),
            now: Time::ZERO,
            disk: BTreeMap::new(),
            writes: VecDeque::new(),
            places: vec![None; config().places() as usize],
            fetches: VecDeque::new(),
            measures: VecDeque::new(),
            authorising: VecDeque::new(),
            packing: VecDeque::new(),
            refuses: false,
            unsent: VecDeque::new(),
            refused: BTreeSet::new(),
        }
    }

    fn give(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.peer.handle(self.now, event, &mut effects);
        assert!(effects.len() <= EFFECTS_MAX, "one event led to {} effects", effects.len());
        for effect in effects {
            match effect {
                Effect::Persist { ticket, changes } => {
                    for change in changes {
                        match change {
                            Change::Put(record) => {
                                let bytes = record.encode();
                                let read = Record::decode(&bytes).ok();
                                assert_eq!(read.as_ref(), Some(&record), "what is written can be read");
                                self.disk.insert(record.key().to_bytes(), record);
                            }
                            Change::Delete(key) => {
                                self.disk.remove(&key.to_bytes());
                            }
                        }
                    }
                    self.writes.push_back(ticket);
                }
                Effect::Send { to, message } => {
                    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message), "what is sent can be read");
                    if self.refuses && !matches!(message, Message::Overlay(_)) {
                        self.refused.insert(to.peer);
                        self.unsent.push_back((to, message));
                    }
                }
                Effect::StartTask { place, task, .. } => {
                    let place = &mut self.places[place as usize];
                    assert_eq!(place.replace(task), None, "a place has one task");
                }
                Effect::StopTask { place, task }
                | Effect::FreezeTask { place, task }
                | Effect::ThawTask { place, task } => {
                    assert!(self.places[place as usize].is_none_or(|there| there == task), "another task is there");
                }
                Effect::FetchOutput { task, .. } => self.fetches.push_back(task),
                Effect::MeasureTask { bag } => self.measures.push_back(bag),
                Effect::Authorise { bag } => self.authorising.push_back(bag.id),
                Effect::KeepCheckpoints { stop, bag, .. } => self.packing.push_back((stop, bag)),
                // It neither appoints nor keeps.
                Effect::SignAppointment { .. } | Effect::KeepFiles { .. } | Effect::ForgetFiles { .. } => {}
                Effect::Notify(_) | Effect::SuspendTasks | Effect::ResumeTasks => {}
            }
        }
    }

    /// Most bags are approved, a step after they came.
    fn authorise(&mut self) {
        while let Some(bag) = self.authorising.pop_front() {
            // Some are fresh, some old, and some without a date.
            let ages = [Duration::ZERO, Duration::from_secs(599), Duration::from_secs(86_400), Duration::MAX];
            let approval = Approval { signed_ago: ages[usize::from(bag.0[0] % 4)], at_hand: bag.0[1] % 2 == 0 };
            let verdict = if bag.0[0] % 8 == 7 { Err(DeclineReason::Role) } else { Ok(approval) };
            self.give(Event::Authorised { bag, verdict });
        }
    }

    fn write(&mut self) {
        while let Some(ticket) = self.writes.pop_front() {
            self.give(Event::Persisted(ticket));
        }
        for came_back in 0.. {
            assert!(came_back < 10_000, "it says the same again and again though there is no room");
            let Some((to, message)) = self.unsent.pop_front() else { break };
            self.give(Event::Unsent { to, message });
        }
    }

    /// There is room again, or none.
    fn change_room(&mut self) {
        self.refuses = !self.refuses;
        if !self.refuses {
            self.write();
            std::mem::take(&mut self.refused).into_iter().for_each(|peer| self.give(Event::Room(peer)));
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let wakes_max = WAKES_PER_S_MAX * (1 + time.as_secs() as usize);
        for _ in 0..wakes_max {
            match self.peer.deadline().filter(|&deadline| deadline <= end) {
                Some(deadline) => self.now = deadline.max(self.now),
                None => {
                    self.now = end;
                    return;
                }
            }
            self.give(Event::DeadlineReached);
            self.write();
        }
        panic!("it wanted to be woken {wakes_max} times in {time:?}");
    }

    fn restart(&mut self) {
        self.peer = restored(self.now, self.disk.values().cloned());
        self.writes.clear();
        self.fetches.clear();
        self.measures.clear();
        self.authorising.clear();
        self.packing.clear();
        self.unsent.clear();
        self.places.fill(None);
    }

    /// What the driver does by itself at this step.
    fn act(&mut self, source: &mut Source) {
        self.authorise();
        match source.below(16) {
            14 => {
                if let Some((stop, bag)) = self.packing.pop_front() {
                    let checkpoints = source.checkpoints();
                    self.give(Event::CheckpointsKept { stop, bag, checkpoints });
                }
            }
            15 if source.flag() => self.change_room(),
            15 => self.give(Event::Vacate),
            0 | 1 => self.pass(Duration::from_millis(u64::from(source.byte()) * 10)),
            2 => self.pass(Duration::from_secs(u64::from(source.byte()) % 64)),
            3 => {
                let place = usize::from(source.byte()) % self.places.len();
                if let Some(task) = self.places[place].take() {
                    self.give(Event::TaskEnded { task, outcome: source.outcome() });
                }
            }
            4 => {
                if let Some(task) = self.fetches.pop_front() {
                    let checkpoint = source.checkpoints().into_values().flatten().next();
                    let end = source.byte();
                    let put_off = end & 3 == 1;
                    let fetched = Event::Fetched { task, here: end.is_multiple_of(2), checkpoint };
                    self.give(if put_off { Event::FetchPutOff { task } } else { fetched });
                }
            }
            5 => {
                if let Some(bag) = self.measures.pop_front() {
                    let result =
                        source.maybe(Source::result).map(|result| TaskResult { index: 0, work_mops: 1.0, ..result });
                    self.give(Event::Measured { bag, task_mops: f64::from(source.byte()) + 1.0, result });
                }
            }
            6 => {
                let submission = Submission {
                    id: source.bag(),
                    tasks: u64::from(source.byte()) + 1,
                    task_mops: source.maybe(|source| f64::from(source.byte()) + 1.0),
                    retries_max: 2,
                    replication: [(1, 1, 0), (3, 2, 0), (2, 2, 1), (4, 3, 5)]
                        .map(|(replicas, quorum, recheck)| Replication { replicas, quorum, recheck })
                        [usize::from(source.below(4))],
                };
                if self.peer.check(&submission).is_ok() {
                    self.give(Event::Submitted(submission));
                }
            }
            7 => self.give(Event::OwnerReturned { stands_still: source.flag() }),
            8 => self.give([Event::OwnerLeft, Event::DiskFull(source.flag())][usize::from(source.below(2))].clone()),
            9 => self.give(Event::ConnectionLost(source.peer())),
            10 => self.give(Event::Bootstrap(source.contact())),
            11 => self.give([Event::Leave, Event::Return][usize::from(source.below(2))].clone()),
            12 => {
                let bag = source.bag();
                let events = [Event::Cancelled(bag), Event::Rerun { bag, tasks: source.ranges() }, Event::Removed(bag)];
                self.give(events[usize::from(source.below(3))].clone());
            }
            _ => self.restart(),
        }
    }
}

/// Reads a case as events; how many there were.
fn play(case: &[u8]) -> usize {
    let mut source = Source(&case[..case.len().min(CASE_BYTES_MAX)]);
    let mut host = Host::new();
    let mut events = 0;
    while !source.0.is_empty() {
        match source.byte() % 4 {
            // Through its bytes, as all that comes from others.
            0..3 => {
                let from = source.peer();
                if let Ok(message) = Message::decode(&source.message().encode())
                    && from.0[0] != ME
                {
                    host.give(Event::Received { from, message });
                }
            }
            _ => host.act(&mut source),
        }
        if events % 3 != 0 {
            host.write();
        }
        events += 1;
    }
    host.pass(Duration::from_secs(5));
    let sizes = host.peer.overlay_view().sizes();
    assert!(sizes.leaf_set <= 16 && sizes.heard_of <= 64 && sizes.probes <= 256 && sizes.graves <= 96, "{sizes:?}");
    host.restart();
    host.pass(Duration::from_secs(1));
    events
}

/// Bytes of messages and records, mutated: what is read must be what was written of it.
fn decode(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let again = Message::decode(&message.encode());
        // Not equal to itself where it has no number.
        assert!(again.is_ok_and(|again| again == message || format!("{again:?}") == format!("{message:?}")));
    }
    if let Ok(record) = Record::decode(bytes) {
        let again = Record::decode(&record.encode());
        assert!(again.is_ok_and(|again| again == record || format!("{again:?}") == format!("{record:?}")));
    }
}

fn corpus_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus_peer")
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(corpus_directory())
        .expect("the corpus is committed")
        .map(|file| file.expect("a readable directory").path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

fn random(rng: &mut ChaCha8Rng) -> Vec<u8> {
    (0..rng.random_range(1..1500)).map(|_| rng.random()).collect()
}

fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..rng.random_range(1..8) {
        let at = rng.random_range(0..bytes.len().max(1)).min(bytes.len());
        match rng.random_range(0..6) {
            0 => bytes.insert(at, rng.random()),
            1 => drop(bytes.drain(at..(at + rng.random_range(0..20)).min(bytes.len()))),
            2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = rng.random()),
            3 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = 245 + rng.random_range(0..11)),
            4 => {
                let other = &others[rng.random_range(0..others.len())];
                bytes.truncate(at);
                bytes.extend(other.iter().skip(rng.random_range(0..other.len().max(1))));
            }
            _ => {
                let repeated: Vec<u8> = bytes.iter().skip(at).take(rng.random_range(1..100)).copied().collect();
                bytes.splice(at..at, repeated);
            }
        }
    }
    bytes.truncate(CASE_BYTES_MAX);
}

/// Runs a case of one of the two targets; one that fails joins the corpus.
fn guard(name: &str, bytes: &[u8], target: impl Fn(&[u8])) {
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
        std::fs::write(corpus_directory().join(name), bytes).unwrap();
        std::panic::resume_unwind(failure);
    }
}

/// Cases and events, and inputs of the decoders.
fn run(time: Duration, seed: u64) -> (u64, u64, u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut pool: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
    pool.extend((0..50).map(|_| random(&mut rng)));
    let mut encoded: Vec<Vec<u8>> = Vec::new();
    let start = Instant::now();
    let (mut cases, mut events, mut inputs) = (0, 0, 0);
    while start.elapsed() < time {
        let mut case = pool[rng.random_range(0..pool.len())].clone();
        mutate(&mut rng, &mut case, &pool);
        let played = std::cell::Cell::new(0);
        guard(&format!("crash-{seed}-{cases}"), &case, |case| played.set(play(case)));
        (cases, events) = (cases + 1, events + played.get() as u64);
        let place = rng.random_range(0..400);
        if pool.len() < 400 {
            pool.push(case.clone())
        } else {
            pool[place] = case.clone()
        }

        let mut source = Source(&case);
        while !source.0.is_empty() && encoded.len() < 2000 {
            encoded.push(source.message().encode());
        }
        for _ in 0..20 {
            let mut bytes = encoded[rng.random_range(0..encoded.len())].clone();
            mutate(&mut rng, &mut bytes, &encoded);
            // A record has a version in front.
            bytes.splice(0..0, (0..rng.next_u32() % 2).map(|_| 2));
            guard(&format!("crash-bytes-{seed}-{inputs}"), &bytes, decode);
            inputs += 1;
        }
    }
    (cases, events, inputs)
}

#[test]
fn the_corpus_is_harmless() {
    let corpus = corpus();
    assert!(corpus.len() >= 10);
    for (name, bytes) in &corpus {
        let harmless = catch_unwind(|| {
            decode(bytes);
            play(bytes)
        });
        assert!(harmless.is_ok(), "{name}");
    }
}

#[test]
fn seconds_of_hostile_peers() {
    let (cases, events, _) = run(Duration::from_secs(4), 1);
    assert!(cases > 0 && events > cases);
}

#[test]
#[ignore = "runs for IDLEWOOD_FUZZ_SECONDS"]
fn minutes_of_hostile_peers() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (seconds, seed) = (number("IDLEWOOD_FUZZ_SECONDS", 60), number("IDLEWOOD_FUZZ_SEED", 2));
    let (cases, events, inputs) = run(Duration::from_secs(seconds), seed);
    println!("seed {seed}: {cases} cases with {events} events, and {inputs} inputs of decoders, in {seconds} s");
}

/// Writes a corpus of cases, after a change of how they are read.
#[test]
#[ignore = "writes to the source tree"]
fn write_the_corpus() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for number in 0..12 {
        std::fs::write(corpus_directory().join(format!("case-{number}")), random(&mut rng)).unwrap();
    }
}

/// Requests for invented bags: the queue, the disk and the time for one event stay bounded.
#[test]
fn a_flood_of_invented_bags_fills_neither_memory_nor_disk() {
    const BAGS_MAX: usize = 4096;
    let mut host = Host::new();
    let invented = |number: u32, submitter: u32| {
        let (mut id, mut peer) = ([0; 32], [5; 32]);
        id[..4].copy_from_slice(&number.to_le_bytes());
        peer[..4].copy_from_slice(&submitter.to_le_bytes());
        let submitter = Contact { peer: PeerId(peer), incarnation: 1, address: "/a".into(), nonce: None };
        let (tasks, task_mops) = (10, 100.0);
        let bag =
            BagHeader { id: BagId(id), submitter, tasks, task_mops, application_size_mops: 1000.0, declared: true };
        let request = Request {
            acting: None,
            bag,
            number: 1,
            attempt: 0,
            ranges: IntervalSet::from(0..10),
            age: Duration::ZERO,
            path: Path::default(),
            climbed: 0,
            machines: 0,
            link_kb_s: idlewood_scheduler::LINK_KB_S,
            leads: false,
            ticket: 0,
            checkpoints: Default::default(),
        };
        Message::Request { request, node: Node::Leaf, climbing: false }
    };
    let mut speaker = [5; 32];
    speaker[..4].fill(0);
    let (from, others) = (PeerId(speaker), PeerId([6; 32]));
    // Of bags that are not authorised only a few requests are kept.
    for number in 0..BAGS_MAX as u32 {
        host.give(Event::Received { from: others, message: invented(1_000_000 + number, number) });
    }
    assert_eq!((host.authorising.len(), host.peer.held().len(), host.writes.len()), (64, 0, 1));
    while let Some(bag) = host.authorising.pop_front() {
        host.give(Event::Authorised { bag, verdict: Err(DeclineReason::Forged) });
    }
    host.write();
    assert_eq!((host.peer.held().len(), host.disk.len()), (0, 1));
    // The submitter has spoken for the first bag; the others were approved all the same.
    let arrives = |host: &mut Host, number, submitter| {
        host.give(Event::Received { from: others, message: invented(number, submitter) });
        host.authorise();
        host.write();
    };
    arrives(&mut host, 0, 0);
    let (version, submitter, term) = (0, None, Duration::from_secs(3600));
    let (drop, rest) = (IntervalSet::new(), Duration::ZERO);
    host.give(Event::Received {
        from,
        message: Message::Lease { bag: BagId([0; 32]), version, submitter, term, drop, rest, key: None, sizes: None },
    });
    let id = |number: u32| {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_le_bytes());
        BagId(id)
    };
    for number in 1..(BAGS_MAX as u32 + 600) {
        arrives(&mut host, number, number);
    }
    let held = host.peer.held();
    assert!(held.len() <= BAGS_MAX, "{} bags", held.len());
    assert!(host.disk.len() <= BAGS_MAX + 10, "{} records", host.disk.len());
    assert!(held.iter().any(|held| held.bag == id(0)), "what somebody speaks for stays");
    // The fuzzer's driver refuses every eighth bag.
    let last = BAGS_MAX as u32 + 598;
    assert!(held.iter().any(|held| held.bag == id(last)), "and there is room for what comes");
    // One submitter fills a quarter of it at most.
    let mut host = Host::new();
    for number in 0..2000 {
        arrives(&mut host, number, 1);
    }
    assert_eq!(host.peer.held().len(), 1024);
}
