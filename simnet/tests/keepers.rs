//! Submitters that come and go, with stewards that act for them (docs/adr/0041) and without: nothing is lost, and the last tasks of bags
//! end sooner. Results that stewards keep (docs/adr/0053) outlive the submitter's disk.

use std::collections::VecDeque;
use std::time::Duration;

use idlewood_overlay::Time;
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

/// Takes the disk of a bag's submitter once half of its tasks have ended, and these are with stewards, where they keep them. Returns how many
/// tasks had ended, how many of these ran again after that, how many had begun in the ten seconds before, and the report.
fn lose_disk(seed: u64, keep_results: bool) -> (u64, u64, u64, Report) {
    let scenario = Scenario {
        nodes: 10,
        bags: 1,
        tasks_per_node: 12,
        seed,
        keep_results,
        horizon: Duration::from_secs(12 * 3600),
        ..Scenario::default()
    };
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let step = Duration::from_secs(1);
    // How often each task had begun in each of the last ten seconds: stewards are told every five.
    let mut earlier: VecDeque<Vec<u32>> = VecDeque::new();
    let (host, bag, ended) = loop {
        earlier.push_back(simulation.record().bags()[0].tasks.iter().map(|task| task.started).collect());
        if earlier.len() > 10 {
            earlier.pop_front();
        }
        simulation.run_until(simulation.now() + step);
        assert!(simulation.now().since(Time::ZERO) < Duration::from_secs(3600), "half of it should have ended");
        let record = &simulation.record().bags()[0];
        let (Some((host, _)), bag) = (record.submitted, record.bag.id) else { continue };
        let Some(peer) = simulation.peer(host) else { continue };
        let Some(view) = peer.bag(bag) else { continue };
        let is_safe = peer.results_kept(bag).is_none_or(|kept| kept.elsewhere == kept.ended);
        if view.done >= view.bag.tasks / 2 && is_safe && peer.goes_on_without_me(bag) {
            break (host, bag, view.done);
        }
    };
    assert!(simulation.has_ticket(host, bag));
    let before = simulation.record().bags()[0].tasks.clone();
    let earlier = earlier.front().expect("it has lasted");
    let untold = before.iter().zip(earlier).filter(|(is, was)| !is.delivered && is.started > **was).count() as u64;
    simulation.take_disk(host, Duration::from_secs(120));
    let report = simulation.run(|_| ());
    let after = &simulation.record().bags()[0].tasks;
    let ran_again = before.iter().zip(after).filter(|(was, is)| was.delivered && is.started > was.started);
    (ended, ran_again.count() as u64, untold, report)
}

#[test]
fn results_that_stewards_keep_outlive_the_disk_of_the_submitter() {
    for seed in 1..4 {
        let (ended, ran_again, untold, with) = lose_disk(seed, true);
        let (_, all_again, _, without) = lose_disk(seed, false);
        eprintln!(
            "seed {seed}: {ended} had ended; {ran_again} of these ran again, {all_again} without; {} tasks in all ran twice, {} without",
            with.duplicate_tasks, without.duplicate_tasks
        );
        for report in [&with, &without] {
            assert_eq!((report.lost_tasks, report.open_tasks, report.failed_tasks), (0, 0, 0), "seed {seed}: {report}");
        }
        assert_eq!(ran_again, 0, "seed {seed}: {with}");
        // Tasks that began since the submitter last told its stewards are issued again.
        assert!(with.duplicate_tasks <= untold, "seed {seed}: {untold} had just begun: {with}");
        assert!(all_again >= ended / 2, "seed {seed}: {without}");
    }
}
