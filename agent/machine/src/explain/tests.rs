use std::collections::BTreeMap;

use idlewood_overlay::{Contact, PeerId};
use idlewood_scheduler::{BagHeader, BagId, Closing, Conditions, Replication};

use super::*;

const LIMIT: u64 = 1 << 30;

fn bag() -> BagView {
    let submitter = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
    let (task_mops, application_size_mops) = (1.0, 9.0);
    BagView {
        bag: BagHeader { id: BagId([2; 32]), submitter, tasks: 9, task_mops, application_size_mops, declared: true },
        released: Time::ZERO,
        submitted: Time::ZERO,
        done: 0,
        failed: 0,
        placed: 0,
        executors: 0,
        unplaced: 0,
        pausing: 0,
        pausing_until: None,
        unheard: 0,
        unheard_since: None,
        reissued: 0,
        duplicates: 0,
        machines_used: 0,
        work_done_mops: 0.0,
        measured_mops: 0.0,
        spread_mops: None,
        overstated: 0,
        replication: Replication::default(),
        disputed: 0,
        undecided: 0,
        declined: BTreeMap::new(),
        unasked: 0,
        astray: 0,
        swallowed: BTreeMap::new(),
        closed: None,
        conditions: Conditions::default(),
        awaited: BTreeMap::new(),
        endless: None,
    }
}

fn works() -> Judgement {
    Judgement { reason: None, cpu_percent: 100, takes_work: true, since: Time::ZERO }
}

fn stands_still(reason: Reason) -> Judgement {
    Judgement { reason: Some(reason), cpu_percent: 0, takes_work: false, since: Time::ZERO }
}

/// A grid of so many machines of 10 Mop/s, all of which work.
fn situation<'a>(bag: &'a BagView, judgement: &'a Judgement, machines: u64) -> Situation<'a> {
    Situation {
        bag,
        now: Time::ZERO + Duration::from_secs(100),
        measured_before: 0,
        here: 0,
        begun_here: 0,
        without_room: 0,
        others_here: &[],
        judgement,
        memory_bytes: Some(1 << 20),
        memory_max_bytes: LIMIT,
        state: if machines > 1 { State::Member } else { State::Alone },
        machines,
        grid_mops: 10.0 * machines as f64,
        own_mops: 10.0,
    }
}

fn told(runs: bool, bounds: impl Into<Vec<Bound>>) -> Explanation {
    Explanation { runs, bounds: bounds.into() }
}

#[test]
fn a_bag_that_is_over_has_no_bounds() {
    let (bag, works) = (BagView { closed: Some((Closing::Completed, Time::ZERO)), undecided: 3, ..bag() }, works());
    assert_eq!(explain(&situation(&bag, &works, 1)), told(false, []));
}

#[test]
fn what_the_user_wants_comes_first() {
    let works = works();
    let held = Conditions { withheld: true, ..Conditions::default() };
    let begun = BagView { conditions: held.clone(), placed: 2, executors: 2, unplaced: 7, ..bag() };
    let runs = Bound::Runs { tasks: 2, machines: 2 };
    assert_eq!(explain(&situation(&begun, &works, 3)), told(true, [Bound::Held { tasks: 7 }, runs]));
    let mut unmeasured = BagView { conditions: held, unplaced: 9, ..bag() };
    unmeasured.bag.task_mops = 0.0;
    assert_eq!(explain(&situation(&unmeasured, &works, 3)), told(false, [Bound::Held { tasks: 9 }]));
    let (other, why) = (BagId([7; 32]), Awaited::Failed);
    let waits = BagView { awaited: BTreeMap::from([(other, why)]), unplaced: 9, ..bag() };
    assert_eq!(explain(&situation(&waits, &works, 3)), told(false, [Bound::After { bags: vec![(other, why)] }]));
    let few = Conditions { running_max: Some(3), ..Conditions::default() };
    let full = BagView { conditions: few, placed: 2, executors: 2, unplaced: 7, unheard: 1, ..bag() };
    let runs = Bound::Runs { tasks: 2, machines: 2 };
    assert_eq!(explain(&situation(&full, &works, 3)), told(true, [runs, Bound::Full { most: 3, tasks: 6 }]));
    let room = BagView { placed: 1, ..full };
    assert_eq!(explain(&situation(&room, &works, 3)).bounds.len(), 1);
}

#[test]
fn results_without_room_come_before_what_still_runs() {
    let works = works();
    let placed = BagView { placed: 6, executors: 3, done: 3, ..bag() };
    let of = |without_room| Situation { without_room, ..situation(&placed, &works, 3) };
    let runs = |tasks, machines| Bound::Runs { tasks, machines };
    assert_eq!(explain(&of(0)), told(true, [runs(6, 3)]));
    assert_eq!(explain(&of(4)), told(true, [Bound::NoRoom { tasks: 4 }, runs(2, 2)]));
    // Once all have ended nothing runs, and no end is forecast.
    assert_eq!(explain(&of(6)), told(false, [Bound::NoRoom { tasks: 6 }]));
    assert_eq!(explain(&of(7)), told(false, [Bound::NoRoom { tasks: 6 }]), "the ledger counts");
}

#[test]
fn a_first_task_stands_still_for_a_pause_alone() {
    let mut bag = bag();
    bag.bag.task_mops = 0.0;
    let active = stands_still(Reason::OwnerActive);
    assert_eq!(explain(&situation(&bag, &active, 1)), told(true, [Bound::Measures]));
    let behind = Situation { measured_before: 2, ..situation(&bag, &active, 1) };
    assert_eq!(explain(&behind), told(false, [Bound::MeasuresOthers { bags: 2 }]));
    let paused = stands_still(Reason::PausedByUser);
    let owner = Bound::Owner { reason: Reason::PausedByUser, tasks: 1 };
    assert_eq!(explain(&situation(&bag, &paused, 1)), told(false, [owner]));
}

#[test]
fn on_a_machine_alone_its_owner_decides() {
    let (works, active) = (works(), stands_still(Reason::OwnerActive));
    let here = BagView { placed: 4, executors: 1, unplaced: 2, ..bag() };
    let of = |judgement| Situation { here: 4, ..situation(&here, judgement, 1) };
    assert_eq!(explain(&of(&works)), told(true, [Bound::Runs { tasks: 4, machines: 1 }]));
    let owner = Bound::Owner { reason: Reason::OwnerActive, tasks: 6 };
    assert_eq!(explain(&of(&active)), told(false, [owner]));
    // A full disk: what has begun goes on.
    let full = Judgement { cpu_percent: 100, ..stands_still(Reason::DiskFull) };
    assert!(!explain(&of(&full)).runs);
    assert!(explain(&Situation { begun_here: 1, ..of(&full) }).runs);
    let large = Situation { memory_bytes: Some(LIMIT + 1), ..of(&works) };
    let memory = Bound::Memory { wanted_bytes: LIMIT + 1, limit_bytes: LIMIT, tasks: 6 };
    assert_eq!(explain(&large), told(false, [memory]));
    let (other, whose) = (BagId([7; 32]), PeerId([8; 32]));
    let second = Situation { others_here: &[(other, whose, 7)], ..of(&works) };
    let behind = Bound::Behind { before: vec![(other, whose)], tasks: 7, waiting: 4 };
    assert_eq!(explain(&second).bounds[1..], [behind]);
    assert_eq!(explain(&Situation { begun_here: 1, ..second.clone() }).bounds.len(), 1);
}

#[test]
fn what_runs_elsewhere_is_told_first() {
    let active = stands_still(Reason::OwnerActive);
    let spread = BagView { placed: 9, executors: 3, ..bag() };
    let of = |grid_mops| Situation { here: 2, grid_mops, ..situation(&spread, &active, 3) };
    let owner = Bound::Owner { reason: Reason::OwnerActive, tasks: 2 };
    assert_eq!(explain(&of(20.0)), told(true, [Bound::Runs { tasks: 7, machines: 2 }, owner.clone()]));
    // All owners are back.
    let nobody = Bound::NobodyWorks { machines: 2, tasks: 7 };
    assert_eq!(explain(&of(0.0)), told(false, [owner, nobody.clone()]));
    // This machine alone takes work, and has none of it.
    let (works, elsewhere) = (works(), BagView { placed: 7, executors: 2, ..bag() });
    let alone = Situation { grid_mops: 10.0, ..situation(&elsewhere, &works, 3) };
    assert_eq!(explain(&alone), told(false, [nobody]));
    // Nothing is known of a grid that the machine is about to join.
    let joining = Situation { state: State::Joining, grid_mops: 0.0, ..situation(&elsewhere, &works, 3) };
    assert_eq!(explain(&joining), told(false, [Bound::Joining]));
}

#[test]
fn tasks_that_nobody_takes_say_why() {
    let works = works();
    let last = PeerId([3; 32]);
    let declines = |machines| Declines { tasks: 30, machines, last };
    let declined = BTreeMap::from([(DeclineReason::Size, declines(2)), (DeclineReason::Role, declines(0))]);
    let until = Some(Time::ZERO + Duration::from_secs(101));
    let waiting = BagView { unplaced: 9, pausing: 9, pausing_until: until, declined, ..bag() };
    let size = Bound::Declined { reason: DeclineReason::Size, declines: declines(2) };
    assert_eq!(explain(&situation(&waiting, &works, 3)), told(false, [size]));
    let failed = BagView { declined: BTreeMap::new(), ..waiting };
    assert_eq!(explain(&situation(&failed, &works, 3)), told(false, [Bound::Pauses { tasks: 9, until }]));
    let sent = |seconds| {
        let unheard_since = Some(Time::ZERO + Duration::from_secs(seconds));
        BagView { unplaced: 9, unheard: 9, unheard_since, ..bag() }
    };
    let unheard = Bound::Unheard { tasks: 9, ago: Duration::from_secs(60) };
    assert_eq!(explain(&situation(&sent(40), &works, 3)), told(false, [unheard]));
    assert_eq!(explain(&situation(&sent(99), &works, 3)), told(false, [Bound::OnTheWay { tasks: 9 }]));
    let replication = Replication { replicas: 3, quorum: 2, recheck: 0 };
    let voted = BagView { placed: 9, executors: 1, undecided: 4, replication, ..bag() };
    let alone = Situation { here: 9, ..situation(&voted, &works, 1) };
    let few = Bound::FewMachines { quorum: 2, machines: 1 };
    assert_eq!(explain(&alone).bounds[1..], [few, Bound::Undecided { tasks: 4 }]);
}
