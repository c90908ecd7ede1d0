//! What a peer does not believe: links that lead astray, rumours, outdated messages.

mod world;

use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{
    Body, Contact, Event, Handover, HandoverChild, Leave, Member, Message, Node, Overlay, Payload, PeerId, PositionKey,
    Report, ReportAck, RootInfo, Side, Span, Subtree, Verdict,
};
use world::{GRID, World, in_order};

const SECOND: Duration = Duration::from_secs(1);

fn started(seed: u64, len: usize) -> World {
    let mut world = World::new(seed);
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

fn tell(world: &mut World, index: usize, sender: &Contact, body: Body) {
    let message = world::message(sender, body);
    world.feed(index, Event::Received { from: sender.peer.into(), message });
}

/// I4. The child agrees with the router on the gap between them, but its prefix is too short: such links, each of them
/// accepted, could form a cycle.
#[test]
fn a_child_whose_prefix_is_not_longer_than_the_routers_is_refused() {
    let mut world = started(160, 30);
    let line = in_order(&world);
    let keys: Vec<PositionKey> = line.iter().map(|index| PositionKey::new(GRID, world.machines[*index].id)).collect();
    let mut refused = 0;
    for place in 1..29 {
        if keys[0].common_prefix(&keys[place]) > keys[place].common_prefix(&keys[place + 1]) {
            continue;
        }
        let index = line[place];
        let sender = me(&world, line[0]);
        let span = Span { lo: None, l: sender.clone(), r: me(&world, index), ro: Some(me(&world, line[place + 1])) };
        let tree = Some(Box::new(Subtree { span, count: place as u64 + 1, height: 9 }));
        let report = Report { node: Node::Router, version: 1 << 40, tree, load: None, root: 0 };
        let before = overlay(&world, index).counters().links_refused;
        tell(&mut world, index, &sender, Body::Report(report));
        assert_eq!(overlay(&world, index).counters().links_refused, before + 1, "place {place}");
        refused += 1;
    }
    assert!(refused > 5);
    assert_eq!(world.settle(Duration::ZERO), Ok(Duration::ZERO));
}

/// A neighbour is buried on the word of others only after it missed an answer of ours.
#[test]
fn hearsay_alone_buries_no_neighbour() {
    let mut world = started(161, 30);
    let line = in_order(&world);
    for place in 0..8 {
        let (index, victim) = (line[place], me(&world, line[place + 3]));
        let liar = me(&world, line[place + 20]);
        tell(&mut world, index, &liar, Body::Dead(victim.clone()));
        let stays = overlay(&world, index).neighbours().any(|neighbour| neighbour.peer == victim.peer);
        assert!(stays, "place {place}, on the word of somebody far away");
    }
    for place in 2..28 {
        let (index, victim) = (line[place], me(&world, line[place + 1]));
        for liar in [line[place - 1], line[place - 2]] {
            let liar = me(&world, liar);
            (0..3).for_each(|_| tell(&mut world, index, &liar, Body::Dead(victim.clone())));
            assert_eq!(overlay(&world, index).successor(), Some(&*victim), "place {place}");
        }
    }
    world.run_for(SECOND * 10);
    assert_eq!(world.settle(Duration::ZERO), Ok(Duration::ZERO), "nobody had to rise for it");
    assert!(world.alive().iter().all(|index| overlay(&world, *index).counters().risen == 0));
}

/// A parent that has just found its own place announces that while its answer to a report, written before, is still
/// under way. The answer comes last, and is out of date.
#[test]
fn an_outdated_answer_of_a_parent_is_ignored() {
    let mut world = started(143, 20);
    // The last peer on the line has no router, and so hears of the root through its leaf's parent.
    let child = in_order(&world)[19];
    let parent = overlay(&world, child).parent(Node::Leaf).unwrap().clone();
    world.recorded = Some(Vec::new());
    world.run_for(SECOND * 12);
    let recorded = world.recorded.take().unwrap();
    let answer = |(_, to, message): &(usize, PeerId, Message)| match &message.body {
        Body::ReportAck(ack) if *to == world.machines[child].id && ack.node == Node::Leaf => Some(ack.clone()),
        _ => None,
    };
    let ack = recorded.iter().rev().find_map(answer).unwrap();
    let root = |stamp| Some(Arc::new(RootInfo { stamp, ..overlay(&world, child).root().unwrap().clone() }));
    let (older, newer, honest) = (root(u64::MAX / 2), root(u64::MAX / 4), root(57));
    let tell = |world: &mut World, body| {
        tell(world, child, &parent, body);
        overlay(world, child).depth(Node::Leaf)
    };
    let edition = ack.edition;
    let depth = overlay(&world, child).depth(Node::Leaf);
    let verdict = |depth| Verdict::Linked { load: 1, depth };
    let late =
        |depth, edition, root| Body::ReportAck(ReportAck { verdict: verdict(depth), edition, root, ..ack.clone() });
    let news = Body::RootChanged { node: Node::Leaf, root: newer, depth: Some(30), edition: edition + 2 };
    assert_eq!(tell(&mut world, news), Some(31));
    assert_eq!(tell(&mut world, late(None, edition, older.clone())), Some(31), "an answer that was overtaken");
    assert_eq!(tell(&mut world, late(Some(3), edition + 1, older)), Some(31));
    assert_eq!(overlay(&world, child).root().map(|root| root.stamp), Some(u64::MAX / 4));
    assert_eq!(tell(&mut world, late(depth.map(|depth| depth - 1), edition + 3, honest)), depth);
    let stamp = overlay(&world, child).root().map(|root| root.stamp);
    assert_eq!(stamp, Some(57), "a forged stamp is believed until the next news, not for as long as the root lives");
}

/// The true child, by its span, is linked; a machine outside that span sends the same report with a higher version.
#[test]
fn a_router_outside_the_span_that_it_claims_takes_no_slot() {
    let mut world = started(162, 40);
    let line = in_order(&world);
    let mut tried = 0;
    for &index in &line {
        for side in [Side::Left, Side::Right] {
            let Some(child) = overlay(&world, index).children()[side as usize].map(|child| child.contact.clone())
            else {
                continue;
            };
            let span = overlay(&world, index).child_span(side).unwrap().clone();
            if span.l.peer == span.r.peer {
                continue;
            }
            let inside = |peer: PeerId| {
                let key = PositionKey::new(GRID, peer);
                PositionKey::new(GRID, span.l.peer) <= key && key < PositionKey::new(GRID, span.r.peer)
            };
            let liar = *line.iter().find(|other| **other != index && !inside(world.machines[**other].id)).unwrap();
            let liar = me(&world, liar);
            let tree = Some(Box::new(Subtree { span, count: 1, height: 1 }));
            let report = Report { node: Node::Router, version: 1 << 40, tree, load: None, root: 0 };
            let before = overlay(&world, index).counters().malformed;
            tell(&mut world, index, &liar, Body::Report(report));
            assert_eq!(overlay(&world, index).counters().malformed, before + 1);
            let now = overlay(&world, index).children()[side as usize].map(|child| child.contact.peer);
            assert_eq!(now, Some(child.peer), "the true child stays");
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

/// Each claim is within the bounds, their sum is not; a parent that reported the sum would be refused.
#[test]
fn a_child_that_claims_the_maximum_does_not_silence_its_parent() {
    let mut world = started(163, 40);
    let remote_router = |index: &usize| {
        let overlay = overlay(&world, *index);
        let child = overlay.children()[1]?;
        let far = child.node == Node::Router && child.contact.peer != world.machines[*index].id;
        let reports = overlay.parent(Node::Router).is_some_and(|parent| parent.peer != world.machines[*index].id);
        (far && reports).then(|| (*index, child.contact.clone(), overlay.child_span(Side::Right).unwrap().clone()))
    };
    let (index, child, span) = in_order(&world).iter().find_map(remote_router).unwrap();
    let tree = Some(Box::new(Subtree { span, count: 1 << 40, height: 256 }));
    let report = Report { node: Node::Router, version: 1 << 40, tree, load: None, root: 0 };
    world.recorded = Some(Vec::new());
    tell(&mut world, index, &child, Body::Report(report));
    world.run_for(SECOND);
    let reported = world.recorded.take().unwrap().into_iter().filter_map(|(from, _, message)| match message.body {
        Body::Report(Report { node: Node::Router, tree: Some(tree), .. }) if from == index => Some(tree),
        _ => None,
    });
    let reported: Vec<_> = reported.collect();
    assert!(reported.iter().any(|tree| tree.height == 256), "it passes the claim on: {reported:?}");
    assert!(reported.iter().all(|tree| tree.count <= 1 << 40 && tree.height <= 256), "{reported:?}");
    // The claim itself is passed on; whoever uses it compares it with the distance between neighbours.
    world.run_for(SECOND * 2);
    let told = in_order(&world).into_iter().map(|index| overlay(&world, index));
    let deceived: Vec<_> = told.filter(|overlay| overlay.root().is_some_and(|root| root.count > 1 << 30)).collect();
    assert!(deceived.len() > 20, "{} believe it", deceived.len());
    assert!(deceived.iter().all(|overlay| (40..100_000).contains(&overlay.likely_count())));
}

#[test]
fn the_likely_count_is_exact_among_honest_peers() {
    for machines in [1, 2, 3, 7, 40] {
        let world = started(164, machines);
        assert!((0..machines).all(|index| overlay(&world, index).likely_count() == machines as u64), "{machines}");
    }
}

/// It asks for the whole report with each answer; reports keep their distance.
#[test]
fn a_parent_that_never_knows_us_is_not_flooded() {
    let mut world = started(164, 20);
    let child = in_order(&world)[19];
    let parent = overlay(&world, child).parent(Node::Leaf).unwrap().clone();
    world.recorded = Some(Vec::new());
    world.run_for(SECOND * 12);
    let version = |(_, to, message): &(usize, PeerId, Message)| match &message.body {
        Body::ReportAck(ack) if *to == world.machines[child].id && ack.node == Node::Leaf => Some(ack.version),
        _ => None,
    };
    let version = world.recorded.replace(Vec::new()).unwrap().iter().rev().find_map(version).unwrap();
    for _ in 0..100 {
        let ack = ReportAck { node: Node::Leaf, version, verdict: Verdict::Unknown, root: None, edition: 0 };
        tell(&mut world, child, &parent, Body::ReportAck(ack));
        world.run_for(Duration::from_millis(5));
    }
    let is_report = |(from, _, message): &(usize, PeerId, Message)| {
        *from == child && matches!(&message.body, Body::Report(report) if report.node == Node::Leaf)
    };
    let sent = world.recorded.take().unwrap().iter().filter(|sent| is_report(sent)).count();
    assert!((5..=11).contains(&sent), "{sent} in half a second, 50 ms apart");
    world.run_for(SECOND * 10);
    assert_eq!(world.settle(Duration::ZERO), Ok(Duration::ZERO));
}

/// A neighbour hands a returning machine a forged child, with an incarnation above the child's own, before that child
/// reports.
#[test]
fn a_forged_handover_keeps_no_true_child_away() {
    let mut handed = 0;
    for seed in 0..4 {
        let mut world = started(170 + seed, 20);
        let line = in_order(&world);
        for place in 3..18 {
            let (router, liar) = (line[place], line[place - 2]);
            let Some(child) = overlay(&world, router).children()[1].map(|child| child.contact.clone()) else {
                continue;
            };
            if [line[place + 1], liar].iter().any(|index| world.machines[*index].id == child.peer) {
                continue;
            }
            let span = overlay(&world, router).child_span(Side::Right).unwrap().clone();
            world.crash(router);
            world.settle(SECOND * 10).unwrap();
            world.restart(router, Some(liar));
            let forged = HandoverChild {
                contact: Contact { incarnation: u64::MAX, ..child }.into(),
                node: Node::Router,
                version: 1,
                tree: Subtree { span: Span { lo: Some(me(&world, router)), ..span }, count: 1_000, height: 1 },
                load: Payload::default(),
            };
            for _ in 0..200 {
                let liar = me(&world, liar);
                tell(&mut world, router, &liar, Body::Handover(Handover { children: vec![forged.clone()] }));
                world.run_for(Duration::from_millis(10));
            }
            handed += overlay(&world, router).counters().children_handed;
            let took = world.settle(SECOND * 5);
            assert!(took.is_ok(), "seed {seed}, place {place}: {took:?}");
        }
    }
    println!("{handed} children were handed over");
    assert!(handed > 3);
}

/// A farewell of an earlier incarnation may come late: a parent or child far away on the line stays linked.
#[test]
fn a_late_farewell_of_an_earlier_incarnation_is_ignored() {
    let mut world = started(180, 60);
    let mut tried = 0;
    for index in world.alive() {
        let near: Vec<PeerId> = overlay(&world, index).neighbours().map(|contact| contact.peer).collect();
        let children = overlay(&world, index).children().map(|child| child.map(|child| child.contact.clone()));
        let Some(child) = children
            .into_iter()
            .flatten()
            .find(|child| child.peer != world.machines[index].id && !near.contains(&child.peer))
        else {
            continue;
        };
        let before = overlay(&world, index).counters().stale_life;
        let earlier = Contact { incarnation: child.incarnation - 1, ..child };
        tell(&mut world, index, &earlier, Body::Leave(Leave { near: Vec::new(), ends: [false; 2] }));
        assert_eq!(overlay(&world, index).counters().stale_life, before + 1);
        tried += 1;
    }
    assert!(tried > 0);
    assert_eq!(world.settle(Duration::ZERO), Ok(Duration::ZERO));
}

/// A neighbour that is also the parent announces a new address: reports go there from then on.
#[test]
fn the_new_address_of_a_parent_is_taken_over_at_once() {
    let mut world = started(181, 20);
    let mut tried = 0;
    for index in world.alive() {
        let Some(parent) = overlay(&world, index).parent(Node::Leaf).cloned() else { continue };
        if parent.peer == world.machines[index].id {
            continue;
        }
        let moved = Contact { address: "elsewhere".into(), ..parent };
        tell(&mut world, index, &moved, Body::Suspect(PeerId([3; 32]).into()));
        assert_eq!(&*overlay(&world, index).parent(Node::Leaf).unwrap().address, "elsewhere");
        tried += 1;
    }
    assert!(tried > 5);
}
