//! The loop, which owns the machine: it gives the machine what happens, and its parts what the machine orders.
//!
//! Each part owns what it needs, and does in its own file what has to be done. How parts reach the machine is said in `shared`.

use std::time::Duration;

use anyhow::Context as _;
use idlewood_machine::connections::NEIGHBOURS_INTERVAL;
use idlewood_machine::downloads::Piece;
use idlewood_machine::{Effect, Machine};
use idlewood_net::{LiveQuestion, NetEvent};
use idlewood_scheduler::{Event, Notice};
use idlewood_sensing::suspend::Suspend;
use idlewood_store::CommitResult;
use idlewood_worker::WorkerEvent;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::Id;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::authorise;
use super::done::Done;
use super::endless::EndlessOrders;
use super::execution::Execution;
use super::given_results;
use super::keeping::Keeping;
use super::listing::Listing;
use super::live::Live;
use super::measuring::Measuring;
use super::notify::NotifyFiles;
use super::outputs::{self, Outputs};
use super::owner::Owner;
use super::packing::{self, Packing};
use super::presence::Presence;
use super::readings;
use super::shared::Shared;
use super::starts::Starts;
use super::storage::Storage;
use super::submissions::{self, Submissions};
use super::traffic::{self, Traffic};
use super::views::View;
use crate::control::Control;
use crate::handle::{Command, EndlessOrder, OwnerOrder, Refusal, answer};

/// How often time alone is looked at: absences, and what of the owner's policy depends on it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Ends of tasks, or of writes, that are handled before anything else is looked at.
const AT_ONCE_MAX: usize = 64;
/// Longest that leaving the grid may take.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(2500);
/// Longest that everything from the signal on may take. Five seconds are promised, and the runtime takes up to one of
/// them for threads that still block.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// The ends of the channels over which things happen.
pub(super) struct Sources {
    pub(super) net: mpsc::Receiver<NetEvent>,
    pub(super) store: mpsc::Receiver<CommitResult>,
    pub(super) workers: mpsc::Receiver<WorkerEvent>,
    pub(super) measurer: mpsc::Receiver<WorkerEvent>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) suspends: mpsc::Receiver<Suspend>,
    pub(super) pieces: mpsc::Receiver<Piece>,
    pub(super) questions: mpsc::Receiver<LiveQuestion>,
}

/// What wakes the loop beside that and the machine's own deadline.
struct Wakes {
    terminate: Signal,
    interrupt: Signal,
    look: Interval,
    save: Interval,
    sweep: Interval,
}

impl Wakes {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            look: interval(LOOK_INTERVAL),
            save: interval(NEIGHBOURS_INTERVAL),
            sweep: interval(packing::SWEEP_INTERVAL),
        })
    }
}

/// The machine, what all parts use, and the parts.
pub(super) struct Driver {
    pub(super) machine: Machine,
    pub(super) shared: Shared,
    pub(super) sources: Sources,
    pub(super) execution: Execution,
    pub(super) measuring: Measuring,
    pub(super) outputs: Outputs,
    pub(super) live: Live,
    pub(super) owner: Owner,
    pub(super) submissions: Submissions,
    pub(super) storage: Storage,
    pub(super) packing: Packing,
    pub(super) starts: Starts,
    pub(super) keeping: Keeping,
    pub(super) presence: Presence,
    pub(super) traffic: Traffic,
    pub(super) notify: NotifyFiles,
    pub(super) listing: Listing,
    pub(super) endless: EndlessOrders,
}

impl Driver {
    /// Runs until a signal, until it has finished as told, or until the store is beyond use.
    ///
    /// # Errors
    /// When it cannot listen for signals.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        let mut wakes = Wakes::new()?;
        self.look_at_owner();
        self.owner.tell_kept_pause(&mut self.shared);
        self.packing.find(&mut self.shared);
        self.notify.restore(self.machine.peer(), self.storage.pins());
        Keeping::restore(self.storage.pins_mut().take_lost(), &mut self.shared);
        self.listing.introduce(self.machine.peer().me().peer, &mut self.shared);
        self.presence.join(&mut self.shared);
        self.shared.events.tell(Event::DeadlineReached);
        self.settle();
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
            _ = wakes.look.tick() => self.look_around(),
            Some(suspend) = self.sources.suspends.recv() => self.suspend(suspend),
            () = sleep_until(self.presence.release_at()) => self.presence.release(),
            // Tasks may end faster than the disk takes their results: then the workers wait, and not ever more results.
            Some(event) = self.sources.workers.recv(), if self.machine.has_room_for_tasks() => self.workers_ended(event),
            Some(event) = self.sources.measurer.recv() => self.measurer_ended(event),
            Some(result) = self.sources.store.recv() => self.committed(result),
            () = sleep_until(deadline) => self.shared.events.tell(Event::DeadlineReached),
            _ = wakes.save.tick() => self.presence.save_neighbours(self.machine.peer()),
            _ = wakes.sweep.tick() => self.sweep(),
            Some((id, done)) = self.shared.jobs.next(), if self.machine.has_room() => self.done(id, done),
            // The user is answered whatever waits. What they order is written, too, but at most once for each bag; what may
            // be ordered again and again (`rerun_ready`) is refused while there is no room, and of submissions a bounded
            // number waits.
            Some((id, done)) = self.shared.answers.next() => self.done(id, done),
            Some(command) = self.sources.commands.recv() => self.command(command),
            peers = self.shared.net.freed() => self.shared.events.tell_all(peers.into_iter().map(Event::Room)),
            Some(piece) = self.sources.pieces.recv() => {
                self.shared.events.tell(idlewood_machine::Event::PieceCame(piece));
            }
            Some(question) = self.sources.questions.recv() => {
                self.live.question(question, &self.machine, &self.execution, &mut self.shared);
            }
            Some(event) = self.sources.net.recv(), if self.machine.has_room() => self.came(event),
        }
        self.settle();
        let goes_on = self.owner.is_active() || self.submissions.are_under_way() || self.packing.is_under_way();
        self.owner.tell_whether_busy(goes_on, &mut self.shared);
        self.end_turn();
        !self.storage.is_broken() && !self.presence.ends()
    }

    /// When the machine wants to be woken.
    fn deadline(&self) -> Option<Instant> {
        let wait = self.machine.deadline()?.since(self.shared.clock.now());
        Some(Instant::now() + wait)
    }

    /// Gives the machine all that it is to hear, and carries out what follows.
    fn settle(&mut self) {
        let mut effects = Vec::new();
        while let Some(event) = self.shared.events.next() {
            self.machine.handle(self.shared.clock.now(), event, &mut effects);
            effects.drain(..).for_each(|effect| self.carry_out(effect));
        }
        self.owner.note_busy(&self.machine, &self.shared.clock);
        self.outputs.note_room(&self.machine);
        for due in std::mem::take(&mut self.shared.due) {
            self.view().answer_due(due);
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

    /// All that questions are answered from.
    fn view(&self) -> View<'_> {
        View {
            machine: &self.machine,
            shared: &self.shared,
            execution: &self.execution,
            owner: &self.owner,
            submissions: &self.submissions,
            pins: self.storage.pins(),
            presence: &self.presence,
            traffic: &self.traffic,
            names: self.listing.names(),
        }
    }

    // ---- what the machine orders, for the part that does it ----

    fn carry_out(&mut self, effect: Effect) {
        let Self { machine, shared, execution, measuring, outputs, owner, storage, starts, .. } = self;
        match effect {
            Effect::Send { to, message } => traffic::send_of_peer(to, message, machine.peer(), shared),
            Effect::Authorise { bag, envelope } => authorise::authorise(bag, envelope, machine.peer(), shared),
            Effect::KeepCheckpoints { stop, bag, tasks } => self.packing.pack(stop, bag, tasks, shared),
            Effect::MakeStart { task, from } => starts.make(task, from, storage, shared),
            Effect::SignAppointment(appointment) => self.keeping.sign(appointment, machine.peer(), shared),
            Effect::KeepFiles { bag, key, from } => self.keeping.fetch(bag, key, from, shared),
            Effect::ReadResults { bag, tasks, to } => given_results::read(bag, tasks, to, storage.reader(), shared),
            Effect::ForgetFiles { bag } => self.keeping.forget(bag, storage.pins_mut()),
            Effect::List { ticket, page } => self.listing.came(ticket, *page, machine.peer()),
            Effect::Notify(notice) => self.notice(notice),
            Effect::Fetch { fetch, wanted } => outputs.fetch(fetch, wanted, machine.peer(), shared),
            Effect::AbandonFetch { fetch } => outputs.abandon(fetch),
            Effect::RunFirstTask { bag, time_limit, iterations } => {
                measuring.run(bag, time_limit, iterations, machine.peer(), shared);
            }
            Effect::StopFirstTask { bag } => measuring.stop(bag, shared),
            Effect::Work(order) => execution.carry_out(order, storage.pins(), machine, shared),
            Effect::Changed(changes) => storage.changed(&changes),
            Effect::Write { write, changes, is_patient, from_reserve } => {
                storage.write(write, &changes, is_patient, from_reserve);
            }
            Effect::SendResults { to, bag, executor, results } => {
                traffic::send_results(to, bag, executor, results, machine.peer(), shared);
            }
            Effect::Unwritten(bags) => self.submissions.tell_unwritten(&bags),
            Effect::FreezeMeasurer => measuring.freeze(),
            Effect::ThawMeasurer => measuring.thaw(),
            Effect::Judged(judgement) => owner.judged(&judgement, execution, machine, shared),
            Effect::KeepPause(pause) => owner.keep_pause(pause, shared.clock.now()),
            Effect::End => self.presence.end(),
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
                Keeping::over(bag, &mut self.shared);
                self.submissions.ended(bag, &mut self.shared);
                self.notify.bag_closed(bag, self.machine.peer(), self.storage.pins());
            }
            Notice::BagChanged(bag) => self.submissions.changed(bag, &mut self.shared),
            Notice::BagElsewhere(bag) => {
                tracing::error!(
                    %bag, "another machine has adopted a bag of this one, and goes on as this one: this one does nothing for the bag"
                );
            }
            Notice::BagGivenUp { bag, disk_is_full: true } => tracing::warn!(
                %bag, "the disk is full: another machine is asked to keep a bag in this one's place; free some space"
            ),
            Notice::BagGivenUp { bag, disk_is_full: false } => {
                tracing::info!(%bag, "limits.keep is lower now: another machine is asked to keep a bag in this one's place");
            }
            Notice::BagDrained(bag) => {
                self.endless.drained(bag, self.storage.pins_mut(), self.machine.peer(), &mut self.shared);
            }
            Notice::BagRemoved(bag) => {
                tracing::info!(%bag, "bag removed");
                self.endless.removed(bag, &mut self.shared);
                self.notify.forget(bag);
                self.submissions.ended(bag, &mut self.shared);
            }
            Notice::Joined => {
                tracing::info!("member of the grid");
                self.presence.save_neighbours(self.machine.peer());
            }
            Notice::Left => self.presence.note_left(),
        }
    }

    // ---- what happens, for the part that it concerns ----

    fn look_at_owner(&mut self) {
        self.owner.look(&self.execution, &self.measuring, &self.machine, &mut self.shared);
    }

    fn look_around(&mut self) {
        self.look_at_owner();
        self.presence.notice_absence(&mut self.shared);
        self.listing.look_for_names(self.machine.peer(), &mut self.shared);
        outputs::tidy_partial_blobs(&self.shared.supplies.blobs, self.machine.peer());
    }

    fn suspend(&mut self, suspend: Suspend) {
        self.presence.suspend(suspend, self.machine.peer(), &mut self.shared);
    }

    fn sweep(&mut self) {
        self.presence.look_for_twin(self.machine.peer());
        self.packing.sweep(self.machine.peer(), &mut self.shared);
        self.storage.read_unread(&mut self.shared);
        self.keeping.look_for_own(self.storage.pins(), self.machine.peer(), &mut self.shared);
    }

    fn workers_ended(&mut self, event: WorkerEvent) {
        self.worker_ended(event);
        for _ in 1..AT_ONCE_MAX {
            if !self.machine.has_room_for_tasks() {
                return;
            }
            let Ok(event) = self.sources.workers.try_recv() else { return };
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
        let others = std::iter::from_fn(|| self.sources.store.try_recv().ok());
        for result in std::iter::once(result).chain(others).take(AT_ONCE_MAX) {
            self.storage.committed(result, &mut self.shared);
        }
    }

    fn came(&mut self, event: NetEvent) {
        self.traffic.came(event, self.storage.pins(), self.machine.peer(), &mut self.shared);
    }

    fn command(&mut self, command: Command) {
        let (peer, shared) = (self.machine.peer(), &mut self.shared);
        match command {
            Command::Question(question) => {
                self.listing.look(shared);
                self.view().answer(question);
            }
            Command::Reading(reading) => {
                readings::read(reading, self.storage.reader(), self.storage.pins(), peer, shared)
            }
            Command::Machines(query, reply) => self.listing.ask(query, reply, shared),
            Command::Endless(order) => {
                let pins = self.storage.pins();
                match order {
                    EndlessOrder::Lines(id, lines, reply) => {
                        self.endless.add_lines(&id, lines, reply, pins, peer, shared);
                    }
                    EndlessOrder::Close(id, reply) => self.submissions.close_supply(&id, reply, pins, peer, shared),
                    EndlessOrder::Drain(id, tasks, reply) => {
                        self.endless.drain(&id, &tasks, reply, pins, peer, shared);
                    }
                }
            }
            Command::Bag(order) => self.submissions.order(order, self.storage.pins(), &self.notify, peer, shared),
            Command::Live(question) => {
                let workers = (&self.execution, &self.measuring);
                self.live.ask(question, self.storage.pins(), &self.machine, workers, shared);
            }
            Command::Owner(OwnerOrder::LeaveGrid(reply)) if shared.gate().is_alone() => {
                answer(reply, Err(Refusal::Conflict("this machine belongs to no grid".to_owned())));
            }
            Command::Owner(order) => {
                self.look_at_owner();
                match &order {
                    OwnerOrder::Restart(_) => self.presence.restart(),
                    OwnerOrder::LeaveGrid(_) => self.presence.leave_grid(),
                    OwnerOrder::Pause(..) | OwnerOrder::Resume(_) | OwnerOrder::Finish(_) => {}
                }
                self.owner.order(order, &self.machine, &mut self.shared);
            }
        }
    }

    fn done(&mut self, id: Id, done: Done) {
        let Self {
            machine, shared, execution, measuring, submissions, storage, keeping, notify, starts, endless, ..
        } = self;
        let peer = machine.peer();
        match done {
            Done::Prepared { job, task, preparation } => {
                execution.prepared(job, task, preparation, storage.pins(), shared);
            }
            Done::Collected { job, task, collected } => execution.collected(job, task, collected, shared),
            Done::MeasurePrepared { bag, preparation } => measuring.prepared(id, bag, preparation, peer, shared),
            Done::Measured { bag, cpu, collected } => measuring.measured(bag, cpu, collected, peer, shared),
            Done::Authorised { bag, label } => authorise::authorised(bag, label, shared),
            Done::OutputKept { fetch, kept } => self.outputs.kept(fetch, kept, shared),
            Done::Accepted { result, reply } => {
                submissions.accepted(result, reply, storage.pins_mut(), notify, peer, shared);
            }
            Done::AcceptLost => submissions.accept_lost(),
            Done::LinesKept { bag, result, reply } => {
                endless.lines_kept(bag, result, reply, storage.pins_mut(), shared)
            }
            Done::RerunReady { bag, tasks, needs, reply } => {
                submissions::rerun_ready(bag, tasks.as_ref(), needs, reply, storage.pins_mut(), machine, shared);
            }
            Done::ManifestRead { bag, manifest: Some(manifest) } => storage.manifest_read(bag, manifest, shared),
            Done::ManifestRetried { bag, manifest, files } => {
                storage.manifest_retried(bag, manifest, files, peer, shared);
            }
            Done::CheckpointsKept { stop, bag, kept } => self.packing.packed(stop, bag, kept, peer, shared),
            Done::StartMade { task, made } => starts.made(task, made, storage, shared),
            Done::Reclaimed { stop, took } => self.owner.reclaimed(stop, took),
            Done::ResultsRead { bag, to, results } => shared.events.tell(Event::ResultsRead { bag, to, results }),
            Done::FilesHere { bag, files } => keeping.files_here(bag, files, storage.pins_mut(), peer, shared),
            Done::Bootstrapped(Some(contact)) => shared.events.tell(Event::Bootstrap(contact)),
            Done::ManifestRead { manifest: None, .. } | Done::Bootstrapped(None) | Done::Discarded => {}
        }
    }

    // ---- the end ----

    /// Leaves the grid in good order and ends everything, within [`SHUTDOWN_TIMEOUT`].
    ///
    /// # Errors
    /// When the store was beyond use.
    pub(super) async fn shut_down(mut self, control: Control) -> anyhow::Result<()> {
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        tracing::info!("leaving the grid");
        self.execution.end();
        self.measuring.end();
        self.sources.commands.close();
        while self.sources.commands.try_recv().is_ok() {
            // Whoever asked is told that the agent ends, by losing the way for the answer.
        }
        self.submissions.end();
        self.leave(until.min(Instant::now() + LEAVE_TIMEOUT)).await;
        self.shared.events.tell(idlewood_machine::Event::Closing);
        self.settle();
        self.close(control, until).await
    }

    async fn leave(&mut self, until: Instant) {
        self.shared.events.tell(Event::Leave);
        self.end_turn();
        while !self.presence.has_left() && Instant::now() < until {
            let deadline = self.deadline().map_or(until, |deadline| deadline.min(until));
            tokio::select! {
                Some(result) = self.sources.store.recv() => self.committed(result),
                Some(event) = self.sources.net.recv() => self.came(event),
                () = tokio::time::sleep_until(deadline) => self.shared.events.tell(Event::DeadlineReached),
            }
            self.end_turn();
        }
    }

    async fn close(self, control: Control, until: Instant) -> anyhow::Result<()> {
        let Self { shared, sources, execution, measuring, mut storage, .. } = self;
        let Shared { jobs, answers, net, .. } = shared;
        let Sources { net: mut net_events, store: store_events, .. } = sources;
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
