//! The ledger of an endless bag stays small, however many tasks of it are done.

use std::collections::BTreeMap;

use super::*;
use crate::bag::{BAG_TASKS_MAX, OUTPUT_BYTES_MAX};
use crate::endless::{Endless, IN_HAND_MAX};

/// Most tasks of one machine at once.
const TOGETHER: u64 = 1000;

fn endless(io: &Io) -> Ledger {
    let bag = BagHeader {
        id: BagId([7; 32]),
        submitter: contact(0),
        tasks: BAG_TASKS_MAX,
        task_mops: 10.0,
        application_size_mops: 10.0,
        declared: true,
    };
    let mut ledger = Ledger::new(bag, Time::ZERO, 0, Replication::default(), io);
    ledger.set_supply(&Supply::of(Endless { weight: 1.0, task_bytes: 0.0, tasks: BAG_TASKS_MAX }));
    ledger.open();
    ledger
}

/// The bytes of each record on the disk.
fn write(io: &mut Io, disk: &mut BTreeMap<Vec<u8>, usize>) {
    let tickets: Vec<_> = io
        .effects
        .drain(..)
        .filter_map(|effect| match effect {
            Effect::Persist { ticket, changes } => Some((ticket, changes)),
            _ => None,
        })
        .collect();
    for (ticket, changes) in tickets {
        for change in changes {
            let key = change.key().to_bytes();
            match change {
                Change::Put(record) => drop(disk.insert(key, record.encode().len())),
                Change::Delete(_) => drop(disk.remove(&key)),
            }
        }
        io.persisted(ticket);
    }
}

/// Lets machines do so many tasks, of which each hundredth fails, and drains the results as they come, in another order.
fn do_and_drain(tasks: u64) {
    let config = Config::default();
    let (mut io, mut disk) = (io(), BTreeMap::new());
    let mut ledger = endless(&io);
    let mut version = 0;
    let (mut largest, mut largest_on_disk) = (0, 0);
    let mut undrained: Vec<IntervalSet> = Vec::new();
    while ledger.ended.len() < tasks {
        for machine in 1..4 {
            ledger.wanted(contact(machine), TOGETHER as u32, &io);
        }
        for (to, request) in ledger.serve(&io, &config) {
            version += 1;
            let (executor, ranges) = (to.clone(), request.ranges.clone());
            let holding = Holding {
                executor,
                version,
                attempt: request.attempt,
                ranges,
                finished: IntervalSet::new(),
                capacity: None,
            };
            ledger.holding(holding, &mut io, &config);
            let indices: Vec<u64> = request.ranges.indices().collect();
            let results = indices.iter().map(|&index| TaskResult {
                attempt: request.attempt,
                content: crate::bag::SmallOutput::new(b"x"),
                ..result(index, index % 100 != 7)
            });
            ledger.results(&to, results.collect(), &mut io, &config);
            write(&mut io, &mut disk);
            undrained.push(request.ranges);
        }
        // The newest first, and the others later.
        for tasks in undrained.drain(undrained.len().saturating_sub(2)..).rev().collect::<Vec<_>>() {
            ledger.drain(&tasks, &mut io);
        }
        write(&mut io, &mut disk);
        io.now += Duration::from_millis(100);
        largest = largest.max(bytes(&ledger) + ledger.ended.drained().0.intervals() * 64);
        largest_on_disk = largest_on_disk.max(disk.values().sum::<usize>());
        if undrained.len() > 20 {
            undrained.drain(..).for_each(|tasks| ledger.drain(&tasks, &mut io));
        }
    }
    assert!(largest < 10 << 20, "{largest} bytes in memory");
    assert!(largest_on_disk < 50 << 20, "{largest_on_disk} bytes on the disk");
    undrained.drain(..).for_each(|tasks| ledger.drain(&tasks, &mut io));
    write(&mut io, &mut disk);
    let (drained, failed) = ledger.ended.drained();
    assert_eq!((drained.intervals(), failed), (1, drained.len() / 100));
    assert!(
        disk.values().sum::<usize>() < 100_000,
        "a ledger without results is small: {}",
        disk.values().sum::<usize>()
    );
    ledger.assert_consistent();
}

#[test]
fn a_ledger_stays_small_whatever_is_done() {
    do_and_drain(60_000);
}

/// `cargo test --release -p idlewood-scheduler ten_million_drained -- --ignored`
#[test]
#[ignore = "takes a minute with optimisation, and many without"]
fn ten_million_drained_tasks_leave_next_to_nothing() {
    do_and_drain(10_000_000);
}

#[test]
fn at_most_so_many_results_wait_to_be_drained() {
    let config = Config::default();
    let (mut io, mut disk) = (io(), BTreeMap::new());
    let mut ledger = endless(&io);
    let mut version = 0;
    loop {
        ledger.wanted(contact(1), TOGETHER as u32, &io);
        let given = ledger.serve(&io, &config);
        if given.is_empty() {
            break;
        }
        for (to, request) in given {
            version += 1;
            let ranges = request.ranges.clone();
            let holding = Holding {
                executor: to.clone(),
                version,
                attempt: 0,
                ranges,
                finished: IntervalSet::new(),
                capacity: None,
            };
            ledger.holding(holding, &mut io, &config);
            let results = request
                .ranges
                .indices()
                .map(|index| TaskResult { content: crate::bag::SmallOutput::new(b"x"), ..result(index, true) });
            ledger.results(&to, results.collect(), &mut io, &config);
            write(&mut io, &mut disk);
        }
    }
    let most = crate::ledger::endless::UNDRAINED_MAX;
    assert!((most..most + TOGETHER).contains(&ledger.ended.len()), "{}", ledger.ended.len());
    let bytes: usize = disk.values().sum();
    assert!(bytes < 50 << 20, "{bytes} bytes on the disk");
}

#[test]
fn machines_get_what_they_want_less_what_is_on_the_way() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = endless(&io);
    let wants = |ledger: &mut Ledger, io: &Io, machine: u8, tasks: u32| {
        ledger.wanted(contact(machine), tasks, io);
        let given = ledger.serve(io, &config).into_iter();
        given.map(|(to, request)| (to.peer.0[0], request.ranges)).collect::<Vec<_>>()
    };
    assert_eq!(wants(&mut ledger, &io, 1, 5), [(1, IntervalSet::from(0..5))]);
    // It repeats what it wants before it has heard of these.
    assert_eq!(wants(&mut ledger, &io, 1, 5), []);
    assert_eq!(wants(&mut ledger, &io, 1, 7), [(1, IntervalSet::from(5..7))]);
    assert_eq!(wants(&mut ledger, &io, 2, 3), [(2, IntervalSet::from(7..10))]);
    // A request that gets lost is given to others first.
    io.now += Duration::from_secs(20);
    ledger.expire(&mut io);
    assert_eq!(wants(&mut ledger, &io, 3, 4), [(3, IntervalSet::from(0..4))]);
    // One that says nothing any more gets nothing.
    ledger.wanted(contact(4), 0, &io);
    io.now += Duration::from_secs(60);
    assert!(ledger.serve(&io, &config).is_empty());
}

/// A result is drained once.
#[test]
fn results_that_are_made_again_count_once() {
    let (config, mut io, mut disk) = (Config::default(), io(), BTreeMap::new());
    let mut ledger = endless(&io);
    let ended = |index, output_bytes| TaskResult { output_bytes, ..result(index, true) };
    (0..3).for_each(|index| ledger.note_undrained(&ended(index, OUTPUT_BYTES_MAX), None));
    let bytes = |ledger: &Ledger| ledger.endless.as_ref().expect("it is endless").undrained_bytes;
    assert_eq!(bytes(&ledger), 3 << 40);
    (0..3).for_each(|index| ledger.ended.insert(index, true));
    assert_eq!(ledger.rerun(&IntervalSet::from(1..3), &mut io), 2);
    assert_eq!(bytes(&ledger), 1 << 40, "the results of the others are gone");
    ledger.note_undrained(&ended(1, 7), None);
    ledger.note_undrained(&ended(2, 8), None);
    write(&mut io, &mut disk);
    ledger.drain(&IntervalSet::from(0..3), &mut io);
    assert_eq!(bytes(&ledger), 0);
    // No machine wants more than it may have in hand.
    ledger.wanted(contact(1), u32::MAX, &io);
    let given: u64 = ledger.serve(&io, &config).iter().map(|(_, request)| request.ranges.len()).sum();
    assert!(given <= IN_HAND_MAX, "{given}");
}

/// What a steward tells of a bag that this machine has adopted: it makes no tasks of a bag with an end count as saved, and ends no bag before a task that
/// has ended.
#[test]
fn an_adopter_believes_of_saved_results_what_its_bag_can_have() {
    let io = io();
    let closed_at = |tasks| {
        let endless = Endless { weight: 1.0, task_bytes: 0.0, tasks };
        Supply { is_ended: true, drained_failed: u64::MAX, was_range: true, ..Supply::of(endless) }
    };
    let all = IntervalSet::from(0..BAG_TASKS_MAX);
    let mut finite = ledger(&io, 0);
    finite.adopt_supply(&closed_at(1), &all);
    assert_eq!((finite.ended.len(), finite.tasks()), (0, TASKS));
    let mut range = endless(&io);
    range.ended.insert(9, true);
    range.adopt_supply(&closed_at(5), &IntervalSet::from(0..3));
    assert_eq!((range.ended.done(), range.ended.failed(), range.tasks()), (1, 3, 10));
}
