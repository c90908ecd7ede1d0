//! Routers that drop, delay or misdirect what others send through them (docs/adr/0026): every bag completes.

use idlewood_simnet::{BadRouting, Report, Scenario, Simulation};

fn run(bad_routing: BadRouting, bad_routers_percent: f64) -> Report {
    let scenario = Scenario {
        nodes: 30,
        bags: 5,
        tasks_per_node: 5,
        seed: 1,
        bad_routers_percent,
        bad_routing,
        horizon: std::time::Duration::from_secs(6 * 3600),
        ..Scenario::default()
    };
    Simulation::new(scenario).expect("a valid scenario").run(|_| ())
}

#[test]
fn bags_complete_past_routers_that_drop_delay_or_misdirect() {
    let usual = run(BadRouting::Drop, 0.0);
    for bad_routing in [BadRouting::Drop, BadRouting::Delay, BadRouting::OneChild] {
        for percent in [5.0, 20.0] {
            let report = run(bad_routing, percent);
            assert_eq!((report.lost_tasks, report.open_tasks, report.failed_tasks), (0, 0, 0), "{report}");
            assert_eq!(report.bags_closed, 5, "{bad_routing:?} {percent} %: {report}");
            let times = report.max_stretch / usual.max_stretch;
            assert!(times < 1.5, "{bad_routing:?} {percent} %: {times} times the stretch\n{report}");
            println!("{bad_routing:?} {percent} %: {times:.2} times the stretch");
        }
    }
}
