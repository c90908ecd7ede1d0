//! Tests of the work that results report.

use super::*;

/// A bag without a declared task size: 10 Mop were measured.
fn undeclared(io: &Io) -> Ledger {
    let mut ledger = ledger(io, 0);
    ledger.bag.declared = false;
    ledger.set_work(10.0, 400.0);
    ledger
}

/// This machine holds these tasks, and a second later reports so much work for each.
fn ran(ledger: &mut Ledger, executor: u8, ranges: std::ops::Range<u64>, work_mops: f64, io: &mut Io) {
    let config = Config::default();
    ledger.requests(io, &config);
    ledger.holding(said(executor, 1, IntervalSet::from(ranges.clone())), io, &config);
    io.now += Duration::from_secs(1);
    for index in ranges {
        ledger.results(&contact(executor), vec![TaskResult { work_mops, ..result(index, true) }], io, &config);
        ledger.fetched(index, true, None, io);
    }
    persist_all(io);
}

/// a of tasks that are issued again.
fn issued_again(ledger: &mut Ledger, io: &mut Io) -> f64 {
    io.now += Duration::from_secs(3600);
    ledger.expire(io);
    let again = ledger.requests(io, &Config::default());
    again.first().expect("something is issued again").bag.task_mops
}

#[test]
fn impossible_work_in_results_does_not_count() {
    for others in [0, 1, 2, 5] {
        let mut io = io();
        let mut ledger = undeclared(&io);
        ran(&mut ledger, 9, 0..10, 1e14, &mut io);
        for other in 0..others {
            let first = 10 + u64::from(other) * 2;
            ran(&mut ledger, other + 1, first..first + 2, 12.0, &mut io);
        }
        let expected = if others > 0 { 12.0 } else { 10.0 };
        assert_eq!(issued_again(&mut ledger, &mut io), expected, "beside {others} others");
        let view = ledger.view();
        assert_eq!((view.overstated, view.done), (10, 10 + 2 * u64::from(others)), "its results count all the same");
        assert_eq!(view.measured_mops, if others > 0 { 12.0 } else { 0.0 });
    }
}

#[test]
fn a_submitter_whose_tasks_wait_believes_what_it_believed_before() {
    let mut io = io();
    let mut ledger = undeclared(&io);
    // By the clock it is as slow as the fastest machines are fast.
    io.speed_mops /= 64.0;
    ran(&mut ledger, 1, 0..2, 5e4, &mut io);
    let view = ledger.view();
    assert_eq!((view.overstated, view.work_done_mops), (0, 1e5));
}

#[test]
fn people_read_of_all_machines_that_computed_those_of_failed_tasks_too() {
    let mut io = io();
    let mut ledger = undeclared(&io);
    ran(&mut ledger, 1, 0..2, 12.0, &mut io);
    ledger.holding(said(2, 1, IntervalSet::from(2..3)), &mut io, &Config::default());
    io.now += Duration::from_secs(1);
    let failed = TaskResult { work_mops: 30.0, ..result(2, false) };
    ledger.results(&contact(2), vec![failed], &mut io, &Config::default());
    ledger.fetched(2, true, None, &mut io);
    persist_all(&mut io);
    let view = ledger.view();
    assert_eq!((view.done, view.failed, view.machines_used, view.work_done_mops), (2, 1, 2, 54.0));
    assert_eq!(view.measured_mops, 12.0, "a failed task says nothing of how long one takes");
}

#[test]
fn one_machine_has_one_voice_however_many_results_it_sends() {
    for lie in [0.0, 5e4] {
        let mut io = io();
        let mut ledger = undeclared(&io);
        // Just so much can be done in a second.
        ran(&mut ledger, 9, 0..30, lie, &mut io);
        ran(&mut ledger, 1, 30..31, 11.0, &mut io);
        // Between two voices the submitter's own measurement decides.
        let of_two = ledger.view().measured_mops;
        assert!((10.0..=11.0).contains(&of_two), "{of_two} between {lie} and 11");
        ran(&mut ledger, 2, 31..32, 13.0, &mut io);
        let of_three = issued_again(&mut ledger, &mut io);
        assert!((11.0..=13.0).contains(&of_three), "{of_three} of {lie}, 11 and 13");
        assert_eq!(ledger.view().overstated, 0);
    }
}

#[test]
fn possible_work_counts_from_when_the_task_was_sent() {
    let mut io = io();
    let mut ledger = undeclared(&io);
    let config = Config::default();
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..20)), &mut io, &config);
    // The rest is issued again after an hour, and another machine gets it.
    io.now += Duration::from_secs(3600);
    ledger.expire(&mut io);
    ran(&mut ledger, 2, 30..40, 1e6, &mut io);
    assert_eq!(ledger.view().overstated, 10, "a million Mop in the second since that");
    // The same from the machine that has had its tasks for an hour.
    ledger.results(&contact(1), vec![TaskResult { work_mops: 1e6, ..result(3, true) }], &mut io, &config);
    ledger.fetched(3, true, None, &mut io);
    assert_eq!((ledger.view().overstated, ledger.view().measured_mops), (10, 1e6));
}

#[test]
fn impossible_work_does_not_count_after_a_restart() {
    let mut io = io();
    io.now = Time::ZERO + Duration::from_secs(100);
    let mut ledger = undeclared(&io);
    let lie = TaskResult { work_mops: 1e14, ..result(0, true) };
    ledger.restore_done(contact(9).peer, &lie, io.now, &io);
    assert_eq!((ledger.view().overstated, ledger.view().measured_mops), (1, 0.0));
    assert_eq!(ledger.requests(&io, &Config::default())[0].bag.task_mops, 10.0);
}
