//! The distributed tree equals the tree computed from the membership once nothing changes any more (I6).

mod world;

use std::time::Duration;

use idlewood_overlay::{Event, Node, Notice, State};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};
use world::World;

const SECOND: Duration = Duration::from_secs(1);

/// A grid of `len` that was started at once with one first contact.
fn started(seed: u64, len: usize, bound: Duration) -> (World, Duration) {
    let mut world = World::new(seed);
    let first = world.start(None);
    (1..len).for_each(|_| _ = world.start(Some(first)));
    let took = world.settle(bound).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    (world, took)
}

#[test]
fn one_peer_is_a_grid() {
    let (world, took) = started(1, 1, SECOND);
    assert_eq!(took, Duration::ZERO);
    let overlay = world.machines[0].overlay.as_ref().unwrap();
    assert!(overlay.is_root() && !overlay.hosts_router());
}

#[test]
fn two_peers_are_a_grid() {
    for seed in 0..20 {
        let (world, took) = started(seed, 2, SECOND * 5);
        println!("seed {seed}: two peers after {took:?}");
        assert!(world.machines.iter().all(|machine| machine.notices.contains(&Notice::Joined)));
    }
}

#[test]
fn two_peers_lose_each_other_and_meet_again() {
    let (mut world, _) = started(3, 2, SECOND * 5);
    world.crash(1);
    println!("alone after {:?}", world.settle(SECOND * 10).unwrap());
    world.run_for(SECOND * 100);
    world.restart(1, Some(0));
    println!("together after {:?}", world.settle(SECOND * 10).unwrap());
}

#[test]
fn a_hundred_peers_start_at_once() {
    for seed in 0..2 {
        let (mut world, took) = started(seed, 100, SECOND * 60);
        println!("seed {seed}: 100 at once exact after {took:?}");
        world.run_for(SECOND * 120);
        assert_eq!(world.settle(SECOND), Ok(Duration::ZERO), "and it stays exact");
    }
}

#[test]
fn half_of_a_hundred_crash_at_once() {
    for seed in 0..2 {
        let (mut world, _) = started(seed, 100, SECOND * 60);
        world.run_for(SECOND * 100);
        for _ in 0..50 {
            let alive = world.alive();
            let victim = alive[world.pick(alive.len())];
            world.crash(victim);
        }
        let took = world.settle(SECOND * 60).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: exact after {took:?}");
    }
}

#[test]
fn a_crash_and_a_leave_are_repaired_in_time() {
    let (mut world, _) = started(5, 60, SECOND * 60);
    world.run_for(SECOND * 100);
    let (mut crashes, mut leaves) = (Vec::new(), Vec::new());
    for round in 0..20 {
        world.run_for(Duration::from_millis(10_000 + 137 * round));
        let alive = world.alive();
        let (first, second) = (alive[world.pick(alive.len())], alive[world.pick(alive.len())]);
        world.crash(first);
        crashes.push(world.settle(SECOND * 30).unwrap());
        if first != second {
            world.feed(second, Event::Leave);
            leaves.push(world.settle(SECOND * 30).unwrap());
        }
    }
    crashes.sort();
    leaves.sort();
    println!("crash p50 {:?} max {:?}", crashes[crashes.len() / 2], crashes[crashes.len() - 1]);
    println!("leave p50 {:?} max {:?}", leaves[leaves.len() / 2], leaves[leaves.len() - 1]);
    // This includes the time until the last leaf knows the new count.
    assert!(crashes[crashes.len() / 2] < SECOND * 5 && crashes[crashes.len() - 1] < SECOND * 9);
    assert!(
        leaves[leaves.len() / 2] < Duration::from_millis(1_500)
            && leaves[leaves.len() - 1] < Duration::from_millis(2_500)
    );
}

/// The contact that all joined through is gone, so only graveyards and fingers know the other side; in a grid of twelve
/// all are neighbours, so only graveyards do.
#[test]
fn a_partition_heals() {
    for (seed, len) in [(0, 12), (1, 12), (2, 40), (3, 40)] {
        let (mut world, _) = started(seed, len, SECOND * 60);
        world.crash(0);
        world.settle(SECOND * 60).unwrap_or_else(|error| panic!("seed {seed} before: {error}"));
        for index in 0..world.machines.len() {
            world.machines[index].side = (index % 2) as u8;
        }
        let apart = world.settle(SECOND * 60).unwrap_or_else(|error| panic!("seed {seed} apart: {error}"));
        world.run_for(SECOND * 300);
        assert_eq!(world.settle(SECOND), Ok(Duration::ZERO));
        world.machines.iter_mut().for_each(|machine| machine.side = 0);
        let healed = world.settle(SECOND * 60).unwrap_or_else(|error| panic!("seed {seed} heal: {error}"));
        println!("seed {seed}: apart after {apart:?}, healed after {healed:?}");
    }
}

#[test]
fn two_parts_merge_when_one_member_is_given_a_contact_of_the_other() {
    let mut world = World::new(9);
    let (first, second) = (world.start(None), world.start(None));
    for index in 0..40 {
        world.start(Some(if index % 2 == 0 { first } else { second }));
    }
    world.run_for(SECOND * 60);
    let contact = world.machines[second].overlay.as_ref().unwrap().me().clone();
    world.feed(2, Event::Bootstrap(contact));
    println!("merged after {:?}", world.settle(SECOND * 60).unwrap());
}

#[test]
fn with_five_per_cent_loss_it_works_and_is_exact_after() {
    let mut world = World::new(11);
    world.loss_permille = 50;
    let first = world.start(None);
    (1..60).for_each(|_| _ = world.start(Some(first)));
    println!("with loss exact after {:?}", world.settle(SECOND * 90).unwrap());
    let (mut exact, rounds) = (0, 300);
    for _ in 0..rounds {
        world.run_for(SECOND);
        exact += usize::from(world::oracle::difference(&world).is_none());
    }
    println!("exact {exact} of {rounds} s under loss");
    assert!(exact > rounds / 2);
    world.loss_permille = 0;
    println!("exact {:?} after the loss ended", world.settle(SECOND * 40).unwrap());
}

#[test]
fn a_quiet_grid_of_a_hundred_is_cheap() {
    let (mut world, _) = started(2, 100, SECOND * 60);
    world.run_for(SECOND * 400);
    (world.bytes_sent, world.bytes_by_kind) = (0, Default::default());
    world.run_for(SECOND * 200);
    for (kind, (count, bytes)) in &world.bytes_by_kind {
        println!("{kind:12} {count:8} messages {:8.1} B/s per peer", *bytes as f64 / 200.0 / 100.0);
    }
    let rate = world.bytes_sent as f64 / 200.0 / 100.0;
    println!("{rate:.1} B/s per peer");
    assert!(rate < 300.0);
}

/// Payloads of 5 kB every 100 ms on links of 10 kB/s: the newest arrive, at the agreed rate.
#[test]
fn payloads_are_limited_and_the_newest_wins() {
    let (mut world, _) = started(6, 5, SECOND * 10);
    world.run_for(SECOND * 100);
    let publish = |world: &mut World, round: u8| {
        for index in 0..5 {
            let now = world.now;
            let mut effects = Vec::new();
            let overlay = world.machines[index].overlay.as_mut().unwrap();
            overlay.publish(now, Node::Router, vec![round; 5_000], &mut effects);
            world.carry_out(index, effects);
        }
    };
    world.bytes_by_kind.clear();
    for round in 1..=200 {
        publish(&mut world, round);
        world.run_for(Duration::from_millis(100));
    }
    // Four routers, of which three have a parent.
    let sent = world.bytes_by_kind["Report"].1;
    assert!((200_000..=270_000).contains(&sent), "{sent} bytes in 20 s of three children, each with 4 kB/s");
    world.run_for(SECOND * 2);
    let overlays = world.machines.iter().filter_map(|machine| machine.overlay.as_ref());
    let children: Vec<_> = overlays.flat_map(|overlay| overlay.children().into_iter().flatten()).collect();
    let routers: Vec<_> = children.iter().filter(|child| child.node == Node::Router).collect();
    assert_eq!(routers.len(), 3);
    assert!(routers.iter().all(|child| child.payload == [200; 5_000]));
}

#[derive(Clone, Debug)]
enum Step {
    Join,
    Leave(usize),
    Crash(usize),
    Restart(usize),
    Pause(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Join),
        1 => (0..100_usize).prop_map(Step::Leave),
        2 => (0..100_usize).prop_map(Step::Crash),
        2 => (0..100_usize).prop_map(Step::Restart),
        3 => (0..20_000_u64).prop_map(Step::Pause),
    ]
}

/// Machine 0 stays up and is a contact of all: a machine whose only contact crashes at once would rightly stay alone
/// for good.
fn play(world: &mut World, step: &Step) {
    let alive = world.alive();
    let mortal = |pick: &usize| alive[1..].get(pick % alive.len()).copied();
    match step {
        Step::Join => {
            let other = alive[world.pick(alive.len())];
            let index = world.start(Some(other));
            introduce(world, index);
        }
        Step::Leave(pick) => mortal(pick).into_iter().for_each(|index| world.feed(index, Event::Leave)),
        Step::Crash(pick) => mortal(pick).into_iter().for_each(|index| world.crash(index)),
        Step::Restart(pick) => {
            let down: Vec<_> = (0..world.machines.len()).filter(|i| world.machines[*i].overlay.is_none()).collect();
            if !down.is_empty() {
                let other = alive[world.pick(alive.len())];
                world.restart(down[pick % down.len()], Some(other));
                introduce(world, down[pick % down.len()]);
            }
        }
        Step::Pause(millis) => world.run_for(Duration::from_millis(*millis)),
    }
}

fn introduce(world: &mut World, index: usize) {
    let contact = world.machines[0].overlay.as_ref().unwrap().me().clone();
    world.feed(index, Event::Bootstrap(contact));
}

/// Failures join `*.regressions` beside this file.
fn persisted() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, failure_persistence: persisted(), ..ProptestConfig::default() })]

    #[test]
    fn after_any_script_the_tree_is_the_oracles(
        seed: u64, len in 1..25_usize, loss in prop_oneof![Just(0), Just(50_u32)],
        script in prop::collection::vec(step(), 0..40),
    ) {
        let mut world = World::new(seed);
        world.loss_permille = loss;
        let first = world.start(None);
        (1..len).for_each(|_| _ = world.start(Some(first)));
        script.iter().for_each(|step| play(&mut world, step));
        world.loss_permille = 0;
        let took = world.settle(SECOND * 90).map_err(TestCaseError::fail)?;
        world.run_for(SECOND * 30);
        let again = world.settle(SECOND * 5).map_err(TestCaseError::fail)?;
        prop_assert!(again <= SECOND * 5, "exact after {took:?} and stays so");
    }
}

#[test]
fn a_member_that_left_ignores_everything() {
    let (mut world, _) = started(4, 3, SECOND * 10);
    world.feed(1, Event::Leave);
    assert_eq!(world.machines[1].overlay.as_ref().map(|overlay| overlay.state()), Some(State::Leaving));
    world.run_for(SECOND * 2);
    assert!(world.machines[1].notices.contains(&Notice::Left));
    world.settle(SECOND * 5).unwrap();
    assert!(world.machines[0].overlay.as_ref().is_some_and(|overlay| overlay.parent(Node::Leaf).is_some()));
}
