//! Tests of the ledger: every task has its place, whatever executors send and whenever leases end.

mod checkpoints;
mod copies;
mod declined;
mod endless;
mod honest;
mod late;
mod network;
mod work;

use super::outputs::{PUT_OFF_MAX, UNFETCHED_MAX};
use std::collections::BTreeSet;

use idlewood_overlay::{Node, WallTime};
use proptest::prelude::*;

use super::copies::RUNS_MAX;
use super::issues::Issue;
use super::placed::Placement;
use super::*;
use crate::bag::{BagId, BlobId, HELD_INTERVALS_MAX, TaskId};
use crate::message::Lease;
use crate::peer::Effect;

pub(super) const TASKS: u64 = 40;

pub(super) fn contact(number: u8) -> Contact {
    Contact { peer: PeerId([number; 32]), incarnation: 1, address: "".into(), nonce: None }
}

pub(super) fn io() -> Io {
    Io::new(Time::ZERO, WallTime(1_700_000_000_000_000), contact(0))
}

pub(super) fn ledger(io: &Io, retries_max: u32) -> Ledger {
    let bag = BagHeader {
        id: BagId([7; 32]),
        submitter: contact(0),
        tasks: TASKS,
        task_mops: 10.0,
        application_size_mops: 400.0,
        declared: true,
    };
    let mut ledger = Ledger::new(bag, Time::ZERO, retries_max, Replication::default(), io);
    ledger.open();
    ledger
}

pub(super) fn said(executor: u8, version: u64, ranges: IntervalSet) -> Holding {
    Holding { executor: contact(executor), version, attempt: 0, ranges, finished: IntervalSet::new(), capacity: None }
}

pub(super) fn result(index: u64, success: bool) -> TaskResult {
    let (output, output_bytes, work_mops) = (BlobId([1; 32]), 1, 10.0);
    TaskResult {
        index,
        attempt: 0,
        success,
        crashed: false,
        unfinished: false,
        output,
        output_bytes,
        content: None,
        work_mops,
        exit_code: None,
        receipt: None,
        fingerprint: None,
    }
}

impl Ledger {
    /// The requests issued now.
    pub(super) fn requests(&mut self, io: &Io, config: &Config) -> Vec<Request> {
        self.issue(Vec::new, io, config).into_iter().map(|(_, request)| request).collect()
    }
}

impl Ledger {
    /// Requests for one more copy of each of these tasks that is placed, has fewer copies than replicas are allowed,
    /// and of which none is on its way.
    fn replicate(&mut self, ranges: &IntervalSet, io: &Io, config: &Config) -> Vec<Request> {
        let mut more = self.placed.held_by_more_than(0, ranges);
        more.subtract(&self.placed.held_by_more_than(self.votes.replicas() - 1, &more));
        self.issues.subtract_from(&mut more);
        let mut requests = Vec::new();
        while !more.is_empty() {
            let part: IntervalSet = more.ranges().take(REQUEST_INTERVALS_MAX).collect();
            more.subtract(&part);
            requests.push(self.request(part, None, io, config));
        }
        requests
    }
}

/// All writes become durable.
pub(super) fn persist_all(io: &mut Io) {
    let tickets = io.effects.iter().filter_map(|effect| match effect {
        Effect::Persist { ticket, .. } => Some(*ticket),
        _ => None,
    });
    let tickets: Vec<_> = tickets.collect();
    assert!(tickets.into_iter().all(|ticket| io.persisted(ticket).opened.is_none()), "no submission is among them");
}

/// The places of every index, gathered without the ledger's own arithmetic.
fn places(ledger: &Ledger) -> Vec<u64> {
    let mut all: Vec<u64> = ledger.waiting.unissued().indices().collect();
    all.extend(ledger.waiting.pausing().flat_map(IntervalSet::indices));
    all.extend(ledger.issues.iter().flat_map(|issue| issue.ranges.indices()));
    all.extend(ledger.placed.iter().flat_map(|placement| placement.ranges.indices()));
    all.extend(over(ledger));
    all
}

fn over(ledger: &Ledger) -> impl Iterator<Item = u64> + use<> {
    let (done, failed) = ledger.ended();
    let all: Vec<u64> = done.indices().chain(failed.indices()).collect();
    all.into_iter()
}

/// Checks that every index is in one place, or has up to `replicas` copies, gathered from the executors one by one,
/// and that the ledger's own count of the copies is right.
pub(super) fn assert_accounted(ledger: &Ledger) {
    let unissued: BTreeSet<u64> = ledger.waiting.unissued().indices().collect();
    let over: Vec<u64> = over(ledger).collect();
    let issued: Vec<u64> = ledger.issues.iter().flat_map(|issue| issue.ranges.indices()).collect();
    let placed: Vec<u64> = ledger.placed.iter().flat_map(|placement| placement.ranges.indices()).collect();
    let count = |all: &[u64], index| all.iter().filter(|&&one| one == index).count();
    for index in 0..TASKS {
        let held = count(&placed, index);
        let copies = held + count(&issued, index);
        let pauses = ledger.waiting.pausing().filter(|ranges| ranges.contains(index)).count();
        let waits = usize::from(unissued.contains(&index)) + pauses;
        assert_eq!(count(&over, index) + waits + usize::from(copies > 0), 1, "index {index}");
        let votes = ledger.votes.count(index);
        let given = if ledger.copies.given().contains(index) { RUNS_MAX } else { 0 };
        assert!(copies <= ledger.votes.replicas() + votes + given, "{copies} copies of index {index}");
        assert_eq!(ledger.placed.copies_of(index), held, "index {index}");
    }
    let view = ledger.view();
    assert_eq!(view.placed, ledger.placed.all_held_by_more_than(0).len());
    assert_eq!(view.placed + view.unplaced + view.done + view.failed, TASKS);
    // No lease ends unnoticed.
    let first = ledger.first_end();
    assert!(first.is_none_or(|first| ledger.deadline().is_some_and(|deadline| deadline <= first)));
}

#[test]
fn a_holding_of_unissued_tasks_places_none() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 1);
    ledger.holding(said(1, 1, IntervalSet::from(0..10)), &mut io, &config);
    assert_eq!(ledger.view().placed, 0);
    // Once it was issued, the first machine to claim a task gets it, and no other takes it away.
    assert_eq!(ledger.requests(&io, &config).len(), 1);
    ledger.holding(said(2, 1, IntervalSet::from(0..10)), &mut io, &config);
    ledger.holding(said(1, 2, IntervalSet::from(0..30)), &mut io, &config);
    let placed: Vec<_> = ledger.placements().map(|(executor, ranges)| (executor.peer.0[0], ranges.len())).collect();
    assert_eq!(placed, [(1, 20), (2, 10)]);
    // After a restart it is unknown which tasks were issued.
    let mut ledger = self::ledger(&io, 1);
    ledger.restore_attempt(0);
    ledger.holding(said(1, 1, IntervalSet::from(0..10)), &mut io, &config);
    assert_eq!(ledger.view().placed, 10);
    // No task of an unmeasured bag was issued.
    let mut ledger = self::ledger(&io, 1);
    ledger.bag.task_mops = 0.0;
    ledger.restore_attempt(2);
    ledger.holding(said(1, 1, IntervalSet::from(0..10)), &mut io, &config);
    assert_eq!(ledger.view().placed, 0);
}

#[test]
fn an_unanswered_request_is_issued_again_early() {
    type Answer = fn(&mut Ledger, &mut Io);
    let config = Config::default();
    let holding: Answer = |ledger, io| ledger.holding(said(1, 1, IntervalSet::from(0..1)), io, &Config::default());
    let declining: Answer =
        |ledger, io| ledger.declined(PeerId([1; 32]), &IntervalSet::from(0..1), DeclineReason::Quota, io);
    for answer in [None, Some(holding), Some(declining)] {
        let mut io = io();
        io.leaves = 10_000;
        let mut ledger = ledger(&io, 1);
        let requests = ledger.issue(Vec::new, &io, &config);
        let (to, request) = &requests[0];
        assert!(requests.len() == 1 && to.is_none());
        assert!(request.leads && request.machines == TASKS as u32);
        if let Some(answer) = answer {
            answer(&mut ledger, &mut io);
        }
        let left = TASKS - u64::from(answer.is_some());
        let on_their_way = |ledger: &Ledger| ledger.issues.iter().map(|issue| issue.ranges.len()).sum::<u64>();
        let mut at = |micros: u64| {
            io.now = Time::ZERO + Duration::from_micros(micros);
            ledger.expire(&mut io);
            on_their_way(&ledger)
        };
        assert_eq!(at(14_999_999), left);
        assert_eq!(at(15_000_000), if answer.is_some() { left } else { 0 });
        assert_eq!(at(15_000_000 + TASKS * 40_000), 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Replicate { start: u64, length: u64 },
    Renew,
    RenewOne { executor: u8, ago: u64 },
    Offer { executor: u8, to: u8, start: u64, length: u64 },
    Restore { executor: u8, start: u64, length: u64 },
    Issue,
    Wait(u64),
    Holding { executor: u8, start: u64, length: u64 },
    Result { executor: u8, index: u64, success: bool },
    Fetched { index: u64, here: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..TASKS, 0..20_u64).prop_map(|(start, length)| Step::Replicate { start, length }),
        1 => Just(Step::Renew),
        1 => (1..5_u8, 0..5_u64).prop_map(|(executor, ago)| Step::RenewOne { executor, ago }),
        2 => (1..5_u8, 1..5_u8, 0..TASKS + 5, 0..20_u64)
            .prop_map(|(executor, to, start, length)| Step::Offer { executor, to, start, length }),
        1 => (1..5_u8, 0..TASKS, 0..20_u64)
            .prop_map(|(executor, start, length)| Step::Restore { executor, start, length }),
        2 => Just(Step::Issue),
        1 => (1..90_u64).prop_map(Step::Wait),
        4 => (1..5_u8, 0..TASKS + 5, 0..20_u64)
            .prop_map(|(executor, start, length)| Step::Holding { executor, start, length }),
        4 => (1..5_u8, 0..TASKS + 5, any::<bool>())
            .prop_map(|(executor, index, success)| Step::Result { executor, index, success }),
        4 => (0..TASKS, any::<bool>()).prop_map(|(index, here)| Step::Fetched { index, here }),
    ]
}

proptest! {
    #[test]
    fn every_task_is_accounted_for(replicas in 1..4_usize, steps in prop::collection::vec(step(), 1..120)) {
        let config = Config::default();
        let mut io = io();
        let mut ledger = ledger(&io, 1);
        ledger.votes.set_replicas(replicas);
        for (version, step) in (1_u64..).zip(steps) {
            let before: BTreeSet<u64> = over(&ledger).collect();
            match step {
                Step::Replicate { start, length } => {
                    let asked = start..start + length;
                    for request in ledger.replicate(&IntervalSet::from(asked.clone()), &io, &config) {
                        prop_assert!(request.ranges.indices().all(|index| asked.contains(&index)));
                    }
                }
                Step::Renew => ledger.renew_all(&io, &config),
                Step::RenewOne { executor, ago } => {
                    let version = version.saturating_sub(ago);
                    let known = ledger.placed.of(contact(executor).peer).is_some_and(|p| p.version == version);
                    let renewed = ledger.renew(&contact(executor), version, &mut io, &config);
                    prop_assert!(renewed.is_none() || known);
                }
                Step::Offer { executor, to, start, length } => {
                    let ranges = IntervalSet::from(start..start + length);
                    ledger.offer(contact(executor), &ranges, contact(to), &mut io, &config);
                }
                // After a restart no request is on its way, and each executor is known once.
                Step::Restore { executor, .. }
                    if ledger.issues.iter().next().is_some() || ledger.placed.of(contact(executor).peer).is_some() => {}
                Step::Restore { executor, start, length } => {
                    let ranges = IntervalSet::from(start..start + length);
                    ledger.restore_placed(contact(executor), &ranges, &mut io, &config);
                }
                Step::Issue => drop(ledger.requests(&io, &config)),
                Step::Wait(seconds) => {
                    io.now += Duration::from_secs(seconds);
                    ledger.expire(&mut io);
                    prop_assert!(ledger.first_end().is_none_or(|first| first > io.now));
                    prop_assert!(ledger.deadline().is_none_or(|next| next > io.now));
                }
                Step::Holding { executor, start, length } => {
                    let mut ranges = IntervalSet::new();
                    ranges.insert(start..start + length);
                    ledger.holding(said(executor, version, ranges), &mut io, &config);
                }
                Step::Result { executor, index, success } => {
                    ledger.results(&contact(executor), vec![result(index, success)], &mut io, &config);
                }
                Step::Fetched { index, here } => ledger.fetched(index, here, None, &mut io),
            }
            if ledger.is_closed() {
                break;
            }
            assert_accounted(&ledger);
            if replicas == 1 {
                let mut places = places(&ledger);
                places.sort_unstable();
                prop_assert_eq!(places, (0..TASKS).collect::<Vec<_>>());
            }
            // Ended tasks stay ended.
            let after: BTreeSet<u64> = over(&ledger).collect();
            prop_assert!(before.is_subset(&after));
        }
    }
}

#[test]
fn a_lost_last_copy_is_issued_again_and_the_first_result_ends_all() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.votes.set_replicas(2);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    let more = ledger.replicate(&IntervalSet::from(30..50), &io, &config);
    assert_eq!(more.len(), 1);
    assert_eq!(more[0].ranges, IntervalSet::from(30..TASKS));
    // No machine gets a second copy of a task, and there is no third copy.
    ledger.holding(said(1, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
    assert!(ledger.replicate(&IntervalSet::from(30..TASKS), &io, &config).is_empty());
    ledger.holding(said(2, 1, IntervalSet::from(20..TASKS)), &mut io, &config);
    assert_eq!(ledger.placed.of(contact(2).peer).unwrap().ranges, IntervalSet::from(30..TASKS));
    assert!(ledger.replicate(&IntervalSet::from(30..TASKS), &io, &config).is_empty());
    assert_eq!((ledger.view().placed, ledger.view().unplaced), (TASKS, 0));
    // The first executor drops all: only tasks without another copy are issued again.
    ledger.holding(said(1, 3, IntervalSet::new()), &mut io, &config);
    assert_eq!((ledger.view().placed, ledger.view().reissued), (10, 30));
    ledger.results(&contact(2), vec![result(30, true)], &mut io, &config);
    ledger.fetched(30, true, None, &mut io);
    assert_eq!((ledger.view().placed, ledger.view().done), (9, 1));
}

/// Else a crash of the submitter with the first machine's loss would lose the task's result, though two machines had one.
#[test]
fn another_machines_result_is_acknowledged_only_when_the_first_is_written() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.votes.set_replicas(2);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..1)), &mut io, &config);
    ledger.replicate(&IntervalSet::from(0..1), &io, &config);
    ledger.holding(said(2, 1, IntervalSet::from(0..1)), &mut io, &config);
    persist_all(&mut io);
    io.effects.clear();
    ledger.results(&contact(1), vec![result(0, true)], &mut io, &config);
    ledger.fetched(0, true, None, &mut io);
    let acknowledges = |io: &Io, machine: u8| {
        let is_ack = |effect: &Effect| matches!(effect, Effect::Send { to, message: Message::ResultsAck { .. } } if to.peer == contact(machine).peer);
        io.effects.iter().any(is_ack)
    };
    ledger.results(&contact(2), vec![result(0, true)], &mut io, &config);
    assert!(!acknowledges(&io, 2), "the first result is being written");
    persist_all(&mut io);
    io.send_acks();
    assert!(acknowledges(&io, 1));
    ledger.results(&contact(2), vec![result(0, true)], &mut io, &config);
    assert!(acknowledges(&io, 2));
}

/// Offered tasks may have more intervals than a request, since other machines have ended the tasks between them.
#[test]
fn an_offer_with_too_many_intervals_is_issued_through_the_tree() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    let pieces = REQUEST_INTERVALS_MAX as u64 + 10;
    ledger.bag.tasks = 2 * pieces;
    ledger.waiting = Waiting::new(2 * pieces);
    ledger.requests(&io, &config);
    let all = IntervalSet::from(0..2 * pieces);
    ledger.holding(said(1, 1, all.clone()), &mut io, &config);
    for index in (1..2 * pieces).step_by(2) {
        ledger.results(&contact(1), vec![result(index, true)], &mut io, &config);
        ledger.fetched(index, true, None, &mut io);
    }
    ledger.offer(contact(1), &all, contact(2), &mut io, &config);
    persist_all(&mut io);
    let offered = io.effects.iter().find_map(|effect| match effect {
        Effect::Send { to, message: Message::Request { request, .. } } if to.peer == contact(2).peer => Some(request),
        _ => None,
    });
    assert_eq!(offered.map(|request| request.ranges.intervals()), Some(REQUEST_INTERVALS_MAX));
    assert_eq!(ledger.waiting.unissued().len(), 10);
    assert_eq!(ledger.requests(&io, &config).iter().map(|request| request.ranges.len()).sum::<u64>(), 10);
    assert_eq!(ledger.ended.done() + ledger.issues.iter().map(|issue| issue.ranges.len()).sum::<u64>(), 2 * pieces);
}

/// Bytes that a ledger takes, reckoned from what its parts hold. Nodes of trees are at least half full.
fn bytes(ledger: &Ledger) -> usize {
    let (done, failed) = ledger.ended();
    let copies = (0..).map(|level| ledger.placed.all_held_by_more_than(level)).take_while(|level| !level.is_empty());
    let trees = [done, failed].into_iter().chain(copies);
    let in_trees: usize = trees.map(|tree| tree.intervals() * 2 * 2 * size_of::<u64>()).sum();
    let per_executor = 2 * size_of::<(PeerId, Placement)>();
    let executors = ledger.placed.iter();
    let in_executors: usize = executors
        .map(|placement| {
            let address = placement.executor.address.len();
            per_executor + address + placement.ranges.heap_bytes()
        })
        .sum();
    let issued: usize = ledger.issues.iter().map(|issue| size_of::<Issue>() + issue.ranges.heap_bytes()).sum();
    size_of::<Ledger>() + in_trees + in_executors + issued + ledger.waiting.unissued().heap_bytes()
}

#[test]
fn ten_million_tasks_on_ten_thousand_executors_take_a_few_megabytes() {
    const EXECUTORS: u64 = 10_000;
    const SHARE: u64 = 1000;
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.bag.tasks = EXECUTORS * SHARE;
    ledger.waiting = Waiting::new(EXECUTORS * SHARE);
    let executor = |number: u64| {
        let mut peer = [0; 32];
        peer[..8].copy_from_slice(&number.to_le_bytes());
        Contact {
            peer: PeerId(peer),
            incarnation: 1,
            address: "/ip4/192.168.100.100/udp/40000/quic-v1".into(),
            nonce: None,
        }
    };
    assert_eq!(ledger.requests(&io, &config).len(), 1);
    // In an order that leaves holes.
    for number in (0..EXECUTORS).map(|step| step * 7919 % EXECUTORS) {
        let ranges = IntervalSet::from(number * SHARE..(number + 1) * SHARE);
        let finished = IntervalSet::new();
        let holding = Holding { executor: executor(number), version: 1, attempt: 0, ranges, finished, capacity: None };
        ledger.holding(holding, &mut io, &config);
        io.effects.clear();
    }
    assert_eq!((ledger.view().placed, ledger.view().executors), (EXECUTORS * SHARE, EXECUTORS));
    let placed_bytes = bytes(&ledger);
    // Each machine has begun at the start of its share, and some on a second slot further on.
    let mut most_bytes = 0;
    for round in 0..100_u64 {
        for number in 0..EXECUTORS {
            let offset = if number % 2 == 0 { round } else { round / 2 + round % 2 * (SHARE / 2) };
            let result = result(number * SHARE + offset, true);
            ledger.record_result(result, executor(number), &mut io);
            assert!(ledger.deadline().is_some());
        }
        io.effects.clear();
        most_bytes = most_bytes.max(bytes(&ledger));
    }
    let view = ledger.view();
    assert_eq!((view.done, view.placed), (100 * EXECUTORS, (SHARE - 100) * EXECUTORS));
    println!("{placed_bytes} bytes when all are placed, at most {most_bytes} while results come");
    assert!(placed_bytes < 6 << 20, "{placed_bytes}");
    assert!(most_bytes < 8 << 20, "{most_bytes}");
}

#[test]
fn a_bag_closes_when_every_result_is_journalled() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    assert_eq!(ledger.requests(&io, &config).len(), 1);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    for index in 0..TASKS {
        assert!(!ledger.is_closed());
        ledger.results(&contact(1), vec![result(index, index != 3)], &mut io, &config);
        ledger.fetched(index, true, None, &mut io);
    }
    let view = ledger.view();
    assert_eq!((view.done, view.failed, view.reissued, view.duplicates), (TASKS - 1, 1, 0, 0));
    assert_eq!(view.closed.map(|(closing, _)| closing), Some(Closing::Completed));
}

/// The last message to this executor.
fn last_message(io: &Io, executor: u8) -> Option<Message> {
    io.effects.iter().rev().find_map(|effect| match effect {
        Effect::Send { to, message } if to.peer == contact(executor).peer => Some(message.clone()),
        _ => None,
    })
}

#[test]
fn a_renewal_extends_only_the_last_holding() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.votes.set_replicas(2);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 3, IntervalSet::from(0..TASKS)), &mut io, &config);
    io.now += config.lease / 2;
    assert_eq!(ledger.renew(&contact(1), 3, &mut io, &config), Some(config.lease));
    let end = io.now + config.lease;
    assert_eq!(ledger.placed.of(contact(1).peer).unwrap().until, end);
    io.now += config.lease / 2;
    let another_life = Contact { incarnation: 9, ..contact(1) };
    for (executor, version) in [(contact(1), 2), (contact(1), 4), (another_life, 3), (contact(2), 3)] {
        io.effects.clear();
        assert_eq!(ledger.renew(&executor, version, &mut io, &config), None);
        let answer = last_message(&io, executor.peer.0[0]);
        assert!(
            matches!(&answer, Some(Message::Lease(Lease { version: 0, drop, .. })) if drop.is_empty()),
            "{answer:?}"
        );
    }
    assert_eq!(ledger.placed.of(contact(1).peer).unwrap().until, end, "none of them renewed anything");
    // Another machine has done one of its tasks: the executor must drop it.
    ledger.replicate(&IntervalSet::from(7..8), &io, &config);
    ledger.holding(said(2, 1, IntervalSet::from(7..8)), &mut io, &config);
    ledger.record_result(result(7, true), contact(2), &mut io);
    assert_eq!(ledger.renew(&contact(1), 3, &mut io, &config), None);
    ledger.holding(said(1, 4, IntervalSet::from(0..TASKS)), &mut io, &config);
    let answer = last_message(&io, 1);
    assert!(
        matches!(&answer, Some(Message::Lease(Lease { drop, .. })) if *drop == IntervalSet::from(7..8)),
        "{answer:?}"
    );
    assert!(ledger.renew(&contact(1), 4, &mut io, &config).is_some());
    ledger.close(Closing::Cancelled, &mut io);
    assert_eq!(ledger.renew(&contact(1), 4, &mut io, &config), None);
    let answer = last_message(&io, 1);
    let all = IntervalSet::from(0..TASKS);
    assert!(matches!(&answer, Some(Message::Lease(Lease { drop, .. })) if *drop == all), "{answer:?}");
}

#[test]
fn offered_tasks_go_to_the_asker_or_are_issued_again() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    let first = ledger.requests(&io, &config).remove(0);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    let offered = IntervalSet::from(30..TASKS);
    for _ in 0..2 {
        // The second `Offer` changes nothing.
        ledger.offer(contact(1), &offered, contact(2), &mut io, &config);
        assert_eq!((ledger.view().placed, ledger.view().unplaced, ledger.issues.iter().count()), (30, 10, 1));
        let answer = last_message(&io, 1);
        assert!(matches!(&answer, Some(Message::Lease(Lease { drop, .. })) if *drop == offered), "{answer:?}");
    }
    assert!(last_message(&io, 2).is_none(), "not before that is durable");
    persist_all(&mut io);
    let sent = last_message(&io, 2);
    let Some(Message::Request { request, node: Node::Leaf, climbing: false }) = sent else { panic!("{sent:?}") };
    assert_eq!(request.ranges, offered);
    assert!(request.attempt > first.attempt, "who had and dropped them knows that these are not the same again");
    // The offering machine loses the tasks; the asker's `Holding` places them.
    ledger.holding(said(1, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
    assert_eq!((ledger.view().placed, ledger.view().unplaced), (30, 10), "they are another's");
    ledger.holding(said(2, 1, offered.clone()), &mut io, &config);
    assert_eq!(ledger.placed.of(contact(2).peer).unwrap().ranges, offered);
    assert_eq!((ledger.view().placed, ledger.view().reissued), (TASKS, 0));
    // A machine cannot offer another's tasks; tasks that do not arrive are issued again.
    ledger.offer(contact(1), &offered, contact(3), &mut io, &config);
    assert_eq!(ledger.placed.of(contact(2).peer).unwrap().ranges, offered);
    ledger.offer(contact(2), &offered, contact(3), &mut io, &config);
    io.now += config.placement_timeout;
    ledger.expire(&mut io);
    assert_eq!((ledger.view().placed, ledger.view().reissued), (30, 10));
}

#[test]
fn a_repeated_failure_counts_once() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 1);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    ledger.results(&contact(1), vec![result(5, false)], &mut io, &config);
    ledger.results(&contact(1), vec![result(5, false)], &mut io, &config);
    assert_eq!((ledger.tries.iter().next().unwrap().1.count, ledger.view().unplaced), (1, 1));
    // The executor still lists the task, since the acknowledgement is on its way: that places nothing.
    ledger.holding(said(1, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
    assert_eq!((ledger.view().placed, ledger.view().unplaced), (TASKS - 1, 1));
    // The second attempt may be the last.
    assert!(ledger.requests(&io, &config).is_empty());
    io.now += Duration::from_secs(2);
    ledger.expire(&mut io);
    ledger.requests(&io, &config);
    let again = Holding { attempt: 1, ..said(2, 1, IntervalSet::from(5..6)) };
    ledger.holding(again, &mut io, &config);
    ledger.results(&contact(2), vec![TaskResult { attempt: 1, ..result(5, false) }], &mut io, &config);
    ledger.fetched(5, true, None, &mut io);
    assert_eq!(ledger.view().failed, 1);
}

#[test]
fn tasks_that_a_holding_no_longer_lists_are_issued_again() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    ledger.holding(said(1, 2, IntervalSet::from(0..10)), &mut io, &config);
    assert_eq!(ledger.view().reissued, TASKS - 10);
    // An older `Holding` changes nothing.
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    assert_eq!(ledger.view().placed, 10);
    let again = ledger.requests(&io, &config);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].ranges, IntervalSet::from(10..TASKS));
    assert_eq!(again[0].attempt, 1);
}

#[test]
fn executors_are_asked_three_times_within_a_lease_after_a_restart() {
    let config = Config::default();
    let mut io = io();
    io.now = Time::ZERO + Duration::from_secs(1000);
    let mut ledger = ledger(&io, 0);
    ledger.restore_done(contact(1).peer, &result(0, true), io.now, &io);
    ledger.restore_placed(contact(1), &IntervalSet::from(0..20), &mut io, &config);
    assert_eq!((ledger.view().done, ledger.view().placed), (1, 19));
    // A placement whose tasks have all ended is removed, also on disk.
    ledger.restore_placed(contact(2), &IntervalSet::from(0..1), &mut io, &config);
    let gone = Change::Delete(RecordKey::Placed(ledger.bag.id, contact(2).peer));
    assert!(matches!(&io.effects[..], [Effect::Persist { changes, .. }] if *changes == [gone]), "{:?}", io.effects);
    // The bag is as old as this machine: an eighth of that, which a lease lasts else, is longer.
    assert!(ledger.term(&io, &config) > config.lease);
    for (second, asked) in [(19, 0), (20, 1), (39, 0), (40, 1), (59, 0)] {
        io.now = Time::ZERO + Duration::from_secs(1000 + second);
        io.effects.clear();
        ledger.ask_again(&mut io, &config);
        ledger.expire(&mut io);
        let is_question = |effect: &&Effect| matches!(effect, Effect::Send { message: Message::Lease(_), .. });
        assert_eq!(io.effects.iter().filter(is_question).count(), asked, "after {second} s");
        assert_eq!(ledger.view().reissued, 0);
    }
    io.now += Duration::from_secs(1);
    ledger.ask_again(&mut io, &config);
    ledger.expire(&mut io);
    assert_eq!(ledger.view().reissued, 19);
}

#[test]
fn unwanted_results_are_acknowledged_and_those_being_fetched_are_not() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.requests(&io, &config);
    ledger.results(&contact(1), vec![result(5, true)], &mut io, &config);
    ledger.results(&contact(2), vec![result(5, true)], &mut io, &config);
    let acks = |io: &Io| {
        let acks = io
            .effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Send { message: Message::ResultsAck { .. }, .. }));
        acks.count()
    };
    assert_eq!(acks(&io), 0);
    ledger.fetched(5, true, None, &mut io);
    ledger.results(&contact(1), vec![result(5, true)], &mut io, &config);
    assert_eq!((acks(&io), ledger.view().duplicates), (0, 0), "not before the journal is durable");
    // The executor is not told to drop the task either.
    ledger.holding(said(1, 1, IntervalSet::from(5..6)), &mut io, &config);
    let answer = last_message(&io, 1);
    assert!(matches!(&answer, Some(Message::Lease(Lease { drop, .. })) if drop.is_empty()), "{answer:?}");
    persist_all(&mut io);
    assert_eq!(acks(&io), 1, "the one whose word counted");
    ledger.holding(said(1, 2, IntervalSet::from(5..6)), &mut io, &config);
    let answer = last_message(&io, 1);
    assert!(matches!(&answer, Some(Message::Lease(Lease { drop, .. })) if drop.contains(5)), "{answer:?}");
    ledger.results(&contact(2), vec![result(5, true)], &mut io, &config);
    assert_eq!((acks(&io), ledger.view().duplicates), (2, 1));
}

/// A machine that has too much to do is waited for; one that does not have the output is not, and neither is one of which nothing
/// comes for very long.
#[test]
fn an_output_that_is_put_off_is_not_taken_for_lost() {
    let config = Config::default();
    let (mut io, say) = (io(), |ledger: &mut Ledger, index: u64, io: &mut Io| {
        ledger.results(&contact(1), vec![result(index, true)], io, &Config::default());
    });
    let mut ledger = ledger(&io, 0);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..30)), &mut io, &config);
    for _ in 0..4 * UNFETCHED_MAX {
        say(&mut ledger, 5, &mut io);
        assert!(ledger.outputs.is_fetching(5));
        ledger.put_off(5, &mut io);
        io.now += Duration::from_secs(20);
    }
    assert_eq!(ledger.view().reissued, 0, "it is late by less than ten minutes");
    say(&mut ledger, 6, &mut io);
    ledger.fetched(6, true, None, &mut io);
    io.now += PUT_OFF_MAX - Duration::from_secs(1);
    say(&mut ledger, 5, &mut io);
    ledger.put_off(5, &mut io);
    assert_eq!(ledger.view().reissued, 0, "another of its outputs came meanwhile");
    io.now += Duration::from_secs(1);
    say(&mut ledger, 5, &mut io);
    ledger.put_off(5, &mut io);
    assert_eq!(ledger.view().reissued, 1);
    assert!(
        matches!(last_message(&io, 1), Some(Message::Lease(Lease { drop, .. })) if drop == IntervalSet::from(5..6))
    );
    for _ in 0..UNFETCHED_MAX {
        assert_eq!(ledger.view().reissued, 1);
        say(&mut ledger, 7, &mut io);
        ledger.fetched(7, false, None, &mut io);
    }
    assert_eq!(ledger.view().reissued, 2, "it does not have it");
}

/// The results of a machine reach the ledger.
fn ends(ledger: &mut Ledger, executor: u8, index: u64, io: &mut Io) -> (bool, u64) {
    let (before, config) = (ledger.counts.unasked, Config::default());
    io.effects.clear();
    ledger.results(&contact(executor), vec![result(index, true)], io, &config);
    let fetches = io.effects.iter().any(|effect| matches!(effect, Effect::FetchOutput { .. }));
    ledger.fetched(index, true, None, io);
    (fetches, ledger.counts.unasked - before)
}

#[test]
fn only_present_and_former_holders_end_a_task() {
    let config = Config::default();
    let mut io = io();
    let mut ledger = ledger(&io, 3);
    assert_eq!(ends(&mut ledger, 9, 0, &mut io), (false, 1), "nothing was issued");
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..30)), &mut io, &config);
    // Any machine may be the one that the request has reached.
    assert_eq!(ends(&mut ledger, 2, 35, &mut io), (true, 0));
    assert_eq!(ends(&mut ledger, 9, 5, &mut io), (false, 1), "another machine has it");
    assert!(matches!(last_message(&io, 9), Some(Message::Lease(Lease { version: 0, drop, .. })) if drop.is_empty()));
    assert_eq!(ledger.view().done, 1);
    // A claim does not help while the task's executor renews its lease.
    ledger.holding(said(9, 1, IntervalSet::from(0..30)), &mut io, &config);
    assert!(
        matches!(last_message(&io, 9), Some(Message::Lease(Lease { drop, .. })) if drop == IntervalSet::from(0..30))
    );
    assert_eq!(ends(&mut ledger, 9, 5, &mut io), (false, 1));
    assert_eq!(ledger.placed.of(contact(1).peer).unwrap().ranges, IntervalSet::from(0..30));
    assert_eq!(ends(&mut ledger, 1, 5, &mut io), (true, 0));
    // A former executor may have ended the tasks that it gave away or lost with its lease.
    ledger.offer(contact(1), &IntervalSet::from(6..8), contact(3), &mut io, &config);
    ledger.holding(said(3, 1, IntervalSet::from(6..8)), &mut io, &config);
    assert_eq!(ends(&mut ledger, 1, 6, &mut io), (true, 0));
    io.now += ledger.term(&io, &config) * 2;
    ledger.expire(&mut io);
    ledger.requests(&io, &config);
    ledger.holding(said(2, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
    assert_eq!(ends(&mut ledger, 1, 10, &mut io), (true, 0));
    assert_eq!(ends(&mut ledger, 9, 11, &mut io), (false, 1));
    // So it keeps those that it finished until its results are here, but not tasks that have ended or that it never held.
    ledger.record_result(result(14, true), contact(1), &mut io);
    persist_all(&mut io);
    let some: IntervalSet = [14..15, 17..18].into_iter().collect();
    for (executor, forgotten) in [(1, some), (9, IntervalSet::from(14..18))] {
        let claim = said(executor, 9, IntervalSet::from(14..18));
        ledger.holding(Holding { finished: IntervalSet::from(14..17), ..claim }, &mut io, &config);
        let answer = last_message(&io, executor);
        assert!(matches!(&answer, Some(Message::Lease(Lease { drop, .. })) if *drop == forgotten), "{answer:?}");
    }
    assert_eq!(
        ledger.placed.of(contact(2).peer).unwrap().ranges.len(),
        ledger.view().placed,
        "what is placed stays where it is"
    );
    // The same after a restart of the submitter.
    let former: Vec<Record> = ledger.former().collect();
    let mut later = self::ledger(&io, 3);
    later.restore_attempt(1);
    later.restore_placed(contact(2), &IntervalSet::from(0..TASKS), &mut io, &config);
    for record in former {
        let Record::Former { executor, ranges, .. } = record else { panic!("{record:?}") };
        later.restore_former(executor, ranges);
    }
    assert_eq!(ends(&mut later, 1, 12, &mut io), (true, 0));
    assert_eq!(ends(&mut later, 9, 13, &mut io), (false, 1));
    later.close(Closing::Cancelled, &mut io);
    let (_, gone) = written(&mut io);
    assert!(gone.contains(&RecordKey::Former(later.bag.id, contact(1).peer)), "{gone:?}");
}

#[test]
fn former_placements_are_bounded() {
    let mut io = io();
    let mut ledger = ledger(&io, 0);
    ledger.bag.tasks = 100_000;
    let scattered: IntervalSet = (0..50_000).map(|at| 2 * at..2 * at + 1).collect();
    ledger.note_former(contact(1).peer, &scattered);
    assert_eq!(ledger.former.of(contact(1).peer).unwrap().intervals(), HELD_INTERVALS_MAX);
    // Ended tasks are forgotten.
    ledger.record_result(result(0, true), contact(1), &mut io);
    ledger.note_former(contact(1).peer, &IntervalSet::from(0..1));
    assert!(!ledger.former.of(contact(1).peer).unwrap().contains(0));
}

/// The records that these effects write, and delete.
fn written(io: &mut Io) -> (Vec<Record>, Vec<RecordKey>) {
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    for effect in std::mem::take(&mut io.effects) {
        let Effect::Persist { ticket, changes } = effect else { continue };
        for change in changes {
            match change {
                Change::Put(record) => put.push(record),
                Change::Delete(key) => gone.push(key),
            }
        }
        io.persisted(ticket);
    }
    (put, gone)
}
