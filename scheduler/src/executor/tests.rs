//! Tests of the executor: what its load says, and that what it promises is kept.

mod submitters;

use std::collections::BTreeMap;

use idlewood_overlay::WallTime;
use proptest::prelude::*;

use super::*;
use crate::bag::{BlobId, Finished, Path};
use crate::message::Asker;
use crate::queue::Entry;
use crate::summary::{STRETCH_COUNT, STRETCHES, Summary};

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
                leads: false,
                checkpoints: Box::default(),
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
fn with_preemption_what_was_begun_is_left_of_its_bag() {
    let (executor, io) = executor(&Config::default());
    let (load, _) = executor.load(io.now, |_| true);
    assert_eq!(load.validate(), Ok(()));
    assert!(load.preemptive && load.running_mops.is_empty());
    let left: Vec<f64> = load.entries.iter().map(|entry| entry.left).collect();
    assert!((left[0] - 1.6).abs() < 1e-9 && (left[1] - 0.5).abs() < 1e-9, "{left:?}");
}

#[test]
fn where_no_more_can_be_frozen_what_runs_comes_first() {
    let (executor, io) = executor(&Config { frozen_max: 1, ..Config::default() });
    let (load, _) = executor.load(io.now, |_| true);
    assert_eq!((load.validate(), load.preemptive), (Ok(()), false));
    assert!((load.running_mops[0] - 5000.0).abs() < 1e-6, "{:?}", load.running_mops);
    assert!((load.entries[0].left - 1.6).abs() < 1e-9 && load.entries[1].left == 0.0, "{:?}", load.entries);
}

#[test]
fn without_preemption_what_runs_comes_first() {
    let (executor, io) = executor(&Config { preemptive: false, ..Config::default() });
    let (load, _) = executor.load(io.now, |_| true);
    assert_eq!((load.validate(), load.preemptive), (Ok(()), false));
    assert!((load.running_mops[0] - 55_000.0).abs() < 1e-6, "{:?}", load.running_mops);
    assert_eq!(load.entries.iter().map(|entry| entry.left).collect::<Vec<_>>(), [1.0, 1.0]);
}

#[test]
fn on_several_slots_each_part_is_an_entry() {
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
        leads: false,
        checkpoints: Box::default(),
    };
    executor.queue(request, None, io, &Config::default());
}

fn empty(config: &Config) -> (Executor, Io) {
    (Executor::new(config), Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(2)))
}

#[test]
fn an_age_is_believed_up_to_its_bound() {
    let (mut executor, mut io) = empty(&Config::default());
    for (number, age_s, believed_s) in [(1, 1000, 1000.0), (2, 90 * 86_400, 7_776_000.0), (3, 1 << 40, 7_776_000.0)] {
        give(&mut executor, &mut io, number, 1e5, 1e6, age_s);
        let (load, bags) = executor.load(io.now, |_| true);
        let position = bags.iter().position(|bag| bag.0[0] == number).unwrap();
        assert_eq!(load.entries[position].release_s, -believed_s);
    }
}

#[test]
fn a_task_that_runs_for_too_long_still_counts() {
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
fn a_hopeless_bag_decides_the_order_of_the_others_only_in_the_plain_order() {
    for (lexicographic, expected) in [(false, [1, 2, 3]), (true, [1, 3, 2])] {
        let per_submitter = PerSubmitter::Off;
        let (mut executor, mut io) = empty(&Config { lexicographic, per_submitter, ..Config::default() });
        // At the stretch of the first the others stand by their sizes, at the least behind it by their ages.
        give(&mut executor, &mut io, 1, 1e5, 2e5, 2000);
        give(&mut executor, &mut io, 2, 1e5, 1e6, 0);
        give(&mut executor, &mut io, 3, 1e5, 2e6, 1000);
        executor.dispatch(&mut io);
        assert_eq!(executor.order, expected.map(|number| BagId([number; 32])), "lexicographic: {lexicographic}");
    }
}

#[test]
fn finished_tasks_correct_a_work_that_nobody_declared() {
    for (number, expected) in [(9, 2.9e5), (1, 1e5)] {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        give(&mut executor, &mut io, number, 1e5, 1e6, 0);
        executor.dispatch(&mut io);
        let task = TaskId { bag: BagId([number; 32]), index: 0 };
        let output = crate::bag::BlobId([1; 32]);
        let outcome = TaskOutcome::Finished(Finished {
            success: true,
            crashed: false,
            output,
            output_bytes: 1,
            work_mops: 2.9e5,
            exit_code: None,
        });
        executor.ended(task, outcome, &mut io, &config);
        assert_eq!(executor.load(io.now, |_| true).0.entries[0].task_mops, expected);
    }
}

/// A machine whose tasks take as long as they say, and the stretch that each bag was promised: that at which it was
/// taken, or a later and larger one, since whoever comes raises everybody's up to the stretch that is granted.
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
        let summary = self.executor.summary(self.io.now);
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
            leads: false,
            checkpoints: Box::default(),
        };
        self.executor.queue(request, None, &mut self.io, &self.config);
        self.executor.dispatch(&mut self.io);
    }

    /// Until then; what runs ends when it has run for as long as it says.
    fn run_until(&mut self, end: Time) {
        loop {
            let now = self.io.now;
            let next = self.executor.places.iter().flatten().filter(|running| running.runs()).map(|running| {
                let mops = self.executor.held.get(&running.task.bag).unwrap().bag.task_mops;
                let whole = Duration::from_secs_f64(mops / self.config.speed_mops);
                (now + whole.saturating_sub(running.active(now)), running.task)
            });
            let Some((at, task)) = next.min().filter(|(at, _)| *at <= end) else { break };
            self.io.now = at.max(now);
            let output = crate::bag::BlobId([1; 32]);
            let outcome = TaskOutcome::Finished(Finished {
                success: true,
                crashed: false,
                output,
                output_bytes: 1,
                work_mops: 1.0,
                exit_code: None,
            });
            self.executor.ended(task, outcome, &mut self.io, &self.config);
            let indices = IntervalSet::from(task.index..task.index + 1);
            self.executor.acknowledged(PeerId([1; 32]), task.bag, &indices, &mut self.io, &self.config);
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

fn kept(config: Config, bags: &[(f64, u64, f64, f64)]) -> f64 {
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
fn what_runs_and_can_no_longer_be_frozen_is_not_frozen_for_what_thaws() {
    // One task of the second bag is frozen when the only one of the third runs, which has nothing left to begin.
    let bags = [(0.0, 1, 185.0, 185e3), (0.0, 2, 126.0, 15e6), (257.0, 1, 57.0, 57e3), (0.0, 1, 1.0, 1.1e7)];
    for lexicographic in [false, true] {
        let worst = kept(Config { frozen_max: 1, lexicographic, ..Config::default() }, &bags);
        assert!(worst <= 1.0, "{worst} of what was promised, lexicographic: {lexicographic}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_the_summary_promises_the_executor_keeps(
        bags in prop::collection::vec((0.0..300.0_f64, 1_u64..8, 1.0..200.0_f64, 0.0..14.0_f64), 1..12),
        frozen_max in 0_u32..4, lexicographic in any::<bool>(), slots in prop_oneof![3 => Just(1_u32), 1 => 2_u32..4],
    ) {
        let bags: Vec<_> = bags
            .into_iter()
            .map(|(wait_s, tasks, task_s, log)| (wait_s, tasks, task_s, tasks as f64 * task_s * 1000.0 * log.exp2()))
            .collect();
        let worst = kept(Config { frozen_max, lexicographic, slots, ..Config::default() }, &bags);
        prop_assert!(worst <= 1.0 + 1e-9, "{} of what was promised", worst);
    }
}

/// Every write so far is done.
fn all_durable(io: &mut Io) {
    let opened = (0..20).filter_map(|ticket| io.persisted(crate::io::Ticket(ticket))).count();
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
                leads: false,
                checkpoints: Box::default(),
            },
            None,
            &mut io,
            config,
        );
        all_durable(&mut io);
        let version = executor.held.get(&id).unwrap().version;
        let (submitter, term, drop) = (None, Duration::from_secs(60), IntervalSet::new());
        executor.lease(
            contact(1).peer,
            Lease { bag: id, version, submitter, term, drop, rest: Duration::ZERO },
            &mut io,
            config,
        );
    }
    executor.dispatch(&mut io);
    io.effects.clear();
    (executor, io)
}

fn asker(speed_mops: f64, stretch: f64) -> Asker {
    Asker { contact: contact(7), speed_mops, slots: 1, stretch }
}

/// The offers sent since: bag and ranges.
fn offers(io: &mut Io) -> Vec<(u8, IntervalSet)> {
    let sent = io.effects.drain(..).filter_map(|effect| match effect {
        Effect::Send { to, message: Message::Offer { bag, ranges, to: idle, .. } } => {
            assert_eq!((to, idle), (contact(1).into(), contact(7)));
            Some((bag.0[0], ranges))
        }
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_machine_of_the_same_speed_gets_half_of_what_has_not_begun_of_each_bag() {
    let config = Config::default();
    // 9 and 5 wait; what a share is short of a whole task is carried over to the next bag.
    for (speed_mops, expected) in
        [(1000.0, vec![(1, 6..10), (2, 2..5)]), (3000.0, vec![(1, 4..10), (2, 1..5)]), (100.0, vec![(2, 4..5)])]
    {
        let (mut executor, mut io) = laden(&config);
        executor.give(&asker(speed_mops, 0.0), &mut io, &config);
        let expected: Vec<_> = expected.into_iter().map(|(bag, range)| (bag, IntervalSet::from(range))).collect();
        assert_eq!(offers(&mut io), expected);
        // One at a time.
        executor.give(&asker(speed_mops, 0.0), &mut io, &config);
        assert!(offers(&mut io).is_empty());
    }
}

#[test]
fn a_machine_with_a_smaller_stretch_gets_of_the_bottleneck_what_levels_both() {
    let config = Config::default();
    // The first bag takes 1000 s and has a stretch of 1e-4; the second, done after 1500 s, one of 7.5e-5.
    let nothing = IntervalSet::new();
    let last = |tasks: u64| IntervalSet::from(10 - tasks..10);
    for (speed_mops, stretch, expected) in [
        // 500 s earlier there: a quarter of that in work here, which is two tasks and a half, makes both 750 s.
        (1000.0, 5e-5, last(2)),
        (4000.0, 5e-5, last(4)),
        (1000.0, 7e-5, last(1)),
        // A task is more than that, but done there before those here; and one that is not.
        (1000.0, 8.5e-5, last(1)),
        (1000.0, 9.2e-5, nothing.clone()),
        (4000.0, 9.2e-5, last(1)),
        (1e9, 9.96e-5, nothing.clone()),
        (1e9, 2e-4, nothing),
        // What begins first here is not in it.
        (1e9, 1e-9, last(9)),
    ] {
        let (mut executor, mut io) = laden(&config);
        executor.give(&asker(speed_mops, stretch), &mut io, &config);
        let expected: Vec<_> =
            Some(expected).filter(|given| !given.is_empty()).map(|given| (1, given)).into_iter().collect();
        assert_eq!(offers(&mut io), expected, "{speed_mops} {stretch}");
    }
    // As fast with sixteen slots a task takes as long there as on one of them.
    for (slots, given) in [(1, 1), (16, 0)] {
        let (mut executor, mut io) = laden(&config);
        executor.give(&Asker { slots, ..asker(4000.0, 9.2e-5) }, &mut io, &config);
        assert_eq!(offers(&mut io).len(), given, "{slots} slots");
    }
    // What is bound to this machine is not counted among what could be given.
    let (mut executor, mut io) = laden(&config);
    executor.found_checkpoints(BagId([1; 32]), &IntervalSet::from(1..6));
    executor.give(&asker(1000.0, 8.5e-5), &mut io, &config);
    assert_eq!(offers(&mut io), [(1, last(1))]);
}

#[test]
fn what_is_offered_does_not_begin_until_it_is_refused_and_is_forgotten_when_it_is_taken() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    executor.give(&asker(1000.0, 0.0), &mut io, &config);
    let given = offers(&mut io);
    let offered = |executor: &Executor| executor.held.values().map(|held| held.offered.len()).sum::<u64>();
    assert_eq!(offered(&executor), 7);
    let all = |executor: &Executor| executor.held.values().map(|held| held.ranges().len()).sum::<u64>();
    assert_eq!(all(&executor), 15, "all of it is still accounted for");
    let waiting: Vec<u64> = executor.held().iter().map(|held| held.waiting).collect();
    assert_eq!(waiting.iter().sum::<u64>(), 7, "{waiting:?}");
    // Taken.
    let (bag, ranges) = &given[0];
    let (term, drop) = (Duration::from_secs(60), ranges.clone());
    let lease = Lease { bag: BagId([*bag; 32]), version: 0, submitter: None, term, drop, rest: Duration::ZERO };
    executor.lease(contact(1).peer, lease, &mut io, &config);
    assert_eq!(all(&executor), 15 - ranges.len());
    // No answer.
    assert!(executor.deadline(&io).is_some_and(|deadline| deadline <= io.now + config.placement_timeout));
    io.now += config.placement_timeout;
    executor.tick(&mut io, &config);
    assert_eq!((offered(&executor), all(&executor)), (0, 15 - ranges.len()));
    // Where the owner is back, all of it may go.
    executor.suspend(&mut io);
    let waiting: u64 = executor.held().iter().map(|held| held.waiting).sum();
    assert!(executor.summary(io.now).longest_wait_s > 0);
    all_durable(&mut io);
    executor.give(&asker(1.0, 0.0), &mut io, &config);
    assert_eq!(offers(&mut io).iter().map(|(_, ranges)| ranges.len()).sum::<u64>(), waiting);
    assert!(!executor.is_dry(), "a machine whose owner is back asks nobody");
}

/// What has taken as long as it was to take in [`laden`].
const FINISHED: Finished = Finished {
    success: true,
    crashed: false,
    output: BlobId([1; 32]),
    output_bytes: 1,
    work_mops: 1e5,
    exit_code: None,
};

#[test]
fn only_what_time_alone_does_not_tell_is_news() {
    let config = Config::default();
    for (ran_s, is_news) in [(100, false), (95, false), (50, true), (150, true)] {
        let (mut executor, mut io) = laden(&config);
        executor.changed = false;
        io.now += Duration::from_secs(ran_s);
        let task = TaskId { bag: BagId([1; 32]), index: 0 };
        executor.ended(task, TaskOutcome::Finished(FINISHED), &mut io, &config);
        executor.dispatch(&mut io);
        assert_eq!(executor.changed, is_news, "after {ran_s} s of 100");
    }
    // A slot that nothing waits for is news even where others still run.
    for (slots, is_news) in [(14, false), (15, true)] {
        let (mut executor, mut io) = laden(&Config { slots, ..Config::default() });
        executor.changed = false;
        io.now += Duration::from_secs(100);
        let task = TaskId { bag: BagId([1; 32]), index: 0 };
        executor.ended(task, TaskOutcome::Finished(FINISHED), &mut io, &config);
        assert_eq!(executor.changed, is_news, "15 tasks on {slots} slots");
    }
    let (mut executor, mut io) = laden(&config);
    executor.changed = false;
    executor.give(&asker(1000.0, 0.0), &mut io, &config);
    assert!(executor.changed);
}

#[test]
fn one_message_renews_what_is_due_and_what_will_be_soon() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    let bags: Vec<_> = executor.held.values().map(|held| (held.bag.id, held.version)).collect();
    assert_eq!(bags.len(), 2);
    let later = executor.held.get_mut(&bags[1].0).expect("held");
    later.holding_due += Duration::from_secs(10);
    io.now += Duration::from_secs(30);
    executor.tick(&mut io, &config);
    let sent: Vec<_> = std::mem::take(&mut io.effects);
    let renewal = Message::Renewal { executor: (&contact(2)).into(), bags: bags.clone() };
    assert_eq!(sent, [Effect::Send { to: contact(1).into(), message: renewal }]);
    // Only its submitter renews, and only what was said last.
    let term = Duration::from_secs(100);
    executor.renewed(contact(3).peer, &bags, term, &mut io, &config);
    executor.renewed(contact(1).peer, &[(bags[0].0, 99)], term, &mut io, &config);
    assert!(executor.held.values().all(|held| held.holding_due <= io.now + config.repeat_after));
    executor.renewed(contact(1).peer, &bags, term, &mut io, &config);
    assert!(executor.held.values().all(|held| held.holding_due == io.now + term / 2));
    // Where the submitter asks, all is said.
    let (bag, drop) = (bags[0].0, IntervalSet::new());
    executor.lease(
        contact(1).peer,
        Lease { bag, version: 0, submitter: None, term, drop, rest: Duration::ZERO },
        &mut io,
        &config,
    );
    executor.tick(&mut io, &config);
    let said = |effect: &Effect| matches!(effect, Effect::Send { message: Message::Holding { .. }, .. });
    assert_eq!(io.effects.iter().filter(|effect| said(effect)).count(), 1);
}

/// How long an executor of a bag that takes a pace of this period, and has the grid's largest stretch or far less, waits with
/// its last result when the bag is so old.
fn last_result_waits(maximum_stretch: f64, period: Duration, age: Duration) -> Duration {
    let config = Config::default();
    let (mut executor, mut io) = empty(&config);
    io.maximum_stretch = maximum_stretch;
    give(&mut executor, &mut io, 1, 1e4, 1e6, 0);
    executor.held.get_mut(&BagId([1; 32])).unwrap().pace = Pace { period, share: 0.999 };
    executor.dispatch(&mut io);
    // Its own moment is just over.
    io.now = Time::ZERO + age;
    let finished = Finished {
        success: true,
        crashed: false,
        output: BlobId([7; 32]),
        output_bytes: 1,
        work_mops: 1e4,
        exit_code: Some(0),
    };
    executor.ended(TaskId { bag: BagId([1; 32]), index: 0 }, TaskOutcome::Finished(finished), &mut io, &config);
    executor.held.get(&BagId([1; 32])).unwrap().results_due.since(io.now)
}

/// The last result waits for its share of the submitter's link, for longer where another bag is worse off.
#[test]
fn the_last_results_wait_longer_where_another_bag_is_worse_off() {
    let (minute, age) = (Duration::from_secs(60), Duration::from_secs(100));
    let longest = |maximum_stretch, period| {
        let waits = (0..40).map(|second| last_result_waits(maximum_stretch, period, age + Duration::from_secs(second)));
        waits.max().unwrap().as_secs_f64()
    };
    // At 100 s it has a stretch of 1e-4 s/Mop.
    let (worst, spared, barely) = (longest(0.0, minute), longest(1e-3, minute), longest(1.3e-4, minute));
    assert!((0.5..=0.7).contains(&worst), "{worst} s of at most half a percent of 100 to 139 s");
    assert!((15.0..=27.8).contains(&spared), "{spared} s of at most a fifth");
    assert!((worst..spared).contains(&barely), "{barely} s: as long as it stays below the largest");
    assert!(longest(1e-3, Duration::from_secs(4)) <= 2.0, "what the link needs");
}

/// Machines that were answered at the same moment do not renew at the same moment.
#[test]
fn those_who_are_answered_together_renew_one_by_one() {
    let term = Duration::from_secs(60);
    let renewals = [3, 4, 5].map(|number| {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        io.me = contact(number).into();
        give(&mut executor, &mut io, 1, 1e4, 1e6, 0);
        let held = executor.held.get_mut(&BagId([1; 32])).unwrap();
        held.renewed(term, &io, &config);
        let first = held.holding_due;
        io.now = first;
        held.renewed(term, &io, &config);
        assert_eq!(held.holding_due.since(first), term / 2);
        first.since(Time::ZERO).as_secs_f64()
    });
    assert!(renewals.iter().all(|wait| (15.0..30.0).contains(wait)), "{renewals:?}");
    let [one, other, third] = renewals;
    assert!([one - other, other - third, third - one].iter().all(|apart| apart.abs() > 0.5), "{renewals:?}");
}

#[test]
fn a_machine_rests_when_it_is_told_to_and_all_has_failed() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    let (bag, drop, rest) = (BagId([1; 32]), IntervalSet::new(), Duration::from_secs(60));
    let told = || Lease { bag, version: 0, submitter: None, term: rest, drop: drop.clone(), rest };
    let is_offered = |executor: &mut Executor, io: &Io| executor.summary(io.now) != Summary::unavailable();
    for failures in 0..=FAILED_IN_ROW {
        executor.lease(contact(1).peer, told(), &mut io, &config);
        assert_eq!(executor.resting_until().is_some(), failures == FAILED_IN_ROW, "after {failures} failures");
        executor.dispatch(&mut io);
        let task = executor.places.iter().flatten().find(|running| running.runs()).expect("one runs").task;
        let (output, success) = (BlobId([1; 32]), false);
        let outcome = TaskOutcome::Finished(Finished {
            success,
            crashed: false,
            output,
            output_bytes: 1,
            work_mops: 1e5,
            exit_code: None,
        });
        executor.ended(task, outcome, &mut io, &config);
        all_durable(&mut io);
    }
    let mut resting = executor.summary(io.now);
    resting.longest_wait_s = Summary::unavailable().longest_wait_s;
    assert_eq!(resting, Summary::unavailable());
    assert!(executor.deadline(&io).is_some_and(|deadline| deadline <= io.now + rest));
    io.now += rest;
    executor.changed = false;
    executor.tick(&mut io, &config);
    assert!(executor.changed && executor.resting_until().is_none() && is_offered(&mut executor, &io));
}

#[test]
fn a_machine_that_cannot_start_what_it_is_given_hands_it_back_and_rests() {
    let config = Config::default();
    let (mut executor, mut io) = laden(&config);
    let is_offered = |executor: &mut Executor, io: &Io| executor.summary(io.now) != Summary::unavailable();
    for tries in 1..=NOT_STARTED_MAX {
        assert!(executor.resting_until().is_none() && is_offered(&mut executor, &io), "before try {tries}");
        executor.dispatch(&mut io);
        let task = executor.places.iter().flatten().find(|running| running.runs()).expect("one runs").task;
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

/// I7. What comes anew with a later attempt says nothing of the other tasks of its bag: each of them comes with its own.
#[test]
fn an_attempt_is_that_of_the_tasks_it_came_with() {
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
                leads: false,
                checkpoints: Box::default(),
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
        let running = executor.places.iter().flatten().find(|running| running.runs()).expect("one runs");
        let (task, attempt) = (running.task, running.attempt);
        seen.push((task.index, attempt));
        let output = BlobId([1; 32]);
        let finished = TaskOutcome::Finished(Finished {
            success: true,
            crashed: false,
            output,
            output_bytes: 1,
            work_mops: 1e3,
            exit_code: None,
        });
        executor.ended(task, finished, &mut io, &config);
        all_durable(&mut io);
        executor.dispatch(&mut io);
    }
    assert_eq!(seen, [(0, 1), (1, 2), (2, 1), (7, 3)], "what runs keeps its own");
}

/// Two bags of one task each, of a machine at 1000 Mop/s: the first is declared to take a second, the other 100 s.
fn understated(declared: bool) -> (Executor, Io) {
    let config = Config::default();
    let (mut executor, mut io) = (Executor::new(&config), Io::new(Time::ZERO, WallTime(0), contact(2)));
    for (number, task_mops) in [(1, 1e3), (2, 1e5)] {
        let (id, submitter) = (BagId([number; 32]), contact(number + 2));
        let (tasks, application_size_mops) = (2, 2.0 * task_mops);
        let bag = BagHeader { id, submitter, tasks, task_mops, application_size_mops, declared };
        let (ranges, age, path) = (IntervalSet::from(0..tasks), Duration::ZERO, Path::default());
        let (number, attempt, climbed, machines, leads) = (1, 0, 0, 0, true);
        let checkpoints = Box::default();
        let request = Request { bag, number, attempt, ranges, age, path, climbed, machines, leads, checkpoints };
        executor.queue(request, None, &mut io, &config);
    }
    all_durable(&mut io);
    executor.dispatch(&mut io);
    (executor, io)
}

fn runs(executor: &Executor) -> Vec<u8> {
    executor.places.iter().flatten().filter(|running| running.runs()).map(|running| running.task.bag.0[0]).collect()
}

#[test]
fn a_bag_that_understates_its_work_loses_its_place_ahead_of_others() {
    let config = Config::default();
    let (mut executor, mut io) = understated(true);
    assert_eq!(runs(&executor), [1], "it is said to be short");
    let wakes = |executor: &mut Executor, io: &mut Io, until_s: u64| {
        let until = Time::ZERO + Duration::from_secs(until_s);
        let mut wakes = 0;
        while let Some(due) = executor.deadline(io).filter(|&due| due <= until) {
            io.now = due.max(io.now);
            executor.tick(io, &config);
            executor.dispatch(io);
            wakes += 1;
        }
        io.now = until;
        wakes
    };
    wakes(&mut executor, &mut io, 2);
    assert_eq!((runs(&executor), executor.held()[0].times_declared), (vec![1], 1.0));
    // Until its deadline is behind the other's: twice the work it is known to be, from now on.
    let woken = wakes(&mut executor, &mut io, 400);
    assert!(woken < 100, "it is seldom looked at: {woken} times");
    assert_eq!(runs(&executor), [2]);
    let rated = executor.held()[0].times_declared;
    assert!((3.0..400.0).contains(&rated), "{rated}");
    // What finishes counts, and so a bag may clear its name.
    for _ in 0..500 {
        executor.held.get_mut(&BagId([1; 32])).expect("held").finished.0 += 1;
    }
    executor.rate(BagId([1; 32]), io.now);
    assert_eq!(executor.held()[0].times_declared, 1.0);
    // Where nothing was declared nothing is held against it.
    let (mut executor, mut io) = understated(false);
    wakes(&mut executor, &mut io, 400);
    assert_eq!((runs(&executor), executor.held()[0].times_declared), (vec![1], 1.0));
}

#[test]
fn tasks_of_different_sizes_are_honest() {
    let (mut executor, mut io) = understated(true);
    let config = Config::default();
    for (took_mops, rated) in [(2900.0, 1.0), (3100.0, 3.0)] {
        let held = executor.held.get_mut(&BagId([1; 32])).expect("held");
        held.finished = (1, took_mops);
        executor.rate(BagId([1; 32]), io.now);
        let times = executor.held()[0].times_declared;
        assert!((times - rated).abs() < 0.2, "{took_mops}: {times}");
    }
    executor.tick(&mut io, &config);
}

#[test]
fn what_is_declined_of_a_scattered_part_is_told_in_words_that_are_understood() {
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
    let request = Request { bag, number, attempt, ranges, age, path, climbed, machines, leads, checkpoints };
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
