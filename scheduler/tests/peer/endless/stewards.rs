//! Endless bags whose submitters leave: stewards go on with those whose tasks are an open range.

use idlewood_scheduler::{Acting, Delta};

use super::*;

fn kept() -> Config {
    Config { stewards: 2, kept_bags_max: 8, ..Config::default() }
}

/// A grid of five whose first machine has submitted an endless bag, which two others keep.
fn grid(config: Config) -> Grid {
    let mut grid = Grid::new(5, config);
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(60.0);
    let keepers = grid.hosts[&2].peer.keepers(id(2));
    assert!(keepers.len() == 3 && keepers.iter().all(|keeper| keeper.is_up_to_date), "{keepers:?}");
    grid
}

/// By the work of its tasks, which mostly wait, a machine could run 500 of them in a second: the steward says that work where the submitter had said
/// another before the first task ended.
#[test]
fn no_more_tasks_are_in_hand_once_a_steward_acts_than_machines_end_soon() {
    let mut grid = Grid::new(5, kept());
    (grid.takes_s, grid.computes) = ([(id(2), 2.0)].into(), [(id(2), 0.001)].into());
    grid.give(2, endless(2, 2000.0, OPEN));
    grid.pass(60.0);
    grid.crash(2);
    let mut most = 0;
    for _ in 0..150 {
        grid.pass(1.0);
        let waiting = |host: &Host| host.peer.held().iter().map(|held| held.waiting).sum();
        most = grid.hosts.values().map(waiting).chain([most]).max().expect("some");
    }
    assert_eq!(acting(&grid).len(), 1);
    assert!((1..=8).contains(&most), "{most} waited on one machine");
}

fn runs(grid: &Grid) -> u64 {
    grid.runs.values().map(|&runs| u64::from(runs)).sum()
}

fn acting(grid: &Grid) -> Vec<u8> {
    let acts = |host: &Host| host.peer.kept().any(|(bag, acts)| bag == id(2) && acts);
    grid.hosts.iter().filter(|(_, host)| acts(host)).map(|(&number, _)| number).collect()
}

/// The submitter has the results of all tasks that any machine ran to its end, but for the last ones.
fn assert_whole(grid: &Grid, drained: u64) {
    let ended = grid.hosts[&2].peer.over(id(2)).0.union(&IntervalSet::from(0..drained));
    let missing = IntervalSet::from(0..ended.ranges().last().expect("a task").end - 60).difference(&ended);
    assert!(missing.is_empty(), "{missing:?} of {ended:?}");
    assert!(ended.len() + 60 > grid.runs.len() as u64, "{} of {}", ended.len(), grid.runs.len());
}

#[test]
fn a_steward_gives_tasks_while_the_submitter_is_away() {
    let mut grid = grid(kept());
    let records = grid.crash(2);
    // Until it acts, and the root has forgotten the machine that is away.
    grid.pass(60.0);
    let before = runs(&grid);
    grid.pass(200.0);
    assert_eq!(acting(&grid).len(), 1);
    assert_near((runs(&grid) - before) as f64, 400.0, 0.05, "tasks of four machines");
    let done = grid.runs.len() as u64;
    grid.start(2, records);
    grid.pass(90.0);
    assert_eq!(acting(&grid), [0_u8; 0]);
    assert!(grid.done(2, 2) >= done, "{} of {done}", grid.done(2, 2));
    let before = grid.done(2, 2);
    grid.pass(100.0);
    assert_near((grid.done(2, 2) - before) as f64, 250.0, 0.05, "its own again, on five machines");
    assert_whole(&grid, 0);
    // What the submitter gave after its last word to its stewards, which is at most 5 s before it went, they give again.
    assert!(grid.twice().len() <= 15, "{:?}", grid.twice());
}

#[test]
fn stewards_know_what_is_drained_and_an_adopter_runs_no_such_task_again() {
    let mut grid = grid(kept());
    let drained = grid.hosts[&2].peer.over(id(2)).0;
    grid.give(2, Event::Drained { bag: id(2), tasks: drained.clone() });
    grid.pass(20.0);
    // What has ended since is lost with the disk.
    let undrained = grid.hosts[&2].peer.over(id(2)).0;
    let ticket = grid.hosts[&2].peer.records_of(id(2)).into_iter();
    let adopted = ticket.map(|record| match record {
        Record::Stewards { appointment, .. } => Record::Stewards { appointment, adopts: true },
        // The ticket was made when the stewards were appointed, before anything was drained.
        Record::Bag { bag, released, retries_max, attempt, stewards, conditions, .. } => Record::Bag {
            bag,
            released,
            retries_max,
            attempt,
            closed: None,
            replication: Replication::default(),
            stewards,
            keep_results: false,
            reruns: 0,
            conditions,
            supply: Some(Box::new(Supply {
                endless: OPEN,
                is_ended: false,
                drained: IntervalSet::new(),
                drained_failed: 0,
                was_range: false,
            })),
        },
        record => record,
    });
    let adopted: Vec<Record> = adopted.collect();
    grid.crash(2);
    grid.pass(100.0);
    grid.start(2, adopted);
    grid.pass(120.0);
    let view = grid.view(2, 2);
    assert_eq!((view.drained, view.drained_below), (drained.len(), drained.ranges().next().expect("some").end));
    assert_whole(&grid, view.drained_below);
    let again: IntervalSet = grid.twice().into_iter().map(|task| task.index..task.index + 1).collect();
    assert!(undrained.difference(&again).is_empty(), "the adopter has the results of {undrained:?}, but for {again:?}");
    assert!(again.intersection(&drained).is_empty(), "{again:?} ran again");
    assert!(again.difference(&undrained).len() <= 10, "{again:?} ran again, lost was {undrained:?}");
}

#[test]
fn a_bag_that_ends_with_its_submitter_away_is_over_when_it_is_back() {
    let mut grid = grid(kept());
    grid.give(2, Event::SupplyEnded(id(2)));
    let tasks = grid.view(2, 2).tasks.expect("an end");
    grid.pass(0.5);
    let records = grid.crash(2);
    grid.pass(150.0);
    grid.start(2, records);
    grid.pass(60.0);
    let bag = grid.hosts[&2].peer.bag(id(2)).expect("it was submitted");
    assert!(bag.closed.is_some() && bag.done == tasks, "{bag:?}");
    grid.pass(60.0);
    assert!(grid.hosts.values().all(|host| !host.peer.keeps(id(2))), "it is over for its stewards, too");
}

#[test]
fn a_steward_takes_as_many_results_as_it_has_room_for() {
    let mut grid = grid(Config { kept_result_bytes_max: 3000, ..kept() });
    let records = grid.crash(2);
    grid.pass(400.0);
    let before = runs(&grid);
    grid.pass(100.0);
    assert_eq!(runs(&grid), before, "nothing more is given");
    // A steward that starts again knows how much it has.
    let steward = acting(&grid)[0];
    let of_steward = grid.crash(steward);
    grid.start(steward, of_steward);
    grid.pass(100.0);
    assert!(runs(&grid) - before <= 2, "{} more are given", runs(&grid) - before);
    grid.start(2, records);
    grid.pass(60.0);
    grid.pass(120.0);
    assert!(runs(&grid) > before + 150, "it goes on");
    assert_whole(&grid, 0);
}

#[test]
fn a_bag_that_is_closed_before_stewards_were_heard_has_all_that_they_gave() {
    let mut grid = grid(kept());
    let records = grid.crash(2);
    grid.pass(150.0);
    let run = grid.runs.len() as u64;
    grid.start(2, records);
    grid.give(2, Event::SupplyEnded(id(2)));
    assert!(grid.view(2, 2).is_ended);
    grid.pass(90.0);
    let bag = grid.hosts[&2].peer.bag(id(2)).expect("it was submitted");
    assert!(bag.closed.is_some() && bag.done >= run, "{bag:?}, {run} had run");
    assert_eq!(Some(bag.done), grid.view(2, 2).tasks);
}

/// The steward `from` acts, by its own word.
fn claims(grid: &Grid, from: u8, claim: impl FnOnce(&mut Delta)) -> Message {
    let kept = grid.hosts[&from].store.values().find_map(|record| match record {
        Record::Kept { acting, .. } => Some(acting.clone()),
        _ => None,
    });
    let known = kept.expect("it keeps the bag");
    let rank = known.appointment.keepers.iter().position(|keeper| keeper.peer == contact(from).peer);
    let rank = u8::try_from(rank.expect("a steward")).expect("few");
    let acting = Acting { acting: known.acting + 1, rank, ..known };
    let term = acting.term();
    let mut delta = Delta { number: 1, acting: Some(Box::new(acting)), is_whole: true, ..Delta::alive(id(2), term) };
    claim(&mut delta);
    Message::Deltas { deltas: vec![delta] }
}

fn stewards(grid: &Grid) -> [u8; 2] {
    let keepers = grid.hosts[&2].peer.keepers(id(2));
    [1, 2].map(|rank: usize| keepers[rank].peer.0[0])
}

#[test]
fn a_steward_that_says_that_all_tasks_have_ended_holds_them_up_for_one_lease() {
    let mut grid = grid(kept());
    let [_, liar] = stewards(&grid);
    let all = claims(&grid, liar, |delta| delta.done = IntervalSet::from(0..BAG_TASKS_MAX));
    grid.hosts.get_mut(&2).expect("it is up").receive(liar, all);
    grid.pass(300.0);
    let before = grid.done(2, 2);
    grid.pass(60.0);
    assert!(grid.done(2, 2) > before + 100, "{before}");
    assert_whole(&grid, 0);
}

#[test]
fn no_keepers_word_deletes_results_that_the_submitter_does_not_have() {
    let mut grid = grid(kept());
    let [first, liar] = stewards(&grid);
    let records = grid.crash(2);
    grid.pass(120.0);
    assert_eq!(acting(&grid), [first]);
    let run = grid.runs.len() as u64;
    let all = claims(&grid, liar, |delta| delta.drained = IntervalSet::from(0..BAG_TASKS_MAX));
    grid.hosts.get_mut(&first).expect("it is up").receive(liar, all);
    grid.pass(5.0);
    grid.start(2, records);
    grid.pass(200.0);
    assert!(grid.done(2, 2) >= run, "{} of {run}", grid.done(2, 2));
    assert_whole(&grid, 0);
    let twice = grid.twice().len();
    // What the two gave who acted one after the other, and not the 200 that the first had taken.
    assert!(twice <= 80, "{twice} ran twice");
}
