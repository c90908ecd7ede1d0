//! Results that stewards keep beside the submitter: whose disk is lost, a steward's that restarts, and rooms that are small.

use super::*;

impl Grid {
    /// A grid whose bag is kept with its results, by machines with so much room for them.
    fn keeping_results(bytes: u64) -> Self {
        Self::with(Config { kept_result_bytes_max: bytes, ..config() }, true)
    }

    /// The tasks that have ended for their submitter.
    fn ended(&self) -> IntervalSet {
        self.hosts[&SUBMITTER].peer.over(BAG).0
    }

    /// Waits until this share of the tasks has ended, and the stewards have the results.
    fn wait_until_safe(&mut self, tasks: u64) -> IntervalSet {
        for _ in 0..600 {
            self.pass(1);
            let kept = self.hosts[&SUBMITTER].peer.results_kept(BAG).expect("stewards keep them");
            if kept.ended >= tasks && kept.elsewhere == kept.ended {
                return self.ended();
            }
        }
        panic!("{:?}", self.hosts[&SUBMITTER].peer.results_kept(BAG));
    }

    /// How often these tasks have run.
    fn runs_of(&self, tasks: &IntervalSet) -> Vec<u32> {
        tasks.indices().map(|index| self.runs.get(&TaskId { bag: BAG, index }).copied().unwrap_or(0)).collect()
    }

    fn kept_on(&self, number: u8) -> usize {
        self.hosts[&number].store.values().filter(|record| matches!(record, Record::Done { .. })).count()
    }
}

#[test]
fn whoever_adopts_a_bag_has_all_results_and_nothing_runs_again() {
    let mut grid = Grid::keeping_results(1 << 20);
    let stewards = grid.wait_until_kept();
    let ended = grid.wait_until_safe(TASKS / 2);
    assert!(ended.len() < TASKS, "it was over too soon to show anything");
    grid.lose_submitter();
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.start(SUBMITTER);
    grid.pass(30);
    let missing = ended.difference(&grid.ended());
    assert!(missing.is_empty(), "they are with the machine that adopted the bag: {missing:?}");
    assert!(grid.hosts[&SUBMITTER].peer.results_lost(BAG).is_empty());
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.runs_of(&ended).iter().all(|runs| *runs == 1), "{:?}", grid.runs);
    for steward in 3..7 {
        assert_eq!(grid.kept_on(steward), 0, "the bag is over, and nobody keeps its results");
    }
}

#[test]
fn without_results_kept_those_that_are_gone_are_computed_again_and_no_others() {
    let mut grid = Grid::new();
    grid.wait_until_kept();
    while grid.done() < TASKS / 2 {
        grid.pass(1);
    }
    // The stewards know what has ended.
    grid.pass(12);
    assert_eq!(grid.hosts[&SUBMITTER].peer.results_kept(BAG), None);
    let ended = grid.ended();
    grid.lose_submitter();
    grid.pass(1);
    grid.start(SUBMITTER);
    grid.pass(40);
    let lost = grid.hosts[&SUBMITTER].peer.results_lost(BAG);
    assert!(!lost.is_empty() && lost.difference(&ended).is_empty(), "{lost:?} of {ended:?}");
    grid.pass(1500);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.hosts[&SUBMITTER].peer.results_lost(BAG).is_empty(), "they are here now");
    assert!(grid.runs_of(&ended).iter().all(|runs| *runs == 2), "{:?}", grid.runs);
    let others = IntervalSet::from(0..TASKS).difference(&ended);
    assert!(grid.runs_of(&others).iter().sum::<u32>() <= others.len() as u32 + 4, "what the lost machine ran");
}

#[test]
fn a_steward_that_acts_gives_the_other_what_it_takes() {
    let mut grid = Grid::keeping_results(1 << 20);
    let stewards = grid.wait_until_kept();
    grid.wait_until_safe(4);
    grid.lose_submitter();
    grid.pass(120);
    assert_eq!(grid.acting(), [stewards[0]]);
    // What came within the last seconds may not be with the other yet.
    let ended = grid.hosts[&stewards[0]].peer.over(BAG).0;
    assert!(ended.len() < TASKS, "{ended:?}");
    grid.pass(15);
    grid.crash(stewards[0]);
    grid.start(SUBMITTER);
    grid.pass(30);
    let missing = ended.difference(&grid.ended());
    assert!(missing.is_empty(), "the second steward had them: {missing:?}");
    grid.pass(1500);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.runs_of(&ended).iter().all(|runs| *runs == 1), "{:?}", grid.runs);
}

#[test]
fn a_steward_keeps_as_much_as_there_is_room_for_and_says_so() {
    // Each result takes 1 KiB and its output.
    let mut grid = Grid::keeping_results(5 << 10);
    let stewards = grid.wait_until_kept();
    grid.pass(120);
    let kept = grid.hosts[&SUBMITTER].peer.results_kept(BAG).expect("stewards keep them");
    assert!(kept.lacks_room && kept.elsewhere == 4 && kept.ended > 4, "{kept:?}");
    assert_eq!(grid.stewards(), stewards, "they keep the bag all the same");
    assert!(stewards.iter().all(|&steward| grid.kept_on(steward) == 4));
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

#[test]
fn a_steward_that_restarts_has_the_results_still_and_one_in_its_place_gets_them() {
    let mut grid = Grid::keeping_results(1 << 20);
    let stewards = grid.wait_until_kept();
    let first = grid.wait_until_safe(TASKS / 4);
    grid.crash(stewards[0]);
    grid.pass(2);
    grid.start(stewards[0]);
    let before = grid.kept_on(stewards[0]);
    assert!(before >= TASKS as usize / 4);
    grid.give(stewards[1], Event::KeepsAtMost(0));
    grid.pass(40);
    let now = grid.stewards();
    assert!(now.contains(&stewards[0]) && !now.contains(&stewards[1]) && now.len() == 2, "{now:?}");
    assert!(grid.kept_on(stewards[0]) >= before);
    grid.wait_until_safe(TASKS / 2);
    // Safe is what one of the two has: the new one may need a little longer.
    grid.pass(10);
    let new = now.iter().copied().find(|number| *number != stewards[0]).expect("there are two");
    let has = |index| grid.hosts[&new].store.contains_key(&RecordKey::Done(BAG, index));
    assert!(first.indices().all(has), "it has those of before, too: {first:?}");
    grid.crash(stewards[0]);
    grid.lose_submitter();
    grid.start(SUBMITTER);
    grid.pass(30);
    let missing = first.difference(&grid.ended());
    assert!(missing.is_empty(), "the new steward had them: {missing:?}");
}

#[test]
fn results_from_before_a_rerun_are_kept_by_nobody() {
    let mut grid = Grid::keeping_results(1 << 20);
    let stewards = grid.wait_until_kept();
    let ended = grid.wait_until_safe(TASKS / 4);
    let again: IntervalSet = ended.ranges().next().into_iter().collect();
    grid.give(SUBMITTER, Event::Rerun { bag: BAG, tasks: again.clone() });
    grid.pass(12);
    let has = |grid: &Grid, index| grid.hosts[&stewards[0]].store.contains_key(&RecordKey::Done(BAG, index));
    let run_again = again.difference(&grid.ended());
    assert!(!run_again.is_empty(), "they take longer");
    assert!(run_again.indices().all(|index| !has(&grid, index)));
    grid.pass(1500);
    assert_eq!(grid.done(), TASKS);
}

/// Stewards take results from whoever acts, and from nobody else; the submitter asks what they have before it gives any.
#[test]
fn a_stranger_gives_a_steward_nothing_to_keep() {
    let mut grid = Grid::keeping_results(1 << 20);
    let stewards = grid.wait_until_kept();
    let Some(Record::Kept { acting, .. }) = grid.hosts[&stewards[0]].store.get(&RecordKey::Kept(BAG)).cloned() else {
        panic!("no copy")
    };
    let stranger = (3..7).find(|number| !stewards.contains(number)).expect("there are four");
    let result = TaskResult {
        index: TASKS - 1,
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
    let given = |acting: &Acting| Message::Kept {
        acting: Box::new(acting.clone()),
        tasks: IntervalSet::new(),
        results: vec![(contact(stranger).peer, result.clone())],
    };
    let steward = grid.hosts.get_mut(&stewards[0]).expect("it is up");
    steward.receive(stranger, given(&acting));
    // The other steward, which does not act, in its own name, and in a term that is over.
    steward.receive(stewards[1], given(&Acting { rank: 2, ..acting.clone() }));
    let old = Appointment { term: acting.appointment.term - 1, ..acting.appointment.clone() };
    steward.receive(SUBMITTER, given(&Acting { appointment: old, ..acting.clone() }));
    let has = |grid: &Grid| grid.hosts[&stewards[0]].store.contains_key(&RecordKey::Done(BAG, TASKS - 1));
    assert!(!has(&grid));
    grid.hosts.get_mut(&stewards[0]).expect("it is up").receive(SUBMITTER, given(&acting));
    assert!(has(&grid), "the submitter acts");
}
