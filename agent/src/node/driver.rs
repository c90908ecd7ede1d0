//! The task that owns the peer: turns the outside world into events, and effects into the outside world.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use idlewood_overlay::{Contact, Time};
use idlewood_scheduler::{
    BagHeader, BagId, Change, Config, Effect, Event, Message, Notice, Peer, RecordKey, TaskId, TaskOutcome, TaskResult,
    Ticket,
};
use libp2p::Multiaddr;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::handle::Command;
use super::commits::{COMMIT_RETRY, Commits};
use super::kept::Kept;
use super::neighbours::{self, Neighbours};
use super::task::{self, Ended, PrepareError, Prepared, Supplies};
use crate::clock::Clock;
use crate::manifest::Manifest;
use crate::net::{NetEvent, NetHandle};
use crate::owner::{OwnerProbe, PROBE_INTERVAL};
use crate::store::{CommitError, CommitResult, Store};
use crate::worker::{Pool, WorkerEvent};

/// Longest that leaving the grid may take.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(2500);
/// How long the first task of a bag may run to show how long a task takes.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
/// Least work of a task, as processor time: below it the clock says nothing.
const MEASURE_LEAST: Duration = Duration::from_millis(1);
/// Manifests kept at hand.
const MANIFESTS_MAX: usize = 64;
/// Between two tries to reach an agent to join through.
const BOOTSTRAP_INTERVAL: Duration = Duration::from_secs(2);
/// Tries to reach a neighbour of the last run, which may be gone for good.
const NEIGHBOUR_TRIES: u32 = 3;

/// What the driver is made of.
pub(super) struct Parts {
    pub(super) peer: Peer,
    pub(super) clock: Clock,
    pub(super) config: Config,
    pub(super) net: NetHandle,
    pub(super) net_events: mpsc::Receiver<NetEvent>,
    pub(super) store: Store,
    pub(super) store_events: mpsc::Receiver<CommitResult>,
    pub(super) supplies: Supplies,
    pub(super) workers: Pool,
    pub(super) worker_events: mpsc::Receiver<WorkerEvent>,
    pub(super) measuring: Pool,
    pub(super) measure_events: mpsc::Receiver<WorkerEvent>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) probe: OwnerProbe,
    pub(super) listen: Multiaddr,
    pub(super) neighbours: Neighbours,
    pub(super) bootstrap: Vec<Multiaddr>,
    pub(super) kept: Kept,
}

/// What a slot of this machine is doing, from the driver's side.
#[derive(Debug)]
enum Slot {
    Free,
    /// Its needs are being fetched; `stopped` when they are not wanted any more.
    Preparing { task: TaskId, stopped: bool },
    Running { task: TaskId, prepared: Box<Prepared> },
    /// Its output is being kept.
    Collecting,
}

/// Work done beside the loop.
enum Done {
    Manifest { slot: usize, task: TaskId, attempt: u32, sources: Vec<Contact>, result: Result<Arc<Manifest>, PrepareError> },
    Prepared { slot: usize, result: Result<Prepared, PrepareError> },
    Collected { slot: usize, task: TaskId, outcome: TaskOutcome },
    MeasurePrepared { bag: BagId, result: Result<Prepared, PrepareError> },
    Measured { bag: BagId, cpu: Duration, outcome: TaskOutcome },
    Fetched { task: TaskId, here: bool },
    Bootstrapped(Option<Contact>),
}

/// What wakes the driver beside the peer's own deadline.
struct Wakes {
    terminate: Signal,
    interrupt: Signal,
    probe: Interval,
    save: Interval,
}

/// A pause asked for by the user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    pub(super) until: Option<Time>,
}

/// Why, and since when, this machine works or does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    pub(super) owner_present: bool,
    pub(super) pause: Option<Pause>,
    /// Whether a slot has a task.
    pub(super) busy: bool,
    pub(super) since: Time,
}

/// Owns the peer of this machine.
pub(super) struct Driver {
    pub(super) peer: Peer,
    pub(super) clock: Clock,
    pub(super) config: Config,
    pub(super) net: NetHandle,
    net_events: mpsc::Receiver<NetEvent>,
    pub(super) store: Store,
    store_events: mpsc::Receiver<CommitResult>,
    pub(super) supplies: Supplies,
    workers: Pool,
    worker_events: mpsc::Receiver<WorkerEvent>,
    measuring: Pool,
    measure_events: mpsc::Receiver<WorkerEvent>,
    commands: mpsc::Receiver<Command>,
    probe: OwnerProbe,
    pub(super) listen: Multiaddr,
    neighbours: Neighbours,
    bootstrap: Vec<Multiaddr>,
    pub(super) kept: Kept,
    commits: Commits,
    slots: Vec<Slot>,
    jobs: JoinSet<Done>,
    pub(super) manifests: BTreeMap<BagId, Arc<Manifest>>,
    /// Bags to be measured, the first one being measured once `measured` has its task.
    to_measure: VecDeque<BagId>,
    measured: Option<Prepared>,
    pub(super) activity: Activity,
    /// Submissions that wait to be durable.
    pub(super) submitting: BTreeMap<BagId, super::handle::Reply<crate::api::Bag>>,
    effects: Vec<Effect>,
    left: bool,
    /// The store is beyond use: the agent ends, and whoever supervises it starts it again.
    fatal: Option<CommitError>,
}

impl Driver {
    pub(super) fn new(parts: Parts) -> Self {
        let slots = (0..parts.config.slots).map(|_| Slot::Free).collect();
        let activity = Activity { owner_present: false, pause: None, busy: false, since: parts.clock.now() };
        Self {
            peer: parts.peer,
            clock: parts.clock,
            config: parts.config,
            net: parts.net,
            net_events: parts.net_events,
            store: parts.store,
            store_events: parts.store_events,
            supplies: parts.supplies,
            workers: parts.workers,
            worker_events: parts.worker_events,
            measuring: parts.measuring,
            measure_events: parts.measure_events,
            commands: parts.commands,
            probe: parts.probe,
            listen: parts.listen,
            neighbours: parts.neighbours,
            bootstrap: parts.bootstrap,
            kept: parts.kept,
            commits: Commits::default(),
            slots,
            jobs: JoinSet::new(),
            manifests: BTreeMap::new(),
            to_measure: VecDeque::new(),
            measured: None,
            activity,
            submitting: BTreeMap::new(),
            effects: Vec::new(),
            left: false,
            fatal: None,
        }
    }

    /// Runs until a signal, then leaves in good order.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut wakes = Wakes {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            probe: interval(PROBE_INTERVAL),
            save: interval(neighbours::SAVE_INTERVAL),
        };
        self.join_grid();
        self.feed(Event::DeadlineReached).await;
        while self.turn(&mut wakes).await {}
        self.leave().await;
        let Self { workers, measuring, mut jobs, store, fatal, .. } = self;
        jobs.shutdown().await;
        tokio::task::spawn_blocking(move || {
            workers.shutdown();
            measuring.shutdown();
            store.close();
        })
        .await
        .context("the last writes failed")?;
        match fatal {
            Some(error) => Err(error).context("the store cannot be used any more; start the agent again"),
            None => Ok(()),
        }
    }

    /// Waits for one thing to happen and handles it. Whether to go on.
    async fn turn(&mut self, wakes: &mut Wakes) -> bool {
        let deadline = self.peer.deadline().map(|deadline| deadline.since(self.clock.now()));
        let deadline = deadline.map(|wait| Instant::now() + wait);
        tokio::select! {
            biased;
            _ = wakes.terminate.recv() => return false,
            _ = wakes.interrupt.recv() => return false,
            _ = wakes.probe.tick() => self.ask_owner().await,
            Some(event) = self.worker_events.recv() => self.worker_ended(event),
            Some(event) = self.measure_events.recv() => self.measure_ended(event),
            Some(result) = self.store_events.recv() => self.committed(result).await,
            () = tokio::time::sleep(COMMIT_RETRY), if self.commits.is_stuck() => self.commits.retry(&self.store),
            Some(done) = self.jobs.join_next(), if self.commits.has_room() => match done {
                Ok(done) => self.done(done).await,
                Err(error) => tracing::error!(%error, "a piece of work beside the loop failed"),
            },
            Some(event) = self.net_events.recv(), if self.commits.has_room() => self.net_event(event).await,
            Some(command) = self.commands.recv(), if self.commits.has_room() => self.command(command).await,
            _ = wakes.save.tick() => self.neighbours.save(self.peer.overlay_view().neighbours()),
            () = sleep_until(deadline) => self.feed(Event::DeadlineReached).await,
        }
        self.fatal.is_none()
    }

    /// Gives the peer an event and carries out what follows.
    pub(super) async fn feed(&mut self, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        self.peer.handle(self.clock.now(), event, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect).await;
        }
        self.effects = effects;
    }

    async fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.net.send(&to, message.encode()),
            Effect::Persist { ticket, changes } => {
                for change in &changes {
                    self.kept.apply(change);
                }
                self.commits.push(ticket, changes.into_iter().map(to_store).collect());
                self.commits.flow(&self.store);
            }
            Effect::StartTask { slot, task, attempt, bag } => self.start_task(slot as usize, task, attempt, bag),
            Effect::StopTask { slot, .. } => self.stop_task(slot as usize),
            Effect::SuspendTasks => self.workers.freeze(),
            Effect::ResumeTasks => self.workers.thaw(),
            Effect::MeasureTask { bag } => {
                self.to_measure.push_back(bag);
                if self.to_measure.len() == 1 {
                    self.start_measuring();
                }
            }
            Effect::FetchOutput { task, output, output_bytes, from } => {
                let supplies = self.supplies.clone();
                self.jobs.spawn(async move {
                    let here = supplies.keep_output(output, output_bytes, from).await;
                    if let Err(error) = &here {
                        tracing::info!(error = format!("{error:#}"), "a result could not be fetched yet");
                    }
                    Done::Fetched { task, here: here.is_ok() }
                });
            }
            Effect::Notify(notice) => self.notice(notice),
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::BagAccepted(bag) => {
                tracing::info!(%bag, "bag accepted");
                self.answer_submission(bag);
            }
            Notice::BagClosed(bag) => tracing::info!(%bag, "bag closed"),
            Notice::Joined => tracing::info!("member of the grid"),
            Notice::Left => self.left = true,
        }
    }

    /// A write is on disk, or failed: then nothing that depends on it happens, and it is tried again.
    async fn committed(&mut self, result: CommitResult) {
        if let Err(error @ CommitError::Broken(_)) = &result.result {
            self.fatal = Some(error.clone());
        }
        match self.commits.ended(&result) {
            Ok(()) => self.feed(Event::Persisted(Ticket(result.ticket))).await,
            Err(keys) => self.refuse_unwritten(&keys).await,
        }
        self.commits.flow(&self.store);
    }

    /// A submission that cannot be written is refused, and given up.
    async fn refuse_unwritten(&mut self, keys: &[Vec<u8>]) {
        let unwritten: Vec<BagId> =
            self.submitting.keys().copied().filter(|bag| keys.contains(&RecordKey::Bag(*bag).to_bytes())).collect();
        for bag in unwritten {
            if let Some(reply) = self.submitting.remove(&bag) {
                let why = "the bag could not be written to disk: free some space and submit it again";
                super::views::answer(reply, Err(super::Refusal::Unavailable(why.to_owned())));
            }
            self.feed(Event::Cancelled(bag)).await;
        }
    }

    async fn net_event(&mut self, event: NetEvent) {
        match event {
            NetEvent::Received { from, bytes } => match Message::decode(&bytes) {
                Ok(message) => self.feed(Event::Received { from, message }).await,
                Err(error) => tracing::debug!(?from, %error, "message refused"),
            },
            NetEvent::Unreachable(peer) => self.feed(Event::ConnectionLost(peer)).await,
            NetEvent::Connected { .. } | NetEvent::Listening(_) => {}
        }
    }

    async fn done(&mut self, done: Done) {
        match done {
            Done::Manifest { slot, task, attempt, sources, result } => {
                self.manifest_here(slot, task, attempt, sources, result).await;
            }
            Done::Prepared { slot, result } => self.prepared(slot, result).await,
            Done::Collected { slot, task, outcome } => {
                self.slots[slot] = Slot::Free;
                self.feed(Event::TaskEnded { task, outcome }).await;
                self.note_busy();
            }
            Done::MeasurePrepared { bag, result } => self.measure_prepared(bag, result).await,
            Done::Measured { bag, cpu, outcome } => self.task_measured(bag, cpu, outcome).await,
            Done::Fetched { task, here } => self.feed(Event::Fetched { task, here }).await,
            Done::Bootstrapped(Some(contact)) => self.feed(Event::Bootstrap(contact)).await,
            Done::Bootstrapped(None) => {}
        }
    }

    // ---- the grid ----

    /// Dials those to join through until they answer; the neighbours of the last run only a few times.
    fn join_grid(&mut self) {
        let told = self.bootstrap.iter().cloned().map(|address| (address, None));
        let known = self.neighbours.addresses().into_iter().map(|address| (address, Some(NEIGHBOUR_TRIES)));
        for (address, tries) in told.chain(known).collect::<Vec<_>>() {
            let net = self.net.clone();
            self.jobs.spawn(async move { Done::Bootstrapped(dial(&net, address, tries).await) });
        }
    }

    async fn leave(&mut self) {
        tracing::info!("leaving the grid");
        self.workers.freeze();
        self.feed(Event::Leave).await;
        let until = Instant::now() + LEAVE_TIMEOUT;
        while !self.left && Instant::now() < until {
            let deadline = self.peer.deadline().map(|deadline| deadline.since(self.clock.now()));
            let deadline = deadline.map_or(until, |wait| (Instant::now() + wait).min(until));
            tokio::select! {
                Some(result) = self.store_events.recv() => self.committed(result).await,
                Some(event) = self.net_events.recv() => self.net_event(event).await,
                () = tokio::time::sleep_until(deadline) => self.feed(Event::DeadlineReached).await,
            }
        }
    }

    // ---- tasks ----

    /// Who may have a bag's blobs: its submitter, then whoever is near.
    fn sources(&self, submitter: &Contact) -> Vec<Contact> {
        let overlay = self.peer.overlay_view();
        std::iter::once(submitter).chain(overlay.neighbours()).filter(|contact| contact.peer != self.peer.me().peer).cloned().collect()
    }

    pub(super) fn remember(&mut self, bag: BagId, manifest: Arc<Manifest>) {
        if self.manifests.len() >= MANIFESTS_MAX {
            self.manifests.pop_first();
        }
        self.manifests.insert(bag, manifest);
    }

    fn start_task(&mut self, slot: usize, task: TaskId, attempt: u32, bag: BagHeader) {
        self.slots[slot] = Slot::Preparing { task, stopped: false };
        self.note_busy();
        let sources = self.sources(&bag.submitter);
        let known = self.manifests.get(&task.bag).cloned();
        let supplies = self.supplies.clone();
        self.jobs.spawn(async move {
            let result = match known {
                Some(manifest) => Ok(manifest),
                None => supplies.manifest(&bag, &sources).await.map(Arc::new),
            };
            Done::Manifest { slot, task, attempt, sources, result }
        });
    }

    async fn manifest_here(
        &mut self,
        slot: usize,
        task: TaskId,
        attempt: u32,
        sources: Vec<Contact>,
        result: Result<Arc<Manifest>, PrepareError>,
    ) {
        match result {
            Ok(manifest) => {
                self.remember(task.bag, manifest.clone());
                let supplies = self.supplies.clone();
                self.jobs.spawn(async move {
                    Done::Prepared { slot, result: supplies.prepare(task, attempt, manifest, &sources).await }
                });
            }
            Err(error) => self.prepared(slot, Err(error)).await,
        }
    }

    async fn prepared(&mut self, slot: usize, result: Result<Prepared, PrepareError>) {
        let Slot::Preparing { task, stopped } = self.slots[slot] else { return };
        if stopped {
            self.slots[slot] = Slot::Free;
            self.feed(Event::TaskEnded { task, outcome: TaskOutcome::Stopped }).await;
            return;
        }
        let started = result.and_then(|prepared| {
            self.workers.start(slot, &prepared.job).map_err(anyhow::Error::from)?;
            Ok(prepared)
        });
        match started {
            Ok(prepared) => self.slots[slot] = Slot::Running { task, prepared: Box::new(prepared) },
            Err(error) => {
                self.slots[slot] = Slot::Collecting;
                let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
                self.jobs.spawn_blocking(move || {
                    Done::Collected { slot, task, outcome: task::not_prepared(&blobs, error, speed_mops) }
                });
            }
        }
    }

    fn stop_task(&mut self, slot: usize) {
        match &mut self.slots[slot] {
            Slot::Preparing { stopped, .. } => *stopped = true,
            // Its end comes as an event.
            Slot::Running { .. } => {
                self.workers.stop(slot);
            }
            Slot::Free | Slot::Collecting => {}
        }
    }

    fn worker_ended(&mut self, event: WorkerEvent) {
        let (slot, ended) = ended(event);
        let Slot::Running { task, prepared } = std::mem::replace(&mut self.slots[slot], Slot::Collecting) else {
            return;
        };
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        self.jobs.spawn_blocking(move || {
            let codes = &prepared.manifest.success_codes;
            let outcome = task::collect(&blobs, Some(&prepared.job), codes, &ended, speed_mops);
            task::clean(&prepared.job);
            Done::Collected { slot, task, outcome }
        });
    }

    // ---- how long a task takes ----

    /// Runs the first task of the first bag that waits. The owner's presence does not freeze it: they asked for it.
    fn start_measuring(&mut self) {
        let Some(&bag) = self.to_measure.front() else { return };
        let known = self.manifests.get(&bag).cloned();
        let Some(header) = self.peer.bag(bag).map(|view| view.bag) else {
            self.to_measure.pop_front();
            return self.start_measuring();
        };
        let mut supplies = self.supplies.clone();
        supplies.scratch = supplies.scratch.join("measure");
        self.jobs.spawn(async move {
            let manifest = match known {
                Some(manifest) => Ok(manifest),
                None => supplies.manifest(&header, &[]).await.map(Arc::new),
            };
            let result = match manifest {
                Ok(manifest) => supplies.prepare(TaskId { bag, index: 0 }, 0, manifest, &[]).await,
                Err(error) => Err(error),
            };
            Done::MeasurePrepared { bag, result }
        });
    }

    async fn measure_prepared(&mut self, bag: BagId, result: Result<Prepared, PrepareError>) {
        let started = result.and_then(|mut prepared| {
            let limit = prepared.job.time_limit.unwrap_or(MEASURE_LIMIT);
            prepared.job.time_limit = Some(limit.min(MEASURE_LIMIT));
            self.measuring.start(0, &prepared.job).map_err(anyhow::Error::from)?;
            Ok(prepared)
        });
        match started {
            Ok(prepared) => self.measured = Some(prepared),
            Err(error) => {
                tracing::warn!(%bag, %error, "the first task could not be measured; taken as short");
                self.task_measured(bag, MEASURE_LEAST, TaskOutcome::Stopped).await;
            }
        }
    }

    fn measure_ended(&mut self, event: WorkerEvent) {
        let (_, ended) = ended(event);
        let (Some(&bag), Some(prepared)) = (self.to_measure.front(), self.measured.take()) else { return };
        let (blobs, speed_mops) = (self.supplies.blobs.clone(), self.config.speed_mops);
        self.jobs.spawn_blocking(move || {
            let codes = &prepared.manifest.success_codes;
            let outcome = task::collect(&blobs, Some(&prepared.job), codes, &ended, speed_mops);
            task::clean(&prepared.job);
            Done::Measured { bag, cpu: ended.cpu, outcome }
        });
    }

    async fn task_measured(&mut self, bag: BagId, cpu: Duration, outcome: TaskOutcome) {
        let task_mops = cpu.max(MEASURE_LEAST).as_secs_f64() * self.config.speed_mops;
        let result = match outcome {
            TaskOutcome::Finished { success: true, output, output_bytes, work_mops } => {
                Some(TaskResult { index: 0, attempt: 0, success: true, output, output_bytes, work_mops })
            }
            _ => None,
        };
        self.to_measure.pop_front();
        self.feed(Event::Measured { bag, task_mops, result }).await;
        self.start_measuring();
    }

    // ---- the owner ----

    /// Since when the machine works, or does not; while it is suspended that is what counts.
    fn note_busy(&mut self) {
        let busy = self.slots.iter().any(|slot| !matches!(slot, Slot::Free));
        let suspended = self.activity.owner_present || self.activity.pause.is_some();
        if busy != std::mem::replace(&mut self.activity.busy, busy) && !suspended {
            self.activity.since = self.clock.now();
        }
    }

    async fn ask_owner(&mut self) {
        let now = self.clock.now();
        let mut activity = self.activity;
        activity.owner_present = self.probe.is_present();
        if activity.pause.is_some_and(|pause| pause.until.is_some_and(|until| until <= now)) {
            activity.pause = None;
        }
        self.set_activity(activity).await;
    }

    /// The machine is its owner's while they are present or have paused it.
    pub(super) async fn set_activity(&mut self, activity: Activity) {
        let before = self.activity.owner_present || self.activity.pause.is_some();
        let after = activity.owner_present || activity.pause.is_some();
        self.activity = activity;
        if before != after {
            self.activity.since = self.clock.now();
            tracing::info!(owner_present = activity.owner_present, paused = activity.pause.is_some(), "owner's state");
            self.feed(if after { Event::OwnerReturned } else { Event::OwnerLeft }).await;
        }
    }
}

fn ended(event: WorkerEvent) -> (usize, Ended) {
    let WorkerEvent::Ended { slot, outcome, wall, cpu, output_truncated, .. } = event;
    (slot, Ended { outcome, wall, cpu, output_truncated })
}

fn to_store(change: Change) -> crate::store::Change {
    match change {
        Change::Put(record) => {
            crate::store::Change { key: record.key().to_bytes(), value: Some(record.encode()) }
        }
        Change::Delete(key) => crate::store::Change { key: key.to_bytes(), value: None },
    }
}

fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Dials an agent until it answers, or `tries` times.
async fn dial(net: &NetHandle, address: Multiaddr, tries: Option<u32>) -> Option<Contact> {
    let mut tried = 0;
    loop {
        match net.dial(address.clone()).await {
            Ok(peer) => return Some(Contact { peer, incarnation: 0, address: address.to_string().into() }),
            Err(crate::net::DialError::Oneself(_) | crate::net::DialError::Closed) => return None,
            Err(error) if tries.is_none() => tracing::warn!(%error, "cannot join through this agent yet"),
            Err(error) => tracing::debug!(%error, "a neighbour of the last run is not there"),
        }
        tried += 1;
        if tries.is_some_and(|tries| tried >= tries) {
            return None;
        }
        tokio::time::sleep(BOOTSTRAP_INTERVAL).await;
    }
}
