//! Machines that invent results, against replicas and quorums (docs/adr/0015).

use std::time::Duration;

use idlewood_simnet::{Report, Scenario, Simulation};

fn run(replicas: u32, quorum: u32, change: impl FnOnce(&mut Scenario)) -> Report {
    let mut scenario = Scenario {
        nodes: 40,
        bags: 4,
        tasks_per_node: 3,
        liars_percent: 20.0,
        replicas,
        quorum,
        seed: 11,
        ..Scenario::default()
    };
    change(&mut scenario);
    let report = Simulation::new(scenario).expect("a valid scenario").run(|_| ());
    let bags = u64::from(report.scenario.bags);
    assert_eq!((report.lost_tasks, report.open_tasks, report.bags_closed), (0, 0, bags), "{report}");
    report
}

#[test]
fn without_a_quorum_liars_are_believed() {
    let report = run(1, 1, |_| ());
    let share = report.false_tasks as f64 / report.completed_tasks as f64;
    assert!((0.05..0.5).contains(&share), "{share}: a fifth of the machines lies");
}

#[test]
fn with_a_quorum_no_lie_is_believed() {
    for (replicas, quorum) in [(2, 2), (3, 2)] {
        let report = run(replicas, quorum, |_| ());
        assert_eq!((report.false_tasks, report.failed_tasks), (0, 0), "{quorum} of {replicas}: {report}");
        let runs = report.finished_executions as f64 / report.completed_tasks as f64;
        assert!((1.9..4.5).contains(&runs), "{runs} runs of each task, {quorum} of {replicas}");
    }
}

/// Votes survive crashes of any machine with the machines that cast them.
#[test]
fn a_quorum_survives_crashes_and_losses() {
    let report = run(2, 2, |scenario| {
        scenario.churn = Some(Duration::from_secs(1800));
        scenario.downtime = Duration::from_secs(60);
        scenario.loss_percent = 2.0;
    });
    assert!(report.crashes > 20, "{report}");
    assert_eq!((report.false_tasks, report.failed_tasks), (0, 0), "{report}");
}

#[test]
fn honest_machines_run_each_task_as_often_as_requested() {
    let report = run(2, 2, |scenario| scenario.liars_percent = 0.0);
    let runs = report.finished_executions as f64 / report.completed_tasks as f64;
    assert!((1.95..2.2).contains(&runs), "{runs} runs of each task");
}

#[test]
fn machines_with_a_clean_history_are_rechecked_now_and_then() {
    // All bags come from one machine, which so gets to know the others.
    let long = |scenario: &mut Scenario| {
        (scenario.nodes, scenario.bags, scenario.tasks_per_node, scenario.steady_percent) = (12, 5, 10, 1.0);
    };
    let runs = |report: &Report| report.finished_executions as f64 / report.completed_tasks as f64;
    let [all, some] = [0, 10].map(|recheck| {
        run(2, 2, |scenario| {
            long(scenario);
            scenario.recheck = recheck;
        })
    });
    // A machine that always lies never gets a clean history.
    assert_eq!((all.false_tasks, some.false_tasks, some.failed_tasks), (0, 0, 0), "{some}");
    assert!(runs(&all) > 1.95 && runs(&some) < 1.7, "{} and {} runs of each task", runs(&all), runs(&some));
}
