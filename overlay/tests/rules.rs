//! One test for each rule of the overlay that something once depended on and that no other test covers.

mod world;

use std::time::Duration;

use idlewood_overlay::{
    Body, Config, Contact, Effect, Event, GridId, Handover, HandoverChild, Member, Message, Node, Overlay, Payload,
    PayloadCodec, PeerId, PositionKey, Span, State, Subtree, Time, Verdict,
};
use world::{GRID, World, in_order, oracle};

const SECOND: Duration = Duration::from_secs(1);

fn started(seed: u64, len: usize) -> World {
    started_with(seed, len, Config::default())
}

fn started_with(seed: u64, len: usize, config: Config) -> World {
    assert_eq!(config.validate(), Ok(()));
    let mut world = World::new(seed);
    world.config = config;
    let first = world.start(None);
    (1..len).for_each(|_| _ = world.start(Some(first)));
    world.settle(SECOND * 60).unwrap();
    world.run_for(SECOND * 60);
    world
}

fn overlay(world: &World, index: usize) -> &Overlay {
    world.machines[index].overlay.as_ref().unwrap()
}

fn me(world: &World, index: usize) -> Member {
    overlay(world, index).me().clone().into()
}

fn key(world: &World, index: usize) -> PositionKey {
    PositionKey::new(GRID, world.machines[index].id)
}

/// An identity whose place is between two machines.
fn id_between(world: &World, below: usize, above: usize) -> PeerId {
    let (low, high) = (key(world, below), key(world, above));
    let ids = (0_u32..).map(|number| PeerId(*blake3::hash(&number.to_le_bytes()).as_bytes()));
    ids.into_iter().find(|id| (low..high).contains(&PositionKey::new(GRID, *id))).unwrap()
}

/// I1. The tombstone is long gone, so only *verify before adopt* keeps the dead peer out.
#[test]
fn hearsay_brings_nobody_back_from_the_dead() {
    let mut world = started(41, 12);
    let victim = me(&world, 5);
    world.crash(5);
    world.run_for(SECOND * 200);
    for _ in 0..20 {
        let liar = me(&world, 1);
        for index in world.alive() {
            let message = world::message(&liar, Body::Hint(vec![victim.clone()]));
            world.feed(index, Event::Received { from: liar.peer.into(), message });
            let near = overlay(&world, index).neighbours().any(|contact| contact.peer == victim.peer);
            assert!(!near, "{index} took a dead peer for a neighbour");
        }
        world.run_for(SECOND * 7);
    }
}

/// All eight successors, and those behind them, crash at once. Until a look-up says so, the peer must not report that
/// the line ends with it.
#[test]
fn a_peer_that_loses_a_side_asks_before_it_takes_itself_for_the_end() {
    for seed in 0..4 {
        let mut world = started(50 + seed, 60);
        let line = in_order(&world);
        let last = me(&world, line[59]).peer;
        world.recorded = Some(Vec::new());
        line[20..44].iter().for_each(|index| world.crash(*index));
        let took = world.settle(SECOND * 30).unwrap();
        println!("seed {seed}: exact after {took:?}");
        for (from, _, message) in world.recorded.take().unwrap() {
            if let Body::Report(report) = message.body
                && let Some(tree) = report.tree
            {
                let ends_there = tree.span.ro.is_none() && tree.span.r.peer != last;
                assert!(!ends_there, "seed {seed}: {from} took {:?} for the end", tree.span.r);
            }
        }
    }
}

/// The last of three crashes. Before the middle one reports that the line ends with it, it must have asked who is
/// there.
#[test]
fn the_end_of_the_line_is_looked_up_before_it_is_reported() {
    for seed in 0..4 {
        let mut world = started(100 + seed, 3);
        let line = in_order(&world);
        let middle = line[1];
        world.recorded = Some(Vec::new());
        world.crash(line[2]);
        world.settle(SECOND * 20).unwrap();
        let recorded = world.recorded.take().unwrap();
        let place = |is: &dyn Fn(&(usize, PeerId, Message)) -> bool| recorded.iter().position(is);
        let buried = place(&|(from, _, message)| *from == middle && matches!(message.body, Body::Dead(_)));
        let ends = |message: &Message| match &message.body {
            Body::Report(report) => report.tree.as_ref().is_some_and(|tree| tree.span.ro.is_none()),
            _ => false,
        };
        let reported = place(&|(from, _, message)| *from == middle && ends(message)).unwrap();
        let start = buried.filter(|buried| *buried < reported).unwrap_or(0);
        let asked = |(_, to, message): &(usize, PeerId, Message)| {
            *to == world.machines[middle].id && matches!(message.body, Body::Found { .. })
        };
        assert!(recorded[start..reported].iter().any(asked), "seed {seed}");
    }
}

/// No peer has to ask: the leaving one has made sure of the end, and says so.
#[test]
fn a_leaving_peer_hands_its_end_of_the_line_on() {
    for seed in 0..4 {
        let mut world = started(104 + seed, 12);
        let line = in_order(&world);
        for (last, next) in [(line[11], line[10]), (line[0], line[1])] {
            world.feed(last, Event::Leave);
            // The longest delay of a message.
            world.run_for(Duration::from_millis(100));
            let span = overlay(&world, next).span(Node::Leaf).unwrap();
            assert!([&span.lo, &span.ro].contains(&&None), "seed {seed}: {next} has not taken the end over");
        }
        world.settle(SECOND * 5).unwrap();
    }
}

/// A peer that misses an answer calls the neighbour on the other side, so that both notice at once.
#[test]
fn a_missed_answer_calls_for_a_witness() {
    let mut world = started(110, 30);
    let line = in_order(&world);
    for place in [5, 12, 20] {
        world.recorded = Some(Vec::new());
        let victim = me(&world, line[place]).peer;
        let sides = [line[place - 1], line[place + 1]];
        world.crash(line[place]);
        world.settle(SECOND * 20).unwrap();
        let called = |(from, to, message): &(usize, PeerId, Message)| {
            let other = sides.iter().any(|side| side != from && world.machines[*side].id == *to);
            sides.contains(from) && other && matches!(&message.body, Body::Suspect(lost) if lost.peer == victim)
        };
        assert!(world.recorded.as_ref().unwrap().iter().any(called), "place {place}");
    }
}

/// All sixteen neighbours and the only contact crash at once: only fingers remain.
#[test]
fn a_peer_that_loses_all_neighbours_returns_through_its_fingers() {
    for seed in 0..3 {
        let mut world = started(90 + seed, 120);
        let line = in_order(&world);
        let lost = if line[40] == 0 { 41 } else { 40 };
        for place in (lost - 8..=lost + 8).filter(|place| *place != lost) {
            world.crash(line[place]);
        }
        world.crash(0);
        println!("seed {seed}: exact after {:?}", world.settle(SECOND * 30).unwrap());
    }
}

/// All peers that it ever exchanged messages with crash at once: only peers that others named remain.
#[test]
fn a_peer_that_loses_all_contacts_returns_through_peers_named_by_others() {
    for seed in 0..3 {
        let mut world = World::new(95 + seed);
        world.recorded = Some(Vec::new());
        let first = world.start(None);
        (1..150).for_each(|_| _ = world.start(Some(first)));
        world.settle(SECOND * 60).unwrap();
        let lost = in_order(&world)[70];
        let id = world.machines[lost].id;
        let mut known: Vec<PeerId> = vec![world.machines[first].id];
        for (from, to, _) in world.recorded.take().unwrap() {
            known.extend((from == lost).then_some(to));
            known.extend((to == id).then_some(world.machines[from].id));
        }
        let mut victims = world.alive();
        victims.retain(|index| known.contains(&world.machines[*index].id));
        victims.into_iter().for_each(|index| world.crash(index));
        assert!((30..120).contains(&world.alive().len()), "seed {seed}: {} left", world.alive().len());
        assert!(overlay(&world, lost).sizes().heard_of >= 32, "seed {seed}");
        println!("seed {seed}: exact after {:?}", world.settle(SECOND * 60).unwrap());
    }
}

/// Tries are counted by target: a heartbeat faster than a probe can fail does not restart the probe.
#[test]
fn a_heartbeat_shorter_than_the_timeout_still_finds_crashes() {
    let config = Config {
        heartbeat_ms: 200,
        child_lease_ms: 1_500,
        nack_retry_ms: 150,
        probe_timeout_ms_min: 700,
        probe_timeout_ms_max: 1_000,
        ..Config::default()
    };
    let mut world = started_with(43, 24, config);
    for victim in [3, 11, 17] {
        world.crash(victim);
        println!("exact after {:?}", world.settle(SECOND * 15).unwrap());
    }
}

#[test]
fn a_join_at_the_roots_gap_moves_the_root_or_its_child() {
    for seed in 0..6 {
        let mut world = started(60 + seed, 24);
        let line = in_order(&world);
        let place = line.iter().position(|index| overlay(&world, *index).is_root()).unwrap();
        let id = id_between(&world, line[place], line[place + 1]);
        world.start_as(id, Some(line[0]));
        println!("seed {seed}: exact after {:?}", world.settle(SECOND * 10).unwrap());
    }
}

/// Two strangers, one given as the other's contact: neither learns anything of the other.
#[test]
fn the_grids_of_strangers_never_merge() {
    let contact = |byte| Contact { peer: PeerId([byte; 32]), incarnation: 1, address: "".into(), nonce: None };
    let grids = [GRID, GridId([8; 32])];
    let mut overlays = [0_u8, 1].map(|side| {
        let grid = grids[usize::from(side)];
        Overlay::new(Config::default(), grid, contact(side), 1, Time::ZERO, PayloadCodec::WHOLE)
    });
    let mut mail: Vec<(usize, Event)> = vec![(0, Event::Bootstrap(contact(1))), (1, Event::Bootstrap(contact(0)))];
    for tick in 0..600 {
        let now = Time::ZERO + Duration::from_millis(100) * tick;
        mail.extend([(0, Event::DeadlineReached), (1, Event::DeadlineReached)]);
        for (to, event) in std::mem::take(&mut mail) {
            let mut effects = Vec::new();
            overlays[to].handle(now, event, &mut effects);
            for effect in effects {
                if let Effect::Send { message, .. } = effect {
                    mail.push((1 - to, Event::Received { from: contact(to as u8).peer.into(), message }));
                }
            }
        }
    }
    for overlay in &overlays {
        assert!(overlay.counters().foreign_grid > 3);
        assert_eq!((overlay.neighbours().count(), overlay.root().unwrap().count), (0, 1));
    }
}

#[test]
fn four_fifths_of_a_hundred_crash_at_once() {
    for seed in 0..3 {
        let mut world = started(70 + seed, 100);
        for _ in 0..80 {
            let alive = world.alive();
            let victim = alive[world.pick(alive.len())];
            world.crash(victim);
        }
        println!("seed {seed}: exact after {:?}", world.settle(SECOND * 30).unwrap());
    }
}

/// The driver gives each contact once.
#[test]
fn contacts_that_do_not_answer_are_tried_again() {
    let mut world = World::new(44);
    let first = world.start(None);
    world.crash(first);
    let second = world.start(Some(first));
    world.recorded = Some(Vec::new());
    world.run_for(SECOND * 120);
    let asked = world.recorded.take().unwrap().len();
    assert!((20..60).contains(&asked), "{asked} messages in two minutes: eight to twelve rounds of three tries");
    assert_eq!(overlay(&world, second).state(), State::Alone);
    world.restart(first, None);
    println!("met after {:?}", world.settle(SECOND * 18).unwrap());
    // One of two contacts is down: that is no reason to wait.
    world.crash(second);
    world.settle(SECOND * 10).unwrap();
    let third = world.start(Some(second));
    let contact = overlay(&world, first).me().clone();
    world.feed(third, Event::Bootstrap(contact));
    println!("joined after {:?}", world.settle(SECOND * 3).unwrap());
}

/// A claim about the highest of all incarnations does not use up a peer's incarnations.
#[test]
fn forged_incarnations_lock_nobody_out() {
    let mut world = started(45, 12);
    let (liar, victim) = (me(&world, 1), me(&world, 5));
    let stranger = PeerId([77; 32]);
    let forged = [u64::MAX, u64::MAX - 1, 1 << 60].into_iter().flat_map(|incarnation| {
        let of = |peer| Member::from(Contact { peer, incarnation, address: "".into(), nonce: None });
        [of(victim.peer), of(stranger)]
    });
    let forged: Vec<_> = forged.collect();
    for index in world.alive() {
        let dead = forged.iter().map(|contact| Body::Dead(contact.clone()));
        for body in dead.chain([Body::Hint(forged.clone())]) {
            let message = world::message(&liar, body);
            world.feed(index, Event::Received { from: liar.peer.into(), message });
        }
    }
    assert!(overlay(&world, 5).counters().incarnations_refused > 0);
    assert_eq!(me(&world, 5).incarnation, victim.incarnation);
    world.settle(SECOND * 10).unwrap();
    // By now all hold that the stranger did not answer at that incarnation.
    world.run_for(SECOND * 3);
    world.start_as(stranger, Some(0));
    println!("the stranger joined after {:?}", world.settle(SECOND * 5).unwrap());
    world.crash(5);
    world.settle(SECOND * 10).unwrap();
    world.restart(5, Some(0));
    println!("the victim came back after {:?}", world.settle(SECOND * 5).unwrap());
}

/// Each lie makes the peer rise, up to a bound that follows from its own clock.
#[test]
fn the_incarnation_a_peer_rises_to_is_bounded() {
    let me = Contact { peer: PeerId([1; 32]), incarnation: 1_790_000_000_000, address: "".into(), nonce: None };
    let liar = Contact { peer: PeerId([2; 32]), incarnation: 1, address: "".into(), nonce: None };
    let mut overlay = Overlay::new(Config::default(), GRID, me.clone(), 1, Time::ZERO, PayloadCodec::WHOLE);
    let mut lie = |lead: u64| {
        let known = Contact { incarnation: overlay.me().incarnation.saturating_add(lead), ..me.clone() };
        let message = world::message(&liar, Body::Dead(known.into()));
        overlay.handle(Time::ZERO, Event::Received { from: liar.peer.into(), message }, &mut Vec::new());
        overlay.me().incarnation
    };
    assert_eq!(lie(5), me.incarnation + 6);
    (0..1_000).for_each(|_| _ = lie(1 << 40));
    assert!(lie(0) < me.incarnation + (1 << 43));
}

#[test]
fn after_a_closed_lid_children_are_kept_and_nobody_is_buried() {
    let mut world = started(46, 40);
    let line = in_order(&world);
    let with_both = |index: &&usize| {
        let children = overlay(&world, **index).children();
        children.iter().flatten().filter(|child| child.contact.peer != world.machines[**index].id).count() == 2
    };
    let sleeper = *line.iter().find(with_both).unwrap();
    world.machines[sleeper].asleep = true;
    world.run_for(SECOND * 40);
    world.rouse(sleeper);
    let overlay = overlay(&world, sleeper);
    assert_eq!(overlay.counters().pauses, 1);
    assert!(overlay.children().iter().all(Option::is_some), "their silence was ours");
    let before = overlay.counters().crashes_found;
    println!("exact after {:?}", world.settle(SECOND * 20).unwrap());
    let after = self::overlay(&world, sleeper).counters().crashes_found;
    assert_eq!(after, before);
}

/// The layer above publishes first after the pause, so the overlay notices the pause only then.
#[test]
fn publishing_after_a_pause_does_not_end_the_childrens_leases() {
    let mut world = started(46, 40);
    let line = in_order(&world);
    let sleeper = *line.iter().find(|index| overlay(&world, **index).children().iter().flatten().count() == 2).unwrap();
    world.machines[sleeper].asleep = true;
    world.run_for(SECOND * 40);
    world.machines[sleeper].asleep = false;
    let mut effects = Vec::new();
    let now = world.now;
    world::publish(now, world.machines[sleeper].overlay.as_mut().unwrap(), &mut effects);
    world.carry_out(sleeper, effects);
    let overlay = overlay(&world, sleeper);
    assert_eq!(overlay.counters().pauses, 1);
    assert!(overlay.children().iter().all(Option::is_some), "their silence was ours");
}

/// The retry alone would take five seconds more. A parent that asks for the whole report of a version that it never
/// knew can only be calling back a child that it refused.
#[test]
fn a_child_that_was_refused_is_called_back_when_the_gap_changes() {
    let config = Config { nack_retry_ms: 5_000, ..Config::default() };
    let mut world = started_with(47, 60, config);
    let mut took = Vec::new();
    world.recorded = Some(Vec::new());
    for round in 0..12 {
        world.run_for(Duration::from_millis(8_000 + 211 * round));
        let alive = world.alive();
        let victim = alive[world.pick(alive.len())];
        world.crash(victim);
        took.push(world.settle(SECOND * 30).unwrap());
    }
    took.sort();
    println!("{took:?}");
    assert!(took[6] < SECOND * 5);
    let unknown = |(_, _, message): &(usize, PeerId, Message)| match &message.body {
        Body::ReportAck(ack) => ack.verdict == Verdict::Unknown,
        _ => false,
    };
    assert!(world.recorded.unwrap().iter().any(unknown));
}

#[test]
fn a_role_that_moves_takes_its_children_along() {
    let (mut by_join, mut by_leave) = (0, 0);
    for seed in 0..6 {
        let mut world = started(80 + seed, 30);
        let line = in_order(&world);
        for place in [8, 14, 20] {
            let id = id_between(&world, line[place], line[place + 1]);
            let newcomer = world.start_as(id, Some(line[0]));
            world.settle(SECOND * 10).unwrap();
            by_join += overlay(&world, newcomer).counters().children_handed;
            let before = overlay(&world, line[place]).counters().children_handed;
            world.run_for(SECOND * 10);
            world.feed(newcomer, Event::Leave);
            world.settle(SECOND * 10).unwrap();
            by_leave += overlay(&world, line[place]).counters().children_handed - before;
        }
    }
    println!("{by_join} children by joins, {by_leave} by leaves");
    assert!(by_join > 4 && by_leave > 4);
}

/// A handover only fills an empty slot, and only with a child that fits.
#[test]
fn a_forged_handover_changes_no_child() {
    let mut world = started(48, 20);
    let line = in_order(&world);
    for place in 1..19 {
        let index = line[place];
        let seen = |world: &World| {
            let children = overlay(world, index).children();
            children.map(|child| {
                child.map(|child| (child.contact.clone(), child.node, child.count, child.payload.to_vec()))
            })
        };
        let before = seen(&world);
        let (pred, succ) = (me(&world, line[place - 1]), me(&world, line[place + 1]));
        let stranger: Member =
            Contact { peer: PeerId([99; 32]), incarnation: 1, address: "".into(), nonce: None }.into();
        for (l, r) in [(&pred, &me(&world, index)), (&succ, &succ), (&stranger, &stranger)] {
            let span = Span { lo: Some(pred.clone()), l: l.clone(), r: r.clone(), ro: Some(succ.clone()) };
            let child = HandoverChild {
                contact: stranger.clone(),
                node: if l == r { Node::Leaf } else { Node::Router },
                version: 1 << 40,
                tree: Subtree { span, count: if l == r { 1 } else { 1_000 }, height: u32::from(l != r) },
                load: Payload::new(1 << 40, None, b"forged".to_vec()),
            };
            for sender in [&pred, &succ, &stranger] {
                let body = Body::Handover(Handover { children: vec![child.clone(), child.clone()] });
                let message = world::message(sender, body);
                world.feed(index, Event::Received { from: sender.peer.into(), message });
                assert_eq!(seen(&world), before);
            }
        }
    }
    assert_eq!(world.settle(Duration::ZERO), Ok(Duration::ZERO));
}

/// A child names its parent's successor; a parent that has another one refuses.
#[test]
fn a_parent_whose_successor_is_another_one_refuses() {
    let mut world = started(49, 20);
    let line = in_order(&world);
    let mut refused = 0;
    for place in 1..18 {
        // The leaf at `place` as it would be if its successor, which is also the parent's, were gone.
        let leaf = me(&world, line[place]);
        let span = Span {
            lo: Some(me(&world, line[place - 1])),
            l: leaf.clone(),
            r: leaf.clone(),
            ro: Some(me(&world, line[place + 2])),
        };
        let parent = overlay(&world, line[place]).parent(Node::Leaf).unwrap().peer;
        if parent != me(&world, line[place - 1]).peer {
            continue;
        }
        // Right child of the predecessor: twist what the fence compares with that one's successor.
        let twisted = Span { l: me(&world, line[place + 1]), r: me(&world, line[place + 1]), ..span };
        let sender = twisted.l.clone();
        let tree = Some(Box::new(Subtree { span: twisted, count: 1, height: 0 }));
        let report = idlewood_overlay::Report { node: Node::Leaf, version: 1 << 40, tree, load: None, root: 0 };
        let before = overlay(&world, line[place - 1]).counters().links_refused;
        let message: Message = world::message(&sender, Body::Report(report));
        world.feed(line[place - 1], Event::Received { from: sender.peer.into(), message });
        assert_eq!(overlay(&world, line[place - 1]).counters().links_refused, before + 1);
        refused += 1;
    }
    assert!(refused > 2);
}

/// Leaves, stays away for `stay`, and comes back. No peer that heard of the leave waits for the tombstone to expire: a
/// newer incarnation counts at once.
fn returns_after(stay: Duration, seed: u64) {
    let mut world = started(seed, 24);
    for index in [0, 7, 15] {
        let before = me(&world, index);
        world.feed(index, Event::Leave);
        world.run_for(stay);
        world.come_back(index);
        let took = world.settle(SECOND * 10).unwrap();
        println!("seed {seed}, {index} away for {stay:?}: exact after {took:?}");
        let after = me(&world, index);
        assert_eq!(*after, Contact { incarnation: before.incarnation + 1, ..(*before).clone() });
        for other in world.alive().into_iter().filter(|other| *other != index) {
            let known = overlay(&world, other).neighbours().find(|contact| contact.peer == before.peer).cloned();
            assert!(known.is_none_or(|known| known == *after), "{other} knows the life that is over");
        }
        world.run_for(SECOND * 5);
        assert_eq!(oracle::difference(&world), None, "and it stays so");
    }
}

#[test]
fn a_returning_peer_is_adopted_at_once_in_a_newer_incarnation() {
    for seed in 0..3 {
        // Before the leave is complete; while all count it as gone; when that is forgotten.
        for millis in [200, 5_000, 200_000] {
            returns_after(Duration::from_millis(millis), 130 + seed);
        }
    }
}

#[test]
fn only_a_peer_that_left_returns_and_pending_messages_are_sent() {
    let mut world = started(140, 6);
    let now = world.now;
    let overlay = world.machines[2].overlay.as_mut().unwrap();
    let (before, left) = (overlay.me().clone(), overlay.neighbours().count());
    let mut effects = Vec::new();
    overlay.handle(now, Event::Return, &mut effects);
    assert_eq!((overlay.me(), overlay.state(), effects.len()), (&before, State::Member, 0));
    overlay.handle(now, Event::Leave, &mut effects);
    let farewells = |effects: &[Effect]| {
        let is_leave =
            |effect: &&Effect| matches!(effect, Effect::Send { message, .. } if matches!(message.body, Body::Leave(_)));
        effects.iter().filter(is_leave).count()
    };
    assert_eq!(farewells(&effects), left);
    overlay.handle(now, Event::Return, &mut effects);
    assert_eq!(farewells(&effects), left, "effects that wait for the driver stay");
    assert_eq!(overlay.state(), State::Joining);
}

/// Hours later nothing is asked or sent in the earlier incarnation.
#[test]
fn a_returned_peer_uses_its_newer_incarnation_alone() {
    let mut world = started(141, 12);
    let before = me(&world, 3);
    world.feed(3, Event::Leave);
    world.run_for(SECOND * 3600);
    world.recorded = Some(Vec::new());
    world.come_back(3);
    world.settle(SECOND * 10).unwrap();
    for (_, to, message) in world.recorded.take().unwrap().iter().filter(|(from, ..)| *from == 3) {
        assert_eq!(message.incarnation, before.incarnation + 1, "to {to:?}");
    }
    assert_eq!(overlay(&world, 3).counters().pauses, 0, "it was gone, not late");
}

/// The machine wakes before its network does, and of all peers that it knew only the configured contact is still there.
#[test]
fn a_returned_peer_without_answers_keeps_asking() {
    let mut world = started(142, 6);
    world.feed(4, Event::Leave);
    world.run_for(SECOND * 10);
    world.machines[4].side = 1;
    world.come_back(4);
    world.run_for(SECOND * 40);
    assert_eq!(overlay(&world, 4).state(), State::Alone);
    world.machines[4].side = 0;
    world.settle(SECOND * 30).unwrap();
}

/// A peer that lost a neighbour soon looks its own place up: another peer may have been lost from sight with it.
#[test]
fn neighbours_of_a_crashed_peer_look_themselves_up() {
    let mut world = started(150, 40);
    let line = in_order(&world);
    let sides = [line[19], line[21]];
    let lost = me(&world, line[20]);
    world.crash(line[20]);
    while sides.iter().any(|side| overlay(&world, *side).neighbours().any(|contact| contact.peer == lost.peer)) {
        world.run_for(Duration::from_millis(20));
    }
    world.recorded = Some(Vec::new());
    world.run_for(Duration::from_millis(1_200));
    let recorded = world.recorded.take().unwrap();
    for side in sides {
        let own = key(&world, side);
        let asks = |(from, _, message): &(usize, PeerId, Message)| {
            *from == side && matches!(&message.body, Body::Find { key, .. } if *key == own)
        };
        assert!(recorded.iter().any(asks), "machine {side}");
    }
}

/// Each half grew round one machine that was given the same contact, which was down all the time. No machine of one
/// half has ever heard of one of the other.
#[test]
fn two_halves_that_share_only_a_contact_meet_when_it_is_back() {
    let mut world = World::new(151);
    let contact = world.start(None);
    world.crash(contact);
    for _ in 0..2 {
        let first = world.start(Some(contact));
        (1..10).for_each(|_| _ = world.start(Some(first)));
    }
    world.run_for(SECOND * 100);
    let counts = [1, 11].map(|index| overlay(&world, index).root().map(|root| root.count));
    assert_eq!(counts, [Some(10); 2]);
    world.restart(contact, None);
    println!("met after {:?}", world.settle(SECOND * 60).unwrap());
}
