//! Whatever machines and links do, no accepted task is lost, and every bag ends.
//!
//! A failure prints the scenario's seed; `simnet run` with the same parameters repeats it.

mod steps;

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::condition::Pause;
use idlewood_simnet::{Flaw, Report, Scenario, Simulation};

use self::steps::{delivered, step_until};

/// Small enough for many seeds, with more bags than a machine has slots. Every such simulation ends within hours: tasks
/// that are not done after two days are a failure.
fn small(nodes: u32, seed: u64) -> Scenario {
    let horizon = Duration::from_secs(2 * 24 * 3600);
    Scenario { nodes, bags: 3, tasks_per_node: 4, horizon, seed, ..Scenario::default() }
}

fn restless(nodes: u32, seed: u64) -> Scenario {
    Scenario { churn: Some(Duration::from_secs(600)), loss_percent: 5.0, ..small(nodes, seed) }
}

fn run(scenario: Scenario) -> Report {
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    assert_complete(&simulation, &report);
    report
}

#[track_caller]
fn assert_complete(simulation: &Simulation, report: &Report) {
    assert_eq!((report.lost_tasks, report.open_tasks), (0, 0), "lost: {report:?}");
    assert_eq!(report.bags_closed, u64::from(report.scenario.bags), "open: {report:?}");
    assert_eq!(report.completed_tasks, report.accepted_tasks, "{report:?}");
    assert_eq!(simulation.record().without_output, 0, "journalled before its output was there: {report:?}");
}

#[test]
fn nothing_is_lost_under_churn_and_loss() {
    let mut crashes = 0;
    for seed in 1..=12 {
        crashes += run(restless(8, seed)).crashes;
    }
    assert!(crashes > 100, "{crashes}");
}

/// Peers that answer later than the wait for an unknown peer are given up, and found nevertheless: no machine stays
/// alone. Machines three seconds apart are connected from the beginning here: no two agents could connect, whose three
/// round trips have to fit into ten seconds.
#[test]
fn a_grid_forms_whose_messages_take_seconds() {
    let connect_round_trips = Scenario::default().connect_round_trips;
    for (latency_ms, connect_round_trips) in [(1_000, connect_round_trips), (1_500, connect_round_trips), (3_000, 0)] {
        let report = run(Scenario { latency_ms, connect_round_trips, ..small(13, 1) });
        let results = report.messages_by_kind.get("results").map_or(0, |results| results.count);
        assert!(results > 100, "machines work for each other: {report:?}");
        assert_eq!(report.duplicate_tasks, 0, "{report:?}");
    }
}

/// Machines that join over links so slow that their messages wait in the uplink.
#[test]
fn messages_in_an_uplink_are_lost_with_a_machine_that_crashes_but_not_with_one_that_leaves() {
    let run = |leave_percent: f64| {
        let (bandwidth_bytes_s, churn) = (300, Some(Duration::from_secs(20)));
        let scenario = Scenario { bandwidth_bytes_s, churn, leave_percent, ..small(8, 5) };
        let mut simulation = Simulation::new(scenario).expect("a valid scenario");
        step_until(&mut simulation, |simulation| simulation.now().as_micros() > 60_000_000);
        let report = simulation.report();
        (report.crashes, report.leaves, report.messages_lost)
    };
    let (crashes, leaves, lost) = run(0.0);
    assert!(crashes > 5 && leaves == 0 && lost > 10, "{crashes} crashes, {leaves} left, {lost} lost");
    let (crashes, leaves, lost) = run(100.0);
    assert!(crashes == 0 && leaves > 5 && lost == 0, "{crashes} crashes, {leaves} left, {lost} lost");
}

#[test]
fn nothing_is_lost_when_writes_are_slow_and_machines_crash_all_the_time() {
    for seed in 1..=3 {
        let churn = Some(Duration::from_secs(200));
        let (persist, downtime) = (Duration::from_millis(200), Duration::from_secs(60));
        let report = run(Scenario { churn, persist, downtime, ..restless(4, seed) });
        assert!(report.crashes >= 10 && report.started_executions > report.accepted_tasks, "{report:?}");
    }
}

/// Asserts that every task that failed for good had all its tries, as far as the simulator saw them end: three machines
/// on which its worker died, or the first try and three further ones, where the first crash on a machine is no try.
#[track_caller]
fn assert_tries_used_up(simulation: &Simulation, report: &Report) {
    for task in simulation.record().accepted_tasks().filter(|task| task.failed) {
        let (failures, crashes) = (u32::from(task.failures), u32::from(task.crashes));
        let tries = 4 + u32::from(crashes > 0);
        assert!(crashes >= 3 || failures + crashes >= tries, "{task:?} failed too early: {report:?}");
    }
}

/// As [`run`], where tries fail: each task is delivered or had all its tries.
fn run_failing(scenario: Scenario) -> (Simulation, Report) {
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    assert_eq!(report.lost_tasks, 0, "lost: {report:?}");
    assert_eq!(report.bags_closed, u64::from(report.scenario.bags), "open: {report:?}");
    assert_eq!(report.completed_tasks + report.failed_tasks, report.accepted_tasks, "{report:?}");
    assert_eq!(simulation.record().without_output, 0, "journalled before its output was there: {report:?}");
    (simulation, report)
}

#[test]
fn tasks_that_fail_and_crash_have_all_their_tries_under_churn_and_loss() {
    let (mut crashes, mut failed, mut crashed) = (0, 0, 0);
    for seed in 1..=6 {
        let (fails_percent, crashes_percent) = if seed % 2 == 0 { (35.0, 10.0) } else { (5.0, 40.0) };
        let (simulation, report) = run_failing(Scenario { fails_percent, crashes_percent, ..restless(8, seed) });
        assert_tries_used_up(&simulation, &report);
        assert!(report.failed_tasks < report.accepted_tasks / 2, "{report:?}");
        crashes += report.crashes;
        failed += report.failed_tasks;
        crashed += report.crashed_executions;
    }
    assert!(crashes > 50 && failed > 10 && crashed > 100, "{crashes}, {failed}, {crashed}");
}

/// Where no machine goes down and no message is lost, the simulator sees what the submitter sees.
#[test]
fn a_task_has_exactly_its_tries_without_other_faults() {
    let mut failed = 0;
    for seed in 1..=3 {
        let (simulation, report) = run_failing(Scenario { fails_percent: 50.0, ..small(8, seed) });
        for task in simulation.record().accepted_tasks() {
            let is_right = if task.failed { task.failures == 4 && task.finished == 0 } else { task.failures < 4 };
            assert!(is_right, "{task:?}: {report:?}");
        }
        assert_eq!(report.duplicate_tasks, 0, "{report:?}");
        failed += report.failed_tasks;
    }
    assert!(failed > 5, "{failed}");
}

#[test]
fn bags_of_which_every_try_fails_or_crashes_close() {
    for (fails_percent, crashes_percent) in [(100.0, 0.0), (0.0, 100.0), (50.0, 50.0)] {
        let (simulation, report) = run_failing(Scenario { fails_percent, crashes_percent, ..restless(6, 2) });
        assert_tries_used_up(&simulation, &report);
        assert!(report.failed_tasks == report.accepted_tasks && report.crashes > 5, "{report:?}");
    }
}

/// Outputs so large that they do not come with the word that a task has ended, but are fetched.
const FETCHED_BYTES: u64 = 100_000;

#[test]
fn outputs_whose_fetch_fails_are_fetched_again_or_made_again() {
    let (mut usual, mut again) = (0, 0);
    for seed in 1..=4 {
        let restless = Scenario { output_bytes: FETCHED_BYTES, ..restless(8, seed) };
        usual += run(restless.clone()).duplicate_tasks;
        again += run(Scenario { unfetched_percent: 50.0, ..restless.clone() }).duplicate_tasks;
        let scenario = Scenario { unfetched_percent: 40.0, fails_percent: 30.0, crashes_percent: 10.0, ..restless };
        let (simulation, report) = run_failing(scenario);
        assert_tries_used_up(&simulation, &report);
        assert!(report.failed_executions > 20, "{report:?}");
    }
    assert!(again > usual + 5, "no output was given up: {again} tasks ran twice, {usual} where each fetch succeeds");
}

/// Failed tries of a bag with a quorum are votes, but for crashes on the first two machines.
#[test]
fn a_quorum_of_failed_tries_fails_a_task_under_churn() {
    let mut failed = 0;
    for seed in 1..=4 {
        let (fails_percent, crashes_percent, churn) = (25.0, 15.0, Some(Duration::from_secs(1200)));
        let scenario = Scenario { fails_percent, crashes_percent, churn, replicas: 3, quorum: 2, ..restless(12, seed) };
        let (simulation, report) = run_failing(scenario);
        for task in simulation.record().accepted_tasks() {
            let (failures, crashes) = (u32::from(task.failures), u32::from(task.crashes));
            let is_right = if task.failed { failures + crashes.saturating_sub(2) >= 2 } else { task.finished >= 2 };
            assert!(is_right, "{task:?}: {report:?}");
        }
        assert!(report.crashes > 5, "{report:?}");
        failed += report.failed_tasks;
    }
    assert!(failed > 5, "{failed}");
}

/// Most tries fail, and machines lose what they held: since no machine lies, none is distrusted, and no task stays open
/// for lack of a machine that may run it.
#[test]
fn bags_with_a_quorum_close_though_most_tries_fail_and_machines_forget() {
    let (mut failed, mut crashes) = (0, 0);
    for seed in [131, 133, 134] {
        let churn = Some(Duration::from_secs(800));
        let (downtime, persist) = (Duration::from_secs(20), Duration::from_millis(100));
        let scenario = Scenario {
            queue_lost: true,
            downtime,
            persist,
            churn,
            slots: 2,
            replicas: 3,
            quorum: 2,
            recheck: 3,
            fails_percent: 60.0,
            crashes_percent: 10.0,
            unfetched_percent: 70.0,
            output_bytes: FETCHED_BYTES,
            loss_percent: 9.0,
            duplicate_percent: 10.0,
            reorder_percent: 20.0,
            ..small(11, seed)
        };
        let (simulation, report) = run_failing(scenario);
        assert!(report.failed_executions > report.accepted_tasks, "{report:?}");
        (failed, crashes) = (failed + report.failed_executions, crashes + report.crashes);
        let distrusted = (0..11).filter_map(|host| simulation.peer(host)).flat_map(|peer| peer.reputations());
        assert_eq!(distrusted.filter(|(_, known)| known.dissents > 0).count(), 0, "{report:?}");
    }
    assert!(failed > 300 && crashes > 20, "{failed} tries failed, {crashes} crashes");
}

/// With one vote for each machine a failure by chance would leave its task open until another machine joins.
#[test]
fn two_machines_decide_every_task_of_a_bag_with_a_quorum_of_two_though_some_tries_fail() {
    let (mut tries, mut tasks) = (0, 0);
    for seed in 1..=3 {
        let (_, report) = run_failing(Scenario { replicas: 2, quorum: 2, fails_percent: 10.0, ..small(2, seed) });
        (tries, tasks) = (tries + report.failed_executions, tasks + report.failed_tasks);
    }
    assert!(tries > 5 && tasks < tries / 3, "{tries} tries failed, and {tasks} tasks");
}

/// The paper's failures: machines restart at once and have lost what they held.
#[test]
fn nothing_is_lost_when_failures_reset_machines() {
    for seed in 1..=3 {
        let churn = Some(Duration::from_secs(300));
        let report = run(Scenario { queue_lost: true, downtime: Duration::ZERO, churn, ..restless(6, seed) });
        assert!(report.crashes > 10 && report.started_executions > report.accepted_tasks, "{report:?}");
    }
}

#[test]
fn nothing_is_lost_when_machines_leave_in_good_order() {
    let churn = Some(Duration::from_secs(200));
    let report = run(Scenario { leave_percent: 100.0, churn, ..restless(5, 1) });
    assert!(report.leaves > 5 && report.crashes == 0, "{report:?}");
}

#[test]
fn bags_come_from_steady_machines_alone_if_there_are_any() {
    let steady = Scenario { steady_percent: 20.0, bags: 6, ..restless(8, 1) };
    let mut simulation = Simulation::new(steady).expect("a valid scenario");
    let report = simulation.run(|_| ());
    assert_complete(&simulation, &report);
    let from: Vec<_> =
        simulation.record().bags().iter().filter_map(|bag| bag.submitted).map(|(host, _)| host).collect();
    assert!(from.len() == 6 && from.contains(&0) && from.contains(&1) && from.iter().all(|&host| host < 2), "{from:?}");
}

/// All faults of links and machines, at once and in turn.
#[test]
fn nothing_is_lost_under_all_faults() {
    let scenario = Scenario { duplicate_percent: 5.0, reorder_percent: 10.0, ..restless(8, 3) };
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    step_until(&mut simulation, |simulation| simulation.record().bags().iter().all(|bag| bag.accepted.is_some()));
    for round in 0..12u32 {
        let (one, other) = (round % 8, (round * 3 + 1) % 8);
        let pause = if round % 2 == 0 { Pause::Lose } else { Pause::Queue };
        simulation.pause(one, pause);
        simulation.slow_down(other, Duration::from_millis(300));
        simulation.jump_clock(other, if round % 3 == 0 { 90_000_000 } else { -90_000_000 });
        simulation.network_mut().put_into(1, (round * 5 + 2) % 8);
        simulation.network_mut().cut(1, 0);
        let until = simulation.progress().now + Duration::from_secs(100);
        while simulation.progress().now < until && simulation.record().open_bags() > 0 {
            simulation.step(until);
        }
        simulation.resume(one);
        simulation.slow_down(other, Duration::ZERO);
        simulation.network_mut().heal();
    }
    let report = simulation.run(|_| ());
    assert_complete(&simulation, &report);
}

#[test]
fn a_shut_lid_stops_everything_on_the_machine() {
    for pause in [Pause::Lose, Pause::Queue] {
        let mut simulation = Simulation::new(Scenario { bags: 1, ..small(4, 9) }).expect("a valid scenario");
        step_until(&mut simulation, |simulation| delivered(simulation) > 0);
        let (submitter, _) = simulation.record().bags()[0].submitted.expect("it was submitted");
        let executor = (0..4).find(|&host| host != submitter).expect("another machine");
        let held = |simulation: &Simulation| {
            let peer = simulation.peer(executor).expect("it is up");
            peer.held().iter().map(|held| held.waiting + held.running).sum::<u64>()
        };
        let before = held(&simulation);
        assert!(before > 0, "{before}");
        simulation.pause(executor, pause);
        let until = simulation.progress().now + Duration::from_secs(600);
        step_until(&mut simulation, |simulation| simulation.progress().now > until);
        assert_eq!(held(&simulation), before, "{pause:?}");
        simulation.resume(executor);
        let report = simulation.run(|_| ());
        assert_complete(&simulation, &report);
    }
}

#[test]
fn undeclared_work_is_measured() {
    run(Scenario { declared: false, ..restless(5, 1) });
}

#[test]
fn a_machine_with_several_slots_runs_as_many_tasks() {
    let scenario = Scenario { slots: 4, tasks_per_node: 24, ..restless(4, 1) };
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let running = |simulation: &Simulation, host| {
        let tasks = simulation.peer(host).map_or_else(Vec::new, idlewood_scheduler::Peer::running);
        tasks.iter().filter(|task| !task.frozen).count()
    };
    let mut most = [0; 4];
    while simulation.record().open_bags() > 0 && simulation.step(Time::MAX) {
        for (most, host) in most.iter_mut().zip(0..) {
            *most = running(&simulation, host).max(*most);
        }
    }
    assert_eq!(most, [4; 4], "tasks at the same time on each machine");
    let report = simulation.report();
    assert_complete(&simulation, &report);
    assert!(report.crashes > 0, "{report:?}");
}

#[test]
fn one_machine_alone() {
    let report = run(small(1, 1));
    assert_eq!((report.messages, report.duplicate_tasks), (0, 0));
    run(restless(1, 2));
}

#[test]
fn without_failures_no_task_runs_twice() {
    for (nodes, seed) in [(2, 1), (3, 2), (20, 3)] {
        let report = run(small(nodes, seed));
        assert_eq!((report.duplicate_tasks, report.started_executions), (0, report.accepted_tasks), "{report:?}");
    }
}

#[test]
fn work_spreads_over_all_machines() {
    let mut simulation = Simulation::new(small(20, 3)).expect("a valid scenario");
    step_until(&mut simulation, |simulation| simulation.record().bags().iter().all(|bag| bag.accepted.is_some()));
    let now = simulation.progress().now;
    step_until(&mut simulation, |simulation| simulation.progress().now.since(now) > Duration::from_secs(5));
    let idle: Vec<u32> =
        (0..20).filter(|&host| simulation.peer(host).is_some_and(|peer| peer.running().is_empty())).collect();
    assert!(idle.is_empty(), "idle machines while work waits: {idle:?}");
}

/// Renewals are one message per executor and bag each third of a lease. Two machines that answer each other's answers
/// would send them as fast as the links allow.
#[test]
fn renewals_keep_their_pace() {
    let scenario = Scenario { loss_percent: 0.0, bags: 8, tasks_per_node: 10, ..restless(16, 1) };
    let third_of_a_lease = scenario.peer.lease / 3;
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let count = |simulation: &Simulation, kind| simulation.report().messages_by_kind.get(kind).map_or(0, |of| of.count);
    let mut usual = 0;
    while simulation.record().open_bags() > 0 {
        let next = simulation.progress().now + third_of_a_lease;
        step_until(&mut simulation, |simulation| {
            simulation.progress().now >= next || simulation.record().open_bags() == 0
        });
        usual += (0..16).filter_map(|host| simulation.peer(host)).map(|peer| peer.held().len() as u64).sum::<u64>();
    }
    // Every placement, and every machine that comes back, is announced at once and a few times more.
    let sent = count(&simulation, "holding");
    assert!(usual > 1000, "{usual}");
    assert!(sent < 2 * usual, "{sent} renewals where {usual} are usual");
}

#[test]
fn a_submitter_that_hosts_no_router() {
    let mut seen = 0;
    for seed in 1..=4 {
        let mut simulation = Simulation::new(small(2, seed)).expect("a valid scenario");
        step_until(&mut simulation, |simulation| simulation.record().bags().iter().all(|bag| bag.accepted.is_some()));
        let submitters = simulation.record().bags().iter().filter_map(|bag| bag.submitted);
        let peers: Vec<_> = submitters.filter_map(|(host, _)| simulation.peer(host)).collect();
        seen += peers.iter().filter(|peer| !peer.overlay_view().hosts_router()).count();
        let report = simulation.run(|_| ());
        assert_complete(&simulation, &report);
    }
    assert!(seen > 0, "no bag was submitted at the last machine of the line");
}

#[test]
fn a_submitter_that_crashes_in_the_middle_of_its_bag() {
    let mut simulation = Simulation::new(Scenario { bags: 1, ..small(8, 5) }).expect("a valid scenario");
    for share in [1, 8, 20] {
        step_until(&mut simulation, |simulation| delivered(simulation) >= share);
        let (submitter, _) = simulation.record().bags()[0].submitted.expect("it was submitted");
        simulation.crash(submitter);
        assert!(simulation.peer(submitter).is_none());
        step_until(&mut simulation, |simulation| simulation.peer(submitter).is_some());
    }
    let report = simulation.run(|_| ());
    assert_complete(&simulation, &report);
    assert_eq!(report.crashes, 3);
}

#[test]
fn a_submitter_that_crashes_between_the_last_result_and_the_end_of_its_bag() {
    let mut simulation = Simulation::new(Scenario { bags: 1, ..small(3, 5) }).expect("a valid scenario");
    step_until(&mut simulation, |simulation| simulation.record().bags()[0].completed.is_some());
    assert_eq!(simulation.record().open_bags(), 1, "the bag was closed in the same moment");
    let (submitter, _) = simulation.record().bags()[0].submitted.expect("it was submitted");
    simulation.crash(submitter);
    let until = simulation.progress().now + Duration::from_secs(24 * 3600);
    step_until(&mut simulation, |simulation| simulation.record().open_bags() == 0 || simulation.progress().now > until);
    assert_eq!(simulation.record().open_bags(), 0, "a day later the bag is still open");
}

#[test]
fn tasks_that_a_machine_held_survive_its_crash_unless_failures_reset_it() {
    let (before, after) = held_before_and_after_a_crash(false);
    assert!(before > Some(1) && after == before, "{before:?}, {after:?}");
    assert_eq!(held_before_and_after_a_crash(true), (before, Some(0)));
}

/// Number of tasks that a machine holds before a crash, and in its next life.
fn held_before_and_after_a_crash(queue_lost: bool) -> (Option<u64>, Option<u64>) {
    let scenario = Scenario { bags: 1, queue_lost, ..small(4, 9) };
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    step_until(&mut simulation, |simulation| delivered(simulation) > 0);
    let (submitter, _) = simulation.record().bags()[0].submitted.expect("it was submitted");
    let executor = (0..4).find(|&host| host != submitter).expect("another machine");
    let held = |simulation: &Simulation| -> Option<u64> {
        let peer = simulation.peer(executor)?;
        Some(peer.held().iter().map(|held| held.waiting + held.running + held.unacknowledged).sum())
    };
    let before = held(&simulation);
    simulation.crash(executor);
    step_until(&mut simulation, |simulation| simulation.peer(executor).is_some());
    (before, held(&simulation))
}

/// The negative controls: what asserts that nothing is lost has to see machines that break a promise on purpose.
fn flawed(flaw: Flaw) -> Scenario {
    let horizon = Duration::from_secs(12 * 3600);
    Scenario { flaw, flawed_percent: 100.0, bags: 12, horizon, ..restless(8, 1) }
}

#[test]
#[should_panic(expected = "lost: ")]
fn workers_that_forget_tasks_are_seen() {
    run(flawed(Flaw::ForgetsTasks));
}

#[test]
#[should_panic(expected = "lost: ")]
fn disks_that_drop_records_are_seen() {
    run(flawed(Flaw::DropsRecords));
}
