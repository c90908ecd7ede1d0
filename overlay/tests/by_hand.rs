//! One overlay, with all other peers played by the test.

use std::time::Duration;

use idlewood_overlay::{
    Body, Config, Contact, Effect, Event, GridId, Handover, HandoverChild, Member, Message, Node, Overlay, Payload,
    PayloadCodec, PeerId, PositionKey, Report, Span, State, Subtree, Time,
};

const GRID: GridId = GridId([7; 32]);
const SECOND: Duration = Duration::from_secs(1);

/// A peer and one other, whose place is above.
struct Pair {
    overlay: Overlay,
    other: Member,
    now: Time,
    /// Messages sent and not read yet.
    sent: Vec<(Time, Body)>,
}

fn contact(byte: u8) -> Member {
    Contact { peer: PeerId([byte; 32]), incarnation: 1, address: "".into(), nonce: None }.into()
}

impl Pair {
    fn new() -> Self {
        let mut bytes: Vec<u8> = (1..3).collect();
        bytes.sort_by_key(|byte| PositionKey::new(GRID, contact(*byte).peer));
        let overlay = Overlay::new(Config::default(), GRID, contact(bytes[0]), 1, Time::ZERO, PayloadCodec::WHOLE);
        Self { overlay, other: contact(bytes[1]), now: Time::ZERO, sent: Vec::new() }
    }

    fn feed(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.overlay.handle(self.now, event, &mut effects);
        for effect in effects {
            if let Effect::Send { message, .. } = effect {
                self.sent.push((self.now, message.body));
            }
        }
    }

    fn hear(&mut self, from: &Member, body: Body) {
        let address = Some(from.address.clone());
        let message = Message { grid: GRID.tag(), incarnation: from.incarnation, address, body };
        self.feed(Event::Received { from: from.clone(), message });
    }

    fn meet(&mut self) {
        self.feed(Event::Bootstrap((*self.other).clone()));
    }

    /// Lets time pass; the other answers every question, and sends nothing else.
    fn answer_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            while let Some((_, body)) = self.sent.pop() {
                let near = vec![self.other.clone()];
                let other = self.other.clone();
                match body {
                    Body::Ping { nonce, .. } => {
                        self.hear(&other, Body::Ack { nonce, mine: 9, set: Some(near), ask: 0 })
                    }
                    Body::Find { nonce, .. } => self.hear(&other, Body::Found { nonce, near }),
                    _ => {}
                }
            }
            match self.overlay.deadline().filter(|deadline| *deadline <= end) {
                Some(deadline) => {
                    self.now = deadline;
                    self.feed(Event::DeadlineReached);
                    let next = self.overlay.deadline();
                    assert!(next.is_none_or(|next| next > self.now), "a deadline that was served is not due again");
                }
                None => break,
            }
        }
        self.now = end;
    }

    /// The nonce and the moment of each ping sent up to some time, unanswered.
    fn pings_for(&mut self, duration: Duration) -> Vec<(Time, u32)> {
        let end = self.now + duration;
        while let Some(deadline) = self.overlay.deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline;
            self.feed(Event::DeadlineReached);
        }
        self.now = end;
        let ping = |(at, body)| if let Body::Ping { nonce, .. } = body { Some((at, nonce)) } else { None };
        self.sent.drain(..).filter_map(ping).collect()
    }

    fn neighbours(&self) -> usize {
        self.overlay.neighbours().count()
    }

    /// The report of the other's leaf, which is the right child of our router.
    fn leaf_report(&self) -> Body {
        let me: Member = self.overlay.me().clone().into();
        let span = Span { lo: Some(me), l: self.other.clone(), r: self.other.clone(), ro: None };
        let tree = Some(Box::new(Subtree { span, count: 1, height: 0 }));
        Body::Report(Report { node: Node::Leaf, version: 1, tree, load: None, root: 0 })
    }
}

/// I1. An answer counts only if it repeats the question's nonce: others may be late, or guessed.
#[test]
fn an_answer_with_another_nonce_lets_nobody_in() {
    let mut pair = Pair::new();
    pair.meet();
    let (_, nonce) = pair.pings_for(Duration::from_millis(100))[0];
    let other = pair.other.clone();
    for wrong in [nonce ^ 1, 0, nonce.wrapping_add(1)] {
        pair.hear(&other, Body::Ack { nonce: wrong, mine: 9, set: None, ask: 0 });
        assert_eq!(pair.neighbours(), 0);
    }
    pair.hear(&other, Body::Ack { nonce, mine: 9, set: None, ask: 0 });
    assert_eq!(pair.neighbours(), 1);
}

/// The child's machine lives and answers, but the child no longer reports: it has another parent by now.
#[test]
fn a_child_that_reports_nothing_for_its_lease_is_unlinked() {
    let mut pair = Pair::new();
    pair.meet();
    pair.answer_for(SECOND * 5);
    assert_eq!(pair.overlay.state(), State::Member);
    let (other, report) = (pair.other.clone(), pair.leaf_report());
    pair.hear(&other, report);
    let is_linked =
        |pair: &Pair| pair.overlay.children()[1].as_ref().is_some_and(|child| *child.contact == *pair.other);
    assert!(is_linked(&pair));
    pair.answer_for(SECOND * 14);
    assert!(is_linked(&pair));
    pair.answer_for(SECOND * 2);
    assert!(!is_linked(&pair), "three heartbeats have passed");
    assert_eq!(pair.neighbours(), 1);
}

/// A handover is a guess; a child that has reported is none.
#[test]
fn a_handover_replaces_no_child() {
    let mut pair = Pair::new();
    pair.meet();
    pair.answer_for(SECOND * 5);
    let me: Member = pair.overlay.me().clone().into();
    let (other, stranger) = (pair.other.clone(), contact(99));
    let child = |tree| HandoverChild {
        contact: stranger.clone(),
        node: Node::Leaf,
        version: 1 << 40,
        tree,
        load: Payload::new(1 << 40, None, b"forged".to_vec()),
    };
    let leaf =
        Subtree { span: Span { lo: None, l: me.clone(), r: me.clone(), ro: Some(other.clone()) }, count: 1, height: 0 };
    pair.hear(&other, Body::Handover(Handover { children: vec![child(leaf)] }));
    let [left, right] = pair.overlay.children();
    assert_eq!(left.map(|child| child.contact.clone()), Some((*me).clone()), "our own leaf");
    assert!(right.is_none(), "nothing was said of it");
    assert_eq!(pair.overlay.counters().children_handed, 0);
}

/// Lifeguard: a peer that does its own work late waits longer for others, since the delay may be its own.
#[test]
fn a_slow_peer_gives_others_more_time() {
    let between_tries = |times_late: u32| {
        let mut pair = Pair::new();
        pair.meet();
        pair.answer_for(SECOND * 10);
        for _ in 0..times_late {
            let deadline = pair.overlay.deadline().unwrap();
            pair.now = deadline + Duration::from_millis(500);
            pair.feed(Event::DeadlineReached);
        }
        pair.sent.clear();
        // A stranger, so that no round trip is known.
        pair.feed(Event::Bootstrap((*contact(50)).clone()));
        let nonce = pair
            .sent
            .iter()
            .find_map(|(_, body)| if let Body::Ping { nonce, .. } = body { Some(*nonce) } else { None });
        let pings = pair.pings_for(SECOND * 8);
        // The pings of one probe have numbers in a row.
        let is_own = |other: &u32| nonce.is_some_and(|nonce| other.wrapping_sub(nonce) < 3);
        let own: Vec<Time> = pings.iter().filter(|(_, other)| is_own(other)).map(|(at, _)| *at).collect();
        own[1].since(own[0])
    };
    let (healthy, slow) = (between_tries(0), between_tries(4));
    assert!(slow >= healthy * 2, "{slow:?} after being late, {healthy:?} before");
}

/// Three peers that sent us one message, and may be gone, are nearer to the place than the one that answers us.
#[test]
fn an_answer_names_a_peer_known_to_answer_though_others_are_nearer() {
    let mut pair = Pair::new();
    pair.meet();
    pair.answer_for(SECOND * 5);
    assert_eq!(pair.neighbours(), 1);
    let key = |contact: &Member| PositionKey::new(GRID, contact.peer);
    let mut strangers: Vec<Member> = (3..60).map(contact).filter(|stranger| key(stranger) > key(&pair.other)).collect();
    strangers.sort_by_key(key);
    let [.., first, second, third, asker] = &strangers[..] else { panic!("{strangers:?}") };
    for stranger in [first, second, third] {
        pair.hear(stranger, Body::Find { nonce: 1, key: key(stranger) });
    }
    pair.sent.clear();
    pair.hear(asker, Body::Find { nonce: 7, key: key(asker) });
    let found = pair.sent.iter().find_map(|(_, body)| match body {
        Body::Found { nonce: 7, near } => Some(near.clone()),
        _ => None,
    });
    assert_eq!(found, Some(vec![third.clone(), pair.other.clone()]));
}
