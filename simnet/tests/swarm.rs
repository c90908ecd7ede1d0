//! The swarm: small random worlds in which nothing may break, and those seeds in which once something did.

use idlewood_simnet::swarm;

/// One seed a line, and after it what it found.
const REGRESSIONS: &str = include_str!("regressions/swarm.txt");

#[test]
fn no_random_world_breaks_an_invariant() {
    let summary = swarm::run(1, 120, |_| ());
    assert_eq!(summary.cases, 120);
    assert!(summary.faults > 2_000, "{}", summary.faults);
    assert_clean(&summary);
}

#[test]
fn no_world_breaks_again_what_it_once_broke() {
    for line in REGRESSIONS.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let (seed, comment) = line.split_once(' ').expect("a seed and what it found");
        assert!(!comment.trim().is_empty(), "{line}");
        assert_clean(&swarm::run(seed.parse().expect("a seed"), 1, |_| ()));
    }
}

#[test]
fn a_case_is_its_seed() {
    let (one, other) = (swarm::run(77, 2, |_| ()), swarm::run(77, 2, |_| ()));
    assert_eq!((one.events, one.faults, one.settled), (other.events, other.faults, other.settled));
}

#[track_caller]
fn assert_clean(summary: &swarm::Summary) {
    if let Some(failure) = summary.failures.first() {
        panic!("{}: repeat it with `{}`", failure.what, failure.command());
    }
}
