//! Bags without an end on grids of whole peers: what each has of the grid, who waits, what a false size gains, and what happens when the
//! root dies or half of the machines leave. And `simnet reproduce shares` as a command.

#[allow(dead_code, reason = "other experiments are interrupted")]
mod command;

use std::time::Duration;

use idlewood_scheduler::{EndlessView, Limit};
use idlewood_simnet::scenario::{GivenBag, GivenEndless, GivenMachine, Workload};
use idlewood_simnet::{Scenario, Simulation};
use serde_json::Value;

use command::{Directory, json as last_line, reproduce};

fn seconds(of: f64) -> Duration {
    Duration::from_secs_f64(of)
}

fn weighted(submitter: u32, weight: f64) -> GivenBag {
    GivenBag {
        at: Duration::ZERO,
        submitter,
        tasks: 0,
        task_mops: 4_000.0,
        output_bytes: Some(100),
        rounds: None,
        endless: Some(GivenEndless { weight, ..GivenEndless::default() }),
    }
}

/// Machines of 1,000 Mop/s.
fn grid(nodes: u32, given_bags: Vec<GivenBag>, given_machines: Vec<GivenMachine>) -> Simulation {
    let scenario = Scenario {
        nodes,
        speed_mops_min: 1_000,
        speed_mops_max: 1_000,
        bandwidth_bytes_s: 1_000_000,
        // Whoever leaves stays away.
        downtime: Duration::from_secs(24 * 3600),
        workload: Workload::Given,
        given_bags,
        given_machines,
        ..Scenario::default()
    };
    Simulation::new(scenario).expect("a valid scenario")
}

/// To this moment, counted from the first one at which a bag can come.
fn advance(simulation: &mut Simulation, to_s: f64) {
    simulation.run_until(simulation.scenario().first_arrival() + seconds(to_s));
}

/// Tasks of each bag whose results are at its submitter.
fn delivered(simulation: &Simulation) -> Vec<f64> {
    let endless = simulation.record().bags().iter().filter_map(|bag| bag.endless.as_ref());
    endless.map(|endless| endless.delivered.len() as f64).collect()
}

/// Tasks/s of each bag between two moments.
fn throughput(simulation: &mut Simulation, from_s: f64, to_s: f64) -> Vec<f64> {
    advance(simulation, from_s);
    let before = delivered(simulation);
    advance(simulation, to_s);
    let after = delivered(simulation).into_iter().zip(before);
    after.map(|(after, before)| (after - before) / (to_s - from_s)).collect()
}

fn view(simulation: &Simulation, number: usize) -> EndlessView {
    let record = &simulation.record().bags()[number];
    let (host, _) = record.submitted.expect("it was submitted");
    let bag = simulation.peer(host).and_then(|peer| peer.bag(record.bag.id)).expect("it is there");
    bag.endless.expect("a bag without an end")
}

/// Mop/s of each bag that all leaves together may do.
fn rates(simulation: &Simulation) -> Vec<f64> {
    let ids = simulation.record().bags().iter().map(|bag| bag.bag.id);
    let shares: Vec<_> = simulation
        .up()
        .iter()
        .filter_map(|host| simulation.peer(*host))
        .flat_map(|peer| peer.endless_shares())
        .collect();
    ids.map(|id| shares.iter().filter(|(bag, _)| *bag == id).map(|(_, rate)| rate).sum()).collect()
}

fn root(simulation: &Simulation) -> u32 {
    let is_root = |host: &&u32| simulation.peer(**host).is_some_and(|peer| peer.overlay_view().is_root());
    *simulation.up().iter().find(is_root).expect("a root")
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], within: f64) {
    let is_near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= within * expected;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(is_near),
        "{found:?} instead of {expected:?}"
    );
}

#[test]
fn weights_are_shares_where_all_compute_only() {
    let bags = [1.0, 2.0, 4.0].into_iter().zip(0..).map(|(weight, host)| weighted(host, weight)).collect();
    let mut simulation = grid(12, bags, Vec::new());
    let found = throughput(&mut simulation, 60.0, 480.0);
    assert_near(&found, &[3.0 / 7.0, 6.0 / 7.0, 12.0 / 7.0], 0.03);
    let repeated: u64 =
        simulation.record().bags().iter().filter_map(|bag| bag.endless.as_ref()).map(|endless| endless.repeated).sum();
    assert_eq!((repeated, simulation.record().without_output), (0, 0));
}

#[test]
fn a_bag_behind_a_narrow_uplink_leaves_the_rest_to_others() {
    let narrow = GivenBag { output_bytes: Some(5_000), ..weighted(0, 1.0) };
    let machine = GivenMachine { limit_kb_s: Some(1), ..GivenMachine::of(0) };
    let mut simulation = grid(10, vec![narrow, weighted(1, 1.0)], vec![machine]);
    let found = throughput(&mut simulation, 60.0, 360.0);
    assert_near(&found[..1], &[0.2], 0.05);
    assert_near(&found[1..], &[2.3], 0.03);
    assert_eq!(view(&simulation, 0).limit, Some(Limit::Uplink));
}

#[test]
fn the_thirty_third_bag_waits_says_so_and_has_the_first_place_that_is_free() {
    let bags = (0..33).map(|number| GivenBag { at: seconds(f64::from(number)), ..weighted(number % 12, 1.0) });
    let mut simulation = grid(12, bags.collect(), Vec::new());
    advance(&mut simulation, 60.0);
    let waits = view(&simulation, 32);
    assert_eq!((waits.grant.map(|grant| grant.ahead), waits.limit), (Some(1), Some(Limit::Waits)));
    assert_eq!(delivered(&simulation)[32], 0.0);
    assert!((0..32).all(|number| view(&simulation, number).grant.is_some_and(|grant| grant.ahead == 0)));
    simulation.cancel(0);
    advance(&mut simulation, 180.0);
    assert_eq!(view(&simulation, 32).grant.map(|grant| grant.ahead), Some(0));
    assert!(delivered(&simulation)[32] > 0.0);
}

#[test]
fn shares_are_right_though_the_root_dies_in_mid_wave() {
    let mut simulation = grid(16, Vec::from([1, 2].map(|host| weighted(host, f64::from(2 * host - 1)))), Vec::new());
    let heard = |simulation: &Simulation| {
        let peers = simulation.up().iter().filter_map(|host| simulation.peer(*host));
        peers.filter(|peer| !peer.endless_shares().is_empty()).count()
    };
    // Half of the machines have heard of the bags.
    for tenths in 1.. {
        advance(&mut simulation, f64::from(tenths) * 0.1);
        if heard(&simulation) >= 8 {
            break;
        }
    }
    let (first, known) = (root(&simulation), heard(&simulation));
    assert!(
        ![1, 2].contains(&first) && known < 16,
        "another seed has to be found: machine {first} is root, {known} know"
    );
    simulation.crash_for(first, Some(Duration::from_secs(24 * 3600)));
    advance(&mut simulation, 60.0);
    assert_ne!(root(&simulation), first);
    assert_near(&rates(&simulation), &[15_000.0 / 4.0, 45_000.0 / 4.0], 0.02);
}

#[test]
fn half_of_the_machines_leave_and_the_others_go_on() {
    let mut simulation = grid(16, Vec::from([0, 1].map(|host| weighted(host, f64::from(1 + host)))), Vec::new());
    let found = throughput(&mut simulation, 60.0, 180.0);
    assert_near(&found, &[4.0 / 3.0, 8.0 / 3.0], 0.05);
    (8..16).for_each(|host| simulation.leave(host));
    advance(&mut simulation, 210.0);
    assert_eq!(simulation.up().len(), 8);
    assert_near(&rates(&simulation), &[8_000.0 / 3.0, 16_000.0 / 3.0], 0.02);
    let found = throughput(&mut simulation, 220.0, 460.0);
    assert_near(&found, &[2.0 / 3.0, 4.0 / 3.0], 0.05);
    // What those that left had not done is done by others: nothing is missing far below the last task that is done.
    for record in simulation.record().bags() {
        let delivered = &record.endless.as_ref().expect("a bag without an end").delivered;
        let last = delivered.ranges().last().expect("some are done").end;
        let missing: u64 = last - delivered.len();
        assert!(missing < 60, "{missing} of {last} tasks are missing");
    }
}

/// The work of each bag, in Mop/s, where the second one's submitter announces so much of its work and of its bytes.
fn with_cheat(mops_percent: f64, bytes_percent: f64) -> Vec<f64> {
    let heavy = |submitter| GivenBag { task_mops: 2_000.0, output_bytes: Some(4_000), ..weighted(submitter, 1.0) };
    let (announces_mops_percent, announces_bytes_percent) = (mops_percent, bytes_percent);
    let cheat = GivenEndless { weight: 1.0, announces_mops_percent, announces_bytes_percent };
    let bags = vec![weighted(1, 1.0), GivenBag { endless: Some(cheat), ..heavy(2) }, heavy(3)];
    // Half of the machines take one kilobyte a second: not enough for the heavy ones alone.
    let machines = (5..10).map(|number| GivenMachine { limit_kb_s: Some(1), ..GivenMachine::of(number) });
    let mut simulation = grid(10, bags, machines.collect());
    let found = throughput(&mut simulation, 60.0, 420.0);
    assert_ne!(root(&simulation), 2, "another seed has to be found: the root believes its own ledgers");
    let works = simulation.record().bags().iter().map(|bag| bag.bag.task_mops);
    found.into_iter().zip(works).map(|(tasks, mops)| tasks * mops).collect()
}

#[test]
fn a_false_size_gains_nothing_and_costs_others_nothing() {
    let honest = with_cheat(100.0, 100.0);
    for (mops_percent, bytes_percent) in [(25.0, 100.0), (400.0, 100.0), (100.0, 25.0)] {
        let found = with_cheat(mops_percent, bytes_percent);
        println!("{mops_percent} % of the work, {bytes_percent} % of the bytes: {found:?} instead of {honest:?}");
        assert!((found[1] / honest[1] - 1.0).abs() <= 0.05, "{found:?} instead of {honest:?}");
        assert!([0, 2].iter().all(|&other| found[other] >= 0.98 * honest[other]), "{found:?} instead of {honest:?}");
    }
}

/// The columns that the rows have to have.
const COLUMNS: [&str; 8] = [
    "nodes",
    "failures",
    "bags",
    "throughput_ratio_min",
    "utility_gap_max",
    "settle_s_max",
    "bytes_ratio",
    "finite_ratio",
];

#[test]
fn a_short_run_has_all_rows_as_json_and_as_csv_and_is_not_run_again() {
    let out = Directory::new("short");
    let arguments = "shares --nodes 12 --bags 2 --failures none,durable --minutes 3 --output json";
    let summary = last_line(&reproduce(arguments, &out));
    assert_eq!(summary, serde_json::from_str::<Value>(&out.read("shares.json")).expect("JSON"));
    let rows = summary["rows"].as_array().expect("rows");
    // Two honest ones, and four cheats.
    assert_eq!((rows.len(), &summary["complete"]), (6, &Value::Bool(true)));
    for row in rows.iter().filter(|row| row["cheat"] == "none") {
        for column in COLUMNS.iter().filter(|column| **column != "failures") {
            assert!(row[*column].is_number(), "{column} of {row}");
        }
        assert!(row["throughput_ratio_min"].as_f64() > Some(0.8), "{row}");
        assert!(row["settle_s_max"].as_f64() < Some(20.0), "{row}");
    }
    let names: Vec<&str> = rows.iter().filter_map(|row| row["cheat"].as_str()).collect();
    assert_eq!(names, ["none", "none", "a_quarter", "a_fourfold", "b_quarter", "b_fourfold"]);
    let csv = out.read("shares.csv");
    let mut lines = csv.lines();
    let heading: Vec<&str> = lines.next().expect("a heading").split(',').collect();
    assert!(COLUMNS.iter().all(|column| heading.contains(column)), "{heading:?}");
    for (line, row) in lines.zip(rows) {
        let cells = heading.iter().zip(line.split(','));
        for (column, cell) in cells {
            let value = &row[*column];
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(cell, if value.is_null() { "" } else { &text }, "{column}");
        }
    }
    // The second time nothing is simulated.
    let before = out.read("shares-runs.csv");
    let simulations = before.lines().count() - 1;
    let again = reproduce(arguments, &out);
    let found = format!("{simulations} of {simulations} simulations were found in the directory");
    assert!(String::from_utf8_lossy(&again.stderr).contains(&found), "{again:?}");
    assert_eq!(last_line(&again), summary);
    assert_eq!(out.read("shares-runs.csv"), before);
}

#[test]
fn wrong_arguments_are_answered_by_what_to_write() {
    let out = Directory::new("wrong");
    for (arguments, expected) in [
        ("shares --nodes 5", "such as --nodes 100,1000"),
        ("shares --bags 9", "such as --bags 2,8"),
        ("shares --minutes 0", "between 1 and 1440"),
        ("shares --seeds 0", "between 1 and 1000"),
    ] {
        let output = reproduce(arguments, &out);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(said.contains(expected), "{said}");
    }
}
