//! Machines whose owners do not let every bag run, and quotas: nothing is lost, every bag ends, and no machine runs
//! what its owner declines (which the simulator asserts at every start).

use std::time::Duration;

use idlewood_simnet::{Report, Scenario, Simulation};

fn run(change: impl FnOnce(&mut Scenario)) -> Report {
    let mut scenario =
        Scenario { nodes: 30, bags: 6, tasks_per_node: 3, choosy_percent: 60.0, seed: 5, ..Scenario::default() };
    change(&mut scenario);
    let report = Simulation::new(scenario).expect("a valid scenario").run(|_| ());
    assert_eq!((report.lost_tasks, report.open_tasks, report.failed_tasks), (0, 0, 0), "{report}");
    assert_eq!(report.bags_closed, report.bags_accepted, "{report}");
    assert_eq!(report.completed_tasks, report.accepted_tasks, "{report}");
    report
}

fn declines(report: &Report) -> u64 {
    report.messages_by_kind.get("decline").map_or(0, |of| of.count)
}

#[test]
fn a_bag_that_many_machines_decline_is_run_by_others() {
    let open = run(|scenario| scenario.choosy_percent = 0.0);
    assert_eq!(declines(&open), 0);
    for seed in 1..4 {
        let report = run(|scenario| scenario.seed = seed);
        // The reissue of declined tasks is bounded.
        assert!((20..2_000).contains(&declines(&report)), "{report}");
        assert_eq!(report.duplicate_tasks, 0, "{report}");
    }
}

#[test]
fn all_bags_complete_though_every_owner_is_choosy_and_machines_crash() {
    let report = run(|scenario| {
        scenario.choosy_percent = 100.0;
        scenario.churn = Some(Duration::from_secs(3600));
        scenario.downtime = Duration::from_secs(60);
        scenario.loss_percent = 1.0;
    });
    assert!(declines(&report) > 20 && report.crashes > 5, "{report}");
}

#[test]
fn copies_that_are_declined_find_other_machines() {
    let report = run(|scenario| (scenario.replicas, scenario.quorum) = (2, 2));
    assert!(declines(&report) > 20, "{report}");
    assert_eq!(report.false_tasks, 0, "{report}");
}

/// One user with more bags, and more work, than a machine takes from one user.
#[test]
fn bags_beyond_a_quota_wait_for_room() {
    let bags = |most: u32, work: Duration| {
        run(|scenario| {
            scenario.choosy_percent = 0.0;
            scenario.bags = 3;
            scenario.heavy_tailed = true;
            scenario.user_percent = 100.0;
            scenario.user_splits_into = 12;
            scenario.peer.submitter_bags_max = most;
            scenario.peer.submitter_work_max = work;
        })
    };
    let (few, long) = (1, Duration::from_secs(90 * 24 * 3600));
    assert!(declines(&bags(few, long)) > 10);
    assert_eq!(declines(&bags(1024, long)), 0);
}
