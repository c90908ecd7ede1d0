//! Which begun tasks are shared out, and which unstarted ones go back.

use super::*;
use crate::bag::DeclineReason;

const BAG: BagId = BagId([1; 32]);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn request(ranges: IntervalSet, task_mops: f64, copy: Option<u32>) -> Request {
    let (tasks, application_size_mops) = (10, 1e9);
    let bag = BagHeader { id: BAG, submitter: contact(1), tasks, task_mops, application_size_mops, declared: true };
    Request {
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
        bag,
        number: ranges.first().unwrap_or(0) + 100 * ranges.len(),
        attempt: 0,
        ranges,
        age: Duration::ZERO,
        path: Path::default(),
        climbed: 0,
        machines: 0,
        link_kb_s: crate::link::LINK_KB_S,
        leads: false,
        copy,
        begins_within: None,
        ticket: 0,
        checkpoints: Box::default(),
    }
}

/// An executor with so many tasks of 100 s, the first of which has begun.
fn with_tasks(tasks: u64) -> (Executor, Io, Config) {
    let config = Config::default();
    let (mut executor, mut io) = empty(&config);
    executor.queue(request(IntervalSet::from(0..tasks), 1e5, None), None, &mut io, &config);
    executor.dispatch(&mut io);
    all_durable(&mut io);
    io.effects.clear();
    (executor, io, config)
}

/// Lets time pass, with all that is due meanwhile; returns what was shared out, and when, in seconds.
fn pass(executor: &mut Executor, io: &mut Io, config: &Config, until: Time) -> Vec<(i64, Vec<(u64, u32)>)> {
    let mut shared = Vec::new();
    loop {
        executor.tick(io, config);
        executor.dispatch(io);
        executor.assert_consistent(io.now);
        all_durable(io);
        for effect in std::mem::take(&mut io.effects) {
            if let Effect::Send { message: Message::Share { bag, tasks }, to } = effect {
                assert_eq!((bag, to.peer), (BAG, contact(1).peer));
                shared.push((io.now.as_micros() / 1_000_000, tasks.into_iter().collect()));
            }
        }
        let due = executor.deadline(io).unwrap_or(until).max(io.now + Duration::from_millis(1));
        if due > until {
            io.now = until;
            return shared;
        }
        io.now = due;
    }
}

fn waiting(executor: &Executor) -> u64 {
    executor.held().iter().map(|held| held.waiting).sum()
}

#[test]
fn a_task_behind_an_owner_who_stays_is_shared_out_until_they_leave() {
    // A task of so many seconds, when it is shared out, in seconds: five minutes are expected of a first visit.
    for (task_s, shared_s) in [(100, 0), (300, 0), (301, 301), (599, 599), (1000, 600)] {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        executor.queue(request(IntervalSet::from(0..1), f64::from(task_s) * 1e3, None), None, &mut io, &config);
        executor.dispatch(&mut io);
        executor.suspend(true, &mut io, &config);
        let end = io.now + seconds(shared_s + 45);
        let shared = pass(&mut executor, &mut io, &config, end);
        let again_s = shared_s as i64 + 30;
        assert_eq!(
            shared,
            [(shared_s as i64, vec![(0, 0)]), (again_s, vec![(0, 0)])],
            "said again, since it may be lost"
        );
        executor.resume(&mut io);
        let now = io.now;
        assert_eq!(pass(&mut executor, &mut io, &config, now + seconds(1)), [(again_s + 15, vec![])]);
    }
}

#[test]
fn past_visits_of_the_owner_say_whether_a_task_is_shared_out_at_once() {
    // Three visits of so many seconds; a task of 500 s has begun when the fourth begins. 300 s are expected of a first one.
    for (visit_s, at_once) in [(565, false), (567, true)] {
        let config = Config::default();
        let (mut executor, mut io) = empty(&config);
        for _ in 0..3 {
            executor.suspend(true, &mut io, &config);
            io.now += seconds(visit_s);
            executor.resume(&mut io);
        }
        executor.queue(request(IntervalSet::from(0..3), 5e5, None), None, &mut io, &config);
        executor.dispatch(&mut io);
        executor.suspend(true, &mut io, &config);
        let soon = io.now + seconds(1);
        assert_eq!(pass(&mut executor, &mut io, &config, soon).len(), usize::from(at_once), "{visit_s} s");
    }
}

#[test]
fn unstarted_tasks_go_back_at_once_where_there_is_another_machine() {
    for leaves in [1, 2] {
        let (mut executor, mut io, config) = with_tasks(3);
        io.leaves = leaves;
        executor.suspend(true, &mut io, &config);
        assert_eq!(waiting(&executor), if leaves > 1 { 0 } else { 2 });
        assert_eq!(executor.running(io.now).len(), 1, "the begun one stays: the owner may leave in a minute");
        // One that was on its way.
        executor.queue(request(IntervalSet::from(5..6), 1e5, None), None, &mut io, &config);
        let later = io.now + seconds(11);
        pass(&mut executor, &mut io, &config, later);
        assert_eq!(waiting(&executor), if leaves > 1 { 0 } else { 3 });
    }
}

#[test]
fn a_task_that_runs_for_twice_its_work_is_shared_out() {
    let (mut executor, mut io, config) = with_tasks(1);
    // No machine would end it sooner.
    io.mean_speed_mops = 500.0;
    let end = io.now + seconds(201);
    assert_eq!(pass(&mut executor, &mut io, &config, end), [(200, vec![(0, 0)])]);
}

#[test]
fn in_the_tail_a_task_on_a_slow_machine_is_shared_out_with_its_prediction() {
    for (mean_speed_mops, tasks, longest_wait_s, expected) in [
        (2_000.0, 1, 0, vec![(20, vec![(0, 80)])]),
        // 1.5 times as fast as the mean would take 84 s of these 80, another one of the bag waits here, or others elsewhere.
        (790.0, 1, 0, vec![]),
        (2_000.0, 2, 0, vec![]),
        (2_000.0, 1, 1, vec![]),
    ] {
        let (mut executor, mut io, config) = with_tasks(tasks);
        io.now += seconds(20);
        (io.mean_speed_mops, io.longest_wait_s) = (mean_speed_mops, longest_wait_s);
        let end = io.now + seconds(20);
        assert_eq!(pass(&mut executor, &mut io, &config, end), expected, "{mean_speed_mops} {tasks} {longest_wait_s}");
    }
}

#[test]
fn overdue_tasks_go_back() {
    let (mut executor, mut io, config) = with_tasks(2);
    // The begun one never ends: 5 times the 200 s of both.
    let end = io.now + seconds(999);
    pass(&mut executor, &mut io, &config, end);
    assert_eq!(waiting(&executor), 1);
    let end = io.now + seconds(2);
    pass(&mut executor, &mut io, &config, end);
    assert_eq!((waiting(&executor), executor.running(io.now).len()), (0, 1));
}

#[test]
fn a_copy_is_declined_where_it_is_of_no_use() {
    let declined = |executor: &mut Executor, io: &mut Io, request: Request| {
        let before = executor.held_ranges(BAG);
        executor.queue(request, None, io, &Config::default());
        let declines = std::mem::take(&mut io.effects).into_iter().filter_map(|effect| match effect {
            Effect::Send { message: Message::Decline { ranges, reason: DeclineReason::Copy, .. }, .. } => Some(ranges),
            _ => None,
        });
        let declines: Vec<_> = declines.collect();
        (declines, executor.held_ranges(BAG).difference(&before))
    };
    let one = |index| IntervalSet::from(index..index + 1);
    // This machine has begun the first, and is busy with it.
    let (mut executor, mut io, config) = with_tasks(1);
    let both = one(0).union(&one(3));
    assert_eq!(declined(&mut executor, &mut io, request(both, 1e5, Some(0))), (vec![one(0)], one(3)));
    assert_eq!(declined(&mut executor, &mut io, request(one(5), 1e5, Some(900))), (vec![one(5)], IntervalSet::new()));
    executor.suspend(true, &mut io, &config);
    assert_eq!(declined(&mut executor, &mut io, request(one(6), 1e5, Some(0))), (vec![one(6)], IntervalSet::new()));
    // An idle one takes 100 s.
    let (mut executor, mut io) = empty(&config);
    assert_eq!(declined(&mut executor, &mut io, request(one(7), 1e5, Some(99))), (vec![one(7)], IntervalSet::new()));
    assert_eq!(declined(&mut executor, &mut io, request(one(8), 1e5, Some(100))), (vec![], one(8)));
}

#[test]
fn what_would_begin_later_than_its_submitter_predicted_is_declined() {
    let taken = |executor: &mut Executor, io: &mut Io, tasks: std::ops::Range<u64>, within_s: u32| {
        let (before, ranges) = (executor.held_ranges(BAG), IntervalSet::from(tasks));
        let request = Request { begins_within: Some(within_s), ..request(ranges, 1e5, None) };
        executor.queue(request, None, io, &Config::default());
        let declined = std::mem::take(&mut io.effects).into_iter().filter_map(|effect| match effect {
            Effect::Send { message: Message::Decline { ranges, reason: DeclineReason::Later, .. }, .. } => {
                Some(ranges.len())
            }
            _ => None,
        });
        (executor.held_ranges(BAG).difference(&before).len(), declined.sum::<u64>())
    };
    let config = Config::default();
    let (mut executor, mut io) = empty(&config);
    // This machine is busy with another bag for 100 s.
    let other = request(IntervalSet::from(0..1), 1e5, None);
    let other = Request { bag: BagHeader { id: BagId([2; 32]), ..other.bag }, ..other };
    executor.queue(other, None, &mut io, &config);
    executor.dispatch(&mut io);
    all_durable(&mut io);
    io.effects.clear();
    assert_eq!(taken(&mut executor, &mut io, 1..3, 99), (0, 2));
    assert_eq!(taken(&mut executor, &mut io, 1..3, 101), (1, 1));
    // Now it is for 200 s, but the submitter knows of its own task.
    assert_eq!(taken(&mut executor, &mut io, 4..7, 201), (2, 1));
    executor.suspend(true, &mut io, &config);
    io.effects.clear();
    assert_eq!(taken(&mut executor, &mut io, 8..9, 10_000), (0, 1));
    // An idle one begins with one at once.
    let (mut executor, mut io) = empty(&config);
    assert_eq!(taken(&mut executor, &mut io, 0..2, 0), (1, 1));
}
