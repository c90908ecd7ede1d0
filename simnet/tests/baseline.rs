//! The centralised schedulers on whole scenarios, and whether they are given what the simulation has.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::baseline::{Instance, Measure, Policy, offline_bound, schedule};
use idlewood_simnet::{Scenario, Simulation};

fn worst(instance: &Instance, policy: Policy) -> f64 {
    instance.stretches(&schedule(instance, policy), Measure::Application).into_iter().fold(0.0, f64::max)
}

#[test]
fn mincent_is_within_one_percent_of_the_bound_on_the_papers_load() {
    for (nodes, seed) in [(50, 1), (50, 2), (200, 3), (1000, 4)] {
        let instance = Instance::of(&Scenario { nodes, seed, bags: 100, ..Scenario::default() });
        let bound = offline_bound(&instance, &instance.sizes(Measure::Application));
        let ratio = worst(&instance, Policy::MinCent) / bound;
        println!("{nodes} machines, seed {seed}: {ratio}");
        assert!((1.0 - 1e-6..=1.01).contains(&ratio), "{nodes} machines, seed {seed}: {ratio}");
        // The paper's reason for another scheduler than first come, first served.
        assert!(worst(&instance, Policy::Fcfs) > 2.0 * bound);
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
