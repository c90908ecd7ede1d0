//! I8: each router's summary is that of the leaves below it, within the staleness. See `simnet::invariant::i8_summary`.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::invariant::i8_summary::Summaries;
use idlewood_simnet::{Scenario, Simulation};

/// Long tasks, so that machines mostly work and send nothing; machines crash now and then and come back.
fn busy(seed: u64, nodes: u32) -> Scenario {
    Scenario {
        nodes,
        bags: 3,
        tasks_per_node: 2,
        seed,
        churn: Some(Duration::from_secs(1_200)),
        downtime: Duration::from_secs(120),
        loss_percent: 2.0,
        duplicate_percent: 5.0,
        reorder_percent: 5.0,
        horizon: Duration::from_secs(3_600),
        ..Scenario::default()
    }
}

#[test]
fn routers_know_what_the_leaves_below_them_offer() {
    let mut compared = 0;
    for (seed, nodes) in [(1, 3), (2, 7), (3, 12), (4, 20), (5, 20)] {
        let mut simulation = Simulation::new(busy(seed, nodes)).expect("a valid scenario");
        let mut summaries = Summaries::default();
        let end = Time::ZERO + Duration::from_secs(1_800);
        let mut look = Time::ZERO;
        while look < end {
            look += Duration::from_secs(1);
            while simulation.step(look) {
                summaries.stepped(&simulation);
            }
            summaries.check(&simulation).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        }
        compared += summaries.compared;
    }
    assert!(compared > 1_000, "{compared} comparisons are too few to show anything");
}
