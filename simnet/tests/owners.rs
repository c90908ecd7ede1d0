//! Owners who come and go, and slow machines: no machine holds a bag up, no task is lost, and little is done twice.

use std::time::Duration;

use idlewood_simnet::experiment::compare;
use idlewood_simnet::{Execution, Report, Scenario, Simulation};

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Runs a scenario; returns its report, and what it is compared by.
fn run(scenario: Scenario) -> (Report, impl Fn(&str) -> f64) {
    let mut simulation = Simulation::with(scenario, Execution::usual(30)).expect("a valid scenario");
    simulation.run(|_| ());
    let values = compare(&simulation);
    let of = move |name: &str| values.iter().find(|(known, _)| known == name).map_or(f64::NAN, |(_, value)| *value);
    (simulation.report(), of)
}

fn scenario() -> Scenario {
    Scenario { nodes: 30, bags: 12, heavy_tailed: true, load: Some(0.5), ..Scenario::default() }
}

#[test]
fn owners_who_stay_hold_no_bag_up() {
    for (session, away) in [(20, 60), (240, 240)] {
        let (owner_session, owner_away) = (Some(minutes(session)), minutes(away));
        let (report, of) = run(Scenario { owner_session, owner_away, ..scenario() });
        assert_eq!((report.lost_tasks, report.open_tasks, report.failed_tasks, report.bags_closed), (0, 0, 0, 12));
        assert!(of("held_up_max") < 1.5, "{} {session} {away}\n{report}", of("held_up_max"));
        assert!(report.wasted_work_share < 0.1, "{report}");
        // A rival that knows who is there now is no worse than ours by more than it gains by perfect information.
        assert!((0.7..1.3).contains(&of("ended_ratio_mincent_plus")), "{}", of("ended_ratio_mincent_plus"));
    }
}

#[test]
fn slowed_machines_hold_no_bag_up() {
    let slowed = Scenario { slowed_percent: 10.0, tasks_per_node: 2, heavy_tailed: false, load: None, ..scenario() };
    let (report, of) = run(slowed.clone());
    assert_eq!((report.lost_tasks, report.open_tasks, report.bags_closed), (0, 0, 12));
    assert!(of("ended_ratio_mincent") < 1.5, "{}\n{report}", of("ended_ratio_mincent"));
    let (report, _) = run(Scenario { slowed_percent: 0.0, ..slowed });
    assert!(report.wasted_work_share < 0.01, "{report}");
}
