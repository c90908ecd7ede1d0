use proptest::prelude::*;

use super::*;

fn report(peer: u8, at: u64) -> MachineReport {
    MachineReport {
        peer: PeerId([peer; 32]),
        at,
        name: "".into(),
        version: "".into(),
        activity: Activity::Idle,
        reason: None,
        slots: 1,
        speed_mops: 1.0,
        running: 0,
        waiting: 0,
    }
}

fn question(first: u64, last: u64) -> WhichMachines {
    WhichMachines { id: 1, number: 1, first, last, wait_ms: 1000 }
}

fn seconds(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn asked(peer: u8, node: Node, within: (u64, u64), machines: u64) -> Asked {
    Asked { peer: PeerId([peer; 32]), node, within, heard: Time::ZERO, machines, until: seconds(1) }
}

/// A router has asked another one and a leaf about the places 0 to 999.
fn open(waiting: &[(u32, Asked)]) -> Listings {
    let mut listings = Listings::default();
    let page = MachinesPage { last: 999, ..MachinesPage::default() };
    let waiting = waiting.iter().copied().collect();
    listings.open(AskedBy::Driver(3), &question(0, 999), page, waiting);
    listings
}

#[test]
fn a_leaf_speaks_of_itself_alone_and_a_router_of_what_is_below_it() {
    let mut listings = open(&[(4, asked(4, Node::Leaf, (10, 10), 1)), (5, asked(5, Node::Router, (20, 40), 8))]);
    let of_leaf = MachinesPage {
        last: 3,
        machines: vec![report(4, 10), report(9, 10), report(4, 11)],
        unreached: 1000,
        is_busy: true,
        ..MachinesPage::default()
    };
    listings.answered(PeerId([9; 32]), 4, of_leaf.clone());
    assert!(listings.take_due(Time::ZERO).is_empty(), "that is not whom it has asked");
    listings.answered(PeerId([4; 32]), 4, of_leaf);
    let machines = vec![report(8, 40), report(7, 20), report(6, 41), report(7, 21)];
    listings.answered(PeerId([5; 32]), 5, MachinesPage { last: 999, machines, ..MachinesPage::default() });
    let due = listings.take_due(Time::ZERO);
    let [(AskedBy::Driver(3), page)] = &due[..] else { panic!("{due:?}") };
    assert_eq!(page.machines, [report(4, 10), report(7, 20), report(8, 40)]);
    assert_eq!((page.last, page.unreached, page.is_busy), (999, 0, false));
    assert_eq!(listings.deadline(), None);
}

#[test]
fn what_does_not_answer_in_time_is_named_or_counted() {
    let mut listings = open(&[(4, asked(4, Node::Leaf, (10, 10), 1)), (5, asked(5, Node::Router, (20, 40), 8))]);
    assert_eq!(listings.deadline(), Some(seconds(1)));
    let (_, page) = listings.take_due(seconds(5)).pop().expect("it waits no longer");
    assert_eq!(page.silent, [SilentMachine { peer: PeerId([4; 32]), at: 10, heard_s: 5 }]);
    assert_eq!(page.unreached, 8);
}

#[test]
fn nobody_makes_a_page_so_short_that_the_grid_has_no_end() {
    let mut listings = open(&[(5, asked(5, Node::Router, (0, 999), 8))]);
    listings.answered(PeerId([5; 32]), 5, MachinesPage { last: 0, ..MachinesPage::default() });
    let (_, page) = listings.take_due(Time::ZERO).pop().expect("all have answered");
    assert_eq!((page.last, page.unreached), (999 / SHARE_LEAST, 1));
}

#[test]
fn parts_hold_so_many_machines_and_no_more_than_the_line() {
    assert_eq!(last_of_part(0, 128, 128), u64::MAX);
    assert_eq!(last_of_part(u64::MAX - 3, 128, 1 << 40), u64::MAX);
    let last = last_of_part(0, 128, 10_000);
    assert_eq!(expected(0, last, 10_000), 128);
    assert_eq!(expected(5, 5, 10_000), 1);
}

proptest! {
    /// Whatever comes in whatever order: a page is in order, within its part and its bounds, and has every machine that was told up to
    /// its last place.
    #[test]
    fn pages_are_in_order_and_complete_up_to_their_last_place(
        places in proptest::collection::vec((0_u64..2_000, any::<u16>()), 0..1_500),
        cut in 1_usize..4,
    ) {
        let mut page = MachinesPage { last: 999, ..MachinesPage::default() };
        let machines: Vec<MachineReport> = places
            .iter()
            .map(|(at, peer)| {
                let mut id = [0; 32];
                id[..8].copy_from_slice(&at.to_be_bytes());
                id[8..10].copy_from_slice(&peer.to_be_bytes());
                MachineReport { peer: PeerId(id), ..report(0, *at) }
            })
            .collect();
        for part in machines.chunks(machines.len() / cut + 1) {
            page.add(MachinesPage { last: u64::MAX, machines: part.to_vec(), ..MachinesPage::default() });
        }
        page.settle(0);
        prop_assert!(page.is_valid() && page.last <= 999);
        prop_assert!(page.machines.is_sorted_by(|one, other| (one.at, one.peer) < (other.at, other.peer)));
        let mut told: Vec<PeerId> = machines.iter().filter(|machine| machine.at <= page.last).map(|machine| machine.peer).collect();
        told.sort_unstable();
        told.dedup();
        // More than a page at one place of the line cannot be told.
        prop_assert!(page.machines.len() == told.len() || told.len() > PAGE_MACHINES_MAX);
    }

    /// However often a machine asks, it is passed on no more often than its limit says.
    #[test]
    fn questions_are_limited_by_link(waits_ms in proptest::collection::vec(0_u64..400, 1..400)) {
        let mut listings = Listings::default();
        let (mut now, mut passed) = (Time::ZERO, 0_u32);
        for wait_ms in waits_ms {
            now += Duration::from_millis(wait_ms);
            passed += u32::from(listings.may_ask(PeerId([1; 32]), true, now));
        }
        let intervals = now.since(Time::ZERO).as_millis() / FROM_BELOW.interval.as_millis();
        prop_assert!(u128::from(passed) <= u128::from(FROM_BELOW.burst) + intervals + 1);
        prop_assert!(listings.may_ask(PeerId([2; 32]), true, now), "another one is not held up");
    }
}
