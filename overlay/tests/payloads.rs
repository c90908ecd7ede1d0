//! Payloads that travel as differences: a parent holds what its child published, whichever messages are lost,
//! duplicated or reordered.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idlewood_overlay::{
    Body, Contact, Effect, Event, Message, Node, Notice, Overlay, Payload, PeerId, Report, ReportAck, Verdict,
};
use proptest::prelude::*;
use world::{CODEC, World};

const SECOND: Duration = Duration::from_secs(1);

/// Has much in common with the payload of the round before, and names its origin.
fn payload(peer: PeerId, node: Node, round: u16) -> Vec<u8> {
    let mut bytes = [&peer.0[..], format!("{node:?}").as_bytes()].concat();
    for digit in [round / 100, round / 10 % 10, round % 10] {
        bytes.extend([digit as u8; 40]);
    }
    bytes
}

fn publish(world: &mut World, index: usize, node: Node, round: u16) -> Option<Vec<u8>> {
    let (now, id) = (world.now, world.machines[index].id);
    let mut effects = Vec::new();
    world.machines[index].overlay.as_mut()?.publish(now, node, payload(id, node, round), &mut effects);
    world.carry_out(index, effects);
    Some(payload(id, node, round))
}

fn held(world: &World) -> Vec<(PeerId, Node, Vec<u8>)> {
    let overlays = world.machines.iter().filter_map(|machine| machine.overlay.as_ref());
    let children = overlays.flat_map(|overlay| overlay.children().into_iter().flatten());
    children.map(|child| (child.contact.peer, child.node, child.payload.to_vec())).collect()
}

/// No message goes from a leaf to the router of its own machine, so nothing has to wait.
#[test]
fn a_router_sees_its_own_leafs_payload_at_once() {
    let mut world = World::new(4);
    let first = world.start(None);
    (0..9).for_each(|_| {
        world.start(Some(first));
    });
    world.settle(SECOND * 60).unwrap();
    let mut own = 0;
    for machine in &mut world.machines {
        let overlay = machine.overlay.as_mut().unwrap();
        let mut effects = Vec::new();
        overlay.publish(world.now, Node::Leaf, b"new".to_vec(), &mut effects);
        let children = overlay.children();
        let of_own_leaf: Vec<&[u8]> = children
            .iter()
            .flatten()
            .filter(|child| child.contact.peer == machine.id)
            .map(|child| child.payload)
            .collect();
        let is_told = effects.iter().any(|effect| matches!(effect, Effect::Notify(Notice::ChildrenChanged)));
        assert_eq!(is_told, !of_own_leaf.is_empty());
        assert!(of_own_leaf.iter().all(|payload| *payload == b"new"), "{of_own_leaf:?}");
        own += of_own_leaf.len();
    }
    assert!((1..10).contains(&own), "some leaves stand below their own router: {own}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_parent_holds_what_its_child_published(
        seed in any::<u64>(), loss_permille in 0_u32..600, duplicated_permille in 0_u32..500,
        steps in prop::collection::vec((0_usize..6, any::<bool>(), 0_u64..400, 0_u8..20), 1..150),
    ) {
        let mut world = World::new(seed);
        world.config.report_rate_bytes_per_s = 1 << 30;
        let first = world.start(None);
        (0..5).for_each(|_| { world.start(Some(first)); });
        world.settle(SECOND * 60).map_err(TestCaseError::fail)?;
        (world.loss_permille, world.duplicated_permille) = (loss_permille, duplicated_permille);
        let mut published: BTreeSet<Vec<u8>> = BTreeSet::new();
        for machine in &world.machines {
            published.extend([Node::Leaf, Node::Router].map(|node| world::payload(machine.id, node)));
        }
        for (round, (index, is_router, pause_ms, fate)) in steps.into_iter().enumerate() {
            if fate == 0 {
                world.crash(index);
                world.restart(index, Some((index + 1) % 6));
            }
            let node = if is_router { Node::Router } else { Node::Leaf };
            published.extend(publish(&mut world, index, node, round as u16));
            world.run_for(Duration::from_millis(pause_ms));
            for (peer, node, bytes) in held(&world) {
                let own = bytes.is_empty() || bytes.starts_with(&[&peer.0[..], format!("{node:?}").as_bytes()].concat());
                prop_assert!(own && (bytes.is_empty() || published.contains(&bytes)), "{:?} {:?}", node, bytes);
            }
        }
        // Then nothing is lost any more, and the newest arrive.
        (world.loss_permille, world.duplicated_permille) = (0, 0);
        world.run_for(SECOND * 120);
        let mut newest = BTreeMap::new();
        for index in 0..6 {
            for node in [Node::Leaf, Node::Router] {
                newest.insert((world.machines[index].id, node), publish(&mut world, index, node, 999));
            }
        }
        world.run_for(SECOND * 20);
        let held = held(&world);
        prop_assert_eq!(held.len(), 10);
        for (peer, node, bytes) in held {
            prop_assert_eq!(Some(&Some(bytes)), newest.get(&(peer, node)));
        }
    }
}

/// A parent and the child that is another machine's leaf, spoken to by hand.
fn pair() -> (World, usize, usize) {
    let mut world = World::new(8);
    world.config.report_rate_bytes_per_s = 1 << 30;
    let first = world.start(None);
    world.start(Some(first));
    world.settle(SECOND * 60).unwrap();
    let is_last = |index: usize| !world.machines[index].overlay.as_ref().is_some_and(Overlay::hosts_router);
    let child = (0..2).find(|index| is_last(*index)).unwrap();
    (world, 1 - child, child)
}

/// Publishes; returns the payload as it was sent, and lets everything arrive.
fn report(world: &mut World, child: usize, round: u16) -> Vec<Payload> {
    let (now, id) = (world.now, world.machines[child].id);
    let mut effects = Vec::new();
    let overlay = world.machines[child].overlay.as_mut().unwrap();
    overlay.publish(now, Node::Leaf, payload(id, Node::Leaf, round), &mut effects);
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send { message: Message { body: Body::Report(Report { load, .. }), .. }, .. } => load.clone(),
        _ => None,
    });
    let sent = sent.collect();
    world.carry_out(child, effects);
    world.run_for(SECOND);
    sent
}

#[test]
fn differences_refer_to_the_payload_before_and_every_sixteenth_is_whole() {
    let (mut world, _, child) = pair();
    let mut whole = Vec::new();
    let mut last = Some(1);
    for round in 1..=40 {
        let sent = report(&mut world, child, round);
        assert_eq!(sent.len(), 1);
        match sent[0].base {
            None => whole.push(round),
            Some(base) => {
                assert_eq!(Some(base), last);
                assert!(sent[0].bytes.len() < payload(world.machines[child].id, Node::Leaf, round).len());
            }
        }
        last = Some(sent[0].version);
    }
    // The first payload, before these, was whole.
    assert_eq!(whole, [16, 32]);
}

#[test]
fn a_difference_that_does_not_apply_makes_the_parent_ask_for_the_whole() {
    let (mut world, parent, child) = pair();
    report(&mut world, child, 1);
    let sender = world.machines[child].overlay.as_ref().unwrap().me().clone();
    let before = held(&world);
    let ask = |world: &mut World, sender: &Contact, load: Payload| {
        let report = Report { node: Node::Leaf, version: version(world, child), tree: None, load: Some(load), root: 0 };
        let message = world::message(sender, Body::Report(report));
        let (now, overlay) = (world.now, world.machines[parent].overlay.as_mut().unwrap());
        let mut effects = Vec::new();
        overlay.handle(now, Event::Received { from: sender.peer.into(), message }, &mut effects);
        let counted = overlay.counters().differences_refused;
        let answers = effects.into_iter().filter_map(|effect| match effect {
            Effect::Send { message: Message { body: Body::ReportAck(ack), .. }, .. } => Some(ack.verdict),
            _ => None,
        });
        (answers.collect::<Vec<_>>(), counted)
    };
    // It holds versions 1 (of the start) and 2.
    let broken = Payload::new(9, Some(2), vec![]);
    let (answers, counted) = ask(&mut world, &sender, broken);
    assert!(matches!(answers[..], [Verdict::Linked { load: 0, .. }]), "{answers:?}");
    assert_eq!(counted, 1);
    let other = (CODEC.pack)(Some(b"something else"), b"something").unwrap();
    let (answers, counted) = ask(&mut world, &sender, Payload::new(9, Some(8), other));
    assert!(matches!(answers[..], [Verdict::Linked { load: 0, .. }]), "{answers:?}");
    assert_eq!(counted, 1, "that can be the way's fault");
    assert_eq!(held(&world), before);
    // A difference whose base is not older than itself is malformed.
    let (answers, _) = ask(&mut world, &sender, Payload::new(9, Some(9), vec![0]));
    assert_eq!(answers, []);
}

/// The structure version that the parent knows for this child, found by asking.
fn version(world: &mut World, child: usize) -> u64 {
    let sender = world.machines[child].overlay.as_ref().unwrap().me().clone();
    let (now, parent) = (world.now, world.machines[1 - child].overlay.as_mut().unwrap());
    for version in 0..100 {
        let report = Report { node: Node::Leaf, version, tree: None, load: None, root: 0 };
        let message = world::message(&sender, Body::Report(report));
        let mut effects = Vec::new();
        parent.handle(now, Event::Received { from: sender.peer.into(), message }, &mut effects);
        let linked = effects.iter().any(|effect| {
            let Effect::Send { message: Message { body: Body::ReportAck(ack), .. }, .. } = effect else { return false };
            matches!(ack.verdict, Verdict::Linked { .. })
        });
        if linked {
            return version;
        }
    }
    panic!("the child is linked");
}

/// The payloads among these effects.
fn loads(effects: &[Effect]) -> Vec<(u64, Payload)> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send { message: Message { body: Body::Report(Report { version, load, .. }), .. }, .. } => {
            Some((*version, load.clone()?))
        }
        _ => None,
    });
    sent.collect()
}

/// Differences follow each other without waiting for answers; after a loss the next one does not apply, and the parent
/// asks for the whole.
#[test]
fn a_lost_difference_is_made_good_by_a_whole_payload() {
    let (mut world, _, child) = pair();
    report(&mut world, child, 1);
    let (now, id) = (world.now, world.machines[child].id);
    let mut lost = Vec::new();
    world.machines[child].overlay.as_mut().unwrap().publish(now, Node::Leaf, payload(id, Node::Leaf, 2), &mut lost);
    let sent = report(&mut world, child, 3);
    assert_eq!(sent[0].base, Some(loads(&lost)[0].1.version), "{sent:?}");
    assert!(held(&world).iter().any(|(.., held)| *held == payload(id, Node::Leaf, 3)));
}

/// A payload under way is not sent again because the one before it is answered.
#[test]
fn nothing_is_sent_twice_while_its_answer_is_on_its_way() {
    let (mut world, parent, child) = pair();
    report(&mut world, child, 1);
    let from = world.machines[parent].overlay.as_ref().unwrap().me().clone();
    let (now, id) = (world.now, world.machines[child].id);
    let overlay = world.machines[child].overlay.as_mut().unwrap();
    let mut effects = Vec::new();
    for round in [2, 3] {
        let now = now + Duration::from_millis(60) * u32::from(round - 2);
        overlay.publish(now, Node::Leaf, payload(id, Node::Leaf, round), &mut effects);
    }
    let sent = loads(&effects);
    assert_eq!(sent.len(), 2);
    let (version, load) = (sent[0].0, sent[0].1.version);
    let verdict = Verdict::Linked { load, depth: Some(0) };
    let answer = Body::ReportAck(ReportAck { node: Node::Leaf, version, verdict, root: None, edition: u32::MAX });
    effects.clear();
    let message = world::message(&from, answer);
    overlay.handle(now + Duration::from_millis(100), Event::Received { from: from.peer.into(), message }, &mut effects);
    overlay.handle(now + Duration::from_millis(150), Event::DeadlineReached, &mut effects);
    assert_eq!(loads(&effects), []);
    // The answer to the last one is lost.
    overlay.handle(now + SECOND * 2, Event::DeadlineReached, &mut effects);
    assert!(loads(&effects).iter().any(|(_, load)| load.version == sent[1].1.version && load.base.is_none()));
}
