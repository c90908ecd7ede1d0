//! I6: the quiescent tree is that of the membership, and the root counts all machines. See
//! `simnet::invariant::i6_tree`.

mod worlds;

use std::time::Duration;

use idlewood_simnet::invariant::i6_tree;
use idlewood_simnet::overlay::{Memory, Settings, World};

#[test]
fn the_tree_is_the_true_one_within_the_bound_after_all_faults() {
    worlds::hold(i6_tree::RULE);
}

/// A grid in which all machines are up and the tree is the true one.
fn settled(hosts: u32, seed: u64) -> World {
    let mut world = World::new(Settings::new(hosts + 1, seed));
    // All join through one machine, which then goes for good: the first contact of every machine is gone.
    world.start_through(hosts, Memory::Kept, None);
    for host in 0..hosts {
        world.start_through(host, Memory::Kept, Some(hosts));
        world.run_until(world.now() + Duration::from_millis(200));
    }
    world.run_until(world.now() + Duration::from_secs(10));
    world.leave(hosts);
    assert_true_within(&mut world, Duration::from_secs(30), |_| true);
    world
}

/// Waits until the tree of these machines is their true one.
#[track_caller]
fn assert_true_within(world: &mut World, bound: Duration, is_in: impl Fn(u32) -> bool) {
    let start = world.now();
    loop {
        world.run_until(world.now() + Duration::from_millis(200));
        let up = world.up().iter().filter(|host| is_in(**host));
        let member = |host: &u32| Some((*host, world.position(*host), world.overlay(*host)?));
        let members: Vec<_> = up.filter_map(member).collect();
        let Err((host, what)) = i6_tree::check(&members, world.hosts()) else { return };
        assert!(world.now().since(start) < bound, "after {bound:?} machine {host:?} is wrong: {what}");
    }
}

/// A machine that comes back with an earlier incarnation must begin a newer one, and not wait for tombstones to expire.
#[test]
fn a_machine_with_a_stale_incarnation_begins_a_newer_one() {
    for seed in 1..=4 {
        let mut world = settled(24, seed);
        for host in 3..6 {
            world.crash(host);
        }
        world.run_until(world.now() + Duration::from_secs(15));
        for host in 3..6 {
            world.start(host, Memory::Stale);
        }
        assert_true_within(&mut world, Duration::from_secs(20), |_| true);
    }
}

/// A machine that comes back before any other has noticed its crash is known in its new life, and with its new data.
#[test]
fn a_quick_restart_is_a_new_life() {
    for seed in 1..=4 {
        let mut world = settled(24, seed);
        for host in 3..9 {
            world.crash(host);
            world.start(host, Memory::Kept);
        }
        assert_true_within(&mut world, Duration::from_secs(30), |_| true);
    }
}

/// Each side of a partition is a grid of its own, with a tree and a root. After it they merge by their graveyards
/// alone: the leaf set of every machine contained all others, so none remain among the fingers either.
#[test]
fn each_side_of_a_partition_is_a_grid_and_both_merge_afterwards() {
    for seed in 1..=3 {
        let mut world = settled(16, seed);
        (0..16).for_each(|host| world.network_mut().put_into((host % 2) as u8, host));
        world.network_mut().partition(0, 1);
        world.run_until(world.now() + Duration::from_secs(60));
        for side in 0..2 {
            assert_true_within(&mut world, Duration::from_secs(60), |host| host % 2 == side);
        }
        world.network_mut().heal();
        assert_true_within(&mut world, Duration::from_secs(60), |_| true);
    }
}
