//! Tasks run again on demand: messages about earlier attempts do not count, neither at once nor after a restart.

use super::*;

/// An attempt later than all issued ones.
const LATER: u32 = 99;

/// The submitter of a bag with all tasks on each of these machines. It has not found the grid yet, so it issues no task.
fn submitter_of(tasks: u64, replication: Replication, executors: &[u8]) -> Host {
    let bag = BagHeader { tasks, ..bag(1) };
    let opened = Record::Bag {
        bag,
        released: START,
        retries_max: 0,
        attempt: 0,
        closed: None,
        replication,
        stewards: None,
        keep_results: false,
        reruns: 0,
        conditions: Box::default(),
        supply: None,
    };
    let all = IntervalSet::from(0..tasks);
    let placed = |&number: &u8| Record::Placed { bag: BAG, executor: contact(number), ranges: all.clone() };
    let config = Config { expects_grid: true, ..Config::default() };
    Host::restore(1, config, [opened].into_iter().chain(executors.iter().map(placed)).collect())
}

impl Host {
    fn hear_holding(&mut self, from: u8, version: u64, attempt: u32, ranges: Range<u64>) {
        let (ranges, finished) = (IntervalSet::from(ranges), IntervalSet::new());
        self.receive(
            from,
            Message::Holding { bag: BAG, executor: speaker(from), version, attempt, ranges, finished, capacity: None },
        );
    }

    fn hear_result(&mut self, from: u8, index: u64, attempt: u32, success: bool) {
        let output = BlobId([1; 32]);
        let (output_bytes, work_mops, exit_code) = (1, 1000.0, Some(u8::from(!success)));
        let finished = Finished {
            success,
            crashed: false,
            output,
            output_bytes,
            content: None,
            work_mops,
            exit_code,
            fingerprint: None,
            times: 1.0,
        };
        let results = vec![TaskResult::of(index, attempt, finished)];
        self.receive(from, Message::Results { bag: BAG, executor: speaker(from), results, signature: None });
    }

    fn rerun(&mut self, tasks: Range<u64>) {
        self.give(Event::Rerun { bag: BAG, tasks: IntervalSet::from(tasks) });
    }

    /// Numbers of tasks that are done, failed, placed, and waiting.
    fn count(&self) -> [u64; 4] {
        let view = self.peer.bag(BAG).unwrap();
        [view.done, view.failed, view.placed, view.unplaced]
    }

    /// The placements, without empty ones.
    fn placed(&self) -> Vec<(u8, IntervalSet)> {
        let placements = self.peer.placements(BAG).into_iter().filter(|(_, ranges)| !ranges.is_empty());
        placements.map(|(contact, ranges)| (contact.peer.0[0], ranges)).collect()
    }

    /// The tasks whose results were acknowledged to this machine.
    fn acknowledged(&self, number: u8) -> IntervalSet {
        let mut all = IntervalSet::new();
        for (to, message) in &self.sent {
            if let Message::ResultsAck { indices, .. } = message
                && to.peer == contact(number).peer
            {
                all.extend_with(indices);
            }
        }
        all
    }
}

#[test]
fn a_holding_from_before_a_rerun_places_nothing_after_a_restart() {
    let mut host = submitter_of(3, Replication::default(), &[2]);
    (0..3).for_each(|index| host.hear_result(2, index, 0, true));
    assert_eq!(host.count(), [3, 0, 0, 0]);
    host.rerun(1..2);
    let mut host = host.restart(1);
    assert_eq!(host.count(), [2, 0, 0, 1]);
    // The machine has dropped all tasks: this `Holding` is late.
    host.hear_holding(2, 7, 0, 0..3);
    host.receive(2, Message::Renewal { executor: speaker(2), bags: vec![(BAG, 7)] });
    assert_eq!((host.count(), host.placed()), ([2, 0, 0, 1], Vec::new()));
    // A machine that got the task since does place it.
    host.hear_holding(3, 1, LATER, 1..2);
    assert_eq!((host.count(), host.placed()), ([2, 0, 1, 0], vec![(3, IntervalSet::from(1..2))]));
}

/// Another machine goes on as the submitter, from a ticket.
#[test]
fn a_ticket_keeps_which_attempts_count() {
    let mut host = submitter_of(2, Replication::default(), &[2]);
    host.hear_result(2, 0, 0, true);
    host.rerun(0..1);
    let config = Config { expects_grid: true, ..Config::default() };
    let mut host = Host::restore(1, config, host.peer.records_of(BAG));
    host.hear_holding(2, 7, 0, 0..2);
    assert_eq!((host.count(), host.placed()), ([0, 0, 1, 1], vec![(2, IntervalSet::from(1..2))]));
    host.hear_result(2, 0, 0, true);
    assert_eq!(host.count(), [0, 0, 1, 1]);
}

/// The journalled placement is older than the result.
#[test]
fn a_rerun_journals_placements_anew() {
    let mut host = submitter_of(3, Replication::default(), &[2]);
    host.hear_result(2, 1, 0, true);
    host.rerun(1..2);
    let others: IntervalSet = [0..1, 2..3].into_iter().collect();
    assert_eq!((host.count(), host.placed()), ([0, 0, 2, 1], vec![(2, others.clone())]));
    let host = host.restart(1);
    assert_eq!((host.count(), host.placed()), ([0, 0, 2, 1], vec![(2, others)]));
}

#[test]
fn a_result_from_before_a_rerun_does_not_end_the_task() {
    for restarts in [false, true] {
        let mut host = submitter_of(2, Replication::default(), &[2]);
        (0..2).for_each(|index| host.hear_result(2, index, 0, index == 0));
        assert_eq!(host.count(), [1, 1, 0, 0]);
        host.rerun(0..2);
        if restarts {
            host = host.restart(1);
        }
        host.sent.clear();
        (0..2).for_each(|index| host.hear_result(2, index, 0, index == 0));
        assert_eq!(host.count(), [0, 0, 0, 2], "restarts: {restarts}");
        assert_eq!(host.acknowledged(2), IntervalSet::from(0..2), "it need not keep them");
        host.hear_holding(3, 1, LATER, 0..2);
        (0..2).for_each(|index| host.hear_result(3, index, LATER, true));
        assert_eq!(host.count(), [2, 0, 0, 0], "restarts: {restarts}");
    }
}

/// A machine whose result was never acknowledged takes it for that of the new attempt.
#[test]
fn a_machine_with_only_an_old_result_loses_the_rerun_task() {
    let mut host = submitter_of(1, Replication::default(), &[2]);
    host.hear_result(2, 0, 0, true);
    host.rerun(0..1);
    host.hear_holding(2, 7, LATER, 0..1);
    assert_eq!(host.count(), [0, 0, 1, 0]);
    host.sent.clear();
    host.hear_result(2, 0, 0, true);
    assert_eq!((host.count(), host.acknowledged(2)), ([0, 0, 0, 1], IntervalSet::from(0..1)));
    // A `Holding` from before it was told to drop the task places nothing.
    host.hear_holding(2, 8, 1, 0..1);
    assert_eq!(host.count(), [0, 0, 0, 1]);
}

/// Two of three machines have voted that the task failed; it is run again.
fn failed_and_run_again(restarts: bool) -> Host {
    let replication = Replication { replicas: 3, quorum: 2, recheck: 0 };
    let mut host = submitter_of(1, replication, &[2, 3, 4]);
    host.hear_result(2, 0, 0, false);
    assert_eq!(host.count(), [0, 0, 1, 0], "one vote decides nothing");
    host.hear_result(3, 0, 0, false);
    assert_eq!(host.count(), [0, 1, 0, 0]);
    host.rerun(0..1);
    assert_eq!(host.count(), [0, 0, 0, 1]);
    if restarts { host.restart(1) } else { host }
}

#[test]
fn holdings_from_before_a_rerun_place_no_copies() {
    for restarts in [false, true] {
        let mut host = failed_and_run_again(restarts);
        (2..5).for_each(|number| host.hear_holding(number, 7, 0, 0..1));
        assert_eq!((host.count(), host.placed()), ([0, 0, 0, 1], Vec::new()), "restarts: {restarts}");
    }
}

#[test]
fn old_votes_do_not_decide_a_rerun_task() {
    for restarts in [false, true] {
        let mut host = failed_and_run_again(restarts);
        // With and without new copies on these machines.
        host.hear_result(4, 0, 0, false);
        (2..4).for_each(|number| host.hear_holding(number, 8, LATER, 0..1));
        assert_eq!(host.count(), [0, 0, 1, 0], "restarts: {restarts}");
        host.hear_result(2, 0, LATER, true);
        host.hear_result(4, 0, 0, true);
        host.hear_result(3, 0, 0, false);
        assert_eq!(host.count(), [0, 0, 1, 0], "one vote that counts; restarts: {restarts}");
        // That machine holds nothing else, and no other is known: the next copy runs here.
        host.pass(Config::default().placement_timeout + seconds(1.0));
        host.finish_running();
        assert_eq!(host.count(), [1, 0, 0, 0], "restarts: {restarts}");
    }
}

#[test]
fn results_are_acknowledged_by_attempt() {
    let mut host = submitter_of(10, Replication::default(), &[2]);
    let (output, output_bytes, work_mops, exit_code) = (BlobId([1; 32]), 1, 1000.0, Some(0));
    let finished = Finished {
        success: true,
        crashed: false,
        output,
        output_bytes,
        content: None,
        work_mops,
        exit_code,
        fingerprint: None,
        times: 1.0,
    };
    let other = BagId([77; 32]);
    for bag in [BAG, other] {
        let results = [(1, 3), (2, 0), (4, 3)].map(|(index, attempt)| TaskResult::of(index, attempt, finished.clone()));
        host.sent.clear();
        host.receive(2, Message::Results { bag, executor: speaker(2), results: results.to_vec(), signature: None });
        // These tasks have ended: repeated results are not wanted.
        host.receive(2, Message::Results { bag, executor: speaker(2), results: results.to_vec(), signature: None });
        let mut of: BTreeMap<u32, IntervalSet> = BTreeMap::new();
        for (_, message) in &host.sent {
            if let Message::ResultsAck { bag: acknowledged, attempt, indices } = message {
                assert_eq!(*acknowledged, bag);
                of.entry(*attempt).or_default().extend_with(indices);
            }
        }
        let expected = [(0, [2].as_slice()), (3, [1, 4].as_slice())];
        let set = |indices: &[u64]| indices.iter().map(|&index| index..index + 1).collect::<IntervalSet>();
        assert_eq!(of, expected.into_iter().map(|(attempt, indices)| (attempt, set(indices))).collect());
    }
}

#[test]
fn a_repeated_old_result_removes_no_valid_one() {
    let mut host = submitter_of(1, Replication::default(), &[2]);
    host.hear_result(2, 0, 0, true);
    host.rerun(0..1);
    host.hear_holding(2, 7, LATER, 0..1);
    assert_eq!(host.count(), [0, 0, 1, 0]);
    host.hear_result(2, 0, 0, true);
    // The machine ran the new attempt meanwhile.
    host.hear_result(2, 0, LATER, true);
    assert_eq!(host.count(), [1, 0, 0, 0]);
}
