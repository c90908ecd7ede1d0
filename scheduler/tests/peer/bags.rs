//! Bags on the machine that submitted them: measuring, reruns, removal, and whose messages count.

use idlewood_scheduler::Closing;

use super::*;

#[test]
fn a_machine_alone_runs_its_own_bag() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(3, 1000.0)));
    assert_eq!(host.notices, [Notice::BagAccepted(BAG)]);
    for index in 0..3 {
        assert_eq!(host.started.len(), index + 1, "one slot, one task at a time");
        host.pass(seconds(1.0));
        host.finish(host.started[index], true);
    }
    assert_eq!(host.notices, [Notice::BagAccepted(BAG), Notice::BagClosed(BAG)]);
    assert!(host.peer.held().is_empty(), "acknowledged and forgotten");
    assert!(host.sent.is_empty(), "a machine alone talks to nobody");
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.done, view.reissued, view.duplicates), (3, 0, 0));
    assert!((view.stretch().unwrap() - 3.0 / 3000.0).abs() < 1e-9);
}

#[test]
fn a_bag_of_unknown_work_is_measured_first() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission { task_mops: None, ..submission(3, 0.0) }));
    assert_eq!((host.measured.as_slice(), host.started.len()), (&[BAG][..], 0));
    host.give(Event::Measured { bag: BAG, task_mops: f64::NAN, result: None });
    assert_eq!(host.started.len(), 1, "whatever was measured, it goes on");
}

#[test]
fn no_task_is_issued_before_its_measured_work_is_durable() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission { task_mops: None, ..submission(3, 0.0) }));
    let mut effects = Vec::new();
    host.peer.handle(host.now, Event::Measured { bag: BAG, task_mops: 1000.0, result: None }, &mut effects);
    let writes = |effects: &[Effect], is_it: fn(&Record) -> bool| {
        let find = |effect: &Effect| match effect {
            Effect::Persist { ticket, changes } => {
                let is_it = changes.iter().any(|change| matches!(change, Change::Put(record) if is_it(record)));
                is_it.then_some(*ticket)
            }
            _ => None,
        };
        effects.iter().find_map(find)
    };
    let is_held = |record: &Record| matches!(record, Record::Held { .. });
    assert_eq!(writes(&effects, is_held), None, "the request has not left");
    let measured = writes(&effects, |record| matches!(record, Record::Bag { bag, .. } if bag.task_mops > 0.0));
    let mut effects = Vec::new();
    host.peer.handle(host.now, Event::Persisted(measured.expect("a and w are written")), &mut effects);
    assert!(writes(&effects, is_held).is_some(), "now it has");
}

#[test]
fn a_bag_whose_only_task_was_measured_can_be_rerun() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission { task_mops: None, ..submission(1, 0.0) }));
    let finished = Finished {
        success: true,
        crashed: false,
        output: BlobId([1; 32]),
        output_bytes: 1,
        content: None,
        work_mops: 1000.0,
        exit_code: None,
        fingerprint: None,
        times: 1.0,
    };
    let result = Some(TaskResult::of(0, 0, finished));
    host.give(Event::Measured { bag: BAG, task_mops: 1000.0, result });
    assert_eq!((host.peer.bag(BAG).map(|bag| bag.done), host.started.len()), (Some(1), 0));
    host.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(0..1) });
    assert_eq!(host.started.len(), 1);
}

#[test]
fn a_quorum_needs_replicas_and_replicas_a_quorum() {
    let host = Host::new(1);
    let check = |replicas, quorum| {
        let replication = Replication { replicas, quorum, recheck: 0 };
        host.peer.check(&Submission { replication, ..submission(3, 1000.0) })
    };
    for (replicas, quorum) in [(1, 1), (2, 2), (3, 2), (8, 8)] {
        assert_eq!(check(replicas, quorum), Ok(()), "{quorum} of {replicas}");
    }
    for (replicas, quorum) in [(0, 0), (1, 0), (1, 2), (2, 1), (8, 1), (3, 4), (9, 2)] {
        assert_eq!(check(replicas, quorum), Err(SubmitError::Replication), "{quorum} of {replicas}");
    }
}

#[test]
fn a_measured_bag_is_valid_for_others() {
    // Dividing the largest size by the number of tasks, and multiplying again, may round up.
    for tasks in [27, 229_581_046_562] {
        let mut host = Host::new(1);
        host.give(Event::Submitted(Submission { task_mops: None, ..submission(tasks, 0.0) }));
        host.give(Event::Measured { bag: BAG, task_mops: f64::INFINITY, result: None });
        let bag = host.peer.bag(BAG).unwrap().bag;
        assert!(bag.is_valid() && bag.application_size_mops > 0.99e18, "{bag:?}");
    }
}

#[test]
fn messages_count_for_the_connections_peer() {
    let all = IntervalSet::from(0..100);
    let placed = Record::Placed { bag: BAG, executor: contact(2), ranges: all.clone() };
    let mut host = Host::restore(1, Config::default(), vec![submitted(bag(1), 1, 0), placed]);
    let others = vec![(contact(2), all.clone())];
    assert_eq!(host.peer.placements(BAG), others);
    let executor = Speaker { incarnation: 9, ..speaker(2) };
    let finished = Finished {
        success: true,
        crashed: false,
        output: BlobId([1; 32]),
        output_bytes: 1,
        content: None,
        work_mops: 1000.0,
        exit_code: Some(0),
        fingerprint: None,
        times: 1.0,
    };
    let results = vec![TaskResult::of(3, 0, finished)];
    let said = [
        Message::Holding {
            bag: BAG,
            executor: executor.clone(),
            version: 9,
            attempt: 9,
            ranges: all.clone(),
            finished: IntervalSet::new(),
            capacity: None,
        },
        // If this `Holding` counted for the other machine, the unlisted tasks would be issued again.
        Message::Holding {
            bag: BAG,
            executor: executor.clone(),
            version: 10,
            attempt: 9,
            ranges: IntervalSet::new(),
            finished: IntervalSet::new(),
            capacity: None,
        },
        Message::Renewal { executor: executor.clone(), bags: vec![(BAG, 10)] },
        Message::Offer { bag: BAG, executor: executor.clone(), ranges: all.clone(), to: contact(3) },
        Message::Decline { bag: BAG, ranges: all, reason: DeclineReason::Role },
        Message::Results { bag: BAG, executor, results, signature: None },
    ];
    for message in said {
        host.sent.clear();
        let kind = message.kind();
        host.receive(3, message);
        assert_eq!(host.peer.placements(BAG), others, "{kind}");
        assert!(host.sent.iter().all(|(to, _)| to.peer == PeerId([3; 32])), "{kind}: {:?}", host.sent);
    }
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.done, view.reissued, view.unasked, view.placed), (0, 0, 1, 100));
}

#[test]
fn only_the_submitter_drops_and_acknowledges_tasks() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    host.receive(66, lease(0, IntervalSet::from(0..100)));
    assert_eq!((host.peer.held()[0].waiting, host.stopped.len()), (4, 0));
    host.finish(host.started[0], true);
    host.receive(66, Message::ResultsAck { bag: BAG, attempt: 0, indices: IntervalSet::from(0..100) });
    assert_eq!(host.peer.held()[0].unacknowledged, 1);
    host.receive(1, lease(0, IntervalSet::from(0..100)));
    assert_eq!(host.stopped.len(), 1);
}

/// Other machines may hold the same tasks by now: succeeded ones must not be dropped for that.
#[test]
fn a_holding_lists_succeeded_tasks() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..4));
    host.finish(host.started[0], true);
    host.finish(host.started[1], false);
    host.sent.clear();
    host.receive(1, lease(0, IntervalSet::new()));
    let holding = host.sent.iter().find_map(|(_, message)| match message {
        Message::Holding { ranges, finished, .. } => Some((ranges.len(), finished.clone())),
        _ => None,
    });
    let index = host.started[0].index;
    assert_eq!(holding, Some((4, IntervalSet::from(index..index + 1))));
}

#[test]
fn tasks_that_cannot_start_go_to_another_machine() {
    let mut host = Host::new(2);
    host.receive(1, request(1, 0, 0..5));
    for tries in 1..=3 {
        let task = *host.started.last().unwrap();
        assert_eq!(host.started.len(), tries);
        host.give(Event::TaskEnded { task, outcome: TaskOutcome::NotStarted { retry_after: seconds(5.0) } });
        assert_eq!(host.started.len(), tries, "not at once again");
        host.pass(seconds(5.5));
    }
    assert_eq!(host.holdings().last().unwrap().1, 0);
}

#[test]
fn a_retry_may_run_where_the_task_failed() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(Submission { retries_max: 1, ..submission(1, 1000.0) }));
    host.finish(host.started[0], false);
    assert_eq!(host.started.len(), 1, "not at once");
    host.pass(seconds(1.5));
    assert_eq!(host.started.len(), 2);
    host.finish(host.started[1], false);
    let view = host.peer.bag(BAG).unwrap();
    assert_eq!((view.failed, host.notices.last()), (1, Some(&Notice::BagClosed(BAG))));
}

#[test]
fn failed_tasks_can_be_rerun_and_closed_bags_removed() {
    let mut host = Host::new(1);
    host.give(Event::Submitted(submission(1, 1000.0)));
    host.give(Event::Removed(BAG));
    assert!(host.peer.bag(BAG).is_some(), "it is not over");
    host.finish(host.started[0], false);
    assert_eq!(host.peer.bag(BAG).map(|bag| (bag.failed, bag.closed.is_some())), Some((1, true)));
    host.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(0..1) });
    assert_eq!(host.peer.bag(BAG).map(|bag| (bag.failed, bag.closed.is_some())), Some((0, false)));
    assert_eq!(host.started.len(), 2, "at once");
    host.finish(host.started[1], true);
    assert_eq!(host.peer.bag(BAG).map(|bag| (bag.done, bag.closed.is_some())), Some((1, true)));
    host.give(Event::Removed(BAG));
    assert_eq!(host.peer.bag(BAG), None);
}

/// Its end is on the disk, and the last result is not, as a disk that was full may leave it: the task is run again, and its
/// result is not taken for one that is here.
#[test]
fn a_completed_bag_without_its_last_result_reopens() {
    let closed = Record::Bag {
        bag: BagHeader { tasks: 2, ..bag(1) },
        released: START,
        retries_max: 0,
        attempt: 0,
        closed: Some((Closing::Completed, START)),
        replication: Replication::default(),
        stewards: None,
        keep_results: false,
        reruns: 0,
        conditions: Box::default(),
        supply: None,
    };
    let output = BlobId([1; 32]);
    let (content, exit_code) = (None, Some(0));
    let finished = Finished {
        success: true,
        crashed: false,
        output,
        output_bytes: 1,
        content,
        work_mops: 1.0,
        exit_code,
        fingerprint: None,
        times: 1.0,
    };
    let result = TaskResult::of(0, 0, finished);
    let done = Record::Done { bag: BAG, executor: contact(1).peer, finished: START, result };
    let mut host = Host::restore(1, Config::default(), vec![closed, done]);
    host.pass(seconds(60.0));
    assert_eq!(host.started, [TaskId { bag: BAG, index: 1 }]);
    host.finish(host.started[0], true);
    assert_eq!(host.peer.bag(BAG).map(|view| (view.done, view.closed.is_some())), Some((2, true)));
}

/// The removal is durable before the user is told, records are deleted piece by piece, and a restart goes on with it.
#[test]
fn a_bag_is_removed_piece_by_piece() {
    const TASKS: u64 = 10_000;
    let done = |index| {
        let output = BlobId([1; 32]);
        let (content, exit_code) = (None, Some(0));
        let result = Finished {
            success: true,
            crashed: false,
            output,
            output_bytes: 1,
            content,
            work_mops: 1.0,
            exit_code,
            fingerprint: None,
            times: 1.0,
        };
        Record::Done { bag: BAG, executor: contact(1).peer, finished: START, result: TaskResult::of(index, 0, result) }
    };
    let closed = Record::Bag {
        bag: BagHeader { tasks: TASKS, ..bag(1) },
        released: START,
        retries_max: 0,
        attempt: 0,
        closed: Some((Closing::Completed, START)),
        replication: Replication::default(),
        stewards: None,
        keep_results: false,
        reruns: 0,
        conditions: Box::default(),
        supply: None,
    };
    let records: Vec<Record> = (0..TASKS).map(done).chain([closed]).collect();
    let mut host = Host::restore(1, Config::default(), records);
    let write = |host: &mut Host, event| {
        let mut effects = Vec::new();
        host.peer.handle(host.now, event, &mut effects);
        let mut writes = Vec::new();
        for effect in effects {
            match effect {
                Effect::Persist { ticket, changes } => writes.push((ticket, changes)),
                Effect::Notify(notice) => host.notices.push(notice),
                _ => {}
            }
        }
        assert!(writes.len() <= 1, "one after the other");
        let (ticket, changes) = writes.pop()?;
        for change in &changes {
            match change {
                Change::Put(record) => drop(host.store.insert(record.key(), record.clone())),
                Change::Delete(key) => drop(host.store.remove(key)),
            }
        }
        Some((ticket, changes))
    };
    let (ticket, changes) = write(&mut host, Event::Removed(BAG)).expect("it is written");
    let said =
        |changes: &[Change]| matches!(changes, [Change::Put(Record::Bag { closed: Some((Closing::Removed, _)), .. })]);
    assert!(said(&changes), "{changes:?}");
    assert!(
        host.peer.bag(BAG).is_none() && !host.notices.contains(&Notice::BagRemoved(BAG)),
        "not before it is durable"
    );
    let again = Submission { tasks: TASKS, ..submission(1, 1.0) };
    assert_eq!(host.peer.check(&again), Err(SubmitError::Known), "not while its records go");
    let (_, changes) = write(&mut host, Event::Persisted(ticket)).expect("the first piece");
    assert!(host.notices.contains(&Notice::BagRemoved(BAG)));
    assert!(changes.len() < TASKS as usize / 2 && host.store.contains_key(&RecordKey::Bag(BAG)), "{}", changes.len());
    // The peer restarts: the removal goes on, and the view does not show the bag.
    let left = host.store.len();
    let host = host.restart(1);
    assert!(left > TASKS as usize / 2 && host.peer.bag(BAG).is_none());
    let of_bag = |key: &RecordKey| matches!(key, RecordKey::Bag(BAG) | RecordKey::Done(BAG, _));
    assert!(!host.store.keys().any(of_bag), "all of it is gone");
    assert_eq!(host.peer.check(&again), Ok(()));
}

/// The disk is full: the driver refuses the submission, and the bag is gone, whatever becomes of its write.
#[test]
fn an_unwritten_bag_can_be_removed() {
    let mut host = Host::new(1);
    let mut effects = Vec::new();
    host.peer.handle(host.now, Event::Submitted(submission(1, 1000.0)), &mut effects);
    let mut tickets = effects.iter().filter_map(|effect| match effect {
        Effect::Persist { ticket, .. } => Some(*ticket),
        _ => None,
    });
    let ticket = tickets.next_back().expect("it is to be written");
    assert!(host.peer.bag(BAG).is_some());
    host.give(Event::Removed(BAG));
    assert_eq!(host.peer.bag(BAG), None);
    host.give(Event::Persisted(ticket));
    host.pass(seconds(60.0));
    assert!(host.peer.bag(BAG).is_none() && host.started.is_empty());
    assert_eq!(host.notices, [], "nobody is told that it was taken");
}

/// Its manifest is signed with a key that is gone, so no machine takes this one for its submitter.
#[test]
fn a_bag_of_a_lost_identity_is_cancelled_and_keeps_its_results() {
    let header = BagHeader { tasks: 3, submitter: contact(8), ..bag(8) };
    let result = TaskResult::of(
        0,
        0,
        Finished {
            success: true,
            crashed: false,
            output: BlobId([1; 32]),
            output_bytes: 1,
            content: None,
            work_mops: 1000.0,
            exit_code: Some(0),
            fingerprint: None,
            times: 1.0,
        },
    );
    let ranges = || IntervalSet::from(1..2);
    let records = vec![
        submitted(header.clone(), 3, 0),
        Record::Done { bag: BAG, executor: contact(8).peer, finished: START, result },
        Record::Placed { bag: BAG, executor: contact(4), ranges: ranges() },
        Record::Held {
            bag: header.clone(),
            released: START,
            attempt: 0,
            attempts: None,
            ranges: IntervalSet::from(2..3),
            checkpoints: BTreeMap::new(),
            priority: 0,
            at_once: IntervalSet::new(),
        },
    ];
    let mut host = Host::restore(3, Config::default(), records.clone());
    host.pass(seconds(600.0));
    let view = host.peer.bag(BAG).expect("it can be looked at");
    assert!(view.closed.is_some(), "{view:?}");
    assert!(view.done == 1 && host.peer.held().is_empty());
    assert!(host.notices.contains(&Notice::BagClosed(BAG)), "{:?}", host.notices);
    assert!(host.started.is_empty() && host.measured.is_empty(), "nothing of it runs");
    assert!(host.store.contains_key(&RecordKey::Done(BAG, 0)) && !host.store.contains_key(&RecordKey::Held(BAG)));
    // The bag stays closed after another restart.
    let again = host.restart(3).restart(3);
    let view = again.peer.bag(BAG).expect("it can be looked at");
    assert!(view.closed.is_some() && view.done == 1);
    assert_eq!(view.bag.submitter.peer, contact(8).peer, "it is known why");
    // With the old identity the bag goes on.
    let own = Host::restore(8, Config { expects_grid: true, ..Config::default() }, records);
    assert!(own.peer.bag(BAG).is_some_and(|view| view.closed.is_none()));
}
