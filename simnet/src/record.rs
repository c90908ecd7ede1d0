//! The record of every task's fate, kept by the simulator itself.
//!
//! A task is *delivered* when its successful result has become durable in the journal of the machine that submitted it
//! and the simulator saw its output arrive there. A peer's claims do not count.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, KeptPrediction, Peer, TaskId};

use crate::event_queue::HostIndex;
use crate::host::Ending;
use crate::workload::Bag;

/// The fate of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskRecord {
    /// Executions begun.
    pub started: u32,
    /// Executions that ran to the end and succeeded.
    pub finished: u32,
    /// Executions that failed at their end, at most 255.
    pub failures: u8,
    /// Executions that ended with their worker's death, at most 255.
    pub crashes: u8,
    /// Its result is durable at the submitter, with its output.
    pub delivered: bool,
    /// Its failure for good is durable.
    pub failed: bool,
}

/// How well a submitter predicted the end of a bag: the predictions of one life of it, compared with the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Predictions: at most one for each tenth of the bag's tasks.
    pub count: u32,
    /// Those within what they said of themselves.
    pub held: u32,
    /// By how much they were wrong in the mean, as a share of the bag's whole time: as the submitter tells its user.
    pub error: f64,
    /// The same of predictions by who knows nothing but when the bag was submitted and how much of it has ended.
    pub null_error: f64,
}

impl Predicted {
    /// Of a bag that has ended at this peer, its submitter; `None` if it predicted nothing.
    pub(crate) fn of(peer: &Peer, bag: BagId) -> Option<Self> {
        let error = peer.prediction_error(bag)?;
        let view = peer.bag(bag)?;
        let (_, closed) = view.closed?;
        let seconds = |from: Time, to: Time| (to.as_micros() - from.as_micros()) as f64 / 1e6;
        let took_s = seconds(view.released, closed);
        let kept: Vec<_> = peer.predictions(bag).iter().filter(|kept| kept.made < closed).collect();
        let is_held = |kept: &&&KeptPrediction| {
            seconds(kept.prediction.end, closed).abs() <= kept.prediction.within.as_secs_f64()
        };
        let null_s =
            |kept: &&KeptPrediction| seconds(view.released, kept.made) * view.bag.tasks as f64 / kept.ended as f64;
        let null_error =
            kept.iter().map(|kept| (null_s(kept) - took_s).abs() / took_s).sum::<f64>() / kept.len() as f64;
        let held = kept.iter().filter(is_held).count() as u32;
        Some(Self { count: kept.len() as u32, held, error, null_error })
    }
}

/// What became of the tasks of a bag without an end.
#[derive(Clone, Debug, Default)]
pub struct EndlessRecord {
    /// Tasks that ran to their end and succeeded.
    pub finished: IntervalSet,
    /// Executions that did so though the task had succeeded before.
    pub repeated: u64,
    /// Tasks whose result is durable at the submitter, with its output.
    pub delivered: IntervalSet,
}

/// The fate of one bag.
#[derive(Clone, Debug)]
pub struct BagRecord {
    /// The bag.
    pub bag: Bag,
    /// Where and when it was submitted (the last time, if the machine crashed before it accepted the bag).
    pub submitted: Option<(HostIndex, Time)>,
    /// When its submitter accepted it.
    pub accepted: Option<Time>,
    /// When its submitter closed it.
    pub closed: Option<Time>,
    /// When its last task was delivered or failed for good.
    pub completed: Option<Time>,
    /// When its last task had succeeded for the first time, anywhere and even if its submitter did not know, or had
    /// failed for good.
    pub ended: Option<Time>,
    /// The same of its last task but one.
    pub ended_but_one: Option<Time>,
    /// For how long its submitter was up between the end of its last task and the moment at which it knew of that, once it does: its absences do not
    /// count.
    known_after: Option<Duration>,
    /// For how long its submitter had been up when its last task ended.
    up_at_end: Duration,
    /// How well its submitter predicted its end.
    pub predicted: Option<Predicted>,
    /// Its tasks by index; none of a bag without an end.
    pub tasks: Vec<TaskRecord>,
    /// Of a bag without an end.
    pub endless: Option<EndlessRecord>,
    open: u64,
    /// Tasks that have neither succeeded nor failed for good.
    running: u64,
}

impl BagRecord {
    /// Its stretch (C − r)/w with the paper's w = n·a, in s/Mop, with r the time of its user's request, even if no
    /// machine could accept it then; an incomplete bag counts with the time so far. `None` if it would have come later, or has no end.
    pub fn stretch(&self, end: Time) -> Option<f64> {
        if self.endless.is_some() {
            return None;
        }
        let completed = self.completed.unwrap_or(end);
        let time = completed.since(self.bag.arrival);
        (end >= self.bag.arrival).then(|| time.as_secs_f64() / self.bag.application_size_mops())
    }
}

/// When a machine was up.
#[derive(Clone, Copy, Debug, Default)]
struct Presence {
    /// Since when it is up, if it is.
    since: Option<Time>,
    /// For how long it was up before.
    before: Duration,
}

impl Presence {
    fn until(self, now: Time) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

/// Everything the simulator knows of the tasks.
#[derive(Debug, Default)]
pub struct Record {
    bags: Vec<BagRecord>,
    numbers: BTreeMap<BagId, usize>,
    open: usize,
    /// When machines were up.
    presence: BTreeMap<HostIndex, Presence>,
    /// Results that were journalled although their output had never arrived: peers broke their promise.
    pub without_output: u64,
}

impl Record {
    /// A record of these bags before anything has happened.
    pub fn new(bags: Vec<Bag>) -> Self {
        let numbers = bags.iter().enumerate().map(|(number, bag)| (bag.id, number)).collect();
        let bags: Vec<BagRecord> = bags
            .into_iter()
            .map(|bag| BagRecord {
                tasks: vec![TaskRecord::default(); bag.tasks as usize],
                endless: bag.endless.map(|_| EndlessRecord::default()),
                open: bag.tasks,
                running: bag.tasks,
                bag,
                submitted: None,
                accepted: None,
                closed: None,
                completed: None,
                ended: None,
                ended_but_one: None,
                known_after: None,
                up_at_end: Duration::ZERO,
                predicted: None,
            })
            .collect();
        Self { open: bags.len(), bags, numbers, presence: BTreeMap::new(), without_output: 0 }
    }

    /// The bags in the order of their arrival.
    pub fn bags(&self) -> &[BagRecord] {
        &self.bags
    }

    /// Number of bags not closed by their submitter.
    pub fn open_bags(&self) -> usize {
        self.open
    }

    /// The bag with this identity.
    ///
    /// # Panics
    /// When there is none: peers invented a bag.
    pub fn number(&self, bag: BagId) -> usize {
        *self.numbers.get(&bag).expect("a bag of this run")
    }

    /// A machine is switched on.
    pub(crate) fn up(&mut self, host: HostIndex, now: Time) {
        self.presence.entry(host).or_default().since = Some(now);
    }

    /// A machine goes down.
    pub(crate) fn down(&mut self, host: HostIndex, now: Time) {
        let presence = self.presence.entry(host).or_default();
        *presence = Presence { since: None, before: presence.until(now) };
    }

    /// For how long the submitter of a bag has been up so far.
    fn submitter_was_up(&self, number: usize, now: Time) -> Duration {
        let submitter = self.bags[number].submitted.map(|(host, _)| host);
        let presence = submitter.and_then(|host| self.presence.get(&host));
        presence.map_or(Duration::ZERO, |presence| presence.until(now))
    }

    /// For how long the submitter of a bag was up since the bag's last task had ended, until it knew of that, or until now where it does not know;
    /// `None` where a task has not ended.
    pub fn known_after(&self, number: usize, now: Time) -> Option<Duration> {
        let bag = &self.bags[number];
        let so_far = || self.submitter_was_up(number, now).saturating_sub(bag.up_at_end);
        bag.ended.map(|_| bag.known_after.unwrap_or_else(so_far))
    }

    /// A bag is handed to a machine.
    pub fn submitted(&mut self, number: usize, host: HostIndex, now: Time) {
        self.bags[number].submitted = Some((host, now));
    }

    /// A machine accepts a bag.
    pub fn accepted(&mut self, bag: BagId, now: Time) {
        let number = self.number(bag);
        self.bags[number].accepted.get_or_insert(now);
    }

    /// A machine closes a bag.
    pub fn closed(&mut self, bag: BagId, now: Time) {
        let number = self.number(bag);
        if self.bags[number].closed.is_none() {
            self.bags[number].closed = Some(now);
            self.open -= 1;
        }
    }

    /// A machine that closes a bag says how well it predicted its end.
    pub(crate) fn predicted(&mut self, bag: BagId, predicted: Predicted) {
        let number = self.number(bag);
        self.bags[number].predicted = Some(predicted);
    }

    /// An execution begins.
    pub fn started(&mut self, task: TaskId) {
        if self.endless(task.bag).is_none() {
            self.task(task).started += 1;
        }
    }

    /// An execution ran to its end.
    pub(crate) fn run_ended(&mut self, task: TaskId, ending: Ending, now: Time) {
        if let Some(endless) = self.endless(task.bag) {
            let is_again = ending == Ending::Success && !endless.finished.insert_index(task.index);
            endless.repeated += u64::from(is_again);
            return;
        }
        let record = self.task(task);
        match ending {
            Ending::Success => record.finished += 1,
            Ending::Failure => record.failures = record.failures.saturating_add(1),
            Ending::Crash => record.crashes = record.crashes.saturating_add(1),
        }
        if ending == Ending::Success && record.finished == 1 && !record.failed {
            self.stops_running(task, now);
        }
    }

    /// A task has succeeded for the first time, or failed for good without success.
    fn stops_running(&mut self, task: TaskId, now: Time) {
        let number = self.number(task.bag);
        let was_up = self.submitter_was_up(number, now);
        let bag = &mut self.bags[number];
        bag.running -= 1;
        if bag.running == 1 {
            bag.ended_but_one = Some(now);
        }
        if bag.running == 0 {
            (bag.ended, bag.up_at_end) = (Some(now), was_up);
        }
    }

    /// Whether a bag was submitted on this machine.
    pub(crate) fn is_submitter(&self, bag: BagId, host: HostIndex) -> bool {
        self.bags[self.number(bag)].submitted.is_some_and(|(submitter, _)| submitter == host)
    }

    /// A result became durable in the journal of `host`; `has_output`: its output is there.
    pub fn journalled(&mut self, task: TaskId, host: HostIndex, success: bool, has_output: bool, now: Time) {
        if !self.is_submitter(task.bag, host) {
            return;
        }
        if !has_output {
            self.without_output += 1;
            return;
        }
        if let Some(endless) = self.endless(task.bag) {
            if success {
                endless.delivered.insert_index(task.index);
            }
            return;
        }
        let record = self.task(task);
        let is_new = !record.delivered && !record.failed;
        if success {
            record.delivered = true;
            record.failed = false;
        } else {
            record.failed = !record.delivered;
        }
        if is_new && record.failed && record.finished == 0 {
            self.stops_running(task, now);
        }
        let number = self.number(task.bag);
        let was_up = self.submitter_was_up(number, now);
        let bag = &mut self.bags[number];
        if is_new {
            bag.open -= 1;
            if bag.open == 0 {
                bag.completed = Some(now);
                bag.known_after = bag.ended.map(|_| was_up.saturating_sub(bag.up_at_end));
            }
        }
    }

    /// What became of the tasks of a bag, where it has no end.
    fn endless(&mut self, bag: BagId) -> Option<&mut EndlessRecord> {
        let number = self.number(bag);
        self.bags[number].endless.as_mut()
    }

    fn task(&mut self, task: TaskId) -> &mut TaskRecord {
        let number = self.number(task.bag);
        &mut self.bags[number].tasks[task.index as usize]
    }

    /// All tasks of the bags that were accepted.
    pub fn accepted_tasks(&self) -> impl Iterator<Item = &TaskRecord> {
        self.bags.iter().filter(|bag| bag.accepted.is_some()).flat_map(|bag| &bag.tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag(id: BagId, tasks: u64) -> Bag {
        let (arrival, task_mops) = (Time::ZERO, 4.0);
        Bag { id, arrival, tasks, task_mops, declared_mops: task_mops, seat: None, whole: 0, first: 0, endless: None }
    }

    #[test]
    fn a_task_is_delivered_once_and_only_with_its_output_at_its_submitter() {
        let id = BagId([7; 32]);
        let bag = bag(id, 1);
        let mut record = Record::new(vec![bag]);
        let now = Time::ZERO + Duration::from_secs(8);
        record.submitted(0, 3, Time::ZERO);
        let task = TaskId { bag: id, index: 0 };
        record.journalled(task, 2, true, true, now);
        record.journalled(task, 3, true, false, now);
        assert_eq!((record.without_output, record.bags()[0].completed), (1, None));
        record.journalled(task, 3, true, true, now);
        record.journalled(task, 3, true, true, now + Duration::from_secs(1));
        assert_eq!(record.bags()[0].completed, Some(now));
        assert_eq!(record.bags()[0].stretch(now), Some(2.0));
        record.submitted(0, 3, now);
        assert_eq!(record.bags()[0].stretch(now), Some(2.0), "its user waits, whoever takes it in the end");
        assert_eq!(record.open_bags(), 1);
        record.closed(id, now);
        record.closed(id, now);
        assert_eq!(record.open_bags(), 0);
    }

    #[test]
    fn a_bag_has_ended_once_each_task_ran_even_if_its_submitter_does_not_know() {
        let id = BagId([7; 32]);
        let mut record = Record::new(vec![bag(id, 2)]);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        for (index, seconds, ended) in [(0, 1, None), (0, 2, None), (1, 3, Some(at(3))), (1, 4, Some(at(3)))] {
            record.run_ended(TaskId { bag: id, index }, Ending::Success, at(seconds));
            assert_eq!(record.bags()[0].ended, ended);
        }
        assert_eq!(record.bags()[0].completed, None);
    }

    #[test]
    fn the_absences_of_a_submitter_do_not_count_where_it_knows_late() {
        let id = BagId([7; 32]);
        let mut record = Record::new(vec![bag(id, 1)]);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let task = TaskId { bag: id, index: 0 };
        record.up(3, at(0));
        record.submitted(0, 3, at(0));
        record.down(3, at(10));
        record.run_ended(task, Ending::Success, at(20));
        record.up(3, at(100));
        record.down(3, at(107));
        record.up(3, at(1000));
        assert_eq!(record.known_after(0, at(1002)), Some(Duration::from_secs(9)), "it does not know yet");
        record.journalled(task, 3, true, true, at(1005));
        assert_eq!(record.known_after(0, at(2000)), Some(Duration::from_secs(12)));
    }

    #[test]
    fn failed_attempts_are_no_duplicates_and_a_task_failed_for_good_has_ended() {
        let id = BagId([7; 32]);
        let mut record = Record::new(vec![bag(id, 2)]);
        record.submitted(0, 3, Time::ZERO);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let [one, other] = [0, 1].map(|index| TaskId { bag: id, index });
        for (task, ending) in [(one, Ending::Failure), (other, Ending::Crash), (other, Ending::Crash)] {
            record.run_ended(task, ending, at(1));
        }
        record.run_ended(one, Ending::Success, at(2));
        record.journalled(one, 3, true, true, at(3));
        assert_eq!((record.bags()[0].ended, record.bags()[0].completed), (None, None));
        record.journalled(other, 3, false, true, at(4));
        assert_eq!((record.bags()[0].ended, record.bags()[0].completed), (Some(at(4)), Some(at(4))));
        // A late result changes nothing.
        record.run_ended(other, Ending::Success, at(5));
        assert_eq!(record.bags()[0].ended, Some(at(4)));
        let seen = |task: &TaskRecord| (task.finished, task.failures, task.crashes, task.delivered, task.failed);
        let tasks: Vec<_> = record.bags()[0].tasks.iter().map(seen).collect();
        assert_eq!(tasks, [(1, 1, 0, true, false), (1, 0, 2, false, true)]);
    }
}
