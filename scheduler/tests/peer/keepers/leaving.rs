//! Keepers that leave in good order, or whose owners want their room.

use super::*;

impl Grid {
    /// A machine leaves in good order, and ends.
    pub(super) fn leave(&mut self, number: u8) {
        self.give(number, Event::Leave);
        self.pass(2);
        self.crash(number);
    }
}

#[test]
fn a_steward_acts_at_once_where_the_submitter_leaves_in_good_order() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    // Results that came within the last seconds: no delta has told of them yet.
    let done = grid.done();
    grid.give(SUBMITTER, Event::Leave);
    grid.pass(1);
    assert_eq!(grid.acting(), [stewards[0]], "the second one waits for the first");
    let over = grid.hosts[&stewards[0]].peer.over(BAG);
    assert!(over.0.len() >= done, "{over:?}: all that the submitter had was told");
    grid.pass(5);
    grid.crash(SUBMITTER);
    grid.pass(600);
    assert_eq!(grid.hosts[&stewards[0]].peer.over(BAG).0.len(), TASKS);
    grid.start(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.run_twice() <= 2, "{}: what the submitter itself ran", grid.run_twice());
}

#[test]
fn a_machine_that_sleeps_for_a_while_leaves_its_bag_to_a_steward_and_takes_it_up_again() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.give(SUBMITTER, Event::Leave);
    grid.pass(40);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.give(SUBMITTER, Event::Return);
    grid.pass(20);
    assert!(grid.acting().is_empty(), "it has stood down");
    grid.pass(600);
    assert_eq!(grid.done(), TASKS);
}

#[test]
fn the_next_steward_acts_at_once_where_the_acting_one_leaves_in_good_order() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.leave(stewards[0]);
    assert_eq!(grid.acting(), [stewards[1]], "the submitter was gone before");
    grid.pass(300);
    grid.start(SUBMITTER);
    grid.start(stewards[0]);
    grid.pass(600);
    assert_eq!(grid.done(), TASKS);
}

#[test]
fn a_steward_that_leaves_is_replaced_at_once_and_may_keep_the_bag_again_in_its_next_life() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.leave(stewards[0]);
    grid.pass(13);
    let now = grid.stewards();
    assert!(now.len() == 2 && !now.contains(&stewards[0]), "{now:?} after {stewards:?}");
    grid.pass(10);
    let keepers = grid.hosts[&SUBMITTER].peer.keepers(BAG);
    assert!(keepers.iter().all(|keeper| keeper.is_up_to_date), "{keepers:?}");
    // All others leave, too: there is nobody but the first, once it is back.
    for number in 3..7 {
        if number != stewards[0] {
            grid.leave(number);
        }
    }
    grid.pass(20);
    assert!(grid.stewards().is_empty(), "nobody is named that is gone: {:?}", grid.stewards());
    grid.start(stewards[0]);
    grid.pass(30);
    assert_eq!(grid.stewards(), [stewards[0]], "a machine that has started again is asked again");
}

#[test]
fn an_owner_who_wants_fewer_bags_kept_gets_room_once_another_keeps_them() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.give(stewards[0], Event::KeepsAtMost(0));
    grid.pass(20);
    let now = grid.stewards();
    assert!(now.len() == 2 && !now.contains(&stewards[0]), "{now:?} after {stewards:?}");
    grid.pass(50);
    assert!(grid.hosts[&stewards[0]].peer.kept().next().is_none(), "its room is the owner's again");
    assert!(grid.hosts[&stewards[0]].forgotten.contains(&BAG));
    // The one that acts does not go before there is another keeper.
    let next = now[0];
    grid.crash(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.acting(), [next]);
    grid.give(next, Event::KeepsAtMost(0));
    grid.pass(300);
    assert_eq!(grid.acting(), [next], "nobody can be appointed while the submitter is away");
    grid.start(SUBMITTER);
    grid.pass(600);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.hosts[&next].peer.kept().next().is_none());
}

#[test]
fn a_steward_whose_disk_is_full_is_replaced_and_is_offered_nothing() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.give(stewards[1], Event::DiskFull(true));
    grid.pass(20);
    let now = grid.stewards();
    assert!(now.len() == 2 && !now.contains(&stewards[1]), "{now:?} after {stewards:?}");
    let given_up = Notice::BagGivenUp { bag: BAG, disk_is_full: true };
    assert!(grid.hosts[&stewards[1]].notices.contains(&given_up), "its owner is told why");
    let host = grid.hosts.get_mut(&stewards[1]).expect("it is up");
    host.sent.clear();
    let other = BagHeader { id: BagId([8; 32]), submitter: contact(3), ..bag(1) };
    host.receive(3, Message::KeepOffer { bag: other.clone() });
    assert!(matches!(host.sent.last(), Some((_, Message::KeepAnswer { accepts: false, .. }))), "{:?}", host.sent);
    host.give(Event::DiskFull(false));
    host.receive(3, Message::KeepOffer { bag: other });
    assert!(matches!(host.sent.last(), Some((_, Message::KeepAnswer { accepts: true, .. }))), "{:?}", host.sent);
}

/// Only the keeper that acts can say that it goes: one that does not act, or acted in a term that is over, is not heard.
#[test]
fn nobody_says_for_another_that_it_leaves_nor_in_a_term_that_is_over() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    let Some(Record::Kept { acting, .. }) = grid.hosts[&stewards[1]].store.get(&RecordKey::Kept(BAG)).cloned() else {
        panic!("no copy")
    };
    let farewell = |term: Term, acting: Option<Acting>| Message::Deltas {
        deltas: vec![Delta { acting: acting.map(Box::new), leaves: true, ..Delta::alive(BAG, term) }],
    };
    let older = Term { appointed: acting.term().appointed - 1, acting: 7 };
    let replayed =
        Acting { appointment: Appointment { term: older.appointed, ..acting.appointment.clone() }, ..acting };
    let next = grid.hosts.get_mut(&stewards[1]).expect("it is up");
    // A stranger, a steward that does not act, and the submitter in a term that is over.
    next.receive(6, farewell(acting.term(), Some(acting.clone())));
    next.receive(number(contact(stewards[0]).peer), farewell(acting.term(), None));
    next.receive(SUBMITTER, farewell(older, Some(replayed)));
    grid.pass(5);
    assert!(grid.acting().is_empty(), "{:?}", grid.acting());
}

#[test]
fn a_steward_without_room_lets_the_next_one_act_and_keeps_the_bag_once_there_is_room_again() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.give(stewards[0], Event::DiskFull(true));
    grid.pass(120);
    assert_eq!(grid.acting(), [stewards[1]], "the first could take no results");
    grid.give(stewards[0], Event::DiskFull(false));
    grid.pass(20);
    grid.crash(stewards[1]);
    grid.pass(120);
    assert_eq!(grid.acting(), [stewards[0]], "nobody else can be appointed while the submitter is away");
    grid.start(SUBMITTER);
    grid.pass(600);
    assert_eq!(grid.done(), TASKS);
}

#[test]
fn a_machine_that_says_twice_that_it_cannot_keep_a_bag_is_not_asked_again() {
    let mut grid = Grid::new();
    let first = grid.wait_until_kept()[0];
    for _ in 0..2 {
        let submitter = grid.hosts.get_mut(&SUBMITTER).expect("it is up");
        submitter.receive(first, Message::KeepAnswer { bag: BAG, accepts: false });
        grid.pass(15);
    }
    // There is nobody else.
    (3..7).filter(|&number| number != first).for_each(|number| grid.leave(number));
    grid.pass(60);
    assert!(grid.stewards().is_empty(), "{:?}", grid.stewards());
}

/// A grid whose bag has three stewards, and these.
fn kept_by_three() -> (Grid, Vec<u8>) {
    let mut grid = Grid::with(Config { stewards: 3, ..config() }, false);
    grid.pass(70);
    let stewards = grid.stewards();
    assert_eq!(stewards.len(), 3, "{stewards:?}");
    (grid, stewards)
}

/// The submitter is off, the disk of the first steward is full, and the second acts, which tells the first nothing.
fn the_first_misses_what_the_second_does(grid: &mut Grid, stewards: &[u8]) {
    grid.crash(SUBMITTER);
    grid.pass(60);
    grid.give(stewards[0], Event::DiskFull(true));
    grid.pass(130);
    assert_eq!(grid.acting(), [stewards[1]]);
}

/// The second of three stewards acts, and the first is back: where the second leaves, one of them acts, and not both.
#[test]
fn one_steward_alone_acts_where_the_second_of_three_leaves() {
    let (mut grid, stewards) = kept_by_three();
    grid.crash(SUBMITTER);
    grid.crash(stewards[0]);
    grid.pass(90);
    assert_eq!(grid.acting(), [stewards[1]]);
    grid.start(stewards[0]);
    grid.pass(20);
    assert_eq!(grid.acting(), [stewards[1]], "it acts on");
    grid.give(stewards[1], Event::Leave);
    for _ in 0..40 {
        grid.pass(1);
        let others: Vec<u8> = grid.acting().into_iter().filter(|number| *number != stewards[1]).collect();
        assert!(others.len() <= 1, "{others:?} act at once");
    }
    assert_eq!(grid.acting().iter().filter(|number| **number != stewards[1]).count(), 1);
    grid.crash(stewards[1]);
    grid.pass(300);
    grid.start(SUBMITTER);
    grid.pass(600);
    assert_eq!(grid.done(), TASKS);
}

/// Where the one that is named does not come, the others act after their silence.
#[test]
fn the_others_act_where_the_one_that_is_to_act_next_does_not() {
    let (mut grid, stewards) = kept_by_three();
    grid.give(SUBMITTER, Event::Leave);
    // The first is named, and crashes before it hears of that.
    grid.crash(stewards[0]);
    grid.pass(5);
    grid.crash(SUBMITTER);
    assert!(grid.acting().is_empty(), "{:?}", grid.acting());
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[1]]);
}

#[test]
fn a_steward_that_acts_and_whose_disk_is_full_leaves_the_bag_to_the_next() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.give(stewards[0], Event::DiskFull(true));
    grid.pass(12);
    assert_eq!(grid.acting(), [stewards[1]], "it can take results, and the first cannot");
    grid.pass(600);
    let over = grid.hosts[&stewards[1]].peer.over(BAG);
    assert_eq!(over.0.len(), TASKS, "all tasks have ended meanwhile");
    grid.start(SUBMITTER);
    grid.pass(120);
    assert_eq!(grid.done(), TASKS);
    assert!(grid.run_twice() <= 2, "{}: what the submitter itself ran", grid.run_twice());
}

#[test]
fn a_steward_that_acts_and_whose_disk_is_full_goes_on_where_there_is_no_other() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.crash(stewards[1]);
    grid.pass(60);
    grid.give(stewards[0], Event::DiskFull(true));
    grid.pass(60);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.give(stewards[0], Event::DiskFull(false));
    grid.pass(600);
    assert_eq!(grid.hosts[&stewards[0]].peer.over(BAG).0.len(), TASKS);
}

/// A steward whose disk was full was told nothing while another acted: once it has room it does not act beside that one, whose results it does not
/// know, and is told what it missed.
#[test]
fn a_steward_with_room_again_is_told_what_it_missed_and_does_not_act_beside_the_other() {
    let mut grid = Grid::of(config(), submission(4 * TASKS, 30_000.0));
    let stewards = grid.wait_until_kept();
    grid.crash(SUBMITTER);
    grid.pass(60);
    grid.give(stewards[0], Event::DiskFull(true));
    grid.pass(12);
    assert_eq!(grid.acting(), [stewards[1]]);
    // It says so once more meanwhile, and from then on the one that acts tells it nothing.
    grid.pass(120);
    grid.give(stewards[0], Event::DiskFull(false));
    for _ in 0..150 {
        grid.pass(1);
        assert_eq!(grid.acting(), [stewards[1]], "two act");
    }
    let ended = grid.hosts[&stewards[1]].peer.over(BAG).0;
    assert!(ended.len() > 10, "{ended:?}: something was missed");
    grid.pass(15);
    grid.crash(stewards[1]);
    grid.pass(120);
    assert_eq!(grid.acting(), [stewards[0]]);
    let known = grid.hosts[&stewards[0]].peer.over(BAG).0;
    assert!(ended.difference(&known).is_empty(), "{known:?} of {ended:?}: it does not run again what has ended");
}

/// Nobody else is left to tell it anything: it acts from what it has after all, so that the bag goes on.
#[test]
fn a_steward_that_missed_something_acts_where_nobody_else_does_for_long() {
    let mut grid = Grid::new();
    let stewards = grid.wait_until_kept();
    the_first_misses_what_the_second_does(&mut grid, &stewards);
    grid.crash(stewards[1]);
    grid.give(stewards[0], Event::DiskFull(false));
    grid.pass(90);
    assert!(grid.acting().is_empty(), "others might act whom it does not hear");
    grid.pass(70);
    assert_eq!(grid.acting(), [stewards[0]]);
    grid.start(SUBMITTER);
    grid.start(stewards[1]);
    grid.pass(900);
    assert_eq!(grid.done(), TASKS);
}

/// The third steward, which missed nothing, comes before the first, which did.
#[test]
fn a_steward_that_missed_nothing_acts_before_one_that_did() {
    let (mut grid, stewards) = kept_by_three();
    the_first_misses_what_the_second_does(&mut grid, &stewards);
    grid.crash(stewards[1]);
    grid.give(stewards[0], Event::DiskFull(false));
    for _ in 0..200 {
        grid.pass(1);
        assert!(!grid.acting().contains(&stewards[0]), "it knows less than the third");
    }
    assert_eq!(grid.acting(), [stewards[2]]);
}

#[test]
fn a_machine_refuses_to_keep_more_than_its_owner_gives_room_for() {
    let mut host = Host::new(2);
    host.receive(1, Message::KeepOffer { bag: bag(1) });
    assert!(matches!(host.sent.last(), Some((_, Message::KeepAnswer { accepts: false, .. }))));
    let mut host = Host::restore(2, config(), Vec::new());
    host.receive(3, Message::KeepOffer { bag: bag(1) });
    assert!(!matches!(host.sent.last(), Some((_, Message::KeepAnswer { .. }))), "only a submitter asks");
    host.receive(1, Message::KeepOffer { bag: bag(1) });
    assert!(matches!(host.sent.last(), Some((_, Message::KeepAnswer { accepts: true, .. }))));
}
