//! Many small tasks at once, and peers for whose messages the driver has no room.

use super::*;

/// The number of results in each message.
fn sent_results(host: &Host) -> Vec<u64> {
    let results = host.sent.iter().filter_map(|(_, message)| match message {
        Message::Results { results, .. } => Some(results.len() as u64),
        _ => None,
    });
    results.collect()
}

fn acknowledged(range: Range<u64>) -> Message {
    Message::ResultsAck { bag: BAG, attempt: 0, indices: IntervalSet::from(range) }
}

/// A machine that has run so many tasks of another's bag, and has sent no result.
fn finished(tasks: u64) -> Host {
    let mut host = Host::new(2);
    host.receive(1, unhurried(1, 0..tasks + 1, 500));
    for task in 0..tasks {
        host.finish(host.started[task as usize], true);
    }
    assert_eq!(sent_results(&host), [0; 0], "one more is to come");
    host
}

/// The driver returns all messages for lack of room.
fn return_all(host: &mut Host) {
    for (to, message) in std::mem::take(&mut host.sent) {
        if !matches!(message, Message::Overlay(_)) {
            host.give(Event::Unsent { to: to.into(), message });
        }
    }
}

#[test]
fn results_of_one_message_are_acknowledged_together() {
    let [mut submitter, mut executor] = pair();
    submitter.give(Event::OwnerReturned { stands_still: true });
    talk(&mut submitter, &mut executor, 5);
    submitter.give(Event::Submitted(submission(2000, 1.0)));
    talk(&mut submitter, &mut executor, 5);
    let mut acks = Vec::new();
    for round in 0..100 {
        executor.finish_running();
        // The worker ends one task after the other.
        (0..100).for_each(|_| executor.finish_running());
        talk_and(&mut submitter, &mut executor, 1, |message| {
            if let Message::ResultsAck { indices, .. } = message {
                acks.push(indices.len());
            }
        });
        if submitter.notices.contains(&Notice::BagClosed(BAG)) {
            assert!(round < 99);
            break;
        }
    }
    let view = submitter.peer.bag(BAG).expect("it is its own");
    assert_eq!((view.done, view.duplicates, view.reissued), (2000, 0, 0));
    assert_eq!(acks.iter().sum::<u64>(), 2000);
    assert!(acks.len() <= 40, "{} messages acknowledge 2,000 results", acks.len());
    assert!(executor.peer.held().is_empty());
}

#[test]
fn unacknowledged_results_are_bounded() {
    let mut host = finished(5000);
    while sent_results(&host).is_empty() {
        host.pass(seconds(0.1));
    }
    assert_eq!(sent_results(&host), [512; 4]);
    let mut all = IntervalSet::new();
    for (_, message) in &host.sent {
        if let Message::Results { results, .. } = message {
            all.extend_with(&results.iter().map(|result| result.index..result.index + 1).collect());
        }
    }
    assert_eq!(all, IntervalSet::from(0..2048), "the others wait");
    host.sent.clear();
    host.pass(seconds(0.5));
    host.receive(1, acknowledged(512..1024));
    host.pass(seconds(0.01));
    assert_eq!(sent_results(&host), [512], "they follow at once");
    // Lost results are sent again, and no others.
    host.receive(1, acknowledged(0..511));
    host.receive(1, acknowledged(1024..2559));
    host.sent.clear();
    host.pass(seconds(5.0));
    let again = host.sent.iter().find_map(|(_, message)| match message {
        Message::Results { results, .. } if results[0].index < 2559 => Some(results.len()),
        _ => None,
    });
    assert_eq!(again, Some(1), "the last of the fifth message may be on its desk");
}

#[test]
fn returned_results_are_sent_when_there_is_room() {
    let mut host = finished(700);
    host.pass(seconds(20.1));
    let sent: u64 = sent_results(&host).iter().sum();
    assert!(sent >= 700, "{sent}");
    return_all(&mut host);
    host.pass(seconds(30.0));
    assert_eq!(sent_results(&host), [0; 0], "nothing is repeated into a queue that is full");
    host.give(Event::Room(SUBMITTER));
    host.pass(seconds(0.001));
    assert_eq!(sent_results(&host), [512, 188], "each once");
    host.give(Event::Room(SUBMITTER));
    host.pass(seconds(0.001));
    assert_eq!(sent_results(&host).len(), 2, "nor is anything for room that was there");
}

#[test]
fn returned_results_are_sent_again_without_a_room_event() {
    let mut host = finished(10);
    host.pass(seconds(20.1));
    return_all(&mut host);
    host.pass(Config::default().lease + seconds(1.0));
    assert!(!sent_results(&host).is_empty());
}

#[test]
fn acknowledgements_and_the_newest_messages_wait_for_room() {
    let [mut submitter, _router] = pair();
    submitter.give(Event::OwnerReturned { stands_still: true });
    submitter.give(Event::Submitted(submission(100, 1000.0)));
    let holding = |version| {
        let (executor, ranges) = (speaker(3), IntervalSet::from(0..100));
        Message::Holding {
            bag: BAG,
            executor,
            version,
            attempt: 0,
            ranges,
            finished: IntervalSet::new(),
            capacity: None,
        }
    };
    let result = |index| {
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
        TaskResult::of(index, 0, finished)
    };
    submitter.sent.clear();
    submitter.receive(3, holding(1));
    return_all(&mut submitter);
    for index in 0..50 {
        let results = vec![result(2 * index)];
        submitter.receive(3, Message::Results { bag: BAG, executor: speaker(3), results, signature: None });
    }
    submitter.pass(seconds(1.0));
    let about_bags = |host: &Host| -> Vec<Message> {
        let sent = host.sent.iter().map(|(_, message)| message);
        sent.filter(|message| !matches!(message, Message::Overlay(_) | Message::Request { .. })).cloned().collect()
    };
    assert_eq!(about_bags(&submitter), [], "all of it waits");
    submitter.give(Event::Room(contact(3).peer));
    submitter.pass(seconds(0.03));
    let said = about_bags(&submitter);
    let acks: Vec<_> = said
        .iter()
        .filter_map(|message| match message {
            Message::ResultsAck { indices, .. } => Some(indices.len()),
            _ => None,
        })
        .collect();
    assert_eq!(acks, [50], "in one message");
    assert!(said.iter().any(|message| matches!(message, Message::Lease(Lease { version: 1, .. }))), "{said:?}");
}
