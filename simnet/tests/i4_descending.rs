//! I4: accepted links strictly decrease the common prefix. See `simnet::invariant::i4_descending`.

mod worlds;

use std::time::Duration;

use idlewood_overlay::Node;
use idlewood_simnet::invariant::i4_descending::{self, accepted_parent};
use idlewood_simnet::overlay::{Memory, Settings, Step, World};

#[test]
fn links_lead_to_shorter_prefixes_under_all_faults() {
    worlds::hold(i4_descending::RULE);
}

/// The purpose of the rule, checked link by link over the whole grid: no way up returns to a node on it.
#[test]
fn no_way_up_is_a_cycle_while_half_the_grid_comes_and_goes() {
    let mut world = World::new(Settings::new(32, 3));
    (0..32).for_each(|host| world.start(host, Memory::Kept));
    let (mut steps, mut links) = (0_u32, 0_u32);
    for round in 0..12 {
        let until = world.now() + Duration::from_secs(8);
        while let Some(step) = world.step(until) {
            steps += 1;
            let Step::Handled(_) = step else { continue };
            if steps.is_multiple_of(7) {
                links += world.up().iter().map(|host| way_up(&world, *host)).sum::<u32>();
            }
        }
        for host in (round % 2..32).step_by(2) {
            if world.overlay(host).is_some() {
                world.crash(host);
            } else {
                world.start(host, Memory::Kept);
            }
        }
    }
    assert!(links > 10_000, "{links}");
}

/// Number of links from a leaf to the end of its way up.
fn way_up(world: &World, leaf: u32) -> u32 {
    let (mut at, mut links) = (accepted_parent(world, leaf, Node::Leaf), 0);
    while let Some(router) = at {
        links += 1;
        assert!(links <= 32, "the way up from machine {leaf} does not end at {:?}", world.now());
        at = accepted_parent(world, router, Node::Router);
    }
    links
}
