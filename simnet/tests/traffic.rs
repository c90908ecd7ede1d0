//! What a machine says, message by message and byte by byte, as it ships: a change that makes machines say more than a few percent more
//! has to raise the figures here, where a reviewer sees it.
//!
//! Bytes are those of the messages, of what the transport adds to them, of answers, and of the handshakes of connections
//! (`simnet/scenarios/default.toml`); the latter are up to a fifth of all here, where machines have just met.
//!
//! Each figure is a mean over seeds, so that one message that overtakes another changes it by little. Where a figure falls by more than
//! the same part, it is to be lowered here: else what was saved could be spent again unseen.

use std::time::Duration;

use idlewood_simnet::{Scenario, Simulation};

/// Messages and bytes of a machine a second, with these seeds.
fn said(seeds: std::ops::RangeInclusive<u64>, scenario: &Scenario) -> [f64; 2] {
    let number = seeds.clone().count() as f64;
    let of_seed = |seed| {
        let report = Simulation::new(Scenario { seed, ..scenario.clone() }).expect("a valid scenario").run(|_| ());
        assert_eq!((report.lost_tasks, report.open_tasks), (0, 0), "{report}");
        [report.messages as f64 / report.sim_s / f64::from(scenario.nodes), report.bytes_per_node_s]
    };
    seeds.map(of_seed).fold([0.0; 2], |sums, of| [0, 1].map(|which| sums[which] + of[which] / number))
}

#[track_caller]
fn check(name: &str, found: [f64; 2], known: [f64; 2], tolerance: f64) {
    for ((what, found), known) in ["messages", "bytes"].into_iter().zip(found).zip(known) {
        println!("{name}: {found:.3} {what} a second of each machine, {known} as written here");
        let change = found / known - 1.0;
        assert!(
            change.abs() <= tolerance,
            "{name}: a machine sends {found:.3} {what} a second instead of {known} ({:+.1} %): if that is meant, write it here",
            change * 100.0
        );
    }
}

#[test]
fn machines_without_bags() {
    let scenario = Scenario { nodes: 40, bags: 0, horizon: Duration::from_secs(600), ..Scenario::default() };
    check("no bags", said(1..=2, &scenario), [2.292, 1_300.0], 0.03);
}

#[test]
fn machines_with_bags() {
    // Two stewards for each bag from its beginning are 3 % of it.
    let scenario = Scenario { nodes: 40, bags: 6, ..Scenario::default() };
    check("six bags", said(1..=2, &scenario), [2.263, 1_145.0], 0.03);
}

#[test]
fn machines_with_bags_that_come_and_go() {
    let scenario = Scenario {
        nodes: 40,
        bags: 6,
        churn: Some(Duration::from_secs(1800)),
        downtime: Duration::from_secs(60),
        loss_percent: 1.0,
        ..Scenario::default()
    };
    // Which message is lost changes what follows.
    check("six bags, machines that come and go", said(1..=2, &scenario), [3.277, 2_020.0], 0.05);
}
