//! Laptops sleep, for an hour and for three days, and clocks jump: no task is lost, and a submitter that slept does not
//! issue everything again.

mod steps;

use std::ops::Range;
use std::time::Duration;

use idlewood_simnet::condition::Pause;
use idlewood_simnet::event_queue::HostIndex;
use idlewood_simnet::{Scenario, Simulation};

use self::steps::{delivered, step_until};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MACHINES: u32 = 4;
/// Lengths of sleep, each with its seeds: days take a while to simulate.
const SLEEPS: [(Duration, Range<u64>); 2] = [(HOUR, 1..4), (Duration::from_secs(3 * 24 * 3600), 1..2)];

/// A bag in the middle of its way, and the machine that submitted it.
fn in_mid_bag(seed: u64) -> (Simulation, HostIndex) {
    let mut scenario =
        Scenario { nodes: MACHINES, bags: 1, tasks_per_node: 10, horizon: 8 * DAY, seed, ..Scenario::default() };
    // Stewards would act, and issue what they do not hear of, while the submitter sleeps.
    scenario.peer.stewards = 0;
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    step_until(&mut simulation, |simulation| delivered(simulation) >= 5);
    let (submitter, _) = simulation.record().bags()[0].submitted.expect("it was submitted");
    assert!(delivered(&simulation) < 20, "the bag is over too soon");
    (simulation, submitter)
}

/// Asserts that everything ends, each task once; returns how many tasks were run again and how many were issued again.
#[track_caller]
fn assert_complete(mut simulation: Simulation) -> (u64, u64) {
    let report = simulation.run(|_| ());
    assert_eq!((report.lost_tasks, report.open_tasks, report.bags_closed), (0, 0, 1), "{report:?}");
    assert_eq!(report.completed_tasks, report.accepted_tasks, "{report:?}");
    let (submitter, _) = simulation.record().bags()[0].submitted.expect("it was submitted");
    let reissued = simulation.peer(submitter).expect("it is up").bags().map(|bag| bag.reissued).sum::<u64>();
    (report.started_executions - report.completed_tasks, reissued)
}

fn sleep(simulation: &mut Simulation, host: HostIndex, span: Duration) {
    // Messages to a sleeping machine are lost.
    simulation.pause(host, Pause::Lose);
    let until = simulation.progress().now + span;
    step_until(simulation, |simulation| simulation.progress().now > until);
    simulation.resume(host);
}

#[test]
fn a_submitter_sleeps_for_an_hour_or_three_days_and_nothing_is_issued_again() {
    for (span, seeds) in SLEEPS {
        for seed in seeds {
            let (mut simulation, submitter) = in_mid_bag(seed);
            let before = delivered(&simulation);
            sleep(&mut simulation, submitter, span);
            assert_eq!(delivered(&simulation), before, "nobody takes results meanwhile");
            assert_eq!(assert_complete(simulation), (0, 0), "seed {seed}: ran and were issued again after {span:?}");
        }
    }
}

#[test]
fn an_executor_sleeps_for_an_hour_or_three_days_and_others_do_its_tasks() {
    for (span, seeds) in SLEEPS {
        for seed in seeds {
            let (mut simulation, submitter) = in_mid_bag(seed);
            let executor = (0..MACHINES).find(|&host| host != submitter).expect("another machine");
            let held = simulation.peer(executor).expect("it is up").held();
            let had = held.iter().map(|held| held.waiting + held.running + held.unacknowledged).sum::<u64>();
            sleep(&mut simulation, executor, span);
            let (all, done) = (simulation.record().accepted_tasks().count(), delivered(&simulation));
            assert_eq!(done, all, "seed {seed}: nobody waits {span:?} for it");
            let (again, reissued) = assert_complete(simulation);
            assert!(
                again <= 1 && reissued <= had,
                "seed {seed}: {again} ran and {reissued} were issued again of {had}"
            );
        }
    }
}

#[test]
fn clocks_jump_both_ways_and_nothing_is_lost_or_issued_again() {
    let (hour, days) = (HOUR.as_micros() as i64, 3 * DAY.as_micros() as i64);
    for (seed, by_us) in [hour, -hour, days, -days].into_iter().enumerate() {
        let (mut simulation, submitter) = in_mid_bag(1 + seed as u64);
        for host in 0..MACHINES {
            if host % 2 == 0 || host == submitter {
                simulation.jump_clock(host, by_us);
            }
        }
        assert_eq!(assert_complete(simulation), (0, 0), "ran and were issued again after a jump of {by_us} µs");
    }
}
