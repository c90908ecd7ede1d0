//! One peer, driven by hand: what it does at its edges, where a simulation seldom comes.

mod admission;
mod again;
mod astray;
mod bags;
mod checkpoints;
mod crowd;
mod doubt;
mod going;
mod late;
mod pace;
mod redistribution;
mod reports;
mod requests;
mod small;
mod submitters;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use idlewood_overlay::{Body, Contact, GridId, Node, PeerId, Side, State, Time, WallTime};
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{
    AGE_MAX, Approval, Asker, BagHeader, BagId, BagKey, BlobId, Change, Checkpoint, Config, DeclineReason, Effect,
    Event, Finished, MESSAGE_BYTES_MAX, Message, Notice, Path, Peer, Record, RecordKey, Replication, Request, Seed,
    Speaker, Submission, SubmitError, TaskId, TaskOutcome, TaskResult,
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

/// Of a bag that was signed so long ago, and of which everything is here.
fn approval(signed_ago: Duration) -> Approval {
    Approval { signed_ago, at_hand: true }
}

/// A peer with a disk that is always durable at once, and what it wanted.
struct Host {
    peer: Peer,
    now: Time,
    sent: Vec<(Contact, Message)>,
    started: Vec<TaskId>,
    stopped: Vec<TaskId>,
    measured: Vec<BagId>,
    /// What was to be authorised, and what is answered; none: nothing.
    looked_at: Vec<BagHeader>,
    verdict: Option<Result<Approval, DeclineReason>>,
    notices: Vec<Notice>,
    persisted: Vec<Record>,
    /// What is on its disk.
    store: BTreeMap<RecordKey, Record>,
    /// Whose checkpoints were asked for, and what tasks that were started go on from.
    asked: Vec<(BagId, IntervalSet)>,
    /// Of which stop they were asked for last.
    stop: u64,
    going_on: BTreeMap<u64, Checkpoint>,
}

/// A bag as its submitter keeps it while it is open.
fn submitted(bag: BagHeader, retries_max: u32, attempt: u32) -> Record {
    Record::Bag { bag, released: START, retries_max, attempt, closed: None, replication: Replication::default() }
}

impl Host {
    fn new(number: u8) -> Self {
        Self::restore(number, Config::default(), Vec::new())
    }

    fn restore(number: u8, config: Config, records: Vec<Record>) -> Self {
        let grid = GridId([9; 32]);
        let peer = Peer::restore(config, grid, contact(number), 1, Time::ZERO, START, records.clone()).unwrap();
        let mut host = Self {
            peer,
            now: Time::ZERO,
            sent: Vec::new(),
            started: Vec::new(),
            stopped: Vec::new(),
            measured: Vec::new(),
            looked_at: Vec::new(),
            verdict: Some(Ok(approval(Duration::ZERO))),
            notices: Vec::new(),
            persisted: Vec::new(),
            store: records.iter().map(|record| (record.key(), record.clone())).collect(),
            asked: Vec::new(),
            stop: 0,
            going_on: BTreeMap::new(),
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
                        for change in changes {
                            match change {
                                Change::Put(record) => {
                                    self.store.insert(record.key(), record.clone());
                                    self.persisted.push(record);
                                }
                                Change::Delete(key) => drop(self.store.remove(&key)),
                            }
                        }
                        events.push_back(Event::Persisted(ticket));
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
                    Effect::Authorise { bag } => {
                        self.looked_at.push(bag.clone());
                        if let Some(verdict) = self.verdict {
                            events.push_back(Event::Authorised { bag: bag.id, verdict });
                        }
                    }
                    Effect::FetchOutput { task, .. } => {
                        events.push_back(Event::Fetched { task, here: true, checkpoint: None })
                    }
                    Effect::Notify(notice) => self.notices.push(notice),
                    Effect::FreezeTask { .. }
                    | Effect::ThawTask { .. }
                    | Effect::SuspendTasks
                    | Effect::ResumeTasks => {}
                }
            }
        }
    }

    fn receive(&mut self, from: u8, message: Message) {
        self.give(Event::Received { from: PeerId([from; 32]), message });
    }

    /// Lets time pass, waking the peer when it wants.
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
        let outcome = TaskOutcome::Finished(Finished {
            success,
            crashed: false,
            output: BlobId([1; 32]),
            output_bytes: 1,
            content: None,
            work_mops: 1000.0,
            exit_code: Some(0),
        });
        self.give(Event::TaskEnded { task, outcome });
    }

    /// What was asked for is packed.
    fn keep(&mut self, index: u64, checkpoint: Option<Checkpoint>) {
        let checkpoints = BTreeMap::from([(index, checkpoint)]);
        self.give(Event::CheckpointsKept { stop: self.stop, bag: BAG, checkpoints });
    }

    /// It ends without warning, and is back at once with what was on its disk, but has not found the others yet.
    fn restart(self, number: u8) -> Self {
        let config = Config { expects_grid: true, ..Config::default() };
        Self::restore(number, config, self.store.into_values().collect())
    }

    /// What runs succeeds.
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

/// The same, with a look at each message.
fn talk_and(host: &mut Host, other: &mut Host, seconds: u32, mut look: impl FnMut(&Message)) {
    for _ in 0..seconds * 10 {
        for one in [&mut *host, &mut *other] {
            one.pass(Duration::from_millis(100));
        }
        deliver(host, other, &mut look);
    }
}

/// Each gets what the other has sent.
fn deliver(host: &mut Host, other: &mut Host, look: &mut impl FnMut(&Message)) {
    let [to_other, to_host] = [&mut *host, &mut *other].map(|one| std::mem::take(&mut one.sent));
    to_other.iter().chain(&to_host).for_each(|(_, message)| look(message));
    to_other.into_iter().for_each(|(_, message)| other.receive(2, message));
    to_host.into_iter().for_each(|(_, message)| host.receive(3, message));
}

/// Two hosts that are a grid.
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
    Submission { id: BAG, tasks, task_mops: Some(task_mops), retries_max: 0, replication: Replication::default() }
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
        leads: false,
        ticket: 0,
        checkpoints: Box::default(),
    };
    Message::Request { request, node: Node::Leaf, climbing: false }
}

fn lease(version: u64, drop: IntervalSet) -> Message {
    let (term, rest) = (Duration::from_secs(60), Duration::ZERO);
    Message::Lease { bag: BAG, version, submitter: None, term, drop, rest, key: None }
}

/// A request that so many machines may get a part of, for a bag of a million tasks.
fn unhurried(number: u64, ranges: Range<u64>, machines: u32) -> Message {
    forged(number, |request| {
        request.bag.tasks = 1_000_000;
        (request.ranges, request.machines) = (IntervalSet::from(ranges), machines);
    })
}

/// A request as `request`, but for what is changed in it.
fn forged(number: u64, change: impl FnOnce(&mut Request)) -> Message {
    let Message::Request { mut request, node, climbing } = request(number, 0, 10..20) else { unreachable!() };
    change(&mut request);
    Message::Request { request, node, climbing }
}

impl Host {
    /// Who was told what is held, or that it still is.
    fn words(&self) -> Vec<&Contact> {
        let is_word = |message: &Message| matches!(message, Message::Holding { .. } | Message::Renewal { .. });
        self.sent.iter().filter(|(_, message)| is_word(message)).map(|(to, _)| to).collect()
    }

    /// Who was told last.
    fn told(&self) -> &Contact {
        self.words().last().expect("somebody was told")
    }
}
