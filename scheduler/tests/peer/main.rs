//! One peer, driven by hand into cases that simulations seldom reach.

mod admission;
mod again;
mod astray;
mod at_once;
mod bags;
mod checkpoints;
mod conditions;
mod crowd;
mod doubt;
mod endless;
mod going;
mod keepers;
mod late;
mod listing;
mod pace;
mod priority;
mod redistribution;
mod reports;
mod requests;
mod rounds;
mod small;
mod submitters;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use idlewood_overlay::{Body, Contact, GridId, Node, PeerId, Side, State, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::rounds::Sources;
use idlewood_scheduler::{
    AGE_MAX, Approval, Asker, BagHeader, BagId, BagKey, BlobId, Change, Checkpoint, Conditions, Config, DeclineReason,
    ENCLOSED_BYTES_MAX, Effect, Enclosed, Event, Finished, Lease, MESSAGE_BYTES_MAX, MachinesPage, Message, Notice,
    Path, Peer, Record, RecordKey, Replication, Request, Seed, Sizes, SmallOutput, Speaker, StartMade, Submission,
    SubmitError, TaskId, TaskOutcome, TaskResult, Ticket,
};

const BAG: BagId = BagId([7; 32]);
const START: WallTime = WallTime(1_700_000_000_000_000);
const SUBMITTER: PeerId = PeerId([1; 32]);

fn contact(number: u8) -> Contact {
    Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None }
}

fn speaker(number: u8) -> Speaker {
    (&contact(number)).into()
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// The approval of a bag that was signed so long ago and whose blobs are here.
fn approval(signed_ago: Duration) -> Approval {
    Approval { signed_ago, at_hand: true, program: None }
}

/// A peer with a disk on which writes are durable at once, and a log of its effects.
struct Host {
    peer: Peer,
    now: Time,
    sent: Vec<(Contact, Message)>,
    started: Vec<TaskId>,
    stopped: Vec<TaskId>,
    measured: Vec<BagId>,
    /// Bags to be authorised, and the answer; `None`: no answer.
    looked_at: Vec<BagHeader>,
    /// What came with the requests for these.
    envelopes: Vec<Enclosed>,
    verdict: Option<Result<Approval, DeclineReason>>,
    notices: Vec<Notice>,
    listed: Vec<(u64, MachinesPage)>,
    persisted: Vec<Record>,
    /// The records on its disk.
    store: BTreeMap<RecordKey, Record>,
    /// Whether writes with the record of a bag wait until [`Host::write_all`], and those that do.
    disk_waits: bool,
    unwritten: Vec<(Ticket, Vec<Change>)>,
    /// Tasks whose checkpoints were asked for, and the checkpoints of started tasks.
    asked: Vec<(BagId, IntervalSet)>,
    /// The stop of the last such effect.
    stop: u64,
    going_on: BTreeMap<u64, Checkpoint>,
    /// Whether it can have the files of bags that it is to keep, and the bags whose files it need not keep any longer.
    keeps_files: bool,
    forgotten: Vec<BagId>,
    /// What tasks of later rounds were to begin with, and what became of that.
    starts: Vec<(u64, Sources)>,
    makes_starts: fn(u64) -> StartMade,
    /// What tasks leave, where that is part of their results.
    small_output: Option<SmallOutput>,
}

/// What a task begins with, as this driver makes it.
fn start(index: u64) -> StartMade {
    let start = Checkpoint { blob: BlobId([index as u8; 32]), bytes: index };
    StartMade::Here { start, has_converged: false }
}

/// What stands for a machine's signature.
fn signature(peer: PeerId, statement: &[u8]) -> Vec<u8> {
    let sum = statement.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let mut signature = peer.0.to_vec();
    (0..4).for_each(|_| signature.extend(sum.to_le_bytes()));
    signature
}

/// The submitter's record of an open bag.
fn submitted(bag: BagHeader, retries_max: u32, attempt: u32) -> Record {
    Record::Bag {
        bag,
        released: START,
        retries_max,
        attempt,
        closed: None,
        replication: Replication::default(),
        stewards: None,
        keep_results: false,
        reruns: 0,
        conditions: Box::default(),
        supply: None,
    }
}

impl Host {
    fn new(number: u8) -> Self {
        Self::restore(number, Config::default(), Vec::new())
    }

    fn restore(number: u8, config: Config, records: Vec<Record>) -> Self {
        Self::restore_at(number, config, records, Time::ZERO)
    }

    fn restore_at(number: u8, config: Config, records: Vec<Record>, now: Time) -> Self {
        let grid = GridId([9; 32]);
        let wall = START + now.since(Time::ZERO);
        let peer = Peer::restore(config, grid, contact(number), 1, now, wall, records.clone()).unwrap();
        let mut host = Self {
            peer,
            now,
            sent: Vec::new(),
            started: Vec::new(),
            stopped: Vec::new(),
            measured: Vec::new(),
            looked_at: Vec::new(),
            envelopes: Vec::new(),
            verdict: Some(Ok(approval(Duration::ZERO))),
            notices: Vec::new(),
            listed: Vec::new(),
            persisted: Vec::new(),
            store: records.iter().map(|record| (record.key(), record.clone())).collect(),
            disk_waits: false,
            unwritten: Vec::new(),
            asked: Vec::new(),
            stop: 0,
            going_on: BTreeMap::new(),
            keeps_files: true,
            forgotten: Vec::new(),
            starts: Vec::new(),
            makes_starts: start,
            small_output: None,
        };
        host.give(Event::DeadlineReached);
        host
    }

    fn give(&mut self, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.peer.handle(self.now, event, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Persist { ticket, changes } => {
                        let is_of_bag = |change: &Change| matches!(change, Change::Put(Record::Bag { .. }));
                        if self.disk_waits && changes.iter().any(is_of_bag) {
                            self.unwritten.push((ticket, changes));
                        } else {
                            self.write(changes);
                            events.push_back(Event::Persisted(ticket));
                        }
                    }
                    Effect::Send { to, message } => self.sent.push((Contact::clone(&to), message)),
                    Effect::StartTask { task, checkpoint, .. } => {
                        self.started.push(task);
                        self.going_on.extend(checkpoint.map(|checkpoint| (task.index, checkpoint)));
                    }
                    Effect::KeepCheckpoints { stop, bag, tasks } => {
                        self.stop = stop;
                        self.asked.push((bag, tasks));
                    }
                    Effect::StopTask { task, .. } => self.stopped.push(task),
                    Effect::MeasureTask { bag } => self.measured.push(bag),
                    Effect::Authorise { bag, envelope } => {
                        self.looked_at.push(bag.clone());
                        self.envelopes.push(envelope);
                        if let Some(verdict) = self.verdict {
                            events.push_back(Event::Authorised { bag: bag.id, verdict });
                        }
                    }
                    Effect::FetchOutput { task, .. } => {
                        events.push_back(Event::Fetched { task, here: true, checkpoint: None })
                    }
                    Effect::MakeStart { task, from } => {
                        let results = from.results.iter().map(|(_, index)| index);
                        let of = from.state.iter().chain(&from.merged).chain(results);
                        let lacks =
                            of.clone().find(|index| !self.store.contains_key(&RecordKey::Done(task.bag, **index)));
                        assert_eq!(lacks, None, "what {task:?} begins with is not here: {from:?}");
                        self.starts.push((task.index, from));
                        events.push_back(Event::StartMade { task, made: (self.makes_starts)(task.index) });
                    }
                    Effect::Notify(notice) => self.notices.push(notice),
                    Effect::List { ticket, page } => self.listed.push((ticket, *page)),
                    Effect::SignAppointment { mut appointment } => {
                        appointment.signature = signature(self.peer.me().peer, &appointment.statement());
                        events.push_back(Event::AppointmentSigned(appointment));
                    }
                    Effect::KeepFiles { bag, .. } => {
                        events.push_back(Event::FilesKept { bag: bag.id, kept: self.keeps_files });
                    }
                    Effect::ReadResults { bag, tasks, to } => {
                        let result = |index| match self.store.get(&RecordKey::Done(bag, index)) {
                            Some(Record::Done { executor, result, .. }) => Some((*executor, result.clone())),
                            _ => None,
                        };
                        let results = tasks.indices().filter_map(result).collect();
                        events.push_back(Event::ResultsRead { bag, to, results });
                    }
                    Effect::ForgetFiles { bag } => self.forgotten.push(bag),
                    Effect::FreezeTask { .. }
                    | Effect::ThawTask { .. }
                    | Effect::SuspendTasks
                    | Effect::ResumeTasks => {}
                }
            }
        }
    }

    fn write(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Put(record) => {
                    self.store.insert(record.key(), record.clone());
                    self.persisted.push(record);
                }
                Change::Delete(key) => drop(self.store.remove(&key)),
            }
        }
    }

    /// Writes that waited are durable.
    fn write_all(&mut self) {
        self.disk_waits = false;
        for (ticket, changes) in std::mem::take(&mut self.unwritten) {
            self.write(changes);
            self.give(Event::Persisted(ticket));
        }
    }

    fn receive(&mut self, from: u8, message: Message) {
        self.give(Event::Received { from: PeerId([from; 32]), message });
    }

    /// Lets time pass, waking the peer at its deadlines.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..100_000 {
            match self.peer.deadline().filter(|&deadline| deadline <= end) {
                Some(deadline) => self.now = deadline.max(self.now),
                None => {
                    self.now = end;
                    return;
                }
            }
            self.give(Event::DeadlineReached);
        }
        panic!("it wants to be woken again and again at {:?}", self.now);
    }

    fn finish(&mut self, task: TaskId, success: bool) {
        self.finish_with(task, success, 1000.0);
    }

    /// The same, after so much work.
    fn finish_with(&mut self, task: TaskId, success: bool, work_mops: f64) {
        let outcome = TaskOutcome::Finished(Finished {
            success,
            crashed: false,
            output: BlobId([1; 32]),
            output_bytes: 1,
            content: self.small_output.clone(),
            work_mops,
            exit_code: Some(0),
            fingerprint: None,
            times: 1.0,
        });
        self.give(Event::TaskEnded { task, outcome });
    }

    /// The driver has packed the checkpoint.
    fn keep(&mut self, index: u64, checkpoint: Option<Checkpoint>) {
        let checkpoints = BTreeMap::from([(index, checkpoint)]);
        self.give(Event::CheckpointsKept { stop: self.stop, bag: BAG, checkpoints });
    }

    /// The machine crashes and restarts at once from its disk, but has not found the grid yet.
    fn restart(self, number: u8) -> Self {
        let config = Config { expects_grid: true, ..Config::default() };
        Self::restore(number, config, self.store.into_values().collect())
    }

    /// All running tasks succeed.
    fn finish_running(&mut self) {
        let running = self.peer.running();
        running.into_iter().for_each(|running| self.finish(running.task, true));
    }

    /// Versions and sizes of the `Holding`s sent.
    fn holdings(&self) -> Vec<(u64, u64)> {
        let holdings = self.sent.iter().filter_map(|(_, message)| match message {
            Message::Holding { version, ranges, .. } => Some((*version, ranges.len())),
            _ => None,
        });
        holdings.collect()
    }
}

/// Lets two hosts, 2 and 3, talk to each other.
fn talk(host: &mut Host, other: &mut Host, seconds: u32) {
    talk_and(host, other, seconds, |_| ());
}

/// The same, showing each message to `look`.
fn talk_and(host: &mut Host, other: &mut Host, seconds: u32, mut look: impl FnMut(&Message)) {
    for _ in 0..seconds * 10 {
        for one in [&mut *host, &mut *other] {
            one.pass(Duration::from_millis(100));
        }
        deliver(host, other, &mut look);
    }
}

/// Delivers the messages of both to each other.
fn deliver(host: &mut Host, other: &mut Host, look: &mut impl FnMut(&Message)) {
    let [to_other, to_host] = [&mut *host, &mut *other].map(|one| std::mem::take(&mut one.sent));
    to_other.iter().chain(&to_host).for_each(|(_, message)| look(message));
    to_other.into_iter().for_each(|(_, message)| other.receive(2, message));
    to_host.into_iter().for_each(|(_, message)| host.receive(3, message));
}

/// A grid of two hosts.
fn pair() -> [Host; 2] {
    pair_with(Config::default())
}

fn pair_with(config: Config) -> [Host; 2] {
    let [mut host, mut other] = [2, 3].map(|number| Host::restore(number, config.clone(), Vec::new()));
    host.give(Event::Bootstrap(contact(3)));
    talk(&mut host, &mut other, 20);
    assert_eq!([&host, &other].map(|one| one.peer.overlay_view().state()), [State::Member; 2]);
    [host, other]
}

/// A bag of so many tasks, each of which is tried once.
fn submission(tasks: u64, task_mops: f64) -> Submission {
    Submission {
        id: BAG,
        envelope: Enclosed::default(),
        manifest: Enclosed::default(),
        tasks,
        task_mops: Some(task_mops),
        retries_max: 0,
        replication: Replication::default(),
        stewards: None,
        keep_results: false,
        conditions: Conditions::default(),
        endless: None,
    }
}

fn bag(submitter: u8) -> BagHeader {
    BagHeader {
        id: BAG,
        submitter: contact(submitter),
        tasks: 100,
        task_mops: 1000.0,
        application_size_mops: 1e5,
        declared: true,
    }
}

fn request(number: u64, attempt: u32, ranges: Range<u64>) -> Message {
    let request = Request {
        bag: bag(1),
        number,
        attempt,
        ranges: IntervalSet::from(ranges),
        age: Duration::ZERO,
        path: Path::default(),
        climbed: 0,
        machines: 0,
        link_kb_s: idlewood_scheduler::LINK_KB_S,
        leads: false,
        copy: None,
        begins_within: None,
        ticket: 0,
        checkpoints: Box::default(),
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
    };
    Message::Request { request, node: Node::Leaf, climbing: false }
}

fn lease(version: u64, drop: IntervalSet) -> Message {
    Message::Lease(Lease { drop, ..lease_of(version) })
}

/// The answer to the `Holding` of this version, which has the executor forget nothing.
fn lease_of(version: u64) -> Lease {
    Lease { version, term: Duration::from_secs(60), ..Lease::of(BAG) }
}

/// A request for tasks of a bag of a million, of which so many machines may get a part.
fn unhurried(number: u64, ranges: Range<u64>, machines: u32) -> Message {
    forged(number, |request| {
        request.bag.tasks = 1_000_000;
        (request.ranges, request.machines) = (IntervalSet::from(ranges), machines);
    })
}

/// A request as by [`request`], changed by `change`.
fn forged(number: u64, change: impl FnOnce(&mut Request)) -> Message {
    let Message::Request { mut request, node, climbing } = request(number, 0, 10..20) else { unreachable!() };
    change(&mut request);
    Message::Request { request, node, climbing }
}

impl Host {
    /// The receivers of `Holding` and `Renewal`.
    fn holding_receivers(&self) -> Vec<&Contact> {
        let is_word = |message: &Message| matches!(message, Message::Holding { .. } | Message::Renewal { .. });
        self.sent.iter().filter(|(_, message)| is_word(message)).map(|(to, _)| to).collect()
    }

    /// The receiver of the last one.
    fn last_receiver(&self) -> &Contact {
        self.holding_receivers().last().expect("somebody was told")
    }
}
