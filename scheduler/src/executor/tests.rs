//! Tests of the executor: its load, and that it keeps the promises of its summary.

mod declared;
mod learning;
mod offering;
mod sending;
mod sharing;
mod submitters;

use std::collections::BTreeMap;

use idlewood_overlay::{Contact, WallTime};
use proptest::prelude::*;

use super::*;
use crate::bag::{BlobId, Finished, Path};
use crate::ledger::FAILED_IN_ROW;
use crate::message::{Asker, Lease, Message};
use crate::queue::Entry;
use crate::summary::{STRETCH_COUNT, STRETCHES, Summary};

/// What a task of 1e5 Mop comes to that took as long as declared.
const FINISHED: Finished = Finished {
    success: true,
    crashed: false,
    output: BlobId([1; 32]),
    output_bytes: 1,
    content: None,
    work_mops: 1e5,
    exit_code: None,
    fingerprint: None,
    times: 1.0,
};

fn contact(number: u8) -> Contact {
    Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None }
}

/// An executor at 1000 Mop/s with a bag of two tasks of 100 s, one of which ran for 40 s, and then a bag of one
/// task of 10 s that came ahead and ran for 5 s.
fn executor(config: &Config) -> (Executor, Io) {
    let mut executor = Executor::new(config);
    let mut io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(2));
    for (number, tasks, task_mops, size_mops, runs_s) in [(1, 2, 1e5, 1e9, 40), (2, 1, 1e4, 1e5, 5)] {
        let bag = BagHeader {
            id: BagId([number; 32]),
            submitter: contact(1),
            tasks,
            task_mops,
            application_size_mops: size_mops,
            declared: true,
        };
        let ranges = IntervalSet::from(0..tasks);
        let (age, path) = (Duration::ZERO, Path::default());
        executor.queue(
            Request {
                bag,
                number: 1,
                attempt: 0,
                ranges,
                age,
                path,
                climbed: 0,
                machines: 0,
                link_kb_s: crate::link::LINK_KB_S,
                leads: false,
                copy: None,
                begins_within: None,
                ticket: 0,
                checkpoints: Box::default(),
                lines: Box::default(),
                envelope: Enclosed::default(),
                acting: None,
            },
            None,
            &mut io,
            config,
        );
        executor.dispatch(&mut io);
        io.now += Duration::from_secs(runs_s);
    }
    (executor, io)
}

#[test]
fn preemption_counts_begun_tasks_in_their_bags() {
    let (executor, io) = executor(&Config::default());
    let (load, _) = executor.load(io.now, |_| true);
    assert_eq!(load.validate(), Ok(()));
    assert!(load.preemptive && load.running_mops.is_empty());
    let left: Vec<f64> = load.entries.iter().map(|entry| entry.left).collect();
    assert!((left[0] - 1.6).abs() < 1e-9 && (left[1] - 0.5).abs() < 1e-9, "{left:?}");
}

#[test]
fn running_tasks_come_first_at_the_limit_of_preemption() {
    let (executor, io) = executor(&Config { frozen_max: 1, ..Config::default() });
    let (load, _) = executor.load(io.now, |_| true);
    assert_eq!((load.validate(), load.preemptive), (Ok(()), false));
    assert!((load.running_mops[0] - 5000.0).abs() < 1e-6, "{:?}", load.running_mops);
    assert!((load.entries[0].left - 1.6).abs() < 1e-9 && load.entries[1].left == 0.0, "{:?}", load.entries);
}

#[test]
fn running_tasks_come_first_without_preemption() {
    let (executor, io) = executor(&Config { preemptive: false, ..Config::default() });
    let (load, _) = executor.load(io.now, |_| true);
    assert_eq!((load.validate(), load.preemptive), (Ok(()), false));
    assert!((load.running_mops[0] - 55_000.0).abs() < 1e-6, "{:?}", load.running_mops);
    assert_eq!(load.entries.iter().map(|entry| entry.left).collect::<Vec<_>>(), [1.0, 1.0]);
}

#[test]
fn each_begun_task_is_an_entry_on_several_slots() {
    let (executor, io) = executor(&Config { slots: 2, ..Config::default() });
    let (load, bags) = executor.load(io.now, |_| true);
    assert_eq!(load.validate(), Ok(()));
    // Both tasks of the first bag began; the second bag froze one of them.
    let entries: Vec<_> = load.entries.iter().zip(&bags).map(|(entry, bag)| (bag.0[0], entry.left)).collect();
    assert_eq!(entries, [(1, 0.0), (2, 0.0), (1, 1.0), (1, 1.0), (2, 1.0)]);
    let work: f64 = load.entries.iter().map(Entry::left_mops).sum();
    assert!((work - (55_000.0 + 60_000.0 + 5_000.0)).abs() < 1e-6, "{work}");
    assert_eq!(executor.order, [BagId([2; 32]), BagId([1; 32])]);
}

/// A bag of one task reaches an executor, with this age.
fn give(executor: &mut Executor, io: &mut Io, number: u8, task_mops: f64, size_mops: f64, age_s: u64) {
    let id = BagId([number; 32]);
    let (submitter, declared) = (contact(1), number != 9);
    let bag = BagHeader { id, submitter, tasks: 2, task_mops, application_size_mops: size_mops, declared };
    let tasks = if declared { 1 } else { 2 };
    let (ranges, age, path) = (IntervalSet::from(0..tasks), Duration::from_secs(age_s), Path::default());
    let request = Request {
        bag,
        number: 1,
        attempt: 0,
        ranges,
        age,
        path,
        climbed: 0,
        machines: 0,
        link_kb_s: crate::link::LINK_KB_S,
        leads: false,
        copy: None,
        begins_within: None,
        ticket: 0,
        checkpoints: Box::default(),
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
    };
    executor.queue(request, None, io, &Config::default());
}

fn empty(config: &Config) -> (Executor, Io) {
    (Executor::new(config), Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(2)))
}

#[test]
fn ages_in_requests_are_bounded() {
    let (mut executor, mut io) = empty(&Config::default());
    for (number, age_s, believed_s) in [(1, 1000, 1000.0), (2, 90 * 86_400, 7_776_000.0), (3, 1 << 40, 7_776_000.0)] {
        give(&mut executor, &mut io, number, 1e5, 1e6, age_s);
        let (load, bags) = executor.load(io.now, |_| true);
        let position = bags.iter().position(|bag| bag.0[0] == number).unwrap();
        assert_eq!(load.entries[position].release_s, -believed_s);
    }
}

#[test]
fn an_overrunning_task_counts_a_tenth_of_its_work() {
    for preemptive in [true, false] {
        let config = Config { preemptive, ..Config::default() };
        let (mut executor, mut io) = empty(&config);
        give(&mut executor, &mut io, 1, 1e5, 1e6, 0);
        executor.dispatch(&mut io);
        for (after_s, rest_mops) in [(50, 5e4), (89, 1.1e4), (95, 1e4), (10_000, 1e4)] {
            let (load, _) = executor.load(Time::ZERO + Duration::from_secs(after_s), |_| true);
            let rest = if preemptive { load.entries[0].left_mops() } else { load.running_mops[0] };
            assert!((rest - rest_mops).abs() < 1e-6, "{rest} Mop after {after_s} s");
        }
    }
}

#[test]
fn a_task_has_done_what_its_machine_could_do_meanwhile() {
    let (mut executor, mut io) = empty(&Config::default());
    give(&mut executor, &mut io, 1, 1e5, 1e6, 0);
    executor.dispatch(&mut io);
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let left = |executor: &Executor, seconds| executor.load(at(seconds), |_| true).0.entries[0].left_mops();
    assert!((left(&executor, 60) - 4e4).abs() < 1e-6, "1,000 Mop/s");
    executor.change_speed(100.0, at(60));
    assert!((left(&executor, 160) - 3e4).abs() < 1e-6, "{}", left(&executor, 160));
    executor.change_speed(500.0, at(160));
    assert!((left(&executor, 180) - 2e4).abs() < 1e-6, "{}", left(&executor, 180));
}

#[test]
fn the_bag_with_the_largest_stretch_decides_the_order() {
    let (mut executor, mut io) = empty(&Config { per_submitter: PerSubmitter::Off, ..Config::default() });
    // At the first bag's stretch the others are ordered by size, at the smallest stretch without it by age.
    give(&mut executor, &mut io, 1, 1e5, 2e5, 2000);
    give(&mut executor, &mut io, 2, 1e5, 1e6, 0);
    give(&mut executor, &mut io, 3, 1e5, 2e6, 1000);
    executor.dispatch(&mut io);
    assert_eq!(executor.order, [1, 2, 3].map(|number| BagId([number; 32])));
}

#[test]
fn finished_tasks_correct_an_undeclared_task_size() {
    for (number, expected) in [(9, 2.9e5), (1, 1e5)] {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        give(&mut executor, &mut io, number, 1e5, 1e6, 0);
        executor.dispatch(&mut io);
        let task = TaskId { bag: BagId([number; 32]), index: 0 };
        let outcome = TaskOutcome::Finished(Finished { work_mops: 2.9e5, ..FINISHED });
        executor.ended(task, outcome, &mut io, &config);
        assert_eq!(executor.load(io.now, |_| true).0.entries[0].task_mops, expected);
    }
}

/// A machine whose tasks take as long as declared, and the stretch that each bag was promised: that at which it was
/// accepted, or a later and larger one, since accepting a bag at a stretch may raise all other bags' up to it.
struct Machine {
    executor: Executor,
    io: Io,
    config: Config,
    /// By bag: when it came, w, the stretch it was promised, tasks that have not ended.
    promised: BTreeMap<BagId, (Time, f64, f64, u64)>,
    worst: f64,
}

impl Machine {
    fn new(config: Config) -> Self {
        let io = Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(2));
        Self { executor: Executor::new(&config), io, config, promised: BTreeMap::new(), worst: 0.0 }
    }

    /// As many of these tasks as the summary has room for at the smallest stretch at which there is room for one.
    fn receive(&mut self, number: u8, tasks: u64, task_s: f64, size_mops: f64) {
        let task_mops = task_s * self.config.speed_mops;
        let summary = self.executor.summary(&self.io);
        let most = |s_index: usize| summary.tasks(s_index, 0.0, size_mops, task_mops).min(tasks);
        let Some(s_index) = (0..STRETCH_COUNT).find(|&s_index| most(s_index) > 0) else { return };
        let tasks = most(s_index);
        let id = BagId([number; 32]);
        let stretch = STRETCHES[s_index];
        for (_, _, promised, _) in self.promised.values_mut() {
            *promised = promised.max(stretch);
        }
        self.promised.insert(id, (self.io.now, size_mops, stretch, tasks));
        let bag = BagHeader {
            id,
            submitter: contact(100 + number),
            tasks,
            task_mops,
            application_size_mops: size_mops,
            declared: true,
        };
        let (ranges, age, path) = (IntervalSet::from(0..tasks), Duration::ZERO, Path::default());
        let request = Request {
            bag,
            number: 1,
            attempt: 0,
            ranges,
            age,
            path,
            climbed: 0,
            machines: 0,
            link_kb_s: crate::link::LINK_KB_S,
            leads: false,
            copy: None,
            begins_within: None,
            ticket: 0,
            checkpoints: Box::default(),
            lines: Box::default(),
            envelope: Enclosed::default(),
            acting: None,
        };
        self.executor.queue(request, None, &mut self.io, &self.config);
        self.executor.dispatch(&mut self.io);
    }

    /// Runs until `end`; tasks end after their declared time.
    fn run_until(&mut self, end: Time) {
        loop {
            let now = self.io.now;
            let next = self.executor.places.begun().filter(|running| running.runs()).map(|running| {
                let mops = self.executor.bags.get(&running.task.bag).unwrap().bag.task_mops;
                let whole = Duration::from_secs_f64(mops / self.config.speed_mops);
                (now + whole.saturating_sub(running.active(now)), running.task)
            });
            let Some((at, task)) = next.min().filter(|(at, _)| *at <= end) else { break };
            self.io.now = at.max(now);
            let outcome = TaskOutcome::Finished(Finished { work_mops: 1.0, ..FINISHED });
            self.executor.ended(task, outcome, &mut self.io, &self.config);
            let indices = IntervalSet::from(task.index..task.index + 1);
            self.executor.acknowledged(PeerId([1; 32]), task.bag, 0, &indices, &mut self.io, &self.config);
            self.executor.dispatch(&mut self.io);
            let (released, size_mops, promised, left) = self.promised.get_mut(&task.bag).unwrap();
            *left -= 1;
            if *left == 0 {
                // A microsecond per event is lost to the clock.
                let stretch = (self.io.now.since(*released).as_secs_f64() - 1e-3) / *size_mops;
                self.worst = self.worst.max(stretch / *promised);
                self.promised.remove(&task.bag);
            }
        }
        self.io.now = end.max(self.io.now);
        self.io.effects.clear();
    }
}

/// Runs these bags; the largest stretch as a share of the promised one.
fn worst_of_promised(config: Config, bags: &[(f64, u64, f64, f64)]) -> f64 {
    let mut machine = Machine::new(config);
    for (number, &(wait_s, tasks, task_s, size_mops)) in (1..).zip(bags) {
        machine.run_until(machine.io.now + Duration::from_secs_f64(wait_s));
        machine.receive(number, tasks, task_s, size_mops);
    }
    machine.run_until(Time::ZERO + Duration::from_secs(1 << 40));
    assert!(machine.promised.is_empty(), "{:?}", machine.promised);
    machine.worst
}

#[test]
fn a_thawing_task_preempts_no_task_beyond_the_limit() {
    // One task of the second bag is frozen when the only one of the third runs, which has nothing left to begin.
    let bags = [(0.0, 1, 185.0, 185e3), (0.0, 2, 126.0, 15e6), (257.0, 1, 57.0, 57e3), (0.0, 1, 1.0, 1.1e7)];
    let worst = worst_of_promised(Config { frozen_max: 1, ..Config::default() }, &bags);
    assert!(worst <= 1.0, "{worst} of what was promised");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_executor_keeps_the_promises_of_its_summary(
        bags in prop::collection::vec((0.0..300.0_f64, 1_u64..8, 1.0..200.0_f64, 0.0..14.0_f64), 1..12),
        frozen_max in 0_u32..4, slots in prop_oneof![3 => Just(1_u32), 1 => 2_u32..4],
    ) {
        let bags: Vec<_> = bags
            .into_iter()
            .map(|(wait_s, tasks, task_s, log)| (wait_s, tasks, task_s, tasks as f64 * task_s * 1000.0 * log.exp2()))
            .collect();
        let worst = worst_of_promised(Config { frozen_max, slots, ..Config::default() }, &bags);
        prop_assert!(worst <= 1.0 + 1e-9, "{} of what was promised", worst);
    }
}

/// Every write so far is done.
fn all_durable(io: &mut Io) {
    let opened = (0..20).filter_map(|ticket| io.persisted(crate::io::Ticket(ticket)).opened).count();
    assert_eq!(opened, 0, "nothing is submitted here");
}

/// An executor with a bag of 10 tasks and one of 5, all of 100 s, whose submitter knows of them; the first runs.
fn laden(config: &Config) -> (Executor, Io) {
    let (mut executor, mut io) = empty(config);
    for (number, tasks) in [(1, 10), (2, 5)] {
        let id = BagId([number; 32]);
        let (submitter, application_size_mops) = (contact(1), 1e5 * 100.0 * f64::from(number));
        let bag = BagHeader { id, submitter, tasks, task_mops: 1e5, application_size_mops, declared: true };
        let (ranges, age, path) = (IntervalSet::from(0..tasks), Duration::ZERO, Path::default());
        executor.queue(
            Request {
                bag,
                number: 1,
                attempt: 0,
                ranges,
                age,
                path,
                climbed: 0,
                machines: 0,
                link_kb_s: crate::link::LINK_KB_S,
                leads: false,
                copy: None,
                begins_within: None,
                ticket: 0,
                checkpoints: Box::default(),
                lines: Box::default(),
                envelope: Enclosed::default(),
                acting: None,
            },
            None,
            &mut io,
            config,
        );
        all_durable(&mut io);
        let version = executor.bags.get(&id).unwrap().updates.version();
        let (submitter, term, drop) = (None, Duration::from_secs(60), IntervalSet::new());
        executor.lease(contact(1).peer, Lease { version, submitter, term, drop, ..Lease::of(id) }, &mut io, config);
    }
    executor.dispatch(&mut io);
    io.effects.clear();
    (executor, io)
}

#[test]
fn a_machine_rests_when_a_lease_asks_and_all_tasks_failed() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    let (bag, drop, rest) = (BagId([1; 32]), IntervalSet::new(), Duration::from_secs(60));
    let asked_to_rest = || Lease { term: rest, drop: drop.clone(), rest, ..Lease::of(bag) };
    let is_offered = |executor: &mut Executor, io: &Io| executor.summary(io) != Summary::unavailable();
    for failures in 0..=FAILED_IN_ROW {
        executor.lease(contact(1).peer, asked_to_rest(), &mut io, &config);
        assert_eq!(executor.resting_until().is_some(), failures == FAILED_IN_ROW, "after {failures} failures");
        executor.dispatch(&mut io);
        let task = executor.places.begun().find(|running| running.runs()).expect("one runs").task;
        let outcome = TaskOutcome::Finished(Finished { success: false, ..FINISHED });
        executor.ended(task, outcome, &mut io, &config);
        all_durable(&mut io);
    }
    let mut resting = executor.summary(&io);
    resting.longest_wait_s = Summary::unavailable().longest_wait_s;
    assert_eq!(resting, Summary::unavailable());
    assert!(executor.deadline(&io).is_some_and(|deadline| deadline <= io.now + rest));
    io.now += rest;
    executor.changed = false;
    executor.tick(&mut io, &config);
    assert!(executor.changed && executor.resting_until().is_none() && is_offered(&mut executor, &io));
}

#[test]
fn a_machine_that_cannot_start_tasks_hands_them_back_and_rests() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    let is_offered = |executor: &mut Executor, io: &Io| executor.summary(io) != Summary::unavailable();
    for tries in 1..=FAILED_STARTS_MAX {
        assert!(executor.resting_until().is_none() && is_offered(&mut executor, &io), "before try {tries}");
        executor.dispatch(&mut io);
        let task = executor.places.begun().find(|running| running.runs()).expect("one runs").task;
        executor.ended(task, TaskOutcome::NotStarted { retry_after: Duration::from_secs(1) }, &mut io, &config);
        all_durable(&mut io);
        io.now += Duration::from_secs(1);
    }
    let rest = executor.resting_until().expect("it rests");
    assert!(rest > io.now && rest <= io.now + config.lease && executor.changed);
    io.now = rest;
    executor.tick(&mut io, &config);
    assert!(executor.resting_until().is_none());
}

/// I7. A request with a later attempt does not change the attempts of the bag's other tasks.
#[test]
fn each_task_keeps_the_attempt_it_came_with() {
    let config = Config::default();
    let (mut executor, mut io) = (Executor::new(&config), Io::new(Time::ZERO, WallTime(0), contact(2)));
    let bag = BagHeader {
        id: BagId([1; 32]),
        submitter: contact(1),
        tasks: 10,
        task_mops: 1e3,
        application_size_mops: 1e4,
        declared: true,
    };
    let accept = |executor: &mut Executor, io: &mut Io, number, attempt, ranges: IntervalSet| {
        let (bag, age, path) = (bag.clone(), Duration::ZERO, Path::default());
        executor.queue(
            Request {
                bag,
                number,
                attempt,
                ranges,
                age,
                path,
                climbed: 0,
                machines: 0,
                link_kb_s: crate::link::LINK_KB_S,
                leads: false,
                copy: None,
                begins_within: None,
                ticket: 0,
                checkpoints: Box::default(),
                lines: Box::default(),
                envelope: Enclosed::default(),
                acting: None,
            },
            None,
            io,
            &config,
        );
        all_durable(io);
    };
    accept(&mut executor, &mut io, 1, 1, IntervalSet::from(0..3));
    executor.dispatch(&mut io);
    accept(&mut executor, &mut io, 2, 3, IntervalSet::from(7..8));
    accept(&mut executor, &mut io, 3, 2, IntervalSet::from(0..2));
    let mut seen = Vec::new();
    for _ in 0..4 {
        let running = executor.places.begun().find(|running| running.runs()).expect("one runs");
        let (task, attempt) = (running.task, running.attempt);
        seen.push((task.index, attempt));
        let finished = TaskOutcome::Finished(Finished { work_mops: 1e3, ..FINISHED });
        executor.ended(task, finished, &mut io, &config);
        all_durable(&mut io);
        executor.dispatch(&mut io);
    }
    assert_eq!(seen, [(0, 1), (1, 2), (2, 1), (7, 3)], "what runs keeps its own");
}

#[test]
fn declines_of_scattered_tasks_fit_in_valid_messages() {
    let config = Config { submitter_work_max: Duration::from_secs(3600), ..Config::default() };
    let (mut executor, mut io) = (Executor::new(&config), Io::new(Time::ZERO, WallTime(0), contact(2)));
    let (id, submitter, tasks, declared) = (BagId([1; 32]), contact(1), 2000, true);
    // An hour's work is three tasks; every second one is here already.
    let (task_mops, application_size_mops) = (1.2e6, 2.4e9);
    let bag = BagHeader { id, submitter, tasks, task_mops, application_size_mops, declared };
    let here: IntervalSet = (0..1000).map(|index| 2 * index..2 * index + 1).collect();
    executor.restore_held(bag.clone(), Time::ZERO, (0, &BTreeMap::new()), &here, BTreeMap::new(), &config);
    let (age, path, checkpoints) = (Duration::ZERO, Path::default(), Box::default());
    let (number, attempt, climbed, machines, leads) = (1, 0, 0, 0, true);
    let ranges = IntervalSet::from(0..2000);
    let request = Request {
        copy: None,
        begins_within: None,
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
        bag,
        number,
        attempt,
        ranges,
        age,
        path,
        climbed,
        machines,
        link_kb_s: crate::link::LINK_KB_S,
        leads,
        ticket: 0,
        checkpoints,
    };
    executor.accept(request, &mut io, &config);
    let mut declined = IntervalSet::new();
    for effect in &io.effects {
        if let Effect::Send { message: message @ Message::Decline { ranges, .. }, .. } = effect {
            assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(message));
            declined.extend_with(ranges);
        }
    }
    assert_eq!(declined, IntervalSet::from(0..2000).difference(&here));
}
