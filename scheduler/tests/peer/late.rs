//! Late and repeated acknowledgements: each counts for the attempt that it answers only.

use super::*;

/// A submitter that runs nothing itself, and an executor that has begun its only task.
fn begun(retries_max: u32) -> [Host; 2] {
    let [mut submitter, mut executor] = pair();
    submitter.give(Event::OwnerReturned { stands_still: true });
    talk(&mut submitter, &mut executor, 5);
    submitter.give(Event::Submitted(Submission { retries_max, ..submission(1, 100_000.0) }));
    talk(&mut submitter, &mut executor, 5);
    assert_eq!((submitter.started.len(), executor.started.len()), (0, 1));
    [submitter, executor]
}

/// Lets both exchange messages; returns the acknowledgements.
fn acknowledgements(submitter: &mut Host, executor: &mut Host, seconds: u32) -> Vec<Message> {
    let mut all = Vec::new();
    talk_and(submitter, executor, seconds, |message| {
        if matches!(message, Message::ResultsAck { .. }) {
            all.push(message.clone());
        }
    });
    all
}

/// The executor gets the task again, and succeeds. While its result is on its way, the old messages come again.
fn comes_again(submitter: &mut Host, executor: &mut Host, old: Vec<Message>) {
    assert_eq!((old.is_empty(), executor.started.len()), (false, 2), "{old:?}");
    executor.finish(executor.started[1], true);
    executor.sent.clear();
    old.into_iter().for_each(|message| executor.receive(2, message));
    assert_eq!(executor.peer.held().first().map(|held| held.unacknowledged), Some(1));
    assert_eq!(submitter.peer.bag(BAG).map(|bag| (bag.placed, bag.done)), Some((1, 0)));
    talk(submitter, executor, 10);
    assert_eq!(submitter.peer.bag(BAG).map(|bag| (bag.done, bag.reissued)), Some((1, 0)), "it is said again");
    assert!(executor.peer.held().is_empty());
}

#[test]
fn a_submitter_with_a_full_disk_takes_results_once_it_has_room() {
    let [mut submitter, mut executor] = begun(0);
    submitter.give(Event::DiskFull(true));
    executor.finish(executor.started[0], true);
    talk(&mut submitter, &mut executor, 30);
    assert_eq!(submitter.peer.bag(BAG).map(|bag| (bag.done, bag.placed, bag.reissued)), Some((0, 1, 0)));
    assert_eq!(executor.peer.held().first().map(|held| held.unacknowledged), Some(1), "it is kept where it was made");
    submitter.give(Event::DiskFull(false));
    talk(&mut submitter, &mut executor, 60);
    assert_eq!(submitter.peer.bag(BAG).map(|bag| (bag.done, bag.reissued)), Some((1, 0)));
    assert!(executor.peer.held().is_empty());
}

#[test]
fn acknowledging_a_failed_try_does_not_acknowledge_the_next() {
    let [mut submitter, mut executor] = begun(1);
    executor.finish(executor.started[0], false);
    let old = acknowledgements(&mut submitter, &mut executor, 5);
    comes_again(&mut submitter, &mut executor, old);
}

/// The failure was sent twice, and the second message is late.
#[test]
fn answering_a_late_failure_does_not_acknowledge_the_next_try() {
    let [mut submitter, mut executor] = begun(1);
    executor.finish(executor.started[0], false);
    let is_result = |message: &Message| matches!(message, Message::Results { .. });
    let late = executor.sent.iter().find(|(_, message)| is_result(message)).map(|(_, message)| message.clone());
    talk(&mut submitter, &mut executor, 5);
    submitter.receive(3, late.expect("it is told at once"));
    let sent = std::mem::take(&mut submitter.sent);
    let answers = sent.into_iter().map(|(_, message)| message);
    let answers = answers.filter(|message| matches!(message, Message::ResultsAck { .. })).collect();
    comes_again(&mut submitter, &mut executor, answers);
}

#[test]
fn acknowledging_a_checkpoint_does_not_acknowledge_the_result() {
    let [mut submitter, mut executor] = begun(0);
    executor.give(Event::OwnerReturned { stands_still: true });
    executor.pass(Config::default().vacate_after + seconds(1.0));
    executor.keep(0, Some(checkpoints::KEPT));
    executor.give(Event::TaskEnded { task: executor.started[0], outcome: TaskOutcome::Stopped });
    executor.give(Event::OwnerLeft);
    let old = acknowledgements(&mut submitter, &mut executor, 20);
    comes_again(&mut submitter, &mut executor, old);
}

#[test]
fn acknowledgements_from_before_a_rerun_do_not_count_after_it() {
    let [mut submitter, mut executor] = begun(0);
    executor.finish(executor.started[0], true);
    let old = acknowledgements(&mut submitter, &mut executor, 5);
    submitter.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(0..1) });
    talk(&mut submitter, &mut executor, 5);
    comes_again(&mut submitter, &mut executor, old);
}
