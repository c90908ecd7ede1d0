//! Tests of checkpoints: tasks that come back before their end.

use super::*;
use crate::bag::CHECKPOINTS_MAX;

#[test]
fn an_unfinished_task_goes_on_elsewhere_from_its_checkpoint() {
    let (mut io, config) = (io(), Config::default());
    let mut ledger = ledger(&io, 0);
    ledger.requests(&io, &config);
    ledger.holding(said(1, 1, IntervalSet::from(0..TASKS)), &mut io, &config);
    let back = TaskResult { unfinished: true, output: BlobId([9; 32]), output_bytes: 77, ..result(5, false) };
    ledger.results(&contact(1), vec![back.clone()], &mut io, &config);
    assert!(
        matches!(io.effects.last(), Some(Effect::FetchOutput { output_bytes: 77, unfinished: true, .. })),
        "{:?}",
        io.effects
    );
    // The driver has signed the checkpoint as another blob, which requests name.
    let checkpoint = Checkpoint { blob: BlobId([10; 32]), bytes: 141 };
    ledger.fetched(5, true, Some(checkpoint), &mut io);
    assert_accounted(&ledger);
    let key = RecordKey::Checkpoint(BagId([7; 32]), 5);
    let acks = |io: &Io| {
        io.effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Send { message: Message::ResultsAck { .. }, .. }))
            .count()
    };
    ledger.results(&contact(1), vec![back.clone()], &mut io, &config);
    assert_eq!(acks(&io), 0, "it is not durable yet");
    let (put, _) = written(&mut io);
    assert!(put.contains(&Record::Checkpoint { bag: BagId([7; 32]), index: 5, checkpoint }), "{put:?}");
    assert_eq!(acks(&io), 1);
    // A `Holding` that still lists the task places nothing.
    ledger.holding(said(1, 2, IntervalSet::from(0..TASKS)), &mut io, &config);
    let requests = ledger.requests(&io, &config);
    assert_eq!(requests.len(), 1);
    assert_eq!((requests[0].ranges.clone(), requests[0].attempt), (IntervalSet::from(5..6), 1));
    assert_eq!(*requests[0].checkpoints, [(5, checkpoint)]);
    assert_eq!((ledger.view().failed, ledger.view().reissued), (0, 0));
    // A repeated checkpoint is not wanted.
    let sent = io.effects.len();
    ledger.results(&contact(1), vec![back], &mut io, &config);
    assert!(matches!(&io.effects[sent..], [Effect::Send { message: Message::ResultsAck { .. }, .. }]));

    let place = |ledger: &mut Ledger, io: &mut Io, executor, version, attempt| {
        ledger.holding(Holding { attempt, ..said(executor, version, IntervalSet::from(5..6)) }, io, &config);
    };
    place(&mut ledger, &mut io, 2, 1, 1);
    assert_accounted(&ledger);
    // A dead worker leaves the task its checkpoint.
    ledger.tries.set_retries_max(5);
    ledger.results(&contact(2), vec![TaskResult { crashed: true, attempt: 1, ..result(5, false) }], &mut io, &config);
    assert_eq!(ledger.checkpoints.iter().collect::<Vec<_>>(), [(5, checkpoint)]);
    io.now += Duration::from_secs(30);
    ledger.expire(&mut io);
    let again = ledger.requests(&io, &config);
    assert_eq!(again[0].checkpoints.len(), 1);
    place(&mut ledger, &mut io, 3, 1, again[0].attempt);
    written(&mut io);
    // A task that fails by itself begins anew.
    let attempt = again[0].attempt;
    ledger.results(&contact(3), vec![TaskResult { attempt, ..result(5, false) }], &mut io, &config);
    assert!(ledger.checkpoints.iter().next().is_none() && written(&mut io).1.contains(&key));
}

#[test]
fn a_checkpoint_is_stored_until_its_task_ends() {
    let key = RecordKey::Checkpoint(BagId([7; 32]), 5);
    let checkpoint = Checkpoint { blob: BlobId([9; 32]), bytes: 77 };
    let restored = || {
        let (io, config) = (io(), Config::default());
        let mut ledger = ledger(&io, 0);
        ledger.restore_checkpoint(5, checkpoint);
        assert_eq!(*ledger.requests(&io, &config)[0].checkpoints, [(5, checkpoint)]);
        (ledger, io)
    };
    let (mut ledger, mut io) = restored();
    ledger.record_result(result(5, true), contact(1), &mut io);
    assert!(written(&mut io).1.contains(&key));
    let (mut ledger, mut io) = restored();
    ledger.close(Closing::Cancelled, &mut io);
    assert!(written(&mut io).1.contains(&key));
}

#[test]
fn checkpoints_in_a_request_are_bounded() {
    let (io, config) = (io(), Config::default());
    let mut ledger = ledger(&io, 0);
    let tasks = 2 * CHECKPOINTS_MAX as u64 + 10;
    ledger.bag.tasks = tasks;
    ledger.waiting = Waiting::new(tasks);
    for index in 5..tasks {
        ledger.restore_checkpoint(index, Checkpoint { blob: BlobId([9; 32]), bytes: index });
    }
    let requests = ledger.requests(&io, &config);
    assert!(requests.iter().all(|request| request.is_valid()));
    let named: usize = requests.iter().map(|request| request.checkpoints.len()).sum();
    assert_eq!((requests.len(), named as u64), (3, tasks - 5));
    assert_eq!(requests.iter().map(|request| request.ranges.len()).sum::<u64>(), tasks);
}
