//! I7: no (request, path) is executed twice in one life of a peer. See `simnet::invariant::i7_once`.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::condition::Pause;
use idlewood_simnet::invariant::Violation;
use idlewood_simnet::invariant::i7_once::Once;
use idlewood_simnet::{Scenario, Simulation};

/// Machines crash, links lose, duplicate and delay messages, lids are shut; bags have to be issued again.
fn restless(seed: u64) -> Scenario {
    Scenario {
        nodes: 10,
        bags: 4,
        tasks_per_node: 3,
        seed,
        churn: Some(Duration::from_secs(900)),
        loss_percent: 3.0,
        duplicate_percent: 30.0,
        reorder_percent: 20.0,
        reorder_ms: 20_000,
        horizon: Duration::from_secs(12 * 3600),
        ..Scenario::default()
    }
}

#[test]
fn no_leaf_executes_a_request_twice_under_all_faults() {
    hold(Once::started);
}

#[test]
fn no_router_executes_a_request_twice_under_all_faults() {
    hold(Once::sent_down);
}

#[track_caller]
fn hold(check: fn(&mut Once, &Simulation) -> Result<(), Violation>) {
    let mut deeds = 0;
    for seed in 1..=5 {
        let scenario = restless(seed);
        let mut simulation = Simulation::new(scenario.clone()).expect("a valid scenario");
        let mut once = Once::default();
        let mut next = Duration::from_secs(60);
        while simulation.record().open_bags() > 0 && simulation.step(Time::ZERO + scenario.horizon) {
            check(&mut once, &simulation).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
            if simulation.now().since(Time::ZERO) > next {
                let host = (next.as_secs() / 60 % u64::from(scenario.nodes)) as u32;
                simulation.pause(host, Pause::Queue);
                simulation.resume((host + 1) % scenario.nodes);
                simulation.jump_clock((host + 2) % scenario.nodes, 20_000_000);
                next += Duration::from_secs(60);
            }
        }
        deeds += once.deeds();
    }
    assert!(deeds > 300, "{deeds} deeds are too few to show anything");
}
