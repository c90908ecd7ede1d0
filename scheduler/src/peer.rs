//! One machine: its place in the tree, its router, its queue, and the bags submitted from it.
//!
//! A driver owns a [`Peer`] and nothing else of the protocol. It feeds [`Event`]s and carries out [`Effect`]s; the
//! agent does so with sockets, processes and a store, the simulator with an event queue.

mod redistribution;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, Node, Overlay, PayloadCodec, PeerId, PositionKey, State, Time, WallTime};
use serde::{Deserialize, Serialize};

use self::redistribution::Asking;
use crate::bag::{
    BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, BagHeader, BagId, BlobId, Checkpoint, DeclineReason, Request, TaskId, TaskResult,
};
use crate::config::Config;
use crate::executor::{Executor, HeldView, Lease, RunningTask};
use crate::io::{Io, Then, Ticket};
use crate::ledger::{BagView, Holding, Known, Ledger, REPLICAS_MAX, Replication, refuse};
use crate::message::Message;
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record};
use crate::reputation::Reputation;
use crate::router::{CLIMBED_MAX, Platform, Router};
use crate::summary;

/// A bag to be submitted from this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Hash of its manifest.
    pub id: BagId,
    /// Number of tasks, at least 1.
    pub tasks: u64,
    /// Work of one task in Mop; `None`: the driver measures it ([`Effect::MeasureTask`]).
    pub task_mops: Option<f64>,
    /// Failed tries a task may have before it counts as failed.
    pub retries_max: u32,
    /// How many machines run each task.
    #[serde(default)]
    pub replication: Replication,
}

/// How a started task ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskOutcome {
    /// It ran, well or not.
    Finished {
        /// Whether its exit code is among those the bag declares as success.
        success: bool,
        /// Whether its worker died under it, which may be this machine's fault.
        crashed: bool,
        /// Everything it produced; already durable on this machine.
        output: BlobId,
        /// Size of that blob.
        output_bytes: u64,
        /// Work it turned out to be, in Mop.
        work_mops: f64,
        /// Its exit code; `None` where it did not end by itself.
        exit_code: Option<u8>,
    },
    /// Its program or input could not be had; the bag is left alone for a while.
    NotStarted {
        /// How long.
        retry_after: Duration,
    },
    /// The driver stopped it, as told or not.
    Stopped,
}

/// A fact that reached this peer.
#[derive(Clone, Debug)]
pub enum Event {
    /// A first contact answered: join through it.
    Bootstrap(Contact),
    /// A message arrived; `from` is authenticated by the transport.
    Received {
        /// Who sent it.
        from: PeerId,
        /// What was sent.
        message: Message,
    },
    /// The transport could not deliver to this peer, or lost its connection.
    ConnectionLost(PeerId),
    /// A write is durable.
    Persisted(Ticket),
    /// The user submits a bag.
    Submitted(Submission),
    /// The first task of a bag was run to see how long it takes.
    Measured {
        /// Which bag.
        bag: BagId,
        /// Work of one task, in Mop.
        task_mops: f64,
        /// Its result where it ran to the end.
        result: Option<TaskResult>,
    },
    /// The user gives up a bag.
    Cancelled(BagId),
    /// The user wants the failed tasks of a bag to be tried again.
    RerunFailed(BagId),
    /// The user needs nothing of a bag any more; ignored unless it is over.
    Removed(BagId),
    /// The answer to [`Effect::Authorise`]: tasks of the bag may queue here, or why not.
    Authorised {
        /// Which bag.
        bag: BagId,
        /// Whether they may.
        verdict: Result<(), DeclineReason>,
    },
    /// A worker is free again.
    TaskEnded {
        /// Which task it had.
        task: TaskId,
        /// How that ended.
        outcome: TaskOutcome,
    },
    /// These tasks, which began here in an earlier life, left checkpoints.
    CheckpointsFound {
        /// Of which bag.
        bag: BagId,
        /// Which tasks.
        tasks: IntervalSet,
    },
    /// The answer to [`Effect::KeepCheckpoints`]; those that have none are not named.
    CheckpointsKept {
        /// Of which bag.
        bag: BagId,
        /// What is durable on this machine for each task; `None`: it has a checkpoint that cannot travel.
        checkpoints: BTreeMap<u64, Option<Checkpoint>>,
    },
    /// The output of a result is here, durable, or could not be had.
    Fetched {
        /// Whose output.
        task: TaskId,
        /// Whether it is here.
        here: bool,
    },
    /// The owner of the machine is back.
    OwnerReturned,
    /// The owner of the machine is away.
    OwnerLeft,
    /// What has not begun, or is frozen for others, goes back at once, if the owner is there, and not after the vacate time.
    Vacate,
    /// From now on that is so long after the owner's return.
    VacatesAfter(Duration),
    /// Leave the grid in good order. Bags and tasks stay.
    Leave,
    /// Back after a leave, in a newer life with the same bags and tasks. Ignored unless it left.
    Return,
    /// [`Peer::deadline`] has come.
    DeadlineReached,
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a message. It may be lost.
    Send {
        /// To whom.
        to: Contact,
        /// What.
        message: Message,
    },
    /// Write all of this or nothing, durably, then say so with [`Event::Persisted`].
    Persist {
        /// Names the write.
        ticket: Ticket,
        /// What changes.
        changes: Vec<Change>,
    },
    /// Look whether a bag may queue here: whether its manifest is signed by a submitter of the grid, says what this header
    /// says, and is what the owner lets run. [`Event::Authorised`] follows; nothing of it queues before.
    Authorise {
        /// The bag as a request describes it, which anybody may have written.
        bag: BagHeader,
    },
    /// Run a task; [`Event::TaskEnded`] follows.
    StartTask {
        /// On which worker, below [`Config::places`]; it has no task.
        place: u32,
        /// Which task.
        task: TaskId,
        /// 0 for the first try.
        attempt: u32,
        /// Its bag, whose submitter has the manifest.
        bag: BagHeader,
        /// What it goes on from, unless it has been at work here since; the submitter has it.
        checkpoint: Option<Checkpoint>,
    },
    /// Stop a task, frozen or not; [`Event::TaskEnded`] follows.
    StopTask {
        /// On which worker.
        place: u32,
        /// Which task.
        task: TaskId,
    },
    /// Freeze a task: its worker keeps it, and others run meanwhile. It may end all the same, if it just did.
    FreezeTask {
        /// On which worker.
        place: u32,
        /// Which task.
        task: TaskId,
    },
    /// Let a task that [`Effect::FreezeTask`] froze go on where it stopped.
    ThawTask {
        /// On which worker.
        place: u32,
        /// Which task.
        task: TaskId,
    },
    /// Keep, durably, what those of these tasks that do not run go on from; [`Event::CheckpointsKept`] follows unless there
    /// is nothing to tell.
    KeepCheckpoints {
        /// Of which bag.
        bag: BagId,
        /// Which tasks: they have begun, and are on no machine but this.
        tasks: IntervalSet,
    },
    /// Freeze all tasks at once: the owner is back. Nothing is started, frozen or thawed until [`Effect::ResumeTasks`].
    SuspendTasks,
    /// Let them go on, but for those that [`Effect::FreezeTask`] froze.
    ResumeTasks,
    /// Run the first task of a bag for a while to see how long it takes; [`Event::Measured`] follows.
    MeasureTask {
        /// Which bag.
        bag: BagId,
    },
    /// Get the output of a task and keep it durably; [`Event::Fetched`] follows.
    FetchOutput {
        /// Whose output.
        task: TaskId,
        /// Its content address.
        output: BlobId,
        /// Its size.
        output_bytes: u64,
        /// Who has it.
        from: Contact,
    },
    /// News.
    Notify(Notice),
}

/// What a driver's user may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A submission is durable.
    BagAccepted(BagId),
    /// Every task of a bag is over, or it was cancelled; durable.
    BagClosed(BagId),
    /// This peer is a member of the grid.
    Joined,
    /// This peer has left the grid.
    Left,
}

/// Why a submission is refused. Nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError {
    /// No tasks, or too many.
    #[error("a bag has between 1 and {BAG_TASKS_MAX} tasks, not {0}")]
    Tasks(u64),
    /// Not a number to compute with.
    #[error(
        "the work of a task must be at least {WORK_MOPS_MIN} Mop, and that of all at most {BAG_WORK_MOPS_MAX:e} Mop"
    )]
    Work,
    /// No such numbers of replicas.
    #[error("a task has between 1 and {REPLICAS_MAX} replicas, and a quorum between 1 and that")]
    Replication,
    /// The same manifest again.
    #[error("this very bag was submitted before")]
    Known,
}

/// Reports tell what changed since the last one.
pub(crate) const REPORTS: PayloadCodec = PayloadCodec { pack: summary::pack, unpack: summary::unpack };

/// A leaf that works its queue off offers more again as time passes: it says so after this share of the time that the
/// queue takes, but not later than that. What it said before stays a lower bound.
const REFRESH_SHARE: u32 = 8;
const REFRESH_MAX: Duration = Duration::from_secs(300);

/// Requests that wait for the repair of the tree at the same time; more are dropped, and issued again by their submitters.
const CUT_OFF_MAX: usize = 256;

/// Why a peer cannot be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The settings make no sense.
    #[error("{0}")]
    Config(String),
}

/// One machine of the grid.
pub struct Peer {
    config: Arc<Config>,
    grid: GridId,
    overlay: Overlay,
    overlay_effects: Vec<idlewood_overlay::Effect>,
    router: Router,
    /// Requests that climb and wait until this router is below the root again, and until when.
    cut_off: Vec<(Time, Request)>,
    executor: Executor,
    ledgers: BTreeMap<BagId, Box<Ledger>>,
    io: Io,
    /// When the leaf's summary may be, and when it must be, published again.
    summary_earliest: Time,
    summary_latest: Time,
    router_changed: bool,
    /// When the router's may be published again.
    router_earliest: Time,
    /// Until then a machine that is alone waits for the grid that it expects.
    alone_until: Option<Time>,
    asking: Asking,
    /// When the executor has timed work next, and whether that has to be found anew, since something may have changed for
    /// it: most events are the tree's, and looking at all that is held would cost more than they do.
    executor_due: Option<Time>,
    executor_touched: bool,
    /// When there is timed work next; found anew after each event.
    deadline: Option<Time>,
}

impl Peer {
    /// Rebuilds a peer from what it had persisted; a new peer has no records.
    ///
    /// Peers with the same `config` can share it. `me.incarnation` is what the driver knows (wall-clock milliseconds); it is raised above the persisted one, and
    /// made durable by the first effects. `wall_now` turns recorded wall-clock times into ages.
    ///
    /// # Errors
    /// [`RestoreError`] when `config` makes no sense.
    pub fn restore(
        config: impl Into<Arc<Config>>,
        grid: GridId,
        mut me: Contact,
        seed: u64,
        now: Time,
        wall_now: WallTime,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RestoreError> {
        let config = config.into();
        config.validate().map_err(RestoreError::Config)?;
        let records: Vec<Record> = records.into_iter().collect();
        for record in &records {
            if let Record::Incarnation(last) = record {
                me.incarnation = me.incarnation.max(last.saturating_add(1));
            }
        }
        let mut io = Io::new(now, wall_now, me.clone());
        io.secret = seed;
        for record in &records {
            if let Record::Reputation { executor, reputation } = record {
                io.reputations.restore(*executor, *reputation);
            }
        }
        let overlay = Overlay::new(config.overlay.clone(), grid, me.clone(), seed, now, REPORTS);
        let mut peer = Self {
            executor: Executor::new(&config),
            config,
            grid,
            overlay,
            overlay_effects: Vec::new(),
            router: Router::default(),
            cut_off: Vec::new(),
            ledgers: BTreeMap::new(),
            io,
            summary_earliest: now,
            summary_latest: now,
            router_changed: false,
            router_earliest: now,
            alone_until: None,
            asking: Asking::new(now),
            executor_due: None,
            executor_touched: true,
            deadline: Some(now),
        };
        peer.alone_until = peer.config.expects_grid.then(|| now + peer.config.placement_timeout);
        peer.restore_bags(&records);
        peer.restore_tasks(records);
        peer.io.persist(vec![Change::Put(Record::Incarnation(me.incarnation))], Vec::new());
        Ok(peer)
    }

    /// Bags first, then what is over, then what was placed: each step takes its tasks out of the one before.
    fn restore_bags(&mut self, records: &[Record]) {
        for record in records {
            if let Record::Bag { bag, released, retries_max, attempt, closed, replication } = record {
                let released = self.io.moment(*released);
                let bag = BagHeader { submitter: self.io.me.clone(), ..bag.clone() };
                let mut ledger = Ledger::new(bag, released, *retries_max, *replication, &self.io);
                ledger.restore_attempt(*attempt);
                if let Some((closing, at)) = closed {
                    ledger.restore_closed(*closing, self.io.moment(*at));
                }
                ledger.open();
                if !ledger.is_measured() && !ledger.is_closed() {
                    self.io.effects.push(Effect::MeasureTask { bag: ledger.header().id });
                }
                self.ledgers.insert(ledger.header().id, Box::new(ledger));
            }
        }
        for record in records {
            if let Record::Done { bag, result, .. } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_done(result);
            }
        }
        for record in records {
            if let Record::Failures { bag, index, count, crashed_on, next_attempt } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_failures(*index, *count, crashed_on.clone(), *next_attempt);
            }
        }
        for record in records {
            if let Record::Checkpoint { bag, index, checkpoint } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_checkpoint(*index, *checkpoint);
            }
        }
        for record in records {
            if let Record::Placed { bag, executor, ranges } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_placed(executor.clone(), ranges, &mut self.io, &self.config);
            }
            if let Record::Former { bag, executor, ranges } = record
                && let Some(ledger) = self.ledgers.get_mut(bag)
            {
                ledger.restore_former(*executor, ranges.clone());
            }
        }
        for ledger in self.ledgers.values_mut() {
            ledger.close_if_over(&mut self.io);
            ledger.issue_anew(&mut self.io);
            ledger.greet(&mut self.io, &self.config);
        }
    }

    fn restore_tasks(&mut self, records: Vec<Record>) {
        for record in records {
            match record {
                Record::Held { bag, released, attempt, attempts, ranges, checkpoints } => {
                    let released = self.io.moment(released);
                    let attempts = attempts.unwrap_or_else(|| BTreeMap::from([(attempt, ranges.clone())]));
                    let attempts = (attempt, &attempts);
                    self.executor.restore_held(bag, released, attempts, &ranges, checkpoints, &self.config);
                }
                Record::Outbox { bag, released, result } => {
                    let released = self.io.moment(released);
                    self.executor.restore_result(bag, released, result, &self.config);
                }
                Record::Incarnation(_)
                | Record::Bag { .. }
                | Record::Placed { .. }
                | Record::Former { .. }
                | Record::Reputation { .. }
                | Record::Failures { .. }
                | Record::Checkpoint { .. }
                | Record::Done { .. } => {}
            }
        }
    }

    /// Feeds one event; appends effects in the order they must be carried out.
    ///
    /// `now` never decreases. Infallible: what a remote peer does wrong becomes an effect or a counter.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.io.now = now;
        self.notice_sleep();
        self.executor_touched |= !matches!(event, Event::Received { .. } | Event::DeadlineReached);
        match event {
            Event::Bootstrap(contact) => self.overlay(idlewood_overlay::Event::Bootstrap(contact)),
            Event::Received { from, message } => self.receive(from, message),
            Event::ConnectionLost(peer) => self.overlay(idlewood_overlay::Event::ConnectionLost(peer)),
            Event::Persisted(ticket) => {
                if let Some(bag) = self.io.persisted(ticket) {
                    self.open(bag);
                }
            }
            Event::Submitted(submission) => self.submitted(submission),
            Event::Measured { bag, task_mops, result } => self.measured(bag, task_mops, result),
            Event::Cancelled(bag) => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.close(Closing::Cancelled, &mut self.io);
                }
            }
            Event::RerunFailed(bag) => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.rerun_failed(&mut self.io);
                }
            }
            Event::Removed(bag) => self.remove(bag),
            Event::Authorised { bag, verdict } => {
                self.executor.authorised(bag, verdict, &mut self.io, &self.config);
            }
            Event::TaskEnded { task, outcome } => {
                self.executor.ended(task, outcome, &mut self.io, &self.config);
            }
            Event::CheckpointsFound { bag, tasks } => self.executor.found_checkpoints(bag, &tasks),
            Event::CheckpointsKept { bag, checkpoints } => {
                self.executor.kept_checkpoints(bag, &checkpoints, &mut self.io, &self.config);
            }
            Event::Vacate => self.executor.vacate(&mut self.io),
            Event::VacatesAfter(after) => self.executor.vacates_after(after),
            Event::Fetched { task, here } => {
                if let Some(ledger) = self.ledgers.get_mut(&task.bag) {
                    ledger.fetched(task.index, here, &mut self.io);
                }
            }
            Event::OwnerReturned => self.executor.suspend(&mut self.io),
            Event::OwnerLeft => self.executor.resume(&mut self.io),
            Event::Leave => {
                self.executor.tell_all(now);
                self.overlay(idlewood_overlay::Event::Leave);
            }
            Event::Return => self.come_back(),
            Event::DeadlineReached => self.overlay(idlewood_overlay::Event::DeadlineReached),
        }
        self.settle();
        if self.executor_must_act() {
            self.executor_due = self.executor.deadline(&self.io);
            self.executor_touched = false;
        }
        self.io.placements = self.ledgers.values().map(|ledger| ledger.executors()).sum();
        self.deadline = self.next_deadline();
        effects.append(&mut self.io.effects);
    }

    /// Joins again in a newer life, which has published nothing, and which whoever restarts must be able to outlive.
    fn come_back(&mut self) {
        let incarnation = self.overlay.me().incarnation;
        let had_neighbours = self.overlay.neighbours().next().is_some();
        self.overlay(idlewood_overlay::Event::Return);
        if self.overlay.me().incarnation == incarnation {
            return;
        }
        self.io.persist(vec![Change::Put(Record::Incarnation(self.overlay.me().incarnation))], Vec::new());
        self.executor.changed = true;
        self.summary_earliest = self.io.now;
        let expects_grid = had_neighbours || self.config.expects_grid;
        self.alone_until = expects_grid.then(|| self.io.now + self.config.placement_timeout);
    }

    /// When `handle` next has timed work to do; `None` when only an event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    fn next_deadline(&self) -> Option<Time> {
        let summary = if self.executor.changed {
            Some(self.summary_earliest)
        } else {
            self.executor.has_work().then_some(self.summary_latest)
        };
        let ledgers =
            self.ledgers.values().filter(|ledger| !ledger.is_closed()).filter_map(|ledger| ledger.deadline()).min();
        let executor = self.executor_due;
        let router = if self.router_changed {
            Some(self.router_earliest.max(self.io.now))
        } else {
            self.router.deadline(&self.config)
        };
        let alone = self.alone_until.filter(|&until| until > self.io.now);
        let ask = self.ask_deadline();
        [self.overlay.deadline(), summary, ledgers, executor, router, alone, ask].into_iter().flatten().min()
    }

    /// A driver that comes far too late was asleep, or its clock jumped: leases that ended meanwhile were not broken by
    /// anybody (`design.md`, fault tolerance).
    fn notice_sleep(&mut self) {
        let late = self.deadline.map_or(Duration::ZERO, |deadline| self.io.now.since(deadline));
        if late < self.config.lease / 3 {
            return;
        }
        for ledger in self.ledgers.values_mut() {
            ledger.renew_all(&self.io, &self.config);
        }
    }

    /// Whether a submission can be taken; [`Event::Submitted`] ignores what this refuses.
    ///
    /// # Errors
    /// [`SubmitError`]: what is wrong with it.
    pub fn check(&self, submission: &Submission) -> Result<(), SubmitError> {
        if !(1..=BAG_TASKS_MAX).contains(&submission.tasks) {
            return Err(SubmitError::Tasks(submission.tasks));
        }
        let sane =
            |work: f64| work >= WORK_MOPS_MIN && self.application_size(work, submission.tasks) <= BAG_WORK_MOPS_MAX;
        if submission.task_mops.is_some_and(|work| !sane(work)) {
            return Err(SubmitError::Work);
        }
        if !submission.replication.is_valid() {
            return Err(SubmitError::Replication);
        }
        if self.ledgers.contains_key(&submission.id) {
            return Err(SubmitError::Known);
        }
        Ok(())
    }

    fn overlay(&mut self, event: idlewood_overlay::Event) {
        self.overlay.handle(self.io.now, event, &mut self.overlay_effects);
    }

    fn receive(&mut self, from: PeerId, message: Message) {
        self.executor_touched |= !matches!(message, Message::Overlay(_));
        match message {
            Message::Overlay(message) => self.overlay(idlewood_overlay::Event::Received { from: from.into(), message }),
            Message::Request { request, node, climbing } => self.request(request, node, climbing),
            Message::Holding { bag, executor, version, attempt, ranges } if executor.peer == from => {
                match self.ledgers.get_mut(&bag) {
                    Some(ledger) => {
                        let holding = Holding { executor, version, attempt, ranges };
                        ledger.holding(holding, &mut self.io, &self.config);
                    }
                    None => refuse(bag, executor, version, ranges, &mut self.io),
                }
            }
            Message::Ask { asker, node, climbing, climbed } => self.asked(asker, node, climbing, climbed),
            Message::Offer { bag, executor, ranges, to } if executor.peer == from => match self.ledgers.get_mut(&bag) {
                Some(ledger) => ledger.offer(executor, &ranges, to, &mut self.io, &self.config),
                None => refuse(bag, executor, 0, ranges, &mut self.io),
            },
            Message::Results { bag, executor, results, .. } if executor.peer == from => {
                match self.ledgers.get_mut(&bag) {
                    Some(ledger) => ledger.results(&executor, results, &mut self.io, &self.config),
                    None => {
                        let mut indices = IntervalSet::new();
                        for result in results {
                            indices.insert_index(result.index);
                        }
                        self.io.send(executor, Message::ResultsAck { bag, indices });
                    }
                }
            }
            Message::Decline { bag, executor, ranges, reason } if executor.peer == from => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.declined(from, &ranges, reason, &mut self.io);
                }
            }
            Message::Renewal { executor, bags } if executor.peer == from => self.renewal(executor, bags),
            // Only the peer itself may speak of what it holds.
            Message::Holding { .. }
            | Message::Renewal { .. }
            | Message::Offer { .. }
            | Message::Decline { .. }
            | Message::Results { .. } => {}
            Message::Lease { bag, version, submitter, term, drop, rest } => {
                let lease = Lease { bag, version, submitter, term, drop, rest };
                self.executor.lease(from, lease, &mut self.io, &self.config);
            }
            Message::Renewed { bags, term } => {
                self.executor.renewed(from, &bags, term, &mut self.io, &self.config);
            }
            Message::ResultsAck { bag, indices } => {
                self.executor.acknowledged(from, bag, &indices, &mut self.io, &self.config);
            }
        }
    }

    /// An executor renews its leases. Where what it refers to is not what is known here it has to say what it holds, or to
    /// forget it.
    fn renewal(&mut self, executor: Contact, mut bags: Vec<(BagId, u64)>) {
        let mut shortest: Option<Duration> = None;
        bags.retain(|&(bag, version)| {
            let Some(ledger) = self.ledgers.get_mut(&bag) else {
                refuse(bag, executor.clone(), version, IntervalSet::from(0..BAG_TASKS_MAX), &mut self.io);
                return false;
            };
            let term = ledger.renew(&executor, version, &mut self.io, &self.config);
            shortest = shortest.into_iter().chain(term).min();
            term.is_some()
        });
        if let Some(term) = shortest {
            self.io.send(executor, Message::Renewed { bags, term });
        }
    }

    /// A request reached this machine's leaf or router.
    fn request(&mut self, request: Request, node: Node, climbing: bool) {
        self.executor_touched = true;
        if node == Node::Router && climbing && !self.overlay.hosts_router() && !self.is_alone() {
            // It was meant for a router that has moved since: where this leaf hangs now, there is one.
            self.enter(request);
            return;
        }
        if node == Node::Router && self.router.has_split(&request) {
            // Also where the router has moved since: the leaf would take what others were sent.
            return;
        }
        if node == Node::Leaf || !self.overlay.hosts_router() {
            self.executor.accept(request, &mut self.io, &self.config);
            return;
        }
        if climbing && self.overlay.depth(Node::Router).is_none() {
            // Cut off from the root while the tree is being repaired: whatever is decided here would crowd this
            // subtree, perhaps one machine.
            if self.cut_off.len() < CUT_OFF_MAX {
                self.cut_off.push((self.io.now + self.config.placement_timeout / 2, request));
            }
            return;
        }
        let (platform, now) = (self.platform(), self.io.now);
        let sent = self.router.route(request.clone(), climbing, &self.overlay, &platform, now, &self.config);
        self.router_changed = true;
        if sent.is_empty() {
            // The tree is being repaired and no child is known: this machine is always one that can.
            self.executor.accept(request, &mut self.io, &self.config);
        }
        for (to, message) in sent {
            self.io.send(to, message);
        }
    }

    /// A request starts: at the own router, the leaf's parent, or the own leaf of a machine alone. Where there is none
    /// of them, because the tree is being repaired, the submitter will issue it again.
    fn enter(&mut self, mut request: Request) {
        let is_above = |parent: &&Contact| parent.peer != self.io.me.peer;
        let parent = match self.overlay.depth(Node::Router) {
            Some(_) => None,
            None => self.overlay.parent(Node::Leaf).filter(is_above).cloned(),
        };
        match parent {
            Some(parent) if request.climbed < CLIMBED_MAX => {
                request.climbed += 1;
                let message = Message::Request { request, node: Node::Router, climbing: true };
                self.io.send(parent, message);
            }
            None if self.is_alone() || self.overlay.hosts_router() => self.request(request, Node::Router, true),
            Some(_) | None => {}
        }
    }

    /// Lets those go on that had to wait for the repair of the tree. What waited too long its submitter issues again.
    fn pass_cut_off(&mut self) {
        if self.cut_off.is_empty() || self.overlay.hosts_router() && self.overlay.depth(Node::Router).is_none() {
            return;
        }
        for (until, request) in std::mem::take(&mut self.cut_off) {
            if until > self.io.now {
                self.request(request, Node::Router, true);
            }
        }
    }

    fn is_alone(&self) -> bool {
        self.overlay.state() == State::Alone
    }

    /// Whether requests find their way: alone, and not about to join others, or with a leaf that hangs below the root.
    fn is_attached(&self) -> bool {
        match self.overlay.state() {
            State::Alone => self.alone_until.is_none_or(|until| until <= self.io.now),
            State::Member | State::Leaving => self.overlay.depth(Node::Leaf).is_some(),
            State::Joining | State::Left => false,
        }
    }

    fn submitted(&mut self, submission: Submission) {
        if self.check(&submission).is_err() {
            return;
        }
        let task_mops = submission.task_mops.unwrap_or(0.0);
        let bag = BagHeader {
            id: submission.id,
            submitter: self.io.me.clone(),
            tasks: submission.tasks,
            task_mops,
            application_size_mops: self.application_size(task_mops, submission.tasks),
            declared: submission.task_mops.is_some(),
        };
        let ledger = Ledger::new(bag, self.io.now, submission.retries_max, submission.replication, &self.io);
        let record = ledger.record(&self.io);
        self.ledgers.insert(submission.id, Box::new(ledger));
        let then = vec![Then::Notify(Notice::BagAccepted(submission.id)), Then::Open(submission.id)];
        self.io.persist(vec![Change::Put(record)], then);
    }

    /// Whoever still has something of it is told to forget it, as of any bag that is not known here.
    fn remove(&mut self, bag: BagId) {
        if let Some(ledger) = self.ledgers.remove(&bag) {
            if ledger.is_closed() {
                self.io.persist(ledger.removal(), Vec::new());
            } else {
                self.ledgers.insert(bag, ledger);
            }
        }
    }

    /// w' = a·max(n, N), or the paper's w = a·n.
    fn application_size(&self, task_mops: f64, tasks: u64) -> f64 {
        let width = if self.config.effective_size { tasks.max(self.io.leaves) } else { tasks };
        task_mops * width as f64
    }

    fn measured(&mut self, bag: BagId, task_mops: f64, result: Option<TaskResult>) {
        let Some(tasks) = self.ledgers.get(&bag).map(|ledger| ledger.header().tasks) else { return };
        let most = BAG_WORK_MOPS_MAX / self.application_size(1.0, tasks);
        // NaN becomes the least, too.
        let task_mops = task_mops.max(WORK_MOPS_MIN).min(most);
        // The product may round to more than it was divided from.
        let size = self.application_size(task_mops, tasks).min(BAG_WORK_MOPS_MAX);
        let Some(ledger) = self.ledgers.get_mut(&bag) else { return };
        if ledger.is_closed() || ledger.is_measured() {
            return;
        }
        ledger.set_work(task_mops, size);
        self.io.persist(vec![Change::Put(ledger.record(&self.io))], Vec::new());
        if let Some(result) = result.filter(|result| result.success && result.is_valid(tasks)) {
            let me = self.io.me.clone();
            ledger.record_result(result, me, &mut self.io);
        }
    }

    /// Whether there may be something for the executor to do.
    fn executor_must_act(&self) -> bool {
        self.executor_touched || self.executor_due.is_some_and(|due| due <= self.io.now)
    }

    /// Does everything that follows from an event, until nothing more does.
    fn settle(&mut self) {
        if self.io.me != *self.overlay.me() {
            self.io.me.clone_from(self.overlay.me());
        }
        if self.executor_must_act() {
            self.executor.tick(&mut self.io, &self.config);
        }
        for ledger in self.ledgers.values_mut() {
            ledger.expire(&mut self.io);
        }
        loop {
            self.pass_cut_off();
            self.issue();
            self.drain_overlay();
            if let Some(message) = self.io.local.pop_front() {
                self.receive(self.io.me.peer, message);
                continue;
            }
            if self.executor_must_act() {
                self.executor.dispatch(&mut self.io);
            }
            self.ask_for_work();
            if self.io.local.is_empty() {
                break;
            }
        }
        self.publish();
        self.drain_overlay();
    }

    /// A bag whose submission has just become durable may be issued.
    fn open(&mut self, bag: BagId) {
        let Some(ledger) = self.ledgers.get_mut(&bag).filter(|ledger| !ledger.is_closed()) else { return };
        ledger.open();
        if !ledger.is_measured() {
            self.io.effects.push(Effect::MeasureTask { bag });
        }
    }

    /// Sends out everything that is to be placed, once this machine has its place in the tree: a submitter that
    /// comes back would otherwise take all of it on itself.
    fn issue(&mut self) {
        if !self.is_attached() {
            return;
        }
        let (grid, overlay, me) = (self.grid, &self.overlay, &self.io.me);
        let right = |peer| PositionKey::new(grid, peer).0[0] >= 0x80;
        let known = || {
            let contacts = overlay.neighbours().chain([me]);
            contacts.map(|contact| Known { contact: contact.clone(), right: right(contact.peer) }).collect()
        };
        let mut requests = Vec::new();
        for ledger in self.ledgers.values_mut() {
            requests.append(&mut ledger.issue(&self.io, &self.config));
            let copies = ledger.copies_due(known, right, &self.io, &self.config);
            requests.extend(copies.into_iter().map(|(to, request)| (Some(to), request)));
        }
        for (to, request) in requests {
            match to {
                Some(to) => self.io.send(to, Message::Request { request, node: Node::Leaf, climbing: false }),
                None => self.enter(request),
            }
        }
    }

    fn drain_overlay(&mut self) {
        for effect in std::mem::take(&mut self.overlay_effects) {
            match effect {
                idlewood_overlay::Effect::Send { to, message } => {
                    self.io.send(Contact::clone(&to), Message::Overlay(message));
                }
                idlewood_overlay::Effect::Notify(notice) => self.noticed(notice),
            }
        }
    }

    fn noticed(&mut self, notice: idlewood_overlay::Notice) {
        match notice {
            idlewood_overlay::Notice::Joined => {
                self.alone_until = None;
                self.io.notify(Notice::Joined);
            }
            idlewood_overlay::Notice::Left => self.io.notify(Notice::Left),
            idlewood_overlay::Notice::ChildrenChanged | idlewood_overlay::Notice::PlaceChanged => {
                self.router_changed = true;
            }
            idlewood_overlay::Notice::RootChanged => self.note_root(),
        }
    }

    /// Publishes what changed: the leaf's summary, the subtree's, and what the root tells everybody.
    fn publish(&mut self) {
        let now = self.io.now;
        let due = if self.executor.changed { self.summary_earliest } else { self.summary_latest };
        if due <= now && (self.executor.changed || self.executor.has_work()) {
            self.executor.changed = false;
            self.summary_earliest = now + self.config.summary_interval;
            let refresh = (self.executor.busy_for(now) / REFRESH_SHARE).min(REFRESH_MAX);
            self.summary_latest = now + self.config.summary_refresh.max(refresh);
            let payload = self.executor.summary(now).flatten();
            self.overlay.publish(now, Node::Leaf, payload, &mut self.overlay_effects);
            self.drain_overlay();
            // A machine alone is a grid, whose root has no child to hear it from.
            self.router_changed |= !self.overlay.hosts_router();
        }
        self.router_changed |= self.router.deadline(&self.config).is_some_and(|deadline| deadline <= now);
        if !self.router_changed || self.router_earliest > now {
            return;
        }
        self.router_changed = false;
        self.router_earliest = now + self.config.summary_interval;
        self.router.refresh(&self.overlay, now, &self.config);
        let changed = self.overlay.hosts_router() && self.router.take_changed();
        if !changed && !self.overlay.is_root() {
            return;
        }
        let report = self.router.report(&self.overlay).filter(|_| self.overlay.hosts_router());
        let is_news = |report: &&Vec<u8>| changed && self.overlay.published(Node::Router) != report.as_slice();
        if let Some(report) = report.as_ref().filter(is_news) {
            self.overlay.publish(now, Node::Router, report.clone(), &mut self.overlay_effects);
        }
        if self.overlay.is_root() {
            let report = report.unwrap_or_else(|| self.executor.summary(now).flatten());
            let platform = Platform::of(&report, self.config.climbing).encode();
            self.overlay.publish_root(now, platform, &mut self.overlay_effects);
        }
    }

    /// What the root last said of the whole grid.
    pub fn platform(&self) -> Platform {
        self.overlay.root().map_or_else(Platform::default, |root| Platform::decode(&root.payload))
    }

    /// This peer's place in the tree.
    pub fn overlay_view(&self) -> &Overlay {
        &self.overlay
    }

    /// This peer, as others reach it.
    pub fn me(&self) -> &Contact {
        self.overlay.me()
    }

    /// The own address became known.
    pub fn set_address(&mut self, address: Box<str>) {
        self.overlay.set_address(address);
        self.io.me.clone_from(self.overlay.me());
    }

    /// The bags submitted from this machine, by id.
    pub fn bags(&self) -> impl Iterator<Item = BagView> {
        self.ledgers.values().map(|ledger| ledger.view())
    }

    /// One bag submitted from this machine.
    pub fn bag(&self, id: BagId) -> Option<BagView> {
        self.ledgers.get(&id).map(|ledger| ledger.view())
    }

    /// Who holds which tasks of a bag submitted from this machine.
    pub fn placements(&self, id: BagId) -> Vec<(Contact, IntervalSet)> {
        let ledger = self.ledgers.get(&id);
        let placements = ledger.into_iter().flat_map(|ledger| ledger.placements());
        placements.map(|(executor, ranges)| (executor.clone(), ranges.clone())).collect()
    }

    /// What runs here now.
    pub fn running(&self) -> Vec<RunningTask> {
        self.executor.running(self.io.now)
    }

    /// What is held here, by bag.
    pub fn held(&self) -> Vec<HeldView> {
        self.executor.held()
    }

    /// What this machine has stored of a bag that it submitted and of itself, without what is over: enough for another life
    /// of it, elsewhere.
    pub fn records_of(&self, bag: BagId) -> Vec<Record> {
        let Some(ledger) = self.ledgers.get(&bag) else { return Vec::new() };
        let placed = ledger.placements().filter(|(_, ranges)| !ranges.is_empty()).map(|(executor, ranges)| {
            let (executor, ranges) = (executor.clone(), ranges.clone());
            Record::Placed { bag, executor, ranges }
        });
        let own = [Record::Incarnation(self.me().incarnation), ledger.record(&self.io)];
        own.into_iter().chain(placed).chain(ledger.former()).collect()
    }

    /// The tasks that are held here and not over, by bag.
    pub fn unfinished(&self) -> BTreeMap<BagId, IntervalSet> {
        self.executor.unfinished()
    }

    /// Requests, or parts of them, that did not queue here since the start: not authorised, or over a quota.
    pub fn declined_requests(&self) -> u64 {
        self.executor.declined_requests()
    }

    /// What bags with a quorum have shown of other machines.
    pub fn reputations(&self) -> impl Iterator<Item = (PeerId, Reputation)> + '_ {
        self.io.reputations.all()
    }

    /// Until when this machine offers nothing, since all fails here that succeeds elsewhere.
    pub fn resting_until(&self) -> Option<Time> {
        self.executor.resting_until().filter(|&until| until > self.io.now)
    }

    /// Whether the owner has the machine.
    pub fn is_suspended(&self) -> bool {
        self.executor.is_suspended()
    }
}
