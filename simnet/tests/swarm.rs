//! The swarm: small random worlds in which nothing may break, and those seeds in which once something did.

use idlewood_simnet::swarm::{self, Case};

/// One seed a line, and after it what it found.
const REGRESSIONS: &str = include_str!("regressions/swarm.txt");

/// Larger worlds cost more, and rarely break what smaller ones do not: those are for `simnet swarm`.
const HOSTS_MAX: u32 = 8;

#[test]
fn no_random_world_breaks_an_invariant() {
    let seeds: Vec<u64> = (1..=600).filter(|seed| Case::draw(*seed).hosts <= HOSTS_MAX).collect();
    let summary = swarm::run(&seeds, |_| ());
    assert!(summary.cases > 150 && summary.faults > 3_000, "{} cases, {} faults", summary.cases, summary.faults);
    assert_clean(&summary);
}

#[test]
fn no_world_breaks_again_what_it_once_broke() {
    for line in REGRESSIONS.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let (seed, comment) = line.split_once(' ').expect("a seed and what it found");
        assert!(!comment.trim().is_empty(), "{line}");
        assert_clean(&swarm::run(&[seed.parse().expect("a seed")], |_| ()));
    }
}

#[test]
fn a_case_is_its_seed() {
    let (one, other) = (swarm::run(&[77, 78], |_| ()), swarm::run(&[78, 77], |_| ()));
    assert_eq!((one.events, one.faults, one.settled), (other.events, other.faults, other.settled));
}

#[track_caller]
fn assert_clean(summary: &swarm::Summary) {
    if let Some(failure) = summary.failures.first() {
        panic!("{}: repeat it with `{}`", failure.what, failure.command());
    }
}
