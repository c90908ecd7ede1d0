//! Applications in rounds: stewards keep what is needed to go on, and do not act.

use idlewood_scheduler::rounds::{Plan, Progress};

use super::*;

fn plan(is_asynchronous: bool) -> Plan {
    Plan { processes: 4, rounds: 9, rounds_min: 0, merges: true, is_asynchronous, fill: None, at_once: false }
}

fn application(plan: Plan, keep_results: bool) -> Grid {
    let conditions = Conditions { rounds: Some(plan), ..Conditions::default() };
    let submission = Submission { retries_max: 2, keep_results, conditions, ..submission(plan.tasks(), 30_000.0) };
    Grid::of(config(), submission)
}

impl Grid {
    fn progress(&self) -> Progress {
        self.hosts[&SUBMITTER].peer.rounds(BAG).expect("it is in rounds").clone()
    }

    /// Waits until all processes have done this round.
    fn complete(&mut self, round: u64) {
        for _ in 0..100 {
            if self.progress().last_complete() >= Some(round) {
                return;
            }
            self.pass(20);
        }
        panic!("{:?}", self.progress());
    }

    /// The tasks whose results a machine has on its disk.
    fn results(&self, host: u8) -> IntervalSet {
        let indices = self.hosts[&host].store.values().filter_map(|record| match record {
            Record::Done { result, .. } => Some(result.index..result.index + 1),
            _ => None,
        });
        indices.collect()
    }

    fn is_over(&self) -> bool {
        self.hosts[&SUBMITTER].peer.bag(BAG).expect("submitted").closed.is_some()
    }

    /// Tasks that were run more than once.
    fn again(&self) -> Vec<u64> {
        self.runs.iter().filter(|(_, runs)| **runs > 1).map(|(task, _)| task.index).collect()
    }
}

#[test]
fn whoever_adopts_an_application_goes_on_from_the_last_complete_round() {
    for is_asynchronous in [false, true] {
        let plan = plan(is_asynchronous);
        let mut grid = application(plan, false);
        let stewards = grid.wait_until_kept();
        grid.complete(4);
        // What ended within the last seconds may not be there.
        grid.pass(15);
        let (last, all) = (grid.progress().last_complete().expect("it is complete"), grid.done());
        for &steward in &stewards {
            let has = grid.results(steward);
            let of_last = Progress::restore(plan, &has).last_complete().expect("a whole round");
            assert!(of_last >= last - 1 && has.first() >= Some(plan.before(of_last).end), "{of_last} {last} {has:?}");
        }
        grid.lose_submitter();
        grid.pass(150);
        assert_eq!(grid.acting(), [] as [u8; 0], "nobody acts: no machine takes a steward's word for the submitter's");
        let before = grid.again();
        grid.start(SUBMITTER);
        grid.pass(120);
        assert!(grid.done() + 2 * plan.processes >= all, "{} of {all}", grid.done());
        // After a restart it is there still.
        grid.crash(SUBMITTER);
        grid.start(SUBMITTER);
        for _ in 0..40 {
            grid.pass(60);
        }
        assert!(grid.is_over() && grid.done() == plan.tasks(), "{:?}", grid.progress());
        let again = grid.again();
        let early = again.iter().filter(|index| plan.before(last).contains(index) && !before.contains(index));
        assert_eq!(early.count(), 0, "{again:?}, and round {last} was complete");
        assert_eq!(grid.hosts[&SUBMITTER].peer.results_lost(BAG), IntervalSet::new());
    }
}

#[test]
fn where_all_results_are_to_be_kept_those_of_all_rounds_are() {
    let plan = plan(false);
    let mut grid = application(plan, true);
    let steward = grid.wait_until_kept()[0];
    grid.complete(3);
    grid.pass(15);
    assert!(grid.results(steward).len() >= plan.before(3).end, "{:?}", grid.results(steward));
    grid.lose_submitter();
    grid.start(SUBMITTER);
    grid.pass(120);
    assert!(grid.results(SUBMITTER).len() >= plan.before(3).end);
}

/// It finds nothing that could go on, and begins anew.
#[test]
fn where_all_stewards_are_gone_an_adopted_application_begins_anew() {
    let plan = plan(false);
    let mut grid = application(plan, false);
    let stewards = grid.wait_until_kept();
    grid.complete(1);
    grid.lose_submitter();
    stewards.iter().for_each(|&steward| grid.crash(steward));
    grid.start(SUBMITTER);
    for _ in 0..60 {
        grid.pass(60);
    }
    assert!(grid.is_over() && grid.done() == plan.tasks(), "{:?}", grid.progress());
}

#[test]
fn a_submitter_that_was_off_goes_on_where_it_was() {
    let plan = plan(false);
    let mut grid = application(plan, false);
    grid.wait_until_kept();
    grid.complete(2);
    let done = grid.done();
    grid.crash(SUBMITTER);
    grid.pass(200);
    assert_eq!(grid.acting(), [] as [u8; 0]);
    grid.start(SUBMITTER);
    assert!(grid.done() >= done);
    for _ in 0..40 {
        grid.pass(60);
    }
    assert!(grid.is_over() && grid.done() == plan.tasks());
}
