//! Tests of failed tries.

use std::collections::BTreeMap;

use super::super::Holding;
use super::super::avoided::{AVOID_FIRST, FAILED_IN_ROW};
use super::super::outputs::UNFETCHED_MAX;
use super::super::tests::{TASKS, assert_accounted, contact, io, ledger, persist_all, result, said};
use super::*;
use crate::conditions::Conditions;
use crate::io::Ticket;
use crate::message::Lease;
use crate::peer::Effect;

/// A ledger whose tasks are all on machine 1.
fn placed(retries_max: u32) -> (Ledger, Io, Config) {
    let (config, mut io) = (Config::default(), io());
    let mut ledger = ledger(&io, retries_max);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    (ledger, io, config)
}

fn fail(ledger: &mut Ledger, executor: u8, index: u64, crashed: bool, io: &mut Io, config: &Config) {
    let attempt = ledger.attempt;
    let result = TaskResult { attempt, crashed, ..result(index, false) };
    ledger.results(&contact(executor), vec![result], io, config);
    assert_accounted(ledger);
}

/// Waits until the task is issued again, and places it on this machine; returns the wait in quarters of a second.
fn again(ledger: &mut Ledger, executor: u8, index: u64, version: u64, io: &mut Io, config: &Config) -> u32 {
    persist_all(io);
    let mut quarters = 0;
    let is_it = |request: &crate::bag::Request| request.ranges.contains(index);
    while !ledger.requests(io, config).iter().any(is_it) {
        io.now += Duration::from_millis(250);
        ledger.expire(io);
        quarters += 1;
        assert!(quarters < 10_000, "it is never issued again");
    }
    let attempt = ledger.attempt;
    let holding = said(executor, version, IntervalSet::from(index..index + 1));
    ledger.holding(Holding { attempt, ..holding }, io, config);
    quarters
}

#[test]
fn pauses_double_with_each_failed_try() {
    let (mut ledger, mut io, config) = placed(20);
    let mut pauses = Vec::new();
    for version in 1..=11 {
        fail(&mut ledger, if version == 1 { 1 } else { 9 }, 5, false, &mut io, &config);
        pauses.push(again(&mut ledger, 9, 5, version, &mut io, &config));
    }
    assert_eq!(pauses[..4], [4, 8, 16, 32]);
    assert_eq!(pauses[9..], [1200, 1200], "five minutes at most");
}

/// A task that fails at once is over before its machine has said that it took it.
#[test]
fn a_failure_that_comes_before_its_machine_took_the_task_counts_once_it_did() {
    let (config, mut io) = (Config::default(), io());
    let mut ledger = ledger(&io, 0);
    ledger.requests(&io, &config);
    fail(&mut ledger, 1, 5, false, &mut io, &config);
    let is_ack = |effect: &Effect| matches!(effect, Effect::Send { message: Message::ResultsAck { .. }, .. });
    let asks =
        |effect: &Effect| matches!(effect, Effect::Send { message: Message::Lease(Lease { version: 0, .. }), .. });
    assert!(io.effects.iter().any(asks) && !io.effects.iter().any(is_ack), "{:?}", io.effects);
    assert!(!ledger.tries.is_known(5), "it does not count yet");
    ledger.holding(said(1, 1, IntervalSet::from(5..6)), &mut io, &config);
    fail(&mut ledger, 1, 5, false, &mut io, &config);
    assert!(ledger.outputs.is_fetching(5), "its only try has failed");
}

/// Whether the task gets another try after it has failed so on these machines, one after the other.
fn is_tried_again(conditions: Conditions, failures: &[(u8, Option<u8>, Option<u64>)]) -> bool {
    let (mut ledger, mut io, config) = placed(20);
    ledger.set_conditions(conditions, &io);
    let mut on = 1;
    for (version, &(executor, exit_code, fingerprint)) in (1..).zip(failures) {
        if executor != on {
            ledger.take_back(5, &contact(on), None, &mut io);
            again(&mut ledger, executor, 5, version, &mut io, &config);
            on = executor;
        }
        let attempt = ledger.attempt;
        let result = TaskResult { attempt, exit_code, fingerprint, ..result(5, false) };
        ledger.results(&contact(executor), vec![result], &mut io, &config);
        assert_accounted(&ledger);
        if ledger.outputs.is_fetching(5) || ledger.is_over(5) {
            return false;
        }
        again(&mut ledger, executor, 5, version + 100, &mut io, &config);
    }
    true
}

#[test]
fn a_task_that_fails_alike_on_two_machines_is_not_tried_on_a_third() {
    let alike = |failures: &[(u8, Option<u8>, Option<u64>)]| !is_tried_again(Conditions::default(), failures);
    assert!(alike(&[(1, Some(3), Some(7)), (2, Some(3), Some(7))]));
    assert!(alike(&[(1, Some(3), Some(7)), (2, Some(4), Some(7)), (3, Some(3), Some(7))]), "not in a row");
    assert!(!alike(&[(1, Some(3), Some(7)), (1, Some(3), Some(7))]), "the machine may be to blame");
    assert!(!alike(&[(1, Some(3), Some(7)), (2, Some(3), Some(8))]), "it printed something else");
    assert!(!alike(&[(1, Some(3), Some(7)), (2, Some(4), Some(7))]), "another exit code");
    assert!(!alike(&[(1, Some(3), None), (2, Some(3), None)]), "an older machine says nothing of it");
    assert!(!alike(&[(1, None, Some(7)), (2, None, Some(7))]), "it did not end by itself");
}

#[test]
fn how_a_task_failed_is_remembered_across_a_restart() {
    let (mut ledger, mut io, config) = placed(20);
    let failed = TaskResult { exit_code: Some(3), fingerprint: Some(7), ..result(5, false) };
    ledger.results(&contact(1), vec![failed.clone()], &mut io, &config);
    let records: Vec<Record> = ledger.failures().collect();
    let [Record::Failures { endings, .. }] = &records[..] else { panic!("{records:?}") };
    assert_eq!(*endings, [Ending { machine: contact(1).peer, exit_code: 3, fingerprint: 7 }]);
    let mut later = super::super::tests::ledger(&io, 20);
    let endings = endings.clone();
    later.restore_failures(5, Failures { count: 1, endings, ..Failures::default() });
    assert!(later.fails_for_good(&failed, contact(2).peer));
    assert!(!later.fails_for_good(&failed, contact(1).peer));
}

#[test]
fn only_the_exit_codes_are_tried_again_that_the_user_named() {
    let named = || Conditions { retry_on: Some([75, 3].into()), ..Conditions::default() };
    assert!(is_tried_again(named(), &[(1, Some(75), Some(1)), (1, Some(3), Some(2))]));
    assert!(!is_tried_again(named(), &[(1, Some(4), Some(1))]));
    assert!(is_tried_again(named(), &[(1, None, None)]), "what was killed did not end by itself");
    assert!(
        is_tried_again(named(), &[(1, Some(75), Some(1)), (2, Some(75), Some(1))]),
        "the user says so, however alike"
    );
    let usual = Conditions::default;
    assert!(!is_tried_again(usual(), &[(1, Some(9), Some(1)), (2, Some(9), Some(1))]));
    assert!(
        is_tried_again(usual(), &[(1, Some(137), Some(1)), (2, Some(137), Some(1))]),
        "a shell's command was killed"
    );
    let (mut ledger, mut io, config) = placed(20);
    ledger.set_conditions(named(), &io);
    fail(&mut ledger, 1, 5, true, &mut io, &config);
    assert!(!ledger.is_over(5) && !ledger.outputs.is_fetching(5), "its machine may be to blame where a worker dies");
}

#[test]
fn a_task_that_brings_three_machines_down_has_failed() {
    let (mut ledger, mut io, config) = placed(0);
    fail(&mut ledger, 1, 5, true, &mut io, &config);
    again(&mut ledger, 2, 5, 1, &mut io, &config);
    fail(&mut ledger, 2, 5, true, &mut io, &config);
    assert!(!ledger.outputs.is_fetching(5), "it may be the machines");
    again(&mut ledger, 3, 5, 1, &mut io, &config);
    fail(&mut ledger, 3, 5, true, &mut io, &config);
    assert!(ledger.outputs.is_fetching(5), "what it wrote is fetched, as of any that has failed");
    ledger.fetched(5, true, None, &mut io);
    assert_eq!(ledger.view().failed, 1);
    // The second crash on one machine is the task's own failure.
    let (mut ledger, mut io, config) = placed(0);
    fail(&mut ledger, 1, 5, true, &mut io, &config);
    again(&mut ledger, 1, 5, 2, &mut io, &config);
    fail(&mut ledger, 1, 5, true, &mut io, &config);
    assert!(ledger.outputs.is_fetching(5));
}

/// Applies the writes to the store.
fn store(io: &mut Io) -> BTreeMap<RecordKey, Record> {
    let mut stored = BTreeMap::new();
    for effect in &io.effects {
        if let Effect::Persist { changes, .. } = effect {
            for change in changes {
                match change {
                    Change::Put(record) => stored.insert(record.key(), record.clone()),
                    Change::Delete(key) => stored.remove(key),
                };
            }
        }
    }
    stored
}

fn acks(io: &Io) -> usize {
    let is_ack = |effect: &&Effect| matches!(effect, Effect::Send { message: Message::ResultsAck { .. }, .. });
    io.effects.iter().filter(is_ack).count()
}

#[test]
fn failures_survive_a_restart_and_are_durable_before_they_are_acknowledged() {
    let (mut ledger, mut io, config) = placed(1);
    fail(&mut ledger, 1, 5, false, &mut io, &config);
    fail(&mut ledger, 1, 6, true, &mut io, &config);
    // A repeated failure is acknowledged no sooner.
    fail(&mut ledger, 1, 5, false, &mut io, &config);
    assert_eq!(acks(&io), 0);
    for ticket in 0..20 {
        io.persisted(Ticket(ticket));
    }
    assert_eq!(acks(&io), 2);
    let stored = store(&mut io);
    let mut later = super::super::tests::ledger(&io, 1);
    for record in stored.values() {
        if let Record::Failures { index, count, crashed_on, next_attempt, void_before, .. } = record {
            let (count, next_attempt, void_before) = (*count, *next_attempt, *void_before);
            let crashed_on = crashed_on.clone();
            later.restore_failures(
                *index,
                Failures { count, crashed_on, next_attempt, void_before, endings: Vec::new() },
            );
        }
    }
    assert!(later.tries.iter().eq(ledger.tries.iter()));
    assert_eq!(later.tries.iter().count(), 2);
    // The second failure is the last one, and a closed bag has no such record.
    later.restore_attempt(ledger.attempt);
    again(&mut later, 1, 5, 1, &mut io, &config);
    fail(&mut later, 1, 5, false, &mut io, &config);
    assert!(later.outputs.is_fetching(5));
    later.fetched(5, true, None, &mut io);
    assert!(!store(&mut io).contains_key(&RecordKey::Failures(later.bag.id, 5)));
    later.close(Closing::Cancelled, &mut io);
    assert!(!store(&mut io).keys().any(|key| matches!(key, RecordKey::Failures(..))));
}

/// Machine 1 has the first 20 tasks, machine 2 the others, so many of which succeed.
fn beside(done: u64) -> (Ledger, Io, Config) {
    let (config, mut io) = (Config::default(), io());
    let mut ledger = ledger(&io, 9);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..20)), &mut io, &config);
    ledger.holding(said(2, 1, IntervalSet::from(20..TASKS)), &mut io, &config);
    for index in 20..20 + done {
        ledger.results(&contact(2), vec![result(index, true)], &mut io, &config);
        ledger.fetched(index, true, None, &mut io);
    }
    for index in 0..5 {
        fail(&mut ledger, 1, index, false, &mut io, &config);
    }
    (ledger, io, config)
}

fn rests(io: &Io) -> Vec<Duration> {
    let rest = |effect: &Effect| match effect {
        Effect::Send { to, message: Message::Lease(Lease { rest, .. }) } if to.peer == contact(1).peer => Some(*rest),
        _ => None,
    };
    io.effects.iter().filter_map(rest).filter(|rest| !rest.is_zero()).collect()
}

#[test]
fn a_machine_on_which_all_fails_is_avoided_for_a_while() {
    let (mut ledger, mut io, config) = beside(5);
    assert_eq!(rests(&io), [AVOID_FIRST]);
    assert!(ledger.placed.of(contact(1).peer).is_none());
    assert_eq!((ledger.view().placed, ledger.view().unplaced), (15, 20));
    io.now += Duration::from_secs(30);
    ledger.expire(&mut io);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 2, IntervalSet::from(5..8)), &mut io, &config);
    assert!(ledger.placed.of(contact(1).peer).is_none(), "nothing is left to it");
    assert_eq!(rests(&io), [AVOID_FIRST, AVOID_FIRST - Duration::from_secs(30)], "told again");
    ledger.holding(said(2, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
    assert_accounted(&ledger);
    // Then it gets tasks again, and one failure has it avoided for twice as long.
    io.now += Duration::from_secs(31);
    ledger.expire(&mut io);
    ledger.holding(said(2, 3, IntervalSet::from(10..TASKS)), &mut io, &config);
    again(&mut ledger, 1, 3, 3, &mut io, &config);
    fail(&mut ledger, 1, 3, false, &mut io, &config);
    assert_eq!(rests(&io).last(), Some(&(2 * AVOID_FIRST)));
}

#[test]
fn no_machine_is_avoided_where_tasks_fail_everywhere() {
    let (mut ledger, mut io, config) = beside(4);
    assert!(rests(&io).is_empty() && ledger.placed.of(contact(1).peer).is_some());
    // A machine that succeeds now and then is not avoided.
    ledger.results(&contact(1), vec![result(6, true)], &mut io, &config);
    ledger.fetched(6, true, None, &mut io);
    for index in 7..11 {
        fail(&mut ledger, 1, index, false, &mut io, &config);
    }
    assert!(rests(&io).is_empty());
}

#[test]
fn rerun_gives_failed_tasks_all_tries_again() {
    let (mut ledger, mut io, config) = placed(0);
    for index in 0..TASKS {
        ledger.results(&contact(1), vec![result(index, index % 4 != 1)], &mut io, &config);
        ledger.fetched(index, true, None, &mut io);
    }
    assert!(ledger.is_closed());
    let failed: IntervalSet = ledger.ended().1;
    assert_eq!(ledger.rerun(&failed, &mut io), 10);
    assert!(!ledger.is_closed());
    assert_accounted(&ledger);
    let stored = store(&mut io);
    assert!(!stored.contains_key(&RecordKey::Done(ledger.bag.id, 1)) && stored.len() == 41, "{stored:?}");
    let requests = ledger.requests(&io, &config);
    assert_eq!(requests.iter().map(|request| request.ranges.len()).sum::<u64>(), 10);
    let attempt = requests[0].attempt;
    ledger.holding(Holding { attempt, ..said(2, 1, requests[0].ranges.clone()) }, &mut io, &config);
    for index in requests[0].ranges.indices() {
        ledger.results(&contact(2), vec![TaskResult { attempt, ..result(index, true) }], &mut io, &config);
        ledger.fetched(index, true, None, &mut io);
    }
    assert!(ledger.is_closed());
    assert_eq!((ledger.view().done, ledger.rerun(&IntervalSet::new(), &mut io)), (TASKS, 0));
    // Succeeded tasks can be run again, too.
    assert_eq!(ledger.rerun(&IntervalSet::from(3..5), &mut io), 2);
    assert_eq!((ledger.view().done, ledger.is_closed()), (TASKS - 2, false));
    assert_accounted(&ledger);
    assert!(!store(&mut io).contains_key(&RecordKey::Done(ledger.bag.id, 3)));
    // A `Holding` from before the rerun places nothing.
    ledger.holding(said(1, 9, IntervalSet::from(3..4)), &mut io, &config);
    assert!(ledger.waiting.unissued().contains(3) && ledger.placed.of(contact(1).peer).is_none());
    let requests = ledger.requests(&io, &config);
    let attempt = requests[0].attempt;
    ledger.holding(Holding { attempt, ..said(2, 2, requests[0].ranges.clone()) }, &mut io, &config);
    for index in 3..5 {
        ledger.results(&contact(2), vec![TaskResult { attempt, ..result(index, true) }], &mut io, &config);
        ledger.fetched(index, true, None, &mut io);
    }
    assert_eq!((ledger.view().done, ledger.is_closed()), (TASKS, true));
    // The records to delete when the bag is removed.
    let (done, failed) = ledger.ended();
    assert!(store(&mut io).into_keys().all(|key| match key {
        RecordKey::Bag(_) => true,
        RecordKey::Done(_, index) => done.contains(index) || failed.contains(index),
        // The placements have no records any more.
        key => matches!(key, RecordKey::Placed(..)),
    }));
}

/// A last failure may wait for its output: only its record acknowledges it.
#[test]
fn the_last_failure_counts_whenever_its_output_arrives() {
    for crashed in [false, true] {
        let (mut ledger, mut io, config) = placed(0);
        let mut machine = 1;
        while crashed && machine < CRASHED_ON_MAX as u8 {
            fail(&mut ledger, machine, 5, true, &mut io, &config);
            machine += 1;
            again(&mut ledger, machine, 5, 1, &mut io, &config);
        }
        let (acked, attempt, until) = (acks(&io), ledger.attempt, 3 + FAILED_IN_ROW);
        for times in 1..until {
            let result = TaskResult { attempt, crashed, ..result(5, false) };
            ledger.results(&contact(machine), vec![result], &mut io, &config);
            assert!(ledger.outputs.is_fetching(5), "said {times} times");
            ledger.outputs.forget(5);
            ledger.fetched(5, times + 1 == until, None, &mut io);
            persist_all(&mut io);
            assert_eq!(acks(&io) - acked, usize::from(times + 1 == until));
            // The task has failed once, however often that was repeated.
            assert_eq!(ledger.avoided.failed_in_row(contact(machine).peer), 1);
        }
        assert_eq!(ledger.view().failed, 1);
    }
}

/// If its output is lost for good the task is run again, without additional tries.
#[test]
fn a_last_failure_without_output_is_run_again() {
    let (mut ledger, mut io, config) = placed(0);
    for round in 0..2 {
        let attempt = ledger.attempt;
        for _ in 0..UNFETCHED_MAX {
            ledger.results(&contact(1), vec![TaskResult { attempt, ..result(5, false) }], &mut io, &config);
            ledger.fetched(5, false, None, &mut io);
        }
        assert!(ledger.waiting.unissued().contains(5), "round {round}");
        again(&mut ledger, 1, 5, round + 2, &mut io, &config);
    }
    fail(&mut ledger, 1, 5, false, &mut io, &config);
    ledger.fetched(5, true, None, &mut io);
    assert_eq!((ledger.view().failed, ledger.avoided.tries_failed()), (1, 1));
}
