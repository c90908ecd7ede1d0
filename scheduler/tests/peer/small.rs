//! Small outputs, which are part of their results: records, messages, and when the user sees them.

use idlewood_scheduler::{SMALL_OUTPUT_BYTES_MAX, SmallOutput, Ticket};

use super::*;

fn with_output(bytes: usize) -> Finished {
    Finished {
        success: true,
        crashed: false,
        output: BlobId([bytes as u8; 32]),
        output_bytes: bytes as u64,
        content: Some(SmallOutput::new(&vec![7; bytes]).expect("it is small")),
        work_mops: 1000.0,
        exit_code: Some(0),
        fingerprint: None,
        times: 1.0,
    }
}

fn ended(task: TaskId, bytes: usize) -> Event {
    Event::TaskEnded { task, outcome: TaskOutcome::Finished(with_output(bytes)) }
}

/// Feeds an event without writing; returns the tickets and changes of its writes, and whether an output is to be fetched.
fn unwritten(host: &mut Host, event: Event) -> (Vec<Ticket>, Vec<Change>, bool) {
    let (mut effects, mut tickets, mut all, mut fetches) = (Vec::new(), Vec::new(), Vec::new(), false);
    host.peer.handle(host.now, event, &mut effects);
    for effect in effects {
        match effect {
            Effect::Persist { ticket, changes } => {
                tickets.push(ticket);
                all.extend(changes);
            }
            Effect::FetchOutput { .. } => fetches = true,
            _ => {}
        }
    }
    (tickets, all, fetches)
}

fn is_outbox(record: &Record) -> bool {
    matches!(record, Record::Outbox { .. })
}

#[test]
fn a_result_of_an_own_task_is_one_record() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(3, 1000.0)));
    for index in 0..3 {
        host.pass(seconds(1.0));
        let task = host.started[index];
        host.give(ended(task, 100 + index));
    }
    assert_eq!(host.notices, [Notice::BagAccepted(BAG), Notice::BagClosed(BAG)]);
    assert!(!host.persisted.iter().any(is_outbox), "its ledger has it");
    for index in 0..3_u64 {
        let Some(Record::Done { result, .. }) = host.store.get(&RecordKey::Done(BAG, index)) else {
            panic!("{index} is not written: {:?}", host.store)
        };
        assert_eq!(result.content.as_ref().map(|content| content.bytes().len()), Some(100 + index as usize));
    }
    assert!(host.peer.held().is_empty() && !host.store.contains_key(&RecordKey::Held(BAG)));
}

#[test]
fn results_that_the_own_ledger_refuses_are_kept() {
    let mut host = Host::new(1);
    let replication = Replication { replicas: 2, quorum: 2, recheck: 0 };
    host.give(Event::Submitted(Submission { replication, ..submission(2, 1000.0) }));
    let task = host.started[0];
    host.give(ended(task, 100));
    let kept = host.store.get(&RecordKey::Outbox(BAG, task.index));
    assert!(kept.is_some(), "a vote that waits for others: {:?}", host.store);
    // The same after a restart.
    let mut host = host.restart(1);
    host.pass(seconds(600.0));
    assert_eq!((host.peer.bag(BAG).unwrap().done, host.peer.held()[0].unacknowledged), (0, 1));
}

#[test]
fn the_view_of_a_bag_shows_durable_results_only() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(2, 1000.0)));
    let task = host.started[0];
    host.give(ended(task, 100));
    assert_eq!(host.peer.bag(BAG).unwrap().done, 1);
    let (tickets, ..) = unwritten(&mut host, ended(TaskId { bag: BAG, index: 1 }, 100));
    let shown = |host: &Host| {
        let view = host.peer.bag(BAG).unwrap();
        (view.done, view.failed, view.closed.is_some())
    };
    assert_eq!(shown(&host), (1, 0, false), "not before the disk has it");
    tickets.into_iter().for_each(|ticket| host.give(Event::Persisted(ticket)));
    assert_eq!(shown(&host), (2, 0, true));

    // The task whose result was not written is run again, and counts once.
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    let task = host.started[0];
    unwritten(&mut host, ended(task, 100));
    let mut host = Host::restore(1, Config::default(), host.store.into_values().collect());
    host.pass(seconds(600.0));
    assert_eq!((shown(&host), host.started.len()), ((0, 0, false), 1));
    let task = host.started[0];
    host.give(ended(task, 100));
    assert_eq!(shown(&host), (1, 0, true));
    // Also a failure.
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    let failed = Finished { success: false, ..with_output(100) };
    let outcome = TaskOutcome::Finished(failed);
    let task = host.started[0];
    host.give(Event::TaskEnded { task, outcome });
    assert_eq!(shown(&host), (0, 1, true));
}

/// A submitter, and what follows from the result of task 3 from machine 2.
fn result_from_another(finished: Finished) -> (Host, (Vec<Ticket>, Vec<Change>, bool)) {
    let placed = Record::Placed { bag: BAG, executor: contact(2), ranges: IntervalSet::from(0..100) };
    let mut host = Host::restore(1, Config::default(), vec![submitted(bag(1), 1, 0), placed]);
    let results = vec![TaskResult::of(3, 0, finished)];
    let message = Message::Results { bag: BAG, executor: speaker(2), results, signature: None };
    let writes = unwritten(&mut host, Event::Received { from: PeerId([2; 32]), message });
    (host, writes)
}

#[test]
fn a_small_output_is_not_fetched() {
    let (host, (tickets, changes, fetches)) = result_from_another(with_output(100));
    let done = |change: &Change| matches!(change, Change::Put(Record::Done { result, .. }) if result.content.is_some());
    assert!(changes.iter().any(done) && !fetches && !tickets.is_empty(), "{changes:?}");
    assert_eq!(host.peer.over(BAG).0, IntervalSet::from(3..4));
    let (host, (_, changes, fetches)) = result_from_another(Finished { content: None, ..with_output(100) });
    assert!(fetches && changes.is_empty(), "{changes:?}");
    assert!(host.peer.over(BAG).0.is_empty());
}

/// The sum of many such would be no number.
#[test]
fn an_output_larger_than_any_is_refused() {
    for (output_bytes, is_one) in [(1 << 40, true), ((1 << 40) + 1, false)] {
        let result = TaskResult::of(3, 0, Finished { output_bytes, content: None, ..with_output(100) });
        assert_eq!(result.is_valid(100), is_one, "{output_bytes}");
    }
}

#[test]
fn a_small_output_of_another_length_is_refused() {
    for (finished, is_one) in [
        (with_output(0), true),
        (with_output(SMALL_OUTPUT_BYTES_MAX), true),
        (Finished { output_bytes: 99, ..with_output(100) }, false),
    ] {
        let result = TaskResult::of(3, 0, finished);
        assert_eq!(result.is_valid(100), is_one, "{result:?}");
        assert!(!TaskResult { success: false, unfinished: true, ..result }.is_valid(100), "a checkpoint is a blob");
    }
    assert!(SmallOutput::new(&[0; SMALL_OUTPUT_BYTES_MAX + 1]).is_none());
    // A result that is too long does not decode.
    let result = TaskResult::of(3, 0, with_output(SMALL_OUTPUT_BYTES_MAX));
    let message = Message::Results { bag: BAG, executor: speaker(2), results: vec![result], signature: None };
    let bytes = message.encode();
    assert_eq!(Message::decode(&bytes).unwrap(), message);
    let length = (SMALL_OUTPUT_BYTES_MAX as u16).to_be_bytes();
    let at = bytes.windows(3).position(|three| three == [0x59, length[0], length[1]]).expect("a byte string");
    let mut longer = bytes.clone();
    longer[at + 1..at + 3].copy_from_slice(&(SMALL_OUTPUT_BYTES_MAX as u16 + 1).to_be_bytes());
    longer.insert(at + 3, 7);
    Message::decode(&longer).unwrap_err();
}

#[test]
fn results_with_many_outputs_fit_in_messages() {
    let result = |index| TaskResult::of(index, 0, with_output(SMALL_OUTPUT_BYTES_MAX));
    let outbox = |index| Record::Outbox { bag: bag(1), released: START, result: result(index) };
    let mut host = Host::restore(2, Config::default(), (0..100).map(outbox).collect());
    host.pass(seconds(120.0));
    let mut sent = IntervalSet::new();
    for (_, message) in &host.sent {
        assert!(message.encode().len() <= MESSAGE_BYTES_MAX, "{} bytes", message.encode().len());
        if let Message::Results { results, .. } = message {
            for result in results {
                sent.insert_index(result.index);
            }
        }
    }
    assert_eq!(sent, IntervalSet::from(0..100), "each has its turn");
}
