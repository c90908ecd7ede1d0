//! Tests of acknowledgements that come late: a machine forgets a task that it was given again meanwhile.

use super::*;

/// Machine 1 holds all tasks, by its first word.
fn all_placed(retries_max: u32, io: &mut Io, config: &Config) -> Ledger {
    let mut ledger = ledger(io, retries_max);
    ledger.requests(io, config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), io, config);
    ledger
}

/// The acknowledgement of a failure is late. Its machine got the task anew with others meanwhile, tells the old failure again, and forgets the task
/// once that is acknowledged: it may not be renewed for what it has forgotten.
#[test]
fn a_task_whose_old_failure_is_acknowledged_does_not_stay_placed() {
    let (mut io, config) = (io(), Config::default());
    let mut ledger = all_placed(3, &mut io, &config);
    ledger.results(&contact(1), vec![result(5, false)], &mut io, &config);
    persist_all(&mut io);
    io.now += Duration::from_secs(60);
    ledger.renew_all(&io, &config);
    ledger.expire(&mut io);
    let again = ledger.requests(&io, &config);
    assert_eq!((again[0].ranges.clone(), again.len()), (IntervalSet::from(5..6), 1));
    let anew = Holding { attempt: again[0].attempt, ..said(1, 2, IntervalSet::from(0..TASKS)) };
    ledger.holding(anew, &mut io, &config);
    assert!(ledger.renew(&contact(1), 2, &mut io, &config).is_some() && ledger.view().placed == TASKS);
    ledger.results(&contact(1), vec![result(5, false)], &mut io, &config);
    assert!(ledger.renew(&contact(1), 2, &mut io, &config).is_none(), "it is asked what it holds");
    let without = IntervalSet::from(0..TASKS).difference(&IntervalSet::from(5..6));
    ledger.holding(said(1, 3, without), &mut io, &config);
    assert_eq!(ledger.requests(&io, &config)[0].ranges, IntervalSet::from(5..6));
    assert_accounted(&ledger);
}

/// While a checkpoint is fetched its machine gets a later attempt of the task: the checkpoint counts no more, and the machine forgets the task with
/// the acknowledgement.
#[test]
fn a_task_whose_old_checkpoint_is_acknowledged_does_not_stay_placed() {
    let (mut io, config) = (io(), Config::default());
    let mut ledger = all_placed(0, &mut io, &config);
    let back = TaskResult { unfinished: true, output: BlobId([9; 32]), output_bytes: 77, ..result(5, false) };
    ledger.results(&contact(1), vec![back], &mut io, &config);
    ledger.tries.not_before(5, 1);
    assert!(ledger.renew(&contact(1), 1, &mut io, &config).is_some());
    ledger.fetched(5, true, Some(Checkpoint { blob: BlobId([10; 32]), bytes: 141 }), &mut io);
    let last = io.effects.last();
    assert!(matches!(last, Some(Effect::Send { message: Message::ResultsAck { .. }, .. })), "{last:?}");
    assert!(ledger.renew(&contact(1), 1, &mut io, &config).is_none(), "it is asked what it holds");
}
