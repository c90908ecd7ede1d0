//! I3: at least one live peer on each side of the leaf set, or a look-up is active. See `simnet::invariant::i3_neighboured`.

mod worlds;

use std::time::Duration;

use idlewood_overlay::Config;
use idlewood_simnet::invariant::{Safety, i3_neighboured};
use idlewood_simnet::overlay::{Memory, Settings, World};

#[test]
fn peers_have_neighbours_or_look_for_them_under_all_faults() {
    worlds::hold(i3_neighboured::RULE);
}

/// A peer beside a gap wider than its leaf set finds the peers beyond the gap.
#[test]
fn a_gap_wider_than_the_leaf_set_is_bridged() {
    for (seed, leaf_set_side_len) in [(1, 2), (2, 2), (3, 2), (4, 4), (5, 8)] {
        let config = Config { leaf_set_side_len, ..Config::default() };
        let settings = Settings { config: config.clone(), ..Settings::new(60, seed) };
        let mut world = World::new(settings);
        let mut safety = Safety::new(&config, world.grid(), 60).watching(&[i3_neighboured::RULE]);
        let mut run = |world: &mut World, time: Duration| {
            let until = world.now() + time;
            while let Some(step) = world.step(until) {
                safety.stepped(world, step).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
            }
        };
        (0..60).for_each(|host| world.start(host, Memory::Kept));
        run(&mut world, Duration::from_secs(90));
        let mut line: Vec<u32> = (0..60).collect();
        line.sort_by_key(|host| world.position(*host));
        let (below, above) = (line[19], line[20 + 2 * leaf_set_side_len]);
        line[20..20 + 2 * leaf_set_side_len].iter().for_each(|host| world.crash(*host));
        run(&mut world, i3_neighboured::patience(&config));
        let successor = world.overlay(below).and_then(|overlay| overlay.successor()).map(|contact| contact.peer);
        assert_eq!(successor, Some(world.peer_id(above)), "seed {seed}");
    }
}
