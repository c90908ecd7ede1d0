//! Copies of begun tasks: who gets one, when, and what comes of the other run.

use super::*;
use crate::ledger::quorum::Replication;
use crate::message::{Lease, SHARED_LATE};

const SECOND: Duration = Duration::from_secs(1);

/// A ledger whose tasks are all placed: the first half with machine 1, the others with machine 2.
fn placed() -> (Ledger, Io, Config) {
    let (mut io, config) = (io(), Config::default());
    let mut ledger = ledger(&io, 3);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..20)), &mut io, &config);
    ledger.holding(said(2, 1, IntervalSet::from(20..TASKS)), &mut io, &config);
    io.effects.clear();
    (ledger, io, config)
}

fn share(ledger: &mut Ledger, io: &mut Io, executor: u8, tasks: &[(u64, u32)]) {
    ledger.shared_out(contact(executor).peer, tasks.iter().copied().collect(), io);
}

fn copies(ledger: &mut Ledger, io: &mut Io, config: &Config) -> Option<(IntervalSet, u32)> {
    let request = ledger.issue_copies(io, config);
    ledger.assert_consistent();
    request.map(|request| (request.ranges, request.copy.unwrap()))
}

/// The tasks that each machine is told to drop.
fn dropped(io: &mut Io) -> Vec<(u8, IntervalSet)> {
    let tickets: Vec<_> = io
        .effects
        .iter()
        .filter_map(|effect| if let Effect::Persist { ticket, .. } = effect { Some(*ticket) } else { None })
        .collect();
    for ticket in tickets {
        let _ = io.persisted(ticket);
    }
    let dropped = io.effects.drain(..).filter_map(|effect| match effect {
        Effect::Send { to, message: Message::Lease(Lease { drop, .. }) } if !drop.is_empty() => {
            Some((to.peer.0[0], drop))
        }
        _ => None,
    });
    dropped.collect()
}

#[test]
fn a_task_that_stands_still_has_one_copy_and_the_first_result_counts() {
    for first in [1, 3] {
        let (mut ledger, mut io, config) = placed();
        share(&mut ledger, &mut io, 1, &[(4, 0), (30, 0)]);
        let one = IntervalSet::from(4..5);
        assert_eq!(copies(&mut ledger, &mut io, &config), Some((one.clone(), 0)), "30 is on another machine");
        assert_eq!(copies(&mut ledger, &mut io, &config), None, "one on its way");
        ledger.holding(said(3, 1, one.clone()), &mut io, &config);
        share(&mut ledger, &mut io, 1, &[(4, 0)]);
        assert_eq!(copies(&mut ledger, &mut io, &config), None, "one placed");
        assert!(dropped(&mut io).is_empty());
        let other = 4 - first;
        ledger.results(&contact(first), vec![result(4, true)], &mut io, &config);
        ledger.fetched(4, true, None, &mut io);
        ledger.assert_consistent();
        let sent = io.effects.iter().any(
            |effect| matches!(effect, Effect::Send { message: Message::Lease(Lease { drop, .. }), .. } if !drop.is_empty()),
        );
        assert!(!sent, "not before the result is durable");
        assert_eq!(dropped(&mut io), [(other, one)]);
        ledger.results(&contact(other), vec![result(4, true)], &mut io, &config);
        assert_eq!((ledger.view().done, ledger.view().duplicates), (1, 1));
    }
}

#[test]
fn nothing_is_copied_while_anything_waits() {
    let (mut ledger, mut io, config) = placed();
    share(&mut ledger, &mut io, 1, &[(4, 0)]);
    // Machine 2 gives a task back: it is unissued, then in a request.
    ledger.holding(said(2, 2, IntervalSet::from(20..TASKS - 1)), &mut io, &config);
    assert_eq!(copies(&mut ledger, &mut io, &config), None);
    let number = ledger.requests(&io, &config).len();
    assert_eq!((number, copies(&mut ledger, &mut io, &config)), (1, None));
    ledger.holding(said(3, 1, IntervalSet::from(TASKS - 1..TASKS)), &mut io, &config);
    assert!(copies(&mut ledger, &mut io, &config).is_some());
}

#[test]
fn in_the_tail_the_last_task_is_copied_where_a_fifth_is_won() {
    let (mut ledger, mut io, config) = placed();
    share(&mut ledger, &mut io, 1, &[(4, 100)]);
    share(&mut ledger, &mut io, 2, &[(25, 600)]);
    io.longest_wait_s = 1;
    assert_eq!(copies(&mut ledger, &mut io, &config), None, "tasks wait on the grid");
    io.longest_wait_s = 0;
    io.now += 100 * SECOND;
    assert_eq!(copies(&mut ledger, &mut io, &config), Some((IntervalSet::from(25..26), 400)));
    assert_eq!(copies(&mut ledger, &mut io, &config), None, "the other one is about to end");
}

/// A machine that has learned that it is slow says that its begun tasks end late (`executor/sharing.rs`). It is believed unless results say that all tasks take longer.
#[test]
fn a_late_task_is_copied_while_tasks_wait_on_the_grid() {
    for (times_said, is_believed) in [(0.0, false), (1.4, true), (1.6, false)] {
        let (mut ledger, mut io, config) = placed();
        io.longest_wait_s = 60;
        if times_said > 0.0 {
            io.now += 100 * SECOND;
            let result = TaskResult { work_mops: times_said * ledger.bag.task_mops, ..result(25, true) };
            ledger.results(&contact(2), vec![result], &mut io, &config);
            ledger.fetched(25, true, None, &mut io);
        }
        share(&mut ledger, &mut io, 1, &[(4, 600), (5, SHARED_LATE | 600)]);
        let copied = is_believed.then(|| (IntervalSet::from(5..6), 0));
        assert_eq!(copies(&mut ledger, &mut io, &config), copied, "{times_said} times the work that was said");
        if is_believed {
            // The other machine is as slow.
            ledger.holding(said(3, 1, IntervalSet::from(5..6)), &mut io, &config);
            assert_eq!(copies(&mut ledger, &mut io, &config), None);
            share(&mut ledger, &mut io, 3, &[(5, SHARED_LATE | 600)]);
            assert_eq!(copies(&mut ledger, &mut io, &config), Some((IntervalSet::from(5..6), 0)));
        }
    }
}

#[test]
fn a_copy_that_no_machine_takes_is_asked_for_later_and_costs_nothing() {
    let (mut ledger, mut io, config) = placed();
    share(&mut ledger, &mut io, 1, &[(4, 0)]);
    let one = IntervalSet::from(4..5);
    let mut waits = Vec::new();
    for round in 0..3 {
        assert!(copies(&mut ledger, &mut io, &config).is_some(), "round {round}");
        if round == 1 {
            // It is lost on its way.
            io.now += config.placement_timeout;
            ledger.expire(&mut io);
        } else {
            ledger.declined(contact(9).peer, &one, DeclineReason::Copy, &mut io);
        }
        assert_eq!(copies(&mut ledger, &mut io, &config), None);
        let next = ledger.copies.again_at().unwrap();
        assert!(ledger.deadline().is_some_and(|due| due <= next));
        waits.push(next.since(io.now).as_secs());
        io.now = next;
        ledger.renew(&contact(1), 1, &mut io, &config);
        ledger.renew(&contact(2), 1, &mut io, &config);
        ledger.expire(&mut io);
    }
    assert_eq!(waits, [5, 10, 20]);
    let view = ledger.view();
    assert_eq!((view.reissued, view.astray, view.declined.len(), view.unplaced), (0, 0, 0, 0));
}

#[test]
fn a_task_is_issued_again_only_without_either_run() {
    for first in [1, 3] {
        let (mut ledger, mut io, config) = placed();
        share(&mut ledger, &mut io, 1, &[(4, 0)]);
        copies(&mut ledger, &mut io, &config);
        ledger.holding(said(3, 1, IntervalSet::from(4..5)), &mut io, &config);
        let mine = IntervalSet::from(0..20);
        let without = mine.difference(&IntervalSet::from(4..5));
        let lose = |ledger: &mut Ledger, io: &mut Io, machine: u8| {
            let rest = if machine == 1 { without.clone() } else { IntervalSet::new() };
            ledger.holding(said(machine, 2, rest), io, &config);
            ledger.assert_consistent();
        };
        lose(&mut ledger, &mut io, first);
        assert_eq!((ledger.view().reissued, ledger.view().unplaced), (0, 0));
        lose(&mut ledger, &mut io, 4 - first);
        assert_eq!((ledger.view().reissued, ledger.view().unplaced), (1, 1));
    }
}

#[test]
fn a_failure_of_one_run_leaves_the_other() {
    let (mut ledger, mut io, config) = placed();
    share(&mut ledger, &mut io, 1, &[(4, 0)]);
    copies(&mut ledger, &mut io, &config);
    ledger.holding(said(3, 1, IntervalSet::from(4..5)), &mut io, &config);
    ledger.results(&contact(3), vec![result(4, false)], &mut io, &config);
    ledger.assert_consistent();
    assert_eq!((ledger.view().failed, ledger.view().unplaced), (0, 0), "machine 1 has it still");
    ledger.results(&contact(1), vec![result(4, true)], &mut io, &config);
    ledger.fetched(4, true, None, &mut io);
    assert_eq!(ledger.view().done, 1);
}

#[test]
fn a_copy_is_no_vote() {
    let (mut io, config) = (io(), Config::default());
    let bag = ledger(&io, 3).bag;
    let replication = Replication { replicas: 2, quorum: 2, recheck: 0 };
    let mut ledger = Ledger::new(bag, Time::ZERO, 3, replication, &io);
    ledger.open();
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    share(&mut ledger, &mut io, 1, &[(4, 0)]);
    assert_eq!(copies(&mut ledger, &mut io, &config), None);
}

#[test]
fn a_machine_that_does_not_have_a_task_cannot_have_it_copied() {
    let (mut ledger, mut io, config) = placed();
    share(&mut ledger, &mut io, 3, &[(4, 0)]);
    assert_eq!(copies(&mut ledger, &mut io, &config), None);
    share(&mut ledger, &mut io, 1, &[(4, 0)]);
    share(&mut ledger, &mut io, 1, &[]);
    assert_eq!(copies(&mut ledger, &mut io, &config), None, "its owner has left");
}

#[test]
fn a_task_has_further_copies_only_while_all_its_runs_stand_still() {
    let (mut ledger, mut io, config) = placed();
    let one = IntervalSet::from(4..5);
    for machine in [1, 3, 4, 5] {
        if machine > 1 {
            ledger.holding(said(machine, 1, one.clone()), &mut io, &config);
            ledger.assert_consistent();
            assert_eq!(copies(&mut ledger, &mut io, &config), None, "it runs on {machine}");
        }
        share(&mut ledger, &mut io, machine, &[(4, 0)]);
        let copied = copies(&mut ledger, &mut io, &config);
        assert_eq!(copied, (machine < 5).then(|| (one.clone(), 0)), "after {machine}");
    }
    // The owner of one has left, and comes again.
    share(&mut ledger, &mut io, 3, &[]);
    assert_eq!(copies(&mut ledger, &mut io, &config), None);
    // All others stop once the result of one is durable.
    ledger.results(&contact(4), vec![result(4, true)], &mut io, &config);
    ledger.fetched(4, true, None, &mut io);
    let mut stopped = dropped(&mut io);
    stopped.sort_by_key(|(machine, _)| *machine);
    assert_eq!(stopped, [1, 3, 5].map(|machine| (machine, one.clone())));
    ledger.assert_consistent();
}
