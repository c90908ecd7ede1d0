//! A router drops requests: their tasks go around the tree, and the router is named and left out.

use super::*;

/// The two machines of a grid: first the one whose requests go through the router of the other.
fn below_a_router() -> [Host; 2] {
    let [host, other] = pair();
    assert_ne!(host.peer.overlay_view().hosts_router(), other.peer.overlay_view().hosts_router());
    if other.peer.overlay_view().hosts_router() { [host, other] } else { [other, host] }
}

/// Passes messages between the two for `seconds`; the router of `dropper` drops requests.
fn talk_past_a_dropper(host: &mut Host, dropper: &mut Host, seconds: u32) {
    let number = |one: &Host| one.peer.me().peer.0[0];
    for _ in 0..seconds * 10 {
        for one in [&mut *host, &mut *dropper] {
            one.pass(Duration::from_millis(100));
        }
        let [up, down] = [&mut *host, &mut *dropper].map(|one| std::mem::take(&mut one.sent));
        let is_dropped = |message: &Message| matches!(message, Message::Request { node: Node::Router, .. });
        let from = number(host);
        up.into_iter()
            .filter(|(_, message)| !is_dropped(message))
            .for_each(|(_, message)| dropper.receive(from, message));
        let from = number(dropper);
        down.into_iter().for_each(|(_, message)| host.receive(from, message));
    }
}

#[test]
fn dropped_tasks_go_around_their_router_which_is_named_within_a_minute() {
    let [mut host, mut dropper] = below_a_router();
    host.give(Event::Submitted(submission(12, 1e6)));
    talk_past_a_dropper(&mut host, &mut dropper, 14);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.astray, view.swallowed.len()), (0, 0, 0), "nothing is known yet");
    talk_past_a_dropper(&mut host, &mut dropper, 3);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.astray, host.started.len()), (1, 1, 1), "its own leaf is idle, and begins at once");
    assert!(view.swallowed.values().all(|swallowed| !swallowed.is_left_out), "one loss is no verdict: {view:?}");
    talk_past_a_dropper(&mut host, &mut dropper, 43);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.executors, view.unplaced), (12, 2, 0), "on both leaves: {view:?}");
    let swallowed: Vec<_> = view.swallowed.iter().map(|(router, swallowed)| (*router, swallowed.is_left_out)).collect();
    assert_eq!(swallowed, [(dropper.peer.me().peer, true)]);
    assert_eq!(view.astray, 12);
    // The tasks of the next bag go around the dropper at once.
    let next = BagId([8; 32]);
    host.give(Event::Submitted(Submission { id: next, ..submission(12, 1e6) }));
    talk_past_a_dropper(&mut host, &mut dropper, 2);
    let view = host.peer.bag(next).expect("a bag");
    assert_eq!((view.placed, view.astray), (12, 12), "{view:?}");
}

#[test]
fn an_honest_router_loses_no_request() {
    let [mut host, mut other] = pair();
    host.give(Event::Submitted(submission(12, 1e6)));
    talk(&mut host, &mut other, 60);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.astray, view.swallowed.len(), view.reissued), (12, 0, 0, 0));
}

/// One task of a request is lost. The stranger guesses the request's number and sends a request for that task, as if the router had got
/// that task alone.
#[test]
fn an_invented_request_has_no_router_left_out() {
    let [mut host, mut router] = below_a_router();
    host.give(Event::Submitted(submission(12, 1e6)));
    let is_request = |message: &Message| matches!(message, Message::Request { .. });
    let mut sent = std::mem::take(&mut host.sent);
    let place = sent.iter().position(|(_, message)| is_request(message)).expect("a request to the router");
    let Message::Request { request, node, climbing } = sent.remove(place).1 else { unreachable!() };
    let part = |ranges: Range<u64>| Message::Request {
        request: Request { ranges: ranges.into(), ..request.clone() },
        node,
        climbing,
    };
    router.receive(host.peer.me().peer.0[0], part(0..11));
    host.receive(9, part(11..12));
    // The stranger's request is lost.
    assert!(host.sent.iter().any(|(_, message)| is_request(message)));
    host.sent.clear();
    let is_second = host.peer.me().peer.0[0] == 3;
    let [one, other] = if is_second { [&mut router, &mut host] } else { [&mut host, &mut router] };
    talk(one, other, 40);
    let view = host.peer.bag(BAG).expect("a bag");
    assert_eq!((view.placed, view.reissued), (12, 1), "{view:?}");
    assert!(view.swallowed.is_empty(), "{view:?}");
}
