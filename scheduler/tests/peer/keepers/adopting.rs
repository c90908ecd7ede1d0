//! Machines that adopt a bag, and stewards that others have replaced.

use super::*;

/// A machine that adopts the bag after this one, with the same ticket, would number its attempts alike: found by `simnet swarm --bags
/// --stewards --case 781`.
#[test]
fn a_machine_that_adopts_issues_nothing_before_a_steward_knows_of_the_bags_new_life() {
    let mut grid = Grid::new();
    grid.wait_until_kept();
    grid.lose_submitter();
    grid.is_lost = |message| {
        if let Message::Request { request, .. } = message {
            assert!(request.attempt < 1 << 20, "it was issued in the new life: {request:?}");
        }
        message.appointments().any(|appointment| appointment.term >= 1 << 40)
    };
    grid.start(SUBMITTER);
    grid.pass(60);
    grid.is_lost = |_| false;
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

/// Where all stewards are gone for good nobody could confuse the two lives, and the bag goes on.
#[test]
fn a_machine_that_adopts_goes_on_where_all_stewards_are_gone() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.lose_submitter();
    stewards.iter().for_each(|&steward| grid.crash(steward));
    grid.start(SUBMITTER);
    grid.pass(1_800);
    assert_eq!(grid.done(), TASKS);
}

/// The word that there is a newer appointment may come long before the appointment itself, which may name the steward again: found by
/// `simnet swarm --bags --stewards --case 669`.
#[test]
fn a_steward_keeps_the_bag_until_it_is_told_that_others_have_all() {
    let mut grid = Grid::new();
    let steward = grid.wait_until_kept()[1];
    let term = Term { appointed: grid.appointed_terms()[0] + 1, acting: 0 };
    for (number, is_kept) in [(0, true), (u64::MAX, false)] {
        let ack = Message::DeltasAck { bags: vec![(BAG, number, term)] };
        grid.hosts.get_mut(&steward).expect("it is up").receive(SUBMITTER, ack);
        grid.pass(5);
        assert_eq!(grid.hosts[&steward].peer.keeps(BAG), is_kept, "{number}");
    }
}

/// The disk of a steward is lost, and it is back at once: found by `simnet swarm --bags --stewards --case 3`. Its submitter tells it all
/// anew; where it has no room any longer, another is appointed.
#[test]
fn a_steward_that_has_forgotten_the_bag_takes_it_up_again_or_is_replaced() {
    for has_room in [true, false] {
        let mut grid = Grid::new();
        let steward = grid.wait_until_kept()[0];
        grid.crash(steward);
        grid.down.insert(steward, Vec::new());
        grid.start(steward);
        if !has_room {
            grid.give(steward, Event::KeepsAtMost(0));
        }
        grid.pass(60);
        let keepers = grid.hosts[&SUBMITTER].peer.keepers(BAG);
        assert!(keepers.len() == 3 && keepers.iter().all(|keeper| keeper.is_up_to_date), "{has_room}: {keepers:?}");
        assert_eq!(grid.hosts[&steward].peer.keeps(BAG), has_room);
    }
}

/// The same where the steward of an adopted bag has not heard of it before its disk is lost: no task would begin.
#[test]
fn an_adopted_bag_does_not_wait_for_a_steward_that_has_forgotten_it() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.lose_submitter();
    for &steward in &stewards {
        grid.crash(steward);
    }
    for &steward in &stewards {
        grid.down.insert(steward, Vec::new());
        grid.start(steward);
    }
    grid.start(SUBMITTER);
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

/// A submitter numbers attempts of which its stewards are not told, and then one of them acts: the two would give a machine the same attempt
/// of a task. Found by `simnet swarm --bags --stewards --case 874`.
#[test]
fn a_steward_numbers_no_attempt_as_its_submitter_does() {
    let attempt = |host: &Host| {
        let records = host.store.values().filter_map(|record| match record {
            Record::Bag { attempt, .. } => Some(*attempt),
            _ => None,
        });
        records.max().expect("it has the bag")
    };
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let executor = (3..7).find(|number| !stewards.contains(number)).expect("five machines");
    grid.cut = stewards.iter().map(|&steward| (SUBMITTER, steward)).collect();
    let told = attempt(&grid.hosts[&SUBMITTER]);
    // What it holds is issued again, by each of the two that act.
    grid.crash(executor);
    grid.pass(300);
    let mine = attempt(&grid.hosts[&SUBMITTER]);
    let theirs: Vec<u32> = grid.acting().iter().map(|steward| attempt(&grid.hosts[steward])).collect();
    assert!(mine > told && !theirs.is_empty(), "{told}, {mine}, {theirs:?}");
    assert!(theirs.iter().all(|theirs| *theirs > mine), "{mine} and {theirs:?}");
}
