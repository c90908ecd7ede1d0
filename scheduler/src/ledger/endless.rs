//! The ledger of an endless bag: how many tasks there are so far, which machines want some, and which results are drained.
//!
//! Nothing of an endless bag goes through the tree. A machine with a share says how many tasks it takes (`Want`), and the
//! ledger answers with a request straight to it, under the leases of any bag. Tasks that came back are given first.
//!
//! A result counts as *undrained* until its user has saved it: it takes room on this machine. At [`UNDRAINED_MAX`] results, or
//! [`Config::undrained_bytes_max`] of outputs, nothing more is given until some are drained. A drained result's record is
//! deleted, and its task is one number in an interval from then on: so a ledger stays as small after many tasks as after few.
//!
//! Tasks of an open range all exist from the beginning; those of a pipe or a directory begin to as they come. Once the bag has ended, which
//! its user says or the pipe, it is over when the tasks that exist have ended; of an open range those below the last
//! that a machine has, or has ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};
use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::bag::{BAG_TASKS_MAX, BAG_WORK_MOPS_MAX, LINES_MAX, REQUEST_INTERVALS_MAX, Request, TaskResult, is_zero};
use crate::config::Config;
use crate::endless::{
    ANNOUNCE_EVERY, CLIMB_EVERY, Endless, EndlessBag, EndlessView, Grant, IN_HAND_MAX, Limit, Standing,
};
use crate::io::{Io, Then};
use crate::peer::Notice;
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::record::{Change, RecordKey};

/// Most undrained results. Our choice: their records take some 20 MB on disk.
pub(crate) const UNDRAINED_MAX: u64 = 1 << 16;
/// The same on a steward that acts, which has them in memory, too. Our choice.
const KEPT_UNDRAINED_MAX: u64 = 1 << 14;
/// A machine that does not repeat what it wants is given nothing from then on. Machines repeat it every 10 s.
const WANTS_FOR: Duration = Duration::from_secs(35);
/// Most machines whose wants are known.
const WANTS_MAX: usize = 1 << 16;
/// A bag that has nothing to give for so long is idle: others get its share. Our choice: longer than lines need to come on.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// While a bag has no share yet it is announced so often.
const ANNOUNCE_SOON: Duration = Duration::from_secs(2);
/// The present rate is that of the last `RATE_SLOTS` of these.
const RATE_STEP: Duration = Duration::from_secs(5);
const RATE_SLOTS: usize = 12;

/// What of an endless bag is on disk, in its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Supply {
    /// As it was submitted; `tasks`: how many there are so far.
    #[serde(rename = "e")]
    pub endless: Endless,
    /// Whether no more will come.
    #[serde(rename = "c", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ended: bool,
    /// Ended tasks whose results are drained.
    #[serde(rename = "d", default, skip_serializing_if = "IntervalSet::is_empty")]
    pub drained: IntervalSet,
    /// How many of these failed.
    #[serde(rename = "f", default, skip_serializing_if = "is_zero")]
    pub drained_failed: u64,
    /// Whether the bag was an open range before its user closed it: all that a task of it is follows from its number.
    #[serde(rename = "r", default, skip_serializing_if = "std::ops::Not::not")]
    pub was_range: bool,
}

impl Supply {
    /// Of a bag that is submitted now.
    pub(crate) fn of(endless: Endless) -> Self {
        Self { endless, is_ended: false, drained: IntervalSet::new(), drained_failed: 0, was_range: false }
    }

    /// Whether all that a task is follows from its number, so that any machine with the bag's files can issue it.
    pub(crate) fn is_range(&self) -> bool {
        self.was_range || self.endless.tasks == BAG_TASKS_MAX
    }

    /// Whether a ledger can be restored from it, whoever wrote it.
    pub(crate) fn is_sane(&self) -> bool {
        self.endless.is_valid() && self.is_range() && self.drained.is_empty()
    }
}

/// What a machine wants.
#[derive(Debug)]
struct Want {
    executor: Contact,
    tasks: u64,
    heard: Time,
}

/// Tasks that ended lately.
#[derive(Debug, Default)]
struct Recent {
    /// When each step began, and how many ended in it; oldest first.
    steps: VecDeque<(Time, u64)>,
}

impl Recent {
    fn note(&mut self, now: Time) {
        match self.steps.back_mut() {
            Some((began, ended)) if now.since(*began) < RATE_STEP => *ended += 1,
            _ => {
                self.steps.push_back((now, 1));
                if self.steps.len() > RATE_SLOTS {
                    self.steps.pop_front();
                }
            }
        }
    }

    /// Tasks/s over the last minute, or since `from` where that is less.
    fn rate(&self, now: Time, from: Time) -> f64 {
        let window = RATE_STEP * RATE_SLOTS as u32;
        let begin = from.max(now - window);
        let ended: u64 = self.steps.iter().filter(|(began, _)| *began >= begin).map(|(_, ended)| ended).sum();
        ended as f64 / now.since(begin).as_secs_f64().max(1.0)
    }
}

/// The part of a ledger that endless bags alone have.
#[derive(Debug)]
pub(super) struct EndlessPart {
    endless: Endless,
    is_ended: bool,
    /// See [`Supply::is_range`].
    is_range: bool,
    /// By task, the bytes of its output.
    undrained: BTreeMap<u64, u64>,
    pub(super) undrained_bytes: u64,
    wants: BTreeMap<PeerId, Want>,
    recent: Recent,
    /// Summed bytes of outputs that came since this machine's start, and how many.
    outputs: (f64, u64),
    first_announced: Option<Time>,
    announces_at: Time,
    /// From when on an announcement climbs the tree again, instead of going straight to the machine that this one takes for the root.
    climbs_from: Time,
    told: Option<Standing>,
    /// Since when there is nothing to give.
    dry_since: Option<Time>,
    grant: Option<Grant>,
}

impl EndlessPart {
    /// `is_kept`: this machine keeps the bag for another, which has no more room here than other results that are kept.
    fn is_full(&self, is_kept: bool, config: &Config) -> bool {
        let (most, bytes) = if is_kept {
            (KEPT_UNDRAINED_MAX, config.kept_result_bytes_max)
        } else {
            (UNDRAINED_MAX, config.undrained_bytes_max)
        };
        self.undrained.len() as u64 >= most || self.undrained_bytes >= bytes
    }

    /// b: bytes of a task on the busier direction.
    fn task_bytes(&self) -> f64 {
        let (bytes, count) = self.outputs;
        let output = if count > 0 { bytes / count as f64 } else { 0.0 };
        self.endless.task_bytes.max(output).min(BAG_WORK_MOPS_MAX)
    }
}

impl Ledger {
    /// How many tasks the bag has; of an endless one so far.
    pub(super) fn tasks(&self) -> u64 {
        self.endless.as_ref().map_or(self.bag.tasks, |part| part.endless.tasks)
    }

    pub(crate) fn is_endless(&self) -> bool {
        self.endless.is_some()
    }

    /// Whether no more tasks will come.
    pub(super) fn is_supply_ended(&self) -> bool {
        self.endless.as_ref().is_none_or(|part| part.is_ended)
    }

    /// Tasks below this one exist; of an open range those from here on were never given, or came back and wait with the rest.
    pub(super) fn given(&self) -> u64 {
        let last = || self.waiting.unissued().ranges().last().filter(|range| range.end == BAG_TASKS_MAX);
        let is_open_range = self.is_endless() && self.tasks() == BAG_TASKS_MAX;
        if is_open_range { last().map_or(BAG_TASKS_MAX, |range| range.start) } else { BAG_TASKS_MAX }
    }

    /// The bag is an endless one, with what its record says.
    pub(crate) fn set_supply(&mut self, supply: &Supply) {
        let Supply { endless, is_ended, drained, drained_failed, .. } = supply;
        self.endless = Some(Box::new(EndlessPart {
            endless: *endless,
            is_ended: *is_ended,
            is_range: supply.is_range(),
            undrained: BTreeMap::new(),
            undrained_bytes: 0,
            wants: BTreeMap::new(),
            recent: Recent::default(),
            outputs: (0.0, 0),
            first_announced: None,
            announces_at: Time::ZERO,
            climbs_from: Time::ZERO,
            told: None,
            dry_since: None,
            grant: None,
        }));
        self.waiting = super::Waiting::new(endless.tasks);
        self.waiting.take(drained);
        self.ended.restore_drained(drained, *drained_failed);
    }

    /// Takes over from a steward which tasks of an adopted bag are drained, and how many there are where the bag was closed. Of a bag that is no open
    /// range nothing is taken over.
    pub(crate) fn adopt_supply(&mut self, supply: &Supply, drained: &IntervalSet) {
        if !self.endless.as_ref().is_some_and(|part| part.is_range) {
            return;
        }
        let ended: IntervalSet = self.ended.all();
        let news = drained.intersection(&IntervalSet::from(0..self.tasks())).difference(&ended);
        self.waiting.take(&news);
        let (_, failed) = self.ended.drained();
        self.ended.restore_drained(&news, failed.max(supply.drained_failed));
        let last = self.ended.all().ranges().last().map_or(0, |range| range.end);
        let Some(part) = self.endless.as_mut().filter(|part| supply.is_ended && !part.is_ended) else { return };
        let tasks = supply.endless.tasks.min(part.endless.tasks).max(last);
        (part.is_ended, part.endless.tasks) = (true, tasks);
        self.waiting.take(&IntervalSet::from(tasks..BAG_TASKS_MAX));
    }

    /// Whether there is no such task, since the bag was closed before it was given. A steward that did not hear of that may have given it.
    pub(super) fn is_beyond_end(&self, index: u64) -> bool {
        index >= self.tasks() && self.is_supply_ended()
    }

    /// The tasks of an open range that its user has closed are those that were given. While this machine has not heard its stewards, which may have given
    /// some, the range stays open. The user is told once the end is durable.
    pub(crate) fn settle_end(&mut self, io: &mut Io) {
        let Some(part) = self.endless.as_ref().filter(|part| part.is_ended) else { return };
        if part.endless.tasks == BAG_TASKS_MAX && !self.keeping.is_held {
            let given = self.given();
            self.waiting.take(&IntervalSet::from(given..BAG_TASKS_MAX));
            self.endless.iter_mut().for_each(|part| part.endless.tasks = given);
        }
        io.persist(vec![Change::Put(self.record(io))], vec![Then::Notify(Notice::BagChanged(self.bag.id))]);
        self.close_if_over(io);
    }

    /// The ended tasks whose results its user has saved.
    pub(crate) fn drained(&self) -> IntervalSet {
        self.ended.drained().0
    }

    /// Whether any machine with the bag's files can issue its tasks: those of a pipe or a directory are on the submitter's disk.
    pub(super) fn is_for_stewards(&self) -> bool {
        self.endless.as_ref().is_none_or(|part| part.is_range)
    }

    /// What the bag's record says of it.
    pub(super) fn supply(&self) -> Option<Box<Supply>> {
        let part = self.endless.as_ref()?;
        let (drained, drained_failed) = self.ended.drained();
        let was_range = part.is_range && part.endless.tasks < BAG_TASKS_MAX;
        Some(Box::new(Supply { endless: part.endless, is_ended: part.is_ended, drained, drained_failed, was_range }))
    }

    /// There are so many tasks now.
    pub(crate) fn add_tasks(&mut self, tasks: u64, io: &mut Io) {
        let Some(part) = self.endless.as_mut().filter(|part| !part.is_ended) else { return };
        let before = part.endless.tasks;
        if tasks <= before || tasks > BAG_TASKS_MAX || self.closed.is_some() {
            return;
        }
        part.endless.tasks = tasks;
        self.waiting.add(&IntervalSet::from(before..tasks));
        io.persist(vec![Change::Put(self.record(io))], vec![Then::Open(self.bag.id)]);
    }

    /// No more tasks will come; of an open range those exist that were given. The user is told once that is durable.
    pub(crate) fn end_supply(&mut self, io: &mut Io) {
        let is_open = !self.is_closed();
        let Some(part) = self.endless.as_mut().filter(|part| is_open && !part.is_ended) else { return };
        part.is_ended = true;
        self.settle_end(io);
    }

    /// The user has saved the results of these tasks: they need not be kept. Those that have not ended, or are drained already, do
    /// not matter. The user is told once that is durable.
    pub(crate) fn drain(&mut self, tasks: &IntervalSet, io: &mut Io) {
        let bag = self.bag.id;
        let Some(part) = self.endless.as_mut() else { return };
        // A record that is still being written would come back after it was deleted.
        let is_kept = |index: &u64| !io.is_recording_task(crate::bag::TaskId { bag, index: *index });
        let here = tasks.ranges().flat_map(|range| part.undrained.range(range)).map(|(&index, _)| index);
        let drained: Vec<u64> = here.filter(is_kept).collect();
        if drained.is_empty() {
            return io.notify(Notice::BagDrained(bag));
        }
        for index in &drained {
            part.undrained_bytes -= part.undrained.remove(index).unwrap_or(0);
        }
        let all: IntervalSet = drained.iter().map(|&index| index..index + 1).collect();
        self.ended.drain(&all);
        // That they are drained comes first, by which keepers tell this from tasks that run again (`steward::feed`).
        let mut changes = vec![Change::Put(self.record(io))];
        changes.extend(drained.into_iter().map(|index| Change::Delete(RecordKey::Done(bag, index))));
        io.persist(changes, vec![Then::Notify(Notice::BagDrained(bag))]);
    }

    /// A task has ended, now or before a restart.
    pub(crate) fn note_undrained(&mut self, result: &TaskResult, now: Option<Time>) {
        let Some(part) = self.endless.as_mut() else { return };
        let bytes = result.output_bytes;
        if part.undrained.insert(result.index, bytes).is_none() {
            part.undrained_bytes += bytes;
        }
        if let Some(now) = now {
            part.recent.note(now);
            part.outputs = (part.outputs.0 + bytes as f64, part.outputs.1 + 1);
        }
    }

    /// These tasks run again: their results are not there any more.
    pub(super) fn forget_undrained(&mut self, tasks: &IntervalSet) {
        let Some(part) = self.endless.as_mut() else { return };
        let here = tasks.ranges().flat_map(|range| part.undrained.range(range)).map(|(&index, _)| index);
        for index in here.collect::<Vec<_>>() {
            part.undrained_bytes -= part.undrained.remove(&index).unwrap_or(0);
        }
    }

    /// A machine takes so many more tasks.
    pub(crate) fn wanted(&mut self, executor: Contact, tasks: u32, io: &Io) {
        let is_open = !self.is_closed();
        let Some(part) = self.endless.as_mut().filter(|_| is_open) else { return };
        let peer = executor.peer;
        if part.wants.len() >= WANTS_MAX && !part.wants.contains_key(&peer) {
            return;
        }
        // Tasks on the way there, of which it had not heard, are among those that it wants.
        let on_the_way: u64 =
            self.issues.iter().filter(|issue| issue.to == Some(peer)).map(|issue| issue.ranges.len()).sum();
        let tasks = u64::from(tasks).min(IN_HAND_MAX).saturating_sub(on_the_way);
        part.wants.insert(peer, Want { executor, tasks, heard: io.now });
    }

    /// Requests for the tasks that machines want, as far as there are any.
    pub(crate) fn serve(&mut self, io: &Io, config: &Config) -> Vec<(Contact, Request)> {
        let (may_issue, is_open_range, is_kept) = (self.may_issue(), self.tasks() == BAG_TASKS_MAX, self.is_kept());
        let Some(part) = self.endless.as_mut() else { return Vec::new() };
        part.wants.retain(|_, want| want.heard + WANTS_FOR > io.now);
        let may_give = may_issue && !part.is_full(is_kept, config);
        if !may_give || self.waiting.unissued().is_empty() {
            part.dry_since.get_or_insert(io.now);
            return Vec::new();
        }
        part.dry_since = None;
        if let Some(task_mops) = self.work.of_task()
            && !self.bag.declared
        {
            self.bag.task_mops = task_mops.clamp(WORK_MOPS_MIN, BAG_WORK_MOPS_MAX);
        }
        let mut wanting: Vec<(Time, PeerId)> =
            part.wants.iter().filter(|(_, want)| want.tasks > 0).map(|(&peer, want)| (want.heard, peer)).collect();
        wanting.sort_unstable();
        let mut requests = Vec::new();
        let wanting: Vec<PeerId> = wanting.into_iter().map(|(_, peer)| peer).collect();
        let mut wanting = VecDeque::from(wanting);
        while let Some(peer) = wanting.pop_front() {
            let Some(want) = self.endless.as_ref().and_then(|part| part.wants.get(&peer)) else { continue };
            let (executor, wanted) = (want.executor.clone(), want.tasks);
            if wanted == 0 || !self.is_asked(peer, io) {
                continue;
            }
            let first = self.waiting.unissued().ranges().take(REQUEST_INTERVALS_MAX).collect::<IntervalSet>();
            let most = if is_open_range { wanted } else { wanted.min(LINES_MAX as u64) };
            let ranges = self.within_room({ first }.take_first(most));
            let ranges = self.checkpoints.within_request(ranges);
            if ranges.is_empty() {
                break;
            }
            self.waiting.take(&ranges);
            if let Some(want) = self.endless.as_mut().and_then(|part| part.wants.get_mut(&peer)) {
                want.tasks -= ranges.len();
            }
            requests.push((executor, self.request(ranges, Some(peer), io, config)));
            // Where one request does not take all that it wants, others have theirs first.
            wanting.push_back(peer);
        }
        requests
    }

    /// What the bag wants of the grid now.
    fn wants_now(&self, io: &Io) -> Standing {
        let dry_for = self.endless.as_ref().and_then(|part| part.dry_since).map(|since| io.now.since(since));
        // Tasks that machines have need a share, so that they run.
        let has_given = self.placed.tasks() > 0 || self.issues.iter().next().is_some();
        match dry_for {
            _ if self.is_closed() => Standing::Gone,
            _ if has_given => Standing::Active,
            Some(dry_for) if dry_for >= IDLE_AFTER => Standing::Idle,
            _ => Standing::Active,
        }
    }

    /// The announcement that is due, and whether it climbs the tree: one that says something new does, each while the bag has no share, and else every
    /// third, since the machine that this one takes for the root may not be it any more.
    pub(crate) fn announcement(&mut self, io: &Io, config: &Config) -> Option<(EndlessBag, bool)> {
        let standing = self.wants_now(io);
        if !self.sized || standing == Standing::Gone && self.endless.as_ref()?.told.is_none_or(|told| told == standing)
        {
            return None;
        }
        let part = self.endless.as_mut()?;
        let is_news = part.told != Some(standing);
        if part.announces_at > io.now && !is_news {
            return None;
        }
        let has_share = part.grant.is_some_and(|grant| grant.ahead > 0 || grant.work_mops > 0.0);
        let again = if is_news || !has_share && standing == Standing::Active { ANNOUNCE_SOON } else { ANNOUNCE_EVERY };
        (part.told, part.announces_at) = (Some(standing), io.now + again);
        part.first_announced.get_or_insert(io.now);
        let climbs = is_news || !has_share || part.climbs_from <= io.now;
        if climbs {
            part.climbs_from = io.now + CLIMB_EVERY;
        }
        Some((self.announced_as(io, config)?, climbs))
    }

    /// What is announced of the bag now; none where its work is not known yet.
    pub(crate) fn announced_as(&self, io: &Io, config: &Config) -> Option<EndlessBag> {
        let part = self.endless.as_ref().filter(|_| self.sized)?;
        let task_mops = self.work.of_task().unwrap_or(self.bag.task_mops);
        Some(EndlessBag {
            bag: self.bag.id,
            submitter: Contact::clone(&io.me),
            weight: part.endless.weight,
            task_mops: task_mops.clamp(WORK_MOPS_MIN, BAG_WORK_MOPS_MAX),
            task_bytes: part.task_bytes(),
            uplink_bytes_s: f64::from(config.uplink_kb_s) * 1000.0,
            standing: self.wants_now(io),
            waited_s: part.first_announced.map_or(0, |first| io.now.since(first).as_secs()),
        })
    }

    /// When [`Self::announcement`] is due next, or the bag becomes idle.
    pub(crate) fn announces_at(&self) -> Option<Time> {
        let part = self.endless.as_ref().filter(|_| self.sized && !self.is_closed())?;
        let is_busy = self.placed.tasks() > 0 || self.issues.iter().next().is_some();
        let is_told = is_busy || part.told == Some(Standing::Idle);
        let idle_at = part.dry_since.map(|since| since + IDLE_AFTER).filter(|_| !is_told);
        idle_at.into_iter().chain([part.announces_at]).min()
    }

    /// The root has answered.
    pub(crate) fn granted(&mut self, grant: Grant) {
        if let Some(part) = &mut self.endless {
            part.grant = Some(grant);
        }
    }

    /// As its user sees it.
    pub(crate) fn endless_view(&self, io: &Io, config: &Config) -> Option<EndlessView> {
        let part = self.endless.as_ref()?;
        let age_s = io.now.since(self.released).as_secs_f64().max(1.0);
        let limit = match part.dry_since {
            _ if part.is_full(self.is_kept(), config) => Some(Limit::Undrained),
            Some(_) => Some(Limit::Tasks),
            None => part.grant.map(|grant| grant.limit),
        };
        Some(EndlessView {
            weight: part.endless.weight,
            tasks: (part.endless.tasks < BAG_TASKS_MAX).then_some(part.endless.tasks),
            is_ended: part.is_ended,
            undrained: part.undrained.len() as u64,
            undrained_bytes: part.undrained_bytes,
            drained: self.ended.drained_len(),
            drained_below: self.ended.drained_below(),
            waiting: self.waiting.len_below(self.given()),
            rate: part.recent.rate(io.now, self.released),
            mean_rate: self.ended.len() as f64 / age_s,
            grant: part.grant,
            limit: limit.filter(|_| !self.is_closed()),
        })
    }
}
