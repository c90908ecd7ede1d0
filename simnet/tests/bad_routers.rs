//! Routers that drop, delay or misdirect what others send through them (docs/adr/0026): every bag completes, and the machines
//! above and below leave them out, and nobody else.

use std::collections::BTreeSet;
use std::time::Duration;

use idlewood_overlay::PeerId;
use idlewood_simnet::{BadRouting, Report, Scenario, Simulation};

fn scenario() -> Scenario {
    Scenario {
        nodes: 30,
        bags: 5,
        tasks_per_node: 5,
        seed: 1,
        horizon: Duration::from_secs(6 * 3600),
        ..Scenario::default()
    }
}

/// A run, and which machines others leave out at its end: those whose routers are bad, and those whose are not.
fn run(scenario: Scenario) -> (Report, [BTreeSet<PeerId>; 2]) {
    let nodes = scenario.nodes;
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    let left_out: BTreeSet<PeerId> =
        (0..nodes).filter_map(|host| simulation.peer(host)).flat_map(|peer| peer.left_out()).collect();
    let bad = (0..nodes).filter(|&host| simulation.routes_badly(host)).filter_map(|host| simulation.peer(host));
    let bad: BTreeSet<PeerId> = bad.map(|peer| peer.me().peer).collect();
    let (bad, good) = left_out.into_iter().partition(|peer| bad.contains(peer));
    (report, [bad, good])
}

#[test]
fn bags_complete_past_routers_that_drop_delay_or_misdirect() {
    let (usual, left_out) = run(scenario());
    assert_eq!(left_out, [BTreeSet::new(), BTreeSet::new()]);
    for bad_routing in [BadRouting::Drop, BadRouting::Delay, BadRouting::OneChild] {
        for bad_routers_percent in [5.0, 20.0] {
            let (report, [bad, good]) = run(Scenario { bad_routers_percent, bad_routing, ..scenario() });
            let what = format!("{bad_routing:?} {bad_routers_percent} %");
            assert_eq!((report.lost_tasks, report.open_tasks, report.failed_tasks), (0, 0, 0), "{report}");
            assert_eq!(report.bags_closed, 5, "{what}: {report}");
            let times = report.max_stretch / usual.max_stretch;
            assert!(times < 1.5, "{what}: {times} times the stretch\n{report}");
            // One alone may be at a place where little passes; and a router that sends all to one child sends tickets back.
            let is_noticed = bad_routing != BadRouting::OneChild && bad_routers_percent >= 20.0;
            assert!(
                (!is_noticed || !bad.is_empty()) && good.is_empty(),
                "{what}: {} bad and {} good ones",
                bad.len(),
                good.len()
            );
            println!("{what}: {times:.2} times the stretch, {} left out", bad.len());
        }
    }
}

/// Machines that are down lose what they are handed, too, by those that have not noticed: three times in a row that looks like a router that drops, for
/// ten minutes (docs/adr/0026). Nobody who was up all the time is left out.
#[test]
fn nobody_is_left_out_who_has_not_crashed() {
    let (mut all, mut all_stayed) = (0, 0);
    for seed in 1..=4 {
        let scenario = Scenario { churn: Some(Duration::from_secs(1800)), seed, ..scenario() };
        let mut simulation = Simulation::new(scenario.clone()).expect("a valid scenario");
        while simulation.step(scenario.first_arrival()) {}
        let lives = |simulation: &Simulation| -> BTreeSet<(PeerId, u64)> {
            let peers = (0..scenario.nodes).filter_map(|host| simulation.peer(host));
            peers.map(|peer| (peer.me().peer, peer.me().incarnation)).collect()
        };
        let before = lives(&simulation);
        let report = simulation.run(|_| ());
        let stayed: BTreeSet<PeerId> = before.intersection(&lives(&simulation)).map(|(peer, _)| *peer).collect();
        assert!(report.crashes >= 10 && !stayed.is_empty(), "{report}");
        let peers = (0..scenario.nodes).filter_map(|host| simulation.peer(host));
        let left_out: BTreeSet<PeerId> = peers.flat_map(|peer| peer.left_out()).collect();
        assert!(left_out.is_disjoint(&stayed), "seed {seed}: {left_out:?} are left out, of which {stayed:?} were up");
        (all, all_stayed) = (all + left_out.len(), all_stayed + stayed.len());
        assert!(left_out.len() <= 6, "seed {seed}: {left_out:?} of 30 are left out");
        assert_eq!((report.lost_tasks, report.open_tasks), (0, 0), "{report}");
    }
    assert!(all <= 8, "{all} of 120 are left out");
    assert!(all_stayed >= 20, "only {all_stayed} of 120 were up all the time");
}
