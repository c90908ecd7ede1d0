//! The swarm: small random worlds in which no invariant may be violated, and the seeds that once violated one.

use std::time::Duration;

use idlewood_overlay::Time;
use idlewood_simnet::invariant::i9_kept;
use idlewood_simnet::swarm::{self, Case, Kind, bags};
use idlewood_simnet::{Flaw, Simulation};

/// One seed a line of text, followed by what it found.
const REGRESSIONS: &str = include_str!("regressions/swarm.txt");

/// Small cases of whole machines with bags. Case 9 has a quorum, and tasks that machines are told to stop and get again; in 47 speeds add up to more than
/// single precision holds exactly.
const SMALL: [u64; 10] = [2, 3, 6, 7, 9, 11, 15, 16, 20, 47];

/// Larger worlds cost more, and rarely find what smaller ones do not: they are for `simnet swarm`.
const HOSTS_MAX: u32 = 8;

#[test]
fn no_random_world_breaks_an_invariant() {
    let seeds: Vec<u64> = (1..=600).filter(|seed| Case::draw(*seed).hosts <= HOSTS_MAX).collect();
    let summary = swarm::run(Kind::Overlays, &seeds, |_| ());
    assert!(summary.cases > 150 && summary.faults > 3_000, "{} cases, {} faults", summary.cases, summary.faults);
    assert_clean(&summary);
}

/// Some small ones: whole machines with bags cost a hundred times as much. More are for `simnet swarm --bags`.
#[test]
fn no_random_grid_loses_what_it_was_given() {
    let summary = swarm::run(Kind::Bags, &SMALL, |_| ());
    assert!(
        summary.cases == SMALL.len() as u64 && summary.faults > 200,
        "{} cases, {} faults",
        summary.cases,
        summary.faults
    );
    assert_clean(&summary);
}

/// Small cases with bags that others keep, and with disks that are taken. In case 7 a machine hears nothing before its lid is shut, and
/// acts when it opens; in 103 attempts of two lives of a bag met; in 371 a machine that adopts a bag with an old ticket meets a steward
/// that the ticket does not name, and is told all that it knows before the steward goes; in 669 a steward went too early, in 781 a machine that adopted was lost before anybody knew.
const KEPT: [u64; 10] = [2, 4, 7, 11, 15, 20, 103, 371, 669, 781];

/// I9: a bag is not lost while one of its keepers has its disk.
#[test]
fn no_bag_that_others_keep_is_lost_with_a_disk() {
    let summary = swarm::run(Kind::KeptBags, &KEPT, |_| ());
    assert!(
        summary.cases == KEPT.len() as u64 && summary.faults > 200,
        "{} cases, {} faults",
        summary.cases,
        summary.faults
    );
    assert_clean(&summary);
}

/// The negative control: the disk of a submitter is taken before anybody else keeps its bag.
#[test]
fn a_disk_that_is_taken_before_others_keep_its_bags_is_seen() {
    let mut case = bags::Case::draw_kept(KEPT[0]);
    case.scenario.bags = 1;
    let mut simulation = Simulation::new(case.scenario).expect("a valid scenario");
    while simulation.record().bags()[0].accepted.is_none() {
        assert!(simulation.step(Time::ZERO + Duration::from_secs(3600)), "it is accepted");
    }
    let host = simulation.record().bags()[0].submitted.expect("it is accepted").0;
    assert_eq!(i9_kept::check(&simulation), Ok(()));
    assert!(!i9_kept::can_lose_disk(&simulation, host), "nobody keeps it yet");
    simulation.take_disk(host, Duration::from_secs(10));
    let seen = i9_kept::check(&simulation).map_err(|violation| violation.invariant);
    assert_eq!(seen, Err(i9_kept::RULE));
}

/// The negative controls: two of the same cases with machines that break a promise on purpose, and with so many bags that a record which
/// is dropped is missed.
#[test]
fn machines_that_forget_tasks_or_drop_records_are_seen() {
    for (flaw, seed, bags) in [(Flaw::ForgetsTasks, 7, 4), (Flaw::DropsRecords, 20, 12)] {
        assert!(SMALL.contains(&seed));
        let mut case = bags::Case::draw(seed);
        (case.scenario.flaw, case.scenario.flawed_percent, case.scenario.bags) = (flaw, 100.0, bags);
        let seen = case.run().violation.map(|violation| violation.invariant);
        assert_eq!(seen, Some(bags::KEPT), "{flaw:?}");
    }
}

#[test]
fn seeds_that_once_broke_an_invariant_do_not_do_so_again() {
    for line in REGRESSIONS.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let (seed, comment) = line.split_once(' ').expect("a seed and what it found");
        assert!(!comment.trim().is_empty(), "{line}");
        assert_clean(&swarm::run(Kind::Overlays, &[seed.parse().expect("a seed")], |_| ()));
    }
}

#[test]
fn a_case_is_determined_by_its_seed() {
    let (one, other) = (swarm::run(Kind::Overlays, &[77, 78], |_| ()), swarm::run(Kind::Overlays, &[78, 77], |_| ()));
    assert_eq!((one.events, one.faults, one.settled), (other.events, other.faults, other.settled));
}

#[track_caller]
fn assert_clean(summary: &swarm::Summary) {
    if let Some(failure) = summary.failures.first() {
        panic!("{}: repeat it with `{}`", failure.what, failure.command());
    }
}
