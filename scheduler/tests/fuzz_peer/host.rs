//! One peer, its disk, and what it asked its driver for. The driver is honest, and holds the peer to what it promises every
//! driver: a place has one task at a time, what is stopped, frozen or thawed is there, no task begins while the owner has the
//! machine, what is written or sent can be read, and one event leads to a bounded number of effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use idlewood_overlay::{Contact, Member, PeerId, Time, WallTime};
use idlewood_scheduler::summary::SummaryForm;
use idlewood_scheduler::{
    About, Approval, BAG_TASKS_MAX, BagId, BlobId, Change, ClimbingRule, Conditions, Config, DeclineReason, Effect,
    Endless, Event, Finished, Message, PRIORITY_MAX, Peer, PerSubmitter, Record, Replication, Submission, TaskId,
    TaskOutcome, TaskResult, Wish,
};

use super::GRID;
use super::source::Source;

const START: WallTime = WallTime(1_700_000_000_000_000);
/// Most that one event may lead to, together with what the disk answers. A message of 512 results leads to as many
/// fetches; our choice: several times that.
const EFFECTS_MAX: usize = 4096;

/// Most writes one after the other that a moment leads to, each once the one before is durable. Our choice: a bag here has at
/// most 256 tasks, and each a few records.
const WRITES_MAX: usize = 10_000;

/// A task at its place.
#[derive(Clone, Copy, Debug)]
struct Work {
    task: TaskId,
    begun: Time,
    frozen: bool,
    stopping: bool,
}

/// A machine.
pub(super) struct Host {
    pub(super) peer: Peer,
    pub(super) now: Time,
    id: u8,
    config: Config,
    pub(super) disk: BTreeMap<Vec<u8>, Record>,
    /// Writes that the disk has not answered yet, and what they change.
    pub(super) writes: VecDeque<(idlewood_scheduler::Ticket, Vec<Change>)>,
    places: Vec<Option<Work>>,
    fetches: VecDeque<TaskId>,
    measures: VecDeque<BagId>,
    /// Bags to be authorised.
    pub(super) authorising: VecDeque<BagId>,
    /// Bags whose checkpoints are to be packed.
    packing: VecDeque<(u64, BagId)>,
    /// Whether `SuspendTasks` is in force.
    suspended: bool,
    /// Whether there is no room for messages, and the messages returned since.
    refuses: bool,
    unsent: VecDeque<(Member, Message)>,
    refused: BTreeSet<PeerId>,
    /// How many listings its user has asked for, and those that were answered.
    listings: u64,
    listed: BTreeSet<u64>,
    /// Messages for the network.
    pub(super) sent: Vec<(Member, Message)>,
}

/// The settings of a grid: the default's, the paper's, those of an impatient grid, and those of one that neither preempts nor
/// takes a user's bags for one.
pub(super) fn config(kind: u8) -> Config {
    let config = Config { slots: 2, ..Config::default() };
    let seconds = Duration::from_secs;
    match kind {
        0 => config,
        1 => Config {
            summaries: SummaryForm::Paper,
            idle_slots: false,
            climbing: ClimbingRule::Minimum,
            effective_size: false,
            ..config
        },
        2 => Config {
            climbing: ClimbingRule::WholeGrid,
            lease: seconds(4),
            placement_timeout: seconds(2),
            vacate_after: seconds(3),
            frozen_max: 1,
            ..config
        },
        _ => Config { slots: 1, preemptive: false, per_submitter: PerSubmitter::Off, expects_grid: true, ..config },
    }
}

pub(super) fn contact(id: u8) -> Contact {
    Contact { peer: PeerId([id; 32]), incarnation: 3, address: "/a".into(), nonce: None }
}

fn restored(id: u8, config: &Config, now: Time, records: impl IntoIterator<Item = Record>) -> Peer {
    let seed = u64::from(id);
    Peer::restore(config.clone(), GRID, contact(id), seed, now, START, records).expect("what it wrote it can read")
}

impl Host {
    pub(super) fn new(id: u8, config: Config) -> Self {
        Self {
            peer: restored(id, &config, Time::ZERO, []),
            now: Time::ZERO,
            id,
            disk: BTreeMap::new(),
            writes: VecDeque::new(),
            places: vec![None; config.places() as usize],
            fetches: VecDeque::new(),
            measures: VecDeque::new(),
            authorising: VecDeque::new(),
            packing: VecDeque::new(),
            suspended: false,
            refuses: false,
            unsent: VecDeque::new(),
            refused: BTreeSet::new(),
            listings: 0,
            listed: BTreeSet::new(),
            sent: Vec::new(),
            config,
        }
    }

    pub(super) fn id(&self) -> PeerId {
        PeerId([self.id; 32])
    }

    pub(super) fn give(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.peer.handle(self.now, event, &mut effects);
        assert!(effects.len() <= EFFECTS_MAX, "one event led to {} effects", effects.len());
        effects.into_iter().for_each(|effect| self.carry_out(effect));
    }

    fn carry_out(&mut self, effect: Effect) {
        let begins = matches!(effect, Effect::StartTask { .. } | Effect::FreezeTask { .. } | Effect::ThawTask { .. });
        assert!(!(self.suspended && begins), "{effect:?} while the owner has the machine");
        match effect {
            Effect::Persist { ticket, changes } => {
                for change in &changes {
                    if let Change::Put(record) = change {
                        let read = Record::decode(&record.encode()).ok();
                        assert_eq!(read.as_ref(), Some(record), "what is written can be read");
                    }
                }
                self.writes.push_back((ticket, changes));
            }
            Effect::Send { to, message } => {
                assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message), "what is sent can be read");
                if self.refuses && !matches!(message, Message::Overlay(_)) {
                    self.refused.insert(to.peer);
                    self.unsent.push_back((to, message));
                } else {
                    self.sent.push((to, message));
                }
            }
            Effect::StartTask { place, task, .. } => {
                let work = Work { task, begun: self.now, frozen: false, stopping: false };
                let before = self.places[place as usize].replace(work);
                assert!(before.is_none(), "a place has one task: {task:?} starts where there is {before:?}");
                let running = self.places.iter().flatten().filter(|work| !work.frozen && !work.stopping).count();
                assert!(running <= self.config.slots as usize, "more run than there are slots: {:?}", self.places);
            }
            Effect::StopTask { place, task } => {
                let work = self.there(place, task);
                assert!(!std::mem::replace(&mut work.stopping, true), "stopped twice: {work:?}");
            }
            Effect::FreezeTask { place, task } => {
                let work = self.there(place, task);
                assert!(!std::mem::replace(&mut work.frozen, true), "frozen twice: {work:?}");
            }
            Effect::ThawTask { place, task } => {
                let work = self.there(place, task);
                assert!(std::mem::replace(&mut work.frozen, false), "thawed without having been frozen: {work:?}");
            }
            Effect::FetchOutput { task, .. } => self.fetches.push_back(task),
            Effect::MeasureTask { bag } => self.measures.push_back(bag),
            Effect::Authorise { bag, .. } => self.authorising.push_back(bag.id),
            Effect::KeepCheckpoints { stop, bag, .. } => self.packing.push_back((stop, bag)),
            Effect::SuspendTasks => self.suspended = true,
            Effect::ResumeTasks => self.suspended = false,
            // As on an agent, which signs no appointments and keeps nothing for others.
            Effect::SignAppointment { .. }
            | Effect::KeepFiles { .. }
            | Effect::ReadResults { .. }
            | Effect::ForgetFiles { .. } => {}
            // No bag here goes in rounds.
            Effect::MakeStart { .. } | Effect::Notify(_) => {}
            Effect::List { ticket, page } => {
                assert!(
                    ticket <= self.listings && self.listed.insert(ticket),
                    "nobody asked {ticket}, or it was answered"
                );
                assert!(page.machines.is_sorted_by_key(|machine| machine.at), "in the order of the line: {page:?}");
                let silent = page.silent.iter().map(|silent| silent.at);
                let places = page.machines.iter().map(|machine| machine.at).chain(silent);
                assert!(places.max() <= Some(page.last), "behind its end: {page:?}");
            }
        }
    }

    /// The task that an effect names, which is at its place.
    fn there(&mut self, place: u32, task: TaskId) -> &mut Work {
        let work = self.places[place as usize].as_mut();
        let work = work.unwrap_or_else(|| panic!("{task:?} is not at place {place}, which is empty"));
        assert_eq!(work.task, task, "another task is at place {place}");
        work
    }

    /// Most bags are approved, a step after they came.
    pub(super) fn authorise(&mut self) {
        while let Some(bag) = self.authorising.pop_front() {
            // Some are fresh, some old, and some without a date.
            let ages = [Duration::ZERO, Duration::from_secs(599), Duration::from_secs(86_400), Duration::MAX];
            let approval = Approval {
                signed_ago: ages[usize::from(bag.0[0] % 4)],
                at_hand: bag.0[1] % 2 == 0,
                program: Some(BlobId([bag.0[2] % 2; 32])),
            };
            let verdict = if bag.0[0] % 8 == 7 { Err(DeclineReason::Role) } else { Ok(approval) };
            self.give(Event::Authorised { bag, verdict });
        }
    }

    /// The disk answers all writes, and what came back for lack of room is returned.
    pub(super) fn write(&mut self) {
        for written in 0.. {
            assert!(written < WRITES_MAX, "a write leads to the next without end: {:?}", self.writes.front());
            let Some((ticket, changes)) = self.writes.pop_front() else { break };
            self.store(changes);
            self.give(Event::Persisted(ticket));
        }
        for came_back in 0.. {
            assert!(came_back < 10_000, "it says the same again and again though there is no room");
            let Some((to, message)) = self.unsent.pop_front() else { break };
            self.give(Event::Unsent { to, message });
        }
    }

    fn store(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Put(record) => _ = self.disk.insert(record.key().to_bytes(), record),
                Change::Delete(key) => _ = self.disk.remove(&key.to_bytes()),
            }
        }
    }

    /// There is room again, or none.
    fn change_room(&mut self) {
        self.refuses = !self.refuses;
        if !self.refuses {
            self.write();
            std::mem::take(&mut self.refused).into_iter().for_each(|peer| self.give(Event::Room(peer)));
        }
    }

    /// The machine stops and starts again, with the first `kept` of the writes that the disk has not answered: those became
    /// durable all the same.
    pub(super) fn restart(&mut self, kept: usize) {
        let writes = std::mem::take(&mut self.writes);
        writes.into_iter().take(kept).for_each(|(_, changes)| self.store(changes));
        self.peer = restored(self.id, &self.config, self.now, self.disk.values().cloned());
        self.fetches.clear();
        self.measures.clear();
        self.authorising.clear();
        self.packing.clear();
        self.unsent.clear();
        self.sent.clear();
        self.places.fill(None);
        self.suspended = false;
    }

    /// A driver that leaves nothing undone: tasks succeed after a second, outputs come at once.
    pub(super) fn carry_on(&mut self) {
        self.write();
        self.authorise();
        if let Some(task) = self.fetches.pop_front() {
            self.give(Event::Fetched { task, here: true, checkpoint: None });
        }
        if let Some(bag) = self.measures.pop_front() {
            self.give(Event::Measured { bag, task_mops: 500.0, result: None });
        }
        if let Some((stop, bag)) = self.packing.pop_front() {
            self.give(Event::CheckpointsKept { stop, bag, checkpoints: BTreeMap::new() });
        }
        let (now, suspended) = (self.now, self.suspended);
        let is_over = |work: &Work| {
            work.stopping || !work.frozen && !suspended && now.since(work.begun) >= Duration::from_secs(1)
        };
        for place in 0..self.places.len() {
            let Some(work) = self.places[place].take_if(|work| is_over(work)) else { continue };
            let outcome = if work.stopping { TaskOutcome::Stopped } else { TaskOutcome::Finished(success()) };
            self.give(Event::TaskEnded { task: work.task, outcome });
        }
        self.write();
    }

    /// What the driver does by itself at this step.
    pub(super) fn act(&mut self, source: &mut Source<'_>) -> Act {
        self.authorise();
        match source.below(16) {
            14 => {
                if let Some((stop, bag)) = self.packing.pop_front() {
                    let checkpoints = source.checkpoints();
                    self.give(Event::CheckpointsKept { stop, bag, checkpoints });
                }
            }
            15 if source.flag() => self.change_room(),
            15 => self.give(Event::Vacate),
            0 | 1 => return Act::Pass(Duration::from_millis(u64::from(source.byte()) * 10)),
            2 => return Act::Pass(Duration::from_secs(u64::from(source.byte()) % 64)),
            3 => {
                let place = usize::from(source.byte()) % self.places.len();
                if let Some(work) = self.places[place].take() {
                    self.give(Event::TaskEnded { task: work.task, outcome: source.outcome() });
                }
            }
            4 => {
                if let Some(task) = self.fetches.pop_front() {
                    let checkpoint = source.checkpoints().into_values().flatten().next();
                    let end = source.byte();
                    let put_off = end & 3 == 1;
                    let fetched = Event::Fetched { task, here: end.is_multiple_of(2), checkpoint };
                    self.give(if put_off { Event::FetchPutOff { task } } else { fetched });
                }
            }
            5 => {
                if let Some(bag) = self.measures.pop_front() {
                    let result =
                        source.maybe(Source::result).map(|result| TaskResult { index: 0, work_mops: 1.0, ..result });
                    self.give(Event::Measured { bag, task_mops: f64::from(source.byte()) + 1.0, result });
                }
            }
            6 => self.submit(source),
            7 => self.give(Event::OwnerReturned { stands_still: source.flag() }),
            8 => self.give([Event::OwnerLeft, Event::DiskFull(source.flag())][usize::from(source.below(2))].clone()),
            9 => self.give(Event::ConnectionLost(source.peer())),
            10 => self.give(Event::Bootstrap(source.contact())),
            11 => self.give([Event::Leave, Event::Return][usize::from(source.below(2))].clone()),
            12 => {
                let bag = source.bag();
                let events = [
                    Event::Cancelled(bag),
                    Event::Rerun { bag, tasks: source.ranges() },
                    Event::Removed(bag),
                    Event::Wished { bag, wish: Wish::Hold },
                    Event::Wished { bag, wish: Wish::Release },
                ];
                self.give(events[usize::from(source.below(5))].clone());
            }
            _ => self.restart(usize::MAX),
        }
        Act::Done
    }

    /// What users order of endless bags, of priorities and of listings.
    pub(super) fn order(&mut self, source: &mut Source<'_>) {
        let bag = source.bag();
        match source.below(8) {
            0 | 1 => {
                let tasks = if source.flag() { BAG_TASKS_MAX } else { 0 };
                let endless = Endless { weight: source.real(), task_bytes: source.real(), tasks };
                let submission = Submission {
                    id: bag,
                    envelope: source.enclosed(),
                    manifest: source.enclosed(),
                    tasks: BAG_TASKS_MAX,
                    task_mops: source.maybe(|source| f64::from(source.byte()) + 1.0),
                    retries_max: 2,
                    replication: Replication::default(),
                    stewards: None,
                    conditions: Conditions { priority: self.priority(source), ..Conditions::default() },
                    endless: Some(endless),
                    keep_results: source.flag(),
                };
                if self.peer.check(&submission).is_ok() {
                    self.give(Event::Submitted(submission));
                }
            }
            2 => self.give(Event::TasksAdded { bag, tasks: source.number() }),
            3 => self.give(Event::SupplyEnded(bag)),
            4 => self.give(Event::Drained { bag, tasks: source.ranges() }),
            5 => {
                let priority = self.priority(source);
                self.give(Event::Wished { bag, wish: Wish::Prioritise(priority) });
            }
            6 => {
                let name = "a machine ".repeat(usize::from(source.below(20))).into_boxed_str();
                self.give(Event::Describes(About {
                    name,
                    version: "0.1.0".into(),
                    reason: source.maybe(|_| "finishing".into()),
                }));
            }
            _ => {
                self.listings += 1;
                self.give(Event::ListMachines { ticket: self.listings, first: source.number() });
            }
        }
    }

    /// As the driver checks it.
    fn priority(&self, source: &mut Source<'_>) -> i32 {
        (source.number() as i32).clamp(-PRIORITY_MAX, PRIORITY_MAX)
    }

    fn submit(&mut self, source: &mut Source<'_>) {
        let submission = Submission {
            id: source.bag(),
            envelope: source.enclosed(),
            manifest: source.enclosed(),
            tasks: u64::from(source.byte()) + 1,
            task_mops: source.maybe(|source| f64::from(source.byte()) + 1.0),
            retries_max: 2,
            replication: source.replication(),
            stewards: None,
            keep_results: false,
            conditions: Conditions {
                running_max: source.maybe(|source| u64::from(source.byte())),
                ..Conditions::default()
            },
            endless: None,
        };
        if self.peer.check(&submission).is_ok() {
            self.give(Event::Submitted(submission));
        }
    }

    /// At the end of a case: what it knows of others is bounded, and what it wrote it can read.
    pub(super) fn assert_bounded(&self) {
        let sizes = self.peer.overlay_view().sizes();
        assert!(sizes.leaf_set <= 16 && sizes.heard_of <= 64 && sizes.probes <= 256 && sizes.graves <= 96, "{sizes:?}");
    }
}

/// What is left of an act to the grid.
pub(super) enum Act {
    Done,
    /// So much time passes.
    Pass(Duration),
}

fn success() -> Finished {
    Finished {
        success: true,
        crashed: false,
        output: BlobId([1; 32]),
        output_bytes: 1,
        content: None,
        work_mops: 500.0,
        exit_code: Some(0),
        fingerprint: None,
        times: 1.0,
    }
}
