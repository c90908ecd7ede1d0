//! Bags with a quorum: stewards keep votes coming, and decide nothing.

use super::*;

const QUORUM: Replication = Replication { replicas: 2, quorum: 2, recheck: 0 };

impl Grid {
    fn voting() -> Self {
        let submission = Submission { retries_max: 2, replication: QUORUM, ..submission(TASKS, 30_000.0) };
        Self::of(config(), submission)
    }

    /// How many machines of those that are up have run each task.
    fn has_run_twice(&self) -> u64 {
        self.runs.values().filter(|runs| **runs > 1).count() as u64
    }

    fn place(steward: u8, submitter: &Host, tasks: &IntervalSet, on: u8) -> Record {
        assert!(submitter.peer.keepers(BAG).iter().any(|keeper| number(keeper.peer) == steward));
        Record::Placed { bag: BAG, executor: contact(on), ranges: tasks.clone() }
    }
}

#[test]
fn a_steward_keeps_votes_coming_and_the_submitter_decides() {
    let mut grid = Grid::voting();
    let stewards = grid.wait_until_kept();
    let other = (3..7).find(|number| !stewards.contains(number)).expect("there are four");
    grid.crash(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    let decided = grid.hosts[&stewards[0]].peer.over(BAG).0;
    assert!(decided.len() < TASKS, "{decided:?}");
    // What it held is run by others.
    grid.crash(other);
    grid.pass(1500);
    assert_eq!(grid.hosts[&stewards[0]].peer.over(BAG).0, decided, "a steward decides nothing");
    assert_eq!(grid.has_run_twice(), TASKS, "two machines have run each: {:?}", grid.runs);
    let before: u32 = grid.runs.values().sum();
    grid.start(SUBMITTER);
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.acting().is_empty());
    let again = grid.runs.values().sum::<u32>() - before;
    assert!(u64::from(again) <= TASKS, "{again}: of the machines that the steward chose, one counts for each task");
}

#[test]
fn whoever_adopts_a_bag_with_a_quorum_goes_on_with_it() {
    let mut grid = Grid::voting();
    grid.wait_until_kept();
    while grid.done() < TASKS / 4 {
        grid.pass(1);
    }
    grid.pass(12);
    let ended = grid.done();
    grid.lose_submitter();
    grid.pass(60);
    grid.start(SUBMITTER);
    grid.pass(40);
    let lost = grid.hosts[&SUBMITTER].peer.results_lost(BAG);
    assert!(!lost.is_empty() && lost.len() <= ended, "{lost:?}: no steward has a result, and none would count");
    grid.pass(1800);
    assert_eq!(grid.done(), TASKS);
    let disputed = grid.hosts[&SUBMITTER].peer.bag(BAG).expect("it was adopted").disputed;
    assert_eq!(disputed, 0);
}

/// A steward that acted while the submitter was away says with which machines tasks are. If all of those counted, it could give a task to as
/// many machines of its own as a quorum has.
#[test]
fn a_steward_cannot_choose_all_machines_that_vote_on_a_task() {
    let mut grid = Grid::voting();
    let liar = grid.wait_until_kept()[0];
    let store = grid.hosts[&SUBMITTER].store.clone();
    let known = |index: u64, number: u8| {
        store.values().any(|record| match record {
            Record::Placed { executor, ranges, .. } => executor.peer == contact(number).peer && ranges.contains(index),
            Record::Former { executor, ranges, .. } => *executor == contact(number).peer && ranges.contains(index),
            _ => false,
        })
    };
    let accomplices: Vec<u8> = (3..7).filter(|&number| number != liar).collect();
    let is_placed = |index: u64, number: u8| {
        let record = store.get(&RecordKey::Placed(BAG, contact(number).peer));
        matches!(record, Some(Record::Placed { ranges, .. }) if ranges.contains(index))
    };
    // With two machines already, so that no copy of it is on its way.
    let has_both = |index: u64| (2..7).filter(|&number| is_placed(index, number)).count() == 2;
    let over = grid.hosts[&SUBMITTER].peer.over(BAG).0;
    let open = IntervalSet::from(0..TASKS).difference(&over);
    let (index, voters) = open
        .indices()
        .filter(|&index| has_both(index))
        .find_map(|index| {
            let voters: Vec<u8> = accomplices.iter().copied().filter(|&number| !known(index, number)).collect();
            (voters.len() > 1).then_some((index, voters))
        })
        .expect("some task is with two other machines");
    let records = grid.hosts[&liar].store.clone();
    let Some(Record::Kept { acting, .. }) = records.get(&RecordKey::Kept(BAG)) else { panic!("no copy: {records:?}") };
    let acting = Acting { acting: 1, rank: 1, ..acting.clone() };
    grid.crash(liar);
    // Honest machines would say that they do not have it.
    grid.cut = voters.iter().map(|&voter| (SUBMITTER, voter)).collect();
    let task = IntervalSet::from(index..index + 1);
    let placed = voters.iter().map(|&voter| Grid::place(liar, &grid.hosts[&SUBMITTER], &task, voter));
    let delta = Delta {
        bag: BAG,
        term: acting.term(),
        number: 1,
        acting: Some(Box::new(acting)),
        key: None,
        records: records.get(&RecordKey::Bag(BAG)).cloned().into_iter().chain(placed).collect(),
        gone: Vec::new(),
        done: IntervalSet::new(),
        failed: IntervalSet::new(),
        is_whole: true,
        is_over: false,
        leaves: false,
        next: None,
    };
    let submitter = grid.hosts.get_mut(&SUBMITTER).expect("it is up");
    submitter.receive(liar, Message::Deltas { deltas: vec![delta] });
    grid.pass(20);
    let result = TaskResult {
        index,
        attempt: 0,
        success: true,
        crashed: false,
        unfinished: false,
        output: BlobId([9; 32]),
        output_bytes: 1,
        content: None,
        work_mops: 1.0,
        exit_code: Some(0),
        receipt: None,
        fingerprint: None,
    };
    for &voter in &voters {
        let (executor, results) = ((&contact(voter)).into(), vec![result.clone()]);
        let message = Message::Results { bag: BAG, executor, results, signature: None };
        grid.hosts.get_mut(&SUBMITTER).expect("it is up").receive(voter, message);
    }
    let decided = |grid: &Grid| match grid.hosts[&SUBMITTER].store.get(&RecordKey::Done(BAG, index)) {
        Some(Record::Done { result, .. }) => Some(result.output),
        _ => None,
    };
    assert_ne!(decided(&grid), Some(result.output), "{voters:?} by the word of {liar} alone");
    // Nor does it help to hand over the result as one that it took.
    let Some(Record::Stewards { appointment, .. }) =
        grid.hosts[&SUBMITTER].store.get(&RecordKey::Stewards(BAG)).cloned()
    else {
        panic!("it has appointed stewards")
    };
    let rank = appointment.keepers.iter().position(|keeper| number(keeper.peer) != SUBMITTER).expect("a steward");
    let steward = number(appointment.keepers[rank].peer);
    let acting = Box::new(Acting { appointment, acting: 1, rank: rank as u8 });
    let results = vec![(contact(voters[0]).peer, result.clone())];
    let handed = Message::Kept { acting, tasks: task, results };
    grid.hosts.get_mut(&SUBMITTER).expect("it is up").receive(steward, handed);
    assert_ne!(decided(&grid), Some(result.output), "handed over by {steward}");
    grid.cut.clear();
    grid.pass(1500);
    assert_eq!(grid.done(), TASKS);
    assert_eq!(decided(&grid), Some(BlobId([1; 32])));
}
