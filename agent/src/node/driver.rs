//! The task that owns the peer: turns the outside world into events, and effects into the outside world.

use std::time::Duration;

use anyhow::Context as _;
use idlewood_machine::Machine;
use idlewood_machine::policy::Orders;
use idlewood_net::NetEvent;
use idlewood_overlay::Time;
use idlewood_scheduler::{Effect, Event, Notice, Peer};
use idlewood_sensing::suspend::Suspend;
use idlewood_store::{CommitResult, Store};
use idlewood_worker::{Pool, WorkerEvent};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::Id;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::done::Done;
use super::execution::Execution;
use super::measuring::Measuring;
use super::neighbours;
use super::outputs::{self, Outputs};
use super::owner::Owner;
use super::packing::{self, Packing};
use super::pins::Pins;
use super::presence::Presence;
use super::shared::Shared;
use super::storage::Storage;
use super::submissions::{self, Submissions};
use super::traffic::{self, Traffic};
use crate::control::Control;
use crate::handle::Command;

/// How often time alone is looked at: absences, and what of the owner's policy depends on it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Ends of tasks, or of writes, that are handled before anything else is looked at.
const AT_ONCE_MAX: usize = 64;
/// Longest that leaving the grid may take.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(2500);
/// Longest that everything from the signal on may take. Five seconds are promised, and the runtime takes up to one of
/// them for threads that still block.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// What the driver is made of.
pub(super) struct Parts {
    pub(super) peer: Peer,
    pub(super) shared: Shared,
    pub(super) net_events: mpsc::Receiver<NetEvent>,
    pub(super) store: Store,
    pub(super) store_events: mpsc::Receiver<CommitResult>,
    pub(super) workers: Pool,
    pub(super) worker_events: mpsc::Receiver<WorkerEvent>,
    /// One more worker, for first tasks.
    pub(super) measurer: Pool,
    pub(super) measure_events: mpsc::Receiver<WorkerEvent>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) suspends: mpsc::Receiver<Suspend>,
    pub(super) owner: Owner,
    pub(super) presence: Presence,
    pub(super) pins: Pins,
}

/// What wakes the driver beside the peer's own deadline.
struct Wakes {
    terminate: Signal,
    interrupt: Signal,
    look: Interval,
    save: Interval,
    sweep: Interval,
}

/// Whether, and since when, this machine has tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Whether a place has a task.
    pub(super) busy: bool,
    pub(super) since: Time,
}

/// Owns the state machine of this machine.
pub(super) struct Driver {
    pub(super) machine: Machine,
    pub(super) shared: Shared,
    net_events: mpsc::Receiver<NetEvent>,
    pub(super) storage: Storage,
    pub(super) submissions: Submissions,
    store_events: mpsc::Receiver<CommitResult>,
    worker_events: mpsc::Receiver<WorkerEvent>,
    measure_events: mpsc::Receiver<WorkerEvent>,
    pub(super) commands: mpsc::Receiver<Command>,
    suspends: mpsc::Receiver<Suspend>,
    pub(super) owner: Owner,
    pub(super) presence: Presence,
    pub(super) traffic: Traffic,
    outputs: Outputs,
    pub(super) packing: Packing,
    pub(super) execution: Execution,
    pub(super) measuring: Measuring,
    pub(super) activity: Activity,
    /// As the machine was told last.
    pub(super) was_busy: bool,
}

impl Driver {
    pub(super) fn new(parts: Parts) -> Self {
        let shared = parts.shared;
        let now = shared.clock.now();
        let activity = Activity { busy: false, since: now };
        Self {
            machine: Machine::new(parts.peer, &shared.config, shared.settings.get().into(), now),
            shared,
            net_events: parts.net_events,
            storage: Storage::new(parts.store, parts.pins),
            submissions: Submissions::default(),
            store_events: parts.store_events,
            worker_events: parts.worker_events,
            measure_events: parts.measure_events,
            commands: parts.commands,
            suspends: parts.suspends,
            owner: parts.owner,
            presence: parts.presence,
            traffic: Traffic::default(),
            outputs: Outputs::default(),
            packing: Packing::default(),
            execution: Execution::new(parts.workers),
            measuring: Measuring::new(parts.measurer),
            activity,
            was_busy: false,
        }
    }

    /// Runs until a signal, until it has finished as told, or until the store is beyond use.
    ///
    /// # Errors
    /// When it cannot listen for signals.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        let mut wakes = Wakes {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            look: interval(LOOK_INTERVAL),
            save: interval(neighbours::SAVE_INTERVAL),
            sweep: interval(packing::SWEEP_INTERVAL),
        };
        self.look_at_owner();
        if let Some(pause) = self.owner.kept_pause(self.shared.clock.now()) {
            self.order(Orders { pause: Some(pause), finish: false });
        }
        self.packing.find(&mut self.shared);
        self.presence.join(&mut self.shared);
        self.feed(Event::DeadlineReached);
        while self.turn(&mut wakes).await {}
        Ok(())
    }

    /// Waits for one thing to happen and handles it. Whether to go on.
    ///
    /// The order is that of urgency: the owner, then what frees resources, then what may come in any number.
    async fn turn(&mut self, wakes: &mut Wakes) -> bool {
        let deadline = self.deadline();
        tokio::select! {
            biased;
            _ = wakes.terminate.recv() => return false,
            _ = wakes.interrupt.recv() => return false,
            () = self.owner.input() => self.look_at_owner(),
            _ = wakes.look.tick() => {
                self.look_at_owner();
                self.presence.notice_absence(&mut self.shared);
                outputs::tidy_partial_blobs(&self.shared.supplies.blobs, self.machine.peer());
            }
            Some(suspend) = self.suspends.recv() => {
                self.presence.suspend(suspend, self.machine.peer(), &mut self.shared);
            }
            () = sleep_until(self.presence.release_at()) => self.presence.release(),
            // Tasks may end faster than the disk takes their results: then the workers wait, and not ever more results.
            Some(event) = self.worker_events.recv(), if self.machine.has_room_for_tasks() => self.workers_ended(event),
            Some(event) = self.measure_events.recv() => self.measurer_ended(event),
            Some(result) = self.store_events.recv() => self.committed(result),
            () = sleep_until(deadline) => self.feed(Event::DeadlineReached),
            _ = wakes.save.tick() => self.presence.save_neighbours(self.machine.peer()),
            _ = wakes.sweep.tick() => {
                self.packing.sweep(self.machine.peer(), &mut self.shared);
                self.storage.read_unread(&mut self.shared);
            }
            Some((id, done)) = self.shared.jobs.next(), if self.machine.has_room() => self.done(id, done),
            // The user is answered whatever waits. What they order is written, too, but at most once for each bag; what may
            // be ordered again and again (`rerun_ready`) is refused while there is no room, and of submissions a bounded
            // number waits.
            Some((id, done)) = self.shared.answers.next() => self.done(id, done),
            Some(command) = self.commands.recv() => self.command(command),
            peers = self.shared.net.freed() => peers.into_iter().for_each(|peer| self.feed(Event::Room(peer))),
            Some(event) = self.net_events.recv(), if self.machine.has_room() => self.came(event),
        }
        self.settle();
        self.tell_whether_busy();
        self.end_turn();
        !self.storage.is_broken() && !self.presence.ends()
    }

    /// The peer of this machine, to look at.
    pub(super) fn peer(&self) -> &Peer {
        self.machine.peer()
    }

    /// When the machine wants to be woken.
    fn deadline(&self) -> Option<Instant> {
        let wait = self.machine.deadline()?.since(self.shared.clock.now());
        Some(Instant::now() + wait)
    }

    /// Gives the machine an event and carries out what follows.
    pub(super) fn feed(&mut self, event: impl Into<idlewood_machine::Event>) {
        self.shared.events.tell(event);
        self.settle();
    }

    /// Gives the machine all that it is to hear, and carries out what follows.
    pub(super) fn settle(&mut self) {
        let mut effects = Vec::new();
        while let Some(event) = self.shared.events.next() {
            self.machine.handle(self.shared.clock.now(), event, &mut effects);
            effects.drain(..).for_each(|effect| self.carry_out(effect));
        }
        self.note_busy();
        self.outputs.note_room(&self.machine);
        for due in std::mem::take(&mut self.shared.due) {
            self.answer_due(due);
        }
    }

    /// What the loop was woken for is done: results that wait leave.
    fn end_turn(&mut self) {
        loop {
            self.settle();
            let mut effects = Vec::new();
            self.machine.end_turn(&mut effects);
            if effects.is_empty() {
                return;
            }
            effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
    }

    pub(super) fn carry_out(&mut self, effect: idlewood_machine::Effect) {
        match effect {
            idlewood_machine::Effect::Peer(effect) => self.carry_out_of_peer(effect),
            idlewood_machine::Effect::Fetch { fetch, wanted } => self.outputs.fetch(fetch, wanted, &mut self.shared),
            idlewood_machine::Effect::AbandonFetch { fetch } => self.outputs.abandon(fetch),
            idlewood_machine::Effect::RunFirstTask { bag, time_limit } => {
                self.measuring.run(bag, time_limit, self.machine.peer(), &mut self.shared);
            }
            idlewood_machine::Effect::StopFirstTask { bag } => self.measuring.stop(bag, &mut self.shared),
            idlewood_machine::Effect::Work(order) => {
                self.execution.carry_out(order, self.storage.pins(), &self.machine, &mut self.shared);
            }
            idlewood_machine::Effect::Changed(changes) => self.storage.changed(&changes),
            idlewood_machine::Effect::Write { write, changes, is_patient, from_reserve } => {
                self.storage.write(write, &changes, is_patient, from_reserve);
            }
            idlewood_machine::Effect::SendResults { to, bag, executor, results } => {
                traffic::send_results(to, bag, executor, results, self.machine.peer(), &mut self.shared);
            }
            idlewood_machine::Effect::Unwritten(bags) => self.submissions.tell_unwritten(&bags),
            idlewood_machine::Effect::FreezeMeasurer => self.measuring.freeze(),
            idlewood_machine::Effect::ThawMeasurer => self.measuring.thaw(),
            idlewood_machine::Effect::Judged(judgement) => self.judged(&judgement),
            idlewood_machine::Effect::KeepPause(pause) => self.owner.keep_pause(pause, self.shared.clock.now()),
            idlewood_machine::Effect::End => self.presence.end(),
        }
    }

    fn carry_out_of_peer(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => traffic::send(to, message, &mut self.shared),
            Effect::KeepCheckpoints { stop, bag, tasks } => self.packing.pack(stop, bag, tasks, &mut self.shared),
            Effect::Authorise { bag } => self.authorise(bag),
            Effect::StartTask { .. }
            | Effect::StopTask { .. }
            | Effect::FreezeTask { .. }
            | Effect::ThawTask { .. }
            | Effect::SuspendTasks
            | Effect::ResumeTasks
            | Effect::Persist { .. }
            | Effect::MeasureTask { .. }
            | Effect::FetchOutput { .. } => {
                tracing::error!(?effect, "an order that the machine decides about");
            }
            Effect::Notify(notice) => self.notice(notice),
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::BagAccepted(bag) => {
                tracing::info!(%bag, "bag accepted");
                self.submissions.taken(bag, &mut self.shared);
            }
            Notice::BagClosed(bag) => {
                tracing::info!(%bag, "bag closed");
                self.submissions.ended(bag, &mut self.shared);
            }
            Notice::BagRemoved(bag) => {
                tracing::info!(%bag, "bag removed");
                self.submissions.ended(bag, &mut self.shared);
            }
            Notice::Joined => {
                tracing::info!("member of the grid");
                self.presence.save_neighbours(self.machine.peer());
            }
            Notice::Left => self.presence.note_left(),
        }
    }

    fn workers_ended(&mut self, event: WorkerEvent) {
        self.worker_ended(event);
        for _ in 1..AT_ONCE_MAX {
            if !self.machine.has_room_for_tasks() {
                return;
            }
            let Ok(event) = self.worker_events.try_recv() else { return };
            self.worker_ended(event);
        }
    }

    fn worker_ended(&mut self, event: WorkerEvent) {
        if let Some((bag, wall)) = self.execution.ended(event, self.storage.pins(), &mut self.shared) {
            self.submissions.note_start(bag, wall, self.machine.peer(), self.shared.clock.now());
        }
        self.settle();
    }

    fn measurer_ended(&mut self, event: WorkerEvent) {
        if let Some((bag, wall)) = self.measuring.ended(event, &mut self.shared) {
            self.submissions.note_start(bag, wall, self.machine.peer(), self.shared.clock.now());
        }
    }

    fn committed(&mut self, result: CommitResult) {
        let others = std::iter::from_fn(|| self.store_events.try_recv().ok());
        for result in std::iter::once(result).chain(others).take(AT_ONCE_MAX) {
            self.storage.committed(result, &mut self.shared);
        }
    }

    fn came(&mut self, event: NetEvent) {
        self.traffic.came(event, self.storage.pins(), self.machine.peer(), &mut self.shared);
    }

    fn done(&mut self, job: Id, done: Done) {
        let Self { machine, shared, execution, measuring, submissions, storage, .. } = self;
        let peer = machine.peer();
        match done {
            Done::Prepared { job, task, preparation } => {
                execution.prepared(job, task, preparation, storage.pins(), shared);
            }
            Done::Collected { job, task, collected } => execution.collected(job, task, collected, shared),
            Done::MeasurePrepared { bag, preparation } => measuring.prepared(job, bag, preparation, peer, shared),
            Done::Measured { bag, cpu, collected } => measuring.measured(bag, cpu, collected, peer, shared),
            Done::Authorised { bag, label } => self.authorised(bag, label),
            Done::OutputKept { fetch, kept } => self.outputs.kept(fetch, kept, &mut self.shared),
            Done::Accepted { result, reply } => {
                submissions.accepted(result, reply, storage.pins_mut(), peer, shared);
            }
            Done::AcceptLost => submissions.accept_lost(),
            Done::RerunReady { bag, tasks, needs, reply } => {
                submissions::rerun_ready(bag, tasks.as_ref(), needs, reply, storage.pins_mut(), machine, shared);
            }
            Done::ManifestRead { bag, manifest: Some(manifest) } => storage.manifest_read(bag, manifest, peer, shared),
            Done::ManifestRetried { bag, manifest } => storage.manifest_retried(bag, manifest, peer, shared),
            Done::CheckpointsKept { stop, bag, kept } => {
                self.packing.packed(stop, bag, kept, self.machine.peer(), &mut self.shared);
            }
            Done::Reclaimed { stop, took } => self.reclaimed(stop, took),
            Done::Bootstrapped(Some(contact)) => self.feed(Event::Bootstrap(contact)),
            Done::ManifestRead { manifest: None, .. } | Done::Bootstrapped(None) | Done::Discarded => {}
        }
    }

    /// Since when the machine has tasks, or has none. The owner's return must be noticed at once from the first on.
    fn note_busy(&mut self) {
        let busy = self.machine.is_busy();
        if busy != std::mem::replace(&mut self.activity.busy, busy) {
            self.activity.since = self.shared.clock.now();
            self.set_watchfulness();
        }
    }

    async fn leave(&mut self, until: Instant) {
        self.shared.events.tell(Event::Leave);
        self.end_turn();
        while !self.presence.has_left() && Instant::now() < until {
            let deadline = self.deadline().map_or(until, |deadline| deadline.min(until));
            tokio::select! {
                Some(result) = self.store_events.recv() => self.committed(result),
                Some(event) = self.net_events.recv() => self.came(event),
                () = tokio::time::sleep_until(deadline) => self.feed(Event::DeadlineReached),
            }
            self.end_turn();
        }
    }

    /// Leaves the grid in good order and ends everything, within [`SHUTDOWN_TIMEOUT`].
    ///
    /// # Errors
    /// When the store was beyond use.
    pub(super) async fn shut_down(mut self, control: Control) -> anyhow::Result<()> {
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        tracing::info!("leaving the grid");
        self.execution.end();
        self.measuring.end();
        self.commands.close();
        while self.commands.try_recv().is_ok() {
            // Whoever asked is told that the agent ends, by losing the way for the answer.
        }
        self.submissions.end();
        self.leave(until.min(Instant::now() + LEAVE_TIMEOUT)).await;
        self.feed(idlewood_machine::Event::Closing);

        let Self { shared, execution, measuring, mut storage, store_events, mut net_events, .. } = self;
        let Shared { jobs, answers, net, .. } = shared;
        // Nobody takes results any more: the writer must not wait for that.
        drop(store_events);
        let fatal = storage.take_fatal();
        let closing = tokio::task::spawn_blocking(move || storage.close());
        // What they ran in can be removed when all workers have ended.
        let workers = tokio::task::spawn_blocking(move || drop((execution.shut_down(), measuring.shut_down())));
        let events = async { while net_events.recv().await.is_some() {} };
        let jobs = async { tokio::join!(jobs.shutdown(), answers.shutdown()) };
        let all = async { tokio::join!(closing, workers, jobs, control.shutdown(), net.shutdown(), events) };
        match tokio::time::timeout_at(until, all).await {
            Ok((closed, ended, ..)) => {
                closed.context("the last writes failed")?;
                ended.context("the workers could not be ended")?;
            }
            // What was acknowledged is on disk, and workers die with the agent.
            Err(_) => tracing::warn!("not everything ended in time; it is left behind"),
        }
        match fatal {
            Some(error) => Err(error).context("the store cannot be used any more; start the agent again"),
            None => Ok(()),
        }
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
