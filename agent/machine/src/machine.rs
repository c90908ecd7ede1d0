//! The machine: feeds its peer, and takes from the peer's orders those that its parts decide about.

use std::collections::BTreeSet;
use std::sync::Arc;

use idlewood_overlay::{PeerId, Time};
use idlewood_scheduler::{
    About, BagId, BagView, Change, Config, Effect as PeerEffect, HeldView, Message, Notice, Peer, Record, RecordKey,
    TaskId, Ticket,
};

use crate::effect::{Effect, Wanted, WriteId};
use crate::event::{Event, FetchEnd, WriteEnd};
use crate::execution::{Ended as JobEnded, Execution, RunningJob};
use crate::explain::{self, Explanation, Situation};
use crate::finishing::Finishing;
use crate::measuring::{Measured, Measuring};
use crate::outputs::Outputs;
use crate::owner::Owner;
use crate::policy::OwnerSettings;
use crate::results::Results;
use crate::speed::Speed;
use crate::work::WorkOrder;
use crate::writes::{Ended, Writes};

/// One whole machine.
pub struct Machine {
    peer: Peer,
    /// Speed of a core while it computes.
    kernel_mops: f64,
    slots: u32,
    speed: Speed,
    outputs: Outputs,
    measuring: Measuring,
    execution: Execution,
    owner: Owner,
    finishing: Finishing,
    results: Results,
    writes: Writes,
    /// As the peer was told last.
    disk_was_full: bool,
    /// Bags whose submission is not durable yet.
    submitting: BTreeSet<BagId>,
    peer_effects: Vec<PeerEffect>,
    /// What this machine says of itself, as the peer was told last.
    about: About,
}

impl Machine {
    /// A machine with this peer, whose settings are `config`, and with these settings of its owner. The vacate time among them is the
    /// one that the peer was made with. A core does `kernel_mops` Mop in a second in which it computes; a slot of it does fewer by the clock where it
    /// has a part of a core ([`Config::speed_mops`]).
    pub fn new(peer: Peer, config: &Config, kernel_mops: f64, settings: OwnerSettings, now: Time) -> Self {
        Self {
            peer,
            kernel_mops,
            slots: config.slots,
            speed: Speed::new(kernel_mops, config.speed_mops, config.slots, now),
            outputs: Outputs::default(),
            measuring: Measuring::default(),
            execution: Execution::new(config),
            owner: Owner::new(settings, now),
            finishing: Finishing::default(),
            results: Results::default(),
            writes: Writes::default(),
            disk_was_full: false,
            submitting: BTreeSet::new(),
            peer_effects: Vec::new(),
            about: About::default(),
        }
    }

    /// Its peer, to look at.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// How many Mop a slot does in a second by the clock, as far as it is known.
    pub fn speed_mops(&self) -> f64 {
        self.speed.mops()
    }

    /// What it knows of its owner, to look at.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Why tasks of a bag of this machine do not run, or that they do; a task may take so much memory.
    pub fn explain(&self, bag: &BagView, memory_bytes: Option<u64>, now: Time) -> Explanation {
        let (id, me) = (bag.bag.id, self.peer.me().peer);
        let mine = self.peer.placements(id).into_iter().find(|(executor, _)| executor.peer == me);
        let unfinished = |held: &HeldView| held.waiting + held.running;
        let held = self.peer.held();
        let of_others = held.iter().filter(|held| held.bag != id && unfinished(held) > 0);
        let others_here: Vec<_> = of_others.map(|held| (held.bag, held.submitter, unfinished(held))).collect();
        explain::explain(&Situation {
            bag,
            now,
            measured_before: self.measuring.before(id),
            here: mine.map_or(0, |(_, ranges)| ranges.len()),
            without_room: self.outputs.without_room_of(id),
            begun_here: held.iter().find(|held| held.bag == id).map_or(0, |held| held.running),
            others_here: &others_here,
            judgement: self.owner.judgement(),
            memory_bytes,
            memory_max_bytes: self.execution.memory_max_bytes(),
            state: self.peer.overlay_view().state(),
            machines: self.peer.overlay_view().root().map_or(1, |root| root.count),
            grid_mops: self.peer.platform().speed_mops,
            own_mops: self.speed_mops() * f64::from(self.slots),
        })
    }

    /// What workers run of a bag now, for a machine that asks what its tasks write; `None` unless that machine is the bag's submitter or
    /// the keeper that acts for it.
    pub fn running_for(&self, bag: BagId, asker: PeerId) -> Option<Vec<RunningJob>> {
        self.peer.answers_to(bag, asker).then(|| self.execution.running_of(bag))
    }

    /// Whether the owner has all tasks stand still.
    pub fn stands_still(&self) -> bool {
        self.execution.stands_still()
    }

    /// Whether the disk keeps up, so that more may be taken in that will have to be written.
    pub fn has_room(&self) -> bool {
        self.writes.has_room()
    }

    /// The same of ends of tasks: workers wait before others do.
    pub fn has_room_for_tasks(&self) -> bool {
        self.writes.has_room_for_tasks()
    }

    /// Whether outputs of its bags wait until it has room for them.
    pub fn lacks_room_for_outputs(&self) -> bool {
        self.outputs.lack_room()
    }

    /// Whether a task that its peer has started is not over.
    pub fn is_busy(&self) -> bool {
        self.execution.is_busy()
    }

    /// Feeds one event; appends effects in the order in which they must be carried out. `now` never decreases.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Peer(event) => {
                if matches!(event, idlewood_scheduler::Event::DeadlineReached) {
                    self.of_owner(now, effects, |owner, effects| owner.wake(now, effects));
                    self.writes.wake(now, effects);
                    self.execution.relieve(now);
                }
                if let idlewood_scheduler::Event::Submitted(submission) = &event {
                    self.submitting.insert(submission.id);
                }
                self.feed(now, Some(event), effects);
            }
            Event::Work(event) => {
                self.execution.handle(now, event, effects);
                self.feed(now, None, effects);
            }
            Event::Called { name, version } => {
                let reason = self.about.reason.clone();
                self.describe(now, About { name, version, reason }, effects);
            }
            Event::Sensed(facts) => self.of_owner(now, effects, |owner, effects| owner.sense(facts, now, effects)),
            Event::Ordered(orders) => self.of_owner(now, effects, |owner, effects| owner.order(orders, now, effects)),
            Event::OwnerSet(settings) => {
                self.of_owner(now, effects, |owner, effects| owner.set(settings, now, effects));
            }
            Event::Computed { ran, waited } => {
                if let Some(mops) = self.speed.computed(ran, waited, now) {
                    self.feed(now, Some(idlewood_scheduler::Event::SpeedChanged(mops)), effects);
                }
            }
            Event::Busy(is_busy) => self.finishing.note_busy(is_busy),
            Event::Written { write, end } => self.written(now, write, end, effects),
            Event::Closing => self.writes.close(effects),
            Event::FetchEnded { fetch, end } => {
                // A result that is kept for another is not waited for where it has no room: its submitter has it, too.
                let waits = |task: TaskId| self.peer.bag(task.bag).is_some();
                if let Some((task, end)) = self.outputs.ended(fetch, end, waits, now) {
                    let fetched = match end {
                        FetchEnd::Here { checkpoint } => {
                            idlewood_scheduler::Event::Fetched { task, here: true, checkpoint }
                        }
                        FetchEnd::NotHad => idlewood_scheduler::Event::Fetched { task, here: false, checkpoint: None },
                        FetchEnd::PutOff | FetchEnd::NoRoom => idlewood_scheduler::Event::FetchPutOff { task },
                    };
                    self.feed(now, Some(fetched), effects);
                }
            }
            Event::PieceCame(piece) => {
                if let Some(kb_s) = piece.shows_kb_s() {
                    self.feed(now, Some(idlewood_scheduler::Event::Downloaded { kb_s }), effects);
                }
            }
            Event::FirstTaskEnded { bag, first } => {
                if let Some(Measured { bag, cpu, result }) = self.measuring.ended(bag, first, now) {
                    let task_mops = cpu.as_secs_f64() * self.kernel_mops;
                    self.feed(now, Some(idlewood_scheduler::Event::Measured { bag, task_mops, result }), effects);
                }
            }
        }
        let is_open = |bag| self.peer.bag(bag).is_some_and(|bag| bag.closed.is_none());
        let is_wanted = |bag| is_open(bag) || self.peer.keeps(bag);
        self.outputs.fetch(now, |wanted| is_wanted(wanted.task.bag), effects);
        self.measuring.begin(now, is_open, effects);
        self.tell_of_disk(now, effects);
        self.finish(now, effects);
        if cfg!(debug_assertions) {
            self.execution.check_invariants();
        }
    }

    /// What is known of the owner changes: workers are frozen or thawed first, then the driver and the peer hear of it.
    fn of_owner(
        &mut self,
        now: Time,
        effects: &mut Vec<Effect>,
        change: impl FnOnce(&mut Owner, &mut Vec<Effect>) -> Vec<idlewood_scheduler::Event>,
    ) {
        let mut owner_effects = Vec::new();
        let told = change(&mut self.owner, &mut owner_effects);
        let takes_work = self.owner.judgement().takes_work;
        self.execution.allow(now, self.owner.workers_stand_still(), takes_work, effects);
        effects.append(&mut owner_effects);
        for event in told {
            self.feed(now, Some(event), effects);
        }
        self.feed(now, None, effects);
        let reason = self.owner.judgement().reason.as_ref().map(|reason| reason.code_for_others().into());
        if reason != self.about.reason {
            self.describe(now, About { reason, ..self.about.clone() }, effects);
        }
    }

    /// The peer says this of the machine from now on to others of the grid.
    fn describe(&mut self, now: Time, about: About, effects: &mut Vec<Effect>) {
        self.about = about.clone();
        self.feed(now, Some(idlewood_scheduler::Event::Describes(about)), effects);
    }

    /// The driver has done what it was woken for: results that wait leave. Effects are appended as by [`Machine::handle`].
    pub fn end_turn(&mut self, effects: &mut Vec<Effect>) {
        self.results.end_turn(effects);
    }

    /// A write has ended: what depends on it happens, or does not, and more is written.
    fn written(&mut self, now: Time, write: WriteId, end: WriteEnd, effects: &mut Vec<Effect>) {
        let Ended { durable, unwritten } = self.writes.ended(write, end, now);
        for ticket in durable {
            self.feed(now, Some(idlewood_scheduler::Event::Persisted(ticket)), effects);
        }
        let bag = |key| if let RecordKey::Bag(bag) = key { Some(bag) } else { None };
        let bags: Vec<BagId> = unwritten.into_iter().filter_map(bag).collect();
        if !bags.is_empty() {
            effects.push(Effect::Unwritten(bags.clone()));
        }
        for bag in bags {
            if self.submitting.remove(&bag) {
                // Where some of it has reached the disk all the same, that goes.
                self.writes.give_up(RecordKey::Bag(bag));
                self.feed(now, Some(idlewood_scheduler::Event::Removed(bag)), effects);
            }
        }
        self.writes.flow(effects);
    }

    /// The peer hears when the disk is full, and when it has room again.
    fn tell_of_disk(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let is_full = self.writes.is_full();
        if std::mem::replace(&mut self.disk_was_full, is_full) != is_full {
            self.feed(now, Some(idlewood_scheduler::Event::DiskFull(is_full)), effects);
        }
    }

    /// The peer's records change.
    fn persist(&mut self, ticket: Ticket, changes: Vec<Change>, effects: &mut Vec<Effect>) {
        let closed = closed_by(&changes);
        self.execution.note_changes(&changes, effects);
        let changes: Vec<Arc<Change>> = changes.into_iter().map(Arc::new).collect();
        effects.push(Effect::Changed(changes.clone()));
        self.writes.push(ticket, &changes, effects);
        for bag in closed {
            self.outputs.let_go(bag, effects);
            self.measuring.stop(bag, effects);
        }
    }

    fn finish(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let is_ordered = self.owner.orders().finish;
        let runs = is_ordered && self.execution.is_busy();
        let all_taken =
            is_ordered && self.writes.is_empty() && self.peer.held().iter().all(|held| held.unacknowledged == 0);
        if self.finishing.is_over(is_ordered, runs, all_taken, now) {
            effects.push(Effect::End);
        }
    }

    /// When [`Machine::handle`] next has timed work to do, on [`idlewood_scheduler::Event::DeadlineReached`]; `None` when only an
    /// event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        let of_parts = [
            self.outputs.deadline(),
            self.measuring.deadline(),
            self.execution.deadline(),
            self.owner.deadline(),
            self.finishing.deadline(),
            self.writes.deadline(),
        ];
        of_parts.into_iter().chain([self.peer.deadline()]).flatten().min()
    }

    /// Gives the peer an event, if there is one, and tells it what has come of tasks.
    fn feed(&mut self, now: Time, event: Option<idlewood_scheduler::Event>, effects: &mut Vec<Effect>) {
        let mut refused = Vec::new();
        if let Some(event) = event {
            self.tell_peer(now, event, &mut refused, effects);
        }
        loop {
            if let Some(task) = refused.pop() {
                let refusal = idlewood_scheduler::Event::FetchPutOff { task };
                self.tell_peer(now, refusal, &mut refused, effects);
            } else if let Some(JobEnded { job, task, outcome }) = self.execution.next_ended() {
                let ended = idlewood_scheduler::Event::TaskEnded { task, outcome };
                self.tell_peer(now, ended, &mut refused, effects);
                // By now the peer's record holds the output, or nobody wants it.
                effects.push(Effect::Work(WorkOrder::Forget { job }));
            } else if !self.execution.settle(now, effects) {
                return;
            }
        }
    }

    /// Gives the peer an event, and takes its orders. Outputs that find no room in the queue are `refused`.
    fn tell_peer(
        &mut self,
        now: Time,
        event: idlewood_scheduler::Event,
        refused: &mut Vec<TaskId>,
        effects: &mut Vec<Effect>,
    ) {
        let mut orders = std::mem::take(&mut self.peer_effects);
        self.peer.handle(now, event, &mut orders);
        for order in orders.drain(..) {
            self.take(order, refused, effects);
        }
        self.peer_effects = orders;
    }

    /// Gives a part what it decides of an order of the peer, and leaves the rest to the driver.
    fn take(&mut self, order: PeerEffect, refused: &mut Vec<TaskId>, effects: &mut Vec<Effect>) {
        match order {
            PeerEffect::FetchOutput { task, output, output_bytes, unfinished, from } => {
                let is_own = from.peer == self.peer.me().peer;
                let wanted = Wanted { task, output, output_bytes, unfinished, from };
                if is_own {
                    effects.push(self.outputs.keep_own(wanted));
                } else if !self.outputs.push(wanted) {
                    refused.push(task);
                }
            }
            PeerEffect::MeasureTask { bag } => self.measuring.push(bag),
            PeerEffect::Send { to, message: Message::Results { bag, executor, results, signature: _ } } => {
                self.results.push(to, bag, executor, results, effects);
            }
            PeerEffect::Persist { ticket, changes } => self.persist(ticket, changes, effects),
            PeerEffect::StartTask { place, task, attempt, bag, checkpoint } => {
                self.execution.start(place as usize, task, attempt, bag, checkpoint, effects);
            }
            PeerEffect::StopTask { place, task } => self.execution.stop(place as usize, task),
            PeerEffect::FreezeTask { place, task } => self.execution.freeze(place as usize, task),
            PeerEffect::ThawTask { place, task } => self.execution.thaw(place as usize, task),
            // Workers stood still before the peer heard of it.
            PeerEffect::SuspendTasks => {
                debug_assert!(self.execution.stands_still(), "the owner is back, and workers were not frozen");
            }
            PeerEffect::ResumeTasks => {}
            PeerEffect::Send { to, message } => effects.push(Effect::Send { to, message }),
            PeerEffect::List { ticket, page } => effects.push(Effect::List { ticket, page }),
            PeerEffect::Authorise { bag, envelope } => effects.push(Effect::Authorise { bag, envelope }),
            PeerEffect::KeepCheckpoints { stop, bag, tasks } => {
                effects.push(Effect::KeepCheckpoints { stop, bag, tasks });
            }
            PeerEffect::MakeStart { task, from } => effects.push(Effect::MakeStart { task, from }),
            PeerEffect::SignAppointment { appointment } => effects.push(Effect::SignAppointment(appointment)),
            PeerEffect::KeepFiles { bag, key, from } => effects.push(Effect::KeepFiles { bag, key, from }),
            PeerEffect::ReadResults { bag, tasks, to } => effects.push(Effect::ReadResults { bag, tasks, to }),
            PeerEffect::ForgetFiles { bag } => {
                self.outputs.let_go(bag, effects);
                effects.push(Effect::ForgetFiles { bag });
            }
            PeerEffect::Notify(notice) => {
                if let Notice::BagAccepted(bag) = notice {
                    self.submitting.remove(&bag);
                }
                effects.push(Effect::Notify(notice));
            }
        }
    }
}

/// Bags that these changes close.
fn closed_by(changes: &[Change]) -> Vec<BagId> {
    let closed = |change: &Change| match change {
        Change::Put(Record::Bag { bag, closed: Some(_), .. }) => Some(bag.id),
        Change::Put(_) | Change::Delete(_) => None,
    };
    changes.iter().filter_map(closed).collect()
}
