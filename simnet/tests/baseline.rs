//! The centralised schedulers on whole scenarios, and whether they are given the same input as the simulation.

use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::baseline::{Instance, Measure, Policy, offline_bound, schedule};
use idlewood_simnet::scenario::Workload;
use idlewood_simnet::workload::ObservedBag;
use idlewood_simnet::{Scenario, Simulation};

fn worst(instance: &Instance, policy: Policy<'_>) -> f64 {
    instance.stretches(&schedule(instance, policy), Measure::Application).into_iter().fold(0.0, f64::max)
}

#[test]
fn mincent_is_within_one_percent_of_the_bound_on_the_papers_load() {
    for (nodes, seed) in [(50, 1), (50, 2), (200, 3), (1000, 4)] {
        let instance = Instance::of(&Scenario { nodes, seed, bags: 100, ..Scenario::default() });
        let bound = offline_bound(&instance, &instance.sizes(Measure::Application));
        let ratio = worst(&instance, Policy::MIN_CENT) / bound;
        println!("{nodes} machines, seed {seed}: {ratio}");
        assert!((1.0 - 1e-6..=1.01).contains(&ratio), "{nodes} machines, seed {seed}: {ratio}");
        // The paper's reason for another scheduler than first come, first served.
        assert!(worst(&instance, Policy::FCFS) > 2.0 * bound);
    }
}

#[test]
fn machines_are_up_in_the_instance_exactly_when_they_are_in_the_simulation() {
    let scenario = Scenario {
        nodes: 12,
        bags: 1,
        churn: Some(Duration::from_secs(200)),
        downtime: Duration::from_secs(40),
        ..Scenario::default()
    };
    let instance = Instance::of(&scenario);
    let mut simulation = Simulation::new(scenario).expect("valid");
    let (mut downs, mut until) = (0, Time::ZERO);
    while until < Time::ZERO + Duration::from_secs(1500) {
        until += Duration::from_millis(500);
        while simulation.step(until) {}
        let is_up = |host: &u32| {
            let sessions = &instance.machines[*host as usize].sessions;
            sessions.iter().any(|session| session.from <= until && until < session.to)
        };
        let expected: Vec<u32> = (0..12).filter(is_up).collect();
        let mut up = simulation.up().to_vec();
        up.sort_unstable();
        downs += 12 - up.len();
        assert_eq!(up, expected, "at {until:?}");
    }
    assert!(downs > 100, "machines were hardly ever down");
}

/// Failures leave as much of a task to the centralised schedulers as to ours.
#[test]
fn centralised_schedulers_gain_from_checkpoints_too() {
    let scenario = Scenario {
        nodes: 6,
        bags: 4,
        tasks_per_node: 2,
        task_mops_min: 4e6,
        task_mops_max: 8e6,
        churn: Some(Duration::from_secs(3600)),
        downtime: Duration::from_secs(60),
        ..Scenario::default()
    };
    let checkpoint_interval = Some(Duration::from_secs(60));
    let of = |scenario: Scenario| worst(&Instance::of(&scenario), Policy::MIN_CENT);
    let without = of(scenario.clone());
    let with = of(Scenario { checkpoint_interval, ..scenario.clone() });
    assert!(with < 0.8 * without, "{with} with them, {without} without");
    assert_eq!(of(Scenario { checkpoint_interval, queue_lost: true, ..scenario }), without);
}

#[test]
fn a_bag_is_the_same_work_in_a_log_and_in_a_workflow() {
    let bound = |workload| {
        let tasks_s = [[1.0; 7].as_slice(), &[1000.0]].concat();
        let bag = ObservedBag { arrival: Duration::ZERO, tasks_s, outputs_bytes: Vec::new(), user: None };
        let mut scenario = Scenario { nodes: 4, bags: 1, workload, ..Scenario::default() };
        scenario.inputs.bags = Some(Arc::new(vec![bag]));
        let instance = Instance::of(&scenario);
        let sizes = instance.sizes(Measure::Application);
        (offline_bound(&instance, &sizes) * sizes[0], worst(&instance, Policy::MIN_CENT) * sizes[0])
    };
    let (bound_s, mincent_s) = bound(Workload::Workflows);
    assert_eq!((bound_s, mincent_s), bound(Workload::Log));
    // Run times are meant for 2,000 Mop/s; no machine is faster than 3,000, and the long task is not divided.
    assert!((600.0..=mincent_s).contains(&bound_s) && mincent_s < 2100.0, "{bound_s} {mincent_s}");
}

#[test]
fn arrivals_and_ends_after_the_horizon_are_not_counted_as_in_the_simulation() {
    for horizon_s in [31, 40, 200, 4_000] {
        let horizon = Duration::from_secs(horizon_s);
        let scenario = Scenario { nodes: 3, bags: 20, tasks_per_node: 4, horizon, ..Scenario::default() };
        let mut simulation = Simulation::new(scenario.clone()).expect("valid");
        let report = simulation.run(|_| ());
        let came = report.bags.iter().filter(|bag| bag.arrival_s < horizon.as_secs_f64()).count();
        let compared: std::collections::BTreeMap<String, f64> =
            idlewood_simnet::experiment::compare(&simulation).into_iter().collect();
        assert_eq!(Instance::of(&scenario).bags.len(), came);
        if came == 0 {
            assert!(compared["ratio_offline"].is_nan(), "{compared:?}");
            continue;
        }
        assert!((compared["mean_stretch"] / report.mean_stretch - 1.0).abs() < 1e-9, "{compared:?}");
        for name in ["max_stretch", "max_stretch_mincent", "max_stretch_mincent_plus", "max_stretch_fcfs"] {
            let ratio = compared[name] / compared["max_stretch_offline"];
            assert!(ratio > 1.0 - 1e-6, "{name} is {ratio} of the bound with a horizon of {horizon_s} s");
        }
    }
}
