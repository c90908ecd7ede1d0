//! Submitters that are back after hours: what they ask machines that may have gone, and what stewards have for them.

use super::*;

impl Grid {
    fn running(&self) -> usize {
        self.hosts.values().map(|host| host.peer.running().len()).sum()
    }
}

/// A submitter that goes off within seconds: each of them counts.
#[test]
fn a_bag_of_long_tasks_asks_for_stewards_when_it_is_due_to() {
    let mut grid = Grid::new();
    grid.pass(3);
    let keepers = grid.hosts[&SUBMITTER].peer.keepers(BAG);
    assert_eq!(keepers.iter().filter(|keeper| keeper.is_up_to_date).count(), 3, "{keepers:?}");
}

/// The lease of an old bag is long, since machines that renew it are asked seldom. Whether one that was silent all the time is still there turns out
/// sooner.
#[test]
fn a_submitter_that_is_back_after_an_hour_waits_a_minute_for_machines_that_have_gone() {
    let mut grid = Grid::with(Config { stewards: 0, ..config() }, false);
    grid.pass(20);
    let gone = 4;
    let lost = grid.hosts[&gone].peer.unfinished()[&BAG].len();
    grid.crash(SUBMITTER);
    grid.crash(gone);
    grid.pass(3600);
    grid.start(SUBMITTER);
    grid.pass(45);
    let placed = |grid: &Grid| {
        let placements = grid.hosts[&SUBMITTER].peer.placements(BAG);
        let with = placements.into_iter().filter(|(executor, _)| number(executor.peer) == gone);
        with.map(|(_, tasks)| tasks.len()).sum::<u64>()
    };
    assert_eq!(placed(&grid), lost, "it may be back any moment");
    grid.pass(30);
    assert_eq!(placed(&grid), 0);
    grid.pass(200);
    assert_eq!(grid.done(), TASKS);
}

/// All asking but the last is lost on the way: the machine that holds the tasks keeps them.
#[test]
fn machines_that_do_not_answer_a_submitter_that_is_back_are_asked_again() {
    let mut grid = Grid::with(Config { stewards: 0, ..config() }, false);
    grid.pass(20);
    grid.crash(SUBMITTER);
    grid.cut = (3..7).map(|other| (SUBMITTER, other)).collect();
    grid.pass(60);
    grid.start(SUBMITTER);
    grid.pass(38);
    grid.cut.clear();
    grid.pass(500);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.run_twice() <= 1, "{}: what its own slot had begun", grid.run_twice());
}

/// What the submitter takes for held elsewhere was handed to a steward that has gone: nobody holds it, and that is said at once.
#[test]
fn a_machine_that_holds_nothing_says_so_to_a_keeper_that_asks() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.crash(stewards[1]);
    grid.pass(600);
    assert_eq!(grid.hosts[&stewards[0]].peer.over(BAG).0.len(), TASKS);
    grid.crash(stewards[0]);
    grid.start(SUBMITTER);
    grid.pass(30);
    assert!(grid.running() >= 3, "{} tasks run again", grid.running());
    assert!(grid.done() < TASKS);
}

/// One steward takes the results, and has gone when the submitter is back; the other has those that are small, too.
#[test]
fn a_steward_that_acts_gives_the_other_small_results_that_the_submitter_has_not() {
    let mut grid = Grid::new();
    let small = SmallOutput::new(&[7]);
    grid.hosts.values_mut().for_each(|host| host.small_output = small.clone());
    let stewards = grid.wait_until_kept();
    // What the submitter's own slot had begun it goes on with when it is back.
    let own: Vec<TaskId> = grid.hosts[&SUBMITTER].peer.running().into_iter().map(|running| running.task).collect();
    grid.crash(SUBMITTER);
    grid.pass(600);
    assert_eq!(grid.hosts[&stewards[0]].peer.over(BAG).0.len(), TASKS);
    grid.crash(stewards[0]);
    grid.pass(600);
    let twice = |grid: &Grid| {
        let others = grid.runs.iter().filter(|(task, runs)| **runs > 1 && !own.contains(task));
        others.map(|(task, _)| *task).collect::<Vec<_>>()
    };
    let before = twice(&grid);
    grid.start(SUBMITTER);
    grid.pass(30);
    assert_eq!(grid.done(), TASKS);
    assert_eq!(twice(&grid), before, "nothing runs again");
    grid.start(stewards[0]);
    grid.pass(100);
    assert!(grid.hosts.values().all(|host| host.peer.kept().next().is_none()), "it is over, and nobody keeps it");
    let left = grid.hosts.values().filter(|host| host.peer.me().peer != PeerId([SUBMITTER; 32]));
    let left = left.flat_map(|host| host.store.values()).filter(|record| matches!(record, Record::Done { .. }));
    assert_eq!(left.count(), 0);
}

/// The submitter is off again when a steward is back that was away at the end of the bag: the other stewards know that it is over. It was switched off, or
/// heard nobody.
#[test]
fn a_steward_that_was_away_when_a_bag_ended_does_not_run_it_anew() {
    for (rank, was_off) in [(0, true), (1, true), (0, false), (1, false)] {
        let mut grid = Grid::new();
        let away = grid.wait_until_kept()[rank];
        let held = grid.hosts[&away].peer.unfinished()[&BAG].clone();
        if was_off {
            grid.crash(away);
        } else {
            grid.cut = (2..7).filter(|&other| other != away).map(|other| (away, other)).collect();
        }
        grid.pass(1300);
        assert_eq!(grid.done(), TASKS);
        assert!(held.len() < TASKS / 2);
        grid.crash(SUBMITTER);
        if was_off {
            grid.start(away);
        } else {
            grid.cut.clear();
            let other = (3..7).find(|&other| other != away).expect("some are up");
            grid.give(away, Event::Bootstrap(contact(other)));
        }
        let has_acted = |grid: &Grid| match &grid.hosts[&away].store[&RecordKey::Kept(BAG)] {
            Record::Kept { acting, .. } => acting.acting > 0,
            other => panic!("no copy: {other:?}"),
        };
        assert!(!has_acted(&grid));
        grid.pass(400);
        assert!(!has_acted(&grid), "rank {}, off: {was_off}: not even until others have answered", rank + 1);
        let again = grid.runs.iter().filter(|(task, runs)| **runs > 1 && !held.contains(task.index)).count();
        assert_eq!(again, 0, "rank {}, off: {was_off}: nothing runs again but what it held itself", rank + 1);
        assert!(grid.acting().is_empty());
        grid.start(SUBMITTER);
        grid.pass(150);
        assert!(grid.hosts.values().all(|host| host.peer.kept().next().is_none()), "it is over, and nobody keeps it");
    }
}
