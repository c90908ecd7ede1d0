//! I1: leaf sets hold only peers that answered at that incarnation. See `simnet::invariant::i1_answered`.

mod worlds;

use std::time::Duration;

use idlewood_simnet::invariant::{Safety, i1_answered};
use idlewood_simnet::overlay::{Memory, Settings, World};

#[test]
fn leaf_sets_contain_only_peers_that_answered_under_all_faults() {
    worlds::hold(i1_answered::RULE);
}

/// Hearsay re-adoption: peers that have not noticed a death yet name the dead machine to all others over and over.
#[test]
fn a_dead_peer_is_not_adopted_again_by_hearsay() {
    let settings = Settings::new(40, 7);
    let mut world = World::new(settings.clone());
    let mut safety = Safety::new(&settings.config, world.grid(), 40).watching(&[i1_answered::RULE]);
    let mut run = |world: &mut World, seconds: u64| {
        let until = world.now() + Duration::from_secs(seconds);
        while let Some(step) = world.step(until) {
            safety.stepped(world, step).unwrap_or_else(|violation| panic!("{violation}"));
        }
    };
    (0..40).for_each(|host| world.start(host, Memory::Kept));
    run(&mut world, 60);
    let dead = world.peer_id(11);
    let is_believed = |world: &World| {
        let holds = |host: &&u32| world.overlay(**host).is_some_and(|peer| peer.neighbours().any(|n| n.peer == dead));
        world.up().iter().filter(holds).count()
    };
    assert!(is_believed(&world) >= 16);
    let in_vain = world.traffic().in_vain;
    world.crash(11);
    run(&mut world, 20);
    assert_eq!(is_believed(&world), 0);
    // Nor do they keep asking it: tombstones. Seed 7 needs 45 messages with and 61 without them.
    let in_vain = world.traffic().in_vain - in_vain;
    assert!(in_vain < 53, "{in_vain} messages to the dead");
    // New machines ask all others; none brings the dead one back.
    for host in [20, 21, 22] {
        world.crash(host);
        world.start(host, Memory::Lost);
        run(&mut world, 5);
        assert_eq!(is_believed(&world), 0, "at {:?}", world.now());
    }
}
