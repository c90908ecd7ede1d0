//! What a peer refuses, and how it refutes false claims about itself.

mod world;

use std::sync::Arc;
use std::time::Duration;

use idlewood_overlay::{
    Body, Config, Contact, Effect, Event, GridId, Handover, HandoverChild, Leave, Member, Message, Node, Overlay,
    PAYLOAD_BYTES_MAX, Payload, PayloadCodec, PeerId, PositionKey, Report, ReportAck, RootInfo, Span, State, Subtree,
    Time, Verdict,
};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};
use world::{GRID, World};

const SECOND: Duration = Duration::from_secs(1);

fn contact(byte: u8, incarnation: u64) -> Contact {
    Contact { peer: PeerId([byte; 32]), incarnation, address: "".into(), nonce: None }
}

fn alone() -> Overlay {
    Overlay::new(Config::default(), GRID, contact(1, 5), 1, Time::ZERO, PayloadCodec::WHOLE)
}

fn told(overlay: &mut Overlay, from: u8, message: Message) -> usize {
    let mut effects = Vec::new();
    overlay.handle(Time::ZERO, Event::Received { from: PeerId([from; 32]).into(), message }, &mut effects);
    effects.len()
}

#[test]
fn strangers_forgers_and_oversized_messages_are_counted_and_ignored() {
    let mut overlay = alone();
    let body = Body::Ping { nonce: 1, mine: 2, seen: 0 };
    let foreign = Message { grid: GridId([8; 32]).tag(), ..world::message(&contact(2, 1), body.clone()) };
    assert_eq!(told(&mut overlay, 2, foreign), 0);
    let forged = world::message(&contact(1, 1), body.clone());
    assert_eq!(told(&mut overlay, 1, forged), 0);
    let flood = world::message(&contact(2, 1), Body::Hint(vec![contact(4, 1).into(); 65]));
    assert_eq!(told(&mut overlay, 2, flood), 0);
    let long = Contact { address: "x".repeat(257).into(), ..contact(2, 1) };
    assert_eq!(told(&mut overlay, 2, world::message(&long, Body::Hint(Vec::new()))), 0);
    let terse = Message { address: None, ..world::message(&contact(2, 1), body) };
    assert_eq!(told(&mut overlay, 2, terse), 0);
    assert_eq!(overlay.counters().unknown_sender, 1);
    let counters = overlay.counters();
    assert_eq!((counters.foreign_grid, counters.forged_sender, counters.oversized), (1, 1, 2));
    assert_eq!(overlay.state(), State::Alone);
}

#[test]
fn payloads_over_the_cap_are_not_published() {
    let (mut overlay, mut effects) = (alone(), Vec::new());
    overlay.publish(Time::ZERO, Node::Leaf, vec![0; PAYLOAD_BYTES_MAX + 1], &mut effects);
    overlay.publish_root(Time::ZERO, vec![0; PAYLOAD_BYTES_MAX + 1], &mut effects);
    assert_eq!(overlay.counters().oversized_own, 2);
    overlay.publish_root(Time::ZERO, b"news".to_vec(), &mut effects);
    assert_eq!(overlay.root().map(|root| &root.payload[..]), Some(&b"news"[..]));
}

#[test]
fn a_peer_reported_dead_begins_a_newer_incarnation() {
    let mut overlay = alone();
    let dead = world::message(&contact(2, 1), Body::Dead(contact(1, 5).into()));
    told(&mut overlay, 2, dead.clone());
    assert_eq!(overlay.me().incarnation, 6);
    told(&mut overlay, 2, dead);
    assert_eq!(overlay.me().incarnation, 6, "the rumour of an earlier life is no news");
    assert_eq!(overlay.counters().risen, 1, "it is counted");
}

#[test]
fn a_machine_whose_clock_went_back_finds_its_way_in() {
    let mut world = World::new(21);
    let first = world.start(None);
    (1..10).for_each(|_| _ = world.start(Some(first)));
    world.settle(SECOND * 30).unwrap();
    for persisted in [8, 0] {
        world.crash(4);
        world.machines[4].incarnation = persisted;
        world.restart(4, Some(first));
        world.settle(SECOND * 30).unwrap();
    }
    assert_eq!(world.machines[4].overlay.as_ref().unwrap().me().incarnation, 10);
}

#[test]
fn a_crashed_peer_does_not_come_back_by_hearsay() {
    let mut world = World::new(22);
    let first = world.start(None);
    (1..12).for_each(|_| _ = world.start(Some(first)));
    world.settle(SECOND * 30).unwrap();
    let victim = world.machines[5].overlay.as_ref().unwrap().me().clone();
    world.crash(5);
    world.settle(SECOND * 20).unwrap();
    for round in 0..50 {
        let liar = world.machines[1].id;
        let sender = world.machines[1].overlay.as_ref().unwrap().me().clone();
        let message = world::message(&sender, Body::Hint(vec![victim.clone().into()]));
        for index in [0, 2, 3, 4] {
            world.feed(index, Event::Received { from: liar.into(), message: message.clone() });
        }
        world.run_for(Duration::from_millis(100 * (round % 30)));
        assert_eq!(world.settle(Duration::ZERO), Ok(Duration::ZERO));
    }
}

#[test]
fn a_live_peer_that_was_buried_by_mistake_is_taken_back() {
    let mut world = World::new(23);
    let first = world.start(None);
    (1..12).for_each(|_| _ = world.start(Some(first)));
    world.settle(SECOND * 30).unwrap();
    world.machines[7].side = 1;
    world.run_for(SECOND * 9);
    world.machines[7].side = 0;
    println!("taken back after {:?}", world.settle(SECOND * 60).unwrap());
}

fn any_contact() -> impl Strategy<Value = Member> {
    // Few peers and lives, so that messages often concern known peers.
    (0..20_u8, 0..8_u64).prop_map(|(byte, incarnation)| contact(byte, incarnation).into())
}

fn any_root() -> impl Strategy<Value = RootInfo> {
    (any_contact(), 0..4_u64, any::<u64>(), any::<u32>()).prop_map(|(contact, stamp, count, height)| RootInfo {
        contact,
        stamp,
        count,
        height,
        payload: vec![1],
    })
}

fn any_subtree() -> impl Strategy<Value = Subtree> {
    let span = (prop::option::of(any_contact()), any_contact(), any_contact(), prop::option::of(any_contact()));
    let counts = prop_oneof![Just((1, 0)), (0..9_u64, 0..9_u32), any::<(u64, u32)>()];
    (span, counts).prop_map(|((lo, l, r, ro), (count, height))| Subtree { span: Span { lo, l, r, ro }, count, height })
}

fn any_handed() -> impl Strategy<Value = HandoverChild> {
    let node = prop_oneof![Just(Node::Leaf), Just(Node::Router)];
    let load = (0..3_u64).prop_map(|version| Payload::new(version, None, vec![7]));
    (any_contact(), node, 0..4_u64, any_subtree(), load)
        .prop_map(|(contact, node, version, tree, load)| HandoverChild { contact, node, version, tree, load })
}

fn any_report() -> impl Strategy<Value = Report> {
    let load = (0..3_u64).prop_map(|version| Payload::new(version, None, vec![7]));
    let node = prop_oneof![Just(Node::Leaf), Just(Node::Router)];
    (node, 0..4_u64, prop::option::of(any_subtree()), prop::option::of(load), any::<u32>())
        .prop_map(|(node, version, tree, load, root)| Report { node, version, tree: tree.map(Box::new), load, root })
}

fn any_report_ack() -> impl Strategy<Value = ReportAck> {
    let linked = (any::<u64>(), any::<Option<u32>>()).prop_map(|(load, depth)| Verdict::Linked { load, depth });
    let refused = (prop::option::of(any_contact()), prop::option::of(any_contact()));
    let refused = refused.prop_map(|(pred, succ)| Verdict::Refused { pred, succ });
    let node = prop_oneof![Just(Node::Leaf), Just(Node::Router)];
    let verdict = prop_oneof![linked, refused, Just(Verdict::Unknown)];
    (node, 0..6_u64, verdict, prop::option::of(any_root()), any::<u32>()).prop_map(
        |(node, version, verdict, root, edition)| ReportAck {
            node,
            version,
            verdict,
            root: root.map(Arc::new),
            edition,
        },
    )
}

fn any_body() -> impl Strategy<Value = Body> {
    let contacts = || prop::collection::vec(any_contact(), 0..20);
    let depth = any::<Option<u32>>();
    let talk = prop_oneof![
        any::<(u32, u32, u32)>().prop_map(|(nonce, mine, seen)| Body::Ping { nonce, mine, seen }),
        (any::<[u32; 3]>(), prop::option::of(contacts())).prop_map(|([nonce, mine, ask], set)| Body::Ack {
            nonce,
            mine,
            set,
            ask
        }),
        (any::<u32>(), any::<[u8; 32]>()).prop_map(|(nonce, key)| Body::Find { nonce, key: PositionKey(key) }),
        (any::<u32>(), contacts()).prop_map(|(nonce, near)| Body::Found { nonce, near }),
        (prop::option::of(any_root()), depth, any::<u32>()).prop_map(|(root, depth, edition)| Body::RootChanged {
            node: Node::Router,
            root: root.map(Arc::new),
            depth,
            edition
        }),
    ];
    let rumours = prop_oneof![
        any_contact().prop_map(Body::Dead),
        any_contact().prop_map(Body::Suspect),
        contacts().prop_map(Body::Hint),
        (contacts(), any::<[bool; 2]>()).prop_map(|(near, ends)| Body::Leave(Leave { near, ends })),
        prop::collection::vec(any_handed(), 0..3).prop_map(|children| Body::Handover(Handover { children })),
    ];
    prop_oneof![talk, rumours, any_report().prop_map(Body::Report), any_report_ack().prop_map(Body::ReportAck)]
}

/// Failures join `*.regressions` beside this file.
fn persisted() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: persisted(), ..ProptestConfig::default() })]

    /// Strangers send arbitrary messages, also about members: no peer panics, and soon the tree is right again.
    #[test]
    fn nonsense_does_no_lasting_harm(
        talk in prop::collection::vec((4..20_u8, 0..8_u64, any_body(), 0..2_000_u64), 0..60),
    ) {
        let mut world = World::new(31);
        (0..4_u8).for_each(|byte| _ = world.start_as(PeerId([byte; 32]), (byte > 0).then_some(0)));
        world.run_for(SECOND * 3);
        for (place, (byte, incarnation, body, pause_ms)) in talk.into_iter().enumerate() {
            let sender = contact(byte, incarnation);
            let message = world::message(&sender, body);
            world.feed(place % 4, Event::Received { from: sender.peer.into(), message });
            world.run_for(Duration::from_millis(pause_ms));
        }
        world.settle(SECOND * 90).map_err(TestCaseError::fail)?;
    }
}

/// A nonce decides a peer's place: one by hearsay makes us ask, the one of its own certificate counts.
#[test]
fn hearsay_does_not_decide_a_peers_place() {
    let certified = |byte: u8, nonce: u8| Contact { nonce: Some(Box::new([nonce; 16])), ..contact(byte, 1) };
    let me = certified(1, 1);
    let mut overlay = Overlay::new(Config::default(), GRID, me.clone(), 1, Time::ZERO, PayloadCodec::WHOLE);
    assert_eq!(overlay.me().key(GRID), me.key(GRID));
    assert_ne!(me.key(GRID), PositionKey::new(GRID, me.peer), "the nonce counts");
    let answer = |overlay: &mut Overlay, as_who: &Contact, effects: Vec<Effect>| {
        let asked = effects.into_iter().find_map(|effect| match effect {
            Effect::Send { to, message: Message { body: Body::Ping { nonce, .. }, .. } } if to.peer == as_who.peer => {
                Some(nonce)
            }
            _ => None,
        });
        let body = Body::Ack { nonce: asked.expect("it is asked"), mine: 0, set: None, ask: 0 };
        let mut effects = Vec::new();
        let from = Member::from(Contact { incarnation: 0, ..as_who.clone() });
        // A message without an address leaves the known contact as it is.
        let message = Message { address: None, ..world::message(as_who, body) };
        overlay.handle(Time::ZERO, Event::Received { from, message }, &mut effects);
        effects
    };
    let mut effects = Vec::new();
    // Only the id of the first contact is known.
    overlay.handle(Time::ZERO, Event::Bootstrap(contact(2, 0)), &mut effects);
    let friend = certified(2, 2);
    answer(&mut overlay, &friend, effects);
    let (truth, lie) = (certified(3, 3), certified(3, 99));
    let mut effects = Vec::new();
    let hint = world::message(&friend, Body::Hint(vec![lie.clone().into()]));
    overlay.handle(Time::ZERO, Event::Received { from: friend.clone().into(), message: hint }, &mut effects);
    answer(&mut overlay, &truth, effects);
    let mut expected = [friend.key(GRID), truth.key(GRID)];
    let mut stand: Vec<PositionKey> = overlay.neighbours().map(|neighbour| neighbour.key(GRID)).collect();
    stand.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stand, expected);
}

/// Another peer names a peer with a nonce by which it seems nearer than with its own: its answer still counts, and the
/// look-up continues with the peers that it names.
#[test]
fn an_answer_counts_wherever_others_place_its_sender() {
    let named = |byte: u8, nonce: u8| Contact { nonce: Some(Box::new([nonce; 16])), ..contact(byte, 1) };
    let me = named(1, 1);
    let place = |contact: &Contact| u64::from_be_bytes(contact.key(GRID).0[..8].try_into().expect("eight bytes"));
    // All above us, from afar to near: its own place, the peer that it names, the place that others claim for it.
    let above = |contact: &Contact| place(contact).checked_sub(place(&me));
    let mut places: Vec<Contact> = (0..=255).map(|nonce| named(3, nonce)).filter(|it| above(it).is_some()).collect();
    places.sort_by_key(above);
    let (lie, truth) = (places.first().expect("half of them"), places.last().expect("half of them"));
    let between = |it: &Contact| above(lie) < above(it) && above(it) < above(truth);
    let next = (0..=255).map(|nonce| named(4, nonce)).find(between).expect("some are");

    let mut overlay = Overlay::new(Config::default(), GRID, me.clone(), 1, Time::ZERO, PayloadCodec::WHOLE);
    let tell = |overlay: &mut Overlay, from: &Contact, body: Body| {
        let mut effects = Vec::new();
        let event = Event::Received { from: from.clone().into(), message: world::message(from, body) };
        overlay.handle(Time::ZERO, event, &mut effects);
        effects
    };
    let asked = |effects: &[Effect], who: &Contact| {
        effects.iter().find_map(|effect| match effect {
            Effect::Send { to, message: Message { body: Body::Find { nonce, .. }, .. } } if to.peer == who.peer => {
                Some(*nonce)
            }
            _ => None,
        })
    };
    let (mut effects, friend) = (Vec::new(), named(2, 2));
    overlay.handle(Time::ZERO, Event::Bootstrap(friend.clone()), &mut effects);
    let ping = effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message { body: Body::Ping { nonce, .. }, .. }, .. } => Some(*nonce),
        _ => None,
    });
    effects.extend(tell(
        &mut overlay,
        &friend,
        Body::Ack { nonce: ping.expect("it is asked"), mine: 0, set: None, ask: 0 },
    ));
    let nonce = asked(&effects, &friend).expect("the way in is looked up");
    let near = vec![lie.clone().into(), truth.clone().into()];
    let effects = tell(&mut overlay, &friend, Body::Found { nonce, near });
    let nonce = asked(&effects, lie).expect("it is asked, whoever it is");
    let effects = tell(&mut overlay, truth, Body::Found { nonce, near: vec![next.clone().into()] });
    assert!(asked(&effects, &next).is_some(), "{effects:?}");
}
