use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::BagId;
use idlewood_scheduler::ranges::IntervalSet;

use super::*;

const BAG: BagId = BagId([1; 32]);

/// A record that takes so many intervals, under a key of its own for each machine.
fn placed(machine: u8, intervals: u64) -> Arc<Change> {
    let executor = Contact { peer: PeerId([machine; 32]), incarnation: 1, address: "".into(), nonce: None };
    let ranges: IntervalSet = (0..intervals).map(|number| 1000 * number..1000 * number + 1).collect();
    Arc::new(Change::Put(Record::Placed { bag: BAG, executor, ranges }))
}

/// That one is gone.
fn unplaced(machine: u8) -> Arc<Change> {
    Arc::new(Change::Delete(placed_key(machine)))
}

fn placed_key(machine: u8) -> RecordKey {
    RecordKey::Placed(BAG, PeerId([machine; 32]))
}

/// New work.
fn failures(index: u64) -> Arc<Change> {
    let (crashed_on, next_attempt, void_before) = (Vec::new(), 1, 0);
    Arc::new(Change::Put(Record::Failures {
        bag: BAG,
        index,
        count: 1,
        crashed_on,
        next_attempt,
        void_before,
        endings: Vec::new(),
    }))
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// Writes, and what they ordered.
#[derive(Default)]
struct Disk {
    writes: Writes,
    effects: Vec<Effect>,
}

/// A write as the disk sees it: its number, its records, whether it may wait, whether it may use the reserve.
type Seen = (u64, Vec<Arc<Change>>, bool, bool);

impl Disk {
    fn push(&mut self, ticket: u64, changes: &[Arc<Change>]) {
        self.writes.push(Ticket(ticket), changes, &mut self.effects);
    }

    fn ordered(&mut self) -> Vec<Seen> {
        let seen = |effect| match effect {
            Effect::Write { write, changes, is_patient, from_reserve } => (write.0, changes, is_patient, from_reserve),
            other => panic!("{other:?}"),
        };
        self.effects.drain(..).map(seen).collect()
    }

    fn numbers(&mut self) -> Vec<u64> {
        self.ordered().into_iter().map(|(number, ..)| number).collect()
    }

    fn end(&mut self, number: u64, end: WriteEnd, now: Time) -> Ended {
        let ended = self.writes.ended(WriteId(number), end, now);
        self.writes.flow(&mut self.effects);
        ended
    }
}

fn durable(tickets: impl IntoIterator<Item = u64>) -> Ended {
    Ended { durable: tickets.into_iter().map(Ticket).collect(), unwritten: Vec::new() }
}

fn unwritten(keys: impl IntoIterator<Item = RecordKey>) -> Ended {
    Ended { durable: Vec::new(), unwritten: keys.into_iter().collect() }
}

#[test]
fn writes_while_the_disk_is_busy_go_together_and_the_last_change_counts() {
    let mut disk = Disk::default();
    for ticket in 0..500 {
        disk.push(ticket, &[placed(1, 1 + ticket), placed(2, 1)]);
    }
    disk.push(500, &[unplaced(2)]);
    let first = disk.ordered();
    assert_eq!(
        first.iter().map(|(number, ..)| *number).collect::<Vec<_>>(),
        [0, 1],
        "one is written, one follows at once"
    );
    assert_eq!(disk.end(0, WriteEnd::Durable, at(5)), durable([0]));
    assert_eq!(disk.ordered(), [(2, vec![placed(1, 500), unplaced(2)], false, true)]);
    assert_eq!(disk.end(1, WriteEnd::Durable, at(10)), durable([1]));
    assert_eq!(disk.end(2, WriteEnd::Durable, at(15)), durable(2..=500));
    assert!(disk.writes.is_empty() && disk.numbers().is_empty());
}

#[test]
fn no_more_go_together_than_a_driver_can_hold() {
    let mut disk = Disk::default();
    (0..2_000).for_each(|ticket| disk.push(ticket, &[placed(1, 1)]));
    assert_eq!(disk.numbers(), [0, 1]);
    disk.end(0, WriteEnd::Durable, at(1));
    disk.end(1, WriteEnd::Durable, at(1));
    assert_eq!(disk.end(2, WriteEnd::Durable, at(2)).durable.len(), TOGETHER_MAX);
}

#[test]
fn only_ends_of_tasks_wait_for_others_and_only_what_takes_on_nothing_uses_the_reserve() {
    let mut disk = Disk::default();
    let held = Arc::new(Change::Delete(RecordKey::Held(BAG)));
    disk.push(0, std::slice::from_ref(&held));
    disk.push(1, &[failures(0)]);
    let seen: Vec<_> =
        disk.ordered().into_iter().map(|(_, _, is_patient, from_reserve)| (is_patient, from_reserve)).collect();
    assert_eq!(seen, [(true, true), (false, false)]);
    // Together, they go as the more urgent one, and as the one that needs room.
    disk.push(2, &[held]);
    disk.push(3, &[failures(1)]);
    disk.end(0, WriteEnd::Durable, at(1));
    let seen: Vec<_> =
        disk.ordered().into_iter().map(|(_, _, is_patient, from_reserve)| (is_patient, from_reserve)).collect();
    assert_eq!(seen, [(false, false)]);
}

#[test]
fn workers_wait_for_the_disk_before_anybody_else_does() {
    let mut disk = Disk::default();
    (0..OF_TASKS_MAX as u64).for_each(|ticket| disk.push(ticket, &[placed(1, 1)]));
    assert!(disk.writes.has_room() && !disk.writes.has_room_for_tasks());
    (0..512).for_each(|ticket| disk.push(ticket, &[placed(1, 1)]));
    assert!(!disk.writes.has_room());
    disk.end(0, WriteEnd::Durable, at(1));
    assert!(disk.writes.has_room());
}

/// Nothing is taken in on a full disk, until there is room or nothing is left that tells.
#[test]
fn a_disk_is_full_as_long_as_something_waits_for_room() {
    let mut disk = Disk::default();
    disk.push(0, &[failures(0)]);
    disk.push(1, &[placed(1, 1)]);
    disk.end(0, WriteEnd::NoRoom, at(0));
    assert!(disk.writes.is_full());
    disk.end(1, WriteEnd::Durable, at(0));
    assert!(disk.writes.is_full(), "that one was written from the reserve");
    disk.writes.give_up(RecordKey::Failures(BAG, 0));
    assert!(!disk.writes.is_full(), "nobody would tell");
    disk.push(2, &[failures(1)]);
    disk.end(2, WriteEnd::NoRoom, at(0));
    disk.push(3, &[placed(2, 1)]);
    assert!(disk.writes.is_full());
    disk.numbers();
    disk.writes.wake(at(1000), &mut disk.effects);
    assert_eq!(disk.numbers(), [3, 4], "what takes on nothing does not go with what finds no room");
    disk.end(3, WriteEnd::NoRoom, at(1000));
    disk.end(4, WriteEnd::Durable, at(1000));
    assert!(disk.writes.is_full());
    disk.writes.wake(at(2000), &mut disk.effects);
    assert_eq!(disk.numbers(), [5]);
    assert_eq!(disk.end(5, WriteEnd::Durable, at(2000)), durable([2]));
    assert!(!disk.writes.is_full() && disk.writes.is_empty());
}

#[test]
fn a_write_that_never_fits_is_reported_and_holds_up_no_other() {
    let mut disk = Disk::default();
    disk.push(0, &[placed(1, 1), placed(2, 300_000)]);
    disk.push(1, &[placed(3, 2000)]);
    disk.push(2, &[placed(4, 300_000)]);
    disk.push(3, &[placed(5, 1)]);
    assert_eq!(disk.end(0, WriteEnd::Unfit, at(0)), unwritten([placed_key(1), placed_key(2)]));
    assert_eq!(disk.writes.deadline(), None, "it is not tried again");
    assert_eq!(disk.end(1, WriteEnd::Durable, at(0)), durable([1]));
    assert_eq!(disk.end(2, WriteEnd::Unfit, at(0)), unwritten([placed_key(4)]));
    assert_eq!(disk.end(3, WriteEnd::Durable, at(0)), durable([3]));
    assert!(disk.writes.is_empty());
}

#[test]
fn a_failed_write_is_tried_again_before_what_came_after_it() {
    let mut disk = Disk::default();
    disk.push(1, &[placed(1, 1)]);
    disk.push(2, &[placed(2, 1)]);
    assert_eq!(disk.end(0, WriteEnd::Failed, at(7)), unwritten([placed_key(1)]));
    assert_eq!(disk.writes.deadline(), None, "not before everything under way has ended");
    assert_eq!(disk.end(1, WriteEnd::Durable, at(8)), durable([2]));
    disk.push(3, &[placed(1, 2)]);
    assert_eq!(disk.numbers(), [0, 1], "nothing overtakes the failed one");
    assert_eq!(disk.writes.deadline(), Some(at(1007)));
    disk.writes.wake(at(1006), &mut disk.effects);
    assert_eq!(disk.numbers(), []);
    disk.writes.wake(at(1007), &mut disk.effects);
    assert_eq!(disk.writes.deadline(), None);
    assert_eq!(
        disk.ordered(),
        [(2, vec![placed(1, 1)], false, true), (3, vec![placed(1, 2)], false, true)],
        "all that waits is tried"
    );
    assert_eq!(disk.end(2, WriteEnd::Durable, at(1010)), durable([1]));
    assert_eq!(disk.end(3, WriteEnd::Durable, at(1010)), durable([3]));
}

#[test]
fn a_failed_write_tried_again_never_undoes_a_later_one() {
    let mut disk = Disk::default();
    disk.push(1, &[placed(1, 1), placed(2, 1)]);
    disk.push(2, &[placed(1, 2)]);
    disk.end(0, WriteEnd::Failed, at(0));
    assert_eq!(disk.end(1, WriteEnd::Durable, at(0)), durable([2]));
    disk.numbers();
    disk.writes.wake(at(1000), &mut disk.effects);
    assert_eq!(disk.ordered(), [(2, vec![placed(2, 1)], false, true)]);
    assert_eq!(disk.end(2, WriteEnd::Durable, at(1000)), durable([1]));
}

#[test]
fn changes_given_up_are_not_tried_again() {
    let mut disk = Disk::default();
    disk.push(1, &[placed(1, 1)]);
    disk.push(2, &[placed(2, 1), placed(3, 1)]);
    disk.end(0, WriteEnd::Failed, at(0));
    disk.end(1, WriteEnd::Failed, at(0));
    disk.writes.give_up(placed_key(1));
    disk.writes.give_up(placed_key(2));
    disk.numbers();
    disk.writes.wake(at(1000), &mut disk.effects);
    assert_eq!(disk.ordered(), [(2, vec![placed(3, 1)], false, true)]);
    assert_eq!(disk.end(2, WriteEnd::Durable, at(1000)), durable([2]));
    assert!(disk.writes.is_empty());
}

#[test]
fn before_the_disk_is_closed_everything_goes_there_but_behind_a_failed_write() {
    let mut disk = Disk::default();
    (0..5).for_each(|ticket| disk.push(ticket, &[placed(1, 1), placed(6, 300_000)]));
    assert_eq!(disk.numbers(), [0, 1]);
    disk.writes.close(&mut disk.effects);
    assert_eq!(disk.numbers(), [2, 3, 4]);
    let mut disk = Disk::default();
    (0..5).for_each(|ticket| disk.push(ticket, &[placed(1, 1)]));
    disk.end(0, WriteEnd::Failed, at(0));
    disk.numbers();
    disk.writes.close(&mut disk.effects);
    assert_eq!(disk.numbers(), []);
}

/// The end of a bag is written from the reserve while an older write of that bag waits for room.
#[test]
fn a_failed_write_says_nothing_of_records_that_a_later_one_writes() {
    let mut disk = Disk::default();
    disk.push(1, &[placed(1, 1), placed(2, 1)]);
    disk.push(2, &[placed(3, 1)]);
    disk.push(3, &[unplaced(1)]);
    assert_eq!(disk.end(0, WriteEnd::NoRoom, at(0)), unwritten([placed_key(2)]), "the later one waits");
    assert_eq!(disk.end(1, WriteEnd::NoRoom, at(0)), unwritten([placed_key(3)]));
    disk.numbers();
    disk.writes.wake(at(1000), &mut disk.effects);
    assert_eq!(disk.numbers(), [2, 3, 4]);
    assert_eq!(disk.end(2, WriteEnd::NoRoom, at(1000)), unwritten([placed_key(2)]), "the later one is under way");
    assert_eq!(disk.end(3, WriteEnd::NoRoom, at(1000)), unwritten([placed_key(3)]));
    assert_eq!(disk.end(4, WriteEnd::Durable, at(1000)), durable([3]));
}
