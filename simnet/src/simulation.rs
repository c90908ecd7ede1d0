//! The event loop: takes the earliest event, gives it to its machine, carries out what the machine's peer answers.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Body, GridId, PeerId, Time};
use idlewood_scheduler::{
    BagId, BlobId, Change, Effect, Event, Message, Notice, Path, Record as StoreRecord, Submission, TaskId, TaskOutcome,
};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::condition::Pause;
use crate::event_queue::{EventQueue, HostIndex, Key};
use crate::host::{Host, host_index};
use crate::network::Network;
use crate::random::{digest, stream};
use crate::record::{Record, TaskRecord};
use crate::report::{MessageCount, Report};
use crate::scenario::Scenario;
use crate::slab::Slab;
use crate::workload;

/// Source of what no machine causes.
const WORLD: HostIndex = HostIndex::MAX;
/// How long a task takes to stop when told to, and an output to be found on the own disk: our guess.
const LOCAL_DELAY: Duration = Duration::from_millis(1);
/// Machines that one which starts knows of, as an agent knows some from its user and its last run.
const CONTACTS: usize = 3;
/// A submission that found nobody to take it, or whose machine crashed first, is tried again after so long.
const SUBMIT_RETRY: Duration = Duration::from_secs(1);
/// How long a fetch may take beyond the time its size needs.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Failed tries a simulated task may have. Simulated tasks do not fail.
const RETRIES_MAX: u32 = 3;
/// Events between two calls of the progress function.
const PROGRESS_EVENTS: u64 = 1 << 14;

/// BLAKE3 of a message's bytes: taken once, it stands for them in the traces of both ends.
type Digest = [u8; 32];

/// Something that happens to a machine. `life`: void in any other life of it.
#[derive(Debug)]
enum Occurrence {
    /// A user submits a bag at some machine.
    Submit { number: usize },
    /// The machine is switched on.
    Start,
    /// It crashes, or begins to leave.
    SessionEnds { life: u32 },
    /// Its peer's deadline has come.
    Wake { life: u32 },
    /// A message arrives.
    Deliver { from: PeerId, bytes: Vec<u8>, digest: Digest },
    /// The oldest write under way is durable.
    Durable { life: u32 },
    /// A task has run for as long as it takes.
    RunEnds { life: u32, place: u32, serial: u64 },
    /// A worker that was told to stop has stopped.
    Stopped { life: u32, task: TaskId },
    /// The first task of a bag was tried out.
    Measured { life: u32, bag: BagId },
    /// Somebody asks for an output.
    FetchAsked { fetch: Fetch },
    /// The output has left this machine.
    FetchSent { life: u32, fetch: Fetch },
    /// The output is here, or the time for it is over.
    FetchEnds { life: u32, task: TaskId, serial: u64, here: bool },
}

/// An output on its way.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    to: HostIndex,
    /// Of the machine that asks.
    life: u32,
    /// Of the fetch, among all of that machine.
    serial: u64,
    task: TaskId,
    bytes: u64,
}

/// What waits in the queue.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// Number of the occurrence.
    occurrence: u32,
    /// A slow machine has put it off already.
    put_off: bool,
}

/// What a peer did about a request, as the simulator saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// A leaf started a task.
    Started {
        /// Which.
        task: TaskId,
        /// Of its issue: rises when the submitter issues the task again.
        attempt: u32,
    },
    /// A router sent a part of a request down.
    SentDown {
        /// Of which bag.
        bag: BagId,
        /// Number of the request.
        number: u64,
        /// Way of the part.
        path: Path,
    },
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Simulated time.
    pub now: Time,
    /// Bags closed.
    pub bags_closed: usize,
    /// All bags.
    pub bags: usize,
    /// Events given to peers.
    pub events: u64,
}

/// A run: machines, links, and what was seen of them.
pub struct Simulation {
    scenario: Scenario,
    now: Time,
    queue: EventQueue<Due>,
    occurrences: Slab<Occurrence>,
    /// What waits for machines whose lid is shut.
    held: BTreeMap<HostIndex, Vec<Due>>,
    sequence: u64,
    hosts: Vec<Host>,
    /// Machines that are up, in no particular order, and where each stands there.
    up: Vec<HostIndex>,
    places: Vec<usize>,
    submitter_rng: ChaCha8Rng,
    network: Network,
    record: Record,
    /// Fetches that nobody answered yet, by machine and serial.
    fetches: BTreeMap<(HostIndex, u64), TaskId>,
    fetch_serial: u64,
    effects: Vec<Effect>,
    deeds: Vec<(HostIndex, Deed)>,
    trace: Vec<u8>,
    events: u64,
    crashes: u64,
    leaves: u64,
    preemptions: u64,
    messages: BTreeMap<&'static str, MessageCount>,
    messages_lost: u64,
    messages_in_vain: u64,
}

impl Simulation {
    /// Sets the machines up; nothing has happened yet.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the scenario.
    pub fn new(scenario: Scenario) -> Result<Self, String> {
        scenario.validate()?;
        let bags = workload::bags(&scenario);
        let mut simulation = Self {
            now: Time::ZERO,
            queue: EventQueue::default(),
            occurrences: Slab::default(),
            held: BTreeMap::new(),
            sequence: 0,
            hosts: (0..scenario.nodes).map(|index| Host::new(&scenario, index)).collect(),
            up: Vec::new(),
            places: vec![usize::MAX; scenario.nodes as usize],
            submitter_rng: stream(scenario.seed, "submitter", 0),
            network: Network::new(scenario.quality()),
            fetches: BTreeMap::new(),
            fetch_serial: 0,
            effects: Vec::new(),
            deeds: Vec::new(),
            trace: Vec::new(),
            events: 0,
            crashes: 0,
            leaves: 0,
            preemptions: 0,
            messages: BTreeMap::new(),
            messages_lost: 0,
            messages_in_vain: 0,
            record: Record::new(Vec::new()),
            scenario,
        };
        let window = u64::try_from(simulation.scenario.start_window().as_micros()).unwrap_or(u64::MAX);
        let mut rng = stream(simulation.scenario.seed, "start", 0);
        for host in 0..simulation.scenario.nodes {
            let after = if host == 0 { 0 } else { rng.random_range(1..=window) };
            simulation.plan(Time::ZERO + Duration::from_micros(after), host, Occurrence::Start);
        }
        for (number, bag) in bags.iter().enumerate() {
            simulation.plan(bag.arrival, WORLD, Occurrence::Submit { number });
        }
        simulation.record = Record::new(bags);
        Ok(simulation)
    }

    /// Runs to the end: until every bag is closed, or until the horizon.
    pub fn run(&mut self, mut progress: impl FnMut(Progress)) -> Report {
        let horizon = Time::ZERO + self.scenario.horizon;
        let mut told = 0;
        while self.record.open_bags() > 0 {
            if !self.step(horizon) {
                break;
            }
            if self.events >= told + PROGRESS_EVENTS {
                told = self.events;
                progress(self.progress());
            }
        }
        self.report()
    }

    /// Lets the next event before `until` happen; whether there was one.
    pub fn step(&mut self, until: Time) -> bool {
        let Some((Key { at, target, .. }, due)) = self.queue.pop_until(until) else {
            if !self.queue.is_empty() {
                self.now = until;
            }
            return false;
        };
        self.now = at;
        self.deeds.clear();
        self.meet(target, due);
        true
    }

    /// What defines the run.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Which grid this is.
    pub fn grid(&self) -> GridId {
        GridId(digest(self.scenario.seed, "grid", 0))
    }

    /// Simulated time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What peers did about requests in the last step.
    pub fn deeds(&self) -> &[(HostIndex, Deed)] {
        &self.deeds
    }

    /// Counts the starts of a machine: names its present life.
    pub fn life(&self, host: HostIndex) -> u32 {
        self.hosts[host as usize].life
    }

    /// Machines that are up, in no particular order.
    pub fn up(&self) -> &[HostIndex] {
        &self.up
    }

    /// How far the run has come.
    pub fn progress(&self) -> Progress {
        let bags = self.record.bags().len();
        Progress { now: self.now, bags_closed: bags - self.record.open_bags(), bags, events: self.events }
    }

    /// What became of the tasks.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The peer of a machine; `None` while it is down.
    pub fn peer(&self, host: HostIndex) -> Option<&idlewood_scheduler::Peer> {
        self.hosts[host as usize].peer()
    }

    /// Cuts the power of a machine now; it comes back after a downtime like any other.
    pub fn crash(&mut self, host: HostIndex) {
        if self.hosts[host as usize].is_up() {
            self.crashes += 1;
            self.go_down(host);
        }
    }

    // ---- faults ----

    /// The links; what is changed holds for what is sent from now on.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Shuts the lid of a machine that is up: it handles nothing, its tasks stand still, its clocks go on.
    pub fn pause(&mut self, host: HostIndex, pause: Pause) {
        let machine = &mut self.hosts[host as usize];
        if machine.is_up() && machine.condition.pause.is_none() {
            machine.shut(pause, self.now);
        }
    }

    /// Opens the lid of a machine again.
    pub fn resume(&mut self, host: HostIndex) {
        let machine = &mut self.hosts[host as usize];
        if machine.condition.pause.is_none() {
            return;
        }
        let life = machine.life;
        for (place, at, serial) in machine.open(self.now) {
            self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
        }
        for due in self.held.remove(&host).unwrap_or_default() {
            let key = self.hosts[host as usize].key(self.now, host);
            self.queue.push(key, due);
        }
        self.arm(host);
    }

    /// From now on a machine handles everything so much later than it could; zero: at once again.
    pub fn slow_down(&mut self, host: HostIndex, by: Duration) {
        self.hosts[host as usize].condition.slow = by;
    }

    /// The wall clock of a machine jumps, either way; forward, its monotonic clock leaps too.
    pub fn jump_clock(&mut self, host: HostIndex, by_us: i64) {
        self.hosts[host as usize].condition.jump(by_us);
        self.arm(host);
    }

    // ---- what happens ----

    /// Plans something that no machine causes.
    fn plan(&mut self, at: Time, target: HostIndex, occurrence: Occurrence) {
        self.sequence += 1;
        let occurrence = self.occurrences.insert(occurrence);
        self.queue.push(Key { at, target, source: WORLD, sequence: self.sequence }, Due { occurrence, put_off: false });
    }

    /// Plans something that a machine causes.
    fn cause(&mut self, source: HostIndex, at: Time, target: HostIndex, occurrence: Occurrence) {
        let key = self.hosts[source as usize].key(at, target);
        let occurrence = self.occurrences.insert(occurrence);
        self.queue.push(key, Due { occurrence, put_off: false });
    }

    /// Lets an occurrence happen, unless the condition of its machine has it wait or lost.
    fn meet(&mut self, host: HostIndex, due: Due) {
        if let Some(machine) = self.hosts.get_mut(host as usize).filter(|machine| machine.is_up()) {
            let occurrence = self.occurrences.get(due.occurrence);
            match machine.condition.pause {
                Some(Pause::Lose) if matches!(occurrence, Occurrence::Deliver { .. }) => {
                    self.occurrences.take(due.occurrence);
                    self.messages_in_vain += 1;
                    return;
                }
                Some(_) => {
                    self.held.entry(host).or_default().push(due);
                    return;
                }
                None => {}
            }
            // A wake is late by itself: it follows the slow machine's view of its clock.
            let is_wake = matches!(occurrence, Occurrence::Wake { .. });
            if machine.condition.slow > Duration::ZERO && !due.put_off && !is_wake {
                let key = machine.key(self.now + machine.condition.slow, host);
                self.queue.push(key, Due { put_off: true, ..due });
                return;
            }
        }
        let occurrence = self.occurrences.take(due.occurrence);
        self.happen(host, occurrence);
    }

    fn happen(&mut self, host: HostIndex, occurrence: Occurrence) {
        let lives = |life| self.hosts[host as usize].lives(life);
        match occurrence {
            Occurrence::Submit { number } => self.submit(number),
            Occurrence::Start => self.start(host),
            Occurrence::SessionEnds { life } if lives(life) => self.end_session(host),
            Occurrence::Wake { life } if lives(life) => {
                if self.hosts[host as usize].wakes(self.now) {
                    self.give(host, Event::DeadlineReached);
                } else {
                    self.arm(host);
                }
            }
            Occurrence::Deliver { from, bytes, digest } => self.deliver(host, from, &bytes, digest),
            Occurrence::Durable { life } if lives(life) => self.commit(host),
            Occurrence::RunEnds { life, place, serial } if lives(life) => self.end_run(host, place, serial),
            Occurrence::Stopped { life, task } if lives(life) => {
                self.give(host, Event::TaskEnded { task, outcome: TaskOutcome::Stopped });
            }
            Occurrence::Measured { life, bag } if lives(life) => {
                let task_mops = self.record.bags()[self.record.number(bag)].bag.task_mops;
                self.give(host, Event::Measured { bag, task_mops, result: None });
            }
            Occurrence::FetchAsked { fetch } => self.serve(host, fetch),
            Occurrence::FetchSent { life, fetch } if lives(life) => self.hand_over(host, fetch),
            Occurrence::FetchEnds { life, task, serial, here } => self.end_fetch(host, life, task, serial, here),
            // Meant for a life that is over.
            Occurrence::SessionEnds { .. }
            | Occurrence::Wake { .. }
            | Occurrence::Durable { .. }
            | Occurrence::RunEnds { .. }
            | Occurrence::Stopped { .. }
            | Occurrence::Measured { .. }
            | Occurrence::FetchSent { .. } => {}
        }
    }

    // ---- machines ----

    fn start(&mut self, host: HostIndex) {
        let now = self.now;
        let contacts: Vec<_> = (0..CONTACTS).filter_map(|_| self.somebody_else(host)).collect();
        let machine = &mut self.hosts[host as usize];
        machine.start(&self.scenario, !contacts.is_empty(), now);
        let life = machine.life;
        if let Some(session) = machine.churn.session() {
            self.cause(host, now + session, host, Occurrence::SessionEnds { life });
        }
        self.places[host as usize] = self.up.len();
        self.up.push(host);
        if contacts.is_empty() {
            self.give(host, Event::DeadlineReached);
        }
        for contact in contacts {
            let event = Event::Bootstrap(self.hosts[contact as usize].contact());
            self.give(host, event);
        }
    }

    /// A random machine that is up and not this one.
    fn somebody_else(&mut self, host: HostIndex) -> Option<HostIndex> {
        let place = self.places[host as usize];
        let others = self.up.len() - usize::from(place != usize::MAX);
        if others == 0 {
            return None;
        }
        let choice = self.hosts[host as usize].contact_rng.random_range(0..others);
        Some(self.up[if choice >= place { choice + 1 } else { choice }])
    }

    fn end_session(&mut self, host: HostIndex) {
        if self.hosts[host as usize].churn.leaves() {
            // It goes down when its peer says so.
            self.give(host, Event::Leave);
        } else {
            self.crash(host);
        }
    }

    fn go_down(&mut self, host: HostIndex) {
        self.hosts[host as usize].crash();
        for due in self.held.remove(&host).unwrap_or_default() {
            self.occurrences.take(due.occurrence);
        }
        let place = std::mem::replace(&mut self.places[host as usize], usize::MAX);
        self.up.swap_remove(place);
        if let Some(&moved) = self.up.get(place) {
            self.places[moved as usize] = place;
        }
        let downtime = self.hosts[host as usize].churn.downtime();
        self.cause(host, self.now + downtime, host, Occurrence::Start);
    }

    // ---- users ----

    /// Somebody submits a bag at a random machine that is up, and looks a moment later whether it was accepted.
    fn submit(&mut self, number: usize) {
        let bag = &self.record.bags()[number];
        if bag.accepted.is_some() {
            return;
        }
        let submission = Submission {
            id: bag.bag.id,
            tasks: bag.bag.tasks,
            task_mops: self.scenario.declared.then_some(bag.bag.task_mops),
            retries_max: RETRIES_MAX,
        };
        // It is with a machine that may still accept it, unless that machine has crashed.
        let pending = bag.submitted.is_some_and(|(host, _)| {
            self.hosts[host as usize].peer().is_some_and(|peer| peer.bag(submission.id).is_some())
        });
        self.plan(self.now + SUBMIT_RETRY, WORLD, Occurrence::Submit { number });
        if pending || self.up.is_empty() {
            return;
        }
        let host = self.up[self.submitter_rng.random_range(0..self.up.len())];
        if self.hosts[host as usize].condition.pause.is_some() {
            return;
        }
        self.record.submitted(number, host, self.now);
        self.give(host, Event::Submitted(submission));
    }

    // ---- messages ----

    fn deliver(&mut self, host: HostIndex, from: PeerId, bytes: &[u8], digest: Digest) {
        if !self.hosts[host as usize].is_up() {
            self.messages_in_vain += 1;
            return;
        }
        match Message::decode(bytes) {
            Ok(message) => {
                self.trace.extend(from.0);
                self.trace.extend(digest);
                self.give(host, Event::Received { from, message });
            }
            Err(error) => panic!("{from:?} sent at {:?} what its receiver refuses: {error}", self.now),
        }
    }

    fn send(&mut self, host: HostIndex, to: PeerId, message: &Message) {
        let bytes = message.encode();
        let digest = *blake3::hash(&bytes).as_bytes();
        self.trace.extend(to.0);
        self.trace.extend(digest);
        let count = self.messages.entry(kind(message)).or_default();
        count.count += 1;
        count.bytes += bytes.len() as u64;
        let target = host_index(to);
        let machine = &mut self.hosts[host as usize];
        let from = machine.id;
        let arrivals = self.network.carry(&mut machine.network_rng, host, target);
        let Some(travel) = arrivals.first else {
            self.messages_lost += 1;
            return;
        };
        if self.hosts.get(target as usize).is_none_or(|target| target.id != to) {
            self.messages_in_vain += 1;
            return;
        }
        if let Some(travel) = arrivals.second {
            let bytes = bytes.clone();
            self.cause(host, self.now + travel, target, Occurrence::Deliver { from, bytes, digest });
        }
        self.cause(host, self.now + travel, target, Occurrence::Deliver { from, bytes, digest });
    }

    // ---- the disk ----

    fn commit(&mut self, host: HostIndex) {
        let machine = &mut self.hosts[host as usize];
        let Some((ticket, changes)) = machine.store.commit() else { return };
        for change in changes {
            if let Change::Put(StoreRecord::Done { bag, result, .. }) = change {
                let task = TaskId { bag, index: result.index };
                let has_output = self.hosts[host as usize].store.has_fetched(task);
                self.record.journalled(task, host, result.success, has_output, self.now);
            }
        }
        self.give(host, Event::Persisted(ticket));
    }

    // ---- tasks and their outputs ----

    fn end_run(&mut self, host: HostIndex, place: u32, serial: u64) {
        let machine = &mut self.hosts[host as usize];
        let Some(run) = machine.finish(place, serial) else { return };
        machine.store.produce(run.task);
        self.record.finished(run.task);
        let outcome = TaskOutcome::Finished {
            success: true,
            output: output_of(run.task),
            output_bytes: self.scenario.output_bytes,
            work_mops: run.work_mops,
        };
        self.give(host, Event::TaskEnded { task: run.task, outcome });
    }

    fn fetch(&mut self, host: HostIndex, task: TaskId, bytes: u64, from: PeerId) {
        self.fetch_serial += 1;
        let serial = self.fetch_serial;
        let machine = &mut self.hosts[host as usize];
        let life = machine.life;
        if from == machine.id {
            let here = machine.store.has_produced(task);
            self.fetches.insert((host, serial), task);
            self.cause(host, self.now + LOCAL_DELAY, host, Occurrence::FetchEnds { life, task, serial, here });
            return;
        }
        let travel = self.network.latency(&mut machine.network_rng);
        let limit = self.now + FETCH_TIMEOUT + self.scenario.transfer(bytes) * 2;
        let fetch = Fetch { to: host, life, serial, task, bytes };
        self.fetches.insert((host, serial), task);
        self.cause(host, limit, host, Occurrence::FetchEnds { life, task, serial, here: false });
        let target = host_index(from);
        if self.hosts.get(target as usize).is_some_and(|target| target.id == from) {
            self.cause(host, self.now + travel, target, Occurrence::FetchAsked { fetch });
        }
    }

    /// This machine is asked for an output.
    fn serve(&mut self, host: HostIndex, fetch: Fetch) {
        let machine = &self.hosts[host as usize];
        if machine.is_up() && machine.store.has_produced(fetch.task) {
            let life = machine.life;
            let at = self.now + self.scenario.transfer(fetch.bytes).max(Duration::from_micros(1));
            self.cause(host, at, host, Occurrence::FetchSent { life, fetch });
        }
    }

    /// The last byte of an output leaves this machine.
    fn hand_over(&mut self, host: HostIndex, fetch: Fetch) {
        let Fetch { to, life, serial, task, .. } = fetch;
        let travel = self.network.latency(&mut self.hosts[host as usize].network_rng);
        self.cause(host, self.now + travel, to, Occurrence::FetchEnds { life, task, serial, here: true });
    }

    fn end_fetch(&mut self, host: HostIndex, life: u32, task: TaskId, serial: u64, here: bool) {
        let is_first = self.fetches.remove(&(host, serial)).is_some();
        if !is_first || !self.hosts[host as usize].lives(life) {
            return;
        }
        if here {
            self.hosts[host as usize].store.fetch(task);
        }
        self.give(host, Event::Fetched { task, here });
    }

    // ---- peers ----

    /// Gives an event to the peer of a machine that is up, and carries out what it answers.
    fn give(&mut self, host: HostIndex, event: Event) {
        self.events += 1;
        // What `deliver` wrote there before belongs to this event.
        self.trace.extend(self.now.as_micros().to_le_bytes());
        trace_event(&mut self.trace, &event);
        let mut effects = std::mem::take(&mut self.effects);
        self.hosts[host as usize].handle(self.now, event, &mut effects);
        let mut left = false;
        for effect in effects.drain(..) {
            left |= matches!(effect, Effect::Notify(Notice::Left));
            self.carry_out(host, effect);
        }
        self.effects = effects;
        self.hosts[host as usize].trace(&self.trace);
        self.trace.clear();
        if left {
            self.leaves += 1;
            self.go_down(host);
        } else {
            self.arm(host);
        }
    }

    fn arm(&mut self, host: HostIndex) {
        let machine = &mut self.hosts[host as usize];
        let life = machine.life;
        if let Some(at) = machine.arm(self.now) {
            self.cause(host, at, host, Occurrence::Wake { life });
        }
    }

    fn carry_out(&mut self, host: HostIndex, effect: Effect) {
        let now = self.now;
        trace_effect(&mut self.trace, &effect);
        let machine = &mut self.hosts[host as usize];
        let life = machine.life;
        match effect {
            Effect::Send { to, message } => {
                if let Message::Request { request, climbing: false, .. } = &message {
                    let (bag, number, path) = (request.bag.id, request.number, request.path.clone());
                    self.deeds.push((host, Deed::SentDown { bag, number, path }));
                }
                self.send(host, to.peer, &message);
            }
            Effect::Persist { ticket, changes } => {
                for change in &changes {
                    trace_change(&mut self.trace, change);
                }
                machine.store.begin(ticket, changes);
                // One write at a time, in the order they were asked for: a crash may come between any two.
                machine.durable = machine.durable.max(now) + self.scenario.persist;
                let at = machine.durable;
                self.cause(host, at, host, Occurrence::Durable { life });
            }
            Effect::StartTask { place, task, bag, attempt } => {
                self.deeds.push((host, Deed::Started { task, attempt }));
                self.record.started(task);
                let work_mops = self.record.bags()[self.record.number(bag.id)].bag.task_mops;
                if let Some((at, serial)) = machine.run(place, task, work_mops, now) {
                    self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
                }
            }
            Effect::FreezeTask { place, task } => {
                self.preemptions += 1;
                machine.freeze(place, task, now);
            }
            Effect::ThawTask { place, task } => {
                if let Some((at, serial)) = machine.thaw(place, task, now) {
                    self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
                }
            }
            Effect::StopTask { place, task } => {
                if machine.stop(place, task) {
                    self.cause(host, now + LOCAL_DELAY, host, Occurrence::Stopped { life, task });
                }
            }
            Effect::SuspendTasks => machine.suspend(now),
            Effect::ResumeTasks => {
                for (place, at, serial) in machine.resume(now) {
                    self.cause(host, at, host, Occurrence::RunEnds { life, place, serial });
                }
            }
            Effect::MeasureTask { bag } => {
                let work_mops = self.record.bags()[self.record.number(bag)].bag.task_mops;
                let takes = Duration::from_secs_f64(work_mops / machine.speed_mops).max(LOCAL_DELAY);
                self.cause(host, now + takes, host, Occurrence::Measured { life, bag });
            }
            Effect::FetchOutput { task, output_bytes, from, .. } => self.fetch(host, task, output_bytes, from.peer),
            Effect::Notify(Notice::BagAccepted(bag)) => self.record.accepted(bag, now),
            Effect::Notify(Notice::BagClosed(bag)) => self.record.closed(bag, now),
            Effect::Notify(Notice::Joined | Notice::Left) => {}
        }
    }

    // ---- the end ----

    /// What the run came to so far.
    pub fn report(&self) -> Report {
        let end = self.now;
        let bags = self.record.bags();
        let count = |of: &dyn Fn(&TaskRecord) -> u64| self.record.accepted_tasks().map(of).sum::<u64>();
        let accepted_tasks = count(&|_| 1);
        let completed_tasks = count(&|task| u64::from(task.delivered));
        let failed_tasks = count(&|task| u64::from(task.failed));
        let stretches: Vec<f64> = bags.iter().filter_map(|bag| bag.stretch(end)).collect();
        // The same with w' = a·max(n, N): what is left of the paper's stretch is the time over the larger size.
        let width = |tasks: u64| tasks as f64 / tasks.max(u64::from(self.scenario.nodes)) as f64;
        let effective = bags.iter().filter_map(|bag| Some(bag.stretch(end)? * width(bag.bag.tasks)));
        let first = bags.iter().filter_map(|bag| bag.submitted).map(|(_, at)| at).min();
        let last = bags.iter().filter(|bag| bag.submitted.is_some()).map(|bag| bag.completed.unwrap_or(end)).max();
        let bytes: u64 = self.messages.values().map(|count| count.bytes).sum();
        let sim_s = end.as_secs_f64();
        Report {
            scenario: self.scenario.clone(),
            bags_accepted: bags.iter().filter(|bag| bag.accepted.is_some()).count() as u64,
            bags_closed: bags.iter().filter(|bag| bag.closed.is_some()).count() as u64,
            accepted_tasks,
            completed_tasks,
            failed_tasks,
            lost_tasks: accepted_tasks - completed_tasks - failed_tasks,
            duplicate_tasks: count(&|task| u64::from(task.finished.saturating_sub(1))),
            started_executions: count(&|task| u64::from(task.started)),
            finished_executions: count(&|task| u64::from(task.finished)),
            max_stretch: stretches.iter().copied().fold(0.0, f64::max),
            mean_stretch: stretches.iter().sum::<f64>() / stretches.len().max(1) as f64,
            max_effective_stretch: effective.fold(0.0, f64::max),
            preemptions: self.preemptions,
            makespan_s: first.zip(last).map_or(0.0, |(first, last)| last.since(first).as_secs_f64()),
            sim_s,
            crashes: self.crashes,
            leaves: self.leaves,
            messages: self.messages.values().map(|count| count.count).sum(),
            messages_lost: self.messages_lost,
            messages_in_vain: self.messages_in_vain,
            bytes,
            bytes_per_node_s: if sim_s > 0.0 { bytes as f64 / sim_s / f64::from(self.scenario.nodes) } else { 0.0 },
            messages_by_kind: self.messages.clone(),
            events: self.events,
            trace_hash: self.trace_hash(),
        }
    }

    /// The hashes of all machines, in their order, as one.
    fn trace_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for host in &self.hosts {
            hasher.update(host.trace_hash());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// A short name of what a message says, for the report.
fn kind(message: &Message) -> &'static str {
    let Message::Overlay(message) = message else { return message.kind() };
    match &message.body {
        Body::Ping { .. } => "overlay ping",
        Body::Ack { .. } => "overlay ack",
        Body::Find { .. } => "overlay find",
        Body::Found { .. } => "overlay found",
        Body::Report(report) if report.load.is_some() => "overlay report with load",
        Body::Report(_) => "overlay report",
        Body::ReportAck(_) => "overlay report ack",
        Body::RootChanged { .. } => "overlay root changed",
        Body::Dead(_) => "overlay dead",
        Body::Suspect(_) => "overlay suspect",
        Body::Hint(_) => "overlay hint",
        Body::Leave(_) => "overlay leave",
        Body::Handover(_) => "overlay handover",
    }
}

/// The content address of a simulated output.
fn output_of(task: TaskId) -> BlobId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&task.bag.0);
    hasher.update(&task.index.to_le_bytes());
    BlobId(*hasher.finalize().as_bytes())
}

fn trace_task(trace: &mut Vec<u8>, task: &TaskId) {
    trace.extend(task.bag.0);
    trace.extend(task.index.to_le_bytes());
}

/// What a peer is given, but for the message bytes, which stand before.
fn trace_event(trace: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Bootstrap(contact) => {
            trace.push(b'b');
            trace.extend(contact.peer.0);
        }
        Event::Received { .. } => trace.push(b'r'),
        Event::ConnectionLost(peer) => {
            trace.push(b'c');
            trace.extend(peer.0);
        }
        Event::Persisted(ticket) => {
            trace.push(b'p');
            trace.extend(ticket.0.to_le_bytes());
        }
        Event::Submitted(submission) => {
            trace.push(b's');
            trace.extend(submission.id.0);
        }
        Event::Measured { bag, task_mops, .. } => {
            trace.push(b'm');
            trace.extend(bag.0);
            trace.extend(task_mops.to_bits().to_le_bytes());
        }
        Event::Cancelled(bag) => {
            trace.push(b'x');
            trace.extend(bag.0);
        }
        Event::TaskEnded { task, outcome } => {
            trace.push(match outcome {
                TaskOutcome::Finished { .. } => b'F',
                TaskOutcome::NotStarted { .. } => b'N',
                TaskOutcome::Stopped => b'S',
            });
            trace_task(trace, task);
        }
        Event::Fetched { task, here } => {
            trace.push(if *here { b'f' } else { b'n' });
            trace_task(trace, task);
        }
        Event::OwnerReturned => trace.push(b'o'),
        Event::OwnerLeft => trace.push(b'a'),
        Event::Leave => trace.push(b'l'),
        Event::Return => trace.push(b'R'),
        Event::DeadlineReached => trace.push(b'd'),
    }
}

/// What a peer answers, but for message bytes and records, which follow.
fn trace_effect(trace: &mut Vec<u8>, effect: &Effect) {
    match effect {
        Effect::Send { .. } => trace.push(b'0'),
        Effect::Persist { ticket, .. } => {
            trace.push(b'1');
            trace.extend(ticket.0.to_le_bytes());
        }
        Effect::StartTask { place, task, attempt, .. } => {
            trace.push(b'2');
            trace.extend(place.to_le_bytes());
            trace.extend(attempt.to_le_bytes());
            trace_task(trace, task);
        }
        Effect::StopTask { place, task } => {
            trace.push(b'3');
            trace.extend(place.to_le_bytes());
            trace_task(trace, task);
        }
        Effect::FreezeTask { place, task } => {
            trace.push(b'8');
            trace.extend(place.to_le_bytes());
            trace_task(trace, task);
        }
        Effect::ThawTask { place, task } => {
            trace.push(b'9');
            trace.extend(place.to_le_bytes());
            trace_task(trace, task);
        }
        Effect::SuspendTasks => trace.push(b'4'),
        Effect::ResumeTasks => trace.push(b'5'),
        Effect::MeasureTask { bag } => {
            trace.push(b'6');
            trace.extend(bag.0);
        }
        Effect::FetchOutput { task, output, output_bytes, from } => {
            trace.push(b'7');
            trace_task(trace, task);
            trace.extend(output.0);
            trace.extend(output_bytes.to_le_bytes());
            trace.extend(from.peer.0);
        }
        Effect::Notify(notice) => {
            let (kind, bag) = match notice {
                Notice::BagAccepted(bag) => (b'A', Some(bag)),
                Notice::BagClosed(bag) => (b'C', Some(bag)),
                Notice::Joined => (b'J', None),
                Notice::Left => (b'L', None),
            };
            trace.push(kind);
            trace.extend(bag.into_iter().flat_map(|bag| bag.0));
        }
    }
}

fn trace_change(trace: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Put(record) => {
            trace.push(b'+');
            trace.extend(record.encode());
        }
        Change::Delete(key) => {
            trace.push(b'-');
            trace.extend(key.to_bytes());
        }
    }
}
