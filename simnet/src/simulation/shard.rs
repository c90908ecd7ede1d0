//! A part of the machines, and the loop in which one thread runs them.
//!
//! Machines meet only through links, and nothing crosses a link in less than the shortest latency. So shards run
//! independently of each other for that long, and exchange their messages at the end (conservative windows; Chandy and
//! Misra 1979). Inside a shard events happen in the one global order, and a machine draws only from random streams of
//! its own: how machines are divided into shards changes nothing for any of them.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_machine::{FetchId, WorkEvent};
use idlewood_overlay::{Contact, Time, WallTime};
use idlewood_scheduler::{Appointment, BagId, Event, Submission, TaskId};

use super::counts::Counts;
use super::deed::Deed;
use super::listed::Listed;
use super::observed::{Observation, Observed};
use super::surroundings::Surroundings;
use crate::churn;
use crate::condition::Pause;
use crate::event_queue::{EventQueue, HostIndex, Key};
use crate::fetching::{Ask, Number, Reply};
use crate::host::Host;
use crate::letter::{Dial, Letter};
use crate::network::Arrivals;
use crate::slab::Slab;

/// How long a task takes to stop on request, and an output to be found on the own disk: our guess.
pub(super) const LOCAL_DELAY: Duration = Duration::from_millis(1);

/// An event on a machine. `life`: void in any other life of it.
#[derive(Debug)]
pub(super) enum Occurrence {
    /// It crashes, or begins to leave.
    SessionEnds { life: u32 },
    /// Its owner comes back or goes away.
    Owner { life: u32, here: bool },
    /// The oldest pending write is durable.
    Durable { life: u32 },
    /// A task has run for as long as it takes.
    RunEnds { life: u32, slot: usize, serial: u64 },
    /// A worker has stopped on request.
    Stopped { life: u32, slot: usize },
    /// A worker, or the preparation of tasks, has answered.
    Work { life: u32, event: WorkEvent },
    /// The checkpoints of tasks that stand still are packed.
    Kept { life: u32, event: Box<Event> },
    /// The first task of a bag, which runs to measure how long a task takes, has run for so long: to its end or to its
    /// limit.
    FirstTaskEnds { life: u32, bag: BagId, cpu: Duration, is_whole: bool },
    /// The owner allows a bag to queue here.
    Authorised { life: u32, bag: BagId },
    /// The user of a bag without an end saves its results.
    Drains { life: u32, bag: BagId },
    /// A message, by its number, that waited for the uplink begins to leave, unless its machine has crashed by then.
    Sent { crashes: u32, to: HostIndex, arrivals: Arrivals, letter: u32 },
    /// Another machine asks for a piece of something.
    PieceAsked { ask: Ask },
    /// The piece, which was begun `since`, has left this machine, unless messages have taken the uplink for more than `taken_us` by
    /// now: those went first.
    PieceSent { life: u32, ask: Ask, bytes: u64, taken_us: u64, since: Time },
    /// The last byte of an answer has arrived; `passed`: it has gone through the downlink, too.
    PieceArrived { ask: Ask, reply: Reply, passed: bool },
    /// No answer has come to this request in time.
    PieceLate { life: u32, number: Number, request: u64 },
    /// Another machine dials this one.
    Dialled { dial: Dial },
    /// The handshake of such a dial is over.
    Shaken { life: u32, dial: Dial },
    /// A dial of this machine has been answered.
    DialAnswered { dial: Dial, by: HostIndex, accepts: bool },
    /// A dial of this machine, by its number, has not been answered in time.
    DialLate { life: u32, to: HostIndex, number: u64 },
    /// This machine had no room for a connection to another.
    Unreachable { life: u32, to: HostIndex },
    /// Another machine does not have the connection to this one any more.
    Reset { by: HostIndex },
    /// The pause of a download, all of whose sources were busy, is over.
    DownloadGoesOn { life: u32, number: Number },
    /// The driver has signed who keeps a bag.
    Signed { life: u32, appointment: Box<Appointment> },
    /// The driver has the files of a bag that is kept for another, or cannot have them.
    FilesKept { life: u32, bag: BagId, kept: bool },
    /// What a submitter has signed of a bag is not waited for any longer.
    LookLate { life: u32, bag: BagId },
    /// The output was on this machine all the time, or the scenario has it that the fetch fails.
    FetchEnds { life: u32, id: FetchId, task: TaskId, here: bool },
}

/// What one shard sends another.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are letters")]
pub(super) enum Parcel {
    Letter(Letter),
    Occurrence(Occurrence),
}

/// All that one shard sends another after a window.
#[derive(Debug)]
pub(super) struct Parcels {
    parcels: Vec<(Key, Parcel)>,
    /// When the first of them arrives.
    first: Time,
}

impl Default for Parcels {
    fn default() -> Self {
        Self { parcels: Vec::new(), first: Time::MAX }
    }
}

impl Parcels {
    pub(super) fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The deadline of a life of a peer.
    Wake(u32),
    /// A message arrives, by its number.
    Letter(u32),
    /// Something else, by its number.
    Occurrence(u32),
}

#[derive(Clone, Copy, Debug)]
struct Due {
    what: What,
    /// It has gone through the downlink.
    passed: bool,
    /// A slow machine has delayed it already.
    put_off: bool,
}

impl Due {
    fn new(what: What) -> Self {
        Self { what, passed: false, put_off: false }
    }
}

/// Machines `number`, `number + count`, and so on.
pub(super) struct Shard {
    number: u32,
    pub(super) count: u32,
    pub(super) hosts: Vec<Host>,
    queue: EventQueue<Due>,
    /// The earliest entry of all, if known already.
    front: Option<(Key, Due)>,
    letters: Slab<Letter>,
    occurrences: Slab<Occurrence>,
    /// Entries that wait for machines whose lid is shut.
    deferred: BTreeMap<HostIndex, Vec<Due>>,
    pub(super) now: Time,
    /// Outgoing parcels for each shard.
    pub(super) outbox: Vec<Parcels>,
    inbox: Vec<Parcels>,
    /// What the world has yet to take in.
    pub(super) observed: Vec<Observation>,
    /// What peers did about requests; recorded only while watched.
    pub(super) deeds: Vec<(HostIndex, Deed)>,
    pub(super) is_watched: bool,
    /// Pages of machines that were asked for.
    pub(super) listed: Vec<Listed>,
    /// The request that was split for the first time last: both its parts may be sent.
    pub(super) decided: Option<(HostIndex, BagId, u64)>,
    pub(super) effects: Vec<idlewood_machine::Effect>,
    pub(super) counts: Counts,
    /// When bags were submitted, by the clocks of their submitters: the dates in their manifests.
    pub(super) signed: BTreeMap<BagId, WallTime>,
}

impl Shard {
    pub(super) fn new(around: &Surroundings, number: u32, count: u32) -> Self {
        let hosts = (number..around.scenario.nodes).step_by(count as usize);
        Self {
            number,
            count,
            hosts: hosts.map(|index| Host::new(&around.scenario, index)).collect(),
            queue: EventQueue::default(),
            front: None,
            letters: Slab::default(),
            occurrences: Slab::default(),
            deferred: BTreeMap::new(),
            now: Time::ZERO,
            outbox: (0..count).map(|_| Parcels::default()).collect(),
            inbox: Vec::new(),
            observed: Vec::new(),
            deeds: Vec::new(),
            is_watched: false,
            listed: Vec::new(),
            effects: Vec::new(),
            decided: None,
            counts: Counts::default(),
            signed: BTreeMap::new(),
        }
    }

    pub(super) fn host(&self, host: HostIndex) -> &Host {
        &self.hosts[(host / self.count) as usize]
    }

    pub(super) fn host_mut(&mut self, host: HostIndex) -> &mut Host {
        &mut self.hosts[(host / self.count) as usize]
    }

    // ---- the loop ----

    /// When the next entry is due.
    pub(super) fn next(&self) -> Option<Time> {
        let inbox = self.inbox.iter().map(|parcels| parcels.first);
        inbox.chain(self.front.map(|(key, _)| key.at)).min()
    }

    /// Key of the next entry, once everything is unpacked.
    pub(super) fn next_key(&self) -> Option<Key> {
        self.front.map(|(key, _)| key)
    }

    /// Runs everything that is due before `end`.
    pub(super) fn process(&mut self, around: &Surroundings, end: Time) {
        self.unpack();
        let last = Time::from_micros(end.as_micros() - 1);
        while let Some((key, due)) = self.front.take().or_else(|| self.queue.pop_until(last)) {
            if key.at > last {
                self.front = Some((key, due));
                break;
            }
            self.now = key.at;
            self.meet(key.target, due, around);
        }
        self.look_ahead();
    }

    /// Runs the next entry.
    pub(super) fn step(&mut self, around: &Surroundings) {
        if let Some((key, due)) = self.front.take() {
            self.now = key.at;
            self.meet(key.target, due, around);
        }
        self.look_ahead();
    }

    /// Takes parcels of another shard; they are unpacked before anything else happens.
    pub(super) fn receive(&mut self, parcels: Parcels) {
        self.inbox.push(parcels);
    }

    /// Unpacks the parcels of other shards.
    pub(super) fn unpack(&mut self) {
        for parcels in std::mem::take(&mut self.inbox) {
            for (key, parcel) in parcels.parcels {
                self.keep(key, parcel);
            }
        }
        self.look_ahead();
    }

    /// Determines the next entry.
    fn look_ahead(&mut self) {
        if self.front.is_none() {
            self.front = self.queue.pop();
        }
    }

    fn push(&mut self, key: Key, due: Due) {
        match &mut self.front {
            Some(front) if key < front.0 => {
                let (later, due) = std::mem::replace(front, (key, due));
                self.queue.push(later, due);
            }
            _ => self.queue.push(key, due),
        }
    }

    fn keep(&mut self, key: Key, parcel: Parcel) {
        let what = match parcel {
            Parcel::Letter(letter) => What::Letter(self.letters.insert(letter)),
            Parcel::Occurrence(occurrence) => What::Occurrence(self.occurrences.insert(occurrence)),
        };
        self.push(key, Due::new(what));
    }

    /// Plans an occurrence that one of our machines causes.
    pub(super) fn cause(&mut self, source: HostIndex, at: Time, target: HostIndex, occurrence: Occurrence) {
        self.post(source, at, target, Parcel::Occurrence(occurrence));
    }

    /// The same for a parcel.
    pub(super) fn post(&mut self, source: HostIndex, at: Time, target: HostIndex, parcel: Parcel) {
        let key = self.host_mut(source).key(at, target);
        let shard = target % self.count;
        if shard == self.number {
            self.keep(key, parcel);
        } else {
            let parcels = &mut self.outbox[shard as usize];
            parcels.first = parcels.first.min(key.at);
            parcels.parcels.push((key, parcel));
        }
    }

    /// Plans the way of a message of one of our machines, whose last byte leaves its uplink at `sent`. A message that
    /// still waits for the uplink is lost when its machine crashes, before the network can duplicate it. One without
    /// arrivals was counted when it was sent, and only takes its time on the uplink.
    pub(super) fn carry(&mut self, source: HostIndex, sent: Time, arrivals: Arrivals, to: HostIndex, letter: Letter) {
        let takes = self.host(source).link.up.takes(letter.bytes);
        if sent <= self.now + takes {
            return self.depart(source, sent, arrivals, to, letter);
        }
        let machine = self.host_mut(source);
        let (crashes, key) = (machine.crashes, machine.key(sent - takes, source));
        let letter = self.letters.insert(letter);
        let sent = self.occurrences.insert(Occurrence::Sent { crashes, to, arrivals, letter });
        // Links are not slow with their machines.
        self.push(key, Due { put_off: true, ..Due::new(What::Occurrence(sent)) });
    }

    /// Carries a message that is certain to leave its uplink at `sent`: it arrives, or both its copies do.
    fn depart(&mut self, source: HostIndex, sent: Time, arrivals: Arrivals, to: HostIndex, letter: Letter) {
        let Arrivals { first, second } = arrivals;
        if let Some(travel) = second {
            self.post(source, sent + travel, to, Parcel::Letter(letter.clone()));
        }
        if let Some(travel) = first {
            self.post(source, sent + travel, to, Parcel::Letter(letter));
        }
    }

    /// Handles an entry, unless the link or the condition of its machine delays or loses it.
    fn meet(&mut self, host: HostIndex, due: Due, around: &Surroundings) {
        let now = self.now;
        let machine = &mut self.hosts[(host / self.count) as usize];
        if machine.is_up() {
            if let What::Letter(number) = due.what
                && !due.passed
            {
                let letter = self.letters.get(number);
                let arrived = machine.link.receive(now, letter.bytes, letter.is_tree);
                let at = machine.take_in(arrived, around.scenario.message_us);
                if at > now {
                    let key = machine.key(at, host);
                    self.push(key, Due { passed: true, ..due });
                    return;
                }
            }
            let due = Due { passed: true, ..due };
            match machine.condition.pause {
                Some(Pause::Lose) if matches!(due.what, What::Letter(_)) => {
                    self.discard(due);
                    self.counts.messages_in_vain += 1;
                    return;
                }
                Some(_) => {
                    self.deferred.entry(host).or_default().push(due);
                    return;
                }
                None => {}
            }
            // A wake is late already: it follows the slow machine's view of its clock.
            let is_wake = matches!(due.what, What::Wake(_));
            if machine.condition.slow > Duration::ZERO && !due.put_off && !is_wake {
                let key = machine.key(now + machine.condition.slow, host);
                self.push(key, Due { put_off: true, ..due });
                return;
            }
        }
        match due.what {
            What::Wake(life) => {
                if !self.host(host).lives(life) {
                    return;
                }
                if self.host_mut(host).wakes(now) {
                    self.give(host, Event::DeadlineReached, around);
                } else {
                    self.arm(host);
                }
            }
            What::Letter(number) => {
                let letter = self.letters.take(number);
                self.deliver(host, letter, around);
            }
            What::Occurrence(number) => {
                let occurrence = self.occurrences.take(number);
                self.happen(host, occurrence, around);
            }
        }
    }

    fn discard(&mut self, due: Due) {
        match due.what {
            What::Wake(_) => {}
            What::Letter(number) => drop(self.letters.take(number)),
            What::Occurrence(number) => {
                if let Occurrence::Sent { letter, arrivals, .. } = self.occurrences.take(number) {
                    drop(self.letters.take(letter));
                    self.counts.messages_lost += u64::from(arrivals.first.is_some());
                }
            }
        }
    }

    fn happen(&mut self, host: HostIndex, occurrence: Occurrence, around: &Surroundings) {
        let lives = |life| self.host(host).lives(life);
        match occurrence {
            Occurrence::SessionEnds { life } if lives(life) => self.end_session(host, around),
            Occurrence::Owner { life, here } if lives(life) => self.owner(host, here, around),
            Occurrence::Durable { life } if lives(life) => self.commit(host, around),
            Occurrence::RunEnds { life, slot, serial } if lives(life) => self.end_run(host, slot, serial, around),
            Occurrence::Stopped { life, slot } if lives(life) => self.end_killed(host, slot, around),
            Occurrence::Work { life, event } if lives(life) => self.answered(host, event, around),
            Occurrence::Kept { life, event } if lives(life) => self.give(host, *event, around),
            Occurrence::FirstTaskEnds { life, bag, cpu, is_whole } if lives(life) => {
                self.end_first_task(host, bag, cpu, is_whole, around);
            }
            Occurrence::Authorised { life, bag } if lives(life) => self.judge(host, bag, around),
            Occurrence::Drains { life, bag } if lives(life) => self.drain(host, bag, around),
            Occurrence::LookLate { life, bag } if lives(life) => {
                self.host_mut(host).fetching.forget_look(bag);
                self.not_looked_at(host, bag, around);
            }
            Occurrence::Sent { crashes, to, arrivals, letter } => {
                let (now, letter) = (self.now, self.letters.take(letter));
                let machine = self.host_mut(host);
                if machine.crashes == crashes {
                    let sent = machine.link.begin(now, letter.bytes);
                    self.depart(host, sent, arrivals, to, letter);
                } else {
                    self.counts.messages_lost += u64::from(arrivals.first.is_some());
                }
            }
            Occurrence::PieceAsked { ask } => self.asked(host, ask, around),
            Occurrence::Dialled { dial } => self.dialled(host, dial, around),
            Occurrence::Shaken { life, dial } if lives(life) => self.shaken(host, dial, around),
            Occurrence::DialAnswered { dial, by, accepts } if lives(dial.life) => {
                self.dial_answered(host, dial, by, accepts, around);
            }
            Occurrence::DialLate { life, to, number } if lives(life) => self.dial_failed(host, to, number, around),
            Occurrence::Unreachable { life, to } if lives(life) => self.unreachable(host, to, around),
            Occurrence::Reset { by } => self.was_reset(host, by, around),
            Occurrence::PieceSent { life, ask, bytes, taken_us, since } if lives(life) => {
                self.piece_sent(host, ask, bytes, taken_us, since, around);
            }
            Occurrence::PieceArrived { ask, reply, passed } if lives(ask.life) => {
                self.piece_arrived(host, ask, reply, passed, around);
            }
            Occurrence::PieceLate { life, number, request } if lives(life) => {
                self.piece_late(host, number, request, around);
            }
            Occurrence::DownloadGoesOn { life, number } if lives(life) => self.proceed(host, Some(number), around),
            Occurrence::FetchEnds { life, id, task, here } if lives(life) => {
                self.end_fetch(host, id, task, here, around);
            }
            Occurrence::Signed { life, appointment } if lives(life) => {
                self.give(host, Event::AppointmentSigned(*appointment), around);
            }
            Occurrence::FilesKept { life, bag, kept } if lives(life) => {
                self.give(host, Event::FilesKept { bag, kept }, around);
            }
            // Meant for a life that is over.
            Occurrence::SessionEnds { .. }
            | Occurrence::Owner { .. }
            | Occurrence::Durable { .. }
            | Occurrence::RunEnds { .. }
            | Occurrence::Stopped { .. }
            | Occurrence::Work { .. }
            | Occurrence::Kept { .. }
            | Occurrence::FirstTaskEnds { .. }
            | Occurrence::Authorised { .. }
            | Occurrence::Drains { .. }
            | Occurrence::LookLate { .. }
            | Occurrence::Signed { .. }
            | Occurrence::FilesKept { .. }
            | Occurrence::PieceSent { .. }
            | Occurrence::PieceArrived { .. }
            | Occurrence::PieceLate { .. }
            | Occurrence::DownloadGoesOn { .. }
            | Occurrence::Shaken { .. }
            | Occurrence::DialAnswered { .. }
            | Occurrence::DialLate { .. }
            | Occurrence::Unreachable { .. }
            | Occurrence::FetchEnds { .. } => {}
        }
    }

    // ---- machines ----

    /// A machine is switched on and knows of these others.
    pub(super) fn start(&mut self, host: HostIndex, contacts: Vec<Contact>, now: Time, around: &Surroundings) {
        self.now = now;
        let machine = self.host_mut(host);
        machine.start(&around.scenario, !contacts.is_empty(), now);
        let life = machine.life;
        if let Some(session) = machine.churn.session() {
            self.cause(host, now + session, host, Occurrence::SessionEnds { life });
        }
        if let Some(away) = self.host_mut(host).owner.away(now) {
            self.cause(host, now + away, host, Occurrence::Owner { life, here: true });
        }
        if contacts.is_empty() {
            self.give(host, Event::DeadlineReached, around);
        }
        for contact in contacts {
            self.give(host, Event::Bootstrap(contact), around);
        }
        self.begin_to_drain(host);
        self.look_ahead();
    }

    /// The owner of a machine comes or goes now, not planned by this shard.
    pub(super) fn owner_at(&mut self, host: HostIndex, here: bool, now: Time, around: &Surroundings) {
        self.now = now;
        self.owner(host, here, around);
        self.look_ahead();
    }

    fn owner(&mut self, host: HostIndex, here: bool, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let life = machine.life;
        let next = if here { machine.owner.session(now) } else { machine.owner.away(now) };
        if let Some(after) = next {
            self.cause(host, now + after, host, Occurrence::Owner { life, here: !here });
        }
        self.tell(host, Observed::Owner { here });
        self.give(host, idlewood_machine::Event::Sensed(churn::sensed(here)), around);
        self.counts.reclaims += u64::from(here);
    }

    fn end_session(&mut self, host: HostIndex, around: &Surroundings) {
        if self.host_mut(host).churn.leaves() {
            // It goes down once its peer has left.
            self.give(host, Event::Leave, around);
        } else {
            self.crash(host, around);
        }
    }

    /// The user of a machine has it leave: it goes down once its peer has left.
    pub(super) fn begin_to_leave(&mut self, host: HostIndex, now: Time, around: &Surroundings) {
        self.now = now;
        self.give(host, Event::Leave, around);
        self.look_ahead();
    }

    /// A user of a machine that is up wants to know of the machines from this place of the line on.
    pub(super) fn list_machines(
        &mut self,
        host: HostIndex,
        (ticket, first): (u64, u64),
        now: Time,
        around: &Surroundings,
    ) {
        self.now = now;
        self.give(host, Event::ListMachines { ticket, first }, around);
        self.look_ahead();
    }

    /// A user of a machine that is up submits a bag.
    pub(super) fn submit(&mut self, host: HostIndex, submission: Submission, now: Time, around: &Surroundings) {
        self.now = now;
        self.host_mut(host).fetching.put(around.program_of(submission.id));
        self.give(host, Event::Submitted(submission), around);
        self.look_ahead();
    }

    /// A user of a machine that is up gives up a bag.
    pub(super) fn cancel(&mut self, host: HostIndex, bag: BagId, now: Time, around: &Surroundings) {
        self.now = now;
        self.give(host, Event::Cancelled(bag), around);
        self.look_ahead();
    }

    /// The power of a machine that is up is cut.
    pub(super) fn crash(&mut self, host: HostIndex, around: &Surroundings) {
        self.crash_for(host, None, around);
    }

    /// The same, for this downtime; none: one drawn for the machine.
    pub(super) fn crash_for(&mut self, host: HostIndex, downtime: Option<Duration>, around: &Surroundings) {
        self.counts.crashes += 1;
        let now = self.now;
        self.host_mut(host).crash(around.scenario.queue_lost, now);
        self.went_down(host, downtime, around);
    }

    /// The disk of a machine is taken, with its power; another one is in its place after this downtime.
    pub(super) fn take_disk(&mut self, host: HostIndex, downtime: Duration, around: &Surroundings) {
        self.counts.crashes += 1;
        let now = self.now;
        self.host_mut(host).lose_disk(now);
        self.went_down(host, Some(downtime), around);
    }

    /// The peer of a machine has left; the machine goes down once it has written what it was writing.
    pub(super) fn leave(&mut self, host: HostIndex, around: &Surroundings) {
        self.counts.leaves += 1;
        let now = self.now;
        self.end_writes(host);
        self.close_connections(host, around);
        self.host_mut(host).leave(now);
        self.went_down(host, None, around);
    }

    /// A machine has crashed or left: plans when it comes back, and drops what waited for it.
    fn went_down(&mut self, host: HostIndex, downtime: Option<Duration>, around: &Surroundings) {
        let now = self.now;
        self.lose_connections(host);
        let machine = self.host_mut(host);
        // Never back within the window: only the world, which acts between windows, can start it.
        let downtime = downtime.unwrap_or_else(|| machine.churn.downtime()).max(around.lookahead());
        self.tell(host, Observed::Down { until: now + downtime });
        for due in self.deferred.remove(&host).unwrap_or_default() {
            self.discard(due);
        }
    }

    pub(super) fn tell(&mut self, host: HostIndex, observed: Observed) {
        self.observed.push(Observation { at: self.now, host, observed });
    }

    /// Opens the lid of a machine.
    pub(super) fn open(&mut self, host: HostIndex, now: Time) {
        self.now = now;
        let going = self.host_mut(host).open(now);
        self.go_on(host, going);
        for due in self.deferred.remove(&host).unwrap_or_default() {
            let key = self.host_mut(host).key(now, host);
            self.push(key, due);
        }
        self.arm(host);
        self.look_ahead();
    }

    // ---- clocks ----

    /// The wall clock of a machine jumps.
    pub(super) fn jump_clock(&mut self, host: HostIndex, by_us: i64, now: Time) {
        self.now = now;
        self.host_mut(host).condition.jump(by_us);
        self.arm(host);
        self.look_ahead();
    }

    /// Plans the waking of a machine at its peer's deadline.
    pub(super) fn arm(&mut self, host: HostIndex) {
        let now = self.now;
        let machine = self.host_mut(host);
        let life = machine.life;
        if let Some(at) = machine.arm(now) {
            let key = machine.key(at, host);
            self.push(key, Due::new(What::Wake(life)));
        }
    }
}
