//! The outlet that the parts of a peer share: effects, durable writes, and messages from the peer to itself.
//!
//! Acknowledgements wait some milliseconds for others to the same machine, and messages to a peer for which the driver has
//! no room wait until it has (`crowd`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use idlewood_overlay::{Contact, Member, Node, PeerId, Time, WallTime};

use crate::bag::{BagId, Request, TaskId};
use crate::config::Config;
use crate::crowd::{Acks, Crowds};
use crate::handed::Handed;
use crate::link::LINK_KB_S;
use crate::listing::MachinesPage;
use crate::message::{Lease, Message};
use crate::peer::{Effect, Notice};
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record};
use crate::reputation::{Reputation, Reputations};
use crate::steward::Acting;
use crate::steward::feed::Tap;
use crate::watch::Watch;

/// Names a durable write until its [`crate::Event::Persisted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a request leaves the machine of its ledger.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Into the tree.
    Tree,
    /// Straight to this node of a machine.
    To(Contact, Node),
}

/// What happens once a write is durable.
#[derive(Debug)]
pub(crate) enum Then {
    Send(Contact, Message),
    /// The attempt of a request is durable: the request leaves.
    Issue(Way, Request),
    Notify(Notice),
    /// A submission is durable: its tasks may be issued.
    Open(BagId),
    /// The removal of a bag, or of a piece of it, is durable: the next piece follows.
    Remove(BagId),
    /// The result of a task here, with this attempt, is durable: it may be sent.
    Written(TaskId, u32),
    /// An appointment is durable: it is in force.
    Appointed(BagId),
    /// The success of a task of an application in rounds is durable: others may begin with its output.
    Succeeded(TaskId),
}

/// What follows from a durable write that [`Io`] does not do itself.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    /// Requests whose attempts are durable.
    pub(crate) issued: Vec<(Way, Request)>,
    /// The bag whose submission is durable.
    pub(crate) opened: Option<BagId>,
    /// The bag whose removal goes on.
    pub(crate) removed: Option<BagId>,
    /// The task whose result, with this attempt, may be sent.
    pub(crate) written: Option<(TaskId, u32)>,
    /// The bag whose stewards are appointed.
    pub(crate) appointed: Option<BagId>,
    /// The task of an application in rounds with whose output others may begin.
    pub(crate) succeeded: Option<TaskId>,
}

impl Then {
    /// The executor and the tasks whose results it acknowledges.
    fn acknowledged<'a>(&'a self) -> impl Iterator<Item = (PeerId, TaskId)> + 'a {
        let ack = match self {
            Self::Send(to, Message::ResultsAck { bag, indices, .. } | Message::KeptAck { bag, indices, .. }) => {
                Some((to.peer, *bag, indices))
            }
            _ => None,
        };
        let tasks = |(executor, bag, indices): (PeerId, BagId, &'a IntervalSet)| {
            indices.indices().map(move |index| (executor, TaskId { bag, index }))
        };
        ack.into_iter().flat_map(tasks)
    }
}

/// A write under way.
#[derive(Debug)]
struct Write {
    /// The bag, where it writes the executor's records of one.
    held: Option<BagId>,
    /// The bag submitted here whose results or end it journals.
    journals: Option<(BagId, Journalling)>,
    /// The bag whose record it writes for the ledger, with the attempt that requests have.
    numbers: Option<BagId>,
    then: Vec<Then>,
}

/// How many results and ends of a bag are on their way to the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Journalling {
    /// Results of tasks that succeeded.
    pub(crate) done: u64,
    /// Results of tasks that failed for good.
    pub(crate) failed: u64,
    /// Records of the bag as completed.
    pub(crate) closings: u64,
}

impl Journalling {
    #[cfg(debug_assertions)]
    fn counts(self) -> [u64; 3] {
        [self.done, self.failed, self.closings]
    }

    /// The results and ends among these changes, which are all of one ledger.
    fn of(changes: &[Change]) -> Option<(BagId, Self)> {
        let mut journals: Option<(BagId, Self)> = None;
        for change in changes {
            let (bag, add): (BagId, fn(&mut Self)) = match change {
                Change::Put(Record::Done { bag, result, .. }) if result.success => (*bag, |counts| counts.done += 1),
                Change::Put(Record::Done { bag, .. }) => (*bag, |counts| counts.failed += 1),
                Change::Put(Record::Bag { bag, closed: Some((Closing::Completed, _)), .. }) => {
                    (bag.id, |counts| counts.closings += 1)
                }
                Change::Put(_) | Change::Delete(_) => continue,
            };
            add(&mut journals.get_or_insert((bag, Self::default())).1);
        }
        journals
    }
}

/// The outlet that all parts of one peer share.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) now: Time,
    /// Wall-clock time at the driver's start.
    epoch: WallTime,
    pub(crate) me: Member,
    /// Speed of a slot of this machine, in Mop/s.
    pub(crate) speed_mops: f64,
    /// The same as it was at the start: what tasks computed is judged by it, since a machine whose tasks wait computes no less in a second of a processor.
    pub(crate) start_mops: f64,
    /// Machines of the grid, as the root last reported.
    pub(crate) leaves: u64,
    /// The largest maximum stretch of a machine, as the root last reported, in s/Mop.
    pub(crate) maximum_stretch: f64,
    /// The longest wait of a machine, as the root last reported, in seconds.
    pub(crate) longest_wait_s: u64,
    /// Mean speed of a machine of the grid, as the root last reported, in Mop/s; 0 where it is unknown.
    pub(crate) mean_speed_mops: f64,
    /// What this machine's link takes, as far as downloads have shown, in kB/s.
    pub(crate) link_kb_s: u32,
    /// Executors of all bags submitted here; one that has tasks of several bags counts for each.
    pub(crate) placements: u64,
    /// Reputations of other machines, from bags with a quorum.
    pub(crate) reputations: Reputations,
    /// Observations of the routers that requests of this machine went through.
    pub(crate) watch: Watch,
    /// What was seen of the routers that this machine hands anything to.
    pub(crate) handed: Handed,
    /// Secret seed of the draw by which machines that are believed alone are checked.
    pub(crate) secret: u64,
    /// Secret from which the keys of bags submitted here are derived.
    pub(crate) bag_secret: [u8; 32],
    pub(crate) effects: Vec<Effect>,
    /// Messages of this peer to itself: they never leave the process.
    pub(crate) local: VecDeque<Message>,
    next_ticket: u64,
    /// Writes under way.
    pending: BTreeMap<Ticket, Write>,
    /// How many of them write the executor's records of each bag.
    writing: BTreeMap<BagId, u32>,
    /// The results and ends of each bag submitted here that they write.
    journalling: BTreeMap<BagId, Journalling>,
    /// The last of them with the record of each bag that has a ledger here.
    numbering: BTreeMap<BagId, Ticket>,
    /// How many of them an acknowledgement to this executor about this task waits for.
    recording: BTreeMap<(PeerId, TaskId), u32>,
    /// How many of them acknowledge this task to any executor.
    recording_of_task: BTreeMap<TaskId, u32>,
    /// Acknowledgements that wait for others.
    acks: Acks,
    /// Messages for which there was no room.
    crowds: Crowds,
    /// The bags of which this machine is one of several keepers, and acts: where the changes of their records are noted.
    pub(crate) taps: BTreeMap<BagId, Tap>,
    /// By what right it acts.
    mandates: BTreeMap<BagId, Mandate>,
}

/// By what right this machine acts for a bag, and the executors that have been told.
#[derive(Debug)]
struct Mandate {
    acting: Box<Acting>,
    told: BTreeSet<PeerId>,
}

impl Io {
    pub(crate) fn new(now: Time, wall_now: WallTime, me: impl Into<Member>) -> Self {
        Self {
            now,
            epoch: WallTime(wall_now.0.saturating_sub(now.as_micros())),
            me: me.into(),
            speed_mops: Config::default().speed_mops,
            start_mops: Config::default().speed_mops,
            leaves: 1,
            maximum_stretch: 0.0,
            longest_wait_s: 0,
            mean_speed_mops: 0.0,
            link_kb_s: LINK_KB_S,
            placements: 0,
            reputations: Reputations::default(),
            watch: Watch::default(),
            handed: Handed::default(),
            secret: 0,
            bag_secret: [0; 32],
            effects: Vec::new(),
            local: VecDeque::new(),
            next_ticket: 0,
            pending: BTreeMap::new(),
            writing: BTreeMap::new(),
            journalling: BTreeMap::new(),
            numbering: BTreeMap::new(),
            recording: BTreeMap::new(),
            recording_of_task: BTreeMap::new(),
            acks: Acks::default(),
            crowds: Crowds::default(),
            taps: BTreeMap::new(),
            mandates: BTreeMap::new(),
        }
    }

    /// From now on this machine acts for this bag by that right; `None`: as its submitter, without stewards, or not at all.
    pub(crate) fn acts_by(&mut self, bag: BagId, acting: Option<Acting>) {
        match acting {
            Some(acting) => {
                drop(self.mandates.insert(bag, Mandate { acting: Box::new(acting), told: BTreeSet::new() }));
            }
            None => drop(self.mandates.remove(&bag)),
        }
    }

    /// By what right this machine acts for a bag of another.
    pub(crate) fn acts_for_another(&self, bag: BagId) -> Option<Box<Acting>> {
        let mandate = self.mandates.get(&bag).filter(|mandate| mandate.acting.rank > 0)?;
        Some(mandate.acting.clone())
    }

    /// Before a lease an executor has to know the keeper that it is from: it is told once by the submitter, each time by a steward.
    fn introduce(&mut self, to: &Member, message: &Message) {
        let Message::Lease(Lease { bag, .. }) = message else { return };
        let Some(mandate) = self.mandates.get_mut(bag) else { return };
        if mandate.told.insert(to.peer) || mandate.acting.rank > 0 {
            let acting = mandate.acting.clone();
            self.effects.push(Effect::Send { to: to.clone(), message: Message::Acts { acting } });
        }
    }

    /// The wall-clock time of a moment, for records.
    pub(crate) fn wall(&self, time: Time) -> WallTime {
        WallTime(self.epoch.0.saturating_add(time.as_micros()))
    }

    /// The moment of a record's wall-clock time; never in the future, even where the clock jumped.
    pub(crate) fn moment(&self, wall: WallTime) -> Time {
        self.now - self.wall(self.now).since(wall)
    }

    /// A machine's present reputation.
    pub(crate) fn reputation(&self, peer: PeerId) -> Reputation {
        self.reputations.of(peer, self.wall(self.now))
    }

    /// Whether nothing is sent through a router, by what this machine has seen itself.
    pub(crate) fn leaves_out(&self, router: PeerId) -> bool {
        self.watch.swallows(router, self.now) || self.handed.swallows(router, self.now)
    }

    /// All such routers, in their order.
    pub(crate) fn left_out(&self) -> Vec<PeerId> {
        let mut left_out: Vec<PeerId> = self.handed.left_out(self.now).chain(self.watch.left_out(self.now)).collect();
        left_out.sort_unstable();
        left_out.dedup();
        left_out
    }

    pub(crate) fn send(&mut self, to: impl Into<Member>, message: Message) {
        let to = to.into();
        if to.peer == self.me.peer {
            if let Message::Lease(Lease { bag, .. }) = &message
                && let Some(acting) = self.acts_for_another(*bag)
            {
                self.local.push_back(Message::Acts { acting });
            }
            return self.local.push_back(message);
        }
        self.introduce(&to, &message);
        if self.crowds.is_crowded(to.peer) && !matches!(message, Message::Overlay(_) | Message::Results { .. }) {
            self.hold_back(to, message);
        } else {
            self.effects.push(Effect::Send { to, message });
        }
    }

    /// Sends a request or a question for work; one for the router of another machine has a ticket now and then (`handed`).
    pub(crate) fn hand_over(&mut self, to: Contact, mut message: Message) {
        let ticket = match &mut message {
            // What its receiver would refuse proves nothing.
            Message::Request { request, node: Node::Router, .. } if request.is_valid() => Some(&mut request.ticket),
            Message::Ask { ticket, node: Node::Router, .. } => Some(ticket),
            _ => None,
        };
        if let Some(ticket) = ticket.filter(|_| to.peer != self.me.peer) {
            *ticket = self.handed.ticket(to.peer, self.now);
        }
        self.send(to, message);
    }

    /// Answers the driver's question for machines.
    pub(crate) fn list(&mut self, ticket: u64, page: MachinesPage) {
        self.effects.push(Effect::List { ticket, page: Box::new(page) });
    }

    pub(crate) fn notify(&mut self, notice: Notice) {
        self.effects.push(Effect::Notify(notice));
    }

    /// The driver had no room for this message: it waits until [`Io::has_room`], and so do later ones to that peer.
    /// `Results` are dropped, since the executor sends them again.
    pub(crate) fn hold_back(&mut self, to: Member, message: Message) {
        match message {
            Message::ResultsAck { bag, attempt, indices } => {
                self.crowds.begin(to.peer);
                // Where `Acks` is full this acknowledgement is dropped: the executor sends the result again.
                self.acks.add(&to, bag, attempt, &indices, self.now);
            }
            Message::Results { .. } | Message::Overlay(_) => self.crowds.begin(to.peer),
            message => self.crowds.push(to, message),
        }
    }

    /// There is room again for messages to this peer: those that waited are sent.
    pub(crate) fn has_room(&mut self, peer: PeerId) {
        for (to, message) in self.crowds.end(peer) {
            self.send(to, message);
        }
        self.send_acks();
    }

    /// When acknowledgements that wait for others are sent.
    pub(crate) fn acks_due(&self) -> Option<Time> {
        self.acks.due()
    }

    /// Sends the acknowledgements that have waited long enough.
    pub(crate) fn send_acks(&mut self) {
        let (crowds, now) = (&self.crowds, self.now);
        for (to, message) in self.acks.take_due(now, |peer| !crowds.is_crowded(peer)) {
            self.send(to, message);
        }
    }

    /// Orders a durable write; `then` happens once it is durable.
    pub(crate) fn persist(&mut self, changes: Vec<Change>, then: Vec<Then>) {
        let journals = Journalling::of(&changes);
        for change in &changes {
            let bag = change.key().bag();
            if let Some((bag, tap)) = bag.and_then(|bag| Some((bag, self.taps.get_mut(&bag)?))) {
                tap.note(change, bag);
            }
        }
        let numbers = changes.iter().find_map(|change| match change {
            Change::Put(Record::Bag { bag, .. }) => Some(bag.id),
            _ => None,
        });
        self.write(changes, Write { held: None, journals, numbers, then });
    }

    /// As [`Io::persist`], of the records of a bag that is kept for another, which other keepers are not told of.
    pub(crate) fn persist_kept(&mut self, changes: Vec<Change>, then: Vec<Then>) {
        self.write(changes, Write { held: None, journals: None, numbers: None, then });
    }

    /// As [`Io::persist`], of the executor's records of a bag.
    pub(crate) fn persist_held(&mut self, bag: BagId, changes: Vec<Change>, then: Vec<Then>) {
        self.write(changes, Write { held: Some(bag), journals: None, numbers: None, then });
    }

    /// Has a request wait while the record of its bag is being written, which has its attempt: else a ledger restored from the record before would give
    /// the same task to the same machine with the same attempt again. Returns it where it may leave now.
    pub(crate) fn once_numbered(&mut self, way: Way, request: Request) -> Option<(Way, Request)> {
        let ticket = self.numbering.get(&request.bag.id);
        match ticket.and_then(|ticket| self.pending.get_mut(ticket)) {
            Some(write) => write.then.push(Then::Issue(way, request)),
            None => return Some((way, request)),
        }
        None
    }

    /// Whether the executor's records of a bag are being written, so that no `Holding` of it may be sent.
    pub(crate) fn is_writing(&self, bag: BagId) -> bool {
        self.writing.contains_key(&bag)
    }

    /// The results and ends of a bag submitted here that are not durable yet.
    pub(crate) fn journalling(&self, bag: BagId) -> Journalling {
        self.journalling.get(&bag).copied().unwrap_or_default()
    }

    /// These tasks of a bag without those whose results are still being written here, so that the executor has to keep them.
    pub(crate) fn recorded(&self, executor: PeerId, bag: BagId, mut tasks: IntervalSet) -> IntervalSet {
        let [first, last] = [0, u64::MAX].map(|index| (executor, TaskId { bag, index }));
        for ((_, task), _) in self.recording.range(first..=last) {
            tasks.remove_index(task.index);
        }
        tasks
    }

    /// Whether a result or failure of this task from this executor is being written, and acknowledged once it is durable.
    pub(crate) fn is_recording(&self, executor: PeerId, task: TaskId) -> bool {
        self.recording.contains_key(&(executor, task))
    }

    /// Whether a result or failure of this task from any executor is being written.
    pub(crate) fn is_recording_task(&self, task: TaskId) -> bool {
        self.recording_of_task.contains_key(&task)
    }

    fn write(&mut self, changes: Vec<Change>, write: Write) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if let Some(bag) = write.held {
            *self.writing.entry(bag).or_default() += 1;
        }
        for (executor, task) in write.then.iter().flat_map(Then::acknowledged) {
            *self.recording.entry((executor, task)).or_default() += 1;
            *self.recording_of_task.entry(task).or_default() += 1;
        }
        if let Some((bag, journals)) = write.journals {
            let all = self.journalling.entry(bag).or_default();
            all.done += journals.done;
            all.failed += journals.failed;
            all.closings += journals.closings;
        }
        if let Some(bag) = write.numbers {
            self.numbering.insert(bag, ticket);
        }
        if !write.then.is_empty() || write.held.is_some() || write.journals.is_some() || write.numbers.is_some() {
            self.pending.insert(ticket, write);
        }
        self.effects.push(Effect::Persist { ticket, changes });
    }

    /// The bag of this submission is removed: nothing follows from its write.
    pub(crate) fn give_up(&mut self, bag: BagId) {
        let opens = |then: &Then| matches!(then, Then::Open(opened) if *opened == bag);
        self.pending.retain(|_, write| !write.then.iter().any(opens));
    }

    /// A write is durable: does what waited for it, or returns it.
    pub(crate) fn persisted(&mut self, ticket: Ticket) -> Durable {
        let mut durable = Durable::default();
        let Some(write) = self.pending.remove(&ticket) else { return durable };
        if let Some(bag) = write.held {
            release(&mut self.writing, bag);
        }
        if let Some((bag, journals)) = write.journals
            && let Entry::Occupied(mut all) = self.journalling.entry(bag)
        {
            let left = all.get_mut();
            left.done -= journals.done;
            left.failed -= journals.failed;
            left.closings -= journals.closings;
            if left.done + left.failed + left.closings == 0 {
                all.remove();
            }
        }
        if let Some(bag) = write.numbers
            && self.numbering.get(&bag) == Some(&ticket)
        {
            self.numbering.remove(&bag);
        }
        for then in write.then {
            for (executor, task) in then.acknowledged() {
                release(&mut self.recording, (executor, task));
                release(&mut self.recording_of_task, task);
            }
            match then {
                Then::Send(to, Message::ResultsAck { bag, attempt, indices }) => {
                    self.acknowledge(to.into(), bag, attempt, &indices);
                }
                Then::Send(to, message) => self.send(to, message),
                Then::Issue(way, request) => durable.issued.push((way, request)),
                Then::Notify(notice) => self.notify(notice),
                Then::Open(bag) => durable.opened = Some(bag),
                Then::Remove(bag) => durable.removed = Some(bag),
                Then::Written(task, attempt) => durable.written = Some((task, attempt)),
                Then::Appointed(bag) => durable.appointed = Some(bag),
                Then::Succeeded(task) => durable.succeeded = Some(task),
            }
        }
        durable
    }

    /// Acknowledges journalled results: together with the last of the bag and machine that are being written, or after a few
    /// milliseconds, so that results that came together are acknowledged together.
    fn acknowledge(&mut self, to: Member, bag: BagId, attempt: u32, indices: &IntervalSet) {
        let peer = to.peer;
        if let Some((to, message)) = self.acks.add(&to, bag, attempt, indices, self.now) {
            self.send(to, message);
        }
        let [first, last] = [0, u64::MAX].map(|index| (peer, TaskId { bag, index }));
        if self.recording.range(first..=last).next().is_none() && !self.crowds.is_crowded(peer) {
            for (to, message) in self.acks.take_of(peer, bag) {
                self.send(to, message);
            }
        }
    }
}

#[cfg(debug_assertions)]
impl Io {
    /// How many writes are under way that something follows from.
    pub(crate) fn writes(&self) -> usize {
        self.pending.len()
    }

    /// Panics where the counts differ from the writes under way.
    pub(crate) fn assert_consistent(&self) {
        let mut writing: BTreeMap<BagId, u32> = BTreeMap::new();
        let mut recording: BTreeMap<(PeerId, TaskId), u32> = BTreeMap::new();
        let mut journalling: BTreeMap<BagId, [u64; 3]> = BTreeMap::new();
        for write in self.pending.values() {
            write.held.into_iter().for_each(|bag| *writing.entry(bag).or_default() += 1);
            let subjects = write.then.iter().flat_map(Then::acknowledged);
            subjects.for_each(|subject| *recording.entry(subject).or_default() += 1);
            if let Some((bag, journals)) = write.journals {
                let counts = journalling.entry(bag).or_default();
                counts.iter_mut().zip(journals.counts()).for_each(|(count, more)| *count += more);
            }
        }
        debug_assert_eq!(self.writing, writing, "writes of the executor's records");
        debug_assert_eq!(self.recording, recording, "writes to be acknowledged");
        let mut of_task: BTreeMap<TaskId, u32> = BTreeMap::new();
        recording.iter().for_each(|((_, task), writes)| *of_task.entry(*task).or_default() += writes);
        debug_assert_eq!(self.recording_of_task, of_task, "writes to be acknowledged, by task");
        let counted: BTreeMap<BagId, [u64; 3]> =
            self.journalling.iter().map(|(&bag, journals)| (bag, journals.counts())).collect();
        debug_assert_eq!(counted, journalling, "writes of results and ends");
    }
}

/// Decrements a count, and removes it at 0.
fn release<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
