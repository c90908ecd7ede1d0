//! How the parts of a peer reach the outside: effects, durable writes, and messages to the peer itself.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use idlewood_overlay::{Contact, Member, PeerId, Time, WallTime};

use crate::bag::{BagId, TaskId};
use crate::message::Message;
use crate::peer::{Effect, Notice};
use crate::ranges::IntervalSet;
use crate::record::Change;
use crate::reputation::{Reputation, Reputations};

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
    then: Vec<Then>,
}

/// The outlet that all parts of one peer share.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) now: Time,
    /// Wall-clock time at the driver's start.
    epoch: WallTime,
    pub(crate) me: Member,
    /// Machines of the grid, as the root last said.
    pub(crate) leaves: u64,
    /// The largest maximum stretch of a machine, as the root last said, in s/Mop.
    pub(crate) maximum_stretch: f64,
    /// Executors of all bags submitted here; one that has tasks of several counts for each.
    pub(crate) placements: u64,
    /// What bags with a quorum have shown of others.
    pub(crate) reputations: Reputations,
    /// Nobody else's: what is checked of machines that are believed alone is drawn with it.
    pub(crate) secret: u64,
    pub(crate) effects: Vec<Effect>,
    /// Messages of this peer to itself: they never leave the process.
    pub(crate) local: VecDeque<Message>,
    next_ticket: u64,
    pending: BTreeMap<Ticket, Write>,
    /// Of those, how many are about what this machine holds of each bag.
    writing: BTreeMap<BagId, u32>,
    /// And how many acknowledge what a machine said of each task.
    recording: BTreeMap<(PeerId, TaskId), u32>,
}

impl Io {
    pub(crate) fn new(now: Time, wall_now: WallTime, me: impl Into<Member>) -> Self {
        Self {
            now,
            epoch: WallTime(wall_now.0.saturating_sub(now.as_micros())),
            me: me.into(),
            leaves: 1,
            maximum_stretch: 0.0,
            placements: 0,
            reputations: Reputations::default(),
            secret: 0,
            effects: Vec::new(),
            local: VecDeque::new(),
            next_ticket: 0,
            pending: BTreeMap::new(),
            writing: BTreeMap::new(),
            recording: BTreeMap::new(),
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

    pub(crate) fn send(&mut self, to: impl Into<Member>, message: Message) {
        let to = to.into();
        if to.peer == self.me.peer {
            self.local.push_back(message);
        } else {
            self.effects.push(Effect::Send { to, message });
        }
    }

    pub(crate) fn notify(&mut self, notice: Notice) {
        self.effects.push(Effect::Notify(notice));
    }

    /// Writes durably; what depends on it happens only once it is.
    pub(crate) fn persist(&mut self, changes: Vec<Change>, then: Vec<Then>) {
        self.write(changes, Write { held: None, then });
    }

    /// As [`Io::persist`], of what this machine holds of a bag.
    pub(crate) fn persist_held(&mut self, bag: BagId, changes: Vec<Change>, then: Vec<Then>) {
        self.write(changes, Write { held: Some(bag), then });
    }

    /// Whether what this machine holds of a bag is not durable yet, so that nobody may be told of it.
    pub(crate) fn is_writing(&self, bag: BagId) -> bool {
        self.writing.contains_key(&bag)
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
        if !write.then.is_empty() || write.held.is_some() {
            self.pending.insert(ticket, write);
        }
        self.effects.push(Effect::Persist { ticket, changes });
    }

    /// Nothing follows any more from the write of this submission.
    pub(crate) fn give_up(&mut self, bag: BagId) {
        let opens = |then: &Then| matches!(then, Then::Open(opened) if *opened == bag);
        self.pending.retain(|_, write| !write.then.iter().any(opens));
    }

    /// The driver says that a write is durable. The bag that may be opened, if it was a submission.
    pub(crate) fn persisted(&mut self, ticket: Ticket) -> Option<BagId> {
        let mut opened = None;
        let Some(write) = self.pending.remove(&ticket) else { return opened };
        if let Some(bag) = write.held {
            release(&mut self.writing, bag);
        }
        for then in write.then {
            for said in then.acknowledged() {
                release(&mut self.recording, said);
            }
            match then {
                Then::Send(to, message) => self.send(to, message),
                Then::Notify(notice) => self.notify(notice),
                Then::Open(bag) => opened = Some(bag),
            }
        }
        opened
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
