use idlewood_scheduler::BagId;
use proptest::prelude::*;

use super::*;
use crate::baseline::{Machine, Measure, Session, clairvoyant, offline_bound, speed_split};
use crate::workload::Bag;

fn at(seconds: f64) -> Time {
    Time::from_micros((seconds * 1e6).round() as i64)
}

fn bag(arrival_s: f64, tasks: u64, task_mops: f64) -> Bag {
    let (id, arrival, declared_mops) = (BagId([0; 32]), at(arrival_s), task_mops);
    Bag { id, arrival, tasks, task_mops, declared_mops, seat: None, whole: 0, first: 0, endless: None }
}

/// One-slot machines with these speeds that are always up.
fn instance(speeds: &[f64], bags: Vec<Bag>) -> Instance {
    let horizon = at(1e7);
    let sessions = vec![Session { from: Time::ZERO, to: horizon }];
    let machine = |&speed_mops: &f64| Machine { speed_mops, slots: 1, sessions: sessions.clone(), visits: Vec::new() };
    Instance { machines: speeds.iter().map(machine).collect(), bags, horizon, ..Instance::default() }
}

fn seconds(completed: &[Option<Time>]) -> Vec<f64> {
    completed.iter().map(|completed| completed.map_or(f64::NAN, |at| at.as_secs_f64())).collect()
}

const PLUS: Policy<'static> = Policy::min_cent_plus(2);

#[test]
fn one_machine_by_hand() {
    // A long bag of four tasks of 10 s, a short one at 5 s of one task of 10 s, on 10 Mop/s.
    let instance = instance(&[10.0], vec![bag(0.0, 4, 100.0), bag(5.0, 1, 100.0)]);
    assert_eq!(seconds(&schedule(&instance, Policy::FCFS)), [40.0, 50.0]);
    // Until 10 s a task of the long one runs: then the short one (15 s for 100 Mop), then the rest (50 s for 400 Mop).
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [50.0, 20.0]);
    // Frozen at 5 s; goes on at 15 s. One machine: the effective size is the paper's.
    assert_eq!(seconds(&schedule(&instance, PLUS)), [50.0, 15.0]);
    assert_eq!(seconds(&schedule(&instance, Policy::min_cent_plus(0))), [50.0, 20.0]);
}

#[test]
fn what_stands_still_behind_an_owner_begins_anew_elsewhere_and_the_first_end_counts() {
    // Two tasks of 10 s on two machines; the owner of one comes at 5 s. The other machine begins the task anew at 10 s.
    for (leaves_s, ends_s) in [(1000.0, 20.0), (8.0, 13.0), (12.0, 17.0), (17.0, 20.0)] {
        let mut instance = instance(&[10.0, 10.0], vec![bag(0.0, 2, 100.0)]);
        instance.machines[0].visits = vec![Session { from: at(5.0), to: at(leaves_s) }];
        for policy in [Policy::MIN_CENT, PLUS, Policy::FCFS, Policy::min_cent_plus_replanning(2)] {
            assert_eq!(seconds(&schedule(&instance, policy)), [ends_s], "{policy:?}, until {leaves_s}");
        }
        // Whose run is stopped is free at once: the next bag ends 10 s later, or on the other machine.
        instance.bags.push(bag(1.0, 1, 1000.0));
        let [first, second] = seconds(&schedule(&instance, Policy::FCFS))[..] else { panic!("two bags") };
        assert!(first == ends_s && second <= ends_s + 100.0, "{first} {second}");
    }
    // The owner of the only machine.
    let mut alone = instance(&[10.0], vec![bag(0.0, 1, 100.0)]);
    alone.machines[0].visits = vec![Session { from: at(5.0), to: at(50.0) }, Session { from: at(52.0), to: at(60.0) }];
    assert_eq!(seconds(&schedule(&alone, PLUS)), [63.0]);
}

#[test]
fn a_users_bags_are_one_application_for_who_knows_the_users() {
    // At 10 Mop/s, frozen at once where that is better: two bags of one user, and one of another, at the same moment.
    let mut instance = instance(&[10.0], vec![bag(0.0, 1, 100.0), bag(0.0, 1, 100.0), bag(0.0, 1, 150.0)]);
    assert_eq!(seconds(&schedule(&instance, PLUS)), [10.0, 20.0, 35.0]);
    // The second of the two weighs 200 Mop, and is due after the other user's.
    instance.submitters = vec![1, 1, 2];
    assert_eq!(seconds(&schedule(&instance, PLUS)), [10.0, 35.0, 25.0]);
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [10.0, 35.0, 25.0]);
    assert_eq!(seconds(&schedule(&instance, Policy::FCFS)), [10.0, 20.0, 35.0]);
}

#[test]
fn a_small_bag_overtakes_one_that_has_waited_longer() {
    let instance = instance(&[10.0], vec![bag(0.0, 6, 100.0), bag(29.0, 4, 10.0)]);
    // At 30 s, when a task ends, the second needs 4 s for 40 Mop and delays the first from 60 to 64 s for 600 Mop.
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [64.0, 34.0]);
}

#[test]
fn fast_machines_come_first_and_a_slow_one_is_used_when_free() {
    let instance = instance(&[10.0, 20.0], vec![bag(0.0, 1, 100.0), bag(1.0, 2, 100.0)]);
    // First at 20 Mop/s until 5 s; then the second at 10 Mop/s until 11 s, and at 20 Mop/s from 5 to 10 s.
    assert_eq!(seconds(&schedule(&instance, Policy::FCFS)), [5.0, 11.0]);
    // Two that become free at the same instant, 10 s: the fourth task goes to the fast one.
    let instance = self::instance(&[10.0, 20.0], vec![bag(0.0, 4, 100.0)]);
    assert_eq!(seconds(&schedule(&instance, Policy::FCFS)), [15.0]);
}

#[test]
fn a_machine_that_goes_down_loses_what_runs_there_and_nothing_else() {
    let mut instance = instance(&[10.0], vec![bag(0.0, 3, 100.0)]);
    instance.machines[0].sessions =
        vec![Session { from: at(0.0), to: at(15.0) }, Session { from: at(20.0), to: at(1e7) }];
    for policy in [Policy::FCFS, Policy::MIN_CENT, PLUS] {
        // 10 s, then 5 s in vain, 5 s down, and two tasks.
        assert_eq!(seconds(&schedule(&instance, policy)), [40.0], "{policy:?}");
    }
}

#[test]
fn frozen_tasks_are_lost_with_their_machine_too() {
    let mut instance = instance(&[10.0], vec![bag(0.0, 2, 1000.0), bag(50.0, 1, 10.0)]);
    instance.machines[0].sessions =
        vec![Session { from: at(0.0), to: at(50.5) }, Session { from: at(60.0), to: at(1e7) }];
    assert_eq!(seconds(&schedule(&instance, PLUS)), [261.0, 61.0]);
}

#[test]
fn a_bag_smaller_than_the_grid_is_as_wide_as_it_for_mincent_plus() {
    // Two machines of 10 Mop/s, busy until 100 s with one task each of a bag of four. At 90 s come one task of 10 s and
    // two tasks of 8 s each. By the paper's size 100 Mop against 160; by the effective one 200 against 160.
    let bags = vec![bag(0.0, 2, 1000.0), bag(90.0, 1, 100.0), bag(90.0, 2, 80.0)];
    let instance = instance(&[10.0, 10.0], bags);
    let plain = seconds(&schedule(&instance, Policy::MIN_CENT));
    assert_eq!(plain, [100.0, 110.0, 116.0]);
    let plus = seconds(&schedule(&instance, Policy::min_cent_plus(0)));
    assert_eq!(plus, [100.0, 118.0, 108.0]);
}

#[test]
fn a_lost_task_is_as_long_as_it_was_and_none_is_run_twice_or_never() {
    let mut instance = instance(&[10.0], vec![bag(0.0, 3, 200.0)]);
    instance.true_mops = vec![vec![100.0, 200.0, 300.0]];
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [60.0]);
    // The second is lost at 25 s, comes first at 30 s, and takes 20 s again.
    instance.machines[0].sessions =
        vec![Session { from: at(0.0), to: at(25.0) }, Session { from: at(30.0), to: at(1e7) }];
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [80.0]);
    let alone = offline_bound(&instance, &[30.0]);
    assert!((alone - 65.0 / 30.0).abs() < 1e-5, "600 Mop at 10 Mop/s, and 5 s down: {alone}");
}

#[test]
fn a_bag_incomplete_at_the_horizon_counts_with_the_time_so_far() {
    let mut instance = instance(&[10.0], vec![bag(0.0, 2, 100.0), bag(5.0, 10, 100.0)]);
    instance.horizon = at(30.0);
    let completed = schedule(&instance, Policy::FCFS);
    assert_eq!(completed, [Some(at(20.0)), None]);
    assert_eq!(instance.stretches(&completed, Measure::Application), [20.0 / 200.0, 25.0 / 1000.0]);
}

#[test]
fn plans_use_declared_work_and_tasks_take_their_true_work() {
    // As in the first test, but the short one declares ten times its work: so it is due no sooner than the long one.
    let mut instance = instance(&[10.0], vec![bag(0.0, 4, 100.0), bag(5.0, 1, 100.0)]);
    instance.bags[1].declared_mops = 1000.0;
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [40.0, 50.0]);
    assert_eq!(seconds(&schedule(&instance, PLUS)), [40.0, 50.0]);
    // A long one that declares a tenth of its work comes ahead of the short one, and takes its true time.
    let mut instance = self::instance(&[10.0], vec![bag(0.0, 1, 100.0), bag(5.0, 2, 100.0), bag(5.0, 1, 100.0)]);
    instance.bags[1].declared_mops = 10.0;
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [10.0, 30.0, 40.0]);
}

/// The centre does not know that a running task is longer than its bag declares.
#[test]
fn the_remaining_work_of_a_running_task_is_unknown() {
    // If it did, the last bag, which is smaller, would come first: both would wait for long.
    let declared = vec![bag(0.0, 1, 1_000.0), bag(5.0, 3, 100.0), bag(90.0, 2, 90.0)];
    let order = |true_mops: f64| {
        let mut instance = instance(&[10.0], declared.clone());
        instance.true_mops = vec![vec![true_mops], vec![100.0; 3], vec![90.0; 2]];
        let completed = seconds(&schedule(&instance, Policy::MIN_CENT));
        [completed[1] - true_mops / 10.0, completed[2] - true_mops / 10.0]
    };
    assert_eq!([order(1_000.0), order(50_000.0)], [[30.0, 48.0]; 2]);
}

#[test]
fn a_task_goes_on_from_its_last_checkpoint_on_its_machine_and_begins_anew_elsewhere() {
    let sessions = vec![Session { from: at(0.0), to: at(25.0) }, Session { from: at(30.0), to: at(1e7) }];
    let mut instance = instance(&[10.0], vec![bag(0.0, 1, 300.0)]);
    instance.machines[0].sessions = sessions.clone();
    instance.checkpoint_us = Some(10_000_000);
    for policy in [Policy::FCFS, Policy::MIN_CENT, PLUS] {
        // 20 of 25 s are kept, and 10 s are left after 5 s down.
        assert_eq!(seconds(&schedule(&instance, policy)), [40.0], "{policy:?}");
    }
    // Twice: the first 20 s count again after 12 more, of which 10 are kept.
    instance.machines[0].sessions[1].to = at(42.0);
    instance.machines[0].sessions.push(Session { from: at(50.0), to: at(1e7) });
    instance.bags[0] = bag(0.0, 1, 400.0);
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [60.0]);
    // A slower machine is free: the task begins there, for 60 s.
    let mut instance = self::instance(&[10.0, 5.0], vec![bag(0.0, 1, 300.0)]);
    instance.machines[0].sessions = sessions.clone();
    instance.checkpoint_us = Some(10_000_000);
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [85.0]);
    // Another task waits for that one: this one continues from its checkpoint.
    let mut instance = self::instance(&[10.0, 5.0], vec![bag(0.0, 2, 300.0), bag(1.0, 1, 50.0)]);
    instance.machines[0].sessions = sessions;
    instance.checkpoint_us = Some(10_000_000);
    assert_eq!(seconds(&schedule(&instance, Policy::FCFS)), [60.0, 45.0]);
    // Each of two continues where its own checkpoint is.
    let mut instance = self::instance(&[10.0, 10.0], vec![bag(0.0, 2, 300.0)]);
    instance.machines.iter_mut().for_each(|machine| {
        machine.sessions = vec![Session { from: at(0.0), to: at(25.0) }, Session { from: at(30.0), to: at(1e7) }];
    });
    instance.checkpoint_us = Some(10_000_000);
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [40.0]);
}

#[test]
fn the_smallest_bag_comes_first_however_long_another_has_waited() {
    // 300 Mop, and three times 200, at 10 Mop/s: the second freezes the first at 1 s, the others follow it.
    let bags = vec![bag(0.0, 3, 100.0), bag(1.0, 2, 100.0), bag(20.0, 2, 100.0), bag(40.0, 2, 100.0)];
    let instance = instance(&[10.0], bags);
    assert_eq!(seconds(&schedule(&instance, Policy::smallest_first(2))), [90.0, 21.0, 41.0, 61.0]);
    // At 40 s the smallest maximum stretch is (90 − 40) s / 200 Mop: the first is due at 75 s, before the last at 90 s.
    assert_eq!(seconds(&schedule(&instance, PLUS)), [70.0, 21.0, 41.0, 90.0]);
}

#[test]
fn a_task_waits_for_a_faster_slot_where_it_ends_earlier() {
    // At 10 s the fast machine takes the second task, and ends it at 20 s: the slow one would end it at 100 s.
    let instance = instance(&[10.0, 1.0], vec![bag(0.0, 2, 100.0)]);
    assert_eq!(seconds(&schedule(&instance, Policy::MIN_CENT)), [100.0]);
    assert_eq!(seconds(&schedule(&instance, Policy::min_cent_replanning())), [20.0]);
    assert_eq!(seconds(&schedule(&instance, Policy::min_cent_plus_replanning(2))), [20.0]);
    // A later bag waits behind it: 300 Mop take 300 s on the slow one, and end at 20 + 30 s on the fast.
    let more = self::instance(&[10.0, 1.0], vec![bag(0.0, 2, 100.0), bag(0.0, 1, 300.0)]);
    assert_eq!(seconds(&schedule(&more, Policy::min_cent_replanning())), [20.0, 50.0]);
}

#[test]
fn bags_are_ordered_anew_when_a_fast_machine_comes_back() {
    // At 1 Mop/s the second, half as large, is to come first; at 101 Mop/s, when the first has waited for long, it is not.
    let mut instance = instance(&[1.0, 100.0], vec![bag(0.0, 200, 1.0), bag(90.0, 100, 1.0)]);
    instance.machines[1].sessions = vec![Session { from: at(101.0), to: at(1e7) }];
    let plain = seconds(&schedule(&instance, Policy::MIN_CENT));
    let anew = seconds(&schedule(&instance, Policy::min_cent_replanning()));
    assert!(plain[1] < plain[0] && anew[0] < anew[1], "{plain:?} {anew:?}");
}

#[test]
fn at_the_limit_of_frozen_tasks_the_shorter_one_goes_on() {
    // At 1 s a task with 2 s left is frozen for one of 10 s; at 2 s comes one of 1 s, and no more may be frozen. The first goes on, and
    // the newcomer begins at 4 s instead of 11 s.
    let bags = vec![bag(0.0, 10, 30.0), bag(1.0, 1, 100.0), bag(2.0, 1, 10.0)];
    let instance = instance(&[10.0], bags);
    assert_eq!(seconds(&schedule(&instance, Policy::min_cent_plus(1))), [41.0, 11.0, 12.0]);
    assert_eq!(seconds(&schedule(&instance, Policy::min_cent_plus_replanning(1))), [41.0, 14.0, 5.0]);
    // With two it is frozen, too.
    assert_eq!(seconds(&schedule(&instance, Policy::min_cent_plus_replanning(2))), [41.0, 12.0, 3.0]);
}

#[test]
fn who_knows_what_is_to_come_keeps_time_for_it() {
    // With S = 1 the first bag is due at 20 s and the second, which comes at 10 s and needs 4 s, at 14 s: both are just met, and on one
    // machine no order is better (Horn 1974).
    let bags = vec![bag(0.0, 16, 10.0), bag(10.0, 4, 10.0), bag(15.0, 1, 50.0)];
    let instance = instance(&[10.0], bags);
    let sizes = [20.0, 4.0, 20.0];
    let found = clairvoyant(&instance, &sizes, 16);
    let stretches = |ends: &[f64]| {
        (0..3)
            .map(|number| (ends[number] - instance.bags[number].arrival.as_secs_f64()) / sizes[number])
            .fold(0.0, f64::max)
    };
    assert_eq!(stretches(&seconds(&found)), 1.0, "{:?}", seconds(&found));
}

/// Assigns each task in its order to the slot where it starts first, the fastest of those.
fn list_schedule(speeds: &[f64], bags: &[Bag]) -> Vec<f64> {
    let mut free = vec![0.0; speeds.len()];
    let mut ends = Vec::new();
    for bag in bags {
        let mut end: f64 = 0.0;
        for _ in 0..bag.tasks {
            let start = |slot: &usize| f64::max(free[*slot], bag.arrival.as_secs_f64());
            let first = (0..speeds.len()).map(|slot| start(&slot)).fold(f64::INFINITY, f64::min);
            let slots = (0..speeds.len()).filter(|slot| start(slot) == first);
            let slot = slots.reduce(|one, other| if speeds[other] > speeds[one] { other } else { one }).unwrap();
            free[slot] = first + bag.task_mops / speeds[slot];
            end = end.max(free[slot]);
        }
        ends.push(end);
    }
    ends
}

fn bags(most: usize) -> impl Strategy<Value = Vec<Bag>> {
    let bag = (0.0..50.0_f64, 1_u64..9, 10.0..500.0_f64);
    prop::collection::vec(bag, 1..most).prop_map(|mut list| {
        list.sort_by(|one, other| one.0.total_cmp(&other.0));
        list.into_iter().map(|(arrival_s, tasks, task_mops)| self::bag(arrival_s, tasks, task_mops)).collect()
    })
}

/// Times up and down, one after the other, from the start.
fn sessions() -> impl Strategy<Value = Vec<Session>> {
    prop::collection::vec((20.0..200.0_f64, 1.0..60.0_f64), 0..4).prop_map(|list| {
        let mut from = 0.0;
        let mut sessions = Vec::new();
        for (up_s, down_s) in list {
            sessions.push(Session { from: at(from), to: at(from + up_s) });
            from += up_s + down_s;
        }
        sessions.push(Session { from: at(from), to: at(1e7) });
        sessions
    })
}

fn instances() -> impl Strategy<Value = Instance> {
    let machine = (1.0..40.0_f64, 1_u32..3, sessions());
    (prop::collection::vec(machine, 1..5), bags(8)).prop_map(|(machines, bags)| {
        let machine = |(speed_mops, slots, sessions)| Machine { speed_mops, slots, sessions, visits: Vec::new() };
        Instance {
            machines: machines.into_iter().map(machine).collect(),
            bags,
            horizon: at(1e7),
            ..Instance::default()
        }
    })
}

/// Whether the work released and due within any interval fits the machines' speed there (Horn 1974), computed from the
/// sessions themselves.
fn fits(instance: &Instance, sizes: &[f64], stretch: f64) -> bool {
    let release = |number: usize| instance.bags[number].arrival.as_secs_f64();
    let due = |number: usize| release(number) + stretch * sizes[number];
    let overlap = |session: &Session, from: f64, to: f64| {
        (session.to.as_secs_f64().min(to) - session.from.as_secs_f64().max(from)).max(0.0)
    };
    let numbers = || 0..instance.bags.len();
    numbers().all(|first| {
        numbers().all(|last| {
            let (from, to) = (release(first), due(last));
            let inside = numbers().filter(|&number| release(number) >= from && due(number) <= to);
            let work: f64 = inside.map(|number| instance.bags[number].application_size_mops()).sum();
            let all = instance.machines.iter().flat_map(|machine| {
                let speed = machine.speed_mops * f64::from(machine.slots);
                machine.sessions.iter().map(move |session| speed * overlap(session, from, to))
            });
            work <= all.sum::<f64>() * (1.0 + 1e-9)
        })
    })
}

/// The earliest moment by which machines of these speeds can have done so many equal tasks: the first end of a task by which all
/// of them fit.
fn makespan(speeds: &[f64], tasks: u64, task_mops: f64) -> f64 {
    let done_by = |at_s: f64| -> u64 { speeds.iter().map(|speed| (at_s * speed / task_mops + 1e-9) as u64).sum() };
    let ends = speeds.iter().flat_map(|speed| (1..=tasks).map(move |number| number as f64 * task_mops / speed));
    ends.filter(|end| done_by(*end) >= tasks).fold(f64::INFINITY, f64::min)
}

/// The smallest maximum stretch of bags that are there at once, over all orders of them on one machine.
fn best_of_orders(works_s: &[f64], sizes: &[f64]) -> f64 {
    fn go_on(works_s: &[f64], sizes: &[f64], done: &mut Vec<usize>, at_s: f64, worst: f64) -> f64 {
        let others: Vec<usize> = (0..works_s.len()).filter(|bag| !done.contains(bag)).collect();
        let mut best = if others.is_empty() { worst } else { f64::INFINITY };
        for bag in others {
            done.push(bag);
            let end_s = at_s + works_s[bag];
            best = best.min(go_on(works_s, sizes, done, end_s, worst.max(end_s / sizes[bag])));
            done.pop();
        }
        best
    }
    go_on(works_s, sizes, &mut Vec::new(), 0.0, 0.0)
}

proptest! {
    #[test]
    fn one_bag_alone_ends_as_early_as_it_can(speeds in prop::collection::vec(1.0..40.0_f64, 1..6), tasks in 1_u64..40) {
        let instance = instance(&speeds, vec![bag(0.0, tasks, 500.0)]);
        let expected = makespan(&speeds, tasks, 500.0);
        for policy in [Policy::min_cent_replanning(), Policy::min_cent_plus_replanning(2), Policy::judged(&[1.0], 2)] {
            let found = seconds(&schedule(&instance, policy))[0];
            prop_assert!((found - expected).abs() < 1e-3, "{:?}: {} against {}", policy, found, expected);
        }
    }

    #[test]
    fn what_is_judged_is_least_on_one_machine(
        list in prop::collection::vec((1_u64..9, 10.0..500.0_f64, 1.0..100.0_f64), 1..6),
    ) {
        let bags: Vec<Bag> = list.iter().map(|&(tasks, task_mops, _)| bag(0.0, tasks, task_mops)).collect();
        let works_s: Vec<f64> = bags.iter().map(|bag| bag.application_size_mops() / 10.0).collect();
        let sizes: Vec<f64> = list.iter().map(|of| of.2).collect();
        let instance = instance(&[10.0], bags);
        let best = best_of_orders(&works_s, &sizes);
        // Each bag that comes at this moment may freeze the one before.
        for completed in [schedule(&instance, Policy::judged(&sizes, 6)), clairvoyant(&instance, &sizes, 6)] {
            let ends = seconds(&completed);
            let worst = ends.iter().zip(&sizes).map(|(end, size)| end / size).fold(0.0, f64::max);
            prop_assert!((worst / best - 1.0).abs() < 1e-3, "{} against {}", worst, best);
        }
    }

    #[test]
    fn nobody_on_line_is_better_than_who_knows_what_is_to_come(instance in instances()) {
        let sizes = instance.sizes(Measure::Dedicated);
        let largest = |completed: &[Option<Time>]| {
            instance.stretches(completed, Measure::Dedicated).into_iter().fold(0.0, f64::max)
        };
        let best = largest(&clairvoyant(&instance, &sizes, 2));
        prop_assert!(best >= offline_bound(&instance, &sizes) * (1.0 - 1e-4));
        for policy in [Policy::MIN_CENT, PLUS, Policy::judged(&sizes, 2), Policy::smallest_first(2)] {
            prop_assert!(largest(&schedule(&instance, policy)) >= best, "{:?}", policy);
        }
        prop_assert!(largest(&speed_split(&instance, 2)) >= best);
    }

    #[test]
    fn fcfs_is_list_scheduling(speeds in prop::collection::vec(1.0..40.0_f64, 1..5), bags in bags(6)) {
        let expected = list_schedule(&speeds, &bags);
        let found = seconds(&schedule(&instance(&speeds, bags), Policy::FCFS));
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert!((found - expected).abs() < 1e-4, "{} against {}", found, expected);
        }
    }

    #[test]
    fn the_bound_is_where_the_work_of_every_interval_just_fits(instance in instances(), measure in 0..3) {
        let measure = [Measure::Application, Measure::Effective, Measure::Dedicated][measure as usize];
        let sizes = instance.sizes(measure);
        let bound = offline_bound(&instance, &sizes);
        let fastest = instance.machines.iter().map(|machine| machine.speed_mops).fold(0.0, f64::max);
        let alone = instance.bags.iter().zip(&sizes).map(|(bag, size)| bag.task_mops / fastest / size).fold(0.0, f64::max);
        prop_assert!(bound >= alone);
        prop_assert!(fits(&instance, &sizes, bound * (1.0 + 1e-6)), "too small");
        prop_assert!(bound <= alone * (1.0 + 1e-9) || !fits(&instance, &sizes, bound * (1.0 - 1e-6)), "too large");
    }

    #[test]
    fn no_policy_beats_the_bound_and_all_complete(instance in instances()) {
        let judged = instance.sizes(Measure::Dedicated);
        let plain = [Policy::FCFS, Policy::MIN_CENT, PLUS, Policy::min_cent_plus(0), Policy::smallest_first(2)];
        let (replanning, plus) = (Policy::min_cent_replanning(), Policy::min_cent_plus_replanning(1));
        for policy in plain.into_iter().chain([replanning, plus, Policy::judged(&judged, 2)]) {
            let completed = schedule(&instance, policy);
            prop_assert!(completed.iter().all(Option::is_some), "{:?} {:?}", policy, completed);
            for measure in [Measure::Application, Measure::Effective, Measure::Dedicated] {
                let sizes = instance.sizes(measure);
                let bound = offline_bound(&instance, &sizes);
                let worst = instance.stretches(&completed, measure).into_iter().fold(0.0, f64::max);
                // Schedules run in whole microseconds: each task on the way to the last end may be one short.
                let tasks: u64 = instance.bags.iter().map(|bag| bag.tasks).sum();
                let rounded = tasks as f64 * 1e-6 / sizes.iter().copied().fold(f64::INFINITY, f64::min);
                let least = bound * (1.0 - 1e-6) - rounded;
                prop_assert!(worst >= least, "{:?} {:?}: {} against {}", policy, measure, worst, bound);
            }
        }
    }

    /// On one machine with tiny tasks only the order matters.
    #[test]
    fn with_tiny_tasks_mincent_is_nearly_offline_when_all_come_at_once(list in prop::collection::vec(100_u64..900, 1..6)) {
        let bags = list.iter().map(|&tasks| bag(0.0, tasks, 1.0)).collect();
        let instance = instance(&[10.0], bags);
        let worst = |policy| {
            instance.stretches(&schedule(&instance, policy), Measure::Application).into_iter().fold(0.0, f64::max)
        };
        let bound = offline_bound(&instance, &instance.sizes(Measure::Application));
        prop_assert!(worst(Policy::MIN_CENT) <= bound * 1.01);
        prop_assert!(worst(PLUS) <= bound * 1.01);
    }
}
