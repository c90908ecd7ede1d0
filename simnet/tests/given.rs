//! Bags and machines that a scenario gives one by one, and faults at given moments.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::scenario::{GivenBag, GivenMachine, Workload};
use idlewood_simnet::{Scenario, Simulation};

fn seconds(of: f64) -> Duration {
    Duration::from_secs_f64(of)
}

/// Three machines of 1,000 Mop/s but for one of 500, and one bag at the second.
fn three(bag: GivenBag) -> Simulation {
    let scenario = Scenario {
        nodes: 3,
        speed_mops_min: 1_000,
        speed_mops_max: 1_000,
        latency_ms: 10,
        workload: Workload::Given,
        given_bags: vec![bag],
        given_machines: vec![GivenMachine { speed_mops: Some(500.0), ..GivenMachine::of(2) }],
        owner_idle: seconds(1.0),
        ..Scenario::default()
    };
    Simulation::new(scenario).expect("a valid scenario")
}

fn bag(tasks: u64) -> GivenBag {
    GivenBag {
        at: seconds(3.0),
        submitter: 1,
        tasks,
        task_mops: 2_000.0,
        output_bytes: Some(10),
        rounds: None,
        endless: None,
    }
}

/// When the bag ended, after it had arrived, in seconds.
fn to_the_end(simulation: &mut Simulation) -> f64 {
    while simulation.record().bags()[0].completed.is_none() && simulation.step(Time::MAX) {}
    let record = &simulation.record().bags()[0];
    record.completed.expect("it ends").since(record.bag.arrival).as_secs_f64()
}

fn advance(simulation: &mut Simulation, after_s: f64) {
    let until = simulation.scenario().first_arrival() + seconds(after_s);
    while simulation.step(until) {}
}

#[test]
fn a_given_bag_is_submitted_where_and_when_it_is_given() {
    let mut simulation = three(bag(5));
    let took_s = to_the_end(&mut simulation);
    let record = &simulation.record().bags()[0];
    assert_eq!(record.bag.arrival, simulation.scenario().first_arrival() + seconds(3.0));
    assert_eq!(record.submitted, Some((1, record.bag.arrival)));
    // Tasks of 2 s on two machines, of 4 s on the third.
    assert!((4.0..4.5).contains(&took_s), "{took_s}");
}

#[test]
fn a_machine_crashes_for_as_long_as_is_said() {
    let mut simulation = three(bag(1));
    advance(&mut simulation, 1.0);
    simulation.crash_for(0, Some(seconds(7.0)));
    let is_up = |simulation: &Simulation| simulation.peer(0).is_some();
    assert!(!is_up(&simulation));
    advance(&mut simulation, 7.9);
    assert!(!is_up(&simulation));
    advance(&mut simulation, 8.1);
    assert!(is_up(&simulation));
}

#[test]
fn tasks_stand_still_while_owners_are_said_to_be_there() {
    let mut simulation = three(bag(5));
    advance(&mut simulation, 4.0);
    (0..3).for_each(|host| simulation.owner(host, true));
    advance(&mut simulation, 14.0);
    (0..3).for_each(|host| simulation.owner(host, false));
    let took_s = to_the_end(&mut simulation);
    // Ten seconds, and the one after which an owner counts as away. Unstarted tasks have gone from machine to machine meanwhile, so that
    // some machine has more of them than its share: of five tasks each, so many as take five seconds at most.
    assert!((15.0..20.0).contains(&took_s), "{took_s}");
}
