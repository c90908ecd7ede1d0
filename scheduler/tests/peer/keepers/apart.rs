//! Keepers that have not heard of each other for a while: whatever each of them numbered meanwhile, nothing is numbered twice, and nothing that one of them
//! says holds a bag up for good.

use super::*;

/// The attempt with which this machine last issued tasks of the bag, for its submitter or as that.
fn attempt(host: &Host) -> u32 {
    match host.store.get(&RecordKey::Bag(BAG)) {
        Some(Record::Bag { attempt, .. }) => *attempt,
        other => panic!("no bag: {other:?}"),
    }
}

/// The record of the bag with another attempt.
fn numbered(mut record: Record, number: u32) -> Record {
    if let Record::Bag { attempt, .. } = &mut record {
        *attempt = number;
    }
    record
}

/// What a steward that acts says to the bag's submitter, from its copy.
fn delta(grid: &Grid, steward: u8, records: Vec<Record>) -> Delta {
    let kept = grid.hosts[&steward].store.get(&RecordKey::Kept(BAG)).cloned();
    let Some(Record::Kept { acting, .. }) = kept else { panic!("no copy: {kept:?}") };
    let rank = acting.appointment.keepers.iter().position(|keeper| number(keeper.peer) == steward).expect("a steward");
    let acting = Acting { acting: 1, rank: rank as u8, ..acting };
    let term = acting.term();
    Delta { number: 1, acting: Some(Box::new(acting)), records, is_whole: true, ..Delta::alive(BAG, term) }
}

/// Both act, each on its side of a partition. Found by `simnet`'s `i7_once`, once a steward acted with its copy of long ago.
#[test]
fn two_stewards_that_act_apart_number_no_attempt_alike() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let told = attempt(&grid.hosts[&SUBMITTER]);
    grid.crash(SUBMITTER);
    grid.cut = vec![(stewards[0], stewards[1])];
    grid.pass(200);
    assert_eq!(grid.acting().len(), 2, "{:?}", grid.acting());
    let [first, second] = [0, 1].map(|rank| attempt(&grid.hosts[&stewards[rank]]));
    assert!(first > told && second > first + 1000, "{told}, {first} and {second}");
    // Whichever it believes.
    grid.start(SUBMITTER);
    grid.pass(60);
    let mine = attempt(&grid.hosts[&SUBMITTER]);
    assert!(mine > second, "{mine}, after {first} and {second}");
}

/// Others may have acted since it knew what it knows, one after the other.
#[test]
fn a_steward_that_starts_again_numbers_far_above_what_it_knows() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.crash(stewards[1]);
    grid.pass(60);
    let others = attempt(&grid.hosts[&stewards[0]]);
    grid.crash(stewards[0]);
    grid.start(stewards[1]);
    grid.pass(150);
    assert_eq!(grid.acting(), [stewards[1]]);
    let mine = attempt(&grid.hosts[&stewards[1]]);
    assert!(mine > others + 60_000, "{mine}: none of those that the other numbered, {others} for example");
}

/// The submitter has not heard that one of its stewards acted, and appoints it anew: it tells that steward of fewer attempts than it has numbered itself.
#[test]
fn a_steward_that_is_told_less_than_it_numbered_numbers_far_above_that() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let told = grid.hosts[&SUBMITTER].store[&RecordKey::Bag(BAG)].clone();
    grid.crash(SUBMITTER);
    grid.crash(stewards[1]);
    grid.pass(120);
    assert_eq!(grid.acting(), [stewards[0]]);
    let mine = attempt(&grid.hosts[&stewards[0]]);
    assert!(mine > 1000, "{mine}");
    let kept = grid.hosts[&stewards[0]].store[&RecordKey::Kept(BAG)].clone();
    let Record::Kept { acting: Acting { mut appointment, .. }, key, .. } = kept else { panic!("no copy: {kept:?}") };
    appointment.term += 1;
    let acting = Acting { appointment, acting: 0, rank: 0 };
    let term = acting.term();
    let anew = Delta {
        number: 1,
        acting: Some(Box::new(acting)),
        key: Some(key),
        records: vec![told.clone()],
        is_whole: true,
        ..Delta::alive(BAG, term)
    };
    grid.hosts.get_mut(&stewards[0]).expect("it is up").receive(SUBMITTER, Message::Deltas { deltas: vec![anew] });
    grid.pass(1);
    assert_eq!(grid.acting(), []);
    assert_eq!(attempt(&grid.hosts[&stewards[0]]), mine, "the submitter named {told:?}");
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    let next = attempt(&grid.hosts[&stewards[0]]);
    assert!(next > mine + 60_000, "{next}, after {mine}: others may have numbered some of those in between");
}

/// Of two stewards that tell a submitter of the same term, the one that acted in it knows all of it; attempts of both are known.
#[test]
fn a_submitter_believes_the_steward_that_acted_and_numbers_above_both() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let (acts, behind) = (stewards[0].min(stewards[1]), stewards[0].max(stewards[1]));
    let machines: Vec<u8> = (3..7).filter(|number| !stewards.contains(number)).collect();
    let over = grid.hosts[&SUBMITTER].peer.over(BAG).0;
    let task = IntervalSet::from(0..TASKS).difference(&over).indices().last().expect("some are open");
    let placed = |on: usize| Record::Placed {
        bag: BAG,
        executor: contact(machines[on]),
        ranges: IntervalSet::from(task..task + 1),
    };
    let bag = grid.hosts[&acts].store[&RecordKey::Bag(BAG)].clone();
    let all = delta(&grid, acts, vec![bag.clone(), placed(0)]);
    let acting = all.acting.clone();
    let some = Delta { acting, ..delta(&grid, behind, vec![numbered(bag, 5_000), placed(1)]) };
    stewards.iter().for_each(|&steward| grid.crash(steward));
    // What the machines themselves say comes later.
    grid.is_lost = |message| matches!(message, Message::Holding { .. });
    let submitter = grid.hosts.get_mut(&SUBMITTER).expect("it is up");
    submitter.receive(acts, Message::Deltas { deltas: vec![all] });
    submitter.receive(behind, Message::Deltas { deltas: vec![some] });
    grid.pass(3);
    let submitter = &grid.hosts[&SUBMITTER];
    let holders = submitter.store.values().filter_map(|record| match record {
        Record::Placed { executor, ranges, .. } if ranges.contains(task) => Some(number(executor.peer)),
        _ => None,
    });
    assert_eq!(holders.collect::<Vec<_>>(), [machines[0]]);
    assert!(attempt(submitter) > 5_000);
    grid.is_lost = |_| false;
    grid.pass(1800);
    assert_eq!(grid.done(), TASKS);
}

/// A steward that lies about numbers can have nothing counted for ever: no result would ever be new enough.
#[test]
fn a_steward_that_names_the_highest_numbers_does_not_void_what_comes() {
    let mut grid = Grid::new();
    let liar = grid.wait_until_kept()[0];
    let failed = |index| Record::Failures {
        bag: BAG,
        index,
        count: 3,
        crashed_on: Vec::new(),
        next_attempt: u32::MAX,
        void_before: u32::MAX,
        endings: Vec::new(),
    };
    let bag = grid.hosts[&liar].store[&RecordKey::Bag(BAG)].clone();
    let lie = Message::Deltas { deltas: vec![delta(&grid, liar, vec![numbered(bag.clone(), u32::MAX)])] };
    assert!(Message::decode(&lie.encode()).is_err(), "no attempt could follow");
    // The highest that others still take: what the submitter says next must be sayable to them.
    let bag = numbered(bag, u32::MAX - (1 << 28));
    let lie = delta(&grid, liar, std::iter::once(bag).chain((0..TASKS).map(failed)).collect());
    grid.crash(liar);
    let message = Message::Deltas { deltas: vec![lie] };
    grid.hosts.get_mut(&SUBMITTER).expect("it is up").receive(liar, message);
    grid.pass(30);
    assert!(attempt(&grid.hosts[&SUBMITTER]) < u32::MAX - (1 << 28), "stewards would take no word of it any more");
    grid.pass(1800);
    assert_eq!(grid.done(), TASKS);
}
