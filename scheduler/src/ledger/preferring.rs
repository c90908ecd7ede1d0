//! Preferred machines: where the ledger of an application in rounds sends the processes of a round, by prediction ([`crate::rounds::homes`]).
//!
//! A machine that gets tasks of such a bag says what it can do ([`crate::Message::Holding`]). Results say how much work each
//! process is, and by what factor the program takes longer on each machine ([`crate::factors`]). When processes are due, at the end of a round or, where nobody
//! waits, of a process, all that are due are mapped: each stays where its state is, unless the mapping as a whole ends more than a tenth earlier
//! elsewhere. Where nobody waits, a process goes on by what it has left to do ([`crate::rounds::homes_by_level`]). Its task then goes straight to that
//! machine, which declines it if it would begin later there than predicted: the owner is back, or other bags have come ahead. A declined task, and
//! one whose request is lost, goes through the tree at once.
//!
//! The tree alone knows of machines that have had no task of the bag. So as many of the processes that would have to wait as there are such
//! machines go through it, those that end last first; and what is predicted to end last of a round is copied there (`copies`). Merges go through it, too.
//!
//! Where the user wishes so, processes that would wait for others do more iterations instead ([`Plan::fill`]). How many is said in what they begin with,
//! which is signed for the task: whoever runs it does so many, also where the preferred machine has declined. That costs time, and no more.
//!
//! All of it is relearned after a restart, but for works and homes, which follow from the results on the disk. Left out: slots that other
//! bags will need, which the machines themselves know.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::Ledger;
use crate::bag::{REQUEST_INTERVALS_MAX, Request, TaskResult};
use crate::config::Config;
use crate::factors::Factor;
use crate::io::Io;
use crate::message::Capacity;
use crate::queue::WORK_MOPS_MIN;
use crate::ranges::IntervalSet;
use crate::rounds::{BOOKED, Due, Home, Machine, Part, Plan, homes, homes_by_level};

/// Most machines that are known; the one that was heard of for longest is forgotten. Our choice.
const MACHINES_MAX: usize = 256;
/// A machine that declined is not preferred for so long, unless it takes a task. Our choice: owners stay for minutes.
const DECLINED_FOR: Duration = Duration::from_secs(60);
/// A process may begin later than predicted by this share of the time until its predicted end: the paper's tenth, by which an earlier
/// end elsewhere would be worth moving.
const LATER_SHARE: f64 = 0.1;
/// And by so many seconds, for messages and rounding. Our choice.
const LATER_S: f64 = 1.0;
/// What is left of a process that has run for longer than predicted, as a share of that: as executors take it.
const OVERRUN_REST: f64 = 0.1;

/// A machine that had tasks of the bag.
#[derive(Debug)]
struct Known {
    contact: Contact,
    capacity: Capacity,
    factor: Factor,
    /// Of the last message by which it took tasks, counted.
    heard: u64,
    declined_until: Option<Time>,
}

/// A machine to which a task is to be sent, and within how many seconds it has to begin there.
#[derive(Clone, Copy, Debug)]
struct Preference {
    machine: PeerId,
    begins_within_s: u32,
    /// How long other tasks there are predicted to take before it begins.
    waits: Duration,
}

/// What is known of machines and processes of one application.
#[derive(Debug, Default)]
pub(super) struct Preferring {
    machines: BTreeMap<PeerId, Known>,
    heard: u64,
    /// By process: its work in Mop, as its last rounds have shown, and the machine that has its state.
    processes: BTreeMap<u64, (f64, PeerId)>,
    /// Work of a merge as the last ones have shown, in Mop; none until one has ended.
    merge_mops: Option<f64>,
    /// Mean size of a state, in bytes.
    state_bytes: f64,
    /// Tasks that are due, and have not been issued.
    preferred: BTreeMap<u64, Preference>,
    /// Tasks that are with the machine that was preferred, or on the way there.
    asked: BTreeMap<u64, PeerId>,
    /// When each task that has not ended begins, by prediction: when it was sent last, and its wait there.
    begins: BTreeMap<u64, Time>,
    /// Of an application that fills its time: iterations of tasks of later rounds whose starts were ordered since the last restart.
    iterations: BTreeMap<u64, NonZeroU64>,
}

impl Preferring {
    /// How many iterations a task that is about to begin does; `None`: as many as all.
    pub(super) fn iterations_of(&mut self, index: u64, plan: Plan) -> Option<NonZeroU64> {
        let is_process = matches!(plan.part(index), Part::Process { .. });
        let of_round = plan.fill.filter(|_| is_process)?;
        // Also where it is begun anew, so that its copies do as many.
        Some(*self.iterations.entry(index).or_insert(of_round))
    }

    /// How many times the iterations of all a task does; `None`: nobody knows since a restart.
    fn times(&self, index: u64, plan: Plan) -> Option<f64> {
        let Some(of_round) = plan.fill.filter(|_| !plan.first().contains(&index)) else { return Some(1.0) };
        self.iterations.get(&index).map(|iterations| iterations.get() as f64 / of_round.get() as f64)
    }
}

impl Ledger {
    fn preferring(&mut self) -> Option<&mut Preferring> {
        self.rounds.as_mut().map(|rounds| &mut rounds.preferring)
    }

    /// A machine has taken these tasks, and says what it can do.
    pub(super) fn can_do(&mut self, executor: &Contact, capacity: Option<Capacity>, gained: &IntervalSet) {
        let Some(preferring) = self.preferring() else { return };
        preferring.heard += 1;
        let heard = preferring.heard;
        if let Some(known) = preferring.machines.get_mut(&executor.peer) {
            (known.contact, known.heard) = (executor.clone(), heard);
            known.capacity = capacity.unwrap_or(known.capacity);
            known.declined_until = known.declined_until.filter(|_| gained.is_empty());
        } else if let Some(capacity) = capacity {
            let (contact, factor) = (executor.clone(), Factor::default());
            let known = Known { contact, capacity, factor, heard, declined_until: None };
            preferring.machines.insert(executor.peer, known);
            if preferring.machines.len() > MACHINES_MAX
                && let Some(oldest) = preferring.machines.iter().min_by_key(|(_, it)| it.heard).map(|(&peer, _)| peer)
            {
                preferring.machines.remove(&oldest);
            }
        }
    }

    /// A machine did not answer, or does not renew the lease of tasks that it has: nothing is known of it any more.
    pub(super) fn answers_not(&mut self, machine: Option<PeerId>) {
        if let Some((preferring, machine)) = self.preferring().zip(machine) {
            preferring.machines.remove(&machine);
        }
    }

    /// These tasks are in a request from now on.
    pub(super) fn note_sent(&mut self, tasks: &IntervalSet, now: Time) {
        if let Some(preferring) = self.preferring() {
            for index in tasks.indices() {
                let preference = preferring.preferred.remove(&index);
                let waits = preference.map_or(Duration::ZERO, |preference| preference.waits);
                preferring.begins.insert(index, now + waits);
            }
        }
    }

    /// A task has ended on this machine.
    pub(super) fn learn_of_round(&mut self, result: &TaskResult, executor: Option<PeerId>) {
        let Some(rounds) = &mut self.rounds else { return };
        let (plan, preferring) = (rounds.progress.plan(), &mut rounds.preferring);
        let times = preferring.times(result.index, plan);
        preferring.iterations.remove(&result.index);
        preferring.begins.remove(&result.index);
        preferring.preferred.remove(&result.index);
        preferring.asked.remove(&result.index);
        let Part::Process { process, round } = plan.part(result.index) else {
            if result.success {
                let before = preferring.merge_mops.unwrap_or(result.work_mops);
                preferring.merge_mops = Some((before + result.work_mops) / 2.0);
            }
            return;
        };
        if result.success {
            self.conditions.round_has_begun(round);
        }
        let Some(executor) = executor.filter(|_| result.success && result.work_mops >= WORK_MOPS_MIN) else { return };
        let Some(times) = times else {
            // Its state is there, all the same.
            if let Some((_, home)) = preferring.processes.get_mut(&process) {
                *home = executor;
            }
            return;
        };
        let before = preferring.processes.get(&process).map(|(work_mops, _)| *work_mops);
        let of_round = result.work_mops / times;
        let mut factor = 1.0;
        if let Some(known) = preferring.machines.get_mut(&executor) {
            before.into_iter().for_each(|before| known.factor.note(of_round / before));
            factor = known.factor.value();
        }
        // What it would be on a machine of the factor 1; the last round counts as much as all before.
        let here = of_round / factor;
        let work_mops = before.map_or(here, |before| (before + here) / 2.0);
        preferring.processes.insert(process, (work_mops, executor));
        let bytes = result.output_bytes as f64;
        preferring.state_bytes += (bytes - preferring.state_bytes) / preferring.processes.len() as f64;
    }

    /// These tasks are due: the machines that their processes begin on, as far as that is known.
    pub(super) fn prefer(&mut self, due: &[u64], io: &Io) {
        let Some(rounds) = self.rounds.as_ref() else { return };
        let (plan, preferring) = (rounds.progress.plan(), &rounds.preferring);
        let process_of = |index: u64| match plan.part(index) {
            Part::Process { process, .. } => Some(process),
            Part::Merge { .. } => None,
        };
        let due: Vec<(u64, u64, f64, PeerId)> = due
            .iter()
            .filter_map(|&index| {
                let process = process_of(index)?;
                let (work_mops, home) = preferring.processes.get(&process)?;
                Some((index, process, *work_mops, *home))
            })
            .collect();
        let is_preferred = |(peer, known): &(&PeerId, &Known)| {
            self.is_asked(**peer, io) && known.declined_until.is_none_or(|until| until <= io.now)
        };
        let known: Vec<(PeerId, &Known)> =
            preferring.machines.iter().filter(is_preferred).map(|(&peer, known)| (peer, known)).collect();
        if due.is_empty() || known.is_empty() {
            return;
        }
        let work_of_process =
            |process: u64| preferring.processes.get(&process).map_or(self.bag.task_mops, |(work_mops, _)| *work_mops);
        let work_of = |index: u64| match process_of(index) {
            Some(process) => work_of_process(process),
            // No machine that says too much of its merge makes others seem longer than a process.
            None => preferring.merge_mops.map_or(self.bag.task_mops, |mops| mops.min(self.bag.task_mops)),
        };
        let machine = |&(peer, known): &(PeerId, &Known)| {
            let speed_mops = f64::from(known.capacity.speed_mops) / known.factor.value();
            let rest_s = |index: u64, is_sent: bool| {
                let whole_s = work_of(index) * preferring.times(index, plan).unwrap_or(1.0) / speed_mops;
                let begins = preferring.begins.get(&index).filter(|_| is_sent);
                let ran_s = begins.map_or(0.0, |&begins| io.now.since(begins).as_secs_f64());
                (whole_s - ran_s).max(whole_s * OVERRUN_REST)
            };
            let mut has = self.placed.of(peer).map(|placement| placement.ranges.clone()).unwrap_or_default();
            for issue in self.issues.iter().filter(|issue| issue.to == Some(peer)) {
                has.extend_with(&issue.ranges);
            }
            let to_come = preferring.preferred.iter().filter(|(_, preference)| preference.machine == peer);
            let busy_s = has.indices().map(|index| rest_s(index, true));
            let busy_s = busy_s.chain(to_come.map(|(&index, _)| rest_s(index, false))).collect();
            Machine { speed_mops, slots: known.capacity.slots, busy_s }
        };
        let machines: Vec<Machine> = known.iter().map(machine).collect();
        let place = |peer: PeerId| known.binary_search_by_key(&peer, |(peer, _)| *peer).ok();
        let left_mops = |process: u64| {
            let done = usize::try_from(process).ok().and_then(|process| rounds.progress.rounds_done().get(process));
            plan.rounds.saturating_sub(done.copied().unwrap_or(0)) as f64 * work_of_process(process)
        };
        let processes: Vec<Due> =
            due.iter().map(|&(_, _, work_mops, home)| Due { work_mops, home: place(home) }).collect();
        let transfer_s = preferring.state_bytes / (f64::from(io.link_kb_s.max(1)) * 1000.0);
        let homes = if plan.is_asynchronous {
            let are_due: BTreeSet<u64> = due.iter().map(|&(_, process, ..)| process).collect();
            let left: Vec<f64> = due.iter().map(|&(_, process, ..)| left_mops(process)).collect();
            let others = (0..plan.processes).filter(|process| !are_due.contains(process)).map(left_mops);
            homes_by_level(&processes, &left, others, &machines, transfer_s)
        } else {
            homes(&processes, &machines, transfer_s, plan.fill)
        };
        let unknown = (io.leaves as usize).saturating_sub(preferring.machines.len());
        // Where processes begin at once none is mapped behind another one of the same slot.
        let (most, share) = if plan.at_once { (usize::MAX, 0.0) } else { (unknown, LATER_SHARE) };
        let elsewhere = last_that_wait(&homes, most, share);
        let chosen: Vec<(u64, Home)> = due
            .iter()
            .zip(homes)
            .enumerate()
            .filter(|(place, _)| !elsewhere.contains(place))
            .filter_map(|(_, ((index, ..), home))| Some((*index, home?)))
            .collect();
        let preferences: Vec<(u64, Preference)> =
            chosen.iter().map(|(index, home)| (*index, preference(home, &known))).collect();
        if let Some(preferring) = self.preferring() {
            preferring.preferred.extend(preferences);
            let iterations = |(index, home): (u64, Home)| Some((index, NonZeroU64::new(home.iterations)?));
            let filled = chosen.into_iter().filter(|_| plan.fill.is_some()).filter_map(iterations);
            preferring.iterations.extend(filled);
        }
    }

    /// The requests for unissued tasks that go straight to the machines that are preferred for them.
    pub(super) fn issue_to_preferred(&mut self, io: &Io, config: &Config) -> Vec<(Option<Contact>, Request)> {
        let mut requests = Vec::new();
        while let Some((to, tasks, within_s)) = self.next_preferred() {
            let tasks = self.within_room(tasks);
            let tasks = self.checkpoints.within_request(tasks);
            if tasks.is_empty() {
                break;
            }
            if let Some(preferring) = self.preferring() {
                for index in tasks.indices() {
                    preferring.asked.insert(index, to.peer);
                }
            }
            self.waiting.take(&tasks);
            let request = self.request(tasks, Some(to.peer), io, config);
            let begins_within = request.begins_within.filter(|&within_s| within_s == BOOKED).or(Some(within_s));
            requests.push((Some(to), Request { begins_within, ..request }));
        }
        requests
    }

    /// The next machine that is preferred for unissued tasks, these tasks, and when the last of them has to begin there.
    fn next_preferred(&self) -> Option<(Contact, IntervalSet, u32)> {
        let unissued = self.waiting.unissued();
        let preferring = &self.rounds.as_ref()?.preferring;
        let is_due = |(index, preference): &(&u64, &Preference)| {
            unissued.contains(**index) && preferring.machines.contains_key(&preference.machine)
        };
        let (_, &Preference { machine, .. }) = preferring.preferred.iter().find(is_due)?;
        let of_machine = preferring.preferred.iter().filter(is_due).filter(|(_, it)| it.machine == machine);
        let mut tasks = IntervalSet::new();
        let mut within_s = 0;
        for (&index, preference) in of_machine {
            tasks.insert_index(index);
            within_s = within_s.max(preference.begins_within_s);
        }
        let tasks = tasks.ranges().take(REQUEST_INTERVALS_MAX).collect();
        Some((preferring.machines.get(&machine)?.contact.clone(), tasks, within_s))
    }

    /// A machine declines tasks that would begin later there than predicted: they go through the tree at once.
    pub(super) fn preference_declined(&mut self, executor: PeerId, ranges: &IntervalSet, io: &mut Io) {
        let together = self.together().map(|it| it.tasks.intersection(ranges)).unwrap_or_default();
        let Some(preferring) = self.preferring() else { return };
        let is_its = |index: &u64, peer: &mut PeerId| *peer == executor && ranges.contains(*index);
        let mut asked: IntervalSet =
            preferring.asked.extract_if(.., is_its).map(|(index, _)| index..index + 1).collect();
        if let Some(known) = preferring.machines.get_mut(&executor).filter(|_| !asked.is_empty()) {
            known.declined_until = Some(io.now + DECLINED_FOR);
        }
        asked.extend_with(&together);
        let back = self.issues.take_off(executor, &asked);
        let back = self.without_copy(back);
        match self.together_again(&back, io) {
            _ if back.is_empty() => {}
            Some(until) => self.pause(&back, until, io),
            None => self.next_attempt(&back, io),
        }
    }
}

/// Of those that have to wait where they are mapped, for more than this share of the time until they end, so many that end last, by their places.
fn last_that_wait(homes: &[Option<Home>], most: usize, share: f64) -> BTreeSet<usize> {
    let waits = |(place, home): (usize, &Option<Home>)| {
        let home = home.filter(|home| home.begins_s > share * home.ends_s)?;
        Some((home.ends_s, place))
    };
    let mut waiting: Vec<(f64, usize)> = homes.iter().enumerate().filter_map(waits).collect();
    waiting.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    waiting.into_iter().take(most).map(|(_, place)| place).collect()
}

fn preference(home: &Home, known: &[(PeerId, &Known)]) -> Preference {
    let begins_within_s = (home.begins_s + home.ends_s * LATER_SHARE + LATER_S).ceil();
    Preference {
        machine: known[home.machine].0,
        begins_within_s: (begins_within_s as u32).min(BOOKED - 1),
        waits: Duration::try_from_secs_f64(home.begins_s).unwrap_or(Duration::MAX),
    }
}
