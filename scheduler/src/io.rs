//! How the parts of a peer reach the outside: effects, durable writes, and messages to the peer itself.
//!
//! Acknowledgements wait a moment for others of the same results' machine, and all messages to a peer for which the driver has no
//! room wait until it has (`crowd`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use idlewood_overlay::{Contact, Member, Node, PeerId, Time, WallTime};

use crate::bag::{BagId, TaskId};
use crate::config::Config;
use crate::crowd::{Acks, Crowds};
use crate::handed::Handed;
use crate::message::Message;
use crate::peer::{Effect, Notice};
use crate::ranges::IntervalSet;
use crate::record::{Change, Closing, Record};
use crate::reputation::{Reputation, Reputations};
use crate::watch::Watch;

/// Names a durable write until the driver says that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What waits for a write to be durable.
#[expect(clippy::large_enum_variant, reason = "most are messages, moved once; a box would cost each an allocation")]
#[derive(Debug)]
pub(crate) enum Then {
    Send(Contact, Message),
    Notify(Notice),
    /// A submission is durable: its tasks may be issued.
    Open(BagId),
    /// A piece of a bag that is to go is gone, or that it is to go is written.
    Remove(BagId),
    /// The end of a task here, with this attempt, is durable: its submitter may be told.
    Written(TaskId, u32),
}

/// What a durable write lets happen that [`Io`] does not do itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Durable {
    /// The bag that may be opened, if it was a submission.
    pub(crate) opened: Option<BagId>,
    /// The bag of which more may go.
    pub(crate) removed: Option<BagId>,
    /// The task whose end, with this attempt, may be told.
    pub(crate) written: Option<(TaskId, u32)>,
}

impl Then {
    /// Whom, and of which tasks, it acknowledges what that machine said.
    fn acknowledged<'a>(&'a self) -> impl Iterator<Item = (PeerId, TaskId)> + 'a {
        let ack = match self {
            Self::Send(to, Message::ResultsAck { bag, indices, .. }) => Some((to.peer, *bag, indices)),
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
    /// The bag whose tasks on this machine it is about.
    held: Option<BagId>,
    /// What it journals of the results and the end of a bag submitted here.
    over: Option<(BagId, Journalling)>,
    then: Vec<Then>,
}

/// Results and ends of a bag on their way to the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Journalling {
    /// Tasks that succeeded.
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Words that all of its tasks are over.
    pub(crate) closings: u64,
}

impl Journalling {
    #[cfg(debug_assertions)]
    fn counts(self) -> [u64; 3] {
        [self.done, self.failed, self.closings]
    }

    /// What these changes, all of one ledger, journal.
    fn of(changes: &[Change]) -> Option<(BagId, Self)> {
        let mut over: Option<(BagId, Self)> = None;
        for change in changes {
            let (bag, add): (BagId, fn(&mut Self)) = match change {
                Change::Put(Record::Done { bag, result, .. }) if result.success => (*bag, |over| over.done += 1),
                Change::Put(Record::Done { bag, .. }) => (*bag, |over| over.failed += 1),
                Change::Put(Record::Bag { bag, closed: Some((Closing::Completed, _)), .. }) => {
                    (bag.id, |over| over.closings += 1)
                }
                Change::Put(_) | Change::Delete(_) => continue,
            };
            add(&mut over.get_or_insert((bag, Self::default())).1);
        }
        over
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
    /// Machines of the grid, as the root last said.
    pub(crate) leaves: u64,
    /// The largest maximum stretch of a machine, as the root last said, in s/Mop.
    pub(crate) maximum_stretch: f64,
    /// Executors of all bags submitted here; one that has tasks of several counts for each.
    pub(crate) placements: u64,
    /// What bags with a quorum have shown of others.
    pub(crate) reputations: Reputations,
    /// What was seen of the routers that own requests went through.
    pub(crate) watch: Watch,
    /// What was seen of the routers that this machine hands anything to.
    pub(crate) handed: Handed,
    /// Nobody else's: what is checked of machines that are believed alone is drawn with it.
    pub(crate) secret: u64,
    /// Nobody else's either: of it come the keys of the bags that are submitted here.
    pub(crate) bag_secret: [u8; 32],
    pub(crate) effects: Vec<Effect>,
    /// Messages of this peer to itself: they never leave the process.
    pub(crate) local: VecDeque<Message>,
    next_ticket: u64,
    pending: BTreeMap<Ticket, Write>,
    /// Of those, how many are about what this machine holds of each bag.
    writing: BTreeMap<BagId, u32>,
    /// Of bags submitted here, what is being journalled of their results and ends.
    journalling: BTreeMap<BagId, Journalling>,
    /// And how many acknowledge what a machine said of each task.
    recording: BTreeMap<(PeerId, TaskId), u32>,
    /// Acknowledgements that wait for others.
    acks: Acks,
    /// Messages for which there was no room.
    crowds: Crowds,
}

impl Io {
    pub(crate) fn new(now: Time, wall_now: WallTime, me: impl Into<Member>) -> Self {
        Self {
            now,
            epoch: WallTime(wall_now.0.saturating_sub(now.as_micros())),
            me: me.into(),
            speed_mops: Config::default().speed_mops,
            leaves: 1,
            maximum_stretch: 0.0,
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
            recording: BTreeMap::new(),
            acks: Acks::default(),
            crowds: Crowds::default(),
        }
    }

    /// The wall-clock time of a moment, for records.
    pub(crate) fn wall(&self, time: Time) -> WallTime {
        WallTime(self.epoch.0.saturating_add(time.as_micros()))
    }

    /// The moment of a record's wall-clock time; never in the future, since clocks jump.
    pub(crate) fn moment(&self, wall: WallTime) -> Time {
        self.now - self.wall(self.now).since(wall)
    }

    /// What bags with a quorum have shown of a machine, as far as it counts now.
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
            self.local.push_back(message);
        } else if self.crowds.is_crowded(to.peer) && !matches!(message, Message::Overlay(_) | Message::Results { .. }) {
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

    pub(crate) fn notify(&mut self, notice: Notice) {
        self.effects.push(Effect::Notify(notice));
    }

    /// The driver had no room for this message: it waits until [`Io::has_room`], and so do others to that peer. Results do not:
    /// the executor knows which are to be told then.
    pub(crate) fn hold_back(&mut self, to: Member, message: Message) {
        match message {
            Message::ResultsAck { bag, attempt, indices } => {
                self.crowds.begin(to.peer);
                // What there is no room for here either is lost, and acknowledged when it is said again.
                self.acks.add(&to, bag, attempt, &indices, self.now);
            }
            Message::Results { .. } | Message::Overlay(_) => self.crowds.begin(to.peer),
            message => self.crowds.push(to, message),
        }
    }

    /// There is room again: what waited for that leaves.
    pub(crate) fn has_room(&mut self, peer: PeerId) {
        for (to, message) in self.crowds.end(peer) {
            self.send(to, message);
        }
        self.send_acks();
    }

    /// When acknowledgements leave that wait for others.
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

    /// Writes durably; what depends on it happens only once it is.
    pub(crate) fn persist(&mut self, changes: Vec<Change>, then: Vec<Then>) {
        let over = Journalling::of(&changes);
        self.write(changes, Write { held: None, over, then });
    }

    /// As [`Io::persist`], of what this machine holds of a bag.
    pub(crate) fn persist_held(&mut self, bag: BagId, changes: Vec<Change>, then: Vec<Then>) {
        self.write(changes, Write { held: Some(bag), over: None, then });
    }

    /// Whether what this machine holds of a bag is not durable yet, so that nobody may be told of it.
    pub(crate) fn is_writing(&self, bag: BagId) -> bool {
        self.writing.contains_key(&bag)
    }

    /// What of the results and the end of a bag submitted here is not durable yet.
    pub(crate) fn journalling(&self, bag: BagId) -> Journalling {
        self.journalling.get(&bag).copied().unwrap_or_default()
    }

    /// These tasks of a bag, but for those whose results the executor has to keep since they are still being written.
    pub(crate) fn recorded(&self, executor: PeerId, bag: BagId, mut tasks: IntervalSet) -> IntervalSet {
        let [first, last] = [0, u64::MAX].map(|index| (executor, TaskId { bag, index }));
        for ((_, task), _) in self.recording.range(first..=last) {
            tasks.remove_index(task.index);
        }
        tasks
    }

    /// Whether what a machine said of the end of a task, or of a try, is on its way to the store, and acknowledged once it
    /// is there.
    pub(crate) fn is_recording(&self, executor: PeerId, task: TaskId) -> bool {
        self.recording.contains_key(&(executor, task))
    }

    fn write(&mut self, changes: Vec<Change>, write: Write) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if let Some(bag) = write.held {
            *self.writing.entry(bag).or_default() += 1;
        }
        for said in write.then.iter().flat_map(Then::acknowledged) {
            *self.recording.entry(said).or_default() += 1;
        }
        if let Some((bag, over)) = write.over {
            let all = self.journalling.entry(bag).or_default();
            all.done += over.done;
            all.failed += over.failed;
            all.closings += over.closings;
        }
        if !write.then.is_empty() || write.held.is_some() || write.over.is_some() {
            self.pending.insert(ticket, write);
        }
        self.effects.push(Effect::Persist { ticket, changes });
    }

    /// Nothing follows any more from the write of this submission.
    pub(crate) fn give_up(&mut self, bag: BagId) {
        let opens = |then: &Then| matches!(then, Then::Open(opened) if *opened == bag);
        self.pending.retain(|_, write| !write.then.iter().any(opens));
    }

    /// The driver says that a write is durable.
    pub(crate) fn persisted(&mut self, ticket: Ticket) -> Durable {
        let mut durable = Durable::default();
        let Some(write) = self.pending.remove(&ticket) else { return durable };
        if let Some(bag) = write.held {
            release(&mut self.writing, bag);
        }
        if let Some((bag, over)) = write.over
            && let Entry::Occupied(mut all) = self.journalling.entry(bag)
        {
            let left = all.get_mut();
            left.done -= over.done;
            left.failed -= over.failed;
            left.closings -= over.closings;
            if left.done + left.failed + left.closings == 0 {
                all.remove();
            }
        }
        for then in write.then {
            for said in then.acknowledged() {
                release(&mut self.recording, said);
            }
            match then {
                Then::Send(to, Message::ResultsAck { bag, attempt, indices }) => {
                    self.acknowledge(to.into(), bag, attempt, &indices);
                }
                Then::Send(to, message) => self.send(to, message),
                Then::Notify(notice) => self.notify(notice),
                Then::Open(bag) => durable.opened = Some(bag),
                Then::Remove(bag) => durable.removed = Some(bag),
                Then::Written(task, attempt) => durable.written = Some((task, attempt)),
            }
        }
        durable
    }

    /// These results are journalled. That is said with the last of those that are being written of this bag and machine, or in a
    /// moment: results that came together are acknowledged together.
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
    /// How many writes are under way that something waits for.
    pub(crate) fn writes(&self) -> usize {
        self.pending.len()
    }

    /// What is counted of the writes under way is what they are.
    pub(crate) fn assert_consistent(&self) {
        let mut writing: BTreeMap<BagId, u32> = BTreeMap::new();
        let mut recording: BTreeMap<(PeerId, TaskId), u32> = BTreeMap::new();
        let mut journalling: BTreeMap<BagId, [u64; 3]> = BTreeMap::new();
        for write in self.pending.values() {
            write.held.into_iter().for_each(|bag| *writing.entry(bag).or_default() += 1);
            let said = write.then.iter().flat_map(Then::acknowledged);
            said.for_each(|said| *recording.entry(said).or_default() += 1);
            if let Some((bag, over)) = write.over {
                let counts = journalling.entry(bag).or_default();
                counts.iter_mut().zip(over.counts()).for_each(|(count, more)| *count += more);
            }
        }
        debug_assert_eq!(self.writing, writing, "writes of what is held here");
        debug_assert_eq!(self.recording, recording, "writes of what machines said");
        let counted: BTreeMap<BagId, [u64; 3]> =
            self.journalling.iter().map(|(&bag, over)| (bag, over.counts())).collect();
        debug_assert_eq!(counted, journalling, "writes of results and ends");
    }
}

/// One less of a kind.
fn release<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
