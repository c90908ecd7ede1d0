//! A simulation of whole peers: what defines it, what drives it, and its results.
//!
//! Machines are divided into shards ([`shard`]), one for each thread; the world outside of them ([`world`]) acts
//! between their windows. A window is as long as the shortest latency, so that whatever is sent in it arrives after it.
//! The result, trace hash included, is the same for any number of threads, and whether messages travel as bytes or as
//! values. If the shortest latency is almost nothing, windows are too short to pay for threads: then one thread runs
//! all shards.

mod connecting;
mod counts;
mod deed;
mod endless;
mod fetching;
mod history;
mod listed;
mod listing;
mod messages;
mod observed;
mod peers;
mod pool;
mod shard;
mod surroundings;
mod trace;
mod work;
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, Node, PeerId, Time};
use idlewood_scheduler::{
    Appointment, BAG_TASKS_MAX, BagId, Conditions, ENCLOSED_BYTES_MAX, Enclosed, Endless, Submission,
};

use self::counts::Counts;
pub use self::deed::Deed;
use self::history::History;
pub use self::listed::Listed;
use self::pool::Pool;
use self::shard::Shard;
use self::surroundings::Surroundings;
use self::world::{Act, World};
use crate::condition::Pause;
use crate::event_queue::HostIndex;
use crate::host::{Host, peer_id};
use crate::network::Network;
use crate::overlay::Wire;
use crate::random::{SmallStream, digest};
use crate::record::{BagRecord, Record};
use crate::report::{LinkUse, MessageCount, Report};
use crate::scenario::{GivenRounds, Scenario};
use crate::workload;

/// Contacts that a machine's user names at its first start, as far as others are up.
const CONTACTS: usize = 3;
/// A submission that no machine accepted, or whose machine crashed first, is tried again after so long.
const SUBMIT_RETRY: Duration = Duration::from_secs(1);
/// Failed tries of a simulated task before its last: our choice, an agent allows any number of them.
const RETRIES_MAX: u32 = 3;
/// Events between two calls of the progress function, at least.
const PROGRESS_EVENTS: u64 = 1 << 14;
/// Windows shorter than this do not pay for threads.
const WINDOW_MIN: Duration = Duration::from_micros(200);

/// How a scenario is run; the outcome does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Threads, at least 1.
    pub threads: usize,
    /// How messages travel.
    pub wire: Wire,
}

impl Execution {
    /// One thread; messages are encoded and decoded in grids of up to 100 machines.
    pub fn usual(nodes: u32) -> Self {
        Self { threads: 1, wire: Wire::usual(nodes) }
    }
}

/// Progress of a simulation.
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

/// A simulation: machines, links, and the record of what happened.
pub struct Simulation {
    around: Arc<Surroundings>,
    shards: Vec<Box<Shard>>,
    world: World,
    now: Time,
}

impl Simulation {
    /// Sets the machines up; nothing has happened yet.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the scenario.
    pub fn new(scenario: Scenario) -> Result<Self, String> {
        let execution = Execution::usual(scenario.nodes);
        Self::with(scenario, execution)
    }

    /// The same, to be run in this way.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the scenario.
    pub fn with(mut scenario: Scenario, execution: Execution) -> Result<Self, String> {
        scenario.validate()?;
        if execution.threads == 0 {
            return Err("threads must be at least 1".to_owned());
        }
        scenario.load()?;
        let bags = workload::bags(&scenario);
        workload::check(&scenario, &bags)?;
        let around = Surroundings {
            network: Network::of(&scenario),
            wire: execution.wire,
            peer_ids: (0..scenario.nodes).map(|host| peer_id(scenario.seed, host)).collect(),
            bags: bags.iter().enumerate().map(|(number, bag)| (bag.id, (number, bag.clone()))).collect(),
            scenario,
        };
        let Scenario { nodes, seed, .. } = around.scenario;
        let mut world =
            World::new(nodes, around.scenario.seats(), SmallStream::new(seed, "submitter", 0), Record::new(Vec::new()));
        for (host, at) in workload::starts(&around.scenario) {
            world.plan(at, Act::Start(host));
        }
        for (number, bag) in bags.iter().enumerate() {
            world.plan(bag.arrival, Act::Submit(number));
        }
        world.record = Record::new(bags);
        let count = u32::try_from(execution.threads).unwrap_or(u32::MAX).min(nodes);
        let shards = (0..count).map(|number| Box::new(Shard::new(&around, number, count))).collect();
        Ok(Self { around: Arc::new(around), shards, world, now: Time::ZERO })
    }

    /// Runs to the end: until every bag is closed (if there are any), until the horizon, or until the requested history
    /// cannot be written any more. The window in which the last bag is closed is run to its end.
    pub fn run(&mut self, mut progress: impl FnMut(Progress)) -> Report {
        self.run_while(|of| {
            progress(of);
            true
        })
    }

    /// As [`Simulation::run`], but ends early once `goes_on` returns false; the report covers what happened so far.
    pub fn run_while(&mut self, mut goes_on: impl FnMut(Progress) -> bool) -> Report {
        self.watch(false);
        std::thread::scope(|scope| {
            let pays = self.around.lookahead() >= WINDOW_MIN;
            let pool = (pays && self.shards.len() > 1).then(|| Pool::new(scope, self.shards.len() - 1));
            let mut told = 0;
            while !self.is_over() && self.advance(pool.as_ref()) {
                let events = self.events();
                if events >= told + PROGRESS_EVENTS {
                    told = events;
                    let has_failed = self.world.history.as_ref().is_some_and(History::has_failed);
                    if !goes_on(self.progress()) || has_failed {
                        break;
                    }
                }
            }
        });
        self.report()
    }

    /// Runs until this moment, or until nothing happens any more.
    pub fn run_until(&mut self, until: Time) {
        self.watch(false);
        while self.now < until && self.advance(None) {}
    }

    /// From now on writes what happens to each task and machine to a file, as CSV: docs/lab/method.md describes its
    /// rows. The file does not change the result, and is the same for any number of threads. An earlier history is
    /// replaced. [`Self::end_history`] says whether all of it was written.
    ///
    /// # Errors
    /// A sentence: the file exists and is no history, or cannot be written.
    pub fn write_history(&mut self, path: &Path) -> Result<(), String> {
        self.world.history = Some(History::create(path)?);
        Ok(())
    }

    /// Ends the history, if one is written.
    ///
    /// # Errors
    /// A sentence: why a line of it is missing.
    pub fn end_history(&mut self) -> Result<(), String> {
        self.world.history.take().map_or(Ok(()), History::finish)
    }

    fn is_over(&self) -> bool {
        self.world.record.open_bags() == 0 && !self.world.record.bags().is_empty()
    }

    fn watch(&mut self, is_watched: bool) {
        for shard in &mut self.shards {
            shard.is_watched = is_watched;
            shard.deeds.clear();
        }
    }

    /// When something happens on a machine next.
    fn next_on_machines(&self) -> Option<Time> {
        self.shards.iter().filter_map(|shard| shard.next()).min()
    }

    /// Runs one window or one act of the world; returns whether there was anything before the horizon.
    fn advance(&mut self, pool: Option<&Pool>) -> bool {
        let horizon = Time::ZERO + self.around.scenario.horizon;
        let (machines, world) = (self.next_on_machines(), self.world.next());
        let Some(next) = machines.into_iter().chain(world).min() else { return false };
        if next > horizon {
            self.now = horizon;
            return false;
        }
        if world == Some(next) {
            self.act();
            return true;
        }
        // Windows begin at multiples of their length, independently of earlier ones.
        let length = i64::try_from(self.around.lookahead().as_micros()).unwrap_or(i64::MAX);
        let end = Time::from_micros((next.as_micros() / length + 1).saturating_mul(length));
        let end = end.min(world.unwrap_or(Time::MAX)).min(horizon + Duration::from_micros(1));
        match pool {
            Some(pool) => pool.process(&mut self.shards, &self.around, end),
            None => self.shards.iter_mut().for_each(|shard| shard.process(&self.around, end)),
        }
        self.exchange();
        self.now = self.shards.iter().map(|shard| shard.now).max().unwrap_or(self.now);
        true
    }

    /// Runs the next event before `until`; returns whether there was one.
    pub fn step(&mut self, until: Time) -> bool {
        self.watch(true);
        self.shards.iter_mut().for_each(|shard| shard.unpack());
        let (machines, world) = (self.next_on_machines(), self.world.next());
        let Some(next) = machines.into_iter().chain(world).min() else { return false };
        if next > until {
            self.now = until;
            return false;
        }
        if world == Some(next) {
            self.act();
            return true;
        }
        self.now = next;
        let first =
            self.shards.iter_mut().filter(|shard| shard.next_key().is_some()).min_by_key(|shard| shard.next_key());
        if let Some(shard) = first {
            shard.step(&self.around);
        }
        self.exchange();
        true
    }

    /// Passes on what shards have sent each other, and what they report to the world.
    fn exchange(&mut self) {
        for from in 0..self.shards.len() {
            for to in 0..self.shards.len() {
                if self.shards[from].outbox[to].is_empty() {
                    continue;
                }
                let parcels = std::mem::take(&mut self.shards[from].outbox[to]);
                self.shards[to].receive(parcels);
            }
        }
        self.world.hear(self.shards.iter_mut().map(|shard| &mut shard.observed));
    }

    // ---- the world ----

    fn shard_of(&mut self, host: HostIndex) -> &mut Shard {
        let count = self.shards.len();
        &mut self.shards[host as usize % count]
    }

    fn host(&self, host: HostIndex) -> &Host {
        self.shards[host as usize % self.shards.len()].host(host)
    }

    /// The next act of the world.
    fn act(&mut self) {
        let Some((at, act)) = self.world.take() else { return };
        self.now = at;
        match act {
            Act::Start(host) => self.start(host),
            Act::Submit(number) => self.submit(number),
        }
        self.exchange();
    }

    fn start(&mut self, host: HostIndex) {
        let (now, around) = (self.now, Arc::clone(&self.around));
        let contacts = self.contacts(host);
        self.world.started(host, now);
        if let Some(history) = &mut self.world.history {
            history.note(now, "up", host, None, None);
        }
        self.shard_of(host).start(host, contacts, now, &around);
    }

    /// Through whom a machine joins that starts. Whom its user has named it knows for good; where that is nobody yet, since nobody was
    /// up, they are named now.
    fn contacts(&mut self, host: HostIndex) -> Vec<Contact> {
        if self.host(host).known().is_empty() {
            let mut rng = self.host(host).contact_rng.clone();
            let drawn: Vec<_> = (0..CONTACTS).filter_map(|_| self.world.somebody(&mut rng)).collect();
            let named = drawn.into_iter().map(|contact| self.host(contact).contact()).collect();
            let machine = self.shard_of(host).host_mut(host);
            (machine.contact_rng, machine.named) = (rng, named);
        }
        self.host(host).known()
    }

    /// A user submits a bag at its machine, or at a random one that is up, and checks a moment later whether it was accepted.
    fn submit(&mut self, number: usize) {
        let bag = &self.world.record.bags()[number];
        if bag.accepted.is_some() {
            return;
        }
        let given = self.around.scenario.given_bag(bag.bag.whole);
        let rounds = given.and_then(|given| given.rounds.as_ref()).map(GivenRounds::plan);
        let endless = bag.bag.endless.map(|endless| Endless {
            weight: endless.weight,
            task_bytes: workload::output_bytes(&self.around.scenario, &bag.bag, 0) as f64,
            tasks: BAG_TASKS_MAX,
        });
        // What is in them is not simulated.
        let file = |bytes: u64| {
            Enclosed::of(&vec![0; usize::try_from(bytes).unwrap_or(usize::MAX).min(ENCLOSED_BYTES_MAX + 1)])
        };
        let submission = Submission {
            id: bag.bag.id,
            envelope: file(self.around.scenario.envelope_bytes),
            manifest: file(self.around.scenario.manifest_bytes),
            tasks: if endless.is_some() { BAG_TASKS_MAX } else { bag.bag.tasks },
            task_mops: self.around.scenario.declared.then_some(bag.bag.declared_mops),
            retries_max: RETRIES_MAX,
            replication: self.around.scenario.replication(),
            stewards: None,
            keep_results: self.around.scenario.keeps_results(),
            conditions: Conditions { rounds, ..Conditions::default() },
            endless,
        };
        let seat = bag.bag.seat;
        // The bag is with a machine that may still accept it, unless that machine has crashed.
        let pending = bag
            .submitted
            .is_some_and(|(host, _)| self.peer(host).is_some_and(|peer| peer.bag(submission.id).is_some()));
        self.world.plan(self.now + SUBMIT_RETRY, Act::Submit(number));
        if pending {
            return;
        }
        let host = match seat {
            Some(seat) => Some(seat).filter(|seat| self.host(*seat).is_up()),
            None => self.world.submitter(),
        };
        let Some(host) = host else { return };
        if self.host(host).condition.pause.is_some() {
            return;
        }
        self.world.record.submitted(number, host, self.now);
        if let Some(history) = &mut self.world.history {
            history.note(self.now, "submitted", host, Some(number), None);
        }
        let made = self.host(host).wall(self.now);
        for shard in &mut self.shards {
            shard.signed.insert(submission.id, made);
        }
        let (now, around) = (self.now, Arc::clone(&self.around));
        self.shard_of(host).submit(host, submission, now, &around);
    }

    // ---- accessors ----

    /// What defines the run.
    pub fn scenario(&self) -> &Scenario {
        &self.around.scenario
    }

    /// Which grid this is.
    pub fn grid(&self) -> GridId {
        GridId(digest(self.around.scenario.seed, "grid", 0))
    }

    /// Simulated time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What peers did about requests in the last step.
    pub fn deeds(&self) -> &[(HostIndex, Deed)] {
        self.shards.iter().map(|shard| shard.deeds.as_slice()).find(|deeds| !deeds.is_empty()).unwrap_or_default()
    }

    /// Counts the starts of a machine: identifies its present life.
    pub fn life(&self, host: HostIndex) -> u32 {
        self.host(host).life
    }

    /// Machines that are up, in no particular order.
    pub fn up(&self) -> &[HostIndex] {
        self.world.up()
    }

    fn events(&self) -> u64 {
        self.shards.iter().map(|shard| shard.counts.events).sum()
    }

    /// How far the run has come.
    pub fn progress(&self) -> Progress {
        let record = &self.world.record;
        let bags = record.bags().len();
        Progress { now: self.now, bags_closed: bags - record.open_bags(), bags, events: self.events() }
    }

    /// The record of the tasks.
    pub fn record(&self) -> &Record {
        &self.world.record
    }

    /// The peer of a machine; `None` while it is down.
    pub fn peer(&self, host: HostIndex) -> Option<&idlewood_scheduler::Peer> {
        self.host(host).peer()
    }

    /// Whether the router of a machine does not pass on as it should what others send through it.
    pub fn routes_badly(&self, host: HostIndex) -> bool {
        self.host(host).bad_routing.is_some()
    }

    // ---- faults ----

    /// Cuts the power of a machine now; it comes back after a downtime like any other.
    pub fn crash(&mut self, host: HostIndex) {
        self.crash_for(host, None);
    }

    /// Cuts the power of a machine now; it comes back after this downtime, none: one like any other.
    pub fn crash_for(&mut self, host: HostIndex, downtime: Option<Duration>) {
        if self.host(host).is_up() {
            let (now, around) = (self.now, Arc::clone(&self.around));
            let shard = self.shard_of(host);
            shard.now = now;
            shard.crash_for(host, downtime, &around);
            self.exchange();
        }
    }

    /// Cuts the power of a machine in the moment in which all its writes under way have become durable: it has not heard of
    /// that. It comes back after this downtime.
    pub fn crash_behind_writes(&mut self, host: HostIndex, downtime: Duration) {
        let now = self.now;
        let shard = self.shard_of(host);
        shard.now = now;
        if shard.host(host).is_up() {
            shard.end_writes(host);
            self.crash_for(host, Some(downtime));
        }
    }

    /// Takes the disk of a machine, with its power. After this downtime another one is in its place, on which its user has adopted the tickets
    /// of their bags that others keep: all else is lost.
    pub fn take_disk(&mut self, host: HostIndex, downtime: Duration) {
        if self.host(host).is_up() {
            let (now, around) = (self.now, Arc::clone(&self.around));
            let shard = self.shard_of(host);
            shard.now = now;
            shard.take_disk(host, downtime, &around);
            self.exchange();
        }
    }

    /// Whether a ledger of this bag can be made of what is on a machine's disk, up or not.
    pub fn can_keep(&self, host: HostIndex, bag: BagId) -> bool {
        self.host(host).store.can_keep(bag)
    }

    /// The identity of a machine.
    pub fn host_id(&self, host: HostIndex) -> PeerId {
        self.host(host).id
    }

    /// The newest appointment of a bag's keepers that is on any disk.
    pub fn appointment(&self, bag: BagId) -> Option<Appointment> {
        let of = |host| self.host(host).store.appointment(bag);
        (0..self.scenario().nodes).filter_map(of).max_by_key(|appointment| appointment.term)
    }

    /// Whether the user of a machine has a ticket of this bag.
    pub fn has_ticket(&self, host: HostIndex, bag: BagId) -> bool {
        self.host(host).tickets.contains_key(&bag)
    }

    /// The user of a machine has it leave the grid in good order; it comes back after a downtime like any other.
    pub fn leave(&mut self, host: HostIndex) {
        if self.host(host).is_up() {
            let (now, around) = (self.now, Arc::clone(&self.around));
            self.shard_of(host).begin_to_leave(host, now, &around);
            self.exchange();
        }
    }

    /// The user of a bag, by its number, gives it up, if it was submitted and its machine is up.
    pub fn cancel(&mut self, number: usize) {
        let record = &self.world.record.bags()[number];
        let (id, submitted) = (record.bag.id, record.submitted);
        if let Some((host, _)) = submitted.filter(|(host, _)| self.host(*host).is_up()) {
            let (now, around) = (self.now, Arc::clone(&self.around));
            self.shard_of(host).cancel(host, id, now, &around);
            self.exchange();
        }
    }

    /// The owner of a machine that is up comes or goes now, for good unless the scenario has owners of its own.
    pub fn owner(&mut self, host: HostIndex, here: bool) {
        if self.host(host).is_up() {
            let (now, around) = (self.now, Arc::clone(&self.around));
            self.shard_of(host).owner_at(host, here, now, &around);
            self.exchange();
        }
    }

    /// The links; changes apply to what is sent from now on.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut Arc::make_mut(&mut self.around).network
    }

    /// Shuts the lid of a machine that is up: it handles nothing and its tasks stand still, while its clocks go on.
    pub fn pause(&mut self, host: HostIndex, pause: Pause) {
        let now = self.now;
        let machine = self.shard_of(host).host_mut(host);
        if machine.is_up() && machine.condition.pause.is_none() {
            machine.shut(pause, now);
        }
    }

    /// Opens the lid of a machine again.
    pub fn resume(&mut self, host: HostIndex) {
        let now = self.now;
        if self.host(host).condition.pause.is_some() {
            self.shard_of(host).open(host, now);
        }
    }

    /// From now on a machine handles everything by so much later; zero: at once again.
    pub fn slow_down(&mut self, host: HostIndex, by: Duration) {
        self.shard_of(host).host_mut(host).condition.slow = by;
    }

    /// The wall clock of a machine jumps, either way; forward, its monotonic clock leaps too.
    pub fn jump_clock(&mut self, host: HostIndex, by_us: i64) {
        let now = self.now;
        self.shard_of(host).jump_clock(host, by_us, now);
    }

    // ---- the end ----

    /// The results so far.
    pub fn report(&self) -> Report {
        let mut counts = Counts::default();
        self.shards.iter().for_each(|shard| counts.add(&shard.counts));
        let report = Report::of(&self.around.scenario, &self.world.record, self.now, |bag| self.is_over_for_good(bag));
        let messages: MessageCount = counts.messages.0.iter().copied().sum();
        let bytes = messages.bytes + counts.answers.bytes + counts.connections.bytes;
        let executed_mops = self.hosts().map(|host| host.workers.ran(self.now).as_secs_f64() * host.speed_mops).sum();
        let sim_s = self.now.as_secs_f64();
        Report {
            executed_mops,
            wasted_work_share: if executed_mops > 0.0 {
                (1.0 - self.delivered_mops() / executed_mops).max(0.0)
            } else {
                0.0
            },
            preemptions: counts.preemptions,
            false_tasks: counts.false_results,
            reclaims: counts.reclaims,
            crashes: counts.crashes,
            leaves: counts.leaves,
            messages: messages.count,
            messages_lost: counts.messages_lost,
            messages_in_vain: counts.messages_in_vain,
            bytes,
            bytes_per_node_s: if sim_s > 0.0 {
                bytes as f64 / sim_s / f64::from(self.around.scenario.nodes)
            } else {
                0.0
            },
            messages_by_kind: counts.messages.told(),
            carried_by_kind: counts.carried.told(),
            answers: counts.answers,
            outputs: counts.outputs,
            files: counts.files,
            refusals: counts.refusals,
            connections: counts.connections,
            connections_refused: counts.connections_refused,
            connections_at_most: self.hosts().map(|host| host.connections.most()).max().unwrap_or(0),
            decided: counts.decided,
            links: self.links(),
            events: counts.events,
            trace_hash: self.trace_hash(),
            ..report
        }
    }

    /// True work of the tasks whose results were delivered, each once.
    fn delivered_mops(&self) -> f64 {
        let bags = self.world.record.bags().iter().enumerate();
        let of_bag = |(number, record): (usize, &BagRecord)| -> f64 {
            if let Some(endless) = &record.endless {
                let works = endless.delivered.indices();
                return works.map(|index| workload::work_mops(&self.around.scenario, number, &record.bag, index)).sum();
            }
            let delivered = (0..).zip(&record.tasks).filter(|(_, task)| task.delivered);
            delivered.map(|(index, _)| workload::work_mops(&self.around.scenario, number, &record.bag, index)).sum()
        };
        bags.map(of_bag).sum()
    }

    /// Whether no task of an accepted bag will run any more.
    fn is_over_for_good(&self, bag: &BagRecord) -> bool {
        let submitter = bag.submitted.and_then(|(host, _)| self.peer(host));
        // A submitter that is down knows what is on its disk.
        let is_forgotten = submitter.is_some_and(|submitter| submitter.bag(bag.bag.id).is_none());
        let nothing_happens = self.next_on_machines().is_none() && self.world.next().is_none();
        bag.closed.is_some() || is_forgotten || nothing_happens
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        (0..self.around.scenario.nodes).map(|host| self.host(host))
    }

    /// Use of links: of all together first, then of machines by the depth of their routers.
    fn links(&self) -> Vec<LinkUse> {
        let span = self.now.since(self.around.scenario.first_arrival());
        let mut all = LinkUse::default();
        let mut by_depth: BTreeMap<u32, LinkUse> = BTreeMap::new();
        for host in self.hosts() {
            all.add(host.link, self.now);
            let depth = host.peer().and_then(|peer| peer.overlay_view().depth(Node::Router));
            if let Some(depth) = depth {
                by_depth
                    .entry(depth)
                    .or_insert(LinkUse { depth: Some(depth), ..LinkUse::default() })
                    .add(host.link, self.now);
            }
        }
        std::iter::once(all).chain(by_depth.into_values()).map(|of| of.over(span)).collect()
    }

    /// The digests of all machines, in their order, combined.
    fn trace_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for host in self.hosts() {
            hasher.update(&host.trace.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::{PeerId, State};

    use super::*;

    /// A machine that was crashed comes back and joins through those that it had beside it, though whom its user named is not among
    /// them and is down.
    #[test]
    fn a_machine_that_restarts_knows_its_neighbours_of_the_last_run() {
        let scenario = Scenario { nodes: 30, bags: 0, horizon: Duration::from_secs(300), ..Scenario::default() };
        let mut simulation = Simulation::new(scenario).expect("a valid scenario");
        while simulation.now() < Time::ZERO + Duration::from_secs(60) && simulation.advance(None) {}
        let last = 29;
        let before = simulation.host(last).named.clone();
        assert_eq!(before.len(), CONTACTS);
        let beside: Vec<PeerId> =
            simulation.peer(last).unwrap().overlay_view().neighbours().map(|contact| contact.peer).collect();
        simulation.crash(last);
        let known: Vec<PeerId> = simulation.contacts(last).iter().map(|contact| contact.peer).collect();
        assert_eq!(known[..CONTACTS], before.iter().map(|contact| contact.peer).collect::<Vec<_>>()[..]);
        assert_eq!(known[CONTACTS..], beside[..], "of the quiet grid, as it was five seconds ago");
        // Whom its user named is gone for good.
        simulation.shard_of(last).host_mut(last).named = Vec::new();
        simulation.start(last);
        let joined = |simulation: &Simulation| {
            simulation.peer(last).is_some_and(|peer| peer.overlay_view().state() == State::Member)
        };
        while simulation.now() < Time::ZERO + Duration::from_secs(80) && simulation.advance(None) {}
        assert!(joined(&simulation));
    }
}
