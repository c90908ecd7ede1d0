//! What a peer does not believe: links that lead astray, rumours, old news.

mod world;

use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{
    Body, Contact, Event, Member, Message, Node, Overlay, PeerId, PositionKey, Report, ReportAck, RootInfo, Span,
    Subtree, Verdict,
};
use world::{GRID, World, in_line};

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

/// I4. The child agrees with the router on the gap between them, but spans more than the router may: such links, all of
/// them accepted, could lead round in a circle.
#[test]
fn a_child_whose_prefix_is_not_longer_than_the_routers_is_refused() {
    let mut world = started(160, 30);
    let line = in_line(&world);
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

/// Who stands next to somebody buries it on the word of others only once it missed an answer itself.
#[test]
fn a_mere_word_buries_no_neighbour() {
    let mut world = started(161, 30);
    let line = in_line(&world);
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

/// A parent that has just found its own place says so while its answer to a report, written before, is still under
/// way. The answer comes last, and is old.
#[test]
fn what_a_parent_said_earlier_and_comes_later_is_passed_over() {
    let mut world = started(143, 20);
    // The last on the line has no router, and so hears of the root through its leaf's parent.
    let child = in_line(&world)[19];
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
    let (older, newer) = (root(u64::MAX / 2), root(u64::MAX / 4));
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
    assert_eq!(tell(&mut world, late(depth.map(|depth| depth - 1), edition + 3, None)), depth);
}
