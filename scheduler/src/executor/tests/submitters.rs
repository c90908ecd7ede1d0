//! Tests of several bags of one submitter on a machine.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Time, WallTime};
use proptest::prelude::*;

use super::super::{Executor, Lease};
use super::contact;
use crate::bag::{BagHeader, BagId, Path, Request, Sizes};
use crate::config::{Config, PerSubmitter};
use crate::enclosed::Enclosed;
use crate::io::Io;
use crate::ranges::IntervalSet;

fn empty(per_submitter: PerSubmitter) -> (Executor, Io, Config) {
    let config = Config { per_submitter, ..Config::default() };
    (Executor::new(&config), Io::new(Time::ZERO, WallTime(0), contact(200)), config)
}

fn header(number: u8, submitter: u8, size_mops: f64) -> BagHeader {
    let (id, submitter) = (BagId([number; 32]), contact(submitter));
    let (task_mops, application_size_mops) = (size_mops / 4.0, size_mops);
    BagHeader { id, submitter, tasks: 4, task_mops, application_size_mops, declared: true }
}

/// A bag of four tasks comes.
fn give(executor: &mut Executor, io: &mut Io, config: &Config, number: u8, submitter: u8, size_mops: f64) {
    let (bag, ranges, path) = (header(number, submitter, size_mops), IntervalSet::from(0..4), Path::default());
    let (attempt, climbed, machines, leads) = (0, 0, 0, true);
    let (number, age, checkpoints) = (1, Duration::ZERO, Box::default());
    let request = Request {
        copy: None,
        begins_within: None,
        lines: Box::default(),
        envelope: Enclosed::default(),
        acting: None,
        bag,
        number,
        attempt,
        ranges,
        age,
        path,
        climbed,
        machines,
        link_kb_s: crate::link::LINK_KB_S,
        leads,
        ticket: 0,
        checkpoints,
    };
    executor.queue(request, None, io, config);
}

/// The sizes from which deadlines are computed, by bag id.
fn sizes(executor: &Executor) -> Vec<f64> {
    executor.load(Time::ZERO, |_| true).0.entries.iter().map(|entry| entry.application_size_mops).collect()
}

#[test]
fn a_submitters_bags_on_a_machine_are_one_application() {
    for (rule, expected) in
        [(PerSubmitter::Off, [300.0, 100.0, 100.0, 200.0]), (PerSubmitter::Line, [600.0, 100.0, 100.0, 300.0])]
    {
        let (mut executor, mut io, config) = empty(rule);
        for (number, submitter, size_mops) in [(1, 1, 300.0), (2, 1, 100.0), (3, 2, 100.0), (4, 1, 200.0)] {
            give(&mut executor, &mut io, &config, number, submitter, size_mops);
        }
        assert_eq!(sizes(&executor), expected, "{rule:?}");
        // More tasks of a bag that is here change nothing.
        give(&mut executor, &mut io, &config, 4, 1, 200.0);
        assert_eq!(sizes(&executor), expected, "{rule:?}");
    }
}

#[test]
fn a_bag_weighs_no_less_than_its_tasks_whatever_its_header_says() {
    let (mut executor, io, config) = empty(PerSubmitter::Off);
    let bag = BagHeader { tasks: 50, task_mops: 10.0, ..header(1, 1, 1e-3) };
    executor.restore_held(bag, io.now, (0, &BTreeMap::new()), &(0..4).into(), BTreeMap::new(), &config);
    assert_eq!(sizes(&executor), [500.0]);
}

#[test]
fn pieces_of_a_large_bag_weigh_as_the_whole_and_small_bags_hardly() {
    // On a hundred machines: bags of one task, and the pieces here of a bag of a thousand tasks in a hundred pieces.
    for (tasks, pieces, expected) in [(1, 2, 101.0), (10, 10, 910.0)] {
        let (mut executor, mut io, config) = empty(PerSubmitter::Line);
        for number in 0..pieces {
            let bag = BagHeader { tasks, task_mops: 1.0, ..header(number, 201, 100.0) };
            let ranges = IntervalSet::from(0..1);
            executor.restore_held(bag, io.now, (0, &BTreeMap::new()), &ranges, BTreeMap::new(), &config);
            io.now += Duration::from_secs(1);
        }
        let last = sizes(&executor).into_iter().fold(0.0, f64::max);
        assert_eq!(last, expected, "{tasks} tasks in each of {pieces} bags");
    }
}

#[test]
fn split_bags_pass_no_more_bags_than_their_whole() {
    for (rule, ahead) in [(PerSubmitter::Off, 10), (PerSubmitter::Line, 4)] {
        let (mut executor, mut io, config) = empty(rule);
        // A bag of 450 Mop, and one of 1000 Mop in ten pieces.
        give(&mut executor, &mut io, &config, 100, 2, 450.0);
        for number in 0..10 {
            give(&mut executor, &mut io, &config, number, 1, 100.0);
        }
        executor.reorder(io.now);
        let rank = executor.order.iter().position(|bag| *bag == BagId([100; 32]));
        assert_eq!(rank, Some(ahead), "{rule:?}");
    }
}

#[test]
fn ended_bags_keep_their_weight_and_finished_tasks_add_none() {
    let (mut executor, mut io, config) = empty(PerSubmitter::Line);
    give(&mut executor, &mut io, &config, 1, 1, 100.0);
    give(&mut executor, &mut io, &config, 2, 1, 100.0);
    executor.give_up(BagId([1; 32]), &IntervalSet::from(0..4), &mut io);
    assert_eq!(sizes(&executor), [200.0], "it is as late as before");
    let held = executor.bags.get_mut(&BagId([2; 32])).expect("held");
    held.waiting = IntervalSet::from(0..1);
    (held.finished_tasks, held.finished_mops) = (3, 75.0);
    give(&mut executor, &mut io, &config, 3, 1, 100.0);
    assert_eq!(sizes(&executor), [200.0, 125.0], "three quarters of it are done");
}

#[test]
fn a_bag_that_leaves_and_comes_again_counts_once() {
    let (mut executor, mut io, config) = empty(PerSubmitter::Line);
    give(&mut executor, &mut io, &config, 1, 1, 200.0);
    for round in 0..5 {
        // The requests of one life of a machine differ.
        let (bag, ranges, path) = (header(2, 1, 100.0), IntervalSet::from(0..4), Path::default());
        let (attempt, climbed, machines, leads) = (0, 0, 0, true);
        let (number, age, checkpoints) = (round, Duration::ZERO, Box::default());
        let request = Request {
            copy: None,
            begins_within: None,
            lines: Box::default(),
            envelope: Enclosed::default(),
            acting: None,
            bag,
            number,
            attempt,
            ranges,
            age,
            path,
            climbed,
            machines,
            link_kb_s: crate::link::LINK_KB_S,
            leads,
            ticket: 0,
            checkpoints,
        };
        executor.queue(request, None, &mut io, &config);
        assert_eq!(sizes(&executor), [300.0, 100.0], "round {round}");
        executor.give_up(BagId([2; 32]), &IntervalSet::from(0..4), &mut io);
        assert_eq!(sizes(&executor), [300.0], "round {round}");
    }
}

#[test]
fn a_bag_whose_size_the_submitter_corrects_takes_its_place_anew() {
    let (mut executor, mut io, config) = empty(PerSubmitter::Line);
    give(&mut executor, &mut io, &config, 1, 1, 300.0);
    give(&mut executor, &mut io, &config, 2, 1, 50.0);
    executor.give_up(BagId([2; 32]), &IntervalSet::from(0..4), &mut io);
    // A router says that it is large.
    give(&mut executor, &mut io, &config, 3, 1, 1000.0);
    assert_eq!(sizes(&executor), [350.0, 1300.0]);
    let sizes_of = |application_size_mops: f64| {
        Some(Sizes { task_mops: application_size_mops / 4.0, application_size_mops, declared: true, priority: 0 })
    };
    for (said, expected) in [(100.0, [450.0, 100.0]), (1000.0, [350.0, 1300.0]), (100.0, [450.0, 100.0])] {
        let (bag, term, drop) = (BagId([3; 32]), Duration::from_secs(60), IntervalSet::new());
        let lease = Lease { term, drop, sizes: sizes_of(said), ..Lease::of(bag) };
        executor.lease(contact(1).peer, lease, &mut io, &config);
        assert_eq!(sizes(&executor), expected, "{said} Mop");
    }
}

#[test]
fn restored_bags_stand_in_line_again() {
    let (mut executor, _, config) = empty(PerSubmitter::Line);
    let (none, ranges) = (BTreeMap::new(), IntervalSet::from(0..4));
    for (number, size_mops) in [(1, 200.0), (2, 100.0)] {
        let bag = header(number, 1, size_mops);
        executor.restore_held(bag, Time::ZERO, (0, &none), &ranges, BTreeMap::new(), &config);
    }
    assert_eq!(sizes(&executor), [300.0, 100.0]);
}

proptest! {
    /// For bags in any order the last in the line is due when the whole would be.
    #[test]
    fn the_last_in_line_weighs_as_much_as_all(pieces in prop::collection::vec(1_u32..1000, 1..20)) {
        let whole = pieces.iter().map(|&size| f64::from(size)).sum::<f64>();
        let (mut executor, mut io, config) = empty(PerSubmitter::Line);
        for (number, &size) in pieces.iter().enumerate() {
            give(&mut executor, &mut io, &config, number as u8, 201, f64::from(size));
        }
        let mut found = sizes(&executor);
        found.sort_by(f64::total_cmp);
        prop_assert!((found[found.len() - 1] / whole - 1.0).abs() < 1e-9);
        let mut line = pieces.clone();
        line.sort_unstable();
        let mut ahead = 0.0;
        for (size, found) in line.into_iter().zip(found) {
            ahead += f64::from(size);
            prop_assert!((found / ahead - 1.0).abs() < 1e-9, "{found} {ahead}");
        }
    }
}
