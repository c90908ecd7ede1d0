//! One machine: its place in the tree, its router, its queue, and the bags submitted from it.
//!
//! A driver owns a [`Peer`] and nothing else of the protocol. It feeds [`Event`]s and carries out [`Effect`]s; the
//! agent does so with sockets, processes and a store, the simulator with an event queue.

mod conditions;
mod endless;
mod event;
#[cfg(debug_assertions)]
mod invariants;
mod keepers;
mod listing;
mod redistribution;
mod removal;
mod requests;
mod restore;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{Contact, GridId, Member, Node, Nonce, Overlay, PayloadCodec, PeerId, Time};

pub use self::event::{Approval, Effect, Event, Notice, StartMade, Submission, SubmitError, TaskOutcome};
use self::redistribution::Asking;
use self::removal::Removals;
pub use self::restore::{RestoreError, Seed};
use crate::bag::{BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, BagHeader, BagId, Request, TaskId, TaskResult};
use crate::config::Config;
use crate::endless::fold::Fold;
use crate::executor::Executor;
use crate::io::{Durable, Io, Then, Way};
use crate::ledger::{Holding, Known, Ledger, Supply, refuse};
use crate::link;
use crate::listing::{About, Listings};
use crate::message::Message;
use crate::queue::{SPEED_MOPS_MAX, SPEED_MOPS_MIN, WORK_MOPS_MIN};
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record};
use crate::router::{Platform, Router};
use crate::steward::STEWARDS_MAX;
use crate::steward::keeping::Stewards;
use crate::summary::{self, SummaryForm};

/// Encodes reports as differences from the previous one; reads those of one form alone.
pub(crate) fn reports(form: SummaryForm) -> PayloadCodec {
    let unpack = match form {
        SummaryForm::Horizons => summary::unpack,
        SummaryForm::Paper => summary::unpack_papers,
    };
    PayloadCodec { pack: summary::pack, unpack }
}

/// As a leaf works its queue off its availability grows: it publishes that after this share of the queue's time, at most
/// [`REFRESH_MAX`]. Until then its last summary is a lower bound.
const REFRESH_SHARE: u32 = 8;
/// A router delays a report of grown availability by at most this share of its leaves' longest wait. Our choice.
const PATIENCE_SHARE: u32 = 64;
/// Most nonces that are kept. Our choice: more than there are connected machines.
const CERTIFIED_MAX: usize = 4096;
const REFRESH_MAX: Duration = Duration::from_secs(300);

/// One machine of the grid.
pub struct Peer {
    config: Arc<Config>,
    grid: GridId,
    overlay: Overlay,
    overlay_effects: Vec<idlewood_overlay::Effect>,
    /// Nonces of peers that sent messages lately.
    certified: BTreeMap<PeerId, Nonce>,
    router: Router,
    /// Requests that climb and wait until this router is below the root again, and until when.
    cut_off: Vec<(Time, Request)>,
    executor: Executor,
    /// Of bags submitted here, and of those for which this machine acts as their steward.
    ledgers: BTreeMap<BagId, Box<Ledger>>,
    stewards: Stewards,
    fold: Fold,
    /// The machine that last asked for an announcement as the root, and when it last asked or answered.
    root_heard: Option<(Contact, Time)>,
    removals: Removals,
    io: Io,
    /// When the leaf's summary may be, and when it must be, published again.
    summary_earliest: Time,
    summary_latest: Time,
    /// When the router's summary is to be published; `None` while it has not changed.
    router_due: Option<Time>,
    /// When the router's summary may be published again.
    router_earliest: Time,
    /// Until when a machine that is alone waits for the grid that it expects.
    alone_until: Option<Time>,
    asking: Asking,
    /// What this machine says of itself in listings, and the listings that pass through it.
    about: About,
    listings: Listings,
    /// Results of other machines cannot be written now.
    disk_is_full: bool,
    /// Whether a request of this machine enters the tree right now: only such requests are evidence against routers.
    is_entering: bool,
    /// When the executor has timed work next, and whether that has to be found anew, since something may have changed for
    /// it: most events are the tree's, and looking at all that is held would cost more than they do.
    executor_due: Option<Time>,
    executor_touched: bool,
    /// When there is timed work next; found anew after each event.
    deadline: Option<Time>,
    /// Events until the invariants are checked again.
    #[cfg(debug_assertions)]
    unchecked: usize,
}

/// Whether a message has nothing to do with tasks.
fn is_of_tree_alone(message: &Message) -> bool {
    use Message::{Machines, Overlay, Ticket, WhichMachines};
    matches!(message, Overlay(_) | Ticket { .. } | WhichMachines { .. } | Machines { .. })
}

/// The contact of a peer that sent a message, as the transport knows it.
fn contact_of(certified: &BTreeMap<PeerId, Nonce>, peer: PeerId) -> Contact {
    let nonce = certified.get(&peer).map(|nonce| Box::new(*nonce));
    Contact { peer, incarnation: 0, address: "".into(), nonce }
}

impl Peer {
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
            Event::Certified { peer, nonce } => self.certified(peer, nonce),
            Event::ConnectionLost(peer) => self.overlay(idlewood_overlay::Event::ConnectionLost(peer)),
            Event::Persisted(ticket) => {
                let Durable { issued, opened, removed, written, appointed, succeeded } = self.io.persisted(ticket);
                issued.into_iter().for_each(|(way, request)| self.numbered(way, request));
                if let Some(bag) = appointed {
                    self.stewards.appointed(bag, &mut self.ledgers, &mut self.io, &self.config);
                }
                removed.into_iter().for_each(|bag| self.remove_piece(bag));
                opened.into_iter().for_each(|bag| self.open(bag));
                if let Some((task, attempt)) = written {
                    self.executor.written(task, attempt);
                }
                if let Some(task) = succeeded
                    && let Some(ledger) = self.ledgers.get_mut(&task.bag)
                {
                    ledger.succeeded_durably(task.index, &mut self.io);
                }
            }
            Event::Submitted(submission) => self.submitted(submission),
            Event::Measured { bag, task_mops, result } => self.measured(bag, task_mops, result),
            Event::Cancelled(bag) => {
                if let Some(ledger) = self.ledgers.get_mut(&bag).filter(|ledger| !ledger.is_kept()) {
                    ledger.close(Closing::Cancelled, &mut self.io);
                }
            }
            Event::Rerun { bag, tasks } => {
                if let Some(ledger) = self.ledgers.get_mut(&bag).filter(|ledger| !ledger.is_kept()) {
                    ledger.rerun(&tasks, &mut self.io);
                }
            }
            Event::Wished { bag, wish } => {
                if let Some(ledger) = self.ledgers.get_mut(&bag).filter(|ledger| !ledger.is_kept()) {
                    ledger.wish(wish, &mut self.io, &self.config);
                }
                self.measure(bag);
            }
            Event::TasksAdded { bag, tasks } => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.add_tasks(tasks, &mut self.io);
                }
            }
            Event::SupplyEnded(bag) => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.end_supply(&mut self.io);
                }
            }
            Event::Drained { bag, tasks } => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.drain(&tasks, &mut self.io);
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
            Event::CheckpointsKept { stop, bag, checkpoints } => {
                self.executor.kept_checkpoints(stop, bag, &checkpoints, &mut self.io, &self.config);
            }
            Event::Vacate => self.executor.vacate(&mut self.io),
            Event::VacatesAfter(after) => self.executor.vacates_after(after),
            Event::KeepsAtMost(bags) => self.stewards.keep_at_most(bags, now),
            Event::Fetched { task, here, checkpoint } => match self.ledgers.get_mut(&task.bag) {
                Some(ledger) => ledger.fetched(task.index, here, checkpoint, &mut self.io),
                None => self.stewards.fetched(task, here, &mut self.io),
            },
            Event::StartMade { task, made } => {
                if let Some(ledger) = self.ledgers.get_mut(&task.bag) {
                    ledger.start_made(task.index, made, &mut self.io);
                }
            }
            Event::FetchPutOff { task } => match self.ledgers.get_mut(&task.bag) {
                Some(ledger) => ledger.put_off(task.index, &mut self.io),
                None => self.stewards.fetched(task, false, &mut self.io),
            },
            Event::OwnerReturned { stands_still } => {
                self.executor.suspend(stands_still, &mut self.io, &self.config);
            }
            Event::OwnerLeft => self.executor.resume(&mut self.io),
            Event::Downloaded { kb_s } => self.io.link_kb_s = link::measured(self.io.link_kb_s, kb_s),
            Event::SpeedChanged(mops) => self.change_speed(mops),
            Event::DiskFull(is_full) => {
                self.disk_is_full = is_full;
                self.stewards.note_disk(is_full, now);
            }
            Event::Leave => {
                self.executor.send_all_now(now);
                self.stewards.leave(&self.ledgers, &mut self.io);
                self.overlay(idlewood_overlay::Event::Leave);
            }
            Event::Return => self.come_back(),
            Event::Unsent { to, message } => self.unsent(to, message),
            Event::Room(peer) => {
                self.executor.has_room(peer, now);
                self.io.has_room(peer);
            }
            Event::AppointmentSigned(appointment) => self.stewards.signed(appointment, &mut self.io),
            Event::FilesKept { bag, kept } => {
                self.stewards.files_kept(bag, kept, &mut self.ledgers, &mut self.io);
            }
            Event::ResultsRead { bag, to, results } => self.stewards.read(bag, to, results, &mut self.io),
            Event::Describes(about) => self.about = about.bounded(),
            Event::ListMachines { ticket, first } => self.list_machines(ticket, first),
            Event::DeadlineReached => self.overlay(idlewood_overlay::Event::DeadlineReached),
        }
        self.settle();
        if self.executor_must_act() {
            self.executor_due = self.executor.deadline(&self.io);
            self.executor_touched = false;
        }
        self.io.placements = self.ledgers.values().map(|ledger| ledger.executors()).sum();
        self.deadline = self.next_deadline();
        #[cfg(debug_assertions)]
        self.check_invariants();
        effects.append(&mut self.io.effects);
    }

    /// Joins again in a newer incarnation, which has published nothing. It is journalled, so that a restart begins a newer one.
    fn come_back(&mut self) {
        let incarnation = self.overlay.me().incarnation;
        let had_neighbours = self.overlay.neighbours().next().is_some();
        self.overlay(idlewood_overlay::Event::Return);
        if self.overlay.me().incarnation == incarnation {
            return;
        }
        self.io.persist(vec![Change::Put(Record::Incarnation(self.overlay.me().incarnation))], Vec::new());
        self.executor.changed = true;
        self.stewards.come_back(&mut self.ledgers, self.io.now);
        self.summary_earliest = self.io.now;
        let expects_grid = had_neighbours || self.config.expects_grid;
        self.alone_until = expects_grid.then(|| self.io.now + self.config.placement_timeout);
    }

    fn change_speed(&mut self, mops: f64) {
        if mops.is_nan() {
            return;
        }
        let speed_mops = mops.clamp(SPEED_MOPS_MIN, SPEED_MOPS_MAX);
        Arc::make_mut(&mut self.config).speed_mops = speed_mops;
        self.io.speed_mops = speed_mops;
        self.executor.change_speed(speed_mops, self.io.now);
    }

    /// Speed of a slot of this machine by the clock, in Mop/s, as the driver said last.
    pub fn speed_mops(&self) -> f64 {
        self.io.speed_mops
    }

    /// When `handle` next has timed work to do; `None` when only an event can wake it.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    fn next_deadline(&self) -> Option<Time> {
        let summary = if self.executor.availability_changed() {
            Some(self.summary_from())
        } else {
            self.executor.has_work().then_some(self.summary_latest)
        };
        let ledgers =
            self.ledgers.values().filter(|ledger| !ledger.is_closed()).filter_map(|ledger| ledger.deadline()).min();
        let executor = self.executor_due;
        let router = self.router_due.into_iter().chain(self.router.deadline(&self.config)).min();
        let router = router.map(|due| due.max(self.router_from()).max(self.io.now));
        let alone = self.alone_until.filter(|&until| until > self.io.now);
        let ask = self.ask_deadline();
        let acks = self.io.acks_due();
        let stewards = self.stewards.deadline(&self.ledgers, &self.config);
        let listings = self.listings.deadline();
        let endless = self.endless_due();
        [self.overlay.deadline(), summary, ledgers, executor, router, alone, ask, acks, stewards, listings, endless]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the leaf's summary may be published again: not before it can leave, so that what leaves is the newest.
    fn summary_from(&self) -> Time {
        self.summary_earliest.max(self.overlay.publishes_from(Node::Leaf))
    }

    /// When the router's summary may be published again, likewise.
    fn router_from(&self) -> Time {
        self.router_earliest.max(self.overlay.publishes_from(Node::Router))
    }

    /// A driver that comes far too late was asleep, or its clock jumped: leases that ended meanwhile were not broken by
    /// anybody (`docs/design/scheduler.md`, placement and faults).
    fn notice_sleep(&mut self) {
        let late = self.deadline.map_or(Duration::ZERO, |deadline| self.io.now.since(deadline));
        // Nearly always it is in time, and the settings, which lie far away in memory, need not be asked.
        if late.is_zero() || late < self.config.lease / 3 {
            return;
        }
        self.io.handed.was_asleep();
        self.executor.slept(late, self.io.now);
        for ledger in self.ledgers.values_mut() {
            ledger.renew_all(&self.io, &self.config);
        }
        self.stewards.was_asleep(&mut self.ledgers, self.io.now);
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
        if submission.stewards.is_some_and(|stewards| stewards > STEWARDS_MAX) {
            return Err(SubmitError::Stewards);
        }
        self.check_endless(submission)?;
        let has_stewards = submission.can_have_stewards() && submission.stewards.unwrap_or(self.config.stewards) > 0;
        if submission.keep_results && !has_stewards {
            return Err(SubmitError::KeepResults);
        }
        let conditions = &submission.conditions;
        if let Some(plan) = &conditions.rounds {
            plan.check(submission.tasks, submission.replication).map_err(SubmitError::Rounds)?;
            plan.check_at_once(submission.task_mops, conditions.running_max).map_err(SubmitError::Rounds)?;
        }
        if !conditions.is_valid() {
            return Err(SubmitError::Conditions);
        }
        if submission.replication.quorum > 1 && (conditions.running_max.is_some() || conditions.retry_on.is_some()) {
            return Err(SubmitError::ConditionsOfVotes);
        }
        let is_own = |bag: &BagId| self.ledgers.get(bag).is_some_and(|ledger| !ledger.is_kept());
        if let Some(&unknown) = conditions.after.iter().find(|bag| !is_own(bag)) {
            return Err(SubmitError::After(unknown));
        }
        if self.ledgers.contains_key(&submission.id) || self.removals.contains_key(&submission.id) {
            return Err(SubmitError::Known);
        }
        Ok(())
    }

    fn overlay(&mut self, event: idlewood_overlay::Event) {
        self.overlay.handle(self.io.now, event, &mut self.overlay_effects);
    }

    /// The transport announces an evicted nonce again before the next message.
    fn certified(&mut self, peer: PeerId, nonce: Nonce) {
        if self.certified.len() >= CERTIFIED_MAX && !self.certified.contains_key(&peer) {
            self.certified.pop_first();
        }
        self.certified.insert(peer, nonce);
    }

    /// Whether the nonce of this peer is known; see [`Event::Certified`].
    pub fn is_certified(&self, peer: PeerId) -> bool {
        self.certified.contains_key(&peer)
    }

    fn receive(&mut self, from: PeerId, message: Message) {
        self.executor_touched |= !is_of_tree_alone(&message);
        if from != self.io.me.peer && self.io.handed.heard(self.io.now) {
            // A router may be left out now: the report offers nothing below it.
            self.publish_router_by(self.io.now);
        }
        match message {
            Message::Overlay(message) => {
                let from = contact_of(&self.certified, from).into();
                self.overlay(idlewood_overlay::Event::Received { from, message });
            }
            Message::Request { mut request, node, climbing } => {
                self.send_back(std::mem::take(&mut request.ticket), from);
                self.request(request, node, climbing);
            }
            Message::Holding { bag, executor, version, attempt, ranges, finished, capacity } => {
                let executor = executor.contact(from);
                match self.ledgers.get_mut(&bag) {
                    Some(ledger) => {
                        let holding = Holding { executor, version, attempt, ranges, finished, capacity };
                        ledger.holding(holding, &mut self.io, &self.config);
                    }
                    // Its keepers know more than this machine, which does not act.
                    None if self.stewards.keeps(bag) => {}
                    None => refuse(bag, executor, version, ranges, &mut self.io),
                }
            }
            Message::Ask { asker, node, climbing, climbed, ticket } => {
                self.send_back(ticket, from);
                self.asked(asker, node, climbing, climbed);
            }
            Message::WhichMachines { question, node, climbing } => self.which_machines(from, question, node, climbing),
            Message::Machines { number, page } => self.machines(from, number, *page),
            Message::Ticket { ticket } => self.io.handed.came_back(from, ticket),
            Message::Offer { bag, executor, ranges, to } => {
                let executor = executor.contact(from);
                match self.ledgers.get_mut(&bag) {
                    Some(ledger) => ledger.offer(executor, &ranges, to, &mut self.io, &self.config),
                    None if self.stewards.keeps(bag) => {}
                    None => refuse(bag, executor, 0, ranges, &mut self.io),
                }
            }
            // Their executor keeps the results and sends them again.
            Message::Results { .. } if self.disk_is_full && from != self.io.me.peer => {}
            Message::Results { bag, executor, results, .. } => {
                let executor = executor.contact(from);
                match self.ledgers.get_mut(&bag) {
                    // Whoever goes on as this machine, or in its place, is to have them.
                    _ if self.stewards.is_elsewhere(bag) || self.stewards.hands_over(bag) => {}
                    Some(ledger) => ledger.results(&executor, results, &mut self.io, &self.config),
                    None if self.stewards.keeps(bag) => {}
                    None => Message::acks(bag, &results).for_each(|ack| self.io.send(executor.clone(), ack)),
                }
            }
            Message::Share { bag, tasks } => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.shared_out(from, tasks, &mut self.io);
                }
            }
            Message::Decline { bag, ranges, reason } => {
                if let Some(ledger) = self.ledgers.get_mut(&bag) {
                    ledger.declined(from, &ranges, reason, &mut self.io);
                }
            }
            Message::Renewal { executor, bags } => self.renewal(executor.contact(from), bags),
            Message::Lease(lease) if self.is_asked_for_nothing(&lease) => {
                let keeper = lease.submitter.map(|keeper| keeper.contact(from));
                let keeper = keeper.unwrap_or_else(|| contact_of(&self.certified, from));
                self.executor.holds_nothing(lease.bag, keeper, &mut self.io);
            }
            Message::Lease(lease) => self.executor.lease(from, lease, &mut self.io, &self.config),
            Message::Acts { acting } => self.executor.acts(from, &acting, &mut self.io, &self.config),
            Message::KeepOffer { .. }
            | Message::KeepAnswer { .. }
            | Message::Deltas { .. }
            | Message::DeltasAck { .. }
            | Message::WhatIsKept { .. }
            | Message::Kept { .. }
            | Message::KeptAck { .. } => self.of_keepers(from, message),
            Message::Announce { .. }
            | Message::Granted { .. }
            | Message::Absorbs { .. }
            | Message::Shares { .. }
            | Message::Want { .. } => self.of_endless(from, message),
            Message::Renewed { bags, term } => self.executor.renewed(from, &bags, term, &mut self.io, &self.config),
            Message::Begin { bag, tasks } => self.executor.begin(from, bag, &tasks, &mut self.io),
            Message::Booked { bag, tasks } => self.booked(from, bag, &tasks),
            Message::ResultsAck { bag, attempt, indices } => {
                self.executor.acknowledged(from, bag, attempt, &indices, &mut self.io, &self.config);
            }
        }
    }

    /// The driver has no room for a message.
    fn unsent(&mut self, to: Member, message: Message) {
        if let Message::Results { bag, results, .. } = &message {
            self.executor.results_unsent(*bag, results, &self.io, &self.config);
        }
        self.io.hold_back(to, message);
    }

    /// An executor renews its leases. Of a bag for which the ledger has another version it has to send a `Holding`; an unknown
    /// bag it has to drop.
    fn renewal(&mut self, executor: Contact, mut bags: Vec<(BagId, u64)>) {
        let mut shortest: Option<Duration> = None;
        bags.retain(|&(bag, version)| {
            let Some(ledger) = self.ledgers.get_mut(&bag) else {
                if self.stewards.keeps(bag) {
                    return false;
                }
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

    fn submitted(&mut self, submission: Submission) {
        if self.check(&submission).is_err() {
            return;
        }
        let task_mops = submission.task_mops.unwrap_or(0.0);
        let bag = BagHeader {
            id: submission.id,
            submitter: Contact::clone(&self.io.me),
            tasks: submission.tasks,
            task_mops,
            application_size_mops: self.application_size(task_mops, submission.tasks),
            declared: submission.task_mops.is_some(),
        };
        let mut ledger = Ledger::new(bag, self.io.now, submission.retries_max, submission.replication, &self.io);
        ledger.enclose(submission.envelope, submission.manifest);
        ledger.set_stewards(submission.stewards);
        ledger.set_keep_results(submission.keep_results, 0);
        ledger.set_conditions(submission.conditions, &self.io);
        if let Some(endless) = submission.endless {
            ledger.set_supply(&Supply::of(endless));
        }
        let record = ledger.record(&self.io);
        self.ledgers.insert(submission.id, Box::new(ledger));
        let then = vec![Then::Notify(Notice::BagAccepted(submission.id)), Then::Open(submission.id)];
        self.io.persist(vec![Change::Put(record)], then);
    }

    /// w' = a·max(n, N), or the paper's w = a·n.
    fn application_size(&self, task_mops: f64, tasks: u64) -> f64 {
        let width = match self.config.effective_size {
            // What is computed from sizes does not concern endless bags.
            _ if tasks == BAG_TASKS_MAX => self.io.leaves,
            true => tasks.max(self.io.leaves),
            false => tasks,
        };
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
        // Leaves of agents before this one ignore requests that name another w: after a crash w would be measured anew.
        self.io.persist(vec![Change::Put(ledger.record(&self.io))], vec![Then::Open(bag)]);
        if let Some(result) = result.filter(|result| result.success && result.is_valid(tasks)) {
            let me = Contact::clone(&self.io.me);
            ledger.record_result(result, me, &mut self.io);
        }
    }

    /// Whether there may be something for the executor to do.
    fn executor_must_act(&self) -> bool {
        self.executor_touched || self.executor_due.is_some_and(|due| due <= self.io.now)
    }

    /// Does everything that follows from an event, until nothing more does.
    fn settle(&mut self) {
        if self.io.me != *self.overlay.me_shared() {
            self.io.me.clone_from(self.overlay.me_shared());
        }
        if self.executor_must_act() {
            self.executor.tick(&mut self.io, &self.config);
        }
        for ledger in self.ledgers.values_mut() {
            ledger.ask_again(&mut self.io, &self.config);
            ledger.expire(&mut self.io);
        }
        self.end_waits();
        self.keep();
        self.end_listings();
        if self.io.acks_due().is_some_and(|due| due <= self.io.now) {
            self.io.send_acks();
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
                self.asking.is_dry = self.executor.is_dry();
            }
            self.ask_for_work();
            self.share_endless();
            if self.io.local.is_empty() {
                break;
            }
        }
        let (ledgers, io) = (&self.ledgers, &mut self.io);
        let is_taken = |task: TaskId| ledgers.get(&task.bag).is_some_and(|ledger| ledger.is_over(task.index));
        self.executor.store_untaken(is_taken, io);
        self.publish();
        self.drain_overlay();
    }

    /// A bag whose submission, or whose a and w, have just become durable may be issued.
    fn open(&mut self, bag: BagId) {
        let Some(ledger) = self.ledgers.get_mut(&bag) else { return };
        // Also where the measured task was the only one: a rerun opens the bag again.
        ledger.open();
        self.stewards.submitted(ledger, &self.config);
        self.measure(bag);
    }

    /// Sends out everything that is to be placed, once this machine has its place in the tree: a submitter that
    /// comes back would otherwise take all of it on itself.
    fn issue(&mut self) {
        if !self.is_attached() {
            return;
        }
        let (grid, overlay, me, certified) = (self.grid, &self.overlay, self.io.me.clone(), &self.certified);
        let right = |peer| {
            let key = if peer == me.peer { me.key(grid) } else { contact_of(certified, peer).key(grid) };
            key.0[0] >= 0x80
        };
        let known = || {
            let contacts = overlay.neighbours().chain([&*me]);
            contacts.map(|contact| Known { contact: contact.clone(), right: right(contact.peer) }).collect()
        };
        let doubted = self.doubted();
        let is_way_up_lost = self.is_way_up_lost();
        let reachable = || {
            let contacts = overlay.neighbours().chain(overlay.long_links());
            contacts.map(|contact| Known { contact: contact.clone(), right: right(contact.peer) }).collect()
        };
        let mut requests = Vec::new();
        let mut idle_slots = self.executor.idle_slots();
        for ledger in self.ledgers.values_mut() {
            if ledger.is_endless() {
                let given = ledger.serve(&self.io, &self.config);
                requests.extend(given.into_iter().map(|(to, request)| (Way::To(to, Node::Leaf), request)));
                continue;
            }
            if is_way_up_lost {
                ledger.avoid_tree();
            }
            if let Some(request) = ledger.issue_here(idle_slots, &self.io, &self.config) {
                idle_slots = idle_slots.saturating_sub(request.ranges.len());
                // It need not wait for its attempt: what this leaf holds of it follows on the same disk.
                self.io.send(me.clone(), Message::Request { request, node: Node::Leaf, climbing: false });
            }
            let has_room = idle_slots > 0;
            let others = ledger.issue_around_tree(reachable, &doubted, has_room, &self.io, &self.config);
            requests.extend(others.into_iter().map(|(to, node, request)| (Way::To(to, node), request)));
            let issued = ledger.issue(known, &self.io, &self.config);
            let way = |to: Option<Contact>| to.map_or(Way::Tree, |to| Way::To(to, Node::Leaf));
            requests.extend(issued.into_iter().map(|(to, request)| (way(to), request)));
            let copies = ledger.issue_copies(&mut self.io, &self.config);
            requests.extend(copies.into_iter().map(|request| (Way::Tree, request)));
            let copies = ledger.copies_due(known, right, &mut self.io, &self.config);
            requests.extend(copies.into_iter().map(|(to, request)| (Way::To(to, Node::Leaf), request)));
        }
        for (way, request) in requests {
            if let Some((way, request)) = self.io.once_numbered(way, request) {
                self.send_out(way, request);
            }
        }
    }

    /// The attempt of a request is durable: it leaves, unless it was given up meanwhile.
    fn numbered(&mut self, way: Way, request: Request) {
        let ledger = self.ledgers.get(&request.bag.id);
        if ledger.is_some_and(|ledger| ledger.is_under_way(request.number)) {
            self.send_out(way, request);
        }
    }

    /// Sends a request of a ledger of this machine on its first hop.
    fn send_out(&mut self, way: Way, request: Request) {
        match way {
            Way::To(to, node) => self.io.hand_over(to, Message::Request { request, node, climbing: false }),
            Way::Tree => {
                self.is_entering = true;
                self.enter(request);
                self.is_entering = false;
            }
        }
    }

    fn drain_overlay(&mut self) {
        for effect in std::mem::take(&mut self.overlay_effects) {
            match effect {
                idlewood_overlay::Effect::Send { to, message } => {
                    self.io.send(to, Message::Overlay(message));
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
            idlewood_overlay::Notice::ChildrenChanged => {
                self.router.refresh(&self.overlay, self.io.now, &self.config);
                let wait = if self.router.is_urgent() { Duration::ZERO } else { self.patience() };
                self.publish_router_by(self.io.now + wait);
            }
            idlewood_overlay::Notice::PlaceChanged => self.publish_router_by(self.io.now),
            idlewood_overlay::Notice::RootChanged => self.note_root(),
        }
    }

    /// How long a report of grown availability may be delayed: less if little work is left below, since leaves are about to run
    /// dry.
    fn patience(&self) -> Duration {
        let wait_s = summary::longest_wait_s(self.overlay.published(Node::Router));
        self.config.summary_patience.min(Duration::from_secs(wait_s) / PATIENCE_SHARE)
    }

    fn publish_router_by(&mut self, due: Time) {
        self.router_due = Some(self.router_due.map_or(due, |before| before.min(due)));
    }

    /// Whether what a node is to publish can wait at its parent: not where it takes the place of what could not, and has not left.
    fn can_wait(&self, node: Node, is_urgent: bool) -> bool {
        let replaces_urgent = self.overlay.has_unsent(node) && !summary::can_wait(self.overlay.published(node));
        !is_urgent && !replaces_urgent
    }

    /// After how long the leaf's summary is made anew though nothing happened: as the queue is worked off more may be available. Of the
    /// paper's summaries when their release time is over.
    fn refresh_in(&self) -> Duration {
        match self.config.summaries {
            SummaryForm::Horizons => {
                let refresh = (self.executor.busy_for(self.io.now, |_| true) / REFRESH_SHARE).min(REFRESH_MAX);
                self.config.summary_refresh.max(refresh)
            }
            SummaryForm::Paper => summary::release_in(self.io.wall(self.io.now)),
        }
    }

    /// Publishes what changed: the leaf's summary, the subtree's, and what the root tells everybody.
    fn publish(&mut self) {
        let now = self.io.now;
        let due = if self.executor.availability_changed() { self.summary_from() } else { self.summary_latest };
        if due <= now && (self.executor.availability_changed() || self.executor.has_work()) {
            // As time passes availability only grows: that alone is not urgent.
            let is_urgent = std::mem::take(&mut self.executor.changed);
            self.executor.availability_grew = false;
            self.summary_earliest = now + self.config.summary_interval;
            self.summary_latest = now + self.refresh_in();
            let mut summary = self.executor.summary(&self.io);
            summary.can_wait = self.can_wait(Node::Leaf, is_urgent);
            self.overlay.publish(now, Node::Leaf, summary.flatten(), &mut self.overlay_effects);
            self.drain_overlay();
            // A machine alone is a grid, whose root has no child to hear it from.
            if !self.overlay.hosts_router() {
                self.publish_router_by(now);
            }
        }
        // A router is taken back as time passes.
        let is_back = || !self.router.left_out().is_empty() && self.router.left_out() != self.io.left_out();
        if self.router.deadline(&self.config).is_some_and(|deadline| deadline <= now) || is_back() {
            self.publish_router_by(now);
        }
        if self.router_due.is_none_or(|due| due > now) || self.router_from() > now {
            return;
        }
        self.router_due = None;
        self.router_earliest = now + self.config.summary_interval;
        self.router.leave_out(self.io.left_out());
        self.router.refresh(&self.overlay, now, &self.config);
        let can_wait = self.can_wait(Node::Router, self.router.is_urgent());
        let changed = self.overlay.hosts_router() && self.router.take_changed();
        if !changed && !self.overlay.is_root() {
            return;
        }
        let mut report =
            self.router.report(self.config.summaries, &self.overlay).filter(|_| self.overlay.hosts_router());
        if let Some(report) = &mut report {
            summary::set_can_wait(report, can_wait);
            if changed && !summary::is_same_offer(self.overlay.published(Node::Router), report) {
                self.overlay.publish(now, Node::Router, report.clone(), &mut self.overlay_effects);
            }
        }
        if self.overlay.is_root() {
            let report = report.unwrap_or_else(|| self.executor.summary(&self.io).flatten());
            let platform = Platform::of(&report, self.config.climbing).encode();
            self.overlay.publish_root(now, platform, &mut self.overlay_effects);
        }
    }
}
