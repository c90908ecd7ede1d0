//! Submitters that come and go, with stewards that act for them (docs/adr/0041) and without: nothing is lost, and the last tasks of bags
//! end sooner.

use std::time::Duration;

use idlewood_simnet::{Report, Scenario, Simulation};

fn run(seed: u64, stewards: u32) -> (Report, Duration) {
    let mut scenario = Scenario {
        nodes: 10,
        bags: 2,
        tasks_per_node: 8,
        seed,
        churn: Some(Duration::from_secs(600)),
        downtime: Duration::from_secs(1800),
        horizon: Duration::from_secs(12 * 3600),
        ..Scenario::default()
    };
    scenario.peer.stewards = stewards;
    scenario.peer.kept_bags_max = 64;
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    let ends = simulation
        .record()
        .bags()
        .iter()
        .map(|bag| bag.ended.map_or(Duration::from_secs(12 * 3600), |ended| ended.since(bag.bag.arrival)));
    let sum = ends.sum();
    (report, sum)
}

#[test]
fn bags_go_on_while_their_submitters_are_away() {
    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
    for seed in 1..3 {
        for stewards in [0, 2] {
            let (report, ends) = run(seed, stewards);
            eprintln!("seed {seed}, {stewards} stewards: {:.0} s", ends.as_secs_f64());
            assert_eq!(report.lost_tasks, 0, "seed {seed}, {stewards} stewards: {report}");
            *(if stewards > 0 { &mut with } else { &mut without }) += ends;
        }
    }
    eprintln!(
        "bags end {:.0} s after their arrival in sum, {:.0} s without stewards",
        with.as_secs_f64(),
        without.as_secs_f64()
    );
    assert!(with < without, "{with:?} with stewards, {without:?} without");
}
