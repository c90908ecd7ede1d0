//! A user who splits a bag gains on users who do not, unless all bags of a submitter are one application
//! (docs/adr/0017).

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_scheduler::PerSubmitter;
use idlewood_simnet::{Scenario, Simulation};

/// Two bags of the same size at the same time, of which one is that user's: when that one is complete, and how long
/// after that the other is, in seconds.
fn ends_s(seed: u64, per_submitter: PerSubmitter, user_splits_into: u64) -> (f64, f64) {
    let mut scenario = Scenario {
        nodes: 10,
        bags: 2,
        bag_interval: Duration::from_secs(1),
        tasks_spread_percent: 0,
        task_mops_min: 50_000.0,
        task_mops_max: 50_000.0,
        user_percent: 50.0,
        user_splits_into,
        seed,
        ..Scenario::default()
    };
    scenario.peer.per_submitter = per_submitter;
    let first = scenario.first_arrival();
    let mut simulation = Simulation::new(scenario).expect("a valid scenario");
    let report = simulation.run(|_| ());
    assert_eq!((report.lost_tasks, report.open_tasks, report.duplicate_tasks), (0, 0, 0), "{report}");
    let end = |is_users: bool| {
        let bags = simulation.record().bags().iter().filter(|bag| bag.bag.is_users() == is_users);
        let ends: Vec<Time> = bags.map(|bag| bag.completed.expect("it ends")).collect();
        ends.into_iter().max().expect("one of the two").since(first).as_secs_f64()
    };
    (end(true), end(false))
}

/// Which machine knows which of a submitter's bags, and so how much splitting still gains there, differs from seed to seed: from nothing to a third.
#[test]
fn splitting_a_bag_pays_only_if_its_pieces_count_as_separate_bags() {
    // With these seeds one of the two bags is the user's, the one that comes second.
    let seeds = [3, 8, 9, 14];
    let (mut off, mut line) = (0.0, 0.0);
    for seed in seeds {
        let (honest, other) = ends_s(seed, PerSubmitter::Off, 1);
        let (split, other_then) = ends_s(seed, PerSubmitter::Off, 10);
        assert!(other < 0.7 * honest, "the other's comes first: {other} {honest}");
        assert!(split < 0.7 * honest && other_then > 0.95 * honest, "they change places: {split} {other_then}");
        off += split / honest / seeds.len() as f64;
        assert_eq!(ends_s(seed, PerSubmitter::Line, 1), (honest, other), "a bag for each is as ever");
        let (split, other_then) = ends_s(seed, PerSubmitter::Line, 10);
        line += split / honest / seeds.len() as f64;
        assert!(other_then < 1.05 * honest, "{other_then}");
    }
    println!(
        "a user who splits ends after {off:.3} of the time where pieces are bags, and after {line:.3} where they are one application"
    );
    assert!(line > 0.75 && line > off + 0.2, "{line} of the time, {off} where pieces are bags");
}
